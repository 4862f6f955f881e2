/* prequant_format: one row a layout of weights that another tool has quantized. A row reads its part of quantization_config
 * and says where codes, scales and zero points of one weight lie; prequant_linear.c lays them out as dq has them.
 * For prequant*.c, and for tests of reading a configuration.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PREQUANT_FORMAT_H
#define DQ_PREQUANT_FORMAT_H

#include "base/json.h"
#include "checkpoint/prequant.h"
#include "tensor/tensor.h"

typedef enum dq_prequant_part {
    DQ_PREQUANT_CODES,
    DQ_PREQUANT_SCALES,
    DQ_PREQUANT_ZEROS,
    DQ_PREQUANT_INDEX, /* the group of each column */
    DQ_PREQUANT_SHAPE, /* rows and columns */
    DQ_PREQUANT_PARTS
} dq_prequant_part;

/* One way in which the configuration says that weights are stored. */
typedef struct dq_prequant_scheme {
    int bits;
    int64_t group;    /* as in dq_quant_spec */
    bool any_zero;    /* false: zero points are all 2^(bits-1) */
    bool any_index;   /* false: groups are runs of columns */
    bool needs_index; /* columns were ordered: only the index tells their groups */
} dq_prequant_scheme;

enum { DQ_PREQUANT_SCHEMES = 32, DQ_PREQUANT_WARNINGS = 4 };

/* How a word of the configuration names modules. */
typedef enum dq_prequant_naming {
    DQ_PREQUANT_TARGET, /* a name, "re:" and a pattern, or a class */
    DQ_PREQUANT_DYNAMIC, /* "+:" or "-:" (or neither) and a pattern; the first that matches decides */
    DQ_PREQUANT_PART_OF /* parts of a name between dots */
} dq_prequant_naming;

typedef struct dq_prequant_word {
    dq_prequant_naming kind;
    const char *key, *text; /* where it stands, "ignore" or the name of a group; borrowed */
    int scheme;             /* of what it names; -1: that is not quantized */
} dq_prequant_word;

struct dq_prequant_format;
/* What quantization_config says. Which of several schemes a weight has, its name tells, and its shapes where that leaves
 * several. */
typedef struct dq_prequant_config {
    const struct dq_prequant_format *format;
    const char *about;
    dq_prequant_scheme scheme[DQ_PREQUANT_SCHEMES];
    int n_schemes;
    int added; /* index of the scheme that was added last */
    dq_prequant_word *word;
    int n_words;
    size_t word_capacity;
    uint32_t unnamed; /* a bit for each scheme of weights that no word names */
    int zero_shift;   /* zero points are stored so much too small */
    bool activations; /* there may be scales of activations or of a KV cache: not used */
    const char *warnings[DQ_PREQUANT_WARNINGS];
    int n_warnings;
} dq_prequant_config;

/* Streams of fields of `bits` bits in words of 32 bits, least significant bit first. */
typedef struct dq_prequant_words {
    const uint8_t *data; /* NULL: none */
    int64_t step;        /* words from one of a stream to its next */
    int64_t next;        /* words from the first of a stream to the first of the next stream */
    int bits;
    int per_word; /* fields that begin and end in a word; 0: they follow each other without a gap */
    const uint8_t *order; /* [per_word] place in the word of each; NULL: as they come */
} dq_prequant_words;

/* A weight on its way. */
typedef struct dq_prequant_linear {
    const char *name; /* without its suffix */
    const dq_tensor *part[DQ_PREQUANT_PARTS];
    /* What the configuration says of its name */
    uint32_t schemes;           /* a bit for each scheme that it may have */
    int named;                  /* how; 0: by no word */
    const dq_prequant_word *by; /* which one decided */
    /* What the format's fit says */
    dq_weight w;             /* rows, cols, bits, group_size, scale_rows */
    dq_prequant_words codes; /* a stream per row, or with by_column per column */
    bool by_column;          /* then 8 fields a word */
    dq_prequant_words zeros; /* a stream per group, along the rows */
    const int8_t
        *signed_zeros; /* [scale_rows, groups], relative to 2^(bits-1); NULL: as in zeros */
    int64_t scale_row, scale_group; /* values from one row or group to the next */
    /* What becomes of it */
    bool any_zero, any_index, needs_index;
    uint8_t *own[DQ_PREQUANT_PARTS];     /* where it is laid out anew */
    size_t own_bytes[DQ_PREQUANT_PARTS]; /* 0: stays where it is, or is not there */
    int64_t n_wrapped; /* zero points stored as 2^bits - 1 that are to become one more */
    dq_err err;
} dq_prequant_linear;

