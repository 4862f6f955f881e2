#!/usr/bin/env python3
"""Trains one model of the pair:  train.py --kind llama|diffllama [--out DIR]

The training forward below computes what the transformers classes compute, with
less overhead; before a model is written its logits are compared with those of
LlamaForCausalLM / DiffLlamaForCausalLM.
"""
import argparse
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import make_data

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = dict(vocab_size=make_data.VOCAB, hidden_size=128, intermediate_size=344,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=32,
             max_position_embeddings=512, rms_norm_eps=1e-5)
THETA = 10000.0
BOS = 0


class RMS(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, SHAPE["rms_norm_eps"])


def rope_tables(n, d, theta):
    angle = torch.arange(n)[:, None] * theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    return angle.cos(), angle.sin()


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, layer, diff):
        super().__init__()
        h, nq, nk, d = (SHAPE[k] for k in ("hidden_size", "num_attention_heads",
                                           "num_key_value_heads", "head_dim"))
        self.nq, self.nk, self.d, self.diff = nq, nk, d, diff
        self.q_proj = nn.Linear(h, nq * d, bias=False)
        self.k_proj = nn.Linear(h, nk * d, bias=False)
        self.v_proj = nn.Linear(h, nk * d, bias=False)
        self.o_proj = nn.Linear(nq * d, h, bias=False)
        if diff:
            self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                setattr(self, name, nn.Parameter(0.1 * torch.randn(d)))

    def forward(self, x, cos, sin, mask):
        b, t, _ = x.shape
        rep = self.nq // self.nk
        q = rope(self.q_proj(x).view(b, t, self.nq, self.d).transpose(1, 2), cos, sin)
        k = rope(self.k_proj(x).view(b, t, self.nk, self.d).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.nk, self.d).transpose(1, 2)
        k = k.repeat_interleave(rep, 1)
        p = torch.softmax(torch.matmul(q * self.d ** -0.5, k.transpose(2, 3)) + mask, -1)
        if self.diff:
            lam = (torch.exp((self.lambda_q1 * self.lambda_k1).sum())
                   - torch.exp((self.lambda_q2 * self.lambda_k2).sum()) + self.lambda_init)
            v = torch.cat(v.chunk(2, 1), -1).repeat_interleave(rep, 1)
            p1, p2 = p.chunk(2, 1)
            y = torch.matmul(p1 - lam * p2, v)
            y = F.rms_norm(y, y.shape[-1:], None, SHAPE["rms_norm_eps"]) * (1 - self.lambda_init)
        else:
            y = torch.matmul(p, v.repeat_interleave(rep, 1))
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        h, f = SHAPE["hidden_size"], SHAPE["intermediate_size"]
        self.gate_proj = nn.Linear(h, f, bias=False)
        self.up_proj = nn.Linear(h, f, bias=False)
        self.down_proj = nn.Linear(f, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, layer, diff):
        super().__init__()
        self.input_layernorm = RMS(SHAPE["hidden_size"])
        self.self_attn = Attention(layer, diff)
        self.post_attention_layernorm = RMS(SHAPE["hidden_size"])
        self.mlp = MLP()

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, diff):
        super().__init__()
        self.embed_tokens = nn.Embedding(SHAPE["vocab_size"], SHAPE["hidden_size"])
        self.layers = nn.ModuleList(Layer(i, diff) for i in range(SHAPE["num_hidden_layers"]))
        self.norm = RMS(SHAPE["hidden_size"])


class Net(nn.Module):
    """Parameter names equal those of the transformers models (tied embeddings)."""

    def __init__(self, diff):
        super().__init__()
        self.model = Body(diff)
        for name, m in self.named_modules():
            if isinstance(m, nn.Embedding):
                nn.init.normal_(m.weight, 0, 0.05)
            elif isinstance(m, nn.Linear):
                std = {"o_proj": 0.01, "down_proj": 0.004}.get(name.split(".")[-1], 0.09)
                nn.init.normal_(m.weight, 0, std)
        n = SHAPE["max_position_embeddings"]
        cos, sin = rope_tables(n, SHAPE["head_dim"], THETA)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mask", torch.full((n, n), float("-inf")).triu(1), persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.cos[:t], self.sin[:t], self.mask[:t, :t])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def batch_of(rng, n, length, notes, questions):
    """ids [n, length] with BOS in front, and which of them are answers."""
    ids = torch.zeros((n, length), dtype=torch.long)
    answer = torch.zeros((n, length), dtype=torch.bool)
    for i in range(n):
        words, at, _, _ = make_data.document(rng, length - 1, rng.randint(*notes), questions)
        ids[i, 1:] = torch.tensor(make_data.ids_of(words)[:length - 1])
        answer[i, [1 + a for a in at if 1 + a < length]] = True
    return ids, answer


