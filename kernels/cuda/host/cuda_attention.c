/* cuda_attention: attend, attn_absmax and absmax_join of the CUDA backend.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda_attention.h"

#include "kernels/cuda/device/fused.h"

/* What attention runs in, math.qk and math.pv being what one --math makes them. Single rows go to kernels that
 * share pages among blocks; their results are those of the others. */
typedef enum way { WAY_STRIPS, WAY_INT8, WAY_DECODE, WAY_BF16 } way;

static way way_of(dq_math math, int64_t rows)
{
    if (math.qk == DQ_NUM_F32) return WAY_STRIPS;
    if (math.qk == DQ_NUM_BF16) return WAY_BF16;
    return rows == 1 ? WAY_DECODE : WAY_INT8;
}

const char *dq_cuda_attend_kernel(const dq_backend *b, const dq_kv_spec *kv, dq_math math,
                                  int64_t rows)
{
    static const char *const name[] = {"scores + softmax + values", "attend_int8", "decode_int8",
                                       "attend_bf16"};
    const way to = way_of(math, rows);
    (void)b;
    if (!dq_kv_by_page(kv)) return name[to];
    const bool sets = dq_kv_by_channel(kv, true); /* values, too */
    if (to == WAY_INT8) return sets ? "attend_int8_sets" : "attend_int8_mixed";
    if (to == WAY_DECODE) return sets ? "decode_int8_sets" : "decode_int8_mixed";
    return name[to];
}

static way way_of_call(const dq_attend_args *args)
{
    const dq_batch *batch = args->batch;
    int64_t rows = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t n = batch->cu_rows[i + 1] - batch->cu_rows[i];
        if (n > rows) rows = n;
    }
    return way_of(args->math, rows);
}

static int rounding_of(dq_logit_spec logit)
{
    if (!dq_logit_rounds(logit)) return DQ_ROUND_NOT;
    if (dq_logit_needs_absmax(logit)) return DQ_ROUND_GIVEN;
    return dq_logit_by_tile(logit) ? DQ_ROUND_TILE : DQ_ROUND_ROW;
}

static float qmax_of(dq_logit_spec logit)
{
    return (float)((1 << (logit.bits - 1)) - 1);
}

/* Of fused.h; math f32 is not among them. */
static int fused_math(const dq_attend_args *args)
{
    return args->math.qk == DQ_NUM_INT8 ? DQ_FUSED_INT8 : DQ_FUSED_BF16;
}

cudaError_t dq_cuda_scores(const dq_attend_args *args, dq_attention_units u, cudaStream_t s)
{
    if (args->math.qk == DQ_NUM_F32) return dq_attention_scores(u, s);
    return dq_fused_scores(u, fused_math(args), s);
}

/* Strips up to exp(S - max). */
static bool make_strips(dq_backend *b, const dq_attention_units *u, const dq_attend_args *args)
{
    const cudaStream_t s = dq_cuda_stream(b);
    return dq_cuda_ok(b, dq_cuda_scores(args, *u, s), "attend (scores)") &&
           dq_cuda_ok(b,
                      dq_attention_softmax(*u, rounding_of(args->logit), qmax_of(args->logit),
                                           args->absmax, s),
                      "attend (softmax)");
}

/* Spans look at few units as a rule: where nothing else needs strips, theirs alone are made. */
static bool observe_spans(dq_backend *b, const dq_attention_units *u, const dq_attend_args *args,
                          const dq_cuda_observers *observers, const dq_attention_unit *unit,
                          bool made)
{
    for (int i = 0, n; observers->spans.mass && i < u->n; i += n) {
        const bool counts = unit[i].counted < unit[i].n;
        for (n = 1; i + n < u->n && (unit[i + n].counted < unit[i + n].n) == counts;) n++;
        dq_attention_units part = *u;
        part.unit += i;
        part.n = n;
        if (!counts) continue;
        if (!made && !make_strips(b, &part, args)) return false;
        if (!dq_cuda_ok(b, dq_spans_add_sums(part, observers->spans, dq_cuda_stream(b)),
                        "attend (spans)"))
            return false;
    }
    return true;
}

/* One launch of units, from scores to outputs. The tensor cores need no strips: where something looks at the
 * maps, strips are made for it alone, so that looking never changes a result. */
