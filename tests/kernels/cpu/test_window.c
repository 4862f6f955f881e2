/* Layers whose queries see a window of tokens: every map, width, granularity and arithmetic against the f64 oracle, which keeps
 * all tokens and masks; chunks, forks and threads never show in a bit; the cache holds the pages of one window; what a row
 * sees is what it would see of a cache of its window alone.
 * SPDX-License-Identifier: MIT */
#include "engine/observe.h"
#include "stat/stat.h"
#include "tests/rigs/kv_stage.h"
#include "tests/rigs/pairings.h"
#include "tests/rigs/suite.h"

static dq_kv_spec spec_of(int i)
{
    static const struct {
        int k_bits, v_bits, sink, recent;
        dq_kv_quant quant;
    } rows[] = {{16, 16, 0, 0, DQ_KV_PER_TOKEN}, {8, 8, 4, 64, DQ_KV_PER_TOKEN},
                {4, 3, 4, 0, DQ_KV_PER_CHANNEL}, {6, 4, 70, 30, DQ_KV_PER_TOKEN},
                {3, 2, 4, 64, DQ_KV_DITHER},     {5, 5, 0, 100, DQ_KV_MIXED},
                {16, 2, 4, 64, DQ_KV_PER_TOKEN}};
    dq_kv_spec spec = dq_kv_plain;
    const int k = i % (int)(sizeof rows / sizeof *rows);
    spec.k_bits = rows[k].k_bits;
    spec.v_bits = rows[k].v_bits;
    spec.sink = rows[k].sink;
    spec.recent = rows[k].recent;
    spec.quant = rows[k].quant;
    spec.group = 32;
    if (on_cpu() && i % 3 == 1) spec.dense = i % 2 ? DQ_KV_BF16 : DQ_KV_F16;
    return spec;
}

enum { N_SPECS = 7, N_WINDOWS = 5 };
static const int windows[N_WINDOWS] = {40, 130, 64, 1, 200};

/* Of every group: the pages from the one where the next query's window begins on. */
static void expect_level(const stage *s, int32_t seq)
{
    const int32_t from = s->length[seq] - s->attn.window + 1;
    const int32_t gone = from < 0 ? 0 : from / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS;
    for (int g = 0; g < s->map.n_groups; g++)
        assert_int_equal(s->b->ops->kv_count(s->b, s->kv, seq, 0, g, NULL), s->length[seq] - gone);
}

TEST(every_width_and_map)
{
    for (int i = 0; i < N_PAIRINGS * N_SPECS; i++) {
        if (i % 5 % 2 || !test_runs(i, 13)) continue;
        stage s;
        open_stage(&s, pairings[i % N_PAIRINGS], i % 4 ? 32 : 80, spec_of(i / N_PAIRINGS), 2);
        s.attn.window = windows[i / 5 % N_WINDOWS];
        const int32_t a = new_seq(&s, 1, 0), b = new_seq(&s, 2, 0);
        stream_checked(&s, a, 90);
        begin_batch(&s);
        add_rows(&s, b, 75);
        add_rows(&s, a, 150);
        append(&s);
        check_attend(&s);
        compact_stage(&s);
        expect_level(&s, a);
        expect_level(&s, b);
        for (int k = 0; k < 5; k++) stream_checked(&s, a, 1);
        stream_checked(&s, b, 200);
        stream_checked(&s, a, 190);
        begin_batch(&s);
        add_rows(&s, a, 1);
        add_rows(&s, b, 1);
        append(&s);
        check_attend(&s);
        compact_stage(&s);
        expect_level(&s, a);
        close_stage(&s);
    }
}

/* Ranges that logits are rounded by reach over what a row sees alone. */
TEST(every_rounding)
{
    for (int i = 0; i < 4 * N_WINDOWS; i++) {
        if (!test_runs(i, 3)) continue;
        const dq_granularity granularity = (dq_granularity)(i % 4);
        const int bits = i % 3 ? 4 : 8;
        stage s;
        open_stage(&s, pairings[i % N_PAIRINGS], 16, dq_kv_plain, 2);
        s.attn.window = windows[i / 4];
        const int32_t a = new_seq(&s, 1, 0), b = new_seq(&s, 2, 0);
        stream(&s, a, 100);
        stream(&s, b, 250);
        begin_batch(&s);
        add_rows(&s, a, 150);
        add_rows(&s, b, 3);
        append(&s);
        dq_attend_args got = arguments(&s, bits, granularity);
        float *absmax = s.b->ops->alloc(s.b, 2 * N_Q * sizeof *absmax);
        if (dq_logit_needs_absmax(got.logit)) {
            s.b->ops->attn_absmax(s.b, absmax, &got);
            if (granularity == DQ_GRANULARITY_TENSOR) s.b->ops->absmax_join(s.b, absmax, 2, N_Q);
            got.absmax = absmax;
        }
        s.b->ops->attend(s.b, mat(s.both[OUT].device, s.batch.n_rows, out_cols(&s)), &got);
        const int64_t n = s.batch.n_rows * out_cols(&s);
        test_get(s.b, &s.both[OUT], n);
        expect_no_error(&s);
        double *want = calloc((size_t)n, sizeof *want), max = 0, worst = 0;
        int64_t n_off = 0; /* a logit between two codes may take the other one */
        const dq_oracle_args o = {&s.attn, &s.batch, s.q, NULL, got.logit, NULL};
        dq_oracle_attend(want, s.oracle, &o);
        for (int64_t k = 0; k < n; k++) max = fmax(max, fabs(want[k]));
        for (int64_t k = 0; k < n; k++) {
            const double off = fabs(want[k] - (double)s.out[k]);
            n_off += !(off <= 5e-6 * max);
            worst = off > worst || off != off ? off : worst;
        }
        if (!(n_off * 100 <= n && worst <= 0.05 * max))
            print_error("case %d: %d of %d off, by %g of %g\n", i, (int)n_off, (int)n, worst, max);
        assert_true(n_off * 100 <= n && worst <= 0.05 * max);
        free(want);
        s.b->ops->free(s.b, absmax);
        close_stage(&s);
    }
}

