/* Tokenizer.json and the files beside it into a dq_tokenizer. Added tokens come in the order in
 * which transformers adds them, as new ones get the next id.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/text.h"
#include "tokenizer/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct added_visit {
    dq_status (*gap)(void *arg, const char *text, size_t len, dq_err *err); /* len > 0 */
    dq_status (*token)(void *arg, const dq_added_token *token, dq_err *err);
    void *arg;
} added_visit;

/* Tokens are sorted by bytes; at each place a range of them narrows byte by byte, and the longest
 * that ended counts. `done` tracks what was told, as a stripping token takes white space that the
 * next search still sees. */

enum { STOP_EVERY = 4096 }; /* bytes between two looks at the stop flag */

static int by_form(const void *x, const void *y)
{
    const dq_added_token *a = *(const dq_added_token *const *)x,
                         *b = *(const dq_added_token *const *)y;
    size_t common = a->form_len < b->form_len ? a->form_len : b->form_len;
    int c = memcmp(a->form, b->form, common);
    if (c) return c;
    return (a->form_len > b->form_len) - (a->form_len < b->form_len);
}

/* Points at those of token[n] with that value of `normalized`. DQ_DAMAGED: two equal forms, as in
 * the reference. */
static dq_status index_added(dq_added_tokens *set, const dq_added_token *token, size_t n,
                             bool normalized, dq_arena *a, dq_err *err)
{
    set->token = dq_alloc(a, n, sizeof *set->token, err);
    if (!set->token) return err->code;
    set->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (token[i].normalized == normalized && token[i].form_len)
            set->token[set->n++] = &token[i];
    }
    if (set->n) qsort(set->token, set->n, sizeof *set->token, by_form);
    for (size_t i = 1; i < set->n; i++) {
        if (by_form(&set->token[i - 1], &set->token[i]) == 0)
            return dq_fail(err, DQ_DAMAGED, "two added tokens are \"%.100s\"", set->token[i]->form);
    }
    for (size_t i = 0, b = 0; b < 257; b++) {
        while (i < set->n && (uint8_t)set->token[i]->form[0] < b) i++;
        set->begin[b] = i;
    }
    return DQ_OK;
}

/* First index in [lo, hi) whose byte at `depth`, which all have, is at least c. */
static size_t lower(const dq_added_tokens *set, size_t lo, size_t hi, size_t depth, unsigned c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)set->token[mid]->form[depth] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* NULL: no token begins here. */
static const dq_added_token *longest(const dq_added_tokens *set, const char *text, size_t len)
{
    const dq_added_token *best = NULL;
    size_t lo = set->begin[(uint8_t)text[0]], hi = set->begin[(uint8_t)text[0] + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        if (hi - lo == 1) {
            const dq_added_token *t = set->token[lo];
            const bool here = t->form_len <= len && memcmp(t->form, text, t->form_len) == 0;
            return here ? t : best;
        }
        if (set->token[lo]->form_len == depth) best = set->token[lo++];
        if (depth == len) break;
        unsigned c = (uint8_t)text[depth];
        lo = lower(set, lo, hi, depth, c);
        hi = lower(set, lo, hi, depth, c + 1);
    }
    return best;
}

static bool stands_alone(const char *text, size_t begin, size_t end, size_t len)
{
    size_t bytes;
    if (begin > 0 && dq_utf8_is_word(dq_utf8_last(text, begin, &bytes))) return false;
    return end == len || !dq_utf8_is_word(dq_utf8_first(text + end, &bytes));
}

/* White space before `done` has been told already. */
static size_t spaces_before(const char *text, size_t at, size_t done)
{
    size_t bytes;
    while (at > done && dq_utf8_is_space(dq_utf8_last(text, at, &bytes))) at -= bytes;
    return at;
}

static size_t spaces_after(const char *text, size_t at, size_t len)
{
    size_t bytes;
    while (at < len && dq_utf8_is_space(dq_utf8_first(text + at, &bytes))) at += bytes;
    return at;
}

/* Tells text and tokens of well-formed text[len] in order: leftmost match first, longest there,
 * with the flags applied. Source of the order: tokenizers tokenizer/added_vocabulary.rs
 * find_matches. */
static dq_status walk_added(const dq_added_tokens *set, const char *text, size_t len,
                            const added_visit *visit, dq_err *err)
{
    size_t done = 0; /* everything before it has been told */
    for (size_t at = 0; at < len && set->n;) {
        const dq_added_token *t = longest(set, text + at, len - at);
        if (at % STOP_EVERY == 0) DQ_TRY(dq_os_check_stop(err));
        if (!t) {
            at++;
            continue;
        }
        size_t begin = at, end = at + t->form_len;
        at = end; /* stripping moves what is told, not where the search goes on */
        if (t->single_word && !stands_alone(text, begin, end, len)) continue;
        if (t->lstrip) {
            begin = spaces_before(text, begin, done);
            if (begin < done) begin = done;
        }
        /* between `end` and `done` there is only white space that the last token took */
        if (t->rstrip) end = spaces_after(text, end < done ? done : end, len);
        /* White space that the last token took is no token again if this one strips. */
        if (begin >= end) continue;
        if (begin > done) DQ_TRY(visit->gap(visit->arg, text + done, begin - done, err));
        DQ_TRY(visit->token(visit->arg, t, err));
        done = end;
    }
    return done < len ? visit->gap(visit->arg, text + done, len - done, err) : DQ_OK;
}

/* Whether a token that files only name has no row in a model with `rows`. */
static inline bool is_beyond(const dq_added_token *t, int64_t rows)
{
    return t->is_named_only && t->id >= rows;
}

static const dq_tokenizer_entry *tokenizer_find(const dq_tokenizer *t, int32_t id);
static dq_status keep_steps(dq_tokenizer *t, json_t *root, dq_err *err);

static const bool no = false, yes = true;

enum { TOKENIZER, CONFIG, SPECIAL_MAP, ADDED };
const char *const dq_tokenizer_file[DQ_TOKENIZER_FILES] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};

enum { MAX_ADDED = 1 << 16 };

