#!/usr/bin/env python3
"""Sends a run's metrics to W&B, MLflow or trackio, while the run trains or afterwards.

    python3 tools/track.py --to=wandb run           # follows run/metrics.jsonl until the run ends
    python3 tools/track.py --to=mlflow --once run   # sends what is there
    bazel run //tools:track -- --to=trackio run     # the same program

A run of training is one run of the tracker, with one point per step, however often either is killed
and started again: tracking_TRACKER.json beside the metrics says what was sent. Only the package of
the tracker is needed, and it reads its own environment variables: WANDB_MODE=offline,
MLFLOW_TRACKING_URI=sqlite:///mlflow.db and so on. docs/metrics.md has the rest.

Exit codes: 0 all was sent, 20 an argument is wrong or the package is missing, 21 there are no metrics,
23 files or the tracker failed, 130 and 143 ended by SIGINT or SIGTERM.
"""

import argparse
import collections
import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
import re
import secrets
import signal
import struct
import sys
import threading
import time
import warnings

WRONG_ARGUMENT, NO_METRICS, FILES_FAILED, SIGNALLED = 20, 21, 23, 128

POLL_SECONDS = 1
# A run that wrote nothing for so long, twice, and holds no lock then, is over. One that is killed is
# often started again at once.
QUIET_SECONDS = 30
MOST_PATIENCE_SECONDS = 60
CHUNK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 20
LONGEST_CARD_BYTES = 1 << 24
MOST_EVENTS_BEFORE_CARD = 100

# Values with a second curve over consumed samples (the table of docs/metrics.md), and without evaluations'
# endings. A step that is taken again has the same ones.
BOTH_AXES = frozenset((
    "lm loss", "lm accuracy", "exact span accuracy", "sop loss", "sop accuracy", "accuracy",
    "mtp_1 loss", "mtp_2 loss", "mtp_3 loss", "mtp_4 loss", "learning-rate", "grad-norm",
    "params-norm", "num-zeros", "loss-scale", "batch-size", "curriculum-seqlen", "random-ltd-length",
    "decoupled-learning-rate"))
# All three trackers take such names as they are.
NAME = re.compile(r"[A-Za-z0-9][\w .-]*(/[A-Za-z0-9][\w .-]*)*", re.ASCII)
LONGEST_NAME = 200
# Losses whose names end in the name of a training file or a validation set, and metrics of a validation set
# or a task, whose names have it in the middle. It may be any text.
FREE_NAMES = (re.compile("(lm loss (?:train|validation) )(.+)()", re.DOTALL),
              re.compile("(tasks/)(.+)(/[^/]+)", re.DOTALL))

# A step or an evaluation. `kind` is "step", "validation" or "test", `samples` the consumed samples or
# None, and `values` maps the trackers' names to floats.
Record = collections.namedtuple("Record", "kind iteration samples values")


class Failure(Exception):
    """An error that ends the program. It has the exit code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def say(message, descriptor=2):
    """Prints a line, to stderr by default. A reader that has ended is no reason to end."""
    with contextlib.suppress(OSError):
        os.write(descriptor, ("track: %s\n" % message).encode(errors="replace"))


# ---- metrics.jsonl ------------------------------------------------------------------------------


def to_float(value):
    """Returns a JSON value as a number; null is one that was not finite."""
    return math.nan if value is None else float(value)


def parse_record(line):
    """Returns the JSON object of a line of metrics.jsonl, or None if the line is no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    iteration = record.get("iteration")
    if type(iteration) is not int or iteration < 0 or kind_of(record) is None:
        return None
    if type(record.get("consumed_samples")) not in (int, type(None)):
        return None
    for name, value in record.items():
        if tracker_name(name) is None or isinstance(value, list):
            continue  # no tracker gets it; lists are values of single experts
        if value is not None and not isinstance(value, (bool, int, float)):
            return None
        if isinstance(value, int) and not -1 << 62 < value < 1 << 62:
            return None
    return record


