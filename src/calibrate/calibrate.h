/* A calibration text through the model layer by layer, and what rounding makes of it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIBRATE_H
#define DQ_CALIBRATE_H

#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/backend.h"
#include "engine/runner.h"
#include "model/model.h"
#include "quantize/quantize.h"
#include "tasks/documents.h"
#include "tensor/tensor.h"

/* Excerpts of texts much larger than what is asked of them. */

/* A text is read whole up to these bytes, or these bytes per requested token. */
enum { DQ_CALIB_EXCERPT_FROM = 4 << 20, DQ_CALIB_EXCERPT_BYTES = 64 };

typedef struct dq_calib_excerpt {
    dq_docs docs;
    const int32_t *unit; /* [docs.n] that a document is, of n_units; NULL: all are here, in order */
    int64_t n_units; /* documents of the file; if cut, regions that all four quarters would have */
    bool quarters;   /* documents are the quarters of a single text, all four */
    bool cut;        /* documents are regions of a single text: only their first `ctx` ids count */
    bool all;        /* nothing of the quarters is left out, or there is no more of them */
    int64_t bytes;   /* read */
} dq_calib_excerpt;

/* The documents of text[len] (dq_documents_add). Quarters ("Calib text") of a single text above
 * DQ_CALIB_EXCERPT_FROM are those of its bytes, whatever is asked for. Of a large text an excerpt
 * of the quarters of `part` with about per_token bytes for each token: lines of a .jsonl at even
 * intervals, where there are two; of a single text regions at even intervals, as many as sequences
 * of `ctx` ids are needed, each from after a line's end on. Memory in the arena. DQ_DAMAGED. */
dq_status dq_calib_excerpt_make(dq_calib_excerpt *out, const char *path, const char *text,
                                size_t len, int64_t tokens, int64_t ctx, unsigned quarters,
                                int64_t per_token, dq_arena *a, dq_err *err);

enum { DQ_CALIB_TEXT_TOKENS = 16384, DQ_CALIB_TEXT_CTX = 512 }; /* without other words */

/* Parts of a text that share nothing: the documents of a file that has several are dealt in turn to
 * four quarters; the pieces of `ctx` ids of a single text, of which neighbours depend on each
 * other, stay together, a quarter after the other. A quarter is one of the pieces; of plain text
 * above DQ_CALIB_EXCERPT_FROM ("Calib excerpt") one of the bytes, so that those who ask for
 * different numbers of tokens agree on it. `quarters` is a bit for each. */
enum { DQ_CALIB_TEXT_QUARTERS = 4, DQ_CALIB_TEXT_ALL = 15 };

typedef struct dq_calib_text {
    const int32_t *ids; /* [n_ids] sequence by sequence */
    int64_t n_ids;
    const int64_t *cu;   /* [n_seq + 1] */
    const int32_t *unit; /* [n_seq] that a sequence is of, of n_units */
    int64_t n_seq, ctx;  /* no sequence is longer than ctx */
    const int32_t
        *cluster; /* [n_seq] from 0: of its unit, and of all that are copies of one (documents.h) */
    int64_t n_clusters, n_copies; /* units that are copies of an earlier one of the sequences */
    int64_t n_places, n_new;      /* dq_repeats_count of the sequences */
    int64_t n_units;              /* as of the excerpt; of a single text otherwise its pieces */
    bool cut;                     /* as of the excerpt ("Calib excerpt") */
    int64_t found;                /* ids that the quarters have */
    int64_t requested;            /* ids asked for */
    int64_t n_bad, first_bad;     /* ill-formed UTF-8 of what was read; offset in the file */
    bool json_lines;              /* as documents.h has it */
    int64_t bytes, bytes_read;    /* of the file; of it as text ("Calib excerpt") */
    char sha256[65];              /* of the file */
} dq_calib_text;

/* The sketch of its sequences (documents.h), as JSON. */
json_t *dq_calib_text_sketch(const dq_calib_text *t);

/* The documents of a file (documents.h: .jsonl of {"text"}, or one text) as the model's tokenizer
 * and its template encode them, each cut into pieces of `ctx` ids, the last one shorter; where the
 * template begins with an id, so does every piece, in place of its first id. Of more pieces than
 * `tokens` ids ask for, as many are taken as give them (the last one is cut, and left out where one
 * id would be all of it), at even intervals; of `quarters` alone, not 0. A file that is
 * much larger than what that takes is not read whole: "Calib excerpt". ctx 0:
 * min(DQ_CALIB_TEXT_CTX, the model's positions); tokens 0: DQ_CALIB_TEXT_TOKENS. Memory in the
 * arena. DQ_USAGE for a ctx that the model has no positions for; DQ_DAMAGED for a file, or quarters
 * of it, without text. */
