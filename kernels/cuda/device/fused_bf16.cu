/* fused_bf16: attention in one kernel, in bf16. A block has 64 rows of queries, 16 a warp, which
 * share the page in shared memory. The first pass finds maxima and sums; the second makes the
 * scores again, and D in registers is the left operand of D V. tests/simt/defects.tsv quotes masks.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/fused.cuh"

/* ---- pages */
/* Keys, then values, of a page become bf16 in the same place, once for each way that rows read
 * them; a cell holds eight channels of a query or key, or eight tokens of a channel of values. */

/* Where things lie in a block's shared memory, in bytes. */
struct bf16_space {
    int32_t q, page, rows, shares, total;
};

/* Eight values as a cell. */
DQ_DEVICE void put_cell(uint8_t *to, const float x[8])
{
    dq_store16(to, dq_u4{dq_f32x2_bf16(x[0], x[1]), dq_f32x2_bf16(x[2], x[3]),
                         dq_f32x2_bf16(x[4], x[5]), dq_f32x2_bf16(x[6], x[7])});
}

DQ_DEVICE void load_eight(float x[8], const float *global)
{
    DQ_UNROLL
    for (int i = 0; i < 8; i += 4) {
        dq_u4 v = dq_load16_const(global + i);
        x[i] = dq_bits_f32(v.x);
        x[i + 1] = dq_bits_f32(v.y);
        x[i + 2] = dq_bits_f32(v.z);
        x[i + 3] = dq_bits_f32(v.w);
    }
}

/* The same of what is not coded. */
DQ_DEVICE void load_eight_plain(float x[8], const dq_page_form *f, plain_place p)
{
    if (f->dense == DQ_PAGE_F32) {
        load_eight(x, (const float *)p.from + p.at);
        return;
    }
    dq_u4 v = dq_load16_const((const uint16_t *)p.from + p.at);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    DQ_UNROLL
    for (int i = 0; i < 8; i++) {
        uint16_t half = (uint16_t)(word[i / 2] >> 16 * (i % 2));
        x[i] = f->dense == DQ_PAGE_F16 ? dq_f16_f32(half) : dq_bf16_f32(half);
    }
}

/* Rows of all maps, zero after the unit's. By all threads, before a barrier. */
DQ_DEVICE void put_queries(uint8_t *to, const dq_attention_units *u, const fused_job *j)
{
    int dim = u->form[0].dim, per = dim / 8 * TILE;
    for (int i = (int)dq_thread(); i < j->n_maps * per; i += THREADS) {
        int m = i / per, c = i % (dim / 8), r = i % per / (dim / 8);
        float x[8] = {};
        if (r < j->w->n)
            load_eight(x, u->q + ((int64_t)(j->w->row + r) * u->n_q + j->query[m]) * dim + 8 * c);
        put_cell(to + ((m * (dim / 8) + c) * TILE + r) * 16, x);
    }
}

/* ---- ways */

/* How many ways the unit's rows read a side of a page, 1 or 2. */
DQ_DEVICE int ways_of(const fused_job *j, int side, int page)
{
    const dq_page_side *s = &j->pages[page].side[side];
    bool both = j->w->split > 0 && j->w->split < j->w->n && s->codes && s->plain;
    return both && slots_of(j->w->coded[0], page) != slots_of(j->w->coded[1], page) ? 2 : 1;
}

/* Slots before *end, but for the sinks, are codes in a way. */
DQ_DEVICE int way_end(const fused_job *j, int side, int page, int ways, int way)
{
    const dq_page_side *s = &j->pages[page].side[side];
    if (!s->codes) return 0;
    if (!s->plain) return DQ_PAGE_SLOTS;
    return slots_of(j->w->coded[ways == 2 ? way : j->w->split == 0], page);
}

/* The lane's rows, of which those that read the page in another way see nothing. */
DQ_DEVICE lane_page way_of_lane(const fused_job *j, const lane_rows *l, int side, int page,
                                int ways, int way)
{
    lane_page at = page_of_lane(j, l, side, page);
    DQ_UNROLL
    for (int i = 0; i < 2; i++)
        if (ways == 2 && (l->row[i] >= j->w->split) != (way == 1)) at.seen[i] = 0;
    return at;
}

