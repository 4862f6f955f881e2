/* Context and choice are encoded as one text and cut where the context's own ids end, as lm-
 * evaluation-harness does; white space at the end of a context moves to the choice. Too long
 * requests lose the beginning of their context. A context that equals that of the choice before is
 * kept once.
 * SPDX-License-Identifier: MIT */
#include "tasks/tasks.h"

#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/items.h"

#include <limits.h>
#include <string.h>
#include <utf8proc.h>

const char *const dq_bos_name[DQ_BOS_WHENS] = {"auto", "on", "off"};

bool dq_items_is_strip_space(uint32_t c)
{
    return dq_utf8_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

size_t dq_items_strip_end(const char *s, size_t len)
{
    while (len > 0) {
        size_t bytes;
        if (!dq_items_is_strip_space(dq_utf8_last(s, len, &bytes))) break;
        len -= bytes;
    }
    return len;
}

const char *dq_item_context(const dq_item *item, int choice, size_t *len)
{
    const dq_choice *c = &item->choice[choice];
    *len = c->ctx ? c->ctx_len : item->ctx_len;
    return c->ctx ? c->ctx : item->ctx;
}

bool dq_item_has_two_spaces(const dq_item *item)
{
    for (int c = 0; c < item->n_choices; c++) {
        size_t n, bytes;
        const dq_choice *choice = &item->choice[c];
        const char *ctx = dq_item_context(item, c, &n);
        bool before = n && dq_items_is_strip_space(dq_utf8_last(ctx, n, &bytes));
        for (size_t at = 0; at < choice->len;) { /* the delimiter, then the choice, by its ends */
            const bool in_delimiter = at < choice->delimiter;
            const size_t end = in_delimiter ? choice->delimiter : choice->len;
            if (before && dq_items_is_strip_space(dq_utf8_first(choice->text + at, &bytes)))
                return true;
            before = dq_items_is_strip_space(dq_utf8_last(choice->text, end, &bytes));
            at = end;
        }
    }
    return false;
}

static unsigned flags_of(dq_bos bos)
{
    return bos == DQ_BOS_OFF ? 0 : bos == DQ_BOS_ON ? DQ_TOK_SPECIAL | DQ_TOK_BOS : DQ_TOK_SPECIAL;
}

int32_t dq_items_bos(const dq_tokenizer *t, dq_bos bos)
{
    return dq_tokenizer_bos(t, flags_of(bos));
}

dq_status dq_items_bos_check(const dq_tokenizer *t, dq_bos bos, dq_err *err)
{
    if (bos == DQ_BOS_ON && dq_items_bos(t, bos) < 0)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_BOS_AUTO},
                            "tokenizer.json: its template begins with no token, and "
                            "tokenizer_config.json names no bos_token, so there is no BOS to add");
    return DQ_OK;
}

size_t dq_items_bos_spelled(const dq_tokenizer *t, dq_bos bos, const char *s, size_t len)
{
    size_t n = 0;
    const int32_t id = dq_items_bos(t, bos);
    const char *piece = id >= 0 ? dq_tokenizer_piece(t, id, &n) : NULL;
    return piece && n <= len && memcmp(piece, s, n) == 0 ? n : 0;
}

unsigned dq_items_bos_flags(const dq_tokenizer *t, dq_bos bos, const char *s, size_t len)
{
    return dq_items_bos_spelled(t, bos, s, len) ? 0 : flags_of(bos);
}

typedef struct encoder {
    const dq_tokenizer *t;
    dq_bos bos;
    int64_t max_len, vocab;
    dq_arena *a;
    char *buf; /* context and choice in one piece, grown as needed; dq_block */
    size_t cap;
    bool bare; /* a context was empty */
} encoder;

typedef struct ids {
    int32_t *p; /* dq_block */
    int64_t n;
} ids;

static unsigned flags_for(const encoder *e, const char *s, size_t len)
{
    return dq_items_bos_flags(e->t, e->bos, s, len);
}

static dq_status encode(const encoder *e, const char *s, size_t len, unsigned flags, ids *out,
                        dq_err *err)
{
    return dq_tokenizer_encode(e->t, s, len, flags, &out->p, &out->n, NULL, NULL, err);
}

