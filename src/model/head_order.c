/* Head orders of all pairings and the KV head groups that follow from them.
 * SPDX-License-Identifier: MIT */
#include "model/inside.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { MAX_HEADS = 16384 }; /* indices are int16 */

typedef struct shape {
    int n_q, n_kv;
    int n_noise; /* grouped only */
    int repeat;  /* query heads per KV head */
} shape;

/* What a pairing adds to plain attention; `head` and `key` fill one entry each. */
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

/* K and V heads are paired too, and a pair is repeated as a whole. */
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

/* Each of n_noise groups has its signal heads, then their shared noise head. */
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

/* A forest with the lowest members as roots, so that joining never changes a component's name. */
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
    int n = 0;
    for (int i = 0; i < out->n_kv; i++) group[i] = (int16_t)i;
    for (int o = 0; o < out->n_out; o++) {
        const dq_head *h = &out->head[o];
        int16_t first = out->key[h->q[0]];
        if (out->n_maps == 2) join(group, first, out->key[h->q[1]]);
        for (int r = 0; r < out->n_slabs; r++) join(group, first, h->v[r]);
    }
    /* Roots come before their members and are numbered in passing. */
    for (int i = 0; i < out->n_kv; i++) group[i] = group[i] == i ? (int16_t)n++ : group[group[i]];
    out->n_groups = n;
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

static const double default_theta = 10000.0;

/* `rope_scaling` wins over `rope_parameters`, as in transformers. */
dq_status dq_model_config_rope(const json_t **out, const char **where, const json_t *config,
                               dq_err *err)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters", "rope_scaling_dict"};
    *out = NULL;
    *where = "config";
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !*out; i++) {
        const char *key = keys[i];
        const json_t *v = json_object_get(config, key);
        *out = NULL;
        if (v && !json_is_null(v)) {
            if (!json_is_object(v))
                return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected an object", key);
            *out = json_object_size(v) ? v : NULL;
        }
        if (*out) *where = keys[i];
    }
    return DQ_OK;
}

static dq_status positive(double *out, const json_t *object, const char *key,
                          const double *fallback, dq_err *err)
{
    DQ_TRY(dq_json_float(out, object, key, fallback, err));
    if (!(*out > 0))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected a positive number, found %g", key,
                       *out);
    return DQ_OK;
}

static dq_status refuse_partial(const json_t *object, dq_err *err)
{
    const double whole = 1.0;
    double factor = whole;
    DQ_TRY(dq_json_float(&factor, object, "partial_rotary_factor", &whole, err));
    if (factor < 1.0 || factor > 1.0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"partial_rotary_factor\": %g is not supported (expected 1)", factor);
    return DQ_OK;
}

/* Positions before scaling; the top level wins over the factors' object. */
static dq_status read_original(double *out, const json_t *parameters, const json_t *config,
                               int max_positions, dq_err *err)
{
    static const char key[] = "original_max_position_embeddings";
    *out = max_positions;
    DQ_TRY(positive(out, parameters, key, out, err));
    return positive(out, config, key, out, err);
}

/* A smooth blend between kept and stretched wavelengths. */
static dq_status scale_llama3(double *freq, int n, const json_t *parameters, const json_t *config,
                              int max_positions, dq_err *err)
{
    static const double two_pi = 6.283185307179586476925;
    double factor = 1, low = 1, high = 1, original = 1;
    DQ_TRY(positive(&factor, parameters, "factor", NULL, err));
    DQ_TRY(positive(&low, parameters, "low_freq_factor", NULL, err));
    DQ_TRY(positive(&high, parameters, "high_freq_factor", NULL, err));
    DQ_TRY(read_original(&original, parameters, config, max_positions, err));
    if (!(high > low))
        return dq_fail(
            err, DQ_DAMAGED,
            "key \"high_freq_factor\": expected more than low_freq_factor (%g), found %g", low,
            high);
    for (int i = 0; i < n; i++) {
        double length = two_pi / freq[i];
        if (length < original / high) continue;
        double keep = (original / length - low) / (high - low);
        if (length > original / low) keep = 0.0;
        freq[i] = (1.0 - keep) * freq[i] / factor + keep * freq[i];
    }
    return DQ_OK;
}

/* The dimension that turns `turns` times within `original` positions. */
static double yarn_dimension(double turns, int dim, double theta, double original)
{
    static const double two_pi = 6.283185307179586476925;
    return dim * log(original / (turns * two_pi)) / (2.0 * log(theta));
}

