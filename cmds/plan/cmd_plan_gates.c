/* Dq plan gates: what the policy kvzap goes by. Inputs are cmd_plan.h's, the fit is the library's
 * (plan/plan_cache.h); the file is a document of its own, as FORMAT.md says it.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/plan/inside.h"
#include "engine/runner.h"
#include "eval/eval.h"
#include "plan/plan_cache.h"
#include "record/record.h"
#include "tasks/documents.h"
#include "work/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dq_usage usage = {
    .name = "plan gates",
    .synopsis = "MODEL --text FILE -o GATES.json [options]",
    .about =
        "Fits gates: a linear model for each layer and group of KV heads that foretells, from a "
        "token's key and value, how much a second reading of the context would look at it. With "
        "them --kv-policy kvzap keeps nearly what kvzip keeps, without its second pass. Each "
        "window is read twice; the last quarter of the windows is not fitted and says how well "
        "the gates do. dq eval and dq logits take the file with --kv-gates; dq quantize stores it "
        "in the container.",
    .examples = "  dq plan gates model --text train.txt -o gates.json\n"
                "  dq eval model --text test.txt --kv-gates gates.json --kv-keep 0.25\n"
                "  dq quantize model -o model.h5 --kv-gates gates.json --kv-keep 0.25\n"};

static void result_rows(dq_row_writer *w, const void *plan, int64_t i)
{
    const dq_plan_gates *p = plan;
    (void)i;
    DQ_PUT(w, "windows_fitted", p->fitted, "Windows that the fit saw.");
    DQ_PUT(w, "windows_unseen", p->win.n - p->fitted, "Windows that it did not.");
    DQ_PUT(w, "explained_variance", p->explained,
           "Share of the variance on unseen windows that the gates explain.", .when = DQ_NULL);
    DQ_PUT(w, "kvzip_quarter_kept", p->kept.value,
           "Share of the quarter that kvzip keeps which the gates keep.", .when = DQ_NULL);
    DQ_PUT(w, "kvzip_quarter_kept_stderr", p->kept.std_err, "Its standard error over windows.",
           .when = DQ_NULL);
}

static void settings_rows(dq_row_writer *w, const void *plan)
{
    const dq_plan_gates *p = plan;
    DQ_PUT(w, "kind", "gates", "What is planned.", DQ_WORD("gates"));
    DQ_PUT(w, "ctx", p->set.ctx, "Tokens of a window.");
    DQ_PUT(w, "windows", p->win.n, "Windows of the text.");
}

const dq_plan_kind dq_plan_gates_kind = {
    .name = "plan gates", .settings = settings_rows, .result = result_rows, .device = true};

static json_t *sketch_json(const dq_windows *win)
{
    dq_repeats_sketch sketch = {.n = 0};
    for (int64_t i = 0; i < win->n; i++)
        dq_repeats_sketch_add(&sketch, win->win[i].ids, win->win[i].n);
    return dq_repeats_sketch_json(&sketch);
}

static void file_rows(dq_row_writer *w, const dq_cache_job *j, const dq_plan_gates *p)
{
    DQ_PUT(w, "dq_version", j->in.dq_version, "The version of dq that fitted them.");
    DQ_PUT(w, "model", j->model->name, "Name of the model.");
    DQ_PUT(w, "model_fingerprint", j->model->fingerprint, "Of the model that they were fitted to.",
           .pattern = DQ_SHA256);
    DQ_PUT(w, "text_sha256", j->text.sha256, "Of the text.", .pattern = DQ_SHA256);
    DQ_PUT(w, "sketch", sketch_json(&p->win), NULL, .ref = "common.json#/$defs/sketch",
           .when = DQ_OUT /* of older files */);
    DQ_OBJECT(w, "settings", "Of the fit.");
    settings_rows(w, p);
    dq_row_end(w);
    DQ_OBJECT(w, "result", "How well they do.");
    result_rows(w, p, 1);
    dq_row_end(w);
    dq_kv_gates_rows(w, DQ_LIVE(w, p->gates));
}

static void describe(dq_row_writer *w)
{
    file_rows(w, NULL, NULL);
}

const dq_document dq_gates_document = {
    "dq-gates/1",
    "Gates of the policy kvzap: what dq plan gates -o writes and --kv-gates reads. See FORMAT.md.",
    "", describe};

static dq_status write_file(const dq_cache_job *j, const dq_plan_gates *p, dq_err *err)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    char *text = NULL;
    file_rows(&w, j, p);
    if (dq_json_complete(err) == DQ_OK &&
        dq_json_dump(&text, o, JSON_REAL_PRECISION(9) | JSON_COMPACT, err) == DQ_OK)
        dq_file_write(j->c->out, text, strlen(text), err);
    free(text);
    json_decref(o);
    return err->code;
}

static double tokens_of(const dq_plan_gates *p)
{
    const int64_t ctx = p->set.ctx;
    return (double)(p->win.n * (ctx + dq_second_pass_rows(ctx)));
}

