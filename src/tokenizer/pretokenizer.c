/* Each piece goes through the steps depth first: what step k cuts off goes to step k + 1 at once,
 * and after the last step it is a word. So nothing but the text being rewritten is stored, however
 * long it is.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/text.h"
#include "tokenizer/inside.h"

#include <string.h>

typedef struct cutter {
    dq_pretokenizer_run *run;
    int k;
    const char *text;
    bool first;        /* the piece begins where the whole text does */
    size_t begin, end; /* a span that what follows may still extend */
    bool open;         /* there is such a span */
    bool match;        /* its last part was a match */
} cutter;

static dq_status from_step(dq_pretokenizer_run *run, int k, const char *text, size_t len,
                           bool first, dq_err *err);

static dq_status tell(const cutter *c, size_t begin, size_t end, dq_err *err)
{
    if (begin == end) return DQ_OK;
    return from_step(c->run, c->k + 1, c->text + begin, end - begin, c->first && begin == 0, err);
}

static dq_status close_span(cutter *c, dq_err *err)
{
    if (!c->open) return DQ_OK;
    c->open = false;
    return tell(c, c->begin, c->end, err);
}

/* Which neighbours merge into one span: tokenizers tokenizer/normalizer.rs split. */
static dq_status part(cutter *c, size_t begin, size_t end, bool match, dq_err *err)
{
    const dq_pretokenizer_step *s = &c->run->p->step[c->k];
    bool extends = false;
    if (s->invert) match = !match;
    switch (s->behavior) {
    case DQ_REMOVED: return match ? DQ_OK : tell(c, begin, end, err);
    case DQ_ISOLATED: return tell(c, begin, end, err);
    case DQ_CONTIGUOUS: extends = c->match == match; break;
    case DQ_MERGED_WITH_PREVIOUS: extends = match && !c->match; break;
    case DQ_MERGED_WITH_NEXT: extends = !match && c->match; break;
    }
    if (c->open && extends) {
        c->end = end;
    } else {
        DQ_TRY(close_span(c, err));
        c->begin = begin;
        c->end = end;
        c->open = true;
    }
    c->match = match;
    return DQ_OK;
}

static bool delimits(dq_delimiter by, uint32_t c)
{
    switch (by) {
    case DQ_BY_SPACE: return dq_utf8_is_space(c);
    case DQ_BY_NUMBER: return dq_utf8_is_number(c);
    case DQ_BY_PUNCTUATION: return dq_utf8_is_punctuation(c);
    default: return false;
    }
}

/* 0: white space, 1: of a word, 2: other. */
static int kind_of(uint32_t c)
{
    return dq_utf8_is_space(c) ? 0 : dq_utf8_is_word(c) ? 1 : 2;
}

/* First delimiter from `at` on; false: none. */
static bool next_character(const dq_pretokenizer_step *s, const char *text, size_t len, size_t at,
                           size_t *begin, size_t *end)
{
    size_t used;
    if (s->by == DQ_BY_CHARACTER) {
        *begin = dq_regex_find_text(text, len, at, s->c8, s->c8_len);
        *end = *begin + s->c8_len;
        return *begin != SIZE_MAX;
    }
    for (; at < len; at += used) {
        uint32_t c = dq_utf8_first(text + at, &used);
        int kind = s->by == DQ_BY_KIND ? kind_of(c) : 0;
        if (!kind && !delimits(s->by, c)) continue;
        *begin = at;
        *end = at + used;
        while (kind && *end < len && kind_of(dq_utf8_first(text + *end, &used)) == kind)
            *end += used;
        return true;
    }
    return false;
}

static dq_status reserve(dq_pretokenizer_run *run, int k, size_t len, dq_err *err)
{
    if (run->changed_capacity[k] >= len) return DQ_OK;
    dq_block_free(run->changed[k]);
    run->changed_capacity[k] = 0;
    run->changed[k] = dq_block_new(len + len / 4, 1, err);
    if (!run->changed[k]) return err->code;
    run->changed_capacity[k] = len + len / 4;
    return DQ_OK;
}

