"""The faults that a soak makes. Each is a function of the run and of random numbers: it returns what it
has done, for the log, or None or something empty if there was nothing to strike."""

import itertools
import os
import resource
import signal
import socket
import struct
import subprocess
import time

from runs import TRACKER, checkpoints_of, losses_of, send

HEARTBEAT = 2  # seconds after which a silent rank is lost, in all runs
LONG_STOP = 4.0  # that, and the time in which the others find it
REPLACEMENT_TIME = 5.0  # in which a lost rank has been started again, if it will be


def _a_rank(run, random, number=1):
    ranks = sorted(run.ranks().items())
    return random.sample(ranks, number) if len(ranks) >= number else []


def kill_rank(run, random):
    for rank, pid in _a_rank(run, random):
        return send(pid, signal.SIGKILL) and f"rank {rank}"


def kill_two_ranks(run, random):
    struck = [rank for rank, pid in _a_rank(run, random, 2) if send(pid, signal.SIGKILL)]
    return struck and f"ranks {struck}"


def kill_rank_twice(run, random):
    """A rank, and the process in its place while that joins the others."""
    for rank, pid in _a_rank(run, random):
        if not send(pid, signal.SIGKILL):
            return None
        until = time.monotonic() + REPLACEMENT_TIME
        while time.monotonic() < until and run.code() is None:
            again = run.ranks().get(rank, pid)
            if again != pid:
                seconds = random.uniform(0, 1)
                time.sleep(seconds)
                send(again, signal.SIGKILL)
                return f"rank {rank}, again after {seconds:.1f} s"
            time.sleep(0.02)
        return f"rank {rank}, which nobody has replaced"


def kill_parent(run, random):
    """The process that starts the ranks and serves their store."""
    return send(run.process.pid, signal.SIGKILL) and "parent"


def kill_all(run, random):
    """As a power cut does."""
    pids = run.processes()
    random.shuffle(pids)
    return [pid for pid in pids if send(pid, signal.SIGKILL)] and f"{len(pids)} processes"


def _stop(run, pids, seconds):
    begin = time.monotonic()
    stopped = [pid for pid in pids if send(pid, signal.SIGSTOP)]
    time.sleep(seconds)
    for pid in stopped:
        send(pid, signal.SIGCONT)
    _note_length(run, begin)
    return bool(stopped)


def _note_length(run, begin):
    """On a machine that has too much to do, this program may come late, too."""
    if time.monotonic() - begin > 0.6 * HEARTBEAT:
        run.had_long_fault = True


def stop_rank_shortly(run, random):
    for rank, pid in _a_rank(run, random):
        seconds = random.uniform(0.1, 1.0)
        return _stop(run, [pid], seconds) and f"rank {rank} for {seconds:.1f} s"


def stop_rank_long(run, random):
    for rank, pid in _a_rank(run, random):
        return _stop(run, [pid], LONG_STOP) and f"rank {rank} for {LONG_STOP} s"


def stop_parent(run, random):
    seconds = random.uniform(0.1, 2.0)
    return _stop(run, [run.process.pid], seconds) and f"parent for {seconds:.1f} s"


def stop_all(run, random):
    """As a scheduler or a laptop's lid does."""
    harm = run.had_long_fault
    stopped = _stop(run, run.processes(), LONG_STOP)
    run.had_long_fault = harm  # nobody misses another one
    return stopped and f"all for {LONG_STOP} s"


def slow_rank(run, random):
    """Stops a rank for half of the time."""
    for rank, pid in _a_rank(run, random):
        for _ in range(random.randint(5, 20)):
            if not _stop(run, [pid], 0.05):
                return None
            time.sleep(0.05)
        return f"rank {rank}"


def crash_rank(run, random):
    """Ends a rank as a mistake in the program would."""
    number = random.choice([signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE])
    for rank, pid in _a_rank(run, random):
        return send(pid, number) and f"rank {rank} by {number.name}"


def no_memory(run, random):
    """A rank gets no more memory from the system for a while."""
    for rank, pid in _a_rank(run, random):
        seconds = random.uniform(0.1, 1.0)
        return _limit([pid], resource.RLIMIT_AS, lambda pid: 1, seconds) and f"rank {rank} for {seconds:.1f} s"


def jump_clock(run, random):
    """The clock of a machine is set, by up to a day."""
    if not run.clocks:
        return None
    path = random.choice(run.clocks)
    seconds = random.choice([1, -1]) * random.choice([0.5, 5, 60, 3600, 86400]) * random.random()
    with open(path, "r+b") as file:
        before = struct.unpack("q", file.read(8))[0]
        file.seek(0)
        file.write(struct.pack("q", before + int(1e9 * seconds)))
    return f"{os.path.basename(path)} by {seconds:.1f} s"


