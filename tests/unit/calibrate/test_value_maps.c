/* test_value_maps: what attention makes of the inputs of v_proj is what sums over all keys in f64 give, for every kind of head
 * map; times v_proj it is the engine's output of that head; every head has its turn; the same bits for any number of threads
 * and whatever else is in the batch; the buffers are as large as is said.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "calibrate/calibrate.h"
#include "tensor/tensor.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {"llama-f32",
                                     "llama-bf16-bias",
                                     "diffllama-f32",
                                     "diffllama-bf16-untied",
                                     "v1-bf16",
                                     "v1-naive-f32",
                                     "v1-nonorm",
                                     "plain-norm",
                                     "plain-adjacent",
                                     "v2-f16",
                                     "motif-gqa-f32",
                                     "gda-f32-shards",
                                     "gda-wide-bf16",
                                     "motif-bf16",
                                     "diffllama-f16-shards",
                                     "gemma3-f32",
                                     "mistral-window"};
enum { N_MODELS = sizeof models / sizeof *models, N_SEQ = 3, ROWS = 371, FIRST_SEQ = 5, LAYER = 1 };
static const int64_t cu[N_SEQ + 1] = {0, 1, 101, ROWS}; /* one row, two blocks, more than a panel */

/* One layer of a model on a batch. */
typedef struct rig {
    dq_model *m;
    dq_backend *b;
    int32_t ids[ROWS], pos[ROWS], seq[N_SEQ];
    dq_batch batch;
    dq_layer_steps s;
    dq_value_maps *maps;
    dq_mat z;
} rig;

static dq_mat matrix(rig *x, int64_t cols)
{
    const dq_mat m = {.p = x->b->ops->alloc(x->b, (size_t)(ROWS * cols) * sizeof(float)),
                      .rows = ROWS,
                      .cols = cols};
    assert_non_null(m.p);
    return m;
}

static void rig_open(rig *x, const char *model, int threads)
{
    dq_err err = {0};
    memset(x, 0, sizeof *x);
    omp_set_num_threads(threads);
    x->m = given_model(DQ_TEST_DIR "/golden/models/%s", model);
    x->b = given_backend(threads);
    const dq_head_order *a = &x->m->map;
    for (int i = 0; i < N_SEQ; i++) {
        for (int64_t r = cu[i]; r < cu[i + 1]; r++) {
            x->pos[r] = (int32_t)(r - cu[i]);
            x->ids[r] = (int32_t)((r * 37 + r * r * 11 + i) % x->m->vocab);
        }
    }
    x->batch = (dq_batch){
        .n_seq = N_SEQ, .n_rows = ROWS, .cu_rows = cu, .seq = x->seq, .ids = x->ids, .pos = x->pos};
    x->s = (dq_layer_steps){.b = x->b,
                            .m = x->m,
                            .layer = &x->m->layer[LAYER],
                            .batch = &x->batch,
                            .kv_spec = &dq_kv_plain,
                            .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32},
                            .x = matrix(x, x->m->dim),
                            .h = matrix(x, x->m->dim),
                            .q = matrix(x, (int64_t)a->n_q * a->head_dim),
                            .k = matrix(x, (int64_t)a->n_kv * a->head_dim),
                            .v = matrix(x, (int64_t)a->n_kv * a->head_dim),
                            .y = matrix(x, (int64_t)a->n_out * a->n_slabs * a->head_dim),
                            .angles = matrix(x, a->head_dim),
                            .lambda = matrix(x, a->n_out)};
    x->z = matrix(x, x->m->dim);
    assert_int_equal(dq_value_maps_new(&x->maps, x->m, cu[N_SEQ] - cu[N_SEQ - 1], &err), DQ_OK);
}

static void rig_close(rig *x)
{
    const dq_mat all[] = {x->s.x, x->s.h, x->s.q,      x->s.k,     x->s.v,
                          x->s.y, x->z,   x->s.angles, x->s.lambda};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) x->b->ops->free(x->b, all[i].p);
    dq_value_maps_free(x->maps);
    dq_backend_close(x->b);
    dq_model_close(x->m);
}

