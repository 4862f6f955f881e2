/* quantize_scan: hashes of the weight files, and the look at all tensors before anything is written: see quantize_plan.h. A
 * process alone hashes in tasks beside the job; ranks take files and tensors one at a time.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "quantize/quantize_plan.h"

#include <stdlib.h>
#include <string.h>

/* ---- Hashes ---- */

/* Hashes weight file i; a task. */
static void hash_file(dq_quantizer *q, int i, const dq_quantize_tick *tick, dq_err *err)
{
    enum { STEP = 4 << 20 };
    size_t bytes;
    const uint8_t *data;
    dq_sha256 h;
    dq_checkpoint_file(q->checkpoint, i, &bytes, &data);
    if (dq_sha256_begin(&h, err) != DQ_OK) return;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < STEP ? bytes - at : STEP;
        if (atomic_load(&q->give_up) || dq_os_check_stop(err) != DQ_OK) break;
        dq_sha256_add(&h, data + at, n);
        dq_os_map_release(data + at, n);
        tick->step(tick->arg, (int64_t)n);
        at += n;
    }
    if (err->code == DQ_OK)
        dq_sha256_end(&h, q->file_sha[i], err);
    else
        dq_sha256_drop(&h);
    if (err->code == DQ_OK) atomic_fetch_sub(&q->hashing, 1);
}

bool dq_quantize_plan_hashes_ready(const dq_quantizer *q)
{
    return atomic_load(&q->hashing) == 0;
}

dq_status dq_quantize_plan_hashes(dq_quantizer *q, dq_err *err)
{
    if (q->hashed) return DQ_OK;
#pragma omp taskwait
    for (int i = 0; i < q->n_files; i++) {
        const dq_err *e = &q->file_err[i];
        if (e->code != DQ_OK) return dq_fail_as(err, e);
    }
    union { /* the table was allocated by the plan; a blob is read-only for everybody else */
        const void *in;
        uint8_t *out;
    } table = {.in = q->blob[q->table].data};
    dq_container_source_table(table.out, q->n_files, q->file, q->file_bytes,
                              (const char(*)[65])q->file_sha);
    q->hashed = true;
    return DQ_OK;
}

dq_status dq_quantize_plan_run(dq_quantizer *q, dq_status (*job)(void *arg, dq_err *err), void *arg,
                               dq_err *err)
{
    enum { SMALL_BYTES = 4 << 20 }; /* waking threads costs more than this much work */
    q->file_err = dq_alloc(q->arena, (size_t)q->n_files, sizeof *q->file_err, err);
    if (!q->file_err) return err->code;
    const dq_quantize_tick tick = {dq_quantize_plan_advance_hash, q};
    const int tasks = dq_ranks_count() == 1 ? q->n_files : 0;
    atomic_store(&q->hashing, tasks);
    atomic_store(&q->give_up, 0);
    q->hashed = false;
#pragma omp parallel if (q->info.source_bytes > SMALL_BYTES)
#pragma omp single
    {
        for (int i = 0; i < tasks; i++) {
#pragma omp task firstprivate(i)
            hash_file(q, i, &tick, &q->file_err[i]);
        }
        if (job(arg, err) != DQ_OK) atomic_store(&q->give_up, 1);
    }
    return err->code;
}

/* ---- Scan ---- */

/* What ranks tell of a weight file, or of a tensor; factors of columns follow that. */
typedef struct finding {
    int64_t file, tensor; /* the other one is -1 */
    char sha[65];
    dq_dtype scale_dtype;
    dq_grid grid;
} finding;

/* Weight files and tensors, which ranks deal with one at a time, the largest first. */
typedef struct scan_piece {
    int64_t bytes, file, tensor; /* as in a finding */
} scan_piece;
typedef struct scan_job {
    dq_quantizer *q;
    scan_piece *piece;
} scan_job;

static int by_bytes(const void *a, const void *b)
{
    const scan_piece *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->file != y->file) return x->file > y->file ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static dq_status tell_finding(const dq_quantizer *q, const scan_piece *p, dq_err *err)
{
    const dq_quantize_tensor *t = p->tensor >= 0 ? &q->tensor[p->tensor] : NULL;
    const size_t columns = t && t->column ? (size_t)t->cols : 0;
    char *text = dq_block_new(1, sizeof(finding) + columns, err);
    if (!text) return err->code;
    finding f = {.file = p->file, .tensor = p->tensor};
    if (t) f.scale_dtype = t->spec.scale_dtype;
    if (t) f.grid = t->grid;
    if (p->file >= 0) memcpy(f.sha, q->file_sha[p->file], sizeof f.sha);
    memcpy(text, &f, sizeof f);
    if (columns) memcpy(text + sizeof f, t->column, columns);
    dq_ranks_tell(text, sizeof f + columns, err);
    dq_block_free(text);
    return err->code;
}

