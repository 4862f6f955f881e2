/* Cells of one N:R and length are those of all depths, one after the other, so their prompts are
 * too.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/inside.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An entry of Table 2 of arXiv 2410.05258: all prompts of N:R at a length, over all depths. */
typedef struct entry {
    dq_mean acc;
    dq_interval interval;
    bool paired, crossed;
    dq_stat_flips flips, cross; /* against the reference, and against the first model */
    int other;                  /* row of that */
} entry;

static dq_status entry_of(entry *o, const cmd_eval_view *v, int row, int64_t cell, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_needle_set *set = dq_needle_set_of(e, r);
    const int64_t depths = set->settings->n_depths, n = depths * set->samples;
    double *score = dq_block_new((size_t)(2 * n), sizeof *score, err);
    *o = (entry){.paired = r->ref != row, .other = cmd_eval_cross_row(e, row)};
    o->crossed = o->other >= 0;
    if (!score) return err->code;
    dq_needle_scores(score, e, r, cell, depths);
    o->acc = dq_mean_of_scores(score, NULL, n, &o->interval);
    if (o->paired) {
        dq_needle_scores(score + n, e, &e->row[r->ref], cell, depths);
        o->flips = dq_stat_flips_of(score + n, score, NULL, n);
    }
    if (o->crossed) {
        dq_needle_scores(score + n, e, &e->row[o->other], cell, depths);
        o->cross = dq_stat_flips_of(score + n, score, NULL, n);
    }
    dq_block_free(score);
    return DQ_OK;
}

/* "over_depths": accuracy over all depths for each N:R and length, with paired differences. */
static dq_status needle_entries(json_t *needle, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_needle_set *set = dq_needle_set_of(v->e, &v->e->row[row]);
    const int64_t depths = set->settings->n_depths;
    json_t *all = json_array();
    json_object_set_new(needle, "over_depths", all);
    for (int64_t c = 0; c < set->n_cells; c += depths) {
        entry x;
        DQ_TRY(entry_of(&x, v, row, c, err));
        json_t *o = json_object(), *acc = cmd_eval_mean_json(x.acc), *cross;
        json_object_set_new(acc, "interval", cmd_eval_interval_json(x.interval));
        json_object_set_new(o, "length", json_integer((json_int_t)set->cell[c].length));
        json_object_set_new(o, "n_needles", json_integer(set->cell[c].n));
        json_object_set_new(o, "n_queries", json_integer(set->cell[c].r));
        json_object_set_new(o, "n", json_integer((json_int_t)(depths * set->samples)));
        json_object_set_new(o, "acc", acc);
        json_object_set_new(o, "paired", x.paired ? cmd_eval_flips_json(&x.flips) : json_null());
        json_array_append_new(all, o);
        if (!x.crossed) continue;
        cross = json_object();
        json_object_set_new(cross, "model", json_string(v->names[v->e->row[x.other].model]));
        json_object_set_new(cross, "acc", cmd_eval_flips_json(&x.cross));
        json_object_set_new(o, "cross_paired", cross);
    }
    return DQ_OK;
}

/* Cells of one row and N:R lie at first + length * n_depths + depth. */
typedef struct grid {
    const cmd_eval_view *v;
    int row;
    const dq_needle_set *set;
    const json_t *needle; /* of its result */
    int64_t first;
    int n_lengths, n_depths;
} grid;

static const dq_needle_cell *cell_of(const grid *g, int length, int depth)
{
    return &g->set->cell[g->first + (int64_t)length * g->n_depths + depth];
}

static const json_t *numbers_of(const grid *g, int length, int depth)
{
    return json_array_get(json_object_get(g->needle, "cells"),
                          (size_t)(g->first + (int64_t)length * g->n_depths + depth));
}

static void share_cell(dq_table *t, const json_t *x)
{
    const dq_mean m = cmd_eval_mean_of(x);
    if (isnan(m.std_err))
        dq_table_known(t, !isnan(m.value), "%.3f", m.value);
    else
        dq_table_cell(t, "%.3f \u00b1 %.3f", m.value, m.std_err);
}

static void number_cell(dq_table *t, const json_t *x)
{
    dq_table_known(t, json_is_real(x), "%.3f", json_real_value(x));
}

