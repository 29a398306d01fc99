"""One part of the GPU check: its time, the programs that it runs, and its results, one JSON object a line."""

import contextlib
import datetime
import itertools
import json
import os
import subprocess
import tarfile
import time
import traceback

from console import printable
from processes import Hung, Processes

_MOST_TEXT = 600  # characters of one reason
_MOST_TOLD = 8000  # characters of all reasons in the last lines
_SECONDS_TO_END = 10  # for the tables
_SECONDS_OF_ARCHIVE = 20  # it is written no more often while steps are done
_LARGEST_FILE = 16 << 20  # bytes of a file in the archive
# Results that the trainer and the planner read, which do not bear the name of their part.
_FOR_OTHERS = ("attention_plans.textproto", "hardware.textproto", "kernels.csv")


class Failure(Exception):
    """A step found something wrong; the text says what. `figures` stand in its row nonetheless.

    `again`: the runs that crashed, hung or computed something wrong, for a second look; as of `Crash`.
    """

    def __init__(self, text, figures=None, again=()):
        super().__init__(text)
        self.figures, self.again = figures or {}, again


class OutOfTime(Exception):
    """The part's time was up before a step was done."""


class LeftOut(OutOfTime):
    """It was up before the step began, or what the step needs was not done."""


class NotHere(Exception):
    """The machine lacks what a step needs and may lack."""


class Crash:
    """A run of one of our programs that somebody should look into."""

    def __init__(self, name, command, hung=False, wrong=False, dump=None):
        self.name, self.command = name, command
        self.hung, self.wrong = hung, wrong  # it did not end; it ended with a wrong result
        self.dump = dump  # what the GPU did when it was given up, if that is known


