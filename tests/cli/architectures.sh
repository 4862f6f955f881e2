# architectures.sh: those beside Llama and DiffLlama, odd forms of checkpoints, --head-order; sourced by run.sh.
golden=$repo/tests/golden/models

# what each family is called, and that every command reads it
for c in "v1-bf16 diff-v1 adjacent" "v1-naive-f32 diff-v1-naive adjacent-naive" "v2-f16 diff-v2 shared-kv" \
    "plain-norm diff-plain plain" "motif-gqa-f32 motif adjacent" "gda-f32-shards motif2 grouped" "gemma3-f32 gemma3 plain" \
    "mistral-window mistral plain"; do
    # shellcheck disable=SC2086
    set -- $c
    name=$1 family=$2 map=$3
    try 0 "^architecture  *$family\$" info "$golden/$name"
    try 0 "^head order  *$map\$" info "$golden/$name"
    try 0 "\"head_order\": \"$map\"" info "$golden/$name" --json
    json dq-info/1
    try 0 "rows" logits "$golden/$name" --ids "1 2 3 4" -o "$name.h5"
    try 0 "hidden" stats "$golden/$name" --ids "1 2 3"
    try 0 "." quantize "$golden/$name" -o "$name 4.h5" --bits 4 --group 32
    try 0 "." verify "$name 4.h5"
    try 0 "^head order  *$map\$" info "$name 4.h5"
    try 0 "rows" logits "$name 4.h5" --ids "1 2 3 4" -o "$name 4 bits.h5"
    try 0 "." quantize "$golden/$name" -o "$name 16.h5" --bits 16
    try 0 "rows" logits "$name 16.h5" --ids "1 2 3 4" -o "$name 16 bits.h5"
    if command -v h5dump >/dev/null; then # dense containers change no bit
        for f in "$name.h5" "$name 16 bits.h5"; do h5dump -d /logits "$f" | tail -n +2; done >"$top/dump"
        half=$(($(wc -l <"$top/dump") / 2))
        [ "$(head -n $half "$top/dump")" = "$(tail -n $half "$top/dump")" ] ||
            complain "$name: the dense container gives other logits"
    fi
    rm -f "$name"*.h5
done

# forms of folders
mkdir -p parent/checkpoint-9 blobs links/snapshot
cp "$golden/v2-f16/"* parent/checkpoint-9
try 6 "parent/checkpoint-9" info parent
try 0 "diff-v2" info parent/checkpoint-9
try 6 "parent/checkpoint-9" logits parent --ids 1 -o gone.h5
for f in "$golden/gda-f32-shards/"*; do
    b=$(basename "$f")
    cp "$f" "blobs/$b.blob"
    ln -s "../../blobs/$b.blob" "links/snapshot/$b"
done
try 0 "motif2" info links/snapshot
rm blobs/model-00001*
try 6 "model-00001" info links/snapshot
mkdir "only gguf" "config and gguf" torch
printf GGUF >"only gguf/x.gguf"
try 6 "Name the file: only gguf/x.gguf" info "only gguf"
try 3 "ends inside its header" info "only gguf/x.gguf"
cp "only gguf/x.gguf" "$golden/v2-f16/config.json" "config and gguf"
try 6 "Name the file: config and gguf/x.gguf" stats "config and gguf" --ids 1
cp "$golden/v2-f16/config.json" torch
printf 'PK\003\004....' >torch/pytorch_model.bin
try 4 "pytorch_model.bin: PyTorch pickle" info torch
try 4 "a packed file, as of PyTorch" info torch/pytorch_model.bin
for file in config.json model.safetensors; do
    try 4 "$file: one file is no model. Name the folder" info "plain model/$file"
done

