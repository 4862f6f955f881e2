/* A perplexity stands in documents as the logarithm of its ratio to that of the cache that it is
 * compared with, in tables as percent.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "checkpoint/container.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/plan/inside.h"
#include "kv/kv.h"
#include "plan/plan_cache.h"
#include "plan/plan_weights.h"
#include "quantize/quantize.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "tasks/documents.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two integers, null where they are not `there`. */
static void put_pair(dq_row_writer *w, const char *name, bool there, int64_t first, int64_t last,
                     const char *about)
{
    if (!DQ_BEGIN(w, LIST, name, there, about, .when = DQ_NULL, .max = 2)) return;
    DQ_PUT(w, NULL, first, NULL);
    if (w->live) DQ_PUT(w, NULL, last, NULL);
    dq_row_end(w);
}

void dq_plan_put_ends(dq_row_writer *w, const char *name, const dq_interval *x, const char *about,
                      unsigned when)
{
    DQ_LIST(w, name, about, .max = 2, .when = when);
    DQ_PUT(w, NULL, x->low, NULL, .when = DQ_NULL);
    if (w->live) DQ_PUT(w, NULL, x->high, NULL, .when = DQ_NULL);
    dq_row_end(w);
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

dq_status dq_plan_read_widths(int bits[DQ_PLAN_WIDTHS], int *n, const char *text, dq_err *err)
{
    DQ_TRY(
        dq_options_ints(bits, n, DQ_PLAN_WIDTHS, text ? text : "2,3,4,5,6,8", "widths", 2, 8, err));
    qsort(bits, (size_t)*n, sizeof *bits, ascending);
    return DQ_OK;
}

void dq_plan_put_widths(dq_row_writer *w, const int *bits, int n)
{
    DQ_LIST(w, "widths", "Widths that may be given.");
    for (int i = 0; DQ_MORE(w, i, n); i++) DQ_PUT(w, NULL, bits[i], NULL);
    dq_row_end(w);
}

void dq_plan_put_dense(dq_row_writer *w, const dq_kv_config *kv)
{
    DQ_PUT(w, "dense_type", dq_kv_dense_name[kv->dense], "What is not coded is held in.",
           .words = dq_kv_dense_name, .n_words = DQ_KV_DENSE_TYPES);
}

void dq_cache_numbers_rows(dq_row_writer *w, const dq_plan_numbers *x)
{
    DQ_METRIC(w, "kld_nats", x->kld.of, "KLD in nats.");
    DQ_METRIC(w, "ln_ppl_ratio", x->loss.of,
              "ln of the perplexity over that of an unquantized cache.");
    DQ_PUT(w, "clusters", x->kld.of.clusters, "Clusters of the windows.");
}

void dq_cache_numbers_put(dq_row_writer *w, const char *name, const dq_plan_numbers *x,
                          const char *about)
{
    if (!DQ_BEGIN(w, OBJECT, name, x, about, .def = "cache_numbers", .when = DQ_NULL)) return;
    dq_cache_numbers_rows(w, x);
    dq_row_end(w);
}

void dq_cache_numbers_found(dq_row_writer *w, const char *name, const dq_plan_found *x,
                            const char *about)
{
    if (!DQ_OBJECT(w, name, about, .def = "cache_found")) return;
    dq_cache_numbers_rows(w, DQ_LIVE(w, &x->of));
    dq_plan_put_ends(w, "kld_interval", DQ_LIVE(w, &x->kld), "Of the KLD.", 0);
    dq_plan_put_ends(w, "ln_ppl_interval", DQ_LIVE(w, &x->loss), "Of the other.", 0);
    DQ_PUT(w, "outside", x->outside, "Probability that each leaves out.");
    dq_row_end(w);
}

void dq_cache_numbers_beside(dq_row_writer *w, const dq_plan_beside *x)
{
    dq_cache_numbers_put(w, "unseen", DQ_LIVE(w, &x->its), "On unseen windows.");
    dq_cache_numbers_found(w, "plan_less_it", DQ_LIVE(w, &x->less), "The plan less it.");
}

void dq_cache_numbers_windows(dq_row_writer *w, const dq_plan_caches *c)
{
    const int64_t begin = w->live ? c->begin : 0, end = w->live ? c->end : 0;
    DQ_PUT(w, "windows", c->win.n, "Windows of the text.");
    put_pair(w, "search_windows", end > begin, begin + 1, end,
             "The first and the last window of the search, from 1; null: none.");
}

void dq_cache_numbers_work(dq_row_writer *w, const dq_plan_caches *c)
{
    DQ_PUT(w, "tokens_of_a_search_cache", dq_plan_caches_ids(c, DQ_PLAN_CACHES_SEARCH),
           "Tokens that measuring one cache takes.");
    DQ_PUT(w, "tokens_of_an_unseen_cache", dq_plan_caches_ids(c, DQ_PLAN_CACHES_UNSEEN),
           "The same on unseen windows.");
}

double dq_cache_numbers_percent(double loss)
{
    return 100 * expm1(loss);
}

const char *dq_cache_numbers_verdict(dq_interval i, const char *less, const char *more,
                                     const char *open)
{
    return i.high < 0 ? less : i.low > 0 ? more : open;
}

void dq_cache_numbers_time(double seconds, double min, double max)
{
    char a[32], b[32];
    printf("time               about %s", dq_document_time_text(a, sizeof a, min * seconds));
    if (max > min) printf(" to %s", dq_document_time_text(b, sizeof b, max * seconds));
    printf(" here, at the %.3g tokens a second of one window\n", 1 / seconds);
}

void dq_cache_numbers_print(const dq_plan_found *x, const dq_plan_caches *c)
{
    const dq_mean kld = x->of.kld.of;
    printf("on unseen windows  KLD %.3g ± %.2g (nominally %.5g %%: %.3g to %.3g); perplexity "
           "%+.3f %% (%+.3f to %+.3f)\n",
           kld.value, kld.std_err, 100 * (1 - x->outside), x->kld.low, x->kld.high,
           dq_cache_numbers_percent(x->of.loss.of.value), dq_cache_numbers_percent(x->loss.low),
           dq_cache_numbers_percent(x->loss.high));
    printf("                   between %lld %s\n", (long long)kld.clusters,
           c->win.n_docs < 2 ? "windows" : "documents");
}

void dq_cache_numbers_compare(const dq_plan_found *x, const char *other, bool error)
{
    const double sure = 100 * (1 - x->outside);
    const dq_mean kld = x->of.kld.of;
    const int digits = error ? 4 : 3;
    printf("                   KLD of the plan less its own %+.*g", digits, kld.value);
    if (error) printf(" ± %.2g", kld.std_err);
    printf(" (nominally %.5g %%: %+.*g to %+.*g): %s is closer\n", sure, digits, x->kld.low, digits,
           x->kld.high, dq_cache_numbers_verdict(x->kld, "the plan", other, "inconclusive which"));
    printf("                   perplexity %+.3f %% (nominally %.5g %%: %+.3f to %+.3f): %s loses "
           "less\n",
           dq_cache_numbers_percent(x->of.loss.of.value), sure,
           dq_cache_numbers_percent(x->loss.low), dq_cache_numbers_percent(x->loss.high),
           dq_cache_numbers_verdict(x->loss, "the plan", other, "inconclusive which"));
}

/* Files are checked before anything is opened, a recipe before anything is measured. */

const dq_cache_options dq_cache_options_none = {.recent = -1, .sink = -1};

json_t *dq_cache_job_recipe_of(const dq_cache_job *j, const char *text)
{
    json_t *recipe =
        j->onto ? json_deep_copy(j->onto) : json_pack("{s: s}", "schema", "dq-recipe/1");
    json_t *was = json_object_get(recipe, "kv"), *kv = was ? json_deep_copy(was) : json_object();
    dq_row_writer w = dq_row_json(kv);
    char comment[64];
    for (int i = 0; j->kind->dropped[i]; i++) json_object_del(kv, j->kind->dropped[i]);
    j->kind->kv(&w, j->recipe->settings, text);
    if (json_object_get(was, "dense_type"))
        json_object_set(kv, "dense_type", json_object_get(was, "dense_type"));
    w = dq_row_json(recipe);
    DQ_PUT(&w, "kv", kv, NULL);
    snprintf(comment, sizeof comment, "kv: dq %s --%s %g", j->kind->name, j->kind->option,
             j->recipe->requested);
    if (!json_object_get(recipe, "comment")) DQ_PUT(&w, "comment", comment, NULL);
    return recipe;
}

dq_status dq_cache_job_write(const dq_cache_job *j, dq_plan_caches *c, const char *plan,
                             dq_err *err)
{
    char *text = NULL;
    json_t *recipe = dq_cache_job_recipe_of(j, plan);
    dq_repeats_sketch sketch = {.n = 0};
    json_t *texts = json_object_get(recipe, "texts");
    for (int64_t i = c->begin; i < c->end; i++)
        dq_repeats_sketch_add(&sketch, c->win.win[i].ids, c->win.win[i].n);
    dq_row_writer w = dq_row_json(recipe);
    if (!texts) DQ_PUT(&w, "texts", texts = json_array(), NULL);
    json_array_append_new(texts, json_pack("{s:s, s:o}", "sha256", j->text.sha256, "sketch",
                                           dq_repeats_sketch_json(&sketch)));
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, recipe, JSON_INDENT(2), err) == DQ_OK)
        dq_file_write(j->c->out, text, strlen(text), err);
    free(text);
    json_decref(recipe);
    if (err->code != DQ_OK) return dq_work_failed(&c->work, err);
    dq_work_close(&c->work, true);
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

