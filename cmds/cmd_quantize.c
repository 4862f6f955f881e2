/* Folding goes over the rows in order and takes the later ones that are alike.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "calibrate/calibrate.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "quantize/quantize.h"
#include "record/record.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "settings/quantize_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stored_cells(dq_table *t, const dq_quantize_row *r, int64_t bytes)
{
    dq_table_cell(t, "%lldx%lld", (long long)r->rows, (long long)r->cols);
    if (r->packed)
        dq_table_cell(t, "%s", r->scale_dtype == DQ_F16 ? "packed" : "packed, f32 scales");
    else if (r->dense_dtype != r->dtype)
        dq_table_cell(t, "dense%s, %s to %s", r->skipped ? ", skipped" : "",
                      dq_dtypes[r->dtype].name, dq_dtypes[r->dense_dtype].name);
    else
        dq_table_cell(t, "%s", r->skipped ? "dense, skipped" : "dense");
    dq_table_cell(t, "%d", r->bits);
    dq_table_known(t, r->packed, "%lld", (long long)r->group_size);
    dq_table_cell(t, "%.3f", r->bits_per_weight);
    dq_table_cell(t, "%s", DQ_SIZE(bytes));
}

static void sum_cells(dq_table *t, const dq_quantizer *q, bool folded)
{
    const dq_quantize_info *i = &q->info;
    dq_table_rule(t);
    dq_table_cell(t, "the whole model");
    if (folded) dq_table_cell(t, "%lld", (long long)i->n_tensors);
    for (int k = 0; k < 4; k++) dq_table_cell(t, "-"); /* shape, stored as, bits, group */
    dq_table_cell(t, "%.3f", i->bits_per_weight);
    dq_table_cell(t, "%s", DQ_SIZE(i->weight_bytes));
}

static dq_status finish(dq_table *t, dq_err *err)
{
    dq_table_print(t, err);
    dq_table_free(t);
    putchar('\n');
    return err->code;
}

/* loss: with that of a calibrated method. DQ_RESOURCE. */
static dq_status quantize_rows_print(const dq_quantizer *q, bool loss, dq_err *err)
{
    static const char *const titles[] = {"tensor", "shape", "stored as", "bits", "group",
                                         "bpw",    "size",  "SQNR dB",   "loss"};
    dq_table *t;
    DQ_TRY(dq_table_new(&t, titles, loss ? 9 : 8, err));
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        dq_table_cell(t, "%s", r.name);
        stored_cells(t, &r, r.bytes);
        dq_table_known(t, r.packed && isfinite(r.sqnr_db) && r.sqnr_db != 0, "%.2f", r.sqnr_db);
        if (loss && isfinite(r.loss)) dq_table_cell(t, "%.3g", r.loss);
        if (loss && !isfinite(r.loss)) dq_table_cell(t, "-");
    }
    sum_cells(t, q, false);
    for (int k = 0; k < 1 + loss; k++) dq_table_cell(t, "-"); /* SQNR, loss */
    return finish(t, err);
}

/* A name around its first number; digits 0: none. */
typedef struct cut_name {
    const char *name;
    size_t before, digits;
    long long number;
} cut_name;

static cut_name cut(const char *name)
{
    cut_name c = {.name = name, .before = strcspn(name, "0123456789")};
    c.digits = strspn(name + c.before, "0123456789");
    c.number = c.digits ? strtoll(name + c.before, NULL, 10) : 0;
    return c;
}

typedef struct fold {
    cut_name name;
    int64_t n;
    long long last;    /* number */
    char numbers[512]; /* "0,3-5", of all but a run that ends with `last` */
    size_t used;
    long long run; /* number that this run began with */
} fold;

static void end_run(fold *f)
{
    if (f->used < sizeof f->numbers)
        f->used += (size_t)snprintf(f->numbers + f->used, sizeof f->numbers - f->used,
                                    f->run == f->last ? "%s%lld" : "%s%lld-%lld",
                                    f->used ? "," : "", f->run, f->last);
}

static void take(fold *f, long long number)
{
    if (f->n > 0 && number != f->last + 1) {
        end_run(f);
        f->run = number;
    }
    f->last = number;
    f->n++;
}

