/* quantize_pace: how long quantizing takes: what each kind of work is expected to take on this machine, by a short timing.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_PACE_H
#define DQ_QUANTIZE_PACE_H

#include "base/work.h"
#include "quantize/quantize_tensor.h"

/* Seconds that all threads together take. */
typedef struct dq_quantize_rates {
    double scan, hash, dense;        /* of a byte of the source */
    double value[DQ_QUANT_MODES][9]; /* of a value to its nearest code, by width */
} dq_quantize_rates;

/* Those of no machine in particular, on one thread. */
extern const dq_quantize_rates dq_quantize_rates_usual;
/* Of writing t. */
double dq_quantize_rates_tensor(const dq_quantize_rates *r, const dq_quantize_tensor *t);

#endif
