/* cache_job: see cache_job.h. Files are checked before anything is opened, a recipe before anything is measured.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/cache_job.h"

#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "checkpoint/container.h"
#include "cmds/plan/plan_files.h"
#include "plan/plan_weights.h"
#include "quantize/quantize.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "tasks/documents.h"

#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

const dq_cache_options dq_cache_options_none = {.recent = -1, .sink = -1};

/* ---- The recipe to plan onto ---- */

/* That dq quantize takes the recipe that this becomes. */
static dq_status check_recipe(const dq_cache_job *j, const dq_cache_job_recipe *r, dq_err *err)
{
    dq_quantize_settings s = {0};
    dq_err e = {0};
    json_t *recipe = r->make(r->arg, j->onto);
    if (dq_json_complete(err) == DQ_OK && dq_quantize_recipe_read(&s, recipe, &e) == DQ_OK)
        r->warn(j, r->arg, &s.kv);
    json_decref(recipe);
    if (e.code == DQ_OK) return err->code;
    return dq_fail(err, e.code,
                   "%s: with the cache that is planned: %s. Change the recipe, or --kv-recent and "
                   "--kv-sink",
                   j->c->onto, e.text);
}

/* What its files say, and that they are a recipe. */
static dq_status read_recipe(dq_cache_job *j, const dq_cache_job_recipe *r, dq_err *err)
{
    dq_quantize_settings s = {0};
    char *text;
    size_t len;
    const char *path = j->c->onto;
    if (!path) return DQ_OK;
    DQ_TRY(dq_file_read_text(&text, &len, path, DQ_MAX_DOCUMENT, j->a, err));
    DQ_TRY(dq_json_parse(&j->onto, text, len, path, err));
    if (dq_quantize_recipe_read(&s, j->onto, err) != DQ_OK) return dq_in(err, "%s: ", path);
    return check_recipe(j, r, err);
}

dq_status dq_cache_job_write(const dq_cache_job *j, const dq_plan_caches *c, json_t *recipe,
                             dq_err *err)
{
    char *text = NULL;
    dq_repeats_sketch sketch = {.n = 0};
    json_t *texts = json_object_get(recipe, "texts"), *one = json_object();
    for (int64_t i = c->begin; i < c->end; i++)
        dq_repeats_sketch_add(&sketch, c->win.win[i].ids, c->win.win[i].n);
    json_object_set_new(one, "sha256", json_string(j->text.sha256));
    json_object_set_new(one, "sketch", dq_repeats_sketch_json(&sketch));
    if (!texts) json_object_set_new(recipe, "texts", texts = json_array());
    json_array_append_new(texts, one);
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, recipe, JSON_INDENT(2), err) == DQ_OK)
        dq_file_write(j->c->out, text, strlen(text), err);
    free(text);
    json_decref(recipe);
    return err->code;
}

/* ---- Inputs ---- */

static dq_status check_files(const dq_cache_options *c, const dq_args *args, dq_err *err)
{
    const dq_plan_files f = {.out = c->out,
                             .inputs = args->input,
                             .n_inputs = args->n_inputs,
                             .resume = c->resume,
                             .force = c->force};
    if (!c->text) return dq_fail(err, DQ_USAGE, "--text FILE is missing.");
    if (!c->out && !c->dry_run)
        return dq_fail(err, DQ_USAGE,
                       "-o RECIPE.json is missing (or --dry-run to see what would be done).");
    return dq_ranks_number() > 0 ? DQ_OK : dq_plan_files_check(&f, err);
}

static dq_status open_text(dq_cache_job *j, dq_err *err)
{
    const char *path = j->c->text;
    DQ_TRY(dq_input_read(&j->text, path, j->a, err));
    DQ_TRY(dq_documents_add(&j->docs, path, j->text.text, j->text.bytes, j->a, err));
    if (j->docs.n_bad)
        dq_logger_warn(&j->c->logger,
                       "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte %lld",
                       path, (long long)j->docs.n_bad, (long long)j->docs.first_bad);
    if (j->docs.lines_path) dq_input_warn_lines(path, &j->c->logger);
    return DQ_OK;
}

static void on_stage(void *arg, const char *name)
{
    dq_cache_job *j = arg;
    dq_progress_label(&j->bar, name);
    dq_logger_note(&j->c->logger, "%s", name);
}

