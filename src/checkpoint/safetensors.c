/* safetensors: the header's entries sorted by the bytes they claim, which must tile the file.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/safetensors.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t max_header = 100000000; /* the limit of the reference reader */

/* A tensor and the bytes it claims; sorted by the claim, then by name. */
typedef struct span {
    dq_tensor tensor;
    uint64_t begin, end; /* relative to the end of the header */
} span;

static dq_status read_dtype(dq_dtype *out, const char *name, const json_t *entry, dq_err *err)
{
    /* Of the format, but of no use to a language model that dq can run. */
    static const char *const other[] = {"F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64",
                                        "F4",      "F6_E2M3",     "F6_E3M2"};
    const char *text;
    if (dq_json_text(&text, entry, "dtype", NULL, err) != DQ_OK)
        return dq_in(err, "tensor \"%s\": ", name);
    for (int i = 0; i < DQ_DTYPE_COUNT; i++) {
        if (strcmp(text, dq_dtypes[i].name) == 0) {
            *out = (dq_dtype)i;
            return DQ_OK;
        }
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        if (strcmp(text, other[i]) == 0)
            return dq_fail(err, DQ_MISMATCH, "tensor \"%s\": dtype %s is not supported", name,
                           text);
    }
    return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": unknown dtype \"%s\"", name, text);
}

/* Item i of an array as a count; false for anything that is not one. */
static bool count_at(uint64_t *out, const json_t *array, size_t i)
{
    const json_t *v = json_array_get(array, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static dq_status read_shape(dq_tensor *t, size_t *bytes, const json_t *entry, dq_err *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t n = json_array_size(shape), total = dq_dtypes[t->dtype].bytes;
    if (!json_is_array(shape))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": \"shape\" is not a list", t->name);
    if (n > DQ_MAX_DIMS)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %zu dimensions (expected at most %d)",
                       t->name, n, DQ_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        uint64_t x;
        if (!count_at(&x, shape, i))
            return dq_fail(err, DQ_DAMAGED,
                           "tensor \"%s\": \"shape\" holds something that is not "
                           "a count",
                           t->name);
        if (!dq_mul_ok(&total, total, x))
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": shape too large for any file", t->name);
        t->shape[i] = (int64_t)x;
    }
    t->n_dims = (int)n;
    *bytes = total;
    return DQ_OK;
}

static dq_status read_entry(span *s, const char *name, const json_t *entry, uint64_t data_bytes,
                            dq_err *err)
{
    size_t bytes = 0;
    s->tensor.name = name;
    if (!json_is_object(entry))
        return dq_fail(err, DQ_DAMAGED, "header entry \"%s\" is not an object", name);
    DQ_TRY(read_dtype(&s->tensor.dtype, name, entry, err));
    DQ_TRY(read_shape(&s->tensor, &bytes, entry, err));
    const json_t *range = json_object_get(entry, "data_offsets");
    if (!json_is_array(range) || json_array_size(range) != 2 || !count_at(&s->begin, range, 0) ||
        !count_at(&s->end, range, 1) || s->begin > s->end)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": \"data_offsets\" is not [begin, end]",
                       name);
    if (s->end > data_bytes)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s\": header says the data end at byte %llu, the file has %llu "
                       "bytes of data. The file is incomplete: fetch it again.",
                       name, (unsigned long long)s->end, (unsigned long long)data_bytes);
    if (s->end - s->begin != bytes)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s\": shape and dtype need %zu bytes, data_offsets give %llu",
                       name, bytes, (unsigned long long)(s->end - s->begin));
    return DQ_OK;
}

static int by_range(const void *x, const void *y)
{
    const span *a = x, *b = y;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->tensor.name, b->tensor.name);
}

int dq_safetensors_by_name(const void *x, const void *y)
{
    const dq_tensor *a = x, *b = y;
    return strcmp(a->name, b->name);
}

