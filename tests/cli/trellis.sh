# trellis.sh: codes that are read together, through every command; sourced by run.sh.
pair=$repo/calib/pair
cp "$pair/text.txt" text.txt

# with and without a text, at every width that there is
for bits in 2 3 4 5; do
    try 0 "packed  *$bits bits in 14 tensors" quantize "$pair/llama" -o "t$bits.h5" --bits $bits --group 64 --scale trellis
    try 0 "SQNR" quantize "$pair/llama" -o "s$bits.h5" --bits $bits --group 64 --scale search
    try 0 "as written" verify "t$bits.h5"
done
try 0 "trellis" info t3.h5 --tensors
try 0 "trellis" quantize "$pair/llama" -o g3.h5 --bits 3 --scale trellis --calib text.txt --calib-tokens 2100 --calib-ctx 100 --json
json dq-quantize/1

# closer to the model than integers of the same width
"$dq" eval "$pair/llama" t3.h5 s3.h5 --text text.txt --ctx 256 --limit 24 --json -q >"$top/out" 2>"$top/err" ||
    complain "trellis: eval: $(cat "$top/err")"
python3 - "$top/out" <<'P' || complain "trellis: at 3 bits it loses more than search: $(head -c 300 "$top/out")"
import json, sys
kld = {row["model"]: row["metrics"]["kld_nats"]["value"] for row in json.load(open(sys.argv[1]))["results"][1:]}
sys.exit(not kld["t3.h5"] < kld["s3.h5"])
P

# the same bytes for any number of threads, after a kill, on any instruction set
for how in 1 3; do
    try 0 "packed" quantize "$pair/llama" -o again.h5 --bits 3 --group 64 --scale trellis --threads $how --force
    cmp -s again.h5 t3.h5 || complain "trellis: threads change the file"
done
try 0 "as the source gives them" verify t3.h5 --source "$pair/llama" # made anew, tensor by tensor
try 0 "as written" verify g3.h5
for cpu in scalar avx2; do
    DQ_CPU=$cpu "$dq" quantize "$pair/llama" -o again.h5 --bits 3 --group 64 --scale trellis --force -q >/dev/null 2>"$top/err" ||
        complain "trellis: DQ_CPU=$cpu: $(cat "$top/err")"
    cmp -s again.h5 t3.h5 || complain "trellis: DQ_CPU=$cpu changes the file"
    DQ_CPU=$cpu "$dq" logits t3.h5 --ids "3 5 8 9" --math int8 --kv-bits 8 -o "$cpu.h5" --force -q >/dev/null 2>"$top/err" ||
        complain "trellis: int8: $(cat "$top/err")"
done

"$dq" plan weights "$pair/llama" --calib text.txt --calib-tokens 2100 --calib-ctx 100 --search-tokens 1000 --budget bpw=3.2 --scale trellis \
    --group 64 -o plan.json -q >/dev/null 2>"$top/err" || complain "trellis: plan: $(cat "$top/err")"
try 0 "packed" quantize "$pair/llama" -o planned.h5 --recipe plan.json --calib text.txt

# a model of it has a recipe; the recipe makes it again
try 0 '"trellis"' info t4.h5 --recipe
cp "$top/out" recipe.json
try 0 "packed" quantize "$pair/llama" -o again.h5 --recipe recipe.json --force
cmp -s again.h5 t4.h5 || complain "trellis: its recipe makes another file"

# what there is not
try 2 "scale trellis: has no codes of 6 bits. Use search" quantize "$pair/llama" -o no.h5 --bits 6 --scale trellis
try 4 "up_proj.weight: trellis codes have 2 to 5 bits" quantize "$pair/llama" -o no.h5 --bits-map up_proj=6/64/trellis
try 4 "embed_tokens.weight: trellis codes .* an embedding has them where a text chooses them" quantize "$pair/llama" -o no.h5 --bits-map embed=4/64/trellis
try 4 "scale for each group or row, not one for the tensor" quantize "$pair/llama" -o no.h5 --bits 4 --group tensor --scale trellis
try 4 "steps of one size" export t4.h5 -o no --format gguf
absent no.h5 no.h5.partial no
