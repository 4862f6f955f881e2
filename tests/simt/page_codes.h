/* page_codes: codes of one token as kernels find them in a page, for tests in C.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGE_CODES_H
#define DQ_PAGE_CODES_H

#include "page.h"

#ifdef __cplusplus
extern "C" {
#endif

/* q[form.cols] and scale[form.n_scales] of slot t of a head; the page's memory is read in place. */
void dq_test_page_codes(int8_t *q, float *scale, const dq_page *page, const dq_page_form *form,
                        int side, int head, int t);

#ifdef __cplusplus
}
#endif

#endif
