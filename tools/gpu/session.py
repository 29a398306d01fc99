"""One part of the GPU check: its time, the programs that it runs, and its results, one JSON object a line."""

import datetime
import itertools
import json
import os
import signal
import subprocess
import time


class Failure(Exception):
    """A step found something wrong; the text says what."""


class OutOfTime(Exception):
    """The part's time was up before a step was done."""


class Ran:
    """A program that has ended."""

    def __init__(self, code, log, begin):
        self.code, self.log, self.begin, self.end = code, log, begin, time.monotonic()

    def text(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def last_words(self):
        """The line that most likely says why it failed, and up to two behind it, where reasons often stand."""
        lines = [line.strip() for line in self.text().strip().splitlines()]
        for i, line in reversed(list(enumerate(lines))):
            if any(word in line for word in ("Check failed", "out of memory", "ERROR", "FAILED", "rror:")):
                # A paragraph ends with an empty line, or where glog's stack trace begins.
                behind = itertools.takewhile(lambda other: other and not other.startswith(("***", "@")),
                                             lines[i + 1:i + 3])
                return " ".join(words[:200] for words in (line, *behind))
        return lines[-1][:200] if lines else "no output"

    def require_success(self):
        if self.code < 0:
            raise Failure("killed by signal %d: %s" % (-self.code, self.last_words()))
        if self.code != 0:
            raise Failure("exit code %d: %s" % (self.code, self.last_words()))
        return self


class Session:

    def __init__(self, programs, out, part, seconds, steps=()):
        """`steps`: the kinds of steps that are done, or ("rest",), those that an earlier session did not pass; all.

        What an earlier session passed and this one does not do again keeps its rows.
        """
        self.programs, self.out, self.part = programs, out, part
        self.began, self.seconds = time.monotonic(), seconds
        self.rows, self._before = [], {}
        rest = "rest" in steps
        self._kinds = () if rest else steps
        os.makedirs(out, exist_ok=True)
        self.results = os.path.join(out, part + ".jsonl")
        before = self._read_results() if steps else []
        with open(self.results, "w"):
            pass
        for row in before:
            done = row.get("verdict") == "passed" and (rest or not self.wants(row["what"]))
            if done:
                self._before[row["what"], row["name"]] = row
            if done or row["what"] == "device" or row["what"] == "kernel" and (rest or not self.wants("benchmark")):
                self._keep(row)

    def _read_results(self):
        if not os.path.exists(self.results):
            return []
        with open(self.results) as file:
            return [json.loads(line) for line in file]

    def _keep(self, row):
        self.rows.append(row)
        with open(self.results, "a") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def program(self, name):
        return os.path.join(self.programs, name)

    def path(self, name):
        return os.path.join(self.out, name)

    def left(self):
        return self.seconds - (time.monotonic() - self.began)

    def wants(self, what):
        """Whether steps of this kind are done."""
        return not self._kinds or what in self._kinds

    def record(self, what, name, **figures):
        return self._keep({"what": what, "name": name, **figures})

    def step(self, what, name, action, need=5):
        """Does `action` and records the figures that it returns, with the verdict. Returns the row.

        `need` is the least time, in seconds, that it makes sense to begin with.
        """
        if (what, name) in self._before:
            return self._before[what, name]
        if not self.wants(what):
            return {"what": what, "name": name, "verdict": "left out"}
        begin = time.monotonic()
        figures = {}
        try:
            if self.left() < need:
                raise OutOfTime("%.0f s were left" % max(0, self.left()))
            figures = action() or {}
            verdict, why = "passed", ""
        except Failure as failure:
            verdict, why = "failed", str(failure)
        except OutOfTime as reason:
            verdict, why = "not run", str(reason)
        seconds = round(time.monotonic() - begin, 1)
        reason = {"why": why} if why else {}
        print("%-8s %s %s (%.1f s)%s" % (verdict, what, name, seconds, ": " + why if why else ""), flush=True)
        return self.record(what, name, verdict=verdict, **reason, seconds=seconds, **figures)

    def fail(self, what, name, failure):
        """For what is found outside of a step."""
        print("failed   %s %s: %s" % (what, name, failure), flush=True)
        return self.record(what, name, verdict="failed", why=str(failure))

    def run(self, command, log, limit, **environment):
        """Runs a program for at most `limit` seconds, with its output in the file `log`."""
        log = self.path(log)
        limit_here = min(limit, self.left())
        if limit_here < 1:
            raise OutOfTime("no time was left for %s" % os.path.basename(command[0]))
        begin = time.monotonic()
        with open(log, "w") as output:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                           env={**os.environ, **environment}, start_new_session=True)
            except OSError as error:
                raise Failure("%s does not start: %s" % (command[0], error.strerror))
            try:
                code = process.wait(timeout=limit_here)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if limit_here < limit:
                    raise OutOfTime("stopped after %.0f s, when time was up" % limit_here)
                raise Failure("not done after %.0f s" % limit)
            except BaseException:  # no process of ours stays on the GPU
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return Ran(code, log, begin)

    def finish(self):
        """Prints how it went. 0: all was done and passed, 1: something failed, 2: something was not run."""
        counts = {verdict: sum(row.get("verdict") == verdict for row in self.rows)
                  for verdict in ("passed", "failed", "not run")}
        for row in self.rows:
            if row.get("verdict") in ("failed", "not run"):
                print("%s: %s %s: %s" % (row["verdict"].upper(), row["what"], row["name"], row.get("why", "")))
        targets = [row["target_met"] for row in self.rows if "target_met" in row]
        print("%s on %s: %d passed, %d failed, %d not run; targets: %d met, %d missed" %
              (self.part, datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), counts["passed"],
               counts["failed"], counts["not run"], targets.count(True), targets.count(False)))
        return 1 if counts["failed"] else 2 if counts["not run"] else 0