def term_parent(run, random):
    return send(run.process.pid, signal.SIGTERM) and "parent"


def term_parent_twice(run, random):
    if not send(run.process.pid, signal.SIGTERM):
        return None
    time.sleep(random.uniform(1, 1.2))  # what comes sooner belongs to the same request
    return send(run.process.pid, signal.SIGTERM) and "parent"


def hangup_parent(run, random):
    """As a terminal that is closed does, and the shell in it."""
    if not send(run.process.pid, signal.SIGHUP):
        return None
    time.sleep(random.uniform(0, 0.2))
    send(run.process.pid, signal.SIGHUP)
    return "parent"


def term_rank(run, random):
    for rank, pid in _a_rank(run, random):
        return send(pid, signal.SIGTERM) and f"rank {rank}"


def _limit(pids, what, limit_of, seconds):
    """Gives each process a limit for so long. Returns whether any was there."""
    limited = []
    for pid in pids:
        try:
            before = resource.prlimit(pid, what)
            resource.prlimit(pid, what, (limit_of(pid), before[1]))
            limited.append((pid, before))
        except OSError:
            pass  # it has ended
    time.sleep(seconds)
    for pid, before in limited:
        try:
            resource.prlimit(pid, what, before)
        except OSError:
            pass
    return bool(limited)


