/* test_kv: the KV cache with codes, through the backend's operations: every width against an oracle
 * in f64 that reads tokens as if they had come one by one, and what must never show in a bit.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/kv_stage.h"
#include "tests/rigs/pairings.h"
#include "tests/rigs/suite.h"

static const int k_widths[] = {16, 8, 6, 4}, v_widths[] = {16, 8, 6, 4, 3, 2};
enum { N_WIDTHS = 4 * 6 };

/* the tests run with per-token codes, with per-channel codes, with mixed ones, with the first two and what is not coded in two bytes */
static bool pages, half, mixed;

/* Widths, groups and windows of the i-th case. */
static dq_kv_spec spec_of(int i)
{
    static const int groups[] = {32, 7, 1, 1000, 24}, sinks[] = {4, 0, 70, 1},
                     recents[] = {64, 0, 30, 100}, widths[] = {4, 5, 16, 3, 8, 2, 6};
    dq_kv_spec spec = dq_kv_plain;
    spec.k_bits = k_widths[i % 4];
    spec.v_bits = v_widths[i / 4 % 6];
    spec.group = groups[i % 5];
    if (half) spec.dense = i % 2 ? DQ_KV_BF16 : DQ_KV_F16;
    if (pages && !(half && i % 4 < 2)) {
        spec.quant = mixed ? DQ_KV_MIXED : i % 3 ? DQ_KV_DITHER : DQ_KV_PER_CHANNEL;
        spec.k_bits = widths[i % 7];
        spec.v_bits = widths[(i + i / 7) % 6];
    }
    spec.sink = sinks[i / 2 % 4];
    spec.recent = recents[i / 3 % 4];
    return spec;
}

/* Prefill, chunks, single tokens and a second sequence from far positions. */
TEST(every_width_and_map)
{
    static const int dims[] = {32, 64, 24, 80, 128};
    for (int i = 0; i < N_WIDTHS * N_PAIRINGS; i++) {
        stage s;
        if (!test_runs(i, 11) || (pages && i % 2)) continue;
        open_stage(&s, pairings[i % N_PAIRINGS], dims[i % 5], spec_of(i / N_PAIRINGS), 2);
        int32_t a = new_seq(&s, 1, 0), b = new_seq(&s, 2, 60000);
        stream(&s, a, 90);
        begin_batch(&s);
        add_rows(&s, b, 75);
        add_rows(&s, a, 20);
        append(&s);
        if (i % 4 == 0) check_attend(&s);
        compact_stage(&s);
        stream(&s, b, 60);
        stream(&s, a, 80);
        begin_batch(&s);
        add_rows(&s, a, 6);
        add_rows(&s, b, 3);
        append(&s);
        check_attend(&s);
        compact_stage(&s);
        stream_checked(&s, a, 1);
        stream_checked(&s, b, 1);
        close_stage(&s);
    }
}

/* The oracle gets what the model would: rotated queries, keys and values. */
TEST(rotation_is_undone)
{
    for (int i = 0; i < 4; i++) {
        dq_kv_spec spec = spec_of(5 * i);
        spec.rotate_k = i % 2 == 0;
        spec.rotate_v = i < 3;
        stage s;
        open_stage(&s, pairings[i + 1], i % 2 ? 128 : 32, spec, 2);
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 200);
        stream_checked(&s, a, 20);
        close_stage(&s);
    }
}

enum { TOKENS = 230 };

typedef struct way {
    int chunk, threads, bits;
    bool settles, company, forks; /* goes on in a fork now and then, and drops the parent */
} way;

