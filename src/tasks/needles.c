/* Names for needles. See tasks.h. Samples are drawn by place in this list: whoever changes it
 * changes all prompts.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/items.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

enum { DQ_NEAR_DIGITS = 2 }; /* that may differ: 5 of 7 are equal */

const char *const dq_needle_city[DQ_NEEDLE_CITIES] = {
    "Accra",    "Almaty",    "Amman",    "Ankara",  "Athens",   "Baku",     "Bangkok",  "Beirut",
    "Belgrade", "Berlin",    "Bern",     "Bogota",  "Boston",   "Brisbane", "Brussels", "Bucharest",
    "Budapest", "Cairo",     "Calgary",  "Caracas", "Chennai",  "Chicago",  "Colombo",  "Dakar",
    "Dallas",   "Denver",    "Dhaka",    "Doha",    "Dublin",   "Durban",   "Geneva",   "Glasgow",
    "Hamburg",  "Hanoi",     "Harare",   "Havana",  "Helsinki", "Houston",  "Jakarta",  "Kampala",
    "Karachi",  "Kigali",    "Kingston", "Krakow",  "Kyoto",    "Lagos",    "Lahore",   "Leipzig",
    "Lima",     "Lisbon",    "London",   "Luanda",  "Lusaka",   "Lyon",     "Madrid",   "Manila",
    "Medellin", "Milan",     "Minsk",    "Mombasa", "Montreal", "Moscow",   "Mumbai",   "Muscat",
    "Nairobi",  "Naples",    "Osaka",    "Oslo",    "Ottawa",   "Paris",    "Perth",    "Prague",
    "Quito",    "Rabat",     "Riga",     "Rome",    "Santiago", "Seattle",  "Seoul",    "Seville",
    "Sofia",    "Stockholm", "Sydney",   "Taipei",  "Tallinn",  "Tashkent", "Tbilisi",  "Tehran",
    "Tirana",   "Tokyo",     "Toronto",  "Tripoli", "Tunis",    "Vienna",   "Vilnius",  "Warsaw",
    "Windhoek", "Yerevan",   "Zagreb",   "Zurich",
};

/* A prompt takes these steps: draw cities, numbers and the question; encode them; see how many
 * tokens remain for filler; choose where it begins and where needles go; assemble. Texts are drawn
 * first, so that a seed gives the same needles at every length. */

#define ASKS "The special magic %s number is:"
const char dq_needle_form[] =
    "{filler with needles \"\\nThe special magic {city} number is: {number}\\n\"}"
    "\\n\\nQuestion: What is the special magic number for {city}?\\nAnswer: The special magic "
    "{city} number is:"
    " | of several: What are the special magic numbers for {city}, and {city}?, each asked for in "
    "turn after"
    " the answer before it with \"\\nThe special magic {city} number is:\"";

const char *const dq_needle_class_name[DQ_NEEDLE_CLASSES] = {"bos", "answer", "distractor", "noise",
                                                             "query"};

/* The seed covers everything that names a sample, so other cells and samples do not matter. */
static dq_random needle_random(uint64_t seed, const dq_needle_cell *cell, int64_t sample)
{
    const uint64_t name[] = {(uint64_t)cell->length, (uint64_t)cell->depth, (uint64_t)cell->n,
                             (uint64_t)cell->r, (uint64_t)sample};
    dq_random r = {.state = seed};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) r.state = dq_random_next(&r) ^ name[i];
    return r;
}

/* Fisher-Yates, of which only the first k are needed. */
static void shuffle(int *thing, int k, int n, dq_random *r)
{
    for (int i = 0; i < k; i++) {
        const int other = i + (int)dq_random_below(r, (uint64_t)(n - i)), kept = thing[i];
        thing[i] = thing[other];
        thing[other] = kept;
    }
}

static dq_status index_filler(dq_needle_filler *out, const dq_tokenizer *t, const int32_t *from,
                              dq_arena *a, dq_err *err)
{
    int32_t *ids = dq_alloc(a, (size_t)out->n, sizeof *ids, err);
    bool *ends = dq_alloc(a, (size_t)out->n, sizeof *ends, err);
    int64_t *start = dq_alloc(a, (size_t)out->n, sizeof *start, err);
    bool any = false;
    if (!ids || !ends || !start) return err->code;
    memcpy(ids, from, (size_t)out->n * sizeof *ids);
    for (int64_t i = 0; i < out->n; i++) {
        size_t len;
        const char *piece = dq_tokenizer_piece(t, ids[i], &len);
        ends[i] = piece && len > 0 && memchr(".!?\n", piece[len - 1], 4);
        any = any || ends[i];
        if (!ends[i] && (i == 0 || ends[i - 1])) start[out->n_starts++] = i;
    }
    out->ids = ids;
    out->ends = ends;
    out->start = start;
    if (any && out->n_starts > 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "has no end of a sentence (a token that ends in . ! ? or a newline) to put a "
                   "needle after. Give running text");
}

