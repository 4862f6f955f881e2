/* name_order: see name_order.h. Numbers are compared by their length without leading zeros, then as text, so that they may
 * be of any size.
 * SPDX-License-Identifier: MIT */
#include "base/name_order.h"

#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Of the numbers that *a and *b begin with; moves both after them. */
static int compare_numbers(const char **a, const char **b)
{
    const char *x = *a, *y = *b;
    while (*x == '0') x++;
    while (*y == '0') y++;
    size_t n = 0, m = 0;
    while (is_digit(x[n])) n++;
    while (is_digit(y[m])) m++;
    const int64_t digits = (x + n - *a) - (y + m - *b);
    const int order = n == m ? strncmp(x, y, n) : n < m ? -1 : 1;
    *a = x + n;
    *b = y + m;
    return order ? order : digits < 0 ? -1 : digits > 0;
}

int dq_name_order_compare(const char *a, const char *b)
{
    while (*a && *b) {
        if (is_digit(*a) && is_digit(*b)) {
            const int order = compare_numbers(&a, &b);
            if (order) return order;
        } else if (*a != *b) {
            break;
        } else {
            a++;
            b++;
        }
    }
    return (int)(unsigned char)*a - (int)(unsigned char)*b;
}

typedef struct named {
    const char *name;
    int64_t i;
} named;

static int by_name(const void *x, const void *y)
{
    const named *a = x, *b = y;
    const int order = dq_name_order_compare(a->name, b->name);
    return order ? order : a->i < b->i ? -1 : a->i > b->i;
}

dq_status dq_name_order_make(int64_t **out, int64_t n,
                             const char *(*name)(const void *arg, int64_t i), const void *arg,
                             dq_arena *a, dq_err *err)
{
    named *list = dq_alloc(a, (size_t)n, sizeof *list, err);
    *out = dq_alloc(a, (size_t)n, sizeof **out, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < n; i++) list[i] = (named){name(arg, i), i};
    qsort(list, (size_t)n, sizeof *list, by_name);
    for (int64_t i = 0; i < n; i++) (*out)[i] = list[i].i;
    return DQ_OK;
}
