/* A rule is a JSON object, as a recipe file has it; the last one that names a tensor decides about
 * it.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "quantize/inside.h"

#include <errno.h>
#include <pcre2.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pattern {
    const char *kind;   /* "skip" or "rule", for messages */
    const char *origin; /* the file that it is from; NULL: an option, or none that is known */
    const char *text;
    pcre2_code *re; /* NULL: text is a name */
    pcre2_match_data *data;
} pattern;

/* Only skip is an option's name. */
static dq_remedy remedy_of(const pattern *p)
{
    const bool skip = strcmp(p->kind, "skip") == 0 && !p->origin;
    return skip ? (dq_remedy){.code = DQ_REMEDY_OPTION} : dq_remedy_none;
}

/* A user's mistake is DQ_USAGE, a file's DQ_DAMAGED or DQ_MISMATCH. */
static dq_status in_origin(const pattern *p, dq_status code, dq_err *err)
{
    if (err->code != DQ_USAGE || !p->origin) return err->code;
    err->code = code;
    return dq_in(err, "%s: ", p->origin);
}

static dq_status pattern_begin(pattern *p, const char *text, bool exact, dq_err *err)
{
    const char *kind = p->kind;
    int code;
    PCRE2_SIZE at;
    p->text = text;
    if (exact) return DQ_OK;
    p->re = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    if (!p->re && code == PCRE2_ERROR_HEAP_FAILED)
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (!p->re) {
        PCRE2_UCHAR why[200] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return dq_fail_with(err, DQ_USAGE, remedy_of(p), "%s \"%s\": %s at character %zu.", kind,
                            text, (const char *)why, (size_t)at + 1);
    }
    p->data = pcre2_match_data_create_from_pattern(p->re, NULL);
    return p->data ? DQ_OK : dq_fail(err, DQ_RESOURCE, "out of memory");
}

static void pattern_end(pattern *p)
{
    pcre2_match_data_free(p->data);
    pcre2_code_free(p->re);
}

/* False also where the matcher gives up, with an error. */
static bool matches(const pattern *p, const char *name, dq_err *err)
{
    if (!p->re) return strcmp(p->text, name) == 0;
    const int got = pcre2_match(p->re, (PCRE2_SPTR)name, strlen(name), 0, 0, p->data, NULL);
    if (got == PCRE2_ERROR_NOMEMORY)
        dq_fail(err, DQ_RESOURCE, "out of memory");
    else if (got < 0 && got != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR why[200] = "";
        pcre2_get_error_message(got, why, sizeof why);
        dq_fail_with(err, DQ_USAGE, remedy_of(p), "%s \"%s\" gives up on %s: %s.", p->kind, p->text,
                     name, (const char *)why);
    }
    return got >= 0;
}

enum { LONGEST = 128 }; /* of patterns that are compared with names */

/* Edit distance of the text to some part of the name: insertions cost 1, deletions and changes
 * 2. */
static int distance(const char *text, const char *name)
{
    int cost[LONGEST + 1], best;
    const int n = (int)strlen(text);
    for (int i = 0; i <= n; i++) cost[i] = 2 * i;
    best = cost[n];
    for (const char *c = name; *c; c++) {
        int before = cost[0]; /* 0: a piece may begin anywhere */
        for (int i = 1; i <= n; i++) {
            const int same = before + (text[i - 1] == *c ? 0 : 2);
            const int in = cost[i] + 1, out = cost[i - 1] + 2;
            before = cost[i];
            cost[i] = same < in ? same : in;
            if (out < cost[i]) cost[i] = out;
        }
        if (cost[n] < best) best = cost[n];
    }
    return best;
}

/* Suggests at most two packable tensors with near names. */
static dq_status matches_nothing(const pattern *p, const dq_quantize_choice *choice, int64_t n,
                                 dq_err *err)
{
    const char *best = "", *second = "";
    const size_t len = strlen(p->text);
    int top = (int)(len / 2) + 1, next = top;
    for (int64_t i = 0; i < n && len <= LONGEST; i++) {
        if (!choice[i].packable) continue;
        const int far = distance(p->text, choice[i].name);
        if (far < top) {
            second = best;
            next = top;
            best = choice[i].name;
            top = far;
        } else if (far < next) {
            second = choice[i].name;
            next = far;
        }
    }
    return dq_fail_with(err, DQ_USAGE, remedy_of(p), "%s \"%s\" matches no tensor.%s%s%s%s%s",
                        p->kind, p->text, *best ? " Closest names: " : "", best,
                        *second ? ", " : "", second, *best ? "." : "");
}

