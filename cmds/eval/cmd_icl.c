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

/* "plateau": a row's accuracy over its range, and its differences to the reference and to the first
 * model; null where no number of shots is in range. */
static dq_status put_plateau(json_t *icl, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_icl_settings *s = dq_eval_source_of(e, &e->row[row])->settings;
    const dq_icl_range range = dq_icl_range_of(e, row, s->plateau_from);
    const int ref = e->row[row].ref, other = cmd_eval_cross_row(e, row);
    json_t *o = range.n ? json_object() : json_null();
    dq_icl_plateau x;
    json_object_set_new(icl, "plateau", o);
    if (range.n == 0) return DQ_OK;
    DQ_TRY(dq_icl_plateau_find(&x, e, -1, row, &range, err));
    json_object_set_new(o, "from", json_integer(range.from));
    json_object_set_new(o, "shots", cmd_eval_ints_json(range.shots, range.n));
    json_t *acc = cmd_eval_metric_json(x.mean);
    json_object_set_new(acc, "interval", cmd_eval_interval_json(x.interval));
    json_object_set_new(o, "acc", acc);
    if (ref != row) DQ_TRY(dq_icl_plateau_find(&x, e, ref, row, &range, err));
    json_object_set_new(o, "paired",
                        ref != row ? cmd_eval_delta_json(x.mean, x.interval) : json_null());
    if (other < 0) return DQ_OK;
    DQ_TRY(dq_icl_plateau_find(&x, e, other, row, &range, err));
    json_t *cross = cmd_eval_delta_json(x.mean, x.interval);
    json_object_set_new(cross, "model", json_string(v->names[e->row[other].model]));
    json_object_set_new(o, "cross_paired", cross);
    return DQ_OK;
}

