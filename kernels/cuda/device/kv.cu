/* kv: the table of pages, tokens that move from page to page, and what policies ask of keys. Moving
 * copies codes and never makes them again; they are packed through shared memory, so that no byte
 * has two writers.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/page.cuh"

typedef struct dq_two_forms {
    dq_page_form side[2];
} dq_two_forms;

static dq_two_forms both(dq_page_form const form[2])
{
    dq_two_forms f;
    f.side[0] = form[0];
    f.side[1] = form[1];
    return f;
}

/* Grid: patches. */
DQ_KERNEL(64) patch_pages(dq_kv_patches k)
{
    const dq_kv_patch *p = k.patch + dq_block_x();
    const uint64_t *from = (const uint64_t *)&p->page;
    uint64_t *to = (uint64_t *)(k.page + p->to);
    for (int w = (int)dq_thread(); w < (int)(sizeof p->page / sizeof *to); w += (int)dq_threads())
        to[w] = from[w];
    for (int t = (int)dq_thread(); p->row >= 0 && t < DQ_PAGE_SLOTS; t += (int)dq_threads())
        k.dither[((int64_t)p->to + 1) * DQ_PAGE_SLOTS + t] =
            k.row[(int64_t)p->row * DQ_PAGE_SLOTS + t];
}

/* Unquantized channels of a slot that no token fills, by a warp. */
DQ_DEVICE void clear_plain(const dq_page_form *f, void *plain, int head, int slot)
{
    for (int c = (int)dq_lane(); plain && c < f->stride; c += DQ_WARP)
        dq_page_put_plain(f, plain, (int64_t)(head * DQ_PAGE_SLOTS + slot) * f->stride + c, 0.0f);
}

/* Unquantized channels of one token, for what of `to` wants them. */
DQ_DEVICE void move_plain(const dq_page_form *f, const dq_page *to, const dq_page *from, int side,
                          int head, int slot, int t)
{
    const dq_page_side *x = &from->side[side], *y = &to->side[side];
    if (!x->plain && t >= from->n_sinks) { /* held as codes only */
        clear_plain(f, y->plain, head, slot);
        return;
    }
    const void *source = x->plain ? x->plain : x->sinks;
    int64_t at = x->plain ? (int64_t)(head * DQ_PAGE_SLOTS + t) * f->stride
                          : (int64_t)(head * from->n_sinks + t) * f->dim;
    for (int c = (int)dq_lane(); c < f->dim; c += DQ_WARP) {
        int64_t plain = (int64_t)(head * DQ_PAGE_SLOTS + slot) * f->stride + c;
        int64_t sink = (int64_t)(head * to->n_sinks + slot) * f->dim + c;
        if (y->plain) dq_page_copy_plain(f, y->plain, plain, source, at + c);
        if (y->sinks && slot < to->n_sinks) dq_page_copy_plain(f, y->sinks, sink, source, at + c);
    }
    for (int c = f->dim + (int)dq_lane(); y->plain && c < f->stride; c += DQ_WARP)
        dq_page_put_plain(f, y->plain, (int64_t)(head * DQ_PAGE_SLOTS + slot) * f->stride + c,
                          0.0f);
}

/* Codes of one token to q[64][cols]; per-channel numbers of a set move with its first token. */
DQ_DEVICE void move_codes(const dq_page_form *f, const dq_page *to, const dq_page *from, int side,
                          int head, int slot, int t, int8_t *q)
{
    const uint8_t *codes = dq_page_codes(f, from, side, head);
    int bits = dq_page_bits(f, from, side, head);
    for (int c = (int)dq_lane(); c < f->cols; c += DQ_WARP)
        q[slot * f->cols + c] = (int8_t)dq_page_code(f, bits, side, codes, t, c);
    for (int g = (int)dq_lane(); g < f->n_scales; g += DQ_WARP)
        dq_page_put_number(to, side, dq_page_scale_place(f, head, slot, g),
                           dq_page_scale(f, from, side, head, t, g));
    if (!f->set_numbers || !(to->begins >> slot & 1)) return;
    int64_t at = dq_page_set_place(f, to, head, slot), was = dq_page_set_place(f, from, head, t);
    for (int i = (int)dq_lane(); i < f->set_numbers; i += DQ_WARP)
        dq_page_put_number(to, side, at + i, dq_page_number(from, side, was + i));
}

