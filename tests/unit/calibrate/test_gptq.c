/* test_gptq: the Hessian against a plain sum in f64, the factor against its product, and rounding against NumPy's textbook
 * form, which inverts; what has no Hessian to speak of; and the same bytes for any number of threads.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/grid.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "calibrate/calibrate.h"
#include "tensor/tensor.h"
#include "tests/rigs/given.h"
#include "tests/rigs/golden.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS_AT_ONCE = 1 << 20, MOST_ROWS = 512 };

static uint64_t state = 88172645463325252u;
static float uniform(void) /* -1 .. 1 */
{
    return (float)((double)(xorshift(&state) >> 11) / 4503599627370496.0 - 1);
}

static dq_backend *backend(int threads)
{
    omp_set_num_threads(threads);
    return given_backend(threads);
}

static dq_hessian *hessian_of(const float *x, int64_t rows, int64_t n, int threads)
{
    dq_err err = {0};
    dq_hessian *h;
    dq_backend *b = backend(threads);
    assert_int_equal(dq_hessian_new(&h, n, ROWS_AT_ONCE, &err), DQ_OK);
    dq_hessian_begin(h, n);
    union { /* a view that nobody writes to */
        const float *in;
        float *out;
    } view = {x};
    assert_int_equal(dq_hessian_add(h, b, (dq_mat){view.out, rows, n},
                                    (dq_tile_sums_rows){DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES}, &err),
                     DQ_OK);
    assert_int_equal(dq_backend_sync(b, &err), DQ_OK);
    dq_backend_close(b);
    return h;
}

/* ---- Factor ---- */

TEST(factor_gives_the_matrix)
{
    static const int64_t sizes[] = {1, 3, 63, 64, 65, 130, 300, 577};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s], ld = dq_cholesky_stride(n);
        dq_err err = {0};
        int64_t bad;
        double *a = dq_block_new((size_t)(n * ld), sizeof *a, &err), *l;
        double *again = dq_block_new((size_t)(n * ld), sizeof *a, &err);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < n; j++) a[i * ld + j] = j > i ? 1e300 : (double)uniform();
            a[i * ld + i] = (double)n;
        }
        l = dq_block_new((size_t)(n * ld), sizeof *a, &err);
        memcpy(l, a, (size_t)(n * ld) * sizeof *a);
        memcpy(again, a, (size_t)(n * ld) * sizeof *a);
        omp_set_num_threads(1);
        assert_int_equal(dq_cholesky(&bad, l, n, ld, &err), DQ_OK);
        assert_int_equal(bad, -1);
        omp_set_num_threads(3);
        assert_int_equal(dq_cholesky(&bad, again, n, ld, &err), DQ_OK);
        assert_memory_equal(l, again, (size_t)(n * ld) * sizeof *a);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j <= i; j++) {
                double sum = 0;
                for (int64_t k = 0; k <= j; k++) sum += l[i * ld + k] * l[j * ld + k];
                assert_true(fabs(sum - a[i * ld + j]) < 1e-13 * (double)n);
            }
        }
        for (int64_t i = 0; i < n; i++) { /* what is above the diagonal stays */
            for (int64_t j = i + 1; j < n; j++) assert_true(l[i * ld + j] == 1e300);
        }
        a[(n / 2) * ld + n / 2] = -1;
        dq_cholesky(&bad, a, n, ld, &err);
        assert_int_equal(bad, n / 2);
        dq_block_free(a);
        dq_block_free(l);
        dq_block_free(again);
    }
}

/* Another digest on any machine, with any ISA, is another container there. */
TEST(factor_has_the_same_bits_everywhere)
{
    enum { N = 200 };
    const int64_t ld = dq_cholesky_stride(N);
    dq_err err = {0};
    int64_t bad;
    char sha[65];
    double *a = dq_block_new((size_t)(N * ld), sizeof *a, &err);
    for (int r = 0; r < N; r++) { /* 1 / (1 + distance): convex, so positive definite */
        for (int c = 0; c <= r; c++) a[r * ld + c] = 1.0 / (1 + r - c);
    }
    assert_int_equal(dq_cholesky(&bad, a, N, ld, &err), DQ_OK);
    assert_int_equal(bad, -1);
    assert_int_equal(dq_sha256_of(sha, a, (size_t)(N * ld) * sizeof *a, &err), DQ_OK);
    assert_string_equal(sha, "048726deacccace745d790cab91a10058a31977cc501ccd05de75c635ed03704");
    dq_block_free(a);
}

