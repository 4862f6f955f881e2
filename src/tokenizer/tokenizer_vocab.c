/* tokenizer_vocab: the "model" part of tokenizer.json: vocabulary, merges, scores.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/tokenizer_impl.h"

#include "base/utf8.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bool no = false;
static const char *const none = "";
static const char mark[] = "\xE2\x96\x81"; /* U+2581, in place of a space */

enum { MAX_ID = INT32_MAX - 1 };

static dq_status load_type(bool *is_unigram, const json_t *model, dq_err *err)
{
    const char *type = none;
    if (!json_is_object(model)) return dq_fail(err, DQ_DAMAGED, "\"model\" is not an object");
    DQ_TRY(dq_json_text(&type, model, "type", &none, err));
    if (!*type) { /* files of old versions; merges exist in no other model */
        bool merges = json_object_get(model, "merges") != NULL;
        type = merges                                           ? "BPE"
               : json_is_array(json_object_get(model, "vocab")) ? "Unigram"
                                                                : "unknown";
    }
    *is_unigram = strcmp(type, "Unigram") == 0;
    if (!*is_unigram && strcmp(type, "BPE") != 0)
        return dq_fail(err, DQ_MISMATCH, "model type \"%s\" is not supported yet", type);
    return DQ_OK;
}

static dq_status check_bpe_options(const json_t *model, dq_err *err)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const double zero = 0;
    double dropout;
    DQ_TRY(dq_json_float(&dropout, model, "dropout", &zero, err));
    if (dropout < 0 || dropout > 0)
        return dq_fail(err, DQ_MISMATCH, "model dropout %g is not supported: ids would be random",
                       dropout);
    for (size_t i = 0; i < 2; i++) {
        const char *text;
        DQ_TRY(dq_json_text(&text, model, affixes[i], &none, err));
        if (*text)
            return dq_fail(err, DQ_MISMATCH, "model %s \"%s\" is not supported yet", affixes[i],
                           text);
    }
    return DQ_OK;
}

static dq_status load_vocab(dq_tokenizer_loader *l, json_t *vocab, dq_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(vocab)) return dq_fail(err, DQ_DAMAGED, "model vocab is not an object");
    l->vocab_count = json_object_size(vocab);
    DQ_TRY(dq_strmap_new(&l->vocab, l->vocab_count, l->scratch, err));
    json_object_foreach(vocab, key, value)
    {
        int64_t id;
        if (!dq_json_whole(&id, value) || id < 0 || id > MAX_ID)
            return dq_fail(err, DQ_DAMAGED,
                           "model vocab: the id of token \"%.100s\" is not a whole number from 0 "
                           "to %d",
                           key, MAX_ID);
        dq_strmap_put(&l->vocab, key, strlen(key), (int32_t)id);
    }
    return DQ_OK;
}

/* The two halves of one merge: "a b" or ["a", "b"]. */
typedef struct halves {
    const char *text[2];
    size_t len[2];
} halves;

static bool split_merge(halves *h, const json_t *merge)
{
    if (json_is_string(merge)) {
        const char *s = json_string_value(merge), *space;
        size_t len = json_string_length(merge);
        space = memchr(s, ' ', len);
        if (!space) return false;
        h->text[0] = s;
        h->len[0] = (size_t)(space - s);
        h->text[1] = space + 1;
        h->len[1] = len - h->len[0] - 1;
        return !memchr(h->text[1], ' ', h->len[1]);
    }
    if (!json_is_array(merge) || json_array_size(merge) != 2) return false;
    for (size_t k = 0; k < 2; k++) {
        const json_t *part = json_array_get(merge, k);
        if (!json_is_string(part)) return false;
        h->text[k] = json_string_value(part);
        h->len[k] = json_string_length(part);
    }
    return true;
}

static dq_status unknown_token(dq_err *err, size_t index, const char *text, size_t len)
{
    return dq_fail(err, DQ_DAMAGED, "model merges[%zu]: token \"%.*s\" is not in the vocabulary",
                   index, (int)(len < 100 ? len : 100), text);
}

