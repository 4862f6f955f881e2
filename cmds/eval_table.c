/* eval_table: the table, the CSV and the verdicts of dq eval.
 * SPDX-License-Identifier: MIT */
#include "eval_kv.h"
#include "eval_report.h"
#include "eval_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a row calls its source. */
static const char *title_of(const dq_eval *e, int row)
{
    const dq_eval_source *s = dq_eval_source_of(e, &e->row[row]);
    return s->title ? s->title : s->name;
}

static const dq_model *model_of(const dq_eval *e, int row)
{
    return e->model[e->row[row].model].m;
}

static double rate(const dq_work *w)
{
    return w->seconds > 0 ? (double)w->computed / w->seconds : (double)NAN;
}

/* "0.6340 ± 0.0048" */
static void cell(dq_table *t, dq_mean m, const char *sign)
{
    if (isnan(m.value))
        dq_table_cell(t, "-");
    else if (isnan(m.std_err))
        dq_table_cell(t, sign[0] ? "%+.4f" : "%.4f", m.value);
    else
        dq_table_cell(t, sign[0] ? "%+.4f \u00b1 %.4f" : "%.4f \u00b1 %.4f", m.value, m.std_err);
}

static void weights_cell(dq_table *t, const dq_model *m)
{
    if (m->weight_bits == 16)
        dq_table_cell(t, "16");
    else if (m->weight_bits)
        dq_table_cell(t, "%d/%s", m->weight_bits, m->weight_group);
    else
        dq_table_cell(t, "mixed");
}

typedef struct kinds {
    bool task, text;
} kinds;

static kinds kinds_of(const dq_eval *e)
{
    kinds k = {false, false};
    for (int i = 0; i < e->n_sources; i++) {
        k.task = k.task || !e->source[i].kind->windows;
        k.text = k.text || e->source[i].kind->windows;
    }
    return k;
}

/* Which metric of a source's rows is quoted. */
static int quoted(const dq_eval_source *s)
{
    return s->task && s->task->by_norm ? 1 : 0;
}

/* Name of metric m, where all sources that have one agree. */
static const char *metric_title(const dq_eval *e, int m)
{
    const char *name = NULL;
    for (int i = 0; i < e->n_sources; i++) {
        const char *own = e->source[i].kind->metric[m];
        if (name && own && strcmp(own, name) != 0) return m == 0 ? "score" : "second score";
        if (own) name = own;
    }
    return name;
}

static void difference_cells(dq_table *t, const dq_eval *e, int row, const dq_eval_numbers *x)
{
    const dq_flips *f = &x->flips[quoted(dq_eval_source_of(e, &e->row[row]))];
    if (x->is_ref)
        dq_table_cell(t, "-");
    else if (x->is_task)
        cell(t, (dq_mean){f->delta, f->std_err}, "+");
    else
        cell(t, x->ln_ratio, "+");
    if (!kinds_of(e).task) return;
    if (!x->is_task || x->is_ref)
        dq_table_cell(t, "-");
    else
        dq_table_cell(t, "%.3g", f->p);
}

/* Whether rows differ in their arithmetic. */
static bool math_swept(const dq_eval *e)
{
    const dq_eval_row *first = NULL;
    for (int i = 0; i < e->n_rows; i++) {
        if (!e->row[i].shown) continue;
        if (first && e->row[i].math.linear != first->math.linear) return true;
        first = &e->row[i];
    }
    return false;
}

/* "4:4", the share kept and how many times smaller the cache is; in runs with such a cache only. */
static void kv_cells(dq_table *t, const dq_eval *e, const dq_eval_row *r)
{
    dq_kv_shares s = dq_kv_shares_of(&r->kv, &r->work.held);
    if (!dq_eval_kv_swept(e)) return;
    dq_table_cell(t, "%d:%d", r->kv.spec.k_bits, r->kv.spec.v_bits);
    if (dq_eval_kv_policies(e))
        dq_table_cell(t, "%s", r->kv.evict.policy ? r->kv.evict.policy->name : "-");
    if (isfinite(s.kept))
        dq_table_cell(t, "%.3f", s.kept);
    else
        dq_table_cell(t, "-");
    if (isfinite(s.ratio_held))
        dq_table_cell(t, "%.2f", s.ratio_held);
    else
        dq_table_cell(t, "-");
}

