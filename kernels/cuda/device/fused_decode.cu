/* fused_decode: int8 attention of few rows per sequence, bound by the bytes of pages. Scores and
 * values are two launches: a token's score takes four bytes, far less than its codes. A warp reads
 * a page; for scores a lane is a token, for values a channel.
 *
 * Every sum has the order of attend_int8, so the results have its bits, however blocks share the
 * pages: sums of codes are exact, and each page's is kept until its turn to be added.
 * Three short chains stay serial: four lanes' sum of exps (decode_sums), the unquantized tokens of
 * a page on top of the pages before (decode_join), and the norm.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/fused_int8.cuh"

/* ---- shared */
/* What a block has to do, tokens that are read unquantized, and D of a page. */

enum {
    MAX_DECODE_ROWS = DQ_FUSED_DECODE_ROWS,
    SPLIT = 8, /* pages of a block */
    AHEAD = 32 /* parts that are on their way together, or half as many and what runs add in them */
};

/* A page's partial sums of a row, from `first` on, and whether the row reads unquantized tokens. */
struct page_parts {
    int32_t first, n;
    bool plain;
};

/* The i-th output head of the unit's group, by one thread. */
DQ_DEVICE void open_values(fused_job *j, const dq_attention_units *u, const dq_attention_unit *w,
                           int i)
{
    const dq_o_head o = u->o_head[u->o_first[w->group] + i];
    j->out = o.out;
    j->n_maps = 0;
    j->n_slabs = u->n_slabs;
    for (int m = 0; m < 2; m++) {
        j->strip[m] = o.q[m];
        j->value[m] = o.v[m];
    }
    open_maps(j, u, w);
}

/* Grid: splits, heads (of queries, or output) of a group, units. */
DQ_DEVICE bool open_split(fused_job *j, const dq_attention_units *u, const int32_t *heads)
{
    const dq_attention_unit *w = u->unit + dq_block_z();
    int i = (int)dq_block_y();
    if ((int)dq_block_x() * SPLIT * DQ_PAGE_SLOTS >= w->keys || i >= heads_of(heads, w->group))
        return false;
    if (dq_thread() == 0) {
        if (heads == u->o_first) {
            open_values(j, u, w, i);
        } else {
            j->n_maps = 1;
            j->n_slabs = 0;
            j->strip[0] = i;
            open_maps(j, u, w);
        }
    }
    DQ_SYNC(decode_job); /* the job is there */
    return true;
}

DQ_DEVICE bool next_page(const fused_job *j, int *page)
{
    *page += *page < 0 ? (int)dq_block_x() * SPLIT + (int)dq_warp() + 1 : WARPS;
    return *page < j->n_pages && *page < ((int)dq_block_x() + 1) * SPLIT;
}

/* Row r reads slots n_sinks .. end-1 as codes. */
DQ_DEVICE int code_end(const fused_job *j, int side, int page, int r)
{
    const dq_page_side *s = &j->pages[page].side[side];
    if (!s->codes) return 0;
    return s->plain ? slots_of(j->w->coded[r >= j->w->split], page) : DQ_PAGE_SLOTS;
}

/* acc + the codes of 16 channels of a row times those of a token. */
DQ_DEVICE int32_t multiply_cell(int32_t acc, dq_u4 x, dq_u4 k)
{
    acc = dq_dp4a_s8u8(acc, x.x, k.x);
    acc = dq_dp4a_s8u8(acc, x.y, k.y);
    acc = dq_dp4a_s8u8(acc, x.z, k.z);
    return dq_dp4a_s8u8(acc, x.w, k.w);
}

/* S of token t and row r in f32, unscaled. */
DQ_DEVICE float token_plain(const dq_attention_units *u, const fused_job *j, int page, int t, int r)
{
    const float *q = query_of(u, j, 0, r);
    const float *k = plain_token(&u->form[0], j->pages + page, 0, j->key[0], t);
    float s = 0;
    for (int c = 0; c < u->form[0].dim; c += 4) {
        dq_u4 x = dq_load16_const(q + c), y = dq_load16_const(k + c);
        s = dq_fma_rn(dq_bits_f32(x.x), dq_bits_f32(y.x), s);
        s = dq_fma_rn(dq_bits_f32(x.y), dq_bits_f32(y.y), s);
        s = dq_fma_rn(dq_bits_f32(x.z), dq_bits_f32(y.z), s);
        s = dq_fma_rn(dq_bits_f32(x.w), dq_bits_f32(y.w), s);
    }
    return s;
}

/* A row's maximum and sum of exps, where softmax of attention.cu has its sum. */
DQ_DEVICE pair *sums_of(const dq_attention_units *u, const dq_attention_unit *w, int i, int r)
{
    return (pair *)(u->sum + w->record + (int64_t)i * w->n + r);
}

/* A warp's page: D, and D times scales of a run in bytes. */
struct decode_page {
    float d[MAX_DECODE_ROWS][DQ_PAGE_SLOTS];
    int8_t high[MAX_DECODE_ROWS][DQ_PAGE_SLOTS], low[MAX_DECODE_ROWS][DQ_PAGE_SLOTS];
    float scale[MAX_DECODE_ROWS];
};

/* A row's maxima, and what its exps are multiplied with; in shared memory. */
struct row_known {
    float top[2], factor[2];
};

