/* cmd_quantize: dq quantize MODEL -o OUT.h5
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "cmds/calib_run.h"
#include "cmds/cli/document.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/logger.h"
#include "cmds/cli/options.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/table.h"
#include "cmds/cli/version.h"
#include "cmds/command.h"
#include "cmds/quantize_rows.h"
#include "cmds/recipe_options.h"
#include "cmds/size_options.h"
#include "model/output_guard.h"
#include "quantize/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct request {
    dq_logger logger;
    const char *out, *granularity;
    int64_t logit_bits, threads;
    dq_recipe_options recipe;
    dq_size_options size;
    dq_kv_options kv;
    dq_calib_run calib;
    bool dry_run, print_recipe, resume, force, json, tensors;
    dq_quantize_settings set;
    const char
        *planned; /* SHA-256 of the weights that the recipe's plan measured; NULL: it has no plan */
    bool as_planned; /* these are the weights */
} request;

static const dq_usage usage = {
    .name = "quantize",
    .synopsis = "MODEL -o OUT.h5 [options]",
    .about =
        "Writes the projections of a checkpoint (q, k, v, o, gate, up, down), its embedding and "
        "its head as codes of 2 to 8 bits with one scale per group of columns into an HDF5 "
        "container; every other tensor keeps its values and type, unless --dense-type says "
        "otherwise. --size says how many bits a weight may take, and --dry-run shows where they "
        "go. With --calib FILE the codes are chosen by what a text does inside the model, which "
        "takes some forward passes over it and keeps the model much closer at the same size. The "
        "codes that --size chooses are dq's own; dq export and int8 products on a GPU need "
        "integers: --bits 4. The same settings give the same bytes, whatever the number of "
        "threads. An interrupted run is finished with --resume.",
    .examples = "  dq quantize model -o model.h5 --calib train.jsonl\n"
                "  dq quantize model -o small.h5 --preset small --calib train.jsonl\n"
                "  dq quantize model --dry-run --size 5\n"
                "  dq quantize model -o model-4bit.h5 --bits 4\n"
                "  dq quantize model -o model-8bit.h5 --bits 8 --group row\n"
                "  dq quantize model -o model-dense-ends.h5 --embed-bits 16 --dense-type bf16\n"
                "  dq quantize model -o model-mixed.h5 --bits-map 'down_proj=6/64' "
                "--bits-map 'layers\\.0\\.=8'\n"
                "  dq quantize model --bits 3 --embed-bits 5 --print-recipe > recipe.json\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

/* What is wrong for any model is wrong here; what is wrong for this one is found when it is open. */
static dq_status kv_settings(request *r, dq_err *err)
{
    dq_kv_config *list;
    dq_kv_spec any;
    int n;
    const dq_kv_config asked = r->set.kv; /* of the recipe */
    DQ_TRY(dq_kv_options_read(&r->kv, false, err));
    if (dq_kv_options_list(&list, &n, &r->kv, &asked, NULL, err) == DQ_OK &&
        dq_kv_options_check(&r->kv, err) == DQ_OK) {
        dq_kv_config_spec(&any, &list[0], DQ_NUM_F32, DQ_KV_ANY_DIM, DQ_KV_ANY_LAYERS,
                          DQ_KV_ANY_MAPS, err);
        if (err->code == DQ_USAGE) dq_in(err, "--kv-bits: ");
        /* on any maps */
        any.evict.budget = dq_kv_budget_for(any.evict.budget, any.evict.policy, DQ_KV_ANY_MAPS);
        if (err->code == DQ_OK) dq_evict_check(&any, err);
    }
    if (err->code == DQ_OK) r->set.kv = list[0];
    r->set.gates = r->kv.gates;
    dq_block_free(list);
    return err->code;
}

static dq_status make_settings(request *r, dq_err *err)
{
    DQ_TRY(dq_recipe_options_read(&r->set, &r->recipe, err));
    DQ_TRY(dq_size_options_read(&r->size, &r->set, &r->recipe, err));
    DQ_TRY(dq_calib_run_check(&r->calib, &r->set, err));
    dq_recipe_options_scale(&r->set, &r->recipe, dq_calib_run_wanted(&r->calib));
    if (r->recipe.scale && r->set.bits != 16 &&
        dq_quantize_mode(r->set.mode, r->set.bits, true) != r->set.mode)
        return dq_fail(err, DQ_USAGE, "--scale %s: has no codes of %d bits. Use search.",
                       dq_quant_modes[r->set.mode].name, r->set.bits);
    int granularity = dq_options_word(r->granularity, "logit-granularity", dq_granularity_name,
                                      DQ_GRANULARITIES, err);
    if (granularity < 0) return err->code;
    DQ_TRY(kv_settings(r, err));
    r->set.logit =
        (dq_logit_spec){.bits = (int)r->logit_bits, .granularity = (dq_granularity)granularity};
    r->set.dq_version = DQ_VERSION;
    if (!r->out && !r->dry_run && !r->print_recipe)
        return dq_fail(err, DQ_USAGE, "-o OUT.h5 is missing (or --dry-run to see the plan).");
    return DQ_OK;
}

/* The packed tensor with the lowest SQNR; false when none is packed. */
static bool worst_of(const dq_quantizer *q, dq_quantize_row *worst)
{
    bool any = false;
    for (int64_t i = 0; i < dq_quantize_result(q)->n_tensors; i++) {
        dq_quantize_row r = dq_quantize_row_at(q, i);
        if (!r.packed || (any && !(r.sqnr_db < worst->sqnr_db))) continue;
        *worst = r;
        any = true;
    }
    return any;
}

/* "packed             4 bits in 210 tensors, 4.250 bits per weight; 6 bits in 1, 6.250" */
static void print_widths(const dq_quantizer *q)
{
    int64_t n[9] = {0}, params[9] = {0}, bytes[9] = {0};
    bool first = true;
    for (int64_t i = 0; i < dq_quantize_result(q)->n_tensors; i++) {
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        if (!r.packed) continue;
        n[r.bits]++;
        params[r.bits] += r.rows * r.cols;
        bytes[r.bits] += r.bytes;
    }
    for (int b = 2; b <= 8; b++) {
        if (!n[b]) continue;
        printf("%s%d bits in %lld%s, %.3f%s", first ? "packed             " : "; ", b,
               (long long)n[b],
               !first      ? ""
               : n[b] == 1 ? " tensor"
                           : " tensors",
               8.0 * (double)bytes[b] / (double)params[b], first ? " bits per weight" : "");
        first = false;
    }
    if (!first) putchar('\n');
}

static void print_no_text(const request *r, const dq_quantizer *q)
{
    bool any = false; /* whose codes a text could choose: all but an embedding that is no head */
    const bool tied = dq_quantize_effective(q)->head_bits == 0;
    for (int64_t i = 0; i < dq_quantize_result(q)->n_tensors; i++) {
        const dq_quantize_row row = dq_quantize_row_at(q, i);
        any = any || (row.packed && (row.role != DQ_ROLE_EMBED || tied));
    }
    if (dq_calib_run_wanted(&r->calib) || !any) return;
    printf("no text            codes are the nearest ones. --calib TEXT chooses them by what the "
           "model reads\n");
}

static void print_summary(const request *r, const dq_quantizer *q)
{
    const dq_quantize_info *i = dq_quantize_result(q);
    char a[32], b[32];
    dq_quantize_row worst;
    printf("bits per weight    %.3f over all %lld parameters", i->bits_per_weight,
           (long long)i->params);
    if (i->packed_params)
        printf("; %.3f in packed tensors",
               8.0 * (double)i->packed_bytes / (double)i->packed_params);
    printf("\ncontainer          %s%s in %s, %.1f %% of the source's %s\n",
           r->dry_run ? "about " : "", dq_table_size_text(a, sizeof a, i->file_bytes),
           r->out ? r->out : "(no output named)",
           100.0 * (double)i->file_bytes / (double)i->source_bytes,
           dq_table_size_text(b, sizeof b, i->source_bytes));
    print_widths(q);
    printf("tensors            %lld packed, %lld dense", (long long)i->n_packed,
           (long long)(i->n_tensors - i->n_packed));
    if (i->n_skipped) printf(" (%lld of them skipped)", (long long)i->n_skipped);
    printf("\nparameters         %lld packed, %lld dense\n", (long long)i->packed_params,
           (long long)(i->params - i->packed_params));
    if (i->short_groups.n)
        printf("short groups       the last one of %lld tensors, as %s: dq export --format "
               "compressed-tensors writes these as values\n",
               (long long)i->short_groups.n, i->short_groups.name);
    printf("payload            %s\n", dq_table_size_text(b, sizeof b, i->weight_bytes));
    dq_calib_run_print(&r->calib, q);
    print_no_text(r, q);
    if (r->dry_run) return;
    if (r->planned)
        printf("as planned         %s\n", r->as_planned
                                              ? "yes, the weights that the plan measured"
                                              : "no, other weights than the plan measured");
    if (i->n_resumed) printf("taken over         %lld payloads\n", (long long)i->n_resumed);
    if (worst_of(q, &worst) && isfinite(worst.sqnr_db))
        printf("worst SQNR         %.2f dB (%s)\n", worst.sqnr_db, worst.name);
    printf("content SHA-256    %s\n", i->content_sha256);
}

static json_t *row_json(const dq_quantize_row *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "name", dq_document_name(r->name));
    json_object_set_new(o, "encoding", json_string(r->format));
    json_object_set_new(o, "skipped", json_boolean(r->skipped));
    json_object_set_new(o, "source_dtype", json_string(dq_dtypes[r->dtype].name));
    if (!r->packed && r->dense_dtype != r->dtype)
        json_object_set_new(o, "dense_dtype", json_string(dq_dtypes[r->dense_dtype].name));
    json_object_set_new(o, "bits", json_integer(r->bits));
    json_object_set_new(o, "rows", json_integer(r->rows));
    json_object_set_new(o, "cols", json_integer(r->cols));
    json_object_set_new(o, "group_size", r->packed ? json_integer(r->group_size) : json_null());
    json_object_set_new(o, "scale_dtype",
                        r->packed ? json_string(dq_dtypes[r->scale_dtype].name) : json_null());
    json_object_set_new(o, "source_bytes", json_integer(r->source_bytes));
    json_object_set_new(o, "bytes", json_integer(r->bytes));
    json_object_set_new(o, "bits_per_weight", dq_document_real(r->bits_per_weight));
    json_object_set_new(o, "sqnr_db", r->packed ? dq_document_real(r->sqnr_db) : json_null());
    if (isfinite(r->loss)) json_object_set_new(o, "loss", dq_document_real(r->loss));
    return o;
}

