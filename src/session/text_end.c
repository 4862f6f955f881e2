/* text_end: names by number.
 * SPDX-License-Identifier: MIT */
#include "session/text_end.h"

const char *const dq_text_end_name[] = {"none", "stop_id", "asked", "max_new", "positions"};
