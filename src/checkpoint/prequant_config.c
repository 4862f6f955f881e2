/* prequant_config: quant_method chooses the row that reads the rest. What a program cannot leave out without changing the
 * weights is refused by name, what concerns activations alone is said as a warning.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/prequant_format.h"

#include <string.h>
#include <strings.h>

static const dq_prequant_format *const formats[] = {&dq_prequant_compressed, &dq_prequant_gptq,
                                                    &dq_prequant_awq};
enum { N_FORMATS = sizeof formats / sizeof *formats };

dq_status dq_prequant_config_refuse(const char *key, const char *word, dq_err *err)
{
    return dq_fail(
        err, DQ_MISMATCH,
        "key \"%s\": \"%s\" is not read (read: %s, %s, %s). Use the original checkpoint.", key,
        word, formats[0]->reads, formats[1]->reads, formats[2]->reads);
}

dq_status dq_prequant_config_warn(dq_prequant_config *c, const char *text, dq_err *err)
{
    if (!text) return err->code;
    for (int i = 0; i < c->n_warnings; i++) {
        if (strcmp(c->warnings[i], text) == 0) return DQ_OK;
    }
    if (c->n_warnings < DQ_PREQUANT_WARNINGS) c->warnings[c->n_warnings++] = text;
    return DQ_OK;
}

dq_status dq_prequant_config_add(dq_prequant_config *c, int64_t bits, dq_prequant_scheme s,
                                 dq_err *err)
{
    if (bits < 2 || bits > 8)
        return dq_fail(err, DQ_MISMATCH, "weights of %lld bits are not read (2 to 8 are)",
                       (long long)bits);
    if (s.group < 1 && s.group != DQ_GROUP_ROW && s.group != DQ_GROUP_TENSOR)
        return dq_fail(err, DQ_DAMAGED, "a group of %lld columns (expected -1, or at least 1)",
                       (long long)s.group);
    s.bits = (int)bits;
    for (int i = 0; i < c->n_schemes; i++) {
        dq_prequant_scheme *x = &c->scheme[i];
        if (x->bits != s.bits || x->group != s.group || x->any_zero != s.any_zero) continue;
        c->added = i;
        x->any_index = x->any_index || s.any_index;
        x->needs_index = x->needs_index && s.needs_index;
        return DQ_OK;
    }
    if (c->n_schemes == DQ_PREQUANT_SCHEMES)
        return dq_fail(err, DQ_MISMATCH, "more than %d ways of storing weights",
                       DQ_PREQUANT_SCHEMES);
    c->added = c->n_schemes;
    c->scheme[c->n_schemes++] = s;
    return DQ_OK;
}

dq_status dq_prequant_config_read(dq_prequant_config *c, const json_t *config, dq_arena *a,
                                  dq_err *err)
{
    const char *method = NULL;
    if (!json_is_object(config)) return dq_fail(err, DQ_DAMAGED, "expected an object");
    if (!json_object_get(config, "quant_method"))
        return dq_fail(err, DQ_MISMATCH,
                       "key \"quant_method\" is missing, so that nothing says how the weights are "
                       "quantized. Use the original checkpoint.");
    DQ_TRY(dq_json_text(&method, config, "quant_method", NULL, err));
    for (int i = 0; i < N_FORMATS; i++) {
        if (strcasecmp(formats[i]->method, method) != 0) continue;
        c->format = formats[i];
        return c->format->read(c, config, a, err);
    }
    return dq_prequant_config_refuse("quant_method", method, err);
}