def tracker_name(name):
    """Returns the name of a value for trackers, or None for one that they refuse.

    In names of files and sets other characters become _.
    """
    free = next(filter(None, (pattern.fullmatch(name) for pattern in FREE_NAMES)), None)
    if free is not None and not is_taken(name):
        before, text, after = free.groups()
        text = re.sub(r"[^A-Za-z0-9_ .-]", "_", text)
        if before.endswith("/") and not text[0].isalnum():
            text = "set" + text
        name = before + text[:max(0, LONGEST_NAME - len(before) - len(after))] + after
    return name if is_taken(name) else None


def is_taken(name):
    """Returns whether the trackers take the name."""
    return len(name) <= LONGEST_NAME and NAME.fullmatch(name) is not None


def kind_of(record):
    """Returns what a JSON object of metrics.jsonl tells of, or None."""
    for kind, name in (("validation", "lm loss validation"), ("test", "lm loss test"), ("step", "lm loss")):
        if name in record:
            return kind
    return None


def values_of(record):
    """Returns the values of a record by their TensorBoard tags, as floats."""
    values = {}
    for name, value in record.items():
        if name == "elapsed_ms":
            values["iteration-time"] = to_float(value) / 1e3
        elif name == "consumed_tokens":
            values["consumed-tokens"] = to_float(value)
        elif name not in ("iteration", "consumed_samples") and not isinstance(value, list):
            tag = tracker_name(name)
            if tag is not None:
                values[tag] = to_float(value)
    return values


def has_second_curve(name):
    """Returns whether a value is drawn over consumed samples, too."""
    return re.sub(" (validation|test)( ppl)?$", "", name) in BOTH_AXES


def beginning_of(record):
    """Returns a step's iteration and a hash of what training has determined in it."""
    trained = sorted((name, repr(value)) for name, value in record.items() if name in BOTH_AXES)
    return [record["iteration"], hashlib.sha256(repr(trained).encode()).hexdigest()[:16]]


class Tail:
    """The whole lines of a file that grows, and of each file that takes its place."""

    def __init__(self, path):
        self.path = path
        self.file = None
        self.rest = b""  # the line that has no line feed yet

    def read(self):
        """Returns the next lines, None at the end, and whether they are the first ones of another file."""
        anew = self._reopen()
        bytes_read = self.file.read(CHUNK_BYTES) if self.file else b""
        if not bytes_read:
            return None, anew
        *lines, self.rest = (self.rest + bytes_read).split(b"\n")
        if len(self.rest) > LONGEST_LINE_BYTES:
            self.rest = b"\0"  # whatever follows, the line is no record
        return lines, anew

    def _reopen(self):
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False  # a file that is gone may still have lines
        if self.file is not None:
            opened = os.fstat(self.file.fileno())
            if (opened.st_dev, opened.st_ino) == (now.st_dev, now.st_ino) and now.st_size >= self.file.tell():
                return False
            self.file.close()
        self.file, self.rest = open(self.path, "rb"), b""
        return True


# ---- the configuration --------------------------------------------------------------------------


def parse_config(text):
    """Returns the fields of a configuration that was printed one field a line: {"optimizer.lr": 0.0003}."""
    fields, path = {}, []
    for line in map(str.strip, text.splitlines()):
        if line.endswith(" {"):
            path.append(line[:-2])
        elif line == "}":
            del path[-1:]
        elif ": " in line:
            name, value = line.split(": ", 1)
            fields[".".join(path + [name])] = parse_value(value)
    return fields


