/* kv_page: what a form is follows from widths and codes alone. See kv_page.h.
 * SPDX-License-Identifier: MIT */
#include "kv/kv_page.h"

dq_kv_page_form dq_kv_page_form_of(const dq_kv_spec *spec, bool values, int head_dim)
{
    const int64_t cols = (head_dim + 15) / 16 * 16;
    const int bits = values ? spec->v_bits : spec->k_bits;
    dq_kv_page_form form = {.bits = bits,
                            .plain_floats = (values ? cols : head_dim) * DQ_PAGE_TOKENS};
    if (bits == 16) return form;
    form.group = (int)cols;
    form.has_lows = values && spec->quant == DQ_KV_MIXED;
    const int64_t run = form.has_lows ? 2 * (int64_t)spec->group : bits <= 4 ? spec->group : cols;
    if (dq_kv_by_channel(spec, values)) {
        form.set_scales = 2 * (int64_t)head_dim;
    } else {
        if (run < head_dim) form.group = (int)run;
        form.n_scales = (head_dim + form.group - 1) / form.group * (form.has_lows ? 2 : 1);
    }
    form.code_bytes = cols * DQ_PAGE_TOKENS * bits / 8;
    return form;
}

int64_t dq_kv_page_scale_bytes(const dq_kv_page_form *form, int64_t n_sets, bool wide)
{
    return (form->n_scales * DQ_PAGE_TOKENS + n_sets * form->set_scales) * (wide ? 4 : 2);
}

int64_t dq_kv_page_capacity(int64_t n)
{
    int64_t room = 8;
    while (room < n) room *= 2;
    return room;
}
