/* kv_output: see kv_output.h. Every figure of the tables is in the document too, where a perplexity stands as the
 * logarithm of its ratio to that of the unquantized cache.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/kv_output.h"

#include "cmds/cli/stdout.h"
#include "cmds/cli/table.h"
#include "cmds/plan/cache_numbers.h"
#include "kv/kv.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double dq_kv_output_coded(const dq_plan_kv *p)
{
    const dq_kv_spec spec = {.k_bits = 8,
                             .v_bits = 8,
                             .quant = p->set.kv.quant,
                             .sink = p->set.kv.sink,
                             .recent = p->set.kv.recent};
    double reads = 0, coded = 0;
    for (int64_t t = p->set.in.ctx / 2; t + 1 < p->set.in.ctx; t++) {
        const int32_t end = dq_kv_coded_end(&spec, (int32_t)t);
        if (end > spec.sink) coded += end - spec.sink;
        reads += (double)(t + 1);
    }
    return coded / reads;
}

/* ---- The document ---- */

static json_t *unit_json(const dq_plan_kv *p, int u, bool searched)
{
    const dq_plan_kv_unit x = dq_plan_kv_space_unit(&p->space, u);
    json_t *o = json_object(), *widths = json_array();
    json_object_set_new(o, "side", json_string(x.values ? "values" : "keys"));
    json_object_set_new(o, "layers", json_pack("[i, i]", x.first, x.first + x.layers - 1));
    json_object_set_new(o, "map", x.map < 0 ? json_null() : json_integer(x.map + 1));
    if (searched) {
        json_object_set_new(o, "bits", json_integer(p->trial[p->chosen].width[u]));
        for (int k = 0; k < p->space.n_bits; k++) {
            if (!dq_plan_kv_measures(p, k)) continue;
            json_t *w = dq_cache_numbers_json(&p->unit[u * p->space.n_bits + k]);
            json_object_set_new(w, "bits", json_integer(p->space.bits[k]));
            json_array_append_new(widths, w);
        }
        json_object_set_new(o, "alone", widths);
    } else {
        json_decref(widths);
    }
    return o;
}