static void add_fold(dq_table *t, const dq_quantizer *q, bool *taken, int64_t from)
{
    const dq_quantize_row first = dq_quantize_row_at(q, from);
    fold f = {.name = cut(first.name)};
    f.run = f.name.number;
    take(&f, f.name.number);
    for (int64_t i = from + 1; i < q->info.n_tensors; i++) {
        if (taken[i]) continue;
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        const cut_name c = cut(r.name);
        if (!(f.name.digits && c.digits && f.name.before == c.before &&
              strncmp(f.name.name, c.name, f.name.before) == 0 &&
              strcmp(f.name.name + f.name.before + f.name.digits, c.name + c.before + c.digits) ==
                  0) ||
            !(first.packed == r.packed && first.skipped == r.skipped && first.dtype == r.dtype &&
              first.dense_dtype == r.dense_dtype && first.scale_dtype == r.scale_dtype &&
              first.bits == r.bits && first.rows == r.rows && first.cols == r.cols &&
              first.group_size == r.group_size && first.bytes == r.bytes))
            continue;
        taken[i] = true;
        take(&f, c.number);
    }
    end_run(&f);
    if (f.name.digits)
        dq_table_cell(t, "%.*s%s%s", (int)f.name.before, first.name, f.numbers,
                      first.name + f.name.before + f.name.digits);
    else
        dq_table_cell(t, "%s", first.name);
    dq_table_cell(t, "%lld", (long long)f.n);
    stored_cells(t, &first, f.n * first.bytes);
}

/* Folds tensors that differ only in the first number of their names,
 * "model.layers.0-29.mlp.up_proj.weight", and adds up sizes. DQ_RESOURCE. */
static dq_status quantize_rows_folded(const dq_quantizer *q, dq_err *err)
{
    static const char *const titles[] = {"tensor", "tensors", "shape", "stored as",
                                         "bits",   "group",   "bpw",   "size"};
    const int64_t n = q->info.n_tensors;
    dq_arena *a = dq_arena_new();
    bool *taken = a ? dq_alloc(a, (size_t)n, sizeof *taken, err) : NULL;
    dq_table *t;
    if (!a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (taken && dq_table_new(&t, titles, 8, err) == DQ_OK) {
        for (int64_t i = 0; i < n; i++) {
            if (!taken[i]) add_fold(t, q, taken, i);
        }
        sum_cells(t, q, true);
        finish(t, err);
    }
    dq_arena_free(a);
    return err->code;
}

typedef struct command {
    dq_logger logger;
    dq_quantize_request request;
    bool dry_run, print_recipe, json, tensors;
    double seconds; /* of a dry run: that it would take */
} command;

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
                "  dq quantize model --bits 3 --embed-bits 5 --print-recipe > recipe.json\n"};

/* The packed tensor with the lowest SQNR; false: none is packed. */
static bool worst_of(const dq_quantizer *q, dq_quantize_row *worst)
{
    bool any = false;
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        dq_quantize_row r = dq_quantize_row_at(q, i);
        if (!r.packed || (any && !(r.sqnr_db < worst->sqnr_db))) continue;
        *worst = r;
        any = true;
    }
    return any;
}

static void print_calibration(const dq_calib_run *c, const dq_quantizer *q)
{
    if (!c->calibrate) return;
    const dq_calibrate_info *i = &c->calibrate->info;
    printf("calibration        %s, %lld token%s%s in %lld sequence%s of at most %lld\n", c->method,
           (long long)i->text->n_ids, i->text->n_ids == 1 ? "" : "s",
           c->own ? " that the model writes" : "", (long long)i->text->n_seq,
           i->text->n_seq == 1 ? "" : "s", (long long)i->text->ctx);
    if (i->text->bytes_read < i->text->bytes) {
        printf("excerpt            %s of %s of text, at even intervals\n",
               DQ_SIZE(i->text->bytes_read), DQ_SIZE(i->text->bytes));
    }
    printf("scratch            %s beside the output, while it runs\n", DQ_SIZE(i->scratch_bytes));
    printf("memory             about %s beside mapped files\n",
           DQ_SIZE(dq_calibrate_memory(c->calibrate, q)));
}

