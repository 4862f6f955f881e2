/* tokenizer_vocab: the "model" part of tokenizer.json: vocabulary, merges, scores.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/tokenizer_impl.h"

#include "base/text.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bool no = false;
static const char *const none = "";
static const char mark[] = "\xE2\x96\x81"; /* U+2581, in place of a space */

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

/* Of texts that are there twice the parser knows, if it was asked. */
static dq_status load_vocab(dq_tokenizer_loader *l, json_t *vocab, dq_err *err)
{
    dq_tokenizer_lists *x = &l->lists;
    if (!l->listed) DQ_TRY(dq_tokenizer_lists_of_tokens(x, vocab, l->scratch, err));
    l->vocab_count = x->n_tokens;
    DQ_TRY(dq_strmap_new(&l->vocab, l->vocab_count, l->scratch, err));
    for (size_t i = 0; i < x->n_tokens; i++) {
        const dq_tokenizer_token *t = &x->token[i];
        dq_strmap_put(&l->vocab, t->s, t->len, t->id);
        if (l->vocab.n == i)
            return dq_fail(err, DQ_DAMAGED, "model vocab: token \"%.*s\" is there twice",
                           (int)(t->len < 100 ? t->len : 100), t->s);
    }
    return DQ_OK;
}

static dq_status unknown_token(dq_err *err, int32_t index, const char *text, size_t len)
{
    return dq_fail(err, DQ_DAMAGED, "model merges[%d]: token \"%.*s\" is not in the vocabulary",
                   (int)index, (int)(len < 100 ? len : 100), text);
}

/* Joins text to a U+2581 after it. */
static bool crosses(const dq_tokenizer_merge *m)
{
    if (m->len[1] < 3 || memcmp(m->text[1], mark, 3) != 0) return false;
    return m->len[0] < 3 || memcmp(m->text[0] + m->len[0] - 3, mark, 3) != 0;
}

/* Most vocabularies have what merges make in their order, so that the token after the last one found is tried first. */
static int32_t find_joined(dq_tokenizer_loader *l, const char *s, size_t len)
{
    const dq_tokenizer_lists *x = &l->lists;
    const dq_tokenizer_token *t = l->next_joined < x->n_tokens ? &x->token[l->next_joined] : NULL;
    if (t && t->len == len && memcmp(t->s, s, len) == 0) {
        l->next_joined++;
        return t->id;
    }
    const int32_t id = dq_strmap_get(&l->vocab, s, len);
    if (id >= 0) l->next_joined = (size_t)id + 1;
    return id;
}

static dq_status load_merge(dq_tokenizer_loader *l, const dq_tokenizer_merge *m, int32_t rank,
                            dq_err *err)
{
    char small[256], *joined = small;
    size_t len = m->len[0] + m->len[1];
    int32_t id[3];
    for (size_t k = 0; k < 2; k++) {
        id[k] = dq_strmap_get(&l->vocab, m->text[k], m->len[k]);
        if (id[k] < 0) return unknown_token(err, rank, m->text[k], m->len[k]);
    }
    if (len > sizeof small) {
        joined = dq_alloc(l->scratch, len, 1, err);
        if (!joined) return err->code;
    }
    memcpy(joined, m->text[0], m->len[0]);
    memcpy(joined + m->len[0], m->text[1], m->len[1]);
    id[2] = find_joined(l, joined, len);
    if (id[2] < 0) return unknown_token(err, rank, joined, len);
    DQ_TRY(dq_bpe_merge_put(&l->t->bpe, id[0], id[1], rank, id[2], err));
    l->t->bpe.cuts &= !crosses(m);
    return DQ_OK;
}