/* Grid: heads, sides. `to` is new: what no token fills becomes zero. */
DQ_KERNEL_BLOCKS(256, 4)
move(DQ_PARAMETER dq_page to, int coded, const dq_page *DQ_RESTRICT from,
     const int32_t *DQ_RESTRICT source, int n, DQ_PARAMETER dq_two_forms forms)
{
    DQ_SHARED_DYNAMIC(bytes);
    int8_t *q = (int8_t *)bytes;
    int head = (int)dq_block_x(), side = (int)dq_block_y();
    const dq_page_form *f = &forms.side[side];
    uint8_t *codes = to.side[side].codes;
    for (int i = (int)dq_warp(); i < DQ_PAGE_SLOTS; i += (int)dq_threads() / DQ_WARP) {
        bool moves = codes && i >= to.n_sinks && i < coded;
        if (codes && !moves) dq_page_clear_numbers(f, &to, side, head, i);
        if (i >= n) {
            clear_plain(f, to.side[side].plain, head, i);
            continue;
        }
        const dq_page *p = from + source[i] / DQ_PAGE_SLOTS;
        int t = source[i] % DQ_PAGE_SLOTS;
        move_plain(f, &to, p, side, head, i, t);
        if (moves) move_codes(f, &to, p, side, head, i, t, q);
    }
    if (!codes) return;
    DQ_SYNC(move_codes); /* all codes have moved */
    dq_page_store(f, dq_page_bits(f, &to, side, head), side, dq_page_codes(f, &to, side, head), q,
                  to.n_sinks, coded, true);
}

/* Grid: heads. The first n sinks, and zeros after them. */
DQ_KERNEL(128) reopen(dq_page p, int side, int n, dq_page_form f)
{
    int head = (int)dq_block_x();
    const dq_page_side *s = &p.side[side];
    for (int i = (int)dq_thread(); i < DQ_PAGE_SLOTS * f.stride; i += (int)dq_threads()) {
        int t = i / f.stride, c = i % f.stride;
        int64_t plain = (int64_t)head * DQ_PAGE_SLOTS * f.stride + i;
        int64_t sink = ((int64_t)head * p.n_sinks + t) * f.dim + c;
        if (t < n && c < f.dim)
            dq_page_copy_plain(&f, s->plain, plain, s->sinks, sink);
        else
            dq_page_put_plain(&f, s->plain, plain, 0.0f);
    }
}

DQ_KERNEL(256) widen(float *DQ_RESTRICT to, const uint16_t *DQ_RESTRICT from, int64_t n)
{
    int64_t i = (int64_t)dq_block_x() * dq_threads() + dq_thread();
    if (i < n) to[i] = dq_f16_f32(from[i]);
}

/* Grid: pages; a warp per token. */
DQ_KERNEL(256)
norms(double *DQ_RESTRICT sum, const dq_page *DQ_RESTRICT pages, int64_t count, int64_t coded,
      dq_page_form f, int heads)
{
    int64_t first = (int64_t)dq_block_x() * DQ_PAGE_SLOTS, slots = coded - first;
    slots = slots < 0 ? 0 : slots > DQ_PAGE_SLOTS ? (int64_t)DQ_PAGE_SLOTS : slots;
    const dq_page *p = pages + dq_block_x();
    for (int t = (int)dq_warp(); t < DQ_PAGE_SLOTS && first + t < count;
         t += (int)dq_threads() / DQ_WARP) {
        double s = 0;
        for (int i = (int)dq_lane(); i < heads * f.dim; i += DQ_WARP) {
            double x = (double)dq_page_value(&f, p, 0, i / f.dim, (int)slots, t, i % f.dim);
            s = dq_fma_rn(x, x, s);
        }
        for (unsigned o = 16; o; o >>= 1) s = dq_add_rn(s, dq_shfl_xor(s, o));
        if (dq_lane() == 0) sum[first + t] = s;
    }
}

