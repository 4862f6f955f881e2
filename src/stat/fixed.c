/* fixed: see fixed.h. A double is 53 bits at some place of the number: they are shifted there, over two words at most, and added
 * with carries. NaN is the one pattern that no sum has, 1 followed by zeros.
 * SPDX-License-Identifier: MIT */
#include "stat/fixed.h"

#include <math.h>
#include <string.h>

enum { WORDS = 4, POINT = 128, DIGITS = 53 };
static const uint64_t sign = (uint64_t)1 << 63;

static bool is_nan(const dq_fixed *f)
{
    return f->word[3] == sign && !f->word[0] && !f->word[1] && !f->word[2];
}

static void negate(dq_fixed *f)
{
    uint64_t carry = 1;
    for (int i = 0; i < WORDS; i++) {
        f->word[i] = ~f->word[i] + carry;
        carry = carry && !f->word[i];
    }
}

bool dq_fixed_is_count(int64_t n)
{
    return n >= 0 && n <= (int64_t)1 << 46;
}

void dq_fixed_merge(dq_fixed *into, const dq_fixed *from)
{
    const bool negative = into->word[3] & sign;
    const bool overflows = negative == (bool)(from->word[3] & sign);
    uint64_t carry = 0;
    if (is_nan(into)) return;
    if (is_nan(from)) {
        *into = *from;
        return;
    }
    for (int i = 0; i < WORDS; i++) {
        const uint64_t half = into->word[i] + carry;
        carry = half < carry;
        into->word[i] = half + from->word[i];
        carry += into->word[i] < half;
    }
    if (overflows && negative != (bool)(into->word[3] & sign)) *into = (dq_fixed){{0, 0, 0, sign}};
}

void dq_fixed_add(dq_fixed *f, double x)
{
    dq_fixed term = {{0}};
    int exponent;
    uint64_t digits = (uint64_t)ldexp(frexp(fabs(x), &exponent), DIGITS);
    int place = POINT + exponent - DIGITS; /* of the lowest digit */
    if (!isfinite(x) || place + DIGITS >= 64 * WORDS) {
        term.word[3] = sign;
        dq_fixed_merge(f, &term);
        return;
    }
    if (place <= -DIGITS) return;
    if (place < 0) {
        digits >>= -place;
        place = 0;
    }
    term.word[place / 64] = digits << place % 64;
    if (place % 64 && place / 64 < WORDS - 1)
        term.word[place / 64 + 1] = digits >> (64 - place % 64);
    if (x < 0) negate(&term);
    dq_fixed_merge(f, &term);
}

double dq_fixed_value(const dq_fixed *f)
{
    dq_fixed size = *f;
    const bool negative = f->word[3] & sign;
    double value = 0;
    if (is_nan(f)) return (double)NAN;
    if (negative) negate(&size);
    for (int i = 0; i < WORDS; i++) value += ldexp((double)size.word[i], 64 * i - POINT);
    return negative ? -value : value;
}
