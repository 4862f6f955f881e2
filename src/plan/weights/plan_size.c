/* plan_size: see plan_size.h. Plans of quantization say what each width takes, plan_alloc.h allocates it.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_size.h"

#include <stdio.h>
#include <string.h>

const dq_plan_size dq_plan_sizes[DQ_PLAN_SIZES] = {
    {"small", 3.5},
    {"balanced", 4.5},
    {"near-lossless", 6.5},
};

static const int widths[] = {2, 3, 4, 5, 6, 8};
enum { WIDTHS = sizeof widths / sizeof *widths, PROJECTIONS = 7, ROLES = 9 };

/* Projections, and a head; then the embedding, which may be the head too. */
static const dq_role roles[ROLES] = {DQ_ROLE_Q,    DQ_ROLE_K,    DQ_ROLE_V,
                                     DQ_ROLE_O,    DQ_ROLE_GATE, DQ_ROLE_UP,
                                     DQ_ROLE_DOWN, DQ_ROLE_HEAD, DQ_ROLE_EMBED};

/* KLD in nats of each role's codes of 3 bits, those of all other roles being as in the model before; and what codes of other
 * widths lose beside that. */
typedef struct costs {
    double role[ROLES - 1], width[WIDTHS];
    double embed[WIDTHS], tied[WIDTHS]; /* of an embedding, and of one that is the head, in nats */
} costs;

/* SmolLM2-135M, in groups of 64, trellis codes of up to 5 bits: gptq with 16384 tokens, and nearest. */
static const costs calibrated = {
    .role = {0.0083, 0.0281, 0.0971, 0.0098, 0.0319, 0.0471, 0.0530, 0.0622},
    .width = {3.76, 1, 0.26, 0.07, 0.03, 0.0019},
    .embed = {0.324, 0.0395, 0.0078, 0.0018, 0.0004, 0.00003},
    .tied = {0.427, 0.1075, 0.0266, 0.0077, 0.0018, 0.0001},
};
static const costs nearest = {
    .role = {0.0474, 0.0471, 0.1238, 0.0406, 0.0747, 0.1247, 0.1735, 0.55},
    .width = {6.3, 1, 0.206, 0.062, 0.042, 0.0026},
    .embed = {0.324, 0.0395, 0.0078, 0.0018, 0.0004, 0.00003},
    .tied = {3, 0.593, 0.139, 0.0268, 0.0063, 0.0004},
};

/* What the tensors of each role take at each width. */
typedef struct offer {
    char name[ROLES][256]; /* of one tensor; "": there is none */
    double bytes[ROLES][WIDTHS];
    double other, params; /* bytes of what is not packed; of all tensors */
    bool tied;
} offer;

static int index_of(dq_role role)
{
    int i = 0;
    while (i < ROLES && roles[i] != role) i++;
    return i;
}

static dq_status take_width(offer *o, int w, const char *model, const dq_quantize_settings *set,
                            dq_err *err)
{
    dq_quantize_settings s = *set;
    dq_quantizer *q;
    if (s.method) s.method_name = s.method->name; /* which need not read its text for this */
    s.method = NULL;
    s.bits = s.embed_bits = widths[w];
    s.head_bits = DQ_QUANTIZE_BITS_AUTO;
    DQ_TRY(dq_quantize_open(&q, model, &s, err));
    const dq_quantize_info *info = dq_quantize_result(q);
    o->tied = dq_quantize_effective(q)->head_bits == 0;
    o->params = (double)info->params;
    o->other = (double)(info->weight_bytes - info->packed_bytes);
    for (int64_t i = 0; i < info->n_tensors; i++) {
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        /* a head that is the embedding, where both are stored, has the width of that */
        const int k = index_of(o->tied && r.role == DQ_ROLE_HEAD ? DQ_ROLE_EMBED : r.role);
        if (!r.packed || !r.counts || k == ROLES) continue;
        o->bytes[k][w] += (double)r.bytes;
        snprintf(o->name[k], sizeof o->name[k], "%s", r.name);
    }
    dq_quantize_close(q);
    return DQ_OK;
}

