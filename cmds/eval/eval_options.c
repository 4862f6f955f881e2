/* eval_options: the options of dq eval itself; those of the kinds of evaluation come from their rows, and
 * cmd_eval_understand says in which order all of them are read.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_options.h"

#include "base/ranks.h"
#include "cmds/cli/help.h"
#include "cmds/eval/eval_tasks.h"
#include "cmds/eval/eval_verdict.h"
#include "cmds/report/report.h"
#include "eval/eval.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dq_opt_brief first[] = {
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
    .first = first,
    .first_about =
        "Scores models on tasks and text at one or many widths, in one table. Each row is compared "
        "with the same checkpoint at 16 bits: a container with its source, which must be in the "
        "run, "
        "or with --ref.",
    .first_examples =
        "  dq eval model --text book.txt --logit-bits 16,8,6,4\n"
        "  dq eval model model.h5 --task hellaswag --data hellaswag_val.jsonl --limit 500\n"
        "  dq eval model --text book.txt --kv-bits 16,8:4 --kv-keep 1,0.5,0.25\n",
    .synopsis = "MODEL... (--task NAME --data FILE | --text FILE) [options]",
    .about =
        "Scores checkpoints and containers on multiple-choice tasks, on questions that they answer "
        "in their own words, and on text, at one or many widths of attention logits and forms of "
        "the KV cache, in one table. Every row is compared "
        "with the same checkpoint at 16-bit logits and a cache of 32 bits: a container with its "
        "source folder, which must be in the run, or with --ref MODEL; --ref with the container "
        "itself leaves out what its weights lost. Standard errors (±) of tasks are over items, or "
        "queries where "
        "runs share them; those of texts treat each document as one cluster, each window where "
        "there is one document. A verdict compares the paired 95 % interval of a row's loss with "
        "--margin: all of it is within, or exceeds it, or it is inconclusive. Ctrl-C "
        "keeps what is finished; the same command with --resume goes on from there.",
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

static dq_status begin(cmd_eval_options *o, dq_arena *a, dq_err *err)
{
    o->bos.text = dq_bos_name[DQ_BOS_AUTO];
    o->math_words = (dq_words){.text = dq_num_name[DQ_NUM_F32], .at = {DQ_NUM_F32}, .n = 1};
    o->device = "auto";
    o->margin = DQ_EVAL_MARGIN;
    dq_kv_options_begin(&o->kv, "of what is drawn: --num-fewshot (default 1234), needles and the "
                                "policy random (default 1)");
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        if (kind->cli.size) o->own[i] = dq_alloc(a, 1, kind->cli.size, err);
        if (kind->cli.size && o->own[i] && kind->cli.begin) kind->cli.begin(o->own[i]);
    }
    return err->code;
}

/* Rows of all options, as they come together; after the last one an empty one. */
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

static void add_own(rows *to, const cmd_eval_kind_option *from, void *own)
{
    for (; from && (from->opt.name || from->opt.help); from++) {
        dq_opt row[2] = {from->opt};
        row->to = (char *)own + from->at;
        add_rows(to, row);
    }
}

/* What --task takes, kind by kind. */
static dq_status tasks_help(char **out, dq_arena *a, dq_err *err)
{
    const char *all = "";
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const char *help = cmd_eval_kinds[i]->cli.tasks_help;
        if (!help) continue;
        *out = dq_textf(a, err, "%s%s%s", all, all[0] ? ";\n" : "", help);
        if (!*out) return err->code;
        all = *out;
    }
    return DQ_OK;
}

/* The tasks of all kinds, for completion: names[MAX_TASKS]. */
enum { MAX_TASKS = 64 };
static int task_names(const char **names)
{
    int n = 0;
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind_cli *cli = &cmd_eval_kinds[i]->cli;
        const char *name;
        for (int k = 0; cli->task && n < MAX_TASKS && (name = cli->task(k)); k++) names[n++] = name;
    }
    return n;
}

/* What is scored: tasks and their examples; after them what kinds score without --task, and then add_limits. */
static void add_scored(rows *to, cmd_eval_options *o, const char *tasks, const char **names)
{
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
    add_rows(to, opts);
}

