/* test_random: both generators against what others publish: SplitMix64's outputs as its authors' code gives them
 * (Vigna's splitmix64.c), and CPython 3.11's random module.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"

#include <string.h>

TEST(outputs_are_splitmix64s)
{
    static const struct {
        uint64_t seed, want[5];
    } known[] = {
        {1234567,
         {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u,
          16408922859458223821u}},
        {0,
         {0xe220a8397b1dcdafu, 0x6e789e6aa1b965f4u, 0x06c45d188009454fu, 0xf88bb8a8724c81ecu,
          0x1b39896a51a8749bu}},
    };
    for (int i = 0; i < 2; i++) {
        dq_random r = {known[i].seed};
        for (int k = 0; k < 5; k++) assert_true(dq_random_next(&r) == known[i].want[k]);
    }
    assert_true(dq_random_mix(0x9e3779b97f4a7c15u) == known[1].want[0]);
}

/* Of 2^63 + 1 remainders only one turn fits 2^64: what lies above is drawn again. */
TEST(ranges_reject)
{
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u,
                                    4593380528125082431u, 7804594928223864054u};
    dq_random r = {1234567}, all = r;
    int drawn = 0;
    for (int i = 0; i < 4; i++) {
        assert_true(dq_random_below(&r, ((uint64_t)1 << 63) + 1) == want[i]);
    }
    while (all.state != r.state) {
        dq_random_next(&all);
        drawn++;
    }
    assert_int_equal(drawn, 6);
    for (int i = 0; i < 4; i++) assert_true(dq_random_below(&r, 1) == 0);
    int seen[3] = {0}; /* 5 sigma = 130 */
    for (int i = 0; i < 3000; i++) seen[dq_random_below(&r, 3)]++;
    for (int i = 0; i < 3; i++) assert_in_range(seen[i], 870, 1130);
}

/* Streams of one seed, and seeds of one stream, have nothing in common; numbers as those of results so far. */
TEST(streams_differ)
{
    for (uint64_t i = 0; i < 64; i++) {
        for (uint64_t k = 0; k < i; k++) {
            assert_true(dq_random_of(1, i).state != dq_random_of(1, k).state);
            assert_true(dq_random_of(i, 1).state != dq_random_of(k, 1).state);
        }
    }
    static const int32_t want[10] = {6, 1, 7, 5, 3, 2, 4, 8, 0, 9}; /* tests/golden/icl.py */
    dq_random r = dq_random_of(1, 1);
    int32_t p[10];
    dq_random_permute(&r, p, 10);
    assert_memory_equal(p, want, sizeof want);
    dq_random_permute(&r, p, 0);
    dq_random_permute(&r, p, 1);
    assert_int_equal(p[0], 0);
}

TEST(words_and_ranges_are_pythons)
{
    static const struct {
        uint64_t seed;
        uint32_t word[3], five_bits[3], below_1000[3],
            last; /* last: the 700th word from there on */
    } want[] = {
        {0, {3626764237, 1654615998, 3255389356}, {28, 13, 1}, {265, 988, 523}, 2618944820},
        {1234, {4150886329, 3342196574, 1892932127}, {3, 0, 2}, {932, 965, 961}, 1440136597},
        {4294967296, {485306839, 1508871100, 1794561286}, {29, 0, 0}, {626, 897, 824}, 1415135040},
        {1000000000000000,
         {953109267, 504145481, 1577932544},
         {26, 9, 22},
         {554, 506, 273},
         3911804369},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dq_random_mt r;
        uint32_t last = 0;
        dq_random_mt_seed(&r, want[i].seed);
        for (int k = 0; k < 3; k++) assert_int_equal(dq_random_mt_next(&r), want[i].word[k]);
        for (int k = 0; k < 3; k++)
            assert_int_equal(dq_random_mt_bits(&r, 5), want[i].five_bits[k]);
        for (int k = 0; k < 3; k++)
            assert_int_equal(dq_random_mt_below(&r, 1000), want[i].below_1000[k]);
        for (int k = 0; k < 700; k++) last = dq_random_mt_next(&r);
        assert_int_equal(last, want[i].last);
    }
}

