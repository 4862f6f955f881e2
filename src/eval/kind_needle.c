/* Multi-needle retrieval: sentences with numbers hidden in a running text, and after it a question
 * about some of them, as ids of one tokenizer. Answers are forced or generated, then judged;
 * attention has passes of its own.
 * Sources: LargeWorldModel/LWM scripts/eval_needle_multi.py (wording); arXiv 2410.05258, section
 * 3.3 (numbers).
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "eval/inside.h"
#include "tasks/items.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NEAR_DIGITS = 2 /* that may differ: 5 of 7 are equal */, DIGITS = 7 };

/* Samples are drawn by place in this list: whoever changes it changes all prompts. */
static const char *const cities[DQ_NEEDLE_CITIES] = {
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

/* The text around needles, read as a ring. */
typedef struct filler {
    const int32_t *ids; /* [n] */
    const bool *ends;   /* [n] its text ends in . ! ? or a newline */
    int64_t n;
    const int64_t *start; /* [n_starts] ids that follow such an end */
    int64_t n_starts;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 */
} filler;

/* Everything is borrowed. */
typedef struct maker {
    const dq_tokenizer *t;
    const filler *filler;
    const int32_t *bos; /* [n_bos] template ids */
    int n_bos;
    int64_t vocab;
    bool depth_first; /* the needle at the cell's depth is asked for first; else drawn */
    dq_arena *a;      /* prompts live here */
} maker;

/* A prompt takes these steps: draw cities, numbers and the question; encode them; see how many
 * tokens remain for filler; choose where it begins and where needles go; assemble. Texts are drawn
 * first, so that a seed gives the same needles at every length. */

#define ASKS    "The special magic %s number is:"
#define CARRIER "a" /* before what is encoded as a continuation */
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
static dq_random random_of(uint64_t seed, const dq_needle_cell *cell, int64_t sample)
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

/* DQ_DAMAGED: no ids, or no end of a sentence; DQ_MISMATCH: an id is not below vocab. */
static dq_status read_filler(filler *f, const maker *m, const char *text, size_t len, dq_err *err)
{
    int32_t *ids;
    DQ_TRY(dq_tokenizer_encode(m->t, text, len, 0, &ids, &f->n, &f->first_bad, &f->n_bad, err));
    bool any = false, *ends = dq_alloc(m->a, (size_t)f->n, sizeof *ends, err);
    int64_t *start = dq_alloc(m->a, (size_t)f->n, sizeof *start, err);
    if (f->n == 0) dq_fail(err, DQ_DAMAGED, "holds no text to hide needles in");
    if (err->code == DQ_OK) f->ids = dq_tokenizer_keep(ids, f->n, m->vocab, m->a, err);
    dq_block_free(ids);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < f->n; i++) {
        const char *piece = dq_tokenizer_piece(m->t, f->ids[i], &len);
        ends[i] = piece && len > 0 && memchr(".!?\n", piece[len - 1], 4);
        any = any || ends[i];
        if (!ends[i] && (i == 0 || ends[i - 1])) start[f->n_starts++] = i;
    }
    f->ends = ends;
    f->start = start;
    if (any && f->n_starts > 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "has no end of a sentence (a token that ends in . ! ? or a newline) to put a "
                   "needle after. Give running text");
}

/* round(depth / 100 * n_filler), halves up. */
static int64_t anchor_of(int depth, int64_t n_filler)
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

/* anchor[n] = filler ids before each needle, 0 .. n_filler. Those strictly inside move left to the
 * nearest end of a sentence, or to 0, in the filler that begins at id `start`. order[n]: the
 * needles as they follow each other; among equal places needle 0 is the first at depth 0 and the
 * last at depth 100, else the smaller tie comes first, then the smaller number. */
static void place(int64_t *anchor, int *order, const uint64_t *tie, int n, int depth,
                  const filler *f, int64_t start, int64_t n_filler)
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
    const maker *m;
    const dq_needle_cell *cell;
    dq_random random;
    dq_needle_prompt *p;
    const int32_t **sentence; /* [n] ids of the needles; p->len[n] of them */
    const int32_t *asks;      /* [n_query + n_answer] question and answers */
    int64_t n_query, *anchor;
    uint64_t *tie;
    int *order;
} making;

/* Encodes text[len] after its first byte, a carrier, since a tokenizer may treat a beginning
 * differently; out NULL: *n alone. */
