/* runtime: the CUDA runtime API for the host code of the backend: NVIDIA's own header, or, with DQ_SIMT,
 * the stand-in of the tests under the same names; and a trace of launches. C and C++.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RUNTIME_H
#define DQ_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef DQ_SIMT
#include "tests/simt/simt_runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

/* ---- trace ----
 * How long each kernel takes on the device, for benchmarks: between start and stop every launch of
 * DQ_LAUNCH and every product of cuBLAS stands between two events. Where the device has nothing else to
 * do, the first event passes before the kernel is there, so that some microseconds of launching count
 * too. One trace at a time, of one thread. */

#ifdef __cplusplus
extern "C" {
#endif

/* Launches are recorded from now on; more than 65536 of them are an error of stop. */
void dq_trace_start(void);
/* Around a launch; nothing without a trace. Of launches inside each other the outermost counts. `kernel` must outlive
 * the trace. */
void dq_trace_begin(const char *kernel, cudaStream_t s);
void dq_trace_end(cudaStream_t s);
/* Waits for the device and ends the trace: take(arg, ...) once a kernel, in the order of their first launches, with
 * the sum of its launches' seconds on the device. */
typedef void dq_trace_take(void *arg, const char *kernel, int launches, double seconds);
cudaError_t dq_trace_stop(dq_trace_take *take, void *arg);

#ifdef __cplusplus
}
#endif

#endif
