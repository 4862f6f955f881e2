/* Keys are appended as the file has them; a failure stays with them until the head is asked for.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One call per item follows: texts, i32 or f32. */
typedef enum dq_gguf_item { DQ_GGUF_TEXTS, DQ_GGUF_I32S, DQ_GGUF_F32S } dq_gguf_item;

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, LIST = 9 };

static void add(dq_strbuf *b, const void *p, size_t n, dq_err *err)
{
    if (err->code == DQ_OK) dq_strbuf_add(b, p, n, err);
}

static void add_number(dq_strbuf *b, uint64_t x, size_t bytes, dq_err *err)
{
    uint8_t p[8];
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(x >> 8 * i);
    add(b, p, bytes, err);
}

static void add_text(dq_strbuf *b, const char *s, size_t len, dq_err *err)
{
    add_number(b, len, 8, err);
    add(b, s, len, err);
}

static void begin(dq_gguf_fields *f, const char *key, uint32_t type)
{
    f->n++;
    add_text(&f->bytes, key, strlen(key), &f->err);
    add_number(&f->bytes, type, 4, &f->err);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void dq_gguf_write_u32(dq_gguf_fields *f, const char *key, uint32_t x)
{
    begin(f, key, U32);
    add_number(&f->bytes, x, 4, &f->err);
}

void dq_gguf_write_f32(dq_gguf_fields *f, const char *key, float x)
{
    begin(f, key, F32);
    add_number(&f->bytes, bits_of(x), 4, &f->err);
}

static void write_bool(dq_gguf_fields *f, const char *key, bool x)
{
    begin(f, key, BOOL);
    add_number(&f->bytes, x, 1, &f->err);
}

void dq_gguf_write_text(dq_gguf_fields *f, const char *key, const char *s, size_t len)
{
    begin(f, key, TEXT);
    add_text(&f->bytes, s, len, &f->err);
}

static void write_list(dq_gguf_fields *f, const char *key, dq_gguf_item type, size_t n)
{
    static const uint32_t types[] = {
        [DQ_GGUF_TEXTS] = TEXT, [DQ_GGUF_I32S] = I32, [DQ_GGUF_F32S] = F32};
    begin(f, key, LIST);
    add_number(&f->bytes, types[type], 4, &f->err);
    add_number(&f->bytes, n, 8, &f->err);
}

static void write_item(dq_gguf_fields *f, const char *s, size_t len)
{
    add_text(&f->bytes, s, len, &f->err);
}

dq_status dq_gguf_write_head(dq_strbuf *out, const dq_gguf_fields *f, const dq_gguf_tensor *tensor,
                             int64_t n, dq_err *err)
{
    static const uint8_t zeros[DQ_GGUF_ALIGNMENT];
    uint64_t offset = 0;
    DQ_TRY(dq_fail_as(err, &f->err));
    const size_t from = out->n;
    add(out, "GGUF", 4, err);
    add_number(out, 3, 4, err);
    add_number(out, (uint64_t)n, 8, err);
    add_number(out, f->n, 8, err);
    add(out, f->bytes.s, f->bytes.n, err);
    for (int64_t i = 0; i < n; i++) {
        const dq_gguf_tensor *t = &tensor[i];
        add_text(out, t->name, strlen(t->name), err);
        add_number(out, (uint64_t)t->n_dims, 4, err);
        for (int k = t->n_dims - 1; k >= 0; k--) add_number(out, (uint64_t)t->shape[k], 8, err);
        add_number(out, t->type, 4, err);
        add_number(out, offset, 8, err);
        offset += dq_gguf_write_stride(t->bytes);
    }
    const size_t bytes = out->n - from;
    add(out, zeros, dq_gguf_write_stride(bytes) - bytes, err);
    return err->code;
}

/* ---- Merges ----
 * Pairs of tokens in a hash table give the rank of their merge, and characters are joined by rank
 * as the tokenizers library does it, the best pair from a heap: a token may be long.  That scores
 * say what merges say: both join the pair of best rank, and a piece has one rank where all its
 * merges stand together. Two places with the same piece are where they could part, as merges rank
 * its ways and scores do not. If they share no part, both are joined; if they do, X Y Z with XY =
 * YZ, the tokens were made inside these three alone, so merging the text XYZ by itself shows
 * whether that state is ever reached. Pieces whose merges do not stand apart had one score: these
 * are let through where they are runs of one character that both ways join alike. */

typedef struct dq_gguf_merge {
    const char *text[2]; /* left, right, not ended by NUL */
    size_t len[2];
    int32_t id[3]; /* left, right, result */
} dq_gguf_merge;

/* In the arena; texts belong to the JSON. */
typedef struct dq_gguf_merges {
    dq_strmap ids;     /* of texts */
    dq_strmap pairs;   /* of two tokens: the rank */
    const char **text; /* [n] by id; NULL: not in the vocabulary */
    size_t *len;
    int64_t n;
    dq_gguf_merge *merge;
    int64_t n_merges;
} dq_gguf_merges;

static dq_status damaged(dq_err *err, const char *what)
{
    return dq_fail(err, DQ_DAMAGED, "tokenizer.json: %s", what);
}

static bool split(dq_gguf_merge *out, const json_t *v)
{
    if (json_is_array(v) && json_array_size(v) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *part = json_array_get(v, i);
            if (!json_is_string(part)) return false;
            out->text[i] = json_string_value(part);
            out->len[i] = json_string_length(part);
        }
        return out->len[0] && out->len[1];
    }
    const char *s = json_string_value(v), *space = s ? strchr(s, ' ') : NULL;
    if (!space) return false;
    out->text[0] = s;
    out->len[0] = (size_t)(space - s);
    out->text[1] = space + 1;
    out->len[1] = json_string_length(v) - out->len[0] - 1;
    return out->len[0] && out->len[1];
}

static int32_t piece_id(const dq_gguf_merges *m, const char *s, size_t len)
{
    return dq_strmap_get(&m->ids, s, len);
}

