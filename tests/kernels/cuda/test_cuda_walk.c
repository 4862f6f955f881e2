/* A walk at random over what is done to caches: both backends hold and read the same after every step, and after
 * steps of which the device's memory or the host's was too small.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/pair_rig.h"
#include "tests/rigs/suite.h"

enum { FIRST = 0, WALKS = 5, CACHES = 2, LAYERS = 2, LONGEST = 300, WALK_DIM = 16 };

/* Two caches of two layers on each backend; the pair has one of them at a time. */
typedef struct walk {
    pair p;
    uint64_t seed;
    size_t used;
    int at;
    dq_kv *kv[CACHES][2];
    int32_t length[CACHES][PAIR_SEQ];
    bool live[CACHES][PAIR_SEQ];
    bool failed; /* pages may differ where a step was done again */
    int n_refused, n_failed, n_attended;
} walk;

static int below(walk *w, int n)
{
    w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((w->seed >> 33) % (uint64_t)n);
}

static void choose_cache(walk *w, int i)
{
    memcpy(w->length[w->at], w->p.length, sizeof w->p.length);
    w->at = i;
    memcpy(w->p.length, w->length[i], sizeof w->p.length);
    for (int k = CPU; k <= CUDA; k++) w->p.kv[k] = w->kv[i][k];
}

static void walk_open(walk *w, int i, dq_kv_spec spec, dq_num num)
{
    memset(w, 0, sizeof *w);
    w->used = dq_simt_memory_used();
    spec.num = num;
    if (num != DQ_NUM_F32 && spec.quant != DQ_KV_MIXED) spec.group = 32;
    pair_open(&w->p, pairings[i % N_PAIRINGS], WALK_DIM, spec);
    w->p.math = dq_backend_math(w->p.b[CUDA], num);
    w->seed = (uint64_t)i * 977 + 1;
    for (int k = CPU; k <= CUDA; k++) {
        w->kv[0][k] = w->p.kv[k];
        dq_kv_spec other = spec;
        other.widths[0] = 0;
        other.dense = dense_of(i + 1);
        for (int c = 0; c < CACHES; c++) {
            if (c == 0) w->p.b[k]->ops->kv_free(w->p.b[k], w->p.kv[k]);
            w->kv[c][k] =
                w->p.b[k]->ops->kv_new(w->p.b[k], &w->p.map, LAYERS, c ? &other : &w->p.spec);
            assert_non_null(w->kv[c][k]);
        }
        w->p.kv[k] = w->kv[0][k];
    }
}

static void walk_close(walk *w)
{
    choose_cache(w, 0);
    for (int k = CPU; k <= CUDA; k++) w->p.b[k]->ops->kv_free(w->p.b[k], w->kv[1][k]);
    pair_close(&w->p);
    assert_int_equal(dq_simt_memory_used(), w->used);
}

/* A live sequence, -1: none. */
static int32_t any(walk *w)
{
    const int first = below(w, PAIR_SEQ);
    for (int i = 0; i < PAIR_SEQ; i++)
        if (w->live[w->at][(first + i) % PAIR_SEQ]) return (first + i) % PAIR_SEQ;
    return -1;
}

static int n_live(const walk *w)
{
    int n = 0;
    for (int i = 0; i < PAIR_SEQ; i++) n += w->live[w->at][i];
    return n;
}

/* ---- what both hold */

static void compare(walk *w, const char *what, const double *a, const double *b, int64_t n,
                    double tolerance)
{
    double max = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, fabs(a[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * max))
            fail_msg("cache %d: %s, number %d of %d: %.9g, not %.9g", w->at, what, (int)i, (int)n,
                     b[i], a[i]);
}

