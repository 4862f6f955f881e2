/* A row stands in the plateau's table with the range of shots that all rows of its task have.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/eval/inside.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Null where no number of shots is in range. */
static dq_status put_plateau(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    dq_icl_range range = {.n = 0};
    int of[3] = {-1, -1, -1}; /* rows: none, the reference, that of the first model */
    dq_icl_plateau x[3] = {{.interval = dq_interval_none}};
    if (w->live) {
        const dq_icl_settings *s = dq_eval_source_of(v->e, &v->e->row[row])->settings;
        range = dq_icl_range_of(v->e, row, s->plateau_from);
        of[1] = v->e->row[row].ref == row ? -1 : v->e->row[row].ref;
        of[2] = cmd_eval_cross_row(v->e, row);
    }
    for (int i = 0; range.n && i < 3; i++) {
        if (i == 0 || of[i] >= 0) DQ_TRY(dq_icl_plateau_find(&x[i], v->e, of[i], row, &range, err));
    }
    if (!DQ_BEGIN(w, OBJECT, "plateau", range.n,
                  "Mean accuracy over the larger numbers of demonstrations; null: none is in the "
                  "range.",
                  .when = DQ_NULL))
        return DQ_OK;
    DQ_PUT(w, "from", range.from, "Demonstrations that it begins with.", .min = 1);
    DQ_INTS(w, "shots", range.shots, range.n, "Those that it is over.");
    DQ_ESTIMATE(w, "acc", x[0].mean, x[0].interval,
                "The accuracy; its error is for other runs and queries, null: one query.");
    DQ_NUMBER(w, "paired", DELTA, of[1] >= 0, x[1].mean, x[1].interval, NULL,
              "Less that of the reference; null: it is the reference.", .when = DQ_NULL);
    DQ_NUMBER(w, "cross_paired", CROSS, of[2] >= 0, x[2].mean, x[2].interval,
              v->names[v->e->row[of[2]].model], "Less that of the first model of the run.",
              .when = DQ_OUT);
    dq_row_end(w);
    return DQ_OK;
}

static void runs_cell(dq_table *t, const json_t *x)
{
    const long long n = json_integer_value(json_object_get(x, "runs"));
    dq_table_cell(t, "mean of %lld run%s", n, n == 1 ? "" : "s");
}

static void permutations_cell(dq_table *t, const json_t *x)
{
    dq_table_cell(t, "margin of %lld orders",
                  json_integer_value(json_object_get(x, "permutations")));
}

static void point_cell(dq_table *t, const json_t *x)
{
    const double mean = cmd_eval_real(x, "acc_mean"), std = cmd_eval_real(x, "acc_std");
    if (isnan(std))
        dq_table_known(t, x != NULL, "%.4f", mean);
    else
        dq_table_cell(t, "%.4f \u00b1 %.4f", mean, std);
}

static void margin_cell(dq_table *t, const json_t *x)
{
    cmd_eval_cell_real(t, json_object_get(x, "acc_margin"));
}

/* "100, 200" */
static const char *shots_text(char *out, size_t cap, const int *shots, int n)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%d", i ? ", " : "", shots[i]);
    return out;
}

static void shots_cell(dq_table *t, const json_t *x)
{
    char text[256];
    const json_t *list = json_object_get(x, "shots");
    int shots[DQ_ICL_SHOTS], n = 0;
    for (; n < DQ_ICL_SHOTS && n < (int)json_array_size(list); n++)
        shots[n] = (int)json_integer_value(json_array_get(list, (size_t)n));
    dq_table_cell(t, "%s", list ? shots_text(text, sizeof text, shots, n) : "-");
}

