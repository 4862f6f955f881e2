/* test_kv_codes: what the CPU backend's KV pages hold: codes and scales against NumPy, values that f16
 * scales cannot describe, moved codes, bytes, exhausted memory.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cpu/kv/cpu_kv.h"
#include "kernels/cpu/simd.h"
#include "tensor/tensor.h"
#include "tests/rigs/golden.h"
#include "tests/rigs/kv_stage.h"
#include "tests/rigs/suite.h"

/* One KV head of head_dim channels with all tokens as codes but none of the windows. */
static void one_head_of(stage *s, int head_dim, int k_bits, int v_bits, int group, dq_kv_quant code)
{
    dq_err err = {0};
    dq_kv_spec spec = {.k_bits = k_bits, .v_bits = v_bits, .group = group, .quant = code};
    open_stage(s, DQ_PAIR_NONE, head_dim, spec, 1);
    s->b->ops->kv_free(s->b, s->kv);
    dq_oracle_free(s->oracle);
    assert_int_equal(dq_head_order_build(&s->map, DQ_PAIR_NONE, 1, 1, head_dim, 0, s->arena, &err),
                     DQ_OK);
    s->oracle = dq_oracle_new(&s->map);
    s->kv = s->b->ops->kv_new(s->b, &s->map, 1, &spec);
    s->b->ops->kv_seq_new(s->b, s->kv);
}

static void one_head(stage *s, int head_dim, int k_bits, int v_bits, int group)
{
    one_head_of(s, head_dim, k_bits, v_bits, group, DQ_KV_PER_TOKEN);
}

/* Appends n tokens of that head, keys and values alike, from position 64 on: all are read as codes. */
static const dq_kv_list *put_tokens(stage *s, const float *x, int n)
{
    begin_batch(s);
    s->batch.n_seq = 1;
    s->batch.n_rows = s->cu_rows[1] = 64;
    for (int i = 0; i < 64; i++) s->pos[i] = 64 + i;
    memset(s->k, 0, 64 * (size_t)s->map.head_dim * sizeof(float));
    memcpy(s->k, x, (size_t)n * (size_t)s->map.head_dim * sizeof(float));
    test_put(s->b, &s->both[K], 64 * (int64_t)s->map.head_dim);
    s->b->ops->kv_append(s->b, s->kv, 0, &s->batch, mat(s->both[K].device, 64, s->map.head_dim),
                         mat(s->both[K].device, 64, s->map.head_dim), DQ_NUM_F32);
    s->b->ops->kv_compact(s->b, s->kv, 0, &s->batch, 0);
    expect_no_error(s);
    return dq_kv_list_of(s->kv, 0, 0, 0);
}

static const dq_tensor *find(const golden *g, char what, int d, int bits, int group)
{
    char name[64];
    snprintf(name, sizeof name, "%c.%d.%d.%d", what, d, bits, group);
    const dq_tensor *t = golden_find(g, name);
    assert_non_null(t);
    return t;
}

/* One side of one golden: codes, scales, and the pages as attention reads them. */
static void check_side(stage *s, const golden *g, const dq_kv_list *list, int side, int bits,
                       int group)
{
    const int d = s->map.head_dim, n_scales = (d + group - 1) / group;
    const dq_tensor *q = find(g, 'q', d, bits, group), *sc = find(g, 's', d, bits, group),
                    *y = find(g, 'y', d, bits, group);
    float *scratch = calloc((size_t)dq_cpu_kv_scratch_floats(s->kv), sizeof *scratch), scale[64];
    int8_t codes[64];
    const dq_simd *isa[3] = {&dq_simd_scalar, dq_cpu_isa_of(dq_os_cpu_features(NULL))->simd,
                             dq_cpu_isa_of(dq_os_cpu_features(NULL) & DQ_CPU_AVX2)->simd};
    for (int64_t t = 0; t < q->shape[0]; t++) {
        dq_cpu_kv_token_codes(s->kv, list, t, 0, side, codes, scale);
        assert_memory_equal(codes, (const int8_t *)q->data + t * d, (size_t)d);
        for (int64_t i = d; i < s->kv->v_cols; i++) assert_int_equal(codes[i], 0);
        for (int i = 0; i < n_scales; i++)
            assert_true(scale[i] == golden_f32(sc, t * n_scales + i));
    }
    for (int k = 0; k < 3; k++) {
        const float *page = dq_cpu_kv_read(isa[k], s->kv, list, 0, side, 0, 64, scratch);
        assert_ptr_equal(page, scratch);
        for (int64_t i = 0; i < q->shape[0] * d; i++) {
            const float got = side == DQ_K ? page[i % d * DQ_PAGE_TOKENS + i / d]
                                           : page[i / d * s->kv->v_cols + i % d];
            assert_true(got == golden_f32(y, i));
        }
    }
    free(scratch);
}

