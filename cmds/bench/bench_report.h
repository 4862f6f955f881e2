/* bench_report: results of dq bench as a table or as a document. A benchmark lists its figures once; each says what it is
 * called in both.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_REPORT_H
#define DQ_BENCH_REPORT_H

#include "cmds/bench/bench_run.h"
#include "cmds/cli/table.h"

#include <jansson.h>

/* A number or text: a member of a result (NULL: none) and a cell of a column (title NULL: none). Cells hold the number times
 * `scale`. */
typedef struct dq_bench_figure {
    const char *member, *title;
    const char *text; /* NULL: a number */
    double value;     /* NaN: not known, null in JSON */
    bool whole;       /* an integer in JSON */
    double scale;
    int digits; /* after the point, in a cell */
} dq_bench_figure;

static inline dq_bench_figure dq_bench_text(const char *member, const char *title, const char *text)
{
    return (dq_bench_figure){.member = member, .title = title, .text = text};
}
static inline dq_bench_figure dq_bench_count(const char *member, const char *title, int64_t n)
{
    return (dq_bench_figure){
        .member = member, .title = title, .value = (double)n, .whole = true, .scale = 1};
}
static inline dq_bench_figure dq_bench_real(const char *member, const char *title, double value,
                                            double scale, int digits)
{
    return (dq_bench_figure){
        .member = member, .title = title, .value = value, .scale = scale, .digits = digits};
}

typedef struct dq_bench_report {
    const dq_bench *bench;
    json_t *doc, *settings; /* borrowed settings of doc */
    dq_table *table;        /* columns are those of the first row */
} dq_bench_report;

/* A document with its model among the inputs, and the device, threads and clock among the settings. */
dq_status dq_bench_report_begin(dq_bench_report *r, const dq_bench *bench, dq_err *err);
/* Adds a result of kind `what`; the object belongs to the document, for members that are no figures. */
json_t *dq_bench_report_add(dq_bench_report *r, const char *what, const dq_bench_figure *f, int n,
                            dq_err *err);
/* Adds the members logit_bits and logit_granularity, null at 16 bits. */
void dq_bench_report_logit(json_t *result, dq_logit_spec s);
/* The members runs and math of the settings. */
void dq_bench_report_runs(dq_bench_report *r);
/* Prints the table, or with --json the document. */
dq_status dq_bench_report_print(const dq_bench_report *r, dq_err *err);
void dq_bench_report_end(dq_bench_report *r);

#endif
