/* Eviction on small models: kept sets against a slow choice from the f64 oracle's sums; what may not
 * change a result.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/evict_rig.h"
#include "tests/rigs/suite.h"

static const char *const models[] = {DQ_TEST_DIR "/golden/models/diffllama-f32",
                                     DQ_TEST_DIR "/golden/models/llama-f32",
                                     DQ_SOURCE_DIR "/calib/pair/diffllama"};
enum { N_MODELS = sizeof models / sizeof models[0] };

enum {
    NEEDS_CPU = DQ_NEEDS_PEAK,
    ELSEWHERE = DQ_NEEDS_PEAK | DQ_NEEDS_KEY_COSINE | DQ_NEEDS_KEY_LEVERAGE | DQ_NEEDS_GATES
};

/* On the device at hand. */
static bool is_there(const dq_kv_policy *p)
{
    return !(p->needs & NEEDS_CPU) || strcmp(test_device(), "cpu") == 0;
}

static int64_t positions(const rig *x, int layer, int seq, int group, int32_t *pos)
{
    return x->b->ops->kv_count(x->b, dq_runner_kv(x->r), seq, layer, group, pos);
}

static bool is_safe(const rig *x, int32_t pos, int32_t end)
{
    return pos < x->kv.sink || pos >= end - x->kv.recent;
}

/* What the policy thinks of each token, from the oracle's sums. */
static void slow_scores(const rig *x, double *score, int layer, int seq, int group, int32_t end)
{
    const dq_oracle_list *l = &x->oracle[layer]->list[seq][group];
    double(*sum)[TOKENS] = x->sum[place(layer, seq, group)];
    const dq_head_order *map = &x->m->map;
    const char *name = x->spec.policy->name;
    double raw[TOKENS], *norm = calloc(TOKENS, sizeof *norm);
    for (int64_t i = 0; i < l->n; i++) {
        for (int c = 0; c < map->n_kv * map->head_dim; c++) {
            const double k = (double)l->k[i * map->n_kv * map->head_dim + c];
            if (map->group[c / map->head_dim] == group) norm[i] += k * k;
        }
    }
    const dq_token_columns c = {.n = l->n,
                                .pos = l->pos,
                                .mass = {sum[0], sum[1]},
                                .lambda_mass = sum[2],
                                .diff = sum[3],
                                .key_norm = norm,
                                .seed = dq_kv_policy_seed(x->spec.seed, layer, group)};
    x->spec.policy->score(raw, x->spec.policy, &c);
    for (int64_t i = 0; i < l->n; i++) {
        score[i] = raw[i];
        for (int64_t j = 0; j < l->n && strcmp(name, "snapkv") == 0; j++) {
            if (abs(l->pos[i] - l->pos[j]) <= 2 && !is_safe(x, l->pos[i], end) &&
                !is_safe(x, l->pos[j], end))
                score[i] = fmax(score[i], raw[j]);
        }
    }
    free(norm);
}

/* keep[i], by taking the best token again and again; returns the relative gap at the cut. */
static double slow_choice(const rig *x, bool *keep, const double *score, const dq_oracle_list *l,
                          int64_t budget, int32_t end)
{
    int64_t n = 0;
    double last = 0;
    for (int64_t i = 0; i < l->n; i++) n += keep[i] = is_safe(x, l->pos[i], end);
    const bool by_score = n < budget;
    for (; n < l->n; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i < l->n; i++) {
            if (!keep[i] && (best < 0 || score[i] > score[best])) best = i;
        }
        if (n >= budget) {
            const double top = fmax(fabs(last), fabs(score[best]));
            return by_score && top > 0 ? (last - score[best]) / top : by_score ? 0 : 1;
        }
        keep[best] = true;
        last = score[best];
    }
    return 1;
}