def shorten(text, most=_MOST_TEXT):
    """Returns the text as one line of at most `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most - 4] + " ..."


def unforeseen(error):
    """What to say of an error that nobody foresaw: what it is, and where it came up."""
    places = traceback.extract_tb(error.__traceback__)
    where = " (%s, line %d)" % (os.path.basename(places[-1].filename), places[-1].lineno) if places else ""
    return shorten("%s: %s" % (type(error).__name__, error)) + where


class Ran:
    """A program that has ended."""

    def __init__(self, command, code, log, offset, begin):
        self.command, self.code, self.log, self.begin, self.end = command, code, log, begin, time.monotonic()
        self._offset = offset

    def text(self):
        with open(self.log, errors="replace") as file:
            file.seek(self._offset)
            return file.read()

    def last_words(self):
        return last_words(self.text())

    def require_success(self):
        if self.code == 0:
            return self
        text, again = "exit code %d: %s" % (self.code, self.last_words()), []
        if self.code < 0:
            text = "killed by signal %d: %s" % (-self.code, self.last_words())
            again = [Crash(os.path.basename(self.command[0]), self.command)]
        raise Failure(text, again=again)


def last_words(text):
    """The line that most likely says why a program failed, and up to two behind it, where reasons often stand."""
    lines = [line.strip() for line in text.strip().splitlines()]
    # What was checked first failed first; other errors are told last.
    found = next((i for i, line in enumerate(lines) if "Check failed" in line), None)
    if found is None:
        words = ("out of memory", "ERROR", "FAILED", "rror:")
        found = next((i for i, line in reversed(list(enumerate(lines))) if any(word in line for word in words)), None)
    if found is not None:
        # A paragraph ends with an empty line, or where glog's stack trace begins.
        behind = itertools.takewhile(lambda other: other and not other.startswith(("***", "@")),
                                     lines[found + 1:found + 3])
        return " ".join(words[:300] for words in (lines[found], *behind))
    return lines[-1][:200] if lines else "no output"


def last_test(text):
    """Returns the test of GoogleTest that has begun and not ended; none where there is none."""
    running = None
    for line in text.splitlines():
        if line.startswith("[ RUN      ]"):
            running = line[12:].strip()
        elif line.startswith(("[       OK ]", "[  FAILED  ]", "[  SKIPPED ]")):
            running = None
    return running


def _step_of(row):
    """(what, name) of the step that a row tells of; none where it follows from other rows, and is found again."""
    if row["what"] == "kernel":
        return "benchmark", row.get("group")
    if row["what"] == "explanation":
        return tuple(row["of"])
    if row["what"] == "plan":
        return "training", row["name"]
    return (row["what"], row["name"]) if "seconds" in row else None


class Session:

    def __init__(self, programs, out, part, seconds, steps=(), test_seconds=60):
        """`steps`: the kinds of steps that are done, or ("rest",), those that an earlier session did not pass; all.

        What an earlier session did and this one does not do again keeps its rows, also of what failed. `out` gets the
        results, and its folder `part` the logs.
        """
        self.programs, self.out, self.part, self.test_seconds = programs, out, part, test_seconds
        self.began, self.seconds = time.monotonic(), seconds
        self.environment = {}  # of our own programs, besides that of this process
        self.explain = None  # gets (what, name, Crash) of a failed step
        self.rows, self._before = [], {}
        self._planned, self._left_out = {}, {}  # seconds by (what, name)
        self.stopped_by = 0  # a signal
        self._stopped = ""
        self._archived, self._too_large = self.began, []
        self._unwritten = ""  # why rows are missing in the file
        rest = "rest" in steps
        self._kinds = () if rest else steps
        os.makedirs(os.path.join(out, part), exist_ok=True)
        self.results = os.path.join(out, part + ".jsonl")
        before = self._read_results() if steps else []
        with open(self.results, "w"):
            pass
        passed = {(row["what"], row["name"]) for row in before if row.get("verdict") == "passed"}
        for row in before:
            key, of = (row["what"], row["name"]), _step_of(row)
            if of is None:
                kept = row["what"] == "device"
            else:  # also what failed is kept if it is not done now
                kept = of in passed if rest else not self.wants(of[0])
            if kept and key == of:
                self._before[key] = row
            if kept:
                self._keep(row)
        self._remove_explanations()
        self._processes = Processes()

    def _remove_explanations(self):
        """The logs of second looks at what failed in an earlier session, of which no row tells any longer."""
        logs = {row["log"] for row in self.rows if row["what"] == "explanation"}
        for name in os.listdir(os.path.join(self.out, self.part)):
            if name.startswith("again_") and name not in logs:
                os.remove(self.path(name))

    def _read_results(self):
        if not os.path.exists(self.results):
            return []
        rows = []
        with open(self.results) as file:
            for line in file:
                try:
                    rows.append(json.loads(line))
                except ValueError:  # who wrote it was killed
                    break
        return rows

    def _keep(self, row):
        self.rows.append(row)
        size = os.path.getsize(self.results) if os.path.exists(self.results) else 0
        try:
            with open(self.results, "a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:  # the disk is full, say: the last lines tell it nonetheless
            self._unwritten = error.strerror
            with contextlib.suppress(OSError):
                os.truncate(self.results, size)  # half a row would hide those behind it
        return row

    def program(self, name):
        return os.path.join(self.programs, name)

    def path(self, name):
        """Returns the path of a log, or of another file that programs write and few people read."""
        return os.path.join(self.out, self.part, name)

    def result_path(self, name):
        return os.path.join(self.out, name)

    def left(self):
        return self.seconds - (time.monotonic() - self.began)

    def stop(self, why):
        """Ends what runs, and begins nothing new: a signal's handler may call this."""
        self._stopped = self._stopped or why
        self.seconds = 0
        self._processes.kill_all()

    def wants(self, what):
        """Whether steps of this kind are done."""
        return not self._kinds or what in self._kinds

    def is_done(self, what, name):
        """Whether an earlier session did this step, and this one does not do it again."""
        return (what, name) in self._before

    def plan(self, steps):
        """Chooses, of all (what, name, seconds) of a part, the most valuable first, what there is time for.

        A step that is left out is done in its turn nonetheless if those before it were so quick that it takes no time
        from those behind it.
        """
        budget = self.seconds - _SECONDS_TO_END
        for what, name, seconds in steps:
            if not self.wants(what) or (what, name) in self._before:
                continue
            if seconds <= budget:
                self._planned[what, name] = seconds
                budget -= seconds
            else:
                self._left_out[what, name] = seconds
        print("plan: %d steps, about %.0f of %.0f s" %
              (len(self._planned), sum(self._planned.values()), self.seconds), flush=True)
        if self._left_out:
            print("left out unless others are quicker: %s" % ", ".join(
                "%s %s (%d s)" % (*step, seconds) for step, seconds in self._left_out.items()), flush=True)

    def forget(self, what, name):
        """The plan keeps no more time for this step, which is done now or never."""
        self._planned.pop((what, name), None)

    def _require_time(self, key, need):
        if self._stopped:
            raise LeftOut(self._stopped)
        left = self.left()
        takes, others = self._left_out.get(key, need), sum(self._planned.values())
        if key in self._left_out and left < takes + others + _SECONDS_TO_END:
            raise LeftOut("it takes about %d s; of %.0f s that were left, %d were for others" %
                          (takes, max(0, left), others))
        if left < need:
            raise LeftOut("%.0f s were left" % max(0, left))

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
        figures, again = {}, ()
        self.forget(what, name)
        try:
            self._require_time((what, name), need)
            figures = action() or {}
            verdict, why = "passed", ""
        except Failure as failure:
            verdict, why, figures, again = "failed", str(failure), failure.figures, failure.again
        except LeftOut as reason:
            return self.record(what, name, verdict="not run", begun=False, why=str(reason), seconds=0)
        except OutOfTime as reason:
            verdict, why = "not run", str(reason)
        except NotHere as reason:
            verdict, why = "left out", str(reason)
        except Exception as error:  # the other steps are done nonetheless
            verdict, why = "failed", unforeseen(error)
        seconds = round(time.monotonic() - begin, 1)
        reason = {"why": why} if why else {}
        print("%-8s %s %s (%.1f s)%s" % (verdict, what, name, seconds, ": " + why if why else ""), flush=True)
        row = self.record(what, name, verdict=verdict, **reason, seconds=seconds, **figures)
        for crash in again if self.explain else ():
            self.attempt("explanation of", name, lambda: self.explain(what, name, crash))
        if time.monotonic() - self._archived > _SECONDS_OF_ARCHIVE:
            self.archive()
        return row

    def attempt(self, what, name, action):
        """Returns the text that `action` returns. An error, of which nobody has thought, is a failure; no text then."""
        try:
            return action()
        except Exception as error:
            self.fail(what, name, unforeseen(error))
            return ""

    def fail(self, what, name, failure):
        """For what is found outside of a step."""
        print("failed   %s %s: %s" % (what, name, failure), flush=True)
        return self.record(what, name, verdict="failed", why=str(failure))

    def run(self, command, log, limit, append=False, ours=True, quiet=None, **environment):
        """Runs a program for at most `limit` seconds, with its output in the file `log`.

        It is given up sooner if it says nothing for `quiet` seconds. `ours`: it gets the environment of our programs.
        """
        log = self.path(log)
        limit_here = min(limit, self.left())
        if limit_here < 1:
            raise OutOfTime(self._stopped or "no time was left for %s" % os.path.basename(command[0]))
        begin = time.monotonic()
        variables = {**os.environ, **(self.environment if ours else {}), **environment}
        with open(log, "a") as output:
            if not append:
                output.truncate(0)
            offset = os.fstat(output.fileno()).st_size
            try:
                code = self._processes.run(command, output, variables, limit_here, quiet, dumps=limit_here == limit)
            except OSError as error:
                raise Failure("%s does not start: %s" % (command[0], error.strerror))
            except Hung as hung:
                text = Ran(command, 0, log, offset, begin).text()
                test, lines = last_test(text), text.split("\n")
                where = ("in test " + test if test else
                         "last it said: " + next((line for line in reversed(lines) if line.strip()), "nothing"))
                if limit_here < limit and time.monotonic() - begin >= limit_here:
                    raise OutOfTime("stopped after %.0f s, when time was up, %s" % (limit_here, shorten(where, 200)))
                raise Failure("%s, %s" % (hung, shorten(where, 300)),
                              again=[Crash(os.path.basename(command[0]), command, hung=True, dump=hung.dump)]
                              if ours else [])
        if self._stopped and code != 0:
            raise OutOfTime(self._stopped)
        return Ran(command, code, log, offset, begin)

    def archive(self):
        """Writes all results of this part, its logs included, into one file beside them. Returns whether it could."""
        self._archived = time.monotonic()
        path = self.result_path(self.part + ".tar.gz")
        try:
            self._write_archive(path + ".new")
            os.replace(path + ".new", path)
            return True
        except (OSError, tarfile.TarError) as error:
            print("cannot write %s: %s" % (path, getattr(error, "strerror", None) or error))
            with contextlib.suppress(OSError):
                os.remove(path + ".new")
            return False

    def _write_archive(self, path):
        with tarfile.open(path, "w:gz") as archive:
            names = [name for name in sorted(os.listdir(self.out))
                     if name in _FOR_OTHERS or
                     name.startswith(self.part + ".") and not name.endswith((".tar.gz", ".new"))]
            for folder, _, files in os.walk(os.path.join(self.out, self.part)):
                names += sorted(os.path.relpath(os.path.join(folder, file), self.out) for file in files)
            for name in names:
                if not os.access(os.path.join(self.out, name), os.R_OK):
                    continue  # a link to nothing, or another user's
                if os.path.getsize(os.path.join(self.out, name)) <= _LARGEST_FILE:
                    archive.add(os.path.join(self.out, name), name)
                elif name not in self._too_large:
                    self._too_large.append(name)
                    print("not in the archive, for its size: %s" % name)

    def _summary(self):
        """How it went, in lines, and the exit code."""
        lines = []
        counts = {verdict: sum(row.get("verdict") == verdict for row in self.rows)
                  for verdict in ("passed", "failed", "not run")}
        missing = [row for row in self.rows if row.get("verdict") == "not run"]
        left_out = ["%s %s" % (row["what"], row["name"]) for row in missing if not row.get("begun", True)]
        if left_out:
            lines.append("LEFT OUT: %s" % ", ".join(left_out))
        for row in missing:
            if row.get("begun", True):
                lines.append(shorten("NOT RUN: %s %s: %s" % (row["what"], row["name"], row["why"]), 300))
        told = 0
        for row in self.rows:  # what failed stands last
            if row.get("verdict") != "failed":
                continue
            line = "FAILED: %s %s: %s" % (row["what"], row["name"], row.get("why", ""))
            for other in self.rows:
                if other["what"] == "explanation" and other["of"] == [row["what"], row["name"]]:
                    line += "\n  %s, %s: %s" % (other["name"], other["by"], other["text"])
            told += len(line)
            lines.append(line if told <= _MOST_TOLD else shorten(line, 200))
        if self._unwritten:
            lines.append("FAILED: %s lacks rows: %s" % (self.results, self._unwritten))
        targets = [row["target_met"] for row in self.rows if "target_met" in row]
        lines.append("%s on %s: %d passed, %d failed, %d not run; targets: %d met, %d missed" %
                     (self.part, datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), counts["passed"],
                      counts["failed"], counts["not run"], targets.count(True), targets.count(False)))
        if self._stopped:
            lines.append("%s: what is above is what there was until then" % self._stopped)
        return "\n".join(lines), 1 if counts["failed"] or self._unwritten else 2 if counts["not run"] else 0

    def finish(self, tables):
        """Writes and prints `tables`, and how it went. 0: all was done and passed, 1: something failed, 2: not run."""

        def write():
            with open(self.result_path(self.part + ".md"), "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(printable("%s\n%s\n" % (tables, self._summary()[0])))

        self.attempt("result", self.part + ".md", write)
        summary, code = self._summary()
        print("\n%s\n%s" % (tables, summary))
        if not self.archive():
            code = 1
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # somebody killed the guard, or stopped it
            self._processes.close()
        return code
