/* Rows as JSON, as a JSON Schema and as cells.
 * SPDX-License-Identifier: MIT */
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dq_value dq_value_integer(int64_t x)
{
    return (dq_value){.integer = x};
}

dq_value dq_value_real(double x)
{
    return (dq_value){.real = x};
}

dq_value dq_value_text(const char *x)
{
    return (dq_value){.text = x};
}

dq_value dq_value_json(json_t *x)
{
    return (dq_value){.json = x};
}

static bool says_nothing(const dq_row *row, dq_value v)
{
    const double x = row->type == DQ_ROW_REAL ? v.real : (double)v.integer;
    if (row->type == DQ_ROW_BOOL) return v.integer < 0;
    if (row->type == DQ_ROW_TEXT) return !v.text;
    if (row->type == DQ_ROW_JSON) return !v.json;
    if (row->type == DQ_ROW_REAL && !isfinite(x)) return true;
    return (x == 0 && (row->when & DQ_AT_0)) || (x < 0 && (row->when & DQ_BELOW_0));
}

static json_t *json_of(const dq_row *row, dq_value v)
{
    switch (row->type) {
    case DQ_ROW_BOOL: return json_boolean(v.integer);
    case DQ_ROW_INT:
        return v.integer == 0 && row->mixed ? json_string(row->mixed)
                                            : json_integer((json_int_t)v.integer);
    case DQ_ROW_REAL: return json_real(v.real);
    case DQ_ROW_TEXT: return dq_document_name(v.text);
    default: return v.json;
    }
}

static const char *text_of(char *buf, size_t cap, const dq_row *row, dq_value v)
{
    if (row->type == DQ_ROW_TEXT) return v.text;
    if (row->mixed && v.integer == 0) return row->mixed;
    if (row->type == DQ_ROW_BOOL) return v.integer ? "yes" : "no";
    if (row->type == DQ_ROW_REAL)
        snprintf(buf, cap, row->digits < 0 ? "%.*g" : "%.*f", abs(row->digits),
                 v.real * (row->scale != 0 ? row->scale : 1));
    else
        snprintf(buf, cap, "%lld", (long long)v.integer);
    return buf;
}

/* ---- Schemas ---- */

static json_t *of_word(const char *key, const char *word)
{
    json_t *o = json_object();
    json_object_set_new(o, key, json_string(word));
    return o;
}

/* Where null is allowed, a type becomes two of them, another schema one of two. */
static json_t *or_null(const dq_row *row, json_t *schema)
{
    json_t *type = json_object_get(schema, "type");
    if (!(row->when & DQ_NULL)) return schema;
    if (!json_is_string(type) || json_object_get(schema, "properties"))
        return json_pack("{s:[{s:s},o]}", "oneOf", "type", "null", schema);
    json_object_set_new(schema, "type", json_pack("[O,s]", type, "null"));
    return schema;
}

static json_t *schema_of(const dq_row *row)
{
    json_t *o;
    if (row->words) {
        json_t *list = json_array();
        for (int i = 0; i < row->n_words; i++)
            json_array_append_new(list, json_string(row->words[i]));
        if (row->when & DQ_NULL) json_array_append_new(list, json_null());
        o = json_object();
        if (json_array_size(list) == 1)
            json_object_set(o, "const", json_array_get(list, 0));
        else
            json_object_set(o, "enum", list);
        json_decref(list);
        return o;
    }
    if (row->type == DQ_ROW_JSON)
        return or_null(row, of_word(strchr(row->ref, '#') ? "$ref" : "type", row->ref));
    o = of_word("type", row->type == DQ_ROW_BOOL   ? "boolean"
                        : row->type == DQ_ROW_INT  ? "integer"
                        : row->type == DQ_ROW_REAL ? "number"
                                                   : "string");
    if (row->type == DQ_ROW_INT ? !(row->when & DQ_SIGNED) : row->when & DQ_POSITIVE)
        json_object_set_new(o, "minimum", json_integer(row->min));
    if (row->max) json_object_set_new(o, "maximum", json_integer(row->max));
    if (row->pattern) json_object_set_new(o, "pattern", json_string(row->pattern));
    if (row->mixed) return json_pack("{s:[o,{s:s}]}", "oneOf", o, "const", row->mixed);
    return or_null(row, o);
}