dq_status dq_calib_text_read(dq_calib_text *out, const char *path, const dq_model *m,
                             int64_t tokens, int64_t ctx, unsigned quarters, dq_arena *a,
                             dq_err *err);

/* A text that the model writes itself: sequences of `ctx` ids that begin with its first token
 * (bos_token, else eos_token, else any), each further one drawn by softmax at temperature 1, as
 * LLM-QAT does (arXiv 2305.17888). Here its lengths alone: *ids[n_ids], out's own, all begin a
 * sequence until dq_calib_sample has drawn them. Memory in the arena. Fails as dq_calib_text_read
 * does. */
dq_status dq_calib_text_sampled(dq_calib_text *out, int32_t **ids, const dq_model *m,
                                int64_t tokens, int64_t ctx, dq_arena *a, dq_err *err);

enum { DQ_CALIB_SAMPLE_SEED = 1 };
typedef struct dq_calib_sampler {
    const dq_model *m;
    dq_backend *b; /* one that computes in host memory */
    const dq_calib_text *text;
    int32_t *ids;
    int64_t at_once;                       /* sequences; 0: all that half of memory holds */
    void (*tell)(void *arg, double share); /* of all ids, that have just been drawn */
    void *arg;
} dq_calib_sampler;

/* By all ranks: the ids of the text, the same with the same arithmetic. DQ_DAMAGED:
 * logits that are not finite; DQ_STOPPED. */
dq_status dq_calib_sample(const dq_calib_sampler *to, dq_err *err);
double dq_calib_sample_flop(const dq_model *m, const dq_calib_text *t);
int64_t dq_calib_sample_bytes(const dq_model *m, const dq_calib_text *t);

/* Counts sequences of `t` whose ids equal one of `before`. DQ_RESOURCE. */
dq_status dq_calib_text_shared(int64_t *n, const dq_calib_text *t, const dq_calib_text *before,
                               dq_err *err);

int64_t dq_calib_text_longest(const dq_calib_text *t);

/* Quarters as JSON, [0, 2]; and back: 0 for an invalid list. */
json_t *dq_calib_text_quarters_json(unsigned quarters);
unsigned dq_calib_text_quarters(const json_t *list);

/* Runs a text's sequences through a layer, several whole ones at a time. Chunks depend on the text
 * alone, so threads and memory change no byte. */

/* A chunk has whole sequences of at most so many rows, or one. */
enum { DQ_CALIB_PASS_ROWS = 2048 };
typedef struct dq_calib_chunk {
    dq_batch batch;
    int64_t first;                /* row among those of this rank */
    int64_t first_row, first_seq; /* in the text */
} dq_calib_chunk;

typedef struct dq_calib_pass {
    dq_backend *b; /* one that computes in host memory */
    dq_arena *arena;
    dq_calib_chunk *chunk; /* [n_chunks] of this rank; `first` counts its own rows */
    int64_t n_chunks, n_rounds, n_rows;
    int64_t n_all, max_rows; /* chunks of all ranks; rows of the largest of them */
    int64_t *row; /* [n_all + 1] of the text: the first of each chunk of all ranks, and their end */
    dq_mat x, h, q, k, v, y, angles, lambda; /* of max_rows rows, as dq_layer_steps has them */
    dq_mat up;                               /* of at most DQ_FFN_ROWS rows */
    dq_mat gate; /* likewise; of max_rows where several ranks add up whole chunks */
} dq_calib_pass;

/* Ranks take chunks in turn, one each per round; the last round may be incomplete. */
static inline const dq_calib_chunk *dq_calib_pass_chunk(const dq_calib_pass *p, int64_t round)
{
    return round < p->n_chunks ? &p->chunk[round] : NULL;
}

/* Rows of all chunks of a round, in units of this rank's. */
double dq_calib_pass_at_once(const dq_calib_pass *p, int64_t round);
/* By all ranks, after a call that fails for all or none, as in dq_ranks_spread: x[n_ids] of `bytes`
 * each, of which a rank has the rows of its chunks. */
void dq_calib_pass_join(const dq_calib_pass *p, void *x, size_t bytes);

/* The text and b must outlive it; it fits models of m's shape. DQ_RESOURCE. */
dq_status dq_calib_pass_new(dq_calib_pass *p, const dq_model *m, dq_backend *b,
                            const dq_calib_text *text, dq_err *err);
