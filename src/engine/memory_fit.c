/* memory_fit: see memory_fit.h. pass_bytes adds up what a pass of n rows holds at once: states, projections,
 * strips of attention, and the tokens that it appends, in whole pages. It grows with n, so the largest n that fits
 * is found by bisection, with an eighth left over.
 * SPDX-License-Identifier: MIT */
#include "engine/memory_fit.h"

#include "tensor/weight_format.h"

#include <stdio.h>
#include <string.h>

static double pass_bytes(const dq_model *m, const dq_kv_spec *kv, int64_t n_rows)
{
    const dq_headmap *a = &m->map;
    const int64_t heads = a->n_q + 2 * (int64_t)a->n_kv + (int64_t)a->n_out * a->n_slabs + 1;
    const int64_t ffn_rows = n_rows < DQ_FFN_ROWS ? n_rows : DQ_FFN_ROWS;
    const int64_t strips =
        (int64_t)a->n_q / a->n_groups * DQ_PAGE_TOKENS; /* of a tile of rows, per key */
    const int64_t states = 2; /* matrices of hidden states that the caller keeps */
    const int64_t own = 2;    /* those that the pass itself needs: x and h of the runner */
    const int64_t floats =
        n_rows * ((states + own) * m->dim + heads * a->head_dim + a->n_out + strips) +
        2 * ffn_rows * m->ffn;
    const int64_t tokens =
        (n_rows + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS * a->n_kv;
    const double plain = 2.0 * a->head_dim * sizeof(float); /* of one token, layer and head */
    double cache = plain * m->n_layers;
    /* tokens of a layer become codes when all of them are there */
    if (kv->k_bits < 16 && kv->v_bits < 16)
        cache = dq_kv_token_bytes(kv, a->head_dim) * m->n_layers + plain;
    return (double)floats * sizeof(float) + cache * (double)tokens;
}

int64_t dq_memory_fit_rows(const dq_model *m, const dq_kv_spec *kv, double available, int64_t max)
{
    int64_t low = 0, high = max;
    while (low < high) {
        const int64_t n = low + (high - low + 1) / 2;
        if (pass_bytes(m, kv, n) * 9 / 8 <= available)
            low = n;
        else
            high = n - 1;
    }
    return low;
}

dq_status dq_memory_fit_advise_rows(const dq_model *m, const dq_kv_spec *kv, double available,
                                    int64_t rows, dq_err *err)
{
    const int64_t max = rows - rows / 8 - 1; /* as many as now did not fit, whatever is counted */
    const int64_t fit = dq_memory_fit_rows(m, kv, available, max);
    dq_kv_spec coded = *kv;
    coded.k_bits = coded.v_bits = 8;
    const int64_t more = kv->k_bits == 16 ? dq_memory_fit_rows(m, &coded, available, max) : 0;
    if (fit == 0 && more == 0)
        return dq_fail_more(err, dq_remedy_none,
                            ", or fewer bits: no row of a pass fits beside the model");
    dq_fail_more(err, dq_remedy_none, ", or passes of fewer rows: of %lld, %lld fit",
                 (long long)rows, (long long)fit);
    if (more > fit)
        dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_KV_BITS_ROWS, .number = {more}},
                     ", %lld with a cache of 8 bits", (long long)more);
    const int64_t ctx = fit ? fit : more;
    return dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_CTX_OF_TEXT, .number = {ctx}},
                        " (windows of %lld ids for a text)", (long long)ctx);
}

/* Elements of the projections, and the bytes of everything else. */
static void count_weights(const dq_model *m, double *elements, double *others)
{
    *elements = 0;
    *others = (double)m->weight_bytes;
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            *elements += (double)all[k]->rows * (double)all[k]->cols;
            *others -= (double)dq_weight_bytes(all[k]);
        }
    }
}

dq_status dq_memory_fit_advise_bits(const dq_model *m, double available, dq_err *err)
{
    const double mib = 1024.0 * 1024.0, scales = 16.0 / 128;
    double elements, others;
    int bits = m->weight_bits > 1 && m->weight_bits <= 8 ? m->weight_bits - 1 : 8;
    if (err->code != DQ_RESOURCE) return err->code;
    count_weights(m, &elements, &others);
    while (bits > 1 && (others + elements * (bits + scales) / 8) * 9 / 8 > available) bits--;
    if (bits < 2)
        return dq_fail_more(err, dq_remedy_none,
                            ": the weights of %s, %.1f MiB, do not fit at 2 bits either", m->name,
                            (double)m->weight_bytes / mib);
    dq_fail_more(err, dq_remedy_none, ", or, as the weights of %s are %.1f MiB, ", m->name,
                 (double)m->weight_bytes / mib);
    dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_WEIGHT_BITS, .number = {bits}},
                 "%d bits a weight", bits);
    return dq_fail_more(err, dq_remedy_none, ", which fits");
}
