/* Plans of a KV cache: widths, heads and gates, and what measures caches.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_CACHE_H
#define DQ_PLAN_CACHE_H

#include "engine/backend.h"
#include "eval/eval.h"
#include "kv/kv.h"
#include "model/model.h"
#include "plan/plan_weights.h"
#include "stat/stat.h"
#include "tasks/documents.h"

/* ---- Plan caches ----
 * What KV caches lose on windows of a text, beside the same weights and an unquantized cache, as
 * dq_eval measures it. What is measured is written down in a journal and not measured again. Plans
 * of a cache say which caches there are: each has a name, which its
 * plan can make a configuration of. A plan searches with some of the windows, side by side; no
 * choice sees the others, which decide.
 *
 * Ranks (base/ranks.h) search in step: they share what is measured, and each has all numbers
 * before the next choice. Rank 0 keeps the journal. */

enum { DQ_PLAN_CACHES_SWEEP = 16 }; /* caches that the unquantized one runs once for */

/* What is measured, and with what. */
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
    /* Ids done and to be done, which is an expectation; and before a stage. */
    void (*step)(void *arg, double done, double total, const char *what);
    void (*stage)(void *arg, const char *name);
    void *arg;
} dq_plan_caches_input;

/* What names stand for; `arg` goes to the functions. */
typedef struct dq_plan_caches_kind {
    const char *key; /* of a name in a line of the journal */
    dq_status (*config)(dq_kv_config *out, const void *arg, const char *name, dq_err *err);
    /* Whether the plan would write it so, so that it is one cache with what is measured. */
    bool (*is_name)(const void *arg, const char *name);
    /* Adds what numbers depend on besides the name, to the key of the journal. */
    void (*depend)(json_t *of, const void *arg);
    const void *arg;
} dq_plan_caches_kind;

typedef enum dq_plan_caches_part {
    DQ_PLAN_CACHES_SEARCH,
    DQ_PLAN_CACHES_UNSEEN
} dq_plan_caches_part;

/* A cache with what it loses in each window: KLD, and ln p of the text less than without it; nats an id. */
typedef struct dq_plan_cache {
    const char *name;
    int place;   /* in the order in which the search has looked for caches, from 1; 0: it has not */
    bool *known; /* [windows] */
    double *kld, *loss;
    bool *answered; /* [questions] */
    double *lack; /* -ln of the share that the right answer has of all choices' probability, nats */
} dq_plan_cache;

typedef struct dq_plan_caches_numbers {
    dq_mean kld, loss;
    double kld_skew, loss_skew;
} dq_plan_caches_numbers;

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
    /* [n_questions] as dq_repeats_order gives them; NULL: no two depend on each other */
    int64_t *question_place;
    int32_t *question_cluster;
    int64_t shortest, longest, question_ids; /* ids of contexts, and of all of them together */
    int64_t n_choices, n_single; /* choices of all questions, and those of them that are one id */
    int64_t n_truncated;         /* questions that lost the beginning of their context */
    char questions_sha256[65];   /* of their ids */
    /* private */
    size_t cap;
    dq_runner *runner;
    dq_plan_journal journal;
    dq_arena *arena;
} dq_plan_caches;

/* Ids that a cache takes on a part, without the unquantized one. */
int64_t dq_plan_caches_ids(const dq_plan_caches *c, dq_plan_caches_part part);

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
    DQ_PLAN_GATES_LEAST = 8, /* windows */
    DQ_PLAN_GATES_PART = 4   /* one window in so many is not fitted */
};

typedef struct dq_plan_gates_settings {
    const dq_model *model;
    const dq_tokenizer *tok;
    const dq_docs *docs;
    const char *text; /* its path, for messages */
    dq_backend *backend;
    int64_t ctx,
        windows; /* ids of a window, 0: DQ_PLAN_GATES_CTX, or half of the positions; windows at most */
    /* Windows done, of all. */
    void (*step)(void *arg, double done, double total, const char *what);
    void *arg;
} dq_plan_gates_settings;

typedef struct dq_plan_gates {
    dq_plan_gates_settings set;
    dq_windows win;
    int64_t fitted; /* windows 0 .. fitted - 1 */
    dq_kv_gates *gates;
    /* of the windows that were not fitted */
    double
        explained; /* share of the variance of ln(peak + floor) over all tokens of all layers and groups */
    dq_mean kept; /* share of kvzip's quarter, mean over windows */
    /* private */
    int n_lists;
    struct dq_plan_gates_sums *sums; /* [n_lists] */
    dq_arena *arena;
} dq_plan_gates;

/* Cuts the text. DQ_MISMATCH for too little of it, for windows that the model has no positions for, for a device that cannot. */
dq_status dq_plan_gates_open(dq_plan_gates **out, const dq_plan_gates_settings *s, dq_err *err);
/* By all ranks (base/ranks.h), which share the windows; rank 0 has what comes of it. */
dq_status dq_plan_gates_run(dq_plan_gates *p, dq_err *err);
void dq_plan_gates_close(dq_plan_gates *p); /* NULL allowed */

