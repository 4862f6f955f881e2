/* Greedy generation: the ids of transformers on the embedded pair, and the bits of a loop that starts over
 * for each id, however prompts are grouped; what ends a sequence, and what a failure leaves.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "eval/kinds.h"

#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { N_PROMPTS = 8, N_SHARING = 5, MAX_NEW = 20, MAX_FED = 600 };

/* Prompts and their continuations by transformers (tests/golden/generate.py). The first N_SHARING
 * prompts have 39 tokens in common. */
typedef struct golden_case {
    int32_t ids[MAX_FED], new[MAX_NEW];
    double logp[MAX_NEW];
    int64_t n, n_new, to_stop;
    int32_t stop;
    bool stopped;
} golden_case;

typedef struct rig {
    dq_model *m;
    dq_backend *b;
    dq_runner *r;
    dq_arena *a;
    golden_case c[N_PROMPTS];
    dq_generate_prompt prompt[N_PROMPTS];
    dq_pass pass;
    dq_kv_spec kv;
    dq_generate_spec spec;
} rig;

static int64_t read_ids(int32_t *ids, const json_t *list)
{
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int64_t)n;
}

static void read_cases(rig *x, const char *model)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/generate/golden.json");
    int n = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *o = json_array_get(root, i), *logp = json_object_get(o, "logp");
        if (strcmp(json_string_value(json_object_get(o, "model")), model) != 0) continue;
        assert_true(n < N_PROMPTS);
        golden_case *c = &x->c[n++];
        c->n = read_ids(c->ids, json_object_get(o, "ids"));
        c->n_new = read_ids(c->new, json_object_get(o, "new"));
        for (size_t j = 0; j < json_array_size(logp); j++)
            c->logp[j] = json_number_value(json_array_get(logp, j));
        c->stop = (int32_t)json_integer_value(json_object_get(o, "stop"));
        c->to_stop = (int64_t)json_array_size(json_object_get(o, "new_to_stop"));
        c->stopped = json_is_true(json_object_get(o, "stopped"));
    }
    assert_int_equal(n, N_PROMPTS);
    json_decref(root);
}

/* The first n prompts, with `max_new` ids each. */
static void ask_for(rig *x, int64_t n, int64_t max_new)
{
    for (int i = 0; i < N_PROMPTS; i++)
        x->prompt[i] = (dq_generate_prompt){.ids = x->c[i].ids, .n = x->c[i].n, .max_new = max_new};
    x->spec = (dq_generate_spec){.prompt = x->prompt, .n = n, .logp = true};
}

static void rig_open(rig *x, const char *model, const dq_kv_spec *kv, int threads)
{
    dq_err err = {0};
    memset(x, 0, sizeof *x);
    x->m = given_model(DQ_SOURCE_DIR "/calib/pair/%s", model);
    x->b = given_backend(threads);
    assert_int_equal(dq_runner_new(&x->r, x->m, x->b, kv, &err), DQ_OK);
    x->a = given_arena();
    x->kv = *kv;
    x->pass = (dq_pass){.logit = {.bits = 16}};
    read_cases(x, model);
    ask_for(x, N_PROMPTS, MAX_NEW);
}

static void rig_close(rig *x)
{
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_model_close(x->m);
}

static void expect_no_tokens(rig *x)
{
    assert_int_equal(x->b->ops->kv_bytes(x->b, dq_runner_kv(x->r)).tokens, 0);
}

/* Results of n prompts. */
typedef struct results {
    dq_generate_result *of;
    int64_t n;
} results;

static void *given_zeros(dq_arena *a, int64_t n, size_t size)
{
    dq_err err = {0};
    void *p = dq_alloc(a, (size_t)n, size, &err);
    assert_non_null(p);
    return p;
}

/* The status of what is refused. */
static dq_status refusal(rig *x, dq_err *err)
{
    dq_scorer s;
    *err = (dq_err){0};
    dq_score_begin(&s, x->r, &x->pass, &x->kv, err);
    assert_null(dq_generate(&s, &x->spec, x->a, err));
    dq_score_end(&s);
    return err->code;
}

