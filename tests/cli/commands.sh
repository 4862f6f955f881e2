# commands.sh: every command that takes a MODEL, on every form of one; sourced by run.sh. Each works, or is refused by name.

head -c 30000 "$repo/calib/pair/text.txt" >book.txt
cp -r "$repo/tests/golden/prequant/ct-asym-index" imported
cp "$repo"/calib/pair/llama/tokenizer*.json imported/
cp "$repo/tests/golden/gguf/model/model.gguf" whole.gguf
cp "$repo"/tests/golden/gguf/model/parts-0000?-of-00002.gguf .
try 0 "bits per weight" quantize "plain model" -o container.h5 --bits 8 --scale absmax --skip down_proj

# over "STATUS ..." REFUSAL COMMAND...: MODEL is a folder, a GGUF file, a split one, an imported folder and a container in turn, with
# a status for each; where it is not 0 the message has the refusal. OUT is a new name.
over() {
    statuses=$1 refusal=$2
    shift 2
    for model in "plain model" whole.gguf parts-00001-of-00002.gguf imported container.h5; do
        expected=${statuses%% *} statuses=${statuses#* } pattern=.
        [ "$expected" = 0 ] || pattern=$refusal
        (
            for word; do
                shift
                case $word in
                MODEL) word=$model ;;
                OUT*) word=out/o${word#OUT} ;;
                esac
                set -- "$@" "$word"
            done
            rm -rf out && mkdir out
            try "$expected" "$pattern" "$@"
            exit "$bad"
        ) || bad=1
    done
}

refused="only containers are exported\|only containers are verified\|is a container\|: a file; quantizing\|quantized already\|ignore_merges"
over "0 0 0 0 0" - info MODEL
over "0 0 0 0 0" - tokenize MODEL --text book.txt
over "0 0 0 0 0" - logits MODEL --ids "1 2 3" -o OUT.h5
over "0 0 0 0 0" - generate MODEL "the cold hare" --raw --max-new 3
over "0 0 0 0 0" - stats MODEL --ids "1 2 3"
over "0 0 0 0 0" - stats MODEL --text book.txt --ctx 32 --limit 2 --one-pass
over "0 0 0 0 0" - eval MODEL --text book.txt --ctx 64 --limit 3 --logit-bits 16,4 --kv-bits 8
over "0 0 0 0 0" - eval MODEL --task mc --data choices.jsonl
over "0 0 0 0 0" - bench generate MODEL --new-tokens 2 --runs 1
over "4 4 4 4 0" "$refused" verify MODEL
over "0 0 0 4 4" "$refused" quantize MODEL -o OUT.h5 --bits 4 --scale search
over "0 0 0 4 4" "$refused" quantize MODEL -o OUT.h5 --bits 4 --calib book.txt --calib-tokens 500 --calib-ctx 64
over "0 0 0 4 4" "$refused" plan weights MODEL --calib book.txt --budget bpw=5 --calib-ctx 64 --calib-tokens 500 --search-tokens 400 --widths 4,8 -o OUT.json
over "0 0 0 4 4" "$refused" plan weights MODEL --calib book.txt --budget bpw=5 --calib-ctx 64 --calib-tokens 500 --search-tokens 400 --widths 4,8 --dry-run
over "0 0 0 0 0" - plan kv MODEL --text book.txt --kv-bits 4 --ctx 96 --kv-recent 8 --limit 10 --widths 3,6 --trials 3 -o OUT.json
over "0 0 0 0 0" - plan heads MODEL --text book.txt --kv-keep 0.5 --ctx 96 --limit 10 --trials 3 -o OUT.json
over "0 0 0 0 0" - plan gates MODEL --text book.txt --ctx 64 --limit 8 -o OUT.json
over "4 4 4 4 0" "$refused" export MODEL --format safetensors -o OUT
over "4 4 4 4 0" "$refused" export MODEL --format compressed-tensors -o OUT
over "4 4 4 4 4" "$refused" export MODEL --format gguf -o OUT.gguf
