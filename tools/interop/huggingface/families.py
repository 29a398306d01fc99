"""Compares families of decoders with Hugging Face's own package, by import_hf and export_hf: files,
weights, logits, gradients, and what generate() writes.

  families.py BAZEL_BIN WORK_DIRECTORY

The models are made here, small and random, in fp32. Families that the installed transformers does
not have are left out, with a line that says so. Prints each check that fails, and
"N passed, N failed".
"""

import contextlib
import json
import os

from common import TOKENS, VOCABULARY, WORK, check, finish, path, refused, run

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers.modeling_utils import no_init_weights

TOLERANCE = 1e-5  # of a tensor's largest value


def config(name, **changes):
    """The configuration of a family, or None where this transformers does not have it."""
    kind = getattr(transformers, name, None)
    if kind is None:
        return None
    options = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80,
                   num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                   max_position_embeddings=32, bos_token_id=0, eos_token_id=0, pad_token_id=None)
    options.update(changes)
    return kind(**options)


YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=1.0,
            beta_slow=0.25)

LONGROPE = dict(type="longrope", short_factor=[1.0, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 2.5],
                long_factor=[1.0, 1.5, 2.0, 4.0, 8.5, 16.0, 30.0, 64.0])

LATENT = dict(num_key_value_heads=4, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
              kv_lora_rank=20, moe_intermediate_size=24, n_shared_experts=2,
              first_k_dense_replace=1)

MAMBA = dict(mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=12, mamba_expand=2)

DELTA = dict(linear_key_head_dim=6, linear_value_head_dim=10, linear_num_key_heads=2,
             linear_num_value_heads=6)

MULTIPLIERS = dict(embedding_multiplier=12.0, logits_scaling=6.0, residual_multiplier=0.22,
                   attention_multiplier=0.35)

GRANITE = dict(MAMBA, **MULTIPLIERS, shared_intermediate_size=40)

NO_DROPOUT = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)

# Experts of DeepSeek V3 behind attention of other families.
BALANCED = dict(n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1,
                n_shared_experts=1, moe_intermediate_size=24, first_k_dense_replace=1,
                norm_topk_prob=True, routed_scaling_factor=1.5)

# Norms of heads' small outputs magnify rounding: with an epsilon of 1e-6 fp32 gradients of transformers
# itself are 2.5e-4 from those in double.
QWEN_NEXT = dict(DELTA, head_dim=16, moe_intermediate_size=24, shared_expert_intermediate_size=40,
                 num_experts=6, num_experts_per_tok=3, rms_norm_eps=0.01)


def layers(letters, **names):
    """The entries of layer_types, or of what is in its place, that the letters stand for."""
    return [names[letter] for letter in letters]


