"""Reads our TensorBoard files by TensorBoard itself: its fast loader, in a server that is open while a run is killed and
continued, and its slow loader, EventAccumulator.

  compare.py BIN_DIRECTORY WORK_DIRECTORY
"""

import glob
import json
import math
import os
import re
import struct
import subprocess
import sys
import urllib.parse
import urllib.request

from tensorboard.backend.event_processing import event_accumulator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from small_runs import SmallRuns

BIN, WORK = sys.argv[1], sys.argv[2]
ITERATIONS, EVALUATE, SAVE, LOG = 40, 5, 8, 4
SAMPLES = 8  # of a step
TIMEOUT = 60

# A mixture of experts on eight ranks: tensor 2 x pipeline 2 x data 2.
RUN = ["--config=moe_tiny"] + ["--set=" + field for field in (
    "model.hidden_size=64", "model.moe_ffn_hidden_size=32", "model.seq_length=64", "data.stories.num_bytes=200000",
    "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2", "parallel.data_parallel_size=2",
    f"train.global_batch_size={SAMPLES}", f"train.train_iters={ITERATIONS}", f"train.eval_interval={EVALUATE}",
    "train.eval_iters=1", f"train.log_interval={LOG}", f"checkpoint.save_interval={SAVE}", "optimizer.lr_warmup_iters=2")]
BOTH_AXES = ["lm loss", "learning-rate", "batch-size", "loss-scale", "grad-norm"]
ONE_AXIS = ["seq_load_balancing_loss", "z_loss", "iteration-time", "throughput", "tokens_per_second"]
LOGGED = ["world-size", "skipped-iterations", "nan-iterations", "mem-allocated-bytes", "mem-max-allocated-bytes"]

runs = SmallRuns(BIN, WORK, RUN, TIMEOUT)
check, start, wait_for, kill_after = runs.check, runs.start, runs.wait_for, runs.kill_after


