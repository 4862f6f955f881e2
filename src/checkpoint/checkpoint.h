/* Where tensors come from: safetensors, other sources, weights quantized elsewhere.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHECKPOINT_H
#define DQ_CHECKPOINT_H

#include "base/base.h"
#include "base/json.h"
#include "base/os.h"
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
    /* Bytes of the weight in its file; NULL: those of its datasets. */
    int64_t (*stored_bytes)(void *arg, const char *name);
    /* Makes the values of packed weights readable, which may take memory and time; NULL: they
     * are. */
    dq_status (*load)(void *arg, dq_err *err);
} dq_source;

/* ---- Safetensors ----
 * One weight file in memory. */

/* Parses a weight file in memory; fuzzed. Checks header length, JSON, dtypes, that shape and byte
 * range agree, and that ranges tile the file without overlap, hole or duplicate name. Tensors come
 * in name order; names and table live in the arena, data points into `bytes`.
 * Source: huggingface/safetensors README.md (format). */
dq_status dq_safetensors_parse(dq_tensor **out, int64_t *count, const uint8_t *bytes, size_t len,
                               dq_arena *a, dq_err *err);

/* For qsort: larger elements first, then by name, so that each begins on a multiple of its size. */
int dq_safetensors_write_order(const dq_tensor *a, const dq_tensor *b);
/* Appends the head of a file: length, JSON, spaces up to a multiple of 8 bytes. The tensors are in
 * the order above and follow without gaps; their data are not read.
 * Source: huggingface/safetensors README.md (format); its serializer has the same order. */
dq_status dq_safetensors_write_head(dq_strbuf *out, const dq_tensor *const *tensor, int64_t n,
                                    dq_err *err);

/* ---- Checkpoint ----
 * Folders in the layout of Hugging Face (config.json, one or many *.safetensors, perhaps
 * tokenizer.json) and GGUF files, which look the same (gguf.h). Weights stay in the page
 * cache; of a folder nothing is copied. */

typedef struct dq_weight_file {
    const char *name; /* base name, as in the index */
    dq_os_map map;
    size_t header_bytes; /* before the data of tensors */
} dq_weight_file;

/* Owns every mapping, every name and the configuration. */
typedef struct dq_checkpoint {
    dq_arena *arena;
    json_t *config;          /* of a GGUF file the equivalent */
    const char *config_text; /* [config_bytes] byte for byte */
    size_t config_bytes;
    const char *about; /* a GGUF file in words, "GGUF, 210 Q4_1, 61 F32, 1 Q8_0"; NULL: a folder */
    dq_weight_file *file; /* [n_files], in name order */
    int n_files;
    /* [count], in byte-wise name order. For a tensor in ggml blocks or with permuted rows, `dtype`
     * is that of its values and `data` the stored bytes (dq_checkpoint_stored_bytes): values come
     * from dq_checkpoint_weight. */
    dq_tensor *tensor;
    int64_t count;
    struct dq_gguf_model *gguf; /* NULL: a folder; else it owns what is above but the tables */
} dq_checkpoint;

/* `path` is a folder that holds config.json and either model.safetensors or
 * model.safetensors.index.json, or a GGUF file. */
dq_status dq_checkpoint_open(dq_checkpoint **out, const char *path, dq_err *err);
bool dq_checkpoint_is_gguf(const char *path);
/* The sorted weight files that a folder's index lists, in the arena; none without a readable
 * index. */
dq_status dq_checkpoint_index_files(const char ***file, size_t *n, const char *dir, dq_arena *a,
                                    dq_err *err);
void dq_checkpoint_close(dq_checkpoint *c); /* NULL allowed */
/* The text of a GGUF file's tokenizer (dq_gguf_model_text); NULL: it has none, or this is a
 * folder. */
dq_status dq_checkpoint_tokenizer_text(const dq_checkpoint *c, const char *name, const char **text,
                                       size_t *len, dq_err *err);
/* NULL: absent. */
const dq_tensor *dq_checkpoint_find(const dq_checkpoint *c, const char *name);
/* Bytes of tensor i in its file, and the name of its stored type: "BF16", "Q4_K". */
size_t dq_checkpoint_stored_bytes(const dq_checkpoint *c, int64_t i);
const char *dq_checkpoint_type(const dq_checkpoint *c, int64_t i);
/* As dq_source.find; and all tensors as a source. */
bool dq_checkpoint_weight(const dq_checkpoint *c, const char *name, dq_weight *w);
dq_source dq_checkpoint_source(dq_checkpoint *c);
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
    int64_t own_bytes;           /* of tensors that were laid out anew */
    const char *const *warnings; /* [n_warnings] */
    int n_warnings;
} dq_prequant_info;

/* *out is NULL where the configuration has no quantization_config. The checkpoint must stay open.
 * DQ_MISMATCH by name: another method or layout, or a shape that contradicts the configuration.
 * DQ_DAMAGED by name: a tensor is missing, of the wrong type, or an index or zero point is out of
 * range. Reads headers, zero points and indices. */
