/* judge: completions as requests to a judge outside dq, and its replies as verdicts on them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JUDGE_H
#define DQ_JUDGE_H

#include "base/json.h"
#include "base/text.h"

/* Takes a request, which it may change but does not own. */
typedef dq_status dq_judge_take(void *arg, json_t *request, dq_err *err);
/* A request for every line of text[len], completions as dq eval --dump-completions writes them, in the form of OpenAI's batch
 * files: {"custom_id", "method", "url", "body": {"model": judge, "messages": [...], ...}}. It shows the judge the prompt, right
 * answers ("reference") where there are some, and the completion, and asks for one word: correct, or incorrect. DQ_DAMAGED names
 * the line. */
dq_status dq_judge_requests(const char *text, size_t len, const char *judge, dq_judge_take *take,
                            void *arg, dq_err *err);

typedef struct dq_judge_tally {
    int64_t replies, unclear,
        first_unclear;            /* unclear: no verdict; first_unclear: a line, 0: none */
    char said[64];                /* what the first unclear one begins with */
    int64_t completions, lacking; /* lacking: without a clear reply */
} dq_judge_tally;
/* Appends the completions with a "verdict" each, a line for each of theirs, empty where a clear reply lacks. A line of replies
 * has "custom_id" (or "id") and a "verdict", as dq_verdicts_load takes it, or a "response" as in OpenAI's batch files,
 * whose text begins with one of the words, a label or none before it, and has neither the other one nor a word that
 * says how far. `path`: of the replies, for messages. DQ_DAMAGED: two for one completion. DQ_MISMATCH:
 * a reply to none of these completions. */
dq_status dq_judge_join(dq_strbuf *out, dq_judge_tally *tally, const char *text, size_t len,
                        const char *path, const char *replies, size_t replies_len, dq_arena *a,
                        dq_err *err);

#endif
