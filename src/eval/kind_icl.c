/* In-context learning: labelled data sets, labels as ids and the choice among them, prompts, and
 * accuracies. Prompts, demonstrations and constrained decoding follow long-context-icl and
 * Parallel-Context-Windows (behaviour); random numbers are dq's own. Of a range of shots, scores of
 * a run and query are averaged over the shots first, as these share both; what is left is a table
 * of runs by queries.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/random.h"
#include "eval/inside.h"
#include "tasks/documents.h"
#include "tasks/tasks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Labelled data sets: examples and labels, as the official files have them. */

struct dq_icl_reader {
    dq_arena *a;
    bool fine;                    /* the task's */
    dq_icl_pool *demos, *queries; /* NULL: not wanted from this file */
    const char **label;           /* [n_labels] */
    int n_labels;
    size_t cap_labels;
    dq_strmap index; /* of each label */
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

static dq_status keep_example(dq_icl_reader *r, dq_icl_pool *pool, const char *text, size_t len,
                              const char *label, dq_err *err)
{
    dq_icl_example *list =
        dq_grow(r->a, pool->ex, (size_t)pool->n + 1, &pool->cap, sizeof *list, err);
    if (!list) return err->code;
    pool->ex = list;
    dq_icl_example *x = &pool->ex[pool->n];
    x->text = dq_text(r->a, text, len, err);
    x->len = len;
    if (x->text && add_label(r, label, &x->label, err) == DQ_OK) pool->n++;
    return err->code;
}

/* "intent_name" becomes "intent name". */
static dq_status add_named(dq_icl_reader *r, dq_icl_pool *pool, const char *text, const char *name,
                           dq_err *err)
{
    char *label = dq_text(r->a, name, strlen(name), err);
    for (char *c = label; c && *c; c++) {
        if (*c == '_') *c = ' ';
    }
    return label ? keep_example(r, pool, text, strlen(text), label, err) : err->code;
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
    return keep_example(r, r->demos ? r->demos : r->queries, line + code, n - code, name, err);
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
    return add_named(r, r->demos ? r->demos : r->queries, field[0], field[1], err);
}

static dq_status read_csv(dq_icl_reader *r, const char *text, size_t len, dq_err *err)
{
    static const char *const title[2] = {"text", "category"};
    const char *field[2] = {"", ""};
    int have;
    DQ_TRY(dq_task_file_text(&text, &len, &r->n_bad, &r->first_bad, r->a, err));
    dq_csv c = {.s = text, .n = len, .line = 1};
    char *out = dq_alloc(r->a, len + 1, 1, err);
    if (!out) return err->code;
    DQ_TRY(dq_csv_record(&c, out, field, 2, &have, err));
    if (have != 2 || strcmp(field[0], title[0]) != 0 || strcmp(field[1], title[1]) != 0)
        return dq_fail(err, DQ_DAMAGED, "line 1: expected the header text,category");
    while (c.at < c.n) DQ_TRY(csv_example(r, &c, out, err));
    return DQ_OK;
}

static dq_status clinc_list(dq_icl_reader *r, const json_t *o, const char *key, bool needed,
                            dq_icl_pool *pool, dq_err *err)
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
        DQ_TRY(add_named(r, pool, text, name, err));
    }
    return DQ_OK;
}

static dq_status read_clinc(dq_icl_reader *r, const char *text, size_t len, dq_err *err)
{
    json_t *o = NULL;
    const size_t mark = dq_utf8_mark(text, len);
    const struct {
        const char *key;
        bool needed;
        dq_icl_pool *pool; /* NULL: not wanted */
    } list[] = {{"train", true, r->demos},
                {"oos_train", false, r->demos},
                {"test", true, r->queries},
                {"oos_test", false, r->queries}};
    if (dq_json_parse(&o, text + mark, len - mark, "data", err) == DQ_OK && !json_is_object(o))
        dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    for (int i = 0; err->code == DQ_OK && i < 4; i++) {
        if (list[i].pool) clinc_list(r, o, list[i].key, list[i].needed, list[i].pool, err);
    }
    json_decref(o);
    return err->code;
}

