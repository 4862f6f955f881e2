/* The table of the kinds of evaluation, and how a source finds its row.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "checkpoint/container.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/eval/inside.h"
#include "eval/eval.h"
#include "model/model.h"
#include "plan/plan_weights.h"
#include "record/record.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "tasks/documents.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One point of accuracy, or nats of NLL: 1 % of perplexity. */
#define DQ_EVAL_MARGIN 0.01
static dq_status cmd_eval_choose(cmd_eval_options *o, dq_err *err);

const cmd_eval_kind *const cmd_eval_kinds[DQ_EVAL_KINDS] = {
    &cmd_eval_choices, &cmd_eval_text, &cmd_eval_generate,
    &cmd_eval_needle,  &cmd_eval_icl,  &cmd_eval_ruler,
};

static bool shows(const cmd_eval_kind *kind, const dq_eval_kind *of)
{
    for (int k = 0; k < DQ_EVAL_KIND_ROWS && kind->kind[k]; k++) {
        if (kind->kind[k] == of) return true;
    }
    return false;
}

json_t *cmd_eval_kind_settings(const cmd_eval_kind *kind, const void *own, const dq_eval *e,
                               bool scored)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    w.scored = scored;
    if (kind->settings) kind->settings(&w, own, e);
    return o;
}

const cmd_eval_kind *cmd_eval_kind_of(const dq_eval_source *source)
{
    int i = 0;
    while (!shows(cmd_eval_kinds[i], source->kind)) i++;
    return cmd_eval_kinds[i];
}

/* The i-th task of all kinds; NULL: there are no more. */
static const char *task_at(int i, const cmd_eval_kind **kind, const char **form)
{
    for (int k = 0; k < DQ_EVAL_KINDS; k++) {
        *kind = cmd_eval_kinds[k];
        for (int n = 0; (*kind)->task; n++, i--) {
            const char *name = (*kind)->task(n, form);
            if (!name) break;
            if (i == 0) return name;
        }
    }
    return NULL;
}

/* NULL: no kind has the task. */
static const cmd_eval_kind *kind_named(const char *task, const char **form)
{
    const cmd_eval_kind *kind;
    const char *name;
    for (int i = 0; (name = task_at(i, &kind, form)) != NULL; i++) {
        if (strcmp(name, task) == 0) return kind;
    }
    return NULL;
}

bool cmd_eval_kind_stops(const dq_eval *e)
{
    for (int i = 0; i < e->n_ids; i++) {
        if (e->ids[i].req.n && !e->ids[i].req.req[0].cont) return true;
    }
    return false;
}

static bool is_end(const cmd_eval_kind_option *row)
{
    return !row || dq_opt_is_end(&row->opt);
}

/* The option that names the kind's own file; NULL: it has none. */
static const cmd_eval_kind_option *output_of(const cmd_eval_kind *kind)
{
    const cmd_eval_kind_option *row = kind->options;
    while (!is_end(row) && row->opt.use != DQ_OPT_OUTPUT) row++;
    return is_end(row) ? NULL : row;
}

bool cmd_eval_kind_dumps(const cmd_eval_kind *kind)
{
    return !output_of(kind);
}

const char *cmd_eval_kind_file(const cmd_eval_kind *kind, const void *own)
{
    const cmd_eval_kind_option *row = output_of(kind);
    return row ? *(const char *const *)((const char *)own + row->at) : NULL;
}

bool cmd_eval_kind_shows(const cmd_eval_kind *kind, const dq_eval *e, int row)
{
    return e->row[row].shown && cmd_eval_kind_of(dq_eval_source_of(e, &e->row[row])) == kind;
}

const dq_eval_source *cmd_eval_kind_source(const cmd_eval_kind *kind, const dq_eval_source *source,
                                           int n_sources)
{
    for (int i = 0; i < n_sources; i++) {
        if (cmd_eval_kind_of(&source[i]) == kind) return &source[i];
    }
    return NULL;
}

static const dq_opt_brief first_page[] = {
    {NULL, "what is scored"},
    {"task", "mc, arc_easy, hellaswag, piqa, gsm8k, needle, trec, vt, ..."},
    {"data", "file of the task, or NAME=FILE"},
    {"num-fewshot", "solved examples before every item, of --fewshot-data FILE"},
    {"text", "UTF-8 text, or FILE.jsonl: NLL, perplexity, KLD, top-1 agreement"},
    {"ctx", "tokens of a window of it (default 2048)"},
    {"limit", "at most N items of each task, prompts per length, windows"},
    {NULL, "at which widths; lists are compared"},
    {"logit-bits", "of attention logits: 16, or 2 to 8 (default 16)"},
    {"logit-granularity", "what shares a scale: {words}"},
    {"kv-bits", "of keys and values: 16, 8, 8:4, 4 (default 16)"},
    {"kv-quant", "per-token, per-channel, dither, mixed (default auto)"},
    {"kv-keep", "share of a context's tokens that stays; the rest is evicted"},
    {"kv-policy", "which: leverage, keydiff, snapkv, h2o, kvzip, ..., all"},
    {"kv-budget", "what heads get: uniform, global, adaptive, heads"},
    {"ref", "compare every row with this model at 16 bits"},
    {NULL, "how it runs"},
    {"math", "{words} (default f32)"},
    {"device", "cpu, cuda[:N] or auto, which is cpu (default auto)"},
    {"threads", "0 (default): all processors"},
    {"dry-run", "print what would be computed"},
    {"resume", "go on where the same command was interrupted"},
    {NULL, "what comes out"},
    {"json", "one JSON document instead of the table"},
    {"output", "the JSON document in a file too"},
    {"csv", "the table as CSV too"},
    {"html", "a page with pictures too"},
    {"margin", "loss that verdicts allow (default 0.01)"},
    {"fail-if", "exit with status 7 where a result meets it: 'kld_nats > 0.01'"},
    {"baseline", "an older document, for --fail-if 'kld_nats > 1.1 * baseline'"},
    {0},
};

