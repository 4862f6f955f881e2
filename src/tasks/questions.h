/* Questions with answers to be generated, and who judges these.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUESTIONS_H
#define DQ_QUESTIONS_H

#include "base/json.h"
#include "base/text.h"
#include "stat/stat.h"

struct dq_task;

/* Numeric answers in generated text, judged as in gsm8k.
 * Source: lm-evaluation-harness lm_eval/tasks/gsm8k/gsm8k.yaml, lm_eval/filters/extraction.py,
 * exact_match of lm_eval/api/metrics.py (behaviour). */

/* Stop texts of a gsm8k prompt: "Question:", "</s>", "<|im_end|>". */
extern const char *const dq_answer_stop[];
extern const int dq_answer_n_stops;
/* Offset of the first of stop[n] (not empty) in text[len]; len: none. */
size_t dq_answer_end(const char *text, size_t len, const char *const *stop, int n);

/* A borrowed piece of text; s NULL: none. */
typedef struct dq_span {
    const char *s;
    size_t len;
} dq_span;

/* A right answer, a text or a number, cleaned. A number without "#### " also loses trailing zeros
 * of its fraction (576.0 is 576), as such files went through floating point. DQ_DAMAGED: neither,
 * or empty. */
dq_status dq_answer_gold(const char **gold, const json_t *value, dq_arena *a, dq_err *err);

typedef struct dq_answer_verdict {
    bool strict;   /* the answer in the strict place has the gold answer's characters */
    bool flexible; /* what is found otherwise is right */
} dq_answer_verdict;

/* Where an answer is looked for, and when it is right. The first looks at the last number, strictly
 * at that after "#### "; the others at the text's \boxed{}, else at the line after "answer is",
 * else at the whole text, strictly at the \boxed{} alone. */
typedef enum dq_answer_rule {
    DQ_ANSWER_GSM8K, /* clean, it has the gold answer's characters */
    DQ_ANSWER_VALUE, /* its last number, without '%', has the gold answer's value */
    DQ_ANSWER_MATH,  /* equal in form or in value; of a whole text the last number */
    DQ_ANSWER_WORDS  /* it has the gold answer's characters, whatever the case of ASCII letters */
} dq_answer_rule;

/* For a number, or else for an expression. */
dq_answer_rule dq_answer_rules_for(const char *gold);
/* gold: from dq_answer_gold. */
dq_status dq_answer_rules_judge(dq_answer_verdict *out, dq_answer_rule rule, const char *text,
                                size_t len, const char *gold, dq_err *err);

typedef struct dq_question {
    const char *id;     /* JSON text of the record's "id" (or "ID"); NULL: none */
    const char *prompt; /* well-formed UTF-8 */
    size_t len;
    const char *gold, *worked; /* worked: as examples show it; NULL: prompts have none */
    dq_answer_rule rule;       /* that it is judged by */
    /* For a judge: the question about a source (NULL: a summary), and right answers as a JSON list
     * of texts (NULL: none known). */
    const char *query, *reference;
    int64_t line;              /* of the file, from 1; 0 where the file is one list */
    uint64_t content, cluster; /* hashes: of its own prompt, and see dq_item */
} dq_question;

typedef struct dq_questions {
    const dq_question *question; /* [n] */
    int64_t n;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 that became U+FFFD; offset in the file or -1 */
    int64_t n_own_shots; /* questions that an example with the same question was taken out for */
} dq_questions;

typedef struct dq_question_shots {
    int64_t n;     /* before every question; 0: none */
    bool drawn;    /* for each question, as in lm-evaluation-harness; else the file's first */
    uint64_t seed; /* of the draws */
    const dq_question *example; /* [n_examples], each "PROMPT WORKED" and two line ends */
    int64_t n_examples;
} dq_question_shots;

/* Reads the records of a task of questions, at most `limit` (0: all). Before the prompt of an
 * answered one stand `shots` (NULL: none), which never have the same question: DQ_MISMATCH where
 * too few remain. DQ_DAMAGED names path and line, or item.
 * Source: lm-evaluation-harness lm_eval/tasks/gsm8k/gsm8k.yaml (behaviour). */
dq_status dq_questions_load(dq_questions *out, const struct dq_task *task,
                            const dq_question_shots *shots, const char *path, const char *text,
                            size_t len, int64_t limit, dq_arena *a, dq_err *err);
/* Fills the examples of *shots with a file's answered records, in the arena. DQ_MISMATCH: fewer
 * than n. */