/* The bytes of a word, signed or not, times x. */
DQ_DEVICE void read_bytes(float to[4], uint32_t w, int half)
{
    DQ_UNROLL
    for (int i = 0; i < 4; i++)
        to[i] = (float)(half ? (int32_t)(w >> 8 * i & 255) - half
                             : (int32_t)(int8_t)(w >> 8 * i & 255));
}

/* Keys of the page as a way has them; tokens after the unit's keys are zero. */
DQ_DEVICE void put_keys(uint8_t *to, const dq_attention_units *u, const fused_job *j, int page,
                        int end)
{
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    int per = f->dim / 16 * DQ_PAGE_SLOTS, n = slots_of(j->w->keys, page);
    for (int i = (int)dq_thread(); i < j->n_keys * per; i += THREADS) {
        int k = i / per, block = i % per / DQ_PAGE_SLOTS, t = i % DQ_PAGE_SLOTS, head = j->key[k];
        float x[16] = {};
        if (t >= n) {
        } else if (t < end && t >= p->n_sinks) {
            int bits = dq_page_bits(f, p, 0, head);
            dq_u4 w = key_cell(dq_page_codes(f, p, 0, head), bits, f->cols, block, t);
            const uint32_t word[4] = {w.x, w.y, w.z, w.w};
            DQ_UNROLL
            for (int b = 0; b < 4; b++) read_bytes(x + 4 * b, word[b], 1 << (bits - 1));
            DQ_UNROLL
            for (int b = 0; b < 16; b++)
                x[b] = dq_page_decoded(f, p, 0, head, t, 16 * block + b, x[b]);
        } else {
            plain_place from = place_of_plain(f, p, 0, head, t);
            from.at += 16 * block;
            load_eight_plain(x, f, from);
            from.at += 8;
            load_eight_plain(x + 8, f, from);
        }
        uint8_t *cell = to + ((k * (f->dim / 8) + 2 * block) * DQ_PAGE_SLOTS + t) * 16;
        put_cell(cell, x);
        put_cell(cell + DQ_PAGE_SLOTS * 16, x + 8);
    }
}

/* 16 tokens from 16 block on of one channel. */
DQ_DEVICE void read_channel(float x[16], const dq_page_form *f, const dq_page *p, int head,
                            int block, int c, int end, int n)
{
    int t0 = 16 * block;
    if (t0 < end && t0 + 16 > p->n_sinks) {
        dq_u4 w = value_cell(dq_page_codes(f, p, 1, head), dq_page_bits(f, p, 1, head), f->cols,
                             block, c);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
        DQ_UNROLL
        for (int b = 0; b < 4; b++) read_bytes(x + 4 * b, word[b], 0);
    }
    DQ_UNROLL
    for (int i = 0; i < 16; i++) {
        int t = t0 + i;
        if (t >= n) {
            x[i] = 0;
        } else if (t < end && t >= p->n_sinks) {
            x[i] = dq_page_decoded(f, p, 1, head, t, c, x[i]);
        } else {
            plain_place from = place_of_plain(f, p, 1, head, t);
            x[i] = dq_page_plain(f, from.from, from.at + c);
        }
    }
}

/* Values likewise. */
DQ_DEVICE void put_values(uint8_t *to, const dq_attention_units *u, const fused_job *j, int page,
                          int end)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    int per = f->dim * DQ_PAGE_SLOTS / 16, n = slots_of(j->w->keys, page);
    for (int i = (int)dq_thread(); i < j->n_slabs * per; i += THREADS) {
        int slab = i / per, block = i % per / f->dim, c = i % f->dim;
        float x[16] = {};
        read_channel(x, f, p, j->value[slab], block, c, end, n);
        uint8_t *cell = to + ((slab * 8 + 2 * block) * f->dim + c) * 16;
        put_cell(cell, x);
        put_cell(cell + f->dim * 16, x + 8);
    }
}

/* ---- products */

