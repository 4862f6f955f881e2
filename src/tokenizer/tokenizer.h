/* tokenizer: tokenizer.json with a BPE model (byte-level, or characters with byte fallback) or a
 * Unigram model. Ids and decoded text equal those of the HF tokenizers library; where files beside
 * it name added tokens, those of transformers' PreTrainedTokenizerFast, which gives them to that
 * library.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TOKENIZER_H
#define DQ_TOKENIZER_H

#include "base/base.h"
#include "base/json.h"
#include "tokenizer/regex.h"

typedef struct dq_tokenizer dq_tokenizer;

/* The files of a folder in the order of dq_tokenizer_file; all but the first may be missing (s:
 * NULL). */
enum { DQ_TOKENIZER_FILES = 4 };
extern const char *const dq_tokenizer_file[DQ_TOKENIZER_FILES];
typedef struct dq_tokenizer_text {
    const char *s;
    size_t len;
} dq_tokenizer_text;

/* Any normalizer, pre-tokenizer, model, post-processor or decoder step that is not implemented is
 * DQ_MISMATCH naming the step; nothing is skipped silently. Flags of added tokens are those of
 * added_tokens_decoder in tokenizer_config.json where it is there; else tokens of added_tokens.json
 * are added, and what special_tokens_map.json names stands before what tokenizer_config.json does.
 * Tokens that are named only (eos_token, extra_special_tokens, pad_token of "padding" in
 * tokenizer.json ...) are added too; with split_special_tokens no special one is found in a text.
 * The texts may be freed afterwards; *out is ended by dq_tokenizer_free. DQ_DAMAGED: not JSON,
 * wrong types, ids or merges that contradict each other.
 * Source: transformers tokenization_utils_base.py (from_pretrained),
 * tokenization_utils_tokenizers.py (__init__). */
dq_status dq_tokenizer_load_files(dq_tokenizer **out,
                                  const dq_tokenizer_text text[DQ_TOKENIZER_FILES], dq_err *err);
/* From tokenizer.json and tokenizer_config.json (NULL: none) alone. */
dq_status dq_tokenizer_load(dq_tokenizer **out, const char *json, size_t len, const char *config,
                            size_t config_len, dq_err *err);
void dq_tokenizer_free(dq_tokenizer *t);       /* NULL allowed */
int dq_tokenizer_vocab(const dq_tokenizer *t); /* highest id + 1, added tokens included */

/* SPECIAL: encoding adds the template's tokens (BOS ...), decoding keeps special tokens. BOS, with
 * it: a template that begins with no token gets bos_token of tokenizer_config.json. */
enum { DQ_TOK_SPECIAL = 1, DQ_TOK_BOS = 2 };
/* Encodes text[len]; *ids is a block for dq_block_free. Each maximal ill-formed subpart is read as
 * U+FFFD; *first_bad (NULL allowed): offset of the first, or -1, *n_bad: their count.
 * Thread-safe. */
dq_status dq_tokenizer_encode(const dq_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, int64_t *n, int64_t *first_bad, int64_t *n_bad,
                              dq_err *err);
/* Only the first of these tokens, at least `max` where there are as many (0: all); later text is
 * not encoded. */
dq_status dq_tokenizer_encode_first(const dq_tokenizer *t, const char *text, size_t len,
                                    unsigned flags, int64_t max, int32_t **ids, int64_t *n,
                                    int64_t *first_bad, int64_t *n_bad, dq_err *err);
/* Decodes ids[n] by the file's decoder, or with spaces between tokens without one. Unknown ids are
 * skipped, as in the reference. *text is a block for dq_block_free; bytes that are no UTF-8 become
 * U+FFFD. */
dq_status dq_tokenizer_decode(const dq_tokenizer *t, const int32_t *ids, int64_t n, unsigned flags,
                              char **text, size_t *len, dq_err *err);
/* Number of tokens that encoding puts before and after a text. */
void dq_tokenizer_template(const dq_tokenizer *t, unsigned flags, int *n_before, int *n_after);
/* The added tokens as "added_tokens" of tokenizer.json, without those that have neither a row nor
 * an id in a file; the caller ends it. DQ_RESOURCE. */
