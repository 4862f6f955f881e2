/* heads_output: see heads_output.h. Every figure of the tables is in the document too; groups stand in order of need.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/heads_output.h"

#include "cmds/cli/stdout.h"
#include "cmds/cli/table.h"
#include "cmds/plan/cache_numbers.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- The document ---- */

static void set_kv(json_t *o, const dq_plan_heads_settings *s, const char *heads)
{
    json_object_set_new(o, "policy", json_string(s->kv.evict.policy->name));
    json_object_set_new(o, "keep", dq_document_real(s->keep));
    json_object_set_new(o, "budget", json_string(dq_kv_budget_name[DQ_KV_BUDGET_HEADS]));
    json_object_set_new(o, "heads", json_string(heads));
    if (!json_object_get(o, "dense_type"))
        json_object_set_new(o, "dense_type", json_string(dq_kv_dense_name[s->kv.dense]));
    json_object_set_new(o, "sink", json_integer(s->kv.sink));
    json_object_set_new(o, "recent", json_integer(s->kv.recent));
}

/* Group `i` in order of need; of a dry run as the model has them. */
static json_t *group_json(const dq_plan_heads *p, int i)
{
    const int g = p->order[i];
    json_t *o = json_object();
    json_object_set_new(o, "layer", json_integer(p->group[g].layer));
    json_object_set_new(o, "group", json_integer(p->group[g].group));
    if (p->chosen < 0) return o;
    json_object_set_new(o, "alone",
                        p->set.find ? dq_cache_numbers_json(&p->missed[g]) : json_null());
    json_object_set_new(o, "lack_nats",
                        p->caches.n_questions
                            ? dq_document_metric(p->lack[g].value, p->lack[g].std_err)
                            : json_null());
    json_object_set_new(o, "shares", json_boolean(i < p->trial[p->chosen].sharing));
    return o;
}

/* null without windows that find, or questions. */
static void set_lost(json_t *o, const dq_plan_heads *p, const dq_plan_heads_trial *t)
{
    json_object_set_new(o, "kld_nats", p->set.find ? dq_document_real(t->kld) : json_null());
    json_object_set_new(o, "lack_nats",
                        p->caches.n_questions ? dq_document_real(t->lack) : json_null());
}

static json_t *trials_json(const dq_plan_heads *p)
{
    json_t *list = json_array();
    for (int i = 0; i < p->n_trials; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "sharing", json_integer(p->trial[i].sharing));
        set_lost(o, p, &p->trial[i]);
        json_object_set_new(o, "taken", json_boolean(i == p->chosen));
        json_array_append_new(list, o);
    }
    return list;
}

/* The uniform share; nothing where all groups share, so that there is nothing to compare. */
static json_t *baselines_json(const dq_plan_heads *p)
{
    json_t *list = json_array(), *o = json_object();
    json_object_set_new(o, "unseen", dq_cache_numbers_json(&p->uniform));
    json_object_set_new(o, "plan_less_it",
                        dq_cache_numbers_difference(&p->difference, p->kld, p->loss, p->outside));
    p->all_share ? json_decref(o) : (void)json_array_append_new(list, o);
    return list;
}

static json_t *result_json(const dq_plan_heads *p)
{
    json_t *o = json_object(), *groups = json_array();
    for (int i = 0; i < p->n_groups; i++) json_array_append_new(groups, group_json(p, i));
    if (p->chosen >= 0) {
        json_t *kv = json_object(), *search = json_object(), *chosen = json_object();
        set_kv(kv, &p->set, p->text);
        json_object_set_new(chosen, "kv", kv);
        json_object_set_new(chosen, "sharing", json_integer(p->trial[p->chosen].sharing));
        set_lost(search, p, &p->trial[p->chosen]);
        json_object_set_new(chosen, "search", search);
        json_object_set_new(chosen, "unseen", dq_cache_numbers_found(&p->found));
        json_object_set_new(o, "chosen", chosen);
        json_object_set_new(o, "baselines", baselines_json(p));
        json_object_set_new(o, "trials", trials_json(p));
        json_object_set_new(o, "path", dq_document_name(p->set.in.out));
        json_object_set_new(o, "results_taken_over", json_integer(p->caches.n_resumed));
    } else {
        json_object_set_new(o, "caches_alone", json_integer(p->n_groups));
        json_object_set_new(o, "caches_sharing_at_most", json_integer(dq_plan_heads_numbers(p)));
        json_object_set_new(o, "tokens_of_a_search_cache",
                            json_integer(dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_SEARCH)));
        json_object_set_new(o, "tokens_of_an_unseen_cache",
                            json_integer(dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_UNSEEN)));
    }
    json_object_set_new(o, "units", groups);
    return o;
}