void dq_calib_pass_end(dq_calib_pass *p); /* {0} allowed */
/* Rows of the longest chunk; and bytes of buffers, a layer's cache, and transfers to the scratch
 * file. */
int64_t dq_calib_pass_rows(const dq_calib_text *text);
int64_t dq_calib_pass_bytes(const dq_model *m, int64_t rows);

/* Columns of o's inputs; and of the widest inputs. */
int64_t dq_calib_pass_y(const dq_model *m);
int64_t dq_calib_pass_widest(const dq_model *m);

static inline dq_mat dq_calib_pass_first(dq_mat m, int64_t rows)
{
    m.rows = rows;
    return m;
}
/* Steps of a layer of m, or of a copy with other weights; the caller owns the cache. */
dq_layer_steps dq_calib_pass_steps(const dq_calib_pass *p, const dq_model *m, const dq_layer *layer,
                                   const dq_calib_chunk *k);
/* Sets kv of the steps, with new sequences and the angles of their positions; end it by kv_free.
 * DQ_RESOURCE. */
dq_status dq_calib_pass_cache(const dq_calib_pass *p, dq_layer_steps *s, dq_err *err);

/* The state of all tokens between two passes, in a scratch file: the residual stream, and one
 * matrix that passes reuse. */

typedef enum dq_activations_kind {
    DQ_ACTIVATIONS_STREAM, /* [rows, dim] */
    DQ_ACTIVATIONS_BEFORE, /* [rows, dim] the unrounded model's stream, with two streams */
    DQ_ACTIVATIONS_OTHER   /* [rows, at most width], as wide as what is put */
} dq_activations_kind;

typedef struct dq_activations {
    dq_inplace_file file;
    dq_backend *b;
    int64_t rows, dim, width;
    int streams; /* 1 or 2 */
    void *host;  /* between file and backend */
    size_t host_bytes;
} dq_activations;

int64_t dq_activations_bytes(int64_t rows, int64_t dim, int streams,
                             int64_t width); /* of the file */
/* DQ_FILE, DQ_RESOURCE. */
dq_status dq_activations_open(dq_activations *a, dq_backend *b, const char *beside, int64_t rows,
                              int64_t dim, int streams, int64_t width, dq_err *err);
void dq_activations_close(dq_activations *a); /* {.file.fd = -1} allowed */
/* Transfers rows from `first` on between the file and m; both wait for the backend and give its
 * error. */
dq_status dq_activations_put(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err);
dq_status dq_activations_get(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err);

/* A = L L^T of a symmetric positive definite matrix in f64; the same bits on every machine, for any
 * number of threads. */

/* Row stride: an odd number of cache lines, so that a column does not share one cache set. */
static inline int64_t dq_cholesky_stride(int64_t n)
{
    const int64_t lines = (n + 7) / 8;
    return 8 * (lines + (lines % 2 == 0));
}

/* a[n, n], row stride ld, 64-byte aligned, ld a multiple of 8: the lower triangle is read and
 * replaced by L; what is above the diagonal is left alone. *bad_column is -1, or the first column
 * at which the matrix is not positive definite; then the lower triangle holds nothing of use.
 * DQ_RESOURCE. */
dq_status dq_cholesky(int64_t *bad_column, double *a, int64_t n, int64_t ld, dq_err *err);

/* ---- Tile sums ----
 * C = sum of a x^T over rows of two activations, or the lower triangle of sum of x x^T: f32
 * products over blocks of rows, added up in f64, in the order of the rows. Several ranks add at
 * the same time, each rows of its own: those of a call come in the order of ranks, so that chunks
 * that are dealt out one by one are added up as one process does it. */

enum {
    DQ_TILE_SUMS_ROWS = 1024, /* of one product, at most */
    DQ_TILE_SUMS_TILE = 256   /* rows of C that a product gives, and that a rank has */
};

/* Rows that a call adds: of each `piece`, all, the first or the second half. */
typedef enum dq_tile_sums_half { DQ_ROWS_ALL, DQ_ROWS_FIRST, DQ_ROWS_SECOND } dq_tile_sums_half;
typedef struct dq_tile_sums_rows {
    dq_tile_sums_half half;
    int64_t piece; /* DQ_TILE_SUMS_ROWS, or DQ_TILE_SUMS_NO_PIECES: the whole call is one */
} dq_tile_sums_rows;
#define DQ_TILE_SUMS_NO_PIECES INT64_MAX

