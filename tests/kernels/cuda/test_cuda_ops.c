/* test_cuda_ops: operations on rows and logits of the CUDA backend against the CPU's, on ragged sizes.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/cuda_rig.h"
#include "tests/rigs/suite.h"

static const int64_t ragged[] = {1, 3, 70};
enum { N_RAGGED = 3 };

/* Both backends, and x on both of them. */
typedef struct pair {
    rig r;
    dq_mat cpu, cuda;
} pair;

static pair put_both(const rig *r, const float *x, int64_t rows, int64_t cols)
{
    return (pair){*r, rig_put(r->cpu, x, rows, cols), rig_put(r->cuda, x, rows, cols)};
}

static void compare(pair *p, double relative, double absolute)
{
    rig_compare_mats(&p->r, p->cpu, p->cuda, relative, absolute);
}

static void check_embed(const rig *r, dq_weight w)
{
    const int32_t ids[] = {(int32_t)w.rows - 1, 0, 3, 3, 1};
    pair p = put_both(r, NULL, 5, w.cols);
    const float scale = w.rows % 2 ? 1.7f : 1.0f;
    r->cpu->ops->embed(r->cpu, p.cpu, &w, ids, scale);
    assert_true(r->cuda->ops->weight_acquire(r->cuda, &w));
    r->cuda->ops->embed(r->cuda, p.cuda, &w, ids, scale);
    compare(&p, 0, 0);
    r->cuda->ops->weight_release(r->cuda, &w);
    rig_drop_weight(&w);
}

TEST(test_embed)
{
    static const dq_dtype dense[] = {DQ_F32, DQ_F16, DQ_BF16};
    rig r = rig_open();
    for (int i = 0; i < 3; i++) check_embed(&r, rig_dense(9, 77, dense[i], 1));
    for (int bits = 2; bits <= 8; bits++) {
        check_embed(&r, rig_packed(9, 77, bits, 32, DQ_F16, 2));
        check_embed(&r, rig_packed(9, 77, bits, 20, DQ_F32, 3));
        check_embed(&r, rig_packed(9, 300, bits, 0, DQ_F16, 4));
        check_embed(&r, rig_zeroed(9, 77, bits, 20, DQ_F16, 5));
        check_embed(&r, rig_zeroed(9, 77, bits, 0, DQ_F32, 6));
    }
    rig_close(&r);
}

TEST(test_rms_norm)
{
    static const int64_t cols[] = {1, 33, 300, 1000};
    rig r = rig_open();
    for (int i = 0; i < N_RAGGED; i++)
        for (int k = 0; k < 4; k++) {
            float *x = rig_floats(ragged[i] * cols[k], 5), *gain = rig_floats(cols[k], 6);
            for (int in_place = 0; in_place < 2; in_place++) {
                pair p = put_both(&r, x, ragged[i], cols[k]), q = p;
                if (!in_place) q = put_both(&r, NULL, ragged[i], cols[k]);
                r.cpu->ops->rms_norm(r.cpu, q.cpu, p.cpu, gain, 1e-5f);
                r.cuda->ops->rms_norm(r.cuda, q.cuda, p.cuda, gain, 1e-5f);
                compare(&q, 1e-6, 0);
                if (!in_place) compare(&p, 0, 0);
            }
            rig_drop(x);
            rig_drop(gain);
        }
    rig_close(&r);
}

/* The C library's cosines are not the device's, both within an ulp of f64. */
#ifdef DQ_SIMT
static const double COSINE = 0;
#else
static const double COSINE = 1.2e-7;
#endif

static void check_rope(const rig *r, dq_rope_order order, int64_t rows, int heads, int dim)
{
    float *x = rig_floats(rows * heads * dim, 7), inv_freq[64];
    int32_t *pos = rig_block((size_t)rows, sizeof *pos);
    for (int j = 0; j < dim / 2; j++) inv_freq[j] = (float)pow(10000.0, -2.0 * j / dim);
    for (int64_t i = 0; i < rows; i++) pos[i] = (int32_t)(i * 997 % 60011);
    const dq_rope rope = {.order = order, .dim = dim, .inv_freq = inv_freq, .amplitude = 1.1f};
    pair table = put_both(r, NULL, rows, dim), p = put_both(r, x, rows, (int64_t)heads * dim);
    r->cpu->ops->rope_table(r->cpu, table.cpu, pos, &rope);
    r->cuda->ops->rope_table(r->cuda, table.cuda, pos, &rope);
    r->cpu->ops->rope(r->cpu, p.cpu, table.cpu, order);
    r->cuda->ops->rope(r->cuda, p.cuda, table.cuda, order);
    compare(&p, 0, 8 * COSINE);
    compare(&table, COSINE, 0);
    rig_drop(x);
    rig_drop(pos);
}