static dq_status encode_rest(const making *x, const char *text, size_t len, const int32_t **out,
                             int64_t *n, dq_err *err)
{
    int32_t *ids = NULL, *carrier = NULL;
    int64_t n_carrier = 0;
    if (dq_tokenizer_encode(x->m->t, text, 1, 0, &carrier, &n_carrier, NULL, NULL, err) == DQ_OK &&
        dq_tokenizer_encode(x->m->t, text, len, 0, &ids, n, NULL, NULL, err) == DQ_OK) {
        *n -= n_carrier;
        if (*n <= 0)
            dq_fail(err, DQ_MISMATCH, "the tokenizer gives no ids for the text of a needle");
        else if (out)
            *out = dq_tokenizer_keep(ids + n_carrier, *n, x->m->vocab, x->m->a, err);
    }
    dq_block_free(carrier);
    dq_block_free(ids);
    return err->code;
}

static bool taken(const char **number, int n, const char *text)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(number[i], text) == 0) return true;
    }
    return false;
}

static dq_status add(dq_strbuf *b, const char *text, dq_err *err)
{
    return dq_strbuf_add(b, text, strlen(text), err);
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

/* Encodes question and answers as one text; its parts are split where the encoded prefix has so
 * many tokens. */
static dq_status encode_asking(making *x, dq_strbuf *b, dq_err *err)
{
    dq_needle_prompt *p = x->p;
    const int r = p->requested;
    int64_t n = 0;
    DQ_TRY(add(b,
               r == 1 ? CARRIER "\n\nQuestion: What is the special magic number for "
                      : CARRIER "\n\nQuestion: What are the special magic numbers for ",
               err));
    for (int i = 0; i < r; i++) {
        if (i) DQ_TRY(add(b, i + 1 < r ? ", " : ", and ", err));
        DQ_TRY(add(b, p->city[p->answer[i].needle], err));
    }
    DQ_TRY(add(b, "?\nAnswer:", err));
    for (int i = 0; i < r; i++) {
        dq_needle_answer *o = &p->answer[i];
        char text[128];
        snprintf(text, sizeof text, "%s" ASKS, i ? "\n" : " ", p->city[o->needle]);
        DQ_TRY(add(b, text, err));
        DQ_TRY(encode_rest(x, b->s, b->n, NULL, &o->begin, err));
        snprintf(text, sizeof text, " %s", p->number[o->needle]);
        DQ_TRY(add(b, text, err));
        DQ_TRY(encode_rest(x, b->s, b->n, &x->asks, &o->to, err));
        if (o->begin < n || o->to <= o->begin)
            return dq_fail(err, DQ_MISMATCH,
                           "the tokenizer joins numbers with the text around them, so their ids "
                           "cannot be told apart");
        n = o->to;
    }
    x->n_query = p->answer[0].begin;
    p->n_answer = n - x->n_query;
    for (int i = 0; i < r; i++) { /* counted from the question's first id, then from the answers' */
        dq_needle_answer *o = &p->answer[i];
        for (o->from = o->begin; o->from + 1 < o->to && !has_digit(x->m->t, x->asks[o->from]);)
            o->from++;
        o->begin -= x->n_query;
        o->from -= x->n_query;
        o->to -= x->n_query;
    }
    return DQ_OK;
}

static dq_status assemble(const making *x, dq_err *err)
{
    const filler *f = x->m->filler;
    dq_needle_prompt *p = x->p;
    int64_t n = p->n_bos, k = 0;
    p->n = x->cell->length - p->budget;
    int32_t *ids = dq_alloc(x->m->a, (size_t)(p->n + p->n_answer), sizeof *ids, err);
    if (!ids) return err->code;
    if (p->n_bos) memcpy(ids, x->m->bos, (size_t)p->n_bos * sizeof *ids);
    for (int i = 0; i <= p->needles; i++) {
        const int needle = i < p->needles ? x->order[i] : -1;
        const int64_t end = needle < 0 ? p->filler : x->anchor[needle];
        for (; k < end; k++) ids[n++] = f->ids[(p->start + k) % f->n];
        if (needle < 0) break;
        p->at[needle] = n;
        memcpy(ids + n, x->sentence[needle], (size_t)p->len[needle] * sizeof *ids);
        n += p->len[needle];
    }
    p->question = n;
    if (n + x->n_query != p->n)
        return dq_fail(err, DQ_BUG, "a prompt of %lld ids instead of %lld",
                       (long long)(n + x->n_query), (long long)p->n);
    memcpy(ids + n, x->asks, (size_t)(x->n_query + p->n_answer) * sizeof *ids);
    p->ids = ids;
    return DQ_OK;
}

/* Draws cities, numbers and the order of the question, which a fixed order takes the same draws
 * for, so that prompts of both differ in the question alone. */
static dq_status draw(making *x, dq_err *err)
{
    dq_needle_prompt *p = x->p;
    int city[DQ_NEEDLE_CITIES], requested[DQ_NEEDLE_CITIES];
    for (int i = 0; i < DQ_NEEDLE_CITIES; i++) city[i] = requested[i] = i;
    shuffle(city, p->needles, DQ_NEEDLE_CITIES, &x->random);
    for (int i = 0; i < p->needles; i++) {
        char digits[DIGITS + 1];
        do {
            snprintf(digits, sizeof digits, "%u",
                     1000000u + (unsigned)dq_random_below(&x->random, 9000000));
        } while (taken(p->number, i, digits));
        p->city[i] = cities[city[i]];
        p->number[i] = dq_text(x->m->a, digits, DIGITS, err);
        if (!p->number[i]) return err->code;
    }
    shuffle(requested, p->requested, p->requested, &x->random);
    for (int i = 0; i < p->requested; i++)
        p->answer[i].needle = x->m->depth_first ? i : requested[i];
    return DQ_OK;
}

static dq_status make(making *x, dq_err *err)
{
    const dq_needle_cell *c = x->cell;
    const filler *f = x->m->filler;
    dq_needle_prompt *p = x->p;
    dq_strbuf b = {0};
    DQ_TRY(draw(x, err));
    for (int i = 0; i < c->n; i++) {
        char text[128];
        const int n =
            snprintf(text, sizeof text, CARRIER "\n" ASKS " %s\n", p->city[i], p->number[i]);
        DQ_TRY(encode_rest(x, text, (size_t)n, &x->sentence[i], &p->len[i], err));
    }
    encode_asking(x, &b, err);
    dq_block_free(b.s);
    if (err->code != DQ_OK) return err->code;
    /* Space for answers: what the numbers take, at least DQ_NEEDLE_NEW, and the text between. */
    for (int i = 0; i < c->r; i++) {
        const dq_needle_answer *o = &p->answer[i];
        const int64_t own = o->to - o->begin;
        p->budget += own > DQ_NEEDLE_NEW ? own : DQ_NEEDLE_NEW;
        if (i) p->budget += o->begin - o[-1].to;
    }
    p->filler = c->length - p->n_bos - x->n_query - p->budget;
    for (int i = 0; i < c->n; i++) p->filler -= p->len[i];
    if (p->filler < 1) {
        const int64_t need = c->length - p->filler + 1;
        char pair[32];
        snprintf(pair, sizeof pair, "%d:%d", c->n, c->r);
        return dq_fail_with(
            err, DQ_MISMATCH,
            (dq_remedy){.code = DQ_REMEDY_NEEDLES, .number = {need, c->length}, .word = pair},
            "needles %s with their question, room for answers and some filler need %lld tokens, a "
            "length of %lld is less",
            pair, (long long)need, (long long)c->length);
    }
    p->start = f->start[dq_random_below(&x->random, (uint64_t)f->n_starts)];
    x->anchor[0] = anchor_of(c->depth, p->filler);
    for (int k = 1; k < c->n; k++)
        x->anchor[k] = (int64_t)dq_random_below(&x->random, (uint64_t)p->filler + 1);
    for (int k = 0; k < c->n; k++) x->tie[k] = dq_random_next(&x->random);
    place(x->anchor, x->order, x->tie, c->n, c->depth, f, p->start, p->filler);
    return assemble(x, err);
}

/* DQ_MISMATCH: needles and question leave no space for filler; the message gives their tokens. */
static dq_status make_prompt(dq_needle_prompt *p, const maker *m, const dq_needle_cell *cell,
                             uint64_t seed, int64_t sample, dq_err *err)
{
    const size_t n = (size_t)cell->n;
    if (cell->n < 1 || cell->n > DQ_NEEDLE_CITIES || cell->r < 1 || cell->r > cell->n)
        return dq_fail(err, DQ_BUG, "%d needles, %d asked for", cell->n, cell->r);
    *p = (dq_needle_prompt){.n_bos = m->n_bos, .needles = cell->n, .requested = cell->r};
    making x = {.m = m, .cell = cell, .p = p, .random = random_of(seed, cell, sample)};
    p->city = dq_alloc(m->a, n, sizeof *p->city, err);
    p->number = dq_alloc(m->a, n, sizeof *p->number, err);
    p->at = dq_alloc(m->a, n, sizeof *p->at, err);
    p->len = dq_alloc(m->a, n, sizeof *p->len, err);
    p->answer = dq_alloc(m->a, n, sizeof *p->answer, err);
    x.sentence = dq_alloc(m->a, n, sizeof *x.sentence, err);
    x.anchor = dq_alloc(m->a, n, sizeof *x.anchor, err);
    x.tie = dq_alloc(m->a, n, sizeof *x.tie, err);
    x.order = dq_alloc(m->a, n, sizeof *x.order, err);
    return err->code == DQ_OK ? make(&x, err) : err->code;
}

/* label[p->n] */
static void put_labels(uint8_t *label, const dq_needle_prompt *p)
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

/* What an answer text[len] to p->answer[k] counts as: DQ_NEEDLE_AT_CORRECT where its number is
 * found as a whole run of digits; _OTHER, another hidden number; _NEAR, a run of as many digits, no
 * hidden number, of which at most NEAR_DIGITS differ in place, but not all; else _NONE. */
static int judge_text(const dq_needle_prompt *p, int k, const char *text, size_t len)
{
    const int wanted = p->answer[k].needle;
    bool found = false, other = false, near = false;
    const char *run;
    size_t n;
    for (size_t at = 0; next_run(text, len, &at, &run, &n);) {
        int hidden = 0;
        size_t differ = 0;
        while (hidden < p->needles &&
               (strlen(p->number[hidden]) != n || memcmp(run, p->number[hidden], n) != 0))
            hidden++;
        found = found || hidden == wanted;
        other = other || (hidden != wanted && hidden < p->needles);
        if (hidden < p->needles || strlen(p->number[wanted]) != n) continue;
        for (size_t i = 0; i < n; i++) differ += run[i] != p->number[wanted][i];
        near = near || (differ <= NEAR_DIGITS && differ < n);
    }
    return found   ? DQ_NEEDLE_AT_CORRECT
           : other ? DQ_NEEDLE_AT_OTHER
           : near  ? DQ_NEEDLE_AT_NEAR
                   : DQ_NEEDLE_AT_NONE;
}

typedef struct run {
    dq_eval *e;
    dq_eval_row *row;
    dq_scorer *s;
    const dq_needle_set *set;
    const dq_tokenizer *tok;
    int64_t begin, end; /* units */
    dq_arena *a;        /* of this group */
} run;

static const dq_needle_set *set_of(const dq_eval *e, const dq_eval_row *row)
{
    return e->ids[row->ids].own;
}

/* Numbers DQ_NEEDLE_AT_* of a unit. */
static double *unit_of(const dq_eval *e, const dq_eval_row *row, int64_t unit)
{
    return row->extra + unit * e->ids[row->ids].n_extra;
}

static dq_status force(const run *x, dq_err *err)
{
    const dq_requests *q = &x->e->ids[x->row->ids].req;
    const dq_scores out = {x->row->logp, x->row->top1};
    DQ_TRY(dq_score_items(x->s, q, x->begin, x->end, out, err));
    for (int64_t i = x->begin; i < x->end; i++) {
        const dq_needle_prompt *p = &x->set->prompt[i];
        double *extra = unit_of(x->e, x->row, i);
        memset(extra, 0, DQ_NEEDLE_AT_SHARE * sizeof *extra);
        for (int k = 0; k < p->requested; k++) {
            const dq_needle_answer *o = &p->answer[k];
            const int64_t v = dq_needle_value(x->e, x->row, i, k), n = o->to - o->from;
            const int32_t *top1 = x->row->top1 + v;
            char *text = NULL;
            size_t len;
            for (int64_t t = 0; t < n; t++) extra[DQ_NEEDLE_AT_LL] += x->row->logp[v + t];
            if (memcmp(top1, p->ids + p->n + o->from, (size_t)n * sizeof *top1) != 0)
                DQ_TRY(dq_tokenizer_decode(x->tok, top1, n, 0, &text, &len, err));
            extra[text ? judge_text(p, k, text, len) : DQ_NEEDLE_AT_CORRECT]++;
            dq_block_free(text);
        }
    }
    return DQ_OK;
}

/* An answer ends at two newlines. */
static bool is_over(const dq_eval *e, const dq_eval_row *row, int64_t unit, const char *text,
                    size_t len)
{
    bool over = false;
    (void)e, (void)row, (void)unit;
    for (size_t i = 0; i + 1 < len; i++) over = over || (text[i] == '\n' && text[i + 1] == '\n');
    return over;
}

/* Stores what was generated for city k of a unit, whose prompt so far is ids[*n], and appends the
 * next question. */
static dq_status take_answer(const run *x, int64_t unit, int k, const dq_generate_result *g,
                             int32_t *ids, int64_t *n, dq_err *err)
{
    const dq_needle_prompt *p = &x->set->prompt[unit];
    const int64_t v = dq_needle_value(x->e, x->row, unit, k);
    char *text;
    size_t len;
    int64_t kept;
    dq_eval_store(x->row, v, DQ_NEEDLE_NEW, g);
    for (int64_t i = 0; i < DQ_NEEDLE_NEW; i++) x->row->logp[v + i] = i < g->n ? g->logp[i] : 0;
    DQ_TRY(dq_tokenizer_decode(x->tok, g->ids, g->n, 0, &text, &len, err));
    unit_of(x->e, x->row, unit)[judge_text(p, k, text, len)]++;
    dq_block_free(text);
    if (k + 1 == p->requested) return DQ_OK;
    /* Keeps the first ids without newline or period in their text. */
    for (kept = 0; kept < g->n; ++kept) {
        DQ_TRY(dq_tokenizer_decode(x->tok, g->ids, kept + 1, 0, &text, &len, err));
        const bool ends = memchr(text, '\n', len) || memchr(text, '.', len);
        dq_block_free(text);
        if (ends) break;
    }
    memcpy(ids + *n, g->ids, (size_t)kept * sizeof *ids);
    const int64_t from = p->answer[k].to, to = p->answer[k + 1].begin;
    memcpy(ids + *n + kept, p->ids + p->n + from, (size_t)(to - from) * sizeof *ids);
    *n += kept + to - from;
    return DQ_OK;
}

/* Cities are asked one after the other, each in all units that have so many. */
static dq_status generate(const run *x, dq_err *err)
{
    const int64_t n = x->end - x->begin;
    int most = 0;
    int32_t **ids = dq_alloc(x->a, (size_t)n, sizeof *ids, err);
    dq_generate_prompt *prompt = dq_alloc(x->a, (size_t)n, sizeof *prompt, err);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        const dq_needle_prompt *p = &x->set->prompt[x->begin + i];
        ids[i] = dq_alloc(x->a, (size_t)(p->n + p->budget), sizeof **ids, err);
        if (ids[i]) memcpy(ids[i], p->ids, (size_t)p->n * sizeof **ids);
        prompt[i] = (dq_generate_prompt){.ids = ids[i], .n = p->n};
        if (p->requested > most) most = p->requested;
        memset(unit_of(x->e, x->row, x->begin + i), 0, DQ_NEEDLE_AT_SHARE * sizeof(double));
    }
    DQ_TRY(err->code);
    for (int k = 0; k < most; k++) {
        for (int64_t i = 0; i < n; i++)
            prompt[i].max_new = x->set->prompt[x->begin + i].requested > k ? DQ_NEEDLE_NEW : 0;
        const dq_generate_result *g =
            dq_eval_continue(x->e, x->row, x->s, x->begin, prompt, n, is_over, true, x->a, err);
        if (!g) return err->code;
        for (int64_t i = 0; i < n; i++) {
            if (prompt[i].max_new)
                DQ_TRY(take_answer(x, x->begin + i, k, &g[i], ids[i], &prompt[i].n, err));
        }
    }
    return DQ_OK;
}

