/* kind_icl: in-context learning. A prompt holds demonstrations, texts with their labels, and a query, a text
 * without one; the model answers with one of the labels. The demonstrations of a block are computed once
 * for all of its queries.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_ICL_H
#define DQ_KIND_ICL_H

#include "eval/eval.h"
#include "tasks/icl_data.h"

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

/* Prompts with the same demonstrations. */
typedef struct dq_icl_block {
    int64_t order, run; /* order > 0: of the demonstrations of run 0 */
    int64_t shots;
    const int32_t *demo; /* [shots], indices into data.demos */
} dq_icl_block;

/* dq_eval_ids.own: item i is query i % n_queries of block i / n_queries. */
typedef struct dq_icl_plan {
    const dq_icl_block *block;
    int64_t n_blocks;
    const int32_t *query; /* [n_queries], indices into data.queries */
    int64_t n_queries;
    const dq_icl_label *label; /* [data.n_labels] */
    int64_t n_label_ids;
    int *alive;                       /* [n_labels], for dq_icl_walk; one thread at a time judges */
    int shots[DQ_ICL_SHOTS], n_shots; /* that fit */
    int over[DQ_ICL_SHOTS], n_over;   /* that were asked for and do not */
    int64_t demos, demos_dropped;     /* examples left, and those that were too long */
    int64_t queries_dropped;
} dq_icl_plan;

/* settings: dq_icl_settings; source->own: dq_icl_data. Metrics "acc" (dq_icl_walk) and "acc_ll"
 * (dq_icl_likeliest). */
extern const dq_eval_kind dq_eval_icl_kind;
/* The prompt of query q after the demonstrations of b. Appends. */
dq_status dq_icl_prompt(dq_strbuf *out, const dq_icl_task *task, const dq_icl_data *d,
                        const dq_icl_block *b, const dq_icl_example *q, dq_err *err);
/* The label that item i of the row is given by a metric. */
int dq_icl_pick(const dq_eval *e, const dq_eval_row *row, int metric, int64_t i);
/* Accuracy in every block by both metrics: acc[n_blocks]. */
typedef struct dq_icl_score {
    dq_mean acc, acc_ll;
} dq_icl_score;
dq_status dq_icl_scores(const dq_eval *e, const dq_eval_row *row, dq_icl_score *out, dq_err *err);
/* The accuracies at one number of shots; std with n - 1, NaN for one block. */
typedef struct dq_icl_point {
    int64_t blocks;
    double mean, min, max, std;
} dq_icl_point;
/* Over runs, or (by_order) over the orders of run 0's demonstrations, run 0 among them. */
dq_icl_point dq_icl_point_of(const dq_icl_plan *p, const dq_icl_score *score, int64_t shots,
                             bool by_order);
/* Ids of the row's sequences where nothing is shared, and where demonstrations are. */
void dq_icl_cost(const dq_requests *q, int64_t *naive, int64_t *shared);

#endif
