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
# below 4 bits a text is asked for, where there is none
nonsense="bits per weight without a calibration text: .*--calib FILE"
try 0 "." "$@" --dry-run --size 3.5 --calib none
grep -q "warning: 3.4[0-9] $nonsense" "$top/err" || complain "sizes: 3.5 bits without a text are not warned of: $(cat "$top/err")"
try 0 "$nonsense" "$@" --dry-run --bits 3 --embed-bits 3 --json
echo "the green mole" >short.txt
for fine in "--size 4.5 --calib none" "--size 3.5" "--size 3.5 --calib short.txt" "--bits 16 --embed-bits 16"; do
    # shellcheck disable=SC2086
    try 0 "." "$@" --dry-run $fine
    ! grep -q "$nonsense" "$top/err" || complain "sizes: $fine: $(cat "$top/err")"
done
try 0 "bits per weight" "$@" --dry-run --size 7 --group 32 --skip o_proj --dense-type bf16
# a recipe of a cache leaves weights as they are
echo '{"schema": "dq-recipe/1", "kv": {"k_bits": 4, "v_bits": 4}}' >cache.json
try 0 '"scale": "trellis"' "$@" --recipe cache.json --print-recipe
try 0 '"scale": "trellis"' "$@" --recipe cache.json --size 5 --print-recipe

# a preset, its recipe and its container's recipe give the same bytes, by any number of threads, without a text, with its own and with another
head -c 6000 "$repo/calib/pair/text.txt" >some.txt
try 0 "." "$@" --force --preset small --calib some.txt --calib-tokens 300 --calib-ctx 100 --progress always
most=$(tr '\r' '\n' <"$top/err" | sed -n 's/.* \([0-9][0-9]*\) %.*/\1/p' | sort -n | tail -n 1)
holds "percents of progress" "${most:-0} > 50 && ${most:-0} <= 100"
for text in "--calib none" "--calib self --calib-tokens 300 --calib-ctx 100" "--calib some.txt --calib-tokens 300 --calib-ctx 100"; do
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

# bits per weight over all parameters and the size of the file come first, the same wherever a model is named
try 0 "^the whole model  *[0-9]* .* [0-9.]*  [0-9.]* KiB" "$@" --force --bits 4 --dry-run
try 0 "^the whole model " "$@" --force --bits 4 --tensors
bits=$(sed -n 's/^bits per weight  *\([0-9.]*\) over all [0-9]* parameters.*/\1/p' "$top/out")
[ "$(sed -n 's/^the whole model .*  \([0-9.]*\)  [0-9.]* KiB.*/\1/p' "$top/out")" = "$bits" ] || complain "sizes: the table's sum is not $bits"
bytes=$(wc -c <made.h5)
try 0 "." info made.h5
[ "$(sed -n '1s/^bits per weight  *\([0-9.]*\) over all [0-9]* parameters$/\1/p' "$top/out")" = "$bits" ] || complain "sizes: info does not begin with $bits: $(head -n 1 "$top/out")"
sed -n 2p "$top/out" | grep -q "^file size  *[0-9.]* KiB; tensors [0-9.]* KiB$" || complain "sizes: no file size after the bits: $(sed -n 2p "$top/out")"
try 0 "^file size  *[0-9.]* KiB; tensors" info "diff model"
try 0 "." eval made.h5 --text some.txt --ctx 64 --limit 1 --ref "diff model" --csv made.csv -o made.json --force
head -n 1 "$top/out" | grep -q "^made.h5: $(printf %.2f "$bits") bpw, [0-9.]* KiB$" || complain "sizes: eval begins with $(head -n 1 "$top/out")"
sed -n 2p "$top/out" | grep -q "^diff model: 16.00 bpw, [0-9.]* [KM]iB (the reference)$" || complain "sizes: no size of the reference: $(sed -n 2p "$top/out")"
holds "bits of the CSV" "$(column made.csv 1 bits_per_weight) - $bits < 0.0006 && $bits - $(column made.csv 1 bits_per_weight) < 0.0006"
[ "$(column made.csv 1 file_bytes)" = "$bytes" ] || complain "sizes: bytes of the CSV"
try 0 "^made.h5: $(printf %.2f "$bits") bpw, [0-9.]* KiB; 4 tokens" stats made.h5 --ids "0 17 44 8"
for command in "info made.h5" "stats made.h5 --ids 0" "eval made.h5 --text some.txt --ctx 64 --limit 1" "logits made.h5 --ids 0 -o out.h5"; do
    # shellcheck disable=SC2086
    "$dq" $command --json >out.json 2>/dev/null || complain "sizes: $command fails"
    [ "$(grep -o '"bits_per_weight": [0-9.]*' out.json | sort -u | wc -l)" = 1 ] || complain "sizes: $command: bits differ or are missing"
    grep -q "\"file_bytes\": $bytes," out.json || complain "sizes: $command: no bytes of the file"
done
rm -f made.csv made.json out.json out.h5

rm -f made.h5 again.h5 usual.json cache.json recipe.json some.txt
