/* svg: see svg.h. One walk over gnuplot's text, tag by tag, which copies the elements and attributes that draw and
 * drops the rest. A group is written when its first element is, so that empty ones vanish; anything unknown ends
 * the walk, and the page fails rather than take it in.
 * SPDX-License-Identifier: MIT */
#include "cmds/page/svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct attribute {
    const char *name, *value;
    int name_len, value_len;
} attribute;

enum { ATTRIBUTES = 16, OPEN = 64 };

/* Groups are written when something is drawn in them; `pending` of them are not yet. */
typedef struct walk {
    dq_html_page *p;
    const char *at;
    struct {
        attribute a[ATTRIBUTES];
        int n;
    } group[OPEN];
    int depth, pending;
} walk;

static bool is(const attribute *a, const char *name)
{
    return (int)strlen(name) == a->name_len && memcmp(a->name, name, (size_t)a->name_len) == 0;
}

static bool draws(const attribute *a)
{
    static const char *const kept[] = {
        "fill",
        "stroke",
        "stroke-width",
        "stroke-dasharray",
        "fill-opacity",
        "color",
        "x",
        "y",
        "transform",
        "d",
        "points",
        "width",
        "height",
        "dy",
        "font-size",
        "text-anchor",
        "xlink:href",
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (is(a, kept[i])) return true;
    }
    return false;
}

/* The variable that a colour stands for; NULL: none. */
static const char *variable(char buf[16], const char *value, int len)
{
    int r = -1, g = -1, b = -1;
    char v[32];
    snprintf(v, sizeof v, "%.*s", len, value);
    if (strcmp(v, "black") == 0) return "var(--ink)";
    if (strcmp(v, "white") == 0) return "var(--paper)";
    if (sscanf(v, "rgb(%d,%d,%d)", &r, &g, &b) != 3 &&
        !(v[0] == '#' &&
          sscanf(v, "#%2x%2x%2x", (unsigned *)&r, (unsigned *)&g, (unsigned *)&b) == 3))
        return NULL;
    long all = (long)r << 16 | (long)g << 8 | b;
    if (all == strtol(DQ_SVG_INK, NULL, 16)) return "var(--ink)";
    if (all == strtol(DQ_SVG_SOFT, NULL, 16)) return "var(--soft)";
    if (all == strtol(DQ_SVG_GRID, NULL, 16)) return "var(--grid)";
    snprintf(buf, 16, "var(--s%ld)", (all - DQ_SVG_SERIES) & 15);
    return buf;
}

/* A path is as long as it likes; a piece of a page is not. */
static void put(dq_html_page *p, const char *s, int n)
{
    for (; n > 0; s += 1000, n -= 1000) dq_html_page_html(p, "%.*s", n < 1000 ? n : 1000, s);
}

static void put_attribute(dq_html_page *p, const attribute *a)
{
    char buf[16];
    const char *v = variable(buf, a->value, a->value_len);
    if (is(a, "xlink:href"))
        dq_html_page_html(p, " href=\"");
    else
        dq_html_page_html(p, " %.*s=\"", a->name_len, a->name);
    if (v && (is(a, "fill") || is(a, "stroke") || is(a, "color")))
        dq_html_page_html(p, "%s", v);
    else
        put(p, a->value, a->value_len);
    dq_html_page_html(p, "\"");
}

static void put_attributes(dq_html_page *p, const attribute *a, int n)
{
    for (int i = 0; i < n; i++) {
        if (draws(&a[i])) put_attribute(p, &a[i]);
    }
}

static void write_pending(walk *w)
{
    for (int i = w->depth - w->pending; i < w->depth; i++) {
        dq_html_page_html(w->p, "<g");
        put_attributes(w->p, w->group[i].a, w->group[i].n);
        dq_html_page_html(w->p, ">");
    }
    w->pending = 0;
}

/* name="value" or name='value', up to the end of the tag. False where it is none. */
static bool read_attributes(walk *w, attribute *a, int *n)
{
    *n = 0;
    for (;;) {
        w->at += strspn(w->at, " \t\n\r");
        if (*w->at == '>' || strncmp(w->at, "/>", 2) == 0) return true;
        const char *name = w->at, *v = name + strcspn(name, " =>");
        int len = (int)(v - name);
        v += strspn(v, " ");
        if (*n == ATTRIBUTES || *v != '=') return false;
        v += 1 + strspn(v + 1, " ");
        const char *end = *v == '"' || *v == '\'' ? strchr(v + 1, *v) : NULL;
        if (!end) return false;
        a[(*n)++] = (attribute){name, v + 1, len, (int)(end - v - 1)};
        w->at = end + 1;
    }
}

