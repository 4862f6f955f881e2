/* Plans of weights: choosing, measuring, the search for whole models.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_WEIGHTS_H
#define DQ_PLAN_WEIGHTS_H

#include "base/base.h"
#include "base/json.h"
#include "calibrate/calibrate.h"
#include "quantize/quantize.h"
#include "stat/stat.h"
#include "work/work.h"

/* ---- Plan alloc ----
 * Which width each tensor gets: the least sum of losses for a sum of costs, where both add up over
 * tensors. Numbers alone, of any unit.
 *
 * Only options on the lower convex hull of a tensor's (cost, loss) can be part of a best choice
 * for some price of cost. The curve begins with the cheapest option of each tensor and goes on by
 * the step that saves most loss for its cost, so that each of its points is the best choice for
 * its cost (Everett 1963, the Lagrangian; for convex hulls the steps are greedy). */

enum { DQ_PLAN_WIDTHS = 8 };

/* n >= 1 options, costs ascending. An option that loses more than a cheaper one counts as the
 * cheaper one: more bits never hurt, and measurements have errors. */
typedef struct dq_plan_item {
    int n;
    double cost[DQ_PLAN_WIDTHS], loss[DQ_PLAN_WIDTHS];
} dq_plan_item;

typedef struct dq_plan_step {
    int64_t item;
    int to; /* its option from here on */
} dq_plan_step;

/* At point k of 0 .. n - 1 the first k steps are done; the last one has every largest option. */
typedef struct dq_plan_curve {
    const dq_plan_item *item; /* [n_items], the caller's */
    int64_t n_items, n;
    dq_plan_step *step;  /* [n - 1] */
    double *cost, *loss; /* [n] sums */
} dq_plan_curve;

/* Memory in the arena. DQ_RESOURCE. */
dq_status dq_plan_alloc_curve(dq_plan_curve *out, const dq_plan_item *item, int64_t n, dq_arena *a,
                              dq_err *err);
/* choice[n_items]: the options at a point. */
void dq_plan_alloc_at(int *choice, const dq_plan_curve *c, int64_t point);
/* The dearest point that costs at most `cost`, -1: none; the cheapest that loses at most `loss`, n:
 * none. */
int64_t dq_plan_alloc_by_cost(const dq_plan_curve *c, double cost);
int64_t dq_plan_alloc_by_loss(const dq_plan_curve *c, double loss);
/* Spends the rest of a budget on later steps, in their order, as far as they fit. */
void dq_plan_alloc_fill(int *choice, const dq_plan_curve *c, int64_t point, double cost);
double dq_plan_alloc_cost(const dq_plan_curve *c, const int *choice);
double dq_plan_alloc_loss(const dq_plan_curve *c, const int *choice);

/* ---- Numbers ----
 * What a variant of a model (other weights, another cache) loses on a text, by cluster, the unit
 * of the text that a sequence is of: ids of one depend on each other. */

typedef struct dq_plan_sums {
    int64_t n;          /* clusters */
    const int64_t *ids; /* [n] that are scored */
    /* [n] KLD against the source, ln p of the source less that of the variant, nats */
    double *kld, *loss;
} dq_plan_sums;

/* A mean per id, and the skewness over clusters of sums minus the mean times ids; 0 where all are
 * alike. */
typedef struct dq_plan_mean {
    dq_mean of;
    double skew;
} dq_plan_mean;
/* DQ_RESOURCE. */
dq_status dq_plan_mean_of(dq_plan_mean *out, const double *sums, const int64_t *ids, int64_t n,
                          dq_err *err);
/* Where it lies, nominally (dq_interval_t_skewed); of a quantity that is not negative, as a KLD. */
dq_interval dq_plan_interval(dq_plan_mean m, double outside);
dq_interval dq_plan_interval_kld(dq_plan_mean m, double outside);

/* Nats per id; loss: ln of the ratio of perplexities. */
typedef struct dq_plan_numbers {
    dq_plan_mean kld, loss;
} dq_plan_numbers;