/* ---- Hessian ---- */

/* The error of the f32 sums, relative to what it is measured by: the damping of 1 % of the mean diagonal. */
TEST(sums_have_enough_digits)
{
    enum { N = 200, ROWS = 3000 };
    float *x = malloc(sizeof *x * N * ROWS);
    double mean = 0, worst = 0;
    for (int i = 0; i < N * ROWS; i++) x[i] = uniform() * (i % N == 7 ? 100.0f : 1.0f) + 0.5f;
    dq_hessian *h = hessian_of(x, ROWS, N, 1), *other = hessian_of(x, ROWS, N, 3);
    assert_memory_equal(h->a, other->a, sizeof(double) * (size_t)(N * h->ld));
    for (int i = 0; i < N; i++) mean += h->a[i * h->ld + i] / N;
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = 0;
            for (int r = 0; r < ROWS; r++) sum += (double)x[r * N + i] * (double)x[r * N + j];
            const double off = fabs(sum - h->a[i * h->ld + j]);
            const double own = off / sqrt(h->a[i * h->ld + i] * h->a[j * h->ld + j]);
            assert_true(own < 2e-6); /* 1024 sums in f32, of one sign here */
            if (off > worst) worst = off;
        }
    }
    assert_true(worst / (0.01 * mean) < 5e-3);
    dq_hessian_free(h);
    dq_hessian_free(other);
    free(x);
}

TEST(factor_of_inputs)
{
    enum { N = 150, ROWS = 400 };
    static float x[N * ROWS];
    dq_err err = {0};
    for (int i = 0; i < N * ROWS; i++) x[i] = i % N == 9 ? 0 : uniform() * (float)(1 + i % N % 5);
    dq_hessian *h = hessian_of(x, ROWS, N, 2), *plain = hessian_of(x, ROWS, N, 2);
    assert_int_equal(dq_hessian_factor(h, 0.01, "x", &err), DQ_OK);
    assert_int_equal(h->n_dead, 1);
    assert_true(h->dead[9] && h->order[0] == 9);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++) {
            const int64_t p = h->order[i], q = h->order[j], big = p > q ? p : q, low = p + q - big;
            double sum = 0, want = plain->a[big * plain->ld + low] / ROWS;
            for (int k = 0; k <= j; k++) sum += h->a[i * h->ld + k] * h->a[j * h->ld + k];
            if (i == j) want = p == 9 ? 1 : want + h->damping;
            assert_true(fabs(sum - want) < 1e-12);
        }
        if (i > 1) assert_true(h->diagonal[h->order[i]] >= h->diagonal[h->order[i - 1]]);
    }
    dq_hessian_free(h);
    dq_hessian_free(plain);
}

TEST(inputs_that_are_not_finite)
{
    float x[4 * 8] = {0};
    dq_err err = {0};
    for (int i = 0; i < 32; i++) x[i] = uniform();
    x[10] = (float)NAN;
    dq_hessian *h = hessian_of(x, 4, 8, 1);
    assert_int_equal(dq_hessian_factor(h, 0.01, "layer 3, q", &err), DQ_DAMAGED);
    assert_non_null(strstr(err.text, "layer 3, q: sums of squares of its inputs"));
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_SUMS);
    dq_hessian_free(h);
}

/* More damping than asked for is said; a matrix that none helps is refused. */
TEST(damping_rises)
{
    enum { N = 6 };
    float x[N] = {1, 2, 3, 4, 5, 6};
    dq_err err = {0};
    dq_hessian *h = hessian_of(x, 1, N, 1);
    h->a[1 * h->ld] += 0.5; /* no sum of squares any more: needs damping of the order of 1/15 */
    assert_int_equal(dq_hessian_factor(h, 0.001, "x", &err), DQ_OK);
    assert_true(h->damping_share > 0.005);
    dq_hessian_free(h);
    h = hessian_of(x, 1, N, 1);
    h->a[1 * h->ld] = 1e6;
    assert_int_equal(dq_hessian_factor(h, 0.01, "x", &err), DQ_DAMAGED);
    dq_hessian_free(h);
}