static results generate(rig *x, dq_score_work *work)
{
    dq_scorer s;
    dq_err err = {0};
    dq_score_begin(&s, x->r, &x->pass, &x->kv, &err);
    assert_string_equal(err.text, "");
    const results g = {dq_generate(&s, &x->spec, x->a, &err), x->spec.n};
    assert_string_equal(err.text, "");
    for (int64_t i = 0; i < g.n; i++) assert_int_not_equal(g.of[i].end, DQ_TEXT_END_NONE);
    dq_score_work_add(work, &s.work);
    dq_score_end(&s);
    expect_no_tokens(x);
    return g;
}

static void expect_same(const results *a, const results *b)
{
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++) {
        const size_t n = (size_t)b->of[i].n;
        assert_int_equal(a->of[i].n, n);
        assert_int_equal(a->of[i].end, b->of[i].end);
        if (n == 0) continue;
        assert_memory_equal(a->of[i].ids, b->of[i].ids, n * sizeof *a->of[i].ids);
        assert_memory_equal(a->of[i].logp, b->of[i].logp, n * sizeof *a->of[i].logp);
    }
}

/* ---- transformers ---- */

static void check_golden(const char *model)
{
    rig x;
    dq_score_work work = {0};
    rig_open(&x, model, &dq_kv_plain, 2);
    results g = generate(&x, &work);
    int stops = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(g.of[i].n, x.c[i].n_new);
        assert_int_equal(g.of[i].end, DQ_TEXT_END_MAX_NEW);
        assert_memory_equal(g.of[i].ids, x.c[i].new, (size_t)x.c[i].n_new * sizeof(int32_t));
        for (int j = 0; j < x.c[i].n_new; j++)
            assert_true(fabs(g.of[i].logp[j] - x.c[i].logp[j]) < 1e-4);
    }
    x.spec.stop_id = &x.c[0].stop;
    x.spec.n_stop_ids = 1;
    g = generate(&x, &work);
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(g.of[i].n, x.c[i].to_stop);
        assert_int_equal(g.of[i].end, x.c[i].stopped ? DQ_TEXT_END_STOP_ID : DQ_TEXT_END_MAX_NEW);
        if (x.c[i].to_stop > 0)
            assert_memory_equal(g.of[i].ids, x.c[i].new, (size_t)x.c[i].to_stop * sizeof(int32_t));
        stops += x.c[i].stopped;
    }
    assert_true(stops > 0);
    rig_close(&x);
}

TEST(test_golden)
{
    check_golden("llama");
    check_golden("diffllama");
}

/* ---- A loop that starts over for each id ---- */

static void one_pass(rig *x, int32_t seq, const int32_t *ids, int64_t from, int64_t n,
                     dq_evictor *evictor, bool then_evict, dq_mat *last)
{
    static int32_t pos[MAX_FED];
    dq_err err = {0};
    dq_mat hidden;
    dq_pass pass = x->pass;
    dq_evict_report report = dq_evict_report_none;
    const int64_t cu[2] = {0, n};
    const int32_t prefix = (int32_t)(from + n);
    for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)(from + i);
    const dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &seq, .ids = ids + from, .pos = pos};
    if (evictor) dq_evictor_watch(evictor, &batch, &pass.columns, &err);
    dq_runner_pass(x->r, &batch, &pass, &hidden, &err);
    if (then_evict) dq_evictor_run(evictor, &batch, &prefix, &report, &err);
    dq_backend_sync(x->b, &err);
    assert_string_equal(err.text, "");
    *last = (dq_mat){.p = hidden.p + (n - 1) * hidden.cols, .rows = 1, .cols = hidden.cols};
}

/* The id that follows ids[n_prompt + n_new]. `steps`: in the passes of generation, instead of one; with a context
 * the cache is cut after that. */
