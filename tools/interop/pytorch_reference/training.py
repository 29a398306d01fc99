"""Trains a model of model.py or hugging_face.py as a run of ours does: schedule, clipping, AdamW or SGD."""

import math

import torch

import hugging_face
import model


def learning_rate(o, samples):
    """Linear warm-up from 0, then half a cosine wave down to min_lr. Under muP groups have a part of it."""
    warmup, end = o["lr_warmup_samples"], o["lr_decay_samples"]
    if warmup > 0 and samples <= warmup:
        return o["lr"] * samples / warmup
    if samples > end:
        return o["min_lr"]
    share = (samples - warmup) / (end - warmup)
    return o["min_lr"] + (o["lr"] - o["min_lr"]) * (1 + math.cos(math.pi * share)) / 2


def make_optimizer(o, weights):
    wide = o.get("mup_width_mult", 1)
    groups = [{
        "params": [w for name, w in weights.items()
                   if w.requires_grad and model.decays(name, w.shape) == decays and
                   model.is_hidden(name, w.shape) == hidden],
        "weight_decay": o["weight_decay"] if decays else 0.0,
    } for decays in (True, False) for hidden in (True, False)]
    for group, hidden in zip(groups, (True, False, True, False)):
        if o["optimizer"] == "sgd":
            group["lr_factor"] = 1 if hidden else wide
        else:
            group["lr_factor"] = 1 / wide if hidden else 1
            group["eps"] = o["adam_eps"] * group["lr_factor"]
    groups = [group for group in groups if group["params"]]
    if o["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=o["lr"], momentum=o["sgd_momentum"])
    return torch.optim.AdamW(groups, lr=o["lr"], betas=(o["adam_beta1"], o["adam_beta2"]),
                             eps=o["adam_eps"])


def start(m, initial, dtype):
    """Returns the weights, and their loss of a batch as a function."""
    if hugging_face.has(m):
        reference = hugging_face.make(m).to(dtype)
        weights = dict(reference.named_parameters())
        for name, weight in weights.items():
            weight.data.copy_(initial[name])
        return weights, lambda batch: hugging_face.loss(reference, batch)
    frozen = {name for name in initial if m.get("lora_dim", 0) > 0 and ".adapter." not in name}
    weights = {name: torch.nn.Parameter(w.to(dtype).clone(), requires_grad=name not in frozen)
               for name, w in initial.items()}
    return weights, lambda batch: model.loss(m, weights, batch)


def train(config, initial, batches, dtype=torch.float32):
    """Returns (losses, gradient norms, final weights) of one update per batch of `batches`."""
    o = config["optimizer"]
    weights, loss = start(config["model"], initial, dtype)
    optimizer = make_optimizer(o, weights)
    losses, norms, samples = [], [], 0
    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(o, samples) * group["lr_factor"]
        optimizer.zero_grad()
        value = loss(batch)
        value.backward()
        limit = o["clip_grad"] if o["clip_grad"] > 0 else math.inf
        trained = [w for w in weights.values() if w.requires_grad]
        norms.append(torch.nn.utils.clip_grad_norm_(trained, limit).item())
        losses.append(value.item())
        optimizer.step()
        samples += config.get("global_batch_size", batch["tokens"].shape[0])
    return losses, norms, {name: w.detach() for name, w in weights.items()}
