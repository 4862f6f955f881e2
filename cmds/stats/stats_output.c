/* Units are ranked here alone: the plan's order is that of layers.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "calib/outliers.h"
#include "cmds/cli/cli.h"
#include "cmds/stats/inside.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *interval_json(dq_interval i);

static const struct {
    const char *of, *by, *title;
} kind_names[DQ_SENSITIVITY_KINDS] = {
    [DQ_SENSITIVITY_LAYERS] = {"logits", "layer", "logits of a layer"},
    [DQ_SENSITIVITY_HEADS] = {"logits", "head", "logits of a head"},
    [DQ_SENSITIVITY_MAPS] = {"logits", "map", "logits of a map"},
    [DQ_SENSITIVITY_KEYS] = {"keys", "layer", "keys of a layer"},
    [DQ_SENSITIVITY_VALUES] = {"values", "layer", "values of a layer"},
    [DQ_SENSITIVITY_WEIGHTS] = {"weights", "tensor", "a matrix of weights"},
};

/* Largest KLD first; stable. */
static int by_kld(const void *a, const void *b)
{
    const dq_sensitivity_unit *const *x = a, *const *y = b;
    if ((*x)->kld.value > (*y)->kld.value) return -1;
    if ((*x)->kld.value < (*y)->kld.value) return 1;
    return *x < *y ? -1 : *x > *y;
}

/* Ranked units of a kind; free the list with dq_block_free. */
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

/* What breaks first, if held-out windows confirm it. */
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

/* With three units any order is likely. */
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
           e->label, kind_names[kind].title, s->set.bits, kind <= DQ_SENSITIVITY_MAPS ? " " : "",
           kind <= DQ_SENSITIVITY_MAPS ? dq_granularity_name[s->set.granularity] : "",
           (long long)r.n, (long long)s->scored, (long long)s->text->n_clusters);
    if (most > 0) {
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
                dq_table_known(t, isfinite(u[i]->interval.low), "%.3g to %.3g", u[i]->interval.low,
                               u[i]->interval.high);
                cmd_stats_number(t, u[i]->local, 3);
                cmd_stats_number(t, u[i]->logit_error, 3);
            }
            dq_table_print(t, err);
        }
        dq_table_free(t);
        dq_block_free(u);
        if (err->code != DQ_OK) return err->code;
    }
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
        if (e->sensitivity->set.kinds >> k & 1) DQ_TRY(print_kind(e, k, n_places, err));
    }
    return err->code;
}

static json_t *number_or_null(int x)
{
    return x < 0 ? json_null() : json_integer(x);
}

static json_t *which_json(const dq_sensitivity_unit *u)
{
    json_t *x = json_object();
    json_object_set_new(x, "of", json_string(kind_names[u->kind].of));
    json_object_set_new(x, "by", json_string(kind_names[u->kind].by));
    json_object_set_new(x, "layer", number_or_null(u->layer));
    json_object_set_new(x, "head", number_or_null(u->head));
    json_object_set_new(x, "map", u->map < 0 ? json_null() : json_integer(u->map + 1));
    json_object_set_new(x, "tensor", u->name ? dq_document_name(u->name) : json_null());
    return x;
}

static void correlation_json(json_t *list, int kind, const char *forecast, int64_t n, double r,
                             dq_interval i, double repeat)
{
    if (!isfinite(r) || n < LEAST) return;
    json_t *x = json_object();
    json_object_set_new(x, "of", json_string(kind_names[kind].of));
    json_object_set_new(x, "by", json_string(kind_names[kind].by));
    json_object_set_new(x, "forecast", json_string(forecast));
    json_object_set_new(x, "n", json_integer(n));
    json_object_set_new(x, "spearman", dq_document_real(r));
    json_object_set_new(x, "interval", interval_json(i));
    json_object_set_new(x, "repeat", dq_document_real(repeat));
    json_array_append_new(list, x);
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
    for (int k = 0; k < DQ_SENSITIVITY_KINDS; k++) {
        dq_sensitivity_rank r;
        dq_sensitivity_first f;
        int64_t n;
        const dq_sensitivity_unit **u = ranked(&n, e->sensitivity, k, err);
        for (int64_t i = 0; u && i < n; i++) {
            json_t *item = which_json(u[i]);
            json_object_set_new(item, "kld_nats", cmd_stats_mean_json(u[i]->kld, u[i]->interval));
            json_object_set_new(item, "local_error", dq_document_real(u[i]->local));
            json_object_set_new(item, "logit_error", dq_document_real(u[i]->logit_error));
            json_array_append_new(units, item);
        }
        dq_block_free(u);
        if (err->code != DQ_OK) return err->code;
        DQ_TRY(dq_sensitivity_rank_of(&r, s, (dq_sensitivity_kind)k, err));
        DQ_TRY(dq_sensitivity_first_of(&f, s, (dq_sensitivity_kind)k, err));
        correlation_json(correlation, k, "local_error", r.n, r.local, r.local_interval, r.repeat);
        correlation_json(correlation, k, "logit_error", r.n, r.logit_error, r.logit_interval,
                         r.repeat);
        if (!(f.first < 0)) {
            json_t *item = json_object();
            json_object_set_new(item, "first", which_json(&s->unit[f.first]));
            json_object_set_new(item, "next", which_json(&s->unit[f.next]));
            json_object_set_new(item, "more_nats", cmd_stats_mean_json(f.more, f.interval));
            json_array_append_new(first, item);
        }
    }
    return DQ_OK;
}

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

/* A token is escaped byte by byte, so that it is one word on any terminal. */

enum { CELL = CMD_STATS_CELL };

const int cmd_stats_tops[CMD_STATS_TOPS] = {1, 2, 3, 10, 100};
const struct cmd_stats_quantile cmd_stats_quantile[CMD_STATS_QUANTILES] = {
    {"p90", 0.9}, {"p99", 0.99}, {"p99_9", 0.999}, {"p99_99", 0.9999}};
