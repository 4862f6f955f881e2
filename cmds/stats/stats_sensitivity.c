/* Numbers of all heads together are of sums over windows.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/stats/inside.h"
#include "record/record.h"
#include "record/version.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef double of_width(const void *x, int width, dq_granularity g);
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

enum { SHOWN_BITS = 4 };

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

/* By predicted error with a scale per row, which involves no other head. */
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
        for (int i = 0; i < n && i < most; i++) {
            const int at = all[i].at;
            const dq_forecast_logits *x = &f->logits[at];
            const int map = dq_outlier_map(&e->model->map, at % f->n_q);
            dq_table_cell(t, "%d", at / f->n_q);
            dq_table_cell(t, "%d", at % f->n_q);
            dq_table_cell(t, "%s", map == 0 ? "-" : map == 1 ? "1" : "2");
            cmd_stats_number(t, x->n ? sqrt(x->sum2 / (double)x->n) : (double)NAN, 4);
            for (int g = 0; g < DQ_GRANULARITIES; g++)
                cmd_stats_number(t, dq_forecast_predicted(x, SHOWN_BITS, (dq_granularity)g), 4);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    dq_block_free(all);
    return err->code;
}

static bool same_text(const dq_calib_text *a, const dq_calib_text *b)
{
    return a->n_ids == b->n_ids && a->n_seq == b->n_seq &&
           memcmp(a->ids, b->ids, (size_t)a->n_ids * sizeof *a->ids) == 0;
}

static void advantage_cells(dq_table *t, const dq_forecast_advantage *x)
{
    cmd_stats_number(t, x->bits.value, 3);
    dq_table_cell(t, "%lld", (long long)(isfinite(x->bits.value) ? x->bits.clusters : 0));
    dq_table_known(t, isfinite(x->interval.low), "%.3g to %.3g", x->interval.low, x->interval.high);
}

/* Each model compared with the first, where both read the same tokens. */
static dq_status advantage(dq_forecast_advantage *x, const cmd_stats_entry *e,
                           const cmd_stats_entry *first, dq_forecast_error of, int granularity,
                           dq_err *err)
{
    const dq_sensitivity *a = e->sensitivity, *b = first->sensitivity;
    *x = (dq_forecast_advantage){dq_mean_none, dq_interval_none};
    if (!same_text(a->text, b->text)) return DQ_OK;
    return dq_forecast_advantage_of(x, &a->forecast, &b->forecast, of, (dq_granularity)granularity,
                                    err);
}

static dq_status print_advantages(const cmd_stats_entry *e, int n, dq_err *err)
{
    static const char *const titles[] = {"model", "scale", "logits",  "windows",
                                         "95 %",  "maps",  "windows", "95 %"};
    dq_table *t;
    if (dq_table_new(&t, titles, 8, err) == DQ_OK) {
        dq_table_keys(t, 2);
        for (int i = 1; i < n; i++) {
            for (int g = 0; err->code == DQ_OK && g < DQ_GRANULARITIES; g++) {
                dq_table_cell(t, "%s", e[i].label);
                dq_table_cell(t, "%s", dq_granularity_name[g]);
                for (int of = DQ_FORECAST_OF_LOGITS; of <= DQ_FORECAST_OF_MAPS; of++) {
                    dq_forecast_advantage x;
                    if (advantage(&x, &e[i], e, (dq_forecast_error)of, g, err) == DQ_OK)
                        advantage_cells(t, &x);
                }
            }
        }
        if (err->code == DQ_OK) dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

dq_status cmd_stats_forecast_print(const cmd_stats_entry *e, int n, int n_places, bool layers,
                                   dq_err *err)
{
    if (!e->sensitivity) return DQ_OK;
    printf(
        "\nForecast of rounding attention logits, %lld tokens in %lld windows, all heads together: "
        "root mean square error of a logit, predicted from absolute maxima and measured; "
        "|D' - D| / |D| of maps\n\n",
        (long long)e->sensitivity->text->n_ids, (long long)e->sensitivity->text->n_clusters);
    static const char *const titles[] = {"model",    "bits",      "scale",       "predicted error",
                                         "measured", "map error", "cancellation"};
    dq_table *t;
    DQ_TRY(dq_table_new(&t, titles, 7, err));
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
                                 e[i].model->map.n_maps == 2 ? dq_forecast_cancellation(&m, w, g)
                                                             : (double)NAN,
                                 3);
            }
        }
    }
    DQ_TRY(dq_table_finish(t, err));
    for (int i = 0; i < n && (layers || n_places > 0); i++) {
        printf(
            "\n%s: heads by the predicted error of their logits at %d bits with a scale a row\n\n",
            e[i].label, SHOWN_BITS);
        DQ_TRY(print_forecast_heads(&e[i], layers ? INT64_MAX : n_places, err));
    }
    if (n < 2) return DQ_OK;
    printf("\nBits fewer than %d for the error that %s has at %d, over windows; below 0: more "
           "bits\n\n",
           DQ_FORECAST_ADVANTAGE_BITS, e->label, DQ_FORECAST_ADVANTAGE_BITS);
    return print_advantages(e, n, err);
}