static bool find_ids(dq_gguf_merge *x, const dq_gguf_merges *m, dq_strbuf *joined, dq_err *err)
{
    joined->n = 0;
    for (int i = 0; i < 2; i++) {
        x->id[i] = piece_id(m, x->text[i], x->len[i]);
        if (dq_strbuf_add(joined, x->text[i], x->len[i], err) != DQ_OK) return false;
    }
    x->id[2] = piece_id(m, joined->s, joined->n);
    return x->id[0] >= 0 && x->id[1] >= 0 && x->id[2] >= 0;
}

/* DQ_DAMAGED: no vocabulary with merges; DQ_MISMATCH: an id of n or more, or a duplicate merge. */
static dq_status merges_new(dq_gguf_merges **out, const json_t *model, int64_t n, dq_arena *a,
                            dq_err *err)
{
    dq_gguf_merges *m = *out = dq_alloc(a, 1, sizeof *m, err);
    if (!m) return err->code;
    m->n = n;
    const json_t *vocab = json_object_get(model, "vocab");
    union { /* the iteration macro takes a pointer to non-const, but changes nothing */
        const json_t *in;
        json_t *out;
    } object = {.in = vocab};
    const char *key;
    size_t len;
    json_t *v;
    if (!json_is_object(vocab)) return damaged(err, "there is no vocabulary");
    DQ_TRY(dq_strmap_new(&m->ids, json_object_size(vocab), a, err));
    m->text = dq_alloc(a, (size_t)m->n, sizeof *m->text, err);
    m->len = dq_alloc(a, (size_t)m->n, sizeof *m->len, err);
    if (!m->text || !m->len) return err->code;
    json_object_keylen_foreach(object.out, key, len, v)
    {
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= m->n)
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer.json: token %lld has no row in the embedding, which has %lld",
                           (long long)id, (long long)m->n);
        m->text[id] = key;
        m->len[id] = len;
        dq_strmap_put(&m->ids, key, len, (int32_t)id);
    }
    const json_t *list = json_object_get(model, "merges");
    dq_strbuf joined = {0};
    if (!json_is_array(list)) return damaged(err, "there are no merges");
    m->n_merges = (int64_t)json_array_size(list);
    m->merge = dq_alloc(a, (size_t)m->n_merges, sizeof *m->merge, err);
    if (!m->merge) return err->code;
    DQ_TRY(dq_strmap_new(&m->pairs, (size_t)m->n_merges, a, err));
    for (int64_t i = 0; i < m->n_merges && err->code == DQ_OK; i++) {
        dq_gguf_merge *x = &m->merge[i];
        if (!split(x, json_array_get(list, (size_t)i)) || !find_ids(x, m, &joined, err))
            dq_fail(err, DQ_DAMAGED, "tokenizer.json: merge %lld is not of two tokens to a third",
                    (long long)i);
        else if (dq_strmap_get(&m->pairs, (const char *)x->id, 2 * sizeof *x->id) >= 0)
            dq_fail(err, DQ_MISMATCH,
                    "tokenizer.json: merge %lld (\"%.*s\" and \"%.*s\") is there twice, and which "
                    "of the two counts differs between programs",
                    (long long)i, (int)x->len[0], x->text[0], (int)x->len[1], x->text[1]);
        else
            dq_strmap_put(&m->pairs, (const char *)x->id, 2 * sizeof *x->id, (int32_t)i);
    }
    dq_block_free(joined.s);
    return err->code;
}

static size_t char_end(const char *s, size_t len, size_t at)
{
    for (at++; at < len && !dq_utf8_begins(s[at]); at++)
        ;
    return at;
}

static int32_t rank_of(const dq_gguf_merges *m, const int32_t pair[2])
{
    return pair[0] < 0 || pair[1] < 0
               ? -1
               : dq_strmap_get(&m->pairs, (const char *)pair, 2 * sizeof *pair);
}

enum { GONE = -2 }; /* an item that is joined to the one before */

typedef struct candidate {
    int32_t rank, at;
} candidate;

typedef struct heap {
    candidate *c;
    size_t n;
} heap;

static bool before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void push(heap *h, candidate c)
{
    size_t i = h->n++;
    for (; i > 0 && before(c, h->c[(i - 1) / 2]); i = (i - 1) / 2) h->c[i] = h->c[(i - 1) / 2];
    h->c[i] = c;
}

static candidate pop(heap *h)
{
    const candidate top = h->c[0], last = h->c[--h->n];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < h->n; i = k) {
        if (k + 1 < h->n && before(h->c[k + 1], h->c[k])) k++;
        if (!before(h->c[k], last)) break;
        h->c[i] = h->c[k];
    }
    h->c[i] = last;
    return top;
}

/* Items that are left form a linked list. */
typedef struct joining {
    const dq_gguf_merges *m;
    int32_t *ids, *next, *prev; /* next of the last is n, prev of the first -1 */
    int32_t n, limit;
    heap h;
} joining;

static int32_t rank_at(const joining *j, int32_t at)
{
    const int32_t next = at < 0 ? j->n : j->next[at];
    if (next == j->n) return -1;
    const int32_t rank = rank_of(j->m, (const int32_t[]){j->ids[at], j->ids[next]});
    return rank < j->limit ? rank : -1;
}

static void meet(joining *j, int32_t at)
{
    const int32_t rank = rank_at(j, at);
    if (rank >= 0) push(&j->h, (candidate){rank, at});
}

