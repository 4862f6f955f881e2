/* pretokenize: see pretokenize.h.
 * SPDX-License-Identifier: MIT */
#include "pretokenize.h"

#include "utf8.h"

#include <string.h>

/* ByteLevel's own pattern. Source: tokenizers pre_tokenizers/byte_level.rs (GPT-2). */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum { JIT_STACK = 128 << 20 };

static const bool no = false, yes = true;

/* NULL with DQ_MISMATCH when there are too many. */
static dq_split_step *add_step(dq_pretokenizer *p, dq_err *err)
{
    if (p->n_steps < DQ_MAX_STEPS) return &p->step[p->n_steps++];
    dq_fail(err, DQ_MISMATCH, "more than %d pre_tokenizer steps are not supported", DQ_MAX_STEPS);
    return NULL;
}

static dq_status load_byte_level(dq_pretokenizer *p, const json_t *v, dq_arena *a, dq_err *err)
{
    bool regex;
    dq_split_step *s = add_step(p, err);
    if (!s) return err->code;
    DQ_TRY(dq_json_bool(&s->prefix_space, v, "add_prefix_space", NULL, err));
    DQ_TRY(dq_json_bool(&regex, v, "use_regex", &yes, err));
    if (!regex) return DQ_OK;
    return dq_pattern_compile(&s->code, &s->jit, gpt2_pattern, strlen(gpt2_pattern), a, err);
}

static dq_status load_pattern(dq_split_step *s, const json_t *v, dq_arena *a, dq_err *err)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = json_object_get(pattern, "String");
    if (json_is_string(regex) && !text)
        return dq_pattern_compile(&s->code, &s->jit, json_string_value(regex),
                                  json_string_length(regex), a, err);
    if (json_is_string(text) && !regex)
        return dq_pattern_literal(&s->code, &s->jit, json_string_value(text),
                                  json_string_length(text), a, err);
    return dq_fail(err, DQ_DAMAGED,
                   "pre_tokenizer Split: \"pattern\" is not {\"Regex\": ...} or {\"String\": ...}");
}

static dq_status load_split(dq_pretokenizer *p, const json_t *v, dq_arena *a, dq_err *err)
{
    const char *behavior;
    bool invert;
    dq_split_step *s = add_step(p, err);
    if (!s) return err->code;
    DQ_TRY(dq_json_text(&behavior, v, "behavior", NULL, err));
    DQ_TRY(dq_json_bool(&invert, v, "invert", &no, err));
    if (strcmp(behavior, "Removed") == 0) {
        s->drop_gaps = invert;
        s->drop_matches = !invert;
    } else if (strcmp(behavior, "Isolated") != 0) {
        return dq_fail(err, DQ_MISMATCH,
                       "pre_tokenizer Split with behavior \"%s\" is not supported yet", behavior);
    }
    return load_pattern(s, v, a, err);
}

static dq_status load_digits(dq_pretokenizer *p, const json_t *v, dq_arena *a, dq_err *err)
{
    bool single;
    dq_split_step *s = add_step(p, err);
    if (!s) return err->code;
    DQ_TRY(dq_json_bool(&single, v, "individual_digits", &no, err));
    return dq_pattern_compile(&s->code, &s->jit, single ? "\\p{N}" : "\\p{N}+", single ? 5 : 6, a,
                              err);
}

/* *type is the last step's. */
static dq_status load_one(dq_pretokenizer *p, const json_t *v, const char **type, dq_arena *a,
                          dq_err *err)
{
    if (!json_is_object(v)) return dq_fail(err, DQ_DAMAGED, "a pre_tokenizer is not an object");
    DQ_TRY(dq_json_text(type, v, "type", NULL, err));
    if (strcmp(*type, "ByteLevel") == 0) return load_byte_level(p, v, a, err);
    if (strcmp(*type, "Split") == 0) return load_split(p, v, a, err);
    if (strcmp(*type, "Digits") == 0) return load_digits(p, v, a, err);
    return dq_fail(err, DQ_MISMATCH, "pre_tokenizer type \"%s\" is not supported yet", *type);
}

static dq_status load_sequence(dq_pretokenizer *p, const json_t *v, const char **type, dq_arena *a,
                               dq_err *err)
{
    const json_t *list = json_object_get(v, "pretokenizers");
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "pre_tokenizer Sequence has no list \"pretokenizers\"");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (strcmp(*type, "ByteLevel") == 0) /* what follows would see mapped bytes */
            return dq_fail(err, DQ_MISMATCH,
                           "a pre_tokenizer step behind ByteLevel is not supported yet");
        DQ_TRY(load_one(p, json_array_get(list, i), type, a, err));
    }
    return DQ_OK;
}

dq_status dq_pretokenizer_load(dq_pretokenizer *p, const json_t *value, dq_arena *a, dq_err *err)
{
    const char *type = "none";
    const json_t *kind = json_object_get(value, "type");
    if (json_is_string(kind) && strcmp(json_string_value(kind), "Sequence") == 0) {
        DQ_TRY(load_sequence(p, value, &type, a, err));
    } else if (value && !json_is_null(value)) {
        DQ_TRY(load_one(p, value, &type, a, err));
    }
    if (strcmp(type, "ByteLevel") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "a pre_tokenizer that does not end in ByteLevel is not supported yet "
                       "(last step: %s)",
                       type);
    return DQ_OK;
}

