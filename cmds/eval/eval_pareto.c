/* eval_pareto: see eval_pareto.h. A cache is on the Pareto front if it is better than each one that holds no more bytes, every
 * difference by its own paired interval: all of them must decide, so the claim errs no more often than one interval. It
 * is dominated if one of them is better; the others are inconclusive. One that is no smaller than all tokens in 16 bits saves
 * nothing: it is compared with none. Bytes within a hundredth are the same: what
 * policies hold at one budget differs by tails of pages.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_pareto.h"

#include "cmds/eval/eval_cells.h"

#include "cmds/cli/kv_report.h"
#include "cmds/cli/table.h"
#include "cmds/eval/eval_kind.h"
#include "eval/eval.h"
#include "kv/kv.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>

#define SAME_BYTES 1.01

typedef enum is { ON_FRONT, UNDECIDED, DOMINATED, USELESS } is; /* the worst last */
static const char *const is_name[] = {"on the Pareto front", "inconclusive", "dominated",
                                      DQ_KV_SAVES_NOTHING};

typedef struct point {
    int row;
    int64_t bytes;
    double share;  /* of a 16-bit cache of all tokens */
    dq_mean value; /* score, or KLD */
    is front;
    int against; /* point that decided, or came nearest to it; -1: nothing holds as little */
    dq_interval_loss worse; /* than that one */
} point;

/* Caches of one model, source, logit rounding and arithmetic, by bytes. */
typedef struct front {
    const cmd_eval_view *v;
    point *of;
    int n;
    int64_t comparisons;
    bool windows;
} front;

static bool is_point(const dq_eval *e, int row)
{
    const dq_eval_row *r = &e->row[row];
    const dq_eval_kind *kind = dq_eval_source_of(e, r)->kind;
    return r->shown && (kind->windows ? r->ref != row : kind->metric[0] != NULL) &&
           dq_kv_report_shares_of(&r->kv, &r->work.cached).measured;
}

static bool belongs(const dq_eval_row *a, const dq_eval_row *b)
{
    return a->model == b->model && a->ids == b->ids && dq_logit_same(a->logit, b->logit) &&
           dq_math_same(a->math, b->math);
}

/* Whether something is left to choose. */
static bool chooses(const dq_eval *e, const dq_eval_row *r)
{
    return dq_eval_kept_of(e, r) == DQ_EVAL_KEPT_CHOSEN;
}

static bool chooses_otherwise(const dq_evict_spec *a, const dq_evict_spec *b)
{
    return a->policy != b->policy || a->budget != b->budget;
}

/* Whether caches differ in how numbers become codes, and in nothing else. */
static bool other_code(const dq_kv_spec *a, const dq_kv_spec *b)
{
    dq_kv_spec same = *b;
    same.quant = a->quant;
    same.rotate_k = a->rotate_k; /* what auto makes of a rotation goes by the code */
    same.rotate_v = a->rotate_v;
    return dq_kv_has_codes(a) && a->quant != b->quant && dq_kv_spec_same(a, &same);
}

/* Whether some row before k on its front differs in the code alone. */
static bool has_other_code(const dq_eval *e, int k)
{
    const dq_eval_row *r = &e->row[k];
    for (int i = 0; i < k; i++) {
        if (is_point(e, i) && belongs(&e->row[i], r) && other_code(&e->row[i].kv, &r->kv))
            return true;
    }
    return false;
}

/* Whether row i is the first one of a front, which has two ways to choose or more, or two codes of the same widths. */
static bool begins(const dq_eval *e, int i)
{
    const dq_evict_spec *seen = NULL;
    bool several = false;
    if (!is_point(e, i)) return false;
    for (int k = 0; k < e->n_rows; k++) {
        const dq_evict_spec *s = &e->row[k].kv.evict;
        if (!is_point(e, k) || !belongs(&e->row[i], &e->row[k])) continue;
        if (k < i) return false;
        several = several || has_other_code(e, k);
        if (!chooses(e, &e->row[k])) continue;
        several = several || (seen && chooses_otherwise(seen, s));
        seen = s;
    }
    return several;
}

/* Whether the cache is that of a point before it, by another name. */
static bool is_again(const front *f, int row)
{
    const dq_eval *e = f->v->e;
    for (int i = 0; i < f->n; i++) {
        if (dq_eval_same_cache(e, &e->row[f->of[i].row], &e->row[row])) return true;
    }
    return false;
}

static dq_status add_point(front *f, int row, dq_err *err)
{
    const dq_eval *e = f->v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_kv_report_shares s = dq_kv_report_shares_of(&r->kv, &r->work.cached);
    dq_eval_numbers x;
    int at = f->n++;
    DQ_TRY(dq_eval_numbers_of(e, row, &x, err));
    for (; at > 0 && f->of[at - 1].bytes > s.bytes_cached; at--) f->of[at] = f->of[at - 1];
    f->of[at] =
        (point){.row = row,
                .bytes = s.bytes_cached,
                .share = s.share,
                .front = s.saves_nothing ? USELESS : ON_FRONT,
                .value = f->windows ? x.kld : x.score[dq_eval_quoted(dq_eval_source_of(e, r))],
                .against = -1};
    return DQ_OK;
}

