/* json: see json.h.
 * SPDX-License-Identifier: MIT */
#include "json.h"

#include <math.h>
#include <string.h>

dq_status dq_json_parse(json_t **out, const char *text, size_t len, const char *what, dq_err *err)
{
    json_error_t e;
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (*out) return DQ_OK;
    if (json_error_code(&e) == json_error_out_of_memory)
        return dq_fail(err, DQ_RESOURCE, "%s: out of memory while reading JSON", what);
    return dq_fail(err, DQ_DAMAGED, "%s: not valid JSON at line %d, column %d: %s", what, e.line,
                   e.column, e.text);
}

/* The member, or NULL when absent or null. */
static json_t *member(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

static dq_status absent(const char *key, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "key \"%s\" is missing", key);
}

static dq_status wrong_type(const char *key, const char *want, const json_t *v, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %s, found %s", key, want, type_name(v));
}

dq_status dq_json_int(int64_t *out, const json_t *object, const char *key, int64_t min, int64_t max,
                      const int64_t *fallback, dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) {
        *out = *fallback;
        return DQ_OK;
    }
    if (!v) return absent(key, err);
    if (!json_is_integer(v)) return wrong_type(key, "an integer", v, err);
    json_int_t x = json_integer_value(v);
    if (x < min || x > max)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %lld to %lld, found %lld", key,
                       (long long)min, (long long)max, (long long)x);
    *out = x;
    return DQ_OK;
}

dq_status dq_json_float(double *out, const json_t *object, const char *key, const double *fallback,
                        dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) {
        *out = *fallback;
        return DQ_OK;
    }
    if (!v) return absent(key, err);
    if (!json_is_number(v)) return wrong_type(key, "a number", v, err);
    *out = json_number_value(v);
    if (!isfinite(*out)) return dq_fail(err, DQ_DAMAGED, "key \"%s\": not finite", key);
    return DQ_OK;
}

dq_status dq_json_bool(bool *out, const json_t *object, const char *key, const bool *fallback,
                       dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) {
        *out = *fallback;
        return DQ_OK;
    }
    if (!v) return absent(key, err);
    if (!json_is_boolean(v)) return wrong_type(key, "a boolean", v, err);
    *out = json_is_true(v);
    return DQ_OK;
}

dq_status dq_json_text(const char **out, const json_t *object, const char *key,
                       const char *const *fallback, dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) {
        *out = *fallback;
        return DQ_OK;
    }
    if (!v) return absent(key, err);
    if (!json_is_string(v)) return wrong_type(key, "a string", v, err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": the string contains a NUL", key);
    *out = json_string_value(v);
    return DQ_OK;
}