static const dq_usage usage = {
    .name = "eval",
    .first = first_page,
    .first_about =
        "Scores models on tasks and text at one or many widths, in one table. Each row is compared "
        "with the same checkpoint at 16 bits: a container with its source, which must be in the "
        "run, or with --ref.",
    .first_examples =
        "  dq eval model --text book.txt --logit-bits 16,8,6,4\n"
        "  dq eval model model.h5 --task hellaswag --data hellaswag_val.jsonl --limit 500\n"
        "  dq eval model --text book.txt --kv-bits 16,8:4 --kv-keep 1,0.5,0.25\n",
    .synopsis = "MODEL... (--task NAME --data FILE | --text FILE) [options]",
    .about =
        "Scores checkpoints and containers on multiple-choice tasks, on questions that they answer "
        "in their own words, and on text, at one or many widths of attention logits and forms of "
        "the KV cache, in one table. Every row is compared with the same checkpoint at 16-bit "
        "logits and a cache of 32 bits: a container with its source folder, which must be in the "
        "run, or with --ref MODEL; --ref with the container itself leaves out what its weights "
        "lost. Standard errors (±) of tasks are over items, or queries where runs share them; "
        "those of texts treat each document as one cluster, each window where there is one "
        "document. A verdict compares the paired 95 % interval of a row's loss with --margin: all "
        "of it is within, or exceeds it, or it is inconclusive. Ctrl-C keeps what is finished; the "
        "same command with --resume goes on from there.",
    .examples =
        "  dq eval llama diffllama --task mc --data choices.jsonl --logit-bits 16,8,6,4\n"
        "  dq eval model model.h5 --text book.txt --ctx 512 --json\n"
        "  dq eval model --text a.txt --text b.txt --window stride --stride 256 --slices\n"
        "  dq eval model --text books.jsonl --positions --ctx 4096 --kv-bits 16,4\n"
        "  dq eval model --text book.txt --kv-bits 16,8:4 --kv-keep 1,0.5,0.25\n"
        "  dq eval model --text book.txt --kv-bits 16,8,4 --kv-quant per-token,per-channel,mixed\n"
        "  dq eval model --task hellaswag --data hellaswag_val.jsonl --limit 500\n"
        "  dq eval model --task piqa --data valid.jsonl --num-fewshot 5 --fewshot-data "
        "train.jsonl\n"
        "  dq eval model --task needle --data book.txt --lengths 2048,4096 --needles 6:2 "
        "--attention\n"
        "  dq eval model --task vt,cwe --data cwe=book.txt --lengths 4096 --kv-policy all "
        "--html page.html\n"
        "  dq eval model --task trec --data TREC_10.label --fewshot-data train_5500.label "
        "--num-fewshot 10,100\n",
    .min_args = 1,
    .max_args = DQ_EVAL_MODELS,
    .args = "one MODEL or more (at most 64)",
};

enum { SAMPLES = 50, MAX_SAMPLES = 1000000 };

void *cmd_eval_own(const cmd_eval_options *o, const cmd_eval_kind *kind)
{
    int i = 0;
    while (cmd_eval_kinds[i] != kind) i++;
    return o->own[i];
}

/* Options of all tables together, ended by an empty row. */
enum { MAX_ROWS = 128 };
typedef struct rows {
    dq_opt row[MAX_ROWS + 1];
    int n; /* more than MAX_ROWS: some have no place */
} rows;

static void add_rows(rows *to, const dq_opt *from)
{
    for (; from->name || from->help; from++) {
        if (to->n < MAX_ROWS) to->row[to->n] = *from;
        to->n++;
    }
}

/* Options of kinds that say what is scored, or the others, which begin with a heading. */
static void add_own(rows *to, const cmd_eval_options *o, bool scored)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind_option *from = cmd_eval_kinds[i]->options;
        if (is_end(from) || (from->opt.name != NULL) != scored) continue;
        for (; !is_end(from); from++) {
            dq_opt row[2] = {from->opt};
            row->to = (char *)o->own[i] + from->at;
            if (row->kind == DQ_OPT_INT && row->min == 0) *(int64_t *)row->to = -1;
            add_rows(to, row);
        }
    }
}

static bool is_given(const cmd_eval_kind_option *row, const void *own)
{
    const void *at = (const char *)own + row->at;
    switch (row->opt.kind) {
    case DQ_OPT_FLAG: return *(const bool *)at;
    case DQ_OPT_INT: return *(const int64_t *)at != (row->opt.min == 0 ? -1 : 0);
    case DQ_OPT_LIST: return ((const dq_list *)at)->n > 0;
    case DQ_OPT_WORD: return ((const dq_word *)at)->text;
    case DQ_OPT_WORDS: return ((const dq_words *)at)->text;
    default: return *(const char *const *)at;
    }
}

/* DQ_USAGE: an option of the kind is given, and no source of it. */
static dq_status check_needs(const cmd_eval_kind *kind, const cmd_eval_options *o, const void *own,
                             dq_err *err)
{
    const cmd_eval_kind_option *row = kind->options;
    if (cmd_eval_kind_source(kind, o->source, o->n_sources)) return DQ_OK;
    for (; !is_end(row); row++) {
        if (row->opt.name && is_given(row, own))
            return dq_fail(err, DQ_USAGE, "--%s %s", row->opt.name, kind->needs);
    }
    return DQ_OK;
}

static dq_status tasks_help(char **out, dq_arena *a, dq_err *err)
{
    const char *all = "";
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const char *help = cmd_eval_kinds[i]->tasks_help;
        if (!help) continue;
        *out = dq_textf(a, err, "%s%s%s", all, all[0] ? ";\n" : "", help);
        if (!*out) return err->code;
        all = *out;
    }
    *out = dq_textf(a, err,
                    "%s;\na FILE.json, or with a \"/\": a task of your own, as docs/eval-tasks.md "
                    "says; its data is --data NAME=FILE, NAME being that of the file's \"task\"",
                    all);
    return err->code;
}

