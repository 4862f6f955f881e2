/* html_grid: a number of every head of every layer, as a table whose cells are darker where it is larger.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_GRID_H
#define DQ_HTML_GRID_H

#include "cmds/report/html_part.h"

typedef enum dq_html_shading {
    DQ_HTML_BY_SHARE,     /* from 0 to 1 */
    DQ_HTML_BY_VALUE,     /* from 0 to the largest */
    DQ_HTML_BY_LOGARITHM, /* from the least above 0 to the largest */
    DQ_HTML_BY_KIND       /* a letter and a colour: the kind of a head */
} dq_html_shading;

typedef struct dq_html_grid_cell {
    double layer, head, map; /* map NaN: there is one */
    double value;            /* NaN: not known */
    const char *kind;        /* of DQ_HTML_BY_KIND: "retrieval" */
} dq_html_grid_cell;

typedef struct dq_html_grid {
    const char *what;    /* of the attribute data-grid, dq's word */
    const char *name;    /* of the model (escaped) */
    const char *caption; /* dq's words */
    dq_html_shading shades;
    dq_html_grid_cell *at; /* [n], in any order */
    int n;
} dq_html_grid;

/* A row for each layer, a column for each head, or head and map; nothing where it would have too many cells for a page. */
void dq_html_grid_show(dq_html *h, const dq_html_grid *g);
/* x in at most four characters where it is from 0.01 to 9999, in at least 32 bytes. */
const char *dq_html_grid_text(char buf[32], double x);

#endif
