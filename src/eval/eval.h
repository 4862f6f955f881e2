/* eval: the sweep of an evaluation: models x what is scored x logit rounding, every row compared
 * with its reference row; results as numbers. A sweep stops between passes and goes on later.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_H
#define DQ_EVAL_H

#include "base/json.h"
#include "base/text.h"
#include "eval/score.h"
#include "session/session.h"
#include "stat/stat.h"
#include "tasks/documents.h"
#include "tasks/tasks.h"
#include "work/work.h"

typedef struct dq_eval dq_eval;
typedef struct dq_eval_ids dq_eval_ids;
typedef struct dq_eval_model dq_eval_model;
typedef struct dq_eval_numbers dq_eval_numbers;
typedef struct dq_eval_row dq_eval_row;
typedef struct dq_eval_source dq_eval_source;

/* What becomes of items with more tokens than a model has positions; usually choices are cut, and
 * questions and prompts are refused. */
typedef enum dq_long { DQ_LONG_USUAL, DQ_LONG_ERROR, DQ_LONG_SKIP, DQ_LONG_CUT } dq_long;

/* How one kind of source is fed to a model and judged; its units are items, or windows of a text.
 * Only eval_sweep.c treats windows apart. */
typedef struct dq_eval_kind {
    bool windows;          /* else requests */
    const char *metric[2]; /* names of what judge gives; the second may be NULL. Neither: nothing is
                              compared, and rows need no reference */
    int64_t group;         /* units that are finished together; 0: as many as a pass holds */
    /* Makes source->own from source->text[len]; NULL: not needed. */
    dq_status (*load)(dq_eval *e, dq_eval_source *source, dq_err *err);
    /* Makes ids->req or ids->win for the tokenizer of ids->model. */
    dq_status (*encode)(dq_eval *e, dq_eval_ids *ids, dq_err *err);
    /* score[unit] of the row's metric, 0 (wrong) to 1. NULL with windows. */
    void (*judge)(const dq_eval *e, const dq_eval_row *row, int metric, double *score);
    const char *cluster; /* what is independent, "query"; NULL: "item", or "cluster" of them */
    /* Scores items begin .. end - 1 on a scorer with the row's settings, with scratch memory from
     * a; NULL: dq_score_items. */
    dq_status (*score)(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                       dq_arena *a, dq_err *err);
    /* DQ_MISMATCH where rows of the source cannot run with such a cache, DQ_USAGE where they cannot
     * with contexts of e->n_ctx; NULL: they always can. */
    dq_status (*takes)(const dq_eval *e, const dq_eval_source *source, const dq_kv_spec *kv,
                       dq_err *err);
} dq_eval_kind;
extern const dq_eval_kind dq_eval_choices; /* multiple choice: acc, acc_norm */
extern const dq_eval_kind dq_eval_text;

struct dq_eval_model {
    const dq_model *m;
    const dq_tokenizer *tok; /* NULL: none */
    const char *tok_text;    /* tokenizer.json, for the key of a resumed run */
    size_t tok_len;
    dq_runner *runner; /* the caller's, for plain caches; NULL: made while rows of the model run */
    int ref;           /* model that rows of this one are compared with */
    /* The model is quantized and has no source to compare with, so its rows have no differences.
     * Set before rows are added. */
    bool sourceless;
    bool shown;     /* false: here as reference only */
    double seconds; /* that a token takes, by dq_eval_expected; 0: nobody has measured it */
};

/* A task's items, or a text. */
struct dq_eval_source {
    const char *name, *path;
    bool fileless;          /* it has no file: its path is its name */
    const char *title;      /* name that tells it from others of that name; NULL: the name does */
    const char *told_by[3]; /* and the object, member and text of its results that do; or NULL */
    const dq_eval_kind *kind;
    const dq_task *task;   /* NULL: of another kind than choices, answers and prompts */
    void *settings;        /* of other kinds, from the command line; NULL: none */
    dq_items items;        /* of a task; other kinds have none */
    void *own;             /* what other kinds make of the text; in the arena */
    int64_t n_skipped;     /* items that were too long and are gone (--long skip) */
    const int64_t *number; /* [units] of those left, in the file; NULL: all are there */
    int64_t n_shots, seed; /* examples before every context, and the seed of their draw */
    int64_t n_own_shots;   /* items that an example of their own content was taken out for */
    const char *text;
    size_t len;
};

struct dq_eval_ids {
    int source, model; /* the first model that has these tokens */
    dq_requests req;
    dq_windows win;
    int64_t n_extra;    /* numbers per unit that the kind keeps besides logp and top1 */
    void *own;          /* what other kinds make besides, in the arena; NULL: nothing */
    const char *passes; /* how tokens are fed where the kind decides it; NULL: dq_eval_passes */
    /* [units] of requests: units of one number, from 0, depend on each other; NULL: none do */
    const int32_t *cluster;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 of a text that is encoded here */
    const dq_slices *slices;  /* of the windows; NULL: not asked for */
};

