/* A model: its architecture, config, weights and size.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MODEL_H
#define DQ_MODEL_H

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "kv/kv.h"
#include "model/head_order.h"

/* What differs between the architectures of checkpoints, a row each. */

typedef enum dq_role {
    DQ_ROLE_EMBED,
    DQ_ROLE_NORM_OUT,
    DQ_ROLE_HEAD,
    DQ_ROLE_NORM_ATTN,
    DQ_ROLE_Q,
    DQ_ROLE_K,
    DQ_ROLE_V,
    DQ_ROLE_O,
    DQ_ROLE_Q_BIAS,
    DQ_ROLE_K_BIAS,
    DQ_ROLE_V_BIAS,
    DQ_ROLE_O_BIAS,
    DQ_ROLE_Q_NORM, /* gains of the RMS norms of a head's queries and keys, before rotation */
    DQ_ROLE_K_NORM,
    DQ_ROLE_LAMBDA_Q1,
    DQ_ROLE_LAMBDA_K1,
    DQ_ROLE_LAMBDA_Q2,
    DQ_ROLE_LAMBDA_K2,
    DQ_ROLE_LAMBDA_PROJ,   /* a lambda per token and output head */
    DQ_ROLE_HEAD_GAIN,     /* of the norm over each output head */
    DQ_ROLE_NORM_ATTN_OUT, /* of what attention adds to the stream, and the feed-forward part */
    DQ_ROLE_NORM_FFN,
    DQ_ROLE_NORM_FFN_OUT,
    DQ_ROLE_GATE,
    DQ_ROLE_UP,
    DQ_ROLE_DOWN,
    DQ_ROLE_GATE_BIAS,
    DQ_ROLE_UP_BIAS,
    DQ_ROLE_DOWN_BIAS,
    DQ_ROLE_ACT_WEIGHT, /* of the activation: PolyNorm */
    DQ_ROLE_ACT_BIAS,
    DQ_ROLE_COUNT
} dq_role;

/* A key that changes the model, and its only supported value. */
typedef struct dq_only {
    const char *key; /* NULL ends a list */
    double value;    /* true is 1 */
} dq_only;

/* Which layers have a window where layer_types does not say. */
typedef enum dq_window_rule {
    DQ_WINDOW_NONE,    /* no key of windows is read */
    DQ_WINDOW_ALL,     /* all */
    DQ_WINDOW_LATE,    /* with use_sliding_window: from layer max_window_layers on */
    DQ_WINDOW_STILL,   /* with use_sliding_window: those that do not rotate */
    DQ_WINDOW_PATTERN, /* all but each sliding_window_pattern-th */
} dq_window_rule;

/* A new architecture is a row of the table in architecture.c. */
typedef struct dq_architecture {
    const char *name;       /* "llama", "motif2": name in messages and containers */
    const char *about;      /* one line for people */
    const char *model_type; /* config.json model_type, compared without case */
    const char *class_name; /* config.json architectures, compared without case; NULL: any that
                               is not another row's */
    const char *variant;    /* value of diff_variant that chooses this row; NULL: not looked at */
    dq_pairing pairing;     /* DQ_PAIR_GROUPED is chosen by num_noise_heads > 0 */
    dq_lambda_kind lambda;
    double depth_shift; /* lambda_init = 0.8 - 0.6 exp(-0.3 (layer - depth_shift)) */
    dq_rope_order rope;
    dq_act act;
    bool head_norm;           /* RMS norm per output head, with a gain if the table names one */
    const char *head_eps_key; /* config key of its epsilon, NULL: none */
    double default_head_eps;
    bool qkv_bias;           /* q, k and v have biases, o none, whatever a key says */
    bool mlp_bias;           /* honours the config key mlp_bias */
    bool ablation;           /* honours the config keys sub_norm and lambda_init */
    double default_norm_eps; /* rms_norm_eps when the key is absent */
    bool local_rope;         /* layers with a window rotate by rope_local_base_freq */
    bool gain_from_one;      /* gains of norms are stored less 1 */
    bool scales_embedding;   /* what is embedded is multiplied by sqrt(hidden_size) */
    double default_scalar;   /* query_pre_attn_scalar when the key is absent; 0: head_dim always */
    bool skips_rope;         /* by no_rope_layers; by default each fourth layer */
    bool default_tied;       /* tie_word_embeddings when the key is absent */
    dq_window_rule windows;
    int default_window;          /* sliding_window when the key is absent; 0: no window */
    int default_head_dim;        /* where there is no key; 0: hidden_size by heads */
    bool warn_eps;               /* says so when an epsilon is absent */
    bool remote_code;            /* published with code of its own (auto_map) */
    const char *const *required; /* keys that must be there, NULL-terminated list or NULL */
    const dq_only *only;         /* NULL: no such key */
    const char *const *reads;    /* keys that others must have off; NULL-terminated, or NULL */
    const char *tensor[DQ_ROLE_COUNT]; /* its name, %d for the layer; NULL: does not exist */
} dq_architecture;

