/* calibrate: see calibrate.h. Chunks are whole sequences and depend on the text alone, so that neither threads nor memory change
 * a byte. calibrate_layer.c takes them through the layers.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_job.h"

#include "base/os.h"
#include "base/utf8.h"
#include "calibrate/calibrate_work.h"
#include "engine/memory_fit.h"
#include "quantize/quantize_tensor.h"

#include <stdio.h>
#include <string.h>

const char *const dq_calibrate_part_name[DQ_CALIBRATE_PARTS] = {"forward", "hessians", "factors",
                                                                "rounding", "files"};

const dq_calibrate_rule dq_calibrate_rules[DQ_CALIBRATE_RULES] = {
    {.name = "gptq",
     .about = "layer by layer, errors of columns made up for by those still to be rounded"},
    {.name = "align",
     .about =
         "the same of weights that first make up for what was lost before them; twice the time",
     .aligns = true,
     .refits = 2},
};

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

/* ---- Sizes ---- */

int64_t dq_calibrate_job_widest(const dq_model *m)
{
    const int64_t y = (int64_t)m->map.n_out * m->map.n_slabs * m->map.head_dim;
    const int64_t other = y > m->ffn ? y : m->ffn;
    return other > m->dim ? other : m->dim;
}

/* ---- Chunks and buffers ---- */

static dq_status list_chunks(dq_calibrate_job *j, dq_arena *a, dq_err *err)
{
    const dq_calib_text *t = &j->c->text;
    int32_t *pos = dq_alloc(a, (size_t)t->n_ids, sizeof *pos, err);
    int32_t *seq = dq_alloc(a, (size_t)t->n_seq, sizeof *seq, err);
    int64_t *cu = dq_alloc(a, 2 * (size_t)t->n_seq, sizeof *cu, err);
    j->chunk = dq_alloc(a, (size_t)t->n_seq, sizeof *j->chunk, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t s = 0, end; s < t->n_seq; s = end) {
        dq_calibrate_chunk *now = &j->chunk[j->n_chunks++];
        now->first = t->cu[s];
        for (end = s + 1; end < t->n_seq && t->cu[end + 1] - now->first <= DQ_CALIBRATE_CHUNK_ROWS;)
            end++;
        now->batch = (dq_batch){.n_seq = (int)(end - s),
                                .n_rows = t->cu[end] - now->first,
                                .cu_rows = cu,
                                .seq = seq,
                                .ids = t->ids + now->first,
                                .pos = pos + now->first};
        for (int64_t i = s; i <= end; i++) *cu++ = t->cu[i] - now->first;
        if (now->batch.n_rows > j->max_rows) j->max_rows = now->batch.n_rows;
    }
    for (int64_t s = 0; s < t->n_seq; s++) {
        for (int64_t i = t->cu[s]; i < t->cu[s + 1]; i++) pos[i] = (int32_t)(i - t->cu[s]);
    }
    return DQ_OK;
}

static dq_mat buffer(dq_calibrate_job *j, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    if (cols > 0) m.p = j->b->ops->alloc(j->b, (size_t)(rows * cols) * sizeof *m.p);
    if (cols > 0 && !m.p)
        dq_fail(&j->b->err, DQ_RESOURCE, "out of memory for a pass of %lld rows of calibration",
                (long long)rows);
    return m;
}

static dq_status make_buffers(dq_calibrate_job *j, dq_err *err)
{
    const dq_model *m = j->m;
    const dq_headmap *a = &m->map;
    const int64_t rows = j->max_rows, ffn_rows = rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS;
    j->y_cols = (int64_t)a->n_out * a->n_slabs * a->head_dim;
    j->x = buffer(j, rows, m->dim);
    j->hidden = buffer(j, rows, m->dim);
    j->q = buffer(j, rows, (int64_t)a->n_q * a->head_dim);
    j->k = buffer(j, rows, (int64_t)a->n_kv * a->head_dim);
    j->v = buffer(j, rows, (int64_t)a->n_kv * a->head_dim);
    j->y = buffer(j, rows, j->y_cols);
    j->angles = buffer(j, rows, a->head_dim);
    j->lambda = buffer(j, rows, m->layout->lambda == DQ_LAMBDA_TOKEN ? a->n_out : 0);
    j->gate = buffer(j, ffn_rows, m->ffn);
    j->up = buffer(j, ffn_rows, m->ffn);
    return dq_backend_sync(j->b, err);
}

static void free_buffers(dq_calibrate_job *j)
{
    const dq_mat all[] = {j->x, j->hidden, j->q,      j->k,    j->v,
                          j->y, j->angles, j->lambda, j->gate, j->up};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) j->b->ops->free(j->b, all[i].p);
}

/* Rows of the embedding as they are read back once it is stored. */
static dq_status round_embedding(const dq_quantize_tensor *t, dq_mat x, dq_err *err)
{
    float *got = dq_block_new((size_t)x.cols, sizeof *got, err);
    int8_t *codes = dq_block_new((size_t)x.cols, sizeof *codes, err);
    for (int64_t r = 0; err->code == DQ_OK && r < x.rows; r++) {
        float *row = x.p + r * x.cols;
        dq_quantize_tensor_read_back(t, row, got, codes);
        memcpy(row, got, (size_t)x.cols * sizeof *row);
    }
    dq_block_free(got);
    dq_block_free(codes);
    return err->code;
}

