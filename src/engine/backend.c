/* backend: what every device has in common. See backend.h; kernels/backends.c opens them.
 * SPDX-License-Identifier: MIT */
#include "engine/backend.h"
#include "model/model.h"
#include "tensor/weight_format.h"

#include <string.h>

void dq_backend_close(dq_backend *b)
{
    if (!b) return;
    b->ops->close(b);
    dq_block_free(b);
}

dq_status dq_backend_sync(dq_backend *b, dq_err *err)
{
    b->ops->sync(b);
    const dq_err found = b->err;
    memset(&b->err, 0, sizeof b->err);
    if (found.code == DQ_OK) return err->code;
    return dq_fail_as(err, &found);
}

/* The first projection whose codes a backend cannot multiply; NULL: all can. */
static const dq_weight *find_dense(const dq_backend *b, const dq_model *m)
{
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            if (all[k]->rows && !b->ops->matmul_kernel(b, all[k], DQ_NUM_INT8)) return all[k];
        }
    }
    return NULL;
}

static dq_status can_int8(const dq_backend *b, const dq_model *m, dq_math math,
                          const dq_kv_spec *kv, dq_err *err)
{
    const dq_weight *dense = m && math.linear == DQ_NUM_INT8 ? find_dense(b, m) : NULL;
    const bool attends = math.qk == DQ_NUM_INT8 || math.pv == DQ_NUM_INT8 || math.kv == DQ_NUM_INT8;
    if (dense && dq_weight_is_coded(dense)) {
        dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_F32},
                     "math int8 needs codes that the %s backend multiplies, and %s has %s",
                     b->ops->name, dense->name, dq_weight_format_of(dense)->note);
        return dq_in(err, "%s: ", m->path);
    }
    if (dense) {
        const dq_remedy_code help = m->prequant ? DQ_REMEDY_MATH_F32 : DQ_REMEDY_MATH_WEIGHTS;
        dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = help},
                     "math int8 needs packed weights, and %s is not packed", dense->name);
        return dq_in(err, "%s: ", m->path);
    }
    if (attends && (kv->k_bits > 8 || kv->v_bits > 8))
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_CACHE},
                            "math int8 needs a packed KV cache, and this one has %d-bit keys and "
                            "%d-bit values",
                            kv->k_bits, kv->v_bits);
    return DQ_OK;
}

dq_status dq_backend_can_evict(const dq_backend *b, const dq_kv_policy *policy, dq_err *err)
{
    const unsigned needs = policy ? policy->needs : 0;
    if ((!(needs & DQ_NEEDS_PEAK) || b->ops->has_peaks) &&
        (!(needs & DQ_NEEDS_KEY_COSINE) || b->ops->kv_key_cosines) &&
        (!(needs & DQ_NEEDS_KEY_LEVERAGE) || b->ops->kv_key_leverages) &&
        (!(needs & DQ_NEEDS_GATES) || b->ops->kv_rows))
        return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_DEVICE},
                        "the policy %s is not on the %s backend", policy->name, b->ops->name);
}

dq_status dq_backend_can(const dq_backend *b, const struct dq_model *m, dq_math math,
                         const dq_kv_spec *kv, dq_err *err)
{
    const dq_need need = {m ? m->path : "", m ? m->map.head_dim : 0, math, kv};
    DQ_TRY(can_int8(b, m, math, kv, err));
    DQ_TRY(b->ops->can(&need, err));
    DQ_TRY(dq_backend_can_evict(b, kv->evict.policy, err));
    if (math.kv != kv->num)
        return dq_fail(err, DQ_BUG, "the cache is for %s, the pass for %s", dq_num_name[kv->num],
                       dq_num_name[math.kv]);
    return DQ_OK;
}
