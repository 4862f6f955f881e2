/* libdq through its header alone: what each function gives agrees with the others and with references; what is wrong is named.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "lib/dq.h"
#include "tests/rigs/given.h"
#include "tests/rigs/test_folder.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_IDS = 600 };

static dq_lm *opened(const char *model, const char *const *settings)
{
    char path[4096];
    dq_lm *m;
    snprintf(path, sizeof path, "%s/calib/pair/%s", DQ_SOURCE_DIR, model);
    if (dq_lm_open(&m, path, settings) != 0) fail_msg("%s", dq_lm_error());
    return m;
}

static void expect(int status, int want, const char *text)
{
    assert_int_equal(status, want);
    if (!strstr(dq_lm_error(), text)) fail_msg("\"%s\" is not in: %s", text, dq_lm_error());
}

static double logp_of(const float *logits, int64_t vocab, int32_t id)
{
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i]);
    return (double)logits[id] - log(sum);
}

FIXTURES(folder_begin, folder_end)

TEST(scores_are_those_of_logits)
{
    static const char *const compressed[] = {"kv_bits=8", "kv_recent=4", "logit_bits=8",
                                             "logit_granularity=per-row", NULL};
    static const char *const *const settings[] = {NULL, compressed};
    enum { N = 40, CONTEXT = 25 };
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = 1 + (i * 53 + i / 7) % 600;
    for (int k = 0; k < 2; k++) {
        dq_lm *m = opened("diffllama", settings[k]);
        const int32_t vocab = dq_lm_vocab(m);
        float *logits = malloc(N * (size_t)vocab * sizeof *logits);
        const dq_lm_request r[2] = {{ids, N, CONTEXT}, {ids, CONTEXT + 1, CONTEXT}};
        double logp[2], want[2] = {0, 0};
        int greedy[2], is_greedy = 1;
        assert_int_equal(dq_lm_logits(m, ids, N, CONTEXT, logits), 0);
        assert_int_equal(dq_lm_score(m, r, 2, logp, greedy), 0);
        for (int i = CONTEXT; i < N; i++) {
            const float *row = logits + (i - 1) * vocab;
            want[0] += logp_of(row, vocab, ids[i]);
            for (int32_t v = 0; v < vocab; v++) is_greedy = is_greedy && row[v] <= row[ids[i]];
            if (i == CONTEXT) want[1] = want[0];
        }
        for (int i = 0; i < 2; i++) assert_true(fabs(logp[i] - want[i]) < 1e-4);
        assert_int_equal(greedy[0], is_greedy);
        free(logits);
        dq_lm_close(m);
    }
}

static int64_t read_ids(int32_t *ids, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int64_t)json_array_size(list);
}

/* tests/golden/generate.py: transformers' own. */
TEST(writes_as_transformers)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/generate/golden.json");
    dq_lm *m = opened("diffllama", NULL);
    int n_cases = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *c = json_array_get(root, i);
        int32_t ids[MAX_IDS], want[MAX_IDS], new_ids[MAX_IDS];
        int64_t n_new;
        if (strcmp(json_string_value(json_object_get(c, "model")), "diffllama") != 0) continue;
        const int64_t n = read_ids(ids, json_object_get(c, "ids"));
        int64_t n_want = read_ids(want, json_object_get(c, "new")), until = 0;
        while (until < n_want && want[until] != 0) until++; /* id 0 is EOS */
        assert_int_equal(dq_lm_generate(m, ids, n, n_want, NULL, NULL, NULL, new_ids, &n_new), 0);
        assert_int_equal(n_new, until);
        assert_memory_equal(new_ids, want, (size_t)until * sizeof *want);
        n_cases++;
    }
    assert_int_equal(n_cases, 8);
    dq_lm_close(m);
    json_decref(root);
}

typedef struct heard {
    char text[4096];
    size_t len;
    int n, until;
} heard;

static int hear(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    heard *h = arg;
    memcpy(h->text + h->len, piece, len);
    h->len += len;
    assert_true(id == -1 || logp <= 0);
    return ++h->n == h->until;
}

