/* A file of lines is parsed line by line, another is one document as it stands. Texts are not
 * copied unless a JSON string has to be decoded; words are counted before ill-formed text is
 * repaired.
 * SPDX-License-Identifier: MIT */
#include "tasks/documents.h"

#include "base/base.h"
#include "base/file.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/items.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* len(re.split(r"\s+", text)) of Python.
 * Source: lm-evaluation-harness lm_eval/tasks/wikitext/preprocess_wikitext.py (behaviour). */
static int64_t count_words(const char *text, size_t len)
{
    int64_t words = 1;
    bool space = false;
    for (size_t at = 0; at < len;) {
        size_t bytes = 1;
        bool ascii = (unsigned char)text[at] < 0x80;
        uint32_t c = ascii ? (uint32_t)text[at] : dq_utf8_first(text + at, &bytes);
        bool now = dq_utf8_is_strip(c);
        words += now && !space;
        space = now;
        at += bytes;
    }
    return words;
}

static dq_status add(dq_docs *d, dq_doc one, dq_arena *a, dq_err *err)
{
    dq_doc *list = dq_grow(a, d->doc, (size_t)d->n + 1, &d->cap, sizeof *list, err);
    if (!list) return err->code;
    d->doc = list;
    d->doc[d->n++] = one;
    return DQ_OK;
}

static dq_status add_line(dq_docs *d, dq_doc one, dq_arena *a, dq_err *err)
{
    json_t *o = NULL;
    const char *text;
    if (dq_json_parse_line(&o, one.text, one.len, "document", err) == DQ_OK &&
        dq_json_text(&text, o, "text", NULL, err) == DQ_OK) {
        one.len = json_string_length(json_object_get(o, "text"));
        one.text = dq_text(a, text, one.len, err);
        if (one.text) one.words = count_words(one.text, one.len);
        if (one.text) add(d, one, a, err);
    }
    json_decref(o);
    return err->code == DQ_OK ? DQ_OK
                              : dq_in(err, "%s: line %lld: ", one.path, (long long)one.line);
}

/* Replaces ill-formed UTF-8 by U+FFFD; *fixed is the text itself where there is none. */
static dq_status repair(dq_docs *d, const char **fixed, size_t *fixed_len, const char *path,
                        const char *text, size_t len, dq_arena *a, dq_err *err)
{
    int64_t first, bad = dq_utf8_check(text, len, &first);
    *fixed = text;
    *fixed_len = len;
    if (bad == 0) return DQ_OK;
    char *p = dq_alloc(a, len + 2 * (size_t)bad + 1, 1, err);
    if (!p) return err->code;
    *fixed_len = dq_utf8_repair(p, text, len);
    *fixed = p;
    if (!d->bad_path) d->first_bad = d->at + first;
    if (!d->bad_path) d->bad_path = path;
    d->n_bad += bad;
    return DQ_OK;
}

bool dq_documents_has_lines(const char *path)
{
    static const char suffix[] = ".jsonl";
    const size_t n = strlen(path), k = sizeof suffix - 1;
    return n >= k && strcmp(path + n - k, suffix) == 0;
}

dq_status dq_documents_add_line(dq_docs *d, const char *path, int64_t number, const char *text,
                                size_t len, dq_arena *a, dq_err *err)
{
    dq_doc one = {.path = path, .line = number};
    DQ_TRY(repair(d, &one.text, &one.len, path, text, len, a, err));
    return add_line(d, one, a, err);
}

bool dq_documents_are_json_lines(const char *text, size_t len)
{
    enum { LOOKED_AT = 16 };
    const char *line;
    size_t at = dq_utf8_mark(text, len), n;
    int lines = 0, objects = 0;
    while (lines < LOOKED_AT && dq_task_file_next_line(text, len, &at, &line, &n)) {
        json_t *o = NULL;
        dq_err err = {0};
        if (dq_task_file_is_blank(line, n)) continue;
        lines++;
        objects += *line == '{' && dq_json_parse_line(&o, line, n, "line", &err) == DQ_OK &&
                   json_object_size(o) > 0;
        json_decref(o);
    }
    return 2 * objects > lines;
}