dq_status dq_cache_job_open(dq_cache_job *j, const dq_args *args, int64_t windows, dq_err *err)
{
    dq_plan_caches_input *in = &j->in;
    const dq_cache_job_recipe *recipe = j->recipe;
    dq_cache_options *c = j->c;
    if (!(j->a = dq_arena_new())) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const dq_plan_files f = {.out = c->out,
                             .inputs = args->input,
                             .n_inputs = args->n_inputs,
                             .resume = c->resume,
                             .force = c->force};
    if (!c->text) return dq_fail(err, DQ_USAGE, "--text FILE is missing.");
    if (!c->out && !c->dry_run)
        return dq_fail(err, DQ_USAGE,
                       "-o RECIPE.json is missing (or --dry-run to see what would be done).");
    DQ_TRY(dq_ranks_number() > 0 ? DQ_OK : dq_plan_files_check(&f, err));
    dq_os_threads_set(c->threads);
    DQ_TRY(dq_backend_open(&in->backend, c->device ? c->device : "auto", (int)c->threads, err));
    DQ_TRY(dq_input_model(&j->model, args->item[0], NULL, &c->logger, err));
    DQ_TRY(dq_input_tokenizer(&j->tok, j->model, true, err));
    DQ_TRY(dq_input_read(&j->text, c->text, j->a, err));
    DQ_TRY(dq_documents_add(&j->docs, c->text, j->text.text, j->text.bytes, j->a, err));
    dq_input_warn_bad(&j->c->logger, c->text, j->docs.n_bad, j->docs.first_bad);
    if (j->docs.lines_path) dq_input_warn_lines(c->text, &j->c->logger);
    in->model = j->model;
    const dq_kv_dense dense = c->dense.text ? (dq_kv_dense)c->dense.at : DQ_KV_DENSE_AUTO;
    if (recipe) recipe->kv->dense = dq_model_kv_dense(j->model, dense);
    in->content =
        j->model->is_container ? j->model->container->info.content_sha256 : j->model->fingerprint;
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
    /* Reads the recipe's files and checks it. */
    dq_quantize_settings s = {0};
    char *text;
    size_t len;
    const char *path = j->c->onto;
    if (!path) return DQ_OK;
    DQ_TRY(dq_file_read_text(&text, &len, path, DQ_MAX_DOCUMENT, j->a, err));
    DQ_TRY(dq_json_parse(&j->onto, text, len, path, err));
    if (dq_quantize_recipe_read(&s, j->onto, err) != DQ_OK) return dq_in(err, "%s: ", path);
    /* Checks that dq quantize will accept the resulting recipe. */
    dq_quantize_settings settings = {0};
    dq_err e = {0};
    json_t *entry = dq_cache_job_recipe_of(j, j->kind->sample);
    const dq_kv_config *kv = &settings.kv, *mine = recipe->kv;
    if (dq_json_complete(err) == DQ_OK && dq_quantize_recipe_read(&settings, entry, &e) == DQ_OK) {
        j->kind->warn(j, kv);
        if (kv->rotate != mine->rotate)
            dq_logger_warn(&c->logger, "%s: has rotate %s: the plan is measured with %s", path,
                           dq_rotate_name[kv->rotate], dq_rotate_name[mine->rotate]);
        if (kv->dense != mine->dense)
            dq_logger_warn(&c->logger, "%s: has dense_type %s: the plan is measured with %s", path,
                           dq_kv_dense_name[kv->dense], dq_kv_dense_name[mine->dense]);
    }
    json_decref(entry);
    if (e.code == DQ_OK) return err->code;
    return dq_fail(err, e.code,
                   "%s: with the cache that is planned: %s. Change the recipe, or --kv-recent and "
                   "--kv-sink",
                   j->c->onto, e.text);
}

