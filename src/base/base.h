/* What every file stands on: status and errors with remedies, memory, maps.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BASE_H
#define DQ_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What would help after a failure, as a code that each program words for its users: dq names
 * options and commands (settings/advice.c). The library's text makes sense without it. */

typedef enum dq_remedy_code {
    DQ_REMEDY_NONE,
    DQ_REMEDY_OPTION,          /* the text begins with the name of a setting */
    DQ_REMEDY_SIZE,            /* more bits per weight */
    DQ_REMEDY_KV_OPTION,       /* with the name of a setting of the KV cache */
    DQ_REMEDY_FORCE,           /* let the existing file be replaced */
    DQ_REMEDY_START_OVER,      /* let what is left of an earlier run be replaced */
    DQ_REMEDY_RESUME,          /* run again, and resume */
    DQ_REMEDY_UNFINISHED,      /* the command that began the file finishes it */
    DQ_REMEDY_RESUMABLE,       /* a run that resumes goes on from what is kept */
    DQ_REMEDY_RESUME_OR_FORCE, /* resume, or replace */
    DQ_REMEDY_REPEAT_OR_FORCE, /* resume with the settings of before, or replace */
    DQ_REMEDY_REMOVE_OR_ANEW,  /* remove the file, or do not resume */
    DQ_REMEDY_OUTPUT,          /* the text is about the name of the output */
    DQ_REMEDY_VERIFY,          /* a command lists all that is damaged */
    DQ_REMEDY_DOWNLOAD,        /* the model w of the Hugging Face hub is to be downloaded first */
    DQ_REMEDY_VALUE_OF_LIST,   /* the path looks like one more value of an option */
    DQ_REMEDY_EXPORT_VALUES,   /* export values instead of codes */
    DQ_REMEDY_EXPORT_CODES,    /* the same, or codes of steps of one size, from the source w */
    DQ_REMEDY_EXPORT_TYPE,     /* such codes, or a type for what a file cannot hold as codes */
    DQ_REMEDY_EXPORT_COLUMNS,  /* the same, or this tensor as it is */
    DQ_REMEDY_EXPORT_GROUP,    /* the same, or groups of n */
    DQ_REMEDY_EXPORT_SCALE,    /* the same, or scales in f16 */
    DQ_REMEDY_EXPORT_ZERO,     /* the same, or no zero points */
    DQ_REMEDY_CTX,             /* n tokens per window */
    DQ_REMEDY_SMALLER_CTX,     /* or fewer tokens per window */
    DQ_REMEDY_CTX_OF_TEXT,     /* n tokens per window, for a text */
    DQ_REMEDY_ROLLING,         /* windows with a stride instead of rolling ones */
    DQ_REMEDY_BLOCK,           /* windows of form block */
    DQ_REMEDY_BOS_ON,
    DQ_REMEDY_BOS_AUTO,
    DQ_REMEDY_EXAMPLES, /* the text is "n examples" */
    DQ_REMEDY_SHOTS,    /* n examples */
    DQ_REMEDY_SKIP_ITEM,
    DQ_REMEDY_SKIP_OR_CUT, /* items that are too long */
    DQ_REMEDY_MAX_NEW,     /* fewer new ids */
    DQ_REMEDY_LONG_CUT,    /* the same; the text begins with what is done to long items */
    DQ_REMEDY_NEEDLES,     /* needles and cities w need n tokens, the prompt has m */
    DQ_REMEDY_ATTENTION,   /* no attention, or nothing evicted */
    DQ_REMEDY_KV_KEEP_OR_TOKENS,
    DQ_REMEDY_KV_SINK_RECENT,  /* or protect fewer tokens; the text begins with "tokens" */
    DQ_REMEDY_KV_POLICY,       /* a policy is needed */
    DQ_REMEDY_KV_OTHER_POLICY, /* a newer program, or another policy */
    DQ_REMEDY_KV_CHUNKS,       /* policy w needs windows in chunks */
    DQ_REMEDY_KV_POSITIONS,    /* and it found NLL by position */
    DQ_REMEDY_KV_EVERY,        /* to evict once, or with the question */
    DQ_REMEDY_KV_ROTATE,       /* no rotation */
    DQ_REMEDY_KV_BITS_ROWS,    /* n rows with 8 bits */
    DQ_REMEDY_KV_LAYERS,       /* widths for another number of layers */
    DQ_REMEDY_KV_MAPS,         /* widths without maps */
    DQ_REMEDY_KV_ONE_MAP,      /* a policy that one map has numbers for */
    DQ_REMEDY_KV_GATES,        /* gates that were fitted to the model, or another policy */
    DQ_REMEDY_KV_HEADS,        /* a list of all groups of KV heads, or another budget */
    DQ_REMEDY_KV_PAGE,         /* per-channel codes */
    DQ_REMEDY_KV_RANGE,        /* what is not coded in bf16 or f32 */
    DQ_REMEDY_MATH_WEIGHTS,    /* packed weights; the text begins with "math" */
    DQ_REMEDY_MATH_CACHE,      /* a packed cache; the same */
    DQ_REMEDY_MATH_OTHER,      /* other arithmetic; the same */
    DQ_REMEDY_MATH_F32,        /* f32; the same */
    DQ_REMEDY_MATH_HEADS,      /* f32, or the CPU; the same */
    DQ_REMEDY_MATH_GROUP,      /* f32, or another group of the cache than n; w is the arithmetic */
    DQ_REMEDY_F32_OR_CPU,
    DQ_REMEDY_CPU,       /* the CPU instead */
    DQ_REMEDY_OR_CPU,    /* or the CPU */
    DQ_REMEDY_KV_DEVICE, /* the CPU, or a policy that every device has */
    DQ_REMEDY_OTHER_DEVICE,
    DQ_REMEDY_WEIGHT_BITS, /* weights of n bits */
    DQ_REMEDY_END_BITS,    /* weights of n bits, m of the embedding and the head */
    DQ_REMEDY_NOT_FINITE,  /* a model that is not finite on a text cannot be calibrated with it */
    DQ_REMEDY_SUMS,        /* a method without sums over inputs, or this tensor as it is */
    DQ_REMEDY_MORE_TEXT,   /* more text to calibrate with, or none */
    DQ_REMEDY_DENSE_TYPE,  /* type w for what is not packed, or this tensor as it is */
    DQ_REMEDY_EMBED_BITS,  /* bits of the embedding alone, which are the head's too */
    DQ_REMEDIES
} dq_remedy_code;

