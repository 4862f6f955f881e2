/* cache_plan: see cache_plan.h. Inputs are cache_job.h's, the plan is the library's.
 * SPDX-License-Identifier: MIT */
#include "cmds/cache_plan.h"

#include "cmds/cache_job.h"
#include "cmds/cache_plan_output.h"
#include "plan/plan_heads.h"

#include <stdlib.h>
#include <string.h>

dq_opt *dq_cache_plan_rows(dq_cache_plan *c)
{
    const dq_opt rows[] = {
        dq_opt_heading("the KV cache instead of weights:"),
        dq_opt_float("kv", "BITS", &c->mean, 2, 8,
                     "plan widths of the cache's codes by layer and map: a mean of so many bits "
                     "over keys and values, without what scales take"),
        dq_opt_float(
            "heads", "KEEP", &c->keep, 0.001, 0.999,
            "plan retrieval heads of a cache that keeps this share of a context: which groups "
            "of KV heads share it, while the others keep first and last tokens alone"),
        dq_opt_text("text", "FILE", &c->text,
                    "text to measure with, as in dq eval: plain, or .jsonl of {\"text\"}"),
        dq_opt_int("ctx", "N", &c->ctx, 4, INT32_MAX,
                   "tokens of a window (default min(2048, the model's positions))"),
        dq_opt_int("limit", "N", &c->windows, 3, 1000000,
                   "windows at most (default 60; 30 of --heads): the second and third fifth of "
                   "them search (of --heads the first --find), the others decide"),
        dq_opt_text("kv-quant", "NAME", &c->code,
                    "of --kv: dither or per-channel (default dither)"),
        dq_opt_text("kv-policy", "NAME", &c->policy,
                    "of --heads: what chooses tokens, one of dq eval's policies, with its default"),
        dq_opt_int("kv-recent", "N", &c->recent, 0, INT32_MAX,
                   "last tokens that stay, and stay unquantized (default 64; 16 of --heads)"),
        dq_opt_int("kv-sink", "N", &c->sink, 0, INT32_MAX, "the same of first tokens (default 4)"),
        dq_opt_int("kv-layers", "N", &c->together, 1, 10000,
                   "of --kv: neighbouring layers that get one width: fewer units, a shorter search "
                   "(default 1)"),
        dq_opt_int("find", "N", &c->find, 0, 1000000,
                   "of --heads: first windows, which heads are found on (default 6; 0: on "
                   "--questions alone)"),
        dq_opt_text("questions", "ITEMS.jsonl", &c->questions,
                    "of --heads: items of dq eval --task mc, whose right answers count beside the "
                    "windows that find"),
        dq_opt_int("ask", "N", &c->ask, 1, 1000000, "the last N of --questions (default 32)"),
        dq_opt_text("weights", "RECIPE.json", &c->weights,
                    "a recipe of weights, or of the cache's other plan, whose settings the new one "
                    "has too"),
        DQ_OPT_DEVICE(&c->device),
        {0}};
    _Static_assert(sizeof rows == sizeof c->row, "rows of the cache");
    c->recent = c->sink = c->find = -1;
    memcpy(c->row, rows, sizeof rows);
    return c->row;
}

/* ---- Which plan ---- */

bool dq_cache_plan_requested(const dq_cache_plan *c)
{
    return c->mean > 0 || c->keep > 0;
}

typedef struct option {
    bool given;
    const char *name;
} option;

static const char *first_given(const option *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].given) return list[i].name;
    }
    return NULL;
}

dq_status dq_cache_plan_check(const dq_cache_plan *c, dq_err *err)
{
    const option both[] = {{c->text, "text"},         {c->ctx, "ctx"},
                           {c->windows, "limit"},     {c->recent >= 0, "kv-recent"},
                           {c->sink >= 0, "kv-sink"}, {c->weights, "weights"},
                           {c->device, "device"}};
    const option widths[] = {{c->code, "kv-quant"}, {c->together, "kv-layers"}};
    const option heads[] = {{c->policy, "kv-policy"},
                            {c->find >= 0, "find"},
                            {c->questions, "questions"},
                            {c->ask, "ask"}};
    const char *of_both = first_given(both, sizeof both / sizeof *both);
    const char *of_widths = first_given(widths, sizeof widths / sizeof *widths);
    const char *of_roles = first_given(heads, sizeof heads / sizeof *heads);
    if (c->mean > 0 && c->keep > 0)
        return dq_fail(err, DQ_USAGE,
                       "--kv and --heads are two plans. Make one, then the other: --weights "
                       "RECIPE.json puts both into one recipe.");
    if (of_both && !dq_cache_plan_requested(c))
        return dq_fail(err, DQ_USAGE, "--%s is about --kv or --heads, which are not given.",
                       of_both);
    if (of_widths && !(c->mean > 0))
        return dq_fail(err, DQ_USAGE, "--%s is about --kv, which is not given.", of_widths);
    if (of_roles && !(c->keep > 0))
        return dq_fail(err, DQ_USAGE, "--%s is about --heads, which is not given.", of_roles);
    if (c->keep > 0 && c->widths)
        return dq_fail(err, DQ_USAGE, "--widths is about codes, and --heads plans what is kept.");
    return DQ_OK;
}

