/* ruler: see ruler.h. A task writes a prompt for a number of units; how many fit is searched for by encoding, each
 * guess being where a line through the last two would meet the room there is. Every draft starts from the sample's
 * own seed, so that the number of guesses changes nothing.
 * SPDX-License-Identifier: MIT */
#include "tasks/ruler.h"

#include "base/base.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* max_new and the numbers of keys and values are RULER's (scripts/data/synthetic/constants.py, scripts/synthetic.yaml). */
const dq_ruler_task dq_ruler_tasks[] = {
    {"niah_single", true, false, 128, 1, dq_ruler_niah, 1, 1, 1},
    {"niah_multikey", true, false, 128, 1, dq_ruler_niah, 4, 1, 1},
    {"niah_multivalue", true, false, 128, 1, dq_ruler_niah, 1, 4, 1},
    {"niah_multiquery", true, false, 128, 1, dq_ruler_niah, 4, 1, 4},
    {"vt", false, false, 30, 5, dq_ruler_vt, 0, 0, 0},
    {"cwe", true, true, 120, 11, dq_ruler_cwe, 0, 0, 0},
    {"fwe", false, false, 50, 74, dq_ruler_fwe, 0, 0, 0},
};
const int dq_ruler_n_tasks = sizeof dq_ruler_tasks / sizeof dq_ruler_tasks[0];

const dq_ruler_task *dq_ruler_find(const char *name)
{
    for (int i = 0; i < dq_ruler_n_tasks; i++) {
        if (strcmp(dq_ruler_tasks[i].name, name) == 0) return &dq_ruler_tasks[i];
    }
    return NULL;
}

/* ---- A text of the user's ---- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

enum { LONGEST = 1 << 20 }; /* bytes of a piece: what has no white space falls into several */

/* Length of the piece at s[len] after *from spaces; 0: there is none. */
static size_t next_piece(const char *s, size_t len, size_t *from)
{
    size_t n = 0;
    while (*from < len && is_space(s[*from])) ++*from;
    while (*from + n < len && n < LONGEST && !is_space(s[*from + n])) n++;
    return n;
}

static int64_t count_pieces(const char *s, size_t len)
{
    int64_t n = 0;
    for (size_t at = 0, k; (k = next_piece(s, len, &at)) > 0; at += k) n++;
    return n;
}

static bool is_word(const dq_ruler_piece *p)
{
    if (p->len < 3 || p->len > 12) return false;
    for (int32_t i = 0; i < p->len; i++) {
        if (p->s[i] < 'a' || p->s[i] > 'z') return false;
    }
    return true;
}

/* The different words among the pieces. */
static dq_status index_words(dq_ruler_text *t, dq_arena *a, dq_err *err)
{
    dq_strmap seen = {0};
    const char **word = dq_alloc(a, (size_t)t->n, sizeof *word, err);
    if (!word || dq_strmap_new(&seen, (size_t)t->n, a, err) != DQ_OK) return err->code;
    for (int64_t i = 0; i < t->n; i++) {
        const dq_ruler_piece *p = &t->piece[i];
        if (!is_word(p) || dq_strmap_get(&seen, p->s, (size_t)p->len) >= 0) continue;
        char *own = dq_text(a, p->s, (size_t)p->len, err);
        if (!own) return err->code;
        dq_strmap_put(&seen, own, (size_t)p->len, (int32_t)t->n_words);
        word[t->n_words++] = own;
    }
    t->word = word;
    return DQ_OK;
}

dq_status dq_ruler_text_read(dq_ruler_text *out, const char *text, size_t len, dq_arena *a,
                             dq_err *err)
{
    *out = (dq_ruler_text){.n = count_pieces(text, len)};
    out->n_bad = (int64_t)dq_utf8_check(text, len, &out->first_bad);
    dq_ruler_piece *piece = dq_alloc(a, (size_t)out->n, sizeof *piece, err);
    int64_t *start = dq_alloc(a, (size_t)out->n, sizeof *start, err);
    if (!piece || !start) return err->code;
    bool any = false;
    size_t at = 0;
    for (int64_t i = 0; i < out->n; i++) {
        const size_t n = next_piece(text, len, &at);
        piece[i] = (dq_ruler_piece){text + at, (int32_t)n, strchr(".!?", text[at + n - 1]) != NULL};
        any = any || piece[i].ends;
        if (i == 0 || piece[i - 1].ends) start[out->n_starts++] = i;
        at += n;
    }
    out->piece = piece;
    out->start = start;
    DQ_TRY(index_words(out, a, err));
    if (any && out->n_words > 1) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "has no end of a sentence (a word that ends in . ! or ?), or no two words of 3 "
                   "to 12 small letters. "
                   "Give running text");
}

