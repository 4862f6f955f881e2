/* tokenizer: see tokenizer.h. Encoding is three nested walks: tokens found in the raw text cut it, what lies
 * between is normalized and cut by the tokens found in that, and the rest goes through the pretokenizer to the
 * model word by word. Decoding looks ids up and leaves text to the decoder.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/tokenizer_impl.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

void dq_tokenizer_free(dq_tokenizer *t)
{
    if (!t) return;
    dq_pretokenizer_free(&t->pre);
    dq_normalizer_free(&t->normalizer);
    dq_arena_free(t->arena); /* t itself is in it */
}

static const dq_tokenizer_entry *find(const dq_tokenizer_entry *piece, size_t n, int32_t id)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (piece[mid].id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && piece[lo].id == id ? &piece[lo] : NULL;
}

const dq_tokenizer_entry *dq_tokenizer_find(const dq_tokenizer *t, int32_t id)
{
    return find(t->piece, t->n_pieces, id);
}

int dq_tokenizer_vocab(const dq_tokenizer *t)
{
    return t->n_pieces ? t->piece[t->n_pieces - 1].id + 1 : 0;
}

/* What stands before a text; the template's, or else the token that the configuration names. */
static const int32_t *before(const dq_tokenizer *t, unsigned flags, int *n)
{
    const bool named = (flags & DQ_TOK_BOS) && t->n_before == 0 && t->bos >= 0;
    *n = !(flags & DQ_TOK_SPECIAL) ? 0 : named ? 1 : t->n_before;
    return named ? &t->bos : t->before;
}

void dq_tokenizer_template(const dq_tokenizer *t, unsigned flags, int *n_before, int *n_after)
{
    before(t, flags, n_before);
    *n_after = flags & DQ_TOK_SPECIAL ? t->n_after : 0;
}

int32_t dq_tokenizer_bos(const dq_tokenizer *t, unsigned flags)
{
    int n;
    const int32_t *id = before(t, flags, &n);
    return n ? id[0] : -1;
}

dq_status dq_tokenizer_added(json_t **out, const dq_tokenizer *t, int64_t rows, dq_err *err)
{
    *out = json_array();
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        if (dq_added_token_is_beyond(a, rows)) continue;
        json_array_append_new(*out,
                              json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", a->id,
                                        "content", json_stringn(a->text, a->len), "single_word",
                                        a->single_word, "lstrip", a->lstrip, "rstrip", a->rstrip,
                                        "normalized", a->normalized, "special", a->special));
    }
    return dq_json_complete(err);
}

int32_t dq_tokenizer_prefix(const dq_tokenizer *t)
{
    return t->prefix;
}

const char *dq_tokenizer_piece(const dq_tokenizer *t, int32_t id, size_t *len)
{
    const dq_tokenizer_entry *p = dq_tokenizer_find(t, id);
    if (!p) return NULL;
    *len = p->len;
    return p->text;
}

static int32_t id_in(const dq_tokenizer_entry *e, size_t n, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (e[i].len == len && memcmp(e[i].text, text, len) == 0) return e[i].id;
    }
    return -1;
}

int32_t dq_tokenizer_id(const dq_tokenizer *t, const char *text, size_t len)
{
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        if (a->len == len && memcmp(a->text, text, len) == 0) return a->id;
    }
    const int32_t id = id_in(t->written, t->n_written, text, len);
    if (id >= 0) return id;
    const int32_t plain = id_in(t->piece, t->n_pieces, text, len);
    return find(t->written, t->n_written, plain) ? -1 : plain;
}

/* ----- encoding ----- */

/* One call of dq_tokenizer_encode. */
typedef struct encoding {
    const dq_tokenizer *t;
    const char *text;  /* the whole, repaired */
    const char *start; /* normalized text that begins where the whole does, or NULL */
    dq_id_list ids;
    size_t max; /* with so many tokens it is over; 0: with the text */
    bool enough;
    dq_pretokenizer_run cut;
    dq_bpe_run bpe;
    dq_unigram_run unigram;
} encoding;

/* Words come in order, so what stands in the list does not depend on the text after it. DQ_STOPPED ends the walk. */
static dq_status go_on(encoding *e)
{
    e->enough = e->max > 0 && e->ids.n >= e->max;
    return e->enough ? DQ_STOPPED : DQ_OK;
}

static dq_status on_word(void *arg, const char *word, size_t len, dq_err *err)
{
    encoding *e = arg;
    DQ_TRY(e->t->is_unigram ? dq_unigram_word(&e->unigram, &e->ids, word, len, err)
                            : dq_bpe_word(&e->bpe, &e->ids, word, len, err));
    return go_on(e);
}

static dq_status on_token(void *arg, const dq_added_token *token, dq_err *err)
{
    encoding *e = arg;
    DQ_TRY(dq_id_list_push(&e->ids, token->id, err));
    return go_on(e);
}

static dq_status on_plain_text(void *arg, const char *text, size_t len, dq_err *err)
{
    encoding *e = arg;
    e->cut.at_start = text == e->start;
    return dq_pretokenizer_cut(&e->cut, text, len, err);
}

