/* quantize_rules: see quantize_rules.h. A rule is a JSON object, as a recipe file has it; the last one that names a
 * tensor decides about it.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_rules.h"

#include "quantize/quantize_recipe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

/* ---- Patterns ---- */

/* A regular expression or the name of one tensor. */
typedef struct pattern {
    const char *kind;   /* "skip" or "rule", for messages */
    const char *origin; /* the file that it is from; NULL: an option, or none that is known */
    const char *text;
    pcre2_code *re; /* NULL: text is a name */
    pcre2_match_data *data;
} pattern;

/* Of a pattern that is wrong; only skip is the name of an option. */
static dq_remedy remedy_of(const pattern *p)
{
    const bool skip = strcmp(p->kind, "skip") == 0 && !p->origin;
    return skip ? (dq_remedy){.code = DQ_REMEDY_OPTION} : dq_remedy_none;
}

/* What a user said is wrong; what a file says is damaged, or does not fit this model. */
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

/* False too where the matcher gives up, which is an error. */
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

/* What it takes to make of the text some piece of the name: 1 for a character put in, 2 for one taken out or changed. */
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

/* Names two tensors at most, of those that can be packed, and none where no name is near. */
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

/* The head of a tied model is no tensor of its own. */
static bool names_tied_head(const pattern *p, const char *tied_head, dq_err *err)
{
    if (!tied_head || !matches(p, tied_head, err)) return false;
    dq_fail_with(err, DQ_USAGE, remedy_of(p),
                 "%s \"%s\" matches only %s, which is the embedding (tied). Name the embedding: it "
                 "decides for both.",
                 p->kind, p->text, tied_head);
    return true;
}

/* ---- Rules ---- */

typedef struct rule {
    const char *text;
    bool exact;
    int bits;
    int64_t group; /* 0: that of the settings */
    int mode;      /* -1: that of the settings */
} rule;

/* Keys that a rule may have; the last says something to people only. */
static const char *const keys[] = {"match", "name", "bits", "group", "scale", "comment", NULL};

static dq_status read_place(rule *r, const json_t *o, dq_err *err)
{
    const char *none = NULL, *match, *name;
    DQ_TRY(dq_json_text(&match, o, "match", &none, err));
    DQ_TRY(dq_json_text(&name, o, "name", &none, err));
    if (!match == !name)
        return dq_fail(err, DQ_DAMAGED,
                       "expected either \"match\", a regular expression, or \"name\", a tensor");
    r->exact = name != NULL;
    r->text = name ? name : match;
    return DQ_OK;
}

static dq_status read_rule(rule *r, const json_t *o, dq_err *err)
{
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "not an object");
    DQ_TRY(dq_quantize_recipe_keys(o, keys, err));
    DQ_TRY(read_place(r, o, err));
    if (!json_object_get(o, "bits")) return dq_fail(err, DQ_DAMAGED, "key \"bits\" is missing");
    DQ_TRY(dq_quantize_recipe_bits(&r->bits, json_object_get(o, "bits"), "bits", err));
    r->group = 0;
    r->mode = -1;
    if (json_object_get(o, "group"))
        DQ_TRY(dq_quantize_recipe_group(&r->group, json_object_get(o, "group"), err));
    if (json_object_get(o, "scale"))
        DQ_TRY(dq_quantize_recipe_mode(&r->mode, json_object_get(o, "scale"), err));
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

static dq_status apply_skip(const dq_quantize_settings *s, const char *tied_head,
                            dq_quantize_choice *choice, int64_t n, dq_err *err)
{
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

static dq_status in_rule(size_t at, dq_err *err)
{
    return dq_in(err, "\"rules\", rule %zu: ", at + 1);
}

dq_status dq_quantize_rules_check(const json_t *rules, dq_err *err)
{
    rule r;
    if (rules && !json_is_array(rules))
        return dq_fail(err, DQ_DAMAGED, "\"rules\": not an array of rules");
    for (size_t i = 0; i < json_array_size(rules); i++) {
        pattern p = {.kind = "rule"};
        if (read_rule(&r, json_array_get(rules, i), err) == DQ_OK)
            pattern_begin(&p, r.text, r.exact, err);
        pattern_end(&p);
        if (err->code == DQ_DAMAGED) in_rule(i, err);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

dq_status dq_quantize_rules_apply(const dq_quantize_settings *s, const char *tied_head,
                                  dq_quantize_choice *choice, int64_t n, dq_err *err)
{
    rule r;
    DQ_TRY(dq_quantize_rules_check(s->rules, err));
    for (size_t i = 0; i < json_array_size(s->rules); i++) {
        DQ_TRY(read_rule(&r, json_array_get(s->rules, i), err));
        const char *origin = i < s->file.rules ? s->file.path : NULL;
        if (apply_rule(s, &r, origin, tied_head, choice, n, err) != DQ_OK) return err->code;
    }
    return s->skip ? apply_skip(s, tied_head, choice, n, err) : DQ_OK;
}
