#!/bin/sh
# words.sh: words and turns of phrase that left the project stay out, so that the field's stand alone.
#   sh tests/words.sh [REPOSITORY]
# Every text file that git knows is searched, names of files included; but those that list such words, and a golden's text. Prints one line per place and exits 1; also checks itself
# on a planted tree. A line of WORDS: an extended regular expression, a colon, and what is said instead.
set -eu
LC_ALL=C
export LC_ALL

WORDS='(^|[^a-z])grains?([^a-z]|$): granularity
(^|[^a-z_])kv[-_]code([^a-z_]|$): kv-quant
(^|[^-])(page|token) codes?([^a-z]|$): per-channel or per-token codes
touchy: sensitive
yardstick: baseline
(^|[^a-z])rivals?([^a-z]|$): baseline
not decided: inconclusive
on the front([^a-z]|$): on the Pareto front
--ends([^a-z-]|$): --include-embeddings
head[-_ ]maps?([^a-z]|$): head order
(^|[^a-z])reread: second pass
kv[-_]roles|head roles: retrieval and streaming heads
CPU levels?([^a-z]|$): ISA
(^|[^a-z])guides? (to|that reads|score)|guides?\.py: importance score
(tokens|cache|policy|context) (is |are |was |were )?forg[eo]t|forgotten tokens: evict
(scored|fewer|more|[0-9]) ids([^a-z]|$): tokens
ceilings?_|ceilings of: peak
(is|are) warned of: a warning names it
[ (,]be it (the|a|an|in|of) : or, whether'

# found FOLDER: lines "FILE:LINE:TEXT <- say WORD"
found() {
    (
        cd "$1"
        {
            if [ -e .git ]; then git ls-files -z; else find . -type f -print0; fi
        } | tr '\0' '\n' | grep -vE '^(tests/(words|names).sh|tests/golden/gguf/spm.json)$' >"$top/files"
        printf '%s\n' "$WORDS" | while IFS= read -r line; do
            word=${line%: *} say=${line##*: }
            {
                tr '\n' '\0' <"$top/files" | xargs -0 grep -InE -e "$word" /dev/null | cut -c1-140 || true
                grep -E -e "$word" "$top/files" || true
            } | sed "s/\$/ <- say $say/"
        done
    )
}

top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
mkdir "$top/tree"
printf '%s\n' "its grain is one" "the --kv-code" "token codes, page code" touchy "a yardstick" "no rivals" "not decided" "on the front" \
    "--ends" "the head map" "a reread" "--kv-roles" "a CPU level" "a guide to it" "tokens are forgotten" "12 ids" \
    "ceilings of it" "both are warned of" "a head, be it the embedding" >"$top/tree/bad"
printf '%s\n' "grained" "codes of a token" "arrival" "decided" "in front" "--ends-with" "Hugging Face guide" "ids of 12" "the ceiling of .5" "he warned of it" "may it be" >"$top/tree/good"
found "$top/tree" >"$top/out"
[ "$(grep -c '^\./bad:' "$top/out")" = 19 ] && [ "$(wc -l <"$top/out")" = 19 ] || {
    echo "words.sh: does not find what was planted:"
    cat "$top/out"
    exit 1
}
found "${1:-.}" >"$top/out"
cat "$top/out"
[ ! -s "$top/out" ]