static dq_status embed(dq_calibrate_job *j, dq_err *err)
{
    const dq_quantize_tensor *t = dq_quantize_feed_tensor(j->feed, j->m->embed.name);
    dq_calibrate_job_begin_part(j->c);
    for (int64_t i = 0; i < j->n_chunks; i++) {
        const dq_calibrate_chunk *k = &j->chunk[i];
        const dq_mat x = dq_calibrate_job_rows(j->x, k->batch.n_rows);
        j->b->ops->embed(j->b, x, &j->m->embed, k->batch.ids);
        DQ_TRY(dq_backend_sync(j->b, err));
        if (j->ref.act) DQ_TRY(dq_reference_put(&j->ref, k->first, x, err));
        if (t) DQ_TRY(round_embedding(t, x, err));
        DQ_TRY(dq_calibrate_job_put_stream(j, k, err));
    }
    return DQ_OK;
}

/* ---- The method ---- */

static dq_status run_job(dq_calibrate_job *j, dq_err *err)
{
    dq_calibrate *c = j->c;
    dq_calibrate_job_find_left(j);
    if (j->n_layers == 0) return DQ_OK;
    if (j->head)
        dq_quantize_feed_expect(
            j->feed, (int64_t)(dq_calibrate_work_head(j->m, c->set.rule, (double)c->text.n_ids) /
                               DQ_CALIBRATE_FLOP_PER_BYTE));
    DQ_TRY(list_chunks(j, c->arena, err));
    DQ_TRY(make_buffers(j, err));
    DQ_TRY(dq_hessian_new(&j->h, dq_calibrate_job_widest(j->m), err));
    const int streams = c->set.rule->aligns ? 2 : 1;
    DQ_TRY(dq_activations_open(&j->act, j->b, c->set.out, c->text.n_ids, j->m->dim, streams,
                               dq_calibrate_job_widest(j->m), err));
    if (streams == 2) DQ_TRY(dq_reference_new(&j->ref, &j->act, j->m, j->max_rows, err));
    DQ_TRY(embed(j, err));
    for (int i = 0; i < j->n_layers; i++) DQ_TRY(dq_calibrate_job_run_layer(j, i, err));
    return j->head ? dq_calibrate_job_run_head(j, err) : DQ_OK;
}

static dq_status run(void *arg, dq_quantize_feed *feed, dq_err *err)
{
    dq_calibrate *c = arg;
    dq_calibrate_job j = {.c = c,
                          .feed = feed,
                          .m = dq_quantize_feed_model(feed),
                          .b = c->set.backend,
                          .act.file.fd = -1};
    run_job(&j, err);
    dq_reference_free(&j.ref);
    dq_activations_close(&j.act);
    dq_hessian_free(j.h);
    free_buffers(&j);
    dq_err ignore = {0};
    dq_backend_sync(j.b, &ignore);
    return err->code;
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
    c->info.inputs = dq_calibrate_job_widest(m);
    c->info.scratch_bytes = dq_activations_bytes(t->n_ids, m->dim, c->set.rule->aligns ? 2 : 1,
                                                 dq_calibrate_job_widest(m));
    out->scratch_bytes = c->info.scratch_bytes;
    out->work = (int64_t)(dq_calibrate_work_all(m, c->set.rule, (double)t->n_ids) /
                          DQ_CALIBRATE_FLOP_PER_BYTE);
    DQ_TRY(dq_cholesky_library(c->lapack, err));
    out->lapack = c->lapack;
    json_t *o = out->calib = json_object();
    const char *file = base_name(c->set.path);
    int64_t first;
    if (dq_utf8_check(file, strlen(file), &first) > 0)
        return dq_fail(err, DQ_USAGE, "%s: the name of the calibration text is not UTF-8",
                       c->set.path);
    json_object_set_new(o, "file", json_string(file));
    json_object_set_new(o, "sha256", json_string(t->sha256));
    json_object_set_new(o, "tokens", json_integer(t->n_ids));
    json_object_set_new(o, "sequences", json_integer(t->n_seq));
    json_object_set_new(o, "ctx", json_integer(t->ctx));
    json_object_set_new(o, "damping", json_real(c->set.damping));
    const bool all = c->set.part == DQ_CALIB_TEXT_ALL;
    if (!all) json_object_set_new(o, "quarters", dq_calib_text_quarters(c->set.part));
    return json_object_size(o) == (all ? 6 : 7) ? DQ_OK
                                                : dq_fail(err, DQ_RESOURCE, "out of memory");
}

dq_status dq_calibrate_new(dq_calibrate **out, const dq_calibrate_settings *s, dq_err *err)
{
    dq_calibrate *c = *out = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    c->set = *s;
    if (c->set.part == 0) c->set.part = DQ_CALIB_TEXT_ALL;
    if (c->set.damping == 0) c->set.damping = DQ_CALIBRATE_DAMPING;
    c->method = (dq_quantize_method){.name = s->rule->name, .begin = begin, .run = run, .arg = c};
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
