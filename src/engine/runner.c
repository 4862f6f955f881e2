/* What every device has in common, what fits into its memory, and the order of operations inside a
 * layer, which the runner and calibration share. kernels/backends.c opens devices.
 * SPDX-License-Identifier: MIT */
#include "engine/runner.h"

#include "base/os.h"

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

dq_math dq_backend_math(const dq_backend *b, dq_num num)
{
    const dq_num attends = num != DQ_NUM_F32 && b->ops->attends_in_f16 ? DQ_NUM_F16 : num;
    return (dq_math){.linear = num, .qk = attends, .pv = attends, .kv = num};
}

dq_math dq_backend_math_of(const dq_backend *b, dq_math math, const dq_kv_spec *kv, int head_dim)
{
    if (b->ops->keys_in_int8 && b->ops->keys_in_int8(b, kv, head_dim)) math.qk = DQ_NUM_INT8;
    return math;
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

typedef struct room {
    const dq_model *m;
    const dq_backend *b;
    const dq_kv *kv;  /* of a runner; its spec may be another */
    double available; /* bytes */
} room;

/* The most rows, at most `max`, whose scratch, cache and final states fit. */
static int64_t fit_rows(const room *x, const dq_kv_spec *kv, int64_t max)
{
    const dq_model *m = x->m;
    int64_t low = 0, high = max;
    while (low < high) {
        const int64_t n = low + (high - low + 1) / 2;
        const dq_head_order *a = &m->map;
        const int64_t angles = m->local_rope.dim ? 2 : 1;
        const int64_t heads =
            a->n_q + 2 * (int64_t)a->n_kv + (int64_t)a->n_out * a->n_slabs + angles;
        const int64_t ffn_rows = n < DQ_FFN_ROWS ? n : DQ_FFN_ROWS;
        const int64_t strips =
            (int64_t)a->n_q / a->n_groups * DQ_PAGE_TOKENS; /* of a tile of rows, per key */
        const int64_t states = 2; /* matrices of hidden states that the caller keeps */
        const int64_t own = 2;    /* those that the pass itself needs: x and h of the runner */
        const int64_t floats =
            n * ((states + own) * m->dim + heads * a->head_dim + a->n_out + strips) +
            2 * ffn_rows * m->ffn;
        /* tokens of a layer become codes, or leave its window, when all of them are there */
        const int64_t pages = (n + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS;
        const bool turns = kv->k_bits < 16 && kv->v_bits < 16;
        const double plain =
            2.0 * a->head_dim * dq_kv_dense_bytes(kv); /* of one token, layer and head */
        const double each = turns ? dq_kv_token_bytes(kv, a->head_dim) : plain;
        double cache = turns || dq_model_window(m) ? plain * (double)pages : 0;
        for (int l = 0; l < m->n_layers; l++)
            cache += each * (double)dq_kv_window_cached(m->layer[l].attn.window, pages);
        double bytes = (double)floats * sizeof(float) + cache * a->n_kv;
        if (x->b->ops->attend_bytes) bytes += x->b->ops->attend_bytes(x->b, x->kv, n);
        if (bytes * 9 / 8 <= x->available)
            low = n;
        else
            high = n - 1;
    }
    return low;
}

static dq_status advise_rows(const room *x, const dq_kv_spec *kv, int64_t rows, dq_err *err)
{
    const int64_t max = rows - rows / 8 - 1; /* as many as now did not fit, whatever is counted */
    const int64_t fit = fit_rows(x, kv, max);
    dq_kv_spec coded = *kv;
    coded.k_bits = coded.v_bits = 8;
    coded.widths[0] = 0;
    const int64_t more = kv->k_bits == 16 ? fit_rows(x, &coded, max) : 0;
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

/* ---- Layers ---- */

void dq_layer_steps_norm_attn(const dq_layer_steps *s)
{
    s->b->ops->rms_norm(s->b, s->h, s->x, s->layer->norm_attn, s->m->norm_eps);
}

void dq_layer_steps_norm_ffn(const dq_layer_steps *s)
{
    s->b->ops->rms_norm(s->b, s->h, s->x, s->layer->norm_ffn, s->m->norm_eps);
}

void dq_layer_steps_norm_out(const dq_layer_steps *s)
{
    s->b->ops->rms_norm(s->b, s->h, s->x, s->m->norm_out, s->m->norm_eps);
}

/* RMS norm of each head. gain NULL: none. */
static void norm_heads(const dq_layer_steps *s, dq_mat x, const float *gain)
{
    const int64_t d = s->m->map.head_dim;
    const dq_mat heads = {.p = x.p, .rows = x.rows * (x.cols / d), .cols = d};
    if (gain) s->b->ops->rms_norm(s->b, heads, heads, gain, s->m->norm_eps);
}

void dq_layer_steps_qk(const dq_layer_steps *s)
{
    const dq_layer *l = s->layer;
    const dq_ops *op = s->b->ops;
    const int head_dim = s->m->map.head_dim;
    dq_backend *b = s->b;
    op->matmul(b, s->q, s->h, &l->q, l->q_bias, s->math.linear);
    op->matmul(b, s->k, s->h, &l->k, l->k_bias, s->math.linear);
    norm_heads(s, s->q, l->q_norm);
    norm_heads(s, s->k, l->k_norm);
    if (l->rope != &s->m->no_rope) {
        op->rope(b, s->q, s->angles, l->rope->order);
        op->rope(b, s->k, s->angles, l->rope->order);
    }
    if (s->kv_spec->rotate_k) {
        op->hadamard(b, s->q, head_dim);
        op->hadamard(b, s->k, head_dim);
    }
    if (l->attn.lambda_kind == DQ_LAMBDA_TOKEN) {
        op->matmul(b, s->lambda, s->h, &l->lambda_proj, NULL, DQ_NUM_F32); /* never packed */
        op->sigmoid(b, s->lambda);
    }
}

void dq_layer_steps_qkv(const dq_layer_steps *s)
{
    const dq_layer *l = s->layer;
    dq_layer_steps_qk(s);
    s->b->ops->matmul(s->b, s->v, s->h, &l->v, l->v_bias, s->math.linear);
    if (s->kv_spec->rotate_v) s->b->ops->hadamard(s->b, s->v, s->m->map.head_dim);
    s->b->ops->kv_append(s->b, s->kv, s->kv_layer, s->batch, s->k, s->v, s->math.qk);
}

dq_attend_args dq_layer_steps_args(const dq_layer_steps *s, const dq_attend_args *extra)
{
    dq_attend_args args = *extra;
    args.attn = &s->layer->attn;
    args.batch = s->batch;
    args.kv = s->kv;
    args.layer = s->kv_layer;
    args.q = s->q;
    args.lambda = s->lambda;
    args.math = s->math;
    return args;
}

void dq_layer_steps_attend(const dq_layer_steps *s, const dq_attend_args *extra)
{
    const dq_attend_args args = dq_layer_steps_args(s, extra);
    s->b->ops->attend(s->b, s->y, &args);
}

/* gain NULL: no norm. */
static void add_part(const dq_layer_steps *s, const float *gain)
{
    if (gain) s->b->ops->rms_norm(s->b, s->h, s->h, gain, s->m->norm_eps);
    s->b->ops->add(s->b, s->x, s->h);
}

void dq_layer_steps_add_attn(const dq_layer_steps *s)
{
    add_part(s, s->layer->norm_attn_out);
}

void dq_layer_steps_add_ffn(const dq_layer_steps *s)
{
    add_part(s, s->layer->norm_ffn_out);
}

void dq_layer_steps_o(const dq_layer_steps *s)
{
    s->b->ops->matmul(s->b, s->h, s->y, &s->layer->o, s->layer->o_bias, s->math.linear);
}

void dq_layer_steps_out(const dq_layer_steps *s)
{
    dq_layer_steps_o(s);
    dq_layer_steps_add_attn(s);
}

void dq_layer_steps_gate_up(const dq_layer_steps *s, dq_mat gate, dq_mat up, dq_mat in)
{
    const dq_layer *l = s->layer;
    s->b->ops->matmul(s->b, gate, in, &l->gate, l->gate_bias, s->math.linear);
    s->b->ops->matmul(s->b, up, in, &l->up, l->up_bias, s->math.linear);
    s->b->ops->ffn_act(s->b, gate, up, s->m->architecture->act, l->act);
}

void dq_layer_steps_down(const dq_layer_steps *s, dq_mat out, dq_mat gate)
{
    s->b->ops->matmul(s->b, out, gate, &s->layer->down, s->layer->down_bias, s->math.linear);
}

/* A pass is a straight line per layer: norm, q k v, rotary angles, append to the cache, attend,
 * compact, o, then the feed-forward in pieces of DQ_FFN_ROWS rows. Activations are buffers that
 * only grow. Errors stick in the backend, so operations need no check of their own; one sync at the
 * end tells, and names the first row that is not finite. */

/* A scratch matrix that grows on demand. */
typedef struct slot {
    float *p;
    size_t bytes;
} slot;

struct dq_runner {
    const dq_model *m;
    dq_backend *b;
    dq_kv *kv;
    dq_kv_spec kv_spec;
    int n_weights; /* of the model's, acquired in the order of weight_at */
    slot x, h, q, k, v, y, angles, local_angles, lambda, gate, up, absmax;
};

/* NULL after the last; absent weights have no rows. */
static const dq_weight *weight_at(const dq_model *m, int i)
{
    enum { PER_LAYER = 8 };
    if (i == 0) return &m->embed;
    if (i == 1) return &m->head;
    i -= 2;
    if (i >= PER_LAYER * m->n_layers) return NULL;
    const dq_layer *l = &m->layer[i / PER_LAYER];
    const dq_weight *const all[PER_LAYER] = {&l->q,    &l->k,  &l->v,    &l->o,
                                             &l->gate, &l->up, &l->down, &l->lambda_proj};
    return all[i % PER_LAYER];
}

/* A head that shares the embedding's memory counts by itself. */
static bool is_acquired(const dq_runner *r, const dq_weight *w)
{
    return w->rows > 0 && !(w == &r->m->embed && r->b->ops->embeds_in_place);
}

static bool acquire_weights(dq_runner *r)
{
    const dq_ops *op = r->b->ops;
    const dq_weight *w;
    if (!op->weight_acquire) return true;
    for (; (w = weight_at(r->m, r->n_weights)) != NULL; r->n_weights++)
        if (is_acquired(r, w) && !op->weight_acquire(r->b, w)) return false;
    return true;
}

static dq_mat take(dq_runner *r, slot *s, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    size_t n, bytes;
    if (!dq_mul_ok(&n, (size_t)rows, (size_t)cols) || !dq_mul_ok(&bytes, n, sizeof(float))) {
        dq_fail(&r->b->err, DQ_RESOURCE, "a pass of %lld rows does not fit in memory",
                (long long)rows);
        return m;
    }
    if (bytes > s->bytes) {
        r->b->ops->free(r->b, s->p);
        s->bytes = 0;
        s->p = r->b->ops->alloc(r->b, bytes);
        if (s->p)
            s->bytes = bytes;
        else
            dq_fail(&r->b->err, DQ_RESOURCE, "out of memory (%zu bytes of activations)", bytes);
    }
    m.p = s->p;
    return m;
}

dq_status dq_runner_new(dq_runner **out, const dq_model *m, dq_backend *b, const dq_kv_spec *kv,
                        dq_err *err)
{
    *out = NULL;
    DQ_TRY(dq_model_check_weights(m, err));
    if (dq_kv_check(kv, m->map.head_dim, err) != DQ_OK) return dq_in(err, "%s: ", m->path);
    dq_runner *r = dq_block_new(1, sizeof *r, err);
    if (!r) return err->code;
    r->m = m;
    r->b = b;
    r->kv_spec = *kv;
    const bool placed = acquire_weights(r);
    if (placed) r->kv = b->ops->kv_new(b, &m->map, m->n_layers, kv);
    if (!r->kv) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
        dq_runner_free(r);
        if (placed || !b->ops->memory) return err->code;
        return dq_memory_fit_advise_bits(m, (double)b->ops->memory(b), err);
    }
    *out = r;
    return DQ_OK;
}

void dq_runner_free(dq_runner *r)
{
    if (!r) return;
    slot *all[] = {&r->x,      &r->h,    &r->q,      &r->k,
                   &r->v,      &r->y,    &r->angles, &r->local_angles,
                   &r->lambda, &r->gate, &r->up,     &r->absmax};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) r->b->ops->free(r->b, all[i]->p);
    if (r->kv) r->b->ops->kv_free(r->b, r->kv);
    while (r->n_weights > 0) {
        const dq_weight *w = weight_at(r->m, --r->n_weights);
        if (is_acquired(r, w)) r->b->ops->weight_release(r->b, w);
    }
    dq_block_free(r);
}

const dq_model *dq_runner_model(const dq_runner *r)
{
    return r->m;
}

dq_backend *dq_runner_backend(const dq_runner *r)
{
    return r->b;
}

dq_kv *dq_runner_kv(dq_runner *r)
{
    return r->kv;
}

const dq_kv_spec *dq_runner_kv_spec(const dq_runner *r)
{
    return &r->kv_spec;
}

static double bytes_in_use(const dq_runner *r)
{
    const slot *const all[] = {&r->x,      &r->h,    &r->q,      &r->k,
                               &r->v,      &r->y,    &r->angles, &r->local_angles,
                               &r->lambda, &r->gate, &r->up,     &r->absmax};
    const dq_kv_bytes kv = r->b->ops->kv_bytes(r->b, r->kv);
    double bytes = (double)(kv.codes + kv.scales + kv.unquantized);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) bytes += (double)all[i]->bytes;
    return bytes;
}