MODELS = {
    "llama with yarn": config("LlamaConfig", rope_scaling=dict(YARN)),
    "llama with yarn and mscale": config("LlamaConfig", rope_scaling=dict(
        YARN, mscale=0.7, mscale_all_dim=0.3, truncate=False)),
    "mistral with a window": config("MistralConfig", sliding_window=5),
    "qwen3": config("Qwen3Config", head_dim=20),
    "qwen3 with yarn": config("Qwen3Config", head_dim=12, rope_scaling=dict(YARN)),
    "mixtral": config("MixtralConfig", num_local_experts=4),
    "mixtral with a window, three of five": config("MixtralConfig", num_local_experts=5,
                                                   num_experts_per_tok=3, sliding_window=6),
    "qwen2_moe": config("Qwen2MoeConfig", num_experts=4, num_experts_per_tok=2,
                        moe_intermediate_size=24, shared_expert_intermediate_size=40,
                        mlp_only_layers=[1]),
    "qwen2_moe normalized": config("Qwen2MoeConfig", num_experts=4, num_experts_per_tok=2,
                                   moe_intermediate_size=24, shared_expert_intermediate_size=40,
                                   norm_topk_prob=True, decoder_sparse_step=2),
    "qwen3_moe": config("Qwen3MoeConfig", num_experts=6, num_experts_per_tok=3, head_dim=20,
                        moe_intermediate_size=24, norm_topk_prob=True),
    "qwen3_moe not normalized": config("Qwen3MoeConfig", num_experts=6, num_experts_per_tok=3,
                                       head_dim=12, moe_intermediate_size=24,
                                       tie_word_embeddings=True),
    "gpt_oss": config("GptOssConfig", num_local_experts=4, num_experts_per_tok=2, head_dim=16,
                      sliding_window=6, rope_scaling=dict(YARN, truncate=False)),
    "gpt_oss, all layers with windows": config(
        "GptOssConfig", num_local_experts=4, num_experts_per_tok=4, head_dim=16, sliding_window=6,
        layer_types=["sliding_attention"] * 3),
    "gemma3": config("Gemma3TextConfig", head_dim=16, query_pre_attn_scalar=24, sliding_window=5,
                     layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                     pad_token_id=None),
    "gemma3, scaled": config("Gemma3TextConfig", head_dim=12, query_pre_attn_scalar=12,
                             sliding_window=5, tie_word_embeddings=False,
                             rope_scaling=dict(rope_type="linear", factor=8.0),
                             layer_types=["sliding_attention", "full_attention",
                                          "full_attention"]),
    "gemma2": config("Gemma2Config", head_dim=16, query_pre_attn_scalar=24, sliding_window=5,
                     attn_logit_softcapping=1.5, final_logit_softcapping=2.5, pad_token_id=None),
    "gemma2, logits capped alone": config(
        "Gemma2Config", head_dim=12, query_pre_attn_scalar=12, sliding_window=5,
        attn_logit_softcapping=None, final_logit_softcapping=4.0, tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "olmo2": config("Olmo2Config"),
    "olmo2, a key for each head": config("Olmo2Config", num_key_value_heads=4,
                                         tie_word_embeddings=True),
    "olmo3": config("Olmo3Config", sliding_window=5, layer_types=layers(
        "sfs", s="sliding_attention", f="full_attention")),
    "olmo3 with yarn, wide heads": config(
        "Olmo3Config", sliding_window=5, head_dim=20, rope_scaling=dict(YARN), layer_types=layers(
            "ssf", s="sliding_attention", f="full_attention")),
    "mamba2": config("Mamba2Config", num_heads=6, head_dim=16, n_groups=1, state_size=12,
                     layer_norm_epsilon=1e-6),
    "mamba2, three times as wide": config(
        "Mamba2Config", num_heads=12, head_dim=12, n_groups=1, state_size=8, expand=3),
    "mamba2, three groups": config("Mamba2Config", num_heads=6, head_dim=16, n_groups=3,
                                   state_size=12, layer_norm_epsilon=1e-6),
    "bamba, two groups": config("BambaConfig", **dict(MAMBA, mamba_n_groups=2),
                                attn_layer_indices=[1]),
    "granitemoehybrid, two groups": config(
        "GraniteMoeHybridConfig", **dict(GRANITE, mamba_n_groups=2), num_local_experts=4,
        num_experts_per_tok=2, layer_types=layers("mam", m="mamba", a="attention")),
    "bamba": config("BambaConfig", **MAMBA, attn_layer_indices=[1]),
    "bamba, two of three with attention": config(
        "BambaConfig", **dict(MAMBA, mamba_n_heads=12, mamba_d_head=8), attn_layer_indices=[0, 2],
        tie_word_embeddings=True, rms_norm_eps=1e-6),
    "granitemoehybrid": config("GraniteMoeHybridConfig", **GRANITE, num_local_experts=0,
                               position_embedding_type="rope", layer_types=layers(
                                   "mam", m="mamba", a="attention")),
    "granitemoehybrid with experts, no positions": config(
        "GraniteMoeHybridConfig", **GRANITE, num_local_experts=5, num_experts_per_tok=3,
        layer_types=layers("mma", m="mamba", a="attention"), tie_word_embeddings=True),
    "granitemoehybrid without mixers": config(
        "GraniteMoeHybridConfig", **GRANITE, num_local_experts=4, num_experts_per_tok=2,
        position_embedding_type="rope", layer_types=["attention"] * 3),
    "qwen3_next": config("Qwen3NextConfig", **QWEN_NEXT, layer_types=layers(
        "lfl", l="linear_attention", f="full_attention")),
    "qwen3_next, a layer without experts, not normalized": config(
        "Qwen3NextConfig", **dict(QWEN_NEXT, head_dim=20, linear_conv_kernel_dim=3),
        partial_rotary_factor=0.5, mlp_only_layers=[0], norm_topk_prob=False, num_hidden_layers=2,
        layer_types=layers("lf", l="linear_attention", f="full_attention")),
    "olmoe": config("OlmoeConfig", num_experts=6, num_experts_per_tok=3),
    "olmoe normalized, with yarn": config(
        "OlmoeConfig", num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
        num_key_value_heads=4, rope_scaling=dict(YARN)),
    "deepseek_v2": config("DeepseekV2Config", **LATENT, q_lora_rank=None, n_routed_experts=4,
                          num_experts_per_tok=2, topk_method="greedy", n_group=1, topk_group=1,
                          routed_scaling_factor=1.5),
    "deepseek_v2 with groups": config(
        "DeepseekV2Config", **LATENT, q_lora_rank=28, n_routed_experts=8, num_experts_per_tok=3,
        topk_method="group_limited_greedy", n_group=4, topk_group=3, routed_scaling_factor=2.5),
    "deepseek_v2 with groups, three of two": config(
        "DeepseekV2Config", **LATENT, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3,
        topk_method="group_limited_greedy", n_group=4, topk_group=2),
    "deepseek_v3, three of two groups": config(
        "DeepseekV3Config", **LATENT, q_lora_rank=28, n_routed_experts=8, num_experts_per_tok=3,
        n_group=4, topk_group=2),
    "deepseek_v3": config("DeepseekV3Config", **LATENT, q_lora_rank=28, n_routed_experts=8,
                          num_experts_per_tok=4, n_group=4, topk_group=2),
    "deepseek_v3 with yarn, one group": config(
        "DeepseekV3Config", **LATENT, q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=3,
        n_group=1, topk_group=1, rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=0.7)),
    "gemma": config("GemmaConfig", head_dim=16),
    "granite": config("GraniteConfig", **MULTIPLIERS),
    "granite, tied, with yarn": config("GraniteConfig", **MULTIPLIERS, tie_word_embeddings=True,
                                       rope_scaling=dict(YARN)),
    "granitemoe": config("GraniteMoeConfig", **MULTIPLIERS, num_local_experts=5,
                         num_experts_per_tok=3),
    "granitemoeshared": config("GraniteMoeSharedConfig", **MULTIPLIERS, num_local_experts=4,
                               num_experts_per_tok=2, shared_intermediate_size=40),
    "granitemoeshared without a shared one": config(
        "GraniteMoeSharedConfig", **MULTIPLIERS, num_local_experts=4, num_experts_per_tok=2,
        shared_intermediate_size=0),
    "smollm3": config("SmolLM3Config", no_rope_layers=[1, 0, 1]),
    "smollm3, the last does not rotate": config(
        "SmolLM3Config", no_rope_layer_interval=3, rope_scaling=dict(YARN),
        tie_word_embeddings=False),
    "seed_oss": config("SeedOssConfig", head_dim=20, attention_dropout=0.0, residual_dropout=0.0),
    "seed_oss without biases": config("SeedOssConfig", head_dim=16, attention_bias=False,
                                      attention_dropout=0.0, residual_dropout=0.0),
    "glm": config("GlmConfig", head_dim=16),
    "glm, a quarter rotated, no biases": config("GlmConfig", head_dim=16, attention_bias=False,
                                                partial_rotary_factor=0.25),
    "glm4": config("Glm4Config", head_dim=20, partial_rotary_factor=0.4),
    "glm4, tied, whole heads rotated": config("Glm4Config", head_dim=12, partial_rotary_factor=1.0,
                                              tie_word_embeddings=True),
    "glm4_moe": config("Glm4MoeConfig", **BALANCED, head_dim=16, attention_bias=True),
    "glm4_moe with norms of heads, groups": config(
        "Glm4MoeConfig", **dict(BALANCED, n_group=4, topk_group=2, num_experts_per_tok=4),
        attention_bias=True, use_qk_norm=True),
    "dots1": config("Dots1Config", **BALANCED, head_dim=16),
    "dots1 with windows": config("Dots1Config", **dict(BALANCED, n_shared_experts=2), head_dim=12,
                                 sliding_window=5, max_window_layers=1),
    "ernie4_5": config("Ernie4_5Config", head_dim=16),
    "ernie4_5 with biases": config("Ernie4_5Config", head_dim=12, use_bias=True,
                                   tie_word_embeddings=False),
    "starcoder2": config("Starcoder2Config"),
    "starcoder2 with a window, no biases": config("Starcoder2Config", sliding_window=5,
                                                  use_bias=False, tie_word_embeddings=False),
    "stablelm": config("StableLmConfig", hidden_size=64, use_qkv_bias=True),
    "stablelm, half rotated, no biases": config("StableLmConfig", hidden_size=64,
                                                partial_rotary_factor=0.5),
    "stablelm with parallel branches": config("StableLmConfig", hidden_size=64,
                                              use_parallel_residual=True),
    "stablelm with parallel branches and norms of heads": config(
        "StableLmConfig", hidden_size=64, use_parallel_residual=True, qk_layernorm=True),
    "gpt_neox": config("GPTNeoXConfig", hidden_size=64),
    "gpt_neox, one branch behind the other": config(
        "GPTNeoXConfig", hidden_size=64, rotary_pct=1.0, use_parallel_residual=False,
        hidden_act="gelu_new", tie_word_embeddings=True),
    "phi": config("PhiConfig"),
    "phi, a quarter rotated, a key for each head": config(
        "PhiConfig", hidden_size=64, num_key_value_heads=4, partial_rotary_factor=0.25,
        hidden_act="gelu"),
    "falcon with one key head": config("FalconConfig"),
    "falcon with a key for each head, untied, with biases": config(
        "FalconConfig", multi_query=False, bias=True, tie_word_embeddings=False),
    "falcon, one branch behind the other": config("FalconConfig", parallel_attn=False),
    "falcon with groups and two norms": config("FalconConfig", new_decoder_architecture=True,
                                               num_kv_heads=2),
    "falcon with groups and one norm": config(
        "FalconConfig", new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
    "gptj": config("GPTJConfig", n_inner=80, rotary_dim=8),
    "gptj, whole heads rotated, exact GELU, tied": config(
        "GPTJConfig", n_inner=None, rotary_dim=12, activation_function="gelu",
        tie_word_embeddings=True),
    "gpt_bigcode": config("GPTBigCodeConfig", n_inner=80, **NO_DROPOUT),
    "gpt_bigcode, a key for each head, untied": config(
        "GPTBigCodeConfig", n_inner=None, multi_query=False, activation_function="gelu",
        tie_word_embeddings=False, **NO_DROPOUT),
    "cohere": config("CohereConfig", logit_scale=0.5),
    "cohere, a key for each head, untied": config("CohereConfig", num_key_value_heads=4,
                                                  tie_word_embeddings=False),
    "cohere with norms of heads": config("CohereConfig", use_qk_norm=True, logit_scale=0.5),
    "cohere2": config("Cohere2Config", sliding_window=5, logit_scale=0.25, layer_types=layers(
        "sfs", s="sliding_attention", f="full_attention")),
    "cohere2, all layers with windows, untied": config("Cohere2Config", sliding_window=6,
                                                       tie_word_embeddings=False),
    "nemotron": config("NemotronConfig", head_dim=16),
    "nemotron with biases": config("NemotronConfig", attention_bias=True, mlp_bias=True,
                                   partial_rotary_factor=1.0, tie_word_embeddings=True),
    "arcee": config("ArceeConfig", rope_scaling=dict(YARN, mscale=1.0)),
    "arcee with biases": config("ArceeConfig", head_dim=20, attention_bias=True, mlp_bias=True),
    "exaone4": config("Exaone4Config", sliding_window=5, layer_types=layers(
        "sfs", s="sliding_attention", f="full_attention")),
    "exaone4 without windows": config("Exaone4Config", head_dim=20, sliding_window=None,
                                      layer_types=["full_attention"] * 3),
    "phi3": config("Phi3Config"),
    "phi3 with a window, three quarters rotated": config(
        "Phi3Config", hidden_size=64, sliding_window=7, partial_rotary_factor=0.75),
    "phi3 with longrope": config("Phi3Config", hidden_size=64, original_max_position_embeddings=8,
                                 rope_scaling=dict(LONGROPE)),
    "phi3 with longrope, short": config(
        "Phi3Config", hidden_size=64, partial_rotary_factor=0.75, max_position_embeddings=64,
        original_max_position_embeddings=32,
        rope_scaling={key: value[:6] if key != "type" else value
                      for key, value in LONGROPE.items()}),
}

# Of LongRoPE the length of samples says which factors count.
IMPORT_FLAGS = {"phi3 with longrope, short": ["--seq_length=32"]}


def make_model(config):
    torch.manual_seed(1)
    # StableLM's own initial weights of norms of heads ask for biases, which these norms do not have.
    with no_init_weights() if getattr(config, "qk_layernorm", False) else contextlib.nullcontext():
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "layernorm.weight", "norm_f.weight", "ln_f.weight",
                              "ln_attn.weight", "ln_mlp.weight", "ln_1.weight", "ln_2.weight")) or (
                                  "_layernorm.norms." in name):
                zero_centered = config.model_type == "nemotron" or "gemma" in config.model_type or (
                    config.model_type == "qwen3_next" and "linear_attn" not in name)
                parameter.add_(0.0 if zero_centered else 1.0)
        # Where a score and its bias are below 0, transformers takes an expert of a group that was not
        # chosen; no bias here is.
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.rand_like(buffer) * 0.2)
    return model.float().eval()


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, torch_dtype="auto", attn_implementation="eager").eval()


