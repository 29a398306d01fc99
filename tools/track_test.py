#!/usr/bin/env python3
"""tools/track.py with trackers that are stubs: what they are told is a file, and they fail as they are told."""

import fcntl
import importlib.util
import json
import math
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "track.py")
METRICS_PAGE = os.path.join(os.path.dirname(HERE), "docs", "metrics.md")
TIMEOUT = 120

sys.dont_write_bytecode = True
_spec = importlib.util.spec_from_file_location("track", PROGRAM)
track = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(track)

# What all three stubs share: $STUB_TOLD is told one JSON value a line; the file $STUB_FAULT holds a fault.
STUB = r'''
import json, os, signal
def told():
    try:
        with open(os.environ["STUB_TOLD"]) as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []
def tell(**what):
    with open(os.environ["STUB_TOLD"], "a") as file:
        file.write(json.dumps(what) + "\n")
def fault():
    try:
        with open(os.environ["STUB_FAULT"]) as file:
            return file.read()
    except FileNotFoundError:
        return ""
def kill_if(what):
    if fault() == what:
        os.remove(os.environ["STUB_FAULT"])
        os.kill(os.getpid(), signal.SIGKILL)
'''

WANDB = r'''
import stub
class Run:
    def __init__(self, id, config):
        self.id, self.resumed = id, any(t.get("id") == id for t in stub.told())
        self.last = max([t["step"] for t in stub.told() if t.get("row") and t["id"] == id], default=-1)
        self.config, self.block = self, []
        stub.tell(id=id, config=config)
    def update(self, config, allow_val_change):
        stub.tell(id=self.id, config=config)
    def define_metric(self, name, step_metric=None):
        pass
    def log(self, row, step, commit):
        if stub.fault() == "refuse":
            raise RuntimeError("no connection")
        if step > self.last:  # as W&B's server does
            self.block.append(dict(id=self.id, step=step, row=row))
            self.last = step
        if stub.fault() != "buffer" or sum(len(str(what)) for what in self.block) > 32768:
            self.flush()
        if stub.fault() == "buffer":
            stub.tell(logged=step)
    def flush(self):
        for what in self.block:
            stub.tell(**what)
        self.block = []
    def finish(self):
        self.flush()
        stub.tell(id=self.id, finished=True)
def init(project, id, config, resume):
    assert resume == "allow"
    return Run(id, config)
def teardown():
    pass
'''

TRACKIO = r'''
import stub, warnings
def init(project, name, config, resume, embed, auto_log_gpu, auto_log_cpu):
    global rows, run
    assert resume == "allow"
    rows, run = [], type("Run", (), {"log": lambda self, row, step: rows.append((row, step))})()
    run.name = name
    stub.tell(id=name, config=config)
    return run
def finish():
    stub.kill_if("kill")
    if stub.fault() == "refuse":
        warnings.warn("trackio failed to flush metric logs: disk full. This batch could not be persisted.")
        return
    for row, step in rows:
        stub.tell(id=run.name, step=step, row={"iteration": step, **row})
'''

MLFLOW = r'''
import stub
from types import SimpleNamespace as S
class MlflowClient:
    def get_experiment_by_name(self, name):
        return S(experiment_id="1") if any("experiment" in t for t in stub.told()) else None
    def create_experiment(self, name):
        stub.tell(experiment=name)
        return "1"
    def search_runs(self, experiments, text, max_results):
        return [S(info=S(run_id=t["id"])) for t in stub.told() if t.get("created") and "'%s'" % t["tag"] in text]
    def create_run(self, experiment, tags, run_name):
        id = "run%d" % len(stub.told())
        stub.tell(id=id, created=True, tag=tags["megatron.run"])
        return S(info=S(run_id=id))
    def update_run(self, id, status):
        pass
    def get_run(self, id):
        return S(data=S(params={k: v for t in stub.told() for k, v in t.get("params", {}).items()}))
    def set_tag(self, id, name, value):
        stub.tell(id=id, tag=[name, value])
    def log_batch(self, id, metrics=(), params=()):
        assert len(metrics) <= 1000 and len(params) <= 100
        if stub.fault() == "refuse":
            raise RuntimeError("no connection")
        known = {json_of(t["metric"]) for t in stub.told() if "metric" in t and t["id"] == id}
        for metric in metrics:
            if json_of(metric) not in known:  # as MLflow's store does
                stub.tell(id=id, metric=metric)
        if params:
            stub.tell(id=id, params=dict(params))
        if metrics:
            stub.kill_if("kill")
    def set_terminated(self, id):
        stub.tell(id=id, finished=True)
def json_of(value):
    import json
    return json.dumps(value)
'''

