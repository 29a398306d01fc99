"""Runs of the trainer: what it plans, and how fast it is."""

import json
import math
import os
import shlex
import statistics

from session import Failure

_GIB = 2**30


class OutOfMemory(Failure):
    pass


def read_metrics(path):
    """The steps of a metrics file, whole lines alone."""
    if not os.path.exists(path):
        return []
    steps = []
    with open(path, errors="replace") as file:
        for line in file:
            try:
                step = json.loads(line)
            except ValueError:
                continue
            if "lm loss" in step:
                steps.append(step)
    return steps


def require_learning(steps, wanted):
    """That there are all steps, with losses that are finite and, over 20 of them or more, fall."""
    numbers = [step["iteration"] for step in steps]
    if numbers != list(range(1, wanted + 1)):
        raise Failure("%d steps in place of %d" % (len(steps), wanted))
    losses = [step["lm loss"] for step in steps]
    for step, loss in zip(steps, losses):
        if loss is None or not math.isfinite(loss):
            raise Failure("the loss of step %d is not finite" % step["iteration"])
    first, last = statistics.mean(losses[:5]), statistics.mean(losses[-5:])
    if wanted >= 20 and not last < first:  # with fewer steps, batches differ by more
        raise Failure("the loss does not fall: %.6g, then %.6g" % (first, last))


class Trainer:

    def __init__(self, session, device_mib):
        self.session, self.device_mib = session, device_mib  # None: unknown

    def _run(self, log, limit, arguments):
        done = self.session.run([self.session.program("pretrain_gpt"), *arguments], log, limit)
        self.command = shlex.join(["pretrain_gpt", *arguments])  # command of the last run
        if done.code != 0 and "out of memory on cuda" in done.text():
            raise OutOfMemory(done.last_words())
        return done.require_success()

    @staticmethod
    def sizes(batch, ranks):
        return ["--set=system.device=cuda", "--set=train.eval_iters=0", "--set=train.micro_batch_size=%d" % batch,
                "--set=train.global_batch_size=%d" % (batch * ranks)]

    def plan(self, shape, batch, extra=()):
        """Parameters, model FLOPs a token and GiB, as --dry_run counts them."""
        text = self._run("%s.%d.plan.log" % (shape.name, batch), 60,
                         [*shape.arguments(), *self.sizes(batch, 1), *extra, "--dry_run", "--json"]).text()
        try:
            plan = json.loads(text[text.index("{"):text.rindex("}") + 1])
        except ValueError:
            raise Failure("the trainer printed no plan") from None
        return {"parameters": plan["parameters"], "flops_causal": plan["flops_per_token"],
                "flops_full": plan["flops_per_token_with_full_attention"],
                "planned_gib": plan["memory"]["stages"][0]["bytes"] / _GIB}

    def fits(self, plan):
        """Whether a plan fits, with what the driver and the libraries take."""
        return self.device_mib is None or plan["planned_gib"] + 1.5 < self.device_mib / 1024

    def train(self, shape, batch, steps, log, extra=(), ranks=1, limit=90):
        """Trains on tokens made up, of which the first quarter is not timed; the step times' median counts."""
        metrics = self.session.path(log + ".jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        done = self._run(log + ".log", limit,
                         [*shape.arguments(), *self.sizes(batch, ranks), "--set=train.log_interval=5",
                          "--set=train.exit_interval=%d" % steps, "--set=logging.metrics_file=" + metrics, *extra])
        taken = read_metrics(metrics)
        require_learning(taken, steps)
        timed = taken[steps // 4:]
        figures = {"command": self.command, "batch": batch, "steps": steps,
                   "tokens_per_second": statistics.median(step["tokens_per_second"] for step in timed)}
        utilisations = [step["mfu"] for step in timed if step.get("mfu") is not None]
        if utilisations:
            figures["mfu_causal"] = statistics.median(utilisations)
        return figures, done
