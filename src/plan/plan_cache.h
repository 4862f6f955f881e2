/* Plans of a KV cache: widths, heads and gates, and what measures caches.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_CACHE_H
#define DQ_PLAN_CACHE_H

#include "engine/backend.h"
#include "eval/eval.h"
#include "kv/kv.h"
#include "model/model.h"
#include "plan/plan_weights.h"
#include "record/record.h"
#include "stat/stat.h"
#include "tasks/documents.h"

/* ---- Plan caches ----
 * What KV caches lose on windows of a text, beside the same weights and an unquantized cache, as
 * dq_eval measures it. What is measured is written down in a journal and not measured again. Plans
 * of a cache say which caches there are: each has a name, which its
 * plan can make a configuration of. A plan searches with some of the windows, side by side; no
 * choice sees the others, which decide.
 *
 * Ranks (work/ranks.h) search in step: they share what is measured, and each has all numbers
 * before the next choice. Rank 0 keeps the journal. */

enum { DQ_PLAN_CACHES_SWEEP = 16 }; /* caches that the unquantized one runs once for */

typedef struct dq_plan_caches_input {
    const dq_model *model;
    const char *content; /* 64 hex digits that stand for its bytes */
    const dq_tokenizer *tok;
    const dq_docs *docs; /* the text */
    const char *text, *text_sha256;
    const dq_items *questions; /* multiple choice, which the search may ask as well; NULL: none */
    const char *questions_path;
    const char *out; /* beside which the journal lies; NULL: nothing is run */
    const char *dq_version;
    int64_t ctx, windows; /* ids of a window; windows at most */
    dq_backend *backend;
    bool resume, force;
    /* Tokens done, and in all by the present estimate; and before a stage. */
    void (*step)(void *arg, double done, double total, const char *what);
    void (*stage)(void *arg, const char *name);
    void *arg;
} dq_plan_caches_input;

/* What names of caches mean; `arg` goes to the functions. */
typedef struct dq_plan_caches_kind {
    const char *key; /* of a name in a line of the journal */
    dq_status (*config)(dq_kv_config *out, const void *arg, const char *name, dq_err *err);
    /* Whether the plan would write this name so: one cache has one name. */
    bool (*is_name)(const void *arg, const char *name);
    /* Adds to the journal's key what numbers depend on besides the name. */
    void (*depend)(dq_row_writer *w, const void *arg);
    const void *arg;
} dq_plan_caches_kind;

typedef enum dq_plan_caches_windows {
    DQ_PLAN_CACHES_SEARCH,
    DQ_PLAN_CACHES_UNSEEN
} dq_plan_caches_windows;

/* A cache and its loss in each window: KLD, and the decrease of ln p of the text; nats per
 * token. */
typedef struct dq_plan_cache {
    const char *name;
    int place;   /* in the order in which the search has looked for caches, from 1; 0: it has not */
    bool *known; /* [windows] */
    double *kld, *loss;
    bool *answered; /* [questions] */
    double *lack; /* -ln of the share that the right answer has of all choices' probability, nats */
} dq_plan_cache;

/* A cache beside the plan. */
typedef struct dq_plan_beside {
    dq_plan_numbers its;
    dq_plan_found less; /* the plan less it */
} dq_plan_beside;

typedef struct dq_plan_caches {
    const dq_plan_caches_input *in;
    dq_plan_caches_kind kind;
    dq_windows win;
    int64_t begin, end; /* windows that search; the others decide */
    int64_t clusters;   /* of those: documents, or windows of a single one, copies once */
    dq_plan_cache *list;
    int n, n_places;
    int64_t n_resumed;  /* windows and answers of caches taken over from an earlier run */
    double done, total; /* ids */
    int64_t n_questions;
    /* [n_questions] from dq_repeats_order; NULL: no two depend on each other */
    int64_t *question_place;
    int32_t *question_cluster;
    int64_t shortest, longest, question_ids; /* ids of contexts, and of all of them together */
    int64_t n_choices, n_single; /* choices of all questions, and those of them that are one id */
    int64_t n_truncated;         /* questions that lost the beginning of their context */
    char questions_sha256[65];   /* of their ids */
    size_t cap;
    dq_runner *runner;
    dq_work work; /* what is known of them */
    dq_arena *arena;
} dq_plan_caches;