const dq_icl_task dq_icl_tasks[] = {
    {"trec", "COARSE:fine and a question a line", "Question: ", "Type: ", read_trec, false, false},
    {"trec_fine", "COARSE:fine and a question a line", "Question: ", "Type: ", read_trec, true,
     false},
    {"banking77", "CSV with the header text,category", "query: ", "intent: ", read_csv, false,
     false},
    {"clinic150", "JSON with the lists train and test", "utterance: ", "intent: ", read_clinc,
     false, true},
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
    r->fine = task->fine;
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

/* Demonstrations come from the other file, or from that of the queries where there is none.
 * Messages name the file and the line (in JSON: the entry). */
static dq_status read_data(dq_icl_data *out, const dq_icl_task *task, const dq_icl_file *queries,
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
    if (demos->text) {
        r.demos = &out->demos;
        r.queries = NULL;
        DQ_TRY(read_file(&r, task, demos, err));
        out->n_bad_demos = r.n_bad;
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

/* A permutation of 0 .. n - 1: Fisher-Yates from the top with SplitMix64 and rejection, started
 * from (seed, stream); stream 0 draws the queries, 1 + r the demonstrations of run r, and 2^32 k +
 * n those that order k of n demonstrations begins with. */
static void permute(int32_t *out, int64_t n, uint64_t seed, uint64_t stream)
{
    dq_random r = dq_random_of(seed, stream);
    dq_random_permute(&r, out, n);
}

/* Orders demo[n], indices into the pool; stable among equal labels. */
static dq_status arrange(int32_t *demo, int64_t n, const dq_icl_pool *pool, int n_labels,
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

static dq_status encode_label(const dq_tokenizer *t, const char *s, int64_t vocab, int32_t **ids,
                              int64_t *n, dq_err *err)
{
    DQ_TRY(dq_tokenizer_encode(t, s, strlen(s), 0, ids, n, NULL, NULL, err));
    return dq_tokenizer_check_ids(*ids, *n, vocab, err);
}

static dq_status label_ids(dq_icl_label *l, const char *name, const dq_tokenizer *t, int64_t vocab,
                           dq_arena *a, dq_err *err)
{
    int32_t *ids = NULL;
    l->text = dq_textf(a, err, " %s", name);
    if (!l->text) return err->code;
    encode_label(t, name, vocab, &ids, &l->n, err);
    size_t len = 0;
    const char *piece = err->code == DQ_OK && l->n ? dq_tokenizer_piece(t, ids[0], &len) : NULL;
    const bool spaces_itself = piece && len > 0 && piece[0] == ' ';
    if (err->code == DQ_OK && !spaces_itself) {
        dq_block_free(ids);
        ids = NULL;
        encode_label(t, l->text, vocab, &ids, &l->n, err);
    }
    if (err->code == DQ_OK && l->n == 0)
        dq_fail(err, DQ_MISMATCH, "the label \"%s\" has no tokens in this tokenizer", name);
    if (err->code == DQ_OK) l->ids = dq_tokenizer_keep(ids, l->n, vocab, a, err);
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
    if (encode_label(t, "\n", vocab, &nl, &n, err) == DQ_OK && n == 0)
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

/* Ids of " name", or of "name" where the tokenizer adds the space, without template tokens. No
 * label is a prefix of another. */
static dq_status make_labels(dq_icl_label **out, const char *const *name, int n,
                             const dq_tokenizer *t, int64_t vocab, dq_arena *a, dq_err *err)
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

/* Greedy decoding where only ids that go on with some label are allowed, from logp[label.at + i],
 * the log-probability of id i of a label after the ids before it. alive[n] is for the function's
 * own use.
 *
 * Why this is the same: at a node of the tree of labels, decoding takes the allowed id with the
 * largest logit. All labels through the node begin with the same tokens, so what was computed for
 * them at this place has one context and one sum of exponentials, and log-probabilities are the
 * logits minus one number: their order is that of the logits. From the root on, both therefore take
 * the same child; among equals, the lowest id. Cutting labels to unique beginnings changes nothing,
 * for after these there is one child only. */
static int walk(const dq_icl_label *label, int n, const double *logp, int *alive)
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

/* The largest log-likelihood over n tokens, without the newline; of equals, the first. */
static int likeliest(const dq_icl_label *label, int n, const double *logp)
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

static const char between[] = "\n==\n";

static dq_status add(dq_strbuf *out, const char *s, dq_err *err)
{
    return dq_strbuf_add(out, s, strlen(s), err);
}

/* label NULL: a query, which ends without a space. */
static dq_status add_example(dq_strbuf *out, const dq_icl_task *task, const dq_icl_example *x,
                             const char *label, dq_err *err)
{
    DQ_TRY(add(out, task->x_prefix, err));
    DQ_TRY(dq_strbuf_add(out, x->text, x->len, err));
    DQ_TRY(add(out, "\n", err));
    DQ_TRY(add(out, task->y_prefix, err));
    if (label) return add(out, label, err);
    out->n = dq_items_strip_end(out->s, out->n);
    return DQ_OK;
}

static dq_status add_demos(dq_strbuf *out, const dq_icl_task *task, const dq_icl_data *d,
                           const dq_icl_block *b, dq_err *err)
{
    for (int64_t i = 0; i < b->shots; i++) {
        const dq_icl_example *x = &d->demos.ex[b->demo[i]];
        DQ_TRY(add_example(out, task, x, d->label[x->label], err));
        DQ_TRY(add(out, between, err));
    }
    return DQ_OK;
}

typedef struct encoded {
    int32_t *p; /* [n] */
    int64_t n;
} encoded;

typedef struct maker {
    dq_eval *e;
    dq_arena *a;
    const dq_tokenizer *t;
    int64_t max_len, vocab;
    const dq_icl_settings *s;
    const dq_icl_data *d;
    int32_t *left; /* [n_left] demonstrations that are not too long */
    int64_t n_left;
    int64_t longest; /* ids of a label */
    dq_icl_layout *p;
    dq_icl_block *block; /* [n_blocks], with shared prefix and context */
    dq_shared_prefix *shared_prefix;
    encoded *ctx; /* [n_blocks * n_queries] */
    size_t cap_block, cap_prefix, cap_ctx;
    dq_strbuf buf;
} maker;

static dq_status encode(const maker *m, dq_bos bos, encoded *out, dq_err *err)
{
    const char *s = m->buf.s ? m->buf.s : "";
    return dq_tokenizer_encode(m->t, s, m->buf.n, dq_items_bos_flags(m->t, bos, s, m->buf.n),
                               &out->p, &out->n, NULL, NULL, err);
}

/* Drops examples longer than 99 % of all. */
static dq_status drop_longest(maker *m, const dq_icl_pool *pool, bool labels, int32_t *left,
                              int64_t *n_left, dq_err *err)
{
    double *len = dq_alloc(m->a, 2 * (size_t)pool->n, sizeof *len, err);
    if (!len) return err->code;
    for (int64_t i = 0; i < pool->n; i++) {
        const dq_icl_example *x = &pool->ex[i];
        encoded w = {0};
        m->buf.n = 0;
        DQ_TRY(add_example(&m->buf, m->s->task, x, labels ? m->d->label[x->label] : NULL, err));
        DQ_TRY(encode(m, DQ_BOS_OFF, &w, err));
        dq_block_free(w.p);
        len[i] = len[pool->n + i] = (double)w.n;
    }
    dq_stat_sort(len + pool->n, pool->n);
    double max = dq_stat_percentile(len + pool->n, pool->n, 0.99);
    *n_left = 0;
    for (int64_t i = 0; i < pool->n; i++) {
        if (len[i] <= max) left[(*n_left)++] = (int32_t)i;
    }
    return DQ_OK;
}

/* Encodes every prompt of the block; w[n_queries]: the demonstrations alone. *fits: all fit with
 * their longest label. */
static dq_status encode_prompts(maker *m, const dq_icl_block *b, encoded *w, bool *fits,
                                dq_err *err)
{
    int64_t n = m->p->n_queries, capacity = m->max_len + 1 - m->longest;
    m->buf.n = 0;
    DQ_TRY(add_demos(&m->buf, m->s->task, m->d, b, err));
    DQ_TRY(encode(m, m->e->bos, &w[n], err));
    size_t demos = m->buf.n;
    *fits = w[n].n <= capacity;
    for (int64_t q = 0; *fits && q < n; q++) {
        m->buf.n = demos;
        DQ_TRY(add_example(&m->buf, m->s->task, &m->d->queries.ex[m->p->query[q]], NULL, err));
        DQ_TRY(encode(m, m->e->bos, &w[q], err));
        *fits = w[q].n <= capacity;
    }
    return DQ_OK;
}

/* The shared prefix is the common start of all prompts and the demonstrations; one id of each
 * prompt stays. */
static dq_status store_prompts(maker *m, const encoded *w, dq_err *err)
{
    int64_t n = m->p->n_queries, b = m->p->n_blocks, shared_prefix = w[n].n;
    for (int64_t q = 0; q < n; q++) {
        int64_t k = 0;
        if (w[q].n == 0)
            return dq_fail(err, DQ_MISMATCH, "a prompt gives no tokens in this tokenizer");
        while (k < shared_prefix && k < w[q].n - 1 && w[q].p[k] == w[n].p[k]) k++;
        shared_prefix = k;
    }
    m->shared_prefix[b] =
        (dq_shared_prefix){.ids = dq_tokenizer_keep(w[n].p, shared_prefix, m->vocab, m->a, err),
                           .n = shared_prefix,
                           .end = (b + 1) * n};
    for (int64_t q = 0; err->code == DQ_OK && q < n; q++) {
        const int64_t own = w[q].n - shared_prefix;
        m->ctx[b * n + q] =
            (encoded){dq_tokenizer_keep(w[q].p + shared_prefix, own, m->vocab, m->a, err), own};
    }
    return err->code;
}

static dq_status add_block(maker *m, dq_icl_block b, bool *fits, dq_err *err)
{
    const int64_t n = m->p->n_queries;
    const size_t want = (size_t)m->p->n_blocks + 1;
    m->block = dq_grow(m->a, m->block, want, &m->cap_block, sizeof *m->block, err);
    m->shared_prefix =
        dq_grow(m->a, m->shared_prefix, want, &m->cap_prefix, sizeof *m->shared_prefix, err);
    m->ctx = dq_grow(m->a, m->ctx, want * (size_t)n, &m->cap_ctx, sizeof *m->ctx, err);
    if (!m->block || !m->shared_prefix || !m->ctx) return err->code;
    /* Demonstrations are the first of the run's permutation, perhaps reshuffled, in the order of
     * the settings. */
    int64_t shots = b.shots;
    int32_t *perm = dq_block_new((size_t)m->n_left, sizeof *perm, err);
    int32_t *again = dq_block_new((size_t)shots, sizeof *again, err);
    int32_t *demo = dq_alloc(m->a, (size_t)shots, sizeof *demo, err);
    if (perm && again && demo) {
        permute(perm, m->n_left, m->s->seed, 1 + (uint64_t)b.run);
        for (int64_t i = 0; i < shots; i++) again[i] = (int32_t)i;
        if (b.order > 0)
            permute(again, shots, m->s->seed, (uint64_t)b.order << 32 | (uint64_t)shots);
        for (int64_t i = 0; i < shots; i++) demo[i] = m->left[perm[again[i]]];
        arrange(demo, shots, &m->d->demos, m->d->n_labels, m->s->order, err);
    }
    b.demo = demo;
    dq_block_free(perm);
    dq_block_free(again);
    if (err->code != DQ_OK) return err->code;
    encoded *w = dq_block_new((size_t)n + 1, sizeof *w, err);
    if (!w) return err->code;
    if (encode_prompts(m, &b, w, fits, err) == DQ_OK && *fits && store_prompts(m, w, err) == DQ_OK)
        m->block[m->p->n_blocks++] = b;
    for (int64_t q = 0; q <= n; q++) dq_block_free(w[q].p);
    dq_block_free(w);
    return err->code;
}

/* If some number of shots does not fit, no larger one does: sets are nested. */
static dq_status make_blocks(maker *m, dq_err *err)
{
    static const int first[] = {1, 10, 25, 50, 100};
    const int n_first = sizeof first / sizeof first[0];
    bool fits = true;
    int n = m->s->n_shots ? m->s->n_shots : DQ_ICL_SHOTS;
    int64_t shots = 0;
    for (int i = 0; i < n; i++) {
        shots = m->s->n_shots ? m->s->shots[i] : i < n_first ? first[i] : 2 * shots;
        if (fits) {
            /* All blocks with so many shots, or none if one does not fit. */
            int64_t before = m->p->n_blocks;
            fits = shots <= m->n_left;
            for (int64_t r = 0; fits && r < m->s->runs; r++)
                DQ_TRY(add_block(m, (dq_icl_block){.run = r, .shots = shots}, &fits, err));
            for (int64_t k = 1; fits && k < m->s->orders; k++)
                DQ_TRY(add_block(m, (dq_icl_block){.order = k, .shots = shots}, &fits, err));
            if (fits)
                m->p->shots[m->p->n_shots++] = (int)shots;
            else
                m->p->n_blocks = before;
        }
        if (!fits && !m->s->n_shots) break;
        if (!fits) m->p->over[m->p->n_over++] = (int)shots;
    }
    if (m->p->n_shots > 0) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_OPTION},
                        "shots: not even %d fits (the model has %lld positions, the data %lld "
                        "demonstrations). Use fewer",
                        m->s->n_shots ? m->s->shots[0] : 1, (long long)m->max_len,
                        (long long)m->n_left);
}

/* One request per item and label; ids of queries and labels are shared. */
static dq_status make_requests(maker *m, dq_requests *out, dq_err *err)
{
    int64_t n_items = m->p->n_blocks * m->p->n_queries, n = m->d->n_labels, k = 0;
    dq_request *req = dq_alloc(m->a, (size_t)(n_items * n), sizeof *req, err);
    int64_t *at = dq_alloc(m->a, (size_t)n_items + 1, sizeof *at, err);
    if (!req || !at) return err->code;
    for (int64_t i = 0; i < n_items; i++) {
        for (int c = 0; c < n; c++) {
            const dq_icl_label *l = &m->p->label[c];
            req[k++] = (dq_request){.ctx = m->ctx[i].p,
                                    .n_ctx = m->ctx[i].n,
                                    .cont = l->ids,
                                    .n_cont = l->n_cont,
                                    .value = i * m->p->n_label_ids + l->at,
                                    .item = i,
                                    .choice = c};
        }
        at[i + 1] = k;
    }
    *out = (dq_requests){.req = req,
                         .at = at,
                         .n = k,
                         .n_items = n_items,
                         .n_values = n_items * m->p->n_label_ids,
                         .shared_prefix = m->shared_prefix,
                         .n_shared_prefixes = m->p->n_blocks};
    return DQ_OK;
}

static dq_status load_icl(dq_eval *e, dq_eval_source *s, dq_err *err)
{
    const dq_icl_settings *x = s->settings;
    dq_icl_data *d = dq_alloc(e->a, 1, sizeof *d, err);
    if (!d) return err->code;
    s->own = d;
    DQ_TRY(read_data(d, x->task, &(dq_icl_file){s->path, s->text, s->len}, &x->demos, e->a, err));
    s->items.n_bad = d->n_bad;
    s->items.first_bad = d->first_bad;
    return DQ_OK;
}

static dq_status make_layout(maker *m, dq_requests *req, dq_err *err)
{
    dq_icl_label *label = NULL;
    int labels = m->d->n_labels;
    DQ_TRY(make_labels(&label, m->d->label, labels, m->t, m->vocab, m->a, err));
    m->p->alive = dq_alloc(m->a, (size_t)labels, sizeof *m->p->alive, err);
    if (!m->p->alive) return err->code;
    m->p->label = label;
    m->p->n_label_ids = label[labels - 1].at + label[labels - 1].n_cont;
    for (int i = 0; i < labels; i++) {
        if (label[i].n_cont > m->longest) m->longest = label[i].n_cont;
    }
    const dq_icl_data *d = m->d;
    int32_t *left = dq_alloc(m->a, (size_t)d->queries.n, sizeof *left, err);
    int32_t *perm = dq_alloc(m->a, (size_t)d->queries.n, sizeof *perm, err);
    m->left = dq_alloc(m->a, (size_t)d->demos.n, sizeof *m->left, err);
    int64_t n = 0;
    if (!left || !perm || !m->left) return err->code;
    DQ_TRY(drop_longest(m, &d->demos, true, m->left, &m->n_left, err));
    DQ_TRY(drop_longest(m, &d->queries, false, left, &n, err));
    m->p->demos = m->n_left;
    m->p->demos_dropped = d->demos.n - m->n_left;
    m->p->queries_dropped = d->queries.n - n;
    permute(perm, n, m->s->seed, 0);
    for (int64_t i = 0; i < n; i++) perm[i] = left[perm[i]];
    m->p->query = perm;
    m->p->n_queries = n < m->s->queries ? n : m->s->queries;
    DQ_TRY(make_blocks(m, err));
    m->p->block = m->block;
    return make_requests(m, req, err);
}

static dq_status encode_icl(dq_eval *e, dq_eval_ids *out, dq_err *err)
{
    const dq_eval_source *s = &e->source[out->source];
    const dq_eval_model *em = &e->model[out->model];
    dq_icl_layout *p = dq_alloc(e->a, 1, sizeof *p, err);
    if (!p) return err->code;
    maker m = {.e = e,
               .a = e->a,
               .t = em->tok,
               .max_len = em->m->max_positions,
               .vocab = em->m->vocab,
               .s = s->settings,
               .d = s->own,
               .p = p};
    out->own = p;
    DQ_TRY(dq_items_bos_check(em->tok, e->bos, err));
    make_layout(&m, &out->req, err);
    dq_block_free(m.buf.s);
    if (err->code != DQ_OK) return err->code;
    /* Blocks share their queries, some of which may be copies. */
    const int64_t n = m.p->n_queries, all = m.p->n_blocks * n;
    const int32_t *of = NULL;
    uint64_t *key = dq_alloc(m.a, (size_t)n, sizeof *key, err);
    int32_t *cluster = dq_alloc(m.a, (size_t)all, sizeof *cluster, err);
    if (!key || !cluster) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const dq_icl_example *x = &m.d->queries.ex[m.p->query[i]];
        key[i] = dq_repeats_key(x->text, x->len);
    }
    DQ_TRY(dq_repeats_keys(&of, key, n, m.a, err));
    for (int64_t i = 0; i < all; i++) cluster[i] = of ? of[i % n] : (int32_t)(i % n);
    out->cluster = cluster;
    return DQ_OK;
}

static void judge_icl(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const dq_icl_data *d = dq_eval_source_of(e, row)->own;
    const dq_icl_layout *p = e->ids[row->ids].own;
    for (int64_t i = 0; i < p->n_blocks * p->n_queries; i++)
        score[i] =
            dq_icl_pick(e, row, metric, i) == d->queries.ex[p->query[i % p->n_queries]].label;
}

dq_status dq_icl_prompt(dq_strbuf *out, const dq_eval *e, const dq_eval_row *row, int64_t i,
                        dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(e, row);
    const dq_icl_task *task = ((const dq_icl_settings *)s->settings)->task;
    const dq_icl_data *d = s->own;
    const dq_icl_layout *p = e->ids[row->ids].own;
    DQ_TRY(add_demos(out, task, d, &p->block[i / p->n_queries], err));
    return add_example(out, task, &d->queries.ex[p->query[i % p->n_queries]], NULL, err);
}

const dq_eval_kind dq_eval_icl_kind = {
    .metric = {"acc", "acc_ll"},
    .load = load_icl,
    .encode = encode_icl,
    .judge = judge_icl,
    .cluster = "query",
};

dq_icl_range dq_icl_range_of(const dq_eval *e, int row, int from)
{
    const dq_icl_layout *p = e->ids[e->row[row].ids].own;
    const dq_eval_source *s = dq_eval_source_of(e, &e->row[row]);
    const dq_icl_settings *of = s->settings;
    dq_icl_range all = {.n = 0}, range = {.from = from};
    for (int i = 0; i < p->n_shots; i++) {
        bool common = true;
        for (int k = 0; k < e->n_rows; k++) {
            /* a shown row of the same task, in any order of demonstrations */
            const dq_eval_source *o = dq_eval_source_of(e, &e->row[k]);
            const dq_icl_settings *b = o->settings;
            if (!e->row[k].shown || s->kind != o->kind || b->task != of->task) continue;
            const dq_icl_layout *other = e->ids[e->row[k].ids].own;
            bool has = false;
            for (int j = 0; j < other->n_shots; j++) has = has || other->shots[j] == p->shots[i];
            common = common && has;
        }
        if (common) all.shots[all.n++] = p->shots[i];
    }
    if (all.n && !from) range.from = (all.shots[all.n - 1] + 1) / 2;
    for (int i = 0; i < all.n; i++) {
        if (all.shots[i] >= range.from) range.shots[range.n++] = all.shots[i];
    }
    return range;
}

/* Sum of squared deviations of n means, `step` apart, each of `width` numbers `stride` apart. */
static double squares(const double *x, int64_t n, int64_t step, int64_t width, int64_t stride,
                      double mean)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double total = 0;
        for (int64_t k = 0; k < width; k++) total += x[i * step + k * stride] - mean;
        sum += total / (double)width * (total / (double)width);
    }
    return sum;
}

