/* document: results as JSON, and numbers in words.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_DOCUMENT_H
#define DQ_DOCUMENT_H

#include "record/logger.h"

#include <stdio.h>

/* A whole file of what `make` prints into f; nothing is written where that fails. */
typedef dq_status dq_document_lines(FILE *f, const void *arg, dq_err *err);
dq_status dq_document_write_lines(const char *path, dq_document_lines *make, const void *arg,
                                  dq_err *err);

/* The frame of every JSON document: schema, dq_version, command, inputs [], settings {}, results [],
 * warnings []. Steals nothing; results, inputs and settings are filled by the caller. */
json_t *dq_document_new(const dq_logger *logger, const char *schema);
/* The document as a whole file; it is consumed. NaN and infinities cannot occur: jansson refuses them. */
dq_status dq_document_write(json_t *doc, const char *path, dq_err *err);
/* One line of a file of JSON lines; the value is consumed. */
dq_status dq_document_put_line(FILE *f, json_t *value, dq_err *err);
/* A string; U+FFFD stands for what is no UTF-8 in it, as names of files may hold. */
json_t *dq_document_name(const char *s);
/* The same as text in the arena, of one line (dq_one_line). */
dq_status dq_document_name_text(const char **out, const char *s, dq_arena *a, dq_err *err);
/* A number, or null when it is not finite. */
json_t *dq_document_real(double x);
/* {"value": v, "stderr": e}; e NaN gives null. An infinite v, which a perplexity alone has, gives null and the "reason". */
json_t *dq_document_metric(double value, double std_err);
/* "3.1 MiB"; "27 min". */
const char *dq_document_size_text(char *buf, size_t cap, int64_t bytes);
const char *dq_document_time_text(char *buf, size_t cap, double seconds);

#endif
