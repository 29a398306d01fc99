#!/usr/bin/env python3
"""Compares low-rank adapters of ours with PEFT's.

compare.py BIN RUNS WORK

BIN has the programs import_hf and export_hf, RUNS the runs of dump_run, WORK is an empty folder.

- A GPT-2 and a Llama get adapters from PEFT, with random B. Imported and exported merged, the model
  has the logits that PEFT computes; exported alone, PEFT loads the adapters and has them too.
- PEFT trains the run gpt2_lora_adam from the same weights on the same samples.

Prints "N passed, N failed" at the end and fails if a check did.
"""

import json
import os
import subprocess
import sys

import numpy
import peft
import torch
import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                                "pytorch_reference"))
import training  # noqa: E402

LOGIT_BOUND = 2e-5
TRAINING_BOUND = 1e-5
passed = failed = 0


def check(what, error, bound):
    global passed, failed
    ok = error <= bound  # false for NaN
    passed += ok
    failed += not ok
    print("%s %-60s %.2e (bound %.0e)" % ("ok    " if ok else "FAILED", what, error, bound))


def gpt2():
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=32, vocab_size=100)
    return transformers.GPT2LMHeadModel(config), ["c_attn", "c_proj", "c_fc"], True


def llama():
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=160, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, vocab_size=100)
    # Keys have none.
    return transformers.LlamaForCausalLM(config), ["q_proj", "v_proj", "up_proj", "down_proj"], False


def logits(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens).logits.double()


def distance(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


def move(bin_folder, work, name, make):
    model, modules, transposed = make()
    base, theirs, saved = (os.path.join(work, name + part) for part in ("", "_peft", "_saved"))
    model.save_pretrained(base)
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=modules, task_type="CAUSAL_LM",
                             fan_in_fan_out=transposed)
    adapted = peft.get_peft_model(model, config)
    for parameter_name, parameter in adapted.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(theirs)
    tokens = torch.randint(0, 100, (3, 20))
    want = logits(adapted, tokens)
    check(name + ": adapters have an effect", -distance(
        logits(transformers.AutoModelForCausalLM.from_pretrained(base), tokens), want), -1e-2)

    def run(program, *arguments):
        subprocess.run([os.path.join(bin_folder, "tools", program), *arguments], check=True,
                       stdout=subprocess.DEVNULL)

    run("import_hf", "--adapter=" + theirs, "--save=" + saved, base)
    run("export_hf", "--vocab_size=100", "--output=" + saved + "_merged", saved)
    merged = transformers.AutoModelForCausalLM.from_pretrained(saved + "_merged")
    check(name + ": logits of the merged model", distance(logits(merged, tokens), want), LOGIT_BOUND)
    run("export_hf", "--vocab_size=100", "--adapter", "--output=" + saved + "_adapter", saved)
    again = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(base), saved + "_adapter")
    check(name + ": logits with our adapters in PEFT", distance(logits(again, tokens), want),
          LOGIT_BOUND)


def concatenated(tensor):
    """Rows of groups of [query, key, value] as all queries, all keys and all values."""
    return torch.cat([tensor[:, i].flatten(0, 1) for i in range(3)])


def fill(model, prefix, weights):
    """Gives the model of PEFT the weights of the run."""
    h = model.base_model.model.transformer

    def copy(to, value):
        to.data.copy_(value)

    copy(h.wte.weight, weights["embedding.word_embeddings.weight"])
    copy(h.wpe.weight, weights["embedding.position_embeddings.weight"])
    copy(h.ln_f.weight, weights["decoder.final_layernorm.weight"])
    copy(h.ln_f.bias, weights["decoder.final_layernorm.bias"])
    for i, layer in enumerate(h.h):
        ours = prefix % i
        for theirs, name in ((layer.ln_1, "self_attention.linear_qkv"),
                             (layer.ln_2, "mlp.linear_fc1")):
            copy(theirs.weight, weights[ours + name + ".layer_norm_weight"])
            copy(theirs.bias, weights[ours + name + ".layer_norm_bias"])
        for theirs, name, order in (
                (layer.attn.c_attn, "self_attention.linear_qkv", concatenated),
                (layer.attn.c_proj, "self_attention.linear_proj", lambda x: x),
                (layer.mlp.c_fc, "mlp.linear_fc1", lambda x: x),
                (layer.mlp.c_proj, "mlp.linear_fc2", lambda x: x)):
            name = ours + name
            copy(theirs.base_layer.weight, order(weights[name + ".weight"]).T)
            copy(theirs.base_layer.bias, order(weights[name + ".bias"]))
            copy(theirs.lora_A["default"].weight, weights[name + ".adapter.linear_in.weight"])
            copy(theirs.lora_B["default"].weight, order(weights[name + ".adapter.linear_out.weight"]))


def train(folder):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    m, o = config["model"], config["optimizer"]
    initial = os.path.join(folder, "initial")
    weights = {name[:-len(".npy")]: torch.from_numpy(numpy.load(os.path.join(initial, name)))
               for name in os.listdir(initial)}
    gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=m["num_layers"], n_embd=m["hidden_size"], n_head=m["num_attention_heads"],
        n_inner=m["ffn_hidden_size"], n_positions=m["max_positions"],
        vocab_size=m["padded_vocab_size"], layer_norm_epsilon=m["norm_epsilon"],
        activation_function="gelu_new", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    model = peft.get_peft_model(gpt, peft.LoraConfig(
        r=m["lora_dim"], lora_alpha=m["lora_alpha"], target_modules=["c_attn", "c_proj", "c_fc"],
        fan_in_fan_out=True, task_type="CAUSAL_LM"))
    fill(model, "decoder.layers.%d.", weights)
    trained = {name: w for name, w in model.named_parameters() if w.requires_grad}
    optimizer = training.make_optimizer(o, trained)
    samples = {name: torch.from_numpy(numpy.load(os.path.join(folder, "samples", name + ".npy")))
               .long().split(config["global_batch_size"]) for name in ("tokens", "labels")}
    losses, norms = [], []
    for step in range(config["train_iters"]):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate(o, step * config["global_batch_size"])
        optimizer.zero_grad()
        scores = model(samples["tokens"][step]).logits[..., :m["vocab_size"]]
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1),
                                                 samples["labels"][step].flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), o["clip_grad"]).item())
        losses.append(loss.item())
        optimizer.step()
    for what, values, file in (("losses", losses, "losses"), ("gradient norms", norms, "grad_norms")):
        ours = numpy.load(os.path.join(folder, file + ".npy")).tolist()
        check("20 steps with PEFT: " + what,
              max(abs(a - b) / abs(b) for a, b in zip(ours, values)), TRAINING_BOUND)


def main():
    torch.manual_seed(0)
    bin_folder, runs, work = sys.argv[1:]
    for name, make in (("gpt2", gpt2), ("llama", llama)):
        move(bin_folder, work, name, make)
    train(os.path.join(runs, "gpt2_lora_adam"))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