enum { MAX_TASKS = 64 };
static int task_names(const char **names)
{
    const cmd_eval_kind *kind;
    const char *form;
    int n = 0;
    while (n < MAX_TASKS && (names[n] = task_at(n, &kind, &form)) != NULL) n++;
    return n;
}

static void add_computed(rows *to, cmd_eval_options *o)
{
    const dq_opt opts[] = {
        dq_opt_topic("run", "how it is computed"),
        dq_opt_text(
            "logit-bits", "LIST", &o->logit_bits,
            "widths of attention logits, 16 (not rounded) or 2 to 8 (default: as a container "
            "says, else 16)"),
        dq_opt_words("logit-granularity", "LIST", &o->logit_granularity, dq_granularity_name,
                     DQ_GRANULARITIES,
                     "what shares a scale: {words} (default: as a container says, else "
                     "per-tensor)"),
        dq_opt_words("math", "LIST", &o->math, dq_num_name, DQ_NUMS,
                     "{words} (default f32); int8 takes packed containers and, on the CPU, "
                     "--kv-bits 8 or fewer; what the device lacks is refused, or, in a list of "
                     "several, left out with a warning"),
        dq_opt_text("ref", "MODEL", &o->ref, "compare every row with this model at 16 bits"),
        DQ_INPUT_HEAD_ORDER_OPTION(o->head_order),
        DQ_OPT_DEVICE(&o->device),
        dq_opt_manner(
            dq_opt_int("threads", "N", &o->threads, 0, 4096, "0 (default): all processors")),
        dq_opt_manner(dq_opt_flag(
            "resume", &o->resume,
            "go on where the same command was interrupted, in the same folder: finished work "
            "is kept in dq-eval-KEY.resume there, KEY standing for inputs and settings")),
        DQ_SHARD_OPTION(o->shard),
        dq_opt_manner(dq_opt_flag("dry-run", &o->dry_run,
                                  "print what would be computed, and stop before scoring")),
        DQ_LOGGER_OPTIONS(o->logger),
        DQ_KV_OPTION_ROWS(o->kv),
        {0},
    };
    add_rows(to, opts);
}

static void add_outputs(rows *to, cmd_eval_options *o)
{
    const dq_opt opts[] = {
        dq_opt_topic("output", "what comes out"),
        dq_opt_output(
            dq_opt_flag("json", &o->json, "one JSON document (dq-eval/1) instead of the table")),
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "FILE", &o->document,
                                                     "write the JSON document to a file too"))),
        dq_opt_output(dq_opt_text(
            "csv", "FILE", &o->csv,
            "write the table as CSV too, one column per number; cells by length are in the "
            "JSON only")),
        dq_opt_output(dq_opt_text(
            "html", "FILE", &o->html,
            "write a page with pictures, tables and settings too; one file that needs no "
            "other (dq report makes it of a JSON document later)")),
        dq_opt_output(dq_opt_text(
            "dump-items", "FILE", &o->dump,
            "write the log-likelihood of every choice with what is right and what was "
            "picked, every "
            "prompt that a task made, and NLL and KLD of every window of a text, as JSON lines")),
        dq_opt_output(dq_opt_text(
            "dump-requests", "FILE", &o->requests,
            "write context and continuation of every choice as JSON lines, before scoring")),
        dq_opt_manner(dq_opt_flag(
            "force", &o->force,
            "replace the files named above where they exist; a resumed run, too, writes them "
            "anew and needs it for those that an earlier run left")),
        dq_opt_topic("gates", "verdicts and gates"),
        dq_opt_float(
            "margin", "X", &o->margin, 0, 1e3,
            "loss that verdicts allow, of accuracy or in nats of NLL (default 0.01: one point "
            "of accuracy, 1 % of perplexity)"),
        dq_opt_list(
            "fail-if", "CONDITION", &o->fail_if,
            "exit with status 7, after everything is written, where a result meets it, where none "
            "has such a number, or where it needs a reference that is not in the run: "
            "'kld_nats > 0.01', 'ppl_ratio >= 1.02', 'acc_delta < -0.01', 'kld_nats.p99 > 1'. What "
            "follows < <= > or >= may have + - * / and parentheses, and with --baseline the word "
            "baseline: 'acc < baseline - 0.01', 'kld_nats > 1.1 * baseline'; may be repeated"),
        dq_opt_text(
            "baseline", "OLD.json", &o->baseline,
            "a document that an earlier dq eval wrote with -o: the word baseline of --fail-if is "
            "the same number of the result with the same model name, task, logit bits, KV cache "
            "and --math there. Status 7 where it has no such result, 4 where its files, items or "
            "task settings are others"),
        {0},
    };
    add_rows(to, opts);
}

