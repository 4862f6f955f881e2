/* A session and a writer: logits that do not depend on pieces; continuations of transformers; the ids and bits of dq_generate, which
 * is checked on its own, with compressed caches; what ends a text; what a failure leaves.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "eval/score.h"
#include "session/session.h"
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"

#include <math.h>
#include <signal.h>
#include <string.h>

enum { MAX_IDS = 160, MAX_NEW = 20 };

typedef struct rig {
    dq_model *m;
    dq_backend *b;
    dq_runner *r;
    dq_session *s;
    dq_pass pass;
    dq_kv_spec kv;
    int32_t ids[MAX_IDS];
} rig;

static void rig_open(rig *x, const char *model, const dq_kv_spec *kv)
{
    dq_err err = {0};
    *x = (rig){.kv = *kv, .pass = {.logit = dq_logit_plain}};
    x->m = given_model(DQ_SOURCE_DIR "/calib/pair/%s", model);
    x->b = given_backend(2);
    dq_runner_new(&x->r, x->m, x->b, &x->kv, &err);
    dq_session_new(&x->s, x->r, &x->pass, true, &err);
    assert_string_equal(err.text, "");
    for (int i = 0; i < MAX_IDS; i++) x->ids[i] = (i * 37 + i / 9) % x->m->vocab;
}

static void rig_close(rig *x)
{
    dq_session_free(x->s);
    assert_int_equal(x->b->ops->kv_bytes(x->b, dq_runner_kv(x->r)).tokens, 0);
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_model_close(x->m);
}

/* ---- Logits ---- */

typedef struct rows {
    float *logits;
    int64_t vocab, first, n; /* of all that came */
} rows;

static dq_status keep_rows(void *arg, const float *logits, int64_t first, int64_t n, dq_err *err)
{
    rows *r = arg;
    (void)err;
    if (r->n == 0) r->first = first;
    assert_int_equal(first, r->first + r->n);
    memcpy(r->logits + r->n * r->vocab, logits, (size_t)(n * r->vocab) * sizeof *logits);
    r->n += n;
    return DQ_OK;
}

static rows rows_of(const rig *x)
{
    dq_err err = {0};
    rows r = {.vocab = x->m->vocab};
    r.logits = dq_alloc(given_arena(), MAX_IDS * (size_t)x->m->vocab, sizeof(float), &err);
    return r;
}

