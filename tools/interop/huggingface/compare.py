"""Compares import_hf, export_hf and our .safetensors files with Hugging Face's own packages.

  compare.py BAZEL_BIN WORK_DIRECTORY

Prints each check that fails, and "N passed, N failed".
"""

import filecmp
import json
import os

from common import TOKENS, VOCABULARY, WORK, check, finish, path, run  # sets the environment

import numpy as np
import safetensors.numpy
import safetensors.torch
import tokenizers
import torch
import transformers

ENCODER_TOKENS = [8, 2, 44, 13, 30, 21, 6, 19, 40, 12, 33]


def our_logits(checkpoint, vocabulary=VOCABULARY):
    run("tools/interop/huggingface/dump_logits", "--tokens=" + " ".join(map(str, TOKENS)),
        "--encoder_tokens=" + " ".join(map(str, ENCODER_TOKENS)),
        f"--vocab_size={vocabulary}", "--output=" + path("logits.npy"), checkpoint)
    return np.load(path("logits.npy"))


def their_logits(model):
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            output = model.eval()(input_ids=torch.tensor([ENCODER_TOKENS]), decoder_input_ids=tokens)
        elif "bert" in model.config.model_type:
            types = (torch.arange(len(TOKENS)) >= len(TOKENS) // 2).long()[None]
            output = model.eval()(tokens, token_type_ids=types)
        else:
            output = model.eval()(tokens)
    logits = output.logits if "logits" in output else output.prediction_logits
    return logits[0].float().numpy()


def check_logits(name, ours, theirs):
    difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
    check(name, ours.shape == theirs.shape and difference <= 1e-5, f"differs by {difference:.2g}")


def class_of(config):
    """Whose from_config and from_pretrained make the model that is trained."""
    if config.model_type == "mt5":
        return transformers.AutoModelForSeq2SeqLM
    if config.model_type in ("bert", "megatron-bert", "t5"):
        return transformers.AutoModelForPreTraining
    return transformers.AutoModelForCausalLM


def load(directory):
    config = transformers.AutoConfig.from_pretrained(directory)
    if config.architectures[0].endswith("ForMaskedLM"):
        return transformers.AutoModelForMaskedLM.from_pretrained(directory, torch_dtype="auto")
    return class_of(config).from_pretrained(directory, torch_dtype="auto")


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


def bert(kind=transformers.BertConfig, **changes):
    options = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80,
                   num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32)
    options.update(changes)
    return kind(**options)


def t5(kind=transformers.T5Config, **changes):
    options = dict(vocab_size=VOCABULARY, d_model=48, d_kv=20, d_ff=80, num_layers=2,
                   num_decoder_layers=3, num_heads=4, decoder_start_token_id=0)
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
    "mistral with a window": llama(transformers.MistralConfig, sliding_window=5),
    "qwen2": llama(transformers.Qwen2Config),
    "qwen2 tied": llama(transformers.Qwen2Config, tie_word_embeddings=True),
    "bert": bert(),
    "bert with GELU by tanh": bert(hidden_act="gelu_new"),
    "megatron-bert": bert(transformers.MegatronBertConfig),
    "t5 1.0": t5(),
    "t5 1.1": t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5 with few buckets": t5(relative_attention_num_buckets=8, relative_attention_max_distance=12),
    "t5 with SiLU": t5(feed_forward_proj="silu", num_decoder_layers=1),
    "t5 with gated SiLU": t5(feed_forward_proj="gated-silu"),
    "t5 with GELU": t5(feed_forward_proj="gelu"),
    "t5 with GELU by tanh": t5(feed_forward_proj="gelu_new"),
    "t5 with gated ReLU": t5(feed_forward_proj="gated-relu"),
    "mt5": t5(transformers.MT5Config),
}