static const char *const cmd_stats_kind_title[DQ_N_KINDS] = {
    "attention logits", "hidden states", "queries",          "keys",         "values",
    "input of q k v",   "input of o",    "input of gate up", "input of down"};

void cmd_stats_number(dq_table *t, double x, int digits)
{
    dq_table_known(t, isfinite(x), "%.*g", digits, x);
}

/* With its bound, if any. */
static void cmd_stats_median(dq_table *t, dq_median m)
{
    if (isfinite(m.value) && m.bound > 0)
        dq_table_cell(t, "%.4g +- %.1g", m.value, m.bound);
    else
        cmd_stats_number(t, m.value, 5);
}

/* The id at a position of a sequence; or its text in quotes, "#5" without a tokenizer. */
static int32_t id_at(const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    return e->in.ids[e->in.cu[seq] + pos];
}

/* A token as one printable word: control characters, backslash and stray bytes are escaped; NULL
 * without a tokenizer. */
static const char *word(char buf[CMD_STATS_CELL], const dq_tokenizer *t, int32_t id)
{
    size_t len = 0, used = 0;
    int64_t first_bad;
    const char *s = t ? dq_tokenizer_piece(t, id, &len) : NULL;
    if (!s) return NULL;
    bool whole = dq_utf8_check(s, len, &first_bad) == 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        bool head = c < 0x80 || c >= 0xc0;
        if (head && used > CELL - 16) { /* cut between characters */
            used += (size_t)snprintf(buf + used, CELL - used, "...");
            break;
        }
        bool control =
            c < 0x20 || c == 0x7f || (c == 0xc2 && whole && (unsigned char)s[i + 1] < 0xa0);
        if (c == '\n')
            used += (size_t)snprintf(buf + used, CELL - used, "\\n");
        else if (c == '\t')
            used += (size_t)snprintf(buf + used, CELL - used, "\\t");
        else if (c == '\\')
            used += (size_t)snprintf(buf + used, CELL - used, "\\\\");
        else if (control && c == 0xc2)
            used += (size_t)snprintf(buf + used, CELL - used, "\\xc2\\x%02x",
                                     (unsigned)(unsigned char)s[++i]);
        else if (control || (c >= 0x80 && !whole))
            used += (size_t)snprintf(buf + used, CELL - used, "\\x%02x", (unsigned)c);
        else
            buf[used++] = (char)c;
    }
    buf[used] = 0;
    return buf;
}

static void cmd_stats_token(dq_table *t, const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    char buf[CELL];
    const int32_t id = id_at(e, seq, pos);
    const char *text = word(buf, e->tokenizer, id);
    if (text)
        dq_table_cell(t, "\"%s\"", text);
    else
        dq_table_cell(t, "#%d", (int)id);
}

/* [low, high], or null; {"value", "stderr", "interval"}. */
static json_t *interval_json(dq_interval i)
{
    if (!isfinite(i.low)) return json_null();
    json_t *x = json_array();
    json_array_append_new(x, dq_document_real(i.low));
    json_array_append_new(x, dq_document_real(i.high));
    return x;
}

json_t *cmd_stats_mean_json(dq_mean m, dq_interval i)
{
    json_t *x = dq_document_metric(m.value, m.std_err);
    json_object_set_new(x, "interval", interval_json(i));
    return x;
}

/* Sums over rows are divided only here, so that layers can be added first; table, document and file
 * show the same shares. */

typedef struct shares {
    double entropy[2], sink_mass[2], variation, negative;
    double near_zero[DQ_N_THRESHOLDS], skippable[DQ_N_THRESHOLDS];
} shares;

static double over(double x, int64_t n)
{
    return n > 0 ? x / (double)n : (double)NAN;
}

static shares shares_of(const dq_head_measure *m, int n_maps)
{
    shares s;
    for (int k = 0; k < 2; k++) {
        s.entropy[k] = k < n_maps ? over(m->entropy[k], m->rows) : (double)NAN;
        s.sink_mass[k] = k < n_maps ? over(m->sink_mass[k], m->rows) : (double)NAN;
    }
    s.variation = over(m->variation, m->rows);
    s.negative = over(m->negative, m->rows);
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        s.near_zero[i] = over((double)m->near_zero[i], m->keys);
        s.skippable[i] = over((double)m->skippable[i], m->pages);
    }
    return s;
}

static dq_head_measure layers_of(const dq_outliers *o, int first, int end)
{
    dq_head_measure all = {0};
    for (int i = first * o->n_out; i < end * o->n_out; i++)
        dq_head_measure_merge(&all, &o->measure[i]);
    return all;
}

static void row(dq_table *t, const cmd_stats_entry *e, int first, int end)
{
    const dq_head_measure m = layers_of(&e->out, first, end);
    const shares s = shares_of(&m, e->model->map.n_maps);
    const double x[] = {s.entropy[0],   s.entropy[1],  s.sink_mass[0], s.sink_mass[1],
                        s.variation,    s.negative,    s.near_zero[1], s.near_zero[2],
                        s.skippable[1], s.skippable[2]};
    dq_table_cell(t, "%s", e->label);
    if (end - first == 1)
        dq_table_cell(t, "%d", first);
    else
        dq_table_cell(t, "all");
    for (size_t c = 0; c < sizeof x / sizeof *x; c++) {
        dq_table_known(t, isfinite(x[c]), "%.4g", x[c]);
    }
}

/* {"1e-04": share, ...} */
static json_t *thresholds_json(const double *share)
{
    char key[16];
    json_t *x = json_object();
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        snprintf(key, sizeof key, "%.0e", dq_head_measure_thresholds[i]);
        json_object_set_new(x, key, dq_document_real(share[i]));
    }
    return x;
}

