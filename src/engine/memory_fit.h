/* memory_fit: what memory a model and a pass take, and what would fit into given memory. Estimates, with an eighth
 * more for what allocations round up.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MEMORY_FIT_H
#define DQ_MEMORY_FIT_H

#include "model/model.h"

enum { DQ_FFN_ROWS = 1024 }; /* rows of the feed-forward part at a time: bounds its scratch */

/* The most rows, at most `max`, whose pass takes no more than `available` bytes: scratch, cache and the
 * caller's final states. */
int64_t dq_memory_fit_rows(const dq_model *m, const dq_kv_spec *kv, double available, int64_t max);
/* Say after the text of a DQ_RESOURCE what fits into `available` bytes: how many of a pass's rows, with this
 * cache or a packed one; weights of how many bits. Return its code. */
dq_status dq_memory_fit_advise_rows(const dq_model *m, const dq_kv_spec *kv, double available,
                                    int64_t rows, dq_err *err);
dq_status dq_memory_fit_advise_bits(const dq_model *m, double available, dq_err *err);

#endif