/* Shares of one prompt from its sums[n_layers * n_out], layer by layer; written from
 * DQ_NEEDLE_AT_SHARE on. */
static void put_shares(double *into, const dq_span_share *sums, int n_layers, int n_out)
{
    double *skipped = into + DQ_NEEDLE_AT_SKIPPED - DQ_NEEDLE_AT_SHARE;
    double *heads = into + DQ_NEEDLE_AT_HEADS - DQ_NEEDLE_AT_SHARE;
    double *rows = into + DQ_NEEDLE_AT_ROWS - DQ_NEEDLE_AT_SHARE;
    double *small = into + DQ_NEEDLE_AT_SMALL - DQ_NEEDLE_AT_SHARE;
    *rows = *small = 0;
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        const dq_span_norm norm = (dq_span_norm)k;
        skipped[k] = 0;
        for (int i = 0; i < n_layers * n_out; i++) skipped[k] += (double)sums[i].skipped[k];
        for (int c = 0; c < DQ_NEEDLE_CLASSES; c++) {
            double sum = 0;
            int layers = 0;
            for (int l = 0; l < n_layers; l++) {
                double of_layer = 0;
                int n = 0;
                for (int h = 0; h < n_out; h++) {
                    const double x = dq_attention_spans_mean(&sums[l * n_out + h], norm, c);
                    if (isnan(x)) continue;
                    of_layer += x;
                    n++;
                }
                if (n == 0) continue;
                sum += of_layer / n;
                layers++;
            }
            into[k * DQ_NEEDLE_CLASSES + c] = layers ? sum / layers : (double)NAN;
        }
    }
    for (int i = 0; i < n_layers * n_out; i++) {
        *rows += (double)sums[i].rows;
        *small += (double)sums[i].small;
        heads[i] = dq_attention_spans_mean(&sums[i], DQ_NEEDLE_NORM, DQ_NEEDLE_ANSWER);
    }
}

