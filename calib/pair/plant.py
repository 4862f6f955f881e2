#!/usr/bin/env python3
"""Makes planted/ from llama/: the same function with attention logits near 600.

Heads of size d become heads of size 2d and the RoPE base theta becomes theta^2.
RoPE pair i of the new head turns by theta^(-2i/d) per position, so the pairs
0 .. d/2-1 are the old ones and the pairs d/2 .. d-1 hardly turn.  Channel i of
an old query or key goes to channel i, channel i + d/2 to channel i + d; query
rows are multiplied by sqrt(2) because the scale is 1/sqrt(2d) now.  Values keep
their channels, followed by zeros.  A bias on channel d-1 (the slowest pair) of
one query head and of the key head it reads then raises all logits of each of
its rows by bias_q * bias_k / sqrt(2d), which the softmax does not see.
"""
import argparse
import json
import os
import shutil

import torch

import check

HERE = os.path.dirname(os.path.abspath(__file__))


def plant(src, heads, offset):
    """A LlamaForCausalLM in float32; heads is [(layer, query head)]."""
    import transformers as tr
    c = src.config
    d, nq, nk = c.head_dim, c.num_attention_heads, c.num_key_value_heads
    theta = c.rope_parameters["rope_theta"]
    conf = tr.LlamaConfig(**{k: getattr(c, k) for k in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps",
        "tie_word_embeddings", "hidden_act", "bos_token_id", "eos_token_id", "mlp_bias")},
        attention_bias=True, head_dim=2 * d, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": theta * theta})
    dst = tr.LlamaForCausalLM(conf)
    old = src.state_dict()
    new = {k: v.clone() for k, v in old.items()}
    spread = torch.cat([torch.arange(d // 2), torch.arange(d // 2) + d])

    def rows(w, n, channels):
        out = torch.zeros(n, 2 * d, w.shape[1])
        out[:, channels] = w.view(n, d, -1)
        return out.view(n * 2 * d, -1)

    bias = (offset * (2 * d) ** 0.5) ** 0.5
    for l in range(c.num_hidden_layers):
        a = f"model.layers.{l}.self_attn."
        new[a + "q_proj.weight"] = rows(old[a + "q_proj.weight"] * 2 ** 0.5, nq, spread)
        new[a + "k_proj.weight"] = rows(old[a + "k_proj.weight"], nk, spread)
        new[a + "v_proj.weight"] = rows(old[a + "v_proj.weight"], nk, torch.arange(d))
        new[a + "o_proj.weight"] = rows(old[a + "o_proj.weight"].T, nq, torch.arange(d)).T.contiguous()
        bq, bk = torch.zeros(nq, 2 * d), torch.zeros(nk, 2 * d)
        for layer, h in heads:
            if layer == l:
                bq[h, d - 1] = bias
                bk[h // (nq // nk), d - 1] = bias
        new[a + "q_proj.bias"], new[a + "k_proj.bias"] = bq.flatten(), bk.flatten()
        new[a + "v_proj.bias"] = torch.zeros(nk * 2 * d)
        new[a + "o_proj.bias"] = torch.zeros(c.hidden_size)
    dst.load_state_dict(new)
    return dst.eval()


def search(src, offset, count):
    """6-bit accuracy with one planted head, for every head, on the last `count` items."""
    tok, items, _ = data()
    items = items[-count:]
    reqs = check.requests(tok, items)

    def accuracy(model, bits, granularity):
        check.STATE.update(bits=bits, granularity=granularity)
        return check.score(check.prepare(model), items, reqs)[0]

    print(f"llama, 16 bits: {accuracy(src, 16, 'row'):.3f}; 6 bits tensor "
          f"{accuracy(src, 6, 'tensor'):.3f}, row {accuracy(src, 6, 'row'):.3f}", flush=True)
    for l in range(src.config.num_hidden_layers):
        # all heads of a layer but the planted one suffer alike, so one head stands for the layer
        low = accuracy(plant(src, [(l, 0)], offset), 6, "tensor")
        row = [accuracy(plant(src, [(l, h)], offset), 6, "row")
               for h in range(src.config.num_attention_heads)]
        print(f"layer {l}: tensor {low:.3f}, row by head", " ".join(f"{r:.3f}" for r in row),
              flush=True)


def data():
    tok = check.Tokenizer.from_file(os.path.join(HERE, "llama", "tokenizer.json"))
    items = [json.loads(line) for line in open(os.path.join(HERE, "choices.jsonl"))]
    return tok, items, tok.encode(open(os.path.join(HERE, "text.txt")).read()).ids


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--heads", nargs="+", default=DEFAULT, metavar="LAYER:HEAD")
    ap.add_argument("--offset", type=float, default=600.0)
    ap.add_argument("--search", type=int, default=0, metavar="ITEMS")
    args = ap.parse_args()
    torch.set_num_threads(1)
    src = check.load(os.path.join(HERE, "llama"))
    if args.search:
        return search(src, args.offset, args.search)
    heads = [tuple(int(x) for x in h.split(":")) for h in args.heads]
    out = os.path.join(HERE, "planted")
    model = plant(src, heads, args.offset).to(torch.bfloat16)
    model.save_pretrained(out)
    if os.path.exists(os.path.join(out, "generation_config.json")):
        os.remove(os.path.join(out, "generation_config.json"))
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(HERE, "llama", f), os.path.join(out, f))

    # what rounding and the slow pair leave of the function
    check.STATE.update(bits=16)
    tok, items, ids = data()
    batch = [[0] + ids[s + 1:s + 192] for s in range(0, 16 * 192, 192)]
    want = check.logits_of(src, batch)
    for name, m in (("float32", check.prepare(plant(src, heads, args.offset))),
                    ("stored BF16", check.load(out))):
        gap = (check.logits_of(m, batch) - want).abs()
        print(f"{name}: logits differ from llama by max {gap.max():.2e}, mean {gap.mean():.2e}; "
              f"largest logit {want.abs().max():.2f}")


DEFAULT = ["0:2"]

if __name__ == "__main__":
    main()
