/* cmd_verify: dq verify FILE [--source DIR]
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "quantize/quantize.h"
#include "record/record.h"
#include "settings/inputs.h"
#include "settings/options.h"

#include <stdio.h>

static const dq_usage usage = {
    .name = "verify",
    .synopsis = "FILE [--source DIR] [options]",
    .about = "Reads every dataset and attribute of a container and compares them with the hashes "
             "and the list inside; scales must be finite. With --source the checkpoint is "
             "quantized again, in memory, and every byte and attribute is compared, except for the "
             "folder's name, the version of dq and the arithmetic. Codes that a calibration text "
             "chose (--method gptq) cannot be made again without the text: their SQNR against the "
             "source must be the recorded one.",
    .examples = "  dq verify model-4bit.h5\n"
                "  dq verify model-4bit.h5 --source model\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one FILE"};

typedef struct request {
    dq_logger logger;
    const char *path, *source;
    dq_container *container;
    int64_t threads;
    bool json;
    int64_t n_by_sqnr; /* tensors whose codes could not be made again */
    char method[32];
} request;

/* err keeps the first failure; later ones become warnings. */
static void note(request *r, dq_err *one, dq_err *err)
{
    if (one->code == DQ_OK) return;
    dq_advice_apply(one);
    if (err->code != DQ_OK) dq_logger_warn(&r->logger, "%s", one->text);
    dq_fail_as(err, one);
}

/* dq verify has no cache options, as the container decides: the source is another model. */
static dq_status of_another_model(const char *path, dq_err *err)
{
    for (int i = 0; i < err->n_remedies; i++) {
        const dq_remedy_code code = err->remedy[i].code;
        if (code != DQ_REMEDY_KV_HEADS && code != DQ_REMEDY_KV_LAYERS && code != DQ_REMEDY_KV_MAPS)
            continue;
        err->n_remedies = 0;
        return dq_in(err, "%s: made from another checkpoint: ", path);
    }
    return err->code;
}

static dq_status begin_source(request *r, dq_progress *bar, dq_quantizer *q, dq_err *err)
{
    if (dq_progress_is_long(dq_quantize_expected(q))) DQ_TRY(dq_quantize_measure(q, err));
    dq_progress_announce(&r->logger, dq_quantize_expected(q), dq_os_threads());
    dq_progress_begin(bar, &r->logger, "source", 1);
    bar->announced = true;
    return DQ_OK;
}

static void document_rows(dq_row_writer *w, const void *arg)
{
    const request *r = arg;
    const char *path = DQ_LIVE(w, r->path);
    const dq_container *c = DQ_LIVE(w, r->container);
    const dq_container_info *i = DQ_LIVE(w, &c->info);
    DQ_LIST(w, "inputs", "The container.");
    DQ_ITEM(w);
    DQ_PUT(w, "path", path, "As it was given.");
    DQ_PUT(w, "file_bytes", i->file_bytes, "Its size.");
    dq_row_end(w);
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "What was asked.");
    DQ_PUT(w, "source", r->source, "The checkpoint of --source; null: none.", .when = DQ_NULL);
    dq_row_end(w);
    DQ_LIST(w, "results", "What was found.");
    DQ_ITEM(w);
    DQ_PUT(w, "path", path, "As it was given.");
    DQ_PUT(w, "datasets", c->n_payloads, "Datasets whose bytes have their hash.");
    DQ_PUT(w, "objects", dq_container_n_objects(c), "Objects and attributes that are as written.");
    DQ_PUT(w, "ok", (bool)true, "That nothing differs.");
    DQ_PUT(w, "source_checked", (bool)(r->source != NULL),
           "Whether it was compared with its source.");
    DQ_PUT(w, "tensors_compared_by_sqnr", r->n_by_sqnr,
           "Calibrated tensors, which were compared by SQNR alone.", .when = DQ_OUT | DQ_AT_0,
           .min = 1);
    DQ_PUT(w, "content_sha256", i->content_sha256, "Of the payloads.", .pattern = DQ_SHA256);
    dq_row_end(w);
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    document_rows(w, NULL);
}

