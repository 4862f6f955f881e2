/* remedy: what would help after a failure, as a code that a program words for its users: dq names options and commands
 * (settings/advice.c), another program would name its own. The library's text makes sense without it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REMEDY_H
#define DQ_REMEDY_H

#include <stdint.h>

/* n, m and w are the remedy's numbers and its word. */
typedef enum dq_remedy_code {
    DQ_REMEDY_NONE,
    DQ_REMEDY_OPTION,    /* the text begins with the name of a setting */
    DQ_REMEDY_SIZE,      /* more bits per weight */
    DQ_REMEDY_KV_OPTION, /* with the name of a setting of the KV cache */
    /* files */
    DQ_REMEDY_FORCE,           /* let the existing file be replaced */
    DQ_REMEDY_START_OVER,      /* let what is left of an earlier run be replaced */
    DQ_REMEDY_RESUME,          /* run again, and resume */
    DQ_REMEDY_UNFINISHED,      /* the command that began the file finishes it */
    DQ_REMEDY_RESUMABLE,       /* a run that resumes goes on from what is kept */
    DQ_REMEDY_RESUME_OR_FORCE, /* resume, or replace */
    DQ_REMEDY_REPEAT_OR_FORCE, /* resume with the settings of before, or replace */
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
    /* what is scored */
    DQ_REMEDY_CTX,         /* n tokens per window */
    DQ_REMEDY_SMALLER_CTX, /* or fewer tokens per window */
    DQ_REMEDY_CTX_OF_TEXT, /* n tokens per window, for a text */
    DQ_REMEDY_ROLLING,     /* windows with a stride instead of rolling ones */
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
    /* the KV cache */
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
    DQ_REMEDY_KV_DENSE,        /* what is not coded in f32, or the CPU */
    DQ_REMEDY_KV_RANGE,        /* what is not coded in bf16 or f32 */
    /* arithmetic and devices */
    DQ_REMEDY_MATH_WEIGHTS, /* packed weights; the text begins with "math" */
    DQ_REMEDY_MATH_CACHE,   /* a packed cache; the same */
    DQ_REMEDY_MATH_OTHER,   /* other arithmetic; the same */
    DQ_REMEDY_MATH_F32,     /* f32; the same */
    DQ_REMEDY_MATH_HEADS,   /* f32, or the CPU; the same */
    DQ_REMEDY_MATH_GROUP,   /* f32, or another group of the cache than n; w is the arithmetic */
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

/* As the place of a failure gives it. */
typedef struct dq_remedy {
    dq_remedy_code code;
    int64_t number[2]; /* n, m */
    const char *word;  /* w; NULL: none */
} dq_remedy;

/* As a failure keeps it: it is about bytes begin .. end - 1 of the text, which are to be reworded. */
enum { DQ_REMEDY_WORD = 200 };
typedef struct dq_remedy_at {
    dq_remedy_code code;
    uint16_t begin, end;
    int64_t number[2];
    char word[DQ_REMEDY_WORD];
} dq_remedy_at;

#endif