static json_t *pair_json(const double *x)
{
    json_t *pair = json_array();
    json_array_append_new(pair, dq_document_real(x[0]));
    json_array_append_new(pair, dq_document_real(x[1]));
    return pair;
}

/* Means over rows of A1, A2 and |D|; null without a second map. */
static json_t *masses_json(const dq_head_profile *p, dq_head_sum first, int64_t n, int n_maps)
{
    json_t *x = json_array();
    for (int k = 0; k < 3; k++)
        json_array_append_new(x, k == 1 && n_maps < 2
                                     ? json_null()
                                     : dq_document_real(over(p->sum[(int)first + k], n)));
    return x;
}

static void profile_json(json_t *x, const dq_head_profile *p, int n_maps)
{
    const double support[2] = {over(p->sum[DQ_HEAD_SUPPORT_1], p->rows),
                               n_maps > 1 ? over(p->sum[DQ_HEAD_SUPPORT_2], p->rows) : (double)NAN};
    json_object_set_new(x, "effective_support", pair_json(support));
    json_object_set_new(x, "first_mass", masses_json(p, DQ_HEAD_FIRST_1, p->rows, n_maps));
    json_object_set_new(x, "local_mass", masses_json(p, DQ_HEAD_LOCAL_1, p->rows, n_maps));
    json_object_set_new(x, "copy_mass", masses_json(p, DQ_HEAD_COPY_1, p->copies, n_maps));
    json_object_set_new(x, "n_copy_rows", json_integer(p->copies));
    json_object_set_new(x, "maps_distance",
                        n_maps > 1 ? dq_document_real(1 - over(p->sum[DQ_HEAD_COMMON], p->rows))
                                   : json_null());
    json_object_set_new(x, "cancelled_mass",
                        n_maps > 1 ? dq_document_real(over(p->sum[DQ_HEAD_CANCELLED], p->rows))
                                   : json_null());
}

static json_t *measure_json(const dq_head_measure *m, int n_maps)
{
    const shares s = shares_of(m, n_maps);
    json_t *x = json_object();
    json_object_set_new(x, "n_rows", json_integer(m->rows));
    json_object_set_new(x, "entropy_nats", pair_json(s.entropy));
    json_object_set_new(x, "sink_mass", pair_json(s.sink_mass));
    json_object_set_new(x, "total_variation", dq_document_real(s.variation));
    json_object_set_new(x, "negative_mass", dq_document_real(s.negative));
    json_object_set_new(x, "positive_mass", dq_document_real(s.variation - s.negative));
    json_object_set_new(x, "near_zero_keys", thresholds_json(s.near_zero));
    json_object_set_new(x, "skippable_pages", thresholds_json(s.skippable));
    return x;
}

/* Arrays of a profile, beside those of measures. */
static dq_status profile_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                            dq_arena *a, dq_err *err)
{
    static const struct {
        const char *name;
        dq_head_sum first;
        int width;
        bool copies;
    } all[] = {{"effective_support", DQ_HEAD_SUPPORT_1, 2, false},
               {"first_mass", DQ_HEAD_FIRST_1, 3, false},
               {"local_mass", DQ_HEAD_LOCAL_1, 3, false},
               {"copy_mass", DQ_HEAD_COPY_1, 3, true},
               {"common_mass", DQ_HEAD_COMMON, 1, false},
               {"cancelled_mass", DQ_HEAD_CANCELLED, 1, false}};
    const dq_outliers *o = &e->out;
    const int64_t n = (int64_t)o->n_layers * o->n_out;
    char name[160];
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const int64_t shape[3] = {o->n_layers, o->n_out, all[k].width};
        double *x = dq_alloc(a, (size_t)(n * all[k].width), sizeof *x, err);
        if (!x) return err->code;
        for (int64_t i = 0; i < n * all[k].width; i++) {
            const dq_head_profile *p = &o->look[i / all[k].width];
            x[i] = over(p->sum[(int)all[k].first + (int)(i % all[k].width)],
                        all[k].copies ? p->copies : p->rows);
        }
        snprintf(name, sizeof name, "%s/attention/%s", group, all[k].name);
        DQ_TRY(dq_h5_result_array(h, name, DQ_OUT_F64, all[k].width == 1 ? 2 : 3, shape, x, err));
    }
    return DQ_OK;
}

dq_status cmd_stats_attention_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                 dq_arena *a, dq_err *err)
{
    const dq_outliers *o = &e->out;
    const int64_t n = (int64_t)o->n_layers * o->n_out;
    const int64_t shape[3] = {o->n_layers, o->n_out, 2},
                  wide[3] = {o->n_layers, o->n_out, DQ_N_THRESHOLDS};
    enum { N = 6 };
    static const char *const names[N] = {"entropy_nats",  "sink_mass",      "total_variation",
                                         "negative_mass", "near_zero_keys", "skippable_pages"};
    static const int width[N] = {2, 2, 1, 1, DQ_N_THRESHOLDS, DQ_N_THRESHOLDS};
    double *all[N];
    char name[160];
    for (int k = 0; k < N; k++) {
        all[k] = dq_alloc(a, (size_t)(n * width[k]), sizeof(double), err);
        if (!all[k]) return err->code;
    }
    for (int64_t i = 0; i < n; i++) {
        const shares s = shares_of(&o->measure[i], e->model->map.n_maps);
        for (int k = 0; k < 2; k++) {
            all[0][2 * i + k] = s.entropy[k];
            all[1][2 * i + k] = s.sink_mass[k];
        }
        all[2][i] = s.variation;
        all[3][i] = s.negative;
        for (int k = 0; k < DQ_N_THRESHOLDS; k++) {
            all[4][DQ_N_THRESHOLDS * i + k] = s.near_zero[k];
            all[5][DQ_N_THRESHOLDS * i + k] = s.skippable[k];
        }
    }
    snprintf(name, sizeof name, "%s/attention", group);
    DQ_TRY(dq_h5_result_group(h, name, err));
    for (int k = 0; k < N; k++) {
        snprintf(name, sizeof name, "%s/attention/%s", group, names[k]);
        DQ_TRY(dq_h5_result_array(h, name, DQ_OUT_F64, width[k] == 1 ? 2 : 3,
                                  width[k] == DQ_N_THRESHOLDS ? wide : shape, all[k], err));
    }
    return o->look ? profile_h5(h, group, e, a, err) : DQ_OK;
}