/* ---- launchers */

static unsigned code_smem(dq_page_form const form[2])
{
    return (unsigned)(DQ_PAGE_SLOTS * form[0].cols);
}

cudaError_t dq_kv_launch_patch(dq_kv_patches patches, cudaStream_t s)
{
    if (patches.n == 0) return cudaSuccess;
    DQ_LAUNCH(patch_pages, dim3((unsigned)patches.n), 64, 0, s, patches);
    return cudaGetLastError();
}

cudaError_t dq_kv_launch_move(dq_page to, int coded, const dq_page *from, const int32_t *source,
                              int n, dq_page_form const form[2], int heads, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(move, dim3((unsigned)heads, 2), 256, code_smem(form), s, to, coded, from, source, n,
              both(form));
    return cudaGetLastError();
}

cudaError_t dq_kv_launch_reopen(dq_page page, int side, int n, dq_page_form form, int heads,
                                cudaStream_t s)
{
    DQ_LAUNCH(reopen, dim3((unsigned)heads), 128, 0, s, page, side, n, form);
    return cudaGetLastError();
}

cudaError_t dq_kv_launch_widen(float *to, const uint16_t *from, int64_t n, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(widen, dim3((unsigned)((n + 255) / 256)), 256, 0, s, to, from, n);
    return cudaGetLastError();
}

cudaError_t dq_kv_launch_norms(double *sum, const dq_page *pages, int64_t count, int64_t coded,
                               dq_page_form form, int heads, cudaStream_t s)
{
    if (count == 0) return cudaSuccess;
    DQ_LAUNCH(norms, dim3((unsigned)((count + DQ_PAGE_SLOTS - 1) / DQ_PAGE_SLOTS)), 256, 0, s, sum,
              pages, count, coded, form, heads);
    return cudaGetLastError();
}

/* ---- keys */
/* A sum over tokens is one chain in the order of the list: a block stages its terms, a warp adds
 * them, a channel a lane; a sum over channels belongs to one thread. */

DQ_DEVICE int tokens_of(int64_t count, int64_t page)
{
    int64_t n = count - page * TILE;
    return (int)(n < 0 ? 0 : n > TILE ? (int64_t)TILE : n);
}

/* Channel c of a token of a head; it is there. */
DQ_DEVICE float key_of(const dq_keys *k, int64_t token, int head, int c)
{
    int64_t page = token / TILE;
    return dq_page_value(&k->form, k->pages + page, k->side, head, tokens_of(k->coded, page),
                         (int)(token % TILE), c);
}

/* *sum += term[0 .. n-1][lane], by the first warp, which holds a sum a lane. For all threads. */
DQ_DEVICE void add_terms(double *sum, const double *term, int n)
{
    DQ_SYNC(terms_there);
    for (int t = 0; dq_warp() == 0 && t < n; t++)
        *sum = dq_add_rn(*sum, term[t * PITCH + dq_lane()]);
    DQ_SYNC(terms_added);
}

/* ---- cosines */

/* Grid: pages, heads. A thread per token. */
DQ_KERNEL_BLOCKS(TILE, 12) key_lengths(double *DQ_RESTRICT norm, dq_keys k)
{
    int64_t token = (int64_t)dq_block_x() * TILE + dq_thread();
    int head = (int)dq_block_y();
    double square = 0;
    if (token >= k.count) return;
    for (int c = 0; c < k.form.dim; c++) {
        double x = (double)key_of(&k, token, head, c);
        square = dq_add_rn(square, dq_mul_rn(x, x));
    }
    norm[head * k.count + token] = dq_sqrt_rn(square);
}

