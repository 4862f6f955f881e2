# general.sh: what all commands have in common; sourced by run.sh.
try 2 "no command given"
try 2 "unknown command \"stat\". Did you mean dq stats" stat
try 0 "usage: dq COMMAND" --help
version=$(sed -n 's/^project(dq VERSION \([0-9.]*\) .*/\1/p' "$repo/CMakeLists.txt")
told="^dq $version\\( ([0-9A-Za-z.+~_-]*)\\)\\{0,1\\}\$" # with the commit, where it is known
try 0 "$told" --version
grep -rnF "\"$version\"" "$repo/src" "$repo/cmds" && complain "the version stands in more places than CMakeLists.txt"
# threads wait as long as dq says (the runtime prints what it read), and as the user says where he does
if OMP_DISPLAY_ENV=VERBOSE "$dq" --version 2>&1 | grep -q GOMP_SPINCOUNT; then
    waits() { # waits PATTERN VARIABLE=VALUE...
        what=$1
        shift
        env -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=VERBOSE "$@" "$dq" --version 2>&1 >"$top/out" | grep GOMP_SPINCOUNT | tail -1 | grep -q "$what" ||
            complain "general: $*: the runtime of threads did not read $what"
        grep -q "$told" "$top/out" || complain "general: $*: started anew, dq prints $(cat "$top/out")"
    }
    waits "'2000'" LC_ALL=C
    if [ -r /proc/self/comm ]; then
        mkfifo idle
        env -u GOMP_SPINCOUNT "$dq" tokenize "plain model" --text idle >"$top/out" 2>"$top/err" &
        sleep 0.2 # it waits for the text
        name=$(cat /proc/$!/comm)
        echo word >idle
        wait $!
        [ "$name" = "$(basename "$dq" | cut -c-15)" ] || complain "general: started anew, dq is called $name"
    fi
    waits "'77'" GOMP_SPINCOUNT=77
    waits "'0'" OMP_WAIT_POLICY=passive
fi
"$dq" help --markdown >commands.md
cmp -s commands.md "$repo/docs/commands.md" || complain "docs/commands.md is not what dq help --markdown prints"
"$dq" help --schema >schemas
while read -r name; do
    "$dq" help --schema "$name" >schema.json
    file=docs/schemas/$(echo "$name" | tr / -).json
    cmp -s schema.json "$repo/$file" || complain "$file is not what dq help --schema $name prints"
done <schemas
try 2 'no document is named "dq-nothing/1". See dq help --schema.' help --schema dq-nothing/1
# every command that dq --help lists, and those that the help of a group does
listed='s/^  \([a-z][a-z ]*[a-z]\)  .*/\1/p'
"$dq" --help | sed -n "$listed" >top
while read -r c; do
    if "$dq" "$c" --help | head -n 1 | grep -q "usage: dq $c COMMAND"; then
        try 2 "expected one of its commands. See dq $c --help" "$c"
        try 0 "^usage: dq $c COMMAND" help "$c"
        "$dq" "$c" --help | sed -n "$listed"
    else
        echo "$c"
    fi
done <top >commands
grep -qx "bench prefill" commands || complain "general: no command of a group: $(cat commands)"
# shellcheck disable=SC2086
while read -r c; do
    try 0 "^usage: dq $c" $c --help
    try 0 "^usage: dq $c" $c -h
    try 2 "unknown option --no-such-option" $c --no-such-option
    try 2 "See dq $c --help" $c --no-such-option
    try 0 "^usage: dq $c" help $c
    [ "$c" = doctor ] && continue
    try 2 "expected .*found 0 arguments[.] \(Usage:\|See\) dq $c " $c
    ! grep -q '[?]' "$top/err" || complain "$c: a usage error with what cannot be printed: $(cat "$top/err")"
done <commands
try 0 "usage: dq COMMAND" help
# a help of many options has a first page, and topics that hold all of them between them
try 0 "all of them, by topic" eval --help
[ "$(wc -l <"$top/out")" -le 60 ] || complain "help eval: $(wc -l <"$top/out") lines are no page"
sed -n 's/^ *\(-., \)\{0,1\}--\([a-z-]*\).*/\2/p' "$top/out" | sort >brief
topics=$(sed -n '/^all of them/,/^$/s/^  \([a-z]*\) .*/\1/p' "$top/out")
for topic in $(echo "$topics" | grep -vx all); do
    try 0 "      --" help eval "$topic"
    sed -n 's/^ *\(-., \)\{0,1\}--\([a-z-]*\).*/\2/p' "$top/out"
