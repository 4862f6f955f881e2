/* format_int_index: unsigned integers u of b bits whose columns each name their group, as GPTQ leaves them when it takes
 * columns in the order of their activations: w = (u - zero) * scale of group index[column]. Groups are not runs of
 * columns, so that kernels cannot multiply codes group by group: they dequantize.
 *
 * Source: g_idx of AutoGPTQ and GPTQModel, weight_g_idx of compressed-tensors.
 * SPDX-License-Identifier: MIT */
#include "tensor/weight_part.h"

enum { BLOCK = 256 }; /* codes held at once on the stack */

static dq_part zeros(const dq_weight *w)
{
    const int64_t groups = w->zero ? dq_quant_groups(w->cols, w->group_size) : 0;
    return (dq_part){.bits = w->bits,
                     .rows = w->scale_rows,
                     .cols = groups,
                     .dtype = DQ_U8,
                     .shape = {w->scale_rows, (int64_t)dq_weight_zero_bytes(groups, w->bits)},
                     .data = w->zero};
}

static dq_part columns(const dq_weight *w)
{
    return (dq_part){.bits = 32,
                     .rows = 1,
                     .cols = w->cols,
                     .dtype = DQ_I32,
                     .shape = {1, w->cols},
                     .data = w->index};
}

static const dq_weight_part_row parts[] = {
    {.name = "index", .encoding = "index", .label = "in", .of = columns},
    {.name = "packed",
     .encoding = "int-index",
     .label = "byte",
     .is_codes = true,
     .of = dq_weight_part_of_codes},
    {.name = "scale", .encoding = "scale", .label = "group", .of = dq_weight_part_of_scales},
    {.name = "zero", .encoding = "zero", .label = "byte", .of = zeros},
};

/* What u is multiplied with and what is taken off it first, of a group. */
typedef struct grid {
    float scale;
    int zero;
} grid;

static grid grid_of(const dq_weight *w, int64_t row, int64_t group)
{
    return (grid){dq_weight_scale(w, row, group), dq_weight_zero(w, row, group)};
}

static void dequantize(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n)
{
    const uint8_t *packed =
        (const uint8_t *)w->data + (size_t)row * dq_quant_row_bytes(w->cols, w->bits);
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    const int middle = 1 << (w->bits - 1);
    const bool few = groups <= BLOCK && groups <= n; /* each is read once, not for every column */
    grid all[BLOCK];
    int8_t q[BLOCK];
    for (int64_t g = 0; few && g < groups; g++) all[g] = grid_of(w, row, g);
    /* BLOCK columns take a whole number of bytes at every width */
    for (int64_t c = first; c < first + n; c += BLOCK) {
        const int64_t m = first + n - c < BLOCK ? first + n - c : BLOCK;
        dq_quant_unpack_row(q, packed + (size_t)(c / 8) * (size_t)w->bits, m, w->bits);
        for (int64_t i = 0; i < m; i++) {
            const int64_t group = w->index[c + i];
            const grid g = few ? all[group] : grid_of(w, row, group);
            out[c - first + i] = (float)(q[i] + middle - g.zero) * g.scale;
        }
    }
}

const dq_weight_format dq_format_int_index = {
    .name = "int-index",
    .is_coded = true,
    .note = "a group for each column",
    .part = parts,
    .n_parts = sizeof parts / sizeof *parts,
    .dequantize = dequantize,
};
