/* chat_template: a conversation as the text that a model was trained on, by the template that comes
 * with it: the part of Jinja2 that published templates use (docs/math/text.md), written
 * here as C has no library for it.
 * Source: transformers utils/chat_template_utils.py (the environment) and jinja2 3.1 (what
 * templates mean).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHAT_TEMPLATE_H
#define DQ_CHAT_TEMPLATE_H

#include "base/base.h"
#include "base/text.h"

struct dq_model;

typedef struct dq_chat_template dq_chat_template;
typedef struct dq_chat_message {
    const char *role, *content; /* UTF-8, the caller's */
} dq_chat_message;

/* The template that comes with a model, with its special tokens defined: chat_template.jinja, else
 * "chat_template" of tokenizer_config.json, where of several the one named "default" counts. *out
 * is NULL where there is none. Special tokens are bos_token, eos_token, unk_token, sep_token,
 * pad_token, cls_token and mask_token of tokenizer_config.json and special_tokens_map.json. */
dq_status dq_chat_template_of(dq_chat_template **out, const struct dq_model *m, dq_err *err);
void dq_chat_template_free(dq_chat_template *t); /* NULL allowed */

/* What transformers' apply_chat_template(messages, tokenize=False, add_generation_prompt=...)
 * gives, with a NUL after its *len bytes, for the model at this path, which failures name. *out: a
 * block, ended by dq_block_free. DQ_DAMAGED: Jinja2 fails too, or a message is not UTF-8;
 * DQ_MISMATCH: the template refuses the messages (raise_exception: its own words), does what is not
 * implemented, takes more than the limit of work or makes more than that of text; an empty text,
 * which nothing can follow; DQ_STOPPED. Keeps no state between calls. */
dq_status dq_chat_template_prompt(const dq_chat_template *t, const char *path,
                                  const dq_chat_message *m, int n, bool add_generation_prompt,
                                  char **out, size_t *len, dq_err *err);
/* The role of the first "system" or "user" message whose stripped content is not in text[len];
 * NULL: all are there. */
const char *dq_chat_template_lost(const char *text, size_t len, const dq_chat_message *m, int n);

/* ---- Jinja value ----
 * What the expressions of a template give, as Python has it: values that do not change once they
 * are made, in the arena of one rendering. A failure stands in the rendering's err, the first one
 * only; from then on functions give absent values, false and 0, so that what calls them asks
 * dq_jinja_ok where it matters: in loops and at the end. */

/* Bytes of UTF-8 without a final NUL. */
typedef struct dq_jinja_text {
    const char *s;
    size_t n;
} dq_jinja_text;

typedef enum dq_jinja_kind {
    DQ_JINJA_ABSENT, /* no value: an argument that was not given, the result of what failed */
    DQ_JINJA_UNDEFINED,
    DQ_JINJA_NONE,
    DQ_JINJA_BOOL,
    DQ_JINJA_INT,
    DQ_JINJA_FLOAT,
    DQ_JINJA_STRING,
    DQ_JINJA_LIST,
    DQ_JINJA_TUPLE,
    DQ_JINJA_RANGE,
    DQ_JINJA_VIEW,     /* keys(), values() and items() of a dict */
    DQ_JINJA_ITERATOR, /* can be read once: what map, select and others give */
    DQ_JINJA_DICT,     /* keys are strings */
    DQ_JINJA_NAMESPACE,
    DQ_JINJA_LOOP,
    DQ_JINJA_MACRO,
    DQ_JINJA_FUNCTION,
    DQ_JINJA_METHOD,
    DQ_JINJA_KINDS
} dq_jinja_kind;

typedef struct dq_jinja_value {
    dq_jinja_kind kind;
    bool is_safe; /* a string that came through the filter safe */
    bool of_key;  /* undefined: a key of a record, whose name is the text */
    union {
        bool truth;
        int64_t i;
        double f;
        dq_jinja_text text;         /* a string; of an undefined value, what using it says */
        struct dq_jinja_list *list; /* list, tuple, range, view, iterator */
        struct dq_jinja_dict *dict; /* dict, namespace */
        struct dq_jinja_loop *loop;
        const struct dq_jinja_macro *macro;
        const struct dq_jinja_function *function;
        const struct dq_jinja_method *method;
    };
} dq_jinja_value;

