"""The file that says which kernels of attention are the fastest here (system.attention_plan_file)."""

import os
import re

FILE = "attention_plans.textproto"
BACKENDS = {"Hopper": "flash", "Cudnn": "fused", "Own": "local"}
_PASSES = ("Attention", "AttentionBackward")
# The tests without which a backend's kernels are not trusted: a program, and what the tests' names have in common.
_TESTS = {"flash": (("tiles_device_test", ""), ("attention_test", "")), "fused": (("kernels_test", "Cudnn"),),
          "local": (("kernels_test", "Attention"),)}


def why_not(rows, backend):
    """Why a backend's kernels are not trusted; nothing where all their tests have passed. `rows`: of the check."""
    for program, word in _TESTS[backend]:
        row = next((row for row in rows if row["what"] == "test" and row["name"] == program), {})
        # A failed program names all its tests that did not pass, unless it could not even list them.
        failed = row.get("failures", {}) if row.get("verdict") == "failed" else {}
        if row.get("verdict") != "passed" and not failed or any(word in name for name in row.get("not_run", ())):
            return program + (" failed" if row.get("verdict") == "failed" else " has not run")
        if any(word in name for name in failed):
            return program + " failed"
    return ""


def _measured(session):
    """Microseconds of each pass: {width of heads: {backend: {pass: time}}}."""
    times = {}
    for row in session.rows:
        found = re.match(r"BM_(\w+)<AttentionKernel::k(\w+), (\d+)>", row["name"])
        if row["what"] != "kernel" or not found or found.group(2) not in BACKENDS:
            continue
        name, kernel, width = found.groups()
        times.setdefault(int(width), {}).setdefault(BACKENDS[kernel], {})[name] = row["microseconds"]
    return times


def write(session, gpu):
    """Writes the file from what was measured, if that suffices. Returns lines that say so, or nothing.

    A file of an earlier session goes: its kernels may have failed since.
    """
    heads, measured = "", _measured(session)
    reasons = {backend: why_not(session.rows, backend) for backend in _TESTS
               if any(backend in backends for backends in measured.values())}
    for width, backends in sorted(measured.items()):
        sums = sorted((sum(passes.values()), backend) for backend, passes in backends.items()
                      if set(passes) == set(_PASSES) and not reasons[backend])
        if sums:
            heads += "  heads {\n    kv_channels: %d\n%s  }\n" % (width, "".join(
                "    kernel { backend: %s microseconds: %.1f }\n" % (backend, time) for time, backend in sums))
    path = session.result_path(FILE)
    lines = "".join("%s lacks %s: %s.\n" % (FILE, backend, why) for backend, why in reasons.items() if why)
    if not heads:
        if os.path.exists(path):
            os.remove(path)
        return lines
    with open(path, "w") as file:
        file.write("# Attention's kernels, the fastest first: times of a forward and a backward pass "
                   "(tools/gpu_check).\nplace {\n  gpu: \"%s\"\n%s}\n" % (gpu, heads))
    return lines + "--set=system.attention_plan_file=%s has attention's kernels by their times.\n" % path