dq_status dq_documents_add(dq_docs *d, const char *path, const char *text, size_t len, dq_arena *a,
                           dq_err *err)
{
    const char *fixed;
    size_t fixed_len;
    DQ_TRY(repair(d, &fixed, &fixed_len, path, text, len, a, err));
    dq_doc one = {.text = text, .len = len, .path = path};
    size_t at = dq_utf8_mark(fixed, fixed_len);
    const bool lines = dq_documents_has_lines(path);
    while (lines && dq_task_file_next_line(fixed, fixed_len, &at, &one.text, &one.len)) {
        one.line++;
        if (!dq_task_file_is_blank(one.text, one.len)) DQ_TRY(add_line(d, one, a, err));
    }
    if (lines) return DQ_OK;
    if (!d->lines_path && dq_documents_are_json_lines(fixed, fixed_len)) d->lines_path = path;
    one.words = count_words(fixed, fixed_len);
    return add(d, one, a, err);
}

/* Hashes of 16 tokens are counted in a table and computed anew at each place. */

static uint64_t hash_of(uint64_t h, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) h = dq_random_mix(h ^ (uint32_t)ids[i]);
    return dq_random_mix(h ^ (uint64_t)n);
}

dq_status dq_repeats_clusters(int32_t *cluster, int64_t *n_clusters, int64_t *n_copies,
                              const dq_repeats_run *run, int64_t n, dq_err *err)
{
    dq_map64 seen = {0};
    int64_t found = 0, copies = 0;
    DQ_TRY(dq_map64_new(&seen, (size_t)n + 1, NULL, err));
    for (int64_t i = 0, end; err->code == DQ_OK && i < n; i = end) {
        uint64_t h = 0;
        for (end = i; end < n && run[end].unit == run[i].unit; end++)
            h = hash_of(h, run[end].ids, run[end].n);
        uint64_t number = dq_map64_get(&seen, h); /* from 1 */
        copies += number > 0;
        if (number == 0) {
            number = (uint64_t)++found;
            dq_map64_put(&seen, h, number, err);
        }
        for (int64_t k = i; k < end; k++) cluster[k] = (int32_t)(number - 1);
    }
    dq_map64_free(&seen);
    *n_clusters = found;
    if (n_copies) *n_copies = copies;
    return err->code;
}

uint64_t dq_repeats_key(const char *s, size_t len)
{
    static const char space[] = {' ', '\t', '\n', '\v', '\f', '\r'};
    uint64_t key = 1;
    for (size_t i = 0, n; i < len; i += n + 1) {
        for (n = 0; i + n < len && !memchr(space, s[i + n], sizeof space);) n++;
        if (n) key = dq_random_mix(key ^ dq_strmap_hash(s + i, n));
    }
    return key;
}

dq_status dq_repeats_keys(const int32_t **cluster, const uint64_t *key, int64_t n, dq_arena *a,
                          dq_err *err)
{
    dq_map64 seen = {0};
    int32_t *of = dq_alloc(a, (size_t)n, sizeof *of, err);
    *cluster = NULL;
    if (!of) return err->code;
    DQ_TRY(dq_map64_new(&seen, (size_t)n + 1, NULL, err));
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        uint64_t number = dq_map64_get(&seen, key[i]);
        if (number == 0) dq_map64_put(&seen, key[i], number = seen.n + 1, err);
        of[i] = (int32_t)(number - 1);
    }
    if ((int64_t)seen.n < n) *cluster = of;
    dq_map64_free(&seen);
    return err->code;
}

