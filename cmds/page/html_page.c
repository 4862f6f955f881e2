/* html_page: see html_page.h. Body and table of contents grow side by side; the frame is put around
 * them when the page is written.
 * SPDX-License-Identifier: MIT */
#include "cmds/page/html_page.h"

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cmds/page/page_style.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void dq_html_page_begin(dq_html_page *p, dq_err *err)
{
    memset(p, 0, sizeof *p);
    p->err = err;
}

void dq_html_page_free(dq_html_page *p)
{
    dq_block_free(p->body.s);
    dq_block_free(p->toc.s);
    dq_block_free(p->lead.s);
}

static void add(dq_html_page *p, dq_strbuf *b, const char *s, size_t n)
{
    if (p->err->code == DQ_OK) dq_strbuf_add(b, s, n, p->err);
}

static void add_words(dq_html_page *p, dq_strbuf *b, const char *s)
{
    add(p, b, s, strlen(s));
}

static dq_strbuf *grows(dq_html_page *p)
{
    return p->leads ? &p->lead : &p->body;
}

static void add_args(dq_html_page *p, const char *fmt, va_list args)
{
    char line[2048];
    int n = vsnprintf(line, sizeof line, fmt, args);
    if (n < 0 || n >= (int)sizeof line)
        dq_fail(p->err, DQ_BUG, "page: a piece of %d bytes", n);
    else
        add(p, grows(p), line, (size_t)n);
}

void dq_html_page_html(dq_html_page *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_args(p, fmt, args);
    va_end(args);
}

static void add_escaped(dq_html_page *p, dq_strbuf *b, const char *text)
{
    const char *end = text + strlen(text);
    size_t n;
    for (const char *c = text; c < end; c += n) {
        bool control;
        n = dq_utf8_next(c, (size_t)(end - c), &control);
        const char u = *c;
        const char *as = u == '<'    ? "&lt;"
                         : u == '>'  ? "&gt;"
                         : u == '&'  ? "&amp;"
                         : u == '"'  ? "&quot;"
                         : u == '\'' ? "&#39;"
                         : control   ? "\xef\xbf\xbd"
                                     : NULL;
        if (as)
            add_words(p, b, as);
        else
            add(p, b, c, n);
    }
}

void dq_html_page_text(dq_html_page *p, const char *text)
{
    add_escaped(p, grows(p), text);
}

void dq_html_page_lead(dq_html_page *p)
{
    p->leads = true;
}

void dq_html_page_lead_end(dq_html_page *p)
{
    p->leads = false;
}

void dq_html_page_fold(dq_html_page *p, const char *summary, bool open)
{
    p->n_folds++;
    dq_html_page_html(p, "<details%s><summary>%s", open ? " open=\"open\"" : "",
                      summary ? summary : "");
    if (summary) dq_html_page_fold_inside(p);
}

void dq_html_page_fold_inside(dq_html_page *p)
{
    dq_html_page_html(p, "</summary>\n");
}

void dq_html_page_fold_end(dq_html_page *p)
{
    p->n_folds--;
    dq_html_page_html(p, "</details>\n");
}

/* Of the headings of sections: one deeper in parts. */
static int level(const dq_html_page *p)
{
    return p->part ? 3 : 2;
}

/* An entry of the table of contents without its end. */
static void add_entry(dq_html_page *p, const char *id, const char *title)
{
    add_words(p, &p->toc, "<li><a href=\"#");
    add_words(p, &p->toc, id);
    add_words(p, &p->toc, "\">");
    add_escaped(p, &p->toc, title);
    add_words(p, &p->toc, "</a>");
}

void dq_html_page_part(dq_html_page *p, const char *title)
{
    char id[32];
    snprintf(id, sizeof id, "part%d", ++p->part);
    dq_html_page_html(p, "<section class=\"part\" id=\"%s\">\n<h2>", id);
    dq_html_page_text(p, title);
    dq_html_page_html(p, "</h2>\n");
    add_entry(p, id, title);
    add_words(p, &p->toc, "\n<ol>\n");
}

void dq_html_page_part_end(dq_html_page *p)
{
    dq_html_page_html(p, "</section>\n");
    add_words(p, &p->toc, "</ol></li>\n");
}

void dq_html_page_heading(dq_html_page *p)
{
    dq_html_page_html(p, "<h%d>", level(p) + 1);
}

void dq_html_page_heading_end(dq_html_page *p)
{
    dq_html_page_html(p, "</h%d>\n", level(p) + 1);
}

void dq_html_page_section(dq_html_page *p, const char *id, const char *title)
{
    char whole[64];
    const int n = p->part ? snprintf(whole, sizeof whole, "part%d-%s", p->part, id)
                          : snprintf(whole, sizeof whole, "%s", id);
    if (n >= (int)sizeof whole) dq_fail(p->err, DQ_BUG, "page: an id of %d bytes", n);
    dq_html_page_html(p, "<section id=\"%s\">\n<h%d>%s</h%d>\n", whole, level(p), title, level(p));
    add_entry(p, whole, title);
    add_words(p, &p->toc, "</li>\n");
}

void dq_html_page_section_end(dq_html_page *p)
{
    dq_html_page_html(p, "</section>\n");
}

