# generate.sh: dq generate; sourced by run.sh. That its texts are those of transformers stands in tests/unit/session.
say="the green mole hears beside the"
try 0 "[a-z]" generate "diff model" "$say" -n 12
cp "$top/out" plain.txt
grep -q "^dq generate: prompt of [0-9]* tokens in .* s; [0-9]* tokens.*a second$" "$top/err" || complain "generate: no speed: $(cat "$top/err")"
printf '%s' "$say" >prompt.txt
try 0 "" generate "diff model" --prompt-file prompt.txt -n 12 -q
cmp -s "$top/out" plain.txt || complain "generate: another text from a file"
[ ! -s "$top/err" ] || complain "generate -q says: $(cat "$top/err")"
printf '%s' "$say" | "$dq" generate "diff model" --prompt-file - -n 12 -q >"$top/out"
cmp -s "$top/out" plain.txt || complain "generate: another text from standard input"
try 0 "" generate "diff model" "$say" -n 12 --threads 1 -q
cmp -s "$top/out" plain.txt || complain "generate: another text with one thread"

# the document holds the text, and what dq eval --task generate writes
try 0 '"end": "max_new"' generate "diff model" "$say" -n 12 --json
json dq-generate/1
printf '{"prompt": "%s"}\n' "$say" >prompts.jsonl
"$dq" eval "diff model" --task generate --data prompts.jsonl --max-new 12 --logit-bits 16 --dump-completions texts.jsonl --force >/dev/null 2>&1
text=$(sed -n 's/.*"text": \("\([^"\\]\|\\.\)*"\).*/\1/p' "$top/out" | head -1)
grep -qF "$text" texts.jsonl || complain "generate writes $text, dq eval $(cat texts.jsonl)"

# drawn by seed
try 0 "" generate "diff model" "$say" -n 12 --temperature 1 --seed 4 -q
cp "$top/out" drawn.txt
try 0 "" generate "diff model" "$say" -n 12 --temperature 1 --seed 4 -q
cmp -s "$top/out" drawn.txt || complain "generate: one seed, two texts"
try 0 "" generate "diff model" "$say" -n 12 --temperature 1 --seed 5 -q
! cmp -s "$top/out" drawn.txt || complain "generate: two seeds, one text"
try 0 "" generate "diff model" "$say" -n 12 --temperature 1 --top-k 1 -q
cmp -s "$top/out" plain.txt || complain "generate --top-k 1 is not the most likely text"

# two models
"$dq" quantize "diff model" -o g2.h5 --bits 2 --scale absmax --embed-bits 4 --force >/dev/null 2>&1
try 0 "^They part after [0-9]* equal token" generate "diff model" "$say" -n 12 --compare g2.h5
grep -q "^  diff model writes .*probability 0\.[0-9]*; the other's has 0\." "$top/out" || complain "generate --compare: $(cat "$top/out")"
grep -q "^diff model  *| g2.h5$" "$top/out" || complain "generate --compare: no columns: $(cat "$top/out")"
try 0 "^both, every token:" generate "diff model" "$say" -n 12 --compare "diff model"
try 0 '"equal_tokens": 12' generate "diff model" "$say" -n 12 --compare "diff model" --json
json dq-generate/1
grep -q '"parts": false' "$top/out" || complain "generate --compare --json: one model parts from itself"
cp -r "diff model" "other words"
sed 's/"Ā": *1,/"Ā": 2,/; s/"ā": *2,/"ā": 1,/' "diff model/tokenizer.json" >"other words/tokenizer.json"
try 4 "another tokenizer" generate "diff model" "$say" --compare "other words"