dq_status dq_repeats_order(int64_t *at, int32_t *of, const int32_t *cluster, int64_t n, dq_err *err)
{
    for (int64_t i = 0; i < n; i++) at[i] = i;
    if (!cluster) return DQ_OK;
    int64_t *begin = dq_block_new((size_t)n + 1, sizeof *begin, err);
    if (!begin) return err->code;
    for (int64_t i = 0; i < n; i++) begin[cluster[i] + 1]++;
    for (int64_t c = 0; c < n; c++) begin[c + 1] += begin[c];
    for (int64_t i = 0; i < n; i++) {
        at[i] = begin[cluster[i]]++;
        of[at[i]] = cluster[i];
    }
    dq_block_free(begin);
    return DQ_OK;
}

dq_status dq_repeats_count(int64_t *n_places, int64_t *n_new, const dq_repeats_run *run, int64_t n,
                           dq_err *err)
{
    dq_map64 seen = {0};
    *n_places = *n_new = 0;
    DQ_TRY(dq_map64_new(&seen, 1024, NULL, err));
    for (int64_t i = 0; i < n && err->code == DQ_OK; i++) {
        for (int64_t k = 0; k + DQ_REPEATS_IDS <= run[i].n && err->code == DQ_OK; k++, ++*n_places)
            dq_map64_put(&seen, hash_of(0, run[i].ids + k, DQ_REPEATS_IDS), 1, err);
    }
    *n_new = (int64_t)seen.n;
    dq_map64_free(&seen);
    return err->code;
}

