/* Quant_method chooses the row that reads the rest. What a program cannot leave out without
 * changing the weights is refused by name, what concerns activations alone is said as a warning.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "checkpoint/inside.h"

#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Words for n fields, packed without gaps or `per` to a word. */
static inline int64_t words_for(int64_t n, int bits, int per)
{
    return per ? (n + per - 1) / per : (n * bits + 31) / 32;
}

static inline bool is_matrix(const dq_tensor *t, int64_t rows, int64_t cols)
{
    return t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

static const dq_prequant_format dq_prequant_compressed, dq_prequant_gptq, dq_prequant_awq;

static const dq_prequant_format *const formats[] = {&dq_prequant_compressed, &dq_prequant_gptq,
                                                    &dq_prequant_awq};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static dq_status refuse(const char *key, const char *word, dq_err *err)
{
    return dq_fail(
        err, DQ_MISMATCH,
        "key \"%s\": \"%s\" is not read (read: %s, %s, %s). Use the original checkpoint.", key,
        word, formats[0]->reads, formats[1]->reads, formats[2]->reads);
}

/* Adds a scheme unless an equal one exists; DQ_MISMATCH: an unsupported width or group. */
static dq_status add_scheme(dq_prequant_config *c, int64_t bits, dq_prequant_scheme s, dq_err *err)
{
    if (bits < 2 || bits > 8)
        return dq_fail(err, DQ_MISMATCH, "weights of %lld bits are not read (2 to 8 are)",
                       (long long)bits);
    if (s.group < 1 && s.group != DQ_GROUP_ROW && s.group != DQ_GROUP_TENSOR)
        return dq_fail(err, DQ_DAMAGED, "a group of %lld columns (expected -1, or at least 1)",
                       (long long)s.group);
    s.bits = (int)bits;
    for (int i = 0; i < c->n_schemes; i++) {
        dq_prequant_scheme *x = &c->scheme[i];
        if (x->bits != s.bits || x->group != s.group || x->any_zero != s.any_zero) continue;
        c->added = i;
        x->any_index = x->any_index || s.any_index;
        x->needs_index = x->needs_index && s.needs_index;
        return DQ_OK;
    }
    if (c->n_schemes == DQ_PREQUANT_SCHEMES)
        return dq_fail(err, DQ_MISMATCH, "more than %d ways of storing weights",
                       DQ_PREQUANT_SCHEMES);
    c->added = c->n_schemes;
    c->scheme[c->n_schemes++] = s;
    return DQ_OK;
}

dq_status dq_prequant_config_read(dq_prequant_config *c, const json_t *config, dq_arena *a,
                                  dq_err *err)
{
    const char *method = NULL;
    if (!json_is_object(config)) return dq_fail(err, DQ_DAMAGED, "expected an object");
    if (!json_object_get(config, "quant_method"))
        return dq_fail(err, DQ_MISMATCH,
                       "key \"quant_method\" is missing, so that nothing says how the weights are "
                       "quantized. Use the original checkpoint.");
    DQ_TRY(dq_json_text(&method, config, "quant_method", NULL, err));
    for (int i = 0; i < N_FORMATS; i++) {
        if (strcasecmp(formats[i]->method, method) != 0) continue;
        c->format = formats[i];
        return c->format->read(c, config, a, err);
    }
    return refuse("quant_method", method, err);
}

/* Every entry of the configuration is tried on all weights in turn, so that a pattern is compiled
 * once. In a compressed-tensors group a module's own name beats a pattern, and that a class name;
 * of "dynamic" the first matching pattern decides.
 * Source: compressed-tensors utils/match.py, GPTQModel quantization/config.py (dynamic_get). */

/* Adds an entry, or all of an array (NULL or null: none); DQ_DAMAGED: not texts. */
static dq_status add_word(dq_prequant_config *c, dq_prequant_word word, dq_arena *a, dq_err *err)
{
    dq_prequant_word *list =
        dq_grow(a, c->word, (size_t)c->n_words + 1, &c->word_capacity, sizeof *list, err);
    if (!list) return err->code;
    c->word = list;
    c->word[c->n_words++] = word;
    return DQ_OK;
}

static dq_status add_words(dq_prequant_config *c, dq_prequant_word word, const json_t *list,
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
        DQ_TRY(add_word(c, word, a, err));
    }
    return DQ_OK;
}

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
        if (w->kind == DQ_PREQUANT_NAME_HAS || strncmp(text, "re:", 3) != 0) return DQ_OK;
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

static bool has_name(const char *name, const char *part)
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
    if (w->kind == DQ_PREQUANT_NAME_HAS) return has_name(name, p->text) ? BY_NAME : NOT_NAMED;
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

static dq_status take(dq_prequant_linear *l, const dq_prequant_word *w, int how, dq_err *err)
{
    const bool first = w->kind == DQ_PREQUANT_DYNAMIC; /* decides */
    if (first && l->named) return DQ_OK;
    if (w->scheme < 0)
        return dq_fail(
            err, DQ_MISMATCH,
            "tensor \"%s\" is quantized, but quantization_config leaves it out: \"%s\" has \"%s\"",
            l->tensor[DQ_PREQUANT_CODES]->name, w->key, w->text);
    if (l->named && how == l->named && l->by->scheme != w->scheme)
        return dq_fail(err, DQ_MISMATCH,
                       "tensor \"%s\": two groups of quantization_config store it in two ways: "
                       "\"%s\" has \"%s\", \"%s\" has \"%s\"",
                       l->tensor[DQ_PREQUANT_CODES]->name, l->by->key, l->by->text, w->key,
                       w->text);
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

/* DQ_MISMATCH: a weight that the configuration leaves out, does not name, or stores in two ways. */
static dq_status match_all(dq_prequant_linear *linear, int64_t n, const dq_prequant_config *c,
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
                           l->tensor[DQ_PREQUANT_CODES]->name, l->name);
    }
    return DQ_OK;
}

/* A stream down a column of words is transposed word by word; AWQ's words, which hold eight rows of
 * a column, eight at a time; the rest goes code by code. */

enum { LINE_WORDS = 16 }; /* words of a cache line: so many columns of words are turned at once */

static uint32_t word_at(const uint8_t *data, int64_t i)
{
    uint32_t x;
    memcpy(&x, data + 4 * i, sizeof x);
    return x;
}

static void put_word(uint8_t *data, int64_t i, uint32_t x)
{
    memcpy(data + 4 * i, &x, sizeof x);
}

static int64_t groups_of(const dq_weight *w)
{
    return dq_quant_groups(w->cols, w->group_size);
}

