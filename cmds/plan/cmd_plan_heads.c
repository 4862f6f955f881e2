/* Every figure of the tables is in the document too; groups stand in order of need.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "cmds/plan/inside.h"
#include "engine/runner.h"
#include "plan/plan_cache.h"
#include "record/record.h"
#include "settings/inputs.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void kv_rows(dq_row_writer *w, const void *settings, const char *heads)
{
    const dq_plan_heads_settings *s = settings;
    DQ_PUT(w, "policy", s->kv.evict.policy->name, "What decides which tokens stay.");
    DQ_PUT(w, "keep", s->keep, "Share of the tokens.", .when = DQ_NULL);
    DQ_PUT(w, "budget", dq_kv_budget_name[DQ_KV_BUDGET_HEADS], "That groups differ.",
           .words = &dq_kv_budget_name[DQ_KV_BUDGET_HEADS], .n_words = 1);
    DQ_PUT(w, "heads", heads, "Groups in order of need, as --kv-heads takes them.");
    dq_plan_put_dense(w, DQ_LIVE(w, &s->kv));
    DQ_PUT(w, "sink", s->kv.sink, "First tokens that stay.");
    DQ_PUT(w, "recent", s->kv.recent, "Last tokens that stay.");
}

/* The i-th in order of need; in a dry run, in the model's order. */
static void group_rows(dq_row_writer *w, const dq_plan_heads *p, int i, bool searched)
{
    const int g = w->live ? p->order[i] : 0;
    DQ_ITEM(w);
    DQ_PUT(w, "layer", p->group[g].layer, "Layer.");
    DQ_PUT(w, "group", p->group[g].group, "Group of KV heads in it.");
    if (searched) {
        dq_cache_numbers_put(w, "alone", DQ_LIVE(w, p->set.find ? &p->missed[g] : NULL),
                             "What is lost when it alone does not see the whole context; null: "
                             "not measured.");
        if (DQ_WHEN(w, p->caches.n_questions))
            DQ_METRIC(w, "lack_nats", p->lack[g],
                      "What answers lack then, in nats; null: no questions.", .when = DQ_NULL);
        else
            DQ_PUT(w, "lack_nats", DQ_NO_REAL, NULL);
        DQ_PUT(w, "shares", (bool)(i < p->trial[p->chosen].sharing),
               "Whether it shares what is kept.");
    }
    dq_row_end(w);
}

/* null without searched windows, or without questions. */
static void lost_rows(dq_row_writer *w, const dq_plan_heads *p, const dq_plan_heads_trial *t)
{
    DQ_PUT(w, "kld_nats", p->set.find ? t->kld : DQ_NO_REAL, "KLD on search windows; null: none.",
           .when = DQ_NULL);
    DQ_PUT(w, "lack_nats", p->caches.n_questions ? t->lack : DQ_NO_REAL,
           "What answers lack, in nats; null: no questions.", .when = DQ_NULL);
}

static void trial_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_heads *p = plan;
    const dq_plan_heads_trial *t = DQ_LIVE(w, &p->trial[i]);
    DQ_PUT(w, "sharing", t->sharing, "Groups.");
    lost_rows(w, p, t);
    DQ_PUT(w, "taken", (bool)(i == p->chosen), "Whether it is the plan.");
}

