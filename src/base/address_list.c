/* address_list: addresses are compared as numbers; items move when one comes between them.
 * SPDX-License-Identifier: MIT */
#include "base/address_list.h"

#include <string.h>

static uint8_t *item_at(const dq_address_list *l, size_t i)
{
    return (uint8_t *)l->item + i * l->size;
}

static uintptr_t address_of(const void *item)
{
    const void *address;
    memcpy(&address, item, sizeof address);
    return (uintptr_t)address;
}

/* Index of the first item whose address is not below this one. */
static size_t place_of(const dq_address_list *l, uintptr_t address)
{
    size_t low = 0, high = l->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (address_of(item_at(l, middle)) < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void *dq_address_list_find(const dq_address_list *l, const void *address)
{
    const size_t at = place_of(l, (uintptr_t)address);
    return at < l->n && address_of(item_at(l, at)) == (uintptr_t)address ? item_at(l, at) : NULL;
}

bool dq_address_list_reserve(dq_address_list *l, dq_err *err)
{
    void *more = dq_grow(NULL, l->item, l->n + 1, &l->capacity, l->size, err);
    if (more) l->item = more;
    return more != NULL;
}

void dq_address_list_add(dq_address_list *l, const void *item)
{
    const size_t at = place_of(l, address_of(item));
    uint8_t *to = item_at(l, at);
    memmove(to + l->size, to, (l->n - at) * l->size);
    memcpy(to, item, l->size);
    l->n++;
}

void dq_address_list_remove(dq_address_list *l, void *item)
{
    uint8_t *at = item;
    memmove(at, at + l->size, (size_t)(item_at(l, l->n) - at) - l->size);
    l->n--;
}

void dq_address_list_free(dq_address_list *l)
{
    dq_block_free(l->item);
    *l = (dq_address_list){.size = l->size};
}