static void head_cell(dq_table *t, const json_t *x)
{
    dq_table_known(t, json_is_object(x), "%.3f (layer %lld, head %lld)", cmd_eval_real(x, "answer"),
                   json_integer_value(json_object_get(x, "layer")),
                   json_integer_value(json_object_get(x, "head")));
}

static void print_title(const grid *g, const char *what)
{
    const dq_needle_cell *c = cell_of(g, 0, 0);
    const dq_eval_row *r = &g->v->e->row[g->row];
    char label[DQ_KV_LABEL];
    printf("\n%s of %s, %d needle%s, %d asked for, %d-bit logits", what, g->v->names[r->model],
           c->n, c->n == 1 ? "" : "s", c->r, r->logit.bits);
    if (r->logit.bits < 16) printf(" (granularity %s)", dq_granularity_name[r->logit.granularity]);
    if (!dq_kv_spec_is_plain(&r->kv))
        printf(", KV %s", dq_kv_report_label(label, sizeof label, &r->kv));
}

static dq_status print_accuracy(const grid *g, dq_err *err)
{
    char name[DQ_NEEDLE_SWEEP][24];
    const char *titles[DQ_NEEDLE_SWEEP + 1] = {"depth"};
    dq_table *t;
    for (int l = 0; l < g->n_lengths; l++) {
        snprintf(name[l], sizeof name[l], "%lld tokens", (long long)cell_of(g, l, 0)->length);
        titles[l + 1] = name[l];
    }
    DQ_TRY(dq_table_new(&t, titles, g->n_lengths + 1, err));
    for (int d = 0; d < g->n_depths; d++) {
        dq_table_cell(t, "%d %%", cell_of(g, 0, d)->depth);
        for (int l = 0; l < g->n_lengths; l++)
            number_cell(t, cmd_eval_at(numbers_of(g, l, d), "acc.value"));
    }
    dq_table_cell(t, "mean");
    for (int l = 0; l < g->n_lengths; l++) {
        const size_t at = (size_t)(g->first / g->n_depths + l);
        cmd_eval_cell_score(
            t,
            json_object_get(json_array_get(json_object_get(g->needle, "over_depths"), at), "acc"));
    }
    print_title(g, "Accuracy");
    printf(":\n");
    return dq_table_finish(t, err);
}

/* As in Table 3 of arXiv 2410.05258, noise includes the other needles. */
static dq_status print_attention(const grid *g, int length, dq_err *err)
{
    static const cmd_eval_column column[] = {
        DQ_COLUMN("answer", "attention.absolute.table3.answer", share_cell),
        DQ_COLUMN("noise", "attention.absolute.table3.noise", share_cell),
        DQ_COLUMN("other needles", "attention.absolute.distractor", number_cell),
        DQ_COLUMN("BOS", "attention.absolute.bos", number_cell),
        DQ_COLUMN("query", "attention.absolute.query", number_cell),
        DQ_COLUMN("best head's answer", "attention.best_head", head_cell)};
    enum { N = sizeof column / sizeof *column };
    const char *titles[N + 1] = {"depth"};
    long long rows = 0, small = 0;
    dq_table *t;
    for (int i = 0; i < N; i++) titles[i + 1] = column[i].title;
    DQ_TRY(dq_table_new(&t, titles, N + 1, err));
    for (int d = 0; d < g->n_depths; d++) {
        const json_t *x = numbers_of(g, length, d);
        rows += json_integer_value(cmd_eval_at(x, "attention.head_rows"));
        small += json_integer_value(cmd_eval_at(x, "attention.small_sums"));
        dq_table_cell(t, "%d %%", cell_of(g, length, d)->depth);
        cmd_eval_column_cells(t, x, column, N);
    }
    print_title(g, "Attention");
    printf(", %lld tokens, %s, |a| / sum |a|; noise counts other needles:\n",
           (long long)cell_of(g, length, 0)->length,
           g->set->settings->query_rows ? "rows of the question" : "last row");
    if (dq_table_finish(t, err) == DQ_OK && small > 0)
        printf("|sum a| is below %g in %lld of %lld rows of heads, so a / sum a (in the JSON) is "
               "no share there.\n",
               DQ_SPAN_SMALL, small, rows);
    return err->code;
}

