/* level: the table of levels, lowest first. What a level does not have better is that of the one below it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/level/level.h"
#include "base/os.h"

enum { AVX2 = DQ_CPU_AVX2, AVX512 = AVX2 | DQ_CPU_AVX512, VNNI = AVX512 | DQ_CPU_VNNI };

static const dq_cpu_level levels[] = {
    {.simd = &dq_simd_scalar,
     .blocked = &dq_simd_blocked_plain,
     .pages = &dq_simd_pages_plain,
     .peak = &dq_simd_peak_plain},
#if defined(__x86_64__)
    {.needs = AVX2,
     .simd = &dq_simd_avx2,
     .blocked = &dq_simd_blocked_avx2,
     .pages = &dq_simd_pages_avx2,
     .peak = &dq_simd_peak_avx2},
    {.needs = AVX512,
     .simd = &dq_simd_avx512,
     .blocked = &dq_simd_blocked_avx2,
     .pages = &dq_simd_pages_avx2,
     .peak = &dq_simd_peak_avx512},
    {.needs = VNNI,
     .simd = &dq_simd_avx512,
     .blocked = &dq_simd_blocked_vnni,
     .pages = &dq_simd_pages_vnni,
     .peak = &dq_simd_peak_vnni},
#endif
};

const dq_cpu_level *dq_cpu_level_of(unsigned features)
{
    size_t i = sizeof levels / sizeof *levels - 1;
    while ((levels[i].needs & features) != levels[i].needs) i--;
    return &levels[i];
}