dq_status dq_tokenizer_added(json_t **out, const dq_tokenizer *t, int64_t rows, dq_err *err);
/* The id of a token as the file writes it, added ones first; -1: none. */
int32_t dq_tokenizer_id(const dq_tokenizer *t, const char *text, size_t len);
/* The first token before a text, or -1. */
int32_t dq_tokenizer_bos(const dq_tokenizer *t, unsigned flags);
/* The token for an empty context: bos_token, else eos_token, as the files beside tokenizer.json
 * name them; -1: none. */
int32_t dq_tokenizer_prefix(const dq_tokenizer *t);
/* Bytes of a token as in text (U+2581 as a space, <0xHH> with byte fallback as that byte), owned by
 * t; NULL: unknown id. */
const char *dq_tokenizer_piece(const dq_tokenizer *t, int32_t id, size_t *len);
/* Whether both give the same tokens for every text and the same text for ids, judged by what was
 * loaded: vocabulary, merges or scores, steps, added tokens and template; tokens that are only
 * named do not count beyond `rows`. Callers that use dq_tokenizer_prefix compare it too. False
 * proves no difference. */
bool dq_tokenizer_same(const dq_tokenizer *a, const dq_tokenizer *b, int64_t rows);

/* DQ_MISMATCH: one of ids[n] is not below `vocab`. */
dq_status dq_tokenizer_check_ids(const int32_t *ids, int64_t n, int64_t vocab, dq_err *err);
/* The same, and a copy of them in the arena; NULL: see err. */
int32_t *dq_tokenizer_keep(const int32_t *ids, int64_t n, int64_t vocab, dq_arena *a, dq_err *err);

typedef struct dq_added_token {
    const char *text; /* as written in the file */
    size_t len;
    const char *form; /* what is searched: text, normalized when the token says so */
    size_t form_len;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
    bool is_named_only; /* no file has it with an id */
    bool told_special;  /* its form is the text of a special token: decoding leaves it out */
} dq_added_token;

/* The tokens searched at one stage, sorted by form. */
typedef struct dq_added_tokens {
    const dq_added_token **token; /* [n] */
    size_t n;
    size_t begin[257]; /* tokens whose form begins with byte b: begin[b] .. begin[b + 1] */
} dq_added_tokens;

/* Start symbols of one byte or character of a word. */
typedef struct dq_bpe_start {
    int32_t id[4];
    uint8_t n; /* 0: dropped */
    enum { DQ_START_TOKEN, DQ_START_BYTES, DQ_START_UNKNOWN } kind;
} dq_bpe_start;

/* Read-only in use: runs may share it. */
typedef struct dq_bpe {
    bool byte_level;         /* words begin as bytes, else as characters */
    dq_bpe_start start[256]; /* by byte; words of characters: ASCII only */
    dq_strmap chars;         /* words of characters: the tokens of one other character */
    int32_t byte_id[256];    /* of <0xHH>, -1: none; all -1 without byte fallback */
    int32_t unknown;         /* -1: none */
    bool fuse_unknown;
    bool cuts;        /* no merge reaches over the start of a run of U+2581 */
    bool whole_words; /* ignore_merges: a word that is a token stays one */
    dq_strmap words;  /* word -> id, filled when whole_words */
    dq_strmap known;  /* short words that merging makes one token of -> id */
    dq_map64 merges;  /* left id << 32 | right id -> (rank + 1) << 32 | id of the merged symbol */
} dq_bpe;

/* The character map of SentencePiece models: a double-array trie over UTF-8 with the replacements
 * after it. */

typedef struct dq_charsmap {
    const uint32_t *unit; /* [n_units]; none: the map is empty */
    size_t n_units;
    const char *text; /* replacements, each ended by NUL */
    size_t text_len;
} dq_charsmap;

enum { DQ_DECODER_MAX_STEPS = 16 };

typedef enum dq_decoder_kind {
    DQ_DECODER_BYTE_LEVEL,
    DQ_DECODER_METASPACE,
    DQ_DECODER_REPLACE,
    DQ_DECODER_BYTE_FALLBACK,
    DQ_DECODER_FUSE,
    DQ_DECODER_STRIP
} dq_decoder_kind;

typedef struct dq_decoder_step {
    dq_decoder_kind kind;
    const char *part; /* REPLACE: what; METASPACE: the space's sign; STRIP: the character */
    size_t part_len;
    const char *text; /* REPLACE: by what */
    size_t text_len;
    int64_t start, stop; /* STRIP: at most so many there */
    bool drop_first;     /* METASPACE: the signs of the first token go */
} dq_decoder_step;