/* S of one map and 32 tokens. */
DQ_DEVICE void half_scores(float s[4][4], const uint8_t *mem, const bf16_space *at,
                           const dq_attention_units *u, const fused_job *j, int m, int half)
{
    int dim = u->form[0].dim, lane = (int)dq_lane(), matrix = lane / 8, i = lane % 8;
    const uint8_t *q =
        mem + at->q + (m * (dim / 8) * TILE + WARP_ROWS * (int)dq_warp() + matrix % 2 * 8 + i) * 16;
    const uint8_t *k =
        mem + at->page +
        (j->which[m] * (dim / 8) * DQ_PAGE_SLOTS + 32 * half + matrix / 2 * 8 + i) * 16;
    DQ_UNROLL
    for (int n = 0; n < 16; n++) s[n / 4][n % 4] = 0;
    for (int c = 0; c < dim / 8; c += 2) {
        uint32_t a[4], b[4];
        dq_ldmatrix_x4(a, q + (c + matrix / 2) * TILE * 16);
        DQ_UNROLL
        for (int n = 0; n < 4; n += 2) {
            dq_ldmatrix_x4(b, k + ((c + matrix % 2) * DQ_PAGE_SLOTS + 8 * n) * 16);
            dq_mma_bf16(s[n], a, b);
            dq_mma_bf16(s[n + 1], a, b + 2);
        }
    }
    DQ_UNROLL
    for (int n = 0; n < 16; n++) s[n / 4][n % 4] = dq_mul_rn(s[n / 4][n % 4], u->scale);
}

/* o += D V of one way of reading the page. */
template <int NT>
DQ_DEVICE void multiply_page(float o[NT][4], const float d[8][4], const uint8_t *page,
                             const lane_page *at, int n_slabs, int dim)
{
    uint32_t a[4][4];
    int lane = (int)dq_lane();
    DQ_UNROLL
    for (int i = 0; i < 16; i++) {
        int row = i % 2, tile = i / 4 * 2 + i / 2 % 2;
        uint32_t w = dq_f32x2_bf16(d[tile][2 * row], d[tile][2 * row + 1]);
        a[i / 4][i % 4] = at->seen[row] > 0 ? w : 0;
    }
    page += (lane / 8 * dim + lane % 8) * 16;
    DQ_UNROLL
    for (int n = 0; n < NT; n++) {
        if (8 * n >= n_slabs * dim) break;
        const uint8_t *at_slab = page + 8 * n * 16 + (8 * n >= dim ? 7 * dim * 16 : 0);
        DQ_UNROLL
        for (int k = 0; k < 4; k += 2) {
            uint32_t b[4];
            dq_ldmatrix_x4(b, at_slab + 2 * k * dim * 16);
            dq_mma_bf16(o[n], a[k], b);
            dq_mma_bf16(o[n], a[k + 1], b + 2);
        }
    }
}

/* ---- passes */

/* Over all pages: the largest |S| of every row (MOST), or maxima and sums. */
template <bool MAX>
DQ_DEVICE void first_pass(uint8_t *mem, const bf16_space *at, const dq_attention_units *u,
                          const fused_job *j, const lane_rows *l, const dq_fused_logits *round)
{
    const float low = MAX ? 0.0f : -INFINITY;
    row_stats *stats = (row_stats *)(mem + at->rows);
    float *shares = (float *)(mem + at->shares);
    for (int m = 0; m < j->n_maps; m++) put_share(lane_share(shares, m), low, low, 0.0f, 0.0f);
    for (int page = 0; page < j->n_pages; page++) {
        int ways = ways_of(j, 0, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_first_read); /* all have read the keys before */
            put_keys(mem + at->page, u, j, page, way_end(j, 0, page, ways, way));
            DQ_SYNC(bf16_first_keys); /* keys are there */
            if (page * DQ_PAGE_SLOTS >= l->max) continue;
            lane_page rows = way_of_lane(j, l, 0, page, ways, way);
            for (int k = 0; k < 2 * j->n_maps; k++) {
                float s[4][4];
                half_scores(s, mem, at, u, j, k / 2, k % 2);
                if (MAX) {
                    raise_max<true>(lane_share(shares, k / 2), s, &rows, k % 2);
                } else {
                    round_scores(s, l, stats->max[k / 2], round);
                    add_exps<true>(lane_share(shares, k / 2), s, &rows, k % 2);
                }
            }
        }
    }
    for (int m = 0; m < j->n_maps; m++) join_shares<MAX>(stats, lane_share(shares, m), u, j, l, m);
    DQ_SYNC(bf16_first_done); /* all have read the last page, and rows are known */
}

