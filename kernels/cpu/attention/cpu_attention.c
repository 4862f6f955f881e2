/* cpu_attention: attention over the paged cache. How a page's codes are multiplied stands in
 * cpu_attention_int8.c; everything else is f32.
 *
 * A task walks blocks of rows of one sequence. For a block it holds S of one or two query heads for
 * all keys the block sees (memory linear in the context), turns rows into exp(S - max), subtracts
 * the maps, and multiplies once with V. Every value of a row is made by a chain of operations whose
 * order depends on the row's own keys only; so rows do not depend on blocks, calls or threads.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"
#include "base/os.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    /* Scores of a block: 64 MiB at most where 16 rows take no more. Keys and values of long contexts are read from memory for
     * every block, which takes longer than their products do where few rows share them. */
    BLOCK_FLOATS = 1 << 24,
    LEAST_ROWS = 16,
    /* Output heads are taken together as long as scores of many rows fit a second-level cache, 1 MiB; those of few rows are
     * little beside the pages, which shall be read once for all heads. */
    NEAR_FLOATS = 1 << 18,
    MAX_SLOTS = 32
};

int64_t dq_cpu_block_rows(int64_t keys, int64_t buffers)
{
    int64_t rows = DQ_PAGE_TOKENS;
    while (rows > LEAST_ROWS && rows * buffers * keys > BLOCK_FLOATS) rows /= 2;
    return rows;
}

int64_t dq_cpu_row_floats(int64_t keys)
{
    /* The 16 keep rows of a block from falling into the same cache sets. */
    return (keys + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS + 16;
}

void dq_cpu_rows_last_tile(dq_kv_rows *rows, const dq_batch *batch, int seq, int64_t first,
                           int64_t end)
{
    const int32_t tile = batch->pos[end - 1] / DQ_PAGE_TOKENS;
    rows->seq = seq;
    rows->first = end - 1;
    while (rows->first > first && batch->pos[rows->first - 1] / DQ_PAGE_TOKENS == tile)
        rows->first--;
    rows->n = end - rows->first;
    rows->pos = batch->pos + rows->first;
}

/* Chains of what reads the same KV head, so that a page is read once for all of them: next[i] is the
 * following one with head[i], n after the last; again[i]: an earlier one has it too. */
static void chain_heads(int *next, bool *again, const int *head, int n)
{
    for (int i = 0; i < n; i++) again[i] = false;
    for (int i = 0; i < n; i++) {
        next[i] = i + 1;
        while (next[i] < n && head[next[i]] != head[i]) next[i]++;
        if (next[i] < n) again[next[i]] = true;
    }
}

void dq_cpu_scores(const dq_cpu *cpu, float *const *s, int64_t ld, const dq_attend_args *args,
                   const dq_kv_rows *rows, const dq_kv_list *list, const int *head, int n_heads,
                   int64_t keys, const dq_cpu_scaled *scaled, float *scratch)
{
    dq_kv_span span[2], at[2];
    const int n_spans = dq_kv_spans(span, args->kv, list, rows);
    int key[MAX_SLOTS], next[MAX_SLOTS];
    bool again[MAX_SLOTS];
    dq_simd_int8_rows q[MAX_SLOTS];
    for (int i = 0; i < n_heads; i++) key[i] = args->attn->map->key[head[i]];
    chain_heads(next, again, key, n_heads);
    dq_cpu_round_queries(q, cpu, args, rows, head, n_heads, scratch);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int n_at = dq_kv_page_spans(at, span, n_spans, p);
        for (int e = 0; e < n_heads * n_at; e++) {
            const dq_kv_span *a = &at[e % n_at];
            const int i = e / n_at;
            if (again[i]) continue;
            const dq_cpu_page page =
                dq_cpu_open_keys(cpu, args, list, p, key[i], a->coded_end, dq_kv_slots(keys, p),
                                 DQ_PAGE_TOKENS, scratch);
            for (int h = i; h < n_heads; h = next[h]) {
                float *to = s[h] + a->first * ld + p * DQ_PAGE_TOKENS;
                dq_cpu_times_keys(cpu, to, ld, args, rows, a, head[h], &q[h], &page, scratch);
                if (scaled)
                    dq_cpu_scale_page(cpu->simd, to, ld, a->n, p, scaled->scale,
                                      scaled->visible + a->first, scaled->top[h] + a->first);
            }
        }
    }
}

