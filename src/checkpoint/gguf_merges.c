/* gguf_merges: pairs of tokens in a hash table give the rank of their merge, and characters are joined by rank as the tokenizers
 * library does it, the best pair from a heap: a token may be long.
 *
 * That scores say what merges say: both join the pair of best rank, and a piece has one rank where all its merges stand
 * together. Two places with the same piece are where they could part, as merges rank its ways and scores do not. If they share
 * no part, both are joined; if they do, X Y Z with XY = YZ, the tokens were made inside these three alone, so merging the text
 * XYZ by itself shows whether that state is ever reached. Pieces whose merges do not stand apart had one score: these are let
 * through where they are runs of one character that both ways join alike.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_merges.h"

#include "base/base.h"
#include "base/text.h"

#include <string.h>

struct dq_gguf_merges {
    dq_strmap ids;     /* of texts */
    dq_strmap pairs;   /* of two tokens: the rank */
    const char **text; /* [n] by id; NULL: not in the vocabulary */
    size_t *len;
    int64_t n;
    dq_gguf_merge *merge;
    int64_t n_merges;
};

static dq_status damaged(dq_err *err, const char *what)
{
    return dq_fail(err, DQ_DAMAGED, "tokenizer.json: %s", what);
}

/* ---- Reading ---- */

static dq_status read_vocab(dq_gguf_merges *m, const json_t *vocab, dq_arena *a, dq_err *err)
{
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
    return DQ_OK;
}

/* "left right" or ["left", "right"]. */
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

static int32_t id_of(const dq_gguf_merges *m, const char *s, size_t len)
{
    return dq_strmap_get(&m->ids, s, len);
}

static bool find_ids(dq_gguf_merge *x, const dq_gguf_merges *m, dq_strbuf *joined, dq_err *err)
{
    joined->n = 0;
    for (int i = 0; i < 2; i++) {
        x->id[i] = id_of(m, x->text[i], x->len[i]);
        if (dq_strbuf_add(joined, x->text[i], x->len[i], err) != DQ_OK) return false;
    }
    x->id[2] = id_of(m, joined->s, joined->n);
    return x->id[0] >= 0 && x->id[1] >= 0 && x->id[2] >= 0;
}

