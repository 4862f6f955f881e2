/* simt_runtime: the stand-in of the CUDA runtime: memory, one queue of work, streams and events. For one
 * host thread.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_core.h"

#include <deque>
#include <map>
#include <stdlib.h>
#include <time.h>

struct simt_stream {
    unsigned flags;
};
struct simt_event {
    double ms;
    uint64_t ticket; /* of the record, 0: never recorded */
};

struct simt_task {
    enum kind_t { COPY, FILL, LAUNCH, RECORD, FREE } kind;
    uint64_t ticket;
    unsigned char *dst;
    const unsigned char *src;
    unsigned char *staged; /* owned copy of host memory; src points into it */
    size_t dst_pitch, src_pitch, width, height;
    int byte;
    simt_launch_args launch;
    void (*drop)(void *);
    cudaEvent_t event;
};

static std::deque<simt_task> queue;
static uint64_t issued, done;
static cudaError_t last, sticky;
static simt_pieces host_memory;
static size_t used;

static size_t limit_from_environment(void)
{
    const char *mib = getenv("DQ_SIMT_MEMORY");
    return mib ? (size_t)(strtod(mib, NULL) * 1048576) : (size_t)1 << 30;
}
static size_t limit = limit_from_environment();

static bool idle;
static dq_simt_calls calls;

static int capability_from_environment(void)
{
    const char *ten_times = getenv("DQ_SIMT_CAPABILITY");
    return ten_times ? atoi(ten_times) : 80;
}
static int n_devices = 1, capability = capability_from_environment(), driver = 13000;
static unsigned next_cluster = 1;
static std::map<const void *, size_t> allowed_smem;

static cudaError_t say(cudaError_t e)
{
    if (sticky) e = sticky;
    if (e) last = e;
    return e;
}

/* --------------------------------------------------------------------------------------- the queue */
static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void forget(simt_pieces &m, void *p)
{
    m.erase((uintptr_t)p);
    free(p);
}

static void perform(simt_task &t)
{
    switch (t.kind) {
    case simt_task::COPY:
        for (size_t i = 0; i < t.height && !sticky; i++)
            memmove(t.dst + i * t.dst_pitch, t.src + i * t.src_pitch, t.width);
        free(t.staged);
        break;
    case simt_task::FILL:
        if (!sticky) memset(t.dst, t.byte, t.width);
        break;
    case simt_task::LAUNCH:
        if (!sticky && !simt_run(&t.launch)) sticky = last = cudaErrorLaunchFailure;
        t.drop(t.launch.body);
        break;
    case simt_task::RECORD: t.event->ms = now_ms(); break;
    case simt_task::FREE:
        used -= simt_device_memory[(uintptr_t)t.dst];
        simt_device_free(t.dst);
        break;
    }
}

static void drain(uint64_t ticket)
{
    while (!queue.empty() && done < ticket) {
        simt_task t = queue.front();
        queue.pop_front();
        perform(t);
        done = t.ticket;
    }
}

static void add(simt_task t)
{
    calls.launches += t.kind == simt_task::LAUNCH;
    calls.fills += t.kind == simt_task::FILL;
    if (idle && t.kind <= simt_task::LAUNCH) {
        free(t.staged);
        if (t.drop) t.drop(t.launch.body);
        return;
    }
    t.ticket = ++issued;
    queue.push_back(t);
}

void simt_enqueue(const void *kernel, const char *name, dim3 grid, unsigned threads, size_t smem,
                  cudaStream_t s, void (*run)(void *), void (*drop)(void *), void *body)
{
    (void)s;
    const unsigned cluster = next_cluster;
    next_cluster = 1;
    size_t allowed = allowed_smem.count(kernel) ? allowed_smem[kernel] : (size_t)SIMT_SMEM_DEFAULT;
    cudaError_t e = cudaSuccess;
    if (threads == 0 || threads % 32 || threads > SIMT_MAX_THREADS || !grid.x || !grid.y ||
        !grid.z || grid.y > 65535 || grid.z > 65535)
        e = cudaErrorInvalidConfiguration;
    else if (!cluster || cluster > SIMT_MAX_CLUSTER || grid.x % cluster ||
             (cluster > 1 && capability < 90))
        e = cudaErrorInvalidConfiguration;
    else if (smem > allowed)
        e = cudaErrorInvalidValue;
    if (say(e)) {
        drop(body);
        return;
    }
    simt_task t = {};
    t.kind = simt_task::LAUNCH;
    t.launch.name = name;
    t.launch.capability = capability;
    t.launch.cluster = cluster;
    t.launch.grid = grid;
    t.launch.threads = threads;
    t.launch.smem = smem;
    t.launch.run = run;
    t.launch.body = body;
    t.drop = drop;
    add(t);
}