/* Free memory, and what earlier passes of this runner took. */
static room room_of(const dq_runner *r)
{
    return (room){r->m, r->b, r->kv, (double)r->b->ops->memory(r->b) + bytes_in_use(r)};
}

int64_t dq_runner_rows(const dq_runner *r, int64_t max)
{
    if (!r->b->ops->memory) return max;
    const room x = room_of(r);
    return fit_rows(&x, &r->kv_spec, max);
}

dq_status dq_runner_advise(const dq_runner *r, int64_t rows, dq_err *err)
{
    if (err->code != DQ_RESOURCE || !r->b->ops->memory) return err->code;
    const room x = room_of(r);
    return advise_rows(&x, &r->kv_spec, rows, err);
}

static void feed_forward(dq_runner *r, const dq_layer_steps *s, const dq_pass *pass, int i)
{
    const dq_watch *watch = pass->watch && pass->watch->fed ? pass->watch : NULL;
    dq_layer_steps_norm_ffn(s);
    for (int64_t begin = 0; begin < s->h.rows; begin += DQ_FFN_ROWS) {
        int64_t end = begin + DQ_FFN_ROWS < s->h.rows ? begin + DQ_FFN_ROWS : s->h.rows;
        dq_mat in = dq_layer_steps_rows(s->h, begin, end);
        dq_mat gate = take(r, &r->gate, end - begin, r->m->ffn);
        dq_mat up = take(r, &r->up, end - begin, r->m->ffn);
        if (r->b->err.code != DQ_OK) return;
        dq_layer_steps_gate_up(s, gate, up, in);
        if (watch) watch->fed(watch->arg, i, s, begin, in, gate);
        dq_layer_steps_down(s, in, gate); /* gate does not overlap h */
    }
    dq_layer_steps_add_ffn(s);
}

