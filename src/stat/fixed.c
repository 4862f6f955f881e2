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

static void add_term(dq_fixed *f, const dq_fixed *term, bool negative)
{
    dq_fixed copy = *term;
    if (negative) negate(&copy);
    dq_fixed_merge(f, &copy);
}

/* Two words on, carries after them. The sum is of one sign, which is +, and may outgrow it. */
static void add_words(dq_fixed *f, int first, uint64_t low, uint64_t high)
{
    uint64_t word = f->word[first] += low, carry = word < low;
    for (int i = first + 1; i < WORDS && (high || carry); i++) {
        const uint64_t more = high + carry; /* high is below 2^53 */
        word = f->word[i] += more;
        carry = word < more;
        high = 0;
    }
    if (f->word[3] & sign) *f = (dq_fixed){{0, 0, 0, sign}};
}

void dq_fixed_add(dq_fixed *f, double x)
{
    uint64_t bits, low, high = 0;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> (DIGITS - 1) & 0x7ff);
    int place = POINT + exponent - 1022 - DIGITS; /* of the lowest digit */
    if (place + DIGITS >= 64 * WORDS) {           /* or not finite */
        add_term(f, &(dq_fixed){{0, 0, 0, sign}}, false);
        return;
    }
    if (place <= -DIGITS) return; /* or 0 */
    low = (bits & (((uint64_t)1 << (DIGITS - 1)) - 1)) | (uint64_t)1 << (DIGITS - 1);
    if (place < 0) {
        low >>= -place;
        place = 0;
    }
    const int first = place / 64, shift = place % 64;
    if (shift > 64 - DIGITS) high = low >> (64 - shift);
    low <<= shift;
    if (!((bits | f->word[3]) & sign)) {
        add_words(f, first, low, high);
        return;
    }
    dq_fixed term = {{0}};
    term.word[first] = low;
    if (first < WORDS - 1) term.word[first + 1] = high;
    add_term(f, &term, bits & sign);
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
