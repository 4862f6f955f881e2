/* test_kv_size: what kv.h foretells of a cache beside what one holds, and the tokens that fit into a size.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "kv/kv.h"
#include "tests/rigs/kv_stage.h"

enum { MOST = 700, GROUPS = N_KV, D = 32 };
static const dq_kv_shape shape = {.n_layers = 1, .n_groups = GROUPS, .n_kv = N_KV, .head_dim = D};

/* Scores of all tokens of all groups. */
static double score[GROUPS][MOST];
static int32_t position[MOST];

static dq_kv_spec spec_of(int bits, dq_kv_quant quant, int sink, int recent)
{
    dq_kv_spec s = dq_kv_plain;
    s.k_bits = s.v_bits = bits;
    s.quant = quant;
    s.sink = sink;
    s.recent = recent;
    s.dense = DQ_KV_F16;
    return s;
}

static int64_t all_bytes(stage *s)
{
    const dq_kv_bytes b = s->b->ops->kv_bytes(s->b, s->kv);
    return b.codes + b.scales + b.unquantized + b.index;
}

/* A sequence of n tokens, in a layer with a window or without one (0). Returns the bytes without
 * any. */
static int64_t begin(stage *s, dq_kv_spec spec, int n, int window)
{
    open_stage(s, DQ_PAIR_NONE, D, spec, 1);
    s->attn.window = window;
    const int32_t none = s->b->ops->kv_seq_new(s->b, s->kv);
    s->b->ops->kv_seq_free(s->b, s->kv, none);
    const int64_t floor = all_bytes(s);
    new_seq(s, 1, 0);
    for (int done = 0; done < n; done += 256) {
        begin_batch(s);
        add_rows(s, 0, n - done < 256 ? n - done : 256);
        append(s);
        compact_stage(s);
    }
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < n; i++)
            score[g][i] = g + (double)uniform(
                                  (uint32_t)(i * GROUPS + g)); /* groups differ in what they need */
    for (int i = 0; i < n; i++) position[i] = i;
    return floor;
}

/* Evicts all but k tokens of a group on average, as evict.c does. */
static void evict(stage *s, int n, int64_t k)
{
    const dq_kv_protected safe = {s->spec.sink, s->spec.recent, n};
    const bool pooled = s->spec.evict.budget == DQ_KV_BUDGET_GLOBAL;
    dq_pool_group group[GROUPS];
    int64_t share[GROUPS], kept_n;
    int32_t kept[MOST];
    double gap;
    dq_err err = {0};
    for (int g = 0; g < GROUPS; g++) {
        group[g] = (dq_pool_group){score[g], position, n};
        share[g] = k;
    }
    const dq_pool pool = {group, GROUPS, k, safe, true, 0, DQ_PAGE_TOKENS};
    if (pooled) assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
    for (int g = 0; g < GROUPS; g++) {
        assert_int_equal(
            dq_kv_policy_keep(kept, &kept_n, score[g], position, n, share[g], safe, &err), DQ_OK);
        s->b->ops->kv_keep(s->b, s->kv, 0, 0, g, kept, kept_n);
    }
    expect_no_error(s);
}

static const struct {
    int bits;
    dq_kv_quant quant;
} codes[] = {{16, DQ_KV_PER_TOKEN}, {8, DQ_KV_PER_TOKEN}, {6, DQ_KV_PER_TOKEN},
             {4, DQ_KV_PER_TOKEN},  {8, DQ_KV_MIXED},     {4, DQ_KV_PER_CHANNEL},
             {6, DQ_KV_MIXED},      {4, DQ_KV_MIXED}};
static const int windows[][2] = {{4, 60}, {4, 0}, {0, 16}, {70, 100}};
static const int contexts[] = {512, 576, 700, 500, 127};

TEST(a_whole_cache_holds_what_is_foretold)
{
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++) {
        for (size_t i = 0; i < 20; i++) {
            const int n = contexts[i / 4];
            const dq_kv_spec spec =
                spec_of(codes[c].bits, codes[c].quant, windows[i % 4][0], windows[i % 4][1]);
            stage s;
            const int64_t floor = begin(&s, spec, n, 0);
            assert_int_equal(all_bytes(&s) - floor, dq_kv_size_bytes(&spec, &shape, n, n));
            close_stage(&s);
        }
    }
}

/* But for pointers to pages: fewer than a list of the whole context has room for. */
TEST(a_window_holds_what_is_foretold)
{
    static const int seen[] = {1, 64, 100, 300, 700, 450};
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++) {
        for (size_t i = 0; i < 30; i++) {
            const int n = contexts[i / 6], window = seen[i % 6];
            const dq_kv_spec spec =
                spec_of(codes[c].bits, codes[c].quant, windows[i % 4][0], windows[i % 4][1]);
            dq_kv_shape m = shape;
            m.n_windows = 1;
            m.window = window;
            stage s;
            const int64_t floor = begin(&s, spec, n, window);
            const int64_t less = dq_kv_size_bytes(&spec, &m, n, n) - (all_bytes(&s) - floor);
            const int64_t room = GROUPS * DQ_KV_POINTER_INDEX * dq_kv_page_capacity((n + 63) / 64);
            if (less < 0 || less >= room)
                fail_msg("%d of %d tokens, %d bits: %lld", window, n, spec.k_bits, (long long)less);
            assert_int_equal(dq_kv_size_whole(&m, n),
                             dq_kv_window_cached(window, n) * N_KV * D * 4);
            close_stage(&s);
        }
    }
}