static dq_status read_merges(dq_gguf_merges *m, const json_t *list, dq_arena *a, dq_err *err)
{
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

dq_status dq_gguf_merges_new(dq_gguf_merges **out, const json_t *model, int64_t n, dq_arena *a,
                             dq_err *err)
{
    dq_gguf_merges *m = *out = dq_alloc(a, 1, sizeof *m, err);
    if (!m) return err->code;
    m->n = n;
    DQ_TRY(read_vocab(m, json_object_get(model, "vocab"), a, err));
    return read_merges(m, json_object_get(model, "merges"), a, err);
}

int64_t dq_gguf_merges_count(const dq_gguf_merges *m)
{
    return m->n_merges;
}

const dq_gguf_merge *dq_gguf_merges_at(const dq_gguf_merges *m, int64_t i)
{
    return &m->merge[i];
}

/* ---- Joining ---- */

static bool begins_char(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

static size_t char_end(const char *s, size_t len, size_t at)
{
    for (at++; at < len && !begins_char(s[at]); at++)
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

/* A pair that begins at an item, and its rank when it was met. */
typedef struct candidate {
    int32_t rank, at;
} candidate;

typedef struct heap {
    candidate *c;
    size_t n;
} heap;

/* The best rank first, of equals the leftmost. */
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

/* Items of a text on their way: those that are left are a list. */
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

/* Ids of the tokens that ids[n] become by merges that rank before `limit`; how many they are. */
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

/* Ids of characters, -1 of one that is no token; how many they are. */
static size_t characters(int32_t *ids, const dq_gguf_merges *m, const char *s, size_t len)
{
    size_t n = 0;
    for (size_t at = 0, end; at < len; at = end) {
        end = char_end(s, len, at);
        ids[n++] = id_of(m, s + at, end - at);
    }
    return n;
}

int32_t dq_gguf_merges_unmade(const dq_gguf_merges *m, const bool *is_piece, dq_err *err)
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

/* ---- Scores ---- */

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

static void find_runs(ranks *r)
{
    for (int64_t i = 0; i < r->m->n; i++) r->first[i] = r->last[i] = -1;
    for (int64_t i = 0; i < r->m->n_merges; i++) {
        const int32_t id = r->m->merge[i].id[2];
        if (r->first[id] < 0) r->first[id] = (int32_t)i;
        r->last[id] = (int32_t)i;
    }
}

/* The length of the character that a piece repeats; 0: it is no such run. */
static size_t repeats(const ranks *r, int32_t id)
{
    const char *s = r->m->text[id];
    const size_t len = r->m->len[id], one = char_end(s, len, 0);
    return len % one == 0 && memcmp(s, s + one, len - one) == 0 ? one : 0;
}

/* The last merge of the pieces that this merge begins, as far as their merges do not stand apart. */
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

/* The end of the class that begins with this merge: pieces of one score. With runs of a character come those after them, as
 * the run of two, which has but one merge. */
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
    return id_of(r->m, s, len) >= 0 || char_end(s, len, 0) == len;
}

static int32_t way(const ranks *r, const char *s, size_t len, size_t cut)
{
    const int32_t pair[2] = {id_of(r->m, s, cut), id_of(r->m, s + cut, len - cut)};
    return rank_of(r->m, pair);
}

/* Whether X, Y, Z come of their text, all merges before the ways of XY = YZ done; `limit` is the first of them. */
static bool reached(const ranks *r, const char *s, size_t len, size_t x, int32_t limit, dq_err *err)
{
    const dq_gguf_merges *m = r->m;
    int32_t *ids = dq_block_raw(len + x, sizeof *ids, err);
    if (!ids) return false;
    size_t n = characters(ids, m, s, x);
    n += characters(ids + n, m, s, len);
    n = join(ids, n, m, limit, err);
    const bool is = n == 3 && ids[0] == id_of(m, s, x) && ids[1] == id_of(m, s + x, len - x) &&
                    ids[2] == id_of(m, s + len - x, x);
    dq_block_free(ids);
    return is;
}

/* Ways of one piece: all are there, and none is taken before one that shares a part with it on its left. */
static const char *check_ways(const ranks *r, int32_t id, dq_err *err)
{
    const char *s = r->m->text[id];
    const size_t len = r->m->len[id];
    for (size_t cut = 1; cut < len; cut++) {
        if (!begins_char(s[cut]) || !may_be_part(r, s, cut) || !may_be_part(r, s + cut, len - cut))
            continue;
        const int32_t left = way(r, s, len, cut);
        if (left < 0) return about(r, id, "is made of two pieces that are not merged", err);
        if (r->tied[id] || memcmp(s, s + cut, len - cut) != 0) continue;
        const int32_t right = begins_char(s[len - cut]) ? way(r, s, len, len - cut) : -1;
        if (right >= 0 && right < left && reached(r, s, len, cut, r->first[id], err))
            return about(r, id, "is merged from the right of a text that holds it twice", err);
    }
    return NULL;
}

/* ---- Pieces of one score ---- */

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

/* Pieces of one score are runs of one character, as those of spaces in Llama's vocabulary; no better merge has a part of them,
 * so that they are made of single characters alone and without a break. */
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
    const int32_t character = id_of(m, m->text[id], one);
    for (size_t n = 2; n <= 3 * longest + 2 && err->code == DQ_OK; n++) {
        if (!same_run(r, character, n, end, err))
            return about(r, id, "and longer ones are merged at ranks that no score says", err);
    }
    r->tied[character] = true; /* alone it has no score that counts */
    return NULL;
}

static const char *check_classes(ranks *r, dq_err *err)
{
    const char *why = NULL;
    for (int32_t i = 0, end; i < r->m->n_merges && !why && err->code == DQ_OK; i = end) {
        end = class_end(r, i);
        if (!one_piece(r, i, end - 1)) why = check_class(r, i, end, err);
    }
    return why;
}

/* ---- */

/* Pieces that have a score of their own have ids in the order of their merges, and those of one score are the last. */
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

dq_status dq_gguf_merges_scores(float *score, const char **why, const dq_gguf_merges *m,
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
    find_runs(&r);
    if (!*why) *why = check_classes(&r, err);
    for (int64_t i = 0; i < m->n && !*why && err->code == DQ_OK; i++) {
        if (is_piece[i] && m->text[i]) *why = check_ways(&r, (int32_t)i, err);
    }
    if (!*why && err->code == DQ_OK) fill_scores(score, &r, first);
    return err->code;
}