def _lowest_free_descriptor(pid):
    """A limit that takes no descriptor away: poll() fails with more than the limit."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return next(number for number in itertools.count() if number not in taken)


def _no_more_descriptors(run, seconds):
    limited = _limit(run.processes(), resource.RLIMIT_NOFILE, _lowest_free_descriptor, seconds)
    return limited and f"for {seconds:.1f} s"


def few_descriptors(run, random):
    """No process can open another file or connection for a while."""
    return _no_more_descriptors(run, random.uniform(0.1, 1.0))


def few_descriptors_long(run, random):
    """The same for longer than ranks that meet wait for one."""
    return _no_more_descriptors(run, 5.0)


def full_disk(run, random):
    """Fills the file system of the checkpoints, a small one in memory, for a while."""
    if not os.path.ismount(run.save):
        return None
    filler = os.path.join(run.save, "filler")
    seconds = random.uniform(0.2, 1.0)
    until = time.monotonic() + seconds
    with open(filler, "wb", buffering=0) as file:
        while time.monotonic() < until:
            try:
                file.write(bytes(1 << 16))
            except OSError:
                time.sleep(0.01)  # it is full; what the run removes is filled again
    os.remove(filler)
    return f"for {seconds:.1f} s"


def stranger(run, random):
    """Somebody connects to the port where ranks meet, and sends garbage, or nothing."""
    sent = 0
    held = []
    for port in run.store_ports():
        for _ in range(random.randint(1, 20)):
            try:
                link = socket.create_connection(("127.0.0.1", port), timeout=1)
                link.send(random.randbytes(random.randint(0, 4096)))
                held.append(link)
                sent += 1
            except OSError:
                pass
    time.sleep(random.uniform(0, 0.5))
    for link in held:
        link.close()
    return sent and f"{sent} connections"


def second_run(run, random):
    """The same command once more, while the run is there: it must be refused."""
    if not run.has_begun() or run.hosts is not None:  # their launchers have the same port
        return None
    other = subprocess.run(run.command(), stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
    # A run that has made all its steps may let the directory go before its first process ends.
    is_there = run.code() is None and run.made_steps() < run.steps
    if is_there and other.returncode != 20:
        raise AssertionError(f"a second run in the same directory ended with {other.returncode}")
    return f"code {other.returncode}"


def cut_link_shortly(run, random):
    """The link between hosts."""
    if run.hosts is None:
        return None
    seconds = random.uniform(0.1, HEARTBEAT / 4)
    begin = time.monotonic()
    run.hosts.set_link(False)
    time.sleep(seconds)
    run.hosts.set_link(True)
    _note_length(run, begin)
    return f"for {seconds:.1f} s"


def cut_link_long(run, random):
    if run.hosts is None:
        return None
    run.hosts.set_link(False)
    time.sleep(LONG_STOP)
    run.hosts.set_link(True)
    return f"for {LONG_STOP} s"


def bad_link(run, random):
    """Packets are late, and some are lost."""
    shape = random.choice([["delay", "5ms", "2ms"], ["delay", "1ms", "loss", "1%"],
                           ["rate", "20mbit"]])
    if run.hosts is None or not run.hosts.slow_link(*shape):
        return None
    time.sleep(random.uniform(0.5, 2.0))
    run.hosts.slow_link()
    return " ".join(shape)


def kill_host(run, random):
    """All that runs on a host."""
    if run.hosts is None:
        return None
    which = random.randrange(2)
    pids = run.hosts.pids(which)
    return [pid for pid in pids if send(pid, signal.SIGKILL)] and f"host {which}"


# Those that strike while the run is down.


def _flip(path, random):
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        at = random.randrange(size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << random.randrange(8)]))
    return at


def _a_shard(directory, random):
    newest = checkpoints_of(directory)[-1:]
    shards = [os.path.join(folder, name) for folder in newest for name in sorted(os.listdir(folder))
              if name.startswith("shard_")]
    return random.choice(shards) if shards else None


def flip_checkpoint(run, random):
    shard = _a_shard(run.save, random)
    return shard and f"byte {_flip(shard, random)} of {shard[len(run.save) + 1:]}"


def truncate_checkpoint(run, random):
    shard = _a_shard(run.save, random)
    if shard is None:
        return None
    size = random.randrange(os.path.getsize(shard))
    os.truncate(shard, size)
    return f"{shard[len(run.save) + 1:]} to {size} bytes"


def flip_local_checkpoint(run, random):
    for folder, _, names in os.walk(os.path.join(run.directory, "local")):
        for name in sorted(names):
            if os.path.getsize(os.path.join(folder, name)) > 0:
                return f"byte {_flip(os.path.join(folder, name), random)} of {name}"
    return None


def delete_local_checkpoints(run, random):
    local = os.path.join(run.directory, "local")
    if not os.path.isdir(local):
        return None
    subprocess.run(["rm", "-rf", local], check=True)
    return "all"


def tear_metrics(run, random):
    """The last line of the metrics is half there, as after a full disk."""
    path = os.path.join(run.save, "metrics.jsonl")
    size = os.path.getsize(path) if os.path.exists(path) else 0
    # What a checkpoint follows on is on disk, and comes to no harm.
    last, newest = max(losses_of(run.save)[0], default=0), checkpoints_of(run.save)[-1:]
    if size < 2 or (newest and last <= int(newest[0][-7:])):
        return None
    os.truncate(path, size - random.randint(1, min(80, size - 1)))
    return f"to {os.path.getsize(path)} bytes"


def lose_tracker(run, random):
    """The file that names the newest checkpoint is garbage, or is missing."""
    path = os.path.join(run.save, TRACKER)
    if not os.path.exists(path):
        return None
    if random.random() < 0.5:
        os.remove(path)
        return "removed"
    with open(path, "wb") as file:
        file.write(random.randbytes(random.randint(0, 20)))
    return "garbage"


def change_layout(run, random):
    """Another number of ranks, or another division of the model, from this start on."""
    before = dict(run.layout)
    while run.layout == before:
        run.layout = random.choice(LAYOUTS)
    return f"{before} to {run.layout}"


LAYOUTS = [{"dp": 4}, {"dp": 2}, {"dp": 1}, {"dp": 3}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2},
           {"dp": 1, "tp": 2}, {"dp": 1, "pp": 2}, {"dp": 8}, {"dp": 4, "zero": 1},
           {"dp": 3, "zero": 3}, {"dp": 2, "tp": 2, "zero": 2}]
# Nothing may come of these: no rank is lost, and no start is needed.
HARMLESS = [stop_rank_shortly, stop_parent, stop_all, slow_rank, few_descriptors, full_disk, stranger,
            second_run, jump_clock, cut_link_shortly, bad_link]
# One of the ranks, or of the processes, is lost, or asked to end.
HARMFUL = [kill_rank, kill_two_ranks, kill_rank_twice, kill_parent, kill_all, crash_rank, no_memory,
           stop_rank_long, few_descriptors_long, term_parent, term_parent_twice, hangup_parent, term_rank,
           cut_link_long, kill_host]
# These are of runs on several hosts.
OF_HOSTS = [cut_link_shortly, cut_link_long, bad_link, kill_host]
# These strike between an end and the next start.
DOWN = [flip_checkpoint, truncate_checkpoint, flip_local_checkpoint, delete_local_checkpoints,
        tear_metrics, lose_tracker, change_layout]
LONG = [stop_rank_long, stop_all, few_descriptors_long, second_run, cut_link_long]  # these are chosen less often
ALL = {fault.__name__: fault for fault in HARMLESS + HARMFUL + DOWN}
# The remedy of these is to move a damaged checkpoint away, which the run asks for with code 22.
DAMAGE = {"flip_checkpoint", "truncate_checkpoint"}
