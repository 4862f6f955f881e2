/* A recipe without a journal beside it is a finished one.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/plan/inside.h"
#include "model/model.h"
#include "plan/plan_weights.h"
#include "quantize/quantize.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "settings/quantize_options.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dq_status check_journal(const dq_plan_files *f, const char *journal, dq_err *err)
{
    DQ_TRY(dq_work_place(journal, err));
    if (!f->resume || f->force || !dq_file_exists(f->out) || dq_file_exists(journal)) return DQ_OK;
    return dq_fail(err, DQ_FILE,
                   "%s: is finished already, and no interrupted run is beside it, so there is "
                   "nothing to resume. Add --force to plan anew.",
                   f->out);
}

dq_status dq_plan_files_check(const dq_plan_files *f, dq_err *err)
{
    static const char *const journal_only[] = {".journal", NULL};
    static const char *const trials[] = {".journal", ".trial.h5", ".trial.h5.partial",
                                         ".trial.h5.journal", NULL};
    const dq_output out = {"-o", f->out, DQ_OUTPUT_JSON, f->trials ? trials : journal_only};
    if (!f->out) return DQ_OK;
    DQ_TRY(dq_output_guard_names(&out, 1, f->inputs, f->n_inputs, err));
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const char *journal = dq_textf(a, err, "%s.journal", f->out);
    if (journal) check_journal(f, journal, err);
    dq_arena_free(a);
    DQ_TRY(err->code);
    return dq_output_guard_check(&out, 1, f->inputs, f->n_inputs, f->force, err);
}

/* Document and recipe share one object of the plan. */

enum { CURVE_ROWS = 12 }; /* of the printed curve */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *weights_output_file(const dq_plan_weights *p, int text)
{
    return text == DQ_PLAN_UNSEEN && p->set.unseen ? p->set.unseen : p->set.calib;
}

/* Every point, or about `rows` at even intervals of cost. */
static int64_t next_point(const dq_plan_curve *c, int64_t point, int rows)
{
    const double gap = (c->cost[c->n - 1] - c->cost[0]) / rows;
    int64_t k = point + 1;
    while (k + 1 < c->n && c->cost[k] < c->cost[point] + gap) k++;
    return k;
}

/* outside: probability outside the interval. */
static void put_numbers(dq_row_writer *w, const char *name, const dq_plan_numbers *n,
                        double outside, unsigned when, const char *about)
{
    const dq_interval kld = w->live ? dq_plan_interval_kld(n->kld, outside) : dq_interval_none;
    if (!DQ_OBJECT(w, name, about, .def = "weights_numbers", .when = when)) return;
    DQ_METRIC(w, "kld", n->kld.of, "KLD in nats.");
    dq_plan_put_ends(w, "kld_interval", &kld, "Its interval.", 0);
    DQ_PUT(w, "outside", outside, "Probability that the interval leaves out.");
    DQ_PUT(w, "kld_skewness", n->kld.skew, "Skewness of its clusters.", .when = DQ_NULL);
    DQ_METRIC(w, "ln_ppl_ratio", n->loss.of, "ln of the perplexity over that of the source.");
    DQ_PUT(w, "clusters", n->kld.of.clusters, "Clusters of the text.");
    dq_row_end(w);
}

static bool is_baseline(const dq_plan_weights *p, int64_t trial)
{
    for (int i = 0; i < p->n_baselines; i++) {
        if (p->baseline[i].trial == trial) return true;
    }
    return false;
}

static void put_trial(dq_row_writer *w, const char *name, const dq_plan_weights *p, int64_t i,
                      const char *about)
{
    const dq_plan_trial *t = DQ_LIVE(w, &p->trial[i]);
    if (!DQ_OBJECT(w, name, about, .def = "weights_trial")) return;
    DQ_PUT(w, "packed_bits_per_weight", t->bits_per_weight,
           "Bits per weight of the packed tensors, scales included.", .when = DQ_NULL);
    DQ_PUT(w, "uniform_bits", t->uniform, "The width that all tensors have; null: widths differ.",
           .when = DQ_NULL | DQ_AT_0);
    DQ_PUT(w, "packed_bytes", t->packed_bytes, "Bytes of the packed tensors.");
    DQ_PUT(w, "predicted_kld", t->predicted, "KLD that sensitivities foretell, in nats.",
           .when = DQ_NULL);
    put_numbers(w, "search", DQ_LIVE(w, &t->on[DQ_PLAN_SEARCH]), 0.05, 0, "On the search text.");
    /* results that were not looked at are not shown */
    if (DQ_WHEN(w, t->look || is_baseline(p, i)))
        put_numbers(w, "unseen", DQ_LIVE(w, &t->on[DQ_PLAN_UNSEEN]),
                    dq_plan_decide_outside(w->live && t->look ? t->look : 1), DQ_SOMETIMES,
                    "On the unseen text; missing: not looked at.");
    if (DQ_WHEN(w, t->look)) {
        DQ_PUT(w, "look", t->look, "Which look at the unseen text this was, from 1.", .min = 1,
               .when = DQ_SOMETIMES);
        dq_plan_put_ends(w, "look_interval", DQ_LIVE(w, &t->interval), "Interval of that look.",
                         DQ_SOMETIMES);
        DQ_PUT(w, "meets", t->meets, "Whether it keeps the budget.", .when = DQ_SOMETIMES);
    }
    dq_row_end(w);
}