/* Of row r, by one thread: quotients in the loops over pages cost registers. */
DQ_DEVICE void know_row(row_known *to, const dq_attention_units *u, const fused_job *j, int r)
{
    for (int m = 0; m < u->n_maps; m++) {
        pair known = *sums_of(u, j->w, j->strip[m], r);
        float over = m ? -lambda_at(u, j->w, r, j->out) : 1.0f;
        to->top[m] = known.x;
        to->factor[m] = dq_div_rn(over, known.y);
    }
}

/* D (one map: exp(S - max)) at the list's token `at`; zero where row r does not see it. */
DQ_DEVICE float difference_at(const dq_attention_units *u, const fused_job *j,
                              const row_known *known, int r, int at)
{
    float d = 0;
    if (at >= visible_of(u, j->w, r)) return d;
    for (int m = 0; m < u->n_maps; m++) {
        float x = exp_less(strip_of(u, j->w, j->strip[m], r)[at], known->top[m]);
        d = dq_add_rn(d, dq_mul_rn(x, u->n_maps == 2 ? known->factor[m] : 1.0f));
    }
    return d;
}

DQ_DEVICE void page_difference(decode_page *to, const dq_attention_units *u, const fused_job *j,
                               const row_known *known, int page)
{
    for (int i = (int)dq_lane(); i < j->w->n * DQ_PAGE_SLOTS; i += DQ_WARP)
        to->d[i / DQ_PAGE_SLOTS][i % DQ_PAGE_SLOTS] =
            difference_at(u, j, known + i / DQ_PAGE_SLOTS, i / DQ_PAGE_SLOTS,
                          page * DQ_PAGE_SLOTS + i % DQ_PAGE_SLOTS);
}

/* e[i] of token lane + 32 i and row r, in bytes. By a warp. */
DQ_DEVICE void row_bytes(decode_page *to, const float e[2], int r)
{
    uint32_t a = dq_f32_bits(e[0]) & 0x7fffffffu, b = dq_f32_bits(e[1]) & 0x7fffffffu,
             max = a > b ? a : b;
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(max, o);
        max = other > max ? other : max;
    }
    float peak = dq_bits_f32(max);
    bool real = max < 0x7f800000u, some = real && peak >= 0x1p-100f;
    float factor = some ? dq_div_rn(32512.0f, peak) : 0.0f; /* 127 * 256: both bytes are signed */
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i, c = some ? dq_f32_s32(dq_mul_rn(e[i], factor)) : 0;
        to->low[r][t] = (int8_t)(((c + 128) & 255) - 128);
        to->high[r][t] = (int8_t)((c + 128) >> 8);
    }
    if (dq_lane() == 0)
        to->scale[r] = some ? dq_div_rn(peak, 32512.0f) : real ? 0.0f : dq_bits_f32(0x7fc00000u);
}

/* sum[r] = the sum of codes of D V in one channel. sixteens: D of tokens elsewhere is zero. */
DQ_DEVICE void channel_sums(int32_t sum[MAX_DECODE_ROWS], const decode_page *d,
                            const dq_page_form *f, int bits, const uint8_t *codes, int c, int n,
                            uint32_t sixteens)
{
    int32_t high[MAX_DECODE_ROWS] = {}, low[MAX_DECODE_ROWS] = {};
    DQ_UNROLL
    for (int b = 0; b < 4; b++) {
        if (!(sixteens >> b & 1)) continue;
        dq_u4 v = value_cell(codes, bits, f->cols, b, c);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++) {
            if (r >= n) break;
            dq_u4 h = dq_load16(&d->high[r][16 * b]), l = dq_load16(&d->low[r][16 * b]);
            high[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(high[r], h.x, v.x), h.y, v.y);
            high[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(high[r], h.z, v.z), h.w, v.w);
            low[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(low[r], l.x, v.x), l.y, v.y);
            low[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(low[r], l.z, v.z), l.w, v.w);
        }
    }
    DQ_UNROLL
    for (int r = 0; r < MAX_DECODE_ROWS; r++) sum[r] = high[r] * 256 + low[r];
}

/* Floats of a row in a part: its channels and, where values have lows, what each run adds. */
DQ_BOTH int part_width(const dq_attention_units *u)
{
    const dq_page_form *f = &u->form[1];
    return u->n_slabs * (f->has_lows ? f->dim + dq_page_runs(f) : f->dim);
}

/* [rows][part_width] after the unit's strips, by [output head][page, or set of values]. */
DQ_DEVICE float *part_of(const dq_attention_units *u, const dq_attention_unit *w, int out, int part)
{
    int64_t strips = (int64_t)heads_of(u->q_first, w->group) * w->n * w->ld;
    int64_t at = (int64_t)out * w->n_parts + part;
    return u->strip + w->strip + strips + at * w->n * part_width(u);
}

/* ---- per-channel codes */
/* A warp reads a page, rounds the rows for each of its sets, and keeps a part for each set. */

/* ---- scores of sets */

/* A warp's rows of queries, rounded by a set; or one row, by as many sets. */
struct set_queries {
    int8_t code[MAX_DECODE_ROWS * 128];
    float scale[MAX_DECODE_ROWS], base[MAX_DECODE_ROWS];
    int32_t sum[MAX_DECODE_ROWS];
};

