/* fuzz_tasks: the first byte chooses a task, the rest is its data file. Items that are accepted must be
 * whole, and examples drawn from them must go before them.
 * SPDX-License-Identifier: MIT */
#include "tasks/tasks.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const dq_item *item)
{
    if (item->n_choices < 1 || item->gold < 0 || item->gold >= item->n_choices) abort();
    for (int c = 0; c < item->n_choices; c++) {
        size_t n;
        const char *ctx = dq_item_context(item, c, &n);
        const dq_choice *choice = &item->choice[c];
        if (!ctx || strlen(ctx) != n) abort();
        if (choice->len < 1 || strlen(choice->text) != choice->len) abort();
        if (choice->points < 0 || choice->points > (int64_t)choice->len) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    const char *text = (const char *)data + 1;
    dq_items items;
    dq_err err = {0};
    dq_arena *a = dq_arena_new();
    int n = 0;
    while (dq_task_choices[n]) n++;
    const dq_task *task = a ? dq_task_find(dq_task_choices[data[0] % n], a, &err) : NULL;
    if (task &&
        dq_task_load(&items, task, "no such folder/x.jsonl", text, size - 1, 0, a, &err) == DQ_OK) {
        const dq_items pool = items;
        int64_t n_own;
        for (int64_t i = 0; i < items.n; i++) check(&items.item[i]);
        if (dq_fewshot(&items, &n_own, &pool, task, 1, DQ_FEWSHOT_SEED, a, &err) == DQ_OK)
            for (int64_t i = 0; i < items.n; i++) check(&items.item[i]);
    }
    if (err.code != DQ_OK && !*err.text) abort();
    dq_arena_free(a);
    return 0;
}
