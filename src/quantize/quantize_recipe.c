/* quantize_recipe: see quantize_recipe.h. What has its default and was not a setting of older files is left out, so that
 * the same settings keep the same bytes.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_recipe.h"

#include "quantize/quantize_rules.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] = "dq-recipe/1";

const char *const dq_dense_type_name[DQ_DENSE_TYPES] = {"keep", "bf16", "f16"};

/* ---- Values ---- */

/* NULL: no string, or one with a NUL. */
static const char *text_of(const json_t *v)
{
    const char *text = json_string_value(v);
    return text && strlen(text) == json_string_length(v) ? text : NULL;
}

dq_status dq_quantize_recipe_bits(int *out, const json_t *v, const char *key, dq_err *err)
{
    int64_t bits;
    if (!dq_json_whole(&bits, v) || bits < 2 || (bits > 8 && bits != 16))
        return dq_json_wrong(key, "2 to 8, or 16", v, err);
    *out = (int)bits;
    return DQ_OK;
}

bool dq_quantize_group_parse(int64_t *out, const char *text)
{
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (strcmp(text, "row") == 0)
        *out = DQ_GROUP_ROW;
    else if (strcmp(text, "tensor") == 0)
        *out = DQ_GROUP_TENSOR;
    else if (end == text || *end || errno || v < 1 || v > INT32_MAX)
        return false;
    else
        *out = v;
    return true;
}

dq_status dq_quantize_recipe_group(int64_t *out, const json_t *group, dq_err *err)
{
    const char *text = text_of(group);
    if (text ? dq_quantize_group_parse(out, text)
             : dq_json_whole(out, group) && *out > 0 && *out <= INT32_MAX)
        return DQ_OK;
    return dq_json_wrong("group", "a number of columns up to 2147483647, \"row\" or \"tensor\"",
                         group, err);
}

dq_status dq_quantize_recipe_mode(int *out, const json_t *mode, dq_err *err)
{
    const char *text = text_of(mode);
    for (int i = 0; text && i < DQ_QUANT_MODES; i++) {
        *out = i;
        if (strcmp(text, dq_quant_modes[i].name) == 0) return DQ_OK;
    }
    return dq_json_wrong("scale", "the name of a mode of scales", mode, err);
}

dq_status dq_quantize_recipe_keys(const json_t *object, const char *const *keys, dq_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        int i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0) i++;
        if (!keys[i]) return dq_fail(err, DQ_DAMAGED, "unknown key \"%s\"", key);
        if (json_is_null(v) && strcmp(key, "skip") != 0 && strcmp(key, "comment") != 0)
            return dq_json_wrong(key, "a value, or no such key", v, err);
    }
    return DQ_OK;
}

static json_t *group_json(int64_t group)
{
    char buf[32];
    if (group == DQ_GROUP_ROW) return json_string("row");
    if (group == DQ_GROUP_TENSOR) return json_string("tensor");
    snprintf(buf, sizeof buf, "%lld", (long long)group);
    return json_string(buf);
}

/* ---- Keys ---- */

static dq_status read_bits(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    return dq_quantize_recipe_bits(&s->bits, v, "bits", err);
}

static dq_status read_embed_bits(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    return dq_quantize_recipe_bits(&s->embed_bits, v, "embed_bits", err);
}

static dq_status read_head_bits(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    return dq_quantize_recipe_bits(&s->head_bits, v, "head_bits", err);
}

static dq_status read_group(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    return dq_quantize_recipe_group(&s->group, v, err);
}

static dq_status read_scale(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    int mode;
    DQ_TRY(dq_quantize_recipe_mode(&mode, v, err));
    s->mode = (dq_scale_mode)mode;
    return DQ_OK;
}

static dq_status read_scale_dtype(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    const char *text = text_of(v);
    if (!text || (strcmp(text, "f16") != 0 && strcmp(text, "f32") != 0))
        return dq_json_wrong("scale_dtype", "\"f16\" or \"f32\"", v, err);
    s->scale_dtype = strcmp(text, "f16") == 0 ? DQ_F16 : DQ_F32;
    return DQ_OK;
}

static dq_status read_skip(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    s->skip = text_of(v);
    return s->skip ? DQ_OK : dq_json_wrong("skip", "a regular expression", v, err);
}