dq_status cmd_eval_parse(cmd_eval_options *o, dq_args *args, int argc, char **argv, dq_arena *a,
                         dq_err *err)
{
    rows all = {.n = 0};
    char *tasks = NULL;
    const char *names[MAX_TASKS];
    o->a = a;
    o->bos.text = dq_bos_name[DQ_BOS_AUTO];
    o->math = (dq_words){.text = dq_num_name[DQ_NUM_F32], .at = {DQ_NUM_F32}, .n = 1};
    o->device = "auto";
    o->margin = DQ_EVAL_MARGIN;
    dq_kv_options_begin(&o->kv, "of what is drawn: --num-fewshot (default 1234), needles and the "
                                "policy random (default 1)");
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        if (kind->size) o->own[i] = dq_alloc(a, 1, kind->size, err);
    }
    if (err->code != DQ_OK) return err->code;
    DQ_TRY(tasks_help(&tasks, a, err));
    const dq_opt opts[] = {
        dq_opt_topic("tasks", "tasks and their files"),
        dq_opt_offer(names, task_names(names),
                     dq_opt_list("task", "NAME[,NAME]", &o->tasks, tasks)),
        dq_opt_list("data", "FILE", &o->data,
                    "file of the task; with several tasks once for each, in the same order, or "
                    "NAME=FILE"),
        dq_opt_text("num-fewshot", "LIST", &o->shots_word,
                    "solved examples before every item, drawn as lm-evaluation-harness does "
                    "(default 0); in-context tasks take a list of demonstrations per prompt "
                    "(default 1,10,25,50,100,200,400,... as many as fit)"),
        dq_opt_list(
            "fewshot-data", "FILE", &o->fewshot,
            "file that the examples come from, the task's training split; given as --data is; "
            "clinic150 needs none, its --data has them"),
        {0},
    };
    add_rows(&all, opts);
    add_rows(&all, (const dq_opt[]){dq_opt_topic("text", "text and its windows"), {0}});
    add_own(&all, o, true);
    const dq_opt opt[] = {
        dq_opt_topic("limits", "how much of it"),
        dq_opt_int("limit", "N", &o->limit, 1, 1e15,
                   "at most N items of each task (default all; 250 test examples of in-context "
                   "tasks, drawn once), N prompts per length, and of needles per depth and N:R "
                   "(default 50), N windows of the text (default all)"),
        dq_opt_text("lengths", "LIST", &o->lengths_word,
                    "tokens of a prompt and the room for its answers, of tasks that make their own "
                    "prompts (default 4096, or the fewest positions of the models)"),
        dq_opt_word(
            "long", "WHAT", &o->too_long, dq_eval_long_name + 1, DQ_EVAL_LONGS,
            "items with more tokens than a model has positions: error: refuse them, all counted, "
            "before anything is scored (the default for generated text); skip: leave them out "
            "for every model; cut: drop the beginning of the context as lm-eval does, BOS "
            "too, for generated text so that --max-new tokens have room (the default for "
            "choices); not for in-context tasks and those with --lengths, which say it"),
        dq_opt_int(
            "ctx", "N", &o->ctx, 4, 1e9,
            "tokens per window of --text (default 2048, or the fewest positions of the models)"),
        dq_opt_word("bos", "WHEN", &o->bos, dq_bos_name, DQ_BOS_WHENS,
                    "{words} (default auto: as the tokenizer's own template says)"),
        {0},
    };
    add_rows(&all, opt);
    add_computed(&all, o);
    add_own(&all, o, false);
    add_outputs(&all, o);
    if (all.n > MAX_ROWS) return dq_fail(err, DQ_BUG, "more than %d options", MAX_ROWS);
    return dq_help_parse_shard(args, argc, argv, all.row, o->merge ? o->merge->own : NULL, &usage,
                               err);
}

static dq_status cmd_eval_split(const char *text, const char *option, dq_list *out, dq_arena *a,
                                dq_err *err)
{
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        if (n == 0) return dq_fail(err, DQ_USAGE, "--%s: an empty part in \"%s\".", option, text);
        if (out->n == DQ_LIST_MAX)
            return dq_fail(err, DQ_USAGE, "--%s: more than %d parts.", option, DQ_LIST_MAX);
        out->item[out->n] = dq_text(a, p, n, err);
        if (!out->item[out->n++]) return err->code;
        p += n;
        if (!*p) return DQ_OK;
    }
}

static dq_status check_long(const cmd_eval_options *o, dq_err *err)
{
    if (!o->too_long.text) return DQ_OK;
    for (int i = 0; i < o->n_sources; i++) {
        if (o->source[i].task) return DQ_OK;
    }
    return dq_fail(err, DQ_USAGE,
                   "--long is for tasks with choices and tasks that generate text; there is none.");
}

static int rising(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static dq_status check_lengths(const cmd_eval_options *o, dq_err *err)
{
    if (o->takes_lengths && o->limit > MAX_SAMPLES)
        return dq_fail(err, DQ_USAGE, "--limit: expected at most %d prompts per length.",
                       MAX_SAMPLES);
    if (o->takes_lengths || !o->lengths_word) return DQ_OK;
    return dq_fail(err, DQ_USAGE,
                   "--lengths has nothing to act on: there is no task that makes its own prompts.");
}

/* Paths that the run reads; entries may be NULL. */
typedef struct paths {
    const char **path;
    int n;
    size_t capacity;
} paths;

static dq_status add_input(paths *in, const char *path, dq_arena *a, dq_err *err)
{
    const char **item = dq_grow(a, in->path, (size_t)in->n + 1, &in->capacity, sizeof *item, err);
    if (!item) return err->code;
    in->path = item;
    in->path[in->n++] = path;
    return DQ_OK;
}

dq_status cmd_eval_check_outputs(const cmd_eval_options *o, const dq_args *args,
                                 const char *journal, dq_err *err)
{
    static const char *const old[] = {".old", NULL};
    dq_output out[6 + DQ_EVAL_KINDS] = {
        {"-o", o->document,
         !o->shard.n ? DQ_OUTPUT_JSON
         : o->resume ? DQ_OUTPUT_JOURNAL
                     : DQ_OUTPUT_LINES,
         NULL},
        {"--dump-requests", o->requests, DQ_OUTPUT_LINES, NULL},
        {"--dump-items", o->dump, DQ_OUTPUT_LINES, NULL},
        {"--csv", o->csv, DQ_OUTPUT_CSV, NULL},
        {"--html", o->html, DQ_OUTPUT_HTML, NULL},
        {"the finished work for --resume", o->shard.n ? NULL : journal, DQ_OUTPUT_JOURNAL, old},
    };
    char option[DQ_EVAL_KINDS][64];
    paths in = {0};
    int n = 6;
    for (int i = 0; i < args->n_inputs; i++) DQ_TRY(add_input(&in, args->input[i], o->a, err));
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind_option *row = output_of(cmd_eval_kinds[i]);
        if (!row) continue;
        snprintf(option[i], sizeof option[i], "--%s", row->opt.name);
        out[n++] = (dq_output){option[i], cmd_eval_kind_file(cmd_eval_kinds[i], o->own[i]),
                               DQ_OUTPUT_LINES, NULL};
    }
    for (int i = 0; i < o->n_sources; i++) { /* labels files are named after those of the items */
        const char *items[] = {o->source[i].path, o->examples[i]};
        const bool labelled =
            o->source[i].task && o->source[i].task->choices && o->source[i].task->first_label >= 0;
        for (int k = 0; labelled && k < 2 && items[k]; k++) {
            const char *labels = dq_task_labels_path(items[k], o->a, err);
            if (!labels) return err->code;
            DQ_TRY(add_input(&in, labels, o->a, err));
        }
    }
    for (int i = 0; i < o->n_names; i++) {
        if (o->given_task[i]) DQ_TRY(add_input(&in, o->given_task[i]->path, o->a, err));
    }
    for (int i = 0; o->merge && i < o->merge->n; i++)
        DQ_TRY(add_input(&in, o->merge->path[i], o->a, err));
    DQ_TRY(dq_output_guard_names(out, n, in.path, in.n, err));
    if (journal) return DQ_OK;
    return dq_output_guard_check(out, n, in.path, in.n, o->force, err);
}

