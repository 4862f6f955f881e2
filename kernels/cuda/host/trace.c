/* trace: grows its list by hand, as the simulator and the probes of a GPU link it without dq_grow.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/runtime.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 65536 };

typedef struct launch {
    const char *kernel;
    cudaEvent_t begin, end;
    bool counted;
} launch;

static struct {
    bool on;
    int depth;      /* of begins without an end: the outermost counts */
    launch *launch; /* [capacity] */
    int n, capacity;
    cudaError_t error;
} trace;

void dq_trace_start(void)
{
    trace.on = true;
    trace.n = trace.depth = 0;
    trace.error = cudaSuccess;
}

static bool grow(void)
{
    const int capacity = trace.capacity ? 2 * trace.capacity : 256;
    if (trace.n < trace.capacity) return true;
    if (capacity > MAX) return false;
    launch *more = realloc(trace.launch, (size_t)capacity * sizeof *more);
    if (!more) return false;
    trace.launch = more;
    trace.capacity = capacity;
    return true;
}

static void note(cudaError_t e)
{
    if (e != cudaSuccess) cudaGetLastError(); /* or the next launch would seem to have failed */
    if (trace.error == cudaSuccess) trace.error = e;
}

void dq_trace_begin(const char *kernel, cudaStream_t s)
{
    if (!trace.on || trace.depth++ || trace.error != cudaSuccess) return;
    if (!grow()) {
        trace.error = cudaErrorMemoryAllocation;
        return;
    }
    launch *l = &trace.launch[trace.n];
    *l = (launch){.kernel = kernel};
    note(cudaEventCreate(&l->begin));
    note(cudaEventCreate(&l->end));
    note(cudaEventRecord(l->begin, s));
}

void dq_trace_end(cudaStream_t s)
{
    if (!trace.on || --trace.depth || trace.error != cudaSuccess) return;
    note(cudaEventRecord(trace.launch[trace.n++].end, s));
}

static void sum_of(int first, dq_trace_take *take, void *arg)
{
    int launches = 0;
    double seconds = 0;
    for (int i = first; i < trace.n; i++) {
        launch *l = &trace.launch[i];
        float ms = 0;
        if (l->counted || strcmp(l->kernel, trace.launch[first].kernel) != 0) continue;
        note(cudaEventElapsedTime(&ms, l->begin, l->end));
        seconds += (double)ms / 1000;
        launches++;
        l->counted = true;
    }
    take(arg, trace.launch[first].kernel, launches, seconds);
}

cudaError_t dq_trace_stop(dq_trace_take *take, void *arg)
{
    trace.on = false;
    note(cudaDeviceSynchronize());
    for (int i = 0; i < trace.n && trace.error == cudaSuccess; i++)
        if (!trace.launch[i].counted) sum_of(i, take, arg);
    for (int i = 0; i < trace.n; i++) {
        cudaEventDestroy(trace.launch[i].begin);
        cudaEventDestroy(trace.launch[i].end);
    }
    free(trace.launch);
    trace.launch = NULL;
    trace.n = trace.capacity = 0;
    return trace.error;
}
