/* text_stream: the text of ids that come one by one, as soon as it is certain.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEXT_STREAM_H
#define DQ_TEXT_STREAM_H

#include "base/strbuf.h"
#include "tokenizer/tokenizer.h"

typedef struct dq_text_stream {
    const dq_tokenizer *t;
    unsigned flags; /* of dq_tokenizer_decode */
    int32_t *ids;   /* [n] */
    int64_t n;
    size_t cap;
    dq_strbuf text; /* what dq_tokenizer_decode makes of all ids */
    dq_strbuf said; /* what of it was said */
} dq_text_stream;

void dq_text_stream_begin(dq_text_stream *s, const dq_tokenizer *t, unsigned flags);
void dq_text_stream_free(dq_text_stream *s); /* {0} is allowed */
/* Takes an id. *piece[*len] (valid until the next call): what has become certain, maybe nothing. A character whose bytes are
 * spread over ids waits for the last of them. */
dq_status dq_text_stream_add(dq_text_stream *s, int32_t id, const char **piece, size_t *len,
                             dq_err *err);
/* After the last id: what was waiting, U+FFFD where it is no character. All pieces together are the text of all ids; but of a
 * tokenizer with byte fallback, where ids of bytes that were characters end as part of a run that is none, they stay said. */
dq_status dq_text_stream_end(dq_text_stream *s, const char **piece, size_t *len, dq_err *err);

#endif