static dq_status icl_tables(const cmd_eval_view *v, dq_err *err)
{
    static const cmd_eval_key keys[] = {DQ_KEY_MODEL, DQ_KEY_BITS, DQ_KEY_GRANULARITY, DQ_KEY_MATH,
                                        DQ_KEY_KV,    DQ_KEY_TASK, DQ_KEYS_END};
    static const cmd_eval_column
        mean[] = {DQ_COLUMN("order", "icl.demo_order", cmd_eval_cell_text),
                  DQ_COLUMN("acc", "icl.curve", runs_cell),
                  {.path = "icl.curve", .cell = point_cell, .label = "shots", .unit = "shots"}},
        margin[] = {DQ_COLUMN("order", "icl.demo_order", cmd_eval_cell_text),
                    DQ_COLUMN("acc", "icl.permutation_spread", permutations_cell),
                    {.path = "icl.permutation_spread",
                     .cell = margin_cell,
                     .label = "shots",
                     .unit = "shots"}},
        range[] = {DQ_COLUMN("order", "icl.demo_order", cmd_eval_cell_text),
                   DQ_COLUMN("shots", "icl.plateau", shots_cell),
                   DQ_COLUMN("acc", "icl.plateau.acc", cmd_eval_cell_score),
                   DQ_COLUMN("against reference", "icl.plateau.paired", cmd_eval_cell_score_change),
                   DQ_COLUMN("against first model", "icl.plateau.cross_paired",
                             cmd_eval_cell_score_change)};
    const cmd_eval_table_of curve = {keys, mean, 3, 1, 1, margin},
                            over_range = {keys, range, 5, 1, 0, NULL};
    DQ_TRY(cmd_eval_pivot(
        v, &cmd_eval_icl,
        "Accuracy by the number of demonstrations (\u00b1 standard deviation over runs):", &curve,
        err));
    return cmd_eval_pivot(v, &cmd_eval_icl,
                          "Mean accuracy over the larger numbers of demonstrations (\u00b1 "
                          "standard error for other runs and queries):",
                          &over_range, err);
}

enum { RUNS = 10, QUERIES = 250, SEED = 1 };

typedef struct icl_options {
    dq_words order;                /* each a dq_icl_order */
    int64_t runs, orders, plateau; /* 0: not given */
    dq_icl_settings common;
    dq_icl_settings setting[DQ_EVAL_SOURCES]; /* [n], of the sources */
    int n;
} icl_options;

static const cmd_eval_kind_option options[] = {
    {.opt = {.value = "icl",
             .help = "in-context learning (--task trec, trec_fine, banking77, clinic150)"}},
    DQ_KIND_OPTION(
        INT, "runs", "N", icl_options, runs, .min = 1, .max = 1e6,
        .help = "permutations of the training set, of which each run takes the first (default 10)"),
    DQ_KIND_OPTION(WORDS, "demo-order", "LIST", icl_options, order, .words = dq_icl_order_name,
                   .n_words = DQ_ICL_ORDERS,
                   .help = "random (default), class (sorted by label) or alternate (labels in "
                           "turn): orders of the same demonstrations, a row each"),
    DQ_KIND_OPTION(
        INT, "demo-permutations", "N", icl_options, orders, .min = 2, .max = 1e6,
        .help = "also score run 0's demonstrations in N random orders: the margin between them"),
    DQ_KIND_OPTION(INT, "plateau", "N", icl_options, plateau, .min = 1, .max = 1e6,
                   .help = "also the mean accuracy from N demonstrations on (default: from half of "
                           "the most that all rows of a task have)"),
    {.opt = {.name = NULL}},
};

static const char *task(int i, const char **form)
{
    if (i >= dq_icl_n_tasks) return NULL;
    *form = dq_icl_tasks[i].form;
    return dq_icl_tasks[i].name;
}

static void read_words(icl_options *o, const cmd_eval_options *run)
{
    dq_icl_settings *s = &o->common;
    s->runs = o->runs ? o->runs : RUNS;
    s->orders = o->orders;
    s->plateau_from = (int)o->plateau;
    s->queries = run->limit ? run->limit : QUERIES;
    s->seed = run->kv.seed < 0 ? SEED : (uint64_t)run->kv.seed;
    s->n_shots = run->n_shots;
    static_assert(sizeof s->shots == sizeof run->shots, "one list");
    memcpy(s->shots, run->shots, sizeof s->shots);
    if (!o->order.n) o->order.at[o->order.n++] = DQ_ICL_RANDOM;
}

