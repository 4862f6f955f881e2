# export.sh: dq export; sourced by run.sh.
"$dq" quantize "plain model" -o "four bits.h5" --scale search --embed-bits 16 --logit-bits 8 --kv-bits 8 -q >/dev/null
try 0 "12 as codes, 2 decoded, 6 that had none" export "four bits.h5" -o "a folder" --format compressed-tensors
for pattern in "codes  *4 bits, one scale a row" "as F32 values  *2 tensors, model.layers.0.mlp.down_proj.weight first: 344 columns in groups of 128" \
    "not in the model  *settings of attention logits and the KV cache"; do
    grep -q "$pattern" "$top/out" || complain "export: \"$pattern\" is not in: $(cat "$top/out")"
done
present "a folder/config.json" "a folder/model.safetensors" "a folder/dq_settings.json" "a folder/tokenizer.json" \
    "a folder/tokenizer_config.json"
absent "a folder.partial" "a folder.old"
cmp -s "plain model/tokenizer.json" "a folder/tokenizer.json" || complain "export: tokenizer.json is another one"
grep -q '"k_bits": 8' "a folder/dq_settings.json" || complain "export: dq_settings.json has not the cache's bits"
# what was there of config.json is there byte for byte
grep -v '^}$\|"vocab_size"' "plain model/config.json" >"$top/a"
grep -F -x -f "$top/a" "a folder/config.json" | cmp -s - "$top/a" || complain "export: config.json has lost lines"
if command -v python3 >/dev/null; then
    python3 -m json.tool "a folder/config.json" >/dev/null || complain "export: config.json is not JSON"
fi

# widths that stand in others are said, and the document has the same
"$dq" quantize "diff model" -o six.h5 --bits 6 --group row --embed-bits 16 -q >/dev/null
try 0 "14 tensors: codes of 6 bits stand in 8" export six.h5 -o six --format compressed-tensors
try 0 '"stored_bits": 8' export six.h5 -o six --format compressed-tensors --force --json
json dq-export/1
grep -q '"sha256": "[0-9a-f]\{64\}"' "$top/out" || complain "export --json: no hashes"
try 0 "would have" export six.h5 -o other --format compressed-tensors --dry-run
try 0 '"sha256": null' export six.h5 --format safetensors --dry-run --json
json dq-export/1
absent other other.partial

# the same bytes again, and with other threads
try 0 "as codes" export six.h5 -o again --format compressed-tensors --threads 3 -q
diff -r six again >/dev/null || complain "export: not the same bytes again"
rm -r again

# values give back a checkpoint, which is scored as the container is
for model in "four bits" six; do
    try 0 "type  *F32" export "$model.h5" -o values --format safetensors --dtype f32 --force
    for m in "$model.h5" values; do
        try 0 "NLL" eval "$m" --text "short text" --ctx 32 --logit-bits 16 --kv-bits 32 --csv "$m.csv" --force
        column "$m.csv" 1 nll_nats >"$top/$m.nll"
        grep -q "^[0-9]" "$top/$m.nll" || complain "export: no NLL of $m"
    done
    holds "NLL of $model.h5 and of its values" "($(cat "$top/$model.h5.nll") - $(cat "$top/values.nll"))^2 < 4e-12"
done
grep -q '"dtype": "float32"' values/config.json || complain "export: config.json does not say float32"
grep -q quantization_config values/config.json && complain "export: values have a quantization_config"
try 0 "type  *BF16" export six.h5 -o half --format safetensors --shard-mb 1
try 0 "type  *F32" export six.h5 -o shards --format safetensors --dtype f32 --shard-mb 1
present half/model.safetensors shards/model-00001-of-00002.safetensors shards/model.safetensors.index.json
try 0 "architecture  *diffllama" info shards
rm -r half shards values

