/* document: results as JSON, and what else goes to stdout or into a file of lines.
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
/* Prints the document, consumes it. NaN and infinities cannot occur: jansson refuses them. */
dq_status dq_document_print(json_t *doc, dq_err *err);
/* The same as a whole file. */
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
/* From now on stdout is a stream in which '?' stands for what could move a terminal's cursor (dq_utf8_plain), whoever prints:
 * names come from files of other people. */
dq_status dq_document_begin(dq_err *err);
/* Prints s[len], UTF-8, as it is, where stdout is no terminal. */
void dq_document_put_exact(const char *s, size_t len);
/* Prints a JSON text, in which escapes stand for these characters, and ends its line. */
void dq_document_put_json(const char *text);
/* Flushes stdout and checks that everything was written, unless its reader has left. */
dq_status dq_document_flush(dq_err *err);
/* Whether something could not be written because the reader of the pipe has closed it, having enough
 * (dq info x.h5 | head -1): no failure, so files are kept; main ends in silence. */
bool dq_document_reader_left(void);

#endif