static dq_status make_form(dq_tokenizer_loader *l, dq_added_token *a, dq_err *err)
{
    char *form = NULL;
    a->form = a->text;
    a->form_len = a->len;
    if (!a->normalized) return DQ_OK;
    DQ_TRY(dq_normalizer_run(&l->t->normalizer, &form, &a->form_len, NULL, a->text, a->len, err));
    if (!form) return DQ_OK;
    a->form = dq_text(l->t->arena, form, a->form_len, err);
    dq_block_free(form);
    return a->form ? DQ_OK : err->code;
}

/* An object or just its text; a repeated text replaces the flags. id below 0: any. */
static dq_status add_token(dq_tokenizer_loader *l, const json_t *v, int64_t id, bool special,
                           dq_err *err)
{
    dq_tokenizer *t = l->t;
    dq_added_token a = {.id = (int32_t)id};
    const json_t *content = json_is_string(v) ? v : json_object_get(v, "content");
    bool is_new;
    if (!json_is_string(content))
        return dq_fail(err, DQ_DAMAGED, "added token %lld has no string \"content\"",
                       (long long)id);
    DQ_TRY(dq_json_bool(&a.special, v, "special", special ? &yes : &no, err));
    DQ_TRY(dq_json_bool(&a.lstrip, v, "lstrip", &no, err));
    DQ_TRY(dq_json_bool(&a.rstrip, v, "rstrip", &no, err));
    DQ_TRY(dq_json_bool(&a.single_word, v, "single_word", &no, err));
    a.special = a.special || special;
    DQ_TRY(dq_json_bool(&a.normalized, v, "normalized", a.special ? &no : &yes, err));
    a.len = json_string_length(content);
    if (a.len == 0) return DQ_OK; /* the reference ignores it */
    if (a.len > MAX_ADDED)
        return dq_fail(err, DQ_MISMATCH,
                       "added token %lld of %zu bytes is not supported (at most %d)", (long long)id,
                       a.len, MAX_ADDED);
    a.text = dq_text(t->arena, json_string_value(content), a.len, err);
    if (!a.text) return err->code;
    /* The reference takes the model's id for a known text, else the next one after all. */
    int32_t known = dq_strmap_get(&l->vocab, a.text, a.len);
    int32_t other = dq_strmap_get(&l->by_text, a.text, a.len);
    if (known < 0 && other >= 0) known = l->t->added[other].id;
    is_new = known < 0;
    int64_t want = is_new ? l->next_id : known;
    if (a.id < 0) a.id = (int32_t)want;
    if (want != a.id)
        return dq_fail(err, DQ_MISMATCH,
                       "added token \"%.100s\" has id %d where the vocabulary puts it at %lld. "
                       "Make the ids of added tokens follow those of the vocabulary.",
                       a.text, (int)a.id, (long long)want);
    DQ_TRY(make_form(l, &a, err));
    int32_t at = dq_strmap_get(&l->by_text, a.text, a.len);
    if (at < 0) {
        at = (int32_t)t->n_added++;
        dq_strmap_put(&l->by_text, a.text, a.len, at);
        if (is_new) l->next_id++;
    } else {
        a.special = a.special || t->added[at].special; /* decoding leaves it out from then on */
    }
    t->added[at] = a;
    return DQ_OK;
}

/* How files beside tokenizer.json name a text. */
enum { BY_ROLE_OR_LIST = 1, BY_KEY = 2, ADDED_AS_TEXT = 4 };

static int how_named(const dq_tokenizer_loader *l, const json_t *text)
{
    const int32_t how =
        dq_strmap_get(&l->how_named, json_string_value(text), json_string_length(text));
    return json_is_string(text) && how > 0 ? how : 0;
}

typedef struct numbered {
    int64_t id;
    const json_t *value;
} numbered;

static int by_number(const void *x, const void *y)
{
    const numbered *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

/* Decimal digits only; else -1. */
static int64_t parse_id(const char *s)
{
    int64_t id = 0;
    size_t n = 0;
    for (; s[n] >= '0' && s[n] <= '9' && n < 10; n++) id = id * 10 + (s[n] - '0');
    return n == 0 || s[n] || id >= INT32_MAX ? -1 : id;
}

static dq_status load_added_decoder(dq_tokenizer_loader *l, json_t *decoder, dq_err *err)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    numbered *item = dq_alloc(l->scratch, json_object_size(decoder), sizeof *item, err);
    if (!item) return err->code;
    json_object_foreach(decoder, key, value)
    {
        item[n] = (numbered){parse_id(key), value};
        if (item[n].id < 0 || !json_is_object(value))
            return dq_fail(err, DQ_DAMAGED,
                           "added_tokens_decoder \"%.100s\" is not an id with an object", key);
        n++;
    }
    if (n) qsort(item, n, sizeof *item, by_number);
    for (size_t i = 0; i < n; i++) {
        const bool special = how_named(l, json_object_get(item[i].value, "content")) & BY_KEY;
        if (add_token(l, item[i].value, item[i].id, special, err) != DQ_OK)
            return dq_in(err, "added_tokens_decoder: ");
    }
    return DQ_OK;
}

/* added_tokens.json in the form of added_tokens_decoder, without tokenizer.json's own; the caller
 * ends it. */
static dq_status decoder_of_added(json_t **out, const dq_tokenizer_loader *l, json_t *added,
                                  dq_err *err)
{
    const char *text;
    json_t *id;
    *out = json_object();
    json_object_foreach(added, text, id)
    {
        char key[24];
        int64_t n;
        if (!dq_json_whole(&n, id)) return dq_fail(err, DQ_DAMAGED, "\"%.100s\" has no id", text);
        const int32_t at = dq_strmap_get(&l->by_text, text, strlen(text));
        if (at >= 0 && l->t->added[at].id == n) continue;
        json_t *content = json_string(text);
        const int special = how_named(l, content) & BY_ROLE_OR_LIST;
        snprintf(key, sizeof key, "%lld", (long long)n);
        json_object_set_new(*out, key,
                            json_pack("{s:o, s:b, s:b}", "content", content, "special", special,
                                      "normalized", !special));
    }
    return dq_json_complete(err);
}