/* Among differences of one verdict, the larger the nearer it is to being worse. */
static double nearness(is now, const dq_interval_loss *worse)
{
    return now == ON_FRONT    ? worse->interval.high
           : now == DOMINATED ? worse->interval.low
                              : worse->value;
}

/* Takes what the difference to point k says about p: the worst verdict rules. */
static void compare(point *p, int k, const dq_interval_loss *worse)
{
    const is now = worse->interval.high < 0  ? ON_FRONT
                   : worse->interval.low > 0 ? DOMINATED
                                             : UNDECIDED; /* also without an interval */
    if (p->against >= 0 &&
        (now < p->front || (now == p->front && nearness(now, worse) <= nearness(now, &p->worse))))
        return;
    p->front = now;
    p->against = k;
    p->worse = *worse;
}

static dq_status decide(front *f, dq_err *err)
{
    for (int i = 0; i < f->n; i++) {
        point *p = &f->of[i];
        for (int k = 0; p->front != USELESS && k < f->n; k++) {
            dq_interval_loss worse;
            if (k == i || f->of[k].front == USELESS ||
                (double)f->of[k].bytes > SAME_BYTES * (double)p->bytes)
                continue;
            DQ_TRY(dq_eval_worse(&worse, f->v->e, f->of[k].row, p->row, err));
            compare(p, k, &worse);
            f->comparisons++;
        }
    }
    return DQ_OK;
}

static dq_status front_of(front *f, const cmd_eval_view *v, int first, dq_err *err)
{
    const dq_eval *e = v->e;
    *f = (front){.v = v, .windows = dq_eval_source_of(e, &e->row[first])->kind->windows};
    f->of = dq_block_new((size_t)e->n_rows, sizeof *f->of, err);
    for (int i = first; f->of && i < e->n_rows; i++) {
        if (is_point(e, i) && belongs(&e->row[first], &e->row[i]) && !is_again(f, i))
            DQ_TRY(add_point(f, i, err));
    }
    return f->of ? decide(f, err) : err->code;
}

static const char *metric_of(const front *f)
{
    const dq_eval_source *s = dq_eval_source_of(f->v->e, &f->v->e->row[f->of[0].row]);
    return f->windows ? "kld_nats" : s->kind->metric[dq_eval_quoted(s)];
}

/* Where nothing is left to choose the policy says nothing. */
static const char *label_of(const front *f, int i, char *buf, size_t cap)
{
    const dq_eval_row *r = &f->v->e->row[f->of[i].row];
    const dq_eval_kept kept = dq_eval_kept_of(f->v->e, r);
    char widths[DQ_KV_TEXT];
    if (kept == DQ_EVAL_KEPT_CHOSEN) return dq_kv_report_label(buf, cap, &r->kv);
    dq_kv_codes_text(widths, &r->kv);
    if (kept == DQ_EVAL_KEPT_ALL)
        snprintf(buf, cap, "%s, all tokens", widths);
    else
        snprintf(buf, cap, "%s, first %d and last %d tokens", widths, r->kv.sink, r->kv.recent);
    return buf;
}

/* ---- JSON ---- */

static json_t *point_json(const front *f, int i)
{
    const dq_eval *e = f->v->e;
    const point *p = &f->of[i];
    const dq_eval_row *r = &e->row[p->row];
    static const char *const kept_name[] = {"all", "least", "chosen"};
    char label[DQ_KV_LABEL];
    json_t *o = json_object();
    json_object_set_new(o, "result", json_integer(cmd_eval_result_of(e, p->row)));
    json_object_set_new(o, "kv_label", json_string(label_of(f, i, label, sizeof label)));
    json_object_set_new(o, "policy",
                        chooses(e, r) ? json_string(r->kv.evict.policy->name) : json_null());
    json_object_set_new(o, "kept", json_string(kept_name[dq_eval_kept_of(e, r)]));
    json_object_set_new(o, "bytes_held", json_integer((json_int_t)p->bytes));
    json_object_set_new(o, "share", dq_document_real(p->share));
    json_object_set_new(o, "value", dq_document_real(p->value.value));
    json_object_set_new(o, "stderr", dq_document_real(p->value.std_err));
    json_object_set_new(o, "is", json_string(is_name[p->front]));
    json_object_set_new(
        o, "against",
        p->against < 0 ? json_null() : json_integer(cmd_eval_result_of(e, f->of[p->against].row)));
    json_object_set_new(o, "worse",
                        p->against < 0 ? json_null() : dq_document_real(p->worse.value));
    json_object_set_new(o, "interval",
                        p->against < 0 ? json_null() : cmd_eval_interval_json(p->worse.interval));
    return o;
}