static void put_quarters(dq_row_writer *w, unsigned quarters)
{
    DQ_LIST(w, "quarters", "Quarters of the file, from 0.");
    for (int q = 0; DQ_MORE(w, q, DQ_CALIB_TEXT_QUARTERS); q++) {
        if (DQ_WHEN(w, quarters >> q & 1)) DQ_PUT(w, NULL, q, "A quarter.", .max = 3);
    }
    dq_row_end(w);
}

static void text_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_weights *p = plan;
    const dq_calib_text *t = DQ_LIVE(w, &p->text[i]);
    DQ_PUT(w, "part", dq_plan_text_name[i], "What it is for.", DQ_WORDS(dq_plan_text_name));
    DQ_PUT(w, "file", base_name(weights_output_file(p, (int)i)), "Base name.");
    DQ_PUT(w, "sha256", t->sha256, "Of the file.", .pattern = DQ_SHA256);
    if (DQ_WHEN(w, i == DQ_PLAN_SEARCH)) /* the one that chose widths */
        DQ_PUT(w, "sketch", dq_calib_text_sketch(t), NULL, .ref = "common.json#/$defs/sketch",
               .when = DQ_SOMETIMES);
    put_quarters(w, w->live ? p->quarters[i] : 0);
    DQ_PUT(w, "tokens", t->n_ids, "Tokens.");
    DQ_PUT(w, "sequences", t->n_seq, "Sequences.");
    DQ_PUT(w, "ctx", t->ctx, "Tokens of the longest sequence.");
}

static void baseline_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_weights *p = plan;
    const dq_plan_baseline *r = DQ_LIVE(w, &p->baseline[i]);
    const dq_plan_trial *t = DQ_LIVE(w, &p->trial[r->trial]);
    DQ_PUT(w, "bits", t->uniform, "The width.");
    DQ_PUT(w, "packed_bits_per_weight", t->bits_per_weight,
           "Bits per weight of its packed tensors.", .when = DQ_NULL);
    DQ_METRIC(w, "kld_difference", r->less.of.kld.of, "KLD of the plan less its own, in nats.");
    dq_plan_put_ends(w, "interval", DQ_LIVE(w, &r->less.kld), "Of that difference.", 0);
    DQ_PUT(w, "outside", r->less.outside, "Probability that the interval leaves out.");
    if (DQ_WHEN(w, p->set.budget.goal >= DQ_PLAN_BPW))
        DQ_PUT(w, "beyond_budget", r->beyond, "Of budgets of size: whether it takes more.",
               .when = DQ_SOMETIMES);
}

