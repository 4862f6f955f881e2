/* charsmap: the character map that SentencePiece models carry, a double-array trie over UTF-8 and the
 * replacements after it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHARSMAP_H
#define DQ_CHARSMAP_H

#include "base/base.h"

typedef struct dq_charsmap {
    const uint32_t *unit; /* [n_units]; none: the map is empty */
    size_t n_units;
    const char *text; /* replacements, each ended by NUL */
    size_t text_len;
} dq_charsmap;

/* From its base64 form; what *map points at belongs to the arena. DQ_DAMAGED: not one. */
dq_status dq_charsmap_load(dq_charsmap *map, const char *base64, size_t len, dq_arena *a,
                           dq_err *err);

/* Replacement of part[len], by the reference's rule: that of the shortest entry which part begins
 * with. NULL: none; it ends at *out_len. */
const char *dq_charsmap_find(const dq_charsmap *map, const char *part, size_t len, size_t *out_len);

#endif