static dq_status print_json(const request *r, const char *model, const dq_quantizer *q, dq_err *err)
{
    const dq_quantize_info *i = dq_quantize_result(q);
    const char *recipe = dq_quantize_recipe(q);
    json_t *doc = dq_document_new(&r->logger, "dq-quantize/1"), *in = json_object(),
           *out = json_object();
    json_t *set = NULL, *rows = json_array();
    dq_json_parse(&set, recipe, strlen(recipe), "recipe", err);
    json_object_set_new(in, "path", dq_document_name(model));
    json_object_set_new(in, "architecture", json_string(i->architecture));
    json_object_set_new(in, "bytes", json_integer(i->source_bytes));
    json_object_set_new(in, "types", i->source_types ? json_string(i->source_types) : json_null());
    json_array_append_new(json_object_get(doc, "inputs"), in);
    if (!json_object_get(set, "kv")) json_object_set_new(set, "kv", dq_kv_config_json(&r->set.kv));
    json_object_set_new(set, "dry_run", json_boolean(r->dry_run));
    json_object_set_new(doc, "settings", set);
    json_object_set_new(out, "path", r->out ? dq_document_name(r->out) : json_null());
    json_object_set_new(out, "tensors", json_integer(i->n_tensors));
    json_object_set_new(out, "packed", json_integer(i->n_packed));
    json_object_set_new(out, "skipped", json_integer(i->n_skipped));
    json_object_set_new(out, "params", json_integer(i->params));
    json_object_set_new(out, "packed_params", json_integer(i->packed_params));
    json_object_set_new(out, "packed_bytes", json_integer(i->packed_bytes));
    json_object_set_new(out, "weight_bytes", json_integer(i->weight_bytes));
    json_object_set_new(out, "file_bytes", json_integer(i->file_bytes));
    json_object_set_new(out, "bits_per_weight", dq_document_real(i->bits_per_weight));
    json_object_set_new(out, "payloads_taken_over", json_integer(i->n_resumed));
    json_object_set_new(out, "content_sha256",
                        r->dry_run ? json_null() : json_string(i->content_sha256));
    for (int64_t k = 0; k < i->n_tensors; k++) {
        dq_quantize_row row = dq_quantize_row_at(q, k);
        if (r->dry_run) row.sqnr_db = (double)NAN;
        json_array_append_new(rows, row_json(&row));
    }
    json_object_set_new(out, "rows", rows);
    if (r->planned && !r->dry_run)
        json_object_set_new(out, "as_planned", json_boolean(r->as_planned));
    dq_calib_run_json(&r->calib, q, out);
    json_array_append_new(json_object_get(doc, "results"), out);
    if (err->code == DQ_OK) return dq_document_print(doc, err);
    json_decref(doc);
    return err->code;
}

