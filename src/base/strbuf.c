/* strbuf: a block that at least doubles, and a stream into one.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fopencookie */
#include "base/strbuf.h"

#include <string.h>

dq_status dq_strbuf_reserve(dq_strbuf *b, size_t more, dq_err *err)
{
    if (more > SIZE_MAX - b->n)
        return dq_fail(err, DQ_RESOURCE, "out of memory (a text of %zu bytes)", b->n);
    char *s = dq_grow(NULL, b->s, b->n + more, &b->capacity, 1, err);
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

bool dq_strbuf_take(void *to, size_t n, const char **at, const char *end)
{
    if ((size_t)(end - *at) < n) return false;
    memcpy(to, *at, n);
    *at += n;
    return true;
}

static ssize_t add_bytes(void *b, const char *s, size_t n)
{
    dq_err full = {0};
    return dq_strbuf_add(b, s, n, &full) == DQ_OK ? (ssize_t)n : 0; /* 0: an error of the stream */
}

FILE *dq_strbuf_memory_open(dq_strbuf *b, dq_err *err)
{
    FILE *f = fopencookie(b, "w", (cookie_io_functions_t){.write = add_bytes});
    if (!f) dq_fail(err, DQ_RESOURCE, "out of memory");
    return f;
}

dq_status dq_strbuf_memory_close(FILE *f, dq_err *err)
{
    const bool lost = ferror(f) != 0;
    if (fclose(f) != 0 || lost) return dq_fail(err, DQ_RESOURCE, "out of memory");
    return DQ_OK;
}

enum { GROWTH = 64, GROWTH_MORE = 1024 };

dq_status dq_strbuf_check_growth(size_t now, size_t len, const char *what, dq_err *err)
{
    if (now <= GROWTH_MORE || (now - GROWTH_MORE) / GROWTH <= len) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s makes %zu bytes of a text of %zu. More than %d for each is not supported.",
                   what, now, len, GROWTH);
}