static json_t *front_json(const front *f)
{
    const dq_eval *e = f->v->e;
    const dq_eval_row *r = &e->row[f->of[0].row];
    json_t *o = json_object(), *points = json_array();
    json_object_set_new(o, "model", json_string(f->v->names[r->model]));
    json_object_set_new(o, "task", json_string(cmd_eval_title(e, f->of[0].row)));
    json_object_set_new(o, "logit_bits", json_integer(r->logit.bits));
    json_object_set_new(o, "logit_granularity",
                        json_string(dq_granularity_name[r->logit.granularity]));
    json_object_set_new(o, "math", dq_kv_report_math_json(r->math));
    json_object_set_new(o, "metric", json_string(metric_of(f)));
    json_object_set_new(o, "cluster", json_string(dq_eval_cluster(e, r)));
    json_object_set_new(o, "comparisons", json_integer((json_int_t)f->comparisons));
    json_object_set_new(o, "points", points);
    for (int i = 0; i < f->n; i++) json_array_append_new(points, point_json(f, i));
    return o;
}

typedef dq_status each_front(const front *f, void *arg, dq_err *err);

static dq_status walk(const cmd_eval_view *v, each_front *visit, void *arg, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        front f;
        if (!begins(v->e, i)) continue;
        if (front_of(&f, v, i, err) == DQ_OK) visit(&f, arg, err);
        dq_block_free(f.of);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

static dq_status append(const front *f, void *arg, dq_err *err)
{
    json_array_append_new(arg, front_json(f));
    return err->code;
}

dq_status cmd_eval_pareto_json(json_t *document, const cmd_eval_view *v, dq_err *err)
{
    json_t *list = json_array();
    walk(v, append, list, err);
    if (json_array_size(list))
        json_object_set_new(document, "pareto_fronts", list);
    else
        json_decref(list);
    return err->code;
}

/* ---- For people ---- */

static void fill_row(dq_table *t, const front *f, int i)
{
    const point *p = &f->of[i];
    char label[DQ_KV_LABEL];
    dq_table_cell(t, "%s", label_of(f, i, label, sizeof label));
    dq_table_cell(t, "%.4f", p->share);
    cmd_eval_mean_cell(t, p->value, "");
    dq_table_cell(t, "%s", is_name[p->front]);
    if (p->against < 0) {
        dq_table_cell(t, p->front == USELESS ? "-" : "nothing holds as little");
        dq_table_cell(t, "-");
        dq_table_cell(t, "-");
        return;
    }
    dq_table_cell(t, "%s", label_of(f, p->against, label, sizeof label));
    dq_table_cell(t, f->windows ? "%+.3g" : "%+.4f", p->worse.value);
    if (isnan(p->worse.interval.low))
        dq_table_cell(t, "none");
    else
        dq_table_cell(t, f->windows ? "%+.3g to %+.3g" : "%+.4f to %+.4f", p->worse.interval.low,
                      p->worse.interval.high);
}

static dq_status print_front(const front *f, void *arg, dq_err *err)
{
    const dq_eval *e = f->v->e;
    const dq_eval_row *r = &e->row[f->of[0].row];
    const char *titles[] = {"KV",       "share of 16 bits", metric_of(f), "front", "compared with",
                            "worse by", "interval"};
    int dominated = 0;
    dq_table *t;
    (void)arg;
    DQ_TRY(dq_table_new(&t, titles, (int)(sizeof titles / sizeof *titles), err));
    for (int i = 0; i < f->n; i++) {
        if (f->of[i].front == DOMINATED)
            dominated++;
        else
            fill_row(t, f, i);
    }
    printf("\nWhat the bytes of the KV cache buy, %s, %s, %d-bit logits", f->v->names[r->model],
           cmd_eval_title(e, f->of[0].row), r->logit.bits);
    if (r->logit.bits < 16) printf(" (%s)", dq_granularity_name[r->logit.granularity]);
    printf(
        ", %s. On the Pareto front: better than each of no more bytes (up to 1 %% more), by paired "
        "95 %% intervals of %s:\n",
        dq_num_name[r->math.linear], metric_of(f));
    if (dq_table_print(t, err) == DQ_OK)
        printf("%d of %d are dominated by one of no more bytes. %lld comparisons, each at 95 %%: "
               "about "
               "%.1f of their intervals are expected to miss by chance.\n",
               dominated, f->n, (long long)f->comparisons, 0.05 * (double)f->comparisons);
    dq_table_free(t);
    return err->code;
}

dq_status cmd_eval_pareto(const cmd_eval_view *v, dq_err *err)
{
    return walk(v, print_front, NULL, err);
}