struct dq_eval_row {
    int model, ids;
    int ref;    /* row to compare with; the row itself if it is the reference */
    bool shown; /* false: computed as a reference only */
    dq_logit_spec logit;
    dq_math math;
    dq_kv_spec kv;      /* a row whose setting is not plain runs on runners of its own */
    dq_kv_spec run;     /* what it runs as: where nothing is left to choose, "streaming" */
    int same;           /* the row computed for it: itself, or an earlier one with the same cache */
    bool *finished;     /* [units] */
    dq_score_work work; /* of those that are finished */
    dq_score_work pending; /* of the units that were finished last */
    int64_t step_rows;     /* of its next step, see step_rows; 0: as many as of a first one */
    /* per scored token: its log-probability and the most likely token */
    double *logp;
    int32_t *top1;
    double *kld;      /* per scored id; NULL for items */
    double *top_logp; /* of top1, per scored id of a text's reference row; else NULL */
    double *extra;    /* [units][n_extra]; of a text's reference row: each window's noise floor */
};

/* Called when rows of another model begin, whose weights are then in use. */
typedef void dq_eval_begins(void *arg, int model);
typedef void dq_eval_progress(void *arg, double share, const char *note);

struct dq_eval {
    dq_arena *a; /* holds everything below */
    dq_eval_model *model;
    dq_eval_source *source;
    dq_eval_ids *ids;
    dq_eval_row *row;
    int n_models, n_sources, n_ids, n_rows;
    size_t cap_ids, cap_rows;
    dq_bos bos;
    dq_long too_long;
    int64_t n_ctx, limit;
    dq_eval_progress *progress; /* NULL: none */
    dq_eval_begins *begins;     /* NULL: nobody is told */
    void *progress_arg;         /* of both */
    dq_backend *backend;        /* of models without a runner */
    int shard, n_shards;        /* the work that is done here, from 0; 0 shards: all of it */
    bool alone;                 /* this process computes all of it, and others do what they do */
    double share;               /* of all work, that of this shard; once dq_eval_run has begun */
    bool is_paced; /* each row has had a step if possible, so that the share told counts all */
    dq_work work;  /* finished steps; {0}: they are not written down */
    struct dq_eval_sweep *sweep; /* private */
};

/* Adds a row to be shown, and the row it is compared with (the reference model at 16 bits in f32
 * with a plain cache); existing ones are kept. kv->num is math.kv. DQ_MISMATCH: the kind cannot run
 * with the cache, or the models cannot be compared. */
dq_status dq_eval_add(dq_eval *e, int model, int source, dq_logit_spec logit, dq_math math,
                      const dq_kv_spec *kv, dq_err *err);
/* How a row's sequences are fed: "whole", "context+rest" or "decode". */
const char *dq_eval_passes(const dq_eval_row *row);
/* Units of a row, and scored tokens of the first n of them. */
int64_t dq_eval_units(const dq_eval *e, const dq_eval_row *row);
int64_t dq_eval_values(const dq_eval *e, const dq_eval_row *row, int64_t n);
/* The first unfinished unit of at .. end - 1; `end`: none. */
int64_t dq_eval_lacking(const dq_eval_row *row, int64_t at, int64_t end);
/* A unit's number in its file, from 0, and its line, from 1; 0: it has none. */
int64_t dq_eval_number(const dq_eval_source *s, int64_t unit);
int64_t dq_eval_line(const dq_eval_source *s, int64_t unit);
const dq_eval_source *dq_eval_source_of(const dq_eval *e, const dq_eval_row *row);

/* Stop tokens of `model` and of the model it is compared with, so that paired rows end alike. */
dq_status dq_eval_stop_ids(dq_stop_ids *out, const dq_eval *e, int model, dq_err *err);

/* By all ranks, unless `alone`; rank 0 gets all results. Computes what is not finished; after
 * DQ_STOPPED rows keep what is. */
dq_status dq_eval_run(dq_eval *e, dq_err *err);
/* Expected seconds: by a nominal machine, or (passes) from a short pass of each model. */
dq_status dq_eval_expected(double *seconds, dq_eval *e, bool passes, dq_err *err);
/* Seconds per token of a short pass. */
dq_status dq_eval_token_seconds(double *seconds, dq_runner *r, const dq_pass *pass, dq_err *err);

/* For dq_work_open, which by all ranks comes before dq_eval_run, and dq_work_merge; `key` (64 hex
 * digits) stands for all that results depend on. DQ_DAMAGED: a unit is finished already. */
dq_work_how dq_eval_work(dq_eval *e, const char *key, const char *path);
/* ln probability of a request's continuation; and whether each of its tokens was the most likely
 * one. */