/* In e->buf. */
static dq_status join(encoder *e, const dq_item *item, int choice, size_t *len, dq_err *err)
{
    const dq_choice *c = &item->choice[choice];
    size_t ctx_len;
    const char *ctx = dq_item_context(item, choice, &ctx_len);
    *len = ctx_len + c->len;
    if (*len + 1 > e->cap) {
        dq_block_free(e->buf);
        e->cap = 2 * *len + 256;
        e->buf = dq_block_new(e->cap, 1, err);
        if (!e->buf) return err->code;
    }
    memcpy(e->buf, ctx, ctx_len);
    memcpy(e->buf + ctx_len, c->text, c->len);
    return DQ_OK;
}

/* Keeps the last max_len + 1 tokens; a context equal to that of the choice `before` (NULL: none) is
 * shared. */
static dq_status store(const encoder *e, dq_request *r, const dq_request *before,
                       const int32_t *ctx, int64_t n_ctx, const int32_t *cont, int64_t n_cont,
                       dq_err *err)
{
    if (n_ctx < 1)
        return dq_fail(err, DQ_MISMATCH, "the context gives no tokens; give it some text");
    if (n_cont < 1)
        return dq_fail(err, DQ_MISMATCH,
                       "choice %d adds no tokens to its context; give it some text", r->choice);
    if (n_cont > e->max_len)
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SKIP_ITEM},
            "choice %d has %lld tokens, the model has %lld positions; remove the item", r->choice,
            (long long)n_cont, (long long)e->max_len);
    int64_t capacity = e->max_len + 1 - n_cont;
    r->truncated = n_ctx > capacity;
    if (r->truncated) {
        ctx += n_ctx - capacity;
        n_ctx = capacity;
    }
    if (before && before->n_ctx == n_ctx &&
        memcmp(before->ctx, ctx, (size_t)n_ctx * sizeof *ctx) == 0)
        r->ctx = before->ctx;
    else
        r->ctx = dq_tokenizer_keep(ctx, n_ctx, e->vocab, e->a, err);
    r->n_ctx = n_ctx;
    r->n_cont = n_cont;
    if (r->ctx) r->cont = dq_tokenizer_keep(cont, n_cont, e->vocab, e->a, err);
    return err->code;
}

/* Without a context the model gets the prefix id, or the choice's own first id if equal. */
static dq_status encode_bare(const encoder *e, const char *s, size_t len, dq_request *r,
                             const dq_request *before, dq_err *err)
{
    ids w = {0};
    int32_t prefix = dq_tokenizer_prefix(e->t);
    DQ_TRY(encode(e, s, len, 0, &w, err));
    if (w.n > 0 && w.p[0] == prefix)
        store(e, r, before, w.p, 1, w.p + 1, w.n - 1, err);
    else if (prefix < 0)
        dq_fail(err, DQ_MISMATCH,
                "the context is empty and tokenizer_config.json names neither bos_token nor "
                "eos_token to stand in its place");
    else
        store(e, r, before, &prefix, 1, w.p, w.n, err);
    dq_block_free(w.p);
    return err->code;
}

static dq_status encode_choice(encoder *e, const dq_item *item, size_t ctx_len, const ids *ctx,
                               dq_request *r, dq_err *err)
{
    const dq_request *before = r->choice > 0 ? r - 1 : NULL;
    ids w = {0};
    size_t len;
    DQ_TRY(join(e, item, r->choice, &len, err));
    if (ctx_len == 0) return encode_bare(e, e->buf, len, r, before, err);
    DQ_TRY(encode(e, e->buf, len, flags_for(e, e->buf, len), &w, err));
    int64_t n_cont = w.n > ctx->n ? w.n - ctx->n : 0;
    store(e, r, before, ctx->p, ctx->n, w.p + (w.n - n_cont), n_cont, err);
    dq_block_free(w.p);
    return err->code;
}

/* Ids of a choice's context without trailing white space, replacing *ctx. */
static dq_status encode_context(const encoder *e, const dq_item *item, int choice, ids *ctx,
                                size_t *len, dq_err *err)
{
    const char *s = dq_item_context(item, choice, len);
    *len = dq_items_strip_end(s, *len);
    dq_block_free(ctx->p);
    *ctx = (ids){0};
    return *len > 0 ? encode(e, s, *len, flags_for(e, s, *len), ctx, err) : DQ_OK;
}