static void tensor_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_weights *p = plan;
    const dq_plan_tensor *t = DQ_LIVE(w, &p->tensor[i]);
    DQ_PUT(w, "name", t->name, "Its name.");
    DQ_PUT(w, "weights", t->rows * t->cols, "Its elements.");
    DQ_PUT(w, "bits", t->bits[p->trial[p->chosen].choice[i]], "The width it gets.");
    DQ_PUT(w, "measured_bits", t->bits[t->measured], "The width at which that KLD was measured.");
    DQ_LIST(w, "widths", "What each width costs.");
    for (int k = 0; DQ_MORE(w, k, t->n); k++) {
        DQ_ITEM(w);
        DQ_PUT(w, "bits", t->bits[k], "The width.");
        DQ_PUT(w, "bytes", t->bytes[k], "Bytes of the tensor.");
        DQ_PUT(w, "loss", t->loss[k], "Squared error of its outputs over their squares.",
               .when = DQ_NULL);
        DQ_METRIC(w, "kld", dq_plan_probe_kld(t, k), "KLD when it alone is quantized, in nats.");
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void curve_rows(dq_row_writer *w, const void *plan, int64_t k)
{
    const dq_plan_weights *p = plan;
    DQ_PUT(w, "packed_bits_per_weight", dq_plan_weights_bits_per_weight(p, p->curve.cost[k]),
           "Bits per weight of packed tensors.", .when = DQ_NULL);
    DQ_PUT(w, "predicted_kld", p->curve.loss[k], "KLD that sensitivities foretell, in nats.",
           .when = DQ_NULL);
}

/* What a recipe has, too. */
static void plan_rows(dq_row_writer *w, const dq_plan_weights *p)
{
    enum { CURVE = 100 };
    const dq_plan_trial *chosen = DQ_LIVE(w, &p->trial[p->chosen]);
    const dq_calib_text *calib = DQ_LIVE(w, &p->text[DQ_PLAN_CALIB]);
    char arithmetic[DQ_OS_ARITHMETIC];
    dq_os_arithmetic(arithmetic);
    DQ_PUT(w, "dq_version", p->set.set.dq_version, "The version of dq that planned.");
    DQ_PUT(w, "arithmetic", arithmetic, "What bits of the forward pass depend on.");
    DQ_PUT(w, "budget", p->set.budget.text, "As --budget was given.");
    DQ_PUT(w, "met", p->met, "Whether the chosen plan keeps it.");
    DQ_PUT(w, "packed_bits_per_weight", chosen->bits_per_weight,
           "Bits per weight of the chosen plan's packed tensors, scales included.",
           .when = DQ_NULL);
    DQ_PUT(w, "weights_sha256", chosen->weights_sha256, "Of the weights that were measured.",
           .pattern = DQ_SHA256);
    DQ_PUT(w, "model_fingerprint", p->model->fingerprint, "Of the model.", .pattern = DQ_SHA256);
    DQ_OBJECT(w, "calib", "The text that makes the codes again.");
    DQ_PUT(w, "sha256", calib->sha256, "Of the file.", .pattern = DQ_SHA256);
    put_quarters(w, w->live ? p->quarters[DQ_PLAN_CALIB] : 0);
    DQ_PUT(w, "tokens", calib->requested, "Tokens that were asked for.");
    DQ_PUT(w, "ctx", calib->ctx, "Tokens of the longest sequence.");
    dq_row_end(w);
    DQ_ITEMS(w, "texts", text_rows, p, DQ_PLAN_TEXTS, "The three texts.");
    DQ_PUT(w, "interim_looks", p->n_look, "Looks at the unseen text that this budget took.");
    DQ_PUT(w, "looks_for_other_budgets", p->n_earlier, "Looks that earlier budgets took.");
    put_trial(w, "chosen", p, w->live ? p->chosen : 0, "The plan.");
    DQ_ITEMS(w, "baselines", baseline_rows, p, p->n_baselines, "Uniform widths beside it.");
    DQ_PUT(w, "uniform_was_better", (bool)(p->mix >= 0),
           "Whether a uniform width was taken in the place of mixed ones.");
    DQ_LIST(w, "trials", "All that were quantized and measured.");
    for (int64_t i = 0; DQ_MORE(w, i, p->n_trials); i++) put_trial(w, NULL, p, i, NULL);
    dq_row_end(w);
    DQ_ITEMS(w, "units", tensor_rows, p, p->n_tensors, "Tensors.");
    DQ_LIST(w, "curve", "The predicted front.");
    for (int64_t k = 0; DQ_MORE(w, k, p->curve.n);
         k = w->live ? next_point(&p->curve, k, CURVE) : 1)
        dq_row_item(w, curve_rows, p, k);
    dq_row_end(w);
}

static json_t *plan_json(const dq_plan_weights *p)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    plan_rows(&w, p);
    return o;
}

static void result_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_weights *p = plan;
    (void)i;
    plan_rows(w, p);
    DQ_PUT(w, "path", p->set.out, "The recipe.");
    DQ_PUT(w, "container_bytes", p->container_bytes, "Bytes of a container made with it.");
    DQ_PUT(w, "results_taken_over", p->n_resumed, "Results that an interrupted run had.");
}

