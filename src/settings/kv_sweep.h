/* kv_sweep: combinations of the lists that options of KV caches give.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_SWEEP_H
#define DQ_KV_SWEEP_H

#include "settings/kv_options.h"

/* What the command line makes of settings that a container remembers (or dq_kv_config_plain), for a model (NULL: not known
 * yet): every combination, n of them in a block that the caller ends with dq_block_free. Where nobody names a policy it is kvzap
 * where there are gates, else DQ_POLICY_USUAL, and where nobody names a budget DQ_KV_BUDGET_USUAL. With several codes, a cache
 * that is the same by two of them stands once, and a code without such widths is left out of them, as is from all policies
 * what the model has no gates for. */
dq_status dq_kv_sweep_list(dq_kv_config **out, int *n, dq_kv_options *o, const dq_kv_config *stored,
                           const dq_model *m, dq_err *err);

/* The i-th of --kv-size, with what else is said about it. */
dq_kv_size dq_kv_sweep_size(const dq_kv_options *o, int i);
/* "0.125 of 2048 tokens: --kv-bits 6 --kv-keep 0.19, at most 0.1249 of 16 bits"; returns text. */
enum { DQ_KV_SIZED = 160 };
const char *dq_kv_sweep_sized(char text[DQ_KV_SIZED], const dq_kv_sized *s);

/* For kv_options.c. While options are read, codes before widths. Whether some model takes the widths of c by one of the given
 * codes, by its own where none are given; what dq_kv_config_spec says of the first code otherwise. */
dq_status dq_kv_sweep_check_widths(const dq_kv_options *o, dq_kv_config c, dq_err *err);
/* Then: with given widths, each of several codes must have one of them that makes codes. DQ_USAGE. */
dq_status dq_kv_sweep_check_codes(const dq_kv_options *o, dq_err *err);
/* And a width may not contradict the type of what is not coded. DQ_USAGE. */
dq_status dq_kv_sweep_check_dense(const dq_kv_options *o, dq_err *err);

#endif
