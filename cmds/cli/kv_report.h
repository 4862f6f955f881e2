/* kv_report: the arithmetic and the KV cache of a result, for people and programs.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_REPORT_H
#define DQ_KV_REPORT_H

#include "cmds/cli/cli.h"
#include "eval/score.h"
#include "record/record.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"

/* Fractions and ratios of measurements; NaN without any. */
typedef struct dq_kv_report_shares {
    bool measured;
    int64_t bytes_cached;
    double bytes_per_token; /* of context */
    double ratio_cached;    /* baseline / cached */
    double share;           /* cached / baseline: of what all tokens take in 16 bits */
    bool saves_nothing;     /* that is 1 or more: no reason to take this cache */
    double ratio_payload;   /* what it would be if all kept tokens were codes */
    double lowbit;          /* of the keys that rows of scored tokens read, those that were codes */
    double kept, kvpress;   /* kvpress: 1 - kept */
    double cut; /* share of the context tokens that stand in a context of which something is gone */
} dq_kv_report_shares;
#define DQ_KV_SAVES_NOTHING "saves nothing at this context"
dq_kv_report_shares dq_kv_report_shares_of(const dq_kv_spec *s, const dq_kv_cached *h);

/* The `math` object of a result: arithmetic by product. */
json_t *dq_kv_report_math_json(dq_math m);
/* For rows whose value these have made. */
#define DQ_KV_RESULT .def = "kv_result", .describe = dq_kv_report_describe
#define DQ_MATH      .def = "math", .describe = dq_kv_report_math_describe
void dq_kv_report_describe(dq_row_writer *w);
void dq_kv_report_math_describe(dq_row_writer *w);
/* "logit_bits", "logit_granularity"; about: the first. */
void dq_kv_report_logit_rows(dq_row_writer *w, const dq_logit_spec *s, const char *about);
/* The same with -v. */
void dq_kv_report_note_math(dq_logger *logger, const char *device, dq_math m);
/* With -v: kernel and arithmetic by layer; equal layers share a line. */
void dq_kv_report_note_routes(dq_logger *logger, const dq_backend *b, const dq_model *m,
                              dq_math math, const dq_kv_spec *kv);
/* The `kv` object of a result. */
json_t *dq_kv_report_json(const dq_kv_spec *s, const dq_kv_cached *h);
/* CSV columns: settings, then measurements. Returns the number of titles. */
enum { DQ_KV_TITLES = DQ_KV_COLUMNS + 7 };
int dq_kv_report_titles(const char **titles);
void dq_kv_report_columns(dq_table *t, const dq_kv_spec *s, const dq_kv_cached *h);
/* "4:4", "4:4 snapkv 0.25", "4:4 keydiff 0.25 heads": distinguishes settings. */
enum { DQ_KV_LABEL = DQ_KV_TEXT + 64 }; /* holds any */
const char *dq_kv_report_label(char *buf, size_t cap, const dq_kv_spec *s);
/* Warns of contexts where the policy could not do its job; `what` begins the line. */
void dq_kv_report_warn_policy(dq_logger *logger, const char *what, const dq_kv_spec *s,
                              const dq_kv_cached *h);
/* Also warns where less than half of what was read or held was compressed, and of raised
 * budgets. */
void dq_kv_report_warn(dq_logger *logger, const char *what, const dq_kv_spec *s,
                       const dq_kv_cached *h);

#endif
