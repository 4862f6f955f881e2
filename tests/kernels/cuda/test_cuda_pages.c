/* The CUDA backend's KV cache against the CPU's, on the simulated device: codes, scales and bookkeeping bit
 * for bit, and memory that ends in the middle of an append.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/page_codes.h"
#include "tests/kernels/cuda/pair_rig.h"
#include "tests/rigs/suite.h"

/* Damage is NaN, of whatever bits. */
static void name_nans(float *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = isnan(x[i]) ? NAN : x[i];
}

static void compare_token(pair *p, const dq_kv_list *const list[2], int64_t i, int head, int side)
{
    int8_t q[2][128];
    float scale[2][256];
    const dq_page page = dq_cuda_page(p->kv[CUDA], list[CUDA]->page[i / DQ_PAGE_TOKENS]);
    dq_page_form form[2];
    dq_cuda_forms(form, p->kv[CUDA]);
    dq_cpu_kv_token_codes(p->kv[CPU], list[CPU], i, head, side, q[CPU], scale[CPU]);
    assert_int_equal(dq_test_page_codes(q[CUDA], scale[CUDA], &page, &form[side], side,
                                        p->kv[CUDA]->slot[head], (int)(i % DQ_PAGE_TOKENS)),
                     cudaSuccess);
    for (int k = CPU; k <= CUDA; k++)
        name_nans(scale[k], form[side].n_scales + form[side].set_numbers);
    /* of per-channel codes the padding holds anything */
    assert_memory_equal(q[CPU], q[CUDA],
                        (size_t)(form[side].set_numbers ? form[side].dim : form[side].cols));
    assert_memory_equal(scale[CPU], scale[CUDA],
                        (size_t)(form[side].n_scales + form[side].set_numbers) * sizeof(float));
}

static void compare_bytes(pair *p)
{
    const dq_kv_bytes a = p->b[CPU]->ops->kv_bytes(p->b[CPU], p->kv[CPU]),
                      b = p->b[CUDA]->ops->kv_bytes(p->b[CUDA], p->kv[CUDA]);
    assert_memory_equal(&a, &b, sizeof a);
}

/* Every coded token of a sequence; how many codes. */
static int compare_codes(pair *p, int32_t seq)
{
    int n = 0;
    pair_sync(p);
    compare_bytes(p);
    for (int head = 0; head < PAIR_KV; head++) {
        const dq_kv_list *const list[2] = {
            dq_kv_list_of(p->kv[CPU], seq, p->layer, p->map.group[head]),
            dq_kv_list_of(p->kv[CUDA], seq, p->layer, p->map.group[head])};
        assert_int_equal(list[CPU]->count, list[CUDA]->count);
        for (int64_t i = 0; i < list[CPU]->count; i++) {
            const dq_kv_page *page = list[CPU]->page[i / DQ_PAGE_TOKENS];
            const dq_kv_page *other = list[CUDA]->page[i / DQ_PAGE_TOKENS];
            assert_int_equal(dq_kv_pos(list[CPU], i), dq_kv_pos(list[CUDA], i));
            assert_true(page->coded == other->coded && page->n_sinks == other->n_sinks &&
                        page->begins == other->begins);
            for (int side = DQ_K; side <= DQ_V; side++) {
                assert_int_equal(page->arrays[side].wide, other->arrays[side].wide);
                if (!page->arrays[side].codes || i % DQ_PAGE_TOKENS < page->n_sinks ||
                    i % DQ_PAGE_TOKENS >= page->coded)
                    continue;
                compare_token(p, list, i, head, side);
                n++;
            }
        }
    }
    return n;
}

/* A slot without codes holds zeros there, whatever the memory was before. */
static void check_uncoded(pair *p, const dq_kv_page *own, int group, int side, int t)
{
    const dq_page page = dq_cuda_page(p->kv[CUDA], own);
    dq_page_form form[2];
    int8_t q[128];
    float scale[256];
    dq_cuda_forms(form, p->kv[CUDA]);
    const dq_page_form *f = &form[side];
    if (!own->arrays[side].codes || f->set_numbers || (t >= own->n_sinks && t < own->coded)) return;
    for (int slot = 0; slot < p->kv[CUDA]->heads[group]; slot++) {
        const int bits = dq_kv_bits_of(p->kv[CUDA], own, side, slot);
        const int zero = side == DQ_V && bits == 8 ? 0 : -(1 << (bits - 1));
        assert_int_equal(dq_test_page_codes(q, scale, &page, f, side, slot, t), cudaSuccess);
        for (int c = 0; c < f->cols; c++) assert_int_equal(q[c], zero);
        for (int i = 0; i < f->n_scales; i++) assert_true(scale[i] == 0);
    }
}

