/* calib_run: the options of calibrated quantization, and what is said of a run.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIB_RUN_H
#define DQ_CALIB_RUN_H

#include "calibrate/calibrate.h"
#include "record/record.h"
#include "settings/options.h"

enum { DQ_CALIB_RUN_METHODS = 1 + DQ_CALIBRATE_RULES };
typedef struct dq_calib_run {
    dq_word requested; /* --method: of method_name */
    const char *file;
    int64_t tokens, ctx;
    const char *method;      /* what was decided on, after dq_calib_run_check */
    dq_backend *backend;     /* NULL: the method needs none */
    dq_calibrate *calibrate; /* NULL: nothing is calibrated */
    const char *method_name[DQ_CALIB_RUN_METHODS];
} dq_calib_run;
/* Fills c->method_name, the words of the row: "nearest", and the rules. */
const char *const *dq_calib_run_method_names(dq_calib_run *c);
#define DQ_CALIB_RUN_OPTIONS(c)                                                                    \
    dq_opt_heading("calibration:"),                                                                \
        dq_opt_word(                                                                               \
            "method", "NAME", &(c).requested, dq_calib_run_method_names(&(c)),                     \
            DQ_CALIB_RUN_METHODS,                                                                  \
            "nearest: each value to its nearest code; gptq, which needs --calib: layer by "        \
            "layer, errors of columns made up for by those still to be rounded; align: "           \
            "gptq of weights that first make up for what was lost before them, in twice "          \
            "the time (default align with --calib, nearest without)"),                             \
        dq_opt_text("calib", "FILE", &(c).file,                                                    \
                    "text that the model is to keep predicting: plain, or .jsonl of {\"text\"}; "  \
                    "not the text that it is scored with later"),                                  \
        dq_opt_int("calib-tokens", "N", &(c).tokens, 1, 1000000000000,                             \
                   "tokens taken from it, at even intervals (default 16384)"),                     \
        dq_opt_int("calib-ctx", "N", &(c).ctx, 2, INT32_MAX,                                       \
                   "tokens of a sequence (default min(512, the model's positions))")

/* Decides on the method: the option's, the recipe's, align where there is a text. DQ_USAGE for an unknown one, a text that
 * the method does not read, and a method without its text. */
dq_status dq_calib_run_check(dq_calib_run *c, const dq_quantize_settings *set, dq_err *err);
bool dq_calib_run_wanted(const dq_calib_run *c);
/* Sets the method of *set. out NULL: a dry run. End with dq_calib_run_end. */
dq_status dq_calib_run_begin(dq_calib_run *c, dq_quantize_settings *set, const char *out,
                             int64_t threads, dq_err *err);
void dq_calib_run_end(dq_calib_run *c);
/* Warns of a text that repeats itself; part: "calibration". */
void dq_calib_run_warn_repeats(const dq_calib_text *t, const char *file, const char *part,
                               dq_logger *logger);
/* Warns of a text that is not UTF-8. */
void dq_calib_run_warn_form(const dq_calib_text *t, const char *file, dq_logger *logger);
/* Both, and of a text that is shorter than asked for, or few tokens for a rule that fits so many inputs. */
void dq_calib_run_warn(const dq_calib_text *t, const char *file, const dq_calibrate_rule *rule,
                       int64_t inputs, dq_logger *logger);
/* Before the run: what the text gives, DQ_USAGE where it would choose no code; DQ_RESOURCE where memory does not suffice. q was opened with the method. After it: what
 * was unusual, and with -v where the time went. */
dq_status dq_calib_run_announce(const dq_calib_run *c, const dq_quantize_info *q, dq_logger *logger,
                                dq_err *err);
dq_status dq_calib_run_memory(const dq_calib_run *c, const dq_quantizer *q, dq_err *err);
void dq_calib_run_report(const dq_calib_run *c, dq_logger *logger);
void dq_calib_run_json(const dq_calib_run *c, const dq_quantizer *q, json_t *result);

#endif
