/* html_plan_cache: what pages of plans of the KV cache share, of its widths and of its heads: reading what was measured, cells of
 * losses with their intervals, a plan beside other caches on windows that no choice saw, and maps shaded by losses.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_PLAN_CACHE_H
#define DQ_HTML_PLAN_CACHE_H

#include "cmds/report/html_part.h"

/* Reading. DQ_MISMATCH: a plan of --dry-run; DQ_DAMAGED: one without what it found, "chosen": {"kv", "unseen"}. */
dq_status dq_html_check_whole_run(const json_t *result, const char *where, dq_err *err);
/* A member of what result i has chosen. */
const json_t *dq_html_chosen(const dq_html *h, int i, const char *key);
/* DQ_DAMAGED: object[key] is no {kld_nats, ln_ppl_ratio} with a value each; or has no intervals of them. */
dq_status dq_html_check_losses(const json_t *object, const char *key, const char *where,
                               dq_err *err);
dq_status dq_html_check_intervals(const json_t *object, const char *key, const char *where,
                                  dq_err *err);
/* DQ_DAMAGED: object[key] is neither two numbers, the smaller one first, nor null twice. */
dq_status dq_html_check_ends(const json_t *object, const char *key, const char *where, dq_err *err);
/* result[key] is a list, of which each passes. */
dq_status dq_html_check_list(const json_t *result, const char *key, dq_html_check_result *check,
                             const char *where, dq_err *err);

/* What a plan loses, with intervals, as cells: KLD ± its standard error, its interval; perplexity in per cent, its interval; and
 * the nominal level of both, in per cent. */
void dq_html_found_cells(dq_html *h, const json_t *unseen);

/* A plan beside another cache. */
typedef struct dq_html_baseline {
    int plan, place;     /* of the page; among the baselines of that plan */
    const char *label;   /* "PLAN against IT" */
    const json_t *found; /* what the plan loses */
    const json_t *j;     /* what the baseline loses and the difference: {unseen, plan_less_it} */
} dq_html_baseline;

/* Those of a page, and what all of them and one are called. */
typedef struct dq_html_baselines {
    dq_html_baseline *at; /* [n] */
    int n;
    const char *all, *one; /* "uniform widths", "the uniform width" */
} dq_html_baselines;

/* Differences with their intervals, of the KLD and of the perplexity, a point for each baseline. */
void dq_html_baselines_pictures(dq_html *h, const dq_html_baselines *r);
/* Cells of one: what is compared, of the plan, of the baseline, their difference, its interval, its level, and what it decides, in
 * the words of the tables of dq plan: an interval that holds 0, or has no ends, decides nothing. */
void dq_html_baseline_cells(dq_html *h, const dq_html_baselines *r, int i, bool of_ppl);

/* Between which powers of 10 the losses of a map lie; begins as DQ_HTML_NO_SHADES. Losses that are not above 0 have none. */
typedef struct dq_html_shades {
    double low, high;
} dq_html_shades;
#define DQ_HTML_NO_SHADES ((dq_html_shades){(double)NAN, (double)NAN})
void dq_html_shades_add(dq_html_shades *s, double loss);
/* A map under a name (escaped): the label (dq's words), the corner of its titles; then titles, then rows. */
void dq_html_heat_begin(dq_html *h, const char *name, const char *label, const char *corner);
void dq_html_heat_rows(dq_html *h);
void dq_html_heat_end(dq_html *h);
/* loss ± std_err, and a word of dq's below it ("": none). */
void dq_html_heat_cell(dq_html *h, const dq_html_shades *s, double loss, double std_err, bool bold,
                       const char *word);

#endif