static dq_status read_dense_type(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    const char *text = text_of(v);
    for (int i = 0; text && i < DQ_DENSE_TYPES; i++) {
        s->dense_type = (dq_dense_type)i;
        if (strcmp(text, dq_dense_type_name[i]) == 0) return DQ_OK;
    }
    return dq_json_wrong("dense_type", "\"keep\", \"bf16\" or \"f16\"", v, err);
}

static dq_status read_rules(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    s->rules = v;
    if (dq_quantize_rules_check(v, err) == DQ_USAGE)
        err->code = DQ_DAMAGED; /* a file has no user */
    return err->code;
}

static dq_status check_hash(const json_t *o, const char *key, dq_err *err)
{
    const json_t *v = json_object_get(o, key);
    const char *text = text_of(v);
    if (!v || (text && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64)) return DQ_OK;
    return dq_json_wrong(key, "a SHA-256, 64 hex digits", v, err);
}

/* What there is of a key has to be a whole number. */
static dq_status check_whole(const json_t *o, const char *key, int64_t min, int64_t max,
                             dq_err *err)
{
    int64_t n;
    const json_t *v = json_object_get(o, key);
    if (!v || (dq_json_whole(&n, v) && n >= min && n <= max)) return DQ_OK;
    return dq_json_wrong(key, min == 1 ? "a whole number from 1 up" : "a whole number from 2 up", v,
                         err);
}

/* The text of a plan: which part of which file, as sequences of how many tokens. */
static dq_status check_text(const json_t *calib, dq_err *err)
{
    enum { LAST_QUARTER = 3 };
    const json_t *quarters = json_object_get(calib, "quarters");
    const json_t *wrong = json_array_size(quarters) > 0 ? NULL : quarters;
    bool good = json_array_size(quarters) > 0;
    for (size_t i = 0; i < json_array_size(quarters) && good; i++) {
        int64_t q;
        wrong = json_array_get(quarters, i);
        good = dq_json_whole(&q, wrong) && q >= 0 && q <= LAST_QUARTER;
    }
    if (!good) return dq_json_wrong("quarters", "a list of numbers from 0 to 3", wrong, err);
    if (!json_object_get(calib, "sha256"))
        return dq_json_wrong("sha256", "a SHA-256, 64 hex digits", NULL, err);
    DQ_TRY(check_hash(calib, "sha256", err));
    DQ_TRY(check_whole(calib, "tokens", 1, INT64_MAX, err));
    return check_whole(calib, "ctx", 2, INT32_MAX, err);
}

static dq_status read_plan(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    const json_t *calib = json_object_get(v, "calib"), *of = json_object_get(v, "arithmetic");
    s->plan = v;
    if (!json_is_object(v)) return dq_json_wrong("plan", "an object", v, err);
    if (check_hash(v, "weights_sha256", err) != DQ_OK ||
        check_hash(v, "model_fingerprint", err) != DQ_OK)
        return dq_in(err, "\"plan\": ");
    if (of && !json_is_string(of)) dq_json_wrong("arithmetic", "a text", of, err);
    if (calib && !json_is_object(calib))
        dq_json_wrong("calib", "an object", calib, err);
    else if (calib && check_text(calib, err) != DQ_OK)
        dq_in(err, "\"calib\": ");
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "\"plan\": ");
}

/* Texts that chose something of the cache. */
static dq_status read_texts(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    s->texts = v;
    return json_is_array(v) ? DQ_OK : dq_json_wrong("texts", "a list", v, err);
}

static dq_status read_comment(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    s->comment = v;
    (void)err;
    return DQ_OK; /* of any type: nothing reads it */
}

static dq_status read_method(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    s->method_name = text_of(v);
    for (int i = 0; s->method_name && dq_quantize_methods[i]; i++) {
        if (strcmp(dq_quantize_methods[i], s->method_name) == 0) return DQ_OK;
    }
    return dq_json_wrong("method", "the name of a calibrated method", v, err);
}

static dq_status read_calib(dq_quantize_settings *s, const json_t *v, dq_err *err)
{
    s->calib = v;
    return json_is_object(v) ? DQ_OK : dq_json_wrong("calib", "an object", v, err);
}