/* Bytes held after a cut, which are no more than foretold. */
static int64_t cut_to(dq_kv_spec spec, int n, int64_t k, int64_t *most)
{
    stage s;
    const int64_t floor = begin(&s, spec, n, 0);
    evict(&s, n, k);
    const int64_t holds = all_bytes(&s) - floor;
    *most = dq_kv_size_bytes(&spec, &shape, n, k);
    close_stage(&s);
    if (holds > *most)
        fail_msg("%d bits, code %s, sink %d, recent %d, %s: %lld of %d tokens hold %lld bytes, "
                 "foretold %lld",
                 spec.k_bits, dq_kv_quant_name[spec.quant], spec.sink, spec.recent,
                 dq_kv_budget_name[spec.evict.budget], (long long)k, n, (long long)holds,
                 (long long)*most);
    return holds;
}

TEST(a_cut_cache_holds_at_most_what_is_foretold)
{
    int64_t most;
    for (size_t i = 0; i < sizeof codes / sizeof *codes * 16; i += 2 + i % 3) {
        const int n = i % 2 ? 512 : 500;
        dq_kv_spec spec =
            spec_of(codes[i / 16].bits, codes[i / 16].quant, windows[i % 4][0], windows[i % 4][1]);
        spec.evict.budget = i / 4 % 2 ? DQ_KV_BUDGET_GLOBAL : DQ_KV_BUDGET_UNIFORM;
        for (int64_t k = spec.sink + spec.recent + 1; k < n; k += 113) cut_to(spec, n, k, &most);
    }
}

/* Where it matters: whole pages of recent tokens, and tokens of all pages. */
TEST(what_is_foretold_is_near)
{
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++) {
        for (int i = 0; i < 4; i++) {
            dq_kv_spec spec = spec_of(codes[c].bits, codes[c].quant, 4, i % 2 ? 60 : 0);
            spec.evict.budget = i / 2 ? DQ_KV_BUDGET_GLOBAL : DQ_KV_BUDGET_UNIFORM;
            int64_t most;
            const int64_t holds = cut_to(spec, 512, 192, &most);
            if (5 * holds < 4 * most)
                fail_msg("%d %d: %lld of %lld", (int)c, i, (long long)holds, (long long)most);
        }
    }
}

TEST(as_many_tokens_as_fit)
{
    dq_kv_spec spec = spec_of(4, DQ_KV_MIXED, 4, 60);
    const dq_kv_shape m = {.n_layers = 30, .n_groups = 3, .n_kv = 3, .head_dim = 64};
    const double whole = (double)dq_kv_size_whole(&m, 2048);
    int64_t least;
    spec.evict.budget = DQ_KV_BUDGET_GLOBAL;
    assert_true(whole == 2048.0 * 30 * 3 * 64 * 4);
    const int64_t k = dq_kv_size_tokens(&spec, &m, 2048, whole / 4, NULL);
    assert_true(k > 1300 && k < 1450); /* .68 by results/real */
    assert_true((double)dq_kv_size_bytes(&spec, &m, 2048, k) <= whole / 4);
    assert_true((double)dq_kv_size_bytes(&spec, &m, 2048, k + 1) > whole / 4);
    assert_int_equal(dq_kv_size_tokens(&spec, &m, 2048, 0, &least), 0);
    assert_int_equal(dq_kv_size_tokens(&spec, &m, 2048, (double)least - 1, NULL), 0);
    assert_true(dq_kv_size_tokens(&spec, &m, 2048, (double)least, NULL) > 64);
    for (int64_t kept = 1; kept <= 2048; kept++) {
        spec.sink = spec.recent = 0;
        spec.evict.keep = dq_kv_size_share(kept, 2048);
        assert_int_equal(dq_evict_budget(&spec, 2048, NULL), kept);
    }
    assert_true(dq_kv_size_share(384, 2048) == 0.1875 && dq_kv_size_share(2048, 2048) == 1);
}

TEST(sizes_are_read)
{
    static const struct {
        const char *text;
        double size; /* 0: refused */
        int64_t context;
    } all[] = {{"1/8", 0.125, 0},     {".125", 0.125, 0}, {"0.5@2048", 0.5, 2048},
               {"1/3@7", 1.0 / 3, 7}, {"1", 0, 0},        {"0", 0, 0},
               {"8/1", 0, 0},         {"1/0", 0, 0},      {"1/", 0, 0},
               {"1/8@", 0, 0},        {"1/8@0", 0, 0},    {"1/8@2.5", 0, 0},
               {"-1/8", 0, 0},        {"1/8x", 0, 0},     {"", 0, 0},
               {"@9", 0, 0},          {"1/-8", 0, 0},     {"nan", 0, 0},
               {"1/8@9@9", 0, 0},     {"-1/-8", 0, 0},    {"1/8@16777216", 0.125, 1 << 24},
               {"1/8@16777217", 0, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double size;
        int64_t context;
        dq_err err = {0};
        const bool ok = dq_kv_size_parse(&size, &context, all[i].text, &err) == DQ_OK;
        if (ok != (all[i].size > 0) || (ok && (size != all[i].size || context != all[i].context)))
            fail_msg("\"%s\": %d, %g of %lld", all[i].text, (int)err.code, size,
                     (long long)context);
    }
    assert_int_equal(dq_kv_size_first(0.9), 0);
    assert_int_equal(dq_kv_size_first(0.5), 0);
    assert_int_equal(dq_kv_size_first(0.46), 0);
    assert_int_equal(dq_kv_size_first(0.45), 1);
    assert_int_equal(dq_kv_size_first(0.3), 1);
    assert_int_equal(dq_kv_size_first(0.125), 2);
    assert_int_equal(dq_kv_size_first(0.1), 3);
    assert_int_equal(dq_kv_size_first(0.01), 3);
}