dq_status dq_needle_filler_read(dq_needle_filler *out, const dq_tokenizer *t, const char *text,
                                size_t len, int64_t vocab, dq_arena *a, dq_err *err)
{
    int32_t *ids;
    memset(out, 0, sizeof *out);
    DQ_TRY(dq_tokenizer_encode(t, text, len, 0, &ids, &out->n, &out->first_bad, &out->n_bad, err));
    if (out->n == 0)
        dq_fail(err, DQ_DAMAGED, "holds no text to hide needles in");
    else if (dq_tokenizer_check_ids(ids, out->n, vocab, err) == DQ_OK)
        index_filler(out, t, ids, a, err);
    dq_block_free(ids);
    return err->code;
}

int64_t dq_needle_left(const dq_needle_cell *cell, int n_bos, const int64_t *len, int64_t n_query,
                       int64_t budget)
{
    int64_t left = cell->length - n_bos - n_query - budget;
    for (int i = 0; i < cell->n; i++) left -= len[i];
    return left;
}

int64_t dq_needle_anchor(int depth, int64_t n_filler)
{
    return (n_filler * depth + 50) / 100;
}

static bool comes_before(int x, int y, const int64_t *at, const uint64_t *tie, int depth)
{
    if (at[x] != at[y]) return at[x] < at[y];
    if (depth == 0 && (x == 0 || y == 0)) return x == 0;
    if (depth == 100 && (x == 0 || y == 0)) return y == 0;
    return tie[x] != tie[y] ? tie[x] < tie[y] : x < y;
}

void dq_needle_place(int64_t *anchor, int *order, const uint64_t *tie, int n, int depth,
                     const dq_needle_filler *f, int64_t start, int64_t n_filler)
{
    for (int i = 0; i < n; i++) {
        if (anchor[i] == n_filler) continue;
        while (anchor[i] > 0 && !f->ends[(start + anchor[i] - 1) % f->n]) anchor[i]--;
    }
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && comes_before(i, order[k - 1], anchor, tie, depth); k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

typedef struct making {
    const dq_needle_maker *m;
    const dq_needle_cell *cell;
    dq_random random;
    dq_needle_prompt *p;
    const char **city, **number;
    int64_t *at, *len;
    const int32_t **sentence; /* [n] ids of the needles; len[n] of them */
    dq_needle_answer *answer;
    const int32_t *asks; /* [n_query + n_answer] question and answers */
    int64_t n_query;
    int64_t *anchor;
    uint64_t *tie;
    int *order;
} making;

/* Encodes `text` as a continuation, since a tokenizer may treat a beginning differently. */
static dq_status encode(const making *x, const char *text, size_t len, const int32_t **out,
                        int64_t *n, dq_err *err)
{
    enum { CARRIER = 1 };
    char *all = dq_block_new(len + CARRIER, 1, err);
    int32_t *ids = NULL, *carrier = NULL;
    int64_t n_carrier = 0;
    if (!all) return err->code;
    all[0] = 'a';
    memcpy(all + CARRIER, text, len);
    if (dq_tokenizer_encode(x->m->t, all, CARRIER, 0, &carrier, &n_carrier, NULL, NULL, err) ==
            DQ_OK &&
        dq_tokenizer_encode(x->m->t, all, len + CARRIER, 0, &ids, n, NULL, NULL, err) == DQ_OK) {
        *n -= n_carrier;
        if (*n <= 0) {
            dq_fail(err, DQ_MISMATCH, "the tokenizer gives no ids for the text of a needle");
        } else if (dq_tokenizer_check_ids(ids + n_carrier, *n, x->m->vocab, err) == DQ_OK && out) {
            int32_t *kept = dq_alloc(x->m->a, (size_t)*n, sizeof *kept, err);
            if (kept) memcpy(kept, ids + n_carrier, (size_t)*n * sizeof *kept);
            *out = kept;
        }
    }
    dq_block_free(carrier);
    dq_block_free(ids);
    dq_block_free(all);
    return err->code;
}

static bool taken(const char **number, int n, const char *text)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(number[i], text) == 0) return true;
    }
    return false;
}