typedef struct dq_tile_sums {
    double *c; /* [m, ld] */
    int64_t m, n, ld;
    bool lower;           /* a is x, m = n, and what is above the diagonal is left alone */
    float *left, *right;  /* [m, rows], [n, rows] transposed blocks; lower: left is right */
    float *product[2];    /* of a tile, block after block */
    size_t product_bytes; /* of one of them */
    float *got;           /* likewise, of another rank */
    int64_t *rows_of;     /* [ranks] */
    int64_t max_rows;     /* of a call */
} dq_tile_sums;

/* Buffers for calls of at most max_rows rows, which a single process takes in blocks.
 * DQ_RESOURCE. */
dq_status dq_tile_sums_new(dq_tile_sums *s, int64_t max_m, int64_t max_n, bool lower,
                           int64_t max_rows, dq_err *err);
void dq_tile_sums_free(dq_tile_sums *s); /* {0} allowed; not c */
/* By all ranks: adds the chosen rows of a[rows, m] and x[rows, n], in host memory, to c; `which` is
 * equal on all. *rows: how many. Until dq_tile_sums_share a rank has every count-th tile only.
 * Fails where a rank has failed before. */
dq_status dq_tile_sums_add(const dq_tile_sums *s, dq_backend *b, dq_mat a, dq_mat x,
                           dq_tile_sums_rows which, int64_t *rows, dq_err *err);

/* H = mean of h h^T over the inputs h of a product, so that an error E in the weights costs tr(E H
 * E^T) per token; summed by "Tile sums", in blocks that the calls determine, then factored. */

typedef struct dq_hessian {
    int64_t n, ld;
    int64_t rows; /* inputs added so far */
    double *a;    /* [n, ld]: before factoring the lower triangle is the sum of h h^T */
    dq_tile_sums sums;
    /* After factoring: H + damping I = L L^T with columns in the reverse order of rounding, L in
     * the lower triangle. */
    int64_t *order; /* [n] order[i]: column of the matrix; a later i is rounded earlier */
    double *diagonal;
    bool *dead;           /* [n] by column of the matrix: no input was ever other than 0 */
    double damping;       /* what was added to the diagonal, in units of it */
    double damping_share; /* of the mean of the diagonal */
    int64_t n_dead;
} dq_hessian;

/* For at most max_n inputs and max_rows rows per call. DQ_RESOURCE. */
dq_status dq_hessian_new(dq_hessian **out, int64_t max_n, int64_t max_rows, dq_err *err);
void dq_hessian_free(dq_hessian *h); /* NULL allowed */
int64_t dq_hessian_bytes(int64_t max_n, int64_t max_rows);
/* Starts anew with n <= max_n inputs. */
void dq_hessian_begin(dq_hessian *h, int64_t n);
/* By all ranks: as dq_tile_sums_add; and after the last call. */
dq_status dq_hessian_add(dq_hessian *h, dq_backend *b, dq_mat x, dq_tile_sums_rows which,
                         dq_err *err);
dq_status dq_hessian_share(dq_hessian *h, dq_err *err);
dq_status dq_hessian_factor(dq_hessian *h, double share, const char *what, dq_err *err);

/* C = mean of a x^T over rows of two activations. */

typedef struct dq_cross {
    int64_t m, n, ld; /* ld: a multiple of 8 */
    int64_t rows;     /* added so far */
    double *c;        /* [m, ld], 64-byte aligned: sums, and means after dq_cross_mean */
    dq_tile_sums sums;
} dq_cross;

/* For at most max_m x max_n and max_rows rows per call. DQ_RESOURCE. */
dq_status dq_cross_new(dq_cross **out, int64_t max_m, int64_t max_n, int64_t max_rows, dq_err *err);
void dq_cross_free(dq_cross *x); /* NULL allowed */
/* Starts anew with m <= max_m, n <= max_n. */
void dq_cross_begin(dq_cross *x, int64_t m, int64_t n);
/* By all ranks: as dq_tile_sums_add; and after the last call. */
dq_status dq_cross_add(dq_cross *c, dq_backend *b, dq_mat a, dq_mat x, dq_tile_sums_rows which,
                       dq_err *err);
/* Turns sums into means. DQ_DAMAGED, naming `what`: one is not finite. */
dq_status dq_cross_mean(dq_cross *x, const char *what, dq_err *err);