/* What no token fills is zero: tensor cores multiply it by zero. */
static void check_empty(pair *p, int32_t seq)
{
    const dq_kv *kv = p->kv[CUDA];
    for (int g = 0; g < p->map.n_groups; g++) {
        const dq_kv_list *list = dq_kv_list_of(kv, seq, p->layer, g);
        for (int64_t i = 0; i < list->n_pages * DQ_PAGE_TOKENS; i++) {
            const dq_kv_page *page = list->page[i / DQ_PAGE_TOKENS];
            for (int side = DQ_K; side <= DQ_V; side++) {
                const int64_t stride =
                    kv->form[side].plain_floats / DQ_PAGE_TOKENS * kv->dense_bytes;
                uint8_t slot[128 * sizeof(float)];
                check_uncoded(p, page, g, side, (int)(i % DQ_PAGE_TOKENS));
                for (int h = 0; i >= list->count && page->arrays[side].plain && h < kv->heads[g];
                     h++) {
                    const uint8_t *at = page->arrays[side].plain;
                    at += (h * DQ_PAGE_TOKENS + i % DQ_PAGE_TOKENS) * stride;
                    p->b[CUDA]->ops->get(p->b[CUDA], slot, at, (size_t)stride);
                    for (int64_t k = 0; k < stride; k++) assert_int_equal(slot[k], 0);
                }
            }
        }
    }
}

/* Caches whose codes are of one kind: twelve in f32, then three of each type of two bytes. */
static void compare_caches(dq_kv_spec (*spec_at)(int i))
{
    for (int i = 0; i < 18; i++) {
        pair p;
        dq_kv_spec spec = spec_at(i);
        spec.dense = i < 12 ? DQ_KV_F32 : i % 2 ? DQ_KV_F16 : DQ_KV_BF16;
        const float loud = spec.dense == DQ_KV_F16 ? 1e4f : 1e7f;
        pair_open(&p, pairings[i % N_PAIRINGS], dims[i % 6], spec);
        const int32_t a = pair_seq(&p, 0);
        pair_begin(&p);
        pair_rows(&p, a, 200);
        for (int c = 0; c < PAIR_KV * dims[i % 6]; c++) { /* scales that f16 cannot hold */
            p.host[A_K][9 * PAIR_KV * dims[i % 6] + c] *= 1e-8f;
            p.host[A_V][70 * PAIR_KV * dims[i % 6] + c] *= loud;
            p.host[A_V][71 * PAIR_KV * dims[i % 6] + c] = 0;
            if (i % 2) p.host[A_K][100 * PAIR_KV * dims[i % 6] + c] *= 1e-4f; /* subnormal there */
        }
        for (int t = 64; t < 128; t++) { /* of per-channel codes: a step that is subnormal there */
            float *k = p.host[A_K] + t * PAIR_KV * dims[i % 6];
            k[3] *= 1e-6f;
            k[4] = k[4] * 1e-3f +
                   1000.3f; /* lows that f16 would move by many steps, by half of one, */
            k[5] = k[5] * 2 + 9.3f;
            k[6] = 0.3f; /* and where there is no step */
        }
        for (int t = 0; t < 64; t++) { /* up to one step, of 8 bits */
            float *v = p.host[A_V] + t * PAIR_KV * dims[i % 6];
            for (int c = 0; c < 8; c++) v[c] = v[c] * 2 + 40.1f;
        }
        pair_append(&p);
        compare_codes(&p, a);
        check_empty(&p, a);
        pair_compact(&p);
        int n = compare_codes(&p, a);
        assert_true(n > 100 || p.spec.sink == 70 || (p.spec.k_bits == 16 && p.spec.v_bits == 16));
        int32_t kept[200];
        for (int32_t k = 0; k < 130; k++) kept[k] = k < 66 ? k : k + 20;
        const int32_t fork = pair_fork(&p, a);
        for (int g = 0; g < p.map.n_groups; g++) pair_keep(&p, a, g, kept + g % 2, 130 - 3 * g);
        check_empty(&p, a);
        pair_begin(&p);
        pair_rows(&p, a, 100); /* two sets of one page are due at once */
        pair_rows(&p, fork, 90);
        pair_append(&p);
        pair_compact(&p);
        compare_codes(&p, a);
        compare_codes(&p, fork);
        check_empty(&p, a);
        check_empty(&p, fork);
        pair_close(&p);
    }
}

TEST(codes_are_equal)
{
    compare_caches(spec_of);
}

/* Numbers that a type cannot hold end the append in both, with the same words.
 */
TEST(range_is_refused)
{
    static const float given[] = {65519.996f, 65520.0f, -1e30f, INFINITY, 3.4e38f};
    for (int i = 0; i < 20; i++) {
        pair p;
        dq_kv_spec spec = dq_kv_plain;
        dq_err err[2] = {{0}, {0}};
        spec.dense = i / 10 ? DQ_KV_BF16 : DQ_KV_F16;
        pair_open(&p, DQ_PAIR_ADJACENT, 32, spec);
        const int32_t a = pair_seq(&p, 0);
        pair_begin(&p);
        pair_rows(&p, a, 70);
        p.host[i % 2 ? A_V : A_K][66 * PAIR_KV * 32 + 40] = given[i / 2 % 5];
        pair_append(&p);
        for (int k = CPU; k <= CUDA; k++) {
            dq_backend_sync(p.b[k], &err[k]);
            assert_int_equal(p.b[k]->ops->kv_count(p.b[k], p.kv[k], a, 0, 0, NULL),
                             err[k].code == DQ_OK ? 70 : 0);
            const dq_kv_bytes held = p.b[k]->ops->kv_bytes(p.b[k], p.kv[k]);
            assert_true((err[k].code == DQ_OK) == (held.unquantized > 0));
        }
        assert_int_equal(err[CPU].code, err[CUDA].code);
        assert_string_equal(err[CPU].text, err[CUDA].text);
        pair_close(&p);
    }
}

