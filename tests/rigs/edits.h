/* edits: changed copies of checkpoints in a folder of the test's own, for tests of loading.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EDITS_H
#define DQ_EDITS_H

#include "model/model.h"

#define MODELS DQ_TEST_DIR "/golden/models/"

/* One change of a checkpoint. Zeroed members change nothing. */
typedef enum edit_kind {
    KEEP,
    DROP,    /* tensor */
    RENAME,  /* tensor to arg */
    RESHAPE, /* tensor to the shape arg; "" makes a scalar */
    RETYPE,  /* tensor to the dtype arg, of equal size */
    POKE,    /* f32 value 3 of tensor becomes NaN */
    BLANK,   /* tensor becomes zeros */
    COPY,    /* tensor also as arg */
    VARY,    /* tensor also as arg, with another first byte */
    STRAY    /* one more tensor arg, beside tensor, without elements */
} edit_kind;
typedef struct edit {
    const char *base;                        /* folder under golden/models, or from the root */
    const char *key, *value, *key2, *value2; /* config.json; value NULL deletes */
    edit_kind kind;
    const char *tensor, *arg;
    void (*change)(unsigned char *bytes, const dq_weight *w); /* each tensor's data; or NULL */
    bool odd_header; /* of odd length: nothing is aligned */
} edit;

#define SET(b, k, v)                                                                               \
    {                                                                                              \
        .base = b, .key = k, .value = v                                                            \
    }
#define SET2(b, k, v, k2, v2)                                                                      \
    {                                                                                              \
        .base = b, .key = k, .value = v, .key2 = k2, .value2 = v2                                  \
    }
#define WEIGHT(b, what, t, a)                                                                      \
    {                                                                                              \
        .base = b, .kind = what, .tensor = t, .arg = a                                             \
    }

/* Group fixtures: makes and removes the folder. */
int edits_begin(void **state);
int edits_end(void **state);
const char *edits_folder(void);
/* The path of a name in the folder; valid for a few calls. */
const char *edits_path(const char *name);
void edits_put(const char *name, const void *bytes, size_t len);
/* config.json and model.safetensors of the edit; open also opens the model. */
void edits_write(const edit *e);
dq_model *edits_open(const edit *e, dq_err *err);

/* The status, and a part of the message. */
void check_error(const dq_err *err, dq_status want, const char *text);

#endif
