/* Streams come first in the file, the other matrix after them.
 * SPDX-License-Identifier: MIT */
#include "calibrate/inside.h"

#include <math.h>
#include <string.h>

int64_t dq_activations_bytes(int64_t rows, int64_t dim, int streams, int64_t width)
{
    return rows * (streams * dim + width) * (int64_t)sizeof(float);
}

dq_status dq_activations_open(dq_activations *a, dq_backend *b, const char *beside, int64_t rows,
                              int64_t dim, int streams, int64_t width, dq_err *err)
{
    *a = (dq_activations){.b = b, .rows = rows, .dim = dim, .streams = streams, .width = width};
    return dq_inplace_file_scratch(&a->file, beside,
                                   dq_activations_bytes(rows, dim, streams, width), err);
}

void dq_activations_close(dq_activations *a)
{
    dq_inplace_file_close(&a->file);
    dq_block_free(a->host);
    a->host = NULL;
    a->host_bytes = 0;
}

static dq_status reserve(dq_activations *a, size_t bytes, dq_err *err)
{
    if (bytes <= a->host_bytes) return DQ_OK;
    dq_block_free(a->host);
    a->host_bytes = 0;
    a->host = dq_block_new(bytes, 1, err);
    if (a->host) a->host_bytes = bytes;
    return err->code;
}

static int64_t place_of(const dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m)
{
    const int before = kind == DQ_ACTIVATIONS_OTHER ? a->streams : (int)kind; /* streams */
    return (before * a->rows * a->dim + first * m.cols) * (int64_t)sizeof(float);
}

dq_status dq_activations_put(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * sizeof(float);
    DQ_TRY(dq_backend_sync(a->b, err));
    DQ_TRY(reserve(a, bytes, err));
    a->b->ops->get(a->b, a->host, m.p, bytes);
    DQ_TRY(dq_backend_sync(a->b, err));
    return dq_inplace_file_put(&a->file, place_of(a, kind, first, m), a->host, bytes, err);
}

dq_status dq_activations_get(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * sizeof(float);
    DQ_TRY(dq_backend_sync(a->b, err));
    DQ_TRY(reserve(a, bytes, err));
    DQ_TRY(dq_inplace_file_get(&a->file, place_of(a, kind, first, m), a->host, bytes, err));
    a->b->ops->put(a->b, m.p, a->host, bytes);
    return dq_backend_sync(a->b, err);
}

/* Products are the backend's own: logits block by block, those of D and inputs panel by panel. */

enum { BLOCK = DQ_VALUE_MAPS_BLOCK, PANEL = DQ_VALUE_MAPS_PANEL };

/* The buffers for sequences of `longest` rows, in the order of their members. */
enum { BUFFERS = 7 };
static void sizes_of(int64_t size[BUFFERS], const dq_model *m, int64_t longest)
{
    const int64_t d = m->map.head_dim, panel = longest < PANEL ? longest : PANEL;
    size[0] = m->dim * longest;
    size[1] = panel * longest;
    size[2] = size[3] = BLOCK * longest;
    size[4] = size[6] = BLOCK * d;
    size[5] = longest * d;
}

int64_t dq_value_maps_bytes(const dq_model *m, int64_t longest)
{
    int64_t size[BUFFERS], n = 0;
    sizes_of(size, m, longest);
    for (int i = 0; i < BUFFERS; i++) n += size[i];
    return n * (int64_t)sizeof(float);
}

dq_status dq_value_maps_new(dq_value_maps **out, const dq_model *m, int64_t longest, dq_err *err)
{
    int64_t size[BUFFERS];
    dq_value_maps *v = *out = dq_block_new(1, sizeof *v, err);
    if (!v) return err->code;
    float **const buffer[BUFFERS] = {&v->inputs, &v->d, &v->logits[0], &v->logits[1],
                                     &v->q,      &v->k, &v->y};
    sizes_of(size, m, longest);
    for (int i = 0; i < BUFFERS && err->code == DQ_OK; i++)
        *buffer[i] = dq_block_new((size_t)size[i], sizeof(float), err);
    if (err->code == DQ_OK) return DQ_OK;
    dq_value_maps_free(v);
    *out = NULL;
    return err->code;
}

void dq_value_maps_free(dq_value_maps *v)
{
    if (!v) return;
    float *const buffer[BUFFERS] = {v->inputs, v->d, v->logits[0], v->logits[1], v->q, v->k, v->y};
    for (int i = 0; i < BUFFERS; i++) dq_block_free(buffer[i]);
    dq_block_free(v);
}

int dq_value_maps_head(const dq_head_order *map, int64_t seq, int64_t row)
{
    return (int)((seq + row / BLOCK) % map->n_out);
}

