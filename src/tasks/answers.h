/* answers: numbers that generated text gives as its answer, judged as lm-eval's gsm8k judges them.
 * Source: lm-evaluation-harness lm_eval/tasks/gsm8k/gsm8k.yaml, lm_eval/filters/extraction.py,
 * exact_match of lm_eval/api/metrics.py (behaviour).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ANSWERS_H
#define DQ_ANSWERS_H

#include "base/json.h"

/* What ends an answer to a gsm8k prompt: "Question:", "</s>", "<|im_end|>". */
extern const char *const dq_answer_stop[];
extern const int dq_answer_n_stops;
/* Offset of the first of stop[n] (not empty) in text[len]; len: none is there. */
size_t dq_answer_end(const char *text, size_t len, const char *const *stop, int n);

/* A piece of somebody's text; s NULL: there is none. */
typedef struct dq_span {
    const char *s;
    size_t len;
} dq_span;

/* What follows the first "#### " that has one of "-0-9.," after it: -?[0-9.,]+. */
dq_span dq_answer_strict(const char *text, size_t len);
/* The last of the numbers that lie one after the other: -?[$0-9.,]{2,}, or else -?[0-9]+. */
dq_span dq_answer_last(const char *text, size_t len);
/* The text without every ',' and '$', then from after the last "#### " on, then without a '.' at its
 * end or before a newline at its end. In the arena, with a NUL; NULL: see err. */
char *dq_answer_clean(dq_span text, dq_arena *a, dq_err *err);

/* The gold answer of a record: its "answer", else "Answer", a text or a number, as dq_answer_clean has
 * it. A number without "#### " also loses the zeros at the end of its fraction (576.0 is 576): such
 * files hold answers that went through floating point. DQ_DAMAGED: there is none, or it is empty. */
dq_status dq_answer_gold(const char **gold, const json_t *record, dq_arena *a, dq_err *err);

typedef struct dq_answer_verdict {
    bool strict;   /* what dq_answer_strict finds, clean, has the gold answer's characters */
    bool flexible; /* what dq_answer_last finds has them */
    bool value;    /* what dq_answer_last finds has the gold answer's value, 18.00 being 18 */
} dq_answer_verdict;
/* gold: from dq_answer_gold. */
dq_status dq_answer_judge(dq_answer_verdict *out, const char *text, size_t len, const char *gold,
                          dq_err *err);

/* Whether two texts are decimal numbers (-?digits with at most one '.') of one value. */
bool dq_answer_same_value(const char *a, const char *b);

#endif
