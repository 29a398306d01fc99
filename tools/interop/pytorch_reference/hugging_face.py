"""Hugging Face's BERT, MegatronBERT, T5 and Falcon, as model.py's models: shapes of weights, and losses of batches.

Batches are model.py's, and BERT's have types [B, S] and classes [B], the labels of the sentence-order head or of a
classifier. Where a sample has several sequences, the first dim is that of all samples' sequences.
"""

import torch.nn.functional as F
import transformers


# Those whose labels are words.
PRETRAINED = (transformers.BertForPreTraining, transformers.MegatronBertForPreTraining,
              transformers.T5ForConditionalGeneration)


def has(m):
    return "architectures" in m


def make(m):
    """The model of a config.json; all tokens are words, while theirs of padding (0) gets no gradient."""
    config = transformers.AutoConfig.for_model(**{**m, "pad_token_id": None})
    return getattr(transformers, m["architectures"][0])(config)


def parameter_shapes(m):
    return {name: list(weight.shape) for name, weight in make(m).named_parameters()}


def loss(model, batch):
    """The sum of the model's losses. Samples are padded, and masks tell; Falcon's are of one length."""
    tokens = batch["tokens"]
    if isinstance(model, transformers.FalconForCausalLM):
        logits = model(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-1)
    labels = batch["labels"].masked_fill(batch["labels"] < 0, -100)
    mask = (tokens >= 0).long()
    if not isinstance(model, PRETRAINED):
        rows = {"input_ids": tokens.clamp_min(0), "attention_mask": mask,
                "token_type_ids": batch["types"].clamp_min(0)}
        if "MultipleChoice" in type(model).__name__:
            samples = batch["classes"].shape[0]
            rows = {name: x.view(samples, -1, x.shape[-1]) for name, x in rows.items()}
        return model(labels=batch["classes"], **rows).loss
    if not model.config.is_encoder_decoder:
        return model(input_ids=tokens.clamp_min(0), attention_mask=mask, labels=labels,
                     token_type_ids=batch["types"].clamp_min(0),
                     next_sentence_label=batch["classes"]).loss
    return model(input_ids=batch["encoder_tokens"].clamp_min(0),
                 attention_mask=(batch["encoder_tokens"] >= 0).long(), labels=labels,
                 decoder_input_ids=tokens.clamp_min(0), use_cache=False).loss
