/* cmd_logits: the logits of given ids as an HDF5 file, for comparing with other programs.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "checkpoint/h5_result.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "model/model.h"
#include "record/record.h"
#include "record/version.h"
#include "session/session.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"
#include "settings/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct logits {
    const char *text_path, *out_path, *device;
    dq_list ids;
    int64_t threads, prefix; /* prefix 0: none is named */
    dq_pass_options how;
    bool json, force;
    dq_input_head_order head_order;
    dq_logger logger;
    dq_arena *arena;
    dq_backend *backend;
    dq_model *model;
    dq_tokenizer *tokenizer;
    dq_runner *runner;
    dq_input_text text;
    dq_input_ids in;
    dq_pass pass;
    dq_h5_result *h;
    dq_kv_spec kv;
    dq_session *session;
    bool evicts; /* there is a context, and a policy for what is after it */
    dq_kv_bytes floor;
    dq_kv_cached cached;
    dq_sha256 sha;
    char sha256[65];      /* of the logits' bytes */
    dq_progress progress; /* in rows through the layers; the head counts for its share of weights */
    double head_rows;     /* that one row of logits counts for */
} logits;

static const dq_usage usage = {
    .name = "logits",
    .synopsis = "MODEL (--ids \"1 2 3\" | --text FILE) -o OUT.h5 [options]",
    .about = "Runs the model once over one sequence and writes /ids (int32 [n]) and /logits "
             "(float32 [n, vocabulary]); row i holds the logits after id i. Ids are taken as they "
             "are: nothing is added before them or before the text. Use it to compare dq with "
             "another implementation.\n",
    .examples =
        "  dq logits diffllama/ --ids \"0 17 44 8\" -o logits.h5\n"
        "  dq logits OUT.h5 --text book.txt --logit-bits 6 --logit-granularity per-row -o "
        "logits.h5\n"
        "  dq logits model --text book.txt --prefix 400 --kv-bits 4 --kv-keep 0.5 -o logits.h5\n"};

static void tell(void *arg, double rows)
{
    logits *x = arg;
    dq_progress_set(&x->progress, x->progress.done + rows, NULL);
}

static dq_status write_block(void *arg, const float *logit, int64_t first, int64_t n, dq_err *err)
{
    logits *x = arg;
    dq_sha256_add(&x->sha, logit, (size_t)n * (size_t)x->model->vocab * sizeof *logit);
    DQ_TRY(dq_h5_result_rows(x->h, first, n, logit, err));
    tell(x, (double)n * x->head_rows);
    return DQ_OK;
}

static dq_status put_json(dq_h5_result *h, const char *name, json_t *value, dq_err *err)
{
    char *text;
    dq_json_dump(&text, value, JSON_COMPACT, err);
    json_decref(value);
    if (!text) return err->code;
    dq_h5_result_text(h, "/", name, text, err);
    free(text);
    return err->code;
}

static dq_status run_pass(logits *x, const int32_t *pos, int64_t from, int64_t to, dq_err *err)
{
    DQ_TRY(
        dq_session_feed(x->session, x->in.ids + from, to - from, to - from, write_block, x, err));
    DQ_TRY(dq_kv_cached_reads(&x->cached, x->runner, dq_session_seq(x->session), pos + from,
                              to - from, err));
    if (x->cached.contexts && to == x->in.n) return DQ_OK; /* nobody reads what would be left */
    /* After the context (without one, all tokens): evicts if asked to, and measures. */
    const int32_t length = (int32_t)dq_session_length(x->session), seq = dq_session_seq(x->session);
    const bool measured = x->cached.contexts > 0;
    DQ_TRY(dq_session_evict(x->session, err));
    if (measured) return DQ_OK;
    if (x->evicts) dq_kv_cached_report(&x->cached, dq_session_evicted(x->session), 1);
    dq_kv_cached_measure(&x->cached, x->runner, &x->kv, &x->floor, &seq, &length, 1);
    return DQ_OK;
}

