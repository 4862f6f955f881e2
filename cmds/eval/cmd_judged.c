/* Dq judged FILE.jsonl: completions that dq eval --dump-completions wrote become requests to a
 * judge, and those that it gave a "verdict" each become rows like those of dq eval, each beside
 * the same model's 16-bit row.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/eval/inside.h"
#include "record/record.h"
#include "tasks/questions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JUDGE "gpt-4o" /* that of arXiv 2410.05258 */

typedef struct options {
    const char *path, *csv, *document;
    const char *requests, *judge, *verdicts; /* NULL: not given */
    bool json, force;
    dq_logger logger;
} options;

void cmd_judged_settings(dq_row_writer *w)
{
    DQ_OBJECT(w, "settings", "Of dq judged: nothing but the task.");
    DQ_LIST(w, "tasks", "Its name.");
    DQ_PUT(w, NULL, "judged", NULL, DQ_WORD("judged"));
    dq_row_end(w);
    dq_row_end(w);
}

static void math_rows(dq_row_writer *w, const char *math)
{
    static const char *const of[] = {"linear", "qk", "pv", "kv"};
    if (!DQ_BEGIN(w, OBJECT, "math", math, "--math of the run that was judged; null: not told.",
                  .when = DQ_NULL, .def = "math"))
        return;
    for (int k = 0; k < 4; k++) DQ_PUT(w, of[k], math, "Of products.");
    dq_row_end(w);
}

static void nothing_row(dq_row_writer *w, const char *name)
{
    DQ_PUT(w, name, (json_t *)NULL, "Not known here.", .ref = "null");
}

/* Rows of dq-eval/1 without what a file of verdicts does not have. */
void cmd_judged_rows(dq_row_writer *w, const void *verdicts)
{
    const dq_verdicts *v = verdicts;
    for (int i = 0; DQ_MORE(w, i, v->n); i++) {
        const dq_verdict_group *g = DQ_LIVE(w, &v->group[i]);
        DQ_ITEM(w);
        DQ_PUT(w, "model", g->model, "Its name in the file.");
        DQ_PUT(w, "reference", g->ref >= 0 ? v->group[g->ref].model : NULL,
               "The model of the 16-bit row that it is compared with; null: none.",
               .when = DQ_NULL);
        DQ_PUT(w, "logit_bits", g->bits, "Bits of attention logits.");
        DQ_PUT(w, "logit_granularity", g->granularity, "What shares a scale.");
        DQ_PUT(w, "kv", json_deep_copy(g->kv), "The KV cache as the file has it; null: not told.",
               .ref = "object", .when = DQ_NULL);
        nothing_row(w, "weights");
        math_rows(w, DQ_LIVE(w, g->math));
        nothing_row(w, "passes");
        nothing_row(w, "throughput");
        DQ_PUT(w, "task", "judged", "That it was judged.", DQ_WORD("judged"));
        DQ_PUT(w, "of_task", g->task, "The task of the completions; null: not told.",
               .when = DQ_NULL);
        DQ_PUT(w, "n", g->n, "Completions with a verdict.");
        DQ_OBJECT(w, "metrics", "What it scored.");
        DQ_SCORE(w, "acc", g->acc, g->acc_interval, "Share of completions that are right.");
        dq_row_end(w);
        if (DQ_BEGIN(w, OBJECT, "paired", g->ref >= 0 && g->ref != i,
                     "Differences to the 16-bit row; null: none.", .when = DQ_NULL)) {
            DQ_FLIPS(w, "acc", true, &g->flips, "Of the same items.");
            dq_row_end(w);
        }
        if (DQ_BEGIN(w, OBJECT, "cross_paired", g->cross >= 0, "Differences to another model.",
                     .when = DQ_OUT)) {
            DQ_FLIPS(w, "acc", true, &g->cross_flips, "Of the same items.");
            DQ_PUT(w, "model", v->group[g->cross].model, "That model.");
            dq_row_end(w);
        }
        dq_row_end(w);
    }
}