/* One item a role that there is; *role: which. */
static int64_t list_items(dq_plan_item *item, int *role, const offer *o, const costs *c)
{
    int64_t n = 0;
    for (int k = 0; k < ROLES; k++) {
        if (!*o->name[k]) continue;
        role[n] = k;
        item[n].n = WIDTHS;
        const double *ends = o->tied ? c->tied : c->embed;
        for (int w = 0; w < WIDTHS; w++) {
            item[n].cost[w] = o->bytes[k][w];
            item[n].loss[w] = roles[k] == DQ_ROLE_EMBED ? ends[w] : c->role[k] * c->width[w];
        }
        n++;
    }
    return n;
}

/* "^model\.layers\.[0-9]+\.mlp\.down_proj\.weight$" for the tensors of a role. */
static json_t *rule_of(const char *name, int bits)
{
    char text[1024] = "^";
    size_t n = 1;
    char before = 0;
    for (; *name && n + 16 < sizeof text; before = *name++) {
        if (before == '.' && *name >= '0' && *name <= '9') {
            while (name[1] >= '0' && name[1] <= '9') name++;
            n += (size_t)snprintf(text + n, sizeof text - n, "[0-9]+");
        } else {
            n += (size_t)snprintf(text + n, sizeof text - n, *name == '.' ? "\\%c" : "%c", *name);
        }
    }
    snprintf(text + n, sizeof text - n, "$");
    json_t *rule = json_object();
    json_object_set_new(rule, "match", json_string(text));
    json_object_set_new(rule, "bits", json_integer(bits));
    return rule;
}

/* The width of most bytes is the settings'; the others get rules. */
static dq_status take_choice(dq_quantize_settings *s, json_t **rules, const offer *o,
                             const int *role, const int *choice, int64_t n, dq_err *err)
{
    double bytes[WIDTHS] = {0};
    int usual = 0;
    for (int64_t i = 0; i < n; i++)
        bytes[choice[i]] += role[i] < PROJECTIONS ? o->bytes[role[i]][choice[i]] : 0;
    for (int w = 0; w < WIDTHS; w++) usual = bytes[w] > bytes[usual] ? w : usual;
    s->bits = widths[usual];
    *rules = json_array();
    for (int64_t i = 0; i < n; i++) {
        const int bits = widths[choice[i]];
        if (roles[role[i]] == DQ_ROLE_EMBED) s->embed_bits = bits;
        if (roles[role[i]] == DQ_ROLE_HEAD) s->head_bits = bits;
        if (role[i] < PROJECTIONS && choice[i] != usual)
            json_array_append_new(*rules, rule_of(o->name[role[i]], bits));
    }
    s->rules = json_array_size(*rules) ? *rules : NULL;
    return dq_json_complete(err);
}

dq_status dq_plan_size_choose(dq_quantize_settings *s, json_t **rules, const char *model,
                              double bits, dq_err *err)
{
    offer o = {.other = 0};
    dq_plan_item item[ROLES];
    dq_plan_curve curve;
    int role[ROLES], choice[ROLES];
    *rules = NULL;
    for (int w = 0; w < WIDTHS; w++) DQ_TRY(take_width(&o, w, model, s, err));
    const int64_t n = list_items(item, role, &o, s->method ? &calibrated : &nearest);
    const double room = bits * o.params / 8 - o.other;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_plan_alloc_curve(&curve, item, n, a, err) == DQ_OK) {
        const int64_t point = dq_plan_alloc_by_cost(&curve, room);
        if (point < 0) {
            dq_fail_with(
                err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_SIZE},
                "%s: the narrowest codes take %.3f bits per weight, other tensors included, and "
                "at most %g are asked for.",
                model, 8 * (curve.cost[0] + o.other) / o.params, bits);
        } else {
            dq_plan_alloc_at(choice, &curve, point);
            dq_plan_alloc_fill(choice, &curve, point, room);
            take_choice(s, rules, &o, role, choice, n, err);
        }
    }
    dq_arena_free(a);
    return err->code;
}