static dq_status encode_item(encoder *e, const dq_item *item, dq_request *req, int64_t index,
                             bool *truncated, dq_err *err)
{
    ids ctx = {0};
    size_t ctx_len = 0;
    for (int c = 0; err->code == DQ_OK && c < item->n_choices; c++) {
        req[c].item = index;
        req[c].choice = c;
        if ((c == 0 || item->choice[c].ctx) &&
            encode_context(e, item, c, &ctx, &ctx_len, err) != DQ_OK)
            break;
        encode_choice(e, item, ctx_len, &ctx, &req[c], err);
        e->bare = e->bare || ctx_len == 0;
        *truncated = *truncated || req[c].truncated;
    }
    dq_block_free(ctx.p);
    if (err->code == DQ_OK) return DQ_OK;
    return dq_in(err, "item %lld, line %lld: ", (long long)index, (long long)item->line);
}

dq_status dq_items_encode(dq_requests *out, const dq_items *items, const dq_tokenizer *t,
                          dq_bos bos, int64_t max_len, int64_t vocab, dq_arena *a, dq_err *err)
{
    encoder e = {.t = t, .bos = bos, .max_len = max_len, .vocab = vocab, .a = a};
    memset(out, 0, sizeof *out);
    DQ_TRY(dq_items_bos_check(t, bos, err));
    int64_t *at = dq_alloc(a, (size_t)items->n + 1, sizeof *at, err);
    if (!at) return err->code;
    for (int64_t i = 0; i < items->n; i++) at[i + 1] = at[i] + items->item[i].n_choices;
    dq_request *req = dq_alloc(a, (size_t)at[items->n], sizeof *req, err);
    if (!req) return err->code;
    for (int64_t i = 0; err->code == DQ_OK && i < items->n; i++) {
        bool truncated = false;
        encode_item(&e, &items->item[i], req + at[i], i, &truncated, err);
        out->n_truncated += truncated;
    }
    dq_block_free(e.buf);
    out->req = req;
    out->at = at;
    out->n = at[items->n];
    out->n_items = items->n;
    out->prefixed = e.bare;
    for (int64_t k = 0; k < out->n; k++) {
        req[k].value = out->n_values;
        out->n_values += req[k].n_cont;
    }
    return err->code;
}

const dq_shared_prefix *dq_items_shared_prefix(const dq_requests *q, int64_t item)
{
    static const dq_shared_prefix none = {.end = INT64_MAX};
    int64_t low = 0, high = q->n_shared_prefixes;
    while (low < high) { /* the first shared prefix that ends after the item */
        int64_t mid = low + (high - low) / 2;
        if (q->shared_prefix[mid].end > item)
            high = mid;
        else
            low = mid + 1;
    }
    return low < q->n_shared_prefixes ? &q->shared_prefix[low] : &none;
}

int64_t dq_items_values(const dq_requests *q, int64_t item)
{
    return q->at[item] < q->n ? q->req[q->at[item]].value : q->n_values;
}

bool dq_task_file_next_line(const char *text, size_t len, size_t *at, const char **line, size_t *n)
{
    if (*at >= len) return false;
    const char *nl = memchr(text + *at, '\n', len - *at);
    *line = text + *at;
    *n = nl ? (size_t)(nl - *line) : len - *at;
    *at += *n + (nl != NULL);
    return true;
}

static bool is_white(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool dq_task_file_is_blank(const char *line, size_t n)
{
    while (n > 0 && is_white(line[n - 1])) n--;
    return n == 0;
}

int64_t dq_task_file_count(const char *text, size_t len)
{
    const char *line;
    size_t at = dq_utf8_mark(text, len), n;
    int64_t found = 0;
    while (dq_task_file_next_line(text, len, &at, &line, &n))
        found += !dq_task_file_is_blank(line, n);
    return found;
}

dq_status dq_task_file_objects(const char *text, size_t len, const char *what, int64_t limit,
                               dq_task_take *take, void *arg, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    int64_t taken = 0;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        json_t *o = NULL;
        if (limit && taken == limit) break;
        if (dq_task_file_is_blank(s, n)) continue;
        DQ_TRY(dq_os_check_stop(err));
        dq_json_parse_line(&o, s, n, what, err);
        if (err->code == DQ_OK && !json_is_object(o))
            dq_fail(err, DQ_DAMAGED, "expected a JSON object");
        if (err->code == DQ_OK) take(arg, o, line, err);
        json_decref(o);
        if (err->code != DQ_OK) return dq_in(err, "line %lld: ", (long long)line);
        taken++;
    }
    return DQ_OK;
}

