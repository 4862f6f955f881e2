/* kind_text: running text in windows. See eval.h and kind_text.h.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_text.h"

#include "eval/kind_text_numbers.h"

/* The corpus that stands for the training text, without template tokens. */
static dq_status encode_counts(dq_doc_ids **out, const dq_text_settings *s, const dq_eval_model *m,
                               dq_arena *a, dq_err *err)
{
    *out = dq_alloc(a, (size_t)s->counts.n, sizeof **out, err);
    for (int64_t i = 0; *out && i < s->counts.n; i++)
        DQ_TRY(dq_windows_encode(&(*out)[i], m->tok, &s->counts.doc[i], DQ_BOS_OFF, m->m->vocab, 0,
                                 a, err));
    return err->code;
}

static dq_status encode_text(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_text_settings *s = e->source[ids->source].settings;
    const dq_eval_model *m = &e->model[ids->model];
    dq_window_spec spec = {.scheme = s->scheme,
                           .n_ctx = e->n_ctx,
                           .stride = s->stride,
                           .limit = e->limit,
                           .whole = s->slices,
                           .bos = e->bos,
                           .vocab = m->m->vocab};
    DQ_TRY(dq_windows_make(&ids->win, m->tok, &s->docs, &spec, e->a, err));
    ids->n_extra = 1;
    if (!s->slices) return DQ_OK;
    dq_doc_ids *corpus = NULL;
    dq_slices *slices = dq_alloc(e->a, 1, sizeof *slices, err);
    if (s->counts.n && slices) encode_counts(&corpus, s, m, e->a, err);
    if (err->code != DQ_OK) return err->code;
    ids->slices = slices;
    return dq_slices_make(slices, &ids->win, corpus, s->counts.n, s->threshold, e->a, err);
}

/* Eviction happens in the middle of a window, after a context that every window has. Without settings windows are chunks. */
static dq_status takes(const dq_eval_source *source, const dq_kv_spec *kv, dq_err *err)
{
    const dq_text_settings *s = source->settings;
    if (!kv->evict.policy || !s || s->scheme == DQ_WINDOW_CHUNK) return DQ_OK;
    const bool positions = s->scheme == DQ_WINDOW_POSITIONS;
    dq_fail_with(err, DQ_MISMATCH,
                 (dq_remedy){.code = DQ_REMEDY_KV_CHUNKS, .word = kv->evict.policy->name},
                 "policy %s evicts in the middle of each window, which goes with chunks only",
                 kv->evict.policy->name);
    return dq_fail_more(err,
                        (dq_remedy){.code = positions ? DQ_REMEDY_KV_POSITIONS : DQ_REMEDY_NONE},
                        " (found %s)", positions ? "positions" : dq_scheme_name[s->scheme]);
}

const dq_eval_kind dq_eval_text = {.windows = true,
                                   .encode = encode_text,
                                   .takes = takes,
                                   .numbers = dq_text_numbers_of,
                                   .worse = dq_text_numbers_worse};