static json_t *document(const options *o, const dq_verdicts *v, const json_t *inputs)
{
    json_t *doc = dq_document_new(&o->logger, dq_eval_document.name);
    dq_row_writer w = dq_row_json(doc);
    cmd_judged_settings(&w);
    cmd_eval_inputs_rows(&w, inputs);
    DQ_LIST(&w, "results", NULL);
    cmd_judged_rows(&w, v);
    dq_row_end(&w);
    return doc;
}

/* The policy in labels, " keydiff 0.25 heads"; "" for none. */
static const char *evicts(char *text, size_t cap, const json_t *kv)
{
    const char *policy = json_string_value(json_object_get(kv, "policy"));
    const char *budget = json_string_value(json_object_get(kv, "budget"));
    const json_t *tokens = json_object_get(kv, "tokens");
    const double n =
        json_number_value(json_is_number(tokens) ? tokens : json_object_get(kv, "keep"));
    const bool say = budget && strcmp(budget, "uniform") != 0;
    text[0] = 0;
    if (policy)
        snprintf(text, cap, " %.40s %g%s%.40s", policy, n, say ? " " : "", say ? budget : "");
    return text;
}

/* Widths, codes and policy of a cache; "" where they are not given. */
enum { KV_LABEL = 256 };
static const char *kv_label(char text[KV_LABEL], const json_t *kv)
{
    const json_t *k = json_object_get(kv, "k_bits"), *v = json_object_get(kv, "v_bits");
    const char *widths = json_string_value(json_object_get(kv, "widths"));
    const char *code = json_string_value(json_object_get(kv, "quant"));
    const char *type = json_string_value(json_object_get(kv, "dense_type"));
    char bits[24], rest[128];
    const bool known = json_is_integer(k) && json_is_integer(v);
    const bool coded =
        widths || (known && (json_integer_value(k) < 16 || json_integer_value(v) < 16));
    const bool say = coded && code && strcmp(code, "per-token") != 0;
    const bool other = type && (strcmp(type, "bf16") == 0 || (coded && strcmp(type, "f32") == 0));
    text[0] = 0;
    if (known)
        snprintf(bits, sizeof bits, "%d:%d", (int)json_integer_value(k),
                 (int)json_integer_value(v));
    if (widths || known)
        snprintf(text, KV_LABEL, "%.64s%s%.16s%s%.8s%s", widths ? widths : bits, say ? " " : "",
                 say ? code : "", other ? " " : "", other ? type : "",
                 evicts(rest, sizeof rest, kv));
    return text;
}

/* Whether results with other cache settings have the same label. */
static bool is_shared(const json_t *results, const json_t *kv)
{
    char mine[KV_LABEL], other[KV_LABEL];
    const json_t *x;
    size_t i;
    kv_label(mine, kv);
    json_array_foreach(results, i, x)
    {
        const json_t *o = json_object_get(x, "kv");
        if (json_is_object(o) && !json_equal(o, kv) && strcmp(kv_label(other, o), mine) == 0)
            return true;
    }
    return false;
}

/* `none` where the cache is not given. */
static dq_status kv_text(dq_table *t, const json_t *kv, const char *none, dq_err *err)
{
    char *text = NULL;
    if (json_is_object(kv)) DQ_TRY(dq_json_dump(&text, kv, JSON_ENCODE_ANY | JSON_COMPACT, err));
    dq_table_cell(t, "%s", text ? text : none);
    free(text);
    return DQ_OK;
}

static void count_cell(dq_table *t, const json_t *x)
{
    dq_table_cell(t, "%lld", json_integer_value(x));
}

static void p_cell(dq_table *t, const json_t *x)
{
    dq_table_known(t, json_is_real(x), "%.3g", json_real_value(x));
}