/* ---- Rounding ---- */

static void check_golden(const golden *g, const dq_hessian *h, const float *w, const char *name,
                         const dq_quant_spec *spec, int64_t rows)
{
    char key[64];
    dq_err err = {0};
    dq_codes *c;
    dq_gptq_loss loss = {0}, each[MOST_ROWS];
    assert_true(rows <= MOST_ROWS);
    assert_int_equal(dq_gptq(&c, w, rows, h->n, h, NULL, spec, 0, each, &err), DQ_OK);
    dq_gptq_loss_add(&loss, each, rows);
    snprintf(key, sizeof key, "%s.code", name);
    const uint8_t *code = golden_find(g, key)->data;
    for (int64_t i = 0; i < rows * h->n; i++) {
        const uint8_t mine = (uint8_t)((unsigned)(c->code[i] + (1 << (spec->bits - 1))) & 255);
        if (mine != code[i])
            fail_msg("%s: code %lld is %d, not %d", name, (long long)i, mine, code[i]);
    }
    snprintf(key, sizeof key, "%s.scale", name);
    const dq_tensor *scale = golden_find(g, key);
    for (int64_t i = 0; i < dq_tensor_numel(scale); i++)
        assert_true(c->grid[i].scale == golden_f32(scale, i));
    double want[2];
    snprintf(key, sizeof key, "%s.loss", name);
    memcpy(want, golden_find(g, key)->data, sizeof want);
    assert_true(fabs(loss.error - want[0]) < 1e-9 * want[0]);
    assert_true(fabs(loss.signal - want[1]) < 1e-9 * want[1]);
    dq_codes_free(c);
}

TEST(codes_are_those_of_numpy)
{
    static const struct {
        const char *name;
        dq_quant_spec spec;
    } rows[] = {
        {"absmax.4.64", {4, 64, DQ_ABSMAX, DQ_F16, NULL}},
        {"asym.2.40", {2, 40, DQ_ASYM, DQ_F16, NULL}},
        {"asym.5.0", {5, DQ_GROUP_TENSOR, DQ_ASYM, DQ_F16, NULL}},
        {"absmax.8.203", {8, 500, DQ_ABSMAX, DQ_F16, NULL}},
    };
    dq_err err = {0};
    golden g = golden_open(DQ_TEST_DIR "/golden/gptq");
    const dq_tensor *x = golden_find(&g, "x"), *w = golden_find(&g, "w");
    float *inputs = malloc((size_t)dq_tensor_numel(x) * sizeof *inputs);
    float *weights = malloc(dq_tensor_bytes(w));
    for (int64_t i = 0; i < dq_tensor_numel(x); i++)
        inputs[i] = (float)((const int8_t *)x->data)[i];
    memcpy(weights, w->data, dq_tensor_bytes(w));
    for (int threads = 1; threads <= 3; threads++) {
        dq_hessian *h = hessian_of(inputs, x->shape[0], x->shape[1], threads);
        assert_int_equal(dq_hessian_factor(h, 0.01, "x", &err), DQ_OK);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            check_golden(&g, h, weights, rows[i].name, &rows[i].spec, w->shape[0]);
        dq_hessian_free(h);
    }
    free(inputs);
    free(weights);
    golden_close(&g);
}

/* Without any input nothing is known: each value goes to its nearest code. One token says something of one
 * direction. Rows of zeros stay zero. */