static void settings_rows(dq_row_writer *w, const void *plan)
{
    const dq_plan_weights *p = plan;
    const dq_plan_weights_settings *s = DQ_LIVE(w, &p->set);
    dq_quantize_recipe_rows(w, DQ_LIVE(w, &s->set));
    DQ_PUT(w, "kind", "weights", "What is planned.", DQ_WORD("weights"));
    dq_plan_put_widths(w, w->live ? s->bits : NULL, w->live ? s->n_bits : 0);
    DQ_PUT(w, "method", s->rule->name, "What chooses codes.");
    DQ_PUT(w, "trials", s->trials, "Containers that are made at most.");
    DQ_PUT(w, "include_embeddings", s->ends, "Whether embedding and head are planned too.");
}

const dq_plan_kind dq_plan_weights_kind = {
    .name = "plan weights", .settings = settings_rows, .result = result_rows};

void dq_plan_weights_input(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_weights *p = plan;
    (void)i;
    DQ_PUT(w, "path", p->set.model, "As it was given.");
    DQ_PUT(w, "architecture", p->model->architecture->name, "Its row of MODEL.md.");
}

/* Three significant digits, so that no positive KLD is shown as 0. */
typedef struct figure {
    char text[32];
} figure;

static figure nats(double x)
{
    figure f = {"0"};
    if (x != 0) snprintf(f.text, sizeof f.text, "%#.3g", x);
    return f;
}

static void weights_output_inputs(const dq_plan_weights *p)
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
               t->n_seq == 1 ? "" : "s", (long long)t->ctx, weights_output_file(p, i));
        /* Recipes count quarters from 0, so words avoid confusion. */
        const unsigned quarters = p->quarters[i];
        static const char *const names[DQ_CALIB_TEXT_QUARTERS] = {"first", "second", "third",
                                                                  "fourth"};
        const char *between = ": the ";
        for (int q = 0; q < DQ_CALIB_TEXT_QUARTERS && quarters != DQ_CALIB_TEXT_ALL; q++) {
            if (!(quarters >> q & 1)) continue;
            printf("%s%s", between, names[q]);
            between = " and ";
        }
        printf("%s\n", quarters != DQ_CALIB_TEXT_ALL ? " quarter" : "");
    }
    printf("tensors            %lld to be packed, %lld weights, %.3f", (long long)p->n_tensors,
           (long long)p->packed_params, dq_plan_weights_bits_per_weight(p, least));
    if (all > least) printf(" to %.3f", dq_plan_weights_bits_per_weight(p, all));
    printf(" bits per weight\n");
}

/* By all ranks; rank 0 prints. */
static dq_status weights_output_work(const dq_plan_weights *p, dq_err *err)
{
    const bool quality = p->set.budget.goal == DQ_PLAN_KLD || p->set.budget.goal == DQ_PLAN_PPL;
    int64_t scratch = 0, memory;
    char a[32];
    scratch = (p->text[DQ_PLAN_CALIB].n_ids + 2 * p->probe_text.n_ids) * p->model->dim *
              (int64_t)sizeof(float);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        scratch += dq_plan_reference_bytes(&p->text[i], p->model);
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
    /* Expected time, from a timed piece of the work. */
    const double most = choices < search + after ? choices : search + after;
    const char *dir = getenv("TMPDIR");
    char time[32], b[32];
    double seconds;
    const char *beside =
        p->set.out ? p->set.out : dq_textf(p->arena, err, "%s/dq", dir ? dir : "/tmp");
    if (!beside) return err->code;
    DQ_TRY(dq_plan_pace(&seconds, p, beside, err));
    const double once = dq_plan_weights_flop(p), each = dq_plan_weights_trial_flop(p);
    const double usual = fmin(dq_plan_weights_models(p), most);
    printf("time               about %s here, with %.0f whole models, and %s with all of them; at "
           "the %.3g GFLOP/s of a layer\n",
           dq_document_time_text(time, sizeof time, (once + usual * each) * seconds), usual,
           dq_document_time_text(b, sizeof b, (once + most * each) * seconds), 1e-9 / seconds);
    return DQ_OK;
}

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
    dq_table_cell(t, "%s ± %s", nats(n->kld.of.value).text, nats(n->kld.of.std_err).text);
    dq_table_cell(t, "%.5f ± %.5f", exp(n->loss.of.value),
                  exp(n->loss.of.value) * n->loss.of.std_err);
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
    return dq_table_finish(t, err);
}