# what is whole, but no model, is named as what it is
mkdir adapter
printf '{"peft_type": "LORA", "base_model_name_or_path": "some/base", "scale": NaN}' >adapter/adapter_config.json
try 4 "adapter: a PEFT adapter (LORA) of some/base, not a model. Merge it" info adapter
cp "$golden/v2-f16/config.json" adapter
try 4 "a PEFT adapter (LORA)" logits adapter --ids 1 -o gone.h5
cp -r "plain model" adapted
cp adapter/adapter_config.json adapted
try 4 "adapted: a PEFT adapter (LORA)" info adapted # transformers would read both
rm adapted/adapter_config.json
try 0 "bits per weight" info adapted
# held FILE TEXT: a folder that holds this file and no model
held() {
    rm -rf held
    mkdir held
    touch "held/$1"
    try 4 "held/$1: $2" info held
    cp "$golden/v2-f16/config.json" held
    try 4 "held/$1: $2" info held
}
held model_index.json "a pipeline of diffusers"
held adapter_model.safetensors "an adapter is no model"
held pytorch_model-00001-of-00002.bin "PyTorch pickle"
held consolidated.safetensors "weights under their maker's names"
held zero_to_fp32.py "weights of DeepSpeed"
held tf_model.h5 "weights of TensorFlow"
held onnx "models in ONNX"
mv held/onnx held/model-00001-of-00001.safetensors
try 4 "model-00001-of-00001.safetensors: weights under this name are not looked for" info held
mkdir -p cache/snapshots
mv adapted cache/snapshots/abc
try 6 "Name the folder of one model: cache/snapshots/abc" info cache
mv cache/snapshots/abc/model.safetensors cache/blob
try 4 "cache/blob: one file is no model" info cache/blob
# the file that the configuration names counts
mv cache/blob cache/snapshots/abc/own.safetensors
sed -i 's/{/{"transformers_weights": "own.safetensors",/' cache/snapshots/abc/config.json
echo damaged >cache/snapshots/abc/model.safetensors
try 0 "bits per weight" info cache/snapshots/abc
try 0 "" quantize cache/snapshots/abc -o own.h5 --bits 8 -q
try 0 "" export own.h5 -o own --format safetensors -q
try 0 "bits per weight" info own
sed -i 's/own.safetensors/own.bin/' cache/snapshots/abc/config.json
try 4 "key \"transformers_weights\": \"own.bin\"" info cache/snapshots/abc
sed -i 's,own.bin,../own.safetensors,' cache/snapshots/abc/config.json
try 3 "\"../own.safetensors\" is not in this folder" info cache/snapshots/abc
printf '\037\213....' >packed.gguf
try 4 "packed.gguf: a packed file is not read" info packed.gguf
rm -r held cache own own.h5 packed.gguf
for file in config.json model.safetensors tokenizer.json tokenizer_config.json model.safetensors.index.json; do
    rm -rf pointer
    cp -r "plain model" pointer
    [ $file != model.safetensors.index.json ] || rm pointer/model.safetensors
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4096\n' 7 >pointer/$file
    try 4 "$file: a Git LFS pointer stands in the file's place. Fetch the file itself: git lfs pull" eval pointer \
        --task mc --data choices.jsonl --limit 1 --progress never
done
cp pointer/model.safetensors.index.json pointer.gguf
try 4 "pointer.gguf: a Git LFS pointer" info pointer.gguf
try 4 "pointer.gguf: a Git LFS pointer" eval "plain model" --text pointer.gguf --ctx 8 --progress never
rm -r adapter pointer pointer.gguf