TEST(texts_come_in_pieces)
{
    dq_lm *m = opened("llama", NULL);
    static const char prompt[] = "the green mole hears";
    const dq_lm_sampling drawn = {.temperature = 1, .top_k = 50, .seed = 3};
    heard h = {.until = -1}, few = {.until = 4};
    int32_t *ids, new_ids[24], again[24];
    int64_t n, n_new, n_again;
    char *text;
    size_t len;
    assert_int_equal(dq_lm_encode(m, prompt, strlen(prompt), 1, &ids, &n), 0);
    assert_int_equal(ids[0], dq_lm_prefix_id(m));
    assert_int_equal(dq_lm_generate(m, ids, n, 24, &drawn, hear, &h, new_ids, &n_new), 0);
    assert_int_equal(dq_lm_decode(m, new_ids, n_new, 0, &text, &len), 0);
    assert_int_equal(len, h.len);
    assert_memory_equal(text, h.text, len);
    assert_int_equal(text[len], 0);
    dq_lm_free(text);
    assert_int_equal(dq_lm_generate(m, ids, n, 24, &drawn, hear, &few, again, &n_again), 0);
    assert_int_equal(n_again, 4);
    assert_memory_equal(again, new_ids, 4 * sizeof *again); /* by the same seed */
    dq_lm_free(ids);
    dq_lm_close(m);
}

/* A model whose tokenizer puts BOS before a text and the same token after it, as some put EOS. */
static dq_lm *opened_with_end(void)
{
    const char *folder = at("ends");
    json_t *t = given_json(DQ_SOURCE_DIR "/calib/pair/diffllama/tokenizer.json");
    json_t *single = json_object_get(json_object_get(t, "post_processor"), "single");
    dq_lm *m;
    shell("cp -r", DQ_SOURCE_DIR "/calib/pair/diffllama", folder);
    json_array_append(single, json_array_get(single, 0));
    assert_int_equal(json_dump_file(t, at("ends/tokenizer.json"), 0), 0);
    json_decref(t);
    if (dq_lm_open(&m, folder, NULL) != 0) fail_msg("%s", dq_lm_error());
    return m;
}

typedef struct meddler {
    dq_lm *m;
    int status[3], n;
} meddler;

static int meddle(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    meddler *x = arg;
    const dq_lm_request r = {(const int32_t[]){1, 2}, 2, 1};
    int32_t *ids, out[2];
    int64_t n;
    double p;
    int greedy;
    (void)logp;
    (void)piece;
    (void)len;
    if (x->n++ || id < 0) return 0;
    float *logits = malloc((size_t)dq_lm_vocab(x->m) * sizeof *logits);
    x->status[0] = dq_lm_logits(x->m, r.ids, 1, 0, logits);
    x->status[1] = dq_lm_score(x->m, &r, 1, &p, &greedy);
    x->status[2] = dq_lm_generate(x->m, r.ids, 1, 2, NULL, NULL, NULL, out, &n);
    free(logits);
    assert_int_equal(dq_lm_encode(x->m, "a", 1, 0, &ids, &n), 0);
    dq_lm_free(ids);
    dq_lm_close(x->m);
    return 0;
}

TEST(a_listener_does_not_run_its_model)
{
    meddler x = {.m = opened("llama", NULL)};
    int32_t ids[2] = {0, 5}, out[4];
    int64_t n_out;
    assert_int_equal(dq_lm_generate(x.m, ids, 2, 4, NULL, meddle, &x, out, &n_out), 0);
    assert_int_equal(n_out, 4); /* closed after it, not while it was written */
    for (int i = 0; i < 3; i++) assert_int_equal(x.status[i], 2);
    assert_non_null(strstr(dq_lm_error(), "a listener cannot run the model"));
}

enum { FORKED_IDS = 40 };