/* d += P1 - lambda P2, of one map exp(S - max), of rows that see the page so. */
DQ_DEVICE void page_difference(float d[8][4], const uint8_t *mem, const bf16_space *at,
                               const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                               const lane_page *rows, const dq_fused_logits *round)
{
    const row_stats *stats = (const row_stats *)(mem + at->rows);
    DQ_UNROLL
    for (int half = 0; half < 2; half++) {
        for (int m = 0; m < j->n_maps; m++) {
            float s[4][4];
            half_scores(s, mem, at, u, j, m, half);
            round_scores(s, l, stats->max[m], round);
            add_map<true>(d + 4 * half, s, stats, j, l, rows, m, half);
        }
    }
}

template <int NT>
DQ_DEVICE void second_pass(float o[NT][4], uint8_t *mem, const bf16_space *at,
                           const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                           const dq_fused_logits *round)
{
    for (int page = 0; page < j->n_pages; page++) {
        bool some = page * DQ_PAGE_SLOTS < l->max;
        float d[8][4] = {};
        int ways = ways_of(j, 0, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_second_read); /* all have read what stood there */
            put_keys(mem + at->page, u, j, page, way_end(j, 0, page, ways, way));
            DQ_SYNC(bf16_second_keys); /* keys are there */
            lane_page rows = way_of_lane(j, l, 0, page, ways, way);
            if (some) page_difference(d, mem, at, u, j, l, &rows, round);
        }
        ways = ways_of(j, 1, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_keys_read); /* all have read keys, or values of the other way */
            put_values(mem + at->page, u, j, page, way_end(j, 1, page, ways, way));
            DQ_SYNC(bf16_values_there); /* values are there */
            lane_page rows = way_of_lane(j, l, 1, page, ways, way);
            if (some) multiply_page<NT>(o, d, mem + at->page, &rows, j->n_slabs, u->form[1].dim);
        }
    }
}

template <int NT>
DQ_KERNEL_BLOCKS(THREADS, 2)
attend_bf16(dq_attention_units u, dq_attention_finish f, dq_fused_logits round, bf16_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_output(job, &u)) return;
    row_stats *stats = (row_stats *)(mem + at.rows);
    if (round.round == DQ_ROUND_GIVEN) given_max(stats, &u, job, &round);
    put_queries(mem + at.q, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, false);
    if (round.round == DQ_ROUND_ROW) first_pass<true>(mem, &at, &u, job, &l, &round);
    first_pass<false>(mem, &at, &u, job, &l, &round);
    float o[NT][4] = {};
    second_pass<NT>(o, mem, &at, &u, job, &l, &round);
    float factor[2] = {1.0f, 1.0f};
    DQ_UNROLL
    for (int i = 0; i < 2; i++)
        if (job->n_maps == 1) factor[i] = stats->factor[0][l.row[i]];
    finish_rows<NT>(o, factor, job, &l, &f, (float *)(mem + at.shares), u.form[1].dim);
}

DQ_KERNEL_BLOCKS(THREADS, 4) scores_bf16(dq_attention_units u, bf16_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_query(job, &u)) return;
    put_queries(mem + at.q, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, true);
    for (int page = 0; page < job->n_pages; page++) {
        int ways = ways_of(job, 0, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_scores_read); /* all have read the keys before */
            put_keys(mem + at.page, &u, job, page, way_end(job, 0, page, ways, way));
            DQ_SYNC(bf16_scores_keys); /* keys are there */
            if (page * DQ_PAGE_SLOTS >= l.max) continue;
            lane_page rows = way_of_lane(job, &l, 0, page, ways, way);
            for (int half = 0; half < 2; half++) {
                float s[4][4];
                half_scores(s, mem, &at, &u, job, 0, half);
                put_strip<true>(s, &u, job, &l, &rows, page, half);
            }
        }
    }
}

DQ_KERNEL_BLOCKS(THREADS, 4)
absmax_bf16(dq_attention_units u, uint32_t *DQ_RESTRICT max, bf16_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_query(job, &u)) return;
    put_queries(mem + at.q, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, false);
    dq_fused_logits none = {};
    first_pass<true>(mem, &at, &u, job, &l, &none);
    raise_absmax(max, (const row_stats *)(mem + at.rows), &u, job);
}

/* ---- launchers */

static bf16_space space_of(const dq_attention_units *u, int maps, int slabs)
{
    const int32_t head = TILE * u->form[0].dim * 2, heads = maps > slabs ? maps : slabs;
    bf16_space s = {};
    s.page = maps * head;
    s.rows = s.page + heads * head;
    s.shares = s.rows + (int32_t)sizeof(row_stats);
    s.total = s.shares + 2 * 4 * THREADS * 4;
    return s;
}