TEST(pieces_change_no_bit)
{
    rig x;
    dq_err err = {0};
    rig_open(&x, "diffllama", &dq_kv_plain);
    rows whole = rows_of(&x), pieces = rows_of(&x);
    dq_session_feed(x.s, x.ids, MAX_IDS, MAX_IDS, keep_rows, &whole, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(whole.n, MAX_IDS);
    dq_session_clear(x.s, &err);
    static const int64_t cuts[] = {0, 1, 40, 41, 130, MAX_IDS};
    for (int i = 0; i < 5; i++)
        dq_session_feed(x.s, x.ids + cuts[i], cuts[i + 1] - cuts[i], cuts[i + 1] - cuts[i],
                        keep_rows, &pieces, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(dq_session_length(x.s), MAX_IDS);
    assert_memory_equal(whole.logits, pieces.logits, MAX_IDS * (size_t)x.m->vocab * sizeof(float));
    rig_close(&x);
}

TEST(gives_the_last_rows)
{
    rig x;
    dq_err err = {0};
    rig_open(&x, "llama", &dq_kv_plain);
    rows r = rows_of(&x);
    dq_session_feed(x.s, x.ids, 30, 0, NULL, NULL, &err);
    dq_session_feed(x.s, x.ids + 30, 50, 7, keep_rows, &r, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(r.first, 73);
    assert_int_equal(r.n, 7);
    rig_close(&x);
}

TEST(refuses_ids_and_positions)
{
    rig x;
    dq_err err = {0}, far = {0};
    rig_open(&x, "llama", &dq_kv_plain);
    x.ids[3] = x.m->vocab;
    dq_session_feed(x.s, x.ids, 5, 0, NULL, NULL, &err);
    check_error(&err, DQ_MISMATCH, "is outside the vocabulary of 640 tokens");
    x.ids[3] = 0;
    assert_int_equal(dq_session_length(x.s), 0);
    dq_err ok = {0};
    for (int i = 0; i < x.m->max_positions / 128; i++)
        dq_session_feed(x.s, x.ids, 128, 0, NULL, NULL, &ok);
    assert_string_equal(ok.text, "");
    dq_session_feed(x.s, x.ids, 1, 0, NULL, NULL, &far);
    check_error(&far, DQ_MISMATCH, "513 tokens, but the model has 512 positions");
    rig_close(&x);
}

/* ---- Texts ---- */

static dq_writer_text write_text(rig *x, const int32_t *ids, int64_t n, const dq_stop_ids *stops,
                                 int64_t max_new, dq_writer_listener *listener, void *arg)
{
    dq_writer_text text = {0};
    dq_sampler sampler;
    dq_err err = {0};
    dq_sampler_begin(&sampler, &dq_sampler_greedy, x->m->vocab, &err);
    const dq_writer w = {.session = x->s,
                         .sampler = &sampler,
                         .stops = stops,
                         .max_new = max_new,
                         .listener = listener,
                         .arg = arg};
    dq_writer_run(&w, ids, n, &text, &err);
    assert_string_equal(err.text, "");
    dq_sampler_end(&sampler);
    return text;
}

static int64_t read_ids(int32_t *ids, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int64_t)json_array_size(list);
}

/* tests/golden/generate.py */
TEST(writes_as_transformers)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/generate/golden.json");
    rig x;
    int n_cases = 0;
    rig_open(&x, "diffllama", &dq_kv_plain);
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *c = json_array_get(root, i), *logp = json_object_get(c, "logp");
        int32_t ids[600], want[MAX_NEW];
        dq_stop_ids stops = {0};
        dq_err err = {0};
        if (strcmp(json_string_value(json_object_get(c, "model")), "diffllama") != 0) continue;
        const int64_t n = read_ids(ids, json_object_get(c, "ids")),
                      n_new = read_ids(want, json_object_get(c, "new"));
        dq_session_clear(x.s, &err);
        dq_writer_text text = write_text(&x, ids, n, &stops, n_new, NULL, NULL);
        assert_int_equal(text.n, n_new);
        assert_memory_equal(text.ids, want, (size_t)n_new * sizeof *want);
        assert_int_equal(text.end, DQ_TEXT_END_MAX_NEW);
        for (int64_t k = 0; k < n_new; k++)
            assert_true(fabs(text.logp[k] - json_number_value(json_array_get(logp, (size_t)k))) <
                        2e-5);
        assert_int_equal(dq_session_length(x.s), n + n_new - 1);
        dq_writer_text_free(&text);
        stops =
            (dq_stop_ids){.id = {(int32_t)json_integer_value(json_object_get(c, "stop"))}, .n = 1};
        const int64_t to_stop = (int64_t)json_array_size(json_object_get(c, "new_to_stop"));
        dq_session_clear(x.s, &err);
        text = write_text(&x, ids, n, &stops, n_new, NULL, NULL);
        if (json_is_true(json_object_get(c, "stopped"))) {
            assert_int_equal(text.end, DQ_TEXT_END_STOP_ID);
            assert_int_equal(text.n, to_stop);
        }
        dq_writer_text_free(&text);
        n_cases++;
    }
    assert_int_equal(n_cases, 8);
    json_decref(root);
    rig_close(&x);
}

static dq_generate_result generated(rig *x, int64_t n)
{
    const dq_generate_prompt prompt = {.ids = x->ids, .n = n, .max_new = MAX_NEW};
    const dq_generate_spec spec = {.prompt = &prompt, .n = 1, .logp = true};
    dq_scorer s;
    dq_err err = {0};
    dq_score_begin(&s, x->r, &x->pass, &x->kv, &err);
    const dq_generate_result *g = dq_generate(&s, &spec, given_arena(), &err);
    assert_string_equal(err.text, "");
    dq_score_end(&s);
    return *g;
}

