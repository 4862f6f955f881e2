/* fuzz_gguf: any bytes as a GGUF file; what is accepted must be readable to its last byte.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dq_err err = {0};
    dq_gguf g;
    dq_arena *a = dq_arena_new();
    if (!a) return 0;
    if (dq_gguf_parse(&g, data, size, a, &err) == DQ_OK) {
        volatile uint8_t sink = 0;
        for (int64_t i = 0; i < g.n_tensors; i++) {
            const dq_gguf_tensor *t = &g.tensor[i];
            if (t->bytes > size || t->data < data || t->data + t->bytes > data + size) abort();
            for (size_t j = 0; j < t->bytes; j++) sink = (uint8_t)(sink ^ t->data[j]);
        }
        json_decref(g.fields);
    } else if (err.text[0] == 0) {
        abort(); /* every refusal explains itself */
    }
    dq_arena_free(a);
    return 0;
}
