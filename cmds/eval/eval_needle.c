/* eval_needle: see eval_needle.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_needle.h"

#include "cmds/cli/document.h"
#include "cmds/cli/kv_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Options ---- */

void dq_needle_options_begin(dq_needle_options *o)
{
    memset(o, 0, sizeof *o);
    o->samples = -1;
}

/* "1:1,4:2" */
static dq_status read_pairs(dq_needle_settings *s, const char *text, dq_err *err)
{
    for (const char *p = text;; p++) {
        char *end, *last;
        const long n = strtol(p, &end, 10);
        const long r = *end == ':' ? strtol(end + 1, &last, 10) : -1;
        if (end == p || *end != ':' || last == end + 1 || (*last && *last != ',') || n < 1 ||
            r < 1 || s->n_pairs == DQ_NEEDLE_SWEEP || *p == ' ')
            return dq_fail(err, DQ_USAGE,
                           "--needles: expected N:R (needles and how many of them are asked for) "
                           "with commas between, found \"%s\".",
                           text);
        if (n > DQ_NEEDLE_CITIES)
            return dq_fail(err, DQ_USAGE,
                           "--needles %ld:%ld: there are names for %d needles at most.", n, r,
                           DQ_NEEDLE_CITIES);
        if (r > n)
            return dq_fail(err, DQ_USAGE,
                           "--needles %ld:%ld asks for more needles than there are. Use at most "
                           "%ld:%ld.",
                           n, r, n, n);
        for (int i = 0; i < s->n_pairs; i++) {
            if (s->needles[i] == n && s->asked[i] == r)
                return dq_fail(err, DQ_USAGE, "--needles: %ld:%ld stands twice.", n, r);
        }
        s->needles[s->n_pairs] = (int)n;
        s->asked[s->n_pairs++] = (int)r;
        if (!*last) return DQ_OK;
        p = last;
    }
}

static dq_status check_unused(const dq_needle_options *o, dq_err *err)
{
    const struct {
        const char *name;
        bool given;
    } all[] = {{"lengths", o->lengths},      {"depths", o->depths},    {"needles", o->needles},
               {"samples", o->samples >= 0}, {"needle-mode", o->mode}, {"attention", o->attention},
               {"attention-rows", o->rows}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].given)
            return dq_fail(err, DQ_USAGE, "--%s has nothing to act on: there is no --task needle.",
                           all[i].name);
    }
    return DQ_OK;
}

dq_status dq_needle_options_read(dq_needle_options *o, int64_t seed, bool wanted, dq_err *err)
{
    static const char *const modes[] = {"forced", "generated"};
    static const char *const rows[] = {"last", "query"};
    dq_needle_settings *s = &o->settings;
    if (!wanted) return check_unused(o, err);
    if (o->rows && !o->attention)
        return dq_fail(err, DQ_USAGE, "--attention-rows has nothing to act on: add --attention.");
    if (o->lengths)
        DQ_TRY(dq_parse_ints(s->length, &s->n_lengths, DQ_NEEDLE_SWEEP, o->lengths, "lengths", 1,
                             1 << 30, err));
    DQ_TRY(dq_parse_ints(s->depth, &s->n_depths, DQ_NEEDLE_SWEEP,
                         o->depths ? o->depths : "0,25,50,75,100", "depths", 0, 100, err));
    DQ_TRY(read_pairs(s, o->needles ? o->needles : "1:1,2:2,4:2,6:2", err));
    const int mode = dq_parse_word(o->mode ? o->mode : modes[0], "needle-mode", modes, 2, err);
    const int row = dq_parse_word(o->rows ? o->rows : rows[0], "attention-rows", rows, 2, err);
    if (mode < 0 || row < 0) return err->code;
    s->samples = o->samples >= 0 ? o->samples : 50;
    s->seed = seed >= 0 ? (uint64_t)seed : 1;
    s->generated = mode == 1;
    s->attention = o->attention;
    s->query_rows = row == 1;
    return DQ_OK;
}

int dq_needle_key(char *line, size_t cap, const dq_needle_settings *s)
{
    size_t n =
        (size_t)snprintf(line, cap, "needle %lld %llu %d %d %d", (long long)s->samples,
                         (unsigned long long)s->seed, s->generated, s->attention, s->query_rows);
    for (int i = 0; i < s->n_lengths && n < cap; i++)
        n += (size_t)snprintf(line + n, cap - n, " L%d", s->length[i]);
    for (int i = 0; i < s->n_depths && n < cap; i++)
        n += (size_t)snprintf(line + n, cap - n, " D%d", s->depth[i]);
    for (int i = 0; i < s->n_pairs && n < cap; i++)
        n += (size_t)snprintf(line + n, cap - n, " %d:%d", s->needles[i], s->asked[i]);
    return (int)(n < cap ? n : cap - 1);
}

