# recipe.sh: which tensors get which bits, recipes that come back, the embedding in codes; sourced by run.sh.

# settings that are none, and patterns that match nothing, are named before anything is written
set -- quantize "plain model" -o gone.h5
for item in down=9 down=1 down =4 down= down=4/0 down=4/x down=4/64/min down=4/64/search/f16 down=4x; do
    try 2 "bits-map: expected REGEX=N" "$@" --bits-map "$item"
done
try 2 "rule \"dwn_proj\" matches no tensor. Closest names: model.layers.0.mlp.down_proj" "$@" --bits-map dwn_proj=4
# near names are of tensors that can be packed; none is near: none is named
try 2 "rule \"qproj\" matches no tensor. Closest names: model.layers.0.self_attn.q_proj.weight" "$@" --bits-map qproj=4
for option in "--skip zzz" "--bits-map zzz=4"; do
    # shellcheck disable=SC2086
    try 2 "\"zzz\" matches no tensor.\$" "$@" $option
done
try 2 "rule \"lm_head\" matches only lm_head.weight, which is the embedding (tied)" "$@" --bits-map lm_head=4
try 2 'SCALE one of absmax, search, asym, trellis; found "down=4/3/foo": SCALE is something else' "$@" --bits-map down=4/3/foo
try 2 'found "down=4/x": GROUP is something else' "$@" --bits-map down=4/x
try 2 "never packed, as model.norm.weight" "$@" --bits-map 'norm=4'
try 2 "rule \"a(\": missing closing" "$@" --bits-map 'a(=4'
try 2 "bits-map: the pattern is not valid UTF-8" "$@" --bits-map "$(printf '\377=4')"
try 2 "embed-bits" "$@" --embed-bits 9
try 2 "dense-type" "$@" --dense-type f32
try 4 "Give --embed-bits alone" "$@" --embed-bits 8 --head-bits 4
try 4 "cannot have 4 bits as the one and 6 as the other. Give --embed-bits alone" "$@" --head-bits 4
absent gone.h5 gone.h5.partial

# the last match wins, and '=' may stand in the pattern
try 0 "packed" "$@" --dry-run --tensors --bits-map 'proj=6/row' --bits-map 'layers.0.*(?=down)down=3/64/asym'
grep -q "layers.0.mlp.down_proj.weight .* 3 *64 " "$top/out" || complain "--bits-map: the last match does not win"
grep -q "layers.1.mlp.down_proj.weight .* 6 *344 " "$top/out" || complain "--bits-map: the first rule is gone"
absent gone.h5
# a plan folds layers that are stored alike, and no others
try 0 "^model.layers.0-1.mlp.up_proj.weight  *2  *344x128  *packed  *4 " "$@" --dry-run --bits-map 'layers.1.*q_proj=8'
[ "$(grep -c "q_proj" "$top/out")" = 2 ] && [ "$(grep -c "k_proj" "$top/out")" = 1 ] || complain "--dry-run: lines of layers: $(cat "$top/out")"
sed -n '/^bits per weight/p; /^container/p; /^packed/p' "$top/out" | sed 's/ .*//' | tr '\n' ' ' | grep -q '^bits container packed $' ||
    complain "quantize: the whole model does not come first: $(cat "$top/out")"
grep -q "^bits per weight  *[0-9.]* over all 477824 parameters; " "$top/out" || complain "quantize: no bits over all parameters"
grep -q "^no text .*--calib FILE" "$top/out" || complain "quantize: not said what a text would bring"
try 0 "^no text .* by what the model reads, --calib self by what it writes\$" "$@" --bits 3 --dry-run
try 0 "^no text" "$@" --bits-map up=3 --dry-run
try 0 "^no text" "$@" --bits 16 --embed-bits 4 --dry-run # a text chooses codes of an embedding that is the head
try 0 "bits per weight" "$@" --bits 16 --embed-bits 16 --dry-run
! grep "^no text" "$top/out" || complain "quantize: a text is recommended that is refused"
# the default packs embedding and head; a warning names short groups that another group would not leave, once
try 0 '"embed_bits": 6' "$@" --bits 4 --print-recipe
grep -q '"scale": "asym"' "$top/out" && grep -q '"group": "128"' "$top/out" || complain "quantize: other defaults: $(cat "$top/out")"
try 0 '"scale": "search"' "$@" --bits 3 --print-recipe
try 0 '"embed_bits": 16' "$@" --bits 16 --print-recipe
try 0 "^short groups  *the last one of 2 tensors, as model.layers.0.mlp.down_proj.weight" "$@" --bits 4 --dry-run
[ ! -s "$top/err" ] || complain "quantize: a warning of groups that nobody chose: $(cat "$top/err")"
try 0 "^short groups  *the last one of 13 tensors" "$@" --bits 4 --dry-run --skip down_proj --group 48
[ "$(grep -c "warning: the last group of 13 of 13 packed tensors is short, .*With --group 128 none is short$" "$top/err")" = 1 ] ||
    complain "quantize: no warning of short groups: $(cat "$top/err")"