def parse_value(text):
    """Returns a value of protobuf's text format; names of choices, lists and what is not finite stay text."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        with contextlib.suppress(ValueError):
            return text[1:-1].encode("ascii").decode("unicode_escape").encode("latin-1").decode()
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text) if math.isfinite(number(text)) else text
    return text


def protobuf_fields(message):
    """Yields the number and the value of each field of a protobuf message; ValueError if it is none."""
    at = 0

    def varint():
        nonlocal at
        number = shift = 0
        while at < len(message) and shift < 64:
            byte, at = message[at], at + 1
            number |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return number
        raise ValueError("no varint")

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if key & 7 == 2 else {1: 8, 5: 4}.get(key & 7)
        if size is None or size > len(message) - at:
            raise ValueError("no field")
        yield key >> 3, message[at:at + size]
        at += size


def card_of(event):
    """Returns the text of an event of TensorBoard that holds the configuration; else None."""
    for field, summary in protobuf_fields(event):
        if field != 5 or not isinstance(summary, bytes):
            continue
        for _, value in protobuf_fields(summary):
            parts = dict(protobuf_fields(value))
            if parts.get(1) == b"configuration" and 8 in parts:
                return dict(protobuf_fields(parts[8])).get(8, b"").decode(errors="replace")
    return None


def card_in(path):
    """Returns the configuration in an event file of ours, or None."""
    with open(path, "rb") as file:
        for number in range(MOST_EVENTS_BEFORE_CARD):
            head = file.read(12)
            size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else LONGEST_CARD_BYTES
            event = file.read(size) if size < LONGEST_CARD_BYTES else b""
            if len(event) < size or len(file.read(4)) < 4 or number == 0 and b"megatron run " not in event:
                return None
            try:
                card = card_of(event)
            except (ValueError, TypeError, AttributeError):
                return None
            if card is not None:
                return card
    return None


def saved_config(folder):
    """Returns the manifest of the run's newest checkpoint, and the configuration in it."""
    try:
        with open(os.path.join(folder, "latest_checkpointed_iteration.txt")) as file:
            path = os.path.join(folder, "iter_%07d" % int(file.read(32)), "manifest.json")
        with open(path) as file:
            for line in file:
                if line.startswith('"config":'):
                    return path, json.JSONDecoder().raw_decode(line[len('"config":'):])[0]
                if line.startswith('"shards":'):
                    break
    except (OSError, ValueError):
        pass
    return None, None


def find_config(folder):
    """Returns the file with the configuration of the run's last start, and its text; None, None without one.

    TensorBoard's files have it from the first step on, checkpoints later.
    """
    board = os.path.join(folder, "tensorboard")
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(board), reverse=True):
            with contextlib.suppress(OSError):
                card = "tfevents" in name and card_in(os.path.join(board, name))
                if card:
                    return name, card
    return saved_config(folder)


# ---- the trackers -------------------------------------------------------------------------------
#
# A tracker has these methods. An exception means that what was asked may not have been done; it is
# asked again, after close().
#
#   open(run, name, config)    begins the run with the identifier `run`, or continues it
#   configure(config)          replaces the configuration
#   send(records, number, ms)  takes records, the first of which is the run's `number`-th; those that
#                              it may have had before have their old numbers, and `ms` is as it was.
#                              Returns how many of the last records are lost if it is killed now
#   close(over)                ends the connection, and the run if it is over; nothing is lost then
#   where(run)                 says where the run can be seen


