/* stats_units: see stats_units.h. Units are ranked here alone: the plan's order is that of layers.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_units.h"

#include "cmds/stats/stats_cells.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *of, *by, *title;
} names[DQ_SENSITIVITY_KINDS] = {
    [DQ_SENSITIVITY_LAYERS] = {"logits", "layer", "logits of a layer"},
    [DQ_SENSITIVITY_HEADS] = {"logits", "head", "logits of a head"},
    [DQ_SENSITIVITY_MAPS] = {"logits", "map", "logits of a map"},
    [DQ_SENSITIVITY_KEYS] = {"keys", "layer", "keys of a layer"},
    [DQ_SENSITIVITY_VALUES] = {"values", "layer", "values of a layer"},
    [DQ_SENSITIVITY_WEIGHTS] = {"weights", "tensor", "a matrix of weights"},
};

static bool wanted(const cmd_stats_entry *e, int kind)
{
    return e->sensitivity->set.kinds >> kind & 1;
}

/* Largest KLD first; equal ones in the order of layers. */
static int by_kld(const void *a, const void *b)
{
    const dq_sensitivity_unit *const *x = a, *const *y = b;
    if ((*x)->kld.value > (*y)->kld.value) return -1;
    if ((*x)->kld.value < (*y)->kld.value) return 1;
    return *x < *y ? -1 : *x > *y;
}

/* The units of a kind, ranked; the list is freed by dq_block_free. */
static const dq_sensitivity_unit **ranked(int64_t *n, const dq_sensitivity *s, int kind,
                                          dq_err *err)
{
    const dq_sensitivity_unit **u = dq_block_new((size_t)s->n + 1, sizeof *u, err);
    *n = 0;
    for (int64_t i = 0; u && i < s->n; i++) {
        if ((int)s->unit[i].kind == kind) u[(*n)++] = &s->unit[i];
    }
    if (u) qsort(u, (size_t)*n, sizeof *u, by_kld);
    return u;
}

/* ----- names of units ----- */

enum { NAME = 200 };

/* "layer 11 head 3", "layer 2 head 0 map 2", "model.embed_tokens.weight". */
static const char *unit_name(char buf[NAME], const dq_sensitivity_unit *u)
{
    if (u->name)
        snprintf(buf, NAME, "%.*s", NAME - 1, u->name);
    else if (u->head < 0)
        snprintf(buf, NAME, "layer %d", u->layer);
    else if (u->map < 0)
        snprintf(buf, NAME, "layer %d head %d", u->layer, u->head);
    else
        snprintf(buf, NAME, "layer %d head %d map %d", u->layer, u->head, u->map + 1);
    return buf;
}

/* ----- tables of units ----- */