/* A tied head is no tensor of its own. */
static bool names_tied_head(const pattern *p, const char *tied_head, dq_err *err)
{
    if (!tied_head || !matches(p, tied_head, err)) return false;
    dq_fail_with(err, DQ_USAGE, remedy_of(p),
                 "%s \"%s\" matches only %s, which is the embedding (tied). Name the embedding: it "
                 "decides for both.",
                 p->kind, p->text, tied_head);
    return true;
}

typedef struct rule {
    const char *text;
    bool exact;
    int bits;
    int64_t group; /* 0: that of the settings */
    int mode;      /* -1: that of the settings */
} rule;

/* The last key is for people only. */
static const char *const rule_keys[] = {"match", "name", "bits", "group", "scale", "comment", NULL};

/* DQ_DAMAGED with the key. Bits are 2..8 or 16; a group is a number of columns from 1 up, as number
 * or text, "row" or "tensor". */
static dq_status recipe_bits(int *out, const json_t *v, const char *key, dq_err *err)
{
    int64_t bits;
    if (!dq_json_whole(&bits, v) || bits < 2 || (bits > 8 && bits != 16))
        return dq_json_wrong(key, "2 to 8, or 16", v, err);
    *out = (int)bits;
    return DQ_OK;
}

/* NULL: no string, or one with a NUL. */
static const char *text_of(const json_t *v)
{
    const char *text = json_string_value(v);
    return text && strlen(text) == json_string_length(v) ? text : NULL;
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

static dq_status recipe_group(int64_t *out, const json_t *group, dq_err *err)
{
    const char *text = text_of(group);
    if (text ? dq_quantize_group_parse(out, text)
             : dq_json_whole(out, group) && *out > 0 && *out <= INT32_MAX)
        return DQ_OK;
    return dq_json_wrong("group", "a number of columns up to 2147483647, \"row\" or \"tensor\"",
                         group, err);
}

static dq_status recipe_mode(int *out, const json_t *mode, dq_err *err)
{
    const char *text = text_of(mode);
    for (int i = 0; text && i < DQ_QUANT_MODES; i++) {
        *out = i;
        if (strcmp(text, dq_quant_modes[i].name) == 0) return DQ_OK;
    }
    return dq_json_wrong("scale", "the name of a mode of scales", mode, err);
}

/* DQ_DAMAGED: a key is not in the list, which ends with NULL. */
static dq_status recipe_keys(const json_t *object, const char *const *keys, dq_err *err)
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

static dq_status read_rule(rule *r, const json_t *o, dq_err *err)
{
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "not an object");
    DQ_TRY(recipe_keys(o, rule_keys, err));
    const char *none = NULL, *match, *name;
    DQ_TRY(dq_json_text(&match, o, "match", &none, err));
    DQ_TRY(dq_json_text(&name, o, "name", &none, err));
    if (!match == !name)
        return dq_fail(err, DQ_DAMAGED,
                       "expected either \"match\", a regular expression, or \"name\", a tensor");
    r->exact = name != NULL;
    r->text = name ? name : match;
    if (!json_object_get(o, "bits")) return dq_fail(err, DQ_DAMAGED, "key \"bits\" is missing");
    DQ_TRY(recipe_bits(&r->bits, json_object_get(o, "bits"), "bits", err));
    r->group = 0;
    r->mode = -1;
    if (json_object_get(o, "group"))
        DQ_TRY(recipe_group(&r->group, json_object_get(o, "group"), err));
    if (json_object_get(o, "scale"))
        DQ_TRY(recipe_mode(&r->mode, json_object_get(o, "scale"), err));
    return DQ_OK;
}

