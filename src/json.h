/* json: strict reading of JSON (jansson: duplicate keys rejected, NUL allowed, UTF-8 checked,
 * bounded depth), with typed look-ups that name the key. Writing uses jansson directly.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JSON_H
#define DQ_JSON_H

#include "base.h"

#include <jansson.h>

/* The caller ends it with json_decref. DQ_DAMAGED with line and column; `what` names the source. */
dq_status dq_json_parse(json_t **out, const char *text, size_t len, const char *what, dq_err *err);

/* Typed members of an object. An absent (or null) key gives *fallback if fallback is not NULL, else
 * DQ_DAMAGED. Another type or a value outside [min, max] is DQ_DAMAGED naming key and value. */
dq_status dq_json_int(int64_t *out, const json_t *object, const char *key, int64_t min, int64_t max,
                      const int64_t *fallback, dq_err *err);
dq_status dq_json_float(double *out, const json_t *object, const char *key, const double *fallback,
                        dq_err *err);
dq_status dq_json_bool(bool *out, const json_t *object, const char *key, const bool *fallback,
                       dq_err *err);
/* *out is owned by the object. */
dq_status dq_json_text(const char **out, const json_t *object, const char *key,
                       const char *const *fallback, dq_err *err);

#endif