/* ---- JSON ---- */

static const char *mode_name(const dq_needle_settings *s)
{
    return s->generated ? "generated" : "forced";
}

static const char *rows_name(const dq_needle_settings *s)
{
    return s->query_rows ? "query" : "last";
}

json_t *dq_needle_settings_json(const dq_needle_settings *s)
{
    json_t *o = json_object(), *depths = json_array(), *pairs = json_array(),
           *lengths = json_null();
    if (s->n_lengths) lengths = json_array();
    for (int i = 0; i < s->n_lengths; i++)
        json_array_append_new(lengths, json_integer(s->length[i]));
    for (int i = 0; i < s->n_depths; i++) json_array_append_new(depths, json_integer(s->depth[i]));
    for (int i = 0; i < s->n_pairs; i++)
        json_array_append_new(pairs, json_sprintf("%d:%d", s->needles[i], s->asked[i]));
    json_object_set_new(o, "lengths", lengths);
    json_object_set_new(o, "depths", depths);
    json_object_set_new(o, "needles", pairs);
    json_object_set_new(o, "samples", json_integer((json_int_t)s->samples));
    json_object_set_new(o, "seed", json_integer((json_int_t)s->seed));
    json_object_set_new(o, "mode", json_string(mode_name(s)));
    json_object_set_new(o, "prompt", json_string(dq_needle_form));
    json_object_set_new(o, "attention", s->attention ? json_string(rows_name(s)) : json_null());
    return o;
}

static const char *const norm_name[DQ_N_SPAN_NORMS] = {"sum", "positive", "absolute"};

/* From a unit's numbers or a cell's: the same names in both. */
static json_t *shares_json(const double *share, int64_t skipped)
{
    json_t *o = json_object();
    for (int c = 0; c < DQ_NEEDLE_CLASSES; c++)
        json_object_set_new(o, dq_needle_class_name[c], dq_real(share[c]));
    json_object_set_new(o, "skipped", json_integer((json_int_t)skipped));
    return o;
}

static json_t *attention_json(const dq_needle_settings *s, const dq_needle_numbers *x)
{
    if (!s->attention) return json_null();
    json_t *o = json_object(), *best = json_null();
    json_object_set_new(o, "rows", json_string(rows_name(s)));
    json_object_set_new(o, "head_rows", json_integer((json_int_t)x->rows));
    json_object_set_new(o, "small_sums", json_integer((json_int_t)x->small));
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++)
        json_object_set_new(o, norm_name[k], shares_json(x->share[k], x->skipped[k]));
    if (x->best_layer >= 0) {
        best = json_object();
        json_object_set_new(best, "layer", json_integer(x->best_layer));
        json_object_set_new(best, "head", json_integer(x->best_head));
        json_object_set_new(best, "answer", dq_real(x->best));
        json_object_set_new(best, "norm", json_string(norm_name[DQ_NEEDLE_NORM]));
    }
    json_object_set_new(o, "best_head", best);
    return o;
}

static json_t *cell_json(const dq_needle_set *set, const dq_needle_cell *c,
                         const dq_needle_numbers *x)
{
    static const char *const verdict[] = {"correct", "other_needle", "near_miss", "none"};
    json_t *o = json_object(), *confusion = json_object();
    json_object_set_new(o, "length", json_integer((json_int_t)c->length));
    json_object_set_new(o, "depth", dq_real(c->depth / 100.0));
    json_object_set_new(o, "n_needles", json_integer(c->n));
    json_object_set_new(o, "n_queries", json_integer(c->r));
    json_object_set_new(o, "n", json_integer((json_int_t)x->n));
    json_object_set_new(o, "acc", dq_metric(x->acc.value, x->acc.std_err));
    json_object_set_new(o, "all_correct", dq_metric(x->all_correct.value, x->all_correct.std_err));
    if (!set->settings->generated)
        json_object_set_new(o, "ll_nats", dq_metric(x->ll.value, x->ll.std_err));
    for (int k = 0; k < 4; k++)
        json_object_set_new(confusion, verdict[k], dq_real(x->confusion[k]));
    json_object_set_new(o, "confusion", confusion);
    json_object_set_new(o, "attention", attention_json(set->settings, x));
    return o;
}

dq_status dq_needle_details(json_t *o, const dq_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_needle_set *set = dq_needle_set_of(v->e, r);
    json_t *needle = json_object(), *cells = json_array();
    json_object_set_new(o, "needle", needle);
    if (set->settings->generated) json_object_set_new(o, "passes", json_string("prompt+decode"));
    json_object_set_new(needle, "mode", json_string(mode_name(set->settings)));
    json_object_set_new(needle, "kv_boundary", json_string(dq_needle_boundary(set->settings)));
    json_object_set_new(needle, "cells", cells);
    for (int64_t c = 0; c < set->n_cells; c++) {
        dq_needle_numbers x;
        DQ_TRY(dq_needle_numbers_of(&x, v->e, r, c, err));
        json_array_append_new(cells, cell_json(set, &set->cell[c], &x));
    }
    return DQ_OK;
}