static dq_status run_passes(logits *x, dq_err *err)
{
    int32_t *pos = dq_alloc(x->arena, (size_t)x->in.n, sizeof *pos, err);
    if (!pos) return err->code;
    for (int64_t i = 0; i < x->in.n; i++) pos[i] = (int32_t)i;
    DQ_TRY(dq_h5_result_new(&x->h, x->out_path, x->force, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "format", "dq-logits", err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "format_version", "1.0", err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "dq_version", DQ_VERSION, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "model", x->model->name, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "fingerprint", x->model->fingerprint, err));
    DQ_TRY(dq_h5_result_int(x->h, "/", "logit_bits", x->pass.logit.bits, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "logit_granularity",
                             dq_granularity_name[x->pass.logit.granularity], err));
    DQ_TRY(put_json(x->h, "math", dq_kv_report_math_json(x->pass.math), err));
    DQ_TRY(dq_h5_result_array(x->h, "/ids", DQ_OUT_I32, 1, &x->in.n, x->in.ids, err));
    DQ_TRY(dq_h5_result_matrix(x->h, "/logits", x->in.n, x->model->vocab, err));
    DQ_TRY(dq_sha256_begin(&x->sha, err));
    /* A pass ends after the context, then every --kv-every rows. */
    const int64_t every = x->evicts ? x->kv.evict.every : 0;
    for (int64_t from = 0, to; from < x->in.n; from = to) {
        to = every > 0 && x->in.n - from > every ? from + every : x->in.n;
        if (from < x->prefix) to = x->prefix;
        DQ_TRY(run_pass(x, pos, from, to, err));
    }
    DQ_TRY(dq_os_maps_check(err));
    DQ_TRY(dq_sha256_end(&x->sha, x->sha256, err));
    DQ_TRY(put_json(x->h, "kv", dq_kv_report_json(&x->kv, &x->cached), err));
    return dq_h5_result_close(x->h, err);
}

static void document_rows(dq_row_writer *w, const void *arg)
{
    const logits *x = arg;
    char widths[DQ_KV_TEXT];
    DQ_LIST(w, "inputs", "The model and the text.");
    dq_input_put_model(w, DQ_LIVE(w, x->model));
    if (DQ_WHEN(w, x->text.text)) dq_input_put_text(w, DQ_LIVE(w, &x->text));
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "How it was computed.");
    DQ_PUT(w, "logit_bits", x->pass.logit.bits, "Bits of attention logits, 16: not rounded.",
           .min = 2, .max = 16);
    DQ_PUT(w, "head_order", x->head_order.word.text, "--head-order; null: the model's.",
           .when = DQ_NULL);
    DQ_PUT(w, "logit_granularity", dq_granularity_name[x->pass.logit.granularity],
           "What shares a scale of logits.", DQ_WORDS(dq_granularity_name));
    DQ_PUT(w, "kv_bits", dq_kv_spec_widths(widths, &x->kv), "Widths of keys and values, K:V.");
    DQ_OBJECT(w, "kv", "The KV cache.");
    DQ_PUT(w, "effective", dq_kv_spec_json(&x->kv), "As it ran.", DQ_KV_SPEC);
    DQ_PUT(w, "stored", x->model->is_container ? dq_kv_config_json(&x->model->kv) : NULL,
           "As the container asks for it; null: a checkpoint.", .when = DQ_NULL, DQ_KV_CONFIG);
    dq_row_end(w);
    DQ_PUT(w, "prefix", x->prefix, "Tokens of the context, which is one pass; null: all at once.",
           .when = DQ_NULL | DQ_AT_0, .min = 1);
    DQ_PUT(w, "math", dq_num_name[x->how.math.at], "The arithmetic.", DQ_NUM_WORDS);
    DQ_PUT(w, "device", x->backend->device, "The device and its arithmetic units, in words.");
    DQ_PUT(w, "threads", x->backend->threads, "Threads of the CPU.", .min = 1);
    dq_row_end(w);
    DQ_LIST(w, "results", "What was written.");
    DQ_ITEM(w);
    DQ_PUT(w, "model", x->model->path, "Path of the model.");
    DQ_PUT(w, "output", x->out_path, "Path of the HDF5 file.");
    DQ_PUT(w, "n", x->in.n, "Rows of logits, one a token.");
    DQ_PUT(w, "vocab", x->model->vocab, "Logits of a row.");
    DQ_PUT(w, "logits_sha256", x->sha256, "Of their values.", .pattern = DQ_SHA256);
    DQ_PUT(w, "kv", dq_kv_report_json(&x->kv, &x->cached), "The cache and what it held.",
           DQ_KV_RESULT);
    DQ_PUT(w, "passes",
           x->prefix == 0                        ? "whole"
           : x->evicts && x->kv.evict.every == 1 ? "decode"
                                                 : "context+rest",
           "How tokens were fed.", DQ_WORD("whole", "context+rest", "decode"));
    DQ_PUT(w, "math", dq_kv_report_math_json(x->pass.math), "The arithmetic.", DQ_MATH);
    dq_row_end(w);
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    document_rows(w, NULL);
}