static double yarn_gain(double factor, double strength)
{
    return factor <= 1.0 ? 1.0 : 0.1 * strength * log(factor) + 1.0;
}

/* The factor of cos and sin: stated, or from the scaling factor (and DeepSeek's two strengths). */
static dq_status yarn_amplitude(float *out, const json_t *parameters, double factor, dq_err *err)
{
    const double unset = -1.0;
    double amplitude, strength, strength_all;
    DQ_TRY(dq_json_float(&amplitude, parameters, "attention_factor", &unset, err));
    DQ_TRY(dq_json_float(&strength, parameters, "mscale", &unset, err));
    DQ_TRY(dq_json_float(&strength_all, parameters, "mscale_all_dim", &unset, err));
    if (json_is_number(json_object_get(parameters, "attention_factor"))) {
        if (!(amplitude > 0))
            return dq_fail(err, DQ_DAMAGED,
                           "key \"attention_factor\": expected a positive number, found %g",
                           amplitude);
    } else if (strength > 0 && strength_all > 0) {
        amplitude = yarn_gain(factor, strength) / yarn_gain(factor, strength_all);
    } else {
        amplitude = yarn_gain(factor, 1.0);
    }
    *out = (float)amplitude;
    if (!(isfinite(*out) && *out > 0))
        return dq_fail(
            err, DQ_DAMAGED,
            "keys \"mscale\" and \"mscale_all_dim\" or the factor %g give no usable amplitude (%g)",
            factor, amplitude);
    return DQ_OK;
}

/* Fast dimensions stay, slow ones stretch, with a linear ramp between. Source: arXiv 2309.00071. */
static dq_status scale_yarn(double *freq, dq_rope *rope, double theta, const json_t *parameters,
                            const json_t *config, int max_positions, dq_err *err)
{
    static const bool yes = true;
    static const double default_fast = 32.0, default_slow = 1.0;
    double original = max_positions, factor, fast, slow;
    bool whole;
    DQ_TRY(read_original(&original, parameters, config, max_positions, err));
    const double stretched = max_positions / original;
    DQ_TRY(positive(&factor, parameters, "factor", &stretched, err));
    DQ_TRY(positive(&fast, parameters, "beta_fast", &default_fast, err));
    DQ_TRY(positive(&slow, parameters, "beta_slow", &default_slow, err));
    DQ_TRY(dq_json_bool(&whole, parameters, "truncate", &yes, err));
    whole = whole && !json_is_null(json_object_get(parameters, "truncate"));
    DQ_TRY(yarn_amplitude(&rope->amplitude, parameters, factor, err));
    if (!(theta > 1.0))
        return dq_fail(err, DQ_DAMAGED, "key \"rope_theta\": expected more than 1, found %g",
                       theta);
    double low = yarn_dimension(fast, rope->dim, theta, original);
    double high = yarn_dimension(slow, rope->dim, theta, original);
    if (whole) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, rope->dim - 1.0);
    if (!(high > low || high < low)) high += 0.001;
    for (int i = 0; i < rope->dim / 2; i++) {
        double stretch = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        freq[i] = freq[i] / factor * stretch + freq[i] * (1.0 - stretch);
    }
    return DQ_OK;
}

static dq_status factor_at(double *out, const json_t *parameters, const char *key, int n, int i,
                           dq_err *err)
{
    const json_t *list = json_object_get(parameters, key);
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected a list of %d numbers", key, n);
    *out = json_number_value(json_array_get(list, (size_t)i));
    if (!(*out > 0) || !(*out < (double)FLT_MAX))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": number %d is not a finite one above 0", key,
                       i);
    return DQ_OK;
}

/* One list of divisors for short and long texts: different ones would change cached keys. */
static dq_status scale_longrope(double *freq, dq_rope *rope, const json_t *parameters,
                                const json_t *config, int max_positions, dq_err *err)
{
    const int n = rope->dim / 2;
    double original = max_positions, factor, gain;
    for (int i = 0; i < n; i++) {
        double x = 1, y = 1;
        DQ_TRY(factor_at(&x, parameters, "short_factor", n, i, err));
        DQ_TRY(factor_at(&y, parameters, "long_factor", n, i, err));
        if (x < y || x > y)
            return dq_fail(err, DQ_MISMATCH,
                           "rope type \"longrope\" is supported with one list alone: short_factor "
                           "and long_factor differ");
        freq[i] /= x;
    }
    DQ_TRY(read_original(&original, parameters, config, max_positions, err));
    const double stretched = max_positions / original;
    DQ_TRY(positive(&factor, parameters, "factor", &stretched, err));
    const double usual = factor > 1 ? sqrt(1 + log(factor) / log(original)) : 1;
    DQ_TRY(positive(&gain, parameters, "attention_factor", &usual, err));
    rope->amplitude = (float)gain;
    return DQ_OK;
}

