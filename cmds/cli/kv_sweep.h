/* kv_sweep: combinations of the lists that options of KV caches give. dq_kv_options_list is made there too. For
 * kv_options.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_SWEEP_H
#define DQ_KV_SWEEP_H

#include "cmds/cli/kv_options.h"

/* While options are read, codes before widths. Whether some model takes the widths of c by one of the given codes, by its
 * own where none are given; what dq_kv_config_spec says of the first code otherwise. */
dq_status dq_kv_sweep_check_widths(const dq_kv_options *o, dq_kv_config c, dq_err *err);
/* Then: with given widths, each of several codes must have one of them that makes codes. DQ_USAGE. */
dq_status dq_kv_sweep_check_codes(const dq_kv_options *o, dq_err *err);

#endif
