"""A second look at what crashed, hung or computed something wrong: the same again, where tools say more."""

import os
import re
import shutil
import time

import bundle
from google_tests import core_dumps
from session import Failure, OutOfTime, shorten

_SECONDS = 60
_SECONDS_OF_HANG = 20  # to see whether it hangs again
_LEAST_SECONDS = 20  # with less it does not begin
_MOST = 6  # failures of a part


class Explainer:
    """Takes note of failures, runs their programs again in its turn, and keeps what they say, as rows "explanation"."""

    def __init__(self, session):
        self._session, self._looked_at = session, 0
        self._failures, self._end = [], 0

    def __call__(self, what, name, crash):
        self._failures.append((what, name, crash))

    def look(self, seconds):
        """Looks at what has failed until now, for about so long; says what it does, and what it leaves for later."""
        self._end = time.monotonic() + min(seconds, self._session.left())
        while self._failures and self._looked_at < _MOST and self._seconds() >= _LEAST_SECONDS:
            self._look_at(*self._failures.pop(0))
        if self._failures:
            print("no second look at %s: %s" % (
                ", ".join("%s %s" % (name, crash.name) for _, name, crash in self._failures),
                "%d others were looked at" % _MOST if self._looked_at == _MOST else "no time for it now"), flush=True)

    def _seconds(self):
        return min(self._end - time.monotonic(), self._session.left())

    def _look_at(self, what, name, crash):
        self._looked_at += 1
        program = os.path.basename(crash.command[0])
        toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "cuda-gdb")
        debugger = shutil.which("cuda-gdb") or (toolkit if os.access(toolkit, os.X_OK) else None)
        if crash.dump and debugger:
            self._run("cuda-gdb", what, name, crash, [debugger, "-batch", "-ex", "target cudacore " + crash.dump,
                                                      "-ex", "info cuda kernels"], _kernels)
        watched = self._session.program(bundle.watched(program))
        if crash.hung and os.path.exists(watched):
            self._run("watched barriers", what, name, crash, [watched, *crash.command[1:]], _barriers)
        else:  # what was wrong and is right then probably lacks a wait
            self._run("CUDA_LAUNCH_BLOCKING=1", what, name, crash, crash.command, _last_line,
                      CUDA_LAUNCH_BLOCKING="1", CUDA_COREDUMP_SHOW_PROGRESS="1", **core_dumps(self._session, program))
        sanitizer = bundle.sanitizer(self._session.programs)
        if sanitizer and not crash.hung:  # it makes kernels a hundred times slower
            self._run("memcheck", what, name, crash, [sanitizer, "--tool=memcheck", *crash.command], _first_error)

    def _run(self, by, what, name, crash, command, pick, **environment):
        session = self._session
        log = "again_%s_%d.log" % (re.sub(r"\W+", "_", "%s %s" % (name, by)), self._looked_at)
        limit = min(_SECONDS_OF_HANG if crash.hung else _SECONDS, session.test_seconds, self._seconds())
        print("again    %s %s, %s: at most %.0f s" % (name, crash.name, by, max(0, limit)), flush=True)
        try:
            ran = session.run(command, log, limit, MEGATRON_REQUIRE_GPU="1", **environment)
            text = pick(ran) if ran.code != 0 or by in ("memcheck", "cuda-gdb") else "passed this time"
        except (Failure, OutOfTime) as reason:
            text = str(reason)
        print("         " + shorten(text, 300), flush=True)
        session.record("explanation", crash.name, of=[what, name], by=by, text=shorten(text, 300), log=log)


def _last_line(ran):
    how = "killed by signal %d" % -ran.code if ran.code < 0 else "exit code %d" % ran.code
    return "%s: %s" % (how, ran.last_words())


def _kernels(ran):
    """Returns the table of the kernels that were running."""
    _, found, table = ran.text().partition("Kernel Parent")
    return found + table if found else _last_line(ran)


def _barriers(ran):
    """Returns what waits said that gave up."""
    lines = [line for line in ran.text().splitlines() if "barrier" in line]
    return "; ".join(dict.fromkeys(lines)) or _last_line(ran)


def _first_error(ran):
    """Returns compute-sanitizer's first finding, with its place in the source."""
    lines = [line.strip("= ") for line in ran.text().splitlines() if line.startswith("=========")]
    for i, line in enumerate(lines):
        if re.search(r"Invalid|rror|out of bounds", line) and "ERROR SUMMARY: 0" not in line:
            return " ".join(lines[i:i + 4])
    return "it finds nothing" if "ERROR SUMMARY: 0 errors" in ran.text() else "it says nothing; " + _last_line(ran)