static void print_summary(const command *c, const dq_quantizer *q)
{
    const dq_quantize_info *i = &q->info;
    dq_quantize_row worst = {.sqnr_db = 0};
    dq_stdout_print_bits(i->bits_per_weight, i->params);
    if (i->packed_params)
        printf("; %.3f in packed tensors", dq_weight_bits_over(i->packed_bytes, i->packed_params));
    printf("\ncontainer          %s%s in %s, %.1f %% of the source's %s\n",
           c->dry_run ? "about " : "", DQ_SIZE(i->file_bytes),
           c->request.out ? c->request.out : "(no output named)",
           100.0 * (double)i->file_bytes / (double)i->source_bytes, DQ_SIZE(i->source_bytes));
    /* "packed             4 bits in 210 tensors, 4.250 bits per weight; 6 bits in 1, 6.250" */
    int64_t n[9] = {0}, params[9] = {0}, bytes[9] = {0};
    bool first = true;
    for (int64_t j = 0; j < q->info.n_tensors; j++) {
        const dq_quantize_row r = dq_quantize_row_at(q, j);
        if (!r.packed) continue;
        n[r.bits]++;
        params[r.bits] += r.rows * r.cols;
        bytes[r.bits] += r.bytes;
    }
    for (int bits = 2; bits <= 8; bits++) {
        if (!n[bits]) continue;
        printf("%s%d bits in %lld%s, %.3f%s", first ? "packed             " : "; ", bits,
               (long long)n[bits],
               !first         ? ""
               : n[bits] == 1 ? " tensor"
                              : " tensors",
               dq_weight_bits_over(bytes[bits], params[bits]), first ? " bits per weight" : "");
        first = false;
    }
    if (!first) putchar('\n');
    printf("tensors            %lld packed, %lld dense", (long long)i->n_packed,
           (long long)(i->n_tensors - i->n_packed));
    if (i->n_skipped) printf(" (%lld of them skipped)", (long long)i->n_skipped);
    printf("\nparameters         %lld packed, %lld dense\n", (long long)i->packed_params,
           (long long)(i->params - i->packed_params));
    if (i->short_groups.n)
        printf("short groups       the last one of %lld tensors, as %s: dq export --format "
               "compressed-tensors writes these as values\n",
               (long long)i->short_groups.n, i->short_groups.name);
    printf("payload            %s\n", DQ_SIZE(i->weight_bytes));
    char size[DQ_KV_SIZED];
    if (c->request.set.kv_size.size > 0)
        printf("KV size            %s\n", dq_kv_sweep_sized(size, &i->kv_sized));
    print_calibration(&c->request.calib, q);
    bool any = false; /* whose codes a text could choose: all but an embedding that is no head */
    const bool tied = q->set.head_bits == 0;
    for (int64_t k = 0; k < q->info.n_tensors; k++) {
        const dq_quantize_row row = dq_quantize_row_at(q, k);
        any = any || (row.packed && (row.role != DQ_ROLE_EMBED || tied));
    }
    if (!dq_calib_run_wanted(&c->request.calib) && any) {
        printf(
            "no text            codes are the nearest ones. --calib FILE chooses them by what the "
            "model reads, --calib self by what it writes\n");
    }
    if (c->dry_run) {
        printf("time               about %s on %d thread%s\n", DQ_TIME(c->seconds), dq_os_threads(),
               dq_os_threads() == 1 ? "" : "s");
        return;
    }
    if (c->request.planned)
        printf("as planned         %s\n", c->request.as_planned
                                              ? "yes, the weights that the plan measured"
                                              : "no, other weights than the plan measured");
    if (i->n_resumed) printf("taken over         %lld payloads\n", (long long)i->n_resumed);
    if (worst_of(q, &worst) && isfinite(worst.sqnr_db))
        printf("worst SQNR         %.2f dB (%s)\n", worst.sqnr_db, worst.name);
    printf("content SHA-256    %s\n", i->content_sha256);
}

static void tensor_rows(dq_row_writer *w, const void *quantizer, int64_t i)
{
    const dq_quantize_row row = w->live ? dq_quantize_row_at(quantizer, i) : (dq_quantize_row){0};
    const bool retyped = !row.packed && row.dense_dtype != row.dtype;
    DQ_PUT(w, "name", row.name, "Its name.");
    DQ_PUT(w, "encoding", row.format, "How it is stored: see FORMAT.md.");
    DQ_PUT(w, "skipped", row.skipped, "Whether --skip leaves it dense.");
    DQ_PUT(w, "source_dtype", dq_dtypes[row.dtype].name, "Its type in the source.");
    DQ_PUT(w, "dense_dtype", retyped ? dq_dtypes[row.dense_dtype].name : NULL,
           "Type it was rounded to; missing: its own, or it is packed.", .when = DQ_OUT);
    DQ_PUT(w, "bits", row.bits, "Bits of a code or element.");
    DQ_PUT(w, "rows", row.rows, "Rows.", .when = DQ_SIGNED);
    DQ_PUT(w, "cols", row.cols, "Columns.", .when = DQ_SIGNED);
    DQ_PUT(w, "group_size", row.packed ? row.group_size : -1, "Columns per scale; null: dense.",
           .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "scale_dtype", row.packed ? dq_dtypes[row.scale_dtype].name : NULL,
           "Type of scales; null: dense.", .when = DQ_NULL);
    DQ_PUT(w, "source_bytes", row.source_bytes, "Bytes of its values in the source's type.");
    DQ_PUT(w, "bytes", row.bytes, "Bytes in the container, scales included.");
    DQ_PUT(w, "bits_per_weight", row.bits_per_weight, "Of this tensor.", .when = DQ_POSITIVE);
    DQ_PUT(w, "sqnr_db",
           row.packed && *((const dq_quantizer *)quantizer)->info.content_sha256 ? row.sqnr_db
                                                                                 : DQ_NO_REAL,
           "Signal-to-quantization-noise ratio in dB; null: dense, not written, or no error.",
           .when = DQ_NULL);
    DQ_PUT(w, "loss", row.loss,
           "Of a calibrated method: squared error of its outputs over their squares.",
           .when = DQ_OUT);
}

