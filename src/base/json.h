/* json: strict reading of JSON (jansson: duplicate keys rejected, NUL allowed, UTF-8 checked,
 * bounded depth), with typed look-ups that name the key. Values are built with jansson directly,
 * and become text here, where a key that memory was too short for is noticed.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JSON_H
#define DQ_JSON_H

#include "base/text.h"

#include <jansson.h>

/* The caller ends it with json_decref. DQ_DAMAGED with line and column; `what` names the source.
 * Integers beyond int64 become the nearest real, numbers beyond double -DBL_MAX or DBL_MAX, which
 * no look-up below accepts. */
dq_status dq_json_parse(json_t **out, const char *text, size_t len, const char *what, dq_err *err);
/* Also reads Python's NaN, Infinity and -Infinity, as numbers beyond double. */
dq_status dq_json_parse_config(json_t **out, const char *text, size_t len, const char *what,
                               dq_err *err);
/* The same for a line, whose number the caller reports: DQ_DAMAGED with the column alone. */
dq_status dq_json_parse_line(json_t **out, const char *text, size_t len, const char *what,
                             dq_err *err);

/* A whole number in any notation (4, 4.0, 4e0); false for anything else, and for reals beyond 2^53,
 * which are inexact. */
bool dq_json_whole(int64_t *out, const json_t *v);

/* Typed members of an object. An absent or null key gives *fallback, or DQ_DAMAGED without one;
 * another type, or a value outside [min, max], is DQ_DAMAGED with key and value. */
dq_status dq_json_int(int64_t *out, const json_t *object, const char *key, int64_t min, int64_t max,
                      const int64_t *fallback, dq_err *err);
dq_status dq_json_float(double *out, const json_t *object, const char *key, const double *fallback,
                        dq_err *err);
dq_status dq_json_bool(bool *out, const json_t *object, const char *key, const bool *fallback,
                       dq_err *err);
/* *out is owned by the object. */
dq_status dq_json_text(const char **out, const json_t *object, const char *key,
                       const char *const *fallback, dq_err *err);

/* DQ_DAMAGED: the key, what was expected, and what was found (a scalar's text, else its type). */
dq_status dq_json_wrong(const char *key, const char *expected, const json_t *found, dq_err *err);

/* Watches every later allocation of jansson; to be called once, before the first value. */
void dq_json_watch(void);
/* DQ_RESOURCE: an allocation failed, so some value may lack members and must not be written. */
dq_status dq_json_complete(dq_err *err);
/* Ended by free; `flags` are jansson's. DQ_RESOURCE as above, or for a NULL value. */
dq_status dq_json_dump(char **text, const json_t *v, size_t flags, dq_err *err);

/* Appends to `out` the text of an object, which dq_json_parse has taken, with the member `key`
 * (plain ASCII, not escaped) of the outermost object set to `value`, the text of a value: in the
 * place of what is there, or as the last member; lines of it after the first get two spaces in
 * front. NULL: without the member. DQ_RESOURCE. */
dq_status dq_json_edit_member(dq_strbuf *out, const char *text, size_t len, const char *key,
                              const char *value, dq_err *err);

#endif
