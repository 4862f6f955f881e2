/* cache_plan: see cache_plan.h. The model, its tokenizer and the text are opened here, the rest is the library's.
 * SPDX-License-Identifier: MIT */
#include "cmds/cache_plan.h"

#include "base/file.h"
#include "checkpoint/container.h"
#include "cmds/cache_plan_output.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/version.h"
#include "cmds/plan_files.h"
#include "plan/plan.h"
#include "quantize/quantize_recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dq_opt *dq_cache_plan_rows(dq_cache_plan *c)
{
    const dq_opt rows[] = {
        dq_opt_heading("the KV cache instead of weights:"),
        dq_opt_float("kv", "BITS", &c->mean, 2, 8,
                     "plan widths of the cache's codes by layer and map: a mean of so many bits "
                     "over keys and values, without what scales take"),
        dq_opt_text("text", "FILE", &c->text,
                    "text to measure with, as in dq eval: plain, or .jsonl of {\"text\"}"),
        dq_opt_int("ctx", "N", &c->ctx, 4, INT32_MAX,
                   "ids of a window (default min(2048, the model's positions))"),
        dq_opt_int("limit", "N", &c->windows, DQ_PLAN_KV_LEAST_WINDOWS, 1000000,
                   "windows at most (default 60): the second and third fifth of them search, the "
                   "others decide"),
        dq_opt_text("kv-code", "NAME", &c->code, "dither or page (default dither)"),
        dq_opt_int("kv-recent", "N", &c->recent, 0, INT32_MAX,
                   "last tokens that stay unquantized (default 64)"),
        dq_opt_int("kv-sink", "N", &c->sink, 0, INT32_MAX,
                   "first tokens that stay unquantized (default 4)"),
        dq_opt_int("kv-layers", "N", &c->together, 1, 10000,
                   "neighbouring layers that get one width: fewer units, a shorter search "
                   "(default 1)"),
        dq_opt_text("weights", "RECIPE.json", &c->weights,
                    "a recipe of weights, whose settings the new one has too"),
        DQ_OPT_DEVICE(&c->device),
        {0}};
    _Static_assert(sizeof rows == sizeof c->row, "rows of the cache");
    c->recent = c->sink = -1;
    memcpy(c->row, rows, sizeof rows);
    return c->row;
}

const char *dq_cache_plan_given(const dq_cache_plan *c)
{
    const struct {
        bool given;
        const char *name;
    } all[] = {{c->text, "text"},
               {c->ctx, "ctx"},
               {c->windows, "limit"},
               {c->code, "kv-code"},
               {c->recent >= 0, "kv-recent"},
               {c->sink >= 0, "kv-sink"},
               {c->together, "kv-layers"},
               {c->weights, "weights"},
               {c->device, "device"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].given) return all[i].name;
    }
    return NULL;
}

/* One run. */
typedef struct job {
    dq_cache_plan *c;
    dq_plan_kv_settings set;
    dq_model *model;
    dq_tokenizer *tok;
    dq_docs docs;
    dq_input_text text;
    json_t *weights;
    dq_progress bar;
    dq_arena *a;
} job;

/* ---- Settings ---- */

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static dq_status read_widths(job *j, dq_err *err)
{
    dq_plan_kv_settings *s = &j->set;
    DQ_TRY(dq_options_ints(s->bits, &s->n_bits, DQ_PLAN_WIDTHS, j->c->widths, "widths", 2, 8, err));
    qsort(s->bits, (size_t)s->n_bits, sizeof *s->bits, ascending);
    for (int i = 0; i < s->n_bits; i++) {
        if (s->bits[i] == 7)
            return dq_fail(err, DQ_USAGE,
                           "--widths %s: 7 bits are not offered for a cache (8, 6, 5, 4, 3, 2).",
                           j->c->widths);
    }
    return DQ_OK;
}

/* Token codes have a word of the library's about them. */
static dq_status read_code(dq_kv_code *out, const char *text, dq_err *err)
{
    static const dq_kv_code code[] = {DQ_CODE_DITHER, DQ_CODE_PAGE};
    enum { N = sizeof code / sizeof *code };
    const char *names[N];
    for (int i = 0; i < N; i++) names[i] = dq_kv_code_name[code[i]];
    *out = DQ_CODE_TOKEN;
    if (text && strcmp(text, dq_kv_code_name[DQ_CODE_TOKEN]) == 0) return DQ_OK;
    const int i = dq_options_word(text ? text : names[0], "kv-code", names, N, err);
    if (i >= 0) *out = code[i];
    return err->code;
}