TEST(numpy_codes)
{
    if (!on_cpu()) skip();
    static const int bits[] = {8, 6, 4, 3, 2};
    golden g = golden_open(DQ_TEST_DIR "/golden/kv");
    for (int i = 0; i < 2 * 5 * 2; i++) {
        const int d = i % 2 ? 64 : 24, b = bits[i / 2 % 5];
        const int group = b > 4 ? d : i / 10 ? 10 : d > 32 ? 32 : d;
        char name[16];
        stage s;
        float x[64 * 64];
        snprintf(name, sizeof name, "x.%d", d);
        const dq_tensor *in = golden_find(&g, name);
        assert_non_null(in);
        memcpy(x, in->data, dq_tensor_bytes(in));
        one_head(&s, d, b >= 4 ? b : 16, b, group);
        const dq_kv_list *list = put_tokens(&s, x, (int)in->shape[0]);
        if (b >= 4) check_side(&s, &g, list, DQ_K, b, group);
        check_side(&s, &g, list, DQ_V, b, group);
        assert_true(list->page[0]->arrays[DQ_V].wide); /* the goldens hold values for it */
        close_stage(&s);
    }
    golden_close(&g);
}

/* Per-channel codes, steps and lows of one side, and the page as attention reads it. */
static void check_page(stage *s, const golden *g, const dq_kv_list *list, int side, int bits,
                       int dithered)
{
    const int d = s->map.head_dim;
    const dq_tensor *c = find(g, 'c', d, bits, dithered), *l = find(g, 'l', d, bits, dithered);
    const dq_simd *isa[3] = {&dq_simd_scalar, dq_cpu_isa_of(dq_os_cpu_features(NULL))->simd,
                             dq_cpu_isa_of(dq_os_cpu_features(NULL) & DQ_CPU_AVX2)->simd};
    float *scratch = calloc((size_t)dq_cpu_kv_scratch_floats(s->kv), sizeof *scratch);
    float number[2 * 64];
    int8_t codes[64];
    for (int64_t t = 0; t < 64; t++) {
        dq_cpu_kv_token_codes(s->kv, list, t, 0, side, codes, number);
        assert_memory_equal(codes, (const int8_t *)c->data + t * d, (size_t)d);
        for (int i = 0; i < 2 * d; i++) assert_true(number[i] == golden_f32(l, i));
        for (int k = 0; k < 3; k++) {
            const float *page = dq_cpu_kv_read(isa[k], s->kv, list, 0, side, 0, 64, scratch);
            for (int i = 0; i < d; i++) {
                const float u = (float)(codes[i] + (1 << (bits - 1)));
                const float off = dithered ? dq_kv_dither((int32_t)t) : 0.0f;
                const float want = (u - off) * number[i] + number[d + i];
                assert_true(want ==
                            (side == DQ_K ? page[i * 64 + t] : page[t * s->kv->v_cols + i]));
            }
        }
    }
    assert_true(list->page[0]->arrays[side].wide == (d == 24)); /* some of its channels need it */
    free(scratch);
}