static dq_status check_tensors(const dq_prequant_linear *l, const dq_prequant_format *f,
                               dq_err *err)
{
    for (int i = 0; i < DQ_PREQUANT_TENSORS; i++) {
        const dq_tensor *t = l->tensor[i];
        if (!t && f->needed[i])
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s%s\" is missing, \"%s%s\" is there",
                           l->name, f->suffix[i], l->name, f->suffix[DQ_PREQUANT_CODES]);
        if (!t) continue;
        if (f->dtype[i] != DQ_DTYPE_COUNT && f->dtype[i] != t->dtype)
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": wrong type (expected %s, found %s)",
                           t->name, dq_dtypes[f->dtype[i]].name, dq_dtypes[t->dtype].name);
        if (dq_tensor_numel(t) == 0)
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": no elements", t->name);
    }
    const dq_tensor *scales = l->tensor[DQ_PREQUANT_SCALES], *index = l->tensor[DQ_PREQUANT_INDEX];
    if (scales->dtype != DQ_F16 && scales->dtype != DQ_BF16 && scales->dtype != DQ_F32)
        return dq_fail(err, DQ_MISMATCH,
                       "tensor \"%s\": dtype %s is not supported (supported: F32, F16, BF16)",
                       scales->name, dq_dtypes[scales->dtype].name);
    if (index && index->n_dims != 1)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %d dimensions (expected 1)", index->name,
                       index->n_dims);
    return DQ_OK;
}

static dq_status fit_linear(dq_prequant_linear *l, const dq_prequant_config *c, dq_err *err)
{
    const char *why = NULL, *reason = NULL;
    dq_prequant_linear found = {0};
    DQ_TRY(check_tensors(l, c->format, err));
    for (int i = 0; i < c->n_schemes; i++) {
        dq_prequant_linear trial = *l;
        if (!(l->schemes >> i & 1)) continue;
        why = c->format->fit(&trial, &c->scheme[i]);
        if (why && !reason) reason = why;
        if (why) continue;
        trial.any_zero = c->scheme[i].any_zero;
        trial.any_index = c->scheme[i].any_index;
        trial.needs_index = c->scheme[i].needs_index && (found.w.rows == 0 || found.needs_index);
        const dq_weight *a = &found.w, *b = &trial.w;
        if (a->rows && (a->bits != b->bits || a->group_size != b->group_size ||
                        a->scale_rows != b->scale_rows || a->cols != b->cols))
            return dq_fail(err, DQ_MISMATCH,
                           "tensor \"%s\" fits several of the ways that quantization_config names",
                           l->tensor[DQ_PREQUANT_CODES]->name);
        trial.any_zero = trial.any_zero || found.any_zero;
        trial.any_index = trial.any_index || found.any_index;
        found = trial;
    }
    if (found.w.rows == 0) {
        int first = 0;
        while (first + 1 < c->n_schemes && !(l->schemes >> first & 1)) first++;
        const dq_prequant_scheme *s = &c->scheme[first];
        char group[32] = "for each row";
        if (s->group == DQ_GROUP_TENSOR) strcpy(group, "for the tensor");
        if (s->group > 0) snprintf(group, sizeof group, "for %lld columns", (long long)s->group);
        return dq_fail(err, DQ_MISMATCH,
                       "tensor \"%s\" and those beside it are not what quantization_config says "
                       "(%d bits, a scale %s%s): %s",
                       l->tensor[DQ_PREQUANT_CODES]->name, s->bits, group,
                       l->schemes >> first > 1 ? ", or others" : "", reason);
    }
    *l = found;
    const dq_tensor *index = l->tensor[DQ_PREQUANT_INDEX];
    if (!index && l->needs_index && groups_of(&l->w) > 1)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s%s\" is missing, but quantization_config says that columns were "
                       "ordered by their activations",
                       l->name, c->format->suffix[DQ_PREQUANT_INDEX]);
    if (index && index->shape[0] != l->w.cols)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %lld columns (expected %lld)", index->name,
                       (long long)index->shape[0], (long long)l->w.cols);
    return DQ_OK;
}

/* Scales are widened to f32 or transposed. */
static bool scales_lie_in_rows(const dq_prequant_linear *l)
{
    const int64_t groups = groups_of(&l->w);
    return l->tensor[DQ_PREQUANT_SCALES]->dtype != DQ_BF16 && l->scale_row == groups &&
           (groups == 1 || l->scale_group == 1);
}

static dq_status size_of(dq_prequant_linear *l, dq_prequant_tensor which, int64_t rows,
                         size_t row_bytes, dq_err *err)
{
    if (dq_mul_ok(&l->own_bytes[which], (size_t)rows, row_bytes)) return DQ_OK;
    return dq_fail(err, DQ_RESOURCE, "tensor \"%s\": does not fit in memory",
                   l->tensor[which]->name);
}

static int64_t first_word(const dq_prequant_words *x, int64_t stream, int64_t i, int *at)
{
    const int64_t bit = i * x->bits;
    const int inside = x->per_word ? (int)(i % x->per_word) : 0;
    *at = x->per_word ? (x->order ? x->order[inside] : inside) * x->bits : (int)(bit % 32);
    return stream * x->next + (x->per_word ? i / x->per_word : bit / 32) * x->step;
}

static unsigned field(const dq_prequant_words *x, int64_t stream, int64_t i)
{
    int at;
    const int64_t word = first_word(x, stream, i, &at);
    uint32_t u = word_at(x->data, word) >> at;
    if (at + x->bits > 32) u |= word_at(x->data, word + x->step) << (32 - at);
    return u & ((1u << x->bits) - 1);
}

static void turn_words(dq_prequant_linear *l)
{
    const dq_prequant_words *x = &l->codes;
    const size_t row_bytes = dq_quant_row_bytes(l->w.cols, l->w.bits);
    const int64_t words = (int64_t)row_bytes / 4;
    for (int64_t r0 = 0; r0 < l->w.rows; r0 += LINE_WORDS) {
        const int64_t end = r0 + LINE_WORDS < l->w.rows ? r0 + LINE_WORDS : l->w.rows;
        for (int64_t k = 0; k < words; k++) {
            for (int64_t r = r0; r < end; r++)
                put_word(l->own[DQ_PREQUANT_CODES] + (size_t)r * row_bytes, k,
                         word_at(x->data, k * x->step + r * x->next));
        }
    }
}

/* Eight words of 4-bit codes, for columns k .. k + 7, become one word for each of their eight
 * rows. */
static void turn_eight(dq_prequant_linear *l, int64_t k, int64_t word)
{
    enum { N = 8 };
    const dq_prequant_words *x = &l->codes;
    const size_t row_bytes = dq_quant_row_bytes(l->w.cols, l->w.bits);
    uint32_t from[N] = {0};
    for (int i = 0; i < N && k + i < l->w.cols; i++)
        from[i] = word_at(x->data, (k + i) * x->next + word * x->step);
    for (int j = 0; j < N; j++) {
        const int at = 4 * x->order[j];
        uint32_t to = 0;
        for (int i = 0; i < N; i++) to |= (from[i] >> at & 15u) << 4 * i;
        put_word(l->own[DQ_PREQUANT_CODES] + (size_t)(word * N + j) * row_bytes, k / N, to);
    }
}