/* Strips of the tokens of a page that rows read unquantized. */
DQ_DEVICE void put_plain(const dq_attention_units *u, const fused_job *j, int page, bool coded)
{
    int n = slots_of(j->w->keys, page), sinks = j->pages[page].n_sinks;
    for (int t = (int)dq_lane(); t < n; t += DQ_WARP) {
        for (int r = 0; r < j->w->n; r++) {
            if (coded && t >= sinks && t < code_end(j, 0, page, r)) continue;
            strip_of(u, j->w, j->strip[0], r)[page * DQ_PAGE_SLOTS + t] =
                dq_mul_rn(token_plain(u, j, page, t, r), u->scale);
        }
    }
}

/* Strip of token t and row r, of which slot `slot` of q has what acc was made with. */
DQ_DEVICE void put_score(const dq_attention_units *u, const fused_job *j, const set_queries *q,
                         int32_t acc, int bits, int page, int t, int slot, int r)
{
    if (t >= code_end(j, 0, page, r)) return;
    float x = dq_s32_f32(acc - q->sum[slot] * (1 << (bits - 1)));
    x = dq_add_rn(dq_mul_rn(x, q->scale[slot]), q->base[slot]);
    strip_of(u, j->w, j->strip[0], r)[page * DQ_PAGE_SLOTS + t] = dq_mul_rn(x, u->scale);
}

/* Strips of token t and the rows that read it as a code, from a head's codes. */
DQ_DEVICE void put_code(const dq_attention_units *u, const fused_job *j, const set_queries *q,
                        const uint8_t *codes, int bits, int page, int t)
{
    const dq_page_form *f = &u->form[0];
    int32_t acc[MAX_DECODE_ROWS] = {};
    for (int block = 0; block < f->cols / 16; block++) {
        dq_u4 k = key_cell(codes, bits, f->cols, block, t);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++) {
            if (r >= j->w->n) break;
            acc[r] =
                multiply_cell(acc[r], dq_load16(q->code + (block * MAX_DECODE_ROWS + r) * 16), k);
        }
    }
    DQ_UNROLL
    for (int r = 0; r < MAX_DECODE_ROWS; r++) {
        if (r >= j->w->n) break;
        put_score(u, j, q, acc[r], bits, page, t, r, r);
    }
}

/* Strips of a page's codes and one row: a quad of lanes rounds it by a set, a lane has a token. */
DQ_DEVICE void put_single(const dq_attention_units *u, const fused_job *j, set_queries *mine,
                          const key_numbers *k, int page)
{
    const rounded_queries to = {mine->code, mine->scale, mine->sum, MAX_DECODE_ROWS};
    const uint8_t *codes = dq_page_codes(k->form, k->page, 0, k->head);
    int n = slots_of(j->w->keys, page), n_sets = dq_page_ones(k->page->begins);
    int quad = (int)dq_lane() / 4;
    for (int from = 0; from < n_sets; from += MAX_DECODE_ROWS) {
        DQ_WARP_SYNC(decode_single_read); /* what eight sets before rounded has been read */
        round_row_by_set(&to, mine->base, k, from + quad < n_sets ? from + quad : n_sets - 1,
                         query_of(u, j, 0, 0), quad);
        DQ_WARP_SYNC(decode_single_rounded); /* the row is rounded by eight sets */
        for (int t = (int)dq_lane(); t < n; t += DQ_WARP) {
            int slot = dq_page_set_of(k->page, t) - from;
            if (slot < 0 || slot >= MAX_DECODE_ROWS) continue;
            int32_t acc = 0;
            for (int block = 0; block < k->form->cols / 16; block++)
                acc = multiply_cell(acc,
                                    dq_load16(mine->code + (block * MAX_DECODE_ROWS + slot) * 16),
                                    key_cell(codes, k->bits, k->form->cols, block, t));
            put_score(u, j, mine, acc, k->bits, page, t, slot, 0);
        }
    }
}

/* Strips, of tokens that the unit has. */
DQ_KERNEL_BLOCKS(THREADS, 4) decode_scores_sets(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(set_queries, rows, [WARPS]);
    if (!open_split(job, &u, u.q_first)) return;
    const dq_page_form *f = &u.form[0];
    set_queries *mine = rows + dq_warp();
    const rounded_queries to = {mine->code, mine->scale, mine->sum, MAX_DECODE_ROWS};
    const int row = (int)dq_lane() / 4;
    const float *q = query_of(&u, job, 0, row < job->w->n ? row : 0);
    for (int page = -1; next_page(job, &page);) {
        const dq_page *p = job->pages + page;
        bool coded = is_coded(job, p, 0, page);
        int n = slots_of(job->w->keys, page), head = job->key[0];
        put_plain(&u, job, page, coded);
        if (!coded) continue;
        const key_numbers k = {f, p, NULL, head, dq_page_bits(f, p, 0, head)};
        if (job->w->n == 1) {
            put_single(&u, job, mine, &k, page);
            continue;
        }
        for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set) && set.first < n;) {
            DQ_WARP_SYNC(decode_set_read); /* rows of the set before have been read */
            round_row_by_set(&to, mine->base, &k, set.index, q, row);
            DQ_WARP_SYNC(decode_set_rounded); /* rows are rounded */
            int end = set.end < n ? set.end : n;
            for (int t = set.first + (int)dq_lane(); t < end; t += DQ_WARP)
                put_code(&u, job, mine, dq_page_codes(f, p, 0, head), k.bits, page, t);
        }
    }
}

