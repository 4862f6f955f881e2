/* cache_job: what both plans of a KV cache have on the command line: the model, the text, a recipe of weights, progress.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CACHE_JOB_H
#define DQ_CACHE_JOB_H

#include "cmds/cache_plan.h"
#include "cmds/cli/input.h"
#include "cmds/cli/progress.h"
#include "plan/plan_caches.h"

typedef struct dq_cache_job {
    const dq_cache_plan *c;
    dq_plan_caches_input in;
    dq_model *model;
    dq_tokenizer *tok;
    dq_docs docs;
    dq_input_text text;
    json_t *weights; /* NULL: none */
    dq_progress bar;
    dq_arena *a;
} dq_cache_job;

/* What a recipe of weights becomes with the plan's part of the cache: a new reference, which lacks what memory does not hold;
 * and what of the recipe's own cache `kv` is not measured, a warning each. */
typedef struct dq_cache_job_recipe {
    json_t *(*make)(const void *arg, const json_t *weights);
    void (*warn)(const dq_cache_job *j, const void *arg, const dq_kv_config *kv);
    const void *arg;
} dq_cache_job_recipe;

/* The backend, the model, its tokenizer, the text and weights, with all that can be said against these. windows: where none
 * are given. To be closed whatever came of it. */
dq_status dq_cache_job_open(dq_cache_job *j, const dq_cache_plan *c, const char *model,
                            int64_t windows, const dq_cache_job_recipe *recipe, dq_err *err);
void dq_cache_job_close(dq_cache_job *j);
/* Warnings: where few documents, or windows of a single one, decide; where the model rounds logits. */
void dq_cache_job_warn(const dq_cache_job *j, const dq_plan_caches *c);
/* A recipe as a file, to c->out; takes the value. */
dq_status dq_cache_job_write(const dq_cache_job *j, json_t *recipe, dq_err *err);

#endif