enum { TOKENS = 330 };

typedef struct way {
    int chunk, threads;
    bool settles, company, forks;
} way;

static float *in_chunks(int i, dq_math math, way w)
{
    stage s;
    open_stage(&s, pairings[i % N_PAIRINGS], i % 3 ? 32 : 80, spec_of(i), w.threads);
    s.attn.window = windows[i % N_WINDOWS];
    s.math = math;
    int32_t a = new_seq(&s, 1, 0);
    const int32_t other = new_seq(&s, 9, 0);
    const size_t row = (size_t)out_cols(&s);
    float *out = calloc(TOKENS * row, sizeof *out);
    for (int at = 0; at < TOKENS; at += w.chunk) {
        const int n = TOKENS - at < w.chunk ? TOKENS - at : w.chunk, before = w.company ? 3 : 0;
        begin_batch(&s);
        if (before) add_rows(&s, other, before);
        add_rows(&s, a, n);
        append(&s);
        attend(&s, i % 2 ? 16 : 4);
        if (w.settles) compact_stage(&s);
        memcpy(out + (size_t)at * row, s.out + (size_t)before * row, (size_t)n * row * sizeof *out);
        if (w.forks && at / w.chunk % 3 == 1) {
            const int32_t fork = fork_seq(&s, a, 1);
            stream(&s, a, 5); /* the parent goes another way */
            s.b->ops->kv_seq_free(s.b, s.kv, a);
            for (int g = 0; g < s.map.n_groups; g++) s.oracle->list[a][g].n = 0;
            a = fork;
        }
    }
    expect_no_error(&s);
    close_stage(&s);
    return out;
}

TEST(nothing_shows_in_the_bits)
{
    static const way ways[] = {{1, 1, true, false, true},
                               {7, 2, true, true, true},
                               {64, 2, false, false, false},
                               {100, 1, true, true, false}};
    for (int i = 0; i < 2 * N_SPECS; i++) {
        if (!on_cpu() || !test_runs(i, 13)) continue;
        const bool coded = spec_of(i).k_bits < 16;
        const dq_num num = i >= N_SPECS && coded ? DQ_NUM_INT8 : DQ_NUM_F32;
        const dq_math math = {.linear = DQ_NUM_F32, .qk = num, .pv = num};
        const dq_head_order map =
            pairings_map(pairings[i % N_PAIRINGS], N_Q, N_KV, i % 3 ? 32 : 80);
        const size_t n = (size_t)TOKENS * (size_t)(map.n_out * map.n_slabs * map.head_dim);
        float *want = in_chunks(i, math, (way){TOKENS, 2, false, false, false});
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            float *got = in_chunks(i, math, ways[k]);
            assert_memory_equal(got, want, n * sizeof *want);
            free(got);
        }
        free(want);
    }
}

/* From two windows on a cache takes what it took before. */
TEST(memory_is_level)
{
    for (int i = 0; i < N_SPECS; i++) {
        if (!test_runs(i, 5)) continue;
        stage s;
        open_stage(&s, DQ_PAIR_NONE, 32, spec_of(i), 1);
        s.attn.window = 130;
        const int32_t a = new_seq(&s, 1, 0);
        dq_kv_bytes first = {0};
        for (int at = 64; at <= 64 * 12; at += 64) {
            stream(&s, a, 64);
            const dq_kv_bytes now = s.b->ops->kv_bytes(s.b, s.kv);
            if (at == 64 * 6) first = now;
            if (at < 64 * 6) continue;
            assert_memory_equal(&now, &first, sizeof now);
        }
        close_stage(&s);
    }
}

