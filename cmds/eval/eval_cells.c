/* eval_cells: digits follow the error: four decimals, or two significant digits where the error is small.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_cells.h"

#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *cmd_eval_clusters_text(char *buf, size_t cap, int64_t n, const char *cluster)
{
    const size_t len = strlen(cluster);
    const bool y = n != 1 && cluster[len - 1] == 'y';
    snprintf(buf, cap, "%lld %.*s%s", (long long)n, (int)(y ? len - 1 : len), cluster,
             n == 1 ? ""
             : y    ? "ies"
                    : "s");
    return buf;
}

void cmd_eval_mean_cell(dq_table *t, dq_mean m, const char *sign)
{
    if (isnan(m.value))
        dq_table_cell(t, "-");
    else if (isinf(m.value))
        dq_table_cell(t, "beyond f64");
    else if (sign[0] && m.value == 0 && m.std_err == 0)
        dq_table_cell(t, "0 (all equal)");
    else if (isnan(m.std_err))
        dq_table_cell(t, sign[0] ? "%+.4f" : "%.4f", m.value);
    else if (fabs(m.value) >= 1e6) /* a perplexity without bounds */
        dq_table_cell(t, "%.4g \u00b1 %.2g", m.value, m.std_err);
    else if (m.std_err > 0 && m.std_err < 5e-5)
        dq_table_cell(t, sign[0] ? "%+.1e \u00b1 %.1e" : "%.6f \u00b1 %.1e", m.value, m.std_err);
    else
        dq_table_cell(t, sign[0] ? "%+.4f \u00b1 %.4f" : "%.4f \u00b1 %.4f", m.value, m.std_err);
}

void cmd_eval_score_cell(dq_table *t, dq_mean m, dq_interval x, const char *sign)
{
    if (m.std_err != 0 || isnan(x.low))
        cmd_eval_mean_cell(t, m, sign);
    else if (sign[0] && m.value == 0)
        dq_table_cell(t, "0 (within \u00b1 %.4f)", x.high);
    else if (x.high <= m.value)
        dq_table_cell(t, sign[0] ? "%+.4f (\u2265 %+.4f)" : "%.4f (\u2265 %.4f)", m.value, x.low);
    else if (x.low >= m.value)
        dq_table_cell(t, sign[0] ? "%+.4f (\u2264 %+.4f)" : "%.4f (\u2264 %.4f)", m.value, x.high);
    else
        dq_table_cell(t, "%.4f (%.4f to %.4f)", m.value, x.low, x.high);
}

void cmd_eval_weights_cell(dq_table *t, const dq_model *m)
{
    char embed[32] = "", head[32] = "";
    if (m->embed_bits != 16) snprintf(embed, sizeof embed, ", embed %d", m->embed_bits);
    if (m->head_bits != 16 && !m->tied) snprintf(head, sizeof head, ", head %d", m->head_bits);
    if (m->weight_bits == 0)
        dq_table_cell(t, "mixed");
    else if (m->weight_bits == 16)
        dq_table_cell(t, "16%s%s", embed, head);
    else
        dq_table_cell(t, "%d/%s%s%s", m->weight_bits, m->weight_group, embed, head);
}

void cmd_eval_mean_columns(dq_table *t, dq_mean m)
{
    dq_table_real(t, m.value);
    dq_table_real(t, m.std_err);
}

json_t *cmd_eval_mean_json(dq_mean m)
{
    json_t *o = dq_document_metric(m.value, m.std_err);
    json_object_set_new(o, "n_clusters",
                        m.clusters ? json_integer((json_int_t)m.clusters) : json_null());
    return o;
}

json_t *cmd_eval_interval_json(dq_interval x)
{
    if (isnan(x.low)) return json_null();
    json_t *l = json_array();
    json_array_append_new(l, dq_document_real(x.low));
    json_array_append_new(l, dq_document_real(x.high));
    return l;
}

json_t *cmd_eval_flips_json(const dq_stat_flips *f)
{
    json_t *o = json_object();
    json_object_set_new(o, "n01", json_integer((json_int_t)f->n01));
    json_object_set_new(o, "n10", json_integer((json_int_t)f->n10));
    json_object_set_new(o, "delta", dq_document_real(f->delta));
    json_object_set_new(o, "stderr", dq_document_real(f->std_err));
    json_object_set_new(o, "interval", cmd_eval_interval_json(f->interval));
    json_object_set_new(o, "n_clusters", json_integer((json_int_t)f->clusters));
    json_object_set_new(o, "p", dq_document_real(f->p));
    json_object_set_new(o, "test", json_string(f->clustered ? "t, clustered" : "McNemar, exact"));
    json_object_set_new(o, "mcnemar_p", dq_document_real(f->clustered ? (double)NAN : f->p));
    return o;
}