# a recipe that is printed gives the same file, from options, from a file and from the container
set -- --bits 5 --group 64 --scale search --embed-bits 6 --bits-map 'down=3/32' --bits-map 'q_proj=8' --skip o_proj
try 0 dq-recipe/1 quantize "plain model" "$@" --print-recipe
cp "$top/out" recipe.json
try 0 "content SHA-256" quantize "plain model" "$@" -o one.h5
try 0 "content SHA-256" quantize "plain model" --recipe recipe.json -o two.h5
cmp one.h5 two.h5 || complain "--recipe: another file than from the options that it was printed from"
try 0 dq-recipe/1 info one.h5 --recipe
cmp "$top/out" recipe.json || complain "info --recipe: not what --print-recipe said"
try 4 "has no recipe" info "plain model" --recipe
try 0 "as the source gives them" verify one.h5 --source "plain model"
try 0 "group mixed, search scales" info one.h5
grep -q "embedding  *6.250 bits per weight: 6 bits" "$top/out" || complain "info: no line of the embedding"
try 0 '"by_role"' info one.h5 --json
json dq-info/1
# options go before the file, --bits-map after its rules
try 0 '"bits": 2' quantize "plain model" --recipe recipe.json --bits 2 --bits-map 'up=7' --print-recipe
grep -q '"match": "up"' "$top/out" || complain "--bits-map is lost beside --recipe"
[ "$(grep -c '"match"' "$top/out")" -eq 3 ] || complain "--bits-map: not after the rules of --recipe"
# what rules leave nothing to decide about is said; what they leave something is not
echo '{"schema": "dq-recipe/1", "rules": [{"match": "proj", "bits": 3, "group": 64}]}' >every.json
try 0 "packed" quantize "plain model" --recipe every.json --bits 4 --group 32 --scale absmax --embed-bits 6 --dry-run
[ "$(grep -c "warning: --bits has no effect: rules of every.json decide for every tensor" "$top/err")" = 1 ] &&
    [ "$(grep -c "no effect" "$top/err")" = 1 ] || complain "recipe: --bits without effect: $(cat "$top/err")"
try 0 "packed" quantize "plain model" --recipe every.json --group 32 --embed-bits 16 --dry-run
grep -q "warning: --group has no effect" "$top/err" || complain "recipe: --group without effect: $(cat "$top/err")"
# --bits that choose the scales, which the codes depend on, have one
for bits in 3 4; do
    try 0 "packed" quantize "plain model" --recipe every.json --bits $bits --embed-bits 16 -o "by $bits.h5"
    [ ! -s "$top/err" ] || complain "recipe: --bits $bits chooses the scales: $(cat "$top/err")"
