/* Each remedy has a form of what stands in its part of the text: %t is the library's text itself,
 * %n and %m are the remedy's numbers, %w its word, %b what stands in the word after the first
 * slash.
 * SPDX-License-Identifier: MIT */
#include "settings/inputs.h"

#include <stdio.h>
#include <string.h>

static const char *const form[DQ_REMEDIES] = {
    [DQ_REMEDY_OPTION] = "--%t",
    [DQ_REMEDY_SIZE] = "%t Give a --size of that at least, or --bits.",
    [DQ_REMEDY_KV_OPTION] = "--kv-%t",
    [DQ_REMEDY_FORCE] = "%t Add --force to replace it.",
    [DQ_REMEDY_START_OVER] = "%t Start over with --force.",
    [DQ_REMEDY_RESUME] = "%t Run the same command with --resume to finish it.",
    [DQ_REMEDY_UNFINISHED] = "%t Finish it with the same dq quantize and --resume.",
    [DQ_REMEDY_RESUMABLE] = "%t; --resume goes on from it.",
    [DQ_REMEDY_RESUME_OR_FORCE] = "%t Add --resume to finish it, or --force to start over.",
    [DQ_REMEDY_REPEAT_OR_FORCE] =
        "%t Repeat the first command with --resume, or start over with --force.",
    [DQ_REMEDY_REMOVE_OR_ANEW] = "%t Remove it, or run without --resume to start anew",
    [DQ_REMEDY_OUTPUT] = "-o: %t",
    [DQ_REMEDY_VERIFY] = "%t dq verify lists all that is damaged.",
    [DQ_REMEDY_DOWNLOAD] = "%t. dq downloads nothing; for a name on the Hugging Face hub run "
                           "hf download %w --local-dir %b first, and name that folder",
    [DQ_REMEDY_VALUE_OF_LIST] = "%t. Is it one more value of an option? Those stand with commas "
                                "and no spaces: 16,8 or per-tensor,per-row",
    [DQ_REMEDY_EXPORT_VALUES] = "%t Use --format safetensors",
    [DQ_REMEDY_EXPORT_CODES] =
        "%t. Export what dq quantize %w -o OUT.h5 --bits 4 --group 32 makes, or use --format "
        "safetensors",
    [DQ_REMEDY_EXPORT_TYPE] =
        "%t. Export what dq quantize %w -o OUT.h5 --bits 4 --group 32 makes, or add --dtype f32 to "
        "write such tensors as values.",
    [DQ_REMEDY_EXPORT_COLUMNS] =
        "%t. Add --dtype f32 to write such tensors as values, or quantize without them (dq "
        "quantize --skip REGEX).",
    [DQ_REMEDY_EXPORT_GROUP] =
        "%t. Add --dtype f32 to write such tensors as values, or quantize in groups of %n (dq "
        "quantize --group %n).",
    [DQ_REMEDY_EXPORT_SCALE] =
        "%t. Add --dtype f32 to write such tensors as values, or, if they come of dq quantize "
        "--scale-dtype f32, quantize without it.",
    [DQ_REMEDY_EXPORT_ZERO] =
        "%t. Add --dtype f32 to write such tensors as values, or quantize without zero points (dq "
        "quantize --scale search).",
    [DQ_REMEDY_CTX] = "%t. Use --ctx %n",
    [DQ_REMEDY_SMALLER_CTX] = "%t or a smaller --ctx",
    [DQ_REMEDY_CTX_OF_TEXT] = " (--ctx %n for a text)",
    [DQ_REMEDY_ROLLING] = "--%t. Use --window stride",
    [DQ_REMEDY_BLOCK] = "--%t. Use --window block for windows that do not overlap.",
    [DQ_REMEDY_BOS_ON] = "%t, or use --bos on",
    [DQ_REMEDY_BOS_AUTO] = "%t. Use --bos auto",
    [DQ_REMEDY_EXAMPLES] = "--num-fewshot %n",
    [DQ_REMEDY_SHOTS] = "%t. Use --num-fewshot %n",
    [DQ_REMEDY_SKIP_ITEM] = "%t, or use --long skip",
    [DQ_REMEDY_SKIP_OR_CUT] = "%t. Use --long skip or --long cut, or fewer shots",
    [DQ_REMEDY_MAX_NEW] = "%t. Use a smaller --max-new",
    [DQ_REMEDY_LONG_CUT] = "--%t. Use a smaller --max-new",
    [DQ_REMEDY_NEEDLES] =
        "--needles %w with their question, room for answers and some filler need %n tokens, "
        "--lengths %m is less. Use longer --lengths or fewer --needles",
    [DQ_REMEDY_ATTENTION] = "--%t. Leave out --attention or --kv-keep, --kv-tokens and --kv-policy",
    [DQ_REMEDY_KV_KEEP_OR_TOKENS] = "--kv-keep and --kv-tokens exclude each other. Give one.",
    [DQ_REMEDY_KV_SINK_RECENT] = "--kv-%t, or lower --kv-sink and --kv-recent.",
    [DQ_REMEDY_KV_OTHER_POLICY] = "%t. Update dq, or give --kv-policy",
    [DQ_REMEDY_KV_POLICY] = "evicting tokens needs a --kv-policy.",
    [DQ_REMEDY_KV_CHUNKS] = "--kv-policy %w evicts in the middle of each window, which goes with "
                            "--window chunk only",
    [DQ_REMEDY_KV_POSITIONS] = " (found --positions)",
    [DQ_REMEDY_KV_EVERY] = "%t. Leave out --kv-every, or use --question query-aware",
    [DQ_REMEDY_KV_ROTATE] = "%t. Use --kv-rotate off",
    [DQ_REMEDY_KV_LAYERS] = "%t. Give --kv-bits for as many: 4*6|5 is for seven layers, 4*|5 for "
                            "any number",
    [DQ_REMEDY_KV_MAPS] = "%t. Give --kv-bits one width for the keys of a layer",
    [DQ_REMEDY_KV_ONE_MAP] = "%t. Give another --kv-policy",
    [DQ_REMEDY_KV_GATES] = "%t. Give --kv-gates, a file that dq plan gates makes, or another "
                           "--kv-policy",
    [DQ_REMEDY_KV_HEADS] = "%t. Give --kv-heads for this model, as dq plan heads finds them, or "
                           "another --kv-budget",
    [DQ_REMEDY_KV_PAGE] = "%t Add --kv-quant mixed, per-channel or dither",
    [DQ_REMEDY_KV_RANGE] = "%t. Use --kv-dense-type %w, or --kv-bits 32, which is f32",
    [DQ_REMEDY_KV_BITS_ROWS] = ", %n with --kv-bits 8",
    [DQ_REMEDY_MATH_WEIGHTS] =
        "--%t. Use the container that dq quantize makes (--skip leaves tensors unpacked)",
    [DQ_REMEDY_MATH_CACHE] = "--%t. Add --kv-bits 8 (or fewer)",
    [DQ_REMEDY_MATH_OTHER] = "--%t. Use f32, or int8 with packed weights and --kv-bits 8",
    [DQ_REMEDY_MATH_F32] = "--%t. Use --math f32",
    [DQ_REMEDY_MATH_HEADS] = "--%t. Use --math f32 or --device cpu",
    [DQ_REMEDY_MATH_GROUP] = "--math %w on the cuda backend needs a --kv-group that is a multiple "
                             "of 16, found %n. Use --kv-group 16 or --math f32",
    [DQ_REMEDY_F32_OR_CPU] = "%t. Use --math f32 or --device cpu",
    [DQ_REMEDY_CPU] = "%t. Use --device cpu",
    [DQ_REMEDY_KV_DEVICE] = "%t. Use --device cpu, or --kv-policy " DQ_POLICY_USUAL,
    [DQ_REMEDY_OR_CPU] = "%t, or use --device cpu",
    [DQ_REMEDY_OTHER_DEVICE] = "%t. Use another --device",
    [DQ_REMEDY_WEIGHT_BITS] = "dq quantize --bits %n",
    [DQ_REMEDY_END_BITS] = "dq quantize --bits %n --embed-bits %m --head-bits %m",
    [DQ_REMEDY_NOT_FINITE] =
        "%t. dq eval MODEL --text FILE says whether the source is finite on that text: if not, use "
        "dq quantize --method nearest; if it is, give more bits to what is before this tensor",
    [DQ_REMEDY_SUMS] = "%t. Use dq quantize --method nearest, which takes none, or name the tensor "
                       "in --skip",
    [DQ_REMEDY_MORE_TEXT] =
        "%t. Give more text (--calib-tokens), or use dq quantize --method nearest",
    [DQ_REMEDY_DENSE_TYPE] = "%t. Use --dense-type %w, or name the tensor in --skip",
    [DQ_REMEDY_EMBED_BITS] = "%t. Give --embed-bits alone: it decides for both.",
};

