/* prequant_linear: one weight from words of 32 bits to dq's rows. A stream that runs down a column of words is turned word
 * by word; AWQ's words, which hold eight rows of a column, eight at a time; what is left goes code by code.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/prequant_format.h"

#include <math.h>
#include <string.h>

enum { LINE = 16 }; /* words of a cache line: so many columns of words are turned at once */

static uint32_t word_at(const uint8_t *data, int64_t i)
{
    uint32_t x;
    memcpy(&x, data + 4 * i, sizeof x);
    return x;
}

static void put_word(uint8_t *data, int64_t i, uint32_t x)
{
    memcpy(data + 4 * i, &x, sizeof x);
}

static int64_t groups_of(const dq_weight *w)
{
    return dq_quant_groups(w->cols, w->group_size);
}

/* ---- Schemes ---- */

static dq_status check_parts(const dq_prequant_linear *l, const dq_prequant_format *f, dq_err *err)
{
    for (int i = 0; i < DQ_PREQUANT_PARTS; i++) {
        const dq_tensor *t = l->part[i];
        if (!t && f->needed[i])
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s%s\" is missing, \"%s%s\" is there",
                           l->name, f->suffix[i], l->name, f->suffix[DQ_PREQUANT_CODES]);
        if (!t) continue;
        if (f->dtype[i] != DQ_DTYPE_COUNT && f->dtype[i] != t->dtype)
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": wrong type (expected %s, found %s)",
                           t->name, dq_dtypes[f->dtype[i]].name, dq_dtypes[t->dtype].name);
        if (dq_tensor_numel(t) == 0)
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": no elements", t->name);
    }
    const dq_tensor *scales = l->part[DQ_PREQUANT_SCALES], *index = l->part[DQ_PREQUANT_INDEX];
    if (scales->dtype != DQ_F16 && scales->dtype != DQ_BF16 && scales->dtype != DQ_F32)
        return dq_fail(err, DQ_MISMATCH,
                       "tensor \"%s\": dtype %s is not supported (supported: F32, F16, BF16)",
                       scales->name, dq_dtypes[scales->dtype].name);
    if (index && index->n_dims != 1)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %d dimensions (expected 1)", index->name,
                       index->n_dims);
    return DQ_OK;
}

static dq_status fits_none(const dq_prequant_linear *l, const dq_prequant_config *c,
                           const char *why, dq_err *err)
{
    int first = 0;
    while (first + 1 < c->n_schemes && !(l->schemes >> first & 1)) first++;
    const dq_prequant_scheme *s = &c->scheme[first];
    char group[32] = "for each row";
    if (s->group == DQ_GROUP_TENSOR) strcpy(group, "for the tensor");
    if (s->group > 0) snprintf(group, sizeof group, "for %lld columns", (long long)s->group);
    return dq_fail(err, DQ_MISMATCH,
                   "tensor \"%s\" and those beside it are not what quantization_config says (%d "
                   "bits, a scale %s%s): %s",
                   l->part[DQ_PREQUANT_CODES]->name, s->bits, group,
                   l->schemes >> first > 1 ? ", or others" : "", why);
}

dq_status dq_prequant_linear_fit(dq_prequant_linear *l, const dq_prequant_config *c, dq_err *err)
{
    const char *why = NULL, *reason = NULL;
    dq_prequant_linear found = {0};
    DQ_TRY(check_parts(l, c->format, err));
    for (int i = 0; i < c->n_schemes; i++) {
        dq_prequant_linear trial = *l;
        if (!(l->schemes >> i & 1)) continue;
        why = c->format->fit(&trial, &c->scheme[i]);
        if (why && !reason) reason = why;
        if (why) continue;
        trial.any_zero = c->scheme[i].any_zero;
        trial.any_index = c->scheme[i].any_index;
        trial.needs_index = c->scheme[i].needs_index && (found.w.rows == 0 || found.needs_index);
        const dq_weight *a = &found.w, *b = &trial.w;
        if (a->rows && (a->bits != b->bits || a->group_size != b->group_size ||
                        a->scale_rows != b->scale_rows || a->cols != b->cols))
            return dq_fail(err, DQ_MISMATCH,
                           "tensor \"%s\" fits several of the ways that quantization_config names",
                           l->part[DQ_PREQUANT_CODES]->name);
        trial.any_zero = trial.any_zero || found.any_zero;
        trial.any_index = trial.any_index || found.any_index;
        found = trial;
    }
    if (found.w.rows == 0) return fits_none(l, c, reason, err);
    *l = found;
    const dq_tensor *index = l->part[DQ_PREQUANT_INDEX];
    if (!index && l->needs_index && groups_of(&l->w) > 1)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s%s\" is missing, but quantization_config says that columns were "
                       "ordered by their activations",
                       l->name, c->format->suffix[DQ_PREQUANT_INDEX]);
    if (index && index->shape[0] != l->w.cols)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %lld columns (expected %lld)", index->name,
                       (long long)index->shape[0], (long long)l->w.cols);
    return DQ_OK;
}

