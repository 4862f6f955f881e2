/* text_stream: see text_stream.h. All ids are decoded each time: a decoder may look back, and for thousands of them it takes
 * less than a millisecond. What ends with U+FFFD may become something else, and so may bytes of a run before it, which wait
 * until the text begins as it was said.
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
    dq_block_free(s->text.s);
    dq_block_free(s->said.s);
    *s = (dq_text_stream){0};
}

/* Bytes of the text before what is not certain. */
static size_t certain(const dq_strbuf *text)
{
    size_t n = text->n;
    while (n >= 3 && memcmp(text->s + n - 3, "\xEF\xBF\xBD", 3) == 0) n -= 3;
    return n;
}

/* Says the text up to byte `until`, if there is more than was said. */
static dq_status say(dq_text_stream *s, size_t until, const char **piece, size_t *len, dq_err *err)
{
    size_t from = s->said.n;
    while (from < until && ((unsigned char)s->text.s[from] & 0xC0) == 0x80) from++;
    *piece = "";
    *len = 0;
    if (until <= from) return DQ_OK;
    *piece = s->text.s + from;
    *len = until - from;
    return dq_strbuf_add(&s->said, *piece, *len, err);
}

dq_status dq_text_stream_add(dq_text_stream *s, int32_t id, const char **piece, size_t *len,
                             dq_err *err)
{
    dq_strbuf text = {0};
    int32_t *ids = dq_grow(NULL, s->ids, (size_t)s->n + 1, &s->cap, sizeof *ids, err);
    *piece = "";
    *len = 0;
    if (!ids) return err->code;
    s->ids = ids;
    s->ids[s->n++] = id;
    DQ_TRY(dq_tokenizer_decode(s->t, s->ids, s->n, s->flags, &text.s, &text.n, err));
    dq_block_free(s->text.s);
    s->text = text;
    const size_t until = certain(&s->text);
    const bool goes_on =
        until > s->said.n && (!s->said.n || memcmp(s->text.s, s->said.s, s->said.n) == 0);
    return goes_on ? say(s, until, piece, len, err) : DQ_OK;
}

dq_status dq_text_stream_end(dq_text_stream *s, const char **piece, size_t *len, dq_err *err)
{
    return say(s, s->text.n, piece, len, err);
}
