/* Fields are compared one after the other, so that the order is total.
 * SPDX-License-Identifier: MIT */
#include "stat/stat.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Negative: a is before b, by seq, layer, head, row, col. */
static int place_order(const dq_place *a, const dq_place *b)
{
    const int32_t x[5] = {a->seq, a->layer, a->head, a->row, a->col};
    const int32_t y[5] = {b->seq, b->layer, b->head, b->row, b->col};
    for (int i = 0; i < 5; i++) {
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}

/* A double is 53 bits at some place of the number: they are shifted there, over two words at most,
 * and added with carries. NaN is the one pattern that no sum has, 1 followed by zeros. */

enum { WORDS = 4, POINT = 128, DIGITS = 53 };
static const uint64_t sign = (uint64_t)1 << 63;

static bool is_nan(const dq_fixed *f)
{
    return f->word[3] == sign && !f->word[0] && !f->word[1] && !f->word[2];
}

static void negate(dq_fixed *f)
{
    uint64_t carry = 1;
    for (int i = 0; i < WORDS; i++) {
        f->word[i] = ~f->word[i] + carry;
        carry = carry && !f->word[i];
    }
}

bool dq_fixed_is_count(int64_t n)
{
    return n >= 0 && n <= (int64_t)1 << 46;
}

void dq_fixed_merge(dq_fixed *into, const dq_fixed *from)
{
    const bool negative = into->word[3] & sign;
    const bool overflows = negative == (bool)(from->word[3] & sign);
    uint64_t carry = 0;
    if (is_nan(into)) return;
    if (is_nan(from)) {
        *into = *from;
        return;
    }
    for (int i = 0; i < WORDS; i++) {
        const uint64_t half = into->word[i] + carry;
        carry = half < carry;
        into->word[i] = half + from->word[i];
        carry += into->word[i] < half;
    }
    if (overflows && negative != (bool)(into->word[3] & sign)) *into = (dq_fixed){{0, 0, 0, sign}};
}

static void add_term(dq_fixed *f, const dq_fixed *term, bool negative)
{
    dq_fixed copy = *term;
    if (negative) negate(&copy);
    dq_fixed_merge(f, &copy);
}

/* Adds two words and carries. Magnitudes only, so the sum may exceed the sign. */
static void add_words(dq_fixed *f, int first, uint64_t low, uint64_t high)
{
    uint64_t word = f->word[first] += low, carry = word < low;
    for (int i = first + 1; i < WORDS && (high || carry); i++) {
        const uint64_t more = high + carry; /* high is below 2^53 */
        word = f->word[i] += more;
        carry = word < more;
        high = 0;
    }
    if (f->word[3] & sign) *f = (dq_fixed){{0, 0, 0, sign}};
}

void dq_fixed_add(dq_fixed *f, double x)
{
    uint64_t bits, low, high = 0;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> (DIGITS - 1) & 0x7ff);
    int place = POINT + exponent - 1022 - DIGITS; /* of the lowest digit */
    if (place + DIGITS >= 64 * WORDS) {           /* or not finite */
        add_term(f, &(dq_fixed){{0, 0, 0, sign}}, false);
        return;
    }
    if (place <= -DIGITS) return; /* or 0 */
    low = (bits & (((uint64_t)1 << (DIGITS - 1)) - 1)) | (uint64_t)1 << (DIGITS - 1);
    if (place < 0) {
        low >>= -place;
        place = 0;
    }
    const int first = place / 64, shift = place % 64;
    if (shift > 64 - DIGITS) high = low >> (64 - shift);
    low <<= shift;
    if (!((bits | f->word[3]) & sign)) {
        add_words(f, first, low, high);
        return;
    }
    dq_fixed term = {{0}};
    term.word[first] = low;
    if (first < WORDS - 1) term.word[first + 1] = high;
    add_term(f, &term, bits & sign);
}

