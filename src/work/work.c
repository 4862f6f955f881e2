/* A kind begins with the ratio of all kinds, and its own takes over within few seconds of its
 * work.
 * SPDX-License-Identifier: MIT */
#include "work/work.h"

#include "base/file.h"
#include "base/os.h"
#include "base/random.h"
#include "work/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* ---- The file of a ledger: a SHA-256, a blank and the text in every line ----
 * It has a flock, which the kernel releases when the process ends. Lines go to the last good end,
 * never after a failed write; the lock counts only while the path leads to the file, as its last
 * owner may have removed it. */

enum { HASH = 64, BEFORE = HASH + 1 }; /* bytes before the text: its hash and a blank */

static bool is_there(const dq_work *w)
{
    struct stat mine, named;
    return fstat(w->fd, &mine) == 0 && stat(w->how.path, &named) == 0 &&
           mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

static void close_file(dq_work *w, bool done)
{
    if (!w->open) return;
    if (done && is_there(w)) unlink(w->how.path);
    close(w->fd); /* lets go of the lock */
    w->open = false;
}

static bool locked_by_another(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool dq_work_busy(const char *path)
{
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    bool busy = fd >= 0 && locked_by_another(fd);
    if (fd >= 0) close(fd);
    return busy;
}

/* Works without a lock on file systems that have none. */
static dq_status open_file(dq_work *w, int flags, dq_err *err)
{
    const char *path = w->how.path;
    while (!w->open) {
        w->fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | flags, 0666);
        if (w->fd < 0) return dq_os_fail(err, path, "cannot open for writing");
        if (locked_by_another(w->fd))
            dq_fail(err, DQ_RESOURCE, "%s: another dq is writing to it. Wait for it, or stop it",
                    path);
        w->open = err->code == DQ_OK && is_there(w);
        if (!w->open) close(w->fd);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

/* Truncates the file after n lines. */
static dq_status cut(dq_work *w, size_t end, int64_t n, dq_err *err)
{
    if (ftruncate(w->fd, (off_t)end) != 0) return dq_os_fail(err, w->how.path, "cannot write");
    w->end = (int64_t)end;
    w->n = n;
    return DQ_OK;
}

dq_status dq_work_sync(dq_work *w, dq_err *err)
{
    if (!w->open) return err->code;
    return fsync(w->fd) == 0 ? DQ_OK : dq_os_fail(err, w->how.path, "cannot sync");
}

/* A failure leaves the file as before. The text has no newline. */
static dq_status append(dq_work *w, const char *text, dq_err *err)
{
    char before[BEFORE];
    const size_t len = strlen(text);
    DQ_TRY(dq_sha256_of(before, text, len, err));
    before[HASH] = ' ';
    const off_t at = (off_t)w->end, after = at + BEFORE + (off_t)len;
    if (after >= DQ_MAX_JOURNAL)
        return dq_fail(err, DQ_RESOURCE, "%s: is as long as can be read again", w->how.path);
    const dq_inplace_file f = {.fd = w->fd, .path = w->how.path};
    if (dq_inplace_file_put(&f, at, before, BEFORE, err) == DQ_OK &&
        dq_inplace_file_put(&f, at + BEFORE, text, len, err) == DQ_OK &&
        dq_inplace_file_put(&f, after, "\n", 1, err) == DQ_OK) {
        w->end = after + 1;
        w->n++;
    } else if (ftruncate(w->fd, at) != 0) {
        errno = 0; /* the next line overwrites what stays, or it is dropped when it is read */
    }
    return err->code;
}

static bool is_hash(const char *text, size_t len)
{
    for (size_t i = 0; i < len && i < HASH; i++) {
        if (!strchr("0123456789abcdef", text[i]) || !text[i]) return false;
    }
    return true;
}

/* Whether these bytes can be the beginning of a journal, however early it was cut off. */
static bool can_begin(const char *text, size_t len)
{
    static const char after[] = " {\"schema\":";
    const size_t n = len > HASH ? len - HASH : 0;
    return is_hash(text, len) &&
           memcmp(text + len - n, after, n < sizeof after ? n : sizeof after - 1) == 0;
}

/* line[len] has no newline. */
static bool has_form(const char *line, size_t len)
{
    return len >= BEFORE && line[HASH] == ' ' && is_hash(line, len);
}

/* Text without hashes, each with a NUL after it. */
typedef struct lines {
    char **text; /* [n] */
    int64_t n;
    size_t end; /* in the file, of the last one that is valid */
} lines;

/* Reads a file without locking or changing it; a last line cut off is left out. */
static dq_status read_lines(lines *found, const char *path, bool cuts, dq_arena *a, dq_err *err)
{
    char *text, hex[HASH + 1];
    size_t len, max = 0;
    *found = (lines){0};
    DQ_TRY(dq_file_read_small(&text, &len, path, DQ_MAX_JOURNAL, a, err));
    if (!can_begin(text, len))
        return dq_fail(err, DQ_MISMATCH, "%s: is not a journal of this version of dq", path);
    for (size_t i = 0; i < len; i++) max += text[i] == '\n';
    found->text = dq_alloc(a, max, sizeof *found->text, err);
    if (!found->text) return err->code;
    for (char *line = text, *end; (end = memchr(line, '\n', len - found->end)); line = end + 1) {
        const size_t n = (size_t)(end - line);
        bool fits = has_form(line, n);
        if (fits) DQ_TRY(dq_sha256_of(hex, line + BEFORE, n - BEFORE, err));
        fits = fits && memcmp(hex, line, HASH) == 0;
        if (!fits && (cuts || end + 1 == text + len)) break;
        if (!fits)
            return dq_fail(err, DQ_DAMAGED, "%s: line %lld was altered (its hash does not fit)",
                           path, (long long)found->n + 1);
        *end = 0;
        found->text[found->n++] = line + BEFORE;
        found->end = (size_t)(end + 1 - text);
    }
    return DQ_OK;
}

/* ---- Ledger ---- */

dq_status dq_work_key(char hex[65], const json_t *of, dq_err *err)
{
    char *text = NULL;
    if (dq_json_dump(&text, of, JSON_SORT_KEYS, err) == DQ_OK)
        dq_sha256_of(hex, text, strlen(text), err);
    free(text);
    return err->code;
}

/* A SHA-256 is shortened; in the arena. NULL: too long to be shown, or see err. */
static const char *shown(dq_arena *a, const json_t *v, dq_err *err)
{
    enum { SHORT = 120, SHA = 64 };
    const char *s = json_string_value(v);
    if (s && strlen(s) == SHA && strspn(s, "0123456789abcdef") == SHA)
        return dq_textf(a, err, "%.12s...", s);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const char *value = text ? text : "none";
    const char *out = strlen(value) > SHORT ? NULL : dq_textf(a, err, "%s", value);
    free(text);
    return out;
}

/* " (FILE)" that a member comes from, "" without one. */
static const char *source_of(const dq_work_how *how, const char *member, dq_arena *a, dq_err *err)
{
    const size_t n = strcspn(member, ".");
    for (int i = 0; i < DQ_WORK_SOURCES && how->source[i].member; i++) {
        const dq_work_source *s = &how->source[i];
        if (strlen(s->member) == n && memcmp(s->member, member, n) == 0 && s->path)
            return dq_textf(a, err, " (%s)", s->path);
    }
    return "";
}

/* "calib.ctx: begun with 100, this run has 90; ..": the first members that differ. */
static const char *changes(const char *so_far, int *left, const dq_work_how *how, const char *path,
                           const json_t *was, const json_t *now, dq_arena *a, dq_err *err)
{
    json_t *both = json_object(), *v;
    const char *key;
    json_object_update(both, (json_t *)(uintptr_t)was);
    json_object_update(both, (json_t *)(uintptr_t)now);
    json_object_foreach(both, key, v)
    {
        const json_t *x = json_object_get(was, key), *y = json_object_get(now, key);
        const char *name = dq_textf(a, err, "%s%s", path, key);
        if (*left == 0 || err->code != DQ_OK || json_equal(x, y)) continue;
        if (json_is_object(x) && json_is_object(y)) {
            const char *inner = dq_textf(a, err, "%s.", name);
            if (inner) so_far = changes(so_far, left, how, inner, x, y, a, err);
            continue;
        }
        const char *old = shown(a, x, err), *new = shown(a, y, err);
        const char *what =
            old && new ? dq_textf(a, err, ": begun with %s, this run has %s", old, new) : "";
        so_far = dq_textf(a, err, "%s%s%s%s%s", so_far, *so_far ? "; " : "", name, what,
                          source_of(how, name, a, err));
        (*left)--;
    }
    json_decref(both);
    return so_far;
}

static dq_status check_head(const dq_work_how *how, const json_t *head, bool any_shard, dq_arena *a,
                            dq_err *err)
{
    const char *const none = "", *schema, *key;
    int left = 3;
    DQ_TRY(dq_json_text(&schema, head, "schema", &none, err));
    if (strcmp(schema, how->schema) != 0)
        return dq_fail(err, DQ_MISMATCH, "is not a journal of this version of dq (expected %s)",
                       how->schema);
    DQ_TRY(dq_json_text(&key, head, "key", NULL, err));
    if (strcmp(key, how->key) != 0) {
        const json_t *was = json_object_get(head, "of");
        const char *what = was ? changes("", &left, how, "", was, how->of, a, err) : "";
        DQ_TRY(err->code);
        return dq_fail(err, DQ_MISMATCH, "belongs to a run with other inputs or settings%s%.600s%s",
                       *what ? " (" : "", what, *what ? ")" : "");
    }
    const json_int_t shard = json_integer_value(json_object_get(head, "shard"));
    const json_int_t n = json_integer_value(json_object_get(head, "shards"));
    if (any_shard || (shard == how->shard && n == how->n_shards)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "is shard %lld of %lld, and not %d of %d", (long long)shard,
                   (long long)n, how->shard, how->n_shards);
}

static bool is_end(const json_t *line)
{
    return json_is_true(json_object_get(line, "end"));
}

/* news NULL: nobody else has to know the lines. */
static dq_status take_lines(bool *ended, const dq_work_how *how, const lines *found, bool any_shard,
                            dq_strbuf *news, dq_arena *a, dq_err *err)
{
    *ended = false;
    for (int64_t i = 0; err->code == DQ_OK && i < found->n; i++) {
        const char *text = found->text[i];
        json_t *line = NULL;
        dq_err no_json = {0};
        if (dq_json_parse(&line, text, strlen(text), "line", i ? err : &no_json) != DQ_OK && i)
            break;
        *ended = i > 0 && is_end(line);
        if (i == 0)
            check_head(how, line, any_shard, a, err);
        else if (!*ended && how->take(how->arg, line, false, err) == DQ_OK && news)
            dq_strbuf_add(news, text, strlen(text) + 1, err);
        json_decref(line);
    }
    return err->code;
}

dq_status dq_work_merge(const dq_work_how *how, const char *path, dq_err *err)
{
    lines found;
    bool ended = false;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (read_lines(&found, path, false, a, err) == DQ_OK) {
        take_lines(&ended, how, &found, true, NULL, a, err);
        if (err->code == DQ_OK && !ended) dq_fail(err, DQ_MISMATCH, "is not finished");
        if (err->code != DQ_OK) dq_in(err, "%s: ", path);
    }
    dq_arena_free(a);
    return err->code;
}

dq_status dq_work_head(json_t **head, bool *ended, const char *path, dq_err *err)
{
    lines found;
    json_t *last = NULL;
    dq_arena *a = dq_arena_new();
    *head = NULL;
    *ended = false;
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (read_lines(&found, path, false, a, err) == DQ_OK) {
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

dq_status dq_work_place(const char *path, dq_err *err)
{
    if (!dq_file_exists(path) || dq_file_is_regular(path)) return DQ_OK;
    return dq_fail(err, DQ_FILE,
                   "%s: is not a regular file, and finished work is kept there. Move it away, or "
                   "choose another name for the output.",
                   path);
}

/* Where a new file is written before it takes the place of `path`. NULL: there is what no dq has
 * written, or see err. */
static const char *partial_of(const char *path, dq_arena *a, dq_err *err)
{
    lines found;
    const char *partial = path ? dq_textf(a, err, "%s.partial", path) : NULL;
    if (partial && dq_file_check(path, err) == DQ_OK && dq_file_check(partial, err) == DQ_OK &&
        dq_file_exists(partial) && read_lines(&found, partial, true, a, err) == DQ_MISMATCH)
        dq_fail_more(err, (dq_remedy){0}, ". Move it away, or choose another name for the output");
    return err->code == DQ_OK ? partial : NULL;
}

static dq_status check_partial(const char *path, dq_err *err)
{
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    partial_of(dq_file_resolved(path, a, err), a, err);
    dq_arena_free(a);
    return err->code;
}

/* Takes the value. */
static dq_status add_line(dq_work *w, json_t *line, dq_err *err)
{
    char *text;
    dq_json_dump(&text, line, JSON_COMPACT, err);
    json_decref(line);
    if (text) append(w, text, err);
    free(text);
    return err->code;
}

static dq_status add_head(dq_work *w, dq_err *err)
{
    const dq_work_how *how = &w->how;
    json_t *head = json_pack("{s:s, s:s}", "schema", how->schema, "key", how->key);
    if (how->of) json_object_set(head, "of", (json_t *)(uintptr_t)how->of);
    if (how->n_shards) {
        json_object_set_new(head, "shard", json_integer(how->shard));
        json_object_set_new(head, "shards", json_integer(how->n_shards));
    }
    if (how->about) json_object_update(head, (json_t *)(uintptr_t)how->about);
    return add_line(w, head, err);
}

/* A file that is no such journal is never replaced unasked. */
static dq_status go_on(dq_work *w, dq_err *err)
{
    const dq_work_how *how = &w->how;
    dq_strbuf *news = how->shared && dq_ranks_count() > 1 ? &w->news : NULL;
    lines found = {0};
    DQ_TRY(open_file(w, 0, err));
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (read_lines(&found, how->path, how->beside, a, err) == DQ_OK &&
        take_lines(&w->ended, how, &found, false, news, a, err) != DQ_OK)
        dq_in(err, "%s: ", how->path);
    if (err->code == DQ_OK) cut(w, found.end, found.n, err);
    dq_arena_free(a);
    if (err->code != DQ_MISMATCH && err->code != DQ_DAMAGED) return err->code;
    const bool other = err->code == DQ_MISMATCH && found.n > 0; /* another run's */
    const bool forces = how->beside || how->n_shards > 0;
    const dq_remedy_code remedy = !forces ? DQ_REMEDY_REMOVE_OR_ANEW
                                  : other ? DQ_REMEDY_REPEAT_OR_FORCE
                                          : DQ_REMEDY_START_OVER;
    return dq_fail_more(err, (dq_remedy){.code = remedy}, ".");
}

static dq_status open_work(dq_work *w, dq_err *err)
{
    const dq_work_how *how = &w->how;
    const bool there = dq_file_exists(how->path);
    DQ_TRY(dq_work_place(how->path, err));
    if (how->rewrites) DQ_TRY(check_partial(how->path, err));
    if (there && !how->resume && !how->force)
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_RESUME_OR_FORCE},
                            "%s: an interrupted run left it.", how->path);
    w->made = !(there && how->resume);
    if (!w->made)
        go_on(w, err);
    else if (open_file(w, O_CREAT, err) == DQ_OK)
        cut(w, 0, 0, err);
    if (err->code == DQ_OK && w->n == 0) add_head(w, err);
    if (err->code != DQ_OK) close_file(w, w->made); /* without a head nothing can be gone on from */
    return err->code;
}

/* By all ranks: the others take what rank 0 knows and they may not. */
static dq_status share_news(dq_work *w, dq_err *err)
{
    uint64_t bytes = w->news.n;
    const bool leads = dq_ranks_number() == 0;
    if (dq_ranks_count() == 1) return err->code;
    DQ_TRY(dq_ranks_share(&bytes, sizeof bytes, err));
    if (bytes == 0) return DQ_OK;
    char *text = leads ? w->news.s : dq_block_new(bytes, 1, err);
    if (dq_ranks_share(text, bytes, err) == DQ_OK && !leads) {
        for (const char *at = text; at < text + bytes && err->code == DQ_OK; at += strlen(at) + 1) {
            json_t *line;
            if (dq_json_parse(&line, at, strlen(at), "what rank 0 tells", err) == DQ_OK)
                w->how.take(w->how.arg, line, false, err);
            json_decref(line);
        }
    }
    if (!leads) dq_block_free(text);
    w->news.n = 0;
    return err->code;
}

dq_status dq_work_open(dq_work *w, const dq_work_how *how, dq_err *err)
{
    *w = (dq_work){.how = *how};
    if (!how->key) dq_work_key(w->key, how->of, err);
    if (!how->key) w->how.key = w->key;
    if (how->shared) dq_ranks_agree("set of inputs, settings, program or processor", w->key, err);
    if (err->code == DQ_OK && how->path && dq_ranks_number() == 0) open_work(w, err);
    return how->shared ? share_news(w, err) : err->code;
}

static dq_status write_down(dq_work *w, const char *text, dq_err *err)
{
    dq_err own = {0};
    w->ended = false; /* more follows */
    if (w->open && w->lost.code == DQ_OK) append(w, text, &own);
    dq_fail_as(w->how.goes_on ? &w->lost : err, &own);
    if (err->code == DQ_OK && w->how.shared && w->runs && dq_ranks_count() > 1)
        dq_strbuf_add(&w->news, text, strlen(text) + 1, err);
    return err->code;
}

bool dq_work_records(const dq_work *w)
{
    return dq_ranks_number() == 0 ? w->open && w->lost.code == DQ_OK : w->runs;
}

dq_status dq_work_put(dq_work *w, json_t *line, dq_err *err)
{
    char *text = NULL;
    if (err->code == DQ_OK) dq_json_dump(&text, line, JSON_COMPACT, err);
    json_decref(line);
    if (text && dq_ranks_number() == 0)
        write_down(w, text, err);
    else if (text && w->runs)
        dq_ranks_tell(text, strlen(text), err);
    free(text);
    return err->code;
}

typedef struct run {
    dq_work *w;
    dq_work_compute *compute;
    void *arg;
} run;

static dq_status run_piece(void *arg, int64_t piece, dq_err *err)
{
    const run *x = arg;
    return x->compute(x->arg, piece, err);
}

static dq_status run_flush(void *arg, dq_err *err)
{
    const dq_work_how *how = &((run *)arg)->w->how;
    return how->flush ? how->flush(how->arg, err) : DQ_OK;
}

/* Runs on rank 0. */
static dq_status hear(void *arg, const char *text, size_t len, dq_err *err)
{
    dq_work *w = ((run *)arg)->w;
    json_t *line;
    if (dq_json_parse(&line, text, len, "what a rank tells", err) == DQ_OK &&
        w->how.take(w->how.arg, line, true, err) == DQ_OK)
        write_down(w, text, err);
    json_decref(line);
    return err->code;
}

dq_status dq_work_run(dq_work *w, int64_t n, dq_work_compute *compute, void *arg, dq_err *err)
{
    run x = {w, compute, arg};
    const dq_ranks_work work = {
        .n = n, .run = run_piece, .last = run_flush, .take = hear, .arg = &x};
    w->runs = true;
    dq_ranks_run(&work, err);
    w->runs = false;
    return w->how.shared ? share_news(w, err) : err->code;
}

dq_status dq_work_rewrite(dq_work *w, dq_status (*put)(void *arg, dq_err *err), bool ends,
                          dq_err *err)
{
    if (!w->open) return err->code;
    dq_work old = *w;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const char *path = dq_file_resolved(old.how.path, a, err), *partial = partial_of(path, a, err);
    w->open = false;
    w->how.path = partial;
    if (partial && open_file(w, O_CREAT, err) == DQ_OK && cut(w, 0, 0, err) == DQ_OK &&
        add_head(w, err) == DQ_OK && put(w->how.arg, err) == DQ_OK &&
        (ends ? dq_work_end(w, err) : dq_work_sync(w, err)) == DQ_OK && rename(partial, path) != 0)
        dq_fail(err, DQ_FILE, "%s: cannot be written", old.how.path);
    close_file(err->code == DQ_OK ? &old : w, err->code != DQ_OK);
    if (err->code != DQ_OK) *w = old;
    w->how.path = old.how.path;
    dq_arena_free(a);
    return err->code;
}

dq_status dq_work_end(dq_work *w, dq_err *err)
{
    dq_fail_as(err, &w->lost);
    if (err->code != DQ_OK || w->ended || !w->open) return err->code;
    w->ended = true;
    return add_line(w, json_pack("{s:b}", "end", 1), err) == DQ_OK ? dq_work_sync(w, err)
                                                                   : err->code;
}

bool dq_work_has_lines(const dq_work *w)
{
    return w->open && w->n > 1;
}

bool dq_work_resumable(const dq_err *err)
{
    return err->code == DQ_STOPPED || err->code == DQ_FILE || err->code == DQ_RESOURCE;
}

dq_status dq_work_failed(dq_work *w, dq_err *err)
{
    enum { MAX_TEXT = 600 }; /* so that there is space for what follows */
    const char *path = w->how.kept ? w->how.kept : w->how.path;
    if (!w->open) return err->code;
    if (err->code == DQ_STOPPED) {
        *err = (dq_err){0};
        return dq_fail_with(err, DQ_STOPPED, (dq_remedy){.code = DQ_REMEDY_RESUME},
                            "interrupted; %s is kept.", path);
    }
    const bool empty = !dq_work_has_lines(w);
    if (empty || !dq_work_resumable(err)) {
        if (empty ? w->made : !w->how.resume && err->code != DQ_MISMATCH) dq_work_close(w, true);
        return err->code;
    }
    /* The remedy that names --resume comes last, once. */
    dq_remedy_at *last = err->n_remedies > 0 ? &err->remedy[err->n_remedies - 1] : NULL;
    if (last && last->code == DQ_REMEDY_RESUMABLE) {
        err->text[last->begin] = 0;
        err->n_remedies--;
    }
    err->text[MAX_TEXT] = 0;
    return dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_RESUMABLE}, ". %.200s is kept", path);
}

void dq_work_close(dq_work *w, bool done)
{
    close_file(w, done);
    dq_block_free(w->news.s);
    *w = (dq_work){.lost = w->lost};
}

json_t *dq_work_reals(const double *x, int64_t n)
{
    enum { MOST = 26 }; /* characters of a number */
    json_malloc_t get;
    json_free_t give;
    json_get_alloc_funcs(&get, &give); /* which notice a failure */
    char *text = get((size_t)n * MOST + 1), *at = text;
    if (!text) return NULL;
    for (int64_t i = 0; i < n; i++) at += sprintf(at, "%s%a", i ? " " : "", x[i]);
    json_t *value = json_stringn(text, (size_t)(at - text));
    give(text);
    return value;
}

dq_status dq_work_take_reals(double *x, int64_t n, const json_t *line, const char *key, dq_err *err)
{
    const char *s;
    char *end;
    DQ_TRY(dq_json_text(&s, line, key, NULL, err));
    for (int64_t i = 0; i < n; i++, s = end) {
        x[i] = strtod(s, &end);
        if (end == s || (*end != ' ' && *end))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds what is no number", key);
    }
    return *s ? dq_fail(err, DQ_DAMAGED, "\"%s\" has too many values", key) : DQ_OK;
}