/* Scratch of a thread. A slot holds one query head's rows by keys: S, then exp(S - max). */
typedef struct scratch {
    float *slot[MAX_SLOTS];
    int n_slots;
    double sum[MAX_SLOTS][DQ_PAGE_TOKENS];
    float by[MAX_SLOTS][DQ_PAGE_TOKENS][2];
    int64_t visible[DQ_PAGE_TOKENS];
    int32_t *edge; /* tile granularity: end of each run of keys in one tile of positions */
    int64_t n_edges;
    float *read;    /* pages on their way into products */
    float *token;   /* of cpu_attention_token.c */
    int kept, held; /* slot that still holds second map `held` from the bundle before; -1: none */
} scratch;

/* Output heads that are computed together, so that every page is read once for all of them. */
typedef struct bundle {
    int n_outs, out[MAX_SLOTS];
    int first[MAX_SLOTS], second[MAX_SLOTS];       /* slots of each output head's maps */
    int n_fresh, slot[MAX_SLOTS], head[MAX_SLOTS]; /* query heads to compute, and where */
} bundle;

typedef struct work {
    const dq_cpu *cpu;
    const dq_simd *simd;
    const dq_attend_args *args;
    dq_mat dst;
    dq_head_measure *measure; /* [n_seq * n_out], NULL: none */
    dq_head_profile *look;    /* the same */
    dq_span_rows spans;
    dq_span_mass *mass; /* [spans.n][n_out][n_classes], NULL: none */
} work;

static bool observes(const work *w)
{
    return w->args->columns || w->measure || w->look || w->mass;
}

/* Keys of one tile of positions are neighbours in the list, wherever kept tokens ended up. */
static void find_edges(scratch *s, const dq_kv_list *list, int64_t keys)
{
    s->n_edges = 0;
    for (int64_t i = 0; i < keys; i++) {
        if (i + 1 == keys ||
            dq_kv_pos(list, i + 1) / DQ_PAGE_TOKENS != dq_kv_pos(list, i) / DQ_PAGE_TOKENS) {
            s->edge[s->n_edges++] = (int32_t)(i + 1);
        }
    }
}

static void round_run(const dq_simd *simd, float *x, int64_t n, float absmax, float qmax)
{
    if (absmax == 0.0f) {
        memset(x, 0, (size_t)n * sizeof *x);
    } else {
        simd->round_to_grid(x, n, qmax / absmax, qmax, absmax / qmax);
    }
}

/* A block holds all rows of the call whose positions share a tile: its maxima are the tile's. */
static void round_tiles(const work *w, scratch *s, float *x, int64_t ld, int64_t rows, float qmax)
{
    int64_t begin = 0;
    for (int64_t e = 0; e < s->n_edges; begin = s->edge[e++]) {
        float max[DQ_PAGE_TOKENS] = {0};
        for (int64_t r = 0; r < rows; r++) {
            int64_t end = s->edge[e] < s->visible[r] ? s->edge[e] : s->visible[r];
            if (begin < end) max[r] = w->simd->absmax(x + r * ld + begin, end - begin);
        }
        float absmax = w->simd->absmax(max, rows);
        for (int64_t r = 0; r < rows; r++) {
            int64_t end = s->edge[e] < s->visible[r] ? s->edge[e] : s->visible[r];
            if (begin < end) round_run(w->simd, x + r * ld + begin, end - begin, absmax, qmax);
        }
    }
}

/* Rounding keeps order: the largest rounded logit is the largest one rounded. */
static float round_row(const work *w, float *x, int64_t n, float top, const dq_kv_rows *rows,
                       int head, float qmax)
{
    const dq_attend_args *args = w->args;
    const float absmax = args->logit.granularity == DQ_GRANULARITY_ROW
                             ? w->simd->absmax(x, n)
                             : args->absmax[rows->seq * args->attn->map->n_q + head];
    round_run(w->simd, x, n, absmax, qmax);
    round_run(w->simd, &top, 1, absmax, qmax);
    return top;
}

/* S in a slot, the rows' largest known, becomes exp(S - max), zero where the row sees nothing, with sums in s->sum. A row is done with
 * while it is in a near cache; a tile needs all its rows. */