/* {"8": {"per-tensor": x, ...}, ...} */
static void put_grid(dq_row_writer *w, const char *name, of_width *f, const void *of, bool there,
                     const char *about)
{
    static const char *const scale[DQ_GRANULARITIES] = {
        "One scale for a sequence and layer. null: nothing to divide by.",
        "One scale for a query head. null: nothing to divide by.",
        "One scale for a row of one. null: nothing to divide by.",
        "One scale for 64 rows and 64 keys of one. null: nothing to divide by."};
    char bits[8], at[24];
    if (!DQ_BEGIN(w, OBJECT, name, there, about, .def = "grid",
                  .when = f == cancellation ? DQ_NULL : 0))
        return;
    for (int i = 0; i < DQ_FORECAST_WIDTHS; i++) {
        snprintf(bits, sizeof bits, "%d", dq_forecast_bits[i]);
        snprintf(at, sizeof at, "At %s bits.", bits);
        if (!DQ_OBJECT(w, bits, at, .def = "by_granularity")) continue;
        for (int g = 0; g < DQ_GRANULARITIES; g++)
            DQ_PUT(w, dq_granularity_name[g], f(of, i, (dq_granularity)g), scale[g],
                   .when = DQ_NULL);
        dq_row_end(w);
    }
    dq_row_end(w);
}

/* error: of l, or of all heads together. */
static void logits_rows(dq_row_writer *w, const dq_forecast_logits *l, of_width *error,
                        const void *of)
{
    DQ_PUT(w, "logit_rms", l->n ? sqrt(l->sum2 / (double)l->n) : (double)NAN,
           "Root mean square of attention logits; null: there are none.", .when = DQ_NULL);
    put_grid(w, "error", error, of, true,
             "Root mean square error of a logit, predicted from absolute maxima.");
    put_grid(w, "error_measured", measured, l, true, "The same, measured.");
}

static void maps_rows(dq_row_writer *w, const dq_forecast_maps *m, int n_maps)
{
    put_grid(w, "map_error", map_error, m, true, "|D' - D| / |D| of attention maps.");
    put_grid(w, "cancellation", cancellation, m, n_maps == 2,
             "1: errors of both maps add up, 0: they cancel; null: one map.");
}

static dq_status advantage_rows(dq_row_writer *w, const cmd_stats_entry *e,
                                const cmd_stats_entry *all, dq_err *err)
{
    static const char *const name[] = {"logits", "maps"};
    static const char *const about[] = {"Of predicted errors of logits.",
                                        "Of errors of maps, between the widths that are measured."};
    static const char *const scale[DQ_GRANULARITIES] = {
        "One scale for a sequence and layer.", "One scale for a query head.",
        "One scale for a row of one.", "One scale for 64 rows and 64 keys of one."};
    DQ_PUT(w, "over", all->model->path, "The model that it is compared with.");
    DQ_PUT(w, "at_bits", DQ_FORECAST_ADVANTAGE_BITS, "The width of the other model.");
    for (int of = DQ_FORECAST_OF_LOGITS; of <= DQ_FORECAST_OF_MAPS; of++) {
        if (!DQ_OBJECT(w, name[of], about[of], .def = "advantage")) continue;
        for (int g = 0; err->code == DQ_OK && g < DQ_GRANULARITIES; g++) {
            dq_forecast_advantage y = {dq_mean_none, dq_interval_none};
            if (w->live && advantage(&y, e, all, (dq_forecast_error)of, g, err) != DQ_OK) break;
            if (!DQ_BEGIN(w, OBJECT, dq_granularity_name[g], isfinite(y.bits.value), scale[g],
                          .def = "bits_fewer", .when = DQ_NULL))
                continue;
            cmd_stats_mean_rows(w, y.bits, y.interval);
            DQ_PUT(w, "windows", (int64_t)y.bits.clusters, "Windows that count.", .min = 2);
            dq_row_end(w);
        }
        dq_row_end(w);
    }
    return err->code;
}

