/* head_kinds: what an output head does on a text, by where its attention goes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEAD_KINDS_H
#define DQ_HEAD_KINDS_H

#include "engine/observe.h"

/* The first one that fits, by shares of sum |D|. Source of retrieval: induction heads, arXiv 2209.11895. */
typedef enum dq_head_kind {
    DQ_HEAD_RETRIEVAL, /* a tenth of a row's, where it can, on what followed the last occurrence of its token */
    DQ_HEAD_SINK,  /* half on the first token */
    DQ_HEAD_LOCAL, /* half on the last DQ_LOCAL_KEYS tokens */
    DQ_HEAD_MIXED,
    DQ_HEAD_KINDS
} dq_head_kind;
extern const char
    *const dq_head_kind_name[DQ_HEAD_KINDS]; /* "retrieval", "sink", "local", "mixed" */

/* Of the sums of a head; DQ_HEAD_MIXED without rows. */
dq_head_kind dq_head_kind_of(const dq_head_measure *m, const dq_head_profile *p);

#endif