/* Compares one list with the slow choice, then makes the oracle evict what was evicted. */
static void check_list(rig *x, int layer, int seq, int group, int64_t budget, int32_t end)
{
    dq_oracle_list *l = &x->oracle[layer]->list[seq][group];
    double(*sum)[TOKENS] = x->sum[place(layer, seq, group)];
    double score[TOKENS];
    bool keep[TOKENS];
    int32_t pos[TOKENS], kept[TOKENS];
    const int64_t n = positions(x, layer, seq, group, pos), had = l->n;
    assert_int_equal(n, budget < had ? budget : had);
    slow_scores(x, score, layer, seq, group, end);
    const double gap = slow_choice(x, keep, score, l, budget, end);
    for (int64_t i = 0, k = 0; i < had; i++) {
        const bool got = k < n && pos[k] == l->pos[i];
        if (got) kept[k++] = (int32_t)i;
        if (is_safe(x, l->pos[i], end)) assert_true(got);
        if (gap > 1e-5) assert_int_equal(got, keep[i]);
        if (i + 1 == had) assert_int_equal(k, n);
    }
    x->n_compared++;
    x->n_unsure += gap <= 1e-5;
    dq_oracle_keep(x->oracle[layer], seq, group, kept, n);
    for (int c = 0; c < COLUMNS; c++) {
        for (int64_t i = 0; i < n; i++) sum[c][i] = sum[c][kept[i]];
        memset(sum[c] + n, 0, (size_t)(TOKENS - n) * sizeof(double));
        if (window_of(&x->spec)) memset(sum[c], 0, sizeof sum[c]);
    }
}

/* Of a budget by heads: token by token, as rig_roles has the groups. */
static void role_shares(const rig *x, int64_t *share, const dq_pool_group *group, int64_t budget,
                        int32_t end)
{
    const int lists = x->m->n_layers * groups(x), sharing = lists > 2 ? 2 : 0;
    int64_t left = 0;
    for (int i = 0; i < lists; i++) {
        share[i] = 0;
        for (int64_t t = 0; t < group[i].n; t++) share[i] += is_safe(x, group[i].pos[t], end);
        left += share[i] < budget ? budget - share[i] : 0;
    }
    for (int i = 0, misses = 0; left && misses < sharing; i++) {
        int64_t *own = &share[lists - 1 - i % sharing];
        const bool lacks = *own < group[own - share].n;
        misses = lacks ? 0 : misses + 1;
        *own += lacks;
        left -= lacks;
    }
    for (int i = lists - 1; i >= 0; i--) {
        for (; left && share[i] < group[i].n; left--) share[i]++;
    }
}

/* share[layer * groups + g]: the budget of every list, by the functions that test_policy checks; sure[..] false: too close to
 * call. */
static void shares(const rig *x, int64_t *share, bool *sure, int seq, int64_t budget, int32_t end)
{
    static double score[LAYERS * GROUPS][TOKENS];
    dq_pool_group group[LAYERS * GROUPS];
    const dq_kv_budget kind = x->spec.budget;
    const int n = groups(x), lists = x->m->n_layers * n;
    const int pooled = kind == DQ_KV_BUDGET_GLOBAL ? lists : n;
    for (int i = 0; i < lists; i++) {
        const dq_oracle_list *l = &x->oracle[i / n]->list[seq][i % n];
        share[i] = budget < end ? budget : end;
        sure[i] = true;
        slow_scores(x, score[i], i / n, seq, i % n, end);
        group[i] = (dq_pool_group){score[i], l->pos, l->n};
    }
    if (kind == DQ_KV_BUDGET_HEADS) role_shares(x, share, group, budget, end);
    if (kind != DQ_KV_BUDGET_ADAPTIVE && kind != DQ_KV_BUDGET_GLOBAL) return;
    for (int first = 0; first < lists; first += pooled) {
        dq_err err = {0};
        double gap;
        const dq_pool pool = {.group = group + first,
                              .n_groups = pooled,
                              .budget = budget,
                              .safe = {x->kv.sink, x->kv.recent, end},
                              .common = x->spec.policy->common,
                              .floor = kind == DQ_KV_BUDGET_ADAPTIVE ? DQ_KV_ADAPTIVE_FLOOR : 0,
                              .page = DQ_PAGE_TOKENS};
        assert_int_equal(dq_kv_budget_of_groups(share + first, &gap, &pool, &err), DQ_OK);
        for (int i = first; i < first + pooled; i++) sure[i] = gap > 1e-5;
    }
}