dq_status cmd_stats_forecast_rows(dq_row_writer *w, const cmd_stats_entry *e,
                                  const cmd_stats_entry *all, dq_err *err)
{
    const dq_forecast *f = w->live && e->sensitivity ? &e->sensitivity->forecast : NULL;
    const int n_maps = w->live ? e->model->map.n_maps : 1;
    dq_forecast_logits logits = {0};
    dq_forecast_maps maps = {0};
    if (!DQ_BEGIN(w, OBJECT, "forecast", f,
                  "What rounding attention logits does, without a forward pass of it: --forecast, "
                  "--sensitivity.",
                  .when = DQ_OUT))
        return DQ_OK;
    if (f) logits = all_logits(f);
    if (f) maps = all_maps(f);
    DQ_PUT(w, "n_tokens", e->sensitivity->text->n_ids, "Tokens of the windows.", .min = 1);
    DQ_OBJECT(w, "pooled", "All heads together.");
    logits_rows(w, &logits, predicted_all, f);
    maps_rows(w, &maps, n_maps);
    dq_row_end(w);
    DQ_LIST(w, "heads", "Query heads.");
    for (int i = 0; DQ_MORE(w, i, f->n_layers * f->n_q); i++) {
        DQ_ITEM(w);
        DQ_PUT(w, "layer", i / f->n_q, "From 0.");
        DQ_PUT(w, "head", i % f->n_q, "Query head, from 0.");
        DQ_PUT(w, "map", dq_outlier_map(&e->model->map, i % f->n_q),
               "Which map it makes; null: there is one.", .when = DQ_NULL | DQ_AT_0, .min = 1,
               .max = 2);
        logits_rows(w, DQ_LIVE(w, &f->logits[i]), predicted, DQ_LIVE(w, &f->logits[i]));
        dq_row_end(w);
    }
    dq_row_end(w);
    DQ_LIST(w, "outputs", "Output heads.");
    for (int i = 0; DQ_MORE(w, i, f->n_layers * f->n_out); i++) {
        DQ_ITEM(w);
        DQ_PUT(w, "layer", i / f->n_out, "From 0.");
        DQ_PUT(w, "head", i % f->n_out, "Output head, from 0.");
        maps_rows(w, DQ_LIVE(w, &f->maps[i]), n_maps);
        dq_row_end(w);
    }
    dq_row_end(w);
    if (DQ_BEGIN(w, OBJECT, "bit_advantage", e != all,
                 "Bits fewer for the error that the first model has; not of that one.",
                 .when = DQ_OUT)) {
        advantage_rows(w, e, all, err);
        dq_row_end(w);
    }
    dq_row_end(w);
    return err->code;
}

/* [layers][heads][widths][granularities] of `of`, whose elements are `size` bytes apart. */
static dq_status grid_h5(dq_h5_result *h, const char *name, of_width *f, const void *of,
                         size_t size, int n_layers, int n_heads, dq_arena *a, dq_err *err)
{
    enum { EACH = DQ_FORECAST_WIDTHS * DQ_GRANULARITIES };
    const int64_t shape[4] = {n_layers, n_heads, DQ_FORECAST_WIDTHS, DQ_GRANULARITIES};
    const int64_t n = shape[0] * shape[1];
    double *x = dq_alloc(a, (size_t)n * EACH, sizeof *x, err);
    if (!x) return err->code;
    for (int64_t i = 0; i < n * EACH; i++)
        x[i] = f((const char *)of + (size_t)(i / EACH) * size, (int)(i % EACH) / DQ_GRANULARITIES,
                 (dq_granularity)(i % DQ_GRANULARITIES));
    return dq_h5_result_array(h, name, DQ_OUT_F64, 4, shape, x, err);
}

