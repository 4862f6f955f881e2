/* A kind begins with the ratio of all kinds, and its own takes over within few seconds of its
 * work.
 * SPDX-License-Identifier: MIT */
#include "work/work.h"

#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "base/random.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static dq_status journal_read(dq_journal_lines *found, const char *path, dq_arena *a, dq_err *err);

/* A kind's own times count once so many seconds, or this share of it, are done. */
static const double few_seconds = 0.2, few = 0.02;

void dq_pace_begin(dq_pace *p, double now)
{
    memset(p, 0, sizeof *p);
    p->last = now;
}

void dq_pace_expect(dq_pace *p, int kind, double seconds)
{
    const double left = p->left[kind] + seconds;
    p->left[kind] = left > 0 ? left : 0;
}

void dq_pace_step(dq_pace *p, int kind, double seconds, double now)
{
    p->done[kind] += seconds;
    p->taken[kind] += now - p->last;
    p->last = now;
    dq_pace_expect(p, kind, -seconds);
}

static double sum(const double x[DQ_PACE_KINDS])
{
    double all = 0;
    for (int k = 0; k < DQ_PACE_KINDS; k++) all += x[k];
    return all;
}

double dq_pace_taken(const dq_pace *p)
{
    return sum(p->taken);
}

/* Seconds per expected second; `before` is the estimate until much is done. */
static double ratio(double taken, double done, double left, double before)
{
    const double some = few * (done + left), weight = some < few_seconds ? some : few_seconds;
    return done + weight > 0 ? (taken + before * weight) / (done + weight) : before;
}

double dq_pace_left(const dq_pace *p)
{
    const double all = ratio(sum(p->taken), sum(p->done), sum(p->left), 1);
    double left = 0;
    for (int k = 0; k < DQ_PACE_KINDS; k++)
        left += p->left[k] * ratio(p->taken[k], p->done[k], p->left[k], all);
    return left;
}

/* Reals are hexadecimal, so that they come back to the bit. A file is read entirely before anything
 * is added. */

dq_status dq_part_add(dq_journal *j, json_t *step, dq_err *err)
{
    char *text;
    dq_json_dump(&text, step, JSON_COMPACT, err);
    json_decref(step);
    if (text) dq_journal_add(j, text, strlen(text), err);
    free(text);
    return err->code;
}

dq_status dq_part_end(dq_journal *j, dq_err *err)
{
    json_t *o = json_object();
    json_object_set_new(o, "end", json_true());
    return dq_part_add(j, o, err) == DQ_OK ? dq_journal_sync(j, err) : err->code;
}

static bool is_end(const json_t *step)
{
    return json_is_true(json_object_get(step, "end"));
}

dq_status dq_part_check(const json_t *head, const dq_part_head *want, bool any_shard, dq_err *err)
{
    const char *text;
    DQ_TRY(dq_json_text(&text, head, "schema", NULL, err));
    if (strcmp(text, want->schema) != 0)
        return dq_fail(err, DQ_MISMATCH, "is not a state file of this dq (expected %s)",
                       want->schema);
    DQ_TRY(dq_json_text(&text, head, "key", NULL, err));
    if (strcmp(text, want->key) != 0)
        return dq_fail(err, DQ_MISMATCH, "belongs to a run with other inputs or settings");
    if (any_shard) return DQ_OK;
    const json_int_t shard = json_integer_value(json_object_get(head, "shard"));
    const json_int_t n = json_integer_value(json_object_get(head, "shards"));
    if (shard == want->shard && n == want->n_shards) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "is part %lld of %lld, and not %d of %d", (long long)shard,
                   (long long)n, want->shard, want->n_shards);
}

static dq_status take_lines(bool *ended, const dq_journal_lines *found, dq_part_take *take,
                            void *arg, dq_err *err)
{
    *ended = false;
    for (int64_t i = 0; err->code == DQ_OK && i < found->n; i++) {
        json_t *step = NULL;
        if (dq_json_parse(&step, found->text[i], strlen(found->text[i]), "step", err) == DQ_OK) {
            *ended = i > 0 && is_end(step);
            if (!*ended) take(arg, i, step, err);
        }
        json_decref(step);
    }
    return err->code;
}

dq_status dq_part_read(const char *path, dq_part_take *take, void *arg, dq_err *err)
{
    dq_journal_lines found;
    bool ended = false;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (journal_read(&found, path, a, err) == DQ_OK) {
        take_lines(&ended, &found, take, arg, err);
        if (err->code == DQ_OK && !ended) dq_fail(err, DQ_MISMATCH, "is not finished");
        if (err->code != DQ_OK) dq_in(err, "%s: ", path);
    }
    dq_arena_free(a);
    return err->code;
}

dq_status dq_part_resume(dq_journal **j, bool *ended, const char *path, dq_part_take *take,
                         void *arg, dq_err *err)
{
    dq_journal_lines found;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_journal_resume(j, path, DQ_JOURNAL_REFUSE, &found, a, err) == DQ_OK &&
        take_lines(ended, &found, take, arg, err) != DQ_OK) {
        dq_in(err, "%s: ", path);
        dq_journal_close(*j, false);
        *j = NULL;
    }
    dq_arena_free(a);
    return err->code;
}

