/* stats_out: see stats_out.h. Four forms of the same entries: tables, CSV, JSON and HDF5. Each walks models, kinds
 * and layers in that order; in HDF5 a quantity becomes an array over layers.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_out.h"

#include "base/utf8.h"
#include "cmds/cli/document.h"
#include "cmds/cli/size_report.h"
#include "cmds/cli/table.h"
#include "cmds/stats/stats_attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CELL = 96, N_TOPS = 5 };
static const int tops[N_TOPS] = {1, 2, 3, 10, 100};
static const char *const kind_title[DQ_N_KINDS] = {"attention logits", "hidden states"};

/* ----- cells ----- */

/* A number with so many significant digits; "-" for what does not exist. */
static const char *number(char buf[CELL], double x, int digits)
{
    if (isfinite(x))
        snprintf(buf, CELL, "%.*g", digits, x);
    else
        snprintf(buf, CELL, "-");
    return buf;
}

static const char *median_cell(char buf[CELL], dq_median m)
{
    if (isfinite(m.value) && m.bound > 0)
        snprintf(buf, CELL, "%.4g +- %.1g", m.value, m.bound);
    else
        number(buf, m.value, 5);
    return buf;
}

/* A token as one printable word: control characters, the backslash and bytes that are no character on
 * their own as escapes. */
static const char *token_cell(char buf[CELL], const dq_tokenizer *t, int32_t id)
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

static int32_t id_at(const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    return e->in.ids[e->in.cu[seq] + pos];
}

/* ----- tables ----- */