def their_results(model):
    """Logits after each token, and the gradients of the mean loss of the second to the last."""
    tokens = torch.tensor([TOKENS])
    model.zero_grad()
    logits = model(tokens, use_cache=False).logits[0].float()
    torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:]).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()
                 if parameter.grad is not None}
    return logits.detach().numpy(), gradients


def check_close(name, ours, theirs):
    difference = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)
    check(name, ours.shape == theirs.shape and difference <= TOLERANCE,
          f"differs by {difference:.2g}")


def greedy(model, count):
    """Token by token, so that no cache of theirs takes part."""
    tokens = list(TOKENS)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
            if tokens[-1] == 0:
                break
    return tokens


def check_model(index, name, config):
    model = make_model(config)
    there, here, back = path(f"there{index}"), path(f"here{index}"), path(f"back{index}")
    shards = {"max_shard_size": "60KB"} if index % 2 == 1 else {}
    model.save_pretrained(there, **shards)
    run("tools/import_hf", *IMPORT_FLAGS.get(name, []), "--save=" + here, there)
    family = "--model_type=" + config.model_type
    run("tools/interop/huggingface/dump_logits", "--tokens=" + " ".join(map(str, TOKENS)),
        f"--vocab_size={VOCABULARY}", "--output=" + path("logits.npy"), family,
        "--gradients=" + path(f"gradients{index}"), here)
    logits, gradients = their_results(model)
    check_close(f"{name}: the same logits", np.load(path("logits.npy")), logits)
    ours = safetensors.torch.load_file(path(f"gradients{index}", "model.safetensors"))
    for tensor, theirs in gradients.items():
        check_close(f"{name}: the same gradients of {tensor}", ours[tensor].numpy(), theirs.numpy())
    check(f"{name}: gradients of no other tensors", all(
        not ours[tensor].any() for tensor in ours.keys() - gradients.keys()))

    run("tools/export_hf", family, "--output=" + back, here)
    again = load(back)
    check(f"{name}: exported again, the same class", type(again) is type(model))
    states = [dict(m.state_dict()) for m in (model, again)]
    check(f"{name}: exported again, the same weights", states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]))
    check(f"{name}: exported again, the same bits", np.array_equal(their_results(again)[0], logits))
    check_pairs(name, config, there, path(f"pairs{index}"), logits, states[0])
    check_count(name, model, here)
    text = run("tools/generate_text", "--temperature=0", "--tokens_to_generate=12",
               "--prompt=" + " ".join(map(str, TOKENS)), here)
    expected = greedy(model, 12)
    expected = expected[:-1] if expected[-1] == 0 else expected
    check(f"{name}: the same text", text.split() == list(map(str, expected)), text)