/* Outputs of TOKENS tokens of one sequence, all rows. */
static float *in_chunks(dq_pairing pairing, int head_dim, dq_kv_spec spec, int32_t start, way w)
{
    stage s;
    open_stage(&s, pairing, head_dim, spec, w.threads);
    int32_t a = new_seq(&s, 1, start), other = new_seq(&s, 9, 0);
    const size_t row = (size_t)out_cols(&s);
    float *out = calloc(TOKENS * row, sizeof *out);
    for (int at = 0; at < TOKENS; at += w.chunk) {
        const int n = TOKENS - at < w.chunk ? TOKENS - at : w.chunk, before = w.company ? 3 : 0;
        begin_batch(&s);
        if (before) add_rows(&s, other, before);
        add_rows(&s, a, n);
        append(&s);
        attend(&s, w.bits);
        if (w.settles) compact_stage(&s);
        memcpy(out + (size_t)at * row, s.out + (size_t)before * row, (size_t)n * row * sizeof *out);
        if (w.forks && at / w.chunk % 3 == 1) {
            int32_t fork = fork_seq(&s, a, 1);
            stream(&s, a, 5); /* the parent goes another way */
            s.b->ops->kv_seq_free(s.b, s.kv, a);
            for (int g = 0; g < s.map.n_groups; g++) s.oracle->list[a][g].n = 0;
            a = fork;
        }
    }
    close_stage(&s);
    return out;
}

TEST(nothing_shows_in_the_bits)
{
    static const way ways[] = {{1, 1, 0, true, false, true},
                               {7, 2, 0, true, true, true},
                               {64, 2, 0, false, false, false},
                               {100, 1, 0, true, true, false}};
    for (int i = 0; i < 14; i++) {
        if (!test_runs(i, 5)) continue;
        const dq_pairing pairing = pairings[i % N_PAIRINGS];
        const int d = i % 3 == 0 ? 80 : 32, bits = i % 2 ? 16 : 4;
        const int32_t start = i % 4 == 3 ? 60000 : 0;
        const dq_kv_spec spec = spec_of(1 + 5 * i);
        const way whole = {TOKENS, 1, bits, false, false, false};
        float *want = in_chunks(pairing, d, spec, start, whole);
        const dq_head_order map = pairings_map(pairing, N_Q, N_KV, d);
        const size_t n = (size_t)TOKENS * (size_t)(map.n_out * map.n_slabs * d);
        for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
            way w = ways[k];
            w.bits = bits;
            float *got = in_chunks(pairing, d, spec, start, w);
            assert_memory_equal(got, want, n * sizeof *want);
            free(got);
        }
        free(want);
    }
}

/* Some of the first n tokens, others for every group; sinks and the last ones mostly. */
static int64_t choose(int32_t *kept, int n, int group, int sparse)
{
    int64_t n_kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i < 4 || i >= n - 70 || mix((uint32_t)(i + 1000 * group)) % (uint32_t)sparse == 0)
            kept[n_kept++] = i;
    }
    return n_kept;
}

/* What follows eviction, in chunks; whether pages were compacted before must not matter. */
static float *after_keep(dq_pairing pairing, dq_kv_spec spec, int chunk, bool compacted, bool check)
{
    stage s;
    open_stage(&s, pairing, 32, spec, 2);
    int32_t a = new_seq(&s, 1, 0);
    const size_t row = (size_t)out_cols(&s);
    float *out = calloc(150 * row, sizeof *out);
    begin_batch(&s);
    add_rows(&s, a, 300);
    append(&s);
    attend(&s, 16);
    if (compacted) compact_stage(&s);
    for (int round = 0; round < 2; round++) {
        for (int g = 0; g < s.map.n_groups; g++) {
            int32_t kept[450];
            const int64_t cached = s.b->ops->kv_count(s.b, s.kv, a, 0, g, NULL);
            keep(&s, a, g, kept, choose(kept, (int)cached, g, 3 + round));
        }
        for (int at = 75 * round; at < 75 * (round + 1); at += chunk) {
            const int left = 75 * (round + 1) - at, n = left < chunk ? left : chunk;
            begin_batch(&s);
            add_rows(&s, a, n);
            append(&s);
            if (check) check_attend(&s);
            if (!check) attend(&s, 16);
            if (compacted || check) compact_stage(&s);
            memcpy(out + (size_t)at * row, s.out, (size_t)n * row * sizeof *out);
        }
    }
    close_stage(&s);
    return out;
}

TEST(kept_tokens_go_on)
{
    for (int i = 0; i < 12; i++) {
        if (!test_runs(i, 5)) continue;
        const dq_pairing pairing = pairings[i % N_PAIRINGS];
        const dq_kv_spec spec = spec_of(1 + 3 * i);
        const dq_head_order map = pairings_map(pairing, N_Q, N_KV, 32);
        const size_t n = 150 * (size_t)(map.n_out * map.n_slabs * 32) * sizeof(float);
        float *want = after_keep(pairing, spec, 75, true, true);
        for (int k = 0; k < 3; k++) {
            float *got = after_keep(pairing, spec, k == 0 ? 1 : 40, k < 2, false);
            assert_memory_equal(got, want, n);
            free(got);
        }
        free(want);
    }
}

