/* slices: see slices.h. Pairs of tokens are counted in hash tables: of the whole corpus, of the document at hand
 * (taken off where the corpus holds it) and of the window so far. A scored id is a hit if its pair stood in the
 * window before and is not frequent in the corpus; a pair joins the window's after its second id has been judged.
 * SPDX-License-Identifier: MIT */
#include "tasks/slices.h"

#include "base/base.h"

enum { FIRST_PAIRS = 512 };

/* Of two tokens, a map's key. */
static uint64_t pair(int32_t first, int32_t second)
{
    return (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
}

/* A classification on its way. */
typedef struct run {
    dq_map64 all, mine, seen; /* counts of bigrams: the corpus, the document, the window at hand */
    dq_slices *out;
    int64_t own_ids; /* of the document at hand */
    bool *hit;
} run;

static int64_t text_ids(const dq_doc_ids *d)
{
    int64_t n = d->n - d->n_before - d->n_after;
    return n > 0 ? n : 0;
}

static dq_status count(dq_map64 *b, const dq_doc_ids *d, dq_err *err)
{
    const int32_t *ids = d->ids + d->n_before;
    for (int64_t i = 1; i < text_ids(d); i++)
        DQ_TRY(dq_map64_count(b, pair(ids[i - 1], ids[i]), err));
    return DQ_OK;
}

static bool is_frequent(const run *x, int32_t first, int32_t second)
{
    int64_t n = (int64_t)dq_map64_get(&x->all, pair(first, second)), ids = x->out->counted;
    if (x->out->own) {
        n -= (int64_t)dq_map64_get(&x->mine, pair(first, second));
        ids -= x->own_ids;
    }
    double max = x->out->threshold * (double)ids / 1e10;
    return (double)n > (max > 1 ? max : 1);
}

/* A bigram joins what was seen after its second id has been judged. */
static dq_status classify(run *x, const dq_window *w, dq_err *err)
{
    dq_map64_clear(&x->seen);
    for (int64_t t = 1; t < w->n + w->past; t++) {
        const int32_t a = w->ids[t - 1], b = w->ids[t];
        if (t > w->first)
            x->hit[w->value + t - w->first - 1] =
                dq_map64_get(&x->seen, pair(a, b)) > 0 && !is_frequent(x, a, b);
        DQ_TRY(dq_map64_count(&x->seen, pair(a, b), err));
    }
    return DQ_OK;
}

static dq_status classify_all(run *x, const dq_windows *w, const dq_doc_ids *corpus,
                              int64_t n_corpus, dq_err *err)
{
    for (int64_t i = 0; i < n_corpus; i++) {
        x->out->counted += text_ids(&corpus[i]);
        DQ_TRY(count(&x->all, &corpus[i], err));
    }
    for (int64_t i = 0; i < w->n; i++) {
        const dq_doc_ids *d = &w->doc[w->win[i].doc];
        if (x->out->own && (i == 0 || w->win[i].doc != w->win[i - 1].doc)) {
            x->own_ids = text_ids(d);
            dq_map64_clear(&x->mine);
            DQ_TRY(count(&x->mine, d, err));
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
    if (x.hit && dq_map64_new(&x.all, FIRST_PAIRS, NULL, err) == DQ_OK &&
        dq_map64_new(&x.mine, FIRST_PAIRS, NULL, err) == DQ_OK &&
        dq_map64_new(&x.seen, FIRST_PAIRS, NULL, err) == DQ_OK)
        classify_all(&x, w, corpus ? corpus : w->doc, corpus ? n_corpus : w->n_given, err);
    dq_map64_free(&x.all);
    dq_map64_free(&x.mine);
    dq_map64_free(&x.seen);
    return err->code;
}