def loss_of(net, ids, answer):
    """Mean over all ids plus mean over the answers."""
    nll = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    at = answer[:, 1:].flatten()
    return nll.mean() + nll[at].mean(), nll.mean(), nll[at].mean()


def transformers_model(kind, net):
    import transformers as tr
    conf = dict(SHAPE, tie_word_embeddings=True, attention_bias=False, hidden_act="silu",
                rope_parameters={"rope_type": "default", "rope_theta": THETA},
                bos_token_id=BOS, eos_token_id=BOS, pad_token_id=None)
    if kind == "llama":
        ref = tr.LlamaForCausalLM(tr.LlamaConfig(mlp_bias=False, **conf))
    else:
        ref = tr.DiffLlamaForCausalLM(tr.DiffLlamaConfig(**conf))
    missing, extra = ref.load_state_dict(net.state_dict(), strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    ref.tie_weights()
    ref.config._attn_implementation = "eager"
    return ref.eval()


def save(kind, net, out):
    ref = transformers_model(kind, net)
    ids = torch.randint(2, 600, (2, 256))
    with torch.no_grad():
        gap = (ref(ids).logits - net(ids)).abs().max().item()
    assert gap < 1e-3, gap
    ref = ref.to(torch.bfloat16)
    ref.save_pretrained(out)
    path = os.path.join(out, "generation_config.json")
    if os.path.exists(path):
        os.remove(path)
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)
    return gap


def repeated(rng, n):
    """Random words, then the same again: nothing but recall can predict the second half."""
    half = rng.randint(8, 20)
    words = torch.tensor([[make_data.FIRST_WORD + w
                           for w in rng.sample(range(len(make_data.WORDS)), half)]
                          for _ in range(n)])
    ids = torch.cat([torch.zeros((n, 1), dtype=torch.long), words, words], 1)
    answer = torch.zeros_like(ids, dtype=torch.bool)
    answer[:, half + 2:] = True
    return ids, answer


# The curriculum. A phase ends once the mean loss of its answers is below `known`, or after `steps`.
# Without the first one the plain model finds recall very late, or not at all.
PHASES = (
    dict(name="repeats", steps=1500, known=0.25),
    dict(name="short", steps=800, known=0.15),
    dict(name="long", steps=900, known=0.0),
)


def batch(phase, rng):
    if phase["name"] == "repeats":
        return repeated(rng, 96)
    if phase["name"] == "short":
        return batch_of(rng, 64, 61, (2, 5), 8)
    return batch_of(rng, 32, 193, (4, 12), 20)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--kind", choices=("llama", "diffllama"), required=True)
    ap.add_argument("--out", default=HERE)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    out = os.path.join(args.out, args.kind)

    net = Net(args.kind == "diffllama")
    matrices = [p for p in net.parameters() if p.dim() == 2]
    vectors = [p for p in net.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01},
                             {"params": vectors, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.95))
    began, warm = time.time(), 0
    for number, phase in enumerate(PHASES):
        mean = None
        for step in range(phase["steps"]):
            last = number == len(PHASES) - 1
            decay = 1 - step / phase["steps"] if last else 1
            for group in opt.param_groups:
                group["lr"] = args.lr * min(1, (warm + 1) / 50) * decay
            warm += 1
            ids, answer = batch(phase, rng)
            loss, every, answers = loss_of(net, ids, answer)
            opt.zero_grad()
            (answers if phase["name"] == "repeats" else loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            now = torch.tensor([every.item(), answers.item()])
            mean = now if mean is None else 0.9 * mean + 0.1 * now
            if (step + 1) % 50 == 0:
                print(f"{phase['name']} {step + 1:4d} nll {mean[0]:.3f} answers {mean[1]:.3f} "
                      f"{time.time() - began:.0f} s", flush=True)
            if mean[1] < phase["known"]:
                break
            if last and (step + 1) % 300 == 0:
                gap = save(args.kind, net, out)
                print(f"saved; largest difference of a logit to transformers {gap:.1e}", flush=True)


if __name__ == "__main__":
    main()