TEST(test_rope)
{
    rig r = rig_open();
    for (int i = 0; i < N_RAGGED; i++) {
        check_rope(&r, DQ_ROPE_HALVES, ragged[i], 3, 64);
        check_rope(&r, DQ_ROPE_ADJACENT, ragged[i], 2, 6);
    }
    rig_close(&r);
}

TEST(test_hadamard)
{
    rig r = rig_open();
    for (int dim = 1; dim <= 2048; dim = dim == 64 ? 1024 : 2 * dim) {
        float *x = rig_floats(5 * 3 * dim, 8);
        pair p = put_both(&r, x, 5, 3 * dim);
        r.cpu->ops->hadamard(r.cpu, p.cpu, dim);
        r.cuda->ops->hadamard(r.cuda, p.cuda, dim);
        compare(&p, 0, 0);
        rig_drop(x);
    }
    rig_close(&r);
}

TEST(test_ffn_act)
{
    const float param[4] = {0.3f, -0.5f, 0.8f, 0.1f};
    rig r = rig_open();
    for (int i = 0; i < N_RAGGED; i++)
        for (int act = 0; act < 3; act++) {
            const int64_t cols = 331;
            float *x = rig_floats(ragged[i] * cols, 9), *y = rig_floats(ragged[i] * cols, 10);
            x[0] = -100;
            x[ragged[i] * cols - 1] = 90;
            pair gate = put_both(&r, x, ragged[i], cols), up = put_both(&r, y, ragged[i], cols);
            const dq_act which = (dq_act)act;
            const bool sums = which == DQ_ACT_POLYNORM;
            r.cpu->ops->ffn_act(r.cpu, gate.cpu, up.cpu, which, param);
            r.cuda->ops->ffn_act(r.cuda, gate.cuda, up.cuda, which, param);
            compare(&gate, sums ? 1e-6 : 0, sums ? 1e-9 : 0);
            compare(&up, 0, 0);
            rig_drop(x);
            rig_drop(y);
        }
    rig_close(&r);
}

TEST(test_elementwise)
{
    rig r = rig_open();
    for (int i = 0; i < N_RAGGED; i++) {
        const int64_t rows = ragged[i], cols = 45, index[] = {rows - 1, 0, rows / 2, 0};
        float *x = rig_floats(rows * cols, 11), *y = rig_floats(rows * cols, 12);
        pair a = put_both(&r, x, rows, cols), b = put_both(&r, y, rows, cols);
        pair c = put_both(&r, NULL, 4, cols);
        r.cpu->ops->add(r.cpu, a.cpu, b.cpu);
        r.cuda->ops->add(r.cuda, a.cuda, b.cuda);
        r.cpu->ops->gather(r.cpu, c.cpu, a.cpu, index);
        r.cuda->ops->gather(r.cuda, c.cuda, a.cuda, index);
        r.cpu->ops->sigmoid(r.cpu, b.cpu);
        r.cuda->ops->sigmoid(r.cuda, b.cuda);
        compare(&a, 0, 0);
        compare(&b, 1e-6, 0);
        compare(&c, 0, 0);
        rig_drop(x);
        rig_drop(y);
    }
    rig_close(&r);
}

TEST(test_first_bad_row)
{
    static const struct {
        int64_t at;
        float value;
        int64_t row;
    } cases[] = {{0, 1, -1}, {69 * 50 + 49, INFINITY, 69}, {4 * 50 + 7, NAN, 4}, {0, -INFINITY, 0}};
    rig r = rig_open();
    float *x = rig_floats(70 * 50, 13);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t row = 5;
        x[cases[i].at] = cases[i].value; /* earlier ones stay: the first counts */
        dq_mat m = rig_put(r.cuda, x, 70, 50);
        r.cuda->ops->first_bad_row(r.cuda, &row, m);
        rig_sync(r.cuda);
        assert_int_equal(row, cases[i].row);
        r.cuda->ops->free(r.cuda, m.p);
    }
    rig_drop(x);
    rig_close(&r);
}