static void print_result(const dq_plan_weights *p)
{
    const dq_plan_trial *t = &p->trial[p->chosen];
    const dq_plan_numbers *n = &t->on[DQ_PLAN_UNSEEN];
    const double outside = dq_plan_decide_outside(t->look);
    const dq_interval k = dq_plan_interval_kld(n->kld, outside);
    const dq_interval l = dq_plan_interval(n->loss, outside);
    char size[32];
    printf(
        "chosen             %.3f bits per weight in packed tensors%s, container %lld bytes (%s)\n",
        t->bits_per_weight, t->uniform ? ", uniform" : "", (long long)p->container_bytes,
        dq_document_size_text(size, sizeof size, p->container_bytes));
    printf("on unseen text     KLD %s ± %s ", nats(n->kld.of.value).text,
           nats(n->kld.of.std_err).text);
    printf("(nominally %.5g %%: %s to %s); perplexity ratio %.5f (%.5f to %.5f)\n",
           100 * (1 - outside), nats(k.low).text, nats(k.high).text, exp(n->loss.of.value),
           exp(l.low), exp(l.high));
    printf(
        "                   between %lld documents (of a single text, sequences); of each sequence "
        "the second half is scored\n",
        (long long)n->kld.of.clusters);
    printf("interim looks      %d%s", p->n_look,
           p->n_look > 1 ? ", the intervals widened for each; earlier ones missed the budget" : "");
    if (p->n_earlier) printf("; %d for other budgets, which widened them as well", p->n_earlier);
    putchar('\n');
}

static dq_status weights_output_print(const dq_plan_weights *p, dq_err *err)
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
    DQ_TRY(dq_table_finish(t, err));
    putchar('\n');
    DQ_TRY(print_curve(p, err));
    putchar('\n');
    weights_output_inputs(p);
    if (p->n_resumed)
        printf("taken over         %lld results of an earlier run\n", (long long)p->n_resumed);
    print_result(p);
    for (int i = 0; i < p->n_baselines; i++) {
        const dq_plan_baseline *r = &p->baseline[i];
        printf("against uniform %d  %.3f bits per weight%s; KLD of the plan less its own %+.3g "
               "(nominally %.5g %%: %+.3g to %+.3g): %s is closer\n",
               p->trial[r->trial].uniform, p->trial[r->trial].bits_per_weight,
               r->beyond ? ", beyond the budget" : "", r->less.of.kld.of.value,
               100 * (1 - r->less.outside), r->less.kld.low, r->less.kld.high,
               dq_cache_numbers_verdict(r->less.kld, "the plan", "the uniform width",
                                        "inconclusive which"));
    }
    if (p->n_baselines)
        printf("                   two such comparisons share the 5 %% outside with the interim "
               "looks\n");
    if (p->mix >= 0)
        printf("                   on the search text a mix of %.3f bits per weight was not "
               "closer (KLD %s) than this uniform width (%s)\n",
               p->trial[p->mix].bits_per_weight,
               nats(p->trial[p->mix].on[DQ_PLAN_SEARCH].kld.of.value).text,
               nats(p->trial[p->chosen].on[DQ_PLAN_SEARCH].kld.of.value).text);
    const dq_plan_trial *taken = &p->trial[p->chosen];
    const dq_plan_budget b = p->set.budget;
    printf("budget             %s: ", p->met ? "met" : "not met");
    if (b.goal == DQ_PLAN_SIZE)
        printf("%lld bytes of %.0f\n", (long long)p->container_bytes, b.value);
    else if (b.goal == DQ_PLAN_BPW)
        printf("%.5g bits per weight of %.5g\n", taken->bits_per_weight, b.value);
    else if (b.goal == DQ_PLAN_PPL)
        printf("upper end of the perplexity ratio %.7g, at most %.7g\n", exp(taken->interval.high),
               b.value);
    else
        printf("upper end of the KLD %s, at most %g\n", nats(taken->interval.high).text, b.value);
    printf("recipe             %s\n", p->set.out);
    return DQ_OK;
}

/* The search is plan/plan_weights.h's. */

typedef struct request {
    dq_logger logger;
    const char *widths;
    dq_word method; /* of dq_calibrate_rules */
    dq_list budgets;
    int64_t trials, threads;
    bool dry_run, json;
    dq_recipe_options recipe;
    dq_plan_weights_settings set;
    dq_progress bar;
} request;