/* Roles in the order of the model; a role's line is about one matrix. */

static double crest(const dq_weight_outlier *w)
{
    return w->rms > 0 ? (double)w->max / w->rms : 0;
}

/* For the first matrix of a role, the one with the largest crest factor; else NULL. */
static const dq_weight_outlier *worst(const dq_weight_outliers *o, int x)
{
    const dq_weight_outlier *found = &o->of[x];
    for (int i = 0; i < o->n; i++) {
        if (strcmp(o->of[i].role, o->of[x].role) != 0) continue;
        if (i < x) return NULL;
        if (crest(&o->of[i]) > crest(found)) found = &o->of[i];
    }
    return found;
}

/* Table 5, outliers named once each, kinds of values, attention maps; tables by layer on request,
 * as a model has dozens. */

enum { MOST = DQ_TOP };

static void table5_row(dq_table *t, const cmd_stats_entry *e, int k, bool ordinary)
{
    const dq_outlier_kind *x = &e->out.kind[k];
    const dq_tally *y = ordinary ? &x->pooled_ordinary : &x->pooled;
    dq_table_cell(t, "%s", e->label);
    dq_table_cell(t, "%s", cmd_stats_kind_title[k]);
    dq_table_cell(t, ordinary ? "ordinary" : "all");
    for (int c = 0; c < CMD_STATS_TOPS; c++)
        cmd_stats_number(t, dq_outlier_top(y, cmd_stats_tops[c]), 5);
    cmd_stats_median(t, ordinary ? dq_outlier_median(y) : x->pooled_median);
    dq_table_cell(t, "%lld", (long long)y->n);
}

static dq_status print_kinds(const cmd_stats_entry *e, dq_err *err)
{
    static const char *const titles[] = {"values",  "max",       "p99.9",     "rms",
                                         "max/rms", "kurtosis0", "ord. max",  "p99.9",
                                         "rms",     "max/rms",   "kurtosis0", "layer"};
    dq_table *t;
    DQ_TRY(dq_table_new(&t, titles, 12, err));
    for (int k = 0; k < e->out.n_kinds; k++) {
        const dq_outlier_kind *x = &e->out.kind[k];
        const dq_tally *const both[2] = {&x->pooled, &x->pooled_ordinary};
        dq_table_cell(t, "%s", cmd_stats_kind_title[k]);
        for (int i = 0; i < 2; i++) {
            const double rms = dq_outlier_rms(both[i]), top = dq_outlier_top(both[i], 1);
            cmd_stats_number(t, top, 5);
            cmd_stats_number(t, dq_tally_quantile(both[i], 0.999, NULL), 4);
            cmd_stats_number(t, rms, 4);
            cmd_stats_number(t, top / rms, 4);
            cmd_stats_number(t, dq_outlier_kurtosis0(both[i]), 4);
        }
        dq_table_cell(t, "%d", x->pooled_ordinary.n_top ? x->pooled_ordinary.place[0].layer : -1);
    }
    return dq_table_finish(t, err);
}

static void channel_row(dq_table *t, const cmd_stats_entry *e, const dq_element *x)
{
    dq_table_cell(t, "%s", dq_token_class_name[x->class]);
    dq_table_cell(t, "%lld", (long long)x->col);
    if (x->first == x->last)
        dq_table_cell(t, "%d", x->first);
    else if (x->n_gaps == 0)
        dq_table_cell(t, "%d-%d", x->first, x->last);
    else
        dq_table_cell(t, "%d-%d less %d", x->first, x->last, x->n_gaps);
    cmd_stats_number(t, x->before, 5);
    cmd_stats_number(t, (double)x->max, 5);
    dq_table_cell(t, "%d", (int)x->at.layer);
    cmd_stats_number(t, x->rms, 4);
    cmd_stats_number(t, x->ratio, 4);
    dq_table_cell(t, "%d", (int)x->at.seq);
    dq_table_cell(t, "%d", (int)x->at.row);
    cmd_stats_token(t, e, x->at.seq, x->at.row);
}

static dq_status print_channels(const cmd_stats_entry *e, int most, dq_err *err)
{
    static const char *const titles[] = {"tokens", "channel",  "layers",  "before",
                                         "max",    "in layer", "its rms", "/median",
                                         "seq",    "pos",      "token"};
    static dq_element found[MOST];
    dq_table *t;
    DQ_TRY(dq_table_new(&t, titles, 11, err));
    dq_table_keys(t, 2);
    for (int c = DQ_TOKEN_CLASSES - 1; c >= 0; c--) {
        const int n = dq_elements_find(found, most, &e->out, DQ_KIND_HIDDEN, c);
        if (n && c + 1 < DQ_TOKEN_CLASSES) dq_table_rule(t);
        for (int i = 0; i < n; i++) channel_row(t, e, &found[i]);
    }
    return dq_table_finish(t, err);
}