static dq_status apply_rule(const dq_quantize_settings *s, const rule *r, const char *origin,
                            const char *tied_head, dq_quantize_choice *choice, int64_t n,
                            dq_err *err)
{
    pattern p = {.kind = "rule", .origin = origin};
    int64_t packable = 0;
    const char *other = NULL;
    pattern_begin(&p, r->text, r->exact, err);
    in_origin(&p, DQ_DAMAGED, err);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        dq_quantize_choice *c = &choice[i];
        if (!matches(&p, c->name, err)) continue;
        if (!c->packable) other = c->name;
        if (!c->packable) continue;
        packable++;
        c->bits = r->bits;
        c->group = r->group ? r->group : s->group;
        c->mode = r->mode < 0 ? s->mode : (dq_scale_mode)r->mode;
        c->own_bits = true;
        c->own_group = r->group != 0;
        c->own_mode = r->mode >= 0;
    }
    if (err->code == DQ_OK && packable == 0 && other)
        dq_fail(err, DQ_USAGE,
                "rule \"%s\" matches only tensors that are never packed, as %s (packed are "
                "projections, the embedding and the head).",
                r->text, other);
    else if (err->code == DQ_OK && packable == 0 && !names_tied_head(&p, tied_head, err))
        matches_nothing(&p, choice, n, err);
    pattern_end(&p);
    return in_origin(&p, DQ_MISMATCH, err);
}

