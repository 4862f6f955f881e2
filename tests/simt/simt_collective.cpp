/* simt_collective: barriers of a block, and what the lanes of a warp do together.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_core.h"

#include "tests/simt/fragments.h"

/* ---------------------------------------------------------------------------------------- barriers */
/* What the thread did comes before what follows the opening that it waits for. */
static char *arrive(simt_tokens *o)
{
    char *token = &o->token[o->opened % 2];
    simt_order_before(token);
    return token;
}

static void open_barrier(simt_block *b, int id)
{
    b->barrier[id].arrived = b->barrier[id].expected = 0;
    memset(b->barrier[id].lanes, 0, sizeof b->barrier[id].lanes);
    b->barrier[id].order.opened++;
    for (unsigned i = 0; i < b->n; i++) {
        simt_thread *t = &b->thread[i];
        if (t->state == SIMT_WAITING && t->barrier == id) {
            t->barrier = -1;
            simt_ready(t);
        }
    }
}

void simt_exit_barriers(simt_block *b)
{
    if (b->live && b->barrier[0].arrived == b->live) open_barrier(b, 0);
}

static void wait_at(simt_thread *t, int id, int line)
{
    t->barrier = id;
    t->line = line;
    t->state = SIMT_WAITING;
    simt_wait(t);
}

void simt_sync(int line)
{
    simt_thread *t = simt_self();
    simt_block *b = t->block;
    simt_copy_some(t);
    t->crossed++;
    simt_lock(b);
    char *token = arrive(&b->barrier[0].order);
    if (++b->barrier[0].arrived == b->live)
        open_barrier(b, 0);
    else
        wait_at(t, 0, line);
    simt_order_after(token);
    simt_unlock(b);
}

void simt_bar(unsigned id, unsigned n, bool wait, int line)
{
    simt_thread *t = simt_self();
    simt_block *b = t->block;
    if (id < 1 || id >= SIMT_BARRIERS) simt_fail(line, "barrier %u: expected 1..15", id);
    if (n % 32 || n == 0 || n > b->n) simt_fail(line, "barrier %u for %u threads", id, n);
    simt_copy_some(t);
    simt_barrier *bar = &b->barrier[id];
    simt_lock(b);
    unsigned expected = bar->expected;
    if (expected && expected != n) {
        simt_unlock(b);
        simt_fail(line, "barrier %u for %u threads, by others for %u", id, n, expected);
    }
    t->crossed++;
    char *token = arrive(&bar->order);
    bar->expected = n;
    bar->lanes[t->warp]++;
    if (++bar->arrived == n) {
        for (unsigned w = 0; w < b->n / 32; w++) {
            if (bar->lanes[w] % 32 == 0) continue;
            simt_unlock(b);
            simt_fail(line, "barrier %u counts whole warps, but %u lanes of warp %u are there", id,
                      bar->lanes[w] % 32u, w);
        }
        open_barrier(b, (int)id);
    } else if (wait)
        wait_at(t, (int)id, line);
    if (wait) simt_order_after(token);
    simt_unlock(b);
}

/* ------------------------------------------------------------------------------------------- warps */
static bool same(const simt_post &a, const simt_post &b)
{
    return a.op == b.op && a.mask == b.mask;
}

/* Adds t's post to its warp. A lane that waits for another thing may still come later; not if it waits
 * for t, though: then both would wait for ever, and it is returned. */
static const simt_thread *post_and_check(simt_thread *t, const simt_post &post)
{
    simt_block *b = t->block;
    const simt_thread *warp = &b->thread[32 * t->warp];
    uint32_t others = b->posted[t->warp];
    t->post = post;
    t->line = post.line;
    b->posted[t->warp] |= 1u << t->lane;
    if (!others) b->uniform[t->warp] = true;
    if (b->uniform[t->warp] && (!others || same(warp[__builtin_ctz(others)].post, post)))
        return NULL;
    b->uniform[t->warp] = false;
    for (others &= post.mask; others; others &= others - 1) {
        const simt_thread *other = &warp[__builtin_ctz(others)];
        if (other->post.mask >> t->lane & 1u && !same(other->post, post)) return other;
    }
    return NULL;
}