static void code_by_code(dq_prequant_linear *l)
{
    const dq_weight *w = &l->w;
    const size_t row_bytes = dq_quant_row_bytes(w->cols, w->bits);
    int8_t *q = dq_block_new(1, (size_t)w->cols, &l->err);
    for (int64_t r = 0; q && r < w->rows; r++) {
        for (int64_t c = 0; c < w->cols; c++)
            q[c] = (int8_t)((int)field(&l->codes, r, c) - (1 << (w->bits - 1)));
        dq_quant_pack_row(l->own[DQ_PREQUANT_CODES] + (size_t)r * row_bytes, q, w->cols, w->bits);
    }
    dq_block_free(q);
}

/* v1 lowered zero points as whole words and is raised likewise; 3-bit fields one by one. */
static int stored_zero(dq_prequant_linear *l, const dq_prequant_config *c, int64_t r, int64_t g)
{
    const dq_prequant_words *x = &l->zeros;
    const unsigned top = (1u << l->w.bits) - 1;
    if (l->signed_zeros) return l->signed_zeros[r * groups_of(&l->w) + g] + (1 << (l->w.bits - 1));
    const unsigned u = field(x, g, r);
    if (!c->zero_shift) return (int)u;
    l->n_wrapped += u == top;
    if (32 % l->w.bits) return (int)((u + 1) & top);
    int at;
    const int64_t word = first_word(x, g, r, &at);
    return (int)((word_at(x->data, word) + UINT32_MAX / top) >> at & top);
}

static bool zero_is_wrong(dq_prequant_linear *l, int zero, int64_t r, int64_t g)
{
    const int middle = 1 << (l->w.bits - 1);
    const char *name = l->tensor[DQ_PREQUANT_ZEROS]->name;
    if (zero < 0 || zero >= 2 * middle)
        dq_fail(&l->err, DQ_DAMAGED,
                "tensor \"%s\": the zero point of row %lld, group %lld does not fit %d bits", name,
                (long long)r, (long long)g, l->w.bits);
    else if (zero != middle && !l->any_zero)
        dq_fail(&l->err, DQ_MISMATCH,
                "tensor \"%s\": the zero point of row %lld, group %lld is %d, but "
                "quantization_config says that the codes are symmetric (expected %d)",
                name, (long long)r, (long long)g, zero, middle);
    return l->err.code != DQ_OK;
}

static void fill_zeros(dq_prequant_linear *l, const dq_prequant_config *c)
{
    dq_weight *w = &l->w;
    const int64_t groups = groups_of(w);
    const size_t row_bytes = dq_weight_zero_bytes(groups, w->bits);
    bool all_middle = true;
    for (int64_t r = 0; r < w->scale_rows; r++) {
        uint8_t *row = l->own[DQ_PREQUANT_ZEROS] + (size_t)r * row_bytes;
        for (int64_t g = 0; g < groups; g++) {
            const int zero = stored_zero(l, c, r, g);
            const int64_t bit = g * w->bits;
            if (zero_is_wrong(l, zero, r, g)) return;
            all_middle = all_middle && zero == 1 << (w->bits - 1);
            const unsigned u = (unsigned)zero << bit % 8;
            row[bit / 8] = (uint8_t)(row[bit / 8] | u);
            if (u > 255) row[bit / 8 + 1] = (uint8_t)(row[bit / 8 + 1] | u >> 8);
        }
    }
    if (!all_middle) w->zero = l->own[DQ_PREQUANT_ZEROS];
}

/* Runs of columns, or -1 throughout, need no index. */
static void fill_index(dq_prequant_linear *l)
{
    dq_weight *w = &l->w;
    const dq_tensor *t = l->tensor[DQ_PREQUANT_INDEX];
    const int64_t groups = groups_of(w);
    int32_t *to = (int32_t *)(void *)l->own[DQ_PREQUANT_INDEX];
    bool runs = true, none = true;
    memcpy(to, t->data, (size_t)w->cols * sizeof *to);
    for (int64_t c = 0; c < w->cols; c++) none = none && to[c] == -1;
    for (int64_t c = 0; c < w->cols && !none; c++) {
        runs = runs && to[c] == c / w->group_size;
        if (to[c] >= 0 && to[c] < groups) continue;
        dq_fail(&l->err, DQ_DAMAGED, "tensor \"%s\": group %d of column %lld (there are %lld)",
                t->name, to[c], (long long)c, (long long)groups);
        return;
    }
    if (runs) return;
    w->index = to;
    if (!l->any_index)
        dq_fail(&l->err, DQ_MISMATCH,
                "tensor \"%s\": groups are not runs of columns, but quantization_config names no "
                "order (actorder) of that kind",
                t->name);
}

/* Zero points and index tell the weight's format; runs on one thread, errors in l->err. */
static void read_linear(dq_prequant_linear *l, const dq_prequant_config *c)
{
    dq_weight *w = &l->w;
    if (l->own_bytes[DQ_PREQUANT_ZEROS]) fill_zeros(l, c);
    if (l->own_bytes[DQ_PREQUANT_INDEX]) fill_index(l);
    w->format = w->index ? &dq_format_int_index : w->zero ? &dq_format_int_zero : &dq_format_int;
}

static void fill_linear(dq_prequant_linear *l, const dq_prequant_config *c)
{
    (void)c;
    const dq_dataset_row *row = &dq_format_int.dataset[0];
    const bool anew = l->own_bytes[DQ_PREQUANT_CODES] > 0;
    if (l->by_column) {
        const int64_t words = l->codes.next;
        for (int64_t first = 0; first < words; first += LINE_WORDS) {
            const int64_t end = first + LINE_WORDS < words ? first + LINE_WORDS : words;
            for (int64_t k = 0; k < l->w.cols; k += 8) {
                for (int64_t word = first; word < end; word++) turn_eight(l, k, word);
            }
        }
    } else if (anew && l->codes.per_word == 0)
        turn_words(l);
    else if (anew)
        code_by_code(l);
    const dq_dataset dataset = row->of(&l->w);
    const char *wrong = row->wrong(&dataset, DQ_ABSMAX);
    if (wrong)
        dq_fail(&l->err, DQ_DAMAGED, "tensor \"%s\": %s", l->tensor[DQ_PREQUANT_CODES]->name,
                wrong);
    dq_weight *w = &l->w;
    const dq_tensor *t = l->tensor[DQ_PREQUANT_SCALES];
    const uint8_t *from = t->data;
    const size_t size = dq_dtypes[t->dtype].bytes, stored = dq_dtypes[w->scale_dtype].bytes;
    const int64_t groups = groups_of(w);
    uint8_t *to = l->own[DQ_PREQUANT_SCALES];
    for (int64_t r = 0; r < w->scale_rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            const uint8_t *at = from + (size_t)(r * l->scale_row + g * l->scale_group) * size;
            float s = 0;
            dq_tensor_to_f32(&s, at, t->dtype, 1);
            if (!isfinite(s)) {
                dq_fail(&l->err, DQ_DAMAGED,
                        "tensor \"%s\": the scale of row %lld, group %lld is not finite", t->name,
                        (long long)r, (long long)g);
                return;
            }
            if (!to) continue;
            memcpy(to, size == stored ? (const void *)at : &s, stored);
            to += stored;
        }
    }
}

