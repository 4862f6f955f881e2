/* cmd_stats: magnitudes of attention logits and hidden states of one or many models.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/ranks.h"
#include "cmds/cli/help.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/stdout.h"
#include "cmds/command.h"
#include "cmds/shard.h"
#include "cmds/stats/stats_forecast.h"
#include "cmds/stats/stats_out.h"
#include "cmds/stats/stats_part.h"
#include "cmds/stats/stats_sensitivity.h"
#include "cmds/stats/stats_units.h"
#include "model/model.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "tasks/items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_ROWS = 4096, DEFAULT_CTX = 2048, PLACES = 5 };

typedef struct stats {
    const char *text_path, *out_path, *csv_path, *device;
    dq_word bos;    /* a dq_bos */
    dq_word detail; /* a dq_outlier_detail */
    dq_list ids;
    int64_t ctx, limit, threads, places;
    bool json, force, one_pass, layers, resume;
    dq_shard part;
    cmd_stats_sensitivity sensitivity;
    cmd_stats_sensitivity_run rounding;
    const dq_shard_merge *merge; /* the parts that numbers come from; NULL: they are computed */
    cmd_stats_key key;
    dq_input_head_order head_order;
    dq_logger logger;
    dq_arena *arena;
    dq_backend *backend;
    dq_input_text text; /* text.text NULL: ids were given */
    cmd_stats_entry entry[CMD_STATS_MODELS];
    int n;
    dq_progress progress;
    double walk_rows; /* tokens of one walk of the model being run */
} stats;

static const dq_usage usage = {
    .name = "stats",
    .synopsis = "MODEL... [--text FILE | --ids \"1 2 3\" ...] [-o OUT.h5] [options]",
    .about = "Runs every model over the same text and reports the largest magnitudes and the "
             "median of its attention logits (scaled, before the softmax, causally visible "
             "entries, all heads and both maps) and of its hidden states (output of every layer). "
             "A profile names each outlier once: a channel with the layers where it stands, or a "
             "head. It covers queries, keys, values and the inputs of projections too, and gives "
             "every number without first tokens and attention sinks as well. A MODEL is a folder "
             "or a container. Only --forecast and --sensitivity round attention logits.\n"
             "The text is encoded as a whole, with what the tokenizer puts around a text, and then "
             "cut into windows of --ctx tokens; the last window may be shorter. Each --ids is one "
             "sequence, taken as it is. Without either, a built-in sample is used. Largest values, "
             "counts and medians are exact. Exact medians take up to three walks over the data: "
             "for the counts, for the pooled medians, for the medians of layers. --one-pass "
             "reports the middle of a histogram bin and how far off it can be, 0.4 % at most; "
             "--shard can then compute a part in a process of its own.\n",
    .examples = "  dq stats llama/ diffllama/ --text book.txt\n"
                "  dq stats diffllama/ --ids \"0 17 44 8\" --json\n"
                "  dq stats llama/ --text book.txt --one-pass -o outliers.h5\n"
                "  dq stats llama/ diffllama/ --text book.txt --detail table5\n"
                "  dq stats llama/ --text book.txt --one-pass --shard 1/4 -o part1.shard\n",
    .min_args = 1,
    .max_args = CMD_STATS_MODELS,
    .args = "one or more MODELs",
};

/* ----- input ----- */

static dq_status check_shard(stats *x, const dq_args *args, dq_err *err)
{
    DQ_TRY(dq_shard_read(&x->part, x->out_path, args->also, err));
    if (x->resume && !x->part.n && !(x->sensitivity.kinds.n && x->out_path))
        return dq_fail(err, DQ_USAGE,
                       "--resume goes on with a part, or with --sensitivity and -o. Add %s.",
                       x->sensitivity.kinds.n ? "-o" : "--shard I/N");
    if (!x->part.n) return DQ_OK;
    if (cmd_stats_sensitivity_wanted(&x->sensitivity))
        return dq_fail(err, DQ_USAGE,
                       "--shard cuts no work of --sensitivity and --forecast. Run them in one "
                       "process.");
    if (!x->one_pass)
        return dq_fail(err, DQ_USAGE,
                       "--shard: exact medians take walks that depend on the counts of all parts. "
                       "Add --one-pass, whose medians carry a bound, or share exact ones with "
                       "mpirun.");
    if (x->text_path && strcmp(x->text_path, "-") == 0)
        return dq_fail(err, DQ_USAGE,
                       "--shard: dq merge reads the text again, and so do the other parts. Give "
                       "--text a file.");
    return DQ_OK;
}