static bool all_posted(const simt_thread *t)
{
    const simt_block *b = t->block;
    if ((b->posted[t->warp] & t->post.mask) != t->post.mask) return false;
    for (unsigned i = 0; i < 32 && !b->uniform[t->warp]; i++)
        if (t->post.mask >> i & 1u && !same(b->thread[32 * t->warp + i].post, t->post))
            return false;
    return true;
}

/* Waits until all lanes of the mask have posted the same operation; the last one performs it. */
static void collect(const simt_post &post)
{
    simt_thread *t = simt_self();
    simt_block *b = t->block;
    if (!(post.mask >> t->lane & 1u))
        simt_fail(post.line, "%s: lane %u is not in its own mask %08x", post.what, t->lane,
                  post.mask);
    simt_copy_some(t);
    simt_lock(b);
    const simt_thread *other = post_and_check(t, post);
    if (other) {
        const simt_post p = other->post;
        unsigned lane = other->lane;
        simt_unlock(b);
        simt_fail(post.line, "%s (mask %08x) meets %s (mask %08x, line %d) of lane %u", post.what,
                  post.mask, p.what, p.mask, p.line, lane);
    }
    if (!all_posted(t)) {
        t->state = SIMT_WAITING;
        simt_wait(t);
        simt_unlock(b);
        return;
    }
    simt_thread *warp = &b->thread[32 * t->warp];
    simt_post *posts[32] = {};
    for (unsigned i = 0; i < 32; i++)
        if (post.mask >> i & 1u) posts[i] = &warp[i].post;
    post.op->run(posts, post.mask);
    b->posted[t->warp] &= ~post.mask;
    for (unsigned i = 0; i < 32; i++) {
        if (!(post.mask >> i & 1u)) continue;
        warp[i].post.op = NULL;
        if (i != t->lane) simt_ready(&warp[i]);
    }
    simt_unlock(b);
}

static void run_sync(simt_post *lane[32], uint32_t mask)
{
    const simt_thread *t = simt_self();
    (void)lane;
    if (mask == DQ_LANES)
        t->block->order[t->warp].opened++; /* parts of a warp may overtake each other */
}
static const simt_op op_sync = {"dq_warp_sync", run_sync};

void simt_together(const simt_op *op, const void *in, int line)
{
    simt_post p = {};
    p.op = op;
    p.what = op->name;
    p.mask = DQ_LANES;
    p.line = line;
    p.in[0] = in;
    collect(p);
}

void simt_warp_sync(unsigned mask, int line)
{
    simt_post p = {};
    p.op = &op_sync;
    p.what = op_sync.name;
    p.mask = mask;
    p.line = line;
    simt_thread *t = simt_self();
    simt_lock(t->block);
    char *token = arrive(&t->block->order[t->warp]);
    t->crossed++;
    simt_unlock(t->block);
    collect(p);
    simt_order_after(token);
}

static void run_exchange(simt_post *lane[32], uint32_t mask)
{
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1u) *(uint64_t *)lane[i]->out = lane[lane[i]->source]->value;
}
static const simt_op op_exchange = {"shuffle", run_exchange};

uint64_t simt_exchange(uint64_t v, unsigned source, unsigned mask, const char *what, int line)
{
    if (!(mask >> source & 1u))
        simt_fail(line, "%s reads lane %u, which is not in the mask %08x", what, source, mask);
    uint64_t got = 0;
    simt_post p = {};
    p.op = &op_exchange;
    p.what = what;
    p.mask = mask;
    p.line = line;
    p.value = v;
    p.source = source;
    p.out = &got;
    collect(p);
    return got;
}

static void run_ballot(simt_post *lane[32], uint32_t mask)
{
    uint32_t votes = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1u && lane[i]->value) votes |= 1u << i;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1u) *(uint32_t *)lane[i]->out = votes;
}
static const simt_op op_ballot = {"vote", run_ballot};