/* ---- Writing ---- */

/* Into the object, list or map at hand; without a name or value, nothing. */
static void attach(dq_row_writer *w, const dq_row *row, json_t *value)
{
    json_t *into = w->at[w->depth].value;
    if (w->live) {
        if (json_is_array(into))
            json_array_append_new(into, value);
        else
            json_object_set_new(into, row->name, value);
        return;
    }
    const dq_row_type type = w->at[w->depth].row.type;
    const char *key = type == DQ_ROW_LIST ? "items" : "additionalProperties";
    if (row->about) {
        json_t *o = of_word("description", row->about);
        json_object_update(o, value);
        json_decref(value);
        value = o;
    }
    if (type == DQ_ROW_OBJECT) {
        json_t *required = json_object_get(into, "required");
        into = json_object_get(into, "properties");
        key = row->name;
        if (!json_object_get(into, key) && !(row->when & (DQ_OUT | DQ_SOMETIMES)))
            json_array_append_new(required, json_string(key));
    }
    /* Elements of several kinds, and members that are described several times, are one of them. */
    json_t *first = json_object_get(into, key), *several = json_object_get(first, "oneOf");
    if (!first)
        json_object_set_new(into, key, value);
    else if (several)
        json_array_append_new(several, value);
    else
        json_object_set_new(
            into, key,
            json_pack("{s:O*,s:[O,o]}", "description",
                      type == DQ_ROW_OBJECT ? json_object_get(first, "description") : NULL, "oneOf",
                      first, value));
}

void dq_row_put(dq_row_writer *w, const dq_row *row, dq_value v)
{
    char text[64];
    const bool nothing = w->live && says_nothing(row, v);
    if (w->scored && (row->when & DQ_UNSCORED)) return;
    if (w->cell) {
        if (row->title) w->cell(w->arg, row, nothing ? "-" : text_of(text, sizeof text, row, v));
        if (row->type == DQ_ROW_JSON) json_decref(v.json);
        return;
    }
    if (!w->live && row->describe) {
        dq_row object = *row;
        object.type = DQ_ROW_OBJECT;
        object.describe = NULL;
        if (!dq_row_begin(w, &object, true)) return;
        row->describe(w);
        dq_row_end(w);
    } else if (!w->live)
        attach(w, row, schema_of(row));
    else if (!nothing)
        attach(w, row, json_of(row, v));
    else if (!(row->when & DQ_OUT))
        attach(w, row, json_null());
}

bool dq_row_begin(dq_row_writer *w, const dq_row *row, bool there)
{
    json_t *value = NULL;
    bool kept = false;
    if (w->cell) return there;
    if (w->scored && (row->when & DQ_UNSCORED)) return false;
    if (!there && !(row->when & DQ_OUT)) attach(w, row, json_null());
    if (!there) return false;
    if (w->live) {
        value = row->type == DQ_ROW_LIST ? json_array() : json_object();
    } else if (row->def) {
        char ref[80];
        snprintf(ref, sizeof ref, "#/$defs/%s", row->def);
        attach(w, row, or_null(row, of_word("$ref", ref)));
        if (json_object_get(w->defs, row->def)) return false;
        kept = true;
    }
    if (!w->live) {
        const int n = row->type == DQ_ROW_LIST ? row->max : 0;
        value = of_word("type", row->type == DQ_ROW_LIST ? "array" : "object");
        if (n) json_object_set_new(value, "minItems", json_integer(n));
        if (n) json_object_set_new(value, "maxItems", json_integer(n));
        if (kept) json_object_set_new(w->defs, row->def, value);
        if (row->type == DQ_ROW_OBJECT) {
            json_object_set_new(value, "properties", json_object());
            json_object_set_new(value, "required", json_array());
            json_object_set_new(value, "additionalProperties", json_false());
        }
    }
    w->depth++;
    w->at[w->depth].value = value;
    w->at[w->depth].row = *row;
    w->at[w->depth].kept = kept;
    return true;
}

void dq_row_end(dq_row_writer *w)
{
    if (w->cell) return;
    const dq_row row = w->at[w->depth].row;
    json_t *value = w->at[w->depth].value;
    const bool kept = w->at[w->depth].kept;
    w->depth--;
    if (!kept) attach(w, &row, w->live ? value : or_null(&row, value));
}

