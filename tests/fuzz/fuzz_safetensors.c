/* fuzz_safetensors: any bytes as a weight file; what is accepted must be readable to its last byte.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/checkpoint.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dq_err err = {0};
    dq_tensor *t;
    int64_t n;
    dq_arena *a = dq_arena_new();
    if (!a) return 0;
    if (dq_safetensors_parse(&t, &n, data, size, a, &err) == DQ_OK) {
        volatile uint8_t sink = 0;
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *p = t[i].data;
            size_t bytes = dq_tensor_bytes(&t[i]);
            if (bytes > size || p < data || p + bytes > data + size) abort();
            for (size_t j = 0; j < bytes; j++) sink = (uint8_t)(sink ^ p[j]);
        }
    } else if (err.text[0] == 0) {
        abort(); /* every refusal explains itself */
    }
    dq_arena_free(a);
    return 0;
}