TEST(numpy_page_codes)
{
    if (!on_cpu()) skip();
    static const int bits[] = {8, 6, 5, 4, 3, 2};
    golden g = golden_open(DQ_TEST_DIR "/golden/kv");
    for (int i = 0; i < 2 * 6 * 2; i++) {
        const int d = i % 2 ? 64 : 24, b = bits[i / 2 % 6], dithered = i / 12;
        char name[16];
        stage s;
        if (dithered && b < 4) continue;
        snprintf(name, sizeof name, "p.%d", d);
        const dq_tensor *in = golden_find(&g, name);
        assert_non_null(in);
        one_head_of(&s, d, b, b, 32, dithered ? DQ_KV_DITHER : DQ_KV_PER_CHANNEL);
        const dq_kv_list *list = put_tokens(&s, in->data, 64);
        check_page(&s, &g, list, DQ_K, b, 0);
        check_page(&s, &g, list, DQ_V, b, dithered);
        close_stage(&s);
    }
    golden_close(&g);
}

/* Channels of every size, alike or not, about zero or far from it. */
static void draw_channels(float *x, int d, uint32_t seed)
{
    static const float offsets[] = {0, 0.5f, 3, 40, -700, 0x1p20f};
    for (int c = 0; c < d; c++, seed += 100) {
        const float size = exp2f(35 * uniform(seed) - 5), at = offsets[seed / 7 % 6] * size;
        const int kind = c % 8;
        for (int t = 0; t < 64; t++) {
            float u = uniform(seed + 1 + (uint32_t)t);
            if (kind == 5) u = 0;
            if (kind == 6) u = t == 17;
            if (kind == 7) u = (float)t / 16;
            x[t * d + c] = u * size + at;
        }
    }
}

/* Channel c of a page, as attention reads it, but for what f32 itself rounds; y: an element a token. */
static void check_channel(const float *x, int c, int d, const float *y, int64_t stride, int steps)
{
    float least = x[c], largest = x[c];
    for (int t = 0; t < 64; t++) {
        least = fminf(least, x[t * d + c]);
        largest = fmaxf(largest, x[t * d + c]);
    }
    const double step = ((double)largest - (double)least) / steps;
    const double most = step / 2 * (1 + 0x1p-10) + 0x1p-22 * (double)fmaxf(-least, largest);
    for (int t = 0; t < 64; t++)
        assert_true(fabs((double)y[t * stride] - (double)x[t * d + c]) <= most);
}

TEST(elements_are_within_half_a_step)
{
    if (!on_cpu()) skip();
    enum { D = 64 };
    static const int bits[] = {8, 6, 5, 4, 3, 2};
    const dq_simd *isa[3] = {&dq_simd_scalar, dq_cpu_isa_of(dq_os_cpu_features(NULL))->simd,
                             dq_cpu_isa_of(dq_os_cpu_features(NULL) & DQ_CPU_AVX2)->simd};
    for (int i = 0; i < 6 * 4; i++) {
        const int b = bits[i % 6], steps = (1 << b) - 1;
        stage s;
        float x[64 * D];
        draw_channels(x, D, (uint32_t)i * 10007);
        one_head_of(&s, D, b, b, 32, DQ_KV_DITHER);
        const dq_kv_list *list = put_tokens(&s, x, 64);
        float *scratch = calloc((size_t)dq_cpu_kv_scratch_floats(s.kv), sizeof *scratch);
        for (int k = 0; k < 3; k++) {
            const float *y = dq_cpu_kv_read(isa[k], s.kv, list, 0, DQ_K, 0, 64, scratch);
            for (int c = 0; c < D; c++) check_channel(x, c, D, y + c * 64, 1, steps);
            y = dq_cpu_kv_read(isa[k], s.kv, list, 0, DQ_V, 0, 64, scratch);
            for (int c = 0; c < D; c++)
                check_channel(x, c, D, y + c, s.kv->v_cols, steps - (b >= 4));
        }
        free(scratch);
        close_stage(&s);
    }
}