dq_status dq_task_file_text(const char **text, size_t *len, int64_t *n_bad, int64_t *first_bad,
                            dq_arena *a, dq_err *err)
{
    *first_bad = -1;
    *n_bad = dq_utf8_check(*text, *len, first_bad);
    if (*n_bad > 0) {
        char *fixed = dq_alloc(a, *len + 2 * (size_t)*n_bad + 1, 1, err);
        if (!fixed) return err->code;
        *len = dq_utf8_repair(fixed, *text, *len);
        *text = fixed;
    }
    const size_t mark = dq_utf8_mark(*text, *len);
    *text += mark;
    *len -= mark;
    return DQ_OK;
}

dq_status dq_task_file_read_cluster(uint64_t *out, const json_t *o, dq_err *err)
{
    const json_t *v = json_object_get(o, "cluster");
    if (json_is_integer(v))
        *out = dq_random_mix((uint64_t)json_integer_value(v));
    else if (json_is_string(v))
        *out = dq_strmap_hash(json_string_value(v), json_string_length(v));
    else if (v)
        return dq_json_wrong("cluster", "a text or an integer", v, err);
    return DQ_OK;
}

/* The decimal number in s[len] minus `first`, white space aside; -1 unless in 0 .. n - 1. */
static int index_of(const char *s, size_t len, int first, int n)
{
    int64_t x = 0;
    while (len > 0 && is_white(s[len - 1])) len--;
    while (len > 0 && is_white(*s)) s++, len--;
    if (len == 0 || len > 9) return -1;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        x = 10 * x + (s[i] - '0');
    }
    return x >= first && x < (int64_t)first + n ? (int)(x - first) : -1;
}

/* A key that counts n things from `first`, a number or a string. *out counts from 0; an absent key
 * gives *fallback, or DQ_DAMAGED without one. */
static dq_status read_index(int *out, const json_t *o, const char *key, int first, int n,
                            const int *fallback, dq_err *err)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);
    int64_t index;
    if (fallback && (!v || json_is_null(v))) {
        *out = *fallback;
        return DQ_OK;
    }
    if (!text) {
        DQ_TRY(dq_json_int(&index, o, key, first, first + n - 1, NULL, err));
        *out = (int)index - first;
        return DQ_OK;
    }
    *out = index_of(text, json_string_length(v), first, n);
    if (*out >= 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %d to %d, found \"%.40s\"", key, first,
                   first + n - 1, text);
}

/* Texts of choices, or {"text", "label"} of each, or lists of both. *label: [n_choices], NULL where
 * there is none. Where each choice has a context of its own, all may share one text. */
static dq_status read_choices(dq_item *item, const char ***label, const dq_task *t, const json_t *o,
                              dq_arena *a, dq_err *err)
{
    const char *key = t->key[DQ_TASK_CHOICE];
    const json_t *all = json_object_get(o, key), *ctx = json_object_get(o, t->key[DQ_TASK_TEXT]);
    const json_t *texts = json_is_object(all) ? json_object_get(all, "text") : all;
    const bool own = json_is_array(ctx), each = json_is_object(json_array_get(texts, 0));
    const bool labelled = json_is_object(all) || each;
    const size_t n = own ? json_array_size(ctx) : json_array_size(texts);
    if (!all) return dq_fail(err, DQ_DAMAGED, "key \"%s\" is missing", key);
    if (n < 2 || n > INT_MAX)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected at least two choices, found %zu", key,
                       n);
    dq_choice *c = dq_alloc(a, n, sizeof *c, err);
    *label = dq_alloc(a, n, sizeof **label, err);
    if (!c || !*label) return err->code;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(texts) ? json_array_get(texts, i) : texts;
        const json_t *name =
            each ? json_object_get(one, "label") : json_array_get(json_object_get(all, "label"), i);
        if (each) one = json_object_get(one, "text");
        const char *s = json_string_value(one);
        (*label)[i] = json_string_value(name);
        if (!s || strlen(s) != json_string_length(one) || (labelled && !(*label)[i]))
            return dq_fail(err, DQ_DAMAGED, "key \"%s\": entry %zu %s", key, i,
                           labelled ? "lacks a string \"text\" or \"label\""
                                    : "is not a string without NUL");
        c[i].points = dq_utf8_count(s, strlen(s)); /* of the text alone */
        c[i].delimiter = strlen(item->delimiter);
        c[i].text = dq_textf(a, err, "%s%s", item->delimiter, s);
        if (!c[i].text) return err->code;
        c[i].len = strlen(c[i].text);
        if (!own) continue;
        c[i].ctx = json_string_value(json_array_get(ctx, i));
        c[i].ctx_len = json_string_length(json_array_get(ctx, i));
        if (!c[i].ctx || strlen(c[i].ctx) != c[i].ctx_len)
            return dq_json_wrong(t->key[DQ_TASK_TEXT], "a list of texts without NUL", ctx, err);
        c[i].ctx = dq_text(a, c[i].ctx, c[i].ctx_len, err);
        if (!c[i].ctx) return err->code;
        if (c[i].points == 0) c[i].points = 1; /* of one text for all, acc_norm is acc */
    }
    item->choice = c;
    item->n_choices = (int)n;
    return DQ_OK;
}

