/* The pieces are a trie, laid out so that a node's children are found by one index where their
 * bytes lie close together, and in a sorted list where they do not. A word is a Viterbi search:
 * for each place the best score of any way to it and the piece that it came by. Places are
 * characters, pieces are offered from left to right, and of equal scores the first offered stays,
 * as in the reference; a character that no piece covers costs the unknown score. A place that
 * every way passes through (no piece reaches beyond it) is settled: the links are turned around,
 * its ids go out and the window begins anew there, so memory is bounded by such places and not by
 * the text. Neighbouring unknown characters become one unknown id.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/inside.h"

#include <stdlib.h>
#include <string.h>

enum { DQ_TRIE_ABSENT, DQ_TRIE_LEAF, DQ_TRIE_DENSE, DQ_TRIE_LIST };

/* The piece that ends the best way to this place. */
typedef struct dq_unigram_best {
    double score; /* of the whole way */
    int32_t id;
    uint32_t len; /* of the piece; 0: no way yet */
} best;

enum {
    DENSE_LIMIT = 8,     /* places per child that a dense node may take */
    FIRST_CAPACITY = 256 /* places of the window at first */
};

static int by_text(const void *x, const void *y)
{
    const dq_unigram_piece *a = x, *b = y;
    int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

/* Pieces of a node still to build: piece[lo .. hi) share `depth` bytes. */
typedef struct range {
    size_t lo, hi, depth;
    uint32_t node;
} range;

typedef struct builder {
    const dq_unigram_piece *piece;
    dq_trie_node *node; /* a block */
    size_t n, capacity;
    range *todo; /* [n_todo], space for one per piece: they share none */
    size_t n_todo;
} builder;

static dq_status add_nodes(builder *b, size_t count, dq_err *err)
{
    if (b->n + count >= UINT32_MAX)
        return dq_fail(err, DQ_RESOURCE, "out of memory (%zu trie nodes)", b->n + count);
    dq_trie_node *list = dq_grow(NULL, b->node, b->n + count, &b->capacity, sizeof *list, err);
    if (!list) return err->code;
    b->node = list;
    b->n += count;
    return DQ_OK;
}

static uint8_t byte_at(const builder *b, size_t piece, size_t depth)
{
    return (uint8_t)b->piece[piece].text[depth];
}

static dq_status build_node(builder *b, range r, dq_err *err)
{
    if (b->piece[r.lo].len == r.depth) b->node[r.node].id = b->piece[r.lo++].id;
    b->node[r.node].kind = DQ_TRIE_LEAF;
    if (r.lo == r.hi) return DQ_OK;
    uint8_t low = byte_at(b, r.lo, r.depth), high = byte_at(b, r.hi - 1, r.depth);
    size_t children = 1, first = b->n;
    for (size_t i = r.lo + 1; i < r.hi; i++)
        children += byte_at(b, i, r.depth) != byte_at(b, i - 1, r.depth);
    bool dense = (size_t)(high - low) + 1 <= DENSE_LIMIT * children;
    size_t places = dense ? (size_t)(high - low) + 1 : children;
    DQ_TRY(add_nodes(b, places, err));
    dq_trie_node *node = &b->node[r.node];
    node->kind = dense ? DQ_TRIE_DENSE : DQ_TRIE_LIST;
    node->first = (uint32_t)first;
    node->low = low;
    node->span = (uint8_t)(places - 1);
    for (size_t lo = r.lo, hi, k = 0; lo < r.hi; lo = hi, k++) {
        uint8_t byte = byte_at(b, lo, r.depth);
        for (hi = lo + 1; hi < r.hi && byte_at(b, hi, r.depth) == byte; hi++) continue;
        size_t at = first + (dense ? (size_t)(byte - low) : k);
        b->node[at] = (dq_trie_node){.id = -1, .byte = byte, .kind = DQ_TRIE_LEAF};
        b->todo[b->n_todo++] = (range){lo, hi, r.depth + 1, (uint32_t)at};
    }
    return DQ_OK;
}

static dq_status build(builder *b, size_t n, dq_err *err)
{
    size_t lo = 0;
    DQ_TRY(add_nodes(b, 1, err));
    b->node[0] = (dq_trie_node){.id = -1, .kind = DQ_TRIE_LEAF};
    while (lo < n && b->piece[lo].len == 0) lo++; /* never found in a text */
    if (lo == n) return DQ_OK;
    b->todo = dq_block_new(n, sizeof *b->todo, err);
    if (!b->todo) return err->code;
    b->todo[b->n_todo++] = (range){lo, n, 0, 0};
    while (b->n_todo) DQ_TRY(build_node(b, b->todo[--b->n_todo], err));
    return DQ_OK;
}

dq_status dq_unigram_trie(dq_unigram *u, dq_unigram_piece *piece, size_t n, dq_arena *a,
                          dq_err *err)
{
    builder b = {.piece = piece};
    if (n) qsort(piece, n, sizeof *piece, by_text);
    if (build(&b, n, err) == DQ_OK) {
        u->node = dq_alloc(a, b.n, sizeof *u->node, err);
        if (u->node) memcpy(u->node, b.node, b.n * sizeof *u->node);
    }
    dq_block_free(b.node);
    dq_block_free(b.todo);
    return err->code;
}

/* NULL: no piece continues so. */
static inline const dq_trie_node *child(const dq_trie_node *tree, const dq_trie_node *node,
                                        uint8_t byte)
{
    const dq_trie_node *c = tree + node->first;
    if (node->kind == DQ_TRIE_DENSE) {
        uint8_t at = (uint8_t)(byte - node->low);
        return at <= node->span && c[at].kind != DQ_TRIE_ABSENT ? &c[at] : NULL;
    }
    if (node->kind == DQ_TRIE_LEAF) return NULL;
    for (size_t i = 0; i <= node->span; i++) {
        if (c[i].byte == byte) return &c[i];
    }
    return NULL;
}

typedef struct search {
    dq_unigram_run *run;
    dq_id_list *ids;
    const char *word;
    size_t len;
    size_t base;    /* place of the word at best[0]: the ids of what is before it are known */
    size_t reach;   /* furthest place that some piece has reached */
    size_t unknown; /* where the run of unknown pieces that ends at base begins */
} search;

void dq_unigram_run_end(dq_unigram_run *run)
{
    dq_block_free(run->best);
    *run = (dq_unigram_run){0};
}

static dq_status need_capacity(dq_unigram_run *run, size_t places, dq_err *err)
{
    if (places <= run->capacity) return DQ_OK;
    best *list =
        dq_grow(NULL, run->best, places + FIRST_CAPACITY, &run->capacity, sizeof *list, err);
    if (!list) return err->code;
    run->best = list;
    return DQ_OK;
}

/* A way through place `from` and a piece of `len` bytes. */
static inline dq_status offer(search *s, size_t from, size_t len, double score, int32_t id,
                              dq_err *err)
{
    size_t end = from + len;
    if (end > s->reach) {
        s->reach = end;
        if (end - s->base >= s->run->capacity)
            DQ_TRY(need_capacity(s->run, end - s->base + 1, err));
    }
    best *b = &s->run->best[end - s->base];
    if (b->len == 0 || score > b->score) *b = (best){score, id, (uint32_t)len};
    return DQ_OK;
}

static dq_status offer_all(search *s, size_t at, dq_err *err)
{
    const dq_unigram *u = s->run->u;
    const dq_trie_node *node = u->node;
    const double before = s->run->best[at - s->base].score;
    uint8_t lead = (uint8_t)s->word[at];
    size_t one = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    bool single = false;
    for (size_t i = at; i < s->len; i++) {
        node = child(u->node, node, (uint8_t)s->word[i]);
        if (!node) break;
        if (node->id < 0) continue;
        single |= i + 1 - at == one;
        DQ_TRY(offer(s, at, i + 1 - at, before + u->score[node->id], node->id, err));
    }
    if (single) return DQ_OK;
    return offer(s, at, one, before + u->unknown_score, u->unknown, err);
}

/* A run of unknown pieces up to `end` is one string. */
static dq_status put_unknown(search *s, size_t end, dq_err *err)
{
    const dq_unigram *u = s->run->u;
    const char *text = s->word + s->unknown;
    size_t n = end - s->unknown;
    if (n == 0) return DQ_OK;
    int32_t id = dq_strmap_get(&u->pieces, text, n);
    bool bytes = id < 0 && u->fallback;
    for (size_t i = 0; bytes && i < n; i++) bytes = u->byte_id[(uint8_t)text[i]] >= 0;
    if (!bytes) return dq_id_list_push(s->ids, id < 0 ? u->unknown : id, err);
    DQ_TRY(dq_id_list_reserve(s->ids, n, err));
    for (size_t i = 0; i < n; i++) s->ids->id[s->ids->n++] = u->byte_id[(uint8_t)text[i]];
    return DQ_OK;
}

/* Every way passes `at`: the best one is final, and the window moves. */
static dq_status finish_words(search *s, size_t at, dq_err *err)
{
    best *b = s->run->best, next = {0};
    size_t n = at - s->base;
    const double score = b[n].score;
    for (size_t i = n;; i -= next.len) { /* turns the links around */
        best old = b[i];
        b[i] = next;
        if (i == 0) break;
        next = old;
    }
    for (size_t i = 0; i < n; i += b[i].len) {
        if (b[i].id == s->run->u->unknown) continue;
        DQ_TRY(put_unknown(s, s->base + i, err));
        DQ_TRY(dq_id_list_push(s->ids, b[i].id, err));
        s->unknown = s->base + i + b[i].len;
    }
    memset(b, 0, (n + 1) * sizeof *b);
    b[0].score = score;
    s->base = at;
    return DQ_OK;
}

dq_status dq_unigram_word(dq_unigram_run *run, dq_id_list *ids, const char *word, size_t len,
                          dq_err *err)
{
    search s = {.run = run, .ids = ids, .word = word, .len = len};
    DQ_TRY(need_capacity(run, 1, err));
    run->best[0] = (best){0}; /* the others are as the word before left them: zero */
    for (size_t at = 0; at < len;) {
        uint8_t lead = (uint8_t)word[at];
        if (at == s.reach && at > s.base) DQ_TRY(finish_words(&s, at, err));
        DQ_TRY(offer_all(&s, at, err));
        at += lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    }
    if (len > s.base) DQ_TRY(finish_words(&s, len, err));
    return put_unknown(&s, len, err);
}