static dq_status make_settings(job *j, dq_err *err)
{
    const dq_cache_plan *c = j->c;
    dq_plan_kv_settings *s = &j->set;
    DQ_TRY(read_widths(j, err));
    if (!c->text) return dq_fail(err, DQ_USAGE, "--text FILE is missing.");
    if (!c->out && !c->dry_run)
        return dq_fail(err, DQ_USAGE,
                       "-o RECIPE.json is missing (or --dry-run to see what would be done).");
    if (c->trials == 1 || c->trials == 2)
        return dq_fail(err, DQ_USAGE,
                       "--trials %lld: expected at least 3 of a cache: the mix of the units and "
                       "up to two uniform widths.",
                       (long long)c->trials);
    s->kv = dq_kv_config_plain;
    DQ_TRY(read_code(&s->kv.code, c->code, err));
    if (c->recent >= 0) s->kv.recent = (int)c->recent;
    if (c->sink >= 0) s->kv.sink = (int)c->sink;
    s->mean = c->mean;
    s->together = c->together ? (int)c->together : 1;
    s->ctx = c->ctx;
    s->windows = c->windows ? c->windows : DQ_PLAN_KV_WINDOWS;
    s->trials = c->trials ? c->trials : DQ_PLAN_KV_TRIALS;
    s->out = c->out;
    s->resume = c->resume;
    s->force = c->force;
    s->dq_version = DQ_VERSION;
    return DQ_OK;
}

/* ---- Inputs ---- */

/* What of the recipe's cache a plan measures without. */
static void warn_weights(const job *j, const dq_kv_config *kv)
{
    const dq_kv_config *plain = &j->set.kv;
    const char *path = j->c->weights;
    if (kv->evict.policy)
        dq_logger_warn(j->c->logger,
                       "%s: its cache forgets tokens (policy %s): the plan is measured without",
                       path, kv->evict.policy->name);
    if (kv->rotate != plain->rotate)
        dq_logger_warn(j->c->logger, "%s: has rotate %s: the plan is measured with %s", path,
                       dq_rotate_name[kv->rotate], dq_rotate_name[plain->rotate]);
    if (kv->dense != plain->dense)
        dq_logger_warn(j->c->logger, "%s: has dense_type %s: the plan is measured with %s", path,
                       dq_kv_dense_name[kv->dense], dq_kv_dense_name[plain->dense]);
}

/* That dq quantize takes the recipe that this becomes, whatever widths stand in it. */
static dq_status check_weights(job *j, dq_err *err)
{
    dq_quantize_settings s = {0};
    dq_err e = {0};
    json_t *recipe = dq_cache_plan_output_recipe_of(&j->set, j->weights, "4:4");
    if (dq_json_complete(err) == DQ_OK && dq_quantize_recipe_read(&s, recipe, &e) == DQ_OK)
        warn_weights(j, &s.kv);
    json_decref(recipe);
    if (e.code == DQ_OK) return err->code;
    return dq_fail(err, e.code,
                   "%s: with the cache that is planned: %s. Change the recipe, or --kv-recent and "
                   "--kv-sink",
                   j->c->weights, e.text);
}

/* What its files say, and that they are a recipe. */
static dq_status read_weights(job *j, dq_err *err)
{
    dq_quantize_settings s = {0};
    char *text;
    size_t len;
    const char *path = j->c->weights;
    if (!path) return DQ_OK;
    DQ_TRY(dq_file_read(&text, &len, path, j->a, err));
    DQ_TRY(dq_json_parse(&j->weights, text, len, path, err));
    if (dq_quantize_recipe_read(&s, j->weights, err) != DQ_OK) return dq_in(err, "%s: ", path);
    return check_weights(j, err);
}

static dq_status open_inputs(job *j, const char *model, dq_err *err)
{
    dq_plan_kv_settings *s = &j->set;
    DQ_TRY(dq_input_model(&j->model, model, NULL, j->c->logger, err));
    DQ_TRY(dq_input_tokenizer(&j->tok, j->model, true, err));
    DQ_TRY(dq_input_read(&j->text, j->c->text, j->a, err));
    DQ_TRY(dq_documents_add(&j->docs, j->c->text, j->text.text, j->text.bytes, j->a, err));
    if (j->docs.n_bad)
        dq_logger_warn(j->c->logger,
                       "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte %lld",
                       j->c->text, (long long)j->docs.n_bad, (long long)j->docs.first_bad);
    s->model = j->model;
    s->content = j->model->is_container ? dq_container_header(j->model->container)->content_sha256
                                        : j->model->fingerprint;
    s->tok = j->tok;
    s->docs = &j->docs;
    s->text = j->c->text;
    s->text_sha256 = j->text.sha256;
    return read_weights(j, err);
}

