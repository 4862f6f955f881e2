/* attend: attention over operands, what its kernels share. A page of the cache, whatever its codes,
 * is unfolded once a call into f16 in the order in which products read it (operands). A warp owns
 * 16 rows of one map; a lane holds rows lane / 4 and lane / 4 + 8 of them, the channels or keys 8 j
 * + 2 (lane % 4) + e at [4 j + 2 row + e], of mma and wgmma alike. One pass over the pages keeps a
 * maximum and a sum for each row.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ATTEND_CUH
#define DQ_ATTEND_CUH

#include "kernels/cuda/device/page.cuh"

#include <math.h>

#define LOG2E 1.44269504f

enum {
    KEYS = DQ_PAGE_SLOTS, /* of a step */
    ROWS = 64,            /* of a unit, at most */
    TEAM = 128            /* threads that own the rows of a unit and map */
};

/* ---- operands */
/* Cells are 16 bytes: 8 channels of a key, or 8 tokens of a channel of values. Rows of products are
 * neighbours: cells of a run of channels follow by key, those of a run of tokens by channel. Or
 * (swizzled) 64 channels of a key, or all tokens of a channel, are 128 bytes, whose cells change
 * places by the row's number. */
enum dq_operand_layout { DQ_CELLS, DQ_SWIZZLED };

/* Byte of the i-th cell of row r, of so many. */
DQ_BOTH int dq_operand_cell(dq_operand_layout layout, int rows, int r, int i)
{
    return layout == DQ_CELLS ? (i * rows + r) * 16 : (i / 8 * rows + r) * 128 + ((i ^ r) % 8) * 16;
}
/* Byte of the cell that begins at channel c (a multiple of 8) of key t. */
DQ_BOTH int dq_operand_key(int t, int c, dq_operand_layout layout = DQ_CELLS)
{
    return dq_operand_cell(layout, KEYS, t, c / 8);
}
/* Byte of the cell that begins at token t (a multiple of 8) of channel c, of `channels`. */
DQ_BOTH int dq_operand_value(int channels, int t, int c, dq_operand_layout layout = DQ_CELLS)
{
    return dq_operand_cell(layout, channels, c, t / 8);
}
DQ_BOTH int dq_operand_key_bytes(int channels)
{
    return KEYS * channels * 2;
}
/* Of keys that are bytes: the cell that begins at channel c (a multiple of 16) of key t, and the
 * key's scale in f32. Each half of a head's room begins with half the channels, then half the
 * scales. */
DQ_BOTH int dq_operand_code(int channels, int t, int c)
{
    const int half = channels / 2;
    return c / half * KEYS * channels + (c % half / 16 * KEYS + t) * 16;
}
DQ_BOTH int dq_operand_scale(int channels, int t)
{
    const int half = KEYS / 2;
    return t / half * KEYS * channels + half * channels + t % half * 4;
}
DQ_BOTH int dq_operand_code_bytes(int channels)
{
    return KEYS * channels + KEYS * 4;
}

/* A page's keys of one head, and the values of a pair of slabs. */
DQ_BOTH int64_t dq_operand_keys_at(const dq_operands *o, int64_t page, int head)
{
    return page * o->page_bytes + (int64_t)head * dq_operand_key_bytes(o->key_channels);
}
DQ_BOTH int64_t dq_operand_values_at(const dq_operands *o, int64_t page, int pair)
{
    return dq_operand_keys_at(o, page, o->n_keys) +
           (int64_t)pair * dq_operand_key_bytes(o->value_channels);
}

/* Whether a magnitude is finite, and infinite in f16. */
DQ_DEVICE bool is_beyond(float x)
{
    return x > 65504.0f && x < INFINITY;
}

/* Eight values as a cell. */
DQ_DEVICE void put_cell(uint8_t *to, const float x[8], bool *beyond)
{
    float max = 0;
    DQ_UNROLL
    for (int i = 0; i < 8; i++) max = dq_max(max, dq_abs(x[i]));
    *beyond |= is_beyond(max);
    dq_store16(to, dq_u4{dq_f32x2_f16(x[0], x[1]), dq_f32x2_f16(x[2], x[3]),
                         dq_f32x2_f16(x[4], x[5]), dq_f32x2_f16(x[6], x[7])});
}