static void check_cache(const char *model, const dq_kv_spec *kv)
{
    rig x;
    const dq_stop_ids none = {0};
    rig_open(&x, model, kv);
    const dq_generate_result want = generated(&x, 120);
    dq_writer_text text = write_text(&x, x.ids, 120, &none, MAX_NEW, NULL, NULL);
    assert_int_equal(text.n, want.n);
    assert_memory_equal(text.ids, want.ids, (size_t)want.n * sizeof *want.ids);
    for (int64_t i = 0; i < text.n; i++) assert_true(fabs(text.logp[i] - want.logp[i]) < 1e-5);
    if (kv->evict.policy) {
        const dq_evict_report *r = dq_session_evicted(x.s);
        assert_true(r->kept < r->before);
    }
    dq_writer_text_free(&text);
    rig_close(&x);
}

static dq_kv_spec evicting(const char *policy, double keep, int64_t every)
{
    dq_err err = {0};
    dq_kv_spec kv = dq_kv_plain;
    kv.sink = 2;
    kv.recent = 8;
    kv.evict.policy = dq_kv_policy_find(policy, &err);
    assert_non_null(kv.evict.policy);
    kv.evict.keep = keep;
    kv.evict.every = every;
    return kv;
}

TEST(writes_as_generate_on_compressed_caches)
{
    dq_kv_spec codes = dq_kv_plain, both = evicting("keydiff", 0.4, 6);
    codes.k_bits = codes.v_bits = both.k_bits = both.v_bits = 8;
    codes.sink = 2;
    codes.recent = 8;
    const dq_kv_spec list[] = {codes,
                               evicting("keydiff", 0.5, 0),
                               evicting("h2o", 0.3, 5),
                               evicting("snapkv", 0.3, 1),
                               evicting("kvzip", 0.4, 0),
                               both};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        check_cache("diffllama", &list[i]);
        check_cache("llama", &list[i]);
    }
}

static bool third(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    int *n = arg;
    (void)id;
    (void)piece;
    assert_true(logp <= 0);
    assert_int_equal(len, 0);
    return ++*n == 3;
}

TEST(ends_when_asked_and_at_the_last_position)
{
    rig x;
    int n = 0;
    const dq_stop_ids none = {0};
    dq_err err = {0};
    rig_open(&x, "llama", &dq_kv_plain);
    dq_writer_text text = write_text(&x, x.ids, 20, &none, MAX_NEW, third, &n);
    assert_int_equal(text.n, 3);
    assert_int_equal(text.end, DQ_TEXT_END_REQUESTED);
    dq_writer_text_free(&text);
    dq_session_clear(x.s, &err);
    for (int i = 0; i < 4; i++) dq_session_feed(x.s, x.ids, 120, 0, NULL, NULL, &err);
    assert_string_equal(err.text, "");
    text = write_text(&x, x.ids, 20, &none, 100, NULL, NULL);
    assert_int_equal(text.end, DQ_TEXT_END_POSITIONS);
    assert_int_equal(text.n, 512 - 500 + 1);
    dq_writer_text_free(&text);
    rig_close(&x);
}

TEST(goes_on_after_an_interruption)
{
    rig x;
    const dq_stop_ids none = {0};
    dq_err err = {0}, ok = {0};
    rig_open(&x, "diffllama", &dq_kv_plain);
    dq_os_catch_signals();
    for (int i = 0; i < 2; i++) { /* and after another one */
        err = (dq_err){0};
        raise(SIGINT);
        dq_session_feed(x.s, x.ids, 50, 0, NULL, NULL, &err);
        check_error(&err, DQ_STOPPED, "interrupted");
        dq_os_clear_stop();
    }
    dq_session_clear(x.s, &ok);
    assert_string_equal(ok.text, "");
    const dq_generate_result want = generated(&x, 50);
    dq_writer_text text = write_text(&x, x.ids, 50, &none, MAX_NEW, NULL, NULL);
    assert_memory_equal(text.ids, want.ids, (size_t)want.n * sizeof *want.ids);
    dq_writer_text_free(&text);
    rig_close(&x);
}
