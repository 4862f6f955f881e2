/* quantize: a checkpoint becomes a container. Plan, scan (finds values that are not finite, decides
 * on the type of scales, hashes the source), then write, which a later process may finish.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_H
#define DQ_QUANTIZE_H

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "model/model.h"
#include "record/record.h"
#include "tensor/tensor.h"
#include "work/work.h"

#include <stdatomic.h>

/* A method makes codes by running the model, which this room cannot: it is passed in. */
typedef struct dq_quantize_feed dq_quantize_feed;
typedef struct dq_quantizer dq_quantizer;
typedef struct dq_quantize_needs {
    json_t *calib;         /* what it goes by, stored beside its name; a new reference */
    int64_t scratch_bytes; /* on the disk of the output, while it runs */
} dq_quantize_needs;
typedef struct dq_quantize_method {
    const char *name; /* "gptq" */
    /* Called for the plan, with the source open. */
    dq_status (*begin)(void *arg, const dq_model *m, dq_quantize_needs *out, dq_err *err);
    /* Feeds the tensors it wants; others are rounded to nearest. Called outside parallel
     * regions. */
    dq_status (*run)(void *arg, dq_quantize_feed *feed, dq_err *err);
    /* Adds expected seconds to kinds from DQ_QUANTIZE_METHOD on; feed: of what is left, NULL: of
     * all. NULL: unknown. */
    void (*expect)(void *arg, const dq_quantizer *q, dq_quantize_feed *feed, dq_pace *p);
    void *arg;
} dq_quantize_method;
/* What becomes of unpacked matrices; vectors keep their type. */
typedef enum dq_dense_type {
    DQ_DENSE_KEEP,
    DQ_DENSE_BF16, /* rounded to nearest even */
    DQ_DENSE_F16,
    DQ_DENSE_TYPES
} dq_dense_type;
extern const char *const dq_dense_type_name[DQ_DENSE_TYPES]; /* "keep", "bf16", "f16" */

/* Values that opening resolves by the model; the stored recipe has the result. */
enum {
    /* the largest of 128, 64 and 32 that leaves the fewest packed tensors with a short last
     * group */
    DQ_QUANTIZE_GROUP_AUTO = 0,
    /* embed_bits: as `bits`, but at least 6; head_bits: as embed_bits */
    DQ_QUANTIZE_BITS_AUTO = -1,
    DQ_QUANTIZE_EMBED_BITS = 6
};

typedef struct dq_quantize_settings {
    int bits;      /* of projections: 2..8, or 16: they are not packed */
    int64_t group; /* columns per scale, DQ_GROUP_ROW, DQ_GROUP_TENSOR or DQ_QUANTIZE_GROUP_AUTO */
    dq_scale_mode mode;
    dq_dtype scale_dtype; /* DQ_F16 (F32 for tensors whose scales do not fit) or DQ_F32 */
    const char *skip;     /* regular expression of tensors to leave as they are; NULL: none */
    /* 2..8, or 16: not packed; 0: 16, and for a tied head as the embedding; or
     * DQ_QUANTIZE_BITS_AUTO */
    int embed_bits, head_bits;
    dq_dense_type dense_type;
    /* JSON of schema dq-recipe/1, the caller's; NULL: none. rules: an array of {"match": REGEX or
     * "name": TENSOR, "bits": 2..8 or 16, "group": optional, "scale": optional}; the last match
     * decides, before `skip`. plan, texts and comment are stored; of a plan only its model is
     * read. */
    const json_t *rules, *plan, *texts, *comment;
    /* For messages: the first `rules` rules, `skip` and the method's name come from the file `path`
     * where these pointers are the same; NULL: none do. */
    struct {
        const char *path, *skip, *method_name;
        size_t rules;
    } file;
    dq_logit_spec logit; /* stored for evaluation */
    dq_kv_config kv;     /* stored for evaluation too */
    dq_kv_size kv_size;  /* what it comes to for the model becomes part of kv; size 0: as it is */
    const char *gates;   /* a file of gates (kv.h) to be stored; NULL: none */
    const char *dq_version;
    const dq_quantize_method *method; /* NULL: rounding to nearest, or nothing is written */
    /* A container's recorded method, for comparing; a given method overrides it. NULL: nearest. */
    const char *method_name;
    const json_t *calib;
} dq_quantize_settings;

