/* A word becomes symbols (characters, or bytes where they fall back), and the adjacent pair of the
 * lowest rank is merged until no pair has a rank; of equal ranks the leftmost goes first. Pairs
 * are found in a hash table from two tokens to rank and result. Up to SHORT_WORD symbols the ranks
 * lie in an array that is searched whole each time, which is quadratic and the fastest for words
 * as they are. Longer words use a list of symbols linked both ways and a heap of candidates
 * ordered by rank, then position; candidates are not taken out of the heap when a neighbour
 * changes, but recognised as stale when they come up: O(n log n). Before both stand two tables for
 * words of up to CACHE_KEY bytes: `known`, made at load, of words that are one token in the end,
 * and a cache per run of what other words became, of four slots a row, which grows to CACHE_LAST
 * slots and then overwrites. Where merges cannot cross a run of U+2581, a text is cut before it,
 * and the parts are words of their own with the same tokens.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/inside.h"

#include <string.h>

enum {
    SHORT_WORD = 32,      /* symbols up to which a plain search beats the heap */
    CACHE_KEY = 32,       /* longest word in the cache, in bytes */
    CACHE_IDS = 6,        /* most ids of a word in the cache */
    CACHE_FIRST = 64,     /* slots at first */
    CACHE_LAST = 1 << 15, /* slots at most */
    CACHE_PROBES = 4,
    LONGEST_WORD = 1 << 29 /* bytes: two symbols each must fit an int32_t */
};

typedef struct dq_bpe_cached {
    uint64_t key[CACHE_KEY / 8]; /* zero padded */
    int32_t id[CACHE_IDS];
    uint8_t len; /* 0: free */
    uint8_t n;
} cached;

typedef struct symbol {
    int32_t id; /* -1: merged into its left neighbour */
    int32_t prev, next;
} symbol;

typedef struct candidate {
    uint64_t order; /* rank in the upper half, position in the lower */
    int32_t id;     /* what the merge would give */
} candidate;

typedef struct heap {
    candidate *item;
    size_t n;
} heap;

static uint64_t make_pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

dq_status dq_bpe_merge_put(dq_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id,
                           dq_err *err)
{
    return dq_map64_put(&bpe->merges, make_pair(left, right), make_pair(rank + 1, id), err);
}

/* The rank + 1 of a merge, and the id that it gives. */
static int64_t rank_in(uint64_t merge)
{
    return (int64_t)(merge >> 32);
}

static int32_t id_in(uint64_t merge)
{
    return (int32_t)(merge & UINT32_MAX);
}

/* 0 when the two do not merge. */
static uint64_t get_merge(const dq_bpe *bpe, int32_t left, int32_t right)
{
    return dq_map64_get(&bpe->merges, make_pair(left, right));
}

void dq_bpe_run_end(dq_bpe_run *run)
{
    dq_block_free(run->cache);
    dq_block_free(run->scratch);
    *run = (dq_bpe_run){0};
}

dq_bpe_start dq_bpe_start_of(const dq_bpe *bpe, int32_t id, const char *c, size_t len)
{
    dq_bpe_start s = {.id = {id}, .n = 1, .kind = DQ_START_TOKEN};
    size_t n = 0;
    if (id >= 0) return s;
    for (; n < len; n++) {
        s.id[n] = bpe->byte_id[(uint8_t)c[n]];
        if (s.id[n] < 0) break;
    }
    s.n = n == len ? (uint8_t)len : bpe->unknown >= 0;
    s.kind = n == len ? DQ_START_BYTES : DQ_START_UNKNOWN;
    if (n < len) s.id[0] = bpe->unknown;
    return s;
}

