/* fused: the host side alone: which arguments the kernels take, and which of the two arithmetics a
 * launch goes to. dq_fused_lacks asks first, so the launches below it do not check again.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/fused_launch.h"
#include "kernels/cuda/device/launch.h"

static const char *dims_lack(const dq_page_form *f)
{
    if (f->dim % 16 || f->dim < 16 || f->dim > 128)
        return "head_dim is not a multiple of 16 up to 128";
    if (f->cols != f->dim || f->stride != f->dim) return "channels are padded";
    if (f->bits < 16 && f->n_scales > 1 && f->group % 16)
        return "groups of scales are no multiples of 16";
    return NULL;
}

const char *dq_fused_lacks(const dq_attention_units *u, const dq_attention_finish *f, int math,
                           int round)
{
    const char *s = dims_lack(&u->form[0]);
    if (!s) s = dims_lack(&u->form[1]);
    if (s) return s;
    if (u->form[0].dim != u->form[1].dim) return "keys and values differ in width";
    if (f && f->out_cols % 2) return "the output's rows have an odd length";
    if (f && f->rotated && u->form[1].dim & (u->form[1].dim - 1))
        return "rotation of such a head_dim";
    if (u->n_maps > 2 || u->n_slabs > 2) return "more than two maps or slabs of values";
    if (math == DQ_FUSED_INT8 && u->form[0].dense != DQ_PAGE_F32)
        return "int8 arithmetic with unquantized tokens in two bytes";
    if (math == DQ_FUSED_INT8 && (u->form[0].bits > 8 || u->form[1].bits > 8))
        return "int8 arithmetic on pages without codes";
    const bool lows = u->form[1].has_lows;
    if (math == DQ_FUSED_INT8 && !u->form[0].set_numbers != !(lows || u->form[1].set_numbers))
        return lows ? "int8 arithmetic with lows of values beside per-token codes of keys"
                    : "int8 arithmetic with per-channel codes of keys or values alone";
    if (round == DQ_ROUND_TILE) return "rounding of logits by tiles";
    return NULL;
}

cudaError_t dq_fused_scores(dq_attention_units u, int math, cudaStream_t s)
{
    if (dq_fused_lacks(&u, NULL, math, DQ_ROUND_NOT)) return cudaErrorInvalidValue;
    return math == DQ_FUSED_INT8 ? dq_fused_scores_int8(u, NULL, s)
                                 : dq_fused_scores_bf16(u, NULL, s);
}

cudaError_t dq_fused_absmax(dq_attention_units u, uint32_t *max, int math, cudaStream_t s)
{
    if (dq_fused_lacks(&u, NULL, math, DQ_ROUND_NOT)) return cudaErrorInvalidValue;
    return math == DQ_FUSED_INT8 ? dq_fused_scores_int8(u, max, s)
                                 : dq_fused_scores_bf16(u, max, s);
}

cudaError_t dq_fused_attend(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                            int math, cudaStream_t s)
{
    if (dq_fused_lacks(&u, &f, math, l.round)) return cudaErrorInvalidValue;
    return math == DQ_FUSED_INT8 ? dq_fused_attend_int8(u, f, l, s)
                                 : dq_fused_attend_bf16(u, f, l, s);
}