/* What a variant loses, or loses more than another, and where that lies. */
typedef struct dq_plan_found {
    dq_plan_numbers of;
    dq_interval kld, loss;
    double outside; /* of each: 5 %, of differences for all together */
} dq_plan_found;
/* differs: the sums are of a difference. DQ_RESOURCE. */
dq_status dq_plan_found_of(dq_plan_found *out, const dq_plan_sums *s, bool differs, double outside,
                           dq_err *err);

/* ---- Decide ----
 * Which model is looked at next on the unseen text, how sure a look must be, when a budget is met,
 * and when a uniform width is taken. Numbers go in, decisions come out.
 *
 * The search text proposes: the uniform width that keeps the budget there, if one is no dearer
 * than the cheapest point of the curve that does; then that point; then points further up, each of
 * which is predicted to lose a tenth less; the last look is the dearest point. The unseen text
 * only says yes or no. Look j leaves 0.05 / 2^(j - 1) outside of its interval, half of it above,
 * so that the chances to accept a model that misses add up to 5 % over any number of looks. */

/* Looks for one budget; and in all, beyond which no interval is given. */
enum { DQ_PLAN_MAX_LOOK = 8, DQ_PLAN_LAST_LOOK = 24 };

/* Probability outside the interval of a look (from 1), and of each of n differences shown with it:
 * all looks together keep 5 %, wherever the plan stops. */
double dq_plan_decide_outside(int look);
double dq_plan_decide_outside_of(int look, int n);
/* The looks of one budget of quality. */
typedef struct dq_plan_decider {
    const dq_plan_curve *curve;
    int max;       /* looks */
    double limit;  /* of the upper end */
    int64_t point; /* the cheapest that keeps the budget on the search text; -1: none */
    bool uniform;  /* a uniform width goes before it */
    int n;
    bool met, at_uniform;
} dq_plan_decider;

typedef enum dq_plan_turn {
    DQ_PLAN_TURN_UNIFORM, /* look at the uniform width */
    DQ_PLAN_TURN_POINT,   /* look at l->point */
    DQ_PLAN_TURN_END      /* l->met says how it went */
} dq_plan_turn;
/* Moves on, and sets l->point for the next look. */
dq_plan_turn dq_plan_decide_turn(dq_plan_decider *l);
/* Takes the result of a look and its number. */
dq_interval dq_plan_decide_look(dq_plan_decider *l, dq_plan_mean found, int look);

/* A model that competes for a budget of size, with its KLD on the search text. */
typedef struct dq_plan_offer {
    double excess; /* bytes beyond the budget; above 0: does not fit */
    double kld;
} dq_plan_offer;
/* Whether the uniform width is taken: it fits, and is closer on the search text or alone fits. */
bool dq_plan_decide_uniform(dq_plan_offer mix, dq_plan_offer uniform);

/* Progress of a plan over all stages, in f32 multiplications and additions; one of f64 counts as
 * DQ_CALIBRATE_F64_FLOP. The total is an estimate: nobody knows how many models a search takes. */

typedef struct dq_plan_work {
    void (*step)(void *arg, double done, double total, const char *what); /* NULL: nobody is told */
    void *arg;
    double done, total; /* of this run */
} dq_plan_work;

void dq_plan_work_add(dq_plan_work *w, double flop, const char *what);
/* Sets the estimate of the rest. */
void dq_plan_work_expect(dq_plan_work *w, double flop);

/* Turns dq_quantize_progress into a share of its estimate. */
typedef struct dq_plan_work_share {
    dq_plan_work *work;
    double flop, told; /* of all of it; of what is done */
} dq_plan_work_share;
void dq_plan_work_step(void *share, const dq_pace *pace, const char *what);

/* ---- Reference ----
 * A text with the source model's answers on it, and how far other weights are from them.
 * Of ranks (work/ranks.h) each runs chunks of its own (calibrate.h), and all have the sums.
 *
 * What is scored is the second half of every sequence, as evaluation in chunks does. */

/* The first scored token of a sequence of n, which has a row before it; n: none. */
int64_t dq_plan_reference_first(int64_t n);

/* Per cluster of the text, in the arena. NULL: DQ_RESOURCE. */
int64_t *dq_plan_reference_scored(const dq_calib_text *t, dq_arena *a, dq_err *err);