class Wandb:
    """Weights & Biases. Its server ignores steps that it has, so a step of its own is a record's number.

    Its process writes a block of its file when the block is full, and dies with this one.
    """

    BLOCK_BYTES = 32768

    def __init__(self, project):
        import wandb
        self.wandb, self.project, self.run = wandb, project, None
        self.sizes = collections.deque()  # the least bytes of each record that may not be in the file

    def open(self, run, name, config):
        self.run = self.wandb.init(project=self.project, id=run, config=config, resume="allow")
        if not self.run.resumed:
            self.run.name = name  # and stays what a user makes of it
        self.run.define_metric("iteration")
        self.run.define_metric("consumed_samples")
        self.run.define_metric("*", step_metric="iteration")

    def configure(self, config):
        self.run.config.update(config, allow_val_change=True)

    def send(self, records, number, ms):
        for step, record in enumerate(records, number):
            row = {"iteration": record.iteration, **record.values}
            if record.samples is not None:
                row["consumed_samples"] = record.samples
            self.run.log(row, step=step, commit=True)
            self.sizes.append(sum(len(key) + 8 for key in row))
        total = sum(self.sizes)
        while total > self.BLOCK_BYTES + self.sizes[0]:
            total -= self.sizes.popleft()
        return len(self.sizes)

    def close(self, over):
        run, self.run = self.run, None
        self.sizes.clear()
        try:
            if run is not None:
                run.finish()
        finally:
            with contextlib.suppress(Exception, SystemExit):
                self.wandb.teardown()  # ends its process, or forgets one that has gone

    def where(self, run):
        return "project %s, run %s" % (self.project, run)


class Mlflow:
    """MLflow. It stores a value with equal name, step and time once."""

    TAG = "megatron.run"
    MOST_METRICS, MOST_PARAMETERS = 1000, 100  # of one request

    def __init__(self, project):
        import mlflow
        import mlflow.entities
        self.mlflow, self.project, self.client, self.id = mlflow, project, None, None

    def open(self, run, name, config):
        self.client = self.mlflow.MlflowClient()
        experiment = self.client.get_experiment_by_name(self.project)
        experiment = experiment.experiment_id if experiment else self.client.create_experiment(self.project)
        found = self.client.search_runs([experiment], "tags.`%s` = '%s'" % (self.TAG, run), max_results=1)
        if not found:
            found = [self.client.create_run(experiment, tags={self.TAG: run}, run_name=name)]
        self.id = found[0].info.run_id
        self.client.update_run(self.id, status="RUNNING")
        self.configure(config)

    def configure(self, config):
        """Logs new parameters. A parameter of MLflow cannot change, so one that does becomes a tag, too."""
        known = self.client.get_run(self.id).data.params
        new = []
        for name, value in config.items():
            if name not in known:
                new.append(self.mlflow.entities.Param(name, str(value)))
            elif known[name] != str(value):
                self.client.set_tag(self.id, name, str(value))
        for at in range(0, len(new), self.MOST_PARAMETERS):
            self.client.log_batch(self.id, params=new[at:at + self.MOST_PARAMETERS])

    def send(self, records, number, ms):
        metrics = []
        for record in records:
            for name, value in record.values.items():
                metrics.append(self.mlflow.entities.Metric(name, value, ms, record.iteration))
                if record.samples is not None and has_second_curve(name):
                    metrics.append(self.mlflow.entities.Metric(name + " vs samples", value, ms, record.samples))
        for at in range(0, len(metrics), self.MOST_METRICS):
            self.client.log_batch(self.id, metrics=metrics[at:at + self.MOST_METRICS])
        return 0

    def close(self, over):
        run, self.id = self.id, None
        if over and run is not None:
            self.client.set_terminated(run)

    def where(self, run):
        return "experiment %s, tag %s = %s" % (self.project, self.TAG, run)


class Trackio:
    """trackio. It writes in a thread, and only the end of a connection tells that all is written."""

    def __init__(self, project):
        import trackio
        self.trackio, self.project, self.name, self.config = trackio, project, None, None

    def open(self, run, name, config):
        self.name, self.config = "%s-%s" % (name, run), config

    def configure(self, config):
        self.config = config

    def send(self, records, number, ms):
        with warnings.catch_warnings(record=True) as said, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            run = self.trackio.init(project=self.project, name=self.name, config=self.config, resume="allow",
                                    embed=False, auto_log_gpu=False, auto_log_cpu=False)
            for record in records:
                samples = {} if record.samples is None else {"consumed_samples": record.samples}
                run.log({**samples, **record.values}, step=record.iteration)
            self.trackio.finish()
        for warning in said:
            if re.search("could not be persisted|dropped|skipped metric", str(warning.message)):
                raise OSError(str(warning.message))
        return 0

    def close(self, over):
        pass

    def where(self, run):
        return "project %s, run %s: trackio show --project %s" % (self.project, self.name, self.project)


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}


