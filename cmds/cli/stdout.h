/* stdout: what commands print besides tables.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STDOUT_H
#define DQ_STDOUT_H

#include "record/record.h"

/* Prints the document, consumes it. NaN and infinities cannot occur: jansson refuses them. */
dq_status dq_stdout_print(json_t *doc, dq_err *err);
/* From now on stdout is a stream in which '?' stands for what could move a terminal's cursor (dq_utf8_plain), whoever prints:
 * names come from files of other people. */
dq_status dq_stdout_begin(dq_err *err);
/* Prints s[len], UTF-8, as it is, where stdout is no terminal. */
void dq_stdout_put_exact(const char *s, size_t len);
/* Prints a JSON text, in which escapes stand for these characters, and ends its line. */
void dq_stdout_put_json(const char *text);
/* Flushes stdout and checks that everything was written, unless its reader has left. */
dq_status dq_stdout_flush(dq_err *err);
/* Whether something could not be written because the reader of the pipe has closed it, having enough
 * (dq info x.h5 | head -1): no failure, so files are kept; main ends in silence. */
bool dq_stdout_reader_left(void);
/* The line "bits per weight    4.480 over all 477824 parameters", without its end. */
void dq_stdout_print_bits(double bits_per_weight, int64_t params);
/* A recipe as a container or a quantizer has it, as a file of schema dq-recipe/1. */
dq_status dq_stdout_print_recipe(const char *recipe, dq_err *err);

#endif