dq_status dq_prequant_open(dq_prequant **out, const dq_checkpoint *c, dq_err *err);
void dq_prequant_close(dq_prequant *p); /* NULL allowed */
/* `load` repacks codes and scales, once: until then weights have shapes and formats, but no values.
 * DQ_DAMAGED by name: a scale that is not finite, or padding that is not zero. DQ_RESOURCE: it
 * would exceed the machine's memory; nothing is allocated then. */
dq_source dq_prequant_source(dq_prequant *p);

/* One row per layout of weights quantized by another tool: it reads its part of quantization_config
 * and says where codes, scales and zero points of a weight lie; prequant.c repacks them. For
 * prequant.c and tests. */

typedef enum dq_prequant_tensor {
    DQ_PREQUANT_CODES,
    DQ_PREQUANT_SCALES,
    DQ_PREQUANT_ZEROS,
    DQ_PREQUANT_INDEX, /* the group of each column */
    DQ_PREQUANT_SHAPE, /* rows and columns */
    DQ_PREQUANT_TENSORS
} dq_prequant_tensor;

typedef struct dq_prequant_scheme {
    int bits;
    int64_t group;    /* as in dq_quant_spec */
    bool any_zero;    /* false: zero points are all 2^(bits-1) */
    bool any_index;   /* false: groups are runs of columns */
    bool needs_index; /* columns were ordered: only the index tells their groups */
} dq_prequant_scheme;

enum { DQ_PREQUANT_SCHEMES = 32, DQ_PREQUANT_WARNINGS = 4 };

/* How an entry of the configuration names modules. */
typedef enum dq_prequant_naming {
    DQ_PREQUANT_TARGET,  /* a name, "re:" and a pattern, or a class */
    DQ_PREQUANT_DYNAMIC, /* a pattern after "+:", "-:" or nothing; the first match decides */
    DQ_PREQUANT_NAME_HAS /* parts of a name between dots */
} dq_prequant_naming;

typedef struct dq_prequant_word {
    dq_prequant_naming kind;
    const char *key, *text; /* where it stands, "ignore" or the name of a group; borrowed */
    int scheme;             /* of what it names; -1: that is not quantized */
} dq_prequant_word;

struct dq_prequant_format;
/* The parsed quantization_config; a weight's name, and then its shapes, tell which scheme it
 * has. */
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
    const dq_tensor *tensor[DQ_PREQUANT_TENSORS];
    uint32_t schemes;           /* a bit for each scheme that it may have */
    int named;                  /* how; 0: by no word */
    const dq_prequant_word *by; /* which one decided */
    dq_weight w;                /* rows, cols, bits, group_size, scale_rows */
    dq_prequant_words codes;    /* a stream per row, or with by_column per column */
    bool by_column;             /* then 8 fields a word */
    dq_prequant_words zeros;    /* a stream per group, along the rows */
    const int8_t
        *signed_zeros; /* [scale_rows, groups], relative to 2^(bits-1); NULL: as in zeros */
    int64_t scale_row, scale_group; /* values from one row or group to the next */
    bool any_zero, any_index, needs_index;
    uint8_t *own[DQ_PREQUANT_TENSORS];     /* where it is laid out anew */
    size_t own_bytes[DQ_PREQUANT_TENSORS]; /* 0: stays where it is, or is not there */
    int64_t n_wrapped; /* zero points stored as 2^bits - 1 that are to become one more */
    dq_err err;
} dq_prequant_linear;

typedef struct dq_prequant_format {
    const char *method;                      /* quant_method */
    const char *reads;                       /* what of it is read: "awq (version gemm)" */
    const char *suffix[DQ_PREQUANT_TENSORS]; /* NULL: no such tensor */
    bool needed[DQ_PREQUANT_TENSORS];
    dq_dtype dtype[DQ_PREQUANT_TENSORS]; /* DQ_DTYPE_COUNT: fit knows */
    const char *const *unused; /* suffixes of what belongs to activations, up to NULL; NULL: none */
    dq_status (*read)(dq_prequant_config *c, const json_t *config, dq_arena *a, dq_err *err);
    /* Fills *l where its tensors are of this scheme; else says why they are not. */
    const char *(*fit)(dq_prequant_linear *l, const dq_prequant_scheme *s);
} dq_prequant_format;

struct dq_prequant {
    dq_arena *arena; /* owns this struct too */
    const dq_checkpoint *checkpoint;
    dq_prequant_config config;
    dq_prequant_info info;
    dq_prequant_linear *linear; /* [info.n_weights], by name */
    const char **name;          /* [n_names]: what the source has */
    int64_t n_names;
    const char *warnings[DQ_PREQUANT_WARNINGS + 1];
    dq_os_block
        late; /* of codes and scales that are laid out anew; none: all stay where they are */
    size_t late_bytes;
    bool loaded;
};

/* Reads the object `quantization_config` into a zeroed *c; texts live in the arena or the
 * object. */
dq_status dq_prequant_config_read(dq_prequant_config *c, const json_t *config, dq_arena *a,
                                  dq_err *err);

#endif
