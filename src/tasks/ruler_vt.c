/* ruler_vt: variable tracking. One chain of assignments in lines that say nothing, in their order; a solved example with
 * a chain of its own stands in front.
 * Source: RULER scripts/data/synthetic/variable_tracking.py (structure; one chain of four hops).
 * SPDX-License-Identifier: MIT */
#include "tasks/ruler.h"

#include <string.h>

enum { HOPS = 4, VARIABLES = HOPS + 1, LETTERS = 5, EXAMPLE_LETTERS = 3, EXAMPLE_LINES = 5 };

static const char line[] =
    "The bread is brown. The milk is white. The coal is black. Off we set. Out and home again.";

typedef struct chain {
    char name[2 * VARIABLES][LETTERS + 1]; /* of the chain, and of the example's after it */
    int n;
} chain;

/* A name that the chain does not have yet; names of different lengths do not stand in each other. */
static void draw_name(dq_ruler_draft *d, chain *c, int letters)
{
    bool is_new;
    do {
        char *s = c->name[c->n];
        for (int i = 0; i < letters; i++) s[i] = (char)('A' + dq_random_below(&d->random, 26));
        s[letters] = 0;
        is_new = true;
        for (int i = 0; i < c->n; i++) is_new = is_new && !strstr(c->name[i], s);
    } while (!is_new);
    c->n++;
}

/* Lines with the assignments among them, and what is asked. */
static void put_item(dq_ruler_draft *d, char (*name)[LETTERS + 1], unsigned value, int64_t lines)
{
    const int32_t *perm = dq_ruler_draft_shuffled(d, lines);
    bool *taken = perm ? dq_alloc(d->a, (size_t)lines, sizeof *taken, d->err) : NULL;
    if (!taken) return;
    for (int i = 0; i < VARIABLES; i++) taken[perm[i]] = true;
    dq_ruler_draft_put(d, "Assignments of variables are hidden in the text below. Follow them from "
                          "one to the next.\n\n");
    for (int64_t i = 0, k = 0; i < lines; i++) {
        if (taken[i]) {
            dq_ruler_draft_put(d, "VAR %s = ", name[k]);
            if (k == 0)
                dq_ruler_draft_put(d, "%u\n", value);
            else
                dq_ruler_draft_put(d, "VAR %s\n", name[k - 1]);
            k++;
        }
        dq_ruler_draft_put(d, "%s\n", line);
    }
    d->question = d->prompt.n;
    dq_ruler_draft_put(d, "Question: Which variables have the value %u in the text above?", value);
    dq_ruler_draft_put(
        d,
        " Answer: By the assignments in the text above, %d variables have the value %u:", VARIABLES,
        value);
}

void dq_ruler_vt(dq_ruler_draft *d, int64_t units)
{
    chain c = {.n = 0};
    while (c.n < 2 * VARIABLES) draw_name(d, &c, c.n < VARIABLES ? LETTERS : EXAMPLE_LETTERS);
    const unsigned value = 10000u + (unsigned)dq_random_below(&d->random, 90000);
    unsigned other;
    do other = 10000u + (unsigned)dq_random_below(&d->random, 90000);
    while (other == value);
    put_item(d, c.name + VARIABLES, other, EXAMPLE_LINES);
    for (int i = 0; i < VARIABLES; i++) dq_ruler_draft_put(d, " %s", c.name[VARIABLES + i]);
    dq_ruler_draft_put(d, "\n\n");
    put_item(d, c.name, value, units);
    for (int i = 0; i < VARIABLES; i++)
        dq_ruler_draft_answer(d, dq_text(d->a, c.name[i], LETTERS, d->err));
}
