/* sha256: see sha256.h. A thin layer over OpenSSL. A mapping is hashed in steps, and the pages of each are given
 * back to the kernel after it, so that hashing a large file does not fill memory.
 * SPDX-License-Identifier: MIT */
#include "base/sha256.h"

#include "base/os.h"

/* The functions without providers: EVP reads configuration files, allocates thousands of times first
 * and ends the process where one of them fails. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <stdio.h>

enum { STEP = 8 << 20 }; /* bytes of a mapping hashed before their pages are given back */

dq_status dq_sha256_begin(dq_sha256 *h, dq_err *err)
{
    SHA256_CTX *state = h->state = dq_block_new(1, sizeof *state, err);
    if (!state) return err->code;
    SHA256_Init(state);
    return DQ_OK;
}

void dq_sha256_add(dq_sha256 *h, const void *p, size_t bytes)
{
    if (h->state && bytes) SHA256_Update(h->state, p, bytes);
}

dq_status dq_sha256_end(dq_sha256 *h, char hex[65], dq_err *err)
{
    unsigned char sum[SHA256_DIGEST_LENGTH];
    if (!h->state) return dq_fail(err, DQ_BUG, "a SHA-256 was ended twice");
    SHA256_Final(sum, h->state);
    dq_sha256_drop(h);
    for (size_t i = 0; i < sizeof sum; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return DQ_OK;
}

void dq_sha256_drop(dq_sha256 *h)
{
    dq_block_free(h->state);
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
        const size_t from = done < DQ_OS_MAP_AROUND ? 0 : done - DQ_OS_MAP_AROUND;
        done += n;
        dq_os_map_release(at + from, done - from);
    }
    return dq_sha256_end(&h, hex, err);
}