def make_model(config):
    torch.manual_seed(1)
    model = class_of(config).from_config(config)
    # Biases and norms, which start at 0 and 1, are changed too. T5's attention scores are not
    # scaled: with larger weights their softmax would amplify rounding errors.
    deviation = 0.05 if config.model_type in ("t5", "mt5") else 0.2
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * deviation)
    return model


def check_their_model(index, name, config):
    model = make_model(config)
    there, here, back = path(f"there{index}"), path(f"here{index}"), path(f"back{index}")
    shards = {"max_shard_size": "30KB"} if index % 2 == 1 else {}
    model.save_pretrained(there, **shards)
    run("tools/import_hf", "--save=" + here, there)
    check_logits(f"{name}: imported, the same logits", our_logits(here), their_logits(model))
    family = ["--model_type=mt5"] if config.model_type == "mt5" else []
    run("tools/export_hf", *family, "--output=" + back, here)
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
        for name in ["gpt2", "llama", "bert", "t5 1.1"]:
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


def words_tokenizer(kind):
    """A tokenizer.json of that kind, as T5 and BERT have theirs; its words are w0, w1, ..."""
    if kind == "bert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = special + [f"w{i}" for i in range(VOCABULARY - len(special))]
        fast = tokenizers.Tokenizer(tokenizers.models.WordPiece(
            {word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        fast.normalizer = tokenizers.normalizers.BertNormalizer()
        fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        fast.decoder = tokenizers.decoders.WordPiece()
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=fast, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
            sep_token="[SEP]", mask_token="[MASK]")
    sentinels = [f"<extra_id_{i}>" for i in range(3)]
    pieces = ["<pad>", "</s>", "<unk>", *[f"\u2581w{i}" for i in range(VOCABULARY - 6)]]
    fast = tokenizers.Tokenizer(tokenizers.models.Unigram(
        [(piece, -1.0 - i) for i, piece in enumerate(pieces)], 2, False))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    fast.decoder = tokenizers.decoders.Metaspace()
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)])
    fast.add_special_tokens(sentinels)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", unk_token="<unk>", eos_token="</s>",
        additional_special_tokens=sentinels)


def check_restored():
    """What generate_text writes with a T5 from there is what generate() does, there and back."""
    model, words = make_model(THEIR_MODELS["t5 1.1"]), words_tokenizer("t5")
    there, here, back = (path("restored " + part) for part in ["there", "here", "back"])
    model.save_pretrained(there)
    words.save_pretrained(there)
    run("tools/import_hf", "--save=" + here, there)
    run("tools/export_hf", "--output=" + back, here)
    for prompt in ["w1 w2 <extra_id_0> w7", "w30 w4", "w5 <extra_id_0> w11 <extra_id_1> w3 w3 w8"]:
        text = run("tools/generate_text", "--temperature=0", "--tokens_to_generate=12",
                   "--prompt=" + prompt, here).split("\n")[0]
        inputs = torch.tensor([words(prompt)["input_ids"]])  # including </s>
        for label, generator in (("theirs", model), ("ours exported", load(back))):
            ids = generator.eval().generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False,
                                            max_new_tokens=12, synced_gpus=False)[0].tolist()[1:]
            expected = words.decode(ids[:-1] if ids[-1] == 1 else ids)
            check(f"t5: '{prompt}' is answered alike by {label}", text.split() == expected.split(),
                  f"{text} / {expected}")
    # Without a tokenizer their decoder's text begins with padding, which is 0.
    run("tools/import_hf", "--no_tokenizer", "--save=" + path("no tokenizer"), there)
    run("tools/export_hf", "--output=" + path("no tokenizer back"), path("no tokenizer"))
    again = load(path("no tokenizer back"))
    check("t5: without a tokenizer, the same text", again.eval().generate(
        inputs, do_sample=False, max_new_tokens=12, synced_gpus=False)[0].tolist()[1:] == ids)