static double squared(double x)
{
    return x * x;
}

/* The squared error times runs * queries, and its degrees of freedom. */
static double combined(double r, double q, double e, int64_t runs, int64_t queries, double *df)
{
    const double of_r = (double)(runs - 1), of_q = (double)(queries - 1);
    const double sum = r + q - e;
    if (sum >= r && sum >= q) {
        *df = squared(sum) / (squared(r) / of_r + squared(q) / of_q + squared(e) / (of_r * of_q));
        return sum;
    }
    *df = r > q ? of_r : of_q;
    return r > q ? r : q;
}

/* The mean of x[runs * queries], whose rows are runs and whose columns are queries. Both are draws,
 * and their effects add: with mean squares R of runs, Q of queries and E of what is left, the error
 * squared is max(R + Q - E, R, Q) / (runs * queries). The interval is by Student's t with
 * Satterthwaite's degrees of freedom. One run: queries alone count, and nothing is known of other
 * demonstrations. Where all rows and columns have one mean, the interval is dq_interval_still's, of
 * values in low .. high.
 * Source: the analysis of variance of two crossed random factors with one value a cell;
 * Satterthwaite, Biometrics Bulletin 2 (1946). */
static dq_icl_plateau plateau_of(const double *x, int64_t runs, int64_t queries, double low,
                                 double high)
{
    const double n = (double)(runs * queries), of_r = (double)(runs - 1),
                 of_q = (double)(queries - 1);
    dq_icl_plateau o = {.mean = {0, (double)NAN, queries}, .interval = dq_interval_none};
    double all = 0, df = of_q;
    for (int64_t i = 0; i < runs * queries; i++) o.mean.value += x[i];
    o.mean.value /= n;
    if (queries < 2) return o;
    for (int64_t i = 0; i < runs * queries; i++) all += squared(x[i] - o.mean.value);
    const double by_run = (double)queries * squares(x, runs, queries, queries, 1, o.mean.value);
    const double by_query = (double)runs * squares(x, queries, 1, runs, queries, o.mean.value);
    const double left = fmax(0, all - by_run - by_query);
    double error = by_query / of_q;
    if (runs > 1)
        error = combined(by_run / of_r, by_query / of_q, left / (of_r * of_q), runs, queries, &df);
    if (error <= 1e-24) { /* rounding of sums is no spread */
        o.mean.std_err = 0;
        o.interval = dq_interval_still(o.mean.value, queries, low, high);
        return o;
    }
    o.mean.std_err = sqrt(error / n);
    o.mean.clusters = (int64_t)fmax(1, df) + 1;
    o.interval = dq_interval_t(o.mean.value, o.mean.std_err, o.mean.clusters);
    return o;
}

