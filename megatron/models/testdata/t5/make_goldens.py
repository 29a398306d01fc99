"""Writes what Hugging Face's T5 computes, for hf_t5_test.

Weights, tokens and labels follow from formulas that the test has too, so that only results are kept:
the loss, some logits, and of each gradient its norm and its product with a wave. Of positions the
rows of some distances.

  pip install torch transformers==4.30.2
  python3 make_goldens.py t5 > t5.txt
  python3 make_goldens.py t5-v1_1 > t5_v1_1.txt
  python3 make_goldens.py buckets > buckets.txt
"""

import math
import sys

import numpy
import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

ENCODER_LENGTHS = [23, 9]
DECODER_LENGTHS = [6, 8]
SIZES = dict(
    vocab_size=50,
    d_model=32,
    d_kv=12,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    dropout_rate=0.0,
    layer_norm_epsilon=1e-6,
)


def wave(count, phase):
    index = numpy.arange(count, dtype=numpy.float64)
    return numpy.sin(index * index * 0.37 + index * 1.7 + phase)


def make_model(kind):
    if kind == "t5":
        config = transformers.T5Config(feed_forward_proj="relu", tie_word_embeddings=True, **SIZES)
    else:
        config = transformers.T5Config(
            feed_forward_proj="gated-gelu", tie_word_embeddings=False, **SIZES
        )
    return transformers.T5ForConditionalGeneration(config)


def fill(model):
    for name, parameter in model.named_parameters():
        values = 0.25 * wave(parameter.numel(), len(name))
        if "layer_norm.weight" in name:
            values = 1 + values
        parameter.data = torch.tensor(values.reshape(parameter.shape), dtype=torch.float32)
    model.tie_weights()


def pad(lengths, value, other=0):
    rows = numpy.full((len(lengths), max(lengths)), other, dtype=numpy.int64)
    for s, length in enumerate(lengths):
        for i in range(length):
            rows[s, i] = value(s, i)
    return torch.tensor(rows)


def print_model(kind):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(kind)
    fill(model)
    model.double()  # the same fp32 weights, without the rounding of torch's sums
    model.eval()
    output = model(
        input_ids=pad(ENCODER_LENGTHS, lambda s, i: (7 * i + 13 * s + 3) % 50),
        attention_mask=pad(ENCODER_LENGTHS, lambda s, i: 1),
        decoder_input_ids=pad(DECODER_LENGTHS, lambda s, i: (11 * i + 5 * s + 1) % 50),
        decoder_attention_mask=pad(DECODER_LENGTHS, lambda s, i: 1),
        labels=pad(DECODER_LENGTHS, lambda s, i: -100 if i % 4 == 1 else (5 * i + s) % 50, -100),
    )
    output.loss.backward()
    print("loss %.9g" % output.loss.item())
    for v in range(0, 50, 7):
        print("logit.%d %.9g" % (v, output.logits[1, 4, v].item()))
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.detach().numpy().astype(numpy.float64).reshape(-1)
        product = float(numpy.dot(gradient, wave(gradient.size, 0.5)))
        print("gradient.%s %.9g %.9g" % (name, math.sqrt(numpy.dot(gradient, gradient)), product))


def print_buckets():
    for buckets, most in [(32, 128), (8, 12), (64, 1000)]:
        for bidirectional in [True, False]:
            distances = torch.arange(-most - 3, most + 4)
            rows = T5Attention._relative_position_bucket(distances, bidirectional, buckets, most)
            print(buckets, most, int(bidirectional), *rows.tolist())


if sys.argv[1] == "buckets":
    print_buckets()
else:
    print_model(sys.argv[1])
