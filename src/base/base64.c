/* base64: see base64.h. libcrypto converts, in pieces, since it counts in int. It would pass over white space, so what it is
 * given is looked at before.
 * SPDX-License-Identifier: MIT */
#include "base/base64.h"

#include <openssl/evp.h>
#include <string.h>

enum { PIECE = 3 << 20 }; /* bytes */

dq_status dq_base64_put(dq_strbuf *to, const void *bytes, size_t n, dq_err *err)
{
    const unsigned char *at = bytes;
    DQ_TRY(dq_strbuf_reserve(to, n / 3 * 4 + 8, err));
    for (size_t done = 0; done < n; done += PIECE) {
        const size_t some = n - done < PIECE ? n - done : PIECE;
        to->n += (size_t)EVP_EncodeBlock((unsigned char *)to->s + to->n, at + done, (int)some);
    }
    return DQ_OK;
}

static bool is_digit(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/';
}

bool dq_base64_get(void *out, size_t *n, const char *text, size_t len)
{
    unsigned char *to = out;
    size_t pad = 0;
    *n = 0;
    if (len % 4) return false;
    while (pad < 2 && len > pad && text[len - 1 - pad] == '=') pad++;
    for (size_t i = 0; i < len - pad; i++) {
        if (!is_digit(text[i])) return false;
    }
    for (size_t done = 0; done < len; done += PIECE / 3 * 4) {
        const size_t left = len - done, some = left < PIECE / 3 * 4 ? left : PIECE / 3 * 4;
        const int got = EVP_DecodeBlock(to + *n, (const unsigned char *)text + done, (int)some);
        if (got < 0) return false;
        *n += (size_t)got;
    }
    *n -= pad;
    return true;
}