static const dq_usage usage = {
    .name = "plan weights",
    .synopsis = "MODEL --calib FILE --budget BUDGET -o RECIPE.json [options]",
    .about =
        "Finds out which tensor needs how many bits, and writes a recipe for dq quantize --recipe. "
        "The documents of FILE are dealt in turn to four quarters; a single text is cut into "
        "them: the first and third calibrate, the second is searched with, the fourth decides. "
        "Each tensor is rounded alone at each width; the KL divergence to the model before is "
        "measured at one of them, and goes by the squared error of the output at the others; "
        "widths are allocated where they save most for their bits; whole models are "
        "quantized and measured until the fewest bits are found that keep the budget; and that "
        "model is measured on the fourth quarter, which the search has not seen. The second half "
        "of each sequence is scored: with --unseen TEXT the figure is that of dq eval MODEL "
        "OUT.h5 --text TEXT --ctx N, with the N of --calib-ctx, but for sequences that are "
        "shorter or beyond --search-tokens. A budget of quality is met when the upper end of the "
        "interval there is within it, else the plan steps back to more bits and says so, the last "
        "time to the most bits that the widths give. A further look at the unseen text (an "
        "interim look of sequential testing) has a wider interval, in a run and in those that "
        "resume it, whatever their budgets; a run with --force begins to count anew. Intervals are "
        "between documents, of a single text between its sequences, as if these were independent; "
        "they allow for skewness but are nominal for few of them. Where no look shows that the "
        "budget is met, the recipe that came nearest is written and the exit status is 7.",
    .examples =
        "  dq plan weights model --calib train.jsonl --budget kld=0.01 -o recipe.json\n"
        "  dq quantize model -o model.h5 --recipe recipe.json --calib train.jsonl\n"
        "  dq plan weights model --calib train.jsonl --budget size=1.5GiB --include-embeddings -o "
        "recipe.json\n"
        "  dq plan weights model --calib train.jsonl --budget ppl=1.005 --unseen test.jsonl -o "
        "r.json\n"
        "  dq plan weights model --calib train.jsonl --budget bpw=4.2 --dry-run\n"};

static const char budget_about[] =
    "kld=NATS or ppl=RATIO, which the upper end of a 95 % interval on unseen text must keep with "
    "as few bits as possible; bpw=BITS of packed tensors, scales included, or size=BYTES of the "
    "container (in B, kB, MB, GB, KiB, MiB or GiB), with as little KLD as possible";

static dq_status make_settings(request *r, dq_err *err)
{
    dq_plan_weights_settings *s = &r->set;
    DQ_TRY(dq_recipe_options_read(&s->set, &r->recipe, err));
    dq_recipe_options_scale(&s->set, &r->recipe, true);
    s->rule = &dq_calibrate_rules[r->method.at];
    DQ_TRY(dq_plan_read_widths(s->bits, &s->n_bits, r->widths, err));
    if (!s->calib) return dq_fail(err, DQ_USAGE, "--calib FILE is missing.");
    if (r->budgets.n == 0)
        return dq_fail(err, DQ_USAGE,
                       "--budget is missing: kld=0.01, ppl=1.005, bpw=4.2 or size=1.5GiB.");
    if (r->budgets.n > 1)
        return dq_fail(err, DQ_USAGE, "--budget: expected one, found %s and %s.",
                       r->budgets.item[0], r->budgets.item[1]);
    DQ_TRY(dq_plan_weights_budget_parse(&s->budget, r->budgets.item[0], err));
    if (s->ends && (r->recipe.embed_bits || r->recipe.head_bits))
        return dq_fail(err, DQ_USAGE,
                       "--include-embeddings: plans the widths of embedding and head. Leave out "
                       "--embed-bits and "
                       "--head-bits, which fix them.");
    if (!s->out && !r->dry_run)
        return dq_fail(err, DQ_USAGE,
                       "-o RECIPE.json is missing (or --dry-run to see what would be done).");
    if (!r->recipe.embed_bits) s->set.embed_bits = 16;
    if (s->ends) s->set.head_bits = 0; /* rules say */
    s->set.bits = s->bits[0];
    s->set.logit = dq_logit_plain;
    s->set.kv = dq_kv_config_plain;
    s->set.dq_version = DQ_VERSION;
    s->trials = r->trials ? (int)r->trials : DQ_PLAN_TRIALS;
    return DQ_OK;
}

static void stage(void *arg, const char *name)
{
    request *r = arg;
    dq_progress_label(&r->bar, name);
    dq_logger_note(&r->logger, "%s", name);
}

static json_t *told(void *arg, const dq_plan_weights *p)
{
    (void)arg;
    return plan_json(p);
}

static void step(void *arg, double done, double total, const char *what)
{
    dq_progress_step(&((request *)arg)->bar, done, total, what);
}

