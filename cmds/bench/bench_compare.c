/* bench_compare: dq bench compare: documents of dq bench and of tests/peers/bench.py side by side. One line for every work:
 * what a peer and dq reached, in tokens per second, and dq over peer. Documents of peers (dq-peers/1) have both. What dq
 * bench measured (dq-bench/1; prefill and generate) takes the place of dq's figure, with a mark, on the lines of the same
 * model, work, weights, arithmetic and threads; it makes a line of its own where there is none.
 *
 * Both kinds of documents name a work by the same members, which become its line's words. When all is read, rates that dq bench
 * gives join the lines of the same words, whatever the order of the documents.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cmds/cli/help.h"
#include "cmds/cli/table.h"
#include "cmds/command.h"
#include "record/record.h"
#include "settings/options.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct line {
    const char *work;           /* with dq's model and settings */
    const char *peer, *weights; /* program and its weights; "": none */
    const char *path;           /* of its document */
    double peer_rate, dq_rate;  /* tokens per second; NaN: not known */
    double ratio;               /* of rounds in turns; NaN: not told, or not of these rates */
    double low, high;           /* bounds of the ratio, 95 %; NaN: not told */
    bool joined;                /* dq_rate is of another document than peer_rate */
} line;

typedef struct comparison {
    line *at;
    int n, cap;
    const char *path; /* that is read */
    dq_arena *a;
} comparison;

/* A member that must be there; the first that is not, or is of another type, is in err. */
static const char *word_of(const json_t *object, const char *key, dq_err *err)
{
    const char *s = json_string_value(json_object_get(object, key));
    if (s) return s;
    dq_fail(err, DQ_DAMAGED, "\"%s\" is missing or no text. Is the document cut or edited?", key);
    return "";
}

static double number_of(const json_t *object, const char *key, dq_err *err)
{
    const json_t *x = json_object_get(object, key);
    if (json_is_number(x)) return json_number_value(x);
    dq_fail(err, DQ_DAMAGED, "\"%s\" is missing or no number. Is the document cut or edited?", key);
    return (double)NAN;
}

static const char *print_to(dq_arena *a, dq_err *err, const char *fmt, ...) DQ_PRINTF(3, 4);
static const char *print_to(dq_arena *a, dq_err *err, const char *fmt, ...)
{
    char buf[500];
    const char *text = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(buf, sizeof buf, fmt, args);
    va_end(args);
    dq_document_name_text(&text, buf, a, err);
    return text;
}

/* Works that are compared: the words of a line, and the members that stand between them. */
static const struct {
    const char *what, *word[2], *member[2];
} works[] = {{"prefill", {"prefill"}, {"tokens"}},
             {"generate", {"decode after", ", batch"}, {"context", "batch"}}};
enum { N_WORKS = sizeof works / sizeof *works };

static dq_status find_work(int *i, const json_t *result, dq_err *err)
{
    const char *what = word_of(result, "what", err);
    for (*i = 0; err->code == DQ_OK && *i < N_WORKS; ++*i) {
        if (strcmp(what, works[*i].what) == 0) return DQ_OK;
    }
    return dq_fail(err, DQ_MISMATCH,
                   "holds \"%.60s\" (expected prefill or generate). Leave it out, as only these "
                   "are compared",
                   what);
}

/* "llama-4.h5: prefill 512, W4 in groups of 32, int8, 1 thread" */
static const char *work_of(const json_t *result, const json_t *settings, dq_arena *a, dq_err *err)
{
    char where[120] = "";
    int work, used = 0;
    if (find_work(&work, result, err) != DQ_OK) return "";
    for (int k = 0; k < 2 && works[work].member[k]; k++)
        used += snprintf(where + used, sizeof where - (size_t)used, "%s %.0f", works[work].word[k],
                         fmin(number_of(result, works[work].member[k], err), 1e9));
    const double threads = number_of(settings, "threads", err);
    return print_to(a, err, "%s: %s, %s, %s, %.0f thread%s", word_of(result, "model", err), where,
                    word_of(result, "weights", err), word_of(settings, "math", err), threads,
                    threads == 1 ? "" : "s");
}

