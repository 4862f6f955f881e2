# growth.gp: outliers over training steps, and accuracy over bits of the last checkpoints, one line a seed.
#   gnuplot -e "folder='results/emergence'" studies/emergence/growth.gp
set datafile separator ","
set datafile missing NaN
set terminal svg size 1400,800 dynamic font "sans-serif,13" background rgb "white"
set style line 1 lc rgb "#b35806" lw 2 pt 7 ps 0.6
set style line 2 lc rgb "#1f5fa8" lw 2 pt 5 ps 0.6
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
kinds = "llama diffllama"
titles = "plain DIFF"
seeds = system("ls ".folder."/seed-*.csv")
bits = system("ls ".folder."/bits-*.csv")
at(step) = step < 50 ? 25 : step
whole(kind) = strcol("kind") eq kind && strcol("part") eq "all"

set output folder."/growth.svg"
set multiplot layout 2,3
set logscale x
set xrange [22:9500]
set xtics ("0" 25, "50" 50, "100" 100, "200" 200, "400" 400, "800" 800, "1600" 1600, "3200" 3200, "8000" 8000)
set xlabel "training step"
set key top left
names = "logits_top1 hidden_top1 hidden_inner_top1 logits_crest sink_mean nll_nats_per_byte"
labels = "'largest attention logit' 'largest hidden state' 'largest hidden state before the last layer' ".\
    "'largest attention logit / rms' 'attention to the first four tokens' 'held-out nats per byte'"
do for [n=1:6] {
    set title word(labels, n)
    if (n <= 4) { set logscale y } else { unset logscale y }
    if (n == 6) { set key top right }
    plot for [f=1:words(seeds)] for [k=1:2] word(seeds, f) \
        using (whole(word(kinds, k)) ? at(column("step")) : NaN):(column(word(names, n))) \
        with linespoints ls k title (f == 1 ? word(titles, k) : "")
}
unset multiplot

set terminal svg size 1120,400 dynamic font "sans-serif,13" background rgb "white"
set output folder."/bits.svg"
set multiplot layout 1,3
unset logscale
place(b) = b == 16 ? 0 : b == 8 ? 1 : 8 - b
set xrange [-0.3:5.3]
set xtics ("16" 0, "8" 1, "6" 2, "5" 3, "4" 4, "3" 5)
set xlabel "bits of the attention logits, one absmax per layer"
set key bottom left
wanted(kind) = strcol("kind") eq kind
accuracies = "acc_norm order_acc"
whats = "'which stretch goes on: accuracy' 'which order is right: accuracy'"
do for [n=1:2] {
    set title word(whats, n)
    plot for [f=1:words(bits)] for [k=1:2] word(bits, f) \
        using (wanted(word(kinds, k)) ? place(column("bits")) : NaN):(column(word(accuracies, n))):(column(word(accuracies, n)."_stderr")) \
        with yerrorlines ls k title (f == words(bits) ? word(titles, k) : "")
}
set key top left
set title "held-out NLL, nats per token"
plot for [f=1:words(bits)] for [k=1:2] word(bits, f) \
    using (wanted(word(kinds, k)) ? place(column("bits")) : NaN):(column("nll_nats_per_token")) \
    with linespoints ls k title (f == words(bits) ? word(titles, k) : "")
unset multiplot
