/* test_correction: weights corrected for what rounding did before them are the least squares solution that a plain elimination
 * gives, whole or in bands, and rows that they do not fit are counted; scales found anew from codes solve their row's system,
 * whole or in bands, and never make a rounding worse; the loss is of the weights that it is asked for; the same bytes for any
 * number of threads.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/grid.h"
#include "tests/rigs/suite.h"

#include "calibrate/calibrate.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 1 << 20 };

enum { N = 150, M = 70, ROWS = 2500 };

static uint64_t state = 88172645463325252u;
static float uniform(void) /* -1 .. 1 */
{
    return (float)((double)(xorshift(&state) >> 11) / 4503599627370496.0 - 1);
}

/* Inputs x whose column 9 is 0, and a, of M values that depend on them and on chance. */
static void inputs(float *x, float *a)
{
    state = 88172645463325252u;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < N; i++)
            x[r * N + i] =
                i == 9 ? 0 : uniform() * (float)(1 + i % 5) + (i > 2 ? x[r * N + i - 3] : 0) / 2;
        for (int i = 0; i < M; i++) a[r * M + i] = x[r * N + i] + x[r * N + i + 40] / 3 + uniform();
    }
}

typedef struct sums {
    dq_hessian *h;
    dq_cross *c;
    double *plain; /* [N, N] H + damping I, in order of columns */
} sums;

static sums sums_of(float *x, float *a, int64_t m, int threads)
{
    dq_err err = {0};
    sums s;
    omp_set_num_threads(threads);
    dq_backend *b = given_backend(threads);
    assert_int_equal(dq_hessian_new(&s.h, N, ROWS_AT_ONCE, &err), DQ_OK);
    assert_int_equal(dq_cross_new(&s.c, m, N, ROWS_AT_ONCE, &err), DQ_OK);
    dq_hessian_begin(s.h, N);
    dq_cross_begin(s.c, m, N);
    assert_int_equal(dq_hessian_add(s.h, b, (dq_mat){x, ROWS, N},
                                    (dq_tile_sums_rows){DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES}, &err),
                     DQ_OK);
    assert_int_equal(dq_cross_add(s.c, b, (dq_mat){a, ROWS, m}, (dq_mat){x, ROWS, N},
                                  (dq_tile_sums_rows){DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES}, &err),
                     DQ_OK);
    assert_int_equal(dq_backend_sync(b, &err), DQ_OK);
    assert_int_equal(dq_cross_mean(s.c, "x", &err), DQ_OK);
    dq_backend_close(b);
    s.plain = calloc(N * N, sizeof *s.plain);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++)
            s.plain[i * N + j] = s.plain[j * N + i] = s.h->a[i * s.h->ld + j] / ROWS;
    }
    assert_int_equal(dq_hessian_factor(s.h, 0.01, "x", &err), DQ_OK);
    for (int i = 0; i < N; i++) s.plain[i * N + i] += s.h->damping;
    return s;
}

static void sums_free(sums *s)
{
    dq_hessian_free(s->h);
    dq_cross_free(s->c);
    free(s->plain);
}

/* K (H + damping I) = C, apart from the column that has no input. */
TEST(solution_solves)
{
    static float x[ROWS * N], a[ROWS * M];
    dq_err err = {0};
    inputs(x, a);
    sums s = sums_of(x, a, M, 1), again = sums_of(x, a, M, 3);
    double *c = malloc(sizeof *c * (size_t)(M * s.c->ld));
    memcpy(c, s.c->c, sizeof *c * (size_t)(M * s.c->ld));
    for (int r = 0; r < M; r += 17) { /* the sums themselves */
        double sum = 0;
        for (int i = 0; i < ROWS; i++) sum += (double)a[i * M + r] * (double)x[i * N + 5];
        assert_true(fabs(sum / ROWS - c[r * s.c->ld + 5]) < 1e-5);
    }
    omp_set_num_threads(1);
    assert_int_equal(dq_correction_solve(s.c, s.h, &err), DQ_OK);
    omp_set_num_threads(3);
    assert_int_equal(dq_correction_solve(again.c, again.h, &err), DQ_OK);
    assert_memory_equal(s.c->c, again.c->c, sizeof(double) * (size_t)(M * s.c->ld));
    for (int r = 0; r < M; r++) {
        const double *k = s.c->c + r * s.c->ld;
        assert_true(k[9] == 0);
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int i = 0; i < N; i++) sum += k[i] * s.plain[i * N + j];
            if (j != 9) assert_true(fabs(sum - c[r * s.c->ld + j]) < 1e-10);
        }
    }
    free(c);
    sums_free(&s);
    sums_free(&again);
}