static void result_rows(dq_row_writer *w, const void *plan, int64_t searched)
{
    const dq_plan_heads *p = plan;
    if (searched) {
        const dq_plan_heads_trial *t = DQ_LIVE(w, &p->trial[p->chosen]);
        DQ_OBJECT(w, "chosen", "The plan.");
        DQ_OBJECT(w, "kv", "As a recipe has it.");
        kv_rows(w, DQ_LIVE(w, &p->set), DQ_LIVE(w, p->text));
        dq_row_end(w);
        DQ_PUT(w, "sharing", t->sharing, "Groups that share what is kept.");
        DQ_OBJECT(w, "search", "On the search.");
        lost_rows(w, p, t);
        dq_row_end(w);
        dq_cache_numbers_found(w, "unseen", DQ_LIVE(w, &p->found), "On unseen windows.");
        dq_row_end(w);
        DQ_LIST(w, "baselines", "The uniform share beside it; empty: all groups share.");
        if (DQ_WHEN(w, !p->all_share)) {
            DQ_ITEM(w);
            dq_cache_numbers_beside(w, DQ_LIVE(w, &p->uniform));
            dq_row_end(w);
        }
        dq_row_end(w);
        DQ_ITEMS(w, "trials", trial_rows, p, p->n_trials,
                 "Numbers of sharing groups that were tried.");
        DQ_PUT(w, "path", p->set.in.out, "The recipe.");
        DQ_PUT(w, "results_taken_over", p->caches.n_resumed,
               "Results that an interrupted run had.");
    } else {
        DQ_PUT(w, "caches_alone", p->n_groups, "Caches that groups need.");
        DQ_PUT(w, "caches_sharing_at_most", dq_plan_heads_numbers(p),
               "Caches of numbers of sharing groups at most.");
        dq_cache_numbers_work(w, DQ_LIVE(w, &p->caches));
    }
    DQ_LIST(w, "units", "Groups in order of need; of --dry-run as the model has them.");
    for (int i = 0; DQ_MORE(w, i, p->n_groups); i++) group_rows(w, p, i, searched);
    dq_row_end(w);
}

static void settings_rows(dq_row_writer *w, const void *plan)
{
    const dq_plan_heads *p = plan;
    const dq_plan_heads_settings *s = DQ_LIVE(w, &p->set);
    DQ_PUT(w, "kind", "heads", "What is planned.", DQ_WORD("heads"));
    DQ_PUT(w, "kv_keep", s->keep, "Share of the tokens that is kept.");
    DQ_PUT(w, "policy", s->kv.evict.policy->name, "What decides which tokens stay.");
    dq_plan_put_dense(w, DQ_LIVE(w, &s->kv));
    DQ_PUT(w, "recent", s->kv.recent, "Last tokens that stay.");
    DQ_PUT(w, "sink", s->kv.sink, "First tokens that stay.");
    DQ_PUT(w, "ctx", s->in.ctx, "Tokens of a window.");
    DQ_PUT(w, "context", p->context, "Of them of the context, which is compressed.");
    dq_cache_numbers_windows(w, DQ_LIVE(w, &p->caches));
    DQ_PUT(w, "questions", p->caches.n_questions, "Questions that groups are also judged by.");
    DQ_PUT(w, "trials", s->tries, "Numbers of sharing groups that are tried at most.");
}

static void warn_onto(const dq_cache_job *j, const dq_kv_config *kv)
{
    const char *path = j->c->onto;
    if (kv->widths[0] || kv->k_bits < 16 || kv->v_bits < 16)
        dq_logger_warn(&j->c->logger,
                       "%s: its cache holds codes: the plan is measured with 16 bits", path);
}

static const char *const dropped[] = {"tokens", "every", "window", "seed", NULL};
const dq_plan_kind dq_plan_heads_kind = {.name = "plan heads",
                                         .settings = settings_rows,
                                         .result = result_rows,
                                         .device = true,
                                         .kv = kv_rows,
                                         .sample = "0.0,0.1/",
                                         .option = "kv-keep",
                                         .dropped = dropped,
                                         .warn = warn_onto};

static void number_cell(dq_table *t, dq_mean m)
{
    isfinite(m.std_err) ? dq_table_cell(t, "%.4g ± %.2g", m.value, m.std_err)
                        : dq_table_cell(t, "%.4g ± -", m.value);
}

