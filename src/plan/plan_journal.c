/* plan_journal: see plan_journal.h. Reals have 17 digits, so that they come back to the last bit; where the first line is
 * another's, its members are compared one by one, so that the failure names the first that differs.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_journal.h"

#include "base/file.h"
#include "base/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

dq_status dq_plan_journal_key(char hex[65], const json_t *of, dq_err *err)
{
    char *text = NULL;
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, of, JSON_SORT_KEYS, err) == DQ_OK)
        dq_sha256_of(hex, text, strlen(text), err);
    free(text);
    return err->code;
}

/* ---- What differs ---- */

static bool is_new(const json_t *was, const char *key, const json_t *now)
{
    const json_t *old = json_object_get(was, key);
    return !old || !json_equal(old, now);
}

/* A value as a message has it: of a hash its first digits, of what is long nothing; in the arena. */
static const char *shown(dq_arena *a, const json_t *v, dq_err *err)
{
    enum { SHORT = 60, SHA = 64, DIGITS = 12 };
    const char *s = json_string_value(v);
    if (s && strlen(s) == SHA && strspn(s, "0123456789abcdef") == SHA)
        return dq_textf(a, err, "%.*s...", (int)DIGITS, s);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const bool fits = text && strlen(text) <= SHORT;
    const char *out = fits ? dq_text(a, text, strlen(text), err) : NULL;
    free(text);
    return out;
}

/* "calib.sha256: begun with X, this run has Y": the first member that differs, after `path`. */
static const char *difference(dq_arena *a, const char *path, const json_t *was, const json_t *now,
                              dq_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)was, key, v)
    {
        if (!json_object_get(now, key)) return dq_textf(a, err, "%s%s", path, key);
    }
    json_object_foreach((json_t *)(uintptr_t)now, key, v)
    {
        const json_t *old = json_object_get(was, key);
        if (!is_new(was, key, v)) continue;
        const char *inner = dq_textf(a, err, "%s%s.", path, key);
        if (inner && json_is_object(v) && json_is_object(old))
            return difference(a, inner, old, v, err);
        const char *from = shown(a, old, err), *to = shown(a, v, err);
        if (!from || !to) return dq_textf(a, err, "%s%s", path, key);
        return dq_textf(a, err, "%s%s: begun with %s, this run has %s", path, key, from, to);
    }
    return NULL;
}

/* The file that a difference comes of; NULL: none. */
static const char *file_of(const dq_plan_journal_how *how, const char *what)
{
    for (int i = 0; i < DQ_PLAN_JOURNAL_FILES && how->file[i].member; i++) {
        const size_t n = strlen(how->file[i].member);
        if (strncmp(how->file[i].member, what, n) == 0 && strcspn(what, ".:") == n)
            return how->file[i].path;
    }
    return NULL;
}

/* line: the first of a journal, with another key than this run's. */
static dq_status other_key(const dq_plan_journal *j, const json_t *line,
                           const dq_plan_journal_how *how, dq_arena *a, dq_err *err)
{
    const json_t *was = json_object_get(line, "of");
    const char *what = was ? difference(a, "", was, how->of, err) : NULL;
    const char *file = what ? file_of(how, what) : NULL;
    if (err->code != DQ_OK) return err->code;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_REPEAT_OR_FORCE},
                        "%s: was begun with another model, text or settings%s%.200s%s%.300s%s.",
                        j->path, what ? "; what differs first is " : "", what ? what : "",
                        file ? " (" : "", file ? file : "", file ? ")" : "");
}

/* ---- Lines ---- */

dq_status dq_plan_journal_put(dq_plan_journal *j, json_t *line, dq_err *err)
{
    char *text = NULL;
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, line, JSON_COMPACT, err) == DQ_OK)
        dq_journal_add(j->file, text, strlen(text), err);
    free(text);
    json_decref(line);
    return err->code;
}

/* Nats an id that a file may say: more than logits of any model differ by, and little enough that sums are finite. */
static const double MAX_NATS = 1e9;

json_t *dq_plan_journal_reals(const double *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}

dq_status dq_plan_journal_take_reals(double *x, int64_t n, int64_t *found, const json_t *line,
                                     const char *key, dq_err *err)
{
    const json_t *list = json_object_get(line, key);
    *found = (int64_t)json_array_size(list);
    if (*found < 1 || *found > n)
        return dq_fail(err, DQ_DAMAGED, "%lld numbers of \"%s\" (expected 1 to %lld)",
                       (long long)*found, key, (long long)n);
    for (int64_t i = 0; i < *found; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        if (!json_is_number(one))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds what is no number", key);
        x[i] = json_number_value(one);
        if (!(fabs(x[i]) < MAX_NATS))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds %g, which is no loss of a cache", key,
                           x[i]);
    }
    return DQ_OK;
}

static dq_status put_key(dq_plan_journal *j, const dq_plan_journal_how *how, dq_err *err)
{
    json_t *line = json_pack("{s: s}", "key", how->key);
    json_object_set(line, "of", (json_t *)(uintptr_t)how->of);
    return dq_plan_journal_put(j, line, err);
}

static dq_status take_lines(const dq_plan_journal *j, const dq_journal_lines *found,
                            const dq_plan_journal_how *how, dq_arena *a, dq_err *err)
{
    for (int64_t i = 0; err->code == DQ_OK && i < found->n; i++) {
        json_t *line = NULL;
        DQ_TRY(dq_json_parse(&line, found->text[i], strlen(found->text[i]), j->path, err));
        const char *key = json_string_value(json_object_get(line, "key"));
        if (i > 0)
            how->take(how->arg, line, err);
        else if (!key || strcmp(key, how->key) != 0)
            other_key(j, line, how, a, err);
        json_decref(line);
    }
    return err->code;
}