/* Tokens that a cache runs on such windows, without the unquantized one. */
int64_t dq_plan_caches_ids(const dq_plan_caches *c, dq_plan_caches_windows which);

/* ---- Gates ----
 * Fits what the policy kvzap goes by (kv.h) to a model, on a text.
 *
 * Each window runs once, then again after itself, which gives every token its peak (runner.h). Of
 * each layer and group of KV heads, ln(peak + floor) is fitted to the features of its tokens by
 * least squares with a small ridge; the first tokens, which every cache keeps, are left out. The
 * last quarter of the windows is not fitted: it says how much of the variance is explained, and
 * how much of the quarter that kvzip keeps of all layers and groups together is kept by the gates
 * too. Source: KVzap, arXiv 2601.07891, fits the same numbers to hidden states. */

enum {
    DQ_PLAN_GATES_WINDOWS = 16, /* without other words */
    DQ_PLAN_GATES_CTX = 1024,
    DQ_PLAN_GATES_LEAST = 8,   /* windows */
    DQ_PLAN_GATES_UNFITTED = 4 /* one window in so many is not fitted */
};

typedef struct dq_plan_gates_settings {
    const dq_model *model;
    const dq_tokenizer *tok;
    const dq_docs *docs;
    const char *text; /* its path, for messages */
    dq_backend *backend;
    int64_t ctx, windows; /* ids of a window, 0: DQ_PLAN_GATES_CTX or half the positions; maximum */
    void (*step)(void *arg, double done, double total, const char *what);
    void *arg;
} dq_plan_gates_settings;

typedef struct dq_plan_gates {
    dq_plan_gates_settings set;
    dq_windows win;
    int64_t fitted; /* windows 0 .. fitted - 1 */
    dq_kv_gates *gates;
    /* on the windows that were not fitted */
    double explained; /* explained share of the variance of ln(peak + floor) over all tokens */
    dq_mean kept;     /* share of kvzip's quarter, mean over windows */
    int n_lists;      /* of layers without a window */
    int *list;        /* [n_lists] its place among all */
    struct dq_plan_gates_sums *sums; /* [n_lists] */
    dq_arena *arena;
} dq_plan_gates;

/* Cuts the text. DQ_MISMATCH: too little text, windows beyond the model's positions, or a device
 * without the operation. */
dq_status dq_plan_gates_open(dq_plan_gates **out, const dq_plan_gates_settings *s, dq_err *err);
/* By all ranks, which share the windows; rank 0 has the result. */
dq_status dq_plan_gates_run(dq_plan_gates *p, dq_err *err);
void dq_plan_gates_close(dq_plan_gates *p); /* NULL allowed */

/* Normal equations of n features, the last of which is 1. */
typedef struct dq_plan_gates_sums {
    int64_t n;
    double *squares; /* [n][n], the lower triangle */
    double *by;      /* [n] sums of feature times target */
} dq_plan_gates_sums;
/* Adds rows f[rows][n] with targets y[rows]; the sums do not depend on the number of threads. */
void dq_plan_gates_add(dq_plan_gates_sums *s, const double *f, const double *y, int64_t rows);
/* weight[n] minimizes squared errors plus a ridge of a thousandth of each feature's variance.
 * DQ_DAMAGED: no token was added, or sums are not finite. */
dq_status dq_plan_gates_solve(double *weight, const dq_plan_gates_sums *s, dq_err *err);

/* The text that dq_kv_heads_parse reads, the first `sharing` of order[n] before the /. DQ_MISMATCH:
 * it does not fit. */
dq_status dq_plan_heads_order_text(char text[DQ_KV_HEADS_TEXT], const dq_kv_heads_group *order,
                                   int n, int sharing, dq_err *err);