dq_status cmd_stats_forecast_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                dq_arena *a, dq_err *err)
{
    char name[160];
    if (!e->sensitivity) return DQ_OK;
    const dq_forecast *f = &e->sensitivity->forecast;
    const struct {
        const char *name;
        of_width *of;
        const void *x;
        size_t size;
        int heads;
    } all[] = {{"error", predicted, f->logits, sizeof *f->logits, f->n_q},
               {"error_measured", measured, f->logits, sizeof *f->logits, f->n_q},
               {"map_error", map_error, f->maps, sizeof *f->maps, f->n_out},
               {"cancellation", cancellation, f->maps, sizeof *f->maps, f->n_out}};
    snprintf(name, sizeof name, "%s/forecast", group);
    DQ_TRY(dq_h5_result_group(h, name, err));
    DQ_TRY(dq_h5_result_text(h, name, "axes",
                             "layer; query head, of maps output head; 8 6 4 3 bits; per-tensor "
                             "per-head per-row per-tile",
                             err));
    for (int k = 0; k < (e->model->map.n_maps == 2 ? 4 : 3); k++) {
        snprintf(name, sizeof name, "%s/forecast/%s", group, all[k].name);
        DQ_TRY(
            grid_h5(h, name, all[k].of, all[k].x, all[k].size, f->n_layers, all[k].heads, a, err));
    }
    return DQ_OK;
}

/* Windows become a text of clusters as in plans; all models share a journal, whose lines have the
 * model's number. */

enum { TOKENS = 512, GROUP = 64, BITS = 4, WINDOWS = 8 };

const char *const cmd_stats_sensitivity_kinds[CMD_STATS_SENSITIVITY_KINDS] = {
    "all", "layers", "heads", "maps", "keys", "values", "weights"};

static unsigned kinds_of(const cmd_stats_sensitivity *x)
{
    unsigned kinds = 0;
    for (int i = 0; i < x->kinds.n; i++)
        kinds |= x->kinds.at[i] ? 1u << (x->kinds.at[i] - 1) : (1u << DQ_SENSITIVITY_KINDS) - 1;
    return kinds;
}

bool cmd_stats_sensitivity_wanted(const cmd_stats_sensitivity *x)
{
    return x->forecast || x->kinds.n;
}

enum {
    LOGIT_KINDS =
        1u << DQ_SENSITIVITY_LAYERS | 1u << DQ_SENSITIVITY_HEADS | 1u << DQ_SENSITIVITY_MAPS
};

dq_status cmd_stats_sensitivity_check(cmd_stats_sensitivity *x, const dq_backend *b, dq_err *err)
{
    if (!x->kinds.n && (x->bits || x->granularity.text))
        return dq_fail(err, DQ_USAGE,
                       "--sensitivity-bits and --logit-granularity are about what --sensitivity "
                       "rounds%s. Add --sensitivity.",
                       x->forecast ? "; --forecast has all of them" : "");
    if (!cmd_stats_sensitivity_wanted(x) && (x->windows || x->tokens))
        return dq_fail(
            err, DQ_USAGE,
            "--sensitivity-windows and --sensitivity-tokens are about rounding, which is "
            "not asked for. Add --sensitivity or --forecast.");
    if (x->kinds.n && x->granularity.text && !(kinds_of(x) & LOGIT_KINDS))
        return dq_fail(err, DQ_USAGE,
                       "--logit-granularity is about attention logits, which --sensitivity %s does "
                       "not round. Leave it out, or add layers, heads or maps.",
                       x->kinds.text);
    if (!x->bits) x->bits = BITS;
    if (!x->windows) x->windows = WINDOWS;
    if (!x->tokens) x->tokens = TOKENS;
    if (!x->granularity.text)
        x->granularity =
            (dq_word){dq_granularity_name[DQ_GRANULARITY_TENSOR], DQ_GRANULARITY_TENSOR};
    if (!cmd_stats_sensitivity_wanted(x)) return DQ_OK;
    if (x->bits == 7)
        return dq_fail(err, DQ_USAGE,
                       "--sensitivity-bits 7: there are no codes of 7 bits. Give 2 to 6, or 8.");
    if (!b->ops->has_rounds)
        return dq_fail(err, DQ_MISMATCH,
                       "on %s heads cannot be rounded alone. Leave out --device, or leave out "
                       "--sensitivity and --forecast.",
                       b->device);
    if (dq_ranks_count() > 1)
        return dq_fail(err, DQ_MISMATCH,
                       "--sensitivity and --forecast do not run under mpirun. Share them with "
                       "--one-pass --shard I/N.");
    return DQ_OK;
}