/* The label of a choice, or its number from the task's first, as a number or a text. */
static dq_status read_target(dq_item *item, const char *const *label, const dq_task *t,
                             const json_t *o, dq_err *err)
{
    static const int none = -1;
    const char *key = t->key[DQ_TASK_TARGET];
    const int first = t->first_label > 0 ? t->first_label : 0;
    const char *text = json_string_value(json_object_get(o, key));
    size_t bytes;
    item->gold = -1;
    if (!label[0]) { /* copies of a test split have an empty answer */
        if (text && !*text && t->first_label >= 0) return DQ_OK;
        return read_index(&item->gold, o, key, first, item->n_choices,
                          t->first_label < 0 ? NULL : &none, err);
    }
    DQ_TRY(dq_json_text(&text, o, key, NULL, err));
    const char *at = text;
    while (*at && dq_items_is_strip_space(dq_utf8_first(at, &bytes))) at += bytes;
    for (item->gold = 0; item->gold < item->n_choices; item->gold++) {
        if (strcmp(label[item->gold], at) == 0) return DQ_OK;
    }
    dq_fail(err, DQ_DAMAGED, "key \"%s\": expected one of the labels ", key);
    for (int i = 0; i < item->n_choices && i < 12; i++)
        dq_fail_more(err, dq_remedy_none, "%s%.8s", i ? ", " : "", label[i]);
    return dq_fail_more(err, dq_remedy_none, ", found \"%.40s\"", text);
}

typedef struct reader {
    const dq_task *task;
    dq_arena *a;
    dq_item *item; /* [n] */
    int64_t n;
    size_t cap;
} reader;

static dq_status add_record(void *arg, json_t *o, int64_t line, dq_err *err)
{
    reader *r = arg;
    const dq_task *t = r->task;
    dq_arena *a = r->a;
    const char *s, **label = NULL, *const *key = t->key;
    dq_item *list = dq_grow(a, r->item, (size_t)r->n + 1, &r->cap, sizeof *list, err);
    if (!list) return err->code;
    r->item = list;
    dq_item *item = &list[r->n++];
    *item = (dq_item){.line = line};
    DQ_TRY(dq_task_make(t, o, err));
    if (!json_is_array(json_object_get(o, key[DQ_TASK_TEXT]))) {
        DQ_TRY(dq_json_text(&s, o, key[DQ_TASK_TEXT], NULL, err));
        item->ctx_len = strlen(s);
        item->ctx = dq_text(a, s, item->ctx_len, err);
        if (!item->ctx) return err->code;
    }
    item->delimiter = t->delimiter;
    if (key[DQ_TASK_DELIMITER]) {
        DQ_TRY(dq_json_text(&s, o, key[DQ_TASK_DELIMITER], NULL, err));
        item->delimiter = dq_text(a, s, strlen(s), err);
        if (!item->delimiter) return err->code;
    }
    DQ_TRY(read_choices(item, &label, t, o, a, err));
    DQ_TRY(read_target(item, label, t, o, err));
    if (key[DQ_TASK_PASSAGE]) {
        DQ_TRY(dq_json_text(&s, o, key[DQ_TASK_PASSAGE], NULL, err));
        item->cluster = dq_repeats_key(s, strlen(s));
    }
    return dq_task_file_read_cluster(&item->cluster, o, err);
}

