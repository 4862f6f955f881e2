/* Rows that share one reading of keys and values after a long context: every bit is that of the row by itself, whatever rows
 * stand beside it, on any number of threads, with one map and two, with heads that share a KV head, up to the edge that a row
 * sees and with rounded logits. How much memory such blocks take.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/pairings.h"
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "kernels/cpu/attention/cpu_attention.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The context ends within a page, and the rows begin and end within tiles. */
enum { D = 16, N_Q = 8, KEYS = 8549, ROWS = 150 };

typedef struct scene {
    dq_head_order map;
    dq_attn attn;
    dq_backend *b;
    dq_kv *kv;
    int32_t seq, *pos;
    float *q, *k, *v, absmax[N_Q];
} scene;

/* Of magnitudes up to 2; the last keys of the context are the largest, which rows see one after the other. */
static float *invented(int64_t n, int64_t cols, uint64_t seed)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(seed >> 40) * 0x1p-22f - 2.0f;
        if (i / cols < KEYS - 2 * ROWS) x[i] *= 0.25f;
    }
    return x;
}

static scene *scene_new(dq_pairing pairing, int n_kv, int threads)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->map = pairings_map(pairing, N_Q, n_kv, D);
    s->b = given_backend(threads);
    s->attn = pairings_attn(&s->map, 0.6f);
    s->q = invented((int64_t)ROWS * N_Q * D, N_Q * D, 1);
    s->k = invented((int64_t)KEYS * n_kv * D, n_kv * D, 2);
    s->v = invented((int64_t)KEYS * n_kv * D, n_kv * D, 3);
    s->pos = malloc(KEYS * sizeof *s->pos);
    assert_non_null(s->pos);
    for (int32_t i = 0; i < KEYS; i++) s->pos[i] = i;
    s->kv = s->b->ops->kv_new(s->b, &s->map, 1, &dq_kv_plain);
    s->seq = s->b->ops->kv_seq_new(s->b, s->kv);
    const int64_t cu[2] = {0, KEYS};
    const dq_batch batch = {1, KEYS, cu, &s->seq, s->pos, s->pos};
    s->b->ops->kv_append(s->b, s->kv, 0, &batch, (dq_mat){s->k, KEYS, n_kv * D},
                         (dq_mat){s->v, KEYS, n_kv * D}, DQ_NUM_F32);
    return s;
}

static void scene_free(scene *s)
{
    dq_err err = {0};
    assert_int_equal(dq_backend_sync(s->b, &err), DQ_OK);
    s->b->ops->kv_free(s->b, s->kv);
    dq_backend_close(s->b);
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->pos);
    free(s);
}

/* The last ROWS rows, in calls of `step` rows. find: the largest logits of the one call are found first. */
static float *attend(scene *s, dq_logit_spec logit, int64_t step, bool find)
{
    const int64_t cols = (int64_t)s->map.n_out * s->map.n_slabs * D;
    float *y = malloc((size_t)(ROWS * cols) * sizeof *y);
    assert_non_null(y);
    for (int64_t done = 0; done < ROWS; done += step) {
        const int64_t n = ROWS - done < step ? ROWS - done : step, cu[2] = {0, n};
        const int32_t *pos = s->pos + KEYS - ROWS + done;
        const dq_batch batch = {1, n, cu, &s->seq, pos, pos};
        dq_attend_args args = {.attn = &s->attn,
                               .batch = &batch,
                               .kv = s->kv,
                               .q = {s->q + done * N_Q * D, n, N_Q * D},
                               .logit = logit};
        if (dq_logit_needs_absmax(logit)) {
            if (find) s->b->ops->attn_absmax(s->b, s->absmax, &args);
            args.absmax = s->absmax;
        }
        s->b->ops->attend(s->b, (dq_mat){y + done * cols, n, cols}, &args);
    }
    return y;
}