/* Read-only once loaded. */
typedef struct dq_decoder {
    dq_decoder_step step[DQ_DECODER_MAX_STEPS];
    int n_steps;
    bool none; /* no decoder: one space between tokens */
} dq_decoder;

/* From "decoder" (NULL and null: none) into a zeroed *d, which points into the arena. DQ_MISMATCH
 * by name: not implemented. */
dq_status dq_decoder_load(dq_decoder *d, const json_t *value, dq_arena *a, dq_err *err);

/* Text of token[n], each well-formed UTF-8 as the vocabulary or added token writes it; ill-formed
 * results become U+FFFD. *text is a block for dq_block_free. Thread-safe. */
dq_status dq_decoder_run(const dq_decoder *d, const char *const *token, const size_t *len,
                         int64_t n, char **text, size_t *text_len, dq_err *err);

enum { DQ_NORMALIZER_MAX_STEPS = 32 };

typedef enum dq_normalizer_kind {
    DQ_NORMALIZER_FORM,
    DQ_NORMALIZER_LOWER,
    DQ_NORMALIZER_STRIP,
    DQ_NORMALIZER_PREPEND,
    DQ_NORMALIZER_REPLACE,
    DQ_NORMALIZER_CHARSMAP
} dq_normalizer_kind;

typedef struct dq_normalizer_step {
    dq_normalizer_kind kind;
    bool compatible, composed; /* FORM: K, C */
    bool left, right;          /* STRIP */
    const char *text;          /* PREPEND: what; REPLACE: by what */
    size_t text_len;
    const char *part; /* REPLACE: what, unless by pattern */
    size_t part_len;
    dq_regex regex;
    dq_charsmap map;
} dq_normalizer_step;

/* Read-only once loaded. {0} changes nothing. */
typedef struct dq_normalizer {
    dq_normalizer_step step[DQ_NORMALIZER_MAX_STEPS];
    int n_steps;
} dq_normalizer;

/* From "normalizer" (NULL and null: none) into a zeroed *n, which points into the arena.
 * DQ_MISMATCH by name: not implemented. End *n with dq_normalizer_free, after a failure too. */
dq_status dq_normalizer_load(dq_normalizer *n, const json_t *value, dq_arena *a, dq_err *err);
void dq_normalizer_free(dq_normalizer *n);

/* *out is NULL when well-formed text[len] does not change (*out_len is len), else a block for
 * dq_block_free. *moved (NULL allowed): the result begins with something after the text's
 * beginning, so the reference's "first" piece is no longer first. Thread-safe. */
dq_status dq_normalizer_run(const dq_normalizer *n, char **out, size_t *out_len, bool *moved,
                            const char *text, size_t len, dq_err *err);

/* Cuts text into the words of the model: patterns run by PCRE2, classes of characters, and steps
 * that rewrite spaces. */

enum { DQ_PRETOKENIZER_MAX_STEPS = 16 };

/* What is searched, character by character. */
typedef enum dq_delimiter {
    DQ_NO_CUT,
    DQ_BY_PATTERN,
    DQ_BY_CHARACTER,   /* c8 */
    DQ_BY_SPACE,       /* White_Space */
    DQ_BY_NUMBER,      /* a number of any kind */
    DQ_BY_PUNCTUATION, /* P*, and what ASCII counts as such */
    DQ_BY_KIND         /* maximal runs of word characters and of the others but white space */
} dq_delimiter;

typedef enum dq_behavior {
    DQ_REMOVED,
    DQ_ISOLATED,
    DQ_MERGED_WITH_PREVIOUS,
    DQ_MERGED_WITH_NEXT,
    DQ_CONTIGUOUS
} dq_behavior;

typedef enum dq_prefix { DQ_NEVER, DQ_FIRST, DQ_ALWAYS } dq_prefix;

typedef struct dq_pretokenizer_step {
    dq_delimiter by;
    dq_behavior behavior;
    bool invert; /* the gaps count as matches, the matches as gaps */
    dq_regex regex;
    dq_prefix prefix; /* which pieces that do not begin with c8 get it in front */
    bool spaces;      /* before that, every U+0020 becomes c8 */
    char c8[4];       /* one character in UTF-8 */
    size_t c8_len;
} dq_pretokenizer_step;