double dq_fixed_value(const dq_fixed *f)
{
    dq_fixed size = *f;
    const bool negative = f->word[3] & sign;
    double value = 0;
    if (is_nan(f)) return (double)NAN;
    if (negative) negate(&size);
    for (int i = 0; i < WORDS; i++) value += ldexp((double)size.word[i], 64 * i - POINT);
    return negative ? -value : value;
}

/* The place is searched only where a row reaches the largest value so far, which is rare. */

/* Takes a magnitude if larger, or equal and earlier. */
static void raise_moments(dq_moments *m, float size, const dq_place *at)
{
    if (m->max > size || size <= 0) return;
    if (m->max >= size && place_order(&m->at, at) <= 0) return;
    m->max = size;
    m->at = *at;
}

/* Takes `size` if larger than m->max, or equal and earlier; value i has col = at.col + i. */
static void raise_by_row(dq_moments *m, float size, const float *x, int64_t n, dq_place at)
{
    if (size < m->max || size <= 0) return;
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(x[i]) < size || fabsf(x[i]) > size) continue;
        at.col += (int32_t)i;
        raise_moments(m, size, &at);
        return;
    }
}

void dq_moments_merge(dq_moments *into, const dq_moments *from)
{
    if (from->n == 0) return;
    raise_moments(into, from->max, &from->at);
    into->n += from->n;
    dq_fixed_merge(&into->sum2, &from->sum2);
    dq_fixed_merge(&into->sum4, &from->sum4);
}

double dq_moments_rms(const dq_moments *m)
{
    return m->n ? sqrt(dq_fixed_value(&m->sum2) / (double)m->n) : (double)NAN;
}

double dq_moments_kurtosis0(const dq_moments *m)
{
    const double sum2 = dq_fixed_value(&m->sum2);
    return sum2 > 0 ? (double)m->n * dq_fixed_value(&m->sum4) / (sum2 * sum2) : (double)NAN;
}

/* A block is reduced in registers, maxima in float and squares in double, in the order of rows;
 * then column sums are added exactly, and rows are searched only where the maximum grew. */

enum { STEP_ROWS = 64, STEP_COLS = 64 };

const char *const dq_token_class_name[DQ_TOKEN_CLASSES] = {"ordinary", "sink", "first"};

dq_status dq_channels_init(dq_channels *c, int64_t cols, dq_err *err)
{
    *c = (dq_channels){.cols = cols};
    c->of = dq_block_new((size_t)cols * DQ_TOKEN_CLASSES, sizeof *c->of, err);
    return err->code;
}

void dq_channels_free(dq_channels *c)
{
    dq_block_free(c->of);
    *c = (dq_channels){0};
}

/* Takes a magnitude if larger, or equal and earlier. */
static void raise_to(dq_channel *to, float max, int32_t seq, int32_t row)
{
    const bool before = seq < to->seq || (seq == to->seq && row < to->row);
    if (max < to->max || (max <= to->max && (max <= 0 || !before))) return;
    to->max = max;
    to->seq = seq;
    to->row = row;
}

static int64_t find_row(const float *x, int64_t n, int64_t ld, float max)
{
    for (int64_t r = 0; r < n; r++) {
        if (fabsf(x[r * ld]) >= max && fabsf(x[r * ld]) <= max) return r;
    }
    return 0;
}

static void add_step(dq_channel *to, const float *x, int64_t n, int64_t ld, int cols, int32_t seq,
                     int32_t row)
{
    float max[STEP_COLS] = {0};
    double sum[STEP_COLS] = {0};
    for (int64_t r = 0; r < n; r++) {
        const float *y = x + r * ld;
#pragma omp simd
        for (int i = 0; i < cols; i++) {
            const float size = fabsf(y[i]) <= FLT_MAX ? fabsf(y[i]) : 0.0f;
            max[i] = size > max[i] ? size : max[i];
            sum[i] += (double)size * (double)size;
        }
    }
    for (int i = 0; i < cols; i++) {
        dq_fixed_add(&to[i].sum2, sum[i]);
        if (max[i] >= to[i].max && max[i] > 0)
            raise_to(&to[i], max[i], seq, row + (int32_t)find_row(x + i, n, ld, max[i]));
    }
}