/* The question reads back a compressed cache only in a pass of its own. */
static dq_status attend(const run *x, int64_t unit, dq_err *err)
{
    const dq_needle_prompt *p = &x->set->prompt[unit];
    const dq_model *m = dq_runner_model(x->s->r);
    const int n_layers = m->n_layers, n_out = m->map.n_out;
    const int64_t at = 0, last = x->set->settings->query_rows ? p->n - p->question : 1;
    uint8_t *label = dq_alloc(x->a, (size_t)p->n, 1, err);
    dq_span_share *sums = dq_alloc(x->a, (size_t)(n_layers * n_out), sizeof *sums, err);
    dq_attention_spans *spans = dq_alloc(x->a, (size_t)n_layers, sizeof *spans, err);
    if (!label || !sums || !spans) return err->code;
    put_labels(label, p);
    for (int l = 0; l < n_layers; l++)
        spans[l] = (dq_attention_spans){DQ_NEEDLE_CLASSES, label, &at, &last, sums + l * n_out};
    dq_score_attend(x->s, p->ids, p->question, p->n, spans, x->a, err);
    if (err->code == DQ_OK)
        put_shares(unit_of(x->e, x->row, unit) + DQ_NEEDLE_AT_SHARE, sums, n_layers, n_out);
    return err->code;
}