/* Grid: runs of 32 channels, heads. */
DQ_KERNEL_BLOCKS(256, 4)
add_directions(double *DQ_RESTRICT sum, const double *DQ_RESTRICT norm, dq_keys k)
{
    DQ_SHARED(double, term, [TILE * PITCH]);
    int c0 = (int)dq_block_x() * STEP, head = (int)dq_block_y(), dim = k.form.dim;
    double total = 0;
    for (int64_t first = 0; first < k.count; first += TILE) {
        int n = tokens_of(k.count - first, 0);
        for (int i = (int)dq_thread(); i < n * STEP; i += (int)dq_threads()) {
            int t = i / STEP, c = c0 + i % STEP;
            double length = norm[head * k.count + first + t], x = 0;
            if (length > 0 && c < dim)
                x = dq_div_rn((double)key_of(&k, first + t, head, c), length);
            term[t * PITCH + i % STEP] = x;
        }
        add_terms(&total, term, n);
    }
    if (dq_warp() == 0 && c0 + (int)dq_lane() < dim) sum[head * dim + c0 + (int)dq_lane()] = total;
}

DQ_DEVICE double length_of(const double *x, int n)
{
    double square = 0;
    for (int c = 0; c < n; c++) square = dq_add_rn(square, dq_mul_rn(x[c], x[c]));
    return dq_sqrt_rn(square);
}

/* Grid: pages. A thread per token. */
DQ_KERNEL_BLOCKS(TILE, 12)
compare_directions(double *DQ_RESTRICT cosine, const double *DQ_RESTRICT norm,
                   const double *DQ_RESTRICT sum, dq_keys k)
{
    int64_t token = (int64_t)dq_block_x() * TILE + dq_thread();
    double total = 0;
    if (token >= k.count) return;
    for (int head = 0; head < k.heads; head++) {
        const double *with = sum + (int64_t)head * k.form.dim;
        double own = norm[head * k.count + token], all = length_of(with, k.form.dim), dot = 0;
        for (int c = 0; c < k.form.dim; c++)
            dot = dq_add_rn(dot, dq_mul_rn((double)key_of(&k, token, head, c), with[c]));
        if (own > 0 && all > 0) total = dq_add_rn(total, dq_div_rn(dot, dq_mul_rn(own, all)));
    }
    cosine[token] = total;
}

/* ---- leverages */

/* Grid: pages, heads. */
DQ_KERNEL(256) read_keys(float *DQ_RESTRICT x, dq_keys k)
{
    int64_t first = (int64_t)dq_block_x() * TILE, cols = (int64_t)k.heads * k.form.dim;
    int head = (int)dq_block_y(), dim = k.form.dim, n = tokens_of(k.count - first, 0);
    for (int i = (int)dq_thread(); i < n * dim; i += (int)dq_threads())
        x[(first + i / dim) * cols + head * dim + i % dim] =
            key_of(&k, first + i / dim, head, i % dim);
}

/* Grid: runs of 32 columns. */
DQ_KERNEL(256)
find_means(double *DQ_RESTRICT mean, const float *DQ_RESTRICT x, int64_t n, int64_t cols)
{
    DQ_SHARED(double, term, [TILE * PITCH]);
    int64_t c0 = (int64_t)dq_block_x() * STEP;
    double total = 0;
    for (int64_t first = 0; first < n; first += TILE) {
        int some = tokens_of(n - first, 0);
        for (int i = (int)dq_thread(); i < some * STEP; i += (int)dq_threads()) {
            int64_t c = c0 + i % STEP;
            term[i / STEP * PITCH + i % STEP] =
                c < cols ? (double)x[(first + i / STEP) * cols + c] : 0.0;
        }
        add_terms(&total, term, some);
    }
    if (dq_warp() == 0 && c0 + dq_lane() < cols) mean[c0 + dq_lane()] = dq_div_rn(total, (double)n);
}

