/* head_measure_text: see head_measure_text.h. Counts and sums are copied to and from two arrays, whose order is that of the text.
 * SPDX-License-Identifier: MIT */
#include "engine/head_measure_text.h"

#include <inttypes.h>
#include <string.h>

enum { COUNTS = 2 + 2 * DQ_N_THRESHOLDS, SUMS = 6 };
static const int64_t most = (int64_t)1 << 46; /* 131072 such counts add up within 63 bits */

void dq_head_measure_text_put(FILE *f, const dq_head_measure *m)
{
    int64_t counts[COUNTS] = {m->keys, m->pages};
    const double sums[SUMS] = {m->entropy[0],   m->entropy[1], m->sink_mass[0],
                               m->sink_mass[1], m->variation,  m->negative};
    memcpy(counts + 2, m->near_zero, sizeof m->near_zero);
    memcpy(counts + 2 + DQ_N_THRESHOLDS, m->skippable, sizeof m->skippable);
    fprintf(f, "{\"rows\": %" PRId64, m->rows);
    dq_part_put_ints(f, "counts", counts, COUNTS);
    dq_part_put_reals(f, "sums", sums, SUMS);
    fputc('}', f);
}

dq_status dq_head_measure_text_get(dq_head_measure *m, const json_t *o, dq_err *err)
{
    int64_t counts[COUNTS];
    double sums[SUMS];
    DQ_TRY(dq_json_int(&m->rows, o, "rows", 0, most, NULL, err));
    DQ_TRY(dq_part_get_ints(counts, COUNTS, o, "counts", err));
    DQ_TRY(dq_part_get_reals(sums, SUMS, o, "sums", err));
    for (int i = 0; i < COUNTS; i++) {
        if (counts[i] < 0 || counts[i] > most) return dq_fail(err, DQ_DAMAGED, "\"counts\"");
    }
    m->keys = counts[0];
    m->pages = counts[1];
    memcpy(m->near_zero, counts + 2, sizeof m->near_zero);
    memcpy(m->skippable, counts + 2 + DQ_N_THRESHOLDS, sizeof m->skippable);
    memcpy(m->entropy, sums, sizeof m->entropy);
    memcpy(m->sink_mass, sums + 2, sizeof m->sink_mass);
    m->variation = sums[4];
    m->negative = sums[5];
    return DQ_OK;
}
