/* simt_wgmma: what the four warps of a warpgroup do together: products, whose operands are read and
 * whose results are written at a random moment between their start and the wait that covers them,
 * in the order of their starts; and registers that they hand over. Warps of a warpgroup need not be
 * at the same place: each posts its product under its number.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_hopper_core.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {"dq_wgmma_f16", "dq_wgmma_bf16", "dq_wgmma_s8"};

simt_wgmma_thread *simt_wgmma_self(void)
{
    return &simt_self()->wgmma;
}

uint32_t simt_smem_address(const void *smem, int line)
{
    const simt_block *b = simt_self()->block;
    simt_check_shared(smem, 0, "dq_smem_address", line);
    return (uint32_t)((const unsigned char *)smem - b->arena);
}

void simt_fail_touch(const simt_use *use, int line)
{
    const char *which = use->accumulator ? "accumulators" : "registers of A";
    const bool open = use->group == use->thread->group + 1;
    simt_fail(line < 0 ? use->line : line, "%s of the wgmma of line %d are %s before %s", which,
              use->line, line < 0 ? "gone" : "touched",
              open ? "it is committed and waited for" : "the wait that covers it");
}

void simt_fail_hold(const simt_use *use, int line)
{
    simt_fail(
        line,
        "accumulators of the wgmma of line %d are touched without a dq_hold after the wait: a "
        "compiler may touch them before it",
        use->line);
}

static simt_warpgroup *group_of(const simt_thread *t, const char *what, int line)
{
    if (t->block->n < 128 * (t->warp / 4 + 1))
        simt_fail(line, "%s: warp %u is in no whole warpgroup", what, t->warp);
    return &t->block->hopper->group[t->warp / 4];
}

/* Who of the warpgroup waits for what others of it do looks again. */
static void wake_group(simt_block *b, const simt_warpgroup *g, simt_waits what)
{
    const size_t first = 128 * (size_t)(g - b->hopper->group);
    for (size_t i = first; i < first + 128; i++)
        if (b->thread[i].waits == what) simt_wake(&b->thread[i]);
}

/* ------------------------------------------------------------------------------------- descriptors */
struct layout {
    uint32_t address, leading, stride;
    unsigned swizzle; /* rows of so many bytes, 16: none */
};

static layout decode(uint64_t d, const char *which, const simt_wgmma *p)
{
    static const unsigned rows[] = {16, 128, 64, 32};
    const layout l = {(uint32_t)(d & 0x3fff) << 4, (uint32_t)(d >> 16 & 0x3fff) << 4,
                      (uint32_t)(d >> 32 & 0x3fff) << 4, rows[d >> 62]};
    const char *name = names[p->kind];
    if (d & 0x3ff1c000c000c000u)
        simt_fail(p->line, "%s, descriptor of %s: bits are set that have no meaning (%016llx)",
                  name, which, (unsigned long long)d);
    if (d >> 49 & 7)
        simt_fail(p->line, "%s, descriptor of %s: base offset %u is not simulated", name, which,
                  (unsigned)(d >> 49 & 7));
    if (l.swizzle > 16 && l.address % (8 * l.swizzle) >= l.swizzle)
        simt_fail(p->line,
                  "%s, descriptor of %s: byte %u does not start a swizzle of %u bytes, which "
                  "repeats every %u",
                  name, which, l.address, l.swizzle, 8 * l.swizzle);
    return l;
}

/* Cells of an operand of so many rows: two for each row. */
static void find_cells(std::vector<uint32_t> &cells, uint64_t descriptor, int rows,
                       const char *which, const simt_wgmma *p)
{
    const simt_block *b = simt_self()->block;
    const layout l = decode(descriptor, which, p);
    cells.resize(2 * (size_t)rows);
    for (uint32_t row = 0; row < (uint32_t)rows; row++)
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t at = l.address + row / 8 * l.stride + row % 8 * l.swizzle;
            at += k * (l.swizzle > 16 ? 16 : l.leading);
            at ^= at >> 3 & (l.swizzle - 16); /* bits 4.. by those from 7 on */
            if (!simt_inside(b, b->arena + at, SIMT_CELL))
                simt_fail(p->line,
                          "%s, descriptor of %s: row %u, cell %u is byte %u, outside the block's "
                          "shared memory",
                          names[p->kind], which, row, k, at);
            cells[2 * row + k] = at / SIMT_CELL;
        }
}

