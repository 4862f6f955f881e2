/* html_rows: the rows of a dq-eval/1 document as a report needs them: numbers by name, labels that
 * tell rows apart, series over logit bits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_ROWS_H
#define DQ_HTML_ROWS_H

#include "cmds/report/html_part.h"

/* One result. Texts belong to the document or to the arena. */
typedef struct dq_html_row {
    const json_t *j, *metrics;
    const char *model, *task, *granularity;
    const char *math; /* "f32", of the linear layers */
    const char *kv;   /* "8:4 h2o keep 0.5 heads"; "" for a plain 16-bit cache */
    const char *kept; /* of that, which tokens are kept: "h2o keep 0.5 heads"; "" for all */
    const char
        *code; /* how numbers of the cache become codes, "per-channel"; "" for one without codes */
    bool
        undithered; /* per-channel codes that dithered ones are too, as none of the values is dithered */
    const char *label; /* the model and what tells the rows of its task apart */
    const char *line;  /* the same without the logit bits */
    int bits, model_index;
    bool starts_line;                   /* first of a line over logit bits */
    int n_line;                         /* rows of that line; 0 for its other rows */
    dq_picture_style style, line_style; /* of the row, of its line over logit bits */
} dq_html_row;

/* Fills the rows and models of a part of one document. DQ_DAMAGED: a result without model, task or
 * metrics. */
dq_status dq_html_rows_read(dq_html *h, dq_err *err);

/* The metric that stands for a row: paper_metric, else acc, exact_match. NULL: none. */
const char *dq_html_main_metric(const dq_html_row *r);

/* What the standard errors of texts take for independent: "document" or "window". */
const char *dq_html_cluster(const dq_html *h);

/* Whether some row has this member, an object. */
bool dq_html_any(const dq_html *h, const char *key);
/* The first such object; NULL: none. */
const json_t *dq_html_first(const dq_html *h, const char *key);
/* Whether some row has a cache that evicts or rounds. */
bool dq_html_shows_kv(const dq_html *h);
/* True for the first row of its task. */
bool dq_html_first_of_task(const dq_html *h, int i);
/* Indices of the rows of a task that lie on the same line over logit bits as row `first`, widest
 * first; 16 bits belong to the lines of all granularities. Empty unless `first` is the line's first row.
 * At most `cap`. */
int dq_html_line(const dq_html *h, int first, int *index, int cap);

#endif