def load_tracker(name, project):
    """Returns the tracker with this name; its package is needed only now."""
    try:
        return TRACKERS[name](project)
    except ImportError as error:
        raise Failure(WRONG_ARGUMENT, "--to=%s needs its package: pip install %s (%s)" %
                      (name, name, error)) from None


# ---- what was sent ------------------------------------------------------------------------------


class State:
    """What the tracker has of the run, in a small file that is replaced at once."""

    def __init__(self, path):
        self.path = path
        self.begin()
        if os.path.exists(path):
            self._load()

    def begin(self):
        """Begins another run."""
        self.run = secrets.token_hex(8)  # its identifier in the tracker
        self.first = None  # see beginning_of()
        self.sent = {}  # the last iteration that the tracker has of each kind of record
        self.number = 0  # the number of records that the tracker has
        self.sending_ms = None  # the time of records that it may have

    def _load(self):
        try:
            with open(self.path, "rb") as file:
                state = json.load(file)
            good = (re.fullmatch("[0-9a-f]{16}", state["run"]) and type(state["number"]) is int and
                    all(type(last) is int for last in state["sent"].values()) and
                    type(state["sending_ms"]) in (int, type(None)) and
                    (state["first"] is None or type(state["first"]) is list and len(state["first"]) == 2))
        except OSError as error:
            raise Failure(FILES_FAILED, "cannot read %s: %s" % (self.path, error.strerror)) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            good = False
        if not good:
            raise Failure(WRONG_ARGUMENT, "%s does not say what was sent: move it away, or name another file with "
                          "--state" % self.path)
        for name in ("run", "first", "sent", "number", "sending_ms"):
            setattr(self, name, state[name])

    def save(self):
        new = self.path + ".tmp"
        with open(new, "w") as file:
            json.dump({"run": self.run, "first": self.first, "sent": self.sent, "number": self.number,
                       "sending_ms": self.sending_ms}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)


