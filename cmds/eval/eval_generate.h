/* eval_generate: generated text in dq eval: its options, what rows say about it, the file of completions.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_GENERATE_H
#define DQ_EVAL_GENERATE_H

#include "base/sha256.h"
#include "cmds/cli/options.h"
#include "cmds/cli/progress.h"
#include "cmds/eval/eval_report.h"
#include "eval/kind_generate.h"

enum { DQ_STOP_TEXTS = 32 };

typedef struct dq_generate_options {
    int64_t max_new; /* 0: not given */
    dq_list stop_words;
    const char *completions;
    /* what they mean */
    bool questions, prompts; /* tasks of the run */
    int64_t num_fewshot;     /* in front of questions */
    const char *shots_path;  /* NULL: none */
    const char *stop[DQ_STOP_TEXTS];
    char shots_sha[65]; /* "" without shots */
    dq_eval_generate of_questions, of_prompts;
} dq_generate_options;

#define DQ_GENERATE_OPTIONS(o)                                                                     \
    {.help = "generated text (gsm8k, svamp, generate)"},                                           \
        {.name = "max-new",                                                                        \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).max_new,                                                                       \
         .min = 1,                                                                                 \
         .max = 1e6,                                                                               \
         .value = "N",                                                                             \
         .help = "new tokens of a prompt at most (default 256)"},                                  \
        {.name = "stop",                                                                           \
         .kind = DQ_OPT_LIST,                                                                      \
         .to = &(o).stop_words,                                                                    \
         .value = "TEXT",                                                                          \
         .help = "text that ends a continuation, with \\n, \\t and \\\\; may be repeated. "        \
                 "gsm8k and svamp end at \"Question:\" too, everything at the model's EOS"},       \
    {                                                                                              \
        .name = "dump-completions", .kind = DQ_OPT_TEXT, .to = &(o).completions, .value = "FILE",  \
        .help = "write every continuation as JSON lines, which --task verdicts reads back with "   \
                "a \"verdict\" in each"                                                            \
    }

/* The tasks that generate, for messages: "gsm8k, svamp, generate". */
extern const char dq_generate_tasks[];
/* Settings and kind for a task of that name; NULL: it is none of them. Notes that it is part of the run. */
const dq_eval_kind *dq_generate_task(dq_generate_options *o, const char *name,
                                     const void **settings);
bool dq_generate_is_task(const char *name);
const char *dq_generate_form(const dq_eval_kind *kind); /* of its file, for messages */
/* After the last task, before any file is read. DQ_USAGE. */
dq_status dq_generate_read(dq_generate_options *o, dq_arena *a, dq_err *err);
/* Reads the file of shots and adds it to `inputs`. */
dq_status dq_generate_open(dq_generate_options *o, json_t *inputs, dq_arena *a, dq_err *err);

/* Adds all that generated ids depend on besides what every row depends on; nothing where none are. */
dq_status dq_generate_key(dq_sha256 *h, const dq_generate_options *o, const dq_eval *e,
                          dq_err *err);
void dq_generate_settings(json_t *settings, const dq_generate_options *o);
/* Before the run: what ends continuations (-v), and models that say nothing about it. */
dq_status dq_generate_say(dq_talk *t, const dq_eval_view *v, dq_err *err);
/* After the run: continuations that met the last position of their model. */
void dq_generate_warn(dq_talk *t, const dq_eval_view *v);

/* What a row of generated text says besides its metrics. */
dq_status dq_generate_details(json_t *o, const dq_eval_view *v, int row, dq_err *err);
/* JSON lines, one per unit of every shown row of generated text. */
dq_status dq_generate_dump(const dq_eval_view *v, const char *path, dq_err *err);

#endif