const dq_document dq_logits_document = {
    "dq-logits/1", "What dq logits --json prints; the logits are in the HDF5 file.", "logits",
    describe};

static dq_status run(logits *x, const dq_args *args, dq_err *err)
{
    const char *path = args->item[0];
    if (!x->out_path) return dq_fail(err, DQ_USAGE, "no output named. Add -o OUT.h5.");
    if (!x->text_path == !x->ids.n)
        return dq_fail(err, DQ_USAGE, "give either --ids \"1 2 3\" or --text FILE.");
    if (x->ids.n > 1)
        return dq_fail(err, DQ_USAGE, "--ids: one sequence only. Run dq logits once for each.");
    DQ_TRY(dq_kv_options_read(&x->how.kv, false, err));
    const dq_output out = {"-o", x->out_path, DQ_OUTPUT_HDF5, NULL};
    DQ_TRY(dq_output_guard_check(&out, 1, args->input, args->n_inputs, x->force, err));
    DQ_TRY(dq_backend_open(&x->backend, x->device, (int)x->threads, err));
    DQ_TRY(dq_input_model(&x->model, path, &x->head_order, &x->logger, err));
    DQ_TRY(dq_input_head_order_check(&x->head_order, err));
    x->how.kv.logger = &x->logger;
    x->how.kv.context = x->prefix;
    DQ_TRY(dq_pass_options_of(&x->pass, &x->kv, &x->how, x->model, x->backend, err));
    const dq_evict_spec *evict = &x->kv.evict;
    x->evicts = evict->policy && x->prefix > 0;
    if (evict->policy && x->prefix == 0 && (evict->tokens || evict->keep < 1))
        return dq_fail(err, DQ_USAGE,
                       "tokens are evicted after a context, and none is named. Add --prefix N%s.",
                       x->model->kv.evict.policy
                           ? ", or --kv-keep 1 against what the container asks for"
                           : "");
    dq_kv_report_note_math(&x->logger, x->backend->device, x->pass.math);
    const dq_model *m = x->model;
    if (x->ids.n) {
        DQ_TRY(dq_input_parse_ids(&x->in, x->ids.item, 1, x->arena, err));
    } else {
        DQ_TRY(dq_input_read(&x->text, x->text_path, x->arena, err));
        DQ_TRY(dq_input_tokenizer(&x->tokenizer, m, true, err));
        DQ_TRY(dq_input_encode(&x->in, x->tokenizer, &x->text, 0, &x->logger, x->arena, err));
    }
    if (x->in.n > m->max_positions)
        return dq_fail(err, DQ_MISMATCH, "%s: %lld tokens, but the model has %d positions", m->path,
                       (long long)x->in.n, m->max_positions);
    if (x->prefix > x->in.n)
        return dq_fail(err, DQ_USAGE, "--prefix %lld is more than the %lld tokens there are.",
                       (long long)x->prefix, (long long)x->in.n);
    int64_t need = x->in.n * (int64_t)x->model->vocab * 4, left = dq_file_disk_free(x->out_path);
    if (left >= 0 && left < need)
        return dq_fail(
            err, DQ_FILE,
            "%s: the disk is too full (%lld bytes needed, %lld free). Use fewer tokens or "
            "another disk.",
            x->out_path, (long long)need, (long long)left);
    DQ_TRY(dq_runner_new(&x->runner, x->model, x->backend, &x->kv, err));
    dq_kv_report_note_routes(&x->logger, x->backend, x->model, x->pass.math, &x->kv);
    DQ_TRY(dq_kv_cached_floor(&x->floor, x->runner, 1, err));
    x->pass.listener = (dq_pass_listener){tell, x};
    DQ_TRY(dq_session_new(&x->session, x->runner, &x->pass, x->evicts, err));
    const double head = (double)x->model->vocab * x->model->dim;
    const double all = (double)x->model->n_params, layers = all > 2 * head ? all - head : head;
    x->head_rows = head / layers;
    dq_progress_begin(&x->progress, &x->logger, x->model->name,
                      (double)x->in.n * (1 + x->head_rows));
    dq_progress_set(&x->progress, 0, NULL);
    run_passes(x, err);
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    dq_kv_report_warn(&x->logger, x->model->name, &x->kv, &x->cached);
    if (x->json) {
        DQ_TRY(dq_stdout_print(dq_document_of(&x->logger, &dq_logits_document, document_rows, x),
                               err));
    } else {
        printf("%s: %" PRId64 " rows of %d logits, SHA-256 of the values %s\n", x->out_path,
               x->in.n, x->model->vocab, x->sha256);
        DQ_TRY(dq_stdout_flush(err));
    }
    return dq_h5_result_commit(&x->h, err);
}