done
try 0 "search scales" info "by 3.h5"
try 0 "asym scales" info "by 4.h5"
try 0 "packed" quantize "plain model" --recipe recipe.json --bits 4 --group 32 --dry-run
[ ! -s "$top/err" ] || complain "recipe: --bits with an effect: $(cat "$top/err")"
# a plan and a comment are stored as they are
echo '{"schema": "dq-recipe/1", "comment": "mine", "plan": {"budget": {"kld": 0.01}}}' >planned.json
try 0 "content SHA-256" quantize "plain model" --recipe planned.json -o planned.h5
try 0 '"kld": 0.01' info planned.h5 --recipe
grep -q '"comment": "mine"' "$top/out" || complain "a recipe's comment is lost"
# the settings of the KV cache are part of it; an option beside it wins
echo '{"schema": "dq-recipe/1", "bits": 5, "kv": {"widths": "4|8:8|6", "quant": "dither", "dense_type": "bf16", "recent": 16}}' >cached.json
try 0 "content SHA-256" quantize "plain model" --recipe cached.json -o cached.h5
try 0 "content SHA-256" quantize "plain model" --bits 5 --kv-bits '4|8:8|6' --kv-quant dither --kv-recent 16 -o asked.h5
cmp cached.h5 asked.h5 || complain "--recipe: another file than from the --kv options that it stands for"
try 0 dq-recipe/1 info cached.h5 --recipe
cp "$top/out" printed.json
grep -q '"widths": "4|8:8|6"' printed.json || complain "info --recipe: no widths of the KV cache"
try 0 "content SHA-256" quantize "plain model" --recipe printed.json -o again.h5
cmp cached.h5 again.h5 || complain "--recipe: what info printed gives another file"
try 0 '"recent": 32' quantize "plain model" --recipe cached.json --kv-recent 32 --print-recipe
grep -q '"widths": "4|8:8|6"' "$top/out" || complain "--kv-recent: the widths of the recipe are gone"
try 0 '"k_bits": 5' quantize "plain model" --recipe cached.json --kv-bits 5:8 --print-recipe
if grep -q '"widths"' "$top/out"; then complain "--kv-bits: the widths of the recipe stay beside it"; fi
grep -q '"quant": "dither"' "$top/out" || complain "--kv-bits: the code of the recipe is gone"
# of the two that contradict each other the option is at fault
try 2 "." quantize "plain model" --recipe cached.json --kv-quant per-token --print-recipe
try 4 "plain model: the widths of keys are for two maps, and the model has one" quantize "plain model" -o gone.h5 \
    --recipe "$(printf '%s' '{"schema": "dq-recipe/1", "kv": {"widths": "4+3:4", "quant": "per-channel"}}' >maps.json && echo maps.json)"
try 4 "plain model: the widths of keys are for 3 layers" quantize "plain model" -o gone.h5 \
    --recipe "$(printf '%s' '{"schema": "dq-recipe/1", "kv": {"widths": "4|3|2:4", "quant": "per-channel"}}' >layers.json && echo layers.json)"
absent gone.h5
# heads of KV heads: as from options; what says them for another model is refused
heads="1.3,1.2/1.1,1.0,0.3,0.2,0.1,0.0"
echo '{"schema": "dq-recipe/1", "bits": 5, "kv": {"dense_type": "bf16", "policy": "keydiff", "keep": 0.25, "budget": "heads", "heads": "'"$heads"'"}}' >heads.json
try 0 "content SHA-256" quantize "plain model" --recipe heads.json -o heads.h5
try 0 "content SHA-256" quantize "plain model" --bits 5 --kv-keep 0.25 --kv-budget heads --kv-heads "$heads" -o asked.h5 --force
cmp heads.h5 asked.h5 || complain "--recipe: another file than from the --kv-heads that it stands for"
try 0 "\"heads\": \"$heads\"" info heads.h5 --recipe
try 4 "diff model: the heads name group 1.3, and the model has 2 layers of 2" quantize "diff model" --recipe heads.json -o gone.h5
absent gone.h5
# what is wrong in a file is named, be it for any model or for this one
misfit() { # misfit STATUS PATTERN MEMBER
    printf '{"schema": "dq-recipe/1", %s}\n' "$3" >wrong.json
    try "$1" "error: wrong.json: $2" quantize "plain model" --recipe wrong.json --dry-run
}
misfit 4 'skip "zzz" matches no tensor.$' '"skip": "zzz"'
misfit 4 'rule "zzz" matches no tensor.$' '"rules": [{"match": "zzz", "bits": 4}]'
misfit 3 'skip "a(": missing closing' '"skip": "a("'
misfit 3 'rule "a(": missing closing' '"rules": [{"match": "a(", "bits": 4}]'
try 2 'error: rule "zzz"' quantize "plain model" --recipe recipe.json --bits-map zzz=4 --dry-run
misfit 2 'its method gptq needs a text. Add --calib FILE' '"method": "gptq"'
misfit 2 "its method align needs a text, that of the plan is some.txt with SHA-256 000000000000.... Add --calib FILE" \
    "\"method\": \"align\", \"plan\": {\"calib\": {\"file\": \"some.txt\", \"quarters\": [0], \"sha256\": \"$(printf '%064d' 0)\"}}"
try 2 "[-]-method gptq needs a text" quantize "plain model" --recipe wrong.json --method gptq --dry-run
# nothing is packed that a text could choose codes for
try 2 "[-]-calib: no tensor is packed whose codes a text could choose" quantize "plain model" --bits 16 \
    --calib "$repo/calib/pair/text.txt" --dry-run
