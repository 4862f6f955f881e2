"""The networks of the embedded pairs, how they are trained, and how they become transformers checkpoints.

The forward below computes what the transformers classes compute, with less overhead; before a model is written its
logits are compared with those of LlamaForCausalLM / DiffLlamaForCausalLM.
"""
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import vocabulary

THETA = 10000.0


class RMS(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def rope_tables(n, d, theta):
    angle = torch.arange(n)[:, None] * theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    return angle.cos(), angle.sin()


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, shape, block, layer, diff):
        super().__init__()
        h, nq, nk, d = (shape[k] for k in ("hidden_size", "num_attention_heads",
                                           "num_key_value_heads", "head_dim"))
        self.nq, self.nk, self.d, self.diff = nq, nk, d, diff
        self.block, self.eps = block, shape["rms_norm_eps"]
        self.q_proj = nn.Linear(h, nq * d, bias=False)
        self.k_proj = nn.Linear(h, nk * d, bias=False)
        self.v_proj = nn.Linear(h, nk * d, bias=False)
        self.o_proj = nn.Linear(nq * d, h, bias=False)
        if diff:
            self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                setattr(self, name, nn.Parameter(0.1 * torch.randn(d)))

    def mix(self, q, k, v, mask, lam):
        """What the heads read, [b, heads, t, size of a value]; lam: of a differential model."""
        rows, t = [], q.shape[2]
        for at in range(0, t, self.block):      # blocks of rows, so that hidden keys cost little
            end = min(at + self.block, t)
            s = torch.matmul(q[:, :, at:end] * self.d ** -0.5, k[:, :, :end].transpose(2, 3))
            p = torch.softmax(s + mask[at:end, :end], -1)
            if self.diff:
                p1, p2 = p.chunk(2, 1)
                p = p1 - lam * p2
            rows.append(torch.matmul(p, v[:, :, :end]))
        y = torch.cat(rows, 2)
        if self.diff:
            y = F.rms_norm(y, y.shape[-1:], None, self.eps) * (1 - self.lambda_init)
        return y

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
        with torch.autocast("cpu", enabled=False):  # scores and maps are f32, also where products with weights are not
            y = self.mix(q, k, v.float(), mask, lam if self.diff else None)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        h, f = shape["hidden_size"], shape["intermediate_size"]
        self.gate_proj = nn.Linear(h, f, bias=False)
        self.up_proj = nn.Linear(h, f, bias=False)
        self.down_proj = nn.Linear(f, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape, block, layer, diff):
        super().__init__()
        self.input_layernorm = RMS(shape["hidden_size"], shape["rms_norm_eps"])
        self.self_attn = Attention(shape, block, layer, diff)
        self.post_attention_layernorm = RMS(shape["hidden_size"], shape["rms_norm_eps"])
        self.mlp = MLP(shape)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, shape, block, diff):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape["vocab_size"], shape["hidden_size"])
        self.layers = nn.ModuleList(Layer(shape, block, i, diff)
                                    for i in range(shape["num_hidden_layers"]))
        self.norm = RMS(shape["hidden_size"], shape["rms_norm_eps"])


class Net(nn.Module):
    """kind: llama or diffllama. shape: what transformers' configurations call sizes, by their names. Parameter names
    equal those of the transformers models (tied embeddings). block: rows of attention at a time, so that keys after
    them cost nothing; None: all."""

    def __init__(self, kind, shape, block=None):
        super().__init__()
        self.kind, self.shape = kind, shape
        n = shape["max_position_embeddings"]
        self.model = Body(shape, block or n, kind == "diffllama")
        for name, m in self.named_modules():
            if isinstance(m, nn.Embedding):
                nn.init.normal_(m.weight, 0, 0.05)
            elif isinstance(m, nn.Linear):
                std = {"o_proj": 0.01, "down_proj": 0.004}.get(name.split(".")[-1], 0.09)
                nn.init.normal_(m.weight, 0, std)
        cos, sin = rope_tables(n, shape["head_dim"], THETA)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mask", torch.full((n, n), float("-inf")).triu(1), persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.cos[:t], self.sin[:t], self.mask[:t, :t])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def loss_of(net, ids, answer):
    """Mean over all tokens plus mean over the answers."""
    nll = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    at = answer[:, 1:].flatten()
    return nll.mean() + nll[at].mean(), nll.mean(), nll[at].mean()


def transformers_model(net):
    import transformers as tr
    conf = dict(net.shape, tie_word_embeddings=True, attention_bias=False, hidden_act="silu",
                rope_parameters={"rope_type": "default", "rope_theta": THETA},
                bos_token_id=vocabulary.BOS, eos_token_id=vocabulary.BOS, pad_token_id=None)
    if net.kind == "llama":
        ref = tr.LlamaForCausalLM(tr.LlamaConfig(mlp_bias=False, **conf))
    else:
        ref = tr.DiffLlamaForCausalLM(tr.DiffLlamaConfig(**conf))
    missing, extra = ref.load_state_dict(net.state_dict(), strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    ref.tie_weights()
    ref.config._attn_implementation = "eager"
    return ref.eval()


def save(net, out, length):
    """Writes the model in bf16; returns how far its f32 logits are from those of transformers for `length` ids."""
    ref = transformers_model(net)
    ids = torch.randint(2, 600, (2, length))
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


def repeated(rng, n, n_words):
    """Random words, then the same again: nothing but recall can predict the second half."""
    half = rng.randint(8, 20)
    words = torch.tensor([[vocabulary.FIRST_WORD + w for w in rng.sample(range(n_words), half)]
                          for _ in range(n)])
    ids = torch.cat([torch.zeros((n, 1), dtype=torch.long), words, words], 1)
    answer = torch.zeros_like(ids, dtype=torch.bool)
    answer[:, half + 2:] = True
    return ids, answer


def train(net, phases, batch, rng, out, lr, save_every, save_length):
    """phases: dicts with name, steps and `known`: a phase ends once the mean loss of its answers is below that.
    batch(phase, rng): ids and which of them are answers. The phase "repeats" learns answers only. The last phase lets
    the rate fall and writes the model to `out` every save_every steps."""
    matrices = [p for p in net.parameters() if p.dim() == 2]
    vectors = [p for p in net.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01},
                             {"params": vectors, "weight_decay": 0.0}],
                            lr=lr, betas=(0.9, 0.95))
    began, warm = time.time(), 0
    for phase in phases:
        last = phase is phases[-1]
        mean = None
        for step in range(phase["steps"]):
            decay = 1 - step / phase["steps"] if last else 1
            for group in opt.param_groups:
                group["lr"] = lr * min(1, (warm + 1) / 50) * decay
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
            if last and (step + 1) % save_every == 0:
                gap = save(net, out, save_length)
                print(f"saved; largest difference of a logit to transformers {gap:.1e}", flush=True)
        print(f"{phase['name']} ended after {step + 1} steps, answers {mean[1]:.3f}, "
              f"cpu {time.process_time():.0f} s", flush=True)
