/* safetensors_write: the head of a weight file, for who writes its tensors after it, one after the other.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SAFETENSORS_WRITE_H
#define DQ_SAFETENSORS_WRITE_H

#include "base/text.h"
#include "tensor/tensor.h"

/* The order of a file's tensors: those of larger elements first, by name among equals, so that each of them begins on a
 * multiple of its element's size. For qsort. */
int dq_safetensors_write_order(const dq_tensor *a, const dq_tensor *b);
/* Appends the head of tensor[0 .. n - 1], which have this order and whose data follow in it without gaps: length, JSON,
 * spaces up to a multiple of 8 bytes. Data of the tensors are not looked at.
 * Source: huggingface/safetensors README.md (format); its serializer has the same order. */
dq_status dq_safetensors_write_head(dq_strbuf *out, const dq_tensor *const *tensor, int64_t n,
                                    dq_err *err);

#endif