/* Joins text to a U+2581 behind it. */
static bool crosses(const halves *h)
{
    if (h->len[1] < 3 || memcmp(h->text[1], mark, 3) != 0) return false;
    return h->len[0] < 3 || memcmp(h->text[0] + h->len[0] - 3, mark, 3) != 0;
}

static dq_status load_merge(dq_tokenizer_loader *l, const halves *h, size_t index, int32_t rank,
                            dq_err *err)
{
    char small[256], *joined = small;
    size_t len = h->len[0] + h->len[1];
    int32_t id[3];
    for (size_t k = 0; k < 2; k++) {
        id[k] = dq_strmap_get(&l->vocab, h->text[k], h->len[k]);
        if (id[k] < 0) return unknown_token(err, index, h->text[k], h->len[k]);
    }
    if (len > sizeof small) {
        joined = dq_alloc(l->scratch, len, 1, err);
        if (!joined) return err->code;
    }
    memcpy(joined, h->text[0], h->len[0]);
    memcpy(joined + h->len[0], h->text[1], h->len[1]);
    id[2] = dq_strmap_get(&l->vocab, joined, len);
    if (id[2] < 0) return unknown_token(err, index, joined, len);
    DQ_TRY(dq_bpe_merge_put(&l->t->bpe, id[0], id[1], rank, id[2], err));
    l->t->bpe.cuts &= !crosses(h);
    return DQ_OK;
}

static dq_status load_merges(dq_tokenizer_loader *l, const json_t *merges, dq_err *err)
{
    int32_t rank = 0;
    if (!json_is_array(merges)) return dq_fail(err, DQ_DAMAGED, "model merges is not a list");
    size_t n = json_array_size(merges);
    if (n > (size_t)MAX_ID) return dq_fail(err, DQ_DAMAGED, "model merges: too many");
    DQ_TRY(dq_map64_new(&l->t->bpe.merges, n, l->t->arena, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *merge = json_array_get(merges, i);
        halves h;
        if (json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0)
            continue; /* copied from merges.txt; has no rank */
        if (!split_merge(&h, merge))
            return dq_fail(err, DQ_DAMAGED,
                           "model merges[%zu] is neither \"left right\" nor [\"left\", \"right\"]",
                           i);
        DQ_TRY(load_merge(l, &h, i, rank++, err));
    }
    return DQ_OK;
}

/* ----- what is the same for both models ----- */

/* Ids of the tokens <0x00> to <0xFF>, -1 for those that are missing; without fallback, for all. */
static void load_byte_ids(int32_t id[256], const dq_strmap *vocab, bool fallback)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        id[b] = fallback ? dq_strmap_get(vocab, name, strlen(name)) : -1;
    }
}

/* Characters of well-formed s[len], at most 2. */
static size_t count_chars(const char *s, size_t len)
{
    size_t n = 0, bytes;
    for (size_t i = 0; i < len && n < 2; i += bytes, n++) dq_utf8_first(s + i, &bytes);
    return n;
}

/* The byte that the token <0xHH> with this id stands for; -1: it is no such token. */
static int byte_of(const dq_tokenizer *t, const char *s, size_t len, int32_t id)
{
    const int32_t *byte_id = t->is_unigram ? t->unigram.byte_id : t->bpe.byte_id;
    if (len != 6 || s[0] != '<') return -1;
    for (int b = 0; b < 256; b++) {
        if (byte_id[b] == id) return b;
    }
    return -1;
}

/* Text of a token of a vocabulary of characters; out has capacity for len bytes. Returns its length. */
static size_t plain_text(const dq_tokenizer *t, char *out, const char *s, size_t len, int32_t id)
{
    int byte = byte_of(t, s, len, id);
    size_t n = 0;
    if (byte >= 0) {
        out[0] = (char)byte;
        return 1;
    }
    for (size_t i = 0; i < len;) {
        bool space = len - i >= 3 && memcmp(s + i, mark, 3) == 0;
        out[n++] = space ? ' ' : s[i];
        i += space ? 3 : 1;
    }
    return n;
}

