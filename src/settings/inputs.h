/* Inputs and what is said of them: models, texts, devices, remedies in words.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_INPUTS_H
#define DQ_INPUTS_H

#include "engine/backend.h"
#include "model/model.h"
#include "session/session.h"
#include "settings/options.h"
#include "tasks/items.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>

/* Rewords the library's failures for this program: which option or command would help. */

/* Rewords the text by its remedies, which are then removed. */
void dq_advice_apply(dq_err *err);

/* The program and what it runs on, as far as bits may depend on it. */

enum { DQ_IDENTITY = 240 };
/* "dq 0.1.0 (COMMIT), compiler 12.2.0, cpu avx2 avx512": version, compiler, device and instruction
 * sets. Threads change no bit. */
void dq_identity_text(char out[DQ_IDENTITY], const dq_backend *b);

/* A model's size as every command reports it: bits per weight and bytes of its files first. */

/* "4.48 bpw, 92.30 MiB" */
enum { DQ_SIZE_REPORT_TEXT = 64 };
const char *dq_size_report_text(char buf[DQ_SIZE_REPORT_TEXT], const dq_model *m);
void dq_size_rows_of(dq_row_writer *w, const dq_model_size *s);
void dq_size_rows(dq_row_writer *w, const dq_model *m);
/* "head_order" */
void dq_head_order_row(dq_row_writer *w, const dq_model *m);

/* Kernels and arithmetic of every layer of a model, in words. */

enum { DQ_ROUTE_TEXT = 1024 };

/* "layers 0-11: linear prepacked_int8 int8 (8 bits, group 128); attention attend_int8; kv 8:8
 * int8", for the layers from `first` on that run alike; *next is the first one after them. Names
 * are those of matmul_kernel and attend_kernel ("packed or prepacked" before the weights are
 * acquired); projections that differ within a layer are named. After the last layer stands the
 * head where it is in codes. Returns buf. */
const char *dq_kernel_routes_text(char buf[DQ_ROUTE_TEXT], int *next, const dq_backend *b,
                                  const dq_model *m, int first, dq_math math, const dq_kv_spec *kv);

/* --head-order: which heads meet in one output head, for checkpoints of doubtful order; it applies
 * to every model with two maps. */
enum { DQ_INPUT_HEAD_ORDERS = 3 };
typedef struct dq_input_head_order {
    dq_word word; /* not given: as each checkpoint's architecture says */
    bool used;    /* some model took it */
    const char *offered[DQ_INPUT_HEAD_ORDERS];
} dq_input_head_order;
/* Fills h->offered, the words of the row. */
const char *const *dq_input_head_order_offer(dq_input_head_order *h);
#define DQ_INPUT_HEAD_ORDER_OPTION(h)                                                              \
    dq_opt_word("head-order", "MAP", &(h).word, dq_input_head_order_offer(&(h)),                   \
                DQ_INPUT_HEAD_ORDERS,                                                              \
                "{words}: read the heads of a Diff Transformer in this order, whatever its "       \
                "architecture says (see docs/math/model.md and dq doctor --model)")
/* After the last one: DQ_MISMATCH where no model used it. */
dq_status dq_input_head_order_check(const dq_input_head_order *h, dq_err *err);
/* Opens a MODEL argument and passes on its warnings. h: NULL allowed. */
dq_status dq_input_model(dq_model **out, const char *path, dq_input_head_order *h,
                         dq_logger *logger, dq_err *err);

/* A text and its source, in the arena. */
typedef struct dq_input_text {
    const char *path; /* "-" for standard input, the source of the built-in text */
    bool built_in;
    const char *text;
    size_t bytes;
    char sha256[65];
} dq_input_text;

/* Ids and their sequences, in the arena. */
typedef struct dq_input_ids {
    int32_t *ids;
    int64_t n, *cu, n_seq;
} dq_input_ids;

/* Warns of ill-formed UTF-8, if any. */
void dq_input_warn_bad(dq_logger *logger, const char *path, int64_t n_bad, int64_t first);
/* Warns of a file of JSON lines taken as running text, because of its name. */
void dq_input_warn_lines(const char *path, dq_logger *logger);
/* Warns of items whose context and choice meet with white space on both sides. */
void dq_input_warn_spaces(const dq_items *items, const char *path, dq_logger *logger);
/* Reads a file or standard input, or takes the built-in sample (path NULL). DQ_DAMAGED: empty. */
dq_status dq_input_read(dq_input_text *t, const char *path, dq_arena *a, dq_err *err);
/* "1 2 3": every item of --ids is one sequence. */
dq_status dq_input_parse_ids(dq_input_ids *out, const char *const *item, int n, dq_arena *a,
                             dq_err *err);
/* Warns where a model has no stop tokens, or names unknown ones. */
void dq_input_warn_stops(const dq_stop_ids *s, const char *name, dq_logger *logger);
/* NULL with DQ_OK: the model has no tokenizer, and `required` is false. */
dq_status dq_input_tokenizer(dq_tokenizer **out, const dq_model *m, bool required, dq_err *err);
/* The text as one sequence in an arena; warns once about text that is not UTF-8. */
dq_status dq_input_encode(dq_input_ids *out, const dq_tokenizer *t, const dq_input_text *text,
                          unsigned flags, dq_logger *logger, dq_arena *a, dq_err *err);

/* Entries of `inputs` in documents. */
void dq_input_put_model(dq_row_writer *w, const dq_model *m);
void dq_input_put_text(dq_row_writer *w, const dq_input_text *t);
void dq_input_model_rows(dq_row_writer *w, const dq_model *m);

#endif
