/* eval_journal: finished work as steps of a journal. Numbers are written in hexadecimal, so that a
 * resumed run gives the same bits as one that was never stopped. Each line of the journal is a JSON object:
 *
 *   {"schema": "dq-eval-resume/9", "key": KEY, "rows": N, ...}
 *   {"row": I, "from": UNIT, "to": UNIT, "tokens": .., "computed": .., "seconds": HEX, "held": [..],
 *    "gap_min": HEX, "logp": "HEX ..", "top1": "ID ..", "kld": "HEX ..", "top_logp": "HEX ..",
 *    "extra": "HEX .."}                       one per step: units of a row that were finished together,
 *                                             in any order
 *   {"piece": I, "work": W, "seconds": S}    of a shard: the steps since the last such line were one piece
 *   {"end": true}                            of a shard: nothing is left to do
 * SPDX-License-Identifier: MIT */
#include "base/json.h"
#include "base/ranks.h"
#include "base/strbuf.h"
#include "eval/eval_sweep.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] = "dq-eval-resume/9";

/* The counts of what contexts took, in the order of the file. */
enum { N_HELD = 19 };
static int64_t *held_field(dq_kv_cached *h, int i)
{
    int64_t *const all[N_HELD] = {&h->contexts,
                                  &h->missed,
                                  &h->tokens,
                                  &h->tokens_cut,
                                  &h->slots,
                                  &h->baseline,
                                  &h->dense16,
                                  &h->bytes.codes,
                                  &h->bytes.scales,
                                  &h->bytes.unquantized,
                                  &h->bytes.index,
                                  &h->bytes.tokens,
                                  &h->bytes.tokens_coded,
                                  &h->reads,
                                  &h->reads_coded,
                                  &h->evicted,
                                  &h->raised,
                                  &h->beyond,
                                  &h->flat};
    return all[i];
}

static void put_values(FILE *f, const char *key, const double *x, int64_t n)
{
    fprintf(f, ", \"%s\": \"", key);
    for (int64_t i = 0; i < n; i++) fprintf(f, "%s%a", i ? " " : "", x[i]);
    fputc('"', f);
}

/* The row's units from .. to - 1, and what they cost. */
static void put_row(FILE *f, const dq_eval *e, int index, int64_t from, int64_t to)
{
    const dq_eval_row *r = &e->row[index];
    int64_t at = dq_eval_values(e, r, from), n = dq_eval_values(e, r, to) - at;
    int64_t extra = e->ids[r->ids].n_extra;
    dq_score_work w = r->pending;
    fprintf(f, "{\"row\": %d, \"from\": %" PRId64 ", \"to\": %" PRId64, index, from, to);
    fprintf(f, ", \"tokens\": %" PRId64 ", \"computed\": %" PRId64, w.tokens, w.computed);
    fprintf(f, ", \"seconds\": \"%a\", \"held\": [", w.seconds);
    for (int i = 0; i < N_HELD; i++)
        fprintf(f, "%s%" PRId64, i ? ", " : "", *held_field(&w.cached, i));
    fprintf(f, "], \"gap_min\": \"%a\"", w.cached.gap_min);
    put_values(f, "logp", r->logp + at, n);
    fputs(", \"top1\": \"", f);
    for (int64_t i = 0; i < n; i++) fprintf(f, "%s%" PRId32, i ? " " : "", r->top1[at + i]);
    fputc('"', f);
    if (r->kld) put_values(f, "kld", r->kld + at, n);
    if (r->top_logp) put_values(f, "top_logp", r->top_logp + at, n);
    if (r->extra) put_values(f, "extra", r->extra + from * extra, (to - from) * extra);
    fputc('}', f);
}

/* Writes a step down, or tells rank 0. */
static dq_status put(const dq_eval *e, int row, int64_t from, int64_t to, dq_err *err)
{
    dq_strbuf text = {0};
    FILE *f = dq_strbuf_memory_open(&text, err);
    if (!f) return err->code;
    put_row(f, e, row, from, to);
    if (dq_strbuf_memory_close(f, err) == DQ_OK && e->journal)
        dq_journal_add(e->journal, text.s, text.n, err);
    else if (err->code == DQ_OK)
        dq_ranks_tell(text.s, text.n, err);
    dq_block_free(text.s);
    return err->code;
}

void dq_eval_finish(dq_eval *e, int row, int64_t from, int64_t to)
{
    dq_eval_row *r = &e->row[row];
    dq_score_work_add(&r->work, &r->pending);
    for (int64_t i = from; i < to; i++) r->finished[i] = true;
    e->ended = false; /* more follows */
    if (e->journal_err.code == DQ_OK && (e->journal || dq_ranks_number() > 0))
        put(e, row, from, to, &e->journal_err);
}

/* n numbers with single spaces between. */
static dq_status get_values(double *x, int64_t n, const json_t *line, const char *key, dq_err *err)
{
    const char *s;
    DQ_TRY(dq_json_text(&s, line, key, NULL, err));
    for (int64_t i = 0; i < n; i++) {
        char *end;
        x[i] = strtod(s, &end);
        if (end == s || (*end != ' ' && *end)) return dq_fail(err, DQ_DAMAGED, "\"%s\"", key);
        s = end;
    }
    return *s ? dq_fail(err, DQ_DAMAGED, "\"%s\" has too many values", key) : DQ_OK;
}

