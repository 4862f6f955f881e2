/* What every device has in common. See backend.h; kernels/backends.c opens them.
 * SPDX-License-Identifier: MIT */
#include "engine/backend.h"

#include "base/os.h"
#include "engine/runner.h"

#include <string.h>

void dq_backend_close(dq_backend *b)
{
    if (!b) return;
    b->ops->close(b);
    dq_block_free(b);
}

dq_status dq_backend_sync(dq_backend *b, dq_err *err)
{
    b->ops->sync(b);
    const dq_err found = b->err;
    memset(&b->err, 0, sizeof b->err);
    if (found.code == DQ_OK) return err->code;
    return dq_fail_as(err, &found);
}

static bool by_processor(const dq_backend *b)
{
    return b->threads == 1 && strcmp(b->ops->name, "cpu") == 0;
}

double dq_backend_seconds(const dq_backend *b)
{
    return by_processor(b) ? dq_os_own_seconds() : dq_os_seconds();
}

const char *dq_backend_clock(const dq_backend *b)
{
    return by_processor(b) ? "processor" : "wall";
}

/* The first projection whose codes the backend cannot multiply; NULL: all can. */
static const dq_weight *find_dense(const dq_backend *b, const dq_model *m)
{
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            if (all[k]->rows && !b->ops->matmul_kernel(b, all[k], DQ_NUM_INT8)) return all[k];
        }
    }
    return NULL;
}

dq_status dq_backend_can_evict(const dq_backend *b, const dq_kv_policy *policy, dq_err *err)
{
    const unsigned needs = policy ? policy->needs : 0;
    if ((!(needs & DQ_NEEDS_PEAK) || b->ops->has_peaks) &&
        (!(needs & DQ_NEEDS_KEY_COSINE) || b->ops->kv_key_cosines) &&
        (!(needs & DQ_NEEDS_KEY_LEVERAGE) || b->ops->kv_key_leverages) &&
        (!(needs & DQ_NEEDS_GATES) || b->ops->kv_rows))
        return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_DEVICE},
                        "the policy %s is not on the %s backend", policy->name, b->ops->name);
}

dq_status dq_backend_can(const dq_backend *b, const struct dq_model *m, dq_math math,
                         const dq_kv_spec *kv, dq_err *err)
{
    const dq_need need = {m ? m->path : "", m ? m->map.head_dim : 0, math, kv};
    const dq_weight *dense = m && math.linear == DQ_NUM_INT8 ? find_dense(b, m) : NULL;
    const bool attends = math.qk == DQ_NUM_INT8 || math.pv == DQ_NUM_INT8 || math.kv == DQ_NUM_INT8;
    if (dense && dq_weight_is_coded(dense)) {
        dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_F32},
                     "math int8 needs codes that the %s backend multiplies, and %s has %s",
                     b->ops->name, dense->name, dq_weight_format_of(dense)->note);
        return dq_in(err, "%s: ", m->path);
    }
    if (dense) {
        const dq_remedy_code help = m->prequant ? DQ_REMEDY_MATH_F32 : DQ_REMEDY_MATH_WEIGHTS;
        dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = help},
                     "math int8 needs packed weights, and %s is not packed", dense->name);
        return dq_in(err, "%s: ", m->path);
    }
    if (attends && (kv->k_bits > 8 || kv->v_bits > 8))
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_CACHE},
                            "math int8 needs a packed KV cache, and this one has %d-bit keys and "
                            "%d-bit values",
                            kv->k_bits, kv->v_bits);
    DQ_TRY(b->ops->can(&need, err));
    DQ_TRY(dq_backend_can_evict(b, kv->evict.policy, err));
    if (math.kv != kv->num)
        return dq_fail(err, DQ_BUG, "the cache is for %s, the pass for %s", dq_num_name[kv->num],
                       dq_num_name[math.kv]);
    return DQ_OK;
}

/* pass_bytes adds up what a pass of n rows holds: states, projections, strips of attention, and
 * appended tokens in whole pages. It grows with n, so bisection finds the largest n, with an eighth
 * left over. */

