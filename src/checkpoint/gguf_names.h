/* gguf_names: names of tensors in GGUF files of Llamas and in checkpoints of transformers, and how rows of q and k stand in
 * either.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_NAMES_H
#define DQ_GGUF_NAMES_H

#include "base/base.h"

/* The name that transformers has of a GGUF tensor, in the arena or longer-lived. *pairs: rows are in the order of rotary pairs.
 * NULL without an error: no Llama of transformers has such a tensor. */
const char *dq_gguf_name_hf(bool *pairs, const char *gguf, dq_arena *a, dq_err *err);
/* The other way. */
const char *dq_gguf_name_of(bool *pairs, const char *hf, dq_arena *a, dq_err *err);

/* Of heads of `size` rows: transformers has the first of all rotary pairs, then the second; a GGUF file has them side by side.
 * The row of the file that is row r of transformers, and the other way. */
static inline int64_t dq_gguf_name_stored_row(int64_t r, int64_t size)
{
    const int64_t half = size / 2, head = r / size, i = r % size;
    return head * size + i % half * 2 + i / half;
}

static inline int64_t dq_gguf_name_hf_row(int64_t stored, int64_t size)
{
    const int64_t half = size / 2, head = stored / size, i = stored % size;
    return head * size + i % 2 * half + i / 2;
}

#endif