/* Eight neighbours of what is not coded. */
DQ_DEVICE void load_plain(float x[8], const dq_page_form *f, plain_place p)
{
    if (f->dense == DQ_PAGE_F32) {
        DQ_UNROLL
        for (int i = 0; i < 8; i += 4) {
            const dq_u4 v = dq_load16_const((const float *)p.from + p.at + i);
            x[i] = dq_bits_f32(v.x);
            x[i + 1] = dq_bits_f32(v.y);
            x[i + 2] = dq_bits_f32(v.z);
            x[i + 3] = dq_bits_f32(v.w);
        }
        return;
    }
    const dq_u4 v = dq_load16_const((const uint16_t *)p.from + p.at);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    DQ_UNROLL
    for (int i = 0; i < 8; i++) {
        const uint16_t half = (uint16_t)(word[i / 2] >> 16 * (i % 2));
        x[i] = f->dense == DQ_PAGE_F16 ? dq_f16_f32(half) : dq_bf16_f32(half);
    }
}

/* ---- steps */
/* A step is one view of one page: as codes, which rows read up to their coded end, or plain. */

struct dq_step {
    int n; /* twice the page, and 1 where it is plain */
};
DQ_BOTH int dq_page_of(dq_step s)
{
    return s.n >> 1;
}
DQ_BOTH bool dq_is_plain(dq_step s)
{
    return s.n & 1;
}

/* Of a page, the first. */
DQ_BOTH dq_step dq_step_of(const dq_attend_item *i, int page)
{
    return dq_step{2 * page + (page >= i->coded)};
}
DQ_BOTH dq_step dq_first_step(const dq_attend_item *i)
{
    return dq_step_of(i, i->first);
}
DQ_BOTH bool dq_step_is_there(const dq_attend_item *i, dq_step s)
{
    return dq_page_of(s) < i->end;
}
/* A page that is read both ways is read as codes first. */
DQ_BOTH dq_step dq_next_step(const dq_attend_item *i, dq_step s)
{
    const int page = dq_page_of(s) + 1;
    if (!dq_is_plain(s) && page > i->plain) return dq_step{s.n + 1};
    return dq_step_of(i, page);
}
DQ_BOTH int64_t dq_operand_page(const dq_attend_item *i, dq_step s)
{
    return (int64_t)(dq_is_plain(s) ? i->at[1] : i->at[0]) + dq_page_of(s);
}

/* Steps over int8 operands come in runs of pages: as codes, then of tokens that are never coded,
 * then plain ones; a page may be in several. */
enum { DQ_INT8_RUNS = 3 };
struct dq_int8_run {
    int first, end, at; /* at: operand page of page 0 */
};
DQ_BOTH dq_int8_run dq_int8_run_of(const dq_attend_item *i, int k)
{
    int first = i->first, end = i->end;
    if (k == 0 && first < i->uncoded / KEYS) first = i->uncoded / KEYS;
    if (k == 0 && end > i->coded) end = i->coded;
    if (k == 1 && end > (i->uncoded + KEYS - 1) / KEYS) end = (i->uncoded + KEYS - 1) / KEYS;
    if (k == 2 && first < i->plain) first = i->plain;
    return dq_int8_run{first, end, k == 0 ? i->at[0] : k == 1 ? i->at[2] : i->at[1]};
}

/* Tokens that rows of a class read as codes; none where nothing is coded. */
DQ_BOTH int dq_coded_of(const dq_page_form form[2], const dq_attention_unit *w, int row_class)
{
    if (form[0].bits >= 16 && form[1].bits >= 16) return 0;
    return w->coded[row_class] < w->keys ? w->coded[row_class] : w->keys;
}

/* ---- rows */

/* What a team computes. */
struct attend_job {
    const dq_attention_unit *w;               /* NULL: an item of fewer units */
    int out, slot[2], query[2], key[2], pair; /* slot: of strips */
};

DQ_DEVICE attend_job job_of(const dq_attend_call *a, const dq_attend_item *item, int i_out, int i)
{
    const dq_attention_unit *w = a->u.unit + item->unit;
    const dq_o_head o = a->u.o_head[a->u.o_first[w->group] + i_out];
    attend_job j = {i < item->n ? w + i : NULL, o.out, {0, 0}, {0, 0}, {0, 0}, o.pair};
    DQ_UNROLL
    for (int m = 0; m < 2; m++) { /* the second of one map is the first */
        const int q = m && a->u.n_maps == 2 ? o.q[1] : o.q[0];
        const dq_q_head h = a->u.q_head[a->u.q_first[w->group] + q];
        j.slot[m] = q;
        j.query[m] = h.head;
        j.key[m] = h.key;
    }
    return j;
}