TEST(little_is_known)
{
    enum { ROWS = 5, N = 131 };
    static float w[ROWS * N], x[N];
    const dq_weight_format *f = dq_weight_format_of_mode(DQ_SEARCH);
    const dq_quant_spec spec = {3, 50, DQ_SEARCH, DQ_F16, NULL};
    dq_err err = {0};
    for (int i = 0; i < ROWS * N; i++) w[i] = i / N == 2 ? 0 : uniform();
    for (int i = 0; i < N; i++) x[i] = uniform();
    for (int tokens = 0; tokens < 2; tokens++) {
        dq_hessian *h = hessian_of(x, tokens, N, 1);
        dq_codes *c;
        dq_gptq_loss loss = {0}, each[ROWS];
        double plain = 0, rounded = 0;
        assert_int_equal(dq_hessian_factor(h, 0.01, "x", &err), DQ_OK);
        assert_int_equal(dq_gptq(&c, w, ROWS, N, h, NULL, &spec, 0, each, &err), DQ_OK);
        dq_gptq_loss_add(&loss, each, ROWS);
        for (int r = 0; r < ROWS; r++) {
            double mine = 0, other = 0;
            for (int i = 0; i < N; i++) {
                int8_t q, code = c->code[r * N + i];
                float got;
                const dq_grid grid = dq_codes_grid(c, r, i);
                f->encode(&q, &got, &w[r * N + i], 1, grid, &spec);
                if (tokens == 0) assert_int_equal(q, code);
                if (r == 2) assert_int_equal(code, 0);
                other += ((double)w[r * N + i] - (double)got) * (double)x[i];
                mine += ((double)w[r * N + i] - (double)((float)code * grid.scale)) * (double)x[i];
            }
            plain += other * other;
            rounded += mine * mine;
        }
        if (tokens == 0) assert_true(loss.error == 0 && loss.signal == 0);
        if (tokens == 1) assert_true(rounded < plain / 10);
        if (tokens == 1) assert_true(fabs(loss.error - rounded) < 1e-6 * loss.signal);
        dq_codes_free(c);
        dq_hessian_free(h);
    }
}

/* Of the same Hessian, width and groups codes of a trellis lose .8 of what searched ones lose, or less, the loss that is
 * told is that of the codes, and no thread changes a bit. */
TEST(a_trellis_loses_less)
{
    enum { ROWS = 300, N = 96, TOKENS = 500 };
    float *x = malloc(sizeof *x * N * TOKENS), *w = malloc(sizeof *w * N * ROWS);
    dq_err err = {0};
    for (int i = 0; i < N * TOKENS; i++)
        x[i] = uniform() + uniform() + (i % N > 0 ? x[i - 1] / 2 : 0) + (i % N == 3 ? 2.0f : 0.0f);
    static int8_t column[N];
    for (int i = 0; i < N * ROWS; i++) w[i] = uniform() + uniform() + uniform() + uniform();
    for (int i = 0; i < N; i++) column[i] = (int8_t)(i % 9 == 0 ? 6 : 0);
    dq_hessian *h = hessian_of(x, TOKENS, N, 1);
    assert_int_equal(dq_hessian_factor(h, 0.01, "w", &err), DQ_OK);
    for (int bits = DQ_TRELLIS_MIN_BITS; bits <= DQ_TRELLIS_MAX_BITS; bits++) {
        const dq_quant_spec search = {bits, 96, DQ_SEARCH, DQ_F16, NULL};
        dq_quant_spec trellis = search;
        dq_gptq_loss theirs = {0}, loss = {0}, measured = {0}, each[ROWS];
        dq_codes *c, *one;
        trellis.mode = DQ_TRELLIS;
        trellis.column = bits % 2 ? column : NULL;
        assert_int_equal(dq_gptq(&c, w, ROWS, N, h, NULL, &search, 2, each, &err), DQ_OK);
        dq_gptq_loss_add(&theirs, each, ROWS);
        dq_codes_free(c);
        assert_int_equal(dq_gptq(&c, w, ROWS, N, h, NULL, &trellis, 2, each, &err), DQ_OK);
        dq_gptq_loss_add(&loss, each, ROWS);
        assert_int_equal(dq_gptq_measure(each, c, w, h, &err), DQ_OK);
        dq_gptq_loss_add(&measured, each, ROWS);
        assert_true(fabs(measured.error / loss.error - 1) < 1e-6);
        assert_true(loss.error < theirs.error * (bits % 2 ? .9 : .8));
        omp_set_num_threads(1);
        assert_int_equal(dq_gptq(&one, w, ROWS, N, h, NULL, &trellis, 2, NULL, &err), DQ_OK);
        omp_set_num_threads(omp_get_num_procs());
        assert_memory_equal(c->code, one->code, ROWS * N);
        dq_codes_free(c);
        dq_codes_free(one);
    }
    dq_hessian_free(h);
    free(x);
    free(w);
}