typedef struct dq_jinja_list {
    dq_jinja_value *item; /* [n] */
    size_t n, capacity;
} dq_jinja_list;

typedef struct dq_jinja_entry {
    dq_jinja_text key;
    dq_jinja_value value;
} dq_jinja_entry;

typedef struct dq_jinja_dict {
    dq_jinja_entry *entry; /* [n], in the order in which keys came */
    size_t n, capacity;
} dq_jinja_dict;

typedef enum dq_jinja_flow { DQ_JINJA_ON, DQ_JINJA_BREAK, DQ_JINJA_CONTINUE } dq_jinja_flow;
typedef struct dq_jinja_run {
    dq_arena *arena; /* all values */
    dq_err *err;
    dq_strbuf *out; /* where text goes */
    struct dq_jinja_scope *scope;
    /* Of a record's template, which differs as in lm-evaluation-harness: an undefined value may not
     * be printed, and newlines after tags stay. A key that is printed must be a string. NULL: of a
     * conversation. */
    const char *member;
    const struct dq_record_function *own; /* what it may call besides */
    dq_jinja_flow flow;                   /* what ends the statements around */
    int line;                             /* of the node at work */
    int depth;                            /* of nodes and values at work */
    size_t work;                          /* nodes, bytes and items so far, in units of a byte */
} dq_jinja_run;

/* A call of a filter, test, method or function, and its row of a table. */
enum { DQ_JINJA_PARAMETERS = 5 };
typedef struct dq_jinja_call {
    dq_jinja_value self;                   /* before the filter, the test or the method's dot */
    dq_jinja_list arg;                     /* given by position */
    dq_jinja_dict named;                   /* given by name */
    dq_jinja_value p[DQ_JINJA_PARAMETERS]; /* of the row's parameters, absent: not given */
    unsigned which;                        /* the row's */
} dq_jinja_call;

typedef dq_jinja_value dq_jinja_code(dq_jinja_run *r, dq_jinja_call *c);
typedef struct dq_jinja_function {
    const char *name;
    const char
        *parameters;     /* names with blanks, _name: by position only; NULL: takes arg and named */
    size_t required;     /* the first ones that must be given */
    dq_jinja_code *code; /* NULL: Jinja2 has it, and it is not implemented */
    unsigned which;      /* for code of several rows */
} dq_jinja_function;

typedef struct dq_jinja_method {
    dq_jinja_value self;
    const dq_jinja_function *function;
} dq_jinja_method;

/* Work counts bytes copied, compared or passed over; slower steps count as so many bytes. */
enum {
    DQ_JINJA_MAX_WORK = 1 << 28, /* of a rendering: bounds its time and memory */
    DQ_JINJA_CHARACTER = 4,      /* a character that is decoded, beside what is done with it */
    DQ_JINJA_PIECE = 8,          /* a piece that is put, an item that is read, a comparison */
    DQ_JINJA_STEP = 32,          /* a node that is run, a value that is written */
    DQ_JINJA_SEARCH = 128,       /* a name among methods, the text of an undefined value */
    DQ_JINJA_NUMBER = 512,       /* a number from its digits */
    DQ_JINJA_DIVISION = 4096     /* the rest of a real, or its shortest digits */
};

