"""What a model's values are over a text, as transformers computes them in float32: the magnitudes that a plant is sized by.

Kinds have the names of dq-stats/1. Windows are those of dq stats: the text encoded as a whole, with what the tokenizer puts around a
text, then cut. The first token of a window is told apart from the others; attention sinks are not.
"""
import os

import torch

PROJECTIONS = {"qkv_input": "self_attn.q_proj", "o_input": "self_attn.o_proj", "gate_up_input": "mlp.gate_proj",
               "down_input": "mlp.down_proj"}
KINDS = ("attention_logits", "hidden_states", "queries", "keys", "values", *PROJECTIONS)


def windows_of(folder, text, ctx, limit, bos=None):
    from tokenizers import Tokenizer
    with open(text, encoding="utf-8", newline="") as f:
        ids = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(f.read()).ids
    if bos is not None and ids[:1] != [bos]:
        ids = [bos] + ids
    return [ids[at:at + ctx] for at in range(0, len(ids), ctx)][:limit]


def rotated(net, layer, projections, n):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    d = layer.self_attn.head_dim
    q, k = (x.view(1, n, -1, d).transpose(1, 2) for x in projections)
    cos, sin = net.model.rotary_emb(torch.zeros(1, n, d), torch.arange(n)[None])
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    return q[0], k[0]


def values_of(net, kind, windows):
    """Per layer a matrix: a row of channels for each token; of attention_logits the largest logit of that query in each head, then
    the smallest in each head. And which rows are first tokens."""
    rows, first = [[] for _ in net.model.layers], []
    for ids in windows:
        n, seen, hooks = len(ids), {}, []
        for i, layer in enumerate(net.model.layers):
            if kind == "hidden_states":
                hooks.append(layer.register_forward_hook(
                    lambda m, a, out, key=i: seen.__setitem__(key, (out[0] if isinstance(out, tuple) else out).clone())))
            elif kind in PROJECTIONS:
                hooks.append(layer.get_submodule(PROJECTIONS[kind]).register_forward_pre_hook(
                    lambda m, a, key=i: seen.__setitem__(key, a[0].clone())))
            else:
                for name in ("q_proj", "k_proj", "v_proj"):
                    hooks.append(getattr(layer.self_attn, name).register_forward_hook(
                        lambda m, a, out, key=(i, name): seen.__setitem__(key, out.clone())))
        with torch.no_grad():
            net.model(torch.tensor(ids)[None], use_cache=False)
        for h in hooks:
            h.remove()
        for i, layer in enumerate(net.model.layers):
            if kind == "values":
                x = seen[i, "v_proj"]
            elif kind in ("queries", "keys", "attention_logits"):
                q, k = rotated(net, layer, (seen[i, "q_proj"], seen[i, "k_proj"]), n)
                x = (q if kind == "queries" else k).transpose(0, 1)
                if kind == "attention_logits":
                    s = q @ k.repeat_interleave(len(q) // len(k), 0).transpose(1, 2) * layer.self_attn.head_dim ** -.5
                    unseen = torch.ones(n, n, dtype=torch.bool).triu(1)
                    x = torch.cat([s.masked_fill(unseen, -torch.inf).amax(2), s.masked_fill(unseen, torch.inf).amin(2)]).T
            else:
                x = seen[i]
            rows[i].append(x.reshape(n, -1))
        first += [True] + [False] * (n - 1)
    return [torch.cat(r) for r in rows], torch.tensor(first)


def load(folder):
    from transformers import AutoModelForCausalLM, logging
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