/* ---- values of sets */

/* By a warp: sums over a page, of which a lane has x[i] of token lane + 32 i, as fold_sums does. */
DQ_DEVICE float fold_page(const float x[2])
{
    bool upper = dq_lane() >= 16;
    float a = dq_shfl_xor(x[0], 16u), b = dq_shfl_xor(x[1], 16u);
    float sum = dq_add_rn(dq_add_rn(0.0f, upper ? a : x[0]), upper ? x[0] : a);
    sum = dq_add_rn(dq_add_rn(sum, upper ? b : x[1]), upper ? x[1] : b);
    for (unsigned o = 8; o; o >>= 1) sum = dq_add_rn(sum, dq_shfl_xor(sum, o));
    return sum;
}

/* D of row r in a set: bytes, its sum and that of D times dither. */
DQ_DEVICE void round_set_row(decode_page *to, pair *sums, const dq_attention_units *u,
                             const fused_job *j, int page, const dq_page_set *set, int r)
{
    const dq_page *p = j->pages + page;
    int end = code_end(j, 1, page, r), seen = visible_of(u, j->w, r) - page * DQ_PAGE_SLOTS;
    float e[2], dithered[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i;
        bool in = t >= set->first && t < set->end && t < end && t < seen;
        e[i] = in ? to->d[r][t] : 0.0f;
        dithered[i] = dq_mul_rn(e[i], dq_page_dither(&u->form[1], p, 1, t));
    }
    row_bytes(to, e, r);
    float base = fold_page(e), less = p->dither >= 0 ? fold_page(dithered) : 0.0f;
    if (dq_lane() == 0) sums[r] = pair{base, less};
}

/* What a set adds to rows, to [rows][width]. */
DQ_DEVICE void add_set(float *to, decode_page *d, pair *sums, const dq_attention_units *u,
                       const fused_job *j, int page, const dq_page_set *set)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    int width = j->n_slabs * f->dim;
    DQ_WARP_SYNC(decode_set_bytes_read); /* D is there; bytes of the set before have been read */
    for (int r = 0; r < j->w->n; r++) round_set_row(d, sums, u, j, page, set, r);
    DQ_WARP_SYNC(decode_set_bytes_there); /* D is there in bytes */
    for (int i = (int)dq_lane(); i < width; i += DQ_WARP) {
        int head = j->value[i / f->dim], c = i % f->dim, bits = dq_page_bits(f, p, 1, head);
        int64_t at = (int64_t)(set->index * p->heads + head) * f->set_numbers;
        pair number = set_number(f, p->side[1].scale, p->wide[1], at, bits, c);
        int32_t sum[MAX_DECODE_ROWS];
        channel_sums(sum, d, f, bits, dq_page_codes(f, p, 1, head), c, j->w->n,
                     sixteens_of(set->first, set->end));
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++)
            if (r < j->w->n)
                to[r * width + i] =
                    set_part(sum[r], d->scale[r], sums[r].y, sums[r].x, number.x, number.y);
    }
}

DQ_KERNEL(THREADS) decode_values_sets(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(decode_page, pages, [WARPS]);
    DQ_SHARED(pair, sums, [WARPS * MAX_DECODE_ROWS]);
    DQ_SHARED(row_known, known, [MAX_DECODE_ROWS]);
    if (!open_split(job, &u, u.o_first)) return;
    if ((int)dq_thread() < job->w->n) know_row(known + dq_thread(), &u, job, (int)dq_thread());
    DQ_SYNC(decode_set_rows_known); /* rows are known */
    decode_page *d = pages + dq_warp();
    for (int page = -1; next_page(job, &page);) {
        const dq_page *p = job->pages + page;
        if (!is_coded(job, p, 1, page)) continue;
        page_difference(d, &u, job, known, page);
        for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set);)
            add_set(part_of(&u, job->w, (int)dq_block_y(), p->first_set + set.index), d,
                    sums + dq_warp() * MAX_DECODE_ROWS, &u, job, page, &set);
    }
}

/* ---- scores */

/* S of token t and all rows from its codes, unscaled. */
DQ_DEVICE void token_codes(float s[MAX_DECODE_ROWS], const dq_attention_units *u,
                           const fused_job *j, const rounded_queries *q, int page, int t)
{
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    const uint8_t *codes = p->side[0].codes + (size_t)j->key[0] * (size_t)f->code_bytes;
    for (int g = 0; g < f->n_scales; g++) {
        int32_t acc[MAX_DECODE_ROWS] = {};
        for (int block = g * f->group / 16; block < run_end(f, g) / 16; block++) {
            dq_u4 k = key_cell(codes, f->bits, f->cols, block, t);
            DQ_UNROLL
            for (int r = 0; r < MAX_DECODE_ROWS; r++) {
                if (r >= j->w->n) break;
                acc[r] = multiply_cell(acc[r],
                                       dq_load16(q->code + (block * MAX_DECODE_ROWS + r) * 16), k);
            }
        }
        float key = dq_page_scale(f, p, 0, j->key[0], t, g);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++) {
            if (r >= j->w->n) break;
            int32_t shift = q->sum[g * MAX_DECODE_ROWS + r] * (1 << (f->bits - 1));
            float x = dq_mul_rn(dq_s32_f32(acc[r] - shift),
                                dq_mul_rn(q->scale[g * MAX_DECODE_ROWS + r], key));
            s[r] = g ? dq_add_rn(s[r], x) : x;
        }
    }
}