/* Parts of each kind of node: */
typedef enum dq_jinja_node_kind {
    DQ_JINJA_CONSTANT,   /* value */
    DQ_JINJA_VARIABLE,   /* name */
    DQ_JINJA_LIST_OF,    /* item */
    DQ_JINJA_TUPLE_OF,   /* item */
    DQ_JINJA_DICT_OF,    /* item: key and value in turns */
    DQ_JINJA_ATTRIBUTE,  /* a.name */
    DQ_JINJA_SUBSCRIPT,  /* a[b] */
    DQ_JINJA_SLICE,      /* a[item[0]:item[1]:item[2]], each may be NULL */
    DQ_JINJA_CALL,       /* a(item), keywords after the others */
    DQ_JINJA_KEYWORD,    /* name=a, in a call */
    DQ_JINJA_FILTER,     /* a|name(item) */
    DQ_JINJA_TEST,       /* a is name(item) */
    DQ_JINJA_NOT,        /* not a */
    DQ_JINJA_SIGN,       /* -a; +a: operation */
    DQ_JINJA_ARITHMETIC, /* a operation b */
    DQ_JINJA_JOIN,       /* item ~ item ~ ... */
    DQ_JINJA_COMPARE,    /* a, then each item: operation item.a */
    DQ_JINJA_OPERAND,    /* operation a, in a comparison */
    DQ_JINJA_AND,        /* a and b */
    DQ_JINJA_OR,         /* a or b */
    DQ_JINJA_IF_ELSE,    /* a if b else c, which may be NULL */
    DQ_JINJA_CAPTURED,   /* in the filters of a set block: its text */
    DQ_JINJA_TEXT,       /* name */
    DQ_JINJA_OUTPUT,     /* {{ a }} */
    DQ_JINJA_FOR,        /* for a in b if c: body, else: item */
    DQ_JINJA_IF,         /* if a: body; c: the elif after it, else: item of the last one */
    DQ_JINJA_SET,        /* a = b */
    DQ_JINJA_SET_TEXT,   /* a = what the body puts, through the filters b */
    DQ_JINJA_MACRO_OF,   /* name, item: parameters, body */
    DQ_JINJA_PARAMETER,  /* name=a, a may be NULL */
    DQ_JINJA_SCOPE,      /* body with names of its own */
    DQ_JINJA_LEAVE,      /* break; value: continue */
    DQ_JINJA_NODE_KINDS
} dq_jinja_node_kind;

typedef enum dq_jinja_operation {
    DQ_JINJA_ADD,
    DQ_JINJA_SUBTRACT,
    DQ_JINJA_MULTIPLY,
    DQ_JINJA_DIVIDE,
    DQ_JINJA_FLOOR_DIVIDE,
    DQ_JINJA_MODULO,
    DQ_JINJA_POWER,
    DQ_JINJA_EQUAL,
    DQ_JINJA_NOT_EQUAL,
    DQ_JINJA_LESS,
    DQ_JINJA_NOT_GREATER,
    DQ_JINJA_GREATER,
    DQ_JINJA_NOT_LESS,
    DQ_JINJA_IN,
    DQ_JINJA_NOT_IN,
    DQ_JINJA_OPERATIONS
} dq_jinja_operation;

typedef struct dq_jinja_node dq_jinja_node;
typedef struct dq_jinja_nodes {
    const dq_jinja_node **at; /* [n] */
    size_t n, capacity;
} dq_jinja_nodes;

struct dq_jinja_node {
    dq_jinja_node_kind kind;
    int line, depth; /* depth: of the nodes below */
    dq_jinja_operation operation;
    dq_jinja_text name;
    dq_jinja_value value;
    const dq_jinja_node *a, *b, *c;
    dq_jinja_nodes item, body;
    const dq_jinja_function *function; /* of a filter or test; NULL: Jinja2 has none of this name */
};

/* The body of a template; nodes live in r's arena. DQ_DAMAGED: Jinja2 refuses the text too;
 * DQ_MISMATCH: not implemented. */
dq_jinja_nodes dq_jinja_parse(dq_jinja_run *r, const char *text, size_t len);

/* Names of a template, a body, or a macro call. */
typedef struct dq_jinja_scope {
    struct dq_jinja_scope
        *parent; /* where names are looked for that this one lacks; NULL: among the functions */
    dq_jinja_dict names;
} dq_jinja_scope;

/* Makes r->scope a new scope within the parent; false on failure. The caller restores it. */
bool dq_jinja_eval_scope(dq_jinja_run *r, dq_jinja_scope *parent);
/* Runs statements up to a break or continue, which r->flow then holds. */
void dq_jinja_eval_body(dq_jinja_run *r, const dq_jinja_nodes *body);

/* Items that the loop's condition leaves out do not exist for it; the condition is evaluated as
 * late as in Jinja2, when an item is next or looked ahead to. */

typedef struct dq_jinja_loop {
    const dq_jinja_node *node;
    dq_jinja_scope *scope; /* around the loop */
    dq_jinja_list source;  /* all items */
    size_t at;             /* of them, the next one to be asked about */
    dq_jinja_list taken;   /* those that the condition takes, up to there */
    size_t index;          /* of them, the present one */
} dq_jinja_loop;

#endif
