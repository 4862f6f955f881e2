/* dq eval against lm-evaluation-harness: prompts byte for byte, numbers of tokens, log-likelihoods, means and
 * draws, on the files of golden/lmeval; and on the benchmarks' own files where DQ_DATA names their folder.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/file.h"
#include "base/random.h"
#include "tasks/tasks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN DQ_TEST_DIR "/golden/lmeval/"
#define PAIR   DQ_SOURCE_DIR "/calib/pair/"

static const struct {
    const char *task, *file;
} files[] = {
    {"hellaswag", "hellaswag_val"},          {"arc_easy", "arc_easy_test"},
    {"arc_challenge", "arc_challenge_test"}, {"boolq", "boolq_val"},
    {"openbookqa", "openbookqa_test"},       {"piqa", "piqa_valid"},
    {"winogrande", "winogrande_dev"},
};

/* A file of JSON lines. */
typedef struct lines {
    json_t **row;
    size_t n;
} lines;

static lines read_lines(const char *path)
{
    const char *line;
    size_t len, next = 0, n, count = 0;
    const char *text = given_file(&len, "%s", path);
    while (dq_task_file_next_line(text, len, &next, &line, &n)) count++;
    lines l = {.row = calloc(count + 1, sizeof *l.row)};
    assert_non_null(l.row);
    for (next = 0; dq_task_file_next_line(text, len, &next, &line, &n);) {
        l.row[l.n] = json_loadb(line, n, 0, NULL);
        assert_non_null(l.row[l.n++]);
    }
    assert_true(l.n > 0);
    return l;
}

static void free_lines(lines *l)
{
    for (size_t i = 0; i < l->n; i++) json_decref(l->row[i]);
    free(l->row);
}

static json_t *read_json(const char *path)
{
    json_t *o = json_load_file(path, 0, NULL);
    assert_non_null(o);
    return o;
}

static void same(const json_t *a, const json_t *b, const char *const *key, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_object_get(a, key[i]), *y = json_object_get(b, key[i]);
        if (x && json_equal(x, y)) continue;
        char *s = json_dumps(a, JSON_COMPACT), *t = json_dumps(b, JSON_COMPACT);
        fail_msg("%s differs:\n  %s\n  %s", key[i], s, t);
    }
}

static double number(const json_t *o, const char *key)
{
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

/* The largest differences so far, in nats and as a share of what is allowed. */
typedef struct differences {
    double ll, share;
} differences;

/* Sums of float32 differ by a little for every id of the continuation. */
static void same_score(const json_t *got, double want, differences *worst)
{
    double ll = number(got, "ll"), limit = 1e-4 + 1e-5 * number(got, "n_cont");
    worst->ll = fmax(worst->ll, fabs(ll - want));
    worst->share = fmax(worst->share, fabs(ll - want) / limit);
    if (!(fabs(ll - want) <= limit))
        fail_msg("%s, item %g, choice %g: expected %.6f, found %.6f",
                 json_string_value(json_object_get(got, "task")), number(got, "item"),
                 number(got, "choice"), want, ll);
}

/* Runs dq eval on the pair; its document. */
static json_t *run(const char *options)
{
    dq_err err = {0};
    const char *command =
        dq_textf(given_arena(), &err,
                 "'%s' eval %s --dump-requests '%s' --dump-items '%s' --json --force "
                 "--quiet --progress never",
                 DQ_PROGRAM, options, at("requests"), at("items"));
    assert_non_null(command);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    json_t *doc = json_loadf(f, 0, NULL);
    if (pclose(f) != 0 || !doc) fail_msg("fails: %s", command);
    return doc;
}

static const char *file_of(const char *task)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (strcmp(files[i].task, task) == 0) return files[i].file;
    }
    fail_msg("no file for %s", task);
    return NULL;
}

/* The document of a setting that the golden rows name. */
static json_t *run_setting(const json_t *row)
{
    dq_err err = {0};
    const char *task = json_string_value(json_object_get(row, "task"));
    const char *train = json_string_value(json_object_get(row, "train"));
    const char *more = "";
    if (train)
        more =
            dq_textf(given_arena(), &err, "--num-fewshot %d --fewshot-data '" GOLDEN "fixtures/%s'",
                     (int)number(row, "num_fewshot"), train);
    return run(dq_textf(given_arena(), &err,
                        "'" PAIR "llama' '" PAIR "diffllama' --task %s --data '" GOLDEN
                        "fixtures/%s.jsonl' %s",
                        task, file_of(task), more));
}

