/* Labels as ids, and which of them a model picks.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/json.h"
#include "base/os.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/items.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static dq_status encode(const dq_tokenizer *t, const char *s, int64_t vocab, int32_t **ids,
                        int64_t *n, dq_err *err)
{
    DQ_TRY(dq_tokenizer_encode(t, s, strlen(s), 0, ids, n, NULL, NULL, err));
    return dq_tokenizer_check_ids(*ids, *n, vocab, err);
}

/* Whether the tokenizer itself puts a space before a text. */
static bool spaces_itself(const dq_tokenizer *t, const int32_t *ids, int64_t n)
{
    size_t len = 0;
    const char *piece = n > 0 ? dq_tokenizer_piece(t, ids[0], &len) : NULL;
    return piece && len > 0 && piece[0] == ' ';
}

/* Leaves space for a newline id after the label. */
static dq_status label_ids(dq_icl_label *l, const char *name, const dq_tokenizer *t, int64_t vocab,
                           dq_arena *a, dq_err *err)
{
    int32_t *ids = NULL, *kept = NULL;
    l->text = dq_textf(a, err, " %s", name);
    if (!l->text) return err->code;
    encode(t, name, vocab, &ids, &l->n, err);
    if (err->code == DQ_OK && !spaces_itself(t, ids, l->n)) {
        dq_block_free(ids);
        ids = NULL;
        encode(t, l->text, vocab, &ids, &l->n, err);
    }
    if (err->code == DQ_OK && l->n == 0)
        dq_fail(err, DQ_MISMATCH, "the label \"%s\" has no tokens in this tokenizer", name);
    if (err->code == DQ_OK) kept = dq_alloc(a, (size_t)l->n + 1, sizeof *kept, err);
    if (kept) memcpy(kept, ids, (size_t)l->n * sizeof *kept);
    l->ids = kept;
    l->n_cont = l->n;
    dq_block_free(ids);
    return err->code;
}

static bool begins(const dq_icl_label *b, const dq_icl_label *a)
{
    return a->n_cont <= b->n_cont &&
           memcmp(a->ids, b->ids, (size_t)a->n_cont * sizeof *a->ids) == 0;
}