done | sort -u >listed
try 0 "^usage: dq eval" help eval all
sed -n 's/^ *\(-., \)\{0,1\}--\([a-z-]*\).*/\2/p' "$top/out" | grep -vx help | sort -u | cmp -s - listed || complain "help eval: topics lack options"
[ -z "$(comm -23 brief listed)" ] || complain "help eval: the first page has others: $(comm -23 brief listed)"
try 0 "^      --kv-budget KIND" eval --help=kv
try 2 'there is no topic "kvs". See dq help eval' help eval kvs
try 2 "takes a command and a topic" help eval kv x
try 2 'there is no topic "kv". See dq help info' help info kv
try 0 "all of them, by topic" eval --help "plain model"
try 2 "unknown command \"evla\". Did you mean dq eval" help evla
try 0 "^dq [0-9]" version
try 2 "expected one MODEL, found 2 arguments[.] Usage: dq plan kv MODEL" plan kv "plain model" x
try 2 "expected no argument" doctor x
try 2 "unknown option --jso" doctor --jso
try 2 "takes no value" doctor --json=1
try 2 "needs a value" stats "plain model" --text

# a MODEL that is none
try 6 "no-such-model" stats no-such-model --ids 1
try 6 "no-such-model" info no-such-model
try 6 "no-such-model" verify no-such-model
try 6 "no-such-model" logits no-such-model --ids 1 -o x.h5
try 6 "no-such-model" quantize no-such-model -o x.h5 --bits 4
try 6 "no-such-model" eval no-such-model --text "short text"
try 6 "no-such-model" tokenize no-such-model --text "short text"
for c in "stats --ids 1" "info" "bench prefill" "doctor --model" "logits --ids 1 -o x.h5" "quantize -o x.h5" "eval --text words"; do
    echo words >words
    # shellcheck disable=SC2086
    try 6 "hf download owner/model --local-dir model first" $c owner/model
    # shellcheck disable=SC2086
    try 6 "no such file or folder\$" $c owner/model.h5
done
try 6 "no such file or folder\$" info ./owner/model
try 6 "8: no such file or folder.*with commas and no spaces" eval "plain model" --text words --logit-bits 16 8
try 6 "per-row: no such file or folder.*with commas and no spaces" eval "plain model" --text words --logit-granularity per-tensor per-row
mkdir "empty folder"
try 6 "config.json" info "empty folder"
try 3 "choices.jsonl" verify choices.jsonl
cp -r "plain model" broken
head -c 1000 "plain model/model.safetensors" >broken/model.safetensors
try 3 "model.safetensors" stats broken --ids 1
cp "plain model/model.safetensors" broken/model.safetensors
printf '{"model_type": "llama",' >broken/config.json
try 3 "config.json" info broken
printf '{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}' >broken/config.json
try 4 "[Mm]amba" info broken

# options that need one of several words or a number in a range
try 2 "threads: expected a whole number" stats "plain model" --threads many
try 2 "progress: expected one of auto, always, never" stats "plain model" --ids 1 --progress often
for c in "quantize -o x.h5 --bits" "quantize -o x.h5 --logit-bits" "logits --ids 1 -o x.h5 --logit-bits"; do
    for bits in 1 9 17 x; do
        # shellcheck disable=SC2086
        try 2 "bits: expected 2 to 8, or 16; found \"$bits\"" $c $bits "plain model"
    done
done
try 2 "logit-bits: expected widths of 2 to 8 bits, or 16" eval "plain model" --text words --logit-bits 16,9
absent x.h5
try 2 "device" stats "plain model" --ids 1 --device gpu
try 5 "CUDA" stats "plain model" --ids 1 --device cuda

try 0 "hdf5" doctor
try 0 "devices" doctor --json
json dq-doctor/1
try 0 '^ *"cublas": {' doctor --json
export DQ_CUBLAS="$top/no cuBLAS" # named, never replaced by another
try 0 "^  cublas  .*\(no CUDA backend\|no cuBLAS: cuBLAS does not open (.*)\. Name \)" doctor
unset DQ_CUBLAS
try 0 "llama" info "plain model"
try 0 "llama" info "plain model" --json
json dq-info/1
printf 'two words' >words
try 0 "^[0-9][0-9 ]*$" tokenize "plain model" --text words
ids=$(cat "$top/out")
[ "$("$dq" tokenize "plain model" --text - <words)" = "$ids" ] || complain "tokenize: - differs from a file"

# ---- decoding speed
try 0 "4:4 *bf16 *int8" bench decode "$repo/calib/pair/diffllama" --new-tokens 2 --context 200
try 0 '"what": "decode"' bench decode "$repo/calib/pair/llama" --new-tokens 1 --context 70 --json
try 4 "Lower --context" bench decode "$repo/calib/pair/llama" --new-tokens 1 --context 100000

