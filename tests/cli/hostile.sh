# hostile.sh: files as other programs write them, and as nobody should; sourced by run.sh.

# What save_pretrained of transformers leaves, unmodified: a length that no 64-bit integer holds.
saved=$repo/tests/golden/saved
grep -q '"model_max_length": 1000000000000000019884624838656' "$saved/tokenizer_config.json" ||
    complain "tests/golden/saved has no large number"
try 0 "hidden states" stats "$saved" --text "short text"
try 0 "62  " eval "$saved" --text "short text" --ctx 64
try 0 "head map" doctor --model "$saved" --text "short text"
try 0 "SHA-256" quantize "$saved" -o saved.h5 --bits 4
try 0 "62  " eval saved.h5 --text "short text" --ctx 64
try 0 '"recipe": {' info saved.h5 --json
json dq-info/1

# numbers in any spelling; one that is no size is named
cp -r "$saved" spelt
sed -e 's/"hidden_size": 16/"hidden_size": 1.6e1/' -e 's/"vocab_size": 503/"vocab_size": 503.0/' \
    -e 's/"initializer_range": 0.02/"initializer_range": 1e400/' "$saved/config.json" >spelt/config.json
try 0 "62  " eval spelt --text "short text" --ctx 64
for size in 16.5 1e400 99999999999999999999 -16; do
    sed "s/\"hidden_size\": 16/\"hidden_size\": $size/" "$saved/config.json" >spelt/config.json
    try 3 'key "hidden_size": expected' info spelt
done
sed 's/"rope_theta": 10000.0/"rope_theta": 1e400/' "$saved/config.json" >spelt/config.json
try 3 'key "rope_theta": the number is too large' info spelt
printf '{"id": 18446744073709551615, "question": "x", "answer": "1"}\n' >large.jsonl
try 3 '"id" is a number of too many digits' eval "plain model" --task gsm8k --data large.jsonl
printf '{"question": "x", "answer": 18446744073709551615}\n' >large.jsonl
try 3 '"answer" is a number of too many digits' eval "plain model" --task gsm8k --data large.jsonl

# A name that is not UTF-8 is a key of every document all the same.
odd=$(printf 'odd \377')
cp -r "$saved" "$odd"
try 0 '"path": "odd .*"' info "$odd" --json
json dq-info/1
try 0 '"path": "odd .*"' quantize "$odd" -o "$odd.h5" --bits 4 --json
json dq-quantize/1
try 0 '"path": "odd .*"' verify "$odd.h5" --json
json dq-verify/1