/* ---- Correction ----
 * Weights that make up for what rounding has done to the model before them.
 *
 * A product's inputs x in the rounded model are not those that it was made for. The weights whose
 * outputs come nearest, in the mean of squares over the calibration text, to what the model
 * computed before rounding are
 *     W* = W + C (H + damping I)^-1,   H = mean of x x^T,   C = mean of (target - W x) x^T,
 * and it is W* that is rounded then. Where only inputs differ, target = W x' with x' the inputs of
 * the model before rounding, and C = W M with M = mean of (x' - x) x^T. Where the output is added
 * to the residual stream, target - W x is all that this stream lacks after the product, so that o
 * and down take back what was lost earlier too. Where a norm follows the product, which hides the
 * size of what it reads, target is what the product gave before rounding. Source: asymmetric
 * calibration, GPTAQ, arXiv 2504.02692, and Qronos, arXiv 2505.11695, whose least squares are
 * solved here at once and before rounding; the residual target is dq's own. */

/* Replaces C by C (H + damping I)^-1 for a factored h, x->n = h->n columns in the matrix's order;
 * dead columns become 0. DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_correction_solve(dq_cross *x, const dq_hessian *h, dq_err *err);
/* w[rows, k->n] += w K for a solved M [n, n]; and w += rows first .. first + rows - 1 of a solved
 * C. In f64, rounded once; bits depend neither on threads nor bands. DQ_RESOURCE. */
dq_status dq_correction_of_inputs(float *w, int64_t rows, const dq_cross *k, dq_err *err);
dq_status dq_correction_of_outputs(float *w, int64_t first, int64_t rows, const dq_cross *k,
                                   dq_err *err);

/* ---- Shrinkage ----
 * How far a correction of weights is to be trusted, by what one that half of the rows gave does
 * for the other half.
 *
 * A correction has as many unknowns for each output as a product has inputs. From few tokens it is
 * chance for the most part, and worse than none. So weights become W + diag(a) K, K = C (H + ridge
 * mean(diag H) I)^-1, with a ridge for each product and a share a for each output. K is solved
 * from rows A and judged on rows B, where an output's error is
 *     |lacks - a k x|^2 = const - 2 a k c^T + a^2 k H_B k^T,    k and c its rows of K and C_B,
 * and least at a = k c^T / k H_B k^T. Ridges grow as long as that makes outputs clearly better.
 *
 * All rows are twice as many as A, with half the chance in them: a becomes 2 a / (1 + a), as
 * signal and chance are a to 1 - a in A, and the ridge its half. Before that a is taken 1.3 times,
 * which costs a tenth of its gain at most: an output's error hardly tells shares near the best
 * apart. Source: shrinkage by cross-validation; Hastie, Tibshirani, Friedman, The Elements of
 * Statistical Learning, 3.4 and 7.10. */

/* Sums over the first half of each call's rows; the caller has the others. */
typedef struct dq_shrinkage {
    dq_hessian *h;
    dq_cross *c;
    double *k;     /* [m, ld of c] a correction by A */
    double *share; /* [m] found by dq_shrinkage_find; the rest is private */
} dq_shrinkage;

/* For at most max_m x max_n and max_rows rows per call. DQ_RESOURCE. */
dq_status dq_shrinkage_new(dq_shrinkage *o, int64_t max_m, int64_t max_n, int64_t max_rows,
                           dq_err *err);
void dq_shrinkage_free(dq_shrinkage *o); /* {0} allowed */
/* Starts anew with m <= max_m, n <= max_n. */
void dq_shrinkage_begin(dq_shrinkage *o, int64_t m, int64_t n);
/* By all ranks: halves of each `piece` go to o and h: inputs x[rows, n]; and what they lack,
 * lacks[rows, m], to o and c. */
dq_status dq_shrinkage_add_inputs(dq_shrinkage *o, dq_hessian *h, dq_backend *b, dq_mat x,
                                  int64_t piece, dq_err *err);
dq_status dq_shrinkage_add_lacks(dq_shrinkage *o, dq_cross *c, dq_backend *b, dq_mat lacks,
                                 dq_mat x, int64_t piece, dq_err *err);
/* By all ranks, each solving for some outputs: *ridge, a share of the mean diagonal, and o->share;
 * h and c become sums over all rows. `what` names the product. Bits do not depend on threads.
 * DQ_DAMAGED: sums are not finite; DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_shrinkage_find(double *ridge, dq_shrinkage *o, dq_hessian *h, dq_cross *c,
                            const char *what, dq_err *err);

/* ---- Scale refit ----
 * The scales that fit codes best. With the integers z of a row's groups given, w' = sum over g of
 * s_g z_g is linear in the scales, and the s that miss least, (w - w')(H + damping I)(w - w')^T,
 * solve a system as large as a row has groups. */