static void table_row(dq_table *t, const dq_eval_view *v, int row, const dq_eval_numbers *x)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    kinds k = kinds_of(e);
    dq_table_cell(t, "%s", v->names[r->model]);
    weights_cell(t, model_of(e, row));
    dq_table_cell(t, "%d", r->logit.bits);
    dq_table_cell(t, "%s", r->logit.bits == 16 ? "-" : dq_grain_name[r->logit.grain]);
    if (math_swept(e)) dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    kv_cells(t, e, r);
    dq_table_cell(t, "%s", title_of(e, row));
    dq_table_cell(t, "%lld", (long long)x->n);
    const dq_mean none = {(double)NAN, (double)NAN};
    for (int m = 0; k.task && m < 2 && metric_title(e, m); m++)
        cell(t, m < x->n_metrics ? x->score[m] : none, "");
    if (k.text) {
        cell(t, x->is_task ? none : x->nll, "");
        cell(t, x->is_task ? none : x->ppl, "");
        if (x->is_task)
            dq_table_cell(t, "-");
        else
            dq_table_cell(t, "%.3e", x->kld.value);
        cell(t, x->is_task ? none : (dq_mean){x->same.value, (double)NAN}, "");
    }
    difference_cells(t, e, row, x);
    dq_table_cell(t, "%.0f", rate(&r->work));
}

/* True when some model has several rows: then lines between the models help. */
static bool swept(const dq_eval *e)
{
    int last = -1;
    for (int i = 0; i < e->n_rows; i++) {
        if (!e->row[i].shown) continue;
        if (e->row[i].model == last) return true;
        last = e->row[i].model;
    }
    return false;
}

dq_status dq_eval_table(dq_table **out, const dq_eval_view *v, dq_err *err)
{
    const char *titles[20] = {"model", "weights", "logit bits", "grain"};
    int n = 4, last = -1;
    kinds k = kinds_of(v->e);
    if (math_swept(v->e)) titles[n++] = "math";
    if (dq_eval_kv_swept(v->e)) {
        titles[n++] = "KV bits";
        if (dq_eval_kv_policies(v->e)) titles[n++] = "policy";
        titles[n++] = "kept";
        titles[n++] = "ratio";
    }
    titles[n++] = "task";
    titles[n++] = "n";
    for (int m = 0; m < 2 && metric_title(v->e, m); m++) titles[n++] = metric_title(v->e, m);
    if (k.text) {
        titles[n++] = "NLL (nats)";
        titles[n++] = "PPL";
        titles[n++] = "KLD (nats)";
        titles[n++] = "same top-1";
    }
    titles[n++] = "against reference";
    if (k.task) titles[n++] = "McNemar p";
    titles[n++] = "tokens/s";
    DQ_TRY(dq_table_new(out, titles, n, err));
    for (int i = 0; i < v->e->n_rows; i++) {
        dq_eval_numbers x;
        if (!v->e->row[i].shown) continue;
        DQ_TRY(dq_eval_numbers_of(v->e, i, &x, err));
        if (last >= 0 && v->e->row[i].model != last && swept(v->e)) dq_table_rule(*out);
        last = v->e->row[i].model;
        table_row(*out, v, i, &x);
    }
    return DQ_OK;
}

void dq_eval_mean_columns(dq_table *t, dq_mean m)
{
    dq_table_real(t, m.value);
    dq_table_real(t, m.std_err);
}

static void kv_columns(dq_table *t, const dq_eval_row *r)
{
    const dq_evict_spec *c = &r->kv.evict;
    dq_kv_shares s = dq_kv_shares_of(&r->kv, &r->work.held);
    dq_table_cell(t, "%d", r->kv.spec.k_bits);
    dq_table_cell(t, "%d", r->kv.spec.v_bits);
    dq_table_cell(t, "%s", c->policy ? c->policy->name : "");
    dq_table_real(t, !c->policy ? 1 : c->tokens ? (double)NAN : c->keep);
    dq_table_real(t, c->policy && c->tokens ? (double)c->tokens : (double)NAN);
    dq_table_cell(t, "%s", c->policy ? dq_kv_budget_name[c->budget] : "");
    dq_table_real(t, c->policy ? (double)(c->window < 0 ? c->policy->window : c->window)
                               : (double)NAN);
    dq_table_real(t, c->policy ? (double)c->every : (double)NAN);
    dq_table_real(t, c->policy ? (double)c->seed : (double)NAN);
    dq_table_cell(t, "%d", r->kv.spec.group);
    dq_table_cell(t, "%d", r->kv.spec.rotate_k);
    dq_table_cell(t, "%d", r->kv.spec.rotate_v);
    dq_table_cell(t, "%d", r->kv.spec.sink);
    dq_table_cell(t, "%d", r->kv.spec.recent);
    dq_table_real(t, s.kept);
    dq_table_real(t, s.lowbit);
    dq_table_real(t, s.measured ? (double)s.bytes_held : (double)NAN);
    dq_table_real(t, s.measured ? (double)r->work.held.baseline : (double)NAN);
    dq_table_real(t, s.bytes_per_token);
    dq_table_real(t, s.ratio_held);
    dq_table_real(t, s.ratio_payload);
}