static void head_row(dq_table *t, const cmd_stats_entry *e, const dq_element *x)
{
    const int map = dq_outlier_map(&e->model->map, (int)x->col);
    dq_table_cell(t, "%s", dq_token_class_name[x->class]);
    dq_table_cell(t, "%d", x->first);
    dq_table_cell(t, "%lld", (long long)x->col);
    dq_table_cell(t, "%s", map == 0 ? "-" : map == 1 ? "1" : "2");
    cmd_stats_number(t, (double)x->max, 5);
    cmd_stats_number(t, x->rms, 4);
    cmd_stats_number(t, (double)x->max / x->rms, 4);
    dq_table_cell(t, "%d", (int)x->at.seq);
    dq_table_cell(t, "%d", (int)x->at.row);
    cmd_stats_token(t, e, x->at.seq, x->at.row);
    dq_table_cell(t, "%d", (int)x->at.col);
    cmd_stats_token(t, e, x->at.seq, x->at.col);
}

static dq_status print_heads(const cmd_stats_entry *e, int most, dq_err *err)
{
    static const char *const titles[] = {"keys",  "layer",       "head",    "map",
                                         "max",   "its rms",     "max/rms", "seq",
                                         "query", "query token", "key",     "key token"};
    static dq_element found[MOST];
    dq_table *t;
    DQ_TRY(dq_table_new(&t, titles, 12, err));
    dq_table_keys(t, 3);
    for (int c = DQ_TOKEN_CLASSES - 1; c >= 0; c--) {
        const int n = dq_elements_find(found, most, &e->out, DQ_KIND_LOGITS, c);
        if (n && c + 1 < DQ_TOKEN_CLASSES) dq_table_rule(t);
        for (int i = 0; i < n; i++) head_row(t, e, &found[i]);
    }
    return dq_table_finish(t, err);
}

static dq_status print_places(const cmd_stats_entry *e, int k, int most, dq_err *err)
{
    static const char *const titles[DQ_N_TABLE5][10] = {
        {"rank", "|logit|", "seq", "layer", "head", "map", "query", "query token", "key",
         "key token"},
        {"rank", "|x|", "seq", "layer", "pos", "channel", "token"}};
    dq_table *t;
    DQ_TRY(dq_table_new(&t, titles[k], k == DQ_KIND_LOGITS ? 10 : 7, err));
    for (int i = 0; i < most && i < e->out.kind[k].pooled.n_top; i++) {
        /* Without a profile: the largest values of any kind. */
        const dq_tally *x = &e->out.kind[k].pooled;
        const dq_place *p = &x->place[i];
        dq_table_cell(t, "%d", i + 1);
        cmd_stats_number(t, (double)x->top[i], 5);
        dq_table_cell(t, "%d", (int)p->seq);
        dq_table_cell(t, "%d", (int)p->layer);
        if (k == DQ_KIND_LOGITS) {
            const int map = dq_outlier_map(&e->model->map, p->head);
            dq_table_cell(t, "%d", (int)p->head);
            dq_table_cell(t, "%s", map == 0 ? "-" : map == 1 ? "1" : "2");
        }
        dq_table_cell(t, "%d", (int)p->row);
        if (k == DQ_KIND_LOGITS) cmd_stats_token(t, e, p->seq, p->row);
        dq_table_cell(t, "%d", (int)p->col);
        cmd_stats_token(t, e, p->seq, k == DQ_KIND_LOGITS ? p->col : p->row);
    }
    return dq_table_finish(t, err);
}

static void layer_cells(dq_table *t, const dq_tally *x, dq_median m)
{
    const double rms = dq_outlier_rms(x), top = dq_outlier_top(x, 1);
    cmd_stats_number(t, top, 5);
    cmd_stats_median(t, m);
    cmd_stats_number(t, rms, 5);
    cmd_stats_number(t, rms > 0 ? top / rms : (double)NAN, 5);
    cmd_stats_number(t, dq_outlier_kurtosis0(x), 5);
}

static dq_status print_profile(const cmd_stats_entry *e, int most, dq_err *err)
{
    printf("\n%s: all kinds of values, and of ordinary tokens (ord.) alone; layer: of the ordinary "
           "maximum\n\n",
           e->label);
    DQ_TRY(print_kinds(e, err));
    printf(
        "\n%s: weights, of each role the matrix with the largest crest factor; largest column: by "
        "rms, over the median of columns\n\n",
        e->label);
    /* One line per role: the matrix with the largest crest factor. */
    static const char *const weights_titles[] = {
        "weights", "layer",     "max", "median", "p99.9",          "rms",
        "max/rms", "kurtosis0", "row", "column", "largest column", "/median"};
    dq_table *table;
    DQ_TRY(dq_table_new(&table, weights_titles, 12, err));
    for (int i = 0; i < e->weights.n; i++) {
        const dq_weight_outlier *w = worst(&e->weights, i);
        if (w) {
            dq_table_cell(table, "%s", w->role);
            dq_table_known(table, w->layer >= 0, "%d", w->layer);
            cmd_stats_number(table, (double)w->max, 5);
            cmd_stats_number(table, w->median, 4);
            cmd_stats_number(table, w->p99_9, 4);
            cmd_stats_number(table, w->rms, 4);
            cmd_stats_number(table, crest(w), 4);
            cmd_stats_number(table, w->kurtosis0, 4);
            dq_table_cell(table, "%lld", (long long)w->row);
            dq_table_cell(table, "%lld", (long long)w->col);
            dq_table_cell(table, "%lld", (long long)w->largest_col);
            cmd_stats_number(table, w->col_ratio, 4);
        }
    }
    DQ_TRY(dq_table_finish(table, err));
    printf("\n%s: what heads do, by where their attention goes\n\n", e->label);
    /* What a profile's heads do, by kind. */
    static const char *const titles[] = {"kind", "heads", "layer.head"};
    const dq_outliers *o = &e->out;
    int count[DQ_HEAD_KINDS] = {0};
    dq_table *t;
    for (int i = 0; i < o->n_layers * o->n_out; i++)
        count[dq_head_kind_of(&o->measure[i], &o->look[i])]++;
    DQ_TRY(dq_table_new(&t, titles, 3, err));
    for (int k = 0; k < DQ_HEAD_KINDS; k++) {
        dq_table_cell(t, "%s", dq_head_kind_name[k]);
        dq_table_cell(t, "%d", count[k]);
        /* "3.1 11.0": layers and heads of a kind, as many as fit. */
        const dq_head_kind kind = (dq_head_kind)k;
        enum { WIDE = 78 };
        char text[WIDE + 24] = "";
        size_t n = 0;
        for (int i = 0; i < o->n_layers * o->n_out; i++) {
            if (dq_head_kind_of(&o->measure[i], &o->look[i]) != kind) continue;
            if (n > WIDE) {
                snprintf(text + n, sizeof text - n, " ...");
                break;
            }
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d.%d", n ? " " : "", i / o->n_out,
                                  i % o->n_out);
        }
        dq_table_cell(t, "%s", *text ? text : "-");
    }
    DQ_TRY(dq_table_finish(t, err));
    if (most == 0) return DQ_OK;
    printf("\n%s: channels of the hidden states, each once, with the layers where they come to a "
           "tenth "
           "of their maximum\n\n",
           e->label);
    DQ_TRY(print_channels(e, most, err));
    printf("\n%s: heads with the largest attention logits, by what the key is\n\n", e->label);
    return print_heads(e, most, err);
}

