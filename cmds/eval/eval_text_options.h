/* eval_text_options: what dq eval is told about running text, read before any model is opened.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_TEXT_OPTIONS_H
#define DQ_EVAL_TEXT_OPTIONS_H

#include "cmds/cli/options.h"
#include "cmds/cli/progress.h"
#include "eval/kind_text.h"

typedef struct dq_text_options {
    dq_list files;
    const char *window, *counts;
    int64_t stride, threshold; /* -1: not given */
    bool positions, slices;
    dq_text_settings settings; /* what they mean */
} dq_text_options;

#define DQ_TEXT_OPTIONS(t)                                                                         \
    {.name = "text",                                                                               \
     .kind = DQ_OPT_LIST,                                                                          \
     .to = &(t).files,                                                                             \
     .value = "FILE",                                                                              \
     .help = "UTF-8 text: NLL and perplexity, KLD and top-1 agreement with the reference; may be " \
             "repeated, each FILE is a document; FILE.jsonl holds one a line, {\"text\": ...}"},   \
        {.name = "window",                                                                         \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(t).window,                                                                        \
         .value = "FORM",                                                                          \
         .help = "chunk (default): one behind the other, the second half of each scored;\n"        \
                 "stride: each --stride behind the one before, every id scored once;\n"            \
                 "block: one behind the other, all of each scored;\n"                              \
                 "rolling: as lm-eval, with perplexity per word and byte"},                        \
        {.name = "stride",                                                                         \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(t).stride,                                                                        \
         .min = 1,                                                                                 \
         .max = 1e9,                                                                               \
         .value = "N",                                                                             \
         .help = "ids between windows of --window stride (default: half of --ctx)"},               \
        {.name = "positions",                                                                      \
         .kind = DQ_OPT_FLAG,                                                                      \
         .to = &(t).positions,                                                                     \
         .help = "NLL by position: score the first --ctx ids behind the beginning of every "       \
                 "document that has as many"},                                                     \
        {.name = "slices",                                                                         \
         .kind = DQ_OPT_FLAG,                                                                      \
         .to = &(t).slices,                                                                        \
         .help = "NLL of ids that end a bigram seen before in the window and rare in training, "   \
                 "and of the others"},                                                             \
        {.name = "slice-counts",                                                                   \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(t).counts,                                                                        \
         .value = "FILE",                                                                          \
         .help = "text that stands for the training text when bigrams are counted (default: "      \
                 "the scored documents, each without itself)"},                                    \
    {                                                                                              \
        .name = "slice-threshold", .kind = DQ_OPT_INT, .to = &(t).threshold, .min = 0,             \
        .max = 1e10, .value = "N",                                                                 \
        .help = "a bigram with more than N in 10^10 counted ids is frequent (default 1250)"        \
    }

void dq_text_options_begin(dq_text_options *t);
/* Fills settings but for the documents. ctx: --ctx, 0: not given. */
dq_status dq_text_options_read(dq_text_options *t, int64_t ctx, dq_err *err);
/* When the length of windows is known. */
dq_status dq_text_options_check(const dq_text_options *t, int64_t n_ctx, dq_err *err);
/* Whether a path is one of the files. */
bool dq_text_options_names(const dq_text_options *t, const char *path);
/* Reads the files and adds each to `inputs`. sha: over all that is scored, the settings and what each
 * file is taken for included. */
dq_status dq_text_options_load(dq_text_options *t, dq_talk *talk, json_t *inputs, char sha[65],
                               dq_arena *a, dq_err *err);
/* Entries of `settings`; n_ctx as it came out. */
void dq_text_options_json(json_t *settings, const dq_text_options *t, const dq_eval *e);
/* Documents that were left out, and counts that --limit makes void. */
void dq_text_options_warn(dq_talk *talk, const dq_eval_ids *ids, const dq_text_options *t);

#endif