DQ_DEVICE int query_of(const attend_job *j, int map)
{
    return map ? j->query[1] : j->query[0];
}

DQ_DEVICE const float *query_row(const dq_attention_units *u, const attend_job *j, int map, int row)
{
    return u->q + ((int64_t)(j->w->row + row) * u->n_q + query_of(j, map)) * u->form[0].dim;
}

/* Of the unit; rows after its last one read what that does, and are not stored. */
DQ_DEVICE int row_of(int i)
{
    return 16 * (int)(dq_warp() % 4) + (int)dq_lane() / 4 + 8 * i;
}
DQ_DEVICE bool has_row(const dq_attention_unit *w, int i)
{
    return w && row_of(i) < w->n;
}

/* Pages first .. end-1, all of whose keys all rows of a warp read in one way. */
struct full_pages {
    int first, end;
};

/* What a team knows of its rows, in shared memory: registers are scarce. A warp reads what it wrote
 * itself. */
struct attend_rows {
    /* A row reads tokens edge[0] .. edge[1]-1 of the list as codes, those before edge[2] plain. */
    int edge[3][ROWS];
    /* Rounding: S by `by` is a number of the row's grid, and that by `step` is in powers of two. */
    float by[ROWS], step[ROWS];
    full_pages full[4][2]; /* of warps: as codes, plain */
};
DQ_DEVICE bool is_full(const attend_rows *r, dq_step s)
{
    const full_pages f = r->full[row_of(0) / 16][dq_is_plain(s)]; /* by one load */
    return dq_page_of(s) >= f.first && dq_page_of(s) < f.end;
}

DQ_DEVICE int warp_min(int x)
{
    for (unsigned o = 16; o; o /= 2) {
        const int other = dq_shfl_xor(x, o);
        x = other < x ? other : x;
    }
    return x;
}

DQ_DEVICE int within(int x, int low, int high)
{
    return x < low ? low : x < high ? x : high;
}

/* Row i of a unit reads tokens edge[0] .. edge[1]-1, which are never coded, unquantized, then those
 * before edge[2] as codes, then those before edge[3] plain; the first are none but of int8
 * operands. all: it sees what any row does. */
DQ_DEVICE void find_edges(int edge[4], const dq_attention_units *u, const dq_attention_unit *w,
                          int i, bool all)
{
    const int row = w && i < w->n ? i : w ? w->n - 1 : 0;
    dq_window sees = {0, 0};
    if (w) sees = all ? dq_window{w->hidden[0], w->keys} : dq_window_of(u, w, row);
    edge[0] = sees.hidden;
    edge[1] = w ? within(w->uncoded, sees.hidden, sees.seen) : 0;
    edge[2] = w ? within(dq_coded_of(u->form, w, row >= w->split), edge[1], sees.seen) : 0;
    edge[3] = sees.seen;
}
/* Of the warp's rows, whose bounds the lanes have. */
DQ_DEVICE full_pages pages_between(int first, int end)
{
    return {(KEYS - 1 - warp_min(-first)) / KEYS, warp_min(end) / KEYS};
}

/* The warp's rows. */
DQ_DEVICE void note_rows(attend_rows *r, const dq_attention_units *u, const dq_attention_unit *w,
                         bool all)
{
    const int warp = (int)dq_warp() % 4, i = 16 * warp + (int)dq_lane() % 16;
    int edge[4];
    find_edges(edge, u, w, i, all);
    const full_pages full[2] = {pages_between(edge[1], edge[2]), pages_between(edge[2], edge[3])};
    DQ_WARP_SYNC(attend_rows_read); /* those before */
    DQ_UNROLL
    for (int k = 0; k < 3 && dq_lane() < 16; k++) r->edge[k][i] = edge[k + 1];
    DQ_UNROLL
    for (int k = 0; k < 2 && dq_lane() == 0; k++) r->full[warp][k] = full[k];
    DQ_WARP_SYNC(attend_rows_there);
}

