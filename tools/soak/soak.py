#!/usr/bin/env python3
"""Trains a small model again and again, strikes it with faults at random, and compares what comes of it
with an undisturbed run. docs/soak.md says how to use it.

    tools/soak/soak.py --pretrain=bazel-bin/megatron/train/pretrain_gpt --seconds=300 --seed=1

The last line says how many faults there were, and whether anything was lost or wrong. Then the exit code
is 1, and what is left of such a run stays in the directory."""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.dont_write_bytecode = True

import faults
from hosts import Hosts
from runs import (OPTIMIZERS, TOLERANCE, TRACKER, Run, checkpoints_of, losses_of, name_of,
                  processes_with, ranks_of, send, shards_of)

MOST_STARTS_WITHOUT_STEPS = 12
STARTS_AGAIN = {10, 30, 31} | {code for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
                               for code in (128 + number, -number)}
# The end of a run that could not write, which these may be the reason of.
CANNOT_WRITE = 23
FEW_DESCRIPTORS = {"few_descriptors", "few_descriptors_long"}
HINDERS_WRITES = {"full_disk"} | FEW_DESCRIPTORS
# What a program says that could not open something at its start, or saw that it would not.
NO_DESCRIPTOR = re.compile(r"Too many open files|the limit of open files \(ulimit -n\)")
# The end of a program that got no memory or thread before its first step, and what it says.
REFUSED = 20
NO_MEMORY = re.compile(r"gives this program no more memory|starts no more threads|error: out of memory|"
                       r"the limit of its addresses \(ulimit -v\)")
# The end of a program whose libraries the loader could not open.
CANNOT_LOAD = 127
DAMAGED_CHECKPOINT = 22
MOVE_AWAY = re.compile(r"to continue from the checkpoint before it move (\S+) away")
BEGIN_ANEW = re.compile(r"to begin anew move '(\S+)' away, or what is in it")
SMALL_DISK = "size=16m"
# What programs say when a rank or host was lost; launch says no more than that it starts it again.
CONSEQUENCES = re.compile(r"error:|start(ing|ed) again in|takes its place in")
LINES_OF_LOG = 60  # that are printed of a run that failed


class Lost(Exception):
    """A run that did not go on though it should have."""


class Wrong(Exception):
    """A run that did something else than an undisturbed one."""


class Soak:
    """What all episodes share."""

    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        # By optimizer and layout: the losses and the last checkpoint's shards.
        self.references = {}
        self.lock = threading.Lock()
        self.log = open(os.path.join(directory, "faults.txt"), "a", encoding="utf-8", buffering=1)
        self.playing = []  # episodes
        self.ends = False

    def reference(self, optimizer, layout):
        """What an undisturbed run with this optimizer and layout gives."""
        with self.lock:
            return self.reference_locked(optimizer, layout)

    def reference_locked(self, optimizer, layout):
        name = f"{optimizer} {name_of(layout)}"
        if name not in self.references:
            run = Run(self.options.pretrain, os.path.join(self.directory, f"whole {name}".replace(
                " ", "_")), self.options.steps, ["--set=checkpoint.save_interval=1000000"], optimizer)
            run.layout = layout
            run.start()
            if run.process.wait() != 0:
                raise SystemExit(f"the undisturbed run failed:\n{run.output()}")
            losses, twice = losses_of(run.save)
            assert len(losses) == self.options.steps and not twice
            self.references[name] = losses, shards_of(checkpoints_of(run.save)[-1])
            run.remove()
        return self.references[name]