/* What is packed is what was rounded to, for every format and layout of scales. */
TEST(packed_codes_read_back)
{
    enum { ROWS = 6, N = 77 };
    static const int64_t groups[] = {16, 30, DQ_GROUP_ROW, DQ_GROUP_TENSOR};
    static float w[ROWS * N], back[ROWS * N];
    for (int i = 0; i < ROWS * N; i++) w[i] = uniform();
    for (int bits = 2; bits <= 8; bits++) {
        for (int mode = 0; mode < DQ_QUANT_MODES; mode++) {
            for (int k = 0; k < 4; k++) {
                static const int8_t column[N] = {[5] = 8, [60] = -3};
                const bool trellis = mode == DQ_TRELLIS;
                const dq_quant_spec spec = {bits, groups[k], (dq_scale_mode)mode, DQ_F16,
                                            trellis ? column : NULL};
                if (trellis && (bits > DQ_TRELLIS_MAX_BITS || groups[k] == DQ_GROUP_TENSOR))
                    continue;
                dq_err err = {0};
                dq_codes *c;
                dq_coded coded;
                dq_hessian *h = hessian_of(w, 0, N, 1);
                assert_int_equal(dq_hessian_factor(h, 0.01, "x", &err), DQ_OK);
                assert_int_equal(dq_gptq(&c, w, ROWS, N, h, NULL, &spec, 0, NULL, &err), DQ_OK);
                assert_int_equal(dq_coded_pack(&coded, c, &err), DQ_OK);
                dq_weight_dequantize_rows(back, &coded.weight, 0, ROWS);
                for (int i = 0; i < ROWS * N; i++) {
                    const dq_grid g = dq_codes_grid(c, i / N, i % N);
                    if (trellis) {
                        const int level = dq_trellis_table_of(bits)->level[(uint8_t)c->code[i]];
                        assert_true(back[i] ==
                                    (float)level * g.scale * dq_weight_factor(column[i % N]));
                        continue;
                    }
                    const int zero = mode == DQ_ASYM ? g.zero - (1 << (bits - 1)) : 0;
                    /* modulo 256, as codes of a format with zero points are */
                    const int code = mode == DQ_ASYM ? ((c->code[i] + (1 << (bits - 1))) & 255) -
                                                           (1 << (bits - 1))
                                                     : c->code[i];
                    assert_true(back[i] == (float)(code - zero) * g.scale);
                }
                dq_coded_free(&coded);
                dq_codes_free(c);
                dq_hessian_free(h);
            }
        }
    }
}

/* Rows do not see each other: bands of them give the bytes of the whole. */
TEST(bands_are_the_whole)
{
    enum { ROWS = 200, N = 70, BAND = 128 };
    static const dq_scale_mode modes[] = {DQ_SEARCH, DQ_ASYM, DQ_ABSMAX, DQ_TRELLIS};
    float *x = malloc(sizeof *x * N * 300), *w = malloc(sizeof *w * N * ROWS);
    dq_err err = {0};
    for (int i = 0; i < N * 300; i++) x[i] = uniform() + (i % N == 3 ? 2.0f : 0.0f);
    for (int i = 0; i < N * ROWS; i++) w[i] = uniform();
    dq_hessian *h = hessian_of(x, 300, N, 1);
    assert_int_equal(dq_hessian_factor(h, 0.01, "w", &err), DQ_OK);
    for (int m = 0; m < 4; m++) {
        const dq_quant_spec spec = {3, 32, modes[m], DQ_F16, NULL};
        dq_codes *codes;
        dq_coded whole, bands;
        assert_int_equal(dq_gptq(&codes, w, ROWS, N, h, NULL, &spec, 2, NULL, &err), DQ_OK);
        assert_int_equal(dq_coded_pack(&whole, codes, &err), DQ_OK);
        dq_codes_free(codes);
        assert_int_equal(dq_coded_new(&bands, ROWS, N, &spec, &err), DQ_OK);
        for (int64_t at = 0; at < ROWS; at += BAND) {
            const int64_t rows = ROWS - at < BAND ? ROWS - at : BAND;
            assert_int_equal(dq_gptq(&codes, w + at * N, rows, N, h, NULL, &spec, 2, NULL, &err),
                             DQ_OK);
            dq_coded_put(&bands, codes, at);
            dq_codes_free(codes);
        }
        for (int k = 0; k < whole.weight.format->n_datasets; k++) {
            const dq_dataset p = dq_weight_dataset(&whole.weight, k);
            assert_memory_equal(dq_coded_dataset(&bands, k), p.data, dq_dataset_bytes(&p));
        }
        dq_coded_free(&whole);
        dq_coded_free(&bands);
    }
    dq_hessian_free(h);
    free(x);
    free(w);
}

