/* cmd_export: dq export OUT.h5 -o PATH [--format FORM]
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "checkpoint/container.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "export/export.h"
#include "model/model.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct request {
    dq_logger logger;
    const char *out;
    dq_word form, dtype; /* a dq_export_form, of dtype_name */
    int64_t shard_mb, threads;
    bool dry_run, force, json, tensors;
    dq_export_settings set;
} request;

static const dq_usage usage = {
    .name = "export",
    .synopsis = "OUT.h5 -o PATH [options]",
    .about =
        "Writes a container in a form that other programs load: a folder for transformers, or one "
        "GGUF file for llama.cpp. A folder has config.json, safetensors, the tokenizer's files, "
        "and dq_settings.json with the settings of logits and KV cache, which only dq reads.\n"
        "compressed-tensors keeps codes; transformers reads them with the package "
        "compressed-tensors. vLLM has not been run with it. Codes of 2 and 3 bits are stored in 4, "
        "codes of 5, 6 and 7 bits in 8, with the same values. Embeddings, output heads and tensors "
        "whose last group is short become values. transformers multiplies in the type in which it "
        "loads the model: in float32 the weights are dq's to the last bit, in bfloat16 scales lose "
        "three bits.\n"
        "safetensors has values only, which need no package to read.\n"
        "gguf is for Llama, Mistral, Qwen2, Qwen3 and SmolLM3, and has the tokenizer and the chat "
        "template. Each tensor gets "
        "the smallest type that holds its codes: Q4_0 up to 4 bits, Q5_0 for 5, Q8_0 for 6 to 8; "
        "with zero points Q4_0 up to 3 bits, Q4_1 for 4, Q5_1 for 5, Q8_0 for 6 and 7. Q4_1 and "
        "Q5_1 round the lowest value of a block to f16, by at most 1/64 of a step; all else is "
        "exact. A tensor fits if its columns and groups are multiples of 32 and its scales are "
        "f16, as dq quantize --group 32 makes them. Any other is refused, unless --dtype says what "
        "its values become.\n",
    .examples = "  dq export model-4bit.h5 -o model-4bit-ct --format compressed-tensors\n"
                "  dq export model-4bit.h5 -o model-bf16 --format safetensors\n"
                "  dq export model-4bit.h5 -o model-4bit.gguf\n"
                "  dq export model-4bit.h5 --format compressed-tensors --dry-run\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one container"};

static const int64_t usual_shard_mb = 5000;

enum { N_DTYPES = 3 };
static const char *const dtype_name[N_DTYPES] = {"bf16", "f16", "f32"};

static bool is_gguf(const request *r)
{
    return r->set.form == DQ_EXPORT_GGUF;
}

/* "4 bits in groups of 128, zero points" */
static const char *scheme_text(char *buf, size_t cap, const dq_export_scheme *s)
{
    char group[40] = "one scale a row";
    if (s->group) snprintf(group, sizeof group, "groups of %lld", (long long)s->group);
    snprintf(buf, cap, "%d bits, %s%s", s->bits, group, s->symmetric ? "" : ", zero points");
    return buf;
}

static dq_status print_rows(const request *asked, const dq_export *x, dq_err *err)
{
    const char *const titles[] = {"tensor", "shape",
                                  "codes",  is_gguf(asked) ? "in the file" : "in the folder",
                                  "type",   "size"};
    dq_table *t;
    char text[96];
    DQ_TRY(dq_table_new(&t, titles, 6, err));
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        const dq_export_row *r = dq_export_row_at(x, i);
        dq_table_cell(t, "%s", r->name);
        dq_table_cell(t, "%lldx%lld", (long long)r->rows, (long long)r->cols);
        dq_table_known(t, r->group_size, "%d bits", r->bits);
        dq_table_cell(t, "%s",
                      r->blocks       ? "codes in blocks"
                      : r->scheme < 0 ? "values"
                                      : scheme_text(text, sizeof text, &x->scheme[r->scheme]));
        dq_table_cell(t, "%s", r->blocks ? r->blocks->name : dq_dtypes[r->dtype].name);
        dq_table_cell(t, "%s", DQ_SIZE(r->bytes));
    }
    dq_table_print(t, err);
    dq_table_free(t);
    if (err->code == DQ_OK) putchar('\n');
    return err->code;
}

static bool same_reason(const dq_export_row *a, const dq_export_row *b)
{
    return a->why && b->why && a->dtype == b->dtype && strcmp(a->why, b->why) == 0;
}