/* Only the scale that f16 cannot hold stays unrounded, and only its page grows. */
TEST(odd_scales_stay_in_their_page)
{
    if (!on_cpu()) skip();
    stage s;
    float x[64 * 32], scale[1];
    int8_t q[32];
    for (int i = 0; i < 64 * 32; i++) x[i] = uniform((uint32_t)i);
    for (int i = 0; i < 32; i++) x[9 * 32 + i] *= 1e-7f;
    one_head(&s, 32, 8, 6, 32);
    const dq_kv_list *list = put_tokens(&s, x, 64);
    assert_true(list->page[0]->arrays[DQ_K].wide && list->page[0]->arrays[DQ_V].wide);
    for (int t = 0; t < 64; t++) {
        const float exact = dq_quant_group_scale(x + t * 32, 32, 8, DQ_ABSMAX, DQ_F32);
        dq_cpu_kv_token_codes(s.kv, list, t, 0, DQ_K, q, scale);
        assert_true(scale[0] == (t == 9 ? exact : dq_f32_from_f16(dq_f16_from_f32(exact))));
    }
    assert_int_equal(s.b->ops->kv_bytes(s.b, s.kv).scales, 2 * 64 * 4);
    x[9 * 32] = 1; /* the same page without it */
    close_stage(&s);
    one_head(&s, 32, 8, 6, 32);
    list = put_tokens(&s, x, 64);
    assert_false(list->page[0]->arrays[DQ_K].wide || list->page[0]->arrays[DQ_V].wide);
    assert_int_equal(s.b->ops->kv_bytes(s.b, s.kv).scales, 2 * 64 * 2);
    close_stage(&s);
}

/* A value that is not finite reaches what reads its run, also as a code. */
TEST(damage_is_seen)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 6; i++) {
        stage s;
        dq_kv_spec spec = {.k_bits = 8, .v_bits = 4, .group = 32};
        open_stage(&s, DQ_PAIR_SHARED_KV, 32, spec, 1);
        int32_t a = new_seq(&s, 1, 0);
        begin_batch(&s);
        add_rows(&s, a, 128);
        (i < 3 ? s.k : s.v)[20 * N_KV * 32 + 3] = bad[i % 3];
        append(&s);
        attend(&s, 16);
        compact_stage(&s);
        expect_no_error(&s);
        int n_bad = 0;
        for (int64_t c = 0; c < out_cols(&s); c++)
            n_bad += isfinite(s.out[127 * out_cols(&s) + c]) == 0;
        assert_true(n_bad > 0);
        close_stage(&s);
    }
}

/* ------------------------------------------------------------------------------------------ bytes */

/* What the cache's pages hold, each page counted once: from the pointers and the sizes that kv.h
 * states. */
static dq_kv_bytes count_bytes(const stage *s)
{
    const dq_kv *kv = s->kv;
    const int64_t d = s->map.head_dim, padded = (d + 15) / 16 * 16;
    const int bits[2] = {s->spec.k_bits, s->spec.v_bits}, bytes = dq_kv_dense_bytes(&s->spec);
    const dq_kv_page *met[512];
    int n_met = 0;
    dq_kv_bytes n = {0};
    n.index = kv->n_seq * (int64_t)sizeof(dq_kv_list *);
    for (int32_t i = 0; i < kv->n_seq * s->map.n_groups; i++) {
        const int g = i % s->map.n_groups;
        if (!kv->seq[i / s->map.n_groups]) continue;
        const dq_kv_list *l = dq_kv_list_of(kv, i / s->map.n_groups, 0, g);
        n.index += (int64_t)sizeof *l + l->capacity * (int64_t)sizeof(dq_kv_page *);
        for (int64_t p = 0; p < l->n_pages; p++) {
            const dq_kv_page *page = l->page[p];
            int known = 0;
            while (known < n_met && met[known] != page) known++;
            if (known < n_met) continue;
            met[n_met++] = page;
            n.index += (int64_t)sizeof *page;
            for (int side = 0; side < 2; side++) {
                const dq_kv_arrays *arrays = &page->arrays[side];
                const int64_t h = kv->heads[g], group = bits[side] > 4 ? d : s->spec.group;
                if (arrays->plain) n.unquantized += h * 64 * (side == DQ_K ? d : padded) * bytes;
                if (arrays->sinks) n.unquantized += h * page->n_sinks * d * bytes;
                if (arrays->codes) n.codes += h * 64 * padded * bits[side] / 8;
                const int64_t runs = (d - 1) / (2 * s->spec.group) + 1; /* of mixed values */
                if (arrays->scale && side == DQ_V && s->spec.quant == DQ_KV_MIXED)
                    n.scales += h * 64 * 2 * runs * (arrays->wide ? 4 : 2);
                else if (arrays->scale && s->spec.quant != DQ_KV_PER_TOKEN)
                    n.scales += h * dq_kv_sets(page, 64) * 2 * d * (arrays->wide ? 4 : 2);
                else if (arrays->scale)
                    n.scales += h * 64 * ((d + group - 1) / group) * (arrays->wide ? 4 : 2);
            }
        }
    }
    return n;
}

