/* picture: see picture.h. Two strings grow side by side: the script's blocks of numbers and the line `plot` that
 * names them. At the end both go through gnuplot, and its drawing through svg.c into the page.
 * SPDX-License-Identifier: MIT */
#include "cmds/page/picture.h"

#include "cmds/page/gnuplot.h"
#include "cmds/page/page_style.h"
#include "cmds/page/svg.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DASHES = 4 };
/* gnuplot's point types; their names in the page are gpPt and the type less one. */
static const int mark_type[DQ_PAGE_MARKS] = {7, 5, 9, 13, 11, 6, 4};
static const char *const dash_plot[DASHES] = {"1", "(9,5)", "(2,4)", "(9,4,2,4)"};
static const char *const dash_svg[DASHES] = {"none", "7 4", "2 3", "7 3 2 3"};

static void add_args(dq_picture *c, dq_strbuf *b, const char *fmt, va_list args)
{
    char line[1024];
    int n = vsnprintf(line, sizeof line, fmt, args);
    if (n < 0 || n >= (int)sizeof line)
        dq_fail(c->p->err, DQ_BUG, "picture: a line of %d bytes", n);
    else if (c->p->err->code == DQ_OK)
        dq_strbuf_add(b, line, (size_t)n, c->p->err);
}

void dq_picture_set(dq_picture *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_args(c, &c->script, fmt, args);
    va_end(args);
}

static void plot(dq_picture *c, const char *fmt, ...) DQ_PRINTF(2, 3);

static void plot(dq_picture *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_args(c, &c->plot, fmt, args);
    va_end(args);
}

/* Colours by number: svg.c turns them into the page's variables. */
#define INK  "rgb \"#" DQ_SVG_INK "\""
#define SOFT "rgb \"#" DQ_SVG_SOFT "\""
#define GRID "rgb \"#" DQ_SVG_GRID "\""

static int colour(dq_picture_style style)
{
    return DQ_SVG_SERIES + style.colour % DQ_PAGE_COLOURS;
}

void dq_picture_begin(dq_picture *c, dq_html_page *p, int wide, int high)
{
    memset(c, 0, sizeof *c);
    c->p = p;
    dq_picture_set(c,
                   "set terminal svg size %d,%d dynamic enhanced font ',13'\n"
                   "set encoding utf8\nset datafile missing 'NaN'\nset key off\n"
                   "set border 3 lc " SOFT " lw 1\nset tics nomirror scale 0.6 textcolor " INK "\n"
                   "set xtics offset 0,0.25\nset xlabel offset 0,0.5 textcolor " INK "\n"
                   "set ylabel offset 0.5,0 textcolor " INK "\n"
                   "set grid ytics lt 1 lw 1 lc " GRID "\nset bars 0.5\n",
                   wide, high);
}

/* gnuplot computes ranges in double: what is next to its ends has no place on a page. */
static bool can_be_drawn(double x)
{
    enum { DECADES = 100 };
    return isfinite(x) && (x == 0 || fabs(log10(fabs(x))) < DECADES);
}

static void number(dq_picture *c, double x)
{
    if (can_be_drawn(x))
        dq_picture_set(c, " %.9g", x);
    else
        dq_picture_set(c, " NaN");
}

/* A block of numbers in the script, column by column in `col`; NULL columns repeat the first y. */
static void block(dq_picture *c, int n, int n_cols, const double *const *col)
{
    dq_picture_set(c, "$d%d << EOD\n", c->n_blocks);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n_cols; k++) number(c, col[k][i]);
        dq_picture_set(c, "\n");
    }
    dq_picture_set(c, "EOD\n");
    plot(c, "%s$d%d ", c->plot.n ? ", \\\n " : "plot ", c->n_blocks++);
}

static bool any(int n, const double *y)
{
    for (int i = 0; i < n; i++) {
        if (can_be_drawn(y[i])) return true;
    }
    return false;
}

/* Bars of errors, where both ends are known. */
static void bars(dq_picture *c, int rgb, int n, const double *x, const double *y, const double *lo,
                 const double *hi)
{
    if (!lo || !any(n, lo)) return;
    block(c, n, 4, (const double *const[]){x, y, lo, hi});
    plot(c, "using 1:2:3:4 with yerrorbars pt 7 ps 0 lw 1.3 lc rgb \"#%06x\"", (unsigned)rgb);
}

void dq_picture_line(dq_picture *c, dq_picture_style style, int n, const double *x, const double *y,
                     const double *lo, const double *hi)
{
    if (!any(n, y)) return;
    bars(c, colour(style), n, x, y, lo, hi);
    block(c, n, 2, (const double *const[]){x, y});
    plot(c, "using 1:2 with linespoints pt %d ps 0.75 lw 1.8 dt %s lc rgb \"#%06x\"",
         mark_type[style.mark % DQ_PAGE_MARKS], dash_plot[style.dash % DASHES],
         (unsigned)colour(style));
}

static void points(dq_picture *c, dq_picture_style style, double size, int n, const double *x,
                   const double *y)
{
    if (!any(n, y)) return;
    block(c, n, 2, (const double *const[]){x, y});
    plot(c, "using 1:2 with points pt %d ps %g lc rgb \"#%06x\"",
         mark_type[style.mark % DQ_PAGE_MARKS], size, (unsigned)colour(style));
}