static dq_status needle_tables(const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        if (!cmd_eval_kind_shows(&cmd_eval_needle, v->e, i)) continue;
        grid g = {.v = v, .row = i, .set = dq_needle_set_of(v->e, &v->e->row[i])};
        const dq_needle_settings *s = g.set->settings;
        g.needle = json_object_get(cmd_eval_result(v, i), "needle");
        g.n_depths = s->n_depths;
        g.n_lengths = (int)(g.set->n_cells / s->n_pairs / s->n_depths);
        for (; g.first < g.set->n_cells; g.first += (int64_t)g.n_lengths * g.n_depths) {
            DQ_TRY(print_accuracy(&g, err));
            for (int l = 0; s->attention && l < g.n_lengths; l++)
                DQ_TRY(print_attention(&g, l, err));
        }
    }
    return DQ_OK;
}

typedef struct needle_options {
    /* as on the command line; NULL: not given */
    const char *depths, *needles;
    dq_word mode, rows, order; /* of mode_names, row_names, order_names */
    bool attention;
    dq_needle_settings settings; /* what they mean */
} needle_options;

static const char *const mode_names[] = {"forced", "generated"},
                         *const row_names[] = {"last", "query"},
                         *const order_names[] = {"drawn", "depth"};

static const cmd_eval_kind_option options[] = {
    {.opt = {.value = "needle",
             .help = "needles (--task needle: numbers hidden in a text of yours and asked for; "
                     "--data FILE "
                     "is the text):"}},
    {{.name = "depths",
      .kind = DQ_OPT_TEXT,
      .value = "LIST",
      .help = "percent of the filler before the first asked needle (default "
              "0,25,50,75,100); other needles are anywhere"},
     offsetof(needle_options, depths)},
    {{.name = "needles",
      .kind = DQ_OPT_TEXT,
      .value = "LIST",
      .help = "N:R: N needles of which R are asked for (default 1:1,2:2,4:2,6:2)"},
     offsetof(needle_options, needles)},
    {{.name = "needle-order",
      .kind = DQ_OPT_WORD,
      .words = order_names,
      .n_words = 2,
      .value = "ORDER",
      .help = "in which several are asked for: drawn (default) for each prompt, or depth: the "
              "one at --depths first, so that --attention is always to it"},
     offsetof(needle_options, order)},
    {{.name = "needle-mode",
      .kind = DQ_OPT_WORD,
      .words = mode_names,
      .n_words = 2,
      .value = "MODE",
      .help = "forced (default): whether each digit is the most likely one after those "
              "before it, in one pass; what a cache evicts or rounds lies before the "
              "question. generated: up to 12 tokens a city, greedily; the next city is asked "
              "for after the model's own answer, cut at its first newline or period; a "
              "cache is cut after the question"},
     offsetof(needle_options, mode)},
    {{.name = "attention",
      .kind = DQ_OPT_FLAG,
      .help = "also how much attention goes to the needle that the prompt's end asks for, "
              "other needles, filler, the question and BOS: one more pass a prompt; not "
              "where tokens are evicted"},
     offsetof(needle_options, attention)},
    {{.name = "attention-rows",
      .kind = DQ_OPT_WORD,
      .words = row_names,
      .n_words = 2,
      .value = "ROWS",
      .help = "last (default): the row that predicts the first answer; query: the mean of all "
              "rows of the question"},
     offsetof(needle_options, rows)},
    {.opt = {.name = NULL}},
};

static const char *task(int i)
{
    return i == 0 ? "needle" : NULL;
}

static const char *form(const char *name)
{
    (void)name;
    return "a UTF-8 text to hide numbers in";
}

static dq_status choose(void *own, cmd_eval_options *o, const char *name, const char *path,
                        dq_arena *a, dq_err *err)
{
    needle_options *n = own;
    const dq_eval_source source = {
        .name = name, .path = path, .kind = &dq_eval_needle, .settings = &n->settings};
    (void)a;
    return cmd_eval_add_source(o, &source, "tasks", err);
}

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
            if (s->needles[i] == n && s->requested[i] == r)
                return dq_fail(err, DQ_USAGE, "--needles: %ld:%ld stands twice.", n, r);
        }
        s->needles[s->n_pairs] = (int)n;
        s->requested[s->n_pairs++] = (int)r;
        if (!*last) return DQ_OK;
        p = last;
    }
}

