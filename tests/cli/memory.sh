# memory.sh: allocations that fail inside the HDF5 library; sourced by run.sh, with DQ_FAULTS naming the built
# faults.c. Version 1.10 of the library may call exit(-1) or crash then: what counts is that no run gives another
# result, and that nothing finished is lost.
step=${DQ_FAIL_STEP:-331} # every so many allocations; 1 takes an hour

with_failure() { # with_failure N COMMAND...
    n=$1
    shift
    DQ_FAULT_LIBRARY=libhdf5 DQ_FAULT_AT=$n LD_PRELOAD=$DQ_FAULTS "$dq" "$@" >"$top/out" 2>"$top/err"
}

[ -r "${DQ_FAULTS:-}" ] || complain "DQ_FAULTS does not name the library that faults.c becomes"
"$dq" quantize "plain model" -o good.h5 --bits 4 -q >/dev/null
"$dq" info good.h5 >good.txt
"$dq" logits good.h5 --ids "1 2" -o logits.h5 -q >/dev/null
for c in info logits quantize; do
    case $c in
    info) set -- info good.h5 ;;
    logits) set -- logits good.h5 --ids "1 2" -o out.h5 -q ;;
    quantize) set -- quantize "plain model" -o out.h5 --bits 4 -q ;;
    esac
    DQ_FAULT_COUNT=$top/count with_failure 0 "$@"
    rm -f out.h5
    all=$(cat "$top/count")
    [ "$all" -gt 100 ] || complain "dq $c: $all allocations in libhdf5"
    i=2
    while [ "$i" -le "$all" ]; do
        with_failure $i "$@"
        got=$?
        case $got in
        0 | 3 | 5 | 6 | 139) ;;
        *) complain "dq $c, allocation $i: status $got: $(cat "$top/err")" ;;
        esac
        [ $got -eq 0 ] || [ $got -eq 139 ] || [ "$(grep -c "^dq $c: error: " "$top/err")" = 1 ] ||
            complain "dq $c, allocation $i: status $got: $(cat "$top/err")"
        [ $got -eq 0 ] || [ ! -s "$top/out" ] || complain "dq $c, allocation $i: failed, but printed on stdout"
        case $c in
        info) [ $got -ne 0 ] || cmp -s "$top/out" good.txt || complain "dq info, allocation $i: another text" ;;
        logits) [ ! -e out.h5 ] || cmp -s out.h5 logits.h5 || complain "dq logits, allocation $i: other bytes" ;;
        quantize)
            [ -e out.h5 ] || "$dq" "$@" --resume >/dev/null 2>"$top/err" ||
                complain "dq quantize, allocation $i: $(cat "$top/err")"
            cmp -s out.h5 good.h5 || complain "dq quantize, allocation $i: other bytes"
            ;;
        esac
        rm -f out.h5*
        i=$((i + step))
    done
done