def check_count(name, model, here):
    """The number of parameters that a dry run prints, with the rows that pad the vocabulary."""
    said = run("megatron/train/pretrain_gpt", "--dry_run", "--json",
               "--config=" + os.path.join(here, "config.textproto"))
    plan = json.loads(said[said.index("{"):said.rindex("}") + 1])
    rows = 128 - VOCABULARY
    tables = 1 if model.config.tie_word_embeddings else 2
    expected = sum(parameter.numel() for parameter in model.parameters())
    expected += tables * rows * model.config.hidden_size
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        expected += rows
    check(f"{name}: as many parameters", plan["parameters"] == expected,
          f"{plan['parameters']} and not {expected}")


def check_pairs(name, config, there, here, logits, state):
    """With the channels of queries and keys in another order here, all is the same."""
    run("tools/import_hf", *IMPORT_FLAGS.get(name, []), "--rotary_interleaved", "--save=" + here,
        there)
    run("tools/interop/huggingface/dump_logits", "--tokens=" + " ".join(map(str, TOKENS)),
        f"--vocab_size={VOCABULARY}", "--output=" + path("logits.npy"), here)
    check_close(f"{name}: the same logits with other pairs", np.load(path("logits.npy")), logits)
    run("tools/export_hf", "--model_type=" + config.model_type, "--output=" + here + " back", here)
    again = dict(load(here + " back").state_dict())
    check(f"{name}: exported from other pairs, the same weights", all(
        torch.equal(again[key], state[key]) for key in state))


