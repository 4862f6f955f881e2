/* kv_help: what --help says of an option of KV caches.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_HELP_H
#define DQ_KV_HELP_H

#include "kv/kv.h"

enum { DQ_KV_HELP = 512 };

/* The help of a field that has one, {default} and {names} filled in; cut off where it has more bytes than that, with its 0. */
void dq_kv_help_fill(char help[DQ_KV_HELP], const dq_kv_field *f);

#endif
