/* pass_options: words are checked at once; what a container says is known when the model is open, so widths and policies are
 * resolved then.
 * SPDX-License-Identifier: MIT */
#include "settings/pass_options.h"
#include "settings/kv_sweep.h"

void dq_pass_options_begin(dq_pass_options *o, const char *seed_of)
{
    *o = (dq_pass_options){0};
    dq_kv_options_begin(&o->kv, seed_of);
}

dq_status dq_pass_options_read(dq_pass_options *o, dq_err *err)
{
    return dq_kv_options_read(&o->kv, false, err);
}

dq_status dq_pass_options_of(dq_pass *pass, dq_kv_spec *kv, dq_pass_options *o, dq_model *m,
                             const dq_backend *b, dq_err *err)
{
    dq_kv_config *list;
    int n;
    const int64_t bits = o->logit_bits ? o->logit_bits : m->logit.bits;
    const dq_num num = (dq_num)o->math.at;
    pass->logit.bits = (int)bits;
    pass->logit.granularity =
        o->granularity.text ? (dq_granularity)o->granularity.at : m->logit.granularity;
    pass->math = (dq_math){num, num, num, num};
    DQ_TRY(dq_kv_options_gates(&o->kv, m, err));
    if (dq_kv_sweep_list(&list, &n, &o->kv, &m->kv, m, err) == DQ_OK &&
        dq_kv_options_fit(kv, &list[0], m, pass->math, b, o->kv.logger, err) == DQ_OK)
        dq_kv_options_check(&o->kv, err);
    for (int i = 0; err->code == DQ_OK && o->kv.logger && i < o->kv.n_sized; i++) {
        char text[DQ_KV_SIZED];
        dq_logger_say(o->kv.logger, "KV size %s", dq_kv_sweep_sized(text, &o->kv.sized[i]));
    }
    dq_block_free(list);
    return err->code;
}