/* Strips, of tokens that the unit has. */
DQ_KERNEL(THREADS) decode_scores(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(int8_t, code, [MAX_DECODE_ROWS * 128]);
    DQ_SHARED(float, scale, [MAX_DECODE_ROWS * 8]);
    DQ_SHARED(int32_t, sum, [MAX_DECODE_ROWS * 8]);
    if (!open_split(job, &u, u.q_first)) return;
    rounded_queries q = {code, scale, sum, MAX_DECODE_ROWS};
    for (int r = (int)dq_warp(); r < job->w->n; r += WARPS)
        round_query(&q, &u.form[0], query_of(&u, job, 0, r), r);
    DQ_SYNC(decode_queries); /* queries are rounded */
    for (int page = -1; next_page(job, &page);) {
        bool coded = is_coded(job, job->pages + page, 0, page);
        int n = slots_of(job->w->keys, page), sinks = job->pages[page].n_sinks;
        for (int t = (int)dq_lane(); t < n; t += DQ_WARP) {
            float s[MAX_DECODE_ROWS] = {};
            if (coded && t >= sinks) token_codes(s, &u, job, &q, page, t);
            DQ_UNROLL
            for (int r = 0; r < MAX_DECODE_ROWS; r++) {
                if (r >= job->w->n) break;
                if (!coded || t < sinks || t >= code_end(job, 0, page, r))
                    s[r] = token_plain(&u, job, page, t, r);
                strip_of(&u, job->w, job->strip[0], r)[page * DQ_PAGE_SLOTS + t] =
                    dq_mul_rn(s[r], u.scale);
            }
        }
    }
}

/* ---- sums */

/* The k-th token that lane q of a quad of attend_int8 adds of half page h. */
DQ_DEVICE int token_at(int h, int q, int k)
{
    return 32 * h + token_of<false>(k / 2, q) + k % 2;
}

/* The largest |S| of a row, NaN above all. held[WARPS]. */
DQ_DEVICE float row_max(const float *row, int seen, uint32_t *held)
{
    uint32_t max = 0;
    for (int t = (int)dq_thread(); t < seen; t += THREADS) {
        uint32_t bits = dq_f32_bits(row[t]) & 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(max, o);
        max = other > max ? other : max;
    }
    if (dq_lane() == 0) held[dq_warp()] = max;
    DQ_SYNC(decode_max); /* maxima of warps are there */
    for (int i = 0; i < WARPS; i++) max = held[i] > max ? held[i] : max;
    return dq_bits_f32(max);
}

DQ_DEVICE void round_strip(float *row, int seen, float absmax, float qmax)
{
    float r = dq_div_rn(qmax, absmax), step = dq_div_rn(absmax, qmax);
    for (int t = (int)dq_thread(); t < seen; t += THREADS)
        row[t] = on_grid(row[t], absmax, r, step, qmax);
    DQ_SYNC(decode_rounded); /* the row is rounded */
}

/* Grid: rows, query heads of a group, units. A thread is a lane of a quad and a half page; its exps
 * are relative to the maximum that the lane knows there, and the first warp adds them in order. */
DQ_KERNEL(THREADS) decode_sums(dq_attention_units u, dq_fused_logits round)
{
    enum { HALVES = THREADS / 4 };
    DQ_SHARED(uint32_t, held, [WARPS]);
    DQ_SHARED(float, max, [THREADS]);
    DQ_SHARED(float, top, [THREADS + 4]);
    DQ_SHARED(float, sum, [THREADS]);
    DQ_SHARED(float, factor, [THREADS]);
    const dq_attention_unit *w = u.unit + dq_block_z();
    int r = (int)dq_block_x(), i = (int)dq_block_y(), me = (int)dq_thread(), q = me % 4;
    if (r >= w->n || i >= heads_of(u.q_first, w->group)) return;
    float *row = strip_of(&u, w, i, r), run = -INFINITY, total = 0;
    int seen = visible_of(&u, w, r);
    if (round.round == DQ_ROUND_GIVEN)
        round_strip(row, seen,
                    round.absmax[w->seq * u.n_q + u.q_head[u.q_first[w->group] + i].head],
                    round.qmax);
    if (round.round == DQ_ROUND_ROW) round_strip(row, seen, row_max(row, seen, held), round.qmax);
    for (int first = 0; 32 * first < seen; first += HALVES) {
        float own = -INFINITY, s = 0;
        for (int k = 0; k < 8; k++) {
            int t = token_at(first + me / 4, q, k);
            if (t < seen) own = dq_max(own, row[t]);
        }
        max[me] = own;
        DQ_SYNC(decode_maxima); /* maxima are there */
        for (int h = 0; dq_warp() == 0 && h < HALVES; h++) {
            if (dq_lane() < 4) top[4 * h + q] = run;
            run = dq_max(run, max[4 * h + q]);
        }
        if (me < 4) top[THREADS + q] = run;
        DQ_SYNC(decode_tops); /* maxima are those of all before, too */
        float old = top[me], now = top[me + 4];
        for (int k = 0; k < 8; k++) {
            int t = token_at(first + me / 4, q, k);
            if (t < seen) s = dq_add_rn(s, exp_less(row[t], now));
        }
        sum[me] = s;
        factor[me] = old != now ? exp_less(old, now) : 1.0f;
        DQ_SYNC(decode_sums_there); /* sums are there */
        for (int h = 0; dq_warp() == 0 && h < HALVES; h++)
            total = dq_add_rn(dq_mul_rn(total, factor[4 * h + q]), sum[4 * h + q]);
    }
    if (dq_warp() != 0) return;
    lane_sums a = {{run, run}, {total, total}};
    join_sums(&a);
    if (me == 0) *sums_of(&u, w, i, r) = pair{a.top[0], a.sum[0]};
}

