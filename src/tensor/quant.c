/* quant: see quant.h. Codes are offset to unsigned and packed eight at a time, `bits` bytes for each eight, the
 * columns left over bit by bit. Errors are summed in eight lanes, which are added in their order.
 * SPDX-License-Identifier: MIT */
#include "tensor/quant_search.h"

#include "tensor/quant_loops.h"

#include <math.h>
#include <string.h>

const dq_scale_mode_row dq_quant_modes[DQ_QUANT_MODES] = {
    [DQ_ABSMAX] = {.name = "absmax",
                   .negative = "holds a negative scale, which absmax never makes."},
    [DQ_SEARCH] = {.name = "search",
                   .tries = {0.9f, 0.95f, 1.05f},
                   .about = "the least squared error of 66 scales of either sign; slower"},
    [DQ_ASYM] = {.name = "asym",
                 .about = "from the smallest to the largest value, with a zero point of N bits per "
                          "group",
                 .negative = "holds a negative scale, which asym never makes."},
    [DQ_TRELLIS] = {.name = "trellis",
                    .about =
                        "codes that are read together with their neighbours: least loss at 2 to "
                        "5 bits",
                    .tries = {0.85f, 0.95f, 1.1f},
                    .negative = "holds a negative scale, which trellis never makes."},
};

int dq_quant_max_code(int bits)
{
    return (1 << (bits - 1)) - 1;
}

size_t dq_quant_row_bytes(int64_t cols, int bits)
{
    size_t n = (size_t)cols, b = (size_t)bits;
    /* eight columns take `bits` bytes: no product that could overflow before the division */
    size_t bytes = n / 8 * b + (n % 8 * b + 7) / 8;
    return (bytes + 3) / 4 * 4;
}

int64_t dq_quant_groups(int64_t cols, int64_t group_size)
{
    return cols / group_size + (cols % group_size != 0);
}

/* `bits` bytes for every eight codes; cols is a multiple of eight. */
static void pack_eights(uint8_t *packed, const int8_t *q, int64_t cols, int bits)
{
    int offset = 1 << (bits - 1);
    for (int64_t c = 0; c < cols; c += 8) {
        uint64_t acc = 0;
        for (int j = 0; j < 8; j++) acc |= (uint64_t)(q[c + j] + offset) << (j * bits);
        for (int k = 0; k < bits; k++) *packed++ = (uint8_t)(acc >> (8 * k));
    }
}

void dq_quant_pack_row(uint8_t *packed, const int8_t *q, int64_t cols, int bits)
{
    size_t bytes = dq_quant_row_bytes(cols, bits);
    int offset = 1 << (bits - 1), held = 0;
    uint32_t acc = 0;
    int64_t c = cols / 8 * 8;

    if (bits == 8)
        dq_quant_loops()->pack8(packed, q, c);
    else if (bits == 4)
        dq_quant_loops()->pack4(packed, q, c);
    else
        pack_eights(packed, q, c, bits);
    size_t at = (size_t)(c / 8) * (size_t)bits;
    for (; c < cols; c++) {
        acc |= (uint32_t)(q[c] + offset) << held;
        for (held += bits; held >= 8; held -= 8) {
            packed[at++] = (uint8_t)acc;
            acc >>= 8;
        }
    }
    if (held > 0) packed[at++] = (uint8_t)acc;
    memset(packed + at, 0, bytes - at);
}

void dq_quant_unpack_row(int8_t *q, const uint8_t *packed, int64_t cols, int bits)
{
    int offset = 1 << (bits - 1), held = 0;
    uint32_t acc = 0, mask = (1u << bits) - 1;
    int64_t c = 0;

    if (bits == 8) {
        for (; c < cols; c++) q[c] = (int8_t)(packed[c] - offset);
        return;
    }
    if (bits == 4) {
        for (; c + 1 < cols; c += 2) {
            uint8_t two = packed[c / 2];
            q[c] = (int8_t)((two & 15) - offset);
            q[c + 1] = (int8_t)((two >> 4) - offset);
        }
        packed += c / 2;
    }
    for (; c < cols; c++) {
        if (held < bits) {
            acc |= (uint32_t)*packed++ << held;
            held += 8;
        }
        q[c] = (int8_t)((int)(acc & mask) - offset);
        acc >>= bits;
        held -= bits;
    }
}

static float absmax_of(const float *w, int64_t n)
{
    uint32_t u = dq_quant_loops()->top32(w, n);
    float top;
    memcpy(&top, &u, sizeof top);
    return top;
}

float dq_quant_peak(const float *w, int64_t n)
{
    float top = absmax_of(w, n);
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(w[i]) == top) return w[i];
    }
    return 0;
}

float dq_quant_absmax_scale(float peak, int bits)
{
    return fabsf(peak) / (float)dq_quant_max_code(bits);
}

float dq_quant_signed_scale(float peak, int bits)
{
    return -peak / (float)(1 << (bits - 1));
}

float dq_quant_group_scale(const float *w, int64_t n, int bits, dq_scale_mode mode, dq_dtype dtype)
{
    if (mode == DQ_SEARCH) return dq_quant_search_group(w, n, bits, dq_quant_peak(w, n), dtype);
    return dq_quant_stored_scale(dq_quant_absmax_scale(absmax_of(w, n), bits), dtype);
}

float dq_quant_stored_scale(float scale, dq_dtype dtype)
{
    return dtype == DQ_F16 ? dq_f32_from_f16(dq_f16_from_f32(scale)) : scale;
}

void dq_quant_encode_back(int8_t *q, float *got, const float *w, int64_t n, int bits, float scale,
                          dq_scale_mode mode)
{
    float high = (float)dq_quant_max_code(bits);
    float low = mode == DQ_ABSMAX ? -high : -high - 1;
    if (n <= 0) return;
    if (scale != 0) {
        dq_quant_loops()->encode(q, got, w, n, scale, low, high);
    } else {
        memset(q, 0, (size_t)n);
        if (got) memset(got, 0, (size_t)n * sizeof *got);
    }
}

void dq_quant_encode(int8_t *q, const float *w, int64_t n, int bits, float scale,
                     dq_scale_mode mode)
{
    dq_quant_encode_back(q, NULL, w, n, bits, scale, mode);
}

void dq_quant_error_add(dq_quant_error *e, const float *want, const float *got, int64_t n)
{
    double sums[24] = {0};
    dq_quant_loops()->error(sums, want, got, n);
    for (int j = 0; j < 8; j++) {
        e->signal += sums[j];
        e->noise += sums[8 + j];
        if (sums[16 + j] > e->max_abs) e->max_abs = sums[16 + j];
    }
}

void dq_quant_error_merge(dq_quant_error *into, const dq_quant_error *from)
{
    into->signal += from->signal;
    into->noise += from->noise;
    if (from->max_abs > into->max_abs) into->max_abs = from->max_abs;
}

double dq_quant_sqnr_db(const dq_quant_error *e)
{
    if (e->noise == 0) return (double)INFINITY;
    return 10 * log10(e->signal / e->noise);
}