static void check_sequence(rig *x, int32_t seq, int32_t end)
{
    const int64_t budget = dq_evict_budget(&x->kv, end, NULL);
    const int n = groups(x), lists = x->m->n_layers * n;
    int64_t share[LAYERS * GROUPS];
    bool sure[LAYERS * GROUPS];
    if (budget < end) shares(x, share, sure, seq, budget, end);
    for (int i = 0; i < lists && budget < end; i++) {
        const int64_t own = sure[i] ? share[i] : positions(x, i / n, seq, i % n, NULL);
        check_list(x, i / n, seq, i % n, own, end);
    }
    if (budget == end && window_of(&x->spec)) {
        for (int l = 0; l < LAYERS; l++)
            for (int g = 0; g < GROUPS; g++) memset(x->sum[place(l, seq, g)], 0, sizeof *x->sum);
    }
}

static void evict(rig *x)
{
    dq_err err = {0};
    dq_evictor_run(x->e, &x->batch, x->prefix, &x->report, &err);
    assert_string_equal(err.text, "");
    for (int i = 0; x->oracle[0] && i < x->batch.n_seq; i++)
        check_sequence(x, x->seq[i], x->prefix[i]);
}

static int32_t fork(rig *x, int32_t from)
{
    dq_err err = {0};
    const int32_t to = x->b->ops->kv_fork(x->b, dq_runner_kv(x->r), from);
    assert_in_range(to, 0, SEQS - 1);
    assert_int_equal(dq_evictor_fork(x->e, from, to, &err), DQ_OK);
    x->length[to] = x->length[from];
    x->tag[to] = x->tag[from] + 10;
    for (int l = 0; l < x->m->n_layers && x->oracle[0]; l++) {
        dq_oracle_fork(x->oracle[l], to, from);
        for (int g = 0; g < GROUPS; g++)
            memcpy(x->sum[place(l, to, g)], x->sum[place(l, from, g)], sizeof *x->sum);
    }
    return to;
}

static dq_evict_spec spec_of(const char *policy, double keep, dq_kv_budget budget, int64_t every)
{
    dq_err err = {0};
    dq_evict_spec s = dq_evict_none;
    s.policy = dq_kv_policy_find(policy, &err);
    s.keep = keep;
    s.budget = budget;
    s.every = every;
    s.seed = 42;
    return s;
}

/* Three ragged prefixes, one of them in two passes; a fork; two continuations, evicted again. */
static void tell_story(rig *x)
{
    const int32_t a = new_sequence(x, 1), b = new_sequence(x, 2), c = new_sequence(x, 3);
    begin(x);
    add(x, a, 120);
    add(x, b, 30);
    pass(x);
    begin(x);
    add(x, b, 67);
    add(x, c, 5);
    pass(x);
    begin(x);
    add(x, a, 0);
    add(x, b, 0);
    add(x, c, 9);
    pass(x);
    evict(x);
    const int32_t d = fork(x, b);
    for (int round = 0; round < 2; round++) {
        begin(x);
        add(x, d, 9 + round);
        add(x, a, 17);
        add(x, b, 1);
        pass(x);
        if (x->spec.every) evict(x);
    }
}