/* ---- Prequant AWQ ----
 * Version gemm, 4 bits: qweight [cols, rows / 8] and qzeros [groups, rows / 8] hold eight rows in
 * a word, the even ones before the odd ones.
 *
 * Source: AutoAWQ modules/linear/gemm.py and utils/packing_utils.py. */

enum { BITS = 4, PER_WORD = 32 / BITS };

/* Rows 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on. */
static const uint8_t place[PER_WORD] = {0, 4, 1, 5, 2, 6, 3, 7};

static dq_status check_word(const json_t *config, const char *key, const char *want, dq_err *err)
{
    const char *word = NULL;
    DQ_TRY(dq_json_text(&word, config, key, &want, err));
    return strcasecmp(word, want) == 0 ? DQ_OK : refuse(key, word, err);
}

static dq_status read_int(int64_t *x, const json_t *config, const char *key, const char *other,
                          dq_err *err)
{
    const json_t *v = json_object_get(config, key);
    return dq_json_int(x, config, v && !json_is_null(v) ? key : other, -1, INT32_MAX, NULL, err);
}

static dq_status read_config(dq_prequant_config *c, const json_t *config, dq_arena *a, dq_err *err)
{
    int64_t bits = 0, group = 0;
    c->about = "AWQ, version gemm";
    DQ_TRY(check_word(config, "version", "gemm", err));
    DQ_TRY(check_word(config, "format", "gemm", err));
    DQ_TRY(check_word(config, "checkpoint_format", "gemm", err));
    DQ_TRY(check_word(config, "pack_dtype", "int32", err));
    const json_t *backend = json_object_get(config, "backend");
    if (json_is_string(backend) && strcasecmp(json_string_value(backend), "llm-awq") == 0)
        return refuse("backend", "llm-awq", err);
    DQ_TRY(read_int(&bits, config, "bits", "w_bit", err));
    DQ_TRY(read_int(&group, config, "group_size", "q_group_size", err));
    if (bits != BITS)
        return dq_fail(err, DQ_MISMATCH, "key \"bits\": %lld is not read for awq (4 is)",
                       (long long)bits);
    c->unnamed = 1;
    DQ_TRY(add_scheme(c, bits, (dq_prequant_scheme){.group = group, .any_zero = true}, err));
    const dq_prequant_word word = {DQ_PREQUANT_NAME_HAS, "modules_to_not_convert", NULL, -1};
    return add_words(c, word, json_object_get(config, word.key), a, err);
}

static const char *fit(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *codes = l->tensor[DQ_PREQUANT_CODES], *scales = l->tensor[DQ_PREQUANT_SCALES],
                    *zeros = l->tensor[DQ_PREQUANT_ZEROS];
    dq_weight *w = &l->w;
    if (codes->n_dims != 2 || scales->n_dims != 2) return "not a matrix";
    const int64_t words = codes->shape[1];
    w->rows = words * PER_WORD;
    w->cols = codes->shape[0];
    w->bits = BITS;
    w->group_size = s->group < 1 ? w->cols : s->group;
    w->scale_rows = w->rows;
    if (w->cols % w->group_size) return "columns are no multiple of group_size";
    const int64_t groups = w->cols / w->group_size;
    if (!is_matrix(scales, groups, w->rows) || !is_matrix(zeros, groups, words))
        return "scales or qzeros do not have the shape of qweight and group_size";
    l->by_column = true;
    l->codes = (dq_prequant_words){codes->data, 1, words, BITS, PER_WORD, place};
    l->zeros = (dq_prequant_words){zeros->data, 1, words, BITS, PER_WORD, place};
    l->scale_row = 1;
    l->scale_group = w->rows;
    return NULL;
}

static const dq_prequant_format dq_prequant_awq = {
    .method = "awq",
    .reads = "awq with version gemm",
    .suffix = {".qweight", ".scales", ".qzeros", NULL, NULL},
    .needed = {true, true, true, false, false},
    .dtype = {DQ_I32, DQ_DTYPE_COUNT, DQ_I32, DQ_DTYPE_COUNT, DQ_DTYPE_COUNT},
    .read = read_config,
    .fit = fit,
};

/* ---- GPTQ ----
 * Qweight [cols * bits / 32, rows]: the codes of a row follow each other down a column of words.
 * qzeros [groups, rows * bits / 32] hold zero points along the rows, which checkpoint_format gptq
 * stores one too small. A column's group is g_idx[column].
 *
 * Source: AutoGPTQ nn_modules/qlinear, GPTQModel nn_modules/qlinear and quantization/config.py. */

static dq_status check_only(const json_t *config, dq_err *err)
{
    static const char *const int32 = "int32";
    static const bool no = false;
    const json_t *adapter = json_object_get(config, "adapter");
    const char *word = NULL;
    bool marlin = false;
    DQ_TRY(dq_json_text(&word, config, "pack_dtype", &int32, err));
    if (strcasecmp(word, int32) != 0) return refuse("pack_dtype", word, err);
    DQ_TRY(dq_json_bool(&marlin, config, "is_marlin_format", &no, err));
    if (marlin) return refuse("is_marlin_format", "true", err);
    if (adapter && !json_is_null(adapter))
        return refuse("adapter", "weights beside the codes", err);
    return DQ_OK;
}

/* Width and group are checked here, where their key is known. */
static dq_status add(dq_prequant_config *c, const json_t *object, const dq_prequant_scheme *other,
                     dq_err *err)
{
    static const bool yes = true;
    const int64_t bits = other ? other->bits : 0, group = other ? other->group : 0;
    const bool sym = other ? !other->any_zero : true, order = other && other->needs_index;
    int64_t b = 0, g = 0;
    bool s = true, ordered = false;
    DQ_TRY(dq_json_int(&b, object, "bits", 1, 64, other ? &bits : NULL, err));
    DQ_TRY(dq_json_int(&g, object, "group_size", -1, INT32_MAX, other ? &group : NULL, err));
    DQ_TRY(dq_json_bool(&s, object, "sym", other ? &sym : &yes, err));
    DQ_TRY(dq_json_bool(&ordered, object, "desc_act", &order, err));
    if (b != 2 && b != 3 && b != 4 && b != 8)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"bits\": %lld is not read for gptq (2, 3, 4 and 8 are)", (long long)b);
    const dq_prequant_scheme found = {
        .group = g, .any_zero = !s, .any_index = true, .needs_index = ordered};
    return add_scheme(c, b, found, err);
}