/* With inputs x' = x + d, the outputs of corrected weights on x are nearer to w x' than those of w are, and no other weights
 * are nearer, damping aside: the gradient of the damped squares is 0. */
TEST(corrected_weights_are_nearest)
{
    static float x[ROWS * N], a[ROWS * M], d[ROWS * N], w[M * N], fixed[M * N], same[M * N];
    dq_err err = {0};
    inputs(x, a);
    for (int i = 0; i < ROWS * N; i++)
        d[i] = 0.1f * uniform() + 0.2f * x[i / N * N + i % N * 7 % N];
    for (int i = 0; i < M * N; i++) same[i] = fixed[i] = w[i] = uniform();
    sums s = sums_of(x, d, N, 2);
    double *m = malloc(sizeof *m * (size_t)(N * s.c->ld));
    memcpy(m, s.c->c, sizeof *m * (size_t)(N * s.c->ld));
    assert_int_equal(dq_correction_solve(s.c, s.h, &err), DQ_OK);
    assert_int_equal(dq_correction_of_inputs(fixed, M, s.c, &err), DQ_OK);
    omp_set_num_threads(1);
    assert_int_equal(dq_correction_of_inputs(same, M, s.c, &err), DQ_OK);
    assert_memory_equal(fixed, same, sizeof fixed);
    for (int r = 0; r < M; r++) {
        for (int j = 0; j < N; j++) { /* (w* - w)(H + damping I) = w M */
            double left = 0, right = 0;
            for (int i = 0; i < N; i++) {
                left += ((double)fixed[r * N + i] - (double)w[r * N + i]) * s.plain[i * N + j];
                right += (double)w[r * N + i] * m[i * s.c->ld + j];
            }
            if (j != 9) assert_true(fabs(left - right) < 2e-4); /* weights are f32 */
        }
    }
    free(m);
    sums_free(&s);
}

static dq_codes *rounded(const float *w, const dq_hessian *h, const dq_quant_spec *spec, int refits,
                         dq_gptq_loss *loss)
{
    dq_err err = {0};
    dq_codes *c;
    dq_gptq_loss each[M];
    assert_int_equal(dq_gptq(&c, w, M, N, h, NULL, spec, refits, each, &err), DQ_OK);
    *loss = (dq_gptq_loss){0};
    dq_gptq_loss_add(loss, each, M);
    return c;
}

/* w (H + damping I) w^T of what a row's codes miss, with scale `other` in group g. */
static double missed(const sums *s, const dq_codes *c, const float *w, int row, int g, float other)
{
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
    double e[N], sum = 0;
    for (int i = 0; i < N; i++) {
        const dq_grid grid = dq_codes_grid(c, row, i);
        const float scale = i / c->shape.group_size == g ? other : grid.scale;
        e[i] =
            (double)w[row * N + i] - (double)scale * f->level(c->code[row * N + i], grid, &c->spec);
    }
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) sum += e[i] * s->plain[i * N + j] * e[j];
    }
    return sum;
}