static dq_status print_table(const json_t *results, dq_err *err)
{
    static const cmd_eval_column before[] = {DQ_COLUMN("model", "model", cmd_eval_cell_text),
                                             DQ_COLUMN("logit bits", "logit_bits", count_cell)};
    static const cmd_eval_column math = DQ_COLUMN("math", "math.linear", cmd_eval_cell_text);
    static const cmd_eval_column after[] = {
        DQ_COLUMN("verdicts on", "of_task", cmd_eval_cell_text),
        DQ_COLUMN("n", "n", count_cell),
        DQ_COLUMN("acc", "metrics.acc", cmd_eval_cell_score),
        DQ_COLUMN("against reference", "paired.acc", cmd_eval_cell_score_change),
        DQ_COLUMN("McNemar p", "paired.acc.p", p_cell),
        DQ_COLUMN("against first model", "cross_paired.acc", cmd_eval_cell_score_change)};
    enum { N_AFTER = sizeof after / sizeof after[0] };
    const char *titles[5 + N_AFTER] = {before[0].title, before[1].title, "granularity", math.title};
    const json_t *first = json_object_get(json_array_get(results, 0), "math"), *x;
    bool maths = false, crossed = false;
    dq_table *t = NULL;
    size_t i;
    json_array_foreach(results, i, x)
    {
        maths = maths || !json_equal(json_object_get(x, "math"), first);
        crossed = crossed || json_object_get(x, "cross_paired");
    }
    titles[3 + maths] = "KV cache";
    for (int k = 0; k < N_AFTER; k++) titles[4 + maths + k] = after[k].title;
    DQ_TRY(dq_table_new(&t, titles, 4 + maths + N_AFTER - !crossed, err));
    dq_table_keys(t, 5 + maths);
    json_array_foreach(results, i, x)
    {
        const json_t *kv = json_object_get(x, "kv");
        char label[KV_LABEL] = "";
        cmd_eval_column_cells(t, x, before, 2);
        dq_table_cell(t, "%s",
                      json_integer_value(json_object_get(x, "logit_bits")) == 16
                          ? "-"
                          : json_string_value(json_object_get(x, "logit_granularity")));
        if (maths) cmd_eval_column_cells(t, x, &math, 1);
        /* The label of a cache; its JSON where the label is missing or ambiguous. */
        if (!json_is_object(kv) || !kv_label(label, kv)[0] || is_shared(results, kv))
            kv_text(t, kv, "-", err);
        else
            dq_table_cell(t, "%s", label);
        cmd_eval_column_cells(t, x, after, N_AFTER - !crossed);
    }
    if (dq_table_finish(t, err) == DQ_OK)
        printf("\n\u00b1 is one standard error over items, those of one prompt or \"cluster\" as "
               "one; where no item differs, a 95 %% bound stands instead.\n");
    return err->code == DQ_OK ? dq_stdout_flush(err) : err->code;
}

static dq_status write_csv(const json_t *results, const char *path, dq_err *err)
{
    static const cmd_eval_column column[] = {
        DQ_COLUMN("model", "model", NULL),
        DQ_COLUMN("reference", "reference", NULL),
        DQ_COLUMN("logit_bits", "logit_bits", NULL),
        DQ_COLUMN("logit_granularity", "logit_granularity", NULL),
        DQ_COLUMN("kv", NULL, NULL),
        DQ_COLUMN("task", "task", NULL),
        DQ_COLUMN("of_task", "of_task", NULL),
        DQ_COLUMN("n", "n", NULL),
        DQ_COLUMNS_MEAN("acc", "metrics.acc"),
        DQ_COLUMN("acc_delta", "paired.acc.delta", NULL),
        DQ_COLUMN("acc_delta_stderr", "paired.acc.stderr", NULL),
        DQ_COLUMN("acc_mcnemar_p", "paired.acc.p", NULL),
        DQ_COLUMN("math_linear", "math.linear", NULL)};
    enum { N = sizeof column / sizeof column[0] };
    const char *titles[N];
    const json_t *x;
    dq_table *t = NULL;
    size_t i;
    for (int k = 0; k < N; k++) titles[k] = column[k].title;
    DQ_TRY(dq_table_new(&t, titles, N, err));
    json_array_foreach(results, i, x)
    {
        for (int k = 0; k < N; k++) {
            if (column[k].path)
                cmd_eval_column_csv(t, x, &column[k]);
            else
                kv_text(t, json_object_get(x, "kv"), "", err);
        }
    }
    dq_table_csv(t, path, err);
    dq_table_free(t);
    return err->code;
}

