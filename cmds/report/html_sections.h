/* html_sections: the table of sections: what a page shows of which documents.
 * To add a section, for a kind of evaluation say: a file html_x.c with what it shows and when, their
 * prototypes here, a row in html_sections.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_SECTIONS_H
#define DQ_HTML_SECTIONS_H

#include "cmds/report/html_rows.h"

typedef enum dq_html_kind {
    DQ_HTML_STATS,
    DQ_HTML_QUANTIZE,
    DQ_HTML_PLAN, /* of weights */
    DQ_HTML_PLAN_KV,
    DQ_HTML_PLAN_HEADS,
    DQ_HTML_BENCH,
    DQ_HTML_EVAL
} dq_html_kind;

/* Documents of one kind, with a title of its own on a page of several. */
typedef struct dq_html_part {
    int kind; /* dq_html_kind */
    dq_html h;
} dq_html_part;

/* Failures stay in the page's err. */
typedef bool dq_html_applies(const dq_html *h);
typedef void dq_html_show(dq_html *h);
typedef struct dq_html_section {
    dq_html_kind of; /* documents */
    const char *id, *title;
    dq_html_applies *applies; /* whether they have data for it; NULL: always */
    dq_html_show *show;       /* everything below the heading */
} dq_html_section;

/* In the order of the page; ends with a row without id. */
extern const dq_html_section dq_html_sections[];

/* Reading a part: fills what the sections of its kind use. DQ_DAMAGED: a member is missing. */
dq_status dq_html_stats_read(dq_html *h, dq_err *err);
dq_status dq_html_quantize_read(dq_html *h, dq_err *err);
dq_status dq_html_plan_read(dq_html *h, dq_err *err);
dq_status dq_html_plan_kv_read(dq_html *h, dq_err *err);
dq_status dq_html_plan_heads_read(dq_html *h, dq_err *err);
dq_status dq_html_bench_read(dq_html *h, dq_err *err);

/* Of all parts of a page, before them. html_answer.c: what the documents say in short; nothing where they say nothing of it.
 * html_size.c: KL divergence over size. */
void dq_html_answer(dq_html_part *part, int n);
void dq_html_size(dq_html_part *part, int n);

/* html_run.c: warnings, settings, inputs. */
dq_html_show dq_html_run;
/* Of dq stats: html_heads.c, html_profiles.c, html_outliers.c, html_matrices.c, html_sensitivity.c */
dq_html_applies dq_html_has_heads, dq_html_has_profiles, dq_html_has_channels, dq_html_has_matrices,
    dq_html_has_sensitivity;
dq_html_show dq_html_heads, dq_html_profiles, dq_html_channels, dq_html_matrices,
    dq_html_sensitivity;
/* html_stats.c, html_maps.c, html_places.c */
dq_html_applies dq_html_has_items, dq_html_has_layers, dq_html_has_maps, dq_html_has_places;
dq_html_show dq_html_magnitudes, dq_html_layers, dq_html_maps, dq_html_places;
/* Of the models of a part; 0 without layers. */
double dq_html_last_layer(const dq_html *h);
/* html_quantize.c */
dq_html_applies dq_html_has_sqnr;
dq_html_show dq_html_containers, dq_html_sqnr, dq_html_worst, dq_html_tensors;
/* html_plan.c */
dq_html_show dq_html_plan_curve, dq_html_plan_chosen, dq_html_plan_tensors;
/* html_plan_kv.c, html_plan_kv_search.c: of the KV cache. A unit has at most DQ_HTML_PLAN_WIDTHS widths. */
enum { DQ_HTML_PLAN_WIDTHS = 16 };
dq_html_show dq_html_plan_kv_chosen, dq_html_plan_kv_uniform, dq_html_plan_kv_search,
    dq_html_plan_kv_units;
/* html_plan_heads.c: of which groups of KV heads keep the whole context. */
dq_html_show dq_html_plan_heads_chosen, dq_html_plan_heads_uniform, dq_html_plan_heads_groups,
    dq_html_plan_heads_sharing;
/* html_bench.c */
dq_html_applies dq_html_has_curves;
dq_html_show dq_html_bench_tables, dq_html_bench_growth;
/* html_pareto.c, and whether it has a picture of a task. */
dq_html_applies dq_html_has_pareto;
dq_html_show dq_html_pareto;
bool dq_html_front_shows(const dq_html *h, const char *task);
/* html_verdicts.c; html_bits.c: over logit bits; html_kv.c: over the bytes of the KV cache. */
dq_html_applies dq_html_has_verdicts, dq_html_has_accuracy, dq_html_has_kld, dq_html_has_kv;
dq_html_show dq_html_verdicts, dq_html_accuracy, dq_html_kld, dq_html_kv;
/* html_weight_scores.c */
dq_html_applies dq_html_has_weight_scores;
dq_html_show dq_html_weight_scores;
/* html_averages.c */
dq_html_applies dq_html_has_averages;
dq_html_show dq_html_averages;
/* One kind of evaluation each: html_positions.c, html_icl.c, html_needle.c, html_slices.c,
 * html_generation.c. Where attention goes while a number is retrieved: html_attention.c. */
dq_html_applies dq_html_has_positions, dq_html_has_icl, dq_html_has_needle, dq_html_has_attention,
    dq_html_has_slices, dq_html_has_generation;
dq_html_show dq_html_positions, dq_html_icl, dq_html_needle, dq_html_attention, dq_html_slices,
    dq_html_generation;
/* html_tables.c */
dq_html_applies dq_html_has_rows, dq_html_has_paired;
dq_html_show dq_html_results, dq_html_paired;

#endif
