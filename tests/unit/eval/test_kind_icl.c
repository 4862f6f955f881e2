/* In-context learning on the embedded pair: prompts, ids, log-likelihoods and picks of transformers
 * (tests/golden/icl.py), nested shots, orders of one set, what does not fit, and curves by hand.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "eval/kind_icl.c" /* what is private there */

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct rig {
    dq_eval e;
    dq_eval_model em[1];
    dq_eval_source source[1];
    dq_icl_settings s;
    dq_model *m;
    dq_backend *b;
    dq_runner *r;
    dq_tokenizer *tok;
    dq_err err;
} rig;

static void rig_open(rig *x, const char *model, const char *task)
{
    static const char *const files[][3] = {{"trec", "trec_test.label", "trec_train.label"},
                                           {"banking77", "banking_test.csv", "banking_train.csv"},
                                           {"clinic150", "clinc.json", NULL}};
    memset(x, 0, sizeof *x);
    x->e.a = given_arena();
    dq_eval_model *em = &x->em[0];
    x->m = given_model(DQ_SOURCE_DIR "/calib/pair/%s", model);
    x->b = given_backend(2);
    x->r = given_runner(x->m, x->b);
    x->tok = given_tokenizer_of(x->m, &em->tok_text, &em->tok_len);
    em->m = x->m;
    em->runner = x->r;
    em->tok = x->tok;
    em->shown = true;
    x->s = (dq_icl_settings){.task = dq_icl_task_find(task),
                             .shots = {1, 3},
                             .n_shots = 2,
                             .runs = 2,
                             .queries = 3,
                             .seed = 1};
    x->source[0] = (dq_eval_source){.name = task, .path = "q", .kind = &dq_eval_icl_kind};
    x->source[0].settings = &x->s;
    for (int i = 0; i < 3; i++) {
        if (strcmp(files[i][0], task) != 0) continue;
        x->source[0].text =
            given_file(&x->source[0].len, DQ_TEST_DIR "/golden/icl/%s", files[i][1]);
        if (files[i][2])
            x->s.demos.text =
                given_file(&x->s.demos.len, DQ_TEST_DIR "/golden/icl/%s", files[i][2]);
    }
    x->s.demos.path = "d";
    x->e.model = x->em;
    x->e.source = x->source;
    x->e.n_models = x->e.n_sources = 1;
}

static void rig_close(rig *x)
{
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_tokenizer_free(x->tok);
    dq_model_close(x->m);
}

/* Index of what the first source is encoded to for the first model; -1: see err. */
static int first_ids(dq_eval *e, dq_err *err)
{
    const dq_logit_spec logit = {.bits = 16};
    return dq_eval_add(e, 0, 0, logit, (dq_math){0}, &dq_kv_plain, err) == DQ_OK ? 0 : -1;
}

/* Loads and encodes. */
static dq_icl_layout *plan(rig *x)
{
    dq_eval_source *s = &x->source[0];
    if (s->kind->load(&x->e, s, &x->err) != DQ_OK) return NULL;
    return first_ids(&x->e, &x->err) < 0 ? NULL : x->e.ids[0].own;
}

static void score(rig *x, dq_logit_spec logit, const dq_kv_spec *kv)
{
    dq_eval_add(&x->e, 0, 0, logit, (dq_math){0}, kv, &x->err);
    dq_eval_run(&x->e, &x->err);
    assert_string_equal(x->err.text, "");
}

/* ---- transformers ---- */

static void check_item(const rig *x, const dq_eval_row *row, int64_t i, const json_t *want)
{
    const dq_requests *q = &x->e.ids[0].req;
    const dq_shared_prefix *shared_prefix = dq_items_shared_prefix(q, i);
    const dq_request *r = &q->req[q->at[i]];
    const dq_icl_layout *p = x->e.ids[0].own;
    const json_t *lls = json_object_get(want, "ll");
    int64_t sum = 0, n = 0;
    for (int64_t k = 0; k < shared_prefix->n; k++) sum += shared_prefix->ids[k] * ++n;
    for (int64_t k = 0; k < r->n_ctx; k++) sum += r->ctx[k] * ++n;
    assert_int_equal(n, json_integer_value(json_object_get(want, "n")));
    assert_int_equal(sum, json_integer_value(json_object_get(want, "sum")));
    assert_int_equal(dq_icl_pick(&x->e, row, 0, i),
                     json_integer_value(json_object_get(want, "walk")));
    assert_int_equal(dq_icl_pick(&x->e, row, 1, i),
                     json_integer_value(json_object_get(want, "likeliest")));
    for (size_t c = 0; c < json_array_size(lls); c++) {
        dq_request own = r[c];
        own.n_cont = p->label[c].n;
        double ll = json_number_value(json_array_get(lls, c));
        assert_true(fabs(dq_eval_ll(row, &own) - ll) < 1e-4 + 5e-7 * fabs(ll));
    }
}

