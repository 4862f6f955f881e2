/* weight_format: the table of formats, and what follows from a row for any weight.
 * SPDX-License-Identifier: MIT */
#include "tensor/weight_format.h"

static const dq_weight_format *const formats[] = {&dq_format_dense, &dq_format_int,
                                                  &dq_format_int_zero, &dq_format_trellis};
enum { N_FORMATS = sizeof formats / sizeof *formats };

const dq_weight_format *dq_weight_format_named(const char *name)
{
    for (int i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i]->name, name) == 0) return formats[i];
    }
    return NULL;
}

const dq_weight_format *dq_weight_format_of_mode(dq_scale_mode mode)
{
    for (int i = 0; i < N_FORMATS; i++) {
        if (formats[i]->modes >> mode & 1) return formats[i];
    }
    return NULL;
}

size_t dq_weight_part_bytes(const dq_part *p)
{
    return (size_t)p->shape[0] * (size_t)p->shape[1] * dq_dtypes[p->dtype].bytes;
}

dq_part dq_weight_part(const dq_weight *w, int i)
{
    return dq_weight_format_of(w)->part[i].of(w);
}

size_t dq_weight_bytes(const dq_weight *w)
{
    size_t bytes = 0;
    for (int i = 0; i < dq_weight_format_of(w)->n_parts; i++) {
        const dq_part p = dq_weight_part(w, i);
        bytes += dq_weight_part_bytes(&p);
    }
    return bytes;
}

double dq_weight_bits_over(int64_t bytes, int64_t n)
{
    return n > 0 ? 8.0 * (double)bytes / (double)n : 0;
}

double dq_weight_bits_per_weight(const dq_weight *w)
{
    return dq_weight_bits_over((int64_t)dq_weight_bytes(w), w->rows * w->cols);
}

void dq_weight_dequantize_rows(float *out, const dq_weight *w, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        dq_weight_format_of(w)->dequantize(out + (r - begin) * w->cols, w, r, 0, w->cols);
}