void simt_next_cluster(unsigned blocks)
{
    next_cluster = blocks;
}

/* ------------------------------------------------------------------------------------------ memory */
/* Whether p .. p + bytes lies in a piece of m; inside: whether p lies in a piece at all. */
static bool holds(const simt_pieces &m, const void *p, size_t bytes, bool *inside)
{
    auto it = m.upper_bound((uintptr_t)p);
    *inside = false;
    if (it == m.begin()) return false;
    --it;
    size_t at = (uintptr_t)p - it->first;
    *inside = at < it->second;
    return at + bytes <= it->second;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = NULL;
    if (bytes == 0) return say(cudaSuccess);
    if (bytes > limit || used > limit - bytes) return say(cudaErrorMemoryAllocation);
    *p = simt_device_new(bytes, !idle);
    if (!*p) return say(cudaErrorMemoryAllocation);
    used += bytes;
    calls.blocks++;
    return say(cudaSuccess);
}

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s)
{
    (void)s;
    return cudaMalloc(p, bytes);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    (void)s;
    if (!p) return say(cudaSuccess);
    if (!simt_device_memory.count((uintptr_t)p)) return say(cudaErrorInvalidValue);
    simt_task t = {};
    t.kind = simt_task::FREE;
    t.dst = (unsigned char *)p;
    add(t);
    return say(cudaSuccess);
}

cudaError_t cudaFree(void *p)
{
    cudaError_t e = cudaFreeAsync(p, NULL);
    drain(issued);
    return e;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    if (posix_memalign(p, 4096, bytes ? bytes : 1)) return say(cudaErrorMemoryAllocation);
    memset(*p, SIMT_POISON, bytes);
    host_memory[(uintptr_t)*p] = bytes;
    return say(cudaSuccess);
}

cudaError_t cudaFreeHost(void *p)
{
    drain(issued);
    if (!p) return say(cudaSuccess);
    if (!host_memory.count((uintptr_t)p)) return say(cudaErrorInvalidValue);
    forget(host_memory, p);
    return say(cudaSuccess);
}

/* Whether p may be the device (or host) side of a copy of `bytes`; pinned: from cudaMallocHost. */
static bool side_is_right(const void *p, size_t bytes, bool device, bool *pinned)
{
    bool on_device, in_pinned;
    bool whole = holds(simt_device_memory, p, bytes, &on_device);
    bool whole_pinned = holds(host_memory, p, bytes, &in_pinned);
    *pinned = in_pinned;
    if (on_device != device) return false;
    return on_device ? whole : !in_pinned || whole_pinned;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t s)
{
    (void)s;
    if (width == 0 || height == 0) return say(cudaSuccess);
    if (width > dst_pitch || width > src_pitch) return say(cudaErrorInvalidValue);
    size_t dst_bytes = dst_pitch * (height - 1) + width,
           src_bytes = src_pitch * (height - 1) + width;
    bool dst_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool src_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool dst_pinned, src_pinned;
    if (kind == cudaMemcpyDefault) {
        holds(simt_device_memory, dst, dst_bytes, &dst_device);
        holds(simt_device_memory, src, src_bytes, &src_device);
    }
    if (!side_is_right(dst, dst_bytes, dst_device, &dst_pinned) ||
        !side_is_right(src, src_bytes, src_device, &src_pinned))
        return say(cudaErrorInvalidValue);
    calls.copies += src_device != dst_device;
    simt_task t = {};
    t.kind = simt_task::COPY;
    t.dst = (unsigned char *)dst;
    t.src = (const unsigned char *)src;
    t.dst_pitch = dst_pitch;
    t.src_pitch = src_pitch;
    t.width = width;
    t.height = height;
    if (!src_device && !src_pinned) { /* staged before the call returns */
        t.staged = (unsigned char *)malloc(src_bytes);
        if (!t.staged) return say(cudaErrorMemoryAllocation);
        for (size_t i = 0; i < height; i++)
            memcpy(t.staged + i * src_pitch, t.src + i * src_pitch, width);
        t.src = t.staged;
    }
    add(t);
    if (!dst_device && !dst_pinned) drain(issued); /* written before the call returns */
    return say(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, s);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, kind, NULL);
    drain(issued);
    return e ? e : say(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t s)
{
    (void)s;
    bool inside;
    if (bytes == 0) return say(cudaSuccess);
    if (!holds(simt_device_memory, p, bytes, &inside)) return say(cudaErrorInvalidValue);
    simt_task t = {};
    t.kind = simt_task::FILL;
    t.dst = (unsigned char *)p;
    t.byte = byte;
    t.width = bytes;
    add(t);
    return say(cudaSuccess);
}