static dq_status gptq_read_config(dq_prequant_config *c, const json_t *config, dq_arena *a,
                                  dq_err *err)
{
    static const char *const v1 = "gptq";
    const char *key = json_is_string(json_object_get(config, "checkpoint_format"))
                          ? "checkpoint_format"
                          : "format";
    const char *word = NULL, *name;
    json_t *dynamic = json_object_get(config, "dynamic"), *other;
    DQ_TRY(dq_json_text(&word, config, "format", &v1, err));
    DQ_TRY(dq_json_text(&word, config, "checkpoint_format", &word, err));
    c->zero_shift = strcasecmp(word, v1) == 0;
    if (!c->zero_shift && strcasecmp(word, "gptq_v2") != 0) return refuse(key, word, err);
    c->about = dq_textf(a, err, "GPTQ, checkpoint_format %s", c->zero_shift ? v1 : "gptq_v2");
    if (!c->about) return err->code;
    DQ_TRY(check_only(config, err));
    DQ_TRY(add(c, config, NULL, err));
    const dq_prequant_scheme first = c->scheme[0];
    c->unnamed = 1;
    if (dynamic && !json_is_null(dynamic) && !json_is_object(dynamic))
        return dq_fail(err, DQ_DAMAGED, "key \"dynamic\": expected an object");
    json_object_foreach(dynamic, name, other)
    {
        const bool out = strncmp(name, "-:", 2) == 0;
        if (!out && !json_is_object(other))
            return dq_fail(err, DQ_DAMAGED, "\"dynamic\": \"%s\": expected an object", name);
        if (!out && add(c, other, &first, err) != DQ_OK)
            return dq_in(err, "\"dynamic\": \"%s\": ", name);
        const dq_prequant_word rule = {DQ_PREQUANT_DYNAMIC, "dynamic", name, out ? -1 : c->added};
        DQ_TRY(add_word(c, rule, a, err));
    }
    return json_is_false(json_object_get(config, "lm_head"))
               ? add_word(c, (dq_prequant_word){DQ_PREQUANT_NAME_HAS, "lm_head", "lm_head", -1}, a,
                          err)
               : DQ_OK;
}

static const char *gptq_fit(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *codes = l->tensor[DQ_PREQUANT_CODES], *scales = l->tensor[DQ_PREQUANT_SCALES],
                    *zeros = l->tensor[DQ_PREQUANT_ZEROS];
    dq_weight *w = &l->w;
    if (codes->n_dims != 2 || scales->n_dims != 2) return "not a matrix";
    if (codes->shape[0] * 32 % s->bits) return "no whole number of codes at this width";
    w->rows = codes->shape[1];
    w->cols = codes->shape[0] * 32 / s->bits;
    w->bits = s->bits;
    w->group_size = s->group < 1 || s->group > w->cols ? w->cols : s->group;
    w->scale_rows = w->rows;
    const int64_t groups = dq_quant_groups(w->cols, w->group_size),
                  words = words_for(w->rows, s->bits, 0);
    if (!is_matrix(scales, groups, w->rows))
        return "scales do not have the shape of bits and group_size";
    if (!is_matrix(zeros, groups, words)) return "qzeros do not have the shape of bits and scales";
    l->codes = (dq_prequant_words){codes->data, w->rows, 1, s->bits, 0, NULL};
    l->zeros = (dq_prequant_words){zeros->data, 1, words, s->bits, 0, NULL};
    l->scale_row = 1;
    l->scale_group = w->rows;
    return NULL;
}

static const dq_prequant_format dq_prequant_gptq = {
    .method = "gptq",
    .reads = "gptq with checkpoint_format gptq or gptq_v2",
    .suffix = {".qweight", ".scales", ".qzeros", ".g_idx", NULL},
    .needed = {true, true, true, false, false},
    .dtype = {DQ_I32, DQ_DTYPE_COUNT, DQ_I32, DQ_I32, DQ_DTYPE_COUNT},
    .read = gptq_read_config,
    .fit = gptq_fit,
};

/* ---- Compressed ----
 * Compressed-tensors, format pack-quantized: codes q + 2^(bits-1) of a row follow each other in
 * words of 32 bits, as in dq's own rows, which are mapped in place. Versions before June 2026 put
 * 32 / bits whole codes in a word; widths that do not divide 32 differ, and the width of
 * weight_packed tells which it is.
 *
 * Source: vllm-project/compressed-tensors, compressors/pack_quantized and
 * quantization/quant_args.py. */

static bool is_set(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) && !(json_is_object(v) && json_object_size(v) == 0);
}

static dq_status check_format(const json_t *object, const char *missing, dq_err *err)
{
    const char *format = NULL;
    DQ_TRY(dq_json_text(&format, object, "format", missing ? &missing : NULL, err));
    if (strcasecmp(format, "pack-quantized") == 0) return DQ_OK;
    return refuse("format", format, err);
}

static dq_status read_group(int64_t *group, const json_t *weights, dq_err *err)
{
    static const int64_t none = 0;
    static const char *const nothing = "";
    const char *strategy = NULL;
    int64_t size = 0;
    DQ_TRY(dq_json_int(&size, weights, "group_size", -1, INT32_MAX, &none, err));
    DQ_TRY(dq_json_text(&strategy, weights, "strategy", &nothing, err));
    if (!*strategy) strategy = size > 0 ? "group" : size < 0 ? "channel" : "tensor";
    *group = size;
    if (strcasecmp(strategy, "group") == 0) return DQ_OK;
    *group = strcasecmp(strategy, "channel") == 0 ? DQ_GROUP_ROW : DQ_GROUP_TENSOR;
    if (*group == DQ_GROUP_ROW || strcasecmp(strategy, "tensor") == 0) return DQ_OK;
    return refuse("strategy", strategy, err);
}

/* Of both orders by activation only "group" leaves groups that are not runs of columns. */
static dq_status read_order(bool *any_index, const json_t *weights, dq_err *err)
{
    static const char *const none = "";
    const char *order = NULL;
    const json_t *v = json_object_get(weights, "actorder");
    *any_index = json_is_true(v);
    if (json_is_boolean(v)) return DQ_OK;
    DQ_TRY(dq_json_text(&order, weights, "actorder", &none, err));
    *any_index = strcasecmp(order, "group") == 0 || strcasecmp(order, "dynamic") == 0;
    return DQ_OK;
}

static dq_status read_weights(dq_prequant_config *c, const json_t *weights, dq_err *err)
{
    static const char *const integer = "int";
    static const int64_t eight = 8;
    static const bool yes = true;
    dq_prequant_scheme s = {.bits = 0};
    const char *type = NULL;
    int64_t bits = 0;
    bool symmetric = true;
    if (!json_is_object(weights))
        return dq_fail(err, DQ_DAMAGED, "key \"weights\": expected an object");
    DQ_TRY(dq_json_text(&type, weights, "type", &integer, err));
    if (strcasecmp(type, integer) != 0) return refuse("type", type, err);
    DQ_TRY(dq_json_int(&bits, weights, "num_bits", 0, 64, &eight, err));
    DQ_TRY(dq_json_bool(&symmetric, weights, "symmetric", &yes, err));
    DQ_TRY(read_group(&s.group, weights, err));
    DQ_TRY(read_order(&s.any_index, weights, err));
    s.any_zero = !symmetric;
    s.needs_index = s.any_index;
    return add_scheme(c, bits, s, err);
}

