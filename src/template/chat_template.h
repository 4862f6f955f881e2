/* chat_template: a conversation as the text that a model was trained on, by the template that comes with it: the part of
 * Jinja2 that published templates use (MODEL.md, "Chat templates"), written here as C has no library for it.
 * Source: transformers utils/chat_template_utils.py (the environment) and jinja2 3.1 (what templates mean).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHAT_TEMPLATE_H
#define DQ_CHAT_TEMPLATE_H

#include "base/base.h"

struct dq_model;

typedef struct dq_chat_template dq_chat_template;
typedef struct dq_chat_message {
    const char *role, *content; /* UTF-8, the caller's */
} dq_chat_message;

/* Parses text[len]. DQ_MISMATCH names what is not implemented, with its line; DQ_DAMAGED: a template that Jinja2 itself
 * refuses. */
dq_status dq_chat_template_new(dq_chat_template **out, const char *text, size_t len, dq_err *err);
/* What the template finds under a name: "bos_token", "eos_token". Other names are undefined. Both are copied. */
dq_status dq_chat_template_define(dq_chat_template *t, const char *name, const char *text,
                                  dq_err *err);
/* The template that comes with a model, with its special tokens defined: chat_template.jinja, else "chat_template" of
 * tokenizer_config.json, where of several the one named "default" counts. *out is NULL where there is none. Special tokens
 * are bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token of tokenizer_config.json and
 * special_tokens_map.json. */
dq_status dq_chat_template_of(dq_chat_template **out, const struct dq_model *m, dq_err *err);
void dq_chat_template_free(dq_chat_template *t); /* NULL allowed */

/* What transformers' apply_chat_template(messages, tokenize=False, add_generation_prompt=...) gives, with a NUL after its
 * *len bytes. *out: a block, ended by dq_block_free. DQ_DAMAGED: Jinja2 fails too, or a message is not UTF-8; DQ_MISMATCH:
 * the template refuses the messages (raise_exception: its own words), does what is not implemented, takes more than the
 * limit of work or makes more than that of text; DQ_STOPPED. Keeps no state between calls. */
dq_status dq_chat_template_render(const dq_chat_template *t, const dq_chat_message *m, int n,
                                  bool add_generation_prompt, char **out, size_t *len, dq_err *err);
/* The same for the model of this path, which failures name. DQ_MISMATCH for an empty text too: nothing can follow it. */
dq_status dq_chat_template_prompt(const dq_chat_template *t, const char *path,
                                  const dq_chat_message *m, int n, bool add_generation_prompt,
                                  char **out, size_t *len, dq_err *err);
/* The role of the first message of "system" or "user" whose content is not in text[len] as it is, but for white space around it;
 * NULL: all are there. */
const char *dq_chat_template_lost(const char *text, size_t len, const dq_chat_message *m, int n);

#endif
