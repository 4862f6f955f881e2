/* ruler_fwe: frequent words extraction. Coded words by a zeta distribution with exponent 2, of which the most frequent
 * one is dots that say nothing; the next three are asked for.
 * Source: RULER scripts/data/synthetic/freq_words_extraction.py (structure, numbers and distribution).
 * SPDX-License-Identifier: MIT */
#include "tasks/ruler.h"

#include "base/base.h"

enum { LETTERS = 6, ANSWERS = 3, IDS_A_WORD = 50, FEWEST = 8 };

/* n different words, of which the first is dots; NULL: see d->err. */
static const char **draw_words(dq_ruler_draft *d, int64_t n)
{
    dq_strmap seen = {0};
    const char **word = dq_alloc(d->a, (size_t)n, sizeof *word, d->err);
    if (!word || dq_strmap_new(&seen, (size_t)n, d->a, d->err) != DQ_OK) return NULL;
    word[0] = "...";
    for (int64_t i = 1; i < n;) {
        char s[LETTERS];
        for (int k = 0; k < LETTERS; k++) s[k] = (char)('a' + dq_random_below(&d->random, 26));
        if (dq_strmap_get(&seen, s, LETTERS) >= 0) continue;
        char *own = dq_text(d->a, s, LETTERS, d->err);
        if (!own) return NULL;
        dq_strmap_put(&seen, own, LETTERS, (int32_t)i);
        word[i++] = own;
    }
    return word;
}

/* How often the word of rank k, from 1, stands in a text of so many units. */
static int64_t times(int64_t units, int64_t k)
{
    const double zeta2 = 1.6449340668482264; /* pi^2 / 6 */
    return (int64_t)((double)units / ((double)k * (double)k) / zeta2);
}

void dq_ruler_fwe(dq_ruler_draft *d, int64_t units)
{
    int64_t n = (d->length - d->task->max_new) / IDS_A_WORD, all = 0, at = 0;
    if (n < FEWEST) n = FEWEST;
    const char **word = draw_words(d, n);
    for (int64_t k = 1; k <= n; k++) all += times(units, k);
    const int32_t *order = word ? dq_ruler_draft_shuffled(d, all) : NULL;
    const char **text = order ? dq_alloc(d->a, (size_t)all, sizeof *text, d->err) : NULL;
    if (!text) return;
    for (int64_t k = 1; k <= n; k++) {
        for (int64_t i = times(units, k); i > 0; i--) text[order[at++]] = word[k - 1];
    }
    dq_ruler_draft_put(
        d, "Below is a text of coded words. Watch how often each of them stands in it.\n");
    for (int64_t i = 0; i < all; i++) dq_ruler_draft_put(d, "%s%s", i ? " " : "", text[i]);
    d->question = d->prompt.n;
    dq_ruler_draft_put(d, "\nQuestion: Dots do not count. Which three coded words stand most often "
                          "in the text above?");
    dq_ruler_draft_put(d, " Answer: The three coded words that stand most often in it are:");
    for (int i = 1; i <= ANSWERS; i++) dq_ruler_draft_answer(d, word[i]);
}