static float *forked_logits(dq_lm *m)
{
    int32_t ids[FORKED_IDS];
    float *logits = malloc(FORKED_IDS * (size_t)dq_lm_vocab(m) * sizeof *logits);
    for (int i = 0; i < FORKED_IDS; i++) ids[i] = 1 + i * 13 % 600;
    if (dq_lm_logits(m, ids, FORKED_IDS, 0, logits) != 0) fail_msg("%s", dq_lm_error());
    return logits;
}

/* 0 from a child that has the same logits of m, or of a model of its own. */
static int child_of(dq_lm *m, const float *want)
{
    static const char *const two[] = {"threads=2", NULL};
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(30); /* a child that waits for threads it does not have ends so */
        dq_lm *own = m ? m : opened("llama", two);
        const size_t bytes = FORKED_IDS * (size_t)dq_lm_vocab(own) * sizeof(float);
        float *got = forked_logits(own);
        _exit(memcmp(got, want, bytes) != 0);
    }
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    return status;
}

/* A parent's model, and one of its own, in children of a parent whose threads have worked and work again after that. */
TEST(a_forked_child_computes)
{
    static const char *const two[] = {"threads=2", NULL};
    dq_lm *m = opened("llama", two);
    float *want = forked_logits(m);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(child_of(i % 2 ? NULL : m, want), 0);
        float *again = forked_logits(m);
        assert_memory_equal(again, want, FORKED_IDS * (size_t)dq_lm_vocab(m) * sizeof *want);
        free(again);
    }
    free(want);
    dq_lm_close(m);
}

/* A child of the moment when a listener is told: it may not run that model, nor wait for it. */
static int forks(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    (void)id, (void)logp, (void)piece, (void)len;
    int32_t ids[1] = {1};
    float logits[4096];
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        const int status = dq_lm_logits(arg, ids, 1, 0, logits);
        _exit(status == 2 && strstr(dq_lm_error(), "was running when") ? 0 : 1);
    }
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
    return 1;
}

TEST(a_model_that_runs_is_not_forked)
{
    dq_lm *m = opened("llama", NULL);
    const int32_t ids[2] = {0, 5};
    int32_t out[4];
    int64_t n_out;
    assert_int_equal(dq_lm_generate(m, ids, 2, 4, NULL, forks, m, out, &n_out), 0);
    dq_lm_close(m);
}

TEST(a_text_that_goes_on_has_no_end)
{
    static const char text[] = "the green mole";
    dq_lm *m = opened_with_end();
    int32_t *ids[3];
    int64_t n[3];
    for (int special = 0; special < 3; special++)
        assert_int_equal(dq_lm_encode(m, text, strlen(text), special, &ids[special], &n[special]),
                         0);
    assert_int_equal(n[1], n[0] + 2);
    assert_int_equal(ids[1][0], 0);
    assert_int_equal(ids[1][n[1] - 1], 0);
    assert_int_equal(n[2], n[0] + 1);
    assert_memory_equal(ids[2], ids[1], (size_t)n[2] * sizeof **ids);
    for (int special = 0; special < 3; special++) dq_lm_free(ids[special]);
    dq_lm_close(m);
}

/* What a program's own options come out as, when each `a` opens a model on the way. */
TEST(leaves_the_program_its_arguments)
{
    static const char *const settings[] = {"kv_bits=4:4", "threads=1", NULL};
    static const struct option none[] = {{0}};
    char word[8][4] = {"x", "f1", "f2", "-ab", "-a", "f3", "-d5", "f4"}, *argv[9], seen[16] = "";
    int c;
    for (int i = 0; i < 8; i++) argv[i] = word[i];
    argv[8] = NULL;
    optind = 1;
    while ((c = getopt_long(8, argv, "abd:", none, NULL)) != -1) {
        const size_t n = strlen(seen);
        seen[n] = (char)c;
        seen[n + 1] = 0;
        if (c == 'a') dq_lm_close(opened("diffllama", settings));
        if (c == 'd') assert_string_equal(optarg, "5");
    }
    assert_string_equal(seen, "abad");
    assert_int_equal(optind, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(argv[4 + i][0], 'f');
}

TEST(says_what_it_is)
{
    static const char *const settings[] = {"kv_bits=4:4", "logit_bits=6", "threads=1", NULL};
    dq_lm *m = opened("diffllama", settings);
    json_t *about = given_document(dq_lm_describe(m));
    const json_t *set = json_object_get(about, "settings");
    assert_string_equal(json_string_value(json_object_get(about, "architecture")), "diffllama");
    assert_int_equal(json_integer_value(json_object_get(set, "logit_bits")), 6);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(set, "kv"), "k_bits")), 4);
    assert_true(json_real_value(json_object_get(about, "bits_per_weight")) == 16);
    assert_int_equal(dq_lm_positions(m), 512);
    json_decref(about);
    dq_lm_close(m);
}