static void print_inputs(const dq_cache_job *j, const dq_plan_heads *p)
{
    const dq_model *m = p->set.in.model;
    printf("text               %lld windows of %lld tokens of %s: the first half of each is "
           "compressed, the second scored\n",
           (long long)p->caches.win.n, (long long)p->set.in.ctx, j->text.path);
    if (p->set.find)
        printf(
            "find               window%s 1 to %lld; the other %lld decide, which no choice sees\n",
            p->caches.end > 1 ? "s" : "", (long long)p->caches.end,
            (long long)(p->caches.win.n - p->caches.end));
    if (p->caches.n_questions)
        printf("ask                the last %lld questions of %s, whose contexts are compressed: "
               "-ln of the right answer's share of all choices counts%s\n",
               (long long)p->caches.n_questions, j->questions.path,
               p->set.find ? " beside the KLD" : "; all windows decide");
    printf("cache              16 bits; %s keeps %g of %lld tokens, the first %d and the last %d "
           "always\n",
           p->set.kv.evict.policy->name, p->set.keep, (long long)p->context, p->set.kv.sink,
           p->set.kv.recent);
    const int layers = dq_model_full_layers(m);
    printf("groups             %d of KV heads: %d layer%s of %d%s\n", p->n_groups, layers,
           layers > 1 ? "s" : "", m->map.n_groups, layers < m->n_layers ? " without a window" : "");
}

static dq_status heads_output_work(const dq_cache_job *j, dq_plan_heads *p, dq_err *err)
{
    double pace; /* seconds a token takes */
    DQ_TRY(dq_plan_heads_pace(&pace, p, err));
    const long long search = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_SEARCH);
    const long long unseen = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_UNSEEN);
    const long long asked = p->caches.question_ids;
    const int n = dq_plan_heads_numbers(p);
    print_inputs(j, p);
    printf("alone              %d caches, a group without its context and the others with all: "
           "%lld tokens\n",
           p->n_groups, p->n_groups * (search + asked));
    printf("share              at most %d caches, so many groups sharing: %lld tokens\n", n,
           n * (search + asked));
    printf("decide             at most %d caches: %lld tokens\n", DQ_PLAN_HEADS_UNSEEN,
           DQ_PLAN_HEADS_UNSEEN * unseen);
    printf("beside             the cache that evicts nothing, once for up to %d of these\n",
           DQ_PLAN_CACHES_SWEEP);
    const double all =
        (1 + 1.0 / DQ_PLAN_CACHES_SWEEP) *
        (double)((p->n_groups + n) * (search + asked) + DQ_PLAN_HEADS_UNSEEN * unseen);
    dq_cache_numbers_time(pace, all, all);
    return dq_stdout_flush(err);
}

static void print_uniform(const dq_plan_heads *p)
{
    if (p->all_share) {
        printf(
            "against uniform    the plan is this one: all groups share, so each keeps as much\n");
        return;
    }
    printf("against uniform    KLD %.4g, perplexity %+.3f %%\n", p->uniform.its.kld.of.value,
           dq_cache_numbers_percent(p->uniform.its.loss.of.value));
    dq_cache_numbers_compare(&p->uniform.less, "the uniform share", true);
}

static dq_status heads_output_print(const dq_cache_job *j, const dq_plan_heads *p, dq_err *err)
{
    const char *titles[4] = {"layer.group", "shares"};
    int n = 2;
    dq_table *t;
    if (p->set.find) titles[n++] = "KLD without its context";
    if (p->caches.n_questions) titles[n++] = "answers lack";
    DQ_TRY(dq_table_new(&t, titles, n, err));
    for (int i = 0; i < p->n_groups; i++) {
        const int g = p->order[i];
        dq_table_cell(t, "%d.%d", p->group[g].layer, p->group[g].group);
        dq_table_cell(t, "%s", i < p->trial[p->chosen].sharing ? "yes" : "no");
        if (p->set.find) number_cell(t, p->missed[g].kld.of);
        if (p->caches.n_questions) number_cell(t, p->lack[g]);
    }
    DQ_TRY(dq_table_finish(t, err));
    putchar('\n');
    print_inputs(j, p);
    if (p->caches.n_resumed)
        printf("taken over         %lld windows and answers of caches of an earlier run\n",
               (long long)p->caches.n_resumed);
    printf("%-19s", p->set.find ? p->caches.n_questions ? "KLD + answers" : "KLD by number"
                                : "answers lack");
    for (int i = 0; i < p->n_trials; i++)
        printf("%s%d: %.4g", i ? ", " : "", p->trial[i].sharing, dq_plan_heads_lost(&p->trial[i]));
    printf("\nplan               --kv-policy %s --kv-keep %.15g --kv-sink %d --kv-recent %d "
           "--kv-budget heads --kv-heads %s\n",
           p->set.kv.evict.policy->name, p->set.keep, p->set.kv.sink, p->set.kv.recent, p->text);
    dq_cache_numbers_print(&p->found, &p->caches);
    print_uniform(p);
    printf("recipe             %s\n", p->set.in.out);
    return dq_stdout_flush(err);
}

