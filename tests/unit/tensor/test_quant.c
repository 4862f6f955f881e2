/* test_quant: packing, codes and scales against definitions written out here, and known SQNR values.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/grid.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "quantize/quantize.h"
#include "tensor/tensor.h"
#include "tests/rigs/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A fixed generator: the tests must not depend on the C library's. */
static uint64_t state = 88172645463325252u;
static double uniform(void)
{
    return (double)(xorshift(&state) >> 11) / 9007199254740992.0;
}

static float gauss(void)
{
    double u = uniform(), v = uniform();
    return (float)(sqrt(-2 * log(u + 1e-300)) * cos(6.283185307179586 * v));
}

TEST(packing_is_a_bit_stream)
{
    int8_t q[300], back[300];
    uint8_t packed[400];
    for (int bits = 2; bits <= 8; bits++) {
        for (int cols = 1; cols < 300; cols += cols < 40 ? 1 : 37) {
            size_t bytes = dq_quant_row_bytes(cols, bits);
            assert_int_equal(bytes, ((size_t)cols * (size_t)bits + 31) / 32 * 4);
            for (int c = 0; c < cols; c++)
                q[c] = (int8_t)((int)(uniform() * (1 << bits)) - (1 << (bits - 1)));
            memset(packed, 0xff, sizeof packed);
            dq_quant_pack_row(packed, q, cols, bits);
            for (size_t i = 0; i < bytes * 8; i++) {
                int c = (int)(i / (size_t)bits), want = 0;
                if (c < cols) want = (q[c] + (1 << (bits - 1))) >> (i % (size_t)bits) & 1;
                assert_int_equal(packed[i / 8] >> (i % 8) & 1, want);
            }
            assert_int_equal(packed[bytes], 0xff);
            dq_quant_unpack_row(back, packed, cols, bits);
            assert_memory_equal(q, back, (size_t)cols);
        }
    }
}

TEST(low_nibble_is_the_even_column)
{
    int8_t q[4] = {-7, 7, 0, -1};
    uint8_t packed[4] = {0};
    dq_quant_pack_row(packed, q, 4, 4);
    assert_int_equal(packed[0], 0xf1);
    assert_int_equal(packed[1], 0x78);
    assert_int_equal(packed[2] | packed[3], 0);
}

TEST(codes_follow_the_definition)
{
    float w[64];
    int8_t q[64];
    for (int bits = 2; bits <= 8; bits++) {
        for (int round = 0; round < 50; round++) {
            for (int i = 0; i < 64; i++) w[i] = gauss() * 0.02f;
            float s = dq_quant_group_scale(w, 64, bits, DQ_ABSMAX, DQ_F16);
            dq_quant_encode(q, w, 64, bits, s, DQ_ABSMAX);
            for (int i = 0; i < 64; i++) {
                float x = rintf(w[i] / s), m = (float)dq_quant_max_code(bits);
                assert_int_equal(q[i], (int)fmaxf(-m, fminf(m, x)));
            }
        }
    }
}

TEST(ties_go_to_even)
{
    const float w[8] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 3.5f, 1e30f};
    const int8_t want[8] = {0, 2, 2, 0, -2, -2, 4, 7};
    int8_t q[8];
    dq_quant_encode(q, w, 8, 4, 1.0f, DQ_ABSMAX);
    assert_memory_equal(q, want, 8);
    dq_quant_encode(q, w, 8, 4, 0.0f, DQ_ABSMAX);
    for (int i = 0; i < 8; i++) assert_int_equal(q[i], 0);
}

TEST(the_signed_scale_maps_the_peak_to_the_lowest_code)
{
    const float up[3] = {0.1f, 0.8f, -0.3f}, down[3] = {0.1f, -0.8f, 0.3f};
    int8_t q[3];
    float s = dq_quant_signed_scale(up[1], 4);
    assert_true(s < 0);
    dq_quant_encode(q, up, 3, 4, s, DQ_SEARCH);
    assert_int_equal(q[1], -8);
    assert_int_equal(q[2], 3);
    s = dq_quant_signed_scale(down[1], 4);
    assert_true(s > 0);
    dq_quant_encode(q, down, 3, 4, s, DQ_SEARCH);
    assert_int_equal(q[1], -8);
    assert_float_equal(dq_quant_group_scale(up, 0, 4, DQ_SEARCH, DQ_F32), 0, 0);
}

