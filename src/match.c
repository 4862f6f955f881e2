/* match: see match.h.
 * SPDX-License-Identifier: MIT */
#include "match.h"

#include "utf8.h"

#include <string.h>

enum { JIT_STACK = 128 << 20 };

static dq_status no_memory(dq_err *err)
{
    return dq_fail(err, DQ_RESOURCE, "out of memory (matching a pattern)");
}

dq_status dq_match_begin(dq_matcher *m, size_t len, dq_err *err)
{
    m->at = m->done = 0;
    m->any = false;
    if (!m->context) m->context = pcre2_match_context_create(NULL);
    if (!m->context) return no_memory(err);
    if (!m->data) m->data = pcre2_match_data_create(1, NULL);
    if (!m->data) return no_memory(err);
    uint64_t limit = UINT64_C(10000000) + 64 * (uint64_t)len;
    pcre2_set_match_limit(m->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    return DQ_OK;
}

static int match_once(dq_matcher *m, const dq_regex *r, const char *text, size_t len)
{
    if (r->jit)
        return pcre2_jit_match(r->code, (PCRE2_SPTR)text, len, m->at, 0, m->data, m->context);
    return pcre2_match(r->code, (PCRE2_SPTR)text, len, m->at, PCRE2_NO_UTF_CHECK, m->data,
                       m->context);
}

/* First match at or behind m->at; *found is false when there is none. */
static dq_status match(dq_matcher *m, const dq_regex *r, const char *text, size_t len, bool *found,
                       dq_err *err)
{
    int rc = match_once(m, r, text, len);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !m->stack) {
        /* The machine stack sufficed until now; groups repeated over long runs need more. Only
         * what is used becomes resident. */
        m->stack = pcre2_jit_stack_create((size_t)64 << 10, JIT_STACK, NULL);
        if (!m->stack) return no_memory(err);
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        rc = match_once(m, r, text, len);
    }
    *found = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return DQ_OK;
    PCRE2_UCHAR message[160] = "";
    pcre2_get_error_message(rc, message, sizeof message);
    return dq_fail(err, DQ_RESOURCE,
                   "matching the tokenizer's pattern on a piece of %zu bytes failed: PCRE2 says: "
                   "%s",
                   len, (const char *)message);
}

dq_status dq_match_next(dq_matcher *m, const dq_regex *r, const char *text, size_t len,
                        size_t *begin, size_t *end, bool *found, dq_err *err)
{
    *found = false;
    while (m->at <= len) {
        DQ_TRY(match(m, r, text, len, found, err));
        if (!*found) return DQ_OK;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
        *begin = span[0];
        *end = span[1];
        if (*begin < *end || !m->any || *end != m->done) {
            m->at = m->done = *end;
            m->any = true;
            return DQ_OK;
        }
        size_t used = 1;
        if (m->at < len) dq_utf8_first(text + m->at, &used);
        m->at += used;
    }
    *found = false;
    return DQ_OK;
}

void dq_matcher_end(dq_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (dq_matcher){0};
}

size_t dq_find_text(const char *text, size_t len, size_t at, const char *part, size_t part_len)
{
    while (at < len && len - at >= part_len) {
        const char *hit = memchr(text + at, part[0], len - at - (part_len - 1));
        if (!hit) break;
        if (memcmp(hit, part, part_len) == 0) return (size_t)(hit - text);
        at = (size_t)(hit - text) + 1;
    }
    return SIZE_MAX;
}