enum { TEXT_LINES = 6, TEXT_ENDINGS = 4 };

/* HellaSwag's other form, as a record {"six_lines": true, "ctx", "label", "endings"} an item. At
 * most `limit` items (0: all). */
static dq_status read_six_lines(reader *r, const char *text, size_t len, int64_t limit, dq_err *err)
{
    const char *s;
    char *line[TEXT_LINES];
    size_t at = 0, n;
    int64_t number = 0;
    int have = 0;
    while (!(limit && r->n == limit) && dq_task_file_next_line(text, len, &at, &s, &n)) {
        number++;
        n -= n > 0 && s[n - 1] == '\r'; /* lines end at U+000A; before it, U+000D is no text */
        if (memchr(s, 0, n))
            return dq_fail(err, DQ_DAMAGED, "item %lld, line %lld: contains a NUL", (long long)r->n,
                           (long long)number);
        line[have] = dq_text(r->a, s, n, err);
        if (!line[have]) return err->code;
        if (++have < TEXT_LINES) continue;
        const int64_t i = r->n, first = number - TEXT_LINES + 1;
        const char *label = line[1];
        if (label[0] < '0' || label[0] >= '0' + TEXT_ENDINGS || label[1])
            return dq_fail(err, DQ_DAMAGED,
                           "item %lld, line %lld: expected a label from 0 to %d, found \"%.40s\"",
                           (long long)i, (long long)first + 1, TEXT_ENDINGS - 1, label);
        json_t *o = json_pack("{s:b, s:s, s:s, s:[ssss]}", "six_lines", 1, "ctx", line[0], "label",
                              label, "endings", line[2], line[3], line[4], line[5]);
        if (!o) return dq_fail(err, DQ_RESOURCE, "out of memory");
        add_record(r, o, first, err);
        json_decref(o);
        if (err->code != DQ_OK)
            return dq_in(err, "item %lld, line %lld: ", (long long)i, (long long)first);
        have = 0;
    }
    if (have)
        return dq_fail(err, DQ_DAMAGED,
                       "item %lld, line %lld: the last item has %d lines (expected %d: context, "
                       "label, four endings)",
                       (long long)r->n, (long long)number, have, TEXT_LINES);
    return DQ_OK;
}

dq_status dq_shots_begin(dq_shots_draw *d, uint64_t seed, dq_arena *a, dq_err *err)
{
    d->at = dq_alloc(a, (size_t)(d->n + d->spare), sizeof *d->at, err);
    d->other = dq_alloc(a, (size_t)d->n_all, sizeof *d->other, err);
    dq_random_mt_seed(&d->random, seed);
    return err->code;
}

static dq_status sample(dq_shots_draw *d, int64_t of, int64_t n, dq_err *err)
{
    for (int64_t i = 0; d->first && i < n; i++) d->at[i] = i;
    return d->first ? DQ_OK : dq_random_mt_sample(&d->random, d->at, of, n, err);
}

dq_status dq_shots_next(dq_shots_draw *d, uint64_t content, int64_t *left, dq_err *err)
{
    const int64_t all = d->n + d->spare;
    int64_t kept = 0, n = 0;
    DQ_TRY(sample(d, d->n_all, all, err));
    for (int64_t i = 0; i < all; i++) {
        if (d->content[d->at[i]] != content) d->at[kept++] = d->at[i];
    }
    d->n_own += kept < all;
    *left = kept;
    if (kept >= d->n) return DQ_OK;
    /* The pool may hold an item more than once, so that the spare does not suffice. */
    for (int64_t i = 0; i < d->n_all; i++) {
        if (d->content[i] != content) d->other[n++] = i;
    }
    *left = n;
    if (n < d->n) return DQ_OK;
    DQ_TRY(sample(d, n, d->n, err));
    for (int64_t i = 0; i < d->n; i++) d->at[i] = d->other[d->at[i]];
    return DQ_OK;
}

typedef struct drawer {
    const dq_items *pool;
    dq_shots_draw draw;
    int64_t scored; /* index of the item that examples are drawn for */
    dq_strbuf text;
} drawer;

static void say_examples(int64_t n, dq_err *err)
{
    dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_EXAMPLES, .number = {n}}, "%lld examples",
                 (long long)n);
}

