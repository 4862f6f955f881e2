/* html_report: the results of dq eval as one page for a browser.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_REPORT_H
#define DQ_HTML_REPORT_H

#include "base/json.h"

/* Writes a whole dq-eval/1 document (borrowed) as one HTML file that needs nothing else: no script,
 * no other resource; gnuplot draws. A section appears where the document has data for it. Either the
 * whole file is written or none: DQ_DAMAGED for another document, DQ_RESOURCE where gnuplot fails
 * (dq_gnuplot_check asks before), DQ_FILE. */
dq_status dq_eval_html(const json_t *document, const char *path, dq_err *err);

#endif