static void rows_stay_themselves(dq_pairing pairing, int n_kv, dq_logit_spec logit)
{
    static const int64_t steps[] = {1, 7, 16, 64, 100};
    scene *one = scene_new(pairing, n_kv, 1), *three = scene_new(pairing, n_kv, 3);
    const size_t n = (size_t)ROWS * (size_t)(one->map.n_out * one->map.n_slabs * D);
    float *whole = attend(one, logit, ROWS, true);
    memcpy(three->absmax, one->absmax, sizeof one->absmax);
    for (int i = 0; i < 5; i++) {
        float *part = attend(i % 2 ? three : one, logit, steps[i], false);
        assert_memory_equal(whole, part, n * sizeof *part);
        free(part);
    }
    float *threads = attend(three, logit, ROWS, true);
    assert_memory_equal(whole, threads, n * sizeof *threads);
    assert_memory_equal(one->absmax, three->absmax, sizeof one->absmax);
    free(threads);
    free(whole);
    scene_free(one);
    scene_free(three);
}

TEST(rows_do_not_depend_on_neighbours)
{
    const dq_logit_spec exact = {16, DQ_GRANULARITY_TENSOR};
    rows_stay_themselves(DQ_PAIR_HALVES, N_Q, exact);
    rows_stay_themselves(DQ_PAIR_HALVES, 2, exact);
    rows_stay_themselves(DQ_PAIR_ADJACENT, 4, exact);
    rows_stay_themselves(DQ_PAIR_SHARED_KV, 4, exact);
    rows_stay_themselves(DQ_PAIR_NONE, N_Q, exact);
    rows_stay_themselves(DQ_PAIR_NONE, 2, exact);
}

TEST(rounded_rows_do_not_either)
{
    rows_stay_themselves(DQ_PAIR_HALVES, 4, (dq_logit_spec){8, DQ_GRANULARITY_ROW});
    rows_stay_themselves(DQ_PAIR_HALVES, 4, (dq_logit_spec){6, DQ_GRANULARITY_HEAD});
}

/* y = (P1 - lambda P2) V of one row in f64. */
static void row_is_right(const scene *s, const float *y, int64_t row, int out)
{
    const int64_t keys = KEYS - ROWS + row + 1, kv = s->map.n_kv * D;
    const dq_head *h = &s->map.head[out];
    double *p = calloc((size_t)keys, sizeof *p), *e = malloc((size_t)keys * sizeof *e);
    for (int m = 0; m < s->map.n_maps; m++) {
        double max = -1e30, sum = 0;
        for (int64_t i = 0; i < keys; i++) {
            e[i] = 0;
            for (int c = 0; c < D; c++)
                e[i] += (double)s->q[row * N_Q * D + h->q[m] * D + c] *
                        (double)s->k[i * kv + s->map.key[h->q[m]] * D + c];
            e[i] *= (double)s->map.scale;
            max = e[i] > max ? e[i] : max;
        }
        for (int64_t i = 0; i < keys; i++) sum += e[i] = exp(e[i] - max);
        for (int64_t i = 0; i < keys; i++) p[i] += e[i] / sum * (m ? -(double)s->attn.lambda : 1.0);
    }
    for (int c = 0; c < s->map.n_slabs * D; c++) {
        double want = 0;
        for (int64_t i = 0; i < keys; i++)
            want += p[i] * (double)s->v[i * kv + h->v[c / D] * D + c % D];
        assert_true(fabs(want - (double)y[out * s->map.n_slabs * D + c]) < 2e-5);
    }
    free(p);
    free(e);
}

TEST(rows_see_what_they_should)
{
    static const int64_t rows[] = {0,  48,  49,  63,
                                   64, 112, 113, ROWS - 1}; /* tiles begin at 49, 113 */
    scene *s = scene_new(DQ_PAIR_HALVES, 4, 2);
    float *y = attend(s, (dq_logit_spec){16, DQ_GRANULARITY_TENSOR}, ROWS, false);
    assert_int_equal((KEYS - ROWS + 49) % DQ_PAGE_TOKENS, 0);
    for (int i = 0; i < 8; i++) {
        for (int out = 0; out < s->map.n_out; out++)
            row_is_right(s, y + rows[i] * s->map.n_out * s->map.n_slabs * D, rows[i], out);
    }
    free(y);
    scene_free(s);
}

/* Pieces of work, each of which calls one of these; the first one is interrupted. */
static const dq_simd *usual;
static atomic_int pieces;

static void count_piece(void)
{
    if (atomic_fetch_add(&pieces, 1) == 0) raise(SIGINT);
}

static void counted_scale(float *x, int64_t n, float a)
{
    count_piece();
    usual->scale(x, n, a);
}

static float counted_absmax(const float *x, int64_t n)
{
    count_piece();
    return usual->absmax(x, n);
}

