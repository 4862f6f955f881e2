/* size_report: numbers are those of dq_model_size; their names in JSON stand here and nowhere else for a whole model.
 * SPDX-License-Identifier: MIT */
#include "settings/size_report.h"

#include "record/record.h"

#include <stdio.h>

const char *dq_size_report_text(char buf[DQ_SIZE_REPORT_TEXT], const dq_model *m)
{
    const dq_model_size s = dq_model_size_of(m);
    char bytes[32];
    snprintf(buf, DQ_SIZE_REPORT_TEXT, "%.2f bpw, %s", s.bits_per_weight,
             dq_document_size_text(bytes, sizeof bytes, s.file_bytes));
    return buf;
}

void dq_size_report_json(json_t *o, const dq_model *m)
{
    const dq_model_size s = dq_model_size_of(m);
    json_object_set_new(o, "bits_per_weight", dq_document_real(s.bits_per_weight));
    json_object_set_new(o, "file_bytes", json_integer((json_int_t)s.file_bytes));
    json_object_set_new(o, "weight_bytes", json_integer((json_int_t)s.weight_bytes));
}
