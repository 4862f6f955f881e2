/* gpu_probes: runs every probe on the first CUDA device and prints one JSON document.
 *   gpu_probes [NAME-PREFIX]
 * Exit 0: all as the models say; 1: something is not; 5: no device.
 * SPDX-License-Identifier: MIT */
#include "tests/gpu/probes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

static json_t *run(const dq_probe_entry *entry, int *failed)
{
    dq_probe p = {.name = entry->name, .random = 20240607};
    entry->run(&p);
    if (p.cases == 0 && !p.error[0]) snprintf(p.error, sizeof p.error, "no case was tried");
    bool wrong = dq_probe_went_wrong(&p);
    *failed += wrong;
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:s}", "name", p.name, "status",
                     wrong ? "failed" : "passed", "cases", (json_int_t)p.cases, "wrong",
                     (json_int_t)p.wrong, "worst",
                     isfinite(p.worst) ? json_real(p.worst) : json_null(), "note",
                     p.error[0] ? p.error : p.note);
}

static json_t *device_object(void)
{
    struct cudaDeviceProp prop;
    int driver = 0, runtime = 0;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess) return json_null();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "name", prop.name, "major", prop.major,
                     "minor", prop.minor, "multiprocessors", prop.multiProcessorCount, "driver",
                     driver, "runtime", runtime);
}

int main(int argc, char **argv)
{
    const dq_probe_entry *const lists[] = {dq_probes_matrix, dq_probes_numbers, dq_probes_threads};
    const char *prefix = argc > 1 ? argv[1] : "";
    int devices = 0, driver = 0, failed = 0;
    cudaError_t e = cudaGetDeviceCount(&devices);
    if (e != cudaSuccess || devices == 0) {
        cudaDriverGetVersion(&driver);
        fprintf(stderr, "gpu_probes: no CUDA device (%s; driver version %d); nothing was probed\n",
                e == cudaSuccess ? "none found" : cudaGetErrorString(e), driver);
        return 5;
    }
    json_t *probes = json_array();
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const dq_probe_entry *entry = lists[i]; entry->name; entry++)
            if (strncmp(entry->name, prefix, strlen(prefix)) == 0)
                json_array_append_new(probes, run(entry, &failed));
    if (json_array_size(probes) == 0) failed = 1; /* a name that does not exist */
    json_t *doc = json_pack("{s:s, s:o, s:i, s:o}", "schema", "dq-probes/1", "device",
                            device_object(), "failed", failed, "probes", probes);
    int written = json_dumpf(doc, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(doc);
    return failed || written != 0 || ferror(stdout) ? 1 : 0;
}
