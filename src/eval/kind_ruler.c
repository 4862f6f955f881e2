/* Prompts as RULER builds them: lengths x samples as units, drawn from the seed, the length and the
 * sample alone. A continuation ends where all answers stand in it: more text would change no score.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "eval/inside.h"
#include "tasks/items.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ANSWERS = 16 }; /* of a prompt, at most */

/* The user's text, for filler and words; borrowed. */
typedef struct text_piece {
    const char *s; /* [len], no white space */
    int32_t len;
    bool ends; /* a sentence: in . ! or ? */
} text_piece;
typedef struct ruler_text {
    const text_piece *piece; /* [n], read as a ring */
    int64_t n;
    const int64_t *start; /* [n_starts] pieces that begin a sentence */
    int64_t n_starts;
    const char *const *word; /* [n_words] all different, 3 to 12 letters a to z, as they come */
    int64_t n_words;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 */
} ruler_text;
typedef struct dq_ruler_draft {
    const struct dq_ruler_task *task;
    const ruler_text *text; /* NULL: the task needs none */
    int64_t length;         /* ids of the prompt and of the room for its answer */
    dq_random random;
    dq_arena *a; /* for as long as the draft */
    dq_err *err; /* of the first failure */
    dq_strbuf prompt;
    size_t question; /* bytes before the question */
    const char *answer[MAX_ANSWERS];
    int n_answers;
} draft;
/* Everything is borrowed. */
typedef struct maker {
    const dq_ruler_task *task;
    const ruler_text *text; /* NULL where the task takes none */
    const dq_tokenizer *t;
    dq_bos bos;
    int64_t vocab;
    dq_arena *a; /* prompts live here */
} maker;
/* Common words extraction. A numbered list in which ten words stand more often than all others; a
 * solved example with a shorter list stands in front. Words come from the user's text. Source:
 * RULER scripts/data/synthetic/common_words_extraction.py (structure and numbers). */

enum { COMMON = 10, SHORT = 4096 };

/* Counts of the words of a list. */
typedef struct repeats {
    int common, others;
} repeats;

