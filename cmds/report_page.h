/* The page of dq report and of dq eval --html: documents in one HTML file with the script that
 * draws them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REPORT_PAGE_H
#define DQ_REPORT_PAGE_H

#include "base/json.h"

#include <stddef.h>

/* A document as --json prints it (borrowed), and its name in messages and on pages; "": no file. */
typedef struct dq_page_input {
    const char *name;
    const json_t *document;
} dq_page_input;

/* Writes all of an HTML file that loads nothing else, or nothing; path NULL: standard output, which
 * the caller flushes. DQ_DAMAGED for no document or missing members, DQ_MISMATCH for other kinds,
 * versions and more than a page can show, DQ_FILE. */
dq_status dq_page_write(const dq_page_input *in, int n, const char *path, dq_err *err);

/* The files of the page as the build embeds them. */
extern const char dq_page_html[], dq_page_css[], dq_page_draw[], dq_page_documents[],
    dq_page_sections[];
extern const size_t dq_page_html_len, dq_page_css_len, dq_page_draw_len, dq_page_documents_len,
    dq_page_sections_len;

#endif
