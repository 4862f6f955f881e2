# prequant.sh: folders that other tools have quantized, in every command; sourced by run.sh.
golden=$repo/tests/golden/prequant
plain=$repo/calib/pair/llama

# the folder scores as the dense one that holds the values of NumPy, digit by digit
for name in ct-asym-index gptq-v2-index awq; do
    for kind in "$name" "$name-dense"; do
        cp -r "$golden/$kind" .
        cp "$plain/tokenizer.json" "$plain/tokenizer_config.json" "$kind"
        try 0 "$kind" eval "$kind" --text "$repo/calib/pair/text.txt" --ctx 96 --limit 3 --logit-bits 16,5 --kv-bits 8 \
            --kv-recent 0 --csv "$kind.csv" --progress never
    done
    for bits in 16 5; do
        a=$(field $name.csv $name $bits per-tensor nll_nats) b=$(field $name-dense.csv $name-dense $bits per-tensor nll_nats)
        holds "$name scores as its dense values at $bits bits" "$a > 0 && ($a - $b) ^ 2 < 1e-12"
    done
done

# each command
try 0 "^quantized by  *AWQ, version gemm" info awq
try 0 "^packed  *4 bits, group 16; 13 weights, 13 with zero points" info awq
try 0 '"method": "gptq",' info gptq-v2-index --json
json dq-info/1
try 0 '"quantized": null' info awq-dense --json
try 0 "attention logits" stats awq --ids "1 2 3"
try 0 "rows" logits awq --ids "1 2 3" -o awq.h5
try 0 "int8" bench decode awq --new-tokens 2 --context 70
echo "some text" >"some words"
try 0 "." tokenize awq --text "some words"
for name in ct-w4 gptq-v1 awq-row; do
    try 0 "rows" logits "$golden/$name" --ids "1 2 3" --math int8 --kv-bits 8 -o "$name.h5"
done
try 4 "k_proj.weight is not packed. Use --math f32" logits awq --ids "1 2" --math int8 --kv-bits 8 -o gone.h5
try 4 "a group for each column. Use --math f32" logits gptq-v2-index --ids "1 2" --math int8 --kv-bits 8 -o gone.h5
try 4 "awq: the weights are quantized already (AWQ, version gemm). Use the original" quantize awq -o gone.h5 --bits 4

# what is not applied is said
try 0 "." info "$golden/ct-w8-kv8"
grep -q 'warning: .*"kv_cache_scheme" (8 bits) is not applied' "$top/err" || complain "info: no word of kv_cache_scheme"
try 0 "." info "$golden/gptq-v1-wrapped"
grep -q 'warning: .*440 zero points of checkpoint_format gptq' "$top/err" || complain "info: no word of zero points"

# method WORD...: awq with another configuration
method() {
    sed "s/\"quant_method\": \"awq\"/\"quant_method\": \"$1\"/; s/\"version\": \"GEMM\"/\"version\": \"${2:-gemm}\"/" \
        "$golden/awq/config.json" >awq/config.json
}
for word in bitsandbytes fp8 hqq quanto mxfp4 marlin; do
    method $word
    try 4 "config.json: \"quantization_config\": key \"quant_method\": \"$word\" is not read (read: compressed-tensors" info awq
    try 4 "Use the original checkpoint" stats awq --ids 1
done
sed 's/"quant_method": *"[^"]*"/"quant_method": "gptq"/' "$golden/ct-w4/config.json" >awq/config.json
try 4 'key "format": "pack-quantized" is not read' info awq
method awq gemv
try 4 "\"version\": \"gemv\" is not read" logits awq --ids 1 -o gone.h5
method gptq
try 4 "qweight\" and those beside it are not what quantization_config says" eval awq --text "some words" --progress never
sed '/quantization_config/,/^ }/d; s/"rope_theta": 10000.0,/"rope_theta": 10000.0/' "$golden/awq/config.json" >awq/config.json
try 4 "qweight\" is quantized, but config.json has no quantization_config" info awq
cp "$golden/awq/config.json" awq
head -c 20000 "$golden/awq/model.safetensors" >awq/model.safetensors
try 3 "The file is incomplete" info awq

# weights for which no memory is there: described from the headers of a file with holes, refused before anything is taken
mkdir huge
cat >huge/config.json <<'END'
{"model_type": "llama", "hidden_size": 131072, "intermediate_size": 8388608, "num_hidden_layers": 1, "head_dim": 32,
 "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
 "hidden_act": "silu", "tie_word_embeddings": true,
 "quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 4, "group_size": -1, "sym": false}}
END
at=0 header=
tensor() { # tensor NAME TYPE BYTES-OF-A-VALUE ROWS [COLUMNS]: zeros
    end=$((at + $3 * $4 * ${5:-1}))
    header="$header${header:+,}\"model.$1\":{\"dtype\":\"$2\",\"shape\":[$4${5:+,$5}],\"data_offsets\":[$at,$end]}"
    at=$end
}
linear() { # linear NAME ROWS COLUMNS
    tensor "layers.0.$1.qweight" I32 4 $(($3 / 8)) "$2"
    tensor "layers.0.$1.qzeros" I32 4 1 $(($2 / 8))
    tensor "layers.0.$1.scales" F16 2 1 "$2"
}
for name in q k v; do linear self_attn.${name}_proj 128 131072; done
linear self_attn.o_proj 131072 128
for name in gate up; do linear mlp.${name}_proj 8388608 131072; done
linear mlp.down_proj 131072 8388608
for name in norm layers.0.input_layernorm layers.0.post_attention_layernorm; do tensor $name.weight F16 2 131072; done
tensor embed_tokens.weight F16 2 8 131072
{
    printf '\000\020\000\000\000\000\000\000' # 4096
    printf '%-4096s' "{$header}"
} >huge/model.safetensors
if truncate -s $((at + 4104)) huge/model.safetensors 2>"$top/err"; then
    try 0 "laid out anew  *1.50 TiB" info huge
    try 5 "not enough memory for weights that are laid out anew .*Use a machine with more, or quantize the original" \
        logits huge --ids 1 -o gone.h5
    absent gone.h5
else
    echo "a file with holes cannot be made here: $(cat "$top/err")"
fi
