/* icl_draw: which demonstrations, in which order. See icl_data.h.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "tasks/icl_data.h"

#include <string.h>

const char *const dq_icl_order_name[DQ_ICL_ORDERS] = {"random", "class", "alternate"};

void dq_icl_permute(int32_t *out, int64_t n, uint64_t seed, uint64_t stream)
{
    dq_random r = dq_random_of(seed, stream);
    dq_random_permute(&r, out, n);
}

/* Into `sorted`, label by label; first[label] is where each begins, first[n_labels] = n. */
static void by_class(int32_t *sorted, int64_t *first, const int32_t *demo, int64_t n,
                     const dq_icl_pool *pool, int n_labels)
{
    for (int64_t i = 0; i < n; i++) first[pool->ex[demo[i]].label + 1]++;
    for (int l = 0; l < n_labels; l++) first[l + 1] += first[l];
    for (int64_t i = 0; i < n; i++) sorted[first[pool->ex[demo[i]].label]++] = demo[i];
    for (int l = n_labels; l > 0; l--) first[l] = first[l - 1]; /* now after what it began */
    first[0] = 0;
}

dq_status dq_icl_arrange(int32_t *demo, int64_t n, const dq_icl_pool *pool, int n_labels,
                         dq_icl_order order, dq_err *err)
{
    if (order == DQ_ICL_RANDOM || n == 0) return DQ_OK;
    int32_t *sorted = dq_block_new((size_t)n, sizeof *sorted, err);
    int64_t *first = dq_block_new((size_t)n_labels + 1, sizeof *first, err);
    if (sorted && first) {
        by_class(sorted, first, demo, n, pool, n_labels);
        if (order == DQ_ICL_CLASS) memcpy(demo, sorted, (size_t)n * sizeof *demo);
        int64_t have = order == DQ_ICL_CLASS ? n : 0;
        for (int64_t turn = 0; have < n; turn++) {
            for (int l = 0; l < n_labels; l++) {
                if (first[l] + turn < first[l + 1]) demo[have++] = sorted[first[l] + turn];
            }
        }
    }
    dq_block_free(sorted);
    dq_block_free(first);
    return err->code;
}
