/* html_rows: the rows of a dq-eval/1 document as a report needs them: numbers by name, labels that
 * tell rows apart, series over logit bits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_ROWS_H
#define DQ_HTML_ROWS_H

#include "base/json.h"
#include "cmds/page/picture.h"

/* One result. Texts belong to the document or to the arena. */
typedef struct dq_html_row {
    const json_t *j, *metrics;
    const char *model, *task, *grain;
    const char *math;  /* "f32", of the linear layers */
    const char *kv;    /* "8:4 h2o keep 0.5"; "" for a plain 16-bit cache */
    const char *label; /* the model and what tells the rows of its task apart */
    const char *line;  /* the same without the logit bits */
    int bits, model_index;
    bool starts_line;        /* first of a line over logit bits */
    dq_look look, line_look; /* of the row, of its line over logit bits */
} dq_html_row;

typedef struct dq_html {
    const json_t *document;
    dq_html_row *row;
    int n, n_models;
    const char **model;
    bool kv_differs;
    dq_arena *a;
    dq_page *p;
} dq_html;

/* Fills everything but `p`. DQ_DAMAGED where the document is not dq-eval/1. */
dq_status dq_html_read(dq_html *h, const json_t *document, dq_arena *a, dq_err *err);

/* NaN where there is no number; "" where there is no text. The object may be NULL. */
double dq_html_real(const json_t *object, const char *key);
const char *dq_html_text(const json_t *object, const char *key);
/* object.key.value; *std_err (may be NULL) its standard error; NaN each where absent. */
double dq_html_metric(const json_t *object, const char *key, double *std_err);
/* Cells: object.key with its standard error, or where that is 0 with an end of its interval; the interval of an
 * object, "–" where there is none. */
void dq_html_metric_cell(dq_html *h, const json_t *object, const char *key);
void dq_html_interval_cell(dq_html *h, const json_t *object);
/* The metric that stands for a row: paper_metric, else acc, exact_match. NULL: none. */
const char *dq_html_main_metric(const dq_html_row *r);

/* What the standard errors of texts take for independent: "document" or "window". */
const char *dq_html_cluster(const dq_html *h);

/* Whether some row has a cache that forgets or rounds. */
bool dq_html_shows_kv(const dq_html *h);
/* True for the first row of its task. */
bool dq_html_first_of_task(const dq_html *h, int i);
/* Indices of the rows of a task that lie on the same line over logit bits as row `first`, widest
 * first; 16 bits belong to the lines of all grains. Empty unless `first` is the line's first row.
 * At most `cap`. */
int dq_html_line(const dq_html *h, int first, int *index, int cap);
/* printf into the arena; "" when memory is short, which the page remembers. */
const char *dq_html_words(dq_html *h, const char *fmt, ...) DQ_PRINTF(2, 3);

#endif