static double sqnr(int bits, int64_t group, dq_scale_mode mode)
{
    enum { N = 1 << 17 };
    static float w[N], got[N];
    static int8_t q[N];
    dq_quant_error e = {0, 0, 0};
    state = 88172645463325252u;
    for (int i = 0; i < N; i++) w[i] = gauss();
    for (int64_t i = 0; i < N; i += group) {
        float s = dq_quant_group_scale(w + i, group, bits, mode, DQ_F16);
        dq_quant_encode(q + i, w + i, group, bits, s, mode);
        for (int64_t k = i; k < i + group; k++) got[k] = (float)q[k] * s;
    }
    dq_quant_error_add(&e, w, got, N);
    return dq_quant_sqnr_db(&e);
}

/* Gaussian values: what absmax and signed scales give, in dB. A search beats both. */
TEST(gaussian_sqnr)
{
    static const struct {
        int bits;
        int64_t group;
        double absmax, with_sign;
    } row[] = {{8, 32, 45.5, 45.5},  {8, 128, 43.8, 43.8}, {6, 64, 32.3, 32.5},
               {6, 128, 31.5, 31.8}, {5, 128, 25.2, 25.8}, {4, 32, 20.3, 21.4},
               {4, 128, 18.6, 19.7}, {3, 32, 12.9, 15.2},  {3, 128, 11.3, 13.7}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        double absmax = sqnr(row[i].bits, row[i].group, DQ_ABSMAX);
        assert_true(fabs(absmax - row[i].absmax) < 0.15);
        assert_true(sqnr(row[i].bits, row[i].group, DQ_SEARCH) > fmax(absmax, row[i].with_sign));
    }
}

/* The squared error of n values at a scale as stored. */
static double noise(const float *w, int n, int bits, float scale, dq_scale_mode mode)
{
    enum { MAX = 1 << 10 };
    int8_t q[MAX];
    float got[MAX];
    dq_quant_error e = {0, 0, 0};
    assert_true(n <= MAX);
    dq_quant_encode_back(q, got, w, n, bits, scale, mode);
    dq_quant_error_add(&e, w, got, n);
    return e.noise;
}

static double noise_of(const float *w, int n, int bits, dq_scale_mode mode, dq_dtype type)
{
    return noise(w, n, bits, dq_quant_group_scale(w, n, bits, mode, type), mode);
}

TEST(search_takes_the_best_candidate)
{
    float w[96];
    for (int i = 0; i < 96; i++) w[i] = gauss();
    for (int bits = 2; bits <= 8; bits++) {
        for (int t = 0; t < 2; t++) {
            dq_quant_search s;
            dq_dtype type = t ? DQ_F32 : DQ_F16;
            dq_quant_search_begin(&s, dq_quant_peak(w, 96), bits, type);
            double least = noise(w, 96, bits, s.finalist[0], DQ_SEARCH);
            for (int k = 0; k < DQ_N_CANDIDATES + s.n_finalists; k++) {
                int at = k - DQ_N_CANDIDATES;
                float scale = at < 0 ? s.candidate[k] : s.finalist[at];
                assert_true(scale != 0);
                least = fmin(least, noise(w, 96, bits, scale, DQ_SEARCH));
            }
            /* the grid is ranked in f32: of two that are that near, either will do */
            assert_true(noise_of(w, 96, bits, DQ_SEARCH, type) <= least * (1 + 1e-5));
        }
    }
}

