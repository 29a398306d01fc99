"""`gpu_check check`: whether what runs on the GPU is right, and how fast single kernels are."""

import os
import re

import attention_plans
import bundle
import kernels
import libraries
import tables
from google_tests import core_dumps, run_tests, run_together
from session import Failure
from shapes import FUSED_BIAS_GRADIENTS, FUSED_GELU
from trainer import read_metrics

SANITIZER_TOOLS = ("memcheck", "synccheck", "racecheck", "initcheck")
# The tests of each program, as a GoogleTest filter, that are small enough for a tool that makes kernels about a
# hundred times slower, and the tools that know the instructions of the program's kernels.
_SANITIZED = (
    ("attention_test", "*GroupsOfHeads*:*QueriesThatSee*", ("memcheck", "synccheck")),
    ("layer_norm_test", "*", SANITIZER_TOOLS),
    ("kernels_test", "*Activations*:*Gates*:*Copies*:*Sums*:*Dropout*:*Norms*:*Embeddings*:*Rope*:*CrossEntropy*"
     ":*Optimizers*:*Attention*", SANITIZER_TOOLS),
    ("float8_kernels_test", "*", SANITIZER_TOOLS),
    ("moe_kernels_test", "*", SANITIZER_TOOLS),
    ("recurrence_kernels_test", "*", SANITIZER_TOOLS),
    ("comm_stream_test", "*", SANITIZER_TOOLS),
)
# About how many seconds the tests of a program take; others take _SECONDS_OF_TESTS.
_SECONDS_OF_PROGRAM = {"tiles_device_test": 5, "attention_test": 15, "kernels_test": 40, "large_tensors_test": 20,
                       "cuda_placement_test": 25}
_SECONDS_OF_TESTS = 10
# The share of the time for second looks at what failed in tests, before what is worth less. At the end they get what
# is left.
_SHARE_OF_SECOND_LOOKS = 0.25
# Programs whose tests take little of the GPU and are many: so many run at a time.
_AT_ONCE = {"attention_test": 4, "kernels_test": 4, "float8_kernels_test": 4, "moe_kernels_test": 4,
            "recurrence_kernels_test": 4}


def _sanitize(session, tool, name, filter):
    sanitizer = bundle.sanitizer(session.programs)
    if sanitizer is None:
        raise Failure("compute-sanitizer is not here")
    try:
        figures, done = run_together(session, name, "%s_%s" % (tool, name), 100,
                                     [sanitizer, "--tool=" + tool, "--error-exitcode=1"], filter)
    except Failure as failure:
        raise Failure(str(failure))  # no second look: this was one
    if not re.search("ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", done.text()):
        raise Failure("%s did not say that there were no errors" % tool)
    return figures


def _three_steps(session):
    """Whether training runs at all."""
    metrics = session.path("three_steps.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    session.run([session.program("pretrain_gpt"), "--config=gpt_demo", "--set=system.device=cuda",
                 "--set=train.eval_iters=0", "--set=train.exit_interval=3", "--set=logging.metrics_file=" + metrics],
                "three_steps.log", session.test_seconds,
                **core_dumps(session, "three_steps")).require_success()
    losses = [step["lm loss"] for step in read_metrics(metrics)]
    if len(losses) != 3 or None in losses:
        raise Failure("%d finite losses of 3" % sum(loss is not None for loss in losses))
    return {"losses": losses}


def _follows_cpu(session, name, tolerance, steps, options, gpu_options=()):
    """The demo's losses on the CPU and on the GPU; `gpu_options` are for the latter alone."""
    losses = {}
    for device in ("cpu", "cuda"):
        log = "%s_%s" % (name, device)
        metrics = session.path(log + ".jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        session.run([session.program("pretrain_gpt"), "--config=gpt_demo", "--set=system.device=" + device,
                     "--set=train.log_interval=10", "--set=train.eval_iters=0", "--set=train.exit_interval=%d" % steps,
                     "--set=logging.metrics_file=" + metrics, *options,
                     *(gpu_options if device == "cuda" else ())], log + ".log", 120,
                    **core_dumps(session, log)).require_success()
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
                     "--set=system.cuda_graph_impl=" + graphs, "--set=system.deterministic_mode=true",
                     "--set=precision.bf16=true", "--set=train.eval_iters=0",
                     "--set=train.exit_interval=50", "--set=logging.metrics_file=" + metrics],
                    log + ".log", 90, **core_dumps(session, log)).require_success()
        losses.append([step["lm loss"] for step in read_metrics(metrics)])
    if len(losses[0]) != 50 or None in losses[0]:
        raise Failure("%d finite losses of 50" % sum(loss is not None for loss in losses[0]))
    if losses[0] != losses[1]:
        raise Failure("losses with graphs differ")
    return {"steps": 50}


