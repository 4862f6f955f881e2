/* logit_spec: the names of the granularities, and which widths there are. See logit_spec.h.
 * SPDX-License-Identifier: MIT */
#include "kv/logit_spec.h"

#include <string.h>

const char *const dq_granularity_name[DQ_GRANULARITIES] = {"per-tensor", "per-head", "per-row",
                                                           "per-tile"};
const dq_logit_spec dq_logit_plain = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR};

bool dq_logit_parse(dq_logit_spec *out, int64_t bits, const char *granularity)
{
    if (bits != 16 && !(bits >= 2 && bits <= 8)) return false;
    for (int g = 0; g < DQ_GRANULARITIES; g++) {
        if (strcmp(granularity, dq_granularity_name[g]) != 0) continue;
        *out = (dq_logit_spec){.bits = (int)bits, .granularity = (dq_granularity)g};
        return true;
    }
    return false;
}
