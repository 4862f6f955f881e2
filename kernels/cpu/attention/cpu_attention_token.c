/* cpu_attention_token: attention of one row. Query heads that share a KV head are rows of one product with its keys, and
 * what output heads make of their maps rows of one product with its values: a page's codes are made ready and read
 * once for all of them. Maps are subtracted a page at a time, on their way into the product. Rows of a product do not depend on
 * each other, so every bit is that of a larger block.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include "kernels/cpu/isa/kv_lines.h"

#include <string.h>

enum { MAX_ROWS = 64 }; /* of all products of a page */

/* Scratch: rows of queries, or of y, in the order of their KV heads; what a page makes of them, or takes; D of output heads. */
int64_t dq_cpu_token_floats(const dq_attend_args *args, int64_t heads)
{
    const dq_head_order *map = args->attn->map;
    return heads * (map->n_slabs * (map->head_dim + DQ_PAGE_TOKENS) + DQ_PAGE_TOKENS);
}

/* Indices of head[n], those of equal heads one after the other. */
static void order_heads(int *order, const int *head, int n)
{
    int done = 0;
    for (int i = 0; i < n; i++) {
        bool before = false;
        for (int k = 0; k < i; k++) before = before || head[k] == head[i];
        for (int k = i; k < n && !before; k++) {
            if (head[k] == head[i]) order[done++] = k;
        }
    }
}

static int run_end(const int *order, const int *head, int i, int n)
{
    int end = i + 1;
    while (end < n && head[order[end]] == head[order[i]]) end++;
    return end;
}

/* Floats from one of s[order[first]] .. s[order[end - 1]] to the next; 0: not always as many. */
static int64_t rows_apart(float *const *s, const int *order, int first, int end)
{
    int64_t apart = DQ_PAGE_TOKENS;
    for (int i = first + 1; i < end; i++) {
        const int64_t next = s[order[i]] - s[order[i - 1]];
        if (i > first + 1 && next != apart) return 0;
        apart = next;
    }
    return apart;
}

/* The page's part of a row of scores, which is far when the page's turn comes: rows are longer than near caches. */
static void fetch_row(const float *s, int64_t page)
{
    for (int64_t i = 0; i < DQ_PAGE_TOKENS; i += 16) DQ_KV_FETCH(s + page * DQ_PAGE_TOKENS + i);
}

void dq_cpu_token_scores(const dq_cpu *cpu, float *const *s, const dq_attend_args *args,
                         const dq_kv_rows *row, const dq_kv_list *list, const int *head,
                         int n_heads, int64_t keys, const dq_cpu_scaled *scaled, float *scratch,
                         float *token)
{
    const dq_head_order *map = args->attn->map;
    const int64_t d = map->head_dim;
    float *x = token, *product = token + n_heads * d;
    int key[MAX_ROWS] = {0}, order[MAX_ROWS];
    dq_kv_span span[2];
    dq_kv_spans(span, args->kv, list, row);
    for (int i = 0; i < n_heads; i++) key[i] = map->key[head[i]];
    order_heads(order, key, n_heads);
    for (int i = 0; i < n_heads; i++)
        memcpy(x + i * d, args->q.p + row->first * args->q.cols + head[order[i]] * d,
               (size_t)d * sizeof *x);
    const dq_simd_int8_rows q =
        dq_cpu_round_rows(cpu, args, x, d, n_heads, dq_cpu_rounded_at(args, scratch));
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int64_t slots = dq_kv_slots(keys, p);
        for (int i = 0, end; i < n_heads; i = end) {
            end = run_end(order, key, i, n_heads);
            const dq_cpu_page page = dq_cpu_open_keys(cpu, args, list, p, key[order[i]],
                                                      span->coded_end, slots, end - i, scratch);
            const int64_t apart = rows_apart(s, order, i, end);
            float *to = apart ? s[order[i]] + p * DQ_PAGE_TOKENS : product;
            const int64_t ld = apart ? apart : DQ_PAGE_TOKENS;
            dq_cpu_rows_times_keys(cpu, to, ld, args, x + i * d, d, end - i, &q, i, &page, scratch);
            for (int k = i; k < end; k++, to += ld) {
                if (slots < keys - p * DQ_PAGE_TOKENS) fetch_row(s[order[k]], p + 1);
                dq_cpu_scale_page(cpu->simd, to, 0, 1, p, scaled->scale, scaled->visible,
                                  scaled->top[order[k]]);
                if (!apart)
                    memcpy(s[order[k]] + p * DQ_PAGE_TOKENS, to, (size_t)slots * sizeof *product);
            }
        }
    }
}