static dq_status load_merges(dq_tokenizer_loader *l, const json_t *merges, dq_err *err)
{
    dq_tokenizer_lists *x = &l->lists;
    if (!l->listed) DQ_TRY(dq_tokenizer_lists_of_merges(x, merges, l->scratch, err));
    if (x->n_merges > (size_t)DQ_TOKENIZER_MAX_ID)
        return dq_fail(err, DQ_DAMAGED, "model merges: too many");
    DQ_TRY(dq_map64_new(&l->t->bpe.merges, x->n_merges, l->t->arena, err));
    for (size_t i = 0; i < x->n_merges; i++) DQ_TRY(load_merge(l, &x->merge[i], (int32_t)i, err));
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

static size_t vocab_bytes(const dq_tokenizer_loader *l, const json_t *vocab)
{
    size_t n = 0;
    for (size_t i = 0; i < l->vocab_count; i++)
        n += l->t->is_unigram ? json_string_length(listed(vocab, i)) : l->lists.token[i].len;
    return n;
}

/* All tokens as the file writes them; pool has capacity for vocab_bytes. */
static void list_tokens(const dq_tokenizer_loader *l, raw *token, const json_t *vocab, char *pool)
{
    for (size_t i = 0; i < l->vocab_count; i++) {
        if (l->t->is_unigram) {
            const json_t *s = listed(vocab, i);
            token[i] = (raw){json_string_value(s), json_string_length(s), (int32_t)i, true};
        } else {
            const dq_tokenizer_token *t = &l->lists.token[i];
            token[i] = (raw){t->s, t->len, t->id, true};
        }
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

void dq_tokenizer_sort(dq_tokenizer_entry *entry, size_t n)
{
    size_t i = 1;
    while (i < n && entry[i - 1].id < entry[i].id) i++;
    if (i < n) qsort(entry, n, sizeof *entry, dq_tokenizer_by_id);
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
    for (size_t i = 0; i < l->vocab_count; i++)
        chars += dq_utf8_count(token[i].s, token[i].len) == 1;
    DQ_TRY(dq_strmap_new(&bpe->chars, chars, l->t->arena, err));
    for (size_t i = 0; i < l->vocab_count; i++) {
        if (dq_utf8_count(token[i].s, token[i].len) == 1)
            dq_strmap_put(&bpe->chars, token[i].s, token[i].len, token[i].id);
    }
    return DQ_OK;
}

/* Token i as a word. */
static dq_tokenizer_entry word_of(const dq_tokenizer *t, const raw *token, size_t i)
{
    if (t->bpe.byte_level) return t->piece[i];
    return (dq_tokenizer_entry){token[i].s, token[i].len, token[i].id};
}

/* known[i]: merging alone makes token i of its text. Each is found for itself, so that threads share them. */
static dq_status find_known(bool *known, const dq_tokenizer_loader *l, const raw *token,
                            dq_err *err)
{
    const dq_tokenizer *t = l->t;
#pragma omp parallel
    {
        dq_bpe_run run = {.bpe = &t->bpe};
        dq_id_list ids = {0};
        dq_err own = {0};
#pragma omp for schedule(dynamic, 1024)
        for (size_t i = 0; i < l->vocab_count; i++) {
            const dq_tokenizer_entry w = word_of(t, token, i);
            if (token[i].is_word && w.len > 0 && own.code == DQ_OK)
                dq_bpe_makes(&known[i], &run, &ids, w.text, w.len, w.id, &own);
        }
        dq_bpe_run_end(&run);
        dq_block_free(ids.id);
#pragma omp critical
        dq_fail_as(err, &own);
    }
    return err->code;
}

/* The words that are one token: always (ignore_merges), and after merging. t->piece has the tokens in
 * the same order. */
static dq_status load_words(dq_tokenizer_loader *l, const raw *token, dq_err *err)
{
    dq_bpe *bpe = &l->t->bpe;
    bool *known = dq_alloc(l->scratch, l->vocab_count, sizeof *known, err);
    if (!known) return err->code;
    if (bpe->whole_words) DQ_TRY(dq_strmap_new(&bpe->words, l->vocab_count, l->t->arena, err));
    DQ_TRY(dq_strmap_new(&bpe->known, l->vocab_count, l->t->arena, err));
    if (!bpe->whole_words || bpe->cuts) DQ_TRY(find_known(known, l, token, err));
    for (size_t i = 0; i < l->vocab_count; i++) {
        const dq_tokenizer_entry w = word_of(l->t, token, i);
        if (bpe->whole_words && token[i].is_word && w.len > 0)
            dq_strmap_put(&bpe->words, w.text, w.len, w.id);
        if (known[i]) dq_strmap_put(&bpe->known, w.text, w.len, w.id);
    }
    return DQ_OK;
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
    if (n > (size_t)DQ_TOKENIZER_MAX_ID)
        return dq_fail(err, DQ_DAMAGED, "model vocab: too many pieces");
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
    DQ_TRY(dq_json_int(&unknown, model, "unk_id", 0, DQ_TOKENIZER_MAX_ID, &absent, err));
    if (unknown < 0) /* the reference fails at the first unknown character, fallback or not */
        return dq_fail(err, DQ_MISMATCH,
                       "a Unigram model without unk_id is not supported: text with a character "
                       "that it lacks would have no tokens");
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
                       "a Unigram model after a ByteLevel pre_tokenizer is not supported yet");
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

dq_status dq_tokenizer_load_pieces(dq_tokenizer_loader *l, const json_t *vocab, size_t extra,
                                   dq_err *err)
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
    dq_tokenizer_sort(t->written, t->n_written);
    return t->is_unigram ? finish_unigram(l, token, err) : finish_bpe(l, token, err);
}
