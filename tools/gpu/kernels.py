"""The kernels' benchmarks in groups, the most wanted first, and what a profiler says of those that decide."""

import json
import os
import re
import shutil

import tables
from session import Failure, NotHere, OutOfTime, shorten

PROGRAM = "kernels_benchmark"
_PRODUCTS = "BM_(Linear|Blas|Float8Linear|GroupedLinear)"
# Name, Google Benchmark's filter (behind a minus sign: what is left out), and about how many seconds it takes.
GROUPS = (("attention", "BM_Attention", 45), ("products", _PRODUCTS, 60),
          ("memory", "-BM_Attention|BM_GemmPlan|" + _PRODUCTS, 60), ("gemm_plans", "BM_GemmPlan", 90))
_MOST_BROKEN = 3  # rows of a group that crash or hang before the rest is given up
_QUIET = 60  # seconds without a row
_MIN_TIME = "--benchmark_min_time=0.1"


def _whole_rows(path):
    """Returns the rows of Google Benchmark's report that are whole, also if its writer was killed."""
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    _, found, text = text.partition('"benchmarks": [')
    rows, decoder = [], json.JSONDecoder()
    while found:
        text = text.lstrip(" \n,")
        try:
            row, end = decoder.raw_decode(text)
        except ValueError:
            return rows
        rows.append(row)
        text = text[end:]
    return rows


def _exactly(names):
    return "^(%s)$" % "|".join(re.sub(r"([][.*+?(){}|^$\\])", r"\\\1", name) for name in names)


class _Group:

    def __init__(self, session, name, watch):
        self._session, self._name, self._watch = session, name, watch
        self._measured, self._broken, self._crashes = 0, {}, []
        self._begin = self._end = None

    def measure(self, filter):
        session, log = self._session, "%s_%s" % (PROGRAM, self._name)
        program = session.program(PROGRAM)
        listed = session.run([program, "--benchmark_list_tests", "--benchmark_filter=" + filter], log + ".log", 60)
        left = [line.strip() for line in listed.require_success().text().splitlines() if line.startswith("BM_")]
        if not left:
            raise Failure("it has no rows")
        crashed = 0
        while left and crashed < _MOST_BROKEN:
            report = session.path("%s.%d.json" % (log, crashed))
            if os.path.exists(report):
                os.remove(report)
            why, again = "", ()
            try:
                ran = session.run([program, _MIN_TIME, "--benchmark_filter=" + _exactly(left),
                                   "--benchmark_out=" + report, "--benchmark_out_format=json"], log + ".log", 300,
                                  append=True, quiet=min(_QUIET, session.test_seconds))
                self._begin, self._end = self._begin or ran.begin, ran.end
                ran.require_success()
            except Failure as failure:
                why, again = str(failure), failure.again
            except OutOfTime as reason:
                self._take(report, left)
                raise self._failure(left) if self._broken else OutOfTime(
                    "%s; %d rows were measured, %d were not" % (reason, self._measured, len(left)))
            self._take(report, left)
            if not why:
                break
            # Rows are told in order, so the first of those that are missing is to blame.
            crashed += 1
            self._broken[left[0] if left else PROGRAM] = shorten(why, 300)
            for crash in again[:1]:
                crash.name = left[0] if left else PROGRAM
                crash.command = [program, _MIN_TIME, "--benchmark_filter=" + _exactly(left[:1])]
                self._crashes.append(crash)
            left = left[1:]
        if self._broken or left:
            raise self._failure(left)
        return {"rows": self._measured, **self._watch.during(self._begin, self._end)}

    def _take(self, report, left):
        """Keeps the rows that were measured, and takes their names from `left`."""
        for row in _whole_rows(report):
            if row["name"] in left:
                left.remove(row["name"])
            if row.get("error_occurred") or row.get("skipped"):
                self._broken[row["name"]] = row.get("error_message", "skipped")
            elif "real_time" not in row:
                self._broken[row["name"]] = "its report has no time"
            elif row.get("run_type", "iteration") == "iteration":
                self._measured += 1
                self._session.record("kernel", row["name"], group=self._name, **tables.kernel_figures(row))

    def _failure(self, left):
        parts = ["%d rows did not run: %s" % (len(self._broken), "; ".join(
            "%s: %s" % broken for broken in list(self._broken.items())[:5]))] if self._broken else []
        if left:
            parts.append("%d more wrote no results" % len(left))
        return Failure("; ".join(parts), {"rows": self._measured}, self._crashes[:1])