static dq_status needle_score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin,
                              int64_t end, dq_arena *a, dq_err *err)
{
    const run x = {.e = e,
                   .row = row,
                   .s = s,
                   .set = set_of(e, row),
                   .tok = e->model[e->ids[row->ids].model].tok,
                   .begin = begin,
                   .end = end,
                   .a = a};
    if (x.set->settings->generated)
        generate(&x, err);
    else
        force(&x, err);
    for (int64_t i = begin; x.set->settings->attention && err->code == DQ_OK && i < end; i++)
        attend(&x, i, err);
    return err->code;
}

/* A cell is a length and a depth; its prompts depend on the seed, the cell and the sample alone, so
 * that any subset of cells gives the same ones. Values of a unit lie at the offsets
 * DQ_NEEDLE_AT_*. */

int64_t dq_needle_value(const dq_eval *e, const dq_eval_row *row, int64_t unit, int k)
{
    const dq_needle_set *s = set_of(e, row);
    const dq_needle_prompt *p = &s->prompt[unit];
    const int64_t first = e->ids[row->ids].req.req[unit].value;
    if (s->settings->generated) return first + (int64_t)k * DQ_NEEDLE_NEW;
    return first + p->n - p->question + p->answer[k].from;
}

static dq_status load(dq_eval *e, dq_eval_source *source, dq_err *err)
{
    (void)e;
    return source->len ? DQ_OK : dq_fail(err, DQ_DAMAGED, "%s: holds no text", source->path);
}

