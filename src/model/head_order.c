/* head_order: head orders of all pairings and the KV head groups that follow from them.
 * SPDX-License-Identifier: MIT */
#include "model/head_order.h"

#include <math.h>
#include <string.h>

enum { MAX_HEADS = 16384 }; /* indices are int16 */

/* Everything the formulas of a pairing need. */
typedef struct shape {
    int n_q, n_kv;
    int n_noise; /* grouped only */
    int repeat;  /* query heads per KV head */
} shape;

/* What a pairing adds to plain attention. `head` and `key` fill one entry each. */
typedef struct pairing_rule {
    const char *name;
    int n_maps, n_slabs;
    bool even_kv;
    dq_head (*head)(const shape *s, int o);
    int (*key)(const shape *s, int m);
} pairing_rule;

static dq_head head_of(int plus, int minus, int v0, int v1)
{
    dq_head h = {{(int16_t)plus, (int16_t)minus}, {(int16_t)v0, (int16_t)v1}};
    return h;
}

static int key_repeated(const shape *s, int m)
{
    return m / s->repeat;
}

static dq_head head_plain(const shape *s, int o)
{
    return head_of(o, -1, o / s->repeat, -1);
}

/* K and V heads come in adjacent pairs as well; a pair is repeated as a whole. */
static dq_head head_adjacent(const shape *s, int o)
{
    int w = o / s->repeat;
    return head_of(2 * o, 2 * o + 1, 2 * w, 2 * w + 1);
}

static int key_adjacent(const shape *s, int m)
{
    return 2 * (m / 2 / s->repeat) + m % 2;
}

static dq_head head_halves(const shape *s, int o)
{
    int partner = o + s->n_q / 2;
    return head_of(o, partner, o / s->repeat, partner / s->repeat);
}

/* Query heads stand in n_noise groups: the signal heads, then the noise head they share. */
static int noise_group_pair(const shape *s, int g)
{
    return g / (s->n_noise / (s->n_kv / 2));
}

static dq_head head_grouped(const shape *s, int o)
{
    int width = s->n_q / s->n_noise;
    int g = o / (width - 1);
    int w = noise_group_pair(s, g);
    return head_of(g * width + o % (width - 1), g * width + width - 1, 2 * w, 2 * w + 1);
}

static int key_grouped(const shape *s, int m)
{
    int width = s->n_q / s->n_noise;
    return 2 * noise_group_pair(s, m / width) + (m % width == width - 1);
}

static dq_head head_shared_kv(const shape *s, int o)
{
    return head_of(2 * o, 2 * o + 1, 2 * o / s->repeat, -1);
}

static const pairing_rule rules[] = {
    [DQ_PAIR_NONE] = {"plain", 1, 1, false, head_plain, key_repeated},
    [DQ_PAIR_ADJACENT] = {"adjacent", 2, 2, true, head_adjacent, key_adjacent},
    [DQ_PAIR_ADJACENT_NAIVE] = {"adjacent-naive", 2, 2, true, head_adjacent, key_repeated},
    [DQ_PAIR_HALVES] = {"halves", 2, 2, true, head_halves, key_repeated},
    [DQ_PAIR_GROUPED] = {"grouped", 2, 2, true, head_grouped, key_grouped},
    [DQ_PAIR_SHARED_KV] = {"shared-kv", 2, 1, false, head_shared_kv, key_repeated},
};

const char *dq_head_order_pairing_name(dq_pairing pairing)
{
    return rules[pairing].name;
}

bool dq_head_order_pairing_same_shape(dq_pairing a, dq_pairing b)
{
    if (a == b) return true;
    if (a == DQ_PAIR_GROUPED || b == DQ_PAIR_GROUPED) return false;
    return rules[a].n_maps == rules[b].n_maps && rules[a].n_slabs == rules[b].n_slabs;
}

