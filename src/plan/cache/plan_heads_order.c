/* plan_heads_order: see plan_heads_order.h. Numbers that grow by a factor are rounded to nearest, ties to even, and stand once.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_heads_order.h"

#include <math.h>
#include <stdio.h>

dq_status dq_plan_heads_order_text(char text[DQ_KV_HEADS_TEXT], const dq_kv_heads_group *order,
                                   int n, int sharing, dq_err *err)
{
    size_t len = 0;
    for (int i = 0; i < n && len < DQ_KV_HEADS_TEXT; i++) {
        const char *before = i == 0 ? "" : i == sharing ? "/" : ",";
        len += (size_t)snprintf(text + len, DQ_KV_HEADS_TEXT - len, "%s%d.%d", before,
                                order[i].layer, order[i].group);
    }
    if (sharing == n && len < DQ_KV_HEADS_TEXT)
        len += (size_t)snprintf(text + len, DQ_KV_HEADS_TEXT - len, "/");
    if (n <= DQ_KV_HEADS_MAX && len < DQ_KV_HEADS_TEXT) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%d groups of KV heads are more than a text of heads holds (%d groups, %d "
                   "characters). Use another budget",
                   n, DQ_KV_HEADS_MAX, DQ_KV_HEADS_TEXT - 1);
}

int64_t dq_plan_heads_order_whole(int64_t context, int64_t safe, int n)
{
    return safe + (n - 1) * (context - safe) / n;
}

int dq_plan_heads_order_least(int64_t context, int64_t safe, int64_t kept, int n)
{
    const int64_t whole = n * (kept - safe) / (context - safe);
    return whole < 1 ? 1 : whole < n ? (int)whole : n;
}

int dq_plan_heads_order_numbers(int *out, int least, int n, int tries)
{
    int found = 0;
    for (int i = 0; i < tries; i++) {
        const double grown = least * pow((double)n / least, (double)i / (tries - 1));
        const int x = n - least < tries ? least + i : (int)rint(grown);
        if (x > n) break;
        if (found == 0 || x > out[found - 1]) out[found++] = x;
    }
    return found;
}

void dq_plan_heads_order_sort(int *order, const double *missed, int n)
{
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && missed[order[k - 1]] < missed[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
}
