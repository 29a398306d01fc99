#!/usr/bin/env python3
"""Compares training runs of ours with PyTorch's in fp32 on the CPU.

compare.py DIR           for every run in DIR (written by //tools/interop:dump_run): trains from the
                         same weights on the same tokens and compares losses, gradient norms and
                         final weights.
compare.py --self_check  checks this reference itself: its gradients against finite differences in
                         double, and how far fp32 strays from double in 20 steps, which must leave
                         room below the tolerances of the comparison.

compare.py --write_goldens=FOLDER DIR
                         also writes what //tools/interop:reference_runs_test expects of each run:
                         losses and gradient norms, and of each final weight its norm and its
                         product with a wave, as PyTorch computes them in double.

A run is a folder: config.json, samples/NAME.npy int32 [all samples, positions] with -1 behind shorter
ones (classes.npy: [all samples]), losses.npy and grad_norms.npy [steps], initial/NAME.npy and
final/NAME.npy for every weight NAME. Where samples hold several documents, documents.npy has the
number of each token's; here each document is a row of its own, so that none can see another.

Prints "N passed, N failed" at the end and fails if a check did.
"""

import argparse
import json
import math
import os
import sys

import numpy
import torch

import hugging_face
import model
import training

# Relative; in fp32 each of these is met with room to spare (--self_check). AdamW divides gradients
# by their size and so passes the errors of small ones on in full; SGD does not.
LOSS_BOUND = NORM_BOUND = 1e-5
WEIGHT_BOUND = {"adam": 1e-5, "sgd": 5e-6}


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, error, bound):
        ok = error <= bound  # false for NaN
        self.passed += ok
        self.failed += not ok
        print("%s %-72s %.2e (bound %.0e)" % ("ok    " if ok else "FAILED", what, error, bound))

    def finish(self):
        print("%d passed, %d failed" % (self.passed, self.failed))
        return 1 if self.failed or not self.passed else 0


def relative(actual, expected):
    """The largest relative difference of two lists of numbers."""
    if len(actual) != len(expected):
        return math.inf
    return max(abs(a - e) / abs(e) for a, e in zip(actual, expected))


def relative_l2(actual, expected):
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def split_keys(m, name, tensor):
    """(what has a gradient or None, the biases of keys or None).

    Softmax does not see a constant added to all scores of a row, so without rotation the gradient
    of a key's bias is zero but for rounding, and AdamW makes steps of full size out of rounding.
    """
    if name.endswith(".key.bias"):
        return None, tensor
    if name == "classifier.bias" and tensor.numel() == 1:
        return None, None  # of choices, where it is added to the scores of all
    if m.get("position_embedding_type") != "rope":
        if name.endswith("linear_qkv.bias"):
            return torch.cat([tensor[:, :-2], tensor[:, -1:]], dim=1), tensor[:, -2]
        if name.endswith("linear_kv.bias"):
            return tensor[:, 1], tensor[:, 0]
    return tensor, None


def compare_weights(report, config, label, actual, expected):
    o = config["optimizer"]
    for name in expected:
        rest, keys = split_keys(config["model"], name, actual[name])
        expected_rest, expected_keys = split_keys(config["model"], name, expected[name])
        if rest is not None:
            report.check(label + name, relative_l2(rest, expected_rest),
                         WEIGHT_BOUND[o["optimizer"]])
        if keys is not None:
            bound = o["lr"] / 10 if o["optimizer"] == "adam" else 1e-9
            report.check(label + name + " (keys, absolute)",
                         (keys - expected_keys).abs().max().item(), bound)


def load(folder, names):
    return {name: torch.from_numpy(numpy.load(os.path.join(folder, name + ".npy")))
            for name in names}


def write_goldens(path, config, initial, batches):
    """Lines of a name and numbers."""
    losses, norms, weights = training.train(config, initial, batches, torch.float64)
    with open(path, "w") as file:
        for name, values in (("losses", losses), ("norms", norms)):
            print(name, *["%.9g" % value for value in values], file=file)
        for name, weight in weights.items():
            rest, keys = split_keys(config["model"], name, weight)
            if rest is None or keys is not None:
                continue
            wave = (torch.arange(weight.numel(), dtype=torch.float64) * 1.7 + 0.5).sin()
            print(name, "%.9g %.9g" % (weight.norm(), weight.flatten() @ wave), file=file)


