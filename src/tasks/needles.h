/* needles: prompts for multi-needle retrieval. A running text with sentences such as "The special magic Oslo
 * number is: 1234567" hidden in it, and after it a question about some of them, as ids of one tokenizer.
 * Sources: LargeWorldModel/LWM scripts/eval_needle_multi.py (wording); arXiv 2410.05258, section 3.3 (numbers).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_NEEDLES_H
#define DQ_NEEDLES_H

#include "base/random.h"
#include "tasks/needle_recall.h"
#include "tokenizer/tokenizer.h"

enum { DQ_NEEDLE_CITIES = 100 };
extern const char *const dq_needle_city[DQ_NEEDLE_CITIES]; /* all different */
/* How prompts read, for reports. */
extern const char dq_needle_form[];

enum {
    DQ_NEEDLE_NEW = 12, /* ids that an answer to one city may take */
    DQ_NEEDLE_DIGITS = 7
};

/* What prompts of one kind have in common. */
typedef struct dq_needle_cell {
    int64_t length; /* ids of the prompt and of the room for its answers */
    int depth;      /* of needle 0, percent */
    int n, r;       /* needles, and how many of them are asked for: needles 0 .. r - 1 */
} dq_needle_cell;

/* Begun from everything that names a sample: it does not depend on other cells or samples. */
dq_random dq_needle_random(uint64_t seed, const dq_needle_cell *cell, int64_t sample);

/* The text that needles are hidden in, read as a ring. */
typedef struct dq_needle_filler {
    const int32_t *ids; /* [n] */
    const bool *ends;   /* [n] its text ends in . ! ? or a newline */
    int64_t n;
    const int64_t *start; /* [n_starts] ids that follow such an end */
    int64_t n_starts;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 */
} dq_needle_filler;
/* DQ_DAMAGED: no ids, or no end of a sentence among them. DQ_MISMATCH: an id is not below vocab. */
dq_status dq_needle_filler_read(dq_needle_filler *out, const dq_tokenizer *t, const char *text,
                                size_t len, int64_t vocab, dq_arena *a, dq_err *err);

/* Ids of filler that are left: length - template - sentences len[n] - question - room for answers. */
int64_t dq_needle_left(const dq_needle_cell *cell, int n_bos, const int64_t *len, int64_t n_query,
                       int64_t budget);
/* round(depth / 100 * n_filler), halves upwards. */
int64_t dq_needle_anchor(int depth, int64_t n_filler);
/* anchor[n] = filler ids before each needle, 0 .. n_filler. Those strictly inside move left to the nearest end
 * of a sentence, or to 0, in the filler that begins at id `start`. order[n]: the needles as they follow each
 * other; among equal places needle 0 is the first at depth 0 and the last at depth 100, else the smaller tie
 * comes first, then the smaller number. */
void dq_needle_place(int64_t *anchor, int *order, const uint64_t *tie, int n, int depth,
                     const dq_needle_filler *f, int64_t start, int64_t n_filler);

/* The ids in answer (and with n in front, in the prompt) that are asked for one city. */
typedef struct dq_needle_answer {
    int needle;
    int64_t begin;    /* first id after the text that asks */
    int64_t from, to; /* ids of the number: from the first one with a digit */
} dq_needle_answer;

typedef struct dq_needle_prompt {
    /* [n + n_answer]: template, filler and needles, question; then the answers */
    const int32_t *ids;
    int64_t n; /* length - budget */
    int64_t n_answer;
    int64_t budget;   /* room for answers: DQ_NEEDLE_NEW ids or more a city, and the text between */
    int64_t question; /* index of its first id */
    int n_bos;        /* template ids in front */
    int64_t filler;   /* ids of it */
    int64_t start;    /* where in the filler it begins */
    int needles, requested;
    const char *const *city;        /* [needles] */
    const char *const *number;      /* [needles] decimal digits */
    const int64_t *at, *len;        /* [needles] ids of its sentence */
    const dq_needle_answer *answer; /* [requested], in the order of the question */
} dq_needle_prompt;

/* What all prompts of a tokenizer need; everything is borrowed. */
typedef struct dq_needle_maker {
    const dq_tokenizer *t;
    const dq_needle_filler *filler;
    const int32_t *bos; /* [n_bos] template ids */
    int n_bos;
    int64_t vocab;
    bool
        depth_first; /* the needle at the cell's depth is the first that is asked for; else the order is drawn */
    dq_arena *a; /* prompts live here */
} dq_needle_maker;
/* DQ_MISMATCH: needles and question leave no room for filler; the message says how many tokens they take. */
dq_status dq_needle_make(dq_needle_prompt *out, const dq_needle_maker *m,
                         const dq_needle_cell *cell, uint64_t seed, int64_t sample, dq_err *err);

/* Classes of tokens for sums of attention. */
typedef enum dq_needle_class {
    DQ_NEEDLE_BOS,
    DQ_NEEDLE_ANSWER,     /* the sentence about the city that the question ends with asking for */
    DQ_NEEDLE_DISTRACTOR, /* all other needles */
    DQ_NEEDLE_NOISE,      /* filler */
    DQ_NEEDLE_QUERY,
    DQ_NEEDLE_CLASSES
} dq_needle_class;
extern const char *const dq_needle_class_name[DQ_NEEDLE_CLASSES];
/* label[p->n] */
void dq_needle_labels(uint8_t *label, const dq_needle_prompt *p);

/* Adds to *sum what became of p->answer[k], given text[len] where its number should stand. */
dq_status dq_needle_judge_text(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                               const char *text, size_t len, dq_err *err);
/* The same by the most likely ids top1[to - from] in place of the number's ids: correct where all are equal, else
 * as their text reads. */
dq_status dq_needle_judge_ids(dq_needle_recall *sum, const dq_needle_prompt *p, int k,
                              const dq_tokenizer *t, const int32_t *top1, dq_err *err);

#endif