/* ---- values */

/* Row r times the scales of one run, zero for tokens read otherwise. LOWS: *more: what lows add. */
template <bool LOWS>
DQ_DEVICE void round_row(decode_page *to, float *more, const dq_attention_units *u,
                         const fused_job *j, int page, int slab, int g, int r)
{
    const dq_page *p = j->pages + page;
    const dq_page_form *f = &u->form[1];
    int end = code_end(j, 1, page, r), seen = visible_of(u, j->w, r) - page * DQ_PAGE_SLOTS;
    int head = j->value[slab];
    float e[2], by_middle[2] = {};
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i;
        e[i] = 0;
        if (t < p->n_sinks || t >= end || t >= seen) continue;
        float step = dq_page_scale(f, p, 1, head, t, g);
        e[i] = dq_mul_rn(to->d[r][t], step);
        if (LOWS)
            by_middle[i] = dq_mul_rn(
                to->d[r][t], middle_of(step, dq_page_scale(f, p, 1, head, t, f->n_scales / 2 + g),
                                       dq_page_bits(f, p, 1, head)));
    }
    row_bytes(to, e, r);
    if (!LOWS) return;
    float sum = fold_page(by_middle);
    if (dq_lane() == 0) *more = sum;
}

/* y[r] = D V of one channel from codes. */
DQ_DEVICE void channel_codes(float y[MAX_DECODE_ROWS], const decode_page *d, const dq_page_form *f,
                             int bits, const uint8_t *codes, int c, int n)
{
    int32_t sum[MAX_DECODE_ROWS];
    channel_sums(sum, d, f, bits, codes, c, n, ALL_SIXTEENS);
    DQ_UNROLL
    for (int r = 0; r < MAX_DECODE_ROWS; r++)
        if (r < n) y[r] = dq_mul_rn(dq_s32_f32(sum[r]), d->scale[r]);
}

/* What a page's codes add to rows in a run of channels, to [rows][part_width]. */
template <bool LOWS>
DQ_DEVICE void add_channels(float *to, decode_page *d, const dq_attention_units *u,
                            const fused_job *j, int page, int slab, int g)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    int head = j->value[slab], bits = LOWS ? dq_page_bits(f, p, 1, head) : f->bits;
    const uint8_t *codes = LOWS ? dq_page_codes(f, p, 1, head)
                                : p->side[1].codes + (size_t)head * (size_t)f->code_bytes;
    int width = part_width(u), sums = j->n_slabs * f->dim + slab * dq_page_runs(f);
    DQ_WARP_SYNC(decode_bytes_read); /* D is there; bytes of the run before have been read */
    for (int r = 0; r < j->w->n; r++)
        round_row<LOWS>(d, to + r * width + sums + g, u, j, page, slab, g, r);
    DQ_WARP_SYNC(decode_bytes_there); /* D is there, and in bytes */
    for (int c = g * f->group + (int)dq_lane(); c < run_end(f, g); c += DQ_WARP) {
        float y[MAX_DECODE_ROWS] = {};
        channel_codes(y, d, f, bits, codes, c, j->w->n);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++)
            if (r < j->w->n) to[r * width + slab * f->dim + c] = y[r];
    }
}

template <bool LOWS> DQ_KERNEL(THREADS) decode_values(dq_attention_units u)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(decode_page, held, [WARPS]);
    DQ_SHARED(row_known, known, [MAX_DECODE_ROWS]);
    if (!open_split(job, &u, u.o_first)) return;
    if ((int)dq_thread() < job->w->n) know_row(known + dq_thread(), &u, job, (int)dq_thread());
    DQ_SYNC(decode_rows_known); /* rows are known */
    decode_page *d = held + dq_warp();
    for (int page = -1; next_page(job, &page);) {
        if (!is_coded(job, job->pages + page, 1, page)) continue;
        float *to = part_of(&u, job->w, (int)dq_block_y(), page);
        page_difference(d, &u, job, known, page);
        const int runs = LOWS ? u.form[1].n_scales / 2 : u.form[1].n_scales;
        for (int k = 0; k < u.n_slabs * runs; k++)
            add_channels<LOWS>(to, d, &u, job, page, k / runs, k % runs);
    }
}

/* ---- joining */