static bool same_blocks(const dq_export_row *a, const dq_export_row *b)
{
    return a->blocks && a->blocks == b->blocks && a->bits == b->bits;
}

/* How many rows equal row i, itself included; 0: an earlier one does. */
static int64_t alike(const dq_export *x, int64_t i,
                     bool (*same)(const dq_export_row *, const dq_export_row *))
{
    int64_t n = 0;
    for (int64_t k = 0; k < x->info.n_rows; k++) {
        if (!same(dq_export_row_at(x, i), dq_export_row_at(x, k))) continue;
        if (k < i) return 0;
        n++;
    }
    return n;
}

/* "Q4_0  210 tensors, codes of 4 bits", for each type. */
static void print_blocks(const dq_export *x)
{
    double error = 0;
    int64_t rounded = 0;
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        const dq_export_row *r = dq_export_row_at(x, i);
        const int64_t n = alike(x, i, same_blocks);
        if (n > 0)
            printf("%-18s %lld tensors, codes of %d bits\n", r->blocks->name, (long long)n,
                   r->bits);
        rounded += r->lowest_error > 0;
        error = fmax(error, (double)r->lowest_error);
    }
    if (rounded)
        printf(
            "rounded            lowest values to f16, in %lld tensors: values are off by at most "
            "%.4f of a step\n",
            (long long)rounded, error);
}

/* Over all written tensors, duplicates once. */
static double bits_of(const dq_model *m, const dq_export *x)
{
    int64_t bytes = 0, values = 0;
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        const dq_export_row *r = dq_export_row_at(x, i);
        if (!dq_model_size_counts(m, r->name)) continue;
        bytes += r->bytes;
        values += r->rows * r->cols;
    }
    return dq_weight_bits_over(bytes, values);
}

static void print_summary(const request *r, const dq_model *m, const dq_export *x)
{
    const dq_export_info *i = &x->info;
    const bool codes = r->set.form == DQ_EXPORT_COMPRESSED_TENSORS;
    char text[96];
    printf("bits per weight    %.3f (in the container %.3f)\n", bits_of(m, x),
           dq_model_size_of(m).bits_per_weight);
    const char *out_text = DQ_SIZE(i->bytes);
    if (is_gguf(r))
        printf("file               %s%s: %s\n", r->dry_run ? "would have " : "", out_text,
               r->out ? r->out : "(no output named)");
    else
        printf("folder             %s%s in %d files: %s\n", r->dry_run ? "would have " : "",
               out_text, i->n_files, r->out ? r->out : "(no output named)");
    printf("format             %s%s\n", dq_export_form_name[r->set.form],
           codes ? ", pack-quantized" : "");
    printf("tensors            %lld as codes, %lld decoded, %lld that had none\n",
           (long long)i->n_packed, (long long)i->n_decoded,
           (long long)(i->n_rows - i->n_packed - i->n_decoded));
    for (int k = 0; k < i->n_schemes; k++)
        printf("codes              %s\n", scheme_text(text, sizeof text, &x->scheme[k]));
    if (is_gguf(r)) {
        print_blocks(x);
    } else {
        /* Codes stored in wider ones, by their own width. */
        for (int bits = 2; bits <= 8; bits++) {
            int64_t n = 0;
            int in = 0;
            for (int64_t j = 0; j < x->info.n_rows; j++) {
                const dq_export_row *row = dq_export_row_at(x, j);
                if (row->scheme < 0 || row->bits != bits) continue;
                in = x->scheme[row->scheme].bits;
                n += in != bits;
            }
            if (n)
                printf(
                    "widened            %lld tensors: codes of %d bits stand in %d, with the same "
                    "values\n",
                    (long long)n, bits, in);
        }
    }
    if (codes || is_gguf(r)) {
        char label[24];
        for (int64_t c = 0; c < x->info.n_rows; c++) {
            const dq_export_row *row = dq_export_row_at(x, c);
            const int64_t n = alike(x, c, same_reason);
            if (n == 0) continue;
            snprintf(label, sizeof label, "as %s values", dq_dtypes[row->dtype].name);
            if (n == 1)
                printf("%-18s %s: %s\n", label, row->name, row->why);
            else
                printf("%-18s %lld tensors, %s first: %s\n", label, (long long)n, row->name,
                       row->why);
        }
    } else
        printf("type               %s\n", dq_dtypes[r->set.dtype].name);
    if (!i->has_logit && !i->has_kv) return;
    printf("not in the model   settings of %s: %s\n",
           !i->has_kv      ? "attention logits"
           : !i->has_logit ? "the KV cache"
                           : "attention logits and the KV cache",
           is_gguf(r) ? "a GGUF file has no place for them" : "dq_settings.json has them");
}