static dq_status get_ids(int32_t *x, int64_t n, const json_t *line, const char *key, dq_err *err)
{
    const char *s;
    DQ_TRY(dq_json_text(&s, line, key, NULL, err));
    for (int64_t i = 0; i < n; i++) {
        char *end;
        x[i] = (int32_t)strtol(s, &end, 10);
        if (end == s || (*end != ' ' && *end)) return dq_fail(err, DQ_DAMAGED, "\"%s\"", key);
        s = end;
    }
    return *s ? dq_fail(err, DQ_DAMAGED, "\"%s\" has too many values", key) : DQ_OK;
}

static dq_status get_held(dq_kv_cached *h, const json_t *line, dq_err *err)
{
    const json_t *list = json_object_get(line, "held");
    if (json_array_size(list) != N_HELD)
        return dq_fail(err, DQ_DAMAGED, "\"held\": expected %d numbers", N_HELD);
    for (size_t i = 0; i < N_HELD; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v)) return dq_fail(err, DQ_DAMAGED, "\"held\": not a number");
        *held_field(h, (int)i) = json_integer_value(v);
    }
    return DQ_OK;
}

static dq_status get_row(dq_eval *e, const json_t *o, dq_err *err)
{
    int64_t index, from, to;
    dq_score_work w = {0};
    DQ_TRY(dq_json_int(&index, o, "row", 0, e->n_rows - 1, NULL, err));
    dq_eval_row *r = &e->row[index];
    int64_t extra = e->ids[r->ids].n_extra;
    if (r->same != index)
        return dq_fail(err, DQ_DAMAGED, "row %lld is not computed for itself", (long long)index);
    DQ_TRY(dq_json_int(&from, o, "from", 0, dq_eval_units(e, r) - 1, NULL, err));
    DQ_TRY(dq_json_int(&to, o, "to", from + 1, dq_eval_units(e, r), NULL, err));
    if (r->finished[from] || dq_eval_alike(r, from, to) < to)
        return dq_fail(err, DQ_DAMAGED, "row %lld has units of %lld to %lld twice",
                       (long long)index, (long long)from, (long long)to - 1);
    DQ_TRY(dq_json_int(&w.tokens, o, "tokens", 0, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_int(&w.computed, o, "computed", 0, INT64_MAX, NULL, err));
    DQ_TRY(get_values(&w.seconds, 1, o, "seconds", err));
    DQ_TRY(get_held(&w.cached, o, err));
    DQ_TRY(get_values(&w.cached.gap_min, 1, o, "gap_min", err));
    int64_t at = dq_eval_values(e, r, from), n = dq_eval_values(e, r, to) - at;
    DQ_TRY(get_values(r->logp + at, n, o, "logp", err));
    DQ_TRY(get_ids(r->top1 + at, n, o, "top1", err));
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(r->logp[at + i]))
            return dq_fail(err, DQ_DAMAGED, "\"logp\" of row %lld is not finite", (long long)index);
    }
    if (r->kld) DQ_TRY(get_values(r->kld + at, n, o, "kld", err));
    if (r->top_logp) DQ_TRY(get_values(r->top_logp + at, n, o, "top_logp", err));
    if (r->extra) DQ_TRY(get_values(r->extra + from * extra, (to - from) * extra, o, "extra", err));
    dq_score_work_add(&r->work, &w);
    for (int64_t i = from; i < to; i++) r->finished[i] = true;
    return DQ_OK;
}

static dq_status get_line(dq_eval *e, const char *text, size_t len, int64_t *row, int64_t *n,
                          dq_err *err)
{
    json_t *step = NULL;
    if (dq_json_parse(&step, text, len, "step", err) == DQ_OK && get_row(e, step, err) == DQ_OK) {
        *row = json_integer_value(json_object_get(step, "row"));
        *n = dq_eval_values(e, &e->row[*row], json_integer_value(json_object_get(step, "to"))) -
             dq_eval_values(e, &e->row[*row], json_integer_value(json_object_get(step, "from")));
    }
    json_decref(step);
    return err->code;
}

dq_status dq_eval_sweep_take(dq_eval_sweep *s, const char *text, size_t len, dq_err *err)
{
    dq_eval *e = s->e;
    int64_t row = 0, n = 0;
    DQ_TRY(get_line(e, text, len, &row, &n, err));
    s->done += (double)n;
    if (e->journal && e->journal_err.code == DQ_OK)
        dq_journal_add(e->journal, text, len, &e->journal_err);
    return DQ_OK;
}

/* A file of one part is not gone on from as another, or as the whole. */
static dq_status compare_shard(const dq_eval *e, const json_t *step, dq_err *err)
{
    const json_t *shard = json_object_get(step, "shard"), *n = json_object_get(step, "shards");
    if (json_integer_value(shard) == (e->n_shards ? e->shard + 1 : 0) &&
        json_integer_value(n) == e->n_shards)
        return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "is part %lld of %lld, and not %d of %d",
                   (long long)json_integer_value(shard), (long long)json_integer_value(n),
                   e->shard + 1, e->n_shards);
}