/* Normalized Hadamard transform of every run of dim values, by all threads. */
DQ_DEVICE void unrotate(float *y, int width, int dim)
{
    for (int step = 1; step < dim; step *= 2) {
        for (int i = (int)dq_thread(); i < width / 2; i += THREADS) {
            int at = i / step * 2 * step + i % step;
            float lo = y[at], hi = y[at + step];
            y[at] = dq_add_rn(lo, hi);
            y[at + step] = dq_sub_rn(lo, hi);
        }
        DQ_SYNC(join_unrotate_stage); /* this stage is done */
    }
    float norm = dq_div_rn(1.0f, dq_sqrt_rn((float)dim));
    for (int i = (int)dq_thread(); i < width; i += THREADS) y[i] = dq_mul_rn(y[i], norm);
    DQ_SYNC(join_unrotate_done); /* for who reads other elements */
}

/* 1 / root mean square, the sum in four parts as a quad of attend_int8 has them. */
DQ_DEVICE float inverse_rms(const float *y, int width, float eps)
{
    float s = 0;
    for (int c = 2 * ((int)dq_lane() % 4); c < width; c += 8) {
        s = dq_fma_rn(y[c], y[c], s);
        s = dq_fma_rn(y[c + 1], y[c + 1], s);
    }
    s = dq_add_rn(s, dq_shfl_xor(s, 1u));
    s = dq_add_rn(s, dq_shfl_xor(s, 2u));
    float mean = dq_div_rn(s, (float)width);
    return dq_div_rn(1.0f, dq_sqrt_rn(dq_add_rn(mean, eps)));
}

/* By all threads: y += D V of a page's tokens that row r reads unquantized; d[64] is shared. */
DQ_DEVICE void add_plain(float y[2], float *d, const dq_attention_units *u, const fused_job *j,
                         const row_known *known, int page, int r, int first, int end, int seen)
{
    const dq_page_form *f = &u->form[1];
    int width = j->n_slabs * f->dim;
    DQ_SYNC(join_plain_read); /* D of the page before has been read */
    if (dq_thread() < DQ_PAGE_SLOTS)
        d[dq_thread()] = difference_at(u, j, known, r, page * DQ_PAGE_SLOTS + (int)dq_thread());
    DQ_SYNC(join_plain_there); /* D is there, for who adds unquantized tokens */
    for (int t = 0; t < seen; t++) {
        if (t >= first && t < end) continue;
        DQ_UNROLL
        for (int k = 0; k < 2; k++) {
            int c = (int)dq_thread() + k * THREADS;
            if (c >= width) continue;
            float v = plain_token(f, j->pages + page, 1, j->value[c / f->dim], t)[c % f->dim];
            y[k] = dq_fma_rn(d[t], v, y[k]);
        }
    }
}

/* What row r adds of a page; by one thread. */
DQ_DEVICE page_parts parts_of(const dq_attention_units *u, const fused_job *j, int page, int r,
                              int seen)
{
    const dq_page *p = j->pages + page;
    int end = code_end(j, 1, page, r);
    page_parts x = {page, is_coded(j, p, 1, page), false};
    if (u->form[1].set_numbers) {
        x.first = p->first_set;
        x.n = 0;
        for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set) && set.first < end;)
            x.n++;
    }
    x.plain = (p->side[1].codes && p->n_sinks > 0) || end < slots_of(seen, page);
    return x;
}

/* Parts of pages without codes were never written and are not added. All loads are issued before a
 * store, which the compiler would wait for. */
template <bool LOWS>
DQ_DEVICE void fetch_parts(float *ahead, const dq_attention_units *u, const fused_job *j, int out,
                           int first, int r)
{
    enum { PARTS = LOWS ? AHEAD / 2 : AHEAD };
    const dq_page_form *f = &u->form[1];
    int width = j->n_slabs * f->dim;
    for (int c = (int)dq_thread(); c < width; c += THREADS) {
        int sum = LOWS ? width + c / f->dim * (f->n_scales / 2) + c % f->dim / f->group : 0;
        float x[AHEAD];
        DQ_UNROLL
        for (int i = 0; i < AHEAD; i++) {
            int part = first + i % PARTS;
            if (part >= j->w->n_parts) part = first;
            x[i] = part_of(u, j->w, out, part)[r * part_width(u) + (i < PARTS ? c : sum)];
        }
        DQ_UNROLL
        for (int i = 0; i < AHEAD; i++) ahead[i * 256 + c] = x[i];
    }
}

/* THREADS pages are looked up at once, or every page would wait for its record; parts[2][THREADS],
 * since a slow thread still reads the other half. */
