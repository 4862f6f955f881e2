/* cpu_attention_tasks: how attention is cut for threads. A KV head group that is one task reads every page once for all
 * its heads; where groups would leave threads idle, single rows are cut into as few parts of its heads as keep threads busy,
 * blocks of rows, to which the codes are little beside the products, into output heads.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

/* Sums over rows are added in one order: their tasks own a sequence and KV head group whole. */
static bool whole_sequences(const dq_attend_args *args)
{
    return args->columns || args->measure || args->look;
}

int dq_cpu_group_of_out(const dq_head_order *map, int out)
{
    return map->group[map->head[out].v[0]];
}

/* Output heads after `out` that can share its second map: where heads are tasks of their own, these stay in one. */
static int share_end(const dq_head_order *map, int out)
{
    int end = out + 1;
    if (map->n_maps < 2) return end;
    while (end < map->n_out && map->head[end].q[1] == map->head[out].q[1] &&
           dq_cpu_group_of_out(map, end) == dq_cpu_group_of_out(map, out)) {
        end++;
    }
    return end;
}

/* The output heads of a group, in as many parts or as many as it has heads. */
static int64_t cut_group(dq_cpu_task *list, const dq_head_order *map, const dq_cpu_task *whole,
                         int parts)
{
    int64_t n = 0;
    int heads = 0, done = 0;
    for (int out = 0; out < map->n_out; out++)
        heads += dq_cpu_group_of_out(map, out) == whole->group;
    for (int out = 0, first = 0; out < map->n_out && done < heads; out++) {
        if (dq_cpu_group_of_out(map, out) != whole->group) continue;
        done++;
        if (done < heads && (int64_t)done * parts < (n + 1) * heads) continue;
        if (list) {
            list[n] = *whole;
            list[n].out_first = first;
            list[n].out_end = out + 1;
        }
        first = out + 1;
        n++;
    }
    return n;
}

/* Cuts one tile of rows, or all rows of a sequence, into tasks. */
static int64_t cut_rows(dq_cpu_task *list, const dq_head_order *map, const dq_kv_rows *rows,
                        int parts)
{
    int64_t n = 0;
    dq_cpu_task whole = {.seq = rows->seq, .first = rows->first, .end = rows->first + rows->n};
    for (int g = 0; parts > 0 && g < map->n_groups; g++) {
        whole.group = g;
        n += cut_group(list ? list + n : NULL, map, &whole, parts);
    }
    for (int out = 0; parts == 0 && out < map->n_out; n++) {
        const int next = share_end(map, out);
        if (list)
            list[n] = (dq_cpu_task){rows->seq, rows->first, whole.end,
                                    out,       next,        dq_cpu_group_of_out(map, out)};
        out = next;
    }
    return n;
}

int64_t dq_cpu_tasks(dq_cpu_task *list, const dq_attend_args *args, int parts)
{
    const dq_batch *batch = args->batch;
    int64_t n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        for (int64_t first = batch->cu_rows[i], end = batch->cu_rows[i + 1]; end > first;) {
            dq_kv_rows rows = {i, first, end - first, batch->pos + first};
            if (!whole_sequences(args)) dq_cpu_rows_last_tile(&rows, batch, i, first, end);
            end = rows.first;
            n += cut_rows(list ? list + n : NULL, args->attn->map, &rows, parts);
        }
    }
    return n;
}

int dq_cpu_task_parts(const dq_attend_args *args, int threads)
{
    const int64_t n = dq_cpu_tasks(NULL, args, 1);
    if (whole_sequences(args) || n >= 2 * (int64_t)threads) return 1;
    if (args->batch->n_rows > args->batch->n_seq) return 0;
    if (n % threads == 0) return 1;
    return (int)(((n < threads ? 1 : 2) * threads + n - 1) / n);
}
