/* prequant_match: which module of the configuration a weight is. Every word is tried on all weights, one word after the other,
 * so that a pattern is compiled once. Of a compressed-tensors group a module's own name goes before a pattern, and that before
 * the name of a class; of "dynamic" the first pattern that matches decides, as the packages that write them have it.
 *
 * Source: compressed-tensors utils/match.py, GPTQModel quantization/config.py (dynamic_get).
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "checkpoint/prequant_format.h"

#include <pcre2.h>
#include <string.h>

dq_status dq_prequant_config_name(dq_prequant_config *c, dq_prequant_word word, dq_arena *a,
                                  dq_err *err)
{
    dq_prequant_word *list =
        dq_grow(a, c->word, (size_t)c->n_words + 1, &c->word_capacity, sizeof *list, err);
    if (!list) return err->code;
    c->word = list;
    c->word[c->n_words++] = word;
    return DQ_OK;
}

dq_status dq_prequant_config_names(dq_prequant_config *c, dq_prequant_word word, const json_t *list,
                                   dq_arena *a, dq_err *err)
{
    const json_t *item;
    size_t i;
    if (!list || json_is_null(list)) return DQ_OK;
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected an array of names", word.key);
    json_array_foreach(list, i, item)
    {
        word.text = json_string_value(item);
        if (!word.text || strlen(word.text) != json_string_length(item))
            return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected an array of names", word.key);
        DQ_TRY(dq_prequant_config_name(c, word, a, err));
    }
    return DQ_OK;
}

/* ---- One word ---- */

typedef struct pattern {
    pcre2_code *re; /* NULL: the text is a name */
    pcre2_match_data *data;
    const char *text;
} pattern;

enum { NOT_NAMED, BY_CLASS, BY_PATTERN, BY_NAME };

static dq_status compile(pattern *p, const dq_prequant_word *w, dq_err *err)
{
    const char *text = w->text;
    int code;
    PCRE2_SIZE at;
    *p = (pattern){.text = w->text};
    if (w->kind == DQ_PREQUANT_DYNAMIC) {
        if (strncmp(text, "+:", 2) == 0 || strncmp(text, "-:", 2) == 0) text += 2;
    } else {
        if (w->kind == DQ_PREQUANT_PART_OF || strncmp(text, "re:", 3) != 0) return DQ_OK;
        text += 3;
    }
    p->re = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED,
                          &code, &at, NULL);
    p->data = p->re ? pcre2_match_data_create_from_pattern(p->re, NULL) : NULL;
    if (p->data) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": \"%s\" is no regular expression", w->key, w->text);
}

static void end(pattern *p)
{
    pcre2_match_data_free(p->data);
    pcre2_code_free(p->re);
}

/* Whole parts of a name between dots. */
static bool is_part(const char *name, const char *part)
{
    const size_t n = strlen(part);
    for (const char *p = name; n && (p = strstr(p, part)); p++) {
        if ((p == name || p[-1] == '.') && (p[n] == 0 || p[n] == '.')) return true;
    }
    return false;
}

/* The class that the packages see at a module of this name. */
static bool is_class(const char *name, const char *word)
{
    static const char embedding[] = "embed_tokens";
    const size_t n = strlen(name), k = sizeof embedding - 1;
    const bool embeds = n >= k && strcmp(name + n - k, embedding) == 0;
    return strcmp(word, embeds ? "Embedding" : "Linear") == 0;
}

static int match(const pattern *p, const dq_prequant_word *w, const char *name, dq_err *err)
{
    if (w->kind == DQ_PREQUANT_PART_OF) return is_part(name, p->text) ? BY_NAME : NOT_NAMED;
    if (!p->re)
        return strcmp(p->text, name) == 0 ? BY_NAME
               : is_class(name, p->text)  ? BY_CLASS
                                          : NOT_NAMED;
    const int got = pcre2_match(p->re, (PCRE2_SPTR)name, strlen(name), 0, 0, p->data, NULL);
    if (got < 0 && got != PCRE2_ERROR_NOMATCH)
        dq_fail(err, DQ_MISMATCH, "key \"%s\": \"%s\" cannot be tried on \"%s\" (PCRE2 %d)", w->key,
                w->text, name, got);
    return got >= 0 ? BY_PATTERN : NOT_NAMED;
}

/* ---- All words on all weights ---- */

static dq_status refuse_stored(const dq_prequant_linear *l, const dq_prequant_word *w, dq_err *err)
{
    return dq_fail(err, DQ_MISMATCH,
                   "tensor \"%s\" is quantized, but quantization_config leaves it out: \"%s\" has "
                   "\"%s\"",
                   l->part[DQ_PREQUANT_CODES]->name, w->key, w->text);
}

static dq_status take(dq_prequant_linear *l, const dq_prequant_word *w, int how, dq_err *err)
{
    const bool first = w->kind == DQ_PREQUANT_DYNAMIC; /* decides */
    if (first && l->named) return DQ_OK;
    if (w->scheme < 0) return refuse_stored(l, w, err);
    if (l->named && how == l->named && l->by->scheme != w->scheme)
        return dq_fail(err, DQ_MISMATCH,
                       "tensor \"%s\": two groups of quantization_config store it in two ways: "
                       "\"%s\" has \"%s\", \"%s\" has \"%s\"",
                       l->part[DQ_PREQUANT_CODES]->name, l->by->key, l->by->text, w->key, w->text);
    if (how <= l->named) return DQ_OK;
    l->named = how;
    l->by = w;
    l->schemes = UINT32_C(1) << w->scheme;
    return DQ_OK;
}

static dq_status try_word(dq_prequant_linear *linear, int64_t n, const dq_prequant_word *w,
                          dq_err *err)
{
    pattern p;
    compile(&p, w, err);
    for (int64_t i = 0; i < n && err->code == DQ_OK; i++) {
        const int how = match(&p, w, linear[i].name, err);
        if (how != NOT_NAMED && err->code == DQ_OK) take(&linear[i], w, how, err);
    }
    end(&p);
    return err->code;
}

dq_status dq_prequant_match(dq_prequant_linear *linear, int64_t n, const dq_prequant_config *c,
                            dq_err *err)
{
    for (int i = 0; i < c->n_words; i++) DQ_TRY(try_word(linear, n, &c->word[i], err));
    for (int64_t i = 0; i < n; i++) {
        dq_prequant_linear *l = &linear[i];
        if (l->named) continue;
        l->schemes = c->unnamed;
        if (!l->schemes)
            return dq_fail(err, DQ_MISMATCH,
                           "tensor \"%s\" is quantized, but no group of quantization_config has "
                           "\"%s\" among its \"targets\"",
                           l->part[DQ_PREQUANT_CODES]->name, l->name);
    }
    return DQ_OK;
}