/* One token of the model. */
typedef struct raw {
    const char *s; /* as the file writes it, [len]; lives as long as the tokenizer */
    size_t len;
    int32_t id;
    bool is_word; /* words can be it: not so for what stands for no bytes, byte-level */
} raw;

/* Token i of a vocabulary that is a list of [token, score]. */
static const json_t *listed(const json_t *vocab, size_t i)
{
    return json_array_get(json_array_get(vocab, i), 0);
}

static size_t vocab_bytes(const dq_tokenizer_loader *l, json_t *vocab)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    if (l->t->is_unigram) {
        for (size_t i = 0; i < l->vocab_count; i++) n += json_string_length(listed(vocab, i));
    } else {
        json_object_foreach(vocab, key, value) n += strlen(key);
    }
    return n;
}

/* All tokens as the file writes them; pool has capacity for vocab_bytes. */
static void list_tokens(const dq_tokenizer_loader *l, raw *token, json_t *vocab, char *pool)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    if (l->t->is_unigram) {
        for (; n < l->vocab_count; n++) {
            const json_t *s = listed(vocab, n);
            token[n] = (raw){json_string_value(s), json_string_length(s), (int32_t)n, true};
        }
    } else {
        json_object_foreach(vocab, key, value)
        {
            const size_t len = strlen(key);
            token[n++] = (raw){key, len, dq_strmap_get(&l->vocab, key, len), true};
        }
    }
    for (size_t i = 0; i < n; i++) {
        token[i].s = memcpy(pool, token[i].s, token[i].len);
        pool += token[i].len;
    }
}

/* Appends one token to t->piece and, if its text is not what the file writes, to t->written. *pool is
 * moved past the text. */
static void add_piece(dq_tokenizer *t, char **pool, raw *r)
{
    dq_tokenizer_entry *p = &t->piece[t->n_pieces++];
    *p = (dq_tokenizer_entry){*pool, r->len, r->id};
    if (!t->pre.byte_level) {
        p->len = plain_text(t, *pool, r->s, r->len, r->id);
    } else if (!dq_utf8_to_bytes(*pool, &p->len, r->s, r->len)) {
        memcpy(*pool, r->s, r->len); /* the text stays */
        p->len = r->len;
        r->is_word = false;
    }
    *pool += p->len;
    if (p->len != r->len || memcmp(p->text, r->s, r->len) != 0)
        t->written[t->n_written++] = (dq_tokenizer_entry){r->s, r->len, r->id};
}

