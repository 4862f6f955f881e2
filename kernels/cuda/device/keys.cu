/* keys: a sum over tokens is one chain in the order of the list, so its terms are staged by a whole block and
 * added by one warp, a channel a lane; a sum over channels belongs to one thread.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/launch.h"

#include "kernels/cuda/device/page.cuh"

enum {
    TILE = DQ_PAGE_SLOTS, /* tokens of a page, rows and columns of a product */
    WIDE = TILE + 1,
    STEP = 32, /* channels that are staged at once */
    PITCH = STEP + 1
};

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

/* --------------------------------------------------------------------------------------- cosines */

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

/* ------------------------------------------------------------------------------------- leverages */

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

/* 64 rows of x times columns c0 .. c0+63 of `right` to y[64][65]. a, b: [64][65]; a holds columns of x as rows. */
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

/* ------------------------------------------------------------------------------------- launchers */

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
