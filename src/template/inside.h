/* What the files of src/template share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEMPLATE_INSIDE_H
#define DQ_TEMPLATE_INSIDE_H

#include "base/text.h"
#include "template/chat_template.h"

/* Records "chat template, line N: ..." and returns an absent value. DQ_DAMAGED: Jinja2 refuses it
 * too; DQ_MISMATCH: not implemented, or raised by the template. */
dq_jinja_value dq_jinja_fail(dq_jinja_run *r, dq_status code, const char *fmt, ...) DQ_PRINTF(3, 4);
/* Fails because an undefined value was used. */
dq_jinja_value dq_jinja_fail_undefined(dq_jinja_run *r, const dq_jinja_value *v);
bool dq_jinja_ok(const dq_jinja_run *r);
/* Adds to the work and returns dq_jinja_ok; DQ_MISMATCH above the limit, DQ_STOPPED on a signal.
 * All work on texts and items must come here, directly or through a function with the run. */
bool dq_jinja_spend(dq_jinja_run *r, size_t work);
/* Enters a nested node or value and returns dq_jinja_ok; --r->depth leaves it. */
bool dq_jinja_enter(dq_jinja_run *r);
/* n zeroed items; NULL on failure. */
void *dq_jinja_alloc(dq_jinja_run *r, size_t n, size_t size);
/* NULL on failure, DQ_MISMATCH above DQ_JINJA_MAX_TEXT. */
char *dq_jinja_alloc_text(dq_jinja_run *r, size_t n);
/* DQ_MISMATCH above DQ_JINJA_MAX_TEXT. */
void dq_jinja_put(dq_jinja_run *r, const char *s, size_t n);

dq_jinja_text dq_jinja_text_of(const char *s);         /* the same bytes */
bool dq_jinja_text_is(dq_jinja_text t, const char *s); /* s: a short one */
bool dq_jinja_text_same(dq_jinja_run *r, dq_jinja_text a, dq_jinja_text b);
/* Decodes the character at byte *at and moves past it; or the one that ends at *end and moves to
 * its start; there must be one. After a failure 0, and the place is the end or start of t. */
uint32_t dq_jinja_text_next(dq_jinja_run *r, dq_jinja_text t, size_t *at);
dq_jinja_value dq_jinja_bool(bool truth);
dq_jinja_value dq_jinja_int(int64_t i);
dq_jinja_value dq_jinja_float(double f);
dq_jinja_value dq_jinja_string(const char *s, size_t n); /* the same bytes */
dq_jinja_value dq_jinja_undefined(dq_jinja_run *r, const char *fmt, ...) DQ_PRINTF(2, 3);
/* Fails unless the value of a record's key is a text, as dq_json_text does. */
void dq_jinja_check_key(dq_jinja_run *r, dq_jinja_text key, const dq_jinja_value *v);
/* A key that a record lacks. */
dq_jinja_value dq_jinja_no_key(dq_jinja_text key);
/* Text put between the two calls goes to *mine and becomes a string. */
dq_strbuf *dq_jinja_capture(dq_jinja_run *r, dq_strbuf *mine);
dq_jinja_value dq_jinja_captured(dq_jinja_run *r, dq_strbuf *mine, dq_strbuf *before);

/* Python's name of the type, "str", "dict". */
const char *dq_jinja_type(const dq_jinja_value *v);
bool dq_jinja_is_integer(const dq_jinja_value *v); /* truth values too */
int64_t dq_jinja_integer(const dq_jinja_value *v);

/* A list, tuple, ... with space for n items. */
dq_jinja_value dq_jinja_list_new(dq_jinja_run *r, dq_jinja_kind kind, size_t n);
void dq_jinja_list_add(dq_jinja_run *r, dq_jinja_list *l, dq_jinja_value item);
dq_jinja_value dq_jinja_dict_new(dq_jinja_run *r, dq_jinja_kind kind);
void dq_jinja_dict_put(dq_jinja_run *r, dq_jinja_dict *d, dq_jinja_text key, dq_jinja_value value);
/* NULL: none. */
dq_jinja_value *dq_jinja_dict_get(dq_jinja_run *r, const dq_jinja_dict *d, dq_jinja_text key);

