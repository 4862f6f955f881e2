/* regex: see regex.h. PCRE2 limits backtracking per beginning of a match, the reference per call: beginnings are
 * therefore tried in windows with few steps each, and only where those do not suffice one by one with as many as
 * it takes, out of one budget for the text.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/regex.h"

#include "base/os.h"
#include "base/text.h"

#include <string.h>

enum {
    JIT_STACK = 128 << 20,
    WINDOW = 4096,      /* bytes where a match may begin that are tried with one call */
    FEW_STEPS = 4096,   /* backtracking steps at one beginning that cost nothing */
    STEPS = 64 << 20,   /* further ones that one text may cost ... */
    STEPS_PER_BYTE = 64 /* ... and for each of its bytes */
};

static dq_status no_memory(dq_err *err)
{
    return dq_fail(err, DQ_RESOURCE, "out of memory (matching a pattern)");
}

dq_status dq_regex_begin(dq_regex_matcher *m, size_t len, dq_err *err)
{
    m->at = m->done = 0;
    m->any = false;
    m->limit = 0;
    m->window = 0;
    m->steps = STEPS + STEPS_PER_BYTE * (uint64_t)len;
    if (!m->context) m->context = pcre2_match_context_create(NULL);
    if (!m->context) return no_memory(err);
    if (!m->data) m->data = pcre2_match_data_create(1, NULL);
    if (!m->data) return no_memory(err);
    return DQ_OK;
}

static int match_once(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len)
{
    if (r->jit)
        return pcre2_jit_match(r->code, (PCRE2_SPTR)text, len, m->at, 0, m->data, m->context);
    return pcre2_match(r->code, (PCRE2_SPTR)text, len, m->at, PCRE2_NO_UTF_CHECK, m->data,
                       m->context);
}

static dq_status refused(int rc, size_t len, dq_err *err)
{
    PCRE2_UCHAR message[160] = "";
    pcre2_get_error_message(rc, message, sizeof message);
    return dq_fail(err, DQ_RESOURCE,
                   "matching the tokenizer's pattern on a piece of %zu bytes failed: PCRE2 says: "
                   "%s",
                   len, (const char *)message);
}

/* A match that begins from m->at to `last`, with so many steps at each beginning: a code of PCRE2 in
 * *rc, which is a match, none, or too few steps. */
static dq_status match_from(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                            size_t last, uint32_t steps, int *rc, dq_err *err)
{
    if (last != m->last || steps != m->limit) {
        DQ_TRY(dq_os_check_stop(err));
        pcre2_set_offset_limit(m->context, m->last = last);
        pcre2_set_match_limit(m->context, m->limit = steps);
    }
    *rc = match_once(m, r, text, len);
    if (*rc == PCRE2_ERROR_JIT_STACKLIMIT && !m->stack) {
        /* The machine stack sufficed until now; groups repeated over long runs need more. Only
         * what is used becomes resident. */
        m->stack = pcre2_jit_stack_create((size_t)64 << 10, JIT_STACK, NULL);
        if (!m->stack) return no_memory(err);
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        *rc = match_once(m, r, text, len);
    }
    if (*rc >= 0 || *rc == PCRE2_ERROR_NOMATCH || *rc == PCRE2_ERROR_MATCHLIMIT) return DQ_OK;
    return refused(*rc, len, err);
}

static size_t next_character(const char *text, size_t len, size_t at)
{
    size_t used = 1;
    if (at < len) dq_utf8_first(text + at, &used);
    return at + used;
}

/* The same one beginning after the other up to `last`, each with as many steps as it needs. PCRE2
 * does not say how many it took; those that did not suffice are counted, which is at most four times
 * too few. */
static dq_status match_each(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                            size_t last, int *rc, dq_err *err)
{
    for (*rc = PCRE2_ERROR_NOMATCH; m->at <= last; m->at = next_character(text, len, m->at)) {
        for (uint32_t steps = FEW_STEPS;; steps *= 4) {
            DQ_TRY(match_from(m, r, text, len, m->at, steps, rc, err));
            if (*rc != PCRE2_ERROR_MATCHLIMIT) break;
            if (steps > m->steps || steps > UINT32_MAX / 4) return refused(*rc, len, err);
            m->steps -= steps;
        }
        if (*rc >= 0) break;
    }
    return DQ_OK;
}

/* First match at or after m->at; *found is false when there is none. The limit of PCRE2 holds for
 * each beginning, of which a text has many, so that they are tried by windows. */
static dq_status match(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                       bool *found, dq_err *err)
{
    for (*found = false; !*found && m->at <= len;) {
        int rc;
        if (m->limit == 0 || m->at > m->window) {
            m->window = len - m->at > WINDOW ? m->at + WINDOW : len;
            while (m->window < len && !dq_utf8_begins(text[m->window])) m->window++;
        }
        DQ_TRY(match_from(m, r, text, len, m->window, FEW_STEPS, &rc, err));
        if (rc == PCRE2_ERROR_MATCHLIMIT) DQ_TRY(match_each(m, r, text, len, m->window, &rc, err));
        *found = rc >= 0;
        if (!*found) m->at = next_character(text, len, m->window);
    }
    return DQ_OK;
}

dq_status dq_regex_next(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
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
        m->at = next_character(text, len, m->at);
    }
    *found = false;
    return DQ_OK;
}

void dq_regex_end(dq_regex_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (dq_regex_matcher){0};
}

size_t dq_regex_find_text(const char *text, size_t len, size_t at, const char *part,
                          size_t part_len)
{
    while (at < len && len - at >= part_len) {
        const char *hit = memchr(text + at, part[0], len - at - (part_len - 1));
        if (!hit) break;
        if (memcmp(hit, part, part_len) == 0) return (size_t)(hit - text);
        at = (size_t)(hit - text) + 1;
    }
    return SIZE_MAX;
}
