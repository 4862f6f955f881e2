/* lm: what a dq_lm of dq.h is, for this folder and for dq generate.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LM_H
#define DQ_LM_H

#include "eval/score.h"
#include "lib/dq.h"
#include "session/session.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"
#include "template/chat_template.h"

struct dq_lm {
    dq_logger *logger; /* of warnings; not owned */
    dq_backend *backend;
    dq_model *model;
    dq_tokenizer *tok; /* NULL: the model has none */
    dq_stop_ids stops;
    dq_pass pass;
    dq_kv_spec kv;
    dq_runner *runner;
    dq_session *session;    /* NULL: not needed yet */
    dq_chat_template *chat; /* NULL: none, or not asked yet */
    bool asked_chat;
    int forks;   /* dq_os_forks when it was opened */
    bool busy;   /* a pass runs, or a text is written */
    bool closes; /* after that */
    char *about; /* of the last dq_lm_describe; NULL: none yet */
};

typedef struct dq_lm_options {
    dq_pass_options how;
    dq_input_head_order head_order;
    const char *device;
    int64_t threads;
} dq_lm_options;
#define DQ_LM_OPTION_ROWS(o)                                                                       \
    dq_opt_heading("how it is computed:"), DQ_PASS_OPTION_ROWS((o).how),                           \
        DQ_INPUT_HEAD_ORDER_OPTION((o).head_order), DQ_OPT_RUN(&(o).device, &(o).threads)
void dq_lm_options_begin(dq_lm_options *o, const char *seed_of);
/* Checks the words before any model is open. DQ_USAGE. */
dq_status dq_lm_options_read(dq_lm_options *o, dq_err *err);

/* m->logger is set, *m otherwise zeroed. End with dq_lm_end, after a failure too. */
dq_status dq_lm_begin(struct dq_lm *m, const char *path, dq_lm_options *o, dq_err *err);
void dq_lm_end(struct dq_lm *m);
/* In m->chat; NULL: the model has no chat template. */
dq_status dq_lm_template(struct dq_lm *m, dq_err *err);
/* Warns where the template has left a message out of text[len]. */
void dq_lm_warn_lost(struct dq_lm *m, const char *text, size_t len, const dq_chat_message *said,
                     int n);
/* An empty session; evicts: see session.h. */
dq_status dq_lm_session(struct dq_lm *m, bool evicts, dq_err *err);

#endif
