/* tokenizer_model: the "model" part of tokenizer.json: vocabulary and merges.
 * SPDX-License-Identifier: MIT */
#include "tokenizer_impl.h"

#include "utf8.h"

#include <stdio.h>
#include <string.h>

static const bool no = false;
static const char *const none = "";

enum { MAX_ID = INT32_MAX - 1 };

static dq_status check_type(const json_t *model, dq_err *err)
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
    if (strcmp(type, "BPE") != 0)
        return dq_fail(err, DQ_MISMATCH, "model type \"%s\" is not supported yet", type);
    return DQ_OK;
}

static dq_status check_options(const json_t *model, dq_err *err)
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

static dq_status load_vocab(dq_loader *l, json_t *vocab, dq_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(vocab)) return dq_fail(err, DQ_DAMAGED, "model vocab is not an object");
    l->vocab_count = json_object_size(vocab);
    DQ_TRY(dq_strmap_new(&l->vocab, l->vocab_count, l->scratch, err));
    json_object_foreach(vocab, key, value)
    {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id > MAX_ID)
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

static dq_status load_merge(dq_loader *l, const halves *h, size_t index, int32_t rank, dq_err *err)
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
    dq_bpe_merge_put(&l->t->bpe, id[0], id[1], rank, id[2]);
    return DQ_OK;
}

static dq_status load_merges(dq_loader *l, const json_t *merges, dq_err *err)
{
    int32_t rank = 0;
    if (!json_is_array(merges)) return dq_fail(err, DQ_DAMAGED, "model merges is not a list");
    size_t n = json_array_size(merges);
    if (n > (size_t)MAX_ID) return dq_fail(err, DQ_DAMAGED, "model merges: too many");
    DQ_TRY(dq_bpe_merges_new(&l->t->bpe, n, l->t->arena, err));
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

/* What a byte begins as when the vocabulary lacks its character: bytes of that character as <0xHH>,
 * else the unknown token, else nothing. */
static dq_status start_without_token(dq_loader *l, dq_bpe_start *s, const char *text, size_t len,
                                     bool fallback, const char *unknown, dq_err *err)
{
    char name[8];
    size_t n = 0;
    for (; fallback && n < len; n++) {
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)(uint8_t)text[n]);
        s->id[n] = dq_strmap_get(&l->vocab, name, strlen(name));
        if (s->id[n] < 0) break;
    }
    if (fallback && n == len) {
        s->n = (uint8_t)len;
        s->kind = DQ_START_BYTES;
        return DQ_OK;
    }
    if (!*unknown) return DQ_OK;
    s->n = 1;
    s->kind = DQ_START_UNKNOWN;
    s->id[0] = dq_strmap_get(&l->vocab, unknown, strlen(unknown));
    if (s->id[0] >= 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "model unk_token \"%.100s\" is not in the vocabulary", unknown);
}

static dq_status load_start(dq_loader *l, const json_t *model, dq_err *err)
{
    bool fallback;
    const char *unknown;
    DQ_TRY(dq_json_bool(&l->t->bpe.fuse_unknown, model, "fuse_unk", &no, err));
    DQ_TRY(dq_json_bool(&fallback, model, "byte_fallback", &no, err));
    DQ_TRY(dq_json_text(&unknown, model, "unk_token", &none, err));
    for (int b = 0; b < 256; b++) {
        char text[2];
        size_t len = dq_byte_to_char(text, (uint8_t)b);
        dq_bpe_start *s = &l->t->bpe.start[b];
        s->id[0] = dq_strmap_get(&l->vocab, text, len);
        s->n = 1;
        if (s->id[0] >= 0) continue;
        *s = (dq_bpe_start){0};
        DQ_TRY(start_without_token(l, s, text, len, fallback, unknown, err));
    }
    return DQ_OK;
}

dq_status dq_load_pieces(dq_loader *l, json_t *vocab, size_t extra, dq_err *err)
{
    dq_tokenizer *t = l->t;
    const char *key;
    json_t *value;
    size_t bytes = 0;
    json_object_foreach(vocab, key, value) bytes += strlen(key);
    char *pool = dq_alloc(t->arena, bytes, 1, err);
    t->piece = dq_alloc(t->arena, l->vocab_count + extra, sizeof *t->piece, err);
    if (!pool || !t->piece) return err->code;
    if (t->bpe.whole_words) DQ_TRY(dq_strmap_new(&t->bpe.words, l->vocab_count, t->arena, err));
    json_object_foreach(vocab, key, value)
    {
        dq_piece *p = &t->piece[t->n_pieces++];
        size_t len = strlen(key);
        p->id = (int32_t)json_integer_value(value);
        p->text = pool;
        p->len = len;
        if (!dq_chars_to_bytes(pool, &p->len, key, len)) {
            memcpy(pool, key, len); /* not byte-level: no word can be it, the text stays */
        } else if (t->bpe.whole_words) {
            dq_strmap_put(&t->bpe.words, p->text, p->len, p->id);
        }
        pool += p->len;
    }
    return DQ_OK;
}

dq_status dq_load_model(dq_loader *l, json_t *model, dq_err *err)
{
    DQ_TRY(check_type(model, err));
    DQ_TRY(check_options(model, err));
    DQ_TRY(dq_json_bool(&l->t->bpe.whole_words, model, "ignore_merges", &no, err));
    DQ_TRY(load_vocab(l, json_object_get(model, "vocab"), err));
    DQ_TRY(load_merges(l, json_object_get(model, "merges"), err));
    return load_start(l, model, err);
}
