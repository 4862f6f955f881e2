# sizes.sh: widths for a number of bits per weight; sourced by run.sh.

set -- quantize "diff model" -o made.h5
try 2 "[-]-preset is a --size. Leave out one of them" "$@" --preset small --size 4
try 2 "preset: expected one of small, balanced, near-lossless" "$@" --preset tiny
for option in "--bits 4" "--embed-bits 6" "--scale search" "--bits-map down=4" "--group tensor"; do
    # shellcheck disable=SC2086
    try 2 "[-]-size: chooses widths and codes. Leave out ${option% *}" "$@" --size 5 $option
done
try 2 "the narrowest codes take [0-9.]* bits per weight, other tensors included, and at most 2 are asked for. Give a --size of that at least, or --bits" "$@" --size 2
absent made.h5 made.h5.partial

# the default is balanced, and keeps what it says; other options of size go beside it
try 0 "trellis" "$@" --print-recipe
cp "$top/out" usual.json
try 0 "trellis" "$@" --preset balanced --print-recipe
cmp -s "$top/out" usual.json || complain "sizes: the default is not balanced"
for size in 4.5 5 6.5; do
    try 0 "bits per weight" "$@" --dry-run --size $size
    holds "bits of --size $size" "$(sed -n 's/^bits per weight *\([0-9.]*\) over.*/\1/p' "$top/out") <= $size"
done
try 0 "bits per weight" "$@" --dry-run --size 7 --group 32 --skip o_proj --dense-type bf16
# a recipe of a cache leaves weights as they are
echo '{"schema": "dq-recipe/1", "kv": {"k_bits": 4, "v_bits": 4}}' >cache.json
try 0 '"scale": "trellis"' "$@" --recipe cache.json --print-recipe
try 0 '"scale": "trellis"' "$@" --recipe cache.json --size 5 --print-recipe

# a preset, its recipe and its container's recipe give the same bytes, by any number of threads, without a text and with one
head -c 6000 "$repo/calib/pair/text.txt" >some.txt
try 0 "." "$@" --force --preset small --calib some.txt --calib-tokens 300 --calib-ctx 100 --progress always
most=$(tr '\r' '\n' <"$top/err" | sed -n 's/.* \([0-9][0-9]*\) %.*/\1/p' | sort -n | tail -n 1)
holds "percents of progress" "${most:-0} > 50 && ${most:-0} <= 100"
for text in "" "--calib some.txt --calib-tokens 300 --calib-ctx 100"; do
    for preset in small balanced near-lossless; do
        # shellcheck disable=SC2086
        try 0 "content SHA-256" "$@" --force --preset $preset --threads 1 $text
        "$dq" info made.h5 --recipe >recipe.json
        # shellcheck disable=SC2086
        try 0 "content SHA-256" quantize "diff model" -o again.h5 --force --recipe recipe.json --threads 3 $text
        cmp -s made.h5 again.h5 || complain "sizes: $preset, $text: its recipe gives another container"
        try 0 "as the source gives them" verify made.h5 --source "diff model"
        try 0 "." eval made.h5 --text some.txt --ctx 64 --limit 1
    done
done
rm -f made.h5 again.h5 usual.json cache.json recipe.json some.txt
