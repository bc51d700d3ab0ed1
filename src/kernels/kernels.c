/*
 * Building the kernel table: the reference fills every entry, then each level up to the wanted one overrides
 * what it does better. A level counts only when this build contains its kernels, so that "avx2" in a log
 * always means it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/kernels.h"

#include <string.h>

#include "kernels/cpu.h"
#include "kernels/levels.h"

static const char *const LEVEL_NAMES[ESP_CPU_LEVEL_COUNT] = {
    [ESP_CPU_REF] = "ref", [ESP_CPU_AVX2] = "avx2", [ESP_CPU_AVX512] = "avx512",
    [ESP_CPU_AMX] = "amx", [ESP_CPU_NEON] = "neon",
};

enum esp_act esp_act_resolve(enum esp_format_id format, enum esp_act act)
{
    if (esp_format_get(format)->integer)
        return act;
    if (act == ESP_ACT_INT8X2)
        return ESP_ACT_F32;
    return act == ESP_ACT_INT8 ? ESP_ACT_BF16 : act;
}

const char *esp_act_name(enum esp_act act)
{
    static const char *const names[ESP_ACT_COUNT] = {"f32", "bf16", "int8x2", "int8"};

    return names[act];
}

const char *esp_shape_name(enum esp_shape shape)
{
    static const char *const names[ESP_SHAPE_COUNT] = {"any", "packed", "stored", "axis 0", "axis 1"};

    return names[shape];
}

const struct esp_path *esp_path_of(const struct esp_path *list, enum esp_shape shape, uint32_t n_row)
{
    const struct esp_path *best = NULL;

    for (; list->name; list++)
        if ((list->shape == shape || list->shape == ESP_SHAPE_ANY) && list->rows <= n_row &&
            (!best || list->rows > best->rows))
            best = list;
    return best;
}

const char *esp_cpu_level_name(enum esp_cpu_level level)
{
    return LEVEL_NAMES[level];
}

const char *esp_cpu_note(void)
{
#ifdef ESP_HAVE_X86_KERNELS
    if (esp_cpu_detect().amx_refused)
        return "the CPU has AMX, but the kernel does not let this process use it";
#endif
    return NULL;
}

static bool level_present(enum esp_cpu_level level)
{
    switch (level) {
    case ESP_CPU_REF:
        return true;
#ifdef ESP_HAVE_X86_KERNELS
    case ESP_CPU_AVX2:
        return esp_cpu_detect().avx2;
    case ESP_CPU_AVX512:
        return esp_cpu_detect().avx512;
    case ESP_CPU_AMX:
        return esp_cpu_detect().amx;
#endif
#ifdef ESP_HAVE_ARM_KERNELS
    case ESP_CPU_NEON:
        return esp_cpu_detect().neon;
#endif
    default:
        return false;
    }
}

enum esp_cpu_level esp_cpu_best(void)
{
    enum esp_cpu_level best = ESP_CPU_REF;

    for (int i = 0; i < ESP_CPU_LEVEL_COUNT; i++) {
        if (level_present((enum esp_cpu_level)i))
            best = (enum esp_cpu_level)i;
    }
    return best;
}

esp_status esp_cpu_level_parse(enum esp_cpu_level *out, const char *name, esp_error *err)
{
    for (int i = 0; i < ESP_CPU_LEVEL_COUNT; i++) {
        if (strcmp(name, LEVEL_NAMES[i]) != 0)
            continue;
        if (!level_present((enum esp_cpu_level)i))
            return esp_fail(err, ESP_EDEVICE,
                            "CPU level \"%s\" is not available here; the best is \"%s\"%s%s", name,
                            LEVEL_NAMES[esp_cpu_best()], i == ESP_CPU_AMX && esp_cpu_note() ? ": " : "",
                            i == ESP_CPU_AMX && esp_cpu_note() ? esp_cpu_note() : "");
        *out = (enum esp_cpu_level)i;
        return ESP_OK;
    }
    return esp_fail(err, ESP_EINVAL,
                    "CPU level \"%s\" is not known; known are ref, avx2, avx512, amx and neon", name);
}

void esp_kernels_init_plain(struct esp_kernels *k, enum esp_cpu_level level)
{
    memset(k, 0, sizeof *k);
    esp_kernels_init_ref(k);
#ifdef ESP_HAVE_X86_KERNELS
    if (level == ESP_CPU_AVX2 || level == ESP_CPU_AVX512 || level == ESP_CPU_AMX)
        esp_kernels_init_avx2(k);
    if (level == ESP_CPU_AVX512 || level == ESP_CPU_AMX)
        esp_kernels_init_avx512(k);
    if (level == ESP_CPU_AMX) {
        esp_kernels_init_avx512bf16(k);
        esp_kernels_init_avx512vbmi(k);
        esp_kernels_init_amx(k);
    }
#endif
#ifdef ESP_HAVE_ARM_KERNELS
    if (level == ESP_CPU_NEON)
        esp_kernels_init_neon(k);
#endif
    k->isa = LEVEL_NAMES[level];
    k->level = level;
}

void esp_kernels_init(struct esp_kernels *k, enum esp_cpu_level level)
{
    esp_kernels_init_plain(k, level);
#ifdef ESP_HAVE_X86_KERNELS
    if (level == ESP_CPU_AVX512) {
        static const char *const names[2][2] = {{"avx512", "avx512+vbmi"},
                                                {"avx512+bf16", "avx512+bf16+vbmi"}};
        const struct esp_cpu cpu = esp_cpu_detect();

        if (cpu.avx512bf16)
            esp_kernels_init_avx512bf16(k);
        if (cpu.avx512vbmi)
            esp_kernels_init_avx512vbmi(k);
        k->isa = names[cpu.avx512bf16][cpu.avx512vbmi];
    }
#endif
}

size_t esp_delta_scratch_floats(void)
{
    /* three chunk x chunk matrices (decays, K K^T, Q K^T), two chunk x 256 (S k, S q), and two rows to spare
     */
    return 3 * ESP_CHUNK * ESP_CHUNK + 2 * ESP_CHUNK * 256 + 2 * 256;
}

size_t esp_attend_scratch_floats(uint32_t n_query)
{
    /* scales and biases of a span of coded keys and values, as f32 */
    const size_t scales = 4 * (ESP_SPAN * (ESP_HEAD_MAX / ESP_KV_GROUP) + 16);

    /* scores and the span's own weighted values for every query, padded to a whole tile of 16 queries */
    return ((size_t)n_query + 16) * (ESP_SPAN + ESP_HEAD_MAX + 16) + scales;
}
