/* report: documents of dq stats, dq quantize, dq plan, dq bench and dq eval as one page for a browser.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REPORT_H
#define DQ_REPORT_H

#include "base/json.h"

/* A whole document as --json prints it (borrowed), and the name that stands for it in messages and on
 * pages of several documents; "" for one that is in no file. */
typedef struct dq_report_input {
    const char *name;
    const json_t *document;
} dq_report_input;

/* Whether pictures can be drawn here: DQ_RESOURCE with the package to install. Commands ask before long
 * work. */
dq_status dq_report_check(dq_err *err);

/* Writes n documents as one HTML file that needs nothing else: no script, no other resource; gnuplot
 * draws. Documents of several kinds, or several of dq eval, become parts of the page; a section appears
 * where a document has data for it. Path NULL: standard output, which the caller flushes. Either the
 * whole page is written or nothing. Messages about a document begin with its name. DQ_DAMAGED for
 * what is no document or lacks members, DQ_MISMATCH for other kinds and versions, DQ_RESOURCE where
 * gnuplot fails, DQ_FILE, DQ_STOPPED. */
dq_status dq_report_write(const dq_report_input *in, int n, const char *path, dq_err *err);

#endif