static int32_t next_id(rig *x, const int32_t *ids, int64_t n_prompt, int64_t context, int64_t n_new,
                       bool steps, double *logp)
{
    dq_err err = {0};
    dq_mat last;
    dq_evictor *evictor = NULL;
    int32_t top1;
    const bool evicts = x->kv.evict.policy != NULL;
    const int64_t every = x->kv.evict.every;
    if (evicts) dq_evictor_new(&evictor, x->r, &x->kv, &(dq_pass){.logit = {.bits = 16}}, &err);
    const int32_t seq = x->b->ops->kv_seq_new(x->b, dq_runner_kv(x->r));
    if (steps) {
        const int64_t cut = context ? context : n_prompt;
        one_pass(x, seq, ids, 0, cut, evictor, evicts, &last);
        if (context) one_pass(x, seq, ids, cut, n_prompt - cut, evictor, false, &last);
        for (int64_t i = 0; i < n_new; i++)
            one_pass(x, seq, ids, n_prompt + i, 1, evictor,
                     evicts && every > 0 && (i + 1) % every == 0, &last);
    } else {
        one_pass(x, seq, ids, 0, n_prompt + n_new, NULL, false, &last);
    }
    x->b->ops->logprob(x->b, NULL, &top1, last, &x->m->head, &(int32_t){-1}, DQ_NUM_F32);
    dq_backend_sync(x->b, &err);
    x->b->ops->logprob(x->b, logp, NULL, last, &x->m->head, &top1, DQ_NUM_F32);
    x->b->ops->kv_seq_free(x->b, dq_runner_kv(x->r), seq);
    dq_backend_sync(x->b, &err);
    dq_evictor_free(evictor);
    assert_string_equal(err.text, "");
    return top1;
}

static results slowly(rig *x, bool steps)
{
    const results g = {given_zeros(x->a, x->spec.n, sizeof(dq_generate_result)), x->spec.n};
    static int32_t ids[MAX_FED];
    for (int64_t i = 0; i < g.n; i++) {
        const dq_generate_prompt *p = &x->prompt[i];
        dq_generate_result *to = &g.of[i];
        to->ids = given_zeros(x->a, p->max_new, sizeof *to->ids);
        to->logp = given_zeros(x->a, p->max_new, sizeof *to->logp);
        memcpy(ids, p->ids, (size_t)p->n * sizeof *ids);
        for (; to->n < p->max_new; to->n++) {
            to->ids[to->n] = next_id(x, ids, p->n, p->context, to->n, steps, &to->logp[to->n]);
            ids[p->n + to->n] = to->ids[to->n];
        }
        to->end = DQ_TEXT_END_MAX_NEW;
    }
    return g;
}

/* How logits are rounded and what the cache keeps. */
typedef struct setting {
    int bits;
    dq_granularity granularity;
    int k_bits, v_bits;
    const char *policy;
    double keep;
    int64_t every;
    bool whole;  /* one pass over everything gives the same bits */
    bool shares; /* a common beginning is computed once */
} setting;

static const setting settings[] = {
    {16, DQ_GRANULARITY_TENSOR, 16, 16, NULL, 1, 0, true, true},
    {4, DQ_GRANULARITY_ROW, 16, 16, NULL, 1, 0, true, true},
    {4, DQ_GRANULARITY_TENSOR, 16, 16, NULL, 1, 0, false, false},
    {5, DQ_GRANULARITY_HEAD, 16, 16, NULL, 1, 0, false, false},
    {3, DQ_GRANULARITY_TILE, 16, 16, NULL, 1, 0, false, false},
    {16, DQ_GRANULARITY_TENSOR, 4, 2, NULL, 1, 0, true, true},
    {16, DQ_GRANULARITY_TENSOR, 16, 16, "streaming", 0.5, 3, false, true},
    {6, DQ_GRANULARITY_ROW, 8, 8, "knorm", 0.4, 0, false, true},
    {16, DQ_GRANULARITY_TENSOR, 6, 3, "random", 0.5, 2, false, true},
    {16, DQ_GRANULARITY_TENSOR, 16, 16, "h2o", 0.3, 2, false, false},
    {16, DQ_GRANULARITY_TENSOR, 4, 4, "snapkv", 0.5, 4, false, false},
    {4, DQ_GRANULARITY_TENSOR, 16, 16, "diff", 0.5, 1, false, false},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static dq_kv_spec kv_of(const setting *s)
{
    dq_err err = {0};
    dq_kv_spec kv = dq_kv_plain;
    kv.k_bits = s->k_bits;
    kv.v_bits = s->v_bits;
    kv.sink = 2;
    kv.recent = 8;
    if (s->policy) kv.evict.policy = dq_kv_policy_find(s->policy, &err);
    kv.evict.keep = s->keep;
    kv.evict.every = s->every;
    assert_string_equal(err.text, "");
    return kv;
}

static void check_groups(const char *model, const setting *s, int threads)
{
    static const int64_t limits[][2] = {{0, 0}, {1, 1}, {110, 100}, {10000, N_SHARING}};
    rig x;
    dq_kv_spec kv = kv_of(s);
    rig_open(&x, model, &kv, threads);
    x.pass.logit = (dq_logit_spec){.bits = s->bits, .granularity = s->granularity};
    ask_for(&x, N_PROMPTS, 5);
    for (int j = 2; j < N_PROMPTS - 1; j++) x.prompt[j].n = 73 + j; /* a page and a bit */
    x.prompt[5].n = 33;
    x.prompt[2].max_new = 1;
    x.prompt[3].max_new = 3;
    results want = slowly(&x, !s->whole);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        dq_score_work work = {0};
        x.spec.max_rows = limits[i][0];
        x.spec.max_seqs = limits[i][1];
        results got = generate(&x, &work);
        expect_same(&got, &want);
        if (i == 1 || !s->shares) assert_int_equal(work.computed, work.tokens);
        if (i == 2 && s->shares) /* 39 tokens for three prompts, 75 for two, others alone */
            assert_int_equal(work.computed, work.tokens - 2 * 39 - 75);
        if (i == 3 && s->shares) /* 39 tokens once for five prompts */
            assert_int_equal(work.computed, work.tokens - (N_SHARING - 1) * 39);
    }
    rig_close(&x);
}

