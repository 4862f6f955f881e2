/* evaluate, state: what a stopped sweep has finished, as JSON lines. Numbers are written in
 * hexadecimal, so that a resumed run gives the same bits as one that was never stopped.
 *
 *   {"schema": "dq-eval-resume/2", "key": KEY, "rows": N}
 *   {"row": I, "done": UNITS, "tokens": .., "computed": .., "seconds": HEX, "value": "HEX HEX ..",
 *    "kld": "HEX ..", "flag": "0110..", "held": [..], "gap_min": HEX}   one line per row
 *   {"sha256": of all bytes before this line}
 * SPDX-License-Identifier: MIT */
#include "evaluate.h"

#include "hash.h"
#include "json.h"
#include "os.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] = "dq-eval-resume/2";

static void put_values(FILE *f, const char *key, const double *x, int64_t n)
{
    fprintf(f, ", \"%s\": \"", key);
    for (int64_t i = 0; i < n; i++) fprintf(f, "%s%a", i ? " " : "", x[i]);
    fputc('"', f);
}

/* The counts of what contexts took, in the order of the file. */
enum { N_HELD = 15 };
static int64_t *held_field(dq_kv_held *h, int i)
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
                                  &h->evicted,
                                  &h->raised};
    return all[i];
}

static void put_row(FILE *f, const dq_eval *e, int index)
{
    const dq_eval_row *r = &e->row[index];
    int64_t n = dq_eval_values(e, r, r->done);
    fprintf(f, "{\"row\": %d, \"done\": %" PRId64 ", \"tokens\": %" PRId64, index, r->done,
            r->work.tokens);
    fprintf(f, ", \"computed\": %" PRId64 ", \"seconds\": \"%a\"", r->work.computed,
            r->work.seconds);
    put_values(f, "value", r->value, n);
    if (r->kld) put_values(f, "kld", r->kld, n);
    fputs(", \"flag\": \"", f);
    for (int64_t i = 0; i < n; i++) fputc(r->flag[i] ? '1' : '0', f);
    fputs("\", \"held\": [", f);
    dq_kv_held held = r->work.held;
    for (int i = 0; i < N_HELD; i++) fprintf(f, "%s%" PRId64, i ? ", " : "", *held_field(&held, i));
    fprintf(f, "], \"gap_min\": \"%a\"}\n", held.gap_min);
}

dq_status dq_eval_save(const dq_eval *e, const char *key, const char *path, dq_err *err)
{
    char *text = NULL, hex[65];
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f) return dq_fail(err, DQ_RESOURCE, "out of memory");
    fprintf(f, "{\"schema\": \"%s\", \"key\": \"%s\", \"rows\": %d}\n", schema, key, e->n_rows);
    for (int i = 0; i < e->n_rows; i++) put_row(f, e, i);
    if (fflush(f) == 0 && dq_sha256_of(hex, text, len, err) == DQ_OK)
        fprintf(f, "{\"sha256\": \"%s\"}\n", hex);
    if (fclose(f) != 0) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (err->code == DQ_OK) dq_file_write(path, text, len, err);
    free(text);
    return err->code;
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

static dq_status get_flags(bool *flag, int64_t n, const json_t *line, dq_err *err)
{
    const char *s;
    DQ_TRY(dq_json_text(&s, line, "flag", NULL, err));
    if ((int64_t)strlen(s) != n) return dq_fail(err, DQ_DAMAGED, "\"flag\" has another length");
    for (int64_t i = 0; i < n; i++) flag[i] = s[i] == '1';
    return DQ_OK;
}

static dq_status get_held(dq_kv_held *h, const json_t *line, dq_err *err)
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

static dq_status get_row(dq_eval *e, int index, const json_t *line, dq_err *err)
{
    dq_eval_row *r = &e->row[index];
    const dq_eval_ids *ids = &e->ids[r->ids];
    int64_t all = e->source[ids->source].task ? ids->req.n_items : ids->win.n;
    int64_t row, done;
    DQ_TRY(dq_json_int(&row, line, "row", index, index, NULL, err));
    DQ_TRY(dq_json_int(&done, line, "done", 0, all, NULL, err));
    DQ_TRY(dq_json_int(&r->work.tokens, line, "tokens", 0, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_int(&r->work.computed, line, "computed", 0, INT64_MAX, NULL, err));
    DQ_TRY(get_values(&r->work.seconds, 1, line, "seconds", err));
    DQ_TRY(get_held(&r->work.held, line, err));
    DQ_TRY(get_values(&r->work.held.gap_min, 1, line, "gap_min", err));
    int64_t n = dq_eval_values(e, r, done);
    DQ_TRY(get_values(r->value, n, line, "value", err));
    if (r->kld) DQ_TRY(get_values(r->kld, n, line, "kld", err));
    DQ_TRY(get_flags(r->flag, n, line, err));
    r->done = done;
    return DQ_OK;
}

static dq_status get_head(const dq_eval *e, const char *key, const json_t *line, dq_err *err)
{
    const char *text;
    int64_t rows;
    DQ_TRY(dq_json_text(&text, line, "schema", NULL, err));
    if (strcmp(text, schema) != 0)
        return dq_fail(err, DQ_MISMATCH, "is not a state file of this dq (expected %s)", schema);
    DQ_TRY(dq_json_text(&text, line, "key", NULL, err));
    if (strcmp(text, key) != 0)
        return dq_fail(err, DQ_MISMATCH, "belongs to a run with other inputs or settings");
    return dq_json_int(&rows, line, "rows", e->n_rows, e->n_rows, NULL, err);
}

/* The last line holds the hash of all before it. */
static dq_status check_hash(const char *text, size_t len, size_t *body, dq_err *err)
{
    char hex[65], last[128];
    if (len < 2 || text[len - 1] != '\n') return dq_fail(err, DQ_DAMAGED, "is cut off");
    *body = len - 1;
    while (*body > 0 && text[*body - 1] != '\n') --*body;
    DQ_TRY(dq_sha256_of(hex, text, *body, err));
    int n = snprintf(last, sizeof last, "{\"sha256\": \"%s\"}\n", hex);
    if (len - *body != (size_t)n || memcmp(text + *body, last, (size_t)n) != 0)
        return dq_fail(err, DQ_DAMAGED, "was altered (its hash does not fit)");
    return DQ_OK;
}

static dq_status get_all(dq_eval *e, const char *key, const char *text, size_t len, dq_err *err)
{
    size_t body = 0, at = 0;
    DQ_TRY(check_hash(text, len, &body, err));
    for (int i = -1; i < e->n_rows; i++) {
        json_t *line = NULL;
        const char *end = at < body ? memchr(text + at, '\n', body - at) : NULL;
        if (!end) return dq_fail(err, DQ_DAMAGED, "has too few rows");
        size_t n = (size_t)(end - (text + at));
        if (dq_json_parse(&line, text + at, n, "state", err) != DQ_OK) return err->code;
        if (i < 0)
            get_head(e, key, line, err);
        else
            get_row(e, i, line, err);
        json_decref(line);
        if (err->code != DQ_OK) return err->code;
        at += n + 1;
    }
    return at == body ? DQ_OK : dq_fail(err, DQ_DAMAGED, "has too many rows");
}

dq_status dq_eval_load(dq_eval *e, const char *key, const char *path, dq_err *err)
{
    char *text;
    size_t len;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_file_read(&text, &len, path, a, err) == DQ_OK &&
        get_all(e, key, text, len, err) != DQ_OK)
        dq_in(err, "%s: ", path);
    dq_arena_free(a);
    return err->code;
}