void dq_picture_dots(dq_picture *c, dq_picture_style style, int n, const double *x, const double *y)
{
    points(c, style, 0.4, n, x, y);
}

void dq_picture_marks(dq_picture *c, dq_picture_style style, int n, const double *x,
                      const double *y)
{
    points(c, style, 0.8, n, x, y);
}

void dq_picture_rings(dq_picture *c, int n, const double *x, const double *y)
{
    if (!any(n, y)) return;
    block(c, n, 2, (const double *const[]){x, y});
    plot(c, "using 1:2 with points pt 6 ps 1.7 lc " INK);
}

void dq_picture_whiskers(dq_picture *c, dq_picture_style style, int n, const double *x,
                         const double *lo, const double *hi)
{
    if (!any(n, hi)) return;
    block(c, n, 3, (const double *const[]){x, lo, hi});
    plot(c, "using 1:2:(0):($3-$2) with vectors nohead lw 1.2 dt (1,3) lc rgb \"#%06x\"",
         (unsigned)colour(style));
    block(c, n, 2, (const double *const[]){x, hi});
    plot(c, "using 1:2 with points pt 4 ps 0.35 lc rgb \"#%06x\"", (unsigned)colour(style));
}

void dq_picture_band(dq_picture *c, dq_picture_style style, int n, const double *x,
                     const double *lo, const double *hi)
{
    if (!any(n, lo)) return;
    block(c, n, 3, (const double *const[]){x, lo, hi});
    plot(c, "using 1:2:3 with filledcurves fs transparent solid 0.16 noborder lc rgb \"#%06x\"",
         (unsigned)colour(style));
}

void dq_picture_bars(dq_picture *c, dq_picture_style style, double width, int n, const double *x,
                     const double *y, const double *lo, const double *hi)
{
    if (!any(n, y)) return;
    block(c, n, 2, (const double *const[]){x, y});
    plot(c, "using 1:2:(%.4g) with boxes fs solid 1 noborder lc rgb \"#%06x\"", width,
         (unsigned)colour(style));
    bars(c, (int)strtol(DQ_SVG_INK, NULL, 16), n, x, y, lo, hi);
}

void dq_picture_level(dq_picture *c, double y)
{
    if (isfinite(y))
        plot(c, "%s%.9g with lines lw 1.3 dt (2,4) lc " SOFT, c->plot.n ? ", \\\n " : "plot ", y);
}

void dq_picture_word(dq_picture *c, double x, double y, bool below, const char *word)
{
    if (isfinite(x) && isfinite(y))
        dq_picture_set(c,
                       "set label \"%s\" at %.9g,%.9g center offset 0,%.1f font ',11' "
                       "textcolor " SOFT "\n",
                       word, x, y, below ? -0.9 : 0.8);
}

void dq_picture_end(dq_picture *c, const char *alt)
{
    char *svg = NULL;
    size_t len;
    const bool empty = c->plot.n == 0; /* gnuplot would fail */
    plot(c, "\n");
    if (empty) dq_html_page_html(c->p, "<p class=\"soft\">No value that could be drawn.</p>\n");
    if (c->p->err->code == DQ_OK) dq_strbuf_add(&c->script, c->plot.s, c->plot.n, c->p->err);
    if (c->p->err->code == DQ_OK && !empty &&
        dq_gnuplot_run(&svg, &len, c->script.s, c->script.n, c->p->err) == DQ_OK)
        dq_svg_inline(c->p, svg, alt);
    free(svg);
    dq_block_free(c->script.s);
    dq_block_free(c->plot.s);
}

void dq_picture_figure_begin(dq_html_page *p)
{
    dq_html_page_html(p, "<figure>\n");
}

void dq_picture_figure_caption(dq_html_page *p)
{
    dq_html_page_html(p, "<figcaption><b>Figure %d.</b> ", ++p->n_figures);
}

void dq_picture_figure_end(dq_html_page *p)
{
    dq_html_page_html(p, "</figcaption></figure>\n");
}

void dq_picture_legend_begin(dq_html_page *p)
{
    dq_html_page_html(p, "<ul class=\"legend\">\n");
}

void dq_picture_legend_item(dq_html_page *p, dq_picture_style style, const char *label)
{
    dq_html_page_html(p,
                      "<li><svg viewBox=\"0 0 34 12\" aria-hidden=\"true\" color=\"var(--s%d)\">"
                      "<path d=\"M1 6H33\" stroke=\"currentColor\" stroke-width=\"2\" "
                      "stroke-dasharray=\"%s\"/><use href=\"#gpPt%d\" transform=\"translate(17,6) "
                      "scale(4.4)\"/></svg><span>",
                      style.colour % DQ_PAGE_COLOURS, dash_svg[style.dash % DASHES],
                      mark_type[style.mark % DQ_PAGE_MARKS] - 1);
    dq_html_page_text(p, label);
    dq_html_page_html(p, "</span></li>\n");
}

void dq_picture_legend_bar(dq_html_page *p, int colour, const char *label)
{
    dq_html_page_html(p, "<li><span class=\"swatch s%d\"></span><span>", colour % DQ_PAGE_COLOURS);
    dq_html_page_text(p, label);
    dq_html_page_html(p, "</span></li>\n");
}

void dq_picture_legend_end(dq_html_page *p)
{
    dq_html_page_html(p, "</ul>\n");
}
