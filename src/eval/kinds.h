/* Generation, and the kinds of evaluation.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KINDS_H
#define DQ_KINDS_H

#include "eval/eval.h"
#include "eval/score.h"
#include "session/session.h"
#include "stat/stat.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"

/* Sources whose units are prompts for greedy continuation. A request's n_cont is the number of new
 * ids asked for; a row's top1 holds them, -1 after the last. */

/* dq_eval_source.settings. */
typedef struct dq_eval_generate {
    int64_t max_new; /* new ids of a prompt at most */
    const char *const *stop;
    int n_stop;              /* texts that end a continuation and are not part of it */
    dq_question_shots shots; /* before answered questions */
} dq_eval_generate;

extern const dq_eval_kind dq_eval_answers; /* answered questions: exact_match, strict_match */
extern const dq_eval_kind dq_eval_prompts; /* continued for somebody else to judge: no metric */

/* Indices into row->extra of a unit. */
typedef enum dq_eval_generated {
    DQ_GEN_COUNT, /* new ids */
    DQ_GEN_END,   /* dq_text_end */
    DQ_GEN_EXACT, /* by the first metric; 0 where there is none, like the next */
    DQ_GEN_STRICT,
    DQ_GEN_EXTRA
} dq_eval_generated;

/* A unit's new ids as text up to the first stop text; *text is a block (dq_block_free). */
dq_status dq_eval_completion(const dq_eval *e, const dq_eval_row *row, int64_t unit, char **text,
                             size_t *len, dq_err *err);

/* In-context learning: a prompt is demonstrations with labels and a query without one, which the
 * model answers with one of the labels. A block's demonstrations are computed once for all its
 * queries. */

typedef struct dq_icl_example {
    const char *text; /* [len], UTF-8, not empty */
    size_t len;
    int label;
} dq_icl_example;

typedef struct dq_icl_pool {
    dq_icl_example *ex; /* [n], in the order of the file */
    int64_t n;
    size_t cap;
} dq_icl_pool;

/* Labels are sorted by the bytes of their names. */
typedef struct dq_icl_data {
    dq_icl_pool demos, queries;
    int64_t
        n_queries_in_demos; /* examples that are left out of demos: they have the text of a query */
    const char *const *label;
    int n_labels;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 in the queries' file that became U+FFFD */
    int64_t n_bad_demos;
} dq_icl_data;

typedef struct dq_icl_reader dq_icl_reader;
typedef struct dq_icl_task {
    const char *name, *form;         /* form: of its files, for messages */
    const char *x_prefix, *y_prefix; /* of a text and of its label */
    dq_status (*read)(dq_icl_reader *r, const char *text, size_t len, dq_err *err);
    bool fine;     /* its labels are coarse and fine classes */
    bool one_file; /* a file may hold demonstrations and queries */
} dq_icl_task;
extern const dq_icl_task dq_icl_tasks[];
extern const int dq_icl_n_tasks;
const dq_icl_task *dq_icl_task_find(const char *name); /* NULL: none */

/* text NULL: there is no such file. */
typedef struct dq_icl_file {
    const char *path, *text;
    size_t len;
} dq_icl_file;
typedef enum dq_icl_order {
    DQ_ICL_RANDOM,   /* as drawn */
    DQ_ICL_CLASS,    /* label by label */
    DQ_ICL_ALTERNATE /* one of each label in turn, until all have had theirs */
} dq_icl_order;
enum { DQ_ICL_ORDERS = 3 };
extern const char *const dq_icl_order_name[DQ_ICL_ORDERS];

