/* html_settings: every setting of the documents of dq eval on a page whose KL divergence from its reference is known, with
 * the verdict on its loss that dq eval has given.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_SETTINGS_H
#define DQ_HTML_SETTINGS_H

#include "cmds/report/html_rows.h"
#include "cmds/report/html_sections.h"
#include "stat/stat.h"

/* What is lower than in the reference; of several things at once: DQ_HTML_MIXED. */
typedef enum dq_html_axis {
    DQ_HTML_LOGITS,
    DQ_HTML_WEIGHTS,
    DQ_HTML_CODES,   /* of the KV cache, all tokens kept */
    DQ_HTML_EVICTED, /* tokens of a 16-bit cache */
    DQ_HTML_CACHE,   /* both */
    DQ_HTML_MIXED,
    DQ_HTML_AXES
} dq_html_axis;
extern const char *const dq_html_axis_names[];

typedef struct dq_html_setting {
    dq_html *h; /* the document */
    const dq_html_row *row;
    const char *document; /* its name on a page of several; "" of one */
    dq_html_axis axis;
    const char *model; /* whose weights the reference has */
    const char *kind;  /* settings of one kind are ordered by size: "per-row", ", int8" */
    const char *label; /* "8 bits", "w4.h5", "8:4 h2o keep 0.5" */
    double size;       /* logit bits, bits per weight, share of the bytes of a 16-bit cache; NaN */
    double kld;
    const json_t *verdict; /* "verdict" of the row: of its loss, nats of NLL */
    double margin;
    dq_interval_decision is;
} dq_html_setting;

/* In the arena of the parts, which share one. Those of one model, margin, axis, kind, document and task lie beside each other,
 * the largest first. NULL with *n 0 where there are none, or the page has failed. */
dq_html_setting *dq_html_settings_of(dq_html_part *part, int n_parts, int *n);
/* How many from at[0] on belong to one group. */
int dq_html_settings_group(const dq_html_setting *at, int n);
/* The lowest of a group that lies within the margin; of logits, with every larger width of the group. NULL: none. */
const dq_html_setting *dq_html_settings_lowest(const dq_html_setting *group, int n);
/* "far.json, text"; the task alone on a page of one document. */
const char *dq_html_settings_where(dq_html *h, const dq_html_setting *s);
/* Bits per weight of a row, and the share of bytes that its cache holds; NaN where they are not known. */
double dq_html_weight_bits(const dq_html_row *r);
double dq_html_cache_share(const dq_html_row *r);
/* A cache that is no smaller than all tokens in 16 bits: nothing recommends it. */
bool dq_html_saves_nothing(const dq_html_setting *s);
#define DQ_HTML_SAVES_NOTHING "saves nothing at this context"

#endif
