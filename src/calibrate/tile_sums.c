/* tile_sums: see tile_sums.h. Blocks of rows are transposed once and multiplied by the backend's own product, tile by tile of
 * rows of C. One process alone does so block by block; ranks take all blocks of a call and go tile by tile, and the one that
 * a tile belongs to adds what the others send it while they are at the next one.
 * SPDX-License-Identifier: MIT */
#include "calibrate/tile_sums.h"

#include "base/ranks.h"

#include <string.h>

enum { TILE = DQ_TILE_SUMS_TILE, ROWS = DQ_TILE_SUMS_ROWS };

/* ---- Blocks ---- */

/* Rows of one product. */
typedef struct block {
    int64_t first, n;
} block;

/* Of the pieces of `rows` rows: the next block after *at, which is moved behind it. False: there is none. */
static bool next_block(block *out, int64_t *at, int64_t rows, dq_tile_sums_rows which)
{
    while (*at < rows) {
        const int64_t begin = *at - *at % which.piece, left = rows - begin,
                      n = left < which.piece ? left : which.piece, half = n / 2;
        const int64_t first = which.part == DQ_ROWS_SECOND ? begin + half : begin,
                      end = which.part == DQ_ROWS_FIRST ? begin + half : begin + n;
        const int64_t from = *at > first ? *at : first;
        if (from >= end) {
            *at = begin + n;
            continue;
        }
        *out = (block){from, end - from < ROWS ? end - from : ROWS};
        *at = out->first + out->n;
        return true;
    }
    return false;
}

static int64_t count_blocks(int64_t rows, dq_tile_sums_rows which, int64_t *n_rows)
{
    int64_t n = 0;
    block k;
    *n_rows = 0;
    for (int64_t at = 0; next_block(&k, &at, rows, which); n++) *n_rows += k.n;
    return n;
}

/* ---- Memory ---- */

static int64_t kept_rows(int64_t max_rows)
{
    return dq_ranks_count() == 1 && max_rows > ROWS ? ROWS : max_rows;
}

/* Blocks of a call, and products of a tile that stand beside each other: pieces are of ROWS rows, or none. */
static int64_t most_blocks(int64_t max_rows)
{
    return dq_ranks_count() == 1 ? 1 : (max_rows + ROWS - 1) / ROWS;
}

int64_t dq_tile_sums_bytes(int64_t max_m, int64_t max_n, bool lower, int64_t max_rows)
{
    const int64_t rows = kept_rows(max_rows), products = most_blocks(max_rows);
    const int64_t tiles = dq_ranks_count() == 1 ? 1 : 2 * products + 1;
    return (((lower ? 0 : max_m) + max_n) * rows + tiles * TILE * max_n) * (int64_t)sizeof(float);
}

dq_status dq_tile_sums_new(dq_tile_sums *s, int64_t max_m, int64_t max_n, bool lower,
                           int64_t max_rows, dq_err *err)
{
    const size_t rows = (size_t)kept_rows(max_rows), m = (size_t)max_m, n = (size_t)max_n;
    const size_t products = (size_t)most_blocks(max_rows), tile = TILE * sizeof(float);
    const bool alone = dq_ranks_count() == 1;
    *s = (dq_tile_sums){.lower = lower, .max_rows = max_rows, .product_bytes = n * products * tile};
    s->right = dq_block_new(n, rows * sizeof(float), err);
    s->left = lower ? s->right : dq_block_new(m, rows * sizeof(float), err);
    s->product[0] = dq_block_new(n, products * tile, err);
    if (!alone) s->product[1] = dq_block_new(n, products * tile, err);
    if (!alone) s->got = dq_block_new(n, tile, err);
    s->rows_of = dq_block_new((size_t)dq_ranks_count(), sizeof *s->rows_of, err);
    return err->code;
}

void dq_tile_sums_free(dq_tile_sums *s)
{
    if (s->left != s->right) dq_block_free(s->left);
    dq_block_free(s->right);
    dq_block_free(s->product[0]);
    dq_block_free(s->product[1]);
    dq_block_free(s->got);
    dq_block_free(s->rows_of);
    *s = (dq_tile_sums){.c = NULL};
}

/* ---- Products ---- */

/* Rows r0 .. of columns c0 .., at most 16 of each. Lines of dst are written whole: at a distance of a power of two they would
 * push each other out of the cache otherwise. */
enum { SQUARE = 16 };
static void transpose_square(float *dst, dq_mat x, int64_t r0, int64_t c0)
{
    float square[SQUARE][SQUARE];
    const int64_t rows = x.rows - r0 < SQUARE ? x.rows - r0 : SQUARE;
    const int64_t cols = x.cols - c0 < SQUARE ? x.cols - c0 : SQUARE;
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x.p + (r0 + r) * x.cols + c0;
        for (int64_t c = 0; c < cols; c++) square[c][r] = from[c];
    }
    for (int64_t c = 0; c < cols; c++)
        memcpy(dst + (c0 + c) * x.rows + r0, square[c], (size_t)rows * sizeof *dst);
}

void dq_tile_sums_transpose(float *dst, dq_mat x)
{
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < x.cols; c += SQUARE) {
        for (int64_t r = 0; r < x.rows; r += SQUARE) transpose_square(dst, x, r, c);
    }
}

/* A block of a and x as products read it, behind those of the `before` rows that lie there already. */
static void put_block(const dq_tile_sums *s, dq_mat a, dq_mat x, block k, int64_t before)
{
    const dq_mat right = {x.p + k.first * x.cols, k.n, x.cols},
                 left = {a.p + k.first * a.cols, k.n, a.cols};
    dq_tile_sums_transpose(s->right + before * x.cols, right);
    if (!s->lower) dq_tile_sums_transpose(s->left + before * a.cols, left);
}