/* Positions that a rewind may go back to are those whose window is still unquantized. */
TEST(rewind_drops_or_refuses)
{
    dq_kv_spec spec = {.k_bits = 4, .v_bits = 3, .group = 32, .sink = 4, .recent = 64};
    stage s;
    if (pages) spec.quant = mixed ? DQ_KV_MIXED : DQ_KV_PER_CHANNEL;
    open_stage(&s, DQ_PAIR_HALVES, 32, spec, 2);
    int32_t a = new_seq(&s, 1, 0);
    stream(&s, a, 200); /* position 200 reads 4..127 as codes */
    int32_t b = fork_seq(&s, a, 2);
    s.b->ops->kv_rewind(s.b, s.kv, b, 191); /* the first that reads so many */
    dq_oracle_rewind(s.oracle, b, 191);
    s.length[b] = 191;
    expect_no_error(&s);
    stream_checked(&s, b, 30);
    dq_err err = {0};
    s.b->ops->kv_rewind(s.b, s.kv, a, 190);
    assert_int_equal(dq_backend_sync(s.b, &err), DQ_BUG);
    assert_int_equal(s.b->ops->kv_count(s.b, s.kv, a, 0, 0, NULL), 200);
    s.b->ops->kv_rewind(s.b, s.kv, a, 3); /* sinks are always there */
    dq_oracle_rewind(s.oracle, a, 3);
    s.length[a] = 3;
    s.tag[a] = 7;
    expect_no_error(&s);
    stream_checked(&s, a, 1);
    stream_checked(&s, a, 140);
    stream_checked(&s, a, 80);
    int32_t c = fork_seq(&s, a, 3);
    s.b->ops->kv_rewind(s.b, s.kv, c, 0);
    dq_oracle_rewind(s.oracle, c, 0);
    s.length[c] = 0;
    assert_int_equal(s.b->ops->kv_count(s.b, s.kv, c, 0, 1, NULL), 0);
    stream_checked(&s, c, 150);
    stream_checked(&s, a, 5);
    close_stage(&s);
}

/* What others wrote into a page, and codes that were made of it, are gone when a sequence goes on from its middle. */
TEST(pages_are_coded_again)
{
    for (int i = 0; i < 6; i++) {
        stage s;
        if (!test_runs(i, 3)) continue;
        dq_kv_spec spec = spec_of(i);
        spec.sink = i % 3;
        spec.recent = i % 2 ? 0 : 5;
        open_stage(&s, pairings[i], 32, spec, 2);
        int32_t a = new_seq(&s, 1, i % 2 ? 60000 : 0);
        const int32_t first = s.length[a];
        begin_batch(&s);
        add_rows(&s, a, 200);
        append(&s); /* codes are there, and what they were made of */
        int32_t b = fork_seq(&s, a, 2);
        s.b->ops->kv_rewind(s.b, s.kv, b, first + 100);
        dq_oracle_rewind(s.oracle, b, first + 100);
        s.length[b] = first + 100;
        stream_checked(&s, b, 1);
        begin_batch(&s);
        add_rows(&s, b, 100);
        append(&s);
        check_attend(&s);
        stream_checked(&s, a, 70);
        s.b->ops->kv_rewind(s.b, s.kv, b, first + 195);
        dq_oracle_rewind(s.oracle, b, first + 195);
        s.length[b] = first + 195;
        s.tag[b] = 3;
        stream_checked(&s, b, 80);
        close_stage(&s);
    }
}

