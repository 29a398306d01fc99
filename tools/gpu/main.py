"""What tools/gpu_check runs: reads its command line, and says first and last what was run on what."""

import datetime
import math
import os
import shlex
import subprocess
import sys
import tempfile

import bundle
import correctness
import device
import learning
import speed
from session import Session

_WRONG_ARGUMENTS = 20
_USAGE = 64  # the same, and the usage is to be shown
_PARTS = ("check", "time", "learn")
# The parts that can be run alone.
_KINDS = {"check": ("test", "training", "benchmark", *correctness.SANITIZER_TOOLS),
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


def _seconds():
    """How long a part may take; none where $GPU_CHECK_SECONDS is no time."""
    try:
        seconds = float(os.environ.get("GPU_CHECK_SECONDS", 460))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _make_folder(path):
    """Whether `path` is now a folder that can be written to; says why where it is not."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError as error:
        print("gpu_check: cannot write to the folder %s: %s" % (path, error.strerror), file=sys.stderr)
        return False


def _use_cudnn_of_python():
    """Attention by cuDNN takes the library of Python's packages, where PyTorch has brought one."""
    try:
        code = "import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0])"
        found = subprocess.run([os.environ.get("PYTHON", "python3"), "-c", code], capture_output=True, text=True)
    except OSError:
        return
    folder = os.path.join(found.stdout.strip(), "lib")
    if found.returncode == 0 and os.path.exists(os.path.join(folder, "libcudnn.so.9")):
        paths = [folder] + [path for path in [os.environ.get("LD_LIBRARY_PATH")] if path]
        os.environ["LD_LIBRARY_PATH"] = ":".join(paths)


def _run_part(part, programs, out, steps):
    gpus = device.devices()
    session = Session(programs, out, part, _seconds(), steps)
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
        if part == "check":
            table = correctness.check(session, facts, watch)
        elif part == "time":
            table = speed.time_training(session, facts, watch, len(gpus))
        else:
            table = learning.learn(session)
    finally:
        watch.stop()
    text = "\n%s\n\n%s" % (heading, table)
    with open(session.path(part + ".md"), "w") as file:
        file.write(text.lstrip())
    print(text)
    return session.finish()


def _run(parts, programs, out, steps=()):
    if not device.devices():
        print("no GPU here: nvidia-smi is absent or names none; nothing was run", file=sys.stderr)
        return 1
    if not _make_folder(out):
        return 1
    if not bundle.unpack(programs):
        print("no programs in %s: make a bundle with `gpu_check build DIR`, then run DIR/gpu_check %s" %
              (programs, parts[0] if len(parts) == 1 else "run"), file=sys.stderr)
        return 1
    _use_cudnn_of_python()
    codes = [_run_part(part, programs, out, steps) for part in parts]
    return 1 if 1 in codes else max(codes)


def main(home, arguments):
    """`home` is the folder of gpu_check itself: of a bundle, or tools/ of the sources."""
    mistake = _mistake(arguments)
    if mistake:
        print("gpu_check: %s\n" % mistake, file=sys.stderr)
        return _USAGE
    if _seconds() is None:
        print("gpu_check: GPU_CHECK_SECONDS must be a number above 0, not '%s'" % os.environ["GPU_CHECK_SECONDS"],
              file=sys.stderr)
        return _WRONG_ARGUMENTS
    command, out = (arguments + ["", ""])[:2]
    steps = tuple(arguments[2:])
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY", os.path.dirname(home))
    if command == "build":
        if not _make_folder(out):
            return 1
        bundle.build(root, out)
        return 0
    if command:
        parts = _PARTS[:2] if command == "run" else (command,)
        return _run(parts, home, os.path.abspath(out or "."), steps)
    if not device.devices():  # fails early, before an hour of compiling
        print("no GPU here: nvidia-smi is absent or names none; nothing was built", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as programs:
        bundle.build(root, programs)
        return _run(_PARTS[:2], programs, os.path.join(root, "gpu_check_results"))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