/* Mean tokens per group, rounded down, when n - 1 groups keep a whole context and the last one only
 * `safe`. */
int64_t dq_plan_heads_order_whole(int64_t context, int64_t safe, int n);
/* How many of n groups can be whole, at least 1; kept: mean tokens per group. Fewer sharing groups
 * give the same cache, as the rest goes to the others in order. */
int dq_plan_heads_order_least(int64_t context, int64_t safe, int64_t kept, int n);
/* Writes at most `tries` (2 or more) numbers from least to n to out, ascending by a factor; returns
 * how many. */
int dq_plan_heads_order_numbers(int *out, int least, int n, int tries);
/* Sorts order[n] = 0 .. n - 1 by falling missed[]; stable. */
void dq_plan_heads_order_sort(int *order, const double *missed, int n);

/* ---- Heads ----
 * Which groups of KV heads need the whole context, and how many of them share what a cache may
 * keep, measured on a text.
 *
 * Windows of the text, one after the other, whose first halves are compressed and whose second
 * halves are scored: the first of them find, the others decide. Every group is cut alone, as far
 * as the tokens that always stay, while the others keep all; groups are ordered by the KLD that
 * this costs. Then as many groups of that order as can be whole, one more, ... share what may be
 * kept (of many groups: some numbers that grow by a factor), and the number that loses least is
 * taken. The windows that no choice has seen tell what heads lose, beside the same share in every
 * group. A cache is compared with the same weights and a cache that evicts nothing, as dq_eval
 * does it.
 *
 * Questions may count in both choices, beside windows or alone: to the KLD is added what their
 * right answers lack of all choices, -ln of their share, mean over questions. A group is cut alone
 * in the shortest of their contexts: whole groups keep as many tokens of a longer one, which is
 * less than all of it. A choice of one id is predicted by the last row of its context before
 * anything is evicted, so it says nothing.
 *
 * retrieval heads are DuoAttention's (arXiv 2410.10819), where gates that are trained find them. */

enum {
    DQ_PLAN_HEADS_FIND = 6, /* without other words */
    DQ_PLAN_HEADS_WINDOWS = 30,
    DQ_PLAN_HEADS_TRIES = 16,
    DQ_PLAN_HEADS_RECENT = 16,
    DQ_PLAN_HEADS_LEAST_UNSEEN = 2,
    DQ_PLAN_HEADS_MAX_TRIES = DQ_KV_HEADS_MAX
};

typedef struct dq_plan_heads_settings {
    dq_plan_caches_input in;
    double keep;     /* share of the context that stays */
    dq_kv_config kv; /* its policy, and the tokens that always stay */
    int64_t find;    /* windows; 0: questions alone, which must be there */
    int tries;       /* numbers of groups that share, at most */
} dq_plan_heads_settings;

/* A number of sharing groups and its loss on the searched windows and on questions. */
typedef struct dq_plan_heads_trial {
    int sharing, cache; /* of dq_plan_heads.caches */
    double kld, lack;   /* 0 where there are no such windows, or no questions */
} dq_plan_heads_trial;

typedef struct dq_plan_heads {
    dq_plan_heads_settings set;
    dq_plan_caches caches;
    dq_kv_heads_group *group; /* [n_groups] layer by layer, those without a window */
    int n_groups;
    /* tokens of a window's context; mean tokens per group where all but one are whole, on windows
     * and questions */
    int64_t context, whole, question_whole;
    int least; /* groups that share in the first trial: see dq_plan_heads_order_least */
    /* [n_groups] caches in which one group is cut, their loss on the searched windows, and groups
     * by need */
    int *alone, *question_alone;
    dq_plan_numbers *missed;
    dq_mean *lack; /* the same of questions */
    int *order;
    dq_plan_heads_trial *trial; /* [n_trials] */
    int n_trials, chosen;       /* -1: nothing was searched */
    char text[DQ_KV_HEADS_TEXT];
    /* on unseen windows: the plan, and the same share in every group; all_share: both are one */
    bool all_share;
    dq_plan_found found;
    dq_plan_beside uniform;
    dq_arena *arena;
} dq_plan_heads;