template <bool LOWS>
DQ_DEVICE void add_pages(float y[2], float *d, float *ahead, page_parts *parts,
                         const dq_attention_units *u, const fused_job *j, const row_known *known,
                         int out, int r, int seen)
{
    enum { PARTS = LOWS ? AHEAD / 2 : AHEAD };
    int width = j->n_slabs * u->form[1].dim, pages = (seen + DQ_PAGE_SLOTS - 1) / DQ_PAGE_SLOTS;
    int from = -AHEAD, me = (int)dq_thread();
    ROLLED
    for (int page = 0; page < pages; page++) {
        page_parts *half = parts + page / THREADS % 2 * THREADS;
        if (page % THREADS == 0) {
            if (page + me < pages) half[me] = parts_of(u, j, page + me, r, seen);
            DQ_SYNC(join_parts_known); /* parts of THREADS pages are known */
        }
        const page_parts x = half[page % THREADS];
        if (x.plain) {
            int first = j->pages[page].side[1].codes ? j->pages[page].n_sinks : 0;
            add_plain(y, d, u, j, known, page, r, first, code_end(j, 1, page, r),
                      slots_of(seen, page));
        }
        for (int part = x.first; part < x.first + x.n; part++) {
            if (part >= from + PARTS) {
                from = part;
                fetch_parts<LOWS>(ahead, u, j, out, part, r);
            }
            DQ_UNROLL
            for (int k = 0; k < 2; k++) {
                int c = me + k * THREADS;
                if (c >= width) continue;
                y[k] = dq_add_rn(y[k], ahead[(part - from) * 256 + c]);
                if (LOWS) y[k] = dq_add_rn(y[k], ahead[(part - from + PARTS) * 256 + c]);
            }
        }
    }
}

/* Grid: rows, output heads, units. Pages, then norm and scale. */
template <bool LOWS> DQ_KERNEL(THREADS) decode_join(dq_attention_units u, dq_attention_finish f)
{
    DQ_SHARED(fused_job, job, [1]);
    DQ_SHARED(float, y, [256]);
    DQ_SHARED(float, d, [DQ_PAGE_SLOTS]);
    DQ_SHARED(float, ahead, [AHEAD * 256]);
    DQ_SHARED(page_parts, parts, [2 * THREADS]);
    DQ_SHARED(row_known, known, [1]);
    const dq_attention_unit *w = u.unit + dq_block_z();
    int r = (int)dq_block_x(), i = (int)dq_block_y(), width = u.n_slabs * u.form[1].dim;
    if (r >= w->n || i >= heads_of(u.o_first, w->group)) return;
    if (dq_thread() == 0) {
        open_values(job, &u, w, i);
        know_row(known, &u, job, r);
    }
    DQ_SYNC(join_job); /* the job is there */
    int seen = visible_of(&u, w, r);
    float *out = f.out + (w->row + r) * f.out_cols + (int64_t)job->out * width, sum[2] = {};
    float a = u.n_maps == 1 ? known->factor[0] : 1.0f;
    add_pages<LOWS>(sum, d, ahead, parts, &u, job, known, i, r, seen);
    for (int k = 0; k < 2; k++) {
        int c = (int)dq_thread() + k * THREADS;
        if (c < width) y[c] = dq_mul_rn(sum[k], a);
    }
    DQ_SYNC(join_row); /* the row is there */
    if (f.rotated) unrotate(y, width, u.form[1].dim);
    float factor = f.norm ? inverse_rms(y, width, f.norm_eps) : 1.0f;
    for (int c = (int)dq_thread(); c < width; c += THREADS) {
        float v = y[c];
        if (f.norm) v = dq_mul_rn(v, factor);
        if (f.norm && f.gain) v = dq_mul_rn(v, f.gain[c]);
        if (f.out_scale != 1.0f) v = dq_mul_rn(v, f.out_scale);
        out[c] = seen ? v : 0.0f;
    }
}

/* ---- launchers */

int64_t dq_fused_decode_floats(const dq_attention_units *u, int64_t outs, int64_t rows,
                               int64_t parts)
{
    return outs * rows * parts * part_width(u);
}

cudaError_t dq_fused_decode(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                            cudaStream_t s)
{
    if (u.max_rows > MAX_DECODE_ROWS || dq_fused_lacks(&u, &f, DQ_FUSED_INT8, l.round))
        return cudaErrorInvalidValue;
    if (u.n == 0 || u.max_rows == 0 || u.max_out == 0) return cudaSuccess;
    const unsigned splits =
        (unsigned)(u.max_keys + SPLIT * DQ_PAGE_SLOTS - 1) / (SPLIT * DQ_PAGE_SLOTS);
    const unsigned rows = (unsigned)u.max_rows, n = (unsigned)u.n, outs = (unsigned)u.max_out;
    const unsigned queries = (unsigned)u.max_q;
    const bool lows = u.form[1].has_lows;
    if (splits && u.form[0].set_numbers) {
        DQ_LAUNCH(decode_scores_sets, dim3(splits, queries, n), THREADS, 0, s, u);
    } else if (splits) {
        DQ_LAUNCH(decode_scores, dim3(splits, queries, n), THREADS, 0, s, u);
    }
    DQ_LAUNCH(decode_sums, dim3(rows, queries, n), THREADS, 0, s, u, l);
    if (splits && u.form[1].set_numbers) {
        DQ_LAUNCH(decode_values_sets, dim3(splits, outs, n), THREADS, 0, s, u);
    } else if (splits && lows) {
        DQ_LAUNCH(decode_values<true>, dim3(splits, outs, n), THREADS, 0, s, u);
    } else if (splits) {
        DQ_LAUNCH(decode_values<false>, dim3(splits, outs, n), THREADS, 0, s, u);
    }
    if (lows) {
        DQ_LAUNCH(decode_join<true>, dim3(rows, outs, n), THREADS, 0, s, u, f);
    } else {
        DQ_LAUNCH(decode_join<false>, dim3(rows, outs, n), THREADS, 0, s, u, f);
    }
    return cudaGetLastError();
}
