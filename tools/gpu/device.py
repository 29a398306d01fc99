"""What nvidia-smi tells: which GPU this is, and what it does while programs run."""

import os
import statistics
import subprocess
import threading
import time

_FACTS = ("name", "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "memory.total",
          "compute_mode")
_STATE = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "memory.used")


def _query(fields):
    """A row for each GPU; none where nvidia-smi is absent or has nothing to tell."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _number(text):
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def number_as_nvidia_smi():
    """Has CUDA number GPUs as nvidia-smi does, in all programs that are run: by itself the fastest is its first."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


def _visible(count):
    """Numbers of those of `count` GPUs that CUDA sees, in its order (CUDA_VISIBLE_DEVICES)."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None or "MIG-" in text:  # which GPU a part is of, nvidia-smi does not say in a row
        return list(range(count))
    names = [name.strip() for name in text.split(",")]
    ids = [] if all(name.isdigit() for name in names) else [row[0] for row in _query(("uuid",))]
    numbers = []
    for name in names:
        # CUDA takes the beginning of an identifier, too, and nothing behind what it does not know.
        found = [int(name)] if name.isdigit() else [i for i, id in enumerate(ids) if name and id.startswith(name)]
        if len(found) != 1 or found[0] >= count:
            break
        numbers += found
    return numbers


def devices():
    """The facts of each GPU that CUDA sees, by name; empty where there is none."""
    rows = _query(_FACTS)
    return [dict(zip(_FACTS, rows[i])) for i in _visible(len(rows)) if len(rows[i]) == len(_FACTS)]


def why_none():
    """What there is to say where devices() is empty."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=60)
    except FileNotFoundError:
        return "nvidia-smi is not here"
    except OSError as error:
        return "nvidia-smi does not start: " + error.strerror
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    said = " ".join(done.stdout.split())[:300]
    if done.returncode == 0 and said and "CUDA_VISIBLE_DEVICES" in os.environ:
        return "CUDA_VISIBLE_DEVICES=%s names none of %s" % (os.environ["CUDA_VISIBLE_DEVICES"], said)
    return "nvidia-smi says: " + said if said else "nvidia-smi names none"


def memory_mib(facts):
    """Returns a GPU's memory; None where nvidia-smi does not know it, as of one that shares the host's."""
    return _number(facts["memory.total"])


class Watch:
    """Asks for the state of the first GPU that CUDA sees twice a second, on a thread of its own."""

    def __init__(self):
        self._samples = []
        self._number = None  # the one that nvidia-smi gives that GPU
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._ask_once()
        self._thread.start()

    def _ask_once(self):
        now = time.monotonic()
        rows = _query(_STATE)
        if rows and self._number is None:
            self._number = next(iter(_visible(len(rows))), 0)
        for row in rows[self._number:][:1]:
            self._samples.append((now, [_number(field) for field in row]))

    def _ask(self):
        while not self._over.wait(0.5):
            self._ask_once()

    def stop(self):
        self._over.set()
        self._thread.join(5)  # it may be waiting for a driver that does not answer

    def idle_memory(self):
        """MiB that were taken before anything of ours ran."""
        return self._samples[0][1][4] if self._samples else None

    def during(self, begin, end):
        """Medians of the clocks and the power in the last half of that time, and the most memory taken."""
        samples = [state for when, state in list(self._samples) if begin <= when <= end]
        busy = [state for when, state in list(self._samples) if (begin + end) / 2 <= when <= end]

        def of(states, column, pick):
            numbers = [state[column] for state in states if state[column] is not None]
            return pick(numbers) if numbers else None

        figures = {"sm_mhz": of(busy, 0, statistics.median), "memory_mhz": of(busy, 1, statistics.median),
                   "watts": of(busy, 2, statistics.median), "celsius": of(busy, 3, max),
                   "memory_mib": of(samples, 4, max)}
        return {name: figure for name, figure in figures.items() if figure is not None}
