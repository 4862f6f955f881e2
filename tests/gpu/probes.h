/* probes: does a device do what ptx.cuh and the models say? One probe per name: operands through a kernel,
 * results against the model. The same sources run on the simulation, which shows that the probes
 * themselves are right.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PROBES_H
#define DQ_PROBES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dq_probe {
    const char *name;
    uint64_t cases, wrong;
    double worst; /* what it measures, or the number wrong of those that must be equal */
    char note[256];
    char error[128]; /* of CUDA; "": none */
    uint64_t random;
} dq_probe;

typedef struct dq_probe_entry {
    const char *name;
    void (*run)(dq_probe *p);
} dq_probe_entry;

/* Ended by a NULL name. */
extern const dq_probe_entry dq_probes_matrix[], dq_probes_numbers[], dq_probes_threads[];

/* Device memory that holds bytes of host, or 0xff throughout where host is NULL; NULL on failure, which the
 * probe notes. */
void *dq_probe_put(dq_probe *p, const void *host, size_t bytes);
/* Waits, copies to host (NULL: nothing), frees. */
void dq_probe_take(dq_probe *p, void *host, void *device, size_t bytes);
/* Zeroed; ends the program where there is no memory. */
void *dq_probe_room(size_t n, size_t size);
uint32_t dq_probe_bits(dq_probe *p);
/* A random byte; each end of both ranges often. */
uint8_t dq_probe_byte(dq_probe *p);
/* A random f32 of about -4..4. */
float dq_probe_value(dq_probe *p);
/* Counts a case. The first that is wrong is noted: what, which case, got, expected. */
void dq_probe_check(dq_probe *p, bool right, const char *what, uint64_t which, uint64_t got,
                    uint64_t expected);
bool dq_probe_went_wrong(const dq_probe *p);

#ifdef __cplusplus
}
#endif

#endif