static void expect_bytes(stage *s)
{
    const dq_kv_bytes got = s->b->ops->kv_bytes(s->b, s->kv), want = count_bytes(s);
    expect_no_error(s);
    assert_int_equal(got.codes, want.codes);
    assert_int_equal(got.scales, want.scales);
    assert_int_equal(got.unquantized, want.unquantized);
    assert_int_equal(got.index, want.index);
}

TEST(bytes_are_those_allocated)
{
    static const int widths[][2] = {{8, 8}, {4, 3}, {6, 2}, {16, 4}, {8, 16}, {16, 16}};
    const bool cpu = strcmp(test_device(), "cpu") == 0;
    for (int w = 0; w < (cpu ? 30 : 12); w++) {
        const int i = w % 6, size = w < 12 ? 4 : 2;
        stage s;
        dq_kv_spec spec = {
            .k_bits = widths[i][0], .v_bits = widths[i][1], .group = 32, .sink = 4, .recent = 64};
        spec.quant = w >= 24 ? DQ_KV_MIXED : w / 6 % 2 ? DQ_KV_DITHER : DQ_KV_PER_TOKEN;
        spec.dense = w < 12 ? DQ_KV_F32 : w < 18 ? DQ_KV_F16 : DQ_KV_BF16;
        open_stage(&s, DQ_PAIR_HALVES, 24, spec, 2);
        int32_t a = new_seq(&s, 1, 0);
        stream(&s, a, 63);
        expect_bytes(&s);
        stream(&s, a, 137);
        expect_bytes(&s);
        const dq_kv_bytes cached = s.b->ops->kv_bytes(s.b, s.kv);
        if (i <
            5) { /* 4 .. 127 are codes; two pages of four heads, but the sinks, stay as they are */
            assert_int_equal(cached.tokens_coded, 124 * s.map.n_groups);
            assert_int_equal(cached.codes,
                             2 * 64 * N_KV * 32 * (widths[i][0] % 16 + widths[i][1] % 16) / 8);
        }
        if (i < 3)
            assert_int_equal(cached.unquantized, N_KV * size * (2 * 64 * (24 + 32) + 4 * 24 * 2));
        assert_int_equal(cached.tokens, 200 * s.map.n_groups);
        int32_t b = fork_seq(&s, a, 2);
        assert_int_equal(s.b->ops->kv_bytes(s.b, s.kv).codes, cached.codes);
        assert_int_equal(s.b->ops->kv_bytes(s.b, s.kv).unquantized, cached.unquantized);
        stream(&s, b, 70); /* makes codes in a page that `a` holds, too */
        expect_bytes(&s);
        stream(&s, a, 71); /* now both read them so */
        expect_bytes(&s);
        int32_t kept[200];
        for (int32_t k = 0; k < 150; k++) kept[k] = k < 70 ? k : k + 50;
        for (int g = 0; g < s.map.n_groups; g++) keep(&s, a, g, kept, 150 - 3 * g);
        expect_bytes(&s);
        stream(&s, a, 40);
        expect_bytes(&s);
        s.b->ops->kv_rewind(s.b, s.kv, b, 265);
        expect_bytes(&s);
        s.b->ops->kv_seq_free(s.b, s.kv, a);
        expect_bytes(&s);
        s.b->ops->kv_seq_free(s.b, s.kv, b);
        expect_bytes(&s);
        assert_int_equal(s.b->ops->kv_bytes(s.b, s.kv).unquantized, 0);
        assert_int_equal(s.b->ops->kv_bytes(s.b, s.kv).codes, 0);
        close_stage(&s);
    }
}