typedef struct words {
    char text[sizeof((dq_err *)0)->text];
    size_t n;
} words;

static void put(words *w, const char *s, size_t n)
{
    const size_t left = sizeof w->text - 1 - w->n;
    if (n > left) n = left;
    memcpy(w->text + w->n, s, n);
    w->n += n;
}

void dq_advice_apply(dq_err *err)
{
    words out = {.n = 0};
    size_t at = 0;
    const size_t len = strlen(err->text);
    for (int i = 0; i < err->n_remedies; i++) {
        const dq_remedy_at *r = &err->remedy[i];
        if (r->begin < at || r->end < r->begin || r->end > len) continue; /* its text was cut off */
        put(&out, err->text + at, r->begin - at);
        const char *slash = strchr(r->word, '/');
        char number[24];
        for (const char *f = form[r->code]; *f; f++) {
            if (*f != '%') {
                put(&out, f, 1);
                continue;
            }
            f++;
            const int of = *f == 'm';
            if (*f == 't') put(&out, err->text + r->begin, (size_t)(r->end - r->begin));
            if (*f == 'w') put(&out, r->word, strlen(r->word));
            if (*f == 'b' && slash) put(&out, slash + 1, strlen(slash + 1));
            if (*f == 'n' || *f == 'm')
                put(&out, number,
                    (size_t)snprintf(number, sizeof number, "%lld", (long long)r->number[of]));
        }
        at = r->end;
    }
    put(&out, err->text + at, len - at);
    out.text[out.n] = 0;
    memcpy(err->text, out.text, out.n + 1);
    err->n_remedies = 0;
}