dq_status dq_part_read_head(json_t **head, bool *ended, const char *path, dq_err *err)
{
    dq_journal_lines found;
    json_t *last = NULL;
    dq_arena *a = dq_arena_new();
    *head = NULL;
    *ended = false;
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (journal_read(&found, path, a, err) == DQ_OK) {
        const char *text = found.n ? found.text[found.n - 1] : "";
        if (found.n == 0) dq_fail(err, DQ_DAMAGED, "%s: has no whole line", path);
        if (err->code == DQ_OK && dq_json_parse(&last, text, strlen(text), path, err) == DQ_OK)
            dq_json_parse(head, found.text[0], strlen(found.text[0]), path, err);
        *ended = err->code == DQ_OK && is_end(last);
    }
    json_decref(last);
    dq_arena_free(a);
    return err->code;
}

void dq_part_put_reals(FILE *f, const char *key, const double *x, int64_t n)
{
    fprintf(f, ", \"%s\": \"", key);
    for (int64_t i = 0; i < n; i++) fprintf(f, "%s%a", i ? " " : "", x[i]);
    fputc('"', f);
}

dq_status dq_part_get_reals(double *x, int64_t n, const json_t *step, const char *key, dq_err *err)
{
    const char *s;
    char *end;
    DQ_TRY(dq_json_text(&s, step, key, NULL, err));
    for (int64_t i = 0; i < n; i++, s = end) {
        x[i] = strtod(s, &end);
        if (end == s || (*end != ' ' && *end)) return dq_fail(err, DQ_DAMAGED, "\"%s\"", key);
    }
    return *s ? dq_fail(err, DQ_DAMAGED, "\"%s\" has too many values", key) : DQ_OK;
}

/* An open file with flock, which the kernel releases when the process ends. Lines go to the last
 * good end, never after a failed write; the lock counts only while the path leads to the file, as
 * its last owner may have removed it. */

struct dq_journal {
    int fd;
    off_t end;  /* of the last whole line */
    int64_t n;  /* lines */
    char *path; /* block */
};

enum { HASH = 64, BEFORE = HASH + 1 }; /* bytes before the text: its hash and a blank */

static bool is_there(const dq_journal *j)
{
    struct stat mine, named;
    return fstat(j->fd, &mine) == 0 && stat(j->path, &named) == 0 && mine.st_dev == named.st_dev &&
           mine.st_ino == named.st_ino;
}

void dq_journal_close(dq_journal *j, bool done)
{
    if (!j) return;
    if (done && is_there(j)) unlink(j->path);
    close(j->fd); /* lets go of the lock */
    dq_block_free(j->path);
    dq_block_free(j);
}

static bool locked_by_another(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool dq_journal_busy(const char *path)
{
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    bool busy = fd >= 0 && locked_by_another(fd);
    if (fd >= 0) close(fd);
    return busy;
}

/* Works without a lock on file systems that have none. */
static dq_status lock_file(dq_journal *j, int flags, dq_err *err)
{
    for (;;) {
        j->fd = open(j->path, O_RDWR | O_NONBLOCK | O_CLOEXEC | flags, 0666);
        if (j->fd < 0) return dq_os_fail(err, j->path, "cannot open for writing");
        if (locked_by_another(j->fd))
            dq_fail(err, DQ_RESOURCE, "%s: another dq is writing to it. Wait for it, or stop it",
                    j->path);
        else if (is_there(j))
            return DQ_OK;
        close(j->fd);
        DQ_TRY(err->code);
    }
}

static dq_status open_file(dq_journal **out, const char *path, int flags, dq_err *err)
{
    dq_journal *j = dq_block_new(1, sizeof *j, err);
    size_t n = strlen(path) + 1;
    *out = NULL;
    if (!j) return err->code;
    j->path = dq_block_new(n, 1, err);
    if (j->path) memcpy(j->path, path, n);
    if (j->path && lock_file(j, flags, err) == DQ_OK) {
        *out = j;
        return DQ_OK;
    }
    dq_block_free(j->path);
    dq_block_free(j);
    return err->code;
}

/* Truncates the file after n lines. */
static dq_status cut(dq_journal *j, size_t end, int64_t n, dq_err *err)
{
    if (ftruncate(j->fd, (off_t)end) != 0) return dq_os_fail(err, j->path, "cannot write");
    j->end = (off_t)end;
    j->n = n;
    return DQ_OK;
}

static dq_status give_up(dq_journal **j, dq_err *err)
{
    dq_journal_close(*j, false);
    *j = NULL;
    return err->code;
}

dq_status dq_journal_new(dq_journal **out, const char *path, dq_err *err)
{
    DQ_TRY(open_file(out, path, O_CREAT, err));
    return cut(*out, 0, 0, err) == DQ_OK ? DQ_OK : give_up(out, err);
}

dq_status dq_journal_clear(dq_journal *j, dq_err *err)
{
    return cut(j, 0, 0, err);
}

int64_t dq_journal_count(const dq_journal *j)
{
    return j->n;
}

dq_status dq_journal_sync(dq_journal *j, dq_err *err)
{
    return fsync(j->fd) == 0 ? DQ_OK : dq_os_fail(err, j->path, "cannot sync");
}

static dq_status write_at(const dq_journal *j, off_t at, const char *p, size_t n, dq_err *err)
{
    while (n > 0) {
        ssize_t k = pwrite(j->fd, p, n, at);
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) errno = ENOSPC;
        if (k <= 0) return dq_os_fail(err, j->path, "cannot write");
        p += k;
        at += k;
        n -= (size_t)k;
    }
    return DQ_OK;
}

