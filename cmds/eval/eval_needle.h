/* eval_needle: multi-needle retrieval on the command line of dq eval and in its reports.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_NEEDLE_H
#define DQ_EVAL_NEEDLE_H

#include "cmds/cli/options.h"
#include "cmds/eval/eval_report.h"
#include "eval/kind_needle.h"

#include <stdio.h>

typedef struct dq_needle_options {
    /* as given; NULL and -1: not given */
    const char *lengths, *depths, *needles, *mode, *rows;
    int64_t samples;
    bool attention;
    dq_needle_settings settings; /* what they mean */
} dq_needle_options;

#define DQ_NEEDLE_OPTIONS(o)                                                                       \
    {.help =                                                                                       \
         "needles (--task needle: numbers hidden in a text of yours and asked for; --data FILE "   \
         "is the text):"},                                                                         \
        {.name = "lengths",                                                                        \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).lengths,                                                                       \
         .value = "LIST",                                                                          \
         .help = "ids of a prompt and the room for its answers (default 4096, or the fewest "      \
                 "positions of the models)"},                                                      \
        {.name = "depths",                                                                         \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).depths,                                                                        \
         .value = "LIST",                                                                          \
         .help = "percent of the filler before the first asked needle (default "                   \
                 "0,25,50,75,100); other needles are anywhere"},                                   \
        {.name = "needles",                                                                        \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).needles,                                                                       \
         .value = "LIST",                                                                          \
         .help = "N:R: N needles of which R are asked for (default 1:1,2:2,4:2,6:2)"},             \
        {.name = "samples",                                                                        \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).samples,                                                                       \
         .min = 1,                                                                                 \
         .max = 1e6,                                                                               \
         .value = "N",                                                                             \
         .help = "prompts per length, depth and N:R (default 50; --limit caps them); drawn "       \
                 "from --seed, each apart from all others"},                                       \
        {.name = "needle-mode",                                                                    \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).mode,                                                                          \
         .value = "MODE",                                                                          \
         .help = "forced (default): whether each digit is the most likely one behind those "       \
                 "before it, in one pass; what a cache forgets or rounds lies before the "         \
                 "question. generated: up to 12 ids a city, greedily; the next city is asked "     \
                 "for behind the model's own answer, cut at its first newline or period; a "       \
                 "cache is cut behind the question"},                                              \
        {.name = "attention",                                                                      \
         .kind = DQ_OPT_FLAG,                                                                      \
         .to = &(o).attention,                                                                     \
         .help = "also how much attention goes to the needle that the prompt's end asks for, "     \
                 "other needles, filler, the question and BOS: one more pass a prompt; not "       \
                 "where tokens are forgotten"},                                                    \
    {                                                                                              \
        .name = "attention-rows", .kind = DQ_OPT_TEXT, .to = &(o).rows, .value = "ROWS",           \
        .help = "last (default): the row that predicts the first answer; query: the mean of all "  \
                "rows of the question"                                                             \
    }

void dq_needle_options_begin(dq_needle_options *o); /* nothing given */
/* seed: --seed, -1: not given. wanted: there is a task needle; options without one are DQ_USAGE. */
dq_status dq_needle_options_read(dq_needle_options *o, int64_t seed, bool wanted, dq_err *err);

/* One line that differs where results may: for the key of a resumed run. */
int dq_needle_key(char *line, size_t cap, const dq_needle_settings *s);
json_t *dq_needle_settings_json(const dq_needle_settings *s);

/* The object "needle" of a row, and what its "metrics" have besides those of all tasks. */
dq_status dq_needle_details(json_t *o, const dq_eval_view *v, int row, dq_err *err);
dq_status dq_needle_metrics(json_t *metrics, const dq_eval_view *v, int row, dq_err *err);
/* JSON lines, one per prompt. */
dq_status dq_needle_dump(FILE *f, const dq_eval_view *v, int row, dq_err *err);
/* Prints accuracy by depth and length, and attention by depth, of every shown row. */
dq_status dq_needle_tables(const dq_eval_view *v, dq_err *err);

#endif