/* Prompts of which a cache evicts the beginning before it sees the rest. */
static void check_contexts(const char *model, const setting *s)
{
    static const int64_t limits[][2] = {{0, 0}, {1, 1}, {10000, N_SHARING}};
    rig x;
    dq_kv_spec kv = kv_of(s);
    rig_open(&x, model, &kv, 1);
    x.pass.logit = (dq_logit_spec){.bits = s->bits, .granularity = s->granularity};
    ask_for(&x, N_PROMPTS - 1, 4); /* the last one has one id */
    results whole = slowly(&x, !s->whole);
    for (int j = 0; j < N_PROMPTS - 1; j++) x.prompt[j].context = x.prompt[j].n * (3 + j % 4) / 8;
    const results want = slowly(&x, true);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        dq_score_work work = {0};
        x.spec.max_rows = limits[i][0];
        x.spec.max_seqs = limits[i][1];
        x.spec.measure = true;
        const results got = generate(&x, &work);
        expect_same(&got, &want);
        int64_t tokens = 0; /* what the contexts had, and not the whole prompts */
        for (int j = 0; j < N_PROMPTS - 1; j++) tokens += x.prompt[j].context;
        assert_int_equal(work.cached.tokens, tokens);
    }
    if (s->whole) expect_same(&whole, &want); /* codes are as if streamed */
    x.prompt[0].context = x.prompt[0].n;      /* nothing would be left to predict the first id */
    dq_err err;
    assert_int_equal(refusal(&x, &err), DQ_BUG);
    x.prompt[0].context = 0; /* and the others have one */
    assert_int_equal(refusal(&x, &err), DQ_BUG);
    rig_close(&x);
}

TEST(test_contexts)
{
    for (int i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        const bool cut = s->k_bits < 16 || s->policy;
        if (cut && s->every == 0) check_contexts("diffllama", s);
    }
}

TEST(test_groups)
{
    for (int s = 0; s < N_SETTINGS; s++) {
        if (!test_runs(s, 3)) continue;
        check_groups(s % 2 ? "llama" : "diffllama", &settings[s], 1 + s % 2);
    }
}

/* Prompts that are equal, that others begin with, and that have less in common than the first two. */
TEST(test_order)
{
    static const int order[] = {4, 1, 3, 0, 4};
    rig x;
    dq_score_work together = {0}, single = {0};
    rig_open(&x, "diffllama", &dq_kv_plain, 2);
    for (int i = 0; i < 5; i++)
        x.prompt[i] =
            (dq_generate_prompt){.ids = x.c[order[i]].ids, .n = x.c[order[i]].n, .max_new = 3};
    x.spec.n = 5;
    results all = generate(&x, &together);
    x.spec.max_seqs = 2;
    results pairs = generate(&x, &single);
    assert_int_equal(single.computed, single.tokens - 63 - 39);
    x.spec.max_seqs = 1;
    results each = generate(&x, &single);
    expect_same(&all, &each);
    expect_same(&pairs, &each);
    expect_same(&(results){.of = &all.of[4], .n = 1}, &(results){.of = &all.of[0], .n = 1});
    assert_int_equal(together.computed, together.tokens - 4 * 39);
    rig_close(&x);
}

