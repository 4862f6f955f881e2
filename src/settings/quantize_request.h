/* quantize_request: what dq quantize and the library are asked to write: options of weights, calibration, attention and cache,
 * and how a container is made of them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_REQUEST_H
#define DQ_QUANTIZE_REQUEST_H

#include "settings/calib_run.h"
#include "settings/kv_options.h"
#include "settings/recipe_options.h"
#include "settings/size_options.h"

typedef struct dq_quantize_request {
    dq_logger *logger;   /* not owned */
    const char *out;     /* NULL: nothing is written */
    dq_word granularity; /* a dq_granularity */
    int64_t logit_bits, threads;
    dq_recipe_options recipe;
    dq_size_options size;
    dq_kv_options kv;
    dq_calib_run calib;
    bool resume, force;
    dq_quantize_settings set; /* what the options mean */
    const char
        *planned; /* SHA-256 of the weights that the recipe's plan measured; NULL: it has no plan */
    bool as_planned; /* these are the weights */
} dq_quantize_request;

#define DQ_QUANTIZE_REQUEST_OPTIONS(r)                                                             \
    dq_opt_heading("weights:"), DQ_SIZE_OPTION_ROWS((r).size), DQ_RECIPE_OPTION_ROWS((r).recipe),  \
        DQ_CALIB_RUN_OPTIONS((r).calib), dq_opt_heading("attention, stored for dq eval:"),         \
        dq_opt_bits("logit-bits", "N", &(r).logit_bits,                                            \
                    "2 to 8, or 16: not rounded (default 16)"),                                    \
        dq_opt_word("logit-granularity", "GRANULARITY", &(r).granularity, dq_granularity_name,     \
                    DQ_GRANULARITIES, "{words} (default per-tensor)"),                             \
        DQ_KV_OPTION_ROWS((r).kv)

/* Nothing asked. End with dq_quantize_request_end, whatever came of it. */
void dq_quantize_request_begin(dq_quantize_request *r, dq_logger *logger);
/* What the options mean, before any model is open. DQ_USAGE. */
dq_status dq_quantize_request_read(dq_quantize_request *r, dq_err *err);
/* Opens the model, the first argument, checks what is asked of it and, where there is an output, that too, and warns. End *out with
 * dq_quantize_close before the request. */
dq_status dq_quantize_request_open(dq_quantizer **out, dq_quantize_request *r, const dq_args *args,
                                   dq_err *err);
/* Before the output is written: that ranks agree and memory is enough; warns of what the source has lost. */
dq_status dq_quantize_request_check(dq_quantize_request *r, dq_quantizer *q, dq_err *err);
/* Seconds that writing takes, by a short timing where that is long. */
dq_status dq_quantize_request_seconds(double *seconds, dq_quantize_request *r, dq_quantizer *q,
                                      dq_err *err);
/* Writes the output and compares it with a plan. p: may be NULL. */
dq_status dq_quantize_request_write(dq_quantize_request *r, dq_quantizer *q,
                                    const dq_quantize_progress *p, dq_err *err);
void dq_quantize_request_end(dq_quantize_request *r);

#endif