TEST(rewind_drops_or_refuses)
{
    stage s;
    open_stage(&s, DQ_PAIR_HALVES, 32, dq_kv_plain, 2);
    s.attn.window = 70;
    const int32_t a = new_seq(&s, 1, 0);
    stream(&s, a, 200); /* a query at 200 sees 131 on: the pages from 128 on stay */
    const int32_t b = fork_seq(&s, a, 2);
    s.b->ops->kv_rewind(s.b, s.kv, b, 197); /* which sees 128 on */
    dq_oracle_rewind(s.oracle, b, 197);
    s.length[b] = 197;
    stream_checked(&s, b, 30);
    dq_err err = {0};
    s.b->ops->kv_rewind(s.b, s.kv, a, 196);
    assert_int_equal(dq_backend_sync(s.b, &err), DQ_BUG);
    assert_int_equal(s.b->ops->kv_count(s.b, s.kv, a, 0, 0, NULL), 72);
    stream_checked(&s, a, 10); /* untouched */
    close_stage(&s);
}

/* What observers note of one row. */
typedef struct noted {
    float y[MAX_WIDTH];
    dq_head_measure measure[N_Q];
    dq_head_profile look[N_Q];
    dq_span_share spans[N_Q];
    dq_tally tally;
} noted;

/* The sequence's last row, once more. */
static void note(noted *to, stage *s, int32_t copy)
{
    dq_err err = {0};
    uint8_t label[MAX_ROWS];
    const int64_t at = 0, last = 1;
    for (int i = 0; i < MAX_ROWS; i++) label[i] = (uint8_t)(i / 16 % 3);
    memset(to, 0, sizeof *to);
    const dq_head_look look = {to->look, &copy};
    const dq_attention_spans spans = {3, label, &at, &last, to->spans};
    dq_attend_args a = arguments(s, 16, DQ_GRANULARITY_ROW);
    assert_int_equal(dq_tally_init(&to->tally, &err), DQ_OK);
    s->b->ops->attn_observe(s->b, &to->tally, &a, 0);
    a.measure = to->measure;
    a.look = &look;
    a.spans = &spans;
    s->b->ops->attend(s->b, mat(s->both[OUT].device, 1, out_cols(s)), &a);
    test_get(s->b, &s->both[OUT], out_cols(s));
    expect_no_error(s);
    memcpy(to->y, s->out, (size_t)out_cols(s) * sizeof *to->y);
}

TEST(observers_see_the_window_alone)
{
    static const int32_t copies[] = {-1, 20, 205, 299};
    for (int i = 0; on_cpu() && i < 2 * N_WINDOWS; i++) {
        noted window, alone;
        stage s;
        open_stage(&s, i % 2 ? DQ_PAIR_NONE : DQ_PAIR_ADJACENT, 32, dq_kv_plain, 1);
        s.attn.window = windows[i / 2];
        const int32_t a = new_seq(&s, 1, 0);
        begin_batch(&s);
        add_rows(&s, a, 299);
        append(&s);
        begin_batch(&s);
        add_rows(&s, a, 1);
        append(&s);
        note(&window, &s, copies[i % 4]);
        for (int g = 0; g < s.map.n_groups; g++) {
            int32_t kept[MAX_ROWS];
            for (int32_t k = 0; k < s.attn.window; k++) kept[k] = 300 - s.attn.window + k;
            keep(&s, a, g, kept, s.attn.window);
        }
        s.attn.window = 0;
        note(&alone, &s, copies[i % 4]);
        for (int64_t k = 0; k < out_cols(&s); k++)
            assert_true(fabsf(window.y[k] - alone.y[k]) <= 1e-6f);
        assert_memory_equal(window.measure, alone.measure, sizeof alone.measure);
        assert_memory_equal(window.look, alone.look, sizeof alone.look);
        for (int h = 0; h < s.map.n_out; h++) {
            for (int k = 0; k < 2 * 3; k++)
                assert_true(fabs(window.spans[h].share[k / 3][k % 3] -
                                 alone.spans[h].share[k / 3][k % 3]) <= 1e-6);
        }
        assert_int_equal(window.tally.n, alone.tally.n);
        assert_int_equal(window.tally.n, (int64_t)N_Q * windows[i / 2]);
        assert_memory_equal(window.tally.place, alone.tally.place, sizeof alone.tally.place);
        dq_tally_free(&window.tally);
        dq_tally_free(&alone.tally);
        close_stage(&s);
    }
}

/* Policies count on layers without a window alone. */
TEST(sums_are_refused)
{
    stage s;
    dq_err err = {0};
    open_stage(&s, DQ_PAIR_NONE, 32, dq_kv_plain, 1);
    s.attn.window = 64;
    begin_batch(&s);
    add_rows(&s, new_seq(&s, 1, 0), 3);
    append(&s);
    dq_attend_args a = arguments(&s, 16, DQ_GRANULARITY_ROW);
    const dq_columns columns = {0};
    a.columns = &columns;
    s.b->ops->attend(s.b, mat(s.both[OUT].device, 3, out_cols(&s)), &a);
    assert_int_equal(dq_backend_sync(s.b, &err), DQ_BUG);
    assert_int_equal(end_stage(&s), DQ_OK);
}