def measure(session, name, filter, watch):
    return _Group(session, name, watch).measure(filter)


def one_product(session):
    """Runs a matrix product, which shows whether the driver, the runtime and cuBLASLt go together."""
    report = session.path("one_product.json")
    if os.path.exists(report):
        os.remove(report)
    session.run([session.program(PROGRAM), "--benchmark_filter=^BM_Linear/1024/1024/", "--benchmark_min_time=0.001",
                 "--benchmark_out=" + report, "--benchmark_out_format=json"], "one_product.log",
                session.test_seconds).require_success()
    rows = _whole_rows(report)
    if not rows:
        raise Failure("it wrote no results")
    if rows[0].get("error_occurred") or rows[0].get("skipped"):
        raise Failure(rows[0].get("error_message", "skipped"))
    return {"microseconds": tables.kernel_figures(rows[0])["microseconds"]}


# The kernels that decide how fast training is: name for people, the function's name in the source, benchmark, and how
# many launches of functions of this name come before the one that is looked at. The first is cold, and in BM_Gelu two
# convert the operands that it draws.
DECIDING = (("attention_forward", "Forward", "BM_Attention<AttentionKernel::kHopper, 64>", 1),
            ("attention_backward_keys", "BackwardKey", "BM_AttentionBackward<AttentionKernel::kHopper, 64>", 1),
            ("attention_backward_queries", "BackwardQuery", "BM_AttentionBackward<AttentionKernel::kHopper, 64>", 1),
            ("gelu", "MapVectors", "BM_Gelu", 3), ("norm_backward", "Backward", "BM_NormBackward", 1),
            ("column_sums", "SumRows", "BM_BiasBackward/4096", 1))
_SHOWN = ("Duration", "Memory Throughput", "Compute (SM) Throughput", "DRAM Throughput")


def profile(session):
    """Asks Nsight Compute how busy the deciding kernels keep memory and units, and what their warps wait for."""
    toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "ncu")
    ncu = shutil.which("ncu") or (toolkit if os.access(toolkit, os.X_OK) else None)
    if ncu is None:
        raise NotHere("ncu is not installed")
    found, unseen = {}, []
    for i, (name, kernel, row, skip) in enumerate(DECIDING):
        ran = session.run([ncu, "--clock-control", "none", "--section", "SpeedOfLight", "--section", "WarpStateStats",
                           "--launch-skip", str(skip), "--launch-count", "1", "--kernel-name", kernel,
                           session.program(PROGRAM), "--benchmark_min_time=0.001",
                           "--benchmark_filter=^%s/" % row], "ncu.log", 60, append=i > 0)
        if "ERR_NVGPUCTRPERM" in ran.text():
            raise NotHere("ncu may not read the GPU's counters here")
        ran.require_success()
        shown = {}
        for line in ran.text().splitlines():
            cells = line.split()
            label = next((label for label in _SHOWN if line.strip().startswith(label)), None)
            if label and cells[-1].replace(",", "").replace(".", "").isdigit():
                shown[label] = cells[-1] + " " + cells[-2]
        if shown:
            found[name] = shown
        else:
            unseen.append("%s: ncu saw no kernel %s" % (name, kernel))
    if unseen:
        raise Failure("; ".join(unseen), {"kernels": found})
    return {"kernels": found}
