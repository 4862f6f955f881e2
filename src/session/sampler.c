/* sampler: see sampler.h. Ids are sorted by their logits, so that what each cut leaves is a beginning of the list.
 * SPDX-License-Identifier: MIT */
#include "session/sampler.h"

#include <math.h>
#include <stdlib.h>

const dq_sampling dq_sampler_greedy = {.top_p = 1};

dq_status dq_sampler_check(const dq_sampling *s, dq_err *err)
{
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        return dq_fail(err, DQ_USAGE, "temperature: expected 0 or more, found %g", s->temperature);
    if (s->top_k < 0)
        return dq_fail(err, DQ_USAGE, "top_k: expected 0 or more, found %lld", (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return dq_fail(err, DQ_USAGE, "top_p: expected more than 0 and at most 1, found %g",
                       s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return dq_fail(err, DQ_USAGE, "min_p: expected 0 to 1, found %g", s->min_p);
    return DQ_OK;
}

dq_status dq_sampler_begin(dq_sampler *s, const dq_sampling *how, int64_t vocab, dq_err *err)
{
    *s = (dq_sampler){.how = *how, .random = dq_random_of(how->seed, 0), .vocab = vocab};
    DQ_TRY(dq_sampler_check(how, err));
    if (how->temperature > 0) s->choice = dq_block_new((size_t)vocab, sizeof *s->choice, err);
    return err->code;
}

void dq_sampler_end(dq_sampler *s)
{
    dq_block_free(s->choice);
    s->choice = NULL;
}

static int32_t largest(const float *logits, int64_t vocab)
{
    int64_t at = 0;
    for (int64_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[at]) at = i;
    }
    return (int32_t)at;
}

double dq_sampler_logp(const float *logits, int64_t vocab, int32_t id)
{
    const double max = (double)logits[largest(logits, vocab)];
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

static int by_logit(const void *a, const void *b)
{
    const dq_sampler_choice *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Turns choice[n], logits less the largest in falling order, into probabilities. */
static void normalize(dq_sampler_choice *choice, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += choice[i].p = exp(choice[i].p);
    for (int64_t i = 0; i < n; i++) choice[i].p /= sum;
}

/* The fewest that have `share` together: an id stays while those before it have less. */
static int64_t cut_share(const dq_sampler_choice *choice, int64_t n, double share)
{
    double before = 0;
    int64_t i = 0;
    while (i < n && (i == 0 || before < share)) before += choice[i++].p;
    return i;
}

int64_t dq_sampler_choices(dq_sampler *s, const float *logits)
{
    const dq_sampling *how = &s->how;
    int64_t n = s->vocab;
    const double max = (double)logits[largest(logits, n)]; /* else a small temperature overflows */
    for (int64_t i = 0; i < n; i++)
        s->choice[i] =
            (dq_sampler_choice){(int32_t)i, ((double)logits[i] - max) / how->temperature};
    qsort(s->choice, (size_t)n, sizeof *s->choice, by_logit);
    if (how->top_k > 0 && how->top_k < n) n = how->top_k;
    normalize(s->choice, n);
    const double least = how->min_p * s->choice[0].p;
    if (how->top_p < 1) n = cut_share(s->choice, n, how->top_p);
    while (n > 1 && s->choice[n - 1].p < least) n--;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += s->choice[i].p;
    for (int64_t i = 0; i < n; i++) s->choice[i].p /= sum;
    return n;
}

/* Uniform in [0, 1), of 53 bits. */
static double uniform(dq_random *r)
{
    return (double)(dq_random_next(r) >> 11) * 0x1p-53;
}

int32_t dq_sampler_pick(dq_sampler *s, const float *logits, double *logp)
{
    int32_t id;
    if (s->how.temperature == 0) {
        id = largest(logits, s->vocab);
    } else {
        const int64_t n = dq_sampler_choices(s, logits);
        double left = uniform(&s->random);
        int64_t i = 0;
        while (i < n - 1 && left >= s->choice[i].p) left -= s->choice[i++].p;
        id = s->choice[i].id;
    }
    if (logp) *logp = dq_sampler_logp(logits, s->vocab, id);
    return id;
}