static dq_status check_outputs(const options *o, const dq_args *args, dq_err *err)
{
    const dq_output out[] = {{"--csv", o->csv, DQ_OUTPUT_CSV, NULL},
                             {"-o", o->document, DQ_OUTPUT_JSON, NULL},
                             {"--requests", o->requests, DQ_OUTPUT_LINES, NULL}};
    const char *other = o->csv        ? "csv"
                        : o->document ? "output"
                        : o->json     ? "json"
                        : o->verdicts ? "verdicts"
                                      : NULL;
    if (o->requests && other)
        return dq_fail(err, DQ_USAGE, "--requests comes before any verdict; leave out --%s.",
                       other);
    if (o->judge && !o->requests)
        return dq_fail(err, DQ_USAGE, "--judge is about --requests, which is not given.");
    return dq_output_guard_check(out, 3, args->input, args->n_inputs, o->force, err);
}

typedef struct asking {
    const options *o;
    const char *text;
    size_t len;
    FILE *f;
    int64_t n;
} asking;

static dq_status take_request(void *arg, json_t *request, dq_err *err)
{
    asking *x = arg;
    x->n++;
    return dq_document_put_line(x->f, json_incref(request), err);
}

static dq_status put_requests(FILE *f, const void *arg, dq_err *err)
{
    asking *x = (asking *)(uintptr_t)arg;
    x->f = f;
    if (dq_judge_requests(x->text, x->len, x->o->judge ? x->o->judge : JUDGE, take_request, x,
                          err) != DQ_OK)
        return dq_in(err, "%s: ", x->o->path);
    if (x->n) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: holds no completions", x->o->path);
}

static dq_status ask(const options *o, const char *text, size_t len, dq_err *err)
{
    asking x = {.o = o, .text = text, .len = len};
    DQ_TRY(dq_document_write_lines(o->requests, put_requests, &x, err));
    printf("%s: %lld requests to %s\n", o->requests, (long long)x.n, o->judge ? o->judge : JUDGE);
    return dq_stdout_flush(err);
}

/* Adds verdicts from another file to the completions; without one, *text is unchanged. */
static dq_status join(options *o, cmd_eval_files *files, dq_strbuf *out, const char **text,
                      size_t *len, dq_arena *a, dq_err *err)
{
    const char *replies;
    size_t replies_len;
    dq_judge_tally tally;
    if (!o->verdicts) return DQ_OK;
    DQ_TRY(cmd_eval_file_read(files, files->sha[1], "verdicts", o->verdicts, &replies, &replies_len,
                              a, err));
    DQ_TRY(dq_judge_join(out, &tally, *text, *len, o->verdicts, replies, replies_len, a, err));
    if (tally.unclear)
        dq_logger_warn(
            &o->logger,
            "%s: %lld of %lld replies say neither correct nor incorrect alone, the first in "
            "line %lld: \"%s\"; their completions are left out",
            o->verdicts, (long long)tally.unclear, (long long)tally.replies,
            (long long)tally.first_unclear, tally.said);
    if (tally.lacking)
        dq_logger_warn(&o->logger, "%s: %lld of %lld completions have no verdict and are left out",
                       o->path, (long long)tally.lacking, (long long)tally.completions);
    if (tally.completions > 0 && tally.lacking == tally.completions)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: has no verdict of a completion in %s. Are these the replies to its "
                       "requests (dq judged %s --requests FILE)?",
                       o->verdicts, o->path, o->path);
    *text = out->s;
    *len = out->n;
    return DQ_OK;
}

