/* trellis_levels: finds the tables of src/tensor/trellis.c.
 *
 *     gcc -O3 -march=native -o trellis_levels studies/weights/trellis_levels.c -lm
 *     ./trellis_levels 2 2.8; ./trellis_levels 3 2; ./trellis_levels 4 2; ./trellis_levels 5 2     # BITS REACH, a minute each
 *
 * Draws groups of 64 values of a normal distribution, each in its unit (tensor.h), deals them to rings, and takes turns: rings by
 * Viterbi's algorithm, then each level as the mean of the values that it stands for, weighted by squared units. Begins with quantiles in a
 * random order, several times, and prints the table that loses least on values which it has not seen. Prints the reach, the units of
 * level 127, the mean square of what is lost in units, the same beside values of deviation 1, and the levels. Last digits depend on
 * the compiler.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEVELS = 256,
    RING = 128,
    RINGS = 768,
    N = RING * RINGS,
    GROUP = 64,
    STARTS = 20,
    TURNS = 40,
    CLOSED = 3
};

static uint64_t state = 88172645463325252u;
static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static double normal(void)
{
    const double a = uniform() + 1e-300, b = uniform();
    return sqrt(-2 * log(a)) * cos(6.283185307179586 * b);
}

static void swap(float *a, float *b)
{
    const float t = *a;
    *a = *b;
    *b = t;
}

/* Values in units, and squared units, in a random order: neighbours in a ring are of other groups. Returns the mean squared unit. */
static double draw(float *x, float *weight, double reach)
{
    double units = 0;
    for (int i = 0; i < N; i += GROUP) {
        double v[GROUP], square = 0, peak = 0;
        for (int k = 0; k < GROUP; k++) {
            v[k] = normal();
            square += v[k] * v[k] / GROUP;
            peak = fmax(peak, fabs(v[k]));
        }
        const double unit = fmax(sqrt(square), peak / reach);
        units += unit * unit * GROUP / N;
        for (int k = 0; k < GROUP; k++) {
            x[i + k] = (float)(v[k] / unit);
            weight[i + k] = (float)(unit * unit);
        }
    }
    for (int i = N - 1; i > 0; i--) {
        const int k = (int)(uniform() * (i + 1));
        swap(&x[i], &x[k]);
        swap(&weight[i], &weight[k]);
    }
    return units;
}

static float level[LEVELS];

/* Windows of a ring that begins and ends in `state` (-1: in any); row 0 is `from`. */
static void search(uint8_t *u, const float *x, const float *weight, int bits, int from, int start)
{
    static uint8_t came[RING][64];
    const int states = LEVELS >> bits, choices = 1 << bits;
    float cost[64], next[64];
    for (int s = 0; s < states; s++) cost[s] = start < 0 || s == start ? 0 : INFINITY;
    for (int i = 0; i < RING; i++) {
        const int r = (from + i) % RING;
        for (int s = 0; s < states; s++) {
            next[s] = INFINITY;
            for (int k = 0; k < choices; k++) {
                const int w = s << bits | k;
                const float d = x[r] - level[w], sum = cost[w & (states - 1)] + d * d * weight[r];
                if (!(sum < next[s])) continue;
                next[s] = sum;
                came[i][s] = (uint8_t)w;
            }
        }
        memcpy(cost, next, sizeof cost);
    }
    int s = start < 0 ? 0 : start;
    for (int k = 0; start < 0 && k < states; k++) s = cost[k] < cost[s] ? k : s;
    for (int i = RING - 1; i >= 0; i--) {
        u[(from + i) % RING] = came[i][s];
        s = came[i][s] & (states - 1);
    }
}

/* Squared errors of all rings, per value; sum and count of what each level stands for. */
static double lose(const float *x, const float *weight, int bits, int closed, double sum[LEVELS],
                   double count[LEVELS])
{
    double lost = 0;
    memset(sum, 0, LEVELS * sizeof *sum);
    memset(count, 0, LEVELS * sizeof *count);
    for (int i = 0; i < N; i += RING) {
        uint8_t u[RING];
        search(u, x + i, weight + i, bits, closed ? RING / 2 : 0, -1);
        if (closed) search(u, x + i, weight + i, bits, 0, u[0] & ((LEVELS >> bits) - 1));
        for (int r = 0; r < RING; r++) {
            const double w = weight[i + r], d = x[i + r] - level[u[r]];
            lost += w * d * d / N;
            sum[u[r]] += w * x[i + r];
            count[u[r]] += w;
        }
    }
    return lost;
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Quantiles of the values, in a random order. */
static void begin(const float *sorted)
{
    for (int w = 0; w < LEVELS; w++) level[w] = sorted[(int)((w + .5) / LEVELS * N)];
    for (int w = LEVELS - 1; w > 0; w--) swap(&level[w], &level[(int)(uniform() * (w + 1))]);
}

/* To whole numbers of 127ths of the largest, which is returned. */
static float round_levels(int8_t code[LEVELS])
{
    float peak = 0;
    for (int w = 0; w < LEVELS; w++) peak = fmaxf(peak, fabsf(level[w]));
    for (int w = 0; w < LEVELS; w++) {
        code[w] = (int8_t)rintf(level[w] / peak * 127);
        level[w] = (float)code[w] * peak / 127;
    }
    return peak;
}

int main(int argc, char **argv)
{
    static float x[N], weight[N], unseen[N], its[N], sorted[N];
    double sum[LEVELS], count[LEVELS], least = INFINITY, peak = 0;
    int8_t best[LEVELS];
    if (argc != 3) return fprintf(stderr, "usage: trellis_levels BITS REACH\n"), 2;
    const int bits = atoi(argv[1]);
    const double reach = atof(argv[2]);
    draw(x, weight, reach);
    const double units = draw(unseen, its, reach);
    memcpy(sorted, x, sizeof x);
    qsort(sorted, N, sizeof *sorted, ascending);
    for (int start = 0; start < STARTS; start++) {
        int8_t code[LEVELS];
        begin(sorted);
        for (int turn = 0; turn < TURNS; turn++) {
            lose(x, weight, bits, turn >= TURNS - CLOSED, sum, count);
            for (int w = 0; w < LEVELS; w++)
                if (count[w] > 0) level[w] = (float)(sum[w] / count[w]);
        }
        const float most = round_levels(code);
        const double lost = lose(unseen, its, bits, 1, sum, count);
        if (lost >= least) continue;
        least = lost;
        peak = most;
        memcpy(best, code, sizeof best);
    }
    printf("reach %g, peak %.4f, error %.5f (%.5f of the mean square)\n", reach, peak,
           least / units, least);
    for (int w = 0; w < LEVELS; w++) printf("%d,%s", best[w], w % 16 == 15 ? "\n" : " ");
    return 0;
}