/* ------------------------------------------------------------------------------------------- logits */
static void check_logprob(const rig *r, dq_weight head, int64_t rows, dq_num num, double tolerance)
{
    float *x = rig_floats(rows * head.cols, 14);
    int32_t *target = rig_block((size_t)rows, sizeof *target), tops[2][70];
    double logp[2][70];
    dq_backend *const b[2] = {r->cpu, r->cuda};
    for (int64_t i = 0; i < rows; i++) target[i] = i % 4 == 3 ? -1 : (int32_t)(i * 131 % head.rows);
    assert_true(r->cuda->ops->weight_acquire(r->cuda, &head));
    for (int k = 0; k < 2; k++) {
        dq_mat m = rig_put(b[k], x, rows, head.cols);
        b[k]->ops->logprob(b[k], logp[k], tops[k], m, &head, target, k ? num : DQ_NUM_F32);
        b[k]->ops->logprob(b[k], NULL, NULL, m, &head, NULL, DQ_NUM_F32);
        b[k]->ops->free(b[k], m.p);
        rig_sync(b[k]);
    }
    for (int64_t i = 0; i < rows; i++) {
        assert_true(fabs(logp[0][i] - logp[1][i]) <= tolerance);
        if (num == DQ_NUM_F32) assert_int_equal(tops[0][i], tops[1][i]);
    }
    r->cuda->ops->weight_release(r->cuda, &head);
    rig_drop(target);
    rig_drop(x);
    rig_drop_weight(&head);
}

TEST(test_logprob)
{
    rig r = rig_open();
    for (int i = 0; i < N_RAGGED; i++) {
        check_logprob(&r, rig_dense(257, 40, DQ_F32, 15), ragged[i], DQ_NUM_F32, 2e-5);
        check_logprob(&r, rig_dense(64, 33, DQ_BF16, 16), ragged[i], DQ_NUM_INT8, 2e-5);
        check_logprob(&r, rig_dense(1, 33, DQ_F16, 16), ragged[i], DQ_NUM_F32, 2e-5);
        check_logprob(&r, rig_dense(130, 33, DQ_BF16, 17), ragged[i], DQ_NUM_BF16, 0.2);
    }
    rig_close(&r);
}

/* The f32 matrix of a packed weight's values. */
static dq_weight values_of(const dq_weight *w)
{
    dq_weight v = rig_dense(w->rows, w->cols, DQ_F32, 1);
    float *to = rig_floats(w->rows * w->cols, 1);
    dq_weight_dequantize_rows(to, w, 0, w->rows);
    rig_drop(v.data);
    v.data = to;
    return v;
}

/* A head in codes gives, bit for bit, what the f32 head of their values gives, in int8 arithmetic too. */
static void check_packed_head(const rig *r, dq_weight packed, int64_t rows)
{
    dq_weight head[2] = {packed, values_of(&packed)};
    float *x = rig_floats(rows * packed.cols, 14), *y = rig_floats(rows * packed.cols, 15);
    double logp[2][70], kld[2][2][70];
    int32_t tops[2][70];
    const dq_ops *ops = r->cuda->ops;
    for (int k = 0; k < 2; k++) assert_true(ops->weight_acquire(r->cuda, &head[k]));
    for (int num = 0; num < 2; num++) {
        const dq_num first = num ? DQ_NUM_INT8 : DQ_NUM_F32;
        for (int k = 0; k < 2; k++) {
            const dq_num n = k == 0 ? first : DQ_NUM_F32;
            dq_mat m = rig_put(r->cuda, x, rows, packed.cols),
                   other = rig_put(r->cuda, y, rows, packed.cols);
            ops->logprob(r->cuda, logp[k], tops[k], m, &head[k], NULL, n);
            ops->kld(r->cuda, kld[k][0], other, &head[1], DQ_NUM_F32, m, &head[k], n);
            ops->kld(r->cuda, kld[k][1], m, &head[k], n, other, &head[1], DQ_NUM_F32);
            ops->free(r->cuda, m.p);
            ops->free(r->cuda, other.p);
            rig_sync(r->cuda);
        }
        const size_t bytes = (size_t)rows * sizeof logp[0][0];
        assert_memory_equal(logp[0], logp[1], bytes);
        assert_memory_equal(tops[0], tops[1], (size_t)rows * sizeof tops[0][0]);
        for (int k = 0; k < 2; k++) assert_memory_equal(kld[0][k], kld[1][k], bytes);
    }
    for (int k = 0; k < 2; k++) {
        ops->weight_release(r->cuda, &head[k]);
        rig_drop_weight(&head[k]);
    }
    rig_drop(x);
    rig_drop(y);
}