dq_status dq_plan_journal_check(const char *path, dq_err *err)
{
    if (!dq_file_exists(path) || dq_file_is_regular(path)) return DQ_OK;
    return dq_fail(
        err, DQ_FILE,
        "%s: is not a regular file, and a plan keeps its journal there. Move it away, or "
        "choose another name for the recipe.",
        path);
}

/* A file that is none of these journals is not replaced unasked. */
static dq_status read_back(dq_plan_journal *j, dq_journal_lines *found, dq_arena *a, dq_err *err)
{
    dq_journal_resume(&j->file, j->path, DQ_JOURNAL_CUT, found, a, err);
    if (err->code != DQ_MISMATCH) return err->code;
    const dq_err why = *err;
    *err = (dq_err){0};
    return dq_fail_with(err, why.code, (dq_remedy){.code = DQ_REMEDY_START_OVER}, "%s.", why.text);
}

static dq_status go_on(dq_plan_journal *j, dq_journal_lines *found, const dq_plan_journal_how *how,
                       dq_arena *a, dq_err *err)
{
    DQ_TRY(read_back(j, found, a, err));
    if (found->n > 0) return take_lines(j, found, how, a, err);
    return put_key(j, how, err);
}

/* Bytes of lines, a NUL after each; the lines go to `out`, if there is one. */
static size_t join(char *out, const dq_journal_lines *found)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < found->n; i++) {
        const size_t n = strlen(found->text[i]) + 1;
        if (out) memcpy(out + bytes, found->text[i], n);
        bytes += n;
    }
    return bytes;
}

/* Of other ranks: found becomes what rank 0 has found; views into text. */
static dq_status split(dq_journal_lines *found, char *text, size_t bytes, dq_arena *a, dq_err *err)
{
    for (size_t i = 0; i < bytes; i++) found->n += !text[i];
    found->text = dq_alloc(a, (size_t)found->n, sizeof *found->text, err);
    if (!found->text) return err->code;
    for (int64_t i = 0; i < found->n; i++, text += strlen(text) + 1) found->text[i] = text;
    return DQ_OK;
}

/* What rank 0 has found is taken by all. */
static dq_status share_lines(const dq_plan_journal *j, const dq_journal_lines *found,
                             const dq_plan_journal_how *how, dq_arena *a, dq_err *err)
{
    dq_journal_lines same = {0};
    uint64_t bytes = join(NULL, found);
    if (dq_ranks_count() == 1) return err->code;
    DQ_TRY(dq_ranks_share(&bytes, sizeof bytes, err));
    if (bytes == 0) return DQ_OK;
    char *text = dq_block_new(bytes, 1, err);
    if (text) join(text, found);
    if (dq_ranks_share(text, bytes, err) == DQ_OK && dq_ranks_number() > 0 &&
        split(&same, text, bytes, a, err) == DQ_OK)
        take_lines(j, &same, how, a, err);
    dq_block_free(text);
    return err->code;
}

static dq_status open_file(dq_plan_journal *j, dq_journal_lines *found,
                           const dq_plan_journal_how *how, dq_arena *a, dq_err *err)
{
    DQ_TRY(dq_plan_journal_check(j->path, err));
    if (how->resume && dq_file_exists(j->path)) {
        DQ_TRY(go_on(j, found, how, a, err));
    } else {
        if (dq_file_exists(j->path) && !how->force)
            return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_RESUME_OR_FORCE},
                                "%s: an interrupted run left it.", j->path);
        DQ_TRY(dq_journal_new(&j->file, j->path, err));
        j->ours = j->made = true;
        DQ_TRY(put_key(j, how, err));
    }
    j->ours = true;
    return DQ_OK;
}

dq_status dq_plan_journal_open(dq_plan_journal *j, const dq_plan_journal_how *how, dq_arena *a,
                               dq_err *err)
{
    dq_journal_lines found = {0};
    *j = (dq_plan_journal){.resumes = how->resume};
    j->path = dq_textf(a, err, "%s.journal", how->out);
    if (j->path && dq_ranks_number() == 0) open_file(j, &found, how, a, err);
    return share_lines(j, &found, how, a, err);
}

void dq_plan_journal_end(dq_plan_journal *j, bool done)
{
    if (j->file) dq_journal_close(j->file, done);
    *j = (dq_plan_journal){0};
}

/* ---- Failures ---- */

bool dq_plan_journal_resumable(const dq_err *err)
{
    return err->code == DQ_STOPPED || err->code == DQ_FILE || err->code == DQ_RESOURCE;
}

/* The same of a part of the run, whose words give way. */
static void take_back(dq_err *err)
{
    dq_remedy_at *last = err->n_remedies > 0 ? &err->remedy[err->n_remedies - 1] : NULL;
    if (!last || last->code != DQ_REMEDY_RESUMABLE) return;
    err->text[last->begin] = 0;
    err->n_remedies--;
}

dq_status dq_plan_journal_failed(dq_plan_journal *j, dq_err *err)
{
    enum { MAX_TEXT = 600 }; /* so that there is space for what follows */
    if (!j->ours) return err->code;
    if (err->code == DQ_STOPPED) {
        *err = (dq_err){0};
        return dq_fail_with(err, DQ_STOPPED, (dq_remedy){.code = DQ_REMEDY_RESUME},
                            "interrupted; %s is kept.", j->path);
    }
    const bool empty = dq_journal_count(j->file) <= 1;
    if (empty || !dq_plan_journal_resumable(err)) {
        const bool drop = empty ? j->made : !j->resumes && err->code != DQ_MISMATCH;
        if (drop) dq_plan_journal_end(j, true);
        return err->code;
    }
    take_back(err);
    err->text[MAX_TEXT] = 0;
    return dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_RESUMABLE}, ". %.200s is kept", j->path);
}