/* ---- Room ---- */

static bool codes_lie_in_rows(const dq_prequant_linear *l)
{
    return !l->by_column && l->codes.per_word == 0 && l->codes.step == 1;
}

/* Widened to f32, or turned. */
static bool scales_lie_in_rows(const dq_prequant_linear *l)
{
    const int64_t groups = groups_of(&l->w);
    return l->part[DQ_PREQUANT_SCALES]->dtype != DQ_BF16 && l->scale_row == groups &&
           (groups == 1 || l->scale_group == 1);
}

static dq_status size_of(dq_prequant_linear *l, dq_prequant_part part, int64_t rows,
                         size_t row_bytes, dq_err *err)
{
    if (dq_mul_ok(&l->own_bytes[part], (size_t)rows, row_bytes)) return DQ_OK;
    return dq_fail(err, DQ_RESOURCE, "tensor \"%s\": does not fit in memory", l->part[part]->name);
}

dq_status dq_prequant_linear_size(dq_prequant_linear *l, dq_err *err)
{
    dq_weight *w = &l->w;
    const int64_t groups = groups_of(w);
    w->scale_dtype = l->part[DQ_PREQUANT_SCALES]->dtype == DQ_F16 ? DQ_F16 : DQ_F32;
    if (!codes_lie_in_rows(l))
        DQ_TRY(size_of(l, DQ_PREQUANT_CODES, w->rows, dq_quant_row_bytes(w->cols, w->bits), err));
    if (!scales_lie_in_rows(l))
        DQ_TRY(size_of(l, DQ_PREQUANT_SCALES, w->scale_rows,
                       (size_t)groups * dq_dtypes[w->scale_dtype].bytes, err));
    if (l->zeros.data || l->signed_zeros)
        DQ_TRY(size_of(l, DQ_PREQUANT_ZEROS, w->scale_rows, dq_weight_zero_bytes(groups, w->bits),
                       err));
    if (l->part[DQ_PREQUANT_INDEX])
        DQ_TRY(size_of(l, DQ_PREQUANT_INDEX, w->cols, sizeof(int32_t), err));
    return DQ_OK;
}

/* ---- Codes ---- */

/* The word that holds the first bit of field i of a stream, and where in it the field begins. */
static int64_t first_word(const dq_prequant_words *x, int64_t stream, int64_t i, int *at)
{
    const int64_t bit = i * x->bits;
    const int inside = x->per_word ? (int)(i % x->per_word) : 0;
    *at = x->per_word ? (x->order ? x->order[inside] : inside) * x->bits : (int)(bit % 32);
    return stream * x->next + (x->per_word ? i / x->per_word : bit / 32) * x->step;
}

static unsigned field(const dq_prequant_words *x, int64_t stream, int64_t i)
{
    int at;
    const int64_t word = first_word(x, stream, i, &at);
    uint32_t u = word_at(x->data, word) >> at;
    if (at + x->bits > 32) u |= word_at(x->data, word + x->step) << (32 - at);
    return u & ((1u << x->bits) - 1);
}

/* Words of a row that stand below each other. */
static void turn_words(dq_prequant_linear *l)
{
    const dq_prequant_words *x = &l->codes;
    const size_t row_bytes = dq_quant_row_bytes(l->w.cols, l->w.bits);
    const int64_t words = (int64_t)row_bytes / 4;
    for (int64_t r0 = 0; r0 < l->w.rows; r0 += LINE) {
        const int64_t end = r0 + LINE < l->w.rows ? r0 + LINE : l->w.rows;
        for (int64_t k = 0; k < words; k++) {
            for (int64_t r = r0; r < end; r++)
                put_word(l->own[DQ_PREQUANT_CODES] + (size_t)r * row_bytes, k,
                         word_at(x->data, k * x->step + r * x->next));
        }
    }
}