static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
enum { N_ROLES = sizeof roles / sizeof *roles };

/* For a role that no file beside names, tokenizer.json may name the padding token. */
static const json_t *named_value(const dq_tokenizer_loader *l, const char *key)
{
    const json_t *v = json_object_get(l->root[SPECIAL_MAP], key);
    if (!v) v = json_object_get(l->root[CONFIG], key);
    return v ? v : json_object_get(json_object_get(l->root[TOKENIZER], "padding"), key);
}

static const json_t *text_of(const json_t *v)
{
    const json_t *content = json_is_object(v) ? json_object_get(v, "content") : v;
    return json_is_string(content) ? content : NULL;
}

static void name_token(dq_tokenizer_loader *l, const json_t *v, int how)
{
    const json_t *text = text_of(v);
    if (!text) return;
    dq_strmap_put(&l->how_named, json_string_value(text), json_string_length(text),
                  how_named(l, text) | how);
    l->named[l->n_named++] = v;
}

/* "image_token" and its like. */
static bool is_own_key(const char *key)
{
    static const char end[] = "_token";
    const size_t n = strlen(key), k = sizeof end - 1;
    for (int i = 0; i < N_ROLES; i++) {
        if (strcmp(key, roles[i]) == 0) return false;
    }
    return n > k && strcmp(key + n - k, end) == 0;
}

static const char new_key[] = "extra_special_tokens", old_key[] = "additional_special_tokens";

/* Only texts of tokenizer_config.json make added_tokens.json special; not those under the old
 * key. */
static void name_list(dq_tokenizer_loader *l, const json_t *list, bool texts, bool objects)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        name_token(l, v, (json_is_string(v) ? texts : objects) ? BY_ROLE_OR_LIST : 0);
    }
}

static dq_status name_tokens(dq_tokenizer_loader *l, dq_err *err)
{
    const char *key;
    json_t *v;
    /* Each key once: a text of tokenizer_config.json wins, except against an object that is a
     * list. */
    l->own = json_object();
    json_object_foreach(l->root[CONFIG], key, v)
    {
        if (is_own_key(key) && json_object_get(v, "__type")) json_object_set(l->own, key, v);
    }
    json_object_foreach(l->root[SPECIAL_MAP], key, v)
    {
        if (is_own_key(key)) json_object_set(l->own, key, v);
    }
    json_object_foreach(l->root[CONFIG], key, v)
    {
        if (is_own_key(key) && json_is_string(v)) json_object_set(l->own, key, v);
    }
    for (int i = CONFIG; i <= SPECIAL_MAP; i++) {
        json_t *extra = json_object_get(l->root[i], new_key);
        if (json_is_object(extra)) json_object_update(l->own, extra);
    }
    DQ_TRY(dq_json_complete(err));
    size_t room = N_ROLES + json_object_size(l->own);
    for (int i = CONFIG; i <= SPECIAL_MAP; i++)
        room += json_array_size(json_object_get(l->root[i], new_key)) +
                json_array_size(json_object_get(l->root[i], old_key));
    l->named = dq_alloc(l->scratch, room, sizeof *l->named, err);
    if (!l->named) return err->code;
    DQ_TRY(dq_strmap_new(&l->how_named, room, l->scratch, err));
    for (int i = 0; i < N_ROLES; i++) {
        const json_t *role = named_value(l, roles[i]);
        const bool counts = json_is_string(role) || json_object_get(l->root[SPECIAL_MAP], roles[i]);
        name_token(l, role, BY_KEY | (counts ? BY_ROLE_OR_LIST : 0));
    }
    json_object_foreach(l->own, key, v) name_token(l, v, BY_KEY);
    const json_t *config = l->root[CONFIG], *map = l->root[SPECIAL_MAP];
    const json_t *first = json_object_get(config, new_key), *old = json_object_get(config, old_key);
    const json_t *map_new = json_object_get(map, new_key), *map_old = json_object_get(map, old_key);
    const bool named = json_is_object(first), none = !first && !old && !json_is_array(map_new);
    if (map_old && (named || none)) old = map_old;
    if (named && json_is_array(map_new)) old = NULL;
    name_list(l, !named && json_array_size(first) > 0 ? first : old,
              !named && (!map_old || old != map_old), false);
    name_list(l, map_new, true, true);
    return DQ_OK;
}

static dq_status load_beside(dq_tokenizer_loader *l, json_t *decoder, dq_err *err)
{
    json_t *made = NULL;
    l->file = dq_tokenizer_file[decoder ? CONFIG : ADDED];
    if (!decoder && decoder_of_added(&made, l, l->root[ADDED], err) == DQ_OK) decoder = made;
    if (err->code == DQ_OK) load_added_decoder(l, decoder, err);
    json_decref(made);
    if (err->code != DQ_OK) return err->code;
    l->file = dq_tokenizer_file[CONFIG];
    const int32_t before = (int32_t)l->t->n_added;
    for (size_t i = 0; i < l->n_named; i++) {
        const json_t *v = l->named[i], *text = text_of(v);
        const bool special = json_is_string(v) || how_named(l, text) & BY_KEY;
        const int32_t at =
            dq_strmap_get(&l->by_text, json_string_value(text), json_string_length(text));
        const int how = how_named(l, text);
        if ((at >= 0 && at < before) || (json_is_string(v) && how & ADDED_AS_TEXT)) continue;
        DQ_TRY(add_token(l, v, -1, special, err));
        if (json_is_string(v))
            dq_strmap_put(&l->how_named, json_string_value(v), json_string_length(v),
                          how | ADDED_AS_TEXT);
    }
    for (size_t i = (size_t)before; i < l->t->n_added; i++) l->t->added[i].is_named_only = true;
    l->file = dq_tokenizer_file[TOKENIZER];
    return DQ_OK;
}

/* transformers chooses among several by its own version. */
static dq_status refuse_versions(const dq_tokenizer_loader *l, dq_err *err)
{
    static const char key[] = "fast_tokenizer_files", own[] = "tokenizer.json";
    const json_t *list = json_object_get(l->root[CONFIG], key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && strcmp(name, own) != 0)
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer_config.json: key \"%s\": %.100s may count instead of %s. "
                           "Give the one that counts this name, and take the key out.",
                           key, name, own);
    }
    return DQ_OK;
}

