/* slices: see slices.h.
 * SPDX-License-Identifier: MIT */
#include "tasks/slices.h"

#include <string.h>

typedef struct slot {
    uint64_t key;  /* first << 32 | second */
    int64_t count; /* 0: free */
} slot;

/* Counts of pairs of ids. */
typedef struct bigrams {
    slot *slot; /* [mask + 1], at most half of them used */
    size_t mask, used;
} bigrams;

enum { LEAST_SLOTS = 1024 };

static dq_status bigrams_new(bigrams **out, dq_err *err)
{
    bigrams *b = dq_block_new(1, sizeof *b, err);
    *out = b;
    if (!b) return err->code;
    b->mask = LEAST_SLOTS - 1;
    b->slot = dq_block_new(LEAST_SLOTS, sizeof *b->slot, err);
    return err->code;
}

static void bigrams_free(bigrams *b)
{
    if (b) dq_block_free(b->slot);
    dq_block_free(b);
}

static void bigrams_clear(bigrams *b)
{
    memset(b->slot, 0, (b->mask + 1) * sizeof *b->slot);
    b->used = 0;
}

static uint64_t key_of(int32_t first, int32_t second)
{
    return (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
}

/* The slot of the key, or the free one where it belongs. */
static slot *find(const bigrams *b, uint64_t key)
{
    uint64_t h = key * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h ^ h >> 32) & b->mask;
    while (b->slot[i].count && b->slot[i].key != key) i = (i + 1) & b->mask;
    return &b->slot[i];
}

static dq_status grow(bigrams *b, dq_err *err)
{
    const bigrams old = *b;
    size_t n = 2 * (old.mask + 1);
    slot *s = dq_block_new(n, sizeof *s, err);
    if (!s) return err->code;
    b->slot = s;
    b->mask = n - 1;
    for (size_t i = 0; i <= old.mask; i++) {
        if (old.slot[i].count) *find(b, old.slot[i].key) = old.slot[i];
    }
    dq_block_free(old.slot);
    return DQ_OK;
}

static dq_status bigrams_add(bigrams *b, int32_t first, int32_t second, dq_err *err)
{
    if (2 * (b->used + 1) > b->mask + 1) DQ_TRY(grow(b, err));
    slot *s = find(b, key_of(first, second));
    b->used += s->count == 0;
    s->key = key_of(first, second);
    s->count++;
    return DQ_OK;
}

static int64_t bigrams_count(const bigrams *b, int32_t first, int32_t second)
{
    return find(b, key_of(first, second))->count;
}

/* A classification on its way. */
typedef struct run {
    bigrams *all, *mine, *seen; /* the corpus, the document at hand, the window at hand */
    dq_slices *out;
    int64_t own_ids; /* of the document at hand */
    bool *hit;
} run;

static int64_t text_ids(const dq_doc_ids *d)
{
    int64_t n = d->n - d->n_before - d->n_after;
    return n > 0 ? n : 0;
}

static dq_status count(bigrams *b, const dq_doc_ids *d, dq_err *err)
{
    const int32_t *ids = d->ids + d->n_before;
    for (int64_t i = 1; i < text_ids(d); i++) DQ_TRY(bigrams_add(b, ids[i - 1], ids[i], err));
    return DQ_OK;
}

static bool is_frequent(const run *x, int32_t first, int32_t second)
{
    int64_t n = bigrams_count(x->all, first, second), ids = x->out->counted;
    if (x->out->own) {
        n -= bigrams_count(x->mine, first, second);
        ids -= x->own_ids;
    }
    double most = x->out->threshold * (double)ids / 1e10;
    return (double)n > (most > 1 ? most : 1);
}

/* A bigram joins what was seen after its second id has been judged. */
static dq_status classify(run *x, const dq_window *w, dq_err *err)
{
    bigrams_clear(x->seen);
    for (int64_t t = 1; t < w->n + w->past; t++) {
        const int32_t a = w->ids[t - 1], b = w->ids[t];
        if (t > w->first)
            x->hit[w->value + t - w->first - 1] =
                bigrams_count(x->seen, a, b) > 0 && !is_frequent(x, a, b);
        DQ_TRY(bigrams_add(x->seen, a, b, err));
    }
    return DQ_OK;
}

static dq_status classify_all(run *x, const dq_windows *w, const dq_doc_ids *corpus,
                              int64_t n_corpus, dq_err *err)
{
    for (int64_t i = 0; i < n_corpus; i++) {
        x->out->counted += text_ids(&corpus[i]);
        DQ_TRY(count(x->all, &corpus[i], err));
    }
    for (int64_t i = 0; i < w->n; i++) {
        const dq_doc_ids *d = &w->doc[w->win[i].doc];
        if (x->out->own && (i == 0 || w->win[i].doc != w->win[i - 1].doc)) {
            x->own_ids = text_ids(d);
            bigrams_clear(x->mine);
            DQ_TRY(count(x->mine, d, err));
        }
        DQ_TRY(classify(x, &w->win[i], err));
    }
    return DQ_OK;
}

dq_status dq_slices_make(dq_slices *out, const dq_windows *w, const dq_doc_ids *corpus,
                         int64_t n_corpus, double threshold, dq_arena *a, dq_err *err)
{
    run x = {.out = out};
    x.hit = dq_alloc(a, (size_t)w->n_values, sizeof *x.hit, err);
    *out = (dq_slices){.hit = x.hit, .threshold = threshold, .own = corpus == NULL};
    if (x.hit && bigrams_new(&x.all, err) == DQ_OK && bigrams_new(&x.mine, err) == DQ_OK &&
        bigrams_new(&x.seen, err) == DQ_OK)
        classify_all(&x, w, corpus ? corpus : w->doc, corpus ? n_corpus : w->n_given, err);
    bigrams_free(x.all);
    bigrams_free(x.mine);
    bigrams_free(x.seen);
    return err->code;
}