json_t *dq_heads_output_settings(const dq_plan_heads *p)
{
    const dq_plan_heads_settings *s = &p->set;
    json_t *o = json_object();
    json_object_set_new(o, "kind", json_string("heads"));
    json_object_set_new(o, "kv_keep", dq_document_real(s->keep));
    json_object_set_new(o, "policy", json_string(s->kv.evict.policy->name));
    json_object_set_new(o, "dense_type", json_string(dq_kv_dense_name[s->kv.dense]));
    json_object_set_new(o, "recent", json_integer(s->kv.recent));
    json_object_set_new(o, "sink", json_integer(s->kv.sink));
    json_object_set_new(o, "ctx", json_integer(s->in.ctx));
    json_object_set_new(o, "context", json_integer(p->context));
    json_object_set_new(o, "windows", json_integer(p->caches.win.n));
    /* counted from 1, both of them among these, as the tables say it */
    json_object_set_new(o, "search_windows",
                        s->find ? json_pack("[i, I]", 1, (json_int_t)p->caches.end) : json_null());
    json_object_set_new(o, "questions", json_integer(p->caches.n_questions));
    json_object_set_new(o, "trials", json_integer(s->tries));
    json_object_set_new(o, "device", json_string(s->in.backend->device));
    return o;
}

dq_status dq_heads_output_json(const dq_heads_output_view *v, dq_err *err)
{
    json_t *doc = dq_document_new(v->logger, "dq-plan/1");
    json_t *inputs = json_object_get(doc, "inputs");
    json_array_append_new(inputs, dq_input_model_json(v->plan->set.in.model));
    json_array_append_new(inputs, dq_input_text_json(v->text));
    if (v->questions->path) json_array_append_new(inputs, dq_input_text_json(v->questions));
    json_object_set_new(doc, "settings", dq_heads_output_settings(v->plan));
    json_array_append_new(json_object_get(doc, "results"), result_json(v->plan));
    return dq_stdout_print(doc, err);
}

/* ---- The recipe ---- */

json_t *dq_heads_output_recipe_of(const dq_plan_heads_settings *s, const json_t *weights,
                                  const char *heads)
{
    static const char *const kept[] = {"tokens", "every", "window", "seed"};
    json_t *recipe =
        weights ? json_deep_copy(weights) : json_pack("{s: s}", "schema", "dq-recipe/1");
    json_t *was = json_object_get(recipe, "kv"), *kv = was ? json_deep_copy(was) : json_object();
    char comment[64];
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) json_object_del(kv, kept[i]);
    set_kv(kv, s, heads);
    json_object_set_new(recipe, "kv", kv);
    snprintf(comment, sizeof comment, "kv: dq plan heads --kv-keep %g", s->keep);
    if (!json_object_get(recipe, "comment"))
        json_object_set_new(recipe, "comment", json_string(comment));
    return recipe;
}

/* ---- Tables ---- */

static void number_cell(dq_table *t, dq_mean m)
{
    isfinite(m.std_err) ? dq_table_cell(t, "%.4g ± %.2g", m.value, m.std_err)
                        : dq_table_cell(t, "%.4g ± -", m.value);
}

static dq_status print_groups(const dq_plan_heads *p, dq_err *err)
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
        if (p->set.find) number_cell(t, p->missed[g].kld);
        if (p->caches.n_questions) number_cell(t, p->lack[g]);
    }
    dq_table_print(t, err);
    dq_table_free(t);
    return err->code;
}

