/* test_acts: element-wise operations at every instruction set: activations, sigmoid, sums, and the
 * Hadamard rotation.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/isas.h"
#include "tests/rigs/suite.h"

#include <math.h>

TEST(activations)
{
    enum { N = 2 * 20011 };
    float *g = random_floats(N, 1), *u = random_floats(N, 2), *y = new_floats(N);
    for (int64_t i = 0; i < N; i++) g[i] *= (float)(i % 97);
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2);
        if (!b) continue;
        memcpy(y, g, N * sizeof *y);
        b->ops->ffn_act(b, (dq_mat){y, 2, N / 2}, (dq_mat){u, 2, N / 2}, DQ_ACT_SILU, NULL);
        for (int64_t i = 0; i < N; i++) {
            const double x = (double)g[i], want = x / (1 + exp(-x)) * (double)u[i];
            assert_true(fabs((double)y[i] - want) <= 4e-7 * fabs(want) + 1e-36);
        }
        memcpy(y, g, N * sizeof *y);
        b->ops->ffn_act(b, (dq_mat){y, 2, N / 2}, (dq_mat){u, 2, N / 2}, DQ_ACT_GELU, NULL);
        for (int64_t i = 0; i < N; i++) {
            const double x = (double)g[i], t = sqrt(8 / acos(-1)) * (x + 0.044715 * x * x * x),
                         want = x / (1 + exp(-t)) * (double)u[i];
            assert_true(fabs((double)y[i] - want) <= 4e-7 * (1 + fabs(t)) * fabs(want) + 1e-36);
        }
        memcpy(y, g, N * sizeof *y);
        b->ops->add(b, (dq_mat){y, 2, N / 2}, (dq_mat){u, 2, N / 2});
        for (int64_t i = 0; i < N; i++) assert_true(y[i] == g[i] + u[i]);
        const int64_t index[3] = {1, 0, 1};
        float few[3 * 4];
        b->ops->gather(b, (dq_mat){few, 3, 4}, (dq_mat){g, 2, 4}, index);
        expect_sync(b);
        assert_true(same_bits(few, g + 4, 4) && same_bits(few + 4, g, 4));
        assert_true(same_bits(few + 8, g + 4, 4));
        dq_backend_close(b);
    }
    dq_block_free(y);
    dq_block_free(u);
    dq_block_free(g);
}

/* ---- PolyNorm -------------------------------------------------------------------------------- */

TEST(polynorm_has_its_published_values)
{
    static const struct {
        float param[4];
        int n;
        float x[4];
        double want[4];
    } t[] = {
        {{0.2f, 0.3f, 0.5f, 0.125f}, 3, {-1.5f, -0.5f, 0}, {-0.5263191243, -0.1043004407, 0.125}},
        {{0.2f, 0.3f, 0.5f, 0.125f}, 3, {0.5f, 1, 2}, {0.3508009409, 0.6717202625, 1.7277992322}},
        {{0.5f, -0.25f, 0.75f, 0.1f},
         4,
         {0.25f, -1, 2, 0.5f},
         {0.2570711108, -0.7958423598, 1.9096124424, 0.4106401036}},
        {{0.5f, -0.25f, 0.75f, 0.1f}, 2, {0, 0}, {0.1, 0.1}}, /* the epsilon: no 0 / 0 */
    };
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1);
        for (size_t i = 0; b && i < sizeof t / sizeof *t; i++) {
            float x[4], up[4] = {1, 1, 1, 1};
            memcpy(x, t[i].x, sizeof x);
            b->ops->ffn_act(b, (dq_mat){x, 1, t[i].n}, (dq_mat){up, 1, t[i].n}, DQ_ACT_POLYNORM,
                            t[i].param);
            expect_sync(b);
            for (int j = 0; j < t[i].n; j++) assert_true(fabs((double)x[j] - t[i].want[j]) <= 1e-6);
        }
        dq_backend_close(b);
    }
}