/* Groups as weights are, and as they should not be. */
static void fill(float *w, int n, int kind)
{
    float size = expf((float)(uniform() * 12 - 10)), at = gauss();
    for (int i = 0; i < n; i++) {
        float x = gauss();
        if (kind == 1) x = x * x * x * x * x; /* heavy tails */
        if (kind == 2) x = fabsf(x);          /* one side */
        if (kind == 3) x = -fabsf(x) * x * x; /* the other, with tails */
        if (kind == 4) x = at;                /* a constant */
        if (kind == 5) x = uniform() < 0.9 ? 0 : x;
        if (kind == 6) x = rintf(x * 2);
        if (kind == 7) x = i == n / 2 ? 30.0f * at : x; /* one outlier */
        w[i] = x * size;
    }
}

/* No other mode is better for any group: exactly, by the measure that sqnr_db is made of. */
TEST(search_never_loses)
{
    enum { KINDS = 8, ROUNDS = 700 };
    float w[600];
    int better = 0, groups = 0;
    for (int round = 0; round < KINDS * ROUNDS; round++) {
        int n = 1 + (int)(uniform() * (round % 3 == 0 ? 600 : round % 3 == 1 ? 40 : 5));
        fill(w, n, round % KINDS);
        for (int bits = 2; bits <= 8; bits++) {
            bool fits =
                dq_quant_scale_fits_f16(dq_quant_group_scale(w, n, bits, DQ_ABSMAX, DQ_F32)) &&
                dq_quant_scale_fits_f16(dq_quant_signed_scale(dq_quant_peak(w, n), bits));
            for (int t = fits ? 0 : 1; t < 2; t++) {
                dq_dtype type = t ? DQ_F32 : DQ_F16;
                double search = noise_of(w, n, bits, DQ_SEARCH, type), least = INFINITY;
                /* f32 scales have to be as good as f16 ones, too: a tensor may have them for other
                 * groups' sake in one mode only */
                for (int other = fits ? 0 : t; other <= t; other++) {
                    dq_dtype o = other ? DQ_F32 : DQ_F16;
                    least = fmin(least, noise_of(w, n, bits, DQ_ABSMAX, o));
                    least =
                        fmin(least, noise(w, n, bits,
                                          dq_quant_stored_scale(
                                              dq_quant_signed_scale(dq_quant_peak(w, n), bits), o),
                                          DQ_SEARCH));
                }
                assert_true(search <= least);
                if (type == DQ_F16)
                    assert_true(
                        dq_quant_scale_fits_f16(dq_quant_group_scale(w, n, bits, DQ_SEARCH, type)));
                better += search < least;
                groups++;
            }
        }
    }
    assert_true(better > groups / 4);
}

static dq_status swallow(void *arg, int dataset, const void *p, size_t bytes, dq_err *err)
{
    (void)arg, (void)dataset, (void)p, (void)bytes, (void)err;
    return DQ_OK;
}

/* What is read back row by row misses as much as what was written. */
static void expect_read_back(const dq_quantize_tensor *q, const dq_quant_error *e)
{
    dq_quant_error again = {0, 0, 0};
    float got[128];
    int8_t codes[128];
    assert_true(q->cols <= 128);
    for (int64_t r = 0; r < q->rows; r++) {
        const float *w = (const float *)q->t->data + r * q->cols;
        dq_quantize_tensor_read_back(q, w, got, codes);
        dq_quant_error_add(&again, w, got, q->cols);
    }
    assert_true(again.max_abs == e->max_abs);
    assert_true(fabs(again.noise - e->noise) <= 1e-12 * e->noise);
}

static dq_quant_error error_of(const dq_tensor *t, const dq_quant_spec *s)
{
    dq_quantize_tensor q = {
        .t = t,
        .w = {.rows = t->shape[0], .cols = t->shape[1], .dtype = t->dtype, .data = t->data},
        .rows = t->shape[0],
        .cols = t->shape[1],
        .spec = *s};
    dq_quantize_tensor_buffers buffers = {0};
    dq_quantize_sink sink = {swallow, NULL};
    dq_quant_error e = {0, 0, 0};
    dq_err err = {0};
    q.format = dq_weight_format_of_mode(s->mode);
    q.one_scale = s->group == DQ_GROUP_TENSOR;
    q.group_size = s->group < 0 || s->group > q.cols ? q.cols : s->group;
    q.scale_rows = q.one_scale ? 1 : q.rows;
    assert_int_equal(dq_quantize_tensor_scan(&q, &buffers, NULL, &err), DQ_OK);
    assert_int_equal(dq_quantize_tensor_write(&q, &buffers, &sink, &e, NULL, &err), DQ_OK);
    dq_quantize_tensor_buffers_free(&buffers);
    expect_read_back(&q, &e);
    return e;
}

