"""A training run as a soak sees it: its processes, what it has printed, and what it has written."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import time

CONFIG = """\
model { num_layers: 2 hidden_size: 32 num_attention_heads: 2 seq_length: 16 }
train { micro_batch_size: 1 global_batch_size: 24 log_interval: 1000000 eval_interval: 0 }
data { stories { num_bytes: 30000 } }
logging { log_interval_seconds: 0 }
system { num_threads: 1 }
"""
OPTIMIZERS = {"sgd": "optimizer { optimizer: sgd lr: 0.01 }\n",
              "adamw": "optimizer { optimizer: adam lr: 0.001 }\n"}
# The greatest relative difference of losses where the number of ranks changes on the way: several times
# that between undisturbed runs of different layouts, which docs/soak.md has. It is that of train/layouts.
TOLERANCE = 2e-6
AXES = {"dp": "data_parallel_size", "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size"}
SHARDING = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
FIRST_STEP = "first step done"
TRACKER = "latest_checkpointed_iteration.txt"  # names the newest checkpoint


def layout_arguments(layout):
    """The fields of a layout such as {"dp": 2, "tp": 2, "zero": 1}."""
    fields = [f"--set=parallel.{AXES[axis]}={size}" for axis, size in layout.items() if axis in AXES]
    if "zero" in layout:
        fields += ["--set=parallel.use_distributed_optimizer=true",
                   f"--set=parallel.data_parallel_sharding_strategy={SHARDING[layout['zero']]}"]
    return fields if ranks_of(layout) == 1 else fields + ["--set=parallel.ranks_as=processes"]


def ranks_of(layout):
    return math.prod(size for axis, size in layout.items() if axis in AXES)


def name_of(layout):
    return " ".join(f"{axis}{size}" for axis, size in layout.items())


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # it is not there, or its process has ended


def losses_of(directory):
    """The losses by iteration, and the iterations that are there twice."""
    losses, twice = {}, []
    for line in read(os.path.join(directory, "metrics.jsonl")).splitlines():
        try:
            step = json.loads(line)
        except ValueError:
            continue  # a line that is being written
        if "lm loss" not in step:
            continue
        if step["iteration"] in losses:
            twice.append(step["iteration"])
        losses[step["iteration"]] = step["lm loss"]
    return losses, twice


def checkpoints_of(directory):
    """The directories of checkpoints, the oldest first."""
    try:
        names = [name for name in os.listdir(directory) if re.fullmatch(r"iter_\d+", name)]
    except OSError:
        return []
    return [os.path.join(directory, name) for name in sorted(names, key=lambda n: int(n[5:]))]


def shards_of(checkpoint):
    return {name: read(os.path.join(checkpoint, name)) for name in sorted(os.listdir(checkpoint))
            if name.startswith("shard_")}


def processes_with(text):
    """The processes that have `text` in their command, without this one."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        if text.encode() in read(f"/proc/{name}/cmdline"):
            found.append(int(name))
    return found


class Run:
    """One command that is started until it has trained to its end."""

    def __init__(self, program, directory, steps, arguments, optimizer):
        self.program, self.directory, self.steps = program, directory, steps
        self.save = os.path.join(directory, "run")
        self.config = os.path.join(directory, "config.textproto")
        self.log = os.path.join(directory, "log.txt")
        self.arguments = arguments  # those that stay
        self.layout = {}
        self.launcher = []  # what starts the program on other hosts
        self.hosts = None
        self.clocks = []  # files with what jumping_clock.c adds to the time, of each machine
        self.environment = None
        self.counted = (None, 0, 0)  # the metrics: which file, up to where, and the steps in there
        self.had_long_fault = False  # one that was meant to be short has taken long
        self.process = None
        self.starts = 0
        self.seen = 0  # where the log of this start begins
        shutil.rmtree(directory, ignore_errors=True)  # what an earlier soak has left
        os.makedirs(self.save)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG + OPTIMIZERS[optimizer])

    def command(self, more=()):
        return [*self.launcher, self.program, f"--config={self.config}", f"--set=train.train_iters={self.steps}",
                f'--set=checkpoint.save="{self.save}"', *self.arguments,
                *layout_arguments(self.layout), *more]

    def start(self):
        self.starts += 1
        self.seen = os.path.getsize(self.log) if os.path.exists(self.log) else 0
        self.note(f"start {self.starts}: {name_of(self.layout)}")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, start_new_session=True,
                                            env=self.environment)

    def note(self, text):
        """Writes a line into the log, between those of the processes."""
        with open(self.log, "ab") as log:
            log.write(f"--- {time.strftime('%T')} {text}\n".encode())

    def use_clock(self, library):
        """Gives the run's processes a clock that may jump."""
        machines = [""] if self.hosts is None else ["", *(f".{name}" for name in self.hosts.names)]
        self.clocks = [os.path.join(self.directory, "clock") + machine for machine in machines]
        for path in self.clocks:
            with open(path, "wb") as file:
                file.write(bytes(8))
        self.environment = {**os.environ, "LD_PRELOAD": library, "SOAK_CLOCK": self.clocks[0]}

    def output(self, of_this_start=True):
        text = read(self.log)
        return (text[self.seen:] if of_this_start else text).decode(errors="replace")

    def code(self):
        """The exit code, or minus the signal; None while it runs."""
        return self.process.poll()

    def has_begun(self):
        return FIRST_STEP in self.output() or "training goes on" in self.output()

    def made_steps(self):
        try:
            with open(os.path.join(self.save, "metrics.jsonl"), "rb") as file:
                is_same, (known, end, steps) = os.fstat(file.fileno()).st_ino, self.counted
                size = file.seek(0, os.SEEK_END)
                if is_same != known or size < end:  # it was written anew, or has lost its end
                    end = steps = 0
                file.seek(end)
                more = file.read()
        except OSError:
            return 0
        whole = more.rfind(b"\n") + 1
        steps += more.count(b'"lm loss"', 0, whole)
        self.counted = (is_same, end + whole, steps)
        return steps

    def ranks(self):
        """The processes of the ranks that run, by their rank at the launch."""
        ranks = {}
        for child in processes_with(self.config):
            for variable in read(f"/proc/{child}/environ").split(b"\0"):
                if variable.startswith(b"MEGATRON_RANK="):
                    ranks[int(variable[14:])] = child
        return ranks

    def processes(self):
        return processes_with(self.config)

    def store_ports(self):
        """The ports at which the processes listen."""
        inodes = set()
        for pid in self.processes():
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    link = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if link.startswith("socket:["):
                        inodes.add(link[8:-1])
            except OSError:
                pass
        ports = []
        for line in read("/proc/net/tcp").decode().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:  # listens
                ports.append(int(words[1].split(":")[1], 16))
        return ports

    def left(self):
        """All processes of the run: by their commands and, since a host's agent of launch has nothing
        of the run in its command, by their host."""
        found = set(processes_with(self.directory + os.sep))  # not those of .../episode_10 for 1
        for which in range(2 if self.hosts is not None else 0):
            found.update(self.hosts.pids(which))
        return sorted(found)

    def end_all(self):
        """Kills what is left."""
        for pid in self.left():
            send(pid, signal.SIGCONT)
            send(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def orphans(self, patience=5):
        """The processes that are still there some time after the first one has ended."""
        until = time.monotonic() + patience
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.05)
        return left

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)


def send(pid, number):
    """Returns whether the process was there."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False
