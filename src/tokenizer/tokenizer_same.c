/* tokenizer_same: whether two tokenizers do the same, however their files write it. Lists and flags are compared as they
 * were loaded. The steps of normalizer, pre-tokenizer and decoder are compared as canonical JSON without the members that
 * move no token and no text, so that steps which only happen to do the same count as different.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

/* ByteLevel reads trim_offsets as a post-processor alone, and nothing else as a decoder. */
static void drop_idle(json_t *v, bool decoder)
{
    static const char *const idle[] = {"trim_offsets", "add_prefix_space", "use_regex"};
    const char *type = json_string_value(json_object_get(v, "type")), *key;
    json_t *member;
    size_t i;
    if (type && strcmp(type, "ByteLevel") == 0) {
        for (i = 0; i < (decoder ? 3 : 1); i++) json_object_del(v, idle[i]);
    }
    json_object_foreach(v, key, member) drop_idle(member, decoder);
    json_array_foreach(v, i, member) drop_idle(member, decoder);
}

dq_status dq_tokenizer_keep_steps(dq_tokenizer *t, json_t *root, dq_err *err)
{
    static const char *const parts[] = {"normalizer", "pre_tokenizer", "decoder"};
    char *text;
    json_t *list = json_array();
    for (int i = 0; i < 3; i++) {
        json_t *v = json_object_get(root, parts[i]);
        if (v) drop_idle(v, i == 2);
        json_array_append(list, v ? v : json_null());
    }
    dq_json_dump(&text, list, JSON_COMPACT | JSON_SORT_KEYS, err);
    json_decref(list);
    DQ_TRY(err->code);
    t->steps = dq_text(t->arena, text, strlen(text), err);
    free(text);
    return err->code;
}

static bool same_text(const char *a, size_t a_len, const char *b, size_t b_len)
{
    return a_len == b_len && memcmp(a, b, a_len) == 0;
}

static bool same_entries(const dq_tokenizer_entry *a, size_t n, const dq_tokenizer_entry *b,
                         size_t n_b)
{
    if (n != n_b) return false;
    for (size_t i = 0; i < n; i++) {
        if (a[i].id != b[i].id || !same_text(a[i].text, a[i].len, b[i].text, b[i].len))
            return false;
    }
    return true;
}

static const dq_added_token *added_of(const dq_tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].id == id) return &t->added[i];
    }
    return NULL;
}

/* Whether b has a's added tokens, in any order: of what is found where, length decides. */
static bool has_added(const dq_tokenizer *a, const dq_tokenizer *b, int64_t rows)
{
    for (size_t i = 0; i < a->n_added; i++) {
        const dq_added_token *x = &a->added[i], *y = i < b->n_added ? &b->added[i] : NULL;
        if (dq_added_token_is_beyond(x, rows)) continue;
        if (!y || y->id != x->id) y = added_of(b, x->id);
        if (!y || !same_text(x->text, x->len, y->text, y->len) ||
            !same_text(x->form, x->form_len, y->form, y->form_len) || x->special != y->special ||
            x->told_special != y->told_special || x->lstrip != y->lstrip ||
            x->rstrip != y->rstrip || x->single_word != y->single_word ||
            x->normalized != y->normalized)
            return false;
    }
    return true;
}

static bool same_bpe(const dq_bpe *a, const dq_bpe *b)
{
    if (a->byte_level != b->byte_level || a->unknown != b->unknown ||
        a->fuse_unknown != b->fuse_unknown || a->whole_words != b->whole_words ||
        a->merges.n != b->merges.n || memcmp(a->byte_id, b->byte_id, sizeof a->byte_id) != 0)
        return false;
    for (size_t i = 0; i <= a->merges.mask; i++) {
        const dq_map64_slot *s = &a->merges.slot[i];
        if (s->value && dq_map64_get(&b->merges, s->key) != s->value) return false;
    }
    return true;
}

static bool same_unigram(const dq_unigram *a, const dq_unigram *b)
{
    if (a->n != b->n || a->unknown != b->unknown || a->fallback != b->fallback ||
        memcmp(a->byte_id, b->byte_id, sizeof a->byte_id) != 0)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        if (a->score[i] < b->score[i] || a->score[i] > b->score[i]) return false;
    }
    return true;
}

static bool same_ids(const int32_t *a, int n, const int32_t *b, int n_b)
{
    return n == n_b && (n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0);
}

/* Pieces without those of added tokens that have no row; these come last. */
static size_t n_pieces(const dq_tokenizer *t, int64_t rows)
{
    size_t n = t->n_pieces;
    for (size_t i = 0; i < t->n_added; i++) n -= dq_added_token_is_beyond(&t->added[i], rows);
    return n;
}

bool dq_tokenizer_same(const dq_tokenizer *a, const dq_tokenizer *b, int64_t rows)
{
    if (a == b) return true;
    return a->is_unigram == b->is_unigram && strcmp(a->steps, b->steps) == 0 &&
           same_ids(a->before, a->n_before, b->before, b->n_before) &&
           same_ids(a->after, a->n_after, b->after, b->n_after) && has_added(a, b, rows) &&
           has_added(b, a, rows) &&
           same_entries(a->piece, n_pieces(a, rows), b->piece, n_pieces(b, rows)) &&
           same_entries(a->written, a->n_written, b->written, b->n_written) &&
           (a->is_unigram ? same_unigram(&a->unigram, &b->unigram) : same_bpe(&a->bpe, &b->bpe));
}
