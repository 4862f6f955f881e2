/* Matrices in the blocks of ggml. A row is a whole number of blocks; a block holds its scales
 * beside its codes. Each type is one row of a table: its number in a GGUF file, how many values a
 * block has, its bytes, and a function that reads one. Values are computed in f32 in the order of
 * operations of the reference, so that they are equal to the bit.
 *
 * Source: the Python package gguf, gguf/constants.py (GGML_QUANT_SIZES) and gguf/quants.py
 * (dequantize_blocks).
 * SPDX-License-Identifier: MIT */
#include "tensor/inside.h"

enum { MAX_BLOCK = 256 }; /* values of the largest block */

static float half_at(const uint8_t *p)
{
    return dq_f32_from_f16((uint16_t)(p[0] | p[1] << 8));
}

static void read_q8_0(float *y, const uint8_t *b)
{
    const float d = half_at(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* Value i of 32 is in the low half of byte i, value i + 16 in its high half. */
static void nibbles(uint8_t q[32], const uint8_t *bytes)
{
    for (int i = 0; i < 16; i++) {
        q[i] = bytes[i] & 15;
        q[i + 16] = bytes[i] >> 4;
    }
}

/* The same with the fifth bits in 32 further bits. */
static void nibbles_and_bits(uint8_t q[32], const uint8_t *bytes, const uint8_t *bits)
{
    nibbles(q, bytes);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(q[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

static void read_q4_0(float *y, const uint8_t *b)
{
    uint8_t q[32];
    const float d = half_at(b);
    nibbles(q, b + 2);
    for (int i = 0; i < 32; i++) y[i] = (float)(q[i] - 8) * d;
}

static void read_q4_1(float *y, const uint8_t *b)
{
    uint8_t q[32];
    const float d = half_at(b), low = half_at(b + 2);
    nibbles(q, b + 4);
    for (int i = 0; i < 32; i++) y[i] = d * (float)q[i] + low;
}

static void read_q5_0(float *y, const uint8_t *b)
{
    uint8_t q[32];
    const float d = half_at(b);
    nibbles_and_bits(q, b + 6, b + 2);
    for (int i = 0; i < 32; i++) y[i] = d * (float)(q[i] - 16);
}

static void read_q5_1(float *y, const uint8_t *b)
{
    uint8_t q[32];
    const float d = half_at(b), low = half_at(b + 2);
    nibbles_and_bits(q, b + 8, b + 4);
    for (int i = 0; i < 32; i++) y[i] = d * (float)q[i] + low;
}

static void put_half(uint8_t *p, uint16_t h)
{
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static void write_q8_0(uint8_t *b, const int8_t *q, uint16_t d, uint16_t low)
{
    (void)low;
    put_half(b, d);
    memcpy(b + 2, q, 32);
}

/* Codes q + middle, in the order of nibbles. */
static void put_nibbles(uint8_t *bytes, const int8_t *q, int middle)
{
    for (int i = 0; i < 16; i++)
        bytes[i] = (uint8_t)(((q[i] + middle) & 15) | ((q[i + 16] + middle) & 15) << 4);
}

static void put_fifth_bits(uint8_t *bits, const int8_t *q, int middle)
{
    memset(bits, 0, 4);
    for (int i = 0; i < 32; i++)
        bits[i / 8] = (uint8_t)(bits[i / 8] | ((q[i] + middle) >> 4 & 1) << i % 8);
}

static void write_q4_0(uint8_t *b, const int8_t *q, uint16_t d, uint16_t low)
{
    (void)low;
    put_half(b, d);
    put_nibbles(b + 2, q, 8);
}

static void write_q4_1(uint8_t *b, const int8_t *q, uint16_t d, uint16_t low)
{
    put_half(b, d);
    put_half(b + 2, low);
    put_nibbles(b + 4, q, 0);
}

static void write_q5_0(uint8_t *b, const int8_t *q, uint16_t d, uint16_t low)
{
    (void)low;
    put_half(b, d);
    put_fifth_bits(b + 2, q, 16);
    put_nibbles(b + 6, q, 16);
}

static void write_q5_1(uint8_t *b, const int8_t *q, uint16_t d, uint16_t low)
{
    put_half(b, d);
    put_half(b + 2, low);
    put_fifth_bits(b + 4, q, 0);
    put_nibbles(b + 8, q, 0);
}

static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

static void read_iq4_nl(float *y, const uint8_t *b)
{
    uint8_t q[32];
    const float d = half_at(b);
    nibbles(q, b + 2);
    for (int i = 0; i < 32; i++) y[i] = d * (float)nonlinear[q[i]];
}

/* 16 groups of 16, each with 4 bits of scale and 4 of a lowest value. */
static void read_q2_k(float *y, const uint8_t *b)
{
    const uint8_t *scales = b, *qs = b + 16;
    const float d = half_at(b + 80), low = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
        const int s = scales[i / 16];
        const int q = qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        y[i] = d * (float)(s & 15) * (float)q - low * (float)(s >> 4);
    }
}

/* 16 groups of 16 with 6-bit scales: four low bits of scale i, then two high ones. */
static void read_q3_k(float *y, const uint8_t *b)
{
    const uint8_t *mask = b, *qs = b + 32, *scales = b + 96;
    const float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
        const int g = i / 16;
        const int low = scales[g % 8] >> g / 8 * 4 & 15, high = scales[8 + g % 4] >> g / 4 * 2 & 3;
        const int bit = mask[i % 32] >> i / 32 & 1;
        const int q = (qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - (bit ? 0 : 4);
        y[i] = d * (float)((low | high << 4) - 32) * (float)q;
    }
}

/* 8 groups of 32, each with 6 bits of scale and 6 of a lowest value, in 12 bytes. */
static void scales_of_12(int scale[8], int low[8], const uint8_t *s)
{
    for (int i = 0; i < 4; i++) {
        scale[i] = s[i] & 63;
        low[i] = s[4 + i] & 63;
        scale[4 + i] = (s[8 + i] & 15) | (s[i] >> 2 & 48);
        low[4 + i] = s[8 + i] >> 4 | (s[4 + i] >> 2 & 48);
    }
}

static void read_q4_k(float *y, const uint8_t *b)
{
    int scale[8], low[8];
    const float d = half_at(b), least = half_at(b + 2);
    scales_of_12(scale, low, b + 4);
    for (int i = 0; i < 256; i++) {
        const int g = i / 32, q = b[16 + i / 64 * 32 + i % 32] >> g % 2 * 4 & 15;
        y[i] = d * (float)scale[g] * (float)q - least * (float)low[g];
    }
}

static void read_q5_k(float *y, const uint8_t *b)
{
    int scale[8], low[8];
    const float d = half_at(b), least = half_at(b + 2);
    scales_of_12(scale, low, b + 4);
    for (int i = 0; i < 256; i++) {
        const int g = i / 32, q = b[48 + i / 64 * 32 + i % 32] >> g % 2 * 4 & 15;
        const int bit = b[16 + i % 32] >> g & 1;
        y[i] = d * (float)scale[g] * (float)(q | bit << 4) - least * (float)low[g];
    }
}

/* 16 groups of 16 with an 8-bit scale. */
static void read_q6_k(float *y, const uint8_t *b)
{
    const uint8_t *low = b, *high = b + 128, *scales = b + 192;
    const float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        const int q = (low[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15) |
                      (high[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4;
        y[i] = d * (float)(int8_t)scales[i / 16] * (float)(q - 32);
    }
}

/* 8 groups of 32 with a 6-bit scale. */
static void read_iq4_xs(float *y, const uint8_t *b)
{
    const float d = half_at(b);
    const unsigned high = b[2] | (unsigned)b[3] << 8;
    for (int g = 0; g < 8; g++) {
        uint8_t q[32];
        const int s = (int)((b[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4) - 32;
        const float scale = d * (float)s;
        nibbles(q, b + 8 + 16 * g);
        for (int i = 0; i < 32; i++) y[32 * g + i] = scale * (float)nonlinear[q[i]];
    }
}

static dq_dataset blocks(const dq_weight *w)
{
    const dq_block *k = w->format->block;
    const int64_t n = w->cols / k->values;
    return (dq_dataset){.bits = 8 * k->bytes,
                        .rows = w->rows,
                        .cols = n,
                        .dtype = DQ_U8,
                        .shape = {w->rows, n * k->bytes},
                        .data = w->data};
}

static const dq_dataset_row blocks_dataset = {
    .name = "blocks", .encoding = "ggml", .label = "byte", .is_codes = true, .of = blocks};

/* Partial blocks are decoded aside. */
static void dequantize(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n)
{
    const dq_block *k = w->format->block;
    const int64_t end = first + n;
    const uint8_t *data = (const uint8_t *)w->data + row * (w->cols / k->values) * k->bytes;
    float some[MAX_BLOCK];
    for (int64_t c = first; c < end;) {
        const int64_t at = c / k->values, begin = at * k->values;
        const int64_t stop = begin + k->values < end ? begin + k->values : end;
        const bool whole = c == begin && stop == begin + k->values;
        k->read(whole ? out + (c - first) : some, data + at * k->bytes);
        if (!whole) memcpy(out + (c - first), some + (c - begin), (size_t)(stop - c) * sizeof *out);
        c = stop;
    }
}

#define FORMAT(word, id, code, n, size, f, g)                                                      \
    {                                                                                              \
        .name = (word), .is_coded = true, .note = "scales in blocks of ggml",                      \
        .block = &(const dq_block){.number = (id),                                                 \
                                   .bits = (code),                                                 \
                                   .values = (n),                                                  \
                                   .bytes = (size),                                                \
                                   .read = (f),                                                    \
                                   .write = (g)},                                                  \
        .dataset = &blocks_dataset, .n_datasets = 1, .dequantize = dequantize                      \
    }

static const dq_weight_format formats[] = {
    FORMAT("Q4_0", DQ_GGML_Q4_0, 4, 32, 18, read_q4_0, write_q4_0),
    FORMAT("Q4_1", DQ_GGML_Q4_1, 4, 32, 20, read_q4_1, write_q4_1),
    FORMAT("Q5_0", DQ_GGML_Q5_0, 5, 32, 22, read_q5_0, write_q5_0),
    FORMAT("Q5_1", DQ_GGML_Q5_1, 5, 32, 24, read_q5_1, write_q5_1),
    FORMAT("Q8_0", DQ_GGML_Q8_0, 8, 32, 34, read_q8_0, write_q8_0),
    FORMAT("Q2_K", 10, 2, 256, 84, read_q2_k, NULL),
    FORMAT("Q3_K", 11, 3, 256, 110, read_q3_k, NULL),
    FORMAT("Q4_K", 12, 4, 256, 144, read_q4_k, NULL),
    FORMAT("Q5_K", 13, 5, 256, 176, read_q5_k, NULL),
    FORMAT("Q6_K", 14, 6, 256, 210, read_q6_k, NULL),
    FORMAT("IQ4_NL", 20, 4, 32, 18, read_iq4_nl, NULL),
    FORMAT("IQ4_XS", 23, 4, 256, 136, read_iq4_xs, NULL),
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

const dq_weight_format *dq_format_ggml(uint32_t number)
{
    for (int i = 0; i < N_FORMATS; i++) {
        if (formats[i].block->number == number) return &formats[i];
    }
    return NULL;
}

dq_weight dq_format_ggml_weight(const dq_weight_format *format, const char *name, int64_t rows,
                                int64_t cols, const void *data)
{
    return (dq_weight){.name = name,
                       .rows = rows,
                       .cols = cols,
                       .format = format,
                       .bits = format->block->bits,
                       .data = data,
                       .group_size = format->block->values,
                       .scale_rows = rows,
                       .scale_dtype = DQ_F16};
}
