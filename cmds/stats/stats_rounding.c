/* stats_rounding: see stats_rounding.h. Units are ranked here alone: the plan's order is that of layers.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_rounding.h"

#include "cmds/cli/document.h"
#include "cmds/stats/stats_cells.h"

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

/* ----- numbers of the forecast ----- */

static double predicted(const void *x, int w, dq_granularity g)
{
    return dq_forecast_predicted(x, dq_forecast_bits[w], g);
}
static double predicted_all(const void *forecast, int w, dq_granularity g)
{
    const dq_forecast *f = forecast;
    return dq_forecast_predicted_all(f->logits, (int64_t)f->n_layers * f->n_q, dq_forecast_bits[w],
                                     g);
}
static double measured(const void *x, int w, dq_granularity g)
{
    return dq_forecast_measured(x, w, g);
}
static double map_error(const void *x, int w, dq_granularity g)
{
    return dq_forecast_map_error(x, w, g);
}
static double cancellation(const void *x, int w, dq_granularity g)
{
    return dq_forecast_cancellation(x, w, g);
}

/* ----- tables of the forecast ----- */

static dq_forecast_logits all_logits(const dq_forecast *f)
{
    dq_forecast_logits all = {0};
    for (int64_t c = 0; c < f->n_clusters; c++) dq_forecast_logits_merge(&all, &f->logits_of[c]);
    return all;
}

static dq_forecast_maps all_maps(const dq_forecast *f)
{
    dq_forecast_maps all = {0};
    for (int64_t c = 0; c < f->n_clusters; c++) dq_forecast_maps_merge(&all, &f->maps_of[c]);
    return all;
}

