# pair.gp: the pictures of results/pair, from the CSV files of ./setup demo.
#   gnuplot -e "folder='results/pair'; picture='accuracy'" studies/pair.gp
set datafile separator ","
set datafile missing NaN
set terminal svg size 960,460 dynamic font "sans-serif,13" background rgb "white"
set output folder."/".picture.".svg"
set style line 1 lc rgb "#b35806" lw 2 pt 7 ps 0.7
set style line 2 lc rgb "#1f5fa8" lw 2 pt 5 ps 0.7
set style line 3 lc rgb "#6a6a6a" lw 2 pt 9 ps 0.8
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
models = "llama diffllama planted"
titles = "Llama DiffLlama 'planted (synthetic)'"
at(b) = b == 16 ? 0 : b == 8 ? 1 : b == 6 ? 2 : b == 4 ? 3 : b == 3 ? 4 : 5
bits_tics = "('16' 0, '8' 1, '6' 2, '4' 3, '3' 4, '2' 5)"

if (picture eq "accuracy" || picture eq "kld") {
    set multiplot layout 1,2
    set xtics ("16" 0, "8" 1, "6" 2, "4" 3, "3" 4, "2" 5)
    set xrange [-0.3:5.3]
    set xlabel "bits of the attention logits"
    do for [granularity in "per-tensor per-row"] {
        set title (granularity eq "per-tensor" ? "one absmax per layer (tensor)" : "one absmax per row (row)")
        mine(m) = strcol("model") eq m && strcol("task") eq (picture eq "accuracy" ? "mc" : "text") && (strcol("logit_granularity") eq granularity || column("logit_bits") == 16)
        if (picture eq "accuracy") {
            file = folder."/logits.csv"
            set ylabel "accuracy (chance 0.25), +- standard error"
            set yrange [0:1.02]
            set key outside bottom center horizontal samplen 2
            plot for [i=1:3] file using (mine(word(models, i)) ? at(column("logit_bits")) : NaN):"acc":"acc_stderr" \
                     with errorbars ls i notitle, \
                 for [i=1:3] file using (mine(word(models, i)) ? at(column("logit_bits")) : NaN):"acc" \
                     with linespoints ls i title word(titles, i)
        } else {
            file = folder."/logits.csv"
            set ylabel "KL divergence from 16 bits, nats per token"
            set logscale y
            set format y "10^{%T}"
            set yrange [1e-6:10]
            set key outside bottom center horizontal samplen 2
            plot for [i=1:3] file using (mine(word(models, i)) && column("logit_bits") < 16 && column("kld_nats") > 0 ? at(column("logit_bits")) : NaN):"kld_nats" \
                     with linespoints ls i title word(titles, i)
        }
    }
    unset multiplot
}

if (picture eq "outliers") {
    file = folder."/stats.csv"
    set multiplot layout 1,2
    set logscale y
    set ylabel "magnitude"
    set style fill solid 0.85 noborder
    set boxwidth 0.26
    set xrange [-0.6:3.6]
    set yrange [0.05:*]
    set xtics ("1" 0, "10" 1, "100" 2, "median" 3)
    set xlabel "k-th largest"
    set key outside bottom center horizontal samplen 2
    pooled(m, what) = strcol("model") eq "calib/pair/".m && strcol("values") eq what && strcol("layer") eq "all"
    do for [what in "attention_logits hidden_states"] {
        set title (what eq "attention_logits" ? "attention logits" : "hidden states")
        plot for [i=1:3] file using (pooled(word(models, i), what) ? -0.28 + (i - 1) * 0.28 : NaN):"top1" \
                 with boxes ls i title word(titles, i), \
             for [i=1:3] file using (pooled(word(models, i), what) ? 0.72 + (i - 1) * 0.28 : NaN):"top10" \
                 with boxes ls i notitle, \
             for [i=1:3] file using (pooled(word(models, i), what) ? 1.72 + (i - 1) * 0.28 : NaN):"top100" \
                 with boxes ls i notitle, \
             for [i=1:3] file using (pooled(word(models, i), what) ? 2.72 + (i - 1) * 0.28 : NaN):"median" \
                 with boxes ls i notitle
    }
    unset multiplot
}

if (picture eq "verdicts") {
    file = folder."/logits.csv"
    set title "loss of rounded attention logits, paired 95 % interval"
    set ylabel "loss, nats of NLL per token"
    set yrange [-0.004:0.06]
    set xrange [-0.5:4.5]
    set xtics ("8 bits, per-row" 0, "6 bits, per-row" 1, "4 bits, per-row" 2, "8 bits, per-tensor" 3, "6 bits, per-tensor" 4)
    set key top left samplen 2
    margin = 0.01
    set arrow from graph 0, first margin to graph 1, first margin nohead lc rgb "#6a6a6a" dt 2
    set label sprintf("margin %g", margin) at graph 0.01, first margin offset 0, 0.7 tc rgb "#6a6a6a"
    place(g, b) = g eq "per-row" ? (b == 8 ? 0 : b == 6 ? 1 : b == 4 ? 2 : NaN) : (b == 8 ? 3 : b == 6 ? 4 : NaN)
    text(m) = strcol("model") eq m && strcol("task") eq "text"
    plot for [i=1:2] file using (text(word(models, i)) ? place(strcol("logit_granularity"), column("logit_bits")) + (i - 1.5) * 0.2 : NaN):"loss":"loss_low":"loss_high" \
             with yerrorbars ls i title word(titles, i)
}
