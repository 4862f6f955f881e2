/* edits: changed copies of checkpoints in the folder of the test, for tests of loading.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EDITS_H
#define DQ_EDITS_H

#include "tests/rigs/given.h"
#include "tests/rigs/test_folder.h"

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

/* A file of the folder; a link is replaced. */
void edits_put(const char *name, const void *bytes, size_t len);
/* config.json and model.safetensors of the edit; open also opens the model. */
void edits_write(const edit *e);
dq_model *edits_open(const edit *e, dq_err *err);

/* What each edit's model ends in, opened and with its weights looked at. */
typedef struct edits_trial {
    edit e;
    dq_status status;
    const char *text;
} edits_trial;
void edits_try(const edits_trial *t, size_t n);

#endif