static bool attend_units(dq_backend *b, const dq_attention_units *u, const dq_attention_finish *f,
                         const dq_attend_args *args, const dq_cuda_observers *observers,
                         const dq_attention_unit *unit)
{
    const cudaStream_t s = dq_cuda_stream(b);
    const way to = way_of_call(args);
    const bool all = to == WAY_STRIPS || args->columns || args->measure;
    if (all && !(make_strips(b, u, args) && dq_cuda_observers_run(b, observers, u, unit)))
        return false;
    if (!observe_spans(b, u, args, observers, unit, all)) return false;
    if (to == WAY_STRIPS) return dq_cuda_ok(b, dq_attention_values(*u, *f, s), "attend (values)");
    const dq_fused_logits logits = {rounding_of(args->logit), qmax_of(args->logit), args->absmax};
    if (to == WAY_DECODE)
        return dq_cuda_ok(b, dq_fused_decode(*u, *f, logits, s), "attend (decode)");
    return dq_cuda_ok(b, dq_fused_attend(*u, *f, logits, fused_math(args), s), "attend (fused)");
}

/* Refuses by name what the tensor-core kernels do not take. f: NULL for scores alone. */
static bool taken(dq_backend *b, const dq_cuda_units *u, const dq_attention_finish *f,
                  const dq_attend_args *args)
{
    if (args->math.qk == DQ_NUM_F32) return true;
    const char *lack = dq_fused_lacks(&u->dev, f, fused_math(args), rounding_of(args->logit));
    if (!lack) return true;
    dq_fail_with(&b->err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_F32_OR_CPU},
                 "%s attention on the cuda backend does not take this: %s",
                 dq_num_name[args->math.qk], lack);
    return false;
}

static bool describe_finish(dq_backend *b, dq_attention_finish *f, dq_mat dst,
                            const dq_attend_args *args)
{
    const dq_attn *attn = args->attn;
    const size_t width = (size_t)attn->map->n_slabs * (size_t)attn->map->head_dim;
    *f = (dq_attention_finish){.out = dst.p,
                               .out_cols = dst.cols,
                               .norm_eps = attn->norm_eps,
                               .out_scale = attn->out_scale,
                               .rotated = args->kv->spec.rotate_v,
                               .norm = attn->head_norm};
    if (attn->head_norm && attn->gain) {
        f->gain = dq_cuda_upload(b, attn->gain, width * sizeof(float));
        if (!f->gain) return false;
    }
    return true;
}

void dq_cuda_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    const way to = way_of_call(args);
    const bool looked = args->columns || args->measure;
    const dq_cuda_units_request request = {.strips = looked || to == WAY_STRIPS || to == WAY_DECODE,
                                           .counted = args->spans != NULL,
                                           .parts = to == WAY_DECODE,
                                           .edges = rounding_of(args->logit) == DQ_ROUND_TILE};
    dq_cuda_units u;
    dq_cuda_observers observers;
    dq_attention_finish f;
    void *after;
    if (!dq_cuda_units_begin(b, &u, args, request)) return;
    if (describe_finish(b, &f, dst, args) && taken(b, &u, &f, args) &&
        dq_cuda_observers_begin(b, &observers, &u, args) &&
        dq_cuda_units_scratch(b, &u, observers.after, &after)) {
        dq_attention_units launch;
        observers.scratch = after;
        for (int first; b->err.code == DQ_OK && dq_cuda_units_next(&u, &launch, &first);)
            attend_units(b, &launch, &f, args, &observers, u.unit + first);
        dq_cuda_observers_end(b, &observers);
    }
    dq_cuda_units_end(b, &u);
}

void dq_cuda_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args)
{
    const cudaStream_t s = dq_cuda_stream(b);
    const size_t n = (size_t)args->batch->n_seq * (size_t)args->attn->map->n_q;
    dq_cuda_units u;
    if (b->err.code != DQ_OK || n == 0) return;
    if (!dq_cuda_ok(b, cudaMemsetAsync(absmax, 0, n * sizeof *absmax, s), "memset")) return;
    if (!dq_cuda_units_begin(b, &u, args, (dq_cuda_units_request){0})) return;
    dq_attention_units launch;
    const bool ok = taken(b, &u, NULL, args);
    uint32_t *bits = (uint32_t *)(void *)absmax;
    for (int first; ok && b->err.code == DQ_OK && dq_cuda_units_next(&u, &launch, &first);)
        dq_cuda_ok(b,
                   args->math.qk == DQ_NUM_F32 ? dq_attention_absmax(launch, bits, s)
                                               : dq_fused_absmax(launch, bits, fused_math(args), s),
                   "attn_absmax");
    dq_cuda_units_end(b, &u);
}

void dq_cuda_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_attention_join(absmax, n_seq, n_q, dq_cuda_stream(b)), "absmax_join");
}