typedef struct dq_layer {
    dq_attn attn;
    dq_weight q, k, v, o;
    dq_weight gate, up, down;
    dq_weight lambda_proj;                          /* [n_out, dim], DQ_LAMBDA_TOKEN only */
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none */
    const float *gate_bias, *up_bias, *down_bias;   /* NULL: none */
    const dq_rope *rope;                            /* one of the model's three */
    const float *q_norm, *k_norm;                   /* [head_dim] gains; NULL: no such norm */
    const float *norm_attn, *norm_ffn;              /* [dim] */
    const float *norm_attn_out, *norm_ffn_out;      /* [dim]; NULL: no such norm */
    float lambda_init;                              /* 0 without one */
    float act[4];                                   /* PolyNorm: w0, w1, w2, bias */
} dq_layer;

typedef struct dq_model {
    const char *path; /* as given */
    const char *name; /* last part of the path */
    const dq_architecture *architecture;
    int dim, ffn, n_layers, vocab, max_positions;
    float norm_eps;
    dq_rope rope, local_rope; /* of layers with a window, where they have their own; else dim 0 */
    dq_rope no_rope;          /* turns nothing: of layers without positions */
    dq_head_order map;
    dq_layer *layer;       /* [n_layers] */
    dq_weight embed, head; /* head shares embed's memory when tied */
    float embed_scale;     /* of what is embedded; 1: none */
    bool tied;
    const float *norm_out; /* [dim] */
    const char *
        *left_out; /* [n_left_out] tensors of the source that change nothing: biases of zero */
    int64_t n_left_out;
    int64_t n_params;     /* elements of all tensors used */
    int64_t weight_bytes; /* bytes of all tensors used, as stored (codes and scales for packed; of
                              prequant: as laid out) */
    int64_t stored_bytes; /* of the same tensors in the model's files */
    int weight_bits;      /* of the packed projections; 16: none is packed; 0: mixed */
    int embed_bits, head_bits; /* likewise; 16: not packed */
    double packed_bits; /* bits per weight of all packed matrices, scales included; 0: none */
    const char
        *weight_group; /* of all packed matrices: "128", "row", "tensor", "mixed"; "" when dense */
    const char *scale_mode; /* "absmax", ...; of prequant: its method; "" when dense */
    bool is_container;
    bool is_rounded;                /* a container some of whose weights are not its source's */
    dq_arena *arena;                /* owns this struct too; NULL: it was not opened */
    struct dq_container *container; /* NULL for a checkpoint */
    dq_checkpoint *checkpoint;      /* NULL for a container */
    dq_prequant *prequant;          /* of one quantized by another tool; NULL: any other model */
    dq_source source;               /* of a checkpoint */
    const char **warnings;          /* [n_warnings] lines for the user, without newline */
    int n_warnings;
    /* 64 hex digits of the source checkpoint's configuration and weights; containers keep it to
     * find their source */
    char fingerprint[65];
    /* stored in a container; dq_logit_plain otherwise */
    dq_logit_spec logit;
    dq_kv_config kv; /* stored in a container; dq_kv_config_plain otherwise */
    bool is_bf16;    /* its embedding, or where that is codes its last norm, is stored in bf16 */
    const dq_kv_gates
        *gates; /* of a container that has them, or of dq_model_take_gates; NULL: none */
} dq_model;

/* Opens a folder with config.json, or a container (.h5), which stays open. Tensors must match the
 * architecture: DQ_DAMAGED by name: missing; DQ_MISMATCH by name: unexpected. */
dq_status dq_model_open(dq_model **out, const char *path, dq_err *err);
/* Pairs the heads of a checkpoint of doubtful order as the caller says; DQ_PAIR_COUNT: its own.
 * DQ_MISMATCH: a pairing of another shape; a model with one map keeps its own. */
dq_status dq_model_open_as(dq_model **out, const char *path, dq_pairing pairing, dq_err *err);
void dq_model_close(dq_model *m); /* NULL allowed */
/* Replaces DQ_KV_DENSE_AUTO by f16, or bf16 where the model is. */
dq_kv_dense dq_model_kv_dense(const dq_model *m, dq_kv_dense dense);
/* DQ_MISMATCH: not the groups of this model's layers without a window. */
dq_status dq_model_heads_fit(const dq_model *m, const dq_kv_heads *r, dq_err *err);
int dq_model_full_layers(const dq_model *m); /* those without a window */
int dq_model_window(const dq_model *m);      /* the longest of all layers; 0: none has one */
/* Resolves a request for a cache for this model. Fails as dq_kv_config_spec does; DQ_MISMATCH:
 * widths by map with one map, or shared keys. */
dq_status dq_model_kv_spec(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_num num,
                           dq_err *err);
/* Sets widths and share of c, which evicts, to what a size comes to; impossible rows are skipped.
 * DQ_USAGE: none is possible, or its bytes cannot be predicted. */
dq_status dq_model_kv_size(dq_kv_config *c, dq_kv_sized *out, const dq_kv_size *size,
                           const dq_model *m, dq_err *err);