/* Everything up to the layer's attention, and z. */
static void run(rig *x)
{
    const dq_ops *op = x->b->ops;
    const dq_attend_args plain = {.logit = dq_logit_plain};
    dq_err err = {0};
    x->s.kv = op->kv_new(x->b, &x->m->map, 1, &dq_kv_plain);
    for (int i = 0; i < N_SEQ; i++) x->seq[i] = op->kv_seq_new(x->b, x->s.kv);
    op->embed(x->b, x->s.x, &x->m->embed, x->ids, x->m->embed_scale);
    op->rope_table(x->b, x->s.angles, x->pos, x->s.layer->rope);
    dq_layer_steps_norm_attn(&x->s);
    dq_layer_steps_qkv(&x->s);
    dq_layer_steps_attend(&x->s, &plain);
    dq_value_maps_read(x->maps, x->z, &x->s, FIRST_SEQ);
    assert_int_equal(dq_backend_sync(x->b, &err), DQ_OK);
    op->kv_free(x->b, x->s.kv);
}

/* ---- The same by plain sums ---- */

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Adds `share` of the softmax of query head q of row t to d, keys from the sequence's first row on. */
static void add_map(const rig *x, int64_t first, int64_t t, int q, double share, double *d)
{
    const dq_head_order *a = &x->m->map;
    const int64_t dim = a->head_dim, n = t - first + 1, window = x->s.layer->attn.window,
                  from = window && n > window ? n - window : 0;
    double *p = calloc((size_t)n, sizeof *p), top = -INFINITY, sum = 0;
    for (int64_t s = from; s < n; s++) {
        p[s] = (double)a->scale * dot(x->s.q.p + t * x->s.q.cols + q * dim,
                                      x->s.k.p + (first + s) * x->s.k.cols + a->key[q] * dim, dim);
        top = p[s] > top ? p[s] : top;
    }
    for (int64_t s = from; s < n; s++) sum += p[s] = exp(p[s] - top);
    for (int64_t s = from; s < n; s++) d[s] += share * p[s] / sum;
    free(p);
}

/* z'[dim] of an output head at row t, and the sum of D. */
static double read_row(const rig *x, int64_t first, int64_t t, int out, double *z)
{
    const dq_attn *a = &x->s.layer->attn;
    const dq_head *h = &x->m->map.head[out];
    const int64_t n = t - first + 1, dim = x->m->dim;
    const double lambda = a->lambda_kind == DQ_LAMBDA_TOKEN
                              ? (double)x->s.lambda.p[t * x->s.lambda.cols + out]
                              : (double)a->lambda;
    double *d = calloc((size_t)n, sizeof *d), all = 0;
    add_map(x, first, t, h->q[0], 1, d);
    if (h->q[1] >= 0) add_map(x, first, t, h->q[1], -lambda, d);
    memset(z, 0, (size_t)dim * sizeof *z);
    for (int64_t s = 0; s < n; s++) {
        all += d[s];
        for (int64_t c = 0; c < dim; c++) z[c] += d[s] * (double)x->s.h.p[(first + s) * dim + c];
    }
    free(d);
    return all;
}

/* z of row t of a sequence, against the engine's output of that head and against x->z. */
static void check_row(const rig *x, const float *w, int64_t first, int64_t t, int out, double most)
{
    const dq_head_order *a = &x->m->map;
    const dq_attn *attn = &x->s.layer->attn;
    const int64_t dim = x->m->dim, d = a->head_dim, width = a->n_slabs * d;
    double *z = calloc((size_t)dim, sizeof *z), *y = calloc((size_t)width, sizeof *y), gain = 1;
    const double all = read_row(x, first, t, out, z);
    double squares = 0;
    for (int64_t c = 0; c < width; c++) {
        const int64_t row = a->head[out].v[c / d] * d + c % d;
        if (x->s.layer->v_bias) y[c] = all * (double)x->s.layer->v_bias[row];
        for (int64_t i = 0; i < dim; i++) y[c] += (double)w[row * dim + i] * z[i];
        squares += y[c] * y[c];
    }
    if (attn->head_norm) gain = 1 / sqrt(squares / (double)width + (double)attn->norm_eps);
    const float *engine = x->s.y.p + t * x->s.y.cols + out * width;
    for (int64_t c = 0; c < width; c++) {
        const double want =
            (double)attn->out_scale * gain * y[c] * (attn->gain ? (double)attn->gain[c] : 1.0);
        assert_true(fabs(want - (double)engine[c]) < 1e-4 * (1 + fabs(want)));
    }
    for (int64_t c = 0; c < dim; c++)
        assert_true(fabs(gain * z[c] - (double)x->z.p[t * dim + c]) < 2e-5 * most);
    free(z);
    free(y);
}

