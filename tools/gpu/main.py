"""What tools/gpu_check runs: reads its command line, and says first and last what was run on what."""

import datetime
import fcntl
import itertools
import math
import os
import shlex
import signal
import sys
import tempfile

signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules are read, without a traceback

import bundle
import calibration
import console
import correctness
import device
import learning
import libraries
import speed
from explain import Explainer
from session import Session

_WRONG_ARGUMENTS = 20
_LOCK = ".gpu_check.lock"
_KILLED = 128  # and the number of the signal
_PARTS = ("check", "time", "learn")
# Of --seconds and --test-seconds: the time of a part and of a test.
_LIMITS = {"--seconds": 460, "--test-seconds": 60}
# The parts that can be run alone.
_KINDS = {"check": ("smoke", "test", "training", "benchmark", "ncu", *correctness.SANITIZER_TOOLS),
          "time": ("training", "option", "profile", "pytorch", "links"), "learn": ("training", "picture")}


def _mistake(arguments):
    """What is wrong with the command line, naming the word; nothing where it is right."""
    if not arguments:
        return ""
    command, folder, words = arguments[0], "".join(arguments[1:2]), arguments[2:]
    if command not in ("build", "run", *_PARTS):
        return "no such command: '%s'" % command
    if folder.startswith("-"):
        return "no such option: '%s'" % folder
    if command == "build":
        if words:
            return "build takes DIR alone, not '%s'" % words[0]
        return "" if folder else "build lacks DIR"
    if folder in {"rest"}.union(*_KINDS.values()):
        return "OUT must stand before '%s', which says what to do (./%s is a folder of this name)" % (folder, folder)
    wrong = [word for word in words if word not in ("rest", *_KINDS.get(command, ()))]
    return "%s has no kind of step '%s'" % (command, wrong[0]) if wrong else ""


def _take_limits(arguments):
    """Returns the numbers of `--seconds=N` and its like, the other words of the command line, and what is wrong."""
    limits, others = dict(_LIMITS), []
    for word in arguments:
        name, equals, text = word.partition("=")
        if name not in limits:
            others.append(word)
            continue
        try:
            limits[name] = float(text)
        except ValueError:
            limits[name] = math.nan
        if not (math.isfinite(limits[name]) and limits[name] > 0):
            return limits, others, "%s must be a number above 0, not '%s'" % (name, text)
    return limits, others, ""


def _print_usage(home, file):
    """The comment that gpu_check begins with."""
    with open(os.path.join(home, "gpu_check")) as script:
        lines = itertools.takewhile(lambda line: line.startswith("#"), itertools.islice(script, 1, None))
        print("".join(line[2:] or "\n" for line in lines), end="", file=file)