int64_t dq_plan_reference_bytes(const dq_calib_text *text, const dq_model *m); /* of the file */

/* ---- Probe ----
 * How far a model goes from itself when one tensor alone is rounded, for each tensor and width.
 *
 * A tensor is rounded at each width, by the method that the plan is for and with the Hessian of
 * its inputs in the model before rounding; an embedding that is no head, to the nearest code. What
 * it costs is measured at one width. At the others it goes by the loss of the rounding, the
 * output's squared error: for small errors KLD is a quadratic form of them. A tensor of layer l
 * costs the layers from l on for the text it is measured on, whose stream at layer l is kept;
 * memory is that of one layer's Hessians, and of a head. */

typedef enum dq_plan_slot {
    DQ_PLAN_Q,
    DQ_PLAN_K,
    DQ_PLAN_V,
    DQ_PLAN_OUT,
    DQ_PLAN_GATE,
    DQ_PLAN_UP,
    DQ_PLAN_DOWN_PROJ,
    DQ_PLAN_EMBED,
    DQ_PLAN_HEAD
} dq_plan_slot;

/* A tensor to pack, its possible widths, and the cost of each. */
typedef struct dq_plan_tensor {
    const char *name;
    dq_plan_slot slot;
    int layer; /* 0 for embedding and head */
    int64_t rows, cols;
    dq_quant_spec spec; /* but for its width */
    int n;
    int bits[DQ_PLAN_WIDTHS];      /* ascending */
    int64_t bytes[DQ_PLAN_WIDTHS]; /* with scales */
    double loss[DQ_PLAN_WIDTHS];   /* squared error of the output over its square, where known */
    dq_mean kld;                   /* nats at bits[measured], where known */
    int measured;
    bool known;
} dq_plan_tensor;

/* KLD at a width, scaled by the loss; so is its error. */
dq_mean dq_plan_probe_kld(const dq_plan_tensor *t, int option);

/* ---- Weights ----
 * Which bits each tensor of a model gets under a budget, measured.
 *
 * A text is cut into three parts (calibrate.h). On the first, weights are calibrated; on the
 * second, each tensor is measured alone, widths are allocated ("Alloc"), whole
 * models are quantized and measured. The third, which none of that has seen,
 * decides: a budget of quality is met when the upper end of the interval there is within it
 * ("Decide"). Looks are counted over a run and those that resume it, whatever their budgets. */

typedef enum dq_plan_goal {
    DQ_PLAN_KLD,  /* nats per id against the source, at most */
    DQ_PLAN_PPL,  /* perplexity over that of the source, at most */
    DQ_PLAN_BPW,  /* bits per weight of the packed tensors, scales included, at most */
    DQ_PLAN_SIZE, /* bytes of the container, at most */
    DQ_PLAN_GOALS
} dq_plan_goal;
typedef struct dq_plan_budget {
    dq_plan_goal goal;
    double value;
    const char *text; /* the caller's */
} dq_plan_budget;
/* "kld=0.01", "ppl=1.005", "bpw=4.2", "size=1.5GiB" (B, KiB, MiB, GiB, kB, MB, GB). DQ_USAGE. */
dq_status dq_plan_weights_budget_parse(dq_plan_budget *out, const char *text, dq_err *err);

/* Defaults for whole models and for sequences of the search. */
enum { DQ_PLAN_TRIALS = 8, DQ_PLAN_SEQUENCES = 64 };
/* With fewer documents an interval holds less than it says: of lognormal ones with sigma 0.5 the
 * upper end of 95 % is below the truth in 5.5 of 100 samples of 5 documents, in 4.9 of 10, in 4.2
 * of 20; nominally in 2.5 (tests/unit/plan). */
enum { DQ_PLAN_FEW_CLUSTERS = 20 };
enum { DQ_PLAN_MAX_TRIALS = 40, DQ_PLAN_SIZE_TRIES = 4 };
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
    int64_t tokens, ctx;   /* of the first part; 0: the defaults of calibrate.h */
    int64_t search_tokens; /* ids of the second and of the third part at most; 0: 64 sequences */
    int trials;            /* whole models in the search at most */
    dq_backend *backend;
    bool resume, force; /* go on from a journal, or replace it */
    /* The total is an estimate and changes. */
    void (*step)(void *arg, double done, double total, const char *what);
    void (*stage)(void *arg, const char *name); /* before a stage */
    /* The plan's part of the recipe with p->chosen, a new reference; it counts in the file's
     * size. */
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