typedef struct dq_prequant_format {
    const char *method;                    /* quant_method */
    const char *reads;                     /* what of it is read: "awq (version gemm)" */
    const char *suffix[DQ_PREQUANT_PARTS]; /* NULL: no such part */
    bool needed[DQ_PREQUANT_PARTS];
    dq_dtype dtype[DQ_PREQUANT_PARTS]; /* DQ_DTYPE_COUNT: fit knows */
    const char *const *unused; /* suffixes of what belongs to activations, up to NULL; NULL: none */
    /* Fills *c but its format from the object. */
    dq_status (*read)(dq_prequant_config *c, const json_t *config, dq_arena *a, dq_err *err);
    /* Fills what a linear of a scheme has; or says why its tensors are not of that scheme. */
    const char *(*fit)(dq_prequant_linear *l, const dq_prequant_scheme *s);
} dq_prequant_format;

extern const dq_prequant_format dq_prequant_compressed, dq_prequant_gptq, dq_prequant_awq;

/* Reads the object `quantization_config`. *c is zeroed by the caller; texts live in the arena or the object. */
dq_status dq_prequant_config_read(dq_prequant_config *c, const json_t *config, dq_arena *a,
                                  dq_err *err);
/* A scheme more, where there is none of its bits, group and zero points; DQ_MISMATCH for a width or group that is not read. */
dq_status dq_prequant_config_add(dq_prequant_config *c, int64_t bits, dq_prequant_scheme s,
                                 dq_err *err);
dq_status dq_prequant_config_warn(dq_prequant_config *c, const char *text, dq_err *err);
/* A word more, or all words of an array (NULL or null: none); DQ_DAMAGED where it is none of texts. */
dq_status dq_prequant_config_name(dq_prequant_config *c, dq_prequant_word word, dq_arena *a,
                                  dq_err *err);
dq_status dq_prequant_config_names(dq_prequant_config *c, dq_prequant_word word, const json_t *list,
                                   dq_arena *a, dq_err *err);
/* Fills schemes of n weights, whose names and parts are known. DQ_MISMATCH for a weight that the configuration leaves out,
 * does not name, or stores in two ways. */
dq_status dq_prequant_match(dq_prequant_linear *linear, int64_t n, const dq_prequant_config *c,
                            dq_err *err);
/* A format that is named but not read, with what is. */
dq_status dq_prequant_config_refuse(const char *key, const char *word, dq_err *err);

/* Words that hold n fields, one after the other or `per` in each. */
static inline int64_t dq_prequant_words_for(int64_t n, int bits, int per)
{
    return per ? (n + per - 1) / per : (n * bits + 31) / 32;
}

static inline bool dq_prequant_is(const dq_tensor *t, int64_t rows, int64_t cols)
{
    return t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* Finds the scheme of a linear whose parts are known; dtypes are checked. */
dq_status dq_prequant_linear_fit(dq_prequant_linear *l, const dq_prequant_config *c, dq_err *err);
/* Says what is to be laid out anew: own_bytes. */
dq_status dq_prequant_linear_size(dq_prequant_linear *l, dq_err *err);
/* Both by one thread, with l->err for what is wrong. First zero points and index, which tell the weight's format; own has
 * room for them. */
void dq_prequant_linear_read(dq_prequant_linear *l, const dq_prequant_config *c);
/* Then codes and scales, which are most of it. */
void dq_prequant_linear_fill(dq_prequant_linear *l, const dq_prequant_config *c);

#endif