cudaError_t cudaMemset(void *p, int byte, size_t bytes)
{
    cudaError_t e = cudaMemsetAsync(p, byte, bytes, NULL);
    drain(issued);
    return e ? e : say(cudaSuccess);
}

/* --------------------------------------------------------------------------------- streams, events */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    *s = new simt_stream{flags};
    return say(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithFlags(s, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    drain(issued);
    delete s;
    return say(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return cudaDeviceSynchronize();
}

cudaError_t cudaDeviceSynchronize(void)
{
    calls.waits++;
    drain(issued);
    return say(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    (void)s;
    drain(done + 1);
    if (sticky) return say(cudaSuccess);
    return queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)s; /* one queue: the order is there already */
    (void)flags;
    return say(e ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    *e = new simt_event{0, 0};
    return say(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    drain(issued);
    delete e;
    return say(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)s;
    simt_task t = {};
    t.kind = simt_task::RECORD;
    t.event = e;
    add(t);
    e->ticket = issued;
    return say(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (done < e->ticket) drain(done + 1);
    if (sticky) return say(cudaSuccess);
    return done >= e->ticket ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    drain(e->ticket);
    return say(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (!start->ticket || !end->ticket) return say(cudaErrorInvalidResourceHandle);
    if (done < start->ticket || done < end->ticket) return cudaErrorNotReady;
    *ms = (float)(end->ms - start->ms);
    return say(cudaSuccess);
}

/* ------------------------------------------------------------------------------- errors and devices */
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = sticky ? sticky : last;
    last = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sticky ? sticky : last;
}

static const struct {
    cudaError_t e;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"}};

const char *cudaGetErrorName(cudaError_t e)
{
    for (const auto &row : errors)
        if (row.e == e) return row.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
    for (const auto &row : errors)
        if (row.e == e) return row.text;
    return "unrecognized error code";
}

/* Why there is no device to speak of. */
static cudaError_t none(void)
{
    if (driver < 13000) return cudaErrorInsufficientDriver;
    return n_devices ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    if (none()) return say(none()); /* leaves *n as it is, as CUDA does */
    *n = n_devices;
    return say(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return say(none());
}

cudaError_t cudaSetDevice(int device)
{
    if (none()) return say(none());
    return say(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (none()) return say(none());
    if (device != 0) return say(cudaErrorInvalidDevice);
    *p = cudaDeviceProp{};
    strcpy(p->name, "simulated");
    p->totalGlobalMem = limit;
    p->sharedMemPerBlock = SIMT_SMEM_DEFAULT;
    p->sharedMemPerBlockOptin = SIMT_SMEM_LIMIT;
    p->warpSize = 32;
    p->maxThreadsPerBlock = SIMT_MAX_THREADS;
    p->major = capability / 10; /* 8.0 unless told: without wgmma */
    p->minor = capability % 10;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 1 << 20;
    return say(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr a, int device)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e) return e;
    switch (a) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    default: return say(cudaErrorInvalidValue);
    }
    return say(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = limit > used ? limit - used : 0;
    *total = limit;
    return say(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute a, int value)
{
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) return say(cudaSuccess);
    if (value < 0 || value > SIMT_SMEM_LIMIT) return say(cudaErrorInvalidValue);
    allowed_smem[kernel] = (size_t)value;
    return say(cudaSuccess);
}

/* ---------------------------------------------------------------------------------------- switches */
void dq_simt_set_schedule(dq_simt_schedule s, uint64_t seed)
{
    drain(issued);
    simt_set.schedule = s;
    simt_set.seed = seed;
}

void dq_simt_set_workers(int n)
{
    drain(issued);
    simt_set.workers = n;
}

void dq_simt_set_corners(int corners)
{
    drain(issued);
    simt_set.corners = corners != 0;
}

void dq_simt_set_quiet(int quiet)
{
    simt_set.quiet = quiet != 0;
}

void dq_simt_set_memory(size_t bytes)
{
    limit = bytes;
}

size_t dq_simt_memory_used(void)
{
    return used;
}

void dq_simt_set_idle(int set)
{
    idle = set != 0;
}

dq_simt_calls dq_simt_take_calls(void)
{
    const dq_simt_calls taken = calls;
    calls = {};
    return taken;
}

void dq_simt_set_devices(int n)
{
    n_devices = n;
}

void dq_simt_set_driver(int version)
{
    driver = version;
}

void dq_simt_set_capability(int ten_times)
{
    capability = ten_times;
}

void dq_simt_reset(void)
{
    drain(issued);
    simt_forget_failure();
    sticky = last = cudaSuccess;
}
