/* What the files of cmds/plan share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMDS_PLAN_INSIDE_H
#define DQ_CMDS_PLAN_INSIDE_H

#include "base/base.h"
#include "base/json.h"
#include "cmds/cli/cli.h"
#include "cmds/plan/cmd_plan.h"
#include "plan/plan_cache.h"
#include "plan/plan_weights.h"
#include "record/record.h"
#include "settings/inputs.h"

typedef struct dq_cache_job dq_cache_job;

/* What a command tells. */
typedef struct dq_plan_kind {
    const char *name; /* "plan kv" */
    void (*settings)(dq_row_writer *w, const void *plan);
    dq_row_items *result; /* i 1: after the run, 0: of a dry run */
    bool device;          /* settings name it */
    /* What it puts into the cache of a recipe; NULL: nothing, and a dry run has no result. */
    void (*kv)(dq_row_writer *w, const void *settings, const char *text);
    const char *sample;         /* a text before the plan's is known */
    const char *option;         /* "kv-bits", which the recipe's comment names */
    const char *const *dropped; /* members that go; ends with NULL */
    /* Warns of what in a recipe's own `kv` is not measured. */
    void (*warn)(const dq_cache_job *j, const dq_kv_config *kv);
} dq_plan_kind;
extern const dq_plan_kind dq_plan_weights_kind, dq_plan_kv_kind, dq_plan_heads_kind,
    dq_plan_gates_kind;
dq_row_items dq_plan_weights_input;
/* Prints the document dq-plan/1. j NULL: of weights; another's kind is the job's. */
dq_status dq_plan_print(const dq_logger *logger, const dq_plan_kind *kind, const dq_cache_job *j,
                        const void *plan, dq_err *err);

/* The ends of an interval, of which each may be null. */
void dq_plan_put_ends(dq_row_writer *w, const char *name, const dq_interval *x, const char *about,
                      unsigned when);
/* Of --widths (NULL: the default), ascending. */
dq_status dq_plan_read_widths(int bits[DQ_PLAN_WIDTHS], int *n, const char *text, dq_err *err);
void dq_plan_put_widths(dq_row_writer *w, const int *bits, int n);
void dq_plan_put_dense(dq_row_writer *w, const dq_kv_config *kv);

/* "kld_nats", "ln_ppl_ratio", "clusters". */
void dq_cache_numbers_rows(dq_row_writer *w, const dq_plan_numbers *x);
/* An object of them; NULL: null. */
void dq_cache_numbers_put(dq_row_writer *w, const char *name, const dq_plan_numbers *x,
                          const char *about);
/* With intervals; a cache beside the plan: "unseen" and "plan_less_it". */
void dq_cache_numbers_found(dq_row_writer *w, const char *name, const dq_plan_found *x,
                            const char *about);
void dq_cache_numbers_beside(dq_row_writer *w, const dq_plan_beside *x);
/* Windows; what measuring a cache on them takes. */
void dq_cache_numbers_windows(dq_row_writer *w, const dq_plan_caches *c);
void dq_cache_numbers_work(dq_row_writer *w, const dq_plan_caches *c);
/* From the log of a ratio of perplexities. */
double dq_cache_numbers_percent(double loss);
/* A dry run's line: the time for min to max tokens at `seconds` per token. */
void dq_cache_numbers_time(double seconds, double min, double max);
/* Table lines: a plan's loss on unseen windows. */
void dq_cache_numbers_print(const dq_plan_found *x, const dq_plan_caches *c);
/* Differences and what they say. other: "the uniform width"; error: KLD with its error. */
void dq_cache_numbers_compare(const dq_plan_found *x, const char *other, bool error);

/* Options of both cache plans as given; 0, NULL, and recent or sink -1: not given. */
typedef struct dq_cache_options {
    const char *text, *questions, *onto, *out, *device;
    int64_t ctx, windows, trials, threads, recent, sink;
    dq_word dense; /* a dq_kv_dense */
    bool dry_run, json, resume, force;
    dq_logger logger;
} dq_cache_options;
extern const dq_cache_options dq_cache_options_none;

/* Rows: the text; what stays in the cache; the run. windows, recent: defaults, in words. */
#define DQ_CACHE_OPTIONS_TEXT(o, windows_help)                                                     \
    dq_opt_text("text", "FILE", &(o).text,                                                         \
                "text to measure with, as in dq eval: plain, or .jsonl of {\"text\"}"),            \
        dq_opt_int("ctx", "N", &(o).ctx, 4, INT32_MAX,                                             \
                   "tokens of a window (default min(2048, the model's positions))"),               \
        dq_opt_int("limit", "N", &(o).windows, 3, 1000000, windows_help)