MLFLOW_ENTITIES = r'''
def Metric(key, value, timestamp, step):
    return [key, value, timestamp, step]
def Param(key, value):
    return [key, value]
'''


def step(iteration, loss=None, **more):
    return {"iteration": iteration, "consumed_samples": 8 * iteration, "lm loss": 5 - iteration / 7 if loss is None else loss,
            "learning-rate": 1e-3, "skipped": False, "elapsed_ms": 80 + random.random(), "tokens_per_second": 1e4, **more}


def evaluation(iteration, on="validation"):
    return {"iteration": iteration, "lm loss " + on: 4.5, "lm loss %s ppl" % on: 90.0}


def lines(records):
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def protobuf(*fields):
    """A message of fields of bytes."""
    def varint(number):
        return bytes([number & 0x7f | 0x80]) + varint(number >> 7) if number > 0x7f else bytes([number])
    return b"".join(varint(number << 3 | 2) + varint(len(value)) + value for number, value in fields)


def event_file(config):
    """An event file of TensorBoard as ours are: its first event, a point, the configuration."""
    card = protobuf((1, b"configuration"), (8, protobuf((8, b"```\n" + config.encode() + b"\n```\n"))))
    events = [protobuf((3, b"brain.Event:2"), (10, protobuf((1, b"megatron run 0123")))),
              b"\x10\x05" + protobuf((5, protobuf((1, protobuf((1, b"lm loss")) + b"\x15\0\0\x80\x3f")))),
              protobuf((5, protobuf((1, card))))]
    return b"".join(struct.pack("<Q", len(event)) + b"crc." + event + b"crc." for event in events)


class TrackTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.run_folder, self.told_file = self.path("run"), self.path("told")
        os.mkdir(self.run_folder)
        os.makedirs(self.path("stubs/mlflow"))
        for name, text in (("stub.py", STUB), ("wandb.py", WANDB), ("trackio.py", TRACKIO),
                           ("mlflow/__init__.py", MLFLOW), ("mlflow/entities.py", MLFLOW_ENTITIES)):
            with open(self.path("stubs/" + name), "w") as file:
                file.write(text)
        self.running = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.running:
            process.kill()
            process.communicate()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, records, mode="w", name="metrics.jsonl"):
        with open(os.path.join(self.run_folder, name), mode) as file:
            file.write(records if isinstance(records, str) else lines(records))

    def replace(self, records):
        """What a run does that continues."""
        self.write(records, name="new")
        os.replace(os.path.join(self.run_folder, "new"), os.path.join(self.run_folder, "metrics.jsonl"))

    def fault(self, what):
        with open(self.path("fault"), "w") as file:
            file.write(what)

    def start(self, *arguments, stubs=True, program="import track, sys; track.POLL_SECONDS = 0.02; "
              "track.QUIET_SECONDS = 0.2; sys.exit(track.main(sys.argv[1:]))"):
        environment = dict(os.environ, STUB_TOLD=self.told_file, STUB_FAULT=self.path("fault"), PYTHONDONTWRITEBYTECODE="1",
                           PYTHONPATH=os.pathsep.join([HERE] + [self.path("stubs")] * stubs))
        environment.pop("BUILD_WORKING_DIRECTORY", None)
        process = subprocess.Popen([sys.executable, "-S", "-c", program, *arguments], cwd=self.folder.name, env=environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.running.append(process)
        return process

    def end(self, process, number=None):
        """Returns the exit code and what was printed to stderr."""
        if number is not None:
            process.send_signal(number)
        _, said = process.communicate(timeout=TIMEOUT)
        return process.returncode, said

    def track(self, *arguments, **more):
        return self.end(self.start(*arguments, **more))

    def told(self):
        try:
            with open(self.told_file) as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def points(self, name="lm loss"):
        """Run, iteration and value of each point of a curve that a tracker was told, in order."""
        points = []
        for what in self.told():
            if name in what.get("row", {}):
                points.append((what["id"], what["row"]["iteration"], what["row"][name]))
            elif what.get("metric", [None])[0] == name:
                points.append((what["id"], what["metric"][3], what["metric"][1]))
        return points

    def steps(self, name="lm loss"):
        return [iteration for _, iteration, _ in self.points(name)]

    def runs(self):
        return {run for run, _, _ in self.points()}

    def wait_for(self, condition):
        end = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_each_tracker_gets_each_value_once(self):
        records = [step(1), step(2), evaluation(2), step(3), evaluation(3), evaluation(3, "test")]
        self.write(records)
        for to in track.TRACKERS:
            with self.subTest(to):
                self.told_file = self.path(to)
                for _ in range(2):
                    self.assertEqual(self.track("--to=" + to, "--once", "run")[0], 0)
                self.assertEqual([(i, value) for _, i, value in self.points()],
                                 [(r["iteration"], r["lm loss"]) for r in records if "lm loss" in r])
                self.assertEqual(self.steps("lm loss validation"), [2, 3])
                self.assertEqual(self.steps("lm loss test ppl"), [3])
                self.assertEqual([value for _, _, value in self.points("iteration-time")],
                                 [r["elapsed_ms"] / 1e3 for r in records if "lm loss" in r])
                self.assertEqual([value for _, _, value in self.points("skipped")], [0.0] * 3)
                self.assertEqual(len(self.runs()), 1)

    def test_both_axes_are_there(self):
        self.write([step(1), step(2), evaluation(2)])
        self.track("--to=mlflow", "--once", "run")
        self.assertEqual(self.steps("lm loss vs samples"), [8, 16])
        self.assertEqual(self.steps("lm loss validation vs samples"), [16])
        self.assertEqual(self.steps("tokens_per_second vs samples"), [])
        self.told_file = self.path("other")
        self.track("--to=wandb", "--once", "run")
        self.assertEqual([value for _, _, value in self.points("consumed_samples")], [8, 16, 16])

    def test_many_records_are_sent_in_the_portions_that_the_tracker_takes(self):
        self.write([step(i, loss=1 / i) for i in range(1, 5001)])
        self.assertEqual(self.track("--to=mlflow", "--once", "run")[0], 0)
        self.assertEqual(self.steps(), list(range(1, 5001)))

    def test_null_is_not_a_number(self):
        self.write('{"iteration":1,"consumed_samples":8,"lm loss":null,"grad-norm":Infinity}\n{"iteration":2,"lm loss":2}\n')
        for to in track.TRACKERS:
            self.told_file = self.path(to)
            self.assertEqual(self.track("--to=" + to, "--once", "run")[0], 0)
            self.assertTrue(math.isnan(self.points()[0][2]), to)
            self.assertEqual(self.points("grad-norm")[0][2], math.inf, to)
            self.assertEqual(self.points()[1][1:], (2, 2.0), to)

    def test_values_of_layers_are_sent_and_arrays_are_not(self):
        self.write([step(1, **{"grad-norm/decoder.layers.0": 0.5, "expert-load/decoder.layers.0": [3, 1]})])
        self.assertEqual(self.track("--to=wandb", "--once", "run")[0], 0)
        self.assertEqual(self.points("grad-norm/decoder.layers.0")[0][2], 0.5)
        self.assertEqual(self.points("expert-load/decoder.layers.0"), [])

    def test_a_line_is_sent_when_it_is_whole(self):
        text = lines([step(1), step(2)])
        self.write(text[:-30])
        process = self.start("--to=wandb", "run")
        self.wait_for(lambda: self.steps() == [1])
        self.write(text[-30:-1], "a")
        time.sleep(0.2)
        self.assertEqual(self.steps(), [1])
        self.write("\n" + lines([step(3)]), "a")
        self.wait_for(lambda: self.steps() == [1, 2, 3])
        self.assertEqual(self.end(process, signal.SIGINT), (130, self.started("wandb")))

    def started(self, to):
        return "track: project megatron, run %s\n" % self.state(to)["run"]

    def state(self, to):
        with open(os.path.join(self.run_folder, "tracking_%s.json" % to)) as file:
            return json.load(file)

    def test_lines_that_are_no_records_are_passed_over_and_told_once(self):
        self.write(lines([step(1)]) + '{"iteration":2,"lm lo\n\0\0\0\nhello\n[1]\n{"iteration":-1,"lm loss":1}\n'
                   '{"iteration":true,"lm loss":1}\n{"iteration":2,"lm loss":"x"}\n'
                   '{"iteration":2,"lm loss":1' + "0" * 5000 + '}\n'
                   '{"iteration":2,"lm loss":1,"consumed_samples":1.5}\n\n' + "[" * 100000 + "\n" + lines([step(2)]))
        code, said = self.track("--to=wandb", "--once", "run")
        self.assertEqual((code, self.steps()), (0, [1, 2]))
        self.assertEqual(said.count("no record of metrics"), 1)

    def test_a_file_without_metrics_is_an_error(self):
        self.write("hello\n")
        self.assertEqual(self.track("--to=wandb", "--once", "run")[0], track.NO_METRICS)
        self.assertEqual(self.track("--to=wandb", "--once", "nothing")[0], track.NO_METRICS)
        self.assertEqual(self.told(), [])

    def test_a_run_that_continues_is_one_run_with_one_point_a_step(self):
        for to in track.TRACKERS:
            with self.subTest(to):
                self.told_file = self.path(to)
                records = [step(i) for i in range(1, 8)]
                self.write(records[:4] + [evaluation(4)] + records[4:])
                process = self.start("--to=" + to, "run")
                self.wait_for(lambda: self.steps() == list(range(1, 8)))
                self.replace(records[:4] + [evaluation(4)])
                self.write([step(i) for i in range(5, 11)] + [evaluation(8)], "a")
                self.wait_for(lambda: self.steps("lm loss validation") == [4, 8])
                # And once more, while nobody looks.
                self.assertEqual(self.end(process, signal.SIGTERM)[0], 143)
                self.replace(records[:4] + [evaluation(4)] + [step(i) for i in range(5, 13)])
                self.assertEqual(self.track("--to=" + to, "--once", "run")[0], 0)
                self.assertEqual(self.steps(), list(range(1, 13)))
                self.assertEqual(self.steps("lm loss validation"), [4, 8])
                self.assertEqual(len(self.runs()), 1)

    def test_a_run_that_begins_again_is_the_same_if_its_first_step_is(self):
        self.write([step(1), step(2)])
        process = self.start("--to=wandb", "run")
        self.wait_for(lambda: self.steps() == [1, 2])
        self.replace([step(1), step(2), step(3)])
        self.wait_for(lambda: self.steps() == [1, 2, 3])
        self.assertEqual(len(self.runs()), 1)
        self.replace([step(1, loss=9.0), step(2)])
        self.wait_for(lambda: self.steps() == [1, 2, 3, 1, 2])
        self.assertEqual(len(self.runs()), 2)
        self.assertIn("another run", self.end(process, signal.SIGINT)[1])
        self.assertEqual(self.track("--to=wandb", "--once", "run")[0], 0)
        self.assertEqual(len(self.points()), 5)

    def test_a_follower_that_is_killed_before_it_notes_what_it_sent_sends_nothing_twice(self):
        for to in ("mlflow", "trackio"):
            with self.subTest(to):
                self.told_file = self.path(to)
                self.write([step(1), step(2), step(3)])
                self.fault("kill")
                self.assertEqual(self.track("--to=" + to, "--once", "run")[0], -signal.SIGKILL)
                self.write([step(4)], "a")
                self.assertEqual(self.track("--to=" + to, "--once", "run")[0], 0)
                self.assertEqual(self.steps(), [1, 2, 3, 4])
                self.assertEqual(len(self.runs()), 1)

    def test_what_wandb_has_not_written_when_all_are_killed_is_sent_again(self):
        self.write([step(i) for i in range(1, 301)])
        self.fault("buffer")
        process = self.start("--to=wandb", "run")
        self.wait_for(lambda: {"logged": 299} in self.told())
        time.sleep(0.2)
        self.assertEqual(self.end(process, signal.SIGKILL)[0], -signal.SIGKILL)
        self.assertTrue(0 < len(self.steps()) < 300)
        self.assertTrue(0 < self.state("wandb")["number"] <= len(self.steps()))
        self.assertEqual(self.track("--to=wandb", "--once", "run")[0], 0)
        self.assertEqual(self.steps(), list(range(1, 301)))
        self.assertEqual(len(self.runs()), 1)

    def test_a_tracker_that_fails_is_told_once_and_misses_nothing(self):
        for to in track.TRACKERS:
            with self.subTest(to):
                self.told_file = self.path(to)
                self.write([step(1), step(2)])
                self.fault("refuse")
                process = self.start("--to=" + to, "run")
                while "cannot be sent" not in process.stderr.readline():
                    pass
                self.write([step(3)], "a")
                time.sleep(0.2)
                self.assertEqual(self.steps(), [])
                os.remove(self.path("fault"))
                self.wait_for(lambda: self.steps() == [1, 2, 3])
                self.assertNotIn("cannot be sent", self.end(process, signal.SIGINT)[1])
                self.fault("refuse")
                self.write([step(4)], "a")
                code, said = self.track("--to=" + to, "--once", "run")
                self.assertEqual((code, said.count("not all sent")), (track.FILES_FAILED, 1))
                os.remove(self.path("fault"))

    def test_a_package_that_is_missing_is_named(self):
        self.write([step(1)])
        for to in track.TRACKERS:
            code, said = self.track("--to=" + to, "run", stubs=False)
            self.assertEqual(code, track.WRONG_ARGUMENT)
            self.assertIn("pip install " + to, said)
            self.assertEqual(said.count("\n"), 1)

    def test_a_wrong_argument_is_named(self):
        code, said = self.track("--to=tensorboard", "run")
        self.assertEqual((code, said.count("\n")), (track.WRONG_ARGUMENT, 1))
        self.assertIn("tensorboard", said)

    def test_a_second_follower_is_refused(self):
        self.write([step(1)])
        process = self.start("--to=wandb", "run")
        self.wait_for(lambda: self.steps() == [1])
        code, said = self.track("--to=wandb", "--once", "run")
        self.assertEqual(code, track.WRONG_ARGUMENT)
        self.assertIn("another process", said)
        self.assertEqual(self.track("--to=trackio", "--once", "run")[0], 0)
        self.end(process, signal.SIGINT)

    def test_a_foreign_file_in_the_place_of_the_state_is_left_alone(self):
        self.write([step(1)])
        for text in ("hello", "{}", "[]", '{"run":"x"}', '{"run":"%s","first":[],"sent":{},"number":0,"sending_ms":null}' % ("0" * 16)):
            self.write(text, name="tracking_wandb.json")
            code, said = self.track("--to=wandb", "--once", "run")
            self.assertEqual((code, self.told()), (track.WRONG_ARGUMENT, []))
            self.assertIn("--state", said)
            with open(os.path.join(self.run_folder, "tracking_wandb.json")) as file:
                self.assertEqual(file.read(), text)

    def test_a_state_that_cannot_be_written_is_told_once_and_the_steps_go_on(self):
        self.write([step(1)])
        os.mkdir(os.path.join(self.run_folder, "tracking_wandb.json.tmp"))
        process = self.start("--to=wandb", "run")
        self.wait_for(lambda: self.steps() == [1])
        self.write([step(2)], "a")
        self.wait_for(lambda: self.steps() == [1, 2])
        self.assertEqual(self.end(process, signal.SIGINT)[1].count("cannot write"), 1)

    def test_a_folder_that_cannot_be_written_to_asks_for_another_state(self):
        self.write([step(1)])
        code, said = self.track("--to=wandb", "--once", "--state=/proc/none/state", "run")
        self.assertEqual(code, track.FILES_FAILED)
        self.assertIn("--state", said)
        self.assertEqual(self.track("--to=wandb", "--once", "--state=state", "run")[0], 0)
        self.assertEqual(os.listdir(self.run_folder), ["metrics.jsonl"])

    def test_it_ends_when_the_run_has_ended(self):
        self.write([step(1)])
        lock = open(os.path.join(self.run_folder, ".lock"), "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = self.start("--to=mlflow", "run")
        self.wait_for(lambda: self.steps() == [1])
        time.sleep(1)
        self.assertIsNone(process.poll())
        self.write([step(2)], "a")
        lock.close()
        self.assertEqual(self.end(process)[0], 0)
        self.assertEqual(self.steps(), [1, 2])
        self.assertTrue(self.told()[-1]["finished"])

    def test_a_run_that_waits_to_be_started_again_has_not_ended(self):
        self.write([step(1)])
        lock = open(os.path.join(self.run_folder, ".lock"), "w")  # nobody holds it between two starts
        claim = open(os.path.join(self.run_folder, ".launcher"), "w")
        fcntl.flock(claim, fcntl.LOCK_EX)
        process = self.start("--to=mlflow", "run")
        self.wait_for(lambda: self.steps() == [1])
        time.sleep(1)
        self.assertIsNone(process.poll())
        claim.close()
        self.assertEqual(self.end(process)[0], 0)
        lock.close()

    def test_it_waits_for_the_file(self):
        process = self.start("--to=wandb", "run")
        self.assertIn("waits for", process.stderr.readline())
        self.write([step(1)])
        self.wait_for(lambda: self.steps() == [1])
        self.end(process, signal.SIGINT)

    def test_a_reader_that_has_ended_ends_nothing(self):
        self.write([step(1)])
        process = self.start("--to=wandb", "--once", "run")
        process.stdout.close()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=TIMEOUT), 0)
        self.assertEqual(self.steps(), [1])

    def test_the_configuration_of_the_last_start_is_the_trackers(self):
        os.mkdir(os.path.join(self.run_folder, "tensorboard"))

        def start(number, lr):
            name = "tensorboard/events.out.tfevents.%010d.host.1.0" % number
            with open(os.path.join(self.run_folder, name), "wb") as file:
                file.write(event_file('optimizer {\n  lr: %s\n}\nmodel {\n  name: "a: \\"b\\" \\303\\251"\n}\n' % lr))
        self.write("foreign", name="tensorboard/tfevents.zzz")
        start(1, 0.1)
        self.write([step(1)])
        process = self.start("--to=wandb", "run")
        self.wait_for(lambda: self.steps() == [1])
        start(2, 0.2)
        self.write([step(2)], "a")
        self.wait_for(lambda: self.steps() == [1, 2])
        self.end(process, signal.SIGINT)
        self.assertEqual([what["config"] for what in self.told() if "config" in what],
                         [{"optimizer.lr": lr, "model.name": 'a: "b" é'} for lr in (0.1, 0.2)])
        self.told_file = self.path("mlflow")
        self.track("--to=mlflow", "--once", "run")
        start(3, 0.3)
        self.write([step(3)], "a")
        self.track("--to=mlflow", "--once", "run")
        self.assertEqual([what["params"]["optimizer.lr"] for what in self.told() if "params" in what], ["0.2"])
        self.assertEqual([what["tag"] for what in self.told() if "created" not in what and "tag" in what],
                         [["optimizer.lr", "0.3"]])

    def test_the_configuration_is_that_of_a_checkpoint_where_tensorboard_has_none(self):
        self.write([step(1)])
        os.mkdir(os.path.join(self.run_folder, "iter_0000020"))
        self.write("20\n", name="latest_checkpointed_iteration.txt")
        self.write('{"crc32c":"5a0d7ff2",\n"strings":{\n"config":"train {\\u000a  seed: 7\\u000a}\\u000a",\n"identity":""},\n'
                   '"shards":[]}\n', name="iter_0000020/manifest.json")
        self.track("--to=wandb", "--once", "run")
        self.assertEqual(self.told()[0]["config"], {"train.seed": 7})

    def test_names_are_those_of_tensorboard(self):
        with open(METRICS_PAGE) as file:
            rows = re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)`)?( \*)?", file.read(), re.MULTILINE)
        self.assertGreater(len(rows), 15)
        for key, tag, star in rows:
            sent = list(track.values_of({key: 1.0}))
            if key in ("iteration", "consumed_samples"):
                self.assertEqual(sent, [])
            else:
                # Three values are not in TensorBoard as they are; the time is there in seconds.
                self.assertEqual(sent, [{"elapsed_ms": "iteration-time"}.get(key, tag or key)], key)
                self.assertEqual(track.has_second_curve(sent[0]), bool(star), key)
                self.assertTrue(track.NAME.fullmatch(sent[0]))

    def test_names_of_files_and_sets_may_be_any_text(self):
        records = [{**step(1), "lm loss train ../dé/a+b": 2.0, "lm loss train /data/news": 3.0,
                    "lm loss train " + "x" * 300: 4.0},
                   {**evaluation(1), "lm loss validation ~a": 5.0}]
        self.write(records)
        self.assertEqual(self.track("--to=wandb", "--once", "run")[0], 0)
        self.assertEqual(self.steps(), [1])
        for name, value in (("lm loss train .._d__a_b", 2.0), ("lm loss train /data/news", 3.0),
                            (("lm loss train " + "x" * 300)[:track.LONGEST_NAME], 4.0), ("lm loss validation _a", 5.0)):
            self.assertEqual([v for _, _, v in self.points(name)], [value], name)
            self.assertTrue(track.NAME.fullmatch(name))

    def test_metrics_of_sets_of_any_name_are_sent(self):
        long = "tasks/" + "x" * 300 + "/lm accuracy"
        self.write([{**evaluation(1), "tasks/Français/lm accuracy": 0.25, "tasks//data/de/text/lm accuracy": 0.5,
                     "tasks/piqa/acc": 0.75, "tasks/a/b/acc": 0.875, long: 1.0}])
        self.assertEqual(self.track("--to=wandb", "--once", "run")[0], 0)
        for name, value in (("tasks/Fran_ais/lm accuracy", 0.25), ("tasks/set_data_de_text/lm accuracy", 0.5),
                            ("tasks/piqa/acc", 0.75), ("tasks/a/b/acc", 0.875),
                            ("tasks/" + "x" * (track.LONGEST_NAME - 18) + "/lm accuracy", 1.0)):
            self.assertEqual([v for _, _, v in self.points(name)], [value], name)
            self.assertTrue(track.NAME.fullmatch(name))
            self.assertLessEqual(len(name), track.LONGEST_NAME)

    def test_a_value_whose_name_trackers_refuse_is_left_out_and_told_once(self):
        self.write([{**step(1), "../x": 1.0, "tasks/a/é": 1.0}, {**step(2), "_step": 7, "y" * 201: 1.0, "": "text"}])
        code, said = self.track("--to=wandb", "--once", "run")
        self.assertEqual((code, self.steps()), (0, [1, 2]))
        for name in ("../x", "tasks/a/é", "_step", "y" * 201, ""):
            self.assertEqual(self.points(name), [])
        self.assertEqual(said.count("trackers refuse its name: '../x'"), 1)
        self.assertEqual(said.count("trackers refuse its name"), 1)

    def test_any_bytes_are_read(self):
        random.seed(5)
        good = [lines([step(1)])[:-1].encode(), event_file("a {\n b: 1\n}\n"), b'{"iteration":1,"lm loss":{"a":[]}}']
        path = self.path("bytes")
        for _ in range(3000):
            data = bytearray(random.choice(good))
            for _ in range(random.randrange(1, 6)):
                data[random.randrange(len(data))] = random.randrange(256)
            data = bytes(data[:random.randrange(len(data) + 1)])
            track.parse_record(data)
            track.parse_config(data.decode("latin-1"))
            with open(path, "wb") as file:
                file.write(data)
            track.card_in(path)

    def test_a_line_that_never_ends_takes_no_memory(self):
        tail = track.Tail(self.path("long"))
        self.addCleanup(lambda: tail.file.close())
        with open(self.path("long"), "wb") as file:
            file.write(b"x" * (5 << 20) + b"\n" + lines([step(1)]).encode())
        records, most, more = [], 0, []
        while more is not None:
            more, _ = tail.read()
            records += filter(None, map(track.parse_record, more or ()))
            most = max(most, len(tail.rest))
        self.assertEqual([record["iteration"] for record in records], [1])
        self.assertLessEqual(most, track.LONGEST_LINE_BYTES)

    def test_a_clock_that_goes_back_changes_nothing(self):
        self.write([step(1)])
        clock = "import track, time, sys; now = iter(range(10**9, 0, -10**6)); time.time = lambda: next(now); " \
            "sys.exit(track.main(sys.argv[1:]))"
        for i in range(2, 5):
            self.assertEqual(self.track("--to=mlflow", "--once", "run", program=clock)[0], 0)
            self.write([step(i)], "a")
        self.assertEqual(self.steps(), [1, 2, 3])


if __name__ == "__main__":
    unittest.main()
