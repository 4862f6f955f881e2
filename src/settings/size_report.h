/* size_report: what a model takes, the way every command tells it: bits per weight and bytes of its files first.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIZE_REPORT_H
#define DQ_SIZE_REPORT_H

#include "model/model.h"

#include <jansson.h>

/* "4.48 bpw, 92.30 MiB" */
enum { DQ_SIZE_REPORT_TEXT = 64 };
const char *dq_size_report_text(char buf[DQ_SIZE_REPORT_TEXT], const dq_model *m);
/* Members of JSON objects about a model: "bits_per_weight", "file_bytes", "weight_bytes". */
void dq_size_report_json(json_t *o, const dq_model *m);

#endif
