/* tally: see tally.h. The upper 16 bits of |x| are its bin: bits of positive floats order as the floats do. A
 * second walk over the same values, after dq_tally_refine, counts the lower 16 bits of one bin, which makes a
 * quantile in it exact. Sums are made in fixed lanes, and the list of the largest is ordered by value and place,
 * so a merge gives the same result in any grouping but for the rounding of sums.
 * SPDX-License-Identifier: MIT */
#include "stat/tally.h"

#include <math.h>
#include <string.h>

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
    *t = (dq_tally){.hist = hist, .refine_bin = -1};
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Negative: a stands before b. */
static int place_order(const dq_place *a, const dq_place *b)
{
    const int32_t x[5] = {a->seq, a->layer, a->head, a->row, a->col};
    const int32_t y[5] = {b->seq, b->layer, b->head, b->row, b->col};
    for (int i = 0; i < 5; i++) {
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}

/* Inserts into the descending list. The order (value, then place) is total, so the list that
 * remains does not depend on the order in which candidates come. */
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

/* Fixed lanes, so that compilers may use vectors and still add in one defined order. Rows that hold
 * NaN or infinity are rare: they take the careful path. */
static void add_sums(dq_tally *t, const float *mag, int n)
{
    double s1[LANES] = {0}, s2[LANES] = {0}, s4[LANES] = {0};
    for (int i = 0; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            double v = (double)mag[i + k], w = v * v;
            s1[k] += v;
            s2[k] += w;
            s4[k] += w * w;
        }
    }
    for (int i = n - n % LANES, k = 0; i < n; i++, k++) {
        double v = (double)mag[i], w = v * v;
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
    t->sum += s1[0];
    t->sum2 += s2[0];
    t->sum4 += s4[0];
}

/* The bits of |x| order like the values themselves, infinities and NaN above all numbers. */
static uint32_t magnitudes(uint32_t *bits, const float *x, int n)
{
    int32_t max = 0; /* no sign is left, and these are compared by more machines at once */
    memcpy(bits, x, (size_t)n * sizeof *bits);
#pragma omp simd reduction(max : max)
    for (int i = 0; i < n; i++) {
        const int32_t size = (int32_t)(bits[i] & 0x7fffffffu);
        bits[i] = (uint32_t)size;
        max = size > max ? size : max;
    }
    return (uint32_t)max;
}

/* Few values lie in one bin, so a step of them is looked at as a whole first. */
static void add_fine(dq_tally *t, const uint32_t *bits, int n)
{
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
}

static void add_block(dq_tally *t, const float *x, int n, const dq_place *at)
{
    uint32_t bits[BLOCK];
    float mag[BLOCK];
    uint32_t max = magnitudes(bits, x, n);
    if (t->fine) {
        add_fine(t, bits, n);
        return;
    }
    int good = n;
    if (max < infinity_bits) {
        for (int i = 0; i < n; i++) t->hist[bits[i] >> 16]++;
        memcpy(mag, bits, (size_t)n * sizeof *mag);
    } else {
        good = 0;
        for (int i = 0; i < n; i++) {
            if (bits[i] >= infinity_bits) continue;
            t->hist[bits[i] >> 16]++;
            mag[good++] = float_of(bits[i]);
        }
    }
    t->n += good;
    t->n_bad += n - good;
    add_sums(t, mag, good);
    uint32_t limit;
    memcpy(&limit, &t->threshold, sizeof limit);
    if (max < limit) return;
    for (int i = 0; i < n; i++) {
        if (bits[i] < limit || bits[i] >= infinity_bits) continue;
        dq_place p = *at;
        p.col += i;
        top_insert(t, float_of(bits[i]), &p);
        memcpy(&limit, &t->threshold, sizeof limit);
    }
}

void dq_tally_add(dq_tally *t, const float *x, int64_t n, dq_place at)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int len = n - i < BLOCK ? (int)(n - i) : BLOCK;
        add_block(t, x + i, len, &at);
        at.col += len;
    }
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
    into->sum += from->sum;
    into->sum2 += from->sum2;
    into->sum4 += from->sum4;
    for (int i = 0; i < DQ_HIST_BINS; i++) into->hist[i] += from->hist[i];
    for (int i = 0; i < from->n_top; i++) {
        if (from->top[i] >= into->threshold) top_insert(into, from->top[i], &from->place[i]);
    }
}

dq_tally_sums dq_tally_take_sums(dq_tally *t)
{
    const dq_tally_sums s = {t->sum, t->sum2, t->sum4};
    t->sum = t->sum2 = t->sum4 = 0;
    return s;
}

void dq_tally_add_sums(dq_tally *t, const dq_tally_sums *s)
{
    t->sum += s->sum;
    t->sum2 += s->sum2;
    t->sum4 += s->sum4;
}

/* Counts and the list of the largest. */
typedef struct head {
    int64_t n, n_bad;
    int n_top;
    float top[DQ_TOP];
    dq_place place[DQ_TOP];
} head;

dq_status dq_tally_put(const dq_tally *t, dq_strbuf *to, dq_err *err)
{
    head h = {.n = t->n, .n_bad = t->n_bad, .n_top = t->n_top};
    if (t->fine) return dq_strbuf_add(to, (const char *)t->fine, FINE_BINS * sizeof *t->fine, err);
    memcpy(h.top, t->top, sizeof h.top);
    memcpy(h.place, t->place, sizeof h.place);
    DQ_TRY(dq_strbuf_add(to, (const char *)&h, sizeof h, err));
    return dq_strbuf_add(to, (const char *)t->hist, DQ_HIST_BINS * sizeof *t->hist, err);
}

/* Adds counts[n] of the bytes. */
static dq_status add_counts(int64_t *counts, size_t n, const char **at, const char *end,
                            dq_err *err)
{
    if ((size_t)(end - *at) < n * sizeof *counts)
        return dq_fail(err, DQ_DAMAGED, "a tally is cut off");
    for (size_t i = 0; i < n; i++) {
        int64_t more;
        memcpy(&more, *at + i * sizeof more, sizeof more);
        counts[i] += more;
    }
    *at += n * sizeof *counts;
    return DQ_OK;
}

dq_status dq_tally_merge_bytes(dq_tally *into, const char **at, const char *end, dq_err *err)
{
    head h;
    if (into->fine) return add_counts(into->fine, FINE_BINS, at, end, err);
    if ((size_t)(end - *at) < sizeof h) return dq_fail(err, DQ_DAMAGED, "a tally is cut off");
    memcpy(&h, *at, sizeof h);
    *at += sizeof h;
    into->n += h.n;
    into->n_bad += h.n_bad;
    for (int i = 0; i < h.n_top && i < DQ_TOP; i++) {
        if (h.top[i] >= into->threshold) top_insert(into, h.top[i], &h.place[i]);
    }
    return add_counts(into->hist, DQ_HIST_BINS, at, end, err);
}

/* The bin that holds the value of rank ceil(p n), and how many values lie in lower bins. */
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