typedef struct dq_icl_label {
    const char *text;   /* " " and the name */
    const int32_t *ids; /* [n_cont] */
    int64_t n;          /* ids of the label itself */
    int64_t n_cont;     /* n, or n + 1: a label that another one begins with ends with a newline */
    int64_t at;         /* of its first id among those of all labels */
} dq_icl_label;
enum { DQ_ICL_SHOTS = 64 };
typedef struct dq_icl_settings {
    const dq_icl_task *task;
    dq_icl_order order;
    int shots[DQ_ICL_SHOTS],
        n_shots; /* rising; 0: 1, 10, 25, 50, 100, 200, 400 ... as many as fit */
    int64_t runs, queries;
    int plateau_from; /* shots that its range begins with; 0: half of the most. Changes no score */
    int64_t orders;   /* of the demonstrations of run 0, the run itself being the first; 0: as 1 */
    uint64_t seed;
    dq_icl_file demos;
} dq_icl_settings;

/* Prompts that share their demonstrations. */
typedef struct dq_icl_block {
    int64_t order, run; /* order > 0: of the demonstrations of run 0 */
    int64_t shots;
    const int32_t *demo; /* [shots], indices into data.demos */
} dq_icl_block;

/* dq_eval_ids.own; item i is query i % n_queries of block i / n_queries. */
typedef struct dq_icl_layout {
    const dq_icl_block *block;
    int64_t n_blocks;
    const int32_t *query; /* [n_queries], indices into data.queries */
    int64_t n_queries;
    const dq_icl_label *label; /* [data.n_labels] */
    int64_t n_label_ids;
    int *alive;                       /* [n_labels], for decoding; one thread at a time judges */
    int shots[DQ_ICL_SHOTS], n_shots; /* that fit */
    int over[DQ_ICL_SHOTS], n_over;   /* that were asked for and do not */
    int64_t demos, demos_dropped;     /* examples left, and those that were too long */
    int64_t queries_dropped;
} dq_icl_layout;

/* settings: dq_icl_settings; source->own: dq_icl_data. Metrics "acc" (constrained decoding) and
 * "acc_ll" (the largest log-likelihood). */
extern const dq_eval_kind dq_eval_icl_kind;
/* Appends the text of the prompt of item i. */
dq_status dq_icl_prompt(dq_strbuf *out, const dq_eval *e, const dq_eval_row *row, int64_t i,
                        dq_err *err);
/* The label that a metric picks for item i. */
int dq_icl_pick(const dq_eval *e, const dq_eval_row *row, int metric, int64_t i);
/* Accuracy of each block, [n_blocks]. */
typedef struct dq_icl_score {
    dq_mean acc, acc_ll;
} dq_icl_score;
dq_status dq_icl_scores(const dq_eval *e, const dq_eval_row *row, dq_icl_score *out, dq_err *err);
/* Accuracies at one number of shots; std divides by n - 1, NaN for one block. */
typedef struct dq_icl_point {
    int64_t blocks;
    double mean, min, max, std;
} dq_icl_point;
/* Over runs, or (by_order) over orders of run 0's demonstrations, its own included. */
dq_icl_point dq_icl_point_of(const dq_icl_layout *p, const dq_icl_score *score, int64_t shots,
                             bool by_order);
/* Tokens of the row without sharing, and with shared demonstrations. */
void dq_icl_cost(const dq_requests *q, int64_t *naive, int64_t *shared);

/* Mean accuracy over a range of shots chosen before scoring, where more demonstrations change
 * little, with an error for other demonstrations and queries. */

typedef struct dq_icl_range {
    int from; /* what was asked for, or half of the largest */
    int shots[DQ_ICL_SHOTS], n;
} dq_icl_range;
/* The shots from `from` on (0: from half of the largest) that all shown rows of the task have; n 0:
 * none. */
dq_icl_range dq_icl_range_of(const dq_eval *e, int row, int from);

typedef struct dq_icl_plateau {
    dq_mean mean; /* clusters: one more than the degrees of freedom of the interval */
    dq_interval interval;
} dq_icl_plateau;
/* Quoted accuracy of row `after` over a range, minus that of `before` (-1: nothing), which must
 * share its plan. */
dq_status dq_icl_plateau_find(dq_icl_plateau *out, const dq_eval *e, int before, int after,
                              const dq_icl_range *range, dq_err *err);