# what ends a text: every file that names it, in a folder, its container and what is exported; an older container has not all
ids=$("$dq" generate "diff model" "$say" -n 12 --raw --json -q | tr -d ' \n' | sed 's/.*"ids":\[\([^]]*\)\].*/\1/')
third=$(echo "$ids" | cut -d, -f3)
"$dq" quantize "diff model" -o older.h5 --bits 8 --embed-bits 16 --force >/dev/null 2>&1
ends() { # ends FOLDER FILE TEXT: the folder with that file ends where the third token comes
    rm -rf "$1"
    cp -r "diff model" "$1"
    printf '%s' "$3" >"$1/$2"
    try 0 '"end": "stop_id"' generate "$1" "$say" -n 12 --raw --json -q
    cp "$top/out" ends.json
    try 0 "$third" info "$1"
    try 0 "packed" quantize "$1" -o ends.h5 --bits 8 --embed-bits 16 --force
    try 0 "^a text ends at .* $third" info ends.h5
    try 0 '"end": "stop_id"' generate ends.h5 "$say" -n 12 --raw --json -q
    try 0 "." generate ends.h5 "$say" -n 12 --raw
    grep -q "; [0-9]* tokens* (the model ends its text)" "$top/err" || complain "generate: not said what ended: $(cat "$top/err")"
    try 0 "^both, every token:" generate "$1" "$say" -n 12 --raw --compare older.h5
    "$dq" export ends.h5 -o "ends folder" --format safetensors --force >/dev/null 2>&1
    try 0 '"end": "stop_id"' generate "ends folder" "$say" -n 12 --raw --json -q
}
ends "ends config" generation_config.json "{\"eos_token_id\": [0, $third]}"
ends "ends number" generation_config.json "{\"eos_token_id\": $third}"
try 0 "stop_ids" info "ends config" --json
json dq-info/1
tr -d ' \n' <"$top/out" | grep -q "\"stop_ids\":\[0,$third\]" || complain "info: not what ends a text: $(cat "$top/out")"
printf '{"eos_token_id": [0, "x", 100000]}' >"ends config/generation_config.json"
try 0 "" generate "ends config" "$say" -n 2 --raw
grep -q 'warning: ends config: generation_config.json: eos_token_id "x" is no token of the model' "$top/err" || complain "generate: no word of an unknown end: $(cat "$top/err")"
printf '{"eos_token": {"content": "<|none|>"}}' >"ends config/special_tokens_map.json"
rm "ends config/generation_config.json"
try 0 '^a text ends at *0 .*"<|none|>"' info "ends config" # named alone, it is a token all the same, as in transformers
printf '{"eos_token": 7}' >"ends config/special_tokens_map.json"
try 0 "" generate "ends config" "$say" -n 2 --raw
grep -q 'special_tokens_map.json: eos_token 7 is no token' "$top/err" || complain "generate: no word of an unknown token: $(cat "$top/err")"
try 0 '^a text ends at *0 .*; special_tokens_map.json: eos_token 7 is no token' info "ends config"
printf '[1]' >"ends config/special_tokens_map.json"
try 3 "special_tokens_map.json: the document is not an object" generate "ends config" "$say" -n 2 --raw
try 0 "^a text ends at *not known: .*special_tokens_map.json: the document" info "ends config"
printf '{' >"ends config/special_tokens_map.json"
try 3 "special_tokens_map.json" generate "ends config" "$say" -n 2 --raw

# compressed caches and logits change texts; a container's own settings hold
try 0 '"k_bits": 4' generate "diff model" "$say" -n 4 --kv-bits 4 --kv-recent 0 --logit-bits 4 --json
"$dq" quantize "diff model" -o g4.h5 --bits 8 --logit-bits 6 --kv-bits 8:8 --force >/dev/null 2>&1
try 0 '"k_bits": 8' generate g4.h5 "$say" -n 4 --json
grep -q '"logit_bits": 6' "$top/out" || complain "generate: a container's logit bits do not hold"
head -c 900 "$repo/calib/pair/text.txt" >long.txt
try 0 '"policy": "keydiff"' generate "diff model" --prompt-file long.txt -n 4 --kv-keep 0.5 --json --raw

