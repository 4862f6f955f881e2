/* kv: see kv.h.
 * SPDX-License-Identifier: MIT */
#include "kv.h"

const dq_kv_spec dq_kv_plain = {
    .k_bits = 16,
    .v_bits = 16,
    .group = 32,
    .rotate = false,
    .sink = 4,
    .recent = 64,
};
