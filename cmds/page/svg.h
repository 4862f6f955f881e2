/* svg: takes a drawing by gnuplot apart and puts what shows into a page.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SVG_H
#define DQ_SVG_H

#include "cmds/page/html_page.h"

/* Colours that stand for variables of the page, six hexadecimal digits: ink, soft, grid; series k
 * is DQ_SVG_SERIES + k. */
#define DQ_SVG_INK  "000201"
#define DQ_SVG_SOFT "000202"
#define DQ_SVG_GRID "000203"
enum { DQ_SVG_SERIES = 0x000100 };

/* Elements keep the attributes that draw; names, definitions and empty groups go. The marks that it
 * refers to are the page's own (page_style.h). A text that is no drawing is DQ_RESOURCE: gnuplot
 * broke off. */
dq_status dq_svg_inline(dq_html_page *p, const char *svg, const char *alt);

#endif