const dq_document dq_verify_document = {
    "dq-verify/1", "What dq verify --json prints of a container that is as it was written.",
    "verify", describe};

static dq_status run(request *r, const char *path, dq_err *err)
{
    dq_container *c;
    r->path = path;
    dq_os_threads_set(r->threads);
    if (dq_file_is_dir(path) || dq_checkpoint_is_gguf(path))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a checkpoint, which has no hashes, and only containers are verified. "
                       "Name a container (.h5).",
                       path);
    DQ_TRY(dq_container_open(&r->container, path, err));
    c = r->container;
    dq_progress bar;
    dq_err objects = {0};
    double total = 0, done = 0;
    int64_t n = c->n_payloads;
    for (int64_t i = 0; i < n; i++) total += (double)c->payload[i].bytes;
    dq_progress_begin(&bar, &r->logger, "hashes", total);
    dq_container_check_index(c, err);
    dq_container_check_objects(c, &objects);
    note(r, &objects, err);
    for (int64_t i = 0; i < n; i++) {
        const dq_payload *p = &c->payload[i];
        dq_err one = {0};
        dq_progress_set(&bar, done, p->path);
        done += (double)p->bytes;
        if (dq_os_check_stop(err) == DQ_STOPPED) break;
        dq_container_payload_check(c, i, &one);
        note(r, &one, err);
    }
    dq_progress_end(&bar);
    if (err->code == DQ_OK && r->source) {
        dq_quantize_settings set;
        dq_quantizer *q = NULL;
        json_t *recipe = NULL;
        dq_progress progress = {.shown = false};
        dq_quantize_progress p = {dq_progress_pace, &progress};
        if (dq_quantize_settings_of(&set, &recipe, c, err) != DQ_OK)
            dq_in(err, "%s: ", path);
        else if (dq_quantize_open(&q, r->source, &set, err) != DQ_OK)
            of_another_model(path, err);
        else if (begin_source(r, &progress, q, err) == DQ_OK &&
                 dq_quantize_compare(q, c, &p, err) != DQ_OK && err->code != DQ_STOPPED)
            dq_in(err, "%s: ", path);
        dq_progress_end(&progress);
        if (q) r->n_by_sqnr = q->info.n_by_sqnr;
        if (q && set.method_name) snprintf(r->method, sizeof r->method, "%s", set.method_name);
        dq_quantize_close(q);
        json_decref(recipe);
    }
    if (err->code == DQ_OK) dq_os_maps_check(err);
    if (err->code == DQ_OK && r->json)
        dq_stdout_print(dq_document_of(&r->logger, &dq_verify_document, document_rows, r), err);
    else if (err->code == DQ_OK)
        printf("%s: %lld datasets, every dataset and attribute as written%s", path,
               (long long)c->n_payloads, r->source ? ", and as the source gives them" : "");
    if (err->code == DQ_OK && !r->json && r->n_by_sqnr)
        printf(", except %lld tensor%s of %s, compared by SQNR alone", (long long)r->n_by_sqnr,
               r->n_by_sqnr == 1 ? "" : "s", r->method);
    if (err->code == DQ_OK && !r->json) printf("\n");
    dq_container_close(c);
    return err->code;
}

dq_status dq_cmd_verify(int argc, char **argv, dq_err *err)
{
    request r = {.json = false};
    const dq_opt opts[] = {
        dq_opt_text("source", "DIR", &r.source,
                    "the checkpoint it was made from: quantize again and compare"),
        dq_opt_int("threads", "N", &r.threads, 1, 1024,
                   "default: all processors; the result does not depend on it"),
        dq_opt_flag("json", &r.json,
                    "one JSON document (dq-verify/1) on stdout (nothing when the file is damaged)"),
        DQ_LOGGER_OPTIONS(r.logger),
        {0}};
    dq_args args;
    if (dq_help_begin(&args, argc, argv, opts, &usage, &r.logger, err)) run(&r, args.item[0], err);
    dq_logger_end(&r.logger);
    return err->code;
}