dq_status dq_runner_pass(dq_runner *r, const dq_batch *batch, const dq_pass *pass, dq_mat *hidden,
                         dq_err *err)
{
    const dq_model *m = r->m;
    const dq_head_order *a = &m->map;
    const dq_ops *op = r->b->ops;
    int64_t n = batch->n_rows, bad = -1;

    const int limit = m->rope.max_positions ? m->rope.max_positions : m->local_rope.max_positions;
    if (pass->math.kv != r->kv_spec.num)
        return dq_fail(err, DQ_BUG, "the cache was made for another arithmetic");
    for (int64_t i = 0; i < batch->n_rows; i++) {
        if (batch->ids[i] < 0 || batch->ids[i] >= r->m->vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           r->m->path, (int)batch->ids[i], r->m->vocab);
        if (batch->pos[i] < 0) return dq_fail(err, DQ_BUG, "negative position in a batch");
        if (limit && batch->pos[i] >= limit)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: position %d: rope type \"dynamic\" is supported up to "
                           "max_position_embeddings (%d) only. Give shorter texts.",
                           r->m->path, (int)batch->pos[i], limit);
    }
    dq_layer_steps s = {.b = r->b,
                        .m = m,
                        .batch = batch,
                        .math = pass->math,
                        .kv = r->kv,
                        .kv_spec = &r->kv_spec,
                        .x = take(r, &r->x, n, m->dim),
                        .h = take(r, &r->h, n, m->dim),
                        .q = take(r, &r->q, n, (int64_t)a->n_q * a->head_dim),
                        .k = take(r, &r->k, n, (int64_t)a->n_kv * a->head_dim),
                        .v = take(r, &r->v, n, (int64_t)a->n_kv * a->head_dim),
                        .y = take(r, &r->y, n, (int64_t)a->n_out * a->n_slabs * a->head_dim)};
    const dq_mat angles = take(r, &r->angles, n, m->rope.dim),
                 local_angles = take(r, &r->local_angles, n, m->local_rope.dim);
    if (m->architecture->lambda == DQ_LAMBDA_TOKEN) s.lambda = take(r, &r->lambda, n, a->n_out);
    if (r->b->err.code != DQ_OK) {
        dq_backend_sync(r->b, err);
        return dq_runner_advise(r, n, err);
    }

    op->embed(r->b, s.x, &m->embed, batch->ids, m->embed_scale);
    op->rope_table(r->b, angles, batch->pos, &m->rope);
    if (m->local_rope.dim) op->rope_table(r->b, local_angles, batch->pos, &m->local_rope);
    for (int i = 0; i < m->n_layers; i++) {
        if (dq_os_check_stop(err) != DQ_OK) break;
        s.layer = &m->layer[i];
        s.kv_layer = i;
        s.angles = s.layer->rope == &m->local_rope ? local_angles : angles;
        const bool ends = pass->maps_only && i + 1 == m->n_layers;
        if (ends) s.y.p = NULL;
        /* ends: nothing after the maps is wanted. */
        dq_backend *b = r->b;
        dq_attend_args extra = {
            .logit = pass->logit,
            .columns = pass->columns && !r->m->layer[i].attn.window ? &pass->columns[i] : NULL,
            .spans = pass->spans ? &pass->spans[i] : NULL,
            .measure = pass->watch && pass->watch->measure
                           ? pass->watch->measure + (int64_t)i * m->map.n_out
                           : NULL,
            .look = pass->watch && pass->watch->look ? &pass->watch->look[i] : NULL};
        dq_layer_steps_norm_attn(&s);
        dq_layer_steps_qkv(&s);
        const dq_attend_args args = dq_layer_steps_args(&s, &extra);
        if (dq_logit_needs_absmax(pass->logit)) {
            dq_mat absmax = take(r, &r->absmax, s.batch->n_seq, m->map.n_q);
            op->attn_absmax(b, absmax.p, &args);
            if (pass->logit.granularity == DQ_GRANULARITY_TENSOR)
                op->absmax_join(b, absmax.p, s.batch->n_seq, m->map.n_q);
            extra.absmax = absmax.p;
        }
        dq_layer_steps_attend(&s, &extra);
        if (pass->watch && pass->watch->attended)
            pass->watch->attended(pass->watch->arg, i, &s, &args);
        op->kv_compact(b, s.kv, i, batch, s.layer->attn.window);
        if (!ends) dq_layer_steps_out(&s);
        if (ends) break;
        feed_forward(r, &s, pass, i);
        if (pass->watch && pass->watch->passed) pass->watch->passed(pass->watch->arg, i, &s);
        if (r->b->err.code != DQ_OK) break;
        if (pass->listener.tell) pass->listener.tell(pass->listener.arg, (double)n / m->n_layers);
    }
    if (!pass->maps_only) dq_layer_steps_norm_out(&s);
    op->first_bad_row(r->b, &bad, pass->maps_only ? s.x : s.h);
    dq_backend_sync(r->b, err); /* on every way out: the caller's arrays may be in use till here */
    if (err->code == DQ_OK && bad >= 0) {
        int seq = 0;
        while (batch->cu_rows[seq + 1] <= bad) seq++;
        dq_fail(err, DQ_DAMAGED,
                "%s: the hidden state is not finite at position %d (sequence %d of the pass); a "
                "weight is NaN or the model overflows in f32",
                r->m->path, (int)batch->pos[bad], seq);
    }
    *hidden = pass->maps_only ? (dq_mat){0} : s.h;
    return dq_runner_advise(r, n, err);
}