static dq_status warn(dq_prequant_config *c, const json_t *scheme, const char *what, dq_arena *a,
                      dq_err *err)
{
    static const int64_t eight = 8;
    int64_t bits = 8;
    if (!is_set(scheme, what)) return DQ_OK;
    c->activations = true;
    DQ_TRY(dq_json_int(&bits, json_object_get(scheme, what), "num_bits", 1, 64, &eight, err));
    const char *text = dq_textf(
        a, err, "quantization_config: \"%s\" (%lld bits) is not applied: %s", what, (long long)bits,
        strcmp(what, "kv_cache_scheme") == 0
            ? "the KV cache is stored as the options of this run say"
            : "weights are as stored, activations stay in f32");
    if (!text) return err->code;
    for (int i = 0; i < c->n_warnings; i++) {
        if (strcmp(c->warnings[i], text) == 0) return DQ_OK;
    }
    if (c->n_warnings < DQ_PREQUANT_WARNINGS) c->warnings[c->n_warnings++] = text;
    return DQ_OK;
}

static dq_status read_scheme(dq_prequant_config *c, const json_t *scheme, const char *group,
                             const char *format, dq_arena *a, dq_err *err)
{
    if (!json_is_object(scheme)) return dq_fail(err, DQ_DAMAGED, "expected an object");
    if (!is_set(scheme, "weights")) return warn(c, scheme, "input_activations", a, err);
    DQ_TRY(check_format(scheme, format, err));
    DQ_TRY(read_weights(c, json_object_get(scheme, "weights"), err));
    /* Without "targets" the group has the modules that no other group names. */
    const json_t *targets = json_object_get(scheme, "targets");
    const dq_prequant_word word = {DQ_PREQUANT_TARGET, group, NULL, c->added};
    if (!targets || json_is_null(targets)) c->unnamed |= UINT32_C(1) << c->added;
    if (json_is_array(targets) && json_array_size(targets) == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"targets\" is empty, so that no module has these weights");
    DQ_TRY(add_words(c, word, targets, a, err));
    DQ_TRY(warn(c, scheme, "input_activations", a, err));
    return warn(c, scheme, "output_activations", a, err);
}

static dq_status compressed_read_config(dq_prequant_config *c, const json_t *config, dq_arena *a,
                                        dq_err *err)
{
    static const char *const dense = "dense";
    const char *format = NULL, *sparse = NULL, *name;
    json_t *groups = json_object_get(config, "config_groups"), *scheme;
    c->about = "compressed-tensors pack-quantized";
    DQ_TRY(dq_json_text(&format, config, "format", NULL, err));
    const bool mixed = strcasecmp(format, "mixed-precision") == 0; /* each group says its own */
    if (!mixed) DQ_TRY(check_format(config, NULL, err));
    if (is_set(config, "sparsity_config")) {
        DQ_TRY(dq_json_text(&sparse, json_object_get(config, "sparsity_config"), "format", &dense,
                            err));
        if (strcasecmp(sparse, dense) != 0) return refuse("sparsity_config", sparse, err);
    }
    if (is_set(json_object_get(config, "transform_config"), "config_groups"))
        return refuse("transform_config", "rotations of activations", err);
    if (!json_is_object(groups))
        return dq_fail(err, DQ_DAMAGED, "key \"config_groups\" is missing or not an object");
    json_object_foreach(groups, name, scheme)
    {
        if (read_scheme(c, scheme, name, mixed ? NULL : format, a, err) != DQ_OK)
            return dq_in(err, "\"%s\": ", name);
    }
    const dq_prequant_word left_out = {DQ_PREQUANT_TARGET, "ignore", NULL, -1};
    DQ_TRY(add_words(c, left_out, json_object_get(config, "ignore"), a, err));
    if (c->n_schemes == 0)
        return dq_fail(err, DQ_MISMATCH, "\"config_groups\" quantizes no weights");
    return warn(c, config, "kv_cache_scheme", a, err);
}

static const char *fit_codes(dq_prequant_linear *l, int bits, int64_t rows, int64_t cols)
{
    const dq_tensor *t = l->tensor[DQ_PREQUANT_CODES];
    const int per = 32 % bits ? 32 / bits : 0;
    const int64_t words = t->shape[1], dense = words_for(cols, bits, 0),
                  gaps = words_for(cols, bits, per);
    if (t->shape[0] != rows || (words != dense && words != gaps))
        return "not as many words as weight_shape and num_bits say";
    if (dense == gaps && words > 1 && per)
        return "too few columns to tell codes that follow each other from whole codes in words";
    l->codes = (dq_prequant_words){t->data, 1, words, bits, words == dense ? 0 : per, NULL};
    return NULL;
}

static const char *fit_scales(dq_prequant_linear *l, int64_t group)
{
    const dq_tensor *t = l->tensor[DQ_PREQUANT_SCALES];
    dq_weight *w = &l->w;
    const bool one = group == DQ_GROUP_TENSOR;
    if (group > w->cols || (group > 0 && w->cols % group))
        return "columns are no multiple of group_size";
    w->group_size = group < 0 ? w->cols : group;
    w->scale_rows = one ? 1 : w->rows;
    const int64_t groups = w->cols / w->group_size;
    const bool flat = groups == 1 && t->n_dims <= 1 && dq_tensor_numel(t) == w->scale_rows;
    if (!flat && !is_matrix(t, w->scale_rows, groups))
        return "weight_scale does not have the shape of strategy and group_size";
    l->scale_row = groups;
    l->scale_group = 1;
    return NULL;
}

/* Packed along the rows; per tensor, and in early versions always, plain I8. */
static const char *fit_zeros(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *t = l->tensor[DQ_PREQUANT_ZEROS];
    const int64_t groups = l->w.cols / l->w.group_size;
    const int per = 32 % s->bits ? 32 / s->bits : 0;
    if (!t)
        return s->any_zero
                   ? "no weight_zero_point, though quantization_config says \"symmetric\": false"
                   : NULL;
    if (t->dtype == DQ_I8 && dq_tensor_numel(t) == l->w.scale_rows * groups) {
        l->signed_zeros = t->data;
        return NULL;
    }
    const int64_t dense = words_for(l->w.rows, s->bits, 0),
                  gaps = words_for(l->w.rows, s->bits, per),
                  want = l->codes.per_word ? gaps : dense;
    if (t->dtype != DQ_I32 || l->w.scale_rows == 1 || !is_matrix(t, want, groups))
        return "weight_zero_point does not have the type and shape of weight_scale and num_bits";
    l->zeros = (dq_prequant_words){t->data, groups, 1, s->bits, l->codes.per_word, NULL};
    return NULL;
}

static const char *compressed_fit(dq_prequant_linear *l, const dq_prequant_scheme *s)
{
    const dq_tensor *packed = l->tensor[DQ_PREQUANT_CODES], *shape = l->tensor[DQ_PREQUANT_SHAPE];
    int64_t size[2] = {0};
    if (packed->n_dims != 2 || dq_tensor_numel(shape) != 2) return "not a matrix";
    memcpy(size, shape->data, sizeof size);
    if (size[0] < 1 || size[1] < 1 || size[1] > packed->shape[1] * 16)
        return "weight_shape is not that of weight_packed";
    l->w.rows = size[0];
    l->w.cols = size[1];
    l->w.bits = s->bits;
    const char *why = fit_codes(l, s->bits, size[0], size[1]);
    if (!why) why = fit_scales(l, s->group);
    return why ? why : fit_zeros(l, s);
}

