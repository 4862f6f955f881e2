/* kv_cached: see kv_cached.h. The backend says what its whole cache takes; the floor is what a cache takes that has no
 * sequence in it, and the difference is what the contexts do. Reads are counted from the positions that each
 * layer and group still has, not measured.
 * SPDX-License-Identifier: MIT */
#include "eval/kv_cached.h"

#include "eval/score.h"

static void add_bytes(dq_kv_bytes *into, const dq_kv_bytes *from, int sign)
{
    into->codes += sign * from->codes;
    into->scales += sign * from->scales;
    into->unquantized += sign * from->unquantized;
    into->index += sign * from->index;
    into->tokens += sign * from->tokens;
    into->tokens_coded += sign * from->tokens_coded;
}

void dq_kv_cached_add(dq_kv_cached *into, const dq_kv_cached *from)
{
    if (from->evicted && (!into->evicted || from->gap_min < into->gap_min))
        into->gap_min = from->gap_min;
    into->contexts += from->contexts;
    into->missed += from->missed;
    into->tokens += from->tokens;
    into->tokens_cut += from->tokens_cut;
    into->slots += from->slots;
    into->baseline += from->baseline;
    into->dense16 += from->dense16;
    add_bytes(&into->bytes, &from->bytes, 1);
    into->reads += from->reads;
    into->reads_coded += from->reads_coded;
    into->evicted += from->evicted;
    into->raised += from->raised;
    into->beyond += from->beyond;
    into->flat += from->flat;
}

dq_status dq_kv_cached_floor(dq_kv_bytes *floor, dq_runner *r, int64_t n, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    int32_t *seq = dq_block_new((size_t)n, sizeof *seq, err);
    int64_t have = 0;
    if (!seq) return err->code;
    while (have < n && (seq[have] = b->ops->kv_seq_new(b, dq_runner_kv(r))) >= 0) have++;
    for (int64_t i = 0; i < have; i++) b->ops->kv_seq_free(b, dq_runner_kv(r), seq[i]);
    dq_block_free(seq);
    if (have < n) {
        dq_backend_sync(b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    *floor = b->ops->kv_bytes(b, dq_runner_kv(r));
    return err->code;
}

/* Something of the sequence is gone in some layer and group. */
static bool was_cut(dq_runner *r, int32_t seq, int32_t prefix)
{
    dq_backend *b = dq_runner_backend(r);
    const dq_model *m = dq_runner_model(r);
    for (int l = 0; l < m->n_layers; l++) {
        for (int g = 0; g < m->map.n_groups; g++) {
            if (b->ops->kv_count(b, dq_runner_kv(r), seq, l, g, NULL) < prefix) return true;
        }
    }
    return false;
}

void dq_kv_cached_measure(dq_kv_cached *cached, dq_runner *r, const dq_kv_spec *spec,
                          const dq_kv_bytes *floor, const int32_t *seq, const int32_t *prefix,
                          int64_t n)
{
    dq_backend *b = dq_runner_backend(r);
    const dq_head_order *map = &dq_runner_model(r)->map;
    int64_t layers = dq_runner_model(r)->n_layers;
    dq_kv_bytes now = b->ops->kv_bytes(b, dq_runner_kv(r));
    add_bytes(&now, floor, -1);
    dq_kv_cached add = {.contexts = n, .bytes = now};
    for (int64_t i = 0; i < n; i++) {
        add.tokens += prefix[i];
        if (was_cut(r, seq[i], prefix[i])) add.tokens_cut += prefix[i];
    }
    const int64_t one = 2 * (int64_t)map->n_kv * map->head_dim; /* K or V of a token in a layer */
    add.slots = add.tokens * layers * map->n_groups;
    add.baseline = add.tokens * layers * 2 * one;
    if (dq_kv_has_codes(spec))
        add.dense16 = now.tokens_coded * (one / map->n_groups) *
                      ((spec->k_bits == 16) + (spec->v_bits == 16));
    dq_kv_cached_add(cached, &add);
}

dq_status dq_kv_cached_reads(dq_kv_cached *cached, dq_runner *r, int32_t seq, const int32_t *pos,
                             int64_t n, dq_err *err)
{
    const dq_kv_spec *spec = dq_runner_kv_spec(r);
    const dq_model *m = dq_runner_model(r);
    dq_backend *b = dq_runner_backend(r);
    int64_t reads, coded, capacity = 0;
    int32_t *key = NULL;
    if (!dq_kv_has_codes(spec)) return DQ_OK;
    for (int i = 0; i < m->n_layers * m->map.n_groups; i++) {
        const int layer = i / m->map.n_groups, group = i % m->map.n_groups;
        const int64_t have = b->ops->kv_count(b, dq_runner_kv(r), seq, layer, group, NULL);
        if (have > capacity) {
            dq_block_free(key);
            key = dq_block_new((size_t)(capacity = have), sizeof *key, err);
            if (!key) break;
        }
        b->ops->kv_count(b, dq_runner_kv(r), seq, layer, group, key);
        for (int64_t k = 0; k < n; k++) {
            dq_kv_reads(spec, pos[k], key, have, &reads, &coded);
            cached->reads += reads;
            cached->reads_coded += coded;
        }
    }
    dq_block_free(key);
    return err->code;
}

void dq_kv_cached_report(dq_kv_cached *cached, const dq_evict_report *report, int64_t n)
{
    dq_kv_cached add = {.evicted = n,
                        .raised = report->raised,
                        .beyond = report->beyond,
                        .flat = report->flat,
                        .gap_min = report->gap_min};
    dq_kv_cached_add(cached, &add);
}