/* A quantized and measured model; file_bytes excludes the plan's part of the recipe. */
typedef struct dq_plan_trial {
    int *choice;   /* [n_tensors] options */
    int64_t point; /* of the curve; -1: none */
    int uniform;   /* width of all tensors that may have it; 0: mixed */
    double bits_per_weight, predicted;
    int64_t packed_bytes, file_bytes;
    char weights_sha256[65];
    /* of the search and of the unseen text */
    dq_plan_sums sums[DQ_PLAN_TEXTS];
    dq_plan_numbers on[DQ_PLAN_TEXTS];
    int look;             /* at the unseen numbers, over all budgets, from 1; 0: none */
    bool meets;           /* what the look said */
    dq_interval interval; /* of what the budget is about, at that look */
} dq_plan_trial;

/* The plan compared with a uniform width on the unseen text. */
typedef struct dq_plan_baseline {
    int64_t trial;
    dq_plan_found less; /* the plan less it */
    bool beyond;        /* a budget of bits or bytes */
} dq_plan_baseline;

typedef struct dq_plan_weights {
    dq_plan_weights_settings set;
    dq_model *model;
    dq_calib_text text[DQ_PLAN_TEXTS];
    dq_calib_text probe_text;         /* the first sequences of the search text */
    unsigned quarters[DQ_PLAN_TEXTS]; /* of its file */
    int64_t clusters[DQ_PLAN_TEXTS];  /* units that an error is over, copies once */
    int64_t n_seen[DQ_PLAN_TEXTS];    /* sequences that a part before has, too; the most of one */
    dq_plan_tensor *tensor;
    int64_t n_tensors, packed_params, other_bytes; /* of the container beside packed tensors */
    int64_t source_bytes;
    dq_plan_item *item;
    dq_plan_curve curve; /* n 0 until sensitivities are known */
    dq_plan_trial trial[DQ_PLAN_MAX_TRIALS + DQ_PLAN_MAX_LOOK + 2 * DQ_PLAN_SIZE_TRIES + 4];
    int64_t n_trials;
    int64_t chosen;          /* trial; -1: none yet */
    bool met;                /* the budget */
    double capacity;         /* bytes of packed tensors, of a budget of size */
    int64_t container_bytes; /* exact size with dq_plan_weights_settings_of; 0: not known yet */
    int n_look;              /* for this budget */
    int n_earlier;           /* for others before, of the runs that this one resumes */
    dq_plan_baseline baseline[2];
    int n_baselines;
    int64_t
        mix; /* trial that the search text found worse than the uniform width chosen; -1: none */
    int64_t n_resumed; /* results taken from an earlier run */
    dq_plan_work work;
    struct dq_plan_state *state; /* private */
    dq_arena *arena;
} dq_plan_weights;

/* Opens model and texts and computes what each tensor costs. DQ_USAGE: no widths can meet the
 * budget; DQ_MISMATCH: a model without packable tensors, a container, or too little text. */
dq_status dq_plan_weights_open(dq_plan_weights **out, const dq_plan_weights_settings *s,
                               dq_err *err);
void dq_plan_weights_close(dq_plan_weights *p); /* NULL allowed */
/* Arithmetic of the sensitivities with the unrounded model on all texts, of a whole model, and the
 * usual number of models. */
double dq_plan_weights_flop(const dq_plan_weights *p);
int dq_plan_weights_models(const dq_plan_weights *p);
double dq_plan_weights_trial_flop(const dq_plan_weights *p);
/* By all ranks, with the same numbers on each; rank 0 has the files. After DQ_STOPPED and other
 * resumable failures, which say so, results are in out.journal; a plan with `resume` continues to
 * the same result, with any number of ranks. */