/* Replaces the scales of c->grid, as stored, where the new one has the sign of the old and is
 * between half and twice it; codes and zero points stay. One scale for the whole matrix stays too.
 * Of more groups than 704 in a row, bands of so many are solved for one after the other. h is
 * factored. The same bits for any number of threads. DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_scale_refit(dq_codes *c, const float *w, const dq_hessian *h, dq_err *err);
/* Bytes allocated meanwhile. */
int64_t dq_scale_refit_bytes(const dq_code_shape *s);

/* ---- GPTQ ----
 * Rounding a matrix so that the errors of columns that are rounded already are made up for by
 * those that are not.
 *
 * With the columns in the order in which they are rounded and H + damping I = (U + I) D (U + I)^T,
 * U strictly upper triangular, column k becomes Q(w_k + sum over j < k of (w_j - w'_j) U_jk), Q
 * being the rounding to the nearest code of the group's grid. Grids are found from the original
 * weights. Source: GPTQ, arXiv 2210.17323, in the form of LDLQ, arXiv 2307.13304 (theorem 6: both
 * are the same), which needs no inverse; order by descending diagonal of H: --act-order of the
 * GPTQ code. */

typedef struct dq_gptq_loss {
    double error, signal; /* tr((W - W')H(W - W')^T) and tr(W H W^T) of the undamped H */
} dq_gptq_loss;

dq_status dq_gptq(dq_codes **out, const float *w, int64_t rows, int64_t cols, const dq_hessian *h,
                  const bool *zero, const dq_quant_spec *spec, int refits, dq_gptq_loss *loss,
                  dq_err *err);
/* *zero, a block: which columns are 0 in all rows; NULL: none. DQ_RESOURCE. */
dq_status dq_gptq_zero_columns(bool **zero, const dq_weight *w, dq_err *err);
/* loss[rows] of codes relative to any weights. DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_gptq_measure(dq_gptq_loss *loss, const dq_codes *c, const float *w,
                          const dq_hessian *h, dq_err *err);
/* Adds the rows' losses in order. */
void dq_gptq_loss_add(dq_gptq_loss *sum, const dq_gptq_loss *loss, int64_t rows);
/* Rounds once with given grids: reads c->grid, writes c->code and loss[rows].error. */
dq_status dq_gptq_round(dq_codes *c, const float *w, const dq_hessian *h, const bool *zero,
                        dq_gptq_loss *loss, dq_err *err);

/* Ranks share the rows of a band in stripes, as rows, or strips of them, are independent. */

typedef struct dq_gptq_stripes {
    const dq_quant_spec *spec;
    int64_t cols;
    /* rows share one scale: the band is the matrix, and every rank rounds it */
    bool whole;
    /* Codes of rows first .. first + rows - 1, and their loss[rows]. */
    dq_status (*round)(void *arg, dq_codes **out, dq_gptq_loss *loss, int64_t first, int64_t rows,
                       dq_err *err);
    void *arg;
} dq_gptq_stripes;

/* By all ranks: codes and loss of rows first .. first + rows - 1, equal on all; *out has all rows
 * of the matrix. Fails where a rank has failed. */
dq_status dq_gptq_stripes_round(const dq_gptq_stripes *s, dq_coded *out, dq_gptq_loss *loss,
                                int64_t first, int64_t rows, dq_err *err);

/* ---- Value maps ----
 * What attention makes of the inputs of v_proj, as a sample.
 *
 * An output head reads values by its maps: its row t, before the head norm, is W z'_t with W the
 * rows of v_proj after it and
 *     z'_t = sum_s D_ts h_s,   D = A1 - lambda A2 (A of a single map),
 * and the norm multiplies that by g_t = 1 / rms(W z'_t + bias). An error E in v_proj moves what a
 * head gives, with g_t held as it is, by E z_t, z_t = g_t z'_t: in the mean of squares tr(E H E^T)
 * with H the mean of z z^T over rows and heads, not that of the inputs h, of which most is
 * averaged away. Left out is that the norm takes back the part of an error along its output (its
 * derivative is g (I - u u^T / n), u of n values being that output), and what o_proj makes of each
 * head: all heads count alike. One H serves all rows of v_proj. It is sampled: DQ_VALUE_MAPS_BLOCK
 * rows in succession take z of one output head, the next ones that of the next head, so that all
 * heads and positions come in at the price of one pass of attention by one head. */

enum {
    DQ_VALUE_MAPS_BLOCK = 64,
    DQ_VALUE_MAPS_PANEL = 256 /* rows that are multiplied by the inputs at once: whole blocks */
};