# codes go out and come in again: the same logits bit for bit, whatever widths and groups stand beside each other; to
# rounding where the embedding had codes, which go out as values: it may be the head, and products of codes are other sums
digest() { # digest MODEL: of its logits, in MODEL.digest
    try 0 "SHA-256 of the values" logits "$1" --ids "5 70 3 200 9 11 90 8 17 4 600 2" -o digest.h5 --force
    sed 's/.*SHA-256/SHA-256/' "$top/out" >"$1.digest"
}
for model in "plain model" "diff model"; do
    for case in "4 6 128 search f16 q_proj=8/32 v_proj=3/32 gate_proj=5 up_proj=6/64/asym o_proj=4/32/asym down_proj=4/row" \
        "4 8 128 search f32 [qk]_proj=4/32 gate_proj=8/row/asym down_proj=7/43" \
        "4 16 128 search f16 q_proj=8/32 v_proj=3/32 gate_proj=5 up_proj=6/64/asym o_proj=4/32/asym down_proj=7/43" \
        "2 16 tensor absmax f16 v_proj=4/tensor/asym"; do
        # shellcheck disable=SC2086 # words of a case
        set -- $case
        bits=$1 embed=$2 group=$3 scale=$4 type=$5
        shift 5
        for map; do set -- "$@" --bits-map "$map" && shift; done
        "$dq" quantize "$model" -o mixed.h5 --force -q --bits "$bits" --embed-bits "$embed" --group "$group" --scale "$scale" \
            --scale-dtype "$type" "$@" >/dev/null || complain "export: $case"
        try 0 "pack-quantized" export mixed.h5 -o mixed --format compressed-tensors --force
        if [ "$embed" -lt 16 ]; then # in nats; of logits that are off by 1e-5 about 1e-10
            try 0 "KLD" eval mixed --ref mixed.h5 --text "short text" --ctx 32 --logit-bits 16 --kv-bits 32 --csv mixed.csv --force
            kld=$(column mixed.csv 1 kld_nats)
            holds "$model, $case: KLD of exported codes" "$kld > -1e-9 && $kld < 1e-9"
            continue
        fi
        digest mixed.h5
        digest mixed
        cmp -s mixed.h5.digest mixed.digest || complain "export: $model, $case: codes give other logits"
    done
    try 0 "quantized by  *compressed-tensors pack-quantized" info mixed
    # of values in bf16 only their rounding is left
    try 0 "type  *BF16" export mixed.h5 -o values --format safetensors --force
    try 0 "KLD" eval values --ref mixed.h5 --text "short text" --ctx 32 --logit-bits 16 --kv-bits 32 --csv values.csv --force
    kld=$(column values.csv 1 kld_nats)
    holds "KLD of values in bf16" "$kld >= 0 && $kld < 1e-3"
done
rm -r mixed values

# what is wrong
try 2 "no --format says what the plan is of" export six.h5 --dry-run
try 2 "names a file, and --format safetensors is a folder" export six.h5 -o gone.gguf --format safetensors
try 2 "format: expected one of" export six.h5 -o gone --format onnx
try 2 "dtype: expected one of" export six.h5 -o gone --format safetensors --dtype int8
try 2 "\-o DIR is missing" export six.h5 --format safetensors
try 2 "\-o: expected the name of a folder" export six.h5 -o "" --format safetensors
try 4 "only containers are exported. Make one with dq quantize" export "plain model" -o gone --format safetensors
try 4 "a folder of codes already (GPTQ, .*Make one from the original checkpoint" \
    export "$repo/tests/golden/prequant/gptq-v1" -o gone --format safetensors
try 6 "no such file" export missing.h5 -o gone --format safetensors
try 6 "folder nowhere does not exist" export six.h5 -o nowhere/gone --format safetensors
try 6 "six: exists. Add --force" export six.h5 -o six --format safetensors
try 2 "six.h5: input and output are the same file" export six.h5 -o six.h5 --format safetensors --force
printf "" >plain.file
try 6 "plain.file: is not a folder" export six.h5 -o plain.file --format safetensors --force
try 6 "it holds model.safetensors\|it has no dq_settings.json" export six.h5 -o "plain model" --format safetensors --force
try 2 "holds the input six.h5" export six.h5 -o . --format safetensors --force
"$dq" quantize "plain model" -o dense.h5 --bits 16 -q >/dev/null
try 4 "no tensor has codes.*use --format safetensors" export dense.h5 -o gone --format compressed-tensors
"$dq" quantize "plain model" -o eight.h5 --bits 8 --scale asym --group 40 -q >/dev/null
try 4 "no place for any of its codes. Export what dq quantize .* -o OUT.h5 --bits 4 --group 32 makes, or use --format safetensors" export eight.h5 -o gone --format compressed-tensors
"$dq" quantize "plain model" -o eight.h5 --bits 8 --scale asym --group 8 --force -q >/dev/null
try 0 "8 bits, groups of 8, zero points" export eight.h5 -o gone --format compressed-tensors
grep -q "warning: 8 bits with zero points: .*vLLM" "$top/err" || complain "export: no warning of 8 bits with zero points"
grep -q "warning: groups of 8: .*vLLM" "$top/err" || complain "export: no warning of groups of 8"
rm -r gone
"$dq" quantize "plain model" -o skipped.h5 --bits 4 --skip v_proj -q >/dev/null
try 0 "codes" export skipped.h5 -o gone --format compressed-tensors
grep -q "warning: layer 0: .*vLLM joins" "$top/err" || complain "export: no warning of a layer that is coded in parts"
rm -r gone