# config NAME SED: a copy of a golden whose configuration is changed
config() {
    rm -rf changed
    cp -r "$golden/$1" changed
    sed "$2" "$golden/$1/config.json" >changed/config.json
}
config motif-bf16 's/"use_bias": false/"quantization": {"bits": 4, "group_size": 64}/'
try 4 "quantized already" info changed
# what nothing reads may be NaN, and stays so byte for byte; what is read may not
config llama-yarn 's/"attention_bias"/"time_step_limit": [0.0, Infinity], "score": NaN, "attention_bias"/'
try 0 "llama" info changed
try 0 "." quantize changed -o nan.h5 --bits 4 --group 16
try 0 "rows" logits nan.h5 --ids "1 2 3" -o "nan bits.h5"
try 0 "." export nan.h5 -o nan --format safetensors
grep -q '"time_step_limit": \[0.0, Infinity\], "score": NaN,' nan/config.json || complain "export: config.json lost a NaN"
try 0 "llama" info nan
rm -r nan nan.h5 "nan bits.h5"
config llama-yarn 's/"rms_norm_eps": [^,]*/"rms_norm_eps": NaN/'
try 3 '"rms_norm_eps": the number is too large, or not finite' info changed
config llama-yarn 's/"vocab_size": [^,]*/"vocab_size": Infinity/'
try 3 '"vocab_size": expected an integer' info changed
config motif-bf16 '/attn_rms_norm_eps/d'
try 0 "heads 1e-05" info changed
grep -q 'warning: .*no "attn_rms_norm_eps": 1e-05 is assumed' "$top/err" || complain "no warning: $(cat "$top/err")"
config motif-bf16 's/"use_bias": false/"kv_lora_rank": 512/'
try 4 "Motif-3" info changed
config v1-bf16 '/diff_variant/d'
try 4 "diff_variant" info changed
config llama-dynamic 's/"max_position_embeddings": 65536/"max_position_embeddings": 4/'
try 0 "rows" logits changed --ids "1 2 3 4" -o dynamic.h5
try 4 "positions" logits changed --ids "1 2 3 4 5" -o gone.h5

# --head-order
for c in stats eval logits; do
    try 0 "head-order MAP" $c --help=all
    case $c in
    stats) set -- --ids "1 2 3" ;;
    eval) set -- --task mc --data choices.jsonl --limit 2 ;;
    logits) set -- --ids "1 2 3" -o gone.h5 ;;
    esac
    for word in shared-kv grouped plain Halves ""; do
        try 2 "head-order: expected one of" $c "diff model" "$@" --head-order "$word"
    done
    try 4 "no model here has two maps" $c "plain model" "$@" --head-order halves
    try 4 "does not fit a diff-v2 model" $c "$golden/v2-f16" "$@" --head-order adjacent
    try 4 "does not fit a motif2 model" $c "$golden/gda-f32-shards" "$@" --head-order halves
    absent gone.h5
    [ $c = logits ] || try 0 '"head_order": "adjacent"' $c "plain model" "diff model" "$@" --head-order adjacent --json
    [ $c = logits ] || grep -q '"head_order": "plain"' "$top/out" || complain "$c: the plain model lost its map"
done
try 0 '"head_order": null' logits "diff model" --ids "1 2 3" -o own.h5 --json
try 0 '"head_order": "halves"' logits "diff model" --ids "1 2 3" -o own.h5 --json --head-order halves --force
hash=$(grep logits_sha256 "$top/out")
try 0 '"head_order": "adjacent"' logits "diff model" --ids "1 2 3" -o other.h5 --json --head-order adjacent
[ "$(grep logits_sha256 "$top/out")" != "$hash" ] || complain "another head order gives the same logits"
"$dq" quantize "diff model" -o "diff 4.h5" --bits 4 >/dev/null 2>&1
try 0 '"head_order": "adjacent"' logits "diff 4.h5" --ids "1 2 3" -o other.h5 --json --head-order adjacent --force

# doctor --model
try 2 "text needs --model" doctor --text "short text"
try 6 "no-such-model" doctor --model no-such-model
try 4 "tokenizer.json" doctor --model "$golden/v1-bf16"
try 3 "empty" doctor --model "diff model" --text empty
try 0 "No other head order reads this text better by 0.02 nats, at 95 %" doctor --model "diff model" --text "$repo/calib/pair/text.txt"
try 0 "No other head order has these shapes" doctor --model "plain model" --text "short text"
try 0 '"own": "halves"' doctor --model "diff 4.h5" --text "short text" --json
json dq-doctor/1