dq_status dq_cmd_logits(int argc, char **argv, dq_err *err)
{
    dq_arena *a;
    logits *x = dq_arena_object(&a, sizeof *x, err); /* too large for a stack */
    if (!x) return err->code;
    x->arena = a;
    x->device = "auto";
    dq_pass_options_begin(&x->how, "of the policy random (default 1)");
    const dq_opt opts[] = {
        dq_opt_list("ids", "\"1 2 3\"", &x->ids, "the ids, taken as they are"),
        dq_opt_text("text", "FILE", &x->text_path,
                    "text to encode, without special tokens; - for standard input"),
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "OUT.h5", &x->out_path,
                                                     "the file to write (needed)"))),
        dq_opt_int("prefix", "N", &x->prefix, 1, 1e9,
                   "the first N tokens are the context: one pass, after which tokens are evicted"),
        DQ_PASS_OPTION_ROWS(x->how),
        dq_opt_heading("how it is computed"),
        DQ_INPUT_HEAD_ORDER_OPTION(x->head_order),
        DQ_OPT_RUN(&x->device, &x->threads),
        dq_opt_flag("json", &x->json, "one JSON document (dq-logits/1) instead of a line"),
        dq_opt_flag("force", &x->force, "replace an existing output file"),
        DQ_LOGGER_OPTIONS(x->logger),
        {0},
    };
    dq_args args;
    if (dq_help_begin(&args, argc, argv, opts, &usage, &x->logger, err)) run(x, &args, err);
    dq_h5_result_drop(x->h);
    dq_sha256_drop(&x->sha);
    dq_session_free(x->session);
    dq_runner_free(x->runner);
    dq_tokenizer_free(x->tokenizer);
    dq_model_close(x->model);
    dq_backend_close(x->backend);
    dq_logger_end(&x->logger);
    dq_arena_free(a);
    return err->code;
}