static void columns_row(dq_table *t, const dq_eval_view *v, int row, const dq_eval_numbers *x)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_mean none = {(double)NAN, (double)NAN};
    dq_table_cell(t, "%s", v->names[r->model]);
    dq_table_cell(t, "%s", v->names[e->row[r->ref].model]);
    dq_table_cell(t, "%d", model_of(e, row)->weight_bits);
    dq_table_cell(t, "%s", model_of(e, row)->weight_group);
    dq_table_cell(t, "%d", r->logit.bits);
    dq_table_cell(t, "%s", dq_grain_name[r->logit.grain]);
    dq_table_cell(t, "%s", title_of(e, row));
    dq_table_cell(t, "%lld", (long long)x->n);
    for (int m = 0; m < 2; m++) dq_eval_mean_columns(t, m < x->n_metrics ? x->score[m] : none);
    dq_eval_mean_columns(t, x->is_task ? none : x->nll);
    dq_eval_mean_columns(t, x->is_task ? none : x->ppl);
    dq_eval_mean_columns(t, x->is_task ? none : x->ln_ratio);
    dq_eval_mean_columns(t, x->is_task ? none : x->kld);
    dq_eval_mean_columns(t, x->is_task ? none : x->same);
    for (int m = 0; m < 2; m++) {
        bool there = m < x->n_metrics && !x->is_ref;
        dq_table_real(t, there ? x->flips[m].delta : (double)NAN);
        dq_table_real(t, there ? x->flips[m].std_err : (double)NAN);
        dq_table_real(t, there ? x->flips[m].p : (double)NAN);
    }
    dq_table_real(t, rate(&r->work));
    dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    dq_table_cell(t, "%s", dq_num_name[r->math.qk]);
    dq_table_cell(t, "%s", dq_num_name[r->math.pv]);
    dq_table_cell(t, "%s", dq_num_name[r->math.kv]);
    if (dq_eval_kv_swept(e)) kv_columns(t, r);
}

/* "acc" -> "exact_match" and so on, where that is what the columns hold. */
enum { SCORE_FORMS = 5, SCORE_NAME = 48 };
static void score_titles(char (*name)[SCORE_NAME], const char **titles, int n, const dq_eval *e)
{
    static const char *const plain[2] = {"acc", "acc_norm"};
    static const char *const form[SCORE_FORMS] = {"", "_stderr", "_delta", "_delta_stderr",
                                                  "_mcnemar_p"};
    for (int i = 0; i < 2 * SCORE_FORMS; i++) {
        const char *own = metric_title(e, i / SCORE_FORMS);
        char old[SCORE_NAME];
        if (!own) continue;
        snprintf(old, sizeof old, "%s%s", plain[i / SCORE_FORMS], form[i % SCORE_FORMS]);
        snprintf(name[i], SCORE_NAME, "%s%s", own, form[i % SCORE_FORMS]);
        for (int k = 0; k < n; k++) {
            if (strcmp(titles[k], old) == 0) titles[k] = name[i];
        }
    }
}

dq_status dq_eval_columns(dq_table **out, const dq_eval_view *v, dq_err *err)
{
    const char *common[] = {"model",
                            "reference",
                            "weight_bits",
                            "weight_group",
                            "logit_bits",
                            "logit_grain",
                            "task",
                            "n",
                            "acc",
                            "acc_stderr",
                            "acc_norm",
                            "acc_norm_stderr",
                            "nll_nats",
                            "nll_nats_stderr",
                            "ppl",
                            "ppl_stderr",
                            "ln_ppl_ratio",
                            "ln_ppl_ratio_stderr",
                            "kld_nats",
                            "kld_nats_stderr",
                            "same_top1",
                            "same_top1_stderr",
                            "acc_delta",
                            "acc_delta_stderr",
                            "acc_mcnemar_p",
                            "acc_norm_delta",
                            "acc_norm_delta_stderr",
                            "acc_norm_mcnemar_p",
                            "tokens_per_second",
                            "math_linear",
                            "math_qk",
                            "math_pv",
                            "math_kv",
                            "kv_k_bits",
                            "kv_v_bits",
                            "kv_policy",
                            "kv_keep",
                            "kv_tokens",
                            "kv_budget",
                            "kv_window",
                            "kv_every",
                            "kv_seed",
                            "kv_group",
                            "kv_rotate_k",
                            "kv_rotate_v",
                            "kv_sink",
                            "kv_recent",
                            "kv_kept_fraction",
                            "kv_lowbit_fraction",
                            "kv_bytes_held",
                            "kv_baseline_bytes",
                            "kv_bytes_per_token",
                            "kv_ratio_held",
                            "kv_ratio_payload"};
    enum { KV_COLUMNS = 21 };
    const char *titles[sizeof common / sizeof common[0] + DQ_TEXT_COLUMNS];
    int n = (int)(sizeof common / sizeof common[0]);
    char name[2 * SCORE_FORMS][SCORE_NAME];
    memcpy(titles, common, sizeof common);
    if (!dq_eval_kv_swept(v->e)) n -= KV_COLUMNS;
    score_titles(name, titles, n, v->e);
    DQ_TRY(dq_eval_text_titles(titles, &n, v, err));
    DQ_TRY(dq_table_new(out, titles, n, err));
    for (int i = 0; i < v->e->n_rows; i++) {
        dq_eval_numbers x;
        if (!v->e->row[i].shown) continue;
        DQ_TRY(dq_eval_numbers_of(v->e, i, &x, err));
        columns_row(*out, v, i, &x);
        if (kinds_of(v->e).text) DQ_TRY(dq_eval_text_columns(*out, v, i, &x, err));
    }
    return DQ_OK;
}

