/*
 * CPU detection. A feature counts only when the CPU has it and the operating system saves its registers;
 * otherwise the first such instruction is a fault. Source: Intel SDM volume 1, chapters 14.3 and 15.2
 * (detection of AVX and AVX-512) and 18.3 (AMX). Tiles need the kernel's permission besides
 * (Linux, Documentation/arch/x86/xstate.rst), which is asked for here; asking again is harmless.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/cpu.h"

#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has(uint32_t reg, uint32_t mask)
{
    return (reg & mask) == mask;
}

static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;

    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0)); /* the intrinsic would need -mxsave */
    return (uint64_t)hi << 32 | lo;
}

/* Whether the kernel lets this process, with all its threads, use tiles. */
static bool tiles_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* c->avx512 and what lies beside it are known. */
static void detect_amx(struct esp_cpu *c, uint64_t xcr0)
{
    enum {
        XCR0_TILES = 0x60000,                  /* configuration and data */
        AMX_BITS = 1 << 22 | 1 << 24 | 1 << 25 /* bf16, tile, int8; not all compilers have names for them */
    };
    uint32_t a, b, d, ignored;

    if (!c->avx512 || !c->avx512bf16 || !c->avx512vbmi || (xcr0 & XCR0_TILES) != XCR0_TILES ||
        !__get_cpuid_count(7, 0, &a, &b, &ignored, &d) || !has(d, AMX_BITS))
        return;
    c->amx = tiles_permitted();
    c->amx_refused = !c->amx;
}

struct esp_cpu esp_cpu_detect(void)
{
    enum {
        XCR0_AVX = 0x6,
        XCR0_AVX512 = 0xe6
    }; /* SSE and AVX; plus masks and both halves of the zmm registers */
    struct esp_cpu cpu = {0};
    uint32_t a, b, c, d;
    uint64_t xcr0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return cpu;
    xcr0 = read_xcr0();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, bit_AVX2) || (xcr0 & XCR0_AVX) != XCR0_AVX)
        return cpu;
    cpu.avx2 = true;
    cpu.avx512 = has(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) && has(c, bit_AVX512VNNI) &&
                 (xcr0 & XCR0_AVX512) == XCR0_AVX512;
    cpu.avx512vbmi = cpu.avx512 && has(c, bit_AVX512VBMI);
    if (cpu.avx512 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        cpu.avx512bf16 = has(a, bit_AVX512BF16);
    detect_amx(&cpu, xcr0);
    return cpu;
}

#elif defined(__aarch64__)

struct esp_cpu esp_cpu_detect(void)
{
    return (struct esp_cpu){.neon = true}; /* part of the base architecture */
}

#else

struct esp_cpu esp_cpu_detect(void)
{
    return (struct esp_cpu){0};
}

#endif
