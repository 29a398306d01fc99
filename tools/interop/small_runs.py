"""Small runs of the trainer, and checks that are counted: what the comparisons in the folders here share.

    runs = SmallRuns(bin_directory, work_directory, arguments, timeout=60)
    runs.check("a run ends well", runs.start("whole").wait() == 0)
    runs.finish()
"""

import json
import os
import signal
import subprocess
import sys
import time


class SmallRuns:
    def __init__(self, bin_directory, work_directory, arguments, timeout):
        self.bin, self.work, self.arguments, self.timeout = bin_directory, work_directory, arguments, timeout
        self.passed = self.failed = 0

    def check(self, what, condition):
        print(("passed: " if condition else "FAILED: ") + what, flush=True)
        self.passed, self.failed = self.passed + bool(condition), self.failed + (not condition)

    def finish(self):
        """Prints what .ci/run reads, and ends the program."""
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(self.failed > 0)

    def start(self, run, *more):
        """Starts to train what checkpoint.save then names the run."""
        os.makedirs(os.path.join(self.work, run), exist_ok=True)
        with open(os.path.join(self.work, run + ".log"), "a") as log:
            return subprocess.Popen([f"{self.bin}/megatron/train/pretrain_gpt", *self.arguments,
                                     f"--set=checkpoint.save={self.work}/{run}", *more], stdout=log, stderr=log)

    def log_of(self, name):
        with open(os.path.join(self.work, name + ".log")) as file:
            return file.read()

    def rows(self, run):
        """The records of metrics.jsonl, without one that is being written."""
        try:
            with open(f"{self.work}/{run}/metrics.jsonl") as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def steps(self, run):
        return [row for row in self.rows(run) if "consumed_samples" in row]

    def wait_for(self, condition):
        """Returns whether the condition came true in time."""
        end = time.time() + self.timeout
        while not condition():
            if time.time() > end:
                return False
            time.sleep(0.02)
        return True

    def kill_after(self, process, run, iteration):
        """Kills the process when the run has taken so many steps. Returns whether it had."""
        reached = self.wait_for(lambda: any(step["iteration"] >= iteration for step in self.steps(run)) or
                                process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        return reached and process.wait() == -signal.SIGKILL