static json_t *trials_json(const dq_plan_kv *p)
{
    json_t *list = json_array();
    for (int i = 0; i < p->n_trials; i++) {
        const dq_plan_kv_trial *t = &p->trial[i];
        json_t *o = json_object();
        json_object_set_new(o, "widths", json_string(p->caches.list[t->mix].name));
        json_object_set_new(o, "from", json_string(t->from));
        json_object_set_new(o, "mean_bits", dq_document_real(t->bits));
        json_object_set_new(o, "kld_nats", dq_document_real(t->kld));
        json_object_set_new(o, "units_kld_nats", dq_document_real(t->added));
        json_object_set_new(o, "taken", json_boolean(t->taken));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *baselines_json(const dq_plan_kv *p)
{
    json_t *list = json_array();
    for (int i = 0; i < p->n_baselines; i++) {
        const dq_plan_kv_baseline *r = &p->baseline[i];
        json_t *o = json_object();
        json_object_set_new(o, "widths", json_string(p->caches.list[r->mix].name));
        json_object_set_new(o, "mean_bits", dq_document_real(r->bits));
        json_object_set_new(o, "unseen", dq_cache_numbers_json(&r->its));
        json_object_set_new(
            o, "plan_less_it",
            dq_cache_numbers_difference(&r->difference, r->kld, r->loss, p->outside));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *kv_json(const dq_plan_kv_settings *s, const char *widths)
{
    json_t *o = json_object();
    json_object_set_new(o, "widths", json_string(widths));
    json_object_set_new(o, "quant", json_string(dq_kv_quant_name[s->kv.quant]));
    json_object_set_new(o, "dense_type", json_string(dq_kv_dense_name[s->kv.dense]));
    json_object_set_new(o, "recent", json_integer(s->kv.recent));
    json_object_set_new(o, "sink", json_integer(s->kv.sink));
    return o;
}

static json_t *result_json(const dq_plan_kv *p)
{
    const bool searched = p->chosen >= 0;
    json_t *o = json_object(), *units = json_array();
    for (int u = 0; u < p->space.n_units; u++)
        json_array_append_new(units, unit_json(p, u, searched));
    if (searched) {
        json_t *chosen = json_object();
        json_object_set_new(chosen, "kv", kv_json(&p->set, dq_plan_kv_widths(p)));
        json_object_set_new(chosen, "mean_bits", dq_document_real(p->trial[p->chosen].bits));
        json_object_set_new(chosen, "search_kld_nats", dq_document_real(p->trial[p->chosen].kld));
        json_object_set_new(chosen, "unseen", dq_cache_numbers_found(&p->found));
        json_object_set_new(o, "chosen", chosen);
        json_object_set_new(o, "baselines", baselines_json(p));
        json_object_set_new(o, "trials", trials_json(p));
        json_object_set_new(o, "path", dq_document_name(p->set.in.out));
        json_object_set_new(o, "results_taken_over", json_integer(p->caches.n_resumed));
    } else {
        json_object_set_new(o, "caches_alone", json_integer(dq_plan_kv_caches(p)));
        json_object_set_new(o, "caches_whole_at_most", json_integer(dq_plan_kv_max_trials(p)));
        json_object_set_new(o, "tokens_of_a_search_cache",
                            json_integer(dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_SEARCH)));
        json_object_set_new(o, "tokens_of_an_unseen_cache",
                            json_integer(dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_UNSEEN)));
    }
    json_object_set_new(o, "units", units);
    return o;
}

json_t *dq_kv_output_settings(const dq_plan_kv *p)
{
    const dq_plan_kv_settings *s = &p->set;
    json_t *o = json_object(), *widths = json_array();
    for (int i = 0; i < s->n_bits; i++) json_array_append_new(widths, json_integer(s->bits[i]));
    json_object_set_new(o, "kind", json_string("kv"));
    json_object_set_new(o, "kv_bits", dq_document_real(s->mean));
    json_object_set_new(o, "widths", widths);
    json_object_set_new(o, "quant", json_string(dq_kv_quant_name[s->kv.quant]));
    json_object_set_new(o, "dense_type", json_string(dq_kv_dense_name[s->kv.dense]));
    json_object_set_new(o, "recent", json_integer(s->kv.recent));
    json_object_set_new(o, "sink", json_integer(s->kv.sink));
    json_object_set_new(o, "layers_together", json_integer(s->together));
    json_object_set_new(o, "ctx", json_integer(s->in.ctx));
    json_object_set_new(o, "windows", json_integer(p->caches.win.n));
    /* counted from 1, both of them among these, as the tables say it */
    json_object_set_new(
        o, "search_windows",
        json_pack("[I, I]", (json_int_t)p->caches.begin + 1, (json_int_t)p->caches.end));
    json_object_set_new(o, "reads_coded", dq_document_real(dq_kv_output_coded(p)));
    json_object_set_new(o, "trials", json_integer(s->trials));
    json_object_set_new(o, "device", json_string(s->in.backend->device));
    return o;
}

dq_status dq_kv_output_json(const dq_kv_output_view *v, dq_err *err)
{
    json_t *doc = dq_document_new(v->logger, "dq-plan/1");
    json_t *inputs = json_object_get(doc, "inputs");
    json_array_append_new(inputs, dq_input_model_json(v->plan->set.in.model));
    json_array_append_new(inputs, dq_input_text_json(v->text));
    json_object_set_new(doc, "settings", dq_kv_output_settings(v->plan));
    json_array_append_new(json_object_get(doc, "results"), result_json(v->plan));
    return dq_stdout_print(doc, err);
}

/* ---- The recipe ---- */

json_t *dq_kv_output_recipe_of(const dq_plan_kv_settings *s, const json_t *weights,
                               const char *widths)
{
    json_t *recipe =
        weights ? json_deep_copy(weights) : json_pack("{s: s}", "schema", "dq-recipe/1");
    json_t *was = json_object_get(recipe, "kv"), *kv = was ? json_deep_copy(was) : json_object();
    char comment[64];
    json_object_del(kv, "k_bits");
    json_object_del(kv, "v_bits");
    json_object_update_new(kv, kv_json(s, widths));
    if (json_object_get(was, "dense_type"))
        json_object_set(kv, "dense_type", json_object_get(was, "dense_type"));
    json_object_set_new(recipe, "kv", kv);
    snprintf(comment, sizeof comment, "kv: dq plan kv --kv-bits %g", s->mean);
    if (!json_object_get(recipe, "comment"))
        json_object_set_new(recipe, "comment", json_string(comment));
    return recipe;
}

/* ---- Tables ---- */

static void unit_name(char name[128], const dq_plan_kv *p, int u)
{
    const dq_plan_kv_unit x = dq_plan_kv_space_unit(&p->space, u);
    char map[32] = "", last[32] = "";
    if (x.map >= 0) snprintf(map, sizeof map, ", map %d", x.map + 1);
    if (x.layers > 1) snprintf(last, sizeof last, " to %d", x.first + x.layers - 1);
    snprintf(name, 128, "%s of layer%s %d%s%s", x.values ? "values" : "keys",
             x.layers > 1 ? "s" : "", x.first, last, map);
}

static dq_status print_units(const dq_plan_kv *p, dq_err *err)
{
    const char *titles[DQ_PLAN_WIDTHS + 2] = {"unit", "bits"};
    char head[DQ_PLAN_WIDTHS][24], name[128];
    int n = 2;
    dq_table *t;
    for (int k = 0; k < p->space.n_bits; k++) {
        if (!dq_plan_kv_measures(p, k)) continue;
        snprintf(head[k], sizeof head[k], "KLD at %d", p->space.bits[k]);
        titles[n++] = head[k];
    }
    DQ_TRY(dq_table_new(&t, titles, n, err));
    for (int u = 0; u < p->space.n_units; u++) {
        unit_name(name, p, u);
        dq_table_cell(t, "%s", name);
        dq_table_cell(t, "%d", p->trial[p->chosen].width[u]);
        for (int k = 0; k < p->space.n_bits; k++) {
            if (!dq_plan_kv_measures(p, k)) continue;
            const dq_mean m = p->unit[u * p->space.n_bits + k].kld;
            isfinite(m.std_err) ? dq_table_cell(t, "%.2e ± %.0e", m.value, m.std_err)
                                : dq_table_cell(t, "%.2e ± -", m.value);
        }
    }
    dq_table_print(t, err);
    dq_table_free(t);
    return err->code;
}

static void print_widths(const dq_plan_kv *p)
{
    for (int k = 0; k < p->space.n_bits; k++) printf("%s%d", k ? "," : "", p->space.bits[k]);
}

static void print_inputs(const dq_kv_output_view *v)
{
    const dq_plan_kv *p = v->plan;
    char together[32] = "";
    if (p->set.together > 1) snprintf(together, sizeof together, ", %d together", p->set.together);
    printf("text               %lld windows of %lld tokens of %s, the second half of each scored\n",
           (long long)p->caches.win.n, (long long)p->set.in.ctx, v->text->path);
    printf("search             windows %lld to %lld; the other %lld decide, which no choice sees\n",
           (long long)p->caches.begin + 1, (long long)p->caches.end,
           (long long)(p->caches.win.n - p->caches.end + p->caches.begin));
    printf(
        "codes              %s, the first %d and the last %d tokens unquantized: %.1f %% of what "
        "is read are codes\n",
        dq_kv_quant_name[p->set.kv.quant], p->set.kv.sink, p->set.kv.recent,
        100 * dq_kv_output_coded(p));
    printf("units              %d: keys%s and values of %d layer%s%s, each with ", p->space.n_units,
           p->space.n_maps == 2 ? " by map" : "", p->space.n_layers,
           p->space.n_layers > 1 ? "s" : "", together);
    print_widths(p);
    printf(" bits\n");
}

dq_status dq_kv_output_work(const dq_kv_output_view *v, dq_err *err)
{
    const dq_plan_kv *p = v->plan;
    const long long search = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_SEARCH);
    const long long unseen = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_UNSEEN);
    const long long alone = dq_plan_kv_caches(p), whole = dq_plan_kv_max_trials(p);
    print_inputs(v);
    printf("alone              %lld caches, a unit at a width and the others at %d bits: %lld "
           "tokens\n",
           alone, DQ_PLAN_KV_OTHERS, alone * search);
    printf("whole              at most %lld caches in the search: %lld tokens\n", whole,
           whole * search);
    printf("decide             at most 3 caches: %lld tokens\n", 3 * unseen);
    printf("beside             the unquantized cache, once for up to %d of these\n",
           DQ_PLAN_CACHES_SWEEP);
    printf("mean               %g bits of keys and values\n", p->set.mean);
    const double beside = 1 + 1.0 / DQ_PLAN_CACHES_SWEEP;
    dq_cache_numbers_time(v->pace, beside * (double)(alone * search + 3 * unseen),
                          beside * (double)((alone + whole) * search + 3 * unseen));
    return dq_stdout_flush(err);
}

