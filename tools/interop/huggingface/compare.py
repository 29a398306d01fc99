"""Compares import_hf, export_hf and our .safetensors files with Hugging Face's own packages.

  compare.py BAZEL_BIN WORK_DIRECTORY

Prints each check that fails, and "N passed, N failed".
"""

import filecmp
import json
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
import transformers

BIN, WORK = sys.argv[1], sys.argv[2]
TOKENS = [3, 17, 0, 42, 42, 7, 29, 1, 11, 36, 48, 5, 23, 2, 9, 31]
VOCABULARY = 49  # odd, so that padding matters

passed = failed = 0


def check(name, condition, detail=""):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print(f"FAILED {name} {detail}")


def run(tool, *arguments):
    command = [os.path.join(BIN, tool), *arguments]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def path(*names):
    return os.path.join(WORK, *names)


def our_logits(checkpoint):
    run("tools/interop/huggingface/dump_logits", "--tokens=" + " ".join(map(str, TOKENS)),
        f"--vocab_size={VOCABULARY}", "--output=" + path("logits.npy"), checkpoint)
    return np.load(path("logits.npy"))


def their_logits(model):
    with torch.no_grad():
        return model.eval()(torch.tensor([TOKENS])).logits[0].float().numpy()


def check_logits(name, ours, theirs):
    difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
    check(name, ours.shape == theirs.shape and difference <= 1e-5, f"differs by {difference:.2g}")


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, torch_dtype="auto")


# ---------------------------------------------------------------------------------- safetensors

def check_files():
    generator = np.random.default_rng(1)
    arrays = {}
    for dtype in ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64",
                  "uint32", "uint16", "uint8", "bool"]:
        for shape in [(), (3,), (2, 0, 5), (2, 3, 4)]:
            arrays[f"{dtype}.{len(shape)}.ü\"\n"] = generator.integers(0, 2, shape).astype(dtype)
    safetensors.numpy.save_file(arrays, path("numpy.safetensors"), metadata={"format": "pt"})
    tensors = {"bf16": torch.randn(5, 7).bfloat16(), "fp16": torch.randn(3).half(),
               "fp32": torch.randn(2, 2), "scalar": torch.tensor(3)}
    safetensors.torch.save_file(tensors, path("torch.safetensors"))
    safetensors.numpy.save_file({}, path("empty.safetensors"))
    for name in ["numpy", "torch", "empty"]:
        copy = path(name + "_copy.safetensors")
        run("tools/interop/huggingface/copy_safetensors", path(name + ".safetensors"), copy)
        check(f"{name}.safetensors is copied byte by byte",
              filecmp.cmp(path(name + ".safetensors"), copy, shallow=False))
        if name == "numpy":
            back = safetensors.numpy.load_file(copy)
            check("their package reads what ours wrote", back.keys() == arrays.keys() and all(
                back[key].dtype == arrays[key].dtype and np.array_equal(back[key], arrays[key])
                for key in arrays))


# -------------------------------------------------------------------------- models that they made

def gpt2(**changes):
    options = dict(vocab_size=VOCABULARY, n_positions=32, n_embd=48, n_layer=2, n_head=4,
                   bos_token_id=0, eos_token_id=0)
    options.update(changes)
    return transformers.GPT2Config(**options)


def llama(kind=transformers.LlamaConfig, **changes):
    options = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80,
                   num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                   max_position_embeddings=32, bos_token_id=0, eos_token_id=0)
    options.update(changes)
    return kind(**options)


THEIR_MODELS = {
    "gpt2": gpt2(),
    "gpt2 untied, exact GELU": gpt2(tie_word_embeddings=False, activation_function="gelu",
                                    n_inner=100, layer_norm_epsilon=1e-6),
    "llama": llama(),
    "llama with biases": llama(num_key_value_heads=4, attention_bias=True, mlp_bias=True),
    "llama tied, one group, wide heads": llama(tie_word_embeddings=True, num_key_value_heads=1,
                                               head_dim=20, rope_theta=500000.0),
    "llama 3": llama(rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                       high_freq_factor=4.0,
                                       original_max_position_embeddings=8192),
                     max_position_embeddings=16384, rope_theta=500000.0),
    "llama, linear scaling": llama(rope_scaling=dict(rope_type="linear", factor=2.0)),
    "mistral": llama(transformers.MistralConfig, sliding_window=None, rms_norm_eps=1e-5),
    "qwen2": llama(transformers.Qwen2Config),
    "qwen2 tied": llama(transformers.Qwen2Config, tie_word_embeddings=True),
}


def make_model(config):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # biases and norms too, which start at 0 and 1
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def check_their_model(index, name, config):
    model = make_model(config)
    there, here, back = path(f"there{index}"), path(f"here{index}"), path(f"back{index}")
    shards = {"max_shard_size": "30KB"} if index % 2 == 1 else {}
    model.save_pretrained(there, **shards)
    run("tools/import_hf", "--save=" + here, there)
    check_logits(f"{name}: imported, the same logits", our_logits(here), their_logits(model))
    run("tools/export_hf", "--output=" + back, here)
    again = load(back)
    check(f"{name}: exported again, the same class", type(again) in (
        type(model), transformers.LlamaForCausalLM))
    check(f"{name}: exported again, the same bits", np.array_equal(
        their_logits(again), their_logits(model)))
    states = [dict(m.state_dict()) for m in (model, again)]
    check(f"{name}: exported again, the same weights", states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]))