/* A page of forks gives up its unquantized half when the last of them needs it no more. */
TEST(forks_share_coded_pages)
{
    dq_kv_spec spec = {.k_bits = 4, .v_bits = 4, .group = 32, .sink = 4, .recent = 64};
    stage s;
    open_stage(&s, DQ_PAIR_NONE, 32, spec, 1);
    int32_t a = new_seq(&s, 1, 0);
    stream(&s, a, 192);
    int32_t b = fork_seq(&s, a, 2), c = fork_seq(&s, a, 3);
    const dq_kv_page *shared = dq_kv_list_of(s.kv, a, 0, 0)->page[2];
    assert_non_null(shared->arrays[DQ_K].plain);
    stream(&s, b, 70);
    assert_ptr_equal(dq_kv_list_of(s.kv, b, 0, 0)->page[2], shared);
    assert_non_null(shared->arrays[DQ_K].plain);
    stream(&s, c, 80);
    assert_non_null(shared->arrays[DQ_K].plain);
    s.b->ops->kv_seq_free(s.b, s.kv, a);
    assert_ptr_equal(dq_kv_list_of(s.kv, c, 0, 0)->page[2], shared);
    assert_null(shared->arrays[DQ_K].plain);
    stream_checked(&s, b, 3);
    stream_checked(&s, c, 3);
    expect_bytes(&s);
    close_stage(&s);
}

/* Codes and scales of every coded token before and after tokens are dropped. */
static void move_some(dq_kv_quant code)
{
    dq_kv_spec spec = {.k_bits = 6, .v_bits = 3, .group = 20, .sink = 3, .recent = 10};
    stage s;
    spec.quant = code;
    open_stage(&s, DQ_PAIR_SHARED_KV, 80, spec, 1);
    int32_t a = new_seq(&s, 1, 0);
    begin_batch(&s);
    add_rows(&s, a, 230);
    for (int c = 0; c < 80; c++) s.v[40 * N_KV * 80 + c] *= 1e-8f; /* its page has f32 scales */
    append(&s);
    compact_stage(&s);
    int32_t fork = fork_seq(&s, a, 1), kept[150];
    int64_t n = 0;
    for (int32_t i = 0; i < 230; i++) {
        if (i % 3 == 0 || i == 40 || i > 200) kept[n++] = i;
    }
    keep(&s, a, 0, kept, n);
    const dq_kv_list *now = dq_kv_list_of(s.kv, a, 0, 0), *was = dq_kv_list_of(s.kv, fork, 0, 0);
    int checked = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(dq_kv_pos(now, i), kept[i]);
        if (kept[i] < 3 || kept[i] >= dq_kv_coded_end(&spec, 230)) continue;
        for (int side = DQ_K; side <= DQ_V; side++) {
            int8_t q[2][80];
            float scale[2][160];
            memset(scale, 0, sizeof scale);
            dq_cpu_kv_token_codes(s.kv, was, kept[i], 0, side, q[0], scale[0]);
            dq_cpu_kv_token_codes(s.kv, now, i, 0, side, q[1], scale[1]);
            assert_memory_equal(q[0], q[1], sizeof q[0]);
            assert_memory_equal(scale[0], scale[1], sizeof scale[0]);
            checked++;
        }
    }
    assert_true(checked > 100);
    if (code == DQ_KV_PER_CHANNEL) /* tokens of three pages: three sets with scales of their own */
        assert_int_equal(dq_kv_sets(now->page[0], DQ_PAGE_TOKENS), 3);
    expect_bytes(&s);
    close_stage(&s);
}

TEST(codes_are_moved)
{
    if (!on_cpu()) skip();
    move_some(DQ_KV_PER_TOKEN);
    move_some(DQ_KV_PER_CHANNEL);
    move_some(DQ_KV_MIXED);
}

/* Tokens of three layers, the same in each, into a cache of such widths. */
static dq_kv *three_layers(stage *s, dq_kv_spec spec)
{
    dq_kv *kv = s->b->ops->kv_new(s->b, &s->map, 3, &spec);
    assert_non_null(kv);
    const int32_t seq = s->b->ops->kv_seq_new(s->b, kv);
    const int64_t n = s->batch.n_rows, cols = (int64_t)N_KV * s->map.head_dim;
    assert_int_equal(seq, 0);
    for (int l = 0; l < 3; l++) {
        s->b->ops->kv_append(s->b, kv, l, &s->batch, mat(s->both[K].device, n, cols),
                             mat(s->both[V].device, n, cols), DQ_NUM_F32);
        s->b->ops->kv_compact(s->b, kv, l, &s->batch, 0);
    }
    expect_no_error(s);
    return kv;
}