/* Mixes that were the plan for a while, and how many were not. */
static void print_search(const dq_plan_kv *p)
{
    static const char *const names[][2] = {
        {"units", "by units"}, {"uniform", "uniform"}, {"trade", "a step away"}};
    for (int i = 0; i < p->n_trials; i++) {
        const dq_plan_kv_trial *t = &p->trial[i];
        const char *name = "";
        for (int k = 0; k < 3; k++) name = strcmp(names[k][0], t->from) == 0 ? names[k][1] : name;
        if (t->taken)
            printf("%-18s %s: KLD %.3g on the search windows, %.3g by its units alone\n", name,
                   p->caches.list[t->mix].name, t->kld, t->added);
    }
    printf("measured           %d mix%s whole\n", p->n_trials, p->n_trials > 1 ? "es" : "");
}

static void print_plan(const dq_plan_kv *p)
{
    printf("plan               --kv-quant %s --kv-recent %d --kv-sink %d --kv-bits '%s'\n",
           dq_kv_quant_name[p->set.kv.quant], p->set.kv.recent, p->set.kv.sink,
           dq_plan_kv_widths(p));
    printf("bits               %.4g of keys and values, without scales\n",
           p->trial[p->chosen].bits);
    dq_cache_numbers_print(&p->found, &p->caches);
}