# ---- speed of short items; counts are those of dq eval
items=$repo/calib/pair/choices.jsonl
whole() { # whole KEY: the first whole number of that name in the last output
    sed -n "s/^ *\"$1\": \([0-9][0-9]*\),*$/\1/p" "$top/out" | head -n 1
}
try 0 "items of mc in f32" bench items "$repo/calib/pair/diffllama" "$items" --limit 3 --runs 2
try 0 '"share_of_prefill_median"' bench items "$repo/calib/pair/llama" "$items" --limit 100 --runs 1 --json
json dq-bench/1
counted="$(whole naive_tokens) ids, $(whole computed_tokens) computed"
try 0 '"task"' eval "$repo/calib/pair/llama" --task mc --data "$items" --limit 100 --json
[ "$counted" = "$(whole tokens) ids, $(whole computed_tokens) computed" ] || complain "bench: $counted, but not in dq eval"
[ "${counted%% *}" -gt 10000 ] || complain "bench: $counted is too little"
try 0 "" quantize "$repo/calib/pair/llama" -o items-8.h5 --bits 8
try 0 '"math": "int8"' bench items items-8.h5 "$items" --limit 2 --runs 1 --math int8 --json
try 0 "prefill in int8" bench prefill items-8.h5 --tokens 64 --runs 1 --math int8
try 2 "expected one of f32, bf16, int8" bench prefill "$repo/calib/pair/llama" --math f64
try 2 "task" bench items "$repo/calib/pair/llama" "$items" --task nothing
try 3 "choices" bench items "$repo/calib/pair/llama" "$repo/calib/pair/llama/config.json"
try 4 "bf16" bench items "$repo/calib/pair/llama" "$items" --math bf16
try 4 "packed" bench items "$repo/calib/pair/llama" "$items" --math int8
mkdir "ids only"
cp "plain model/config.json" "plain model/model.safetensors" "ids only"
try 4 "tokenizer" bench items "ids only" "$items"
try 6 "missing.jsonl" bench items "$repo/calib/pair/llama" missing.jsonl

# ---- a reader that has enough is no failure: nothing is said, and files are complete
closed() { # closed ARGUMENTS...: the status of dq when nobody reads its output
    mkfifo left
    # shellcheck disable=SC2217 # which holds the pipe open
    sleep 0.1 <left &
    exec 3>left
    wait $!
    "$dq" "$@" >&3 2>"$top/err"
    got=$?
    exec 3>&-
    rm left
    [ $got -eq 141 ] || complain "dq $* | head: expected status 141, found $got"
    [ ! -s "$top/err" ] || complain "dq $* | head: $(cat "$top/err")"
}
closed --help
closed info items-8.h5
closed info items-8.h5 --json
closed eval "$repo/calib/pair/llama" --task mc --data "$items" --limit 12 -o kept.json --progress never
closed stats "$repo/calib/pair/llama" --ids "1 2 3" -o kept.h5 --progress never
present kept.json kept.h5
absent dq-eval-*.resume

# ---- what users of other programs type
try 2 "unknown option -m[.] The model is the first argument" generate -m "plain model"
try 2 "unknown option -p[.] The prompt is the second argument" generate "plain model" -p "the green mole"
try 2 "unknown option -f[.] Did you mean --prompt-file" generate "plain model" -f "short text"
try 2 "unknown option -f[.] Did you mean --text" eval "plain model" -f "short text"
try 2 "unknown option -c[.] Did you mean --ctx" eval "plain model" -c 512
try 2 "unknown option --temp[.] Did you mean --temperature" generate "plain model" x --temp 0.5
for name in max-tokens max_tokens max_new_tokens n-predict; do
    try 2 "unknown option --${name}[.] Did you mean --max-new?" generate "plain model" x --$name 5
done
try 2 "unknown option --bpw[.] Did you mean --size" quantize "plain model" -o x.h5 --bpw 4.5
try 2 "unknown option --group_size[.] Did you mean --group?" quantize "plain model" -o x.h5 --group_size 32
try 2 "unknown option --tasks[.] Did you mean --task?" eval "plain model" --tasks mc
try 2 "unknown option --num_fewshot[.] Did you mean --num-fewshot" eval "plain model" --num_fewshot 5
try 2 "unknown option -Z[.] See dq eval --help" eval "plain model" -Z
try 2 "unknown option -ngl[.] Did you mean --device" generate "plain model" x -ngl 99
try 2 "unknown option -ctk[.] Did you mean --kv-bits" eval "plain model" -ctk q8_0
try 2 "unknown option --shots[.] Did you mean --num-fewshot" eval "plain model" --shots 5
try 2 "unknown option --batch_size[.] Leave it out: dq has no such setting" eval "plain model" --batch_size 4
try 2 "unknown option --batch-size[.] Did you mean --batch" bench generate "plain model" --batch-size 4
try 2 "unknown option --prompt[.] See dq eval --help" eval "plain model" --prompt x
for word in "--jinja[.] Leave" "--stop[.] See" "--keep[.] See"; do # nothing near is meant
    try 2 "unknown option $word" generate "plain model" x "${word%%[[]*}" 1
done
try 2 "unknown command .chat.[.] Did you mean dq generate MODEL -i" chat "plain model"
try 2 "unknown command .perplexity.[.] Did you mean dq eval MODEL --text FILE" perplexity "plain model"
try 2 "expected one of its commands" plan
grep -q "^  plan weights " "$top/err" || complain "dq plan: its commands are not listed"