TEST(test_golden)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/icl/golden.json");
    assert_int_equal(json_array_size(root), 6);
    for (size_t k = 0; k < json_array_size(root); k++) {
        const json_t *o = json_array_get(root, k), *items = json_object_get(o, "items");
        const json_t *labels = json_object_get(o, "labels");
        rig x;
        rig_open(&x, json_string_value(json_object_get(o, "model")),
                 json_string_value(json_object_get(o, "task")));
        assert_non_null(plan(&x));
        score(&x, (dq_logit_spec){.bits = 16}, &dq_kv_plain);
        const dq_icl_data *d = x.source[0].own;
        assert_int_equal(d->n_labels, json_array_size(labels));
        for (int c = 0; c < d->n_labels; c++)
            assert_string_equal(d->label[c], json_string_value(json_array_get(labels, (size_t)c)));
        assert_int_equal(dq_eval_units(&x.e, &x.e.row[0]), json_array_size(items));
        for (size_t i = 0; i < json_array_size(items); i++)
            check_item(&x, &x.e.row[0], (int64_t)i, json_array_get(items, i));
        rig_close(&x);
    }
    json_decref(root);
}

/* ---- Blocks ---- */

static bool holds(const int32_t *list, int64_t n, int32_t x)
{
    for (int64_t i = 0; i < n; i++) {
        if (list[i] == x) return true;
    }
    return false;
}

/* Blocks of one run take the first of one permutation; orders are of the set of run 0. */
TEST(test_nested)
{
    rig x;
    rig_open(&x, "llama", "clinic150");
    x.s.n_shots = 3;
    x.s.shots[2] = 7;
    x.s.runs = 3;
    x.s.orders = 3;
    const dq_icl_layout *p = plan(&x);
    assert_non_null(p);
    assert_int_equal(p->n_blocks, 3 * (3 + 2));
    assert_int_equal(p->n_shots, 3);
    int moved = 0;
    for (int64_t b = 0; b < p->n_blocks; b++) {
        const dq_icl_block *k = &p->block[b];
        const dq_icl_block *max = &p->block[10 + (k->order ? 0 : k->run)]; /* 7 shots */
        assert_int_equal(max->shots, 7);
        assert_int_equal(max->order, 0);
        if (k->order == 0)
            assert_memory_equal(k->demo, max->demo, (size_t)k->shots * sizeof *k->demo);
        for (int64_t i = 0; i < k->shots; i++) {
            assert_true(holds(max->demo, k->shots, k->demo[i]));
            assert_false(holds(k->demo, i, k->demo[i]));
            moved += k->order && k->demo[i] != max->demo[i];
        }
    }
    assert_true(moved > 0);
    assert_true(memcmp(p->block[10].demo, p->block[11].demo, 7 * sizeof(int32_t)) != 0);
    rig_close(&x);
}

TEST(test_orders)
{
    enum { N = 9 };
    int32_t first[DQ_ICL_ORDERS][N];
    for (int o = 0; o < DQ_ICL_ORDERS; o++) {
        rig x;
        rig_open(&x, "llama", "clinic150");
        x.s.n_shots = 1;
        x.s.shots[0] = N;
        x.s.runs = 1;
        x.s.order = (dq_icl_order)o;
        const dq_icl_layout *p = plan(&x);
        assert_non_null(p);
        const dq_icl_data *d = x.source[0].own;
        assert_int_equal(p->n_shots, 1);
        memcpy(first[o], p->block[0].demo, sizeof first[o]);
        for (int i = 0; i < N; i++) {
            assert_true(holds(first[0], N, first[o][i]));
            if (o == DQ_ICL_CLASS && i > 0)
                assert_true(d->demos.ex[first[o][i - 1]].label <= d->demos.ex[first[o][i]].label);
        }
        rig_close(&x);
    }
    assert_true(memcmp(first[0], first[1], sizeof first[0]) != 0);
    assert_true(memcmp(first[1], first[2], sizeof first[0]) != 0);
}