TEST(test_packed_heads)
{
    rig r = rig_open();
    for (int bits = 2; bits <= 8; bits += 2)
        check_packed_head(&r, rig_packed(70, 40, bits, 20, DQ_F32, 3), 3);
    check_packed_head(&r, rig_zeroed(70, 40, 4, 0, DQ_F16, 5), 66);
    check_logprob(&r, rig_packed(130, 77, 6, 32, DQ_F16, 2), 5, DQ_NUM_F32, 2e-5);
    rig_close(&r);
}

/* One logit that is no number shows in the answer, in whichever piece it stands. */
TEST(test_logits_that_are_no_numbers)
{
    rig r = rig_open();
    dq_weight head = rig_dense(200, 8, DQ_F32, 18);
    const float x[8] = {1, 0, 0, 0, 0, 0, 0, 0};
    const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2 * 200; i += 7) {
        float *w = rig_floats(200 * 8, 18);
        int32_t target[2] = {-1, (i * 3 + 1) % 200};
        w[i / 2 * 8] = bad[i % 2];
        rig_drop(head.data);
        head.data = w;
        dq_mat m = rig_put(r.cuda, x, 1, 8);
        assert_true(r.cuda->ops->weight_acquire(r.cuda, &head));
        for (int k = 0; k < 2; k++) {
            double logp = 0;
            r.cuda->ops->logprob(r.cuda, &logp, NULL, m, &head, &target[k], DQ_NUM_F32);
            rig_sync(r.cuda);
            assert_true(!isfinite(logp));
        }
        r.cuda->ops->weight_release(r.cuda, &head);
        r.cuda->ops->free(r.cuda, m.p);
    }
    rig_drop_weight(&head);
    rig_close(&r);
}

/* Equal largest logits in two pieces: the lower index counts. */
TEST(test_ties)
{
    rig r = rig_open();
    dq_weight head = rig_dense(200, 8, DQ_F32, 18);
    float *w = rig_floats(200 * 8, 18);
    const float x[8] = {1, 0, 0, 0, 0, 0, 0, 0};
    int32_t top = -1;
    w[3 * 8] = w[150 * 8] = 9;
    rig_drop(head.data);
    head.data = w;
    dq_mat m = rig_put(r.cuda, x, 1, 8);
    assert_true(r.cuda->ops->weight_acquire(r.cuda, &head));
    r.cuda->ops->logprob(r.cuda, NULL, &top, m, &head, NULL, DQ_NUM_F32);
    rig_sync(r.cuda);
    assert_int_equal(top, 3);
    r.cuda->ops->weight_release(r.cuda, &head);
    r.cuda->ops->free(r.cuda, m.p);
    rig_drop_weight(&head);
    rig_close(&r);
}

TEST(test_kld)
{
    rig r = rig_open();
    dq_weight head[2] = {rig_dense(190, 24, DQ_F32, 19), rig_dense(190, 36, DQ_BF16, 20)};
    float *x = rig_floats(70 * 24, 21), *y = rig_floats(70 * 36, 22);
    double kld[2][70], same[70];
    dq_backend *const b[2] = {r.cpu, r.cuda};
    for (int i = 0; i < 2; i++) assert_true(r.cuda->ops->weight_acquire(r.cuda, &head[i]));
    for (int i = 0; i < N_RAGGED; i++) {
        for (int k = 0; k < 2; k++) {
            dq_mat m = rig_put(b[k], x, ragged[i], 24), n = rig_put(b[k], y, ragged[i], 36);
            b[k]->ops->kld(b[k], kld[k], m, &head[0], DQ_NUM_F32, n, &head[1], DQ_NUM_F32);
            b[k]->ops->kld(b[k], same, m, &head[0], DQ_NUM_F32, m, &head[0], DQ_NUM_F32);
            b[k]->ops->free(b[k], m.p);
            b[k]->ops->free(b[k], n.p);
            rig_sync(b[k]);
        }
        for (int64_t j = 0; j < ragged[i]; j++) {
            assert_true(fabs(kld[0][j] - kld[1][j]) <= 1e-5 * fabs(kld[0][j]) + 1e-6);
            assert_true(fabs(same[j]) < 1e-9);
        }
    }
    for (int i = 0; i < 2; i++) {
        r.cuda->ops->weight_release(r.cuda, &head[i]);
        rig_drop_weight(&head[i]);
    }
    rig_drop(x);
    rig_drop(y);
    rig_close(&r);
}

NEEDS(rig_can_run)
