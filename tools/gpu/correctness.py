"""`gpu_check check`: whether what runs on the GPU is right, and how fast single kernels are."""

import json
import os
import re

import bundle
import tables
from session import Failure
from trainer import read_metrics

# The tests of each program, as a GoogleTest filter, that are small enough for a tool that makes
# kernels about a hundred times slower.
_SANITIZED = (
    ("layer_norm_test", "*"),
    ("kernels_test", "*Activations*:*Gates*:*Copies*:*Sums*:*Dropout*:*Norms*:*Embeddings*:*Rope*:*CrossEntropy*"
     ":*Optimizers*:*Attention*"),
    ("float8_kernels_test", "*"),
    ("moe_kernels_test", "*"),
    ("comm_stream_test", "*"),
)
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def _read_tests(path):
    """Of GoogleTest's report: how many tests ran, and the names of those that did not or failed."""
    try:
        with open(path) as file:
            suites = json.load(file)["testsuites"]
    except (OSError, ValueError, KeyError):
        raise Failure("no report of what was tested")
    ran, skipped, failed = 0, [], []
    for suite in suites:
        for test in suite["testsuite"]:
            name = "%s.%s" % (suite["name"], test["name"])
            if test.get("failures"):
                failed.append(name)
            elif test.get("result") == "SKIPPED":
                skipped.append(name)
            elif test.get("status") == "RUN":
                ran += 1
    return ran, skipped, failed


def run_tests(session, name, log, limit, prefix=(), filter="*"):
    report = session.path(log + ".json")
    if os.path.exists(report):
        os.remove(report)
    done = session.run([*prefix, session.program(name), "--gtest_output=json:" + report, "--gtest_filter=" + filter],
                       log + ".log", limit, MEGATRON_REQUIRE_GPU="1")
    failed = []
    if done.code == 0 or os.path.exists(report):
        ran, skipped, failed = _read_tests(report)
    if failed:
        raise Failure("%d tests failed: %s" % (len(failed), ", ".join(failed[:8])))
    done.require_success()
    if skipped:
        raise Failure("%d tests were skipped: %s" % (len(skipped), ", ".join(skipped[:8])))
    if ran == 0:
        raise Failure("no test ran")
    return {"tests": ran}


def _sanitize(session, tool, name, filter):
    sanitizer = bundle.sanitizer(session.programs)
    if sanitizer is None:
        raise Failure("compute-sanitizer is not here")
    log = "%s_%s" % (tool, name)
    figures = run_tests(session, name, log, 100, [sanitizer, "--tool=" + tool, "--error-exitcode=1"], filter)
    with open(session.path(log + ".log"), errors="replace") as file:
        if not re.search("ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", file.read()):
            raise Failure("%s did not say that there were no errors" % tool)
    return figures


def _follows_cpu(session, name, tolerance, steps, options):
    """The demo's losses on the CPU and on the GPU."""
    losses = {}
    for device in ("cpu", "cuda"):
        log = "%s_%s" % (name, device)
        metrics = session.path(log + ".jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        session.run([session.program("pretrain_gpt"), "--config=gpt_demo", "--set=system.device=" + device,
                     "--set=train.log_interval=10", "--set=train.eval_iters=0", "--set=train.exit_interval=%d" % steps,
                     "--set=logging.metrics_file=" + metrics, *options], log + ".log", 120).require_success()
        losses[device] = [step["lm loss"] for step in read_metrics(metrics)]
        if len(losses[device]) != steps or None in losses[device]:
            raise Failure("%d finite losses of %d on %s" %
                          (sum(loss is not None for loss in losses[device]), steps, device))
    worst = max(abs(a - b) / abs(a) for a, b in zip(losses["cpu"], losses["cuda"]))
    if not worst <= tolerance:
        raise Failure("losses differ by %.2g, by more than %.2g" % (worst, tolerance))
    return {"steps": steps, "losses_differ_by": worst}


def _graphs_change_nothing(session):
    """The demo's losses on the GPU with CUDA graphs and without: the same to the last digit."""
    losses = []
    for graphs in ("none", "local"):
        log = "graphs_" + graphs
        metrics = session.path(log + ".jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        session.run([session.program("pretrain_gpt"), "--config=gpt_demo", "--set=system.device=cuda",
                     "--set=system.cuda_graph_impl=" + graphs, "--set=precision.bf16=true", "--set=train.eval_iters=0",
                     "--set=train.exit_interval=50", "--set=logging.metrics_file=" + metrics],
                    log + ".log", 90).require_success()
        losses.append([step["lm loss"] for step in read_metrics(metrics)])
    if len(losses[0]) != 50 or None in losses[0]:
        raise Failure("%d finite losses of 50" % sum(loss is not None for loss in losses[0]))
    if losses[0] != losses[1]:
        raise Failure("losses with graphs differ")
    return {"steps": 50}


def _benchmark(session, name, watch):
    report = session.path(name + ".json")
    if os.path.exists(report):
        os.remove(report)
    done = session.run([session.program(name), "--benchmark_min_time=0.2", "--benchmark_out=" + report,
                        "--benchmark_out_format=json"], name + ".log", 300)
    try:
        with open(report) as file:
            rows = json.load(file)["benchmarks"]
    except (OSError, ValueError, KeyError):
        done.require_success()
        raise Failure("it wrote no results")
    broken = [row for row in rows if row.get("error_occurred") or row.get("skipped")]
    for row in rows:
        if row not in broken and row.get("run_type", "iteration") == "iteration":
            session.record("kernel", row["name"], **tables.kernel_figures(row))
    done.require_success()
    if broken:
        raise Failure("%d rows did not run: %s" % (len(broken), "; ".join(
            "%s: %s" % (row["name"], row.get("error_message", "skipped")) for row in broken[:5])))
    if not rows:
        raise Failure("it has no rows")
    return {"rows": len(rows), **watch.during(done.begin, done.end)}


def check(session, device, watch):
    for name in bundle.tests(session.programs):
        session.step("test", name, lambda: run_tests(session, name, name, 200))
    session.step("training", "fp32_as_on_the_cpu", lambda: _follows_cpu(session, "fp32", 1e-4, 20, ()))
    session.step("training", "bf16_as_on_the_cpu",
                 lambda: _follows_cpu(session, "bf16", 2e-2, 200, ["--set=precision.bf16=true"]))
    session.step("training", "fp8_as_on_the_cpu",
                 lambda: _follows_cpu(session, "fp8", 4e-2, 100,
                                      ["--set=precision.bf16=true", "--set=precision.fp8_format=hybrid"]))
    session.step("training", "graphs_change_nothing", lambda: _graphs_change_nothing(session))
    for name in bundle.benchmarks():
        session.step("benchmark", name, lambda: _benchmark(session, name, watch), need=20)
    for tool in SANITIZER_TOOLS:
        for name, filter in _SANITIZED:
            session.step(tool, name, lambda: _sanitize(session, tool, name, filter))
    return tables.kernel_table(session)