/* Applies the merges that rank before `limit` to ids[n]; returns how many ids are left. */
static size_t join(int32_t *ids, size_t n, const dq_gguf_merges *m, int32_t limit, dq_err *err)
{
    size_t left = 0;
    joining j = {.m = m, .ids = ids, .n = (int32_t)n, .limit = limit};
    j.h.c = dq_block_raw(3 * n, sizeof *j.h.c, err); /* a merge brings two pairs and takes one */
    j.next = dq_block_raw(2 * n, sizeof *j.next, err);
    if (j.h.c && j.next) {
        j.prev = j.next + n;
        for (int32_t i = 0; i < j.n; i++) j.next[i] = i + 1;
        for (int32_t i = 0; i < j.n; i++) j.prev[i] = i - 1;
        for (int32_t i = 0; i < j.n; i++) meet(&j, i);
        while (j.h.n > 0) {
            const candidate c = pop(&j.h);
            if (ids[c.at] == GONE || rank_at(&j, c.at) != c.rank) continue;
            const int32_t gone = j.next[c.at], after = j.next[gone];
            ids[c.at] = m->merge[c.rank].id[2];
            ids[gone] = GONE;
            j.next[c.at] = after;
            if (after < j.n) j.prev[after] = c.at;
            meet(&j, j.prev[c.at]);
            meet(&j, c.at);
        }
        for (size_t i = 0; i < n; i++) {
            if (ids[i] != GONE) ids[left++] = ids[i];
        }
    }
    dq_block_free(j.next);
    dq_block_free(j.h.c);
    return left;
}

/* Ids of characters, -1 where one is no token; returns how many there are. */
static size_t characters(int32_t *ids, const dq_gguf_merges *m, const char *s, size_t len)
{
    size_t n = 0;
    for (size_t at = 0, end; at < len; at = end) {
        end = char_end(s, len, at);
        ids[n++] = piece_id(m, s + at, end - at);
    }
    return n;
}

/* The first piece that merges do not make from its characters; -1: none. */
static int32_t merges_unmade(const dq_gguf_merges *m, const bool *is_piece, dq_err *err)
{
    int32_t found = -1;
    for (int64_t i = 0; i < m->n && found < 0 && err->code == DQ_OK; i++) {
        if (!is_piece[i] || !m->text[i] || m->len[i] == 0) continue;
        int32_t *ids = dq_block_raw(m->len[i], sizeof *ids, err);
        if (!ids) break;
        const size_t n = join(ids, characters(ids, m, m->text[i], m->len[i]), m, INT32_MAX, err);
        if (n != 1 || ids[0] != i) found = (int32_t)i;
        dq_block_free(ids);
    }
    return found;
}

typedef struct ranks {
    const dq_gguf_merges *m;
    const bool *is_piece;
    int32_t *first, *last; /* [n] by id: the first and the last merge of a piece; -1: it has none */
    bool *tied;            /* [n] by id: it has its score with others */
    dq_arena *arena;
} ranks;

static const char *about(const ranks *r, int32_t id, const char *what, dq_err *err)
{
    return dq_textf(r->arena, err, "\"%.*s\" %s", (int)r->m->len[id], r->m->text[id], what);
}

/* The length of the character that a piece repeats; 0: it is no such run. */
static size_t repeats(const ranks *r, int32_t id)
{
    const char *s = r->m->text[id];
    const size_t len = r->m->len[id], one = char_end(s, len, 0);
    return len % one == 0 && memcmp(s, s + one, len - one) == 0 ? one : 0;
}

/* The last merge of the pieces that this merge begins, as far as their merges do not stand
 * apart. */
static int32_t block_last(const ranks *r, int32_t begin)
{
    int32_t last = begin;
    for (int32_t i = begin; i <= last; i++) {
        const int32_t l = r->last[r->m->merge[i].id[2]];
        if (l > last) last = l;
    }
    return last;
}

/* Whether all these merges, `last` too, make the same piece. */
static bool one_piece(const ranks *r, int32_t begin, int32_t last)
{
    const dq_gguf_merge *merge = r->m->merge;
    for (int32_t i = begin + 1; i <= last; i++) {
        if (merge[i].id[2] != merge[begin].id[2]) return false;
    }
    return true;
}

static bool same_run_of(const ranks *r, int32_t a, int32_t b)
{
    const size_t one = repeats(r, a);
    return one && repeats(r, b) == one && memcmp(r->m->text[a], r->m->text[b], one) == 0;
}

/* The end of the class of one score that begins here; runs of one character go together. */
static int32_t class_end(const ranks *r, int32_t begin)
{
    const dq_gguf_merge *merge = r->m->merge;
    int32_t last = block_last(r, begin);
    if (one_piece(r, begin, last)) return last + 1;
    while (last + 1 < r->m->n_merges && same_run_of(r, merge[begin].id[2], merge[last + 1].id[2]))
        last = block_last(r, last + 1);
    return last + 1;
}

/* A part that SentencePiece's BPE may have: a token or any character. */
static bool may_be_part(const ranks *r, const char *s, size_t len)
{
    return piece_id(r->m, s, len) >= 0 || char_end(s, len, 0) == len;
}

static int32_t way(const ranks *r, const char *s, size_t len, size_t cut)
{
    const int32_t pair[2] = {piece_id(r->m, s, cut), piece_id(r->m, s + cut, len - cut)};
    return rank_of(r->m, pair);
}

/* Whether X, Y, Z come of their text, all merges before the ways of XY = YZ done; `limit` is the
 * first of them. */
static bool reached(const ranks *r, const char *s, size_t len, size_t x, int32_t limit, dq_err *err)
{
    const dq_gguf_merges *m = r->m;
    int32_t *ids = dq_block_raw(len + x, sizeof *ids, err);
    if (!ids) return false;
    size_t n = characters(ids, m, s, x);
    n += characters(ids + n, m, s, len);
    n = join(ids, n, m, limit, err);
    const bool is = n == 3 && ids[0] == piece_id(m, s, x) &&
                    ids[1] == piece_id(m, s + x, len - x) && ids[2] == piece_id(m, s + len - x, x);
    dq_block_free(ids);
    return is;
}

/* Ways of one piece: all are there, and none is taken before one that shares a part with it on its
 * left. */