typedef struct dq_value_maps {
    float *inputs;    /* [dim, longest] h of the keys of a panel, transposed */
    float *d;         /* [PANEL, longest] D, 0 for keys that a row does not see */
    float *logits[2]; /* [BLOCK, longest] of each map */
    float *q, *k;     /* [BLOCK, head_dim], [longest, head_dim] of one head */
    float *y;         /* [BLOCK, head_dim] a slab of what the head gives */
} dq_value_maps;

/* For sequences of at most `longest` rows. DQ_RESOURCE. */
dq_status dq_value_maps_new(dq_value_maps **out, const dq_model *m, int64_t longest, dq_err *err);
void dq_value_maps_free(dq_value_maps *v); /* NULL allowed */
int64_t dq_value_maps_bytes(const dq_model *m, int64_t longest);

/* The output head whose maps row `row` of sequence `seq` samples. */
int dq_value_maps_head(const dq_head_order *map, int64_t seq, int64_t row);
/* z[n_rows, dim] from the steps' h, q, k and lambda, with a dense v_proj. Sequences begin in the
 * batch and are numbered from first_seq. Host memory; errors stick in the backend. Bits depend
 * neither on threads nor batches. */
void dq_value_maps_read(dq_value_maps *v, dq_mat z, const dq_layer_steps *s, int64_t first_seq);

/* The unrounded model on the same calibration text: its residual stream, and sums of what the
 * rounded model's products lack ("Correction"). */

typedef struct dq_reference {
    dq_activations *act; /* that holds both streams; NULL: there is no reference */
    const dq_model *m;
    dq_mat x;          /* [max_rows, dim] its stream, of the chunk at hand */
    dq_mat lacks;      /* [max_rows, dim] what the rounded model lacks there */
    dq_cross *sums;    /* of the rows that r->half does not hold, until they are solved */
    dq_shrinkage half; /* of the other rows */
    bool of_inputs;    /* what the sums are of */
} dq_reference;

/* Corrects w[rows, n], the product's rows from `first` on. Rows whose scales would exceed spec's
 * type stay; *kept: how many. DQ_RESOURCE. */
dq_status dq_reference_correct(const dq_reference *r, float *w, int64_t first, int64_t rows,
                               const dq_quant_spec *spec, int64_t *kept, dq_err *err);

/* ---- Calibrate ----
 * Rounds the projections of a model, and its head, layer by layer, each by what its inputs look
 * like on a calibration text when everything before it is rounded already. Costs about one forward
 * pass over the text and the Hessians, and another pass where the head is the embedding; memory is
 * that of one Hessian and one layer, activations lie in a scratch file beside the output.
 *
 * Where weights are aligned, the stream of the model before rounding runs beside the rounded one,
 * which costs another forward pass and the sums of what differs.
 *
 * In a layer: inputs of q, k and v; where weights are aligned, what the maps of the rounded q and
 * k make of them for v; the attention of the rounded q, k and v, which o reads; inputs of gate and
 * up; their product after rounding, which down reads. After the last layer: the final norm, whose
 * output the head reads. A head that is the embedding is rounded before the first one, by what it
 * reads in the model before rounding. */

/* How weights become codes. */
typedef struct dq_calibrate_rule {
    const char *name, *about;
    /* weights first make up for earlier losses ("Correction"), and v_proj is rounded by the mapped
     * inputs ("Value maps") */
    bool aligns;
    int refits; /* of scales, "GPTQ" */
} dq_calibrate_rule;
/* With fewer tokens per input of the widest product, calibration did worse than rounding to nearest
 * about as often as better: docs/quantize.md, "How much text". */
#define DQ_CALIBRATE_TOKENS_EACH 0.5
enum { DQ_CALIBRATE_RULES = 2 };
extern const dq_calibrate_rule dq_calibrate_rules[DQ_CALIBRATE_RULES];

typedef struct dq_calibrate_settings {
    const dq_calibrate_rule *rule;
    const char *path;    /* of the calibration text; NULL: the model writes it */
    int64_t tokens, ctx; /* 0: the defaults of "Calib text" */
    unsigned quarters;   /* of the text, "Calib text"; 0: all */
    const char *sha256;  /* that the text must have; NULL: any */
    dq_backend *backend; /* one that computes in host memory; must outlive the run */
    const char *out;     /* beside which the scratch file is; NULL: nothing is run */
} dq_calibrate_settings;
/* Damping of a Hessian's diagonal, in units of its mean. Small directions of few tokens are noise:
 * with 4096 tokens of SmolLM2-135M 10 % lost less than GPTQ's 1 % (results/real). */
