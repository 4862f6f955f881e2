/* weights_output: see weights_output.h. The document and the recipe hold one object of the plan, made once.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/weights_output.h"

#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "cmds/cli/stdout.h"
#include "cmds/cli/table.h"
#include "plan/plan_weights.h"
#include "quantize/quantize.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CURVE_ROWS = 12 }; /* of the printed curve */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

const char *dq_weights_output_file(const dq_plan_weights *p, int text)
{
    return text == DQ_PLAN_UNSEEN && p->set.unseen ? p->set.unseen : p->set.calib;
}

/* ---- The object of a plan ---- */

static json_t *texts_json(const dq_plan_weights *p)
{
    json_t *list = json_array();
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) {
        const dq_calib_text *t = &p->text[i];
        json_t *o = json_object();
        json_object_set_new(o, "part", json_string(dq_plan_text_name[i]));
        json_object_set_new(o, "file", dq_document_name(base_name(dq_weights_output_file(p, i))));
        json_object_set_new(o, "sha256", json_string(t->sha256));
        if (i == DQ_PLAN_SEARCH) /* the one that chose widths */
            json_object_set_new(o, "sketch", dq_calib_text_sketch(t));
        json_object_set_new(o, "quarters", dq_calib_text_quarters(p->part[i]));
        json_object_set_new(o, "tokens", json_integer(t->n_ids));
        json_object_set_new(o, "sequences", json_integer(t->n_seq));
        json_object_set_new(o, "ctx", json_integer(t->ctx));
        json_array_append_new(list, o);
    }
    return list;
}

/* What makes the codes of the plan again: read by dq quantize. */
static json_t *calib_json(const dq_plan_weights *p)
{
    const dq_calib_text *t = &p->text[DQ_PLAN_CALIB];
    json_t *o = json_object();
    json_object_set_new(o, "sha256", json_string(t->sha256));
    json_object_set_new(o, "quarters", dq_calib_text_quarters(p->part[DQ_PLAN_CALIB]));
    json_object_set_new(o, "tokens", json_integer(t->requested));
    json_object_set_new(o, "ctx", json_integer(t->ctx));
    return o;
}

static json_t *tensors_json(const dq_plan_weights *p)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        json_t *o = json_object(), *widths = json_array();
        json_object_set_new(o, "name", dq_document_name(t->name));
        json_object_set_new(o, "weights", json_integer(t->rows * t->cols));
        if (p->chosen >= 0)
            json_object_set_new(o, "bits", json_integer(t->bits[p->trial[p->chosen].choice[i]]));
        for (int k = 0; k < t->n; k++) {
            json_t *w = json_object();
            json_object_set_new(w, "bits", json_integer(t->bits[k]));
            json_object_set_new(w, "bytes", json_integer(t->bytes[k]));
            const dq_mean kld = dq_plan_probe_kld(t, k);
            json_object_set_new(w, "loss", dq_document_real(t->loss[k]));
            json_object_set_new(w, "kld", dq_document_metric(kld.value, kld.std_err));
            json_array_append_new(widths, w);
        }
        json_object_set_new(o, "measured_bits", json_integer(t->bits[t->measured]));
        json_object_set_new(o, "widths", widths);
        json_array_append_new(list, o);
    }
    return list;
}

/* Every point, or about `rows` of them at even intervals of cost. */
static int64_t next_point(const dq_plan_curve *c, int64_t point, int rows)
{
    const double gap = (c->cost[c->n - 1] - c->cost[0]) / rows;
    int64_t k = point + 1;
    while (k + 1 < c->n && c->cost[k] < c->cost[point] + gap) k++;
    return k;
}