static void add_limits(rows *to, cmd_eval_options *o)
{
    const dq_opt opts[] = {
        dq_opt_topic("limits", "how much of it"),
        dq_opt_int("limit", "N", &o->limit, 1, 1e15,
                   "at most N items of each task (default all; 250 test examples of in-context "
                   "tasks, drawn once), N prompts per length, and of needles per depth and N:R "
                   "(default 50), N windows of the text (default all)"),
        dq_opt_text("lengths", "LIST", &o->lengths_word,
                    "tokens of a prompt and the room for its answers, of tasks that make their own "
                    "prompts (default 4096, "
                    "or the fewest positions of the models)"),
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
    add_rows(to, opts);
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
        dq_opt_words("math", "LIST", &o->math_words, dq_num_name, DQ_NUMS,
                     "{words} (default f32); int8 takes packed containers and --kv-bits 8 or "
                     "fewer; what the device lacks is refused, or, in a list of several, left out "
                     "with a warning"),
        dq_opt_text("ref", "MODEL", &o->ref, "compare every row with this model at 16 bits"),
        DQ_INPUT_HEAD_ORDER_OPTION(o->head_order),
        DQ_OPT_DEVICE(&o->device),
        dq_opt_manner(
            dq_opt_int("threads", "N", &o->threads, 0, 4096, "0 (default): all processors")),
        dq_opt_manner(dq_opt_flag(
            "resume", &o->resume,
            "go on where the same command was interrupted, in the same folder: finished work "
            "is kept in dq-eval-KEY.resume there, KEY standing for inputs and settings")),
        DQ_SHARD_OPTION(o->part),
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
            "other (dq report makes it of a JSON document later). Needs gnuplot")),
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
            "the "
            "same number of the result with the same model name, task, logit bits, KV cache and "
            "--math there. Status 7 where it has no such result, 4 where its files, items or task "
            "settings are others"),
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
    DQ_TRY(begin(o, a, err));
    DQ_TRY(tasks_help(&tasks, a, err));
    add_scored(&all, o, tasks, names);
    add_rows(&all, (const dq_opt[]){dq_opt_topic("text", "text and its windows"), {0}});
    for (int i = 0; i < DQ_EVAL_KINDS; i++) add_own(&all, cmd_eval_kinds[i]->cli.scored, o->own[i]);
    add_limits(&all, o);
    add_computed(&all, o);
    for (int i = 0; i < DQ_EVAL_KINDS; i++)
        add_own(&all, cmd_eval_kinds[i]->cli.options, o->own[i]);
    add_outputs(&all, o);
    if (all.n > MAX_ROWS) return dq_fail(err, DQ_BUG, "more than %d options", MAX_ROWS);
    return dq_help_parse_part(args, argc, argv, all.row, o->merge ? o->merge->own : NULL, &usage,
                              err);
}