static const char *check_ways(const ranks *r, int32_t id, dq_err *err)
{
    const char *s = r->m->text[id];
    const size_t len = r->m->len[id];
    for (size_t cut = 1; cut < len; cut++) {
        if (!dq_utf8_begins(s[cut]) || !may_be_part(r, s, cut) ||
            !may_be_part(r, s + cut, len - cut))
            continue;
        const int32_t left = way(r, s, len, cut);
        if (left < 0) return about(r, id, "is made of two pieces that are not merged", err);
        if (r->tied[id] || memcmp(s, s + cut, len - cut) != 0) continue;
        const int32_t right = dq_utf8_begins(s[len - cut]) ? way(r, s, len, len - cut) : -1;
        if (right >= 0 && right < left && reached(r, s, len, cut, r->first[id], err))
            return about(r, id, "is merged from the right of a text that holds it twice", err);
    }
    return NULL;
}

/* The leftmost pair each time, whatever its rank below `end`: what one score for all says. */
static size_t join_leftmost(int32_t *ids, size_t n, const dq_gguf_merges *m, int32_t end)
{
    size_t left = 0; /* of ids that are joined as far as they can be */
    for (size_t i = 0; i < n; i++) {
        ids[left++] = ids[i];
        for (int32_t rank; left > 1 && (rank = rank_of(m, ids + left - 2)) >= 0 && rank < end;)
            ids[--left - 1] = m->merge[rank].id[2];
    }
    return left;
}

/* Whether both ways join n times a character to the same. */
static bool same_run(const ranks *r, int32_t one, size_t n, int32_t end, dq_err *err)
{
    int32_t *a = dq_block_raw(2 * n, sizeof *a, err);
    if (!a) return true;
    int32_t *b = a + n;
    for (size_t i = 0; i < 2 * n; i++) a[i] = one;
    const size_t x = join(a, n, r->m, end, err), y = join_leftmost(b, n, r->m, end);
    const bool same = x == y && memcmp(a, b, x * sizeof *a) == 0;
    dq_block_free(a);
    return same;
}

/* Pieces of one score are runs of one character, of which no better merge has a part. */
static const char *check_class(ranks *r, int32_t begin, int32_t end, dq_err *err)
{
    const dq_gguf_merges *m = r->m;
    const int32_t id = m->merge[begin].id[2];
    const size_t one = repeats(r, id);
    size_t longest = 0;
    for (int32_t i = begin; i < end; i++) {
        const int32_t other = m->merge[i].id[2];
        if (!same_run_of(r, id, other)) return about(r, other, "is merged at several ranks", err);
        if (m->len[other] / one > longest) longest = m->len[other] / one;
        r->tied[other] = true;
    }
    for (int32_t i = 0; i < begin; i++) {
        if (r->tied[m->merge[i].id[0]] || r->tied[m->merge[i].id[1]])
            return about(r, m->merge[i].id[2], "is merged before its part", err);
    }
    const int32_t character = piece_id(m, m->text[id], one);
    for (size_t n = 2; n <= 3 * longest + 2 && err->code == DQ_OK; n++) {
        if (!same_run(r, character, n, end, err))
            return about(r, id, "and longer ones are merged at ranks that no score says", err);
    }
    r->tied[character] = true; /* alone it has no score that counts */
    return NULL;
}

/* Pieces with a score of their own must have ids in the order of their merges; the others come
 * last. */
static bool ids_in_order(const ranks *r)
{
    int32_t before = -1;
    bool tied = false;
    for (int64_t i = 0; i < r->m->n_merges; i++) {
        const int32_t id = r->m->merge[i].id[2];
        tied = tied || r->tied[id];
        if (tied && !r->tied[id]) return false;
        if (!tied && id < before) return false;
        before = id;
    }
    return true;
}

static void fill_scores(float *score, const ranks *r, int32_t first)
{
    static const float least = -1e9f; /* as Llama's vocabulary has it */
    const bool by_id = ids_in_order(r);
    for (int64_t i = 0; i < r->m->n; i++) {
        score[i] = 0;
        if (r->is_piece[i]) score[i] = by_id ? -(float)(i - first) : -(float)r->m->n_merges;
        if (r->is_piece[i] && by_id && r->tied[i]) score[i] = least;
    }
    for (int32_t i = 0, rank = 0, end; !by_id && i < r->m->n_merges; i = end, rank++) {
        end = class_end(r, i);
        for (int32_t k = i; k < end; k++) score[r->m->merge[k].id[2]] = -(float)rank;
    }
}

/* Scores of pieces, [n] by id, with which SentencePiece's BPE (the best score first, of equals the
 * leftmost) joins what the merges join: those of the file that the merges came from where ids are
 * in its order, else by rank. Needs: merges are all ways in which a piece is made of two others or
 * of characters, those of a piece one after the other (but for runs of one character, which may
 * have one score together); and where two ways of a piece share a part (XY = YZ), the merges never
 * reach X, Y, Z with YZ first. *why names what does not hold; NULL: scores are set. `first` is the
 * id whose score is 0. */
static dq_status merges_scores(float *score, const char **why, const dq_gguf_merges *m,
                               const bool *is_piece, int32_t first, dq_arena *a, dq_err *err)
{
    enum { EXACT = 1 << 24 }; /* whole numbers that f32 has */
    ranks r = {.m = m, .is_piece = is_piece, .arena = a};
    r.first = dq_alloc(a, (size_t)m->n, sizeof *r.first, err);
    r.last = dq_alloc(a, (size_t)m->n, sizeof *r.last, err);
    r.tied = dq_alloc(a, (size_t)m->n, sizeof *r.tied, err);
    if (!r.first || !r.last || !r.tied) return err->code;
    *why = m->n_merges >= EXACT || m->n >= EXACT ? "it has more than 2^24 merges" : NULL;
    for (int64_t i = 0; i < m->n && !*why; i++) {
        if (is_piece[i] && m->len[i] > DQ_GGUF_PIECE_BYTES)
            *why = "it has a piece of more than 1024 bytes";
    }
    for (int64_t i = 0; i < r.m->n; i++) r.first[i] = r.last[i] = -1;
    for (int64_t i = 0; i < r.m->n_merges; i++) {
        const int32_t id = r.m->merge[i].id[2];
        if (r.first[id] < 0) r.first[id] = (int32_t)i;
        r.last[id] = (int32_t)i;
    }
    for (int32_t i = 0, end; i < m->n_merges && !*why && err->code == DQ_OK; i = end) {
        end = class_end(&r, i);
        if (!one_piece(&r, i, end - 1)) *why = check_class(&r, i, end, err);
    }
    for (int64_t i = 0; i < m->n && !*why && err->code == DQ_OK; i++) {
        if (is_piece[i] && m->text[i]) *why = check_ways(&r, (int32_t)i, err);
    }
    if (!*why && err->code == DQ_OK) fill_scores(score, &r, first);
    return err->code;
}