void dq_channels_add(dq_channels *c, dq_token_class class, const float *x, int64_t n, int64_t first,
                     int64_t end, int32_t seq, int32_t row)
{
    dq_channel *of = c->of + class * c->cols;
    for (int64_t col = first; col < end; col += STEP_COLS) {
        const int cols = end - col < STEP_COLS ? (int)(end - col) : STEP_COLS;
        for (int64_t r = 0; r < n; r += STEP_ROWS)
            add_step(of + col, x + r * c->cols + col, n - r < STEP_ROWS ? n - r : STEP_ROWS,
                     c->cols, cols, seq, row + (int32_t)r);
    }
}

dq_status dq_channels_put(const dq_channels *c, dq_strbuf *to, dq_err *err)
{
    DQ_TRY(dq_strbuf_add(to, (const char *)&c->cols, sizeof c->cols, err));
    DQ_TRY(dq_strbuf_add(to, (const char *)c->rows, sizeof c->rows, err));
    for (int class = 0; class < DQ_TOKEN_CLASSES; class ++) {
        if (c->rows[class] > 0)
            DQ_TRY(dq_strbuf_add(to, (const char *)(c->of + class * c->cols),
                                 (size_t)c->cols * sizeof *c->of, err));
    }
    return DQ_OK;
}

static bool merge(dq_channels *into, const char **at, const char *end)
{
    int64_t cols, rows[DQ_TOKEN_CLASSES];
    if (!dq_strbuf_take(&cols, sizeof cols, at, end) || cols != into->cols) return false;
    if (!dq_strbuf_take(rows, sizeof rows, at, end)) return false;
    for (int class = 0; class < DQ_TOKEN_CLASSES; class ++) {
        dq_channel *to = into->of + class * cols;
        if (!dq_fixed_is_count(rows[class])) return false;
        into->rows[class] += rows[class];
        for (int64_t i = 0; rows[class] > 0 && i < cols; i++) {
            dq_channel from;
            if (!dq_strbuf_take(&from, sizeof from, at, end) ||
                !(from.max >= 0 && from.max <= FLT_MAX))
                return false;
            raise_to(&to[i], from.max, from.seq, from.row);
            dq_fixed_merge(&to[i].sum2, &from.sum2);
        }
    }
    return true;
}

dq_status dq_channels_merge_bytes(dq_channels *into, const char **at, const char *end, dq_err *err)
{
    if (merge(into, at, end)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "a table of channels is cut off, or none");
}

double dq_channels_rms(const dq_channels *c, dq_token_class class, int64_t col)
{
    if (c->rows[class] == 0) return (double)NAN;
    return sqrt(dq_fixed_value(&c->of[class * c->cols + col].sum2) / (double)c->rows[class]);
}

/* The upper 16 bits of |x| are its bin: bits of positive floats order as the floats do. A second
 * walk over the same values, after dq_tally_refine, counts the lower 16 bits of one bin, which
 * makes a quantile in it exact. Sums of a row are made in fixed lanes and then added exactly, and
 * the list of the largest is ordered by value and place, so a merge gives the same result in any
 * grouping of rows. */

enum { BLOCK = 256, LANES = 8, FINE_BINS = 1 << 16 };

static const uint32_t infinity_bits = 0x7f800000u;

dq_status dq_tally_init(dq_tally *t, dq_err *err)
{
    memset(t, 0, sizeof *t);
    t->refine_bin = -1;
    t->hist = dq_block_new(DQ_HIST_BINS, sizeof *t->hist, err);
    return t->hist ? DQ_OK : err->code;
}

void dq_tally_free(dq_tally *t)
{
    dq_block_free(t->hist);
    dq_block_free(t->fine);
    t->hist = NULL;
    t->fine = NULL;
}