# a conversation
printf '%s\n%s\n' "$say" " green river" | "$dq" generate "diff model" -i -n 6 >"$top/out" 2>"$top/err"
[ "$(grep -c "^dq generate: prompt of" "$top/err")" = 2 ] || complain "generate -i: not two turns: $(cat "$top/err")"
first=$(sed -n 1p "$top/out")
printf ' green river' >turn.txt
n_turn=$("$dq" tokenize "diff model" --text turn.txt | wc -w)
# the last token that was written has not been read either
grep -q "^dq generate: prompt of [0-9]* tokens ($((n_turn + 1)) new) in " "$top/err" || complain "generate -i: the second turn reads more than is new: $(cat "$top/err")"
try 0 "" generate "diff model" "$say" -n 6 -q
[ "$first" = "$(cat "$top/out")" ] || complain "generate -i: the first turn is \"$first\", alone $(cat "$top/out")"
printf '%s\n/new\n%s\n' "$say" "$say" | "$dq" generate "diff model" -i -n 6 -q >"$top/out"
[ "$(sort -u "$top/out" | wc -l)" = 1 ] || complain "generate -i: /new does not begin anew: $(cat "$top/out")"

# chat templates
cp -r "diff model" "chat model"
cat >"chat model/tokenizer_config.json" <<'END'
{"bos_token": "<bos>", "chat_template": "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + ' ' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"}
END
try 0 '"chat_template": true' generate "chat model" "$say" -n 4 --json
"$dq" tokenize "diff model" --text prompt.txt >"$top/a"
printf '%s' "[user] $say [assistant]" >chat.txt
ids() { tr -d ' \n' <"$top/out" | sed 's/.*"prompt_ids":\[\([0-9,]*\)\].*/\1/; s/,/ /g'; }
[ "$(ids)" = "$("$dq" tokenize "diff model" --text chat.txt)" ] || complain "generate: the template gives $(ids)"
try 0 '"chat_template": false' generate "chat model" "$say" -n 4 --json --raw
try 0 '"system": "be brief"' generate "chat model" "$say" -n 4 --json --system "be brief"
printf '%s' "[system] be brief [user] $say [assistant]" >chat.txt
[ "$(ids)" = "$("$dq" tokenize "diff model" --text chat.txt)" ] || complain "generate --system: the template gives $(ids)"
! grep -q "leaves what" "$top/err" || complain "generate --system: a text that is there is lost: $(cat "$top/err")"
cp -r "chat model" "deaf model"
printf '{%% for m in messages %%}{%% if m.role == "user" %%}{{ m.content }}{%% endif %%}{%% endfor %%}' >"deaf model/chat_template.jinja"
try 0 "" generate "deaf model" "$say" -n 2 --system "be brief"
grep -q "warning: deaf model: the chat template leaves what the system says out of the prompt" "$top/err" || complain "generate --system: no word of a text that is lost: $(cat "$top/err")"
try 0 "" generate "deaf model" "$say" -n 2
! grep -q "leaves what" "$top/err" || complain "generate: a prompt is lost: $(cat "$top/err")"
try 4 "no system message" generate "diff model" "$say" --system "be brief"
printf '{{ messages | magic }}' >"chat model/chat_template.jinja"
try 3 "magic" generate "chat model" "$say"
try 0 "" generate "chat model" "$say" -n 2 --raw
printf '{# nothing #}' >"chat model/chat_template.jinja"
try 4 "chat model: the chat template makes an empty text" generate "chat model" "$say"
printf '%s' "{% set s = ' ' * 1000000 %}{% for i in range(100000) %}{% if s|trim %}{% endif %}{% endfor %}" >"chat model/chat_template.jinja"
try 4 "chat model: chat template, line 1: the template takes too much work" generate "chat model" "$say"

