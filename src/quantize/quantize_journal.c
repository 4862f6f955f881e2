/* quantize_journal: the journal of a container that is written, see quantize_out.h. Its head is on the disk before the partial file
 * exists; the hashes of the source follow when they are known; a line about a payload comes after these and after the payload.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "quantize/quantize_out.h"
#include "quantize/quantize_recipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef dq_quantize_feed work;

/* ---- Lines ---- */

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

dq_status dq_quantize_journal_line(work *w, const char *line, dq_err *err)
{
    return dq_journal_add(w->journal, line, strlen(line), err);
}

dq_status dq_quantize_journal_join(work *w, dq_strbuf *b, dq_err *err)
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
    if (dq_quantize_journal_join(w, &b, err) == DQ_OK) dq_ranks_tell(b.s, b.n, err);
    dq_block_free(b.s);
    return err->code;
}

dq_status dq_quantize_journal_flush(work *w, dq_err *err)
{
    if (w->n_pending == 0) return DQ_OK;
    if (dq_ranks_number() > 0) return tell_pending(w, err);
    DQ_TRY(dq_os_maps_check(err));
    DQ_TRY(dq_quantize_plan_hashes(w->q, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    for (; w->n_sources < w->q->n_files; w->n_sources++) {
        const char *line = source_line(w->q, w->n_sources, err);
        if (!line) return err->code;
        DQ_TRY(dq_quantize_journal_line(w, line, err));
    }
    for (int64_t i = 0; i < w->n_pending; i++)
        DQ_TRY(dq_quantize_journal_line(w, w->pending[i], err));
    DQ_TRY(dq_journal_sync(w->journal, err));
    w->n_done += w->n_pending;
    w->n_pending = 0;
    w->unsynced = 0;
    w->synced = dq_os_seconds();
    return DQ_OK;
}

dq_status dq_quantize_journal_add(work *w, int64_t i, char *line, dq_err *err)
{
    enum { SYNC_BYTES = 256 << 20, SYNC_SECONDS = 2 };
    if (!line) return err->code;
    w->pending[w->n_pending++] = line;
    w->done[i] = true;
    w->unsynced += w->q->skeleton.slot[i].bytes;
    if (w->unsynced < SYNC_BYTES && dq_os_seconds() - w->synced < SYNC_SECONDS) return DQ_OK;
    /* before the source is hashed nothing may be recorded, and waiting for that gains nothing */
    return dq_quantize_plan_hashes_ready(w->q) ? dq_quantize_journal_flush(w, err) : DQ_OK;
}

dq_status dq_quantize_journal_finish(work *w, int64_t i, dq_err *err)
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
    return dq_quantize_journal_add(w, i, line, err);
}

/* ---- What an earlier run left ---- */

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

int64_t dq_quantize_journal_replay(work *w, const char *line)
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
        const int64_t i = dq_quantize_journal_replay(w, w->found.text[k]);
        if (i < 0 || w->done[i]) continue;
        w->done[i] = true;
        w->n_done++;
    }
}

static dq_status write_head(work *w, char **head, int n, dq_err *err)
{
    DQ_TRY(dq_journal_clear(w->journal, err));
    for (int i = 0; i < n; i++) DQ_TRY(dq_quantize_journal_line(w, head[i], err));
    DQ_TRY(dq_journal_sync(w->journal, err));
    DQ_TRY(dq_container_skeleton_create(&w->q->skeleton, w->partial, err));
    DQ_TRY(dq_inplace_file_open(&w->file, w->partial, err));
    DQ_TRY(dq_inplace_file_sync(&w->file, err));
    DQ_TRY(dq_quantize_journal_line(w, "skeleton", err));
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

dq_status dq_quantize_journal_take_up(work *w, bool *finished, dq_err *err)
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