/* Whole tensors, of every group size, of more than one block, with f32 scales for the sake of one group
 * and without. */
TEST(search_is_best_for_every_tensor)
{
    enum { ROWS = 700, COLS = 100, N = ROWS * COLS };
    static const int64_t groups[] = {1, 7, 16, 32, 64, 128, DQ_GROUP_ROW, DQ_GROUP_TENSOR};
    static float w[N];
    char path[] =
        "/tmp/dq_quant_XXXXXX"; /* passes give pages back, which only a file can lend again */
    dq_err err = {0};
    close(mkstemp(path));
    for (int kind = 0; kind < 4; kind++) {
        dq_os_map file;
        for (int i = 0; i < N; i++) w[i] = gauss() * (kind == 1 ? 0.001f : 0.05f);
        if (kind == 2) w[N / 2] = 3; /* one outlier */
        if (kind == 3) memset(w + 3 * COLS, 0, sizeof(float) * COLS);
        if (kind == 3) w[3 * COLS] = 1e-6f; /* scales that f16 cannot hold */
        assert_int_equal(dq_file_write(path, (const char *)w, sizeof w, &err), DQ_OK);
        assert_int_equal(dq_os_map_open(&file, path, &err), DQ_OK);
        dq_tensor t = {
            .name = "w", .dtype = DQ_F32, .n_dims = 2, .shape = {ROWS, COLS}, .data = file.data};
        for (int i = 0; i < 7 * 8 * 2; i++) {
            dq_quant_spec s = {.bits = 2 + i % 7,
                               .group = groups[i / 7 % 8],
                               .mode = DQ_ABSMAX,
                               .scale_dtype = i < 56 ? DQ_F16 : DQ_F32};
            double absmax = error_of(&t, &s).noise;
            s.mode = DQ_SEARCH;
            /* groups are compared exactly, their sums are rounded */
            assert_true(s.group == 1 || absmax > 0);
            assert_true(error_of(&t, &s).noise <= absmax * (1 + 1e-12));
        }
        dq_os_map_close(&file);
    }
    unlink(path);
}

TEST(search_takes_the_smallest_floats)
{
    const float tiny[3] = {0x1p-149f, -0x1p-148f, 0}, none[2] = {0, -0.0f};
    for (int bits = 2; bits <= 8; bits++) {
        float s = dq_quant_group_scale(tiny, 3, bits, DQ_SEARCH, DQ_F32);
        assert_true(isfinite(s));
        assert_true(noise(tiny, 3, bits, s, DQ_SEARCH) <=
                    noise_of(tiny, 3, bits, DQ_ABSMAX, DQ_F32));
        assert_true(dq_quant_group_scale(none, 2, bits, DQ_SEARCH, DQ_F16) == 0);
    }
}

