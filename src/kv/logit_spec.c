/* logit_spec: the names of the grains, and which widths there are. See logit_spec.h.
 * SPDX-License-Identifier: MIT */
#include "kv/logit_spec.h"

#include <string.h>

const char *const dq_grain_name[DQ_GRAINS] = {"tensor", "head", "row", "tile"};
const dq_logit_spec dq_logit_plain = {.bits = 16, .grain = DQ_GRAIN_TENSOR};

bool dq_logit_parse(dq_logit_spec *out, int64_t bits, const char *grain)
{
    if (bits != 16 && !(bits >= 2 && bits <= 8)) return false;
    for (int g = 0; g < DQ_GRAINS; g++) {
        if (strcmp(grain, dq_grain_name[g]) != 0) continue;
        *out = (dq_logit_spec){.bits = (int)bits, .grain = (dq_grain)g};
        return true;
    }
    return false;
}