/* Context, answer and two newlines. An empty answer after a choice's own context leaves the context
 * alone. */
static dq_status add_example(drawer *d, const dq_item *item, dq_err *err)
{
    size_t n;
    const dq_choice *c = &item->choice[item->gold];
    const char *ctx = dq_item_context(item, item->gold, &n);
    DQ_TRY(dq_strbuf_add(&d->text, ctx, n, err));
    if (c->ctx && c->len == c->delimiter) return DQ_OK;
    DQ_TRY(dq_strbuf_add(&d->text, c->text, c->len, err));
    return dq_strbuf_add(&d->text, "\n\n", 2, err);
}

static const char *joined(const drawer *d, const char *ctx, size_t *len, dq_arena *a, dq_err *err)
{
    char *s = dq_alloc(a, d->text.n + *len + 1, 1, err);
    if (!s) return NULL;
    if (d->text.n) memcpy(s, d->text.s, d->text.n);
    memcpy(s + d->text.n, ctx, *len);
    *len += d->text.n;
    return s;
}

static dq_status add_examples(drawer *d, dq_item *item, dq_arena *a, dq_err *err)
{
    int64_t left;
    d->text.n = 0;
    DQ_TRY(dq_shots_next(&d->draw, item->content, &left, err));
    if (left < d->draw.n) {
        dq_fail(err, DQ_MISMATCH,
                "has %lld items that differ from the one that is scored, item %lld, line %lld "
                "(expected %lld for ",
                (long long)left, (long long)d->scored, (long long)item->line, (long long)d->draw.n);
        say_examples(d->draw.n, err);
        return dq_fail_more(err, dq_remedy_none, "). Use a larger file or fewer examples");
    }
    for (int64_t i = 0; i < d->draw.n; i++)
        DQ_TRY(add_example(d, &d->pool->item[d->draw.at[i]], err));
    dq_choice *c = dq_alloc(a, (size_t)item->n_choices, sizeof *c, err);
    if (!c) return err->code;
    memcpy(c, item->choice, (size_t)item->n_choices * sizeof *c);
    if (item->ctx) item->ctx = joined(d, item->ctx, &item->ctx_len, a, err);
    for (int k = 0; k < item->n_choices; k++) {
        if (c[k].ctx) c[k].ctx = joined(d, c[k].ctx, &c[k].ctx_len, a, err);
    }
    item->choice = c;
    return err->code;
}

dq_status dq_fewshot(dq_items *items, int64_t *n_own, const dq_items *pool, const dq_task *task,
                     int64_t n, uint64_t seed, dq_arena *a, dq_err *err)
{
    const int64_t spare = task->draws_extra;
    *n_own = 0;
    if (n == 0) return DQ_OK;
    if (pool->n < n + spare) {
        dq_fail(err, DQ_MISMATCH, "has %lld items (expected at least %lld for ", (long long)pool->n,
                (long long)(n + spare));
        say_examples(n, err);
        return dq_fail_more(err, dq_remedy_none, "%s). Use a larger file or fewer examples",
                            spare ? ": one more is drawn, to leave out the item itself" : "");
    }
    dq_item *item = dq_alloc(a, (size_t)items->n, sizeof *item, err);
    uint64_t *content = dq_alloc(a, (size_t)pool->n, sizeof *content, err);
    if (!item || !content) return err->code;
    for (int64_t i = 0; i < pool->n; i++) content[i] = pool->item[i].content;
    drawer d = {.pool = pool,
                .draw = {.content = content, .n_all = pool->n, .n = n, .spare = spare}};
    DQ_TRY(dq_shots_begin(&d.draw, seed, a, err));
    memcpy(item, items->item, (size_t)items->n * sizeof *item);
    for (d.scored = 0; err->code == DQ_OK && d.scored < items->n; d.scored++)
        add_examples(&d, &item[d.scored], a, err);
    dq_block_free(d.text.s);
    items->item = item;
    *n_own = d.draw.n_own;
    return err->code;
}

char *dq_task_labels_path(const char *path, dq_arena *a, dq_err *err)
{
    static const char end[] = ".jsonl";
    size_t n = strlen(path), m = sizeof end - 1;
    if (n > m && strcmp(path + n - m, end) == 0) n -= m;
    return dq_textf(a, err, "%.*s-labels.lst", (int)n, path);
}