/* Each order becomes a source. */
static dq_status choose(void *own, cmd_eval_options *run, const char *name, const char *path,
                        dq_err *err)
{
    icl_options *o = own;
    const dq_icl_task *of = dq_icl_task_find(name);
    const char *demos = cmd_eval_path_for(run, &run->fewshot, name, &run->fewshot_used);
    if (!demos && !of->one_file)
        return dq_fail(err, DQ_USAGE,
                       "--task %s needs demonstrations: give --fewshot-data FILE (expected %s).",
                       of->name, of->form);
    read_words(o, run);
    run->takes_shots = run->kv.draws = true;
    for (int i = 0; i < o->order.n; i++) {
        const dq_icl_order order = (dq_icl_order)o->order.at[i];
        dq_icl_settings *s = &o->setting[o->n];
        dq_eval_source source = {
            .name = of->name, .path = path, .kind = &dq_eval_icl_kind, .settings = s};
        source.title = of->name;
        source.told_by[0] = "icl";
        source.told_by[1] = "demo_order";
        source.told_by[2] = dq_icl_order_name[order];
        if (order != DQ_ICL_RANDOM)
            source.title = dq_textf(run->a, err, "%s, %s", of->name, dq_icl_order_name[order]);
        if (!source.title) return err->code;
        DQ_TRY(cmd_eval_add_source(run, &source, "tasks and orders", err));
        run->examples[run->n_sources - 1] = demos;
        *s = o->common;
        s->task = of;
        s->order = order;
        s->demos.path = demos;
        o->n++;
    }
    return DQ_OK;
}

static bool is_icl(const dq_eval_source *s)
{
    return cmd_eval_kind_of(s) == &cmd_eval_icl;
}

/* Reads queries, which come first among the inputs, and demonstrations; loading needs both. */
static dq_status load(void *own, dq_eval *e, const cmd_eval_options *run, int i,
                      cmd_eval_files *files, dq_err *err)
{
    dq_eval_source *s = &e->source[i];
    dq_icl_settings *settings = s->settings;
    dq_icl_file *demos = &settings->demos;
    char kind[64];
    (void)own;
    (void)run;
    if (i > 0 && is_icl(s - 1) && ((dq_icl_settings *)s[-1].settings)->task == settings->task) {
        s->text = s[-1].text; /* in another order of demonstrations */
        s->len = s[-1].len;
        s->own = s[-1].own;
        *demos = ((dq_icl_settings *)s[-1].settings)->demos;
        return DQ_OK;
    }
    DQ_TRY(cmd_eval_file_read(files, files->sha[files->n++], s->name, s->path, &s->text, &s->len,
                              e->a, err));
    snprintf(kind, sizeof kind, "%s demonstrations", s->name);
    if (demos->path)
        DQ_TRY(cmd_eval_file_read(files, files->sha[files->n++], kind, demos->path, &demos->text,
                                  &demos->len, e->a, err));
    return s->kind->load(e, s, err);
}

static void warn_over(dq_logger *logger, const dq_eval *e, const dq_eval_ids *ids,
                      const char *model)
{
    const dq_icl_layout *p = ids->own;
    const dq_icl_data *d = e->source[ids->source].own;
    char text[256];
    if (p->n_over) {
        dq_logger_warn(
            logger,
            "%s: --num-fewshot %s left out: not all prompts fit into the %d positions of %s, or "
            "there are fewer demonstrations (%lld)",
            e->source[ids->source].name, shots_text(text, sizeof text, p->over, p->n_over),
            e->model[ids->model].m->max_positions, model, (long long)p->demos);
    }
    if (d->n_queries_in_demos)
        dq_logger_warn(logger,
                       "%s: %lld examples have the text of a query, and are no demonstrations",
                       e->source[ids->source].name, (long long)d->n_queries_in_demos);
    if (d->n_bad_demos)
        dq_logger_warn(logger,
                       "%s: %lld ill-formed UTF-8 sequences in the demonstrations read as U+FFFD",
                       e->source[ids->source].name, (long long)d->n_bad_demos);
}

static void warn(dq_logger *logger, const cmd_eval_view *v, bool done)
{
    const dq_eval *e = v->e;
    if (done) return;
    for (int i = 0; i < e->n_ids; i++) {
        if (is_icl(&e->source[e->ids[i].source]))
            warn_over(logger, e, &e->ids[i], v->names[e->ids[i].model]);
    }
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        const dq_pass pass = {.logit = r->logit, .math = r->math};
        int64_t naive, shared;
        if (!is_icl(dq_eval_source_of(e, r)) || dq_score_shares(&pass, &r->kv)) continue;
        dq_icl_cost(&e->ids[r->ids].req, &naive, &shared);
        dq_logger_warn(
            logger,
            "%s: with --logit-granularity %s every choice is a sequence of its own: %lld tokens "
            "instead of %lld. Use --logit-granularity per-row, or a smaller --limit and "
            "--num-fewshot",
            dq_eval_source_of(e, r)->name, dq_granularity_name[r->logit.granularity],
            (long long)naive, (long long)shared);
    }
}

