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

static const char *task(int i, const char **form)
{
    if (i >= dq_ruler_n_tasks) return NULL;
    *form = dq_ruler_tasks[i].takes_text ? "a UTF-8 text" : "";
    return dq_ruler_tasks[i].name;
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
    s->task = t;
    s->query_aware = r->question.at == 1;
    cmd_eval_take_lengths(o, s->length, &s->n_lengths, &s->samples, &s->seed);
    return cmd_eval_add_source(o, &source, "tasks", err);
}

static void put_settings(dq_row_writer *w, const void *own, const dq_eval *e)
{
    const dq_eval_source *source =
        DQ_LIVE(w, cmd_eval_kind_source(&cmd_eval_ruler, e->source, e->n_sources));
    const dq_ruler_settings *s = source ? source->settings : NULL;
    (void)own;
    if (!DQ_BEGIN(w, OBJECT, "ruler", s, "Of vt, cwe, fwe and niah tasks.", .when = DQ_OUT)) return;
    DQ_INTS(w, "lengths", s->length, s->n_lengths, "Lengths of prompts; null: those that fit.",
            .when = DQ_NULL);
    DQ_PUT(w, "samples", s->samples, "Prompts of a length.");
    DQ_PUT(w, "seed", (int64_t)s->seed, "Of the prompts.");
    DQ_PUT(w, "question", question_name[s->query_aware],
           "Whether a cache is compressed with the question.", DQ_WORDS(question_name));
    dq_row_end(w);
}

static dq_status details(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_row *r = DQ_LIVE(w, &v->e->row[row]);
    const dq_ruler_settings *s = DQ_LIVE(w, dq_eval_source_of(v->e, r)->settings);
    const dq_ruler_set *set = DQ_LIVE(w, set_of(v->e, r));
    const int64_t samples = w->live ? set->samples : 0, n = w->live ? dq_eval_units(v->e, r) : 1;
    double *score = dq_block_new((size_t)n, sizeof *score, err);
    if (!score) return err->code;
    if (w->live) dq_eval_ruler.judge(v->e, r, 0, score);
    DQ_OBJECT(w, "ruler", "Prompts made up for long contexts.");
    DQ_PUT(w, "question", question_name[s->query_aware],
           "Whether a cache is compressed with the question.", DQ_WORDS(question_name));
    DQ_PUT(w, "max_new", s->task->max_new, "New tokens at most.");
    DQ_LIST(w, "cells", "Lengths.");
    for (int l = 0; DQ_MORE(w, l, set->n_lengths); l++) {
        const int64_t begin = l * samples;
        int64_t all = 0, prompt_ids = 0, new_ids = 0;
        for (int64_t i = begin; i < begin + samples; i++) {
            all += score[i] == 1;
            prompt_ids += set->prompt[i].n;
            new_ids += (int64_t)r->extra[i * DQ_GEN_EXTRA + DQ_GEN_COUNT];
        }
        DQ_ITEM(w);
        DQ_PUT(w, "length", set->length[l], "Tokens of a prompt.");
        DQ_PUT(w, "n", samples, "Prompts.");
        DQ_METRIC(w, "acc", dq_mean_of(score + begin, samples), "Mean share of answers found.");
        DQ_METRIC(w, "all_correct", dq_mean_share(all, samples),
                  "Share of prompts of which all are.");
        DQ_PUT(w, "prompt_tokens_mean", (double)prompt_ids / (double)samples,
               "Mean tokens of a prompt.", .when = DQ_NULL);
        DQ_PUT(w, "new_tokens_mean", (double)new_ids / (double)samples, "Mean new tokens.",
               .when = DQ_NULL);
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_row_end(w);
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
    return j;
}

static dq_status item(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r, int64_t unit,
                      dq_err *err)
{
    const dq_ruler_set *set = set_of(v->e, r);
    const dq_ruler_prompt *p = &set->prompt[unit];
    const dq_eval_ids *ids = &v->e->ids[r->ids];
    const dq_tokenizer *t = v->e->model[ids->model].tok;
    const double *x = r->extra + unit * DQ_GEN_EXTRA;
    DQ_PUT(w, "length", set->length[unit / set->samples], NULL);
    DQ_PUT(w, "sample", unit % set->samples, NULL);
    DQ_PUT(w, "input", text_json(t, p->ids, p->n, err), NULL);
    DQ_PUT(w, "n_input", p->n, NULL);
    DQ_PUT(w, "question", p->question, NULL);
    DQ_LIST(w, "outputs", NULL);
    for (int k = 0; k < p->n_answers; k++) DQ_PUT(w, NULL, p->answer[k], NULL);
    dq_row_end(w);
    DQ_PUT(w, "prediction",
           text_json(t, r->top1 + ids->req.req[unit].value, (int64_t)x[DQ_GEN_COUNT], err), NULL);
    DQ_PUT(w, "end", dq_text_end_name[(int)x[DQ_GEN_END]], NULL);
    DQ_PUT(w, "found", x[DQ_GEN_EXACT], NULL);
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
    static const cmd_eval_column acc = {
        .path = "ruler.cells", .cell = acc_cell, .label = "length", .unit = "tokens"};
    const cmd_eval_table_of p = {.keys = keys, .column = &acc, .n = 1, .labels = 2};
    return cmd_eval_pivot(v, &cmd_eval_ruler, "Accuracy by length:", &p, err);
}

const cmd_eval_kind cmd_eval_ruler = {
    .kind = {&dq_eval_ruler},
    .size = sizeof(ruler_options),
    .options = options,
    .needs = "has nothing to act on: it is for niah_single and its like, vt, cwe and fwe.",
    .tasks_help =
        "niah_single, niah_multikey, niah_multivalue, niah_multiquery: numbers with keys in a "
        "UTF-8 text; vt: chains of variables; cwe: common words of a list, of a UTF-8 text; fwe: "
        "frequent coded words; as RULER builds them, vt and fwe without --data",
    .task = task,
    .choose = choose,
    .settings = put_settings,
    .details = details,
    .tables = tables,
    .item = item,
};