dq_status dq_questions_shots(dq_question_shots *shots, const struct dq_task *task, const char *path,
                             const char *text, size_t len, dq_arena *a, dq_err *err);

/* Answers that are LaTeX expressions.
 * Source: MATH, modeling/math_equivalence.py, as in lm-evaluation-harness
 * lm_eval/tasks/hendrycks_math/utils.py (behaviour). */

/* The content of the last \boxed{...}, else \fbox{...}; if "\boxed " occurs, what follows its last
 * one up to a '$'. s NULL: none, or unbalanced braces. */
dq_span dq_math_answer_boxed(const char *text, size_t len);

/* Completions become requests to an external judge, and its replies verdicts. */

/* May change the request but does not own it. */
typedef dq_status dq_judge_take(void *arg, json_t *request, dq_err *err);
/* A request for every line of text[len], completions as dq eval --dump-completions writes them, in
 * the form of OpenAI's batch files: {"custom_id", "method", "url", "body": {"model": judge,
 * "messages": [...], ...}}. It shows the judge the prompt, right answers ("reference") where there
 * are some, and the completion, and asks for one word: correct, or incorrect. DQ_DAMAGED names the
 * line. */
dq_status dq_judge_requests(const char *text, size_t len, const char *judge, dq_judge_take *take,
                            void *arg, dq_err *err);

typedef struct dq_judge_tally {
    int64_t replies, unclear,
        first_unclear;            /* unclear: no verdict; first_unclear: a line, 0: none */
    char said[64];                /* what the first unclear one begins with */
    int64_t completions, lacking; /* lacking: without a clear reply */
} dq_judge_tally;
/* Appends the completions with a "verdict" each, a line for each of theirs, empty where a clear
 * reply lacks. A line of replies has "custom_id" (or "id") and a "verdict", as dq_verdicts_load
 * takes it, or a "response" as in OpenAI's batch files, whose text begins with one of the words, a
 * label or none before it, and has neither the other one nor a word that says how far. `path`: of
 * the replies, for messages. DQ_DAMAGED: two for one completion. DQ_MISMATCH: a reply to none of
 * these completions. */
dq_status dq_judge_join(dq_strbuf *out, dq_judge_tally *tally, const char *text, size_t len,
                        const char *path, const char *replies, size_t replies_len, dq_arena *a,
                        dq_err *err);

/* Verdicts of others on generated texts. */

typedef struct dq_verdict {
    int64_t item;
    double score;     /* 0 (wrong) to 1 */
    int64_t line;     /* of the file, from 1 */
    uint64_t cluster; /* items of one number depend on each other */
    int group;        /* its index */
} dq_verdict;

/* A group shares task, model, logit bits (and, below 16, granularity), arithmetic and KV cache. */
typedef struct dq_verdict_group {
    const char *task; /* NULL: the lines name none */
    const char *model, *granularity;
    const char *math; /* "f32", ...; NULL: the lines name none, and count as f32 */
    int bits;
    const json_t *kv;          /* owned by the dq_verdicts; NULL: plain */
    const dq_verdict *verdict; /* [n] by rising item */
    int64_t n;
    dq_mean acc;
    dq_interval acc_interval;
    int ref; /* its group at 16 bits and plain, in f32 or else its arithmetic; -1: none */
    /* the group of the first model with its task and setting, where that is another; -1: none */
    int cross;
    dq_stat_flips flips, cross_flips; /* over items that both groups have; see stat.h */
} dq_verdict_group;

typedef struct dq_verdicts {
    dq_verdict_group *group; /* [n] in the order of their first lines */
    int n;
    json_t *kept; /* what groups borrow */
} dq_verdicts;

/* Reads JSON lines {"item", "verdict", "model"?, "logit_bits"?, "logit_granularity"?, "math"?,
 * "kv"?, "task"?, "cluster"?, "prompt"?}: items of one `cluster`, or where a line has none of one
 * prompt, depend on each other. verdict is true, false, "correct", "incorrect" or a number from 0
 * to 1; without the others a line is of the model "model" at 16 bits. Lists live in the arena; end
 * it with dq_verdicts_end, whatever happened. DQ_DAMAGED names path and line. */
dq_status dq_verdicts_load(dq_verdicts *out, const char *path, const char *text, size_t len,
                           dq_arena *a, dq_err *err);
void dq_verdicts_end(dq_verdicts *v);

#endif
