/* Prompts as RULER builds them, in dq eval.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/eval/inside.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <stdio.h>
#include <string.h>

enum { TASKS = 16 };

static const dq_ruler_set *set_of(const dq_eval *e, const dq_eval_row *row)
{
    return e->ids[row->ids].own;
}

typedef struct ruler_options {
    dq_word question;            /* of question_name */
    dq_ruler_settings of[TASKS]; /* what they mean, by task */
} ruler_options;

static const char *const question_name[] = {"query-agnostic", "query-aware"};

static const cmd_eval_kind_option options[] = {
    {.opt =
         {.value = "ruler",
          .help =
              "prompts as RULER builds them (--task niah_single, niah_multikey, niah_multivalue, "
              "niah_multiquery, vt, cwe, fwe)"}},
    DQ_KIND_OPTION(
        WORD, "question", "WHEN", ruler_options, question, .words = question_name,
        .n_words = sizeof question_name / sizeof question_name[0],
        .help = "query-agnostic (default): a cache evicts and rounds before it sees the question, "
                "as where one context is asked many things; query-aware: after it"),
    {.opt = {.name = NULL}},
};

static const char *task(int i)
{
    return i < dq_ruler_n_tasks ? dq_ruler_tasks[i].name : NULL;
}

static const char *form(const char *name)
{
    return dq_ruler_find(name)->takes_text ? "a UTF-8 text" : NULL;
}

static dq_status choose(void *own, cmd_eval_options *o, const char *name, const char *path,
                        dq_err *err)
{
    ruler_options *r = own;
    const dq_ruler_task *t = dq_ruler_find(name);
    dq_ruler_settings *s = &r->of[t - dq_ruler_tasks];
    const dq_eval_source source = {.name = t->name,
                                   .path = path ? path : t->name,
                                   .fileless = !path,
                                   .kind = &dq_eval_ruler,
                                   .settings = s};
    *s = (dq_ruler_settings){.task = t,
                             .n_lengths = o->n_lengths,
                             .samples = o->samples,
                             .seed = o->kv.seed >= 0 ? (uint64_t)o->kv.seed : 1,
                             .query_aware = r->question.at == 1};
    memcpy(s->length, o->length, sizeof s->length);
    return cmd_eval_add_source(o, &source, "tasks", err);
}

static dq_status load(void *own, dq_eval *e, const cmd_eval_options *o, int i,
                      cmd_eval_files *files, dq_err *err)
{
    (void)own;
    (void)o;
    return e->source[i].fileless ? DQ_OK : cmd_eval_source_load(e, &e->source[i], files, err);
}

static void put_settings(json_t *all, const void *own, const dq_eval *e)
{
    const dq_eval_source *source = cmd_eval_kind_source(&cmd_eval_ruler, e->source, e->n_sources);
    const dq_ruler_settings *s = source ? source->settings : NULL;
    (void)own;
    if (!s) return;
    json_object_set_new(
        all, "ruler",
        json_pack("{s:o,s:I,s:I,s:s}", "lengths",
                  s->n_lengths ? cmd_eval_ints_json(s->length, s->n_lengths) : json_null(),
                  "samples", (json_int_t)s->samples, "seed", (json_int_t)s->seed, "question",
                  question_name[s->query_aware]));
}

static dq_status details(json_t *o, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_ruler_settings *s = dq_eval_source_of(v->e, r)->settings;
    const dq_ruler_set *set = set_of(v->e, r);
    const double n = (double)set->samples;
    double *score = dq_block_new((size_t)dq_eval_units(v->e, r), sizeof *score, err);
    json_t *cells = json_array();
    json_object_set_new(o, "ruler",
                        json_pack("{s:s,s:I,s:o}", "question", question_name[s->query_aware],
                                  "max_new", (json_int_t)s->task->max_new, "cells", cells));
    json_object_set_new(o, "passes",
                        json_string(s->query_aware ? "prompt+decode" : "context+question+decode"));
    if (!score) return err->code;
    dq_eval_ruler.judge(v->e, r, 0, score);
    for (int l = 0; l < set->n_lengths; l++) {
        const int64_t begin = l * set->samples, end = begin + set->samples;
        int64_t all = 0, prompt_ids = 0, new_ids = 0;
        for (int64_t i = begin; i < end; i++) {
            all += score[i] == 1;
            prompt_ids += set->prompt[i].n;
            new_ids += (int64_t)r->extra[i * DQ_GEN_EXTRA + DQ_GEN_COUNT];
        }
        json_array_append_new(
            cells, json_pack("{s:i,s:I,s:o,s:o,s:o,s:o}", "length", set->length[l], "n",
                             (json_int_t)set->samples, "acc",
                             cmd_eval_metric_json(dq_mean_of(score + begin, set->samples)),
                             "all_correct", cmd_eval_metric_json(dq_mean_share(all, set->samples)),
                             "prompt_tokens_mean", dq_document_real((double)prompt_ids / n),
                             "new_tokens_mean", dq_document_real((double)new_ids / n)));
    }
    dq_block_free(score);
    return DQ_OK;
}