void dq_tally_clear(dq_tally *t)
{
    int64_t *hist = t->hist;
    dq_block_free(t->fine);
    memset(hist, 0, DQ_HIST_BINS * sizeof *hist);
    *t = (dq_tally){.hist = hist, .refine_bin = -1, .powers = t->powers};
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The order (value, then place) is total, so that of candidates does not matter. */
static void top_insert(dq_tally *t, float value, const dq_place *at)
{
    int i = t->n_top;
    while (i > 0 && (value > t->top[i - 1] ||
                     (value == t->top[i - 1] && place_order(at, &t->place[i - 1]) < 0))) {
        i--;
    }
    if (i == DQ_TOP) return;
    int moved = (t->n_top < DQ_TOP ? t->n_top : DQ_TOP - 1) - i;
    memmove(&t->top[i + 1], &t->top[i], (size_t)moved * sizeof t->top[0]);
    memmove(&t->place[i + 1], &t->place[i], (size_t)moved * sizeof t->place[0]);
    t->top[i] = value;
    t->place[i] = *at;
    if (t->n_top < DQ_TOP) t->n_top++;
    if (t->n_top == DQ_TOP) t->threshold = t->top[DQ_TOP - 1];
}

/* Fixed lanes add in a defined order; rows with NaN or infinity take a slower path. */
static void add_sums(double sum[3], const float *x, int n)
{
    double s1[LANES] = {0}, s2[LANES] = {0}, s4[LANES] = {0};
    for (int i = 0; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            double v = (double)fabsf(x[i + k]), w = v * v;
            s1[k] += v;
            s2[k] += w;
            s4[k] += w * w;
        }
    }
    for (int i = n - n % LANES, k = 0; i < n; i++, k++) {
        double v = (double)fabsf(x[i]), w = v * v;
        s1[k] += v;
        s2[k] += w;
        s4[k] += w * w;
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; k++) {
            s1[k] += s1[k + half];
            s2[k] += s2[k + half];
            s4[k] += s4[k + half];
        }
    }
    sum[0] += s1[0];
    sum[1] += s2[0];
    sum[2] += s4[0];
}

/* Bits of |x| order like values, with infinities and NaN on top. */
static uint32_t magnitudes(uint32_t *bits, const float *x, int n)
{
    int32_t max = 0; /* no sign is left, and these are compared by more machines at once */
#pragma omp simd reduction(max : max)
    for (int i = 0; i < n; i++) {
        uint32_t of;
        memcpy(&of, &x[i], sizeof of);
        const int32_t size = (int32_t)(of & 0x7fffffffu);
        bits[i] = (uint32_t)size;
        max = size > max ? size : max;
    }
    return (uint32_t)max;
}

/* Adds to sum[3]; returns the bits of the largest magnitude, where all are finite. */
static uint32_t add_block(dq_tally *t, double sum[3], const float *x, int n, const dq_place *at)
{
    uint32_t bits[BLOCK];
    float finite[BLOCK];
    dq_tally_powers *const powers = t->powers ? t->powers : add_sums;
    uint32_t max = magnitudes(bits, x, n);
    if (t->fine) {
        enum { STEP = 32 };
        const uint32_t bin = (uint32_t)t->refine_bin;
        for (int i = 0; i < n; i += STEP) {
            const int end = i + STEP < n ? i + STEP : n;
            int32_t hits = 0;
#pragma omp simd reduction(+ : hits)
            for (int k = i; k < end; k++) hits += bits[k] >> 16 == bin;
            for (int k = i; hits && k < end; k++) {
                if (bits[k] >> 16 == bin && bits[k] < infinity_bits) t->fine[bits[k] & 0xffffu]++;
            }
        }
        return 0;
    }
    int good = n;
    if (max < infinity_bits) {
        for (int i = 0; i < n; i++) t->hist[bits[i] >> 16]++;
        powers(sum, x, n);
    } else {
        good = 0;
        max = 0;
        for (int i = 0; i < n; i++) {
            if (bits[i] >= infinity_bits) continue;
            t->hist[bits[i] >> 16]++;
            finite[good++] = x[i];
            max = bits[i] > max ? bits[i] : max;
        }
        powers(sum, finite, good);
    }
    t->n += good;
    t->n_bad += n - good;
    uint32_t limit;
    memcpy(&limit, &t->threshold, sizeof limit);
    if (max < limit) return max;
    for (int i = 0; i < n; i++) {
        if (bits[i] < limit || bits[i] >= infinity_bits) continue;
        dq_place p = *at;
        p.col += i;
        top_insert(t, float_of(bits[i]), &p);
        memcpy(&limit, &t->threshold, sizeof limit);
    }
    return max;
}