/* Adds sign times the row's scores, summed over the range, to x. */
static dq_status add_scores(double *x, const dq_eval *e, const dq_eval_row *row,
                            const dq_icl_range *range, double sign, dq_err *err)
{
    const dq_icl_layout *p = e->ids[row->ids].own;
    const int64_t n = p->n_queries;
    double *score = dq_block_new((size_t)(p->n_blocks * n), sizeof *score, err);
    if (!score) return err->code;
    dq_eval_icl_kind.judge(e, row, dq_eval_quoted(dq_eval_source_of(e, row)), score);
    for (int64_t b = 0; b < p->n_blocks; b++) {
        const dq_icl_block *of = &p->block[b];
        bool in = false;
        for (int i = 0; i < range->n; i++) in = in || (!of->order && of->shots == range->shots[i]);
        for (int64_t q = 0; in && q < n; q++) x[of->run * n + q] += sign * score[b * n + q];
    }
    dq_block_free(score);
    return DQ_OK;
}

dq_status dq_icl_plateau_find(dq_icl_plateau *out, const dq_eval *e, int before, int after,
                              const dq_icl_range *range, dq_err *err)
{
    const dq_eval_row *row = &e->row[after];
    const dq_icl_layout *p = e->ids[row->ids].own;
    const dq_icl_settings *s = dq_eval_source_of(e, row)->settings;
    const int64_t n = s->runs * p->n_queries;
    double *x = dq_block_new((size_t)n, sizeof *x, err);
    if (!x) return err->code;
    add_scores(x, e, row, range, 1, err);
    if (err->code == DQ_OK && before >= 0) add_scores(x, e, &e->row[before], range, -1, err);
    for (int64_t i = 0; i < n; i++) x[i] /= range->n;
    if (err->code == DQ_OK) *out = plateau_of(x, s->runs, p->n_queries, before < 0 ? 0 : -1, 1);
    dq_block_free(x);
    return err->code;
}

