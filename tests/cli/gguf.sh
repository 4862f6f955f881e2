# gguf.sh: a GGUF file is a model of every command; sourced by run.sh. tests/unit/engine/test_gguf_model.c compares its logits with
# those of transformers.

model=$repo/tests/golden/gguf/model/model.gguf
parts=$repo/tests/golden/gguf/model/parts-00001-of-00002.gguf
book=$repo/calib/pair/text.txt

try 0 "Q8_0 .*, multiplied as codes" info "$model"
grep -q "^Q4_K .*, dequantized in products" "$top/out" || complain "gguf: info does not say what becomes of Q4_K"
try 0 "blk.0.ffn_up\|mlp.up_proj.weight  *Q3_K  *256x256" info "$model" --tensors
try 0 '"dtype": "Q3_K"' info "$model" --tensors --json
printf 'the 42 things' >words.txt
try 0 "^256 101 32 52 50 32 256 105 110 103 115$" tokenize "$model" --text words.txt
try 0 "2 windows" eval "$model" "$parts" --text "$book" --ctx 64 --limit 2
try 0 "hidden states" stats "$model" --ids "1 2 3 4 5"
try 0 "no other head order\|its own" doctor --model "$model"

# quantized from blocks: the same codes as from the values
try 0 "bits per weight" quantize "$model" -o small.h5 --bits 4 --group 32
grep -q "model.gguf: GGUF, .*1 Q4_K.*: what these types have lost stays lost" "$top/err" || complain "gguf: no word of what was lost: $(cat "$top/err")"
try 0 "as the source gives them" verify small.h5 --source "$model"
try 0 "source types  *GGUF, 3 F32, 1 Q4_0" info small.h5
try 0 "small.h5" eval "$model" small.h5 --text "$book" --ctx 64 --limit 2
try 0 "lm_head\|layers" quantize "$model" --bits 16 --embed-bits 16 -o dense.h5 --tensors
try 0 "out" export dense.h5 -o out --format safetensors --dtype f32
try 0 "packed" quantize out -o again.h5 --bits 4 --group 32

# the folder it was made from is the same tokenizer, however its text is written
mkdir other && cp out/*.safetensors out/*.json other/
sed 's/^ *//' out/tokenizer.json >other/tokenizer.json
try 0 "against reference" eval "$model" other --ref other --text "$book" --ctx 64 --limit 2
# a token without a row, as it is named only, parts no tokenizers
cp other/tokenizer_config.json plain_config.json
sed -i 's/{/{"pad_token": "<without a row>",/' other/tokenizer_config.json
try 0 "against reference" eval "$model" other --ref other --text "$book" --ctx 64 --limit 2
mv plain_config.json other/tokenizer_config.json
sed 's/"individual_digits": true/"individual_digits": false/' out/tokenizer.json >other/tokenizer.json
try 4 "its tokenizer or number of positions differs" eval "$model" other --ref other --text "$book" --ctx 64 --limit 2
for name in q k v o; do
    for part in packed scale zero; do
        h5diff -q small.h5 again.h5 "/tensors/model.layers.0.self_attn.${name}_proj.weight/$part" >/dev/null 2>&1 ||
            complain "gguf: other codes from blocks than from values: ${name}_proj, $part"
    done
done
head -c 20000 "$book" >calib.txt
try 0 "bits per weight" quantize "$model" -o fed.h5 --bits 4 --group 32 --calib calib.txt --calib-tokens 1500 --calib-ctx 100

# what is refused
cp "$parts" renamed.gguf
try 4 "renamed.gguf: is a part of a model in 2 files. Name the first, with its old name" info renamed.gguf
try 4 "Name the first, with its old name, NAME-00001-of-00002.gguf" info "$repo/tests/golden/gguf/model/parts-00002-of-00002.gguf"
cp "$parts" alone-00001-of-00002.gguf
try 6 "alone-00002-of-00002.gguf" info alone-00001-of-00002.gguf
sed 's/smollm/smollx/' "$model" >pre.gguf
try 4 '"tokenizer.ggml.pre": "smollx" is not known' tokenize pre.gguf --text words.txt
try 0 "norm epsilon" info pre.gguf
sed 's/\(general.architecture............\)llama/\1olmo2/' "$model" >arch.gguf
try 4 'architecture "olmo2" is not read from GGUF files (read are llama, qwen2, qwen3, smollm3, gemma3)' info arch.gguf
head -c 100000 "$model" >cut.gguf
try 3 "ends beyond the file" info cut.gguf
: >empty.gguf
try 3 "nor a GGUF file" info empty.gguf
head -c 20000 "$model" >keys.gguf
try 0 "^256 101 32 52 50 32" tokenize keys.gguf --text words.txt
mkdir folder && cp "$model" folder/
try 6 "Name the file: folder/model.gguf" info folder
try 4 "has scales in blocks of ggml. Use --math f32" eval "$model" --math int8 --text "$book" --ctx 64 --limit 2
