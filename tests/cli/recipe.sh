# recipe.sh: which tensors get which bits, recipes that come back, the embedding in codes; sourced by run.sh.

# settings that are none, and patterns that match nothing, are named before anything is written
set -- quantize "plain model" -o gone.h5
for item in down=9 down=1 down =4 down= down=4/0 down=4/x down=4/64/min down=4/64/search/f16 down=4x; do
    try 2 "bits-map: expected REGEX=N" "$@" --bits-map "$item"
done
try 2 "rule \"dwn_proj\" matches no tensor. Closest names: model.layers.0.mlp.down_proj" "$@" --bits-map dwn_proj=4
try 2 "never packed, as model.norm.weight" "$@" --bits-map 'norm=4'
try 2 "rule \"a(\": missing closing" "$@" --bits-map 'a(=4'
try 2 "bits-map: the pattern is not valid UTF-8" "$@" --bits-map "$(printf '\377=4')"
try 2 "embed-bits" "$@" --embed-bits 9
try 2 "dense-type" "$@" --dense-type f32
try 4 "Give --embed-bits alone" "$@" --head-bits 4
try 4 "Give --embed-bits alone" "$@" --embed-bits 8 --head-bits 4
absent gone.h5 gone.h5.partial

# the last match wins, and '=' may stand in the pattern
try 0 "packed" "$@" --dry-run --bits-map 'proj=6/row' --bits-map 'layers.0.*(?=down)down=3/64/asym'
grep -q "layers.0.mlp.down_proj.weight .* 3 *64 " "$top/out" || complain "--bits-map: the last match does not win"
grep -q "layers.1.mlp.down_proj.weight .* 6 *344 " "$top/out" || complain "--bits-map: the first rule is gone"
absent gone.h5

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
# options go before the file, --bits-map behind its rules
try 0 '"bits": 2' quantize "plain model" --recipe recipe.json --bits 2 --bits-map 'up=7' --print-recipe
grep -q '"match": "up"' "$top/out" || complain "--bits-map is lost beside --recipe"
[ "$(grep -c '"match"' "$top/out")" -eq 3 ] || complain "--bits-map: not behind the rules of --recipe"
# a plan and a comment are stored as they are
echo '{"schema": "dq-recipe/1", "comment": "mine", "plan": {"budget": {"kld": 0.01}}}' >planned.json
try 0 "content SHA-256" quantize "plain model" --recipe planned.json -o planned.h5
try 0 '"kld": 0.01' info planned.h5 --recipe
grep -q '"comment": "mine"' "$top/out" || complain "a recipe's comment is lost"
# what is wrong in a file is named
echo '{"schema": "dq-recipe/1", "bitz": 4}' >wrong.json
try 3 'wrong.json: unknown key "bitz"' quantize "plain model" --recipe wrong.json -o gone.h5
echo '{"schema": "dq-recipe/1", "rules": [{"match": "down", "bits": 4, "size": 64}]}' >wrong.json
try 3 'wrong.json: "rules", rule 1: unknown key "size"' quantize "plain model" --recipe wrong.json -o gone.h5
echo '{"schema": "dq-recipe/1", "rules": [' >wrong.json
try 3 'wrong.json' quantize "plain model" --recipe wrong.json -o gone.h5
try 6 "nowhere.json" quantize "plain model" --recipe nowhere.json -o gone.h5
try 2 "" quantize "plain model" --recipe recipe.json -o recipe.json --force
absent gone.h5
grep -q dq-recipe/1 recipe.json || complain "-o replaced the recipe that was read"

# the whole model in codes: what is scored is told, and eval, logits and verify agree on it
try 0 "content SHA-256" quantize "plain model" -o whole.h5 --embed-bits 4 --dense-type f16 --force
try 0 "4/128, embed 4" eval "plain model" whole.h5 --text "short text" --ctx 32
try 0 '"embed_bits": 4' eval "plain model" whole.h5 --text "short text" --ctx 32 --json
try 0 "." eval "plain model" one.h5 --text "short text" --ctx 32 --csv table.csv
[ "$(column table.csv 2 weight_bits)" = mixed ] || complain "--csv: weight_bits of mixed widths"
grep -q "mixed, [0-9.]* bpw" "$top/out" || complain "eval: mixed widths have no bits per weight"
try 0 "." eval whole.h5 --text "short text" --ctx 32 --math int8 --kv-bits 8
"$dq" eval whole.h5 --text "short text" --ctx 32 -v >"$top/out" 2>"$top/err"
grep -q "head gemm f32 (4 bits, row)" "$top/err" || complain "eval -v: nothing about the head's kernel"
# only the embedding is packed: the container is not its own source all the same
try 0 "content SHA-256" quantize "plain model" -o ends.h5 --bits 16 --embed-bits 6
try 0 "16, embed 6" eval ends.h5 --text "short text" --ctx 32
grep -q "compared with nothing" "$top/out" || grep -q "nothing says what its weights" "$top/err" ||
    complain "eval: a rounded embedding counts as the source's"
try 0 "content SHA-256" quantize "plain model" -o half.h5 --bits 16 --dense-type f16
try 0 "BF16 to F16" quantize "plain model" --dry-run --bits 16 --dense-type f16
