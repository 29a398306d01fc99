"""Checks import_megatron: small random models of Hugging Face become checkpoints as Megatron-LM and
Megatron-DeepSpeed write them, by PyTorch's own distributed checkpoints and torch.save; imported and
exported again they must be the same, bit for bit, and give the same logits.

  compare.py BAZEL_BIN WORK_DIRECTORY
"""

import argparse
import json
import os
import shutil

from common import TOKENS, VOCABULARY, WORK, check, finish, path, refused, run

import numpy as np
import torch
import transformers

import dcp

PADDED = 128


def llama(**changes):
    options = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
                   num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                   bos_token_id=0, eos_token_id=0, pad_token_id=None, rms_norm_eps=1e-5)
    options.update(changes)
    return transformers.LlamaConfig(**options)


def make_model(config, dtype=torch.float32):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model.to(dtype).eval()


def arguments_of(config, dtype=torch.float32):
    """Megatron's arguments of the model, and some that say nothing about it."""
    return dict(num_layers=config.num_hidden_layers, hidden_size=config.hidden_size,
                ffn_hidden_size=config.intermediate_size,
                num_attention_heads=config.num_attention_heads, group_query_attention=True,
                num_query_groups=config.num_key_value_heads, kv_channels=None, seq_length=32,
                max_position_embeddings=config.max_position_embeddings,
                position_embedding_type="rope", rotary_base=10000, rotary_percent=1.0,
                normalization="RMSNorm", norm_epsilon=config.rms_norm_eps, swiglu=True,
                add_bias_linear=False, untie_embeddings_and_output_weights=True,
                hidden_dropout=0.0, attention_dropout=0.0, init_method_std=0.02,
                vocab_size=VOCABULARY, padded_vocab_size=PADDED, bf16=dtype == torch.bfloat16,
                fp16=False, params_dtype=dtype, num_experts=None, qk_layernorm=False,
                tensor_model_parallel_size=2, rank=0, lr=1e-4, window_size=None,
                data_path=["a", "b"], dataloader_type="single")


def padded(weight):
    rows = torch.zeros(PADDED - VOCABULARY, weight.shape[1], dtype=weight.dtype)
    return torch.cat([weight, rows])


def qkv(state, layer, config):
    """[queries of the group, key, value] of each group."""
    width = config.hidden_size // config.num_attention_heads
    groups = config.num_key_value_heads
    parts = [state[f"model.layers.{layer}.self_attn.{name}_proj.weight"].reshape(
        groups, -1, width, config.hidden_size) for name in "qkv"]
    return torch.cat(parts, dim=1).reshape(-1, config.hidden_size)


def of_layers(state, config):
    """Megatron's tensors of one layer each."""
    layers = []
    for i in range(config.num_hidden_layers):
        theirs = f"model.layers.{i}."
        layer = {
            "self_attention.linear_qkv.layer_norm_weight": state[theirs + "input_layernorm.weight"],
            "self_attention.linear_qkv.weight": qkv(state, i, config),
            "self_attention.linear_proj.weight": state[theirs + "self_attn.o_proj.weight"],
        }
        norm = state[theirs + "post_attention_layernorm.weight"]
        if theirs + "mlp.gate_proj.weight" in state:
            layer["mlp.linear_fc1.layer_norm_weight"] = norm
            layer["mlp.linear_fc1.weight"] = torch.cat([
                state[theirs + "mlp.gate_proj.weight"], state[theirs + "mlp.up_proj.weight"]])
            layer["mlp.linear_fc2.weight"] = state[theirs + "mlp.down_proj.weight"]
        else:
            moe = theirs + "block_sparse_moe."
            experts = range(config.num_local_experts)
            layer["pre_mlp_layernorm.weight"] = norm
            layer["mlp.router.weight"] = state[moe + "gate.weight"]
            layer["mlp.experts.experts.linear_fc1.weight"] = torch.stack([torch.cat([
                state[f"{moe}experts.{e}.w1.weight"], state[f"{moe}experts.{e}.w3.weight"]])
                for e in experts])
            layer["mlp.experts.experts.linear_fc2.weight"] = torch.stack([
                state[f"{moe}experts.{e}.w2.weight"] for e in experts])
        layers.append(layer)
    return layers