def rows(run):
    """The steps and the evaluations of metrics.jsonl."""
    return runs.steps(run), [row for row in runs.rows(run) if "lm loss validation" in row]


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class Server:
    """TensorBoard with its fast loader."""

    def __init__(self, folder):
        self.log = os.path.join(WORK, "server.log")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port=0", "--reload_interval=1", "--load_fast=true",
             "--samples_per_plugin=scalars=1000000"], stdout=subprocess.DEVNULL, stderr=open(self.log, "w"))
        self.url = None

        def is_up():
            found = re.search(r"http://localhost:\d+/", open(self.log).read())
            self.url = found and found[0]
            return self.url or self.process.poll() is not None
        wait_for(is_up)
        if not self.url:
            sys.exit(open(self.log).read())

    def get(self, path, body=None, **query):
        url = self.url + "data/" + path + ("?" + urllib.parse.urlencode(query) if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def tags(self, run):
        return self.get("plugin/scalars/tags").get(run, {})

    def curve(self, run, tag):
        try:
            return [(int(step), float(value)) for _, step, value in self.get("plugin/scalars/scalars", run=run, tag=tag)]
        except urllib.error.HTTPError:
            return []

    def curves(self, run):
        return {tag: self.curve(run, tag) for tag in self.tags(run)}

    def stop(self):
        self.process.terminate()
        self.process.wait()


def slow_curves(folder):
    loader = event_accumulator.EventAccumulator(folder, size_guidance={event_accumulator.SCALARS: 0})
    loader.Reload()
    return {tag: [(event.step, event.value) for event in loader.Scalars(tag)] for tag in loader.Tags()["scalars"]}


def without_times(curves):
    return {tag: points for tag, points in curves.items()
            if tag not in ("iteration-time", "throughput", "tokens_per_second")
            and not tag.startswith(("share/", "slowest-rank"))}


def check_against_metrics(what, run, curves):
    steps, evaluations = rows(run)
    for tag in BOTH_AXES + ["seq_load_balancing_loss", "z_loss"]:
        expected = [(step["iteration"], float32(step[tag])) for step in steps]
        check(f"{what}: {tag} is that of metrics.jsonl, one point a step", curves.get(tag) == expected)
    for tag in BOTH_AXES:
        expected = [(step["consumed_samples"], float32(step[tag])) for step in steps]
        check(f"{what}: {tag} vs samples", curves.get(tag + " vs samples") == expected)
    for tag in ("lm loss validation", "lm loss validation ppl"):
        expected = [(row["iteration"], float32(row[tag])) for row in evaluations]
        check(f"{what}: {tag} is that of metrics.jsonl", curves.get(tag) == expected)
        check(f"{what}: {tag} vs samples",
              curves.get(tag + " vs samples") == [(SAMPLES * step, value) for step, value in expected])
    check(f"{what}: iteration-time is in seconds",
          curves.get("iteration-time") == [(step["iteration"], float32(step["elapsed_ms"] / 1e3)) for step in steps])
    check(f"{what}: throughput is that of one of 8 ranks",
          curves.get("throughput") == [(step["iteration"], float32(step["tflops"] / 8)) for step in steps])


def files(run):
    return sorted(glob.glob(f"{WORK}/{run}/tensorboard/*"))


def main():
    os.makedirs(WORK)
    check("a run ends well", start("whole").wait() == 0)
    steps, evaluations = rows("whole")
    check("it has all steps and evaluations", (len(steps), len(evaluations)) == (ITERATIONS, ITERATIONS // EVALUATE))

    # Killed twice: in the middle of what is after a checkpoint, and soon after it was continued.
    server = Server(WORK)
    run = "killed/tensorboard"
    check("a run is killed", kill_after(start("killed"), "killed", 2 * SAVE + 6))
    last = rows("killed")[0][-1]["iteration"]
    check("the open TensorBoard has the killed run",
          wait_for(lambda: (server.curve(run, "lm loss") or [(0, 0)])[-1][0] >= last))
    with open(files("killed")[-1], "ab") as file:
        file.write(b"\x18\0\0\0\0\0\0\0\xa3")  # a record that is cut off
    check("it is continued and killed", kill_after(start("killed"), "killed", 3 * SAVE + 2))
    with open(files("killed")[-1], "ab") as file:
        file.write(b"\x18")
    check("it is continued to the end", start("killed").wait() == 0)
    check("the open TensorBoard has the end",
          wait_for(lambda: (server.curve(run, "lm loss validation") or [(0, 0)])[-1][0] == ITERATIONS))
    open_curves = server.curves(run)
    check_against_metrics("open TensorBoard", "killed", open_curves)
    check("open TensorBoard: each tag has one point a step",
          all(a < b for points in open_curves.values() for (a, _), (b, _) in zip(points, points[1:])))
    server.stop()

    server = Server(WORK)
    wait_for(lambda: len(server.tags(run)) == len(open_curves))
    fresh = server.curves(run)
    check("a new TensorBoard shows the same", fresh == open_curves)
    whole = server.curves("whole/tensorboard")
    check_against_metrics("uninterrupted run", "whole", whole)
    # The first steps of each start of the program are logged; else the curves are the same bits.
    for tag in sorted(set(whole) | set(fresh)):
        if tag in without_times(whole) and tag.replace(" vs samples", "") not in LOGGED:
            check(f"killed and uninterrupted runs have the same {tag}", fresh.get(tag) == whole[tag])
    check("both have the same tags", set(fresh) == set(whole))
    expected = BOTH_AXES + ONE_AXIS + LOGGED + ["world-size", "lm loss validation", "lm loss validation ppl"]
    check("Megatron's tags are there", set(expected) <= set(whole))
    logged = [step for step in range(1, ITERATIONS + 1) if step <= 3 or step % LOG == 0]
    check("memory is there where steps are logged", [step for step, _ in whole["mem-max-allocated-bytes"]] == logged)
    check("the number of ranks is 8", {value for _, value in whole["world-size"]} == {8.0})

    for tag, facts in sorted(server.tags("whole/tensorboard").items()):
        check(f"TensorBoard explains {tag}", len(facts["description"]) > 10)
    text = server.get("plugin/text/text", run="whole/tensorboard", tag="configuration")
    check("the configuration is a card", len(text) == 1 and "num_layers" in text[0]["text"])
    layout = server.get("plugin/custom_scalars/layout")
    charts = {chart["title"]: chart["multiline"]["tag"] for chart in layout["category"][0]["chart"]}
    check("one picture has the losses of training and validation",
          {"^lm loss$", "^lm loss validation$"} <= set(charts.get("loss", [])))
    pattern = next(tag for tag in charts["loss"] if tag == "^lm loss validation$")
    chart = server.get("plugin/custom_scalars/scalars", run="whole/tensorboard", tag=pattern)
    check("a picture's expression finds its curve", list(chart["tag_to_events"]) == ["lm loss validation"])
    groups = server.get("plugin/hparams/session_groups", body={
        "experimentName": "", "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
        "colParams": [], "startIndex": 0, "sliceSize": 100})["sessionGroups"]
    check("the table of runs has both runs", len(groups) == 2)
    hparams = groups[0]["hparams"] if groups else {}
    check("the table of runs has hyperparameters",
          hparams.get("model.hidden_size") == 64 and hparams.get("optimizer.lr") == 3e-3)
    server.stop()

    for name, curves in (("whole", whole), ("killed", fresh)):
        slow = slow_curves(f"{WORK}/{name}/tensorboard")
        check(f"slow loader: {name}: the same tags", set(slow) == set(curves))
        twice = 0
        same = True
        for tag, points in slow.items():
            once = [point for point, before in zip(points, [None] + points) if point != before]
            same = same and once == curves.get(tag)
            twice = max(twice, len(points) - len(once))
        check(f"slow loader: {name}: the same points", same)
        # One where the last start resumed; those of the start before were cut.
        check(f"slow loader: {name}: {twice} points of a tag are there twice", twice <= (name == "killed"))

    tool = f"{BIN}/tools/metrics_to_tensorboard"
    made = f"{WORK}/made"
    answer = subprocess.run([tool, f"--output={made}", "--ranks=8", f"{WORK}/whole/metrics.jsonl"], capture_output=True, text=True)
    check("metrics_to_tensorboard makes files", answer.returncode == 0)
    curves = slow_curves(made)
    check_against_metrics("made anew", "whole", curves)
    check("made anew: the same curves as the run's",
          all(points == whole[tag] for tag, points in curves.items()))
    answer = subprocess.run([tool, f"--output={made}", f"{WORK}/whole/metrics.jsonl"], capture_output=True, text=True)
    check("it leaves a folder with event files alone", answer.returncode != 0 and "name another directory" in answer.stderr)
    odd = f"{WORK}/odd.jsonl"
    with open(odd, "w") as file:
        file.write('{"iteration":1,"consumed_samples":8,"lm loss":null,"learning-rate":1e300,"loss-scale":1.0,"batch-size":8,'
                   '"skipped":true,"elapsed_ms":1.0,"tokens_per_second":1.0,"tflops":1.0}\n')
    answer = subprocess.run([tool, f"--output={WORK}/odd", odd], capture_output=True, text=True)
    curves = slow_curves(f"{WORK}/odd")
    check("numbers that are not finite are points", answer.returncode == 0 and math.isnan(curves["lm loss"][0][1])
          and curves["learning-rate"] == [(1, math.inf)])

    with open(f"{WORK}/a_file", "w") as file:
        file.write("text")
    code = start("unwritable", f"--set=logging.tensorboard_dir={WORK}/a_file", "--set=train.train_iters=12").wait()
    check("a run whose folder cannot be made ends well", code == 0 and len(rows("unwritable")[0]) == 12)
    check("it says so once", runs.log_of("unwritable").count("metrics could not be written") == 1)
    code = start("off", '--set=logging.tensorboard_dir=""', "--set=train.train_iters=4").wait()
    check("it can be switched off", code == 0 and not files("off") and len(rows("off")[0]) == 4)

    runs.finish()


main()