static dq_status from_step(dq_pretokenizer_run *run, int k, const char *text, size_t len,
                           bool first, dq_err *err)
{
    DQ_TRY(dq_os_check_stop(err));
    if (k == run->p->n_steps) {
        run->told += len;
        DQ_TRY(dq_strbuf_check_growth(run->told, run->original, "the pre_tokenizer", err));
        return run->word(run->arg, text, len, err);
    }
    const dq_pretokenizer_step *s = &run->p->step[k];
    if (s->prefix != DQ_NEVER || s->spaces) {
        /* Replaces spaces by the step's sign, then adds it in front. */
        const char *in = text;
        size_t n = len, spaces = 0, at = 0;
        bool has = n >= s->c8_len && memcmp(in, s->c8, s->c8_len) == 0;
        if (s->spaces && in[0] == ' ') has = true;
        bool prefix = !has && (s->prefix == DQ_ALWAYS || (s->prefix == DQ_FIRST && first));
        for (size_t i = 0; s->spaces && i < n; i++) spaces += in[i] == ' ';
        if (prefix || spaces) {
            DQ_TRY(reserve(run, k, n + spaces * (s->c8_len - 1) + s->c8_len, err));
            char *out = run->changed[k];
            if (prefix) {
                memcpy(out, s->c8, s->c8_len);
                at = s->c8_len;
            }
            for (size_t i = 0; i < n;) {
                const char *space = s->spaces ? memchr(in + i, ' ', n - i) : NULL;
                size_t plain = space ? (size_t)(space - in) - i : n - i;
                memcpy(out + at, in + i, plain);
                at += plain;
                i += plain;
                if (!space) break;
                memcpy(out + at, s->c8, s->c8_len);
                at += s->c8_len;
                i++;
            }
            text = out;
            len = at;
        }
    }
    if (s->by == DQ_NO_CUT) return from_step(run, k + 1, text, len, first, err);
    cutter c = {.run = run, .k = k, .text = text, .first = first};
    size_t done = 0, begin, end; /* done: end of the last match */
    if (s->by == DQ_BY_PATTERN) DQ_TRY(dq_regex_begin(&run->match[k], len, err));
    for (;;) {
        bool found;
        if (s->by == DQ_BY_PATTERN) {
            DQ_TRY(dq_regex_next(&run->match[k], &s->regex, text, len, &begin, &end, &found, err));
        } else {
            found = next_character(s, text, len, done, &begin, &end);
        }
        if (!found) break;
        if (begin > done) DQ_TRY(part(&c, done, begin, false, err));
        DQ_TRY(part(&c, begin, end, true, err));
        done = end;
    }
    if (len > done) DQ_TRY(part(&c, done, len, false, err));
    return close_span(&c, err);
}

dq_status dq_pretokenizer_cut(dq_pretokenizer_run *run, const char *text, size_t len, dq_err *err)
{
    run->told = 0;
    run->original = len;
    return len ? from_step(run, 0, text, len, run->at_start, err) : DQ_OK;
}

void dq_pretokenizer_run_end(dq_pretokenizer_run *run)
{
    for (int k = 0; k < DQ_PRETOKENIZER_MAX_STEPS; k++) {
        dq_regex_end(&run->match[k]);
        dq_block_free(run->changed[k]);
    }
    *run = (dq_pretokenizer_run){0};
}

/* ByteLevel's own pattern. Source: tokenizers pre_tokenizers/byte_level.rs (GPT-2). */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum { MAX_NESTED = 8 };

static const bool no = false, yes = true;

typedef struct loading {
    dq_pretokenizer *p;
    dq_arena *arena;
    dq_err *err;
} loading;