/* Each step uses only results of those above: words of the run, the sources that each kind makes of
 * them, then conflicts. */
dq_status cmd_eval_understand(cmd_eval_options *o, const dq_args *args, dq_err *err)
{
    DQ_TRY(dq_shard_read(&o->shard, o->document, args->also, err));
    if (o->shard.n && o->dry_run)
        return dq_fail(err, DQ_USAGE, "--dry-run shows the whole. Leave out --shard.");
    if (o->lengths_word)
        DQ_TRY(dq_options_ints(o->length, &o->n_lengths, DQ_EVAL_LENGTHS, o->lengths_word,
                               "lengths", 1, 1 << 30, err));
    /* Which tasks take a list is known after "Tasks". */
    if (o->shots_word) {
        DQ_TRY(dq_options_ints(o->shots, &o->n_shots, DQ_EVAL_SHOTS, o->shots_word, "num-fewshot",
                               0, 1000000, err));
        qsort(o->shots, (size_t)o->n_shots, sizeof o->shots[0], rising);
        o->num_fewshot = o->n_shots == 1 ? o->shots[0] : 0;
    }
    if (o->logit_bits)
        DQ_TRY(
            dq_options_bits(o->bits, &o->n_bits, DQ_EVAL_BITS, o->logit_bits, "logit-bits", err));
    DQ_TRY(dq_kv_options_read(&o->kv, true, err));
    DQ_TRY(cmd_eval_choose(o, err));
    o->kv.logger = &o->logger;
    for (int i = 0; i < DQ_EVAL_KINDS; i++)
        DQ_TRY(check_needs(cmd_eval_kinds[i], o, o->own[i], err));
    DQ_TRY(check_long(o, err));
    DQ_TRY(check_lengths(o, err));
    DQ_TRY(cmd_eval_gates_read(&o->gates, &o->fail_if, o->baseline, err));
    DQ_TRY(cmd_eval_gates_check(&o->gates, o->source, o->n_sources, err));
    DQ_TRY(cmd_eval_check_outputs(o, args, NULL, err));
    if (o->baseline) DQ_TRY(cmd_eval_baseline_read(&o->gates.baseline, o->baseline, o->a, err));
    return DQ_OK;
}

/* Files are hashed as they are read: results depend on these hashes. */

static void file_rows(dq_row_writer *w, const char *kind, const char *path, size_t len,
                      const char *sha)
{
    DQ_PUT(w, "kind", kind, "What it was read as: text, or the name of a task.");
    DQ_PUT(w, "path", path, "As it was given.");
    DQ_PUT(w, "bytes", (int64_t)len, "Its size.");
    DQ_PUT(w, "sha256", sha, "Of its bytes.", .pattern = DQ_SHA256);
}

void cmd_eval_file_describe(dq_row_writer *w)
{
    file_rows(w, NULL, NULL, 0, NULL);
}

dq_status cmd_eval_file_note(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char *text, size_t len, dq_err *err)
{
    DQ_TRY(dq_sha256_of(sha, text, len, err));
    json_t *in = json_object(), *other;
    dq_row_writer w = dq_row_json(in);
    size_t i;
    bool again = false; /* as examples of several tasks, which are one input */
    file_rows(&w, kind, path, len, sha);
    json_array_foreach(files->inputs, i, other) again = again || json_equal(in, other);
    if (!again) json_array_append(files->inputs, in);
    json_decref(in);
    return DQ_OK;
}

dq_status cmd_eval_file_read(cmd_eval_files *files, char sha[65], const char *kind,
                             const char *path, const char **text, size_t *len, dq_arena *a,
                             dq_err *err)
{
    char *s;
    DQ_TRY(dq_file_read_text(&s, len, path, 0, a, err));
    *text = s;
    return cmd_eval_file_note(files, sha, kind, path, s, *len, err);
}

dq_status cmd_eval_source_load(dq_eval *e, dq_eval_source *source, cmd_eval_files *files,
                               dq_err *err)
{
    DQ_TRY(cmd_eval_file_read(files, files->sha[files->n++], source->name, source->path,
                              &source->text, &source->len, e->a, err));
    return source->kind->load ? source->kind->load(e, source, err) : DQ_OK;
}

dq_status cmd_eval_source_read(dq_eval *e, const cmd_eval_options *o, int i, cmd_eval_files *files,
                               dq_err *err)
{
    const dq_eval_source *s = &e->source[i];
    const cmd_eval_kind *kind = cmd_eval_kind_of(s);
    if (kind->load)
        DQ_TRY(kind->load(cmd_eval_own(o, kind), e, o, i, files, err));
    else if (!s->fileless)
        DQ_TRY(cmd_eval_source_load(e, &e->source[i], files, err));
    if (s->task && s->task->path) {
        const char *what = dq_textf(e->a, err, "%s task", s->name);
        if (!what) return err->code;
        DQ_TRY(cmd_eval_file_note(files, files->sha[files->n++], what, s->task->path, s->task->text,
                                  s->task->len, err));
    }
    if (s->n_own_shots)
        dq_logger_warn(
            files->logger,
            "%s: --fewshot-data holds items of %s: before %lld of them, an example that was "
            "the item itself is replaced",
            s->name, s->path, (long long)s->n_own_shots);
    return DQ_OK;
}