/* Bits of the forward pass, and with them codes, are the same for the same of each of these. */
static void warn_other_weights(request *r)
{
    const char *planned = json_string_value(json_object_get(r->set.plan, "arithmetic"));
    char here[DQ_OS_ARITHMETIC];
    dq_os_arithmetic(here);
    const bool other = planned && strcmp(planned, here) != 0;
    dq_logger_warn(&r->logger,
                   "%s: other weights than those that the recipe's plan measured, so what it "
                   "promises was not measured. They are the same with the plan's options, text, "
                   "program and arithmetic%s%.160s%s%s",
                   r->out, other ? " (planned with " : "", other ? planned : "",
                   other ? "; here: " : "", other ? here : "");
}

/* Whether the container has the weights that its plan measured. */
static dq_status check_plan(request *r, dq_err *err)
{
    char sha[65];
    dq_container *c;
    r->planned = json_string_value(json_object_get(r->set.plan, "weights_sha256"));
    if (!r->planned) return DQ_OK;
    DQ_TRY(dq_container_open(&c, r->out, err));
    if (dq_container_weights_sha256(sha, c, err) == DQ_OK) {
        r->as_planned = strcmp(sha, r->planned) == 0;
        if (!r->as_planned) warn_other_weights(r);
    }
    dq_container_close(c);
    return err->code;
}

