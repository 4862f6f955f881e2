/* sha256: SHA-256 over OpenSSL, as 64 hex digits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SHA256_H
#define DQ_SHA256_H

#include "base/base.h"

typedef struct dq_sha256 {
    void *state; /* NULL: ended */
} dq_sha256;

dq_status dq_sha256_begin(dq_sha256 *h, dq_err *err);
void dq_sha256_add(dq_sha256 *h, const void *p, size_t bytes);
/* Writes 64 hex digits and a NUL, and frees the state. */
dq_status dq_sha256_end(dq_sha256 *h, char hex[65], dq_err *err);
void dq_sha256_drop(dq_sha256 *h); /* frees without a result; may be called again */

/* A block of memory at once. */
dq_status dq_sha256_of(char hex[65], const void *p, size_t bytes, dq_err *err);
/* A mapped range, giving pages back to the kernel after it. */
dq_status dq_sha256_mapped(char hex[65], const void *p, size_t bytes, dq_err *err);

#endif