static void check_metrics(const json_t *result, const json_t *want, double shots)
{
    static const char *const names[] = {"acc", "acc_norm"};
    const json_t *metrics = json_object_get(result, "metrics");
    same(result, want, (const char *const[]){"model", "task", "n", "num_fewshot"}, 4);
    const json_t *seed = json_object_get(result, "seed");
    if (shots > 0)
        assert_int_equal(json_integer_value(seed), 1234);
    else
        assert_true(json_is_null(seed));
    if (strcmp(json_string_value(json_object_get(want, "task")), "winogrande") == 0)
        assert_true(
            json_equal(json_object_get(metrics, "acc"), json_object_get(metrics, "acc_norm")));
    for (int i = 0; i < 2; i++) {
        const json_t *m = json_object_get(metrics, names[i]);
        char stderr_name[32];
        if (!json_object_get(want, names[i])) continue; /* the harness has no such mean */
        snprintf(stderr_name, sizeof stderr_name, "%s_stderr", names[i]);
        assert_true(fabs(number(m, "value") - number(want, names[i])) < 1e-12);
        assert_true(fabs(number(m, "stderr") - number(want, stderr_name)) < 1e-12);
    }
}

/* Rows that differ in their item and choice only. */
static size_t setting_end(const lines *l, size_t begin_at)
{
    static const char *const key[] = {"task", "num_fewshot", "train"};
    size_t i = begin_at;
    for (; i < l->n; i++) {
        for (int k = 0; k < 3; k++) {
            if (!json_equal(json_object_get(l->row[begin_at], key[k]),
                            json_object_get(l->row[i], key[k])))
                return i;
        }
    }
    return i;
}

/* One setting: requests [first, to), for both models. */
static void check_setting(const lines *want, const lines *scores, const json_t *means, size_t first,
                          size_t to, size_t index)
{
    static const char *const text[] = {"task", "item", "choice", "context", "continuation"};
    static const char *const scored[] = {"model", "item", "choice", "greedy"};
    const size_t n = to - first, n_settings = json_array_size(means) / 2;
    differences worst = {0, 0};
    json_t *doc = run_setting(want->row[first]);
    lines got = read_lines(at("requests")), items = read_lines(at("items"));
    assert_int_equal(got.n, n);
    assert_int_equal(items.n, 2 * n);
    for (size_t i = 0; i < n; i++) same(got.row[i], want->row[first + i], text, 5);
    for (size_t i = 0; i < 2 * n; i++) {
        const json_t *s = scores->row[(i / n) * want->n + first + i % n];
        const json_t *r = want->row[first + i % n];
        same(items.row[i], s, scored, 4);
        same(items.row[i], r, (const char *const[]){"n_ctx", "n_cont"}, 2);
        same_score(items.row[i], number(s, "ll"), &worst);
    }
    for (size_t m = 0; m < 2; m++)
        check_metrics(json_array_get(json_object_get(doc, "results"), m),
                      json_array_get(means, m * n_settings + index),
                      number(want->row[first], "num_fewshot"));
    const json_t *train = json_object_get(want->row[first], "train");
    print_message("%-14s %g-shot %-29s %3zu requests x 2: strings, ids, greedy flags, means equal; "
                  "worst |dll| %.1e, %.2f of the limit\n",
                  json_string_value(json_object_get(want->row[first], "task")),
                  number(want->row[first], "num_fewshot"),
                  json_is_string(train) ? json_string_value(train) : "", n, worst.ll, worst.share);
    free_lines(&got);
    free_lines(&items);
    json_decref(doc);
}

TEST(settings_of_the_harness)
{
    lines want = read_lines(GOLDEN "requests.jsonl"), scores = read_lines(GOLDEN "scores.jsonl");
    json_t *metrics = read_json(GOLDEN "metrics.json");
    const json_t *means = json_object_get(metrics, "rows");
    size_t index = 0;
    assert_int_equal(scores.n, 2 * want.n);
    for (size_t at = 0, to; at < want.n; at = to, index++) {
        to = setting_end(&want, at);
        check_setting(&want, &scores, means, at, to, index);
    }
    assert_int_equal(json_array_size(means), 2 * index);
    json_decref(metrics);
    free_lines(&want);
    free_lines(&scores);
}

static void items_of(dq_items *items, const char *task, const char *path, int64_t limit)
{
    dq_err err = {0};
    char *text;
    size_t len;
    const dq_task *t = given_task(task);
    if (dq_file_read(&text, &len, path, given_arena(), &err) == DQ_OK)
        dq_task_load(items, t, path, text, len, limit, given_arena(), &err);
    assert_string_equal(err.text, "");
}

