/* logit_spec: how attention logits are rounded before softmax: their width, and which of them share a scale.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOGIT_SPEC_H
#define DQ_LOGIT_SPEC_H

#include "base/base.h"

/* For the query rows of a pass and the keys they see: A = max |S| over the group,
 * c = clamp(rint(S * (Qmax / A)), +-Qmax), S' = c * (A / Qmax), both quotients one f32 division; A = 0
 * gives S' = 0. Entries that a row does not see never count. */
typedef enum dq_granularity {
    DQ_GRANULARITY_TENSOR, /* one sequence: all query heads (both maps) and rows of the layer */
    DQ_GRANULARITY_HEAD,   /* one sequence and query head */
    DQ_GRANULARITY_ROW,    /* one row of one query head */
    DQ_GRANULARITY_TILE    /* positions floor(t/64) x floor(s/64) of one query head */
} dq_granularity;
enum { DQ_GRANULARITIES = 4 };
extern const char *const
    dq_granularity_name[DQ_GRANULARITIES]; /* "per-tensor", "per-head", "per-row", "per-tile" */

typedef struct dq_logit_spec {
    int bits; /* 2..8, or 16: not rounded */
    dq_granularity granularity;
} dq_logit_spec;
extern const dq_logit_spec dq_logit_plain; /* 16 bits, granularity tensor */

/* From a width and a granularity's name; false, with *out as it was, where there is no such one. */
bool dq_logit_parse(dq_logit_spec *out, int64_t bits, const char *granularity);

static inline bool dq_logit_rounds(dq_logit_spec s)
{
    return s.bits < 16;
}

/* Whether a row's result depends on the other rows of its sequence: then nothing of it can be computed
 * beforehand and shared. */
static inline bool dq_logit_ties_rows(dq_logit_spec s)
{
    return dq_logit_rounds(s) && s.granularity != DQ_GRANULARITY_ROW;
}

/* Whether the largest logit of all rows must be known before the first is rounded. */
static inline bool dq_logit_needs_absmax(dq_logit_spec s)
{
    return dq_logit_rounds(s) &&
           (s.granularity == DQ_GRANULARITY_TENSOR || s.granularity == DQ_GRANULARITY_HEAD);
}

static inline bool dq_logit_by_tile(dq_logit_spec s)
{
    return dq_logit_rounds(s) && s.granularity == DQ_GRANULARITY_TILE;
}

/* Of 16 bits the granularity says nothing. */
static inline bool dq_logit_same(dq_logit_spec a, dq_logit_spec b)
{
    return a.bits == b.bits && (!dq_logit_rounds(a) || a.granularity == b.granularity);
}

#endif
