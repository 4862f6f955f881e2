/* quantize_write: the second half of quantize.h. Ranks write payloads where they belong; the journal is that of rank 0, to which the
 * others tell what they have on the disk. The order of steps makes every moment safe to be killed in: the journal's
 * head is on the disk before the partial file exists; the hashes of the source follow when they are known, perhaps while payloads
 * are written already; a line about a payload comes after these hashes and after the payload; the output appears by one rename.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/inplace_file.h"
#include "base/journal.h"
#include "base/os.h"
#include "base/ranks.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "model/output_guard.h"
#include "quantize/quantize_plan.h"
#include "quantize/quantize_recipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- One payload at a time ---- */

struct dq_quantize_feed {
    dq_quantizer *q;
    const char *out, *partial, *journal_path;
    dq_inplace_file file;
    dq_journal *journal;    /* NULL: not open, or another process has it */
    dq_journal_lines found; /* what an earlier run wrote into it */
    bool *done;             /* [n_slots] */
    int64_t n_done, unsynced;
    double synced; /* time */
    bool force, resume;
    char **pending; /* lines that wait for the payloads to reach the disk */
    int64_t n_pending;
    int n_sources; /* hashes of weight files in the journal */
    /* the parts being written */
    dq_sha256 hash[DQ_MAX_PARTS];
    int64_t at[DQ_MAX_PARTS];
    bool finished; /* by an earlier run */
    bool broken;   /* the method found damage, which every run finds again */
};
typedef dq_quantize_feed work;

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

/* A line of the journal about names, which may hold anything; NULL: see err. */
static char *one_line(char *text)
{
    if (text) dq_one_line(text);
    return text;
}

/* What a resumed run must find unchanged in the source. */
static char *source_line(dq_quantizer *q, int i, dq_err *err)
{
    return one_line(dq_textf(q->arena, err, "file %s %lld %s", q->file[i],
                             (long long)q->file_bytes[i], q->file_sha[i]));
}

static dq_status add_line(work *w, const char *line, dq_err *err)
{
    return dq_journal_add(w->journal, line, strlen(line), err);
}