def apart(batch):
    """Each document as a row, with -1 behind the shorter ones."""
    documents = batch.pop("documents")
    numbers = range(int(documents.max()) + 1)
    longest = max(int((documents == number).sum(dim=1).max()) for number in numbers)
    rows = {name: [] for name in ("tokens", "labels", "types") if batch[name].numel() > 0}
    for sample in range(documents.shape[0]):
        for number in range(int(documents[sample].max()) + 1):
            place = documents[sample] == number
            for name, values in rows.items():
                row = torch.full((longest,), -1)
                row[:place.sum()] = batch[name][sample][place]
                values.append(row)
    return {**batch, **{name: torch.stack(values) for name, values in rows.items()}}


def load_batches(config, folder):
    """Of each step, by name."""
    names = sorted(name[:-len(".npy")] for name in os.listdir(folder))
    steps = {name: values.long().split(config["global_batch_size"])
             for name, values in load(folder, names).items()}
    batches = [{name: steps[name][i] for name in names} for i in range(config["train_iters"])]
    return [apart(batch) if "documents" in batch else batch for batch in batches]


def check_answers(report, label, batches):
    """Of the text of a conversation, what is behind "Assistant:" is learned, and its end."""
    wrong = 0
    for batch in batches:
        for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist()):
            length = sum(token >= 0 for token in tokens)
            text = "".join(chr(token) if token < 256 else "\0" for token in tokens[:length])
            learned, at = set(), 0
            while "Assistant:" in text[at:]:
                begin = text.index("Assistant:", at) + len("Assistant:")
                end = text.index("\0", begin) if "\0" in text[begin:] else length
                learned.update(range(begin - 1, end))
                at = end + 1
            wrong += {i for i, token in enumerate(labels) if token >= 0} != learned
    report.check(label + "labels are those of answers", wrong, 0)


def compare_run(report, folder, goldens):
    label = os.path.basename(folder) + ": "
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    m = config["model"]
    shapes = (hugging_face if hugging_face.has(m) else model).parameter_shapes(m)
    for part in ("initial", "final"):
        found = {name[:-len(".npy")] for name in os.listdir(os.path.join(folder, part))}
        unexpected = found.symmetric_difference(shapes)
        report.check("%snames of %s weights %s" % (label, part, sorted(unexpected) or ""),
                     len(unexpected), 0)
        if unexpected:
            return
    initial = load(os.path.join(folder, "initial"), shapes)
    final = load(os.path.join(folder, "final"), shapes)
    for name, shape in shapes.items():
        if list(initial[name].shape) != shape:
            report.check("%s%s has shape %s" % (label, name, list(initial[name].shape)), 1, 0)
            return
    batches = load_batches(config, os.path.join(folder, "samples"))
    if "_sft_" in label:
        check_answers(report, label, batches)
    losses, norms, weights = training.train(config, initial, batches)
    if goldens:
        write_goldens(os.path.join(goldens, os.path.basename(folder) + ".txt"), config, initial,
                      batches)
    report.check(label + "losses",
                 relative(numpy.load(os.path.join(folder, "losses.npy")).tolist(), losses),
                 LOSS_BOUND)
    report.check(label + "gradient norms",
                 relative(numpy.load(os.path.join(folder, "grad_norms.npy")).tolist(), norms),
                 NORM_BOUND)
    compare_weights(report, config, label, final, weights)