def lock(path):
    """Keeps other processes from sending the same; returns the file that holds the lock until it is closed."""
    try:
        file = open(path, "w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failure(WRONG_ARGUMENT, "another process sends the same: it holds %s" % path) from None
    except OSError as error:
        raise Failure(FILES_FAILED, "cannot lock %s (%s): name a file that can be written to with --state" %
                      (path, error.strerror)) from None
    return file


def is_alive(folder):
    """Returns whether a run, or a launcher that may start it again, holds a lock of its directory.

    None says that this cannot be known. A lock that is free is taken for a moment, which delays a run
    that starts just then.
    """
    if is_locked(os.path.join(folder, ".launcher"), fcntl.LOCK_SH):
        return True
    return is_locked(os.path.join(folder, ".lock"), fcntl.LOCK_EX)


def is_locked(path, kind):
    """Returns whether a lock of this kind is not to be had; None where that cannot be known."""
    for flags in (os.O_RDWR, os.O_RDONLY):  # a lock needs the first on some file systems
        with contextlib.suppress(OSError):
            lock = os.open(path, flags)
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                return True
            finally:
                os.close(lock)
    return None


# ---- following ----------------------------------------------------------------------------------


class Follower:
    """Reads records, and sends those that the tracker has not."""

    def __init__(self, path, state, tracker, name):
        self.folder, self.path = os.path.dirname(path), path
        self.tail, self.state, self.tracker, self.name = Tail(path), state, tracker, name
        self.pending = []  # records that were read and not sent
        self.at_risk = collections.deque()  # records that were sent and are lost if the tracker is killed
        self.samples = (None, None)  # the last step's iteration and its consumed samples
        self.unsure_of_run = True  # no step of this file was read yet
        self.is_open = False
        self.config_file = None
        self.said = set()

    def warn_once(self, kind, message):
        if kind not in self.said:
            self.said.add(kind)
            say(message + "; further such errors are not printed")

    def read(self):
        """Reads more records into `pending`, which is empty; returns whether there was anything to read."""
        lines, anew = self.tail.read()
        if anew:
            self.unsure_of_run, self.samples = True, (None, None)
        last = dict(self.state.sent)
        last.update((record.kind, record.iteration) for record in self.at_risk)
        for line in lines or ():
            record = parse_record(line)
            if record is None:
                self.warn_once("line", "%s has a line that is no record of metrics: %r" % (self.path, line[:60]))
            else:
                self._warn_of_names(record)
                self._take(record, last)
        return lines is not None

    def _warn_of_names(self, record):
        for name in record:
            if tracker_name(name) is None:
                self.warn_once("name", "%s has a value that is not sent, since trackers refuse its name: %r"
                               % (self.path, name[:60]))

    def _take(self, record, last):
        kind, iteration = kind_of(record), record["iteration"]
        if kind == "step":
            if self.unsure_of_run:
                self._check_run(record, last)
            self.samples = (iteration, record.get("consumed_samples"))
        if iteration <= last.get(kind, -1):
            return  # sent already: a run that was killed takes steps again
        last[kind] = iteration
        samples = self.samples[1] if self.samples[0] == iteration else None
        self.pending.append(Record(kind, iteration, samples, values_of(record)))

    def _check_run(self, step, last):
        """Begins another run of the tracker if the file's first step is not the first step that was sent."""
        self.unsure_of_run = False
        beginning = beginning_of(step)
        if self.state.first is None:
            self.state.first = beginning
        elif self.state.first[0] == beginning[0] and self.state.first != beginning:
            say("%s is of another run than before, which becomes another run of the tracker" % self.path)
            pending, self.pending = self.pending, []
            self.close(over=True)
            self.pending = pending
            self.state.begin()
            self.state.first = beginning
            last.clear()
            self.config_file = None

    def send(self):
        """Sends what is pending; raises whatever the tracker raises. After close() it can be called again."""
        if self.state.sending_ms is None:
            self.state.sending_ms = int(time.time() * 1e3)
        self._save()
        self._open()
        number = self.state.number + len(self.at_risk)
        count = self.tracker.send(self.pending, number, self.state.sending_ms)
        self.at_risk.extend(self.pending)
        self.pending, self.state.sending_ms = [], None
        self._note(count)

    def _note(self, count):
        """Writes down that the tracker has what was sent, but for the last `count` records."""
        while len(self.at_risk) > count:
            record = self.at_risk.popleft()
            self.state.sent[record.kind] = record.iteration
            self.state.number += 1
        self._save()

    def _open(self):
        file, text = find_config(self.folder)
        if not self.is_open:
            self.is_open = True
            self.tracker.open(self.state.run, self.name, parse_config(text or ""))
            if self.state.run not in self.said:
                self.said.add(self.state.run)
                say(self.tracker.where(self.state.run))
        elif file is not None and file != self.config_file:
            self.tracker.configure(parse_config(text))
        self.config_file = file or self.config_file

    def _save(self):
        try:
            self.state.save()
        except OSError as error:
            self.warn_once("state", "cannot write %s: %s; a follower that is started after this one may send again "
                           "what this one sends" % (self.state.path, error.strerror))

    def close(self, over):
        """Ends the connection to the tracker. What is lost with it is pending again."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.tracker.close(over)
            self._note(0)
        except Exception as error:
            self.pending[:0] = self.at_risk
            self.at_risk.clear()
            self.warn_once("close", "the tracker does not end the run: %s" % error)


def follow(follower, once, stopped):
    """Sends records until the run is over, `stopped` is set, or, `once`, all lines were sent."""
    patience, quiet_since, quiet_times = POLL_SECONDS, time.monotonic(), 0
    while not stopped.is_set():
        try:
            more = bool(follower.pending) or follower.read()
            if follower.pending:
                follower.send()
                patience = POLL_SECONDS
        except Failure:
            raise
        except Exception as error:  # of the tracker's package, whatever they are, and of files
            problem = "%s: %s" % (type(error).__name__, error)
            follower.close(over=False)
            if once:
                raise Failure(FILES_FAILED, "the metrics were not all sent: " + problem) from None
            follower.warn_once("send", "the metrics cannot be sent and will be tried again: " + problem)
            stopped.wait(patience)
            patience = min(2 * patience, MOST_PATIENCE_SECONDS)
            continue
        if more:
            quiet_since, quiet_times = time.monotonic(), 0
            continue
        if once:
            return
        if time.monotonic() - quiet_since >= QUIET_SECONDS:
            quiet_since = time.monotonic()
            quiet_times = quiet_times + 1 if is_alive(follower.folder) is False else 0
            if quiet_times == 2:
                return
        stopped.wait(POLL_SECONDS)


def catch_signals():
    """Returns an event that the first SIGINT or SIGTERM sets, and a list of its number; a second one ends."""
    stopped, numbers = threading.Event(), []

    def stop(number, frame):
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, signal.SIG_DFL)
        numbers.append(number)
        stopped.set()

    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, stop)
    return stopped, numbers


def run_track(options):
    """Does what the command line says; returns the exit code."""
    path = options.run if options.run.endswith(".jsonl") else os.path.join(options.run, "metrics.jsonl")
    path = os.path.abspath(path)
    name = options.name or os.path.basename(os.path.dirname(path))
    state_path = options.state or os.path.join(os.path.dirname(path), "tracking_%s.json" % options.to)
    if options.once and not os.path.exists(path):
        raise Failure(NO_METRICS, "there is no %s" % path)
    tracker = load_tracker(options.to, options.project)
    stopped, numbers = catch_signals()
    if not os.path.isdir(os.path.dirname(path)):
        say("waits for %s" % path)
    while not os.path.isdir(os.path.dirname(path)):
        if stopped.wait(POLL_SECONDS):
            return SIGNALLED + numbers[0]
    with lock(state_path + ".lock"):
        follower = Follower(path, State(state_path), tracker, name)
        if not os.path.exists(path):
            say("waits for %s" % path)
        follow(follower, options.once, stopped)
        follower.close(over=not stopped.is_set())
    state = follower.state
    if not state.sent and options.once:
        raise Failure(NO_METRICS, "%s holds no metrics" % path)
    say("%s has %d steps and evaluations, up to iteration %d" %
        (options.to, state.number, max(state.sent.values(), default=0)), descriptor=1)
    return SIGNALLED + numbers[0] if numbers else 0


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(WRONG_ARGUMENT, "%s (--help tells more)" % message)


def main(arguments):
    parser = Parser(prog="track", description=__doc__.split("\n\n", 1)[0],
                    epilog=__doc__.split("\n\n", 1)[1], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's directory (checkpoint.save), or its metrics.jsonl")
    parser.add_argument("--to", required=True, choices=sorted(TRACKERS), help="the tracker")
    parser.add_argument("--once", action="store_true", help="end when all that is there was sent")
    parser.add_argument("--project", default="megatron", help="the tracker's project or experiment")
    parser.add_argument("--name", help="the run's name in the tracker; by default that of its directory")
    parser.add_argument("--state", metavar="FILE", help="the file that says what was sent")
    if "BUILD_WORKING_DIRECTORY" in os.environ:  # `bazel run` starts programs elsewhere
        os.chdir(os.environ["BUILD_WORKING_DIRECTORY"])
    try:
        return run_track(parser.parse_args(arguments))
    except Failure as failure:
        say("error: %s" % failure)
        return failure.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