/* Spans sorted by range must tile the data from first to last byte. */
static dq_status check_tiling(const span *s, size_t n, uint64_t data_bytes, dq_err *err)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i].begin < at)
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\" overlaps tensor \"%s\"",
                           s[i].tensor.name, s[i - 1].tensor.name);
        if (s[i].begin > at)
            return dq_fail(err, DQ_DAMAGED, "%llu bytes before tensor \"%s\" belong to no tensor",
                           (unsigned long long)(s[i].begin - at), s[i].tensor.name);
        at = s[i].end;
    }
    if (at != data_bytes)
        return dq_fail(err, DQ_DAMAGED, "%llu bytes at the end belong to no tensor",
                       (unsigned long long)(data_bytes - at));
    return DQ_OK;
}

static dq_status check_metadata(json_t *meta, dq_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(meta))
        return dq_fail(err, DQ_DAMAGED, "header entry \"__metadata__\" is not an object");
    json_object_foreach(meta, key, value)
    {
        if (!json_is_string(value))
            return dq_fail(err, DQ_DAMAGED, "metadata \"%s\" is not a string", key);
    }
    return DQ_OK;
}

static dq_status read_entries(dq_tensor **out, int64_t *count, json_t *header, const uint8_t *data,
                              uint64_t data_bytes, dq_arena *a, dq_err *err)
{
    size_t n = 0, cap = json_object_size(header);
    const char *key;
    json_t *value;
    span *s = dq_alloc(a, cap, sizeof *s, err);
    dq_tensor *t = dq_alloc(a, cap, sizeof *t, err);
    if (!s || !t) return err->code;
    json_object_foreach(header, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) {
            DQ_TRY(check_metadata(value, err));
            continue;
        }
        const char *name = dq_text(a, key, strlen(key), err);
        if (!name) return err->code;
        DQ_TRY(read_entry(&s[n++], name, value, data_bytes, err));
    }
    qsort(s, n, sizeof *s, by_range);
    DQ_TRY(check_tiling(s, n, data_bytes, err));
    for (size_t i = 0; i < n; i++) {
        t[i] = s[i].tensor;
        t[i].data = data + s[i].begin;
    }
    qsort(t, n, sizeof *t, dq_safetensors_by_name);
    *out = t;
    *count = (int64_t)n;
    return DQ_OK;
}

/* Length of the JSON header, checked against the file. */
static dq_status header_length(uint64_t *n, const uint8_t *bytes, size_t len, dq_err *err)
{
    if (len < 8)
        return dq_fail(err, DQ_DAMAGED, "%zu bytes are too few for a safetensors file", len);
    memcpy(n, bytes, 8);
    if (*n > max_header)
        return dq_fail(err, DQ_DAMAGED,
                       "header length %llu is not plausible (expected at most %llu). Not a "
                       "safetensors file?",
                       (unsigned long long)*n, (unsigned long long)max_header);
    if (*n > len - 8)
        return dq_fail(err, DQ_DAMAGED,
                       "header says it has %llu bytes, the file has %zu. The file is incomplete: "
                       "fetch it again.",
                       (unsigned long long)*n, len);
    if (*n == 0 || bytes[8] != '{')
        return dq_fail(err, DQ_DAMAGED,
                       "the header does not begin with '{'. Not a safetensors "
                       "file?");
    return DQ_OK;
}

dq_status dq_safetensors_parse(dq_tensor **out, int64_t *count, const uint8_t *bytes, size_t len,
                               dq_arena *a, dq_err *err)
{
    uint64_t n = 0;
    json_t *header = NULL;
    *out = NULL;
    *count = 0;
    DQ_TRY(header_length(&n, bytes, len, err));
    DQ_TRY(dq_json_parse(&header, (const char *)bytes + 8, (size_t)n, "header", err));
    if (json_is_object(header))
        read_entries(out, count, header, bytes + 8 + n, len - 8 - n, a, err);
    else
        dq_fail(err, DQ_DAMAGED, "the header is not a JSON object");
    json_decref(header);
    return err->code;
}