/* Eight words of 4-bit codes, of columns k .. k + 7, become a word for each of their eight rows. */
static void turn_eight(dq_prequant_linear *l, int64_t k, int64_t word)
{
    enum { N = 8 };
    const dq_prequant_words *x = &l->codes;
    const size_t row_bytes = dq_quant_row_bytes(l->w.cols, l->w.bits);
    uint32_t from[N] = {0};
    for (int i = 0; i < N && k + i < l->w.cols; i++)
        from[i] = word_at(x->data, (k + i) * x->next + word * x->step);
    for (int j = 0; j < N; j++) {
        const int at = 4 * x->order[j];
        uint32_t to = 0;
        for (int i = 0; i < N; i++) to |= (from[i] >> at & 15u) << 4 * i;
        put_word(l->own[DQ_PREQUANT_CODES] + (size_t)(word * N + j) * row_bytes, k / N, to);
    }
}

static void turn_columns(dq_prequant_linear *l)
{
    const int64_t words = l->codes.next;
    for (int64_t first = 0; first < words; first += LINE) {
        const int64_t end = first + LINE < words ? first + LINE : words;
        for (int64_t k = 0; k < l->w.cols; k += 8) {
            for (int64_t word = first; word < end; word++) turn_eight(l, k, word);
        }
    }
}

static void code_by_code(dq_prequant_linear *l)
{
    const dq_weight *w = &l->w;
    const size_t row_bytes = dq_quant_row_bytes(w->cols, w->bits);
    int8_t *q = dq_block_new(1, (size_t)w->cols, &l->err);
    for (int64_t r = 0; q && r < w->rows; r++) {
        for (int64_t c = 0; c < w->cols; c++)
            q[c] = (int8_t)((int)field(&l->codes, r, c) - (1 << (w->bits - 1)));
        dq_quant_pack_row(l->own[DQ_PREQUANT_CODES] + (size_t)r * row_bytes, q, w->cols, w->bits);
    }
    dq_block_free(q);
}

static void fill_codes(dq_prequant_linear *l)
{
    const dq_weight_part_row *row = &dq_format_int.part[0];
    const bool anew = l->own_bytes[DQ_PREQUANT_CODES] > 0;
    if (l->by_column)
        turn_columns(l);
    else if (anew && l->codes.per_word == 0)
        turn_words(l);
    else if (anew)
        code_by_code(l);
    const dq_part part = row->of(&l->w);
    const char *wrong = row->wrong(&part, DQ_ABSMAX);
    if (wrong)
        dq_fail(&l->err, DQ_DAMAGED, "tensor \"%s\": %s", l->part[DQ_PREQUANT_CODES]->name, wrong);
}

/* ---- Scales, zero points, index ---- */

static void fill_scales(dq_prequant_linear *l)
{
    dq_weight *w = &l->w;
    const dq_tensor *t = l->part[DQ_PREQUANT_SCALES];
    const uint8_t *from = t->data;
    const size_t size = dq_dtypes[t->dtype].bytes, stored = dq_dtypes[w->scale_dtype].bytes;
    const int64_t groups = groups_of(w);
    uint8_t *to = l->own[DQ_PREQUANT_SCALES];
    for (int64_t r = 0; r < w->scale_rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            const uint8_t *at = from + (size_t)(r * l->scale_row + g * l->scale_group) * size;
            float s = 0;
            dq_tensor_to_f32(&s, at, t->dtype, 1);
            if (!isfinite(s)) {
                dq_fail(&l->err, DQ_DAMAGED,
                        "tensor \"%s\": the scale of row %lld, group %lld is not finite", t->name,
                        (long long)r, (long long)g);
                return;
            }
            if (!to) continue;
            memcpy(to, size == stored ? (const void *)at : &s, stored);
            to += stored;
        }
    }
}

/* One too small where the words are v1's, whose fields were lowered word by word (GPTQModel adds the same): what borrows
 * from its neighbour gets it back. Fields of 3 bits lie across words and are raised each by itself. */