/* The fit alone: normal equations of n features, of which the last is 1. */
typedef struct dq_plan_gates_sums {
    int64_t n;
    double *squares; /* [n][n], the lower triangle */
    double *by;      /* [n] sums of feature times target */
} dq_plan_gates_sums;
/* Adds rows f[rows][n] with their targets y[rows]; the result does not depend on the number of threads. */
void dq_plan_gates_add(dq_plan_gates_sums *s, const double *f, const double *y, int64_t rows);
/* weight[n] that minimize the sum of squared errors plus a thousandth of each feature's own variance. DQ_DAMAGED where no
 * token was added or sums are not finite. */
dq_status dq_plan_gates_solve(double *weight, const dq_plan_gates_sums *s, dq_err *err);

/* ---- Heads order ----
 * Groups of KV heads in order of need, and how many of them may share what is kept. Numbers and
 * texts alone. */

/* As dq_kv_heads_parse reads it: the first `sharing` of order[n] stand before the /. DQ_MISMATCH for more than a text of heads
 * holds. */
dq_status dq_plan_heads_order_text(char text[DQ_KV_HEADS_TEXT], const dq_kv_heads_group *order,
                                   int n, int sharing, dq_err *err);
/* Tokens a group with which n - 1 groups keep all of a context of so many, and the last one only `safe` of them; where division
 * leaves some, others lack one each. */
int64_t dq_plan_heads_order_whole(int64_t context, int64_t safe, int n);
/* Of n groups that share what is kept of a context, as many as can be whole, at least 1: fewer that share are the same cache, as the
 * rest goes to the others in their order. kept: tokens of each group on average. */
int dq_plan_heads_order_least(int64_t context, int64_t safe, int64_t kept, int n);
/* least to n, or at most `tries` (2 or more) numbers from least to n that grow by a factor, ascending, in out[tries]; how many. */
int dq_plan_heads_order_numbers(int *out, int least, int n, int tries);
/* order[n] = 0 .. n - 1 by what each is missed, most first; equal ones as they were. */
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

/* A number of groups that share, with what that loses on the windows that find, and on questions. */
typedef struct dq_plan_heads_trial {
    int sharing, cache; /* of dq_plan_heads.caches */
    double kld, lack;   /* 0 where there are no such windows, or no questions */
} dq_plan_heads_trial;

typedef struct dq_plan_heads {
    dq_plan_heads_settings set;
    dq_plan_caches caches;
    dq_kv_heads_group *group; /* [n_groups] layer by layer */
    int n_groups;
    /* tokens of a window's context; and what a group keeps on average where all but one are whole, of windows and questions */
    int64_t context, whole, question_whole;
    int least; /* groups that share in the first trial: see dq_plan_heads_order_least */
    /* [n_groups] caches in which each is cut alone, what that loses on the windows that find, and groups in order of need */
    int *alone, *question_alone;
    dq_plan_caches_numbers *missed;
    dq_mean *lack; /* the same of questions */
    int *order;
    dq_plan_heads_trial *trial; /* [n_trials] */
    int n_trials, chosen;       /* -1: nothing was searched */
    char text[DQ_KV_HEADS_TEXT];
    /* on the unseen windows: of the plan, of the same share in every group, and of the first less the second; where all groups
     * share these two are one */
    bool all_share;
    dq_plan_caches_numbers found, uniform, difference;
    dq_interval kld, loss; /* of the difference */
    double outside;        /* of each of these: 5 % for both */
    /* private */
    dq_arena *arena;
} dq_plan_heads;

/* Cuts the text and lists groups. DQ_MISMATCH for a model with one group or too many, a window that the model has no positions
 * for, too little text, a share or windows with which nothing is left to share, a policy that the model or the device does not
 * have, questions that no cache changes the answers to. */
dq_status dq_plan_heads_open(dq_plan_heads **out, const dq_plan_heads_settings *s, dq_err *err);
void dq_plan_heads_close(dq_plan_heads *p); /* NULL allowed */
/* Numbers of groups that are tried; caches on the unseen windows, at most. */
int dq_plan_heads_numbers(const dq_plan_heads *p);
/* What a choice goes by. */
double dq_plan_heads_lost(const dq_plan_heads_trial *t);
enum { DQ_PLAN_HEADS_UNSEEN = 2 };
/* Seconds that a token takes, by a window that is run now. */
dq_status dq_plan_heads_pace(double *seconds, dq_plan_heads *p, dq_err *err);
/* All of it. After DQ_STOPPED and other failures that leave something, what was found is in out.journal, and a plan with
 * `resume` goes on from there to the same result, or to that of another share. */