/* Forks that need the same page as codes at different times. */
TEST(forks_part)
{
    for (int i = 0; i < 8; i++) {
        stage s;
        if (!test_runs(i, 3)) continue;
        open_stage(&s, pairings[i % N_PAIRINGS], 24, spec_of(2 + 3 * i), 2);
        int32_t a = new_seq(&s, 1, i % 2 ? 60000 : 0);
        stream(&s, a, 150);
        int32_t b = fork_seq(&s, a, 2), c = fork_seq(&s, b, 3);
        stream_checked(&s, b, 90);
        stream_checked(&s, a, 1);
        begin_batch(&s);
        add_rows(&s, c, 70);
        add_rows(&s, a, 66);
        append(&s);
        check_attend(&s);
        compact_stage(&s);
        s.b->ops->kv_seq_free(s.b, s.kv, b);
        stream_checked(&s, c, 3);
        stream_checked(&s, a, 70);
        close_stage(&s);
    }
}

/* Keys whose width goes by their map, before and after tokens are dropped. */
TEST(widths_by_map)
{
    static const dq_pairing own_keys[] = {DQ_PAIR_ADJACENT, DQ_PAIR_HALVES, DQ_PAIR_GROUPED};
    static const char *const widths[] = {"5+3:6", "2+8:3", "4+6:16", "6+4:2"};
    for (int i = 0; i < 12 && pages; i++) {
        dq_kv_spec spec = with_widths(spec_of(1 + 3 * i), widths[i % 4], 1);
        if (spec.quant == DQ_KV_PER_TOKEN) spec.quant = DQ_KV_PER_CHANNEL;
        stage s;
        if (!test_runs(i, 5)) continue;
        open_stage(&s, own_keys[i % 3], i % 2 ? 80 : 32, spec, 2);
        int32_t a = new_seq(&s, 1, i % 4 ? 0 : 60000);
        stream(&s, a, 200);
        stream_checked(&s, a, 9);
        close_stage(&s);
        float *want = after_keep(own_keys[i % 3], spec, 75, true, true);
        free(want);
    }
}

TEST(key_norms_read_as_a_query_does)
{
    for (int i = 1; i < 12; i += 5) {
        stage s;
        double got[300];
        open_stage(&s, DQ_PAIR_ADJACENT, 24, spec_of(i), 1);
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 210);
        for (int g = 0; g < s.map.n_groups; g++) {
            const dq_oracle_list *l = &s.oracle->list[a][g];
            s.b->ops->kv_key_norms(s.b, s.kv, a, 0, g, 210, got);
            expect_no_error(&s);
            for (int64_t t = 0; t < 210; t++) {
                double want = 0;
                for (int j = 0; j < N_KV; j++) {
                    const float *k = dq_oracle_key(s.oracle, l, t, j, 210);
                    for (int c = 0; s.map.group[j] == g && c < 24; c++)
                        want += (double)k[c] * (double)k[c];
                }
                assert_true(fabs(got[t] - want) <= 1e-12 * want);
            }
        }
        close_stage(&s);
    }
}

/* x (X'X + .01 I)^-1 x' of n rows of `cols`, by Gauss and Jordan. */
static void slow_leverages(double *out, const double *x, int n, int cols)
{
    double *g = calloc((size_t)(cols * 2 * cols), sizeof *g);
    const int w = 2 * cols;
    for (int i = 0; i < cols; i++) {
        for (int j = 0; j < cols; j++) {
            for (int t = 0; t < n; t++) g[i * w + j] += x[t * cols + i] * x[t * cols + j];
        }
        g[i * w + i] += 0.01;
        g[i * w + cols + i] = 1;
    }
    for (int i = 0; i < cols; i++) {
        const double unit = 1 / g[i * w + i];
        for (int c = 0; c < w; c++) g[i * w + c] *= unit;
        for (int j = 0; j < cols; j++) {
            const double f = g[j * w + i];
            for (int c = 0; j != i && c < w; c++) g[j * w + c] -= f * g[i * w + c];
        }
    }
    for (int t = 0; t < n; t++) {
        out[t] = 0;
        for (int i = 0; i < cols; i++) {
            for (int j = 0; j < cols; j++)
                out[t] += x[t * cols + i] * g[i * w + cols + j] * x[t * cols + j];
        }
    }
    free(g);
}

static dq_rope rope_of(float *freq, int dim)
{
    for (int c = 0; c < dim / 2; c++) freq[c] = powf(100.0f, -2.0f * (float)c / (float)dim);
    return (dq_rope){.dim = dim, .inv_freq = freq, .amplitude = 1.25f};
}