static dq_status print_pooled(const cmd_stats_entry *e, int n, dq_err *err)
{
    static const char *const titles[] = {"model", "values", "top1",   "top2", "top3",
                                         "top10", "top100", "median", "n"};
    char buf[CELL];
    dq_table *t;
    if (dq_table_new(&t, titles, 9, err) == DQ_OK) {
        for (int k = 0; k < DQ_N_KINDS; k++) {
            if (k) dq_table_rule(t);
            for (int i = 0; i < n; i++) {
                const dq_outlier_kind *x = &e[i].out.kind[k];
                dq_table_cell(t, "%s", e[i].label);
                dq_table_cell(t, "%s", kind_title[k]);
                for (int c = 0; c < N_TOPS; c++)
                    dq_table_cell(t, "%s", number(buf, dq_outlier_top(&x->pooled, tops[c]), 5));
                dq_table_cell(t, "%s", median_cell(buf, x->pooled_median));
                dq_table_cell(t, "%lld", (long long)x->pooled.n);
            }
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

static void layer_row(dq_table *t, const cmd_stats_entry *e, int k, int layer, const char *label)
{
    char buf[CELL];
    const dq_tally *x = &e->out.kind[k].layer[layer];
    double rms = dq_outlier_rms(x), top1 = dq_outlier_top(x, 1);
    dq_table_cell(t, "%s", label);
    dq_table_cell(t, "%s", kind_title[k]);
    dq_table_cell(t, "%d", layer);
    dq_table_cell(t, "%s", number(buf, top1, 5));
    dq_table_cell(t, "%s", number(buf, dq_outlier_top(x, 10), 5));
    dq_table_cell(t, "%s", median_cell(buf, e->out.kind[k].layer_median[layer]));
    dq_table_cell(t, "%s", number(buf, rms, 5));
    dq_table_cell(t, "%s", number(buf, rms > 0 ? top1 / rms : (double)NAN, 5));
    dq_table_cell(t, "%s", number(buf, dq_outlier_kurtosis0(x), 5));
}

static dq_status print_layers(const cmd_stats_entry *e, int n, dq_err *err)
{
    static const char *const titles[] = {"model",  "values", "layer",    "top1",     "top10",
                                         "median", "rms",    "top1/rms", "kurtosis0"};
    dq_table *t;
    if (dq_table_new(&t, titles, 9, err) == DQ_OK) {
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < DQ_N_KINDS; k++) {
                if (i || k) dq_table_rule(t);
                for (int l = 0; l < e[i].out.n_layers; l++) layer_row(t, &e[i], k, l, e[i].label);
            }
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

static void token_into(dq_table *t, const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    char buf[CELL];
    int32_t id = id_at(e, seq, pos);
    const char *text = token_cell(buf, e->tokenizer, id);
    if (text)
        dq_table_cell(t, "\"%s\"", text);
    else
        dq_table_cell(t, "#%d", (int)id);
}

static dq_status print_places(const cmd_stats_entry *e, int k, int n_places, dq_err *err)
{
    static const char *const titles[DQ_N_KINDS][10] = {
        {"rank", "|logit|", "seq", "layer", "head", "map", "query", "query token", "key",
         "key token"},
        {"rank", "|x|", "seq", "layer", "pos", "channel", "token"}};
    char buf[CELL];
    dq_table *t;
    const dq_tally *x = &e->out.kind[k].pooled;
    if (dq_table_new(&t, titles[k], k == DQ_KIND_LOGITS ? 10 : 7, err) == DQ_OK) {
        for (int i = 0; i < n_places && i < x->n_top; i++) {
            const dq_place *p = &x->place[i];
            dq_table_cell(t, "%d", i + 1);
            dq_table_cell(t, "%s", number(buf, (double)x->top[i], 5));
            dq_table_cell(t, "%d", (int)p->seq);
            dq_table_cell(t, "%d", (int)p->layer);
            if (k == DQ_KIND_LOGITS) {
                int map = dq_outlier_map(&e->model->map, p->head);
                dq_table_cell(t, "%d", (int)p->head);
                dq_table_cell(t, "%s", map == 0 ? "-" : map == 1 ? "1" : "2");
            }
            dq_table_cell(t, "%d", (int)p->row);
            if (k == DQ_KIND_LOGITS) token_into(t, e, p->seq, p->row);
            dq_table_cell(t, "%d", (int)p->col);
            token_into(t, e, p->seq, k == DQ_KIND_LOGITS ? p->col : p->row);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

dq_status cmd_stats_print(const cmd_stats_entry *e, int n, int n_places, dq_err *err)
{
    printf("Largest magnitudes, all layers, heads and maps together\n\n");
    DQ_TRY(print_pooled(e, n, err));
    printf("\nLayers (kurtosis0 is taken around zero)\n\n");
    DQ_TRY(print_layers(e, n, err));
    printf("\nAttention maps, means over rows and heads (D = A1 - lambda A2; sinks: mass on the "
           "first 4 "
           "positions; shares of keys and of 64-key pages)\n\n");
    DQ_TRY(cmd_stats_attention_print(e, n, err));
    for (int i = 0; i < n && n_places > 0; i++) {
        for (int k = 0; k < DQ_N_KINDS; k++) {
            printf("\n%s: where the largest %s are\n\n", e[i].label, kind_title[k]);
            DQ_TRY(print_places(&e[i], k, n_places, err));
        }
    }
    return err->code;
}

static void csv_row(dq_table *t, const cmd_stats_entry *e, int k, int layer)
{
    char buf[CELL];
    const dq_outlier_kind *x = &e->out.kind[k];
    const dq_tally *y = layer < 0 ? &x->pooled : &x->layer[layer];
    dq_median m = layer < 0 ? x->pooled_median : x->layer_median[layer];
    dq_table_cell(t, "%s", e->model->path);
    dq_table_cell(t, "%s", dq_outlier_name[k]);
    if (layer < 0)
        dq_table_cell(t, "all");
    else
        dq_table_cell(t, "%d", layer);
    dq_table_cell(t, "%lld", (long long)y->n);
    for (int c = 0; c < N_TOPS; c++)
        dq_table_cell(t, "%s", number(buf, dq_outlier_top(y, tops[c]), 9));
    dq_table_cell(t, "%s", number(buf, m.value, 9));
    dq_table_cell(t, "%s", number(buf, m.bound, 9));
    dq_table_cell(t, "%s", number(buf, dq_outlier_rms(y), 9));
    dq_table_cell(t, "%s", number(buf, dq_outlier_kurtosis0(y), 9));
}

dq_status cmd_stats_csv(const cmd_stats_entry *e, int n, const char *path, dq_err *err)
{
    static const char *const titles[] = {"model",        "values", "layer",    "n",      "top1",
                                         "top2",         "top3",   "top10",    "top100", "median",
                                         "median_bound", "rms",    "kurtosis0"};
    dq_table *t;
    if (dq_table_new(&t, titles, 13, err) == DQ_OK) {
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < DQ_N_KINDS; k++) {
                for (int l = -1; l < e[i].out.n_layers; l++) csv_row(t, &e[i], k, l);
            }
        }
        dq_table_csv(t, path, err);
    }
    dq_table_free(t);
    return err->code;
}

/* ----- JSON ----- */

static json_t *kind_json(const dq_tally *t, dq_median m)
{
    char key[16];
    json_t *x = json_object();
    json_object_set_new(x, "n", json_integer(t->n));
    for (int c = 0; c < N_TOPS; c++) {
        snprintf(key, sizeof key, "top%d", tops[c]);
        json_object_set_new(x, key, dq_document_real(dq_outlier_top(t, tops[c])));
    }
    json_object_set_new(x, "median", dq_document_real(m.value));
    json_object_set_new(x, "median_bound", dq_document_real(m.bound));
    json_object_set_new(x, "mean_magnitude",
                        dq_document_real(t->n ? t->sum / (double)t->n : (double)NAN));
    json_object_set_new(x, "rms", dq_document_real(dq_outlier_rms(t)));
    json_object_set_new(x, "kurtosis0", dq_document_real(dq_outlier_kurtosis0(t)));
    json_object_set_new(x, "n_not_finite", json_integer(t->n_bad));
    return x;
}

static void token_json(json_t *x, const char *id_key, const char *text_key,
                       const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    char buf[CELL];
    int32_t id = id_at(e, seq, pos);
    const char *text = token_cell(buf, e->tokenizer, id);
    json_object_set_new(x, id_key, json_integer(id));
    json_object_set_new(x, text_key, text ? json_string(text) : json_null());
}

static json_t *place_json(const cmd_stats_entry *e, int k, int rank)
{
    const dq_tally *t = &e->out.kind[k].pooled;
    const dq_place *p = &t->place[rank];
    json_t *x = json_object();
    json_object_set_new(x, "values", json_string(dq_outlier_name[k]));
    json_object_set_new(x, "rank", json_integer(rank + 1));
    json_object_set_new(x, "magnitude", json_real((double)t->top[rank]));
    json_object_set_new(x, "sequence", json_integer(p->seq));
    json_object_set_new(x, "layer", json_integer(p->layer));
    if (k == DQ_KIND_LOGITS) {
        int map = dq_outlier_map(&e->model->map, p->head);
        json_object_set_new(x, "head", json_integer(p->head));
        json_object_set_new(x, "map", map ? json_integer(map) : json_null());
        json_object_set_new(x, "query", json_integer(p->row));
        token_json(x, "query_id", "query_token", e, p->seq, p->row);
        json_object_set_new(x, "key", json_integer(p->col));
        token_json(x, "key_id", "key_token", e, p->seq, p->col);
    } else {
        json_object_set_new(x, "position", json_integer(p->row));
        token_json(x, "id", "token", e, p->seq, p->row);
        json_object_set_new(x, "channel", json_integer(p->col));
    }
    return x;
}

json_t *cmd_stats_json(const cmd_stats_entry *e, int n_places)
{
    json_t *x = json_object(), *table = json_object(), *layers = json_array(), *top = json_array();
    for (int k = 0; k < DQ_N_KINDS; k++) {
        const dq_outlier_kind *o = &e->out.kind[k];
        json_object_set_new(table, dq_outlier_name[k], kind_json(&o->pooled, o->pooled_median));
        for (int i = 0; i < n_places && i < o->pooled.n_top; i++)
            json_array_append_new(top, place_json(e, k, i));
    }
    for (int i = 0; i < e->out.n_layers; i++) {
        json_t *l = json_object();
        json_object_set_new(l, "layer", json_integer(i));
        for (int k = 0; k < DQ_N_KINDS; k++)
            json_object_set_new(
                l, dq_outlier_name[k],
                kind_json(&e->out.kind[k].layer[i], e->out.kind[k].layer_median[i]));
        json_object_set_new(l, "attention", cmd_stats_attention_json(e, i));
        json_array_append_new(layers, l);
    }
    json_object_set_new(x, "model", dq_document_name(e->model->path));
    dq_size_report_json(x, e->model);
    json_object_set_new(x, "architecture", json_string(e->model->architecture->name));
    json_object_set_new(x, "n_sequences", json_integer(e->in.n_seq));
    json_object_set_new(x, "n_tokens", json_integer(e->out.n_rows));
    json_object_set_new(x, "ctx", e->ctx ? json_integer(e->ctx) : json_null());
    json_object_set_new(x, "table5", table);
    json_object_set_new(x, "layers", layers);
    json_object_set_new(x, "top", top);
    return x;
}

/* ----- HDF5 ----- */

/* What a block of n tallies becomes: arrays whose first dimension is n. */
typedef struct columns {
    int64_t *count, *bad, *hist;
    double *median, *bound, *sum, *rms, *kurtosis0;
    float *top;
    int32_t *place;
} columns;

static dq_status columns_init(columns *c, size_t n, dq_arena *a, dq_err *err)
{
    c->count = dq_alloc(a, n, sizeof *c->count, err);
    c->bad = dq_alloc(a, n, sizeof *c->bad, err);
    c->hist = dq_alloc(a, n * DQ_HIST_BINS, sizeof *c->hist, err);
    c->median = dq_alloc(a, n, sizeof *c->median, err);
    c->bound = dq_alloc(a, n, sizeof *c->bound, err);
    c->sum = dq_alloc(a, n, sizeof *c->sum, err);
    c->rms = dq_alloc(a, n, sizeof *c->rms, err);
    c->kurtosis0 = dq_alloc(a, n, sizeof *c->kurtosis0, err);
    c->top = dq_alloc(a, n * DQ_TOP, sizeof *c->top, err);
    c->place = dq_alloc(a, n * DQ_TOP * 5, sizeof *c->place, err);
    return err->code;
}

static void columns_fill(columns *c, int i, const dq_tally *t, dq_median m)
{
    c->count[i] = t->n;
    c->bad[i] = t->n_bad;
    c->median[i] = m.value;
    c->bound[i] = m.bound;
    c->sum[i] = t->sum;
    c->rms[i] = dq_outlier_rms(t);
    c->kurtosis0[i] = dq_outlier_kurtosis0(t);
    memcpy(c->hist + (int64_t)i * DQ_HIST_BINS, t->hist, DQ_HIST_BINS * sizeof *t->hist);
    for (int k = 0; k < DQ_TOP; k++) {
        int32_t *p = c->place + ((int64_t)i * DQ_TOP + k) * 5;
        const dq_place none = {-1, -1, -1, -1, -1}, *at = k < t->n_top ? &t->place[k] : &none;
        c->top[(int64_t)i * DQ_TOP + k] = k < t->n_top ? t->top[k] : (float)NAN;
        p[0] = at->seq;
        p[1] = at->layer;
        p[2] = at->head;
        p[3] = at->row;
        p[4] = at->col;
    }
}

static dq_status columns_write(dq_h5_result *h, const char *group, const columns *c, int64_t n,
                               dq_err *err)
{
    const int64_t one[1] = {n}, hist[2] = {n, DQ_HIST_BINS}, top[2] = {n, DQ_TOP},
                  place[3] = {n, DQ_TOP, 5};
    const struct {
        const char *name;
        dq_h5_result_type type;
        int n_dims;
        const int64_t *shape;
        const void *data;
    } all[] = {{"n", DQ_OUT_I64, 1, one, c->count},
               {"n_not_finite", DQ_OUT_I64, 1, one, c->bad},
               {"top", DQ_OUT_F32, 2, top, c->top},
               {"place", DQ_OUT_I32, 3, place, c->place},
               {"median", DQ_OUT_F64, 1, one, c->median},
               {"median_bound", DQ_OUT_F64, 1, one, c->bound},
               {"sum", DQ_OUT_F64, 1, one, c->sum},
               {"rms", DQ_OUT_F64, 1, one, c->rms},
               {"kurtosis0", DQ_OUT_F64, 1, one, c->kurtosis0},
               {"histogram", DQ_OUT_I64, 2, hist, c->hist}};
    char name[128];
    DQ_TRY(dq_h5_result_group(h, group, err));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        snprintf(name, sizeof name, "%s/%s", group, all[i].name);
        DQ_TRY(dq_h5_result_array(h, name, all[i].type, all[i].n_dims, all[i].shape, all[i].data,
                                  err));
    }
    snprintf(name, sizeof name, "%s/place", group);
    DQ_TRY(dq_h5_result_text(h, name, "columns", "sequence layer head row column", err));
    snprintf(name, sizeof name, "%s/histogram", group);
    return dq_h5_result_text(h, name, "bins", "upper 16 bits of |x| as f32", err);
}

static dq_status kind_h5(dq_h5_result *h, const char *group, const dq_outlier_kind *k, int n_layers,
                         dq_arena *a, dq_err *err)
{
    char name[96];
    columns c;
    DQ_TRY(dq_h5_result_group(h, group, err));
    DQ_TRY(columns_init(&c, (size_t)n_layers, a, err));
    for (int i = 0; i < n_layers; i++) columns_fill(&c, i, &k->layer[i], k->layer_median[i]);
    snprintf(name, sizeof name, "%s/layers", group);
    DQ_TRY(columns_write(h, name, &c, n_layers, err));
    columns_fill(&c, 0, &k->pooled, k->pooled_median);
    snprintf(name, sizeof name, "%s/pooled", group);
    return columns_write(h, name, &c, 1, err);
}

dq_status cmd_stats_h5(dq_h5_result *h, const cmd_stats_entry *e, int i, dq_err *err)
{
    char group[32], name[64];
    const int64_t cu[1] = {e->in.n_seq + 1}, ids[1] = {e->in.cu[e->in.n_seq]};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    snprintf(group, sizeof group, "/models/%d", i);
    if (dq_h5_result_group(h, group, err) == DQ_OK &&
        dq_h5_result_text(h, group, "name", e->model->name, err) == DQ_OK &&
        dq_h5_result_text(h, group, "architecture", e->model->architecture->name, err) == DQ_OK)
        dq_h5_result_text(h, group, "fingerprint", e->model->fingerprint, err);
    for (int k = 0; k < DQ_N_KINDS && err->code == DQ_OK; k++) {
        snprintf(name, sizeof name, "%s/%s", group, dq_outlier_name[k]);
        kind_h5(h, name, &e->out.kind[k], e->out.n_layers, a, err);
    }
    if (err->code == DQ_OK) cmd_stats_attention_h5(h, group, e, a, err);
    snprintf(name, sizeof name, "%s/ids", group);
    if (err->code == DQ_OK) dq_h5_result_array(h, name, DQ_OUT_I32, 1, ids, e->in.ids, err);
    snprintf(name, sizeof name, "%s/cu_ids", group);
    if (err->code == DQ_OK) dq_h5_result_array(h, name, DQ_OUT_I64, 1, cu, e->in.cu, err);
    dq_arena_free(a);
    return err->code;
}