/* The first hash of the sketch that is not smaller. */
static int place_of(const dq_repeats_sketch *s, uint64_t hash)
{
    int low = 0, high = s->n;
    while (low < high) {
        const int mid = (low + high) / 2;
        if (s->hash[mid] < hash)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void dq_repeats_sketch_add(dq_repeats_sketch *s, const int32_t *ids, int64_t n)
{
    for (int64_t k = 0; k + DQ_REPEATS_IDS <= n; k++) {
        const uint64_t h = hash_of(0, ids + k, DQ_REPEATS_IDS);
        const int at = place_of(s, h);
        if (at == DQ_REPEATS_SKETCH || (at < s->n && s->hash[at] == h)) continue;
        if (s->n < DQ_REPEATS_SKETCH) s->n++;
        memmove(s->hash + at + 1, s->hash + at, (size_t)(s->n - at - 1) * sizeof *s->hash);
        s->hash[at] = h;
    }
}

void dq_repeats_sketch_find(bool *found, const dq_repeats_sketch *s, const int32_t *ids, int64_t n)
{
    for (int64_t k = 0; k + DQ_REPEATS_IDS <= n; k++) {
        const uint64_t h = hash_of(0, ids + k, DQ_REPEATS_IDS);
        const int at = place_of(s, h);
        if (at < s->n && s->hash[at] == h) found[at] = true;
    }
}

enum { DIGITS = 16 };

json_t *dq_repeats_sketch_json(const dq_repeats_sketch *s)
{
    char text[DIGITS * DQ_REPEATS_SKETCH + 1] = "";
    for (int i = 0; i < s->n; i++)
        snprintf(text + DIGITS * i, DIGITS + 1, "%016" PRIx64, s->hash[i]);
    return json_string(text);
}

bool dq_repeats_sketch_read(dq_repeats_sketch *s, const json_t *text)
{
    const char *digits = json_string_value(text);
    const size_t n = json_string_length(text);
    *s = (dq_repeats_sketch){.n = (int)(n / DIGITS)};
    if (!digits || n % DIGITS || n > (size_t)DIGITS * DQ_REPEATS_SKETCH) return false;
    for (int i = 0; i < s->n; i++) {
        char one[DIGITS + 1] = "", *end;
        memcpy(one, digits + (size_t)DIGITS * (size_t)i, DIGITS);
        s->hash[i] = strtoull(one, &end, 16);
        if (*end || (i && s->hash[i] <= s->hash[i - 1])) return false;
    }
    return true;
}

/* One function gives the i-th window of a document by scheme: its begin, first scored token and
 * length; counting, limits and cutting only call it. Windows point into the document unless they
 * change it. */

const char *const dq_scheme_name[DQ_SCHEMES] = {"chunk", "stride", "block", "rolling", "positions"};

int64_t dq_window_scored(const dq_window *w)
{
    return w->n - 1 - w->first + w->past;
}

int64_t dq_windows_values(const dq_windows *w, int64_t i)
{
    return i < w->n ? w->win[i].value : w->n_values;
}

dq_status dq_windows_hash(char hex[65], const dq_windows *w, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < w->n; i++) {
        const dq_window *x = &w->win[i];
        const int64_t head[] = {x->n, x->first, x->past, x->doc};
        dq_sha256_add(&h, head, sizeof head);
        dq_sha256_add(&h, x->ids, (size_t)(x->n + x->past) * sizeof *x->ids);
    }
    return dq_sha256_end(&h, hex, err);
}

bool dq_windows_alike(const dq_windows *w, int64_t begin, int64_t end)
{
    const dq_window *a = &w->win[begin];
    for (int64_t i = begin + 1; i < end; i++) {
        const dq_window *b = &w->win[i];
        if (b->n != a->n || b->first != a->first || b->past != a->past) return false;
    }
    return true;
}

typedef struct cutter {
    const dq_window_spec *spec;
    const dq_doc_ids *doc;
    int64_t index; /* of the document */
    int32_t before, bos;
    int64_t stride;
    int32_t
        *copy; /* of the document's tokens, for windows that change or precede them; NULL: none */
} cutter;

/* Whether a rolling document begins with the prefix itself. */
static bool spells_prefix(const cutter *c, const dq_doc_ids *d)
{
    return c->spec->scheme == DQ_WINDOW_ROLLING && d->n > 0 && d->n_before == 0 &&
           d->ids[0] == c->before;
}

/* i must be below count_windows. */
static dq_window window_at(const cutter *c, int64_t i)
{
    const int skip = spells_prefix(c, c->doc);
    const int64_t L = c->spec->n_ctx, n = c->doc->n - skip;
    const int32_t *ids = c->doc->ids;
    dq_window w = {.doc = c->index, .at = i * L, .n = L};
    switch (c->spec->scheme) {
    case DQ_WINDOW_CHUNK:
        w.first = L / 2;
        if (c->copy) ids = c->copy;
        break;
    case DQ_WINDOW_STRIDE:
        w.at = i * c->stride;
        if (n - w.at < L) w.n = n - w.at;
        if (i > 0) w.first = L - c->stride - 1; /* the window before ends there */
        break;
    case DQ_WINDOW_ROLLING: /* ids[-1] is the prefix */
        ids = (c->copy ? c->copy : ids) + 1;
        w.past = 1;
        w.at = -1;
        if (i == 0 && n < L) w.n = n;
        if (i == 0) break;
        w.at = (n - i * L < L ? n : (i + 1) * L) - L - 1;
        w.first = i * L - w.at - 1;
        break;
    case DQ_WINDOW_POSITIONS: w.past = 1; break;
    case DQ_WINDOW_BLOCK: break;
    }
    w.ids = ids + w.at;
    w.at += skip;
    return w;
}

static int64_t count_windows(const cutter *c, const dq_doc_ids *d)
{
    const int64_t L = c->spec->n_ctx, n = d->n - spells_prefix(c, d);
    switch (c->spec->scheme) {
    case DQ_WINDOW_STRIDE:
        if (n < 2) return 0;
        return n <= L ? 1 : 1 + (n - L + c->stride - 1) / c->stride;
    case DQ_WINDOW_ROLLING: return (n + L - 1) / L;
    case DQ_WINDOW_POSITIONS: return n > L;
    default: return n / L;
    }
}

/* A copy of the document that windows may change, or with the prefix in front. */
static dq_status copy_ids(cutter *c, dq_arena *a, dq_err *err)
{
    const int64_t L = c->spec->n_ctx, n = c->doc->n;
    bool rolling = c->spec->scheme == DQ_WINDOW_ROLLING;
    c->copy = NULL;
    if (spells_prefix(c, c->doc)) return DQ_OK;
    if (!rolling && (c->spec->scheme != DQ_WINDOW_CHUNK || c->bos < 0)) return DQ_OK;
    c->copy = dq_alloc(a, (size_t)n + 1, sizeof *c->copy, err);
    if (!c->copy) return err->code;
    memcpy(c->copy + rolling, c->doc->ids, (size_t)n * sizeof *c->copy);
    if (rolling) c->copy[0] = c->before;
    for (int64_t i = 0; !rolling && i < n; i += L) c->copy[i] = c->bos;
    return DQ_OK;
}

/* Cuts given ids. n_all: all documents; those after n_docs lie beyond the limit. before: the id
 * before the first, for `rolling`, -1: none; bos: overwrites the first of each chunk, -1: none. */
static dq_status cut(dq_windows *out, const dq_doc_ids *doc, int64_t n_docs, int64_t n_all,
                     const dq_window_spec *spec, int32_t before, int32_t bos, dq_arena *a,
                     dq_err *err)
{
    cutter c = {.spec = spec, .before = before, .bos = bos};
    int64_t all = 0;
    *out = (dq_windows){.doc = doc, .n_given = n_docs, .n_all = n_all};
    c.stride = spec->stride ? spec->stride : spec->n_ctx / 2;
    for (int64_t d = 0; d < n_docs; d++) {
        int64_t n = count_windows(&c, &doc[d]);
        out->n_ids += doc[d].n;
        out->n_short += n == 0;
        all += n;
    }
    if (all < (spec->scheme == DQ_WINDOW_CHUNK && n_all == 1 ? 2 : 1)) {
        /* Says why nothing can be scored. */
        enum { LEAST_CTX = 4 };
        const long long n = out->n_ids, L = spec->n_ctx;
        const long long need[DQ_SCHEMES] = {2 * L, 2, L, 1, L + 1};
        const char *name = dq_scheme_name[spec->scheme];
        if (out->n_all > 1)
            return dq_fail_with(
                err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
                "none of %lld documents is long enough (%s windows of %lld tokens need %lld). "
                "Use longer documents",
                (long long)out->n_all, name, L,
                spec->scheme == DQ_WINDOW_CHUNK ? L : need[spec->scheme]);
        if (spec->scheme == DQ_WINDOW_CHUNK && n < 2 * LEAST_CTX)
            return dq_fail(
                err, DQ_MISMATCH,
                "the text has %lld tokens, two of the smallest windows need %d. Use more text", n,
                2 * LEAST_CTX);
        if (spec->scheme == DQ_WINDOW_CHUNK)
            return dq_fail_with(
                err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CTX, .number = {n / 2}},
                "the text has %lld tokens, two windows of %lld need %lld", n, L, 2 * L);
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
                            "the text has %lld tokens, %s windows of %lld need %lld. Use more text",
                            n, name, L, need[spec->scheme]);
    }
    int64_t take = spec->limit && spec->limit < all ? spec->limit : all;
    dq_window *win = dq_alloc(a, (size_t)take, sizeof *win, err);
    if (!win) return err->code;
    out->win = win;
    for (c.index = 0; c.index < n_docs && out->n < take; c.index++) {
        c.doc = &doc[c.index];
        int64_t n = count_windows(&c, c.doc);
        if (n == 0) continue;
        DQ_TRY(copy_ids(&c, a, err));
        out->n_docs++;
        for (int64_t i = 0; i < n && out->n < take; i++) {
            dq_window w = window_at(&c, i);
            w.value = out->n_values;
            out->n_values += dq_window_scored(&w);
            if (w.n > out->longest) out->longest = w.n;
            win[out->n++] = w;
            out->cut = out->n == take && i + 1 < n;
        }
    }
    int32_t *cluster = dq_alloc(a, (size_t)out->n, sizeof *cluster, err);
    dq_repeats_run *run = dq_block_new((size_t)out->n, sizeof *run, err);
    for (int64_t i = 0; cluster && run && i < out->n; i++) {
        const dq_window *x = &out->win[i];
        const int64_t unit = out->n_docs < 2 ? i : x->doc;
        run[i] = (dq_repeats_run){x->ids, x->n + x->past, (int32_t)unit};
    }
    if (err->code == DQ_OK)
        dq_repeats_clusters(cluster, &out->n_clusters, &out->n_copies, run, out->n, err);
    dq_block_free(run);
    out->cluster = cluster;
    return err->code;
}