static dq_status check_options(stats *x, const dq_args *args, dq_err *err)
{
    if (x->text_path && x->ids.n)
        return dq_fail(err, DQ_USAGE, "--text and --ids exclude each other. Give one of them.");
    if (x->ids.n && (x->ctx || x->bos.at != DQ_BOS_AUTO))
        dq_logger_warn(&x->logger, "--ids are taken as they are; --ctx and --bos have no effect");
    return check_shard(x, args, err);
}

static dq_output_form form_of_output(const stats *x)
{
    if (!x->part.n) return DQ_OUTPUT_HDF5;
    return x->resume ? DQ_OUTPUT_JOURNAL : DQ_OUTPUT_LINES;
}

static dq_status check_outputs(const stats *x, const dq_args *args, dq_arena *a, dq_err *err)
{
    const char *label = x->part.n ? "-o with --shard" : "-o";
    const dq_output out[] = {{label, x->out_path, form_of_output(x), NULL},
                             {"--csv", x->csv_path, DQ_OUTPUT_CSV, NULL}};
    const int n_parts = x->merge ? x->merge->n : 0;
    int n = args->n_inputs;
    const char **input = dq_alloc(a, (size_t)(n + n_parts), sizeof *input, err);
    if (!input) return err->code;
    memcpy(input, args->input, (size_t)n * sizeof *input);
    for (int i = 0; i < n_parts; i++) input[n++] = x->merge->path[i];
    return dq_output_guard_check(out, 2, input, n, x->force, err);
}

static dq_status encode(stats *x, cmd_stats_entry *e, dq_err *err)
{
    DQ_TRY(dq_input_tokenizer(&e->tokenizer, e->model, true, err));
    if (dq_items_bos_check(e->tokenizer, (dq_bos)x->bos.at, err) != DQ_OK)
        return dq_in(err, "%s: ", e->model->path);
    return dq_input_encode(
        &e->in, e->tokenizer, &x->text,
        dq_items_bos_flags(e->tokenizer, (dq_bos)x->bos.at, x->text.text, x->text.bytes),
        &x->logger, x->arena, err);
}

/* Cuts the only sequence into windows of e->ctx ids. */
static dq_status cut(stats *x, cmd_stats_entry *e, dq_err *err)
{
    int64_t n = (e->in.n + e->ctx - 1) / e->ctx;
    int64_t *cu = dq_alloc(x->arena, (size_t)n + 1, sizeof *cu, err);
    if (!cu) return err->code;
    for (int64_t i = 0; i <= n; i++) cu[i] = i * e->ctx < e->in.n ? i * e->ctx : e->in.n;
    e->in.cu = cu;
    e->in.n_seq = n;
    return DQ_OK;
}

static dq_status sequences(stats *x, cmd_stats_entry *e, dq_err *err)
{
    const dq_model *m = e->model;
    if (x->ids.n) {
        DQ_TRY(dq_input_parse_ids(&e->in, x->ids.item, x->ids.n, x->arena, err));
        /* only for showing tokens: a tokenizer that dq cannot read is no obstacle here */
        dq_err ignored = {0};
        if (dq_input_tokenizer(&e->tokenizer, m, false, &ignored) != DQ_OK) {
            dq_advice_apply(&ignored);
            dq_logger_warn(&x->logger, "tokens are shown as numbers: %s", ignored.text);
        }
    } else {
        e->ctx = x->ctx ? x->ctx : m->max_positions < DEFAULT_CTX ? m->max_positions : DEFAULT_CTX;
        if (e->ctx > m->max_positions)
            return dq_fail(err, DQ_MISMATCH, "%s: --ctx %lld, but the model has %d positions",
                           m->path, (long long)e->ctx, m->max_positions);
        DQ_TRY(encode(x, e, err));
        DQ_TRY(cut(x, e, err));
    }
    if (x->limit && e->in.n_seq > x->limit) e->in.n_seq = x->limit;
    return DQ_OK;
}

/* ----- running ----- */

static void tick(void *arg, int walk, int64_t rows)
{
    stats *x = arg;
    dq_progress_set(&x->progress, walk * x->walk_rows + (double)rows, NULL);
}