static void put_settings(dq_row_writer *w, const void *own, const dq_eval *e)
{
    const icl_options *o = own;
    const dq_icl_settings *x = DQ_LIVE(w, &o->common);
    (void)e;
    if (!DQ_BEGIN(w, OBJECT, "icl", o->n, "Of in-context learning; null: none.", .when = DQ_NULL))
        return;
    if (DQ_WHEN(w, x->n_shots))
        DQ_INTS(w, "num_fewshot", x->shots, x->n_shots, "Numbers of demonstrations.");
    if (DQ_WHEN(w, !x->n_shots))
        DQ_PUT(w, "num_fewshot", "as many as fit", NULL, DQ_WORD("as many as fit"));
    DQ_PUT(w, "runs", x->runs, "Draws of demonstrations.");
    DQ_LIST(w, "demo_order", "Orders of demonstrations.");
    for (int i = 0; DQ_MORE(w, i, o->order.n); i++)
        DQ_PUT(w, NULL, dq_icl_order_name[o->order.at[i]], NULL, DQ_WORDS(dq_icl_order_name));
    dq_row_end(w);
    DQ_PUT(w, "demo_permutations", x->orders, "Permutations of one draw; null: none.",
           .when = DQ_NULL | DQ_AT_0);
    DQ_PUT(w, "queries", x->queries, "Queries; 0: all.");
    DQ_PUT(w, "plateau_from", o->plateau, "Demonstrations that the plateau begins with.", .min = 1,
           .mixed = "half of the most", .when = DQ_UNSCORED);
    DQ_PUT(w, "seed", (int64_t)x->seed, "Of the draws.");
    DQ_PUT(w, "generator", "dq: Fisher-Yates with SplitMix64", "How they are drawn.");
    dq_row_end(w);
}

