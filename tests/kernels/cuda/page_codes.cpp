/* page_codes: a head's codes and scales are copied to the host and read by page.cuh's own rules.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/page_codes.h"

#include "kernels/cuda/device/page.cuh"
#include "tests/simt/numerics.h"

enum { MAX = DQ_PAGE_SLOTS * 128 }; /* bytes of codes, or scales, of one head */

cudaError_t dq_test_page_codes(int8_t *q, float *scale, const dq_page *page,
                               const dq_page_form *form, int side, int head, int t)
{
    static uint8_t codes[MAX];
    static float wide[MAX];
    static uint16_t half[MAX];
    const int bits = dq_page_bits(form, page, side, head);
    const bool sets = form->set_numbers > 0;
    const size_t bytes = (size_t)(DQ_PAGE_SLOTS * form->cols * bits / 8),
                 n = (size_t)(sets ? form->set_numbers : form->n_scales * DQ_PAGE_SLOTS),
                 first = sets ? (size_t)dq_page_set_place(form, page, head, t) : (size_t)head * n;
    const dq_page_side *s = &page->side[side];
    if (bytes > MAX || n > MAX) return cudaErrorInvalidValue;
    const cudaError_t e =
        cudaMemcpy(codes, dq_page_codes(form, page, side, head), bytes, cudaMemcpyDeviceToHost);
    if (e != cudaSuccess) return e;
    const cudaError_t f =
        page->wide[side]
            ? cudaMemcpy(wide, (const float *)s->scale + first, 4 * n, cudaMemcpyDeviceToHost)
            : cudaMemcpy(half, (const uint16_t *)s->scale + first, 2 * n, cudaMemcpyDeviceToHost);
    if (f != cudaSuccess) return f;
    for (int c = 0; c < form->cols; c++) q[c] = (int8_t)dq_page_code(form, bits, side, codes, t, c);
    for (int g = 0; g < (sets ? form->set_numbers : form->n_scales); g++) {
        const int at = sets ? g : dq_page_scale_place(form, 0, t, g);
        scale[g] = page->wide[side] ? wide[at] : numerics_f16_f32(half[at]);
    }
    return cudaSuccess;
}
