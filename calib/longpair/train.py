#!/usr/bin/env python3
"""Trains one model of a pair:  train.py --kind llama|diffllama [--seed N] [--out DIR]

The training forward below computes what the transformers classes compute, with less overhead;
before a model is written its logits are compared with those of LlamaForCausalLM /
DiffLlamaForCausalLM. A seed fixes weights and documents of a kind; as the kinds leave the phases
at different steps, they do not see the same documents.
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
             max_position_embeddings=1024, rms_norm_eps=1e-5)
THETA = 10000.0
BLOCK = 128


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
        if self.diff:
            lam = (torch.exp((self.lambda_q1 * self.lambda_k1).sum())
                   - torch.exp((self.lambda_q2 * self.lambda_k2).sum()) + self.lambda_init)
            v = torch.cat(v.chunk(2, 1), -1)
        v = v.repeat_interleave(rep, 1)
        rows = []
        for at in range(0, t, BLOCK):      # blocks of rows, so that hidden keys cost little
            end = min(at + BLOCK, t)
            s = torch.matmul(q[:, :, at:end] * self.d ** -0.5, k[:, :, :end].transpose(2, 3))
            p = torch.softmax(s + mask[at:end, :end], -1)
            if self.diff:
                p1, p2 = p.chunk(2, 1)
                p = p1 - lam * p2
            rows.append(torch.matmul(p, v[:, :, :end]))
        y = torch.cat(rows, 2)
        if self.diff:
            y = F.rms_norm(y, y.shape[-1:], None, SHAPE["rms_norm_eps"]) * (1 - self.lambda_init)
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
        k = rng.randint(*notes)
        plan = (make_data.halves_plan(rng, k) if rng.random() < 0.25
                else make_data.mixed_plan(rng, k, questions))
        doc = make_data.Document(rng, length - 1, plan)
        ids[i, 1:] = torch.tensor(make_data.ids_of(doc.words))
        answer[i, [1 + a for a in doc.answers]] = True
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
                bos_token_id=make_data.BOS, eos_token_id=make_data.BOS, pad_token_id=None)
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
    ids = torch.randint(2, 600, (2, 700))
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


# The curriculum: random words repeated until the second half is known, then documents of growing
# length. A phase ends once the mean loss of its answers is below `known`, or after `steps`. Notes
# and questions are dense throughout, so that many ids of every sequence are answers.
PHASES = (
    dict(name="repeats", steps=1500, known=0.25),
    dict(name="64", steps=600, known=0.15, n=64, length=64, notes=(2, 4), questions=8),
    dict(name="128", steps=300, known=0.10, n=32, length=128, notes=(3, 8), questions=14),
    dict(name="256", steps=300, known=0.10, n=16, length=256, notes=(5, 14), questions=24),
    dict(name="512", steps=300, known=0.10, n=8, length=512, notes=(8, 26), questions=44),
    dict(name="1024", steps=700, known=0.0, n=4, length=1024, notes=(12, 48), questions=80),
)


def batch(phase, rng):
    if phase["name"] == "repeats":
        return repeated(rng, 96)
    return batch_of(rng, phase["n"], phase["length"], phase["notes"], phase["questions"])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--kind", choices=make_data.KINDS, required=True)
    ap.add_argument("--out", default=HERE)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--threads", type=int, default=1, help="1: the two kinds side by side")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    out = os.path.join(args.out, f"{args.kind}-{args.seed}")

    net = Net(args.kind == "diffllama")
    matrices = [p for p in net.parameters() if p.dim() == 2]
    vectors = [p for p in net.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01},
                             {"params": vectors, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.95))
    began, warm = time.time(), 0
    for phase in PHASES:
        last = phase is PHASES[-1]
        mean = None
        for step in range(phase["steps"]):
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
                      f"wall {time.time() - began:.0f} s cpu {time.process_time():.0f} s", flush=True)
            if mean[1] < phase["known"]:
                break
            if last and (step + 1) % 100 == 0:
                gap = save(args.kind, net, out)
                print(f"saved; largest difference of a logit to transformers {gap:.1e}", flush=True)
        print(f"{phase['name']} ended after {step + 1} steps, answers {mean[1]:.3f}, "
              f"cpu {time.process_time():.0f} s", flush=True)
    make_data.write_tokenizer(out)


if __name__ == "__main__":
    main()