static int by_ids(const void *x, const void *y)
{
    const dq_icl_label *a = *(const dq_icl_label *const *)x, *b = *(const dq_icl_label *const *)y;
    for (int64_t i = 0; i < a->n_cont && i < b->n_cont; i++) {
        if (a->ids[i] != b->ids[i]) return a->ids[i] < b->ids[i] ? -1 : 1;
    }
    if (a->n_cont != b->n_cont) return a->n_cont < b->n_cont ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* other[i]: a label that extends or equals label i, -1: none. In sorted order extensions follow it
 * directly. */
static void find_longer(int *other, const dq_icl_label *label, const dq_icl_label **sorted, int n)
{
    for (int i = 0; i < n; i++) sorted[i] = &label[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_ids);
    for (int i = 0; i < n; i++) {
        const dq_icl_label *l = sorted[i], *found = NULL;
        if (i + 1 < n && begins(sorted[i + 1], l)) found = sorted[i + 1];
        if (i > 0 && begins(sorted[i - 1], l)) found = sorted[i - 1];
        other[l - label] = found ? (int)(found - label) : -1;
    }
}

/* A newline must be one id, the last where a tokenizer prefixes something. */
static dq_status end_label(dq_icl_label *l, const dq_tokenizer *t, int64_t vocab, dq_arena *a,
                           dq_err *err)
{
    int32_t *nl = NULL, *ids = dq_alloc(a, (size_t)l->n + 1, sizeof *ids, err);
    int64_t n = 0;
    if (!ids) return err->code;
    if (encode(t, "\n", vocab, &nl, &n, err) == DQ_OK && n == 0)
        dq_fail(err, DQ_MISMATCH, "the tokenizer has no id for a newline, which ends \"%s\"",
                l->text + 1);
    if (err->code == DQ_OK) {
        memcpy(ids, l->ids, (size_t)l->n * sizeof *ids);
        ids[l->n] = nl[n - 1];
        l->ids = ids;
    }
    dq_block_free(nl);
    return err->code;
}

dq_status dq_icl_labels(dq_icl_label **out, const char *const *name, int n, const dq_tokenizer *t,
                        int64_t vocab, dq_arena *a, dq_err *err)
{
    dq_icl_label *label = dq_alloc(a, (size_t)n, sizeof *label, err);
    const dq_icl_label **sorted = dq_alloc(a, (size_t)n, sizeof *sorted, err);
    int *other = dq_alloc(a, (size_t)n, sizeof *other, err);
    if (!label || !sorted || !other) return err->code;
    for (int i = 0; i < n; i++) {
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(label_ids(&label[i], name[i], t, vocab, a, err));
    }
    find_longer(other, label, sorted, n);
    for (int i = 0; i < n; i++) {
        if (other[i] < 0) continue;
        DQ_TRY(end_label(&label[i], t, vocab, a, err));
        label[i].n_cont++;
    }
    find_longer(other, label, sorted, n);
    for (int i = 0; i < n; i++) {
        if (other[i] >= 0)
            return dq_fail(err, DQ_MISMATCH,
                           "the tokenizer cannot tell the label \"%s\" from \"%s\"", name[i],
                           name[other[i]]);
        if (i > 0) label[i].at = label[i - 1].at + label[i - 1].n_cont;
    }
    *out = label;
    return DQ_OK;
}

int dq_icl_walk(const dq_icl_label *label, int n, const double *logp, int *alive)
{
    int left = n;
    for (int i = 0; i < n; i++) alive[i] = i;
    for (int64_t depth = 0; left > 1; depth++) {
        int32_t id = 0;
        double max = 0;
        for (int i = 0; i < left; i++) {
            const dq_icl_label *l = &label[alive[i]];
            double x = logp[l->at + depth];
            if (i > 0 && (x < max || (x == max && l->ids[depth] >= id))) continue;
            max = x;
            id = l->ids[depth];
        }
        int kept = 0;
        for (int i = 0; i < left; i++) {
            if (label[alive[i]].ids[depth] == id) alive[kept++] = alive[i];
        }
        left = kept;
    }
    return alive[0];
}

int dq_icl_likeliest(const dq_icl_label *label, int n, const double *logp)
{
    int best = 0;
    double max = -INFINITY;
    for (int i = 0; i < n; i++) {
        double ll = 0;
        for (int64_t k = 0; k < label[i].n; k++) ll += logp[label[i].at + k];
        if (ll > max) {
            max = ll;
            best = i;
        }
    }
    return best;
}

struct dq_icl_reader {
    dq_arena *a;
    dq_icl_pool *demos, *queries; /* NULL: not wanted from this file */
    size_t cap_demos, cap_queries;
    const char **label; /* [n_labels] */
    int n_labels;
    size_t cap_labels;
    dq_strmap index; /* of each label */
    bool fine;
    int64_t n_bad, first_bad;
};

static dq_status add_label(dq_icl_reader *r, const char *name, int *index, dq_err *err)
{
    *index = dq_strmap_get(&r->index, name, strlen(name));
    if (*index >= 0) return DQ_OK;
    DQ_TRY(dq_os_check_stop(err));
    *index = r->n_labels;
    const char **list =
        dq_grow(r->a, r->label, (size_t)r->n_labels + 1, &r->cap_labels, sizeof *list, err);
    if (!list) return err->code;
    r->label = list;
    const char *copy = r->label[r->n_labels] = dq_text(r->a, name, strlen(name), err);
    if (!copy) return err->code;
    return dq_strmap_add(&r->index, copy, strlen(copy), r->n_labels++, r->a, err);
}

static dq_status add_example(dq_icl_reader *r, dq_icl_pool *pool, size_t *cap, const char *text,
                             size_t len, const char *label, dq_err *err)
{
    dq_icl_example *list = dq_grow(r->a, pool->ex, (size_t)pool->n + 1, cap, sizeof *list, err);
    if (!list) return err->code;
    pool->ex = list;
    dq_icl_example *x = &pool->ex[pool->n];
    x->text = dq_text(r->a, text, len, err);
    x->len = len;
    if (x->text && add_label(r, label, &x->label, err) == DQ_OK) pool->n++;
    return err->code;
}

/* "intent_name" becomes "intent name". */
static dq_status add_named(dq_icl_reader *r, dq_icl_pool *pool, size_t *cap, const char *text,
                           size_t len, const char *name, dq_err *err)
{
    char *label = dq_text(r->a, name, strlen(name), err);
    for (char *c = label; c && *c; c++) {
        if (*c == '_') *c = ' ';
    }
    return label ? add_example(r, pool, cap, text, len, label, err) : err->code;
}

/* The taxonomy of Li and Roth (2002) with its short codes written out. */
static const struct coarse {
    const char *code, *name;
    const char *fine[48]; /* code, word, ... NULL */
} trec[] = {
    {"ABBR", "abbreviation", {"abb", "abbreviation", "exp", "expansion"}},
    {"DESC",
     "description",
     {"def", "definition", "desc", "description", "manner", "manner", "reason", "reason"}},
    {"ENTY", "entity", {"animal",   "animal",    "body",      "body",      "color",    "color",
                        "cremat",   "creation",  "currency",  "currency",  "dismed",   "disease",
                        "event",    "event",     "food",      "food",      "instru",   "instrument",
                        "lang",     "language",  "letter",    "letter",    "other",    "other",
                        "plant",    "plant",     "product",   "product",   "religion", "religion",
                        "sport",    "sport",     "substance", "substance", "symbol",   "symbol",
                        "techmeth", "technique", "termeq",    "term",      "veh",      "vehicle",
                        "word",     "word"}},
    {"HUM", "human", {"desc", "description", "gr", "group", "ind", "individual", "title", "title"}},
    {"LOC",
     "location",
     {"city", "city", "country", "country", "mount", "mountain", "other", "other", "state",
      "state"}},
    {"NUM", "numeric", {"code",        "code",    "count",  "count",  "date",  "date",  "dist",
                        "distance",    "money",   "money",  "ord",    "order", "other", "other",
                        "perc",        "percent", "period", "period", "speed", "speed", "temp",
                        "temperature", "volsize", "size",   "weight", "weight"}},
};
enum { TREC_COARSE = sizeof trec / sizeof trec[0], TREC_NAME = 64 };

static void trec_name(char *out, const struct coarse *c, const char *fine)
{
    size_t n = strlen(c->name), m = fine ? strlen(fine) : 0;
    memcpy(out, c->name, n + 1);
    if (!fine) return;
    out[n] = ' ';
    memcpy(out + n + 1, fine, m + 1);
}

static bool is_word(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

/* False: unknown code. */
static bool trec_find(char *out, const char *s, size_t n, bool fine)
{
    const char *colon = memchr(s, ':', n);
    if (!colon) return false;
    size_t m = (size_t)(colon - s);
    for (int i = 0; i < TREC_COARSE; i++) {
        if (!is_word(s, m, trec[i].code)) continue;
        for (int k = 0; trec[i].fine[k]; k += 2) {
            if (!is_word(colon + 1, n - m - 1, trec[i].fine[k])) continue;
            trec_name(out, &trec[i], fine ? trec[i].fine[k + 1] : NULL);
            return true;
        }
    }
    return false;
}

static dq_status trec_line(dq_icl_reader *r, const char *line, size_t n, int64_t number,
                           dq_err *err)
{
    char name[TREC_NAME];
    n = dq_items_strip_end(line, n);
    if (n == 0) return DQ_OK;
    const char *space = memchr(line, ' ', n);
    size_t code = space ? (size_t)(space - line) : n;
    if (!trec_find(name, line, code, r->fine))
        return dq_fail(err, DQ_DAMAGED,
                       "line %lld: expected a class such as NUM:date and a question, found "
                       "\"%.*s\"",
                       (long long)number, n < 40 ? (int)n : 40, line);
    while (code < n && line[code] == ' ') code++;
    if (code == n)
        return dq_fail(err, DQ_DAMAGED, "line %lld: no question after the class",
                       (long long)number);
    const char *text = line + code;
    const size_t len = n - code;
    if (r->demos) return add_example(r, r->demos, &r->cap_demos, text, len, name, err);
    return add_example(r, r->queries, &r->cap_queries, text, len, name, err);
}

static dq_status read_trec(dq_icl_reader *r, const char *text, size_t len, dq_err *err)
{
    /* All labels count, whether or not a file has examples of each. */
    char name[TREC_NAME];
    int index;
    for (int i = 0; i < TREC_COARSE; i++) {
        if (!r->fine) {
            trec_name(name, &trec[i], NULL);
            DQ_TRY(add_label(r, name, &index, err));
        }
        for (int k = 0; r->fine && trec[i].fine[k]; k += 2) {
            trec_name(name, &trec[i], trec[i].fine[k + 1]);
            DQ_TRY(add_label(r, name, &index, err));
        }
    }
    const size_t mark = dq_utf8_mark(text, len);
    text += mark;
    len -= mark;
    /* The official files are Latin-1; a copy in well-formed UTF-8 stays as it is. */
    int64_t first_bad;
    if (dq_utf8_check(text, len, &first_bad) != 0) {
        char *out = dq_alloc(r->a, 2 * len + 1, 1, err);
        size_t n = 0;
        if (!out) return err->code;
        for (size_t i = 0; i < len; i++) n += dq_utf8_put(out + n, (unsigned char)(text)[i]);
        text = out;
        len = n;
    }
    for (int64_t number = 1; len > 0; number++) {
        const char *nl = memchr(text, '\n', len);
        size_t n = nl ? (size_t)(nl - text) : len;
        if (memchr(text, 0, n))
            return dq_fail(err, DQ_DAMAGED, "line %lld: contains a NUL", (long long)number);
        DQ_TRY(trec_line(r, text, n, number, err));
        n += nl != NULL;
        text += n;
        len -= n;
    }
    return DQ_OK;
}

static dq_status read_trec_fine(dq_icl_reader *r, const char *text, size_t len, dq_err *err)
{
    r->fine = true;
    return read_trec(r, text, len, err);
}

/* Text and category lie in `out`. */
static dq_status csv_example(dq_icl_reader *r, dq_csv *c, char *out, dq_err *err)
{
    const char *field[2] = {"", ""};
    const long long line = c->line;
    int have;
    DQ_TRY(dq_csv_record(c, out, field, 2, &have, err));
    if (have == 1 && !*field[0]) return DQ_OK;
    if (have != 2)
        return dq_fail(err, DQ_DAMAGED,
                       "line %lld: expected 2 fields, text and category, found %d. A field that "
                       "holds commas needs quotes",
                       line, have);
    if (!*field[0] || !*field[1])
        return dq_fail(err, DQ_DAMAGED, "line %lld: the %s is empty", line,
                       *field[0] ? "category" : "text");
    if (r->demos)
        return add_named(r, r->demos, &r->cap_demos, field[0], strlen(field[0]), field[1], err);
    return add_named(r, r->queries, &r->cap_queries, field[0], strlen(field[0]), field[1], err);
}

static dq_status read_csv(dq_icl_reader *r, const char *text, size_t len, dq_err *err)
{
    const char *field[2] = {"", ""};
    int have;
    DQ_TRY(dq_task_file_text(&text, &len, &r->n_bad, &r->first_bad, r->a, err));
    dq_csv c = {.s = text, .n = len, .line = 1};
    char *out = dq_alloc(r->a, len + 1, 1, err);
    if (!out) return err->code;
    DQ_TRY(dq_csv_record(&c, out, field, 2, &have, err));
    if (have != 2 || strcmp(field[0], "text") != 0 || strcmp(field[1], "category") != 0)
        return dq_fail(err, DQ_DAMAGED, "line 1: expected the header text,category");
    while (c.at < c.n) DQ_TRY(csv_example(r, &c, out, err));
    return DQ_OK;
}

static dq_status clinc_list(dq_icl_reader *r, const json_t *o, const char *key, bool needed,
                            dq_icl_pool *pool, size_t *cap, dq_err *err)
{
    const json_t *list = json_object_get(o, key);
    if (!list && !needed) return DQ_OK;
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected a list of [text, intent]", key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *x = json_array_get(pair, 0), *y = json_array_get(pair, 1);
        const char *text = json_string_value(x), *name = json_string_value(y);
        if (json_array_size(pair) != 2 || !text || !name || !*text || !*name ||
            strlen(text) != json_string_length(x) || strlen(name) != json_string_length(y))
            return dq_fail(err, DQ_DAMAGED,
                           "key \"%s\", entry %zu: expected [text, intent], two strings that are "
                           "not empty",
                           key, i);
        DQ_TRY(add_named(r, pool, cap, text, strlen(text), name, err));
    }
    return DQ_OK;
}

static dq_status clinc_lists(dq_icl_reader *r, const json_t *o, dq_err *err)
{
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    if (r->demos) {
        DQ_TRY(clinc_list(r, o, "train", true, r->demos, &r->cap_demos, err));
        DQ_TRY(clinc_list(r, o, "oos_train", false, r->demos, &r->cap_demos, err));
    }
    if (r->queries) {
        DQ_TRY(clinc_list(r, o, "test", true, r->queries, &r->cap_queries, err));
        DQ_TRY(clinc_list(r, o, "oos_test", false, r->queries, &r->cap_queries, err));
    }
    return DQ_OK;
}

static dq_status read_clinc(dq_icl_reader *r, const char *text, size_t len, dq_err *err)
{
    json_t *o = NULL;
    const size_t mark = dq_utf8_mark(text, len);
    if (dq_json_parse(&o, text + mark, len - mark, "data", err) == DQ_OK) clinc_lists(r, o, err);
    json_decref(o);
    return err->code;
}

const dq_icl_task dq_icl_tasks[] = {
    {"trec", "COARSE:fine and a question a line", "Question: ", "Type: ", false, read_trec},
    {"trec_fine", "COARSE:fine and a question a line", "Question: ", "Type: ", false,
     read_trec_fine},
    {"banking77", "CSV with the header text,category", "query: ", "intent: ", false, read_csv},
    {"clinic150", "JSON with the lists train and test", "utterance: ", "intent: ", true,
     read_clinc},
};
const int dq_icl_n_tasks = sizeof dq_icl_tasks / sizeof dq_icl_tasks[0];

const dq_icl_task *dq_icl_task_find(const char *name)
{
    for (int i = 0; i < dq_icl_n_tasks; i++) {
        if (strcmp(name, dq_icl_tasks[i].name) == 0) return &dq_icl_tasks[i];
    }
    return NULL;
}

static dq_status read_file(dq_icl_reader *r, const dq_icl_task *task, const dq_icl_file *f,
                           dq_err *err)
{
    r->n_bad = 0;
    r->first_bad = -1;
    task->read(r, f->text, f->len, err);
    if (err->code == DQ_OK && ((r->demos && !r->demos->n) || (r->queries && !r->queries->n)))
        dq_fail(err, DQ_DAMAGED, "holds no examples (expected %s)", task->form);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", f->path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A query must not see its own answer, so examples with its text are no demonstrations. */
static dq_status leave_out_queries(dq_icl_data *d, dq_err *err)
{
    dq_map64 asked = {0};
    int64_t n = 0;
    DQ_TRY(dq_map64_new(&asked, (size_t)d->queries.n + 1, NULL, err));
    for (int64_t i = 0; err->code == DQ_OK && i < d->queries.n; i++) {
        const dq_icl_example *x = &d->queries.ex[i];
        dq_map64_put(&asked, dq_repeats_key(x->text, x->len), 1, err);
    }
    for (int64_t i = 0; err->code == DQ_OK && i < d->demos.n; i++) {
        const dq_icl_example x = d->demos.ex[i];
        if (!dq_map64_get(&asked, dq_repeats_key(x.text, x.len))) d->demos.ex[n++] = x;
    }
    dq_map64_free(&asked);
    d->n_queries_in_demos = d->demos.n - n;
    d->demos.n = n;
    if (err->code == DQ_OK && n == 0)
        return dq_fail(
            err, DQ_MISMATCH,
            "all demonstrations are queries, too. Give demonstrations that are not asked "
            "for");
    return err->code;
}

dq_status dq_icl_read(dq_icl_data *out, const dq_icl_task *task, const dq_icl_file *queries,
                      const dq_icl_file *demos, dq_arena *a, dq_err *err)
{
    dq_icl_reader r = {.a = a, .queries = &out->queries};
    memset(out, 0, sizeof *out);
    if (!demos->text) r.demos = &out->demos; /* the one file has both */
    if (!demos->text && !task->one_file)
        return dq_fail(err, DQ_BUG, "%s: no file of demonstrations", task->name);
    DQ_TRY(read_file(&r, task, queries, err));
    out->n_bad = r.n_bad;
    out->first_bad = r.first_bad;
    out->first_bad_demos = -1;
    if (demos->text) {
        r.demos = &out->demos;
        r.queries = NULL;
        DQ_TRY(read_file(&r, task, demos, err));
        out->n_bad_demos = r.n_bad;
        out->first_bad_demos = r.first_bad;
    }
    /* Sorted by name, so that the order of files does not matter. */
    const char **sorted = dq_alloc(r.a, (size_t)r.n_labels, sizeof *sorted, err);
    int *to = dq_alloc(r.a, (size_t)r.n_labels, sizeof *to, err);
    if (!sorted || !to) return err->code;
    memcpy(sorted, r.label, (size_t)r.n_labels * sizeof *sorted);
    qsort(sorted, (size_t)r.n_labels, sizeof *sorted, by_name);
    for (int i = 0; i < r.n_labels; i++) {
        const char **at = bsearch(&r.label[i], sorted, (size_t)r.n_labels, sizeof *sorted, by_name);
        to[i] = (int)(at - sorted);
    }
    for (int64_t i = 0; i < out->demos.n; i++) out->demos.ex[i].label = to[out->demos.ex[i].label];
    for (int64_t i = 0; i < out->queries.n; i++)
        out->queries.ex[i].label = to[out->queries.ex[i].label];
    out->label = sorted;
    out->n_labels = r.n_labels;
    if (leave_out_queries(out, err) == DQ_OK) return DQ_OK;
    return dq_in(err, "%s: ", demos->text ? demos->path : queries->path);
}

const char *const dq_icl_order_name[DQ_ICL_ORDERS] = {"random", "class", "alternate"};

void dq_icl_permute(int32_t *out, int64_t n, uint64_t seed, uint64_t stream)
{
    dq_random r = dq_random_of(seed, stream);
    dq_random_permute(&r, out, n);
}

dq_status dq_icl_arrange(int32_t *demo, int64_t n, const dq_icl_pool *pool, int n_labels,
                         dq_icl_order order, dq_err *err)
{
    if (order == DQ_ICL_RANDOM || n == 0) return DQ_OK;
    int32_t *sorted = dq_block_new((size_t)n, sizeof *sorted, err);
    int64_t *first = dq_block_new((size_t)n_labels + 1, sizeof *first, err);
    if (sorted && first) {
        /* Counting sort by label: label l takes first[l] .. first[l + 1] - 1 of `sorted`. */
        for (int64_t i = 0; i < n; i++) first[pool->ex[demo[i]].label + 1]++;
        for (int l = 0; l < n_labels; l++) first[l + 1] += first[l];
        for (int64_t i = 0; i < n; i++) sorted[first[pool->ex[demo[i]].label]++] = demo[i];
        for (int l = n_labels; l > 0; l--) first[l] = first[l - 1]; /* now after what it began */
        first[0] = 0;
        if (order == DQ_ICL_CLASS) memcpy(demo, sorted, (size_t)n * sizeof *demo);
        int64_t have = order == DQ_ICL_CLASS ? n : 0;
        for (int64_t turn = 0; have < n; turn++) {
            for (int l = 0; l < n_labels; l++) {
                if (first[l] + turn < first[l + 1]) demo[have++] = sorted[first[l] + turn];
            }
        }
    }
    dq_block_free(sorted);
    dq_block_free(first);
    return err->code;
}