dq_status cmd_stats_print(const cmd_stats_entry *e, int n, int n_places, bool layers, dq_err *err)
{
    printf("Largest magnitudes, all layers, heads and maps together\n\n");
    static const char *const table5_titles[] = {"model", "values", "tokens", "top1",   "top2",
                                                "top3",  "top10",  "top100", "median", "n"};
    dq_table *table;
    DQ_TRY(dq_table_new(&table, table5_titles, 10, err));
    dq_table_keys(table, 3);
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        if (k) dq_table_rule(table);
        for (int i = 0; i < n; i++) {
            table5_row(table, &e[i], k, false);
            if (e[i].out.n_kinds > DQ_N_TABLE5) table5_row(table, &e[i], k, true);
        }
    }
    DQ_TRY(dq_table_finish(table, err));
    if (layers) {
        printf("\nLayers (kurtosis0 is taken around zero; ord.: ordinary tokens alone)\n\n");
        static const char *const titles[] = {
            "model",     "values",    "layer",  "top1", "median",   "rms",      "top1/rms",
            "kurtosis0", "ord. top1", "median", "rms",  "top1/rms", "kurtosis0"};
        dq_table *t;
        DQ_TRY(dq_table_new(&t, titles, 13, err));
        dq_table_keys(t, 3);
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < DQ_N_TABLE5; k++) {
                const dq_outlier_kind *x = &e[i].out.kind[k];
                if (i || k) dq_table_rule(t);
                for (int l = 0; l < e[i].out.n_layers; l++) {
                    const dq_tally none = {0};
                    const dq_tally *o = x->ordinary ? &x->ordinary[l] : &none;
                    dq_table_cell(t, "%s", e[i].label);
                    dq_table_cell(t, "%s", cmd_stats_kind_title[k]);
                    dq_table_cell(t, "%d", l);
                    layer_cells(t, &x->layer[l], x->layer_median[l]);
                    layer_cells(t, o,
                                o->n ? dq_outlier_median(o) : (dq_median){.value = (double)NAN});
                }
            }
        }
        DQ_TRY(dq_table_finish(t, err));
    }
    if (e->out.measure) {
        printf(
            "\nAttention maps, means over rows and heads (D = A1 - lambda A2; sinks: mass on the "
            "first 4 positions; shares of keys and of 64-key pages)\n\n");
        /* One line per model, or per model and layer: means over heads. */
        static const char *const titles[] = {
            "model",   "layer", "entropy 1",  "entropy 2",  "sinks 1",      "sinks 2",
            "sum |D|", "D < 0", "|D| < 1e-3", "|D| < 1e-2", "pages < 1e-3", "pages < 1e-2"};
        dq_table *t;
        DQ_TRY(dq_table_new(&t, titles, 12, err));
        dq_table_keys(t, 2);
        for (int i = 0; i < n; i++) {
            if (i && layers) dq_table_rule(t);
            for (int l = 0; layers && l < e[i].out.n_layers; l++) row(t, &e[i], l, l + 1);
            if (!layers) row(t, &e[i], 0, e[i].out.n_layers);
        }
        DQ_TRY(dq_table_finish(t, err));
    }
    for (int i = 0; i < n; i++) {
        if (e[i].out.n_kinds > DQ_N_TABLE5) {
            DQ_TRY(print_profile(&e[i], n_places, err));
            continue;
        }
        for (int k = 0; k < DQ_N_TABLE5 && n_places > 0; k++) {
            printf("\n%s: where the largest %s are\n\n", e[i].label, cmd_stats_kind_title[k]);
            DQ_TRY(print_places(&e[i], k, n_places, err));
        }
    }
    return err->code;
}

static json_t *ratio_json(double x, double y)
{
    return dq_document_real(y > 0 ? x / y : (double)NAN);
}