#define DQ_CACHE_OPTIONS_KEPT(o, recent_help)                                                      \
    dq_opt_int("kv-recent", "N", &(o).recent, 0, INT32_MAX, recent_help),                          \
        dq_opt_int("kv-sink", "N", &(o).sink, 0, INT32_MAX,                                        \
                   "the same of first tokens (default 4)"),                                        \
        dq_opt_word("kv-dense-type", "TYPE", &(o).dense, dq_kv_dense_name, DQ_KV_DENSE_TYPES + 1,  \
                    "what is not coded is held in: {words} (default auto: f16, or bf16 where the " \
                    "model's weights are)")
#define DQ_CACHE_OPTIONS_RUN(o, resume_help)                                                       \
    dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "RECIPE.json", &(o).out,                \
                                                 "the recipe to write"))),                         \
        dq_opt_text("onto", "RECIPE.json", &(o).onto,                                              \
                    "a recipe of weights, or of the cache's other plan, whose settings the new "   \
                    "one has too"),                                                                \
        dq_opt_flag("dry-run", &(o).dry_run,                                                       \
                    "print windows and passes, without --json also how long they take by one "     \
                    "window; write nothing"),                                                      \
        dq_opt_flag("resume", &(o).resume, resume_help),                                           \
        dq_opt_flag("force", &(o).force, "replace the recipe, and what an interrupted run left"),  \
        DQ_OPT_DEVICE(&(o).device),                                                                \
        dq_opt_int("threads", "N", &(o).threads, 0, 4096,                                          \
                   "0 for all processors (default 0); the result does not depend on it"),          \
        dq_opt_flag("json", &(o).json, "one JSON document (dq-plan/1) on stdout"),                 \
        DQ_LOGGER_OPTIONS((o).logger)

/* What goes into a recipe. */
typedef struct dq_cache_job_recipe {
    const void *settings; /* of the kind's `kv` */
    dq_kv_config *kv;     /* what is measured; the type of what is not coded becomes the model's */
    double requested;     /* value of the option */
} dq_cache_job_recipe;

struct dq_cache_job {
    const dq_plan_kind *kind;
    dq_cache_options *c;
    const dq_cache_job_recipe *recipe; /* NULL: none is made */
    dq_plan_caches_input in;
    dq_model *model;
    dq_tokenizer *tok;
    dq_docs docs;
    dq_input_text text, questions; /* without a path: none */
    json_t *onto;                  /* NULL: none */
    dq_progress bar;
    dq_arena *a;
};

/* Opens backend, model (the argument), tokenizer, text and recipe, and checks them; the caller has
 * set kind, options and recipe, and nothing else. windows: the default. Close after failures
 * too. */
dq_status dq_cache_job_open(dq_cache_job *j, const dq_args *args, int64_t windows, dq_err *err);
void dq_cache_job_close(dq_cache_job *j);
/* The recipe, a new reference: that of --onto, if any, with the plan's part of the cache.
 * dq_json_complete tells whether memory sufficed. */
json_t *dq_cache_job_recipe_of(const dq_cache_job *j, const char *text);
/* By all ranks: whether the plan runs, which it does not in a dry run or after a failure.
 * DQ_MISMATCH: inputs, settings or program differ. */
bool dq_cache_job_begin(dq_cache_job *j, const void *plan, const dq_windows *win, dq_err *err);
/* After the run: whether this rank writes. */
bool dq_cache_job_end(dq_cache_job *j, const dq_err *err);
/* Warns where few documents, or windows of one, decide; and where the model rounds logits. */
void dq_cache_job_warn(const dq_cache_job *j, const dq_plan_caches *c);
/* Writes the recipe with the text of the searched windows to c->out, and ends the journal, or says
 * what it keeps. text: as the kind's `kv` takes it. */
dq_status dq_cache_job_write(const dq_cache_job *j, dq_plan_caches *c, const char *text,
                             dq_err *err);

typedef struct dq_plan_files {
    const char *out; /* the recipe, beside which OUT.journal lies; NULL: none is written */
    const char *const *inputs; /* [n_inputs] the model and files; NULL: none */
    int n_inputs;
    bool trials; /* containers are tried beside it */
    bool resume, force;
} dq_plan_files;

/* DQ_USAGE: the recipe or a file beside it would replace an input, despite `force`; DQ_FILE:
 * resuming a finished recipe, a journal that is no regular file, or as dq_output_guard_check. */
dq_status dq_plan_files_check(const dq_plan_files *f, dq_err *err);

#endif