int dq_tokenizer_by_id(const void *x, const void *y)
{
    const dq_tokenizer_entry *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

/* ----- BPE ----- */

static dq_status load_bpe(dq_tokenizer_loader *l, const json_t *model, dq_err *err)
{
    dq_bpe *bpe = &l->t->bpe;
    bool fallback;
    const char *unknown;
    DQ_TRY(check_bpe_options(model, err));
    DQ_TRY(dq_json_bool(&bpe->whole_words, model, "ignore_merges", &no, err));
    DQ_TRY(dq_json_bool(&bpe->fuse_unknown, model, "fuse_unk", &no, err));
    DQ_TRY(dq_json_bool(&fallback, model, "byte_fallback", &no, err));
    DQ_TRY(dq_json_text(&unknown, model, "unk_token", &none, err));
    DQ_TRY(load_vocab(l, json_object_get(model, "vocab"), err));
    bpe->cuts = dq_strmap_get(&l->vocab, mark, 3) >= 0;
    DQ_TRY(load_merges(l, json_object_get(model, "merges"), err));
    load_byte_ids(bpe->byte_id, &l->vocab, fallback);
    bpe->unknown = *unknown ? dq_strmap_get(&l->vocab, unknown, strlen(unknown)) : -1;
    l->lost_unknown = *unknown && bpe->unknown < 0 ? unknown : NULL;
    return DQ_OK;
}

/* What a word begins as. */
static dq_status load_start(dq_tokenizer_loader *l, const raw *token, dq_err *err)
{
    dq_bpe *bpe = &l->t->bpe;
    bool known = bpe->byte_level; /* every character is */
    size_t chars = 0;
    for (unsigned b = 0; b < (bpe->byte_level ? 256 : 128); b++) {
        char text[2] = {(char)b};
        size_t len = bpe->byte_level ? dq_utf8_of_byte(text, (uint8_t)b) : 1;
        bpe->start[b] = dq_bpe_start_of(bpe, dq_strmap_get(&l->vocab, text, len), text, len);
        known &= bpe->start[b].n > 0;
    }
    if (l->lost_unknown && !known)
        return dq_fail(err, DQ_DAMAGED, "model unk_token \"%.100s\" is not in the vocabulary",
                       l->lost_unknown);
    if (bpe->byte_level) return DQ_OK;
    for (size_t i = 0; i < l->vocab_count; i++) chars += count_chars(token[i].s, token[i].len) == 1;
    DQ_TRY(dq_strmap_new(&bpe->chars, chars, l->t->arena, err));
    for (size_t i = 0; i < l->vocab_count; i++) {
        if (count_chars(token[i].s, token[i].len) == 1)
            dq_strmap_put(&bpe->chars, token[i].s, token[i].len, token[i].id);
    }
    return DQ_OK;
}

/* The words that are one token: always (ignore_merges), and after merging. t->piece has the tokens in
 * the same order. */
static dq_status load_words(dq_tokenizer_loader *l, const raw *token, dq_err *err)
{
    dq_tokenizer *t = l->t;
    dq_bpe *bpe = &t->bpe;
    dq_bpe_run run = {.bpe = bpe};
    dq_id_list ids = {0};
    dq_status status = DQ_OK;
    if (bpe->whole_words) DQ_TRY(dq_strmap_new(&bpe->words, l->vocab_count, t->arena, err));
    DQ_TRY(dq_strmap_new(&bpe->known, l->vocab_count, t->arena, err));
    for (size_t i = 0; i < l->vocab_count && status == DQ_OK; i++) {
        const dq_tokenizer_entry *p = &t->piece[i];
        const char *word = bpe->byte_level ? p->text : token[i].s;
        size_t len = bpe->byte_level ? p->len : token[i].len;
        if (!token[i].is_word || len == 0) continue;
        if (bpe->whole_words) dq_strmap_put(&bpe->words, word, len, p->id);
        if (!bpe->whole_words || bpe->cuts)
            status = dq_bpe_know(bpe, &run, &ids, word, len, p->id, err);
    }
    dq_bpe_run_end(&run);
    dq_block_free(ids.id);
    return status;
}

static dq_status finish_bpe(dq_tokenizer_loader *l, const raw *token, dq_err *err)
{
    dq_bpe *bpe = &l->t->bpe;
    bpe->byte_level = l->t->pre.byte_level;
    bpe->cuts &= !bpe->byte_level;
    DQ_TRY(load_start(l, token, err));
    return load_words(l, token, err);
}

/* ----- Unigram ----- */

/* Checks the list and fills the scores and l->vocab. Of two equal pieces the later one counts. */
static dq_status load_scores(dq_tokenizer_loader *l, const json_t *vocab, dq_err *err)
{
    size_t n = l->vocab_count = json_array_size(vocab);
    double lowest = 0, *score;
    if (!json_is_array(vocab)) return dq_fail(err, DQ_DAMAGED, "model vocab is not a list");
    if (n > (size_t)MAX_ID) return dq_fail(err, DQ_DAMAGED, "model vocab: too many pieces");
    score = dq_alloc(l->t->arena, n, sizeof *score, err);
    if (!score) return err->code;
    DQ_TRY(dq_strmap_new(&l->vocab, n, l->scratch, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(vocab, i), *s = listed(vocab, i);
        const json_t *number = json_array_get(pair, 1);
        if (!json_is_string(s) || !json_is_number(number) || json_array_size(pair) != 2)
            return dq_fail(err, DQ_DAMAGED, "model vocab[%zu] is not [piece, score]", i);
        score[i] = json_number_value(number);
        if (!(fabs(score[i]) < DBL_MAX))
            return dq_fail(err, DQ_DAMAGED, "model vocab[%zu]: the score is too large", i);
        if (i == 0 || score[i] < lowest) lowest = score[i];
        dq_strmap_put(&l->vocab, json_string_value(s), json_string_length(s), (int32_t)i);
    }
    l->t->unigram.score = score;
    l->t->unigram.n = n;
    l->t->unigram.unknown_score = lowest - 10;
    return DQ_OK;
}

static dq_status load_unigram(dq_tokenizer_loader *l, const json_t *model, dq_err *err)
{
    dq_unigram *u = &l->t->unigram;
    const int64_t absent = -1;
    int64_t unknown;
    DQ_TRY(dq_json_bool(&u->fallback, model, "byte_fallback", &no, err));
    DQ_TRY(load_scores(l, json_object_get(model, "vocab"), err));
    DQ_TRY(dq_json_int(&unknown, model, "unk_id", 0, MAX_ID, &absent, err));
    if (unknown < 0) /* the reference fails at the first unknown character, fallback or not */
        return dq_fail(err, DQ_MISMATCH,
                       "a Unigram model without unk_id is not supported: text with a character "
                       "that it lacks would have no ids");
    if (unknown >= (int64_t)u->n)
        return dq_fail(err, DQ_DAMAGED, "model unk_id %lld is not below the %zu pieces of vocab",
                       (long long)unknown, u->n);
    u->unknown = (int32_t)unknown;
    load_byte_ids(u->byte_id, &l->vocab, u->fallback);
    return DQ_OK;
}

static dq_status finish_unigram(dq_tokenizer_loader *l, const raw *token, dq_err *err)
{
    dq_unigram *u = &l->t->unigram;
    size_t used = 0;
    dq_unigram_piece *piece = dq_alloc(l->scratch, u->n, sizeof *piece, err);
    if (!piece) return err->code;
    if (l->t->pre.byte_level)
        return dq_fail(err, DQ_MISMATCH,
                       "a Unigram model behind a ByteLevel pre_tokenizer is not supported yet");
    DQ_TRY(dq_strmap_new(&u->pieces, u->n, l->t->arena, err));
    for (size_t i = 0; i < u->n; i++) {
        const raw *r = &token[i];
        if (dq_strmap_get(&l->vocab, r->s, r->len) != r->id) continue; /* a later one is equal */
        dq_strmap_put(&u->pieces, r->s, r->len, r->id);
        piece[used++] = (dq_unigram_piece){r->s, r->len, r->id};
    }
    return dq_unigram_trie(u, piece, used, l->t->arena, err);
}

/* ----- both ----- */

dq_status dq_tokenizer_load_model(dq_tokenizer_loader *l, json_t *model, dq_err *err)
{
    DQ_TRY(load_type(&l->t->is_unigram, model, err));
    return l->t->is_unigram ? load_unigram(l, model, err) : load_bpe(l, model, err);
}

dq_status dq_tokenizer_load_pieces(dq_tokenizer_loader *l, json_t *vocab, size_t extra, dq_err *err)
{
    dq_tokenizer *t = l->t;
    size_t bytes = vocab_bytes(l, vocab);
    raw *token = dq_alloc(l->scratch, l->vocab_count, sizeof *token, err);
    char *pool = dq_alloc(t->arena, bytes, 2, err);
    t->piece = dq_alloc(t->arena, l->vocab_count + extra, sizeof *t->piece, err);
    t->written = dq_alloc(t->arena, l->vocab_count, sizeof *t->written, err);
    if (!token || !pool || !t->piece || !t->written) return err->code;
    list_tokens(l, token, vocab, pool);
    pool += bytes;
    for (size_t i = 0; i < l->vocab_count; i++) add_piece(t, &pool, &token[i]);
    if (t->n_written) qsort(t->written, t->n_written, sizeof *t->written, dq_tokenizer_by_id);
    return t->is_unigram ? finish_unigram(l, token, err) : finish_bpe(l, token, err);
}