static void softmax_rows(const work *w, scratch *s, int slot, int64_t ld, const dq_kv_rows *rows,
                         int head, int64_t keys, const float *largest)
{
    const dq_logit_spec logit = w->args->logit;
    const bool rounds = dq_logit_rounds(logit) && (!w->args->rounds || w->args->rounds[head]);
    const bool tiles = rounds && dq_logit_by_tile(logit);
    const float qmax = (float)((1 << (logit.bits - 1)) - 1);
    float *x = s->slot[slot];
    if (tiles) round_tiles(w, s, x, ld, rows->n, qmax);
    for (int64_t r = 0; r < rows->n; r++) {
        float *row = x + r * ld;
        const int64_t n = s->visible[r];
        float top = tiles ? w->simd->max(row, n) : largest[r];
        if (rounds && !tiles) top = round_row(w, row, n, top, rows, head, qmax);
        s->sum[slot][r] = w->simd->exp_sum(row, row, n, top);
        memset(row + n, 0, (size_t)(keys - n) * sizeof *row);
    }
}

/* What others want to know of the maps before they are subtracted. */
static void observe_maps(const work *w, const scratch *s, int64_t ld, const dq_kv_rows *rows,
                         const dq_kv_list *list, const bundle *u, int i)
{
    dq_cpu_column_job job = {.args = w->args,
                             .list = list,
                             .rows = *rows,
                             .out = u->out[i],
                             .p = {s->slot[u->first[i]], NULL},
                             .sum = {s->sum[u->first[i]], NULL},
                             .ld = ld,
                             .visible = s->visible};
    if (w->args->attn->map->n_maps == 2) {
        job.p[1] = s->slot[u->second[i]];
        job.sum[1] = s->sum[u->second[i]];
    }
    if (w->args->columns) dq_cpu_count_columns(&job);
    const int64_t head = (int64_t)rows->seq * w->args->attn->map->n_out + job.out;
    if (w->measure) dq_cpu_measure(w->simd, &job, &w->measure[head]);
    if (w->look) dq_cpu_look(&job, &w->look[head]);
    if (w->mass) dq_cpu_count_spans(&job, w->mass, &w->spans);
}

/* What the two maps of an output head are multiplied with before they are subtracted. */
static void find_factors(const work *w, scratch *s, const dq_kv_rows *rows, const bundle *u, int i)
{
    const int first = u->first[i], second = u->second[i];
    if (w->args->attn->map->n_maps == 1) return;
    for (int64_t r = 0; r < rows->n; r++) {
        s->by[i][r][0] = (float)(1.0 / s->sum[first][r]);
        s->by[i][r][1] =
            (float)((double)dq_cpu_lambda(w->args, rows->first + r, u->out[i]) / s->sum[second][r]);
    }
}

/* One page of the first map's slot becomes P1 - lambda P2, just before it is needed; a single map stays
 * exp(S - max): y is divided instead. */
static void subtract_page(const work *w, const scratch *s, int64_t ld, const dq_kv_rows *rows,
                          const bundle *u, int i, int64_t p)
{
    if (w->args->attn->map->n_maps == 1) return;
    for (int64_t r = 0; r < rows->n; r++) {
        float *p1 = s->slot[u->first[i]] + r * ld + p * DQ_PAGE_TOKENS;
        const float *p2 = s->slot[u->second[i]] + r * ld + p * DQ_PAGE_TOKENS;
        w->simd->diff(p1, p1, p2, dq_kv_slots(s->visible[r], p), s->by[i][r][0], s->by[i][r][1]);
    }
}

/* y += D V of one page, for slab e of a bundle (slabs of its output heads one after the other). */
static void times_page(const work *w, const scratch *s, int64_t ld, const dq_kv_rows *rows,
                       const dq_kv_span *a, const bundle *u, int e, const dq_cpu_page *page,
                       int64_t p)
{
    const dq_head_order *map = w->args->attn->map;
    const int i = e / map->n_slabs;
    const int64_t column = ((int64_t)u->out[i] * map->n_slabs + e % map->n_slabs) * map->head_dim;
    float *y = w->dst.p + (rows->first + a->first) * w->dst.cols + column;
    const float *d = s->slot[u->first[i]] + a->first * ld + p * DQ_PAGE_TOKENS;
    dq_cpu_times_values(w->cpu, y, w->dst.cols, w->args, d, ld, a->n, page, p > 0, s->read);
}