/* The grids of the warp's rows, after note_rows. */
template <class R>
DQ_DEVICE void note_grids(R *r, const dq_attend_call *a, const attend_job *j, int map)
{
    const int i = 16 * (int)(dq_warp() % 4) + (int)dq_lane() % 16;
    float by = 0, step = 1;
    if (j->w) {
        const int row = i < j->w->n ? i : j->w->n - 1;
        const int64_t group = a->logits.round == DQ_ROUND_GIVEN ? j->w->seq : j->w->row + row;
        const float max = a->logits.absmax[group * a->u.n_q + query_of(j, map)];
        if (max != 0) { /* rows of zeros stay zeros, and NaN stays one */
            by = dq_div_rn(dq_mul_rn(a->u.scale, a->logits.qmax), max);
            step = dq_mul_rn(dq_div_rn(max, a->logits.qmax), LOG2E);
        }
    }
    if (dq_lane() < 16) {
        r->by[i] = by;
        r->step[i] = step;
    }
    DQ_WARP_SYNC(attend_grids_there);
}

/* Keys that a row reads of a step: lo .. hi-1. */
struct key_window {
    int lo, hi;
};
DQ_DEVICE bool is_in(key_window w, int t)
{
    return t >= w.lo && t < w.hi;
}
DQ_DEVICE key_window window_of(const attend_rows *r, dq_step s, int i)
{
    const int at = dq_page_of(s) * KEYS, *const edge = r->edge[dq_is_plain(s)] + row_of(i);
    return {edge[0] - at, edge[ROWS] - at};
}
/* Key of entry k of a lane's scores. */
DQ_DEVICE int key_of(int k)
{
    return 8 * (k / 4) + 2 * ((int)dq_lane() % 4) + k % 2;
}

/* ---- softmax */

/* Of the lane's two rows. Maxima are in powers of two, and may be up to MARGIN too low: P is at
 * most 2^MARGIN then, which f16 holds. A row's maximum moves by what the row sees alone. */
struct attend_stats {
    float max[2], sum[2]; /* sum: the lane's share */
    float alpha[2];       /* what earlier sums and outputs are multiplied with */
};
#define MARGIN 8.0f
#define ABSENT -1e30f /* the maximum of a row that has seen nothing */

DQ_DEVICE attend_stats no_stats(void)
{
    return attend_stats{{ABSENT, ABSENT}, {0, 0}, {1, 1}};
}

/* The largest of a quad's rows. */
DQ_DEVICE float quad_max(float x)
{
    x = dq_max(x, dq_shfl_xor(x, 1u));
    return dq_max(x, dq_shfl_xor(x, 2u));
}
DQ_DEVICE float quad_sum(float x)
{
    x = dq_add_rn(x, dq_shfl_xor(x, 1u));
    return dq_add_rn(x, dq_shfl_xor(x, 2u));
}

/* S[N], 2 N keys of a step from `from` on, becomes exp2(S - max); keys that a row does not read
 * become 0. FULL: each row reads each key. scale: of S, to powers of two. CODED: S is to be
 * multiplied with q_scale, too.
 * Whether outputs of earlier keys are to be multiplied with alpha. */