static json_t *text_json(const dq_tokenizer *t, const int32_t *ids, int64_t n, dq_err *err)
{
    char *text = NULL;
    size_t len = 0;
    json_t *j = NULL;
    if (dq_tokenizer_decode(t, ids, n, 0, &text, &len, err) == DQ_OK) j = json_stringn(text, len);
    dq_block_free(text);
    return j ? j : json_null();
}

static dq_status item(json_t *o, const cmd_eval_view *v, const dq_eval_row *r, int64_t unit,
                      dq_err *err)
{
    const dq_ruler_set *set = set_of(v->e, r);
    const dq_ruler_prompt *p = &set->prompt[unit];
    const dq_eval_ids *ids = &v->e->ids[r->ids];
    const dq_tokenizer *t = v->e->model[ids->model].tok;
    const double *x = r->extra + unit * DQ_GEN_EXTRA;
    json_t *outputs = json_array();
    for (int k = 0; k < p->n_answers; k++)
        json_array_append_new(outputs, json_string(p->answer[k]));
    json_object_update_new(
        o,
        json_pack("{s:i,s:I,s:o,s:I,s:I,s:o,s:o,s:s,s:o}", "length",
                  set->length[unit / set->samples], "sample", (json_int_t)(unit % set->samples),
                  "input", text_json(t, p->ids, p->n, err), "n_input", (json_int_t)p->n, "question",
                  (json_int_t)p->question, "outputs", outputs, "prediction",
                  text_json(t, r->top1 + ids->req.req[unit].value, (int64_t)x[DQ_GEN_COUNT], err),
                  "end", dq_text_end_name[(int)x[DQ_GEN_END]], "found",
                  dq_document_real(x[DQ_GEN_EXACT])));
    return err->code;
}

static void acc_cell(dq_table *t, const json_t *x)
{
    cmd_eval_cell_mean(t, json_object_get(x, "acc"));
}

static dq_status tables(const cmd_eval_view *v, dq_err *err)
{
    static const cmd_eval_key keys[] = {DQ_KEY_MODEL, DQ_KEY_TASK, DQ_KEY_LOGIT,
                                        DQ_KEY_MATH,  DQ_KEY_KV,   DQ_KEYS_END};
    char name[DQ_RULER_LENGTHS][24];
    cmd_eval_column column[DQ_RULER_LENGTHS];
    const dq_ruler_set *set = NULL;
    for (int i = 0; i < v->e->n_rows && !set; i++) {
        if (cmd_eval_kind_shows(&cmd_eval_ruler, v->e, i)) set = set_of(v->e, &v->e->row[i]);
    }
    if (!set || set->n_lengths < 2) return DQ_OK;
    for (int l = 0; l < set->n_lengths; l++) {
        snprintf(name[l], sizeof name[l], "%d tokens", set->length[l]);
        column[l] = (cmd_eval_column){name[l], "ruler.cells", acc_cell, .label = "length",
                                      .at = set->length[l]};
    }
    const cmd_eval_table_of p = {.keys = keys, .column = column, .n = set->n_lengths};
    return cmd_eval_pivot(v, &cmd_eval_ruler, "Accuracy by length:", &p, err);
}

const cmd_eval_kind cmd_eval_ruler = {
    .name = "ruler",
    .kind = {&dq_eval_ruler},
    .cli = {.size = sizeof(ruler_options),
            .options = options,
            .tasks_help =
                "niah_single, niah_multikey, niah_multivalue, niah_multiquery: numbers with keys "
                "in a UTF-8 text; vt: chains of variables; cwe: common words of a list, of a UTF-8 "
                "text; fwe: frequent coded words; as RULER builds them, vt and fwe without --data",
            .has = "prompts of their own",
            .task = task,
            .form = form,
            .lengths = true,
            .needs = "has nothing to act on: it is for niah_single and its like, vt, cwe and fwe.",
            .choose = choose},
    .load = load,
    .settings = put_settings,
    .out = {.details = details, .tables = tables, .item = item},
};