dq_status dq_needle_metrics(json_t *metrics, const dq_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    dq_needle_numbers x;
    if (dq_needle_set_of(v->e, r)->settings->generated) return DQ_OK;
    DQ_TRY(dq_needle_numbers_of(&x, v->e, r, -1, err));
    json_object_set_new(metrics, "ll_nats", dq_metric(x.ll.value, x.ll.std_err));
    return DQ_OK;
}

/* ---- Prompts, one by one ---- */

static json_t *ids_json(const int32_t *ids, int64_t n)
{
    json_t *l = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(l, json_integer(ids[i]));
    return l;
}

static json_t *needles_json(const dq_needle_prompt *p)
{
    json_t *l = json_array();
    for (int i = 0; i < p->needles; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "city", json_string(p->city[i]));
        json_object_set_new(o, "number", json_string(p->number[i]));
        json_object_set_new(o, "at", json_integer((json_int_t)p->at[i]));
        json_object_set_new(o, "len", json_integer((json_int_t)p->len[i]));
        json_array_append_new(l, o);
    }
    return l;
}

/* One city that is asked for, and what stood in its number's place. */
static json_t *answer_json(const dq_eval *e, const dq_eval_row *r, int64_t unit, int k)
{
    const dq_needle_set *set = dq_needle_set_of(e, r);
    const dq_needle_answer *a = &set->prompt[unit].answer[k];
    const int64_t v = dq_needle_value(e, r, unit, k);
    int64_t n = a->to - a->from;
    double ll = 0;
    json_t *o = json_object();
    json_object_set_new(o, "needle", json_integer(a->needle));
    if (set->settings->generated) {
        for (n = 0; n < DQ_NEEDLE_NEW && r->top1[v + n] >= 0;) n++;
        json_object_set_new(o, "generated", ids_json(r->top1 + v, n));
        return o;
    }
    for (int64_t i = 0; i < n; i++) ll += r->logp[v + i];
    json_object_set_new(o, "from", json_integer((json_int_t)a->from));
    json_object_set_new(o, "to", json_integer((json_int_t)a->to));
    json_object_set_new(o, "ll", dq_real(ll));
    json_object_set_new(o, "top1", ids_json(r->top1 + v, n));
    return o;
}

static json_t *unit_json(const dq_eval_view *v, const dq_eval_row *r, int64_t unit)
{
    const dq_needle_set *set = dq_needle_set_of(v->e, r);
    const dq_needle_cell *c = &set->cell[unit / set->samples];
    const dq_needle_prompt *p = &set->prompt[unit];
    const double *x = dq_needle_unit(v->e, r, unit);
    json_t *o = json_object(), *answers = json_array();
    dq_eval_row_keys(o, v, r);
    json_object_set_new(o, "length", json_integer((json_int_t)c->length));
    json_object_set_new(o, "depth", dq_real(c->depth / 100.0));
    json_object_set_new(o, "sample", json_integer((json_int_t)(unit % set->samples)));
    json_object_set_new(o, "filler", json_integer((json_int_t)p->filler));
    json_object_set_new(o, "question", json_integer((json_int_t)p->question));
    json_object_set_new(o, "prompt", ids_json(p->ids, p->n));
    json_object_set_new(o, "answer", ids_json(p->ids + p->n, p->n_answer));
    json_object_set_new(o, "needles", needles_json(p));
    for (int k = 0; k < p->asked; k++)
        json_array_append_new(answers, answer_json(v->e, r, unit, k));
    json_object_set_new(o, "asked", answers);
    json_object_set_new(o, "found", json_integer((json_int_t)x[DQ_NEEDLE_AT_CORRECT]));
    for (int k = 0; set->settings->attention && k < DQ_N_SPAN_NORMS; k++)
        json_object_set_new(o, norm_name[k],
                            shares_json(x + DQ_NEEDLE_AT_SHARE + k * DQ_NEEDLE_CLASSES,
                                        (int64_t)x[DQ_NEEDLE_AT_SKIPPED + k]));
    return o;
}

dq_status dq_needle_dump(FILE *f, const dq_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_needle_set *set = dq_needle_set_of(v->e, r);
    for (int64_t i = 0; i < set->n_cells * set->samples; i++) {
        DQ_TRY(dq_line_put(f, unit_json(v, r, i), err));
    }
    return DQ_OK;
}