int dq_icl_pick(const dq_eval *e, const dq_eval_row *row, int metric, int64_t i)
{
    const dq_icl_data *d = dq_eval_source_of(e, row)->own;
    const dq_icl_layout *p = e->ids[row->ids].own;
    const double *logp = row->logp + i * p->n_label_ids;
    if (metric == 0) return walk(p->label, d->n_labels, logp, p->alive);
    return likeliest(p->label, d->n_labels, logp);
}

dq_status dq_icl_scores(const dq_eval *e, const dq_eval_row *row, dq_icl_score *out, dq_err *err)
{
    const dq_icl_layout *p = e->ids[row->ids].own;
    double *score = dq_block_new((size_t)(p->n_blocks * p->n_queries), sizeof *score, err);
    if (!score) return err->code;
    for (int metric = 0; metric < 2; metric++) {
        dq_eval_icl_kind.judge(e, row, metric, score);
        for (int64_t b = 0; b < p->n_blocks; b++) {
            int64_t right = 0;
            for (int64_t q = 0; q < p->n_queries; q++) right += score[b * p->n_queries + q] == 1;
            dq_mean m = dq_mean_share(right, p->n_queries);
            if (metric == 0)
                out[b].acc = m;
            else
                out[b].acc_ll = m;
        }
    }
    dq_block_free(score);
    return DQ_OK;
}