/* Multi-needle retrieval: cells of length x depth x needles with samples as units, measured by
 * recall and by attention to the answer. */

/* A request's context ends at the question, so that the loss by eviction or rounding shows in the
 * answer; generated answers continue the whole prompt. Metrics: "acc", the share of numbers found,
 * and "all_correct". */
extern const dq_eval_kind dq_eval_needle;

enum {
    DQ_NEEDLE_SWEEP = 32,
    DQ_NEEDLE_CITIES = 100, /* needles of a prompt at most */
    DQ_NEEDLE_NEW = 12      /* ids that an answer to one city may take */
};
/* The wording of prompts, for reports. */
extern const char dq_needle_form[];

typedef struct dq_needle_cell {
    int64_t length; /* ids of the prompt and of the room for its answers */
    int depth;      /* of needle 0, percent */
    int n, r;       /* needles, and how many of them are asked for: needles 0 .. r - 1 */
} dq_needle_cell;

/* The ids in `answer` (n further in the prompt) for one city. */
typedef struct dq_needle_answer {
    int needle;
    int64_t begin;    /* first id after the text that asks */
    int64_t from, to; /* ids of the number: from the first one with a digit */
} dq_needle_answer;

typedef struct dq_needle_prompt {
    /* [n + n_answer]: template, filler and needles, question; then the answers */
    const int32_t *ids;
    int64_t n; /* length - budget */
    int64_t n_answer;
    int64_t budget;   /* room for answers: DQ_NEEDLE_NEW ids or more a city, and the text between */
    int64_t question; /* index of its first id */
    int n_bos;        /* template ids in front */
    int64_t filler;   /* ids of it */
    int64_t start;    /* where in the filler it begins */
    int needles, requested;
    const char **city, **number; /* [needles]; number: decimal digits */
    int64_t *at, *len;           /* [needles] ids of its sentence */
    dq_needle_answer *answer;    /* [requested], in the order of the question */
} dq_needle_prompt;

/* Classes of tokens, for sums of attention. */
typedef enum dq_needle_class {
    DQ_NEEDLE_BOS,
    DQ_NEEDLE_ANSWER,     /* the sentence about the city that the question ends with asking for */
    DQ_NEEDLE_DISTRACTOR, /* all other needles */
    DQ_NEEDLE_NOISE,      /* filler */
    DQ_NEEDLE_QUERY,
    DQ_NEEDLE_CLASSES
} dq_needle_class;
extern const char *const dq_needle_class_name[DQ_NEEDLE_CLASSES];

typedef struct dq_needle_settings {
    int length[DQ_NEEDLE_SWEEP], n_lengths; /* none: see dq_eval_lengths */
    int depth[DQ_NEEDLE_SWEEP], n_depths;
    int needles[DQ_NEEDLE_SWEEP], requested[DQ_NEEDLE_SWEEP], n_pairs;
    int64_t samples; /* per cell */
    uint64_t seed;
    bool generated;   /* else teacher-forced: the most likely id at each id of the numbers */
    bool attention;   /* how much goes to the answer and elsewhere, in a pass of its own */
    bool query_rows;  /* of all rows of the question, not of its last one */
    bool depth_first; /* the needle at the cell's depth is asked for first; else drawn */
} dq_needle_settings;

/* dq_eval_ids.own */
typedef struct dq_needle_set {
    const dq_needle_settings *settings;
    const dq_needle_cell *cell;     /* [n_cells]: needles, then lengths, then depths */
    const dq_needle_prompt *prompt; /* [n_cells * samples], cell by cell */
    int64_t n_cells, samples;
} dq_needle_set;

/* Numbers of a unit in dq_eval_row.extra: how many of the numbers that were asked for are correct,
 * another hidden one, near or none of these, and the sum of ln of their probabilities (0 where
 * answers are generated); with attention the mean shares by norm and class (NaN: no head had one),
 * rows skipped by norm, all rows and those with a small sum, and the answer's share by
 * DQ_NEEDLE_NORM in every head (NaN: skipped), layer by layer. */