static void describe_settings(dq_row_writer *w)
{
    dq_quantize_recipe_describe(w);
    DQ_PUT(w, "dry_run", (bool)false, "Whether nothing was written.");
}

static void document_rows(dq_row_writer *w, const command *c, const char *model,
                          const dq_quantizer *q, json_t *settings)
{
    const dq_quantize_info *i = DQ_LIVE(w, &q->info);
    DQ_LIST(w, "inputs", "The source.");
    DQ_ITEM(w);
    DQ_PUT(w, "path", model, "As it was given.");
    DQ_PUT(w, "file_bytes", i->source_bytes, "Bytes of its weight files.");
    DQ_PUT(w, "architecture", i->architecture, "Its row of docs/math/model.md.");
    DQ_PUT(w, "types", i->source_types, "Types of a source in GGUF; null: a folder.",
           .when = DQ_NULL);
    dq_row_end(w);
    dq_row_end(w);
    DQ_PUT(w, "settings", settings, "The recipe as the container stores it, and dry_run.",
           .def = "settings", .describe = describe_settings);
    DQ_LIST(w, "results", "The container.");
    DQ_ITEM(w);
    DQ_PUT(w, "path", c->request.out, "The output; null: none was named.", .when = DQ_NULL);
    const dq_model_size size = {.bits_per_weight = w->live ? i->bits_per_weight : 0,
                                .file_bytes = w->live ? i->file_bytes : 0,
                                .weight_bytes = w->live ? i->weight_bytes : 0};
    dq_size_rows_of(w, &size);
    DQ_PUT(w, "tensors", i->n_tensors, "Tensors.");
    DQ_PUT(w, "packed", i->n_packed, "Of them packed.");
    DQ_PUT(w, "skipped", i->n_skipped, "Of them left dense by --skip.");
    DQ_PUT(w, "params", i->params, "Parameters.");
    DQ_PUT(w, "packed_params", i->packed_params, "Of them in packed tensors.");
    DQ_PUT(w, "packed_bytes", i->packed_bytes, "Bytes of packed tensors, scales included.");
    DQ_PUT(w, "seconds", c->dry_run ? c->seconds : DQ_NO_REAL,
           "That it would take; of --dry-run alone.", .when = DQ_OUT | DQ_POSITIVE);
    DQ_PUT(w, "payloads_taken_over", i->n_resumed,
           "Datasets that an interrupted run had finished.");
    DQ_PUT(w, "content_sha256", c->dry_run ? NULL : i->content_sha256,
           "Of the payloads; null: not written.", .when = DQ_NULL, .pattern = DQ_SHA256);
    DQ_ITEMS(w, "rows", tensor_rows, q, i->n_tensors, "Every tensor.");
    if (DQ_WHEN(w, c->request.planned && !c->dry_run))
        DQ_PUT(w, "as_planned", c->request.as_planned,
               "Whether these are the weights that the recipe's plan measured.", .when = DQ_OUT);
    dq_calib_run_rows(w, DQ_LIVE(w, &c->request.calib), q);
    dq_row_end(w);
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    document_rows(w, NULL, NULL, NULL, NULL);
}

const dq_document dq_quantize_document = {
    "dq-quantize/1", "What dq quantize --json prints; with --dry-run of what would be written.",
    "quantize", describe};

const dq_document dq_recipe_document = {
    "dq-recipe/1",
    "A recipe: what dq quantize --print-recipe, dq info --recipe and dq plan write, and --recipe "
    "reads. What it does not name stays as the command says.",
    "", dq_quantize_recipe_describe_file};

