/* cuda_logprob: what is computed from logits, a piece of the vocabulary at a time.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/logprob.h"
#include "kernels/cuda/host/cuda_linear.h"
#include "kernels/cuda/host/cuda_ops.h"

#ifdef DQ_SIMT /* tests see several pieces of a small vocabulary */
enum { PIECE = 64 };
#else
enum { PIECE = 4096 };
#endif

/* Hidden states and the head that makes logits of them. */
typedef struct side {
    dq_mat hidden;
    const dq_cuda_weight *head;
    bool bf16;
    float *logits; /* [DQ_CUDA_TILE_ROWS][PIECE] */
} side;

static bool side_of(dq_backend *b, side *k, dq_mat hidden, const dq_weight *head, dq_num num)
{
    k->hidden = hidden;
    k->bf16 = num == DQ_NUM_BF16;
    k->head = dq_cuda_weight_of(b, head);
    if (k->head && hidden.cols != head->cols)
        dq_fail(&b->err, DQ_BUG, "%s: product of unfitting shapes",
                head->name ? head->name : "head");
    k->logits = dq_cuda_alloc(b, sizeof *k->logits * DQ_CUDA_TILE_ROWS * PIECE);
    return b->err.code == DQ_OK;
}

/* Logits of the tile of rows at m0, entries n0 .. n0 + n; wide: those rows of the head. */
static void make_logits(dq_backend *b, const side *k, const void *wide, int64_t m0, int64_t n)
{
    const void *rows = dq_cuda_tile_rows(b, k->hidden, m0, k->bf16);
    if (rows) dq_cuda_gemm(b, k->bf16, k->logits, PIECE, rows, wide, n, k->hidden.cols);
}

static int64_t tile_rows(int64_t rows, int64_t m0)
{
    return rows - m0 < DQ_CUDA_TILE_ROWS ? rows - m0 : DQ_CUDA_TILE_ROWS;
}

static void logprob_pieces(dq_backend *b, const side *k, dq_logprob_row *state,
                           const int32_t *target)
{
    const int64_t vocab = k->head->rows, rows = k->hidden.rows;
    for (int64_t n0 = 0; n0 < vocab && b->err.code == DQ_OK; n0 += PIECE) {
        const int64_t n = vocab - n0 < PIECE ? vocab - n0 : PIECE;
        const void *wide = dq_cuda_wide_rows(b, k->head, n0, n, k->bf16);
        for (int64_t m0 = 0; m0 < rows && b->err.code == DQ_OK; m0 += DQ_CUDA_TILE_ROWS) {
            make_logits(b, k, wide, m0, n);
            if (b->err.code == DQ_OK)
                dq_cuda_ok(b,
                           dq_logprob_piece(state + m0, k->logits, PIECE, n0, n,
                                            target ? target + m0 : NULL, tile_rows(rows, m0),
                                            dq_cuda_stream(b)),
                           "logprob");
        }
    }
}

void dq_cuda_logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                     const dq_weight *head, const int32_t *target, dq_num num)
{
    side k;
    const size_t n = (size_t)hidden.rows;
    if (b->err.code != DQ_OK || n == 0) return;
    const int32_t *t = target ? dq_cuda_upload(b, target, n * sizeof *t) : NULL;
    const bool ready = side_of(b, &k, hidden, head, num);
    dq_logprob_row *state = dq_cuda_alloc(b, n * sizeof *state);
    double *sums = dq_cuda_alloc(b, n * sizeof *sums);
    int32_t *tops = dq_cuda_alloc(b, n * sizeof *tops);
    if (ready && b->err.code == DQ_OK) logprob_pieces(b, &k, state, t);
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_logprob_end(sums, tops, state, t, hidden.rows, dq_cuda_stream(b)),
                   "logprob");
    if (logp) dq_cuda_download(b, sums, n * sizeof *sums, NULL, logp);
    if (top1) dq_cuda_download(b, tops, n * sizeof *tops, NULL, top1);
    dq_cuda_free(b, tops);
    dq_cuda_free(b, sums);
    dq_cuda_free(b, state);
    dq_cuda_free(b, k.logits);
    dq_cuda_upload_end(b);
}

static void kld_pieces(dq_backend *b, const side *p, const side *q, dq_logprob_kld_row *state)
{
    const int64_t vocab = p->head->rows, rows = p->hidden.rows;
    for (int64_t n0 = 0; n0 < vocab && b->err.code == DQ_OK; n0 += PIECE) {
        const int64_t n = vocab - n0 < PIECE ? vocab - n0 : PIECE;
        for (int64_t m0 = 0; m0 < rows && b->err.code == DQ_OK; m0 += DQ_CUDA_TILE_ROWS) {
            /* the scratch of one head holds only until the other is widened */
            const void *wide = dq_cuda_wide_rows(b, p->head, n0, n, p->bf16);
            if (wide) make_logits(b, p, wide, m0, n);
            wide = dq_cuda_wide_rows(b, q->head, n0, n, q->bf16);
            if (wide) make_logits(b, q, wide, m0, n);
            if (b->err.code == DQ_OK)
                dq_cuda_ok(b,
                           dq_logprob_kld_piece(state + m0, p->logits, q->logits, PIECE, n0, n,
                                                tile_rows(rows, m0), dq_cuda_stream(b)),
                           "kld");
        }
    }
}

void dq_cuda_kld(dq_backend *b, double *kld, dq_mat ref, const dq_weight *ref_head, dq_num ref_num,
                 dq_mat hidden, const dq_weight *head, dq_num num)
{
    side p, q;
    const size_t n = (size_t)hidden.rows;
    if (b->err.code != DQ_OK || n == 0) return;
    const bool ready_p = side_of(b, &p, ref, ref_head, ref_num);
    const bool ready_q = side_of(b, &q, hidden, head, num);
    dq_logprob_kld_row *state = dq_cuda_alloc(b, n * sizeof *state);
    double *sums = dq_cuda_alloc(b, n * sizeof *sums);
    if (ready_p && ready_q && b->err.code == DQ_OK) kld_pieces(b, &p, &q, state);
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_logprob_kld_end(sums, state, hidden.rows, dq_cuda_stream(b)), "kld");
    dq_cuda_download(b, sums, n * sizeof *sums, NULL, kld);
    dq_cuda_free(b, sums);
    dq_cuda_free(b, state);
    dq_cuda_free(b, p.logits);
    dq_cuda_free(b, q.logits);
}