dq_status dq_journal_add(dq_journal *j, const char *text, size_t len, dq_err *err)
{
    char before[BEFORE];
    if (memchr(text, '\n', len)) return dq_fail(err, DQ_BUG, "%s: a line of two lines", j->path);
    DQ_TRY(dq_sha256_of(before, text, len, err));
    before[HASH] = ' ';
    const off_t after = j->end + BEFORE + (off_t)len;
    if (write_at(j, j->end, before, BEFORE, err) == DQ_OK &&
        write_at(j, j->end + BEFORE, text, len, err) == DQ_OK &&
        write_at(j, after, "\n", 1, err) == DQ_OK) {
        j->end = after + 1;
        j->n++;
    } else if (ftruncate(j->fd, j->end) != 0) {
        errno =
            0; /* what stays of the line is overwritten by the next, or dropped when it is read */
    }
    return err->code;
}

/* line[len] has no newline. */
static bool has_form(const char *line, size_t len)
{
    if (len < BEFORE || line[HASH] != ' ') return false;
    for (int i = 0; i < HASH; i++) {
        if (!strchr("0123456789abcdef", line[i]) || !line[i]) return false;
    }
    return true;
}

static dq_status check_line(bool *fits, const char *line, size_t len, dq_err *err)
{
    char hex[HASH + 1];
    *fits = has_form(line, len);
    if (!*fits) return DQ_OK;
    DQ_TRY(dq_sha256_of(hex, line + BEFORE, len - BEFORE, err));
    *fits = memcmp(hex, line, HASH) == 0;
    return DQ_OK;
}

/* Lines of text[len] up to *good, where the first invalid one begins. */
static dq_status read_lines(dq_journal_lines *found, size_t *good, char *text, size_t len,
                            dq_journal_damage damage, dq_err *err)
{
    for (char *line = text, *end; (end = memchr(line, '\n', len - *good)); line = end + 1) {
        bool fits;
        DQ_TRY(check_line(&fits, line, (size_t)(end - line), err));
        if (!fits && found->n == 0 && !has_form(line, (size_t)(end - line)))
            return dq_fail(err, DQ_MISMATCH, "is not a journal of this version of dq");
        if (!fits && (damage == DQ_JOURNAL_CUT || end + 1 == text + len)) break;
        if (!fits)
            return dq_fail(err, DQ_DAMAGED, "line %lld was altered (its hash does not fit)",
                           (long long)found->n + 1);
        *end = 0;
        found->text[found->n++] = line + BEFORE;
        *good = (size_t)(end + 1 - text);
    }
    return DQ_OK;
}

/* Lines up to byte *good, after which none is valid. */
static dq_status read_file(dq_journal_lines *found, size_t *good, const char *path,
                           dq_journal_damage damage, dq_arena *a, dq_err *err)
{
    char *text;
    size_t len, max = 0;
    *good = 0;
    DQ_TRY(dq_file_read_small(&text, &len, path, DQ_MAX_JOURNAL, a, err));
    for (size_t i = 0; i < len; i++) max += text[i] == '\n';
    *found = (dq_journal_lines){dq_alloc(a, max, sizeof *found->text, err), 0};
    if (!found->text) return err->code;
    return read_lines(found, good, text, len, damage, err) == DQ_OK ? DQ_OK
                                                                    : dq_in(err, "%s: ", path);
}

/* Reads a file without locking or changing it; a last line cut off is left out. */
static dq_status journal_read(dq_journal_lines *found, const char *path, dq_arena *a, dq_err *err)
{
    size_t good;
    return read_file(found, &good, path, DQ_JOURNAL_REFUSE, a, err);
}

static dq_status take_up(dq_journal *j, dq_journal_damage damage, dq_journal_lines *found,
                         dq_arena *a, dq_err *err)
{
    size_t good;
    DQ_TRY(read_file(found, &good, j->path, damage, a, err));
    return cut(j, good, found->n, err);
}

dq_status dq_journal_resume(dq_journal **out, const char *path, dq_journal_damage damage,
                            dq_journal_lines *found, dq_arena *a, dq_err *err)
{
    DQ_TRY(open_file(out, path, 0, err));
    return take_up(*out, damage, found, a, err) == DQ_OK ? DQ_OK : give_up(out, err);
}
