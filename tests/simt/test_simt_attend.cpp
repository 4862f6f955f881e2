/* test_simt_attend: the sample of an attention on Hopper against plain loops in f64; here or on a
 * GPU.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "tests/simt/numerics.h"
#include "tests/simt/simt_attend.h"

#include <math.h>
#include <vector>

enum {
    ROWS = DQ_ATTEND_ROWS,
    KEYS = DQ_ATTEND_KEYS,
    HEAD = DQ_ATTEND_HEAD,
    VALUE = DQ_ATTEND_VALUE
};

NEEDS(check_hopper)

static const float lambda = 0.6f;

/* softmax(q k^T / sqrt HEAD) v of one row, added to out with that weight. */
static void add_map(double *out, const float *q, const float *k, const float *v, int keys,
                    double weight)
{
    std::vector<double> p((size_t)keys);
    double max = -1e300, sum = 0;
    for (int t = 0; t < keys; t++) {
        double s = 0;
        for (int c = 0; c < HEAD; c++) s += (double)q[c] * (double)k[t * HEAD + c];
        p[(size_t)t] = s / sqrt((double)HEAD);
        max = fmax(max, p[(size_t)t]);
    }
    for (double &x : p) sum += x = exp(x - max);
    for (int t = 0; t < keys; t++)
        for (int c = 0; c < VALUE; c++)
            out[c] += weight * p[(size_t)t] / sum * (double)v[t * VALUE + c];
}

/* n random f16 values as floats; some keys are much larger than the rest, so that maxima move. */
static std::vector<float> random_f16(check_random &r, size_t n, float size)
{
    std::vector<float> x(n);
    for (float &v : x) v = numerics_f16_f32(numerics_f32_f16(r.value() * size));
    return x;
}

static void check_attend(int pages, int pairs, int clusters)
{
    const int tiles = 2 * pairs, keys = pages * KEYS;
    check_random r = {(uint64_t)(pages * 100 + pairs)};
    const std::vector<float> q = random_f16(r, (size_t)tiles * 2 * ROWS * HEAD, 0.5f);
    std::vector<float> k = random_f16(r, (size_t)2 * keys * HEAD, 0.4f); /* [map][key][HEAD] */
    const std::vector<float> v = random_f16(r, (size_t)keys * VALUE, 0.5f);
    check_array<uint16_t> dq(q.size()), dk(k.size()), dv(v.size());
    check_array<float> out((size_t)tiles * ROWS * VALUE);
    for (size_t i = 0; i < q.size(); i++) dq.host[i] = numerics_f32_f16(q[i]);
    for (int t = 0; t < keys; t++) {
        const int page = t / KEYS, slot = t % KEYS;
        for (int map = 0; map < 2; map++)
            for (int c = 0; c < HEAD; c++)
                dk.host[(page * 2 + map) * KEYS * HEAD + (c / 8 * KEYS + slot) * 8 + c % 8] =
                    numerics_f32_f16(k[(size_t)((map * keys + t) * HEAD + c)]);
        for (int c = 0; c < VALUE; c++)
            dv.host[page * KEYS * VALUE + (slot / 8 * VALUE + c) * 8 + slot % 8] =
                numerics_f32_f16(v[(size_t)(t * VALUE + c)]);
    }
    dq.put();
    dk.put();
    dv.put();
    assert_int_equal(dq_attend_sample(out.device, dq.device, dk.device, dv.device, pages, pairs,
                                      clusters, lambda, NULL),
                     cudaSuccess);
    const cudaError_t e = cudaDeviceSynchronize();
    assert_string_equal(dq_simt_report(), "");
    assert_int_equal(e, cudaSuccess);
    out.get();
    double largest = 0, worst = 0;
    for (int row = 0; row < tiles * ROWS; row += 3) { /* of every warp, and each place in a lane */
        double expected[VALUE] = {};
        for (int map = 0; map < 2; map++)
            add_map(expected, &q[(size_t)((row / ROWS * 2 + map) * ROWS + row % ROWS) * HEAD],
                    &k[(size_t)map * (size_t)keys * HEAD], v.data(), keys,
                    map ? -(double)lambda : 1);
        for (int c = 0; c < VALUE; c++) {
            largest = fmax(largest, fabs(expected[c]));
            const double off = fabs(expected[c] - (double)out.host[row * VALUE + c]);
            worst = off <= worst ? worst : off; /* a NaN is worse than anything */
        }
    }
    if (!(worst <= 1e-3 * largest)) fail_msg("off by %g of %g", worst, largest);
}

TEST(test_attend)
{
    check_attend(1, 1, 1);
    check_attend(7, 2, 2);
    dq_each_order([] { check_attend(4, 2, 1); });
}