static dq_status scale(double *freq, dq_rope *rope, double theta, const json_t *parameters,
                       const json_t *config, int max_positions, dq_err *err)
{
    const char *type = NULL;
    double factor = 1;
    static const char *const none = "default";
    const char *older;
    DQ_TRY(dq_json_text(&older, parameters, "type", &none, err));
    DQ_TRY(dq_json_text(&type, parameters, "rope_type", &older, err));
    if (strcmp(type, "default") == 0) return DQ_OK;
    if (strcmp(type, "llama3") == 0)
        return scale_llama3(freq, rope->dim / 2, parameters, config, max_positions, err);
    if (strcmp(type, "yarn") == 0)
        return scale_yarn(freq, rope, theta, parameters, config, max_positions, err);
    if (strcmp(type, "longrope") == 0)
        return scale_longrope(freq, rope, parameters, config, max_positions, err);
    if (strcmp(type, "linear") == 0) {
        DQ_TRY(positive(&factor, parameters, "factor", NULL, err));
        for (int i = 0; i < rope->dim / 2; i++) freq[i] /= factor;
        return DQ_OK;
    }
    if (strcmp(type, "dynamic") == 0) { /* changes nothing up to the model's positions */
        DQ_TRY(positive(&factor, parameters, "factor", NULL, err));
        rope->max_positions = max_positions;
        return DQ_OK;
    }
    return dq_fail(err, DQ_MISMATCH,
                   "rope type \"%s\" is not supported (supported: default, linear, llama3, yarn, "
                   "dynamic, longrope)",
                   type);
}

/* Computed in double and rounded once. */
static dq_status fill(dq_rope *rope, float *inv_freq, double *freq, const json_t *config,
                      int max_positions, dq_err *err)
{
    const json_t *parameters;
    const char *where;
    double theta = default_theta;
    DQ_TRY(dq_model_config_rope(&parameters, &where, config, err));
    DQ_TRY(refuse_partial(config, err));
    DQ_TRY(positive(&theta, config, "rope_theta", &theta, err));
    if (parameters) {
        union { /* the iteration macro takes a pointer to non-const, but changes nothing */
            const json_t *in;
            json_t *out;
        } object = {.in = parameters};
        const char *key;
        json_t *value;
        json_object_foreach(object.out, key, value)
        {
            if (json_is_object(value))
                return dq_fail(err, DQ_MISMATCH,
                               "rotary parameters of their own for \"%s\" are not supported", key);
        }
        DQ_TRY(refuse_partial(parameters, err));
        if (positive(&theta, parameters, "rope_theta", &theta, err) != DQ_OK)
            return dq_in(err, "%s: ", where);
    }
    for (int i = 0; i < rope->dim / 2; i++) freq[i] = pow(theta, -2.0 * i / rope->dim);
    if (parameters && scale(freq, rope, theta, parameters, config, max_positions, err) != DQ_OK)
        return dq_in(err, "%s: ", where);
    for (int i = 0; i < rope->dim / 2; i++) {
        inv_freq[i] = (float)freq[i];
        if (!isfinite(inv_freq[i]))
            return dq_fail(err, DQ_DAMAGED, "%s: frequency %d is not finite (theta %g)", where, i,
                           theta);
    }
    return DQ_OK;
}

dq_status dq_model_rope_read(dq_rope *out, dq_rope_order order, int head_dim, const json_t *config,
                             int max_positions, dq_arena *a, dq_err *err)
{
    *out = (dq_rope){.order = order, .dim = head_dim, .amplitude = 1.0f};
    if (head_dim < 2 || head_dim % 2)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"head_dim\": rotary positions need an even number, found %d",
                       head_dim);
    float *inv_freq = dq_alloc(a, (size_t)head_dim / 2, sizeof *inv_freq, err);
    double *freq = dq_block_new((size_t)head_dim / 2, sizeof *freq, err);
    if (inv_freq && freq) fill(out, inv_freq, freq, config, max_positions, err);
    out->inv_freq = inv_freq;
    dq_block_free(freq);
    return err->code;
}
