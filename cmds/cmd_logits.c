/* cmd_logits: the logits of given ids as an HDF5 file, for comparing with other programs.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/sha256.h"
#include "checkpoint/h5_result.h"
#include "cmds/cli/document.h"
#include "cmds/cli/input.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/logger.h"
#include "cmds/cli/options.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/version.h"
#include "cmds/command.h"
#include "engine/runner.h"
#include "model/output_guard.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of logits on their way to the file at a time. */
enum { BLOCK_BYTES = 32 << 20 };

typedef struct logits {
    const char *text_path, *out_path, *granularity, *math_name, *device;
    dq_list ids;
    int64_t logit_bits, threads, prefix; /* prefix 0: none is named */
    dq_kv_options kv_options;
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
    dq_logit_spec logit;
    dq_math math;
    dq_h5_result *h;
    dq_kv_spec kv;
    bool evicts;         /* there is a context, and a policy for what is after it */
    dq_evictor *evictor; /* NULL: nothing is evicted */
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
             "are: nothing is put before them or of the text. Use it to compare dq with "
             "another implementation.\n",
    .examples =
        "  dq logits diffllama/ --ids \"0 17 44 8\" -o logits.h5\n"
        "  dq logits OUT.h5 --text book.txt --logit-bits 6 --logit-granularity per-row -o "
        "logits.h5\n"
        "  dq logits model --text book.txt --prefix 400 --kv-bits 4 --kv-keep 0.5 -o logits.h5\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL",
};

static dq_status check_options(logits *x, const char *model, dq_err *err)
{
    if (!x->out_path) return dq_fail(err, DQ_USAGE, "no output named. Add -o OUT.h5.");
    if (!x->text_path == !x->ids.n)
        return dq_fail(err, DQ_USAGE, "give either --ids \"1 2 3\" or --text FILE.");
    if (x->ids.n > 1)
        return dq_fail(err, DQ_USAGE, "--ids: one sequence only. Run dq logits once for each.");
    DQ_TRY(dq_kv_options_read(&x->kv_options, false, err));
    if (x->granularity) {
        const int g = dq_options_word(x->granularity, "logit-granularity", dq_granularity_name,
                                      DQ_GRANULARITIES, err);
        if (g < 0) return err->code;
        x->logit.granularity = (dq_granularity)g;
    }
    const int m = dq_options_word(x->math_name, "math", dq_num_name, DQ_NUMS, err);
    if (m < 0) return err->code;
    x->math = (dq_math){(dq_num)m, (dq_num)m, (dq_num)m, (dq_num)m};
    const dq_output out = {"-o", x->out_path, DQ_OUTPUT_HDF5, NULL};
    const char *const input[] = {model, x->text_path};
    return dq_output_guard_check(&out, 1, input, 2, x->force, err);
}

/* What the container says holds unless an option says otherwise. */
static void logit_settings(logits *x)
{
    x->logit.bits = x->logit_bits ? (int)x->logit_bits : x->model->logit.bits;
    if (!x->granularity) x->logit.granularity = x->model->logit.granularity;
}

static dq_status kv_settings(logits *x, dq_err *err)
{
    dq_kv_config *list;
    int n;
    if (dq_kv_options_list(&list, &n, &x->kv_options, &x->model->kv, x->model, err) == DQ_OK &&
        dq_kv_options_spec(&x->kv, &list[0], x->model, x->math.kv, err) == DQ_OK)
        dq_kv_options_check(&x->kv_options, err);
    dq_block_free(list);
    DQ_TRY(err->code);
    const dq_evict_spec *evict = &x->kv.evict;
    x->evicts = evict->policy && x->prefix > 0;
    if (evict->policy && x->prefix == 0 && (evict->tokens || evict->keep < 1))
        return dq_fail(err, DQ_USAGE,
                       "tokens are evicted after a context, and none is named. Add --prefix N%s.",
                       x->model->kv.evict.policy
                           ? ", or --kv-keep 1 against what the container asks for"
                           : "");
    return DQ_OK;
}

