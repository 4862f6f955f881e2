/* bench_bytes: see bench_bytes.h. Weights are asked for their parts, so that a format counts itself.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_bytes.h"

#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

/* `share` of the parts of w. */
static void add_weight(dq_bench_bytes *to, const dq_weight *w, double share)
{
    if (w->rows == 0) return;
    const dq_weight_format *f = dq_weight_format_of(w);
    for (int i = 0; i < f->n_parts; i++) {
        const dq_part part = dq_weight_part(w, i);
        const double bytes = share * (double)dq_weight_part_bytes(&part);
        const char *encoding = f->part[i].encoding;
        if (!f->is_coded)
            to->dense += bytes;
        else if (f->part[i].is_codes)
            to->codes += bytes;
        else if (strcmp(encoding, "zero") == 0)
            to->zeros += bytes;
        else
            to->scales += bytes;
    }
}

static void add_product(dq_bench_bytes *to, const dq_weight *w, const float *bias)
{
    add_weight(to, w, 1);
    to->weights += (double)w->rows * (double)w->cols;
    if (bias) to->dense += (double)w->rows * sizeof *bias;
}

dq_bench_bytes dq_bench_bytes_of(const dq_model *m, int rows)
{
    dq_bench_bytes sum = {0};
    const double gain = (double)m->dim * sizeof *m->norm_out;
    add_weight(&sum, &m->embed, (double)rows / (double)m->embed.rows);
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const w[] = {&l->q,    &l->k,  &l->v,    &l->o,
                                      &l->gate, &l->up, &l->down, &l->lambda_proj};
        const float *const bias[] = {l->q_bias,    l->k_bias,  l->v_bias,    l->o_bias,
                                     l->gate_bias, l->up_bias, l->down_bias, NULL};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) add_product(&sum, w[k], bias[k]);
        sum.dense += 2 * gain;
    }
    sum.dense += gain;
    add_product(&sum, &m->head, NULL);
    sum.total = sum.codes + sum.scales + sum.zeros + sum.dense;
    return sum;
}

json_t *dq_bench_bytes_json(const dq_bench_bytes *bytes)
{
    json_t *j = json_object();
    json_object_set_new(j, "total", dq_document_real(bytes->total));
    json_object_set_new(j, "codes", dq_document_real(bytes->codes));
    json_object_set_new(j, "scales", dq_document_real(bytes->scales));
    json_object_set_new(j, "zeros", dq_document_real(bytes->zeros));
    json_object_set_new(j, "dense", dq_document_real(bytes->dense));
    return j;
}

const char *dq_bench_weights(char buf[DQ_BENCH_WEIGHTS], const dq_model *m)
{
    static const char *const one[] = {"row", "tensor"};
    const char *group = m->weight_group;
    if (m->weight_bits == 16) return dq_dtypes[m->layer[0].gate.dtype].name;
    int n = m->weight_bits ? snprintf(buf, DQ_BENCH_WEIGHTS, "W%d", m->weight_bits)
                           : snprintf(buf, DQ_BENCH_WEIGHTS, "W of several widths");
    if (strcmp(group, one[0]) == 0 || strcmp(group, one[1]) == 0)
        n += snprintf(buf + n, DQ_BENCH_WEIGHTS - (size_t)n, ", one group a %s", group);
    else
        n += snprintf(buf + n, DQ_BENCH_WEIGHTS - (size_t)n, " in groups of %s",
                      strcmp(group, "mixed") == 0 ? "several sizes" : group);
    if (m->layer[0].gate.zero) snprintf(buf + n, DQ_BENCH_WEIGHTS - (size_t)n, ", zero points");
    return buf;
}