/* A stored key as it was before the Hadamard rotation, if there is one, and before RoPE of pairs (c, c + half). */
static void key_before(double *to, const float *k, int dim, const dq_rope *rope, bool rotated,
                       int32_t pos)
{
    double turned[64];
    for (int c = 0; c < dim; c++) {
        turned[c] = rotated ? 0 : (double)k[c];
        for (int j = 0; rotated && j < dim; j++)
            turned[c] +=
                (double)k[j] * (__builtin_popcount((unsigned)(c & j)) % 2 ? -1 : 1) / sqrt(dim);
    }
    for (int c = 0; c < dim / 2; c++) {
        const double angle = (double)((float)pos * rope->inv_freq[c]);
        const double lo = turned[c], hi = turned[c + dim / 2], a = (double)rope->amplitude;
        to[c] = (lo * cos(angle) + hi * sin(angle)) / a;
        to[c + dim / 2] = (hi * cos(angle) - lo * sin(angle)) / a;
    }
}

/* A stored value as it was before the Hadamard rotation, if there is one. */
static void value_before(double *to, const float *v, int dim, bool rotated)
{
    for (int c = 0; c < dim; c++) {
        to[c] = rotated ? 0 : (double)v[c];
        for (int j = 0; rotated && j < dim; j++)
            to[c] +=
                (double)v[j] * (__builtin_popcount((unsigned)(c & j)) % 2 ? -1 : 1) / sqrt(dim);
    }
}

TEST(leverages_are_of_keys_before_rope)
{
    enum { D = 32, N = 210 };
    float freq[D / 2];
    const dq_rope rope = rope_of(freq, D);
    for (int i = 0; i < 2; i++) {
        stage s;
        double got[N], want[N];
        dq_kv_spec spec = spec_of(1);
        spec.rotate_k = i == 1;
        if (!test_runs(i, 2)) continue;
        open_stage(&s, DQ_PAIR_ADJACENT, D, spec, 2);
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, N);
        for (int g = 0; g < s.map.n_groups; g++) {
            const dq_oracle_list *l = &s.oracle->list[a][g];
            int heads = 0;
            for (int j = 0; j < N_KV; j++) heads += s.map.group[j] == g;
            const int cols = heads * D;
            double *x = calloc((size_t)(N * cols), sizeof *x);
            for (int t = 0; t < N; t++) {
                for (int j = 0, h = 0; j < N_KV; j++) {
                    if (s.map.group[j] != g) continue;
                    key_before(x + t * cols + h++ * D, dq_oracle_key(s.oracle, l, t, j, N), D,
                               &rope, spec.rotate_k, l->pos[t]);
                }
            }
            for (int c = 0; c < cols; c++) {
                double mean = 0;
                for (int t = 0; t < N; t++) mean += x[t * cols + c] / N;
                for (int t = 0; t < N; t++) x[t * cols + c] -= mean;
            }
            slow_leverages(want, x, N, cols);
            s.b->ops->kv_key_leverages(s.b, s.kv, a, 0, g, N, &rope, got);
            expect_no_error(&s);
            for (int t = 0; t < N; t++) assert_true(fabs(got[t] - want[t]) <= 1e-4 * want[t]);
            free(x);
        }
        close_stage(&s);
    }
}

/* Keys and values of a group side by side; whichever of them are codes, rotated or not. */
TEST(rows_are_keys_before_rope_and_values)
{
    enum { D = 32, N = 210 };
    float freq[D / 2];
    const dq_rope rope = rope_of(freq, D);
    for (int i = 0; i < 2; i++) {
        stage s;
        dq_kv_spec spec = spec_of(1);
        spec.rotate_k = spec.rotate_v = i == 1;
        if (!test_runs(i, 2)) continue;
        open_stage(&s, DQ_PAIR_ADJACENT, D, spec, 2);
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, N);
        for (int g = 0; g < s.map.n_groups; g++) {
            const dq_oracle_list *l = &s.oracle->list[a][g];
            const int64_t cols = dq_head_order_key_channels(&s.map, g);
            float *got = calloc((size_t)(N * 2 * cols), sizeof *got);
            double want[D];
            s.b->ops->kv_rows(s.b, s.kv, a, 0, g, N, &rope, got);
            expect_no_error(&s);
            for (int t = 0; t < N; t++) {
                for (int j = 0, h = 0; j < N_KV; j++) {
                    if (s.map.group[j] != g) continue;
                    const float *k = got + t * 2 * cols + h * D, *v = k + cols;
                    key_before(want, dq_oracle_key(s.oracle, l, t, j, N), D, &rope, spec.rotate_k,
                               l->pos[t]);
                    for (int c = 0; c < D; c++) assert_true(fabs((double)k[c] - want[c]) < 1e-4);
                    value_before(want, dq_oracle_value(s.oracle, l, t, j, N), D, spec.rotate_v);
                    for (int c = 0; c < D; c++) assert_true(fabs((double)v[c] - want[c]) < 1e-4);
                    h++;
                }
            }
            free(got);
        }
        close_stage(&s);
    }
}