static dq_status add(dq_strbuf *b, dq_err *err, const char *text)
{
    return dq_strbuf_add(b, text, strlen(text), err);
}

/* "\n\nQuestion: ...\nAnswer:" */
static dq_status add_question(const making *x, dq_strbuf *b, dq_err *err)
{
    const int r = x->cell->r;
    DQ_TRY(add(b, err, "\n\nQuestion: "));
    DQ_TRY(add(b, err,
               r == 1 ? "What is the special magic number for "
                      : "What are the special magic numbers for "));
    for (int i = 0; i < r; i++) {
        if (i) DQ_TRY(add(b, err, i + 1 < r ? ", " : ", and "));
        DQ_TRY(add(b, err, x->city[x->answer[i].needle]));
    }
    return add(b, err, "?\nAnswer:");
}

static bool has_digit(const dq_tokenizer *t, int32_t id)
{
    size_t len;
    const char *piece = dq_tokenizer_piece(t, id, &len);
    for (size_t i = 0; piece && i < len; i++) {
        if (piece[i] >= '0' && piece[i] <= '9') return true;
    }
    return false;
}

/* Encodes both as one text; its parts are split where the encoded prefix has so many tokens. */
static dq_status encode_asking(making *x, dq_strbuf *b, dq_err *err)
{
    int64_t n = 0;
    DQ_TRY(add_question(x, b, err));
    for (int i = 0; i < x->cell->r; i++) {
        dq_needle_answer *o = &x->answer[i];
        char text[128];
        snprintf(text, sizeof text, "%s" ASKS, i ? "\n" : " ", x->city[o->needle]);
        DQ_TRY(add(b, err, text));
        DQ_TRY(encode(x, b->s, b->n, NULL, &o->begin, err));
        snprintf(text, sizeof text, " %s", x->number[o->needle]);
        DQ_TRY(add(b, err, text));
        DQ_TRY(encode(x, b->s, b->n, &x->asks, &o->to, err));
        if (o->begin < n || o->to <= o->begin)
            return dq_fail(err, DQ_MISMATCH,
                           "the tokenizer joins numbers with the text around them, so their ids "
                           "cannot be told apart");
        n = o->to;
    }
    x->n_query = x->answer[0].begin;
    x->p->n_answer = n - x->n_query;
    for (int i = 0; i < x->cell->r; i++) {
        dq_needle_answer *o = &x->answer[i];
        for (o->from = o->begin; o->from + 1 < o->to && !has_digit(x->m->t, x->asks[o->from]);)
            o->from++;
    }
    return DQ_OK;
}

static dq_status assemble(making *x, dq_err *err)
{
    const dq_needle_filler *f = x->m->filler;
    dq_needle_prompt *p = x->p;
    int64_t n = p->n_bos, k = 0;
    p->n = x->cell->length - p->budget;
    int32_t *ids = dq_alloc(x->m->a, (size_t)(p->n + p->n_answer), sizeof *ids, err);
    if (!ids) return err->code;
    if (p->n_bos) memcpy(ids, x->m->bos, (size_t)p->n_bos * sizeof *ids);
    for (int i = 0; i <= x->cell->n; i++) {
        const int needle = i < x->cell->n ? x->order[i] : -1;
        const int64_t end = needle < 0 ? p->filler : x->anchor[needle];
        for (; k < end; k++) ids[n++] = f->ids[(p->start + k) % f->n];
        if (needle < 0) break;
        x->at[needle] = n;
        memcpy(ids + n, x->sentence[needle], (size_t)x->len[needle] * sizeof *ids);
        n += x->len[needle];
    }
    p->question = n;
    if (n + x->n_query != p->n)
        return dq_fail(err, DQ_BUG, "a prompt of %lld ids instead of %lld",
                       (long long)(n + x->n_query), (long long)p->n);
    memcpy(ids + n, x->asks, (size_t)(x->n_query + p->n_answer) * sizeof *ids);
    for (int i = 0; i < x->cell->r; i++) { /* from the question's first id to the answers' */
        x->answer[i].begin -= x->n_query;
        x->answer[i].from -= x->n_query;
        x->answer[i].to -= x->n_query;
    }
    p->ids = ids;
    return DQ_OK;
}