# what is wrong
try 2 "no prompt" generate "diff model"
try 2 "two prompts" generate "diff model" "$say" --prompt-file prompt.txt
try 2 "Leave one of them out" generate "diff model" -i --json
try 2 "Leave out -i" generate "diff model" -i --compare g2.h5
try 2 "Leave out --raw" generate "diff model" "$say" --raw --system x
try 2 "choose what is drawn" generate "diff model" "$say" --top-k 3
try 2 "nothing is drawn" generate "diff model" "$say" --seed 3
try 2 "max-new" generate "diff model" "$say" -n 0
try 2 "expected one MODEL and one prompt" generate "diff model" a b
try 4 "positions" generate "diff model" --prompt-file "$repo/calib/pair/text.txt"
try 6 "No such file" generate "diff model" --prompt-file nowhere.txt
printf 'a\377b' >bytes.txt
try 3 "not UTF-8 at byte 1" generate "diff model" --prompt-file bytes.txt
printf 'a\0b' >zero.txt
try 3 "zero byte" generate "diff model" --prompt-file zero.txt
rm -rf "wordless"
cp -r "diff model" wordless
rm wordless/tokenizer.json
try 4 "no tokenizer" generate wordless "$say"
"$dq" generate "diff model" "$say" -n 40 2>/dev/null | head -c 3 >/dev/null || complain "generate: a reader that leaves"

# control characters reach a file, and no terminal
try 0 "" generate "diff model" "$say" -n 100 --temperature 50 --seed 1 -q --raw
LC_ALL=C tr -d '\n\t' <"$top/out" | LC_ALL=C grep -q '[[:cntrl:]]' || complain "generate: nothing drawn is a control character"
if ! command -v script >/dev/null; then
    echo "cli: generate: no script(1), so no terminal is tried" >&2
else
    script -qec "'$dq' generate 'diff model' '$say' -n 100 --temperature 50 --seed 1 -q --raw" /dev/null </dev/null >typed.txt
    ! tr -d '\r\n\t' <typed.txt | LC_ALL=C grep -q '[[:cntrl:]]' || complain "generate: control characters on a terminal"
    [ "$(LC_ALL=C tr '\000-\010\013-\037\177' '?' <"$top/out" | wc -m)" = "$(tr -d '\r' <typed.txt | wc -m)" ] || complain "generate: another text on a terminal"
fi

# a zero byte that a model writes is a part of the text
try 0 '"text": ".*\\u0000' generate "diff model" "$say" -n 200 --temperature 100 --seed 1 --json

# a turn that is refused is none, and the conversation goes on
printf 'a\0b\n%s\na\377b\n' "$say" | "$dq" generate "diff model" -i -n 6 -q >"$top/out" 2>"$top/err"
[ $? = 3 ] || complain "generate -i: a turn that is no text does not end with 3"
[ "$first" = "$(cat "$top/out")" ] || complain "generate -i: refused turns change the text: $(cat "$top/out")"
grep -q "^dq generate: error: standard input: a zero byte" "$top/err" || complain "generate -i: no word of a zero byte"
grep -q "^dq generate: error: standard input: not UTF-8 at byte 1" "$top/err" || complain "generate -i: no word of UTF-8"
grep -q "^dq generate: error: 2 turns were refused" "$top/err" || complain "generate -i: does not end with what was refused: $(cat "$top/err")"
{ head -c 4000 "$repo/calib/pair/text.txt" | tr '\n' ' ' && printf '\n%s\n' "$say"; } | "$dq" generate "diff model" -i -n 6 -q >"$top/out" 2>"$top/err"
[ $? = 4 ] || complain "generate -i: a turn that is too long does not end with 4"
[ "$first" = "$(cat "$top/out")" ] || complain "generate -i: a turn that is too long changes the next: $(cat "$top/out")"
"$dq" generate "diff model" -i <. >"$top/out" 2>"$top/err"
[ $? = 6 ] && grep -q "standard input: Is a directory" "$top/err" || complain "generate -i: a folder is read: $(cat "$top/err")"
try 2 "reads turns from standard input" generate "diff model" -i --prompt-file -
head -c 17000000 /dev/zero | tr '\0' a >huge.txt
try 4 "huge.txt: more than the 16777216 bytes" generate "diff model" --prompt-file huge.txt
rm huge.txt