/* Runs, or (by_order) permutations. */
static void put_blocks(dq_row_writer *w, const dq_icl_layout *p, const dq_icl_score *score,
                       bool by_order)
{
    DQ_LIST(w, by_order ? "permutations" : "runs", by_order ? "Each permutation." : "Each draw.");
    for (int64_t i = 0; DQ_MORE(w, i, p->n_blocks); i++) {
        const dq_icl_block *b = DQ_LIVE(w, &p->block[i]);
        if (w->live && (b->order != 0) != by_order) continue;
        DQ_ITEM(w);
        DQ_PUT(w, by_order ? "permutation" : "run", by_order ? b->order : b->run, "Its number.");
        DQ_PUT(w, "shots", b->shots, "Demonstrations.");
        DQ_PUT(w, "n", p->n_queries, "Queries.");
        DQ_METRIC(w, "acc", score[i].acc, "Accuracy.");
        DQ_METRIC(w, "acc_ll", score[i].acc_ll, "By log-likelihood of whole labels.");
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void put_points(dq_row_writer *w, const dq_icl_layout *p, const dq_icl_score *score,
                       bool by_order, bool there)
{
    DQ_LIST(w, by_order ? "permutation_spread" : "curve", "Over numbers of demonstrations.");
    for (int i = 0; there && DQ_MORE(w, i, p->n_shots); i++) {
        dq_icl_point x = {0};
        if (w->live) x = dq_icl_point_of(p, score, p->shots[i], by_order);
        DQ_ITEM(w);
        DQ_PUT(w, "shots", p->shots[i], "Demonstrations.");
        DQ_PUT(w, by_order ? "permutations" : "runs", x.blocks,
               by_order ? "Permutations." : "Draws.");
        DQ_PUT(w, "acc_mean", x.mean, "Mean accuracy.", .when = DQ_NULL);
        DQ_PUT(w, "acc_min", x.min, "Least.", .when = DQ_NULL);
        DQ_PUT(w, "acc_max", x.max, "Most.", .when = DQ_NULL);
        DQ_PUT(w, "acc_margin", x.max - x.min, "Most less least.", .when = DQ_NULL);
        DQ_PUT(w, "acc_std", x.std, "Standard deviation.", .when = DQ_NULL);
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void order_row(dq_row_writer *w, const dq_icl_settings *s)
{
    DQ_PUT(w, "demo_order", dq_icl_order_name[s->order], "Order of demonstrations.",
           DQ_WORDS(dq_icl_order_name));
}

static dq_status details(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = DQ_LIVE(w, &v->e->row[row]);
    const dq_icl_layout *p = DQ_LIVE(w, v->e->ids[r->ids].own);
    const dq_eval_source *source = DQ_LIVE(w, dq_eval_source_of(v->e, r));
    const dq_icl_settings *s = DQ_LIVE(w, source->settings);
    const dq_icl_data *d = DQ_LIVE(w, source->own);
    dq_icl_score *score = dq_block_new(w->live ? (size_t)p->n_blocks : 1, sizeof *score, err);
    if (!score || (w->live && dq_icl_scores(v->e, r, score, err) != DQ_OK)) {
        dq_block_free(score);
        return err->code;
    }
    DQ_OBJECT(w, "icl", "In-context learning.");
    order_row(w, s);
    DQ_PUT(w, "labels", d->n_labels, "Labels.");
    DQ_PUT(w, "queries", p->n_queries, "Queries.");
    DQ_PUT(w, "queries_dropped", p->queries_dropped, "Queries that were too long.");
    DQ_PUT(w, "demonstrations", p->demos, "Demonstrations that are drawn from.");
    DQ_PUT(w, "demonstrations_dropped", p->demos_dropped, "Demonstrations that were too long.");
    DQ_INTS(w, "shots_left_out", p->over, p->n_over, "Numbers of demonstrations that do not fit.");
    put_blocks(w, p, score, false);
    put_points(w, p, score, false, true);
    put_blocks(w, p, score, true);
    put_points(w, p, score, true, DQ_WHEN(w, s->orders));
    dq_block_free(score);
    DQ_TRY(put_plateau(w, v, row, err));
    dq_row_end(w);
    return DQ_OK;
}

static dq_status item(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *row, int64_t k,
                      dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, row);
    const dq_icl_data *d = s->own;
    const dq_icl_layout *p = v->e->ids[row->ids].own;
    const dq_request *r = &v->e->ids[row->ids].req.req[k];
    const dq_icl_block *b = &p->block[r->item / p->n_queries];
    const int32_t query = p->query[r->item % p->n_queries];
    dq_strbuf prompt = {0};
    dq_icl_prompt(&prompt, v->e, row, r->item, err);
    DQ_PUT(w, "item", r->item, NULL);
    DQ_PUT(w, "choice", r->choice, NULL);
    DQ_PUT(w, "context", json_stringn(prompt.s ? prompt.s : "", prompt.n), NULL);
    DQ_PUT(w, "continuation", p->label[r->choice].text, NULL);
    cmd_eval_request_rows(w, v, row, r, p->label[r->choice].n);
    DQ_PUT(w, "shots", b->shots, NULL);
    DQ_PUT(w, "run", b->run, NULL);
    order_row(w, s->settings);
    DQ_PUT(w, "permutation", b->order, NULL);
    DQ_PUT(w, "query", query, NULL);
    DQ_PUT(w, "gold", d->queries.ex[query].label, NULL);
    DQ_OBJECT(w, "pick", NULL);
    for (int m = 0; m < 2; m++)
        DQ_PUT(w, s->kind->metric[m], dq_icl_pick(v->e, row, m, r->item), NULL);
    dq_row_end(w);
    dq_block_free(prompt.s);
    return err->code;
}

const cmd_eval_kind cmd_eval_icl = {
    .kind = {&dq_eval_icl_kind},
    .size = sizeof(icl_options),
    .options = options,
    .needs = "is for in-context learning; there is no such --task (trec, trec_fine, banking77, "
             "clinic150).",
    .tasks_help = "trec, trec_fine, banking77, clinic150: the official files, in-context learning",
    .task = task,
    .choose = choose,
    .load = load,
    .settings = put_settings,
    .warn = warn,
    .details = details,
    .tables = icl_tables,
    .item = item,
};