/* Each chunk is a pass: the fork's columns are laid out list by list, the part that counts is found
 * by position, and maxima are copied to the caller's tokens. */

/* Ids begin .. end - 1 after `lead` others. */
typedef struct chunk {
    const dq_second_pass *w;
    int64_t begin, end, lead, rows;
    int n_layers, n_groups;
    int32_t seq;
    int32_t *pos;           /* [rows] */
    int64_t *offset;        /* [n_layers * n_groups] */
    dq_column_range *range; /* [n_layers * n_groups] */
    double *area;           /* what the lists hold, and the rows */
    dq_columns *columns;    /* [n_layers] */
} chunk;

static int64_t lead_of(int64_t begin)
{
    return begin < DQ_SECOND_PASS_LEAD ? begin : DQ_SECOND_PASS_LEAD;
}

int64_t dq_second_pass_rows(int64_t n)
{
    int64_t rows = n;
    for (int64_t begin = 0; begin < n; begin += DQ_SECOND_PASS_CHUNK) rows += lead_of(begin);
    return rows;
}

int64_t dq_second_pass_end(int64_t n)
{
    int64_t most = 0;
    for (int64_t begin = 0; begin < n; begin += DQ_SECOND_PASS_CHUNK) {
        const int64_t left = n - begin,
                      rows = lead_of(begin) +
                             (left < DQ_SECOND_PASS_CHUNK ? left : DQ_SECOND_PASS_CHUNK);
        if (rows > most) most = rows;
    }
    return n + most;
}

