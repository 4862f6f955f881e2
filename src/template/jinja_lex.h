/* jinja_lex: the text of a template as tokens. Whitespace around tags is gone as trim_blocks and lstrip_blocks and the signs
 * of the tags say.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_LEX_H
#define DQ_JINJA_LEX_H

#include "template/jinja_value.h"

typedef enum dq_jinja_token_kind {
    DQ_JINJA_END,
    DQ_JINJA_DATA, /* text outside of tags */
    DQ_JINJA_PRINT_BEGIN,
    DQ_JINJA_PRINT_END,
    DQ_JINJA_BLOCK_BEGIN,
    DQ_JINJA_BLOCK_END,
    DQ_JINJA_NAME,
    DQ_JINJA_LITERAL, /* a string or a number */
    DQ_JINJA_OPERATOR,
} dq_jinja_token_kind;

typedef struct dq_jinja_token {
    dq_jinja_token_kind kind;
    int line;
    dq_jinja_text text;   /* as it stands there */
    dq_jinja_value value; /* of a literal */
} dq_jinja_token;

/* Tokens of the arena, the last one DQ_JINJA_END. r: an arena and an err. DQ_DAMAGED: Jinja2 refuses the text too;
 * DQ_MISMATCH: it does not. */
const dq_jinja_token *dq_jinja_lex(dq_jinja_run *r, const char *text, size_t len);

/* Python's str.isspace of a character. */
bool dq_jinja_lex_is_space(uint32_t c);

#endif