static dq_status check_shape(dq_pairing pairing, const shape *s, int head_dim, dq_err *err)
{
    const pairing_rule *rule = &rules[pairing];
    int h = s->n_q, k = s->n_kv, n = s->n_noise;
    if (h < 1 || h > MAX_HEADS || k < 1 || k > MAX_HEADS || head_dim < 1)
        return dq_fail(err, DQ_MISMATCH,
                       "%d query heads, %d KV heads of %d elements (expected 1 to %d heads)", h, k,
                       head_dim, MAX_HEADS);
    if (rule->even_kv && k % 2)
        return dq_fail(err, DQ_MISMATCH,
                       "%d KV heads cannot be paired (expected an even number for pairing \"%s\")",
                       k, rule->name);
    if (pairing == DQ_PAIR_GROUPED) {
        if (n < 1 || h % n || h / n < 2 || n % (k / 2))
            return dq_fail(err, DQ_MISMATCH,
                           "%d query heads, %d noise heads and %d KV heads do not fit (noise heads "
                           "must divide the query heads at least twice and be a multiple of %d)",
                           h, n, k, k / 2);
        return DQ_OK;
    }
    if (n != 0)
        return dq_fail(err, DQ_MISMATCH, "%d noise heads, but pairing \"%s\" has none", n,
                       rule->name);
    if (h % k)
        return dq_fail(err, DQ_MISMATCH,
                       "%d query heads cannot share %d KV heads (expected a multiple)", h, k);
    if (rule->n_maps == 2 && h % 2)
        return dq_fail(err, DQ_MISMATCH,
                       "%d query heads cannot be paired (expected an even number)", h);
    if (pairing == DQ_PAIR_SHARED_KV && h / k % 2)
        return dq_fail(err, DQ_MISMATCH,
                       "%d query heads on each KV head cannot be paired (expected an even number)",
                       h / k);
    return DQ_OK;
}

/* group[] as a forest whose roots are the lowest member, so that joining never changes which head
 * names a component. */
static int16_t root_of(const int16_t *group, int16_t i)
{
    while (group[i] != i) i = group[i];
    return i;
}

static void join(int16_t *group, int16_t a, int16_t b)
{
    a = root_of(group, a);
    b = root_of(group, b);
    if (a < b)
        group[b] = a;
    else
        group[a] = b;
}

/* Returns the number of groups. */
static int build_groups(int16_t *group, const dq_head_order *map)
{
    int n = 0;
    for (int i = 0; i < map->n_kv; i++) group[i] = (int16_t)i;
    for (int o = 0; o < map->n_out; o++) {
        const dq_head *h = &map->head[o];
        int16_t first = map->key[h->q[0]];
        if (map->n_maps == 2) join(group, first, map->key[h->q[1]]);
        for (int r = 0; r < map->n_slabs; r++) join(group, first, h->v[r]);
    }
    /* Roots come before their members: number them on the way. */
    for (int i = 0; i < map->n_kv; i++) group[i] = group[i] == i ? (int16_t)n++ : group[group[i]];
    return n;
}

static int count_outputs(dq_pairing pairing, int n_q, int n_noise)
{
    if (pairing == DQ_PAIR_GROUPED) return n_q - n_noise;
    return n_q / rules[pairing].n_maps;
}

dq_status dq_head_order_build(dq_head_order *out, dq_pairing pairing, int n_q, int n_kv,
                              int head_dim, int n_noise, dq_arena *a, dq_err *err)
{
    const pairing_rule *rule = &rules[pairing];
    shape s = {.n_q = n_q, .n_kv = n_kv, .n_noise = n_noise};
    DQ_TRY(check_shape(pairing, &s, head_dim, err));
    s.repeat = n_q / n_kv;
    int n_out = count_outputs(pairing, n_q, n_noise);
    int16_t *key = dq_alloc(a, (size_t)n_q, sizeof *key, err);
    dq_head *head = dq_alloc(a, (size_t)n_out, sizeof *head, err);
    int16_t *group = dq_alloc(a, (size_t)n_kv, sizeof *group, err);
    if (!key || !head || !group) return err->code;
    for (int m = 0; m < n_q; m++) key[m] = (int16_t)rule->key(&s, m);
    for (int o = 0; o < n_out; o++) head[o] = rule->head(&s, o);
    *out = (dq_head_order){
        .pairing = pairing,
        .head_dim = head_dim,
        .n_q = n_q,
        .n_kv = n_kv,
        .n_out = n_out,
        .n_maps = rule->n_maps,
        .n_slabs = rule->n_slabs,
        .key = key,
        .head = head,
        .group = group,
        .scale = (float)(1.0 / sqrt((double)head_dim)),
    };
    out->n_groups = build_groups(group, out);
    return DQ_OK;
}

int64_t dq_head_order_key_channels(const dq_head_order *map, int group)
{
    int64_t channels = 0;
    for (int kv = 0; kv < map->n_kv; kv++) channels += map->group[kv] == group ? map->head_dim : 0;
    return channels;
}

int dq_head_order_key_map(const dq_head_order *map, int kv)
{
    bool reads[2] = {false, false};
    for (int o = 0; o < map->n_out; o++) {
        for (int i = 0; i < map->n_maps; i++)
            reads[i] = reads[i] || map->key[map->head[o].q[i]] == kv;
    }
    return reads[0] && reads[1] ? -1 : reads[1];
}
