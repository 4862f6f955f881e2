/* needle_recall: see needle_recall.h. A text is split into runs of digits and each is compared with the numbers:
 * equal is found, up to DQ_NEAR_DIGITS other digits are near. Runs are whole, so 12 is not found in 123.
 * SPDX-License-Identifier: MIT */
#include "tasks/needle_recall.h"

#include <string.h>

/* The next run of digits at or after *at, which becomes its end. False: there is none. */
static bool next_run(const char *text, size_t len, size_t *at, const char **run, size_t *n)
{
    size_t i = *at;
    while (i < len && !(text[i] >= '0' && text[i] <= '9')) i++;
    *run = text + i;
    const size_t first = i;
    while (i < len && text[i] >= '0' && text[i] <= '9') i++;
    *n = i - first;
    *at = i;
    return *n > 0;
}

static bool is_number(const char *run, size_t n, const char *number)
{
    return strlen(number) == n && memcmp(run, number, n) == 0;
}

bool dq_needle_recall_found(const char *text, size_t len, const char *number)
{
    const char *run;
    size_t n;
    for (size_t at = 0; next_run(text, len, &at, &run, &n);) {
        if (is_number(run, n, number)) return true;
    }
    return false;
}

static bool is_near(const char *run, size_t n, const char *number)
{
    size_t differ = 0;
    if (strlen(number) != n) return false;
    for (size_t i = 0; i < n; i++) differ += run[i] != number[i];
    return differ <= DQ_NEAR_DIGITS && differ < n;
}

static bool near_found(const char *text, size_t len, const char *wanted, const char *const *number,
                       int64_t n_numbers)
{
    const char *run;
    size_t n;
    for (size_t at = 0; next_run(text, len, &at, &run, &n);) {
        bool hidden = false;
        for (int64_t i = 0; i < n_numbers; i++) hidden = hidden || is_number(run, n, number[i]);
        if (!hidden && is_near(run, n, wanted)) return true;
    }
    return false;
}

void dq_needle_recall_judge(dq_needle_recall *sum, const char *text, size_t len,
                            const char *const *number, int64_t n_requested, int64_t n)
{
    bool other = false;
    for (int64_t i = n_requested; i < n; i++)
        other = other || dq_needle_recall_found(text, len, number[i]);
    for (int64_t i = 0; i < n_requested; i++) {
        if (dq_needle_recall_found(text, len, number[i]))
            sum->correct++;
        else if (other)
            sum->other++;
        else if (near_found(text, len, number[i], number, n))
            sum->near++;
        else
            sum->none++;
    }
}