/* Run 0 is the first block of both sets. */
static bool counts(const dq_icl_block *b, int64_t shots, bool by_order)
{
    return b->shots == shots && (by_order ? b->run : b->order) == 0;
}

dq_icl_point dq_icl_point_of(const dq_icl_layout *p, const dq_icl_score *score, int64_t shots,
                             bool by_order)
{
    dq_icl_point x = {.min = INFINITY, .max = -INFINITY};
    double sum = 0, squares = 0;
    for (int64_t b = 0; b < p->n_blocks; b++) {
        double acc = score[b].acc.value;
        if (!counts(&p->block[b], shots, by_order)) continue;
        x.blocks++;
        sum += acc;
        if (acc < x.min) x.min = acc;
        if (acc > x.max) x.max = acc;
    }
    x.mean = x.max > x.min ? sum / (double)x.blocks : x.max; /* equal ones have no deviation */
    for (int64_t b = 0; b < p->n_blocks; b++) {
        double off = score[b].acc.value - x.mean;
        if (counts(&p->block[b], shots, by_order)) squares += off * off;
    }
    x.std = x.blocks > 1 ? sqrt(squares / (double)(x.blocks - 1)) : (double)NAN;
    return x;
}

void dq_icl_cost(const dq_requests *q, int64_t *naive, int64_t *shared)
{
    *naive = *shared = 0;
    for (int64_t t = 0; t < q->n_shared_prefixes; t++) *shared += q->shared_prefix[t].n;
    for (int64_t i = 0; i < q->n_items; i++) {
        const dq_request *r = &q->req[q->at[i]];
        int64_t n = q->at[i + 1] - q->at[i];
        *naive += n * (dq_items_shared_prefix(q, i)->n + r->n_ctx);
        *shared += r->n_ctx;
        for (int64_t k = 0; k < n; k++) {
            *naive += r[k].n_cont - 1;
            *shared += r[k].n_cont - 1;
        }
    }
}