static json_t *tally_json(const dq_tally *t, dq_median m)
{
    char key[16];
    json_t *x = json_object();
    json_object_set_new(x, "n", json_integer(t->n));
    for (int c = 0; c < CMD_STATS_TOPS; c++) {
        snprintf(key, sizeof key, "top%d", cmd_stats_tops[c]);
        json_object_set_new(x, key, dq_document_real(dq_outlier_top(t, cmd_stats_tops[c])));
    }
    json_object_set_new(x, "median", dq_document_real(m.value));
    json_object_set_new(x, "median_bound", dq_document_real(m.bound));
    for (int i = 0; i < CMD_STATS_QUANTILES; i++)
        json_object_set_new(x, cmd_stats_quantile[i].name,
                            dq_document_real(dq_tally_quantile(t, cmd_stats_quantile[i].p, NULL)));
    json_object_set_new(
        x, "mean_magnitude",
        dq_document_real(t->n ? dq_fixed_value(&t->sum) / (double)t->n : (double)NAN));
    json_object_set_new(x, "rms", dq_document_real(dq_outlier_rms(t)));
    json_object_set_new(x, "crest", ratio_json(dq_outlier_top(t, 1), dq_outlier_rms(t)));
    json_object_set_new(x, "kurtosis0", dq_document_real(dq_outlier_kurtosis0(t)));
    json_object_set_new(x, "n_not_finite", json_integer(t->n_bad));
    return x;
}

/* ordinary NULL: there is no profile. */
static json_t *json_kind_json(const dq_tally *t, dq_median m, const dq_tally *ordinary)
{
    json_t *x = tally_json(t, m);
    if (ordinary)
        json_object_set_new(x, "ordinary", tally_json(ordinary, dq_outlier_median(ordinary)));
    return x;
}

static void token_json(json_t *x, const char *id_key, const char *text_key,
                       const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    char buf[CMD_STATS_CELL];
    const int32_t id = id_at(e, seq, pos);
    const char *text = word(buf, e->tokenizer, id);
    json_object_set_new(x, id_key, json_integer(id));
    json_object_set_new(x, text_key, text ? json_string(text) : json_null());
}

static json_t *map_json(const cmd_stats_entry *e, int head)
{
    const int map = dq_outlier_map(&e->model->map, head);
    return map ? json_integer(map) : json_null();
}

static void place_json(json_t *x, const cmd_stats_entry *e, int k, const dq_place *p)
{
    json_object_set_new(x, "sequence", json_integer(p->seq));
    json_object_set_new(x, "layer", json_integer(p->layer));
    if (k == DQ_KIND_LOGITS) {
        json_object_set_new(x, "head", json_integer(p->head));
        json_object_set_new(x, "map", map_json(e, p->head));
        json_object_set_new(x, "query", json_integer(p->row));
        token_json(x, "query_id", "query_token", e, p->seq, p->row);
        json_object_set_new(x, "key", json_integer(p->col));
        token_json(x, "key_id", "key_token", e, p->seq, p->col);
    } else {
        json_object_set_new(x, "position", json_integer(p->row));
        token_json(x, "id", "token", e, p->seq, p->row);
        json_object_set_new(x, "channel", json_integer(p->col));
    }
}

static json_t *element_json(const cmd_stats_entry *e, const dq_element *y)
{
    json_t *x = json_object();
    json_object_set_new(x, "values", json_string(dq_outlier_name[y->kind]));
    json_object_set_new(x, "tokens", json_string(dq_token_class_name[y->class]));
    json_object_set_new(x, "magnitude", json_real((double)y->max));
    place_json(x, e, y->kind, &y->at);
    json_object_set_new(x, "rms", dq_document_real(y->rms));
    json_object_set_new(x, "over_median", dq_document_real(y->ratio));
    json_object_set_new(x, "first_layer", json_integer(y->first));
    json_object_set_new(x, "last_layer", json_integer(y->last));
    json_object_set_new(x, "layers_between_without", json_integer(y->n_gaps));
    json_object_set_new(x, "magnitude_before", dq_document_real(y->before));
    return x;
}

static json_t *elements_json(const cmd_stats_entry *e, int most)
{
    static dq_element found[DQ_TOP];
    json_t *list = json_array();
    for (int k = 0; k < e->out.n_kinds; k++) {
        for (int c = DQ_TOKEN_CLASSES - 1; c >= 0; c--) {
            const int n = dq_elements_find(found, most, &e->out, k, c);
            for (int i = 0; i < n; i++) json_array_append_new(list, element_json(e, &found[i]));
        }
    }
    return list;
}

static json_t *moments_json(const dq_moments *m)
{
    json_t *x = json_object();
    const double max = m->n ? (double)m->max : (double)NAN;
    json_object_set_new(x, "n", json_integer(m->n));
    json_object_set_new(x, "max", dq_document_real(max));
    json_object_set_new(x, "rms", dq_document_real(dq_moments_rms(m)));
    json_object_set_new(x, "crest", ratio_json(max, dq_moments_rms(m)));
    json_object_set_new(x, "kurtosis0", dq_document_real(dq_moments_kurtosis0(m)));
    return x;
}