static dq_status template_ids(maker *m, dq_bos bos, dq_err *err)
{
    const unsigned flags = dq_items_bos_flags(m->t, bos, "a", 1);
    int after;
    int32_t *ids;
    int64_t n;
    DQ_TRY(dq_items_bos_check(m->t, bos, err));
    dq_tokenizer_template(m->t, flags, &m->n_bos, &after);
    if (m->n_bos == 0) return DQ_OK;
    DQ_TRY(dq_tokenizer_encode(m->t, "a", 1, flags, &ids, &n, NULL, NULL, err));
    m->bos = dq_tokenizer_keep(ids, m->n_bos, m->vocab, m->a, err);
    dq_block_free(ids);
    return err->code;
}

static dq_status encode(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_source *s = &e->source[ids->source];
    const dq_eval_model *em = &e->model[ids->model];
    const dq_needle_settings *of = s->settings;
    filler f = {.n = 0};
    dq_needle_set *set = dq_alloc(e->a, 1, sizeof *set, err);
    if (!set) return err->code;
    maker m = {.t = em->tok,
               .filler = &f,
               .vocab = em->m->vocab,
               .depth_first = of->depth_first,
               .a = e->a};
    set->settings = of;
    set->samples = of->samples;
    ids->n_extra = of->attention ? DQ_NEEDLE_AT_HEADS : DQ_NEEDLE_AT_SHARE;
    int64_t heads = 0; /* layers x output heads of the largest model */
    for (int i = 0; of->attention && i < e->n_models; i++) {
        const int64_t n = (int64_t)e->model[i].m->n_layers * e->model[i].m->map.n_out;
        if (n > heads) heads = n;
    }
    ids->n_extra += heads;
    DQ_TRY(template_ids(&m, e->bos, err));
    const size_t own = dq_items_bos_spelled(m.t, e->bos, s->text, s->len);
    DQ_TRY(read_filler(&f, &m, s->text + own, s->len - own, err));
    ids->n_bad = f.n_bad;
    ids->first_bad = f.first_bad < 0 ? -1 : f.first_bad + (int64_t)own;
    int length[DQ_NEEDLE_SWEEP], n_lengths;
    DQ_TRY(dq_eval_lengths(length, &n_lengths, of->length, of->n_lengths, e, err));
    dq_needle_cell *cell =
        dq_alloc(e->a, (size_t)(of->n_pairs * n_lengths * of->n_depths), sizeof *cell, err);
    if (!cell) return err->code;
    set->cell = cell;
    for (int k = 0; k < of->n_pairs * n_lengths * of->n_depths; k++) {
        const int pair = k / of->n_depths / n_lengths, l = k / of->n_depths % n_lengths;
        cell[set->n_cells++] = (dq_needle_cell){length[l], of->depth[k % of->n_depths],
                                                of->needles[pair], of->requested[pair]};
    }
    const int64_t n = set->n_cells * set->samples;
    dq_needle_prompt *p = dq_alloc(m.a, (size_t)n, sizeof *p, err);
    dq_request *r = dq_eval_requests(&ids->req, n, m.a, err);
    if (!p || !r) return err->code;
    set->prompt = p;
    for (int64_t i = 0; i < n; i++, p++) {
        DQ_TRY(make_prompt(p, &m, &set->cell[i / set->samples], of->seed, i % set->samples, err));
        r[i] = (dq_request){.ctx = p->ids, .value = ids->req.n_values, .item = i};
        r[i].n_ctx = of->generated ? p->n : p->question;
        r[i].cont = of->generated ? NULL : p->ids + r[i].n_ctx;
        r[i].n_cont =
            of->generated ? (int64_t)p->requested * DQ_NEEDLE_NEW : p->n - r[i].n_ctx + p->n_answer;
        ids->req.n_values += r[i].n_cont;
    }
    ids->own = set;
    if (of->generated) ids->passes = "prompt+decode";
    return DQ_OK;
}

