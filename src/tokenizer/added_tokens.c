/* added_tokens: see added_tokens.h. Tokens are sorted by their bytes, and at each place a search narrows a range
 * of them byte by byte, remembering the longest that ended. `done` follows what has been told, since a token that
 * strips takes white space that the next search still sees.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/added_tokens.h"

#include "base/os.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { STOP_EVERY = 4096 }; /* bytes between two looks at the stop flag */

static int by_form(const void *x, const void *y)
{
    const dq_added_token *a = *(const dq_added_token *const *)x,
                         *b = *(const dq_added_token *const *)y;
    size_t common = a->form_len < b->form_len ? a->form_len : b->form_len;
    int c = memcmp(a->form, b->form, common);
    if (c) return c;
    return (a->form_len > b->form_len) - (a->form_len < b->form_len);
}

dq_status dq_added_tokens_new(dq_added_tokens *set, const dq_added_token *token, size_t n,
                              bool normalized, dq_arena *a, dq_err *err)
{
    set->token = dq_alloc(a, n, sizeof *set->token, err);
    if (!set->token) return err->code;
    set->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (token[i].normalized == normalized && token[i].form_len)
            set->token[set->n++] = &token[i];
    }
    if (set->n) qsort(set->token, set->n, sizeof *set->token, by_form);
    for (size_t i = 1; i < set->n; i++) {
        if (by_form(&set->token[i - 1], &set->token[i]) == 0)
            return dq_fail(err, DQ_DAMAGED, "two added tokens are \"%.100s\"", set->token[i]->form);
    }
    for (size_t i = 0, b = 0; b < 257; b++) {
        while (i < set->n && (uint8_t)set->token[i]->form[0] < b) i++;
        set->begin[b] = i;
    }
    return DQ_OK;
}

/* First index in [lo, hi) whose byte at `depth` is at least c; all are longer than depth there. */
static size_t lower(const dq_added_tokens *set, size_t lo, size_t hi, size_t depth, unsigned c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)set->token[mid]->form[depth] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Longest token at text[0]; NULL when there is none. */
static const dq_added_token *longest(const dq_added_tokens *set, const char *text, size_t len)
{
    const dq_added_token *best = NULL;
    size_t lo = set->begin[(uint8_t)text[0]], hi = set->begin[(uint8_t)text[0] + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        if (hi - lo == 1) {
            const dq_added_token *t = set->token[lo];
            const bool here = t->form_len <= len && memcmp(t->form, text, t->form_len) == 0;
            return here ? t : best;
        }
        if (set->token[lo]->form_len == depth) best = set->token[lo++];
        if (depth == len) break;
        unsigned c = (uint8_t)text[depth];
        lo = lower(set, lo, hi, depth, c);
        hi = lower(set, lo, hi, depth, c + 1);
    }
    return best;
}

static bool stands_alone(const char *text, size_t begin, size_t end, size_t len)
{
    size_t bytes;
    if (begin > 0 && dq_utf8_is_word(dq_utf8_last(text, begin, &bytes))) return false;
    return end == len || !dq_utf8_is_word(dq_utf8_first(text + end, &bytes));
}

/* Not beyond `done`, where white space has been told already. */
static size_t spaces_before(const char *text, size_t at, size_t done)
{
    size_t bytes;
    while (at > done && dq_utf8_is_space(dq_utf8_last(text, at, &bytes))) at -= bytes;
    return at;
}

static size_t spaces_after(const char *text, size_t at, size_t len)
{
    size_t bytes;
    while (at < len && dq_utf8_is_space(dq_utf8_first(text + at, &bytes))) at += bytes;
    return at;
}

dq_status dq_added_tokens_walk(const dq_added_tokens *set, const char *text, size_t len,
                               const dq_added_tokens_visit *visit, dq_err *err)
{
    size_t done = 0; /* everything before it has been told */
    for (size_t at = 0; at < len && set->n;) {
        const dq_added_token *t = longest(set, text + at, len - at);
        if (at % STOP_EVERY == 0) DQ_TRY(dq_os_check_stop(err));
        if (!t) {
            at++;
            continue;
        }
        size_t begin = at, end = at + t->form_len;
        at = end; /* stripping moves what is told, not where the search goes on */
        if (t->single_word && !stands_alone(text, begin, end, len)) continue;
        if (t->lstrip) {
            begin = spaces_before(text, begin, done);
            if (begin < done) begin = done;
        }
        /* from `end` to `done` there is nothing but white space that the token before has swallowed */
        if (t->rstrip) end = spaces_after(text, end < done ? done : end, len);
        /* White space that the token before has swallowed is no token again, if this one strips. */
        if (begin >= end) continue;
        if (begin > done) DQ_TRY(visit->gap(visit->arg, text + done, begin - done, err));
        DQ_TRY(visit->token(visit->arg, t, err));
        done = end;
    }
    return done < len ? visit->gap(visit->arg, text + done, len - done, err) : DQ_OK;
}