static int stored_zero(dq_prequant_linear *l, const dq_prequant_config *c, int64_t r, int64_t g)
{
    const dq_prequant_words *x = &l->zeros;
    const unsigned top = (1u << l->w.bits) - 1;
    if (l->signed_zeros) return l->signed_zeros[r * groups_of(&l->w) + g] + (1 << (l->w.bits - 1));
    const unsigned u = field(x, g, r);
    if (!c->zero_shift) return (int)u;
    l->n_wrapped += u == top;
    if (32 % l->w.bits) return (int)((u + 1) & top);
    int at;
    const int64_t word = first_word(x, g, r, &at);
    return (int)((word_at(x->data, word) + UINT32_MAX / top) >> at & top);
}

static bool zero_is_wrong(dq_prequant_linear *l, int zero, int64_t r, int64_t g)
{
    const int middle = 1 << (l->w.bits - 1);
    const char *name = l->part[DQ_PREQUANT_ZEROS]->name;
    if (zero < 0 || zero >= 2 * middle)
        dq_fail(&l->err, DQ_DAMAGED,
                "tensor \"%s\": the zero point of row %lld, group %lld does not fit %d bits", name,
                (long long)r, (long long)g, l->w.bits);
    else if (zero != middle && !l->any_zero)
        dq_fail(&l->err, DQ_MISMATCH,
                "tensor \"%s\": the zero point of row %lld, group %lld is %d, but "
                "quantization_config says that the codes are symmetric (expected %d)",
                name, (long long)r, (long long)g, zero, middle);
    return l->err.code != DQ_OK;
}

static void fill_zeros(dq_prequant_linear *l, const dq_prequant_config *c)
{
    dq_weight *w = &l->w;
    const int64_t groups = groups_of(w);
    const size_t row_bytes = dq_weight_zero_bytes(groups, w->bits);
    bool all_middle = true;
    for (int64_t r = 0; r < w->scale_rows; r++) {
        uint8_t *row = l->own[DQ_PREQUANT_ZEROS] + (size_t)r * row_bytes;
        for (int64_t g = 0; g < groups; g++) {
            const int zero = stored_zero(l, c, r, g);
            const int64_t bit = g * w->bits;
            if (zero_is_wrong(l, zero, r, g)) return;
            all_middle = all_middle && zero == 1 << (w->bits - 1);
            const unsigned u = (unsigned)zero << bit % 8;
            row[bit / 8] = (uint8_t)(row[bit / 8] | u);
            if (u > 255) row[bit / 8 + 1] = (uint8_t)(row[bit / 8 + 1] | u >> 8);
        }
    }
    if (!all_middle) w->zero = l->own[DQ_PREQUANT_ZEROS];
}

/* Runs of columns, or -1 throughout, need no index. */
static void fill_index(dq_prequant_linear *l)
{
    dq_weight *w = &l->w;
    const dq_tensor *t = l->part[DQ_PREQUANT_INDEX];
    const int64_t groups = groups_of(w);
    int32_t *to = (int32_t *)(void *)l->own[DQ_PREQUANT_INDEX];
    bool runs = true, none = true;
    memcpy(to, t->data, (size_t)w->cols * sizeof *to);
    for (int64_t c = 0; c < w->cols; c++) none = none && to[c] == -1;
    for (int64_t c = 0; c < w->cols && !none; c++) {
        runs = runs && to[c] == c / w->group_size;
        if (to[c] >= 0 && to[c] < groups) continue;
        dq_fail(&l->err, DQ_DAMAGED, "tensor \"%s\": group %d of column %lld (there are %lld)",
                t->name, to[c], (long long)c, (long long)groups);
        return;
    }
    if (runs) return;
    w->index = to;
    if (!l->any_index)
        dq_fail(
            &l->err, DQ_MISMATCH,
            "tensor \"%s\": groups are not runs of columns, but quantization_config names no order "
            "(actorder) of that kind",
            t->name);
}

void dq_prequant_linear_read(dq_prequant_linear *l, const dq_prequant_config *c)
{
    dq_weight *w = &l->w;
    if (l->own_bytes[DQ_PREQUANT_ZEROS]) fill_zeros(l, c);
    if (l->own_bytes[DQ_PREQUANT_INDEX]) fill_index(l);
    w->format = w->index ? &dq_format_int_index : w->zero ? &dq_format_int_zero : &dq_format_int;
}

void dq_prequant_linear_fill(dq_prequant_linear *l, const dq_prequant_config *c)
{
    (void)c;
    fill_codes(l);
    fill_scales(l);
}
