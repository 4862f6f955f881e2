/* What policies ask of keys, on the CUDA backend against the CPU, on the simulated device: bit for bit where the CPU fuses
 * products as the device does.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/pair_rig.h"
#include "tests/rigs/suite.h"

#include "base/os.h"

enum { KEYS = 3 * PAIR_ROWS };

/* How products of f32 are rounded is an ISA's own. */
static bool fused(void)
{
    return dq_os_cpu_features(NULL) & (DQ_CPU_AVX2 | DQ_CPU_AVX512);
}

static void compare_numbers(double got[2][KEYS], int64_t n, bool equal, double tolerance)
{
    assert_true(n > 0);
    for (int64_t i = 0; i < n; i++) {
        const double off = fabs(got[CPU][i] - got[CUDA][i]);
        if (!(off <= tolerance * fabs(got[CPU][i])))
            print_error("key %d: %.17g, %.17g\n", (int)i, got[CPU][i], got[CUDA][i]);
        assert_true(off <= tolerance * fabs(got[CPU][i]));
    }
    if (equal) assert_memory_equal(got[CPU], got[CUDA], (size_t)n * sizeof(double));
}

typedef void measure_fn(pair *p, int k, int32_t seq, int group, int32_t t, double *out);

static void norms(pair *p, int k, int32_t seq, int group, int32_t t, double *out)
{
    p->b[k]->ops->kv_key_norms(p->b[k], p->kv[k], seq, 0, group, t, out);
}

static void cosines(pair *p, int k, int32_t seq, int group, int32_t t, double *out)
{
    p->b[k]->ops->kv_key_cosines(p->b[k], p->kv[k], seq, 0, group, t, out);
}

static dq_rope rope_of(const pair *p, float freq[64])
{
    const int dim = p->map.head_dim;
    for (int c = 0; c < dim / 2; c++) freq[c] = powf(100.0f, -2.0f * (float)c / (float)dim);
    return (dq_rope){.dim = dim,
                     .inv_freq = freq,
                     .amplitude = 1.25f,
                     .order = dim % 3 ? DQ_ROPE_HALVES : DQ_ROPE_ADJACENT};
}

static void leverages(pair *p, int k, int32_t seq, int group, int32_t t, double *out)
{
    float freq[64];
    const dq_rope rope = rope_of(p, freq);
    p->b[k]->ops->kv_key_leverages(p->b[k], p->kv[k], seq, 0, group, t, &rope, out);
}

/* Of each token a sum in which every entry of its row has another weight than its neighbours. */
static void rows(pair *p, int k, int32_t seq, int group, int32_t t, double *out)
{
    static float row[KEYS * 2 * PAIR_KV * 128];
    float freq[64];
    const dq_rope rope = rope_of(p, freq);
    const int64_t cols = 2 * dq_head_order_key_channels(&p->map, group);
    const int64_t n = p->b[k]->ops->kv_count(p->b[k], p->kv[k], seq, 0, group, NULL);
    p->b[k]->ops->kv_rows(p->b[k], p->kv[k], seq, 0, group, t, &rope, row);
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int64_t c = 0; c < cols; c++)
            out[i] += fabs((double)row[i * cols + c]) * (double)(1 + c % 7);
    }
}

/* Every list, as rows at two positions read it. */
static void compare_measure(pair *p, int32_t seq, measure_fn *measure, bool equal, double tolerance)
{
    static double got[2][KEYS];
    for (int g = 0; g < p->map.n_groups; g++) {
        const int64_t n = p->b[CPU]->ops->kv_count(p->b[CPU], p->kv[CPU], seq, 0, g, NULL);
        assert_true(n <= KEYS);
        for (int back = 0; back < 2; back++) {
            for (int k = CPU; k <= CUDA; k++)
                measure(p, k, seq, g, p->length[seq] - 1 + back, got[k]);
            pair_sync(p);
            compare_numbers(got, n, equal, tolerance);
        }
    }
}

/* A key of zeros points nowhere, one that is huge has a length all the same. */
static void odd_keys(pair *p)
{
    const int cols = PAIR_KV * p->map.head_dim;
    for (int c = 0; c < cols; c++) {
        p->host[A_K][5 * cols + c] = 0;
        p->host[A_K][20 * cols + c] *= 1e18f;
    }
}

TEST(keys_are_measured_alike)
{
    for (int i = 0; i < 12; i++) {
        pair p;
        dq_kv_spec spec = i % 3 == 0 ? dq_kv_plain : i % 2 ? page_spec_of(i) : spec_of(i);
        const int dim = dims[i % 6];
        spec.rotate_k = i % 3 == 2 && (dim & (dim - 1)) == 0;
        pair_open(&p, pairings[i % N_PAIRINGS], dim, spec);
        pair_scene(&p, i % 2);
        for (int32_t seq = 0; seq < 2; seq++) {
            compare_measure(&p, seq, norms, false, 1e-12);
            compare_measure(&p, seq, cosines, true, 0);
            compare_measure(&p, seq, leverages, fused(), 1e-4);
            compare_measure(&p, seq, rows, fused(), 1e-6);
        }
        pair_begin(&p);
        const int32_t odd = pair_seq(&p, 3);
        pair_rows(&p, odd, 100);
        odd_keys(&p);
        pair_append(&p);
        compare_measure(&p, odd, cosines, true, 0);
        pair_close(&p);
    }
}

/* A list without tokens asks nothing of the device; keys that are not finite have no factor, and say so on both. */
TEST(no_keys_and_bad_ones)
{
    static double got[KEYS];
    pair p;
    pair_open(&p, DQ_PAIR_ADJACENT, 64, dq_kv_plain);
    const int32_t a = pair_seq(&p, 0);
    for (int k = CPU; k <= CUDA; k++) {
        norms(&p, k, a, 0, 0, got);
        cosines(&p, k, a, 0, 0, got);
        leverages(&p, k, a, 0, 0, got);
        rows(&p, k, a, 0, 0, got);
    }
    pair_begin(&p);
    pair_rows(&p, a, 70);
    p.host[A_K][3] = NAN;
    pair_append(&p);
    pair_sync(&p);
    for (int k = CPU; k <= CUDA; k++) {
        dq_err err = {0};
        leverages(&p, k, a, p.map.group[0], 70, got);
        assert_int_equal(dq_backend_sync(p.b[k], &err), DQ_DAMAGED);
        assert_string_equal(err.text, "keys of the KV cache are not finite");
    }
    pair_close(&p);
}

/* With an argument: tests of that name. */

NEEDS(rig_can_run)