typedef enum interrupted { ATTEND, ATTEND_IN_ORDER, ABSMAX, OBSERVE, N_INTERRUPTED } interrupted;

/* How many pieces an operation on the last ROWS rows has. stops: and is interrupted in the first. */
static int count_pieces(scene *s, interrupted what, bool stops)
{
    static double mass[N_Q * KEYS];
    int64_t cu[2] = {0, ROWS}, offset[N_Q];
    const int64_t cols = (int64_t)s->map.n_out * s->map.n_slabs * D;
    const int32_t *pos = s->pos + KEYS - ROWS;
    const dq_batch batch = {1, ROWS, cu, &s->seq, pos, pos};
    const dq_columns columns = {.offset = offset, .mass = {mass}};
    const dq_attend_args args = {.attn = &s->attn,
                                 .batch = &batch,
                                 .kv = s->kv,
                                 .q = {s->q, ROWS, N_Q * D},
                                 .logit = {16, DQ_GRANULARITY_TENSOR},
                                 .columns = what == ATTEND_IN_ORDER ? &columns : NULL};
    float *y = malloc((size_t)(ROWS * cols) * sizeof *y);
    dq_tally tally;
    dq_err err = {0};
    assert_int_equal(dq_tally_init(&tally, &err), DQ_OK);
    for (int g = 0; g < s->map.n_groups; g++) offset[g] = (int64_t)g * KEYS;
    dq_os_catch_signals();
    atomic_store(&pieces, stops ? 0 : 1);
    if (what == ABSMAX)
        s->b->ops->attn_absmax(s->b, s->absmax, &args);
    else if (what == OBSERVE)
        s->b->ops->attn_observe(s->b, &tally, &args, 0);
    else
        s->b->ops->attend(s->b, (dq_mat){y, ROWS, cols}, &args);
    assert_int_equal(dq_backend_sync(s->b, &err), stops ? DQ_STOPPED : DQ_OK);
    if (stops) assert_int_equal(tally.n, 0);
    dq_os_clear_stop();
    dq_tally_free(&tally);
    free(y);
    return atomic_load(&pieces);
}

/* What threads have begun is ended, and nothing is begun after that. */
TEST(a_signal_is_heard_between_pieces)
{
    for (int threads = 1; threads <= 2; threads++) {
        for (int what = 0; what < N_INTERRUPTED; what++) {
            scene *s = scene_new(DQ_PAIR_NONE, 4, threads);
            dq_cpu *cpu = dq_cpu_of(s->b);
            dq_simd counting = *(usual = cpu->simd);
            counting.scale = counted_scale;
            counting.absmax = counted_absmax;
            cpu->simd = &counting;
            s->attn.out_scale = 0.5f;
            const int all = count_pieces(s, (interrupted)what, false);
            const int some = count_pieces(s, (interrupted)what, true);
            assert_true(some * 4 < all);
            cpu->simd = usual;
            scene_free(s);
        }
    }
}

TEST(a_product_hears_it_too)
{
    static float x[4 * 64], w[64 * 64], y[4 * 64];
    dq_err err = {0};
    dq_backend *b = given_backend(2);
    const dq_weight weight = dq_weight_of_f32("w", 64, 64, w);
    for (int i = 0; i < 4 * 64; i++) y[i] = 7;
    dq_os_catch_signals();
    raise(SIGINT);
    b->ops->matmul(b, (dq_mat){y, 4, 64}, (dq_mat){x, 4, 64}, &weight, NULL, DQ_NUM_F32);
    assert_int_equal(dq_backend_sync(b, &err), DQ_STOPPED);
    for (int i = 0; i < 4 * 64; i++) assert_true(y[i] == 7);
    dq_os_clear_stop();
    dq_backend_close(b);
}

/* 64 rows share a reading as long as their scores take 64 MiB, fewer after longer contexts, 16 always. */
TEST(blocks_are_bounded)
{
    for (int64_t keys = 1; keys <= 1 << 21; keys *= 2) {
        for (int64_t maps = 1; maps <= 2; maps++) {
            const int64_t rows = dq_cpu_block_rows(keys, maps);
            const int64_t wanted = keys * maps <= 1 << 18 ? 64 : keys * maps <= 1 << 19 ? 32 : 16;
            assert_int_equal(rows, wanted);
        }
    }
}