static dq_status make(making *x, dq_err *err)
{
    dq_strbuf b = {0};
    /* A fixed order takes the same draws as a random one, so that prompts of both differ in the
     * question alone. */
    const int n = x->cell->n, r = x->cell->r;
    int city[DQ_NEEDLE_CITIES], requested[DQ_NEEDLE_CITIES];
    for (int i = 0; i < DQ_NEEDLE_CITIES; i++) city[i] = i;
    shuffle(city, n, DQ_NEEDLE_CITIES, &x->random);
    for (int i = 0; i < n; i++) {
        char digits[DQ_NEEDLE_DIGITS + 1];
        do {
            snprintf(digits, sizeof digits, "%u",
                     1000000u + (unsigned)dq_random_below(&x->random, 9000000));
        } while (taken(x->number, i, digits));
        x->city[i] = dq_needle_city[city[i]];
        x->number[i] = dq_text(x->m->a, digits, DQ_NEEDLE_DIGITS, err);
        if (!x->number[i]) return err->code;
    }
    for (int i = 0; i < r; i++) requested[i] = i;
    shuffle(requested, r, r, &x->random);
    for (int i = 0; i < r; i++) x->answer[i].needle = x->m->depth_first ? i : requested[i];
    for (int i = 0; i < x->cell->n; i++) {
        char text[128];
        int bytes = snprintf(text, sizeof text, "\n" ASKS " %s\n", x->city[i], x->number[i]);
        DQ_TRY(encode(x, text, (size_t)bytes, &x->sentence[i], &x->len[i], err));
    }
    encode_asking(x, &b, err);
    dq_block_free(b.s);
    if (err->code != DQ_OK) return err->code;
    /* Space for answers: what the numbers take, at least DQ_NEEDLE_NEW, and the text between. */
    int64_t sum = 0;
    for (int i = 0; i < x->cell->r; i++) {
        const dq_needle_answer *o = &x->answer[i];
        const int64_t own = o->to - o->begin;
        sum += own > DQ_NEEDLE_NEW ? own : DQ_NEEDLE_NEW;
        if (i) sum += o->begin - o[-1].to;
    }
    x->p->budget = sum;
    const dq_needle_filler *f = x->m->filler;
    dq_needle_prompt *p = x->p;
    p->filler = dq_needle_left(x->cell, p->n_bos, x->len, x->n_query, p->budget);
    if (p->filler < 1) {
        const dq_needle_cell *c = x->cell;
        const int64_t need = x->cell->length - p->filler + 1;
        char cities[32];
        snprintf(cities, sizeof cities, "%d:%d", c->n, c->r);
        return dq_fail_with(
            err, DQ_MISMATCH,
            (dq_remedy){.code = DQ_REMEDY_NEEDLES, .number = {need, c->length}, .word = cities},
            "needles %s with their question, room for answers and some filler need %lld tokens, a "
            "length "
            "of %lld is less",
            cities, (long long)need, (long long)c->length);
    }
    p->start = f->start[dq_random_below(&x->random, (uint64_t)f->n_starts)];
    x->anchor[0] = dq_needle_anchor(x->cell->depth, p->filler);
    for (int k = 1; k < x->cell->n; k++)
        x->anchor[k] = (int64_t)dq_random_below(&x->random, (uint64_t)p->filler + 1);
    for (int k = 0; k < x->cell->n; k++) x->tie[k] = dq_random_next(&x->random);
    dq_needle_place(x->anchor, x->order, x->tie, x->cell->n, x->cell->depth, f, p->start,
                    p->filler);
    return assemble(x, err);
}

dq_status dq_needle_make(dq_needle_prompt *out, const dq_needle_maker *m,
                         const dq_needle_cell *cell, uint64_t seed, int64_t sample, dq_err *err)
{
    const size_t n = (size_t)cell->n;
    if (cell->n < 1 || cell->n > DQ_NEEDLE_CITIES || cell->r < 1 || cell->r > cell->n)
        return dq_fail(err, DQ_BUG, "%d needles, %d asked for", cell->n, cell->r);
    *out = (dq_needle_prompt){.n_bos = m->n_bos, .needles = cell->n, .requested = cell->r};
    making x = {.m = m, .cell = cell, .p = out, .random = needle_random(seed, cell, sample)};
    out->city = x.city = dq_alloc(m->a, n, sizeof *x.city, err);
    out->number = x.number = dq_alloc(m->a, n, sizeof *x.number, err);
    out->at = x.at = dq_alloc(m->a, n, sizeof *x.at, err);
    out->len = x.len = dq_alloc(m->a, n, sizeof *x.len, err);
    out->answer = x.answer = dq_alloc(m->a, (size_t)cell->r, sizeof *x.answer, err);
    x.sentence = dq_alloc(m->a, n, sizeof *x.sentence, err);
    x.anchor = dq_alloc(m->a, n, sizeof *x.anchor, err);
    x.tie = dq_alloc(m->a, n, sizeof *x.tie, err);
    x.order = dq_alloc(m->a, n, sizeof *x.order, err);
    return err->code == DQ_OK ? make(&x, err) : err->code;
}