TEST(refitted_scales_are_least)
{
    static const struct {
        int bits;
        int64_t group;
        dq_scale_mode mode;
    } all[] = {
        {3, 32, DQ_SEARCH}, {4, DQ_GROUP_ROW, DQ_ABSMAX}, {2, 64, DQ_ASYM}, {3, 50, DQ_SEARCH}};
    static float x[ROWS * N], a[ROWS * M], w[M * N];
    inputs(x, a);
    for (int i = 0; i < M * N; i++) w[i] = uniform() * (i / N % 3 ? 1.0f : 0.1f);
    memset(w + 5 * N, 0, sizeof *w * N); /* a row of zeros */
    sums s = sums_of(x, a, M, 2);
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const dq_quant_spec spec = {all[k].bits, all[k].group, all[k].mode, DQ_F32, NULL};
        dq_gptq_loss plain, fitted, twice;
        dq_err err = {0};
        dq_codes *c = rounded(w, s.h, &spec, 0, &plain);
        assert_int_equal(dq_scale_refit(c, w, s.h, &err), DQ_OK);
        for (int r = 0; r < M; r += 23) {
            const float at = c->grid[r * c->shape.groups].scale;
            const double here = missed(&s, c, w, r, 0, at);
            assert_true(missed(&s, c, w, r, 0, at * 1.001f) >= here);
            assert_true(missed(&s, c, w, r, 0, at * 0.999f) >= here);
        }
        dq_codes_free(c);
        c = rounded(w, s.h, &spec, 1, &fitted);
        dq_codes *more = rounded(w, s.h, &spec, 3, &twice);
        omp_set_num_threads(3);
        dq_codes *same = rounded(w, s.h, &spec, 1, &twice);
        assert_memory_equal(c->code, same->code, M * N);
        assert_true(fitted.error < plain.error);
        dq_codes_free(c);
        dq_codes_free(same);
        dq_codes_free(more);
    }
    sums_free(&s);
}

/* One scale for the whole matrix is left alone. */
TEST(one_scale_stays)
{
    static float x[ROWS * N], a[ROWS * M], w[M * N];
    const dq_quant_spec spec = {4, DQ_GROUP_TENSOR, DQ_SEARCH, DQ_F16, NULL};
    dq_gptq_loss any;
    dq_err err = {0};
    inputs(x, a);
    for (int i = 0; i < M * N; i++) w[i] = uniform();
    sums s = sums_of(x, a, M, 2);
    dq_codes *c = rounded(w, s.h, &spec, 2, &any);
    const float scale = c->grid[0].scale;
    assert_int_equal(dq_scale_refit(c, w, s.h, &err), DQ_OK);
    assert_true(c->grid[0].scale == scale);
    dq_codes_free(c);
    sums_free(&s);
}

/* w (H + damping I) w^T of what a row's codes miss; h[n, n] with the damping. */
static double missed_by(const double *h, const dq_codes *c, const float *w, int64_t row)
{
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
    const int64_t n = c->shape.cols;
    double *e = calloc((size_t)n, sizeof *e), sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const dq_grid g = dq_codes_grid(c, row, i);
        e[i] =
            (double)w[row * n + i] - (double)g.scale * f->level(c->code[row * n + i], g, &c->spec);
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) sum += e[i] * h[i * n + j] * e[j];
    }
    free(e);
    return sum;
}

/* More groups than a system may have: scales that codes were made with and that were spoiled come near again, and those of
 * the last band are the best there are beside the others. */
TEST(many_groups_go_in_bands)
{
    enum { WIDE = 720, FEW = 3, INPUTS = 1500 };
    const dq_quant_spec spec = {3, 1, DQ_ABSMAX, DQ_F32, NULL};
    static float x[INPUTS * WIDE], w[FEW * WIDE];
    static double h[WIDE * WIDE];
    dq_gptq_loss loss[FEW];
    dq_err err = {0};
    dq_hessian *of;
    dq_codes *c;
    for (int i = 0; i < INPUTS * WIDE; i++) x[i] = uniform() + (i % WIDE ? x[i - 1] / 2 : 0);
    for (int i = 0; i < FEW * WIDE; i++) { /* none so small that its scale would leave the range */
        const float u = uniform();
        w[i] = u < 0 ? u - 1 : u + 1;
    }
    dq_backend *b = given_backend(1);
    assert_int_equal(dq_hessian_new(&of, WIDE, ROWS_AT_ONCE, &err), DQ_OK);
    dq_hessian_begin(of, WIDE);
    assert_int_equal(dq_hessian_add(of, b, (dq_mat){x, INPUTS, WIDE},
                                    (dq_tile_sums_rows){DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES}, &err),
                     DQ_OK);
    for (int i = 0; i < WIDE; i++) {
        for (int j = 0; j <= i; j++)
            h[i * WIDE + j] = h[j * WIDE + i] = of->a[i * of->ld + j] / INPUTS;
    }
    assert_int_equal(dq_hessian_factor(of, 0.01, "x", &err), DQ_OK);
    for (int i = 0; i < WIDE; i++) h[i * WIDE + i] += of->damping;
    assert_int_equal(dq_codes_new(&c, FEW, WIDE, &spec, &err), DQ_OK);
    dq_codes_fit(c, w);
    assert_int_equal(dq_gptq_round(c, w, of, NULL, loss, &err), DQ_OK);
    double before[FEW];
    for (int i = 0; i < FEW * WIDE; i++) c->grid[i].scale *= 1 + uniform() / 10;
    for (int r = 0; r < FEW; r++) before[r] = missed_by(h, c, w, r);
    assert_int_equal(dq_scale_refit(c, w, of, &err), DQ_OK);
    for (int r = 0; r < FEW; r++) {
        const double here = missed_by(h, c, w, r);
        assert_true(here < before[r] / 4);
        for (int g = 704; g < WIDE; g += 5) {
            float *scale = &c->grid[r * WIDE + g].scale, was = *scale;
            for (int side = -1; side <= 1; side += 2) {
                *scale = was * (1 + (float)side / 1000);
                assert_true(missed_by(h, c, w, r) >= here);
            }
            *scale = was;
        }
    }
    dq_codes_free(c);
    dq_hessian_free(of);
    dq_backend_close(b);
}