/* Grid: rows. */
DQ_KERNEL(256)
centre(float *DQ_RESTRICT x, const double *DQ_RESTRICT mean, double unit, int64_t cols)
{
    float *row = x + (int64_t)dq_block_x() * cols;
    for (int64_t c = dq_thread(); c < cols; c += dq_threads())
        row[c] = (float)dq_mul_rn(dq_sub_rn((double)row[c], mean[c]), unit);
}

/* Columns c0 .. c0+63 of rows first .. first+n-1 to to[n][65]; zeros after the last column. */
DQ_DEVICE void stage_rows(float *to, const float *x, int64_t first, int n, int64_t c0, int64_t cols)
{
    for (int i = (int)dq_thread(); i < n * TILE; i += (int)dq_threads()) {
        int64_t c = c0 + i % TILE;
        to[i / TILE * WIDE + i % TILE] = c < cols ? x[(first + i / TILE) * cols + c] : 0.0f;
    }
}

/* part[i][j] += sum over k < n of a[k][y + 16i] b[k][x + 16j], in the order of k. */
DQ_DEVICE void add_products(float part[4][4], const float *a, const float *b, int n)
{
    int x = (int)dq_thread() % 16, y = (int)dq_thread() / 16;
    for (int k = 0; k < n; k++) {
        float with[4];
        DQ_UNROLL
        for (int j = 0; j < 4; j++) with[j] = b[k * WIDE + x + 16 * j];
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            float by = a[k * WIDE + y + 16 * i];
            DQ_UNROLL
            for (int j = 0; j < 4; j++) part[i][j] = dq_fma_rn(by, with[j], part[i][j]);
        }
    }
}

/* Grid: tiles of 64 columns, tiles of 64 rows. */
DQ_KERNEL(256) gram(double *DQ_RESTRICT to, const float *DQ_RESTRICT x, int64_t n, int64_t cols)
{
    DQ_SHARED(float, a, [TILE * WIDE]);
    DQ_SHARED(float, b, [TILE * WIDE]);
    int64_t c0 = (int64_t)dq_block_x() * TILE, r0 = (int64_t)dq_block_y() * TILE;
    double total[4][4] = {};
    if (r0 > c0) return; /* below the diagonal */
    for (int64_t first = 0; first < n; first += TILE) {
        int some = tokens_of(n - first, 0);
        float part[4][4] = {};
        stage_rows(a, x, first, some, r0, cols);
        stage_rows(b, x, first, some, c0, cols);
        DQ_SYNC(gram_staged);
        add_products(part, a, b, some);
        DQ_SYNC(gram_read);
        DQ_UNROLL
        for (int i = 0; i < 16; i++)
            total[i / 4][i % 4] = dq_add_rn(total[i / 4][i % 4], (double)part[i / 4][i % 4]);
    }
    DQ_UNROLL
    for (int i = 0; i < 16; i++) {
        int64_t r = r0 + dq_thread() / 16 + 16 * (i / 4), c = c0 + dq_thread() % 16 + 16 * (i % 4);
        if (r < cols && c < cols) to[r * cols + c] = total[i / 4][i % 4];
    }
}

/* Squares of y[n] in 8 interleaved lanes, which are folded in halves. */
DQ_DEVICE double sum_squares(const float *y, int n)
{
    double lane[8] = {};
    for (int i = 0; i < n; i += 8) {
        DQ_UNROLL
        for (int l = 0; l < 8; l++) {
            double v = i + l < n ? (double)y[i + l] : 0.0;
            lane[l] = dq_add_rn(lane[l], dq_mul_rn(v, v));
        }
    }
    DQ_UNROLL
    for (int step = 4; step > 0; step /= 2) {
        DQ_UNROLL
        for (int l = 0; l < step; l++) lane[l] = dq_add_rn(lane[l], lane[l + step]);
    }
    return lane[0];
}