enum { DRAWS = 22 };

TEST(samples_are_pythons)
{
    static const struct {
        uint64_t seed;
        int64_t n, k, first[DRAWS], second[DRAWS];
    } want[] = {
        /* as many as fit: a shuffle of a part */
        {1234, 12, 5, {7, 1, 0, 10, 9}, {10, 1, 11, 5, 3}},
        {0, 21, 5, {12, 13, 1, 8, 16}, {15, 12, 9, 20, 11}},
        {1234, 85, 6, {56, 14, 0, 11, 74, 4}, {10, 12, 45, 30, 2, 3}},
        {4294967301, 10, 10, {2, 7, 4, 8, 0, 9, 1, 6, 3, 5}, {3, 5, 9, 4, 1, 7, 6, 2, 0, 8}},
        {1, 1, 1, {0}, {0}},
        {99,
         277,
         22,
         {206, 194, 102, 91,  117, 127, 68,  44, 128, 196, 45,
          250, 274, 215, 110, 191, 198, 108, 77, 236, 273, 173},
         {42,  270, 44,  240, 161, 206, 21,  137, 3,   217, 104,
          185, 41,  236, 101, 263, 26,  183, 66,  110, 82,  226}},
        /* few of many: what is taken is drawn again */
        {0, 22, 5, {12, 13, 1, 8, 16}, {15, 12, 9, 11, 18}},
        {1234, 86, 6, {56, 14, 0, 11, 74, 4}, {85, 10, 12, 45, 30, 2}},
        {99,
         278,
         22,
         {206, 194, 102, 91,  117, 127, 68,  44,  128, 196, 271,
          275, 45,  250, 215, 110, 191, 198, 108, 77,  236, 173},
         {42,  270, 44, 240, 161, 206, 21, 137, 3,  217, 104,
          185, 273, 41, 236, 265, 101, 26, 183, 66, 110, 82}},
        {7, 4117, 6, {2652, 1235, 3234, 395, 593, 771}, {2995, 475, 1758, 307, 704, 3552}},
        {1000000000000000, 60000, 3, {14543, 7692, 24077}, {54640, 18553, 45478}},
        /* the training splits of the seven tasks, with the harness's numbers of draws */
        {1234,
         39905,
         6,
         {28883, 7657, 490, 5940, 38156, 2288},
         {5500, 6450, 23241, 15519, 1142, 2019}},
        {1234,
         40398,
         6,
         {28883, 7657, 490, 5940, 38156, 2288},
         {5500, 6450, 23241, 15519, 1142, 2019}},
        {1234,
         16113,
         6,
         {15834, 12749, 7220, 1914, 122, 1485},
         {14925, 15442, 15388, 13221, 9539, 572}},
        {1234, 9427, 6, {7220, 1914, 122, 1485, 572, 1375}, {1612, 5810, 3879, 285, 504, 259}},
        {1234, 2251, 5, {1805, 478, 30, 371, 143}, {343, 403, 1452, 969, 71}},
        {1234, 1119, 5, {902, 239, 15, 185, 71}, {171, 201, 726, 484, 35}},
        {1234, 4957, 5, {3610, 957, 61, 742, 4769}, {286, 687, 806, 2905, 1939}},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dq_random_mt r;
        dq_err err = {0};
        int64_t got[DRAWS];
        dq_random_mt_seed(&r, want[i].seed);
        for (int twice = 0; twice < 2; twice++) {
            const int64_t *w = twice ? want[i].second : want[i].first;
            assert_int_equal(dq_random_mt_sample(&r, got, want[i].n, want[i].k, &err), DQ_OK);
            for (int64_t k = 0; k < want[i].k; k++) {
                if (got[k] != w[k])
                    fail_msg("sample(%d, %d), draw %d: expected %d, found %d", (int)want[i].n,
                             (int)want[i].k, (int)k, (int)w[k], (int)got[k]);
            }
        }
    }
}