def megatron_state(state, config, together):
    """Megatron's keys. Layers that are alike are one tensor, whose first dim they are."""
    tensors = {"embedding.word_embeddings.weight": padded(state["model.embed_tokens.weight"]),
               "decoder.final_layernorm.weight": state["model.norm.weight"],
               "output_layer.weight": padded(state["lm_head.weight"])}
    layers = of_layers(state, config)
    for name in layers[0]:
        if together:
            tensors[f"decoder.layers.{name}"] = torch.stack([layer[name] for layer in layers])
        else:
            for i, layer in enumerate(layers):
                tensors[f"decoder.layers.{i}.{name}"] = layer[name]
    return tensors


# Parts as those of 3 pipeline stages and 2 tensor-parallel ranks.
PARTS = {"decoder.layers.self_attention.linear_qkv.weight": (3, 2, 1),
         "decoder.layers.self_attention.linear_proj.weight": (3, 1, 2),
         "decoder.layers.mlp.linear_fc1.weight": (3, 4, 1),
         "decoder.layers.mlp.linear_fc2.weight": (3, 1, 2),
         "decoder.layers.mlp.linear_fc1.layer_norm_weight": (3, 1),
         "decoder.layers.mlp.experts.experts.linear_fc1.weight": (3, 2, 2, 1),
         "decoder.layers.mlp.experts.experts.linear_fc2.weight": (3, 4, 1, 2),
         "embedding.word_embeddings.weight": (2, 1), "output_layer.weight": (2, 1)}


def cut(tensors):
    return {key: parts for key, parts in PARTS.items() if key in tensors}


def check_same(name, checkpoint, model, *flags):
    here, back = path(name + " here"), path(name + " back")
    run("tools/torch_checkpoint/import_megatron", *flags, "--save=" + here, checkpoint)
    run("tools/export_hf", "--output=" + back, here)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        back, torch_dtype="auto", attn_implementation="eager").eval()
    check(f"{name}: the same class", type(again) is type(model))
    ours, theirs = again.state_dict(), model.state_dict()
    check(f"{name}: the same weights, bit for bit", ours.keys() == theirs.keys() and all(
        torch.equal(ours[key], theirs[key]) for key in theirs))
    run("tools/interop/huggingface/dump_logits", "--tokens=" + " ".join(map(str, TOKENS)),
        f"--vocab_size={VOCABULARY}", "--output=" + path("logits.npy"), here)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].float().numpy()
    difference = np.abs(np.load(path("logits.npy")) - expected).max() / np.abs(expected).max()
    bound = 1e-5 if model.dtype == torch.float32 else 2e-2
    check(f"{name}: the same logits", difference <= bound, f"differ by {difference:.2g}")


def check_torch_dist():
    config = llama(tie_word_embeddings=False)
    model = make_model(config)
    for name, together in [("torch_dist", True), ("torch_dist, layers of their own", False)]:
        tensors = megatron_state(model.state_dict(), config, together)
        tensors["optimizer.state.exp_avg.decoder.final_layernorm.weight"] = torch.ones(48)
        dcp.save(path(name, "iter_0000007"), tensors, arguments_of(config), cut(tensors))
        with open(path(name, "latest_checkpointed_iteration.txt"), "w") as file:
            file.write("7")
        check_same(name, path(name), model)
    check_same("torch_dist by its iteration", path("torch_dist", "iter_0000007"), model)


def check_half():
    """A bf16 model with masters of its own, which the checkpoint here must have."""
    config = llama(tie_word_embeddings=False)
    masters = make_model(config)
    model = make_model(config, torch.bfloat16)
    tensors = megatron_state(model.state_dict(), config, True)
    tensors.update({"optimizer.state.fp32_param." + key: tensor for key, tensor in megatron_state(
        masters.state_dict(), config, True).items()})
    dcp.save(path("half"), tensors, arguments_of(config, torch.bfloat16), cut(tensors))
    check_same("torch_dist in bf16", path("half"), model)


