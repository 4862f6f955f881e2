/* Scoring: every way of spreading sequences over passes gives the bits of one sequence at a time;
 * sweeps, their references and their saved state.
 * SPDX-License-Identifier: MIT */
#include "device.h"
#include "evaluate.h"
#include "os.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ITEMS = 5, N_CHOICES = 3, N_REQ = N_ITEMS * N_CHOICES, MAX_IDS = 64 };

typedef struct rig {
    dq_model *m;
    dq_backend *b;
    dq_runner *r;
    int32_t ids[N_REQ][MAX_IDS];
    dq_request req[N_REQ];
    int64_t at[N_ITEMS + 1];
    dq_requests q;
    int32_t text[4 * 12];
    dq_windows w;
} rig;

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Items with contexts of 1 to 29 ids and choices of 1 to 7; the last item has single ids only, and
 * one item has a choice whose context was cut. */
static void make_requests(rig *x)
{
    uint32_t seed = 5;
    for (int i = 0; i < N_ITEMS; i++) {
        int64_t n_ctx = 1 + 7 * i;
        x->at[i + 1] = x->at[i] + N_CHOICES;
        for (int c = 0; c < N_CHOICES; c++) {
            int k = i * N_CHOICES + c;
            int64_t n_cont = i == N_ITEMS - 1 ? 1 : 1 + (int64_t)(next(&seed) % 7);
            for (int j = 0; j < MAX_IDS; j++)
                x->ids[k][j] = j < n_ctx && c > 0 ? x->ids[k - c][j]
                                                  : (int32_t)(next(&seed) % (uint32_t)x->m->vocab);
            bool cut = i == 2 && c == 1;
            x->req[k] = (dq_request){.ids = x->ids[k] + cut,
                                     .n_ctx = n_ctx - cut,
                                     .n_cont = n_cont,
                                     .item = i,
                                     .choice = c,
                                     .truncated = cut};
        }
    }
    x->q = (dq_requests){.req = x->req, .at = x->at, .n = N_REQ, .n_items = N_ITEMS};
    for (int i = 0; i < 4 * 12; i++) x->text[i] = (int32_t)(next(&seed) % (uint32_t)x->m->vocab);
    x->w = (dq_windows){.ids = x->text, .n = 4, .n_ctx = 12, .first = 6, .n_scored = 5};
}

