/* eval_plan: see eval_plan.h. Ids are counted for each sequence by itself, the prefix included, shared or not; of a
 * text, those of its windows. The table and JSON walk the same rows.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_plan.h"

#include "cmds/cli/stdout.h"
#include "cmds/cli/table.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/eval/eval_kv.h"
#include "cmds/eval/eval_sources.h"
#include "eval/score.h"
#include "record/record.h"

#include <stdio.h>

/* What one row has to do. */
typedef struct work {
    int64_t units;     /* items or windows */
    int64_t sequences; /* choices or windows */
    int64_t ids;       /* that the sequences feed, each counted for itself */
} work;

/* Nothing of these is of a row that another one is computed for. */
static bool is_computed(const dq_eval *e, const dq_eval_row *r)
{
    return r == &e->row[r->same];
}

static work work_of(const dq_eval *e, const dq_eval_row *r)
{
    const dq_requests *q = &e->ids[r->ids].req;
    const dq_windows *win = &e->ids[r->ids].win;
    bool windows = dq_eval_source_of(e, r)->kind->windows;
    work w = {.units = dq_eval_units(e, r), .sequences = windows ? win->n : q->n};
    for (int64_t i = 0; windows && i < win->n; i++) w.ids += win->win[i].n;
    for (int64_t k = 0; !windows && k < q->n; k++)
        w.ids += dq_items_shared_prefix(q, q->req[k].item)->n + dq_score_fed(&q->req[k]);
    return w;
}

static void print_row(dq_table *t, const cmd_eval_view *v, const dq_eval_row *r)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, r);
    work w = work_of(v->e, r);
    char label[DQ_KV_LABEL];
    dq_table_cell(t, "%s", v->names[r->model]);
    dq_table_cell(t, "%d", r->logit.bits);
    dq_table_cell(t, "%s", r->logit.bits == 16 ? "-" : dq_granularity_name[r->logit.granularity]);
    if (cmd_eval_kv_swept(v->e))
        dq_table_cell(t, "%s", dq_kv_report_label(label, sizeof label, &r->kv));
    dq_table_cell(t, "%s", s->name);
    dq_table_cell(t, "%lld", (long long)s->n_shots);
    dq_table_cell(t, "%lld", (long long)w.units);
    dq_table_cell(t, "%lld", (long long)w.sequences);
    dq_table_cell(t, "%lld", (long long)w.ids);
    if (is_computed(v->e, r))
        dq_table_cell(t, "%s", r->shown ? "result" : "reference");
    else
        dq_table_cell(t, "the same as %s",
                      dq_kv_report_label(label, sizeof label, &v->e->row[r->same].kv));
}

dq_status cmd_eval_plan_print(const cmd_eval_view *v, double seconds, dq_err *err)
{
    char time[32];
    const char *titles[12] = {"model", "logit bits", "granularity"};
    int n = 3;
    int64_t all = 0;
    dq_table *t;
    if (cmd_eval_kv_swept(v->e)) titles[n++] = "KV cache";
    titles[n++] = "task";
    const int keys = n;
    titles[n++] = "examples";
    titles[n++] = "items or windows";
    titles[n++] = "sequences";
    titles[n++] = "tokens";
    titles[n++] = "computed as";
    DQ_TRY(dq_table_new(&t, titles, n, err));
    dq_table_keys(t, keys);
    for (int i = 0; i < v->e->n_rows; i++) {
        print_row(t, v, &v->e->row[i]);
        if (is_computed(v->e, &v->e->row[i])) all += work_of(v->e, &v->e->row[i]).ids;
    }
    if (dq_table_print(t, err) == DQ_OK)
        printf("rows: %d, tokens: %lld, about %s; nothing was scored (--dry-run)\n", v->e->n_rows,
               (long long)all, dq_document_time_text(time, sizeof time, seconds));
    dq_table_free(t);
    return err->code == DQ_OK ? dq_stdout_flush(err) : err->code;
}

void cmd_eval_plan_say(dq_logger *logger, const cmd_eval_view *v)
{
    int64_t ids = 0;
    int shown = 0, computed = 0;
    char same[64] = "";
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        if (!is_computed(v->e, r)) continue;
        ids += work_of(v->e, r).ids;
        shown += r->shown;
        computed++;
    }
    if (computed < v->e->n_rows)
        snprintf(same, sizeof same, "; %d more results are of the same caches",
                 v->e->n_rows - computed);
    dq_logger_say(
        logger,
        "%d results and %d references to compute, %lld tokens in all (--dry-run lists them)%s",
        shown, computed - shown, (long long)ids, same);
}

static void add_row(json_t *results, const cmd_eval_view *v, int row)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_eval_source *s = dq_eval_source_of(v->e, r);
    work w = work_of(v->e, r);
    json_t *o = json_object();
    json_object_set_new(o, "model", json_string(v->names[r->model]));
    json_object_set_new(o, "reference", json_string(v->names[v->e->row[r->ref].model]));
    json_object_set_new(o, "shown", json_boolean(r->shown));
    json_object_set_new(o, "same_as", cmd_eval_same_as_json(v->e, row));
    json_object_set_new(o, "logit_bits", json_integer(r->logit.bits));
    json_object_set_new(o, "logit_granularity",
                        json_string(dq_granularity_name[r->logit.granularity]));
    json_object_set_new(o, "kv", dq_kv_spec_json(&r->kv));
    json_object_set_new(o, "math", dq_kv_report_math_json(r->math));
    json_object_set_new(o, "passes", json_string(dq_eval_passes(r)));
    json_object_set_new(o, "task", json_string(s->name));
    json_object_set_new(o, s->kind->windows ? "windows" : "items",
                        json_integer((json_int_t)w.units));
    if (cmd_eval_kind_of(s)->out.plan) cmd_eval_kind_of(s)->out.plan(o, v->e, r);
    json_object_set_new(o, "sequences", json_integer((json_int_t)w.sequences));
    json_object_set_new(o, "tokens", json_integer((json_int_t)w.ids));
    json_array_append_new(results, o);
}

/* Those that the run will show come first: their places are those of its results. */
void cmd_eval_plan_json(json_t *results, const cmd_eval_view *v)
{
    for (int shown = 1; shown >= 0; shown--) {
        for (int i = 0; i < v->e->n_rows; i++) {
            if (v->e->row[i].shown == shown) add_row(results, v, i);
        }
    }
}
