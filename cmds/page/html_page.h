/* html_page: an HTML page that grows: escaped text, sections with a table of contents, tables, numbers
 * with their standard errors.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_PAGE_H
#define DQ_HTML_PAGE_H

#include "base/text.h"

/* The first failure stays in err; after it nothing is added. */
typedef struct dq_html_page {
    dq_strbuf body, toc, lead;
    bool leads; /* what is added goes into the lead */
    int n_figures, n_tables;
    int n_folds; /* that are open */
    size_t box;  /* where the box of the latest table begins */
    int part;    /* number of the latest part; 0: sections stand on the page itself */
    dq_err *err;
} dq_html_page;

void dq_html_page_begin(dq_html_page *p, dq_err *err);
void dq_html_page_free(dq_html_page *p);

/* HTML as it stands, made of nothing but dq's own words and numbers. */
void dq_html_page_html(dq_html_page *p, const char *fmt, ...) DQ_PRINTF(2, 3);
/* Anybody's text, escaped for content and for attributes in double quotes. Control characters
 * become U+FFFD. */
void dq_html_page_text(dq_html_page *p, const char *text);
/* The lead stands between the title and the table of contents; what is added up to its end goes there. */
void dq_html_page_lead(dq_html_page *p);
void dq_html_page_lead_end(dq_html_page *p);
/* What the reader can open, or close where it is open, under a summary in dq's words. Summary NULL: it is added next, up to
 * dq_html_page_fold_inside. */
void dq_html_page_fold(dq_html_page *p, const char *summary, bool open);
void dq_html_page_fold_inside(dq_html_page *p);
void dq_html_page_fold_end(dq_html_page *p);
/* A page of several subjects has parts around its sections: the next one, its title (escaped) and its
 * entry in the table of contents, above those of its sections. Ends with dq_html_page_part_end. */
void dq_html_page_part(dq_html_page *p, const char *title);
void dq_html_page_part_end(dq_html_page *p);
/* A heading, with its entry in the table of contents; ends with dq_html_page_section_end. The id is one of
 * the page, or of the part. */
void dq_html_page_section(dq_html_page *p, const char *id, const char *title);
void dq_html_page_section_end(dq_html_page *p);
/* A heading inside a section, filled between the two. */
void dq_html_page_heading(dq_html_page *p);
void dq_html_page_heading_end(dq_html_page *p);
/* The number of a table, its caption (dq's words), and the row of titles. In a box of its own that
 * scrolls; one of more than DQ_PAGE_ROWS rows can be opened, where it is in no fold. Titles end with NULL; one that begins with '<' (left out) stands to the left. */
enum { DQ_PAGE_ROWS = 16 };
void dq_html_page_table(dq_html_page *p, const char *caption, const char *const *titles);
/* The same in parts, for titles that are anybody's text: titles NULL, then each title, then rows. */
void dq_html_page_title(dq_html_page *p, const char *title, bool left);
void dq_html_page_table_rows(dq_html_page *p);
void dq_html_page_table_end(dq_html_page *p);
/* Cells: text to the left, what printf makes to the right, a value ± its standard error. */
void dq_html_page_cell(dq_html_page *p, const char *text);
void dq_html_page_cellf(dq_html_page *p, const char *fmt, ...) DQ_PRINTF(2, 3);
void dq_html_page_value(dq_html_page *p, double value, double std_err);
/* value ± std_err in at least 64 bytes: two digits of the error, or four significant digits where
 * there is none; "–" for NaN. */
const char *dq_html_page_value_text(char *buf, size_t cap, double value, double std_err);

/* Writes the whole page, without external resources: `title` escaped. To standard output where path is
 * NULL, which the caller flushes. */
dq_status dq_html_page_write(dq_html_page *p, const char *title, const char *path);

#endif