/* At the widest input of a published model: systems of 256 MiB, integers and values of 512 rows, a panel of 512. */
TEST(memory_of_scales_is_bounded)
{
    static const int64_t groups[] = {1, 7, 8, 16, 32, 64, 128, 512, 5000, DQ_GROUP_ROW};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const dq_quant_spec spec = {4, groups[i], DQ_SEARCH, DQ_F16, NULL};
        const dq_code_shape s = dq_code_shape_of(16384, 16384, &spec);
        const int64_t bytes = dq_scale_refit_bytes(&s);
        assert_true(bytes > 0 && bytes < (int64_t)480 << 20);
    }
}

/* The loss of codes against weights that they were not made from. */
TEST(loss_is_of_the_weights_given)
{
    static const dq_scale_mode modes[] = {DQ_SEARCH, DQ_ASYM};
    static float x[ROWS * N], a[ROWS * M], w[M * N], source[M * N];
    inputs(x, a);
    for (int i = 0; i < M * N; i++) {
        w[i] = uniform();
        source[i] = w[i] + uniform() / 10;
    }
    sums s = sums_of(x, a, M, 2);
    for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
        const dq_quant_spec spec = {3, 50, modes[k], DQ_F16, NULL};
        dq_gptq_loss own, same = {0}, other = {0}, each[M];
        dq_err err = {0};
        double error = 0, signal = 0;
        dq_codes *c = rounded(w, s.h, &spec, 1, &own);
        assert_int_equal(dq_gptq_measure(each, c, w, s.h, &err), DQ_OK);
        dq_gptq_loss_add(&same, each, M);
        assert_int_equal(dq_gptq_measure(each, c, source, s.h, &err), DQ_OK);
        dq_gptq_loss_add(&other, each, M);
        assert_true(fabs(same.error / own.error - 1) < 1e-6);
        assert_true(same.signal == own.signal);
        for (int i = 0; i < N; i++) s.plain[i * N + i] -= s.h->damping;
        for (int r = 0; r < M; r++) {
            error += missed_by(s.plain, c, source, r);
            for (int i = 0; i < N; i++) {
                for (int j = 0; j < N; j++)
                    signal +=
                        (double)source[r * N + i] * s.plain[i * N + j] * (double)source[r * N + j];
            }
        }
        for (int i = 0; i < N; i++) s.plain[i * N + i] += s.h->damping;
        assert_true(fabs(other.error / error - 1) < 1e-6);
        assert_true(fabs(other.signal / signal - 1) < 1e-6);
        assert_true(other.error > 1.05 * same.error);
        dq_codes_free(c);
    }
    sums_free(&s);
}