TEST(decoding_reads_scales_by_group)
{
    enum { ROWS = 3, COLS = 301, GROUP = 100 };
    for (int bits = 2; bits <= 8; bits++) {
        uint8_t packed[ROWS * 304];
        uint16_t scale[ROWS * 4];
        int8_t q[ROWS][COLS];
        float out[ROWS * COLS];
        dq_weight w = {.rows = ROWS,
                       .cols = COLS,
                       .format = &dq_format_int,
                       .bits = bits,
                       .data = packed,
                       .group_size = GROUP,
                       .scale_rows = ROWS,
                       .scale_dtype = DQ_F16,
                       .scale = scale};
        for (int i = 0; i < ROWS * 4; i++) scale[i] = dq_f16_from_f32((float)(i + 1) / 8);
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLS; c++)
                q[r][c] = (int8_t)((int)(uniform() * (1 << bits)) - (1 << (bits - 1)));
            dq_quant_pack_row(packed + (size_t)r * dq_quant_row_bytes(COLS, bits), q[r], COLS,
                              bits);
        }
        dq_weight_dequantize_rows(out, &w, 0, ROWS);
        for (int i = 0; i < ROWS * COLS; i++) {
            int r = i / COLS, c = i % COLS;
            float s = (float)(r * 4 + c / GROUP + 1) / 8;
            assert_true(out[i] == (float)q[r][c] * s);
        }
        dq_weight_dequantize_rows(out, &w, 2, 3);
        assert_true(out[300] == (float)q[2][300] * (12.0f / 8));
    }
}

/* ---- Zero points ---- */

static const void *golden_dataset(const golden *g, int bits, int group, dq_dtype type,
                                  const char *dataset, size_t bytes)
{
    char name[40];
    snprintf(name, sizeof name, "%d.%d.%s.%s", bits, group, type == DQ_F16 ? "f16" : "f32",
             dataset);
    const dq_tensor *t = golden_find(g, name);
    if (!t || dq_tensor_bytes(t) != bytes) fail_msg("%s", name);
    return t->data;
}

/* Codes, scales, zero points and padding of NumPy, byte for byte; and what they stand for. */
static void check_asym(const golden *g, int bits, int group, dq_dtype type)
{
    enum { COLS = 77, ROWS = 12 };
    const int rows = type == DQ_F16 ? 10 : ROWS;
    const dq_weight_format *f = dq_weight_format_of_mode(DQ_ASYM);
    const dq_quant_spec spec = {.bits = bits, .mode = DQ_ASYM, .scale_dtype = DQ_F32};
    dq_weight w = {.rows = rows,
                   .cols = COLS,
                   .format = f,
                   .bits = bits,
                   .group_size = group,
                   .scale_rows = rows,
                   .scale_dtype = DQ_F32};
    float x[ROWS * COLS], got[COLS], back[COLS];
    uint8_t space[3][ROWS * 80] = {{0}}, *dataset[DQ_MAX_DATASETS];
    int8_t q[COLS];
    memcpy(x, golden_find(g, "w")->data, sizeof x);
    w.data = space[0];
    w.scale = space[1];
    w.zero = space[2];
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < 3; i++) {
            const dq_dataset p = dq_weight_dataset(&w, i);
            dataset[i] = space[i] + (size_t)r * (dq_dataset_bytes(&p) / (size_t)rows);
        }
        for (int c = 0, i = 0; c < COLS; c += group, i++) {
            const int n = COLS - c < group ? COLS - c : group;
            const float *at = x + r * COLS + c;
            dq_quant_spec stored = spec;
            stored.scale_dtype = type;
            const dq_grid own = f->fit(at, n, &stored);
            f->put(dataset, i, own, &spec);
            f->encode(q + c, got + c, at, n, own, &spec);
        }
        dq_quant_pack_row(dataset[0], q, COLS, bits);
        dq_weight_dequantize_rows(back, &w, r, r + 1);
        assert_memory_equal(back, got, sizeof got);
        for (int c = 0; c < COLS; c++) assert_true(isfinite(back[c]));
    }
    for (int i = 0; i < 3; i++) {
        const dq_dataset p = dq_weight_dataset(&w, i);
        const size_t bytes = dq_dataset_bytes(&p);
        assert_memory_equal(space[i],
                            golden_dataset(g, bits, group, type, f->dataset[i].name, bytes), bytes);
        assert_null(f->dataset[i].wrong(&p, DQ_ASYM));
    }
}

