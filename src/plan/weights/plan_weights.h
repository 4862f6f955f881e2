/* plan_weights: which bits each tensor of a model gets under a budget, measured.
 *
 * A text is cut into three parts (calib_text.h). On the first, weights are calibrated; on the second, each tensor is measured
 * alone (plan_probe.h), widths are allocated (plan_alloc.h), whole models are quantized and measured
 * (plan_search.h). The third, which none of that has seen, decides: a budget of quality is met when the upper end of the
 * interval there is within it (plan_decide.h). Looks are counted over a run and those that resume it, whatever their budgets.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_WEIGHTS_H
#define DQ_PLAN_WEIGHTS_H

#include "plan/plan_decide.h"
#include "plan/weights/plan_probe.h"
#include "plan/weights/plan_work.h"
#include "quantize/quantize.h"

typedef enum dq_plan_goal {
    DQ_PLAN_KLD,  /* nats per id against the source, at most */
    DQ_PLAN_PPL,  /* perplexity over that of the source, at most */
    DQ_PLAN_BPW,  /* bits per weight of the packed tensors, scales included, at most */
    DQ_PLAN_SIZE, /* bytes of the container, at most */
    DQ_PLAN_GOALS
} dq_plan_goal;
extern const char *const dq_plan_goal_name[DQ_PLAN_GOALS]; /* "kld", ... */
typedef struct dq_plan_budget {
    dq_plan_goal goal;
    double value;
} dq_plan_budget;
/* "kld=0.01", "ppl=1.005", "bpw=4.2", "size=1.5GiB" (B, KiB, MiB, GiB, kB, MB, GB). DQ_USAGE. */
dq_status dq_plan_weights_budget_parse(dq_plan_budget *out, const char *text, dq_err *err);

/* Without other words: whole models, and sequences that are searched with. */
enum { DQ_PLAN_TRIALS = 8, DQ_PLAN_SEQUENCES = 64 };
enum { DQ_PLAN_PROBE_TOKENS = 4096 }; /* of the search text: what a tensor alone is measured on */
/* With fewer documents an interval holds less than it says: of lognormal ones with sigma 0.5 the upper end of 95 % is below the
 * truth in 5.5 of 100 samples of 5 documents, in 4.9 of 10, in 4.2 of 20; nominally in 2.5 (tests/unit/plan). */
enum { DQ_PLAN_FEW_CLUSTERS = 20 };
enum { DQ_PLAN_MAX_TRIALS = 40, DQ_PLAN_SIZE_TRIES = 4 };
enum { DQ_PLAN_TRIAL_BYTES = 1024 }; /* of a recipe, for what it tells of a trial, at most */

struct dq_plan_weights;
typedef struct dq_plan_weights_settings {
    const char *model, *calib;
    const char *unseen; /* file of the third part; NULL: a quarter of calib */
    const char *out;    /* beside which state, scratch and trials lie; NULL: nothing is run */
    dq_plan_budget budget;
    int bits[DQ_PLAN_WIDTHS], n_bits; /* that tensors may have, ascending */
    bool ends;                        /* embedding and head too */
    dq_quantize_settings set;         /* of weights but for `bits`, rules and method */
    const dq_calibrate_rule *rule;
    int64_t tokens, ctx;   /* of the first part; 0: the defaults of calib_text.h */
    int64_t search_tokens; /* ids of the second and of the third part at most; 0: 64 sequences */
    int trials;            /* whole models in the search at most */
    dq_backend *backend;
    bool resume, force; /* go on from a journal, or replace it */
    /* Of the whole run; the total is an expectation, which changes: plan_work.h. */
    void (*step)(void *arg, double done, double total, const char *what);
    void (*stage)(void *arg, const char *name); /* before a stage */
    /* What the recipe tells of the plan as it stands, with p->chosen; a new reference. It is part of the file's size. */
    json_t *(*told)(void *arg, const struct dq_plan_weights *p);
    void *arg;
} dq_plan_weights_settings;

typedef enum dq_plan_text {
    DQ_PLAN_CALIB,
    DQ_PLAN_SEARCH,
    DQ_PLAN_UNSEEN,
    DQ_PLAN_TEXTS
} dq_plan_text;
extern const char *const dq_plan_text_name[DQ_PLAN_TEXTS]; /* "calibration", "search", "unseen" */

/* A difference to the source on a part of the text. */
typedef struct dq_plan_numbers {
    dq_plan_sums sums;
    dq_mean kld, loss;          /* nats per id; loss: ln of the ratio of perplexities */
    double kld_skew, loss_skew; /* dq_plan_decide_skew */
} dq_plan_numbers;

/* A whole model, quantized and measured; file_bytes without what a recipe tells of the plan. */
typedef struct dq_plan_trial {
    int *choice;   /* [n_tensors] options */
    int64_t point; /* of the curve; -1: none */
    int uniform;   /* width of all tensors that may have it; 0: mixed */
    double bits_per_weight, predicted;
    int64_t packed_bytes, file_bytes;
    char weights_sha256[65];
    dq_plan_numbers on[DQ_PLAN_TEXTS]; /* of the search and of the unseen text */
    int look;             /* at the unseen numbers, over all budgets, from 1; 0: none */
    bool meets;           /* what the look said */
    dq_interval interval; /* of what the budget is about, at that look */
} dq_plan_trial;