/* Read-only in use: runs may share it. */
typedef struct dq_pretokenizer {
    dq_pretokenizer_step step[DQ_PRETOKENIZER_MAX_STEPS];
    int n_steps;
    bool byte_level; /* the words' bytes are to be read as byte-level characters */
} dq_pretokenizer;

/* From "pre_tokenizer" (NULL and null: none, the text is one word) into a zeroed *p. DQ_MISMATCH by
 * name: not implemented, or a step after ByteLevel. End *p with dq_pretokenizer_free, after a
 * failure too. */
dq_status dq_pretokenizer_load(dq_pretokenizer *p, const json_t *value, dq_arena *a, dq_err *err);
void dq_pretokenizer_free(dq_pretokenizer *p);

/* Receives a word, whose text is valid during the call only. */
typedef dq_status dq_word_fn(void *arg, const char *word, size_t len, dq_err *err);

/* Belongs to one thread. */
typedef struct dq_pretokenizer_run {
    const dq_pretokenizer *p;
    dq_word_fn *word;
    void *arg;
    bool at_start; /* the next piece begins where the text given to the tokenizer begins */
    dq_regex_matcher match[DQ_PRETOKENIZER_MAX_STEPS];
    /* the piece after each step that rewrites it */
    char *changed[DQ_PRETOKENIZER_MAX_STEPS];
    size_t changed_capacity[DQ_PRETOKENIZER_MAX_STEPS];
    size_t original, told; /* bytes of the text, and of the words that it became so far */
} dq_pretokenizer_run;

/* Tells the words of a piece of well-formed UTF-8 in order. *run is {.p, .word, .arg} before the
 * first call; end it with dq_pretokenizer_run_end, after a failure too. */
dq_status dq_pretokenizer_cut(dq_pretokenizer_run *run, const char *text, size_t len, dq_err *err);
void dq_pretokenizer_run_end(dq_pretokenizer_run *run);

/* Segments a word into pieces with the highest sum of scores. */

/* A node of the byte trie. Children lie from `first` on: a place per byte `low` .. `low + span`
 * (DENSE), or `span + 1` nodes by byte (LIST). Empty places are ABSENT. */
typedef struct dq_trie_node {
    uint32_t first;
    int32_t id; /* of the piece that ends here, or -1 */
    uint8_t low, span;
    uint8_t byte; /* that leads here */
    uint8_t kind;
} dq_trie_node;

/* Read-only in use: runs may share it. */
typedef struct dq_unigram {
    dq_trie_node *node;  /* [0] is the root */
    const double *score; /* [n] by id */
    size_t n;
    double unknown_score;
    int32_t unknown;
    dq_strmap pieces;     /* text -> id */
    int32_t byte_id[256]; /* of <0xHH>, -1: none */
    bool fallback;        /* unknown text becomes its bytes, where all of them exist */
} dq_unigram;

/* What loading fills and encoding reads; for this room only. */

typedef struct dq_tokenizer_entry {
    const char *text; /* bytes as they stand in text */
    size_t len;
    int32_t id;
} dq_tokenizer_entry;

struct dq_tokenizer {
    dq_arena *arena;           /* owns everything but the compiled patterns */
    dq_tokenizer_entry *piece; /* [n_pieces] by rising id, ids differ */
    size_t n_pieces;
    /* [n_written] by rising id: tokens that the file writes differently from text (byte-level,
     * U+2581 for a space, <0xHH>) */
    dq_tokenizer_entry *written;
    size_t n_written;
    dq_added_token *added; /* [n_added] */
    size_t n_added;
    dq_added_tokens in_raw, in_normalized; /* searched before and after the normalizer */
    dq_normalizer normalizer;
    dq_pretokenizer pre;
    dq_decoder decoder;
    bool is_unigram; /* which of the two models it is */
    dq_bpe bpe;
    dq_unigram unigram;
    const char *steps;       /* of normalizer, pre-tokenizer and decoder, canonical, to compare */
    int32_t *before, *after; /* the template's tokens */
    int n_before, n_after;
    int32_t bos, prefix; /* bos_token, and that or eos_token; -1 */
};

#endif