static void judge(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const dq_needle_set *s = set_of(e, row);
    for (int64_t i = 0; i < s->n_cells * s->samples; i++) {
        const double found = unit_of(e, row, i)[DQ_NEEDLE_AT_CORRECT];
        const double share = found / (double)s->prompt[i].requested;
        score[i] = metric == 0 || share == 1 ? share : 0;
    }
}

static dq_status takes(const dq_eval *e, const dq_eval_source *source, const dq_kv_spec *kv,
                       dq_err *err)
{
    const dq_needle_settings *s = source->settings;
    (void)e;
    if (!s->attention || !kv->evict.policy) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_ATTENTION},
                        "attention is not defined where tokens are evicted (%s): shares would be "
                        "of what is left",
                        kv->evict.policy->name);
}

const dq_eval_kind dq_eval_needle = {
    .metric = {"acc", "all_correct"},
    .load = load,
    .encode = encode,
    .judge = judge,
    .cluster = "prompt",
    .score = needle_score,
    .takes = takes,
};

/* Mean over units of number `first`, or of two numbers together (`second` not -1), where it is one;
 * scratch room[end - begin]. */
static dq_mean mean_at(const dq_eval *e, const dq_eval_row *row, int64_t begin, int64_t end,
                       int64_t first, int64_t second, double *room)
{
    int64_t n = 0;
    for (int64_t i = begin; i < end; i++) {
        const double *x = unit_of(e, row, i), sum = x[first] + (second < 0 ? 0 : x[second]);
        if (!isnan(sum)) room[n++] = sum;
    }
    return dq_mean_of(room, n);
}