static dq_status load_behavior(dq_pretokenizer_step *s, const json_t *v, const char *type,
                               const char *const *fallback, dq_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name;
    DQ_TRY(dq_json_text(&name, v, "behavior", fallback, err));
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) == 0) {
            s->behavior = (dq_behavior)i;
            return DQ_OK;
        }
    }
    return dq_fail(err, DQ_MISMATCH, "pre_tokenizer %s with behavior \"%s\" is not supported", type,
                   name);
}

static dq_status load_character(dq_pretokenizer_step *s, const json_t *v, const char *type,
                                const char *key, dq_err *err)
{
    const json_t *text = json_object_get(v, key);
    const char *c = json_string_value(text);
    size_t len = json_string_length(text), used = 0;
    if (len) dq_utf8_first(c, &used);
    if (!len || used != len)
        return dq_fail(err, DQ_DAMAGED, "pre_tokenizer %s: \"%s\" is not one character", type, key);
    memcpy(s->c8, c, len);
    s->c8_len = len;
    return DQ_OK;
}

static dq_status load_byte_level(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    bool regex, prefix;
    DQ_TRY(dq_json_bool(&prefix, v, "add_prefix_space", NULL, l->err));
    DQ_TRY(dq_json_bool(&regex, v, "use_regex", &yes, l->err));
    l->p->byte_level = true;
    s->prefix = prefix ? DQ_ALWAYS : DQ_NEVER;
    s->c8[0] = ' ';
    s->c8_len = 1;
    if (!regex) return DQ_OK;
    s->by = DQ_BY_PATTERN;
    s->behavior = DQ_ISOLATED;
    return dq_regex_syntax_compile(&s->regex.code, &s->regex.jit, gpt2_pattern,
                                   strlen(gpt2_pattern), false, l->arena, l->err);
}

static dq_status load_split(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = json_object_get(pattern, "String");
    s->by = DQ_BY_PATTERN;
    DQ_TRY(load_behavior(s, v, "Split", NULL, l->err));
    DQ_TRY(dq_json_bool(&s->invert, v, "invert", &no, l->err));
    const json_t *of = regex ? regex : text;
    if (json_is_string(of) && !(regex && text))
        return dq_regex_syntax_compile(&s->regex.code, &s->regex.jit, json_string_value(of),
                                       json_string_length(of), of == text, l->arena, l->err);
    return dq_fail(l->err, DQ_DAMAGED,
                   "pre_tokenizer Split: \"pattern\" is not {\"Regex\": ...} or {\"String\": ...}");
}

/* Old files have add_prefix_space instead of prepend_scheme. */
static dq_status load_metaspace(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    const char *scheme, *old_scheme = "always";
    bool old, split;
    DQ_TRY(load_character(s, v, "Metaspace", "replacement", l->err));
    DQ_TRY(dq_json_bool(&old, v, "add_prefix_space", &yes, l->err));
    if (!old) old_scheme = "never";
    DQ_TRY(dq_json_text(&scheme, v, "prepend_scheme", &old_scheme, l->err));
    DQ_TRY(dq_json_bool(&split, v, "split", &yes, l->err));
    if (strcmp(scheme, "always") == 0) {
        s->prefix = DQ_ALWAYS;
    } else if (strcmp(scheme, "first") == 0) {
        s->prefix = DQ_FIRST;
    } else if (strcmp(scheme, "never") != 0) {
        return dq_fail(l->err, DQ_MISMATCH,
                       "pre_tokenizer Metaspace with prepend_scheme \"%s\" is not supported",
                       scheme);
    }
    if (!old && s->prefix != DQ_NEVER)
        return dq_fail(l->err, DQ_DAMAGED,
                       "pre_tokenizer Metaspace: \"add_prefix_space\" and \"prepend_scheme\" "
                       "contradict each other");
    s->spaces = true;
    s->by = split ? DQ_BY_CHARACTER : DQ_NO_CUT;
    s->behavior = DQ_MERGED_WITH_NEXT;
    return DQ_OK;
}