static dq_status print_units(const cmd_stats_entry *e, int kind, int most, dq_err *err)
{
    static const char *const titles[] = {"alone", "KLD, nats",   "+-",
                                         "95 %",  "local error", "logit error"};
    char name[NAME];
    int64_t n;
    dq_table *t = NULL;
    const dq_sensitivity_unit **u = ranked(&n, e->sensitivity, kind, err);
    if (u && dq_table_new(&t, titles, 6, err) == DQ_OK) {
        for (int64_t i = 0; i < n && i < most; i++) {
            dq_table_cell(t, "%s", unit_name(name, u[i]));
            cmd_stats_number(t, u[i]->kld.value, 4);
            cmd_stats_number(t, u[i]->kld.std_err, 2);
            if (isfinite(u[i]->interval.low))
                dq_table_cell(t, "%.3g to %.3g", u[i]->interval.low, u[i]->interval.high);
            else
                dq_table_cell(t, "-");
            cmd_stats_number(t, u[i]->local, 3);
            cmd_stats_number(t, u[i]->logit_error, 3);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    dq_block_free(u);
    return err->code;
}

/* What breaks first, where windows that did not choose it say so. */
static dq_status print_first(const cmd_stats_entry *e, int kind, dq_err *err)
{
    const dq_sensitivity *s = e->sensitivity;
    char first[NAME], next[NAME];
    dq_sensitivity_first x;
    DQ_TRY(dq_sensitivity_first_of(&x, s, (dq_sensitivity_kind)kind, err));
    if (x.first < 0) {
        printf(
            "\nWhat breaks first is inconclusive: it takes two units, and four windows with scored "
            "tokens.\n");
        return DQ_OK;
    }
    unit_name(first, &s->unit[x.first]);
    unit_name(next, &s->unit[x.next]);
    if (x.interval.low > 0)
        printf(
            "\nBreaks first: %s. On the windows that did not choose it, it loses %.3g nats a token "
            "(%.3g to %.3g) more than any other; next is %s.\n",
            first, x.more.value, x.interval.low, x.interval.high, next);
    else
        printf("\nWhat breaks first is inconclusive: half of the windows say %s. On the others it "
               "loses "
               "%.3g to %.3g nats a token more than any other; of these, %s loses most.\n",
               first, x.interval.low, x.interval.high, next);
    return DQ_OK;
}

/* Of three units any order is likely. */
enum { LEAST = 4 };

static void print_correlation(const char *forecast, double r, dq_interval i)
{
    if (isfinite(r) && isfinite(i.low))
        printf("  %-12s %.2f (%.2f to %.2f)\n", forecast, r, i.low, i.high);
    else if (isfinite(r))
        printf("  %-12s %.2f (no interval)\n", forecast, r);
}

static dq_status print_kind(const cmd_stats_entry *e, int kind, int most, dq_err *err)
{
    const dq_sensitivity *s = e->sensitivity;
    dq_sensitivity_rank r;
    DQ_TRY(dq_sensitivity_rank_of(&r, s, (dq_sensitivity_kind)kind, err));
    if (r.n == 0) return DQ_OK;
    printf("\n%s: %s at %d bits%s%s, the most sensitive of %lld; %lld tokens scored in %lld "
           "windows\n\n",
           e->label, names[kind].title, s->set.bits, kind <= DQ_SENSITIVITY_MAPS ? " " : "",
           kind <= DQ_SENSITIVITY_MAPS ? dq_granularity_name[s->set.granularity] : "",
           (long long)r.n, (long long)s->scored, (long long)s->text->n_clusters);
    if (most > 0) DQ_TRY(print_units(e, kind, most, err));
    DQ_TRY(print_first(e, kind, err));
    if (r.n >= LEAST && (isfinite(r.local) || isfinite(r.logit_error))) {
        printf("Rank correlation with the KLD (Spearman; 95 %% if units were independent)\n");
        print_correlation("local error", r.local, r.local_interval);
        print_correlation("logit error", r.logit_error, r.logit_interval);
        if (isfinite(r.repeat))
            printf("  %-12s %.2f, of one half of the windows with the other\n", "the KLD",
                   r.repeat);
    }
    return DQ_OK;
}

dq_status cmd_stats_units_print(const cmd_stats_entry *e, int n_places, dq_err *err)
{
    for (int k = 0; e->sensitivity && k < DQ_SENSITIVITY_KINDS; k++) {
        if (wanted(e, k)) DQ_TRY(print_kind(e, k, n_places, err));
    }
    return err->code;
}

/* ----- the document ----- */

static json_t *number_or_null(int x)
{
    return x < 0 ? json_null() : json_integer(x);
}

/* Which unit it is. */
static json_t *which_json(const dq_sensitivity_unit *u)
{
    json_t *x = json_object();
    json_object_set_new(x, "of", json_string(names[u->kind].of));
    json_object_set_new(x, "by", json_string(names[u->kind].by));
    json_object_set_new(x, "layer", number_or_null(u->layer));
    json_object_set_new(x, "head", number_or_null(u->head));
    json_object_set_new(x, "map", u->map < 0 ? json_null() : json_integer(u->map + 1));
    json_object_set_new(x, "tensor", u->name ? dq_document_name(u->name) : json_null());
    return x;
}

static dq_status units_json(json_t *units, const cmd_stats_entry *e, int kind, dq_err *err)
{
    int64_t n;
    const dq_sensitivity_unit **u = ranked(&n, e->sensitivity, kind, err);
    for (int64_t i = 0; u && i < n; i++) {
        json_t *x = which_json(u[i]);
        json_object_set_new(x, "kld_nats", cmd_stats_mean_json(u[i]->kld, u[i]->interval));
        json_object_set_new(x, "local_error", dq_document_real(u[i]->local));
        json_object_set_new(x, "logit_error", dq_document_real(u[i]->logit_error));
        json_array_append_new(units, x);
    }
    dq_block_free(u);
    return err->code;
}

static void correlation_json(json_t *list, int kind, const char *forecast, int64_t n, double r,
                             dq_interval i, double repeat)
{
    if (!isfinite(r) || n < LEAST) return;
    json_t *x = json_object();
    json_object_set_new(x, "of", json_string(names[kind].of));
    json_object_set_new(x, "by", json_string(names[kind].by));
    json_object_set_new(x, "forecast", json_string(forecast));
    json_object_set_new(x, "n", json_integer(n));
    json_object_set_new(x, "spearman", dq_document_real(r));
    json_object_set_new(x, "interval", cmd_stats_interval_json(i));
    json_object_set_new(x, "repeat", dq_document_real(repeat));
    json_array_append_new(list, x);
}

static dq_status kind_json(json_t *units, json_t *correlation, json_t *first,
                           const cmd_stats_entry *e, int kind, dq_err *err)
{
    const dq_sensitivity *s = e->sensitivity;
    dq_sensitivity_rank r;
    dq_sensitivity_first f;
    DQ_TRY(units_json(units, e, kind, err));
    DQ_TRY(dq_sensitivity_rank_of(&r, s, (dq_sensitivity_kind)kind, err));
    DQ_TRY(dq_sensitivity_first_of(&f, s, (dq_sensitivity_kind)kind, err));
    correlation_json(correlation, kind, "local_error", r.n, r.local, r.local_interval, r.repeat);
    correlation_json(correlation, kind, "logit_error", r.n, r.logit_error, r.logit_interval,
                     r.repeat);
    if (f.first < 0) return DQ_OK;
    json_t *x = json_object();
    json_object_set_new(x, "first", which_json(&s->unit[f.first]));
    json_object_set_new(x, "next", which_json(&s->unit[f.next]));
    json_object_set_new(x, "more_nats", cmd_stats_mean_json(f.more, f.interval));
    json_array_append_new(first, x);
    return DQ_OK;
}

dq_status cmd_stats_units_json(json_t *result, const cmd_stats_entry *e, dq_err *err)
{
    const dq_sensitivity *s = e->sensitivity;
    if (!s || !s->set.kinds) return DQ_OK;
    json_t *x = json_object(), *units = json_array(), *correlation = json_array(),
           *first = json_array();
    json_object_set_new(x, "bits", json_integer(s->set.bits));
    json_object_set_new(x, "granularity", json_string(dq_granularity_name[s->set.granularity]));
    json_object_set_new(x, "tokens", json_integer(s->text->n_ids));
    json_object_set_new(x, "scored", json_integer(s->scored));
    json_object_set_new(x, "clusters", json_integer(s->text->n_clusters));
    json_object_set_new(x, "cluster", json_string("window"));
    json_object_set_new(x, "units", units);
    json_object_set_new(x, "correlation", correlation);
    json_object_set_new(x, "first", first);
    json_object_set_new(result, "sensitivity", x);
    for (int k = 0; k < DQ_SENSITIVITY_KINDS; k++)
        DQ_TRY(kind_json(units, correlation, first, e, k, err));
    return DQ_OK;
}

/* ----- the file ----- */

dq_status cmd_stats_units_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                             dq_arena *a, dq_err *err)
{
    enum { INTS = 4, REALS = 6 };
    static const char *const int_name[INTS] = {"kind", "layer", "head", "map"};
    static const char *const real_name[REALS] = {"kld",  "stderr",      "low",
                                                 "high", "local_error", "logit_error"};
    const dq_sensitivity *s = e->sensitivity;
    char name[160];
    if (!s || s->n == 0) return DQ_OK;
    const int64_t shape[2] = {s->n, s->text->n_clusters};
    int32_t *number = dq_alloc(a, (size_t)s->n, INTS * sizeof *number, err);
    double *real = dq_alloc(a, (size_t)s->n, REALS * sizeof *real, err);
    double *sums = dq_alloc(a, (size_t)(shape[0] * shape[1]), sizeof *sums, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        const int32_t ints[INTS] = {(int32_t)u->kind, u->layer, u->head, u->map};
        const double reals[REALS] = {u->kld.value,     u->kld.std_err, u->interval.low,
                                     u->interval.high, u->local,       u->logit_error};
        for (int k = 0; k < INTS; k++) number[k * s->n + i] = ints[k];
        for (int k = 0; k < REALS; k++) real[k * s->n + i] = reals[k];
        memcpy(sums + i * shape[1], u->sums, (size_t)shape[1] * sizeof *sums);
    }
    snprintf(name, sizeof name, "%s/sensitivity", group);
    DQ_TRY(dq_h5_result_group(h, name, err));
    DQ_TRY(dq_h5_result_text(h, name, "kinds", "layers heads maps keys values weights", err));
    for (int k = 0; k < INTS; k++) {
        snprintf(name, sizeof name, "%s/sensitivity/%s", group, int_name[k]);
        DQ_TRY(dq_h5_result_array(h, name, DQ_OUT_I32, 1, shape, number + k * s->n, err));
    }
    for (int k = 0; k < REALS; k++) {
        snprintf(name, sizeof name, "%s/sensitivity/%s", group, real_name[k]);
        DQ_TRY(dq_h5_result_array(h, name, DQ_OUT_F64, 1, shape, real + k * s->n, err));
    }
    snprintf(name, sizeof name, "%s/sensitivity/kld_sums", group);
    return dq_h5_result_array(h, name, DQ_OUT_F64, 2, shape, sums, err);
}