TEST(agrees_with_plain_sums_and_the_engine)
{
    for (int i = 0; i < N_MODELS; i++) {
        rig x;
        rig_open(&x, models[i], 2);
        run(&x);
        const dq_weight *v = &x.s.layer->v;
        float *w = calloc((size_t)(v->rows * v->cols), sizeof *w);
        dq_weight_dequantize_rows(w, v, 0, v->rows);
        double most = 0;
        for (int64_t k = 0; k < ROWS * x.z.cols; k++) most = fmax(most, fabs((double)x.z.p[k]));
        for (int q = 0; q < N_SEQ; q++) {
            for (int64_t t = cu[q]; t < cu[q + 1]; t++)
                check_row(&x, w, cu[q], t, dq_value_maps_head(&x.m->map, FIRST_SEQ + q, t - cu[q]),
                          most);
        }
        free(w);
        rig_close(&x);
    }
}

TEST(every_head_has_its_turn)
{
    const dq_head_order map = {.n_out = 5};
    for (int64_t seq = 0; seq < 7; seq++) {
        int rows[5] = {0};
        for (int64_t t = 0; t < 5 * DQ_VALUE_MAPS_BLOCK; t++)
            rows[dq_value_maps_head(&map, seq, t)]++;
        for (int o = 0; o < 5; o++) assert_int_equal(rows[o], DQ_VALUE_MAPS_BLOCK);
        /* short sequences begin with different ones */
        assert_int_equal(dq_value_maps_head(&map, seq, 0), seq % 5);
    }
    assert_int_equal(DQ_VALUE_MAPS_PANEL % DQ_VALUE_MAPS_BLOCK, 0);
}

TEST(threads_and_batches_change_nothing)
{
    rig x, y;
    rig_open(&x, "motif-gqa-f32", 1);
    run(&x);
    rig_open(&y, "motif-gqa-f32", 3);
    run(&y);
    const size_t bytes = (size_t)(ROWS * x.z.cols) * sizeof(float);
    assert_memory_equal(x.z.p, y.z.p, bytes);
    float *whole = malloc(bytes);
    memcpy(whole, x.z.p, bytes);
    memset(x.z.p, 0, bytes);
    for (int i = 0; i < N_SEQ; i++) { /* one sequence at a time */
        const int64_t alone[] = {0, cu[i + 1] - cu[i]};
        const dq_batch batch = {.n_seq = 1, .n_rows = alone[1], .cu_rows = alone};
        dq_layer_steps s = x.s;
        dq_mat *const rows[] = {&s.h, &s.q, &s.k, &s.lambda};
        for (int k = 0; k < 4; k++) *rows[k] = dq_layer_steps_rows(*rows[k], cu[i], cu[i + 1]);
        s.batch = &batch;
        dq_value_maps_read(x.maps, dq_layer_steps_rows(x.z, cu[i], cu[i + 1]), &s, FIRST_SEQ + i);
    }
    assert_memory_equal(x.z.p, whole, bytes);
    free(whole);
    rig_close(&x);
    rig_close(&y);
}

TEST(memory_that_is_short_is_said)
{
    dq_err err = {0};
    dq_value_maps *v;
    dq_head_order map = {.head_dim = 8, .n_out = 2, .n_maps = 2, .n_slabs = 2};
    const dq_model m = {.dim = 24, .map = map};
    for (int i = 1; i <= 8; i++) {
        err = (dq_err){0};
        dq_alloc_fail_at(i);
        assert_int_equal(dq_value_maps_new(&v, &m, 100, &err), DQ_RESOURCE);
        assert_null(v);
    }
    dq_alloc_fail_at(0);
    assert_int_equal(dq_value_maps_bytes(&m, 100),
                     4 * (24 * 100 + 100 * 100 + 2 * 64 * 100 + 2 * 64 * 8 + 100 * 8));
    assert_int_equal(dq_value_maps_bytes(&m, 1000) - dq_value_maps_bytes(&m, 999),
                     4 * (24 + 256 + 128 + 8));
}