template <bool ROUND, int N, bool FULL = false, bool CODED = false, class S, class R>
DQ_DEVICE bool softmax(S &s, attend_stats &x, const R *r, dq_step step, int from, float scale)
{
    float by[2] = {scale, scale};
    const bool full = FULL || is_full(r, step);
    if (ROUND) {
        const float integral = 12582912.0f; /* 1.5 * 2^23: added to it a number is integral */
        DQ_UNROLL
        for (int i = 0; i < 2; i++) {
            float to = r->by[row_of(i)];
            if constexpr (CODED) to = dq_mul_rn(to, r->q_scale[row_of(i)]);
            DQ_UNROLL
            for (int k = 2 * i; k < N; k += k % 2 ? 3 : 1)
                s[k] = dq_sub_rn(dq_fma_rn(s[k], to, integral), integral);
            dq_in_order();
        }
        DQ_UNROLL
        for (int i = 0; i < 2; i++) by[i] = r->step[row_of(i)];
    } else if constexpr (CODED) {
        DQ_UNROLL
        for (int i = 0; i < 2; i++) by[i] = dq_mul_rn(scale, r->q_scale[row_of(i)]);
    }
    if (!full) {
        DQ_UNROLL
        for (int i = 0; i < 2; i++) {
            const key_window w = window_of(r, step, i);
            DQ_UNROLL
            for (int k = 2 * i; k < N; k += k % 2 ? 3 : 1)
                if (!is_in(w, from + key_of(k))) s[k] = -INFINITY;
        }
    }
    float top[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        top[i] = dq_max(s[2 * i], s[2 * i + 1]);
        DQ_UNROLL
        for (int k = 4; k < N; k += 4)
            top[i] = dq_max(top[i], dq_max(s[k + 2 * i], s[k + 2 * i + 1]));
        top[i] = dq_mul_rn(top[i], by[i]);
    }
    const bool moves =
        dq_any(top[0] > dq_add_rn(x.max[0], MARGIN) || top[1] > dq_add_rn(x.max[1], MARGIN));
    if (moves) {
        DQ_UNROLL
        for (int i = 0; i < 2; i++) {
            const float max = quad_max(top[i]);
            x.alpha[i] = 1;
            if (max <= dq_add_rn(x.max[i], MARGIN)) continue;
            x.alpha[i] = dq_exp2_fast(dq_sub_rn(x.max[i], max));
            x.sum[i] = dq_mul_rn(x.sum[i], x.alpha[i]);
            x.max[i] = max;
        }
    }
    DQ_UNROLL
    for (int k = 0; k < N; k++) {
        const int i = k / 2 % 2;
        s[k] = dq_exp2_fast(dq_fma_rn(s[k], by[i], -x.max[i]));
        x.sum[i] = dq_add_rn(x.sum[i], s[k]);
    }
    return moves;
}

/* Scores as the left operand of P V. */
template <int N, class P, class S> DQ_DEVICE void pack(P &p, S &s)
{
    DQ_UNROLL
    for (int i = 0; i < N / 2; i++) p[i] = dq_f32x2_f16(s[2 * i], s[2 * i + 1]);
}

template <int N, class O> DQ_DEVICE void rescale(O &o, const attend_stats &x)
{
    DQ_UNROLL
    for (int k = 0; k < N; k++) o[k] = dq_mul_rn(o[k], x.alpha[k / 2 % 2]);
}

/* ---- output */

DQ_DEVICE float lambda_at(const dq_attention_units *u, const dq_attention_unit *w, int row, int out)
{
    return u->lambda ? u->lambda[(int64_t)(w->row + row) * u->n_out + out] : u->lambda_layer;
}

/* Channel c of a row that is `by` its root mean square. */
DQ_DEVICE float finished(const dq_attention_finish *f, float y, float by, int c)
{
    if (f->norm) y = dq_mul_rn(y, by);
    if (f->norm && f->gain) y = dq_mul_rn(y, f->gain[c]);
    return f->out_scale != 1.0f ? dq_mul_rn(y, f->out_scale) : y;
}

/* o becomes that of both maps, for the first team, by way of shared memory: `box` holds a half of
 * the second's. For both teams. */
template <int N, class O>
DQ_DEVICE void subtract(O &o, float *box, const attend_stats &x, const dq_attention_units *u,
                        const attend_job *j, int map)
{
    float by[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        float weight = map ? 0.0f : 1.0f;
        if (map && has_row(j->w, i)) weight = -lambda_at(u, j->w, row_of(i), j->out);
        by[i] = dq_div_rn(weight, quad_sum(x.sum[i]));
    }
    box += dq_thread() % TEAM;
    DQ_BAR_SYNC(3, 2 * TEAM, attend_box_free);
    DQ_UNROLL
    for (int half = 0; half < N; half += N / 2) {
        DQ_UNROLL
        for (int k = 0; k < N / 2; k++) {
            const float mine = dq_mul_rn(o[half + k], by[k / 2 % 2]);
            o[half + k] = mine;
            if (map) box[k * TEAM] = mine;
        }
        DQ_BAR_SYNC(1, 2 * TEAM, attend_box_full);
        DQ_UNROLL
        for (int k = 0; k < N / 2 && !map; k++) {
            if (k % 8 == 0) dq_in_order();
            o[half + k] = dq_add_rn(o[half + k], box[k * TEAM]);
        }
        DQ_BAR_SYNC(2, 2 * TEAM, attend_box_read);
    }
}