/* ---- Tokenizer ----
 * Tokens come by id first, then what splits and joins text, then tokens with a role. Whatever
 * llama.cpp would do otherwise is refused, so that ids are the same or there is no file. */

typedef struct token {
    const char *text; /* NULL: none of this id */
    size_t len;
    int type;
    bool normalized; /* an added token that is matched after the normalizer */
} token;

typedef struct vocabulary {
    const dq_gguf_tokenizer_files *files;
    const json_t *model;
    dq_gguf_merges *merges;
    token *token;   /* [n] */
    bool *is_piece; /* [n]: of the vocabulary, and no added token */
    int64_t n;
    int64_t bos, eos;
    bool add_bos, add_eos;
    dq_arena *arena;
} vocabulary;

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static bool is_set(const json_t *v)
{
    return v && !json_is_null(v);
}

static dq_status refuse(const char *what, dq_err *err)
{
    return dq_fail(err, DQ_MISMATCH, "tokenizer.json: %s, which llama.cpp does not do", what);
}

static dq_status add_special(vocabulary *v, const json_t *t, json_int_t id, dq_err *err)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    const json_t *text = json_object_get(t, "content");
    if (!json_is_string(text) || id < 0)
        return dq_fail(err, DQ_DAMAGED, "tokenizer.json: an added token has no text or no id");
    const char *s = json_string_value(text);
    if (id >= v->n)
        return dq_fail(err, DQ_MISMATCH,
                       "tokenizer.json: token %lld has no row in the embedding, which has %lld",
                       (long long)id, (long long)v->n);
    for (int i = 0; i < 3; i++) {
        if (json_is_true(json_object_get(t, flags[i])))
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer.json: added token \"%s\" has \"%s\", which GGUF cannot say",
                           s, flags[i]);
    }
    const bool special = json_is_true(json_object_get(t, "special"));
    const json_t *normalized = json_object_get(t, "normalized");
    v->is_piece[id] = false;
    v->token[id] =
        (token){.text = s,
                .len = json_string_length(text),
                .type = special ? DQ_GGUF_CONTROL : DQ_GGUF_USER_DEFINED,
                .normalized = json_is_boolean(normalized) ? json_is_true(normalized) : !special};
    return DQ_OK;
}

/* Those of tokenizer.json, then those only in tokenizer_config.json. */
static dq_status add_specials(vocabulary *v, dq_err *err)
{
    const json_t *added = json_object_get(v->files->tokenizer, "added_tokens");
    json_t *more = json_object_get(v->files->tokenizer_config, "added_tokens_decoder"), *t;
    const char *key;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *id = json_object_get(json_array_get(added, i), "id");
        DQ_TRY(add_special(v, json_array_get(added, i),
                           json_is_integer(id) ? json_integer_value(id) : -1, err));
    }
    json_object_foreach(more, key, t)
    {
        const char *text = json_string_value(json_object_get(t, "content"));
        char *end;
        const long long id = strtoll(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end)
            return dq_fail(err, DQ_DAMAGED,
                           "tokenizer_config.json: added_tokens_decoder \"%.100s\" is not an id",
                           key);
        if (id >= 0 && id < v->n && text && v->token[id].text && !v->is_piece[id] &&
            strcmp(v->token[id].text, text) == 0)
            continue;
        DQ_TRY(add_special(v, t, id, err));
    }
    return DQ_OK;
}

static bool same_runs(const token *a, const token *b)
{
    size_t one;
    if (dq_utf8_first(a->text, &one) != dq_utf8_first(b->text, &one)) return false;
    return memcmp(a->text, a->text + one, a->len - one) == 0 &&
           memcmp(b->text, b->text + one, b->len - one) == 0;
}

/* Whether b may begin within a, at byte `at` or later. */
static bool may_begin_in(const token *a, const token *b, size_t at)
{
    for (; at < a->len; at++) {
        const size_t left = a->len - at;
        if (memcmp(a->text + at, b->text, left < b->len ? left : b->len) == 0) return true;
    }
    return false;
}

/* Of two overlapping added tokens the tokenizers library takes one that is not normalized, else the
 * left one, else the longer one, and llama.cpp the longer one. Each pair is asked both ways. */
static bool same_choice(const token *a, const token *b)
{
    if (a->len > b->len || (a->normalized && !b->normalized)) return true;
    if (a->normalized == b->normalized) return same_runs(a, b) || !may_begin_in(a, b, 1);
    return !may_begin_in(a, b, 1) && !may_begin_in(b, a, 0);
}

static int64_t id_of(const vocabulary *v, const char *text)
{
    for (int64_t i = 0; i < v->n; i++) {
        if (v->token[i].text && strcmp(v->token[i].text, text) == 0) return i;
    }
    return -1;
}

static int64_t model_id(const vocabulary *v, const char *text)
{
    const json_t *id = json_object_get(json_object_get(v->model, "vocab"), text);
    return id ? json_integer_value(id) : -1;
}

static void write_tokens(dq_gguf_fields *f, const vocabulary *v)
{
    write_list(f, "tokenizer.ggml.tokens", DQ_GGUF_TEXTS, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        char unused[32];
        const token *t = &v->token[i];
        const int n = snprintf(unused, sizeof unused, "[PAD%lld]", (long long)i);
        write_item(f, t->text ? t->text : unused, t->text ? t->len : (size_t)n);
    }
    write_list(f, "tokenizer.ggml.token_type", DQ_GGUF_I32S, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        add_number(&f->bytes, (uint32_t)(v->token[i].text ? v->token[i].type : DQ_GGUF_UNUSED), 4,
                   &f->err);
    }
}

