/* Dq judged FILE.jsonl: completions that dq eval --dump-completions wrote become requests to a
 * judge, and those that it gave a "verdict" each become rows like those of dq eval, each beside
 * the same model's 16-bit row.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/eval/inside.h"
#include "model/model.h"
#include "record/record.h"
#include "tasks/questions.h"

#include <math.h>
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

static json_t *paired_json(const dq_stat_flips *f)
{
    json_t *o = json_object();
    json_object_set_new(o, "acc", cmd_eval_flips_json(f));
    return o;
}

static json_t *text_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

/* One word of --math for all products. */
static json_t *math_json(const char *word)
{
    static const char *const parts[] = {"linear", "qk", "pv", "kv"};
    if (!word) return json_null();
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        json_object_set_new(o, parts[i], json_string(word));
    return o;
}

static json_t *document(const options *o, const dq_verdicts *v, json_t *inputs)
{
    json_t *doc = dq_document_new(&o->logger, "dq-eval/1"), *tasks = json_array();
    json_array_append_new(tasks, json_string("judged"));
    json_object_set_new(json_object_get(doc, "settings"), "tasks", tasks);
    json_object_set(doc, "inputs", inputs);
    for (int i = 0; i < v->n; i++) {
        /* Keys of a row of dq-eval/1 that a file of verdicts does not have. */
        static const char *const unknown[] = {"passes", "throughput"};
        const dq_verdict_group *g = &v->group[i];
        json_t *entry = json_object(), *metrics = json_object();
        json_object_set_new(entry, "model", json_string(g->model));
        json_object_set_new(entry, "reference",
                            text_or_null(g->ref >= 0 ? v->group[g->ref].model : NULL));
        json_object_set_new(entry, "logit_bits", json_integer(g->bits));
        json_object_set_new(entry, "logit_granularity", json_string(g->granularity));
        json_object_set_new(entry, "kv", g->kv ? json_deep_copy(g->kv) : json_null());
        json_object_set_new(entry, "weights", json_null());
        json_object_set_new(entry, "math", math_json(g->math));
        for (size_t k = 0; k < sizeof unknown / sizeof unknown[0]; k++)
            json_object_set_new(entry, unknown[k], json_null());
        json_object_set_new(entry, "task", json_string("judged"));
        json_object_set_new(entry, "of_task", text_or_null(g->task));
        json_object_set_new(entry, "n", json_integer((json_int_t)g->n));
        json_object_set_new(metrics, "acc", cmd_eval_score_json(g->acc, g->acc_interval));
        json_object_set_new(entry, "metrics", metrics);
        json_object_set_new(entry, "paired",
                            g->ref >= 0 && g->ref != i ? paired_json(&g->flips) : json_null());
        if (g->cross >= 0) {
            json_t *c = paired_json(&g->cross_flips);
            json_object_set_new(c, "model", json_string(v->group[g->cross].model));
            json_object_set_new(entry, "cross_paired", c);
        }
        json_array_append_new(json_object_get(doc, "results"), entry);
    }
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

/* Whether groups with other cache settings have the same label. */
static bool is_shared(const dq_verdicts *v, const json_t *kv)
{
    char mine[KV_LABEL], other[KV_LABEL];
    kv_label(mine, kv);
    for (int i = 0; i < v->n; i++) {
        const json_t *o = v->group[i].kv;
        if (o && !json_equal(o, kv) && strcmp(kv_label(other, o), mine) == 0) return true;
    }
    return false;
}

/* `none` where the cache is not given. */
static dq_status kv_text(dq_table *t, const json_t *kv, const char *none, dq_err *err)
{
    char *text = NULL;
    if (kv) DQ_TRY(dq_json_dump(&text, kv, JSON_ENCODE_ANY | JSON_COMPACT, err));
    dq_table_cell(t, "%s", text ? text : none);
    free(text);
    return DQ_OK;
}

/* The label of a cache; its JSON where the label is missing or ambiguous. */
static dq_status kv_cell(dq_table *t, const dq_verdicts *v, const json_t *kv, dq_err *err)
{
    char label[KV_LABEL];
    if (!kv || !kv_label(label, kv)[0] || is_shared(v, kv)) return kv_text(t, kv, "-", err);
    dq_table_cell(t, "%s", label);
    return DQ_OK;
}

static bool differ_in_math(const dq_verdicts *v)
{
    for (int i = 1; i < v->n; i++) {
        const char *a = v->group[0].math, *b = v->group[i].math;
        if (strcmp(a ? a : "", b ? b : "") != 0) return true;
    }
    return false;
}

static bool several_models(const dq_verdicts *v)
{
    for (int i = 0; i < v->n; i++) {
        if (v->group[i].cross >= 0) return true;
    }
    return false;
}

static dq_status print_table(const dq_verdicts *v, dq_err *err)
{
    static const char *const after[] = {
        "KV cache",  "verdicts on",        "n", "acc", "against reference",
        "McNemar p", "against first model"};
    enum { N_AFTER = sizeof after / sizeof after[0] };
    const char *titles[4 + N_AFTER] = {"model", "logit bits", "granularity", "math"};
    const bool math = differ_in_math(v), cross = several_models(v);
    dq_table *t = NULL;
    for (int i = 0; i < N_AFTER; i++) titles[3 + math + i] = after[i];
    DQ_TRY(dq_table_new(&t, titles, 3 + math + N_AFTER - !cross, err));
    dq_table_keys(t, 5 + math);
    for (int i = 0; i < v->n; i++) {
        const dq_verdict_group *g = &v->group[i];
        const bool paired = g->ref >= 0 && g->ref != i;
        dq_table_cell(t, "%s", g->model);
        dq_table_cell(t, "%d", g->bits);
        dq_table_cell(t, "%s", g->bits == 16 ? "-" : g->granularity);
        if (math) dq_table_cell(t, "%s", g->math ? g->math : "-");
        kv_cell(t, v, g->kv, err);
        dq_table_cell(t, "%s", g->task ? g->task : "-");
        dq_table_cell(t, "%lld", (long long)g->n);
        cmd_eval_score_cell(t, g->acc, g->acc_interval, "");
        if (paired)
            cmd_eval_score_cell(t, (dq_mean){g->flips.delta, g->flips.std_err, g->flips.clusters},
                                g->flips.interval, "+");
        else
            dq_table_cell(t, "-");
        dq_table_known(t, paired, "%.3g", g->flips.p);
        if (cross && g->cross >= 0)
            cmd_eval_score_cell(
                t, (dq_mean){g->cross_flips.delta, g->cross_flips.std_err, g->cross_flips.clusters},
                g->cross_flips.interval, "+");
        else if (cross)
            dq_table_cell(t, "-");
    }
    if (dq_table_print(t, err) == DQ_OK)
        printf("\n\u00b1 is one standard error over items, those of one prompt or \"cluster\" as "
               "one; where no "
               "item differs, a 95 %% bound "
               "stands instead.\n");
    dq_table_free(t);
    return err->code == DQ_OK ? dq_stdout_flush(err) : err->code;
}

static dq_status write_csv(const dq_verdicts *v, const char *path, dq_err *err)
{
    const char *titles[] = {"model",
                            "reference",
                            "logit_bits",
                            "logit_granularity",
                            "kv",
                            "task",
                            "of_task",
                            "n",
                            "acc",
                            "acc_stderr",
                            "acc_delta",
                            "acc_delta_stderr",
                            "acc_mcnemar_p",
                            "math_linear"};
    dq_table *t = NULL;
    DQ_TRY(dq_table_new(&t, titles, (int)(sizeof titles / sizeof titles[0]), err));
    for (int i = 0; i < v->n; i++) {
        const dq_verdict_group *g = &v->group[i];
        const bool paired = g->ref >= 0 && g->ref != i;
        dq_table_cell(t, "%s", g->model);
        dq_table_cell(t, "%s", g->ref >= 0 ? v->group[g->ref].model : "");
        dq_table_cell(t, "%d", g->bits);
        dq_table_cell(t, "%s", g->granularity);
        kv_text(t, g->kv, "", err);
        dq_table_cell(t, "judged");
        dq_table_cell(t, "%s", g->task ? g->task : "");
        dq_table_cell(t, "%lld", (long long)g->n);
        dq_table_real(t, g->acc.value);
        dq_table_real(t, g->acc.std_err);
        dq_table_real(t, paired ? g->flips.delta : (double)NAN);
        dq_table_real(t, paired ? g->flips.std_err : (double)NAN);
        dq_table_real(t, paired ? g->flips.p : (double)NAN);
        dq_table_cell(t, "%s", g->math ? g->math : "");
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
            if (o->csv && write_csv(&v, o->csv, err) == DQ_OK) written[n++] = o->csv;
            if (err->code == DQ_OK && o->document &&
                dq_document_write(document(o, &v, files.inputs), o->document, err) == DQ_OK)
                written[n++] = o->document;
            if (err->code == DQ_OK) {
                if (o->json)
                    dq_stdout_print(document(o, &v, files.inputs), err);
                else
                    print_table(&v, err);
            }
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
