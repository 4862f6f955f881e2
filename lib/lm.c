/* lm: opening and closing. Settings become an argument vector, so that the rows of the command line's options read them and
 * say what is wrong with them.
 * SPDX-License-Identifier: MIT */
#include "lib/lm.h"

#include "base/os.h"
#include "model/model.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[sizeof((dq_err *)0)->text];

int dq_lm_failed(dq_err *err)
{
    if (err->code == DQ_OK) return 0;
    dq_advice_apply(err);
    snprintf(last_error, sizeof last_error, "%s", err->text);
    return (int)err->code;
}

const char *dq_lm_error(void)
{
    return last_error;
}

const char *dq_lm_version(void)
{
    return DQ_VERSION;
}

void dq_lm_free(void *p)
{
    dq_block_free(p);
}

/* ---- Opening ---- */

void dq_lm_options_begin(dq_lm_options *o, const char *seed_of)
{
    *o = (dq_lm_options){.device = "auto"};
    dq_pass_options_begin(&o->how, seed_of);
}

dq_status dq_lm_options_read(dq_lm_options *o, dq_err *err)
{
    dq_input_head_order_read(&o->head_order);
    return dq_pass_options_read(&o->how, err);
}

dq_status dq_lm_begin(struct dq_lm *m, const char *path, dq_lm_options *o, dq_err *err)
{
    DQ_TRY(dq_backend_open(&m->backend, o->device, (int)o->threads, err));
    DQ_TRY(dq_input_model(&m->model, path, &o->head_order, m->logger, err));
    o->how.kv.logger = m->logger;
    DQ_TRY(dq_pass_options_of(&m->pass, &m->kv, &o->how, m->model, m->backend, err));
    DQ_TRY(dq_input_tokenizer(&m->tok, m->model, false, err));
    DQ_TRY(dq_stop_ids_add(&m->stops, m->model, m->tok, m->model->vocab, err));
    dq_input_warn_stops(&m->stops, path, m->logger);
    return dq_runner_new(&m->runner, m->model, m->backend, &m->kv, err);
}

void dq_lm_end(struct dq_lm *m)
{
    dq_session_free(m->session);
    dq_runner_free(m->runner);
    dq_tokenizer_free(m->tok);
    dq_model_close(m->model);
    dq_backend_close(m->backend);
    dq_chat_template_free(m->chat);
    free(m->about);
}

dq_status dq_lm_template(struct dq_lm *m, dq_err *err)
{
    if (!m->asked_chat) DQ_TRY(dq_chat_template_of(&m->chat, m->model, err));
    m->asked_chat = true;
    return DQ_OK;
}

dq_status dq_lm_session(struct dq_lm *m, bool evicts, dq_err *err)
{
    dq_session_free(m->session);
    return dq_session_new(&m->session, m->runner, &m->pass, evicts, err);
}

static dq_status open_with(dq_lm *m, const char *path, const char *const *settings, dq_err *err)
{
    dq_lm_options *o = dq_block_new(1, sizeof *o, err); /* too large for a stack */
    if (!o) return err->code;
    dq_lm_options_begin(o, "of the policy random (default 1)");
    const dq_opt rows[] = {DQ_LM_OPTION_ROWS(*o), {0}};
    dq_settings s;
    if (dq_settings_read(&s, settings, rows, err) == DQ_OK && dq_lm_options_read(o, err) == DQ_OK &&
        dq_lm_begin(m, path, o, err) == DQ_OK)
        dq_input_head_order_check(&o->head_order, err);
    dq_settings_free(&s);
    dq_block_free(o);
    return err->code;
}

int dq_lm_open(dq_lm **out, const char *path, const char *const *settings)
{
    dq_err err = {0};
    *out = NULL;
    dq_lm *m = dq_block_new(1, sizeof *m, &err);
    dq_logger *logger = m ? dq_block_new(1, sizeof *logger, &err) : NULL;
    if (logger) {
        m->forks = dq_os_forks();
        m->logger = logger;
        logger->quiet = true;
        if (dq_logger_begin(logger, "lib", &err) == DQ_OK) open_with(m, path, settings, &err);
    }
    if (err.code == DQ_OK)
        *out = m;
    else
        dq_lm_close(m);
    return dq_lm_failed(&err);
}

dq_status dq_lm_check_ids(const struct dq_lm *m, const int32_t *ids, int64_t n, int vocab,
                          dq_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           m->model->path, (int)ids[i], vocab);
    }
    return DQ_OK;
}

dq_status dq_lm_enter(struct dq_lm *m, dq_err *err)
{
    const bool forked = m->forks != dq_os_forks();
    if (forked && strcmp(m->backend->ops->name, "cpu") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: is on a GPU, which a forked process does not have. Start the process "
                       "anew (multiprocessing: spawn) and open the model there",
                       m->model->path);
    if (forked && m->busy)
        return dq_fail(err, DQ_USAGE, "%s: was running when the process was forked. Open it again",
                       m->model->path);
    if (m->busy)
        return dq_fail(err, DQ_USAGE, "%s: a listener cannot run the model that it listens to",
                       m->model->path);
    m->busy = true;
    return DQ_OK;
}

void dq_lm_leave(struct dq_lm *m)
{
    m->busy = false;
    if (m->closes) dq_lm_close(m);
}

void dq_lm_close(dq_lm *m)
{
    if (!m) return;
    if (m->busy) {
        m->closes = true;
        return;
    }
    dq_lm_end(m);
    if (m->logger) dq_logger_end(m->logger);
    dq_block_free(m->logger);
    dq_block_free(m);
}

/* ---- What it is ---- */

int32_t dq_lm_vocab(const dq_lm *m)
{
    return m->model->vocab;
}

int32_t dq_lm_positions(const dq_lm *m)
{
    return m->model->max_positions;
}

int64_t dq_lm_stop_ids(const dq_lm *m, const int32_t **ids)
{
    *ids = m->stops.id;
    return m->stops.n;
}

int32_t dq_lm_prefix_id(const dq_lm *m)
{
    return m->tok ? dq_tokenizer_prefix(m->tok) : -1;
}

const char *dq_lm_describe(dq_lm *m)
{
    const dq_model *model = m->model;
    json_t *o, *settings;
    free(m->about);
    o = json_object();
    settings = json_object();
    json_object_set_new(o, "name", dq_document_name(model->name));
    json_object_set_new(o, "architecture", json_string(model->architecture->name));
    json_object_set_new(o, "parameters", json_integer(model->n_params));
    json_object_set_new(o, "bits_per_weight",
                        dq_document_real(dq_model_size_of(model).bits_per_weight));
    json_object_set_new(o, "layers", json_integer(model->n_layers));
    json_object_set_new(o, "vocabulary", json_integer(model->vocab));
    json_object_set_new(o, "positions", json_integer(model->max_positions));
    json_object_set_new(o, "device", json_string(m->backend->device));
    json_object_set_new(settings, "logit_bits", json_integer(m->pass.logit.bits));
    json_object_set_new(settings, "logit_granularity",
                        json_string(dq_granularity_name[m->pass.logit.granularity]));
    json_object_set_new(settings, "math", json_string(dq_num_name[m->pass.math.linear]));
    json_object_set_new(settings, "kv", dq_kv_spec_json(&m->kv));
    json_object_set_new(o, "settings", settings);
    json_object_set(o, "warnings", m->logger->warnings);
    m->about = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    return m->about ? m->about : "{}";
}