static const char *const unused[] = {".input_scale",
                                     ".input_zero_point",
                                     ".input_global_scale",
                                     ".output_scale",
                                     ".output_zero_point",
                                     ".q_scale",
                                     ".k_scale",
                                     ".v_scale",
                                     ".k_zero_point",
                                     ".v_zero_point",
                                     NULL};

static const dq_prequant_format dq_prequant_compressed = {
    .method = "compressed-tensors",
    .reads = "compressed-tensors with format pack-quantized",
    .suffix = {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx",
               ".weight_shape"},
    .needed = {true, true, false, false, true},
    .dtype = {DQ_I32, DQ_DTYPE_COUNT, DQ_DTYPE_COUNT, DQ_I32, DQ_I64},
    .unused = unused,
    .read = compressed_read_config,
    .fit = compressed_fit,
};

/* Weights are found by the suffix of their codes; zero points and indices, which are few, are read
 * at once. Codes and scales get addresses only, so that a model can be built, and are repacked in
 * parallel by load. The first error in name order is the one reported. */

static const char key[] = "quantization_config", weight[] = ".weight";

/* Length before the suffix; 0: the name does not end in it. */
static size_t before(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = suffix ? strlen(suffix) : 0;
    return m && n > m && strcmp(name + n - m, suffix) == 0 ? n - m : 0;
}

static dq_prequant_linear *find_linear(const dq_prequant *p, const char *start, size_t n)
{
    int64_t low = 0, high = p->info.n_weights;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const char *name = p->linear[middle].name;
        const int order = strncmp(name, start, n);
        if (order < 0)
            low = middle + 1;
        else
            high = middle; /* a longer name comes after */
    }
    dq_prequant_linear *l = low < p->info.n_weights ? &p->linear[low] : NULL;
    return n && l && strncmp(l->name, start, n) == 0 && l->name[n] == 0 ? l : NULL;
}

/* Part of a quantized weight, or of activations that are not quantized here. */
static bool is_hidden(const dq_prequant *p, const char *name)
{
    const dq_prequant_format *f = p->config.format;
    for (int i = 0; i < DQ_PREQUANT_TENSORS; i++) {
        const size_t n = before(name, f->suffix[i]);
        if (n && find_linear(p, name, n)) return true;
    }
    for (const char *const *s = f->unused; s && *s && p->config.activations; s++) {
        if (before(name, *s)) return true;
    }
    return false;
}

static dq_status find_tensors(dq_prequant *p, dq_prequant_linear *l, dq_err *err)
{
    for (int i = 0; i < DQ_PREQUANT_TENSORS; i++) {
        const char *suffix = p->config.format->suffix[i];
        if (!suffix) continue;
        const char *name = dq_textf(p->arena, err, "%s%s", l->name, suffix);
        if (!name) return err->code;
        l->tensor[i] = dq_checkpoint_find(p->checkpoint, name);
    }
    l->w.name = dq_textf(p->arena, err, "%s%s", l->name, weight);
    if (!l->w.name) return err->code;
    if (dq_checkpoint_find(p->checkpoint, l->w.name))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\" is there beside \"%s\"", l->w.name,
                       l->tensor[DQ_PREQUANT_CODES]->name);
    return DQ_OK;
}

static dq_status find_linears(dq_prequant *p, dq_err *err)
{
    const char *suffix = p->config.format->suffix[DQ_PREQUANT_CODES];
    const int64_t n = p->checkpoint->count;
    int64_t count = 0;
    p->linear = dq_alloc(p->arena, (size_t)n, sizeof *p->linear, err);
    p->name = dq_alloc(p->arena, (size_t)n, sizeof *p->name, err);
    if (!p->linear || !p->name) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const char *name = p->checkpoint->tensor[i].name;
        const size_t len = before(name, suffix);
        if (!len) continue;
        p->linear[count].name = dq_text(p->arena, name, len, err);
        if (!p->linear[count++].name) return err->code;
    }
    if (count == 0)
        return dq_fail(err, DQ_MISMATCH, "config.json has a %s (%s), but no tensor ends in \"%s\"",
                       key, p->config.about, suffix);
    qsort(p->linear, (size_t)count, sizeof *p->linear, dq_name_compare);
    p->info.n_weights = count;
    for (int64_t i = 0; i < count; i++) DQ_TRY(find_tensors(p, &p->linear[i], err));
    for (int64_t i = 0; i < count; i++) p->name[p->n_names++] = p->linear[i].w.name;
    for (int64_t i = 0; i < n; i++) {
        const char *name = p->checkpoint->tensor[i].name;
        if (!is_hidden(p, name)) p->name[p->n_names++] = name;
    }
    return DQ_OK;
}

typedef void step(dq_prequant_linear *l, const dq_prequant_config *c);

static dq_status for_all(dq_prequant *p, step *f, dq_err *err)
{
    enum { SMALL_BYTES = 4 << 20 }; /* waking threads costs more than this much work */
    const int64_t n = p->info.n_weights;
#pragma omp parallel for schedule(dynamic, 1) if (p->info.own_bytes > SMALL_BYTES)
    for (int64_t i = 0; i < n; i++) {
        dq_prequant_linear *l = &p->linear[i];
        if (dq_os_check_stop(&l->err) != DQ_OK) continue;
        f(l, &p->config);
        for (int k = 0; k < DQ_PREQUANT_TENSORS; k++) {
            if (l->tensor[k]) dq_os_map_release(l->tensor[k]->data, dq_tensor_bytes(l->tensor[k]));
        }
    }
    for (int64_t i = 0; i < n; i++) DQ_TRY(dq_fail_as(err, &p->linear[i].err));
    return DQ_OK;
}

/* Gives codes and scales addresses from p on; NULL: only describes. Returns bytes. */
static size_t place_late(dq_prequant_linear *l, uint8_t *p)
{
    enum { LINE = 64 };
    const size_t codes = l->own_bytes[DQ_PREQUANT_CODES], scales = l->own_bytes[DQ_PREQUANT_SCALES],
                 before_scales = (codes + LINE - 1) / LINE * LINE;
    if (codes && p) l->own[DQ_PREQUANT_CODES] = p;
    if (scales && p) l->own[DQ_PREQUANT_SCALES] = p + before_scales;
    l->w.data = codes ? l->own[DQ_PREQUANT_CODES] : l->codes.data;
    l->w.scale = scales ? l->own[DQ_PREQUANT_SCALES] : l->tensor[DQ_PREQUANT_SCALES]->data;
    return before_scales + (scales + LINE - 1) / LINE * LINE;
}

