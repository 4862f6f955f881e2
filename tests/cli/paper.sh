# paper.sh: the commands of docs/paper.md with a small file under each name in capitals; sourced by run.sh. Blocks marked sh are
# run by readme.sh as they stand.
mkdir paper && cd paper || exit 1
wide() { # NAME FOLDER: a tiny model with as many positions as the paper's longest texts need
    cp -r "$2" "$1"
    chmod -R u+w "$1"
    sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 65536/' "$2/config.json" >"$1/config.json"
}
wide MODEL "$repo/calib/longpair/diffllama-0"
wide PLAIN "$repo/calib/longpair/llama-0"
at=$repo/tests/golden
for file in ARC_C.jsonl=arc_challenge_test.jsonl ARC_E.jsonl=arc_easy_test.jsonl BOOLQ.jsonl=boolq_val.jsonl HELLASWAG.jsonl=hellaswag_val.jsonl \
    OPENBOOKQA.jsonl=openbookqa_test.jsonl PIQA.jsonl=piqa_valid.jsonl PIQA-labels.lst=piqa_valid-labels.lst WINOGRANDE.jsonl=winogrande_dev.jsonl; do
    ln -s "$at/lmeval/fixtures/${file#*=}" "${file%%=*}"
done
for file in MATH.jsonl=math.jsonl ASDIV.xml=asdiv.xml MAWPS.json=mawps.json CARP.jsonl=carp.jsonl TABMWP.json=tabmwp.json \
    COLLEGE-MATH.jsonl=college_math.jsonl XSUM.jsonl=xsum.jsonl CNN.jsonl=cnn_dailymail.jsonl MULTI-NEWS.jsonl=multi_news.jsonl \
    QASPER.jsonl=qasper.jsonl HOTPOTQA.jsonl=hotpotqa.json 2WIKIMQA.jsonl=2wikimqa.jsonl; do
    ln -s "$at/questions/sets/${file#*=}" "${file%%=*}"
done
for file in GSM8K.jsonl=gsm8k.jsonl GSM8K-TRAIN.jsonl=train.jsonl SVAMP.json=svamp.json; do
    ln -s "$at/questions/${file#*=}" "${file%%=*}"
done
for file in TREC_10.label=trec_test.label TRAIN_5500.label=trec_train.label TEST.csv=banking_test.csv TRAIN.csv=banking_train.csv CLINIC.json=clinc.json; do
    ln -s "$at/icl/${file#*=}" "${file%%=*}"
done
for file in BOOK.txt TEXT TRAIN.txt; do cp "$repo/calib/longpair/text.txt" $file; done
awk '{ gsub(/"/, "\\\""); text = text $0 " " }
     END { for (d = 1; d <= 2; d++) { printf "{\"text\": \"%d", d; for (i = 0; i < 12; i++) printf "%s", text; print "\"}" } }' TEXT >BOOKS.jsonl
cp BOOKS.jsonl DOCUMENTS.jsonl

# Commands of unmarked blocks, whole where they go on, and between backquotes.
awk '
    /^```/ { open = !open; shown = open && $0 == "```"; line = ""; next }
    open && !shown { next }
    open { line = line $0; if (sub(/\\$/, "", line)) next; print line; line = ""; next }
    { n = split($0, part, "`"); for (i = 2; i <= n; i += 2) if (part[i] ~ /^dq /) print part[i] }' "$repo/docs/paper.md" >lines
[ "$(wc -l <lines)" -ge 15 ] || complain "paper: few commands: $(cat lines)"
while read -r line; do
    case $line in
    *--dump-completions*) more="--limit 1 --max-new 2 --force" ;;
    "dq eval"*--limit*) more=--dry-run ;;
    "dq eval"*) more="--dry-run --limit 1" ;;
    "dq stats"*) more="--limit 1 --ctx 256" ;;
    "dq judged"*--requests*) more=--force ;;
    *) more= ;;
    esac
    case $line in
    *--verdicts*) sed 's/.*"custom_id": "\([^"]*\)".*/{"custom_id": "\1", "verdict": true}/' REQUESTS.jsonl >REPLIES.jsonl ;;
    esac
    # shellcheck disable=SC2086
    set -- $line $more
    shift
    "$dq" "$@" >out 2>err </dev/null
    got=$?
    case $line in
    *"--device cuda"*) [ $got -ne 2 ] && [ $got -ne 1 ] ;; # where there is no GPU, that is what it says
    *) [ $got -eq 0 ] ;;
    esac || complain "paper.md: $line: status $got: $(head -c 300 err)"
done <lines
grep -q '"task": "2wikimqa"' TEXTS.jsonl || complain "paper: no texts for a judge"
cd .. || exit 1
