/* calibrate: see calibrate.h. calibrate_layer.c takes the chunks of the text through the layers.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_job.h"

#include "base/os.h"
#include "base/ranks.h"
#include "base/text.h"
#include "calibrate/calibrate_pace.h"

#include <stdio.h>
#include <string.h>

const char *const dq_calibrate_part_name[DQ_CALIBRATE_PARTS] = {"forward", "maps",     "hessians",
                                                                "factors", "rounding", "files"};

const dq_calibrate_rule dq_calibrate_rules[DQ_CALIBRATE_RULES] = {
    {.name = "gptq",
     .about = "layer by layer, errors of columns made up for by those still to be rounded"},
    {.name = "align",
     .about = "the same of weights that first make up for what was lost before them; takes longer",
     .aligns = true,
     .refits = 2},
};

double dq_calibrate_damping(int64_t inputs, int64_t tokens)
{
    const double least = 0.01, share = tokens > 0 ? 0.5 * (double)inputs / (double)tokens : 0;
    return share > least ? share : least;
}

/* ---- Parts ---- */

void dq_calibrate_job_begin_part(dq_calibrate *c)
{
    c->lap = dq_os_seconds();
}

void dq_calibrate_job_end_part(dq_calibrate *c, dq_calibrate_part part, double flop)
{
    const double now = dq_os_seconds();
    c->info.seconds[part] += now - c->lap;
    c->info.flop[part] += flop;
    c->lap = now;
}

/* ---- The method ---- */

static dq_status run_job(dq_calibrate_job *j, dq_err *err)
{
    dq_calibrate *c = j->c;
    dq_calibrate_job_find_left(j);
    if (j->n_layers == 0 && !j->embed) return DQ_OK;
    dq_quantize_feed_expect(j->feed);
    DQ_TRY(dq_calib_pass_new(&j->pass, j->m, j->b, &c->text, err));
    DQ_TRY(dq_hessian_new(&j->h, dq_calib_pass_widest(j->m), j->pass.max_rows, err));
    const int streams = c->set.rule->aligns ? 2 : 1;
    DQ_TRY(dq_activations_open(&j->act, j->b, c->set.out, j->pass.n_rows, j->m->dim, streams,
                               dq_calib_pass_widest(j->m), err));
    if (streams == 2) {
        DQ_TRY(dq_reference_new(&j->ref, &j->act, j->m, j->pass.max_rows, err));
        DQ_TRY(dq_value_maps_new(&j->maps, j->m, dq_calib_text_longest(&c->text), err));
    }
    DQ_TRY(dq_calibrate_job_run_embedding(j, err));
    for (int i = 0; i < j->n_layers; i++) DQ_TRY(dq_calibrate_job_run_layer(j, i, err));
    return j->head ? dq_calibrate_job_run_head(j, err) : DQ_OK;
}

/* What went with chunks, of all ranks. */
static dq_status sum_flop(dq_calibrate_info *info, dq_err *err)
{
    static const dq_calibrate_part parts[] = {DQ_CALIBRATE_FORWARD, DQ_CALIBRATE_MAPS,
                                              DQ_CALIBRATE_HESSIANS};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int64_t flop = (int64_t)info->flop[parts[i]];
        DQ_TRY(dq_ranks_sum(&flop, err));
        info->flop[parts[i]] = (double)flop;
    }
    return DQ_OK;
}

static dq_status run(void *arg, dq_quantize_feed *feed, dq_err *err)
{
    dq_calibrate *c = arg;
    dq_calibrate_job j = {.c = c,
                          .q = dq_quantize_feed_quantizer(feed),
                          .feed = feed,
                          .m = dq_quantize_feed_model(feed),
                          .b = c->set.backend,
                          .act.file.fd = -1};
    if (dq_model_check_weights(j.m, err) == DQ_OK) run_job(&j, err);
    if (err->code == DQ_OK) sum_flop(&c->info, err);
    dq_reference_free(&j.ref);
    dq_value_maps_free(j.maps);
    dq_activations_close(&j.act);
    dq_hessian_free(j.h);
    dq_calib_pass_end(&j.pass);
    dq_err ignore = {0};
    dq_backend_sync(j.b, &ignore);
    return err->code;
}