TEST(kept_sets_are_those_of_the_oracle)
{
    for (int i = 0; i < N_MODELS * dq_kv_n_policies; i++) {
        if (!test_runs(i + 6, 7)) continue;
        static const double keeps[] = {0.3, 0.55, 0.8};
        const dq_kv_policy *p = &dq_kv_policies[i % dq_kv_n_policies];
        if (p->needs & ELSEWHERE) continue; /* test_second_pass.c */
        const dq_evict_spec spec =
            spec_of(p->name, keeps[i % 3], (dq_kv_budget)(i / 2 % DQ_KV_BUDGETS), i % 4 ? 16 : 0);
        rig x;
        rig_open(&x, models[i / dq_kv_n_policies], &spec, 2, true);
        tell_story(&x);
        assert_true(x.n_compared >= 2 * x.m->n_layers * groups(&x));
        /* ties by nature: pooled neighbours, equal tokens' keys in the first layer (RoPE keeps norms),
         * a second map that is not there */
        if (p->pool == 1 && strcmp(p->name, "knorm") != 0 &&
            !(strcmp(p->name, "a2") == 0 && x.m->map.n_maps == 1))
            assert_true(10 * x.n_unsure <= x.n_compared);
        assert_true(x.report.kept < x.report.before);
        rig_close(&x);
    }
}

/* The same with every budget, for the policies that need most. */
TEST(budgets)
{
    static const char *const names[] = {"h2o", "knorm", "diff"};
    for (int i = 0; i < 3 * DQ_KV_BUDGETS; i++) {
        if (!test_runs(i, 4)) continue;
        dq_evict_spec spec = spec_of(names[i % 3], 0, (dq_kv_budget)(i / 3), 9);
        spec.tokens = 40;
        rig x;
        rig_open(&x, models[2], &spec, 1, true);
        tell_story(&x);
        rig_close(&x);
    }
}

/* Everything a story leaves behind: positions of all lists and the last hidden rows of sequence 0. */
typedef struct ending {
    int64_t count[LAYERS][GROUPS];
    int32_t pos[LAYERS][GROUPS][TOKENS];
    float hidden[8192];
} ending;

static void look(const rig *x, ending *end, int32_t seq, int at)
{
    memset(end, 0, sizeof *end);
    for (int l = 0; l < x->m->n_layers; l++)
        for (int g = 0; g < groups(x); g++)
            end->count[l][g] = positions(x, l, seq, g, end->pos[l][g]);
    const int64_t dim = x->m->dim, n = (x->cu[at + 1] - x->cu[at]) * dim;
    assert_true(n <= 8192);
    memcpy(end->hidden, x->hidden + x->cu[at] * dim, (size_t)n * sizeof(float));
}

enum { N_STORIES = 4 };
static const int lengths[N_STORIES] = {150, 70, 9, 101};

/* Sequences [first, last) in one batch: a prefix, two rounds of continuation. */
static void run_together(ending *end, const char *model, const dq_evict_spec *spec, int threads,
                         int first, int last)
{
    rig x;
    int32_t seq[N_STORIES];
    rig_open(&x, model, spec, threads, false);
    for (int i = first; i < last; i++) seq[i] = new_sequence(&x, i);
    for (int round = 0; round < 3; round++) {
        begin(&x);
        for (int i = first; i < last; i++) add(&x, seq[i], round ? 11 : lengths[i]);
        pass(&x);
        evict(&x);
    }
    for (int i = first; i < last; i++) look(&x, &end[i], seq[i], i - first);
    rig_close(&x);
}

