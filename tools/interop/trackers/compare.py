"""Follows runs by tools/track.py and compares what W&B, MLflow and trackio have stored with metrics.jsonl, value by value.

  compare.py BIN_DIRECTORY WORK_DIRECTORY
"""

import collections
import glob
import json
import math
import os
import signal
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from small_runs import SmallRuns

BIN, WORK = sys.argv[1], sys.argv[2]
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "track.py")
TRACKERS = ("wandb", "mlflow", "trackio")
ITERATIONS, SAVE, KILL = 30, 10, 16
# What a step that is taken twice says both times, with what evaluations say.
TRAINED = {"lm loss", "learning-rate", "grad-norm", "loss-scale", "batch-size", "skipped", "lm loss validation",
           "lm loss validation ppl"}
RUN = ["--config=gpt_demo"] + ["--set=" + field for field in (
    "model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "model.seq_length=32",
    "data.stories.num_bytes=100000", "train.global_batch_size=4", "train.micro_batch_size=4", f"train.train_iters={ITERATIONS}",
    "train.eval_interval=5", "train.eval_iters=1", f"checkpoint.save_interval={SAVE}", "optimizer.lr_warmup_iters=2")]
ENVIRONMENT = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "TRACKIO_DIR": f"{WORK}/trackio",
               "MLFLOW_TRACKING_URI": f"sqlite:///{WORK}/mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true",
               "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
os.environ.update(ENVIRONMENT)
TIMEOUT = 300

runs = SmallRuns(BIN, WORK, RUN, TIMEOUT)
check, rows, wait_for, log_of = runs.check, runs.rows, runs.wait_for, runs.log_of


def follow(to, run, *more):
    log = open(os.path.join(WORK, f"{run}_{to}.log"), "a")
    return subprocess.Popen([sys.executable, PROGRAM, "--to=" + to, *more, run], cwd=WORK, stdout=log, stderr=log)


def state(to, run):
    try:
        with open(f"{WORK}/{run}/tracking_{to}.json") as file:
            return json.load(file)
    except FileNotFoundError:
        return {"sent": {}, "run": None, "number": 0}


def expected(run):
    """The curves of metrics.jsonl by their tags: iteration and value of each point."""
    curves = collections.defaultdict(list)
    for row in rows(run):
        for name, value in row.items():
            if name not in ("iteration", "consumed_samples"):
                value = math.nan if value is None else float(value)
                tag, value = ("iteration-time", value / 1e3) if name == "elapsed_ms" else (name, value)
                curves[tag].append((row["iteration"], value))
    return curves


def samples_of(run):
    """The consumed samples of each iteration of metrics.jsonl."""
    return {row["iteration"]: row["consumed_samples"] for row in rows(run) if "consumed_samples" in row}


def same(points, others):
    return len(points) == len(others) and all(
        a == c and (b == d or math.isnan(b) and math.isnan(d)) for (a, b), (c, d) in zip(points, others))