/* A row whose corrected scales F16 does not hold stays as it was, and is counted. */
TEST(rows_that_do_not_fit_are_counted)
{
    static float w[M * N], before[M * N];
    dq_err err = {0};
    dq_reference r = {.of_inputs = false};
    int64_t kept;
    for (int i = 0; i < M * N; i++) before[i] = w[i] = uniform();
    assert_int_equal(dq_cross_new(&r.sums, M, N, ROWS_AT_ONCE, &err), DQ_OK);
    dq_cross_begin(r.sums, M, N);
    for (int i = 0; i < M; i++) r.sums->c[i * r.sums->ld + 3] = i == 5 || i == 60 ? 1e7 : 0.5;
    dq_quant_spec spec = {4, 50, DQ_SEARCH, DQ_F16, NULL};
    assert_int_equal(dq_reference_correct(&r, w, 0, M, &spec, &kept, &err), DQ_OK);
    assert_int_equal(kept, 2);
    for (int i = 0; i < M; i++) {
        const bool same = memcmp(w + i * N, before + i * N, sizeof *w * N) == 0;
        assert_true(same == (i == 5 || i == 60));
    }
    memcpy(w, before, sizeof w);
    spec.scale_dtype = DQ_F32;
    assert_int_equal(dq_reference_correct(&r, w, 0, M, &spec, &kept, &err), DQ_OK);
    assert_int_equal(kept, 0);
    assert_true(w[5 * N + 3] > 9e6f);
    dq_cross_free(r.sums);
}

/* Rows are corrected by their own sums, whichever band they come in, and nothing after the band is written. */
TEST(corrected_bands_are_the_whole)
{
    enum { BAND = 32 };
    const dq_quant_spec spec = {4, 50, DQ_SEARCH, DQ_F16, NULL};
    static float x[ROWS * N], a[ROWS * M], w[M * N], whole[M * N];
    inputs(x, a);
    for (int i = 0; i < M * N; i++) w[i] = uniform();
    for (int k = 0; k < 2; k++) {
        dq_err err = {0};
        int64_t kept;
        sums s = sums_of(x, k ? x : a, k ? N : M, 2);
        const dq_reference r = {.of_inputs = k == 1, .sums = s.c};
        assert_int_equal(dq_correction_solve(s.c, s.h, &err), DQ_OK);
        memcpy(whole, w, sizeof w);
        assert_int_equal(dq_reference_correct(&r, whole, 0, M, &spec, &kept, &err), DQ_OK);
        assert_memory_not_equal(whole, w, sizeof w);
        for (int64_t first = 0; first < M; first += BAND) {
            const int64_t rows = M - first < BAND ? M - first : BAND;
            const size_t bytes = sizeof *w * (size_t)(rows * N);
            float *band = malloc(bytes); /* no more than that */
            memcpy(band, w + first * N, bytes);
            assert_int_equal(dq_reference_correct(&r, band, first, rows, &spec, &kept, &err),
                             DQ_OK);
            assert_memory_equal(band, whole + first * N, bytes);
            free(band);
        }
        sums_free(&s);
    }
}

/* Rows that a product does not have. */
TEST(outputs_are_those_of_the_product)
{
    float w[2] = {1, 1};
    dq_err err = {0};
    dq_cross *c;
    assert_int_equal(dq_cross_new(&c, 3, 1, ROWS_AT_ONCE, &err), DQ_OK);
    dq_cross_begin(c, 3, 1);
    for (int i = 0; i < 3; i++) c->c[i * c->ld] = 10 * (i + 1);
    assert_int_equal(dq_correction_of_outputs(w, 1, 2, c, &err), DQ_OK);
    assert_true(w[0] == 21 && w[1] == 31);
    assert_int_equal(dq_correction_of_outputs(w, 2, 2, c, &err), DQ_BUG);
    dq_cross_free(c);
}

TEST(sums_must_be_finite)
{
    static float x[ROWS * N], a[ROWS * M];
    dq_err err = {0};
    dq_cross *c;
    inputs(x, a);
    a[77] = NAN;
    dq_backend *b = given_backend(1);
    assert_int_equal(dq_cross_new(&c, M, N, ROWS_AT_ONCE, &err), DQ_OK);
    dq_cross_begin(c, M, N);
    assert_int_equal(dq_cross_add(c, b, (dq_mat){a, ROWS, M}, (dq_mat){x, ROWS, N},
                                  (dq_tile_sums_rows){DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES}, &err),
                     DQ_OK);
    dq_cross_mean(c, "layer 3, down", &err);
    check_error(&err, DQ_DAMAGED, "layer 3, down");
    dq_cross_free(c);
    dq_backend_close(b);
}