dq_status dq_windows_encode(dq_doc_ids *out, const dq_tokenizer *t, const dq_doc *d, dq_bos bos,
                            int64_t vocab, int64_t max, dq_arena *a, dq_err *err)
{
    const unsigned flags = dq_items_bos_flags(t, bos, d->text, d->len);
    int32_t *ids = NULL;
    int n_before, n_after;
    int64_t n = 0, n_bad;
    if (d->len == 0) return DQ_OK;
    dq_tokenizer_template(t, flags, &n_before, &n_after);
    DQ_TRY(dq_tokenizer_encode_first(t, d->text, d->len, flags, max, &ids, &n, NULL, &n_bad, err));
    *out = (dq_doc_ids){.n = n, .n_before = n_before, .n_after = n_after};
    out->ids = dq_tokenizer_keep(ids, n, vocab, a, err);
    dq_block_free(ids);
    return err->code;
}

dq_status dq_windows_make(dq_windows *out, const dq_tokenizer *t, const dq_docs *docs,
                          const dq_window_spec *spec, dq_arena *a, dq_err *err)
{
    const int32_t before = dq_tokenizer_prefix(t);
    int64_t with_text = 0;
    for (int64_t i = 0; i < docs->n; i++) with_text += docs->doc[i].len > 0;
    if (with_text == 0) return dq_fail(err, DQ_DAMAGED, "holds no text");
    DQ_TRY(dq_items_bos_check(t, spec->bos, err));
    if (spec->scheme == DQ_WINDOW_ROLLING && (before < 0 || before >= spec->vocab))
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_ROLLING},
                            "window rolling needs a token before a text; tokenizer_config.json "
                            "names neither bos_token nor eos_token");
    dq_doc_ids *ids = dq_alloc(a, (size_t)docs->n, sizeof *ids, err);
    if (!ids) return err->code;
    int64_t n = 0;
    /* Stops when the limit's windows exist, plus one that shows that the last document goes on. */
    const bool first = spec->limit > 0 && !spec->whole;
    const cutter c = {.spec = spec,
                      .before = dq_tokenizer_prefix(t),
                      .stride = spec->stride ? spec->stride : spec->n_ctx / 2};
    for (int64_t left = spec->limit; n < docs->n && (!first || left > 0); ++n) {
        const int64_t max = first ? (left + 2) * spec->n_ctx + 1 : 0;
        dq_doc_ids *d = &ids[n];
        DQ_TRY(dq_windows_encode(d, t, &docs->doc[n], spec->bos, spec->vocab, max, a, err));
        left -= count_windows(&c, d);
    }
    DQ_TRY(cut(out, ids, n, docs->n, spec, before, dq_items_bos(t, spec->bos), a, err));
    /* Words and bytes count only documents with windows. */
    int64_t last = -1;
    for (int64_t k = 0; k < out->n; k++) {
        const dq_doc *d = &docs->doc[out->win[k].doc];
        if (out->win[k].doc == last) continue;
        last = out->win[k].doc;
        out->n_words += d->words;
        out->bytes += (int64_t)d->len;
    }
    out->prefixed = spec->scheme == DQ_WINDOW_ROLLING;
    return DQ_OK;
}

