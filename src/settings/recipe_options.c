/* recipe_options: see recipe_options.h. Defaults, then the file, then options; rules of --bits-map after those of the
 * file.
 * SPDX-License-Identifier: MIT */
#include "settings/recipe_options.h"

#include "base/file.h"
#include "record/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const dq_recipe_options_dtype_name[DQ_RECIPE_OPTIONS_DTYPES] = {"f16", "f32"};
const char *const dq_recipe_options_group_name[DQ_RECIPE_OPTIONS_GROUPS] = {"row", "tensor"};

const char *const *dq_recipe_options_mode_names(dq_recipe_options *o)
{
    for (int i = 0; i < DQ_QUANT_MODES; i++) o->mode_name[i] = dq_quant_modes[i].name;
    return o->mode_name;
}

/* "absmax, search (what it does) or asym (what it does) (default ...)" */
const char *dq_recipe_options_modes(dq_recipe_options *o, bool calibrated)
{
    const size_t cap = sizeof o->modes;
    size_t n = 0;
    for (int i = 0; i < DQ_QUANT_MODES && n < cap; i++) {
        const dq_scale_mode_row *m = &dq_quant_modes[i];
        const char *between = i == 0 ? "" : i < DQ_QUANT_MODES - 1 ? ", " : " or ";
        n += (size_t)snprintf(o->modes + n, cap - n, "%s%s", between, m->name);
        if (m->about && n < cap) n += (size_t)snprintf(o->modes + n, cap - n, " (%s)", m->about);
    }
    const char *some = calibrated ? "" : "asym at --bits 4 to 6 without --calib, else ";
    if (n < cap)
        snprintf(o->modes + n, cap - n, " (default %s%s)", some, dq_quant_modes[DQ_SEARCH].name);
    return o->modes;
}

