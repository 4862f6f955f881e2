/* strbuf: bytes that grow, and a stream into them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STRBUF_H
#define DQ_STRBUF_H

#include "base/base.h"

#include <stdio.h>

/* {0} is empty; s is a block, ended by dq_block_free. */
typedef struct dq_strbuf {
    char *s;
    size_t n, capacity;
} dq_strbuf;

/* Capacity for `more` bytes after s[n]. */
dq_status dq_strbuf_reserve(dq_strbuf *b, size_t more, dq_err *err);
dq_status dq_strbuf_add(dq_strbuf *b, const char *s, size_t n, dq_err *err);
/* The next n of the bytes from *at on, which moves behind them; false: fewer lie before `end`. */
bool dq_strbuf_take(void *to, size_t n, const char **at, const char *end);

/* A stream whose bytes end after one another in *b; NULL with DQ_RESOURCE. Unlike open_memstream it
 * remembers what memory was too short for: dq_strbuf_memory_close, which ends it, says DQ_RESOURCE then. */
FILE *dq_strbuf_memory_open(dq_strbuf *b, dq_err *err);
dq_status dq_strbuf_memory_close(FILE *f, dq_err *err);

/* What rewriting a text of len bytes may make of it: no tokenizer in use comes near, and files can be
 * written that multiply a text at every step. DQ_MISMATCH names what makes `now` bytes of it. */
dq_status dq_strbuf_check_growth(size_t now, size_t len, const char *what, dq_err *err);

#endif