/* A name per comma. */
dq_status cmd_eval_split(const char *text, const char *option, dq_list *out, dq_arena *a,
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

static dq_status read_logits(cmd_eval_options *o, dq_err *err)
{
    o->n_granularities = o->logit_granularity.n;
    for (int i = 0; i < o->n_granularities; i++)
        o->granularity[i] = (dq_granularity)o->logit_granularity.at[i];
    return o->logit_bits ? dq_options_bits(o->bits, &o->n_bits, DQ_EVAL_BITS, o->logit_bits,
                                           "logit-bits", err)
                         : DQ_OK;
}

static void read_math(cmd_eval_options *o)
{
    o->n_math = o->math_words.n;
    for (int i = 0; i < o->n_math; i++) {
        const dq_num num = (dq_num)o->math_words.at[i];
        o->math[i] = (dq_math){num, num, num, num};
    }
}

/* Of which items may be too long. */
static const char *long_tasks(const cmd_eval_kind *kind)
{
    return kind->kind[0] && kind->kind[0]->usual_long != DQ_LONG_USUAL ? kind->cli.tasks : NULL;
}

static dq_status check_long(const cmd_eval_options *o, dq_err *err)
{
    char what[200];
    if (!o->too_long.text) return DQ_OK;
    for (int i = 0; i < o->n_sources; i++) {
        if (o->source[i].kind->usual_long != DQ_LONG_USUAL) return DQ_OK;
    }
    return dq_fail(err, DQ_USAGE, "--long is for %s; there is none.",
                   cmd_eval_kind_join(what, sizeof what, long_tasks, " and "));
}

static int rising(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Which tasks may have a list, eval_tasks.c says. */
static dq_status read_shots(cmd_eval_options *o, dq_err *err)
{
    if (!o->shots_word) return DQ_OK;
    DQ_TRY(dq_options_ints(o->shots, &o->n_shots, DQ_EVAL_SHOTS, o->shots_word, "num-fewshot", 0,
                           1000000, err));
    qsort(o->shots, (size_t)o->n_shots, sizeof o->shots[0], rising);
    o->num_fewshot = o->n_shots == 1 ? o->shots[0] : 0;
    return DQ_OK;
}

static dq_status read_part(cmd_eval_options *o, const dq_args *args, dq_err *err)
{
    DQ_TRY(dq_shard_read(&o->part, o->document, args->also, err));
    if (o->part.n && o->dry_run)
        return dq_fail(err, DQ_USAGE, "--dry-run shows the whole. Leave out --shard.");
    return DQ_OK;
}

static dq_status read_words(cmd_eval_options *o, const dq_args *args, dq_err *err)
{
    DQ_TRY(read_part(o, args, err));
    if (o->lengths_word)
        DQ_TRY(dq_options_ints(o->length, &o->n_lengths, DQ_EVAL_LENGTHS, o->lengths_word,
                               "lengths", 1, 1 << 30, err));
    o->samples = o->limit ? o->limit : SAMPLES;
    DQ_TRY(read_shots(o, err));
    read_math(o);
    return read_logits(o, err);
}

/* What tasks with prompts of their own take. */
static dq_status check_lengths(const cmd_eval_options *o, dq_err *err)
{
    bool made = false;
    for (int i = 0; i < o->n_sources; i++)
        made = made || cmd_eval_kind_of(&o->source[i])->cli.lengths;
    if (made && o->samples > MAX_SAMPLES)
        return dq_fail(err, DQ_USAGE, "--limit: expected at most %d prompts per length.",
                       MAX_SAMPLES);
    if (made || !o->lengths_word) return DQ_OK;
    return dq_fail(err, DQ_USAGE,
                   "--lengths has nothing to act on: there is no task that makes its own prompts.");
}

static dq_output_form document_form(const cmd_eval_options *o)
{
    if (!o->part.n) return DQ_OUTPUT_JSON;
    return o->resume ? DQ_OUTPUT_JOURNAL : DQ_OUTPUT_LINES;
}

/* The files that a run writes; *n of at most N_OUTPUTS. */
enum { N_OUTPUTS = 6 + DQ_EVAL_KINDS };
static void list_outputs(dq_output *out, int *n, char (*option)[64], const cmd_eval_options *o,
                         const char *journal)
{
    static const char *const old[] = {".old", NULL};
    const dq_output own[] = {
        {"-o", o->document, document_form(o), NULL},
        {"--dump-requests", o->requests, DQ_OUTPUT_LINES, NULL},
        {"--dump-items", o->dump, DQ_OUTPUT_LINES, NULL},
        {"--csv", o->csv, DQ_OUTPUT_CSV, NULL},
        {"--html", o->html, DQ_OUTPUT_HTML, NULL},
        {"the finished work for --resume", o->part.n ? NULL : journal, DQ_OUTPUT_JOURNAL, old},
    };
    *n = (int)(sizeof own / sizeof own[0]);
    memcpy(out, own, sizeof own);
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        if (!kind->cli.file) continue;
        snprintf(option[i], sizeof option[i], "--%s", kind->cli.file_option);
        out[(*n)++] = (dq_output){option[i], kind->cli.file(o->own[i]), DQ_OUTPUT_LINES, NULL};
    }
}

dq_status cmd_eval_check_outputs(const cmd_eval_options *o, const dq_args *args,
                                 const char *journal, dq_arena *a, dq_err *err)
{
    dq_output out[N_OUTPUTS];
    char option[DQ_EVAL_KINDS][64];
    cmd_eval_inputs in = {0};
    int n;
    list_outputs(out, &n, option, o, journal);
    DQ_TRY(cmd_eval_inputs_list(&in, o, args, a, err));
    for (int i = 0; o->merge && i < o->merge->n; i++)
        DQ_TRY(cmd_eval_inputs_add(&in, o->merge->path[i], a, err));
    DQ_TRY(dq_output_guard_names(out, n, in.path, in.n, err));
    if (journal) return DQ_OK;
    return dq_output_guard_check(out, n, in.path, in.n, o->force, err);
}

/* Whether --seed has something to act on besides a policy of the cache. */
static bool draws(const cmd_eval_options *o)
{
    for (int i = 0; i < o->n_sources; i++) {
        if (o->source[i].n_shots || cmd_eval_kind_of(&o->source[i])->cli.draws) return true;
    }
    return false;
}

/* Each step uses what the steps above it have made of the words, and nothing from below: words of the run, words
 * of each kind, the sources that both name, and then what does not go together. */
dq_status cmd_eval_understand(cmd_eval_options *o, const dq_args *args, dq_arena *a, dq_err *err)
{
    DQ_TRY(read_words(o, args, err));
    dq_input_head_order_read(&o->head_order);
    DQ_TRY(dq_kv_options_read(&o->kv, true, err));
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->cli.read) DQ_TRY(cmd_eval_kinds[i]->cli.read(o->own[i], o, a, err));
    }
    DQ_TRY(cmd_eval_choose(o, a, err));
    o->kv.draws = draws(o);
    o->kv.logger = &o->logger;
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->cli.check) DQ_TRY(cmd_eval_kinds[i]->cli.check(o->own[i], o, err));
    }
    DQ_TRY(check_long(o, err));
    DQ_TRY(check_lengths(o, err));
    DQ_TRY(cmd_eval_gates_read(&o->gates, &o->fail_if, o->baseline, err));
    DQ_TRY(cmd_eval_gates_check(&o->gates, o->source, o->n_sources, err));
    DQ_TRY(cmd_eval_check_outputs(o, args, NULL, a, err));
    if (o->baseline) DQ_TRY(cmd_eval_baseline_read(&o->gates.baseline, o->baseline, a, err));
    if (o->html && dq_report_check(err) != DQ_OK) return dq_in(err, "--html: ");
    return DQ_OK;
}