enum {
    DQ_NEEDLE_AT_CORRECT,
    DQ_NEEDLE_AT_OTHER,
    DQ_NEEDLE_AT_NEAR,
    DQ_NEEDLE_AT_NONE,
    DQ_NEEDLE_AT_LL,
    DQ_NEEDLE_AT_SHARE,
    DQ_NEEDLE_AT_SKIPPED = DQ_NEEDLE_AT_SHARE + DQ_N_SPAN_NORMS * DQ_NEEDLE_CLASSES,
    DQ_NEEDLE_AT_ROWS = DQ_NEEDLE_AT_SKIPPED + DQ_N_SPAN_NORMS,
    DQ_NEEDLE_AT_SMALL,
    DQ_NEEDLE_AT_HEADS
};
/* The printed norm: its shares lie in 0 to 1 and leave out no attention. */
#define DQ_NEEDLE_NORM DQ_SPAN_ABSOLUTE

/* Index in dq_eval_row.logp and top1 of the first token for p->answer[k]: the number's, or of
 * DQ_NEEDLE_NEW generated ones (-1 after the end). */
int64_t dq_needle_value(const dq_eval *e, const dq_eval_row *row, int64_t unit, int k);

/* Results over the samples of one cell, or (cell -1) of all. */
typedef struct dq_needle_numbers {
    int64_t n; /* samples */
    dq_mean acc, all_correct;
    dq_mean ll;          /* of a number, nats; NaN where answers are generated */
    double confusion[4]; /* shares: correct, other, near, none */
    double share[DQ_N_SPAN_NORMS][DQ_NEEDLE_CLASSES]; /* means over samples */
    /* attention to the answer, and to filler and other needles together: Table 3 of arXiv
     * 2410.05258 */
    dq_mean answer[DQ_N_SPAN_NORMS], noise[DQ_N_SPAN_NORMS];
    int64_t skipped[DQ_N_SPAN_NORMS];
    int64_t rows, small; /* of output heads; see dq_span_share */
    int best_layer,
        best_head; /* with the answer's largest mean share by DQ_NEEDLE_NORM; -1: none */
    double best;
} dq_needle_numbers;
dq_status dq_needle_numbers_of(dq_needle_numbers *out, const dq_eval *e, const dq_eval_row *row,
                               int64_t cell, dq_err *err);

/* Settings of running text, dq_eval_source.settings of dq_eval_text; NULL: windows are chunks. */

typedef struct dq_text_settings {
    dq_scheme scheme;
    int64_t stride; /* 0: half a window */
    dq_docs docs;   /* what is scored */
    bool slices;
    dq_docs counts;   /* stands for the training text; none: the scored documents do */
    double threshold; /* see dq_slices */
} dq_text_settings;

/* A power law with offset, fitted to the mean NLL of the first t tokens of a document. */

/* Ascending points an eighth of a doubling apart, `to` last; returns their number. */
enum { DQ_TEXT_FIT_POINTS = 512 };

/* L(t) = alpha t^beta + gamma, the form of Gemini 1.5 (arXiv 2403.05530, section 5.2.1.1). */
enum { DQ_TEXT_FIT_PARAMETERS = 3 }; /* alpha, beta, gamma */
typedef struct dq_text_fit {
    bool there; /* false: the best beta is at an end of its range, or points are too few */
    dq_mean parameter
        [DQ_TEXT_FIT_PARAMETERS]; /* std_err NaN: one document, or none there without one of them */
    dq_interval interval[DQ_TEXT_FIT_PARAMETERS];
    double residual; /* root mean square over the points, nats */
} dq_text_fit;

/* Standard errors take documents as clusters, or windows of a single one; see dq_mean_clustered. */