enum { MOST = 260, MEASURES = 4 };

/* What policies ask of a list: [MEASURES][MOST], of rows a sum. */
static void ask(stage *s, int32_t seq, int group, int32_t t, double *out)
{
    static float row[MOST * 2 * N_KV * 32], freq[16];
    const dq_rope rope = rope_of(freq, 32);
    const dq_ops *op = s->b->ops;
    const int64_t cols = 2 * dq_head_order_key_channels(&s->map, group);
    memset(out, 0, MEASURES * MOST * sizeof *out);
    op->kv_key_norms(s->b, s->kv, seq, 0, group, t, out);
    op->kv_key_cosines(s->b, s->kv, seq, 0, group, t, out + MOST);
    op->kv_key_leverages(s->b, s->kv, seq, 0, group, t, &rope, out + 2 * MOST);
    op->kv_rows(s->b, s->kv, seq, 0, group, t, &rope, row);
    expect_no_error(s);
    for (int64_t i = 0; i < op->kv_count(s->b, s->kv, seq, 0, group, NULL); i++)
        for (int64_t c = 0; c < cols; c++)
            out[3 * MOST + i] += (double)row[i * cols + c] * (double)(1 + c % 7);
}

static void check_norms(const stage *s, int32_t seq, int group, int32_t t, const double *got)
{
    const dq_oracle_list *l = &s->oracle->list[seq][group];
    for (int64_t i = 0; i < l->n; i++) {
        double want = 0;
        for (int j = 0; j < N_KV; j++) {
            const float *k = dq_oracle_key(s->oracle, l, i, j, t);
            for (int c = 0; s->map.group[j] == group && c < 32; c++)
                want += (double)k[c] * (double)k[c];
        }
        assert_true(fabs(got[i] - want) <= 1e-12 * want);
    }
}

/* n tokens of the sequence of tag 1 in one pass, beside another sequence. */
static int32_t at_once(stage *s, int n)
{
    const int32_t other = new_seq(s, 2, 0), a = new_seq(s, 1, 0);
    begin_batch(s);
    add_rows(s, other, 1 + n % 70);
    add_rows(s, a, n);
    append(s);
    compact_stage(s);
    s->b->ops->kv_seq_free(s->b, s->kv, other);
    for (int g = 0; g < s->map.n_groups; g++) s->oracle->list[other][g].n = 0;
    return a;
}

/* Every length has keys as the next row reads them, whatever the threads, the passes and those who share pages. */
TEST(lists_are_read_alike_at_every_length)
{
    static const int recents[] = {60, 0};
    static double got[MEASURES * MOST], want[MEASURES * MOST];
    for (int i = 0; i < 2; i++) {
        stage s, w;
        dq_kv_spec spec = spec_of(3 + 6 * i);
        if (!test_runs(i, 2)) continue;
        spec.sink = i % 2 ? 0 : 4;
        spec.recent = recents[i];
        open_stage(&s, pairings[i % N_PAIRINGS], 32, spec, 2);
        open_stage(&w, pairings[i % N_PAIRINGS], 32, spec, 1);
        const int32_t a = new_seq(&s, 1, 0);
        int32_t shares = -1;
        for (int n = 1; n <= MOST; n++) {
            const int32_t t = n - 1 + dq_kv_ahead(&spec);
            stream(&s, a, 1);
            const int32_t b = at_once(&w, n);
            for (int g = 0; g < s.map.n_groups; g++) {
                ask(&s, a, g, t, got);
                ask(&w, b, g, t, want);
                assert_memory_equal(got, want, sizeof want);
                if (n % 5 == 3) check_norms(&s, a, g, t, got);
            }
            w.b->ops->kv_seq_free(w.b, w.kv, b);
            for (int g = 0; g < w.map.n_groups; g++) w.oracle->list[b][g].n = 0;
            if (n % 40 != 19) continue;
            if (shares >= 0) s.b->ops->kv_seq_free(s.b, s.kv, shares);
            shares = fork_seq(&s, a, 3);
        }
        close_stage(&s);
        close_stage(&w);
    }
}

