/* fuzz_prequant: any bytes as a folder that another tool has quantized: config.json up to the first NUL, model.safetensors
 * after it. What is accepted must have values to its last row; what is refused must say why.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "checkpoint/checkpoint.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PATH = 64 };

static bool put(char path[PATH], const char *folder, const char *name, const void *p, size_t n)
{
    snprintf(path, PATH, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    const bool good = n == 0 || fwrite(p, 1, n, f) == n;
    return fclose(f) == 0 && good;
}

static void read_weight(const dq_weight *w)
{
    volatile float sink = 0;
    float *row = w->cols > 0 ? malloc((size_t)w->cols * sizeof *row) : NULL;
    for (int64_t r = 0; row && r < w->rows; r++) {
        dq_weight_dequantize_rows(row, w, r, r + 1);
        for (int64_t c = 0; c < w->cols; c++) sink = sink + row[c];
    }
    free(row);
}

/* Twice, as a second run of the same model would. */
static void load(dq_prequant *p)
{
    const dq_source s = dq_prequant_source(p);
    for (int run = 0; run < 2; run++) {
        dq_err err = {0};
        if (dq_prequant_source(p).load(p, &err) != DQ_OK) {
            if (err.text[0] == 0) abort();
            return;
        }
    }
    for (int64_t i = 0; i < s.count; i++) {
        dq_weight w;
        if (!s.find(s.arg, s.name_at(s.arg, i), &w)) abort();
        if (dq_weight_is_coded(&w)) read_weight(&w);
    }
}

static void run(const char *folder)
{
    dq_err err = {0};
    dq_checkpoint *c = NULL;
    dq_prequant *p = NULL;
    if (dq_checkpoint_open(&c, folder, &err) == DQ_OK && dq_prequant_open(&p, c, &err) == DQ_OK &&
        p)
        load(p);
    if (err.code != DQ_OK && err.text[0] == 0) abort(); /* every refusal explains itself */
    dq_prequant_close(p);
    dq_checkpoint_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char folder[] = "/tmp/dq-fuzz-XXXXXX", config[PATH], weights[PATH];
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    if (!end || !mkdtemp(folder)) return 0;
    const size_t n = (size_t)(end - data);
    const bool made = put(config, folder, "config.json", data, n);
    if (put(weights, folder, "model.safetensors", end + 1, size - n - 1) && made) run(folder);
    unlink(config);
    unlink(weights);
    rmdir(folder);
    return 0;
}