static void on_step(void *arg, double done, double total, const char *what)
{
    dq_progress_step(&((dq_cache_job *)arg)->bar, done, total, what);
}

dq_status dq_cache_job_open(dq_cache_job *j, dq_cache_options *c, const dq_args *args,
                            int64_t windows, const dq_cache_job_recipe *recipe, dq_err *err)
{
    dq_plan_caches_input *in = &j->in;
    *j = (dq_cache_job){.c = c, .a = dq_arena_new()};
    if (!j->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    DQ_TRY(check_files(c, args, err));
#ifdef _OPENMP
    omp_set_num_threads(c->threads > 0 ? (int)c->threads : dq_os_cpu_count(""));
#endif
    DQ_TRY(dq_backend_open(&in->backend, c->device ? c->device : "auto", (int)c->threads, err));
    DQ_TRY(dq_input_model(&j->model, args->item[0], NULL, &c->logger, err));
    DQ_TRY(dq_input_tokenizer(&j->tok, j->model, true, err));
    DQ_TRY(open_text(j, err));
    in->model = j->model;
    const dq_kv_dense dense = c->dense.text ? (dq_kv_dense)c->dense.at : DQ_KV_DENSE_AUTO;
    if (recipe) recipe->kv->dense = dq_model_kv_dense(j->model, dense);
    in->content = j->model->is_container ? dq_container_header(j->model->container)->content_sha256
                                         : j->model->fingerprint;
    in->tok = j->tok;
    in->docs = &j->docs;
    in->text = c->text;
    in->text_sha256 = j->text.sha256;
    in->out = c->out;
    in->dq_version = DQ_VERSION;
    in->ctx = c->ctx;
    in->windows = c->windows ? c->windows : windows;
    in->resume = c->resume;
    in->force = c->force;
    in->step = on_step;
    in->stage = on_stage;
    in->arg = j;
    return read_recipe(j, recipe, err);
}

dq_status dq_cache_job_agree(const dq_cache_job *j, json_t *settings, const dq_windows *win,
                             dq_err *err)
{
    dq_sha256 h;
    char key[65] = "", ids[65], program[DQ_IDENTITY], *text = NULL;
    dq_identity_text(program, j->in.backend);
    if (dq_json_complete(err) == DQ_OK &&
        dq_json_dump(&text, settings, JSON_COMPACT | JSON_SORT_KEYS, err) == DQ_OK &&
        dq_windows_hash(ids, win, err) == DQ_OK && dq_sha256_begin(&h, err) == DQ_OK) {
        dq_sha256_add(&h, program, strlen(program));
        dq_sha256_add(&h, text, strlen(text));
        dq_sha256_add(&h, j->in.content, strlen(j->in.content));
        dq_sha256_add(&h, ids, strlen(ids));
        dq_sha256_end(&h, key, err);
    }
    free(text);
    json_decref(settings);
    return dq_ranks_agree("set of inputs, settings, program or processor", key, err);
}

void dq_cache_job_close(dq_cache_job *j)
{
    json_decref(j->onto);
    dq_tokenizer_free(j->tok);
    dq_model_close(j->model);
    dq_backend_close(j->in.backend);
    dq_arena_free(j->a);
}

void dq_cache_job_warn(const dq_cache_job *j, const dq_plan_caches *c)
{
    if (c->clusters < DQ_PLAN_FEW_CLUSTERS)
        dq_logger_warn(&j->c->logger,
                       "%s: %lld unseen %s are few: with fewer than %d, intervals hold less than "
                       "they say. Give more text",
                       j->c->text, (long long)c->clusters,
                       c->win.n_docs < 2 ? "windows" : "documents", DQ_PLAN_FEW_CLUSTERS);
    if (c->win.n_copies)
        dq_logger_warn(&j->c->logger,
                       "%s: %lld %s are copies of earlier ones; errors count each once, and what "
                       "decides may have been searched with",
                       j->c->text, (long long)c->win.n_copies,
                       c->win.n_docs < 2 ? "windows" : "documents");
    if (j->model->logit.bits < 16)
        dq_logger_warn(&j->c->logger,
                       "%s: stores logits of %d bits; the plan is measured with unrounded ones",
                       j->model->path, j->model->logit.bits);
}