static dq_status read_words(void *own, const cmd_eval_options *run, dq_arena *a, dq_err *err)
{
    needle_options *o = own;
    dq_needle_settings *s = &o->settings;
    (void)a;
    s->n_lengths = run->n_lengths;
    memcpy(s->length, run->length, sizeof s->length);
    DQ_TRY(dq_options_ints(s->depth, &s->n_depths, DQ_NEEDLE_SWEEP,
                           o->depths ? o->depths : "0,25,50,75,100", "depths", 0, 100, err));
    DQ_TRY(read_pairs(s, o->needles ? o->needles : "1:1,2:2,4:2,6:2", err));
    s->samples = run->samples;
    s->seed = run->kv.seed >= 0 ? (uint64_t)run->kv.seed : 1;
    s->generated = o->mode.at == 1;
    s->attention = o->attention;
    s->query_rows = o->rows.at == 1;
    s->depth_first = o->order.at == 1;
    return DQ_OK;
}

static dq_status check(const void *own, const cmd_eval_options *run, dq_err *err)
{
    const needle_options *o = own;
    (void)run;
    if (o->rows.text && !o->attention)
        return dq_fail(err, DQ_USAGE, "--attention-rows has nothing to act on: add --attention.");
    return DQ_OK;
}

static const char *mode_name(const dq_needle_settings *s)
{
    return mode_names[s->generated];
}

static const char *rows_name(const dq_needle_settings *s)
{
    return row_names[s->query_rows];
}

static json_t *settings_json(const dq_needle_settings *s)
{
    json_t *o = json_object(), *depths = json_array(), *pairs = json_array(),
           *lengths = json_null();
    if (s->n_lengths) lengths = json_array();
    for (int i = 0; i < s->n_lengths; i++)
        json_array_append_new(lengths, json_integer(s->length[i]));
    for (int i = 0; i < s->n_depths; i++) json_array_append_new(depths, json_integer(s->depth[i]));
    for (int i = 0; i < s->n_pairs; i++)
        json_array_append_new(pairs, json_sprintf("%d:%d", s->needles[i], s->requested[i]));
    json_object_set_new(o, "lengths", lengths);
    json_object_set_new(o, "depths", depths);
    json_object_set_new(o, "needles", pairs);
    json_object_set_new(o, "samples", json_integer((json_int_t)s->samples));
    json_object_set_new(o, "seed", json_integer((json_int_t)s->seed));
    json_object_set_new(o, "mode", json_string(mode_name(s)));
    if (s->depth_first) json_object_set_new(o, "order", json_string(order_names[1]));
    json_object_set_new(o, "prompt", json_string(dq_needle_form));
    json_object_set_new(o, "attention", s->attention ? json_string(rows_name(s)) : json_null());
    return o;
}

static void put_settings(json_t *settings, const void *own, const dq_eval *e)
{
    const dq_eval_source *s = cmd_eval_kind_source(&cmd_eval_needle, e->source, e->n_sources);
    (void)own;
    if (s) json_object_set_new(settings, "needle", settings_json(s->settings));
}

static const char *const norm_name[DQ_N_SPAN_NORMS] = {"sum", "positive", "absolute"};

