/* spans: a block adds D of one row and output head by the classes of its keys, positive and negative
 * apart, in f64; its threads' sums are folded in a fixed order. Rows become shares on the host, in
 * observe.c.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/launch.h"

#include "kernels/cuda/device/attention.cuh"
#include "kernels/cuda/device/reduce.cuh"

enum { THREADS = 128, MASSES = 2 * DQ_SPAN_SUM_CLASSES };

/* A thread's keys of one row and output head. */
DQ_DEVICE void add_keys(double *mass, const dq_attention_units *u, const dq_span_sums *c,
                        const dq_attention_unit *w, const dq_o_head *o, int i_out, int r)
{
    bool two = u->n_maps == 2;
    const float *f = factors_of(u, w, i_out, r), *p1 = strip_of(u, w, o->q[0], r);
    const float *p2 = two ? strip_of(u, w, o->q[1], r) : p1;
    const uint8_t *label = c->label + c->key[w->seq * u->n_groups + w->group];
    int n = visible_of(u, w, r);
    for (int k = (int)dq_thread(); k < n; k += THREADS) {
        float x = dq_mul_rn(p1[k], f[0]), y = two ? dq_mul_rn(p2[k], f[2]) : 0.0f;
        double d = (double)dq_sub_rn(x, y), size = d < 0 ? -d : d;
        int at = 2 * label[k] + (d < 0 ? 1 : 0);
        DQ_UNROLL
        for (int i = 0; i < MASSES; i++) mass[i] = dq_add_rn(mass[i], i == at ? size : 0.0);
    }
}

/* Grid: rows of a unit that count, output heads, units. */
DQ_KERNEL(THREADS) sum_spans(dq_attention_units u, dq_span_sums c)
{
    const dq_attention_unit *w = this_unit(&u);
    int r = w->counted + (int)dq_block_x(), i_out = (int)dq_block_y();
    if (r >= w->n || i_out >= heads_of(u.o_first, w->group)) return;
    const dq_o_head *o = u.o_head + u.o_first[w->group] + i_out;
    double mass[MASSES] = {};
    add_keys(mass, &u, &c, w, o, i_out, r);
    dq_reduce_block_sum<MASSES, THREADS>(mass);
    int64_t row = w->span + r - w->counted;
    double *to = c.mass + (row * u.n_out + o->out) * 2 * c.n_classes;
    if (dq_thread() != 0) return;
    DQ_UNROLL
    for (int i = 0; i < MASSES; i++) {
        if (i < 2 * c.n_classes) to[i] = mass[i];
    }
}

cudaError_t dq_spans_add_sums(dq_attention_units u, dq_span_sums c, cudaStream_t s)
{
    if (u.n == 0) return cudaSuccess;
    dim3 grid((unsigned)u.max_rows, (unsigned)u.max_out, (unsigned)u.n);
    DQ_LAUNCH(sum_spans, grid, THREADS, 0, s, u, c);
    return cudaGetLastError();
}