def _steps(session, device, watch):
    """All steps, the most valuable first: what, name, about how many seconds it takes, and what is done."""
    # Where one process has the GPU for itself, no two can run.
    shared = device["compute_mode"] == "Default"
    programs = bundle.tests(session.programs)

    def tests(names):
        return [("test", name, _SECONDS_OF_PROGRAM.get(name, _SECONDS_OF_TESTS),
                 lambda name=name: run_tests(session, name, _AT_ONCE.get(name, 1) if shared else 1)) for name in names]

    def benchmarks(names):
        return [("benchmark", name, seconds, lambda name=name, filter=filter: kernels.measure(
            session, name, filter, watch)) for name, filter, seconds in kernels.GROUPS if name in names]

    steps = [("smoke", "libraries", 5,
              lambda: libraries.require_libraries(session, [*programs, kernels.PROGRAM, "pretrain_gpt"])),
             ("smoke", "one_product", 10, lambda: kernels.one_product(session)),
             ("smoke", "three_steps", 15, lambda: _three_steps(session))]
    steps += tests(programs[:3]) + benchmarks(("attention", "products", "memory")) + tests(programs[3:])
    bf16 = ["--set=precision.bf16=true"]
    steps += [("training", "fp32_as_on_the_cpu", 15, lambda: _follows_cpu(session, "fp32", 1e-4, 20, ())),
              ("training", "bf16_as_on_the_cpu", 40, lambda: _follows_cpu(session, "bf16", 2e-2, 200, bf16)),
              ("training", "fp8_as_on_the_cpu", 30, lambda: _follows_cpu(
                  session, "fp8", 4e-2, 100, [*bf16, "--set=precision.fp8_format=hybrid"])),
              ("training", "fused_gelu_as_on_the_cpu", 30, lambda: _follows_cpu(
                  session, "fused_gelu", 2e-2, 100, bf16, [FUSED_GELU + "both", FUSED_BIAS_GRADIENTS + "true"])),
              ("training", "separate_gelu_as_on_the_cpu", 30, lambda: _follows_cpu(
                  session, "separate_gelu", 2e-2, 100, bf16, [FUSED_GELU + "none", FUSED_BIAS_GRADIENTS + "false"])),
              ("training", "graphs_change_nothing", 20, lambda: _graphs_change_nothing(session))]
    steps += benchmarks(("gemm_plans",))
    steps.append(("ncu", "deciding_kernels", 60, lambda: kernels.profile(session)))
    for tool in SANITIZER_TOOLS:
        for name, filter, tools in _SANITIZED:
            if tool in tools:
                steps.append((tool, name, 40, lambda tool=tool, name=name, filter=filter: _sanitize(
                    session, tool, name, filter)))
    return steps


def check(session, device, watch):
    steps = _steps(session, device, watch)
    session.plan([step[:3] for step in steps])
    looked = False

    def look(seconds):
        session.attempt("result", "second looks", lambda: session.explain.look(seconds))

    for what, name, _, action in steps:
        if what == "training" and not looked:
            look(_SHARE_OF_SECOND_LOOKS * session.seconds)
            looked = True
        session.step(what, name, action)
    look(session.left())
    plans = session.attempt("result", attention_plans.FILE, lambda: attention_plans.write(session, device["name"]))
    return session.attempt("result", "table", lambda: tables.kernel_table(session)) + ("\n" + plans if plans else "")
