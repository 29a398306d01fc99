"""GPT-2- and Llama-shaped models, latent attention, multi-token prediction, hybrid models, and Megatron's T5, in plain
PyTorch, over weights in Megatron's names and our layouts.

Legend: B samples, S positions (Q of queries, K of keys), H hidden, N query heads, G key/value heads, R = N / G,
D channels of a head, F channels of the MLP, V rows of the (padded) vocabulary.

A batch has tokens and labels [B, S], and for T5 encoder_tokens; -1 behind shorter samples, and where no label is.
"""

import math

import torch
import torch.nn.functional as F


def parameter_shapes(m):
    """Names and shapes of every weight of model `m`, in the layout in which they are stored."""
    h, d, g, f = m["hidden_size"], m["kv_channels"], m["num_query_groups"], m["ffn_hidden_size"]
    heads = m["num_attention_heads"]
    encoder_layers = m.get("encoder_num_layers", 0)
    biased = not m["disable_bias_linear"]
    qkv = [g, heads // g + 2, d]
    fc1 = [2, f] if m["swiglu"] else [f]
    shapes = {"embedding.word_embeddings.weight": [m["padded_vocab_size"], h]}
    if m["position_embedding_type"] == "learned_absolute":
        shapes["embedding.position_embeddings.weight"] = [m["max_positions"], h]

    def linear(name, rows, columns):
        shapes[name + ".weight"] = rows + [columns]
        if biased:
            shapes[name + ".bias"] = rows
        if name.split(".")[-1] in m.get("lora_modules", []):
            shapes[name + ".adapter.linear_in.weight"] = [m["lora_dim"], columns]
            shapes[name + ".adapter.linear_out.weight"] = rows + [m["lora_dim"]]

    def norm(name):
        shapes[name + "weight"] = [h]
        if m["normalization"] == "LayerNorm":
            shapes[name + "bias"] = [h]

    def latent_attention(name):
        q_rank, kv_rank, rotated = m["q_lora_rank"], m["kv_lora_rank"], m["qk_pos_emb_head_dim"]
        v = m["v_head_dim"]
        shapes.update({
            name + "linear_q_down_proj.weight": [q_rank, h],
            name + "linear_q_up_proj.layer_norm_weight": [q_rank],
            name + "linear_q_up_proj.weight": [heads, d, q_rank],
            name + "linear_kv_down_proj.weight": [kv_rank + rotated, h],
            name + "linear_kv_up_proj.layer_norm_weight": [kv_rank],
            name + "linear_kv_up_proj.weight": [heads, d - rotated + v, kv_rank],
            name + "linear_proj.weight": [h, heads * v]})

    def mamba(name):
        groups, n, mamba_heads = m["mamba_num_groups"], m["mamba_state_dim"], m["mamba_num_heads"]
        inner, of_group = mamba_heads * m["mamba_head_dim"], mamba_heads // groups
        convolved = inner // groups + 2 * n
        norm(name + "in_proj.layer_norm_")
        shapes.update({
            name + "in_proj.weight": [groups, inner // groups + convolved + of_group, h],
            name + "conv1d.weight": [groups, convolved, 4],
            name + "conv1d.bias": [groups, convolved],
            name + "dt_bias": [mamba_heads],
            name + "A_log": [mamba_heads],
            name + "D": [mamba_heads],
            name + "norm.weight": [inner],
            name + "out_proj.weight": [h, inner]})

    def delta_net(name):
        groups, values = m["linear_num_key_heads"], m["linear_num_value_heads"]
        of_group, v = values // groups, m["linear_value_head_dim"]
        convolved = 2 * m["linear_key_head_dim"] + of_group * v
        norm(name + "in_proj.layer_norm_")
        shapes.update({
            name + "in_proj.weight": [groups, convolved + of_group * v + 2 * of_group, h],
            name + "conv1d.weight": [groups, convolved, m["linear_conv_kernel_dim"]],
            name + "dt_bias": [values],
            name + "A_log": [values],
            name + "out_norm.weight": [v],
            name + "out_proj.weight": [h, values * v]})

    def one_branch(prefix, letter):
        if letter == "M":
            mamba(prefix + "mixer.")
        elif letter == "G":
            delta_net(prefix + "self_attention.")
        elif letter == "*":
            norm(prefix + "self_attention.linear_qkv.layer_norm_")
            linear(prefix + "self_attention.linear_qkv", qkv, h)
            linear(prefix + "self_attention.linear_proj", [h], heads * d)
        else:
            norm(prefix + "mlp.linear_fc1.layer_norm_")
            linear(prefix + "mlp.linear_fc1", fc1, h)
            linear(prefix + "mlp.linear_fc2", [h], f)

    def layer(prefix, cross_attention):
        if is_latent(m):
            norm(prefix + "input_layernorm.")
            latent_attention(prefix + "self_attention.")
        else:
            norm(prefix + "self_attention.linear_qkv.layer_norm_")
            linear(prefix + "self_attention.linear_qkv", qkv, h)
            linear(prefix + "self_attention.linear_proj", [h], heads * d)
        if m.get("softmax_type") == "learnable":
            shapes[prefix + "self_attention.core_attention.softmax_offset"] = [heads]
        if cross_attention:
            norm(prefix + "pre_cross_attn_layernorm.")
            linear(prefix + "cross_attention.linear_q", [heads, 1, d], h)
            linear(prefix + "cross_attention.linear_kv", [heads, 2, d], h)
            linear(prefix + "cross_attention.linear_proj", [h], heads * d)
        norm(prefix + "mlp.linear_fc1.layer_norm_")
        linear(prefix + "mlp.linear_fc1", fc1, h)
        linear(prefix + "mlp.linear_fc2", [h], f)

    for i in range(encoder_layers):
        layer("encoder.layers.%d." % i, cross_attention=False)
    for i in range(m["num_layers"]):
        if is_hybrid(m):
            one_branch("decoder.layers.%d." % i, m["hybrid_layer_pattern"][i])
        else:
            layer("decoder.layers.%d." % i, cross_attention=encoder_layers > 0)
    for stack in ["encoder"] * (encoder_layers > 0) + ["decoder"]:
        norm(stack + final_norm(m))
    for i in range(m.get("mtp_num_layers", 0)):
        prefix = "mtp.layers.%d." % i
        for name in ("enorm.", "hnorm.", "final_layernorm."):
            norm(prefix + name)
        shapes[prefix + "eh_proj.weight"] = [h, 2 * h]
        layer(prefix + "transformer_layer.", cross_attention=False)
    if encoder_layers > 0:
        shapes["output_layer.bias"] = [m["padded_vocab_size"]]
    if m["untie_embeddings_and_output_weights"]:
        shapes["output_layer.weight"] = [m["padded_vocab_size"], h]
    return shapes


def is_latent(m):
    return m.get("kv_lora_rank", 0) > 0


def is_hybrid(m):
    return m.get("hybrid_layer_pattern", "") != ""


def final_norm(m):
    return ".final_norm." if is_hybrid(m) else ".final_layernorm."


def decays(name, shape):
    """Megatron's rule: neither biases nor the weights of norms, which are vectors."""
    return not name.endswith("bias") and len(shape) > 1


def is_hidden(name, shape):
    """Whether it is a matrix of a hidden layer, as muP sees it; layers of T5 are not asked about."""
    return decays(name, shape) and not name.startswith(("embedding.", "output_layer."))


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


def yarn(m, frequency):
    """Frequencies of a longer context, and the factor of rotated vectors (arXiv 2309.00071)."""
    factor, half = m["yarn_rotary_scaling_factor"], len(frequency)
    turns = m["yarn_original_max_position_embeddings"] * frequency / (2 * math.pi)

    def pair(beta):
        """The pair, as a real number, that turns beta times; frequencies fall geometrically."""
        return math.log(turns[0].item() / beta) / math.log(m["rotary_base"]) * half

    low = max(math.floor(pair(m["yarn_beta_fast"])), 0)
    high = min(math.ceil(pair(m["yarn_beta_slow"])), 2 * half - 1)
    stretched = ((torch.arange(half, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    magnitude = [1 + 0.1 * m[name] * math.log(factor)
                 for name in ("yarn_mscale", "yarn_mscale_all_dim")]
    return frequency * (1 - stretched + stretched / factor), magnitude[0] / magnitude[1]


def rotate(m, x_BSND, has_window):
    """Half-split rotary embedding: channels i and i + D/2 are a pair."""
    half = m["kv_channels"] // 2
    is_local = has_window and m.get("rotary_base_local", 0) > 0
    base = m["rotary_base_local"] if is_local else m["rotary_base"]
    frequency, magnitude = base ** (-torch.arange(half, dtype=torch.float64) / half), 1
    if m.get("yarn_rotary_scaling_factor", 0) > 0 and not is_local:
        frequency, magnitude = yarn(m, frequency)
    angle = torch.arange(x_BSND.shape[1], dtype=torch.float64)[:, None] * frequency
    cos = (magnitude * angle.cos()).to(x_BSND.dtype)[:, None]
    sin = (magnitude * angle.sin()).to(x_BSND.dtype)[:, None]
    a, b = x_BSND[..., :half], x_BSND[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotate_pairs(m, x_BSND):
    """Rotary embedding of channels 2i and 2i + 1."""
    half = x_BSND.shape[-1] // 2
    frequency, magnitude = m["rotary_base"] ** (-torch.arange(half, dtype=torch.float64) / half), 1
    if m.get("yarn_rotary_scaling_factor", 0) > 0:
        frequency, magnitude = yarn(m, frequency)
    angle = torch.arange(x_BSND.shape[1], dtype=torch.float64)[:, None] * frequency
    turn = torch.polar(torch.full_like(angle, magnitude), angle)[:, None]
    pairs = torch.view_as_complex(x_BSND.double().unflatten(-1, (half, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).to(x_BSND.dtype)


def attend(m, q_BQND, k_BKGD, v_BKGD, allowed, sink_N=None):
    """Each query sees the keys that `allowed`, broadcast to [B, N, Q, K], says, and a sink."""
    r = m["num_attention_heads"] // k_BKGD.shape[2]
    k, v = k_BKGD.repeat_interleave(r, dim=2), v_BKGD.repeat_interleave(r, dim=2)
    scale = m.get("softmax_scale", 0) or 1 / math.sqrt(m["kv_channels"])
    scores = torch.einsum("bqnd,bknd->bnqk", q_BQND, k) * scale
    scores = scores.masked_fill(~allowed, -math.inf)
    if sink_N is not None:
        sinks = sink_N[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    probabilities = scores.softmax(-1)[..., :k.shape[1]]
    return torch.einsum("bnqk,bknd->bqnd", probabilities, v).flatten(2)


def self_attention(m, weights, name, x_BSH, allowed, layer):
    batch, length, _ = x_BSH.shape
    heads, groups, d = m["num_attention_heads"], m["num_query_groups"], m["kv_channels"]
    r = heads // groups
    qkv = linear(weights, name + "linear_qkv", x_BSH).view(batch, length, groups, r + 2, d)
    q = qkv[..., :r, :].reshape(batch, length, heads, d)
    k, v = qkv[..., r, :], qkv[..., r + 1, :]
    has_window = m.get("window_size", 0) > 0 and m["has_window"][layer]
    if m["position_embedding_type"] == "rope" and m.get("rotates", [True] * 99)[layer]:
        q, k = rotate(m, q, has_window), rotate(m, k, has_window)
    if has_window:
        place = torch.arange(length)
        allowed = allowed & (place[:, None] - place <= m["window_size"])
    sink = weights.get(name + "core_attention.softmax_offset")
    return linear(weights, name + "linear_proj", attend(m, q, k, v, allowed, sink))


def latent_attention(m, weights, name, x_BSH, allowed):
    heads, rotated = m["num_attention_heads"], m["qk_pos_emb_head_dim"]
    own = m["kv_channels"] - rotated
    q = norm(m, weights, name + "linear_q_up_proj.layer_norm_",
             linear(weights, name + "linear_q_down_proj", x_BSH))
    q = linear(weights, name + "linear_q_up_proj", q).unflatten(-1, (heads, own + rotated))
    q = torch.cat([q[..., :own], rotate_pairs(m, q[..., own:])], dim=-1)
    down = linear(weights, name + "linear_kv_down_proj", x_BSH)
    shared = rotate_pairs(m, down[..., None, m["kv_lora_rank"]:])
    kv = norm(m, weights, name + "linear_kv_up_proj.layer_norm_", down[..., :m["kv_lora_rank"]])
    kv = linear(weights, name + "linear_kv_up_proj", kv).unflatten(-1, (heads, own + m["v_head_dim"]))
    k = torch.cat([kv[..., :own], shared.expand(*shared.shape[:2], heads, rotated)], dim=-1)
    return linear(weights, name + "linear_proj", attend(m, q, k, kv[..., own:], allowed))


def causal_conv(weights, name, x_BSGK):
    """A convolution of each channel by itself over the past, and SiLU."""
    weight = weights[name + "conv1d.weight"]
    taps, length = weight.shape[-1], x_BSGK.shape[1]
    padded = F.pad(x_BSGK, (0, 0, 0, 0, taps - 1, 0))
    y = sum(padded[:, i:i + length] * weight[..., i] for i in range(taps))
    bias = weights.get(name + "conv1d.bias")
    return F.silu(y if bias is None else y + bias)


def rms(x, epsilon):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def mamba(m, weights, name, x_BSH):
    """Mamba-2 (arXiv 2405.21060), a token at a time."""
    groups, n, p = m["mamba_num_groups"], m["mamba_state_dim"], m["mamba_head_dim"]
    r = m["mamba_num_heads"] // groups

    def of_heads(vector):
        return weights[name + vector].view(groups, r)

    packed = linear(weights, name + "in_proj", x_BSH).unflatten(-1, (groups, -1))
    z, conv, step = packed.split([r * p, r * p + 2 * n, r], dim=-1)
    x, b, c = causal_conv(weights, name, conv).split([r * p, n, n], dim=-1)
    x = x.unflatten(-1, (r, p))
    step = F.softplus(step + of_heads("dt_bias"))
    decay = torch.exp(-step * of_heads("A_log").exp())
    state, y = 0, []
    for t in range(x.shape[1]):
        write = b[:, t, :, None, :, None] * x[:, t, :, :, None, :]
        state = decay[:, t, :, :, None, None] * state + step[:, t, :, :, None, None] * write
        read = (state * c[:, t, :, None, :, None]).sum(-2)
        y.append(read + of_heads("D")[..., None] * x[:, t])
    y = torch.stack(y, dim=1).flatten(-2) * F.silu(z)
    y = rms(y, m["norm_epsilon"]) * weights[name + "norm.weight"].view(groups, -1)
    return linear(weights, name + "out_proj", y.flatten(-2))


def delta_net(m, weights, name, x_BSH):
    """A gated delta net (arXiv 2412.06464), a token at a time."""
    groups, k, v = m["linear_num_key_heads"], m["linear_key_head_dim"], m["linear_value_head_dim"]
    r = m["linear_num_value_heads"] // groups

    def of_heads(vector):
        return weights[name + vector].view(groups, r)

    packed = linear(weights, name + "in_proj", x_BSH).unflatten(-1, (groups, -1))
    conv, gate, beta, decay = packed.split([2 * k + r * v, r * v, r, r], dim=-1)
    queries, keys, values = causal_conv(weights, name, conv).split([k, k, r * v], dim=-1)
    queries, keys = [x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
                     for x in (queries, keys)]
    values = values.unflatten(-1, (r, v))
    beta = beta.sigmoid()
    decay = torch.exp(-F.softplus(decay + of_heads("dt_bias")) * of_heads("A_log").exp())
    state, y = torch.zeros(x_BSH.shape[0], groups, r, k, v, dtype=x_BSH.dtype), []
    for t in range(x_BSH.shape[1]):
        key = keys[:, t, :, None, :, None]
        state = decay[:, t, :, :, None, None] * state
        error = values[:, t] - (state * key).sum(-2)
        state = state + beta[:, t, :, :, None, None] * key * error[..., None, :]
        y.append((state * queries[:, t, :, None, :, None]).sum(-2) / math.sqrt(k))
    y = rms(torch.stack(y, dim=1), m["norm_epsilon"]) * weights[name + "out_norm.weight"]
    y = y * F.silu(gate.unflatten(-1, (r, v)))
    return linear(weights, name + "out_proj", y.flatten(-3))


def one_branch(m, weights, prefix, i, x, allowed):
    """A layer of a hybrid model."""
    letter = m["hybrid_layer_pattern"][i]
    a = prefix + {"M": "mixer.", "-": "mlp."}.get(letter, "self_attention.")
    first = {"*": "linear_qkv", "-": "linear_fc1"}.get(letter, "in_proj")
    y = norm(m, weights, a + first + ".layer_norm_", x)
    if letter == "M":
        return x + mamba(m, weights, a, y)
    if letter == "G":
        return x + delta_net(m, weights, a, y)
    if letter == "*":
        return x + self_attention(m, weights, a, y, allowed, i)
    return x + mlp(m, weights, a, y)


def cross_attention(m, weights, name, x_BQH, y_BKH, allowed):
    heads, d = m["num_attention_heads"], m["kv_channels"]
    q = linear(weights, name + "linear_q", x_BQH).unflatten(-1, (heads, d))
    k, v = linear(weights, name + "linear_kv", y_BKH).unflatten(-1, (heads, 2, d)).unbind(-2)
    return linear(weights, name + "linear_proj", attend(m, q, k, v, allowed))


def mlp(m, weights, name, x_BSH):
    y = linear(weights, name + "linear_fc1", x_BSH)
    if m["swiglu"]:
        gate, up = y.chunk(2, dim=-1)
        limit = m.get("gate_limit", math.inf)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + m.get("gate_offset", 0)
        y = gate * torch.sigmoid((1.702 if m.get("gate") == "quick_gelu" else 1) * gate) * up
    else:
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    return linear(weights, name + "linear_fc2", y)


def embed(m, weights, tokens):
    x = weights["embedding.word_embeddings.weight"][tokens.clamp_min(0)]
    if m["position_embedding_type"] == "learned_absolute":
        x = x + weights["embedding.position_embeddings.weight"][:tokens.shape[1]]
    return x * m.get("embedding_output_scale", 1)


def layer(m, weights, prefix, i, x, allowed, encoded=None, encoded_allowed=None):
    a = prefix + "self_attention."
    if is_latent(m):
        y = norm(m, weights, prefix + "input_layernorm.", x)
        x = x + latent_attention(m, weights, a, y, allowed)
    else:
        y = norm(m, weights, a + "linear_qkv.layer_norm_", x)
        x = x + self_attention(m, weights, a, y, allowed, i)
    if encoded is not None:
        y = norm(m, weights, prefix + "pre_cross_attn_layernorm.", x)
        x = x + cross_attention(m, weights, prefix + "cross_attention.", y, encoded, encoded_allowed)
    a = prefix + "mlp."
    return x + mlp(m, weights, a, norm(m, weights, a + "linear_fc1.layer_norm_", x))


def layers(m, weights, stack, count, x, allowed, encoded=None, encoded_allowed=None):
    for i in range(count):
        prefix = "%s.layers.%d." % (stack, i)
        if is_hybrid(m):
            x = one_branch(m, weights, prefix, i, x, allowed)
        else:
            x = layer(m, weights, prefix, i, x, allowed, encoded, encoded_allowed)
    return norm(m, weights, stack + final_norm(m), x)


def adapted(m, weights):
    """The weights with the products of their low-rank adapters added."""
    summed = dict(weights)
    for name in weights:
        if name.endswith(".adapter.linear_in.weight"):
            layer = name[:-len(".adapter.linear_in.weight")]
            product = weights[layer + ".adapter.linear_out.weight"] @ weights[name]
            summed[layer + ".weight"] = (weights[layer + ".weight"] +
                                         m["lora_alpha"] / m["lora_dim"] * product)
    return summed


def ahead(values_BS, places, missing):
    """The values that are so many places further on; `missing` where there are none."""
    return torch.cat([values_BS[:, places:], torch.full_like(values_BS[:, :places], missing)], dim=1)


def loss(m, weights, batch):
    """Mean cross-entropy of the labels, and of multi-token prediction with its factor."""
    weights = adapted(m, weights)
    tokens, labels = batch["tokens"], batch["labels"]
    encoded = seen = None
    if m.get("encoder_num_layers", 0) > 0:
        seen = (batch["encoder_tokens"] >= 0)[:, None, None]  # padding is not
        encoded = layers(m, weights, "encoder", m["encoder_num_layers"],
                         embed(m, weights, batch["encoder_tokens"]), seen)
    past = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    x = layers(m, weights, "decoder", m["num_layers"], embed(m, weights, tokens), past, encoded,
               seen)
    table = weights.get("output_layer.weight", weights["embedding.word_embeddings.weight"])

    def of(x, labels):
        logits = F.linear(x * m.get("output_scale", 1), table,
                          weights.get("output_layer.bias"))[..., :m["vocab_size"]]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)

    total, depths = of(x, labels), m.get("mtp_num_layers", 0)
    for i in range(depths):
        prefix = "mtp.layers.%d." % i
        both = [norm(m, weights, prefix + "enorm.", embed(m, weights, ahead(tokens, i + 1, 0))),
                norm(m, weights, prefix + "hnorm.", x)]
        x = linear(weights, prefix + "eh_proj", torch.cat(both, dim=-1))
        x = layer(m, weights, prefix + "transformer_layer.", m["num_layers"] - 1, x, past)
        x = norm(m, weights, prefix + "final_layernorm.", x)
        total = total + m["mtp_loss_scaling_factor"] / depths * of(x, ahead(labels, i + 1, -1))
    return total
