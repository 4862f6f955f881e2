/* probes: see probes.h. Operands come from a linear congruence, with the ends of the range more often than chance
 * has them; the first wrong result is noted with its case, the others are counted.
 * SPDX-License-Identifier: MIT */
#include "tests/gpu/probes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void note_error(dq_probe *p, cudaError_t e)
{
    if (e != cudaSuccess && !p->error[0])
        snprintf(p->error, sizeof p->error, "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
}

bool dq_probe_went_wrong(const dq_probe *p)
{
    return p->wrong || p->error[0];
}

void *dq_probe_put(dq_probe *p, const void *host, size_t bytes)
{
    void *device = NULL;
    cudaError_t e = cudaMalloc(&device, bytes);
    if (e == cudaSuccess)
        e = host ? cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice)
                 : cudaMemset(device, 0xff, bytes);
    note_error(p, e);
    return device;
}

void dq_probe_take(dq_probe *p, void *host, void *device, size_t bytes)
{
    note_error(p, cudaGetLastError()); /* of the launch */
    note_error(p, cudaDeviceSynchronize());
    if (host && device) note_error(p, cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    note_error(p, cudaFree(device));
}

void *dq_probe_room(size_t n, size_t size)
{
    void *capacity = calloc(n, size);
    if (!capacity) abort();
    return capacity;
}

uint32_t dq_probe_bits(dq_probe *p)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->random >> 32);
}

uint8_t dq_probe_byte(dq_probe *p)
{
    static const uint8_t ends[] = {0, 1, 127, 128, 129, 255};
    uint32_t r = dq_probe_bits(p);
    return r % 3 == 0 ? ends[r / 3 % 6] : (uint8_t)(r >> 16);
}

float dq_probe_value(dq_probe *p)
{
    return ((float)(dq_probe_bits(p) >> 8) * 0x1p-24f - 0.5f) * 8.0f;
}

void dq_probe_check(dq_probe *p, bool right, const char *what, uint64_t which, uint64_t got,
                    uint64_t expected)
{
    p->cases++;
    if (right) return;
    if (!p->wrong++)
        snprintf(p->note, sizeof p->note,
                 "%s, case %" PRIu64 ": got 0x%" PRIx64 ", expected 0x%" PRIx64, what, which, got,
                 expected);
    p->worst = (double)p->wrong;
}