/* First token of the list at position `pos` or later. */
static int64_t first_from(const dq_second_pass *w, int list, int64_t pos)
{
    int64_t low = w->at[list], high = w->at[list + 1];
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (w->pos[middle] < pos)
            low = middle + 1;
        else
            high = middle;
    }
    return low - w->at[list];
}

static dq_status lay_out(chunk *c, dq_arena *a, dq_err *err)
{
    const dq_second_pass *w = c->w;
    const int n_lists = c->n_layers * c->n_groups;
    const size_t floats = (size_t)(w->at[n_lists] + n_lists * c->rows);
    c->pos = dq_alloc(a, (size_t)c->rows, sizeof *c->pos, err);
    c->offset = dq_alloc(a, (size_t)n_lists, sizeof *c->offset, err);
    c->range = dq_alloc(a, (size_t)n_lists, sizeof *c->range, err);
    c->area = dq_alloc(a, floats, sizeof *c->area, err);
    c->columns = dq_alloc(a, (size_t)c->n_layers, sizeof *c->columns, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < c->rows; i++) c->pos[i] = (int32_t)(w->n + i);
    for (int i = 0; i < n_lists; i++) {
        c->offset[i] = w->at[i] + i * c->rows;
        c->range[i] =
            (dq_column_range){.sinks = first_from(w, i, w->sink < c->begin ? w->sink : c->begin),
                              .from = first_from(w, i, c->begin),
                              .to = first_from(w, i, c->end),
                              .own = w->at[i + 1] - w->at[i]};
    }
    for (int l = 0; l < c->n_layers; l++)
        c->columns[l] = (dq_columns){.offset = c->offset + l * c->n_groups,
                                     .peak = c->area,
                                     .range = c->range + l * c->n_groups};
    return DQ_OK;
}

