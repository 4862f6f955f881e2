/* level: the table of levels, lowest first. What a level does not have better is that of the one below it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/level/level.h"
#include "base/os.h"

static const dq_cpu_level levels[] = {
    {0, &dq_simd_scalar, &dq_simd_blocked_plain, &dq_simd_pages_plain, dq_simd_int8_dots,
     &dq_simd_peak_plain},
#if defined(__x86_64__)
    {DQ_CPU_AVX2, &dq_simd_avx2, &dq_simd_blocked_avx2, &dq_simd_pages_avx2, dq_simd_int8_dots,
     &dq_simd_peak_avx2},
    {DQ_CPU_AVX512, &dq_simd_avx512, &dq_simd_blocked_avx2, &dq_simd_pages_avx2, dq_simd_int8_dots,
     &dq_simd_peak_avx512},
    {DQ_CPU_VNNI, &dq_simd_avx512, &dq_simd_blocked_vnni, &dq_simd_pages_vnni,
     dq_simd_int8_dots_vnni, &dq_simd_peak_vnni},
#endif
};

const dq_cpu_level *dq_cpu_level_of(unsigned features)
{
    size_t i = sizeof levels / sizeof *levels - 1;
    while ((levels[i].needs & features) != levels[i].needs) i--;
    return &levels[i];
}