int64_t dq_memory_fit_rows(const dq_model *m, const dq_kv_spec *kv, double available, int64_t max)
{
    int64_t low = 0, high = max;
    while (low < high) {
        const int64_t n = low + (high - low + 1) / 2;
        const dq_head_order *a = &m->map;
        const int64_t heads = a->n_q + 2 * (int64_t)a->n_kv + (int64_t)a->n_out * a->n_slabs + 1;
        const int64_t ffn_rows = n < DQ_FFN_ROWS ? n : DQ_FFN_ROWS;
        const int64_t strips =
            (int64_t)a->n_q / a->n_groups * DQ_PAGE_TOKENS; /* of a tile of rows, per key */
        const int64_t states = 2; /* matrices of hidden states that the caller keeps */
        const int64_t own = 2;    /* those that the pass itself needs: x and h of the runner */
        const int64_t floats =
            n * ((states + own) * m->dim + heads * a->head_dim + a->n_out + strips) +
            2 * ffn_rows * m->ffn;
        const int64_t tokens = (n + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS * a->n_kv;
        const double plain =
            2.0 * a->head_dim * dq_kv_dense_bytes(kv); /* of one token, layer and head */
        double cache = plain * m->n_layers;
        /* tokens of a layer become codes when all of them are there */
        if (kv->k_bits < 16 && kv->v_bits < 16)
            cache = dq_kv_token_bytes(kv, a->head_dim) * m->n_layers + plain;
        if (((double)floats * sizeof(float) + cache * (double)tokens) * 9 / 8 <= available)
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
    coded.widths[0] = 0;
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
                        " (windows of %lld tokens for a text)", (long long)ctx);
}

/* Elements of projections; elements and bytes of the ends; bytes of the rest. */
typedef struct weight_sum {
    double elements, end_elements, end_bytes, others;
} weight_sum;

/* Whether all fits at so many bits; end_bits 0: the ends as they are. */
static bool fits(const weight_sum *s, int bits, int end_bits, double available)
{
    const double scales = 16.0 / 128, projections = s->elements * (bits + scales) / 8;
    const double ends = end_bits ? s->end_elements * (end_bits + scales) / 8 : s->end_bytes;
    return (s->others + ends + projections) * 9 / 8 <= available;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The most bits for projections and ends (0: as they are) that fit, at most today's. *bits below 2:
 * nothing fits. */
static void find_bits(const dq_model *m, double available, int *bits, int *end)
{
    const bool packed = m->weight_bits > 1 && m->weight_bits <= 8;
    const int own = packed ? m->weight_bits : 8;
    const int own_end = m->embed_bits > 1 && m->embed_bits <= 8 ? m->embed_bits : 8;
    weight_sum s = {.others = (double)m->weight_bytes};
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            s.elements += (double)all[k]->rows * (double)all[k]->cols;
            s.others -= (double)dq_weight_bytes(all[k]);
        }
    }
    const dq_weight *const ends[] = {&m->embed, m->tied ? NULL : &m->head};
    for (int k = 0; k < 2; k++) {
        if (!ends[k] || ends[k]->rows == 0) continue;
        s.end_elements += (double)ends[k]->rows * (double)ends[k]->cols;
        s.end_bytes += (double)dq_weight_bytes(ends[k]);
    }
    s.others -= s.end_bytes;
    *end = 0;
    for (*bits = packed ? own - 1 : own; *bits > 1; --*bits)
        if (fits(&s, *bits, 0, available)) return;
    for (int b = 8; b > 1 && s.end_elements > 0; b--) {
        if (!fits(&s, smaller(b, own), smaller(b, own_end), available)) continue;
        *bits = smaller(b, own);
        *end = smaller(b, own_end);
        return;
    }
}

dq_status dq_memory_fit_advise_bits(const dq_model *m, double available, dq_err *err)
{
    const double mib = 1024.0 * 1024.0;
    int bits, end;
    if (err->code != DQ_RESOURCE) return err->code;
    find_bits(m, available, &bits, &end);
    if (bits < 2)
        return dq_fail_more(err, dq_remedy_none,
                            ": the weights of %s, %.1f MiB, do not fit at 2 bits either", m->name,
                            (double)m->weight_bytes / mib);
    dq_fail_more(err, dq_remedy_none, ", or, as the weights of %s are %.1f MiB, ", m->name,
                 (double)m->weight_bytes / mib);
    if (end)
        dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_END_BITS, .number = {bits, end}},
                     "%d bits a weight, and %d of the embedding and the head", bits, end);
    else
        dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_WEIGHT_BITS, .number = {bits}},
                     "%d bits a weight", bits);
    return dq_fail_more(err, dq_remedy_none, ", which fits");
}
