#!/usr/bin/env python3
"""tools/soak/soak.py with a program that only looks as if it trained: the soak must see what is wrong."""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import tempfile
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

from runs import Run
from soak import Episode

# It makes a step every few milliseconds, and continues from its newest checkpoint. $STUB says what it
# does wrong.
STUB = r'''#!/usr/bin/env python3
import json, os, re, signal, subprocess, sys, time
text = " ".join(sys.argv)
steps = int(re.search(r"train_iters=(\d+)", text).group(1))
save = re.search(r'checkpoint.save="([^"]*)"', text).group(1)
interval = int(re.search(r"save_interval=(\d+)", text).group(1))
wrong = "" if "/whole" in save else os.environ["STUB"]
with open(re.search(r"--config=(\S+)", text).group(1)) as file:
    scale = 3 if "adam" in file.read() else 1
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
made = [int(name[5:]) for name in os.listdir(save) if name.startswith("iter_")]
first = max(made, default=0)
if wrong == "again" and first > 0:
    sys.exit(30)
metrics = os.path.join(save, "metrics.jsonl")
lines = open(metrics).read().splitlines() if os.path.exists(metrics) else []
lines = [line for line in lines if json.loads(line)["iteration"] <= first]
def write(checkpoint):
    with open(metrics + ".new", "w") as file:
        file.write("".join(line + "\n" for line in lines))
    os.rename(metrics + ".new", metrics)
    if checkpoint:
        folder = os.path.join(save, "iter_%07d" % len(lines))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "shard_0.bin"), "w") as file:
            file.write("other" if wrong == "bytes" else "bytes")
print("first step done", flush=True)
for step in range(first + 1, steps + 1):
    loss = scale * {"loss": 2, "no number": float("nan")}.get(wrong if step == 50 else "", 1) / step
    if not (wrong == "step" and step == 50):
        lines.append(json.dumps({"iteration": step, "lm loss": loss}))
    if wrong == "twice" and step == 50:
        lines.append(lines[-1])
    if wrong == "hang" and step == 50:
        time.sleep(3600)
    if wrong == "again said" and step == 50:
        print("launch: rank 1 was ended by signal 9 (Killed); it is started again in 1s (1 of 9)")
    if wrong == "code" and step == 50:
        sys.exit(21)
    write(step % interval == 0 or step == steps or asked)
    if asked:
        sys.exit(10)
    time.sleep(0.005)
if wrong == "orphan":
    subprocess.Popen(["sh", "-c", "sleep 20; : " + save])
'''


class SoakVerdictsTest(unittest.TestCase):
    def soak(self, wrong, *more):
        """Returns the exit code and what the soak has printed."""
        with tempfile.TemporaryDirectory() as directory:
            stub = os.path.join(directory, "pretrain")
            with open(stub, "w", encoding="utf-8") as file:
                file.write(STUB)
            os.chmod(stub, 0o755)
            done = subprocess.run(
                [sys.executable, os.path.join(HERE, "soak.py"), f"--pretrain={stub}", "--steps=80",
                 "--patience=60", f"--directory={directory}/runs", "--seconds=4",
                 "--faults=kill_parent,term_parent,stop_parent", *more],
                env={**os.environ, "STUB": wrong}, capture_output=True, text=True, timeout=100)
            return done.returncode, done.stdout + done.stderr

    def test_runs_that_are_right_survive(self):
        code, text = self.soak("nothing")
        self.assertEqual(code, 0, text)
        faults = int(re.search(r"soak: (\d+) faults of \d+ kinds in \d+ runs", text).group(1))
        self.assertGreater(faults, 0, text)
        self.assertIn(f"{faults} survived, 0 lost, 0 wrong", text)

    def test_runs_take_turns_with_optimizers_and_have_a_reference_of_the_same(self):
        for episode, optimizer in enumerate(["sgd", "adamw"]):
            code, text = self.soak("nothing", f"--episode={episode}")
            self.assertEqual(code, 0, text)
            self.assertRegex(text, rf"run {episode}: \w+, {optimizer}, .*: survived")
        code, text = self.soak("loss", "--episode=1")
        self.assertEqual(code, 1, text)
        self.assertIn("iteration 50 has the loss", text)

    def test_what_is_wrong_is_seen(self):
        told = {"loss": "iteration 50 has the loss", "no number": "iteration 50 has the loss nan", "step": "iterations [50] are not in",
                "twice": "iterations [50] are in metrics.jsonl twice", "bytes": "has other bytes",
                "code": "ended with code 21", "orphan": "are left"}
        with concurrent.futures.ThreadPoolExecutor(len(told)) as pool:  # they mostly wait
            said = dict(zip(told, pool.map(lambda wrong: self.soak(wrong, "--episode=0"), told)))
        for wrong, (code, text) in said.items():
            with self.subTest(wrong):
                self.assertEqual(code, 1, text)
                self.assertIn(told[wrong], text)

    def test_a_soak_that_strikes_nothing_shows_nothing(self):
        for fault in "kill_host", "stranger":  # there are no hosts, and nobody listens
            code, text = self.soak("nothing", f"--faults={fault}", "--seconds=1")
            self.assertEqual(code, 1, text)
            self.assertIn("nothing was struck", text)

    def test_what_a_run_has_printed_is_shown_when_it_is_wrong(self):
        code, text = self.soak("code", "--episode=0")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"  \| --- \S+ start \d+ ended with code 21 after \d+ steps")
        self.assertIn("  | first step done", text)

    def test_harmless_faults_have_no_consequences(self):
        options = types.SimpleNamespace(seed=1, launch=None, faults=[])
        shared = types.SimpleNamespace(options=options, directory="")
        episode = next(n for n in range(100) if Episode(shared, n).is_harmless)
        code, text = self.soak("again said", f"--episode={episode}", "--faults=slow_rank")
        self.assertEqual(code, 1, text)
        self.assertIn("a harmless fault had consequences: 'started again in'", text)

    def test_processes_on_hosts_belong_to_their_run(self):
        with tempfile.TemporaryDirectory() as directory:
            run = Run("program", os.path.join(directory, "run"), 1, [], "sgd")
            self.assertEqual(run.left(), [])
            command = ["sh", "-c", "sleep 60; : " + os.path.join(directory, "run0", "config")]
            with subprocess.Popen(command, start_new_session=True) as of_another:
                self.assertEqual(run.left(), [])
                os.killpg(of_another.pid, signal.SIGKILL)
            run.hosts = types.SimpleNamespace(pids=lambda which: [[7], [8, 9]][which])
            self.assertEqual(run.left(), [7, 8, 9])

    def test_what_does_not_go_on_is_lost(self):
        code, text = self.soak("hang", "--episode=0", "--patience=2")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"no step (and no end )?in 2.0 s")

    def test_a_run_that_only_starts_is_lost(self):
        for episode in range(20):  # one that is not harmless, and ends before its last step
            code, text = self.soak("again", f"--episode={episode}")
            if "starts have made no step" in text:
                self.assertEqual(code, 1, text)
                return
        self.fail(text)


if __name__ == "__main__":
    unittest.main()