static void times_values(const work *w, const scratch *s, int64_t ld, const dq_kv_rows *rows,
                         const dq_kv_list *list, const bundle *u, int64_t keys)
{
    const dq_head_order *map = w->args->attn->map;
    const int n_slabs = u->n_outs * map->n_slabs;
    dq_kv_span span[2], at[2];
    const int n_spans = dq_kv_spans(span, w->args->kv, list, rows);
    int head[2 * MAX_SLOTS], next[2 * MAX_SLOTS];
    bool again[2 * MAX_SLOTS];
    for (int e = 0; e < n_slabs; e++)
        head[e] = map->head[u->out[e / map->n_slabs]].v[e % map->n_slabs];
    chain_heads(next, again, head, n_slabs);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys; p++) {
        const int n_at = dq_kv_page_spans(at, span, n_spans, p);
        for (int i = 0; i < u->n_outs; i++) subtract_page(w, s, ld, rows, u, i, p);
        for (int i = 0; i < n_slabs * n_at; i++) {
            const dq_kv_span *a = &at[i % n_at];
            const int first = i / n_at;
            if (again[first]) continue;
            const dq_cpu_page page =
                dq_cpu_open_values(w->cpu, w->args, list, p, head[first], a->coded_end,
                                   dq_kv_slots(keys, p), DQ_PAGE_TOKENS, s->read);
            for (int e = first; e < n_slabs; e = next[e])
                times_page(w, s, ld, rows, a, u, e, &page, p);
        }
    }
}

/* The division that a single map still needs, the values' rotation undone, norm and scale. */
static void finish(const work *w, const scratch *s, const dq_kv_rows *rows, int out, int first)
{
    const dq_attn *attn = w->args->attn;
    const int64_t width = (int64_t)attn->map->n_slabs * attn->map->head_dim;
    for (int64_t r = 0; r < rows->n; r++) {
        float *y = w->dst.p + (rows->first + r) * w->dst.cols + out * width;
        if (s->visible[r] == 0) {
            memset(y, 0, (size_t)width * sizeof *y);
            continue;
        }
        if (attn->map->n_maps == 1) w->simd->scale(y, width, (float)(1.0 / s->sum[first][r]));
        for (int c = 0; w->args->kv->spec.rotate_v && c < width; c += attn->map->head_dim)
            dq_cpu_hadamard_run(y + c, attn->map->head_dim);
        if (attn->head_norm) {
            double mean = w->simd->sum_squares(y, width) / (double)width;
            float a = (float)(1.0 / sqrt(mean + (double)attn->norm_eps));
            w->simd->scale_gain(y, y, width, a, attn->gain);
        }
        if (attn->out_scale != 1.0f) w->simd->scale(y, width, attn->out_scale);
    }
}

static int fresh_slot(scratch *s, bundle *u, int *next, int head)
{
    if (*next == s->kept) ++*next;
    u->slot[u->n_fresh] = *next;
    u->head[u->n_fresh++] = head;
    return (*next)++;
}

/* Slot in which the bundle has, or will have, the second map of output head `out`; -1: none yet. */
static int second_slot(const dq_head_order *map, const scratch *s, const bundle *u, int out)
{
    if (map->head[out].q[1] == s->held) return s->kept;
    for (int i = 0; i < u->n_outs; i++) {
        if (map->head[u->out[i]].q[1] == map->head[out].q[1]) return u->second[i];
    }
    return -1;
}

/* Takes as many output heads, from *out on, as there are slots for; moves *out after them. */
static void next_bundle(bundle *u, scratch *s, const dq_head_order *map, const dq_cpu_task *t,
                        int *out)
{
    int next = 0;
    u->n_outs = u->n_fresh = 0;
    for (; *out < t->out_end; ++*out) {
        if (dq_cpu_group_of_out(map, *out) != t->group) continue;
        if (u->n_outs == 0 && map->head[*out].q[1] != s->held) s->kept = s->held = -1;
        int second = map->n_maps == 2 ? second_slot(map, s, u, *out) : 0;
        int need = u->n_fresh + (s->kept >= 0) + 1 + (second < 0);
        if (need > s->n_slots) return;
        u->first[u->n_outs] = fresh_slot(s, u, &next, map->head[*out].q[0]);
        if (second < 0) second = fresh_slot(s, u, &next, map->head[*out].q[1]);
        u->second[u->n_outs] = second;
        u->out[u->n_outs++] = *out;
    }
}

static void token_values(const work *w, const scratch *s, const dq_kv_rows *row,
                         const dq_kv_list *list, const bundle *u, int64_t keys)
{
    dq_cpu_token_map map[MAX_SLOTS];
    for (int i = 0; i < u->n_outs; i++) {
        const int first = u->first[i], second = u->second[i];
        map[i] = (dq_cpu_token_map){.out = u->out[i], .p = {s->slot[first], NULL}};
        if (w->args->attn->map->n_maps == 1) continue;
        map[i].p[1] = s->slot[second];
        map[i].by[0] = s->by[i][0][0];
        map[i].by[1] = s->by[i][0][1];
    }
    dq_cpu_token_values(w->cpu, w->dst.p + row->first * w->dst.cols, w->args, row, list, map,
                        u->n_outs, keys, s->read, s->token);
}