/* Inputs are cmd_plan.h's, the search is plan/plan_cache.h's. */

typedef struct options {
    dq_cache_options all;
    double keep; /* 0: not given */
    const char *policy, *gates;
    int64_t search_windows; /* -1: not given */
    int64_t search_items;   /* 0: not given */
} options;

static const dq_usage usage = {
    .name = "plan heads",
    .synopsis = "MODEL --kv-keep SHARE --text FILE -o RECIPE.json [options]",
    .about =
        "Finds retrieval and streaming heads: where a cache keeps that share of a context, which "
        "groups of KV heads share it, while the others keep first and last tokens alone (dq eval "
        "--kv-budget heads --kv-heads). The first half of each window is compressed, the second "
        "scored. On the first windows each group is cut alone, and groups are ordered by the KL "
        "divergence that this costs. Then as many groups of that order as can be whole, one more, "
        "... share (of more than 16: 16 numbers that grow by a factor), and the number that is "
        "closest is taken. Windows that "
        "no choice has seen compare it with the same share in every group. Heads found on running "
        "text can lose answers to questions: with --questions, what their right answers lack of "
        "all choices (-ln of their share) is added to the divergence in both choices.",
    .examples = "  dq plan heads model --kv-keep 0.125 --text test.txt --ctx 1024 -o heads.json\n"
                "  dq plan heads model --kv-keep 0.125 --text test.txt --onto cache.json -o "
                "both.json\n"};

static dq_status make_settings(dq_plan_heads_settings *s, const options *c, dq_err *err)
{
    const long long windows = c->all.windows ? c->all.windows : DQ_PLAN_HEADS_WINDOWS;
    s->kv = dq_kv_config_plain;
    s->kv.recent = c->all.recent >= 0 ? (int)c->all.recent : DQ_PLAN_HEADS_RECENT;
    if (c->all.sink >= 0) s->kv.sink = (int)c->all.sink;
    s->kv.evict.policy = dq_kv_policy_find(c->policy ? c->policy : DQ_POLICY_USUAL, err);
    if (!s->kv.evict.policy) return dq_in(err, "--kv-policy: ");
    if (c->all.trials && (c->all.trials < 2 || c->all.trials > DQ_PLAN_HEADS_MAX_TRIES))
        return dq_fail(err, DQ_USAGE,
                       "--trials %lld: expected 2 to %d of heads, which are numbers of groups.",
                       (long long)c->all.trials, DQ_PLAN_HEADS_MAX_TRIES);
    if (c->search_windows == 0 && !c->all.questions)
        return dq_fail(err, DQ_USAGE,
                       "--search-windows 0: heads are found on nothing. Give --questions.");
    if (c->search_items && !c->all.questions)
        return dq_fail(err, DQ_USAGE, "--search-items is about --questions, which are not given.");
    s->keep = c->keep;
    s->find = c->search_windows >= 0 ? c->search_windows : DQ_PLAN_HEADS_FIND;
    if (windows < s->find + DQ_PLAN_HEADS_LEAST_UNSEEN)
        return dq_fail(
            err, DQ_USAGE,
            "--limit %lld: expected at least %lld windows with --search-windows %lld, of which the "
            "first %lld find heads and the others decide.",
            windows, (long long)s->find + DQ_PLAN_HEADS_LEAST_UNSEEN, (long long)s->find,
            (long long)s->find);
    s->tries = c->all.trials ? (int)c->all.trials : DQ_PLAN_HEADS_TRIES;
    return DQ_OK;
}

enum { ASK = 32 }; /* without other words */