void dq_html_page_table(dq_html_page *p, const char *caption, const char *const *titles)
{
    dq_html_page_html(p, "<figure class=\"table\"><figcaption><b>Table %d.</b> %s</figcaption>\n",
                      ++p->n_tables, caption);
    p->box = grows(p)->n;
    dq_html_page_html(
        p,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table %d\">"
        "<table><thead><tr>",
        p->n_tables);
    if (!titles) return;
    for (; *titles; titles++) {
        bool left = **titles == '<';
        dq_html_page_title(p, *titles + (left ? 1 : 0), left);
    }
    dq_html_page_table_rows(p);
}

void dq_html_page_title(dq_html_page *p, const char *title, bool left)
{
    dq_html_page_html(p, "<th scope=\"col\"%s>", left ? " class=\"l\"" : "");
    dq_html_page_text(p, title);
    dq_html_page_html(p, "</th>");
}

void dq_html_page_table_rows(dq_html_page *p)
{
    dq_html_page_html(p, "</tr></thead>\n<tbody>\n");
}

/* Rows of the latest table but for that of its titles. */
static int rows_of(dq_html_page *p)
{
    const dq_strbuf *b = grows(p);
    static const char row[] = "<tr>";
    int n = -1;
    for (size_t i = p->box; i + sizeof row - 1 <= b->n; i++)
        n += b->s[i] == '<' && memcmp(b->s + i, row, sizeof row - 1) == 0;
    return n;
}

/* Puts text before the byte `place` of what grows. */
static void insert(dq_html_page *p, size_t place, const char *text)
{
    dq_strbuf *b = grows(p);
    const size_t n = strlen(text), old = b->n;
    add(p, b, text, n);
    if (p->err->code != DQ_OK) return;
    memmove(b->s + place + n, b->s + place, old - place);
    memcpy(b->s + place, text, n);
}

void dq_html_page_table_end(dq_html_page *p)
{
    char summary[64];
    const int n = p->err->code == DQ_OK && !p->n_folds ? rows_of(p) : 0;
    dq_html_page_html(p, "</tbody></table></div>");
    if (n > DQ_PAGE_ROWS) {
        snprintf(summary, sizeof summary, "<details><summary>%d rows</summary>\n", n);
        insert(p, p->box, summary);
        dq_html_page_html(p, "</details>");
    }
    dq_html_page_html(p, "</figure>\n");
}

void dq_html_page_cell(dq_html_page *p, const char *text)
{
    dq_html_page_html(p, "<td class=\"l\">");
    dq_html_page_text(p, text);
    dq_html_page_html(p, "</td>");
}

void dq_html_page_cellf(dq_html_page *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    dq_html_page_html(p, "<td>");
    add_args(p, fmt, args);
    dq_html_page_html(p, "</td>");
    va_end(args);
}

/* The power of ten of |x| > 0. */
static int power(double x)
{
    return (int)floor(log10(fabs(x)));
}

/* Two digits of the error; an exponent where there would be more than five digits after the point. Where a table is too
 * wide, the line ends before the ±. */
static void with_error(char *buf, size_t cap, double value, double std_err)
{
    int digits = 1 - power(std_err);
    if (digits <= 5) {
        if (digits < 0) digits = 0;
        snprintf(buf, cap, "%.*f ±\u00a0%.*f", digits, value, digits, std_err);
        return;
    }
    int more = value != 0 ? power(value) - power(std_err) + 1 : 1;
    snprintf(buf, cap, "%.*e ±\u00a0%.1e", more < 0 ? 0 : more > 6 ? 6 : more, value, std_err);
}

const char *dq_html_page_value_text(char *buf, size_t cap, double value, double std_err)
{
    if (!isfinite(value))
        snprintf(buf, cap, "–");
    else if (isfinite(std_err) && std_err > 0)
        with_error(buf, cap, value, std_err);
    else if (value != 0 && (fabs(value) < 1e-3 || fabs(value) >= 1e6))
        snprintf(buf, cap, "%.2e", value);
    else
        snprintf(buf, cap, "%.*f", fabs(value) >= 1000 ? 1 : fabs(value) >= 10 ? 2 : 4, value);
    return buf;
}

void dq_html_page_value(dq_html_page *p, double value, double std_err)
{
    char text[96];
    dq_html_page_cellf(p, "%s", dq_html_page_value_text(text, sizeof text, value, std_err));
}

dq_status dq_html_page_write(dq_html_page *p, const char *title, const char *path)
{
    dq_strbuf all = {0};
    add_words(p, &all,
              "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
              "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
              "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>");
    add_escaped(p, &all, title);
    add_words(p, &all, "</title>\n<style>\n");
    for (int i = 0; dq_page_style[i]; i++) add_words(p, &all, dq_page_style[i]);
    add_words(p, &all, "</style>\n</head>\n<body>\n");
    add_words(p, &all, dq_page_style_marks);
    add_words(p, &all, "<header>\n<h1>");
    add_escaped(p, &all, title);
    add_words(p, &all, "</h1>\n");
    add(p, &all, p->lead.s, p->lead.n);
    add_words(p, &all, "<nav aria-label=\"Contents\"><h2>Contents</h2>\n<ol>\n");
    add(p, &all, p->toc.s, p->toc.n);
    add_words(p, &all, "</ol></nav>\n</header>\n<main>\n");
    add(p, &all, p->body.s, p->body.n);
    add_words(p, &all, "</main>\n</body>\n</html>\n");
    dq_json_complete(p->err); /* what it shows comes from documents */
    if (p->err->code == DQ_OK && path)
        dq_file_write(path, all.s, all.n, p->err);
    else if (p->err->code == DQ_OK)
        fwrite(all.s, 1, all.n, stdout); /* a failure stays with the stream */
    dq_block_free(all.s);
    return p->err->code;
}