/* Against loops in f64, with an outlier whose sixth power leaves f32, and the branch beside it. */
TEST(polynorm_survives_outliers)
{
    enum { ROWS = 3, COLS = 517 };
    const float param[4] = {0.7f, -0.4f, 1.1f, -0.2f};
    float *g = random_floats(ROWS * COLS, 5), *u = random_floats(ROWS * COLS, 6);
    float *y = new_floats(ROWS * COLS), *other = new_floats(ROWS * COLS);
    g[COLS + 17] = 4e6f;
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2);
        if (!b) continue;
        memcpy(y, g, ROWS * COLS * sizeof *y);
        b->ops->ffn_act(b, (dq_mat){y, ROWS, COLS}, (dq_mat){u, ROWS, COLS}, DQ_ACT_POLYNORM,
                        param);
        expect_sync(b);
        for (int64_t i = 0; i < ROWS * COLS; i++) {
            const float *row = g + i / COLS * COLS;
            double mean[3] = {0}, want = (double)param[3];
            for (int k = 0; k < 3; k++) {
                for (int64_t j = 0; j < COLS; j++) mean[k] += pow((double)row[j], 6 - 2 * k) / COLS;
                want += (double)param[k] * pow((double)g[i], 3 - k) / sqrt(mean[k] + 1e-6);
            }
            want *= (double)u[i];
            assert_true(fabs((double)y[i] - want) <= 4e-7 * (fabs(want) + fabs((double)u[i])));
        }
        /* A row alone gives the same bits. */
        memcpy(other, g, ROWS * COLS * sizeof *other);
        b->ops->ffn_act(b, (dq_mat){other + COLS, 1, COLS}, (dq_mat){u + COLS, 1, COLS},
                        DQ_ACT_POLYNORM, param);
        expect_sync(b);
        assert_true(same_bits(other + COLS, y + COLS, COLS));
        dq_backend_close(b);
    }
    dq_block_free(other);
    dq_block_free(y);
    dq_block_free(u);
    dq_block_free(g);
}

TEST(sigmoids)
{
    static const float x[] = {0, 1, -1, 20, -20, 100, -100, 800, -800, INFINITY, -INFINITY, -1e-8f};
    enum { N = sizeof x / sizeof *x };
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1);
        float y[N];
        if (!b) continue;
        memcpy(y, x, sizeof y);
        b->ops->sigmoid(b, (dq_mat){y, 3, N / 3});
        expect_sync(b);
        for (int i = 0; i < N; i++) {
            const double want = 1 / (1 + exp(-(double)x[i]));
            assert_true(fabs((double)y[i] - want) <= 1.2e-7 * want + 1e-44);
            assert_true(y[i] >= 0 && y[i] <= 1);
        }
        dq_backend_close(b);
    }
}

/* ---- Hadamard -------------------------------------------------------------------------------- */

static double dot(const float *x, const float *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Sylvester's matrix: the sign of element (i, j) is the parity of the bits that i and j share. */
static double sign_of(int i, int j)
{
    int odd = 0;
    for (int both = i & j; both; both &= both - 1) odd = !odd;
    return odd ? -1 : 1;
}

static void hadamard_case(dq_backend *b, int dim)
{
    const int64_t n = 2 * (int64_t)dim, all = 3 * n; /* three rows of two runs */
    float *x = random_floats(all, (uint64_t)dim), *y = new_floats(all);
    memcpy(y, x, (size_t)all * sizeof *y);
    b->ops->hadamard(b, (dq_mat){y, 3, n}, dim);
    expect_sync(b);
    for (int64_t run = 0; run < all; run += dim) {
        for (int i = 0; i < dim; i++) {
            double want = 0;
            for (int j = 0; j < dim; j++) want += sign_of(i, j) * (double)x[run + j];
            assert_true(fabs((double)y[run + i] - want / sqrt(dim)) <= 1e-5);
        }
        /* Orthogonal: lengths and angles stay. */
        assert_true(fabs(dot(y + run, y + run, dim) / dot(x + run, x + run, dim) - 1) <= 2e-6);
        assert_true(fabs(dot(y, y + run, dim) - dot(x, x + run, dim)) <= 2e-5 * dim);
    }
    b->ops->hadamard(b, (dq_mat){y, 3, n}, dim); /* its own inverse */
    expect_sync(b);
    for (int64_t i = 0; i < all; i++) assert_true(fabs((double)y[i] - (double)x[i]) <= 2e-6);
    dq_block_free(y);
    dq_block_free(x);
}

TEST(hadamards)
{
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2);
        for (int dim = 2; b && dim <= 256; dim *= 2) hadamard_case(b, dim);
        dq_backend_close(b);
    }
}
