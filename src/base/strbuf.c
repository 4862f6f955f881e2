/* strbuf: see strbuf.h.
 * SPDX-License-Identifier: MIT */
#include "base/strbuf.h"

#include <string.h>

dq_status dq_strbuf_reserve(dq_strbuf *b, size_t more, dq_err *err)
{
    if (more > SIZE_MAX - b->n)
        return dq_fail(err, DQ_RESOURCE, "out of memory (a text of %zu bytes)", b->n);
    char *s = dq_grow(NULL, b->s, b->n + more, &b->room, 1, err);
    if (!s) return err->code;
    b->s = s;
    return DQ_OK;
}

dq_status dq_strbuf_add(dq_strbuf *b, const char *s, size_t n, dq_err *err)
{
    DQ_TRY(dq_strbuf_reserve(b, n, err));
    if (n) memcpy(b->s + b->n, s, n);
    b->n += n;
    return DQ_OK;
}

enum { GROWTH = 64, GROWTH_MORE = 1024 };

dq_status dq_growth_check(size_t now, size_t len, const char *what, dq_err *err)
{
    if (now <= GROWTH_MORE || (now - GROWTH_MORE) / GROWTH <= len) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s makes %zu bytes of a text of %zu. More than %d for each is not supported.",
                   what, now, len, GROWTH);
}
