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

/* "over_depths", the entries of Table 2 of arXiv 2410.05258: accuracy over all depths for each N:R
 * and length, with paired differences to the reference and to the first model. */
static dq_status put_entries(json_t *needle, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_needle_set *set = e->ids[r->ids].own;
    const int64_t n = set->settings->n_depths * set->samples, all = set->n_cells * set->samples;
    const int other = cmd_eval_cross_row(e, row);
    json_t *list = json_array();
    double *score = dq_block_new((size_t)(3 * all), sizeof *score, err);
    json_object_set_new(needle, "over_depths", list);
    if (!score) return err->code;
    double *ref = score + all, *cross = ref + all;
    dq_eval_needle.judge(e, r, 0, score);
    dq_eval_needle.judge(e, &e->row[r->ref], 0, ref);
    if (other >= 0) dq_eval_needle.judge(e, &e->row[other], 0, cross);
    for (int64_t at = 0; at < all; at += n) {
        const dq_needle_cell *c = &set->cell[at / set->samples];
        const dq_stat_flips f = dq_stat_flips_of(ref + at, score + at, NULL, n);
        dq_interval interval;
        const dq_mean acc = dq_mean_of_scores(score + at, NULL, n, &interval);
        json_t *o = json_pack("{s:I,s:i,s:i,s:I,s:o,s:o}", "length", (json_int_t)c->length,
                              "n_needles", c->n, "n_queries", c->r, "n", (json_int_t)n, "acc",
                              cmd_eval_score_json(acc, interval), "paired",
                              r->ref == row ? json_null() : cmd_eval_flips_json(&f));
        if (other >= 0) {
            const dq_stat_flips x = dq_stat_flips_of(cross + at, score + at, NULL, n);
            json_object_set_new(o, "cross_paired",
                                json_pack("{s:s,s:o}", "model", v->names[e->row[other].model],
                                          "acc", cmd_eval_flips_json(&x)));
        }
        json_array_append_new(list, o);
    }
    dq_block_free(score);
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
        grid g = {.v = v, .row = i, .set = v->e->ids[v->e->row[i].ids].own};
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
                     "--data FILE is the text):"}},
    DQ_KIND_OPTION(TEXT, "depths", "LIST", needle_options, depths,
                   .help = "percent of the filler before the first asked needle (default "
                           "0,25,50,75,100); other needles are anywhere"),
    DQ_KIND_OPTION(TEXT, "needles", "LIST", needle_options, needles,
                   .help = "N:R: N needles of which R are asked for (default 1:1,2:2,4:2,6:2)"),
    DQ_KIND_OPTION(WORD, "needle-order", "ORDER", needle_options, order, .words = order_names,
                   .n_words = 2,
                   .help = "in which several are asked for: drawn (default) for each prompt, or "
                           "depth: the one at --depths first, so that --attention is always to it"),
    DQ_KIND_OPTION(
        WORD, "needle-mode", "MODE", needle_options, mode, .words = mode_names, .n_words = 2,
        .help =
            "forced (default): whether each digit is the most likely one after those before it, in "
            "one pass; what a cache evicts or rounds lies before the question. generated: up to 12 "
            "tokens a city, greedily; the next city is asked for after the model's own answer, cut "
            "at its first newline or period; a cache is cut after the question"),
    DQ_KIND_OPTION(FLAG, "attention", NULL, needle_options, attention,
                   .help = "also how much attention goes to the needle that the prompt's end asks "
                           "for, other needles, filler, the question and BOS: one more pass a "
                           "prompt; not where tokens are evicted"),
    DQ_KIND_OPTION(WORD, "attention-rows", "ROWS", needle_options, rows, .words = row_names,
                   .n_words = 2,
                   .help = "last (default): the row that predicts the first answer; query: the "
                           "mean of all rows of the question"),
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
                        dq_err *err)
{
    needle_options *n = own;
    const dq_eval_source source = {
        .name = name, .path = path, .kind = &dq_eval_needle, .settings = &n->settings};
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

static dq_status read_words(void *own, const cmd_eval_options *run, dq_err *err)
{
    needle_options *o = own;
    dq_needle_settings *s = &o->settings;
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

static void put_settings(json_t *settings, const void *own, const dq_eval *e)
{
    const dq_eval_source *source = cmd_eval_kind_source(&cmd_eval_needle, e->source, e->n_sources);
    const dq_needle_settings *s = source ? source->settings : NULL;
    (void)own;
    if (!s) return;
    json_t *pairs = json_array();
    for (int i = 0; i < s->n_pairs; i++)
        json_array_append_new(pairs, json_sprintf("%d:%d", s->needles[i], s->requested[i]));
    json_t *o =
        json_pack("{s:o,s:o,s:o,s:I,s:I,s:s}", "lengths",
                  s->n_lengths ? cmd_eval_ints_json(s->length, s->n_lengths) : json_null(),
                  "depths", cmd_eval_ints_json(s->depth, s->n_depths), "needles", pairs, "samples",
                  (json_int_t)s->samples, "seed", (json_int_t)s->seed, "mode", mode_name(s));
    if (s->depth_first) json_object_set_new(o, "order", json_string(order_names[1]));
    json_object_set_new(o, "prompt", json_string(dq_needle_form));
    json_object_set_new(o, "attention", s->attention ? json_string(rows_name(s)) : json_null());
    json_object_set_new(settings, "needle", o);
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
    json_t *best = json_null();
    json_t *o = json_pack("{s:s,s:I,s:I}", "rows", rows_name(s), "head_rows", (json_int_t)x->rows,
                          "small_sums", (json_int_t)x->small);
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        json_t *shares = shares_json(x->share[k], x->skipped[k]);
        json_object_set_new(shares, "table3",
                            json_pack("{s:o,s:o}", "answer", cmd_eval_metric_json(x->answer[k]),
                                      "noise", cmd_eval_metric_json(x->noise[k])));
        json_object_set_new(o, norm_name[k], shares);
    }
    if (x->best_layer >= 0)
        best = json_pack("{s:i,s:i,s:o,s:s}", "layer", x->best_layer, "head", x->best_head,
                         "answer", dq_document_real(x->best), "norm", norm_name[DQ_NEEDLE_NORM]);
    json_object_set_new(o, "best_head", best);
    return o;
}

static json_t *cell_json(const dq_needle_set *set, const dq_needle_cell *c,
                         const dq_needle_numbers *x)
{
    json_t *o = json_pack("{s:I,s:o,s:i,s:i,s:I,s:o,s:o}", "length", (json_int_t)c->length, "depth",
                          dq_document_real(c->depth / 100.0), "n_needles", c->n, "n_queries", c->r,
                          "n", (json_int_t)x->n, "acc", cmd_eval_metric_json(x->acc), "all_correct",
                          cmd_eval_metric_json(x->all_correct));
    if (!set->settings->generated) json_object_set_new(o, "ll_nats", cmd_eval_metric_json(x->ll));
    json_object_set_new(o, "confusion",
                        json_pack("{s:o,s:o,s:o,s:o}", "correct", dq_document_real(x->confusion[0]),
                                  "other_needle", dq_document_real(x->confusion[1]), "near_miss",
                                  dq_document_real(x->confusion[2]), "none",
                                  dq_document_real(x->confusion[3])));
    json_object_set_new(o, "attention", attention_json(set->settings, x));
    return o;
}

static dq_status details(json_t *o, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_needle_set *set = v->e->ids[r->ids].own;
    json_t *cells = json_array();
    json_t *needle = json_pack(
        "{s:s,s:s,s:o}", "mode", mode_name(set->settings), "kv_boundary",
        set->settings->generated ? "after the question" : "before the question", "cells", cells);
    json_object_set_new(o, "needle", needle);
    if (set->settings->generated) json_object_set_new(o, "passes", json_string("prompt+decode"));
    for (int64_t c = 0; c < set->n_cells; c++) {
        dq_needle_numbers x;
        DQ_TRY(dq_needle_numbers_of(&x, v->e, r, c, err));
        json_array_append_new(cells, cell_json(set, &set->cell[c], &x));
    }
    if (!set->settings->generated) {
        dq_needle_numbers x;
        DQ_TRY(dq_needle_numbers_of(&x, v->e, r, -1, err));
        json_object_set_new(json_object_get(o, "metrics"), "ll_nats", cmd_eval_metric_json(x.ll));
    }
    return put_entries(needle, v, row, err);
}

static json_t *answer_json(const dq_eval *e, const dq_eval_row *r, int64_t unit, int k)
{
    const dq_needle_set *set = e->ids[r->ids].own;
    const dq_needle_answer *a = &set->prompt[unit].answer[k];
    const int64_t v = dq_needle_value(e, r, unit, k);
    int64_t n = a->to - a->from;
    double ll = 0;
    if (set->settings->generated) {
        for (n = 0; n < DQ_NEEDLE_NEW && r->top1[v + n] >= 0;) n++;
        return json_pack("{s:i,s:o}", "needle", a->needle, "generated",
                         cmd_eval_ints_json(r->top1 + v, n));
    }
    for (int64_t i = 0; i < n; i++) ll += r->logp[v + i];
    return json_pack("{s:i,s:I,s:I,s:o,s:o}", "needle", a->needle, "from", (json_int_t)a->from,
                     "to", (json_int_t)a->to, "ll", dq_document_real(ll), "top1",
                     cmd_eval_ints_json(r->top1 + v, n));
}

static dq_status item(json_t *o, const cmd_eval_view *v, const dq_eval_row *r, int64_t unit,
                      dq_err *err)
{
    const dq_needle_set *set = v->e->ids[r->ids].own;
    const dq_needle_cell *c = &set->cell[unit / set->samples];
    const dq_needle_prompt *p = &set->prompt[unit];
    const double *x = r->extra + unit * v->e->ids[r->ids].n_extra;
    json_t *needles = json_array(), *answers = json_array();
    (void)err;
    for (int i = 0; i < p->needles; i++)
        json_array_append_new(needles, json_pack("{s:s,s:s,s:I,s:I}", "city", p->city[i], "number",
                                                 p->number[i], "at", (json_int_t)p->at[i], "len",
                                                 (json_int_t)p->len[i]));
    for (int k = 0; k < p->requested; k++)
        json_array_append_new(answers, answer_json(v->e, r, unit, k));
    json_object_update_new(
        o, json_pack("{s:I,s:o,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:I}", "length", (json_int_t)c->length,
                     "depth", dq_document_real(c->depth / 100.0), "sample",
                     (json_int_t)(unit % set->samples), "filler", (json_int_t)p->filler, "question",
                     (json_int_t)p->question, "prompt", cmd_eval_ints_json(p->ids, p->n), "answer",
                     cmd_eval_ints_json(p->ids + p->n, p->n_answer), "needles", needles, "asked",
                     answers, "found", (json_int_t)x[DQ_NEEDLE_AT_CORRECT]));
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
