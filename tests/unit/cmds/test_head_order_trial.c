/* Tests of head orders that a caller chooses: what they change, what they are refused for, and that
 * dq doctor finds out when the heads of a checkpoint stand in another order.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "engine/runner.h"
#include "tests/rigs/edits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIR DQ_SOURCE_DIR "/calib/pair/"

static dq_model *open_as(const char *path, dq_pairing pairing)
{
    dq_err err = {0};
    dq_model *m;
    dq_model_open_as(&m, path, pairing, &err);
    assert_string_equal(err.text, "");
    return m;
}

/* The hidden rows of 40 tokens, [40, dim]. */
static float *hidden_of(const dq_model *m)
{
    enum { N = 40 };
    dq_err err = {0};
    int32_t ids[N], pos[N];
    int64_t cu[2] = {0, N};
    dq_backend *b = given_backend(1);
    dq_runner *r = given_runner(m, b);
    for (int i = 0; i < N; i++) {
        ids[i] = (i * 37 + 5) % m->vocab;
        pos[i] = i;
    }
    int32_t seq = b->ops->kv_seq_new(b, dq_runner_kv(r));
    dq_batch batch = {.n_seq = 1, .n_rows = N, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
    dq_pass pass = {.logit = {.bits = 16}};
    dq_mat h;
    dq_runner_pass(r, &batch, &pass, &h, &err);
    assert_string_equal(err.text, "");
    const size_t bytes = (size_t)(N * h.cols) * sizeof(float);
    float *out = dq_block_new(1, bytes, &err);
    b->ops->get(b, out, h.p, bytes);
    dq_runner_free(r);
    dq_backend_close(b);
    return out;
}

static bool same_results(const char *a, dq_pairing as_a, const char *b, dq_pairing as_b)
{
    dq_model *x = open_as(a, as_a), *y = open_as(b, as_b);
    float *of_x = hidden_of(x), *of_y = hidden_of(y);
    const bool same = memcmp(of_x, of_y, 40 * (size_t)x->dim * sizeof *of_x) == 0;
    dq_block_free(of_x);
    dq_block_free(of_y);
    dq_model_close(x);
    dq_model_close(y);
    return same;
}

TEST(maps_that_do_not_fit_are_refused)
{
    static const char *const shaped[] = {"v2-f16", "gda-f32-shards", "gda-wide-bf16"};
    static const dq_pairing offered[] = {DQ_PAIR_ADJACENT, DQ_PAIR_ADJACENT_NAIVE, DQ_PAIR_HALVES};
    for (int i = 0; i < 9; i++) {
        char path[512], want[64];
        dq_err err = {0};
        dq_model *m;
        snprintf(path, sizeof path, MODELS "%s", shaped[i / 3]);
        dq_model_open_as(&m, path, offered[i % 3], &err);
        snprintf(want, sizeof want, "head order \"%s\" does not fit a %s model",
                 dq_head_order_pairing_name(offered[i % 3]), i / 3 ? "motif2" : "diff-v2");
        check_error(&err, DQ_MISMATCH, want);
        assert_null(m);
    }
}

TEST(plain_models_keep_theirs)
{
    static const char *const plain[] = {MODELS "llama-yarn", MODELS "plain-norm"};
    for (int i = 0; i < 2; i++) {
        dq_model *m = open_as(plain[i], DQ_PAIR_HALVES);
        assert_int_equal(m->map.pairing, DQ_PAIR_NONE);
        dq_model_close(m);
        assert_true(same_results(plain[i], DQ_PAIR_HALVES, plain[i], DQ_PAIR_COUNT));
    }
}

TEST(maps_change_results)
{
    static const char *const models[] = {MODELS "v1-bf16", MODELS "motif-gqa-f32",
                                         MODELS "diffllama-bf16-far"};
    for (int i = 0; i < 3; i++) {
        dq_model *m = open_as(models[i], DQ_PAIR_COUNT);
        for (int p = DQ_PAIR_ADJACENT; p <= DQ_PAIR_HALVES; p++) {
            const bool own = (dq_pairing)p == m->map.pairing;
            assert_int_equal(same_results(models[i], (dq_pairing)p, models[i], DQ_PAIR_COUNT), own);
        }
        dq_model_close(m);
    }
}

/* The two modules of V1 are one model where queries share no keys, and two where they do. */
TEST(naive_equals_flash_without_sharing)
{
    const edit naive = SET("v1-bf16", "diff_variant", "\"v1_naive\"");
    dq_err err = {0};
    const char *shares_none = MODELS "motif-bf16", *shares = MODELS "v1-bf16";
    assert_true(same_results(shares_none, DQ_PAIR_ADJACENT, shares_none, DQ_PAIR_ADJACENT_NAIVE));
    assert_false(same_results(shares, DQ_PAIR_ADJACENT, shares, DQ_PAIR_ADJACENT_NAIVE));
    /* Said by the caller or by the configuration is the same. */
    dq_model_close(edits_open(&naive, &err));
    assert_string_equal(err.text, "");
    assert_true(same_results(shares, DQ_PAIR_ADJACENT_NAIVE, at(""), DQ_PAIR_COUNT));
    assert_true(same_results(shares, DQ_PAIR_COUNT, at(""), DQ_PAIR_ADJACENT));
}

/* ---- A checkpoint whose heads stand side by side instead of in halves ---- */

enum { HEADS = 4, HEAD_DIM = 32 }; /* calib/pair/diffllama: as many query heads as KV heads */

/* Head 2i comes from head i, head 2i + 1 from head i + HEADS / 2. */
static void interleave_heads(unsigned char *bytes, const dq_weight *w)
{
    if (!strstr(w->name, "q_proj.weight") && !strstr(w->name, "k_proj.weight") &&
        !strstr(w->name, "v_proj.weight"))
        return;
    assert_int_equal(w->rows, HEADS * HEAD_DIM);
    const size_t head = HEAD_DIM * (size_t)w->cols * dq_dtypes[w->dtype].bytes;
    for (size_t i = 0; i < HEADS; i++)
        memcpy(bytes + i * head, (const char *)w->data + (i / 2 + i % 2 * (HEADS / 2)) * head,
               head);
}

static const edit interleaved = {.base = PAIR "diffllama", .change = interleave_heads};

static void copy_tokenizer(void)
{
    size_t len;
    const char *text = given_file(&len, PAIR "diffllama/tokenizer.json");
    edits_put("tokenizer.json", text, len);
}

TEST(interleaved_heads_need_another_map)
{
    dq_err err = {0};
    dq_model_close(edits_open(&interleaved, &err));
    assert_string_equal(err.text, "");
    assert_true(same_results(PAIR "diffllama", DQ_PAIR_COUNT, at(""), DQ_PAIR_ADJACENT));
    assert_false(same_results(PAIR "diffllama", DQ_PAIR_COUNT, at(""), DQ_PAIR_COUNT));
}

/* The head orders of dq doctor --json for a model, read with the pair's own text. */
static json_t *doctor(const char *model, json_t **doc)
{
    char command[1024];
    snprintf(command, sizeof command,
             "'%s' doctor --model '%s' --text '" PAIR "text.txt' --progress never --json 2>'%s'",
             DQ_PROGRAM, model, at("warnings"));
    FILE *f = popen(command, "r");
    assert_non_null(f);
    *doc = json_loadf(f, 0, NULL);
    assert_int_equal(pclose(f), 0);
    json_t *x = json_object_get(json_array_get(json_object_get(*doc, "results"), 0), "head_orders");
    assert_string_equal(json_string_value(json_object_get(*doc, "schema")), "dq-doctor/1");
    assert_true(json_is_object(x));
    assert_string_equal(json_string_value(json_object_get(x, "model")), model);
    return x;
}

static double against_own(const json_t *head_orders, size_t i, const char *part)
{
    const json_t *x = json_array_get(json_object_get(head_orders, "maps"), i);
    return json_number_value(json_object_get(json_object_get(x, "minus_own"), part));
}

TEST(doctor_finds_the_right_order)
{
    json_t *doc, *x = doctor(PAIR "diffllama", &doc);
    assert_string_equal(json_string_value(json_object_get(x, "own")), "halves");
    assert_true(json_is_null(json_object_get(x, "better")));
    assert_int_equal(json_array_size(json_object_get(x, "maps")), 3);
    for (size_t i = 1; i < 3; i++)
        assert_true(against_own(x, i, "value") > 3 * against_own(x, i, "stderr"));
    json_decref(doc);

    edits_write(&interleaved);
    copy_tokenizer();
    x = doctor(at(""), &doc);
    assert_string_equal(json_string_value(json_object_get(x, "own")), "halves");
    assert_string_equal(json_string_value(json_object_get(x, "better")), "adjacent");
    assert_true(against_own(x, 1, "value") < -0.02);
    assert_true(against_own(x, 1, "value") < -3 * against_own(x, 1, "stderr"));
    json_decref(doc);
    char command[512];
    snprintf(command, sizeof command, "grep -q 'give --head-order adjacent' '%s'", at("warnings"));
    assert_int_equal(system(command), 0);

    x = doctor(PAIR "llama", &doc);
    assert_string_equal(json_string_value(json_object_get(x, "own")), "plain");
    assert_int_equal(json_array_size(json_object_get(x, "maps")), 1);
    assert_true(json_is_null(json_object_get(x, "better")));
    json_decref(doc);
}

FIXTURES(folder_begin, folder_end)
