/* Where tensors come from: safetensors, other sources, weights quantized elsewhere.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHECKPOINT_H
#define DQ_CHECKPOINT_H

#include "base/base.h"
#include "base/json.h"
#include "base/text.h"
#include "tensor/tensor.h"

/* ---- Source ----
 * Where a model's tensors come from, a checkpoint or a container. */

/* `find` gives a weight or vector by its name in the checkpoint. */
typedef struct dq_source {
    void *arg;
    /* Fills *w (dense or packed; vectors and scalars have rows = numel, cols = 1; anything of n > 2
     * dimensions cols = -n, which no architecture accepts). False: absent. */
    bool (*find)(void *arg, const char *name, dq_weight *w);
    int64_t count; /* tensors there are, for the check that all are used */
    const char *(*name_at)(void *arg, int64_t i);
    /* Bytes of the weight in its file; NULL: those of its parts. */
    int64_t (*stored_bytes)(void *arg, const char *name);
    /* Lets the values of packed weights be read, which may take memory and time; NULL: they can be. */
    dq_status (*load)(void *arg, dq_err *err);
} dq_source;

/* ---- Safetensors ----
 * One weight file in memory. */

/* The part that is fuzzed. Checks header length, JSON, known dtype, shape
 * product == byte range, ranges inside the file, no overlap, no hole, no duplicate name. Tensors
 * come in name order; names and table live in the arena, data points into `bytes`.
 * Source: huggingface/safetensors README.md (format). */
dq_status dq_safetensors_parse(dq_tensor **out, int64_t *count, const uint8_t *bytes, size_t len,
                               dq_arena *a, dq_err *err);

/* ---- Safetensors write ----
 * The head of a weight file, for who writes its tensors after it, one after the other. */

/* Larger elements first, by name among equals: each begins on a multiple of its size. For qsort. */
int dq_safetensors_write_order(const dq_tensor *a, const dq_tensor *b);
/* Appends the head of tensor[0 .. n - 1], which have this order and whose data follow in it without gaps: length, JSON,
 * spaces up to a multiple of 8 bytes. Data of the tensors are not looked at.
 * Source: huggingface/safetensors README.md (format); its serializer has the same order. */
dq_status dq_safetensors_write_head(dq_strbuf *out, const dq_tensor *const *tensor, int64_t n,
                                    dq_err *err);

/* ---- Checkpoint ----
 * Folders in the layout of Hugging Face (config.json, one or many *.safetensors, perhaps
 * tokenizer.json) and GGUF files, which look the same (gguf.h). Weights stay in the page
 * cache; of a folder nothing is copied. */

/* Owns every mapping, every name and the configuration. */
typedef struct dq_checkpoint dq_checkpoint;

/* `path` is a folder that holds config.json and either model.safetensors or model.safetensors.index.json, or a GGUF file. */
dq_status dq_checkpoint_open(dq_checkpoint **out, const char *path, dq_err *err);
/* Whether it is a file that begins as a GGUF file does. */
bool dq_checkpoint_is_gguf(const char *path);
/* Weight files that a folder's index lists, sorted, in the arena; none without a readable index. */
dq_status dq_checkpoint_index_files(const char ***file, size_t *n, const char *dir, dq_arena *a,
                                    dq_err *err);
void dq_checkpoint_close(dq_checkpoint *c); /* NULL allowed */
const json_t *dq_checkpoint_config(const dq_checkpoint *c);
/* config.json byte for byte; of a GGUF file what it would say. */
const char *dq_checkpoint_config_text(const dq_checkpoint *c, size_t *len);
/* For people, of a GGUF file: "GGUF, 210 Q4_1, 61 F32, 1 Q8_0"; NULL: a folder. */
const char *dq_checkpoint_about(const dq_checkpoint *c);
/* As a GGUF file has them (dq_gguf_model_text): NULL where it has none, and of a folder. */
dq_status dq_checkpoint_tokenizer_text(const dq_checkpoint *c, const char *name, const char **text,
                                       size_t *len, dq_err *err);
