/* base64: bytes as text of RFC 4648, with padding and without line ends.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BASE64_H
#define DQ_BASE64_H

#include "base/strbuf.h"

/* Appends the text. DQ_RESOURCE. */
dq_status dq_base64_put(dq_strbuf *to, const void *bytes, size_t n, dq_err *err);
/* The bytes of a text, into out, which has room for len / 4 * 3; *n: how many. False: it is none. */
bool dq_base64_get(void *out, size_t *n, const char *text, size_t len);

#endif