/* The model's runner, and progress over so many rows of a walk. */
static dq_status begin_model(void *arg, int model, int64_t rows, dq_runner **r, dq_err *err)
{
    stats *x = arg;
    cmd_stats_entry *e = &x->entry[model];
    const dq_math f32 = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32};
    DQ_TRY(dq_backend_can(x->backend, e->model, f32, &dq_kv_plain, err));
    DQ_TRY(dq_runner_new(r, e->model, x->backend, &dq_kv_plain, err));
    x->walk_rows = (double)rows;
    dq_logger_note(&x->logger, "%s: %lld tokens in %lld sequences on %s", e->model->path,
                   (long long)e->in.cu[e->in.n_seq], (long long)e->in.n_seq, x->backend->device);
    dq_progress_begin(&x->progress, &x->logger, e->label, (x->one_pass ? 1 : 3) * x->walk_rows);
    dq_progress_set(&x->progress, 0, NULL);
    return DQ_OK;
}

static void end_model(void *arg, dq_runner *r)
{
    stats *x = arg;
    dq_progress_end(&x->progress);
    dq_runner_free(r);
}

static dq_outlier_plan plan_of(stats *x)
{
    return (dq_outlier_plan){
        .max_rows = PASS_ROWS, .walks = x->one_pass ? 1 : 3, .tick = tick, .arg = x};
}

static dq_status run_model(stats *x, int model, dq_err *err)
{
    cmd_stats_entry *e = &x->entry[model];
    const dq_outlier_plan plan = plan_of(x);
    dq_runner *r = NULL;
    e->fed = (dq_sequences){.n = e->in.n_seq, .cu = e->in.cu, .ids = e->in.ids};
    DQ_TRY(dq_outliers_init(&e->out, e->model, (dq_outlier_detail)x->detail.at, err));
    DQ_TRY(begin_model(x, model, e->in.cu[e->in.n_seq], &r, err));
    dq_outlier_walk_collect(&e->out, r, &e->fed, &plan, err);
    end_model(x, r);
    return err->code;
}

static void warn_bad(stats *x, const cmd_stats_entry *e)
{
    for (int k = 0; k < e->out.n_kinds; k++) {
        int64_t bad = e->out.kind[k].pooled.n_bad;
        if (bad)
            dq_logger_warn(&x->logger,
                           "%s: %lld %s are NaN or infinite; they are counted in no number",
                           e->model->path, (long long)bad, dq_outlier_name[k]);
    }
}

static dq_status open_models(stats *x, const dq_args *args, dq_err *err)
{
    for (int i = 0; i < args->n; i++) {
        cmd_stats_entry *e = &x->entry[x->n++];
        DQ_TRY(dq_input_model(&e->model, args->item[i], &x->head_order, &x->logger, err));
        DQ_TRY(sequences(x, e, err));
    }
    DQ_TRY(dq_input_head_order_check(&x->head_order, err));
    for (int i = 0; i < x->n; i++) {
        x->entry[i].label = x->entry[i].model->name;
        for (int j = 0; j < x->n; j++) {
            if (j != i && strcmp(x->entry[j].model->name, x->entry[i].model->name) == 0)
                x->entry[i].label = x->entry[i].model->path;
        }
    }
    return DQ_OK;
}

/* ----- output ----- */

static void settings_json(const stats *x, json_t *s)
{
    const bool all = x->detail.at == DQ_DETAIL_ALL;
    json_object_set_new(s, "ctx", x->ctx ? json_integer(x->ctx) : json_string("auto"));
    json_object_set_new(s, "bos", json_string(x->ids.n ? "off" : x->bos.text));
    json_object_set_new(s, "limit", x->limit ? json_integer(x->limit) : json_null());
    json_object_set_new(s, "medians", json_string(x->one_pass ? "bounded" : "exact"));
    json_object_set_new(s, "places", json_integer(x->places));
    json_object_set_new(s, "detail", json_string(dq_outlier_detail_name[x->detail.at]));
    json_object_set_new(s, "sink_share", !all ? json_null() : json_real(DQ_OUTLIER_SINK_SHARE));
    json_object_set_new(s, "sink_queries",
                        !all ? json_null() : json_integer(DQ_OUTLIER_SINK_QUERIES));
    cmd_stats_sensitivity_settings(&x->sensitivity, s);
    json_object_set_new(s, "head_order", dq_input_head_order_json(&x->head_order));
    json_object_set_new(s, "logit_bits", json_integer(16));
    json_object_set_new(s, "kv_bits", json_string("32:32"));
    json_object_set_new(s, "math", json_string(dq_num_name[DQ_NUM_F32]));
}