static dq_status print_time(const dq_cache_job *j, const dq_plan_gates *p, dq_err *err)
{
    const dq_pass pass = {.logit = dq_logit_plain,
                          .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32}};
    char text[32];
    double seconds;
    dq_runner *r;
    DQ_TRY(dq_runner_new(&r, j->model, j->in.backend, &dq_kv_plain, err));
    if (dq_eval_token_seconds(&seconds, r, &pass, err) == DQ_OK)
        printf("time               about %s\n",
               dq_document_time_text(text, sizeof text, tokens_of(p) * seconds));
    dq_runner_free(r);
    return err->code;
}

static dq_status print_text(const dq_cache_job *j, const dq_plan_gates *p, dq_err *err)
{
    const long long fitted = p->fitted, unseen = p->win.n - p->fitted, ctx = p->set.ctx;
    printf("text               %lld windows of %lld tokens of %s, each read twice: %.0f tokens\n",
           fitted + unseen, ctx, j->text.path, tokens_of(p));
    printf("fit                the first %lld; the other %lld are not fitted\n", fitted, unseen);
    const int groups = p->gates->n_groups, layers = p->n_lists / groups;
    printf("gates              %d layer%s of %d group%s of KV heads%s, %lld features of a token\n",
           layers, layers > 1 ? "s" : "", groups, groups > 1 ? "s" : "",
           p->n_lists < p->gates->n_layers * p->gates->n_groups ? " without a window" : "",
           (long long)dq_kv_gates_features(p->gates->heads[0], p->gates->head_dim));
    if (j->c->dry_run) return print_time(j, p, err) == DQ_OK ? dq_stdout_flush(err) : err->code;
    printf("on unseen windows  %.3g of the variance of what kvzip goes by is explained; of the "
           "quarter of all\n                   tokens that kvzip keeps, the gates keep %.3g ± "
           "%.2g\n",
           p->explained, p->kept.value, p->kept.std_err);
    printf("gates in           %s\n", j->c->out);
    return dq_stdout_flush(err);
}

static dq_status run_plan(dq_cache_job *j, dq_err *err)
{
    const dq_plan_gates_settings set = {.model = j->model,
                                        .tok = j->tok,
                                        .docs = &j->docs,
                                        .text = j->c->text,
                                        .backend = j->in.backend,
                                        .ctx = j->c->ctx,
                                        .windows = j->in.windows,
                                        .step = dq_progress_step,
                                        .arg = &j->bar};
    dq_plan_gates *p;
    DQ_TRY(dq_plan_gates_open(&p, &set, err));
    const int most = j->model->max_positions;
    if (most > 0 && dq_second_pass_end(p->set.ctx) > most)
        dq_logger_warn(&j->c->logger,
                       "the second reading of windows of %lld tokens stands after the %d positions "
                       "of %s; use --ctx %d or less",
                       (long long)p->set.ctx, most, j->model->path, most / 2);
    if (p->win.n_copies)
        dq_logger_warn(&j->c->logger, "%s: %lld windows or documents are copies of earlier ones",
                       j->c->text, (long long)p->win.n_copies);
    if (dq_cache_job_begin(j, p, &p->win, err)) {
        dq_plan_gates_run(p, err);
        if (dq_cache_job_end(j, err)) write_file(j, p, err);
    }
    if (err->code == DQ_OK && dq_ranks_number() == 0)
        j->c->json ? dq_plan_print(&j->c->logger, j->kind, j, p, err) : print_text(j, p, err);
    dq_plan_gates_close(p);
    return err->code;
}

dq_status dq_cmd_plan_gates(int argc, char **argv, dq_err *err)
{
    dq_cache_options o = dq_cache_options_none;
    const dq_opt opts[] = {
        dq_opt_text("text", "FILE", &o.text,
                    "text to fit to, as in dq eval: plain, or .jsonl of {\"text\"}; not the text "
                    "that the model is scored with"),
        dq_opt_int("ctx", "N", &o.ctx, 4, INT32_MAX,
                   "tokens of a window (default 1024, or half of the model's positions)"),
        dq_opt_int("limit", "N", &o.windows, DQ_PLAN_GATES_LEAST, 1000000,
                   "windows at most (default 16): the last quarter is not fitted"),
        dq_opt_letter(
            'o', dq_opt_output(dq_opt_text("output", "GATES.json", &o.out, "the file to write"))),
        dq_opt_flag("dry-run", &o.dry_run,
                    "print windows, passes and how long they take, by a short one; write nothing"),
        dq_opt_flag("force", &o.force, "replace the file"),
        DQ_OPT_DEVICE(&o.device),
        dq_opt_int("threads", "N", &o.threads, 0, 4096,
                   "0 for all processors (default 0); the result does not depend on it"),
        dq_opt_flag("json", &o.json, "one JSON document (dq-plan/1) on stdout"),
        DQ_LOGGER_OPTIONS(o.logger),
        {0}};
    dq_args args;
    dq_cache_job j = {.kind = &dq_plan_gates_kind, .c = &o};
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    if (o.text && !o.out && !o.dry_run)
        return dq_fail(err, DQ_USAGE,
                       "-o GATES.json is missing (or --dry-run to see what would be done).");
    DQ_TRY(dq_progress_listen(&o.logger, usage.name, err));
    if (dq_cache_job_open(&j, &args, DQ_PLAN_GATES_WINDOWS, err) == DQ_OK) run_plan(&j, err);
    dq_cache_job_close(&j);
    dq_logger_end(&o.logger);
    return err->code;
}
