/* html_sections: see html_sections.h. One row a section, in the order of the page: whose documents, the anchor, the
 * heading, what must be there (NULL: always), and what draws it.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#define STATS    DQ_HTML_STATS
#define QUANTIZE DQ_HTML_QUANTIZE
#define PLAN     DQ_HTML_PLAN
#define PLAN_KV  DQ_HTML_PLAN_KV
#define HEADS    DQ_HTML_PLAN_HEADS
#define BENCH    DQ_HTML_BENCH
#define EVAL     DQ_HTML_EVAL

const dq_html_section dq_html_sections[] = {
    {STATS, "magnitudes", "Largest magnitudes", dq_html_has_items, dq_html_magnitudes},
    {STATS, "sensitivity", "Sensitivity", dq_html_has_sensitivity, dq_html_sensitivity},
    {STATS, "heads", "Heads", dq_html_has_heads, dq_html_heads},
    {STATS, "profiles", "Profiles over layers", dq_html_has_profiles, dq_html_profiles},
    {STATS, "channels", "Each outlier once", dq_html_has_channels, dq_html_channels},
    {STATS, "matrices", "Weights", dq_html_has_matrices, dq_html_matrices},
    {STATS, "layers", "Magnitudes by layer", dq_html_has_layers, dq_html_layers},
    {STATS, "maps", "Attention maps", dq_html_has_maps, dq_html_maps},
    {STATS, "places", "Where the largest are", dq_html_has_places, dq_html_places},
    {STATS, "run", "What ran", NULL, dq_html_run},
    {QUANTIZE, "containers", "Containers", dq_html_has_items, dq_html_containers},
    {QUANTIZE, "sqnr", "SQNR by role and layer", dq_html_has_sqnr, dq_html_sqnr},
    {QUANTIZE, "worst", "Worst tensors", dq_html_has_sqnr, dq_html_worst},
    {QUANTIZE, "tensors", "All tensors", dq_html_has_items, dq_html_tensors},
    {QUANTIZE, "run", "What ran", NULL, dq_html_run},
    {PLAN, "chosen", "Chosen", dq_html_has_items, dq_html_plan_chosen},
    {PLAN, "curve", "Bits against KL divergence", dq_html_has_items, dq_html_plan_curve},
    {PLAN, "tensors", "All tensors", dq_html_has_items, dq_html_plan_tensors},
    {PLAN, "run", "What ran", NULL, dq_html_run},
    {PLAN_KV, "chosen", "Chosen", dq_html_has_items, dq_html_plan_kv_chosen},
    {PLAN_KV, "uniform", "Beside uniform widths", dq_html_has_items, dq_html_plan_kv_uniform},
    {PLAN_KV, "units", "Units alone", dq_html_has_items, dq_html_plan_kv_units},
    {PLAN_KV, "search", "The search", dq_html_has_items, dq_html_plan_kv_search},
    {PLAN_KV, "run", "What ran", NULL, dq_html_run},
    {HEADS, "chosen", "Chosen", dq_html_has_items, dq_html_plan_heads_chosen},
    {HEADS, "uniform", "Beside the uniform share", dq_html_has_items, dq_html_plan_heads_uniform},
    {HEADS, "groups", "Groups alone", dq_html_has_items, dq_html_plan_heads_groups},
    {HEADS, "sharing", "How many share", dq_html_has_items, dq_html_plan_heads_sharing},
    {HEADS, "run", "What ran", NULL, dq_html_run},
    {BENCH, "growth", "Time per token", dq_html_has_curves, dq_html_bench_growth},
    {BENCH, "speed", "Speed", dq_html_has_items, dq_html_bench_tables},
    {BENCH, "run", "What ran", NULL, dq_html_run},
    {EVAL, "verdicts", "Verdicts", dq_html_has_verdicts, dq_html_verdicts},
    {EVAL, "accuracy", "Accuracy", dq_html_has_accuracy, dq_html_accuracy},
    {EVAL, "weights", "Accuracy over bits per weight", dq_html_has_weight_scores,
     dq_html_weight_scores},
    {EVAL, "averages", "Means over tasks", dq_html_has_averages, dq_html_averages},
    {EVAL, "kld", "KL divergence from the reference", dq_html_has_kld, dq_html_kld},
    {EVAL, "front", "What the bytes of the KV cache buy", dq_html_has_pareto, dq_html_pareto},
    {EVAL, "kv", "KV cache", dq_html_has_kv, dq_html_kv},
    {EVAL, "positions", "Loss by position", dq_html_has_positions, dq_html_positions},
    {EVAL, "needle", "Multi-needle retrieval", dq_html_has_needle, dq_html_needle},
    {EVAL, "attention", "Attention to the answer, attention noise", dq_html_has_attention,
     dq_html_attention},
    {EVAL, "icl", "In-context learning", dq_html_has_icl, dq_html_icl},
    {EVAL, "slices", "Associative recall slices", dq_html_has_slices, dq_html_slices},
    {EVAL, "generation", "Generation", dq_html_has_generation, dq_html_generation},
    {EVAL, "results", "Results", dq_html_has_rows, dq_html_results},
    {EVAL, "paired", "Paired differences", dq_html_has_paired, dq_html_paired},
    {EVAL, "run", "What ran", NULL, dq_html_run},
    {0},
};