def _make_folder(path):
    """Whether `path` is now a folder that can be written to; says why where it is not."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError as error:
        print("gpu_check: cannot write to the folder %s: %s" % (path, error.strerror), file=sys.stderr)
        return False


def _build(root, directory):
    """Whether all programs are now there; says why where they are not."""
    try:
        bundle.build(root, directory)
        return True
    except bundle.Unusable as reason:
        print("gpu_check: %s" % reason, file=sys.stderr)
        return False


def _lock(out):
    """Returns a file that keeps other gpu_checks out of the folder as long as it is open; none where one is in it."""
    file = open(os.path.join(out, _LOCK), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:  # a file system without locks
        pass
    return file


def _stop_on_signals(session):
    """A first signal ends the part, which tells what there is until then; a second one ends the program.

    Returns what to give to signal.signal() when the part is over.
    """
    def stop(number, frame):
        for ending in signals:
            signal.signal(ending, signal.SIG_DFL)
        session.stopped_by = number
        session.stop("stopped by " + signal.Signals(number).name)

    # `nohup` has SIGHUP ignored, and that it stays.
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return [(ending, signal.signal(ending, stop)) for ending in signals]


def _do_steps(part, session, gpus, watch):
    """Returns the table of what they measured."""
    if part == "check":
        return correctness.check(session, gpus[0], watch)
    if part == "time":
        return speed.time_training(session, gpus[0], watch, len(gpus))
    return learning.learn(session)


def _run_part(part, programs, out, steps, limits):
    gpus = device.devices()
    if not gpus:  # it was there when the first part began
        print("the GPU is gone: %s; %s was not run" % (device.why_none(), part), file=sys.stderr)
        return 1
    try:
        session = Session(programs, out, part, limits["--seconds"], steps, limits["--test-seconds"])
    except OSError as error:
        print("gpu_check: cannot write to %s: %s" % (error.filename, error.strerror), file=sys.stderr)
        return 1
    before = _stop_on_signals(session)
    session.environment["LD_LIBRARY_PATH"] = libraries.library_path()
    if part == "check":
        session.explain = Explainer(session)
    facts = gpus[0]
    command = shlex.join(["gpu_check", part, out, *steps])
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    heading = "%s, driver %s, at most %s MHz (memory %s MHz) and %s W; %s; %s" % (
        facts["name"], facts["driver_version"], facts["clocks.max.sm"], facts["clocks.max.mem"], facts["power.limit"],
        date, command)
    print(heading, flush=True)
    session.record("device", facts["name"], gpus=len(gpus), date=date, command=command,
                   **{name: fact for name, fact in facts.items() if name != "name"})
    watch = device.Watch()
    try:
        table = session.attempt("part", part, lambda: _do_steps(part, session, gpus, watch))
    finally:
        watch.stop()
    figures = session.attempt("result", calibration.HARDWARE, lambda: calibration.write(
        out, facts["name"], device.memory_mib(facts)))
    code = session.finish("%s\n\n%s" % (heading, table + ("\n" + figures if figures else "")))
    for handler in before:
        signal.signal(*handler)
    return _KILLED + session.stopped_by if session.stopped_by else code


def _run(parts, programs, out, limits, steps=()):
    if not device.devices():
        print("no GPU here: %s; nothing was run" % device.why_none(), file=sys.stderr)
        return 1
    if not _make_folder(out):
        return 1
    try:
        unpacked = bundle.unpack(programs)
    except bundle.Unusable as reason:
        print("gpu_check: %s" % reason, file=sys.stderr)
        return 1
    if not unpacked:
        print("no programs in %s: make a bundle with `gpu_check build DIR`, then run DIR/gpu_check %s" %
              (programs, parts[0] if len(parts) == 1 else "run"), file=sys.stderr)
        return 1
    try:
        lock = _lock(out)
    except OSError as error:
        print("gpu_check: cannot write to %s: %s" % (error.filename, error.strerror), file=sys.stderr)
        return 1
    if lock is None:
        print("gpu_check: another one writes to %s: wait for its end, or name another folder" % out, file=sys.stderr)
        return 1
    codes = []
    with lock:
        for part in parts:
            codes.append(_run_part(part, programs, out, steps, limits))
            if codes[-1] > _KILLED:
                return codes[-1]
    return 1 if 1 in codes else max(codes)


def main(home, arguments):
    """`home` is the folder of gpu_check itself: of a bundle, or tools/ of the sources."""
    if "-h" in arguments or "--help" in arguments:
        _print_usage(home, sys.stdout)
        return 0
    limits, arguments, wrong_limit = _take_limits(arguments)
    mistake = wrong_limit or _mistake(arguments)
    if mistake:
        print("gpu_check: %s" % mistake, file=sys.stderr)
        if not wrong_limit:
            print(file=sys.stderr)
            _print_usage(home, sys.stderr)
        return _WRONG_ARGUMENTS
    device.number_as_nvidia_smi()
    command, out = (arguments + ["", ""])[:2]
    steps = tuple(arguments[2:])
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY", os.path.dirname(home))
    if command == "build":
        if not _make_folder(out):
            return 1
        return 0 if _build(root, out) else 1
    if command:
        parts = _PARTS[:2] if command == "run" else (command,)
        return _run(parts, home, os.path.abspath(out or "."), limits, steps)
    if not device.devices():  # fails early, before an hour of compiling
        print("no GPU here: %s; nothing was built" % device.why_none(), file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as programs:
        if not _build(root, programs):
            return 1
        return _run(_PARTS[:2], programs, os.path.join(root, "gpu_check_results"), limits)


if __name__ == "__main__":
    console.use()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:  # before there was something to tell
        sys.exit(_KILLED + signal.SIGINT)
