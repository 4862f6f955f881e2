/* test_correction: weights corrected for what rounding did before them are the least squares solution that a plain elimination
 * gives; scales found anew from codes solve their row's system, and never make a rounding worse; the same bytes for any
 * number of threads.
 * SPDX-License-Identifier: MIT */
#include "calibrate/correction.h"
#include "calibrate/gptq.h"
#include "calibrate/scale_refit.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 150, M = 70, ROWS = 2500 };

static uint64_t state = 88172645463325252u;
static float uniform(void) /* -1 .. 1 */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)((double)(state >> 11) / 4503599627370496.0 - 1);
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
    dq_backend *b;
    sums s;
    omp_set_num_threads(threads);
    assert_int_equal(dq_backend_open(&b, "cpu", threads, &err), DQ_OK);
    assert_int_equal(dq_hessian_new(&s.h, N, &err), DQ_OK);
    assert_int_equal(dq_cross_new(&s.c, m, N, &err), DQ_OK);
    dq_hessian_begin(s.h, N);
    dq_cross_begin(s.c, m, N);
    dq_hessian_add(s.h, b, (dq_mat){x, ROWS, N});
    dq_cross_add(s.c, b, (dq_mat){a, ROWS, m}, (dq_mat){x, ROWS, N});
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
static void solution_solves(void **unused)
{
    static float x[ROWS * N], a[ROWS * M];
    dq_err err = {0};
    (void)unused;
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
static void corrected_weights_are_nearest(void **unused)
{
    static float x[ROWS * N], a[ROWS * M], d[ROWS * N], w[M * N], fixed[M * N], same[M * N];
    dq_err err = {0};
    (void)unused;
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
    assert_int_equal(dq_gptq(&c, w, M, N, h, spec, refits, loss, &err), DQ_OK);
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

static void refitted_scales_are_least(void **unused)
{
    static const struct {
        int bits;
        int64_t group;
        dq_scale_mode mode;
    } all[] = {
        {3, 32, DQ_SEARCH}, {4, DQ_GROUP_ROW, DQ_ABSMAX}, {2, 64, DQ_ASYM}, {3, 50, DQ_FULLRANGE}};
    static float x[ROWS * N], a[ROWS * M], w[M * N];
    (void)unused;
    inputs(x, a);
    for (int i = 0; i < M * N; i++) w[i] = uniform() * (i / N % 3 ? 1.0f : 0.1f);
    memset(w + 5 * N, 0, sizeof *w * N); /* a row of zeros */
    sums s = sums_of(x, a, M, 2);
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const dq_quant_spec spec = {all[k].bits, all[k].group, all[k].mode, DQ_F32};
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
static void one_scale_stays(void **unused)
{
    static float x[ROWS * N], a[ROWS * M], w[M * N];
    const dq_quant_spec spec = {4, DQ_GROUP_TENSOR, DQ_SEARCH, DQ_F16};
    dq_err err = {0};
    (void)unused;
    inputs(x, a);
    for (int i = 0; i < M * N; i++) w[i] = uniform();
    sums s = sums_of(x, a, M, 2);
    dq_codes *c = rounded(w, s.h, &spec, 2, NULL);
    const float scale = c->grid[0].scale;
    assert_int_equal(dq_scale_refit(c, w, s.h, &err), DQ_OK);
    assert_true(c->grid[0].scale == scale);
    dq_codes_free(c);
    sums_free(&s);
}

static void sums_must_be_finite(void **unused)
{
    static float x[ROWS * N], a[ROWS * M];
    dq_err err = {0};
    dq_backend *b;
    dq_cross *c;
    (void)unused;
    inputs(x, a);
    a[77] = NAN;
    assert_int_equal(dq_backend_open(&b, "cpu", 1, &err), DQ_OK);
    assert_int_equal(dq_cross_new(&c, M, N, &err), DQ_OK);
    dq_cross_begin(c, M, N);
    dq_cross_add(c, b, (dq_mat){a, ROWS, M}, (dq_mat){x, ROWS, N});
    assert_int_equal(dq_cross_mean(c, "layer 3, down", &err), DQ_DAMAGED);
    assert_non_null(strstr(err.text, "layer 3, down"));
    dq_cross_free(c);
    dq_backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(solution_solves),
        cmocka_unit_test(corrected_weights_are_nearest),
        cmocka_unit_test(refitted_scales_are_least),
        cmocka_unit_test(one_scale_stays),
        cmocka_unit_test(sums_must_be_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