static json_t *curve_json(const dq_plan_weights *p)
{
    enum { ROWS = 100 };
    json_t *list = json_array();
    for (int64_t k = 0; k < p->curve.n; k = next_point(&p->curve, k, ROWS)) {
        json_t *o = json_object();
        json_object_set_new(o, "packed_bits_per_weight",
                            dq_document_real(dq_plan_weights_bits_per_weight(p, p->curve.cost[k])));
        json_object_set_new(o, "predicted_kld", dq_document_real(p->curve.loss[k]));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *interval_json(dq_interval i)
{
    return json_pack("[o, o]", dq_document_real(i.low), dq_document_real(i.high));
}

/* outside: of the interval. */
static json_t *numbers_json(const dq_plan_numbers *n, double outside)
{
    json_t *o = json_object();
    json_object_set_new(o, "kld", dq_document_metric(n->kld.value, n->kld.std_err));
    json_object_set_new(o, "kld_interval",
                        interval_json(dq_plan_decide_kld(n->kld, n->kld_skew, outside)));
    json_object_set_new(o, "outside", dq_document_real(outside));
    json_object_set_new(o, "kld_skewness", dq_document_real(n->kld_skew));
    json_object_set_new(o, "ln_ppl_ratio", dq_document_metric(n->loss.value, n->loss.std_err));
    json_object_set_new(o, "clusters", json_integer(n->kld.clusters));
    return o;
}

static bool is_baseline(const dq_plan_weights *p, int64_t trial)
{
    for (int i = 0; i < p->n_baselines; i++) {
        if (p->baseline[i].trial == trial) return true;
    }
    return false;
}

static json_t *trial_json(const dq_plan_weights *p, int64_t i)
{
    const dq_plan_trial *t = &p->trial[i];
    json_t *o = json_object();
    json_object_set_new(o, "packed_bits_per_weight", dq_document_real(t->bits_per_weight));
    json_object_set_new(o, "uniform_bits", t->uniform ? json_integer(t->uniform) : json_null());
    json_object_set_new(o, "packed_bytes", json_integer(t->packed_bytes));
    json_object_set_new(o, "predicted_kld", dq_document_real(t->predicted));
    json_object_set_new(o, "search", numbers_json(&t->on[DQ_PLAN_SEARCH], 0.05));
    /* what was not looked at is not shown either */
    if (t->look || is_baseline(p, i))
        json_object_set_new(
            o, "unseen",
            numbers_json(&t->on[DQ_PLAN_UNSEEN], dq_plan_decide_outside(t->look ? t->look : 1)));
    if (t->look) {
        json_object_set_new(o, "look", json_integer(t->look));
        json_object_set_new(o, "look_interval", interval_json(t->interval));
        json_object_set_new(o, "meets", json_boolean(t->meets));
    }
    return o;
}

/* Outside of each interval of a difference to a uniform width. */
static double outside_baseline(const dq_plan_weights *p)
{
    return dq_plan_decide_outside_of(p->trial[p->chosen].look, 2);
}

static json_t *baselines_json(const dq_plan_weights *p)
{
    json_t *list = json_array();
    for (int i = 0; i < p->n_baselines; i++) {
        const dq_plan_baseline *r = &p->baseline[i];
        json_t *o = json_object();
        json_object_set_new(o, "bits", json_integer(p->trial[r->trial].uniform));
        json_object_set_new(o, "packed_bits_per_weight",
                            dq_document_real(p->trial[r->trial].bits_per_weight));
        json_object_set_new(o, "kld_difference",
                            dq_document_metric(r->difference.value, r->difference.std_err));
        json_object_set_new(o, "interval", interval_json(r->interval));
        json_object_set_new(o, "outside", dq_document_real(outside_baseline(p)));
        if (p->set.budget.goal >= DQ_PLAN_BPW)
            json_object_set_new(o, "beyond_budget", json_boolean(r->beyond));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *plan_json(const dq_plan_weights *p, const char *budget)
{
    const dq_plan_trial *chosen = &p->trial[p->chosen];
    char arithmetic[DQ_OS_ARITHMETIC];
    json_t *o = json_object(), *trials = json_array();
    dq_os_arithmetic(arithmetic);
    json_object_set_new(o, "dq_version", json_string(p->set.set.dq_version));
    json_object_set_new(o, "arithmetic", json_string(arithmetic));
    json_object_set_new(o, "budget", json_string(budget));
    json_object_set_new(o, "met", json_boolean(p->met));
    json_object_set_new(o, "packed_bits_per_weight", dq_document_real(chosen->bits_per_weight));
    json_object_set_new(o, "weights_sha256", json_string(chosen->weights_sha256));
    json_object_set_new(o, "model_fingerprint", json_string(p->model->fingerprint));
    json_object_set_new(o, "calib", calib_json(p));
    json_object_set_new(o, "texts", texts_json(p));
    json_object_set_new(o, "interim_looks", json_integer(p->n_look));
    json_object_set_new(o, "looks_for_other_budgets", json_integer(p->n_earlier));
    json_object_set_new(o, "chosen", trial_json(p, p->chosen));
    json_object_set_new(o, "baselines", baselines_json(p));
    json_object_set_new(o, "uniform_was_better", json_boolean(p->mix >= 0));
    for (int64_t i = 0; i < p->n_trials; i++) json_array_append_new(trials, trial_json(p, i));
    json_object_set_new(o, "trials", trials);
    json_object_set_new(o, "units", tensors_json(p));
    json_object_set_new(o, "curve", curve_json(p));
    return o;
}

json_t *dq_weights_output_told(void *budget, const dq_plan_weights *p)
{
    return plan_json(p, *(const char **)budget);
}

/* ---- Files ---- */

dq_status dq_weights_output_recipe(const dq_plan_weights *p, const char *budget, dq_err *err)
{
    json_t *rules = dq_plan_weights_rules(p, p->trial[p->chosen].choice),
           *plan = plan_json(p, budget);
    json_t *recipe = NULL, *file = NULL;
    char *text = NULL, *whole = NULL;
    const dq_quantize_settings s = dq_plan_weights_settings_of(p, p->chosen, rules, plan);
    if (dq_quantize_recipe_of(&recipe, &s, err) == DQ_OK &&
        dq_json_dump(&whole, recipe, 0, err) == DQ_OK &&
        dq_quantize_recipe_file(&file, whole, err) == DQ_OK &&
        dq_json_dump(&text, file, JSON_INDENT(2), err) == DQ_OK)
        dq_file_write(p->set.out, text, strlen(text), err);
    free(text);
    free(whole);
    json_decref(file);
    json_decref(recipe);
    json_decref(plan);
    json_decref(rules);
    return err->code;
}

dq_status dq_weights_output_json(const dq_plan_weights *p, const char *budget,
                                 const dq_logger *logger, dq_err *err)
{
    json_t *doc = dq_document_new(logger, "dq-plan/1"), *in = json_object(), *set = NULL;
    json_t *widths = json_array(), *result = plan_json(p, budget);
    json_object_set_new(in, "path", dq_document_name(p->set.model));
    json_object_set_new(in, "architecture", json_string(p->model->architecture->name));
    json_array_append_new(json_object_get(doc, "inputs"), in);
    dq_quantize_recipe_of(&set, &p->set.set, err);
    json_object_del(set, "bits");
    for (int i = 0; i < p->set.n_bits; i++)
        json_array_append_new(widths, json_integer(p->set.bits[i]));
    json_object_set_new(set, "kind", json_string("weights"));
    json_object_set_new(set, "widths", widths);
    json_object_set_new(set, "method", json_string(p->set.rule->name));
    json_object_set_new(set, "trials", json_integer(p->set.trials));
    json_object_set_new(set, "include_embeddings", json_boolean(p->set.ends));
    json_object_set_new(doc, "settings", set);
    json_object_set_new(result, "path", dq_document_name(p->set.out));
    json_object_set_new(result, "container_bytes", json_integer(p->container_bytes));
    json_object_set_new(result, "results_taken_over", json_integer(p->n_resumed));
    json_array_append_new(json_object_get(doc, "results"), result);
    if (err->code == DQ_OK) return dq_stdout_print(doc, err);
    json_decref(doc);
    return err->code;
}

/* ---- Tables ---- */

/* Three digits that mean something, so that no KLD above 0 is shown as 0. */
typedef struct figure {
    char text[32];
} figure;

static figure nats(double x)
{
    figure f = {"0"};
    if (x != 0) snprintf(f.text, sizeof f.text, "%#.3g", x);
    return f;
}

/* Recipes count quarters from 0, so words, not numbers. */
static void print_quarters(unsigned part)
{
    static const char *const names[DQ_CALIB_TEXT_QUARTERS] = {"first", "second", "third", "fourth"};
    const char *between = ": the ";
    for (int q = 0; q < DQ_CALIB_TEXT_QUARTERS && part != DQ_CALIB_TEXT_ALL; q++) {
        if (!(part >> q & 1)) continue;
        printf("%s%s", between, names[q]);
        between = " and ";
    }
    printf("%s\n", part != DQ_CALIB_TEXT_ALL ? " quarter" : "");
}

void dq_weights_output_inputs(const dq_plan_weights *p)
{
    double least = 0, all = 0;
    for (int64_t i = 0; i < p->n_tensors; i++) {
        least += p->item[i].cost[0];
        all += p->item[i].cost[p->item[i].n - 1];
    }
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) {
        const dq_calib_text *t = &p->text[i];
        printf("%-18s %lld token%s in %lld sequence%s of at most %lld, of %s", dq_plan_text_name[i],
               (long long)t->n_ids, t->n_ids == 1 ? "" : "s", (long long)t->n_seq,
               t->n_seq == 1 ? "" : "s", (long long)t->ctx, dq_weights_output_file(p, i));
        print_quarters(p->part[i]);
    }
    printf("tensors            %lld to be packed, %lld weights, %.3f", (long long)p->n_tensors,
           (long long)p->packed_params, dq_plan_weights_bits_per_weight(p, least));
    if (all > least) printf(" to %.3f", dq_plan_weights_bits_per_weight(p, all));
    printf(" bits per weight\n");
}

/* How long it takes, by what is run now. */
static dq_status print_time(const dq_plan_weights *p, double most, dq_err *err)
{
    const char *dir = getenv("TMPDIR");
    char a[32], b[32];
    double seconds;
    const char *beside =
        p->set.out ? p->set.out : dq_textf(p->arena, err, "%s/dq", dir ? dir : "/tmp");
    if (!beside) return err->code;
    DQ_TRY(dq_plan_pace(&seconds, p, beside, err));
    const double once = dq_plan_weights_flop(p), each = dq_plan_weights_trial_flop(p);
    const double usual = fmin(dq_plan_weights_models(p), most);
    printf("time               about %s here, with %.0f whole models, and %s with all of them; at "
           "the %.3g GFLOP/s of a layer\n",
           dq_document_time_text(a, sizeof a, (once + usual * each) * seconds), usual,
           dq_document_time_text(b, sizeof b, (once + most * each) * seconds), 1e-9 / seconds);
    return DQ_OK;
}

dq_status dq_weights_output_work(const dq_plan_weights *p, dq_err *err)
{
    const bool quality = p->set.budget.goal == DQ_PLAN_KLD || p->set.budget.goal == DQ_PLAN_PPL;
    int64_t scratch = 0, memory;
    char a[32];
    scratch = (p->text[DQ_PLAN_CALIB].n_ids + 2 * p->probe_text.n_ids) * p->model->dim *
              (int64_t)sizeof(float);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        scratch += dq_plan_part_bytes(&p->text[i], p->model);
    printf(
        "sensitivities      %lld tensors, each measured on %lld tokens, about %.3g GFLOP in all\n",
        (long long)p->n_tensors, (long long)p->probe_text.n_ids, dq_plan_weights_flop(p) / 1e9);
    const int search = quality ? p->set.trials : DQ_PLAN_SIZE_TRIES;
    const int after = quality ? 1 + DQ_PLAN_MAX_LOOK + 2 : 1 + 2;
    const double choices = dq_plan_weights_choices(p);
    printf("whole models       at most ");
    if (choices < search + after)
        printf("%.0f, as there are no other choices of widths", choices);
    else
        printf("%d in the search, %d after it", search, after);
    printf(", about %.3g GFLOP each\n", dq_plan_weights_trial_flop(p) / 1e9);
    printf("scratch            %s beside the output, and a container\n",
           dq_document_size_text(a, sizeof a, scratch));
    DQ_TRY(dq_plan_memory(&memory, p, err));
    printf("memory             about %s beside mapped files\n",
           dq_document_size_text(a, sizeof a, memory));
    const int64_t have = dq_os_memory_bytes();
    bool runs = have <= 0 || memory <= have;
    DQ_TRY(dq_ranks_share(&runs, sizeof runs, err));
    if (!runs) return DQ_OK;
    return print_time(p, choices < search + after ? choices : search + after, err);
}

static dq_status print_tensors(const dq_plan_weights *p, dq_err *err)
{
    const char *titles[DQ_PLAN_WIDTHS + 3] = {"tensor", "weights", "bits"};
    char head[DQ_PLAN_WIDTHS][24];
    dq_table *t;
    for (int i = 0; i < p->set.n_bits; i++) {
        snprintf(head[i], sizeof head[i], "KLD at %d", p->set.bits[i]);
        titles[3 + i] = head[i];
    }
    DQ_TRY(dq_table_new(&t, titles, 3 + p->set.n_bits, err));
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *x = &p->tensor[i];
        dq_table_cell(t, "%s", x->name);
        dq_table_cell(t, "%lld", (long long)(x->rows * x->cols));
        dq_table_cell(t, "%d", x->bits[p->trial[p->chosen].choice[i]]);
        for (int w = 0; w < p->set.n_bits; w++) {
            int k = 0;
            while (k < x->n && x->bits[k] != p->set.bits[w]) k++;
            const dq_mean kld = k < x->n ? dq_plan_probe_kld(x, k) : (dq_mean){0};
            if (k < x->n && k == x->measured)
                dq_table_cell(t, "%.2e ± %.0e", kld.value, kld.std_err);
            else if (k < x->n)
                dq_table_cell(t, "%.2e", kld.value);
            else
                dq_table_cell(t, "-");
        }
    }
    dq_table_print(t, err);
    dq_table_free(t);
    return err->code;
}

/* The trial of a point, NULL: none. */
static const dq_plan_trial *trial_at(const dq_plan_weights *p, int64_t point)
{
    for (int64_t i = 0; i < p->n_trials; i++) {
        if (p->trial[i].point == point) return &p->trial[i];
    }
    return NULL;
}

static void measured_cells(dq_table *t, const dq_plan_trial *x)
{
    if (!x) {
        dq_table_cell(t, "-");
        dq_table_cell(t, "-");
        return;
    }
    const dq_plan_numbers *n = &x->on[DQ_PLAN_SEARCH];
    dq_table_cell(t, "%s ± %s", nats(n->kld.value).text, nats(n->kld.std_err).text);
    dq_table_cell(t, "%.5f ± %.5f", exp(n->loss.value), exp(n->loss.value) * n->loss.std_err);
}

static void widths_cell(dq_table *t, int uniform)
{
    if (uniform)
        dq_table_cell(t, "%d", uniform);
    else
        dq_table_cell(t, "mixed");
}

static dq_status print_curve(const dq_plan_weights *p, dq_err *err)
{
    static const char *const titles[] = {"bits per weight", "widths", "predicted KLD",
                                         "measured KLD", "perplexity ratio"};
    const dq_plan_curve *c = &p->curve;
    int *choice = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *choice, err);
    dq_table *t;
    if (!choice) return err->code;
    DQ_TRY(dq_table_new(&t, titles, 5, err));
    int64_t show = 0;
    for (int64_t k = 0; k < c->n; k++) {
        const dq_plan_trial *x = trial_at(p, k);
        if (k != show && !x) continue;
        if (k == show) show = next_point(c, k, CURVE_ROWS);
        dq_table_cell(t, "%.3f", dq_plan_weights_bits_per_weight(p, c->cost[k]));
        dq_plan_alloc_at(choice, c, k);
        widths_cell(t, dq_plan_weights_uniform_of(p, choice));
        dq_table_cell(t, "%s", nats(c->loss[k]).text);
        measured_cells(t, x);
    }
    dq_table_rule(t);
    for (int64_t i = 0; i < p->n_trials; i++) {
        const dq_plan_trial *x = &p->trial[i];
        if (x->point >= 0) continue;
        dq_table_cell(t, "%.3f", x->bits_per_weight);
        widths_cell(t, x->uniform);
        dq_table_cell(t, "%s", nats(x->predicted).text);
        measured_cells(t, x);
    }
    dq_table_print(t, err);
    dq_table_free(t);
    return err->code;
}

/* ---- Sentences ---- */

static void print_baselines(const dq_plan_weights *p)
{
    for (int i = 0; i < p->n_baselines; i++) {
        const dq_plan_baseline *r = &p->baseline[i];
        const double high = r->interval.high, low = r->interval.low;
        const char *says = high < 0  ? "the plan is closer"
                           : low > 0 ? "the uniform width is closer"
                                     : "inconclusive which is closer";
        printf("against uniform %d  %.3f bits per weight%s; KLD of the plan less its own %+.3g "
               "(nominally %.5g %%: %+.3g to %+.3g): %s\n",
               p->trial[r->trial].uniform, p->trial[r->trial].bits_per_weight,
               r->beyond ? ", beyond the budget" : "", r->difference.value,
               100 * (1 - outside_baseline(p)), low, high, says);
    }
    if (p->n_baselines)
        printf("                   two such comparisons share the 5 %% outside with the interim "
               "looks\n");
    if (p->mix >= 0)
        printf("                   on the search text a mix of %.3f bits per weight was not "
               "closer (KLD %s) than this uniform width (%s)\n",
               p->trial[p->mix].bits_per_weight,
               nats(p->trial[p->mix].on[DQ_PLAN_SEARCH].kld.value).text,
               nats(p->trial[p->chosen].on[DQ_PLAN_SEARCH].kld.value).text);
}

static void print_result(const dq_plan_weights *p)
{
    const dq_plan_trial *t = &p->trial[p->chosen];
    const dq_plan_numbers *n = &t->on[DQ_PLAN_UNSEEN];
    const double outside = dq_plan_decide_outside(t->look);
    const dq_interval k = dq_plan_decide_kld(n->kld, n->kld_skew, outside);
    const dq_interval l = dq_plan_decide_interval(n->loss, n->loss_skew, outside);
    char size[32];
    printf(
        "chosen             %.3f bits per weight in packed tensors%s, container %lld bytes (%s)\n",
        t->bits_per_weight, t->uniform ? ", uniform" : "", (long long)p->container_bytes,
        dq_document_size_text(size, sizeof size, p->container_bytes));
    printf("on unseen text     KLD %s ± %s ", nats(n->kld.value).text, nats(n->kld.std_err).text);
    printf("(nominally %.5g %%: %s to %s); perplexity ratio %.5f (%.5f to %.5f)\n",
           100 * (1 - outside), nats(k.low).text, nats(k.high).text, exp(n->loss.value), exp(l.low),
           exp(l.high));
    printf(
        "                   between %lld documents (of a single text, sequences); of each sequence "
        "the second half is scored\n",
        (long long)n->kld.clusters);
    printf("interim looks      %d%s", p->n_look,
           p->n_look > 1 ? ", the intervals widened for each; earlier ones missed the budget" : "");
    if (p->n_earlier) printf("; %d for other budgets, which widened them as well", p->n_earlier);
    putchar('\n');
}

/* The limit beside what is compared with it. */
static void print_budget(const dq_plan_weights *p)
{
    const dq_plan_trial *t = &p->trial[p->chosen];
    const dq_plan_budget b = p->set.budget;
    printf("budget             %s: ", p->met ? "met" : "not met");
    if (b.goal == DQ_PLAN_SIZE)
        printf("%lld bytes of %.0f\n", (long long)p->container_bytes, b.value);
    else if (b.goal == DQ_PLAN_BPW)
        printf("%.5g bits per weight of %.5g\n", t->bits_per_weight, b.value);
    else if (b.goal == DQ_PLAN_PPL)
        printf("upper end of the perplexity ratio %.7g, at most %.7g\n", exp(t->interval.high),
               b.value);
    else
        printf("upper end of the KLD %s, at most %g\n", nats(t->interval.high).text, b.value);
}

dq_status dq_weights_output_print(const dq_plan_weights *p, dq_err *err)
{
    DQ_TRY(print_tensors(p, err));
    putchar('\n');
    DQ_TRY(print_curve(p, err));
    putchar('\n');
    dq_weights_output_inputs(p);
    if (p->n_resumed)
        printf("taken over         %lld results of an earlier run\n", (long long)p->n_resumed);
    print_result(p);
    print_baselines(p);
    print_budget(p);
    printf("recipe             %s\n", p->set.out);
    return DQ_OK;
}

dq_status dq_weights_output_verdict(const dq_plan_weights *p, const char *budget, dq_err *err)
{
    if (p->met) return DQ_OK;
    const dq_plan_trial *t = &p->trial[p->chosen];
    const bool ratio = p->set.budget.goal == DQ_PLAN_PPL;
    if (p->set.budget.goal == DQ_PLAN_SIZE)
        return dq_fail(err, DQ_GATE,
                       "budget %s: missed; the recipe in %s has what came nearest, a file of "
                       "%lld bytes",
                       budget, p->set.out, (long long)p->container_bytes);
    if (p->set.budget.goal == DQ_PLAN_BPW)
        return dq_fail(err, DQ_GATE,
                       "budget %s: missed; the recipe in %s has what came nearest, %.3f bits per "
                       "weight as written",
                       budget, p->set.out, t->bits_per_weight);
    char looks[120] = "the interim look at the unseen text does not show that it is met, at";
    if (p->n_look > 1)
        snprintf(
            looks, sizeof looks,
            "none of %d interim looks at the unseen text shows that it is met, the last of them at",
            p->n_look);
    return dq_fail(err, DQ_GATE,
                   "budget %s: %s the most bits that these widths give; the recipe in %s has what "
                   "came nearest, %.3f bits per weight, where the upper end is %.*g",
                   budget, looks, p->set.out, t->bits_per_weight, ratio ? 6 : 3,
                   ratio ? exp(t->interval.high) : t->interval.high);
}
