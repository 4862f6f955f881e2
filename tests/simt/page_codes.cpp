/* page_codes: see page_codes.h.
 * SPDX-License-Identifier: MIT */
#include "page_codes.h"

#include "page.cuh"

void dq_test_page_codes(int8_t *q, float *scale, const dq_page *page, const dq_page_form *form,
                        int side, int head, int t)
{
    const uint8_t *codes = page->side[side].codes + (size_t)head * (size_t)form->code_bytes;
    for (int c = 0; c < form->cols; c++) q[c] = (int8_t)dq_page_code(form, side, codes, t, c);
    for (int g = 0; g < form->n_scales; g++) scale[g] = dq_page_scale(form, page, side, head, t, g);
}
