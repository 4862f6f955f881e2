/* part: see part.h. Reals are written in hexadecimal, so that what is read gives the same bits as what was computed. A file is
 * read whole, line by line, before anything is added to it.
 * SPDX-License-Identifier: MIT */
#include "base/part.h"

#include <stdlib.h>
#include <string.h>

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

/* A file of one part is not gone on from as another, or as the whole. */
static dq_status check_shard(const json_t *head, const dq_part_head *want, dq_err *err)
{
    const json_int_t shard = json_integer_value(json_object_get(head, "shard"));
    const json_int_t n = json_integer_value(json_object_get(head, "shards"));
    if (shard == want->shard && n == want->n_shards) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "is part %lld of %lld, and not %d of %d", (long long)shard,
                   (long long)n, want->shard, want->n_shards);
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
    return any_shard ? DQ_OK : check_shard(head, want, err);
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
    if (dq_journal_read(&found, path, a, err) == DQ_OK) {
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
    if (dq_journal_read(&found, path, a, err) == DQ_OK) {
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

/* ---- Numbers ---- */

void dq_part_put_reals(FILE *f, const char *key, const double *x, int64_t n)
{
    fprintf(f, ", \"%s\": \"", key);
    for (int64_t i = 0; i < n; i++) fprintf(f, "%s%a", i ? " " : "", x[i]);
    fputc('"', f);
}

static dq_status check_number(const char *from, const char *to, const char *key, dq_err *err)
{
    if (to == from || (*to != ' ' && *to)) return dq_fail(err, DQ_DAMAGED, "\"%s\"", key);
    return DQ_OK;
}

static dq_status check_last(const char *at, const char *key, dq_err *err)
{
    return *at ? dq_fail(err, DQ_DAMAGED, "\"%s\" has too many values", key) : DQ_OK;
}

dq_status dq_part_get_reals(double *x, int64_t n, const json_t *step, const char *key, dq_err *err)
{
    const char *s;
    char *end;
    DQ_TRY(dq_json_text(&s, step, key, NULL, err));
    for (int64_t i = 0; i < n; i++, s = end) {
        x[i] = strtod(s, &end);
        DQ_TRY(check_number(s, end, key, err));
    }
    return check_last(s, key, err);
}