static void row_rows(dq_row_writer *w, const void *export, int64_t i)
{
    const dq_export *x = export;
    const dq_export_row *r = DQ_LIVE(w, dq_export_row_at(x, i));
    const dq_export_scheme *s = w->live && r->scheme >= 0 ? &x->scheme[r->scheme] : NULL;
    DQ_PUT(w, "name", r->name, "Its name.");
    DQ_PUT(w, "rows", r->rows, "Rows.", .when = DQ_SIGNED);
    DQ_PUT(w, "cols", r->cols, "Columns.", .when = DQ_SIGNED);
    DQ_PUT(w, "bits", r->group_size ? r->bits : -1,
           "Bits of its codes in the container; null: none.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "group_size", r->group_size, "Columns per scale there; null: none.",
           .when = DQ_NULL | DQ_AT_0);
    DQ_PUT(w, "stored", s || r->blocks ? "codes" : "values", "As what it is written.",
           DQ_WORD("codes", "values"));
    DQ_PUT(w, "stored_bits",
           s           ? s->bits
           : r->blocks ? r->blocks->block->bits
                       : -1,
           "Bits of its codes as written; null: values.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "ggml_type", r->blocks ? r->blocks->name : NULL,
           "Its type in GGUF, where it has codes.", .when = DQ_OUT);
    DQ_PUT(w, "lowest_error_steps", r->blocks ? (double)r->lowest_error : DQ_NO_REAL,
           "How far f16 rounds a lowest value of Q4_1 or Q5_1, the most, in steps; 0: not at all. "
           "Where it has codes in GGUF.",
           .when = DQ_POSITIVE | DQ_OUT);
    DQ_PUT(w, "symmetric", (dq_maybe)(s ? s->symmetric : -1),
           "Whether codes have no zero points; null: values, or GGUF.", .when = DQ_NULL);
    DQ_PUT(w, "dtype", dq_dtypes[r->dtype].name, "Type of values, or of scales.");
    DQ_PUT(w, "why_values", r->why, "Why codes became values; null: they did not.",
           .when = DQ_NULL);
    DQ_PUT(w, "bytes", r->bytes, "Bytes of all parts.");
}

/* All files but configuration and tokenizer. */
static int64_t weight_file_bytes(const dq_export *x)
{
    int64_t sum = 0;
    for (int i = 0; i < x->info.n_files; i++) {
        const dq_export_file *f = &x->file[i];
        const char *end = strrchr(f->name, '.');
        if (end && (strcmp(end, ".safetensors") == 0 || strcmp(end, ".gguf") == 0)) sum += f->bytes;
    }
    return sum;
}