typedef struct dq_remedy {
    dq_remedy_code code;
    int64_t number[2]; /* n, m */
    const char *word;  /* w; NULL: none */
} dq_remedy;

/* A remedy of bytes begin .. end - 1 of the text, which a program may reword. */
enum { DQ_REMEDY_WORD = 200 };
typedef struct dq_remedy_at {
    dq_remedy_code code;
    uint16_t begin, end;
    int64_t number[2];
    char word[DQ_REMEDY_WORD];
} dq_remedy_at;

/* The value is also the exit status of the process. */
typedef enum dq_status {
    DQ_OK = 0,
    DQ_BUG = 1,      /* broken invariant of dq itself */
    DQ_USAGE = 2,    /* wrong command line */
    DQ_DAMAGED = 3,  /* input is not what it claims to be */
    DQ_MISMATCH = 4, /* valid inputs that do not fit together, or an unsupported variant */
    DQ_RESOURCE = 5, /* memory or device missing or exhausted */
    DQ_FILE = 6,     /* path missing, existing, full, forbidden */
    DQ_GATE = 7,     /* results written, requested limit missed */
    DQ_STOPPED = 130 /* interrupted, resumable */
} dq_status;

enum { DQ_ERR_REMEDIES = 4 };
typedef struct dq_err {
    dq_status code;                       /* first failure; later ones do not overwrite it */
    int n_remedies;                       /* in the order of the text */
    dq_remedy_at remedy[DQ_ERR_REMEDIES]; /* of parts of the text that do not overlap */
    char text[1024];                      /* one line: no newline, no program name, no option */
} dq_err;

#if defined(__GNUC__)
#define DQ_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DQ_PRINTF(f, a)
#endif

/* Records the first failure: "what is wrong (expected X, found Y). What to do." Returns code.
 * Control characters are replaced, so that the text stays one line. */
dq_status dq_fail(dq_err *err, dq_status code, const char *fmt, ...) DQ_PRINTF(3, 4);
/* The same with a remedy of the whole text. */
dq_status dq_fail_with(dq_err *err, dq_status code, dq_remedy remedy, const char *fmt, ...)
    DQ_PRINTF(4, 5);
/* Adds to the text of an existing failure, with a remedy of the addition. Returns its code. */
dq_status dq_fail_more(dq_err *err, dq_remedy remedy, const char *fmt, ...) DQ_PRINTF(3, 4);
/* Copies another failure with its remedies unless it is DQ_OK. Returns err->code. */
dq_status dq_fail_as(dq_err *err, const dq_err *other);
extern const dq_remedy dq_remedy_none;
/* The same replacement in any text: '?' for newlines, tabs and what dq_utf8_plain replaces. */
void dq_one_line(char *s);
/* Puts the place before the text: "model.safetensors: ". Returns err->code. */
dq_status dq_in(dq_err *err, const char *fmt, ...) DQ_PRINTF(2, 3);

#define DQ_TRY(call)                                                                               \
    do {                                                                                           \
        dq_status dq_try_status = (call);                                                          \
        if (dq_try_status != DQ_OK) return dq_try_status;                                          \
    } while (0)

/* Memory freed as a whole; for one thread at a time. */
typedef struct dq_arena dq_arena;

