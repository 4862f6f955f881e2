# files.sh: outputs that cannot be written, runs that are stopped, containers; sourced by run.sh.

# /dev/full: every write fails for want of space
for c in "stats|--ids|1" "eval|--task|mc|--data|choices.jsonl|--limit|2" "doctor" "info" "--help" "tokenize|--text|short text" "stats|--ids|1|--json"; do
    old=$IFS
    IFS='|'
    # shellcheck disable=SC2086
    set -- $c
    IFS=$old
    name=$1
    shift
    case $name in
    stats | eval | info | tokenize) set -- "$name" "plain model" "$@" ;;
    *) set -- "$name" "$@" ;;
    esac
    "$dq" "$@" >/dev/full 2>"$top/err"
    got=$?
    [ $got -eq 6 ] || complain "dq $* >/dev/full: expected status 6, found $got"
    grep -q "standard output: cannot write" "$top/err" || complain "dq $* >/dev/full: $(cat "$top/err")"
done
"$dq" stats "plain model" --ids 1 -o gone.h5 --csv gone.csv >/dev/full 2>/dev/null
"$dq" logits "plain model" --ids 1 -o gone.h5 >/dev/full 2>/dev/null
absent gone.h5 gone.h5.partial gone.csv
ls dq-eval-*.resume >/dev/null 2>&1 || complain "dq eval >/dev/full: its scores are not kept"
rm -f dq-eval-*.resume

# what is no file stays what it is, and is refused before any work
mkfifo pipe
mkdir folder
set -- eval "plain model" --task mc --data choices.jsonl --limit 3
for option in -o --csv --dump-items --html; do
    try 6 "pipe: not a regular file" "$@" $option pipe
    try 6 "folder: is a folder" "$@" $option folder
    try 6 "folder nowhere does not exist" "$@" $option nowhere/gone
done
try 6 "not a regular file" stats "plain model" --ids 1 --csv pipe --force
try 6 "not a regular file" stats "plain model" --ids 1 -o pipe --force
try 6 "not a regular file" logits "plain model" --ids 1 -o pipe --force
try 6 "not a regular file" quantize "plain model" -o pipe --force
for c in info stats logits eval tokenize verify quantize; do # a pipe that nobody writes to
    case $c in
    stats) set -- --ids 1 ;;
    logits) set -- --ids 1 -o gone.h5 ;;
    eval) set -- --task mc --data choices.jsonl ;;
    tokenize) set -- --text "short text" ;;
    quantize) set -- -o gone.h5 --bits 4 ;;
    *) set -- ;;
    esac
    try 6 "pipe: not a regular file" $c pipe "$@"
done
set -- eval "plain model" --task mc --data choices.jsonl --limit 3
try 2 "write this file" "$@" -o twice --csv twice
absent twice
[ -p pipe ] || complain "a pipe was replaced by a file"
absent pipe.partial folder.partial
rm -r pipe folder
ln -s target.json link.json
: >target.json
# what exists is replaced with --force only, whatever the output, and refused before anything is read
for option in -o --csv --dump-items --dump-requests --html; do
    echo older >kept
    try 6 "kept: exists. Add --force" eval "no such model" --task mc --data choices.jsonl $option kept
    [ "$(cat kept)" = older ] || complain "eval $option: a file was replaced without --force"
done
try 6 "kept: exists. Add --force" judged choices.jsonl --csv kept
try 6 "kept: exists. Add --force" eval "plain model" --task generate --data prompts.jsonl --dump-completions kept
try 6 "kept: exists. Add --force" stats "plain model" --ids 1 --csv kept
try 6 "kept: exists. Add --force" stats "plain model" --ids 1 -o kept
try 6 "kept: exists. Add --force" logits "plain model" --ids 1 -o kept
try 6 "kept: exists. Add --force" quantize "plain model" -o kept
try 0 "plain model" "$@" --csv kept --force
grep -q "plain model" kept || complain "eval --force: a file was not replaced"
try 0 "plain model" "$@" --csv kept --force --resume
rm kept
# names that say another form, and no names
for name in x.gguf x.safetensors x.json x.csv x.bin; do
    try 2 "$name: -o writes no such file (expected HDF5, name.h5" quantize "plain model" -o $name
    try 2 "$name: -o writes no such file (expected HDF5, name.h5" logits "plain model" --ids 1 -o $name
    absent $name