static const struct {
    const char *key;
    dq_status (*read)(dq_quantize_settings *s, const json_t *v, dq_err *err);
    bool always; /* stands in every container's recipe */
    bool stored; /* in no file: it says what a container was made with */
} fields[] = {{"bits", read_bits, true, false},
              {"group", read_group, true, false},
              {"scale", read_scale, true, false},
              {"scale_dtype", read_scale_dtype, true, false},
              {"skip", read_skip, false, false},
              {"embed_bits", read_embed_bits, false, false},
              {"head_bits", read_head_bits, false, false},
              {"dense_type", read_dense_type, false, false},
              {"kv", NULL, false, false}, /* of files; what a container's attributes say decides */
              {"rules", read_rules, false, false},
              {"method", read_method, false, false},
              {"calib", read_calib, false, true},
              {"plan", read_plan, false, false},
              {"texts", read_texts, false, false},
              {"comment", read_comment, false, false}};
enum { FIELDS = sizeof fields / sizeof *fields };

/* The settings of an object but "kv"; what it lacks, or has as null, stays in *s. */
static dq_status read_fields(dq_quantize_settings *s, const json_t *o, dq_err *err)
{
    for (int i = 0; i < FIELDS; i++) {
        const json_t *v = json_object_get(o, fields[i].key);
        if (fields[i].read && v && !json_is_null(v)) DQ_TRY(fields[i].read(s, v, err));
    }
    return DQ_OK;
}

/* ---- Files ---- */

dq_status dq_quantize_recipe_read(dq_quantize_settings *s, const json_t *file, dq_err *err)
{
    const char *keys[FIELDS + 2] = {"schema"}, *found;
    for (int i = 0, n = 1; i < FIELDS; i++) {
        if (!fields[i].stored) keys[n++] = fields[i].key;
    }
    if (!json_is_object(file)) return dq_fail(err, DQ_DAMAGED, "not a JSON object");
    DQ_TRY(dq_json_text(&found, file, "schema", NULL, err));
    if (strcmp(found, schema) != 0)
        return dq_fail(err, DQ_MISMATCH, "schema \"%s\" (expected \"%s\")", found, schema);
    DQ_TRY(dq_quantize_recipe_keys(file, keys, err));
    const json_t *kv = json_object_get(file, "kv");
    if (kv && dq_kv_config_file(&s->kv, kv, err) != DQ_OK) return dq_in(err, "\"kv\": ");
    return read_fields(s, file, err);
}

dq_status dq_quantize_recipe_file(json_t **out, const char *recipe, dq_err *err)
{
    json_t *all = NULL;
    DQ_TRY(dq_json_parse(&all, recipe, strlen(recipe), "/config/recipe_json", err));
    *out = json_object();
    json_object_set_new(*out, "schema", json_string(schema));
    for (int i = 0; i < FIELDS; i++) {
        json_t *v = json_object_get(all, fields[i].key);
        if (v && !json_is_null(v) && !fields[i].stored) json_object_set(*out, fields[i].key, v);
    }
    json_decref(all);
    return DQ_OK;
}

/* ---- Containers ---- */

/* Adds what older files do not have, where something is asked for. */
static void put_newer(json_t *r, const dq_quantize_settings *s)
{
    if (s->embed_bits) json_object_set_new(r, "embed_bits", json_integer(s->embed_bits));
    if (s->head_bits) json_object_set_new(r, "head_bits", json_integer(s->head_bits));
    if (s->dense_type != DQ_DENSE_KEEP)
        json_object_set_new(r, "dense_type", json_string(dq_dense_type_name[s->dense_type]));
    if (json_array_size(s->rules)) json_object_set_new(r, "rules", json_deep_copy(s->rules));
    if (s->method_name) json_object_set_new(r, "method", json_string(s->method_name));
    if (s->calib) json_object_set_new(r, "calib", json_deep_copy(s->calib));
    if (s->plan) json_object_set_new(r, "plan", json_deep_copy(s->plan));
    if (s->texts) json_object_set_new(r, "texts", json_deep_copy(s->texts));
    if (s->comment) json_object_set_new(r, "comment", json_deep_copy(s->comment));
    if (!dq_kv_config_same(&s->kv, &dq_kv_config_plain))
        json_object_set_new(r, "kv", dq_kv_config_json(&s->kv));
}

