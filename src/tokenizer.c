/* tokenizer: see tokenizer.h.
 * SPDX-License-Identifier: MIT */
#include "tokenizer_impl.h"

#include "utf8.h"

#include <stdlib.h>

void dq_tokenizer_free(dq_tokenizer *t)
{
    if (!t) return;
    dq_pretokenizer_free(&t->pre);
    dq_arena_free(t->arena); /* t itself is in it */
}

const dq_piece *dq_tokenizer_find(const dq_tokenizer *t, int32_t id)
{
    size_t lo = 0, hi = t->n_pieces;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t->piece[mid].id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < t->n_pieces && t->piece[lo].id == id ? &t->piece[lo] : NULL;
}

int dq_tokenizer_vocab(const dq_tokenizer *t)
{
    return t->n_pieces ? t->piece[t->n_pieces - 1].id + 1 : 0;
}

void dq_tokenizer_template(const dq_tokenizer *t, int *n_before, int *n_after)
{
    *n_before = t->n_before;
    *n_after = t->n_after;
}

int32_t dq_tokenizer_bos(const dq_tokenizer *t)
{
    return t->n_before ? t->before[0] : -1;
}

int32_t dq_tokenizer_prefix(const dq_tokenizer *t)
{
    return t->prefix;
}

const char *dq_tokenizer_piece(const dq_tokenizer *t, int32_t id, size_t *len)
{
    const dq_piece *p = dq_tokenizer_find(t, id);
    if (!p) return NULL;
    *len = p->len;
    return p->text;
}

/* One call of dq_tokenizer_encode. */
typedef struct encoding {
    const dq_tokenizer *t;
    dq_pretokenize_run cut;
    dq_bpe_run merge;
} encoding;

static dq_status on_word(void *arg, const char *word, size_t len, dq_err *err)
{
    encoding *e = arg;
    return dq_bpe_word(&e->merge, word, len, err);
}

static dq_status on_token(void *arg, const dq_added *token, dq_err *err)
{
    encoding *e = arg;
    return dq_bpe_push(&e->merge, token->id, err);
}

static dq_status on_plain_text(void *arg, const char *text, size_t len, dq_err *err)
{
    encoding *e = arg;
    return dq_pretokenize(&e->cut, text, len, err);
}

/* Text between the tokens found in the raw text: normalizer, then the tokens found behind it. */
static dq_status on_raw_text(void *arg, const char *text, size_t len, dq_err *err)
{
    encoding *e = arg;
    const dq_added_visit visit = {on_plain_text, on_token, e};
    char *normal = NULL;
    if (e->t->nfc) DQ_TRY(dq_utf8_nfc(&normal, &len, text, len, err));
    dq_status status =
        dq_added_walk(&e->t->in_normalized, normal ? normal : text, len, &visit, err);
    free(normal);
    return status;
}

static dq_status encode(encoding *e, const char *text, size_t len, unsigned flags, dq_err *err)
{
    const dq_tokenizer *t = e->t;
    const dq_added_visit visit = {on_raw_text, on_token, e};
    DQ_TRY(dq_bpe_run_begin(&e->merge, &t->bpe, len, err));
    for (int i = 0; (flags & DQ_TOK_SPECIAL) && i < t->n_before; i++)
        DQ_TRY(dq_bpe_push(&e->merge, t->before[i], err));
    DQ_TRY(dq_added_walk(&t->in_raw, text, len, &visit, err));
    for (int i = 0; (flags & DQ_TOK_SPECIAL) && i < t->n_after; i++)
        DQ_TRY(dq_bpe_push(&e->merge, t->after[i], err));
    return DQ_OK;
}

dq_status dq_tokenizer_encode(const dq_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, int64_t *n, int64_t *first_bad, int64_t *n_bad,
                              dq_err *err)
{
    encoding e = {.t = t, .cut = {.p = &t->pre, .word = on_word}};
    char *repaired = NULL;
    int64_t first, bad = dq_utf8_check(text, len, &first);
    *ids = NULL;
    *n = 0;
    if (first_bad) *first_bad = first;
    if (n_bad) *n_bad = bad;
    if (bad) {
        repaired = dq_block_new(len + 2 * (size_t)bad, 1, err);
        if (!repaired) return err->code;
        len = dq_utf8_repair(repaired, text, len);
    }
    e.cut.arg = &e;
    dq_status status = encode(&e, repaired ? repaired : text, len, flags, err);
    if (status == DQ_OK) {
        *ids = e.merge.ids;
        *n = (int64_t)e.merge.n;
        e.merge.ids = NULL;
    }
    dq_bpe_run_end(&e.merge);
    dq_pretokenize_end(&e.cut);
    dq_block_free(repaired);
    return status;
}
