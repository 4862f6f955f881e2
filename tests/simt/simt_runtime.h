/* simt_runtime: a stand-in for the part of the CUDA runtime API that host code of the backend uses,
 * under the same names, and the switches of the simulation. "Device" memory is the heap.
 *
 * Copies, fills and launches wait in one queue, in their order, until something that CUDA makes wait
 * runs them; so a missing synchronization leaves stale bytes behind. As with CUDA, host memory that is
 * not from cudaMallocHost is read before cudaMemcpyAsync returns and written before it returns.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_RUNTIME_H
#define DQ_SIMT_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

struct cudaDeviceProp { /* the fields that are read */
    char name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    size_t sharedMemPerBlockOptin;
    int warpSize;
    int maxThreadsPerBlock;
    int major, minor;
    int multiProcessorCount;
    int l2CacheSize;
};

typedef struct dim3 {
    unsigned x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz)
    {
    }
#endif
} dim3;

typedef struct simt_stream *cudaStream_t; /* NULL: the default stream */
typedef struct simt_event *cudaEvent_t;

#define cudaStreamDefault      0u
#define cudaStreamNonBlocking  1u
#define cudaEventDefault       0u
#define cudaEventDisableTiming 2u

cudaError_t cudaGetLastError(void); /* and forgets it, unless a kernel failed */
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute a, int value);

/* Filled with 0xA5; 256 MiB and more are zero and take memory only where they are touched. With DQ_SIMT_GUARD
 * in the environment a block ends, but for what 16 bytes leave, where an access is fatal and reported. */
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p); /* waits for the device; NULL allowed */
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s);
cudaError_t cudaFreeAsync(void *p, cudaStream_t s);
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t s);
cudaError_t cudaMemset(void *p, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t s);

cudaError_t cudaStreamCreate(cudaStream_t *s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

/* ------------------------------------------------------------------- switches of the simulation */
/* In which order the threads of a block run, as far as barriers leave it open. GREEDY (the default)
 * runs one warp until all its lanes wait before any other warp, warps and lanes in an order drawn from
 * the seed; it finds missing barriers that ROUND_ROBIN, one thread after the other, hides. */
typedef enum dq_simt_schedule { DQ_SIMT_GREEDY, DQ_SIMT_ROUND_ROBIN } dq_simt_schedule;

/* Everything below starts from DQ_SIMT_SCHEDULE (greedy, round-robin), DQ_SIMT_SEED, DQ_SIMT_WORKERS
 * and DQ_SIMT_QUIET of the environment. */
void dq_simt_set_schedule(dq_simt_schedule s, uint64_t seed);
/* OS threads that run blocks of one launch (default 1). */
void dq_simt_set_workers(int n);
/* Of a launch only blocks run that are first, middle or last on every axis of the grid. */
void dq_simt_set_corners(int corners);
/* Failures are written to stderr unless quiet. */
void dq_simt_set_quiet(int quiet);
/* Device memory in bytes; above it cudaMalloc fails. Default DQ_SIMT_MEMORY of the environment in MiB, or 1 GiB. */
void dq_simt_set_memory(size_t bytes);
size_t dq_simt_memory_used(void);
/* Idle: launches, copies and fills are counted and not done, and memory is never filled; so only the host's own work
 * takes time. */
void dq_simt_set_idle(int idle);
/* What the host has asked of the device since the last reset of the counts. Copies are those between host and device,
 * blocks those that cudaMalloc gave. */
typedef struct dq_simt_calls {
    int64_t launches, copies, fills, waits, blocks;
} dq_simt_calls;
dq_simt_calls dq_simt_take_calls(void); /* and begins anew */
/* 0: cudaGetDeviceCount finds none. Default 1. */
void dq_simt_set_devices(int n);
/* As cudaDriverGetVersion has it; 0: no driver is installed. Below the runtime's 13000 there is no device. */
void dq_simt_set_driver(int version);
/* Default DQ_SIMT_CAPABILITY of the environment, or 80. */
void dq_simt_set_capability(int ten_times);
/* What went wrong in the first kernel that failed, "" if none did; until the next reset. */
const char *dq_simt_report(void);
/* Forgets errors, also those that CUDA never forgets. */
void dq_simt_reset(void);

#ifdef __cplusplus
}
#endif

#endif