static dq_status finish(request *r, dq_plan_weights *p, dq_err *err)
{
    json_t *rules = dq_plan_weights_rules(p, p->trial[p->chosen].choice), *plan = plan_json(p);
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
    if (err->code != DQ_OK) return dq_plan_weights_failed(p, err);
    dq_plan_weights_done(p);
    DQ_TRY(r->json ? dq_plan_print(&r->logger, &dq_plan_weights_kind, NULL, p, err)
                   : weights_output_print(p, err));
    const char *budget = p->set.budget.text;
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

static dq_status run_plan(request *r, dq_err *err)
{
    dq_plan_weights *p;
    /* Ranks must run one program with one request; the library checks model and texts. */
    const dq_plan_weights_settings *s = &r->set;
    char program[DQ_IDENTITY], key[65] = "";
    dq_arena *a = dq_arena_new();
    dq_identity_text(program, s->backend);
    const char *text =
        a ? dq_textf(a, err, "%s %s %d %d %d %d %s", program, s->budget.text, s->trials, s->resume,
                     s->force, r->dry_run, s->out ? s->out : "")
          : NULL;
    if (text) dq_sha256_of(key, text, strlen(text), err);
    if (!a) dq_fail(err, DQ_RESOURCE, "out of memory");
    dq_arena_free(a);
    DQ_TRY(dq_ranks_agree("program, processor, budget or set of options", key, err));
    DQ_TRY(dq_plan_weights_open(&p, &r->set, err));
    dq_calib_run_warn(&p->text[DQ_PLAN_CALIB], r->set.calib, r->set.rule,
                      dq_calib_pass_widest(p->model), &r->logger);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const bool other = i == DQ_PLAN_UNSEEN && p->set.unseen;
        if (other || p->text[i].bytes_read < p->text[i].bytes) /* not what calibration has read */
            dq_calib_run_warn_form(&p->text[i], weights_output_file(p, i), &r->logger);
        dq_calib_run_warn_repeats(&p->text[i], weights_output_file(p, i), dq_plan_text_name[i],
                                  &r->logger);
        if (p->text[i].n_copies)
            dq_logger_warn(&r->logger,
                           "%s: %lld documents (of a single text, sequences) of the %s part are "
                           "copies of others there; errors count each once",
                           weights_output_file(p, i), (long long)p->text[i].n_copies,
                           dq_plan_text_name[i]);
        if (p->n_seen[i])
            dq_logger_warn(&r->logger,
                           "%s: %lld of the %lld sequences of the %s part %s of one in a part "
                           "before, so numbers look better than on new text. Give text that does "
                           "not repeat itself",
                           weights_output_file(p, i), (long long)p->n_seen[i],
                           (long long)p->text[i].n_seq, dq_plan_text_name[i],
                           p->n_seen[i] == 1 ? "is a copy" : "are copies");
        if (p->clusters[i] < DQ_PLAN_FEW_CLUSTERS)
            dq_logger_warn(&r->logger,
                           "%s: %lld documents (of a single text, sequences) are few for the %s "
                           "part: with fewer than %d, intervals hold less than they say. Give more "
                           "text, or more --search-tokens",
                           weights_output_file(p, i), (long long)p->clusters[i],
                           dq_plan_text_name[i], DQ_PLAN_FEW_CLUSTERS);
    }
    if (r->dry_run) {
        weights_output_inputs(p);
        weights_output_work(p, err);
        if (err->code == DQ_OK) printf("budget             %s\n", p->set.budget.text);
    } else {
        dq_progress_begin(&r->bar, &r->logger, "plan", 1);
        r->bar.rough = true;
        dq_plan_weights_run(p, err);
        dq_progress_end(&r->bar);
        if (err->code == DQ_OK && dq_ranks_number() == 0) finish(r, p, err);
    }
    dq_plan_weights_close(p);
    return err->code;
}

static dq_status run(request *r, const dq_args *args, dq_err *err)
{
    const dq_plan_files f = {.out = r->set.out,
                             .inputs = args->input,
                             .n_inputs = args->n_inputs,
                             .trials = true,
                             .resume = r->set.resume,
                             .force = r->set.force};
    r->set.model = args->item[0];
    r->set.step = step;
    r->set.stage = stage;
    r->set.told = told;
    r->set.arg = r;
    if (dq_ranks_number() == 0) DQ_TRY(dq_plan_files_check(&f, err));
    DQ_TRY(dq_backend_open(&r->set.backend, "cpu", (int)r->threads, err));
    run_plan(r, err);
    dq_backend_close(r->set.backend);
    return err->code;
}