static int entry_by_id(const void *x, const void *y)
{
    const dq_tokenizer_entry *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

/* By rising id, as most files have them already. */
static void sort_entries(dq_tokenizer_entry *entry, size_t n)
{
    size_t i = 1;
    while (i < n && entry[i - 1].id < entry[i].id) i++;
    if (i < n) qsort(entry, n, sizeof *entry, entry_by_id);
}

/* All pieces by id; known added tokens take their text. */
static dq_status load_pieces(dq_tokenizer_loader *l, const json_t *vocab, dq_err *err)
{
    dq_tokenizer *t = l->t;
    DQ_TRY(dq_tokenizer_load_pieces(l, vocab, t->n_added, err));
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        if (dq_strmap_get(&l->vocab, a->text, a->len) >= 0) continue;
        t->piece[t->n_pieces++] = (dq_tokenizer_entry){a->text, a->len, a->id};
    }
    sort_entries(t->written, t->n_written);
    sort_entries(t->piece, t->n_pieces);
    for (size_t i = 1; i < t->n_pieces; i++) {
        const dq_tokenizer_entry *p = &t->piece[i - 1];
        if (p->id == p[1].id)
            return dq_fail(err, DQ_DAMAGED, "tokens \"%.*s\" and \"%.*s\" have the same id %d",
                           (int)(p->len < 60 ? p->len : 60), p->text,
                           (int)(p[1].len < 60 ? p[1].len : 60), p[1].text, (int)p->id);
    }
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        dq_tokenizer_entry key = {NULL, 0, a->id};
        dq_tokenizer_entry *p = bsearch(&key, t->piece, t->n_pieces, sizeof *p, entry_by_id);
        if (p) *p = (dq_tokenizer_entry){a->text, a->len, a->id};
    }
    return DQ_OK;
}

/* Appends a special token's ids to list[*n], up to `capacity`. */
static dq_status template_ids(const dq_tokenizer *t, const json_t *special, const char *name,
                              int32_t *list, int *n, int capacity, dq_err *err)
{
    const json_t *ids = json_object_get(json_object_get(special, name), "ids");
    if (!json_is_array(ids))
        return dq_fail(
            err, DQ_DAMAGED,
            "post_processor: special token \"%.100s\" of the template has no list of ids", name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        int64_t id;
        if (!dq_json_whole(&id, v) || id < 0 || id > INT32_MAX || !tokenizer_find(t, (int32_t)id))
            return dq_fail(err, DQ_DAMAGED,
                           "post_processor: special token \"%.100s\" of the template has an id "
                           "that no token has",
                           name);
        if (*n == capacity)
            return dq_fail(err, DQ_MISMATCH, "post_processor: more than %d template tokens",
                           capacity);
        list[(*n)++] = (int32_t)id;
    }
    return DQ_OK;
}

enum { MAX_TEMPLATE = 256, MAX_DEPTH = 8 };

static dq_status begin_template(dq_tokenizer *t, dq_err *err)
{
    if (t->before)
        return dq_fail(err, DQ_MISMATCH, "post_processor: two templates are not supported");
    t->before = dq_alloc(t->arena, MAX_TEMPLATE, sizeof *t->before, err);
    t->after = dq_alloc(t->arena, MAX_TEMPLATE, sizeof *t->after, err);
    return t->before && t->after ? DQ_OK : err->code;
}

static dq_status load_post(dq_tokenizer *t, const json_t *v, int depth, dq_err *err)
{
    const char *type;
    if (!v || json_is_null(v)) return DQ_OK;
    if (!json_is_object(v)) return dq_fail(err, DQ_DAMAGED, "a post_processor is not an object");
    DQ_TRY(dq_json_text(&type, v, "type", NULL, err));
    if (strcmp(type, "ByteLevel") == 0) return DQ_OK; /* moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) {
        /* "single" of a template has special tokens around one $A. */
        const json_t *single = json_object_get(v, "single");
        const json_t *special = json_object_get(v, "special_tokens");
        bool seen = false;
        DQ_TRY(begin_template(t, err));
        if (!json_is_array(single))
            return dq_fail(err, DQ_DAMAGED,
                           "post_processor TemplateProcessing has no list \"single\"");
        for (size_t i = 0; i < json_array_size(single); i++) {
            const json_t *piece = json_array_get(single, i);
            const json_t *text = json_object_get(piece, "Sequence");
            const json_t *token = json_object_get(piece, "SpecialToken");
            const char *id;
            DQ_TRY(dq_json_text(&id, text ? text : token, "id", NULL, err));
            if (text && (seen || strcmp(id, "A") != 0))
                return dq_fail(
                    err, DQ_MISMATCH,
                    "post_processor: a template for one text uses another one, or it twice");
            if (text) {
                seen = true;
            } else if (seen) {
                DQ_TRY(template_ids(t, special, id, t->after, &t->n_after, MAX_TEMPLATE, err));
            } else {
                DQ_TRY(template_ids(t, special, id, t->before, &t->n_before, MAX_TEMPLATE, err));
            }
        }
        if (!seen)
            return dq_fail(err, DQ_DAMAGED,
                           "post_processor: the template has no place for the text");
        return DQ_OK;
    }
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        /* "cls" before the text and "sep" after it, each as [token, id]. */
        DQ_TRY(begin_template(t, err));
        for (int i = 0; i < 2; i++) {
            const char *key = i ? "sep" : "cls";
            const json_t *id = json_array_get(json_object_get(v, key), 1);
            int64_t n;
            if (!dq_json_whole(&n, id) || n < 0 || n > INT32_MAX || !tokenizer_find(t, (int32_t)n))
                return dq_fail(err, DQ_DAMAGED,
                               "post_processor %s: \"%s\" is not [token, id] of a known token",
                               type, key);
            *(i ? t->after : t->before) = (int32_t)n;
            *(i ? &t->n_after : &t->n_before) = 1;
        }
        return DQ_OK;
    }
    const json_t *list = json_object_get(v, "processors");
    if (strcmp(type, "Sequence") != 0 || depth == MAX_DEPTH)
        return dq_fail(err, DQ_MISMATCH, "post_processor type \"%s\" is not supported", type);
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "post_processor Sequence has no list \"processors\"");
    for (size_t i = 0; i < json_array_size(list); i++)
        DQ_TRY(load_post(t, json_array_get(list, i), depth + 1, err));
    return DQ_OK;
}