static dq_status agree(const dq_cache_job *j, const void *plan, const dq_windows *win, dq_err *err)
{
    dq_sha256 h;
    json_t *settings = json_object();
    dq_row_writer w = dq_row_json(settings);
    char key[65] = "", ids[65], program[DQ_IDENTITY], *text = NULL;
    j->kind->settings(&w, plan);
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

bool dq_cache_job_begin(dq_cache_job *j, const void *plan, const dq_windows *win, dq_err *err)
{
    if (j->c->dry_run || agree(j, plan, win, err) != DQ_OK) return false;
    dq_progress_begin(&j->bar, &j->c->logger, j->recipe ? "plan" : "gates", 1);
    j->bar.rough = j->recipe != NULL; /* a search may end early */
    return true;
}

bool dq_cache_job_end(dq_cache_job *j, const dq_err *err)
{
    dq_progress_end(&j->bar);
    return err->code == DQ_OK && dq_ranks_number() == 0;
}

static void put_settings(dq_row_writer *w, const dq_plan_kind *kind, const dq_cache_job *j,
                         const void *plan)
{
    DQ_OBJECT(w, "settings", "As they took effect.");
    kind->settings(w, plan);
    if (kind->device)
        DQ_PUT(w, "device", j->in.backend->device,
               "The device and its arithmetic units, in words.");
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    static const dq_plan_kind *const kinds[] = {&dq_plan_weights_kind, &dq_plan_kv_kind,
                                                &dq_plan_heads_kind, &dq_plan_gates_kind};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    DQ_PUT(w, "command", "", "The command that printed it, without dq.",
           DQ_WORD("plan weights", "plan kv", "plan heads", "plan gates"));
    DQ_LIST(w, "inputs", "The model, and of a cache the texts.");
    dq_row_item(w, dq_plan_weights_input, NULL, 0);
    dq_input_put_model(w, NULL);
    dq_input_put_text(w, NULL);
    dq_row_end(w);
    for (int i = 0; i < KINDS; i++) put_settings(w, kinds[i], NULL, NULL);
    DQ_LIST(w, "results", "The plan; of --dry-run what it would take, of gates nothing.");
    for (int i = 0; i < KINDS; i++) {
        dq_row_item(w, kinds[i]->result, NULL, 1);
        if (kinds[i]->kv) dq_row_item(w, kinds[i]->result, NULL, 0);
    }
    dq_row_end(w);
}

const dq_document dq_plan_document = {
    "dq-plan/1",
    "What dq plan weights, kv, heads and gates print with --json; of kv, heads and gates with "
    "--dry-run too.",
    NULL, describe};

dq_status dq_plan_print(const dq_logger *logger, const dq_plan_kind *kind, const dq_cache_job *j,
                        const void *plan, dq_err *err)
{
    const bool done = !j || !j->c->dry_run;
    json_t *doc = dq_document_new(logger, dq_plan_document.name);
    dq_row_writer w = dq_row_json(doc);
    DQ_LIST(&w, "inputs", NULL);
    if (j) {
        dq_input_put_model(&w, j->model);
        dq_input_put_text(&w, &j->text);
        if (j->questions.path) dq_input_put_text(&w, &j->questions);
    } else {
        dq_row_item(&w, dq_plan_weights_input, plan, 0);
    }
    dq_row_end(&w);
    put_settings(&w, kind, j, plan);
    DQ_LIST(&w, "results", NULL);
    if (done || kind->kv) dq_row_item(&w, kind->result, plan, done);
    dq_row_end(&w);
    return dq_stdout_print(doc, err);
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

/* A perplexity is its log ratio to the unquantized cache in the document. */

/* Share of what scored tokens read that is codes, without eviction. */
static double kv_output_coded(const dq_plan_kv *p)
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

static void coded_rows(dq_row_writer *w, const dq_kv_config *kv)
{
    DQ_PUT(w, "quant", dq_kv_quant_name[kv->quant], "What shares a scale.",
           .words = dq_kv_quant_name, .n_words = DQ_KV_QUANTS);
    dq_plan_put_dense(w, kv);
    DQ_PUT(w, "recent", kv->recent, "Last tokens that are not coded.");
    DQ_PUT(w, "sink", kv->sink, "First tokens that are not.");
}

static void kv_rows(dq_row_writer *w, const void *settings, const char *widths)
{
    const dq_plan_kv_settings *s = settings;
    DQ_PUT(w, "widths", widths, "Widths by layer, as --kv-bits takes them.");
    coded_rows(w, DQ_LIVE(w, &s->kv));
}

static void trial_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_kv *p = plan;
    const dq_plan_kv_trial *t = DQ_LIVE(w, &p->trial[i]);
    DQ_PUT(w, "widths", p->caches.list[t->mix].name, "Their widths.");
    DQ_PUT(w, "from", t->from, "Where they come from.");
    DQ_PUT(w, "mean_bits", t->bits, "Mean bits of a number.", .when = DQ_NULL);
    DQ_PUT(w, "kld_nats", t->kld, "KLD on the search windows.", .when = DQ_NULL);
    DQ_PUT(w, "units_kld_nats", t->added, "Sum of what its units cost alone.", .when = DQ_NULL);
    DQ_PUT(w, "taken", t->taken, "Whether it was the best so far.");
}

static void baseline_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_kv *p = plan;
    const dq_plan_kv_baseline *r = DQ_LIVE(w, &p->baseline[i]);
    DQ_PUT(w, "widths", p->caches.list[r->mix].name, "The widths.");
    DQ_PUT(w, "mean_bits", r->bits, "Mean bits of a number.", .when = DQ_NULL);
    dq_cache_numbers_beside(w, DQ_LIVE(w, &r->beside));
}

