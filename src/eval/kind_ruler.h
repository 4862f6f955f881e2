/* kind_ruler: prompts that a program makes up, as RULER does, as a kind of source: lengths x samples as units, each
 * answered greedily.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_RULER_H
#define DQ_KIND_RULER_H

#include "eval/eval.h"
#include "tasks/ruler.h"

/* Metrics: "acc", the share of the answers that stand in the continuation, and "all_correct". A request's n_cont is
 * the number of new ids asked for; a row's top1 holds them, -1 after the last. */
extern const dq_eval_kind dq_eval_ruler;

enum { DQ_RULER_LENGTHS = 32, DQ_RULER_DEFAULT_LENGTH = 4096 };

/* dq_eval_source.settings */
typedef struct dq_ruler_settings {
    const dq_ruler_task *task;
    int length[DQ_RULER_LENGTHS],
        n_lengths;   /* none: DQ_RULER_DEFAULT_LENGTH, or the fewest positions */
    int64_t samples; /* of a length */
    uint64_t seed;
    bool query_aware; /* the question stands in what a cache evicts and rounds, else after it */
} dq_ruler_settings;

/* dq_eval_ids.own */
typedef struct dq_ruler_set {
    const dq_ruler_settings *settings;
    int length[DQ_RULER_LENGTHS], n_lengths;
    int64_t samples;
    const dq_ruler_prompt *prompt; /* [n_lengths * samples], length by length */
} dq_ruler_set;
const dq_ruler_set *dq_ruler_set_of(const dq_eval *e, const dq_eval_row *row);

/* Numbers of a unit in dq_eval_row.extra. */
enum { DQ_RULER_AT_FOUND, DQ_RULER_AT_COUNT, DQ_RULER_AT_END, DQ_RULER_EXTRA };
const double *dq_ruler_unit(const dq_eval_row *row, int64_t unit);

/* The results of the samples of one length, or (length -1) of all. */
typedef struct dq_ruler_numbers {
    int64_t n; /* samples */
    dq_mean acc, all_correct;
    int64_t prompt_ids, new_ids;
} dq_ruler_numbers;
dq_status dq_ruler_numbers_of(dq_ruler_numbers *out, const dq_eval *e, const dq_eval_row *row,
                              int length, dq_err *err);

#endif