static void print_inputs(const dq_heads_output_view *v)
{
    const dq_plan_heads *p = v->plan;
    const dq_model *m = p->set.in.model;
    printf("text               %lld windows of %lld tokens of %s: the first half of each is "
           "compressed, the second scored\n",
           (long long)p->caches.win.n, (long long)p->set.in.ctx, v->text->path);
    if (p->set.find)
        printf(
            "find               window%s 1 to %lld; the other %lld decide, which no choice sees\n",
            p->caches.end > 1 ? "s" : "", (long long)p->caches.end,
            (long long)(p->caches.win.n - p->caches.end));
    if (p->caches.n_questions)
        printf("ask                the last %lld questions of %s, whose contexts are compressed: "
               "-ln of the right answer's share of all choices counts%s\n",
               (long long)p->caches.n_questions, v->questions->path,
               p->set.find ? " beside the KLD" : "; all windows decide");
    printf("cache              16 bits; %s keeps %g of %lld tokens, the first %d and the last %d "
           "always\n",
           p->set.kv.evict.policy->name, p->set.keep, (long long)p->context, p->set.kv.sink,
           p->set.kv.recent);
    printf("groups             %d of KV heads: %d layer%s of %d\n", p->n_groups, m->n_layers,
           m->n_layers > 1 ? "s" : "", m->map.n_groups);
}

dq_status dq_heads_output_work(const dq_heads_output_view *v, dq_err *err)
{
    const dq_plan_heads *p = v->plan;
    const long long search = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_SEARCH);
    const long long unseen = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_UNSEEN);
    const long long asked = p->caches.question_ids;
    const int n = dq_plan_heads_numbers(p);
    print_inputs(v);
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
    dq_cache_numbers_time(v->pace, all, all);
    return dq_stdout_flush(err);
}

static void print_plan(const dq_plan_heads *p)
{
    printf("%-19s", p->set.find ? p->caches.n_questions ? "KLD + answers" : "KLD by number"
                                : "answers lack");
    for (int i = 0; i < p->n_trials; i++)
        printf("%s%d: %.4g", i ? ", " : "", p->trial[i].sharing, dq_plan_heads_lost(&p->trial[i]));
    printf("\nplan               --kv-policy %s --kv-keep %.15g --kv-sink %d --kv-recent %d "
           "--kv-budget heads --kv-heads %s\n",
           p->set.kv.evict.policy->name, p->set.keep, p->set.kv.sink, p->set.kv.recent, p->text);
    dq_cache_numbers_print(&p->found, &p->caches);
}

static void print_uniform(const dq_plan_heads *p)
{
    const dq_mean kld = p->difference.kld, loss = p->difference.loss;
    const double sure = 100 * (1 - p->outside);
    if (p->all_share) {
        printf(
            "against uniform    the plan is this one: all groups share, so each keeps as much\n");
        return;
    }
    printf("against uniform    KLD %.4g, perplexity %+.3f %%\n", p->uniform.kld.value,
           dq_cache_numbers_percent(p->uniform.loss.value));
    printf("                   KLD of the plan less its own %+.4g ± %.2g (nominally %.5g %%: %+.4g "
           "to %+.4g): %s\n",
           kld.value, kld.std_err, sure, p->kld.low, p->kld.high,
           dq_cache_numbers_verdict(p->kld, "the plan is closer", "the uniform share is closer",
                                    "inconclusive which is closer"));
    printf("                   perplexity %+.3f %% (nominally %.5g %%: %+.3f to %+.3f): %s\n",
           dq_cache_numbers_percent(loss.value), sure, dq_cache_numbers_percent(p->loss.low),
           dq_cache_numbers_percent(p->loss.high),
           dq_cache_numbers_verdict(p->loss, "the plan loses less", "the uniform share loses less",
                                    "inconclusive which loses less"));
}

dq_status dq_heads_output_print(const dq_heads_output_view *v, dq_err *err)
{
    const dq_plan_heads *p = v->plan;
    DQ_TRY(print_groups(p, err));
    putchar('\n');
    print_inputs(v);
    if (p->caches.n_resumed)
        printf("taken over         %lld windows and answers of caches of an earlier run\n",
               (long long)p->caches.n_resumed);
    print_plan(p);
    print_uniform(p);
    printf("recipe             %s\n", p->set.in.out);
    return dq_stdout_flush(err);
}