TEST(batches_and_threads_do_not_matter)
{
    static ending want[N_STORIES], got[N_STORIES];
    for (int i = 0; i < N_MODELS * dq_kv_n_policies; i++) {
        if (!test_runs(i, 13)) continue;
        if (!is_there(&dq_kv_policies[i % dq_kv_n_policies])) continue;
        const dq_evict_spec spec = spec_of(dq_kv_policies[i % dq_kv_n_policies].name, 0.4,
                                           (dq_kv_budget)(i % DQ_KV_BUDGETS), 11);
        const char *model = models[i / dq_kv_n_policies];
        run_together(want, model, &spec, 2, 0, N_STORIES);
        run_together(got, model, &spec, 1, 0, N_STORIES);
        assert_memory_equal(got, want, sizeof want);
        for (int s = 0; s < N_STORIES; s++) run_together(got, model, &spec, 2, s, s + 1);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void forget(rig *x, int32_t seq)
{
    dq_evictor_forget(x->e, seq);
    x->b->ops->kv_seq_free(x->b, dq_runner_kv(x->r), seq);
}

/* A prefix of n tokens in so many passes, each beside another sequence if there are more, and of which a fork shares pages
 * then; what is kept of it, and the rows after it. */
static void run_prefix(ending *end, rig *x, int n, int passes)
{
    const int32_t a = new_sequence(x, 1), other = new_sequence(x, 2);
    int32_t shares = -1;
    for (int i = 0; i < passes; i++) {
        begin(x);
        add(x, a, n * (i + 1) / passes - n * i / passes);
        if (passes > 1) add(x, other, 20 + n % 40);
        pass(x);
        if (i == 1) shares = fork(x, a);
    }
    evict(x);
    begin(x);
    add(x, a, 3);
    pass(x);
    look(x, end, a, 0);
    if (shares >= 0) forget(x, shares);
    forget(x, other);
    forget(x, a);
}

/* Of a cache with codes too, at every length: those where a page becomes codes for the row after the prefix with all policies
 * that read keys, the others with one in turn. */
TEST(codes_are_ranked_alike_at_every_length)
{
    static const char *const names[] = {"keydiff", "knorm", "leverage", "kvzap"};
    static const dq_kv_quant quants[] = {DQ_KV_PER_TOKEN, DQ_KV_PER_CHANNEL, DQ_KV_DITHER,
                                         DQ_KV_MIXED};
    static ending want, got;
    for (int i = 0; i < 16; i++) {
        if (!test_runs(i + 12, 16)) continue; /* per-channel codes, keydiff */
        const dq_evict_spec spec = spec_of(names[i % 4], 0.4, DQ_KV_BUDGET_UNIFORM, 0);
        dq_kv_spec codes = dq_kv_plain;
        rig one, two;
        codes.quant = quants[i / 4];
        codes.k_bits = codes.v_bits = 4;
        rig_open_codes(&one, models[i % 2], &codes, &spec, 1, false);
        rig_open_codes(&two, models[i % 2], &codes, &spec, 2, false);
        for (int n = 1; n <= 260; n++) {
            if (n % 64 != 7 && (n % 16 != i || !test_runs(n, 16))) continue;
            run_prefix(&want, &one, n, 1);
            run_prefix(&got, &two, n, n > 4 ? 4 : 1);
            assert_memory_equal(&got, &want, sizeof want);
        }
        rig_close(&one);
        rig_close(&two);
    }
}

TEST(keeping_all_changes_no_bit)
{
    static ending want[N_STORIES], got[N_STORIES];
    for (int m = 0; m < N_MODELS; m++) {
        run_together(want, models[m], &dq_evict_none, 2, 0, N_STORIES);
        for (int i = 0; i < dq_kv_n_policies; i++) {
            if (!test_runs(i + m, 14) || !is_there(&dq_kv_policies[i])) continue;
            const dq_evict_spec spec =
                spec_of(dq_kv_policies[i].name, 1, (dq_kv_budget)(i % DQ_KV_BUDGETS), 11);
            run_together(got, models[m], &spec, 2, 0, N_STORIES);
            assert_memory_equal(got, want, sizeof want);
        }
    }
}

TEST(bytes_fall_and_counts_are_reported)
{
    for (int i = 0; i < DQ_KV_BUDGETS; i++) {
        const dq_evict_spec spec = spec_of("h2o", 0.25, (dq_kv_budget)i, 0);
        rig x;
        rig_open(&x, models[2], &spec, 2, false);
        const int32_t a = new_sequence(&x, 1), b = new_sequence(&x, 2), c = new_sequence(&x, 3);
        begin(&x);
        add(&x, a, 256);
        add(&x, b, 40); /* a quarter is 10: raised to 11 */
        add(&x, c, 11); /* raised to all there is: nothing to raise */
        pass(&x);
        const dq_kv_bytes before = x.b->ops->kv_bytes(x.b, dq_runner_kv(x.r));
        evict(&x);
        const dq_kv_bytes after = x.b->ops->kv_bytes(x.b, dq_runner_kv(x.r));
        const int64_t lists = x.m->n_layers * groups(&x);
        assert_int_equal(x.report.before, lists * (256 + 40 + 11));
        assert_int_equal(x.report.kept, lists * (64 + 11 + 11));
        assert_int_equal(x.report.raised, 2);
        assert_true(x.report.gap_min >= 0 && isfinite(x.report.gap_min));
        assert_int_equal(before.tokens, x.report.before);
        assert_int_equal(after.tokens, x.report.kept);
        assert_true(after.unquantized < before.unquantized);
        rig_close(&x);
    }
}

/* Whatever N is: after each eviction the lists hold the budget of all tokens so far. */
TEST(every)
{
    static const int steps[] = {1, 2, 7, 16, 64};
    for (int i = 0; i < 5 * dq_kv_n_policies; i++) {
        if (!test_runs(i + 1, 11)) continue; /* steps of one token take longest */
        const dq_kv_policy *p = &dq_kv_policies[i / 5];
        if (!is_there(p)) continue;
        dq_evict_spec spec = spec_of(p->name, 0, DQ_KV_BUDGET_UNIFORM, steps[i % 5]);
        spec.tokens = 32;
        rig x;
        rig_open(&x, models[0], &spec, 2, p->pool == 1 && i % 5 == 2 && !(p->needs & ELSEWHERE));
        const int32_t a = new_sequence(&x, 1);
        for (int n = 30; n < 130; n += steps[i % 5]) {
            int32_t pos[TOKENS];
            begin(&x);
            add(&x, a, n == 30 ? 30 : steps[i % 5]);
            pass(&x);
            evict(&x);
            for (int l = 0; l < x.m->n_layers; l++) {
                assert_int_equal(positions(&x, l, a, 0, pos), n < 32 ? n : 32);
                for (int t = 0; t < 3; t++) assert_int_equal(pos[t], t);
                for (int t = 1; t <= 8; t++) assert_int_equal(pos[(n < 32 ? n : 32) - t], n - t);
            }
        }
        rig_close(&x);
    }
}

/* A conversation is cut after each of its turns, whatever the policy went by in the turns before. */
TEST(turns)
{
    for (int i = 0; i < dq_kv_n_policies; i++) {
        const dq_kv_policy *p = &dq_kv_policies[i];
        if (!test_runs(i, 4) || !is_there(p)) continue;
        dq_evict_spec spec = spec_of(p->name, 0, DQ_KV_BUDGET_UNIFORM, 0);
        spec.tokens = 32;
        rig x;
        rig_open(&x, models[0], &spec, 2, false);
        const int32_t a = new_sequence(&x, 1);
        for (int turn = 0; turn < 3; turn++) {
            begin(&x);
            add(&x, a, 50 - 20 * turn);
            pass(&x);
            evict(&x);
            assert_int_equal(positions(&x, x.m->n_layers - 1, a, 0, NULL), 32);
        }
        rig_close(&x);
    }
}

/* Of each list what its own gates say of its own rows, read before anything is evicted; the best are found one by one. */
TEST(each_list_has_gates_of_its_own)
{
    enum { N = 60, KEPT = 30, LISTS = LAYERS * GROUPS };
    dq_evict_spec spec = spec_of("kvzap", 0, DQ_KV_BUDGET_UNIFORM, 0);
    bool keep[LISTS][N] = {0};
    spec.tokens = KEPT;
    rig x;
    rig_open(&x, models[0], &spec, 2, false);
    const int32_t a = new_sequence(&x, 1);
    begin(&x);
    add(&x, a, N);
    pass(&x);
    for (int i = 0; i < x.m->n_layers * groups(&x); i++) {
        const int64_t cols = 2 * dq_head_order_key_channels(&x.m->map, i % groups(&x));
        float *row = calloc((size_t)(N * cols), sizeof *row);
        double score[N];
        int32_t pos[N];
        dq_err err = {0};
        for (int t = 0; t < N; t++) pos[t] = t;
        x.b->ops->kv_rows(x.b, dq_runner_kv(x.r), a, i / groups(&x), i % groups(&x), N - 1,
                          &x.m->rope, row);
        assert_int_equal(dq_kv_gates_score(score, x.m->gates, i, row, pos, N, &err), DQ_OK);
        int n = 0;
        for (int t = 0; t < N; t++) n += keep[i][t] = is_safe(&x, t, N);
        for (; n < KEPT; n++) {
            int best = -1;
            for (int t = 0; t < N; t++) {
                if (!keep[i][t] && (best < 0 || score[t] > score[best])) best = t;
            }
            keep[i][best] = true;
        }
        free(row);
    }
    evict(&x);
    for (int i = 0; i < x.m->n_layers * groups(&x); i++) {
        int32_t pos[TOKENS];
        assert_int_equal(positions(&x, i / groups(&x), a, i % groups(&x), pos), KEPT);
        for (int t = 0, k = 0; t < N; t++)
            if (keep[i][t]) assert_int_equal(pos[k++], t);
    }
    rig_close(&x);
}

static dq_status check(dq_evict_spec evict, dq_err *err)
{
    dq_kv_spec spec = dq_kv_plain;
    spec.evict = evict;
    return dq_evict_check(&spec, err);
}

static void expect_usage(dq_evict_spec spec, const char *text)
{
    dq_err err = {0};
    assert_int_equal(check(spec, &err), DQ_USAGE);
    if (!strstr(err.text, text)) print_error("%s\n", err.text);
    assert_non_null(strstr(err.text, text));
}

TEST(specs)
{
    dq_err err = {0};
    dq_evict_spec s = spec_of("h2o", 0.5, DQ_KV_BUDGET_UNIFORM, 0), t = s;
    bool raised;
    assert_int_equal(dq_evict_check(&dq_kv_plain, &err), DQ_OK);
    assert_int_equal(check(dq_evict_none, &err), DQ_OK);
    assert_int_equal(check(s, &err), DQ_OK);
    static const double bad[] = {0, -0.5, 1e-300, 9e-7, 1.01, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        t.keep = bad[i];
        expect_usage(t, "expected a share from 1e-06 to 1");
    }
    t.keep = 0;
    t.tokens = 63; /* sink 4 + recent 60 */
    expect_usage(t, "Give at least 64");
    assert_int_equal(check(t, &err), DQ_USAGE);
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_KV_SINK_RECENT);
    err = (dq_err){0};
    t.tokens = 64;
    assert_int_equal(check(t, &err), DQ_OK);
    t.keep = 0.5;
    expect_usage(t, "exclude each other");
    t = s;
    t.every = -1;
    expect_usage(t, "negative");
    t = s;
    t.window = -2;
    expect_usage(t, "negative");
    t = s;
    t.policy = NULL;
    expect_usage(t, "needs a policy");
    t = s;
    t.budget = DQ_KV_BUDGET_HEADS;
    expect_usage(t, "by heads needs a list");
    s.keep = 0.07; /* 0.07 * 100 is a little more than 7 in f64 */
    const dq_kv_spec kv = {.sink = 1, .recent = 1, .evict = s};
    assert_int_equal(dq_evict_budget(&kv, 100, &raised), 7);
    assert_int_equal(dq_evict_budget(&kv, 101, &raised), 8);
    assert_false(raised);
    assert_int_equal(dq_evict_budget(&kv, 10, &raised), 2);
    assert_true(raised);
    assert_int_equal(dq_evict_budget(&kv, 1, &raised), 1);
    assert_false(raised);
}

/* Sums follow a rewind, and tokens of a pass that was not watched count as zero. */
TEST(rewinds_and_unwatched_passes)
{
    for (int i = 0; i < 2; i++) {
        const dq_evict_spec spec = spec_of(i ? "diff" : "h2o", 0.3, DQ_KV_BUDGET_UNIFORM, 16);
        dq_err err = {0};
        dq_pass plain = {.logit = {.bits = 16}};
        dq_mat h;
        rig x;
        rig_open(&x, models[2], &spec, 2, true);
        const int32_t a = new_sequence(&x, 1);
        begin(&x);
        add(&x, a, 100);
        pass(&x);
        x.b->ops->kv_rewind(x.b, dq_runner_kv(x.r), a, 60);
        x.length[a] = 60;
        x.tag[a] = 5;
        for (int l = 0; l < x.m->n_layers; l++) {
            dq_oracle_rewind(x.oracle[l], a, 60);
            for (int c = 0; c < COLUMNS * groups(&x); c++)
                memset(&x.sum[place(l, a, c / COLUMNS)][c % COLUMNS][60], 0, 40 * sizeof(double));
        }
        begin(&x);
        add(&x, a, 20);
        pass(&x);
        begin(&x);
        add(&x, a, 15);
        dq_runner_pass(x.r, &x.batch, &plain, &h, &err);
        evict(&x);
        assert_true(x.n_compared == x.m->n_layers * groups(&x) && x.n_unsure == 0);
        rig_close(&x);
    }
}

TEST(unwatched_is_a_bug)
{
    dq_err err = {0};
    rig x;
    const dq_evict_spec spec = spec_of("h2o", 0.3, DQ_KV_BUDGET_UNIFORM, 0);
    rig_open(&x, models[0], &spec, 1, false);
    begin(&x);
    add(&x, new_sequence(&x, 1), 60);
    pass(&x);
    dq_evictor_forget(x.e, 0);
    assert_int_equal(dq_evictor_run(x.e, &x.batch, x.prefix, &x.report, &err), DQ_BUG);
    rig_close(&x);
}

/* Every allocation fails once: an error, never a crash or a leak. */
static void exhaust(const dq_evict_spec *spec)
{
    for (int64_t n = 1; n < 600; n++) {
        if (!test_runs((int)n, 7)) continue;
        dq_err err = {0};
        dq_pass p = {.logit = {.bits = 16}};
        dq_mat h;
        rig x;
        rig_open(&x, models[0], spec, 1, false);
        begin(&x);
        add(&x, new_sequence(&x, 1), 40);
        dq_alloc_fail_at(n);
        if (dq_evictor_watch(x.e, &x.batch, &p.columns, &err) == DQ_OK &&
            dq_runner_pass(x.r, &x.batch, &p, &h, &err) == DQ_OK &&
            dq_evictor_run(x.e, &x.batch, x.prefix, &x.report, &err) == DQ_OK)
            dq_evictor_fork(x.e, 0, 3, &err);
        dq_alloc_fail_at(0);
        assert_true(err.code == DQ_OK || err.code == DQ_RESOURCE);
        rig_close(&x);
        if (err.code == DQ_OK) return;
    }
    fail_msg("allocations never ended");
}

TEST(exhausted_memory)
{
    const dq_evict_spec h2o = spec_of("h2o", 0.3, DQ_KV_BUDGET_ADAPTIVE, 5);
    const dq_evict_spec kvzip = spec_of("kvzip", 0.3, DQ_KV_BUDGET_GLOBAL, 5);
    exhaust(&h2o);
    if (is_there(kvzip.policy)) exhaust(&kvzip);
}