static void document_rows(dq_row_writer *w, const request *r, const dq_model *m, const dq_export *x)
{
    const dq_export_info *i = DQ_LIVE(w, &x->info);
    DQ_LIST(w, "inputs", "The container.");
    dq_input_put_model(w, m);
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "What was asked.");
    DQ_PUT(w, "format", dq_export_form_name[r->set.form], "The form.",
           DQ_WORDS(dq_export_form_name));
    DQ_PUT(w, "dtype", is_gguf(r) && !r->set.values ? NULL : dq_dtypes[r->set.dtype].name,
           "Type of values; null: of GGUF, not asked for.", .when = DQ_NULL);
    DQ_PUT(w, "shard_mb", is_gguf(r) ? -1 : r->shard_mb,
           "Megabytes of a weight file; null: one file.", .when = DQ_NULL | DQ_BELOW_0, .min = 1);
    DQ_PUT(w, "dry_run", r->dry_run, "Whether nothing was written.");
    dq_row_end(w);
    DQ_LIST(w, "results", "The folder or file.");
    DQ_ITEM(w);
    DQ_PUT(w, "path", r->out, "The output; null: none was named.", .when = DQ_NULL);
    DQ_PUT(w, "bits_per_weight", bits_of(m, x),
           "Bits per weight over all parameters as they are written.", .when = DQ_POSITIVE);
    DQ_PUT(w, "file_bytes", weight_file_bytes(x), "Bytes of the weight files.");
    DQ_PUT(w, "bytes", i->bytes, "Bytes of all files.");
    DQ_PUT(w, "tensors", i->n_rows, "Tensors.");
    DQ_PUT(w, "packed", i->n_packed, "Of them written as codes.");
    DQ_PUT(w, "widened", i->n_widened, "Of these in a wider width.");
    DQ_PUT(w, "decoded", i->n_decoded, "Tensors with codes that became values.");
    DQ_PUT(w, "logit_settings_apart", i->has_logit,
           "Whether settings of logits stand in dq_settings.json alone.");
    DQ_PUT(w, "kv_settings_apart", i->has_kv, "Whether settings of the KV cache do.");
    DQ_LIST(w, "files", "All files.");
    for (int k = 0; DQ_MORE(w, k, i->n_files); k++) {
        const dq_export_file *f = DQ_LIVE(w, &x->file[k]);
        DQ_ITEM(w);
        DQ_PUT(w, "name", f->name, "Base name.");
        DQ_PUT(w, "bytes", f->bytes, "Size.");
        DQ_PUT(w, "sha256", *f->sha256 ? f->sha256 : NULL, "Of its bytes; null: not written.",
               .when = DQ_NULL, .pattern = DQ_SHA256);
        dq_row_end(w);
    }
    dq_row_end(w);
    DQ_ITEMS(w, "rows", row_rows, x, i->n_rows, "Every tensor.");
    dq_row_end(w);
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    document_rows(w, NULL, NULL, NULL);
}

const dq_document dq_export_document = {
    "dq-export/1", "What dq export --json prints; with --dry-run of what would be written.",
    "export", describe};

static dq_status export(request *r, const dq_model *m, dq_export *x, dq_err *err)
{
    if (r->out) DQ_TRY(dq_export_check(x, r->out, r->force, err));
    /* What transformers reads and vLLM does not. */
    const dq_export_info *i = &x->info;
    for (int k = 0; k < i->n_schemes; k++) {
        const dq_export_scheme *s = &x->scheme[k];
        const int64_t g = s->group;
        if (s->bits == 8 && !s->symmetric)
            dq_logger_warn(&r->logger,
                           "8 bits with zero points: transformers reads them, but by its sources "
                           "vLLM's Marlin kernels do not");
        if (g != 0 && g != 32 && g != 64 && g != 128)
            dq_logger_warn(&r->logger,
                           "groups of %lld: transformers reads them, but by its sources vLLM's "
                           "Marlin kernels take 32, 64, 128 or whole rows",
                           (long long)g);
    }
    if (i->split_layer >= 0)
        dq_logger_warn(&r->logger,
                       "layer %d: transformers reads it, but by its sources vLLM joins q, k and v, "
                       "and gate and up, and refuses tensors that are not coded alike",
                       i->split_layer);
    if (!r->dry_run) {
        dq_progress bar;
        const dq_export_progress p = {dq_progress_step, &bar};
        dq_progress_begin(&bar, &r->logger, m->name, 1);
        dq_export_write(x, &p, err);
        dq_progress_end(&bar);
    }
    if (err->code == DQ_OK && r->json) {
        json_t *doc = dq_document_new(&r->logger, dq_export_document.name);
        dq_row_writer w = dq_row_json(doc);
        document_rows(&w, r, m, x);
        dq_stdout_print(doc, err);
    } else if (err->code == DQ_OK) {
        if (r->tensors || r->dry_run) print_rows(r, x, err);
        if (err->code == DQ_OK) print_summary(r, m, x);
    }
    if (err->code == DQ_OK) dq_stdout_flush(err);
    return err->code == DQ_OK && !r->dry_run ? dq_export_commit(x, err) : err->code;
}

static dq_status run(request *r, const dq_args *args, dq_err *err)
{
    const char *path = args->item[0];
    static const char *const beside[] = {".old", NULL};
    const dq_output out = {"-o", r->out, is_gguf(r) ? DQ_OUTPUT_GGUF : DQ_OUTPUT_FOLDER,
                           is_gguf(r) ? NULL : beside};
    dq_model *m = NULL;
    dq_export *x = NULL;
    DQ_TRY(dq_output_guard_check(&out, 1, args->input, args->n_inputs, r->force, err));
    if (dq_input_model(&m, path, NULL, &r->logger, err) == DQ_OK) {
        if (m->prequant)
            dq_fail(
                err, DQ_MISMATCH,
                "%s: a folder of codes already (%s), and only containers are exported. Make one "
                "from the original checkpoint with dq quantize.",
                path, m->prequant->info.about);
        else if (!m->is_container)
            dq_fail(err, DQ_MISMATCH,
                    "%s: a checkpoint, and only containers are exported. Make one with dq "
                    "quantize %s -o OUT.h5 --bits 4 --group 32.",
                    path, path);
        else if (dq_export_open(&x, m, &r->set, err) == DQ_OK)
            export(r, m, x, err);
    }
    dq_export_close(x);
    dq_model_close(m);
    return err->code;
}

