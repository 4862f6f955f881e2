/* text_stream: see text_stream.h. All ids are decoded each time: a decoder may look back, and for thousands of them it takes
 * less than a millisecond. What ends with U+FFFD may become something else.
 * SPDX-License-Identifier: MIT */
#include "session/text_stream.h"

#include <string.h>

void dq_text_stream_begin(dq_text_stream *s, const dq_tokenizer *t, unsigned flags)
{
    *s = (dq_text_stream){.t = t, .flags = flags};
}

void dq_text_stream_free(dq_text_stream *s)
{
    dq_block_free(s->ids);
    dq_block_free(s->text);
    s->ids = NULL;
    s->text = NULL;
}

/* Bytes of text[len] before what is not certain. */
static size_t certain(const char *text, size_t len)
{
    while (len >= 3 && memcmp(text + len - 3, "\xEF\xBF\xBD", 3) == 0) len -= 3;
    return len;
}

static void say(dq_text_stream *s, size_t until, const char **piece, size_t *len)
{
    if (until < s->said) until = s->said;
    *piece = s->text ? s->text + s->said : "";
    *len = until - s->said;
    s->said = until;
}

dq_status dq_text_stream_add(dq_text_stream *s, int32_t id, const char **piece, size_t *len,
                             dq_err *err)
{
    int32_t *ids = dq_grow(NULL, s->ids, (size_t)s->n + 1, &s->cap, sizeof *ids, err);
    char *text;
    size_t n;
    if (!ids) return err->code;
    s->ids = ids;
    s->ids[s->n++] = id;
    DQ_TRY(dq_tokenizer_decode(s->t, s->ids, s->n, s->flags, &text, &n, err));
    dq_block_free(s->text);
    s->text = text;
    s->len = n;
    say(s, certain(text, n), piece, len);
    return DQ_OK;
}

void dq_text_stream_end(dq_text_stream *s, const char **piece, size_t *len)
{
    say(s, s->len, piece, len);
}
