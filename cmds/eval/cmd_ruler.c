/* Prompts made up for long contexts in dq eval: their options, and their scores by length.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/inside.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <stdio.h>
#include <string.h>

enum { TASKS = 16 };
typedef struct ruler_options {
    dq_word question;                  /* of question_name */
    dq_ruler_settings settings[TASKS]; /* what they mean, by task */
} ruler_options;

static const char *const question_name[] = {"query-agnostic", "query-aware"};

static const cmd_eval_kind_option options[] = {
    {.opt =
         {.value = "ruler",
          .help =
              "prompts as RULER builds them (--task niah_single, niah_multikey, niah_multivalue, "
              "niah_multiquery, vt, cwe, fwe)"}},
    {{.name = "question",
      .kind = DQ_OPT_WORD,
      .words = question_name,
      .n_words = sizeof question_name / sizeof question_name[0],
      .value = "WHEN",
      .help = "query-agnostic (default): a cache evicts and rounds before it sees the question, as "
              "where one context is asked many things; query-aware: after it"},
     offsetof(ruler_options, question)},
    {.opt = {.name = NULL}},
};

static const char *task(int i)
{
    return i < dq_ruler_n_tasks ? dq_ruler_tasks[i].name : NULL;
}

static bool fileless(const char *name)
{
    return !dq_ruler_find(name)->takes_text;
}

static const char *form(const char *name)
{
    return fileless(name) ? "no file" : "a UTF-8 text";
}

static dq_status choose(void *own, cmd_eval_options *o, const char *name, const char *path,
                        dq_arena *a, dq_err *err)
{
    ruler_options *r = own;
    const dq_ruler_task *t = dq_ruler_find(name);
    const dq_eval_source source = {.name = t->name,
                                   .path = path ? path : t->name,
                                   .fileless = !path,
                                   .kind = &dq_eval_ruler,
                                   .settings = &r->settings[t - dq_ruler_tasks]};
    (void)a;
    return cmd_eval_add_source(o, &source, "tasks", err);
}

static dq_status read_words(void *own, const cmd_eval_options *run, dq_arena *a, dq_err *err)
{
    ruler_options *o = own;
    (void)a;
    (void)err;
    for (int i = 0; i < dq_ruler_n_tasks; i++) {
        dq_ruler_settings *s = &o->settings[i];
        s->task = &dq_ruler_tasks[i];
        s->n_lengths = run->n_lengths;
        memcpy(s->length, run->length, sizeof s->length);
        s->samples = run->samples;
        s->seed = run->kv.seed >= 0 ? (uint64_t)run->kv.seed : 1;
        s->query_aware = o->question.at == 1;
    }
    return DQ_OK;
}

static const dq_eval_source *first_source(const dq_eval_source *source, int n)
{
    return cmd_eval_kind_source(&cmd_eval_ruler, source, n);
}

static dq_status load(void *own, dq_eval *e, const cmd_eval_options *o, int i,
                      cmd_eval_files *files, dq_err *err)
{
    (void)own;
    (void)o;
    return e->source[i].fileless ? DQ_OK : cmd_eval_source_load(e, &e->source[i], files, err);
}

static void put_settings(json_t *settings, const void *own, const dq_eval *e)
{
    const dq_eval_source *source = first_source(e->source, e->n_sources);
    const dq_ruler_settings *s = source ? source->settings : NULL;
    (void)own;
    if (!s) return;
    json_t *o = json_object(), *lengths = s->n_lengths ? json_array() : json_null();
    for (int i = 0; i < s->n_lengths; i++)
        json_array_append_new(lengths, json_integer(s->length[i]));
    json_object_set_new(o, "lengths", lengths);
    json_object_set_new(o, "samples", json_integer((json_int_t)s->samples));
    json_object_set_new(o, "seed", json_integer((json_int_t)s->seed));
    json_object_set_new(o, "question", json_string(question_name[s->query_aware]));
    json_object_set_new(settings, "ruler", o);
}

static dq_status details(json_t *o, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_ruler_set *set = dq_ruler_set_of(v->e, r);
    json_t *ruler = json_object(), *cells = json_array();
    json_object_set_new(o, "ruler", ruler);
    json_object_set_new(
        o, "passes",
        json_string(set->settings->query_aware ? "prompt+decode" : "context+question+decode"));
    json_object_set_new(ruler, "question", json_string(question_name[set->settings->query_aware]));
    json_object_set_new(ruler, "max_new", json_integer((json_int_t)set->settings->task->max_new));
    json_object_set_new(ruler, "cells", cells);
    for (int l = 0; l < set->n_lengths; l++) {
        dq_ruler_numbers x;
        DQ_TRY(dq_ruler_numbers_of(&x, v->e, r, l, err));
        json_t *cell = json_object();
        json_object_set_new(cell, "length", json_integer(set->length[l]));
        json_object_set_new(cell, "n", json_integer((json_int_t)x.n));
        json_object_set_new(cell, "acc", dq_document_metric(x.acc.value, x.acc.std_err));
        json_object_set_new(cell, "all_correct",
                            dq_document_metric(x.all_correct.value, x.all_correct.std_err));
        json_object_set_new(cell, "prompt_tokens_mean",
                            dq_document_real((double)x.prompt_ids / (double)x.n));
        json_object_set_new(cell, "new_tokens_mean",
                            dq_document_real((double)x.new_ids / (double)x.n));
        json_array_append_new(cells, cell);
    }
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
    const dq_ruler_set *set = dq_ruler_set_of(v->e, r);
    const dq_ruler_prompt *p = &set->prompt[unit];
    const dq_eval_ids *ids = &v->e->ids[r->ids];
    const dq_tokenizer *t = v->e->model[ids->model].tok;
    const double *x = dq_ruler_unit(r, unit);
    json_t *outputs = json_array();
    json_object_set_new(o, "length", json_integer(set->length[unit / set->samples]));
    json_object_set_new(o, "sample", json_integer((json_int_t)(unit % set->samples)));
    json_object_set_new(o, "input", text_json(t, p->ids, p->n, err));
    json_object_set_new(o, "n_input", json_integer((json_int_t)p->n));
    json_object_set_new(o, "question", json_integer((json_int_t)p->question));
    for (int k = 0; k < p->n_answers; k++)
        json_array_append_new(outputs, json_string(p->answer[k]));
    json_object_set_new(o, "outputs", outputs);
    json_object_set_new(
        o, "prediction",
        text_json(t, r->top1 + ids->req.req[unit].value, (int64_t)x[DQ_RULER_AT_COUNT], err));
    json_object_set_new(o, "end", json_string(dq_text_end_name[(int)x[DQ_RULER_AT_END]]));
    json_object_set_new(o, "found", dq_document_real(x[DQ_RULER_AT_FOUND]));
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
        if (cmd_eval_kind_shows(&cmd_eval_ruler, v->e, i))
            set = dq_ruler_set_of(v->e, &v->e->row[i]);
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
                "in a UTF-8 text; vt: chains "
                "of variables; cwe: common words of a list, of a UTF-8 text; fwe: frequent coded "
                "words; as RULER builds "
                "them, vt and fwe without --data",
            .has = "prompts of their own",
            .task = task,
            .form = form,
            .fileless = fileless,
            .lengths = true,
            .needs = "has nothing to act on: it is for niah_single and its like, vt, cwe and fwe.",
            .read = read_words,
            .choose = choose},
    .load = load,
    .settings = put_settings,
    .out = {.details = details, .tables = tables, .item = item},
};
