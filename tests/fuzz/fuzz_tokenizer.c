/* fuzz_tokenizer: tokenizer.json and text from one input: everything up to the first 0x1E byte is
 * the file, up to the next one tokenizer_config.json (absent without a second 0x1E), the rest text.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *part(const char **at, size_t *left, size_t *len)
{
    const char *begin = *at, *end = *left ? memchr(begin, 0x1E, *left) : NULL;
    *len = end ? (size_t)(end - begin) : *left;
    size_t used = *len + (end != NULL);
    *at += used;
    *left -= used;
    return begin;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data;
    size_t left = size, json_len, config_len;
    const char *json = part(&at, &left, &json_len);
    const char *config = left && memchr(at, 0x1E, left) ? part(&at, &left, &config_len) : NULL;
    dq_err err = {0};
    dq_tokenizer *t;
    if (dq_tokenizer_load(&t, json, json_len, config, config ? config_len : 0, &err) != DQ_OK) {
        if (t || !*err.text) abort();
        return 0;
    }
    for (unsigned flags = 0; flags <= DQ_TOK_SPECIAL; flags++) {
        int32_t *ids;
        int64_t n, first, bad;
        err = (dq_err){0};
        if (dq_tokenizer_encode(t, at, left, flags, &ids, &n, &first, &bad, &err) != DQ_OK) {
            if (ids || (err.code != DQ_RESOURCE && err.code != DQ_MISMATCH)) abort();
            continue;
        }
        if ((bad > 0) != (first >= 0) || first >= (int64_t)left) abort();
        for (int64_t i = 0; i < n; i++) {
            size_t len;
            if (ids[i] < 0 || ids[i] >= dq_tokenizer_vocab(t)) abort();
            if (!dq_tokenizer_piece(t, ids[i], &len)) abort();
        }
        char *back;
        size_t back_len;
        int64_t none;
        if (dq_tokenizer_decode(t, ids, n, flags, &back, &back_len, &err) == DQ_OK) {
            if (dq_utf8_check(back, back_len, &none)) abort();
        } else if (back || (err.code != DQ_RESOURCE && err.code != DQ_MISMATCH)) {
            abort();
        }
        dq_block_free(back);
        dq_block_free(ids);
    }
    dq_tokenizer_free(t);
    return 0;
}