static json_t *shares_json(const double *share, int64_t skipped)
{
    json_t *o = json_object();
    for (int c = 0; c < DQ_NEEDLE_CLASSES; c++)
        json_object_set_new(o, dq_needle_class_name[c], dq_document_real(share[c]));
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
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        json_t *shares = shares_json(x->share[k], x->skipped[k]), *table = json_object();
        json_object_set_new(table, "answer",
                            dq_document_metric(x->answer[k].value, x->answer[k].std_err));
        json_object_set_new(table, "noise",
                            dq_document_metric(x->noise[k].value, x->noise[k].std_err));
        json_object_set_new(shares, "table3", table);
        json_object_set_new(o, norm_name[k], shares);
    }
    if (x->best_layer >= 0) {
        best = json_object();
        json_object_set_new(best, "layer", json_integer(x->best_layer));
        json_object_set_new(best, "head", json_integer(x->best_head));
        json_object_set_new(best, "answer", dq_document_real(x->best));
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
    json_object_set_new(o, "depth", dq_document_real(c->depth / 100.0));
    json_object_set_new(o, "n_needles", json_integer(c->n));
    json_object_set_new(o, "n_queries", json_integer(c->r));
    json_object_set_new(o, "n", json_integer((json_int_t)x->n));
    json_object_set_new(o, "acc", dq_document_metric(x->acc.value, x->acc.std_err));
    json_object_set_new(o, "all_correct",
                        dq_document_metric(x->all_correct.value, x->all_correct.std_err));
    if (!set->settings->generated)
        json_object_set_new(o, "ll_nats", dq_document_metric(x->ll.value, x->ll.std_err));
    for (int k = 0; k < 4; k++)
        json_object_set_new(confusion, verdict[k], dq_document_real(x->confusion[k]));
    json_object_set_new(o, "confusion", confusion);
    json_object_set_new(o, "attention", attention_json(set->settings, x));
    return o;
}

static dq_status details(json_t *o, const cmd_eval_view *v, int row, dq_err *err)
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
    if (!set->settings->generated) {
        dq_needle_numbers x;
        DQ_TRY(dq_needle_numbers_of(&x, v->e, r, -1, err));
        json_object_set_new(json_object_get(o, "metrics"), "ll_nats",
                            dq_document_metric(x.ll.value, x.ll.std_err));
    }
    return needle_entries(needle, v, row, err);
}

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
    json_object_set_new(o, "ll", dq_document_real(ll));
    json_object_set_new(o, "top1", ids_json(r->top1 + v, n));
    return o;
}

static dq_status item(json_t *o, const cmd_eval_view *v, const dq_eval_row *r, int64_t unit,
                      dq_err *err)
{
    const dq_needle_set *set = dq_needle_set_of(v->e, r);
    const dq_needle_cell *c = &set->cell[unit / set->samples];
    const dq_needle_prompt *p = &set->prompt[unit];
    const double *x = dq_needle_unit(v->e, r, unit);
    json_t *answers = json_array();
    (void)err;
    json_object_set_new(o, "length", json_integer((json_int_t)c->length));
    json_object_set_new(o, "depth", dq_document_real(c->depth / 100.0));
    json_object_set_new(o, "sample", json_integer((json_int_t)(unit % set->samples)));
    json_object_set_new(o, "filler", json_integer((json_int_t)p->filler));
    json_object_set_new(o, "question", json_integer((json_int_t)p->question));
    json_object_set_new(o, "prompt", ids_json(p->ids, p->n));
    json_object_set_new(o, "answer", ids_json(p->ids + p->n, p->n_answer));
    json_object_set_new(o, "needles", needles_json(p));
    for (int k = 0; k < p->requested; k++)
        json_array_append_new(answers, answer_json(v->e, r, unit, k));
    json_object_set_new(o, "asked", answers);
    json_object_set_new(o, "found", json_integer((json_int_t)x[DQ_NEEDLE_AT_CORRECT]));
    for (int k = 0; set->settings->attention && k < DQ_N_SPAN_NORMS; k++)
        json_object_set_new(o, norm_name[k],
                            shares_json(x + DQ_NEEDLE_AT_SHARE + k * DQ_NEEDLE_CLASSES,
                                        (int64_t)x[DQ_NEEDLE_AT_SKIPPED + k]));
    return DQ_OK;
}

const cmd_eval_kind cmd_eval_needle = {
    .name = "needle",
    .kind = {&dq_eval_needle},
    .cli = {.size = sizeof(needle_options),
            .options = options,
            .tasks_help = "needle: a UTF-8 text to hide numbers in, see below",
            .has = "needles",
            .task = task,
            .form = form,
            .lengths = true,
            .needs = "has nothing to act on: there is no --task needle.",
            .read = read_words,
            .choose = choose,
            .check = check},
    .settings = put_settings,
    .out = {.metric = "ll_nats",
            .details = details,
            .tables = needle_tables,
            .tables_last = true,
            .item = item},
};