dq_status dq_cmd_export(int argc, char **argv, dq_err *err)
{
    request r = {0};
    const dq_opt opts[] = {
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "PATH", &r.out,
                                                     "the folder or file to write"))),
        dq_opt_word("format", "FORM", &r.form, dq_export_form_name, DQ_EXPORT_FORMS,
                    "compressed-tensors (codes), safetensors (values) or gguf (codes, one file); "
                    "default gguf where the output ends in .gguf, else compressed-tensors"),
        dq_opt_word("dtype", "TYPE", &r.dtype, dtype_name, N_DTYPES,
                    "{words}, the type of values, rounded to nearest even. safetensors: all "
                    "tensors (default bf16). compressed-tensors: tensors that become values "
                    "(default f32, exact); codes of a trellis need this option. gguf: tensors that "
                    "no type holds, which need it too"),
        dq_opt_int("shard-mb", "N", &r.shard_mb, 1, 1e9,
                   "megabytes of tensors in each weight file of a folder (default 5000)"),
        dq_opt_heading("running:"),
        dq_opt_flag("dry-run", &r.dry_run, "print the plan and the size, write nothing"),
        dq_opt_flag("force", &r.force,
                    "replace the file, or the folder of an earlier or interrupted export; other "
                    "folders are never replaced"),
        dq_opt_int("threads", "N", &r.threads, 1, 1024,
                   "default: all processors; the result does not depend on it"),
        dq_opt_flag("tensors", &r.tensors, "print every tensor"),
        dq_opt_flag("json", &r.json, "one JSON document (dq-export/1) on stdout"),
        DQ_LOGGER_OPTIONS(r.logger),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    static const dq_dtype types[N_DTYPES] = {DQ_BF16, DQ_F16, DQ_F32};
    if (!r.form.text && !r.out)
        return dq_fail(err, DQ_USAGE,
                       "-o is missing, and no --format says what the plan is of: "
                       "compressed-tensors (codes), safetensors (values) or gguf (codes, one "
                       "file).");
    const char *end = r.out ? strrchr(r.out, '.') : NULL;
    const bool names_gguf = end && strcmp(end, ".gguf") == 0;
    const dq_export_form form = r.form.text  ? (dq_export_form)r.form.at
                                : names_gguf ? DQ_EXPORT_GGUF
                                             : DQ_EXPORT_COMPRESSED_TENSORS;
    if (names_gguf && form != DQ_EXPORT_GGUF)
        return dq_fail(err, DQ_USAGE,
                       "-o %s names a file, and --format %s is a folder. Give --format gguf, or "
                       "another name.",
                       r.out, dq_export_form_name[form]);
    const dq_dtype usual = form == DQ_EXPORT_SAFETENSORS ? DQ_BF16 : DQ_F32;
    if (!r.out && !r.dry_run)
        return dq_fail(err, DQ_USAGE, "-o %s is missing (or --dry-run to see the plan).",
                       form == DQ_EXPORT_GGUF ? "FILE" : "DIR");
    if (form == DQ_EXPORT_GGUF && r.shard_mb)
        return dq_fail(err, DQ_USAGE, "--shard-mb goes with folders: --format gguf is one file.");
    if (!r.shard_mb) r.shard_mb = usual_shard_mb;
    r.set = (dq_export_settings){.form = form,
                                 .dtype = r.dtype.text ? types[r.dtype.at] : usual,
                                 .values = r.dtype.text != NULL,
                                 .shard_bytes = r.shard_mb * 1000000,
                                 .dq_version = DQ_VERSION};
    DQ_TRY(dq_progress_listen(&r.logger, "export", err));
    dq_os_threads_set(r.threads);
    run(&r, &args, err);
    dq_logger_end(&r.logger);
    return err->code;
}