/* Demonstrations and labels stand once in memory; a shared prefix ends before what differs. */
TEST(test_shared)
{
    rig x;
    int64_t naive, shared;
    rig_open(&x, "diffllama", "trec");
    const dq_icl_layout *p = plan(&x);
    assert_non_null(p);
    const dq_requests *q = &x.e.ids[0].req;
    assert_int_equal(q->n_shared_prefixes, 4);
    for (int64_t k = 0; k < q->n; k++) {
        const dq_request *r = &q->req[k];
        assert_ptr_equal(r->cont, p->label[r->choice].ids);
        assert_ptr_equal(r->ctx, q->req[q->at[r->item]].ctx);
        assert_true(r->n_ctx > 0);
        assert_false(r->truncated);
    }
    for (int64_t t = 0; t < q->n_shared_prefixes; t++) {
        assert_int_equal(q->shared_prefix[t].end, (t + 1) * p->n_queries);
        assert_true(q->shared_prefix[t].n > 20);
    }
    score(&x, (dq_logit_spec){.bits = 16}, &dq_kv_plain);
    dq_icl_cost(q, &naive, &shared);
    assert_int_equal(x.e.row[0].work.tokens, naive);
    assert_int_equal(x.e.row[0].work.computed, shared);
    assert_true(naive > 5 * shared);
    rig_close(&x);
}

/* Nothing is shared at granularity tensor; at granularity row and with a compressed cache the shared prefix is. */
TEST(test_settings)
{
    rig x;
    int64_t naive, shared;
    dq_kv_spec kv = dq_kv_plain;
    kv.k_bits = kv.v_bits = 8;
    kv.recent = 16;
    rig_open(&x, "llama", "banking77");
    x.s.runs = 1;
    assert_non_null(plan(&x));
    score(&x, (dq_logit_spec){.bits = 6, .granularity = DQ_GRANULARITY_TENSOR}, &dq_kv_plain);
    score(&x, (dq_logit_spec){.bits = 6, .granularity = DQ_GRANULARITY_ROW}, &dq_kv_plain);
    score(&x, (dq_logit_spec){.bits = 16}, &kv);
    dq_icl_cost(&x.e.ids[0].req, &naive, &shared);
    assert_int_equal(x.e.n_rows, 4);
    for (int i = 0; i < x.e.n_rows; i++) {
        const dq_eval_row *r = &x.e.row[i];
        bool whole = r->logit.bits == 6 && r->logit.granularity == DQ_GRANULARITY_TENSOR;
        assert_int_equal(r->work.computed, whole ? naive : shared);
        assert_true(r->work.cached.contexts == (dq_kv_spec_is_plain(&r->kv) ? 0 : 2));
        dq_eval_numbers n;
        assert_int_equal(dq_eval_numbers_of(&x.e, i, &n, &x.err), DQ_OK);
        assert_int_equal(n.n_metrics, 2);
    }
    rig_close(&x);
}

TEST(test_does_not_fit)
{
    rig x;
    rig_open(&x, "llama", "trec");
    x.s.shots[2] = 14; /* 14 demonstrations are left, too many tokens for 512 positions */
    x.s.shots[3] = 99;
    x.s.n_shots = 4;
    const dq_icl_layout *p = plan(&x);
    assert_non_null(p);
    assert_int_equal(p->demos, 14);
    assert_int_equal(p->demos_dropped, 1);
    assert_int_equal(p->n_shots, 2);
    assert_int_equal(p->n_over, 2);
    assert_int_equal(p->over[0], 14);
    assert_int_equal(p->over[1], 99);
    assert_int_equal(p->n_blocks, 4);
    rig_close(&x);
    rig_open(&x, "llama", "trec"); /* as many as fit: 1 and not 10 */
    x.s.n_shots = 0;
    p = plan(&x);
    assert_non_null(p);
    assert_int_equal(p->n_shots, 1);
    assert_int_equal(p->n_over, 0);
    rig_close(&x);
    rig_open(&x, "llama", "trec");
    x.s.shots[0] = 99;
    x.s.n_shots = 1;
    assert_null(plan(&x));
    assert_int_equal(x.err.code, DQ_MISMATCH);
    assert_non_null(strstr(x.err.text, "q: shots: not even 99 fits"));
    rig_close(&x);
    rig_open(&x, "llama", "trec"); /* no demonstration; two queries */
    x.s.shots[0] = 0;
    x.s.queries = 2;
    p = plan(&x);
    assert_non_null(p);
    assert_int_equal(p->n_queries, 2);
    assert_int_equal(p->block[0].shots, 0);
    assert_true(x.e.ids[0].req.shared_prefix[0].n >= 1);
    rig_close(&x);
}