static void print_baselines(const dq_plan_kv *p)
{
    for (int i = 0; i < p->n_baselines; i++) {
        const dq_plan_kv_baseline *r = &p->baseline[i];
        const double more = p->trial[p->chosen].bits - r->bits;
        char name[DQ_KV_LISTS + 16];
        snprintf(name, sizeof name, "against %s", p->caches.list[r->mix].name);
        printf("%-18s %.4g bits; KLD %.3g, perplexity %+.3f %%\n", name, r->bits, r->its.kld.value,
               dq_cache_numbers_percent(r->its.loss.value));
        printf("                   KLD of the plan less its own %+.3g (nominally %.5g %%: %+.3g to "
               "%+.3g): %s\n",
               r->difference.kld.value, 100 * (1 - p->outside), r->kld.low, r->kld.high,
               dq_cache_numbers_verdict(r->kld, "the plan is closer", "the uniform width is closer",
                                        "inconclusive which is closer"));
        printf("                   perplexity %+.3f %% (nominally %.5g %%: %+.3f to %+.3f): %s\n",
               dq_cache_numbers_percent(r->difference.loss.value), 100 * (1 - p->outside),
               dq_cache_numbers_percent(r->loss.low), dq_cache_numbers_percent(r->loss.high),
               dq_cache_numbers_verdict(r->loss, "the plan loses less",
                                        "the uniform width loses less",
                                        "inconclusive which loses less"));
        if (more > 1e-9)
            printf("                   the plan has %.3g bits more: no uniform widths come nearer "
                   "to the mean from below\n",
                   more);
    }
    if (p->n_baselines == 0 && p->n_trials == 1)
        printf("uniform            no other mix within the mean was measured\n");
    else if (p->n_baselines == 0)
        printf("uniform            the plan is this one: nothing else that was measured on the "
               "search windows is closer there (no interval)\n");
}

dq_status dq_kv_output_print(const dq_kv_output_view *v, dq_err *err)
{
    const dq_plan_kv *p = v->plan;
    DQ_TRY(print_units(p, err));
    putchar('\n');
    print_inputs(v);
    if (p->caches.n_resumed)
        printf("taken over         %lld windows of mixes of an earlier run\n",
               (long long)p->caches.n_resumed);
    print_search(p);
    print_plan(p);
    print_baselines(p);
    printf("recipe             %s\n", p->set.in.out);
    return dq_stdout_flush(err);
}