double dq_eval_ll(const dq_eval_row *row, const dq_request *r);
bool dq_eval_greedy(const dq_eval_row *row, const dq_request *r);
/* The choice with the largest ll, or ll per code point; of equals, the first. first: the request of
 * choice 0. */
int dq_eval_pick(const dq_item *item, const dq_eval_row *row, const dq_request *first,
                 bool by_norm);

/* Quantiles of the KLD: .001, .01, .05, .1, .5, .9, .95, .99, .999 and 1. */
enum { DQ_KLD_POINTS = 10 };
/* Results of a finished row; items have scores, texts the rest. */
struct dq_eval_numbers {
    int64_t n; /* items or scored tokens */
    bool is_task, is_ref;
    int64_t n_clusters;            /* independent pieces: see dq_eval_cluster */
    int n_metrics;                 /* of items, named by the kind */
    dq_mean score[2];              /* over items */
    dq_interval score_interval[2]; /* of the mean score */
    dq_stat_flips flips[2];        /* against the reference row */
    dq_mean nll, ppl;
    dq_mean ln_ratio, kld,
        same;           /* these and all below but the floor: NaN for the reference itself */
    dq_mean dp, dp_rms; /* probability of the text's own id less that of the reference: mean, root
                           mean square */
    double kld_at[DQ_KLD_POINTS];
    double noise_floor; /* mean KLD of the reference with itself, every number of its final states
                           moved by one unit in the last place: less than this means nothing */
    double word_ppl, byte_ppl, bits_per_byte; /* of whole documents in rolling windows, else NaN */
};
dq_status dq_eval_numbers_of(const dq_eval *e, int row, dq_eval_numbers *out, dq_err *err);
/* The unit of standard errors: "item", "cluster", "prompt", "query", "document" or "window". */
const char *dq_eval_cluster(const dq_eval *e, const dq_eval_row *row);
/* Index of the quoted metric. */
int dq_eval_quoted(const dq_eval_source *source);

/* False: the row is the reference, or its kind is not compared. */
bool dq_eval_loss_of(dq_interval_loss *out, const dq_eval *e, int row, const dq_eval_numbers *x);
/* Loss of row `after` relative to `before`, both finished and of one source and reference: in the
 * quoted metric, or nats of KLD. */
dq_status dq_eval_worse(dq_interval_loss *out, const dq_eval *e, int before, int after,
                        dq_err *err);
/* Two finished rows of one source, perhaps of different models. */
dq_status dq_eval_compare(const dq_eval *e, int before, int after, int metric, dq_stat_flips *out,
                          dq_err *err);

/* Means over tasks, each counting equally, as in the last column of benchmark tables. */

/* The shown rows with the model and settings of `row`, one per source of its kind; rows:
 * [e->n_sources]. Returns at least 2, or 0: the kind has no mean over tasks, there is one task, or
 * `row` is not the first. */
int dq_eval_average_rows(int *rows, const dq_eval *e, int row);

typedef struct dq_eval_average {
    dq_mean mean; /* its clusters are those of all tasks */
    dq_interval interval;
} dq_eval_average;
/* Of n tasks with items of their own: the standard error is sqrt(sum of squares) / n. Each end of
 * the interval lies as far from the mean as the root of the summed squares of the tasks' own
 * distances says, over n: intervals without an error, of tasks where all items are right, keep
 * their width, and equal errors give z of them.
 * Source: Zou and Donner, Statistics in Medicine 27 (2008), of sums. */
dq_eval_average dq_eval_average_of(const dq_mean *task, const dq_interval *interval, int n);

enum { DQ_EVAL_LONGS = 3 };
extern const char *const dq_eval_long_name[1 + DQ_EVAL_LONGS]; /* "", "error", "skip", "cut" */

/* After all models are open and before rows are added: counts the items of a source that one of the
 * models cannot hold. error: DQ_MISMATCH with their number and the first of them. skip: they leave
 * the source, for all models, so that every row has the same items; all of them is DQ_MISMATCH.
 * cut: nothing, encoding cuts. */
dq_status dq_eval_long_fit(dq_eval *e, int source, dq_err *err);

/* Which caches of a sweep are equal under different names: a policy matters only where something is
 * left to choose. */

/* What a row's cache keeps of its contexts. */
typedef enum dq_eval_kept {
    DQ_EVAL_KEPT_ALL, /* every token: nothing is evicted, or no context is longer than its budget */
    DQ_EVAL_KEPT_LEAST, /* no budget is more than sink + recent, so these tokens and no others */
    DQ_EVAL_KEPT_CHOSEN /* what a policy chooses, in some context at least */
} dq_eval_kept;

/* By the lengths of contexts, of prompts with answers by their longest; for a finished row also by
 * measurement. */
dq_eval_kept dq_eval_kept_of(const dq_eval *e, const dq_eval_row *row);
/* Whether two rows with the same ids keep the same tokens in the same form. */
bool dq_eval_same_cache(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b);

#endif