/* Which of two equal ones is meant, nobody could say. */
static dq_status check_new(const comparison *c, const line *l, dq_err *err)
{
    for (int i = 0; i < c->n; i++) {
        const line *have = &c->at[i];
        if (strcmp(have->work, l->work) == 0 && strcmp(have->peer, l->peer) == 0 &&
            strcmp(have->weights, l->weights) == 0)
            return dq_fail(err, DQ_MISMATCH,
                           "holds \"%s\"%s%s, which %.200s holds as well. Give one of them",
                           l->work, *l->peer ? " beside " : "", l->peer, have->path);
    }
    return DQ_OK;
}

static dq_status add_line(comparison *c, const line *l, dq_err *err)
{
    DQ_TRY(check_new(c, l, err));
    if (c->n == c->cap) {
        const int cap = c->cap ? 2 * c->cap : 64;
        line *at = dq_alloc(c->a, (size_t)cap, sizeof *at, err);
        if (!at) return err->code;
        if (c->n) memcpy(at, c->at, (size_t)c->n * sizeof *at);
        c->at = at;
        c->cap = cap;
    }
    c->at[c->n] = *l;
    c->n++;
    return DQ_OK;
}

/* A number that need not be there. */
static double told(const json_t *result, const char *key)
{
    const json_t *x = json_object_get(result, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

static dq_status take_peer(comparison *c, const json_t *result, dq_err *err)
{
    const line l = {.work = work_of(result, result, c->a, err),
                    .peer = word_of(result, "peer", err),
                    .weights = word_of(result, "peer_weights", err),
                    .path = c->path,
                    .peer_rate = number_of(result, "peer_tokens_per_second", err),
                    .dq_rate = number_of(result, "dq_tokens_per_second", err),
                    .ratio = told(result, "ratio"),
                    .low = told(result, "ratio_low"),
                    .high = told(result, "ratio_high")};
    return err->code == DQ_OK ? add_line(c, &l, err) : err->code;
}

static dq_status take_own(comparison *c, const json_t *settings, const json_t *result, dq_err *err)
{
    const line l = {.work = work_of(result, settings, c->a, err),
                    .peer = "",
                    .weights = "",
                    .path = c->path,
                    .peer_rate = (double)NAN,
                    .dq_rate = number_of(result, "tokens_per_second", err),
                    .ratio = (double)NAN,
                    .low = (double)NAN,
                    .high = (double)NAN};
    return err->code == DQ_OK ? add_line(c, &l, err) : err->code;
}

/* Lines of dq alone go into those of the same work beside a peer. */
static void join(comparison *c)
{
    int n = 0;
    for (int k = 0; k < c->n; k++) {
        const line own = c->at[k];
        bool found = false;
        for (int i = 0; !*own.peer && i < c->n; i++) {
            line *l = &c->at[i];
            if (i == k || !*l->peer || strcmp(l->work, own.work) != 0) continue;
            l->dq_rate = own.dq_rate;
            l->ratio = l->low = l->high = (double)NAN;
            l->joined = found = true;
        }
        c->at[k].work = found ? NULL : own.work;
    }
    for (int k = 0; k < c->n; k++)
        if (c->at[k].work) c->at[n++] = c->at[k];
    c->n = n;
}

static dq_status take_document(comparison *c, const json_t *doc, dq_err *err)
{
    const json_t *result, *schema = json_object_get(doc, "schema");
    const json_t *results = json_object_get(doc, "results");
    const char *name = json_is_string(schema) ? json_string_value(schema) : "";
    const bool peers = strcmp(name, "dq-peers/1") == 0;
    size_t i;
    if (!*name || !json_is_array(results))
        return dq_fail(err, DQ_DAMAGED,
                       "not a document of speed (expected an object with \"schema\" and "
                       "\"results\"). Give what dq bench prints with --json, or tests/peers wrote");
    if (!peers && strcmp(name, "dq-bench/1") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "holds no speed (expected dq-bench/1 or dq-peers/1, found \"%.60s\")", name);
    json_array_foreach(results, i, result)
    {
        const json_t *bits = json_object_get(result, "logit_bits");
        if (bits && number_of(result, "logit_bits", err) < 16) continue; /* peers round no logits */
        if (err->code != DQ_OK) return dq_in(err, "results[%zu]: ", i);
        if (peers)
            take_peer(c, result, err);
        else
            take_own(c, json_object_get(doc, "settings"), result, err);
        if (err->code != DQ_OK) return dq_in(err, "results[%zu]: ", i);
    }
    return DQ_OK;
}

static void put_rate(dq_table *table, double x, const char *mark)
{
    if (isfinite(x))
        dq_table_cell(table, "%.*f%s", x < 100 ? 1 : 0, x, mark);
    else
        dq_table_cell(table, "-");
}

static dq_status print_lines(const comparison *c, dq_err *err)
{
    static const char *const titles[] = {"work", "peer",  "its weights", "peer",
                                         "dq",   "ratio", "95 %"};
    dq_table *table = NULL;
    bool any = false, within = false;
    DQ_TRY(dq_table_new(&table, titles, 7, err));
    for (int i = 0; i < c->n; i++) {
        const line *l = &c->at[i];
        dq_table_cell(table, "%s", l->work);
        dq_table_cell(table, "%s", *l->peer ? l->peer : "-");
        dq_table_cell(table, "%s", *l->weights ? l->weights : "-");
        put_rate(table, l->peer_rate, "");
        put_rate(table, l->dq_rate, l->joined ? "*" : "");
        any = any || l->joined;
        if (l->peer_rate > 0)
            dq_table_cell(table, "%.2f", isfinite(l->ratio) ? l->ratio : l->dq_rate / l->peer_rate);
        else
            dq_table_cell(table, "-");
        within = within || isfinite(l->low);
        if (isfinite(l->low) && isfinite(l->high))
            dq_table_cell(table, "%.2f-%.2f", l->low, l->high);
        else
            dq_table_cell(table, "-");
    }
    printf(
        "tokens per second; ratio: dq over the peer, the median of rounds where it is told%s%s\n\n",
        within ? "; 95 %: what holds that median" : "",
        any ? "; *: dq measured by itself, not in turns with the peer" : "");
    dq_table_print(table, err);
    dq_table_free(table);
    return err->code;
}

/* Texts of a document live as long as it does. */
static dq_status read_all(comparison *c, json_t **doc, const char *const *path, int n, dq_err *err)
{
    for (int i = 0; i < n; i++) {
        char *text;
        size_t len;
        c->path = path[i];
        DQ_TRY(dq_file_read_text(&text, &len, path[i], DQ_MAX_DOCUMENT, c->a, err));
        DQ_TRY(dq_json_parse(&doc[i], text, len, path[i], err));
        if (take_document(c, doc[i], err) != DQ_OK) return dq_in(err, "%s: ", path[i]);
    }
    join(c);
    return print_lines(c, err);
}

static dq_status compare(const char *const *path, int n, dq_err *err)
{
    comparison c = {.a = dq_arena_new()};
    json_t **doc = dq_block_new((size_t)n, sizeof(json_t *), err);
    if (!c.a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (err->code == DQ_OK) read_all(&c, doc, path, n, err);
    for (int i = 0; doc && i < n; i++) json_decref(doc[i]);
    dq_block_free(doc);
    dq_arena_free(c.a);
    return err->code;
}

static const dq_usage usage = {
    .name = "bench compare",
    .synopsis = "FILE.json...",
    .about = "Prints dq beside peers, a line for every work: documents that dq bench printed with "
             "--json, and those of tests/peers.",
    .examples = "  dq bench compare peers.json model4.json\n",
    .min_args = 1,
    .max_args = DQ_LIST_MAX,
    .args = "one FILE.json or more"};

dq_status dq_cmd_bench_compare(int argc, char **argv, dq_err *err)
{
    const dq_opt opts[] = {{0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    return args.help ? DQ_OK : compare(args.item, args.n, err);
}
