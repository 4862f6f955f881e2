/* kernel_routes: which kernel and which arithmetic every layer of a model runs in, in words.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KERNEL_ROUTES_H
#define DQ_KERNEL_ROUTES_H

#include "engine/backend.h"
#include "model/model.h"

enum { DQ_ROUTE_TEXT = 1024 };

/* "layers 0-11: linear prepacked_int8 int8 (8 bits, group 128); attention attend_int8: qk int8, pv int8; kv 8:8
 * int8", for the layers from `first` on that run alike; *next is the first one after them. Names are those
 * of matmul_kernel and attend_kernel ("packed or prepacked" before the weights are acquired); projections that differ within a layer are named. After the last layer stands the head where it is in
 * codes. Returns buf. */
const char *dq_kernel_routes_text(char buf[DQ_ROUTE_TEXT], int *next, const dq_backend *b,
                                  const dq_model *m, int first, dq_math math, const dq_kv_spec *kv);

#endif