dq_status dq_quantize_recipe_of(json_t **out, const dq_quantize_settings *s, dq_err *err)
{
    json_t *r = *out = json_object();
    json_object_set_new(r, "bits", json_integer(s->bits));
    json_object_set_new(r, "group", group_json(s->group));
    json_object_set_new(r, "scale", json_string(dq_quant_modes[s->mode].name));
    json_object_set_new(r, "scale_dtype", json_string(s->scale_dtype == DQ_F16 ? "f16" : "f32"));
    json_object_set_new(r, "skip", s->skip ? json_string(s->skip) : json_null());
    json_object_set_new(r, "logit_bits", json_integer(s->logit.bits));
    json_object_set_new(r, "logit_granularity",
                        json_string(dq_granularity_name[s->logit.granularity]));
    put_newer(r, s);
    DQ_TRY(dq_json_complete(err));
    if (json_object_get(r, "skip")) return DQ_OK;
    /* a pattern that is not UTF-8 cannot be stored */
    return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
                        "skip: the pattern is not valid UTF-8.");
}

/* ---- Differences ---- */

/* Names of members that differ, at most `left` more of them; of objects on both sides, their members. */
static const char *add_changes(dq_arena *a, const char *so_far, const char *path, json_t *was,
                               json_t *now, int *left, dq_err *err)
{
    json_t *both = json_object();
    const char *key;
    json_t *v;
    json_object_update(both, was);
    json_object_update(both, now);
    json_object_foreach(both, key, v)
    {
        json_t *x = json_object_get(was, key), *y = json_object_get(now, key);
        if (*left == 0 || !so_far || json_equal(x, y)) continue;
        if (strcmp(key, "sketch") == 0) continue; /* it differs where the text or its tokens do */
        const char *name = dq_textf(a, err, "%s%s", path, key);
        const char *inner = name ? dq_textf(a, err, "%s.", name) : NULL;
        if (inner && json_is_object(x) && json_is_object(y)) {
            so_far = add_changes(a, so_far, inner, x, y, left, err);
            continue;
        }
        char *old = x ? json_dumps(x, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        char *new = y ? json_dumps(y, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        so_far = dq_textf(a, err, "%s%s%s: begun with %.80s, this run has %.80s", so_far,
                          *so_far ? "; " : "", name ? name : key, old ? old : "none",
                          new ? new : "none");
        free(old);
        free(new);
        (*left)--;
    }
    json_decref(both);
    return so_far;
}

const char *dq_quantize_recipe_changes(dq_arena *a, const char *found, const char *want,
                                       dq_err *err)
{
    static const char head[] = "settings ";
    const size_t n = sizeof head - 1;
    int left = 3;
    const char *changes = "";
    if (strncmp(found, head, n) == 0 && strncmp(want, head, n) == 0) {
        json_t *was = json_loads(found + n, 0, NULL), *now = json_loads(want + n, 0, NULL);
        if (was && now) changes = add_changes(a, "", "", was, now, &left, err);
        json_decref(was);
        json_decref(now);
    }
    if (changes && !*changes)
        changes = dq_textf(a, err, "found \"%.240s\", this run has \"%.240s\"", found, want);
    dq_json_complete(err);
    return changes ? changes : "";
}

/* ---- Settings of a container ---- */

dq_status dq_quantize_settings_of(dq_quantize_settings *s, json_t **recipe, const dq_container *c,
                                  dq_err *err)
{
    static const char place[] = "/config/recipe_json";
    size_t len;
    const char *text = dq_container_recipe(c, &len);
    memset(s, 0, sizeof *s);
    DQ_TRY(dq_json_parse(recipe, text, len, place, err));
    for (int i = 0; i < FIELDS; i++) {
        const json_t *v = json_object_get(*recipe, fields[i].key);
        if (fields[i].always && (!v || json_is_null(v)))
            return dq_fail(err, DQ_DAMAGED, "%s: key \"%s\" is missing", place, fields[i].key);
    }
    if (read_fields(s, *recipe, err) != DQ_OK) return dq_in(err, "%s: ", place);
    s->dq_version = dq_container_header(c)->dq_version;
    /* opening has compared what the attributes say with the recipe */
    s->logit = dq_container_header(c)->logit;
    s->kv = dq_container_header(c)->kv;
    return DQ_OK;
}