/* Scored tokens to whose most likely id the reference gives a probability in [from, to); the last
 * bin includes 1. */
typedef struct dq_confidence {
    double from, to;
    int64_t n;
    dq_mean kld, same; /* NaN where n is 0 */
} dq_confidence;

/* Mean NLL of tokens 1 .. at of each document, and its difference to the reference; standard errors
 * over documents. */
typedef struct dq_position {
    int64_t at;
    dq_mean cumulative, difference;
} dq_position;

/* NLL of tokens from .. to - 1 of each document. */
typedef struct dq_position_bin {
    int64_t from, to, n;
    dq_mean nll, difference;
} dq_position_bin;

typedef struct dq_slice {
    int64_t n;
    dq_mean nll, delta; /* delta: less that of the reference */
} dq_slice;

enum { DQ_CONFIDENCES = 5, DQ_POSITIONS_MAX = 64 };

typedef struct dq_text_details {
    dq_confidence confidence[DQ_CONFIDENCES];
    int n_at, n_bins; /* 0: windows are not those of DQ_WINDOW_POSITIONS */
    dq_position at[DQ_POSITIONS_MAX];
    dq_position_bin bin[DQ_POSITIONS_MAX];
    /* fit to cumulative means at fit_points positions from at[0].at to the last one */
    dq_text_fit fit;
    int fit_points;
    bool sliced;
    dq_slice hit, others;
    double share_hit;
} dq_text_details;

/* DQ_BUG: the slices do not add up to the whole. */
dq_status dq_text_numbers_details(const dq_eval *e, int row, dq_text_details *out, dq_err *err);

/* Reported positions of windows with t scored tokens: powers of two from 1024 (below 4096 tokens,
 * from 16) on, and t. Returns their number. */
int dq_text_numbers_positions(int64_t at[DQ_POSITIONS_MAX], int64_t t);

/* Synthetic prompts for long contexts, built as in arXiv 2404.06654 (RULER) with dq's own words;
 * docs/math/text.md names the differences. Each is answered greedily; numbers of a unit are those
 * of dq_eval_generated, and the metrics "acc", the share of answers that are found, and
 * "all_correct". */

extern const dq_eval_kind dq_eval_ruler;

struct dq_ruler_draft;
typedef struct dq_ruler_task {
    const char *name;
    bool takes_text;
    bool by_words;   /* units are different words of the text, which has only so many */
    int64_t max_new; /* ids that an answer may have */
    int64_t least;   /* units */
    /* `units` makes the prompt longer: words of text, lines, or different words. */
    void (*write)(struct dq_ruler_draft *d, int64_t units);
    int keys, values, requested; /* of needles: keys, values of each, keys that are requested */
} dq_ruler_task;
extern const dq_ruler_task dq_ruler_tasks[];
extern const int dq_ruler_n_tasks;
const dq_ruler_task *dq_ruler_find(const char *name); /* NULL: none has that name */

enum { DQ_RULER_LENGTHS = 32 };
typedef struct dq_ruler_settings {
    const dq_ruler_task *task;
    int length[DQ_RULER_LENGTHS], n_lengths; /* none: the default, or what all models hold */
    int64_t samples;                         /* of a length */
    uint64_t seed;
    bool query_aware; /* the question stands in what a cache evicts and rounds, else after it */
} dq_ruler_settings;

typedef struct dq_ruler_prompt {
    const int32_t *ids; /* [n], template included; n + max_new is at most the length asked for */
    int64_t n;
    int64_t question; /* ids 0 .. question - 1 are those of the text before the question alone */
    const char *const *answer; /* [n_answers] */
    int n_answers;
    int64_t units;
} dq_ruler_prompt;

/* dq_eval_ids.own */
typedef struct dq_ruler_set {
    int length[DQ_RULER_LENGTHS], n_lengths;
    int64_t samples;
    const dq_ruler_prompt *prompt; /* [n_lengths * samples], length by length */
} dq_ruler_set;

#endif