/* Not worse than the reference by more than one standard error: of the paired difference in
 * accuracy; for a text, of the reference's own NLL. */
static dq_status is_close(const dq_eval *e, int row, bool *close, dq_err *err)
{
    dq_eval_numbers x, ref;
    DQ_TRY(dq_eval_numbers_of(e, row, &x, err));
    if (x.is_task) {
        const dq_flips *f = &x.flips[quoted(dq_eval_source_of(e, &e->row[row]))];
        *close = f->delta >= -f->std_err;
        return DQ_OK;
    }
    DQ_TRY(dq_eval_numbers_of(e, e->row[row].ref, &ref, err));
    *close = x.ln_ratio.value <= (isnan(ref.nll.std_err) ? 0 : ref.nll.std_err);
    return DQ_OK;
}

/* Rows of one model, source and cache. */
static bool same_family(const dq_eval_row *a, const dq_eval_row *b)
{
    return b->shown && b->model == a->model && b->ids == a->ids &&
           dq_kv_setting_same(&a->kv, &b->kv);
}

/* The verdict on rows that differ from `row` in their bits only: the lowest width such that it and
 * every larger one is close. *widths counts the rows. */
static dq_status lowest(const dq_eval *e, int row, int *widths, int *bits, dq_err *err)
{
    const dq_eval_row *a = &e->row[row];
    int failed = 0;
    *widths = 0;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *b = &e->row[i];
        bool close;
        if (!same_family(a, b) || (b->logit.bits < 16 && b->logit.grain != a->logit.grain))
            continue;
        ++*widths;
        DQ_TRY(is_close(e, i, &close, err));
        if (!close && b->logit.bits > failed) failed = b->logit.bits;
    }
    *bits = 0; /* none */
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *b = &e->row[i];
        if (same_family(a, b) && (b->logit.bits == 16 || b->logit.grain == a->logit.grain) &&
            b->logit.bits > failed && (*bits == 0 || b->logit.bits < *bits))
            *bits = b->logit.bits;
    }
    return DQ_OK;
}

/* True for the first rounded row of its model, source and grain. */
static bool speaks(const dq_eval *e, int row)
{
    const dq_eval_row *a = &e->row[row];
    if (!a->shown || a->logit.bits == 16) return false;
    for (int i = 0; i < row; i++) {
        const dq_eval_row *b = &e->row[i];
        if (same_family(a, b) && b->logit.bits < 16 && b->logit.grain == a->logit.grain)
            return false;
    }
    return true;
}

dq_status dq_eval_verdicts(const dq_eval_view *v, dq_err *err)
{
    bool first = true;
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_source *source = dq_eval_source_of(v->e, &v->e->row[i]);
        int widths, bits;
        char label[96];
        if (!speaks(v->e, i) || !(source->kind->windows || source->kind->metric[0])) continue;
        DQ_TRY(lowest(v->e, i, &widths, &bits, err));
        if (widths < 2) continue;
        if (first) printf("\nLowest logit bits within one standard error of 16 bits:\n");
        first = false;
        printf("  %s, %s, grain %s", v->names[v->e->row[i].model], title_of(v->e, i),
               dq_grain_name[v->e->row[i].logit.grain]);
        if (math_swept(v->e)) printf(", math %s", dq_num_name[v->e->row[i].math.linear]);
        if (dq_eval_kv_swept(v->e))
            printf(", KV %s", dq_kv_label(label, sizeof label, &v->e->row[i].kv));
        printf(": ");
        if (bits)
            printf("%d", bits);
        else
            printf("none");
        if (source->kind->windows)
            printf(" (NLL, standard error of the 16-bit NLL)\n");
        else
            printf(" (%s, paired)\n", source->kind->metric[quoted(source)]);
    }
    return DQ_OK;
}
