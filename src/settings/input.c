/* input: see input.h. A text is read whole, hashed as it stands and encoded as one sequence. Opening a model hands
 * its warnings to the command, so that each appears once, wherever the model is opened.
 * SPDX-License-Identifier: MIT */
#include "settings/input.h"

#include "base/file.h"
#include "calib/sample.h"
#include "record/record.h"
#include "settings/size_report.h"
#include "tasks/documents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const dq_pairing offered[DQ_INPUT_HEAD_ORDERS] = {DQ_PAIR_ADJACENT, DQ_PAIR_ADJACENT_NAIVE,
                                                         DQ_PAIR_HALVES};

const char *const *dq_input_head_order_offer(dq_input_head_order *h)
{
    for (int i = 0; i < DQ_INPUT_HEAD_ORDERS; i++)
        h->offered[i] = dq_head_order_pairing_name(offered[i]);
    return h->offered;
}

void dq_input_head_order_read(dq_input_head_order *h)
{
    h->pairing = h->word.text ? offered[h->word.at] : DQ_PAIR_COUNT;
}

dq_status dq_input_head_order_check(const dq_input_head_order *h, dq_err *err)
{
    if (!h->word.text || h->used) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "--head-order %s: no model here has two maps per head",
                   h->word.text);
}

json_t *dq_input_head_order_json(const dq_input_head_order *h)
{
    return h->word.text ? json_string(h->word.text) : json_null();
}

dq_status dq_input_model(dq_model **out, const char *path, dq_input_head_order *h,
                         dq_logger *logger, dq_err *err)
{
    DQ_TRY(dq_model_open_as(out, path, h ? h->pairing : DQ_PAIR_COUNT, err));
    const dq_model *m = *out;
    if (h && h->word.text && m->map.n_maps == 2) h->used = true;
    for (int i = 0; i < m->n_warnings; i++)
        dq_logger_warn(logger, "%s: %s", m->path, m->warnings[i]);
    return DQ_OK;
}

void dq_input_warn_lines(const char *path, dq_logger *logger)
{
    dq_logger_warn(logger,
                   "%s: its lines are JSON objects and are taken as running text, keys and quotes "
                   "too. For a document a line of {\"text\"}, give it a name that ends in .jsonl",
                   path);
}

void dq_input_warn_spaces(const dq_items *items, const char *path, dq_logger *logger)
{
    int64_t n = 0, first = 0;
    for (int64_t i = 0; i < items->n; i++) {
        if (dq_item_has_two_spaces(&items->item[i]) && n++ == 0) first = items->item[i].line;
    }
    if (n)
        dq_logger_warn(logger,
                       "%s: where a choice begins, white space meets white space in %lld item%s, "
                       "the first in line %lld. Take it from the text, or give such items a "
                       "\"delimiter\" of \"\"",
                       path, (long long)n, n == 1 ? "" : "s", (long long)first);
}

dq_status dq_input_read(dq_input_text *t, const char *path, dq_arena *a, dq_err *err)
{
    char *text;
    if (path) {
        DQ_TRY(dq_file_read_text(&text, &t->bytes, path, 0, a, err));
        t->path = path;
        t->text = text;
    } else {
        t->path = "calib/sample.txt";
        t->built_in = true;
        t->text = dq_sample_text;
        t->bytes = dq_sample_text_len;
    }
    if (t->bytes == 0) return dq_fail(err, DQ_DAMAGED, "%s: the text is empty", t->path);
    return dq_sha256_of(t->sha256, t->text, t->bytes, err);
}

static const char spaces[] = " \t\r\n";

/* Appends the numbers of one item to ids, which has capacity for all of them. */
static dq_status parse_item(dq_input_ids *out, const char *text, dq_err *err)
{
    int64_t before = out->n;
    const char *p = text + strspn(text, spaces);
    while (*p) {
        char *end;
        errno = 0;
        long v = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        if (v < 0 || errno || v > INT32_MAX || (*end && !strchr(spaces, *end)))
            return dq_fail(err, DQ_USAGE,
                           "--ids: expected decimal ids with spaces between, found \"%.40s\".", p);
        out->ids[out->n++] = (int32_t)v;
        p = end + strspn(end, spaces);
    }
    if (out->n == before)
        return dq_fail(err, DQ_USAGE, "--ids: expected at least one id, found \"%.40s\".", text);
    return DQ_OK;
}

