"""Processes of other programs: each in a group of its own, none of which outlives the GPU check."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

_GUARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")
# A process that the driver holds does not end when it is killed. Nobody waits longer for it.
_SECONDS_TO_DIE = 20
_SECONDS_OF_DUMP = 15
# Bytes of a log: a program that prints without end fills no disk, and one that is nearly full gets less.
_LARGEST_LOG, _LARGEST_LOG_OF_FULL_DISK = 8 << 20, 64 << 10
_FREE = 64 << 20
_LEFT_OUT = b"\n[gpu_check: what stood here is left out, for the size of this log]\n"


class Hung(Exception):
    """A process was killed; the text says why."""

    dump = None  # the file that says what the GPU did then, if there is one


def _make_hole(path, begin, end):
    """Frees the disk's blocks there, whoever writes to the file meanwhile. False where the file system cannot."""
    keep_size, punch_hole = 1, 2
    with open(path, "r+b", buffering=0) as file:
        return ctypes.CDLL(None).fallocate(file.fileno(), keep_size | punch_hole, ctypes.c_int64(begin),
                                           ctypes.c_int64(end - begin)) == 0


def cut(path, begin=0, grows=False):
    """Leaves out the middle of what a log has from `begin` on, if that is too long.

    `grows`: a program appends to it, and only room on the disk is won.
    """
    size = os.path.getsize(path) - begin
    if size <= _LARGEST_LOG_OF_FULL_DISK:
        return
    full = shutil.disk_usage(path).free < _FREE
    most = _LARGEST_LOG_OF_FULL_DISK if full else _LARGEST_LOG
    if size <= most + len(_LEFT_OUT):
        return
    if grows and _make_hole(path, begin + most // 2, begin + size - most // 2):
        return
    with open(os.open(path, os.O_RDWR | os.O_APPEND), "r+b", buffering=0) as log:
        log.seek(-(most // 2), os.SEEK_END)
        tail = log.read(most // 2)
        log.truncate(begin + most // 2)
        log.write(_LEFT_OUT + tail)


def _place(environment, name, process):
    return environment.get(name, "").replace("%p", str(process.pid))


def _dump(process, environment):
    """Has the driver write what the GPU does, which takes it a while. Returns the file; none where there is none."""
    path = _place(environment, "CUDA_COREDUMP_FILE", process)
    try:
        # Without a reader, which is the driver, this fails: the program has not begun to use the GPU.
        with open(os.open(_place(environment, "CUDA_COREDUMP_PIPE", process), os.O_WRONLY | os.O_NONBLOCK), "wb",
                  buffering=0) as pipe:
            pipe.write(b"dump\n")
    except OSError:
        return None
    end, size = time.monotonic() + _SECONDS_OF_DUMP, -1
    while time.monotonic() < end and process.poll() is None:
        before, size = size, os.path.getsize(path) if os.path.exists(path) else -1
        if before == size > 0:  # it has not grown for a second
            break
        time.sleep(1)
    return path if os.path.exists(path) else None


class Processes:
    """Threads: any."""

    def __init__(self):
        self._lock = threading.Lock()
        self._groups, self._over = set(), False
        self._guard = subprocess.Popen([sys.executable, "-IS", _GUARD], stdin=subprocess.PIPE, text=True,
                                       start_new_session=True)

    def run(self, command, output, environment, seconds, quiet_seconds=None, dumps=False):
        """Returns the exit code, minus the signal that ended it. Raises OSError if it does not start.

        Raises Hung if it takes longer, or writes nothing to `output`, a file that is appended to, for `quiet_seconds`.
        `dumps`: it is then asked for a dump first, if its environment has CUDA_COREDUMP_PIPE. Of what it writes, the
        middle is left out if that is too long.
        """
        begin = os.fstat(output.fileno()).st_size
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
                                   start_new_session=True)
        self._tell("+", process.pid)
        try:
            if self._over:  # kill_all did not know of this process
                self._kill(process.pid)
            return self._wait(process, output, begin, seconds, quiet_seconds)
        except Hung as hung:
            if dumps:
                hung.dump = _dump(process, environment)
            raise
        finally:
            self._kill(process.pid)  # also what a program that ended has left behind
            if process.poll() is None:
                try:
                    process.wait(_SECONDS_TO_DIE)
                except subprocess.TimeoutExpired:
                    raise Hung("killed and not dead after %d s: the driver may hold it" % _SECONDS_TO_DIE)
            self._tell("-", process.pid)
            with contextlib.suppress(OSError):
                cut(output.name, begin)
            pipe = _place(environment, "CUDA_COREDUMP_PIPE", process)
            if os.path.exists(pipe):
                os.remove(pipe)

    def _wait(self, process, output, begin, seconds, quiet_seconds):
        end = time.monotonic() + seconds
        size, changed, pause = -1, time.monotonic(), 0.01
        while True:
            try:
                return process.wait(pause)
            except subprocess.TimeoutExpired:
                pass
            pause = min(0.2, 1.5 * pause)
            now = time.monotonic()
            if now >= end:
                raise Hung("not done after %.0f s" % seconds)
            with contextlib.suppress(OSError):
                cut(output.name, begin, grows=True)
            written = os.fstat(output.fileno()).st_size
            if written != size:
                size, changed = written, now
            elif quiet_seconds is not None and now - changed >= quiet_seconds:
                raise Hung("said nothing for %.0f s" % quiet_seconds)

    def kill_all(self):
        """Kills also what begins later. A signal's handler may call this: it takes no lock."""
        self._over = True
        for group in list(self._groups):
            self._kill(group)

    def _tell(self, sign, group):
        with self._lock:
            (self._groups.add if sign == "+" else self._groups.discard)(group)
            try:
                self._guard.stdin.write("%s%d\n" % (sign, group))
                self._guard.stdin.flush()
            except BrokenPipeError:  # somebody killed the guard
                pass

    @staticmethod
    def _kill(group):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self):
        self._guard.stdin.close()
        self._guard.wait(_SECONDS_TO_DIE)