/* The id of a token named in the files beside tokenizer.json; -1: none. */
static int32_t named_token(const dq_tokenizer_loader *l, const char *key)
{
    const json_t *text = text_of(named_value(l, key));
    const int32_t at =
        text ? dq_strmap_get(&l->by_text, json_string_value(text), json_string_length(text)) : -1;
    return at < 0 ? -1 : l->t->added[at].id;
}

static dq_status load_parts(dq_tokenizer_loader *l, dq_err *err)
{
    static const char *const version_1 = "1.0";
    dq_tokenizer *t = l->t;
    const char *version;
    json_t *root = l->root[TOKENIZER];
    for (int i = 0; i < DQ_TOKENIZER_FILES; i++) {
        l->file = dq_tokenizer_file[i];
        if (l->root[i] && !json_is_object(l->root[i]))
            return dq_fail(err, DQ_DAMAGED, "the document is not an object");
    }
    l->file = dq_tokenizer_file[TOKENIZER];
    DQ_TRY(dq_json_text(&version, root, "version", &version_1, err));
    if (strcmp(version, version_1) != 0)
        return dq_fail(err, DQ_MISMATCH, "version \"%s\" is not supported (expected \"1.0\")",
                       version);
    json_t *model = json_object_get(root, "model");
    if (!model) return dq_fail(err, DQ_DAMAGED, "key \"model\" is missing");
    DQ_TRY(dq_normalizer_load(&t->normalizer, json_object_get(root, "normalizer"), t->arena, err));
    DQ_TRY(dq_decoder_load(&t->decoder, json_object_get(root, "decoder"), t->arena, err));
    DQ_TRY(dq_tokenizer_load_model(l, model, err));
    DQ_TRY(dq_pretokenizer_load(&t->pre, json_object_get(root, "pre_tokenizer"), l->scratch, err));
    bool split;
    json_t *list = json_object_get(l->root[TOKENIZER], "added_tokens");
    json_t *decoder = json_object_get(l->root[CONFIG], "added_tokens_decoder");
    if (list && !json_is_null(list) && !json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "\"added_tokens\" is not a list");
    if (decoder && !json_is_null(decoder) && !json_is_object(decoder)) {
        l->file = "tokenizer_config.json";
        return dq_fail(err, DQ_DAMAGED, "\"added_tokens_decoder\" is not an object");
    }
    if (json_is_null(decoder)) decoder = NULL;
    if (decoder) l->root[SPECIAL_MAP] = l->root[ADDED] = NULL; /* the older files are not read */
    DQ_TRY(refuse_versions(l, err));
    DQ_TRY(dq_json_bool(&split, l->root[CONFIG], "split_special_tokens", &no, err));
    DQ_TRY(name_tokens(l, err));
    size_t capacity = json_array_size(list) + json_object_size(decoder) +
                      json_object_size(l->root[ADDED]) + l->n_named;
    l->next_id = (int64_t)l->vocab_count;
    t->added = dq_alloc(t->arena, capacity, sizeof *t->added, err);
    if (!t->added) return err->code;
    DQ_TRY(dq_strmap_new(&l->by_text, capacity, l->scratch, err));
    for (size_t k = 0; k < json_array_size(list); k++) {
        const json_t *v = json_array_get(list, k);
        int64_t id;
        if (!json_is_object(v))
            return dq_fail(err, DQ_DAMAGED, "added_tokens[%zu] is not an object", k);
        DQ_TRY(dq_json_int(&id, v, "id", 0, INT32_MAX - 1, NULL, err));
        const bool special = (!decoder) && how_named(l, json_object_get(v, "content")) & BY_KEY;
        DQ_TRY(add_token(l, v, id, special, err));
    }
    DQ_TRY(load_beside(l, decoder, err));
    for (size_t k = 0; k < t->n_added; k++) {
        int32_t same = dq_strmap_get(&l->by_text, t->added[k].form, t->added[k].form_len);
        t->added[k].told_special = same >= 0 && t->added[same].special;
        if (split && t->added[k].special) t->added[k].form_len = 0; /* found in no text */
    }
    DQ_TRY(index_added(&t->in_raw, t->added, t->n_added, false, t->arena, err));
    DQ_TRY(index_added(&t->in_normalized, t->added, t->n_added, true, t->arena, err));
    DQ_TRY(load_pieces(l, json_object_get(model, "vocab"), err));
    DQ_TRY(load_post(t, json_object_get(root, "post_processor"), 0, err));
    t->bos = named_token(l, "bos_token");
    t->prefix = t->bos >= 0 ? t->bos : named_token(l, "eos_token");
    return keep_steps(t, root, err);
}

/* Parses without the scanned lists; on failure the whole, so that errors refer to the file. */
static dq_status parse_document(json_t **root, dq_tokenizer_loader *l, const char *json, size_t len,
                                dq_err *err)
{
    int64_t first_bad;
    char *rest;
    size_t rest_len;
    dq_err other = {0};
    l->listed = dq_utf8_check(json, len, &first_bad) == 0 &&
                dq_tokenizer_lists_scan(&l->lists, &rest, &rest_len, json, len, l->scratch) &&
                dq_json_parse(root, rest, rest_len, l->file, &other) == DQ_OK;
    if (l->listed) return DQ_OK;
    l->lists = (dq_tokenizer_lists){0};
    return dq_json_parse(root, json, len, l->file, err);
}

