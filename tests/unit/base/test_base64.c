/* Bytes to text and back; texts of RFC 4648; what is none.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

TEST(texts_of_the_rfc)
{
    static const char *const pair[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"fooba", "Zm9vYmE="},
                                          {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        dq_strbuf text = {0};
        dq_err err = {0};
        char back[16];
        size_t n;
        assert_int_equal(dq_base64_put(&text, pair[i][0], strlen(pair[i][0]), &err), DQ_OK);
        assert_int_equal(text.n, strlen(pair[i][1]));
        assert_memory_equal(text.s, pair[i][1], text.n);
        assert_true(dq_base64_get(back, &n, text.s, text.n));
        assert_int_equal(n, strlen(pair[i][0]));
        assert_memory_equal(back, pair[i][0], n);
        dq_block_free(text.s);
    }
}

/* Longer than a piece, after what is there. */
TEST(long_texts)
{
    const size_t length[] = {1000, (3u << 20) - 1, 3u << 20, (3u << 20) + 1, (6u << 20) + 2};
    uint8_t *x = malloc(7u << 20), *back = malloc(7u << 20);
    dq_random r = dq_random_of(3, 1);
    for (size_t i = 0; i < 7u << 20; i++) x[i] = (uint8_t)dq_random_next(&r);
    for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
        dq_strbuf text = {0};
        dq_err err = {0};
        size_t n;
        assert_int_equal(dq_strbuf_add(&text, "before", 6, &err), DQ_OK);
        assert_int_equal(dq_base64_put(&text, x, length[i], &err), DQ_OK);
        assert_int_equal(text.n, 6 + (length[i] + 2) / 3 * 4);
        assert_true(dq_base64_get(back, &n, text.s + 6, text.n - 6));
        assert_int_equal(n, length[i]);
        assert_memory_equal(back, x, n);
        dq_block_free(text.s);
    }
    free(x);
    free(back);
}

TEST(what_is_none)
{
    static const char *const bad[] = {"Zg=",  "Zg",   "Z===", "Zm9v\n",   " Zm9", "Zm9\n",
                                      "Zm-v", "Zm_v", "====", "Zg==Zg==", "Z=g="};
    char out[16];
    size_t n;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (dq_base64_get(out, &n, bad[i], strlen(bad[i]))) fail_msg("\"%s\" is taken", bad[i]);
    }
}