void dq_tally_add_with(dq_tally *t, dq_moments *m, const float *x, int64_t n, dq_place at)
{
    const int64_t before = t->n;
    double sum[3] = {0};
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int len = n - i < BLOCK ? (int)(n - i) : BLOCK;
        const uint32_t max = add_block(t, sum, x + i, len, &at);
        if (m) raise_by_row(m, float_of(max), x + i, len, at);
        at.col += len;
    }
    if (t->fine) return;
    dq_fixed_add(&t->sum, sum[0]);
    dq_fixed_add(&t->sum2, sum[1]);
    dq_fixed_add(&t->sum4, sum[2]);
    if (!m) return;
    m->n += t->n - before;
    dq_fixed_add(&m->sum2, sum[1]);
    dq_fixed_add(&m->sum4, sum[2]);
}

void dq_tally_add(dq_tally *t, const float *x, int64_t n, dq_place at)
{
    dq_tally_add_with(t, NULL, x, n, at);
}

void dq_tally_merge(dq_tally *into, const dq_tally *from)
{
    if (into->fine) {
        if (!from->fine || from->refine_bin != into->refine_bin) return;
        for (int i = 0; i < FINE_BINS; i++) into->fine[i] += from->fine[i];
        return;
    }
    into->n += from->n;
    into->n_bad += from->n_bad;
    dq_fixed_merge(&into->sum, &from->sum);
    dq_fixed_merge(&into->sum2, &from->sum2);
    dq_fixed_merge(&into->sum4, &from->sum4);
    for (int i = 0; i < DQ_HIST_BINS; i++) into->hist[i] += from->hist[i];
    for (int i = 0; i < from->n_top; i++) {
        if (from->top[i] >= into->threshold) top_insert(into, from->top[i], &from->place[i]);
    }
}

typedef struct head {
    int64_t n, n_bad;
    dq_fixed sum[3];
    int64_t n_top;
    float top[DQ_TOP];
    dq_place place[DQ_TOP];
} head;

/* Consecutive bins that are not empty; the last run has none. */
typedef struct run {
    int64_t first, n;
} run;

static run next_run(const int64_t *hist, int64_t from)
{
    while (from < DQ_HIST_BINS && !hist[from]) from++;
    run r = {from, 0};
    while (from + r.n < DQ_HIST_BINS && hist[from + r.n]) r.n++;
    return r;
}

dq_status dq_tally_put(const dq_tally *t, dq_strbuf *to, dq_err *err)
{
    head h = {.n = t->n, .n_bad = t->n_bad, .sum = {t->sum, t->sum2, t->sum4}, .n_top = t->n_top};
    if (t->fine) return dq_strbuf_add(to, (const char *)t->fine, FINE_BINS * sizeof *t->fine, err);
    memcpy(h.top, t->top, sizeof h.top);
    memcpy(h.place, t->place, sizeof h.place);
    DQ_TRY(dq_strbuf_add(to, (const char *)&h, sizeof h, err));
    run r = {0, 0};
    do {
        r = next_run(t->hist, r.first + r.n);
        DQ_TRY(dq_strbuf_add(to, (const char *)&r, sizeof r, err));
        DQ_TRY(dq_strbuf_add(to, (const char *)(t->hist + (r.n ? r.first : 0)),
                             (size_t)r.n * sizeof *t->hist, err));
    } while (r.n > 0);
    return DQ_OK;
}

static dq_status damaged(dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "a tally is cut off, or none");
}

