"""Writes what Hugging Face's BERT and MegatronBERT compute, for bert_hugging_face_test.

Weights, tokens and labels follow from formulas that the test has too, so that only results are kept:
the losses, some logits, and of each gradient its norm and its product with a wave.

  pip install torch transformers==4.30.2
  python3 make_goldens.py bert > bert.txt
  python3 make_goldens.py megatron-bert > megatron_bert.txt
"""

import math
import sys

import numpy
import torch
import transformers

LENGTHS = [11, 7]
SIZES = dict(
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


def wave(count, phase):
    index = numpy.arange(count, dtype=numpy.float64)
    return numpy.sin(index * 1.7 + phase)


def make_model(kind):
    if kind == "bert":
        config = transformers.BertConfig(layer_norm_eps=1e-12, **SIZES)
        return transformers.BertForPreTraining(config)
    config = transformers.MegatronBertConfig(layer_norm_eps=1e-5, **SIZES)
    return transformers.MegatronBertForPreTraining(config)


def weights_of(model):
    """Name and parameter, each once; the decoder's are the embedding's and predictions.bias."""
    return [(n, p) for n, p in model.named_parameters() if not n.startswith("cls.predictions.decoder")]


def fill(model):
    for name, parameter in weights_of(model):
        values = 0.2 * wave(parameter.numel(), len(name))
        if "LayerNorm.weight" in name or ".ln.weight" in name:
            values = 1 + values
        parameter.data = torch.tensor(values.reshape(parameter.shape), dtype=torch.float32)
    model.tie_weights()
    model.cls.predictions.decoder.bias = model.cls.predictions.bias


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(sys.argv[1])
    fill(model)
    model.double()  # the same fp32 weights, without the rounding of torch's sums
    model.eval()
    longest = max(LENGTHS)
    tokens = numpy.zeros((len(LENGTHS), longest), dtype=numpy.int64)
    types, labels, mask = tokens.copy(), tokens.copy() - 100, tokens.copy()
    for s, length in enumerate(LENGTHS):
        for i in range(length):
            tokens[s, i] = (7 * i + 13 * s + 3) % 50
            types[s, i] = i >= length // 2
            labels[s, i] = (5 * i + s) % 50 if i % 3 == 1 else -100
            mask[s, i] = 1
    order = torch.tensor([s % 2 for s in range(len(LENGTHS))])
    output = model(
        input_ids=torch.tensor(tokens),
        token_type_ids=torch.tensor(types),
        attention_mask=torch.tensor(mask),
        labels=torch.tensor(labels),
        next_sentence_label=order,
    )
    output.loss.backward()

    order_loss = torch.nn.functional.cross_entropy(output.seq_relationship_logits, order)
    print("loss %.9g" % output.loss.item())
    print("order_loss %.9g" % order_loss.item())
    for v in range(0, 50, 7):
        print("logit.%d %.9g" % (v, output.prediction_logits[1, 4, v].item()))
    for name, parameter in weights_of(model):
        gradient = parameter.grad.detach().numpy().astype(numpy.float64).reshape(-1)
        product = float(numpy.dot(gradient, wave(gradient.size, 0.5)))
        print("gradient.%s %.9g %.9g" % (name, math.sqrt(numpy.dot(gradient, gradient)), product))


main()