/* The pending lines, whose payloads are on the disk, as one text. */
static dq_status join_pending(work *w, dq_strbuf *b, dq_err *err)
{
    DQ_TRY(dq_os_maps_check(err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    for (int64_t i = 0; i < w->n_pending; i++) {
        DQ_TRY(dq_strbuf_add(b, w->pending[i], strlen(w->pending[i]), err));
        DQ_TRY(dq_strbuf_add(b, "\n", 1, err));
    }
    w->n_pending = w->unsynced = 0;
    w->synced = dq_os_seconds();
    return DQ_OK;
}

/* On ranks other than 0. */
static dq_status tell_pending(work *w, dq_err *err)
{
    dq_strbuf b = {0};
    if (join_pending(w, &b, err) == DQ_OK) dq_ranks_tell(b.s, b.n, err);
    dq_block_free(b.s);
    return err->code;
}

static dq_status flush(work *w, dq_err *err)
{
    if (w->n_pending == 0) return DQ_OK;
    if (dq_ranks_number() > 0) return tell_pending(w, err);
    DQ_TRY(dq_os_maps_check(err));
    DQ_TRY(dq_quantize_plan_hashes(w->q, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    for (; w->n_sources < w->q->n_files; w->n_sources++) {
        const char *line = source_line(w->q, w->n_sources, err);
        if (!line) return err->code;
        DQ_TRY(add_line(w, line, err));
    }
    for (int64_t i = 0; i < w->n_pending; i++) DQ_TRY(add_line(w, w->pending[i], err));
    DQ_TRY(dq_journal_sync(w->journal, err));
    w->n_done += w->n_pending;
    w->n_pending = 0;
    w->unsynced = 0;
    w->synced = dq_os_seconds();
    return DQ_OK;
}

/* A line about slot i, whose payload is written. */
static dq_status add_pending(work *w, int64_t i, char *line, dq_err *err)
{
    enum { SYNC_BYTES = 256 << 20, SYNC_SECONDS = 2 };
    if (!line) return err->code;
    w->pending[w->n_pending++] = line;
    w->done[i] = true;
    w->unsynced += w->q->skeleton.slot[i].bytes;
    if (w->unsynced < SYNC_BYTES && dq_os_seconds() - w->synced < SYNC_SECONDS) return DQ_OK;
    /* before the source is hashed nothing may be recorded, and waiting for that gains nothing */
    return dq_quantize_plan_hashes_ready(w->q) ? flush(w, err) : DQ_OK;
}

static dq_status finish_slot(work *w, int64_t i, dq_err *err)
{
    dq_slot *s = &w->q->skeleton.slot[i];
    uint64_t sqnr;
    memcpy(&sqnr, &s->sqnr_db, sizeof sqnr);
    const double loss = s->origin >= 0 ? w->q->loss[s->origin] : (double)NAN;
    uint64_t bits;
    memcpy(&bits, &loss, sizeof bits);
    char *line = dq_textf(w->q->arena, err, "done %lld %s %016llx", (long long)i, s->sha256,
                          (unsigned long long)sqnr);
    if (line && loss == loss)
        line = dq_textf(w->q->arena, err, "%s %016llx", line, (unsigned long long)bits);
    return add_pending(w, i, line, err);
}

static dq_status begin_part(work *w, int part, const dq_slot *s, dq_err *err)
{
    w->at[part] = s->offset;
    return dq_sha256_begin(&w->hash[part], err);
}

static int n_parts(const dq_slot *s)
{
    return s->encoding == DQ_ENC_PART ? s->weight.format->n_parts : 1;
}

/* Slot i is the first part. */
static bool is_done(const work *w, int64_t i)
{
    bool done = true;
    for (int k = 0; k < n_parts(&w->q->skeleton.slot[i]); k++) done = done && w->done[i + k];
    return done;
}

/* Likewise. */
static dq_status run_tensor(work *w, int64_t i, dq_err *err)
{
    dq_slot *s = &w->q->skeleton.slot[i];
    const dq_quantize_tensor *x = &w->q->tensor[s->origin];
    dq_quantize_sink sink = {write_part, w};
    dq_quantize_tick tick = {dq_quantize_plan_advance_job, w->q};
    dq_quant_error e;
    const int n = n_parts(s);
    for (int k = 0; k < n; k++) DQ_TRY(begin_part(w, k, &s[k], err));
    DQ_TRY(dq_quantize_tensor_write(x, &w->q->buffers, &sink, &e, &tick, err));
    for (int k = n - 1; k >= 0; k--) {
        if (x->format && x->format->part[k].is_codes) s[k].sqnr_db = dq_quant_sqnr_db(&e);
        DQ_TRY(dq_sha256_end(&w->hash[k], s[k].sha256, err));
        DQ_TRY(finish_slot(w, i + k, err));
    }
    return DQ_OK;
}

static dq_status run_slot(work *w, int64_t i, dq_err *err)
{
    dq_quantizer *q = w->q;
    dq_slot *s = &q->skeleton.slot[i];
    q->what = s->path;
    if (s->origin >= 0) {
        if (is_done(w, i)) {
            dq_quantize_plan_advance(q, (int64_t)dq_tensor_bytes(q->tensor[s->origin].t));
            return DQ_OK;
        }
        run_tensor(w, i, err);
        for (int k = 0; k < DQ_MAX_PARTS; k++) dq_sha256_drop(&w->hash[k]);
        return err->code;
    }
    const dq_blob *b = &q->blob[-1 - s->origin];
    if (w->done[i]) return DQ_OK;
    DQ_TRY(dq_sha256_of(s->sha256, b->data, b->bytes, err));
    DQ_TRY(dq_inplace_file_put(&w->file, s->offset, b->data, b->bytes, err));
    return finish_slot(w, i, err);
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

/* ---- Journal ---- */

enum { HEAD_EXTRA = 8 };

/* The lines that a resumed run must find unchanged, without those of the source's files. */
static char **head_lines(dq_quantizer *q, int *count, dq_err *err)
{
    int n = 0;
    char **line = dq_alloc(q->arena, (size_t)(q->n_blobs + HEAD_EXTRA), sizeof *line, err);
    if (!line) return NULL;
    line[n++] = dq_textf(q->arena, err, "dq-journal 3");
    line[n++] = dq_textf(q->arena, err, "version %s", q->set.dq_version);
    line[n++] = dq_textf(q->arena, err, "settings %s", q->recipe);
    line[n++] =
        one_line(dq_textf(q->arena, err, "source %s %s", q->model->name, q->model->fingerprint));
    if (*q->skeleton.arithmetic) /* codes of a method stand on the forward pass */
        line[n++] = dq_textf(q->arena, err, "codes made with %s", q->skeleton.arithmetic);
    for (int i = 0; i < q->n_blobs; i++) {
        char sha[65];
        if (i == q->table || dq_sha256_of(sha, q->blob[i].data, q->blob[i].bytes, err) != DQ_OK)
            continue;
        line[n++] = dq_textf(q->arena, err, "payload %s %s", q->blob[i].path, sha);
    }
    line[n++] = dq_textf(q->arena, err, "begin");
    *count = n;
    return err->code == DQ_OK ? line : NULL;
}

static dq_status compare_line(const work *w, int64_t i, const char *want, dq_err *err)
{
    const char *found = i < w->found.n ? w->found.text[i] : want; /* killed before this line */
    if (strcmp(found, want) == 0) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_REPEAT_OR_FORCE},
                        "%s: begun with another source or other settings (%s).", w->partial,
                        dq_quantize_recipe_changes(w->q->arena, found, want, err));
}

/* Whether an earlier run got as far as payloads that can be taken over: its journal has the head, then
 * "skeleton", then the source's files. DQ_MISMATCH when any of these is about something else. */
static dq_status compare_journal(const work *w, char **head, int n, bool *usable, dq_err *err)
{
    dq_quantizer *q = w->q;
    *usable = false;
    for (int i = 0; i < n; i++) DQ_TRY(compare_line(w, i, head[i], err));
    if (w->found.n <= n + q->n_files) return DQ_OK;
    for (int i = 0; i < q->n_files; i++) {
        const char *line = source_line(q, i, err);
        if (!line) return err->code;
        DQ_TRY(compare_line(w, n + 1 + i, line, err));
    }
    *usable = true;
    return DQ_OK;
}

/* "done INDEX SHA256 SQNR", and the loss of a method: the results of a payload that is in the file already. Its index; -1: it is no
 * such line. */
static int64_t replay(work *w, const char *line)
{
    dq_container_skeleton *s = &w->q->skeleton;
    long long i;
    char sha[65];
    unsigned long long bits, more;
    const int n = sscanf(line, "done %lld %64[0-9a-f] %llx %llx", &i, sha, &bits, &more);
    if (n < 3 || i < 0 || i >= s->n_slots || strlen(sha) != 64) return -1;
    uint64_t sqnr = bits;
    memcpy(s->slot[i].sha256, sha, sizeof sha);
    memcpy(&s->slot[i].sqnr_db, &sqnr, sizeof sqnr);
    if (n == 4 && s->slot[i].origin >= 0) {
        const uint64_t loss = more;
        memcpy(&w->q->loss[s->slot[i].origin], &loss, sizeof loss);
    }
    return i;
}

/* Of lines that an earlier run wrote. */
static void replay_found(work *w, int64_t first)
{
    for (int64_t k = first; k < w->found.n; k++) {
        const int64_t i = replay(w, w->found.text[k]);
        if (i < 0 || w->done[i]) continue;
        w->done[i] = true;
        w->n_done++;
    }
}

static dq_status write_head(work *w, char **head, int n, dq_err *err)
{
    DQ_TRY(dq_journal_clear(w->journal, err));
    for (int i = 0; i < n; i++) DQ_TRY(add_line(w, head[i], err));
    DQ_TRY(dq_journal_sync(w->journal, err));
    DQ_TRY(dq_container_skeleton_create(&w->q->skeleton, w->partial, err));
    DQ_TRY(dq_inplace_file_open(&w->file, w->partial, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    DQ_TRY(add_line(w, "skeleton", err));
    return dq_journal_sync(w->journal, err);
}

/* The journal says "complete SHA" once the partial file is whole. True when `out` is that file: the
 * earlier run was killed between the rename and the removal of its journal. */
static bool finished_before(work *w)
{
    char sha[65] = "";
    dq_err ignore = {0};
    dq_container *c;
    if (w->found.n == 0 || dq_file_exists(w->partial)) return false;
    const char *last = w->found.text[w->found.n - 1];
    if (sscanf(last, "complete %64[0-9a-f]", sha) != 1) return false;
    if (dq_container_open(&c, w->out, &ignore) != DQ_OK) return false;
    bool same = strcmp(dq_container_header(c)->content_sha256, sha) == 0;
    if (same) w->q->info.file_bytes = dq_container_header(c)->file_bytes;
    dq_container_close(c);
    if (same) memcpy(w->q->info.content_sha256, sha, sizeof sha);
    return same;
}

/* What is in it counts only where it is resumed. */
static dq_status open_journal(work *w, dq_err *err)
{
    if (!w->resume || !dq_file_exists(w->journal_path))
        return dq_journal_new(&w->journal, w->journal_path, err);
    dq_journal_resume(&w->journal, w->journal_path, DQ_JOURNAL_CUT, &w->found, w->q->arena, err);
    if (err->code != DQ_MISMATCH) return err->code;
    const dq_err why = *err;
    *err = (dq_err){0};
    return dq_fail_with(err, why.code, (dq_remedy){.code = DQ_REMEDY_START_OVER}, "%s.", why.text);
}

/* Takes up an earlier run's files, or begins. *finished: nothing is left to do. */
static dq_status take_up(work *w, bool *finished, dq_err *err)
{
    int n;
    char **head = head_lines(w->q, &n, err);
    *finished = false;
    if (!head) return err->code;
    DQ_TRY(open_journal(w, err));
    bool usable = false;
    if (w->found.n > 0) {
        DQ_TRY(dq_quantize_plan_hashes(w->q, err));
        DQ_TRY(compare_journal(w, head, n, &usable, err));
    }
    if (usable) {
        w->n_sources = w->q->n_files;
        replay_found(w, n + 1 + w->n_sources);
        *finished = finished_before(w);
        if (*finished) return DQ_OK;
    }
    if (usable && dq_file_exists(w->partial)) {
        w->q->info.n_resumed = w->n_done;
        DQ_TRY(dq_inplace_file_open(&w->file, w->partial, err));
    } else {
        if (!w->force && dq_file_exists(w->out))
            return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE}, "%s: exists.",
                                w->out);
        w->n_done = w->n_sources = 0;
        memset(w->done, 0, (size_t)w->q->skeleton.n_slots * sizeof *w->done);
        DQ_TRY(write_head(w, head, n, err));
    }
    return dq_container_skeleton_locate(&w->q->skeleton, w->partial, err);
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
        const int64_t i = line ? replay(w, line) : 0;
        if (i < 0) return dq_fail(err, DQ_BUG, "told: %s", line);
        DQ_TRY(add_pending(w, i, line, err));
        const dq_slot *s = &w->q->skeleton.slot[i];
        if (s->encoding != DQ_ENC_PART || s->part == 0)
            dq_quantize_plan_advance(w->q, source_bytes(w, i));
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
        if (dq_ranks_count() > 1 && is_done(w, i))
            dq_quantize_plan_advance(w->q, source_bytes(w, i));
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
    if (dq_ranks_number() > 0) join_pending(p->w, &b, err);
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
    DQ_TRY(flush(w, err));
    DQ_TRY(write_tables(w, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    DQ_TRY(dq_os_maps_check(err));
    snprintf(line, sizeof line, "complete %s", q->info.content_sha256);
    DQ_TRY(add_line(w, line, err));
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
        flush(w, &later);
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

/* What rank 0 has taken up or begun, for all: what is done, and where in the file everything lies. */
static dq_status share_start(work *w, dq_err *err)
{
    dq_container_skeleton *s = &w->q->skeleton;
    DQ_TRY(dq_ranks_share(&w->finished, sizeof w->finished, err));
    if (w->finished) return share_info(w->q, err);
    dq_ranks_spread(0, w->done, (size_t)s->n_slots * sizeof *w->done);
    for (int64_t i = 0; i < s->n_slots; i++) {
        dq_ranks_spread(0, &s->slot[i].offset, sizeof s->slot[i].offset);
        dq_ranks_spread(0, s->slot[i].sha256, sizeof s->slot[i].sha256);
    }
    if (dq_ranks_number() > 0) dq_inplace_file_open(&w->file, w->partial, err);
    return dq_ranks_agree(NULL, NULL, err);
}

/* The scan, and what an earlier run has left. */
static dq_status begin_output(void *arg, dq_err *err)
{
    work *w = arg;
    dq_quantizer *q = w->q;
    DQ_TRY(dq_quantize_plan_scan(q, err));
    w->done = dq_alloc(q->arena, (size_t)q->skeleton.n_slots, sizeof *w->done, err);
    w->pending = dq_alloc(q->arena, (size_t)q->skeleton.n_slots, sizeof *w->pending, err);
    if (err->code == DQ_OK && dq_ranks_number() == 0) take_up(w, &w->finished, err);
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
        if (dq_ranks_number() == 0) flush(w, &later); /* keep what is done */
        return err->code;
    }
    if (dq_ranks_number() == 0) flush(w, err);
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

/* ---- What a method gives ---- */

const dq_model *dq_quantize_feed_model(const dq_quantize_feed *f)
{
    return f->q->model;
}

const dq_quantize_tensor *dq_quantize_feed_tensor(const dq_quantize_feed *f, const char *name)
{
    int64_t low = 0, high = f->q->info.n_tensors; /* in name order */
    while (low < high) {
        const int64_t at = (low + high) / 2;
        const int order = strcmp(name, f->q->tensor[at].t->name);
        if (order == 0) return &f->q->tensor[at];
        if (order < 0)
            high = at;
        else
            low = at + 1;
    }
    return NULL;
}

/* Its first part. */
static int64_t slot_of(const dq_quantize_feed *f, const dq_quantize_tensor *t)
{
    int64_t i = 0;
    while (f->q->skeleton.slot[i].origin != t - f->q->tensor) i++;
    return i;
}

bool dq_quantize_feed_done(const dq_quantize_feed *f, const dq_quantize_tensor *t)
{
    return is_done(f, slot_of(f, t));
}

dq_status dq_quantize_feed_take(dq_quantize_feed *f, const dq_quantize_tensor *t, dq_coded *out,
                                dq_err *err)
{
    const int64_t i = slot_of(f, t);
    dq_coded_new(out, t->rows, t->cols, &t->spec, err);
    for (int k = 0; err->code == DQ_OK && dq_ranks_number() == 0 && k < t->format->n_parts; k++) {
        const dq_slot *s = &f->q->skeleton.slot[i + k];
        char sha[65];
        uint8_t *part = dq_coded_part(out, k);
        if (dq_inplace_file_get(&f->file, s->offset, part, (size_t)s->bytes, err) == DQ_OK &&
            dq_sha256_of(sha, part, (size_t)s->bytes, err) == DQ_OK &&
            memcmp(sha, s->sha256, 64) != 0)
            dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_START_OVER},
                         "%s: %s is not what an earlier run wrote.", f->partial, s->path);
    }
    dq_ranks_agree(NULL, NULL, err);
    for (int k = 0; err->code == DQ_OK && k < t->format->n_parts; k++)
        dq_ranks_spread(0, dq_coded_part(out, k), (size_t)f->q->skeleton.slot[i + k].bytes);
    if (err->code != DQ_OK) dq_coded_free(out);
    return err->code;
}

/* On ranks other than 0. */
static void mark_done(dq_quantize_feed *f, int64_t i)
{
    for (int k = 0; k < n_parts(&f->q->skeleton.slot[i]); k++) f->done[i + k] = true;
}

dq_status dq_quantize_feed_put(dq_quantize_feed *f, const dq_quantize_tensor *t, const dq_weight *w,
                               double loss, dq_err *err)
{
    dq_slot *s = &f->q->skeleton.slot[slot_of(f, t)];
    const int n = n_parts(s);
    dq_quant_error e;
    if (dq_ranks_number() > 0) {
        mark_done(f, s - f->q->skeleton.slot);
        return DQ_OK;
    }
    DQ_TRY(dq_quantize_tensor_error(&e, t, w, err));
    f->q->loss[t - f->q->tensor] = loss;
    for (int k = 0; k < n; k++) {
        const dq_part p = dq_weight_part(w, k);
        if ((int64_t)dq_weight_part_bytes(&p) != s[k].bytes)
            return dq_fail(err, DQ_BUG, "%s: of another size than planned", s[k].path);
        DQ_TRY(dq_sha256_of(s[k].sha256, p.data, (size_t)s[k].bytes, err));
        DQ_TRY(dq_inplace_file_put(&f->file, s[k].offset, p.data, (size_t)s[k].bytes, err));
        if (t->format->part[k].is_codes) s[k].sqnr_db = dq_quant_sqnr_db(&e);
    }
    for (int k = n - 1; k >= 0; k--) DQ_TRY(finish_slot(f, s - f->q->skeleton.slot + k, err));
    return flush(f, err); /* it took longer than a sync does */
}

void dq_quantize_feed_advance(dq_quantize_feed *f, int64_t work_done, const char *what)
{
    f->q->what = what;
    dq_quantize_plan_advance(f->q, work_done);
}

void dq_quantize_feed_expect(dq_quantize_feed *f, int64_t more)
{
    f->q->total += (double)more;
}