/* The number of threads changes no bit, and settings that evict or round do change what comes out. */
TEST(test_threads)
{
    rig x, y;
    dq_score_work work = {0};
    const setting *s = &settings[7];
    dq_kv_spec kv = kv_of(s);
    rig_open(&x, "diffllama", &dq_kv_plain, 1);
    results plain = generate(&x, &work);
    rig_open(&y, "diffllama", &kv, 1);
    y.pass.logit = (dq_logit_spec){.bits = s->bits, .granularity = s->granularity};
    results one = generate(&y, &work);
    bool same = true;
    for (int i = 0; i < N_PROMPTS; i++) same = same && one.of[i].logp[0] == plain.of[i].logp[0];
    assert_false(same);
    rig z;
    rig_open(&z, "diffllama", &kv, 3);
    z.pass.logit = y.pass.logit;
    results three = generate(&z, &work);
    expect_same(&three, &one);
    rig_close(&z);
    rig_close(&y);
    rig_close(&x);
}

/* What prompts take adds up the same however they are grouped. */
TEST(test_measure)
{
    rig x;
    dq_kv_spec kv = kv_of(&settings[8]);
    dq_score_work together = {0}, single = {0};
    rig_open(&x, "llama", &kv, 2);
    ask_for(&x, N_PROMPTS, 4);
    x.spec.measure = true;
    x.spec.max_seqs = N_SHARING;
    results all = generate(&x, &together);
    x.spec.max_seqs = 1;
    results each = generate(&x, &single);
    expect_same(&all, &each);
    assert_memory_equal(&together.cached, &single.cached, sizeof single.cached);
    assert_int_equal(together.cached.contexts, N_PROMPTS);
    assert_int_equal(together.cached.evicted, N_PROMPTS);
    int64_t n = 0;
    for (int i = 0; i < N_PROMPTS; i++) n += x.prompt[i].n;
    assert_int_equal(together.cached.tokens, n);
    assert_int_equal(together.cached.tokens_cut, n - 1); /* the prompt of one id is whole */
    assert_true(together.cached.bytes.codes > 0);
    assert_int_equal(together.computed, together.tokens);
    x.spec.logp = false;
    results bare = generate(&x, &single);
    assert_null(bare.of[0].logp);
    assert_memory_equal(bare.of[0].ids, all.of[0].ids, 4 * sizeof(int32_t));
    rig_close(&x);
}

/* ---- Ends ---- */

typedef struct watcher {
    int64_t calls[N_PROMPTS];
    int64_t at[N_PROMPTS]; /* ends a prompt at so many ids; 0: never */
    int32_t seen[N_PROMPTS][MAX_NEW];
} watcher;

static bool watch(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    watcher *w = arg;
    assert_int_equal(n, ++w->calls[prompt]);
    memcpy(w->seen[prompt], ids, (size_t)n * sizeof *ids);
    return n == w->at[prompt];
}

TEST(test_ends)
{
    rig x;
    dq_score_work work = {0};
    watcher w = {.at = {0, 3, 1, MAX_NEW}};
    rig_open(&x, "llama", &dq_kv_plain, 2);
    int32_t stops[2] = {-1, x.c[4].new[1]};
    x.spec.stop = watch;
    x.spec.stop_arg = &w;
    x.spec.stop_id = stops;
    x.spec.n_stop_ids = 2;
    results g = generate(&x, &work);
    for (int i = 0; i < N_PROMPTS; i++) {
        int64_t n = 0;
        while (n < MAX_NEW && x.c[i].new[n] != stops[1]) n++;
        dq_text_end end = n < MAX_NEW ? DQ_TEXT_END_STOP_ID : DQ_TEXT_END_MAX_NEW;
        if (w.at[i] > 0 && w.at[i] <= n) {
            n = w.at[i];
            end = DQ_TEXT_END_REQUESTED;
        }
        assert_int_equal(g.of[i].end, end);
        assert_int_equal(g.of[i].n, n);
        assert_int_equal(w.calls[i], n);
        assert_memory_equal(g.of[i].ids, x.c[i].new, (size_t)n * sizeof(int32_t));
        assert_memory_equal(w.seen[i], x.c[i].new, (size_t)n * sizeof(int32_t));
    }
    assert_int_equal(g.of[1].end, DQ_TEXT_END_REQUESTED);
    assert_int_equal(g.of[2].end, DQ_TEXT_END_REQUESTED);
    assert_int_equal(g.of[4].end, DQ_TEXT_END_STOP_ID);
    assert_int_equal(g.of[4].n, 1);
    assert_string_equal(dq_text_end_name[DQ_TEXT_END_POSITIONS], "positions");
    rig_close(&x);
}

