/*
 * See recurrent.h. Loops run over whole groups of constant length, so that the compiler makes vectors of
 * them; every number is one rounding of its own, so vectors change no bit.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/recurrent.h"

#include <math.h>
#include <string.h>

#include "formats/format.h"

enum { UNIT = 16, STEPS = 127, PARTS = 16 /* of a step, for errors */ };

static const char *const NAMES[ESP_RECURRENT_COUNT] = {"f32", "bf16", "q8"};

esp_status esp_recurrent_parse(enum esp_recurrent *out, const char *name, esp_error *err)
{
    for (int i = 0; i < ESP_RECURRENT_COUNT; i++)
        if (strcmp(name, NAMES[i]) == 0) {
            *out = (enum esp_recurrent)i;
            return ESP_OK;
        }
    return esp_fail(err, ESP_EINVAL, "state \"%s\"; accepted: f32, bf16, q8", name);
}

const char *esp_recurrent_name(enum esp_recurrent kind)
{
    return NAMES[kind];
}

static uint32_t group_of(uint32_t dk)
{
    return dk % (2 * UNIT) ? UNIT : 2 * UNIT;
}

size_t esp_recurrent_bytes(enum esp_recurrent kind, uint32_t dv, uint32_t dk)
{
    const size_t n = (size_t)dv * dk;

    if (kind == ESP_RECURRENT_F32)
        return n * sizeof(float);
    return kind == ESP_RECURRENT_BF16 ? n * 2 : n + n / 2 + n / group_of(dk) * 2;
}

/* ---- bf16 ---- */

static void read_bf16(const uint8_t *head, size_t n, float *s)
{
    for (size_t i = 0; i < n; i += UNIT) {
        uint16_t half[UNIT];
        uint32_t bits[UNIT];

        memcpy(half, head + 2 * i, sizeof half);
        for (int j = 0; j < UNIT; j++)
            bits[j] = (uint32_t)half[j] << 16;
        memcpy(s + i, bits, sizeof bits);
    }
}

static void write_bf16(const float *s, size_t n, uint8_t *head)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = esp_f32_to_bf16(s[i]);

        memcpy(head + 2 * i, &h, sizeof h);
    }
}

/* ---- q8 ---- */

struct planes {
    uint8_t *codes, *errors, *scales;
    size_t n;
    uint32_t group;
};

static struct planes planes_of(const uint8_t *head, uint32_t dv, uint32_t dk)
{
    struct planes p = {.codes = (uint8_t *)(uintptr_t)head, .n = (size_t)dv * dk, .group = group_of(dk)};

    p.errors = p.codes + p.n;
    p.scales = p.errors + p.n / 2;
    return p;
}

static float scale_at(const struct planes *p, size_t i)
{
    uint16_t h;

    memcpy(&h, p->scales + i / p->group * 2, sizeof h);
    return esp_bf16_to_f32(h);
}

static void read_q8(const struct planes *p, float *s)
{
    for (size_t i = 0; i < p->n; i += UNIT) {
        const float scale = scale_at(p, i);
        int8_t code[UNIT];

        memcpy(code, p->codes + i, sizeof code);
        for (int j = 0; j < UNIT; j++)
            s[i + (size_t)j] = (float)code[j] * scale;
    }
}

static void resume_q8(const struct planes *p, float *s)
{
    for (size_t i = 0; i < p->n; i += UNIT) {
        const float part = scale_at(p, i) / PARTS; /* a power of two: exact */
        int8_t code[UNIT];

        memcpy(code, p->codes + i, sizeof code);
        for (int j = 0; j < UNIT; j++) {
            const int error = (p->errors[(i + (size_t)j) / 2] >> (j % 2 * 4) & 15) - 8;

            s[i + (size_t)j] = (float)(code[j] * PARTS + error) * part;
        }
    }
}

/* The smallest bf16 that takes the largest magnitude of x in STEPS steps; NaN when a number is not finite. */
static uint16_t scale_for(const float *x, uint32_t n)
{
    float most = 0, step;
    uint16_t h;

    for (uint32_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);

        if (!(a <= 3.4e38f))
            return 0x7fc0;
        most = a > most ? a : most;
    }
    step = most / STEPS;
    if (step < 0x1p-100f)
        return 0; /* so small that it is nothing */
    h = esp_f32_to_bf16(step);
    return esp_bf16_to_f32(h) < step ? (uint16_t)(h + 1) : h;
}

static int clamp(int v, int least, int most)
{
    return v < least ? least : v > most ? most : v;
}

static void write_q8(const float *s, const struct planes *p)
{
    for (size_t i = 0; i < p->n; i += p->group) {
        const uint16_t h = scale_for(s + i, p->group);
        const float scale = esp_bf16_to_f32(h), by = scale > 0 ? 1 / scale : 0;

        memcpy(p->scales + i / p->group * 2, &h, sizeof h);
        for (uint32_t j = 0; j < p->group; j++) {
            const float steps = scale > 0 ? s[i + j] * by : 0;
            const int code = clamp((int)rintf(steps), -STEPS, STEPS);
            const int error = clamp((int)rintf((steps - (float)code) * PARTS), -8, 7);
            uint8_t *e = p->errors + (i + j) / 2;

            p->codes[i + j] = (uint8_t)(int8_t)code;
            *e = (uint8_t)(j % 2 ? *e | (error + 8) << 4 : error + 8);
        }
    }
}

/* ---- heads ---- */

void esp_recurrent_read(enum esp_recurrent kind, uint32_t dv, uint32_t dk, const uint8_t *head, float *s)
{
    const struct planes p = planes_of(head, dv, dk);

    if (kind == ESP_RECURRENT_Q8)
        read_q8(&p, s);
    else
        esp_recurrent_resume(kind, dv, dk, head, s);
}

void esp_recurrent_resume(enum esp_recurrent kind, uint32_t dv, uint32_t dk, const uint8_t *head, float *s)
{
    const struct planes p = planes_of(head, dv, dk);

    if (kind == ESP_RECURRENT_Q8)
        resume_q8(&p, s);
    else if (kind == ESP_RECURRENT_BF16)
        read_bf16(head, p.n, s);
    else
        memcpy(s, head, p.n * sizeof *s);
}

void esp_recurrent_write(enum esp_recurrent kind, uint32_t dv, uint32_t dk, const float *s, uint8_t *head)
{
    const struct planes p = planes_of(head, dv, dk);

    if (kind == ESP_RECURRENT_Q8)
        write_q8(s, &p);
    else if (kind == ESP_RECURRENT_BF16)
        write_bf16(s, p.n, head);
    else
        memcpy(head, s, p.n * sizeof *s);
}