/* Whatever stands where inputs are always 0 sets no scale, and a pruned column makes up for nothing, in every mode. */
TEST(dead_and_pruned_columns)
{
    enum { ROWS = 40, N = 64, TOKENS = 300, DEAD = 5, PRUNED = 40 };
    float *x = malloc(sizeof *x * N * TOKENS), *w = malloc(sizeof *w * N * ROWS);
    bool zero[N] = {false};
    dq_err err = {0};
    for (int i = 0; i < N * TOKENS; i++)
        x[i] = i % N == DEAD ? 0 : uniform() + (i % N > 0 ? x[i - 1] / 2 : 0);
    for (int i = 0; i < N * ROWS; i++) w[i] = i % N == PRUNED ? 0 : uniform();
    zero[PRUNED] = true;
    dq_hessian *h = hessian_of(x, TOKENS, N, 1);
    assert_int_equal(dq_hessian_factor(h, 0.01, "w", &err), DQ_OK);
    assert_true(h->dead[DEAD] && !h->dead[PRUNED]);
    for (dq_scale_mode mode = DQ_ABSMAX; mode <= DQ_SEARCH; mode++) {
        for (int group = 0; group < 2; group++) {
            const dq_quant_spec spec = {4, group ? 32 : DQ_GROUP_TENSOR, mode, DQ_F16, NULL};
            dq_gptq_loss small[ROWS], large[ROWS];
            dq_codes *c, *other;
            for (int r = 0; r < ROWS; r++) w[r * N + DEAD] = 0;
            assert_int_equal(dq_gptq(&c, w, ROWS, N, h, zero, &spec, 0, small, &err), DQ_OK);
            for (int r = 0; r < ROWS; r++) w[r * N + DEAD] = r % 2 ? 50.0f : -50.0f;
            assert_int_equal(dq_gptq(&other, w, ROWS, N, h, zero, &spec, 0, large, &err), DQ_OK);
            dq_gptq_loss sum = {0}, others = {0};
            dq_gptq_loss_add(&sum, small, ROWS);
            dq_gptq_loss_add(&others, large, ROWS);
            assert_true(others.error < 1.1 * sum.error);
            for (int r = 0; r < ROWS; r++) {
                for (int i = 0; i < N; i++) {
                    const float a = dq_codes_value(c, r, i), b = dq_codes_value(other, r, i);
                    if (i == PRUNED) assert_true(a == 0 && b == 0);
                    if (i != DEAD && mode == DQ_ABSMAX) assert_true(a == b);
                }
            }
            dq_codes_free(c);
            dq_codes_free(other);
        }
    }
    dq_hessian_free(h);
    free(x);
    free(w);
}

TEST(zero_columns)
{
    enum { ROWS = 3, N = 4 };
    const float pruned[ROWS * N] = {0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, -0.0f},
                              whole[ROWS * N] = {0, 1, 0, 0, 3, 0, 0, 1, 0, 0, 1, 0};
    const dq_weight w[] = {dq_weight_of_f32("w", ROWS, N, pruned),
                           dq_weight_of_f32("w", ROWS, N, whole)};
    bool *zero;
    dq_err err = {0};
    assert_int_equal(dq_gptq_zero_columns(&zero, &w[0], &err), DQ_OK);
    assert_memory_equal(zero, ((const bool[]){true, false, false, true}), N);
    dq_block_free(zero);
    assert_int_equal(dq_gptq_zero_columns(&zero, &w[1], &err), DQ_OK);
    assert_null(zero);
}