/* Lets the values of weights be read that lie anew, once; see dq_gguf_model_load. */
dq_status dq_checkpoint_load(dq_checkpoint *c, dq_err *err);
int64_t dq_checkpoint_count(const dq_checkpoint *c);
/* By position in name order (byte-wise), or by name; NULL when absent. Of a tensor in blocks of ggml, or whose rows lie
 * anew, `dtype` is that of its values and `data` the stored bytes, dq_checkpoint_stored_bytes of them: values come from
 * dq_checkpoint_weight. */
const dq_tensor *dq_checkpoint_at(const dq_checkpoint *c, int64_t i);
const dq_tensor *dq_checkpoint_find(const dq_checkpoint *c, const char *name);
/* Bytes of tensor i in its file, and what people call its type: "BF16", "Q4_K". */
size_t dq_checkpoint_stored_bytes(const dq_checkpoint *c, int64_t i);
const char *dq_checkpoint_type(const dq_checkpoint *c, int64_t i);
/* The tensor as a weight, as dq_source.find; and all of them as a source. */
bool dq_checkpoint_weight(const dq_checkpoint *c, const char *name, dq_weight *w);
dq_source dq_checkpoint_source(dq_checkpoint *c);
/* The weight files: base name and mapping, in name order; and how many bytes stand before the data of tensors. */
int dq_checkpoint_n_files(const dq_checkpoint *c);
const char *dq_checkpoint_file(const dq_checkpoint *c, int i, size_t *bytes, const uint8_t **data);
size_t dq_checkpoint_header_bytes(const dq_checkpoint *c, int i);
/* Gives all pages back to the kernel: reading one byte may map two megabytes around it. */
void dq_checkpoint_release(const dq_checkpoint *c);

/* ---- Prequant ----
 * Folders whose weights another tool has quantized (quantization_config of transformers) as a
 * source of coded weights: "X.weight" stands for "X.qweight", "X.scales" and what else belongs to
 * it. Codes lie in the mapped file where the layouts agree (compressed-tensors); others are
 * repacked, once, in memory of the source, before they are used. A weight is (u - zero) * scale,
 * one f32 product, whatever type the scales have; transformers computes the same in the type of
 * the model, f16 or bf16, and rounds there. */

typedef struct dq_prequant dq_prequant;

/* Texts belong to the source. */
typedef struct dq_prequant_info {
    const char *method;          /* quant_method: "gptq" */
    const char *about;           /* for people: "GPTQ, checkpoint_format gptq_v2" */
    int64_t n_weights;           /* that are quantized */
    int64_t n_zeros;             /* of them with zero points that are not 2^(bits-1) */
    int64_t n_indexed;           /* of them with groups that are not runs of columns */
    int64_t own_bytes;           /* of parts that were laid out anew */
    const char *const *warnings; /* [n_warnings] */
    int n_warnings;
} dq_prequant_info;

/* *out is NULL where the configuration says of no quantization. The checkpoint must stay open as long.
 * Another method or layout is DQ_MISMATCH by name, as is a tensor that does not have the shape that the
 * configuration gives it; a tensor that is missing, of the wrong type, or with an index or zero point out of range is
 * DQ_DAMAGED by name. Reads headers, zero points and indices. */
dq_status dq_prequant_open(dq_prequant **out, const dq_checkpoint *c, dq_err *err);
/* Lays out codes and scales, once: until then the weights of the source have shapes and formats, but no values to read. A
 * scale that is not finite and padding that is not zero are DQ_DAMAGED by name; where what is laid out is more than the
 * machine's memory, DQ_RESOURCE before anything is taken. */
dq_status dq_prequant_load(dq_prequant *p, dq_err *err);
void dq_prequant_close(dq_prequant *p); /* NULL allowed */
const dq_prequant_info *dq_prequant_header(const dq_prequant *p);
/* Every tensor of the checkpoint that is no part of a quantized weight, and every quantized weight. */
dq_source dq_prequant_source(dq_prequant *p);

/* ---- Prequant format ----
 * One row a layout of weights that another tool has quantized. A row reads its part of
 * quantization_config and says where codes, scales and zero points of one weight lie;
 * prequant.c lays them out as dq has them. For prequant*.c, and for tests of reading a
 * configuration. */

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

/* Reads the object `quantization_config`. *c is zeroed by the caller; texts live in the arena or the object. */
dq_status dq_prequant_config_read(dq_prequant_config *c, const json_t *config, dq_arena *a,
                                  dq_err *err);

#endif