/* Bigrams are counted in hash tables: the whole corpus, the current document (subtracted where the
 * corpus holds it) and the window so far. A scored token is a hit if its bigram occurred earlier in
 * the window and is not frequent in the corpus. */

enum { FIRST_PAIRS = 512 };

static uint64_t pair(int32_t first, int32_t second)
{
    return (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
}

typedef struct run {
    dq_map64 all, mine, seen; /* counts of bigrams: the corpus, the document, the window at hand */
    dq_slices *out;
    int64_t own_ids; /* of the document at hand */
    bool *hit;
} run;

static int64_t text_ids(const dq_doc_ids *d)
{
    int64_t n = d->n - d->n_before - d->n_after;
    return n > 0 ? n : 0;
}

static dq_status count(dq_map64 *b, const dq_doc_ids *d, dq_err *err)
{
    const int32_t *ids = d->ids + d->n_before;
    for (int64_t i = 1; i < text_ids(d); i++)
        DQ_TRY(dq_map64_count(b, pair(ids[i - 1], ids[i]), err));
    return DQ_OK;
}

static dq_status classify_all(run *x, const dq_windows *w, const dq_doc_ids *corpus,
                              int64_t n_corpus, dq_err *err)
{
    for (int64_t i = 0; i < n_corpus; i++) {
        x->out->counted += text_ids(&corpus[i]);
        DQ_TRY(count(&x->all, &corpus[i], err));
    }
    for (int64_t i = 0; i < w->n; i++) {
        const dq_doc_ids *d = &w->doc[w->win[i].doc];
        if (x->out->own && (i == 0 || w->win[i].doc != w->win[i - 1].doc)) {
            x->own_ids = text_ids(d);
            dq_map64_clear(&x->mine);
            DQ_TRY(count(&x->mine, d, err));
        }
        /* A bigram counts as seen only after its second id has been judged. */
        const dq_window *win = &w->win[i];
        dq_map64_clear(&x->seen);
        for (int64_t t = 1; t < win->n + win->past; t++) {
            const int32_t a = win->ids[t - 1], b = win->ids[t];
            bool hit = t > win->first && dq_map64_get(&x->seen, pair(a, b)) > 0;
            if (hit) { /* unless it is frequent */
                int64_t n = (int64_t)dq_map64_get(&x->all, pair(a, b)), ids = x->out->counted;
                if (x->out->own) n -= (int64_t)dq_map64_get(&x->mine, pair(a, b));
                if (x->out->own) ids -= x->own_ids;
                const double max = x->out->threshold * (double)ids / 1e10;
                hit = (double)n <= (max > 1 ? max : 1);
            }
            if (t > win->first) x->hit[win->value + t - win->first - 1] = hit;
            DQ_TRY(dq_map64_count(&x->seen, pair(a, b), err));
        }
    }
    return DQ_OK;
}

dq_status dq_slices_make(dq_slices *out, const dq_windows *w, const dq_doc_ids *corpus,
                         int64_t n_corpus, double threshold, dq_arena *a, dq_err *err)
{
    run x = {.out = out};
    x.hit = dq_alloc(a, (size_t)w->n_values, sizeof *x.hit, err);
    *out = (dq_slices){.hit = x.hit, .threshold = threshold, .own = corpus == NULL};
    if (x.hit && dq_map64_new(&x.all, FIRST_PAIRS, NULL, err) == DQ_OK &&
        dq_map64_new(&x.mine, FIRST_PAIRS, NULL, err) == DQ_OK &&
        dq_map64_new(&x.seen, FIRST_PAIRS, NULL, err) == DQ_OK)
        classify_all(&x, w, corpus ? corpus : w->doc, corpus ? n_corpus : w->n_given, err);
    dq_map64_free(&x.all);
    dq_map64_free(&x.mine);
    dq_map64_free(&x.seen);
    return err->code;
}
