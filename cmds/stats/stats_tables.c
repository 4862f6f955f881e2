/* stats_tables: what dq stats prints: Table 5, outliers that are each named once, kinds of values, attention maps. Tables by layer
 * are for who asks: a model has dozens.
 * SPDX-License-Identifier: MIT */
#include "calib/elements.h"
#include "cmds/stats/stats_attention.h"
#include "cmds/stats/stats_cells.h"
#include "cmds/stats/stats_weights.h"

#include <math.h>
#include <stdio.h>

enum { MOST = DQ_TOP };

/* ----- Table 5 ----- */

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

static dq_status print_table5(const cmd_stats_entry *e, int n, dq_err *err)
{
    static const char *const titles[] = {"model", "values", "tokens", "top1",   "top2",
                                         "top3",  "top10",  "top100", "median", "n"};
    dq_table *t;
    if (dq_table_new(&t, titles, 10, err) == DQ_OK) {
        dq_table_keys(t, 3);
        for (int k = 0; k < DQ_N_TABLE5; k++) {
            if (k) dq_table_rule(t);
            for (int i = 0; i < n; i++) {
                table5_row(t, &e[i], k, false);
                if (e[i].out.n_kinds > DQ_N_TABLE5) table5_row(t, &e[i], k, true);
            }
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* ----- all kinds ----- */

static int layer_of_max(const dq_tally *t)
{
    return t->n_top ? t->place[0].layer : -1;
}

static void kind_row(dq_table *t, const cmd_stats_entry *e, int k)
{
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
    dq_table_cell(t, "%d", layer_of_max(&x->pooled_ordinary));
}

static dq_status print_kinds(const cmd_stats_entry *e, dq_err *err)
{
    static const char *const titles[] = {"values",  "max",       "p99.9",     "rms",
                                         "max/rms", "kurtosis0", "ord. max",  "p99.9",
                                         "rms",     "max/rms",   "kurtosis0", "layer"};
    dq_table *t;
    if (dq_table_new(&t, titles, 12, err) == DQ_OK) {
        for (int k = 0; k < e->out.n_kinds; k++) kind_row(t, e, k);
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* ----- outliers, each once ----- */

static void layers_cell(dq_table *t, const dq_element *x)
{
    if (x->first == x->last)
        dq_table_cell(t, "%d", x->first);
    else if (x->n_gaps == 0)
        dq_table_cell(t, "%d-%d", x->first, x->last);
    else
        dq_table_cell(t, "%d-%d less %d", x->first, x->last, x->n_gaps);
}

static void channel_row(dq_table *t, const cmd_stats_entry *e, const dq_element *x)
{
    dq_table_cell(t, "%s", dq_token_class_name[x->class]);
    dq_table_cell(t, "%lld", (long long)x->col);
    layers_cell(t, x);
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
    if (dq_table_new(&t, titles, 11, err) == DQ_OK) {
        dq_table_keys(t, 2);
        for (int c = DQ_TOKEN_CLASSES - 1; c >= 0; c--) {
            const int n = dq_elements_find(found, most, &e->out, DQ_KIND_HIDDEN, c);
            if (n && c + 1 < DQ_TOKEN_CLASSES) dq_table_rule(t);
            for (int i = 0; i < n; i++) channel_row(t, e, &found[i]);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
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
    if (dq_table_new(&t, titles, 12, err) == DQ_OK) {
        dq_table_keys(t, 3);
        for (int c = DQ_TOKEN_CLASSES - 1; c >= 0; c--) {
            const int n = dq_elements_find(found, most, &e->out, DQ_KIND_LOGITS, c);
            if (n && c + 1 < DQ_TOKEN_CLASSES) dq_table_rule(t);
            for (int i = 0; i < n; i++) head_row(t, e, &found[i]);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* Without a profile: the largest values, whatever they are of. */
static void place_row(dq_table *t, const cmd_stats_entry *e, int k, int rank)
{
    const dq_tally *x = &e->out.kind[k].pooled;
    const dq_place *p = &x->place[rank];
    dq_table_cell(t, "%d", rank + 1);
    cmd_stats_number(t, (double)x->top[rank], 5);
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

static dq_status print_places(const cmd_stats_entry *e, int k, int most, dq_err *err)
{
    static const char *const titles[DQ_N_TABLE5][10] = {
        {"rank", "|logit|", "seq", "layer", "head", "map", "query", "query token", "key",
         "key token"},
        {"rank", "|x|", "seq", "layer", "pos", "channel", "token"}};
    dq_table *t;
    if (dq_table_new(&t, titles[k], k == DQ_KIND_LOGITS ? 10 : 7, err) == DQ_OK) {
        for (int i = 0; i < most && i < e->out.kind[k].pooled.n_top; i++) place_row(t, e, k, i);
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* ----- layers ----- */

static void layer_cells(dq_table *t, const dq_tally *x, dq_median m)
{
    const double rms = dq_outlier_rms(x), top = dq_outlier_top(x, 1);
    cmd_stats_number(t, top, 5);
    cmd_stats_median(t, m);
    cmd_stats_number(t, rms, 5);
    cmd_stats_number(t, rms > 0 ? top / rms : (double)NAN, 5);
    cmd_stats_number(t, dq_outlier_kurtosis0(x), 5);
}

static dq_status print_layers(const cmd_stats_entry *e, int n, dq_err *err)
{
    static const char *const titles[] = {"model", "values",   "layer",     "top1",      "median",
                                         "rms",   "top1/rms", "kurtosis0", "ord. top1", "median",
                                         "rms",   "top1/rms", "kurtosis0"};
    dq_table *t;
    if (dq_table_new(&t, titles, 13, err) == DQ_OK) {
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
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* ----- all ----- */

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
    DQ_TRY(cmd_stats_weights_print(e, err));
    printf("\n%s: what heads do, by where their attention goes\n\n", e->label);
    DQ_TRY(cmd_stats_kinds_print(e, err));
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
    DQ_TRY(print_table5(e, n, err));
    if (layers) {
        printf("\nLayers (kurtosis0 is taken around zero; ord.: ordinary tokens alone)\n\n");
        DQ_TRY(print_layers(e, n, err));
    }
    if (e->out.measure) {
        printf(
            "\nAttention maps, means over rows and heads (D = A1 - lambda A2; sinks: mass on the "
            "first 4 positions; shares of keys and of 64-key pages)\n\n");
        DQ_TRY(cmd_stats_attention_print(e, n, layers, err));
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