/* ---- Drafts ---- */

void dq_ruler_draft_put(dq_ruler_draft *d, const char *fmt, ...)
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

int32_t *dq_ruler_draft_shuffled(dq_ruler_draft *d, int64_t n)
{
    int32_t *perm = d->err->code == DQ_OK ? dq_alloc(d->a, (size_t)n, sizeof *perm, d->err) : NULL;
    if (perm) dq_random_permute(&d->random, perm, n);
    return perm;
}

void dq_ruler_draft_answer(dq_ruler_draft *d, const char *answer)
{
    if (answer) d->answer[d->n_answers++] = answer;
}

/* ---- The longest that fits ---- */

/* A search for the number of units of one prompt. */
typedef struct fitting {
    const dq_ruler_maker *m;
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

/* How many tokens the two texts begin with alike. */
static dq_status find_question(int64_t *out, const fitting *f, const dq_ruler_draft *d,
                               unsigned flags, const int32_t *ids, int64_t n, dq_err *err)
{
    int32_t *before;
    int64_t n_before;
    DQ_TRY(dq_tokenizer_encode(f->m->t, d->prompt.s, d->question, flags, &before, &n_before, NULL,
                               NULL, err));
    *out = 0;
    while (*out < n && *out < n_before && ids[*out] == before[*out]) ++*out;
    dq_block_free(before);
    return DQ_OK;
}

/* Keeps a draft that fits as the best so far. */
static dq_status keep(const fitting *f, const dq_ruler_draft *d, unsigned flags, const int32_t *ids,
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
    return find_question(&p->question, f, d, flags, ids, n, err);
}

/* *n: ids of the prompt with so many units. With `take` it is kept. */
static dq_status try_units(const fitting *f, int64_t units, bool take, int64_t *n, dq_err *err)
{
    dq_ruler_draft d = {.task = f->m->task,
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

/* Units between the most that are known to fit (lo, with n_lo ids) and the fewest that do not (hi; 0: unknown). */
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

static dq_status fit(const fitting *f, dq_err *err)
{
    enum { LINES = 12 }; /* rounds by a line; then halves */
    const int64_t words = f->m->task->by_words ? f->m->text->n_words : INT64_MAX - 1;
    int64_t lo = f->m->task->least, n_lo, hi = 0, n_hi = 0, last = lo, n_last;
    DQ_TRY(try_units(f, lo, false, &n_lo, err));
    if (n_lo > f->room)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_OPTION},
                            "lengths %lld: the shortest prompt of %s and room for its answer need "
                            "%lld tokens. Use longer "
                            "ones",
                            (long long)f->length, f->m->task->name,
                            (long long)(n_lo + f->m->task->max_new));
    n_last = n_lo;
    for (int round = 0; hi != lo + 1; round++) {
        int64_t n, to = hi && round >= LINES ? lo + (hi - lo) / 2
                                             : guess(lo, n_lo, hi, n_hi, last, n_last, f->room);
        if (to > words)
            to = lo < words ? words : words + 1; /* of which the task says that they lack */
        DQ_TRY(try_units(f, to, false, &n, err));
        if (n <= f->room) {
            last = lo;
            n_last = n_lo;
            lo = to;
            n_lo = n;
        } else {
            hi = to;
            n_hi = n;
        }
    }
    return try_units(f, lo, true, &n_lo, err);
}

dq_status dq_ruler_make(dq_ruler_prompt *out, const dq_ruler_maker *m, int64_t length,
                        uint64_t seed, int64_t sample, dq_err *err)
{
    const fitting f = {m, out, length, length - m->task->max_new, seed, sample};
    return fit(&f, err);
}

/* ---- What an answer says ---- */

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

static bool stands_in(const char *text, size_t len, const char *what)
{
    const size_t n = strlen(what);
    for (size_t i = 0; i + n <= len; i++) {
        size_t k = 0;
        while (k < n && lower(text[i + k]) == lower(what[k])) k++;
        if (k == n) return true;
    }
    return false;
}

double dq_ruler_found(const char *text, size_t len, const char *const *answer, int n)
{
    int found = 0;
    for (int i = 0; i < n; i++) found += stands_in(text, len, answer[i]);
    return (double)found / n;
}
