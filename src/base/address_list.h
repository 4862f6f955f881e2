/* address_list: what belongs to an address, in order of addresses: found by bisection, few are added.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ADDRESS_LIST_H
#define DQ_ADDRESS_LIST_H

#include "base/base.h"

/* Items of one size. The first member of each is its address (const void *). {.size = N} is an empty list. */
typedef struct dq_address_list {
    void *item; /* [n] */
    size_t n, size, capacity;
} dq_address_list;

/* The item of the address, NULL: none; valid until one is added or removed. */
void *dq_address_list_find(const dq_address_list *l, const void *address);
/* Room for one more item, which dq_address_list_add then takes without fail. False with DQ_RESOURCE. */
bool dq_address_list_reserve(dq_address_list *l, dq_err *err);
/* A copy of *item, whose address has none in the list. */
void dq_address_list_add(dq_address_list *l, const void *item);
void dq_address_list_remove(dq_address_list *l, void *item); /* one of the list */
void dq_address_list_free(dq_address_list *l);               /* leaves an empty one */

#endif
