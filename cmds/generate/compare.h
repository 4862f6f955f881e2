/* compare: two models that answer one prompt, side by side.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_COMPARE_H
#define DQ_COMPARE_H

#include "cmds/generate/conversation.h"

/* Where two texts part: after `same` tokens, at tokens that differ, or where one of them ends. */
typedef struct dq_compare_parting {
    int64_t same;
    bool parts;     /* false: they are equal */
    int32_t id[2];  /* the token of each there; -1: it ended */
    double p[2][2]; /* of model i, the probability of id[k]; NaN for an end */
} dq_compare_parting;

/* After one turn of each. Uses up the sessions. */
dq_status dq_compare_texts(dq_compare_parting *out, dq_conversation side[2], dq_err *err);
/* What both wrote, then each one's own in a column, then the tokens where they part. */
dq_status dq_compare_print(const dq_compare_parting *p, const dq_conversation side[2], dq_err *err);
json_t *dq_compare_json(const dq_compare_parting *p);

#endif