static dq_status load(dq_tokenizer *t, const dq_tokenizer_text *text, dq_err *err)
{
    dq_tokenizer_loader l = {.t = t, .scratch = dq_arena_new(), .file = dq_tokenizer_file[0]};
    if (!l.scratch) dq_fail(err, DQ_RESOURCE, "out of memory (loading a tokenizer)");
    if (!err->code) parse_document(&l.root[TOKENIZER], &l, text->s, text->len, err);
    for (int i = CONFIG; i < DQ_TOKENIZER_FILES && !err->code; i++) {
        if (text[i].s)
            dq_json_parse_config(&l.root[i], text[i].s, text[i].len, dq_tokenizer_file[i], err);
    }
    json_t *const root[] = {l.root[0], l.root[1], l.root[2], l.root[3]};
    if (!err->code && load_parts(&l, err) != DQ_OK) dq_in(err, "%s: ", l.file);
    for (int i = 0; i < DQ_TOKENIZER_FILES; i++) json_decref(root[i]);
    json_decref(l.own);
    dq_arena_free(l.scratch);
    return err->code;
}

dq_status dq_tokenizer_load_files(dq_tokenizer **out,
                                  const dq_tokenizer_text text[DQ_TOKENIZER_FILES], dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    dq_tokenizer *t = arena ? dq_alloc(arena, 1, sizeof *t, err) : NULL;
    *out = NULL;
    if (!t) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory (loading a tokenizer)");
    }
    t->arena = arena;
    t->bos = t->prefix = -1;
    if (load(t, text, err) != DQ_OK) {
        dq_tokenizer_free(t);
        return err->code;
    }
    *out = t;
    return DQ_OK;
}

dq_status dq_tokenizer_load(dq_tokenizer **out, const char *json, size_t len, const char *config,
                            size_t config_len, dq_err *err)
{
    const dq_tokenizer_text text[DQ_TOKENIZER_FILES] = {{json, len}, {config, config_len}};
    return dq_tokenizer_load_files(out, text, err);
}

/* Lists and flags are compared as loaded; steps as canonical JSON without members that move no
 * token or text, so that equivalent but differently written steps count as different. */

/* ByteLevel reads trim_offsets only as post-processor, and nothing else as decoder. */
static void drop_idle(json_t *v, bool decoder)
{
    static const char *const idle[] = {"trim_offsets", "add_prefix_space", "use_regex"};
    const char *type = json_string_value(json_object_get(v, "type")), *key;
    json_t *member;
    size_t i;
    if (type && strcmp(type, "ByteLevel") == 0) {
        for (i = 0; i < (decoder ? 3 : 1); i++) json_object_del(v, idle[i]);
    }
    json_object_foreach(v, key, member) drop_idle(member, decoder);
    json_array_foreach(v, i, member) drop_idle(member, decoder);
}

/* Fills t->steps; removes idle members from the document. */
static dq_status keep_steps(dq_tokenizer *t, json_t *root, dq_err *err)
{
    static const char *const parts[] = {"normalizer", "pre_tokenizer", "decoder"};
    char *text;
    json_t *list = json_array();
    for (int i = 0; i < 3; i++) {
        json_t *v = json_object_get(root, parts[i]);
        if (v) drop_idle(v, i == 2);
        json_array_append(list, v ? v : json_null());
    }
    dq_json_dump(&text, list, JSON_COMPACT | JSON_SORT_KEYS, err);
    json_decref(list);
    DQ_TRY(err->code);
    t->steps = dq_text(t->arena, text, strlen(text), err);
    free(text);
    return err->code;
}

static bool same_text(const char *a, size_t a_len, const char *b, size_t b_len)
{
    return a_len == b_len && memcmp(a, b, a_len) == 0;
}

static bool same_entries(const dq_tokenizer_entry *a, size_t n, const dq_tokenizer_entry *b,
                         size_t n_b)
{
    if (n != n_b) return false;
    for (size_t i = 0; i < n; i++) {
        if (a[i].id != b[i].id || !same_text(a[i].text, a[i].len, b[i].text, b[i].len))
            return false;
    }
    return true;
}

static const dq_added_token *added_of(const dq_tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].id == id) return &t->added[i];
    }
    return NULL;
}

/* In any order: length decides what is found where. */
static bool has_added(const dq_tokenizer *a, const dq_tokenizer *b, int64_t rows)
{
    for (size_t i = 0; i < a->n_added; i++) {
        const dq_added_token *x = &a->added[i], *y = i < b->n_added ? &b->added[i] : NULL;
        if (is_beyond(x, rows)) continue;
        if (!y || y->id != x->id) y = added_of(b, x->id);
        if (!y || !same_text(x->text, x->len, y->text, y->len) ||
            !same_text(x->form, x->form_len, y->form, y->form_len) || x->special != y->special ||
            x->told_special != y->told_special || x->lstrip != y->lstrip ||
            x->rstrip != y->rstrip || x->single_word != y->single_word ||
            x->normalized != y->normalized)
            return false;
    }
    return true;
}

static bool same_bpe(const dq_bpe *a, const dq_bpe *b)
{
    if (a->byte_level != b->byte_level || a->unknown != b->unknown ||
        a->fuse_unknown != b->fuse_unknown || a->whole_words != b->whole_words ||
        a->merges.n != b->merges.n || memcmp(a->byte_id, b->byte_id, sizeof a->byte_id) != 0)
        return false;
    for (size_t i = 0; i <= a->merges.mask; i++) {
        const dq_map64_slot *s = &a->merges.slot[i];
        if (s->value && dq_map64_get(&b->merges, s->key) != s->value) return false;
    }
    return true;
}

static bool same_unigram(const dq_unigram *a, const dq_unigram *b)
{
    if (a->n != b->n || a->unknown != b->unknown || a->fallback != b->fallback ||
        memcmp(a->byte_id, b->byte_id, sizeof a->byte_id) != 0)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        if (a->score[i] < b->score[i] || a->score[i] > b->score[i]) return false;
    }
    return true;
}

static bool same_ids(const int32_t *a, int n, const int32_t *b, int n_b)
{
    return n == n_b && (n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0);
}

/* Excludes pieces of added tokens without a row, which come last. */
static size_t n_pieces(const dq_tokenizer *t, int64_t rows)
{
    size_t n = t->n_pieces;
    for (size_t i = 0; i < t->n_added; i++) n -= is_beyond(&t->added[i], rows);
    return n;
}