dq_status dq_plan_weights_run(dq_plan_weights *p, dq_err *err);
/* As dq_plan_heads_failed. */
dq_status dq_plan_weights_failed(dq_plan_weights *p, dq_err *err);
void dq_plan_weights_done(dq_plan_weights *p);
/* Rules of a recipe with these options; a new reference. */
json_t *dq_plan_weights_rules(const dq_plan_weights *p, const int *choice);
/* The common width of all tensors that may have it; 0: mixed. */
int dq_plan_weights_uniform_of(const dq_plan_weights *p, const int *choice);
/* Number of different choices, which may exceed integers. */
double dq_plan_weights_choices(const dq_plan_weights *p);
/* Settings with a trial chosen; `rules` and `plan` are the caller's, and set.method is not set. */
dq_quantize_settings dq_plan_weights_settings_of(const dq_plan_weights *p, int64_t trial,
                                                 const json_t *rules, const json_t *plan);
double dq_plan_weights_bits_per_weight(const dq_plan_weights *p, double packed_bytes);

/* Bytes of the largest stage, a trial at the widest width or the sensitivities, counted as in
 * calibrate.h without mapped files. Reads the text again. */
dq_status dq_plan_memory(int64_t *out, const dq_plan_weights *p, dq_err *err);

/* By all ranks. Seconds per multiplication or addition, from the last layer's tensors measured at
 * one width on the first sequence of the calibration text, or enough sequences for every rank.
 * beside: where the scratch file goes. */
dq_status dq_plan_pace(double *seconds, const dq_plan_weights *p, const char *beside, dq_err *err);

/* Finds the cheapest point of a curve that keeps a budget in few measurements: the ratio of
 * measured to predicted loss changes little from point to point. */

typedef struct dq_plan_search {
    const dq_plan_curve *curve;
    double budget; /* in the unit of the curve's loss */
    int max;       /* measurements */
    /* *upper: what is compared with the budget. */
    dq_status (*measure)(void *arg, int64_t point, double *upper, dq_err *err);
    void *arg;
} dq_plan_search;

/* *point: the cheapest that was found to keep the budget, -1: none was. Measured are the point that
 * the prediction names, then the one that it names times what was measured over what was predicted,
 * between those known to miss and to keep it; every third time the middle of them, in cost, and
 * while none is known to miss one of at least 1 % less cost. It ends where no point lies between,
 * where they cost the same to 2 per mille, or after `max` measurements, the last of which is the
 * dearest point if none has kept the budget by then. */
dq_status dq_plan_search_run(int64_t *point, const dq_plan_search *s, dq_err *err);
/* The next dearer point predicted to lose a tenth less; the last one where none is, -1 after
 * that. */
int64_t dq_plan_search_next(const dq_plan_curve *c, int64_t point);

/* ---- Size ----
 * Widths for a number of bits per weight, by role, without measuring the model: by what each
 * role's codes cost on a model on which it was measured (results/real, roles.csv). A plan
 * measures the model itself. */

typedef struct dq_plan_size {
    const char *name; /* "balanced" */
    double bits;      /* per weight, at most, over all parameters */
} dq_plan_size;
enum { DQ_PLAN_SIZES = 3, DQ_PLAN_SIZE_USUAL = 1 };
extern const dq_plan_size dq_plan_sizes[DQ_PLAN_SIZES];

/* Writes the widths into s, whose mode is that of projections: bits, embed_bits, head_bits and, for
 * roles of other widths, s->rules = *rules, which the caller ends with json_decref. DQ_USAGE: even
 * the narrowest codes exceed the bits. */
dq_status dq_plan_size_choose(dq_quantize_settings *s, json_t **rules, const char *model,
                              double bits, dq_err *err);

/* Results of a plan in its journal. The first line names all that numbers depend on, which excludes
 * the budget. */

typedef struct dq_plan_state {
    dq_work work;
    json_t *kept; /* {KEY: result} of trials */
    char *begun;  /* the choice whose trial was begun last, NULL: none */
    json_t *look; /* [{"look", "goal", "value"}] at the unseen text, as they came */
} dq_plan_state;

/* All that numbers depend on, without the budget, a new reference; codes: the arithmetic of the
 * method's codes. DQ_RESOURCE. */
dq_status dq_plan_state_of(json_t **out, const dq_plan_weights *p, const dq_quantize_needs *codes,
                           dq_err *err);

#endif
