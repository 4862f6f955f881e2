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
static dq_status put_entries(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[row]);
    const dq_needle_set *set = DQ_LIVE(w, e->ids[r->ids].own);
    const int64_t n = w->live ? set->settings->n_depths * set->samples : 1,
                  all = w->live ? set->n_cells * set->samples : 1;
    const int other = w->live ? cmd_eval_cross_row(e, row) : -1;
    double *score = dq_block_new((size_t)(3 * all), sizeof *score, err);
    if (!score) return err->code;
    double *ref = score + all, *cross = ref + all;
    if (w->live) dq_eval_needle.judge(e, r, 0, score);
    if (w->live) dq_eval_needle.judge(e, &e->row[r->ref], 0, ref);
    if (other >= 0) dq_eval_needle.judge(e, &e->row[other], 0, cross);
    DQ_LIST(w, "over_depths", "All prompts of a length and N:R, whatever the depth.");
    for (int64_t at = 0; at < all; at += n) {
        const dq_needle_cell *c = DQ_LIVE(w, &set->cell[at / set->samples]);
        const dq_stat_flips f = dq_stat_flips_of(ref + at, score + at, NULL, n),
                            x = dq_stat_flips_of(cross + at, score + at, NULL, n);
        dq_interval interval;
        const dq_mean acc = dq_mean_of_scores(score + at, NULL, n, &interval);
        DQ_ITEM(w);
        DQ_PUT(w, "length", c->length, "Tokens of a prompt.");
        DQ_PUT(w, "n_needles", c->n, "Needles.", .min = 1);
        DQ_PUT(w, "n_queries", c->r, "Of them asked for.", .min = 1);
        DQ_PUT(w, "n", n, "Prompts.");
        DQ_SCORE(w, "acc", acc, interval, "Mean share of numbers found.");
        DQ_FLIPS(w, "paired", r->ref != row, &f,
                 "Difference to the reference; null: it is the reference.", .when = DQ_NULL);
        if (DQ_BEGIN(w, OBJECT, "cross_paired", other >= 0,
                     "Difference to the first model of the run.", .when = DQ_OUT)) {
            DQ_PUT(w, "model", v->names[e->row[other].model], "That model.");
            DQ_FLIPS(w, "acc", true, &x, "Of the same prompts.");
            dq_row_end(w);
        }
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_block_free(score);
    return DQ_OK;
}

/* Cells of one row and N:R lie at first + length * n_depths + depth. */
typedef struct grid {
    const cmd_eval_view *v;
    int row, first, n_lengths, n_depths;
    const json_t *needle; /* of its result */
} grid;

static const json_t *cell_of(const grid *g, int length, int depth)
{
    return json_array_get(json_object_get(g->needle, "cells"),
                          (size_t)(g->first + length * g->n_depths + depth));
}