/* Numbers of shots that some row has, rising. */
static int all_shots(const dq_eval *e, int *shots)
{
    int n = 0;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_icl_plan *p = e->ids[e->row[i].ids].own;
        if (!cmd_eval_kind_shows(&cmd_eval_icl, e, i)) continue;
        for (int k = 0; k < p->n_shots; k++) {
            int at = 0;
            while (at < n && shots[at] < p->shots[k]) at++;
            if (n == DQ_ICL_SHOTS || (at < n && shots[at] == p->shots[k])) continue;
            memmove(&shots[at + 1], &shots[at], (size_t)(n++ - at) * sizeof *shots);
            shots[at] = p->shots[k];
        }
    }
    return n;
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
static const char *shots_text(char *out, size_t cap, const json_t *shots)
{
    size_t i, n = 0;
    const json_t *x;
    out[0] = 0;
    json_array_foreach(shots, i, x)
    {
        if (n < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%lld", i ? ", " : "", json_integer_value(x));
    }
    return out;
}

static void shots_cell(dq_table *t, const json_t *x)
{
    char text[256];
    const json_t *shots = json_object_get(x, "shots");
    dq_table_cell(t, "%s", shots ? shots_text(text, sizeof text, shots) : "-");
}

static dq_status icl_tables(const cmd_eval_view *v, dq_err *err)
{
    enum { HEAD = 2 };
    static const cmd_eval_key keys[] = {DQ_KEY_MODEL, DQ_KEY_BITS, DQ_KEY_GRANULARITY, DQ_KEY_MATH,
                                        DQ_KEY_KV,    DQ_KEY_TASK, DQ_KEYS_END};
    static const cmd_eval_column range[] = {
        DQ_COLUMN("order", "icl.demo_order", cmd_eval_cell_text),
        DQ_COLUMN("shots", "icl.plateau", shots_cell),
        DQ_COLUMN("acc", "icl.plateau.acc", cmd_eval_cell_score),
        DQ_COLUMN("against reference", "icl.plateau.paired", cmd_eval_cell_score_change),
        DQ_COLUMN("against first model", "icl.plateau.cross_paired", cmd_eval_cell_score_change)};
    cmd_eval_column mean[HEAD + DQ_ICL_SHOTS] = {range[0],
                                                 DQ_COLUMN("acc", "icl.curve", runs_cell)};
    cmd_eval_column margin[HEAD + DQ_ICL_SHOTS] = {
        range[0], DQ_COLUMN("acc", "icl.permutation_spread", permutations_cell)};
    char title[DQ_ICL_SHOTS][32];
    int shots[DQ_ICL_SHOTS];
    const int n = all_shots(v->e, shots);
    if (n == 0) return DQ_OK;
    for (int i = 0; i < n; i++) {
        snprintf(title[i], sizeof title[i], "%d shot%s", shots[i], shots[i] == 1 ? "" : "s");
        mean[HEAD + i] =
            (cmd_eval_column){title[i], "icl.curve", point_cell, .label = "shots", .at = shots[i]};
        margin[HEAD + i] = (cmd_eval_column){title[i], "icl.permutation_spread", margin_cell,
                                             .label = "shots", .at = shots[i]};
    }
    const cmd_eval_table_of curve = {keys, mean, HEAD + n, 1, margin},
                            over_range = {keys, range, 5, 1, NULL};
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

static const char *task(int i)
{
    return i < dq_icl_n_tasks ? dq_icl_tasks[i].name : NULL;
}

static const char *form(const char *name)
{
    return dq_icl_task_find(name)->form;
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
    for (int i = 0; i < o->order.n; i++) {
        const dq_icl_order order = (dq_icl_order)o->order.at[i];
        dq_icl_settings *s = &o->setting[o->n];
        dq_eval_source source = {
            .name = of->name, .path = path, .kind = &dq_eval_icl_kind, .settings = s};
        source.title = of->name;
        if (order != DQ_ICL_RANDOM)
            source.title = dq_textf(run->a, err, "%s, %s", of->name, dq_icl_order_name[order]);
        if (!source.title) return err->code;
        DQ_TRY(cmd_eval_add_source(run, &source, "tasks and orders", err));
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
    const dq_icl_plan *p = ids->own;
    const dq_icl_data *d = e->source[ids->source].own;
    char text[256];
    if (p->n_over) {
        json_t *over = cmd_eval_ints_json(p->over, p->n_over);
        dq_logger_warn(
            logger,
            "%s: --num-fewshot %s left out: not all prompts fit into the %d positions of %s, or "
            "there are fewer demonstrations (%lld)",
            e->source[ids->source].name, shots_text(text, sizeof text, over),
            e->model[ids->model].m->max_positions, model, (long long)p->demos);
        json_decref(over);
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

static void put_settings(json_t *settings, const void *own, const dq_eval *e)
{
    const icl_options *o = own;
    const dq_icl_settings *x = &o->common;
    (void)e;
    json_object_set_new(settings, "icl", json_null());
    if (o->n == 0) return;
    json_t *orders = json_array();
    for (int i = 0; i < o->order.n; i++)
        json_array_append_new(orders, json_string(dq_icl_order_name[o->order.at[i]]));
    json_object_set_new(
        settings, "icl",
        json_pack(
            "{s:o,s:I,s:o,s:o,s:I,s:o,s:I,s:s}", "num_fewshot",
            x->n_shots ? cmd_eval_ints_json(x->shots, x->n_shots) : json_string("as many as fit"),
            "runs", (json_int_t)x->runs, "demo_order", orders, "demo_permutations",
            x->orders ? json_integer((json_int_t)x->orders) : json_null(), "queries",
            (json_int_t)x->queries, "plateau_from",
            o->plateau ? json_integer((json_int_t)o->plateau) : json_string("half of the most"),
            "seed", (json_int_t)x->seed, "generator", "dq: Fisher-Yates with SplitMix64"));
}

static json_t *block_json(const dq_icl_block *b, const dq_icl_score *s, int64_t queries)
{
    return json_pack("{s:I,s:I,s:I,s:o,s:o}", b->order ? "permutation" : "run",
                     (json_int_t)(b->order ? b->order : b->run), "shots", (json_int_t)b->shots, "n",
                     (json_int_t)queries, "acc", cmd_eval_metric_json(s->acc), "acc_ll",
                     cmd_eval_metric_json(s->acc_ll));
}

static json_t *point_json(const dq_icl_plan *p, const dq_icl_score *score, int shots, bool by_order)
{
    const dq_icl_point x = dq_icl_point_of(p, score, shots, by_order);
    return json_pack("{s:i,s:I,s:o,s:o,s:o,s:o,s:o}", "shots", shots,
                     by_order ? "permutations" : "runs", (json_int_t)x.blocks, "acc_mean",
                     dq_document_real(x.mean), "acc_min", dq_document_real(x.min), "acc_max",
                     dq_document_real(x.max), "acc_margin", dq_document_real(x.max - x.min),
                     "acc_std", dq_document_real(x.std));
}

static dq_status details(json_t *row, const cmd_eval_view *v, int index, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[index];
    const dq_icl_plan *p = v->e->ids[r->ids].own;
    const dq_eval_source *source = dq_eval_source_of(v->e, r);
    const dq_icl_settings *s = source->settings;
    const dq_icl_data *d = source->own;
    dq_icl_score *score = dq_block_new((size_t)p->n_blocks, sizeof *score, err);
    if (!score || dq_icl_scores(v->e, r, score, err) != DQ_OK) {
        dq_block_free(score);
        return err->code;
    }
    json_t *runs = json_array(), *curve = json_array();
    json_t *orders = json_array(), *spread = json_array();
    for (int64_t b = 0; b < p->n_blocks; b++)
        json_array_append_new(p->block[b].order ? orders : runs,
                              block_json(&p->block[b], &score[b], p->n_queries));
    for (int i = 0; i < p->n_shots; i++) {
        json_array_append_new(curve, point_json(p, score, p->shots[i], false));
        if (s->orders) json_array_append_new(spread, point_json(p, score, p->shots[i], true));
    }
    dq_block_free(score);
    json_t *o = json_pack("{s:s,s:i,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:o}", "demo_order",
                          dq_icl_order_name[s->order], "labels", d->n_labels, "queries",
                          (json_int_t)p->n_queries, "queries_dropped",
                          (json_int_t)p->queries_dropped, "demonstrations", (json_int_t)p->demos,
                          "demonstrations_dropped", (json_int_t)p->demos_dropped, "shots_left_out",
                          cmd_eval_ints_json(p->over, p->n_over), "runs", runs, "curve", curve,
                          "permutations", orders, "permutation_spread", spread);
    json_object_set_new(row, "icl", o);
    return put_plateau(o, v, index, err);
}

static void told_by(json_t *result, const dq_eval_source *source)
{
    const dq_icl_settings *s = source->settings;
    json_object_set_new(result, "icl",
                        json_pack("{s:s}", "demo_order", dq_icl_order_name[s->order]));
}

static dq_status item(json_t *o, const cmd_eval_view *v, const dq_eval_row *row, int64_t unit,
                      dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, row);
    const dq_icl_settings *set = s->settings;
    const dq_icl_data *d = s->own;
    const dq_icl_plan *p = v->e->ids[row->ids].own;
    const dq_icl_block *b = &p->block[unit / p->n_queries];
    const int32_t query = p->query[unit % p->n_queries];
    (void)err;
    json_object_update_new(
        o, json_pack("{s:I,s:I,s:s,s:I,s:i,s:i,s:{s:i,s:i}}", "shots", (json_int_t)b->shots, "run",
                     (json_int_t)b->run, "demo_order", dq_icl_order_name[set->order], "permutation",
                     (json_int_t)b->order, "query", query, "gold", d->queries.ex[query].label,
                     "pick", s->kind->metric[0], dq_icl_pick(v->e, row, 0, unit),
                     s->kind->metric[1], dq_icl_pick(v->e, row, 1, unit)));
    return DQ_OK;
}

static const char *const unscored[] = {"plateau_from", NULL};

const cmd_eval_kind cmd_eval_icl = {
    .name = "icl",
    .kind = {&dq_eval_icl_kind},
    .cli = {.size = sizeof(icl_options),
            .options = options,
            .tasks_help =
                "trec, trec_fine, banking77, clinic150: the official files, in-context learning",
            .has = "choices",
            .task = task,
            .form = form,
            .own_examples = true,
            .needs = "is for in-context learning; there is no such --task (trec, trec_fine, "
                     "banking77, clinic150).",
            .choose = choose},
    .load = load,
    .warn = warn,
    .settings = put_settings,
    .unscored = unscored,
    .out = {.details = details, .told_by = told_by, .tables = icl_tables, .item = item},
};
