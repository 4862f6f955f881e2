/* hash: see hash.h.
 * SPDX-License-Identifier: MIT */
#include "hash.h"

#include "os.h"

#include <openssl/evp.h>
#include <stdio.h>

enum { STEP = 8 << 20 }; /* bytes of a mapping hashed before their pages are given back */

static dq_status no_hash(dq_err *err)
{
    return dq_fail(err, DQ_RESOURCE, "SHA-256 is not available from OpenSSL");
}

dq_status dq_sha256_begin(dq_sha256 *h, dq_err *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    h->state = ctx;
    if (!ctx) return no_hash(err);
    if (EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        dq_sha256_drop(h);
        return no_hash(err);
    }
    return DQ_OK;
}

void dq_sha256_add(dq_sha256 *h, const void *p, size_t bytes)
{
    if (!h->state || bytes == 0) return;
    if (EVP_DigestUpdate(h->state, p, bytes) != 1) dq_sha256_drop(h);
}

dq_status dq_sha256_end(dq_sha256 *h, char hex[65], dq_err *err)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    bool good = h->state && EVP_DigestFinal_ex(h->state, sum, &n) == 1 && n == 32;
    dq_sha256_drop(h);
    if (!good) return no_hash(err);
    for (unsigned i = 0; i < 32; i++) snprintf(hex + 2 * (size_t)i, 3, "%02x", sum[i]);
    return DQ_OK;
}

void dq_sha256_drop(dq_sha256 *h)
{
    EVP_MD_CTX_free(h->state);
    h->state = NULL;
}

dq_status dq_sha256_of(char hex[65], const void *p, size_t bytes, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    dq_sha256_add(&h, p, bytes);
    return dq_sha256_end(&h, hex, err);
}

dq_status dq_sha256_mapped(char hex[65], const void *p, size_t bytes, dq_err *err)
{
    const uint8_t *at = p;
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < STEP ? bytes - done : STEP;
        dq_sha256_add(&h, at + done, n);
        done += n;
        dq_map_release(at, done); /* from the start: a fault maps pages before its own, too */
    }
    return dq_sha256_end(&h, hex, err);
}
