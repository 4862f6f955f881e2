/* Policies, budgets and choices as pure numbers.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "kv/kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 256 };

static const dq_kv_protected nothing = {0, 0, 1000};

TEST(test_find)
{
    static const char *const names[] = {"streaming", "h2o",   "snapkv", "knorm",   "random",
                                        "diff",      "kvzip", "kvzap",  "keydiff", "leverage",
                                        "a1",        "a2",    "sum"};
    dq_err err = {0};
    assert_int_equal(dq_kv_n_policies, 13);
    for (int i = 0; i < 13; i++) {
        const dq_kv_policy *p = dq_kv_policy_find(names[i], &err);
        assert_non_null(p);
        assert_string_equal(p->name, names[i]);
        assert_true(p->about[0] && p->pool % 2 == 1);
    }
    assert_null(dq_kv_policy_find("H2O", &err));
    assert_int_equal(err.code, DQ_USAGE);
    assert_non_null(strstr(err.text, "unknown policy H2O"));
    assert_non_null(strstr(err.text, "streaming, h2o, snapkv"));
    assert_non_null(strstr(err.text, "a2, sum)"));
}

/* The budget that nobody names is the policy's, by the maps of a model. */
TEST(usual_budgets)
{
    static const struct {
        const char *policy;
        dq_kv_budget one, two;
    } all[] = {{DQ_POLICY_USUAL, DQ_KV_BUDGET_GLOBAL, DQ_KV_BUDGET_UNIFORM},
               {"kvzip", DQ_KV_BUDGET_GLOBAL, DQ_KV_BUDGET_GLOBAL},
               {"kvzap", DQ_KV_BUDGET_GLOBAL, DQ_KV_BUDGET_GLOBAL},
               {"h2o", DQ_KV_BUDGET_UNIFORM, DQ_KV_BUDGET_UNIFORM}};
    dq_err err = {0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const dq_kv_policy *p = dq_kv_policy_find(all[i].policy, &err);
        assert_int_equal(dq_kv_budget_for(DQ_KV_BUDGET_USUAL, p, 1), all[i].one);
        assert_int_equal(dq_kv_budget_for(DQ_KV_BUDGET_USUAL, p, 2), all[i].two);
        assert_int_equal(dq_kv_budget_for(DQ_KV_BUDGET_ADAPTIVE, p, 1), DQ_KV_BUDGET_ADAPTIVE);
    }
    assert_int_equal(dq_kv_budget_for(DQ_KV_BUDGET_USUAL, NULL, 1), DQ_KV_BUDGET_UNIFORM);
    assert_string_equal(dq_kv_policy_usual(false)->name, "keydiff");
    assert_string_equal(dq_kv_policy_usual(true)->name, "kvzap");
}

static void score_of(double *score, const char *name, const dq_token_columns *c,
                     dq_kv_protected safe)
{
    dq_err err = {0};
    const dq_kv_policy *p = dq_kv_policy_find(name, &err);
    assert_non_null(p);
    dq_kv_policy_score(score, p, c, safe);
}

TEST(test_scores)
{
    static const int32_t pos[] = {0, 3, 9, 10};
    static const double m1[] = {1, 2, 3, 4}, m2[] = {10, 20, 30, 40}, lm[] = {-1, 5, 0, 2},
                        diff[] = {7, 6, 5, (double)NAN}, norm[] = {4, 3, 2, 1},
                        leverage[] = {.5, .25, 1, 0};
    const dq_token_columns two = {.n = 4,
                                  .pos = pos,
                                  .mass = {m1, m2},
                                  .lambda_mass = lm,
                                  .diff = diff,
                                  .key_norm = norm,
                                  .key_leverage = leverage};
    const dq_token_columns one = {.n = 4, .pos = pos, .mass = {m1, NULL}, .diff = m1};
    static const struct {
        const char *name;
        double want[4];
    } cases[] = {{"streaming", {0, 3, 9, 10}}, {"h2o", {11, 22, 33, 44}},
                 {"knorm", {-4, -3, -2, -1}},  {"diff", {7, 6, 5, -(double)INFINITY}},
                 {"a1", {1, 2, 3, 4}},         {"a2", {10, 20, 30, 40}},
                 {"sum", {0, 7, 3, 6}},        {"leverage", {.5, .25, 1, 0}}};
    double got[4];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        score_of(got, cases[i].name, &two, nothing);
        for (int t = 0; t < 4; t++) assert_true(got[t] == cases[i].want[t]);
    }
    static const char *const first_only[] = {"h2o", "a1", "diff", "sum"};
    for (int i = 0; i < 4; i++) { /* without a second map all of these are its mass */
        score_of(got, first_only[i], &one, nothing);
        assert_memory_equal(got, m1, sizeof got);
    }
    score_of(got, "a2", &one, nothing);
    for (int t = 0; t < 4; t++) assert_true(got[t] == 0);
}

