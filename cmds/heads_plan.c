/* heads_plan: see heads_plan.h. Inputs are cache_job.h's, the plan is the library's.
 * SPDX-License-Identifier: MIT */
#include "cmds/heads_plan.h"

#include "cmds/cache_job.h"
#include "cmds/cli/kv_report.h"
#include "cmds/heads_plan_output.h"
#include "engine/second_pass.h"

#include <stdio.h>
#include <stdlib.h>

static dq_status make_settings(dq_plan_heads_settings *s, const dq_cache_plan *c, dq_err *err)
{
    const long long windows = c->windows ? c->windows : DQ_PLAN_HEADS_WINDOWS;
    s->kv = dq_kv_config_plain;
    s->kv.recent = c->recent >= 0 ? (int)c->recent : DQ_PLAN_HEADS_RECENT;
    if (c->sink >= 0) s->kv.sink = (int)c->sink;
    s->kv.evict.policy = c->policy ? dq_kv_policy_find(c->policy, err) : &dq_kv_policy_usual;
    if (!s->kv.evict.policy) return dq_in(err, "--kv-policy: ");
    if (c->trials && (c->trials < 2 || c->trials > DQ_PLAN_HEADS_MAX_TRIES))
        return dq_fail(err, DQ_USAGE,
                       "--trials %lld: expected 2 to %d of heads, which are numbers of groups.",
                       (long long)c->trials, DQ_PLAN_HEADS_MAX_TRIES);
    if (c->find == 0 && !c->questions)
        return dq_fail(err, DQ_USAGE, "--find 0: heads are found on nothing. Give --questions.");
    if (c->ask && !c->questions)
        return dq_fail(err, DQ_USAGE, "--ask is about --questions, which are not given.");
    s->keep = c->keep;
    s->find = c->find >= 0 ? c->find : DQ_PLAN_HEADS_FIND;
    if (windows < s->find + DQ_PLAN_HEADS_LEAST_UNSEEN)
        return dq_fail(
            err, DQ_USAGE,
            "--limit %lld: expected at least %lld windows with --find %lld, of which the "
            "first %lld find heads and the others decide.",
            windows, (long long)s->find + DQ_PLAN_HEADS_LEAST_UNSEEN, (long long)s->find,
            (long long)s->find);
    s->tries = c->trials ? (int)c->trials : DQ_PLAN_HEADS_TRIES;
    return DQ_OK;
}

/* ---- Questions ---- */

enum { ASK = 32 }; /* without other words */

/* The last ones of a file. */
static dq_status read_questions(dq_items *items, dq_input_text *text, dq_cache_job *j, dq_err *err)
{
    const char *path = j->c->questions;
    const int64_t ask = j->c->ask ? j->c->ask : ASK;
    if (!path) return DQ_OK;
    DQ_TRY(dq_input_read(text, path, j->a, err));
    const dq_task *task = dq_task_find("mc", err);
    if (!task) return err->code;
    DQ_TRY(dq_task_load(items, task, path, text->text, text->bytes, 0, j->a, err));
    if (items->n_bad)
        dq_logger_warn(j->c->logger,
                       "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte %lld",
                       path, (long long)items->n_bad, (long long)items->first_bad);
    if (items->n < ask)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: has %lld items, and the last %lld are asked. Use --ask %lld", path,
                       (long long)items->n, (long long)ask, (long long)items->n);
    items->item += items->n - ask;
    items->n = ask;
    return DQ_OK;
}

/* What questions say less with than they seem to. */
static void warn_questions(const dq_cache_job *j, const dq_plan_caches *c)
{
    const char *path = j->c->questions;
    if (c->n_single)
        dq_logger_warn(j->c->logger,
                       "%s: %lld of %lld choices are a single token, which is predicted before "
                       "anything is evicted. Move the last words of each context, which are the "
                       "question, into its choices",
                       path, (long long)c->n_single, (long long)c->n_choices);
    if (c->n_truncated)
        dq_logger_warn(j->c->logger,
                       "%s: %lld of %lld questions are longer than the %d positions of %s and lost "
                       "the beginning of their context",
                       path, (long long)c->n_truncated, (long long)c->n_questions,
                       j->model->max_positions, j->model->path);
    if ((double)c->longest > 1.1 * (double)c->shortest)
        dq_logger_warn(
            j->c->logger,
            "%s: contexts have %lld to %lld tokens, and the groups that are whole keep as "
            "many tokens as the shortest has: in longer ones no group is cut alone. Use "
            "questions with contexts of one length",
            path, (long long)c->shortest, (long long)c->longest);
}