void cmd_stats_sensitivity_settings(const cmd_stats_sensitivity *x, dq_row_writer *w)
{
    const bool rounds = w->live && x->kinds.n;
    if (w->live && !cmd_stats_sensitivity_wanted(x)) return;
    DQ_LIST(w, "sensitivity",
            "Kinds of units; empty: the forecast alone. Absent: neither was wanted.",
            .when = DQ_SOMETIMES);
    for (int k = 0; DQ_MORE(w, k, DQ_SENSITIVITY_KINDS); k++) {
        if (DQ_WHEN(w, kinds_of(x) >> k & 1)) DQ_PUT(w, NULL, dq_sensitivity_name[k], NULL);
    }
    dq_row_end(w);
    DQ_PUT(w, "sensitivity_bits", rounds ? x->bits : 0,
           "Bits that units are rounded to; null: none are.",
           .when = DQ_NULL | DQ_AT_0 | DQ_SOMETIMES, .min = 2, .max = 8);
    DQ_PUT(w, "sensitivity_windows", x->windows, "Windows at most.", .when = DQ_SOMETIMES, .min = 2,
           .max = 4096);
    DQ_PUT(w, "sensitivity_tokens", x->tokens, "Tokens of a window at most.", .when = DQ_SOMETIMES,
           .min = 3);
    DQ_PUT(w, "sensitivity_group", rounds ? GROUP : 0,
           "Columns of a matrix with one scale; null: none are rounded.",
           .when = DQ_NULL | DQ_AT_0 | DQ_SOMETIMES, .min = 1);
    DQ_PUT(w, "logit_granularity", rounds ? x->granularity.text : NULL,
           "Which logits of a unit have one scale; null: none are rounded.",
           .when = DQ_NULL | DQ_SOMETIMES, DQ_WORDS(dq_granularity_name));
}

static dq_status take_line(void *arg, const json_t *line, bool told, dq_err *err)
{
    const cmd_stats_sensitivity_run *r = arg;
    const json_int_t model = json_integer_value(json_object_get(line, "model"));
    if (!json_is_integer(json_object_get(line, "model")) || model < 0 || model >= r->n)
        return dq_fail(err, DQ_DAMAGED, "has a model that is none of 0 to %d", r->n - 1);
    return dq_sensitivity_take(r->entry[model].sensitivity, line, told, err);
}

static bool has(const dq_sensitivity *s, dq_sensitivity_kind kind)
{
    return s->set.kinds >> kind & 1;
}

/* Refuses windows that say nothing about what is rounded. */
static dq_status check_windows(const dq_sensitivity *s, dq_err *err)
{
    const int64_t longest = dq_calib_text_longest(s->text),
                  plain = s->set.kv.recent + DQ_PAGE_TOKENS; /* not coded, at least */
    if (s->set.kinds && longest < 2)
        return dq_fail(err, DQ_MISMATCH,
                       "no window has a token to predict. Give a longer text, or leave out "
                       "--sensitivity.");
    if ((has(s, DQ_SENSITIVITY_KEYS) || has(s, DQ_SENSITIVITY_VALUES)) && longest <= plain)
        return dq_fail(
            err, DQ_MISMATCH,
            "a cache has codes of windows of more than %lld tokens only, and the longest "
            "has %lld. Raise --ctx, or leave keys and values out of --sensitivity.",
            (long long)plain, (long long)longest);
    return DQ_OK;
}

static dq_status put_unit(void *arg, const dq_sensitivity *s, int64_t unit, dq_err *err)
{
    cmd_stats_sensitivity_run *r = arg;
    return dq_work_put(&r->ledger, dq_sensitivity_line(s, unit, err), err);
}

