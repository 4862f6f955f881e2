/* quantize_write: the second half of quantize.h. Ranks write payloads where they belong; the journal is that of rank 0, to which the
 * others tell what they have on the disk. The order of steps makes every moment safe to be killed in: the journal's
 * head is on the disk before the partial file exists; the hashes of the source follow when they are known, perhaps while payloads
 * are written already; a line about a payload comes after these hashes and after the payload; the output appears by one rename.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "model/model.h"
#include "quantize/quantize_out.h"

#include <stdio.h>
#include <string.h>

typedef dq_quantize_feed work;

/* ---- One payload at a time ---- */

static dq_status write_part(void *arg, int part, const void *p, size_t bytes, dq_err *err)
{
    enum { SMALL_BYTES = 1 << 16 };
    work *w = arg;
#pragma omp taskgroup
    {
#pragma omp task if (bytes > SMALL_BYTES) firstprivate(w, part, p, bytes)
        dq_sha256_add(&w->hash[part], p, bytes);
        dq_inplace_file_put(&w->file, w->at[part], p, bytes, err);
        if (bytes > SMALL_BYTES) dq_inplace_file_start(&w->file, w->at[part], bytes);
    }
    w->at[part] += (int64_t)bytes;
    return err->code;
}

static dq_status begin_part(work *w, int part, const dq_slot *s, dq_err *err)
{
    w->at[part] = s->offset;
    return dq_sha256_begin(&w->hash[part], err);
}

/* Slot i is the first part. */
static dq_status run_tensor(work *w, int64_t i, dq_err *err)
{
    dq_slot *s = &w->q->skeleton.slot[i];
    const dq_quantize_tensor *x = &w->q->tensor[s->origin];
    dq_quantize_sink sink = {write_part, w};
    dq_quantize_tick tick = {dq_quantize_plan_advance_job, w->q};
    dq_quant_error e;
    const int n = dq_quantize_out_parts(s);
    for (int k = 0; k < n; k++) DQ_TRY(begin_part(w, k, &s[k], err));
    DQ_TRY(dq_quantize_tensor_write(x, &w->q->buffers, &sink, &e, &tick, err));
    for (int k = n - 1; k >= 0; k--) {
        if (x->format && x->format->part[k].is_codes) s[k].sqnr_db = dq_quant_sqnr_db(&e);
        DQ_TRY(dq_sha256_end(&w->hash[k], s[k].sha256, err));
        DQ_TRY(dq_quantize_journal_finish(w, i + k, err));
    }
    return DQ_OK;
}

static dq_status run_slot(work *w, int64_t i, dq_err *err)
{
    dq_quantizer *q = w->q;
    dq_slot *s = &q->skeleton.slot[i];
    q->what = s->path;
    if (s->origin >= 0) {
        if (dq_quantize_out_done(w, i)) {
            dq_quantize_plan_skip(q, s->origin);
            return DQ_OK;
        }
        dq_quantize_plan_begin_tensor(q, s->origin);
        run_tensor(w, i, err);
        for (int k = 0; k < DQ_MAX_PARTS; k++) dq_sha256_drop(&w->hash[k]);
        return err->code;
    }
    const dq_blob *b = &q->blob[-1 - s->origin];
    if (w->done[i]) return DQ_OK;
    DQ_TRY(dq_sha256_of(s->sha256, b->data, b->bytes, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->offset, b->data, b->bytes, err));
    return dq_quantize_journal_finish(w, i, err);
}

/* /index and the two hashes, which depend on everything else. */
static dq_status write_tables(work *w, dq_err *err)
{
    dq_container_skeleton *s = &w->q->skeleton;
    char sha[65];
    uint8_t *rows = dq_alloc(w->q->arena, (size_t)s->index_bytes, 1, err);
    if (!rows) return err->code;
    DQ_TRY(dq_container_index_encode(rows, s, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->index_at, rows, (size_t)s->index_bytes, err));
    DQ_TRY(dq_sha256_of(sha, rows, (size_t)s->index_bytes, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->index_sha_at, sha, 64, err));
    DQ_TRY(dq_container_content_sha256(w->q->info.content_sha256, s, err));
    return dq_inplace_file_put(&w->file, s->content_at, w->q->info.content_sha256, 64, err);
}

/* ---- Output ---- */

static dq_status name_files(dq_quantizer *q, work *w, const char *out, dq_err *err)
{
    memset(w, 0, sizeof *w);
    w->q = q;
    w->file.fd = -1;
    w->out = out;
    w->partial = dq_textf(q->arena, err, "%s.partial", out);
    w->journal_path = dq_textf(q->arena, err, "%s.journal", out);
    return err->code;
}