double dq_value_maps_flop(const dq_model *m, int64_t rows)
{
    const dq_head_order *a = &m->map;
    const double d = a->head_dim, dim = m->dim;
    const bool norm = m->n_layers > 0 && m->layer[0].attn.head_norm;
    double n = norm ? 2 * (double)rows * dim * a->n_slabs * d : 0;
    for (int64_t at = 0; at < rows; at += PANEL) {
        const int64_t end = at + PANEL < rows ? at + PANEL : rows;
        n += 2 * (double)(end - at) * (double)end * dim;
    }
    for (int64_t at = 0; at < rows; at += BLOCK) {
        const int64_t end = at + BLOCK < rows ? at + BLOCK : rows;
        n += 2 * (double)(end - at) * (double)end * a->n_maps * d;
    }
    return n;
}

/* Consecutive rows of one sequence for one head, or (z, panels) for several. */
typedef struct rows_at {
    const dq_layer_steps *s;
    int64_t first; /* row of the batch with which the sequence begins */
    int64_t at, n; /* rows of the sequence: those from at on */
    const dq_head *head;
    int out; /* its number */
} rows_at;

static void take_head(float *dst, dq_mat x, int64_t first, int64_t n, int head, int64_t head_dim)
{
    for (int64_t r = 0; r < n; r++)
        memcpy(dst + r * head_dim, x.p + (first + r) * x.cols + head * head_dim,
               (size_t)head_dim * sizeof *dst);
}

/* logits[n, keys] of one map, unscaled; keys: up to the last row's. */
static void logits_of(dq_value_maps *v, const rows_at *r, int map)
{
    const dq_layer_steps *s = r->s;
    const dq_head_order *a = &s->m->map;
    const int64_t d = a->head_dim, keys = r->at + r->n;
    const int q = r->head->q[map];
    take_head(v->q, s->q, r->first + r->at, r->n, q, d);
    take_head(v->k, s->k, r->first, keys, a->key[q], d);
    const dq_weight k = dq_weight_of_f32("keys", keys, d, v->k);
    s->b->ops->matmul(s->b, (dq_mat){v->logits[map], r->n, keys}, (dq_mat){v->q, r->n, d}, &k, NULL,
                      DQ_NUM_F32);
}

static float largest(const float *x, int64_t n)
{
    enum { LANES = 16 };
    float top[LANES];
    int64_t i = 0;
    for (int k = 0; k < LANES; k++) top[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) top[k] = x[i + k] > top[k] ? x[i + k] : top[k];
    }
    for (; i < n; i++) top[0] = x[i] > top[0] ? x[i] : top[0];
    for (int k = 1; k < LANES; k++) top[0] = top[k] > top[0] ? top[k] : top[0];
    return top[0];
}