/* Ids come piece by piece, and a place may span two pieces. */
enum { TAIL = DQ_REPEATS_IDS - 1 };
typedef struct pieces {
    bool *found;
    const dq_repeats_sketch *sketch;
    int32_t tail[TAIL];
    int64_t n_tail;
} pieces;

static void find_piece(pieces *p, const int32_t *ids, int64_t n)
{
    int32_t seam[2 * TAIL];
    const int64_t more = n < TAIL ? n : TAIL, all = p->n_tail + more;
    if (n == 0) return;
    memcpy(seam, p->tail, (size_t)p->n_tail * sizeof *seam);
    memcpy(seam + p->n_tail, ids, (size_t)more * sizeof *seam);
    dq_repeats_sketch_find(p->found, p->sketch, seam, all);
    dq_repeats_sketch_find(p->found, p->sketch, ids, n);
    p->n_tail = n > TAIL || all > TAIL ? TAIL : all;
    memcpy(p->tail, n > TAIL ? ids + n - TAIL : seam + all - p->n_tail,
           (size_t)p->n_tail * sizeof *seam);
}

typedef struct seen_text {
    double share;     /* of a text that chose something, the largest that is found */
    const char *file; /* that is this text, whole; NULL: none */
    int n_files;      /* that are scored */
} seen_text;

static void find_file(seen_text *out, const json_t *sha256, const json_t *inputs, const char *kind)
{
    const json_t *in;
    size_t i;
    out->n_files = 0;
    json_array_foreach(inputs, i, in)
    {
        if (strcmp(json_string_value(json_object_get(in, "kind")), kind) != 0) continue;
        out->n_files++;
        if (sha256 && json_equal(json_object_get(in, "sha256"), sha256))
            out->file = json_string_value(json_object_get(in, "path"));
    }
}

/* Looks in `of`, at any depth, for texts whose content is among the ids or files. */
static void find_seen(seen_text *out, const json_t *of, const dq_eval_ids *ids,
                      const json_t *inputs, const char *kind)
{
    static const char *const sha256[] = {"sha256", "text_sha256"};
    bool found[DQ_REPEATS_SKETCH] = {false};
    dq_repeats_sketch s;
    const char *key;
    json_t *v;
    size_t i;
    const char *part = json_string_value(json_object_get(of, "part"));
    if (part && strcmp(part, dq_plan_text_name[DQ_PLAN_UNSEEN]) == 0) return; /* it chose nothing */
    for (i = 0; i < 2; i++) find_file(out, json_object_get(of, sha256[i]), inputs, kind);
    if (dq_repeats_sketch_read(&s, json_object_get(of, "sketch")) && s.n) {
        int n = 0;
        for (int64_t k = 0; k < ids->win.n; k++)
            dq_repeats_sketch_find(found, &s, ids->win.win[k].ids, ids->win.win[k].n);
        const dq_requests *q = &ids->req;
        const dq_shared_prefix *prefix = NULL;
        pieces before = {.found = found, .sketch = &s}, context = before;
        for (int64_t j = 0; j < q->n; j++) {
            const dq_request *r = &q->req[j];
            const dq_shared_prefix *own = dq_items_shared_prefix(q, r->item);
            const bool other = own != prefix;
            if (other) {
                before = (pieces){.found = found, .sketch = &s};
                find_piece(&before, own->ids, own->n);
                prefix = own;
            }
            if (j == 0 || other || r->ctx != r[-1].ctx || r->n_ctx != r[-1].n_ctx) {
                context = before;
                find_piece(&context, r->ctx, r->n_ctx);
            }
            pieces all = context;
            if (r->cont) find_piece(&all, r->cont, r->n_cont);
        }
        for (int k = 0; k < s.n; k++) n += found[k];
        out->share = fmax(out->share, (double)n / s.n);
    }
    json_object_foreach((json_t *)(uintptr_t)of, key, v) find_seen(out, v, ids, inputs, kind);
    json_array_foreach(of, i, v) find_seen(out, v, ids, inputs, kind);
}

static void warn_seen_by(dq_logger *logger, const dq_eval_source *source, const dq_eval_ids *ids,
                         const json_t *inputs, const json_t *of, const char *chose,
                         const char *name)
{
    seen_text it = {.share = 0};
    char part[64] = "is", more[32] = "";
    find_seen(&it, of, ids, inputs, source->name);
    if (!it.file && it.n_files > 1) snprintf(more, sizeof more, " and %d more", it.n_files - 1);
    if (!it.file)
        snprintf(part, sizeof part, "has about %.*f %% of", it.share < 0.1, 100 * it.share);
    if (it.file || it.share > 0)
        dq_logger_warn(logger,
                       "%s%s: %s the text that %s of %s, so its error here is smaller than on "
                       "other text",
                       it.file ? it.file : source->path, more, part, chose, name);
}

/* Errors in a text are reported by its reader. */
static json_t *parsed(const char *text, size_t len)
{
    json_t *o = NULL;
    dq_err ignored = {0};
    if (text) dq_json_parse(&o, text, len, "", &ignored);
    return o;
}

static bool has_row(const dq_eval *e, int model, int ids)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].model == model && e->row[i].ids == ids) return true;
    }
    return false;
}