static dq_status read_all(dq_prequant *p, const json_t *config, dq_err *err)
{
    if (dq_prequant_config_read(&p->config, config, p->arena, err) != DQ_OK)
        return dq_in(err, "config.json: \"%s\": ", key);
    p->info.method = p->config.format->method;
    p->info.about = p->config.about;
    DQ_TRY(find_linears(p, err));
    DQ_TRY(match_all(p->linear, p->info.n_weights, &p->config, err));
    for (int64_t i = 0; i < p->info.n_weights; i++)
        DQ_TRY(fit_linear(&p->linear[i], &p->config, err));
    size_t at = 0;
    for (int64_t i = 0; i < p->info.n_weights; i++) {
        dq_prequant_linear *l = &p->linear[i];
        dq_weight *w = &l->w;
        const int64_t groups = groups_of(w);
        w->scale_dtype = l->tensor[DQ_PREQUANT_SCALES]->dtype == DQ_F16 ? DQ_F16 : DQ_F32;
        if (!(!l->by_column && l->codes.per_word == 0 && l->codes.step == 1))
            DQ_TRY(
                size_of(l, DQ_PREQUANT_CODES, w->rows, dq_quant_row_bytes(w->cols, w->bits), err));
        if (!scales_lie_in_rows(l))
            DQ_TRY(size_of(l, DQ_PREQUANT_SCALES, w->scale_rows,
                           (size_t)groups * dq_dtypes[w->scale_dtype].bytes, err));
        if (l->zeros.data || l->signed_zeros)
            DQ_TRY(size_of(l, DQ_PREQUANT_ZEROS, w->scale_rows,
                           dq_weight_zero_bytes(groups, w->bits), err));
        if (l->tensor[DQ_PREQUANT_INDEX])
            DQ_TRY(size_of(l, DQ_PREQUANT_INDEX, w->cols, sizeof(int32_t), err));
        for (int k = 0; k < DQ_PREQUANT_TENSORS; k++) {
            const bool early = k == DQ_PREQUANT_ZEROS || k == DQ_PREQUANT_INDEX;
            if (early && l->own_bytes[k]) l->own[k] = dq_alloc(p->arena, l->own_bytes[k], 1, err);
            p->info.own_bytes += (int64_t)l->own_bytes[k];
        }
        DQ_TRY(err->code);
        p->late_bytes += place_late(l, NULL);
    }
    if (p->late_bytes) dq_os_block_reserve(&p->late, p->late_bytes);
    for (int64_t i = 0; i < p->info.n_weights && p->late.data; i++)
        at += place_late(&p->linear[i], p->late.data + at);
    DQ_TRY(for_all(p, read_linear, err));
    for (int64_t i = 0; i < p->info.n_weights; i++) {
        p->info.n_zeros += p->linear[i].w.zero != NULL;
        p->info.n_indexed += p->linear[i].w.index != NULL;
    }
    int64_t wrapped = 0;
    for (int i = 0; i < p->config.n_warnings; i++)
        p->warnings[p->info.n_warnings++] = p->config.warnings[i];
    p->info.warnings = p->warnings;
    for (int64_t i = 0; i < p->info.n_weights; i++) wrapped += p->linear[i].n_wrapped;
    if (wrapped == 0) return DQ_OK;
    const char *text =
        dq_textf(p->arena, err,
                 "%lld zero points of checkpoint_format gptq are 0, stored as one less; programs "
                 "differ in how they read that: it is read as GPTQModel does, word by word",
                 (long long)wrapped);
    if (!text) return err->code;
    p->warnings[p->info.n_warnings++] = text;
    return DQ_OK;
}

dq_status dq_prequant_open(dq_prequant **out, const dq_checkpoint *c, dq_err *err)
{
    const json_t *config = json_object_get(c->config, key);
    *out = NULL;
    if (!config || json_is_null(config)) {
        static const char *const codes[] = {".qweight", ".weight_packed"};
        for (int64_t i = 0; i < c->count; i++) {
            for (int k = 0; k < 2; k++) {
                const char *name = c->tensor[i].name;
                if (before(name, codes[k]))
                    return dq_fail(err, DQ_MISMATCH,
                                   "tensor \"%s\" is quantized, but config.json has no %s. Early "
                                   "tools wrote it as a file of its own: put that object there, "
                                   "with its \"quant_method\".",
                                   name, key);
            }
        }
        return DQ_OK;
    }
    dq_arena *arena;
    dq_prequant *p = *out = dq_arena_object(&arena, sizeof *p, err);
    if (!p) return err->code;
    p->arena = arena;
    p->checkpoint = c;
    if (read_all(p, config, err) == DQ_OK) return DQ_OK;
    dq_prequant_close(p);
    *out = NULL;
    return err->code;
}

void dq_prequant_close(dq_prequant *p)
{
    if (!p) return;
    dq_os_block_free(&p->late);
    dq_arena_free(p->arena); /* p itself lives there */
}

static dq_status load(void *arg, dq_err *err)
{
    dq_prequant *p = arg;
    const double mib = 1024.0 * 1024.0;
    const int64_t have = dq_os_memory_bytes(), want = (int64_t)p->late_bytes;
    if (p->loaded) return DQ_OK;
    if (want > 0 && ((have > 0 && want > have) || !dq_os_block_take(&p->late)))
        return dq_fail(
            err, DQ_RESOURCE,
            "not enough memory for weights that are laid out anew (%s; expected %.1f MiB beside "
            "the files, this process can have %.1f MiB in all). Use a machine with more, or "
            "quantize the original checkpoint: a container is read where it lies.",
            p->config.about, (double)want / mib, (double)have / mib);
    DQ_TRY(for_all(p, fill_linear, err));
    p->loaded = true;
    return DQ_OK;
}

static bool find(void *arg, const char *name, dq_weight *w)
{
    const dq_prequant *p = arg;
    const size_t n = before(name, weight);
    const dq_prequant_linear *l = n ? find_linear(p, name, n) : NULL;
    if (l) *w = l->w;
    return l || (!is_hidden(p, name) && dq_checkpoint_weight(p->checkpoint, name, w));
}

static const char *name_at(void *arg, int64_t i)
{
    return ((const dq_prequant *)arg)->name[i];
}

/* For a quantized weight, the bytes of its tensors as its tool wrote them. */
static int64_t stored_bytes(void *arg, const char *name)
{
    const dq_prequant *p = arg;
    const size_t n = before(name, weight);
    const dq_prequant_linear *l = n ? find_linear(p, name, n) : NULL;
    const dq_tensor *t = l ? NULL : dq_checkpoint_find(p->checkpoint, name);
    int64_t bytes = t ? (int64_t)dq_tensor_bytes(t) : 0;
    for (int i = 0; l && i < DQ_PREQUANT_TENSORS; i++)
        bytes += l->tensor[i] ? (int64_t)dq_tensor_bytes(l->tensor[i]) : 0;
    return bytes;
}

dq_source dq_prequant_source(dq_prequant *p)
{
    return (dq_source){p, find, p->n_names, name_at, stored_bytes, load};
}
