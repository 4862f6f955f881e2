/* Context and choice are encoded as one text and cut where the context's own ids end, as lm-
 * evaluation-harness does; white space at the end of a context moves to the choice. Too long
 * requests lose the beginning of their context. A context that equals that of the choice before is
 * kept once.
 * SPDX-License-Identifier: MIT */
#include "tasks/items.h"
#include "base/base.h"
#include "base/text.h"

#include <string.h>

const char *const dq_bos_name[DQ_BOS_WHENS] = {"auto", "on", "off"};

size_t dq_items_strip_end(const char *s, size_t len)
{
    while (len > 0) {
        size_t bytes;
        if (!dq_utf8_is_strip(dq_utf8_last(s, len, &bytes))) break;
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

const char *dq_items_delimiter(const dq_items *items)
{
    for (int64_t i = 1; i < items->n; i++) {
        if (strcmp(items->item[i].delimiter, items->item[0].delimiter) != 0) return NULL;
    }
    return items->item[0].delimiter;
}

bool dq_item_has_two_spaces(const dq_item *item)
{
    for (int c = 0; c < item->n_choices; c++) {
        size_t n, bytes;
        const dq_choice *choice = &item->choice[c];
        const char *ctx = dq_item_context(item, c, &n);
        bool before = n && dq_utf8_is_strip(dq_utf8_last(ctx, n, &bytes));
        for (size_t at = 0; at < choice->len;) { /* the delimiter, then the choice, by its ends */
            const bool in_delimiter = at < choice->delimiter;
            const size_t end = in_delimiter ? choice->delimiter : choice->len;
            if (before && dq_utf8_is_strip(dq_utf8_first(choice->text + at, &bytes))) return true;
            before = dq_utf8_is_strip(dq_utf8_last(choice->text, end, &bytes));
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

static dq_status encode(const encoder *e, const char *s, size_t len, unsigned flags, ids *out,
                        dq_err *err)
{
    return dq_tokenizer_encode(e->t, s, len, flags, &out->p, &out->n, NULL, NULL, err);
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
    /* both in e->buf */
    const dq_choice *c = &item->choice[r->choice];
    size_t before_len;
    const char *context = dq_item_context(item, r->choice, &before_len);
    const size_t len = before_len + c->len;
    if (len + 1 > e->cap) {
        dq_block_free(e->buf);
        e->cap = 2 * len + 256;
        e->buf = dq_block_new(e->cap, 1, err);
        if (!e->buf) return err->code;
    }
    memcpy(e->buf, context, before_len);
    memcpy(e->buf + before_len, c->text, c->len);
    if (ctx_len == 0) return encode_bare(e, e->buf, len, r, before, err);
    DQ_TRY(encode(e, e->buf, len, dq_items_bos_flags(e->t, e->bos, e->buf, len), &w, err));
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
    return *len > 0 ? encode(e, s, *len, dq_items_bos_flags(e->t, e->bos, s, *len), ctx, err)
                    : DQ_OK;
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
