/* lm_quantize: dq quantize without its output.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "lib/lm.h"
#include "settings/options.h"
#include "settings/quantize_options.h"

static dq_status quantize(dq_quantize_request *r, dq_args *args, const char *const *settings,
                          dq_err *err)
{
    const dq_opt rows[] = {DQ_QUANTIZE_REQUEST_OPTIONS(*r),
                           dq_opt_flag("resume", &r->resume, "finish an interrupted run"),
                           dq_opt_flag("force", &r->force, "replace the output"),
                           dq_opt_int("threads", "N", &r->threads, 1, 1024, "threads"),
                           {0}};
    dq_settings s;
    dq_quantizer *q = NULL;
    if (dq_settings_read(&s, settings, rows, err) == DQ_OK &&
        dq_quantize_request_read(r, err) == DQ_OK && dq_options_inputs(args, rows, err) == DQ_OK &&
        dq_quantize_request_open(&q, r, args, err) == DQ_OK &&
        dq_quantize_request_check(r, q, err) == DQ_OK)
        dq_quantize_request_write(r, q, NULL, err);
    dq_quantize_close(q);
    dq_settings_free(&s);
    return err->code;
}

int dq_lm_quantize(const char *model, const char *out, const char *const *settings)
{
    dq_err err = {0};
    dq_logger logger = {.quiet = true};
    dq_quantize_request *r = dq_block_new(1, sizeof *r, &err); /* too large for a stack */
    dq_args *args = dq_block_new(1, sizeof *args, &err);
    if (!r || !args) {
        dq_block_free(r);
        dq_block_free(args);
        return dq_lm_failed(&err);
    }
    args->item[args->n++] = args->input[args->n_inputs++] = model;
    dq_os_forks(); /* a child of this process shall have threads */
    dq_quantize_request_begin(r, &logger);
    r->out = out;
    if (dq_logger_begin(&logger, "quantize", &err) == DQ_OK) quantize(r, args, settings, &err);
    dq_quantize_request_end(r);
    dq_logger_end(&logger);
    dq_block_free(r);
    dq_block_free(args);
    return dq_lm_failed(&err);
}