/* Means of attention; those of samples without a number are left out. */
static void put_attention(dq_needle_numbers *out, const dq_eval *e, const dq_eval_row *row,
                          int64_t begin, int64_t end, double *room)
{
    const dq_model *m = e->model[row->model].m;
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        const int64_t at = DQ_NEEDLE_AT_SHARE + k * DQ_NEEDLE_CLASSES;
        out->answer[k] = mean_at(e, row, begin, end, at + DQ_NEEDLE_ANSWER, -1, room);
        out->noise[k] =
            mean_at(e, row, begin, end, at + DQ_NEEDLE_NOISE, at + DQ_NEEDLE_DISTRACTOR, room);
        for (int c = 0; c < DQ_NEEDLE_CLASSES; c++)
            out->share[k][c] = mean_at(e, row, begin, end, at + c, -1, room).value;
    }
    for (int64_t i = begin; i < end; i++) {
        const double *x = unit_of(e, row, i);
        for (int k = 0; k < DQ_N_SPAN_NORMS; k++)
            out->skipped[k] += (int64_t)x[DQ_NEEDLE_AT_SKIPPED + k];
        out->rows += (int64_t)x[DQ_NEEDLE_AT_ROWS];
        out->small += (int64_t)x[DQ_NEEDLE_AT_SMALL];
    }
    for (int i = 0; i < m->n_layers * m->map.n_out; i++) {
        const double x = mean_at(e, row, begin, end, DQ_NEEDLE_AT_HEADS + i, -1, room).value;
        if (isnan(x) || (out->best_layer >= 0 && x <= out->best)) continue;
        out->best = x;
        out->best_layer = i / m->map.n_out;
        out->best_head = i % m->map.n_out;
    }
}

dq_status dq_needle_numbers_of(dq_needle_numbers *out, const dq_eval *e, const dq_eval_row *row,
                               int64_t cell, dq_err *err)
{
    const dq_needle_set *s = set_of(e, row);
    const int64_t begin = cell < 0 ? 0 : cell * s->samples;
    const int64_t end = cell < 0 ? s->n_cells * s->samples : begin + s->samples;
    int64_t all = 0, requested = 0;
    *out = (dq_needle_numbers){.n = end - begin, .best_layer = -1, .best_head = -1};
    double *acc = dq_block_new((size_t)out->n, sizeof *acc, err);
    double *ll = dq_block_new((size_t)out->n, sizeof *ll, err);
    for (int64_t i = 0; acc && ll && i < out->n; i++) {
        const double *x = unit_of(e, row, begin + i);
        const int r = s->prompt[begin + i].requested;
        for (int k = 0; k < 4; k++) out->confusion[k] += x[k];
        acc[i] = x[DQ_NEEDLE_AT_CORRECT] / r;
        ll[i] = x[DQ_NEEDLE_AT_LL] / r;
        all += acc[i] == 1;
        requested += r;
    }
    if (acc && ll) {
        for (int k = 0; k < 4; k++) out->confusion[k] /= (double)requested;
        out->acc = dq_mean_of(acc, out->n);
        out->all_correct = dq_mean_share(all, out->n);
        out->ll = s->settings->generated ? dq_mean_none : dq_mean_of(ll, out->n);
        if (s->settings->attention) put_attention(out, e, row, begin, end, acc);
    }
    dq_block_free(acc);
    dq_block_free(ll);
    return err->code;
}
