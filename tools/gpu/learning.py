"""`gpu_check learn`: the first shape learns stories for the whole time of a part; its curve is a picture."""

import math
import os

from session import Failure, LeftOut
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
_METRICS, _PICTURE = "learn_metrics.jsonl", "learn.svg"


def _minutes(session):
    """How long it trains: what is left, without the time to start and to draw."""
    return max(1, int((session.left() - 45) / 60))


def _learn(session):
    shape, metrics = SHAPES[0], session.path(_METRICS)
    minutes = _minutes(session)
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
    metrics, picture = session.path(_METRICS), session.result_path(_PICTURE)
    if not os.path.exists(metrics):
        raise LeftOut("nothing was learned that it could show")
    session.run([session.program("plot_loss"), "--output=" + picture, metrics], "plot_loss.log", 30).require_success()
    if not os.path.exists(picture):
        raise Failure("it wrote no picture")


def _remove(*paths):
    for path in paths:
        if os.path.exists(path):
            os.remove(path)


def learn(session):
    session.plan([("training", "stories", 60 * _minutes(session)), ("picture", _PICTURE, 2)])
    # No picture of an earlier curve stands for this one.
    if session.wants("training") and not session.is_done("training", "stories"):
        _remove(session.path(_METRICS), session.result_path(_PICTURE))
    row = session.step("training", "stories", lambda: _learn(session), need=60)
    session.step("picture", _PICTURE, lambda: _picture(session), need=0)
    if row["verdict"] != "passed":
        return ""
    return ("%(steps)d steps, %(samples)d samples in %(minutes)d min: loss %(first_loss).3f to %(last_loss).3f nats a "
            "token; the stories' entropy is what make_stories --print_entropy says\n" % row)