static dq_status run_chunk(double *peak, chunk *c, dq_err *err)
{
    const dq_second_pass *w = c->w;
    const int64_t cu[2] = {0, c->rows};
    const dq_batch batch = {.n_seq = 1,
                            .n_rows = c->rows,
                            .cu_rows = cu,
                            .seq = &c->seq,
                            .ids = w->ids + c->begin - c->lead,
                            .pos = c->pos};
    const dq_pass pass = {.logit = w->pass.logit,
                          .math = w->pass.math,
                          .listener = w->pass.listener,
                          .columns = c->columns,
                          .maps_only = true};
    dq_mat hidden;
    DQ_TRY(dq_runner_pass(w->r, &batch, &pass, &hidden, err));
    for (int i = 0; i < c->n_layers * c->n_groups; i++) {
        const dq_column_range *p = &c->range[i];
        if (p->to > p->from)
            memcpy(peak + w->at[i] + p->from, c->area + c->offset[i] + p->from,
                   (size_t)(p->to - p->from) * sizeof *peak);
    }
    return DQ_OK;
}

dq_status dq_second_pass_peaks(double *peak, const dq_second_pass *w, dq_err *err)
{
    for (int64_t begin = 0; begin < w->n; begin += DQ_SECOND_PASS_CHUNK) {
        dq_backend *b = dq_runner_backend(w->r);
        dq_kv *kv = dq_runner_kv(w->r);
        const dq_model *m = dq_runner_model(w->r);
        const int64_t left = w->n - begin,
                      n = left < DQ_SECOND_PASS_CHUNK ? left : DQ_SECOND_PASS_CHUNK;
        chunk c = {.w = w,
                   .begin = begin,
                   .end = begin + n,
                   .lead = lead_of(begin),
                   .rows = n + lead_of(begin),
                   .n_layers = m->n_layers,
                   .n_groups = m->map.n_groups};
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        if (lay_out(&c, a, err) == DQ_OK) {
            c.seq = b->ops->kv_fork(b, kv, w->seq);
            if (c.seq < 0) {
                dq_backend_sync(b, err);
                dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
            } else {
                run_chunk(peak, &c, err);
                b->ops->kv_seq_free(b, kv, c.seq);
            }
        }
        dq_arena_free(a);
        if (err->code != DQ_OK) return err->code;
    }
    return DQ_OK;
}
