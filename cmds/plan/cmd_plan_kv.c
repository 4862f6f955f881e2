/* cmd_plan_kv: dq plan kv: the widths of a KV cache's codes by layer and map. Inputs are cache_job.h's, the search is the
 * library's (plan/cache/plan_kv.h).
 * SPDX-License-Identifier: MIT */
#include "base/ranks.h"
#include "cmds/command.h"
#include "cmds/plan/cache_job.h"
#include "cmds/plan/kv_output.h"
#include "cmds/cli/help.h"

#include <stdlib.h>
#include <string.h>

typedef struct options {
    dq_cache_options all;
    double mean; /* 0: not given */
    const char *widths, *quant;
    int64_t together;
} options;

static const dq_usage usage = {
    .name = "plan kv",
    .synopsis = "MODEL --kv-bits BITS --text FILE -o RECIPE.json [options]",
    .about =
        "Plans the widths of a KV cache: each unit (keys of a layer and map, values of a layer) is "
        "coded alone at each width, the others at 8 bits, and its KL divergence to the "
        "unquantized cache measured; of many layers at every other width and on fewer windows. "
        "Bits go where they save most, up to the mean. Mixes a step "
        "away are measured whole as long as one is closer. Windows that no choice has seen compare "
        "the plan with uniform widths of at most the same mean, the nearest that there are. "
        "Figures are of the cache alone: with a recipe of a cache, dq quantize packs weights as "
        "without one.",
    .examples = "  dq plan kv model --kv-bits 4 --text test.txt --ctx 1024 -o cache.json\n"
                "  dq quantize model -o model.h5 --recipe cache.json\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

/* ---- Settings ---- */

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static dq_status read_widths(dq_plan_kv_settings *s, const options *c, dq_err *err)
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

enum { N_CODES = 3 };
static const dq_kv_quant code[N_CODES] = {DQ_KV_DITHER, DQ_KV_PER_CHANNEL, DQ_KV_MIXED};

static const char *const *code_names(const char *names[N_CODES])
{
    for (int i = 0; i < N_CODES; i++) names[i] = dq_kv_quant_name[code[i]];
    return names;
}

/* Per-token codes have a word of the library's about them. */
static dq_status read_code(dq_kv_quant *out, const char *text, dq_err *err)
{
    const char *names[N_CODES];
    *out = DQ_KV_PER_TOKEN;
    if (text && strcmp(text, dq_kv_quant_name[DQ_KV_PER_TOKEN]) == 0) return DQ_OK;
    code_names(names);
    const int i = dq_options_word(text ? text : names[0], "kv-quant", names, N_CODES, err);
    if (i >= 0) *out = code[i];
    return err->code;
}

static dq_status make_settings(dq_plan_kv_settings *s, const options *c, dq_err *err)
{
    DQ_TRY(read_widths(s, c, err));
    if (c->all.windows && c->all.windows < DQ_PLAN_KV_LEAST_WINDOWS)
        return dq_fail(err, DQ_USAGE, "--limit %lld: expected at least %d windows.",
                       (long long)c->all.windows, DQ_PLAN_KV_LEAST_WINDOWS);
    if (c->all.trials == 1 || c->all.trials == 2)
        return dq_fail(err, DQ_USAGE,
                       "--trials %lld: expected at least 3 of a cache: the mix of the units and "
                       "up to two uniform widths.",
                       (long long)c->all.trials);
    s->kv = dq_kv_config_plain;
    DQ_TRY(read_code(&s->kv.quant, c->quant, err));
    if (c->all.recent >= 0) s->kv.recent = (int)c->all.recent;
    if (c->all.sink >= 0) s->kv.sink = (int)c->all.sink;
    s->mean = c->mean;
    s->together = c->together ? (int)c->together : 1;
    s->trials = c->all.trials ? c->all.trials : DQ_PLAN_KV_TRIALS;
    return DQ_OK;
}

/* ---- The recipe ---- */

static json_t *recipe_of(const void *arg, const json_t *weights)
{
    return dq_kv_output_recipe_of(arg, weights, "4:4"); /* whatever widths stand in it */
}

static void warn_onto(const dq_cache_job *j, const void *arg, const dq_kv_config *kv)
{
    const dq_kv_config *plain = &((const dq_plan_kv_settings *)arg)->kv;
    const char *path = j->c->onto;
    if (kv->evict.policy)
        dq_logger_warn(&j->c->logger,
                       "%s: its cache evicts tokens (policy %s): the plan is measured without",
                       path, kv->evict.policy->name);
    if (kv->rotate != plain->rotate)
        dq_logger_warn(&j->c->logger, "%s: has rotate %s: the plan is measured with %s", path,
                       dq_rotate_name[kv->rotate], dq_rotate_name[plain->rotate]);
    if (kv->dense != plain->dense)
        dq_logger_warn(&j->c->logger, "%s: has dense_type %s: the plan is measured with %s", path,
                       dq_kv_dense_name[kv->dense], dq_kv_dense_name[plain->dense]);
}

/* ---- The run ---- */

static void warn(const dq_cache_job *j, const dq_plan_kv *p)
{
    const double coded = dq_kv_output_coded(p);
    dq_cache_job_warn(j, &p->caches);
    if (coded < 0.5)
        dq_logger_warn(
            &j->c->logger,
            "only %.1f %% of what scored tokens read are codes: windows of %lld tokens are "
            "short for %d recent tokens. Use a larger --ctx",
            100 * coded, (long long)p->set.in.ctx, p->set.kv.recent);
}

/* The recipe is finished once it is written: it stays where what is said of it does not come out. */
static dq_status hand_out(const dq_cache_job *j, dq_plan_kv *p, dq_err *err)
{
    const dq_kv_output_view v = {p, &j->text, &j->c->logger, 0};
    json_t *recipe = dq_kv_output_recipe_of(&p->set, j->onto, dq_plan_kv_widths(p));
    if (dq_cache_job_write(j, &p->caches, recipe, err) != DQ_OK) return dq_plan_kv_failed(p, err);
    dq_plan_kv_done(p);
    return j->c->json ? dq_kv_output_json(&v, err) : dq_kv_output_print(&v, err);
}

static dq_status run_plan(dq_cache_job *j, const dq_plan_kv_settings *set, dq_err *err)
{
    dq_plan_kv *p;
    DQ_TRY(dq_plan_kv_open(&p, set, err));
    warn(j, p);
    const bool hands_out = dq_ranks_number() == 0;
    if (j->c->dry_run && hands_out) {
        dq_kv_output_view v = {p, &j->text, &j->c->logger, 0};
        if (j->c->json)
            dq_kv_output_json(&v, err);
        else if (dq_plan_kv_pace(&v.pace, p, err) == DQ_OK)
            dq_kv_output_work(&v, err);
    } else if (!j->c->dry_run &&
               dq_cache_job_agree(j, dq_kv_output_settings(p), &p->caches.win, err) == DQ_OK) {
        dq_progress_begin(&j->bar, &j->c->logger, "plan", 1);
        j->bar.rough = true;
        dq_plan_kv_run(p, err);
        dq_progress_end(&j->bar);
        if (err->code == DQ_OK && hands_out) hand_out(j, p, err);
    }
    dq_plan_kv_close(p);
    return err->code;
}

static void start(options *o, const dq_args *args, dq_err *err)
{
    dq_plan_kv_settings set = {0};
    const dq_cache_job_recipe recipe = {recipe_of, warn_onto, &set, &set.kv};
    dq_cache_job j;
    if (!(o->mean > 0)) dq_fail(err, DQ_USAGE, "--kv-bits BITS is missing: a mean of 2 to 8.");
    if (err->code != DQ_OK || make_settings(&set, o, err) != DQ_OK ||
        dq_progress_listen(&o->all.logger, usage.name, err) != DQ_OK)
        return;
    if (dq_cache_job_open(&j, &o->all, args, DQ_PLAN_KV_WINDOWS, &recipe, err) == DQ_OK) {
        set.in = j.in;
        if (!o->quant && j.model->map.n_maps < 2) set.kv.quant = DQ_KV_MIXED; /* as auto is */
        run_plan(&j, &set, err);
    }
    dq_cache_job_close(&j);
    dq_logger_end(&o->all.logger);
}

dq_status dq_cmd_plan_kv(int argc, char **argv, dq_err *err)
{
    options o = {.all = dq_cache_options_none};
    const char *names[N_CODES];
    const dq_opt opts[] = {
        dq_opt_float("kv-bits", "BITS", &o.mean, 2, 8,
                     "mean width over keys and values, without what scales take"),
        dq_opt_text("widths", "LIST", &o.widths, "that a unit may have (default 2,3,4,5,6,8)"),
        DQ_CACHE_OPTIONS_TEXT(o.all, "windows at most (default 60): the second and third fifth of "
                                     "them search (of many layers fewer), the others decide"),
        dq_opt_offer(code_names(names), N_CODES,
                     dq_opt_text("kv-quant", "NAME", &o.quant,
                                 "{words} (default mixed on models of one map, dither on those of "
                                 "two)")),
        DQ_CACHE_OPTIONS_KEPT(o.all, "last tokens that stay unquantized (default 60)"),
        dq_opt_int("kv-layers", "N", &o.together, 1, 10000,
                   "neighbouring layers that get one width: fewer units, a shorter search "
                   "(default 1)"),
        dq_opt_int("trials", "N", &o.all.trials, 1, 1000000,
                   "whole mixes that the search may measure (default 200)"),
        DQ_CACHE_OPTIONS_RUN(o.all,
                             "finish an interrupted run of the same command, for another mean too, "
                             "and with other --widths, --trials and --kv-layers"),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (!args.help) start(&o, &args, err);
    return err->code;
}