static void inputs_json(const stats *x, json_t *inputs)
{
    for (int i = 0; i < x->n; i++)
        json_array_append_new(inputs, dq_input_model_json(x->entry[i].model));
    if (x->text.text) {
        json_array_append_new(inputs, dq_input_text_json(&x->text));
    } else {
        json_t *ids = json_object(), *list = json_array();
        for (int i = 0; i < x->ids.n; i++) json_array_append_new(list, json_string(x->ids.item[i]));
        json_object_set_new(ids, "kind", json_string("ids"));
        json_object_set_new(ids, "sequences", list);
        json_array_append_new(inputs, ids);
    }
}

static dq_status print_json(const stats *x, dq_err *err)
{
    json_t *doc = dq_document_new(&x->logger, "dq-stats/1");
    json_t *settings = json_object_get(doc, "settings");
    settings_json(x, settings);
    json_object_set_new(settings, "device", json_string(x->backend->device));
    json_object_set_new(settings, "threads", json_integer(x->backend->threads));
    if (x->merge) {
        json_object_set(settings, "device", (json_t *)(uintptr_t)x->merge->device);
        json_object_set(settings, "threads", (json_t *)(uintptr_t)x->merge->threads);
    }
    inputs_json(x, json_object_get(doc, "inputs"));
    for (int i = 0; i < x->n && err->code == DQ_OK; i++) {
        json_t *result = cmd_stats_json(&x->entry[i], (int)x->places);
        json_array_append_new(json_object_get(doc, "results"), result);
        if (cmd_stats_forecast_json(result, &x->entry[i], x->entry, err) == DQ_OK)
            cmd_stats_units_json(result, &x->entry[i], err);
    }
    if (err->code == DQ_OK) return dq_stdout_print(doc, err);
    json_decref(doc);
    return err->code;
}

static dq_status print_text(const stats *x, dq_err *err)
{
    char size[DQ_SIZE_REPORT_TEXT];
    for (int i = 0; i < x->n; i++) {
        const cmd_stats_entry *e = &x->entry[i];
        printf("%s: %s; %lld tokens in %lld sequence%s%s%s", e->model->path,
               dq_size_report_text(size, e->model), (long long)e->out.n_rows,
               (long long)e->in.n_seq, e->in.n_seq == 1 ? "" : "s", x->text.text ? " of " : "",
               x->text.text ? x->text.path : "");
        if (e->ctx) printf(", windows of %lld tokens", (long long)e->ctx);
        printf("\n");
    }
    printf("\n");
    DQ_TRY(cmd_stats_print(x->entry, x->n, (int)x->places, x->layers, err));
    const int units = x->places ? (int)x->places : PLACES; /* 0 is about outliers */
    DQ_TRY(cmd_stats_forecast_print(x->entry, x->n, (int)x->places, x->layers, err));
    for (int i = 0; i < x->n; i++) DQ_TRY(cmd_stats_units_print(&x->entry[i], units, err));
    return DQ_OK;
}

/* The file without its final name: everything that can fail for want of space is after us then. */
static dq_status write_h5(const stats *x, dq_h5_result **h, dq_err *err)
{
    json_t *settings = json_object();
    settings_json(x, settings);
    char *text;
    dq_json_dump(&text, settings, JSON_COMPACT | JSON_SORT_KEYS, err);
    json_decref(settings);
    if (!text) return err->code;
    DQ_TRY(dq_h5_result_new(h, x->out_path, x->force, err));
    if (dq_h5_result_text(*h, "/", "format", "dq-stats", err) == DQ_OK &&
        dq_h5_result_text(*h, "/", "format_version", "1.0", err) == DQ_OK &&
        dq_h5_result_text(*h, "/", "dq_version", DQ_VERSION, err) == DQ_OK &&
        dq_h5_result_text(*h, "/", "settings", text, err) == DQ_OK &&
        (!x->text.text || dq_h5_result_text(*h, "/", "text_sha256", x->text.sha256, err) == DQ_OK))
        dq_h5_result_group(*h, "/models", err);
    free(text);
    for (int i = 0; i < x->n && err->code == DQ_OK; i++) cmd_stats_h5(*h, &x->entry[i], i, err);
    return err->code == DQ_OK ? dq_h5_result_close(*h, err) : err->code;
}