static void attend_bundle(const work *w, scratch *s, int64_t ld, const dq_kv_rows *rows,
                          const dq_kv_list *list, const bundle *u, int64_t keys)
{
    float *into[MAX_SLOTS], top[MAX_SLOTS][DQ_PAGE_TOKENS] = {{0}};
    const dq_cpu_scaled scaled = {w->args->attn->map->scale, s->visible, top};
    const bool token = rows->n == 1 && keys > 0;
    for (int i = 0; i < u->n_fresh; i++) into[i] = s->slot[u->slot[i]];
    if (token)
        dq_cpu_token_scores(w->cpu, into, w->args, rows, list, u->head, u->n_fresh, keys, &scaled,
                            s->read, s->token);
    else
        dq_cpu_scores(w->cpu, into, ld, w->args, rows, list, u->head, u->n_fresh, keys, &scaled,
                      s->read);
    for (int i = 0; i < u->n_fresh; i++) {
        softmax_rows(w, s, u->slot[i], ld, rows, u->head[i], keys, top[i]);
    }
    /* all of them first: subtracting overwrites maps */
    for (int i = 0; observes(w) && i < u->n_outs; i++) observe_maps(w, s, ld, rows, list, u, i);
    if (w->dst.p) {
        for (int i = 0; i < u->n_outs; i++) find_factors(w, s, rows, u, i);
        if (token)
            token_values(w, s, rows, list, u, keys);
        else
            times_values(w, s, ld, rows, list, u, keys);
        for (int i = 0; i < u->n_outs; i++) finish(w, s, rows, u->out[i], u->first[i]);
    }
    if (w->args->attn->map->n_maps == 2) {
        s->kept = u->second[u->n_outs - 1];
        s->held = w->args->attn->map->head[u->out[u->n_outs - 1]].q[1];
    }
}

static void attend_block(const work *w, scratch *s, int64_t ld, const dq_kv_rows *rows,
                         const dq_kv_list *list, const dq_cpu_task *t)
{
    const dq_head_order *map = w->args->attn->map;
    for (int64_t r = 0; r < rows->n; r++) s->visible[r] = dq_kv_visible(list, rows->pos[r]);
    const int64_t keys = s->visible[rows->n - 1];
    if (dq_logit_by_tile(w->args->logit)) find_edges(s, list, keys);
    s->held = s->kept = -1;
    for (int out = t->out_first; out < t->out_end && !dq_os_stop_signal();) {
        bundle u;
        next_bundle(&u, s, map, t, &out);
        if (u.n_outs) attend_bundle(w, s, ld, rows, list, &u, keys);
    }
}

/* Rows per block and the scratch that goes with them, for the longest list of the call. */
typedef struct plan {
    int64_t keys, block_rows;
    int slots;
    size_t bytes;
} plan;

static int64_t max_keys(const dq_attend_args *args)
{
    int64_t max = 0;
    for (int i = 0; i < args->batch->n_seq; i++) {
        for (int g = 0; g < args->attn->map->n_groups; g++) {
            int64_t n = dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, g)->count;
            max = n > max ? n : max;
        }
    }
    return max;
}

/* Maxima are the same in any order. */
static bool sums_columns(const dq_columns *c)
{
    return c && (c->mass[0] || c->mass[1] || c->lambda_mass || c->diff);
}

static plan plan_blocks(const dq_attend_args *args)
{
    const dq_head_order *map = args->attn->map;
    plan p = {.keys = max_keys(args), .block_rows = DQ_PAGE_TOKENS, .slots = map->n_maps};
    const bool tiles = dq_logit_by_tile(args->logit);
    const int useful = map->n_q < MAX_SLOTS ? map->n_q : MAX_SLOTS;
    if (!tiles) p.block_rows = dq_cpu_block_rows(p.keys, map->n_maps);
    /* a block decides in which order sums are added; so it may not depend on the other sequences */
    if (!tiles && sums_columns(args->columns)) p.block_rows = LEAST_ROWS;
    if (args->batch->n_rows < p.block_rows) p.block_rows = args->batch->n_rows;
    const int64_t floats = p.block_rows * dq_cpu_row_floats(p.keys);
    const int64_t max = p.block_rows < LEAST_ROWS ? BLOCK_FLOATS : NEAR_FLOATS;
    while (p.slots < useful && (p.slots + 1) * floats <= max) p.slots++;
    p.bytes = (size_t)(p.slots * floats + dq_cpu_score_floats(args, p.block_rows, p.slots)) *
              sizeof(float);
    p.bytes += (size_t)dq_cpu_token_floats(args, p.slots) * sizeof(float);
    p.bytes += (size_t)(p.keys + 16) * sizeof(int32_t);
    return p;
}