static dq_status read_ids(logits *x, dq_err *err)
{
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
    for (int64_t i = 0; i < x->in.n; i++) {
        if (x->in.ids[i] < 0 || x->in.ids[i] >= m->vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           m->path, (int)x->in.ids[i], m->vocab);
    }
    return DQ_OK;
}

static dq_status check_space(const logits *x, dq_err *err)
{
    int64_t need = x->in.n * (int64_t)x->model->vocab * 4, left = dq_file_disk_free(x->out_path);
    if (left >= 0 && left < need)
        return dq_fail(
            err, DQ_FILE,
            "%s: the disk is too full (%lld bytes needed, %lld free). Use fewer tokens or "
            "another disk.",
            x->out_path, (long long)need, (long long)left);
    return DQ_OK;
}

/* ----- running ----- */

/* Rows from position `base` on. */
static dq_status check_numbers(const logits *x, const float *host, dq_mat m, int64_t base,
                               dq_err *err)
{
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        if (!isfinite(host[i]))
            return dq_fail(err, DQ_DAMAGED,
                           "%s: the logit of id %lld at position %lld is %g, which a damaged "
                           "output head or final norm does",
                           x->model->path, (long long)(i % m.cols), (long long)(base + i / m.cols),
                           (double)host[i]);
    }
    return DQ_OK;
}

/* ----- progress ----- */

static void tell(void *arg, double rows)
{
    logits *x = arg;
    dq_progress_set(&x->progress, x->progress.done + rows, NULL);
}

static void begin_progress(logits *x)
{
    const double head = (double)x->model->vocab * x->model->dim;
    const double all = (double)x->model->n_params, layers = all > 2 * head ? all - head : head;
    x->head_rows = head / layers;
    dq_progress_begin(&x->progress, &x->logger, x->model->name,
                      (double)x->in.n * (1 + x->head_rows));
    dq_progress_set(&x->progress, 0, NULL);
}

/* Logits of rows first .. first + n - 1 of the hidden state into the file, from its row `base` on. */
static dq_status write_block(logits *x, dq_mat hidden, dq_mat rows, dq_mat out, float *host,
                             int64_t first, int64_t base, dq_err *err)
{
    dq_backend *b = x->backend;
    int64_t index[256];
    size_t bytes = (size_t)out.rows * (size_t)out.cols * sizeof *host;
    for (int64_t i = 0; i < rows.rows; i++) index[i] = first + i;
    b->ops->gather(b, rows, hidden, index);
    /* as logprob has it: the values of a head in codes */
    const dq_num num = x->math.linear == DQ_NUM_INT8 ? DQ_NUM_F32 : x->math.linear;
    b->ops->matmul(b, out, rows, &x->model->head, NULL, num);
    b->ops->get(b, host, out.p, bytes);
    DQ_TRY(dq_backend_sync(b, err));
    DQ_TRY(check_numbers(x, host, out, base + first, err));
    dq_sha256_add(&x->sha, host, bytes);
    return dq_h5_result_rows(x->h, base + first, rows.rows, host, err);
}

