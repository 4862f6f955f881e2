/* A row stands in the plateau's table with the range of shots that all rows of its task have.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/inside.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void icl_shots_text(char *out, size_t cap, const int *shots, int n)
{
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        size_t used = strlen(out);
        snprintf(out + used, cap - used, "%s%d", i ? ", " : "", shots[i]);
    }
}

static dq_icl_score *icl_scores(const dq_eval *e, const dq_eval_row *r, dq_err *err)
{
    const dq_icl_plan *p = e->ids[r->ids].own;
    dq_icl_score *score = dq_block_new((size_t)p->n_blocks, sizeof *score, err);
    if (score && dq_icl_scores(e, r, score, err) == DQ_OK) return score;
    dq_block_free(score);
    return NULL;
}

/* A row's accuracy over its range, and its difference to the reference and to the first model. */
typedef struct plateau {
    dq_icl_range range; /* n 0: there is none */
    dq_icl_plateau acc, delta, cross;
    int before, cross_row; /* rows; -1: it is the reference, there is none */
} plateau;

static dq_status plateau_of(plateau *x, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_icl_settings *s = dq_eval_source_of(e, &e->row[row])->settings;
    *x = (plateau){.before = e->row[row].ref == row ? -1 : e->row[row].ref};
    x->range = dq_icl_range_of(e, row, s->plateau_from);
    x->cross_row = cmd_eval_cross_row(e, row);
    if (x->range.n == 0) return DQ_OK;
    DQ_TRY(dq_icl_plateau_find(&x->acc, e, -1, row, &x->range, err));
    if (x->before >= 0) DQ_TRY(dq_icl_plateau_find(&x->delta, e, x->before, row, &x->range, err));
    if (x->cross_row >= 0)
        DQ_TRY(dq_icl_plateau_find(&x->cross, e, x->cross_row, row, &x->range, err));
    return DQ_OK;
}

