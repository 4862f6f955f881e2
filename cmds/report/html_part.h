/* html_part: what the sections of a page read: the documents of one part, their results under short
 * names, numbers by key, and cells made of them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_PART_H
#define DQ_HTML_PART_H

#include "base/json.h"
#include "base/text.h"
#include "cmds/page/picture.h"
#include "cmds/report/report.h"

/* One of the `results` of a document. */
typedef struct dq_html_item {
    const json_t *j;
    const dq_report_input *in; /* the document that it stands in */
    const char *name;          /* short; no two of a part are equal */
} dq_html_item;

/* Documents of one kind. Of dq eval: one, with `row`; of the others: one or more, with `item`. */
typedef struct dq_html {
    const dq_report_input *in;
    int n_in;
    const json_t *document; /* the first of them */
    dq_html_item *item;
    struct dq_html_row *row; /* html_rows.h */
    int n, n_models;         /* items or rows; models of the rows */
    const char **model;
    const char *about;  /* what the numbers mean: HTML, for the section about the run */
    const char *differ; /* settings in which documents beside each other differ; "" none */
    bool kv_differs;
    bool codes_differ; /* some rows differ in the codes of their caches, and in nothing else */
    dq_arena *a;
    dq_html_page *p;
} dq_html;

/* Puts a document's name before a message about it. Returns err->code. */
dq_status dq_html_in(const dq_report_input *in, dq_err *err);
/* The results of all documents as items, each checked; its name is the last part of the path under `key`,
 * or more where that is another's too; "result N" where there is no path. */
typedef dq_status dq_html_check_result(const json_t *result, const char *where, dq_err *err);
dq_status dq_html_items(dq_html *h, const char *key, dq_html_check_result *check, dq_err *err);

/* What a section cannot do without: members of the objects at `path` from a result, "" itself, "layers[].hidden_states" that
 * of each element of the list. A table ends with {0}. */
typedef enum dq_html_need {
    DQ_NEED_TEXT,
    DQ_NEED_OBJECT,
    DQ_NEED_OBJECT_OR_NULL,
    DQ_NEED_LIST,
    DQ_NEED_NUMBER,
    DQ_NEED_NUMBER_OR_NULL,
    DQ_NEED_BOOL
} dq_html_need;
typedef struct dq_html_members {
    const char *path;
    const char *names; /* with spaces between */
    dq_html_need need;
} dq_html_members;
/* DQ_DAMAGED: a member is missing, or of another type. `where` says which object it is: "results[3]". */
dq_status dq_html_check_members(const json_t *object, const char *where,
                                const dq_html_members *table, dq_err *err);
dq_status dq_html_check(const json_t *object, const char *key, dq_html_need need, const char *where,
                        dq_err *err);

/* NaN where there is no number; "" where there is no text. The object may be NULL. */
double dq_html_real(const json_t *object, const char *key);
const char *dq_html_text(const json_t *object, const char *key);
/* list[i], NaN where that is no number. */
double dq_html_real_at(const json_t *list, size_t i);
/* A member of the result of item i; NULL: none. */
const json_t *dq_html_member(const dq_html *h, int i, const char *key);
/* object.key.value; *std_err (may be NULL) its standard error; NaN each where absent. */
double dq_html_metric(const json_t *object, const char *key, double *std_err);

/* Cells: any value of a document; a count; object.key with its standard error, or where that is 0 with an
 * end of its interval; the interval of an object. "–" for what there is not. */
void dq_html_json_cell(dq_html *h, const json_t *v);
void dq_html_count_cell(dq_html *h, double n);
void dq_html_real_cell(dq_html *h, double x);
void dq_html_metric_cell(dq_html *h, const json_t *object, const char *key);
void dq_html_interval_cell(dq_html *h, const json_t *object);
/* "0.00121 to 0.00178", in one line. */
void dq_html_ends_cell(dq_html *h, double low, double high);
/* A token in quotes, or its id where there is no tokenizer: members of a place. */
void dq_html_token_cell(dq_html *h, const json_t *place, const char *text, const char *id);
/* What a model takes, of the object that has it: two cells, bits per weight over all parameters and bytes of its files. */
void dq_html_size_cells(dq_html *h, const json_t *object);
/* The words of a JSON value, without a cell around them. */
void dq_html_json_words(dq_html *h, const json_t *v);

/* The axis of a picture over numbers of tokens, logarithmic where there are two. */
void dq_html_token_axis(dq_picture *c, double min, double max);
/* The vertical axis of shares that are right, which lie from min to max: no tick is below 0 or above 1, and shares that are
 * all equal have room around them. */
void dq_html_score_axis(dq_picture *c, double min, double max);
/* The vertical axis of losses, logarithmic, which lie from min to max: a little more than that, and at least one power of 10. */
void dq_html_loss_axis(dq_picture *c, double min, double max);
/* The axis of a picture over layers 0 to `last`. */
void dq_html_layer_axis(dq_picture *c, double last);
/* printf into the arena; "" when memory is short, which the page remembers. */
const char *dq_html_words(dq_html *h, const char *fmt, ...) DQ_PRINTF(2, 3);
/* Appends to a list of words, ", " between them; the list in the arena ("" of none), which ends it. */
void dq_html_list_add(dq_html *h, dq_strbuf *list, const char *text);
const char *dq_html_list_end(dq_html *h, dq_strbuf *list);
/* The last part of a path. */
const char *dq_html_last(const char *path);

#endif
