/* example: what a model writes after a prompt, and how likely it finds two continuations.
 *   cc example.c $(pkg-config --cflags --libs libdq) -lm -o example && ./example model.gguf "The capital of France is"
 * SPDX-License-Identifier: MIT */
#include <dq.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static int print_piece(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    (void)arg;
    (void)id;
    (void)logp;
    fwrite(piece, 1, len, stdout);
    fflush(stdout);
    return 0;
}

/* The probability of `next` after ids[n]. */
static int print_probability(dq_lm *m, const int32_t *ids, int64_t n, const char *next)
{
    int32_t *rest, both[4096];
    int64_t n_rest;
    double logp;
    int greedy, status = dq_lm_encode(m, next, strlen(next), 0, &rest, &n_rest);
    if (status == 0 && n + n_rest <= 4096) {
        memcpy(both, ids, (size_t)n * sizeof *both);
        memcpy(both + n, rest, (size_t)n_rest * sizeof *both);
        const dq_lm_request request = {both, n + n_rest, n};
        status = dq_lm_score(m, &request, 1, &logp, &greedy);
        if (status == 0) printf("\"%s\" has the probability %.4f\n", next, exp(logp));
    }
    dq_lm_free(rest);
    return status;
}

int main(int argc, char **argv)
{
    const char *const settings[] = {"logit_bits=8", "kv_bits=8", NULL};
    dq_lm *m = NULL;
    int32_t *ids = NULL, new_ids[32];
    int64_t n = 0, n_new;
    if (argc != 3) {
        fprintf(stderr, "usage: example MODEL PROMPT\n");
        return 2;
    }
    int status = dq_lm_open(&m, argv[1], settings);
    if (status == 0) status = dq_lm_encode(m, argv[2], strlen(argv[2]), 2, &ids, &n);
    if (status == 0)
        status = dq_lm_generate(m, ids, n, 32, NULL, print_piece, NULL, new_ids, &n_new);
    if (status == 0) putchar('\n');
    if (status == 0) status = print_probability(m, ids, n, " Paris");
    if (status == 0) status = print_probability(m, ids, n, " Lyon");
    if (status) fprintf(stderr, "example: %s\n", dq_lm_error());
    dq_lm_free(ids);
    dq_lm_close(m);
    return status;
}