def check_mxfp4():
    """gpt_oss with its experts in MXFP4, as it is published, against transformers' own conversion."""
    config = config_of_mxfp4()
    if config is None:
        return
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    torch.manual_seed(2)
    model = make_model(config).to(torch.bfloat16)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(3)
    for layer in range(config.num_hidden_layers):
        for weight in ["gate_up_proj", "down_proj"]:
            name = f"model.layers.{layer}.mlp.experts.{weight}"
            experts, inputs, outputs = state[name].shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8,
                                   generator=generator)
            scales = torch.randint(120, 126, (experts, outputs, inputs // 32), dtype=torch.uint8,
                                   generator=generator)
            state[name] = convert_moe_packed_tensors(blocks, scales)
            state[name + "_blocks"], state[name + "_scales"] = blocks, scales
    model.load_state_dict({name: tensor for name, tensor in state.items() if tensor.dtype == torch.bfloat16})
    plain, packed = path("mxfp4 plain"), path("mxfp4 packed")
    model.save_pretrained(plain)
    os.makedirs(packed)
    converted = [name[:-len("_blocks")] for name in state if name.endswith("_blocks")]
    safetensors.torch.save_file({name: tensor for name, tensor in state.items() if name not in converted},
                                os.path.join(packed, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(plain, "config.json")) as file:
        fields = json.load(file)
    fields["quantization_config"] = {"quant_method": "mxfp4"}
    with open(os.path.join(packed, "config.json"), "w") as file:
        json.dump(fields, file)
    outputs = []
    for directory in [plain, packed]:
        run("tools/import_hf", "--save=" + directory + " here", directory)
        run("tools/export_hf", "--output=" + directory + " back", directory + " here")
        outputs.append(safetensors.torch.load_file(
            os.path.join(directory + " back", "model.safetensors")))
    check("gpt_oss in MXFP4: the same weights", outputs[0].keys() == outputs[1].keys() and all(
        torch.equal(outputs[0][key], outputs[1][key]) for key in outputs[0]))


def config_of_mxfp4():
    return config("GptOssConfig", num_local_experts=4, head_dim=16, hidden_size=64,
                  intermediate_size=32, num_hidden_layers=2)


def blocks_of_float8(weight):
    """The weight in 8-bit floats with a scale for each 128 x 128 of it, and what they mean."""
    rows, columns = weight.shape
    scales = torch.zeros((rows + 127) // 128, (columns + 127) // 128)
    codes, meant = torch.zeros(rows, columns), torch.zeros(rows, columns)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            part = weight[block].float()
            scales[i, j] = part.abs().max() / 448
            codes[block] = (part / scales[i, j]).to(torch.float8_e4m3fn).float()
            meant[block] = codes[block] * scales[i, j]
    return codes.to(torch.float8_e4m3fn), scales, meant.to(torch.bfloat16)


def check_float8():
    """Matrices in blocks of 8-bit floats, as DeepSeek-V3 is published, against what they mean."""
    for name, config in [
            ("deepseek_v3", config_of("DeepseekV3Config", **LATENT, q_lora_rank=140,
                                      n_routed_experts=4, num_experts_per_tok=2, n_group=1,
                                      topk_group=1)),
            ("qwen3", config_of("Qwen3Config", head_dim=36))]:
        if config is None:
            continue
        model = make_model(config).to(torch.bfloat16)
        state = dict(model.state_dict())
        for key in [key for key in state if key.endswith("_proj.weight")]:
            codes, scales, state[key] = blocks_of_float8(state[key])
            state[key + " codes"], state[key + "_scale_inv"] = codes, scales
        plain, packed = path(f"float8 {name} plain"), path(f"float8 {name} packed")
        model.load_state_dict({key: tensor for key, tensor in state.items()
                               if not key.endswith((" codes", "_scale_inv"))})
        model.save_pretrained(plain)
        os.makedirs(packed)
        safetensors.torch.save_file(
            {key: state.get(key + " codes", tensor) for key, tensor in state.items()
             if not key.endswith(" codes")},
            os.path.join(packed, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(plain, "config.json")) as file:
            fields = json.load(file)
        fields["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3",
                                         "activation_scheme": "dynamic",
                                         "weight_block_size": [128, 128]}
        with open(os.path.join(packed, "config.json"), "w") as file:
            json.dump(fields, file)
        outputs = []
        for directory in [plain, packed]:
            run("tools/import_hf", "--save=" + directory + " here", directory)
            run("tools/export_hf", "--model_type=" + config.model_type,
                "--output=" + directory + " back", directory + " here")
            outputs.append(safetensors.torch.load_file(
                os.path.join(directory + " back", "model.safetensors")))
        check(f"{name} in blocks of 8-bit floats: the same weights",
              outputs[0].keys() == outputs[1].keys() and all(
                  torch.equal(outputs[0][key], outputs[1][key]) for key in outputs[0]))
        check(f"{name} in blocks of 8-bit floats: all of them", len(outputs[0]) == len(
            [key for key in state if not key.endswith((" codes", "_scale_inv"))]))


def config_of(name, **changes):
    """A family's configuration that is wide enough for several blocks."""
    return config(name, hidden_size=144, intermediate_size=272, num_hidden_layers=2, **changes)


def check_refused():
    for name, config, reason in REFUSED:
        if config is None:
            continue
        there = path("refused " + name)
        make_model(config).save_pretrained(there)
        said = refused("tools/import_hf", "--save=" + path("none"), there)
        check(f"{name}: refused by {reason}", said is not None and reason in said, said)


# Models whose parts this project does not have, and what the refusal names.
REFUSED = [
    ("mamba2 with two taps", config("Mamba2Config", num_heads=6, head_dim=16, n_groups=2,
                                    state_size=12, conv_kernel=2), "conv_kernel"),
    ("helium", config("HeliumConfig", head_dim=12), "model_type"),
    ("gpt_neox with ReLU", config("GPTNeoXConfig", hidden_size=64, hidden_act="relu"),
     "hidden_act"),
    ("falcon with ALiBi", config("FalconConfig", alibi=True), "alibi"),
    ("cohere2 without windows", config("Cohere2Config", layer_types=["full_attention"] * 3),
     "no layer rotates"),
    ("granite with biases", config("GraniteConfig", attention_bias=True), "attention_bias"),
    ("seed_oss with biases behind attention", config(
        "SeedOssConfig", head_dim=12, attention_out_bias=True), "attention_out_bias"),
    ("starcoder2 with dropout of branches alone", config("Starcoder2Config", residual_dropout=0.1),
     "embedding_dropout"),
    ("olmoe with clipped queries", config("OlmoeConfig", num_experts=4, num_experts_per_tok=2,
                                          clip_qkv=8.0), "clip_qkv"),
    ("olmo2 with scaled rotation", config("Olmo2Config", rope_scaling=dict(
        type="linear", factor=2.0)), "scaled rotary positions"),
]


def main():
    os.makedirs(WORK)
    for index, (name, config) in enumerate(MODELS.items()):
        if config is None:
            print(f"transformers {transformers.__version__} does not have {name}")
        else:
            check_model(index, name, config)
    check_mxfp4()
    check_float8()
    check_refused()
    finish()


main()