static long long count_of(const json_t *o, const char *path)
{
    return json_integer_value(cmd_eval_at(o, path));
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
    const long long n = count_of(cell_of(g, 0, 0), "n_needles");
    const dq_eval_row *r = &g->v->e->row[g->row];
    char label[DQ_KV_LABEL];
    printf("\n%s of %s, %lld needle%s, %lld asked for, %d-bit logits", what, g->v->names[r->model],
           n, n == 1 ? "" : "s", count_of(cell_of(g, 0, 0), "n_queries"), r->logit.bits);
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
        snprintf(name[l], sizeof name[l], "%lld tokens", count_of(cell_of(g, l, 0), "length"));
        titles[l + 1] = name[l];
    }
    DQ_TRY(dq_table_new(&t, titles, g->n_lengths + 1, err));
    for (int d = 0; d < g->n_depths; d++) {
        dq_table_cell(t, "%.0f %%", 100 * cmd_eval_real(cell_of(g, 0, d), "depth"));
        for (int l = 0; l < g->n_lengths; l++)
            number_cell(t, cmd_eval_at(cell_of(g, l, d), "acc.value"));
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
    const dq_eval *e = g->v->e;
    const dq_needle_settings *settings = dq_eval_source_of(e, &e->row[g->row])->settings;
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
        const json_t *x = cell_of(g, length, d);
        rows += count_of(x, "attention.head_rows");
        small += count_of(x, "attention.small_sums");
        dq_table_cell(t, "%.0f %%", 100 * cmd_eval_real(x, "depth"));
        cmd_eval_column_cells(t, x, column, N);
    }
    print_title(g, "Attention");
    printf(", %lld tokens, %s, |a| / sum |a|; noise counts other needles:\n",
           count_of(cell_of(g, length, 0), "length"),
           settings->query_rows ? "rows of the question" : "last row");
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
        const dq_needle_set *set = v->e->ids[v->e->row[i].ids].own;
        const dq_needle_settings *s = set->settings;
        grid g = {.v = v, .row = i, .n_depths = s->n_depths};
        g.needle = json_object_get(cmd_eval_result(v, i), "needle");
        g.n_lengths = (int)(set->n_cells / s->n_pairs / s->n_depths);
        for (; g.first < set->n_cells; g.first += g.n_lengths * g.n_depths) {
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

static const char *task(int i, const char **form)
{
    *form = "a UTF-8 text to hide numbers in";
    return i == 0 ? "needle" : NULL;
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

static dq_status choose(void *own, cmd_eval_options *run, const char *name, const char *path,
                        dq_err *err)
{
    needle_options *o = own;
    dq_needle_settings *s = &o->settings;
    const dq_eval_source source = {
        .name = name, .path = path, .kind = &dq_eval_needle, .settings = s};
    if (o->rows.text && !o->attention)
        return dq_fail(err, DQ_USAGE, "--attention-rows has nothing to act on: add --attention.");
    cmd_eval_take_lengths(run, s->length, &s->n_lengths, &s->samples, &s->seed);
    DQ_TRY(dq_options_ints(s->depth, &s->n_depths, DQ_NEEDLE_SWEEP,
                           o->depths ? o->depths : "0,25,50,75,100", "depths", 0, 100, err));
    DQ_TRY(read_pairs(s, o->needles ? o->needles : "1:1,2:2,4:2,6:2", err));
    s->generated = o->mode.at == 1;
    s->attention = o->attention;
    s->query_rows = o->rows.at == 1;
    s->depth_first = o->order.at == 1;
    return cmd_eval_add_source(run, &source, "tasks", err);
}

static void mode_row(dq_row_writer *w, const dq_needle_settings *s)
{
    DQ_PUT(w, "mode", mode_names[s->generated], "How answers are read.", DQ_WORDS(mode_names));
}

static void ll_row(dq_row_writer *w, const dq_needle_settings *s, const dq_needle_numbers *x)
{
    if (DQ_WHEN(w, !s->generated))
        DQ_METRIC(w, "ll_nats", x->ll, "Mean log-likelihood of an answer, nats; of mode forced.",
                  .when = DQ_SOMETIMES);
}

static void put_settings(dq_row_writer *w, const void *own, const dq_eval *e)
{
    const dq_eval_source *source =
        DQ_LIVE(w, cmd_eval_kind_source(&cmd_eval_needle, e->source, e->n_sources));
    const dq_needle_settings *s = source ? source->settings : NULL;
    char pair[32];
    (void)own;
    if (!DQ_BEGIN(w, OBJECT, "needle", s, "Of --task needle.", .when = DQ_OUT)) return;
    DQ_INTS(w, "lengths", s->length, s->n_lengths, "Lengths of prompts; null: those that fit.",
            .when = DQ_NULL);
    DQ_INTS(w, "depths", s->depth, s->n_depths, "Depths of the answer, in per cent.");
    DQ_LIST(w, "needles", "Needles and questions, N:R.");
    for (int i = 0; DQ_MORE(w, i, s->n_pairs); i++) {
        if (w->live) snprintf(pair, sizeof pair, "%d:%d", s->needles[i], s->requested[i]);
        DQ_PUT(w, NULL, pair, NULL);
    }
    dq_row_end(w);
    DQ_PUT(w, "samples", s->samples, "Prompts of a cell.");
    DQ_PUT(w, "seed", (int64_t)s->seed, "Of the prompts.");
    mode_row(w, s);
    DQ_PUT(w, "order", s->depth_first ? order_names[1] : NULL,
           "In which needles are asked for: that at the depth first; absent: drawn for each "
           "prompt.",
           .when = DQ_OUT, DQ_WORD("depth"));
    DQ_PUT(w, "prompt", dq_needle_form, "The form of the prompt.");
    DQ_PUT(w, "attention", s->attention ? row_names[s->query_rows] : NULL,
           "Rows whose attention is summed; null: none.", .when = DQ_NULL, DQ_WORDS(row_names));
    dq_row_end(w);
}

static const struct {
    const char *name, *about;
} norms[DQ_N_SPAN_NORMS] = {{"sum", "Over the sum of weights."},
                            {"positive", "Over the sum of positive ones."},
                            {"absolute", "Over the sum of magnitudes."}};

/* Begins an object, which the caller ends. */
static void begin_shares(dq_row_writer *w, int norm, const double *share, int64_t skipped)
{
    static const char *const about[DQ_NEEDLE_CLASSES] = {"On the first token.", "On the answer.",
                                                         "On other needles.", "On the filler.",
                                                         "On the question."};
    DQ_OBJECT(w, norms[norm].name, norms[norm].about);
    for (int c = 0; c < DQ_NEEDLE_CLASSES; c++)
        DQ_PUT(w, dq_needle_class_name[c], share[c], about[c], .when = DQ_NULL);
    DQ_PUT(w, "skipped", skipped, "Rows whose sum was too small.");
}

static void attention_rows(dq_row_writer *w, const dq_needle_settings *s,
                           const dq_needle_numbers *x)
{
    if (!DQ_BEGIN(w, OBJECT, "attention", s->attention,
                  "Where attention goes; null: not asked for.", .when = DQ_NULL))
        return;
    DQ_PUT(w, "rows", row_names[s->query_rows], "Of which rows.", DQ_WORDS(row_names));
    DQ_PUT(w, "head_rows", x->rows, "Rows of heads.");
    DQ_PUT(w, "small_sums", x->small, "Of them with small sums.");
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        begin_shares(w, k, DQ_LIVE(w, x->share[k]), w->live ? x->skipped[k] : 0);
        DQ_OBJECT(w, "table3",
                  "The same with standard errors over prompts, as Table 3 of arXiv 2410.05258 has "
                  "it.");
        DQ_METRIC(w, "answer", x->answer[k], "On the answer.");
        DQ_METRIC(w, "noise", x->noise[k], "On the filler and on other needles.");
        dq_row_end(w);
        dq_row_end(w);
    }
    if (DQ_BEGIN(w, OBJECT, "best_head", x->best_layer >= 0,
                 "The head with most on the answer; null: none.", .when = DQ_NULL)) {
        DQ_PUT(w, "layer", x->best_layer, "Its layer.");
        DQ_PUT(w, "head", x->best_head, "Its number.");
        DQ_PUT(w, "answer", x->best, "Its share.", .when = DQ_NULL);
        DQ_PUT(w, "norm", norms[DQ_NEEDLE_NORM].name, "Over which sum.",
               .words = &norms[DQ_NEEDLE_NORM].name, .n_words = 1);
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void cell_rows(dq_row_writer *w, const dq_needle_settings *s, const dq_needle_cell *c,
                      const dq_needle_numbers *x)
{
    static const char *const confused[][2] = {{"correct", "Right."},
                                              {"other_needle", "Another needle's."},
                                              {"near_miss", "Nearly right."},
                                              {"none", "None of these."}};
    DQ_ITEM(w);
    DQ_PUT(w, "length", c->length, "Tokens of a prompt.");
    DQ_PUT(w, "depth", c->depth / 100.0, "Of the answer, 0 to 1.");
    DQ_PUT(w, "n_needles", c->n, "Needles.");
    DQ_PUT(w, "n_queries", c->r, "Questions.");
    DQ_PUT(w, "n", x->n, "Prompts.");
    DQ_METRIC(w, "acc", x->acc, "Share of answers that are right.");
    DQ_METRIC(w, "all_correct", x->all_correct, "Share of prompts of which all are.");
    ll_row(w, s, x);
    DQ_OBJECT(w, "confusion", "Shares of answers.");
    for (int i = 0; i < 4; i++)
        DQ_PUT(w, confused[i][0], x->confusion[i], confused[i][1], .when = DQ_NULL);
    dq_row_end(w);
    attention_rows(w, s, x);
    dq_row_end(w);
}

static dq_status details(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = DQ_LIVE(w, &v->e->row[row]);
    const dq_needle_set *set = DQ_LIVE(w, v->e->ids[r->ids].own);
    const dq_needle_settings *s = DQ_LIVE(w, set->settings);
    dq_needle_numbers all = {0};
    if (w->live) DQ_TRY(dq_needle_numbers_of(&all, v->e, r, -1, err));
    dq_row_again(w, "metrics");
    ll_row(w, s, &all);
    dq_row_end(w);
    DQ_OBJECT(w, "needle", "Retrieval.");
    mode_row(w, s);
    DQ_PUT(w, "kv_boundary", s->generated ? "after the question" : "before the question",
           "Where the context ends.", DQ_WORD("after the question", "before the question"));
    DQ_LIST(w, "cells", "Lengths, depths and numbers of needles.");
    for (int64_t c = 0; DQ_MORE(w, c, set->n_cells); c++) {
        dq_needle_numbers x = {0};
        if (w->live) DQ_TRY(dq_needle_numbers_of(&x, v->e, r, c, err));
        cell_rows(w, s, DQ_LIVE(w, &set->cell[c]), &x);
    }
    dq_row_end(w);
    DQ_TRY(put_entries(w, v, row, err));
    dq_row_end(w);
    return DQ_OK;
}

static void put_answer(dq_row_writer *w, const dq_eval *e, const dq_eval_row *r, int64_t unit,
                       int k)
{
    const dq_needle_set *set = e->ids[r->ids].own;
    const dq_needle_answer *a = &set->prompt[unit].answer[k];
    const int64_t v = dq_needle_value(e, r, unit, k);
    int64_t n = a->to - a->from;
    double ll = 0;
    DQ_ITEM(w);
    DQ_PUT(w, "needle", a->needle, NULL);
    if (set->settings->generated) {
        for (n = 0; n < DQ_NEEDLE_NEW && r->top1[v + n] >= 0;) n++;
    } else {
        for (int64_t i = 0; i < n; i++) ll += r->logp[v + i];
        DQ_PUT(w, "from", a->from, NULL);
        DQ_PUT(w, "to", a->to, NULL);
        DQ_PUT(w, "ll", ll, NULL);
    }
    DQ_INTS(w, set->settings->generated ? "generated" : "top1", r->top1 + v, n, NULL);
    dq_row_end(w);
}

static dq_status item(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r, int64_t unit,
                      dq_err *err)
{
    const dq_needle_set *set = v->e->ids[r->ids].own;
    const dq_needle_cell *c = &set->cell[unit / set->samples];
    const dq_needle_prompt *p = &set->prompt[unit];
    const double *x = r->extra + unit * v->e->ids[r->ids].n_extra;
    DQ_PUT(w, "length", c->length, NULL);
    DQ_PUT(w, "depth", c->depth / 100.0, NULL);
    DQ_PUT(w, "sample", unit % set->samples, NULL);
    DQ_PUT(w, "filler", p->filler, NULL);
    DQ_PUT(w, "question", p->question, NULL);
    DQ_INTS(w, "prompt", p->ids, p->n, NULL);
    DQ_INTS(w, "answer", p->ids + p->n, p->n_answer, NULL);
    DQ_LIST(w, "needles", NULL);
    for (int i = 0; i < p->needles; i++) {
        DQ_ITEM(w);
        DQ_PUT(w, "city", p->city[i], NULL);
        DQ_PUT(w, "number", p->number[i], NULL);
        DQ_PUT(w, "at", p->at[i], NULL);
        DQ_PUT(w, "len", p->len[i], NULL);
        dq_row_end(w);
    }
    dq_row_end(w);
    DQ_LIST(w, "asked", NULL);
    for (int k = 0; k < p->requested; k++) put_answer(w, v->e, r, unit, k);
    dq_row_end(w);
    DQ_PUT(w, "found", (int64_t)x[DQ_NEEDLE_AT_CORRECT], NULL);
    for (int k = 0; set->settings->attention && k < DQ_N_SPAN_NORMS; k++) {
        begin_shares(w, k, x + DQ_NEEDLE_AT_SHARE + k * DQ_NEEDLE_CLASSES,
                     (int64_t)x[DQ_NEEDLE_AT_SKIPPED + k]);
        dq_row_end(w);
    }
    return err->code;
}

const cmd_eval_kind cmd_eval_needle = {
    .kind = {&dq_eval_needle},
    .size = sizeof(needle_options),
    .options = options,
    .needs = "has nothing to act on: there is no --task needle.",
    .tasks_help = "needle: a UTF-8 text to hide numbers in, see below",
    .task = task,
    .choose = choose,
    .settings = put_settings,
    .details = details,
    .tables = needle_tables,
    .tables_last = true,
    .item = item,
};
