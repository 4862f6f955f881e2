/* The page of dq report and of dq eval --html: documents of dq in one HTML file with the script that draws them (page.html,
 * page.css, draw.js, documents.js, sections.js).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REPORT_PAGE_H
#define DQ_REPORT_PAGE_H

#include "base/json.h"

#include <stddef.h>

/* A whole document as --json prints it (borrowed), and the name that stands for it in messages and on pages of several documents; ""
 * for one that is in no file. */
typedef struct dq_page_input {
    const char *name;
    const json_t *document;
} dq_page_input;

/* Writes n documents as one HTML file that loads nothing else. Path NULL: standard output, which the caller flushes. Either the whole
 * page is written or nothing. Messages about a document begin with its name. DQ_DAMAGED for what is no document or lacks members,
 * DQ_MISMATCH for other kinds and versions and for more than a page can show, DQ_FILE. */
dq_status dq_page_write(const dq_page_input *in, int n, const char *path, dq_err *err);

/* The files of the page as the build embeds them. */
extern const char dq_page_html[], dq_page_css[], dq_page_draw[], dq_page_documents[],
    dq_page_sections[];
extern const size_t dq_page_html_len, dq_page_css_len, dq_page_draw_len, dq_page_documents_len,
    dq_page_sections_len;

#endif