static void compare_list(walk *w, int32_t seq, int layer, int group)
{
    static double norm[2][4 * LONGEST], cell[2][4 * LONGEST * 2 * PAIR_KV * WALK_DIM];
    static float row[4 * LONGEST * 2 * PAIR_KV * WALK_DIM];
    static const float freq[WALK_DIM / 2] = {1, 0.5f, 0.25f, 0.125f, 0.06f, 0.03f, 0.015f, 0.007f};
    const dq_rope rope = {.dim = WALK_DIM, .inv_freq = freq, .amplitude = 1.0f};
    pair *p = &w->p;
    int64_t n = 0;
    const int32_t t = p->length[seq]; /* what a next row reads */
    for (int k = CPU; k <= CUDA; k++) {
        const dq_ops *op = p->b[k]->ops;
        const dq_kv_list *list = dq_kv_list_of(p->kv[k], seq, layer, group);
        assert_true(k == CPU || n == list->count);
        n = list->count;
        const int32_t at = n ? dq_kv_pos(list, n - 1) + dq_kv_ahead(&p->kv[k]->spec) : t;
        if (n == 0) return;
        op->kv_key_norms(p->b[k], p->kv[k], seq, layer, group, at, norm[k]);
        op->kv_rows(p->b[k], p->kv[k], seq, layer, group, at, &rope, row);
        dq_err err = {0};
        if (dq_backend_sync(p->b[k], &err) != DQ_OK) {
            if (k == CPU) {
                op = p->b[CUDA]->ops;
                op->kv_key_norms(p->b[CUDA], p->kv[CUDA], seq, layer, group, at, norm[k]);
                if (w->failed) {
                    dq_backend_sync(p->b[CUDA], &err);
                    return;
                }
                assert_int_not_equal(dq_backend_sync(p->b[CUDA], &err), DQ_OK);
                return;
            }
            if (w->failed) return;
            fail_msg("%s: %s", op->name, err.text);
        }
        const int64_t cells = n * 2 * p->kv[k]->heads[group] * WALK_DIM;
        for (int64_t i = 0; i < cells; i++) cell[k][i] = (double)row[i];
    }
    compare(w, "norms", norm[CPU], norm[CUDA], n, 1e-12);
    compare(w, "rows", cell[CPU], cell[CUDA], n * 2 * p->kv[CPU]->heads[group] * WALK_DIM, 1e-5);
}

static void compare_caches(walk *w)
{
    pair *p = &w->p;
    pair_sync(p);
    const dq_kv_bytes a = p->b[CPU]->ops->kv_bytes(p->b[CPU], p->kv[CPU]),
                      b = p->b[CUDA]->ops->kv_bytes(p->b[CUDA], p->kv[CUDA]);
    if (!w->failed) assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.tokens, b.tokens);
    for (int32_t s = 0; s < PAIR_SEQ; s++)
        for (int l = 0; w->live[w->at][s] && l < LAYERS * p->map.n_groups; l++)
            if (below(w, 6) == 0) compare_list(w, s, l / p->map.n_groups, l % p->map.n_groups);
}

/* ---- steps */

/* From now on the device has little memory left, or an allocation of the host fails. */
static bool starve(walk *w, bool fails)
{
    if (!fails) return false;
    if (below(w, 2))
        dq_simt_set_memory(dq_simt_memory_used() + (size_t)below(w, 8) * 3000);
    else
        dq_alloc_fail_at(1 + below(w, 30));
    return true;
}

/* Whether what the device was asked for failed. */
static bool fed(walk *w)
{
    dq_err err = {0};
    dq_simt_set_memory((size_t)1 << 30);
    const dq_status status = dq_backend_sync(w->p.b[CUDA], &err);
    dq_alloc_fail_at(0);
    if (status != DQ_OK && status != DQ_RESOURCE) fail_msg("%s", err.text);
    if (status != DQ_OK) {
        w->failed = true;
        w->n_failed++;
    }
    return status != DQ_OK;
}

static void put_rows(walk *w)
{
    pair *p = &w->p;
    for (int k = CPU; k <= CUDA; k++)
        for (int i = A_Q; i < A_OUT; i++) {
            const dq_mat m = pair_mat(p, k, i);
            p->b[k]->ops->put(p->b[k], m.p, p->host[i], (size_t)(m.rows * m.cols) * sizeof(float));
        }
    pair_sync(p);
}

static void append_to(walk *w, int k)
{
    pair *p = &w->p;
    p->b[k]->ops->kv_append(p->b[k], p->kv[k], p->layer, &p->batch, pair_mat(p, k, A_K),
                            pair_mat(p, k, A_V), DQ_NUM_F32);
}

static void attend(walk *w)
{
    static const dq_logit_spec logits[] = {
        {16, DQ_GRANULARITY_ROW}, {8, DQ_GRANULARITY_HEAD}, {6, DQ_GRANULARITY_TILE}};
    pair *p = &w->p;
    if (p->batch.n_rows == 0) return;
    const int i = below(w, p->math.qk == DQ_NUM_F32 ? 3 : 2);
    attend_both(p, logits[i], NULL, NULL);
    if (p->math.qk == DQ_NUM_F32)
        compare_outputs(p);
    else /* a rounded logit may be a step off */
        compare_within(p, i ? 5e-2 : 2e-3, false);
    w->n_attended++;
}