TEST(page_codes_are_equal)
{
    compare_caches(page_spec_of);
}

TEST(mixed_codes_are_equal)
{
    compare_caches(mixed_spec_of);
}

/* Codes and numbers of damaged pages, whole and when some of their tokens have been evicted; per-token codes, too. */
TEST(damaged_codes_are_equal)
{
    for (int i = 0; i < 6 * N_DAMAGES; i++) {
        pair p;
        dq_kv_spec spec = damaged_spec_of(i, i >= 4 * N_DAMAGES);
        if (i / (2 * N_DAMAGES) == 1) {
            spec = spec_of(i % 2);
            spec.k_bits = i % 3 ? 8 : 4;
        }
        spec.dense = i / N_DAMAGES % 2 ? DQ_KV_BF16 : DQ_KV_F32; /* f16 ends before the damage */
        pair_open(&p, pairings[i / 2 % N_PAIRINGS], dims[i % 6], spec);
        pair_damaged_scene(&p, i, 20);
        assert_true(compare_codes(&p, 0) > 100);
        pair_close(&p);
    }
}

/* Memory ends in the middle of an append: the cache holds what it held, and goes on when there is more. */
TEST(exhausted_device)
{
    if (!simulated()) skip(); /* nobody else's memory is taken away */
    for (int step = 0; step < 12; step++) {
        pair p;
        dq_err err = {0};
        dq_kv_spec spec = step % 2 ? page_spec_of(1) : spec_of(1);
        spec.dense = dense_of(step);
        pair_open(&p, DQ_PAIR_HALVES, 64, spec);
        const int32_t a = pair_seq(&p, 0);
        pair_begin(&p);
        pair_rows(&p, a, 30);
        pair_append(&p);
        pair_sync(&p);
        pair_begin(&p);
        pair_rows(&p, a, 290);
        dq_simt_set_memory(dq_simt_memory_used() + (size_t)(step / 2) * 60000);
        const dq_ops *op = p.b[CUDA]->ops;
        op->kv_append(p.b[CUDA], p.kv[CUDA], 0, &p.batch, pair_mat(&p, CUDA, A_K),
                      pair_mat(&p, CUDA, A_V), DQ_NUM_F32);
        const dq_status status = dq_backend_sync(p.b[CUDA], &err);
        dq_simt_set_memory((size_t)1 << 30);
        assert_int_equal(status, DQ_RESOURCE);
        assert_int_equal(op->kv_count(p.b[CUDA], p.kv[CUDA], a, 0, 0, NULL), 30);
        pair_append(&p);
        attend_both(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_outputs(&p);
        compare_codes(&p, a);
        for (int k = CPU; k <= CUDA; k++) {
            p.b[k]->ops->kv_seq_free(p.b[k], p.kv[k], a);
            assert_int_equal(p.b[k]->ops->kv_bytes(p.b[k], p.kv[k]).unquantized, 0);
        }
        pair_close(&p);
    }
}

/* A page has the widths of 16 heads; no pairing makes groups so large, so this one is made by hand. */
TEST(large_groups_are_refused)
{
    static const int16_t one_group[DQ_PAGE_WIDTHS + 1] = {0};
    dq_backend *b = NULL;
    for (int heads = DQ_PAGE_WIDTHS; heads <= DQ_PAGE_WIDTHS + 1; heads++) {
        dq_arena *arena = dq_arena_new();
        dq_kv_spec spec = dq_kv_plain;
        dq_head_order map;
        dq_err err = {0};
        assert_int_equal(dq_head_order_build(&map, DQ_PAIR_NONE, heads, heads, 32, 0, arena, &err),
                         DQ_OK);
        map.group = one_group;
        map.n_groups = 1;
        spec.quant = DQ_KV_PER_CHANNEL;
        strcpy(spec.widths, "4|3:4");
        spec.k_bits = spec.v_bits = 4;
        assert_int_equal(dq_backend_open(&b, rig_name(), 1, &err), DQ_OK);
        dq_kv *kv = b->ops->kv_new(b, &map, 2, &spec);
        if (heads <= DQ_PAGE_WIDTHS) {
            assert_non_null(kv);
            b->ops->kv_free(b, kv);
        } else {
            assert_null(kv);
            assert_int_equal(dq_backend_sync(b, &err), DQ_MISMATCH);
            assert_string_equal(err.text,
                                "the cuda backend has widths of the KV cache by layer for "
                                "groups of at most 16 KV heads, and this model has 17");
            assert_int_equal(err.remedy[0].code, DQ_REMEDY_CPU);
        }
        dq_backend_close(b);
        dq_arena_free(arena);
    }
}

/* With an argument: tests of that name. */

NEEDS(rig_can_run)