static dq_status load_digits(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    bool single;
    DQ_TRY(dq_json_bool(&single, v, "individual_digits", &no, l->err));
    s->by = DQ_BY_NUMBER;
    s->behavior = single ? DQ_ISOLATED : DQ_CONTIGUOUS;
    return DQ_OK;
}

static dq_status load_punctuation(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    static const char *const isolated = "Isolated";
    s->by = DQ_BY_PUNCTUATION;
    return load_behavior(s, v, "Punctuation", &isolated, l->err);
}

static dq_status load_whitespace(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    (void)l;
    (void)v;
    s->by = DQ_BY_KIND;
    s->behavior = DQ_REMOVED;
    s->invert = true;
    return DQ_OK;
}

static dq_status load_whitespace_split(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    (void)l;
    (void)v;
    s->by = DQ_BY_SPACE;
    s->behavior = DQ_REMOVED;
    return DQ_OK;
}

static dq_status load_delimiter(loading *l, dq_pretokenizer_step *s, const json_t *v)
{
    s->by = DQ_BY_CHARACTER;
    s->behavior = DQ_REMOVED;
    return load_character(s, v, "CharDelimiterSplit", "delimiter", l->err);
}

static const struct {
    const char *type;
    dq_status (*load)(loading *l, dq_pretokenizer_step *s, const json_t *v);
} kinds[] = {
    {"ByteLevel", load_byte_level},         {"Split", load_split},
    {"Metaspace", load_metaspace},          {"Digits", load_digits},
    {"Punctuation", load_punctuation},      {"Whitespace", load_whitespace},
    {"CharDelimiterSplit", load_delimiter}, {"WhitespaceSplit", load_whitespace_split},
};

static dq_status load(loading *l, const json_t *v, int depth)
{
    const char *type;
    if (!json_is_object(v)) return dq_fail(l->err, DQ_DAMAGED, "a pre_tokenizer is not an object");
    DQ_TRY(dq_json_text(&type, v, "type", NULL, l->err));
    if (strcmp(type, "Sequence") != 0) {
        dq_pretokenizer *p = l->p;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            if (strcmp(type, kinds[i].type) != 0) continue;
            if (p->byte_level) /* what follows would see mapped bytes */
                return dq_fail(l->err, DQ_MISMATCH,
                               "a pre_tokenizer step after ByteLevel is not supported");
            if (p->n_steps == DQ_PRETOKENIZER_MAX_STEPS)
                return dq_fail(l->err, DQ_MISMATCH,
                               "more than %d pre_tokenizer steps are not supported",
                               DQ_PRETOKENIZER_MAX_STEPS);
            return kinds[i].load(l, &p->step[p->n_steps++], v);
        }
        return dq_fail(l->err, DQ_MISMATCH, "pre_tokenizer type \"%s\" is not supported", type);
    }
    const json_t *list = json_object_get(v, "pretokenizers");
    if (!json_is_array(list))
        return dq_fail(l->err, DQ_DAMAGED, "pre_tokenizer Sequence has no list \"pretokenizers\"");
    if (depth == MAX_NESTED)
        return dq_fail(l->err, DQ_MISMATCH,
                       "a pre_tokenizer Sequence more than %d deep is not supported", MAX_NESTED);
    for (size_t i = 0; i < json_array_size(list); i++)
        DQ_TRY(load(l, json_array_get(list, i), depth + 1));
    return DQ_OK;
}

dq_status dq_pretokenizer_load(dq_pretokenizer *p, const json_t *value, dq_arena *a, dq_err *err)
{
    loading l = {p, a, err};
    return value && !json_is_null(value) ? load(&l, value, 0) : DQ_OK;
}

void dq_pretokenizer_free(dq_pretokenizer *p)
{
    for (int i = 0; i < p->n_steps; i++) pcre2_code_free(p->step[i].regex.code);
    *p = (dq_pretokenizer){0};
}