TEST(names_what_is_wrong)
{
    static const struct {
        const char *setting;
        int status;
        const char *text;
    } bad[] = {
        {"kv_bitz=4", 2, "unknown option --kv-bitz. Did you mean --kv-bits?"},
        {"kv_bits", 2, "expected NAME=VALUE, found \"kv_bits\""},
        {"kv_bits=5:1", 2, "kv-bits"},
        {"logit_bits=12", 2, "logit-bits"},
        {"math=int8", 4, "int8"},
        {"device=cuda:99", 5, ""},
        {"head_order=sideways", 2, "expected one of"},
    };
    dq_lm *m;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *const settings[] = {bad[i].setting, NULL};
        expect(dq_lm_open(&m, DQ_SOURCE_DIR "/calib/pair/diffllama", settings), bad[i].status,
               bad[i].text);
        assert_null(m);
        assert_null(strstr(dq_lm_error(), "--help"));
    }
    expect(dq_lm_open(&m, "/no/such/model", NULL), 6, "no such file or folder");
    m = opened("diffllama", NULL);
    int32_t far = 640, ids[2] = {1, 2};
    float logits[2 * 640];
    double logp;
    int greedy;
    char *text;
    size_t len;
    const dq_lm_request none = {ids, 1, 1}, unknown = {&far, 1, 0};
    const dq_lm_message hello = {"user", "hello"};
    expect(dq_lm_logits(m, &far, 1, 0, logits), 4, "outside the vocabulary");
    expect(dq_lm_logits(m, ids, 2, 3, logits), 2, "a context of 3");
    expect(dq_lm_score(m, &none, 1, &logp, &greedy), 2, "request 0");
    expect(dq_lm_score(m, &unknown, 1, &logp, &greedy), 2, "request 0");
    expect(dq_lm_decode(m, &far, 1, 0, &text, &len), 4, "outside the vocabulary");
    expect(dq_lm_chat(m, &hello, 1, 1, &text, &len), 4, "no chat template");
    assert_int_equal(dq_lm_logits(m, ids, 2, 0, logits), 0); /* goes on */
    dq_lm_close(m);
    dq_lm_close(NULL);
}

TEST(quantizes)
{
    const char *path = at("small.h5");
    static const char *const settings[] = {"bits=4", "group=32", "force=true", NULL},
                             *const wrong[] = {"size=1", NULL},
                             *const maybe[] = {"force=maybe", NULL};
    dq_lm *m;
    if (dq_lm_quantize(DQ_SOURCE_DIR "/calib/pair/diffllama", path, settings) != 0)
        fail_msg("%s", dq_lm_error());
    assert_int_equal(dq_lm_open(&m, path, NULL), 0);
    json_t *about = given_document(dq_lm_describe(m));
    assert_true(json_real_value(json_object_get(about, "bits_per_weight")) < 6);
    json_decref(about);
    dq_lm_close(m);
    expect(dq_lm_quantize(DQ_SOURCE_DIR "/calib/pair/diffllama", path, NULL), 6, "exists");
    expect(dq_lm_quantize(DQ_SOURCE_DIR "/calib/pair/diffllama", path, wrong), 2, "size");
    expect(dq_lm_quantize(DQ_SOURCE_DIR "/calib/pair/diffllama", path, maybe), 2, "true or false");
}