/* All items of an iterable; an iterator is empty after that. */
dq_jinja_list dq_jinja_items(dq_jinja_run *r, const dq_jinja_value *v);
size_t dq_jinja_length(dq_jinja_run *r, const dq_jinja_value *v); /* len(v) */
bool dq_jinja_truth(const dq_jinja_value *v);
bool dq_jinja_equal(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b);
/* -1, 0, 1: a before, equal to, after b; 2: one of them is not a number. */
int dq_jinja_order(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b);

/* After a failure the parser is at the end of the template; no function returns NULL. */
typedef struct dq_jinja_parser {
    dq_jinja_run *r; /* its depth is that of what is being parsed */
    const struct dq_jinja_token *t;
    int loops, macros; /* around what is parsed, loops those of the same macro */
    bool is_branch;    /* right within an if, where a missing filter fails only when used */
    const dq_jinja_node *missing; /* elsewhere: the first one that uses such a filter or test */
    dq_jinja_node none;           /* where memory is short */
} dq_jinja_parser;

dq_jinja_node *dq_jinja_parse_node(dq_jinja_parser *p, dq_jinja_node_kind kind);
void dq_jinja_parse_add(dq_jinja_parser *p, dq_jinja_nodes *list, const dq_jinja_node *n);
/* Completes a node; fails if it nests too deeply. */
dq_jinja_node *dq_jinja_parse_end(dq_jinja_parser *p, dq_jinja_node *n);
/* Enters a nested part, false on failure; --p->r->depth leaves it. */
bool dq_jinja_parse_deeper(dq_jinja_parser *p);

dq_jinja_node *dq_jinja_parse_expression(dq_jinja_parser *p);
/* One expression or several with commas; is_condition: no a if b else c. */
dq_jinja_node *dq_jinja_parse_tuple(dq_jinja_parser *p, bool is_condition);
dq_jinja_node *dq_jinja_parse_filters(dq_jinja_parser *p, dq_jinja_node *a);

dq_jinja_node *dq_jinja_parse_fail(dq_jinja_parser *p, dq_status code, const char *fmt, ...)
    DQ_PRINTF(3, 4);
/* Fails at the current token where `expected` should be. */
dq_jinja_node *dq_jinja_parse_unexpected(dq_jinja_parser *p, const char *expected);
bool dq_jinja_parse_is(const dq_jinja_parser *p, const char *word); /* an operator or a name */
bool dq_jinja_parse_skip(dq_jinja_parser *p, const char *word);     /* the same, and goes past it */
void dq_jinja_parse_expect(dq_jinja_parser *p, const char *word);   /* the same, or fails */
dq_jinja_text dq_jinja_parse_name(dq_jinja_parser *p);              /* a name, or fails */
void dq_jinja_parse_next(dq_jinja_parser *p);

/* Binds arguments to the row's parameters and calls its function. */
dq_jinja_value dq_jinja_eval_apply(dq_jinja_run *r, const dq_jinja_function *f, dq_jinja_call *c);

/* The value of a body that is one {{expression}}, unless its text is asked for, else its text. */
dq_jinja_value dq_jinja_eval_value(dq_jinja_run *r, const dq_jinja_nodes *body, bool text);

/* NULL: no such name; a row without code: Jinja2 has it, but it is not implemented. Functions need
 * no definition. */
const dq_jinja_function *dq_jinja_filters_find(dq_jinja_text name);
const dq_jinja_function *dq_jinja_tests_find(dq_jinja_text name);
const dq_jinja_function *dq_jinja_functions_find(dq_jinja_text name);

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

/* Tokens in the arena, ended by DQ_JINJA_END. DQ_DAMAGED: Jinja2 refuses the text too; DQ_MISMATCH:
 * it does not. */
const dq_jinja_token *dq_jinja_lex(dq_jinja_run *r, const char *text, size_t len);

bool dq_jinja_lex_is_space(uint32_t c);