/* Cuts the text and lists groups. DQ_MISMATCH: a model with one group or too many, windows beyond
 * its positions, too little text, a share that leaves nothing to distribute, a policy that model or
 * device lack, or questions whose answers no cache changes. */
dq_status dq_plan_heads_open(dq_plan_heads **out, const dq_plan_heads_settings *s, dq_err *err);
void dq_plan_heads_close(dq_plan_heads *p); /* NULL allowed */
/* Numbers of groups to try; and the most caches on the unseen windows. */
int dq_plan_heads_numbers(const dq_plan_heads *p);
/* The loss by which a trial is chosen. */
double dq_plan_heads_lost(const dq_plan_heads_trial *t);
enum { DQ_PLAN_HEADS_UNSEEN = 2 };
/* Seconds per token, from a window run now. */
dq_status dq_plan_heads_pace(double *seconds, dq_plan_heads *p, dq_err *err);
/* Runs everything. After DQ_STOPPED and other resumable failures results are in out.journal; a plan
 * with `resume` continues to the same result, or to that of another share. */
dq_status dq_plan_heads_run(dq_plan_heads *p, dq_err *err);

/* Units of a KV cache, keys by run of layers and map or values by run, each with one of some
 * widths; a mix is a width per unit. Numbers alone. */

enum { DQ_PLAN_KV_UNITS = 3 * DQ_KV_RUNS };

/* Keys come first, by run and map, then values by run. */
typedef struct dq_plan_kv_space {
    int n_layers, together; /* layers of a run, of which the last may have fewer */
    int n_maps;             /* widths that keys of a layer can have: 2, or 1 */
    int n_runs, n_units;
    int bits[DQ_PLAN_WIDTHS], n_bits; /* ascending */
} dq_plan_kv_space;

typedef struct dq_plan_kv_unit {
    int first, layers; /* first .. first + layers - 1 */
    int map;           /* of keys, 0 or 1; -1: of both, or the only one */
    bool values;
} dq_plan_kv_unit;

/* The caller sets bits[]. DQ_USAGE: the mixes exceed a text of widths; more layers per run would
 * fit. */
dq_status dq_plan_kv_space_begin(dq_plan_kv_space *s, int n_layers, int together, int n_maps,
                                 dq_err *err);
dq_plan_kv_unit dq_plan_kv_space_unit(const dq_plan_kv_space *s, int unit);
double dq_plan_kv_space_mean(const dq_plan_kv_space *s, const int *width);
/* The text that dq_kv_widths_parse reads; every mix has exactly one. */
dq_status dq_plan_kv_space_text(char text[DQ_KV_LISTS], const dq_plan_kv_space *s, const int *width,
                                dq_err *err);

/* Gives each mix within the mean that is one step from width[n_units] to `take`, until that fails:
 * a unit one width up and, where that does not fit, another one down. */
typedef dq_status dq_plan_kv_space_take(void *arg, const int *width, dq_err *err);
dq_status dq_plan_kv_space_near(const dq_plan_kv_space *s, const int *width, double mean,
                                dq_plan_kv_space_take *take, void *arg, dq_err *err);

/* Interpolates loss[k] from both neighbours: ln of it is nearly linear in bits. Unless both are
 * positive, linearly. */
void dq_plan_kv_space_between(double *loss, const dq_plan_kv_space *s, int k);

/* Uniform widths of keys and values just below a mean, the closest pairs: 4:4 for 4; 5:4 and 4:5
 * for 4.5. Returns 1 or 2. */
int dq_plan_kv_space_uniform(int pair[2][2], double mean);