/* Kinds of work (work.h); those of a method follow. */
typedef enum dq_quantize_kind {
    DQ_QUANTIZE_SCAN,
    DQ_QUANTIZE_HASH,
    DQ_QUANTIZE_DENSE,
    DQ_QUANTIZE_VALUES, /* to their nearest codes */
    DQ_QUANTIZE_METHOD
} dq_quantize_kind;

/* Called now and then, by one thread at a time. */
typedef struct dq_quantize_progress {
    void (*step)(void *arg, const dq_pace *pace, const char *what);
    void *arg;
} dq_quantize_progress;

typedef struct dq_quantize_row {
    const char *name, *format;
    bool packed, skipped;
    bool counts;          /* among the model's parameters: see model.h */
    dq_role role;         /* packed */
    bool fed;             /* packed, and a method makes its codes, where there is one */
    bool one_scale;       /* for the whole tensor */
    dq_dtype dtype;       /* of the source */
    dq_dtype dense_dtype; /* not packed: as stored */
    dq_dtype scale_dtype; /* packed */
    int bits;             /* packed; else of one element */
    int64_t rows, cols, group_size;
    int64_t source_bytes, bytes; /* scales included */
    double bits_per_weight, sqnr_db;
    /* a method's tr((W - W')H(W - W')^T) / tr(W H W^T), H from its inputs; else NaN */
    double loss;
} dq_quantize_row;

/* Packed tensors with a short last group, by the settings' group or a rule's. */
typedef struct dq_quantize_short {
    int64_t n;        /* 0: the rest means nothing */
    const char *name; /* the first of them */
    int64_t cols, group;
    /* the largest of 128, 64 and 32 that leaves none short as the settings' group; 0: none does */
    int64_t whole;
    bool divides; /* whole divides all columns; else rows with fewer are one group */
} dq_quantize_short;

/* Settings that decide about at least one tensor; rules override them. */
typedef struct dq_quantize_used {
    bool bits, embed_bits, head_bits, group, mode;
} dq_quantize_used;

typedef struct dq_quantize_info {
    const char *architecture, *source;
    const char *source_types;            /* what a GGUF file's values come out of; NULL: a folder */
    int64_t params, source_bytes;        /* of tensors that count (model.h); of all weight files */
    int64_t packed_params, packed_bytes; /* of packed ones of them, scales included */
    int64_t weight_bytes,
        file_bytes;         /* of tensors that count; of the container, estimated until written */
    double bits_per_weight; /* 8 * weight_bytes / params */
    int64_t n_tensors, n_packed, n_skipped;
    int64_t n_fed;        /* packed tensors whose codes a method makes, where there is one */
    dq_kv_sized kv_sized; /* what settings.kv_size has come to */
    dq_quantize_used used;
    dq_quantize_short short_groups;
    int64_t n_wide;          /* tensors with F32 scales, against the default */
    int64_t n_resumed;       /* payloads found done */
    int64_t n_by_sqnr;       /* tensors of a method that dq_quantize_compare compared by SQNR */
    int64_t scratch_bytes;   /* that the method takes beside the output */
    char content_sha256[65]; /* "" until written */
} dq_quantize_info;

/* Opens a folder or GGUF file and makes the plan without reading weights. DQ_USAGE: a pattern
 * matches no tensor; DQ_MISMATCH: a container, widths that a tied head cannot have, or another
 * model's plan. */
dq_status dq_quantize_open(dq_quantizer **out, const char *model, const dq_quantize_settings *s,
                           dq_err *err);
void dq_quantize_close(dq_quantizer *q); /* NULL allowed */
/* In the order of dq_name_order: layer 2 before layer 10. */
dq_quantize_row dq_quantize_row_at(const dq_quantizer *q, int64_t i);