void cmd_eval_warn_seen(dq_logger *logger, const cmd_eval_view *v, int ids, const json_t *inputs)
{
    const dq_eval_ids *scored = &v->e->ids[ids];
    const dq_eval_source *s = &v->e->source[scored->source];
    for (int i = 0; i < v->e->n_models; i++) {
        const dq_model *m = v->e->model[i].m;
        size_t len = 0;
        if (!has_row(v->e, i, ids)) continue;
        const char *text = m->is_container ? dq_container_recipe(m->container, &len) : NULL;
        json_t *recipe = parsed(text, len);
        json_t *gates = m->gates ? parsed(m->gates->text, m->gates->len) : NULL;
        warn_seen_by(logger, s, scored, inputs, json_object_get(recipe, "texts"),
                     "calibrated the KV cache", v->names[i]);
        json_object_del(recipe, "texts");
        warn_seen_by(logger, s, scored, inputs, recipe, "calibrated the weights", v->names[i]);
        warn_seen_by(logger, s, scored, inputs, gates, "calibrated the gates", v->names[i]);
        json_decref(recipe);
        json_decref(gates);
    }
}

static bool has_choices(const dq_eval_source *s)
{
    return s->task && s->task->choices;
}

static dq_status dump_choices(FILE *f, const void *sweep, dq_err *err)
{
    const dq_eval *e = sweep;
    for (int i = 0; i < e->n_sources; i++) {
        const dq_eval_source *s = &e->source[i];
        for (int64_t k = 0; has_choices(s) && k < s->items.n; k++) {
            for (int c = 0; c < s->items.item[k].n_choices; c++) {
                json_t *o = json_object();
                dq_row_writer w = dq_row_json(o);
                DQ_PUT(&w, "task", s->name, NULL);
                cmd_eval_choice_rows(&w, s, k, c);
                DQ_TRY(dq_document_put_line(f, o, err));
            }
        }
    }
    return DQ_OK;
}

dq_status cmd_eval_dump_requests(const dq_eval *e, const char *path, dq_err *err)
{
    return dq_document_write_lines(path, dump_choices, e, err);
}

/* --task names a kind's task, whose sources the kind makes; a file belongs to a task by its name or
 * its place. */

static bool is_named(const cmd_eval_options *o, const char *given)
{
    const char *form;
    char name[32];
    size_t n = strcspn(given, "=");
    if (!given[n] || n >= sizeof name) return false;
    memcpy(name, given, n);
    name[n] = 0;
    for (int i = 0; i < o->n_names; i++) {
        if (o->given_task[i] && strcmp(o->given_task[i]->name, name) == 0) return true;
    }
    return kind_named(name, &form) != NULL;
}

/* DQ_USAGE: NAME=FILE twice with one name. */
static dq_status check_twice(const cmd_eval_options *o, const dq_list *given, const char *option,
                             dq_err *err)
{
    for (int i = 0; i < given->n; i++) {
        size_t n = strcspn(given->item[i], "=") + 1;
        for (int k = 0; k < i && is_named(o, given->item[i]); k++) {
            if (strncmp(given->item[k], given->item[i], n) == 0)
                return dq_fail(err, DQ_USAGE, "--%s: %.*s is given twice.", option, (int)n - 1,
                               given->item[i]);
        }
    }
    return DQ_OK;
}

const char *cmd_eval_path_for(const cmd_eval_options *o, const dq_list *given, const char *task,
                              int *used)
{
    size_t n = strlen(task);
    for (int i = 0; i < given->n; i++) {
        if (strncmp(given->item[i], task, n) == 0 && given->item[i][n] == '=')
            return given->item[i] + n + 1;
    }
    for (int i = 0, plain = 0; i < given->n; i++) {
        if (is_named(o, given->item[i]) || plain++ < *used) continue;
        ++*used;
        return given->item[i];
    }
    return NULL;
}

dq_status cmd_eval_add_source(cmd_eval_options *o, const dq_eval_source *source, const char *what,
                              dq_err *err)
{
    if (o->n_sources == DQ_EVAL_SOURCES)
        return dq_fail(err, DQ_USAGE, "more than %d %s.", DQ_EVAL_SOURCES, what);
    o->source[o->n_sources++] = *source;
    return DQ_OK;
}

void cmd_eval_take_lengths(cmd_eval_options *o, int length[DQ_EVAL_LENGTHS], int *n,
                           int64_t *samples, uint64_t *seed)
{
    memcpy(length, o->length, sizeof o->length);
    *n = o->n_lengths;
    *samples = o->limit ? o->limit : SAMPLES;
    *seed = o->kv.seed >= 0 ? (uint64_t)o->kv.seed : 1;
    o->takes_lengths = o->kv.draws = true;
}

enum { MAX_FEWSHOT = 1000 };
dq_status cmd_eval_take_examples(cmd_eval_options *o, bool drawn, dq_err *err)
{
    const int i = o->n_sources - 1;
    dq_eval_source *s = &o->source[i];
    o->takes_shots = true;
    if (o->n_shots == 0 || o->shots[o->n_shots - 1] == 0) return DQ_OK;
    if (o->n_shots > 1)
        return dq_fail(err, DQ_USAGE, "--num-fewshot %s: --task %s takes one number.",
                       o->shots_word, s->name);
    if (o->num_fewshot > MAX_FEWSHOT)
        return dq_fail(err, DQ_USAGE, "--num-fewshot %lld: --task %s takes at most %d.",
                       (long long)o->num_fewshot, s->name, MAX_FEWSHOT);
    o->examples[i] = cmd_eval_path_for(o, &o->fewshot, s->name, &o->fewshot_used);
    if (!o->examples[i])
        return dq_fail(err, DQ_USAGE,
                       "--num-fewshot %lld: --task %s needs the file of its examples: give "
                       "--fewshot-data FILE (expected %s).",
                       (long long)o->num_fewshot, s->name, s->task->form);
    if (!drawn) return DQ_OK;
    s->n_shots = o->num_fewshot;
    s->seed = o->kv.seed >= 0 ? o->kv.seed : DQ_FEWSHOT_SEED;
    o->kv.draws = true;
    return DQ_OK;
}