static dq_status write_logits(logits *x, dq_mat hidden, int64_t base, dq_err *err)
{
    dq_backend *b = x->backend;
    int64_t vocab = x->model->vocab, n = hidden.rows, step = BLOCK_BYTES / (4 * vocab);
    step = step < 1 ? 1 : step > 256 ? 256 : step;
    dq_mat rows = {.cols = x->model->dim}, out = {.cols = vocab};
    float *host = dq_block_new((size_t)(step * vocab), sizeof *host, err);
    rows.p = b->ops->alloc(b, (size_t)(step * rows.cols) * sizeof(float));
    out.p = b->ops->alloc(b, (size_t)(step * vocab) * sizeof(float));
    if (!rows.p || !out.p) dq_fail(err, DQ_RESOURCE, "out of memory for a block of logits");
    for (int64_t first = 0; first < n && err->code == DQ_OK; first += step) {
        rows.rows = out.rows = first + step < n ? step : n - first;
        if (dq_os_check_stop(err) == DQ_OK)
            write_block(x, hidden, rows, out, host, first, base, err);
        tell(x, (double)rows.rows * x->head_rows);
    }
    b->ops->free(b, rows.p);
    b->ops->free(b, out.p);
    dq_block_free(host);
    return err->code;
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

static dq_status begin_file(logits *x, dq_err *err)
{
    DQ_TRY(dq_h5_result_new(&x->h, x->out_path, x->force, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "format", "dq-logits", err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "format_version", "1.0", err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "dq_version", DQ_VERSION, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "model", x->model->name, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "fingerprint", x->model->fingerprint, err));
    DQ_TRY(dq_h5_result_int(x->h, "/", "logit_bits", x->logit.bits, err));
    DQ_TRY(dq_h5_result_text(x->h, "/", "logit_granularity",
                             dq_granularity_name[x->logit.granularity], err));
    DQ_TRY(put_json(x->h, "math", dq_kv_report_math_json(x->math), err));
    DQ_TRY(dq_h5_result_array(x->h, "/ids", DQ_OUT_I32, 1, &x->in.n, x->in.ids, err));
    DQ_TRY(dq_h5_result_matrix(x->h, "/logits", x->in.n, x->model->vocab, err));
    return dq_sha256_begin(&x->sha, err);
}

/* Where the pass that begins at row `from` ends: after the context, then every --kv-every rows. */
static int64_t pass_end(const logits *x, int64_t from)
{
    int64_t every = x->evictor ? x->kv.evict.every : 0;
    if (from < x->prefix) return x->prefix;
    return every > 0 && x->in.n - from > every ? from + every : x->in.n;
}

/* After the context (or all tokens, where none is named): evicts if asked to, and measures. */
static dq_status compress(logits *x, const dq_batch *batch, int32_t length, dq_err *err)
{
    dq_evict_report report = {.gap_min = (double)INFINITY};
    bool measured = x->cached.contexts > 0;
    if (x->evictor) {
        DQ_TRY(dq_evictor_run(x->evictor, batch, &length, &report, err));
        if (!measured) dq_kv_cached_report(&x->cached, &report, 1);
    }
    if (!measured)
        dq_kv_cached_measure(&x->cached, x->runner, &x->kv, &x->floor, batch->seq, &length, 1);
    return DQ_OK;
}

/* Rows from .. to - 1 as one pass. */
static dq_status run_pass(logits *x, int32_t seq, const int32_t *pos, int64_t from, int64_t to,
                          dq_err *err)
{
    const int64_t cu[2] = {0, to - from};
    const dq_batch batch = {.n_seq = 1,
                            .n_rows = to - from,
                            .cu_rows = cu,
                            .seq = &seq,
                            .ids = x->in.ids + from,
                            .pos = pos + from};
    dq_pass pass = {.logit = x->logit, .math = x->math, .listener = {tell, x}};
    dq_mat hidden;
    if (x->evictor) DQ_TRY(dq_evictor_watch(x->evictor, &batch, &pass.columns, err));
    DQ_TRY(dq_runner_pass(x->runner, &batch, &pass, &hidden, err));
    DQ_TRY(write_logits(x, hidden, from, err));
    DQ_TRY(dq_kv_cached_reads(&x->cached, x->runner, seq, pos + from, to - from, err));
    if (x->cached.contexts && to == x->in.n) return DQ_OK; /* nobody reads what would be left */
    return compress(x, &batch, (int32_t)to, err);
}

static dq_status run_passes(logits *x, int32_t seq, dq_err *err)
{
    int32_t *pos = dq_alloc(x->arena, (size_t)x->in.n, sizeof *pos, err);
    if (!pos) return err->code;
    for (int64_t i = 0; i < x->in.n; i++) pos[i] = (int32_t)i;
    DQ_TRY(begin_file(x, err));
    for (int64_t from = 0, to; from < x->in.n; from = to) {
        to = pass_end(x, from);
        DQ_TRY(run_pass(x, seq, pos, from, to, err));
    }
    DQ_TRY(dq_os_maps_check(err));
    DQ_TRY(dq_sha256_end(&x->sha, x->sha256, err));
    DQ_TRY(put_json(x->h, "kv", dq_kv_report_json(&x->kv, &x->cached), err));
    return dq_h5_result_close(x->h, err);
}

static dq_status run_model(logits *x, dq_err *err)
{
    dq_backend *b = x->backend;
    DQ_TRY(dq_runner_new(&x->runner, x->model, b, &x->kv, err));
    dq_kv_report_note_routes(&x->logger, b, x->model, x->math, &x->kv);
    const dq_pass pass = {.logit = x->logit, .math = x->math};
    if (x->evicts) DQ_TRY(dq_evictor_new(&x->evictor, x->runner, &x->kv, &pass, err));
    DQ_TRY(dq_kv_cached_floor(&x->floor, x->runner, 1, err));
    dq_kv *kv = dq_runner_kv(x->runner);
    int32_t seq = b->ops->kv_seq_new(b, kv);
    if (seq < 0) {
        DQ_TRY(dq_backend_sync(b, err));
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    begin_progress(x);
    run_passes(x, seq, err);
    dq_progress_end(&x->progress);
    if (x->evictor) dq_evictor_forget(x->evictor, seq);
    b->ops->kv_seq_free(b, kv, seq);
    return err->code;
}

/* ----- output ----- */

static const char *passes_of(const logits *x)
{
    if (x->prefix == 0) return "whole";
    return x->evictor && x->kv.evict.every == 1 ? "decode" : "context+rest";
}

static dq_status print_json(const logits *x, dq_err *err)
{
    json_t *doc = dq_document_new(&x->logger, "dq-logits/1"), *r = json_object();
    json_t *s = json_object_get(doc, "settings"), *inputs = json_object_get(doc, "inputs");
    json_t *kv = json_object();
    char widths[DQ_KV_TEXT];
    json_array_append_new(inputs, dq_input_model_json(x->model));
    if (x->text.text) json_array_append_new(inputs, dq_input_text_json(&x->text));
    json_object_set_new(s, "logit_bits", json_integer(x->logit.bits));
    json_object_set_new(s, "head_order", dq_input_head_order_json(&x->head_order));
    json_object_set_new(s, "logit_granularity",
                        json_string(dq_granularity_name[x->logit.granularity]));
    json_object_set_new(s, "kv_bits", json_string(dq_kv_spec_widths(widths, &x->kv)));
    json_object_set_new(kv, "effective", dq_kv_spec_json(&x->kv));
    json_object_set_new(kv, "stored",
                        x->model->is_container ? dq_kv_config_json(&x->model->kv) : json_null());
    json_object_set_new(s, "kv", kv);
    json_object_set_new(s, "prefix", x->prefix ? json_integer(x->prefix) : json_null());
    json_object_set_new(s, "math", json_string(x->math_name));
    json_object_set_new(s, "device", json_string(x->backend->device));
    json_object_set_new(s, "threads", json_integer(x->backend->threads));
    json_object_set_new(r, "model", dq_document_name(x->model->path));
    json_object_set_new(r, "output", dq_document_name(x->out_path));
    json_object_set_new(r, "n", json_integer(x->in.n));
    json_object_set_new(r, "vocab", json_integer(x->model->vocab));
    json_object_set_new(r, "logits_sha256", json_string(x->sha256));
    json_object_set_new(r, "kv", dq_kv_report_json(&x->kv, &x->cached));
    json_object_set_new(r, "passes", json_string(passes_of(x)));
    json_object_set_new(r, "math", dq_kv_report_math_json(x->math));
    json_array_append_new(json_object_get(doc, "results"), r);
    return dq_document_print(doc, err);
}

static dq_status run(logits *x, const char *path, dq_err *err)
{
    DQ_TRY(check_options(x, path, err));
    DQ_TRY(dq_input_head_order_read(&x->head_order, err));
    DQ_TRY(dq_backend_open(&x->backend, x->device, (int)x->threads, err));
    DQ_TRY(dq_input_model(&x->model, path, &x->head_order, &x->logger, err));
    DQ_TRY(dq_kv_options_gates(&x->kv_options, x->model, err));
    DQ_TRY(dq_input_head_order_check(&x->head_order, err));
    logit_settings(x);
    DQ_TRY(kv_settings(x, err));
    DQ_TRY(dq_backend_can(x->backend, x->model, x->math, &x->kv, err));
    dq_kv_report_note_math(&x->logger, x->backend->device, x->math);
    DQ_TRY(read_ids(x, err));
    DQ_TRY(check_space(x, err));
    DQ_TRY(run_model(x, err));
    dq_kv_report_warn(&x->logger, x->model->name, &x->kv, &x->cached);
    if (x->json) {
        DQ_TRY(print_json(x, err));
    } else {
        printf("%s: %" PRId64 " rows of %d logits, SHA-256 of the values %s\n", x->out_path,
               x->in.n, x->model->vocab, x->sha256);
        DQ_TRY(dq_document_flush(err));
    }
    return dq_h5_result_commit(&x->h, err);
}

dq_status dq_cmd_logits(int argc, char **argv, dq_err *err)
{
    logits *x = dq_block_new(1, sizeof *x, err); /* too large for a stack */
    if (!x) return err->code;
    x->math_name = "f32";
    x->device = "auto";
    dq_kv_options_begin(&x->kv_options, "of the policy random (default 1)");
    const dq_opt opts[] = {
        dq_opt_list("ids", "\"1 2 3\"", &x->ids, "the ids, taken as they are"),
        dq_opt_text("text", "FILE", &x->text_path,
                    "text to encode, without special tokens; - for standard input"),
        dq_opt_letter('o',
                      dq_opt_text("output", "OUT.h5", &x->out_path, "the file to write (needed)")),
        dq_opt_bits(
            "logit-bits", "N", &x->logit_bits,
            "round attention logits to 2..8 bits; 16: leave them (default: as the container "
            "says, else 16)"),
        dq_opt_text("logit-granularity", "GRANULARITY", &x->granularity,
                    "per-tensor, per-head, per-row or per-tile: what shares a scale (default: as "
                    "the container says, "
                    "else per-tensor)"),
        dq_opt_text(
            "math", "TYPE", &x->math_name,
            "f32, bf16 or int8 (default f32); int8 takes a packed container and --kv-bits 8 or "
            "fewer; what the device lacks is refused"),
        dq_opt_int("prefix", "N", &x->prefix, 1, 1e9,
                   "the first N tokens are the context: one pass, after which tokens are evicted"),
        DQ_KV_OPTION_ROWS(x->kv_options),
        dq_opt_heading("how it is computed"),
        DQ_INPUT_HEAD_ORDER_OPTION(x->head_order),
        DQ_OPT_RUN(&x->device, &x->threads),
        dq_opt_flag("json", &x->json, "one JSON document (dq-logits/1) instead of a line"),
        dq_opt_flag("force", &x->force, "replace an existing output file"),
        DQ_LOGGER_OPTIONS(x->logger),
        {0},
    };
    dq_args args;
    x->arena = dq_arena_new();
    if (!x->arena) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (err->code == DQ_OK && dq_options_parse(&args, argc, argv, opts, &usage, err) == DQ_OK &&
        !args.help && dq_logger_begin(&x->logger, "logits", err) == DQ_OK)
        run(x, args.item[0], err);
    dq_h5_result_drop(x->h);
    dq_sha256_drop(&x->sha);
    dq_evictor_free(x->evictor);
    dq_runner_free(x->runner);
    dq_tokenizer_free(x->tokenizer);
    dq_model_close(x->model);
    dq_backend_close(x->backend);
    dq_logger_end(&x->logger);
    dq_arena_free(x->arena);
    dq_block_free(x);
    return err->code;
}