/* The last ones of a file. */
static dq_status read_questions(dq_items *items, dq_cache_job *j, int64_t asked, dq_err *err)
{
    const char *path = j->c->questions;
    const int64_t ask = asked ? asked : ASK;
    if (!path) return DQ_OK;
    dq_input_text *text = &j->questions;
    DQ_TRY(dq_input_read(text, path, j->a, err));
    const dq_task *task = dq_task_find("mc", j->a, err);
    if (!task) return err->code;
    DQ_TRY(dq_task_load(items, task, path, text->text, text->bytes, 0, j->a, err));
    dq_input_warn_bad(&j->c->logger, path, items->n_bad, items->first_bad);
    if (items->n < ask)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: has %lld items, and the last %lld are asked. Use --search-items %lld",
                       path, (long long)items->n, (long long)ask, (long long)items->n);
    items->item += items->n - ask;
    items->n = ask;
    dq_input_warn_spaces(items, path, &j->c->logger);
    return DQ_OK;
}

/* Warns, in one line, where the weights' recipe evicts differently. */
static dq_status warn_forgotten(const dq_cache_job *j, const dq_plan_heads_settings *s, dq_err *err)
{
    static const char *const keys[] = {"policy", "keep",   "tokens", "every",
                                       "window", "budget", "seed"};
    if (!j->onto) return DQ_OK;
    json_t *recipe = dq_cache_job_recipe_of(j, j->kind->sample);
    const json_t *was = json_object_get(j->onto, "kv"), *kv = json_object_get(recipe, "kv");
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
        dq_logger_warn(&j->c->logger,
                       "%s: has %s of its own, which the recipe does not keep: the plan has policy "
                       "%s, keep %g and budget heads",
                       j->c->onto, list, s->kv.evict.policy->name, s->keep);
    return err->code;
}

static dq_status run_plan(dq_cache_job *j, const dq_plan_heads_settings *set, dq_err *err)
{
    dq_plan_heads *p;
    DQ_TRY(dq_plan_heads_open(&p, set, err));
    dq_cache_job_warn(j, &p->caches);
    /* Warns of what weakens the questions. */
    const dq_plan_caches *c = &p->caches;
    const char *path = j->c->questions;
    if (c->n_single)
        dq_logger_warn(&j->c->logger,
                       "%s: %lld of %lld choices are a single token, which is predicted before "
                       "anything is evicted. Move the last words of each context, which are the "
                       "question, into its choices",
                       path, (long long)c->n_single, (long long)c->n_choices);
    if (c->n_truncated)
        dq_logger_warn(&j->c->logger,
                       "%s: %lld of %lld questions are longer than the %d positions of %s and lost "
                       "the beginning of their context",
                       path, (long long)c->n_truncated, (long long)c->n_questions,
                       j->model->max_positions, j->model->path);
    if ((double)c->longest > 1.1 * (double)c->shortest)
        dq_logger_warn(
            &j->c->logger,
            "%s: contexts have %lld to %lld tokens, and the groups that are whole keep as "
            "many tokens as the shortest has: in longer ones no group is cut alone. Use "
            "questions with contexts of one length",
            path, (long long)c->shortest, (long long)c->longest);
    /* Warns, as dq eval does, of contexts where the policy could not do its job. */
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
    spec.dense = p->set.kv.dense;
    spec.evict = p->set.kv.evict;
    spec.evict.keep = p->set.keep;
    dq_kv_report_warn_policy(&j->c->logger, j->c->text, &spec, &told);
    if (dq_cache_job_begin(j, p, &p->caches.win, err)) {
        dq_plan_heads_run(p, err);
        /* A written recipe stays even if the report about it fails; it has the search's result,
         * whatever the unseen windows say. */
        if (dq_cache_job_end(j, err) && dq_cache_job_write(j, &p->caches, p->text, err) == DQ_OK &&
            !p->all_share && p->uniform.less.kld.low > 0)
            dq_logger_warn(
                &j->c->logger,
                "%s: on windows that no choice has seen the same share in every group loses "
                "less than these heads; find them on more (--search-windows), or leave them out",
                j->c->out);
    }
    if (err->code == DQ_OK && dq_ranks_number() == 0)
        j->c->json      ? dq_plan_print(&j->c->logger, j->kind, j, p, err)
        : j->c->dry_run ? heads_output_work(j, p, err)
                        : heads_output_print(j, p, err);
    dq_plan_heads_close(p);
    return err->code;
}