TEST(test_positions)
{
    rig x;
    dq_err err;
    dq_score_work work = {0};
    results g;
    rig_open(&x, "llama", &dq_kv_plain, 2);
    const int64_t max = x.m->max_positions;
    assert_true(max + 1 < MAX_FED);
    for (int i = 0; i < 4; i++) {
        golden_case *c = &x.c[i];
        c->n = max - 2;
        for (int64_t j = 1; j < MAX_FED; j++) c->ids[j] = (int32_t)(256 + (5 * j + i) % 200);
    }
    x.c[3].n = max;
    ask_for(&x, 4, MAX_NEW);
    x.prompt[1].max_new = 3;
    x.prompt[2].max_new = 0;
    g = generate(&x, &work);
    const int64_t n[4] = {3, 3, 0, 1};
    const dq_text_end end[4] = {DQ_TEXT_END_POSITIONS, DQ_TEXT_END_MAX_NEW, DQ_TEXT_END_MAX_NEW,
                                DQ_TEXT_END_POSITIONS};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(g.of[i].n, n[i]);
        assert_int_equal(g.of[i].end, end[i]);
    }
    x.prompt[3].n = max + 1;
    assert_int_equal(refusal(&x, &err), DQ_MISMATCH);
    assert_non_null(
        strstr(err.text, "prompt 3 has too many tokens (expected at most 512, found 513)"));
    x.prompt[0].n = 0;
    assert_int_equal(refusal(&x, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "prompt 0 has no tokens"));
    rig_close(&x);
}

/* An allocation that fails leaves nothing in the cache. */
TEST(test_failures)
{
    rig x;
    dq_kv_spec kv = kv_of(&settings[6]);
    dq_score_work work = {0};
    int failed = 0;
    rig_open(&x, "diffllama", &kv, 1);
    ask_for(&x, N_PROMPTS, 4);
    x.spec.max_seqs = N_SHARING;
    results want = generate(&x, &work);
    for (int64_t at = 1;; at += 1 + at / 6) {
        dq_scorer s; /* goes on after a failure */
        dq_err err = {0};
        assert_int_equal(dq_score_begin(&s, x.r, &x.pass, &x.kv, &err), DQ_OK);
        dq_alloc_fail_at(at);
        const bool ended = dq_generate(&s, &x.spec, x.a, &err) != NULL;
        dq_alloc_fail_at(0);
        if (!ended) {
            assert_int_equal(err.code, DQ_RESOURCE);
            expect_no_tokens(&x);
            failed++;
            err = (dq_err){0};
            const results g = {dq_generate(&s, &x.spec, x.a, &err), x.spec.n};
            assert_string_equal(err.text, "");
            expect_same(&g, &want);
        }
        dq_score_end(&s);
        if (ended) break;
    }
    assert_true(failed > 5);
    rig_close(&x);
}

static bool interrupt(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    (void)arg, (void)ids;
    if (prompt == 3 && n == 2) raise(SIGTERM);
    return false;
}

/* Ctrl-C. The last test, because the flag stays. */
TEST(test_stopped)
{
    rig x;
    dq_err err;
    rig_open(&x, "llama", &dq_kv_plain, 2);
    x.spec.max_seqs = 2;
    x.spec.stop = interrupt;
    dq_os_catch_signals();
    assert_int_equal(refusal(&x, &err), DQ_STOPPED);
    expect_no_tokens(&x);
    rig_close(&x);
}