def check_half_precision():
    for dtype in [torch.bfloat16, torch.float16]:
        for name in ["gpt2", "llama"]:
            label = f"{name} {dtype}".replace("torch.", "")
            there, here, back = (path(f"{label} {part}") for part in ["there", "here", "back"])
            make_model(THEIR_MODELS[name]).to(dtype).save_pretrained(there)
            run("tools/import_hf", "--save=" + here, there)
            run("tools/export_hf", "--output=" + back, here)
            check(f"{label}: the same file", filecmp.cmp(
                os.path.join(there, "model.safetensors"), os.path.join(back, "model.safetensors"),
                shallow=False))
            with open(os.path.join(back, "config.json")) as file:
                check(f"{label}: the dtype", json.load(file)["torch_dtype"] == str(dtype)[6:])


# ----------------------------------------------------------------------------- models that we made

OUR_MODELS = {
    "our gpt2": {},
    "our gpt2, untied, exact GELU": {"untie_embeddings_and_output_weights": "true",
                                     "activation_func": "gelu_erf"},
    "our llama": {"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": "true",
                  "disable_bias_linear": "true", "group_query_attention": "true",
                  "num_query_groups": "2", "kv_channels": "20",
                  "untie_embeddings_and_output_weights": "true"},
    "our qwen2, interleaved": {"position_embedding_type": "rope", "normalization": "RMSNorm",
                               "swiglu": "true", "disable_bias_linear": "true",
                               "add_qkv_bias": "true", "rotary_interleaved": "true"},
    "our llama 3 with biases": {"position_embedding_type": "rope", "normalization": "RMSNorm",
                                "swiglu": "true", "use_rope_scaling": "true",
                                "rotary_base": "500000", "group_query_attention": "true",
                                "num_query_groups": "1"},
}


def train(directory, changes):
    options = {"model.num_layers": 2, "model.hidden_size": 48, "model.num_attention_heads": 4,
               "model.seq_length": 32, "model.init_method_std": 0.2, "optimizer.lr": 0.01,
               "optimizer.lr_decay_style": "constant", "train.micro_batch_size": 2,
               "train.train_iters": 3, "train.eval_iters": 0, "data.mock_data": "true",
               "data.tokenizer_type": "NullTokenizer", "data.vocab_size": VOCABULARY,
               "checkpoint.save": directory}
    options.update({f"model.{key}": value for key, value in changes.items()})
    config = path("train.textproto")
    open(config, "w").close()
    run("megatron/train/pretrain_gpt", "--config=" + config,
        *[f"--set={key}={value}" for key, value in options.items()])


def continued(model, tokens, count):
    """What the library's own generate() makes of `tokens`, greedily, up to the end of the document."""
    inputs = torch.tensor([tokens])
    # Asked whether there are several GPUs, it would import what PyTorch 1.13 lacks under Python 3.11.
    output = model.eval().generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False,
                                   max_new_tokens=count, pad_token_id=0, synced_gpus=False)[0].tolist()
    end = model.generation_config.eos_token_id
    return output[:-1] if output[-1] == end and len(output) > len(tokens) else output


def check_our_model(index, name, changes):
    ours, there, again = path(f"ours{index}"), path(f"export{index}"), path(f"again{index}")
    train(ours, changes)
    run("tools/export_hf", "--output=" + there, ours)
    logits = our_logits(ours)
    check_logits(f"{name}: exported, the same logits", logits, their_logits(load(there)))
    text = run("tools/generate_text", "--temperature=0", "--tokens_to_generate=12",
               "--prompt=" + " ".join(map(str, TOKENS)), ours)
    check(f"{name}: exported, the same text", text.split() == list(
        map(str, continued(load(there), TOKENS, 12))), text)
    flags = ["--rotary_interleaved"] if "rotary_interleaved" in changes else []
    run("tools/import_hf", *flags, "--save=" + again, there)
    check(f"{name}: imported again, the same bits", np.array_equal(our_logits(again), logits))


def check_stories():
    """The way from text to a model that others use: their tokenizer and their generate() write what ours do."""
    stories, tokenizer, data = path("stories.jsonl"), path("tokenizer"), path("stories")
    ours, there, config = path("stories_run"), path("stories_hf"), path("stories.textproto")
    run("tools/make_stories", "--bytes=300000", "--output=" + stories)
    run("tools/train_tokenizer", "--input=" + stories, "--json_keys=text", "--vocab_size=600", "--output=" + tokenizer)
    flags = ["tokenizer_type=HuggingFaceTokenizer", "tokenizer_model=" + tokenizer]
    run("tools/preprocess_data", "--input=" + stories, "--output_prefix=" + data, "--append_eod", *["--" + f for f in flags])
    options = ["model.num_layers=2", "model.hidden_size=64", "model.num_attention_heads=4", "model.seq_length=64",
               "optimizer.lr=0.005", "train.micro_batch_size=8", "train.train_iters=60", "train.eval_iters=0",
               f"data.data_path={data}_text_document", *["data." + f for f in flags], "checkpoint.save=" + ours]
    open(config, "w").close()
    run("megatron/train/pretrain_gpt", "--config=" + config, *["--set=" + option for option in options])
    run("tools/export_hf", "--output=" + there, ours)
    model, theirs = load(there), transformers.AutoTokenizer.from_pretrained(there)
    for prompt in ["Once ", "Once Tom the fat owl took", "But 65 happy apes"]:
        text = run("tools/generate_text", "--temperature=0", "--tokens_to_generate=24", "--prompt=" + prompt, ours)
        tokens = continued(model, theirs(prompt)["input_ids"], 24)
        check(f"stories: '{prompt}' goes on alike",
              theirs.decode(tokens, clean_up_tokenization_spaces=False) == text[:-1], text)


def main():
    os.makedirs(WORK)
    check_files()
    for index, (name, config) in enumerate(THEIR_MODELS.items()):
        check_their_model(index, name, config)
    check_half_precision()
    for index, (name, changes) in enumerate(OUR_MODELS.items()):
        check_our_model(index, name, changes)
    check_stories()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