/* A labels file covers all items of the data file. */
static dq_status apply_labels(reader *l, const dq_items *file, int64_t n_items, dq_err *err)
{
    const char *line;
    size_t at = dq_utf8_mark(file->labels, file->labels_len), n;
    int64_t number = 0, i = 0;
    while (dq_task_file_next_line(file->labels, file->labels_len, &at, &line, &n)) {
        number++;
        if (dq_task_file_is_blank(line, n)) continue;
        if (i == n_items)
            return dq_fail(err, DQ_DAMAGED,
                           "line %lld: is after the labels of all %lld items (expected as many "
                           "labels as items)",
                           (long long)number, (long long)n_items);
        int n_choices = l->item[i < l->n ? i : 0].n_choices;
        int gold = index_of(line, n, l->task->first_label, n_choices);
        if (gold < 0)
            return dq_fail(err, DQ_DAMAGED,
                           "item %lld, line %lld: expected a label from %d to %d, found \"%.*s\"",
                           (long long)i, (long long)number, l->task->first_label,
                           l->task->first_label + n_choices - 1, n < 40 ? (int)n : 40, line);
        if (i < l->n && l->item[i].gold < 0) l->item[i].gold = gold;
        i++;
    }
    if (i < n_items)
        return dq_fail(err, DQ_DAMAGED,
                       "line %lld: the labels end (expected one for each of %lld items)",
                       (long long)number, (long long)n_items);
    return DQ_OK;
}

static dq_status find_labels(dq_items *out, reader *l, const char *path, const char *text,
                             size_t len, dq_err *err)
{
    bool lacking = false;
    for (int64_t i = 0; i < l->n; i++) lacking = lacking || l->item[i].gold < 0;
    if (!lacking) return DQ_OK;
    char *labels, *labels_path = dq_task_labels_path(path, l->a, err);
    if (!labels_path) return err->code;
    if (!dq_file_exists(labels_path))
        return dq_fail(err, DQ_FILE,
                       "%s: is missing; the items of %s have no answers of their own. Put the file "
                       "of labels there",
                       labels_path, path);
    DQ_TRY(dq_file_read_text(&labels, &out->labels_len, labels_path, 0, l->a, err));
    out->labels = labels;
    out->labels_path = labels_path;
    if (apply_labels(l, out, dq_task_file_count(text, len), err) == DQ_OK) return DQ_OK;
    return dq_in(err, "%s: ", labels_path);
}

dq_status dq_task_load(dq_items *out, const dq_task *task, const char *path, const char *text,
                       size_t len, int64_t limit, dq_arena *a, dq_err *err)
{
    reader r = {.task = task, .a = a};
    dq_task_reader records = {.task = task, .take = add_record, .arg = &r, .limit = limit};
    size_t first = 0;
    *out = (dq_items){.n = 0};
    DQ_TRY(dq_task_file_text(&text, &len, &out->n_bad, &out->first_bad, a, err));
    while (first < len && dq_task_file_is_blank(text + first, 1)) first++;
    if (task->six_lines && !(first < len && text[first] == '{'))
        read_six_lines(&r, text, len, limit, err);
    else
        dq_task_records(&records, text, len, err);
    if (err->code == DQ_OK && r.n == 0)
        dq_fail(err, DQ_DAMAGED, "holds no items (expected %s)", task->form);
    else if (err->code == DQ_DAMAGED && records.n == 0 &&
             r.n <= 1) /* the file probably has another form */
        dq_fail_more(err, dq_remedy_none, " (expected %s)", task->form);
    if (err->code != DQ_OK) return dq_in(err, "%s: ", path);
    DQ_TRY(find_labels(out, &r, path, text, len, err));
    for (int64_t i = 0; i < r.n; i++) {
        uint64_t sum = 0;
        for (int c = 0; c < r.item[i].n_choices; c++) {
            size_t n;
            const char *ctx = dq_item_context(&r.item[i], c, &n);
            sum += dq_random_mix(dq_repeats_key(r.item[i].choice[c].text, r.item[i].choice[c].len) +
                                 dq_random_mix(dq_repeats_key(ctx, n)));
        }
        r.item[i].content = dq_random_mix(sum);
        if (!r.item[i].cluster) r.item[i].cluster = r.item[i].content;
    }
    out->item = r.item;
    out->n = r.n;
    return DQ_OK;
}