/* A row that pages no longer hold, or do not hold yet, is refused by all who read a list by themselves. */
TEST(what_is_not_there_is_no_number)
{
    dq_kv_spec spec = spec_of(3);
    spec.sink = 4;
    spec.recent = 60;
    for (int i = 0; i < 2 * MEASURES; i++) {
        static float row[123 * 2 * N_KV * 32];
        double got[123];
        float freq[16];
        const dq_rope rope = rope_of(freq, 32);
        stage s;
        open_stage(&s, DQ_PAIR_ADJACENT, 32, spec, 1);
        const dq_ops *op = s.b->ops;
        const int32_t a = new_seq(&s, 1, 0), t = i % 2 ? 122 : 187;
        begin_batch(&s);
        add_rows(&s, a, 123); /* the first page becomes codes for row 123, the second for row 187 */
        append(&s);
        if (i % 2) compact_stage(&s);
        if (i / 2 == 0) op->kv_key_norms(s.b, s.kv, a, 0, 0, t, got);
        if (i / 2 == 1) op->kv_key_cosines(s.b, s.kv, a, 0, 0, t, got);
        if (i / 2 == 2) op->kv_key_leverages(s.b, s.kv, a, 0, 0, t, &rope, got);
        if (i / 2 == 3) op->kv_rows(s.b, s.kv, a, 0, 0, t, &rope, row);
        assert_int_equal(end_stage(&s), DQ_BUG);
    }
}

TEST(absmax_reads_codes)
{
    for (int i = 0; i < N_PAIRINGS; i++) {
        if (!test_runs(i, 2)) continue;
        stage s;
        float got[N_Q];
        open_stage(&s, pairings[i], 32, spec_of(3 + 4 * i), 2);
        float *absmax = s.b->ops->alloc(s.b, sizeof got);
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 120);
        begin_batch(&s);
        add_rows(&s, a, 90);
        append(&s);
        dq_attend_args args = arguments(&s, 4, DQ_GRANULARITY_HEAD);
        dq_oracle_args oa = {.attn = &s.attn, .batch = &s.batch, .q = s.q, .logit = {.bits = 16}};
        s.b->ops->attn_absmax(s.b, absmax, &args);
        s.b->ops->get(s.b, got, absmax, sizeof got);
        s.b->ops->free(s.b, absmax);
        for (int h = 0; h < N_Q; h++) {
            double max = 0;
            for (int64_t row = 0; row < 90; row++) {
                const dq_oracle_list *l = &s.oracle->list[a][s.map.group[s.map.key[h]]];
                for (int64_t t = 0; t < l->n && l->pos[t] <= s.pos[row]; t++)
                    max = fmax(max, fabs(dq_oracle_logit(s.oracle, &oa, row, h, t)));
            }
            assert_true(fabs((double)got[h] - max) <= 1e-5 * max);
        }
        /* observed logits are the same ones */
        dq_tally tally;
        dq_err err = {0};
        assert_int_equal(dq_tally_init(&tally, &err), DQ_OK);
        s.b->ops->attn_observe(s.b, &tally, &args, 0);
        expect_no_error(&s);
        assert_int_equal(tally.n, N_Q * (90 * 120 + 90 * 91 / 2));
        dq_tally_free(&tally);
        close_stage(&s);
    }
}

/* Two bytes of a row: not on a device, which holds f32 alone. */
static const char *codes(int run)
{
    static const char *const name[] = {"per-token codes", "per-channel codes", "mixed codes",
                                       "two bytes"};
    pages = run > 0;
    mixed = run == 2;
    half = run == 3;
    return run < (on_cpu() ? 4 : 3) ? name[run] : NULL;
}

RUNS(codes)