class Episode:
    """One run and its faults, which follow from the seed and the episode's number."""

    def __init__(self, soak, number):
        self.soak = soak
        self.random = rng = random.Random(f"{soak.options.seed} {number}")
        self.directory = os.path.join(soak.directory, f"episode_{number}")
        self.struck = []  # names of faults
        self.described = []
        self.apart = 0.0  # the greatest relative difference of its losses from the undisturbed run's
        self.is_harmless = rng.random() < 0.25
        self.number = number
        self.run = None
        self.mode = rng.choice(["driver", "restarts", "in_process", "in_process", "hosts",
                                "hosts_in_process"])
        if self.on_hosts and (not soak.options.launch or os.geteuid() != 0):
            self.mode = "driver"
        layouts = [layout for layout in faults.LAYOUTS if layout.get("dp", 1) > 1]
        if self.mode == "driver":
            layouts = faults.LAYOUTS
        if self.on_hosts:
            layouts = [layout for layout in layouts if layout.get("dp") % 2 == 0]
        # Runs take turns. AdamW mostly shares out its states.
        self.optimizer = list(OPTIMIZERS)[number % len(OPTIMIZERS)]
        self.layout = rng.choices(layouts, [self.weight(each) for each in layouts])[0]
        allowed = [fault for fault in faults.ALL.values()
                   if not soak.options.faults or fault.__name__ in soak.options.faults]
        if not self.on_hosts:
            allowed = [fault for fault in allowed if fault not in faults.OF_HOSTS]
        # A job that is started again waits longer each time.
        waits = self.mode == "restarts" or self.on_hosts
        harm = 0 if self.is_harmless else rng.randint(2, 4) if waits else rng.randint(6, 14)
        self.up = self.choose(allowed, faults.HARMFUL, harm)
        self.up += self.choose(allowed, faults.HARMLESS, rng.randint(8, 20))
        rng.shuffle(self.up)
        down = [fault for fault in allowed if fault in faults.DOWN]
        if self.mode != "driver":
            down = [fault for fault in down if fault is not faults.change_layout]
        self.down = [] if self.is_harmless or not down else [rng.choice(down) for _ in range(10)]
        self.local = rng.random() < 0.4 and not self.on_hosts  # they would share it
        self.port = rng.randint(20000, 29999)
        self.has_copies = rng.random() < 0.7  # of sharded states
        self.small_disk = rng.random() < 0.4 and os.geteuid() == 0
        self.settings = [
            f"--set=checkpoint.save_interval={rng.choice([5, 20, 50])}",
            f"--set=checkpoint.async_save={rng.choice(['true', 'false'])}",
            "--set=checkpoint.keep_last=3",
        ]
        if rng.random() < 0.2:
            self.settings += ["--set=train.rerun_mode=validate_results",
                              f"--set=train.rerun_interval={rng.choice([3, 7])}"]

    def weight(self, layout):
        """How often a layout is chosen, beside others."""
        if ranks_of(layout) == 8:
            return 1  # it takes much of a small machine's time
        return 9 if self.optimizer == "adamw" and "zero" in layout else 3

    @property
    def on_hosts(self):
        return self.mode.startswith("hosts")

    @property
    def in_process(self):
        return self.mode.endswith("in_process")

    def choose(self, allowed, kinds, count):
        chosen = [fault for fault in allowed if fault in kinds]
        weights = [1 if fault in faults.LONG else 4 for fault in chosen]
        return self.random.choices(chosen, weights, k=count) if chosen else []

    def arguments(self):
        """The fields that the episode sets besides the layout."""
        more = list(self.settings)
        if ranks_of(self.layout) == 1:
            return more  # one process has no other to watch
        if self.local:
            more += [f'--set=checkpoint.local_save="{self.directory}/local"',
                     "--set=checkpoint.local_save_interval=5"]
        more.append(f"--set=parallel.heartbeat_timeout_seconds={faults.HEARTBEAT}")
        if self.mode in ("restarts", "in_process"):
            more.append("--set=parallel.restarts=1000000")
        if self.in_process:
            more.append("--set=parallel.in_process_recovery=true")
            if not self.on_hosts:
                more.append("--set=parallel.rank_replacements=1000000")
            if "zero" in self.layout and self.has_copies:
                more.append("--set=parallel.shard_copies=1")
        return more

    def play(self):
        """Returns the verdict: survived, lost or wrong, and why."""
        self.run = run = Run(self.soak.options.pretrain, self.directory, self.soak.options.steps, [],
                             self.optimizer)
        run.layout = dict(self.layout)
        if self.small_disk:
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", SMALL_DISK, "soak", run.save],
                                     capture_output=True)
            self.small_disk = mounted.returncode == 0
        if self.on_hosts:
            run.hosts = Hosts(self.directory, self.number)
            if not run.hosts.make(ranks_of(self.layout) // 2):
                raise SystemExit("this machine makes no network namespaces: leave --launch out")
            run.launcher = run.hosts.launcher(self.soak.options.launch, self.port, self.in_process)
        if self.soak.options.clock:
            run.use_clock(self.soak.options.clock)
        try:
            self.train()
            self.compare()
            verdict, why = "survived", ""
        except Lost as error:
            verdict, why = "lost", str(error)
        except Wrong as error:
            verdict, why = "wrong", str(error)
        except Exception:  # what a fault or this program trips over is evidence, too
            verdict, why = "wrong", traceback.format_exc()
        if verdict != "survived":
            run.note(f"{verdict}: {why}")
        run.end_all()
        if self.small_disk and verdict != "survived":  # the evidence outlives the mount
            subprocess.run(["cp", "-a", run.save, run.save + "_kept"], check=False)
        self.leave()
        if verdict == "survived":
            run.remove()
        return verdict, why

    def leave(self):
        """Takes back what the machine was changed in."""
        if self.run is None:
            return
        self.run.end_all()
        if self.run.hosts is not None:
            self.run.hosts.remove()
        if self.small_disk:
            subprocess.run(["umount", "-l", self.run.save], check=False)

    def start(self):
        while self.soak.ends:
            time.sleep(1)  # until the main thread has ended the program
        # Local checkpoints are of several ranks, and which fields hold depends on the layout.
        self.layout = self.run.layout
        self.run.arguments = self.arguments()
        self.run.start()

    def train(self):
        """Starts the run until it has ended well, and strikes it meanwhile."""
        run = self.run
        self.start()
        steps, without_steps = 0, 0
        while True:
            if self.up and self.wait_for_a_moment():
                self.strike(self.up.pop(0))
                continue
            if not self.up:
                self.wait_for_the_end()
            code = run.code()
            made = run.made_steps()
            run.note(f"start {run.starts} ended with code {code} after {made} steps")
            without_steps = 0 if made != steps else without_steps + 1
            steps = made
            if without_steps > MOST_STARTS_WITHOUT_STEPS:
                raise Lost(f"{without_steps} starts have made no step; the last code is {code}")
            if code == 0:
                return
            self.after_end(code)
            if self.down and self.random.random() < 0.7:
                self.strike(self.down.pop(0))
            self.start()

    def strike(self, fault):
        begin = time.monotonic()
        what = fault(self.run, self.random)
        if not what:
            return  # it came too late, or there was nothing to strike
        self.struck.append(fault.__name__)
        self.described.append(f"start {self.run.starts}, {time.monotonic() - begin:.1f} s: "
                              f"{fault.__name__} ({what})")
        self.run.note(self.described[-1])
        self.soak.log.write(f"{time.strftime('%T')} run {self.number} ({self.mode}, "
                            f"{self.optimizer}, {name_of(self.layout)}), {self.described[-1]}\n")

    def wait_for_a_moment(self):
        """Waits until the next fault is due. Returns whether the run is there."""
        run, patience = self.run, self.soak.options.patience
        anywhere = self.random.random() < 0.3  # also while it starts
        time.sleep(self.random.uniform(0, 0.2))
        made, wanted = run.made_steps(), self.random.randint(1, 8)
        until = time.monotonic() + patience
        while run.code() is None and not anywhere and run.made_steps() < made + wanted:
            made = min(made, run.made_steps())  # one that continues has lost the last ones
            if time.monotonic() > until:
                raise Lost(f"no step in {patience} s")
            time.sleep(0.02)
        return run.code() is None

    def wait_for_the_end(self):
        run, patience = self.run, self.soak.options.patience
        steps, until = run.made_steps(), time.monotonic() + patience
        while run.code() is None:
            if run.made_steps() != steps:  # fewer are there when it continues
                steps, until = run.made_steps(), time.monotonic() + patience
            if time.monotonic() > until:
                raise Lost(f"no step and no end in {patience} s")
            time.sleep(0.02)

    def should_be_undisturbed(self):
        return self.is_harmless and not self.run.had_long_fault

    def after_end(self, code):
        """Checks that a run may end so, and does what it asks for."""
        if code == DAMAGED_CHECKPOINT and faults.DAMAGE & set(self.struck):
            said = self.run.output()
            if named := MOVE_AWAY.search(said):
                damaged = [named.group(1)]
            elif named := BEGIN_ANEW.search(said):
                damaged = checkpoints_of(named.group(1)) + [os.path.join(named.group(1), TRACKER)]
            else:
                raise Wrong("a damaged checkpoint was found, and the remedy is not named")
            away = os.path.join(self.run.save, f"damaged_{self.run.starts}")
            os.makedirs(away)
            for path in filter(os.path.exists, damaged):
                os.rename(path, os.path.join(away, os.path.basename(path)))
            return
        # A second signal may end the rank that would say why, and then nothing is said.
        output = self.run.output()
        said = NO_DESCRIPTOR.search(output) or (
            code == REFUSED and self.struck[-1:] == ["term_parent_twice"] and "error:" not in output)
        if code == CANNOT_WRITE and HINDERS_WRITES & set(self.struck) or (
                FEW_DESCRIPTORS & set(self.struck) and (code == CANNOT_LOAD or (
                    not self.run.has_begun() and said))):
            self.is_harmless = False  # it has to be started again
            return
        if code == REFUSED and "no_memory" in self.struck and not self.run.has_begun() and (
                NO_MEMORY.search(self.run.output())):
            return
        if self.should_be_undisturbed() or code not in STARTS_AGAIN:
            raise Wrong(f"the run ended with code {code}")

    def compare(self):
        """Compares with the undisturbed run."""
        run, steps = self.run, self.soak.options.steps
        if orphans := run.orphans():
            raise Wrong(f"processes {orphans} are left")
        said = CONSEQUENCES.search(run.output(of_this_start=False))
        if self.should_be_undisturbed() and said:
            raise Wrong(f"a harmless fault had consequences: '{said.group()}'")
        if "other results" in run.output(of_this_start=False):
            raise Wrong("a step had other results when it was computed again")
        losses, twice = losses_of(run.save)
        if twice:
            raise Wrong(f"iterations {twice[:5]} are in metrics.jsonl twice")
        missing = [step for step in range(1, steps + 1) if step not in losses]
        if missing and not HINDERS_WRITES & set(self.struck):
            raise Wrong(f"iterations {missing[:5]} are not in metrics.jsonl")
        same_layout = not self.in_process and "change_layout" not in self.struck
        wanted, shards = self.soak.reference(self.optimizer, self.layout)
        bound = 0 if same_layout else TOLERANCE
        for step, loss in losses.items():
            apart = abs(loss - wanted[step]) / abs(wanted[step])
            if not apart <= bound:  # nor is it where the loss is no number
                raise Wrong(f"iteration {step} has the loss {loss}, and undisturbed {wanted[step]}")
            self.apart = max(self.apart, apart)
        newest = checkpoints_of(run.save)[-1:]
        if not newest or not newest[0].endswith(f"iter_{steps:07d}"):
            raise Wrong(f"the last checkpoint is {newest}")
        if same_layout and shards_of(newest[0]) != shards:
            raise Wrong("the last checkpoint has other bytes than the undisturbed run's")


def summarize(counts, episodes, options, seconds):
    """Prints a table by kind, and the line."""
    kinds = sorted({kind for kind, _ in counts})
    print(f"{'fault':28}{'survived':>9}{'lost':>6}{'wrong':>7}")
    for kind in kinds:
        print(f"{kind:28}{counts[kind, 'survived']:9}{counts[kind, 'lost']:6}{counts[kind, 'wrong']:7}")
    total = {verdict: sum(n for (_, v), n in counts.items() if v == verdict)
             for verdict in ("survived", "lost", "wrong")}
    failed = {verdict: episodes[verdict] for verdict in ("lost", "wrong")}
    print(f"soak: {sum(total.values())} faults of {len(kinds)} kinds in {sum(episodes.values())} runs: "
          f"{total['survived']} survived, {total['lost']} lost, {total['wrong']} wrong "
          f"({seconds:.0f} s, seed {options.seed})", flush=True)
    if not counts and options.episode is None:
        print("soak: nothing was struck, so nothing is known", flush=True)
        return False
    return not any(failed.values())


def tell(number, episode, verdict, why, seconds):
    """Prints a line about a run, and what was done to one that failed."""
    print(f"run {number}: {episode.mode}, {episode.optimizer}, {name_of(episode.layout)}"
          f"{', harmless' if episode.is_harmless else ''}, {episode.run.starts} starts, "
          f"{len(episode.struck)} faults, {seconds:.1f} s, losses {episode.apart:.1e} apart: {verdict}"
          f"{': ' + why if why else ''}", flush=True)
    if verdict != "survived":
        print("\n".join(f"  {line}" for line in episode.described))
        print("\n".join(f"  | {line}" for line in
                        episode.run.output(of_this_start=False).splitlines()[-LINES_OF_LOG:]))
        print(f"  what is left: {episode.directory}", flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pretrain", required=True, help="the program pretrain_gpt")
    parser.add_argument("--launch", help="the program launch; with it root also tries two hosts")
    parser.add_argument("--clock", help="jumping_clock.so; with it the clocks of runs jump")
    parser.add_argument("--seconds", type=float, default=300, help="begins no run after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episode", type=int, help="only this run of the seed")
    # The longest fault, the time to find it and a start are less.
    parser.add_argument("--patience", type=float, default=90, help="seconds without a step")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--steps", type=int, default=300, help="iterations of a run")
    parser.add_argument("--directory", help="where runs lie, and failed ones stay; default: a new one, "
                        "or the kept outputs of a test")
    parser.add_argument("--faults", default="", help="only these kinds, with commas between")
    parser.add_argument("--list", action="store_true", help="lists the kinds of faults")
    parser.add_argument("--summary", help="a JSON file for the counts")
    options = parser.parse_args(arguments)
    options.faults = [name for name in options.faults.split(",") if name]
    if unknown := [name for name in options.faults if name not in faults.ALL]:
        parser.error(f"there is no fault {unknown[0]}; there are {', '.join(faults.ALL)}")
    options.pretrain = os.path.abspath(options.pretrain)
    options.launch = options.launch and os.path.abspath(options.launch)
    options.clock = options.clock and os.path.abspath(options.clock)
    return options


def main(arguments):
    if "--list" in arguments:
        print("\n".join(faults.ALL))
        return 0
    options = parse(arguments)
    kept = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR")  # of a test; Bazel keeps what is in there
    directory = options.directory or (kept and os.path.join(kept, "soak")) or (
        tempfile.mkdtemp(prefix="soak."))
    os.makedirs(directory, exist_ok=True)
    soak = Soak(options, os.path.abspath(directory))
    counts, episodes = collections.Counter(), collections.Counter()
    begin = time.monotonic()
    numbers = iter(range(1 << 30) if options.episode is None else [options.episode])

    def end(number, _):
        soak.ends = True
        for episode in list(soak.playing):
            episode.leave()
        for pid in processes_with(soak.directory):  # those of undisturbed runs
            send(pid, signal.SIGKILL)
        summarize(counts, episodes, options, time.monotonic() - begin)  # of the runs that have ended
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

    def play_until_the_end():
        while time.monotonic() - begin < options.seconds:
            with soak.lock:
                number = next(numbers, None)
            if number is None:
                return
            episode = Episode(soak, number)
            soak.playing.append(episode)
            start = time.monotonic()
            verdict, why = episode.play()
            soak.playing.remove(episode)
            with soak.lock:
                tell(number, episode, verdict, why, time.monotonic() - start)
                episodes[verdict] += 1
                for kind in episode.struck:
                    counts[kind, verdict] += 1

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for job in [pool.submit(play_until_the_end) for _ in range(options.jobs)]:
            job.result()
    if options.summary:
        with open(options.summary, "w", encoding="utf-8") as file:
            json.dump({"runs": episodes, "faults": [[kind, verdict, n] for (kind, verdict), n in
                                                    sorted(counts.items())]}, file)
    return 0 if summarize(counts, episodes, options, time.monotonic() - begin) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
