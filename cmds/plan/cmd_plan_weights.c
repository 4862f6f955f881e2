/* cmd_plan_weights: dq plan weights: which tensor needs how many bits. The search is the library's (plan/weights/plan_weights.h).
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "cmds/cli/help.h"
#include "cmds/cli/progress.h"
#include "cmds/command.h"
#include "cmds/plan/plan_files.h"
#include "cmds/plan/weights_output.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "settings/quantize_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct request {
    dq_logger logger;
    const char *budget, *widths;
    dq_word method; /* of dq_calibrate_rules */
    dq_list budgets;
    int64_t trials, threads;
    bool dry_run, json;
    dq_recipe_options recipe;
    dq_plan_weights_settings set;
    /* what runs */
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
        "  dq plan weights model --calib train.jsonl --budget bpw=4.2 --dry-run\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

static const char budget_about[] =
    "kld=NATS or ppl=RATIO, which the upper end of a 95 % interval on unseen text must keep with "
    "as few bits as possible; bpw=BITS of packed tensors, scales included, or size=BYTES of the "
    "container (in B, kB, MB, GB, KiB, MiB or GiB), with as little KLD as possible";

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* ---- Settings ---- */

static dq_status make_settings(request *r, dq_err *err)
{
    dq_plan_weights_settings *s = &r->set;
    DQ_TRY(dq_recipe_options_read(&s->set, &r->recipe, err));
    dq_recipe_options_scale(&s->set, &r->recipe, true);
    s->rule = &dq_calibrate_rules[r->method.at];
    DQ_TRY(dq_options_ints(s->bits, &s->n_bits, DQ_PLAN_WIDTHS,
                           r->widths ? r->widths : "2,3,4,5,6,8", "widths", 2, 8, err));
    qsort(s->bits, (size_t)s->n_bits, sizeof *s->bits, ascending);
    if (!s->calib) return dq_fail(err, DQ_USAGE, "--calib FILE is missing.");
    if (r->budgets.n == 0)
        return dq_fail(err, DQ_USAGE,
                       "--budget is missing: kld=0.01, ppl=1.005, bpw=4.2 or size=1.5GiB.");
    if (r->budgets.n > 1)
        return dq_fail(err, DQ_USAGE, "--budget: expected one, found %s and %s.",
                       r->budgets.item[0], r->budgets.item[1]);
    r->budget = r->budgets.item[0];
    DQ_TRY(dq_plan_weights_budget_parse(&s->budget, r->budget, err));
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

/* ---- Progress ---- */

static void stage(void *arg, const char *name)
{
    request *r = arg;
    dq_progress_label(&r->bar, name);
    dq_logger_note(&r->logger, "%s", name);
}

static json_t *told(void *arg, const dq_plan_weights *p)
{
    return dq_weights_output_told(&((request *)arg)->budget, p);
}

static void step(void *arg, double done, double total, const char *what)
{
    dq_progress_step(&((request *)arg)->bar, done, total, what);
}

/* ---- The run ---- */

static void warn_text(request *r, const dq_plan_weights *p)
{
    dq_calib_run_warn(&p->text[DQ_PLAN_CALIB], r->set.calib, r->set.rule,
                      dq_calib_pass_widest(p->model), &r->logger);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const bool other = i == DQ_PLAN_UNSEEN && p->set.unseen;
        if (other || p->text[i].bytes_read < p->text[i].bytes) /* not what calibration has read */
            dq_calib_run_warn_form(&p->text[i], dq_weights_output_file(p, i), &r->logger);
        dq_calib_run_warn_repeats(&p->text[i], dq_weights_output_file(p, i), dq_plan_text_name[i],
                                  &r->logger);
        if (p->text[i].n_copies)
            dq_logger_warn(&r->logger,
                           "%s: %lld documents (of a single text, sequences) of the %s part are "
                           "copies of others there; errors count each once",
                           dq_weights_output_file(p, i), (long long)p->text[i].n_copies,
                           dq_plan_text_name[i]);
        if (p->n_seen[i])
            dq_logger_warn(&r->logger,
                           "%s: %lld of the %lld sequences of the %s part %s of one in a part "
                           "before, so numbers look better than on new text. Give text that does "
                           "not repeat itself",
                           dq_weights_output_file(p, i), (long long)p->n_seen[i],
                           (long long)p->text[i].n_seq, dq_plan_text_name[i],
                           p->n_seen[i] == 1 ? "is a copy" : "are copies");
        if (p->clusters[i] < DQ_PLAN_FEW_CLUSTERS)
            dq_logger_warn(&r->logger,
                           "%s: %lld documents (of a single text, sequences) are few for the %s "
                           "part: with fewer than %d, intervals hold less than they say. Give more "
                           "text, or more --search-tokens",
                           dq_weights_output_file(p, i), (long long)p->clusters[i],
                           dq_plan_text_name[i], DQ_PLAN_FEW_CLUSTERS);
    }
}

static dq_status finish(request *r, dq_plan_weights *p, dq_err *err)
{
    if (dq_weights_output_recipe(p, r->budget, err) != DQ_OK) return dq_plan_weights_failed(p, err);
    dq_plan_weights_done(p);
    DQ_TRY(r->json ? dq_weights_output_json(p, r->budget, &r->logger, err)
                   : dq_weights_output_print(p, err));
    return dq_weights_output_verdict(p, r->budget, err);
}

/* Ranks are to run one program for one thing; of model and texts the library sees to it. */
static dq_status agree(const request *r, dq_err *err)
{
    const dq_plan_weights_settings *s = &r->set;
    char program[DQ_IDENTITY], key[65] = "";
    dq_arena *a = dq_arena_new();
    dq_identity_text(program, s->backend);
    const char *text = a ? dq_textf(a, err, "%s %s %d %d %d %d %s", program, r->budget, s->trials,
                                    s->resume, s->force, r->dry_run, s->out ? s->out : "")
                         : NULL;
    if (text) dq_sha256_of(key, text, strlen(text), err);
    if (!a) dq_fail(err, DQ_RESOURCE, "out of memory");
    dq_arena_free(a);
    return dq_ranks_agree("program, processor, budget or set of options", key, err);
}

static dq_status run_plan(request *r, dq_err *err)
{
    dq_plan_weights *p;
    DQ_TRY(agree(r, err));
    DQ_TRY(dq_plan_weights_open(&p, &r->set, err));
    warn_text(r, p);
    if (r->dry_run) {
        dq_weights_output_inputs(p);
        dq_weights_output_work(p, err);
        if (err->code == DQ_OK) printf("budget             %s\n", r->budget);
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
#ifdef _OPENMP
    omp_set_num_threads(r->threads > 0 ? (int)r->threads : dq_os_cpu_count(""));
#endif
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