/* ---- The recipe ---- */

static json_t *recipe_of(const void *arg, const json_t *weights)
{
    dq_plan_heads_settings any = *(const dq_plan_heads_settings *)arg;
    any.kv.evict.policy = dq_kv_policy_for(any.kv.evict.policy, 2);
    return dq_heads_plan_output_recipe_of(&any, weights, "0.0,0.1/"); /* whatever stands in it */
}

static void warn_weights(const dq_cache_job *j, const void *arg, const dq_kv_config *kv)
{
    const dq_kv_config *mine = &((const dq_plan_heads_settings *)arg)->kv;
    const char *path = j->c->weights;
    if (kv->widths[0] || kv->k_bits < 16 || kv->v_bits < 16)
        dq_logger_warn(j->c->logger, "%s: its cache holds codes: the plan is measured with 16 bits",
                       path);
    if (kv->rotate != mine->rotate)
        dq_logger_warn(j->c->logger, "%s: has rotate %s: the plan is measured with %s", path,
                       dq_rotate_name[kv->rotate], dq_rotate_name[mine->rotate]);
    if (kv->dense != mine->dense)
        dq_logger_warn(j->c->logger, "%s: has dense_type %s: the plan is measured with %s", path,
                       dq_kv_dense_name[kv->dense], dq_kv_dense_name[mine->dense]);
}

/* What of weights' cache the recipe has otherwise, as the plan is measured so. */
static void warn_replaced(const dq_cache_job *j, const dq_plan_heads_settings *s)
{
    const json_t *kv = json_object_get(j->weights, "kv");
    const struct {
        const char *key;
        int mine;
    } all[] = {{"recent", s->kv.recent}, {"sink", s->kv.sink}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const json_t *was = json_object_get(kv, all[i].key);
        if (was && json_integer_value(was) != all[i].mine)
            dq_logger_warn(j->c->logger,
                           "%s: has %s %lld, which becomes %d, as the plan is measured. Or give "
                           "--kv-%s",
                           j->c->weights, all[i].key, (long long)json_integer_value(was),
                           all[i].mine, all[i].key);
    }
}