done
try 2 "x.h5: --csv writes no such file (expected CSV" stats "plain model" --ids 1 --csv x.h5
try 2 "x.csv: -o writes no such file (expected JSON" "$@" -o x.csv
try 2 "x.json: --html writes no such file" "$@" --html x.json
for name in - ""; do
    try 2 "-o: expected the name of a file" quantize "plain model" -o "$name"
    try 2 "--csv: expected the name of a file" "$@" --csv "$name"
done
try 6 "folder nowhere does not exist" quantize "plain model" -o nowhere/x.h5 --bits 4
try 6 "folder nowhere does not exist" logits "plain model" --ids 1 -o nowhere/x.h5
try 6 "folder nowhere does not exist" stats "plain model" --ids 1 -o nowhere/x.h5
try 0 "plain model" "$@" -o link.json --force
[ -L link.json ] && grep -q dq-eval/1 target.json || complain "eval: -o LINK does not write to what it points to"
rm link.json target.json
# nothing that is read is replaced, under whatever name
cp -r "diff model" victim
ln -s victim alias
ln -s victim/config.json link.json
(cd victim && cksum ./*) >"$top/a"
for file in victim/config.json victim/tokenizer.json victim/model.safetensors victim/generation_config.json \
    victim/more.safetensors alias/config.json link.json; do
    for option in -o --csv --dump-items --dump-requests --html; do
        try 2 "overwrite a file of the input" eval victim --task mc --data choices.jsonl $option "$file"
    done
    try 2 "overwrite a file of the input" "$@" --ref victim -o "$file"
    try 2 "overwrite a file of the input" stats victim --ids 1 --csv "$file" --force
    try 2 "overwrite a file of the input" stats victim --ids 1 -o "$file" --force
    try 2 "overwrite a file of the input" logits victim --ids 1 -o "$file" --force
    try 2 "overwrite a file of the input" quantize victim -o "$file" --force
done
try 2 "same file" stats victim --text "short text" --csv "short text" --force
try 2 "same file" logits victim --text "short text" -o "short text" --force
try 0 "victim" eval victim --task mc --data choices.jsonl --limit 3 -o victim/notes.json
try 6 "exists" eval victim --task mc --data choices.jsonl --limit 3 -o victim/notes.json
rm victim/notes.json
(cd victim && cksum ./*) | cmp -s - "$top/a" || complain "a model that was read has changed"
"$dq" quantize victim -o packed.h5 --bits 4 -q >/dev/null
cksum packed.h5 >"$top/a"
try 2 "same file" eval packed.h5 --task mc --data choices.jsonl -o packed.h5
try 2 "same file" eval victim --ref packed.h5 --task mc --data choices.jsonl --csv packed.h5
cksum packed.h5 | cmp -s - "$top/a" || complain "a container that was read has changed"
rm -r victim alias link.json packed.h5

# outputs are files, not spellings: two that are one are refused before any work, with what lies beside them
mkdir -p there
ln -s there here
ln -s there/new.json dangling.json
set -- eval "plain model" --task mc --data choices.jsonl --limit 3
for pair in "b.json|./b.json" "there/b.json|here/b.json" "there/b.json|there/../here//b.json" \
    "$PWD/b.json|b.json" "there/new.json|dangling.json" "b.json|b.json.partial"; do
    for option in --dump-items --dump-requests; do
        try 2 "write this file" "$@" -o "${pair%|*}" $option "${pair#*|}"
        try 2 "write this file" "$@" -o "${pair#*|}" $option "${pair%|*}" --force
    done
done
try 2 "\./b: -o and --csv write this file (b)" stats "plain model" --ids 1 -o b --csv ./b
try 2 "b.json: --dump-items and -o\|b.json: -o and --dump-items" "$@" -o b.json --dump-items ./b.json
try 2 "standard output" "$@" -o "$top/out" --force
absent b b.json b.json.partial there/b.json there/new.json
# neither is what a run keeps on its way an input or another output
# no option of any command names an input that an output may replace; the rows say which have a path
goes_with() { # goes_with OPTION: what a command needs beside it
    case $1 in
    --kv-gates) echo --kv-policy kvzap --kv-keep 0.5 ;;
    --baseline) echo --fail-if "nll_nats>baseline" ;;
    --data) echo --task mc ;;
    --fewshot-data) echo --task mc --data choices.jsonl --num-fewshot 1 ;;
    --slice-counts) echo --slices ;;
    esac
}
guarded=0
"$dq" help --completion bash |
    sed -n 's/^_dq_of_\(.*\)() {/\1/p; s/^    \(--.*\)) value=path ;;/\1/p' >rows
cp -r "plain model" model
cp "short text" text
while read -r row; do
    case $row in
    --*) ;;
    *)
        command=$(echo "$row" | tr _ ' ')
        case $command in
        eval) with="model --text text" ;;
        report | merge) with="text" ;;
        judged) with="choices.jsonl" ;;
        stats) with="model" ;;
        logits) with="model --text text" ;;
        quantize) with="model --bits 4" ;;
        "plan weights") with="model --calib text --budget bpw=4" ;;
        "plan kv") with="model --text text --kv-bits 4" ;;
        "plan heads") with="model --text text --kv-keep 0.5" ;;
        "plan gates") with="model --text text" ;;
        export) with="model" ;;
        *) with= ;;
        esac
        continue
        ;;
    esac
    case "$row" in *--output*) ;; *) continue ;; esac
    for in in $(echo "$row" | tr -d '|'); do
        case $in in
        -o | --output | --csv | --html | --dump-*) continue ;;
        --requests) [ "$command" != judged ] || continue ;;
        esac
        some=$(goes_with "$in")
        cp "short text" it
        [ "$in" != --recipe ] || echo '{"schema": "dq-recipe/1"}' >it
        cp it as.it.was
        for beside in it it.partial; do
            mv it $beside 2>/dev/null
            # shellcheck disable=SC2086 # several words each
            try 2 "input and output are the same file" $command $with $some $in $beside -o it --force
            cmp -s as.it.was $beside || complain "dq $command $in: the input is not what it was"
            mv $beside it 2>/dev/null
        done
        rm -f it it.partial as.it.was
        guarded=$((guarded + 1))
    done
done <rows
[ "$guarded" -ge 23 ] || complain "guard: only $guarded options of inputs were tried"
rm -r model text rows
cp choices.jsonl kept.json.partial
try 2 "input and output are the same file" eval "plain model" --task mc --data kept.json.partial -o kept.json
cmp -s choices.jsonl kept.json.partial || complain "eval: an input that is called OUT.partial has changed"
cp "short text" x.h5.partial
try 2 "input and output are the same file" logits "plain model" --text x.h5.partial -o x.h5
try 2 "input and output are the same file" stats "plain model" --text x.h5.partial -o ./x.h5
try 2 "input and output are the same file" quantize "plain model" -o x.h5 --bits 4 --calib x.h5.partial --force
mv x.h5.partial x.h5.journal
try 2 "input and output are the same file" quantize "plain model" -o x.h5 --bits 4 --calib x.h5.journal --force
try 2 "input and output are the same file" plan weights "plain model" --calib short.trial.h5 --budget bpw=4 -o short --force
rm x.h5.journal kept.json.partial
# what is called OUT.partial and leads to another file is not written through
printf "someone's" >theirs
for out in x.h5 x.csv x.json; do ln -s theirs $out.partial; done
try 6 "x.h5.partial: is a link. Choose another name" logits "plain model" --ids "1 2 3" -o x.h5 --force
try 6 "x.h5.partial: is a link. Choose another name" quantize "plain model" -o x.h5 --bits 4 --force
try 6 "x.csv.partial: is a link. Choose another name" eval "plain model" --task mc --data choices.jsonl --csv x.csv --force
try 6 "x.json.partial: is a link. Choose another name" eval "plain model" --task mc --data choices.jsonl -o x.json
grep -q "^someone's$" theirs || complain "a file that OUT.partial leads to has changed"
rm theirs x.h5.partial x.csv.partial x.json.partial
"$dq" "$@" >/dev/full 2>/dev/null # keeps its finished work
work=$(ls dq-eval-*.resume)
try 2 "finished work for --resume" "$@" --dump-requests "./$work" --force
[ -s "$work" ] || complain "eval: --dump-requests has removed finished work"
rm -f "$work"
# weights in a folder below are files of the model
if command -v python3 >/dev/null; then
    cp -r "plain model" sharded
    mkdir sharded/w
    mv sharded/model.safetensors sharded/w/part.bin
    python3 - <<'PY'
import json
with open('sharded/w/part.bin', 'rb') as f:
    names = json.loads(f.read(int.from_bytes(f.read(8), 'little')))
names.pop('__metadata__', 0)
with open('sharded/model.safetensors.index.json', 'w') as f:
    json.dump({'weight_map': {n: 'w/part.bin' for n in names}}, f)
PY
    ln -s sharded/w/part.bin weights
    for c in "stats sharded --ids 1 -o weights" "logits sharded --ids 1 -o sharded/w/../w/part.bin" \
        "quantize sharded -o weights"; do
        # shellcheck disable=SC2086
        try 2 "overwrite a file of the input sharded" $c --force
    done
    rm -r sharded weights
fi
try 0 "" quantize "plain model" -o there/packed.h5 --bits 4 -q
# a folder of export is no folder that holds the container
try 2 "holds the input" export there/packed.h5 -o there --format safetensors --force
try 2 "holds the input" export here/packed.h5 -o ./there/ --format safetensors --force
[ -s there/packed.h5 ] || complain "export: the container is gone"
rm -r there here dangling.json

# a failure removes what this run wrote, and nothing older
echo older >older.json
(
    ulimit -f 1
    exec "$dq" "$@" --dump-items gone.jsonl -o older.json --force
) >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 6 ] || complain "dq eval on a full disk: expected status 6, found $got: $(cat "$top/err")"
[ "$(cat older.json)" = older ] || complain "dq eval on a full disk: an earlier document is gone"
absent gone.jsonl gone.jsonl.partial
rm older.json
# what was scored is kept: the same command goes on to an output that can be written
(
    ulimit -f 16
    exec "$dq" "$@" --logit-bits 16,8,6,4 --logit-granularity per-tensor,per-row --dump-items gone.jsonl
) >"$top/out" 2>"$top/err"
grep -q "dq-eval-.*resume is kept; --resume goes on from it" "$top/err" || complain "dq eval on a full disk: $(cat "$top/err")"
"$dq" "$@" --logit-bits 16,8,6,4 --logit-granularity per-tensor,per-row --resume --dump-items kept.jsonl >"$top/out" 2>"$top/err" ||
    complain "dq eval: kept scores cannot be resumed: $(cat "$top/err")"
[ -s kept.jsonl ] || complain "dq eval: nothing was written from kept scores"
absent gone.jsonl gone.jsonl.partial dq-eval-*.resume
rm kept.jsonl

# a limit on the size of files acts like a disk that is full
for n in 1 8 64; do
    for c in stats logits quantize; do
        case $c in
        quantize) set -- quantize "plain model" -o gone.h5 --bits 4 ;;
        stats) set -- stats "plain model" --ids "1 2 3" -o gone.h5 ;;
        logits) set -- logits "plain model" --text "short text" -o gone.h5 ;;
        esac
        (
            ulimit -f $n
            exec "$dq" "$@"
        ) >"$top/out" 2>"$top/err"
        got=$?
        [ $got -eq 6 ] || complain "dq $* on a full disk: expected status 6, found $got: $(cat "$top/err")"
        [ ! -s "$top/out" ] || complain "dq $* on a full disk: printed on stdout"
        [ "$(wc -l <"$top/err")" -eq 1 ] || complain "dq $* on a full disk: $(cat "$top/err")"
        absent gone.h5
        [ $c = quantize ] || absent gone.h5.partial # quantize may keep what --resume needs
        rm -f gone.h5*
    done
done

# descriptors that are closed do not become the output; a result that cannot be printed is an error
"$dq" quantize "plain model" -o closed.h5 --bits 4 --progress always <&- 2>&- >"$top/out" ||
    complain "dq quantize without descriptors 0 and 2: status $?"
try 0 "every dataset and attribute as written" verify closed.h5
for c in "info" "info|--json" "stats|--ids|1" "tokenize|--text|short text"; do
    old=$IFS
    IFS='|'
    # shellcheck disable=SC2086
    set -- $c
    IFS=$old
    name=$1
    shift
    "$dq" "$name" "plain model" "$@" >&- 2>"$top/err"
    got=$?
    [ $got -eq 6 ] && grep -q "standard output: cannot write" "$top/err" ||
        complain "dq $name $* >&-: expected status 6, found $got: $(cat "$top/err")"
done
"$dq" tokenize "plain model" --text - <&- >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 6 ] && [ ! -s "$top/out" ] || complain "dq tokenize --text - <&-: expected status 6, found $got"
"$dq" info "no such model" <&- >&- 2>&-
got=$?
[ $got -eq 6 ] || complain "dq info without descriptors: expected status 6, found $got"
rm closed.h5

# a weight file that changes under a run: cut short, written anew, replaced by another one, removed
if [ -r /proc/self/maps ]; then
    "$dq" quantize "diff model" -o whole.h5 --bits 4 -q >/dev/null
    for what in cut-folder cut-container written replaced removed; do
        cp -r "diff model" changing
        cp whole.h5 changing.h5
        m=changing f=changing/model.safetensors want=6 says=
        [ $what = cut-container ] && m=changing.h5 f=changing.h5
        rm -f fed && mkfifo fed
        "$dq" logits $m --text - -o gone.h5 --force <fed >"$top/out" 2>"$top/err" &
        child=$!
        exec 9>fed
        n=0
        # mapped, and after whatever else opening does: it sleeps, waiting for its text
        until { grep -q "$f" /proc/$child/maps && grep -q '^State:.S' /proc/$child/status; } || [ $n -eq 100 ]; do
            n=$((n + 1))
            sleep 0.1
        done
        case $what in
        cut*) : >$f && says="$f: was cut short while it was read" ;;
        written) cp "diff model/model.safetensors" $f && says="$f: was written to while it was read" ;;
        replaced) cp "diff model/config.json" other && mv other $f && want=0 ;;
        removed) rm $f && want=0 ;;
        esac
        cat "short text" >&9
        exec 9>&-
        wait $child
        got=$?
        [ $got -eq $want ] || complain "$f, $what: expected status $want, found $got: $(cat "$top/err")"
        if [ $want -eq 6 ]; then
            grep -q "^dq logits: error: $says" "$top/err" || complain "$f, $what: $(cat "$top/err")"
            [ ! -s "$top/out" ] || complain "$f, $what: printed on stdout"
            absent gone.h5
        fi
        rm -rf changing changing.h5 fed gone.h5*
    done
    rm whole.h5
fi

# Ctrl-C and SIGTERM: 130 and 143, nothing left of stats and logits
for signal in INT TERM; do
    "$dq" stats "diff model" --text "$repo/calib/pair/text.txt" -o gone.h5 >"$top/out" 2>"$top/err" &
    child=$!
    sleep 0.4
    kill -$signal $child
    wait $child
    got=$?
    want=130
    [ $signal = TERM ] && want=143
    [ $got -eq $want ] || complain "dq stats, SIG$signal: expected status $want, found $got: $(cat "$top/err")"
    [ ! -s "$top/out" ] || complain "dq stats, SIG$signal: printed on stdout"
    absent gone.h5 gone.h5.partial
done

# containers
try 2 "." quantize "diff model"
try 2 "bits" quantize "diff model" -o gone.h5 --bits 1
echo something >again.h5
try 6 "exists" quantize "diff model" -o again.h5 --bits 4
absent gone.h5 gone.h5.partial
"$dq" quantize "diff model" -o "packed model.h5" --bits 4 --logit-bits 6 --logit-granularity per-head \
    >/dev/null 2>"$top/err" || complain "quantize fails: $(cat "$top/err")"
try 0 "." verify "packed model.h5"
try 0 "diffllama" info "packed model.h5"
try 0 "hidden states" stats "packed model.h5" --ids "1 2 3"
try 0 '"logit_bits": 6' logits "packed model.h5" --ids "1 2 3" -o packed.h5 --json
try 0 '"logit_bits": 16' logits "packed model.h5" --ids "1 2 3" -o packed.h5 --json --logit-bits 16 --force
try 2 "same file" logits "packed model.h5" --ids 1 -o "packed model.h5" --force
try 2 "same file" stats "packed model.h5" --ids 1 -o "packed model.h5" --force
present "packed model.h5"
# one flipped bit of the embedding, which lies on pages of its own
at=$(python3 - "packed model.h5" "diff model/model.safetensors" 2>/dev/null <<'EOP'
import json, struct, sys
box, source = (open(f, "rb").read() for f in sys.argv[1:])
n = struct.unpack("<Q", source[:8])[0]
begin = json.loads(source[8 : 8 + n])["model.embed_tokens.weight"]["data_offsets"][0] + 8 + n
print(box.index(source[begin : begin + 64]) + 5)
EOP
)
if [ -n "$at" ]; then
    cp "packed model.h5" flipped.h5
    printf '\125' | dd of=flipped.h5 bs=1 seek="$at" conv=notrunc 2>/dev/null
    damage="flipped.h5: /tensors/model.embed_tokens.weight: damaged.*dq verify lists"
    try 3 "$damage" eval flipped.h5 --text "short text"
    try 3 "$damage" stats flipped.h5 --ids "1 2 3"
    try 3 "$damage" logits flipped.h5 --ids "1 2 3" -o gone.h5
    try 3 "$damage" bench prefill flipped.h5 --tokens 8
    absent gone.h5 gone.h5.partial
    try 0 "diffllama" info flipped.h5 # shows sizes only
    rm flipped.h5
fi
head -c 20000 "packed model.h5" >cut.h5
try 3 "cut.h5" verify cut.h5
try 3 "cut.h5" stats cut.h5 --ids 1
try 4 "packed.h5: an HDF5 file, but not a dq container" info packed.h5 # HDF5, but no model

# eval
try 0 "plain model" eval "plain model" --task mc --data choices.jsonl --limit 3
try 0 '"acc"' eval "plain model" --task mc --data choices.jsonl --limit 3 --json
json dq-eval/1
try 2 "." eval "plain model"
try 6 "no-such-file" eval "plain model" --task mc --data no-such-file
try 3 "empty" eval "plain model" --task mc --data empty
try 2 "logit-bits" eval "plain model" --task mc --data choices.jsonl --logit-bits 16,9