/* -1: it is not one token. */
static int64_t template_id(const json_t *template, const json_t *item)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    const json_t *t =
        name ? json_object_get(json_object_get(template, "special_tokens"), name) : NULL;
    const json_t *ids = json_object_get(t, "ids");
    return json_array_size(ids) == 1 ? json_integer_value(json_array_get(ids, 0)) : -1;
}

static dq_status read_post(vocabulary *v, const json_t *post, int depth, dq_err *err)
{
    const json_t *type = json_object_get(post, "type"), *list = json_object_get(post, "processors");
    if (!is_set(post) || is_text(type, "ByteLevel")) return DQ_OK;
    if (is_text(type, "TemplateProcessing")) {
        const json_t *single = json_object_get(post, "single");
        const size_t n = json_array_size(single);
        size_t at = 0;
        while (at < n && !json_object_get(json_array_get(single, at), "Sequence")) at++;
        if (at > 1 || at == n || n - at > 2)
            return refuse("its template puts more than one token before or after a text", err);
        v->add_bos = at == 1;
        v->add_eos = n - at == 2;
        if (v->add_bos) v->bos = template_id(post, json_array_get(single, 0));
        if (v->add_eos) v->eos = template_id(post, json_array_get(single, at + 1));
        if ((v->add_bos && (v->bos < 0 || v->bos >= v->n)) ||
            (v->add_eos && (v->eos < 0 || v->eos >= v->n)))
            return dq_fail(err, DQ_DAMAGED,
                           "tokenizer.json: its template names a token that is not one");
        return DQ_OK;
    }
    if (!is_text(type, "Sequence") || depth > 4)
        return dq_fail(err, DQ_MISMATCH,
                       "tokenizer.json: post_processor \"%s\" has no form in GGUF",
                       json_is_string(type) ? json_string_value(type) : "");
    for (size_t i = 0; i < json_array_size(list); i++)
        DQ_TRY(read_post(v, json_array_get(list, i), depth + 1, err));
    return DQ_OK;
}

/* The id from tokenizer_config.json ("eos_token") or config.json ("eos_token_id"); -1: neither. */
static dq_status role_id(int64_t *id, const vocabulary *v, const char *role, dq_err *err)
{
    const json_t *t = json_object_get(v->files->tokenizer_config, role);
    const char *key = dq_textf(v->arena, err, "%s_id", role);
    if (!key) return err->code;
    if (json_is_object(t)) t = json_object_get(t, "content");
    *id = json_is_string(t) ? id_of(v, json_string_value(t)) : -1;
    if (*id >= 0) return DQ_OK;
    t = json_object_get(v->files->config, key);
    if (json_is_array(t)) t = json_array_get(t, 0);
    if (json_is_integer(t)) *id = json_integer_value(t);
    if (*id >= v->n) *id = -1;
    return DQ_OK;
}

static void write_id(dq_gguf_fields *f, const char *role, int64_t id)
{
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", role);
    if (id >= 0) dq_gguf_write_u32(f, key, (uint32_t)id);
}

static void add_ends(int32_t *id, int64_t *n, int64_t max, const vocabulary *v, const json_t *named)
{
    for (size_t i = 0; i < json_array_size(named); i++)
        add_ends(id, n, max, v, json_array_get(named, i));
    const int64_t x = json_is_integer(named) ? json_integer_value(named) : -1;
    if (x < 0 || x >= v->n || *n == max) return;
    for (int64_t i = 0; i < *n; i++) {
        if (id[i] == x) return;
    }
    id[(*n)++] = (int32_t)x;
}

/* llama.cpp would use fixed ids where none are given. Without BOS a text begins with EOS. */
static dq_status write_roles(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    int64_t bos, eos, unk, pad;
    DQ_TRY(role_id(&bos, v, "bos_token", err));
    DQ_TRY(role_id(&eos, v, "eos_token", err));
    DQ_TRY(role_id(&unk, v, "unk_token", err));
    DQ_TRY(role_id(&pad, v, "pad_token", err));
    if (v->add_bos) bos = v->bos;
    if (v->add_eos) eos = v->eos;
    if (eos < 0)
        return dq_fail(err, DQ_MISMATCH,
                       "neither tokenizer_config.json (\"eos_token\") nor config.json "
                       "(\"eos_token_id\") says which token ends a text, and llama.cpp would take "
                       "some other one. Name it in the source.");
    if (bos < 0) bos = eos;
    if (unk < 0 && json_is_string(json_object_get(v->model, "unk_token")))
        unk = id_of(v, json_string_value(json_object_get(v->model, "unk_token")));
    write_id(f, "bos", bos);
    write_id(f, "eos", eos);
    /* End tokens beyond eos that llama.cpp does not know by name go under two keys. */
    enum { ENDS = 64 };
    static const char key[] = "eos_token_id", *const roles[] = {"eot", "eom"};
    const json_t *t = json_object_get(v->files->special_tokens_map, "eos_token");
    int32_t id[ENDS];
    int64_t n = 0;
    int used = 0;
    add_ends(id, &n, ENDS, v, json_object_get(v->files->config, key));
    add_ends(id, &n, ENDS, v, json_object_get(v->files->generation_config, key));
    if (json_is_object(t)) t = json_object_get(t, "content");
    json_t *named = json_integer(json_is_string(t) ? id_of(v, json_string_value(t)) : -1);
    add_ends(id, &n, ENDS, v, named);
    json_decref(named);
    for (int64_t i = 0; i < n; i++) {
        const token *x = &v->token[id[i]];
        if (id[i] == eos || (x->text && dq_gguf_vocab_ends(x->text, x->len))) continue;
        if (used == 2)
            return dq_fail(err, DQ_MISMATCH,
                           "a text ends at more than three tokens that llama.cpp does not know by "
                           "their names, and GGUF has keys for eos, eot and eom alone");
        write_id(f, roles[used++], id[i]);
    }
    write_id(f, "unknown", unk);
    write_id(f, "padding", pad);
    write_bool(f, "tokenizer.ggml.add_bos_token", v->add_bos);
    write_bool(f, "tokenizer.ggml.add_eos_token", v->add_eos);
    return DQ_OK;
}