static dq_status get_head(const dq_eval *e, const char *key, const json_t *step, dq_err *err)
{
    const char *text;
    int64_t rows;
    DQ_TRY(dq_json_text(&text, step, "schema", NULL, err));
    if (strcmp(text, schema) != 0)
        return dq_fail(err, DQ_MISMATCH, "is not a state file of this dq (expected %s)", schema);
    DQ_TRY(dq_json_text(&text, step, "key", NULL, err));
    if (strcmp(text, key) != 0)
        return dq_fail(err, DQ_MISMATCH, "belongs to a run with other inputs or settings");
    if (e->journal) DQ_TRY(compare_shard(e, step, err)); /* else another run's, which is taken */
    return dq_json_int(&rows, step, "rows", e->n_rows, e->n_rows, NULL, err);
}

static bool is_end(const json_t *step)
{
    return json_is_true(json_object_get(step, "end"));
}

static bool is_piece(const json_t *step)
{
    return json_object_get(step, "piece");
}

/* *ended: the last line is there. */
static dq_status read_steps(dq_eval *e, const char *key, const dq_journal_lines *found, bool *ended,
                            dq_err *err)
{
    *ended = false;
    for (int64_t i = 0; err->code == DQ_OK && i < found->n; i++) {
        json_t *step = NULL;
        if (dq_json_parse(&step, found->text[i], strlen(found->text[i]), "step", err) == DQ_OK) {
            *ended = is_end(step);
            if (i == 0)
                get_head(e, key, step, err);
            else if (!*ended && !is_piece(step))
                get_row(e, step, err);
        }
        json_decref(step);
    }
    return err->code;
}

static dq_status add_object(dq_eval *e, json_t *o, dq_err *err)
{
    char *text;
    dq_json_dump(&text, o, JSON_COMPACT, err);
    json_decref(o);
    if (text) dq_journal_add(e->journal, text, strlen(text), err);
    free(text);
    return err->code;
}

static dq_status add_head(dq_eval *e, const char *key, dq_err *err)
{
    json_t *o = json_object();
    json_object_set_new(o, "schema", json_string(schema));
    json_object_set_new(o, "key", json_string(key));
    json_object_set_new(o, "rows", json_integer(e->n_rows));
    if (e->about) json_object_update(o, e->about);
    return add_object(e, o, err);
}

void dq_eval_journal_piece(dq_eval *e, int64_t piece, double work, double seconds)
{
    json_t *o = json_object();
    json_object_set_new(o, "piece", json_integer(piece));
    json_object_set_new(o, "work", json_real(work));
    json_object_set_new(o, "seconds", json_real(seconds));
    if (e->journal_err.code == DQ_OK)
        add_object(e, o, &e->journal_err);
    else
        json_decref(o);
}

dq_status dq_eval_journal_end(dq_eval *e, dq_err *err)
{
    if (e->journal_err.code != DQ_OK) *err = e->journal_err;
    if (err->code != DQ_OK || e->ended) return err->code;
    json_t *o = json_object();
    json_object_set_new(o, "end", json_true());
    return add_object(e, o, err) == DQ_OK ? dq_journal_sync(e->journal, err) : err->code;
}

dq_status dq_eval_journal_head(json_t **head, bool *ended, const char *path, dq_err *err)
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

dq_status dq_eval_take(dq_eval *e, const char *key, const char *path, dq_err *err)
{
    dq_journal_lines found;
    bool ended = false;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_journal_read(&found, path, a, err) == DQ_OK) {
        read_steps(e, key, &found, &ended, err);
        if (!ended) dq_fail(err, DQ_MISMATCH, "is not finished");
        if (err->code != DQ_OK) dq_in(err, "%s: ", path);
    }
    dq_arena_free(a);
    return err->code;
}

/* Goes on from a file. What it holds is read before anything is added, and dropped then. */
static dq_status resume_from(dq_eval *e, const char *key, const char *path, dq_err *err)
{
    dq_journal_lines found;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_journal_resume(&e->journal, path, DQ_JOURNAL_REFUSE, &found, a, err) == DQ_OK &&
        read_steps(e, key, &found, &e->ended, err) != DQ_OK) {
        dq_in(err, "%s: ", path);
        dq_journal_close(e->journal, false);
        e->journal = NULL;
    }
    dq_arena_free(a);
    return err->code;
}

dq_status dq_eval_journal(dq_eval *e, const char *key, const char *path, bool resume, dq_err *err)
{
    DQ_TRY(resume ? resume_from(e, key, path, err) : dq_journal_new(&e->journal, path, err));
    if (dq_journal_count(e->journal) > 0 || add_head(e, key, err) == DQ_OK) return DQ_OK;
    dq_journal_close(e->journal, true); /* without a head nothing can be gone on from */
    e->journal = NULL;
    return err->code;
}
