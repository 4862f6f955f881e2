/* isa: the table of instruction sets, lowest first; what one does not have better is that of the
 * one below it. A peak is a loop of s = s * x + y alone, in enough chains that none waits, from
 * different values, so that no two are merged; it is compiled by attribute, as flags could change
 * results.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#include "base/os.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- peak */

enum { CHAINS = 12, ROUNDS = 1 << 17 };
static const double steps = (double)CHAINS * ROUNDS;

/* Where a value goes that nobody wants, so that it is computed. */
static _Thread_local volatile float kept_float;
static _Thread_local volatile uint32_t kept_word;

/* ---- Plain C: products are rounded before they are added ---- */

static double plain_fma(void)
{
    float s[CHAINS], sum = 0;
    for (int i = 0; i < CHAINS; i++) s[i] = (float)i;
    for (int n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) s[i] = s[i] * 0.5f + 1.0f;
    }
    for (int i = 0; i < CHAINS; i++) sum += s[i];
    kept_float = sum;
    return 2 * steps;
}

static double plain_dot(void)
{
    uint32_t s[CHAINS], sum = 0;
    for (uint32_t i = 0; i < CHAINS; i++) s[i] = i;
    for (int n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) s[i] = s[i] * 5 + 3;
    }
    for (int i = 0; i < CHAINS; i++) sum += s[i];
    kept_word = sum;
    return 2 * steps;
}

static void plain_read(const void *p, size_t bytes)
{
    const uint64_t *word = p;
    uint64_t s[8] = {0}, sum = 0;
    for (size_t i = 0; i < bytes / 8; i += 8) {
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) s[k] += word[i + (size_t)k];
    }
    for (int k = 0; k < 8; k++) sum += s[k];
    kept_word = (uint32_t)sum;
}

const dq_simd_peak dq_simd_peak_scalar = {"multiply and add",
                                          "multiply and add of integers",
                                          "three multiplies and adds of integers each",
                                          plain_fma,
                                          plain_dot,
                                          plain_read};

#if defined(__x86_64__)
#define FOR_AVX2   __attribute__((target("avx2,fma")))
#define FOR_AVX512 __attribute__((target("avx512f")))
#define FOR_VNNI   __attribute__((target("avx512f,avx512vnni")))
/* The compiler must take x for a new value, so that it repeats what it did with the old one. */
#define ANEW(x) __asm__ volatile("" : "+x"(x))

/* ---- AVX2 ---- */

FOR_AVX2 static double avx2_fma(void)
{
    const __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(1.0f);
    __m256 s[CHAINS], sum = y;
    for (int i = 0; i < CHAINS; i++) s[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) s[i] = _mm256_fmadd_ps(s[i], x, y);
    }
    for (int i = 0; i < CHAINS; i++) sum = _mm256_add_ps(sum, s[i]);
    kept_float = _mm256_cvtss_f32(sum);
    return 2 * 8 * steps;
}

/* Two instructions, without the one that makes words of sums of 16 bits: many sums may share it. */
FOR_AVX2 static double avx2_dot(void)
{
    enum { SUMS = 8 }; /* leaves registers for what stands between */
    __m256i s[SUMS], x = _mm256_set1_epi8(3), sum = x;
    const __m256i w = _mm256_set1_epi8(5);
    for (int i = 0; i < SUMS; i++) s[i] = _mm256_set1_epi16((short)i);
    for (int n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 8
        for (int i = 0; i < SUMS; i++) {
            ANEW(x);
            s[i] = _mm256_add_epi16(s[i], _mm256_maddubs_epi16(w, x));
        }
    }
    for (int i = 0; i < SUMS; i++) sum = _mm256_add_epi16(sum, s[i]);
    kept_word = (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(sum));
    return 2.0 * 32 * SUMS * ROUNDS;
}

/* Four streams are prefetched side by side, faster than one; pieces keep them near each other, as
 * at powers of two of 128 MiB and more they met in the same banks of memory, at half the rate. */