static dq_status read_file(dq_quantize_settings *s, dq_recipe_options *o, dq_err *err)
{
    char *text;
    size_t len;
    if (!o->file) return DQ_OK;
    o->arena = dq_arena_new();
    if (!o->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    DQ_TRY(dq_file_read_text(&text, &len, o->file, DQ_MAX_DOCUMENT, o->arena, err));
    DQ_TRY(dq_json_parse(&o->json, text, len, o->file, err));
    if (dq_quantize_recipe_read(s, o->json, err) != DQ_OK) return dq_in(err, "%s: ", o->file);
    s->file.path = o->file;
    s->file.skip = s->skip;
    s->file.method_name = s->method_name;
    s->file.rules = json_array_size(s->rules);
    return DQ_OK;
}

/* ---- Rules ---- */

/* `why` names the part that is wrong. */
static dq_status bad_map(const char *item, const char *why, dq_err *err)
{
    char modes[128] = "";
    for (int i = 0; i < DQ_QUANT_MODES; i++) {
        const size_t n = strlen(modes);
        snprintf(modes + n, sizeof modes - n, "%s%s", i ? ", " : "", dq_quant_modes[i].name);
    }
    return dq_fail(err, DQ_USAGE,
                   "--bits-map: expected REGEX=N[/GROUP[/SCALE]] with N 2 to 8, or 16, GROUP a "
                   "number of columns, row or tensor, and SCALE one of %s; found \"%s\": %s.",
                   modes, item, why);
}

/* "6/64/search", the numbers after the last '=' of an item, into the rule. NULL, or what is wrong. */
static const char *read_values(json_t *rule, const char *values)
{
    char word[3][32] = {""};
    int n = 0;
    for (const char *at = values, *end; at; at = end ? end + 1 : NULL) {
        end = strchr(at, '/');
        const size_t len = end ? (size_t)(end - at) : strlen(at);
        if (n == 3) return "there are more than three values";
        if (len == 0 || len >= sizeof word[0]) return "a value is empty or too long";
        memcpy(word[n++], at, len);
    }
    char *stop;
    int64_t group = 0;
    const long bits = strtol(word[0], &stop, 10);
    if (*stop || stop == word[0] || bits < 2 || (bits > 8 && bits != 16))
        return "N is something else";
    if (n > 1 && !dq_quantize_group_parse(&group, word[1])) return "GROUP is something else";
    int mode = 0;
    while (n > 2 && mode < DQ_QUANT_MODES && strcmp(word[2], dq_quant_modes[mode].name) != 0)
        mode++;
    if (mode == DQ_QUANT_MODES) return "SCALE is something else";
    json_object_set_new(rule, "bits", json_integer(bits));
    if (n > 1)
        json_object_set_new(rule, "group", group > 0 ? json_integer(group) : json_string(word[1]));
    if (n > 2) json_object_set_new(rule, "scale", json_string(word[2]));
    return NULL;
}

static dq_status add_rule(json_t *rules, const char *item, dq_err *err)
{
    const char *split = strrchr(item, '=');
    json_t *rule;
    if (!split) return bad_map(item, "there is no =", err);
    if (split == item) return bad_map(item, "there is no REGEX", err);
    json_array_append_new(rules, rule = json_object());
    json_object_set_new(rule, "match", json_stringn(item, (size_t)(split - item)));
    DQ_TRY(dq_json_complete(err));
    if (!json_object_get(rule, "match"))
        return dq_fail(err, DQ_USAGE, "--bits-map: the pattern is not valid UTF-8.");
    const char *why = read_values(rule, split + 1);
    return why ? bad_map(item, why, err) : DQ_OK;
}

static dq_status read_map(dq_quantize_settings *s, dq_recipe_options *o, dq_err *err)
{
    if (o->map.n == 0) return DQ_OK;
    o->rules = json_array();
    if (s->rules) json_array_extend(o->rules, json_object_get(o->json, "rules"));
    for (int i = 0; i < o->map.n; i++) DQ_TRY(add_rule(o->rules, o->map.item[i], err));
    s->rules = o->rules;
    return dq_json_complete(err);
}

/* ---- The other options ---- */

static void take_words(dq_quantize_settings *s, const dq_recipe_options *o)
{
    static const dq_dtype dtype[DQ_RECIPE_OPTIONS_DTYPES] = {DQ_F16, DQ_F32};
    if (o->scale.text) s->mode = (dq_scale_mode)o->scale.at;
    if (o->scale_dtype.text) s->scale_dtype = dtype[o->scale_dtype.at];
    if (o->dense_type.text) s->dense_type = (dq_dense_type)o->dense_type.at;
}

dq_status dq_recipe_options_read(dq_quantize_settings *s, dq_recipe_options *o, dq_err *err)
{
    s->bits = 4;
    s->group = DQ_QUANTIZE_GROUP_AUTO;
    s->embed_bits = s->head_bits = DQ_QUANTIZE_BITS_AUTO;
    s->mode = DQ_QUANT_MODES; /* not given: dq_recipe_options_scale */
    s->scale_dtype = DQ_F16;
    s->kv = dq_kv_config_plain;
    DQ_TRY(read_file(s, o, err));
    take_words(s, o);
    if (o->group && !dq_quantize_group_parse(&s->group, o->group))
        return dq_fail(
            err, DQ_USAGE,
            "--group: expected a number of columns from 1 to 2147483647, row or tensor; found "
            "\"%s\".",
            o->group);
    if (o->bits) s->bits = (int)o->bits;
    if (o->embed_bits) s->embed_bits = (int)o->embed_bits;
    if (o->head_bits) s->head_bits = (int)o->head_bits;
    if (o->skip) s->skip = o->skip;
    return read_map(s, o, err);
}

void dq_recipe_options_scale(dq_quantize_settings *s, dq_recipe_options *o, bool calibrated)
{
    enum { FROM = 4, TO = 6 };
    if (s->mode != DQ_QUANT_MODES) return;
    o->scale_by_bits = !calibrated;
    s->mode = !calibrated && s->bits >= FROM && s->bits <= TO ? DQ_ASYM : DQ_SEARCH;
}

void dq_recipe_options_unused(const dq_recipe_options *o, const dq_quantize_used *used,
                              dq_logger *logger)
{
    const struct {
        const char *option;
        bool given, used;
    } of[] = {{"bits", o->bits, used->bits || (o->scale_by_bits && used->mode)},
              {"embed-bits", o->embed_bits, used->embed_bits},
              {"head-bits", o->head_bits, used->head_bits || used->embed_bits},
              {"group", o->group, used->group},
              {"scale", o->scale.text, used->mode}};
    const bool rules = o->map.n || json_array_size(json_object_get(o->json, "rules"));
    for (size_t i = 0; rules && i < sizeof of / sizeof *of; i++) {
        if (of[i].given && !of[i].used)
            dq_logger_warn(logger, "--%s has no effect: rules of %s decide for every tensor",
                           of[i].option, o->file ? o->file : "--bits-map");
    }
}

void dq_recipe_options_end(dq_recipe_options *o)
{
    json_decref(o->rules);
    json_decref(o->json);
    dq_arena_free(o->arena);
}