/* The plan beside a uniform width on the unseen text. */
typedef struct dq_plan_baseline {
    int64_t trial;
    dq_mean difference; /* KLD of the plan less its own */
    double skew;
    dq_interval interval;
    bool beyond; /* a budget of bits or bytes */
} dq_plan_baseline;

typedef struct dq_plan_weights {
    dq_plan_weights_settings set;
    dq_model *model;
    dq_calib_text text[DQ_PLAN_TEXTS];
    dq_calib_text probe_text; /* the first sequences of the search text */
    unsigned part[DQ_PLAN_TEXTS];
    int64_t clusters[DQ_PLAN_TEXTS]; /* units that an error is over, copies once */
    int64_t n_seen[DQ_PLAN_TEXTS];   /* sequences that a part before has, too; the most of one */
    dq_plan_tensor *tensor;
    int64_t n_tensors, packed_params, other_bytes; /* of the container beside packed tensors */
    int64_t source_bytes;
    dq_plan_item *item;
    dq_plan_curve curve; /* n 0 until sensitivities are known */
    dq_plan_trial trial[DQ_PLAN_MAX_TRIALS + DQ_PLAN_MAX_LOOK + 2 * DQ_PLAN_SIZE_TRIES + 4];
    int64_t n_trials;
    int64_t chosen;  /* trial; -1: none yet */
    bool met;        /* the budget */
    double capacity; /* bytes of packed tensors, of a budget of size */
    int64_t
        container_bytes; /* of the file that dq_plan_weights_settings_of gives, to the byte; 0: not known yet */
    int n_look;    /* for this budget */
    int n_earlier; /* for others before, of the runs that this one resumes */
    dq_plan_baseline baseline[2];
    int n_baselines;
    int64_t
        mix; /* trial that the search text found worse than the uniform width chosen; -1: none */
    int64_t n_resumed; /* results taken from an earlier run */
    dq_plan_work work;
    struct dq_plan_state *state; /* private */
    dq_arena *arena;
} dq_plan_weights;

/* Opens model and texts and says what each tensor would cost. DQ_USAGE for budgets that no widths can meet, DQ_MISMATCH for a
 * model without packable tensors, for a container, and for too little text. */
dq_status dq_plan_weights_open(dq_plan_weights **out, const dq_plan_weights_settings *s,
                               dq_err *err);
void dq_plan_weights_close(dq_plan_weights *p); /* NULL allowed */
/* What sensitivities take, with the model before rounding on all texts, and a whole model, in the measure of plan_work.h; whole
 * models on an average. */
double dq_plan_weights_flop(const dq_plan_weights *p);
int dq_plan_weights_models(const dq_plan_weights *p);
double dq_plan_weights_trial_flop(const dq_plan_weights *p);
double dq_plan_weights_quantize_flop(const dq_plan_weights *p); /* of that, without measuring it */
/* All of it, by all ranks (base/ranks.h), to the same numbers on each; rank 0 alone has files. After DQ_STOPPED, and after other failures, what was found is in out.journal, and a plan with `resume` goes on
 * from there to the same result, with any number of ranks; the failure says so. */
dq_status dq_plan_weights_run(dq_plan_weights *p, dq_err *err);
/* After a failure of what is made of a plan, too: says what is kept. Returns err->code. */
dq_status dq_plan_weights_failed(dq_plan_weights *p, dq_err *err);
/* Drops the journal: what it holds is written elsewhere. */
void dq_plan_weights_done(dq_plan_weights *p);
/* Rules of a recipe that give these options; a new reference. */
json_t *dq_plan_weights_rules(const dq_plan_weights *p, const int *choice);
/* Everything that is planned at one width. */
dq_quantize_settings dq_plan_weights_uniform(const dq_plan_weights *p, int bits);
/* The width that all tensors have which may have it; 0: mixed. */
int dq_plan_weights_uniform_of(const dq_plan_weights *p, const int *choice);
/* Different choices of widths, as a number that may be beyond whole ones. */
double dq_plan_weights_choices(const dq_plan_weights *p);
/* Settings that the recipe has with a trial chosen; `rules` and `plan` are the caller's, set.method is not set. */
dq_quantize_settings dq_plan_weights_settings_of(const dq_plan_weights *p, int64_t trial,
                                                 const json_t *rules, const json_t *plan);
/* Bytes that a budget of size leaves for packed tensors. */
double dq_plan_weights_packed_budget(const dq_plan_weights *p);
/* Bytes that a container may take for what its recipe says of the plan: about what it is, for a first try. */
double dq_plan_weights_recipe_bytes(const dq_plan_weights *p);
double dq_plan_weights_bits_per_weight(const dq_plan_weights *p, double packed_bytes);

#endif