/* Zero weights in the form of this model's gates. */
dq_status dq_model_new_gates(dq_kv_gates **out, const dq_model *m, dq_arena *a, dq_err *err);
/* Replaces the model's gates by a file's (kv.h). DQ_DAMAGED; DQ_MISMATCH: another model's. */
dq_status dq_model_take_gates(dq_model *m, const char *path, dq_err *err);
/* Must precede reading weights: checks a container's hashes once, so that no number comes from
 * damaged weights, or repacks those quantized elsewhere (dq_prequant_source). Checkpoints have no
 * hashes. */
dq_status dq_model_check_weights(const dq_model *m, dq_err *err);
/* Lets the system reclaim file pages of unused weights; repacked ones stay. */
void dq_model_release(const dq_model *m);
/* A verbatim file that came with the model: "config.json", "chat_template.jinja", those of the
 * tokenizer. *text is NULL when there is none; it belongs to the model. */
dq_status dq_model_file(const dq_model *m, const char *name, const char **text, size_t *len,
                        dq_err *err);

/* The parts after dq_model_open, for tests. */
/* *m is zeroed by the caller. What is made here lives in the arena; weights stay where the source
 * has them. Defined in model.c. */
dq_status dq_model_build(dq_model *m, const json_t *config, const dq_source *source,
                         dq_pairing pairing, dq_arena *a, dq_err *err);

/* The rotary part of a config: types default, linear, llama3, yarn, dynamic (up to max_positions),
 * longrope with one list.
 * Source: transformers modeling_rope_utils.py (formulas). */
dq_status dq_model_rope_read(dq_rope *out, dq_rope_order order, int head_dim, const json_t *config,
                             int max_positions, dq_arena *a, dq_err *err);

/* ---- Config ----
 * What a config.json says of a model, before any tensor is looked at. For model*.c. */

/* The object that holds the rotary parameters (NULL: none) and its key, for messages. Defined in
 * head_order.c. */
dq_status dq_model_config_rope(const json_t **out, const char **where, const json_t *config,
                               dq_err *err);

/* ---- Size ----
 * What a model takes on a disk, as the field tells it: bits per weight over all parameters, and
 * bytes. */

/* Scales, zero points and padding are part of the bytes, norms and biases of both. A matrix that is
 * the embedding and the head counts once, also where a file stores it twice. */
typedef struct dq_model_size {
    int64_t params;         /* of all tensors that the model uses */
    int64_t weight_bytes;   /* of these tensors as the files store them */
    int64_t file_bytes;     /* of the container, all parts of a GGUF file, or all safetensors */
    double bits_per_weight; /* 8 * weight_bytes / params */
} dq_model_size;

dq_model_size dq_model_size_of(const dq_model *m);
/* Whether a tensor of the model's files is one of those: not a second copy of the embedding, nor
 * what old programs left. */
bool dq_model_size_counts(const dq_model *m, const char *tensor);

/* ---- Output guard ----
 * The files that a command writes, looked at before it begins. */

typedef enum dq_output_form {
    DQ_OUTPUT_HDF5,
    DQ_OUTPUT_JSON,
    DQ_OUTPUT_LINES,
    DQ_OUTPUT_CSV,
    DQ_OUTPUT_HTML,
    DQ_OUTPUT_GGUF,
    DQ_OUTPUT_FOLDER, /* which dq_out_check looks at */
    DQ_OUTPUT_JOURNAL /* of which finished work is read first */
} dq_output_form;

typedef struct dq_output {
    const char *label, *path; /* what messages call it, "--csv"; path NULL: not requested */
    dq_output_form form;
    /* Endings of files that it has beside it, besides PATH.partial, which every output is written
     * into; ended by NULL. NULL: none. */
    const char *const *beside;
} dq_output;

/* All outputs of a command beside all its inputs (folders, containers, plain files, "-" for
 * standard input; NULL: none), as files, under whatever name: DQ_USAGE where two outputs, with what
 * they have beside them, are one file, or standard output is one of them, or where one would
 * replace an input or change a folder that is one: is (through links too) one of the files that a
 * checkpoint consists of (config.json, tokenizer files, *.safetensors, weight files of its index,
 * ...), or would become one. */
dq_status dq_output_guard_names(const dq_output *out, int n, const char *const *input, int n_inputs,
                                dq_err *err);

/* The same, and besides DQ_USAGE for a name that is empty or "-" or that ends as files of another
 * form do; DQ_FILE for one that cannot be written, or that exists, without force. Commands ask
 * before they begin. */
dq_status dq_output_guard_check(const dq_output *out, int n, const char *const *input, int n_inputs,
                                bool force, dq_err *err);

/* ---- Published ----
 * Checkpoints of the field whose sizes are known, to recognise one and to check its total. */

typedef struct dq_published {
    const char *names; /* repositories, comma separated */
    const char *architecture;
    int vocab, dim, n_layers, n_q, n_kv, head_dim, n_out, ffn;
    bool tied;
    int64_t params;
} dq_published;

/* The row with the model's sizes, NULL: none. */
const dq_published *dq_published_find(const dq_model *m);

#endif