static dq_status scan_piece_run(void *arg, int64_t i, dq_err *err)
{
    const scan_job *s = arg;
    dq_quantizer *q = s->q;
    const scan_piece *p = &s->piece[i];
    const dq_quantize_tick tick = {
        p->file >= 0 ? dq_quantize_plan_advance_hash : dq_quantize_plan_advance_job, q};
    if (p->file >= 0) {
        atomic_fetch_add(&q->hashing, 1);
        hash_file(q, (int)p->file, &tick, err);
    } else {
        dq_quantize_tensor_scan(&q->tensor[p->tensor], &q->buffers, &tick, err);
    }
    if (err->code != DQ_OK || dq_ranks_number() == 0) return err->code;
    return tell_finding(q, p, err);
}

static dq_status take_finding(void *arg, const char *text, size_t len, dq_err *err)
{
    dq_quantizer *q = ((scan_job *)arg)->q;
    finding f;
    memcpy(&f, text, sizeof f);
    if (f.file >= 0) {
        memcpy(q->file_sha[f.file], f.sha, sizeof f.sha);
        dq_quantize_plan_advance_hash(q, q->file_bytes[f.file]);
        return DQ_OK;
    }
    dq_quantize_tensor *t = &q->tensor[f.tensor];
    t->spec.scale_dtype = f.scale_dtype;
    t->grid = f.grid;
    if (t->column) memcpy(t->column, text + sizeof f, len - sizeof f);
    dq_quantize_plan_advance(q, (int64_t)dq_tensor_bytes(t->t));
    return err->code;
}

/* What rank 0 knows by then. */
static dq_status share_findings(dq_quantizer *q, dq_err *err)
{
    DQ_TRY(dq_ranks_share(q->file_sha, (size_t)q->n_files * sizeof *q->file_sha, err));
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        dq_quantize_tensor *t = &q->tensor[i];
        dq_ranks_spread(0, &t->spec.scale_dtype, sizeof t->spec.scale_dtype);
        dq_ranks_spread(0, &t->grid, sizeof t->grid);
        if (t->column) dq_ranks_spread(0, t->column, (size_t)t->cols);
    }
    return DQ_OK;
}

static dq_status scan_by_ranks(dq_quantizer *q, dq_err *err)
{
    const int64_t n = q->n_files + q->info.n_tensors;
    scan_job job = {q, dq_block_new((size_t)n, sizeof *job.piece, err)};
    if (!job.piece) return dq_ranks_agree(NULL, NULL, err);
    for (int i = 0; i < q->n_files; i++) job.piece[i] = (scan_piece){q->file_bytes[i], i, -1};
    for (int64_t i = 0; i < q->info.n_tensors; i++)
        job.piece[q->n_files + i] = (scan_piece){(int64_t)dq_tensor_bytes(q->tensor[i].t), -1, i};
    qsort(job.piece, (size_t)n, sizeof *job.piece, by_bytes);
    const dq_ranks_work work = {n, scan_piece_run, take_finding, &job};
    if (dq_ranks_run(&work, err) == DQ_OK) share_findings(q, err);
    dq_block_free(job.piece);
    return err->code;
}

static dq_status scan_alone(dq_quantizer *q, dq_err *err)
{
    const dq_quantize_tick tick = {dq_quantize_plan_advance, q};
    for (int64_t i = 0; err->code == DQ_OK && i < q->info.n_tensors; i++)
        dq_quantize_tensor_scan(&q->tensor[i], &q->buffers, &tick, err);
    return err->code;
}

dq_status dq_quantize_plan_scan(dq_quantizer *q, dq_err *err)
{
    dq_quantize_plan_begin(q, DQ_QUANTIZE_SCAN, q->rates.scan);
    dq_ranks_count() == 1 ? scan_alone(q, err) : scan_by_ranks(q, err);
    if (err->code == DQ_STOPPED) {
        *err = (dq_err){0};
        return dq_fail(err, DQ_STOPPED, "interrupted before anything was written");
    }
    if (err->code != DQ_OK) return dq_in(err, "%s: ", q->dir);
    return dq_quantize_plan_slots(q, err);
}