dq_status dq_input_parse_ids(dq_input_ids *out, const char *const *item, int n, dq_arena *a,
                             dq_err *err)
{
    size_t capacity = 0;
    for (int i = 0; i < n; i++) capacity += strlen(item[i]) / 2 + 1;
    out->n = out->n_seq = 0;
    out->ids = dq_alloc(a, capacity, sizeof *out->ids, err);
    out->cu = dq_alloc(a, (size_t)n + 1, sizeof *out->cu, err);
    if (!out->ids || !out->cu) return err->code;
    for (int i = 0; i < n; i++) {
        DQ_TRY(parse_item(out, item[i], err));
        out->cu[++out->n_seq] = out->n;
    }
    return DQ_OK;
}

dq_status dq_input_tokenizer(dq_tokenizer **out, const dq_model *m, bool required, dq_err *err)
{
    dq_tokenizer_text text[DQ_TOKENIZER_FILES] = {{NULL, 0}};
    *out = NULL;
    for (int i = 0; i < DQ_TOKENIZER_FILES; i++)
        DQ_TRY(dq_model_file(m, dq_tokenizer_file[i], &text[i].s, &text[i].len, err));
    if (!text[0].s) {
        if (!required) return DQ_OK;
        return dq_fail(err, DQ_MISMATCH, "%s: has no tokenizer.json, so text cannot become ids",
                       m->path);
    }
    if (dq_tokenizer_load_files(out, text, err) != DQ_OK) dq_in(err, "%s: ", m->path);
    return err->code;
}

void dq_input_warn_stops(const dq_stop_ids *s, const char *name, dq_logger *logger)
{
    if (s->unknown[0])
        dq_logger_warn(logger, "%s: %s is no token of the model, so no text ends at it", name,
                       s->unknown);
    if (s->n == 0)
        dq_logger_warn(logger,
                       "%s: nothing names a token that ends a text; texts go on to the most tokens "
                       "that are asked for",
                       name);
}

dq_status dq_input_encode(dq_input_ids *out, const dq_tokenizer *t, const dq_input_text *text,
                          unsigned flags, dq_logger *logger, dq_arena *a, dq_err *err)
{
    int32_t *ids = NULL;
    int64_t first_bad = -1, n_bad = 0;
    DQ_TRY(dq_tokenizer_encode(t, text->text, text->bytes, flags, &ids, &out->n, &first_bad, &n_bad,
                               err));
    if (dq_documents_are_json_lines(text->text, text->bytes))
        dq_logger_warn(logger,
                       "%s: its lines are JSON objects and are taken as running text, keys and "
                       "quotes too. Give their texts alone",
                       text->path);
    if (n_bad)
        dq_logger_warn(
            logger,
            "%s: not UTF-8: %lld ill-formed pieces were read as U+FFFD, the first at byte "
            "%lld",
            text->path, (long long)n_bad, (long long)first_bad);
    out->n_seq = 1;
    out->ids = dq_alloc(a, (size_t)out->n, sizeof *ids, err);
    out->cu = dq_alloc(a, 2, sizeof *out->cu, err);
    if (out->ids && out->cu) {
        if (out->n) memcpy(out->ids, ids, (size_t)out->n * sizeof *ids);
        out->cu[1] = out->n;
    }
    dq_block_free(ids);
    if (err->code == DQ_OK && out->n == 0)
        return dq_fail(err, DQ_DAMAGED, "%s: the text has no token", text->path);
    return err->code;
}

json_t *dq_input_model_json(const dq_model *m)
{
    json_t *x = json_object();
    json_object_set_new(x, "kind", json_string("model"));
    json_object_set_new(x, "path", dq_document_name(m->path));
    dq_size_report_json(x, m);
    json_object_set_new(x, "architecture", json_string(m->architecture->name));
    json_object_set_new(x, "head_order", json_string(dq_head_order_pairing_name(m->map.pairing)));
    json_object_set_new(x, "fingerprint", json_string(m->fingerprint));
    if (m->gates) json_object_set_new(x, "gates_sha256", json_string(m->gates->sha256));
    return x;
}

json_t *dq_input_text_json(const dq_input_text *t)
{
    json_t *x = json_object();
    json_object_set_new(x, "kind", json_string(t->built_in ? "sample" : "text"));
    json_object_set_new(x, "path", dq_document_name(t->path));
    json_object_set_new(x, "bytes", json_integer((json_int_t)t->bytes));
    json_object_set_new(x, "sha256", json_string(t->sha256));
    return x;
}
