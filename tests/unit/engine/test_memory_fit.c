/* test_memory_fit: the width that weights are advised to have is the largest that fits, whatever they are stored in.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "engine/runner.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 64, COLS = 256, PARTS = 7, ELEMENTS = PARTS * ROWS * COLS };

/* A layer of seven projections like w, and embeddings of `others` bytes. */
static void make(dq_model *m, dq_layer *l, dq_weight w, int64_t others)
{
    *l = (dq_layer){.q = w, .k = w, .v = w, .o = w, .gate = w, .up = w, .down = w};
    *m = (dq_model){.name = "made", .layer = l, .n_layers = 1};
    m->weight_bits = w.bits;
    m->weight_bytes = PARTS * (int64_t)dq_weight_bytes(&w) + others;
}

/* What projections of that width take, scales in groups of 128 included, with an eighth more. */
static double needed(int bits, int64_t others)
{
    return ((double)others + ELEMENTS * (bits + 16.0 / 128) / 8) * 9 / 8;
}

static void check(dq_weight w, int64_t others)
{
    dq_model m;
    dq_layer l;
    w.rows = ROWS;
    w.cols = COLS;
    make(&m, &l, w, others);
    for (int bits = 2; bits < w.bits && bits <= 8; bits++) {
        for (int below = 0; below < 2; below++) { /* a byte more than is needed, and one less */
            dq_err err = {0};
            char want[64];
            const int fits = bits - below;
            snprintf(want, sizeof want, ", %d bits a weight, which fits", fits);
            if (fits < 2) strcpy(want, "do not fit at 2 bits either");
            dq_fail(&err, DQ_RESOURCE, "out of memory");
            dq_memory_fit_advise_bits(&m, needed(bits, others) + (below ? -1 : 1), &err);
            if (!strstr(err.text, want))
                fail_msg("%d bits, group %d: expected \"%s\", found \"%s\"", w.bits,
                         (int)w.group_size, want, err.text);
        }
    }
}

TEST(test_codes_with_scales_and_zero_points)
{
    static const uint8_t zero[1];
    for (int bits = 3; bits <= 8; bits++) {
        for (int group = 8; group <= COLS; group *= 2) {
            dq_weight w = {.format = &dq_format_int,
                           .bits = bits,
                           .group_size = group,
                           .scale_rows = ROWS,
                           .scale_dtype = group < 64 ? DQ_F32 : DQ_F16};
            check(w, 0);
            check(w, 5000);
            w.format = &dq_format_int_zero;
            w.zero = zero;
            check(w, 5000);
        }
    }
}

TEST(test_dense)
{
    check((dq_weight){.bits = 16, .dtype = DQ_BF16}, 5000);
    check((dq_weight){.bits = 16, .dtype = DQ_F32}, 0);
}

/* Where projections of two bits do not fit beside the embedding, it is advised to be packed too. */
TEST(test_the_embedding)
{
    enum { VOCAB = 4096 };
    const double ends = (double)VOCAB * COLS, scales = 16.0 / 128;
    dq_model m;
    dq_layer l;
    make(&m, &l, (dq_weight){.rows = ROWS, .cols = COLS, .bits = 16, .dtype = DQ_F32}, 0);
    m.embed = m.head = (dq_weight){.rows = VOCAB, .cols = COLS, .bits = 16, .dtype = DQ_BF16};
    for (int tied = 0; tied < 2; tied++) {
        const double n = tied ? ends : 2 * ends;
        m.tied = tied;
        m.weight_bytes = (int64_t)ELEMENTS * 4 + (int64_t)n * 2;
        for (int bits = 2; bits <= 8; bits++) {
            dq_err err = {0};
            char want[100];
            snprintf(want, sizeof want, ", %d bits a weight, and %d of the embedding and the head",
                     bits, bits);
            dq_fail(&err, DQ_RESOURCE, "out of memory");
            dq_memory_fit_advise_bits(&m, (n + ELEMENTS) * (bits + scales) / 8 * 9 / 8 + 1, &err);
            if (!strstr(err.text, want)) fail_msg("expected \"%s\", found \"%s\"", want, err.text);
        }
        dq_err err = {0};
        dq_fail(&err, DQ_RESOURCE, "out of memory");
        dq_memory_fit_advise_bits(&m, (n + ELEMENTS) * (2 + scales) / 8 * 9 / 8 - 1, &err);
        assert_non_null(strstr(err.text, "do not fit at 2 bits either"));
    }
}