def example_configs():
    """Models like those that dump_run trains, smaller."""
    common = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "kv_channels": 16,
              "max_positions": 32, "vocab_size": 100, "padded_vocab_size": 128, "norm_epsilon": 1e-5,
              "rotary_base": 10000.0}
    gpt2 = dict(common, num_query_groups=4, ffn_hidden_size=256, normalization="LayerNorm",
                position_embedding_type="learned_absolute", swiglu=False,
                disable_bias_linear=False, untie_embeddings_and_output_weights=False)
    llama = dict(common, num_query_groups=2, ffn_hidden_size=192, normalization="RMSNorm",
                 position_embedding_type="rope", swiglu=True, disable_bias_linear=True,
                 untie_embeddings_and_output_weights=True)
    windowed = dict(llama, softmax_type="learnable", window_size=6, has_window=[True, False],
                    rotates=[True, True], rotary_base_local=500.0, yarn_rotary_scaling_factor=4.0,
                    yarn_original_max_position_embeddings=16, yarn_beta_fast=2.0,
                    yarn_beta_slow=0.25, yarn_mscale=1.0, yarn_mscale_all_dim=0.0)
    latent = dict(llama, num_query_groups=4, kv_channels=12, q_lora_rank=20, kv_lora_rank=24,
                  qk_pos_emb_head_dim=4, v_head_dim=10, softmax_scale=0.4,
                  yarn_rotary_scaling_factor=4.0, yarn_original_max_position_embeddings=16,
                  yarn_beta_fast=2.0, yarn_beta_slow=0.25, yarn_mscale=1.0,
                  yarn_mscale_all_dim=1.0, mtp_num_layers=2, mtp_loss_scaling_factor=0.3)
    gated = dict(llama, gate="quick_gelu", gate_limit=7.0, gate_offset=1.0)
    hybrid = dict(llama, num_layers=4, hybrid_layer_pattern="MG*-", position_embedding_type="none",
                  mamba_state_dim=10, mamba_head_dim=12, mamba_num_groups=2, mamba_num_heads=8,
                  linear_conv_kernel_dim=3, linear_key_head_dim=10, linear_value_head_dim=14,
                  linear_num_key_heads=2, linear_num_value_heads=4)
    optimizer = {"lr": 3e-4, "min_lr": 3e-5, "lr_warmup_samples": 12, "lr_decay_samples": 80,
                 "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8,
                 "sgd_momentum": 0.9, "clip_grad": 1.0}
    for model_name, m in (("gpt2", gpt2), ("llama", llama), ("windowed", windowed),
                          ("latent", latent), ("gated", gated),
                          ("hybrid", hybrid)):
        for name in ("adam", "sgd"):
            yield model_name + "_" + name, {
                "model": m, "optimizer": dict(optimizer, optimizer=name), "train_iters": 20}


def random_weights(m, generator):
    weights = {}
    for name, shape in model.parameter_shapes(m).items():
        if name.endswith("bias") or name.endswith("softmax_offset"):
            weights[name] = torch.zeros(shape)
        elif name.endswith("conv1d.weight"):
            weights[name] = 0.5 * torch.randn(shape, generator=generator)
        elif model.decays(name, shape):
            weights[name] = 0.02 * torch.randn(shape, generator=generator)
        else:
            weights[name] = torch.ones(shape)
    return weights


def check_gradients(report, label, m, initial, batch, generator):
    """The derivative along a random direction, by autograd and by central differences, in double."""
    weights = {name: w.double().requires_grad_() for name, w in initial.items()}
    model.loss(m, weights, batch).backward()
    for name, weight in weights.items():
        direction = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        direction *= 2e-5 / direction.abs().max()
        with torch.no_grad():
            ends = [model.loss(m, dict(weights, **{name: weight + sign * direction}), batch).item()
                    for sign in (1, -1)]
        derivative = (weight.grad * direction).sum().item()
        report.check(label + "gradient of " + name,
                     abs((ends[0] - ends[1]) / 2 - derivative), 1e-6 * abs(derivative) + 1e-13)


def self_check(report):
    for label, config in example_configs():
        m = config["model"]
        generator = torch.Generator().manual_seed(1)
        initial = random_weights(m, generator)
        tokens = torch.randint(0, m["vocab_size"],
                               (config["train_iters"], 4, m["max_positions"] + 1),
                               generator=generator)
        batches = [{"tokens": step[:, :-1], "labels": step[:, 1:]} for step in tokens]
        if config["optimizer"]["optimizer"] == "adam":
            check_gradients(report, label + ": ", m, initial, batches[0], generator)
        losses, norms, weights = training.train(config, initial, batches)
        exact_losses, exact_norms, exact_weights = training.train(config, initial, batches,
                                                                  torch.float64)
        report.check(label + ": losses in fp32", relative(losses, exact_losses), 1e-6)
        report.check(label + ": gradient norms in fp32", relative(norms, exact_norms), 1e-6)
        compare_weights(report, config, label + ": fp32 ", weights, exact_weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--self_check", action="store_true")
    parser.add_argument("--write_goldens", metavar="FOLDER",
                        help="write PyTorch's losses, gradient norms and weights of each run there")
    arguments = parser.parse_args()
    if not arguments.directory and not arguments.self_check:
        parser.error("a directory of runs or --self_check is needed")
    torch.manual_seed(0)
    report = Report()
    if arguments.self_check:
        self_check(report)
    if arguments.directory:
        for name in sorted(os.listdir(arguments.directory)):
            folder = os.path.join(arguments.directory, name)
            if os.path.exists(os.path.join(folder, "config.json")):
                compare_run(report, folder, arguments.write_goldens)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