/* A model's gates are used unless a policy is named. */
static dq_status take_gates(dq_cache_job *j, const options *o, dq_plan_heads_settings *set,
                            dq_err *err)
{
    if (o->gates) DQ_TRY(dq_model_take_gates(j->model, o->gates, err));
    if (!o->policy) set->kv.evict.policy = dq_kv_policy_usual(j->model->gates);
    if (!o->gates || set->kv.evict.policy->needs & DQ_NEEDS_GATES) return err->code;
    return dq_fail(err, DQ_USAGE, "--kv-gates is for the policy kvzap, and %s is named.",
                   o->policy);
}

dq_status dq_cmd_plan_heads(int argc, char **argv, dq_err *err)
{
    options o = {.all = dq_cache_options_none, .search_windows = -1};
    const dq_opt opts[] = {
        dq_opt_float("kv-keep", "SHARE", &o.keep, 0.001, 0.999,
                     "share of a context that the cache keeps"),
        DQ_CACHE_OPTIONS_TEXT(o.all, "windows at most (default 30): the first --search-windows "
                                     "find heads, the others decide"),
        dq_opt_int("search-windows", "N", &o.search_windows, 0, 1000000,
                   "first windows, which heads are found on (default 6; 0: on --questions alone)"),
        dq_opt_text("questions", "ITEMS.jsonl", &o.all.questions,
                    "items of dq eval --task mc, whose right answers count beside the windows that "
                    "find"),
        dq_opt_int("search-items", "N", &o.search_items, 1, 1000000,
                   "the last N of --questions (default 32)"),
        dq_opt_text("kv-policy", "NAME", &o.policy,
                    "what chooses tokens, one of dq eval's policies, with its default"),
        dq_opt_text("kv-gates", "FILE", &o.gates, "of dq plan gates, for the policy kvzap"),
        DQ_CACHE_OPTIONS_KEPT(o.all, "last tokens that stay (default 16)"),
        dq_opt_int("trials", "N", &o.all.trials, 1, 1000000,
                   "numbers of groups that may share (default 16)"),
        DQ_CACHE_OPTIONS_RUN(o.all,
                             "finish an interrupted run of the same command, for another share "
                             "too, and with other --trials and --search-windows"),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (!args.help) {
        dq_plan_heads_settings set = {0};
        if (!(o.keep > 0)) dq_fail(err, DQ_USAGE, "--kv-keep SHARE is missing: 0.001 to 0.999.");
        if (err->code == DQ_OK && make_settings(&set, &o, err) == DQ_OK &&
            dq_progress_listen(&o.all.logger, usage.name, err) == DQ_OK) {
            const dq_cache_job_recipe recipe = {&set, &set.kv, o.keep};
            dq_cache_job j = {.kind = &dq_plan_heads_kind, .c = &o.all, .recipe = &recipe};
            dq_items items;
            if (dq_cache_job_open(&j, &args, DQ_PLAN_HEADS_WINDOWS, err) == DQ_OK &&
                take_gates(&j, &o, &set, err) == DQ_OK) {
                /* Warns where the recipe's cache differs from what is measured. */
                const json_t *kv = json_object_get(j.onto, "kv");
                const struct {
                    const char *key;
                    int mine;
                } all[] = {{"recent", set.kv.recent}, {"sink", set.kv.sink}};
                for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
                    const json_t *was = json_object_get(kv, all[i].key);
                    if (was && json_integer_value(was) != all[i].mine)
                        dq_logger_warn(
                            &j.c->logger,
                            "%s: has %s %lld, which becomes %d, as the plan is measured. Or give "
                            "--kv-%s",
                            j.c->onto, all[i].key, (long long)json_integer_value(was), all[i].mine,
                            all[i].key);
                }
                if (warn_forgotten(&j, &set, err) == DQ_OK &&
                    read_questions(&items, &j, o.search_items, err) == DQ_OK) {
                    set.in = j.in;
                    set.in.questions = o.all.questions ? &items : NULL;
                    set.in.questions_path = o.all.questions;
                    run_plan(&j, &set, err);
                }
            }
            dq_cache_job_close(&j);
            dq_logger_end(&o.all.logger);
        }
    }
    return err->code;
}