static dq_status choose_task(cmd_eval_options *o, const char *name, int *used, dq_err *err)
{
    const int first = o->n_sources;
    const char *form;
    /* A file's kind is that of the program's own tasks of its type. */
    const cmd_eval_kind *kind = kind_named(!dq_task_is_file(name) ? name
                                           : o->task->choices     ? dq_task_choices[0]
                                                                  : dq_task_questions[0],
                                           &form);
    if (!kind) {
        char all[512] = "";
        const char *task;
        for (int i = 0; (task = task_at(i, &kind, &form)) != NULL; i++) {
            const size_t n = strlen(all);
            snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", task);
        }
        return dq_fail(err, DQ_USAGE, "unknown task \"%s\". There are: %s.", name, all);
    }
    if (!o->task && !form) o->task = dq_task_find(name, o->a, err);
    if (err->code != DQ_OK) return err->code;
    if (o->task) name = o->task->name;
    if (o->task) form = o->task->form;
    for (int k = 0; k < first; k++) {
        if (strcmp(o->source[k].name, name) == 0)
            return dq_fail(err, DQ_USAGE, "--task: %s stands twice.", name);
    }
    int none = INT_MAX; /* a file without a name is for another task */
    const char *path = cmd_eval_path_for(o, &o->data, name, *form ? used : &none);
    if (path && !*form)
        return dq_fail(err, DQ_USAGE, "--data %s=%s: --task %s takes no file.", name, path, name);
    if (!path && *form)
        return dq_fail(err, DQ_USAGE, "--task %s needs its file: give --data FILE (expected %s).",
                       name, form);
    o->takes_shots = false;
    DQ_TRY(kind->choose(cmd_eval_own(o, kind), o, name, path, err));
    if (o->takes_shots || o->n_shots == 0 || o->shots[o->n_shots - 1] == 0) return DQ_OK;
    return dq_fail(err, DQ_USAGE,
                   "--num-fewshot is for items with answers; prompts of --task %s are taken as "
                   "they are.",
                   name);
}

static const char *given_file(const cmd_eval_options *o)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        if (cmd_eval_kind_file(kind, o->own[i])) return output_of(kind)->opt.name;
    }
    return NULL;
}

/* Fills o->source and o->examples. DQ_USAGE: names, files or options contradict each other. */
static dq_status cmd_eval_choose(cmd_eval_options *o, dq_err *err)
{
    dq_list names = {.n = 0};
    int used = 0; /* files without a name that earlier tasks have taken */
    for (int i = 0; i < o->tasks.n; i++)
        DQ_TRY(cmd_eval_split(o->tasks.item[i], "task", &names, o->a, err));
    for (o->n_names = 0; o->n_names < names.n; o->n_names++) {
        const char *name = names.item[o->n_names];
        o->given_task[o->n_names] = dq_task_is_file(name) ? dq_task_find(name, o->a, err) : NULL;
        DQ_TRY(err->code);
    }
    DQ_TRY(check_twice(o, &o->data, "data", err));
    DQ_TRY(check_twice(o, &o->fewshot, "fewshot-data", err));
    for (int i = 0; i < names.n; i++) {
        o->task = o->given_task[i];
        DQ_TRY(choose_task(o, names.item[i], &used, err));
    }
    const int n_tasks = names.n;
    const char *end = n_tasks == 1 ? "" : "s";
    if (o->data.n > n_tasks)
        return dq_fail(err, DQ_USAGE, "--data is given %d times for %d task%s.", o->data.n, n_tasks,
                       end);
    if (o->n_shots > 0 && n_tasks == 0)
        return dq_fail(err, DQ_USAGE, "--num-fewshot is for items of a --task; there is none.");
    bool shown = false;
    for (int i = 0; i < o->n_sources; i++) shown = shown || o->examples[i];
    if (o->fewshot.n > 0 && !shown)
        return dq_fail(err, DQ_USAGE, "--fewshot-data has nothing to act on: add --num-fewshot N.");
    if (o->fewshot.n > n_tasks)
        return dq_fail(err, DQ_USAGE, "--fewshot-data is given %d times for %d task%s.",
                       o->fewshot.n, n_tasks, end);
    /* Files without a name that no task has taken. */
    for (int i = 0, plain = 0; i < o->data.n; i++) {
        if (!is_named(o, o->data.item[i]) && plain++ >= used)
            return dq_fail(err, DQ_USAGE, "--data %s: no task takes it.", o->data.item[i]);
    }
    /* Sources of options such as --text, without --task. */
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        if (!kind->task) DQ_TRY(kind->choose(o->own[i], o, NULL, NULL, err));
    }
    if (o->n_sources == 0)
        return dq_fail(err, DQ_USAGE,
                       "nothing to score: give --task NAME --data FILE or --text FILE.");
    /* Outputs need a source that writes to them. */
    bool items = false, requests = false;
    for (int i = 0; i < o->n_sources; i++) {
        items = items || cmd_eval_kind_dumps(cmd_eval_kind_of(&o->source[i]));
        requests = requests || has_choices(&o->source[i]);
    }
    if (o->dump && !items)
        return dq_fail(err, DQ_USAGE,
                       "--dump-items has nothing to write: items of --task %s go to --%s.",
                       o->source[0].name, output_of(cmd_eval_kind_of(&o->source[0]))->opt.name);
    if (o->requests && !requests)
        return dq_fail(err, DQ_USAGE,
                       "--dump-requests writes items of a --task with choices; there is none.");
    const char *scored = o->dump            ? "dump-items"
                         : o->csv           ? "csv"
                         : o->html          ? "html"
                         : o->resume        ? "resume"
                         : o->fail_if.n > 0 ? "fail-if"
                                            : given_file(o);
    if (o->dry_run && scored)
        return dq_fail(err, DQ_USAGE, "--dry-run scores nothing, so --%s cannot go with it.",
                       scored);
    return DQ_OK;
}