/* ---- Settings ---- */

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static dq_status read_widths(dq_plan_kv_settings *s, const dq_cache_plan *c, dq_err *err)
{
    const char *widths = c->widths ? c->widths : "2,3,4,5,6,8";
    DQ_TRY(dq_options_ints(s->bits, &s->n_bits, DQ_PLAN_WIDTHS, widths, "widths", 2, 8, err));
    qsort(s->bits, (size_t)s->n_bits, sizeof *s->bits, ascending);
    for (int i = 0; i < s->n_bits; i++) {
        if (s->bits[i] == 7)
            return dq_fail(err, DQ_USAGE,
                           "--widths %s: 7 bits are not offered for a cache (8, 6, 5, 4, 3, 2).",
                           widths);
    }
    return DQ_OK;
}

/* Per-token codes have a word of the library's about them. */
static dq_status read_code(dq_kv_quant *out, const char *text, dq_err *err)
{
    static const dq_kv_quant code[] = {DQ_KV_DITHER, DQ_KV_PER_CHANNEL};
    enum { N = sizeof code / sizeof *code };
    const char *names[N];
    for (int i = 0; i < N; i++) names[i] = dq_kv_quant_name[code[i]];
    *out = DQ_KV_PER_TOKEN;
    if (text && strcmp(text, dq_kv_quant_name[DQ_KV_PER_TOKEN]) == 0) return DQ_OK;
    const int i = dq_options_word(text ? text : names[0], "kv-quant", names, N, err);
    if (i >= 0) *out = code[i];
    return err->code;
}

static dq_status make_settings(dq_plan_kv_settings *s, const dq_cache_plan *c, dq_err *err)
{
    DQ_TRY(read_widths(s, c, err));
    if (c->windows && c->windows < DQ_PLAN_KV_LEAST_WINDOWS)
        return dq_fail(err, DQ_USAGE, "--limit %lld: expected at least %d windows with --kv.",
                       (long long)c->windows, DQ_PLAN_KV_LEAST_WINDOWS);
    if (c->trials == 1 || c->trials == 2)
        return dq_fail(err, DQ_USAGE,
                       "--trials %lld: expected at least 3 of a cache: the mix of the units and "
                       "up to two uniform widths.",
                       (long long)c->trials);
    s->kv = dq_kv_config_plain;
    DQ_TRY(read_code(&s->kv.quant, c->code, err));
    if (c->recent >= 0) s->kv.recent = (int)c->recent;
    if (c->sink >= 0) s->kv.sink = (int)c->sink;
    s->mean = c->mean;
    s->together = c->together ? (int)c->together : 1;
    s->trials = c->trials ? c->trials : DQ_PLAN_KV_TRIALS;
    return DQ_OK;
}

/* ---- The recipe ---- */

static json_t *recipe_of(const void *arg, const json_t *weights)
{
    return dq_cache_plan_output_recipe_of(arg, weights, "4:4"); /* whatever widths stand in it */
}

static void warn_weights(const dq_cache_job *j, const void *arg, const dq_kv_config *kv)
{
    const dq_kv_config *plain = &((const dq_plan_kv_settings *)arg)->kv;
    const char *path = j->c->weights;
    if (kv->evict.policy)
        dq_logger_warn(j->c->logger,
                       "%s: its cache evicts tokens (policy %s): the plan is measured without",
                       path, kv->evict.policy->name);
    if (kv->rotate != plain->rotate)
        dq_logger_warn(j->c->logger, "%s: has rotate %s: the plan is measured with %s", path,
                       dq_rotate_name[kv->rotate], dq_rotate_name[plain->rotate]);
    if (kv->dense != plain->dense)
        dq_logger_warn(j->c->logger, "%s: has dense_type %s: the plan is measured with %s", path,
                       dq_kv_dense_name[kv->dense], dq_kv_dense_name[plain->dense]);
}

/* ---- The run ---- */

static void warn(const dq_cache_job *j, const dq_plan_kv *p)
{
    const double coded = dq_cache_plan_output_coded(p);
    dq_cache_job_warn(j, &p->caches);
    if (coded < 0.5)
        dq_logger_warn(
            j->c->logger,
            "only %.1f %% of what scored tokens read are codes: windows of %lld tokens are "
            "short for %d recent tokens. Use a larger --ctx",
            100 * coded, (long long)p->set.in.ctx, p->set.kv.recent);
}

/* The recipe is finished once it is written: it stays where what is said of it does not come out. */
static dq_status hand_out(const dq_cache_job *j, dq_plan_kv *p, dq_err *err)
{
    const dq_cache_plan_view v = {p, &j->text, j->c->logger};
    json_t *recipe = dq_cache_plan_output_recipe_of(&p->set, j->weights, dq_plan_kv_widths(p));
    if (dq_cache_job_write(j, recipe, err) != DQ_OK) return dq_plan_kv_failed(p, err);
    dq_plan_kv_done(p);
    return j->c->json ? dq_cache_plan_output_json(&v, err) : dq_cache_plan_output_print(&v, err);
}

static dq_status run_plan(dq_cache_job *j, const dq_plan_kv_settings *set, dq_err *err)
{
    dq_plan_kv *p;
    DQ_TRY(dq_plan_kv_open(&p, set, err));
    warn(j, p);
    if (j->c->dry_run) {
        const dq_cache_plan_view v = {p, &j->text, j->c->logger};
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

dq_status dq_cache_plan_run(const dq_cache_plan *c, const char *model, dq_err *err)
{
    dq_plan_kv_settings set = {0};
    const dq_cache_job_recipe recipe = {recipe_of, warn_weights, &set};
    dq_cache_job j;
    DQ_TRY(make_settings(&set, c, err));
    if (dq_cache_job_open(&j, c, model, DQ_PLAN_KV_WINDOWS, &recipe, err) == DQ_OK) {
        set.in = j.in;
        run_plan(&j, &set, err);
    }
    dq_cache_job_close(&j);
    return err->code;
}