static dq_status hand_over(stats *x, dq_err *err)
{
    dq_h5_result *h = NULL;
    bool csv = false;
    DQ_TRY(dq_os_maps_check(err));
    if (x->out_path) write_h5(x, &h, err);
    if (err->code == DQ_OK && x->csv_path)
        csv = cmd_stats_csv(x->entry, x->n, x->csv_path, err) == DQ_OK;
    if (err->code == DQ_OK) {
        if (x->json)
            print_json(x, err);
        else if (print_text(x, err) == DQ_OK)
            dq_stdout_flush(err);
    }
    if (err->code == DQ_OK && h) dq_h5_result_commit(&h, err);
    if (err->code != DQ_OK && csv) remove(x->csv_path);
    dq_h5_result_drop(h);
    return err->code;
}

/* ----- parts ----- */

static cmd_stats_part part_of(stats *x)
{
    return (cmd_stats_part){.entry = x->entry,
                            .n = x->n,
                            .key = &x->key,
                            .part = &x->part,
                            .path = x->out_path,
                            .resume = x->resume,
                            .detail = (dq_outlier_detail)x->detail.at,
                            .plan = plan_of(x),
                            .begin = begin_model,
                            .end = end_model,
                            .arg = x};
}

static dq_status run_part(stats *x, int argc, char **argv, dq_err *err)
{
    cmd_stats_part p = part_of(x);
    const dq_shard_about about = {"stats", &x->part, x->key.program, x->backend,
                                  json_integer(x->places)};
    if (dq_shard_head(&p.about, &about, argc, argv, err) == DQ_OK) cmd_stats_part_run(&p, err);
    json_decref(p.about);
    if (err->code == DQ_STOPPED)
        return dq_shard_stopped("stats", x->out_path, true, argc, argv, err);
    if (err->code == DQ_OK) dq_shard_say(&x->part, x->out_path, p.share, "OUT.h5", &x->logger);
    return err->code;
}

/* By all ranks, which have the same models and ids then, and compute the same bits. */
static dq_status compute(stats *x, dq_err *err)
{
    DQ_TRY(dq_ranks_agree("set of inputs, program or processor", x->key.text, err));
    x->rounding = (cmd_stats_sensitivity_run){.set = &x->sensitivity,
                                              .entry = x->entry,
                                              .n = x->n,
                                              .out = x->out_path,
                                              .key = x->key.text,
                                              .resume = x->resume,
                                              .force = x->force,
                                              .backend = x->backend,
                                              .logger = &x->logger,
                                              .arena = x->arena};
    const bool rounds = cmd_stats_sensitivity_wanted(&x->sensitivity);
    if (rounds) DQ_TRY(cmd_stats_sensitivity_begin(&x->rounding, err));
    for (int i = 0; i < x->n; i++) DQ_TRY(run_model(x, i, err));
    return rounds ? cmd_stats_sensitivity_compute(&x->rounding, err) : DQ_OK;
}

/* ----- the command ----- */

static dq_status name_key(stats *x, dq_err *err)
{
    dq_identity_text(x->key.program, x->backend);
    if (x->merge) snprintf(x->key.program, sizeof x->key.program, "%s", x->merge->program);
    return cmd_stats_key_make(&x->key, x->entry, x->n, x->head_order.word.text,
                              (dq_outlier_detail)x->detail.at, err);
}

static dq_status run(stats *x, const dq_args *args, int argc, char **argv, dq_err *err)
{
    DQ_TRY(check_options(x, args, err));
    DQ_TRY(check_outputs(x, args, x->arena, err));
    dq_input_head_order_read(&x->head_order);
    DQ_TRY(dq_backend_open(&x->backend, x->device, (int)x->threads, err));
    if (x->detail.at == DQ_DETAIL_ALL && !x->backend->ops->profile_rows)
        return dq_fail(err, DQ_MISMATCH,
                       "on %s there is no profile by classes of tokens, heads and channels. Add "
                       "--detail maps, or leave out --device.",
                       x->backend->device);
    DQ_TRY(cmd_stats_sensitivity_check(&x->sensitivity, x->backend, err));
    if (!x->ids.n) DQ_TRY(dq_input_read(&x->text, x->text_path, x->arena, err));
    DQ_TRY(open_models(x, args, err)); /* all inputs are looked at before anything runs */
    DQ_TRY(name_key(x, err));
    if (x->part.n) return run_part(x, argc, argv, err);
    if (x->merge) {
        const cmd_stats_part p = part_of(x);
        DQ_TRY(cmd_stats_part_merge(&p, x->merge, err));
    } else {
        DQ_TRY(compute(x, err));
    }
    if (dq_ranks_number() > 0) return DQ_OK;
    for (int i = 0; i < x->n; i++) {
        cmd_stats_entry *e = &x->entry[i];
        warn_bad(x, e);
        if (x->detail.at == DQ_DETAIL_ALL)
            DQ_TRY(dq_weight_outliers_collect(&e->weights, e->model, err));
    }
    return hand_over(x, err);
}

