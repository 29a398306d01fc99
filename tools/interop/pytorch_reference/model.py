"""GPT-2- and Llama-shaped models in plain PyTorch, over weights in Megatron's names and layouts.

Legend: B samples, S positions, H hidden, N query heads, G key/value heads, R = N / G, D channels
of a head, F channels of the MLP, V rows of the (padded) vocabulary.
"""

import math

import torch
import torch.nn.functional as F


def parameter_shapes(m):
    """Names and shapes of every weight of model `m`, in the layout in which they are stored."""
    h, d, g, f = m["hidden_size"], m["kv_channels"], m["num_query_groups"], m["ffn_hidden_size"]
    heads = m["num_attention_heads"]
    biased = not m["disable_bias_linear"]
    qkv = [g, heads // g + 2, d]
    fc1 = [2, f] if m["swiglu"] else [f]
    shapes = {"embedding.word_embeddings.weight": [m["padded_vocab_size"], h]}
    if m["position_embedding_type"] == "learned_absolute":
        shapes["embedding.position_embeddings.weight"] = [m["seq_length"], h]

    def linear(name, rows, columns):
        shapes[name + ".weight"] = rows + [columns]
        if biased:
            shapes[name + ".bias"] = rows

    def norm(name):
        shapes[name + "weight"] = [h]
        if m["normalization"] == "LayerNorm":
            shapes[name + "bias"] = [h]

    for layer in range(m["num_layers"]):
        prefix = "decoder.layers.%d." % layer
        norm(prefix + "self_attention.linear_qkv.layer_norm_")
        linear(prefix + "self_attention.linear_qkv", qkv, h)
        linear(prefix + "self_attention.linear_proj", [h], heads * d)
        norm(prefix + "mlp.linear_fc1.layer_norm_")
        linear(prefix + "mlp.linear_fc1", fc1, h)
        linear(prefix + "mlp.linear_fc2", [h], f)
    norm("decoder.final_layernorm.")
    if m["untie_embeddings_and_output_weights"]:
        shapes["output_layer.weight"] = [m["padded_vocab_size"], h]
    return shapes


def decays(name):
    """Megatron's rule: neither biases nor the weights of norms."""
    return not name.endswith("bias") and "layer_norm_" not in name and "layernorm." not in name


def norm(m, weights, name, x):
    weight = weights[name + "weight"]
    if m["normalization"] == "LayerNorm":
        return F.layer_norm(x, weight.shape, weight, weights[name + "bias"], m["norm_epsilon"])
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + m["norm_epsilon"]) * weight


def linear(weights, name, x):
    """Rows of the stored weight may have several dims; they are output features in their order."""
    weight = weights[name + ".weight"]
    bias = weights.get(name + ".bias")
    return F.linear(x, weight.reshape(-1, weight.shape[-1]),
                    None if bias is None else bias.reshape(-1))


def rotate(m, x_BSND):
    """Half-split rotary embedding: channels i and i + D/2 are a pair."""
    half = m["kv_channels"] // 2
    frequency = m["rotary_base"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x_BSND.shape[1], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x_BSND.dtype)[:, None], angle.sin().to(x_BSND.dtype)[:, None]
    a, b = x_BSND[..., :half], x_BSND[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attention(m, weights, name, x_BSH):
    batch, length, _ = x_BSH.shape
    heads, groups, d = m["num_attention_heads"], m["num_query_groups"], m["kv_channels"]
    r = heads // groups
    qkv = linear(weights, name + "linear_qkv", x_BSH).view(batch, length, groups, r + 2, d)
    q = qkv[..., :r, :].reshape(batch, length, heads, d)
    k, v = qkv[..., r, :], qkv[..., r + 1, :]
    if m["position_embedding_type"] == "rope":
        q, k = rotate(m, q), rotate(m, k)
    k, v = k.repeat_interleave(r, dim=2), v.repeat_interleave(r, dim=2)
    scores = torch.einsum("bqnd,bknd->bnqk", q, k) / math.sqrt(d)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(future, -math.inf).softmax(-1)
    context = torch.einsum("bnqk,bknd->bqnd", probabilities, v).reshape(batch, length, heads * d)
    return linear(weights, name + "linear_proj", context)


def mlp(m, weights, name, x_BSH):
    y = linear(weights, name + "linear_fc1", x_BSH)
    if m["swiglu"]:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    else:
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    return linear(weights, name + "linear_fc2", y)


def loss(m, weights, tokens):
    """Mean cross-entropy of predicting tokens[:, 1:] from tokens[:, :-1]."""
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    x = weights["embedding.word_embeddings.weight"][inputs]
    if m["position_embedding_type"] == "learned_absolute":
        x = x + weights["embedding.position_embeddings.weight"][:inputs.shape[1]]
    for layer in range(m["num_layers"]):
        prefix = "decoder.layers.%d." % layer
        a = prefix + "self_attention."
        x = x + attention(m, weights, a, norm(m, weights, a + "linear_qkv.layer_norm_", x))
        a = prefix + "mlp."
        x = x + mlp(m, weights, a, norm(m, weights, a + "linear_fc1.layer_norm_", x))
    x = norm(m, weights, "decoder.final_layernorm.", x)
    table = weights.get("output_layer.weight", weights["embedding.word_embeddings.weight"])
    logits = (x @ table.T)[..., :m["vocab_size"]]
    return F.cross_entropy(logits.reshape(-1, m["vocab_size"]), labels.reshape(-1))