/* The same of one map. */
template <int N, class O> DQ_DEVICE void divide(O &o, const attend_stats &x)
{
    float by[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) by[i] = dq_div_rn(1.0f, quad_sum(x.sum[i]));
    DQ_UNROLL
    for (int k = 0; k < N; k++) o[k] = dq_mul_rn(o[k], by[k / 2 % 2]);
}

struct alignas(8) attend_two {
    float x, y;
};

/* Rows of one team to where they belong. */
template <int N, class O>
DQ_DEVICE void store_rows(O &o, const dq_attend_call *a, const attend_job *j)
{
    const dq_attention_finish *f = &a->f;
    const int width = a->u.n_slabs * a->u.form[1].dim;
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        float squares = 0, by = 1;
        DQ_UNROLL
        for (int k = 2 * i; k < N; k += 4) { /* what pads the channels is zero */
            squares = dq_fma_rn(o[k], o[k], squares);
            squares = dq_fma_rn(o[k + 1], o[k + 1], squares);
        }
        if (f->norm) {
            const float mean = dq_div_rn(quad_sum(squares), (float)width);
            by = dq_div_rn(1.0f, dq_sqrt_rn(dq_add_rn(mean, f->norm_eps)));
        }
        if (!has_row(j->w, i)) continue;
        float *to = f->out + (j->w->row + row_of(i)) * f->out_cols + (int64_t)j->out * width;
        const bool sees = dq_sees(&a->u, j->w, row_of(i));
        DQ_UNROLL
        for (int k = 2 * i; k < N; k += 4) {
            const int c = key_of(k - 2 * i);
            if (k % 16 < 4) dq_in_order();
            if (c >= width) break;
            attend_two y = {finished(f, o[k], by, c), finished(f, o[k + 1], by, c + 1)};
            if (!sees) y = attend_two{0, 0};
            *(attend_two *)(to + c) = y;
        }
    }
}

/* ---- shares of a row, where blocks divide its pages */
/* [parts][out heads of a launch][maps][rows of the unit]: maximum, sum, then the values. */

DQ_BOTH int64_t dq_share_floats(const dq_attend_call *a)
{
    return a->o.value_channels + 2;
}
/* part: rows of the parts before it. */
DQ_DEVICE float *share_at(const dq_attend_call *a, const dq_attention_unit *w, int part, int i_out,
                          int map, int row)
{
    const int64_t at = (int64_t)part * a->u.max_out * a->u.n_maps +
                       (int64_t)(i_out * a->u.n_maps + map) * w->n + row;
    return a->share + at * dq_share_floats(a);
}

template <int N, class O>
DQ_DEVICE void store_share(O &o, const attend_stats &x, const dq_attend_call *a,
                           const dq_attention_unit *w, int part, int i_out, int map)
{
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        const float sum = quad_sum(x.sum[i]);
        if (!has_row(w, i)) continue;
        float *to = share_at(a, w, part, i_out, map, row_of(i));
        if (dq_lane() % 4 == 0) *(attend_two *)to = attend_two{x.max[i], sum};
        DQ_UNROLL
        for (int k = 2 * i; k < N; k += 4)
            *(attend_two *)(to + 2 + key_of(k - 2 * i)) = attend_two{o[k], o[k + 1]};
    }
}

/* ---- the end of an item */

/* What a team has made of the index-th item and head: to rows, or to a part of theirs. i: of the
 * team's unit. All that steps have no need of is read here: registers are scarce. */
template <int N, class O>
DQ_DEVICE void end_item(O &o, const attend_stats &x, const dq_attend_call *a, int index, int i,
                        int map, float *box)
{
    dq_in_order();
    const dq_attend_item item = a->item[index / a->u.max_out];
    const int i_out = index % a->u.max_out;
    const attend_job j = job_of(a, &item, i_out, i);
    if (item.part >= 0) {
        store_share<N>(o, x, a, j.w, item.part, i_out, map);
        return;
    }
    if (a->u.n_maps == 2)
        subtract<N>(o, box, x, &a->u, &j, map);
    else
        divide<N>(o, x);
    if (!map) store_rows<N>(o, a, &j);
}

#endif