/* Reads weight and KV settings from a file of schema dq-recipe/1; others stay in *s. Texts and
 * rules belong to `file`. DQ_DAMAGED: an unknown key or wrong value; DQ_MISMATCH: another
 * schema. */
dq_status dq_quantize_recipe_read(dq_quantize_settings *s, const json_t *file, dq_err *err);
/* Makes such a file from the text of a recipe; the caller ends it with json_decref. */
dq_status dq_quantize_recipe_file(json_t **out, const char *recipe, dq_err *err);
/* Parses "128", "row" or "tensor"; false: anything else. */
bool dq_quantize_group_parse(int64_t *out, const char *text);

/* Times the kinds of work for some tenths of a second, instead of nominal rates; methods measure
 * their own. */
dq_status dq_quantize_measure(dq_quantizer *q, dq_err *err);
/* Expected seconds of writing or comparing. */
double dq_quantize_expected(const dq_quantizer *q);

/* Endings of files beside a container in the making, besides .partial; for dq_output. */
extern const char *const dq_quantize_beside[];
/* Refuses outputs that are the input, exist (without force), or are left from an interrupted run
 * (without force and resume). Touches nothing. */
dq_status dq_quantize_check_output(dq_quantizer *q, const char *out, bool force, bool resume,
                                   dq_err *err);
/* By all ranks, which must see the same files. Scans the source and writes `out` through
 * out.partial and out.journal. After DQ_STOPPED both stay, and a call with `resume` finishes to the
 * same bytes. A failure leaves no `out`. */
dq_status dq_quantize_write(dq_quantizer *q, const char *out, bool force, bool resume,
                            const dq_quantize_progress *p, dq_err *err);
/* Scans the source and compares every payload with the container's. A method's codes cannot be
 * remade without its text: their SQNR is compared with the recorded one, exactly. DQ_MISMATCH: made
 * from another checkpoint; DQ_DAMAGED: the first dataset that differs. */
dq_status dq_quantize_compare(dq_quantizer *q, const dq_container *c, const dq_quantize_progress *p,
                              dq_err *err);

/* For methods: every rank runs the method and takes or puts the same tensors in the same order. */

/* How a tensor is stored in the plan or, with types of scales decided, in a run; NULL: unknown
 * name. */
const struct dq_quantize_tensor *dq_quantize_tensor_of(const dq_quantizer *q, const char *name);
/* Whether an earlier run that this one resumes has made it. */
bool dq_quantize_feed_done(const dq_quantize_feed *f, const struct dq_quantize_tensor *t);
/* Then takes its codes, checked by hash; the caller ends them with dq_coded_free. */
dq_status dq_quantize_feed_take(dq_quantize_feed *f, const struct dq_quantize_tensor *t,
                                dq_coded *out, dq_err *err);
/* Else writes w, of the tensor's shape and spec, to the disk and the journal. loss: of
 * dq_quantize_row. */
dq_status dq_quantize_feed_put(dq_quantize_feed *f, const struct dq_quantize_tensor *t,
                               const dq_weight *w, double loss, dq_err *err);
/* So many expected seconds of the method's kind, from 0, are done. */
void dq_quantize_feed_advance(dq_quantize_feed *f, int kind, double seconds, const char *what);
/* Called before any of it, when what is left is known. */
void dq_quantize_feed_expect(dq_quantize_feed *f);

/* The settings stored in a container; texts belong to *recipe, which the caller ends with
 * json_decref. */
dq_status dq_quantize_settings_of(dq_quantize_settings *s, json_t **recipe, const dq_container *c,
                                  dq_err *err);

/* The mode used for a tensor when settings say `mode`: a trellis serves products (`fed`:
 * dq_quantize_choice) at its widths. Wider codes are searched; ends rounded by their own values
 * have zero points, which loses least. */
dq_scale_mode dq_quantize_mode(dq_scale_mode mode, int bits, bool fed);

