/* runtime: the CUDA runtime API, NVIDIA's or, with DQ_SIMT, that of the tests under the same names;
 * and a trace of launches. C and C++.
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
 * Seconds of each kernel on the device, for benchmarks: every launch of DQ_LAUNCH and every product
 * of cuBLAS stands between two events. On an idle device the first event passes early, so that some
 * microseconds of launching count too. One trace at a time, of one thread. */

#ifdef __cplusplus
extern "C" {
#endif

/* Launches are recorded from now on; more than 65536 of them are an error of stop. */
void dq_trace_start(void);
/* Of launches inside each other the outermost counts; `kernel` must outlive the trace. */
void dq_trace_begin(const char *kernel, cudaStream_t s);
void dq_trace_end(cudaStream_t s);
/* Ends the trace and calls take once a kernel, in the order of first launches. */
typedef void dq_trace_take(void *arg, const char *kernel, int launches, double seconds);
cudaError_t dq_trace_stop(dq_trace_take *take, void *arg);

#ifdef __cplusplus
}
#endif

#endif
