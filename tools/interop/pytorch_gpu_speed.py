#!/usr/bin/env python3
"""Times training steps of a GPT in PyTorch on a GPU, as one would write it today: the peer of tools/gpu_check.

    pytorch_gpu_speed.py --shape=gpt3_857m --json=peer.json     # eager, then compiled
    pytorch_gpu_speed.py --self_check                           # runs on the CPU: it is the same model

bf16 by autocast over fp32 weights, fused AdamW, scaled_dot_product_attention, dropout 0, the vocabulary padded as ours,
clipping at 1, one micro-batch a step on random tokens. The micro-batch is the one that is fastest here. Rates are
medians of single steps, each timed between two events of the GPU.

Needs nothing but PyTorch 2. The self check compares losses and gradients with pytorch_reference, which compare.py
holds against our trainer, and takes any PyTorch.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Shape:
    layers: int
    hidden: int
    heads: int
    sequence: int
    groups: int = 0  # key/value heads; 0: as many as heads
    ffn: int = 0  # 0: four times hidden
    llama: bool = False  # RMSNorm, SwiGLU, rotary positions, no biases, untied output
    vocabulary: int = 50304  # padded

    def __post_init__(self):
        self.groups = self.groups or self.heads
        self.ffn = self.ffn or 4 * self.hidden


# The shapes of tools/gpu/shapes.py, with the numbers that `pretrain_gpt --dry_run` prints for them:
# parameters, and model FLOPs per token with causal attention counted once and in full.
SHAPES = {
    "gpt3_857m": (Shape(24, 1024, 16, 2048), 355_919_872, 2.423e9, 2.725e9),
    "gpt_1664": (Shape(24, 1664, 13, 2048), 885_078_272, 5.778e9, 6.268e9),
    "gpt2_124m": (Shape(12, 768, 12, 1024), 124_475_904, 7.98e8, 8.547e8),
    "llama_1500m": (Shape(28, 2048, 16, 2048, groups=8, ffn=5632, llama=True), 1_527_367_680, 9.25e9, 9.955e9),
}


VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])


def attend(q, k, v):
    """[B, N, S, D], and k and v with as many heads as q or fewer."""
    shared = q.shape[1] // k.shape[1]
    if shared > 1 and VERSION >= (2, 5):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    if shared > 1:
        k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
    if VERSION >= (2, 0):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1]**-0.5
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


class RmsNorm(nn.Module):

    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        return (x.float() * scale).type_as(x) * self.weight


def make_norm(s):
    if not s.llama:
        return nn.LayerNorm(s.hidden)
    return nn.RMSNorm(s.hidden, eps=1e-5) if hasattr(nn, "RMSNorm") else RmsNorm(s.hidden)


def rotate(x, cos, sin):  # [B, N, S, D]; channels i and i + D/2 are a pair
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).type_as(x)


class Layer(nn.Module):

    def __init__(self, s):
        super().__init__()
        self.s, self.d = s, s.hidden // s.heads
        bias = not s.llama
        self.norm1, self.norm2 = make_norm(s), make_norm(s)
        self.qkv = nn.Linear(s.hidden, (s.heads + 2 * s.groups) * self.d, bias=bias)
        self.proj = nn.Linear(s.hidden, s.hidden, bias=bias)
        self.fc1 = nn.Linear(s.hidden, s.ffn * (2 if s.llama else 1), bias=bias)
        self.fc2 = nn.Linear(s.ffn, s.hidden, bias=bias)

    def attention(self, x, cos, sin):
        s, (batch, length, _) = self.s, x.shape
        heads = self.qkv(x).view(batch, length, -1, self.d).transpose(1, 2)
        q, k, v = heads.split([s.heads, s.groups, s.groups], dim=1)
        if s.llama:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return self.proj(attend(q, k, v).transpose(1, 2).reshape(batch, length, s.hidden))

    def mlp(self, x):
        y = self.fc1(x)
        if not self.s.llama:
            return self.fc2(F.gelu(y, approximate="tanh"))
        gate, up = y.chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * up)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.words = nn.Embedding(s.vocabulary, s.hidden)
        self.positions = None if s.llama else nn.Embedding(s.sequence, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = make_norm(s)
        self.output = nn.Linear(s.hidden, s.vocabulary, bias=False)
        if not s.llama:
            self.output.weight = self.words.weight
        d = s.hidden // s.heads
        frequency = 10000.0**(-torch.arange(d // 2, dtype=torch.float64) / (d // 2))
        angle = torch.arange(s.sequence, dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        length = tokens.shape[1]
        x = self.words(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(length, device=tokens.device))
        cos, sin = self.cos[:length], self.sin[:length]
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.view(-1, self.s.vocabulary), labels.reshape(-1))


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def flops_per_token(s, causal):
    """Of the matrix products, forward and backward, as our trainer counts them."""
    d = s.hidden // s.heads
    layer = s.hidden * (s.heads + 2 * s.groups) * d + s.hidden**2 + s.hidden * s.ffn * (3 if s.llama else 2)
    attention = 2 * s.hidden * s.sequence * (0.5 if causal else 1)
    return 6 * (s.layers * (layer + attention) + s.hidden * s.vocabulary)


class Training:
    """A model and its optimizer on the GPU."""

    def __init__(self, s, compiled):
        torch.manual_seed(1234)
        self.s = s
        model = Gpt(s).cuda()
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                            {"params": others, "weight_decay": 0.0}],
                                           lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.weights = decayed + others
        # Each batch gets code of its own: code for any batch is slower.
        self.model = torch.compile(model, dynamic=False) if compiled else model

    def step(self, batch):
        tokens = torch.randint(50257, (batch, self.s.sequence + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def rate(self, batch, steps, warmup=3):
        """Tokens a second; None where memory is short."""
        try:
            times = []
            for i in range(warmup + steps):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self.step(batch)
                end.record()
                end.synchronize()
                if i >= warmup:
                    times.append(begin.elapsed_time(end) * 1e-3)
            return batch * self.s.sequence / statistics.median(times)
        except torch.cuda.OutOfMemoryError:
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            return None


def tune(s, compiled, batches, deadline, steps):
    """The rate and the GiB of each micro-batch that fits, until they get slower or time is up."""
    training, rates, peaks = Training(s, compiled), {}, {}
    for batch in batches:
        if rates and time.monotonic() > deadline:
            print("  time is up: batches from %d on are not tried" % batch, flush=True)
            break
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        rate = training.rate(batch, steps)
        if rate is None:
            break
        rates[batch], peaks[batch] = rate, torch.cuda.max_memory_allocated() / 2**30
        print("  %s, %d samples: %.0f tokens/s" % ("compiled" if compiled else "eager", batch, rate), flush=True)
        if len(rates) > 1 and rate < 0.98 * max(rates.values()):
            break
    return rates, peaks


def measure(name, options):
    s = SHAPES[name][0]
    begin = time.monotonic()
    result = {"what": "pytorch", "name": name, "torch": torch.__version__, "parameters": count_parameters(s)}
    for kind in options.kinds.split(","):
        compiled = kind == "compiled"
        # Each batch size is compiled anew, so only those near the best eager one are tried.
        batches = options.batches
        if compiled and "eager" in result:
            best = result["eager"]["batch"]
            batches = [b for b in batches if best <= b <= 2 * best]
        share = 0.5 if kind == "eager" and "compiled" in options.kinds else 1.0
        rates, peaks = tune(s, compiled, batches, begin + share * options.seconds, options.steps)
        torch.cuda.empty_cache()
        if not rates:
            continue
        batch = max(rates, key=rates.get)
        result[kind] = {
            "batch": batch,
            "tokens_per_second": rates[batch],
            "model_tflops_causal": rates[batch] * flops_per_token(s, True) * 1e-12,
            "model_tflops_full": rates[batch] * flops_per_token(s, False) * 1e-12,
            "peak_gib": peaks[batch],
            "tokens_per_second_by_batch": rates,
        }
    return result


def count_parameters(s):
    d = s.hidden // s.heads
    matrices = s.hidden * (s.heads + 2 * s.groups) * d + s.hidden**2 + s.hidden * s.ffn * (3 if s.llama else 2)
    biases = 0 if s.llama else (s.heads + 2 * s.groups) * d + s.hidden + s.ffn + s.hidden
    norms = s.hidden * (1 if s.llama else 2)
    tables = s.vocabulary * s.hidden * (2 if s.llama else 1) + (0 if s.llama else s.sequence * s.hidden)
    return s.layers * (matrices + biases + 2 * norms) + norms + tables


def reference_weights(model, s):
    """Ours, under the names and in the layouts of pytorch_reference."""
    d, r = s.hidden // s.heads, s.heads // s.groups
    weights = {"embedding.word_embeddings.weight": model.words.weight}
    if not s.llama:
        weights["embedding.position_embeddings.weight"] = model.positions.weight

    def put(name, module, shape):
        weights[name + ".weight"] = module.weight.reshape(*shape, module.weight.shape[-1])
        if module.bias is not None:
            weights[name + ".bias"] = module.bias.reshape(shape)

    def put_norm(name, module):
        weights[name + "weight"] = module.weight
        if not s.llama:
            weights[name + "bias"] = module.bias

    def grouped(t):  # rows [q | k | v] to [G, R + 2, D]
        q, k, v = t.split([s.heads * d, s.groups * d, s.groups * d])
        parts = [q.view(s.groups, r, d, -1), k.view(s.groups, 1, d, -1), v.view(s.groups, 1, d, -1)]
        return torch.cat(parts, dim=1)

    for i, layer in enumerate(model.layers):
        a = "decoder.layers.%d." % i
        put_norm(a + "self_attention.linear_qkv.layer_norm_", layer.norm1)
        weights[a + "self_attention.linear_qkv.weight"] = grouped(layer.qkv.weight)
        if layer.qkv.bias is not None:
            weights[a + "self_attention.linear_qkv.bias"] = grouped(layer.qkv.bias).squeeze(-1)
        put(a + "self_attention.linear_proj", layer.proj, [s.hidden])
        put_norm(a + "mlp.linear_fc1.layer_norm_", layer.norm2)
        put(a + "mlp.linear_fc1", layer.fc1, [2, s.ffn] if s.llama else [s.ffn])
        put(a + "mlp.linear_fc2", layer.fc2, [s.hidden])
    put_norm("decoder.final_layernorm.", model.norm)
    if s.llama:
        weights["output_layer.weight"] = model.output.weight
    return weights


def reference_config(s):
    return {
        "num_layers": s.layers, "hidden_size": s.hidden, "ffn_hidden_size": s.ffn, "num_attention_heads": s.heads,
        "num_query_groups": s.groups, "kv_channels": s.hidden // s.heads, "max_positions": s.sequence,
        "vocab_size": s.vocabulary, "padded_vocab_size": s.vocabulary, "rotary_base": 10000.0, "norm_epsilon": 1e-5,
        "normalization": "RMSNorm" if s.llama else "LayerNorm", "swiglu": s.llama, "disable_bias_linear": s.llama,
        "position_embedding_type": "rope" if s.llama else "learned_absolute",
        "untie_embeddings_and_output_weights": s.llama,
    }


def self_check():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_reference"))
    import model as reference
    failures = 0

    def check(what, ok):
        nonlocal failures
        failures += not ok
        print("%s %s" % ("ok    " if ok else "FAILED", what))

    for s in (Shape(2, 32, 4, 16, vocabulary=64), Shape(2, 32, 4, 16, groups=2, ffn=48, llama=True, vocabulary=64)):
        torch.manual_seed(1)
        model = Gpt(s).double()
        model.cos, model.sin = model.cos.double(), model.sin.double()
        with torch.no_grad():  # no parameter stays zero or one, which would hide a mistake
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
        weights, config = reference_weights(model, s), reference_config(s)
        shapes = {name: list(w.shape) for name, w in weights.items()}
        kind = "Llama" if s.llama else "GPT-2"
        check(kind + ": the reference's weights, by name and shape", shapes == reference.parameter_shapes(config))
        check(kind + ": parameters as counted", parameters(model) == count_parameters(s))
        tokens = torch.randint(s.vocabulary, (3, s.sequence + 1))
        batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
        got, want = model(tokens[:, :-1], tokens[:, 1:]), reference.loss(config, weights, batch)
        check("%s: loss %.9f, the reference's %.9f" % (kind, got, want), abs(got - want) < 1e-6 * want)
        leaves = list(model.parameters())
        pairs = zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves))
        worst = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
        check("%s: gradients differ by %.1e" % (kind, worst), worst < 1e-5)
    for name, (s, count, causal, full) in SHAPES.items():
        check("%s: %d parameters" % (name, count_parameters(s)), count_parameters(s) == count)
        for expected, is_causal in ((causal, True), (full, False)):
            flops = flops_per_token(s, is_causal)
            check("%s: %.4g FLOPs a token" % (name, flops), abs(flops - expected) < 5e-4 * expected)
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self_check", action="store_true")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="gpt3_857m")
    parser.add_argument("--kinds", default="eager,compiled")
    parser.add_argument("--batches", type=lambda text: [int(b) for b in text.split(",")], default=[4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=8, help="that are timed, of each batch")
    parser.add_argument("--seconds", type=float, default=120, help="no further batch is begun after these")
    parser.add_argument("--json", help="the file that the result is added to, one object a line")
    options = parser.parse_args()
    if options.self_check:
        return self_check()
    if not torch.cuda.is_available():
        print("PyTorch %s sees no GPU" % torch.__version__)
        return 1
    result = measure(options.shape, options)
    text = json.dumps(result)
    if options.json:
        with open(options.json, "a") as file:
            file.write(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