static cudaError_t launch_attend(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                                 cudaStream_t s)
{
    const bf16_space at = space_of(&u, u.n_maps, u.n_slabs);
    const int tiles = u.n_slabs * u.form[1].dim / 8;
    const int blocks = u.n * u.max_out;
    if (tiles <= 8) DQ_FUSED_LAUNCH(attend_bf16<8>, blocks, THREADS, at.total, s, u, f, l, at);
    if (tiles <= 16) DQ_FUSED_LAUNCH(attend_bf16<16>, blocks, THREADS, at.total, s, u, f, l, at);
    DQ_FUSED_LAUNCH(attend_bf16<32>, blocks, THREADS, at.total, s, u, f, l, at);
}

/* max NULL: strips. */
static cudaError_t launch_scores(dq_attention_units u, uint32_t *max, cudaStream_t s)
{
    const bf16_space at = space_of(&u, 1, 0);
    const int blocks = u.n * u.max_q;
    if (max) DQ_FUSED_LAUNCH(absmax_bf16, blocks, THREADS, at.total, s, u, max, at);
    DQ_FUSED_LAUNCH(scores_bf16, blocks, THREADS, at.total, s, u, at);
}

/* ---- both arithmetics */
/* dq_fused_lacks is asked first, so the launches below it do not check their arguments again. */

static const char *dims_lack(const dq_page_form *f)
{
    if (f->dim % 16 || f->dim < 16 || f->dim > 128)
        return "head_dim is not a multiple of 16 up to 128";
    if (f->cols != f->dim || f->stride != f->dim) return "channels are padded";
    if (f->bits < 16 && f->n_scales > 1 && f->group % 16)
        return "groups of scales are no multiples of 16";
    return NULL;
}

const char *dq_fused_lacks(const dq_attention_units *u, const dq_attention_finish *f, int math,
                           int round)
{
    const char *s = dims_lack(&u->form[0]);
    if (!s) s = dims_lack(&u->form[1]);
    if (s) return s;
    if (u->form[0].dim != u->form[1].dim) return "keys and values differ in width";
    if (f && f->out_cols % 2) return "the output's rows have an odd length";
    if (f && f->rotated && u->form[1].dim & (u->form[1].dim - 1))
        return "rotation of such a head_dim";
    if (u->n_maps > 2 || u->n_slabs > 2) return "more than two maps or slabs of values";
    if (math == DQ_FUSED_INT8 && u->form[0].dense != DQ_PAGE_F32)
        return "int8 arithmetic with unquantized tokens in two bytes";
    if (math == DQ_FUSED_INT8 && (u->form[0].bits > 8 || u->form[1].bits > 8))
        return "int8 arithmetic on pages without codes";
    const bool lows = u->form[1].has_lows;
    if (math == DQ_FUSED_INT8 && !u->form[0].set_numbers != !(lows || u->form[1].set_numbers))
        return lows ? "int8 arithmetic with lows of values beside per-token codes of keys"
                    : "int8 arithmetic with per-channel codes of keys or values alone";
    if (round == DQ_ROUND_TILE) return "rounding of logits by tiles";
    return NULL;
}

cudaError_t dq_fused_scores(dq_attention_units u, int math, cudaStream_t s)
{
    if (dq_fused_lacks(&u, NULL, math, DQ_ROUND_NOT)) return cudaErrorInvalidValue;
    return math == DQ_FUSED_INT8 ? dq_fused_scores_int8(u, NULL, s) : launch_scores(u, NULL, s);
}

cudaError_t dq_fused_absmax(dq_attention_units u, uint32_t *max, int math, cudaStream_t s)
{
    if (dq_fused_lacks(&u, NULL, math, DQ_ROUND_NOT)) return cudaErrorInvalidValue;
    return math == DQ_FUSED_INT8 ? dq_fused_scores_int8(u, max, s) : launch_scores(u, max, s);
}

cudaError_t dq_fused_attend(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                            int math, cudaStream_t s)
{
    if (dq_fused_lacks(&u, &f, math, l.round)) return cudaErrorInvalidValue;
    return math == DQ_FUSED_INT8 ? dq_fused_attend_int8(u, f, l, s) : launch_attend(u, f, l, s);
}
