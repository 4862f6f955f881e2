/* plan_caches: what KV caches lose on windows of a text, beside the same weights and an unquantized cache, as dq_eval measures it.
 * What is measured is written down in a journal and not measured again. Plans of a cache (plan_kv.h, plan_heads.h) say which
 * caches there are: each has a name, which its plan can make a configuration of. A plan searches with some of the windows,
 * side by side; no choice sees the others, which decide.
 *
 * Ranks (base/ranks.h) search in step: they share what is measured, and each has all numbers before the next choice. Rank 0
 * keeps the journal.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_CACHES_H
#define DQ_PLAN_CACHES_H

#include "eval/eval.h"
#include "kv/kv.h"
#include "plan/plan_journal.h"

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

/* in->ctx where it is 0: 2048 tokens, or all positions of the model. DQ_MISMATCH for windows that it has no positions for. */
dq_status dq_plan_caches_fit(dq_plan_caches_input *in, dq_err *err);
/* Cuts the text, and reads questions; `in` and the arena outlive it. Of too little text win.n is 0, or too small: the caller says
 * what it needs. */
dq_status dq_plan_caches_cut(dq_plan_caches *c, const dq_plan_caches_input *in,
                             const dq_plan_caches_kind *kind, dq_arena *a, dq_err *err);
/* Windows begin .. end - 1 search. DQ_MISMATCH where the others lie in one document of several: intervals are between these. */
dq_status dq_plan_caches_split(dq_plan_caches *c, int64_t begin, int64_t end, dq_err *err);
/* Opens the journal, with what an earlier run has measured, and the runner. By all ranks; DQ_MISMATCH where they have other inputs or
 * settings. */
dq_status dq_plan_caches_begin(dq_plan_caches *c, dq_err *err);
void dq_plan_caches_end(dq_plan_caches *c); /* {0} allowed */
/* The cache of a name, made where there is none; -1: see err. */
int dq_plan_caches_find(dq_plan_caches *c, const char *name, dq_err *err);
/* The cache that a line of the journal names; -1: see err. */
int dq_plan_caches_of_line(dq_plan_caches *c, const json_t *line, dq_err *err);
/* What a name stands for on this model. DQ_MISMATCH: the model, or the device, does not have it. */
dq_status dq_plan_caches_spec(dq_kv_spec *out, const dq_plan_caches *c, const char *name,
                              dq_err *err);
/* Measures cache[n] on the windows of a part, where that is not done yet. What is finished stays after DQ_STOPPED. By all ranks. */
dq_status dq_plan_caches_run(dq_plan_caches *c, const int *cache, int n, dq_plan_caches_part part,
                             const char *what, dq_err *err);
/* Seconds that an id takes: of a window in this cache and in the unquantized one, run now; of several ranks as if each took as
 * long. By one of them. */
dq_status dq_plan_caches_pace(double *seconds, dq_plan_caches *c, int cache, dq_err *err);
/* Of a cache on a part, or less what another one has there (less: -1: none). */
dq_status dq_plan_caches_numbers_of(dq_plan_caches_numbers *out, const dq_plan_caches *c, int cache,
                                    int less, dq_plan_caches_part part, dq_err *err);
/* Ids that a cache takes on a part, without the unquantized one. */
int64_t dq_plan_caches_ids(const dq_plan_caches *c, dq_plan_caches_part part);
/* From here on so many caches on a part are expected, and what comes after it. */
void dq_plan_caches_expect(dq_plan_caches *c, int64_t search, int64_t unseen);
/* Tells who watches the name of what begins. */
void dq_plan_caches_stage(const dq_plan_caches *c, const char *name);

/* For plan_caches_run.c and plan_caches_ask.c: a run of dq_eval of so many tokens, and its progress, whose argument that is. */
typedef struct dq_plan_caches_work {
    dq_plan_caches *c;
    double ids;
    const char *what;
} dq_plan_caches_work;
void dq_plan_caches_progress(void *arg, double share, const char *note);
/* The cache as a row of the only model and source. */
dq_status dq_plan_caches_add(dq_eval *e, const dq_plan_caches *c, int cache, dq_err *err);
/* A result as a line of the journal, whose value it takes: written down on rank 0, told to it by others. */
dq_status dq_plan_caches_tell(dq_plan_caches *c, json_t *line, dq_err *err);
/* What others tell so. On rank 0. */
dq_status dq_plan_caches_hear(dq_plan_caches *c, const char *text, size_t len, dq_err *err);

#endif