static dq_status print_json(const command *c, const char *model, const dq_quantizer *q, dq_err *err)
{
    const char *recipe = q->recipe;
    json_t *settings = NULL;
    DQ_TRY(dq_json_parse(&settings, recipe, strlen(recipe), "recipe", err));
    if (!json_object_get(settings, "kv"))
        json_object_set_new(settings, "kv", dq_kv_config_json(&c->request.set.kv));
    json_object_set_new(settings, "dry_run", json_boolean(c->dry_run));
    json_t *doc = dq_document_new(&c->logger, dq_quantize_document.name);
    dq_row_writer w = dq_row_json(doc);
    document_rows(&w, c, model, q, settings);
    return dq_stdout_print(doc, err);
}

static dq_status make_container(command *c, dq_quantizer *q, dq_err *err)
{
    dq_progress bar;
    const dq_quantize_progress p = {dq_progress_pace, &bar};
    DQ_TRY(dq_quantize_request_check(&c->request, q, err));
    DQ_TRY(dq_quantize_request_seconds(&c->seconds, &c->request, q, err));
    dq_progress_announce(&c->logger, c->seconds, dq_os_threads());
    dq_progress_begin(&bar, &c->logger, q->info.source, 1);
    bar.announced = true;
    dq_quantize_request_write(&c->request, q, &p, err);
    dq_progress_end(&bar);
    return err->code;
}

static dq_status run(command *c, const dq_args *args, dq_err *err)
{
    const char *model = args->item[0];
    dq_quantizer *q;
    const char *out = c->request.out;
    if (!out && !c->dry_run && !c->print_recipe)
        return dq_fail(err, DQ_USAGE, "-o OUT.h5 is missing (or --dry-run to see the plan).");
    if (c->print_recipe) c->request.out = NULL;
    DQ_TRY(dq_quantize_request_open(&q, &c->request, args, err));
    if (c->print_recipe)
        dq_stdout_print_recipe(q->recipe, err);
    else if (!c->dry_run)
        make_container(c, q, err);
    else
        dq_quantize_request_seconds(&c->seconds, &c->request, q, err);
    if (err->code == DQ_OK && !c->print_recipe) {
        if (c->json)
            print_json(c, model, q, err);
        else if (c->tensors)
            quantize_rows_print(q, c->request.calib.calibrate && !c->dry_run, err);
        else if (c->dry_run)
            quantize_rows_folded(q, err);
        if (err->code == DQ_OK && !c->json) print_summary(c, q);
    }
    dq_quantize_close(q);
    return err->code;
}

dq_status dq_cmd_quantize(int argc, char **argv, dq_err *err)
{
    command *c = dq_block_new(1, sizeof *c, err); /* too large for a stack */
    if (!c) return err->code;
    dq_quantize_request *r = &c->request;
    dq_quantize_request_begin(r, &c->logger);
    const dq_opt opts[] = {
        dq_opt_letter(
            'o', dq_opt_output(dq_opt_text("output", "OUT.h5", &r->out, "the container to write"))),
        DQ_QUANTIZE_REQUEST_OPTIONS(*r),
        dq_opt_heading("running:"),
        dq_opt_flag(
            "dry-run", &c->dry_run,
            "print the plan, the size and how long it takes, write nothing; layers that are "
            "alike stand in one line, but with --tensors"),
        dq_opt_flag("print-recipe", &c->print_recipe,
                    "print the settings of weights and of the KV cache as a file for --recipe, "
                    "write nothing"),
        dq_opt_flag("resume", &r->resume, "finish an interrupted run of the same command"),
        dq_opt_flag("force", &r->force, "replace the output, and what an interrupted run left"),
        dq_opt_int("threads", "N", &r->threads, 1, 1024,
                   "default: all processors, and one thread more without --calib; the result does "
                   "not depend on it"),
        dq_opt_flag("tensors", &c->tensors, "print every tensor"),
        dq_opt_flag("json", &c->json, "one JSON document (dq-quantize/1) on stdout"),
        DQ_LOGGER_OPTIONS(c->logger),
        {0}};
    dq_args args;
    if (dq_help_parse(&args, argc, argv, opts, &usage, err) == DQ_OK && !args.help &&
        dq_quantize_request_read(r, err) == DQ_OK &&
        dq_progress_listen(&c->logger, "quantize", err) == DQ_OK)
        run(c, &args, err);
    dq_quantize_request_end(r);
    dq_logger_end(&c->logger);
    dq_block_free(c);
    return err->code;
}