/* loop.name; absent: there is none. */
dq_jinja_value dq_jinja_loop_attribute(dq_jinja_run *r, dq_jinja_loop *l, dq_jinja_text name);

/* of.name, undefined where there is none; DQ_MISMATCH: Python has it, but it is not implemented. */
dq_jinja_value dq_jinja_methods_attribute(dq_jinja_run *r, const dq_jinja_value *of,
                                          dq_jinja_text name);
/* of[key]; in a dict a key hides the method of its name. */
dq_jinja_value dq_jinja_methods_subscript(dq_jinja_run *r, const dq_jinja_value *of,
                                          const dq_jinja_value *key);

/* DQ_DAMAGED: Python raises an exception; DQ_MISMATCH: beyond int64, string %, or a result of
 * safe. */
dq_jinja_value dq_jinja_operators_arithmetic(dq_jinja_run *r, dq_jinja_operation operation,
                                             const dq_jinja_value *a, const dq_jinja_value *b);
bool dq_jinja_operators_compare(dq_jinja_run *r, dq_jinja_operation operation,
                                const dq_jinja_value *a, const dq_jinja_value *b);
/* v[i] of a list or string, negative from the end; absent: none. */
dq_jinja_value dq_jinja_operators_item(dq_jinja_run *r, const dq_jinja_value *v, int64_t i);

/* Arguments of json.dumps. */
typedef struct dq_jinja_json {
    dq_jinja_text between, colon; /* what stands between items, and after a key */
    dq_jinja_text indent;         /* of a level; s NULL: all on one line */
    bool ascii, sorted;           /* other characters as \u; keys in order */
} dq_jinja_json;

/* Puts str(v); DQ_MISMATCH: Python has no own text for it (a loop, a macro). */
void dq_jinja_print(dq_jinja_run *r, const dq_jinja_value *v);
/* str(v); a string's bytes are not copied. */
dq_jinja_text dq_jinja_print_text(dq_jinja_run *r, const dq_jinja_value *v);
/* json.dumps(v) as a string. */
dq_jinja_value dq_jinja_print_json(dq_jinja_run *r, const dq_jinja_value *v,
                                   const dq_jinja_json *form);

/* DQ_DAMAGED: not a string; DQ_MISMATCH: a result of safe. */
dq_jinja_text dq_jinja_strings_text(dq_jinja_run *r, const dq_jinja_value *v);
/* An integer or truth value; absent or None: the fallback. */
int64_t dq_jinja_strings_int(dq_jinja_run *r, const dq_jinja_value *v, int64_t fallback);

typedef enum dq_jinja_case {
    DQ_JINJA_LOWER,
    DQ_JINJA_UPPER,
    DQ_JINJA_CAPITALIZE, /* the first character in upper case, others in lower */
    DQ_JINJA_TITLE,      /* str.title(): the first letter after another character; ASCII only */
    DQ_JINJA_WORDS /* the filter title: the first character, and those after blanks and - ( { [ < */
} dq_jinja_case;
/* DQ_MISMATCH: characters that become several, or depend on their neighbours. */
dq_jinja_value dq_jinja_strings_case(dq_jinja_run *r, dq_jinja_text t, dq_jinja_case form);
/* chars absent or None: strips whitespace. */
dq_jinja_value dq_jinja_strings_strip(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *chars,
                                      bool left, bool right);
/* Byte offset of `part` from `at` on; SIZE_MAX: none. */
size_t dq_jinja_strings_find(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text part, size_t at);
/* Replaces the first `count` places; negative: all. */
dq_jinja_value dq_jinja_strings_replace(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text old,
                                        dq_jinja_text with, int64_t count);
/* At most `count` splits, negative: all; by absent or None: runs of whitespace. */
dq_jinja_value dq_jinja_strings_split(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *by,
                                      int64_t count);
dq_jinja_value dq_jinja_strings_lines(dq_jinja_run *r, dq_jinja_text t); /* str.splitlines() */
dq_jinja_value dq_jinja_strings_join(dq_jinja_run *r, dq_jinja_text between,
                                     const dq_jinja_list *items);

#endif