/* Whether a row at t may read a sequence. */
static bool reads(walk *w, int32_t seq, int32_t t)
{
    pair *p = &w->p;
    bool ok = true;
    for (int k = CPU; k <= CUDA; k++) {
        dq_err err = {0};
        for (int g = 0; g < p->map.n_groups; g++) {
            int64_t end;
            const dq_kv_list *list = dq_kv_list_of(p->kv[k], seq, p->layer, g);
            ok = dq_kv_read_as_at(p->b[k], p->kv[k], list, t, &end) && ok;
        }
        dq_backend_sync(p->b[k], &err);
    }
    return ok;
}

/* One row or two at the last positions of every sequence, which stand in the caches already. */
static void attend_again(walk *w)
{
    pair *p = &w->p;
    p->layer = below(w, LAYERS);
    pair_begin(p);
    for (int32_t s = 0; s < PAIR_SEQ; s++) {
        const int n = below(w, 3);
        if (!w->live[w->at][s] || p->length[s] < 2 || !reads(w, s, p->length[s] - 1) ||
            !reads(w, s, p->length[s] - (n ? n : 1)))
            continue;
        p->length[s] -= n;
        pair_rows(p, s, n);
    }
    put_rows(w);
    attend(w);
    p->layer = 0;
}

/* Rows to some sequences, none to others of the batch; all layers. */
static void append(walk *w, bool fails)
{
    pair *p = &w->p;
    int left = 100;
    pair_begin(p);
    for (int32_t s = 0; s < PAIR_SEQ; s++) {
        if (!w->live[w->at][s] || below(w, 4) == 0) continue;
        int n = below(w, 5) == 0 ? 0 : below(w, 2) ? 1 + below(w, 2) : 1 + below(w, 80);
        if (n > left) n = left;
        if (below(w, 8) == 0) p->length[s] += below(w, 100);
        left -= n;
        pair_rows(p, s, n);
    }
    if (below(w, 8) == 0 && p->batch.n_rows && p->math.qk == DQ_NUM_F32) {
        /* a scale that stays f32, but of f16 */
        const int64_t cols = (int64_t)PAIR_KV * WALK_DIM;
        const float large = p->kv[CPU]->spec.dense == DQ_KV_F16 ? 6e4f : 3e7f;
        p->host[below(w, 2) ? A_K : A_V]
               [below(w, (int)p->batch.n_rows) * cols + below(w, (int)cols)] = large;
    }
    put_rows(w);
    const bool compacts = below(w, 2);
    for (p->layer = 0; p->layer < LAYERS; p->layer++) {
        if (starve(w, fails && below(w, 2))) {
            append_to(w, CUDA);
            if (fed(w)) {
                if (below(w, 2)) continue; /* given up */
                append_to(w, CUDA);
            }
            append_to(w, CPU);
        } else {
            append_to(w, CPU);
            append_to(w, CUDA);
        }
        attend(w);
        if (!compacts) continue;
        p->b[CPU]->ops->kv_compact(p->b[CPU], p->kv[CPU], p->layer, &p->batch, p->attn.window);
        const bool starved = starve(w, fails && below(w, 2));
        p->b[CUDA]->ops->kv_compact(p->b[CUDA], p->kv[CUDA], p->layer, &p->batch, p->attn.window);
        if (starved && fed(w))
            p->b[CUDA]->ops->kv_compact(p->b[CUDA], p->kv[CUDA], p->layer, &p->batch,
                                        p->attn.window);
        pair_sync(p);
    }
    p->layer = 0;
}

static void keep(walk *w, bool fails)
{
    pair *p = &w->p;
    const int32_t seq = any(w);
    if (seq < 0) return;
    const int layer = below(w, LAYERS), group = below(w, p->map.n_groups), share = 1 + below(w, 10);
    const int64_t count = dq_kv_list_of(p->kv[CPU], seq, layer, group)->count;
    const int64_t from = below(w, 2) ? 0 : below(w, (int)count + 1),
                  last = below(w, 4) ? count - 1 : count;
    static int32_t kept[4 * LONGEST];
    int64_t n = 0;
    for (int32_t i = 0; i < count; i++)
        if (i < from || i == last || below(w, 10) < share) kept[n++] = i;
    p->layer = layer;
    p->b[CPU]->ops->kv_keep(p->b[CPU], p->kv[CPU], seq, layer, group, kept, n);
    const bool starved = starve(w, fails);
    p->b[CUDA]->ops->kv_keep(p->b[CUDA], p->kv[CUDA], seq, layer, group, kept, n);
    if (starved && fed(w))
        p->b[CUDA]->ops->kv_keep(p->b[CUDA], p->kv[CUDA], seq, layer, group, kept, n);
    p->layer = 0;
}