static void warn_nothing_left(request *r)
{
    char partial[4096];
    int n = snprintf(partial, sizeof partial, "%s.partial", r->out);
    if (r->resume && n < (int)sizeof partial && !dq_file_exists(partial) && !dq_file_exists(r->out))
        dq_logger_warn(&r->logger,
                       "%s: is not here, so there is nothing to resume; everything is written",
                       partial);
}

static void warn_of_rules(request *r, const dq_quantize_info *i)
{
    dq_recipe_options_unused(&r->recipe, &i->used, &r->logger);
    if (r->set.bits != 16 && i->n_packed == 0)
        dq_logger_warn(&r->logger, "no tensor is packed: %s all of them dense",
                       r->set.skip ? "--skip leaves" : "rules leave");
}

/* Where another group would leave none short; else the summary says it. */
static void warn_of_groups(request *r, const dq_quantize_info *i)
{
    const dq_quantize_short *s = &i->short_groups;
    if (s->n == 0 || !s->whole) return;
    dq_logger_warn(&r->logger,
                   "the last group of %lld of %lld packed tensors is short, that of %s first (%lld "
                   "columns in groups of %lld): dq reads them, but dq export --format "
                   "compressed-tensors writes them as values. With --group %lld none is short%s",
                   (long long)s->n, (long long)i->n_packed, s->name, (long long)s->cols,
                   (long long)s->group, (long long)s->whole,
                   s->divides ? "" : ": each row of fewer columns is one group");
}