/* D of n slots from `first` on; those of the page after it, where there is one, are asked for. */
static void map_page(const dq_simd *simd, float *d, const dq_cpu_token_map *m, int64_t first,
                     int64_t n, bool more)
{
    for (int i = 0; more && i < 2 && m->p[i]; i++) fetch_row(m->p[i] + first, 1);
    if (m->p[1])
        simd->diff(d, m->p[0] + first, m->p[1] + first, n, m->by[0], m->by[1]);
    else
        memcpy(d, m->p[0] + first, (size_t)n * sizeof *d);
}

/* Rows of a product, those of output heads order[n] / slabs in d[][DQ_PAGE_TOKENS]: where they lie, or copied to `own` where
 * they do not follow each other. */
static const float *rows_of(float *own, const float *d, const int *order, int n, int slabs)
{
    const int first = order[0] / slabs;
    bool follow = true;
    for (int k = 1; k < n; k++) follow = follow && order[k] / slabs == first + k;
    if (follow) return d + first * DQ_PAGE_TOKENS;
    for (int k = 0; k < n; k++)
        memcpy(own + k * DQ_PAGE_TOKENS, d + order[k] / slabs * DQ_PAGE_TOKENS,
               DQ_PAGE_TOKENS * sizeof *own);
    return own;
}

void dq_cpu_token_values(const dq_cpu *cpu, float *y, const dq_attend_args *args,
                         const dq_kv_rows *row, const dq_kv_list *list, const dq_cpu_token_map *m,
                         int n, int64_t keys, float *scratch, float *token)
{
    const dq_head_order *map = args->attn->map;
    const int64_t d = map->head_dim;
    const int slabs = map->n_slabs, n_rows = n * slabs;
    float *sum = token, *own = token + n_rows * d, *maps = own + n_rows * DQ_PAGE_TOKENS;
    int head[MAX_ROWS] = {0}, order[MAX_ROWS];
    dq_kv_span span[2];
    dq_kv_spans(span, args->kv, list, row);
    for (int e = 0; e < n_rows; e++) head[e] = map->head[m[e / slabs].out].v[e % slabs];
    order_heads(order, head, n_rows);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int64_t slots = dq_kv_slots(keys, p);
        for (int i = 0; i < n; i++)
            map_page(cpu->simd, maps + i * DQ_PAGE_TOKENS, &m[i], p * DQ_PAGE_TOKENS, slots,
                     slots < keys - p * DQ_PAGE_TOKENS);
        for (int i = 0, end; i < n_rows; i = end) {
            end = run_end(order, head, i, n_rows);
            const dq_cpu_page page = dq_cpu_open_values(cpu, args, list, p, head[order[i]],
                                                        span->coded_end, slots, end - i, scratch);
            dq_cpu_times_values(cpu, sum + i * d, d, args,
                                rows_of(own, maps, order + i, end - i, slabs), DQ_PAGE_TOKENS,
                                end - i, &page, p > 0, scratch);
        }
    }
    for (int i = 0; i < n_rows; i++) {
        const int e = order[i];
        memcpy(y + ((int64_t)m[e / slabs].out * slabs + e % slabs) * d, sum + i * d,
               (size_t)d * sizeof *y);
    }
}
