/* logit_spec: how attention logits are rounded before softmax: their width, and which of them share a scale.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOGIT_SPEC_H
#define DQ_LOGIT_SPEC_H

#include "base/base.h"

/* For the query rows of a pass and the keys they see: A = max |S| over the group,
 * c = clamp(rint(S * (Qmax / A)), +-Qmax), S' = c * (A / Qmax), both quotients one f32 division; A = 0
 * gives S' = 0. Entries that a row does not see never count. */
typedef enum dq_grain {
    DQ_GRAIN_TENSOR, /* one sequence: all query heads (both maps) and rows of the layer */
    DQ_GRAIN_HEAD,   /* one sequence and query head */
    DQ_GRAIN_ROW,    /* one row of one query head */
    DQ_GRAIN_TILE    /* positions floor(t/64) x floor(s/64) of one query head */
} dq_grain;
enum { DQ_GRAINS = 4 };
extern const char *const dq_grain_name[DQ_GRAINS]; /* "tensor", "head", "row", "tile" */

typedef struct dq_logit_spec {
    int bits; /* 2..8, or 16: not rounded */
    dq_grain grain;
} dq_logit_spec;
extern const dq_logit_spec dq_logit_plain; /* 16 bits, grain tensor */

/* From a width and a grain's name; false, with *out as it was, where there is no such one. */
bool dq_logit_parse(dq_logit_spec *out, int64_t bits, const char *grain);

static inline bool dq_logit_rounds(dq_logit_spec s)
{
    return s.bits < 16;
}

/* Whether a row's result depends on the other rows of its sequence: then nothing of it can be computed
 * beforehand and shared. */
static inline bool dq_logit_ties_rows(dq_logit_spec s)
{
    return dq_logit_rounds(s) && s.grain != DQ_GRAIN_ROW;
}

/* Whether the largest logit of all rows must be known before the first is rounded. */
static inline bool dq_logit_needs_absmax(dq_logit_spec s)
{
    return dq_logit_rounds(s) && (s.grain == DQ_GRAIN_TENSOR || s.grain == DQ_GRAIN_HEAD);
}

static inline bool dq_logit_by_tile(dq_logit_spec s)
{
    return dq_logit_rounds(s) && s.grain == DQ_GRAIN_TILE;
}

/* Of 16 bits the grain says nothing. */
static inline bool dq_logit_same(dq_logit_spec a, dq_logit_spec b)
{
    return a.bits == b.bits && (!dq_logit_rounds(a) || a.grain == b.grain);
}

#endif