/* Rows of C from i on. */
static int64_t tile_rows(const dq_tile_sums *s, int64_t i)
{
    return s->m - i < TILE ? s->m - i : TILE;
}

static int64_t tile_cols(const dq_tile_sums *s, int64_t i)
{
    return s->lower ? i + tile_rows(s, i) : s->n;
}

/* out[tile_rows, tile_cols] of a block of `rows` rows. */
static void multiply(const dq_tile_sums *s, dq_backend *b, float *out, int64_t i, int64_t rows,
                     int64_t before)
{
    const int64_t n = tile_rows(s, i), cols = tile_cols(s, i);
    const dq_weight right = dq_weight_of_f32("inputs", cols, rows, s->right + before * s->n);
    const dq_mat left = {s->left + before * s->m + i * rows, n, rows};
    b->ops->matmul(b, (dq_mat){out, n, cols}, left, &right, NULL, DQ_NUM_F32);
}

static void add(const dq_tile_sums *s, const float *product, int64_t i)
{
    const int64_t end = i + tile_rows(s, i), cols = tile_cols(s, i);
#pragma omp parallel for schedule(static)
    for (int64_t r = i; r < end; r++) {
        double *to = s->c + r * s->ld;
        const float *from = product + (r - i) * cols;
        const int64_t n = s->lower ? r + 1 : cols;
        for (int64_t c = 0; c < n; c++) to[c] += (double)from[c];
    }
}

/* ---- Calls ---- */

static void add_alone(const dq_tile_sums *s, dq_backend *b, dq_mat a, dq_mat x,
                      dq_tile_sums_rows which)
{
    block k;
    for (int64_t at = 0; next_block(&k, &at, x.rows, which);) {
        put_block(s, a, x, k, 0);
        for (int64_t i = 0; i < s->m; i += TILE) {
            multiply(s, b, s->product[0], i, k.n, 0);
            add(s, s->product[0], i);
        }
    }
}

/* Own products of a tile, block by block. */
static void multiply_blocks(const dq_tile_sums *s, dq_backend *b, float *out, int64_t i,
                            int64_t rows, dq_tile_sums_rows which)
{
    const int64_t size = tile_rows(s, i) * tile_cols(s, i);
    block k;
    for (int64_t at = 0, before = 0; next_block(&k, &at, rows, which); before += k.n) {
        multiply(s, b, out, i, k.n, before);
        out += size;
    }
}

/* Of a tile that belongs to this rank: every rank's products, from the first to the last. */
static void add_all(const dq_tile_sums *s, const float *own, int64_t i, dq_tile_sums_rows which)
{
    const int64_t size = tile_rows(s, i) * tile_cols(s, i);
    for (int rank = 0; rank < dq_ranks_count(); rank++) {
        int64_t ignore, n = count_blocks(s->rows_of[rank], which, &ignore);
        for (int64_t k = 0; k < n; k++) {
            const bool is_own = rank == dq_ranks_number();
            if (!is_own) dq_ranks_receive(rank, s->got, (size_t)size * sizeof *s->got);
            add(s, is_own ? own + k * size : s->got, i);
        }
    }
}

static int owner_of(int64_t tile)
{
    return (int)(tile / TILE % dq_ranks_count());
}

static void add_in_step(const dq_tile_sums *s, dq_backend *b, dq_mat a, dq_mat x,
                        dq_tile_sums_rows which)
{
    int64_t ignore, n = count_blocks(x.rows, which, &ignore), turn = 0;
    block k;
    for (int64_t at = 0, before = 0; next_block(&k, &at, x.rows, which); before += k.n)
        put_block(s, a, x, k, before);
    for (int64_t i = 0; i < s->m; i += TILE, turn = 1 - turn) {
        const size_t size = (size_t)(tile_rows(s, i) * tile_cols(s, i));
        float *own = s->product[turn];
        dq_ranks_sent(own, s->product_bytes);
        multiply_blocks(s, b, own, i, x.rows, which);
        if (owner_of(i) == dq_ranks_number())
            add_all(s, own, i, which);
        else
            for (int64_t j = 0; j < n; j++)
                dq_ranks_send(owner_of(i), own + (size_t)j * size, size * sizeof *own);
    }
    dq_ranks_sent(s->product[0], s->product_bytes);
    dq_ranks_sent(s->product[1], s->product_bytes);
}

dq_status dq_tile_sums_add(const dq_tile_sums *s, dq_backend *b, dq_mat a, dq_mat x,
                           dq_tile_sums_rows which, int64_t *rows, dq_err *err)
{
    if (x.rows > s->max_rows || (which.piece != DQ_TILE_SUMS_NO_PIECES && which.piece != ROWS))
        dq_fail(err, DQ_BUG, "sums: a call of %lld rows", (long long)x.rows);
    DQ_TRY(dq_ranks_gather(s->rows_of, x.rows, err));
    *rows = 0;
    for (int i = 0; i < dq_ranks_count(); i++) {
        int64_t n;
        count_blocks(s->rows_of[i], which, &n);
        *rows += n;
    }
    if (dq_ranks_count() == 1)
        add_alone(s, b, a, x, which);
    else
        add_in_step(s, b, a, x, which);
    return DQ_OK;
}

dq_status dq_tile_sums_share(const dq_tile_sums *s, dq_err *err)
{
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    for (int64_t i = 0; i < s->m && dq_ranks_count() > 1; i += TILE)
        dq_ranks_spread(owner_of(i), s->c + i * s->ld,
                        (size_t)(tile_rows(s, i) * s->ld) * sizeof *s->c);
    return DQ_OK;
}