static json_t *layer_json(const cmd_stats_entry *e, int layer)
{
    json_t *l = json_object();
    json_object_set_new(l, "layer", json_integer(layer));
    for (int k = 0; k < e->out.n_kinds; k++) {
        const dq_outlier_kind *x = &e->out.kind[k];
        json_object_set_new(l, dq_outlier_name[k],
                            json_kind_json(&x->layer[layer], x->layer_median[layer],
                                           x->ordinary ? &x->ordinary[layer] : NULL));
    }
    if (e->out.measure) {
        /* "attention" of a layer: {"mean": {...}, "heads": [{...}]}. */
        const dq_outliers *o = &e->out;
        const int n_maps = e->model->map.n_maps;
        const dq_head_measure all = layers_of(o, layer, layer + 1);
        json_t *x = json_object(), *heads = json_array(), *mean = measure_json(&all, n_maps);
        dq_head_profile seen = {0};
        for (int h = 0; h < o->n_out; h++) {
            const int64_t at = (int64_t)layer * o->n_out + h;
            json_t *head = measure_json(&o->measure[at], n_maps);
            json_object_set_new(head, "head", json_integer(h));
            if (o->look) {
                profile_json(head, &o->look[at], n_maps);
                json_object_set_new(
                    head, "kind",
                    json_string(dq_head_kind_name[dq_head_kind_of(&o->measure[at], &o->look[at])]));
                dq_head_profile_merge(&seen, &o->look[at]);
            }
            json_array_append_new(heads, head);
        }
        if (o->look) profile_json(mean, &seen, n_maps);
        json_object_set_new(x, "lambda",
                            e->model->layer[layer].attn.lambda_kind == DQ_LAMBDA_LAYER
                                ? dq_document_real((double)e->model->layer[layer].attn.lambda)
                                : json_null());
        json_object_set_new(x, "mean", mean);
        json_object_set_new(x, "heads", heads);
        json_object_set_new(l, "attention", x);
    }
    if (!e->out.head) return l;
    json_t *entry = json_object();
    for (int c = 0; c < DQ_TOKEN_CLASSES; c++)
        json_object_set_new(entry, dq_token_class_name[c],
                            json_integer(e->out.tokens[layer * DQ_TOKEN_CLASSES + c]));
    json_object_set_new(l, "tokens", entry);
    json_t *heads = json_array();
    for (int q = 0; q < e->out.n_q; q++) {
        const dq_moments all = dq_outlier_head(&e->out, layer, q, ~0u);
        const dq_moments ordinary = dq_outlier_head(&e->out, layer, q, 1u << DQ_TOKEN_ORDINARY);
        json_t *x = moments_json(&all);
        json_object_set_new(x, "head", json_integer(q));
        json_object_set_new(x, "map", map_json(e, q));
        json_object_set_new(x, "ordinary", moments_json(&ordinary));
        json_array_append_new(heads, x);
    }
    json_object_set_new(l, "heads", heads);
    /* Each map's heads together; with one map, all heads. */
    json_t *maps = json_array();
    for (int map = 0; map < e->model->map.n_maps; map++) {
        dq_moments both[2] = {{0}};
        for (int q = 0; q < e->out.n_q; q++) {
            const int of = dq_outlier_map(&e->model->map, q);
            if (of && of != map + 1) continue;
            const dq_moments all = dq_outlier_head(&e->out, layer, q, ~0u);
            const dq_moments some = dq_outlier_head(&e->out, layer, q, 1u << DQ_TOKEN_ORDINARY);
            dq_moments_merge(&both[0], &all);
            dq_moments_merge(&both[1], &some);
        }
        json_t *x = moments_json(&both[0]);
        json_object_set_new(x, "ordinary", moments_json(&both[1]));
        json_array_append_new(maps, x);
    }
    json_object_set_new(l, "maps", maps);
    return l;
}

json_t *cmd_stats_json(const cmd_stats_entry *e, int n_places)
{
    const dq_outliers *o = &e->out;
    json_t *x = json_object(), *table = json_object(), *kinds = json_object();
    json_t *layers = json_array();
    for (int k = 0; k < o->n_kinds; k++) {
        const dq_outlier_kind *y = &o->kind[k];
        json_object_set_new(
            k < DQ_N_TABLE5 ? table : kinds, dq_outlier_name[k],
            json_kind_json(&y->pooled, y->pooled_median, y->ordinary ? &y->pooled_ordinary : NULL));
    }
    for (int i = 0; i < o->n_layers; i++) json_array_append_new(layers, layer_json(e, i));
    json_object_set_new(x, "model", dq_document_name(e->model->path));
    dq_size_report_json(x, e->model);
    json_object_set_new(x, "architecture", json_string(e->model->architecture->name));
    json_object_set_new(x, "n_sequences", json_integer(e->in.n_seq));
    json_object_set_new(x, "n_tokens", json_integer(o->n_rows));
    json_object_set_new(x, "ctx", e->ctx ? json_integer(e->ctx) : json_null());
    json_object_set_new(x, "table5", table);
    json_object_set_new(x, "values", kinds);
    json_object_set_new(x, "layers", layers);
    json_t *top = json_array();
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        const dq_tally *t = &e->out.kind[k].pooled;
        for (int i = 0; i < n_places && i < t->n_top; i++) {
            json_t *item = json_object();
            json_object_set_new(item, "values", json_string(dq_outlier_name[k]));
            json_object_set_new(item, "rank", json_integer(i + 1));
            json_object_set_new(item, "magnitude", json_real((double)t->top[i]));
            place_json(item, e, k, &t->place[i]);
            json_array_append_new(top, item);
        }
    }
    json_object_set_new(x, "top", top);
    json_t *list = json_array();
    for (int i = 0; i < e->weights.n; i++) {
        const dq_weight_outlier *w = &e->weights.of[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "tensor", dq_document_name(w->name));
        json_object_set_new(entry, "role", json_string(w->role));
        json_object_set_new(entry, "layer", w->layer < 0 ? json_null() : json_integer(w->layer));
        json_object_set_new(entry, "rows", json_integer(w->rows));
        json_object_set_new(entry, "cols", json_integer(w->cols));
        json_object_set_new(entry, "max", json_real((double)w->max));
        json_object_set_new(entry, "row", json_integer(w->row));
        json_object_set_new(entry, "column", json_integer(w->col));
        json_object_set_new(entry, "median", dq_document_real(w->median));
        json_object_set_new(entry, "p99_9", dq_document_real(w->p99_9));
        json_object_set_new(entry, "rms", dq_document_real(w->rms));
        json_object_set_new(entry, "crest", dq_document_real(crest(w)));
        json_object_set_new(entry, "kurtosis0", dq_document_real(w->kurtosis0));
        json_object_set_new(entry, "largest_column", json_integer(w->largest_col));
        json_object_set_new(entry, "column_over_median", dq_document_real(w->col_ratio));
        json_object_set_new(entry, "n_not_finite", json_integer(w->n_bad));
        json_array_append_new(list, entry);
    }
    json_object_set_new(x, "weights", list);
    json_object_set_new(x, "outliers", o->head ? elements_json(e, n_places) : json_array());
    return x;
}