/* The same of what it forgets, in one line. */
static dq_status warn_forgotten(const dq_cache_job *j, const dq_plan_heads_settings *s, dq_err *err)
{
    static const char *const keys[] = {"policy", "keep",   "tokens", "every",
                                       "window", "budget", "seed"};
    if (!j->weights) return DQ_OK;
    json_t *recipe = dq_heads_plan_output_recipe_of(s, j->weights, "0.0,0.1/"); /* as above */
    const json_t *was = json_object_get(j->weights, "kv"), *kv = json_object_get(recipe, "kv");
    char list[400] = "";
    dq_kv_config config;
    json_t *mine = dq_kv_config_file(&config, kv, err) == DQ_OK ? dq_kv_config_json(&config) : NULL;
    for (size_t i = 0, n = 0; mine && i < sizeof keys / sizeof *keys; i++) {
        const json_t *old = json_object_get(was, keys[i]);
        if (!old || json_equal(old, json_object_get(mine, keys[i]))) continue;
        char *text = json_dumps(old, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        if (text && n < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s %s", n ? ", " : "", keys[i],
                                  text);
        free(text);
    }
    json_decref(mine);
    json_decref(recipe);
    if (*list)
        dq_logger_warn(j->c->logger,
                       "%s: has %s of its own, which the recipe does not keep: the plan has policy "
                       "%s, keep %g and budget heads",
                       j->c->weights, list, s->kv.evict.policy->name, s->keep);
    return err->code;
}

/* ---- Warnings of the run ---- */

/* Of contexts with which the policy could not do what it is for, as dq eval warns of them. */
static void warn_policy(const dq_cache_job *j, const dq_plan_heads *p)
{
    const dq_head_order *map = &j->model->map;
    const int64_t n = p->caches.win.n, most = j->model->max_positions;
    const unsigned needs = p->set.kv.evict.policy->needs;
    dq_kv_spec spec = dq_kv_plain;
    dq_kv_cached told = {.evicted = n};
    bool flat = false;
    for (int g = 0; g < map->n_groups; g++)
        flat = flat || p->context <= dq_head_order_key_channels(map, g);
    if (needs & DQ_NEEDS_KEY_LEVERAGE && flat) told.flat = n;
    if (needs & DQ_NEEDS_PEAK && most > 0 && dq_second_pass_end(p->context) > most) told.beyond = n;
    spec.evict = p->set.kv.evict;
    spec.evict.keep = p->set.keep;
    dq_kv_report_warn_policy(j->c->logger, j->c->text, &spec, &told);
}

/* The recipe has what the search found, whatever the other windows say. */
static void warn_worse(const dq_cache_job *j, const dq_plan_heads *p)
{
    if (!p->all_share && p->kld.low > 0)
        dq_logger_warn(j->c->logger,
                       "%s: on windows that no choice has seen the same share in every group loses "
                       "less than these heads; find them on more (--find), or leave them out",
                       j->c->out);
}

/* ---- The run ---- */

/* The recipe is finished once it is written: it stays where what is said of it does not come out. */
static dq_status hand_out(const dq_cache_job *j, dq_plan_heads *p, const dq_heads_plan_view *v,
                          dq_err *err)
{
    json_t *recipe = dq_heads_plan_output_recipe_of(&p->set, j->weights, p->text);
    if (dq_cache_job_write(j, recipe, err) != DQ_OK) return dq_plan_heads_failed(p, err);
    dq_plan_heads_done(p);
    warn_worse(j, p);
    return j->c->json ? dq_heads_plan_output_json(v, err) : dq_heads_plan_output_print(v, err);
}

static dq_status run_plan(dq_cache_job *j, const dq_plan_heads_settings *set,
                          const dq_input_text *questions, dq_err *err)
{
    dq_plan_heads *p;
    DQ_TRY(dq_plan_heads_open(&p, set, err));
    const dq_heads_plan_view v = {p, &j->text, questions, j->c->logger};
    dq_cache_job_warn(j, &p->caches);
    warn_questions(j, &p->caches);
    warn_policy(j, p);
    if (j->c->dry_run) {
        j->c->json ? dq_heads_plan_output_json(&v, err) : dq_heads_plan_output_work(&v, err);
    } else {
        dq_progress_begin(&j->bar, j->c->logger, "plan", 1);
        j->bar.rough = true;
        dq_plan_heads_run(p, err);
        dq_progress_end(&j->bar);
        if (err->code == DQ_OK) hand_out(j, p, &v, err);
    }
    dq_plan_heads_close(p);
    return err->code;
}

dq_status dq_heads_plan_run(const dq_cache_plan *c, const char *model, dq_err *err)
{
    dq_plan_heads_settings set = {0};
    const dq_cache_job_recipe recipe = {recipe_of, warn_weights, &set};
    dq_cache_job j;
    dq_items items;
    dq_input_text questions = {0};
    DQ_TRY(make_settings(&set, c, err));
    if (dq_cache_job_open(&j, c, model, DQ_PLAN_HEADS_WINDOWS, &recipe, err) == DQ_OK) {
        set.kv.evict.policy = dq_kv_policy_for(set.kv.evict.policy, j.model->map.n_maps);
        warn_replaced(&j, &set);
        if (warn_forgotten(&j, &set, err) == DQ_OK &&
            read_questions(&items, &questions, &j, err) == DQ_OK) {
            set.in = j.in;
            set.in.questions = c->questions ? &items : NULL;
            set.in.questions_path = c->questions;
            run_plan(&j, &set, &questions, err);
        }
    }
    dq_cache_job_close(&j);
    return err->code;
}