/* The maximum over positions at most 2 away, by definition. */
static double pooled(const double *x, const int32_t *pos, int n, int i, dq_kv_protected safe)
{
    double best = isnan(x[i]) ? -(double)INFINITY : x[i];
    const bool own = pos[i] < safe.sink || pos[i] >= safe.end - safe.recent;
    for (int j = 0; j < n && !own; j++) {
        const bool other = pos[j] < safe.sink || pos[j] >= safe.end - safe.recent;
        if (!other && abs(pos[i] - pos[j]) <= 2) best = fmax(best, x[j]);
    }
    return best;
}

TEST(test_pooling)
{
    int32_t pos[MAX], next = 0;
    double mass[MAX], got[MAX];
    srand(3);
    for (int i = 0; i < MAX; i++) {
        pos[i] = next;
        next += 1 + (rand() % 4 == 0) * (rand() % 5); /* gaps, as after an eviction */
        mass[i] = i % 50 == 7 ? (double)NAN : rand() % 1000;
    }
    const dq_kv_protected safe = {4, 9, next};
    const dq_token_columns c = {.n = MAX, .pos = pos, .mass = {mass, NULL}};
    score_of(got, "snapkv", &c, safe);
    for (int i = 0; i < MAX; i++) assert_true(got[i] == pooled(mass, pos, MAX, i, safe));
}

TEST(test_random)
{
    int32_t pos[MAX];
    double a[MAX], b[MAX], sum = 0;
    dq_token_columns c = {.n = MAX, .pos = pos, .seed = dq_kv_policy_seed(1, 2, 3)};
    for (int i = 0; i < MAX; i++) pos[i] = i;
    score_of(a, "random", &c, nothing);
    for (int i = 0; i < MAX; i++) {
        assert_true(a[i] >= 0 && a[i] < 1);
        sum += a[i] / MAX;
        for (int j = 0; j < i; j++) assert_true(a[i] != a[j]);
    }
    assert_true(fabs(sum - 0.5) < 0.06);
    c.pos = pos + 100; /* goes by position, not by index */
    c.n = 10;
    score_of(b, "random", &c, nothing);
    assert_memory_equal(b, a + 100, 10 * sizeof *b);
    /* frozen: results must be repeatable for ever and everywhere */
    assert_true(dq_kv_policy_seed(1, 2, 3) == UINT64_C(0x6440369fb0283683));
    assert_true(a[0] == 0x1.7e08c9f487872p-1 && a[255] == 0x1.cbac730f4957cp-2);
    static const int other[][3] = {{2, 2, 3}, {1, 3, 3}, {1, 2, 4}, {1, 3, 2}};
    for (int i = 0; i < 4; i++) {
        c.seed = dq_kv_policy_seed((uint64_t)other[i][0], other[i][1], other[i][2]);
        score_of(b, "random", &c, nothing);
        for (int t = 0; t < 10; t++) assert_true(b[t] != a[100 + t]);
    }
}

static int64_t keep(int32_t *kept, const double *score, const int32_t *pos, int64_t n,
                    int64_t budget, dq_kv_protected safe)
{
    dq_err err = {0};
    int64_t n_kept = -1;
    assert_int_equal(dq_kv_policy_keep(kept, &n_kept, score, pos, n, budget, safe, &err), DQ_OK);
    for (int64_t i = 1; i < n_kept; i++) assert_true(kept[i] > kept[i - 1]);
    return n_kept;
}