/* One tensor, tile by tile: the scan, and the pass that makes codes and scales. Memory depends on
 * the tile, not the tensor. */

/* How one tensor of a checkpoint is stored. */
typedef struct dq_quantize_tensor {
    const dq_tensor *t;
    dq_weight w;                    /* its values; `data` may be other than t->data */
    int64_t rows, cols;             /* a vector: rows = numel, cols = 1 */
    dq_role role;                   /* of a tensor that can be packed */
    const dq_weight_format *format; /* NULL: dense, and the rest means nothing but dense_dtype */
    /* for a dense tensor: t->dtype, or DQ_BF16 or DQ_F16, rounded to nearest even */
    dq_dtype dense_dtype;
    /* scale_dtype as stored: dq_quantize_tensor_scan turns F16 into F32 where needed */
    dq_quant_spec spec;
    int8_t *column; /* [cols] that of spec, found by dq_quantize_tensor_scan; NULL: it has none */
    int64_t group_size, scale_rows;
    bool one_scale; /* for the whole tensor */
    bool counts;    /* among the model's parameters: see model.h */
    bool own_group; /* a rule's, not that of the settings */
    bool is_fed;    /* dq_quantize_choice.fed: a method that runs the model makes its codes */
    dq_grid grid;   /* of one_scale, as stored; found by dq_quantize_tensor_scan */
} dq_quantize_tensor;

/* After a scan: got[cols] is row w[cols] as it will be read back; codes[cols] is scratch. */
void dq_quantize_tensor_read_back(const dq_quantize_tensor *q, const float *w, float *got,
                                  int8_t *codes);

/* Hears source bytes done, from one thread at a time. */
typedef struct dq_quantize_tick {
    void (*step)(void *arg, int64_t bytes);
    void *arg;
} dq_quantize_tick;

/* Datasets of the format, 0 for dense bytes; bytes of a dataset come in order. */
typedef struct dq_quantize_sink {
    dq_status (*put)(void *arg, int dataset, const void *p, size_t bytes, dq_err *err);
    void *arg;
} dq_quantize_sink;

/* Buffers shared by passes over many tensors; {0} at first. New ones for each tensor would let the
 * heap grow. */
typedef struct dq_quantize_tensor_buffers {
    void *buffer[3];
    size_t bytes[3];
} dq_quantize_tensor_buffers;
void dq_quantize_tensor_buffers_free(dq_quantize_tensor_buffers *r);

/* DQ_DAMAGED with row and column: a value is not finite; DQ_MISMATCH: not after rounding to
 * dense_dtype. Finds the tensor's single scale, if asked for, and whether scales fit F16.
 * DQ_STOPPED between tiles. Called by one thread of a parallel region; its tasks use the others. */
dq_status dq_quantize_tensor_scan(dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                                  const dq_quantize_tick *tick, dq_err *err);
/* After a scan, called likewise. *e becomes the error; untouched for dense tensors. */
dq_status dq_quantize_tensor_write(const dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                                   const dq_quantize_sink *sink, dq_quant_error *e,
                                   const dq_quantize_tick *tick, dq_err *err);

/* Expected time, from a short timing of each kind of work. */

/* Seconds on all threads together. */
typedef struct dq_quantize_rates {
    double scan, hash, dense;        /* of a byte of the source */
    double value[DQ_QUANT_MODES][9]; /* of a value to its nearest code, by width */
} dq_quantize_rates;

typedef struct dq_blob {
    const char *path;
    const void *data;
    size_t bytes;
    dq_encoding encoding;
} dq_blob;

enum { DQ_MAX_BLOBS = 10 };

