/* replay: runs a fuzz target over its stored corpus without a fuzzing compiler, plus every truncation
 * and some single-byte changes of small inputs. Linked with one fuzz_*.c.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* scandir */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CUTS = 64, FLIPS = 64 };

/* Cuts and flips at places spread evenly over the input. */
static void vary(uint8_t *data, size_t n)
{
    for (size_t i = 0; i < CUTS && i < n; i++) {
        size_t cut = n * i / (n < CUTS ? n : CUTS);
        uint8_t *copy = malloc(cut ? cut : 1); /* exact size: an overread is seen */
        if (!copy) return;
        memcpy(copy, data, cut);
        LLVMFuzzerTestOneInput(copy, cut);
        free(copy);
    }
    for (size_t i = 0; i < FLIPS && i < n; i++) {
        size_t at = n * i / (n < FLIPS ? n : FLIPS);
        uint8_t old = data[at];
        data[at] ^= (uint8_t)(1u << (i % 8));
        LLVMFuzzerTestOneInput(data, n);
        data[at] = old;
    }
}

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) return -1;
    long size = ftell(f);
    if (size < 0 || fseek(f, 0, SEEK_SET) != 0) return -1;
    size_t n = (size_t)size;
    uint8_t *data = malloc(n ? n : 1);
    if (!data || fread(data, 1, n, f) != n) return -1;
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    vary(data, n);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    struct dirent **entry;
    int n, ran = 0;
    if (argc != 2 || (n = scandir(argv[1], &entry, NULL, alphasort)) < 0) {
        fprintf(stderr, "usage: replay CORPUS_FOLDER\n");
        return 2;
    }
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry[i]->d_name);
        if (entry[i]->d_name[0] != '.') {
            if (run_file(path) != 0) {
                fprintf(stderr, "replay: cannot read %s\n", path);
                return 1;
            }
            ran++;
        }
        free(entry[i]);
    }
    free(entry);
    printf("%d inputs, each with cuts and flips\n", ran);
    return ran ? 0 : 1;
}