const char *const dq_quantize_beside[] = {".journal", NULL};

dq_status dq_quantize_check_output(dq_quantizer *q, const char *out, bool force, bool resume,
                                   dq_err *err)
{
    work w;
    if (dq_ranks_number() > 0) return err->code; /* rank 0 may have begun it */
    DQ_TRY(name_files(q, &w, out, err));
    const dq_output own = {"-o", out, DQ_OUTPUT_HDF5, dq_quantize_beside};
    const char *const input = q->dir;
    DQ_TRY(dq_output_guard_names(&own, 1, &input, 1, err));
    DQ_TRY(dq_file_check(out, err));
    bool half = dq_file_exists(w.partial), journal = dq_file_exists(w.journal_path);
    /* a journal without a partial file: the run may have been killed right after its rename */
    if (dq_file_exists(out) && !force && !(resume && journal && !half))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE}, "%s: exists%s.",
                            out, resume && !half ? ", and there is nothing to resume" : "");
    if (resume && half && !journal)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_START_OVER},
                            "%s: has no journal (%s) to go on from.", w.partial, w.journal_path);
    if (!resume && !force && (half || journal))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_RESUME_OR_FORCE},
                            "%s: exists from an interrupted run.",
                            half ? w.partial : w.journal_path);
    int64_t buffers = dq_file_disk_free(out);
    const int64_t wanted = (half ? 0 : q->info.file_bytes) + q->info.scratch_bytes;
    if (buffers >= 0 && buffers < wanted)
        return dq_fail(err, DQ_FILE,
                       "%s: not enough space (expected %lld bytes, the disk has %lld free).", out,
                       (long long)wanted, (long long)buffers);
    return DQ_OK;
}

/* ---- All payloads ---- */

/* First parts of tensors that are left to write, the largest tensor first. */
typedef struct pieces {
    work *w;
    int64_t *slot;
} pieces;

static int64_t source_bytes(const work *w, int64_t slot)
{
    return (int64_t)dq_tensor_bytes(w->q->tensor[w->q->skeleton.slot[slot].origin].t);
}

static dq_status write_piece(void *arg, int64_t piece, dq_err *err)
{
    const pieces *p = arg;
    DQ_TRY(dq_os_check_stop(err));
    return run_slot(p->w, p->slot[piece], err);
}

/* Lines about payloads that another rank has written. */
static dq_status take_lines(void *arg, const char *text, size_t len, dq_err *err)
{
    work *w = ((pieces *)arg)->w;
    for (const char *end; len > 0 && (end = memchr(text, '\n', len)); text = end + 1) {
        char *line = dq_textf(w->q->arena, err, "%.*s", (int)(end - text), text);
        const int64_t i = line ? dq_quantize_journal_replay(w, line) : 0;
        if (i < 0) return dq_fail(err, DQ_BUG, "told: %s", line);
        DQ_TRY(dq_quantize_journal_add(w, i, line, err));
        const dq_slot *s = &w->q->skeleton.slot[i];
        if (s->encoding != DQ_ENC_PART || s->part == 0) dq_quantize_plan_told(w->q, s->origin);
        len -= (size_t)(end + 1 - text);
    }
    return err->code;
}

static int64_t list_pieces(pieces *p)
{
    work *w = p->w;
    const dq_container_skeleton *s = &w->q->skeleton;
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_slots; i++) {
        const bool later = s->slot[i].encoding == DQ_ENC_PART && s->slot[i].part > 0;
        if (s->slot[i].origin < 0 || later) continue;
        if (dq_ranks_count() > 1 && dq_quantize_out_done(w, i))
            dq_quantize_plan_skip(w->q, s->slot[i].origin);
        else
            p->slot[n++] = i;
    }
    return n;
}

/* Insertion keeps the order of slots among tensors of a size. */
static void largest_first(const pieces *p, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        const int64_t slot = p->slot[i], bytes = source_bytes(p->w, slot);
        int64_t k = i;
        for (; k > 0 && source_bytes(p->w, p->slot[k - 1]) < bytes; k--)
            p->slot[k] = p->slot[k - 1];
        p->slot[k] = slot;
    }
}

/* What the others have not told yet. */
static dq_status collect_lines(pieces *p, dq_err *err)
{
    dq_strbuf b = {0};
    if (dq_ranks_number() > 0) dq_quantize_journal_join(p->w, &b, err);
    dq_ranks_collect(b.s, b.n, take_lines, p, err);
    dq_block_free(b.s);
    return err->code;
}