static void rig_open(rig *x, const char *model)
{
    char path[1024];
    dq_err err = {0};
    memset(x, 0, sizeof *x);
    snprintf(path, sizeof path, DQ_TEST_DIR "/golden/models/%s", model);
    dq_model_open(&x->m, path, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(dq_backend_open(&x->b, test_device(), 2, &err), DQ_OK);
    assert_int_equal(dq_runner_new(&x->r, x->m, x->b, &dq_kv_plain, &err), DQ_OK);
    make_requests(x);
}

static void rig_close(rig *x)
{
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_model_close(x->m);
}

/* The plain way: one sequence, one pass, the log-probability of each id from `first` on. */
static void one_sequence(rig *x, const dq_pass *pass, const int32_t *ids, int64_t n_fed,
                         int64_t first, int64_t n, double *logp, int32_t *top1)
{
    dq_err err = {0};
    int32_t seq = x->b->ops->kv_seq_new(x->b, dq_runner_kv(x->r)), pos[MAX_IDS];
    int64_t cu[2] = {0, n_fed};
    for (int i = 0; i < n_fed; i++) pos[i] = i;
    dq_batch batch = {
        .n_seq = 1, .n_rows = n_fed, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
    dq_mat h;
    dq_runner_pass(x->r, &batch, pass, &h, &err);
    assert_string_equal(err.text, "");
    for (int64_t i = 0; i < n; i++) {
        dq_mat row = {.p = h.p + (first - 1 + i) * h.cols, .rows = 1, .cols = h.cols};
        x->b->ops->logprob(x->b, &logp[i], &top1[i], row, &x->m->head, &ids[first + i], DQ_NUM_F32);
    }
    x->b->ops->kv_seq_free(x->b, dq_runner_kv(x->r), seq);
    assert_int_equal(dq_backend_sync(x->b, &err), DQ_OK);
}

static void expect(rig *x, const dq_pass *pass, double *ll, bool *greedy)
{
    for (int k = 0; k < N_REQ; k++) {
        const dq_request *r = &x->req[k];
        double logp[MAX_IDS];
        int32_t top1[MAX_IDS];
        one_sequence(x, pass, r->ids, r->n_ctx + r->n_cont - 1, r->n_ctx, r->n_cont, logp, top1);
        ll[k] = 0;
        greedy[k] = true;
        for (int i = 0; i < r->n_cont; i++) {
            ll[k] += logp[i];
            greedy[k] = greedy[k] && top1[i] == r->ids[r->n_ctx + i];
        }
    }
}

static const dq_logit_spec specs[] = {{16, DQ_GRAIN_TENSOR}, {4, DQ_GRAIN_ROW},
                                      {4, DQ_GRAIN_TENSOR},  {6, DQ_GRAIN_HEAD},
                                      {3, DQ_GRAIN_TILE},    {2, DQ_GRAIN_ROW}};
enum { N_SPECS = sizeof specs / sizeof specs[0] };

static void check_items(const char *model)
{
    rig x;
    rig_open(&x, model);
    for (int s = 0; s < N_SPECS; s++) {
        if (!test_runs(s, 2)) continue;
        dq_pass pass = {.logit = specs[s]};
        dq_err err = {0};
        double want[N_REQ], all[N_REQ], each[N_REQ];
        bool want_greedy[N_REQ], greedy[N_REQ];
        dq_work work = {0}, single = {0};
        expect(&x, &pass, want, want_greedy);
        dq_score_items(x.r, &pass, &x.q, 0, N_ITEMS, all, greedy, &work, &err);
        assert_string_equal(err.text, "");
        for (int i = 0; i < N_ITEMS; i++)
            dq_score_items(x.r, &pass, &x.q, i, i + 1, each, greedy, &single, &err);
        assert_memory_equal(all, want, sizeof want);
        assert_memory_equal(each, want, sizeof want);
        assert_memory_equal(greedy, want_greedy, sizeof greedy);
        assert_int_equal(work.tokens, single.tokens);
        assert_int_equal(work.computed, single.computed);
        if (specs[s].bits == 16 || specs[s].grain == DQ_GRAIN_ROW)
            assert_true(work.computed < work.tokens);
        else
            assert_int_equal(work.computed, work.tokens);
    }
    rig_close(&x);
}

static void test_items(void **state)
{
    (void)state;
    check_items("llama-f32");
    check_items("diffllama-f32");
}

/* A continuation made of the most likely ids is greedy. */
static void test_greedy(void **state)
{
    (void)state;
    rig x;
    rig_open(&x, "diffllama-f32");
    dq_pass pass = {.logit = {.bits = 16}};
    dq_err err = {0};
    dq_work work = {0};
    double ll[N_REQ];
    bool greedy[N_REQ];
    for (int i = 0; i < 3; i++) { /* each id decides the next one */
        double logp;
        int32_t top1;
        one_sequence(&x, &pass, x.ids[0], 1 + i, 1 + i, 1, &logp, &top1);
        x.ids[0][1 + i] = top1;
    }
    x.req[0].n_cont = 3;
    x.ids[1][0] = x.ids[0][0];
    memcpy(x.ids[1], x.ids[0], sizeof x.ids[0]);
    x.ids[1][3] = (x.ids[1][3] + 1) % x.m->vocab;
    x.req[1].n_cont = 3;
    dq_score_items(x.r, &pass, &x.q, 0, 1, ll, greedy, &work, &err);
    assert_true(greedy[0]);
    assert_false(greedy[1]);
    assert_true(ll[0] > ll[1]);
    rig_close(&x);
}

static void test_windows(void **state)
{
    (void)state;
    rig x;
    rig_open(&x, "diffllama-f32");
    for (int s = 0; s < N_SPECS; s++) {
        if (!test_runs(s, 2)) continue;
        dq_pass pass = {.logit = specs[s]};
        dq_err err = {0};
        dq_work work = {0};
        double logp[20], want[20], kld[20];
        int32_t top1[20], want_top1[20];
        dq_mat st = {.rows = 20, .cols = x.m->dim};
        st.p = x.b->ops->alloc(x.b, (size_t)(st.rows * st.cols) * sizeof(float));
        for (int i = 0; i < 4; i++)
            one_sequence(&x, &pass, x.text + 12 * i, 12, 7, 5, want + 5 * i, want_top1 + 5 * i);
        dq_score_windows(x.r, &pass, &x.w, 0, 4, st, logp, top1, &work, &err);
        assert_string_equal(err.text, "");
        assert_memory_equal(logp, want, sizeof want);
        assert_memory_equal(top1, want_top1, sizeof top1);
        assert_int_equal(work.computed, 48);
        x.b->ops->kld(x.b, kld, st, &x.m->head, DQ_NUM_F32, st, &x.m->head, DQ_NUM_F32);
        assert_int_equal(dq_backend_sync(x.b, &err), DQ_OK);
        for (int i = 0; i < 20; i++) assert_true(fabs(kld[i]) < 1e-9);
        x.b->ops->free(x.b, st.p);
    }
    rig_close(&x);
}

static void test_groups(void **state)
{
    (void)state;
    rig x;
    rig_open(&x, "llama-f32");
    assert_int_equal(dq_score_group(&x.q, 0, 1), 1); /* at least one */
    assert_int_equal(dq_score_group(&x.q, 0, 1000000), N_ITEMS);
    assert_int_equal(dq_score_group(&x.q, N_ITEMS - 1, 1), N_ITEMS);
    rig_close(&x);
}

static void test_pick(void **state)
{
    (void)state;
    const dq_choice c[] = {{.points = 10}, {.points = 25}, {.points = 0}};
    dq_item item = {.choice = c, .n_choices = 3};
    const double ll[] = {-8, -15, -9};
    assert_int_equal(dq_eval_pick(&item, ll, false), 0);
    assert_int_equal(dq_eval_pick(&item, ll, true), 1); /* -0.8, -0.6; no length: never */
    const double tie[] = {-5, -3, -3};
    assert_int_equal(dq_eval_pick(&item, tie, false), 1);
}

/* Behind contexts of which nothing is forgotten, in pieces of any size, continuations get the bits
 * of one pass; what contexts take adds up the same however items are grouped. */
static void test_kv_items(void **state)
{
    (void)state;
    const int64_t every[] = {0, 1, 3};
    rig x;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    dq_pass pass = {.logit = {.bits = 16, .grain = DQ_GRAIN_TENSOR}};
    double want[N_REQ], all[N_REQ], each[N_REQ];
    bool greedy_want[N_REQ], greedy[N_REQ];
    expect(&x, &pass, want, greedy_want);
    for (int e = 0; e < 3; e++) {
        dq_kv_setting kv = dq_kv_setting_plain;
        kv.spec.recent = 2;
        kv.spec.sink = 1;
        kv.evict.policy = dq_policy_find("streaming", &err);
        kv.evict.keep = 1;
        kv.evict.every = every[e];
        dq_work work = {0}, single = {0};
        dq_score_items_kv(x.r, &pass, &kv, &x.q, 0, N_ITEMS, all, greedy, &work, &err);
        for (int64_t i = 0; i < N_ITEMS; i++)
            dq_score_items_kv(x.r, &pass, &kv, &x.q, i, i + 1, each, greedy, &single, &err);
        assert_string_equal(err.text, "");
        assert_memory_equal(all, want, sizeof all);
        assert_memory_equal(each, want, sizeof each);
        assert_memory_equal(greedy, greedy_want, sizeof greedy);
        assert_memory_equal(&work.held, &single.held, sizeof work.held);
        assert_int_equal(work.held.contexts, N_ITEMS + 2); /* one item shares none */
        assert_int_equal(work.held.tokens_cut, 0);
        assert_int_equal(work.held.bytes.tokens, work.held.slots);
        assert_int_equal(work.computed, single.computed);
    }
    rig_close(&x);
}

/* The same for windows, and an eviction that drops something. */
static void test_kv_windows(void **state)
{
    (void)state;
    enum { N = 4 * 5 };
    rig x;
    dq_err err = {0};
    rig_open(&x, "llama-f32");
    dq_pass pass = {.logit = {.bits = 16, .grain = DQ_GRAIN_TENSOR}};
    double want[N], logp[N], once[N];
    int32_t top1[N];
    dq_work work = {0};
    dq_mat st = {.rows = N, .cols = x.m->dim};
    st.p = x.b->ops->alloc(x.b, (size_t)(st.rows * st.cols) * sizeof *st.p);
    dq_mat two = {.p = st.p, .rows = N / 2, .cols = st.cols};
    dq_score_windows(x.r, &pass, &x.w, 0, 4, st, want, top1, &work, &err);
    for (int64_t every = 0; every < 8; every++) {
        if (!test_runs((int)every, 3)) continue;
        dq_kv_setting kv = dq_kv_setting_plain;
        kv.spec.recent = 2;
        kv.spec.sink = 1;
        kv.evict.policy = dq_policy_find("streaming", &err);
        kv.evict.keep = 1;
        kv.evict.every = every;
        dq_score_windows_kv(x.r, &pass, &kv, &x.w, 0, 4, st, logp, top1, &work, &err);
        assert_string_equal(err.text, "");
        assert_memory_equal(logp, want, sizeof logp);
        kv.evict.keep = 0.5;
        dq_work cut = {0}, half = {0};
        dq_score_windows_kv(x.r, &pass, &kv, &x.w, 0, 4, st, logp, top1, &cut, &err);
        for (int64_t i = 0; i < 4; i += 2)
            dq_score_windows_kv(x.r, &pass, &kv, &x.w, i, i + 2, two, once + 5 * i, top1, &half,
                                &err);
        assert_string_equal(err.text, "");
        assert_memory_equal(logp, once, sizeof logp);
        assert_true(memcmp(logp, want, sizeof logp) != 0);
        assert_int_equal(cut.held.tokens, 4 * x.w.first);
        assert_int_equal(cut.held.tokens_cut, cut.held.tokens);
        assert_int_equal(2 * cut.held.bytes.tokens, cut.held.slots);
        assert_memory_equal(&cut.held.bytes, &half.held.bytes, sizeof cut.held.bytes);
    }
    x.b->ops->free(x.b, st.p);
    rig_close(&x);
}

/* A sweep without tokenizer: its ids are put in by hand. */
static void sweep_open(dq_eval *e, rig *x)
{
    static dq_choice choice[N_CHOICES] = {{.points = 3}, {.points = 4}, {.points = 5}};
    static dq_item item[N_ITEMS];
    static const dq_task task = {.name = "made"};
    dq_err err = {0};
    memset(e, 0, sizeof *e);
    e->a = dq_arena_new();
    e->model = dq_alloc(e->a, 1, sizeof *e->model, &err);
    e->source = dq_alloc(e->a, 2, sizeof *e->source, &err);
    e->ids = dq_alloc(e->a, 2, sizeof *e->ids, &err);
    e->model[0] = (dq_eval_model){.m = x->m, .runner = x->r, .shown = true};
    for (int i = 0; i < N_ITEMS; i++)
        item[i] = (dq_item){.choice = choice, .n_choices = N_CHOICES, .gold = i % N_CHOICES};
    e->source[0] = (dq_eval_source){
        .name = "made", .path = "-", .task = &task, .items = {.item = item, .n = N_ITEMS}};
    e->source[1] = (dq_eval_source){.name = "text", .path = "-"};
    e->ids[0] = (dq_eval_ids){.source = 0, .req = x->q};
    e->ids[1] = (dq_eval_ids){.source = 1, .win = x->w};
    e->n_models = 1;
    e->n_sources = e->n_ids = e->cap_ids = 2;
    for (int s = 1; s < N_SPECS; s++) { /* 16 bits come as the reference */
        assert_int_equal(dq_eval_add(e, 0, 0, specs[s], (dq_math){0}, &dq_kv_setting_plain, &err),
                         DQ_OK);
        assert_int_equal(dq_eval_add(e, 0, 1, specs[s], (dq_math){0}, &dq_kv_setting_plain, &err),
                         DQ_OK);
    }
    assert_int_equal(e->n_rows, 2 * N_SPECS);
}

static void test_sweep(void **state)
{
    (void)state;
    rig x;
    dq_eval e;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    sweep_open(&e, &x);
    assert_int_equal(dq_eval_run(&e, &err), DQ_OK);
    for (int i = 0; i < e.n_rows; i++) {
        dq_eval_numbers n;
        dq_pass pass = {.logit = e.row[i].logit};
        assert_int_equal(dq_eval_numbers_of(&e, i, &n, &err), DQ_OK);
        assert_int_equal(e.row[e.row[i].ref].logit.bits, 16);
        assert_int_equal(e.row[i].shown, e.row[i].logit.bits < 16);
        assert_int_equal(n.is_ref, e.row[i].ref == i);
        if (n.is_task) {
            double want[N_REQ];
            bool greedy[N_REQ];
            expect(&x, &pass, want, greedy);
            assert_memory_equal(e.row[i].value, want, sizeof want);
            assert_int_equal(n.n, N_ITEMS);
            assert_true(!n.is_ref || n.acc_flips.delta == 0);
        } else {
            assert_int_equal(n.n, 20);
            assert_true(n.is_ref ? n.kld.value == 0 && n.same.value == 1 : n.kld.value > 0);
            assert_true(n.kld_p50 <= n.kld_p90 && n.kld_p999 <= n.kld_max);
            assert_true(fabs(n.ppl.value - exp(n.nll.value)) < 1e-9);
        }
    }
    /* asking twice adds nothing, asking for the reference shows it */
    assert_int_equal(dq_eval_add(&e, 0, 0, specs[0], (dq_math){0}, &dq_kv_setting_plain, &err),
                     DQ_OK);
    assert_int_equal(e.n_rows, 2 * N_SPECS);
    assert_true(e.row[e.row[0].ref].shown);
    dq_arena_free(e.a);
    rig_close(&x);
}

static void test_state(void **state)
{
    (void)state;
    rig x;
    dq_eval e, f;
    dq_err err = {0};
    char path[] = "test_score.resume", key[65], other[65], *text;
    size_t len;
    memset(key, 'a', 64);
    memset(other, 'b', 64);
    key[64] = other[64] = 0;
    rig_open(&x, "llama-f32");
    sweep_open(&e, &x);
    dq_eval_run(&e, &err);
    int64_t task_done = e.row[0].done;
    e.row[0].done = 2; /* as if it had been stopped here */
    for (int i = 0; i < e.n_rows; i++) {
        if (e.row[i].kld) e.row[i].done = 3;
    }
    assert_int_equal(dq_eval_save(&e, key, path, &err), DQ_OK);
    sweep_open(&f, &x);
    assert_int_equal(dq_eval_load(&f, key, path, &err), DQ_OK);
    assert_int_equal(f.row[0].done, 2);
    assert_int_equal(dq_eval_run(&f, &err), DQ_OK);
    assert_int_equal(f.row[0].done, task_done);
    for (int i = 0; i < e.n_rows; i++) {
        size_t n = (size_t)dq_eval_values(&f, &f.row[i], f.row[i].done);
        assert_memory_equal(e.row[i].value, f.row[i].value, n * sizeof(double));
        assert_memory_equal(e.row[i].flag, f.row[i].flag, n);
        if (f.row[i].kld) assert_memory_equal(e.row[i].kld, f.row[i].kld, n * sizeof(double));
    }
    dq_arena_free(f.a);

    sweep_open(&f, &x);
    assert_int_equal(dq_eval_load(&f, other, path, &err), DQ_MISMATCH);
    dq_err again = {0};
    assert_int_equal(dq_file_read(&text, &len, path, e.a, &again), DQ_OK);
    text[len / 2] ^= 1;
    assert_int_equal(dq_file_write(path, text, len, &again), DQ_OK);
    assert_int_equal(dq_eval_load(&f, key, path, &again), DQ_DAMAGED);
    dq_err cut = {0};
    text[len / 2] ^= 1;
    assert_int_equal(dq_file_write(path, text, len / 3, &cut), DQ_OK);
    assert_int_equal(dq_eval_load(&f, key, path, &cut), DQ_DAMAGED);
    remove(path);
    dq_arena_free(f.a);
    dq_arena_free(e.a);
    rig_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),      cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_windows),    cmocka_unit_test(test_groups),
        cmocka_unit_test(test_pick),       cmocka_unit_test(test_kv_items),
        cmocka_unit_test(test_kv_windows), cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