static json_t *plateau_number(const char *name, const dq_icl_plateau *x)
{
    json_t *o = json_object();
    json_object_set_new(o, name, dq_document_real(x->mean.value));
    json_object_set_new(o, "stderr", dq_document_real(x->mean.std_err));
    json_object_set_new(o, "interval", cmd_eval_interval_json(x->interval));
    return o;
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
static void shots_cell(dq_table *t, const json_t *x)
{
    char text[256] = "-";
    const json_t *shots;
    size_t i, n = 0;
    json_array_foreach(json_object_get(x, "shots"), i, shots)
    {
        if (n < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i ? ", " : "",
                                  json_integer_value(shots));
    }
    dq_table_cell(t, "%s", text);
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
    {{.name = "runs",
      .kind = DQ_OPT_INT,
      .min = 1,
      .max = 1e6,
      .value = "N",
      .help = "permutations of the training set, of which each run takes the first (default "
              "10)"},
     offsetof(icl_options, runs)},
    {{.name = "demo-order",
      .kind = DQ_OPT_WORDS,
      .words = dq_icl_order_name,
      .n_words = DQ_ICL_ORDERS,
      .value = "LIST",
      .help = "random (default), class (sorted by label) or alternate (labels in turn): "
              "orders of the same demonstrations, a row each"},
     offsetof(icl_options, order)},
    {{.name = "demo-permutations",
      .kind = DQ_OPT_INT,
      .min = 2,
      .max = 1e6,
      .value = "N",
      .help = "also score run 0's demonstrations in N random orders: the margin between them"},
     offsetof(icl_options, orders)},
    {{.name = "plateau",
      .kind = DQ_OPT_INT,
      .min = 1,
      .max = 1e6,
      .value = "N",
      .help = "also the mean accuracy from N demonstrations on (default: from half of the most "
              "that all rows of a task have)"},
     offsetof(icl_options, plateau)},
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

static dq_status read_words(void *own, const cmd_eval_options *run, dq_arena *a, dq_err *err)
{
    icl_options *o = own;
    dq_icl_settings *s = &o->common;
    (void)a;
    (void)err;
    s->runs = o->runs ? o->runs : RUNS;
    s->orders = o->orders;
    s->plateau_from = (int)o->plateau;
    s->queries = run->limit ? run->limit : QUERIES;
    s->seed = run->kv.seed < 0 ? SEED : (uint64_t)run->kv.seed;
    s->n_shots = run->n_shots;
    static_assert(sizeof s->shots == sizeof run->shots, "one list");
    memcpy(s->shots, run->shots, sizeof s->shots);
    if (!o->order.n) o->order.at[o->order.n++] = DQ_ICL_RANDOM;
    return DQ_OK;
}

/* Each order becomes a source. */
static dq_status choose(void *own, cmd_eval_options *run, const char *name, const char *path,
                        dq_arena *a, dq_err *err)
{
    icl_options *o = own;
    const dq_icl_task *of = dq_icl_task_find(name);
    const char *demos = cmd_eval_path_for(run, &run->fewshot, name, &run->fewshot_used);
    if (!demos && !of->one_file)
        return dq_fail(err, DQ_USAGE,
                       "--task %s needs demonstrations: give --fewshot-data FILE (expected "
                       "%s).",
                       of->name, of->form);
    for (int i = 0; i < o->order.n; i++) {
        const dq_icl_order order = (dq_icl_order)o->order.at[i];
        dq_icl_settings *s = &o->setting[o->n];
        dq_eval_source source = {
            .name = of->name, .path = path, .kind = &dq_eval_icl_kind, .settings = s};
        source.title = of->name;
        if (order != DQ_ICL_RANDOM)
            source.title = dq_textf(a, err, "%s, %s", of->name, dq_icl_order_name[order]);
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
        icl_shots_text(text, sizeof text, p->over, p->n_over);
        dq_logger_warn(
            logger,
            "%s: --num-fewshot %s left out: not all prompts fit into the %d positions of %s, or "
            "there are fewer demonstrations (%lld)",
            e->source[ids->source].name, text, e->model[ids->model].m->max_positions, model,
            (long long)p->demos);
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

static void warn_plan(dq_logger *logger, const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
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
    json_t *s = json_object(), *shots = json_array(), *orders = json_array();
    if (o->n == 0) {
        json_object_set_new(settings, "icl", json_null());
        json_decref(s);
        json_decref(shots);
        json_decref(orders);
        return;
    }
    for (int i = 0; i < x->n_shots; i++) json_array_append_new(shots, json_integer(x->shots[i]));
    for (int i = 0; i < o->order.n; i++)
        json_array_append_new(orders, json_string(dq_icl_order_name[o->order.at[i]]));
    if (!x->n_shots) json_decref(shots);
    json_object_set_new(s, "num_fewshot", x->n_shots ? shots : json_string("as many as fit"));
    json_object_set_new(s, "runs", json_integer((json_int_t)x->runs));
    json_object_set_new(s, "demo_order", orders);
    json_object_set_new(s, "demo_permutations",
                        x->orders ? json_integer((json_int_t)x->orders) : json_null());
    json_object_set_new(s, "queries", json_integer((json_int_t)x->queries));
    json_object_set_new(s, "plateau_from",
                        o->plateau ? json_integer((json_int_t)o->plateau)
                                   : json_string("half of the most"));
    json_object_set_new(s, "seed", json_integer((json_int_t)x->seed));
    json_object_set_new(s, "generator", json_string("dq: Fisher-Yates with SplitMix64"));
    json_object_set_new(settings, "icl", s);
}

static json_t *block_json(const dq_icl_block *b, const dq_icl_score *s, int64_t queries)
{
    json_t *o = json_object();
    if (b->order == 0)
        json_object_set_new(o, "run", json_integer((json_int_t)b->run));
    else
        json_object_set_new(o, "permutation", json_integer((json_int_t)b->order));
    json_object_set_new(o, "shots", json_integer((json_int_t)b->shots));
    json_object_set_new(o, "n", json_integer((json_int_t)queries));
    json_object_set_new(o, "acc", dq_document_metric(s->acc.value, s->acc.std_err));
    json_object_set_new(o, "acc_ll", dq_document_metric(s->acc_ll.value, s->acc_ll.std_err));
    return o;
}

static json_t *point_json(int shots, const char *what, const dq_icl_point *x)
{
    json_t *o = json_object();
    json_object_set_new(o, "shots", json_integer(shots));
    json_object_set_new(o, what, json_integer((json_int_t)x->blocks));
    json_object_set_new(o, "acc_mean", dq_document_real(x->mean));
    json_object_set_new(o, "acc_min", dq_document_real(x->min));
    json_object_set_new(o, "acc_max", dq_document_real(x->max));
    json_object_set_new(o, "acc_margin", dq_document_real(x->max - x->min));
    json_object_set_new(o, "acc_std", dq_document_real(x->std));
    return o;
}

static dq_status details(json_t *row, const cmd_eval_view *v, int index, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[index];
    const dq_icl_plan *p = v->e->ids[r->ids].own;
    const dq_eval_source *source = dq_eval_source_of(v->e, r);
    const dq_icl_settings *s = source->settings;
    const dq_icl_data *d = source->own;
    dq_icl_score *score = icl_scores(v->e, r, err);
    if (!score) return err->code;
    json_t *o = json_object();
    json_object_set_new(o, "demo_order", json_string(dq_icl_order_name[s->order]));
    json_object_set_new(o, "labels", json_integer(d->n_labels));
    json_object_set_new(o, "queries", json_integer((json_int_t)p->n_queries));
    json_object_set_new(o, "queries_dropped", json_integer((json_int_t)p->queries_dropped));
    json_object_set_new(o, "demonstrations", json_integer((json_int_t)p->demos));
    json_object_set_new(o, "demonstrations_dropped", json_integer((json_int_t)p->demos_dropped));
    json_t *over = json_array();
    for (int i = 0; i < p->n_over; i++) json_array_append_new(over, json_integer(p->over[i]));
    json_object_set_new(o, "shots_left_out", over);
    json_t *runs = json_array(), *orders = json_array(), *curve = json_array();
    json_t *spread = json_array();
    for (int64_t b = 0; b < p->n_blocks; b++)
        json_array_append_new(p->block[b].order ? orders : runs,
                              block_json(&p->block[b], &score[b], p->n_queries));
    for (int i = 0; i < p->n_shots; i++) {
        dq_icl_point x = dq_icl_point_of(p, score, p->shots[i], false);
        json_array_append_new(curve, point_json(p->shots[i], "runs", &x));
        x = dq_icl_point_of(p, score, p->shots[i], true);
        if (s->orders) json_array_append_new(spread, point_json(p->shots[i], "permutations", &x));
    }
    json_object_set_new(o, "runs", runs);
    json_object_set_new(o, "curve", curve);
    json_object_set_new(o, "permutations", orders);
    json_object_set_new(o, "permutation_spread", spread);
    json_object_set_new(row, "icl", o);
    dq_block_free(score);
    /* "plateau" is null where no number of shots is in range. */
    plateau x;
    DQ_TRY(plateau_of(&x, v, index, err));
    json_t *entry = json_null(), *shots = json_array();
    for (int i = 0; i < x.range.n; i++)
        json_array_append_new(shots, json_integer(x.range.shots[i]));
    if (x.range.n) {
        entry = json_object();
        json_object_set_new(entry, "from", json_integer(x.range.from));
        json_object_set(entry, "shots", shots);
        json_object_set_new(entry, "acc", plateau_number("value", &x.acc));
        json_object_set_new(entry, "paired",
                            x.before >= 0 ? plateau_number("delta", &x.delta) : json_null());
    }
    if (x.range.n && x.cross_row >= 0) {
        json_t *cross = plateau_number("delta", &x.cross);
        json_object_set_new(cross, "model", json_string(v->names[v->e->row[x.cross_row].model]));
        json_object_set_new(entry, "cross_paired", cross);
    }
    json_decref(shots);
    json_object_set_new(o, "plateau", entry);
    return DQ_OK;
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
    const dq_eval *e = v->e;
    const dq_eval_source *s = dq_eval_source_of(e, row);
    const dq_icl_settings *set = s->settings;
    const dq_icl_data *d = s->own;
    const dq_icl_plan *p = e->ids[row->ids].own;
    const dq_icl_block *b = &p->block[unit / p->n_queries];
    json_t *pick = json_object();
    (void)err;
    json_object_set_new(o, "shots", json_integer((json_int_t)b->shots));
    json_object_set_new(o, "run", json_integer((json_int_t)b->run));
    json_object_set_new(o, "demo_order", json_string(dq_icl_order_name[set->order]));
    json_object_set_new(o, "permutation", json_integer((json_int_t)b->order));
    json_object_set_new(o, "query", json_integer(p->query[unit % p->n_queries]));
    json_object_set_new(o, "gold",
                        json_integer(d->queries.ex[p->query[unit % p->n_queries]].label));
    json_object_set_new(o, "pick", pick);
    for (int m = 0; m < 2; m++)
        json_object_set_new(pick, s->kind->metric[m], json_integer(dq_icl_pick(e, row, m, unit)));
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
            .read = read_words,
            .needs = "is for in-context learning; there is no such --task (trec, trec_fine, "
                     "banking77, clinic150).",
            .choose = choose},
    .load = load,
    .warn_plan = warn_plan,
    .settings = put_settings,
    .unscored = unscored,
    .out = {.details = details, .told_by = told_by, .tables = icl_tables, .item = item},
};
