/* tokenize_dq: the dq side of tokenizer.py. Encodes documents with libdq, on one thread, and decodes
 * the ids again: tokenize_dq TOKENIZER DOCUMENTS ROUNDS IDS TEXTS. A document in the files DOCUMENTS
 * and TEXTS is a 32-bit length with its bytes, in IDS a 32-bit number with that many 32-bit ids.
 * Prints the seconds of each round of encoding and those of decoding.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void quit(const char *what)
{
    fprintf(stderr, "tokenize_dq: %s\n", what);
    exit(1);
}

static char *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) quit(path);
    *len = (size_t)ftell(f);
    char *s = malloc(*len + 1);
    rewind(f);
    if (!s || fread(s, 1, *len, f) != *len) quit(path);
    fclose(f);
    return s;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put(FILE *f, const void *p, size_t n, size_t size)
{
    uint32_t count = (uint32_t)n;
    if (fwrite(&count, sizeof count, 1, f) != 1 || fwrite(p, size, n, f) != n) quit("cannot write");
}

/* Seconds of encoding (and with ids, of decoding too: those go to *decode). */
static double pass(const dq_tokenizer *t, const char *docs, size_t size, FILE *ids_out,
                   FILE *text_out, double *decode)
{
    double encode = 0;
    dq_err err = {0};
    for (size_t at = 0; at < size;) {
        uint32_t len;
        int32_t *ids;
        int64_t n;
        memcpy(&len, docs + at, sizeof len);
        at += sizeof len;
        double begin = now();
        if (dq_tokenizer_encode(t, docs + at, len, 0, &ids, &n, NULL, NULL, &err)) quit(err.text);
        encode += now() - begin;
        at += len;
        if (ids_out) {
            char *text;
            size_t text_len;
            begin = now();
            if (dq_tokenizer_decode(t, ids, n, DQ_TOK_SPECIAL, &text, &text_len, &err))
                quit(err.text);
            *decode += now() - begin;
            put(ids_out, ids, (size_t)n, sizeof *ids);
            put(text_out, text, text_len, 1);
            dq_block_free(text);
        }
        dq_block_free(ids);
    }
    return encode;
}

int main(int argc, char **argv)
{
    dq_err err = {0};
    dq_tokenizer *t;
    size_t json_len, size;
    double decode = 0;
    if (argc != 6) quit("usage: tokenize_dq TOKENIZER DOCUMENTS ROUNDS IDS TEXTS");
    char *json = slurp(argv[1], &json_len), *docs = slurp(argv[2], &size);
    double begin = now();
    if (dq_tokenizer_load(&t, json, json_len, NULL, 0, &err)) quit(err.text);
    printf("load %.6f\n", now() - begin);
    for (int i = 0; i < atoi(argv[3]); i++)
        printf("encode %.6f\n", pass(t, docs, size, NULL, NULL, NULL));
    FILE *ids = fopen(argv[4], "wb"), *texts = fopen(argv[5], "wb");
    if (!ids || !texts) quit("cannot write");
    pass(t, docs, size, ids, texts, &decode);
    if (fclose(ids) || fclose(texts)) quit("cannot write");
    printf("decode %.6f\n", decode);
    dq_tokenizer_free(t);
    free(json);
    free(docs);
    return 0;
}