/* Blots that gnuplot puts under the marks of error bars. */
static bool is_blot(const attribute *a, int n)
{
    for (int i = 0; i < n; i++) {
        if (is(&a[i], "color") && strncmp(a[i].value, "white", 5) == 0) return true;
    }
    return false;
}

static bool end_group(walk *w)
{
    if (w->depth == 0) return false;
    if (w->pending > 0)
        w->pending--;
    else
        dq_html_page_html(w->p, "</g>\n");
    w->depth--;
    return true;
}

static bool begin_group(walk *w, const attribute *a, int n)
{
    if (w->depth == OPEN) return false;
    memcpy(w->group[w->depth].a, a, (size_t)n * sizeof *a);
    w->group[w->depth++].n = n;
    w->pending++;
    w->at++;
    return true;
}

/* What is not drawn: definitions and names. */
static bool skip(walk *w, const char *end)
{
    const char *at = strstr(w->at, end);
    if (at) w->at = at + strlen(end);
    return at != NULL;
}

/* An element that draws, from after its name on; text may hold pieces with attributes of their own.
 * False: not what gnuplot writes. */
static bool shape(walk *w, const char *name, size_t len, int depth)
{
    attribute a[ATTRIBUTES];
    int n;
    w->at = name + len;
    if (!read_attributes(w, a, &n)) return false;
    if (len == 1 && *name == 'g') return begin_group(w, a, n);
    bool empty = *w->at == '/', blot = len == 3 && strncmp(name, "use", 3) == 0 && is_blot(a, n);
    w->at += empty ? 2 : 1;
    if (blot) return empty;
    write_pending(w);
    dq_html_page_html(w->p, "<%.*s", (int)len, name);
    put_attributes(w->p, a, n);
    dq_html_page_html(w->p, empty ? "/>" : ">");
    while (!empty) {
        size_t words = strcspn(w->at, "<");
        put(w->p, w->at, (int)words);
        w->at += words;
        if (strncmp(w->at, "</", 2) == 0 && strncmp(w->at + 2, name, len) == 0) {
            dq_html_page_html(w->p, "</%.*s>", (int)len, name);
            w->at += len + 3;
            return true;
        }
        if (!*w->at || w->at[1] == '/' || depth == 3) return false;
        if (!shape(w, w->at + 1, strcspn(w->at + 1, " \t\n\r/>"), depth + 1)) return false;
    }
    return true;
}

/* A tag at `<`, with what belongs to it. */
static bool element(walk *w)
{
    if (strncmp(w->at, "</g>", 4) == 0) {
        w->at += 4;
        return end_group(w);
    }
    if (strncmp(w->at, "<defs>", 6) == 0) return skip(w, "</defs>");
    if (strncmp(w->at, "<title>", 7) == 0) return skip(w, "</title>");
    return shape(w, w->at + 1, strcspn(w->at + 1, " \t\n\r/>"), 0);
}

dq_status dq_svg_inline(dq_html_page *p, const char *svg, const char *alt)
{
    walk *w = dq_block_new(1, sizeof *w, p->err);
    int wide = 0, high = 0;
    if (!w) return p->err->code;
    const char *box = strstr(svg, "viewBox=\"0 0 ");
    bool good = box && sscanf(box + 13, "%d %d", &wide, &high) == 2;
    w->p = p;
    w->at = strstr(svg, "<g id=\"gnuplot_canvas\">");
    dq_html_page_html(p, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
                      wide, high);
    dq_html_page_text(p, alt);
    dq_html_page_html(p, "\">\n");
    good = good && w->at;
    while (good) {
        w->at += strcspn(w->at, "<");
        if (strncmp(w->at, "</svg>", 6) == 0) break;
        good = *w->at && element(w);
    }
    dq_html_page_html(p, "</svg>\n");
    if (!good || w->depth != 0)
        dq_fail(p->err, DQ_RESOURCE, "gnuplot: its output is not a whole SVG drawing (%zu bytes)",
                strlen(svg));
    dq_block_free(w);
    return p->err->code;
}
