/* items: multiple-choice items as text, and their choices as ids ready for scoring.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ITEMS_H
#define DQ_ITEMS_H

#include "tokenizer/tokenizer.h"

typedef struct dq_choice {
    const char *text;      /* the choice with the delimiter in front, well-formed UTF-8 */
    size_t len, delimiter; /* bytes of text; of which the delimiter has */
    int64_t points;        /* code points of the choice without the delimiter */
    const char *ctx;       /* its own context, [ctx_len]; NULL: that of the item */
    size_t ctx_len;
} dq_choice;

typedef struct dq_item {
    const char *ctx; /* NULL where every choice has its own */
    size_t ctx_len;
    const char *delimiter;   /* between every context and choice */
    const dq_choice *choice; /* [n_choices] */
    int n_choices, gold;
    const struct dq_question *question; /* NULL: it has choices, else `ctx` is its prompt */
    int64_t line;                       /* of the data file, from 1; 0: it has none */
    /* Hashes: of its contexts and choices in any order; and of what it shares with dependent items:
     * the cluster of its record, a passage, or else the first hash. */
    uint64_t content, cluster;
} dq_item;

const char *dq_item_context(const dq_item *item, int choice, size_t *len);
/* Whether context and choice meet with white space on both sides. */
bool dq_item_has_two_spaces(const dq_item *item);

typedef struct dq_items {
    const dq_item *item;
    int64_t n;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 that became U+FFFD; offset in the file or -1 */
    const char *labels_path;  /* file that the answers came from; NULL: they stood with the items */
    const char *labels;       /* [labels_len], its bytes */
    size_t labels_len;
} dq_items;
/* What stands before the choices of all items; NULL: items differ in it. */
const char *dq_items_delimiter(const dq_items *items);

/* Ids that the contexts of several items have in common at the start. */
typedef struct dq_shared_prefix {
    const int32_t *ids; /* [n]; n may be 0 */
    int64_t n;
    int64_t end; /* one past its last item */
} dq_shared_prefix;

/* A choice as ids: the shared prefix and ctx are given, cont is scored (or generated, where NULL);
 * the last id is not fed. Truncation has happened. */
typedef struct dq_request {
    const int32_t *ctx;  /* [n_ctx], n_ctx > 0; choices may share it */
    const int32_t *cont; /* [n_cont], n_cont > 0 */
    int64_t n_ctx, n_cont;
    int64_t context; /* of a generated one, ids that a cache is cut after; 0: all */
    int64_t value;   /* index of its first scored id among those of all requests */
    int64_t item;
    int choice;
    bool truncated;
} dq_request;

/* Choices of item i are at[i] .. at[i + 1] - 1. */
typedef struct dq_requests {
    const dq_request *req;
    const int64_t *at;               /* [n_items + 1] */
    int64_t n, n_items, n_truncated; /* items with a truncated choice */
    int64_t n_values;                /* scored tokens of all requests */
    bool prefixed;                   /* dq_tokenizer_prefix stands for an empty context */
    /* [n_shared_prefixes], in the order of their items; none: all are empty */
    const dq_shared_prefix *shared_prefix;
    int64_t n_shared_prefixes;
} dq_requests;

/* Empty where there is none. */
const dq_shared_prefix *dq_items_shared_prefix(const dq_requests *q, int64_t item);
/* Scored tokens of all items before `item`. */
int64_t dq_items_values(const dq_requests *q, int64_t item);

typedef enum dq_bos {
    DQ_BOS_AUTO, /* as the tokenizer's template says */
    DQ_BOS_ON,   /* the template's, else bos_token of tokenizer_config.json, else DQ_MISMATCH */
    DQ_BOS_OFF   /* no template token */
} dq_bos;
enum { DQ_BOS_WHENS = 3 };
extern const char *const dq_bos_name[DQ_BOS_WHENS];

/* DQ_MISMATCH: the tokenizer lacks what `bos` asks for. */
dq_status dq_items_bos_check(const dq_tokenizer *t, dq_bos bos, dq_err *err);

/* -1: a sequence begins with no special id. */
int32_t dq_items_bos(const dq_tokenizer *t, dq_bos bos);
/* Bytes at the start of s[len] that spell that id; 0: none. */
size_t dq_items_bos_spelled(const dq_tokenizer *t, dq_bos bos, const char *s, size_t len);
/* Flags to encode the start of a sequence: a text that spells BOS itself gets no second one, as in
 * lm-eval (has_bos_prefix). */
unsigned dq_items_bos_flags(const dq_tokenizer *t, dq_bos bos, const char *s, size_t len);

/* Splits every choice as lm-eval does: the ids of context + choice encoded together, after as many
 * as the context alone has. White space at the end of a context moves to the choice; what does not
 * fit into max_len ids is cut from the left of the context. Ids must be below `vocab`.
 * Source: lm-evaluation-harness lm_eval/api/model.py _encode_pair (behaviour). */
dq_status dq_items_encode(dq_requests *out, const dq_items *items, const dq_tokenizer *t,
                          dq_bos bos, int64_t max_len, int64_t vocab, dq_arena *a, dq_err *err);

/* Bytes without dq_utf8_is_strip at the end. */
size_t dq_items_strip_end(const char *s, size_t len);

#endif