static dq_status write_tensors(work *w, dq_err *err)
{
    pieces p = {w, dq_alloc(w->q->arena, (size_t)w->q->skeleton.n_slots, sizeof *p.slot, err)};
    const int64_t n = p.slot ? list_pieces(&p) : 0;
    const dq_ranks_work all = {n, write_piece, take_lines, &p};
    if (dq_ranks_count() > 1) largest_first(&p, n);
    DQ_TRY(dq_ranks_run(&all, err));
    return collect_lines(&p, err);
}

/* On rank 0: what is no tensor; the table of source files waits for the hashes, so it comes last. */
static dq_status write_blobs(work *w, dq_err *err)
{
    const dq_quantizer *q = w->q;
    int64_t table = 0;
    for (int64_t i = 0; i < q->skeleton.n_slots; i++) {
        if (q->skeleton.slot[i].origin >= 0) continue;
        if (q->skeleton.slot[i].origin == -1 - q->table)
            table = i;
        else
            DQ_TRY(run_slot(w, i, err));
    }
    DQ_TRY(dq_quantize_plan_hashes(w->q, err));
    return run_slot(w, table, err);
}

/* On rank 0: the file becomes the output. */
static dq_status commit(work *w, dq_err *err)
{
    dq_quantizer *q = w->q;
    char line[80];
    DQ_TRY(dq_quantize_journal_flush(w, err));
    DQ_TRY(write_tables(w, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    DQ_TRY(dq_os_maps_check(err));
    snprintf(line, sizeof line, "complete %s", q->info.content_sha256);
    DQ_TRY(dq_quantize_journal_line(w, line, err));
    DQ_TRY(dq_journal_sync(w->journal, err));
    q->info.file_bytes = q->skeleton.file_bytes;
    return dq_file_commit(w->partial, w->out, err);
}

/* What rank 0 knows of the output. */
static dq_status share_info(dq_quantizer *q, dq_err *err)
{
    DQ_TRY(dq_ranks_share(q->info.content_sha256, sizeof q->info.content_sha256, err));
    dq_ranks_spread(0, &q->info.file_bytes, sizeof q->info.file_bytes);
    dq_ranks_spread(0, &q->info.n_resumed, sizeof q->info.n_resumed);
    return DQ_OK;
}

static dq_status write_all(work *w, dq_err *err)
{
    const bool leads = dq_ranks_number() == 0;
    w->synced = dq_os_seconds();
    write_tensors(w, err);
    if (leads && err->code == DQ_OK) write_blobs(w, err);
    if (leads && err->code != DQ_OK) {
        dq_err later = {0}; /* keep what is done, whatever the first failure was */
        dq_quantize_journal_flush(w, &later);
    }
    if (leads && err->code == DQ_OK) commit(w, err);
    return share_info(w->q, err);
}

/* After a failure: what can be resumed stays, and what an earlier run left, unless nothing can come of it. */
static void clean_up(work *w, dq_err *err)
{
    enum { MAX_TEXT = 600 }; /* so that there is space for what follows */
    dq_err ignore = {0};
    if (!w->journal || err->code == DQ_MISMATCH) return; /* not ours */
    if (err->code == DQ_STOPPED) {
        *err = (dq_err){0};
        dq_fail_with(err, DQ_STOPPED, (dq_remedy){.code = DQ_REMEDY_RESUME},
                     "interrupted; %s is kept.", w->partial);
    } else if (w->broken || (w->n_done == 0 && !w->resume)) {
        dq_file_remove(w->partial, &ignore);
        dq_file_remove(w->journal_path, &ignore);
    } else if (w->n_done > 0 && err->code != DQ_DAMAGED) {
        err->text[MAX_TEXT] = 0;
        dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_RESUMABLE}, ". %.200s is kept", w->partial);
    }
}