bool dq_tokenizer_same(const dq_tokenizer *a, const dq_tokenizer *b, int64_t rows)
{
    if (a == b) return true;
    return a->is_unigram == b->is_unigram && strcmp(a->steps, b->steps) == 0 &&
           same_ids(a->before, a->n_before, b->before, b->n_before) &&
           same_ids(a->after, a->n_after, b->after, b->n_after) && has_added(a, b, rows) &&
           has_added(b, a, rows) &&
           same_entries(a->piece, n_pieces(a, rows), b->piece, n_pieces(b, rows)) &&
           same_entries(a->written, a->n_written, b->written, b->n_written) &&
           (a->is_unigram ? same_unigram(&a->unigram, &b->unigram) : same_bpe(&a->bpe, &b->bpe));
}

/* Encoding nests three walks: tokens found in the raw text cut it, the rest is normalized and cut
 * by the tokens found in that, and the remaining text goes through the pretokenizer to the model
 * word by word. */

void dq_tokenizer_free(dq_tokenizer *t)
{
    if (!t) return;
    dq_pretokenizer_free(&t->pre);
    dq_normalizer_free(&t->normalizer);
    dq_arena_free(t->arena); /* t itself is in it */
}

static const dq_tokenizer_entry *find(const dq_tokenizer_entry *piece, size_t n, int32_t id)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (piece[mid].id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && piece[lo].id == id ? &piece[lo] : NULL;
}

/* NULL: no such id. */
static const dq_tokenizer_entry *tokenizer_find(const dq_tokenizer *t, int32_t id)
{
    return find(t->piece, t->n_pieces, id);
}

int dq_tokenizer_vocab(const dq_tokenizer *t)
{
    return t->n_pieces ? t->piece[t->n_pieces - 1].id + 1 : 0;
}

/* The template's tokens before a text, or else the one that the configuration names. */
static const int32_t *before(const dq_tokenizer *t, unsigned flags, int *n)
{
    const bool named = (flags & DQ_TOK_BOS) && t->n_before == 0 && t->bos >= 0;
    *n = !(flags & DQ_TOK_SPECIAL) ? 0 : named ? 1 : t->n_before;
    return named ? &t->bos : t->before;
}

void dq_tokenizer_template(const dq_tokenizer *t, unsigned flags, int *n_before, int *n_after)
{
    before(t, flags, n_before);
    *n_after = flags & DQ_TOK_SPECIAL ? t->n_after : 0;
}

int32_t dq_tokenizer_bos(const dq_tokenizer *t, unsigned flags)
{
    int n;
    const int32_t *id = before(t, flags, &n);
    return n ? id[0] : -1;
}

dq_status dq_tokenizer_added(json_t **out, const dq_tokenizer *t, int64_t rows, dq_err *err)
{
    *out = json_array();
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        if (is_beyond(a, rows)) continue;
        json_array_append_new(*out,
                              json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", a->id,
                                        "content", json_stringn(a->text, a->len), "single_word",
                                        a->single_word, "lstrip", a->lstrip, "rstrip", a->rstrip,
                                        "normalized", a->normalized, "special", a->special));
    }
    return dq_json_complete(err);
}

int32_t dq_tokenizer_prefix(const dq_tokenizer *t)
{
    return t->prefix;
}

const char *dq_tokenizer_piece(const dq_tokenizer *t, int32_t id, size_t *len)
{
    const dq_tokenizer_entry *p = tokenizer_find(t, id);
    if (!p) return NULL;
    *len = p->len;
    return p->text;
}

static int32_t id_in(const dq_tokenizer_entry *e, size_t n, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (e[i].len == len && memcmp(e[i].text, text, len) == 0) return e[i].id;
    }
    return -1;
}

int32_t dq_tokenizer_id(const dq_tokenizer *t, const char *text, size_t len)
{
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        if (a->len == len && memcmp(a->text, text, len) == 0) return a->id;
    }
    const int32_t id = id_in(t->written, t->n_written, text, len);
    if (id >= 0) return id;
    const int32_t plain = id_in(t->piece, t->n_pieces, text, len);
    return find(t->written, t->n_written, plain) ? -1 : plain;
}

typedef struct encoding {
    const dq_tokenizer *t;
    const char *text;  /* the whole, repaired */
    const char *start; /* normalized text that begins where the whole does, or NULL */
    dq_id_list ids;
    size_t max; /* with so many tokens it is over; 0: with the text */
    bool enough;
    dq_pretokenizer_run cut;
    dq_bpe_run bpe;
    dq_unigram_run unigram;
} encoding;

/* Words come in order, so the list does not depend on later text. DQ_STOPPED ends the walk. */
static dq_status go_on(encoding *e)
{
    e->enough = e->max > 0 && e->ids.n >= e->max;
    return e->enough ? DQ_STOPPED : DQ_OK;
}

static dq_status on_word(void *arg, const char *word, size_t len, dq_err *err)
{
    encoding *e = arg;
    DQ_TRY(e->t->is_unigram ? dq_unigram_word(&e->unigram, &e->ids, word, len, err)
                            : dq_bpe_word(&e->bpe, &e->ids, word, len, err));
    return go_on(e);
}

static dq_status on_token(void *arg, const dq_added_token *token, dq_err *err)
{
    encoding *e = arg;
    DQ_TRY(dq_id_list_push(&e->ids, token->id, err));
    return go_on(e);
}

static dq_status on_plain_text(void *arg, const char *text, size_t len, dq_err *err)
{
    encoding *e = arg;
    e->cut.at_start = text == e->start;
    return dq_pretokenizer_cut(&e->cut, text, len, err);
}

/* Text between tokens in the raw text: normalizer, then the tokens found after it. */
static dq_status on_raw_text(void *arg, const char *text, size_t len, dq_err *err)
{
    encoding *e = arg;
    const dq_tokenizer *t = e->t;
    const added_visit visit = {on_plain_text, on_token, e};
    char *changed;
    size_t normal_len;
    bool moved;
    DQ_TRY(dq_normalizer_run(&t->normalizer, &changed, &normal_len, &moved, text, len, err));
    const char *normal = changed ? changed : text;
    e->start = text == e->text && !moved ? normal : NULL;
    dq_status status = walk_added(&t->in_normalized, normal, normal_len, &visit, err);
    dq_block_free(changed);
    return status;
}