static void unit_rows(dq_row_writer *w, const dq_plan_kv *p, int u, bool searched)
{
    const dq_plan_kv_unit x = w->live ? dq_plan_kv_space_unit(&p->space, u) : (dq_plan_kv_unit){0};
    DQ_ITEM(w);
    DQ_PUT(w, "side", x.values ? "values" : "keys", "Which numbers.", DQ_WORD("keys", "values"));
    put_pair(w, "layers", true, x.first, x.first + x.layers - 1, "First and last layer.");
    DQ_PUT(w, "map", x.map + 1, "The map of keys, from 1; null: both.", .when = DQ_NULL | DQ_AT_0,
           .min = 1);
    if (searched) {
        DQ_PUT(w, "bits", p->trial[p->chosen].width[u], "The width it gets.");
        DQ_LIST(w, "alone", "What each width costs when it alone has it.");
        for (int k = 0; DQ_MORE(w, k, p->space.n_bits); k++) {
            if (w->live && !dq_plan_kv_measures(p, k)) continue;
            DQ_ITEM(w);
            dq_cache_numbers_rows(w, DQ_LIVE(w, &p->unit[u * p->space.n_bits + k]));
            DQ_PUT(w, "bits", p->space.bits[k], "The width.");
            dq_row_end(w);
        }
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void result_rows(dq_row_writer *w, const void *plan, int64_t searched)
{
    const dq_plan_kv *p = plan;
    if (searched) {
        const dq_plan_kv_trial *t = DQ_LIVE(w, &p->trial[p->chosen]);
        DQ_OBJECT(w, "chosen", "The plan.");
        DQ_OBJECT(w, "kv", "As a recipe has it.");
        kv_rows(w, DQ_LIVE(w, &p->set), DQ_LIVE(w, dq_plan_kv_widths(p)));
        dq_row_end(w);
        DQ_PUT(w, "mean_bits", t->bits, "Mean bits of a number.", .when = DQ_NULL);
        DQ_PUT(w, "search_kld_nats", t->kld, "KLD on the search windows.", .when = DQ_NULL);
        dq_cache_numbers_found(w, "unseen", DQ_LIVE(w, &p->found), "On unseen windows.");
        dq_row_end(w);
        DQ_ITEMS(w, "baselines", baseline_rows, p, p->n_baselines, "Uniform widths beside it.");
        DQ_ITEMS(w, "trials", trial_rows, p, p->n_trials, "Whole caches that were measured.");
        DQ_PUT(w, "path", p->set.in.out, "The recipe.");
        DQ_PUT(w, "results_taken_over", p->caches.n_resumed,
               "Windows that an interrupted run had measured.");
    } else {
        DQ_PUT(w, "caches_alone", dq_plan_kv_caches(p), "Caches that units need.");
        DQ_PUT(w, "caches_whole_at_most", dq_plan_kv_max_trials(p), "Whole caches at most.");
        dq_cache_numbers_work(w, DQ_LIVE(w, &p->caches));
    }
    DQ_LIST(w, "units", "Keys or values of layers.");
    for (int u = 0; DQ_MORE(w, u, p->space.n_units); u++) unit_rows(w, p, u, searched);
    dq_row_end(w);
}

static void settings_rows(dq_row_writer *w, const void *plan)
{
    const dq_plan_kv *p = plan;
    const dq_plan_kv_settings *s = DQ_LIVE(w, &p->set);
    DQ_PUT(w, "kind", "kv", "What is planned.", DQ_WORD("kv"));
    DQ_PUT(w, "kv_bits", s->mean, "Mean bits of a number at most.");
    dq_plan_put_widths(w, w->live ? s->bits : NULL, w->live ? s->n_bits : 0);
    coded_rows(w, DQ_LIVE(w, &s->kv));
    DQ_PUT(w, "layers_together", s->together, "Layers of a unit.", .min = 1);
    DQ_PUT(w, "ctx", s->in.ctx, "Tokens of a window.");
    dq_cache_numbers_windows(w, DQ_LIVE(w, &p->caches));
    DQ_PUT(w, "reads_coded", kv_output_coded(p),
           "Share of the keys that scored rows read which are codes.", .when = DQ_NULL);
    DQ_PUT(w, "trials", s->trials, "Whole caches at most.");
}

static void warn_onto(const dq_cache_job *j, const dq_kv_config *kv)
{
    const char *path = j->c->onto;
    if (kv->evict.policy)
        dq_logger_warn(&j->c->logger,
                       "%s: its cache evicts tokens (policy %s): the plan is measured without",
                       path, kv->evict.policy->name);
}

static const char *const dropped[] = {"k_bits", "v_bits", NULL};
const dq_plan_kind dq_plan_kv_kind = {.name = "plan kv",
                                      .settings = settings_rows,
                                      .result = result_rows,
                                      .device = true,
                                      .kv = kv_rows,
                                      .sample = "4:4",
                                      .option = "kv-bits",
                                      .dropped = dropped,
                                      .warn = warn_onto};

static void print_inputs(const dq_cache_job *j, const dq_plan_kv *p)
{
    char together[32] = "";
    if (p->set.together > 1) snprintf(together, sizeof together, ", %d together", p->set.together);
    printf("text               %lld windows of %lld tokens of %s, the second half of each scored\n",
           (long long)p->caches.win.n, (long long)p->set.in.ctx, j->text.path);
    printf("search             windows %lld to %lld; the other %lld decide, which no choice sees\n",
           (long long)p->caches.begin + 1, (long long)p->caches.end,
           (long long)(p->caches.win.n - p->caches.end + p->caches.begin));
    printf(
        "codes              %s, the first %d and the last %d tokens unquantized: %.1f %% of what "
        "is read are codes\n",
        dq_kv_quant_name[p->set.kv.quant], p->set.kv.sink, p->set.kv.recent,
        100 * kv_output_coded(p));
    printf("units              %d: keys%s and values of %d layer%s%s, each with ", p->space.n_units,
           p->space.n_maps == 2 ? " by map" : "", p->space.n_layers,
           p->space.n_layers > 1 ? "s" : "", together);
    for (int k = 0; k < p->space.n_bits; k++) printf("%s%d", k ? "," : "", p->space.bits[k]);
    printf(" bits\n");
}

static dq_status print_work(const dq_cache_job *j, dq_plan_kv *p, dq_err *err)
{
    const long long search = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_SEARCH);
    const long long unseen = dq_plan_caches_ids(&p->caches, DQ_PLAN_CACHES_UNSEEN);
    const long long alone = dq_plan_kv_caches(p), whole = dq_plan_kv_max_trials(p);
    const double beside = 1 + 1.0 / DQ_PLAN_CACHES_SWEEP;
    double pace; /* seconds a token takes */
    DQ_TRY(dq_plan_kv_pace(&pace, p, err));
    print_inputs(j, p);
    printf("alone              %lld caches, a unit at a width and the others at %d bits: %lld "
           "tokens\n",
           alone, DQ_PLAN_KV_OTHERS, alone * search);
    printf("whole              at most %lld caches in the search: %lld tokens\n", whole,
           whole * search);
    printf("decide             at most 3 caches: %lld tokens\n", 3 * unseen);
    printf("beside             the unquantized cache, once for up to %d of these\n",
           DQ_PLAN_CACHES_SWEEP);
    printf("mean               %g bits of keys and values\n", p->set.mean);
    dq_cache_numbers_time(pace, beside * (double)(alone * search + 3 * unseen),
                          beside * (double)((alone + whole) * search + 3 * unseen));
    return dq_stdout_flush(err);
}

/* Mixes that were the plan for a while, and the number of others. */
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

static dq_status kv_output_print(const dq_cache_job *j, const dq_plan_kv *p, dq_err *err)
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
        const dq_plan_kv_unit x = dq_plan_kv_space_unit(&p->space, u);
        char map[32] = "", last[32] = "";
        if (x.map >= 0) snprintf(map, sizeof map, ", map %d", x.map + 1);
        if (x.layers > 1) snprintf(last, sizeof last, " to %d", x.first + x.layers - 1);
        snprintf(name, 128, "%s of layer%s %d%s%s", x.values ? "values" : "keys",
                 x.layers > 1 ? "s" : "", x.first, last, map);
        dq_table_cell(t, "%s", name);
        dq_table_cell(t, "%d", p->trial[p->chosen].width[u]);
        for (int k = 0; k < p->space.n_bits; k++) {
            if (!dq_plan_kv_measures(p, k)) continue;
            const dq_mean m = p->unit[u * p->space.n_bits + k].kld.of;
            isfinite(m.std_err) ? dq_table_cell(t, "%.2e ± %.0e", m.value, m.std_err)
                                : dq_table_cell(t, "%.2e ± -", m.value);
        }
    }
    DQ_TRY(dq_table_finish(t, err));
    putchar('\n');
    print_inputs(j, p);
    if (p->caches.n_resumed)
        printf("taken over         %lld windows of mixes of an earlier run\n",
               (long long)p->caches.n_resumed);
    print_search(p);
    printf("plan               --kv-quant %s --kv-recent %d --kv-sink %d --kv-bits '%s'\n",
           dq_kv_quant_name[p->set.kv.quant], p->set.kv.recent, p->set.kv.sink,
           dq_plan_kv_widths(p));
    printf("bits               %.4g of keys and values, without scales\n",
           p->trial[p->chosen].bits);
    dq_cache_numbers_print(&p->found, &p->caches);
    for (int i = 0; i < p->n_baselines; i++) {
        const dq_plan_kv_baseline *r = &p->baseline[i];
        const double more = p->trial[p->chosen].bits - r->bits;
        char baselines_name[DQ_KV_LISTS + 16];
        snprintf(baselines_name, sizeof baselines_name, "against %s", p->caches.list[r->mix].name);
        printf("%-18s %.4g bits; KLD %.3g, perplexity %+.3f %%\n", baselines_name, r->bits,
               r->beside.its.kld.of.value, dq_cache_numbers_percent(r->beside.its.loss.of.value));
        dq_cache_numbers_compare(&r->beside.less, "the uniform width", false);
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
    printf("recipe             %s\n", p->set.in.out);
    return dq_stdout_flush(err);
}