static dq_status check_files(const dq_cache_plan *c, const char *model, dq_err *err)
{
    const char *inputs[] = {model, c->text, c->weights};
    const dq_plan_files f = {.out = c->out,
                             .inputs = inputs,
                             .n_inputs = c->weights ? 3 : 2,
                             .resume = c->resume,
                             .force = c->force};
    return dq_plan_files_check(&f, err);
}

/* ---- The run ---- */

static void on_stage(void *arg, const char *name)
{
    job *j = arg;
    dq_progress_label(&j->bar, name);
    dq_logger_note(j->c->logger, "%s", name);
}

static void on_step(void *arg, double done, double total, const char *what)
{
    dq_progress_step(&((job *)arg)->bar, done, total, what);
}

static void warn(const job *j, const dq_plan_kv *p)
{
    const double coded = dq_cache_plan_output_coded(p);
    if (p->clusters < DQ_PLAN_FEW_CLUSTERS)
        dq_logger_warn(j->c->logger,
                       "%s: %lld unseen %s are few: with fewer than %d, intervals hold less than "
                       "they say. Give more text",
                       j->c->text, (long long)p->clusters,
                       p->win.n_docs < 2 ? "windows" : "documents", DQ_PLAN_FEW_CLUSTERS);
    if (coded < 0.5)
        dq_logger_warn(j->c->logger,
                       "only %.1f %% of what scored ids read are codes: windows of %lld ids are "
                       "short for %d recent tokens. Use a larger --ctx",
                       100 * coded, (long long)p->set.ctx, p->set.kv.recent);
    if (j->model->logit.bits < 16)
        dq_logger_warn(j->c->logger,
                       "%s: stores logits of %d bits; the plan is measured with unrounded ones",
                       j->model->path, j->model->logit.bits);
}

/* The recipe is finished once it is written: it stays where what is said of it does not come out. */
static dq_status hand_out(const job *j, dq_plan_kv *p, dq_err *err)
{
    const dq_cache_plan_view v = {p, &j->text, j->weights, j->c->logger};
    if (dq_cache_plan_output_recipe(&v, err) != DQ_OK) return dq_plan_kv_failed(p, err);
    dq_plan_kv_done(p);
    return j->c->json ? dq_cache_plan_output_json(&v, err) : dq_cache_plan_output_print(&v, err);
}

static dq_status run_plan(job *j, dq_err *err)
{
    dq_plan_kv *p;
    DQ_TRY(dq_plan_kv_open(&p, &j->set, err));
    warn(j, p);
    if (j->c->dry_run) {
        const dq_cache_plan_view v = {p, &j->text, j->weights, j->c->logger};
        j->c->json ? dq_cache_plan_output_json(&v, err) : dq_cache_plan_output_work(&v, err);
    } else {
        dq_progress_begin(&j->bar, j->c->logger, "plan", 1);
        j->bar.rough = true;
        dq_plan_kv_run(p, err);
        dq_progress_end(&j->bar);
        if (err->code == DQ_OK) hand_out(j, p, err);
    }
    dq_plan_kv_close(p);
    return err->code;
}

dq_status dq_cache_plan_run(dq_cache_plan *c, const char *model, dq_err *err)
{
    job j = {.c = c, .a = dq_arena_new()};
    if (!j.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    j.set.step = on_step;
    j.set.stage = on_stage;
    j.set.arg = &j;
    if (make_settings(&j, err) == DQ_OK && check_files(c, model, err) == DQ_OK &&
        dq_backend_open(&j.set.backend, c->device ? c->device : "auto", (int)c->threads, err) ==
            DQ_OK &&
        open_inputs(&j, model, err) == DQ_OK)
        run_plan(&j, err);
    json_decref(j.weights);
    dq_tokenizer_free(j.tok);
    dq_model_close(j.model);
    dq_backend_close(j.set.backend);
    dq_arena_free(j.a);
    return err->code;
}