/* ---- KV ----
 * Which widths the codes of a KV cache get by layer and map for a mean of bits, measured on a
 * text.
 *
 * Windows of the text, one after the other, of which the second half is scored: the second and
 * third fifth of them search, the others decide. Every unit is coded alone at
 * each width, all others at 8 bits; widths go where they save most for their bits (plan_weights.h);
 * that mix and uniform widths of as many bits are measured whole; from the best of them, mixes a
 * step away are measured, those first whose units lose least, and the best one is taken as long as
 * that helps. The windows that no choice has seen tell what the plan loses, beside uniform widths.
 * A cache is compared with the same weights and an unquantized cache, as dq_eval does it.
 *
 * Where units alone would take more than DQ_PLAN_KV_ALONE tokens the plan is coarse: of more than
 * three widths every other one is measured alone, what lies between is on a line of ln KLD over
 * bits, and as many windows search as keep within these tokens. */

enum {
    DQ_PLAN_KV_WINDOWS = 60, /* without other words */
    /* above so many tokens of units measured alone, fewer widths are measured */
    DQ_PLAN_KV_ALONE = 1600000,
    DQ_PLAN_KV_TRIALS = 200,
    DQ_PLAN_KV_LEAST_WINDOWS = 5,
    DQ_PLAN_KV_ROUND = 32 /* mixes that are measured before one is taken */
};
enum { DQ_PLAN_KV_OTHERS = 8 }; /* width of the others where a unit is coded alone */

typedef struct dq_plan_kv_settings {
    dq_plan_caches_input in;
    double mean; /* bits of keys and values together */
    int bits[DQ_PLAN_WIDTHS], n_bits, together;
    dq_kv_config kv; /* per-channel codes and their windows; widths are not looked at */
    int64_t trials;  /* mixes measured whole in the search, at most */
} dq_plan_kv_settings;

/* A mix measured on the search windows. */
typedef struct dq_plan_kv_trial {
    int mix; /* of dq_plan_kv.caches */
    int width[DQ_PLAN_KV_UNITS];
    double bits, kld;
    double added;     /* what its units lose alone, together: the estimate of kld */
    const char *from; /* "units", "uniform", "trade" */
    bool taken;       /* the plan at that time */
} dq_plan_kv_trial;

typedef struct dq_plan_kv_baseline {
    int mix;
    double bits;
    dq_plan_beside beside;
} dq_plan_kv_baseline;

typedef struct dq_plan_kv {
    dq_plan_kv_settings set;
    dq_plan_kv_space space;
    dq_plan_caches caches; /* mixes, by their text */
    int *alone;            /* [units][bits] mixes; -1: not measured */
    dq_plan_numbers *unit; /* [units][bits] on the search windows, of those */
    dq_plan_item *item;
    dq_plan_kv_trial *trial; /* the last one taken is the plan */
    int n_trials, chosen;
    dq_plan_kv_baseline baseline[2];
    int n_baselines;
    dq_plan_found found;
    bool coarse; /* units alone are measured at every other width */
    size_t cap_trials;
    dq_arena *arena;
} dq_plan_kv;

/* Cuts the text and lists units. DQ_USAGE: an impossible mean, windows beyond the model's
 * positions, or per-token codes, whose widths are uniform; DQ_MISMATCH: too little text. */
dq_status dq_plan_kv_open(dq_plan_kv **out, const dq_plan_kv_settings *s, dq_err *err);
void dq_plan_kv_close(dq_plan_kv *p); /* NULL allowed */
/* Whether units are measured alone at the k-th width. */
bool dq_plan_kv_measures(const dq_plan_kv *p, int k);
/* Number of caches with one unit changed. */
int64_t dq_plan_kv_caches(const dq_plan_kv *p);
/* The most further caches that the search measures. */
int64_t dq_plan_kv_max_trials(const dq_plan_kv *p);
/* Seconds per token, from a window run now. */
dq_status dq_plan_kv_pace(double *seconds, dq_plan_kv *p, dq_err *err);
/* Runs everything; resumes as dq_plan_heads_run does, also with another mean. */
dq_status dq_plan_kv_run(dq_plan_kv *p, dq_err *err);
/* The plan in the form of --kv-bits. */
const char *dq_plan_kv_widths(const dq_plan_kv *p);

#endif