# after the end of a run there is nothing to resume
try 6 "two.h5: exists, and there is nothing to resume. Add --force" quantize "plain model" -o two.h5 --recipe recipe.json --resume
echo '{"schema": "dq-recipe/1", "bitz": 4}' >wrong.json
try 3 'wrong.json: unknown key "bitz"' quantize "plain model" --recipe wrong.json -o gone.h5
echo '{"schema": "dq-recipe/1", "rules": [{"match": "down", "bits": 4, "size": 64}]}' >wrong.json
try 3 'wrong.json: "rules", rule 1: unknown key "size"' quantize "plain model" --recipe wrong.json -o gone.h5
# values of another type, and null where a value is meant, name key, expectation and what is there
wrong_value() { # wrong_value PATTERN MEMBER
    printf '{"schema": "dq-recipe/1", %s}\n' "$2" >wrong.json
    try 3 "wrong.json: $1" quantize "plain model" --recipe wrong.json --dry-run
}
hash=$(printf '%064d' 0)
wrong_value 'key "bits": expected a value, or no such key, found null' '"bits": null'
wrong_value 'key "bits": expected 2 to 8, or 16, found "4"' '"bits": "4"'
wrong_value 'key "embed_bits": expected 2 to 8, or 16, found 9' '"embed_bits": 9'
wrong_value 'key "head_bits": expected 2 to 8, or 16, found 4.5' '"head_bits": 4.5'
wrong_value 'key "group": expected a number of columns up to 2147483647, "row" or "tensor", found an array' '"group": [1]'
# what 32 bits would make another number of
wrong_value 'key "group": expected a number of columns up to 2147483647, .* found 4294967424' '"group": 4294967424'
wrong_value 'key "group": expected a number of columns up to 2147483647, .* found "4294967424"' '"group": "4294967424"'
wrong_value '"rules", rule 1: key "group": expected a number of columns up to' '"rules": [{"match": ".", "bits": 4, "group": 4294967424}]'
wrong_value '"rules", rule 1: key "bits": expected 2 to 8, or 16, found 4294967300' '"rules": [{"match": ".", "bits": 4294967300}]'
for member in '"keep": 0.5, "sink": 4294967300' '"keep": 0.5, "recent": 4294967360' '"keep": 0.5, "window": 4294967297' \
    '"tokens": 4294967396' '"keep": 1e-300' '"keep": 1e-12' '"keep": 0.5, "every": 4294967297'; do
    wrong_value '"kv": ' "\"kv\": {\"policy\": \"h2o\", $member}"
done
wrong_value '"kv": KV settings: expected a share (keep) from 1e-06 to 1' '"kv": {"policy": "h2o", "keep": 1e-300}'
try 2 "expected a fraction from 1e-06 to 1" quantize "plain model" --dry-run --kv-policy h2o --kv-keep 1e-300
try 2 "expected a number of columns from 1 to 2147483647" quantize "plain model" --dry-run --group 4294967424
try 2 "GROUP is something else" quantize "plain model" --dry-run --bits-map .=4/4294967424
wrong_value 'key "scale": expected the name of a mode of scales, found 3' '"scale": 3'
wrong_value 'key "scale_dtype": expected "f16" or "f32", found "f64"' '"scale_dtype": "f64"'
wrong_value 'key "dense_type": expected "keep", "bf16" or "f16", found true' '"dense_type": true'
wrong_value 'key "skip": expected a regular expression, found 5' '"skip": 5'
wrong_value 'key "method": expected a value, or no such key, found null' '"method": null'
wrong_value 'key "kv": expected a value, or no such key, found null' '"kv": null'
wrong_value '"kv": not an object' '"kv": "4:4"'
wrong_value '"kv": unknown key "bits"' '"kv": {"bits": 4}'
wrong_value '"kv": key "recent": expected an integer, found a string' '"kv": {"recent": "16"}'
wrong_value '"kv": key "quant": expected "per-token", "per-channel", "dither", "mixed" or "auto", found "dithr"' '"kv": {"quant": "dithr"}'
wrong_value '"kv": key "widths" is "4|": ' '"kv": {"quant": "per-channel", "widths": "4|"}'
wrong_value '"kv": key "policy" is "h3o": unknown policy' '"kv": {"policy": "h3o", "keep": 0.5}'
wrong_value '"kv": key "keep" says nothing without "policy"' '"kv": {"keep": 0.5}'
wrong_value '"kv": KV settings: 7 bits' '"kv": {"k_bits": 7}'
wrong_value '"kv": KV settings: the budget "heads" needs heads' '"kv": {"policy": "h2o", "keep": 0.5, "budget": "heads"}'
wrong_value '"kv": .*group 0.0 stands twice' '"kv": {"policy": "h2o", "keep": 0.5, "budget": "heads", "heads": "0.0,0.0"}'
wrong_value '"rules": not an array' '"rules": {}'
wrong_value '"rules", rule 1: key "bits": expected a value, or no such key, found null' '"rules": [{"match": "q", "bits": null}]'
wrong_value '"rules", rule 1: key "bits": expected 2 to 8, or 16, found 9' '"rules": [{"match": "q", "bits": 9}]'
wrong_value '"rules", rule 1: key "bits" is missing' '"rules": [{"match": "q"}]'
wrong_value '"rules", rule 1: key "match": expected a string, found an integer' '"rules": [{"match": 1, "bits": 4}]'
wrong_value 'key "plan": expected an object, found an array' '"plan": []'
wrong_value '"plan": key "weights_sha256": expected a SHA-256, 64 hex digits, found 5' '"plan": {"weights_sha256": 5}'
wrong_value '"plan": key "model_fingerprint": expected a SHA-256, 64 hex digits, found null' '"plan": {"model_fingerprint": null}'
wrong_value '"plan": key "arithmetic": expected a text, found 5' '"plan": {"arithmetic": 5}'
wrong_value '"plan": key "calib": expected an object, found null' '"plan": {"calib": null}'
wrong_value '"plan": "calib": key "quarters": expected a list of numbers from 0 to 3' '"plan": {"calib": {"quarters": [0, 9]}}'
wrong_value '"plan": "calib": key "sha256": expected a SHA-256, 64 hex digits, found nothing' '"plan": {"calib": {"quarters": [0]}}'
wrong_value '"plan": "calib": key "ctx": expected a whole number from 2 up, found "9"' \
    "\"plan\": {\"calib\": {\"quarters\": [0], \"sha256\": \"$hash\", \"ctx\": \"9\"}}"