static void write_chat(dq_gguf_fields *f, const vocabulary *v)
{
    const json_t *chat = json_object_get(v->files->tokenizer_config, "chat_template");
    if (v->files->chat) {
        dq_gguf_write_text(f, "tokenizer.chat_template", v->files->chat, v->files->chat_len);
        return;
    }
    for (size_t i = 0; i < json_array_size(chat); i++) { /* several, by name */
        const json_t *one = json_array_get(chat, i);
        if (!is_text(json_object_get(one, "name"), "default")) continue;
        chat = json_object_get(one, "template");
        break;
    }
    if (json_is_string(chat))
        dq_gguf_write_text(f, "tokenizer.chat_template", json_string_value(chat),
                           json_string_length(chat));
}

static const char *type_name(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return type ? type : "none";
}

/* ignore_merges follows from the pre-tokenizer's name in llama.cpp; it is moot where merges make
 * every token. */
static dq_status check_ignored(const vocabulary *v, bool theirs, const char *name, dq_err *err)
{
    const bool ignored = json_is_true(json_object_get(v->model, "ignore_merges"));
    if (ignored == theirs) return DQ_OK;
    const int32_t unmade = merges_unmade(v->merges, v->is_piece, err);
    if (unmade < 0) return err->code;
    return dq_fail(err, DQ_MISMATCH,
                   "tokenizer.json: \"ignore_merges\" is %s and merges do not make token %d, which "
                   "llama.cpp reads otherwise with the pre-tokenizer \"%s\"",
                   ignored ? "true" : "false", unmade, name);
}

static dq_status write_gpt2(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    json_t *normalizer = json_object_get(v->files->tokenizer, "normalizer");
    json_t *steps = json_object_get(v->files->tokenizer, "pre_tokenizer");
    const bool nfc = is_text(json_object_get(normalizer, "type"), "NFC");
    const dq_gguf_pre *pre =
        dq_gguf_pre_of(steps, nfc, json_is_true(json_object_get(v->model, "ignore_merges")));
    if (is_set(normalizer) && !(pre && pre->nfc && nfc))
        return dq_fail(
            err, DQ_MISMATCH,
            "tokenizer.json: normalizer \"%s\" beside byte-level BPE has no form in GGUF",
            type_name(normalizer));
    if (!pre)
        return dq_fail(
            err, DQ_MISMATCH,
            "tokenizer.json: pre_tokenizer \"%s\" is none of those that have a name in GGUF files "
            "(gpt-2, smollm, qwen2, llama-bpe, tekken), so that llama.cpp would split words "
            "otherwise",
            type_name(steps));
    DQ_TRY(check_ignored(v, pre->ignore_merges, pre->name, err));
    /* The tokenizers library joins across bytes without a token, llama.cpp does not. Control
     * characters and empty planes may lack one, as in real models. */
    for (unsigned b = 0; b < 256; b++) {
        char text[3] = {0};
        const bool control = (b < 0x20 && b != '\t' && b != '\n' && b != '\r') || b == 0x7f;
        if (control || b == 0xc0 || b == 0xc1 || b == 0xf1 || b == 0xf2 || b > 0xf3) continue;
        dq_utf8_of_byte(text, (uint8_t)b);
        if (model_id(v, text) < 0)
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer.json: byte 0x%02X (\"%s\") has no token, and llama.cpp would "
                           "not join what stands around it",
                           b, text);
    }
    dq_gguf_write_text(f, "tokenizer.ggml.model", "gpt2", 4);
    dq_gguf_write_text(f, "tokenizer.ggml.pre", pre->name, strlen(pre->name));
    write_tokens(f, v);
    const int64_t n = v->merges->n_merges;
    write_list(f, "tokenizer.ggml.merges", DQ_GGUF_TEXTS, (size_t)n);
    for (int64_t i = 0; i < n && err->code == DQ_OK; i++) {
        const dq_gguf_merge *m = &v->merges->merge[i];
        const char *text = dq_textf(v->arena, err, "%.*s %.*s", (int)m->len[0], m->text[0],
                                    (int)m->len[1], m->text[1]);
        if (text) write_item(f, text, m->len[0] + m->len[1] + 1);
    }
    return err->code;
}

static bool is_replace(const json_t *v)
{
    return is_text(json_object_get(v, "type"), "Replace") &&
           is_text(json_object_get(json_object_get(v, "pattern"), "String"), " ") &&
           is_text(json_object_get(v, "content"), space_mark);
}

static bool is_prepend(const json_t *v)
{
    return is_text(json_object_get(v, "type"), "Prepend") &&
           is_text(json_object_get(v, "prepend"), space_mark);
}

/* Accepts only what llama.cpp does: a mark for each space, and perhaps one before the text. */
static bool read_spaces(bool *prefix, const json_t *tokenizer)
{
    const json_t *normalizer = json_object_get(tokenizer, "normalizer");
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (is_set(json_object_get(tokenizer, "pre_tokenizer"))) return false;
    *prefix = false;
    if (is_replace(normalizer)) return true;
    if (!is_text(json_object_get(normalizer, "type"), "Sequence")) return false;
    const size_t n = json_array_size(list);
    *prefix = n == 2 && is_prepend(json_array_get(list, 0));
    return (n == 1 || *prefix) && is_replace(json_array_get(list, n - 1));
}