def check_filled():
    """What fill_mask guesses with a BERT from there are its likeliest words."""
    for name in ["bert", "megatron-bert"]:
        model, words = make_model(THEIR_MODELS[name]), words_tokenizer("bert")
        there, here = path(f"filled {name} there"), path(f"filled {name} here")
        model.save_pretrained(there)
        words.save_pretrained(there)
        run("tools/import_hf", "--save=" + here, there)
        text = "w3 w17 [MASK] w20 [MASK] w9"
        lines = run("tools/fill_mask", "--text=" + text, "--top_k=3", here).strip().split("\n")
        ids = [2, *words(text, add_special_tokens=False)["input_ids"], 3]
        with torch.no_grad():
            logits = model.eval()(torch.tensor([ids])).prediction_logits[0]
        for gap, at in enumerate(i for i, token in enumerate(ids) if token == 4):
            top = logits[at].softmax(-1).topk(3)
            expected = [part for p, i in zip(*[t.tolist() for t in top])
                        for part in (words.convert_ids_to_tokens(i), "%.2f" % p)]
            check(f"{name}: gap {gap} is filled alike", lines[1 + gap].split()[1:] == expected,
                  f"{lines[1 + gap]} / {expected}")


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


OUR_OTHERS = {
    "our bert": {"post_norm": "true"},
    "our megatron-bert without sentence order": {"bert_binary_head": "false", "num_tokentypes": 2},
    "our bert with GELU by tanh": {"post_norm": "true", "activation_func": "gelu_tanh", "openai_gelu": "true"},
    "our megatron-bert without token types": {"bert_binary_head": "false"},
    "our t5 1.0": {"activation_func": "relu", "output_scale": 48 ** -0.5},
    "our t5 1.1": {"gated_linear_unit": "true", "untie_embeddings_and_output_weights": "true"},
}


def check_our_other(index, name, changes):
    """BERT and T5, trained for some steps on stories."""
    ours, there, again = path(f"other{index}"), path(f"other_hf{index}"), path(f"other_again{index}")
    kind = "bert" if "bert" in name else "t5"
    options = {"model.hidden_size": 48, "model.num_attention_heads": 4, "model.init_method_std": 0.2,
               "optimizer.lr": 0.01, "optimizer.lr_decay_style": "constant", "train.micro_batch_size": 2,
               "train.train_iters": 3, "train.eval_iters": 0, "data.stories.num_bytes": 100000,
               "data.tokenizer_type": "StoryWordPiece", "checkpoint.save": ours}
    if kind == "bert":
        options.update({"model.model_type": "bert", "model.num_layers": 2, "model.seq_length": 32,
                        "model.activation_func": "gelu_erf"})
    else:
        options.update({"model.model_type": "t5", "model.encoder_num_layers": 2, "model.decoder_num_layers": 2,
                        "model.encoder_seq_length": 32, "model.decoder_seq_length": 32,
                        "model.position_embedding_type": "relative", "model.normalization": "RMSNorm",
                        "model.disable_bias_linear": "true", "model.softmax_scale": 1,
                        "model.add_output_bias": "false", "data.vocab_extra_ids": 10})
    options.update({f"model.{key}": value for key, value in changes.items()})
    config = path("train.textproto")
    open(config, "w").close()
    run(f"megatron/train/pretrain_{kind}", "--config=" + config,
        *[f"--set={key}={value}" for key, value in options.items()])
    run("tools/export_hf", "--output=" + there, ours)
    model = load(there)
    logits = our_logits(ours, model.config.vocab_size)
    check_logits(f"{name}: exported, the same logits", logits, their_logits(model))
    run("tools/import_hf", "--save=" + again, there)
    check(f"{name}: imported again, the same bits",
          np.array_equal(our_logits(again, model.config.vocab_size), logits))


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
    # If transformers checked for several GPUs, it would import a module that PyTorch 1.13 lacks
    # under Python 3.11.
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
    for index, (name, changes) in enumerate(OUR_OTHERS.items()):
        check_our_other(index, name, changes)
    check_restored()
    check_filled()
    check_stories()
    finish()


main()