/* A head's codes are those of a cache that has its width everywhere, and pages hold no more than all heads' codes. */
TEST(widths_by_layer)
{
    if (!on_cpu()) skip();
    static const int bits[3][3] = {
        {3, 3, 6}, {5, 2, 3}, {5, 2, 4}}; /* keys of either map, values */
    dq_kv_spec spec = {.k_bits = 8, .v_bits = 8, .group = 32, .sink = 3, .quant = DQ_KV_DITHER};
    stage s;
    open_stage(&s, DQ_PAIR_HALVES, 24, spec, 1);
    new_seq(&s, 1, 0);
    begin_batch(&s);
    add_rows(&s, 0, 192);
    append(&s);
    dq_kv *kv = three_layers(&s, with_widths(spec, "3|5+2*:6|3|4", 3));
    int64_t codes = 0;
    for (int i = 0; i < 3 * 2 * N_KV; i++) {
        const int layer = i / N_KV / 2, side = i / N_KV % 2, head = i % N_KV;
        const int b = bits[layer][side ? 2 : head >= N_KV / 2];
        dq_kv_spec alike = spec;
        alike.k_bits = alike.v_bits = b;
        dq_kv *other = three_layers(&s, alike);
        codes += 3 * 64 * 32 * b / 8;
        for (int t = 3; t < 192; t++) {
            int8_t q[2][32];
            float number[2][48];
            dq_cpu_kv_token_codes(kv, dq_kv_list_of(kv, 0, layer, s.map.group[head]), t, head, side,
                                  q[0], number[0]);
            dq_cpu_kv_token_codes(other, dq_kv_list_of(other, 0, layer, s.map.group[head]), t, head,
                                  side, q[1], number[1]);
            assert_memory_equal(q[0], q[1], 24);
            assert_memory_equal(number[0], number[1], sizeof number[0]);
        }
        s.b->ops->kv_free(s.b, other);
    }
    assert_int_equal(s.b->ops->kv_bytes(s.b, kv).codes, codes);
    s.b->ops->kv_free(s.b, kv);
    close_stage(&s);
}

/* Every allocation of a scene fails once: an error each time, never a crash or a leak. */
static void exhaust_memory(dq_kv_quant code)
{
    for (int64_t n = 1; n < 1000; n++) {
        stage s;
        dq_kv_spec spec = {.k_bits = 4, .v_bits = 8, .group = 16, .sink = 4, .recent = 3};
        spec.quant = code;
        open_stage(&s, DQ_PAIR_HALVES, 16, spec, 2);
        int32_t a = new_seq(&s, 1, 0);
        begin_batch(&s);
        add_rows(&s, a, 140);
        for (int c = 0; c < N_KV * 16; c++) s.k[70 * N_KV * 16 + c] *= 1e-9f;
        dq_alloc_fail_at(n);
        append(&s);
        attend(&s, 16);
        compact_stage(&s);
        int32_t fork = s.b->ops->kv_fork(s.b, s.kv, 0), kept[3] = {0, 5, 9};
        s.b->ops->kv_keep(s.b, s.kv, 0, 0, 0, kept, 3);
        dq_alloc_fail_at(0);
        dq_err err = {0};
        const dq_status status = dq_backend_sync(s.b, &err);
        assert_true(status == DQ_OK || status == DQ_RESOURCE);
        expect_bytes(&s);
        if (fork >= 0) s.b->ops->kv_seq_free(s.b, s.kv, fork);
        close_stage(&s);
        if (status == DQ_OK) return;
    }
    fail_msg("allocations never ended");
}

TEST(exhausted_memory)
{
    exhaust_memory(DQ_KV_PER_TOKEN);
    exhaust_memory(DQ_KV_PER_CHANNEL);
    exhaust_memory(DQ_KV_MIXED);
}

/* Those that read codes know how the CPU stores them. */