static dq_status prepare(cmd_stats_sensitivity_run *r, int model, dq_err *err)
{
    cmd_stats_entry *e = &r->entry[model];
    dq_calib_text *text = dq_alloc(r->arena, 1, sizeof *text, err);
    dq_sensitivity *s = dq_alloc(r->arena, 1, sizeof *s, err);
    /* Scratch files go beside the output, else to the temporary folder. */
    const char *folder = getenv("TMPDIR");
    const char *beside =
        r->out ? r->out : dq_textf(r->arena, err, "%s/dq", folder && *folder ? folder : "/tmp");
    if (!text || !s || !beside) return err->code;
    const dq_sensitivity_settings set = {.kinds = kinds_of(r->set),
                                         .bits = (int)r->set->bits,
                                         .granularity = (dq_granularity)r->set->granularity.at,
                                         .group = GROUP,
                                         .kv = dq_kv_config_plain,
                                         .backend = r->backend,
                                         .beside = beside,
                                         .number = model,
                                         .shard = r->shard,
                                         .n_shards = r->n_shards,
                                         .found = r->found ? r->found
                                                  : r->out ? put_unit
                                                           : NULL,
                                         .arg = r->found ? r->arg : r};
    /* The beginnings of some of the sequences that were fed. */
    dq_calib_text *t = text;
    const cmd_stats_sensitivity *x = r->set;
    dq_arena *a = r->arena;
    const int64_t n = e->in.n_seq < x->windows ? e->in.n_seq : x->windows;
    int64_t *cu = dq_alloc(a, (size_t)n + 1, sizeof *cu, err);
    int32_t *ids = dq_alloc(a, (size_t)n * (size_t)x->tokens, sizeof *ids, err);
    int32_t *number = dq_alloc(a, (size_t)n, sizeof *number, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = i * e->in.n_seq / n, begin = e->in.cu[from];
        const int64_t all = e->in.cu[from + 1] - begin, take = all < x->tokens ? all : x->tokens;
        memcpy(ids + cu[i], e->in.ids + begin, (size_t)take * sizeof *ids);
        cu[i + 1] = cu[i] + take;
        number[i] = (int32_t)i;
    }
    *t = (dq_calib_text){.ids = ids,
                         .n_ids = cu[n],
                         .cu = cu,
                         .unit = number,
                         .n_seq = n,
                         .ctx = x->tokens,
                         .cluster = number,
                         .n_clusters = n,
                         .n_units = n};
    if (dq_sensitivity_new(s, e->model, text, &set, r->arena, err) != DQ_OK ||
        check_windows(s, err) != DQ_OK)
        return dq_in(err, "%s: ", e->model->path);
    e->sensitivity = s;
    return DQ_OK;
}

dq_status cmd_stats_sensitivity_begin(cmd_stats_sensitivity_run *r, dq_err *err)
{
    int64_t units = 0;
    for (int i = 0; i < r->n; i++) {
        DQ_TRY(prepare(r, i, err));
        units += r->entry[i].sensitivity->n;
    }
    const int64_t windows = r->n ? r->entry[0].sensitivity->text->n_clusters : 0;
    if (r->set->kinds.n && windows < DQ_SENSITIVITY_WINDOWS)
        dq_logger_warn(r->logger,
                       "what breaks first will be inconclusive: %lld windows are fewer than the %d "
                       "that it takes, of which half choose it and half judge. Give more with "
                       "--sensitivity-windows, or more text",
                       (long long)windows, DQ_SENSITIVITY_WINDOWS);
    if (r->set->kinds.n && units == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "--sensitivity %s: no model has two maps. Give other kinds.",
                       r->set->kinds.text);
    if (r->found || !r->out || !r->set->kinds.n) return DQ_OK;
    char arithmetic[DQ_OS_ARITHMETIC];
    json_t *of = json_object();
    dq_os_arithmetic(arithmetic);
    dq_row_writer w = dq_row_json(of);
    DQ_PUT(&w, "version", DQ_VERSION, NULL);
    DQ_PUT(&w, "arithmetic", arithmetic, NULL);
    DQ_PUT(&w, "models and text", r->key, NULL);
    cmd_stats_sensitivity_settings(r->set, &w);
    const dq_work_how how = {.path = dq_textf(r->arena, err, "%s.journal", r->out),
                             .schema = "dq-sensitivity/1",
                             .of = of,
                             .resume = r->resume,
                             .force = r->force,
                             .beside = true,
                             .take = take_line,
                             .arg = r};
    dq_work_open(&r->ledger, &how, err);
    json_decref(of);
    return err->code;
}

dq_status cmd_stats_sensitivity_compute(cmd_stats_sensitivity_run *r, dq_err *err)
{
    for (int i = 0; i < r->n; i++) {
        dq_sensitivity *s = r->entry[i].sensitivity;
        if (s->n_known && r->out)
            dq_logger_note(r->logger, "%s: %lld of %lld units are known from %s",
                           r->entry[i].model->path, (long long)s->n_known, (long long)s->n,
                           r->ledger.how.path ? r->ledger.how.path : r->out);
        dq_progress_begin(&r->bar, r->logger, r->entry[i].label, 1);
        s->work = (dq_plan_work){.step = dq_progress_step, .arg = &r->bar};
        dq_sensitivity_run(s, err);
        dq_progress_end(&r->bar);
        if (err->code != DQ_OK)
            return err->code == DQ_STOPPED ? err->code
                                           : dq_in(err, "%s: ", r->entry[i].model->path);
    }
    return DQ_OK;
}

void cmd_stats_sensitivity_end(cmd_stats_sensitivity_run *r, dq_err *err)
{
    if (err->code != DQ_OK) dq_work_failed(&r->ledger, err);
    dq_work_close(&r->ledger, err->code == DQ_OK);
}