def saved(directory):
    """The tensors in fp32 of a checkpoint of ours with one shard."""
    directory = os.path.join(directory, "iter_0000007")
    with open(os.path.join(directory, "manifest.json")) as file:
        manifest = json.load(file)
    with open(os.path.join(directory, manifest["shards"][0]["file"]), "rb") as file:
        data = file.read()
    tensors = {}
    for tensor in manifest["tensors"]:
        if tensor["dtype"] != "fp32":
            continue
        values = np.zeros(tensor["shape"], np.float32)
        for piece in tensor["pieces"]:
            place = tuple(slice(start, start + extent)
                          for start, extent in zip(piece["start"], piece["extent"]))
            values[place] = np.frombuffer(data, np.float32, piece["bytes"] // 4,
                                          piece["offset"]).reshape(piece["extent"])
        tensors[tensor["name"]] = torch.from_numpy(values)
    return tensors


def check_states():
    """Masters and moments of a run that goes on, in both forms of the distributed optimizer's."""
    config = llama(tie_word_embeddings=False)
    model = make_model(config, torch.bfloat16)
    weights = megatron_state(model.state_dict(), config, True)
    arguments = arguments_of(config, torch.bfloat16)
    arguments.update(micro_batch_size=1, global_batch_size=8, train_iters=100, optimizer="adam",
                     consumed_train_samples=56, consumed_valid_samples=0)
    more = {"optimizer": {"optimizer": {"param_groups": [{"step": 7}, {"step": 7}]}},
            "opt_param_scheduler": {"num_steps": 56}}
    for form, master in [("fully_sharded_model_space", "fp32_param"),
                         ("fully_reshardable", "param")]:
        states = {f"optimizer.state.{state}.{key}": torch.rand(weight.shape)
                  for state in [master, "exp_avg", "exp_avg_sq"] for key, weight in weights.items()}
        parts = {key: PARTS.get(key.split(".", 3)[3], (1,) * state.dim())
                 for key, state in states.items()}
        flat = parts if form == "fully_sharded_model_space" else {}
        dcp.save(path(form), {**weights, **states}, arguments, {**cut(weights), **parts}, flat,
                 more)
        here = path(form + " here")
        run("tools/torch_checkpoint/import_megatron", "--continue_run", "--save=" + here,
            path(form))
        ours = saved(here)
        same = True
        for key, state in states.items():
            key = key.replace(".param.", ".fp32_param.")
            if ".layers." not in key:
                same &= torch.equal(ours[key], state)
                continue
            for i in range(config.num_hidden_layers):
                own = ours[key.replace(".layers.", f".layers.{i}.")]
                same &= torch.equal(own.reshape(-1), state[i].reshape(-1))
        check(f"{form}: the same masters and moments, bit for bit", same)


def check_experts():
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0,
        eos_token_id=0, pad_token_id=None, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=None, rope_theta=10000.0, rms_norm_eps=1e-5)
    model = make_model(config)
    tensors = megatron_state(model.state_dict(), config, True)
    arguments = arguments_of(config)
    arguments.update(num_experts=4, moe_router_topk=2, moe_layer_freq=1,
                     moe_router_load_balancing_type="aux_loss")
    dcp.save(path("experts"), tensors, arguments, cut(tensors))
    check_same("torch_dist with experts", path("experts"), model)


def mixer(state, theirs, config):
    """Megatron's tensors of a Mamba-2 mixer, whose projection and convolution it keeps in parts."""
    inner, states = config.mamba_expand * config.hidden_size, config.mamba_d_state
    tensors = {"mixer.in_proj.layer_norm_weight": state[theirs + "input_layernorm.weight"]}
    theirs += "mamba."
    for name, parts in [("in_proj.weight", dict(z=inner, x=inner, B=states, C=states,
                                                dt=config.mamba_n_heads)),
                        ("conv1d.weight", dict(x=inner, B=states, C=states)),
                        ("conv1d.bias", dict(x=inner, B=states, C=states))]:
        cuts = torch.split(state[theirs + name], list(parts.values()))
        tensors.update({f"mixer.{name}.{part}": cut for part, cut in zip(parts, cuts)})
    for name in ["dt_bias", "A_log", "D", "norm.weight", "out_proj.weight"]:
        tensors["mixer." + name] = state[theirs + name]
    return tensors