/* Adds counts[n] from the bytes; *sum: their total. */
static bool add_counts(int64_t *counts, int64_t n, int64_t *sum, const char **at, const char *end)
{
    for (int64_t i = 0, more; i < n; i++) {
        if (!dq_strbuf_take(&more, sizeof more, at, end) || !dq_fixed_is_count(more)) return false;
        counts[i] += more;
        *sum += more;
    }
    return true;
}

static bool add_runs(dq_tally *into, int64_t n, const char **at, const char *end)
{
    int64_t sum = 0, after = 0;
    for (run r;; after = r.first + r.n) {
        if (!dq_strbuf_take(&r, sizeof r, at, end) || r.first < after || r.first > DQ_HIST_BINS ||
            r.n < 0 || r.n > DQ_HIST_BINS - r.first)
            return false;
        if (r.n == 0) return sum == n;
        if (!add_counts(into->hist + r.first, r.n, &sum, at, end)) return false;
    }
}

static bool is_list(const head *h)
{
    if (!dq_fixed_is_count(h->n) || !dq_fixed_is_count(h->n_bad)) return false;
    if (h->n_top != (h->n < DQ_TOP ? h->n : DQ_TOP)) return false;
    for (int i = 0; i < h->n_top; i++) {
        if (!(h->top[i] >= 0 && h->top[i] <= (i ? h->top[i - 1] : FLT_MAX))) return false;
    }
    return true;
}

dq_status dq_tally_merge_bytes(dq_tally *into, const char **at, const char *end, dq_err *err)
{
    head h;
    int64_t sum = 0;
    if (into->fine) return add_counts(into->fine, FINE_BINS, &sum, at, end) ? DQ_OK : damaged(err);
    if (!dq_strbuf_take(&h, sizeof h, at, end) || !is_list(&h)) return damaged(err);
    into->n += h.n;
    into->n_bad += h.n_bad;
    dq_fixed_merge(&into->sum, &h.sum[0]);
    dq_fixed_merge(&into->sum2, &h.sum[1]);
    dq_fixed_merge(&into->sum4, &h.sum[2]);
    for (int i = 0; i < (int)h.n_top; i++) {
        if (h.top[i] >= into->threshold) top_insert(into, h.top[i], &h.place[i]);
    }
    return add_runs(into, h.n, at, end) ? DQ_OK : damaged(err);
}

/* The bin with rank ceil(p n), and the number of values below it. */
static int find_bin(const dq_tally *t, double p, int64_t *rank, int64_t *below)
{
    double want = ceil(p * (double)t->n);
    *rank = want < 1.0 ? 1 : want > (double)t->n ? t->n : (int64_t)want;
    *below = 0;
    int bin = 0;
    while (bin < DQ_HIST_BINS - 1 && *below + t->hist[bin] < *rank) *below += t->hist[bin++];
    return bin;
}

static bool fine_complete(const dq_tally *t, int bin)
{
    if (!t->fine || t->refine_bin != bin) return false;
    int64_t held = 0;
    for (int i = 0; i < FINE_BINS; i++) held += t->fine[i];
    return held == t->hist[bin];
}

double dq_tally_quantile(const dq_tally *t, double p, bool *exact)
{
    int64_t rank, below;
    if (exact) *exact = false;
    if (t->n == 0) return (double)NAN;
    int bin = find_bin(t, p, &rank, &below);
    uint32_t low = 0x8000u;
    if (fine_complete(t, bin)) {
        low = 0;
        while (low < FINE_BINS - 1 && below + t->fine[low] < rank) below += t->fine[low++];
        if (exact) *exact = true;
    }
    return (double)float_of((uint32_t)bin << 16 | low);
}

dq_status dq_tally_refine(dq_tally *t, double p, dq_err *err)
{
    int64_t rank, below;
    if (!t->fine) {
        t->fine = dq_block_new(FINE_BINS, sizeof *t->fine, err);
        if (!t->fine) return err->code;
    } else {
        memset(t->fine, 0, FINE_BINS * sizeof *t->fine);
    }
    t->refine_bin = t->n ? find_bin(t, p, &rank, &below) : 0;
    return DQ_OK;
}