def wandb_records(path):
    """The records of a .wandb file: a header of 7 bytes, then blocks of LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2
    with open(path, "rb") as file:
        data = file.read()
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4:at + 7])
        if kind == 0:
            return
        record += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def wandb_value(item):
    if item.value_json:
        return json.loads(item.value_json)
    field, value = item.value.ListFields()[0]
    return value


def stored_by_wandb(run):
    """The curves, the configuration and the samples; each row of a step counts once, the first time."""
    curves, config, samples, taken = collections.defaultdict(list), {}, {}, set()
    identifier = state("wandb", run)["run"]
    for path in sorted(glob.glob(f"{WORK}/wandb/offline-run-*-{identifier}/run-{identifier}.wandb")):
        for record in wandb_records(path):
            if record.WhichOneof("record_type") == "run":
                config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
            if record.WhichOneof("record_type") != "history":
                continue
            row = {item.key or ".".join(item.nested_key): wandb_value(item) for item in record.history.item}
            if row["_step"] in taken:
                continue
            taken.add(row["_step"])
            for name, value in row.items():
                if name == "consumed_samples":
                    samples[int(row["iteration"])] = value
                elif name != "iteration" and not name.startswith("_"):
                    curves[name].append((row["iteration"], float(value)))
    return curves, config, samples


def stored_by_mlflow(run):
    import mlflow
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("megatron").experiment_id
    found = client.search_runs([experiment], "tags.`megatron.run` = '%s'" % state("mlflow", run)["run"])
    check(f"MLflow has one run of {run}, with its name", len(found) == 1 and found[0].info.run_name == run)
    curves = {name: sorted(((m.step, m.value) for m in client.get_metric_history(found[0].info.run_id, name)),
                           key=lambda point: point[0]) for name in found[0].data.metrics}
    return curves, found[0].data.params, {}


def stored_by_trackio(run):
    from trackio.sqlite_storage import SQLiteStorage
    curves, samples = collections.defaultdict(list), {}
    name = "%s-%s" % (run, state("trackio", run)["run"])
    for row in SQLiteStorage.get_logs("megatron", name):
        for key, value in row.items():
            if key == "consumed_samples":
                samples[row["step"]] = value
            elif key not in ("step", "timestamp"):
                curves[key].append((row["step"], float(value)))
    return curves, SQLiteStorage.get_run_config("megatron", name), samples


def compare(to, run):
    curves, config, samples = {"wandb": stored_by_wandb, "mlflow": stored_by_mlflow, "trackio": stored_by_trackio}[to](run)
    wanted = expected(run)
    if to == "mlflow":
        over_samples = {name: points for name, points in curves.items() if name.endswith(" vs samples")}
        curves = {name: points for name, points in curves.items() if name not in over_samples}
        axis = samples_of(run)
        for name in ("lm loss", "grad-norm", "learning-rate", "lm loss validation"):
            check(f"{to}: {run}: {name} vs samples", same(over_samples.get(name + " vs samples", []),
                                                         [(axis[step], value) for step, value in wanted[name]]))
        check(f"{to}: {run}: speed has no second curve", "tokens_per_second vs samples" not in over_samples)
    else:
        check(f"{to}: {run}: consumed samples", samples == samples_of(run))
    check(f"{to}: {run}: the names are those of metrics.jsonl", set(curves) == set(wanted))
    for name, points in wanted.items():
        stored = curves.get(name, [])
        if name in TRAINED:
            check(f"{to}: {run}: {name}: {len(points)} values", same(stored, points))
        else:
            check(f"{to}: {run}: {name}: one point a step", all(a < b for (a, _), (b, _) in zip(stored, stored[1:])))
    return config


def check_config(to, config):
    values = {"model.hidden_size": 32, "train.train_iters": ITERATIONS, "optimizer.optimizer": "adam"}
    check(f"{to}: the configuration", all(
        str((config or {}).get(name)) == str(value) for name, value in values.items()) and len(config) > 100)


def follow_a_run_that_is_killed():
    """Training is killed and continued, and then each follower, too."""
    os.mkdir(f"{WORK}/killed")
    followers = {to: follow(to, "killed") for to in TRACKERS}
    training = runs.start("killed")
    reached = wait_for(lambda: len(rows("killed")) >= KILL or training.poll() is not None)
    training.send_signal(signal.SIGKILL)
    check("a run is killed", reached and training.wait() == -signal.SIGKILL)
    last = rows("killed")[-1]["iteration"]
    for to in ("mlflow", "trackio"):
        check(f"{to} gets the steps while they come",
              wait_for(lambda: state(to, "killed")["sent"].get("step") == last))
    for to, follower in followers.items():
        follower.kill()
        follower.wait()
    check("the run is continued", runs.start("killed").wait() == 0)
    followers = {to: follow(to, "killed", "--once") for to in TRACKERS}
    for to, follower in followers.items():
        check(f"{to}: the follower, started again, ends well", follower.wait(TIMEOUT) == 0)
        check_config(to, compare(to, "killed"))


def send_odd_numbers():
    os.mkdir(f"{WORK}/odd")
    with open(f"{WORK}/odd/metrics.jsonl", "w") as file:
        file.write('{"iteration":1,"consumed_samples":8,"lm loss":null,"learning-rate":1e-300,"grad-norm":1.7976931348623157e308,'
                   '"elapsed_ms":0.1,"tokens_per_second":123456.789,"tflops":1e-9,"share/tp":0.25,"skipped":true}\n{"iteration":2,"lm lo\n'
                   '{"iteration":4000000000,"consumed_samples":32000000000,"lm loss":0.1,"skipped":false}\n{"iteration":4000')
    with open(f"{WORK}/odd/metrics.jsonl") as file:
        whole = [line for line in file if line.endswith("}\n")]
    followers = {to: follow(to, "odd", "--once") for to in TRACKERS}
    for to, follower in followers.items():
        check(f"{to}: odd numbers and torn lines are no error", follower.wait(TIMEOUT) == 0)
        check(f"{to}: the torn line is told", "no record of metrics" in log_of("odd_" + to))
    with open(f"{WORK}/odd/metrics.jsonl", "w") as file:
        file.writelines(whole)
    for to in TRACKERS:
        compare_odd(to)


def compare_odd(to):
    curves, _, _ = {"wandb": stored_by_wandb, "mlflow": stored_by_mlflow, "trackio": stored_by_trackio}[to]("odd")
    for name, points in expected("odd").items():
        check(f"{to}: odd: {name}", same(curves.get(name, []), points))


def main():
    os.makedirs(WORK)
    follow_a_run_that_is_killed()
    send_odd_numbers()
    runs.finish()


main()