/* Checks of rules that need no tensor. */
static dq_status rules_check(const json_t *rules, dq_err *err)
{
    rule r;
    if (rules && !json_is_array(rules))
        return dq_fail(err, DQ_DAMAGED, "\"rules\": not an array of rules");
    for (size_t i = 0; i < json_array_size(rules); i++) {
        pattern p = {.kind = "rule"};
        if (read_rule(&r, json_array_get(rules, i), err) == DQ_OK)
            pattern_begin(&p, r.text, r.exact, err);
        pattern_end(&p);
        if (err->code == DQ_DAMAGED) dq_in(err, "\"rules\", rule %zu: ", i + 1);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

dq_status dq_quantize_rules_apply(const dq_quantize_settings *s, const char *tied_head,
                                  dq_quantize_choice *choice, int64_t n, dq_err *err)
{
    rule r;
    DQ_TRY(rules_check(s->rules, err));
    for (size_t i = 0; i < json_array_size(s->rules); i++) {
        DQ_TRY(read_rule(&r, json_array_get(s->rules, i), err));
        const char *origin = i < s->file.rules ? s->file.path : NULL;
        if (apply_rule(s, &r, origin, tied_head, choice, n, err) != DQ_OK) return err->code;
    }
    if (!s->skip) return DQ_OK;
    pattern p = {.kind = "skip", .origin = s->skip == s->file.skip ? s->file.path : NULL};
    int64_t found = 0;
    pattern_begin(&p, s->skip, false, err);
    in_origin(&p, DQ_DAMAGED, err);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        dq_quantize_choice *c = &choice[i];
        if (!matches(&p, c->name, err)) continue;
        found++;
        c->kept = true;
        c->skipped = c->projection || c->bits != 16;
        c->bits = 16;
    }
    if (err->code == DQ_OK && found == 0 && !names_tied_head(&p, tied_head, err))
        matches_nothing(&p, choice, n, err);
    pattern_end(&p);
    return in_origin(&p, DQ_MISMATCH, err);
}

/* Keys that older files lack are left out at their defaults, so that equal settings keep equal
 * bytes. */

static const char schema[] = "dq-recipe/1";

const char *const dq_dense_type_name[DQ_DENSE_TYPES] = {"keep", "bf16", "f16"};

static const char *group_text(char buf[32], int64_t group)
{
    if (group == DQ_GROUP_ROW) return "row";
    if (group == DQ_GROUP_TENSOR) return "tensor";
    snprintf(buf, 32, "%lld", (long long)group);
    return buf;
}

static dq_status check_hash(const json_t *o, const char *key, dq_err *err)
{
    const json_t *v = json_object_get(o, key);
    const char *text = text_of(v);
    if (!v || (text && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64)) return DQ_OK;
    return dq_json_wrong(key, "a SHA-256, 64 hex digits", v, err);
}

/* A key that is present must hold a whole number. */
static dq_status check_whole(const json_t *o, const char *key, int64_t min, int64_t max,
                             dq_err *err)
{
    int64_t n;
    const json_t *v = json_object_get(o, key);
    if (!v || (dq_json_whole(&n, v) && n >= min && n <= max)) return DQ_OK;
    return dq_json_wrong(key, min == 1 ? "a whole number from 1 up" : "a whole number from 2 up", v,
                         err);
}

/* The text of a plan: which part of which file, in sequences of how many tokens. */
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

static dq_status check_plan(const json_t *v, dq_err *err)
{
    const json_t *calib = json_object_get(v, "calib"), *of = json_object_get(v, "arithmetic");
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

/* What a key holds, and what it becomes. */
typedef enum kind {
    BITS,  /* an int */
    GROUP, /* an int64_t */
    SCALE, /* a dq_scale_mode */
    WORD,  /* its index among the words, in an int */
    TEXT,  /* one of the words, if there are any */
    OBJECT,
    LIST,
    RULES,
    PLAN,
    ANY, /* nothing reads it */
    KV   /* of files; what a container's attributes say decides */
} kind;

static const char *const dtype_name[] = {[DQ_F32] = "f32", [DQ_F16] = "f16"};

#define AT(member) .at = offsetof(dq_quantize_settings, member)
static const struct {
    const char *key;
    kind kind;
    size_t at;
    const char *expected;
    const char *const *words; /* [n_words] */
    int n_words;
    bool always; /* stands in every container's recipe */
    bool stored; /* in no file: it says what a container was made with */
} fields[] = {
    {"bits", BITS, AT(bits), .always = true},
    {"group", GROUP, AT(group), .always = true},
    {"scale", SCALE, AT(mode), .always = true},
    {"scale_dtype", WORD, AT(scale_dtype), .expected = "\"f16\" or \"f32\"", DQ_WORDS(dtype_name),
     .always = true},
    {"skip", TEXT, AT(skip), .expected = "a regular expression"},
    {"embed_bits", BITS, AT(embed_bits)},
    {"head_bits", BITS, AT(head_bits)},
    {"dense_type", WORD, AT(dense_type), .expected = "\"keep\", \"bf16\" or \"f16\"",
     DQ_WORDS(dq_dense_type_name)},
    {"kv", .kind = KV},
    {"rules", RULES, AT(rules)},
    {"method", TEXT, AT(method_name), .expected = "the name of a calibrated method",
     DQ_WORDS(dq_quantize_methods)},
    {"calib", OBJECT, AT(calib), .expected = "an object", .stored = true},
    {"plan", PLAN, AT(plan), .expected = "an object"},
    {"texts", LIST, AT(texts), .expected = "a list"}, /* that chose something about the cache */
    {"comment", ANY, AT(comment)},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static dq_status read_field(dq_quantize_settings *s, int i, const json_t *v, dq_err *err)
{
    void *to = (char *)s + fields[i].at;
    const kind k = fields[i].kind;
    const char *text = text_of(v);
    int at = 0;
    bool good = true;
    switch (k) {
    case BITS: return recipe_bits(to, v, fields[i].key, err);
    case GROUP: return recipe_group(to, v, err);
    case SCALE: return recipe_mode(to, v, err);
    case WORD:
    case TEXT:
        while (text && at < fields[i].n_words && strcmp(text, fields[i].words[at]) != 0) at++;
        good = text && (!fields[i].words || at < fields[i].n_words);
        if (good && k == WORD) *(int *)to = at;
        if (good && k == TEXT) *(const char **)to = text;
        break;
    case OBJECT:
    case PLAN: good = json_is_object(v); break;
    case LIST: good = json_is_array(v); break;
    case RULES:
        if (rules_check(v, err) == DQ_USAGE) err->code = DQ_DAMAGED; /* a file has no user */
        break;
    default: break;
    }
    if (!good) return dq_json_wrong(fields[i].key, fields[i].expected, v, err);
    if (k >= OBJECT) *(const json_t **)to = v;
    return k == PLAN ? check_plan(v, err) : err->code;
}

/* All but "kv"; what is absent or null stays in *s. */
static dq_status read_fields(dq_quantize_settings *s, const json_t *o, dq_err *err)
{
    for (int i = 0; i < FIELDS; i++) {
        const json_t *v = json_object_get(o, fields[i].key);
        if (fields[i].kind != KV && v && !json_is_null(v)) DQ_TRY(read_field(s, i, v, err));
    }
    return DQ_OK;
}

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
    DQ_TRY(recipe_keys(file, keys, err));
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

/* file: of dq-recipe/1, where each may lack. */
static void shared_rows(dq_row_writer *w, const dq_quantize_settings *s, bool file)
{
    const unsigned may = file ? DQ_OUT : 0;
    char group[32];
    DQ_PUT(w, "group", group_text(group, s->group),
           "Columns per scale, as text: 128, row or tensor.", .when = may);
    if (file) DQ_PUT(w, "group", s->group, NULL, .min = 1, .when = may);
    DQ_PUT(w, "scale", dq_quant_modes[s->mode].name, "How scales are found.",
           DQ_WORD("absmax", "search", "asym", "trellis"), .when = may);
    DQ_PUT(w, "scale_dtype", s->scale_dtype == DQ_F16 ? "f16" : "f32", "Type of scales.",
           DQ_WORD("f16", "f32"), .when = may);
    DQ_PUT(w, "skip", s->skip, "Regular expression of tensors that stay dense; null: none.",
           .when = DQ_NULL | may);
    if (!file) {
        DQ_PUT(w, "logit_bits", s->logit.bits,
               "Bits of attention logits that the container asks for, 16: not rounded.", .min = 2,
               .max = 16);
        DQ_PUT(w, "logit_granularity", dq_granularity_name[s->logit.granularity],
               "What shares a scale of logits.", DQ_WORDS(dq_granularity_name));
    }
    /* Keys that older files lack are written only where set. */
    DQ_PUT(w, "embed_bits", s->embed_bits, "Bits of the embedding.", .when = DQ_OUT | DQ_AT_0,
           .min = 2, .max = 16);
    DQ_PUT(w, "head_bits", s->head_bits, "Bits of the head.", .when = DQ_OUT | DQ_AT_0, .min = 2,
           .max = 16);
    DQ_PUT(w, "dense_type",
           s->dense_type != DQ_DENSE_KEEP ? dq_dense_type_name[s->dense_type] : NULL,
           "What matrices that are not packed are rounded to.", DQ_WORDS(dq_dense_type_name),
           .when = DQ_OUT);
}

void dq_quantize_recipe_rows(dq_row_writer *w, const dq_quantize_settings *s)
{
    shared_rows(w, s, false);
}

static void recipe_rows(dq_row_writer *w, const dq_quantize_settings *s, bool file)
{
    if (file) DQ_PUT(w, "schema", schema, "Name and version of this document.", DQ_WORD(schema));
    DQ_PUT(w, "bits", s->bits, "Bits of the projections, 16: none is packed.", .min = 2, .max = 16,
           .when = file ? DQ_OUT : 0);
    shared_rows(w, s, file);
    DQ_PUT(w, "rules", json_array_size(s->rules) ? json_deep_copy(s->rules) : NULL,
           "Which tensors are stored otherwise, the last that fits decides.", .when = DQ_OUT,
           .ref = "common.json#/$defs/rules");
    DQ_PUT(w, "method", s->method_name,
           "What chose codes by a text; missing: the nearest were taken.", .when = DQ_OUT);
    if (!file)
        DQ_PUT(w, "calib", json_deep_copy(s->calib), "That text.", .when = DQ_OUT,
               .ref = "common.json#/$defs/calib_text");
    DQ_PUT(w, "plan", json_deep_copy(s->plan), NULL, .when = DQ_OUT,
           .ref = "common.json#/$defs/plan");
    DQ_PUT(w, "texts", json_deep_copy(s->texts), NULL, .when = DQ_OUT,
           .ref = "common.json#/$defs/texts");
    DQ_PUT(w, "comment", json_deep_copy(s->comment), NULL, .when = DQ_OUT,
           .ref = "common.json#/$defs/comment");
    if (file)
        DQ_PUT(w, "kv", (json_t *)NULL, "The KV cache; what it does not name has its default.",
               .when = DQ_OUT, .def = "kv", .describe = dq_kv_config_file_describe);
    else
        DQ_PUT(w, "kv",
               dq_kv_config_same(&s->kv, &dq_kv_config_plain) ? NULL : dq_kv_config_json(&s->kv),
               "The KV cache that the container asks for, where it is not plain.", .when = DQ_OUT,
               DQ_KV_CONFIG);
}

void dq_quantize_recipe_describe(dq_row_writer *w)
{
    recipe_rows(w, NULL, false);
}

void dq_quantize_recipe_describe_file(dq_row_writer *w)
{
    recipe_rows(w, NULL, true);
}

dq_status dq_quantize_recipe_of(json_t **out, const dq_quantize_settings *s, dq_err *err)
{
    dq_row_writer w = dq_row_json(*out = json_object());
    int64_t bad;
    if (s->skip && dq_utf8_check(s->skip, strlen(s->skip), &bad))
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
                            "skip: the pattern is not valid UTF-8.");
    recipe_rows(&w, s, false);
    return dq_json_complete(err);
}

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
    s->dq_version = c->info.dq_version;
    /* opening has compared the attributes with the recipe */
    s->logit = c->info.logit;
    s->kv = c->info.kv;
    return DQ_OK;
}