int simt_product_at(const simt_hopper *h, uint32_t cell)
{
    for (const simt_warpgroup &g : h->group)
        for (const simt_product &p : g.products) {
            for (uint32_t c : p.a_cells)
                if (c == cell) return p.what.line;
            for (uint32_t c : p.b_cells)
                if (c == cell) return p.what.line;
        }
    return 0;
}

static void mark(simt_hopper *h, const simt_product &p, int by)
{
    for (uint32_t c : p.a_cells) h->reading[c] = (uint16_t)(h->reading[c] + by);
    for (uint32_t c : p.b_cells) h->reading[c] = (uint16_t)(h->reading[c] + by);
}

/* What the product reads is there, and the async proxy sees it. */
static void check_cells(simt_hopper *h, const std::vector<uint32_t> &cells, const simt_product &p)
{
    for (uint32_t c : cells) {
        if (h->writing[c])
            simt_fail(p.what.line,
                      "%s reads byte %u of shared memory, to which a bulk copy is on its way",
                      names[p.what.kind], c * SIMT_CELL);
        if (const unsigned writer = simt_unfenced(h, c))
            simt_fail(p.what.line,
                      "%s reads byte %u of shared memory, which thread %u has written without a "
                      "dq_fence_async since",
                      names[p.what.kind], c * SIMT_CELL, writer - 1);
    }
}

/* ---------------------------------------------------------------------------------------- numbers */
static float f16_table[65536];
static pthread_once_t f16_once = PTHREAD_ONCE_INIT;
static void fill_f16(void)
{
    for (uint32_t i = 0; i < 65536; i++) f16_table[i] = numerics_f16_f32((uint16_t)i);
}

