/* html_sections: the sections of the page that dq eval writes. Each adds itself where the document
 * has data for it; failures stay in the page's err.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_SECTIONS_H
#define DQ_HTML_SECTIONS_H

#include "cmds/report/html_rows.h"

void dq_html_verdicts(dq_html *h);
/* html_bits.c: over logit bits; html_kv.c: over the bytes of the KV cache. */
void dq_html_accuracy(dq_html *h);
void dq_html_kld(dq_html *h);
void dq_html_kv(dq_html *h);
/* html_long.c: over positions and shots. */
void dq_html_positions(dq_html *h);
void dq_html_icl(dq_html *h);
/* Retrieval, and where attention goes meanwhile: html_needle.c, html_attention.c. */
void dq_html_needle(dq_html *h);
void dq_html_attention(dq_html *h);
/* html_tables.c */
void dq_html_settings(dq_html *h);
void dq_html_slices(dq_html *h);
void dq_html_generation(dq_html *h);
void dq_html_results(dq_html *h);
void dq_html_paired(dq_html *h);

#endif
