"""A second look at what crashed, hung or computed something wrong: the same again, where tools say more."""

import os
import re
import shutil

import bundle
from google_tests import core_dumps
from session import Failure, OutOfTime, shorten

_SECONDS = 60
_SECONDS_OF_HANG = 20  # to see whether it hangs again
_MOST = 6  # failures of a part


class Explainer:
    """Runs the program of a failure again, and keeps what it says, as rows "explanation"."""

    def __init__(self, session):
        self._session, self._looked_at = session, 0

    def __call__(self, what, name, crash):
        if self._looked_at == _MOST:
            return
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
        elif not crash.wrong:  # what is wrong stays wrong
            self._run("CUDA_LAUNCH_BLOCKING=1", what, name, crash, crash.command, _last_line,
                      CUDA_LAUNCH_BLOCKING="1", CUDA_COREDUMP_SHOW_PROGRESS="1", **core_dumps(self._session, program))
        sanitizer = bundle.sanitizer(self._session.programs)
        if sanitizer and not crash.hung:  # it makes kernels a hundred times slower
            self._run("memcheck", what, name, crash, [sanitizer, "--tool=memcheck", *crash.command], _first_error)

    def _run(self, by, what, name, crash, command, pick, **environment):
        session = self._session
        log = "again_%s_%d.log" % (re.sub(r"\W+", "_", "%s %s" % (name, by)), self._looked_at)
        try:
            limit = min(_SECONDS_OF_HANG if crash.hung else _SECONDS, session.test_seconds)
            ran = session.run(command, log, limit, MEGATRON_REQUIRE_GPU="1", **environment)
            text = pick(ran) if ran.code != 0 or by in ("memcheck", "cuda-gdb") else "passed this time"
        except (Failure, OutOfTime) as reason:
            text = str(reason)
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
    return "it finds nothing"