dq_status dq_plan_heads_run(dq_plan_heads *p, dq_err *err);
/* After a failure of what is made of a plan, too: says what is kept. Returns err->code. */
dq_status dq_plan_heads_failed(dq_plan_heads *p, dq_err *err);
/* Drops the journal: what it holds is written elsewhere. */
void dq_plan_heads_done(dq_plan_heads *p);

/* ---- KV space ----
 * Which widths the codes of a KV cache can have: units, which are keys of a run of layers and a
 * map, or values of a run of layers, each with one of some widths. A mix is a width for each unit.
 * Numbers alone. */

enum { DQ_PLAN_KV_UNITS = 3 * DQ_KV_RUNS };

/* Units are keys by run and map, then values by run. */
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

/* bits[] of the space are there. DQ_USAGE where a text of widths may not hold the mixes: for more layers together it does. */
dq_status dq_plan_kv_space_begin(dq_plan_kv_space *s, int n_layers, int together, int n_maps,
                                 dq_err *err);
dq_plan_kv_unit dq_plan_kv_space_unit(const dq_plan_kv_space *s, int unit);
/* Mean over keys and values of width[n_units]. */
double dq_plan_kv_space_mean(const dq_plan_kv_space *s, const int *width);
/* As dq_kv_widths_parse reads width[n_units]; every mix has one text. */
dq_status dq_plan_kv_space_text(char text[DQ_KV_LISTS], const dq_plan_kv_space *s, const int *width,
                                dq_err *err);

/* Mixes that are a step away from width[n_units] and within the mean: a unit a width up, and where that does not fit,
 * another one down with it, so that it does. Gives each to `take` until that fails. */
typedef dq_status dq_plan_kv_space_take(void *arg, const int *width, dq_err *err);
dq_status dq_plan_kv_space_near(const dq_plan_kv_space *s, const int *width, double mean,
                                dq_plan_kv_space_take *take, void *arg, dq_err *err);

/* loss[k] of the k-th width from those of its two neighbours: ln of it is nearly a line over bits. Without two that lose something,
 * on the line between them. */
void dq_plan_kv_space_between(double *loss, const dq_plan_kv_space *s, int k);

/* Widths of all keys and of all values that come next to a mean from below, the nearest to each other of those: 4:4 for 4, 5:4
 * and 4:5 for 4.5. Their number, 1 or 2. */
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
    /* tokens of all caches of units alone, above which fewer are measured */
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

/* A mix measured whole on the search windows. */
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
    dq_plan_caches_numbers its, difference; /* on the unseen windows; of the plan less its own */
    dq_interval kld, loss;                  /* of the difference */
} dq_plan_kv_baseline;

typedef struct dq_plan_kv {
    dq_plan_kv_settings set;
    dq_plan_kv_space space;
    dq_plan_caches caches;        /* mixes, by their text */
    int *alone;                   /* [units][bits] mixes; -1: not measured */
    dq_plan_caches_numbers *unit; /* [units][bits] on the search windows, of those */
    dq_plan_item *item;
    dq_plan_kv_trial *trial; /* the last one taken is the plan */
    int n_trials, chosen;
    dq_plan_kv_baseline baseline[2];
    int n_baselines;
    double outside;               /* of each interval of a difference: 5 % for all together */
    dq_plan_caches_numbers found; /* of the plan on the unseen windows */
    /* private */
    bool coarse; /* units alone are measured at every other width */
    size_t cap_trials;
    dq_arena *arena;
} dq_plan_kv;

/* Cuts the text and lists units. DQ_USAGE for a mean that the widths cannot have, a window that the model has no positions for,
 * per-token codes, whose widths are the same everywhere; DQ_MISMATCH for too little text. */
dq_status dq_plan_kv_open(dq_plan_kv **out, const dq_plan_kv_settings *s, dq_err *err);
void dq_plan_kv_close(dq_plan_kv *p); /* NULL allowed */
/* Whether the k-th width is measured of units alone. */
bool dq_plan_kv_measures(const dq_plan_kv *p, int k);
/* Caches of units alone. */
int64_t dq_plan_kv_caches(const dq_plan_kv *p);
/* Caches in the search beside these, at most. */
int64_t dq_plan_kv_max_trials(const dq_plan_kv *p);
/* Seconds that a token takes, by a window that is run now. */
dq_status dq_plan_kv_pace(double *seconds, dq_plan_kv *p, dq_err *err);
/* All of it. After DQ_STOPPED and other failures that leave something, what was found is in out.journal, and a plan with
 * `resume` goes on from there to the same result, or to that of another mean. */
dq_status dq_plan_kv_run(dq_plan_kv *p, dq_err *err);
/* After a failure of what is made of a plan, too: says what is kept. Returns err->code. */
dq_status dq_plan_kv_failed(dq_plan_kv *p, dq_err *err);
/* Drops the journal: what it holds is written elsewhere. */
void dq_plan_kv_done(dq_plan_kv *p);
/* What the plan is, as --kv-bits takes it. */
const char *dq_plan_kv_widths(const dq_plan_kv *p);

#endif