static void expect(void *arg, const dq_quantizer *q, dq_quantize_feed *feed, dq_pace *p)
{
    dq_calibrate *c = arg;
    dq_calibrate_job j = {.c = c, .q = q, .feed = feed, .m = c->m};
    dq_calibrate_job_find_left(&j);
    dq_calibrate_pace_expect(&j, p);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static dq_status begin(void *arg, const dq_model *m, dq_quantize_needs *out, dq_err *err)
{
    dq_calibrate *c = arg;
    const dq_calib_text *t = &c->text;
    DQ_TRY(dq_calib_text_read(&c->text, c->set.path, m, c->set.tokens, c->set.ctx, c->set.part,
                              c->arena, err));
    if (c->set.sha256 && strcmp(t->sha256, c->set.sha256) != 0)
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: is not the text that the recipe was planned with (its SHA-256 is %.12s..., "
            "expected %.12s...). Give that text, or take \"calib\" out of the recipe's plan.",
            c->set.path, t->sha256, c->set.sha256);
    c->m = m;
    c->info.text = t;
    c->info.inputs = dq_calib_pass_widest(m);
    c->info.scratch_bytes = dq_activations_bytes(t->n_ids, m->dim, c->set.rule->aligns ? 2 : 1,
                                                 dq_calib_pass_widest(m));
    out->scratch_bytes = c->info.scratch_bytes;
    json_t *o = out->calib = json_object();
    const char *file = base_name(c->set.path);
    int64_t first;
    if (dq_utf8_check(file, strlen(file), &first) > 0)
        return dq_fail(err, DQ_USAGE, "%s: the name of the calibration text is not UTF-8",
                       c->set.path);
    json_object_set_new(o, "file", json_string(file));
    json_object_set_new(o, "sha256", json_string(t->sha256));
    json_object_set_new(o, "sketch", dq_calib_text_sketch(t));
    json_object_set_new(o, "tokens", json_integer(t->n_ids));
    json_object_set_new(o, "sequences", json_integer(t->n_seq));
    json_object_set_new(o, "ctx", json_integer(t->ctx));
    json_object_set_new(o, "damping", json_string(DQ_CALIBRATE_DAMPING));
    const size_t members = c->set.rule->aligns ? 8 : 7;
    if (c->set.rule->aligns) json_object_set_new(o, "values", json_string("maps"));
    const bool all = c->set.part == DQ_CALIB_TEXT_ALL;
    if (!all) json_object_set_new(o, "quarters", dq_calib_text_quarters(c->set.part));
    return json_object_size(o) == members + !all ? DQ_OK
                                                 : dq_fail(err, DQ_RESOURCE, "out of memory");
}

dq_status dq_calibrate_new(dq_calibrate **out, const dq_calibrate_settings *s, dq_err *err)
{
    dq_calibrate *c = *out = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    c->set = *s;
    c->rates = dq_calibrate_pace_usual;
    if (c->set.part == 0) c->set.part = DQ_CALIB_TEXT_ALL;
    c->method = (dq_quantize_method){
        .name = s->rule->name, .begin = begin, .run = run, .expect = expect, .arg = c};
    c->arena = dq_arena_new();
    if (c->arena) return DQ_OK;
    dq_calibrate_free(c);
    *out = NULL;
    return dq_fail(err, DQ_RESOURCE, "out of memory");
}

void dq_calibrate_free(dq_calibrate *c)
{
    if (!c) return;
    dq_arena_free(c->arena);
    dq_block_free(c);
}

const dq_calibrate_info *dq_calibrate_result(const dq_calibrate *c)
{
    return &c->info;
}

const dq_quantize_method *dq_calibrate_method(const dq_calibrate *c)
{
    return &c->method;
}
