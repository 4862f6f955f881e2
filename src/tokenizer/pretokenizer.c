/* pretokenizer: see pretokenizer.h. Each piece goes through the steps depth first: what step k cuts off goes to
 * step k + 1 at once, and after the last step it is a word. So nothing but the text being rewritten is stored,
 * however long it is.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/pretokenizer.h"
#include "base/text.h"

#include "base/os.h"

#include <string.h>

/* One piece being cut by one step. */
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

/* One gap or match, in order. Which neighbours become one span: tokenizers
 * tokenizer/normalizer.rs split. */
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

/* 0: white space, 1: of a word, 2: something else. */
static int kind_of(uint32_t c)
{
    return dq_utf8_is_space(c) ? 0 : dq_utf8_is_word(c) ? 1 : 2;
}

/* First delimiter at or after `at`; false: none. */
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

static dq_status cut(dq_pretokenizer_run *run, int k, const char *text, size_t len, bool first,
                     dq_err *err)
{
    const dq_pretokenizer_step *s = &run->p->step[k];
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

/* run->changed[k] gets room for len bytes. */
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

/* Spaces become the step's sign, and the sign comes in front. */
static dq_status rewrite(dq_pretokenizer_run *run, int k, const char **text, size_t *len,
                         bool first, dq_err *err)
{
    const dq_pretokenizer_step *s = &run->p->step[k];
    const char *in = *text;
    size_t n = *len, spaces = 0, at = 0;
    bool has = n >= s->c8_len && memcmp(in, s->c8, s->c8_len) == 0;
    if (s->spaces && in[0] == ' ') has = true;
    bool prefix = !has && (s->prefix == DQ_ALWAYS || (s->prefix == DQ_FIRST && first));
    for (size_t i = 0; s->spaces && i < n; i++) spaces += in[i] == ' ';
    if (!prefix && !spaces) return DQ_OK;
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
    *text = out;
    *len = at;
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
    if (s->prefix != DQ_NEVER || s->spaces) DQ_TRY(rewrite(run, k, &text, &len, first, err));
    if (s->by == DQ_NO_CUT) return from_step(run, k + 1, text, len, first, err);
    return cut(run, k, text, len, first, err);
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
