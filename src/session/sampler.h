/* sampler: the next id from logits: the most likely one, or drawn.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SAMPLER_H
#define DQ_SAMPLER_H

#include "base/random.h"

/* Logits are divided by the temperature; then of all ids the top_k largest stay, of these the fewest that have top_p of the
 * probability together, and of these the ones that have min_p of the largest probability. Drawn is by what is left, as
 * TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper and MinPLogitsWarper of transformers leave it
 * (generation/logits_process.py). */
typedef struct dq_sampling {
    double temperature; /* 0: the most likely id, the lowest among equals; nothing below counts */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    double min_p;       /* 0: all */
    uint64_t seed;
} dq_sampling;
extern const dq_sampling dq_sampler_greedy;

/* DQ_USAGE naming a number that is none of these. */
dq_status dq_sampler_check(const dq_sampling *s, dq_err *err);

typedef struct dq_sampler {
    dq_sampling how;
    dq_random random;
    struct dq_sampler_choice *choice; /* [vocab] scratch */
    int64_t vocab;
} dq_sampler;

dq_status dq_sampler_begin(dq_sampler *s, const dq_sampling *how, int64_t vocab, dq_err *err);
void dq_sampler_end(dq_sampler *s); /* {0} is allowed */
/* An id by logits[vocab], finite. *logp, unless NULL: ln of its probability among all ids at temperature 1. */
int32_t dq_sampler_pick(dq_sampler *s, const float *logits, double *logp);
/* ln of the probability of an id. */
double dq_sampler_logp(const float *logits, int64_t vocab, int32_t id);

/* What a pick draws from: ids, most likely first, with their probabilities, in s->choice. Returns how many. */
typedef struct dq_sampler_choice {
    int32_t id;
    double p;
} dq_sampler_choice;
int64_t dq_sampler_choices(dq_sampler *s, const float *logits);

#endif