/* x[n] becomes exp(scale x - maximum); returns the sum. */
static double exponentials(float *x, int64_t n, float scale)
{
    const float top = largest(x, n);
    double sum[4] = {0};
    for (int64_t i = 0; i < n; i++) {
        x[i] = expf(scale * (x[i] - top));
        sum[i % 4] += (double)x[i];
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

static float lambda_of(const rows_at *r, int64_t row)
{
    const dq_attn *a = &r->s->layer->attn;
    if (a->lambda_kind == DQ_LAMBDA_NONE) return 0;
    if (a->lambda_kind == DQ_LAMBDA_LAYER) return a->lambda;
    return r->s->lambda.p[(r->first + r->at + row) * r->s->lambda.cols + r->out];
}

/* Multiplies z[n, dim] by the gain of the head norm. */
static void normalize(dq_value_maps *v, const rows_at *r, dq_mat z)
{
    const dq_head_order *a = &r->s->m->map;
    double sum[BLOCK] = {0};
    for (int slab = 0; slab < a->n_slabs; slab++) {
        /* Adds the squares of a slab of the head's outputs of z[n, dim] to sum[n]. */
        const dq_layer_steps *s = r->s;
        const int64_t d = s->m->map.head_dim, first = r->head->v[slab] * d;
        const float *bias = s->layer->v_bias;
        dq_weight w = s->layer->v;
        w.data = (const char *)w.data + first * w.cols * (int64_t)dq_dtypes[w.dtype].bytes;
        w.rows = d;
        s->b->ops->matmul(s->b, (dq_mat){v->y, r->n, d}, z, &w, NULL, DQ_NUM_F32);
        for (int64_t i = 0; i < r->n; i++) {
            const float share = 1 - lambda_of(r, i); /* of a bias: all rows of a map add up to 1 */
            for (int64_t c = 0; c < d; c++) {
                const double y = (double)(v->y[i * d + c] + (bias ? share * bias[first + c] : 0));
                sum[i] += y * y;
            }
        }
    }
    for (int64_t i = 0; i < r->n; i++) {
        const double mean = sum[i] / (a->n_slabs * a->head_dim);
        const float gain = (float)(1 / sqrt(mean + (double)r->s->layer->attn.norm_eps));
        for (int64_t c = 0; c < z.cols; c++) z.p[i * z.cols + c] *= gain;
    }
}

static rows_at block_of(const rows_at *panel, int64_t at, int64_t seq)
{
    const dq_head_order *a = &panel->s->m->map;
    const int64_t left = panel->at + panel->n - at;
    rows_at r = *panel;
    r.at = at;
    r.n = left < BLOCK ? left : BLOCK;
    r.out = dq_value_maps_head(a, seq, at);
    r.head = &a->head[r.out];
    return r;
}

static void read_panel(dq_value_maps *v, dq_mat z, const rows_at *p, int64_t seq)
{
    const dq_layer_steps *s = p->s;
    const int64_t end = p->at + p->n;
    for (int64_t at = p->at; at < end; at += BLOCK) {
        const rows_at r = block_of(p, at, seq);
        /* d[n, ld] is 0 before each row's window, and after its own key. */
        const bool two = r.head->q[1] >= 0;
        const float scale = r.s->m->map.scale;
        const int window = s->layer->attn.window;
        logits_of(v, &r, 0);
        if (two) logits_of(v, &r, 1);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < r.n; i++) {
            const int64_t keys = r.at + i + 1, stride = r.at + r.n,
                          from = window && keys > window ? keys - window : 0;
            float *a = v->logits[0] + i * stride, *b = v->logits[1] + i * stride,
                  *to = (v->d + (at - p->at) * end) + i * end;
            const float plus = (float)(1 / exponentials(a + from, keys - from, scale));
            const float minus =
                two ? (float)((double)lambda_of(&r, i) / exponentials(b + from, keys - from, scale))
                    : 0;
            memset(to, 0, (size_t)from * sizeof *to);
            for (int64_t k = from; k < keys; k++) to[k] = a[k] * plus - (two ? b[k] * minus : 0);
            memset(to + keys, 0, (size_t)(end - keys) * sizeof *to);
        }
    }
    dq_tile_sums_transpose(v->inputs, dq_layer_steps_rows(s->h, p->first, p->first + end));
    const dq_weight inputs = dq_weight_of_f32("inputs", s->h.cols, end, v->inputs);
    s->b->ops->matmul(s->b, dq_layer_steps_rows(z, p->first + p->at, p->first + end),
                      (dq_mat){v->d, p->n, end}, &inputs, NULL, DQ_NUM_F32);
    for (int64_t at = p->at; s->layer->attn.head_norm && at < end; at += BLOCK) {
        const rows_at r = block_of(p, at, seq);
        normalize(v, &r, dq_layer_steps_rows(z, r.first + at, r.first + at + r.n));
    }
}

void dq_value_maps_read(dq_value_maps *v, dq_mat z, const dq_layer_steps *s, int64_t first_seq)
{
    for (int i = 0; i < s->batch->n_seq; i++) {
        const int64_t first = s->batch->cu_rows[i], n = s->batch->cu_rows[i + 1] - first;
        for (int64_t at = 0; at < n; at += PANEL) {
            const rows_at p = {
                .s = s, .first = first, .at = at, .n = n - at < PANEL ? n - at : PANEL};
            read_panel(v, z, &p, first_seq + i);
        }
    }
}

int64_t dq_reference_bytes(const dq_model *m, int64_t max_rows)
{
    return dq_cross_bytes(m->dim, dq_calib_pass_widest(m), max_rows) +
           dq_shrinkage_bytes(m->dim, dq_calib_pass_widest(m), max_rows) +
           2 * max_rows * m->dim * (int64_t)sizeof(float);
}

void dq_reference_feed(const dq_layer_steps *s, dq_mat gate, dq_mat up)
{
    dq_layer_steps_norm_ffn(s);
    for (int64_t at = 0; at < s->x.rows; at += DQ_FFN_ROWS) {
        const int64_t left = s->x.rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
        const dq_mat rows = dq_layer_steps_rows(s->h, at, at + n);
        dq_layer_steps_gate_up(s, dq_calib_pass_first(gate, n), dq_calib_pass_first(up, n), rows);
        dq_layer_steps_down(s, rows, dq_calib_pass_first(gate, n));
    }
}

void dq_reference_feed_forward(const dq_layer_steps *s, dq_mat gate, dq_mat up)
{
    dq_reference_feed(s, gate, up);
    dq_layer_steps_add_ffn(s);
}

dq_status dq_reference_correct(const dq_reference *r, float *w, int64_t first, int64_t rows,
                               const dq_quant_spec *spec, int64_t *kept, dq_err *err)
{
    const int64_t n = r->sums->n;
    int64_t n_kept = 0;
    const size_t bytes = (size_t)(rows * n) * sizeof *w;
    const dq_code_shape shape = dq_code_shape_of(rows, n, spec);
    float *before = dq_block_new(bytes, 1, err);
    if (!before) return err->code;
    memcpy(before, w, bytes);
    if (r->of_inputs)
        dq_correction_of_inputs(w, rows, r->sums, err);
    else
        dq_correction_of_outputs(w, first, rows, r->sums, err);
#pragma omp parallel for schedule(static) reduction(+ : n_kept)
    for (int64_t i = 0; i < rows; i++) {
        if (dq_codes_row_fits(w + i * n, &shape, spec)) continue;
        memcpy(w + i * n, before + i * n, (size_t)n * sizeof *w);
        n_kept++;
    }
    *kept = n_kept;
    dq_block_free(before);
    return err->code;
}
