/* page_codes: codes of one token as kernels find them in a page, for tests in C.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGE_CODES_H
#define DQ_PAGE_CODES_H

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* q[form.cols] and scale[form.n_scales] of slot t of a head, of a page whose memory is the device's. What failed, if
 * a copy did. */
cudaError_t dq_test_page_codes(int8_t *q, float *scale, const dq_page *page,
                               const dq_page_form *form, int side, int head, int t);

#ifdef __cplusplus
}
#endif

#endif
