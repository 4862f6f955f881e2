/* page_style: how pages of dq look, in light and dark, on screens and on paper.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGE_STYLE_H
#define DQ_PAGE_STYLE_H

/* Colours of series: --s0 to --s6, after Okabe and Ito, darker or lighter for the two grounds. */
enum { DQ_PAGE_COLOURS = 7, DQ_PAGE_MARKS = 7 };

/* The style sheet, in pieces; ends with NULL. */
extern const char *const dq_page_style[];
/* A hidden drawing that defines the marks of all pictures and legends, gpPt3 to gpPt12, by the
 * names that gnuplot gives them. */
extern const char dq_page_style_marks[];

#endif