void dq_needle_labels(uint8_t *label, const dq_needle_prompt *p)
{
    for (int64_t i = 0; i < p->n; i++)
        label[i] = i < p->n_bos       ? DQ_NEEDLE_BOS
                   : i >= p->question ? DQ_NEEDLE_QUERY
                                      : DQ_NEEDLE_NOISE;
    for (int k = 0; k < p->needles; k++) {
        const bool answers = k == p->answer[0].needle;
        memset(label + p->at[k], answers ? DQ_NEEDLE_ANSWER : DQ_NEEDLE_DISTRACTOR,
               (size_t)p->len[k]);
    }
}

dq_status dq_needle_judge_text(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                               const char *text, size_t len, dq_err *err)
{
    const char **all = dq_block_new((size_t)p->needles, sizeof *all, err);
    int64_t n = 1;
    if (!all) return err->code;
    all[0] = p->number[p->answer[k].needle];
    for (int i = 0; i < p->needles; i++) {
        if (i != p->answer[k].needle) all[n++] = p->number[i];
    }
    dq_needle_recall_judge(sum, text, len, all, 1, n);
    dq_block_free(all);
    return DQ_OK;
}

dq_status dq_needle_judge_ids(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                              const dq_tokenizer *t, const int32_t *top1, dq_err *err)
{
    const dq_needle_answer *o = &p->answer[k];
    const size_t n = (size_t)(o->to - o->from);
    char *text;
    size_t len;
    if (memcmp(top1, p->ids + p->n + o->from, n * sizeof *top1) == 0) {
        sum->correct++;
        return DQ_OK;
    }
    DQ_TRY(dq_tokenizer_decode(t, top1, (int64_t)n, 0, &text, &len, err));
    dq_needle_judge_text(sum, p, k, text, len, err);
    dq_block_free(text);
    return err->code;
}

/* Whole digit runs are compared with the numbers: equal is found, up to DQ_NEAR_DIGITS different
 * digits are near; 12 is not found in 123. */

/* *at becomes the end of the run; false: there is none. */
static bool next_run(const char *text, size_t len, size_t *at, const char **run, size_t *n)
{
    size_t i = *at;
    while (i < len && !(text[i] >= '0' && text[i] <= '9')) i++;
    *run = text + i;
    const size_t first = i;
    while (i < len && text[i] >= '0' && text[i] <= '9') i++;
    *n = i - first;
    *at = i;
    return *n > 0;
}

static bool is_number(const char *run, size_t n, const char *number)
{
    return strlen(number) == n && memcmp(run, number, n) == 0;
}

bool dq_needle_recall_found(const char *text, size_t len, const char *number)
{
    const char *run;
    size_t n;
    for (size_t at = 0; next_run(text, len, &at, &run, &n);) {
        if (is_number(run, n, number)) return true;
    }
    return false;
}

static bool is_near(const char *run, size_t n, const char *number)
{
    size_t differ = 0;
    if (strlen(number) != n) return false;
    for (size_t i = 0; i < n; i++) differ += run[i] != number[i];
    return differ <= DQ_NEAR_DIGITS && differ < n;
}

static bool near_found(const char *text, size_t len, const char *wanted, const char *const *number,
                       int64_t n_numbers)
{
    const char *run;
    size_t n;
    for (size_t at = 0; next_run(text, len, &at, &run, &n);) {
        bool hidden = false;
        for (int64_t i = 0; i < n_numbers; i++) hidden = hidden || is_number(run, n, number[i]);
        if (!hidden && is_near(run, n, wanted)) return true;
    }
    return false;
}

void dq_needle_recall_judge(dq_needle_recall *sum, const char *text, size_t len,
                            const char *const *number, int64_t n_requested, int64_t n)
{
    bool other = false;
    for (int64_t i = n_requested; i < n; i++)
        other = other || dq_needle_recall_found(text, len, number[i]);
    for (int64_t i = 0; i < n_requested; i++) {
        if (dq_needle_recall_found(text, len, number[i]))
            sum->correct++;
        else if (other)
            sum->other++;
        else if (near_found(text, len, number[i], number, n))
            sum->near++;
        else
            sum->none++;
    }
}