# widths of another model are refused, without their plan they are settings as any
echo "{\"schema\": \"dq-recipe/1\", \"plan\": {\"model_fingerprint\": \"$hash\"}}" >other.json
try 4 "plain model: is not the model that the recipe was planned for (its fingerprint is [0-9a-f]*..., expected 000000000000...). Plan for this model, or take \"plan\" out" \
    quantize "plain model" --recipe other.json -o gone.h5
echo '{"schema": "dq-recipe/1", "rules": [' >wrong.json
try 3 'wrong.json' quantize "plain model" --recipe wrong.json -o gone.h5
try 6 "nowhere.json" quantize "plain model" --recipe nowhere.json -o gone.h5
try 2 "" quantize "plain model" --recipe recipe.json -o recipe.json --force
absent gone.h5
grep -q dq-recipe/1 recipe.json || complain "-o replaced the recipe that was read"

# the whole model in codes: what is scored is told, and eval, logits and verify agree on it
try 0 "content SHA-256" quantize "plain model" -o whole.h5 --scale search --embed-bits 4 --dense-type f16 --force
try 0 "4/128, embed 4" eval "plain model" whole.h5 --text "short text" --ctx 32
try 0 '"embed_bits": 4' eval "plain model" whole.h5 --text "short text" --ctx 32 --json
try 0 "." eval "plain model" one.h5 --text "short text" --ctx 32 --csv table.csv
[ "$(column table.csv 2 weight_bits)" = mixed ] || complain "--csv: weight_bits of mixed widths"
grep -q "^one.h5: [0-9.]* bpw, [0-9.]* KiB$" "$top/out" || complain "eval: no bits per weight of mixed widths"
try 0 "." eval whole.h5 --text "short text" --ctx 32 --math int8 --kv-bits 8
"$dq" eval whole.h5 --text "short text" --ctx 32 -v >"$top/out" 2>"$top/err"
grep -q "head prepacked f32 (4 bits, row)" "$top/err" || complain "eval -v: nothing about the head's kernel"
# only the embedding is packed: the container is not its own source all the same
try 0 "content SHA-256" quantize "plain model" -o ends.h5 --bits 16 --embed-bits 6
try 0 "16, embed 6" eval ends.h5 --text "short text" --ctx 32
grep -q "compared with nothing" "$top/out" || grep -q "nothing says what its weights" "$top/err" ||
    complain "eval: a rounded embedding counts as the source's"
try 0 "content SHA-256" quantize "plain model" -o half.h5 --bits 16 --dense-type f16
try 0 "BF16 to F16" quantize "plain model" --dry-run --bits 16 --dense-type f16
