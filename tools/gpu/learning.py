"""`gpu_check learn`: the first shape learns stories for the whole time of a part; its curve is a picture."""

import math
import os

from session import Failure
from shapes import SHAPES
from trainer import Trainer, read_metrics

# There are so many stories that none comes twice in this time. Their alphabet is small; the
# vocabulary is padded to that of the shape, so that the model is the one that is timed.
_STORIES = ("--set=data.mock_data=", "--set=data.vocab_size=", "--set=data.tokenizer_type=ByteLevel",
            "--set=data.stories.num_bytes=200000000", "--set=model.make_vocab_size_divisible_by=50304")
_RECIPE = ("--set=optimizer.lr=3e-4", "--set=optimizer.lr_decay_style=constant", "--set=optimizer.lr_warmup_fraction=",
           "--set=optimizer.lr_warmup_iters=50", "--set=train.train_iters=4000", "--set=train.log_interval=10",
           "--set=train.eval_interval=100", "--set=train.eval_iters=2")
_TIME_LIMIT = 11  # the trainer's exit code when it leaves on time


def _learn(session):
    shape, metrics = SHAPES[0], session.path("learn_metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    minutes = max(1, int((session.left() - 45) / 60))
    done = session.run([session.program("pretrain_gpt"), *shape.arguments(), *Trainer.sizes(shape.batches[0], 1),
                        *_STORIES, *_RECIPE, "--set=train.exit_duration_in_mins=%d" % minutes,
                        "--set=system.time_gemm_kernels=true", "--set=logging.metrics_file=" + metrics],
                       "learn.log", session.left() + 1)
    if done.code not in (0, _TIME_LIMIT):
        done.require_success()
    steps = read_metrics(metrics)
    if len(steps) < 20:
        raise Failure("only %d steps" % len(steps))
    losses = [step["lm loss"] for step in steps]
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        raise Failure("a loss is not finite")
    if not losses[-1] < 0.5 * losses[0]:
        raise Failure("the loss fell only from %.3f to %.3f" % (losses[0], losses[-1]))
    return {"minutes": minutes, "steps": len(steps), "samples": steps[-1]["consumed_samples"], "first_loss": losses[0],
            "last_loss": losses[-1]}


def _picture(session):
    picture = session.result_path("learn.svg")
    session.run([session.program("plot_loss"), "--output=" + picture, session.path("learn_metrics.jsonl")],
                "plot_loss.log", 30).require_success()
    if not os.path.exists(picture):
        raise Failure("it wrote no picture")


def learn(session):
    row = session.step("training", "stories", lambda: _learn(session), need=60)
    session.step("picture", "learn.svg", lambda: _picture(session), need=0)
    if row["verdict"] != "passed":
        return ""
    return ("%(steps)d steps, %(samples)d samples in %(minutes)d min: loss %(first_loss).3f to %(last_loss).3f nats a "
            "token; the stories' entropy is what make_stories --print_entropy says\n" % row)