/* Inputs are cmd_plan.h's, the search is plan/plan_cache.h's. */

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
                "  dq quantize model -o model.h5 --recipe cache.json\n"};

enum { N_CODES = 3 };
static const dq_kv_quant code[N_CODES] = {DQ_KV_DITHER, DQ_KV_PER_CHANNEL, DQ_KV_MIXED};

static const char *const *code_names(const char *names[N_CODES])
{
    for (int i = 0; i < N_CODES; i++) names[i] = dq_kv_quant_name[code[i]];
    return names;
}

/* The library explains why per-token codes are refused. */
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
    DQ_TRY(dq_plan_read_widths(s->bits, &s->n_bits, c->widths, err));
    for (int i = 0; i < s->n_bits; i++) {
        if (s->bits[i] == 7)
            return dq_fail(err, DQ_USAGE,
                           "--widths %s: 7 bits are not offered for a cache (8, 6, 5, 4, 3, 2).",
                           c->widths);
    }
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

static dq_status run_plan(dq_cache_job *j, const dq_plan_kv_settings *set, dq_err *err)
{
    dq_plan_kv *p;
    DQ_TRY(dq_plan_kv_open(&p, set, err));
    const double coded = kv_output_coded(p);
    dq_cache_job_warn(j, &p->caches);
    if (coded < 0.5)
        dq_logger_warn(
            &j->c->logger,
            "only %.1f %% of what scored tokens read are codes: windows of %lld tokens are "
            "short for %d recent tokens. Use a larger --ctx",
            100 * coded, (long long)p->set.in.ctx, p->set.kv.recent);
    if (dq_cache_job_begin(j, p, &p->caches.win, err)) {
        dq_plan_kv_run(p, err);
        /* A written recipe stays even if the report about it fails. */
        if (dq_cache_job_end(j, err)) dq_cache_job_write(j, &p->caches, dq_plan_kv_widths(p), err);
    }
    if (err->code == DQ_OK && dq_ranks_number() == 0)
        j->c->json      ? dq_plan_print(&j->c->logger, j->kind, j, p, err)
        : j->c->dry_run ? print_work(j, p, err)
                        : kv_output_print(j, p, err);
    dq_plan_kv_close(p);
    return err->code;
}

static void start(options *o, const dq_args *args, dq_err *err)
{
    dq_plan_kv_settings set = {0};
    const dq_cache_job_recipe recipe = {&set, &set.kv, o->mean};
    dq_cache_job j = {.kind = &dq_plan_kv_kind, .c = &o->all, .recipe = &recipe};
    if (!(o->mean > 0)) dq_fail(err, DQ_USAGE, "--kv-bits BITS is missing: a mean of 2 to 8.");
    if (err->code != DQ_OK || make_settings(&set, o, err) != DQ_OK ||
        dq_progress_listen(&o->all.logger, usage.name, err) != DQ_OK)
        return;
    if (dq_cache_job_open(&j, args, DQ_PLAN_KV_WINDOWS, err) == DQ_OK) {
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