/* Text between the tokens found in the raw text: normalizer, then the tokens found after it. */
static dq_status on_raw_text(void *arg, const char *text, size_t len, dq_err *err)
{
    encoding *e = arg;
    const dq_tokenizer *t = e->t;
    const dq_added_tokens_visit visit = {on_plain_text, on_token, e};
    char *changed;
    size_t normal_len;
    bool moved;
    DQ_TRY(dq_normalizer_run_from(&t->normalizer, &changed, &normal_len, &moved, text, len, err));
    const char *normal = changed ? changed : text;
    e->start = text == e->text && !moved ? normal : NULL;
    dq_status status = dq_added_tokens_walk(&t->in_normalized, normal, normal_len, &visit, err);
    dq_block_free(changed);
    return status;
}

static dq_status encode(encoding *e, size_t len, unsigned flags, dq_err *err)
{
    const dq_tokenizer *t = e->t;
    const dq_added_tokens_visit visit = {on_raw_text, on_token, e};
    const size_t expected = len / 4 + 16; /* most texts need no more */
    DQ_TRY(dq_id_list_reserve(&e->ids, e->max > 0 && e->max < expected ? e->max : expected, err));
    int n_before;
    const int32_t *first = before(t, flags, &n_before);
    for (int i = 0; i < n_before; i++) DQ_TRY(dq_id_list_push(&e->ids, first[i], err));
    const dq_status status = dq_added_tokens_walk(&t->in_raw, e->text, len, &visit, err);
    if (status == DQ_STOPPED && e->enough) return DQ_OK;
    DQ_TRY(status);
    for (int i = 0; (flags & DQ_TOK_SPECIAL) && i < t->n_after; i++)
        DQ_TRY(dq_id_list_push(&e->ids, t->after[i], err));
    return DQ_OK;
}

dq_status dq_tokenizer_encode(const dq_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, int64_t *n, int64_t *first_bad, int64_t *n_bad,
                              dq_err *err)
{
    return dq_tokenizer_encode_first(t, text, len, flags, 0, ids, n, first_bad, n_bad, err);
}

dq_status dq_tokenizer_encode_first(const dq_tokenizer *t, const char *text, size_t len,
                                    unsigned flags, int64_t max, int32_t **ids, int64_t *n,
                                    int64_t *first_bad, int64_t *n_bad, dq_err *err)
{
    encoding e = {.t = t,
                  .text = text,
                  .max = (size_t)max,
                  .cut = {.p = &t->pre, .word = on_word},
                  .bpe = {.bpe = &t->bpe},
                  .unigram = {.u = &t->unigram}};
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
        e.text = repaired;
    }
    e.cut.arg = &e;
    dq_status status = encode(&e, len, flags, err);
    if (status == DQ_OK) {
        *ids = e.ids.id;
        *n = (int64_t)e.ids.n;
        e.ids.id = NULL;
    }
    dq_block_free(e.ids.id);
    dq_bpe_run_end(&e.bpe);
    dq_unigram_run_end(&e.unigram);
    dq_pretokenizer_run_end(&e.cut);
    dq_block_free(repaired);
    return status;
}

/* ----- decoding ----- */

/* Tokens as the reference hands them to the decoder. */
typedef struct written {
    const char **token;
    size_t *len;
    int64_t n;
    const dq_added_token **added; /* by rising id */
} written;

static int by_id(const void *x, const void *y)
{
    const dq_added_token *a = *(const dq_added_token *const *)x,
                         *b = *(const dq_added_token *const *)y;
    return (a->id > b->id) - (a->id < b->id);
}

static dq_status collect(written *w, const dq_tokenizer *t, const int32_t *ids, int64_t n,
                         unsigned flags, dq_err *err)
{
    w->token = dq_block_new((size_t)n + 1, sizeof *w->token, err);
    w->len = dq_block_new((size_t)n + 1, sizeof *w->len, err);
    w->added = dq_block_new(t->n_added + 1, sizeof *w->added, err);
    if (!w->token || !w->len || !w->added) return err->code;
    for (size_t i = 0; i < t->n_added; i++) w->added[i] = &t->added[i];
    qsort(w->added, t->n_added, sizeof *w->added, by_id);
    for (int64_t i = 0; i < n; i++) {
        const dq_added_token key = {.id = ids[i]}, *const at = &key;
        const dq_added_token **added = bsearch(&at, w->added, t->n_added, sizeof *w->added, by_id);
        const dq_tokenizer_entry *p = added ? NULL : find(t->written, t->n_written, ids[i]);
        if (!added && !p) p = dq_tokenizer_find(t, ids[i]);
        if (!added && !p) continue;
        if (added && !(flags & DQ_TOK_SPECIAL) && (*added)->told_special) continue;
        w->token[w->n] = added ? (*added)->form : p->text;
        w->len[w->n++] = added ? (*added)->form_len : p->len;
    }
    return DQ_OK;
}

dq_status dq_tokenizer_decode(const dq_tokenizer *t, const int32_t *ids, int64_t n, unsigned flags,
                              char **text, size_t *len, dq_err *err)
{
    written w = {0};
    *text = NULL;
    *len = 0;
    dq_status status = collect(&w, t, ids, n, flags, err);
    if (status == DQ_OK) status = dq_decoder_run(&t->decoder, w.token, w.len, w.n, text, len, err);
    dq_block_free(w.token);
    dq_block_free(w.len);
    dq_block_free(w.added);
    return status;
}

dq_status dq_tokenizer_check_ids(const int32_t *ids, int64_t n, int64_t vocab, dq_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return dq_fail(err, DQ_MISMATCH,
                           "the tokenizer gives id %d, the model knows %lld tokens; tokenizer and "
                           "model do not belong together",
                           (int)ids[i], (long long)vocab);
    }
    return DQ_OK;
}
