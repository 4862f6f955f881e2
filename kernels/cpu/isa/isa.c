/* isa: the table of instruction sets, lowest first. What one does not have better is that of the one below it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/isa.h"
#include "base/os.h"

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