/* A label that another begins with ends with a newline; equal ids are refused. */
TEST(test_labels)
{
    static const char *const name[] = {"alarm", "alarm change", "oos"}, *same[] = {"a", "b", "a"};
    rig x;
    dq_icl_label *l;
    int32_t *nl = NULL;
    int64_t n, bad_at, bad;
    rig_open(&x, "llama", "clinic150");
    assert_int_equal(make_labels(&l, name, 3, x.tok, x.m->vocab, x.e.a, &x.err), DQ_OK);
    assert_string_equal(l[0].text, " alarm");
    assert_int_equal(l[0].n_cont, l[0].n + 1);
    assert_int_equal(l[1].n_cont, l[1].n);
    assert_int_equal(l[1].at, l[0].n_cont);
    assert_int_equal(l[2].at, l[0].n_cont + l[1].n_cont);
    assert_memory_equal(l[0].ids, l[1].ids, (size_t)l[0].n * sizeof *l[0].ids);
    dq_tokenizer_encode(x.tok, "\n", 1, 0, &nl, &n, &bad_at, &bad, &x.err);
    assert_int_equal(l[0].ids[l[0].n], nl[n - 1]);
    dq_block_free(nl);
    assert_int_equal(make_labels(&l, same, 3, x.tok, x.m->vocab, x.e.a, &x.err), DQ_MISMATCH);
    assert_non_null(strstr(x.err.text, "\"a\" from \"a\""));
    rig_close(&x);
}

TEST(test_points)
{
    static const dq_icl_block block[] = {{.run = 0, .shots = 1},
                                         {.run = 1, .shots = 1},
                                         {.order = 1, .shots = 1},
                                         {.order = 2, .shots = 1},
                                         {.run = 0, .shots = 2}};
    const dq_icl_score s[] = {{.acc = {0.5, 0}},
                              {.acc = {0.7, 0}},
                              {.acc = {0.2, 0}},
                              {.acc = {0.8, 0}},
                              {.acc = {0.9, 0}}};
    const dq_icl_layout p = {.block = block, .n_blocks = 5};
    dq_icl_point x = dq_icl_point_of(&p, s, 1, false);
    assert_int_equal(x.blocks, 2);
    assert_true(fabs(x.mean - 0.6) < 1e-12 && fabs(x.std - sqrt(0.02)) < 1e-12);
    assert_true(x.min == 0.5 && x.max == 0.7);
    x = dq_icl_point_of(&p, s, 1, true); /* 0.5, 0.2, 0.8 */
    assert_int_equal(x.blocks, 3);
    assert_true(fabs(x.mean - 0.5) < 1e-12 && fabs(x.std - 0.3) < 1e-12);
    assert_true(x.min == 0.2 && x.max == 0.8);
    x = dq_icl_point_of(&p, s, 2, false);
    assert_int_equal(x.blocks, 1);
    assert_true(x.mean == 0.9 && isnan(x.std));
}

/* All answers to one query, whatever run they are from, are one cluster. */
TEST(test_query_clusters)
{
    enum { Q = 3, MAX = 64 };
    rig x;
    rig_open(&x, "llama", "clinic150");
    assert_non_null(plan(&x));
    score(&x, (dq_logit_spec){.bits = 16}, &dq_kv_plain);
    score(&x, (dq_logit_spec){.bits = 4, .granularity = DQ_GRANULARITY_ROW}, &dq_kv_plain);
    double right[2][MAX], mean[Q] = {0}, change[Q] = {0};
    uint32_t seed = 7;
    const int64_t n = dq_eval_units(&x.e, &x.e.row[1]);
    assert_true(x.e.n_rows == 2 && n == 4 * Q && n <= MAX);
    for (int r = 0; r < 2; r++) { /* answers that vary: few labels are ever the likeliest ones */
        for (int64_t i = 0; i < dq_eval_values(&x.e, &x.e.row[r], n); i++)
            x.e.row[r].logp[i] = -(double)((seed = seed * 1664525u + 1013904223u) >> 24);
        dq_eval_icl_kind.judge(&x.e, &x.e.row[r], 1, right[r]);
    }
    for (int64_t i = 0; i < n; i++) {
        mean[i % Q] += right[1][i] / 4;
        change[i % Q] += (right[1][i] - right[0][i]) / 4;
    }
    dq_eval_numbers y;
    assert_int_equal(dq_eval_numbers_of(&x.e, 1, &y, &x.err), DQ_OK);
    const dq_mean m = dq_mean_of(mean, Q), d = dq_mean_of(change, Q);
    assert_true(y.n == n && y.n_clusters == Q && y.flips[1].clusters == Q && y.flips[1].clustered);
    assert_true(m.std_err > 0 && d.std_err > 0);
    assert_true(fabs(y.score[1].value - m.value) < 1e-12);
    assert_true(fabs(y.score[1].std_err - m.std_err) < 1e-12);
    assert_true(fabs(y.flips[1].delta - d.value) < 1e-12);
    assert_true(fabs(y.flips[1].std_err - d.std_err) < 1e-12);
    assert_string_equal(dq_eval_cluster(&x.e, &x.e.row[1]), "query");
    rig_close(&x);
}