#define DQ_CALIBRATE_DAMPING "half an input a token, at least 0.01"
double dq_calibrate_damping(int64_t inputs, int64_t tokens);
#define DQ_CALIBRATE_EMBED_DAMPING 0.03 /* at least, of an embedding that is the head */

/* Phases of a run, for its time and arithmetic. */
typedef enum dq_calibrate_phase {
    DQ_CALIBRATE_TEXT,     /* f32: written by the model */
    DQ_CALIBRATE_FORWARD,  /* f32 */
    DQ_CALIBRATE_MAPS,     /* f32: what values are read by */
    DQ_CALIBRATE_HESSIANS, /* f32 */
    DQ_CALIBRATE_FACTORS,  /* f64 */
    DQ_CALIBRATE_ROUNDING, /* f64, and the search for scales */
    DQ_CALIBRATE_FILES,    /* activations, codes */
    DQ_CALIBRATE_PHASES
} dq_calibrate_phase;
extern const char *const dq_calibrate_phase_name[DQ_CALIBRATE_PHASES];

typedef struct dq_calibrate_info {
    const dq_calib_text *text; /* once a model is open */
    int64_t scratch_bytes;
    int64_t inputs; /* of the widest product */
    double seconds[DQ_CALIBRATE_PHASES], flop[DQ_CALIBRATE_PHASES];
    int64_t n_damped;    /* Hessians that took more damping than asked for */
    double damped_share; /* the most that any took */
    char damped[200];    /* the first of their tensors */
    int64_t n_dead;      /* inputs of products that are 0 for every token */
    int64_t n_corrected; /* products whose weights were corrected, and the sum of the shares that */
    double trust;        /* outputs kept of the corrections: "Shrinkage" */
    int64_t n_kept;      /* rows that could not be corrected: "Reference" */
    char kept[200];      /* the first of their tensors */
} dq_calibrate_info;

/* Seconds on all threads: per multiplication or addition, by phase; and per rounded value besides,
 * by mode and width. */
typedef struct dq_calibrate_rates {
    double flop[DQ_CALIBRATE_PHASES], value[DQ_QUANT_MODES][9];
} dq_calibrate_rates;

typedef struct dq_calibrate dq_calibrate;
dq_status dq_calibrate_new(dq_calibrate **out, const dq_calibrate_settings *s, dq_err *err);
void dq_calibrate_free(dq_calibrate *c); /* NULL allowed */
/* Times about a second of the work that q, opened with the method, has to do, for
 * dq_quantize_expected; without it, and with several ranks, nominal rates count. DQ_RESOURCE. */
dq_status dq_calibrate_measure(dq_calibrate *c, const dq_quantizer *q, dq_err *err);

struct dq_calibrate {
    dq_calibrate_settings set;
    dq_arena *arena;
    const dq_model *m; /* once one is open */
    dq_calib_text text;
    int32_t *sampled; /* its ids, where the model writes it */
    dq_calibrate_info info;
    dq_calibrate_rates rates;
    dq_quantize_method method;
    double lap; /* time at which the current phase began */
};

/* Bytes that a run of c allocates plus an eighth, without mapped files. q was opened with c's
 * method. */
int64_t dq_calibrate_memory(const dq_calibrate *c, const dq_quantizer *q);
/* DQ_RESOURCE: the machine, or this process, has less. */
dq_status dq_calibrate_memory_check(const dq_calibrate *c, const dq_quantizer *q, dq_err *err);

/* Multiplications and additions of a calibrated run, for progress and reports. */

enum { DQ_CALIBRATE_F64_FLOP = 4 }; /* of f32, in time */

double dq_calibrate_work_layer(const dq_layer *l);       /* of its weights, for one token */
double dq_calibrate_work_hessian(double rows, double n); /* the lower triangle */
double dq_calibrate_work_factor(double n);
/* Feedback and the loss's signal; for new scales, H and a rounding; for aligned weights, the loss
 * apart. */
double dq_calibrate_work_rounding(double rows, double n, dq_scale_mode mode,
                                  const dq_calibrate_rule *rule);
/* Added by codes that are found together. */
double dq_calibrate_work_found(double rows, double n, dq_scale_mode mode,
                               const dq_calibrate_rule *rule);
/* With every projection coded, in f32 operations; and the addition of a coded tied embedding. */
double dq_calibrate_work_all(const dq_model *m, const dq_calibrate_rule *rule,
                             const dq_calib_text *text);
double dq_calibrate_work_embedding(const dq_model *m, const dq_calibrate_rule *rule, double tokens);

#endif