void dq_row_again(dq_row_writer *w, const char *name)
{
    if (w->cell) return;
    json_t *of = w->at[w->depth].value;
    w->depth++;
    w->at[w->depth].value = json_object_get(w->live ? of : json_object_get(of, "properties"), name);
    w->at[w->depth].row = (dq_row){.type = DQ_ROW_OBJECT};
    w->at[w->depth].kept = true;
}

void dq_row_metric(dq_row_writer *w, const dq_row *row, dq_mean m)
{
    dq_row object = *row;
    object.type = DQ_ROW_OBJECT;
    object.def = "metric";
    if (!dq_row_begin(w, &object, true)) return;
    DQ_PUT(w, "value", m.value, "The number; null: there is none.", .when = DQ_NULL);
    DQ_PUT(w, "stderr", m.std_err, "Its standard error; null: not known.", .when = DQ_NULL);
    dq_row_end(w);
}

void dq_row_interval(dq_row_writer *w, const dq_row *row, dq_interval x)
{
    dq_row list = *row;
    list.type = DQ_ROW_LIST;
    list.when |= DQ_NULL;
    list.max = 2; /* elements */
    if (!dq_row_begin(w, &list, !w->live || !isnan(x.low))) return;
    DQ_PUT(w, NULL, x.low, NULL, .when = DQ_NULL);
    if (w->live) DQ_PUT(w, NULL, x.high, NULL, .when = DQ_NULL);
    dq_row_end(w);
}

void dq_row_item(dq_row_writer *w, dq_row_items *rows, const void *arg, int64_t i)
{
    if (!DQ_ITEM(w)) return;
    rows(w, arg, i);
    dq_row_end(w);
}

void dq_row_list(dq_row_writer *w, const dq_row *row, dq_row_items *rows, const void *arg,
                 int64_t n)
{
    if (!dq_row_begin(w, row, true)) return;
    for (int64_t i = 0; i < n; i++) dq_row_item(w, rows, arg, i);
    dq_row_end(w);
}

dq_row_writer dq_row_json(json_t *object)
{
    dq_row_writer w = {.live = true};
    w.at[0].value = object;
    w.at[0].row.type = DQ_ROW_OBJECT;
    return w;
}

dq_row_writer dq_row_schema(json_t *object)
{
    dq_row_writer w = {.defs = json_object()};
    json_object_set_new(object, "properties", json_object());
    json_object_set_new(object, "required", json_array());
    json_object_set_new(object, "additionalProperties", json_false());
    json_object_set_new(object, "$defs", w.defs);
    w.at[0].value = object;
    w.at[0].row.type = DQ_ROW_OBJECT;
    return w;
}

dq_row_writer dq_row_cells(void (*cell)(void *arg, const dq_row *row, const char *text), void *arg)
{
    return (dq_row_writer){.live = true, .cell = cell, .arg = arg};
}

json_t *dq_document_of(const dq_logger *logger, const dq_document *d, dq_document_rows *rows,
                       const void *arg)
{
    json_t *doc = dq_document_new(logger, d->name);
    dq_row_writer w = dq_row_json(doc);
    rows(&w, arg);
    return doc;
}

json_t *dq_document_schema(const dq_document *d)
{
    json_t *o =
        json_pack("{s:s,s:s,s:s,s:s}", "$schema", "https://json-schema.org/draft/2020-12/schema",
                  "title", d->name, "description", d->about, "type", "object");
    dq_row_writer w = dq_row_schema(o);
    const bool framed = !d->command || *d->command;
    if (framed) {
        DQ_PUT(&w, "schema", d->name, "Name and version of this document.", .words = &d->name,
               .n_words = 1);
        DQ_PUT(&w, "dq_version", "", "The version of dq that printed it.");
    }
    if (framed && d->command)
        DQ_PUT(&w, "command", d->command, "The command that printed it, without dq.",
               .words = &d->command, .n_words = 1);
    d->describe(&w);
    if (framed && DQ_LIST(&w, "warnings", "Warnings, as they stand on stderr.")) {
        DQ_PUT(&w, NULL, "", NULL);
        dq_row_end(&w);
    }
    if (!json_object_size(w.defs)) json_object_del(o, "$defs");
    return o;
}