static float value_of(simt_wgmma_kind kind, const unsigned char *cell, int i)
{
    uint16_t half;
    if (kind == SIMT_WGMMA_S8) return (float)(int8_t)cell[i];
    memcpy(&half, cell + 2 * i, sizeof half);
    if (kind == SIMT_WGMMA_F16) return f16_table[half];
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { ROWS = 64, COLUMNS = 256, DEPTH = 32 };
struct operands {
    double a[ROWS][DEPTH], b[DEPTH][COLUMNS];
};

static void gather_cells(const simt_hopper *h, const simt_product &p,
                         const std::vector<uint32_t> &cells, int elements, double *x, int by_row,
                         int by_k)
{
    for (size_t i = 0; i < cells.size(); i++) {
        const unsigned char *cell = h->block->arena + (size_t)cells[i] * SIMT_CELL;
        for (int e = 0; e < elements; e++)
            x[(int)(i / 2) * by_row + ((int)(i % 2) * elements + e) * by_k] =
                (double)value_of(p.what.kind, cell, e);
    }
}

/* Register r of a lane holds 4 bytes of row g + 8 (r & 1), from byte 4 q + 16 (r >> 1) of the row
 * on: fragments.h has it by elements. */
static void gather_registers(const simt_product &p, int elements, double a[ROWS][DEPTH])
{
    const int each = elements / 4;
    for (int i = 0; i < 128; i++)
        for (int r = 0; r < 4; r++) {
            unsigned char bytes[4];
            memcpy(bytes, &p.a[i][r], sizeof bytes);
            const int row = 16 * (i / 32) + i % 32 / 4 + 8 * (r & 1);
            for (int e = 0; e < each; e++)
                a[row][each * (i % 4) + elements * (r >> 1) + e] =
                    (double)value_of(p.what.kind, bytes, e);
        }
}

typedef double lanes __attribute__((vector_size(32), aligned(8), may_alias));

/* sum[j] = the products of row a with column j, in the order of k. */
static inline __attribute__((always_inline)) void
multiply_row(double *sum, const double *a, const double (*b)[COLUMNS], int depth, int n)
{
    for (int j = 0; j < n; j += 16) {
        lanes s[4] = {};
        for (int k = 0; k < depth; k++)
            for (int e = 0; e < 4; e++) s[e] += a[k] * *(const lanes *)&b[k][j + 4 * e];
        for (int e = 0; e < 4; e++) *(lanes *)&sum[j + 4 * e] = s[e];
    }
}
/* The same sums, on machines that add four at a time. */
__attribute__((target("avx2"))) static void
multiply_row_avx2(double *sum, const double *a, const double (*b)[COLUMNS], int depth, int n)
{
    multiply_row(sum, a, b, depth, n);
}

/* Exact products, summed in f64 and rounded once per instruction; sums of bytes are exact. */
static void multiply(const simt_hopper *h, const simt_product &p)
{
    static __thread operands o;
    static const bool avx2 = __builtin_cpu_supports("avx2");
    pthread_once(&f16_once, fill_f16);
    const int n = p.what.n, elements = p.what.kind == SIMT_WGMMA_S8 ? 16 : 8;
    if (p.what.a)
        gather_registers(p, elements, o.a);
    else
        gather_cells(h, p, p.a_cells, elements, o.a[0], DEPTH, 1);
    gather_cells(h, p, p.b_cells, elements, o.b[0], 1, COLUMNS);
    for (int row = 0; row < ROWS; row++) {
        double sum[COLUMNS];
        if (avx2)
            multiply_row_avx2(sum, o.a[row], o.b, 2 * elements, n);
        else
            multiply_row(sum, o.a[row], o.b, 2 * elements, n);
        const int lane = 32 * (row / 16) + row % 8 * 4, half = row % 16 / 8;
        for (int j = 0; j < n; j++) {
            void *d = p.d[lane + j % 8 / 2];
            const int at = j / 8 * 4 + 2 * half + j % 2;
            if (p.what.kind == SIMT_WGMMA_S8) {
                uint32_t *x = (uint32_t *)d + at;
                *x = (p.what.add ? *x : 0) + (uint32_t)(int32_t)sum[j];
            } else {
                float *x = (float *)d + at;
                *x = (float)((p.what.add ? (double)*x : 0) + sum[j]);
            }
        }
    }
}

/* --------------------------------------------------------------------------------------- products */
static bool run_first(simt_hopper *h, simt_warpgroup *g)
{
    if (g->products.empty() || g->products[0].warps != 15) return false;
    const simt_product &p = g->products[0];
    simt_absorb(h->block, simt_self());
    check_cells(h, p.a_cells, p);
    check_cells(h, p.b_cells, p);
    multiply(h, p);
    mark(h, p, -1);
    g->products.pop_front();
    g->first++;
    return true;
}

bool simt_product_some(simt_thread *t)
{
    if (t->block->n < 128 * (t->warp / 4 + 1)) return false;
    simt_warpgroup *g = &t->block->hopper->group[t->warp / 4];
    return !g->products.empty() && !g->products[0].late && run_first(t->block->hopper, g);
}

static bool alike(const simt_wgmma *a, const simt_wgmma *b)
{
    return a->kind == b->kind && a->n == b->n && !a->a == !b->a && a->add == b->add &&
           a->a_descriptor == b->a_descriptor && a->b_descriptor == b->b_descriptor;
}

static simt_product *add_product(simt_hopper *h, simt_warpgroup *g, const simt_wgmma *what,
                                 uint64_t group)
{
    g->products.emplace_back(); /* which owns what it finds, also where a report ends the thread */
    simt_product *p = &g->products.back();
    p->what = *what;
    p->group = group;
    p->late = simt_random(&h->cluster->random) % 2;
    if (!what->a) find_cells(p->a_cells, what->a_descriptor, ROWS, "A", what);
    find_cells(p->b_cells, what->b_descriptor, what->n, "B", what);
    check_cells(h, p->a_cells, *p);
    check_cells(h, p->b_cells, *p);
    mark(h, *p, 1);
    return p;
}

/* All lanes of a warp start the product. */
static void run_start(simt_post *lane[32], uint32_t mask)
{
    (void)mask;
    simt_thread *t = simt_self();
    simt_hopper *h = t->block->hopper;
    const simt_wgmma *what = (const simt_wgmma *)lane[0]->in[0];
    simt_warpgroup *g = group_of(t, names[what->kind], what->line);
    for (int i = 1; i < 32; i++)
        if (!alike(what, (const simt_wgmma *)lane[i]->in[0]))
            simt_fail(what->line, "%s: lanes 0 and %d of warp %u start different products",
                      names[what->kind], i, t->warp);
    simt_absorb(t->block, t);
    const unsigned w = t->warp % 4;
    const uint64_t number = g->next[w]++;
    simt_product *p = number - g->first < g->products.size()
                          ? &g->products[number - g->first]
                          : add_product(h, g, what, t->wgmma.group);
    if (!alike(what, &p->what) || p->group != t->wgmma.group)
        simt_fail(what->line,
                  "%s: the warps of a warpgroup do not meet: warp %u starts that of line %d in "
                  "group %llu, others that of line %d in group %llu, or with other operands",
                  names[what->kind], t->warp, what->line, (unsigned long long)t->wgmma.group,
                  p->what.line, (unsigned long long)p->group);
    for (unsigned i = 0; i < 32; i++) {
        const simt_wgmma *one = (const simt_wgmma *)lane[i]->in[0];
        p->d[32 * w + i] = one->d;
        p->a[32 * w + i] = one->a;
    }
    p->warps |= 1u << w;
    if (p->warps == 15) wake_group(t->block, g, SIMT_WAITS_WGMMA);
}
static const simt_op op_start[] = {
    {names[0], run_start}, {names[1], run_start}, {names[2], run_start}};

static void use(simt_use *u, const simt_thread *t, bool accumulator, const simt_wgmma *p)
{
    const char *which = accumulator ? "accumulators" : "registers of A";
    if (u->thread != &t->wgmma)
        simt_fail(p->line, "%s: %s of another thread", names[p->kind], which);
    if (u->touched > t->wgmma.fences)
        simt_fail(p->line, "%s: no dq_wgmma_fence since its %s were touched", names[p->kind],
                  which);
    if (u->group > t->wgmma.done && u->accumulator != accumulator)
        simt_fail(p->line, "%s: %s are in use by the wgmma of line %d", names[p->kind], which,
                  u->line);
    u->group = t->wgmma.group + 1;
    u->line = p->line;
    u->accumulator = accumulator;
}

void simt_wgmma_start(const simt_wgmma *product)
{
    simt_unseen unseen;
    const simt_thread *t = simt_self();
    simt_hopper_here(names[product->kind], product->line);
    use(product->d_use, t, true, product);
    if (product->a) use(product->a_use, t, false, product);
    simt_together(&op_start[product->kind], product, product->line);
}

static void run_none(simt_post *lane[32], uint32_t mask)
{
    (void)lane, (void)mask;
}
static const simt_op op_fence = {"dq_wgmma_fence", run_none};
static const simt_op op_commit = {"dq_wgmma_commit", run_none};
static const simt_op op_wait = {"dq_wgmma_wait", run_none};

void simt_wgmma_fence(int line)
{
    simt_unseen unseen;
    simt_hopper_here(op_fence.name, line);
    simt_together(&op_fence, NULL, line);
    simt_self()->wgmma.fences++;
}

void simt_wgmma_commit(int line)
{
    simt_unseen unseen;
    simt_hopper_here(op_commit.name, line);
    simt_together(&op_commit, NULL, line);
    simt_self()->wgmma.group++;
}

void simt_wgmma_wait(int groups, int line)
{
    simt_unseen unseen;
    simt_thread *t = simt_self();
    simt_hopper *h = simt_hopper_here(op_wait.name, line);
    simt_warpgroup *g = group_of(t, op_wait.name, line);
    simt_together(&op_wait, NULL, line);
    if (simt_set.schedule == DQ_SIMT_GREEDY && simt_random(&t->random) % 64 == 0) simt_yield(t);
    const uint64_t left = (uint64_t)groups;
    while (!g->products.empty() && g->products[0].group + left < t->wgmma.group)
        if (!run_first(h, g)) simt_block_on(t, SIMT_WAITS_WGMMA, line);
    if (t->wgmma.group > left && t->wgmma.group - left > t->wgmma.done)
        t->wgmma.done = t->wgmma.group - left;
}

/* --------------------------------------------------------------------------------------- registers */
enum { REGISTERS = 65536 };

/* Those that wait get registers in the order of the warpgroups. Whether somebody did. */
static bool give_registers(simt_hopper *h)
{
    bool given = false;
    for (simt_warpgroup &g : h->group)
        for (simt_claim &c : g.claims) {
            if (c.done) continue;
            const int more = 128 * (c.registers - g.registers);
            if (c.warps != 15 || more > h->free_registers) break;
            h->free_registers -= more;
            g.registers = c.registers;
            c.done = given = true;
            wake_group(h->block, &g, SIMT_WAITS_REGISTERS);
        }
    return given;
}

struct claim_post {
    int registers, line;
    bool more;
};

static void run_claim(simt_post *lane[32], uint32_t mask)
{
    (void)mask;
    simt_thread *t = simt_self();
    const claim_post *post = (const claim_post *)lane[0]->in[0];
    simt_warpgroup *g = group_of(t, "setmaxnreg", post->line);
    for (int i = 1; i < 32; i++) {
        const claim_post *other = (const claim_post *)lane[i]->in[0];
        if (other->registers != post->registers)
            simt_fail(post->line, "setmaxnreg: %d registers for lane 0, %d for lane %d",
                      post->registers, other->registers, i);
    }
    const unsigned w = t->warp % 4;
    const size_t number = g->next_claim[w]++;
    const uint64_t crossed = t->block->thread[32 * t->warp].crossed;
    if (number && g->claim_crossed[w] == crossed)
        simt_fail(post->line, "setmaxnreg: warp %u has met no barrier since that of line %d",
                  t->warp, g->claims[number - 1].line);
    g->claim_crossed[w] = crossed;
    if (number == g->claims.size()) {
        const simt_claim c = {post->registers, post->line, post->more, false, 0};
        g->claims.push_back(c);
    }
    simt_claim *c = &g->claims[number];
    if (c->registers != post->registers || c->more != post->more)
        simt_fail(post->line,
                  "setmaxnreg: the warps of a warpgroup do not meet: %d registers for warp %u, %d "
                  "(line %d) for others",
                  post->registers, t->warp, c->registers, c->line);
    c->warps |= 1u << w;
    if (c->warps == 15 && (c->more ? c->registers < g->registers : c->registers > g->registers))
        simt_fail(post->line, "dq_setmaxnreg_%s to %d registers of a warpgroup that has %d",
                  c->more ? "inc" : "dec", c->registers, g->registers);
    while (give_registers(t->block->hopper)) { /* a later one may have given some away */
    }
}
static const simt_op op_claim[] = {{"dq_setmaxnreg_dec", run_claim},
                                   {"dq_setmaxnreg_inc", run_claim}};

void simt_setmaxnreg(int registers, bool more, int line)
{
    simt_unseen unseen;
    simt_thread *t = simt_self();
    simt_hopper_here(op_claim[more].name, line);
    simt_warpgroup *g = group_of(t, op_claim[more].name, line);
    const size_t number = g->next_claim[t->warp % 4];
    const claim_post post = {registers, line, more};
    simt_together(&op_claim[more], &post, line);
    while (more && !g->claims[number].done) simt_block_on(t, SIMT_WAITS_REGISTERS, line);
}

/* ------------------------------------------------------------------------------ blocks and reports */
int simt_warpgroup_text(char *out, size_t capacity, const simt_thread *t)
{
    const simt_hopper *h = t->block->hopper;
    const simt_warpgroup *g = &h->group[t->warp / 4];
    if (t->waits == SIMT_WAITS_WGMMA)
        return snprintf(out, capacity,
                        " wait in dq_wgmma_wait, line %d, for the wgmma of line %d, which warps %x "
                        "of the warpgroup have started",
                        t->line, g->products[0].what.line, g->products[0].warps);
    const simt_claim *c = &g->claims[g->next_claim[t->warp % 4] - 1];
    int n = snprintf(out, capacity,
                     " wait in dq_setmaxnreg_inc, line %d, for %d registers a thread: warps %x of "
                     "the warpgroup are there, it has %d, %d more are free",
                     t->line, c->registers, c->warps, g->registers, h->free_registers / 128);
    for (const simt_warpgroup &other : h->group)
        for (const simt_claim &part : other.claims)
            if (part.warps != 15 && &part != c)
                n += snprintf(out + n, capacity - (size_t)n,
                              "; warps %x of warpgroup %d alone set %d, line %d", part.warps,
                              (int)(&other - h->group), part.registers, part.line);
    return n;
}

void simt_warpgroups_open(simt_hopper *h)
{
    const int each = REGISTERS / (int)h->block->n / 8 * 8;
    for (simt_warpgroup &g : h->group) g.registers = each < 256 ? each : 256;
}

void simt_warpgroups_end(simt_hopper *h)
{
    for (const simt_warpgroup &g : h->group)
        for (const simt_claim &c : g.claims)
            if (c.warps != 15)
                simt_say(h->block, c.line,
                         "setmaxnreg to %d registers, line %d: warps %x of warpgroup %d alone",
                         c.registers, c.line, c.warps, (int)(&g - h->group));
}