def check_hybrid():
    config = transformers.BambaConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0,
        eos_token_id=0, pad_token_id=None, attn_layer_indices=[1], mamba_n_heads=6,
        mamba_d_head=16, mamba_n_groups=1, mamba_d_state=12, mamba_chunk_size=4)
    model = make_model(config)
    state = model.state_dict()
    tensors = {"embedding.word_embeddings.weight": padded(state["model.embed_tokens.weight"]),
               "decoder.final_norm.weight": state["model.final_layernorm.weight"],
               "output_layer.weight": padded(state["lm_head.weight"])}
    for i in range(config.num_hidden_layers):
        theirs = f"model.layers.{i}."
        if i in config.attn_layer_indices:
            layer = {"self_attention.linear_qkv.layer_norm_weight":
                     state[theirs + "input_layernorm.weight"],
                     "self_attention.linear_qkv.weight": qkv(state, i, config),
                     "self_attention.linear_proj.weight": state[theirs + "self_attn.o_proj.weight"]}
        else:
            layer = mixer(state, theirs, config)
        tensors.update({f"decoder.layers.{2 * i}.{name}": value for name, value in layer.items()})
        mlp, theirs = f"decoder.layers.{2 * i + 1}.mlp.", theirs + "feed_forward."
        tensors[mlp + "linear_fc1.layer_norm_weight"] = state[
            f"model.layers.{i}.pre_ff_layernorm.weight"]
        tensors[mlp + "linear_fc1.weight"] = torch.cat([
            state[theirs + "gate_proj.weight"], state[theirs + "up_proj.weight"]])
        tensors[mlp + "linear_fc2.weight"] = state[theirs + "down_proj.weight"]
    arguments = arguments_of(config)
    arguments.update(num_layers=6, is_hybrid_model=True, hybrid_override_pattern="M-*-M-",
                     rotary_percent=0.5, mamba_state_dim=12, mamba_head_dim=16, mamba_num_groups=1,
                     mamba_num_heads=6)
    # Parts as those of 2 tensor-parallel ranks.
    parts = {name: (2,) + (1,) * (tensor.dim() - 1) for name, tensor in tensors.items()
             if ".mixer.in_proj.weight." in name or ".mixer.conv1d." in name}
    dcp.save(path("hybrid"), tensors, arguments, parts)
    check_same("torch_dist of a hybrid", path("hybrid"), model)


def check_configuration():
    """Without arguments in the checkpoint a configuration says what the model is."""
    config = llama(tie_word_embeddings=False)
    model = make_model(config)
    tensors = megatron_state(model.state_dict(), config, True)
    dcp.save(path("bare"), tensors, {}, cut(tensors))
    said = refused("tools/torch_checkpoint/import_megatron", "--save=" + path("none"), path("bare"))
    check("without arguments: refused", said is not None and "number of layers" in said, said)
    check_same("with a configuration", path("bare"), model,
               "--config=" + path("torch_dist here", "config.textproto"))


def check_refused():
    config = llama(tie_word_embeddings=False)
    tensors = megatron_state(make_model(config).state_dict(), config, True)
    cases = {
        "has no place": {**tensors, "decoder.layers.self_attention.q_layernorm.weight":
                         torch.ones(3, 12)},
        "is missing": {key: tensor for key, tensor in tensors.items()
                       if key != "decoder.final_layernorm.weight"},
        "has not the weights": {**tensors, "decoder.layers.mlp.linear_fc2.weight":
                                torch.ones(3, 80, 48)},
    }
    for reason, changed in cases.items():
        directory = path("refused " + reason)
        dcp.save(directory, changed, arguments_of(config))
        said = refused("tools/torch_checkpoint/import_megatron", "--save=" + path("none"), directory)
        check(f"refused: {reason}", said is not None and reason in said, said)
    for argument in ["qk_l2_norm"]:
        directory = path("refused " + argument)
        dcp.save(directory, tensors, {**arguments_of(config), argument: True})
        said = refused("tools/torch_checkpoint/import_megatron", "--save=" + path("none"), directory)
        check(f"refused: {argument}", said is not None and argument.replace("_", "-") in said, said)
    check("nothing is written", not os.path.exists(path("none")))


