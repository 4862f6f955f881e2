/* ruler_niah: sentences with keys and numbers in a running text. The text begins at a sentence drawn at random; needles
 * stand before the sentences at different ones of 40 depths.
 * Source: RULER scripts/data/synthetic/niah.py (structure).
 * SPDX-License-Identifier: MIT */
#include "tasks/ruler.h"

#include <string.h>

enum { NEEDLES = 16, DEPTHS = 40 };

typedef struct needles {
    const char *key[NEEDLES], *value[NEEDLES]; /* [n] a sentence each */
    int n;
    int64_t before[NEEDLES]; /* sentences of text in front, ascending */
} needles;

/* "word-word" */
static const char *draw_key(dq_ruler_draft *d)
{
    const dq_ruler_text *t = d->text;
    const uint64_t a = dq_random_below(&d->random, (uint64_t)t->n_words);
    const uint64_t b = dq_random_below(&d->random, (uint64_t)t->n_words);
    return dq_textf(d->a, d->err, "%s-%s", t->word[a], t->word[b]);
}

static const char *draw_number(dq_ruler_draft *d)
{
    return dq_textf(d->a, d->err, "%u", 1000000u + (unsigned)dq_random_below(&d->random, 9000000));
}

typedef const char *draw_one(dq_ruler_draft *d);

/* One that is not among text[n]. NULL: see d->err. */
static const char *draw_new(dq_ruler_draft *d, draw_one *draw, const char *const *text, int n)
{
    for (;;) {
        const char *one = draw(d);
        bool is_new = one != NULL;
        for (int i = 0; is_new && i < n; i++) is_new = strcmp(text[i], one) != 0;
        if (is_new || !one) return one;
    }
}

static int64_t count_sentences(const dq_ruler_text *t, int64_t start, int64_t units)
{
    int64_t n = 0;
    for (int64_t i = 0; i < units; i++) n += t->piece[(start + i) % t->n].ends || i + 1 == units;
    return n;
}

static void place(dq_ruler_draft *d, needles *x, int64_t sentences)
{
    const int32_t *perm = dq_ruler_draft_shuffled(d, DEPTHS);
    bool taken[DEPTHS] = {false};
    if (!perm) return;
    for (int i = 0; i < x->n; i++) taken[perm[i]] = true;
    for (int i = 0, k = 0; i < DEPTHS; i++) {
        const int64_t percent = (2 * 100 * i + DEPTHS - 1) / (2 * (DEPTHS - 1)); /* rounded */
        if (taken[i]) x->before[k++] = sentences * percent / 100;
    }
}

static void put_text(dq_ruler_draft *d, const needles *x, const int32_t *order, int64_t start,
                     int64_t units)
{
    const dq_ruler_text *t = d->text;
    int64_t i = 0, sentence = 0;
    int k = 0;
    const char *gap = "";
    for (;; sentence++) {
        for (; k < x->n && (i == units || x->before[k] <= sentence); k++, gap = " ")
            dq_ruler_draft_put(d, "%sA special number for %s is %s.", gap, x->key[order[k]],
                               x->value[order[k]]);
        if (i == units) return;
        const dq_ruler_piece *p;
        do { /* up to the end of the sentence */
            p = &t->piece[(start + i++) % t->n];
            dq_ruler_draft_put(d, "%s%.*s", gap, (int)p->len, p->s);
            gap = " ";
        } while (!p->ends && i < units);
    }
}

/* "key, key, and key" */
static const char *list_keys(dq_ruler_draft *d, const needles *x, const int32_t *asked)
{
    const int n = d->task->requested;
    const char *all = "";
    for (int i = 0; i < n && all; i++)
        all = dq_textf(d->a, d->err, "%s%s%s", all,
                       i == 0      ? ""
                       : i + 1 < n ? ", "
                                   : ", and ",
                       x->key[asked[i] * d->task->values]);
    return all ? all : "";
}

static void put_question(dq_ruler_draft *d, const needles *x, const int32_t *asked)
{
    const bool one = d->task->requested * d->task->values == 1;
    const char *keys = list_keys(d, x, asked);
    d->question = d->prompt.n;
    dq_ruler_draft_put(d,
                       one ? "\nWhat is the special number for %s in this text?"
                           : "\nWhat are all the special numbers for %s in this text?",
                       keys);
    dq_ruler_draft_put(d,
                       one ? " The special number for %s in this text is"
                           : " The special numbers for %s in this text are",
                       keys);
    for (int i = 0; i < d->task->requested; i++) {
        for (int v = 0; v < d->task->values; v++)
            dq_ruler_draft_answer(d, x->value[asked[i] * d->task->values + v]);
    }
}

void dq_ruler_niah(dq_ruler_draft *d, int64_t units)
{
    const dq_ruler_text *t = d->text;
    needles x = {.n = d->task->keys * d->task->values};
    for (int i = 0; i < x.n; i++) {
        x.key[i] = i % d->task->values ? x.key[i - 1] : draw_new(d, draw_key, x.key, i);
        x.value[i] = draw_new(d, draw_number, x.value, i);
        if (!x.key[i] || !x.value[i]) return;
    }
    const int32_t *asked = dq_ruler_draft_shuffled(d, d->task->keys);
    const int32_t *order = dq_ruler_draft_shuffled(d, x.n);
    const int64_t start = t->start[dq_random_below(&d->random, (uint64_t)t->n_starts)];
    if (!asked || !order) return;
    place(d, &x, count_sentences(t, start, units));
    dq_ruler_draft_put(
        d,
        "Special numbers are hidden in the text below, each with a key. Remember them: a question "
        "about them follows.\n");
    put_text(d, &x, order, start, units);
    put_question(d, &x, asked);
}