FOR_AVX2 static void avx2_read(const void *p, size_t bytes)
{
    enum { STREAMS = 4, STEP = 4, EACH = (1 << 20) / 32, PIECE = STREAMS * EACH }; /* in vectors */
    const __m256i *v = p;
    const size_t n = bytes / 32;
    __m256i s[STREAMS], sum = _mm256_setzero_si256();
    for (int k = 0; k < STREAMS; k++) s[k] = sum;
    size_t done = 0;
    for (; done + PIECE <= n; done += PIECE) {
        for (size_t i = done; i < done + EACH; i += STEP) {
#pragma GCC unroll 4
            for (size_t k = 0; k < STREAMS; k++) {
#pragma GCC unroll 4
                for (size_t j = 0; j < STEP; j++)
                    s[k] = _mm256_xor_si256(s[k], _mm256_load_si256(v + k * EACH + i + j));
            }
        }
    }
    for (; done < n; done++) sum = _mm256_xor_si256(sum, _mm256_load_si256(v + done));
    for (int k = 0; k < STREAMS; k++) sum = _mm256_xor_si256(sum, s[k]);
    kept_word = (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(sum));
}

/* ---- AVX-512 ---- */

FOR_AVX512 static double avx512_fma(void)
{
    const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(1.0f);
    __m512 s[CHAINS], sum = y;
    for (int i = 0; i < CHAINS; i++) s[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) s[i] = _mm512_fmadd_ps(s[i], x, y);
    }
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_ps(sum, s[i]);
    kept_float = _mm_cvtss_f32(_mm512_castps512_ps128(sum));
    return 2 * 16 * steps;
}

FOR_VNNI static double vnni_dot(void)
{
    const __m512i x = _mm512_set1_epi32(0x03030303), w = _mm512_set1_epi32(0x05050505);
    __m512i s[CHAINS], sum = x;
    for (int i = 0; i < CHAINS; i++) s[i] = _mm512_set1_epi32(i);
    for (int n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) s[i] = _mm512_dpbusd_epi32(s[i], w, x);
    }
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_epi32(sum, s[i]);
    kept_word = (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(sum));
    return 2 * 64 * steps;
}

static const char avx2_words[] = "vpmaddubsw and vpaddw, 256 bits";
static const char avx2_three[] = "three of vpmaddubsw and vpaddw, 256 bits";
const dq_simd_peak dq_simd_peak_avx2 = {"vfmadd, 256 bits", avx2_words, avx2_three,
                                        avx2_fma,           avx2_dot,   avx2_read};
const dq_simd_peak dq_simd_peak_avx512 = {"vfmadd, 512 bits", avx2_words, avx2_three,
                                          avx512_fma,         avx2_dot,   avx2_read};
const dq_simd_peak dq_simd_peak_vnni = {
    "vfmadd, 512 bits", "vpdpbusd, 512 bits", "three of vpdpbusd, 512 bits", avx512_fma, vnni_dot,
    avx2_read};
#endif

/* ---- table */

enum {
    AVX2 = DQ_CPU_AVX2,
    AVX512 = AVX2 | DQ_CPU_AVX512,
    VNNI = AVX512 | DQ_CPU_VNNI,
    VBMI = VNNI | DQ_CPU_VBMI
};

static const dq_cpu_isa isas[] = {
    {.simd = &dq_simd_scalar,
     .prepacked = &dq_simd_prepacked_scalar,
     .levels = dq_levels_plain,
     .pages = &dq_simd_pages_scalar,
     .peak = &dq_simd_peak_scalar},
#if defined(__x86_64__)
    {.needs = AVX2,
     .simd = &dq_simd_avx2,
     .prepacked = &dq_simd_prepacked_avx2,
     .levels = dq_levels_plain,
     .pages = &dq_simd_pages_avx2,
     .peak = &dq_simd_peak_avx2},
    {.needs = AVX512,
     .simd = &dq_simd_avx512,
     .prepacked = &dq_simd_prepacked_avx2,
     .levels = dq_levels_plain,
     .pages = &dq_simd_pages_avx2,
     .peak = &dq_simd_peak_avx512},
    {.needs = VNNI,
     .simd = &dq_simd_avx512,
     .prepacked = &dq_simd_prepacked_vnni,
     .levels = dq_levels_plain,
     .pages = &dq_simd_pages_vnni,
     .peak = &dq_simd_peak_vnni},
    {.needs = VBMI,
     .simd = &dq_simd_avx512,
     .prepacked = &dq_simd_prepacked_vnni,
     .levels = dq_levels_vbmi,
     .pages = &dq_simd_pages_vnni,
     .peak = &dq_simd_peak_vnni},
#endif
};

const dq_cpu_isa *dq_cpu_isa_of(unsigned features)
{
    size_t i = sizeof isas / sizeof *isas - 1;
    while ((isas[i].needs & features) != isas[i].needs) i--;
    return &isas[i];
}