/* Length of the character with first byte c, in well-formed text. */
static size_t char_bytes(uint8_t c)
{
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

static size_t count_symbols(const dq_bpe *bpe, const char *word, size_t len)
{
    size_t n = 0;
    if (!bpe->byte_level) return len;
    for (size_t i = 0; i < len; i++) n += bpe->start[(uint8_t)word[i]].n;
    return n;
}

/* out has capacity for count_symbols. An unknown token in waiting precedes the next known one. */
static size_t first_symbols(const dq_bpe *bpe, const char *word, size_t len, int32_t *out)
{
    size_t n = 0, used;
    int32_t pending = -1;
    for (size_t i = 0; i < len; i += used) {
        dq_bpe_start rare;
        const dq_bpe_start *s = &bpe->start[(uint8_t)word[i]];
        used = bpe->byte_level ? 1 : char_bytes((uint8_t)word[i]);
        if (used > 1) {
            rare = dq_bpe_start_of(bpe, dq_strmap_get(&bpe->chars, word + i, used), word + i, used);
            s = &rare;
        }
        if (s->n == 0) continue;
        if (s->kind == DQ_START_UNKNOWN) {
            if (pending >= 0 && !bpe->fuse_unknown) out[n++] = pending;
            pending = s->id[0];
            continue;
        }
        if (s->kind == DQ_START_TOKEN && pending >= 0) {
            out[n++] = pending;
            pending = -1;
        }
        for (uint8_t k = 0; k < s->n; k++) out[n++] = s->id[k];
    }
    if (pending >= 0) out[n++] = pending;
    return n;
}

static int64_t rank_of(const dq_bpe *bpe, int32_t left, int32_t right, int32_t *id)
{
    const uint64_t merge = get_merge(bpe, left, right);
    if (!merge) return INT64_MAX;
    *id = id_in(merge);
    return rank_in(merge);
}

/* Searches the lowest rank each time; n <= SHORT_WORD. */
static size_t merge_short(const dq_bpe *bpe, int32_t *sym, size_t n)
{
    int64_t rank[SHORT_WORD];
    int32_t result[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(bpe, sym[i], sym[i + 1], &result[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == INT64_MAX) break;
        sym[best] = result[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            sym[i] = sym[i + 1];
            rank[i] = rank[i + 1];
            result[i] = result[i + 1];
        }
        if (best + 1 < n) rank[best] = rank_of(bpe, sym[best], sym[best + 1], &result[best]);
        if (best > 0) rank[best - 1] = rank_of(bpe, sym[best - 1], sym[best], &result[best - 1]);
    }
    return n;
}

static candidate heap_pop(heap *h)
{
    candidate top = h->item[0], last = h->item[--h->n];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < h->n; i = down) {
        if (down + 1 < h->n && h->item[down + 1].order < h->item[down].order) down++;
        if (last.order <= h->item[down].order) break;
        h->item[i] = h->item[down];
    }
    h->item[i] = last;
    return top;
}

static void offer(const dq_bpe *bpe, heap *h, const symbol *s, int32_t at)
{
    const uint64_t merge = get_merge(bpe, s[at].id, s[s[at].next].id);
    if (merge) {
        const candidate c = {(uint64_t)rank_in(merge) << 32 | (uint32_t)at, id_in(merge)};
        size_t i = h->n++;
        for (size_t up; i > 0 && h->item[up = (i - 1) / 2].order > c.order; i = up)
            h->item[i] = h->item[up];
        h->item[i] = c;
    }
}

/* n symbols, 2n candidates, n tokens. */
static dq_status need_scratch(dq_bpe_run *run, size_t n, dq_err *err)
{
    if (run->scratch_symbols >= n) return DQ_OK;
    dq_block_free(run->scratch);
    run->scratch_symbols = 0;
    if (n < 1024) n = 1024;
    run->scratch = dq_block_new(n, 2 * sizeof(candidate) + sizeof(symbol) + sizeof(int32_t), err);
    if (!run->scratch) return err->code;
    run->scratch_symbols = n;
    return DQ_OK;
}

static dq_status long_word(dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len,
                           dq_err *err)
{
    if (len > LONGEST_WORD)
        return dq_fail(err, DQ_RESOURCE, "a single word of %zu bytes is too long", len);
    size_t capacity = count_symbols(run->bpe, word, len);
    if (capacity == 0) return DQ_OK;
    DQ_TRY(need_scratch(run, capacity, err));
    heap h = {run->scratch, 0};
    symbol *s = (symbol *)(h.item + 2 * run->scratch_symbols);
    int32_t *first = (int32_t *)(s + run->scratch_symbols);
    size_t n = first_symbols(run->bpe, word, len, first);
    for (size_t i = 0; i < n; i++)
        s[i] = (symbol){first[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    const dq_bpe *bpe = run->bpe;
    for (size_t k = 0; k + 1 < n; k++) offer(bpe, &h, s, (int32_t)k);
    while (h.n) {
        candidate c = heap_pop(&h);
        int32_t at = (int32_t)(c.order & UINT32_MAX), right = s[at].next;
        if (s[at].id < 0 || right < 0) continue;
        const uint64_t merge = get_merge(bpe, s[at].id, s[right].id);
        if (!merge || id_in(merge) != c.id) continue;
        s[at].id = c.id;
        s[at].next = s[right].next;
        s[right].id = -1;
        if (s[at].next >= 0) {
            s[s[at].next].prev = at;
            offer(bpe, &h, s, at);
        }
        if (s[at].prev >= 0) offer(bpe, &h, s, s[at].prev);
    }
    DQ_TRY(dq_id_list_reserve(ids, n, err));
    for (int32_t i = n ? 0 : -1; i >= 0; i = s[i].next) ids->id[ids->n++] = s[i].id;
    return DQ_OK;
}

static dq_status any_word(dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len,
                          dq_err *err)
{
    int32_t sym[2 * SHORT_WORD];
    if (len > SHORT_WORD) return long_word(run, ids, word, len, err);
    size_t n = first_symbols(run->bpe, word, len, sym);
    if (n > SHORT_WORD) return long_word(run, ids, word, len, err);
    n = merge_short(run->bpe, sym, n);
    DQ_TRY(dq_id_list_reserve(ids, n, err));
    memcpy(ids->id + ids->n, sym, n * sizeof *sym);
    ids->n += n;
    return DQ_OK;
}

/* The word's slot, or where it would go: a free one, else the first of its row. */
static cached *cache_find(const dq_bpe_run *run, const uint64_t *key, size_t len)
{
    uint64_t h = key[0] * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 29 ^ key[1]) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 32 ^ key[2]) * UINT64_C(0x94D049BB133111EB);
    h = (h ^ h >> 30 ^ key[3]) * UINT64_C(0xD6E8FEB86659FD93);
    size_t home = (size_t)(h ^ h >> 32) & (run->cache_size - 1);
    for (size_t i = 0; i < CACHE_PROBES; i++) {
        cached *c = &run->cache[(home + i) & (run->cache_size - 1)];
        if (c->len == 0 || (c->len == len && memcmp(c->key, key, CACHE_KEY) == 0)) return c;
    }
    return &run->cache[home];
}

static dq_status one_word(dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len,
                          dq_err *err)
{
    if (len > CACHE_KEY) return any_word(run, ids, word, len, err);
    uint64_t key[CACHE_KEY / 8] = {0};
    int32_t id = dq_strmap_get(&run->bpe->known, word, len);
    if (id >= 0) return dq_id_list_push(ids, id, err);
    if (!run->cache) {
        run->cache = dq_block_new(CACHE_FIRST, sizeof *run->cache, err);
        if (!run->cache) return err->code;
        run->cache_size = CACHE_FIRST;
    }
    memcpy(key, word, len);
    cached *c = cache_find(run, key, len);
    if (c->len == len && memcmp(c->key, key, CACHE_KEY) == 0) {
        DQ_TRY(dq_id_list_reserve(ids, CACHE_IDS, err));
        memcpy(ids->id + ids->n, c->id, sizeof c->id);
        ids->n += c->n;
        return DQ_OK;
    }
    size_t before = ids->n;
    DQ_TRY(any_word(run, ids, word, len, err));
    if (ids->n - before > CACHE_IDS) return DQ_OK;
    run->cache_used += !c->len;
    c->len = (uint8_t)len;
    c->n = (uint8_t)(ids->n - before);
    memcpy(c->key, key, CACHE_KEY);
    memcpy(c->id, ids->id + before, c->n * sizeof *c->id);
    if (run->cache_used > run->cache_size / 2 && run->cache_size < CACHE_LAST) {
        dq_bpe_run grown = *run;
        grown.cache_size *= 4;
        grown.cache_used = 0;
        grown.cache = dq_block_new(grown.cache_size, sizeof *grown.cache, err);
        if (!grown.cache) return err->code;
        for (size_t i = 0; i < run->cache_size; i++) {
            const cached *from = &run->cache[i];
            if (!from->len) continue;
            cached *to = cache_find(&grown, from->key, from->len);
            grown.cache_used += !to->len;
            *to = *from;
        }
        dq_block_free(run->cache);
        *run = grown;
        return DQ_OK;
    }
    return DQ_OK;
}

dq_status dq_bpe_makes(bool *yes, dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len,
                       int32_t id, dq_err *err)
{
    *yes = false;
    if (len > CACHE_KEY) return DQ_OK;
    ids->n = 0;
    DQ_TRY(any_word(run, ids, word, len, err));
    *yes = ids->n == 1 && ids->id[0] == id;
    return DQ_OK;
}

/* U+2581, which stands for a space. */
static bool is_mark(const char *s, size_t left)
{
    return left >= 3 && memcmp(s, "\xE2\x96\x81", 3) == 0;
}

/* Start of the next run of U+2581 after other text, or len. */
static size_t next_cut(const char *word, size_t len)
{
    size_t at = 0;
    while (is_mark(word + at, len - at)) at += 3;
    while (at < len) {
        const char *found = memchr(word + at, 0xE2, len - at);
        if (!found) return len;
        at = (size_t)(found - word);
        if (is_mark(found, len - at)) return at;
        at++;
    }
    return len;
}

dq_status dq_bpe_word(dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len, dq_err *err)
{
    if (len == 0) return DQ_OK;
    if (run->bpe->whole_words) {
        int32_t id = dq_strmap_get(&run->bpe->words, word, len);
        if (id >= 0) return dq_id_list_push(ids, id, err);
    }
    if (!run->bpe->cuts) return one_word(run, ids, word, len, err);
    /* The text may be a single word; merges never cross such a place. */
    for (size_t at = 0; at < len;) {
        size_t part = next_cut(word + at, len - at);
        DQ_TRY(one_word(run, ids, word + at, part, err));
        at += part;
    }
    return DQ_OK;
}