static void start(request *r, const dq_args *args, dq_err *err)
{
    if (make_settings(r, err) != DQ_OK || dq_progress_listen(&r->logger, usage.name, err) != DQ_OK)
        return;
    dq_os_threads_set(r->threads);
    run(r, args, err);
    dq_logger_end(&r->logger);
}

static dq_status read_options(request *r, dq_args *args, int argc, char **argv, dq_err *err)
{
    dq_plan_weights_settings *s = &r->set;
    const char *methods[DQ_CALIBRATE_RULES];
    for (int i = 0; i < DQ_CALIBRATE_RULES; i++) {
        methods[i] = dq_calibrate_rules[i].name;
        if (dq_calibrate_rules[i].aligns) r->method.at = i; /* where it is not given */
    }
    const dq_opt opts[] = {
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "RECIPE.json", &s->out,
                                                     "the recipe to write"))),
        dq_opt_list("budget", "BUDGET", &r->budgets, budget_about),
        dq_opt_heading("text:"),
        dq_opt_text("calib", "FILE", &s->calib,
                    "text that the model is to keep predicting: plain, or .jsonl of {\"text\"}"),
        dq_opt_text("unseen", "FILE", &s->unseen,
                    "decide with this text; the fourth quarter of --calib then is searched with"),
        dq_opt_int("calib-tokens", "N", &s->tokens, 1, 1000000000000,
                   "tokens to calibrate with (default 16384)"),
        dq_opt_int("calib-ctx", "N", &s->ctx, 2, INT32_MAX,
                   "tokens of a sequence (default min(512, the model's positions))"),
        dq_opt_int(
            "search-tokens", "N", &s->search_tokens, 4, 1000000000000,
            "tokens to search with, and to decide with, at most (default 64 sequences each)"),
        dq_opt_heading("weights:"),
        dq_opt_flag(
            "include-embeddings", &s->ends,
            "embedding and head get widths too; an embedding that is no head is rounded to the "
            "nearest code"),
        dq_opt_word("method", "NAME", &r->method, methods, DQ_CALIBRATE_RULES,
                    "{words} (default align)"),
        DQ_RECIPE_OPTION_GROUP(r->recipe),
        DQ_RECIPE_OPTION_SCALE(r->recipe, true),
        DQ_RECIPE_OPTION_SCALE_DTYPE(r->recipe, "{words} (default f16)"),
        dq_opt_bits("embed-bits", "N", &r->recipe.embed_bits,
                    "fixed width of the embedding (default 16: not packed)"),
        dq_opt_bits("head-bits", "N", &r->recipe.head_bits,
                    "fixed width of a head of its own (default as --embed-bits)"),
        DQ_RECIPE_OPTION_DENSE_TYPE(r->recipe,
                                    "{words}: of matrices that are not packed (default keep)"),
        dq_opt_text("skip", "REGEX", &r->recipe.skip,
                    "tensors whose name matches stay as they are"),
        dq_opt_heading("search:"),
        dq_opt_text("widths", "LIST", &r->widths, "that a tensor may have (default 2,3,4,5,6,8)"),
        dq_opt_int("trials", "N", &r->trials, 1, DQ_PLAN_MAX_TRIALS,
                   "whole models that the search may quantize (default 8)"),
        dq_opt_flag(
            "dry-run", &r->dry_run,
            "print parts, sizes, arithmetic and how long it would take, by a layer that is run"),
        dq_opt_flag("resume", &s->resume,
                    "finish an interrupted run of the same command, for another budget too"),
        dq_opt_flag("force", &s->force, "replace the recipe, and what an interrupted run left"),
        dq_opt_int("threads", "N", &r->threads, 0, 4096,
                   "0 for all processors (default 0); the result does not depend on it"),
        dq_opt_flag("json", &r->json, "one JSON document (dq-plan/1) on stdout"),
        DQ_LOGGER_OPTIONS(r->logger),
        {0}};
    return dq_help_parse(args, argc, argv, opts, &usage, err);
}

dq_status dq_cmd_plan_weights(int argc, char **argv, dq_err *err)
{
    request r = {0};
    dq_args args;
    DQ_TRY(read_options(&r, &args, argc, argv, err));
    if (args.help) return DQ_OK;
    start(&r, &args, err);
    dq_recipe_options_end(&r.recipe);
    return err->code;
}
