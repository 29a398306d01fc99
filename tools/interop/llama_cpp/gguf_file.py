"""Writes a GPT-2 of transformers as a GGUF file, which llama.cpp reads, without a vocabulary."""

import struct

import numpy

VERSION, ALIGNMENT = 3, 32
UINT32, FLOAT32, STRING = 4, 6, 8  # kinds of values
KINDS = {numpy.dtype(numpy.float32): 0, numpy.dtype(numpy.float16): 1}  # of tensors
# llama.cpp's names of the parts of a layer.
LAYER_PARTS = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
               "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(name, kind, data):
    return string(name) + struct.pack("<I", kind) + data


def values(config):
    """Returns the bytes of what a file says about a model, and the number of its values."""
    numbers = {"context_length": config.n_positions, "embedding_length": config.n_embd,
               "block_count": config.n_layer, "feed_forward_length": 4 * config.n_embd,
               "attention.head_count": config.n_head, "vocab_size": config.vocab_size}
    found = [value("general.architecture", STRING, string("gpt2")),
             value("tokenizer.ggml.model", STRING, string("no_vocab")),
             value("gpt2.attention.layer_norm_epsilon", FLOAT32,
                   struct.pack("<f", config.layer_norm_epsilon))]
    found += [value("gpt2." + name, UINT32, struct.pack("<I", number))
              for name, number in numbers.items()]
    return b"".join(found), len(found)


def name_of(name):
    """Returns llama.cpp's name of a parameter, and whether it is stored transposed."""
    whole = {"transformer.wte.weight": "token_embd.weight",
             "transformer.wpe.weight": "position_embd.weight",
             "transformer.ln_f.weight": "output_norm.weight",
             "transformer.ln_f.bias": "output_norm.bias"}
    if name in whole:
        return whole[name], False
    words = name.split(".")  # transformer.h.3.attn.c_attn.weight
    part = ".".join(words[3:-1])
    # transformers has a Conv1D there, whose weight has a row for each input.
    is_transposed = words[-1] == "weight" and part.split(".")[-1].startswith("c_")
    return "blk.%s.%s.%s" % (words[2], LAYER_PARTS[part], words[-1]), is_transposed


def write(path, config, state, dtype):
    """Writes a file.

    `state` has an array for each parameter, by its name in transformers; that of the output, which
    the embedding is too, is left out. Matrices are written as `dtype`, all else in fp32.
    """
    tensors = {}
    for name, array in state.items():
        if name == "lm_head.weight":
            continue
        name, is_transposed = name_of(name)
        array = array.T if is_transposed else array
        tensors[name] = numpy.ascontiguousarray(array, numpy.float32 if array.ndim == 1 else dtype)
    about, number = values(config)
    head = b"GGUF" + struct.pack("<IQQ", VERSION, len(tensors), number) + about
    offset, data = 0, []
    for name, array in tensors.items():
        shape = array.shape[::-1]  # the dim whose elements are neighbours comes first
        head += string(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape,
                                           KINDS[array.dtype], offset)
        data.append(array)
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for array in data:
            file.write(array.tobytes() + bytes(-array.nbytes % ALIGNMENT))