static dq_status print_forecast(const cmd_stats_entry *e, int n, dq_err *err)
{
    static const char *const titles[] = {"model",    "bits",      "scale",       "predicted error",
                                         "measured", "map error", "cancellation"};
    dq_table *t;
    if (dq_table_new(&t, titles, 7, err) == DQ_OK) {
        dq_table_keys(t, 3);
        for (int i = 0; i < n; i++) {
            const dq_forecast *f = &e[i].sensitivity->forecast;
            const dq_forecast_logits l = all_logits(f);
            const dq_forecast_maps m = all_maps(f);
            for (int w = 0; w < DQ_FORECAST_WIDTHS; w++) {
                if (i || w) dq_table_rule(t);
                for (int k = 0; k < DQ_GRANULARITIES; k++) {
                    const dq_granularity g = (dq_granularity)k;
                    dq_table_cell(t, "%s", e[i].label);
                    dq_table_cell(t, "%d", dq_forecast_bits[w]);
                    dq_table_cell(t, "%s", dq_granularity_name[k]);
                    cmd_stats_number(t, predicted_all(f, w, g), 4);
                    cmd_stats_number(t, dq_forecast_measured(&l, w, g), 4);
                    cmd_stats_number(t, dq_forecast_map_error(&m, w, g), 4);
                    cmd_stats_number(t,
                                     e[i].model->map.n_maps == 2
                                         ? dq_forecast_cancellation(&m, w, g)
                                         : (double)NAN,
                                     3);
                }
            }
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

enum { AT_4 = 2, SHOWN_BITS = 4 };

/* A query head of a layer. */
typedef struct by_head {
    int at;
    double error;
} by_head;

static int by_error(const void *a, const void *b)
{
    const by_head *x = a, *y = b;
    if (x->error > y->error) return -1;
    return x->error < y->error ? 1 : x->at - y->at;
}

static void head_row(dq_table *t, const cmd_stats_entry *e, int at)
{
    const dq_forecast *f = &e->sensitivity->forecast;
    const dq_forecast_logits *x = &f->logits[at];
    const int map = dq_outlier_map(&e->model->map, at % f->n_q);
    dq_table_cell(t, "%d", at / f->n_q);
    dq_table_cell(t, "%d", at % f->n_q);
    dq_table_cell(t, "%s", map == 0 ? "-" : map == 1 ? "1" : "2");
    cmd_stats_number(t, x->n ? sqrt(x->sum2 / (double)x->n) : (double)NAN, 4);
    for (int g = 0; g < DQ_GRANULARITIES; g++)
        cmd_stats_number(t, dq_forecast_predicted(x, SHOWN_BITS, (dq_granularity)g), 4);
}

/* Heads by their predicted error with a scale a row, which is the one that no other head has a part in. */
static dq_status print_forecast_heads(const cmd_stats_entry *e, int64_t most, dq_err *err)
{
    static const char *const titles[] = {"layer",      "head",     "map",     "logit rms",
                                         "per-tensor", "per-head", "per-row", "per-tile"};
    const dq_forecast *f = &e->sensitivity->forecast;
    const int n = f->n_layers * f->n_q;
    by_head *all = dq_block_new((size_t)n, sizeof *all, err);
    dq_table *t = NULL;
    if (all && dq_table_new(&t, titles, 8, err) == DQ_OK) {
        dq_table_keys(t, 3);
        for (int i = 0; i < n; i++)
            all[i] =
                (by_head){i, dq_forecast_predicted(&f->logits[i], SHOWN_BITS, DQ_GRANULARITY_ROW)};
        qsort(all, (size_t)n, sizeof *all, by_error);
        for (int i = 0; i < n && i < most; i++) head_row(t, e, all[i].at);
        dq_table_print(t, err);
    }
    dq_table_free(t);
    dq_block_free(all);
    return err->code;
}

/* Whether both were fed the same. */
static bool same_text(const dq_calib_text *a, const dq_calib_text *b)
{
    return a->n_ids == b->n_ids && a->n_seq == b->n_seq &&
           memcmp(a->ids, b->ids, (size_t)a->n_ids * sizeof *a->ids) == 0;
}

static void advantage_cells(dq_table *t, const dq_forecast_advantage *x)
{
    cmd_stats_number(t, x->bits.value, 3);
    if (isfinite(x->interval.low))
        dq_table_cell(t, "%.3g to %.3g", x->interval.low, x->interval.high);
    else
        dq_table_cell(t, "-");
}

/* Each model beside the first. */
static dq_status print_advantages(const cmd_stats_entry *e, int n, dq_err *err)
{
    static const char *const titles[] = {"model", "scale",          "logits",
                                         "95 %",  "maps at 4 bits", "95 %"};
    dq_table *t;
    if (dq_table_new(&t, titles, 6, err) == DQ_OK) {
        dq_table_keys(t, 2);
        for (int i = 1; i < n; i++) {
            const dq_sensitivity *a = e[i].sensitivity, *b = e[0].sensitivity;
            for (int g = 0; err->code == DQ_OK && g < DQ_GRANULARITIES; g++) {
                dq_forecast_advantage x;
                dq_table_cell(t, "%s", e[i].label);
                dq_table_cell(t, "%s", dq_granularity_name[g]);
                for (int w = DQ_FORECAST_LOGITS; w <= AT_4; w += AT_4 - DQ_FORECAST_LOGITS) {
                    if (dq_forecast_advantage_of(&x, &a->forecast, &b->forecast, w,
                                                 (dq_granularity)g, same_text(a->text, b->text),
                                                 err) == DQ_OK)
                        advantage_cells(t, &x);
                }
            }
        }
        if (err->code == DQ_OK) dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* ----- tables of units ----- */

static void forecast_cell(dq_table *t, double x)
{
    cmd_stats_number(t, x, 3);
}

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
            forecast_cell(t, u[i]->local);
            forecast_cell(t, u[i]->logit_error);
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
        printf("\nWhat breaks first is inconclusive: it takes two units and four windows.\n");
        return DQ_OK;
    }
    unit_name(first, &s->unit[x.first]);
    unit_name(next, &s->unit[x.next]);
    if (x.interval.low > 0)
        printf("\nBreaks first: %s. It loses %.3g nats (%.3g to %.3g) more than %s on the windows "
               "that did not choose them.\n",
               first, x.more.value, x.interval.low, x.interval.high, next);
    else
        printf("\nWhat breaks first is inconclusive: %s or %s (difference %.3g to %.3g nats on the "
               "windows that did not choose them).\n",
               first, next, x.interval.low, x.interval.high);
    return DQ_OK;
}

/* Of three units any order is likely. */
enum { LEAST = 4 };

static void print_correlation(const char *forecast, double r, dq_interval i)
{
    if (isfinite(r) && !isfinite(i.low)) printf("  %-12s %.2f\n", forecast, r);
    if (isfinite(r) && isfinite(i.low))
        printf("  %-12s %.2f (%.2f to %.2f)\n", forecast, r, i.low, i.high);
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
        printf("Spearman's rank correlation of forecast and KLD (95 %%)\n");
        print_correlation("local error", r.local, r.local_interval);
        print_correlation("logit error", r.logit_error, r.logit_interval);
        if (isfinite(r.repeat))
            printf("  %-12s %.2f, of the KLD on one half of the windows with that on the other\n",
                   "itself", r.repeat);
    }
    return DQ_OK;
}

dq_status cmd_stats_rounding_print(const cmd_stats_entry *e, int n, int n_places, bool layers,
                                   dq_err *err)
{
    if (!e->sensitivity) return DQ_OK;
    printf(
        "\nForecast of rounding attention logits, all heads together: root mean square error of a "
        "logit, predicted from absolute maxima and measured; |D' - D| / |D| of maps\n\n");
    DQ_TRY(print_forecast(e, n, err));
    for (int i = 0; i < n && (layers || n_places > 0); i++) {
        printf(
            "\n%s: heads by the predicted error of their logits at %d bits with a scale a row\n\n",
            e[i].label, SHOWN_BITS);
        DQ_TRY(print_forecast_heads(&e[i], layers ? INT64_MAX : n_places, err));
    }
    if (n > 1) {
        printf(
            "\nBits fewer than %s for the same error, over windows (95 %%; below 0: more bits)\n\n",
            e->label);
        DQ_TRY(print_advantages(e, n, err));
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < DQ_SENSITIVITY_KINDS; k++) {
            if (wanted(&e[i], k)) DQ_TRY(print_kind(&e[i], k, n_places, err));
        }
    }
    return DQ_OK;
}

/* ----- the document ----- */

static json_t *interval_json(dq_interval i)
{
    json_t *x = json_array();
    if (!isfinite(i.low)) {
        json_decref(x);
        return json_null();
    }
    json_array_append_new(x, dq_document_real(i.low));
    json_array_append_new(x, dq_document_real(i.high));
    return x;
}

static json_t *mean_json(dq_mean m, dq_interval i)
{
    json_t *x = dq_document_metric(m.value, m.std_err);
    json_object_set_new(x, "interval", interval_json(i));
    return x;
}

/* A number for every width and granularity: {"8": {"per-tensor": x, ...}, ...}. */
typedef double of_width(const void *x, int width, dq_granularity g);
static json_t *grid_json(of_width *f, const void *of)
{
    char bits[8];
    json_t *grid = json_object();
    for (int w = 0; w < DQ_FORECAST_WIDTHS; w++) {
        json_t *x = json_object();
        for (int g = 0; g < DQ_GRANULARITIES; g++)
            json_object_set_new(x, dq_granularity_name[g],
                                dq_document_real(f(of, w, (dq_granularity)g)));
        snprintf(bits, sizeof bits, "%d", dq_forecast_bits[w]);
        json_object_set_new(grid, bits, x);
    }
    return grid;
}
static void logits_json(json_t *x, const dq_forecast_logits *l)
{
    json_object_set_new(x, "logit_rms",
                        dq_document_real(l->n ? sqrt(l->sum2 / (double)l->n) : (double)NAN));
    json_object_set_new(x, "error", grid_json(predicted, l));
    json_object_set_new(x, "error_measured", grid_json(measured, l));
}

static void maps_json(json_t *x, const dq_forecast_maps *m, int n_maps)
{
    json_object_set_new(x, "map_error", grid_json(map_error, m));
    json_object_set_new(x, "cancellation", n_maps == 2 ? grid_json(cancellation, m) : json_null());
}

static json_t *advantage_json(const dq_forecast_advantage *x)
{
    return isfinite(x->bits.value) ? mean_json(x->bits, x->interval) : json_null();
}

static dq_status advantages_json(json_t *forecast, const cmd_stats_entry *e,
                                 const cmd_stats_entry *first, dq_err *err)
{
    json_t *x = json_object();
    const dq_sensitivity *a = e->sensitivity, *b = first->sensitivity;
    const bool paired = same_text(a->text, b->text);
    json_object_set_new(x, "over", dq_document_name(first->model->path));
    json_object_set_new(x, "paired", json_boolean(paired));
    for (int w = DQ_FORECAST_LOGITS; err->code == DQ_OK && w < DQ_FORECAST_WIDTHS; w++) {
        json_t *by = json_object();
        char name[24] = "logits";
        for (int g = 0; err->code == DQ_OK && g < DQ_GRANULARITIES; g++) {
            dq_forecast_advantage y;
            if (dq_forecast_advantage_of(&y, &a->forecast, &b->forecast, w, (dq_granularity)g,
                                         paired, err) == DQ_OK)
                json_object_set_new(by, dq_granularity_name[g], advantage_json(&y));
        }
        if (w >= 0) snprintf(name, sizeof name, "maps_%d_bits", dq_forecast_bits[w]);
        json_object_set_new(x, name, by);
    }
    json_object_set_new(forecast, "bit_advantage", x);
    return err->code;
}

static json_t *forecast_json(const cmd_stats_entry *e)
{
    const dq_forecast *f = &e->sensitivity->forecast;
    const int n_maps = e->model->map.n_maps;
    const dq_forecast_logits logits = all_logits(f);
    const dq_forecast_maps maps = all_maps(f);
    json_t *x = json_object(), *pooled = json_object(), *heads = json_array(), *outs = json_array();
    logits_json(pooled, &logits);
    json_object_set_new(pooled, "error", grid_json(predicted_all, f));
    maps_json(pooled, &maps, n_maps);
    for (int i = 0; i < f->n_layers * f->n_q; i++) {
        const int map = dq_outlier_map(&e->model->map, i % f->n_q);
        json_t *head = json_object();
        json_object_set_new(head, "layer", json_integer(i / f->n_q));
        json_object_set_new(head, "head", json_integer(i % f->n_q));
        json_object_set_new(head, "map", map ? json_integer(map) : json_null());
        logits_json(head, &f->logits[i]);
        json_array_append_new(heads, head);
    }
    for (int i = 0; i < f->n_layers * f->n_out; i++) {
        json_t *out = json_object();
        json_object_set_new(out, "layer", json_integer(i / f->n_out));
        json_object_set_new(out, "head", json_integer(i % f->n_out));
        maps_json(out, &f->maps[i], n_maps);
        json_array_append_new(outs, out);
    }
    json_object_set_new(x, "n_tokens", json_integer(e->sensitivity->text->n_ids));
    json_object_set_new(x, "pooled", pooled);
    json_object_set_new(x, "heads", heads);
    json_object_set_new(x, "outputs", outs);
    return x;
}

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
        json_object_set_new(x, "kld_nats", mean_json(u[i]->kld, u[i]->interval));
        json_object_set_new(x, "forecast", dq_document_real(u[i]->local));
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
    json_object_set_new(x, "interval", interval_json(i));
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
    json_object_set_new(x, "more_nats", mean_json(f.more, f.interval));
    json_array_append_new(first, x);
    return DQ_OK;
}

dq_status cmd_stats_rounding_json(json_t *result, const cmd_stats_entry *e,
                                  const cmd_stats_entry *all, dq_err *err)
{
    const dq_sensitivity *s = e->sensitivity;
    if (!s) return DQ_OK;
    json_t *forecast = forecast_json(e);
    json_object_set_new(result, "forecast", forecast);
    if (e != all) DQ_TRY(advantages_json(forecast, e, all, err));
    if (!s->set.kinds) return DQ_OK;
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

dq_status cmd_stats_rounding_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
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