dq_arena *dq_arena_new(void);    /* NULL: out of memory */
void dq_arena_free(dq_arena *a); /* NULL allowed */
/* Makes an arena *a with an object of `size` zeroed bytes in it. NULL with DQ_RESOURCE. */
void *dq_arena_object(dq_arena **a, size_t size, dq_err *err);
/* n items of `size` bytes, zeroed, 64-byte aligned, valid until the arena is freed (n = 0 gives a
 * valid pointer). NULL with DQ_RESOURCE in err on overflow or exhaustion. */
void *dq_alloc(dq_arena *a, size_t n, size_t size, dq_err *err);
char *dq_text(dq_arena *a, const char *s, size_t len, dq_err *err);
char *dq_textf(dq_arena *a, dq_err *err, const char *fmt, ...) DQ_PRINTF(3, 4);

/* A zeroed, 64-byte aligned block of n * size bytes for dq_block_free (NULL allowed). NULL with
 * DQ_RESOURCE. */
void *dq_block_new(size_t n, size_t size, dq_err *err);
/* The same, uninitialized and untouched. */
void *dq_block_raw(size_t n, size_t size, dq_err *err);
void dq_block_free(void *p);

/* Grows list[*cap] of items of `size` bytes, in the arena or (a NULL) a block, to at least `want`
 * items, at least doubling; new ones are 0 and *cap is set. NULL with DQ_RESOURCE: the old list
 * stays. */
void *dq_grow(dq_arena *a, void *list, size_t want, size_t *cap, size_t size, dq_err *err);

bool dq_mul_ok(size_t *product, size_t a, size_t b);

/* Test hook: the n-th allocation from now on fails (1 = the next); 0 turns it off. */
void dq_alloc_fail_at(int64_t n);

/* Hash table from 64-bit keys to nonzero 64-bit values; 0 means absent, so counts start by
 * themselves. At most half full; reading is inline for tight loops. */

typedef struct dq_map64_slot {
    uint64_t key, value; /* value 0: free */
} dq_map64_slot;

typedef struct dq_map64 {
    dq_map64_slot *slot; /* [mask + 1] */
    size_t mask, n;
    dq_arena *a; /* holds the slots; NULL: they are a block */
} dq_map64;

/* Capacity for `count` keys before it grows. End blocks with dq_map64_free. */
dq_status dq_map64_new(dq_map64 *m, size_t count, dq_arena *a, dq_err *err);
void dq_map64_free(dq_map64 *m); /* {0}, too; may be called again */
void dq_map64_clear(dq_map64 *m);

static inline dq_map64_slot *dq_map64_find(const dq_map64 *m, uint64_t key)
{
    const uint64_t h = key * UINT64_C(0x9E3779B97F4A7C15);
    size_t i = (size_t)(h ^ h >> 32) & m->mask;
    while (m->slot[i].value && m->slot[i].key != key) i = (i + 1) & m->mask;
    return &m->slot[i];
}

static inline uint64_t dq_map64_get(const dq_map64 *m, uint64_t key)
{
    return dq_map64_find(m, key)->value;
}

/* Replaces an earlier value; value > 0. */
dq_status dq_map64_put(dq_map64 *m, uint64_t key, uint64_t value, dq_err *err);
dq_status dq_map64_count(dq_map64 *m, uint64_t key, dq_err *err);

typedef struct dq_strmap_slot {
    const char *key; /* NULL: free */
    uint32_t len;
    int32_t value;
} dq_strmap_slot;

typedef struct dq_strmap {
    dq_strmap_slot *slot; /* [mask + 1]; NULL: no keys yet */
    size_t mask, n;
} dq_strmap;

uint64_t dq_strmap_hash(const void *p, size_t len);
dq_status dq_strmap_new(dq_strmap *m, size_t count, dq_arena *a, dq_err *err);
/* Keys are borrowed and must outlive the map; a second value replaces the first. At most `count`
 * keys, none longer than UINT32_MAX. */
void dq_strmap_put(dq_strmap *m, const char *key, size_t len, int32_t value);
/* The same with growth in the arena; {0} is an empty map. */
dq_status dq_strmap_add(dq_strmap *m, const char *key, size_t len, int32_t value, dq_arena *a,
                        dq_err *err);
int32_t dq_strmap_get(const dq_strmap *m, const char *key, size_t len); /* -1: absent */

/* A sorted list of items by address, for many look-ups and few insertions. */

/* The first member of each item is its address (const void *). {.size = N} is an empty list. */
typedef struct dq_address_list {
    void *item; /* [n] */
    size_t n, size, capacity;
} dq_address_list;

/* NULL: none. Valid until an item is added or removed. */
void *dq_address_list_find(const dq_address_list *l, const void *address);
/* Reserves space for one more item, so that dq_address_list_add cannot fail. False with
 * DQ_RESOURCE. */
bool dq_address_list_reserve(dq_address_list *l, dq_err *err);
/* Adds a copy of *item, whose address must be new. */
void dq_address_list_add(dq_address_list *l, const void *item);
void dq_address_list_remove(dq_address_list *l, void *item); /* one of the list */
void dq_address_list_free(dq_address_list *l);               /* leaves an empty one */

#endif