/* On ranks other than 0 the partial file is opened, and is to be that of rank 0, which leaves a mark where the index will be. */
static dq_status open_by_ranks(work *w, dq_err *err)
{
    const int64_t at = w->q->skeleton.index_at;
    double mark = dq_os_seconds(), found = -1;
    if (dq_ranks_count() == 1) return DQ_OK;
    if (dq_ranks_number() == 0 &&
        dq_inplace_file_put(&w->file, at, &mark, sizeof mark, err) == DQ_OK)
        dq_inplace_file_sync(&w->file, err);
    DQ_TRY(dq_ranks_share(&mark, sizeof mark, err));
    if (dq_ranks_number() == 0) return dq_ranks_agree(NULL, NULL, err);
    if (dq_inplace_file_open(&w->file, w->partial, err) == DQ_OK)
        dq_inplace_file_get(&w->file, at, &found, sizeof found, err);
    if (found != mark) {
        *err = (dq_err){0};
        dq_fail(err, DQ_FILE,
                "%s: is not the file that rank 0 writes. Write into a folder that all ranks share",
                w->partial);
    }
    return dq_ranks_agree(NULL, NULL, err);
}

/* What rank 0 has taken up or begun, for all: what is done, and where in the file everything lies. */
static dq_status share_start(work *w, dq_err *err)
{
    dq_container_skeleton *s = &w->q->skeleton;
    DQ_TRY(dq_ranks_share(&w->finished, sizeof w->finished, err));
    if (w->finished) return share_info(w->q, err);
    dq_ranks_spread(0, w->done, (size_t)s->n_slots * sizeof *w->done);
    dq_ranks_spread(0, &s->index_at, sizeof s->index_at);
    for (int64_t i = 0; i < s->n_slots; i++) {
        dq_ranks_spread(0, &s->slot[i].offset, sizeof s->slot[i].offset);
        dq_ranks_spread(0, s->slot[i].sha256, sizeof s->slot[i].sha256);
    }
    return open_by_ranks(w, err);
}

/* The scan, and what an earlier run has left. */
static dq_status begin_output(void *arg, dq_err *err)
{
    work *w = arg;
    dq_quantizer *q = w->q;
    DQ_TRY(dq_quantize_plan_scan(q, err));
    w->done = dq_alloc(q->arena, (size_t)q->skeleton.n_slots, sizeof *w->done, err);
    w->pending = dq_alloc(q->arena, (size_t)q->skeleton.n_slots, sizeof *w->pending, err);
    if (err->code == DQ_OK && dq_ranks_number() == 0)
        dq_quantize_journal_take_up(w, &w->finished, err);
    DQ_TRY(share_start(w, err));
    w->synced = dq_os_seconds();
    if (q->set.method) dq_quantize_plan_hashes(q, err);
    return err->code;
}

static dq_status write_output(void *arg, dq_err *err)
{
    work *w = arg;
    DQ_TRY(begin_output(w, err));
    return w->finished ? DQ_OK : write_all(w, err);
}

/* Codes of a method come first, then everything else. */
static dq_status write_with_method(work *w, dq_err *err)
{
    const dq_quantize_method *m = w->q->set.method;
    dq_err later = {0};
    DQ_TRY(dq_quantize_plan_run(w->q, begin_output, w, err));
    if (w->finished) return DQ_OK;
    m->run(m->arg, w, err);
    if (err->code != DQ_OK) {
        w->broken = err->code == DQ_DAMAGED;
        if (dq_ranks_number() == 0) dq_quantize_journal_flush(w, &later); /* keep what is done */
        return err->code;
    }
    if (dq_ranks_number() == 0) dq_quantize_journal_flush(w, err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
#pragma omp parallel
#pragma omp single
    write_all(w, err);
    return err->code;
}

/* Ranks make the same thing of the same thing. */
static dq_status agree(dq_quantizer *q, dq_err *err)
{
    char sha[65] = "";
    const char *text = dq_textf(q->arena, err, "%s %s %s", q->recipe, q->model->fingerprint,
                                q->skeleton.arithmetic);
    if (text) dq_sha256_of(sha, text, strlen(text), err);
    return dq_ranks_agree("set of model, settings and processor", sha, err);
}

dq_status dq_quantize_write(dq_quantizer *q, const char *out, bool force, bool resume,
                            const dq_quantize_progress *p, dq_err *err)
{
    work w;
    dq_quantize_plan_progress(q, p);
    dq_quantize_check_output(q, out, force, resume, err);
    DQ_TRY(agree(q, err));
    DQ_TRY(name_files(q, &w, out, err));
    w.force = force;
    w.resume = resume;
    if (q->set.method)
        write_with_method(&w, err);
    else
        dq_quantize_plan_run(q, write_output, &w, err);
    if (err->code == DQ_OK && dq_ranks_number() == 0) dq_file_remove(w.journal_path, err);
    if (err->code != DQ_OK) clean_up(&w, err);
    dq_inplace_file_close(&w.file);
    dq_journal_close(w.journal, false);
    return err->code;
}