/* y[64][65] = 64 rows of x times columns c0 .. c0+63 of `right`; a holds columns of x as rows. */
DQ_DEVICE void project(float *y, float *a, float *b, const float *x, const float *right,
                       int64_t first, int n, int64_t c0, int64_t cols)
{
    float part[4][4] = {};
    int64_t end = c0 + TILE < cols ? c0 + TILE : cols; /* zeros from here on */
    for (int64_t k0 = 0; k0 < end; k0 += TILE) {
        int some = tokens_of(end - k0, 0);
        for (int i = (int)dq_thread(); i < TILE * some; i += (int)dq_threads())
            a[i % some * WIDE + i / some] =
                i / some < n ? x[(first + i / some) * cols + k0 + i % some] : 0.0f;
        stage_rows(b, right, k0, some, c0, cols);
        DQ_SYNC(project_staged);
        add_products(part, a, b, some);
        DQ_SYNC(project_read);
    }
    DQ_UNROLL
    for (int i = 0; i < 16; i++)
        y[((int)dq_thread() / 16 + 16 * (i / 4)) * WIDE + (int)dq_thread() % 16 + 16 * (i % 4)] =
            part[i / 4][i % 4];
}

/* Grid: pages. */
DQ_KERNEL(256)
measure(double *DQ_RESTRICT leverage, const float *DQ_RESTRICT x, const float *DQ_RESTRICT right,
        int64_t rows, int64_t cols)
{
    DQ_SHARED(float, a, [TILE * WIDE]); /* then the products */
    DQ_SHARED(float, b, [TILE * WIDE]);
    int64_t first = (int64_t)dq_block_x() * TILE;
    int n = tokens_of(rows - first, 0), t = (int)dq_thread();
    double total = 0;
    for (int64_t c = 0; c < cols; c += TILE) {
        project(a, a, b, x, right, first, n, c, cols);
        DQ_SYNC(project_there);
        if (t < n) total = dq_add_rn(total, sum_squares(a + t * WIDE, tokens_of(cols - c, 0)));
        DQ_SYNC(squares_added);
    }
    if (t < n) leverage[first + t] = total;
}

/* ---- launchers */

static unsigned tiles(int64_t n, int of)
{
    return (unsigned)((n + of - 1) / of);
}

cudaError_t dq_keys_cosines(double *cosine, dq_keys k, double *norm, double *sum, cudaStream_t s)
{
    const unsigned heads = (unsigned)k.heads;
    if (k.count == 0) return cudaSuccess;
    DQ_LAUNCH(key_lengths, dim3(tiles(k.count, TILE), heads), TILE, 0, s, norm, k);
    DQ_LAUNCH(add_directions, dim3(tiles(k.form.dim, STEP), heads), 256, 0, s, sum, norm, k);
    DQ_LAUNCH(compare_directions, dim3(tiles(k.count, TILE)), TILE, 0, s, cosine, norm, sum, k);
    return cudaGetLastError();
}

cudaError_t dq_keys_read(float *x, dq_keys k, cudaStream_t s)
{
    if (k.count == 0) return cudaSuccess;
    DQ_LAUNCH(read_keys, dim3(tiles(k.count, TILE), (unsigned)k.heads), 256, 0, s, x, k);
    return cudaGetLastError();
}

cudaError_t dq_keys_centre(float *x, double *mean, double unit, int64_t n, int64_t cols,
                           cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(find_means, dim3(tiles(cols, STEP)), 256, 0, s, mean, x, n, cols);
    DQ_LAUNCH(centre, dim3((unsigned)n), 256, 0, s, x, mean, unit, cols);
    return cudaGetLastError();
}

cudaError_t dq_keys_gram(double *gram_of, const float *x, int64_t n, int64_t cols, cudaStream_t s)
{
    if (cols == 0) return cudaSuccess;
    DQ_LAUNCH(gram, dim3(tiles(cols, TILE), tiles(cols, TILE)), 256, 0, s, gram_of, x, n, cols);
    return cudaGetLastError();
}

cudaError_t dq_keys_leverages(double *leverage, const float *x, const float *right, int64_t n,
                              int64_t cols, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(measure, dim3(tiles(n, TILE)), 256, 0, s, leverage, x, right, n, cols);
    return cudaGetLastError();
}