static void rewind_one(walk *w)
{
    pair *p = &w->p;
    const int32_t seq = any(w);
    if (seq < 0 || p->length[seq] == 0) return;
    const int32_t back = below(w, 3) ? below(w, 5) : below(w, 150),
                  to = p->length[seq] > back ? p->length[seq] - back : 0;
    dq_err err[2] = {{0}, {0}};
    for (int k = CPU; k <= CUDA; k++) {
        p->b[k]->ops->kv_rewind(p->b[k], p->kv[k], seq, to);
        dq_backend_sync(p->b[k], &err[k]);
    }
    assert_int_equal(err[CPU].code, err[CUDA].code);
    if (err[CPU].code == DQ_OK)
        p->length[seq] = to;
    else
        w->n_refused++;
}

static void drop(walk *w)
{
    const int32_t seq = any(w);
    if (seq < 0) return;
    for (int k = CPU; k <= CUDA; k++) w->p.b[k]->ops->kv_seq_free(w->p.b[k], w->p.kv[k], seq);
    w->live[w->at][seq] = false;
}

static void step(walk *w, bool fails)
{
    pair *p = &w->p;
    const int what = below(w, 16);
    if (below(w, 6) == 0) choose_cache(w, !w->at);
    const int32_t from = any(w);
    for (int32_t s = 0; s < PAIR_SEQ; s++)
        while (w->live[w->at][s] && p->length[s] > LONGEST) {
            for (int k = CPU; k <= CUDA; k++) p->b[k]->ops->kv_seq_free(p->b[k], p->kv[k], s);
            w->live[w->at][s] = false;
        }
    if (n_live(w) == 0 || (what == 0 && n_live(w) < PAIR_SEQ))
        w->live[w->at][pair_seq(p, below(w, 3) ? 0 : 60000 / 64 * below(w, 2))] = true;
    else if (what <= 3 && n_live(w) < PAIR_SEQ && w->live[w->at][from < 0 ? 0 : from])
        w->live[w->at][pair_fork(p, from < 0 ? 0 : from)] = true;
    else if (what == 4)
        drop(w);
    else if (what <= 6)
        keep(w, fails && below(w, 2));
    else if (what <= 8)
        rewind_one(w);
    else
        append(w, fails && below(w, 2));
    compare_caches(w);
    if (below(w, 3) == 0) attend_again(w);
}

static void go(int i, bool fails)
{
    enum { STEPS = 20 };
    static const dq_num nums[] = {DQ_NUM_F32, DQ_NUM_INT8, DQ_NUM_F32, DQ_NUM_BF16};
    walk w;
    dq_kv_spec spec = i % 3 == 0 ? spec_of(i) : i % 3 == 1 ? page_spec_of(i) : mixed_spec_of(i);
    spec.widths[0] = 0;
    spec.dense = dense_of(i);
    if (i % 6 == 1) {
        strcpy(spec.widths, "4|3:6|5");
        spec.k_bits = 4;
        spec.v_bits = 6;
    }
    walk_open(&w, i, spec, nums[i / 3 % 4]);
    for (int s = 0; s < STEPS; s++) step(&w, fails);
    assert_true(w.n_attended > 0);
    walk_close(&w);
}

TEST(walks_agree)
{
    for (int i = FIRST; i < FIRST + WALKS; i++) go(i, false);
}

TEST(walks_agree_without_memory)
{
    if (!simulated()) skip(); /* nobody else's memory is taken away */
    for (int i = FIRST; i < FIRST + WALKS / 2; i++) go(i, true);
}

/* A page of two lists gets its codes by one of them, and the other reads them, too. */
TEST(codes_of_a_fork)
{
    pair p;
    dq_kv_spec spec = spec_of(0);
    spec.recent = 64;
    pair_open(&p, DQ_PAIR_HALVES, WALK_DIM, spec);
    const int32_t a = pair_seq(&p, 0);
    static const int rows[] = {70, 1, 90, 90};
    for (int i = 0; i < 4; i++) {
        pair_begin(&p);
        pair_rows(&p, a + i % 2, rows[i]); /* the list, its fork, the list, the fork */
        pair_append(&p);
        attend_both(&p, (dq_logit_spec){.bits = 16, .granularity = DQ_GRANULARITY_ROW}, NULL, NULL);
        compare_outputs(&p);
        if (i == 0) assert_int_equal(pair_fork(&p, a), a + 1);
    }
    pair_close(&p);
}

NEEDS(rig_can_run)