dq_status dq_cmd_stats(int argc, char **argv, dq_err *err)
{
    return cmd_stats_merged(NULL, argc, argv, err);
}

static dq_status end(stats *x, dq_err *err)
{
    cmd_stats_sensitivity_end(&x->rounding, err);
    for (int i = 0; i < x->n; i++) {
        dq_outliers_free(&x->entry[i].out);
        dq_weight_outliers_free(&x->entry[i].weights);
        dq_tokenizer_free(x->entry[i].tokenizer);
        dq_model_close(x->entry[i].model);
    }
    dq_backend_close(x->backend);
    dq_logger_end(&x->logger);
    dq_arena_free(x->arena);
    dq_block_free(x);
    return err->code;
}

dq_status cmd_stats_merged(const dq_shard_merge *merge, int argc, char **argv, dq_err *err)
{
    stats *x = dq_block_new(1, sizeof *x, err); /* too large for a stack */
    if (!x) return err->code;
    x->bos.text = dq_bos_name[DQ_BOS_AUTO];
    x->device = "auto";
    x->detail = (dq_word){dq_outlier_detail_name[DQ_DETAIL_ALL], DQ_DETAIL_ALL};
    x->places = PLACES;
    const dq_opt opts[] = {
        dq_opt_heading("input:"),
        dq_opt_text("text", "FILE", &x->text_path,
                    "text to run over, - for standard input (default: the built-in sample)"),
        dq_opt_list("ids", "\"1 2 3\"", &x->ids,
                    "one sequence of ids, taken as it is; may be repeated"),
        dq_opt_int("ctx", "N", &x->ctx, 1, INT32_MAX,
                   "tokens per window of text (default min(2048, the model's positions))"),
        dq_opt_int("limit", "N", &x->limit, 1, INT32_MAX,
                   "only the first N sequences (default all)"),
        dq_opt_word("bos", "WHEN", &x->bos, dq_bos_name, DQ_BOS_WHENS,
                    "begin-of-text token before the text: auto (as the tokenizer does), on or off "
                    "(default auto)"),
        DQ_INPUT_HEAD_ORDER_OPTION(x->head_order),
        dq_opt_heading("output:"),
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "OUT.h5", &x->out_path,
                                                     "all numbers and histograms as HDF5"))),
        dq_opt_output(
            dq_opt_text("csv", "FILE", &x->csv_path, "the pooled and the layers' numbers as CSV")),
        dq_opt_output(
            dq_opt_flag("json", &x->json, "one JSON document (dq-stats/1) instead of tables")),
        dq_opt_int("places", "N", &x->places, 0, DQ_TOP,
                   "how many outliers of each kind of token to name (default 5); as many units of "
                   "--sensitivity, but where N is 0"),
        dq_opt_flag("layers", &x->layers, "tables by layer too"),
        dq_opt_manner(dq_opt_flag("force", &x->force, "replace existing output files")),
        CMD_STATS_SENSITIVITY_OPTIONS(x->sensitivity),
        dq_opt_heading("running:"),
        dq_opt_flag("one-pass", &x->one_pass, "walk over the data once; medians carry a bound"),
        dq_opt_word("detail", "LEVEL", &x->detail, dq_outlier_detail_name, DQ_DETAILS,
                    "{words} (default all): only the numbers of Table 5, which takes least time; "
                    "attention maps too; classes of tokens, heads and channels too"),
        DQ_SHARD_OPTION(x->part),
        dq_opt_manner(dq_opt_flag("resume", &x->resume,
                                  "go on with the part of --shard, or with --sensitivity -o")),
        DQ_OPT_RUN(&x->device, &x->threads),
        DQ_LOGGER_OPTIONS(x->logger),
        {0},
    };
    dq_args args;
    x->merge = merge;
    x->arena = dq_arena_new();
    if (!x->arena) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (err->code == DQ_OK &&
        dq_help_parse_part(&args, argc, argv, opts, merge ? merge->own : NULL, &usage, err) ==
            DQ_OK &&
        !args.help) {
        if (dq_progress_listen(&x->logger, "stats", err) == DQ_OK) run(x, &args, argc, argv, err);
    }
    return end(x, err);
}
