/* lm_text: text to ids and back.
 * SPDX-License-Identifier: MIT */
#include "lib/lm.h"
#include "tasks/items.h"

#include <string.h>

static dq_status need_tokenizer(const dq_lm *m, dq_err *err)
{
    return m->tok ? DQ_OK
                  : dq_fail(err, DQ_MISMATCH, "%s: the model has no tokenizer", m->model->path);
}

/* A copy of s[len] with a NUL after it. */
static void end_with_zero(char **out, const char *s, size_t len, dq_err *err)
{
    *out = dq_block_new(len + 1, 1, err);
    if (*out && len) memcpy(*out, s, len);
}

int dq_lm_encode(dq_lm *m, const char *text, size_t len, int special, int32_t **ids, int64_t *n)
{
    dq_err err = {0};
    int64_t first_bad, n_bad;
    *ids = NULL;
    *n = 0;
    if (special < 0 || special > 2)
        dq_fail(&err, DQ_USAGE, "special: expected 0, 1 or 2, found %d", special);
    else if (need_tokenizer(m, &err) == DQ_OK) {
        const unsigned flags = special ? dq_items_bos_flags(m->tok, DQ_BOS_AUTO, text, len) : 0;
        dq_tokenizer_encode(m->tok, text, len, flags, ids, n, &first_bad, &n_bad, &err);
        int before, after;
        dq_tokenizer_template(m->tok, flags, &before, &after);
        if (special == 2 && err.code == DQ_OK) *n -= after;
    }
    return dq_lm_failed(&err);
}

void dq_lm_warn_lost(struct dq_lm *m, const char *text, size_t len, const dq_chat_message *said,
                     int n)
{
    const char *role = dq_chat_template_lost(text, len, said, n);
    if (role)
        dq_logger_warn(
            m->logger,
            "%s: the chat template leaves what the %s says out of the prompt, or changes "
            "it",
            m->model->path, role);
}

int dq_lm_chat(dq_lm *m, const dq_lm_message *messages, int n, int answer, char **text, size_t *len)
{
    dq_err err = {0};
    char *rendered = NULL;
    *text = NULL;
    *len = 0;
    dq_chat_message *said = dq_block_new((size_t)n + 1, sizeof *said, &err);
    for (int i = 0; said && i < n; i++)
        said[i] = (dq_chat_message){messages[i].role, messages[i].content};
    if (said && dq_lm_template(m, &err) == DQ_OK && !m->chat)
        dq_fail(&err, DQ_MISMATCH, "%s: the model has no chat template", m->model->path);
    if (err.code == DQ_OK && dq_chat_template_prompt(m->chat, m->model->path, said, n, answer,
                                                     &rendered, len, &err) == DQ_OK) {
        dq_lm_warn_lost(m, rendered, *len, said, n);
        end_with_zero(text, rendered, *len, &err);
    }
    dq_block_free(rendered);
    dq_block_free(said);
    return dq_lm_failed(&err);
}

int dq_lm_decode(dq_lm *m, const int32_t *ids, int64_t n, int special, char **text, size_t *len)
{
    dq_err err = {0};
    char *decoded = NULL;
    *text = NULL;
    *len = 0;
    const int vocab = need_tokenizer(m, &err) == DQ_OK ? dq_tokenizer_vocab(m->tok) : 0;
    const int known = vocab > m->model->vocab ? vocab : m->model->vocab;
    if (err.code == DQ_OK && dq_lm_check_ids(m, ids, n, known, &err) == DQ_OK &&
        dq_tokenizer_decode(m->tok, ids, n, special ? DQ_TOK_SPECIAL : 0, &decoded, len, &err) ==
            DQ_OK)
        end_with_zero(text, decoded, *len, &err);
    dq_block_free(decoded);
    return dq_lm_failed(&err);
}
