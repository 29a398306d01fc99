"""Writes what Hugging Face's BERT, MegatronBERT and T5 compute, for hf_bert_test and hf_t5_test.

Weights, tokens and labels follow from formulas that the tests have too, so that only results are kept:
the losses, some logits, and of each gradient its norm and its product with a wave. Of T5's positions the
rows of some distances.

  pip install torch transformers==4.46.3
  for kind in bert megatron_bert t5 t5_v1_1; do python3 make_goldens.py $kind > $kind.txt; done
  python3 make_goldens.py buckets > ../../../layers/testdata/t5_buckets.txt
"""

import math
import sys

import numpy
import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

LENGTHS = [11, 7]  # of BERT's samples
ENCODER_LENGTHS, DECODER_LENGTHS = [23, 9], [6, 8]  # of T5's
BERT_SIZES = dict(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=16,
    type_vocab_size=2,
    hidden_act="gelu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
T5_SIZES = dict(
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


def make_model(kind):
    if kind == "bert":
        config = transformers.BertConfig(layer_norm_eps=1e-12, **BERT_SIZES)
        return transformers.BertForPreTraining(config)
    if kind == "megatron_bert":
        config = transformers.MegatronBertConfig(layer_norm_eps=1e-5, **BERT_SIZES)
        return transformers.MegatronBertForPreTraining(config)
    form = dict(t5=dict(feed_forward_proj="relu", tie_word_embeddings=True),
                t5_v1_1=dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False))[kind]
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**form, **T5_SIZES))


def wave(count, phase):
    index = numpy.arange(count, dtype=numpy.float64)
    return numpy.sin(index * index * 0.37 + index * 1.7 + phase)


def weights_of(model):
    """Name and parameter, each once; BERT's decoder has the embedding's and predictions.bias."""
    return [(n, p) for n, p in model.named_parameters() if not n.startswith("cls.predictions.decoder")]


def fill(model):
    for name, parameter in weights_of(model):
        values = 0.25 * wave(parameter.numel(), len(name))
        if name.lower().endswith(("layernorm.weight", "layer_norm.weight", ".ln.weight")):
            values = 1 + values
        parameter.data = torch.tensor(values.reshape(parameter.shape), dtype=torch.float32)
    model.tie_weights()
    if hasattr(model, "cls"):
        model.cls.predictions.decoder.bias = model.cls.predictions.bias


def pad(lengths, value, other=0):
    rows = numpy.full((len(lengths), max(lengths)), other, dtype=numpy.int64)
    for s, length in enumerate(lengths):
        for i in range(length):
            rows[s, i] = value(s, i)
    return torch.tensor(rows)


def bert_results(model):
    order = torch.tensor([0, 1])
    output = model(
        input_ids=pad(LENGTHS, lambda s, i: (7 * i + 13 * s + 3) % 50),
        token_type_ids=pad(LENGTHS, lambda s, i: i >= LENGTHS[s] // 2),
        attention_mask=pad(LENGTHS, lambda s, i: 1),
        labels=pad(LENGTHS, lambda s, i: (5 * i + s) % 50 if i % 3 == 1 else -100, -100),
        next_sentence_label=order,
    )
    order_loss = torch.nn.functional.cross_entropy(output.seq_relationship_logits, order)
    print("order_loss %.9g" % order_loss.item())
    return output.loss, output.prediction_logits


def t5_results(model):
    output = model(
        input_ids=pad(ENCODER_LENGTHS, lambda s, i: (7 * i + 13 * s + 3) % 50),
        attention_mask=pad(ENCODER_LENGTHS, lambda s, i: 1),
        decoder_input_ids=pad(DECODER_LENGTHS, lambda s, i: (11 * i + 5 * s + 1) % 50),
        decoder_attention_mask=pad(DECODER_LENGTHS, lambda s, i: 1),
        labels=pad(DECODER_LENGTHS, lambda s, i: -100 if i % 4 == 1 else (5 * i + s) % 50, -100),
    )
    return output.loss, output.logits


def print_model(kind):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(kind)
    fill(model)
    model.double()  # the same fp32 weights, without the rounding of torch's sums
    model.eval()
    loss, logits = (bert_results if "bert" in kind else t5_results)(model)
    loss.backward()
    print("loss %.9g" % loss.item())
    for v in range(0, 50, 7):
        print("logit.%d %.9g" % (v, logits[1, 4, v].item()))
    for name, parameter in weights_of(model):
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