/* SHA-256 over context 0x1f continuation 0x1e of every request. */
static void digest(char hex[65], const dq_items *items)
{
    dq_sha256 h;
    dq_err err = {0};
    dq_sha256_begin(&h, &err);
    for (int64_t i = 0; i < items->n; i++) {
        for (int c = 0; c < items->item[i].n_choices; c++) {
            size_t n;
            const char *ctx = dq_item_context(&items->item[i], c, &n);
            dq_sha256_add(&h, ctx, n);
            dq_sha256_add(&h, "\x1f", 1);
            dq_sha256_add(&h, items->item[i].choice[c].text, items->item[i].choice[c].len);
            dq_sha256_add(&h, "\x1e", 1);
        }
    }
    assert_int_equal(dq_sha256_end(&h, hex, &err), DQ_OK);
}

TEST(both_forms_of_boolq)
{
    dq_items later, original;
    char a[65], b[65];
    items_of(&later, "boolq", GOLDEN "fixtures/boolq_val.jsonl", 0);
    items_of(&original, "boolq", GOLDEN "fixtures/boolq_dev.jsonl", 0);
    digest(a, &later);
    digest(b, &original);
    assert_string_equal(a, b);
    for (int64_t i = 0; i < later.n; i++)
        assert_int_equal(later.item[i].gold, original.item[i].gold);
}

TEST(draws)
{
    json_t *all = read_json(GOLDEN "draws.json");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *row = json_array_get(all, i), *took = json_object_get(row, "took");
        const int64_t n = (int64_t)number(row, "pool"), k = (int64_t)number(row, "shots");
        const int64_t spare = json_is_true(json_object_get(row, "exclude"));
        int64_t got[16];
        dq_random_mt r;
        dq_err err = {0};
        dq_random_mt_seed(&r, 1234);
        for (size_t item = 0; item < json_array_size(took); item++) {
            assert_int_equal(dq_random_mt_sample(&r, got, n, k + spare, &err), DQ_OK);
            for (int64_t j = 0; j < k; j++)
                assert_int_equal(got[j], json_integer_value(json_array_get(
                                             json_array_get(took, item), (size_t)j)));
        }
    }
    json_decref(all);
}

/* Means that may differ by the items in which a choice hangs on rounding. */
static void check_means(const json_t *result, const json_t *want)
{
    static const char *const names[] = {"acc", "acc_norm"};
    const json_t *metrics = json_object_get(result, "metrics"),
                 *close = json_object_get(want, "close");
    const double n = number(want, "n");
    assert_true(n > 0 && number(result, "n") == n);
    for (int i = 0; i < 2; i++) {
        if (!json_object_get(want, names[i])) continue;
        double value = number(json_object_get(metrics, names[i]), "value");
        assert_true(fabs(value - number(want, names[i])) <= number(close, names[i]) / n + 1e-12);
    }
}

static const char *data_folder(void)
{
    const char *folder_given = getenv("DQ_DATA");
    return folder_given && folder_given[0] ? folder_given : DQ_DATA;
}

/* All prompts of a benchmark, its first log-likelihoods, and the means over its first 100 items. */
static void check_real(const char *task, const json_t *want)
{
    dq_err err = {0};
    dq_items items;
    differences worst = {0, 0};
    char hex[65];
    const char *path = dq_textf(given_arena(), &err, "%s/%s", data_folder(),
                                json_string_value(json_object_get(want, "file")));
    if (!dq_file_exists(path)) return;
    items_of(&items, task, path, 0);
    digest(hex, &items);
    assert_string_equal(
        hex, json_string_value(json_object_get(json_object_get(want, "full"), "sha256")));
    json_t *doc = run(dq_textf(
        given_arena(), &err, "'" PAIR "diffllama' --task %s --data '%s' --limit 100", task, path));
    lines got = read_lines(at("items"));
    const json_t *ll = json_object_get(want, "ll"), *few = json_object_get(want, "first100");
    assert_true(json_array_size(ll) > 0 && json_array_size(ll) <= got.n);
    for (size_t i = 0; i < json_array_size(ll); i++)
        same_score(got.row[i], json_number_value(json_array_get(ll, i)), &worst);
    check_means(json_array_get(json_object_get(doc, "results"), 0), few);
    print_message(
        "%-14s the benchmark's own file: all %d items' strings equal, means of 100 equal; "
        "first %zu requests: worst |dll| %.1e, %.2f of the limit\n",
        task, (int)items.n, json_array_size(ll), worst.ll, worst.share);
    free_lines(&got);
    json_decref(doc);
}

TEST(real_data)
{
    if (!data_folder()[0]) skip();
    json_t *all = read_json(GOLDEN "real.json");
    const char *task;
    json_t *want;
    json_object_foreach(json_object_get(all, "tasks"), task, want) check_real(task, want);
    json_decref(all);
}

FIXTURES(folder_begin, folder_end)