/* llama.cpp needs a token for every byte and finds neither those nor the unknown one in text. */
static dq_status mark_bytes(vocabulary *v, dq_err *err)
{
    const char *unk = json_string_value(json_object_get(v->model, "unk_token"));
    const int64_t unknown = unk ? id_of(v, unk) : -1;
    int n = 0;
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        const int64_t id = model_id(v, text);
        if (id < 0 || !v->is_piece[id]) continue;
        v->token[id].type = DQ_GGUF_BYTE;
        n++;
    }
    if (unknown >= 0 && !v->is_piece[unknown]) v->token[unknown].type = DQ_GGUF_UNKNOWN;
    if (n == 256) return DQ_OK;
    return dq_fail(
        err, DQ_MISMATCH,
        "tokenizer.json: %d of 256 tokens of bytes are there, and llama.cpp needs all of them", n);
}

static int32_t first_piece(const vocabulary *v)
{
    for (int64_t i = 0; i < v->n; i++) {
        if (v->is_piece[i] && v->token[i].type == DQ_GGUF_NORMAL) return (int32_t)i;
    }
    return 0;
}

static dq_status write_llama(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    const char *why = NULL;
    bool prefix;
    if (!read_spaces(&prefix, v->files->tokenizer))
        return refuse("it makes more of spaces than U+2581, or of other characters", err);
    float *score = dq_alloc(v->arena, (size_t)v->n, sizeof *score, err);
    if (!score) return err->code;
    /* Normalized added tokens are matched after spaces became marks; llama.cpp matches all
     * before. */
    for (int64_t i = 0; i < v->n; i++) {
        const token *t = &v->token[i];
        if (!t->text || !t->normalized) continue;
        if (prefix || strchr(t->text, ' ') || strstr(t->text, space_mark))
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer.json: added token \"%s\" has \"normalized\", so that the "
                           "normalizer changes it, which llama.cpp does not do",
                           t->text);
    }
    DQ_TRY(check_ignored(v, false, "default", err));
    DQ_TRY(mark_bytes(v, err));
    DQ_TRY(merges_scores(score, &why, v->merges, v->is_piece, first_piece(v), v->arena, err));
    if (why)
        return dq_fail(err, DQ_MISMATCH,
                       "tokenizer.json: its merges are not those of a SentencePiece vocabulary "
                       "(%s), so that llama.cpp would give other tokens",
                       why);
    dq_gguf_write_text(f, "tokenizer.ggml.model", "llama", 5);
    dq_gguf_write_text(f, "tokenizer.ggml.pre", "default", 7);
    write_tokens(f, v);
    write_list(f, "tokenizer.ggml.scores", DQ_GGUF_F32S, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        add_number(&f->bytes, bits_of(v->token[i].type == DQ_GGUF_NORMAL ? score[i] : 0), 4,
                   &f->err);
    }
    write_bool(f, "tokenizer.ggml.add_space_prefix", prefix);
    return DQ_OK;
}

static bool is_empty(const json_t *v)
{
    return !is_set(v) || is_text(v, "");
}

static dq_status write_all(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    v->model = json_object_get(v->files->tokenizer, "model");
    const json_t *type = json_object_get(v->model, "type");
    if (json_is_string(type) && !is_text(type, "BPE"))
        return dq_fail(
            err, DQ_MISMATCH,
            "tokenizer.json: a model of type \"%s\" is not written to GGUF (expected BPE)",
            json_string_value(type));
    if (!is_empty(json_object_get(v->model, "continuing_subword_prefix")) ||
        !is_empty(json_object_get(v->model, "end_of_word_suffix")))
        return refuse("pieces inside a word have a prefix or a suffix", err);
    if (json_number_value(json_object_get(v->model, "dropout")) > 0)
        return refuse("merges are dropped by chance", err);
    DQ_TRY(merges_new(&v->merges, v->model, v->n, v->arena, err));
    union { /* the iteration macro takes a pointer to non-const, but changes nothing */
        const json_t *in;
        json_t *out;
    } vocab = {.in = json_object_get(v->model, "vocab")};
    const char *key;
    json_t *id;
    v->token = dq_alloc(v->arena, (size_t)v->n, sizeof *v->token, err);
    v->is_piece = dq_alloc(v->arena, (size_t)v->n, sizeof *v->is_piece, err);
    if (!v->token || !v->is_piece) return err->code;
    json_object_foreach(vocab.out, key, id)
    {
        token *t = &v->token[json_integer_value(id)]; /* merges_new has looked at it */
        if (t->text)
            return dq_fail(err, DQ_DAMAGED, "tokenizer.json: two tokens have the id %lld",
                           (long long)json_integer_value(id));
        *t = (token){.text = key, .len = strlen(key), .type = DQ_GGUF_NORMAL};
        v->is_piece[json_integer_value(id)] = true;
    }
    DQ_TRY(add_specials(v, err));
    int64_t n = 0;
    const token **added = dq_alloc(v->arena, (size_t)v->n, sizeof *added, err);
    if (!added) return err->code;
    for (int64_t i = 0; i < v->n; i++) {
        if (v->token[i].text && v->token[i].len && !v->is_piece[i]) added[n++] = &v->token[i];
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < n; k++) {
            if (i != k && !same_choice(added[i], added[k]))
                return dq_fail(err, DQ_MISMATCH,
                               "tokenizer.json: added tokens \"%s\" and \"%s\" overlap in a text, "
                               "where llama.cpp would take the longer one first",
                               added[i]->text, added[k]->text);
        }
    }
    DQ_TRY(read_post(v, json_object_get(v->files->tokenizer, "post_processor"), 0, err));
    const bool bytes = json_is_true(json_object_get(v->model, "byte_fallback"));
    DQ_TRY(bytes ? write_llama(f, v, err) : write_gpt2(f, v, err));
    DQ_TRY(write_roles(f, v, err));
    write_chat(f, v);
    return DQ_OK;
}

dq_status dq_gguf_tokenizer_write(dq_gguf_fields *f, const dq_gguf_tokenizer_files *files,
                                  int64_t n_tokens, dq_err *err)
{
    vocabulary v = {.files = files, .n = n_tokens, .arena = dq_arena_new(), .bos = -1, .eos = -1};
    if (!v.arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    write_all(f, &v, err);
    dq_arena_free(v.arena);
    return err->code;
}