static dq_status encode(encoding *e, size_t len, unsigned flags, dq_err *err)
{
    const dq_tokenizer *t = e->t;
    const added_visit visit = {on_raw_text, on_token, e};
    const size_t expected = len / 4 + 16; /* most texts need no more */
    DQ_TRY(dq_id_list_reserve(&e->ids, e->max > 0 && e->max < expected ? e->max : expected, err));
    int n_before;
    const int32_t *first = before(t, flags, &n_before);
    for (int i = 0; i < n_before; i++) DQ_TRY(dq_id_list_push(&e->ids, first[i], err));
    const dq_status status = walk_added(&t->in_raw, e->text, len, &visit, err);
    if (status == DQ_STOPPED && e->enough) return DQ_OK;
    DQ_TRY(status);
    for (int i = 0; (flags & DQ_TOK_SPECIAL) && i < t->n_after; i++)
        DQ_TRY(dq_id_list_push(&e->ids, t->after[i], err));
    return DQ_OK;
}

dq_status dq_tokenizer_encode(const dq_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, int64_t *n, int64_t *first_bad, int64_t *n_bad,
                              dq_err *err)
{
    return dq_tokenizer_encode_first(t, text, len, flags, 0, ids, n, first_bad, n_bad, err);
}

dq_status dq_tokenizer_encode_first(const dq_tokenizer *t, const char *text, size_t len,
                                    unsigned flags, int64_t max, int32_t **ids, int64_t *n,
                                    int64_t *first_bad, int64_t *n_bad, dq_err *err)
{
    encoding e = {.t = t,
                  .text = text,
                  .max = (size_t)max,
                  .cut = {.p = &t->pre, .word = on_word},
                  .bpe = {.bpe = &t->bpe},
                  .unigram = {.u = &t->unigram}};
    char *repaired = NULL;
    int64_t first, bad = dq_utf8_check(text, len, &first);
    *ids = NULL;
    *n = 0;
    if (first_bad) *first_bad = first;
    if (n_bad) *n_bad = bad;
    if (bad) {
        repaired = dq_block_new(len + 2 * (size_t)bad, 1, err);
        if (!repaired) return err->code;
        len = dq_utf8_repair(repaired, text, len);
        e.text = repaired;
    }
    e.cut.arg = &e;
    dq_status status = encode(&e, len, flags, err);
    if (status == DQ_OK) {
        *ids = e.ids.id;
        *n = (int64_t)e.ids.n;
        e.ids.id = NULL;
    }
    dq_block_free(e.ids.id);
    dq_bpe_run_end(&e.bpe);
    dq_unigram_run_end(&e.unigram);
    dq_pretokenizer_run_end(&e.cut);
    dq_block_free(repaired);
    return status;
}

typedef struct written {
    const char **token;
    size_t *len;
    int64_t n;
    const dq_added_token **added; /* by rising id */
} written;

static int by_id(const void *x, const void *y)
{
    const dq_added_token *a = *(const dq_added_token *const *)x,
                         *b = *(const dq_added_token *const *)y;
    return (a->id > b->id) - (a->id < b->id);
}

static dq_status collect(written *w, const dq_tokenizer *t, const int32_t *ids, int64_t n,
                         unsigned flags, dq_err *err)
{
    w->token = dq_block_new((size_t)n + 1, sizeof *w->token, err);
    w->len = dq_block_new((size_t)n + 1, sizeof *w->len, err);
    w->added = dq_block_new(t->n_added + 1, sizeof *w->added, err);
    if (!w->token || !w->len || !w->added) return err->code;
    for (size_t i = 0; i < t->n_added; i++) w->added[i] = &t->added[i];
    qsort(w->added, t->n_added, sizeof *w->added, by_id);
    for (int64_t i = 0; i < n; i++) {
        const dq_added_token key = {.id = ids[i]}, *const at = &key;
        const dq_added_token **added = bsearch(&at, w->added, t->n_added, sizeof *w->added, by_id);
        const dq_tokenizer_entry *p = added ? NULL : find(t->written, t->n_written, ids[i]);
        if (!added && !p) p = tokenizer_find(t, ids[i]);
        if (!added && !p) continue;
        if (added && !(flags & DQ_TOK_SPECIAL) && (*added)->told_special) continue;
        w->token[w->n] = added ? (*added)->form : p->text;
        w->len[w->n++] = added ? (*added)->form_len : p->len;
    }
    return DQ_OK;
}

dq_status dq_tokenizer_decode(const dq_tokenizer *t, const int32_t *ids, int64_t n, unsigned flags,
                              char **text, size_t *len, dq_err *err)
{
    written w = {0};
    *text = NULL;
    *len = 0;
    dq_status status = collect(&w, t, ids, n, flags, err);
    if (status == DQ_OK) status = dq_decoder_run(&t->decoder, w.token, w.len, w.n, text, len, err);
    dq_block_free(w.token);
    dq_block_free(w.len);
    dq_block_free(w.added);
    return status;
}

dq_status dq_tokenizer_check_ids(const int32_t *ids, int64_t n, int64_t vocab, dq_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return dq_fail(err, DQ_MISMATCH,
                           "the tokenizer gives id %d, the model knows %lld tokens; tokenizer and "
                           "model do not belong together",
                           (int)ids[i], (long long)vocab);
    }
    return DQ_OK;
}

int32_t *dq_tokenizer_keep(const int32_t *ids, int64_t n, int64_t vocab, dq_arena *a, dq_err *err)
{
    int32_t *kept = dq_alloc(a, (size_t)n, sizeof *kept, err);
    if (!kept || dq_tokenizer_check_ids(ids, n, vocab, err) != DQ_OK) return NULL;
    if (n) memcpy(kept, ids, (size_t)n * sizeof *kept);
    return kept;
}
