"""The file that says which kernels of attention are the fastest here (system.attention_plan_file)."""

import re

FILE = "attention_plans.textproto"
_BACKENDS = {"Hopper": "flash", "Cudnn": "fused", "Own": "local"}
_PASSES = ("Attention", "AttentionBackward")
# The tests without which a backend's kernels are not trusted: program, and what its failure speaks of.
_TESTS = {"flash": (("tiles_device_test", ""), ("attention_test", "")), "fused": (("kernels_test", "Cudnn"),)}


def _is_wrong(session, backend):
    return any(row["what"] == "test" and row["name"] == program and row.get("verdict") == "failed" and
               word in row.get("why", "")
               for program, word in _TESTS.get(backend, ()) for row in session.rows)


def _measured(session):
    """Microseconds of each pass: {width of heads: {backend: {pass: time}}}."""
    times = {}
    for row in session.rows:
        found = re.match(r"BM_(\w+)<AttentionKernel::k(\w+), (\d+)>", row["name"])
        if row["what"] != "kernel" or not found or found.group(2) not in _BACKENDS:
            continue
        name, kernel, width = found.groups()
        times.setdefault(int(width), {}).setdefault(_BACKENDS[kernel], {})[name] = row["microseconds"]
    return times


def write(session, gpu):
    """Writes the file from what was measured, if that suffices. Returns a line that says so, or nothing."""
    heads = ""
    for width, backends in sorted(_measured(session).items()):
        sums = sorted((sum(passes.values()), backend) for backend, passes in backends.items()
                      if set(passes) == set(_PASSES) and not _is_wrong(session, backend))
        if sums:
            heads += "  heads {\n    kv_channels: %d\n%s  }\n" % (width, "".join(
                "    kernel { backend: %s microseconds: %.1f }\n" % (backend, time) for time, backend in sums))
    if not heads:
        return ""
    path = session.result_path(FILE)
    with open(path, "w") as file:
        file.write("# Attention's kernels, the fastest first: times of a forward and a backward pass "
                   "(tools/gpu_check).\nplace {\n  gpu: \"%s\"\n%s}\n" % (gpu, heads))
    return "--set=system.attention_plan_file=%s has attention's kernels by their times.\n" % path