class Danger:
    """What Python's pickle would call."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (self.file, "w"))


def check_nothing_is_executed():
    config = llama(tie_word_embeddings=False)
    tensors = megatron_state(make_model(config).state_dict(), config, True)
    directory, touched = path("danger"), path("touched")
    dcp.save(directory, tensors, arguments_of(config))
    torch.save({"args": argparse.Namespace(**arguments_of(config)), "more": Danger(touched)},
               os.path.join(directory, "common.pt"))
    run("tools/torch_checkpoint/import_megatron", "--save=" + path("danger here"), directory)
    check("a pickle's calls are not made", not os.path.exists(touched))
    shutil.rmtree(path("danger here"))


# Names of Megatron-DeepSpeed's GPT, without pipeline stages.
DEEPSPEED = {"self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
             "self_attention.linear_qkv.weight": "self_attention.query_key_value.weight",
             "self_attention.linear_proj.weight": "self_attention.dense.weight",
             "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
             "mlp.linear_fc1.weight": "mlp.dense_h_to_4h.weight",
             "mlp.linear_fc2.weight": "mlp.dense_4h_to_h.weight"}


def save_universal(directory, state, config, dtype, stages):
    """As ds_to_universal.py does: a directory for each parameter, without padding."""
    tensors = {}
    for i, layer in enumerate(of_layers(state, config)):
        prefix = f"{i + 3}." if stages else f"language_model.encoder.layers.{i}."
        tensors.update({prefix + DEEPSPEED[name]: tensor for name, tensor in layer.items()})
    others = [("model.embed_tokens.weight", "language_model.embedding.word_embeddings.weight",
               "1.word_embeddings.weight"),
              ("model.norm.weight", "language_model.encoder.final_layernorm.weight", "7.weight"),
              ("lm_head.weight", "language_model.output_layer.weight", "8.lm_head.weight")]
    for theirs, whole, staged in others:
        tensors[staged if stages else whole] = state[theirs]
    for name, tensor in tensors.items():
        folder = os.path.join(directory, "zero", name)
        os.makedirs(folder)
        for kind in ["fp32", "exp_avg", "exp_avg_sq"]:
            torch.save({"param": tensor.float(), "cat_dim": 0},
                       os.path.join(folder, kind + ".pt"))
    os.makedirs(os.path.join(directory, "zero", "optimizer_state.pt"), exist_ok=True)
    arguments = arguments_of(config, dtype)
    del arguments["norm_epsilon"], arguments["position_embedding_type"]
    arguments.update(layernorm_epsilon=config.rms_norm_eps, normalization="rmsnorm",
                     use_rotary_position_embeddings=True, vocab_size=None, num_experts=[1],
                     rope_theta=arguments.pop("rotary_base"))
    torch.save({"args": argparse.Namespace(**arguments), "module": {}},
               os.path.join(directory, "mp_rank_00_model_states.pt"))


def check_universal():
    config = llama(tie_word_embeddings=False)
    for dtype in [torch.float32, torch.bfloat16]:
        model = make_model(config, dtype)
        masters = make_model(config)
        for stages in [False, True]:
            name = f"universal in {dtype}, {'with' if stages else 'without'} stages"
            save_universal(path(name), masters.state_dict(), config, dtype, stages)
            check_same(name, path(name), model)


def main():
    os.makedirs(WORK)
    check_torch_dist()
    check_half()
    check_states()
    check_experts()
    check_hybrid()
    check_configuration()
    check_refused()
    check_nothing_is_executed()
    check_universal()
    finish()


main()