void dq_pretokenizer_free(dq_pretokenizer *p)
{
    for (int i = 0; i < p->n_steps; i++) pcre2_code_free(p->step[i].code);
    *p = (dq_pretokenizer){0};
}

static dq_status no_memory(dq_err *err)
{
    return dq_fail(err, DQ_RESOURCE, "out of memory (matching a pattern)");
}

static dq_status prepare(dq_pretokenize_run *run, int k, dq_err *err)
{
    if (!run->context) {
        run->context = pcre2_match_context_create(NULL);
        if (!run->context) return no_memory(err);
    }
    if (!run->match[k]) {
        run->match[k] = pcre2_match_data_create(1, NULL);
        if (!run->match[k]) return no_memory(err);
    }
    return DQ_OK;
}

static int match_once(dq_pretokenize_run *run, int k, const char *text, size_t len, size_t at,
                      uint32_t options)
{
    const dq_split_step *s = &run->p->step[k];
    if (s->jit)
        return pcre2_jit_match(s->code, (PCRE2_SPTR)text, len, at, options, run->match[k],
                               run->context);
    return pcre2_match(s->code, (PCRE2_SPTR)text, len, at, options | PCRE2_NO_UTF_CHECK,
                       run->match[k], run->context);
}

/* First match at or behind `at`; *found is false when there is none. */
static dq_status match(dq_pretokenize_run *run, int k, const char *text, size_t len, size_t at,
                       bool *found, dq_err *err)
{
    int rc = match_once(run, k, text, len, at, 0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !run->stack) {
        /* The machine stack sufficed until now; groups repeated over long runs need more. Only
         * what is used becomes resident. */
        run->stack = pcre2_jit_stack_create((size_t)64 << 10, JIT_STACK, NULL);
        if (!run->stack) return no_memory(err);
        pcre2_jit_stack_assign(run->context, NULL, run->stack);
        rc = match_once(run, k, text, len, at, 0);
    }
    *found = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return DQ_OK;
    PCRE2_UCHAR message[160] = "";
    pcre2_get_error_message(rc, message, sizeof message);
    return dq_fail(
        err, DQ_RESOURCE,
        "matching the pre_tokenizer pattern on a piece of %zu bytes failed: PCRE2 says: %s", len,
        (const char *)message);
}

static dq_status from_step(dq_pretokenize_run *run, int k, const char *text, size_t len,
                           dq_err *err);

/* Cuts as the reference's iterator does: an empty match cuts too, except right behind a match. */
static dq_status cut(dq_pretokenize_run *run, int k, const char *text, size_t len, dq_err *err)
{
    const dq_split_step *s = &run->p->step[k];
    size_t done = 0; /* end of the last match */
    bool any = false;
    DQ_TRY(prepare(run, k, err));
    uint64_t limit = UINT64_C(10000000) + 64 * (uint64_t)len;
    pcre2_set_match_limit(run->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    for (size_t at = 0; at <= len;) {
        bool found = false;
        DQ_TRY(match(run, k, text, len, at, &found, err));
        if (!found) break;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(run->match[k]);
        size_t begin = span[0], end = span[1];
        if (begin == end && any && end == done) {
            size_t used = 1;
            if (at < len) dq_utf8_first(text + at, &used);
            at += used;
            continue;
        }
        if (begin > done && !s->drop_gaps)
            DQ_TRY(from_step(run, k + 1, text + done, begin - done, err));
        if (end > begin && !s->drop_matches)
            DQ_TRY(from_step(run, k + 1, text + begin, end - begin, err));
        at = done = end;
        any = true;
    }
    if (len > done && !s->drop_gaps) DQ_TRY(from_step(run, k + 1, text + done, len - done, err));
    return DQ_OK;
}

static dq_status with_space(dq_pretokenize_run *run, int k, const char **text, size_t *len,
                            dq_err *err)
{
    if (run->prefixed_room[k] < *len + 1) {
        dq_block_free(run->prefixed[k]);
        run->prefixed_room[k] = 0;
        run->prefixed[k] = dq_block_new(*len + *len / 4 + 1, 1, err);
        if (!run->prefixed[k]) return err->code;
        run->prefixed_room[k] = *len + *len / 4 + 1;
    }
    run->prefixed[k][0] = ' ';
    memcpy(run->prefixed[k] + 1, *text, *len);
    *text = run->prefixed[k];
    *len += 1;
    return DQ_OK;
}

static dq_status from_step(dq_pretokenize_run *run, int k, const char *text, size_t len,
                           dq_err *err)
{
    if (k == run->p->n_steps) return run->word(run->arg, text, len, err);
    const dq_split_step *s = &run->p->step[k];
    if (s->prefix_space && text[0] != ' ') DQ_TRY(with_space(run, k, &text, &len, err));
    if (!s->code) return from_step(run, k + 1, text, len, err);
    return cut(run, k, text, len, err);
}

dq_status dq_pretokenize(dq_pretokenize_run *run, const char *text, size_t len, dq_err *err)
{
    return len ? from_step(run, 0, text, len, err) : DQ_OK;
}

void dq_pretokenize_end(dq_pretokenize_run *run)
{
    for (int k = 0; k < DQ_MAX_STEPS; k++) {
        pcre2_match_data_free(run->match[k]);
        dq_block_free(run->prefixed[k]);
    }
    pcre2_match_context_free(run->context);
    pcre2_jit_stack_free(run->stack);
    *run = (dq_pretokenize_run){0};
}
