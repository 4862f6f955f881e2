/* ruler_cwe: common words extraction. A numbered list in which ten words stand more often than all others; a solved
 * example with a shorter list stands in front. Words come from the user's text.
 * Source: RULER scripts/data/synthetic/common_words_extraction.py (structure and numbers).
 * SPDX-License-Identifier: MIT */
#include "tasks/ruler.h"

enum { COMMON = 10, SHORT = 4096 };

/* How often words stand in a list. */
typedef struct repeats {
    int common, others;
} repeats;

static void put_item(dq_ruler_draft *d, const int32_t *word, int64_t n, repeats r)
{
    const int64_t all = COMMON * r.common + (n - COMMON) * r.others;
    const int32_t *order = dq_ruler_draft_shuffled(d, all);
    if (!order) return;
    dq_ruler_draft_put(
        d, "Below is a numbered list of words. Some words stand in it more often than the others. "
           "Remember those.\n");
    for (int64_t i = 0; i < all; i++) {
        const int64_t k = order[i];
        const int64_t at = k < COMMON * r.common
                               ? k / r.common
                               : COMMON + (k - (int64_t)COMMON * r.common) / r.others;
        dq_ruler_draft_put(d, "%s%lld. %s", i ? " " : "", (long long)i + 1,
                           d->text->word[word[at]]);
    }
    d->question = d->prompt.n;
    dq_ruler_draft_put(d, "\nQuestion: Which %d words stand most often in the list above?", COMMON);
    dq_ruler_draft_put(d, " Answer: The %d words that stand most often in it are:", COMMON);
}

void dq_ruler_cwe(dq_ruler_draft *d, int64_t units)
{
    const bool is_short = d->length < SHORT;
    const int64_t of_example = is_short ? 20 : 40;
    const repeats example = is_short ? (repeats){3, 1} : (repeats){10, 3};
    const repeats usual = is_short ? (repeats){6, 1} : (repeats){30, 3};
    const int64_t need = units > of_example ? units : of_example;
    if (need > d->text->n_words) {
        dq_fail(
            d->err, DQ_MISMATCH,
            "has %lld different words of 3 to 12 small letters, lists of %lld tokens take more. "
            "Give a longer text",
            (long long)d->text->n_words, (long long)d->length);
        return;
    }
    const int32_t *mine = dq_ruler_draft_shuffled(d, d->text->n_words);
    const int32_t *others = dq_ruler_draft_shuffled(d, d->text->n_words);
    if (!mine || !others) return;
    put_item(d, others, of_example, example);
    for (int i = 0; i < COMMON; i++)
        dq_ruler_draft_put(d, " %d. %s", i + 1, d->text->word[others[i]]);
    dq_ruler_draft_put(d, "\n");
    put_item(d, mine, units, usual);
    for (int i = 0; i < COMMON; i++) dq_ruler_draft_answer(d, d->text->word[mine[i]]);
}
