/* fewshot: see fewshot.h. Draws come from random_mt in the order of the reference, one sample an item. Where the
 * reference knows of no other split, one example more is drawn. Examples of the item's content are taken out; if too few
 * are left, the draw is made anew among the others.
 * SPDX-License-Identifier: MIT */
#include "tasks/fewshot.h"

#include "base/random.h"
#include "base/text.h"

#include <string.h>

typedef struct drawer {
    const dq_items *pool;
    int64_t n, spare;
    int64_t n_own;  /* items that an example was taken out for */
    int64_t scored; /* index of the item that examples are drawn for */
    dq_random_mt random;
    int64_t *draw; /* [n + spare], indices into the pool */
    dq_strbuf text;
} drawer;

/* How many examples are asked for, after the text of a failure. */
static void say_examples(int64_t n, dq_err *err)
{
    dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_EXAMPLES, .number = {n}}, "%lld examples",
                 (long long)n);
}

/* A pool may hold an item more than once: then its copies are taken out and n are drawn anew. */
static dq_status draw_from_others(drawer *d, const dq_item *item, dq_err *err)
{
    int64_t n = 0;
    int64_t *other = dq_block_new((size_t)d->pool->n, sizeof *other, err);
    if (!other) return err->code;
    for (int64_t i = 0; i < d->pool->n; i++) {
        if (d->pool->item[i].content != item->content) other[n++] = i;
    }
    if (n < d->n) {
        dq_fail(err, DQ_MISMATCH,
                "has %lld items that differ from the one that is scored, item %lld, line %lld "
                "(expected %lld for ",
                (long long)n, (long long)d->scored, (long long)item->line, (long long)d->n);
        say_examples(d->n, err);
        dq_fail_more(err, dq_remedy_none, "). Use a larger file or fewer examples");
    } else if (dq_random_mt_sample(&d->random, d->draw, n, d->n, err) == DQ_OK)
        for (int64_t i = 0; i < d->n; i++) d->draw[i] = other[d->draw[i]];
    dq_block_free(other);
    return err->code;
}

static dq_status draw(drawer *d, const dq_item *item, dq_err *err)
{
    int64_t kept = 0, all = d->n + d->spare;
    DQ_TRY(dq_random_mt_sample(&d->random, d->draw, d->pool->n, all, err));
    for (int64_t i = 0; i < all; i++) {
        if (d->pool->item[d->draw[i]].content != item->content) d->draw[kept++] = d->draw[i];
    }
    d->n_own += kept < all;
    return kept < d->n ? draw_from_others(d, item, err) : DQ_OK;
}

/* Context, answer, two line ends. An empty text after a choice's own context is no answer: then the
 * context stands alone. */
static dq_status add_example(drawer *d, const dq_item *item, dq_err *err)
{
    size_t n;
    const dq_choice *c = &item->choice[item->gold];
    const char *ctx = dq_item_context(item, item->gold, &n);
    DQ_TRY(dq_strbuf_add(&d->text, ctx, n, err));
    if (c->ctx && c->len == c->delimiter) return DQ_OK;
    DQ_TRY(dq_strbuf_add(&d->text, c->text, c->len, err));
    return dq_strbuf_add(&d->text, "\n\n", 2, err);
}

/* The examples and a context after them. */
static const char *joined(const drawer *d, const char *ctx, size_t *len, dq_arena *a, dq_err *err)
{
    char *s = dq_alloc(a, d->text.n + *len + 1, 1, err);
    if (!s) return NULL;
    if (d->text.n) memcpy(s, d->text.s, d->text.n);
    memcpy(s + d->text.n, ctx, *len);
    *len += d->text.n;
    return s;
}

static dq_status extend(const drawer *d, dq_item *item, dq_arena *a, dq_err *err)
{
    dq_choice *c = dq_alloc(a, (size_t)item->n_choices, sizeof *c, err);
    if (!c) return err->code;
    memcpy(c, item->choice, (size_t)item->n_choices * sizeof *c);
    if (item->ctx) item->ctx = joined(d, item->ctx, &item->ctx_len, a, err);
    for (int i = 0; i < item->n_choices; i++) {
        if (c[i].ctx) c[i].ctx = joined(d, c[i].ctx, &c[i].ctx_len, a, err);
    }
    item->choice = c;
    return err->code;
}

static dq_status add_examples(drawer *d, dq_item *item, dq_arena *a, dq_err *err)
{
    d->text.n = 0;
    DQ_TRY(draw(d, item, err));
    for (int64_t i = 0; i < d->n; i++) DQ_TRY(add_example(d, &d->pool->item[d->draw[i]], err));
    return extend(d, item, a, err);
}

dq_status dq_fewshot(dq_items *items, int64_t *n_own, const dq_items *pool, const dq_task *task,
                     int64_t n, uint64_t seed, dq_arena *a, dq_err *err)
{
    drawer d = {.pool = pool, .n = n, .spare = task->draws_extra};
    *n_own = 0;
    if (n == 0) return DQ_OK;
    if (pool->n < n + d.spare) {
        dq_fail(err, DQ_MISMATCH, "has %lld items (expected at least %lld for ", (long long)pool->n,
                (long long)(n + d.spare));
        say_examples(n, err);
        return dq_fail_more(err, dq_remedy_none, "%s). Use a larger file or fewer examples",
                            d.spare ? ": one more is drawn, to leave out the item itself" : "");
    }
    dq_item *item = dq_alloc(a, (size_t)items->n, sizeof *item, err);
    d.draw = dq_alloc(a, (size_t)(n + d.spare), sizeof *d.draw, err);
    if (!item || !d.draw) return err->code;
    memcpy(item, items->item, (size_t)items->n * sizeof *item);
    dq_random_mt_seed(&d.random, seed);
    for (d.scored = 0; err->code == DQ_OK && d.scored < items->n; d.scored++)
        add_examples(&d, &item[d.scored], a, err);
    dq_block_free(d.text.s);
    items->item = item;
    *n_own = d.n_own;
    return err->code;
}