static void put(draft *d, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    if (d->err->code == DQ_OK && dq_strbuf_reserve(&d->prompt, (size_t)n + 1, d->err) == DQ_OK)
        d->prompt.n += (size_t)vsnprintf(d->prompt.s + d->prompt.n, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
}

/* A permutation of 0 .. n - 1; NULL: see d->err. */
static int32_t *ruler_draft_shuffled(draft *d, int64_t n)
{
    int32_t *perm = d->err->code == DQ_OK ? dq_alloc(d->a, (size_t)n, sizeof *perm, d->err) : NULL;
    if (perm) dq_random_permute(&d->random, perm, n);
    return perm;
}

static void put_item(draft *d, const int32_t *word, int64_t n, repeats r)
{
    const int64_t all = COMMON * r.common + (n - COMMON) * r.others;
    const int32_t *order = ruler_draft_shuffled(d, all);
    if (!order) return;
    put(d, "Below is a numbered list of words. Some words stand in it more often than the others. "
           "Remember those.\n");
    for (int64_t i = 0; i < all; i++) {
        const int64_t k = order[i];
        const int64_t at = k < COMMON * r.common
                               ? k / r.common
                               : COMMON + (k - (int64_t)COMMON * r.common) / r.others;
        put(d, "%s%lld. %s", i ? " " : "", (long long)i + 1, d->text->word[word[at]]);
    }
    d->question = d->prompt.n;
    put(d, "\nQuestion: Which %d words stand most often in the list above?", COMMON);
    put(d, " Answer: The %d words that stand most often in it are:", COMMON);
}

static void add_answer(draft *d, const char *answer)
{
    if (answer) d->answer[d->n_answers++] = answer;
}

static void ruler_cwe(draft *d, int64_t units)
{
    const bool is_short = d->length < SHORT;
    const int64_t of_example = is_short ? 20 : 40;
    const repeats example = is_short ? (repeats){3, 1} : (repeats){10, 3};
    const repeats usual = is_short ? (repeats){6, 1} : (repeats){30, 3};
    const int64_t need = units > of_example ? units : of_example;
    if (need > d->text->n_words) {
        dq_fail(
            d->err, DQ_MISMATCH,
            "has %lld different words of 3 to 12 small letters, lists of %lld tokens take more. "
            "Give a longer text",
            (long long)d->text->n_words, (long long)d->length);
        return;
    }
    const int32_t *mine = ruler_draft_shuffled(d, d->text->n_words);
    const int32_t *others = ruler_draft_shuffled(d, d->text->n_words);
    if (!mine || !others) return;
    put_item(d, others, of_example, example);
    for (int i = 0; i < COMMON; i++) put(d, " %d. %s", i + 1, d->text->word[others[i]]);
    put(d, "\n");
    put_item(d, mine, units, usual);
    for (int i = 0; i < COMMON; i++) add_answer(d, d->text->word[mine[i]]);
}

/* Frequent words extraction: coded words from a zeta distribution with exponent 2; the most
 * frequent one is dots, and the next three are asked for.
 * Source: RULER scripts/data/synthetic/freq_words_extraction.py (structure, numbers and
 * distribution). */

enum { LETTERS = 6, ANSWERS = 3, IDS_A_WORD = 50, FEWEST = 8 };

/* The first of n different words is dots; NULL: see d->err. */
static const char **draw_words(draft *d, int64_t n)
{
    dq_strmap seen = {0};
    const char **word = dq_alloc(d->a, (size_t)n, sizeof *word, d->err);
    if (!word || dq_strmap_new(&seen, (size_t)n, d->a, d->err) != DQ_OK) return NULL;
    word[0] = "...";
    for (int64_t i = 1; i < n;) {
        char s[LETTERS];
        for (int k = 0; k < LETTERS; k++) s[k] = (char)('a' + dq_random_below(&d->random, 26));
        if (dq_strmap_get(&seen, s, LETTERS) >= 0) continue;
        char *own = dq_text(d->a, s, LETTERS, d->err);
        if (!own) return NULL;
        dq_strmap_put(&seen, own, LETTERS, (int32_t)i);
        word[i++] = own;
    }
    return word;
}

/* Count of the word of rank k, from 1, in a text of so many units. */
static int64_t times(int64_t units, int64_t k)
{
    const double zeta2 = 1.6449340668482264; /* pi^2 / 6 */
    return (int64_t)((double)units / ((double)k * (double)k) / zeta2);
}

static void ruler_fwe(draft *d, int64_t units)
{
    int64_t n = (d->length - d->task->max_new) / IDS_A_WORD, all = 0, at = 0;
    if (n < FEWEST) n = FEWEST;
    const char **word = draw_words(d, n);
    for (int64_t k = 1; k <= n; k++) all += times(units, k);
    const int32_t *order = word ? ruler_draft_shuffled(d, all) : NULL;
    const char **text = order ? dq_alloc(d->a, (size_t)all, sizeof *text, d->err) : NULL;
    if (!text) return;
    for (int64_t k = 1; k <= n; k++) {
        for (int64_t i = times(units, k); i > 0; i--) text[order[at++]] = word[k - 1];
    }
    put(d, "Below is a text of coded words. Watch how often each of them stands in it.\n");
    for (int64_t i = 0; i < all; i++) put(d, "%s%s", i ? " " : "", text[i]);
    d->question = d->prompt.n;
    put(d, "\nQuestion: Dots do not count. Which three coded words stand most often "
           "in the text above?");
    put(d, " Answer: The three coded words that stand most often in it are:");
    for (int i = 1; i <= ANSWERS; i++) add_answer(d, word[i]);
}

/* Keys and numbers hidden in a running text, which begins at a random sentence; needles go before
 * sentences at different ones of 40 depths.
 * Source: RULER scripts/data/synthetic/niah.py (structure). */

enum { NEEDLES = 16, DEPTHS = 40 };

typedef struct needles {
    const char *key[NEEDLES], *value[NEEDLES]; /* [n] a sentence each */
    int n;
    int64_t before[NEEDLES]; /* sentences of text in front, ascending */
} needles;

static const char *draw_key(draft *d)
{
    const ruler_text *t = d->text;
    const uint64_t a = dq_random_below(&d->random, (uint64_t)t->n_words);
    const uint64_t b = dq_random_below(&d->random, (uint64_t)t->n_words);
    return dq_textf(d->a, d->err, "%s-%s", t->word[a], t->word[b]);
}

static const char *draw_number(draft *d)
{
    return dq_textf(d->a, d->err, "%u", 1000000u + (unsigned)dq_random_below(&d->random, 9000000));
}

typedef const char *draw_one(draft *d);

/* Draws until it is not among text[n]; NULL: see d->err. */
static const char *draw_new(draft *d, draw_one *draw, const char *const *text, int n)
{
    for (;;) {
        const char *one = draw(d);
        bool is_new = one != NULL;
        for (int i = 0; is_new && i < n; i++) is_new = strcmp(text[i], one) != 0;
        if (is_new || !one) return one;
    }
}

static void put_text(draft *d, const needles *x, const int32_t *order, int64_t start, int64_t units)
{
    const ruler_text *t = d->text;
    int64_t i = 0, sentence = 0;
    int k = 0;
    const char *gap = "";
    for (;; sentence++) {
        for (; k < x->n && (i == units || x->before[k] <= sentence); k++, gap = " ")
            put(d, "%sA special number for %s is %s.", gap, x->key[order[k]], x->value[order[k]]);
        if (i == units) return;
        const text_piece *p;
        do { /* up to the end of the sentence */
            p = &t->piece[(start + i++) % t->n];
            put(d, "%s%.*s", gap, (int)p->len, p->s);
            gap = " ";
        } while (!p->ends && i < units);
    }
}

static void put_question(draft *d, const needles *x, const int32_t *asked)
{
    const bool one = d->task->requested * d->task->values == 1;
    const int n = d->task->requested;
    const char *keys = "";
    for (int i = 0; i < n && keys; i++)
        keys = dq_textf(d->a, d->err, "%s%s%s", keys,
                        i == 0      ? ""
                        : i + 1 < n ? ", "
                                    : ", and ",
                        x->key[asked[i] * d->task->values]);
    if (!keys) return;
    d->question = d->prompt.n;
    put(d,
        one ? "\nWhat is the special number for %s in this text?"
            : "\nWhat are all the special numbers for %s in this text?",
        keys);
    put(d,
        one ? " The special number for %s in this text is"
            : " The special numbers for %s in this text are",
        keys);
    for (int i = 0; i < d->task->requested; i++) {
        for (int v = 0; v < d->task->values; v++)
            add_answer(d, x->value[asked[i] * d->task->values + v]);
    }
}

static void ruler_niah(draft *d, int64_t units)
{
    const ruler_text *t = d->text;
    needles x = {.n = d->task->keys * d->task->values};
    for (int i = 0; i < x.n; i++) {
        x.key[i] = i % d->task->values ? x.key[i - 1] : draw_new(d, draw_key, x.key, i);
        x.value[i] = draw_new(d, draw_number, x.value, i);
        if (!x.key[i] || !x.value[i]) return;
    }
    const int32_t *asked = ruler_draft_shuffled(d, d->task->keys);
    const int32_t *order = ruler_draft_shuffled(d, x.n);
    const int64_t start = t->start[dq_random_below(&d->random, (uint64_t)t->n_starts)];
    if (!asked || !order) return;
    int64_t sentences = 0;
    for (int64_t i = 0; i < units; i++)
        sentences += t->piece[(start + i) % t->n].ends || i + 1 == units;
    const int32_t *perm = ruler_draft_shuffled(d, DEPTHS);
    bool taken[DEPTHS] = {false};
    if (perm) {
        for (int i = 0; i < x.n; i++) taken[perm[i]] = true;
        for (int i = 0, k = 0; i < DEPTHS; i++) {
            const int64_t percent = (2 * 100 * i + DEPTHS - 1) / (2 * (DEPTHS - 1)); /* rounded */
            if (taken[i]) x.before[k++] = sentences * percent / 100;
        }
    }
    put(d,
        "Special numbers are hidden in the text below, each with a key. Remember them: a question "
        "about them follows.\n");
    put_text(d, &x, order, start, units);
    put_question(d, &x, asked);
}

/* Variable tracking: a chain of assignments among lines of noise, after a solved example with its
 * own chain.
 * Source: RULER scripts/data/synthetic/variable_tracking.py (structure; one chain of four hops). */

enum { HOPS = 4, VARIABLES = HOPS + 1, VT_LETTERS = 5, EXAMPLE_LETTERS = 3, EXAMPLE_LINES = 5 };

static const char line[] =
    "The bread is brown. The milk is white. The coal is black. Off we set. Out and home again.";

/* Scatters the assignments among lines of noise and appends the question. */
static void vt_put_item(draft *d, char (*name)[VT_LETTERS + 1], unsigned value, int64_t lines)
{
    const int32_t *perm = ruler_draft_shuffled(d, lines);
    bool *taken = perm ? dq_alloc(d->a, (size_t)lines, sizeof *taken, d->err) : NULL;
    if (!taken) return;
    for (int i = 0; i < VARIABLES; i++) taken[perm[i]] = true;
    put(d, "Assignments of variables are hidden in the text below. Follow them from "
           "one to the next.\n\n");
    for (int64_t i = 0, k = 0; i < lines; i++) {
        if (taken[i]) {
            put(d, "VAR %s = ", name[k]);
            if (k == 0)
                put(d, "%u\n", value);
            else
                put(d, "VAR %s\n", name[k - 1]);
            k++;
        }
        put(d, "%s\n", line);
    }
    d->question = d->prompt.n;
    put(d, "Question: Which variables have the value %u in the text above?", value);
    put(d,
        " Answer: By the assignments in the text above, %d variables have the value %u:", VARIABLES,
        value);
}

static void ruler_vt(draft *d, int64_t units)
{
    char name[2 * VARIABLES][VT_LETTERS + 1]; /* of the chain, and of the example's after it */
    for (int n = 0; n < 2 * VARIABLES;) {
        /* Names of different lengths are never part of each other. */
        const int letters = n < VARIABLES ? VT_LETTERS : EXAMPLE_LETTERS;
        bool is_new = true;
        for (int i = 0; i < letters; i++)
            name[n][i] = (char)('A' + dq_random_below(&d->random, 26));
        name[n][letters] = 0;
        for (int i = 0; i < n; i++) is_new = is_new && !strstr(name[i], name[n]);
        n += is_new;
    }
    const unsigned value = 10000u + (unsigned)dq_random_below(&d->random, 90000);
    unsigned other;
    do other = 10000u + (unsigned)dq_random_below(&d->random, 90000);
    while (other == value);
    vt_put_item(d, name + VARIABLES, other, EXAMPLE_LINES);
    for (int i = 0; i < VARIABLES; i++) put(d, " %s", name[VARIABLES + i]);
    put(d, "\n\n");
    vt_put_item(d, name, value, units);
    for (int i = 0; i < VARIABLES; i++) add_answer(d, dq_text(d->a, name[i], VT_LETTERS, d->err));
}

/* The number of units that fit is found by encoding: each guess extrapolates linearly from the last
 * two. Every draft starts from the sample's seed, so that the number of guesses changes nothing. */

/* max_new and the numbers of keys and values are RULER's (scripts/data/synthetic/constants.py,
 * scripts/synthetic.yaml). */
const dq_ruler_task dq_ruler_tasks[] = {
    {"niah_single", true, false, 128, 1, ruler_niah, 1, 1, 1},
    {"niah_multikey", true, false, 128, 1, ruler_niah, 4, 1, 1},
    {"niah_multivalue", true, false, 128, 1, ruler_niah, 1, 4, 1},
    {"niah_multiquery", true, false, 128, 1, ruler_niah, 4, 1, 4},
    {"vt", false, false, 30, 5, ruler_vt, 0, 0, 0},
    {"cwe", true, true, 120, 11, ruler_cwe, 0, 0, 0},
    {"fwe", false, false, 50, 74, ruler_fwe, 0, 0, 0},
};
const int dq_ruler_n_tasks = sizeof dq_ruler_tasks / sizeof dq_ruler_tasks[0];

const dq_ruler_task *dq_ruler_find(const char *name)
{
    for (int i = 0; i < dq_ruler_n_tasks; i++) {
        if (strcmp(dq_ruler_tasks[i].name, name) == 0) return &dq_ruler_tasks[i];
    }
    return NULL;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

enum { LONGEST = 1 << 20 }; /* bytes of a piece: what has no white space falls into several */

/* Skips *from spaces at s[len]; 0: no piece left. */
static size_t next_piece(const char *s, size_t len, size_t *from)
{
    size_t n = 0;
    while (*from < len && is_space(s[*from])) ++*from;
    while (*from + n < len && n < LONGEST && !is_space(s[*from + n])) n++;
    return n;
}

static bool is_word(const text_piece *p)
{
    if (p->len < 3 || p->len > 12) return false;
    for (int32_t i = 0; i < p->len; i++) {
        if (p->s[i] < 'a' || p->s[i] > 'z') return false;
    }
    return true;
}

/* DQ_DAMAGED: no words, or no end of a sentence. */
static dq_status read_text(ruler_text *out, const char *text, size_t len, dq_arena *a, dq_err *err)
{
    size_t at = 0;
    *out = (ruler_text){.n = 0};
    for (size_t k; (k = next_piece(text, len, &at)) > 0; at += k) out->n++;
    out->n_bad = (int64_t)dq_utf8_check(text, len, &out->first_bad);
    text_piece *piece = dq_alloc(a, (size_t)out->n, sizeof *piece, err);
    int64_t *start = dq_alloc(a, (size_t)out->n, sizeof *start, err);
    if (!piece || !start) return err->code;
    bool any = false;
    at = 0;
    for (int64_t i = 0; i < out->n; i++) {
        const size_t n = next_piece(text, len, &at);
        piece[i] = (text_piece){text + at, (int32_t)n, strchr(".!?", text[at + n - 1]) != NULL};
        any = any || piece[i].ends;
        if (i == 0 || piece[i - 1].ends) start[out->n_starts++] = i;
        at += n;
    }
    out->piece = piece;
    out->start = start;
    dq_strmap seen = {0};
    const char **word = dq_alloc(a, (size_t)out->n, sizeof *word, err);
    if (!word || dq_strmap_new(&seen, (size_t)out->n, a, err) != DQ_OK) return err->code;
    for (int64_t i = 0; i < out->n; i++) {
        const text_piece *p = &out->piece[i];
        if (!is_word(p) || dq_strmap_get(&seen, p->s, (size_t)p->len) >= 0) continue;
        char *own = dq_text(a, p->s, (size_t)p->len, err);
        if (!own) return err->code;
        dq_strmap_put(&seen, own, (size_t)p->len, (int32_t)out->n_words);
        word[out->n_words++] = own;
    }
    out->word = word;
    if (any && out->n_words > 1) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "has no end of a sentence (a word that ends in . ! or ?), or no two words of 3 "
                   "to 12 small letters. "
                   "Give running text");
}

typedef struct fitting {
    const maker *m;
    dq_ruler_prompt *best;
    int64_t length, room; /* ids; the same for the prompt alone */
    uint64_t seed;
    int64_t sample;
} fitting;

static dq_random random_of(const fitting *f)
{
    dq_random r = dq_random_of(f->seed, (uint64_t)f->sample);
    r.state ^= dq_random_mix((uint64_t)f->length);
    for (const char *c = f->m->task->name; *c; c++) r.state = dq_random_mix(r.state ^ (uint64_t)*c);
    return r;
}

static dq_status keep(const fitting *f, const draft *d, unsigned flags, const int32_t *ids,
                      int64_t n, int64_t units, dq_err *err)
{
    dq_ruler_prompt *p = f->best;
    int32_t *kept = dq_alloc(f->m->a, (size_t)n, sizeof *kept, err);
    const char **answer = dq_alloc(f->m->a, (size_t)d->n_answers, sizeof *answer, err);
    if (!kept || !answer) return err->code;
    memcpy(kept, ids, (size_t)n * sizeof *ids);
    for (int i = 0; i < d->n_answers; i++) {
        answer[i] = dq_text(f->m->a, d->answer[i], strlen(d->answer[i]), err);
        if (!answer[i]) return err->code;
    }
    *p = (dq_ruler_prompt){kept, n, 0, answer, d->n_answers, units};
    /* The prompt's ids before the question are those that both texts begin with. */
    int64_t *out = &p->question;
    int32_t *before;
    int64_t n_before;
    DQ_TRY(dq_tokenizer_encode(f->m->t, d->prompt.s, d->question, flags, &before, &n_before, NULL,
                               NULL, err));
    *out = 0;
    while (*out < n && *out < n_before && ids[*out] == before[*out]) ++*out;
    dq_block_free(before);
    return DQ_OK;
}

/* *n: ids of the prompt with so many units; `take` keeps it. */
static dq_status try_units(const fitting *f, int64_t units, bool take, int64_t *n, dq_err *err)
{
    draft d = {.task = f->m->task,
               .text = f->m->text,
               .length = f->length,
               .random = random_of(f),
               .a = dq_arena_new(),
               .err = err};
    int32_t *ids = NULL;
    if (!d.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    f->m->task->write(&d, units);
    if (err->code == DQ_OK) {
        const unsigned flags = dq_items_bos_flags(f->m->t, f->m->bos, d.prompt.s, d.prompt.n);
        dq_tokenizer_encode(f->m->t, d.prompt.s, d.prompt.n, flags, &ids, n, NULL, NULL, err);
        if (err->code == DQ_OK) dq_tokenizer_check_ids(ids, *n, f->m->vocab, err);
        if (err->code == DQ_OK && take) keep(f, &d, flags, ids, *n, units, err);
    }
    dq_block_free(ids);
    dq_block_free(d.prompt.s);
    dq_arena_free(d.a);
    return err->code;
}

/* Between lo, which fits with n_lo ids, and hi, which does not (0: unknown). */
static int64_t guess(int64_t lo, int64_t n_lo, int64_t hi, int64_t n_hi, int64_t last,
                     int64_t n_last, int64_t room)
{
    const double more = hi           ? (double)(n_hi - n_lo) / (double)(hi - lo)
                        : lo != last ? (double)(n_lo - n_last) / (double)(lo - last)
                                     : (double)n_lo / (double)lo;
    int64_t to = lo + (more > 0 ? (int64_t)((double)(room - n_lo) / more) : lo);
    if (to <= lo) to = lo + 1;
    if (!hi && to > 64 * lo) to = 64 * lo;
    return hi && to >= hi ? hi - 1 : to;
}

/* The prompt with the most units that fit; it depends on task, text, tokenizer, length, seed and
 * sample alone. DQ_MISMATCH: none fits, or the text has too few words. */
static dq_status make_prompt(dq_ruler_prompt *out, const maker *m, int64_t length, uint64_t seed,
                             int64_t sample, dq_err *err)
{
    const fitting f = {m, out, length, length - m->task->max_new, seed, sample};
    enum { LINES = 12 }; /* rounds by a line; then halves */
    const int64_t words = f.m->task->by_words ? f.m->text->n_words : INT64_MAX - 1;
    int64_t lo = f.m->task->least, n_lo, hi = 0, n_hi = 0, last = lo, n_last;
    DQ_TRY(try_units(&f, lo, false, &n_lo, err));
    if (n_lo > f.room)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_OPTION},
                            "lengths %lld: the shortest prompt of %s and room for its answer need "
                            "%lld tokens. Use longer "
                            "ones",
                            (long long)f.length, f.m->task->name,
                            (long long)(n_lo + f.m->task->max_new));
    n_last = n_lo;
    for (int round = 0; hi != lo + 1; round++) {
        int64_t n, to = hi && round >= LINES ? lo + (hi - lo) / 2
                                             : guess(lo, n_lo, hi, n_hi, last, n_last, f.room);
        if (to > words)
            to = lo < words ? words : words + 1; /* of which the task says that they lack */
        DQ_TRY(try_units(&f, to, false, &n, err));
        if (n <= f.room) {
            last = lo;
            n_last = n_lo;
            lo = to;
            n_lo = n;
        } else {
            hi = to;
            n_hi = n;
        }
    }
    return try_units(&f, lo, true, &n_lo, err);
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* The share of answers found in text[len], ignoring case.
 * Source: RULER scripts/eval/synthetic/constants.py, string_match_all. */
static double found_in(const char *text, size_t len, const char *const *answer, int n)
{
    int found = 0;
    for (int a = 0; a < n; a++) {
        const size_t bytes = strlen(answer[a]);
        size_t k = 0;
        for (size_t i = 0; k < bytes && i + bytes <= len; i++) {
            for (k = 0; k < bytes && lower(text[i + k]) == lower(answer[a][k]);) k++;
        }
        found += k == bytes;
    }
    return (double)found / n;
}

static dq_status load(dq_eval *e, dq_eval_source *source, dq_err *err)
{
    ruler_text *t = dq_alloc(e->a, 1, sizeof *t, err);
    if (!t) return err->code;
    source->own = t;
    if (read_text(t, source->text, source->len, e->a, err) != DQ_OK)
        return dq_in(err, "%s: ", source->path);
    return DQ_OK;
}

static dq_status encode(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_source *s = &e->source[ids->source];
    const dq_eval_model *em = &e->model[ids->model];
    const dq_ruler_settings *of = s->settings;
    const ruler_text *text = s->own;
    const maker m = {of->task, text, em->tok, e->bos, em->m->vocab, e->a};
    dq_ruler_set *set = dq_alloc(e->a, 1, sizeof *set, err);
    if (!set) return err->code;
    if (text) {
        ids->n_bad = text->n_bad;
        ids->first_bad = text->first_bad;
    }
    DQ_TRY(dq_items_bos_check(m.t, e->bos, err));
    DQ_TRY(dq_eval_lengths(set->length, &set->n_lengths, of->length, of->n_lengths, e, err));
    set->samples = of->samples;
    const int64_t n = set->n_lengths * set->samples, max_new = m.task->max_new;
    dq_ruler_prompt *p = dq_alloc(m.a, (size_t)n, sizeof *p, err);
    dq_request *r = dq_eval_requests(&ids->req, n, m.a, err);
    if (!p || !r) return err->code;
    set->prompt = p;
    for (int64_t i = 0; i < n; i++, p++) {
        DQ_TRY(make_prompt(p, &m, set->length[i / set->samples], of->seed, i % set->samples, err));
        r[i].ctx = p->ids;
        r[i].n_ctx = p->n;
        r[i].n_cont = max_new;
        r[i].context = of->query_aware ? 0 : p->question;
        r[i].value = i * max_new;
    }
    ids->req.n_values = n * max_new;
    ids->n_extra = DQ_GEN_EXTRA;
    ids->own = set;
    ids->passes = of->query_aware ? "prompt+decode" : "context+question+decode";
    return DQ_OK;
}

static dq_status takes(const dq_eval *e, const dq_eval_source *source, const dq_kv_spec *kv,
                       dq_err *err)
{
    const dq_ruler_settings *s = source->settings;
    (void)e;
    if (s->query_aware || !kv->evict.policy || !kv->evict.every) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_EVERY},
                        "%s: evicting every %lld tokens is not defined where the question comes "
                        "after what is evicted",
                        source->name, (long long)kv->evict.every);
}

static double share_of(const dq_eval *e, const dq_eval_row *row, int64_t unit, const char *text,
                       size_t len)
{
    const dq_ruler_set *set = e->ids[row->ids].own;
    return found_in(text, len, set->prompt[unit].answer, set->prompt[unit].n_answers);
}

static bool all_found(const dq_eval *e, const dq_eval_row *row, int64_t unit, const char *text,
                      size_t len)
{
    return share_of(e, row, unit, text, len) == 1;
}

static dq_status judge_found(double right[2], const dq_eval *e, const dq_eval_row *row,
                             int64_t unit, const char *text, size_t len, dq_err *err)
{
    right[0] = share_of(e, row, unit, text, len);
    right[1] = right[0] == 1;
    return err->code;
}

static dq_status score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                       dq_arena *a, dq_err *err)
{
    return dq_eval_write(e, row, s, begin, end, all_found, judge_found, a, err);
}

const dq_eval_kind dq_eval_ruler = {
    .metric = {"acc", "all_correct"},
    .load = load,
    .encode = encode,
    .judge = dq_eval_judge_written,
    .cluster = "prompt",
    .score = score,
    .takes = takes,
};
