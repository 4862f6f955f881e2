/* jinja_parse: a template as a tree of nodes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_PARSE_H
#define DQ_JINJA_PARSE_H

#include "template/jinja_value.h"

/* What the parts of a node are: */
typedef enum dq_jinja_node_kind {
    /* expressions */
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
    /* statements */
    DQ_JINJA_TEXT,      /* name */
    DQ_JINJA_OUTPUT,    /* {{ a }} */
    DQ_JINJA_FOR,       /* for a in b if c: body, else: item */
    DQ_JINJA_IF,        /* if a: body; c: the elif after it, else: item of the last one */
    DQ_JINJA_SET,       /* a = b */
    DQ_JINJA_SET_TEXT,  /* a = what the body puts, through the filters b */
    DQ_JINJA_MACRO_OF,  /* name, item: parameters, body */
    DQ_JINJA_PARAMETER, /* name=a, a may be NULL */
    DQ_JINJA_SCOPE,     /* body with names of its own */
    DQ_JINJA_LEAVE,     /* break; value: continue */
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

/* The body of a template. r: an arena, in which the nodes are, and an err. DQ_DAMAGED: Jinja2 refuses the text too;
 * DQ_MISMATCH: what it says is not implemented. */
dq_jinja_nodes dq_jinja_parse(dq_jinja_run *r, const char *text, size_t len);

/* What jinja_parse.c and jinja_statements.c share. After a failure the template is at its end, and nodes are what they are
 * then: no function gives NULL. */
typedef struct dq_jinja_parser {
    dq_jinja_run *r; /* its depth is that of what is being parsed */
    const struct dq_jinja_token *t;
    int loops, macros; /* around what is parsed, loops those of the same macro */
    bool
        is_branch; /* right within an if, where a filter that does not exist fails when it is used */
    const dq_jinja_node *missing; /* elsewhere: the first one that uses such a filter or test */
    dq_jinja_node none;           /* where memory is short */
} dq_jinja_parser;

dq_jinja_node *dq_jinja_parse_node(dq_jinja_parser *p, dq_jinja_node_kind kind);
void dq_jinja_parse_add(dq_jinja_parser *p, dq_jinja_nodes *list, const dq_jinja_node *n);
/* A node whose parts are all there: fails if they nest too deeply. */
dq_jinja_node *dq_jinja_parse_end(dq_jinja_parser *p, dq_jinja_node *n);
/* Goes into a nested part, false with the failure where there are too many; --p->r->depth leaves it. */
bool dq_jinja_parse_deeper(dq_jinja_parser *p);

dq_jinja_node *dq_jinja_parse_expression(dq_jinja_parser *p);
/* One expression, or several with commas between them; is_condition: none of the form a if b else c. */
dq_jinja_node *dq_jinja_parse_tuple(dq_jinja_parser *p, bool is_condition);
/* a|filter|filter as far as it goes. */
dq_jinja_node *dq_jinja_parse_filters(dq_jinja_parser *p, dq_jinja_node *a);

dq_jinja_node *dq_jinja_parse_fail(dq_jinja_parser *p, dq_status code, const char *fmt, ...)
    DQ_PRINTF(3, 4);
/* The same for the token at hand where `expected` should be. */
dq_jinja_node *dq_jinja_parse_unexpected(dq_jinja_parser *p, const char *expected);
bool dq_jinja_parse_is(const dq_jinja_parser *p, const char *word); /* an operator or a name */
bool dq_jinja_parse_skip(dq_jinja_parser *p, const char *word);     /* the same, and goes past it */
void dq_jinja_parse_expect(dq_jinja_parser *p, const char *word);   /* the same, or fails */
dq_jinja_text dq_jinja_parse_name(dq_jinja_parser *p);              /* a name, or fails */
void dq_jinja_parse_next(dq_jinja_parser *p);

#endif