/* Every value of 16 bits as the scale in the middle of sound ones, in both types. */
TEST(wrong_scales_are_seen)
{
    for (int h = 0; h < 65536; h++) {
        uint16_t half[3] = {0x3c00, (uint16_t)h, 0x8000};
        float single[3] = {1.0f, dq_f32_from_f16(half[1]), -0.0f};
        const bool odd = !isfinite(single[1]), wrong = odd || single[1] < 0;
        const dq_dataset p[2] = {{.rows = 1, .cols = 3, .dtype = DQ_F16, .data = half},
                                 {.rows = 3, .cols = 1, .dtype = DQ_F32, .data = single}};
        for (int i = 0; i < 2; i++) {
            assert_true((dq_dataset_wrong_scales(&p[i], DQ_ABSMAX) != NULL) == wrong);
            assert_true((dq_dataset_wrong_scales(&p[i], DQ_SEARCH) != NULL) == odd);
        }
    }
}

TEST(asym_is_that_of_numpy)
{
    golden g = golden_open(DQ_TEST_DIR "/golden/asym");
    for (int bits = 2; bits <= 8; bits++) {
        for (int k = 0; k < 4; k++) check_asym(&g, bits, k % 2 ? 20 : 77, k < 2 ? DQ_F16 : DQ_F32);
    }
    golden_close(&g);
}

/* All of one sign, equal, or zero: what is dequantized lies within half a step, and 0 stays 0. */
TEST(asym_holds_any_group)
{
    const dq_quant_spec spec = {.bits = 3, .mode = DQ_ASYM, .scale_dtype = DQ_F32};
    static const float ends[][2] = {{2, 5}, {-5, -2}, {4, 4}, {-4, -4}, {0, 0}, {-1, 6}, {-6, 1}};
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        float w[9], got[9];
        int8_t q[9];
        for (int i = 0; i < 8; i++) w[i] = ends[k][0] + (ends[k][1] - ends[k][0]) * (float)i / 7;
        w[8] = 0;
        const dq_grid g = dq_format_int_zero.fit(w, 9, &spec);
        dq_format_int_zero.encode(q, got, w, 9, g, &spec);
        assert_true(g.zero >= 0 && g.zero <= 7);
        assert_true(got[8] == 0);
        for (int i = 0; i < 9; i++) assert_true(fabsf(got[i] - w[i]) <= 1.001f * g.scale);
    }
}

/* A tensor gets f32 scales where f16 cannot hold one of them: too large, or subnormal. */
TEST(asym_scales_fit_or_are_f32)
{
    static const struct {
        float low, high;
        bool fits;
    } ranges[] = {{-1, 1, true},         {0, 0, true},      {-6e4f, 6e4f, true},
                  {-9e5f, 9e5f, false},  {0, 1e-4f, false}, {-3e38f, 3e38f, false},
                  {-1e-4f, 1e-3f, true}, {0, 9.2e-4f, true}};
    const dq_quant_spec spec = {.bits = 4, .mode = DQ_ASYM, .scale_dtype = DQ_F16};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const dq_weight_range r = {.low = ranges[i].low, .high = ranges[i].high};
        assert_int_equal(dq_format_int_zero.fits_f16(&r, &spec), ranges[i].fits);
    }
}

TEST(bits_per_weight_count_scales_and_padding)
{
    dq_weight w = {.rows = 4,
                   .cols = 256,
                   .format = &dq_format_int,
                   .bits = 4,
                   .group_size = 128,
                   .scale_rows = 4,
                   .scale_dtype = DQ_F16};
    assert_true(dq_weight_bits_per_weight(&w) == 4.125);
    w.cols = w.group_size = 5;
    assert_true(dq_weight_bits_per_weight(&w) == (32.0 + 16.0) / 5.0);
    w.format = &dq_format_int_zero; /* a zero point takes 4 bits, a row of them whole bytes */
    w.cols = 4096;
    w.group_size = 128;
    assert_true(dq_weight_bits_per_weight(&w) == 4 + 20.0 / 128);
    assert_int_equal(dq_quant_groups(129, 128), 2);
    assert_true(isinf(dq_quant_sqnr_db(&(dq_quant_error){1, 0, 0})));
}