static void run_task(const work *w, const dq_cpu_task *t, const plan *p, void *block)
{
    const dq_attend_args *args = w->args;
    const dq_kv_list *list =
        dq_kv_list_of(args->kv, args->batch->seq[t->seq], args->layer, t->group);
    const int64_t ld = dq_cpu_row_floats(p->keys), floats = p->block_rows * ld;
    scratch s;
    s.n_edges = 0;
    s.n_slots = p->slots;
    for (int i = 0; i < p->slots; i++) s.slot[i] = (float *)block + i * floats;
    s.read = (float *)block + p->slots * floats;
    s.token = s.read + dq_cpu_score_floats(args, p->block_rows, p->slots);
    s.edge = (int32_t *)(void *)(s.token + dq_cpu_token_floats(args, p->slots));
    for (int64_t end = t->end; end > t->first;) {
        dq_kv_rows tile;
        dq_cpu_rows_last_tile(&tile, args->batch, t->seq, t->first, end);
        end = tile.first;
        for (int64_t done = 0; done < tile.n; done += p->block_rows) {
            dq_kv_rows rows = {.seq = t->seq, .first = tile.first + done, .pos = tile.pos + done};
            rows.n = tile.n - done < p->block_rows ? tile.n - done : p->block_rows;
            attend_block(w, &s, ld, &rows, list, t);
        }
    }
}

/* Memory for what tasks find, till all are done: a measure for each sequence, masses for each row of spans. */
static bool begin_observers(dq_backend *b, work *w)
{
    const dq_attend_args *args = w->args;
    const size_t n = (size_t)(args->batch->n_seq * args->attn->map->n_out);
    if (args->measure) w->measure = dq_block_new(n, sizeof *w->measure, &b->err);
    if (args->look) w->look = dq_block_new(n, sizeof *w->look, &b->err);
    if (b->err.code != DQ_OK) return false;
    if (args->spans) {
        if (!dq_span_rows_new(b, &w->spans, args)) return false;
        if (w->spans.n == 0) return true;
        w->mass = dq_block_new((size_t)w->spans.n, w->spans.row_bytes, &b->err);
    }
    return b->err.code == DQ_OK;
}

static void end_observers(dq_backend *b, work *w)
{
    const dq_attend_args *args = w->args;
    const int n_seq = args->batch->n_seq, n_out = args->attn->map->n_out;
    const bool done = b->err.code == DQ_OK;
    for (int i = 0; done && w->measure && i < n_seq * n_out; i++)
        dq_head_measure_merge(&args->measure[i % n_out], &w->measure[i]);
    for (int i = 0; done && w->look && i < n_seq * n_out; i++)
        dq_head_profile_merge(&args->look->head[i % n_out], &w->look[i]);
    if (done && w->mass)
        dq_span_rows_add(args->spans->sums, w->spans.at, n_seq, n_out, args->spans->n_classes,
                         w->mass);
    dq_block_free(w->measure);
    dq_block_free(w->look);
    dq_block_free(w->mass);
    dq_span_rows_free(&w->spans);
}

void dq_cpu_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    if (b->err.code != DQ_OK) return;
    work w = {.cpu = dq_cpu_of(b), .simd = dq_cpu_of(b)->simd, .args = args, .dst = dst};
    const plan p = plan_blocks(args);
    const int parts = dq_cpu_task_parts(args, b->threads);
    const int64_t n = dq_cpu_tasks(NULL, args, parts);
    dq_cpu_task *tasks = dq_cpu_shared(b, (size_t)(n + 1) * sizeof *tasks);
    if (!tasks || !dq_cpu_reserve(b, p.bytes)) return;
    if (begin_observers(b, &w)) {
        dq_cpu_tasks(tasks, args, parts);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
        for (int64_t i = 0; i < n; i++) {
            run_task(&w, &tasks[i], &p, dq_cpu_of(b)->block[omp_get_thread_num()]);
        }
        dq_os_check_stop(&b->err);
    }
    end_observers(b, &w);
}
