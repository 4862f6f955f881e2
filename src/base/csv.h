/* csv: records of comma-separated values as RFC 4180 has them: fields may stand in quotes, and then hold
 * commas, line ends and doubled quotes; lines end at LF or CR LF.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CSV_H
#define DQ_CSV_H

#include "base/base.h"

/* Where reading stands. Begin with {.s = text, .n = length, .line = 1}. */
typedef struct dq_csv {
    const char *s; /* [n] */
    size_t n, at;
    int64_t line; /* of s[at] */
} dq_csv;

/* The next record while c->at < c->n: its first `want` fields in field[want], with a NUL after each, written
 * to `out`, which has capacity for the length of the text + 1; *have counts all of its fields. An empty line is a
 * record of one empty field. DQ_DAMAGED names the line: a quote without end, text after a closing quote, a
 * quote inside a field without quotes, a NUL. */
dq_status dq_csv_record(dq_csv *c, char *out, const char **field, int want, int *have, dq_err *err);

#endif
