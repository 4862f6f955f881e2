/* real: see real.h. What strtod takes beyond decimal notation shows in the first two characters.
 * SPDX-License-Identifier: MIT */
#include "base/real.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

double dq_real_parse(const char *text, char **end)
{
    const char *digits = text + (*text == '-' || *text == '+');
    const bool hex = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
    if (!hex && strchr("0123456789.", *digits) && *digits) return strtod(text, end);
    *end = (char *)(uintptr_t)text;
    return 0;
}