struct dq_quantizer {
    dq_arena *arena;          /* owns this struct too */
    dq_quantize_settings set; /* as given, with values resolved by the model */
    const char *dir;
    dq_model *model;
    const dq_checkpoint *checkpoint; /* of the model: what lies anew in memory does so once */
    dq_quantize_tensor *tensor;      /* as names sort byte by byte */
    int64_t *order;                  /* dq_quantize_row_at: dq_name_order */
    bool *skipped;
    dq_blob blob[DQ_MAX_BLOBS];
    int n_blobs, table, objects; /* the blobs of source files and of the list of objects */
    const char **file;           /* weight files: base names, sizes, hashes (after the scan) */
    int64_t *file_bytes;
    char (*file_sha)[65];
    int n_files;
    dq_err *file_err;            /* of the tasks that hash: they must not share one */
    atomic_int hashing, give_up; /* files not hashed yet; no hash is wanted any more */
    bool hashed;                 /* the main thread knows all hashes */
    const char *recipe;          /* `set` as JSON, as the container stores it */
    dq_quantize_needs needs;     /* of the method */
    double *loss;                /* [n_tensors] of dq_quantize_row */
    dq_quantize_tensor_buffers buffers;
    dq_container_skeleton skeleton;
    dq_quantize_info info;
    const dq_quantize_progress *progress;
    dq_pace pace;
    dq_quantize_rates rates;
    dq_quantize_kind
        kind; /* of the work at hand, and the seconds that are expected of a byte of it */
    double rate;
    int64_t unreleased;         /* bytes walked since all pages were given back */
    _Atomic(const char *) what; /* is being done; tasks that hash beside it read it */
};

/* A container in the making, shared by the files that write it. */

struct dq_quantize_feed {
    dq_quantizer *q;
    const char *out, *partial, *journal_path;
    dq_inplace_file file;
    dq_work ledger;
    bool *done; /* [n_slots] */
    int64_t n_done, unsynced;
    double synced; /* time */
    bool force, resume;
    int64_t *pending; /* slots that wait for their payloads to reach the disk */
    int64_t n_pending;
    int n_sources;     /* hashes of weight files in the journal */
    char complete[65]; /* "": the journal does not end */
    dq_sha256 hash[DQ_MAX_DATASETS];
    int64_t at[DQ_MAX_DATASETS];
    bool finished; /* by an earlier run */
    bool broken;   /* the method found damage, which every run finds again */
};

/* Settings as JSON: a container's recipe, and files of schema dq-recipe/1; one table of keys reads
 * and prints them. */

/* Its rows of settings for all tensors, but for bits. */
void dq_quantize_recipe_rows(dq_row_writer *w, const dq_quantize_settings *s);
/* All rows of a container's recipe, and of a file, not live. */
void dq_quantize_recipe_describe(dq_row_writer *w);
void dq_quantize_recipe_describe_file(dq_row_writer *w);
/* As in /config/recipe_json; the caller ends it with json_decref. DQ_USAGE: a text is not UTF-8. */
dq_status dq_quantize_recipe_of(json_t **out, const dq_quantize_settings *s, dq_err *err);

/* Which tensors are packed and how: by role, then by the rules in order, then by the skip
 * pattern. */

typedef struct dq_quantize_choice {
    const char *name;
    bool packable;   /* its role is one that kernels read as codes */
    dq_role role;    /* of that */
    bool projection; /* skipping it counts even where it was to be dense */
    bool embedding;
    bool fed;     /* a method makes its codes: a projection, or with a method a head */
    bool kept;    /* named by `skip`: neither packed nor rounded */
    bool skipped; /* and it would have been packed */
    bool own_bits, own_group, own_mode; /* a rule's, not those of the settings */
    int bits;                           /* 2..8, or 16: dense */
    int64_t group;
    dq_scale_mode mode;
} dq_quantize_choice;

/* Applies s->rules and s->skip to choice[n], which hold what the roles give. DQ_USAGE for a pattern
 * that is none, or that matches no tensor it could change, with near names; from s->file these are
 * DQ_DAMAGED and DQ_MISMATCH. DQ_DAMAGED for a rule that says something else than a rule can.
 * tied_head: the name of a head that is the embedding; NULL: the head is a tensor of its own. */
dq_status dq_quantize_rules_apply(const dq_quantize_settings *s, const char *tied_head,
                                  dq_quantize_choice *choice, int64_t n, dq_err *err);

#endif