static dq_status run(request *r, const char *model, dq_err *err)
{
    /* what exists is looked at with what an interrupted run left: dq_quantize_check_output */
    const dq_output out = {"-o", r->out, DQ_OUTPUT_HDF5, dq_quantize_beside};
    dq_quantizer *q;
    const char *const inputs[] = {model, r->recipe.file, r->calib.file};
    DQ_TRY(dq_output_guard_check(&out, 1, inputs, 3, true, err));
    DQ_TRY(dq_calib_run_begin(&r->calib, &r->set, r->out, r->threads, err));
    DQ_TRY(dq_size_options_choose(&r->size, &r->set, model, err));
    DQ_TRY(dq_quantize_open(&q, model, &r->set, err));
    const dq_quantize_info *i = dq_quantize_result(q);
    if (dq_calib_run_announce(&r->calib, i, &r->logger, err) != DQ_OK) {
        dq_quantize_close(q);
        return err->code;
    }
    warn_of_rules(r, i);
    warn_of_groups(r, i);
    if (r->print_recipe) dq_recipe_options_print(dq_quantize_recipe(q), err);
    if (r->out && !r->print_recipe) dq_quantize_check_output(q, r->out, r->force, r->resume, err);
    const bool writes = !r->dry_run && !r->print_recipe;
    if (err->code == DQ_OK && writes) dq_calib_run_memory(&r->calib, q, err);
    if (err->code == DQ_OK && writes) {
        dq_progress bar;
        dq_quantize_progress p = {dq_progress_step, &bar};
        warn_nothing_left(r);
        if (i->source_types)
            dq_logger_warn(&r->logger,
                           "%s: %s: what these types have lost stays lost, and rounding adds to it",
                           i->source, i->source_types);
        dq_progress_begin(&bar, &r->logger, i->source, 1);
        dq_quantize_write(q, r->out, r->force, r->resume, &p, err);
        dq_progress_end(&bar);
        if (err->code == DQ_OK) dq_calib_run_report(&r->calib, &r->logger);
        if (err->code == DQ_OK) check_plan(r, err);
        if (i->n_wide)
            dq_logger_warn(&r->logger, "%lld tensor%s scales that f16 cannot hold; %s f32",
                           (long long)i->n_wide, i->n_wide == 1 ? " has" : "s have",
                           i->n_wide == 1 ? "its are" : "theirs are");
    }
    if (r->print_recipe || err->code != DQ_OK) {
        dq_quantize_close(q);
        return err->code;
    }
    if (r->json) {
        print_json(r, model, q, err);
    } else {
        if (r->tensors)
            dq_quantize_rows_print(q, r->calib.calibrate && !r->dry_run, err);
        else if (r->dry_run)
            dq_quantize_rows_folded(q, err);
        if (err->code == DQ_OK) print_summary(r, q);
    }
    dq_quantize_close(q);
    return err->code;
}

dq_status dq_cmd_quantize(int argc, char **argv, dq_err *err)
{
    request r = {.granularity = "per-tensor", .logit_bits = 16};
    dq_kv_options_begin(&r.kv, "of the policy random (default 1)");
    const dq_opt opts[] = {
        dq_opt_letter('o', dq_opt_text("output", "OUT.h5", &r.out, "the container to write")),
        dq_opt_heading("weights:"),
        DQ_SIZE_OPTION_ROWS(r.size),
        DQ_RECIPE_OPTION_ROWS(r.recipe),
        DQ_CALIB_RUN_OPTIONS(r.calib),
        dq_opt_heading("attention, stored for dq eval:"),
        dq_opt_bits("logit-bits", "N", &r.logit_bits, "2 to 8, or 16: not rounded (default 16)"),
        dq_opt_text("logit-granularity", "GRANULARITY", &r.granularity,
                    "per-tensor, per-head, per-row or per-tile (default per-tensor)"),
        DQ_KV_OPTION_ROWS(r.kv),
        dq_opt_heading("running:"),
        dq_opt_flag("dry-run", &r.dry_run,
                    "print the plan and the size, write nothing; layers that are alike stand in "
                    "one line, but with --tensors"),
        dq_opt_flag("print-recipe", &r.print_recipe,
                    "print the settings of weights and of the KV cache as a file for --recipe, "
                    "write nothing"),
        dq_opt_flag("resume", &r.resume, "finish an interrupted run of the same command"),
        dq_opt_flag("force", &r.force, "replace the output, and what an interrupted run left"),
        dq_opt_int("threads", "N", &r.threads, 1, 1024,
                   "default: all processors, and one thread more without --calib; the result does "
                   "not depend on it"),
        dq_opt_flag("tensors", &r.tensors, "print every tensor"),
        dq_opt_flag("json", &r.json, "one JSON document (dq-quantize/1) on stdout"),
        DQ_LOGGER_OPTIONS(r.logger),
        {0}};
    dq_args args;
    DQ_TRY(dq_options_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    if (make_settings(&r, err) == DQ_OK && dq_logger_begin(&r.logger, "quantize", err) == DQ_OK) {
#ifdef _OPENMP
        /* One more than processors: one thread hashes the source from end to end, and threads that
         * find nothing to do sleep at once instead of spinning. */
        const int usual = dq_os_cpu_count("") + (dq_calib_run_wanted(&r.calib) ? 0 : 1);
        omp_set_num_threads(r.threads > 0 ? (int)r.threads : usual);
#endif
        run(&r, args.item[0], err);
        dq_calib_run_end(&r.calib);
        dq_logger_end(&r.logger);
    }
    dq_size_options_end(&r.size);
    dq_recipe_options_end(&r.recipe);
    return err->code;
}