static void expect_kept(const double *score, int64_t n, int64_t budget, dq_kv_protected safe,
                        const int32_t *want, int64_t n_want)
{
    int32_t pos[16], kept[16];
    for (int i = 0; i < 16; i++) pos[i] = i;
    assert_int_equal(keep(kept, score, pos, n, budget, safe), n_want);
    for (int64_t i = 0; i < n_want; i++) assert_int_equal(kept[i], want[i]);
}

TEST(test_keep)
{
    static const double flat[10] = {0}, rising[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const double inf = (double)INFINITY, nan = (double)NAN;
    const double odd[10] = {nan, inf, -inf, 1, nan, -1, 1, 0, -0.0, 1};
    const dq_kv_protected none = {0, 0, 10}, both = {2, 3, 10};
    expect_kept(flat, 10, 4, none, (int32_t[]){0, 1, 2, 3}, 4); /* ties: the lower positions */
    expect_kept(flat, 10, 7, both, (int32_t[]){0, 1, 2, 3, 7, 8, 9}, 7);
    expect_kept(rising, 10, 6, both, (int32_t[]){0, 1, 6, 7, 8, 9}, 6);
    expect_kept(rising, 10, 5, both, (int32_t[]){0, 1, 7, 8, 9}, 5);
    expect_kept(rising, 10, 1, both, (int32_t[]){0, 1, 7, 8, 9}, 5); /* never fewer */
    expect_kept(rising, 10, 0, none, NULL, 0);
    expect_kept(rising, 10, 10, both, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10);
    expect_kept(rising, 10, 99, none, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10);
    expect_kept(rising, 0, 3, both, NULL, 0);
    expect_kept(odd, 10, 3, none, (int32_t[]){1, 3, 6}, 3);
    expect_kept(odd, 10, 6, none, (int32_t[]){1, 3, 6, 7, 8, 9}, 6);       /* -0 is 0 */
    expect_kept(odd, 10, 8, none, (int32_t[]){0, 1, 3, 5, 6, 7, 8, 9}, 8); /* NaN is -infinity */
    /* windows larger than what there is, and meeting each other */
    expect_kept(rising, 10, 4, (dq_kv_protected){20, 0, 10},
                (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10);
    expect_kept(rising, 10, 4, (dq_kv_protected){1, 90, 10},
                (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10);
    expect_kept(rising, 4, 3, (dq_kv_protected){0, INT32_MAX, INT32_MAX}, (int32_t[]){0, 1, 2, 3},
                4);
}

/* Positions with holes: windows go by position. */
TEST(test_keep_positions)
{
    static const int32_t pos[] = {1, 3, 4, 90, 95, 99};
    static const double score[] = {0, 5, 6, 7, 0, 0};
    int32_t kept[6];
    const dq_kv_protected safe = {4, 5, 100};
    assert_int_equal(dq_kv_policy_protected(pos, 6, safe), 4); /* 1, 3, 95, 99 */
    assert_int_equal(keep(kept, score, pos, 6, 5, safe), 5);
    assert_int_equal(kept[2], 3);
}

TEST(test_gap)
{
    static const int32_t pos[] = {0, 1, 2, 3, 4, 5};
    static const double score[] = {9, 8, 4, 2, 1, 9};
    const double deep[] = {0, -3, -2, -(double)INFINITY, -(double)INFINITY, 0};
    const dq_kv_protected safe = {1, 1, 6};
    int32_t kept[6];
    int64_t n = keep(kept, score, pos, 6, 4, safe);
    assert_true(dq_kv_policy_gap(kept, n, score, pos, 6, safe) == 0.5); /* 4 against 2 */
    n = keep(kept, score, pos, 6, 2, safe);                             /* nothing by score */
    assert_true(isinf(dq_kv_policy_gap(kept, n, score, pos, 6, safe)));
    n = keep(kept, score, pos, 6, 6, safe); /* nothing dropped */
    assert_true(isinf(dq_kv_policy_gap(kept, n, score, pos, 6, safe)));
    n = keep(kept, deep, pos, 6, 3, safe);
    assert_true(fabs(dq_kv_policy_gap(kept, n, deep, pos, 6, safe) - 1.0 / 3) < 1e-15);
    n = keep(kept, deep, pos, 6, 4, safe); /* -3 against -infinity */
    assert_true(isinf(dq_kv_policy_gap(kept, n, deep, pos, 6, safe)));
    n = keep(kept, deep, pos, 6, 5, safe); /* two of them tie */
    assert_true(dq_kv_policy_gap(kept, n, deep, pos, 6, safe) == 0);
}

static int larger_first(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a < b) - (a > b);
}

/* common: scores as they are and no floor, else parts of their sum and a fifth. */
static void share_by(int64_t *share, double *gap, const double *const *score, int n_groups,
                     int64_t n, int64_t budget, dq_kv_protected safe, bool common)
{
    static int32_t pos[MAX];
    dq_pool_group group[8];
    dq_err err = {0};
    for (int i = 0; i < MAX; i++) pos[i] = i;
    for (int g = 0; g < n_groups; g++) group[g] = (dq_pool_group){score[g], pos, n};
    const dq_pool pool = {.group = group,
                          .n_groups = n_groups,
                          .budget = budget,
                          .safe = safe,
                          .common = common,
                          .floor = common ? 0 : DQ_KV_ADAPTIVE_FLOOR};
    assert_int_equal(dq_kv_budget_of_groups(share, gap, &pool, &err), DQ_OK);
}

static void share_of(int64_t *share, double *gap, const double *const *score, int n_groups,
                     int64_t n, int64_t budget, dq_kv_protected safe)
{
    share_by(share, gap, score, n_groups, n, budget, safe, false);
}

TEST(test_groups)
{
    double flat[MAX], peaked[MAX] = {0}, negative[MAX];
    int64_t share[3];
    double gap;
    const dq_kv_protected safe = {4, 6, 100};
    for (int i = 0; i < MAX; i++) {
        flat[i] = 1;
        negative[i] = -1 - i % 2; /* as knorm: half of the tokens count double */
    }
    peaked[50] = 5;
    /* 30 of 100: 20 by score; the peaked group needs one of them, and gets a fifth: 4 */
    share_of(share, &gap, (const double *const[]){flat, peaked}, 2, 100, 30, safe);
    assert_int_equal(share[0], 10 + 36);
    assert_int_equal(share[1], 10 + 4);
    assert_true(gap == 0);
    /* equal groups share equally, whatever the scale of their scores */
    double scaled[MAX];
    for (int i = 0; i < MAX; i++) scaled[i] = 1000 * negative[i];
    share_of(share, &gap, (const double *const[]){negative, scaled, negative}, 3, 100, 40, safe);
    assert_int_equal(share[0] + share[1] + share[2], 120);
    for (int g = 0; g < 3; g++) assert_true(share[g] >= 10 + 6);
    /* all that a group has */
    share_of(share, &gap, (const double *const[]){flat, peaked}, 2, 100, 99, safe);
    assert_int_equal(share[0] + share[1], 198);
    share_of(share, &gap, (const double *const[]){flat, peaked}, 2, 100, 100, safe);
    assert_true(share[0] == 100 && share[1] == 100 && isinf(gap));
    share_of(share, &gap, (const double *const[]){flat, peaked}, 2, 100, 5, safe);
    assert_true(share[0] == 10 && share[1] == 10); /* protected tokens at least */
    double bad[MAX];
    for (int i = 0; i < MAX; i++) bad[i] = i % 2 ? (double)NAN : (double)INFINITY;
    share_of(share, &gap, (const double *const[]){flat, bad}, 2, 100, 30, safe);
    assert_int_equal(share[0] + share[1], 60);
    assert_int_equal(share[1], 10 + 36);
}

/* One unit for all: the group whose scores are larger takes everything, down to what is protected. */
TEST(test_common_pool)
{
    double low[MAX], high[MAX];
    int64_t share[2];
    double gap;
    const dq_kv_protected safe = {4, 6, 100};
    for (int i = 0; i < MAX; i++) {
        low[i] = 0.1 + 1e-4 * i;
        high[i] = 0.5 + 1e-4 * i;
    }
    share_by(share, &gap, (const double *const[]){low, high}, 2, 100, 30, safe, true);
    assert_int_equal(share[0], 10);
    assert_int_equal(share[1], 50);
    assert_true(fabs(gap - 1e-4 / high[54]) < 1e-9);
    share_by(share, &gap, (const double *const[]){low, high}, 2, 100, 60, safe, true);
    assert_int_equal(share[0], 20);
    assert_int_equal(share[1], 100);
    share_of(share, &gap, (const double *const[]){low, high}, 2, 100, 30, safe);
    assert_true(share[0] >= 14 && share[1] >= 14); /* in units of their own neither is better */
}

/* The pool by definition: floors first, then the best of the rest one by one. */
TEST(test_pool_by_definition)
{
    enum { G = 3, N = 90 };
    static double score[G][MAX];
    const dq_kv_protected safe = {3, 7, N};
    srand(11);
    for (int round = 0; round < 20; round++) {
        const int64_t budget = 10 + 4 * round, spare = budget - 10, least = (spare + 4) / 5;
        double sum[G] = {0}, gap;
        bool taken[G][N] = {0};
        int64_t want[G], share[G], left = G * (spare - least);
        for (int g = 0; g < G; g++) {
            want[g] = 10 + least;
            for (int i = 0; i < N; i++) {
                score[g][i] = pow((double)rand() / RAND_MAX, 1 + 3 * g) * (round % 2 ? -1 : 1);
                if (i >= 3 && i < N - 7) sum[g] += fabs(score[g][i]);
            }
        }
        for (int64_t step = 0; step < G * least + left; step++) {
            int bg = -1, bi = -1;
            for (int g = 0; g < G; g++) {
                if (step < G * least && g != step / least) continue;
                for (int i = 3; i < N - 7; i++) {
                    if (!taken[g][i] &&
                        (bg < 0 || score[g][i] / sum[g] > score[bg][bi] / sum[bg])) {
                        bg = g;
                        bi = i;
                    }
                }
            }
            taken[bg][bi] = true;
            if (step >= G * least) want[bg]++;
        }
        share_of(share, &gap, (const double *const[]){score[0], score[1], score[2]}, G, N, budget,
                 safe);
        for (int g = 0; g < G; g++) assert_int_equal(share[g], want[g]);
    }
}

/* Pages by definition: the page with the best first token is opened until there is room, then the best tokens that have
 * room are taken. */
TEST(test_pool_of_pages)
{
    enum { G = 4, N = 90, PAGE = 8 };
    static double score[G][MAX];
    static int32_t pos[MAX];
    const dq_kv_protected safe = {3, 7, N}; /* 10: a page and a started one */
    srand(12);
    for (int i = 0; i < MAX; i++) pos[i] = i;
    for (int round = 0; round < 60; round++) {
        const int64_t budget = 1 + round % 18 * 5, spare = budget > 10 ? budget - 10 : 0;
        int64_t share[G], want[G], room[G], left = G * spare, free = 0, room_left = 0;
        double best[G][N], gap;
        dq_pool_group group[G];
        dq_err err = {0};
        for (int g = 0; g < G; g++) {
            for (int i = 0; i < N; i++) best[g][i] = score[g][i] = rand() % 1000 + 300 * g;
            group[g] = (dq_pool_group){score[g], pos, N};
            qsort(best[g] + 3, N - 10, sizeof **best, larger_first); /* protected ones aside */
            want[g] = 10;
            room[g] = 16;
            free += 6;
        }
        while (free < left) {
            int open = -1;
            for (int g = 0; g < G; g++) {
                if (room[g] == N) continue;
                if (open < 0 || best[g][room[g] - 7] > best[open][room[open] - 7] ||
                    (best[g][room[g] - 7] == best[open][room[open] - 7] && room[g] < room[open]))
                    open = g;
            }
            const int64_t more = N - room[open] < PAGE ? N - room[open] : PAGE;
            room[open] += more;
            free += more;
        }
        for (; left > 0; left--) {
            int next = -1;
            for (int g = 0; g < G; g++) {
                if (want[g] == room[g]) continue;
                if (next < 0 || best[g][want[g] - 7] > best[next][want[next] - 7]) next = g;
            }
            want[next]++;
        }
        const dq_pool pool = {.group = group,
                              .n_groups = G,
                              .budget = budget,
                              .safe = safe,
                              .common = true,
                              .page = PAGE};
        assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
        int64_t kept = 0;
        for (int g = 0; g < G; g++) {
            if (gap > 0) assert_int_equal(share[g], want[g]);
            kept += share[g];
            const int64_t end = (share[g] + PAGE - 1) / PAGE * PAGE;
            room_left += (end < N ? end : N) - share[g];
        }
        assert_int_equal(kept, G * (budget > 10 ? budget : 10));
        if (budget >= 16)
            assert_true(room_left < PAGE); /* no more than what protected tokens begin */
    }
}

/* Lists of layers with a window are empty here: they neither give nor take. */
TEST(test_windows_take_no_part)
{
    double score[2][MAX];
    static int32_t pos[MAX];
    int64_t share[4], alone[2];
    double gap, gap_alone;
    dq_err err = {0};
    for (int i = 0; i < MAX; i++) {
        pos[i] = i;
        score[0][i] = i * 7919 % MAX;
        score[1][i] = 2 * (i * 104729 % MAX);
    }
    const dq_pool_group full[2] = {{score[0], pos, 96}, {score[1], pos, 96}};
    const dq_pool_group all[4] = {full[0], {0}, {0}, full[1]};
    for (int i = 0; i < 8; i++) {
        dq_pool pool = {.group = full,
                        .n_groups = 2,
                        .budget = 20 + 7 * i,
                        .safe = {3, 5, 96},
                        .common = i % 2,
                        .floor = i / 2 % 2 ? 0 : DQ_KV_ADAPTIVE_FLOOR,
                        .page = i / 4 * 8};
        assert_int_equal(dq_kv_budget_of_groups(alone, &gap_alone, &pool, &err), DQ_OK);
        pool.group = all;
        pool.n_groups = 4;
        assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
        assert_true(share[0] == alone[0] && share[3] == alone[1] && gap == gap_alone);
        assert_true(share[1] == 0 && share[2] == 0);
    }
}

/* Protected tokens fill a page of eight: a floor of fewer than eight more begins none, one of eight does. */
TEST(test_floor_in_pages)
{
    double low[MAX], high[MAX];
    static int32_t pos[MAX];
    int64_t share[2];
    double gap;
    dq_err err = {0};
    for (int i = 0; i < MAX; i++) {
        pos[i] = i;
        low[i] = 1 + 1e-4 * i;
        high[i] = 2 + 1e-4 * i;
    }
    const dq_pool_group group[2] = {{low, pos, 96}, {high, pos, 96}};
    dq_pool pool = {.group = group,
                    .n_groups = 2,
                    .budget = 16,
                    .safe = {3, 5, 96},
                    .common = true,
                    .floor = 5,
                    .page = 8};
    assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
    assert_int_equal(share[0], 8);
    assert_int_equal(share[1], 24);
    pool.budget = 88; /* a fifth of 80 */
    assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
    assert_int_equal(share[0], 80);
    assert_int_equal(share[1], 96);
    pool.budget = 40; /* 7 of 32: none */
    assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
    assert_int_equal(share[0], 8);
    assert_int_equal(share[1], 72);
    pool.budget = 48; /* 8 of 40: a page */
    assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
    assert_int_equal(share[0], 16);
    assert_int_equal(share[1], 80);
    low[10] = (double)NAN;
    high[10] = (double)INFINITY;
    assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
    assert_int_equal(share[0] + share[1], 96);
}

TEST(test_no_memory)
{
    static const double score[4] = {1, 2, 3, 4};
    static const int32_t pos[4] = {0, 1, 2, 3};
    int32_t kept[4];
    int64_t n, share[1];
    double gap;
    dq_err err = {0}, again = {0};
    const dq_pool_group group = {score, pos, 4};
    const dq_pool pool = {.group = &group, .n_groups = 1, .budget = 2, .safe = nothing};
    dq_alloc_fail_at(1);
    assert_int_equal(dq_kv_policy_keep(kept, &n, score, pos, 4, 2, nothing, &err), DQ_RESOURCE);
    dq_alloc_fail_at(1);
    assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &again), DQ_RESOURCE);
    dq_alloc_fail_at(0);
}
