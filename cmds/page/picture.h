/* picture: one drawing of a page: a gnuplot script that grows, its SVG put into the page in the
 * page's own colours and marks.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PICTURE_H
#define DQ_PICTURE_H

#include "cmds/page/html_page.h"

/* How one series looks, in the drawing and in the legend; any number is taken modulo what there is. */
typedef struct dq_picture_style {
    int colour, mark, dash;
} dq_picture_style;

typedef struct dq_picture {
    dq_html_page *p;
    dq_strbuf script, plot;
    int n_blocks;
} dq_picture;

/* All in user units of `wide` × `high`; the page scales them. Failures stay in the page's err. */
void dq_picture_begin(dq_picture *c, dq_html_page *p, int wide, int high);
/* Lines of gnuplot, ended by a newline each. They hold dq's own words and numbers only (gnuplot
 * would run or mark up what is in others): names that users chose stand in the legend, which is
 * HTML. */
void dq_picture_set(dq_picture *c, const char *fmt, ...) DQ_PRINTF(2, 3);
/* n points in order of x; where y is NaN there is none, where lo or hi is NaN (or lo NULL) no bar. */
void dq_picture_line(dq_picture *c, dq_picture_style style, int n, const double *x, const double *y,
                     const double *lo, const double *hi);
/* Marks without a line; small ones. */
void dq_picture_dots(dq_picture *c, dq_picture_style style, int n, const double *x,
                     const double *y);
/* The same as large as those of a line. */
void dq_picture_marks(dq_picture *c, dq_picture_style style, int n, const double *x,
                      const double *y);
/* Rings around points, drawn before what they stand around. */
void dq_picture_rings(dq_picture *c, int n, const double *x, const double *y);
/* Thin dotted lines from (x, lo) to (x, hi). */
void dq_picture_whiskers(dq_picture *c, dq_picture_style style, int n, const double *x,
                         const double *lo, const double *hi);
/* The area between lo and hi. */
void dq_picture_band(dq_picture *c, dq_picture_style style, int n, const double *x,
                     const double *lo, const double *hi);
/* Bars of a width from 0 to y with error bars. */
void dq_picture_bars(dq_picture *c, dq_picture_style style, double width, int n, const double *x,
                     const double *y, const double *lo, const double *hi);
/* A horizontal dotted line over the whole width. */
void dq_picture_level(dq_picture *c, double y);
/* A word of dq's own at a point, a little above or below it. */
void dq_picture_word(dq_picture *c, double x, double y, bool below, const char *word);
/* Draws; `alt` (escaped) is read out instead of the picture. A picture to which no value was added is a
 * sentence that says so. The picture is gone afterwards. */
void dq_picture_end(dq_picture *c, const char *alt);

/* <figure>, before the picture; the caption with its number, after it, to be filled; both ends. */
void dq_picture_figure_begin(dq_html_page *p);
void dq_picture_figure_caption(dq_html_page *p);
void dq_picture_figure_end(dq_html_page *p);
void dq_picture_legend_begin(dq_html_page *p);
void dq_picture_legend_item(dq_html_page *p, dq_picture_style style, const char *label);
void dq_picture_legend_bar(dq_html_page *p, int colour, const char *label);
void dq_picture_legend_end(dq_html_page *p);

#endif
