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
#include "base/ranks.h"
#include "base/text.h"
#include "base/work.h"
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
    dq_part_put_reals(f, "logp", r->logp + at, n);
    fputs(", \"top1\": \"", f);
    for (int64_t i = 0; i < n; i++) fprintf(f, "%s%" PRId32, i ? " " : "", r->top1[at + i]);
    fputc('"', f);
    if (r->kld) dq_part_put_reals(f, "kld", r->kld + at, n);
    if (r->top_logp) dq_part_put_reals(f, "top_logp", r->top_logp + at, n);
    if (r->extra) dq_part_put_reals(f, "extra", r->extra + from * extra, (to - from) * extra);
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
    if (e->journal_err.code == DQ_OK && (e->journal || (dq_ranks_number() > 0 && !e->alone)))
        put(e, row, from, to, &e->journal_err);
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
    DQ_TRY(dq_part_get_reals(&w.seconds, 1, o, "seconds", err));
    DQ_TRY(get_held(&w.cached, o, err));
    DQ_TRY(dq_part_get_reals(&w.cached.gap_min, 1, o, "gap_min", err));
    int64_t at = dq_eval_values(e, r, from), n = dq_eval_values(e, r, to) - at;
    DQ_TRY(dq_part_get_reals(r->logp + at, n, o, "logp", err));
    DQ_TRY(get_ids(r->top1 + at, n, o, "top1", err));
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(r->logp[at + i]))
            return dq_fail(err, DQ_DAMAGED, "\"logp\" of row %lld is not finite", (long long)index);
    }
    if (r->kld) DQ_TRY(dq_part_get_reals(r->kld + at, n, o, "kld", err));
    if (r->top_logp) DQ_TRY(dq_part_get_reals(r->top_logp + at, n, o, "top_logp", err));
    if (r->extra)
        DQ_TRY(dq_part_get_reals(r->extra + from * extra, (to - from) * extra, o, "extra", err));
    dq_score_work_add(&r->work, &w);
    for (int64_t i = from; i < to; i++) r->finished[i] = true;
    return DQ_OK;
}

static dq_status get_line(dq_eval *e, const char *text, size_t len, int64_t *row, int64_t *from,
                          int64_t *to, dq_err *err)
{
    json_t *step = NULL;
    if (dq_json_parse(&step, text, len, "step", err) == DQ_OK && get_row(e, step, err) == DQ_OK) {
        *row = json_integer_value(json_object_get(step, "row"));
        *from = json_integer_value(json_object_get(step, "from"));
        *to = json_integer_value(json_object_get(step, "to"));
    }
    json_decref(step);
    return err->code;
}

dq_status dq_eval_sweep_take(dq_eval_sweep *s, const char *text, size_t len, dq_err *err)
{
    dq_eval *e = s->e;
    int64_t row = 0, from = 0, to = 0;
    DQ_TRY(get_line(e, text, len, &row, &from, &to, err));
    dq_eval_sweep_told(s, &e->row[row], from, to);
    if (e->journal && e->journal_err.code == DQ_OK)
        dq_journal_add(e->journal, text, len, &e->journal_err);
    return DQ_OK;
}

static bool is_piece(const json_t *step)
{
    return json_object_get(step, "piece");
}

/* A journal, or another run's file. */
typedef struct journal {
    dq_eval *e;
    const char *key;
    bool own; /* it is gone on from */
} journal;

static dq_status check_head(const journal *x, const json_t *head, dq_err *err)
{
    const dq_eval *e = x->e;
    const dq_part_head want = {schema, x->key, e->n_shards ? e->shard + 1 : 0, e->n_shards};
    int64_t rows;
    DQ_TRY(dq_part_check(head, &want, !x->own, err));
    return dq_json_int(&rows, head, "rows", e->n_rows, e->n_rows, NULL, err);
}

static dq_status take_step(void *arg, int64_t line, const json_t *step, dq_err *err)
{
    const journal *x = arg;
    if (line == 0) return check_head(x, step, err);
    return is_piece(step) ? DQ_OK : get_row(x->e, step, err);
}

static dq_status add_head(dq_eval *e, const char *key, dq_err *err)
{
    json_t *o = json_object();
    json_object_set_new(o, "schema", json_string(schema));
    json_object_set_new(o, "key", json_string(key));
    json_object_set_new(o, "rows", json_integer(e->n_rows));
    if (e->about) json_object_update(o, e->about);
    return dq_part_add(e->journal, o, err);
}

void dq_eval_journal_piece(dq_eval *e, int64_t piece, double work, double seconds)
{
    json_t *o = json_object();
    json_object_set_new(o, "piece", json_integer(piece));
    json_object_set_new(o, "work", json_real(work));
    json_object_set_new(o, "seconds", json_real(seconds));
    if (e->journal_err.code == DQ_OK)
        dq_part_add(e->journal, o, &e->journal_err);
    else
        json_decref(o);
}

dq_status dq_eval_journal_end(dq_eval *e, dq_err *err)
{
    if (e->journal_err.code != DQ_OK) *err = e->journal_err;
    if (err->code != DQ_OK || e->ended) return err->code;
    return dq_part_end(e->journal, err);
}

dq_status dq_eval_take(dq_eval *e, const char *key, const char *path, dq_err *err)
{
    journal x = {e, key, false};
    return dq_part_read(path, take_step, &x, err);
}

dq_status dq_eval_journal(dq_eval *e, const char *key, const char *path, bool resume, dq_err *err)
{
    journal x = {e, key, true};
    DQ_TRY(resume ? dq_part_resume(&e->journal, &e->ended, path, take_step, &x, err)
                  : dq_journal_new(&e->journal, path, err));
    if (dq_journal_count(e->journal) > 0 || add_head(e, key, err) == DQ_OK) return DQ_OK;
    dq_journal_close(e->journal, true); /* without a head nothing can be gone on from */
    e->journal = NULL;
    return err->code;
}