uint32_t simt_ballot(bool vote, unsigned mask, const char *what, int line)
{
    uint32_t got = 0;
    simt_post p = {};
    p.op = &op_ballot;
    p.what = what;
    p.mask = mask;
    p.line = line;
    p.value = vote;
    p.out = &got;
    collect(p);
    return got;
}

/* --------------------------------------------------------------------------------------- fragments */
static void load_matrices(simt_post *lane[32], int count, bool trans)
{
    const void *row[32];
    uint32_t r[32][4];
    for (int i = 0; i < 32; i++) row[i] = lane[i]->in[0];
    fragments_ldmatrix(r, row, count, trans);
    for (int i = 0; i < 32; i++) memcpy(lane[i]->out, r[i], (size_t)count * sizeof r[i][0]);
}

template <int COUNT, bool TRANS> static void run_ldmatrix(simt_post *lane[32], uint32_t mask)
{
    (void)mask;
    load_matrices(lane, COUNT, TRANS);
}

static const simt_op op_ldmatrix[2][2] = {
    {{"dq_ldmatrix_x2", run_ldmatrix<2, false>}, {"dq_ldmatrix_x2_trans", run_ldmatrix<2, true>}},
    {{"dq_ldmatrix_x4", run_ldmatrix<4, false>}, {"dq_ldmatrix_x4_trans", run_ldmatrix<4, true>}}};

void simt_ldmatrix(uint32_t *r, const void *smem, int count, bool trans, int line)
{
    simt_post p = {};
    p.op = &op_ldmatrix[count == 4][trans];
    p.what = p.op->name;
    p.mask = DQ_LANES;
    p.line = line;
    p.in[0] = smem;
    p.out = r;
    if ((int)simt_self()->lane < 8 * count) { /* the other addresses are not read */
        simt_check_aligned(smem, 16, p.what, line);
        simt_check_shared(smem, 16, p.what, line);
        simt_touch(smem, 16);
    }
    collect(p);
}

struct simt_operands {
    uint32_t a[32][4], b[32][2];
};

static void gather(simt_operands *o, simt_post *lane[32])
{
    for (int i = 0; i < 32; i++) {
        memcpy(o->a[i], lane[i]->in[0], sizeof o->a[i]);
        memcpy(o->b[i], lane[i]->in[1], sizeof o->b[i]);
    }
}

template <bool A_SIGNED, bool B_SIGNED> static void run_mma8(simt_post *lane[32], uint32_t mask)
{
    (void)mask;
    simt_operands o;
    int32_t d[32][4];
    gather(&o, lane);
    for (int i = 0; i < 32; i++) memcpy(d[i], lane[i]->out, sizeof d[i]);
    fragments_mma8(d, o.a, o.b, A_SIGNED, B_SIGNED);
    for (int i = 0; i < 32; i++) memcpy(lane[i]->out, d[i], sizeof d[i]);
}

static void run_mma_f16(simt_post *lane[32], uint32_t mask)
{
    (void)mask;
    simt_operands o;
    float d[32][4];
    gather(&o, lane);
    for (int i = 0; i < 32; i++) memcpy(d[i], lane[i]->out, sizeof d[i]);
    fragments_mma_f16(d, o.a, o.b);
    for (int i = 0; i < 32; i++) memcpy(lane[i]->out, d[i], sizeof d[i]);
}

static const simt_op op_mma[] = {{"dq_mma_s8s8", run_mma8<true, true>},
                                 {"dq_mma_u8s8", run_mma8<false, true>},
                                 {"dq_mma_s8u8", run_mma8<true, false>},
                                 {"dq_mma_f16", run_mma_f16}};

void simt_mma(simt_mma_kind kind, void *d, const uint32_t *a, const uint32_t *b, int line)
{
    simt_post p = {};
    p.op = &op_mma[kind];
    p.what = p.op->name;
    p.mask = DQ_LANES;
    p.line = line;
    p.in[0] = a;
    p.in[1] = b;
    p.out = d;
    collect(p);
}
