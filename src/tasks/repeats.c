/* repeats: see repeats.h. Both count hashes of tokens in a table; a place's hash is made anew of its 16 tokens.
 * SPDX-License-Identifier: MIT */
#include "tasks/repeats.h"

#include "base/base.h"
#include "base/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(uint64_t h, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) h = dq_random_mix(h ^ (uint32_t)ids[i]);
    return dq_random_mix(h ^ (uint64_t)n);
}

dq_status dq_repeats_clusters(int32_t *cluster, int64_t *n_clusters, int64_t *n_copies,
                              const dq_repeats_run *run, int64_t n, dq_err *err)
{
    dq_map64 seen = {0};
    int64_t found = 0, copies = 0;
    DQ_TRY(dq_map64_new(&seen, (size_t)n + 1, NULL, err));
    for (int64_t i = 0, end; err->code == DQ_OK && i < n; i = end) {
        uint64_t h = 0;
        for (end = i; end < n && run[end].unit == run[i].unit; end++)
            h = hash_of(h, run[end].ids, run[end].n);
        uint64_t number = dq_map64_get(&seen, h); /* from 1 */
        copies += number > 0;
        if (number == 0) {
            number = (uint64_t)++found;
            dq_map64_put(&seen, h, number, err);
        }
        for (int64_t k = i; k < end; k++) cluster[k] = (int32_t)(number - 1);
    }
    dq_map64_free(&seen);
    *n_clusters = found;
    if (n_copies) *n_copies = copies;
    return err->code;
}

uint64_t dq_repeats_key(const char *s, size_t len)
{
    static const char space[] = {' ', '\t', '\n', '\v', '\f', '\r'};
    uint64_t key = 1;
    for (size_t i = 0, n; i < len; i += n + 1) {
        for (n = 0; i + n < len && !memchr(space, s[i + n], sizeof space);) n++;
        if (n) key = dq_random_mix(key ^ dq_strmap_hash(s + i, n));
    }
    return key;
}

dq_status dq_repeats_keys(const int32_t **cluster, const uint64_t *key, int64_t n, dq_arena *a,
                          dq_err *err)
{
    dq_map64 seen = {0};
    int32_t *of = dq_alloc(a, (size_t)n, sizeof *of, err);
    *cluster = NULL;
    if (!of) return err->code;
    DQ_TRY(dq_map64_new(&seen, (size_t)n + 1, NULL, err));
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        uint64_t number = dq_map64_get(&seen, key[i]);
        if (number == 0) dq_map64_put(&seen, key[i], number = seen.n + 1, err);
        of[i] = (int32_t)(number - 1);
    }
    if ((int64_t)seen.n < n) *cluster = of;
    dq_map64_free(&seen);
    return err->code;
}

dq_status dq_repeats_order(int64_t *at, int32_t *of, const int32_t *cluster, int64_t n, dq_err *err)
{
    int64_t *begin = dq_block_new((size_t)n + 1, sizeof *begin, err);
    if (!begin) return err->code;
    for (int64_t i = 0; i < n; i++) begin[cluster[i] + 1]++;
    for (int64_t c = 0; c < n; c++) begin[c + 1] += begin[c];
    for (int64_t i = 0; i < n; i++) {
        at[i] = begin[cluster[i]]++;
        of[at[i]] = cluster[i];
    }
    dq_block_free(begin);
    return DQ_OK;
}

dq_status dq_repeats_count(int64_t *n_places, int64_t *n_new, const dq_repeats_run *run, int64_t n,
                           dq_err *err)
{
    dq_map64 seen = {0};
    *n_places = *n_new = 0;
    DQ_TRY(dq_map64_new(&seen, 1024, NULL, err));
    for (int64_t i = 0; i < n && err->code == DQ_OK; i++) {
        for (int64_t k = 0; k + DQ_REPEATS_IDS <= run[i].n && err->code == DQ_OK; k++, ++*n_places)
            dq_map64_put(&seen, hash_of(0, run[i].ids + k, DQ_REPEATS_IDS), 1, err);
    }
    *n_new = (int64_t)seen.n;
    dq_map64_free(&seen);
    return err->code;
}

/* The first of the sketch's hashes that is not smaller. */
static int place_of(const dq_repeats_sketch *s, uint64_t hash)
{
    int low = 0, high = s->n;
    while (low < high) {
        const int mid = (low + high) / 2;
        if (s->hash[mid] < hash)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void dq_repeats_sketch_add(dq_repeats_sketch *s, const int32_t *ids, int64_t n)
{
    for (int64_t k = 0; k + DQ_REPEATS_IDS <= n; k++) {
        const uint64_t h = hash_of(0, ids + k, DQ_REPEATS_IDS);
        const int at = place_of(s, h);
        if (at == DQ_REPEATS_SKETCH || (at < s->n && s->hash[at] == h)) continue;
        if (s->n < DQ_REPEATS_SKETCH) s->n++;
        memmove(s->hash + at + 1, s->hash + at, (size_t)(s->n - at - 1) * sizeof *s->hash);
        s->hash[at] = h;
    }
}

void dq_repeats_sketch_find(bool *found, const dq_repeats_sketch *s, const int32_t *ids, int64_t n)
{
    for (int64_t k = 0; k + DQ_REPEATS_IDS <= n; k++) {
        const uint64_t h = hash_of(0, ids + k, DQ_REPEATS_IDS);
        const int at = place_of(s, h);
        if (at < s->n && s->hash[at] == h) found[at] = true;
    }
}

enum { DIGITS = 16 };

json_t *dq_repeats_sketch_json(const dq_repeats_sketch *s)
{
    char text[DIGITS * DQ_REPEATS_SKETCH + 1] = "";
    for (int i = 0; i < s->n; i++)
        snprintf(text + DIGITS * i, DIGITS + 1, "%016" PRIx64, s->hash[i]);
    return json_string(text);
}

bool dq_repeats_sketch_read(dq_repeats_sketch *s, const json_t *text)
{
    const char *digits = json_string_value(text);
    const size_t n = json_string_length(text);
    *s = (dq_repeats_sketch){.n = (int)(n / DIGITS)};
    if (!digits || n % DIGITS || n > (size_t)DIGITS * DQ_REPEATS_SKETCH) return false;
    for (int i = 0; i < s->n; i++) {
        char one[DIGITS + 1] = "", *end;
        memcpy(one, digits + (size_t)DIGITS * (size_t)i, DIGITS);
        s->hash[i] = strtoull(one, &end, 16);
        if (*end || (i && s->hash[i] <= s->hash[i - 1])) return false;
    }
    return true;
}