static dq_status run(options *o, dq_err *err)
{
    dq_verdicts v = {0};
    dq_arena *a = dq_arena_new();
    cmd_eval_files files = {.inputs = json_array(), .logger = &o->logger};
    dq_strbuf joined = {0};
    const char *text;
    size_t len;
    if (!a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (a &&
        cmd_eval_file_read(&files, files.sha[0], "judged", o->path, &text, &len, a, err) == DQ_OK) {
        if (o->requests)
            ask(o, text, len, err);
        else if (join(o, &files, &joined, &text, &len, a, err) == DQ_OK &&
                 dq_verdicts_load(&v, o->path, text, len, a, err) == DQ_OK) {
            const char *written[2];
            int n = 0;
            /* A group is compared over the items that its reference has too. */
            for (int i = 0; i < v.n; i++) {
                const dq_verdict_group *g = &v.group[i];
                const dq_verdict_group *ref = g->ref >= 0 ? &v.group[g->ref] : NULL;
                if (ref && (g->flips.n != g->n || g->flips.n != ref->n))
                    dq_logger_warn(&o->logger,
                                   "%s, %d bits: %lld items have a verdict, %lld at 16 bits; %lld "
                                   "are compared",
                                   g->model, g->bits, (long long)g->n, (long long)ref->n,
                                   (long long)g->flips.n);
            }
            json_t *doc = document(o, &v, files.inputs);
            const json_t *results = json_object_get(doc, "results");
            if (o->csv && write_csv(results, o->csv, err) == DQ_OK) written[n++] = o->csv;
            if (err->code == DQ_OK && o->document &&
                dq_document_write(json_incref(doc), o->document, err) == DQ_OK)
                written[n++] = o->document;
            if (err->code == DQ_OK) {
                if (o->json)
                    dq_stdout_print(json_incref(doc), err);
                else
                    print_table(results, err);
            }
            json_decref(doc);
            for (int i = 0; err->code != DQ_OK && i < n; i++)
                remove(written[i]); /* no output of a failure */
        }
    }
    dq_block_free(joined.s);
    json_decref(files.inputs);
    dq_verdicts_end(&v);
    dq_arena_free(a);
    return err->code;
}

static const dq_usage usage = {
    .name = "judged",
    .synopsis = "FILE.jsonl [options]",
    .about =
        "Reads completions that dq eval --dump-completions wrote and that somebody judged: "
        "each line has a \"verdict\" as well. Prints the accuracy of every model and width, and "
        "its paired difference to the same model at 16 bits. No model is run. --requests "
        "writes the requests to a judge, --verdicts reads the replies.",
    .examples = "  dq eval model --task xsum --data xsum.jsonl --dump-completions c.jsonl\n"
                "  dq judged c.jsonl --requests r.jsonl\n"
                "  dq judged c.jsonl --verdicts replies.jsonl\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one FILE.jsonl"};

dq_status dq_cmd_judged(int argc, char **argv, dq_err *err)
{
    options o = {0};
    const dq_opt opts[] = {
        dq_opt_flag("json", &o.json, "one JSON document (dq-eval/1) instead of the table"),
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "FILE", &o.document,
                                                     "write the JSON document to a file too"))),
        dq_opt_output(dq_opt_text("csv", "FILE", &o.csv, "write the table as CSV too")),
        dq_opt_output(
            dq_opt_text("requests", "FILE", &o.requests,
                        "write a request to a judge for each completion, as OpenAI's batches have "
                        "them, and stop")),
        dq_opt_text("judge", "NAME", &o.judge, "model that --requests names (default gpt-4o)"),
        dq_opt_text("verdicts", "FILE", &o.verdicts,
                    "verdicts or replies to those requests, by custom_id, in place of those in the "
                    "lines"),
        dq_opt_flag("force", &o.force, "replace existing output files"),
        DQ_LOGGER_OPTIONS(o.logger),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    o.path = args.item[0];
    if (check_outputs(&o, &args, err) == DQ_OK &&
        dq_progress_listen(&o.logger, usage.name, err) == DQ_OK)
        run(&o, err);
    dq_logger_end(&o.logger);
    return err->code;
}
