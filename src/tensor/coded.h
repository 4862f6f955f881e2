/* coded: a coded matrix in memory: the dq_weight of codes, with the very bytes that a container would hold.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CODED_H
#define DQ_CODED_H

#include "tensor/codes.h"

/* A coded matrix whose parts lie in one block of memory. */
typedef struct dq_coded {
    dq_weight weight; /* name NULL; pointers into `bytes` */
    uint8_t *bytes;
} dq_coded;

/* Packs codes and grids. Free with dq_coded_free. DQ_RESOURCE. */
dq_status dq_coded_pack(dq_coded *out, const dq_codes *c, dq_err *err);
/* A matrix of a shape without contents, for rows that are packed one band after the other, or parts that are read from a
 * file: dq_weight_part says where each lies. */
dq_status dq_coded_new(dq_coded *out, int64_t rows, int64_t cols, const dq_quant_spec *spec,
                       dq_err *err);
/* Packs codes and grids as rows first .. of a matrix of the same spec; with one grid for all rows, all of them. */
void dq_coded_put(dq_coded *out, const dq_codes *c, int64_t first);
uint8_t *dq_coded_part(dq_coded *c, int part); /* the bytes of a part, to be filled */
void dq_coded_free(dq_coded *c);               /* {0} allowed */

#endif
