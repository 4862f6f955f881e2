/* cpu_peak: the peaks of this processor, on all threads: every thread runs the loop of its instruction set, or reads its share of a
 * block.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/linear/cpu_prepacked.h"

double dq_cpu_peak_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction)
{
    enum {
        PARTS = 3
    }; /* integer products of which a product in f32 with prepacked weights is made */
    const dq_simd_peak *peak = dq_cpu_of(b)->peak;
    const bool split = num == DQ_NUM_F32 && w && dq_cpu_prepacked_fits(w);
    const bool dot = split || num == DQ_NUM_INT8;
    double sum = 0;
    *instruction = split               ? peak->three_dots
                   : dot               ? peak->dot
                   : num == DQ_NUM_F32 ? peak->fma
                                       : NULL;
    if (!*instruction) return 0;
#pragma omp parallel for num_threads(b->threads) schedule(static) reduction(+ : sum)
    for (int i = 0; i < b->threads; i++) sum += dot ? peak->run_dot() : peak->run_fma();
    return split ? sum / PARTS : sum;
}

void dq_cpu_peak_read(dq_backend *b, const void *p, size_t bytes)
{
    enum { LINE = 64 };
    const dq_simd_peak *peak = dq_cpu_of(b)->peak;
    const size_t lines = bytes / LINE, n = (size_t)b->threads;
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (size_t i = 0; i < n; i++) {
        const size_t begin = lines * i / n, end = lines * (i + 1) / n;
        peak->read((const uint8_t *)p + LINE * begin, LINE * (end - begin));
    }
}