# a damaged byte is found before anything is written
cp six.h5 damaged.h5
printf '\377' | dd of=damaged.h5 bs=1 seek=200000 conv=notrunc 2>/dev/null
try 3 "damaged" export damaged.h5 -o gone --format compressed-tensors
absent gone gone.partial
# a full disk and an output that cannot be written leave no folder, and an earlier one as it was
(cd six && cksum ./*) >"$top/a"
for n in 1 200; do
    (
        ulimit -f $n
        exec "$dq" export six.h5 -o six --force --format safetensors
    ) >"$top/out" 2>"$top/err"
    got=$?
    [ $got -eq 6 ] && [ ! -s "$top/out" ] || complain "export on a full disk: status $got: $(cat "$top/err")"
done
"$dq" export six.h5 -o six --force --format safetensors >/dev/full 2>"$top/err"
got=$?
[ $got -eq 6 ] || complain "export >/dev/full: expected status 6, found $got"
(cd six && cksum ./*) | cmp -s - "$top/a" || complain "export: a failure has changed the folder that was there"
absent six.partial six.old

# one GGUF file: the same codes, and the same logits bit for bit where no width changes
cp -r "plain model" bytes
sed 's/"ignore_merges": true/"ignore_merges": false/' "plain model/tokenizer.json" >bytes/tokenizer.json
"$dq" quantize bytes -o bytes.h5 --group 32 --scale search --embed-bits 16 --skip down_proj -q >/dev/null
"$dq" quantize bytes -o kv.h5 --group 32 --scale search --skip down_proj --kv-bits 8 --logit-bits 8 -q >/dev/null
try 0 "Q4_0  *12 tensors, codes of 4 bits" export bytes.h5 -o bytes.gguf --format gguf
for pattern in "bits per weight  *[0-9.]* (in the container [0-9.]*)" "file  *[0-9.]* KiB: bytes.gguf"; do
    grep -q "$pattern" "$top/out" || complain "export: \"$pattern\" is not in: $(cat "$top/out")"
done
absent bytes.gguf.partial
try 0 "Q4_0  *[0-9.]* KiB, multiplied as codes" info bytes.gguf
digest bytes.h5
digest bytes.gguf
cmp -s bytes.h5.digest bytes.gguf.digest || complain "export: a GGUF file gives other logits: $(cat bytes.h5.digest bytes.gguf.digest)"
for m in bytes.h5 bytes.gguf; do
    try 0 "^[0-9]" tokenize "$m" --text "short text"
    cp "$top/out" "$m.ids"
done
cmp -s bytes.h5.ids bytes.gguf.ids || complain "export: a GGUF file gives other tokens"
# tokens that only files beside tokenizer.json name: the folder, the container and both exports give the same ids
for other in '{"additional_special_tokens": ["th"]}:{}' '{}:{"pad_token": {"content": "th", "__type": "AddedToken"}}' \
    '{}:{"added_tokens_decoder": {}}'; do
    cp -r bytes beside
    printf '%s' "${other%%:\{*}" >beside/special_tokens_map.json
    printf '{}' >beside/added_tokens.json
    printf '%s' "{${other#*:\{}" | sed 's/^{/{"bos_token": "<bos>", "eos_token": "<bos>", /; s/, }$/}/' >beside/tokenizer_config.json
    "$dq" quantize beside -o beside.h5 --group 32 --scale search --embed-bits 16 --skip down_proj -q >/dev/null
    try 0 "." export beside.h5 -o "beside again" --format safetensors
    cmp -s beside/added_tokens.json "beside again/added_tokens.json" || complain "export: added_tokens.json is another one"
    try 0 "." export beside.h5 -o beside.gguf --format gguf
    for m in beside beside.h5 "beside again" beside.gguf; do
        try 0 "^[0-9]" tokenize "$m" --text "short text"
        cp "$top/out" ids
        [ "$m" != beside ] || cp ids beside.ids
        cmp -s ids beside.ids || complain "export: $m gives other tokens with $other: $(cat ids beside.ids)"
    done
    case $other in
    *added_tokens_decoder*) cmp -s ids bytes.gguf.ids || complain "tokens that nothing names are other ones" ;;
    *) cmp -s ids bytes.gguf.ids && complain "tokenize: $other changes nothing" ;;
    esac
    rm -r beside beside.h5 "beside again" beside.gguf
done
try 0 '"ggml_type": "Q4_0"' export bytes.h5 -o again.gguf --format gguf --threads 3 --json
json dq-export/1
grep -q '"name": "again.gguf"' "$top/out" || complain "export --json: the file has no name"
cmp -s bytes.gguf again.gguf || complain "export: not the same GGUF file again"
try 6 "again.gguf: exists. Add --force" export bytes.h5 -o again.gguf --format gguf
try 0 "as codes" export bytes.h5 -o again.gguf --format gguf --force
try 0 "would have" export bytes.h5 --format gguf --dry-run
# the output's name says which form; codes of a trellis have no place in either
try 0 "format  *gguf" export bytes.h5 -o named.gguf
cmp -s bytes.gguf named.gguf || complain "export: another file without --format"
try 0 "format  *compressed-tensors" export bytes.h5 -o named
"$dq" quantize bytes -o read.h5 --bits 4 --scale trellis --skip down_proj -q >/dev/null
for out in read.gguf read; do
    try 4 "its codes do not stand for steps of one size, .* Export what dq quantize bytes -o OUT.h5 --bits 4 --group 32 makes, or add --dtype f32" export read.h5 -o "$out"
    absent "$out"
done
try 0 "12 decoded" export read.h5 -o read.gguf --dtype f32
# divisors of rotary frequencies, there and back
cp -r bytes divided
list="[1, 2, 4, 8, 1, 1, 1, 1, 0.5, 1, 1, 1, 1, 1, 1, 64]"
sed "s/\"rope_type\": \"default\"/\"rope_type\": \"longrope\", \"short_factor\": $list, \"long_factor\": $list, \"attention_factor\": 1/" \
    bytes/config.json >divided/config.json
"$dq" quantize divided -o divided.h5 --bits 16 --embed-bits 16 -q >/dev/null
try 0 "format  *gguf" export divided.h5 -o divided.gguf
digest divided.h5
digest divided.gguf
cmp -s divided.h5.digest divided.gguf.digest || complain "export: divisors give other logits"
digest bytes
! cmp -s divided.h5.digest bytes.digest || complain "export: divisors change nothing"
sed -i 's/"attention_factor": 1/"attention_factor": 1.5/' divided/config.json
"$dq" quantize divided -o divided.h5 --bits 16 --embed-bits 16 -q --force >/dev/null
try 4 '"attention_factor" of longrope: 1.5 cannot be said in GGUF' export divided.h5 -o gone.gguf
# a head of its own is not tied, whatever the source says
cp -r "$repo/tests/golden/models/diffllama-bf16-untied" said
sed 's/"tie_word_embeddings": *false/"tie_word_embeddings": true/' "$repo/tests/golden/models/diffllama-bf16-untied/config.json" >said/config.json
"$dq" quantize said -o said.h5 --bits 16 --embed-bits 16 -q >/dev/null 2>&1
try 0 "format" export said.h5 -o said.out --format safetensors
grep -q '"tie_word_embeddings": true' said/config.json || complain "export: the source does not say that it is tied"
grep -q '"tie_word_embeddings": *false' said.out/config.json || complain "export: a folder with a head of its own says that it is tied"
# zero points: a lowest value beside each block, in f16
"$dq" quantize bytes -o low.h5 --bits 4 --group 32 --skip down_proj -q >/dev/null
try 0 "Q4_1  *12 tensors, codes of 4 bits" export low.h5 -o low.gguf
grep -q "^rounded  *lowest values to f16, in 12 tensors: values are off by at most 0.00[0-9]* of a step" "$top/out" || complain "export: no word of lowest values: $(cat "$top/out")"
try 0 '"lowest_error_steps": 0.00[1-9]' export low.h5 -o low.gguf --force --json
# what lies in the way of the unfinished file stays, and a link is not followed
printf "someone's" >part.gguf.partial
try 6 "part.gguf.partial: exists from an interrupted run. Add --force" export bytes.h5 -o part.gguf --format gguf
ln -s part.gguf.partial link.gguf.partial
for force in "" --force; do
    # shellcheck disable=SC2086 # one word or none
    try 6 "link.gguf.partial: is a link. Choose another name" export bytes.h5 -o link.gguf --format gguf $force
done
grep -q "^someone's$" part.gguf.partial || complain "export: a file called OUT.partial has changed"
absent part.gguf link.gguf
try 0 "as codes" export bytes.h5 -o part.gguf --format gguf --force
cmp -s bytes.gguf part.gguf || complain "export: not the same GGUF file over an unfinished one"
absent part.gguf.partial

try 0 "not in the model  *settings of attention logits and the KV cache: a GGUF file has no place" \
    export kv.h5 --format gguf --dry-run

# quantized from it, and out again: the same file but for the name of its source
"$dq" quantize again.gguf -o round.h5 --bits 4 --group 32 --scale absmax --embed-bits 16 --skip down_proj -q >/dev/null 2>&1
try 0 "12 tensors" export round.h5 -o round.gguf --format gguf
try 0 "^[0-9]" tokenize round.gguf --text "short text"
cmp -s "$top/out" bytes.h5.ids || complain "export: GGUF, container, GGUF: other tokens"

# what it does not hold, with what helps
"$dq" quantize bytes -o short.h5 --group 32 --scale search --force -q >/dev/null
try 4 "down_proj.weight: rows of 344 codes .*Add --dtype f32 .*dq quantize --skip REGEX" export short.h5 -o gone --format gguf
try 0 "as F32 values  *2 tensors, model.layers.0.mlp.down_proj.weight first: rows of 344" export short.h5 -o short.gguf --format gguf --dtype f32
"$dq" quantize bytes -o short.h5 --group 40 --scale search --skip down_proj --force -q >/dev/null
try 4 "groups of 40 codes .*dq quantize --group 32" export short.h5 -o gone --format gguf
"$dq" quantize bytes -o short.h5 --group 32 --scale-dtype f32 --scale search --skip down_proj --force -q >/dev/null
try 4 "scales that f16 does not hold.*--scale-dtype f32, quantize without it" export short.h5 -o gone --format gguf
"$dq" quantize bytes -o short.h5 --bits 8 --group 32 --scale asym --skip down_proj --force -q >/dev/null
try 4 "need 9.*dq quantize --scale search" export short.h5 -o gone --format gguf
try 4 "architecture diffllama .*llama, mistral, qwen2, qwen3 and smollm3 only. Use --format safetensors" export six.h5 -o gone --format gguf
try 4 '"ignore_merges" is true and merges do not make token 257' export "four bits.h5" -o gone --format gguf --dtype f32
rm bytes/tokenizer.json
"$dq" quantize bytes -o short.h5 --group 32 --scale search --skip down_proj --force -q >/dev/null
try 4 "has no tokenizer.json, and llama.cpp loads no model without its tokens" export short.h5 -o gone --format gguf
try 2 "\-o FILE is missing" export bytes.h5 --format gguf
try 2 "shard-mb goes with folders" export bytes.h5 -o gone --format gguf --shard-mb 5
try 2 "bytes.h5: input and output are the same file" export bytes.h5 -o bytes.h5 --format gguf --force
try 2 "writes no such file (expected GGUF, name.gguf" export bytes.h5 -o gone.h5 --format gguf
try 2 "expected the name of a file" export bytes.h5 -o - --format gguf
try 6 "is a folder. Name a file in it" export bytes.h5 -o bytes --format gguf --force
try 6 "not a regular file" export bytes.h5 -o /dev/full --format gguf --force
try 6 "folder nowhere does not exist" export bytes.h5 -o nowhere/gone.gguf --format gguf
try 6 "cannot create.*too long" export bytes.h5 -o "$(printf '%0250d' 0)" --format gguf
absent gone gone.partial gone.h5
rm -r bytes
