"""`gpu_check time`: how fast training is, beside PyTorch, and what it takes of memory."""

import json
import os
import re

import bundle
import tables
from device import memory_mib
from session import Failure, LeftOut, OutOfTime
from shapes import FUSED_GELU, GRAPHS, OPTIONS_TO_TRY, SHAPES
from trainer import OutOfMemory, Trainer

_STEPS = 20
# The seconds that a batch takes: to choose kernels by time, and for the steps that count.
_SECONDS_A_BATCH = 25
_WORTHWHILE = 1.005  # below it is noise
# The batch for trying graphs: so small that the time to enqueue matters, which graphs save.
_FEW_SAMPLES = 2
_BASE = "without_options"
_IN_FP8 = "gpt_1664_in_fp8"
_PEERS = sorted(SHAPES, key=lambda shape: -shape.peer_seconds)


def _with(options, more):
    """The options, and `more` in place of other values of the same settings."""
    fields = {option.rpartition("=")[0] for option in more}
    return [option for option in options if option.rpartition("=")[0] not in fields] + list(more)


class _Timing:

    def __init__(self, session, device, watch):
        self.session, self.watch = session, watch
        self.trainer = Trainer(session, memory_mib(device))
        self.options = []  # options that made training faster
        self.tried = {}  # batches by shape
        self.plans = {}  # results of trainer.plan() by shape and batch

    def options_of(self, shape, in_fp8=False):
        """Those of the options that the shape's model takes."""
        return [option for option in self.options
                if shape.has_gelu and not in_fp8 or not option.startswith(FUSED_GELU)]

    def options_without_graphs(self, shape):
        """For a profile, in which a graph hides its layers, and to compare with."""
        return [option for option in self.options_of(shape) if option != GRAPHS]

    def plan(self, shape, batch):
        if (shape.name, batch) not in self.plans:
            self.plans[shape.name, batch] = self.trainer.plan(shape, batch, self.options_of(shape))
        return self.plans[shape.name, batch]

    def _kernels(self, shape, batch):
        """The option that names the file of the fastest kernels for matrix products."""
        return "--set=system.gemm_plan_file=" + self.session.path("%s.%d.gemms.textproto" % (shape.name, batch))

    def known_kernels(self, shape, batch):
        """That option, if the file was written."""
        option = self._kernels(shape, batch)
        return [option] if os.path.exists(option.split("=", 2)[2]) else []

    def _choose_kernels(self, shape, batch):
        """Writes that file, by a short run whose first step times all kernels."""
        option = self._kernels(shape, batch)
        path = option.split("=", 2)[2]
        if os.path.exists(path):
            os.remove(path)  # the file is of another build
        self.trainer.train(shape, batch, 3, "%s.%d.gemms" % (shape.name, batch),
                           [*self.options_of(shape), option, "--set=system.time_gemm_kernels=true"])
        if not os.path.exists(path):
            raise Failure("system.time_gemm_kernels wrote no file")
        return option

    def _time(self, shape, batch, extra, log):
        plan = self.plan(shape, batch)
        figures, done = self.trainer.train(shape, batch, _STEPS, log, extra)
        return {**plan, **figures, **self._observed(done, plan)}

    def _observed(self, done, plan):
        """The GPU while it ran; its memory as against the plan."""
        state = self.watch.during(done.begin, done.end)
        idle, most = self.watch.idle_memory(), state.pop("memory_mib", None)
        if idle is not None and most is not None:
            state["peak_gib"] = (most - idle) / 1024
            state["of_plan"] = state["peak_gib"] / plan["planned_gib"]
        return state

    def batch(self, shape, batch, name=None):
        """One row: a shape with one size of micro-batch."""
        self.tried.setdefault(shape.name, []).append(batch)
        name = name or "%s.%d" % (shape.name, batch)
        return self.session.step("training", name, lambda: self._measure(shape, batch, name), need=_SECONDS_A_BATCH)

    def _measure(self, shape, batch, name):
        try:
            self.plan(shape, batch)  # fails sooner than training
            kernels = self._choose_kernels(shape, batch)
            return {"shape": shape.name, **self._time(shape, batch, [*self.options_of(shape), kernels], name)}
        except OutOfMemory as short:
            raise Failure("planned %.1f GiB: %s" % (self.plan(shape, batch)["planned_gib"], short))

    def next_batch(self, shape):
        """The first that was not tried and fits by the trainer's own plan; none where there is none."""
        for batch in shape.batches:
            if batch not in self.tried.get(shape.name, ()) and self.trainer.fits(self.plan(shape, batch)):
                return batch
        return None

    def first(self, shape):
        """The likely best batch that fits; a failure of its own where not even a plan can be had."""
        if not self.session.wants("training"):
            return None
        try:
            batch = self.next_batch(shape)
            if batch is None:
                raise Failure("none of %s samples fit" % (shape.batches,))
        except Failure as failure:
            return self.session.fail("plan", shape.name, failure)
        except OutOfTime:
            batch = shape.batches[0]  # reported as not run
        finally:
            self.session.forget("training", "%s.%d" % (shape.name, shape.batches[0]))
        return self.batch(shape, batch)

    def other_batches(self, shape):
        """Those that may be better still, as long as there is time; they are no part of what must be done."""
        if not self.tried.get(shape.name):
            return  # training is not done now, or first() has told what is wrong
        while self.session.left() > _SECONDS_A_BATCH:
            try:
                batch = self.next_batch(shape)
            except Failure as failure:
                self.session.fail("plan", shape.name, failure)
                return
            except OutOfTime:
                break
            if batch is None:
                return
            self.batch(shape, batch)
        left = [batch for batch in shape.batches if batch not in self.tried.get(shape.name, ())]
        if left:
            print("left out %s with %s samples: no time" % (shape.name, ", ".join(map(str, left))))

    def earlier(self, shape):
        """The shape's first row that an earlier call measured; none where there is none."""
        return next((row for row in self.session.rows if row["what"] == "training" and
                     row.get("shape") == shape.name and row["verdict"] == "passed"), None)

    def base(self, shape):
        """The row that options are compared with."""
        if self.session.wants("training"):
            return self.first(shape)
        return self.earlier(shape) or self.session.step(
            "option", _BASE, lambda: self._measure(shape, shape.batches[0], _BASE), need=_SECONDS_A_BATCH)

    def try_options(self, shape, base):
        """Keeps those of OPTIONS_TO_TRY that make it faster, one after the other."""
        passed = base["verdict"] == "passed"
        best, batch = base.get("tokens_per_second"), base.get("batch")
        # The kernels of products that only come with an option are timed in the first step of its
        # own run.
        kernels = [self._kernels(shape, batch), "--set=system.time_gemm_kernels=true"] if passed else []

        def require_base():
            if not passed:
                raise LeftOut("%s %s did not pass, with which it is compared" % (base["what"], base["name"]))

        for name, option in OPTIONS_TO_TRY:

            def action():
                require_base()
                options = [*_with(self.options_of(shape), option), *kernels]
                figures = self._time(shape, batch, options, "option_" + name)
                return {**figures, "speedup": figures["tokens_per_second"] / best}

            row = self.session.step("option", name, action, need=_SECONDS_A_BATCH)
            if row["verdict"] == "passed" and row["speedup"] > _WORTHWHILE:
                best = row["tokens_per_second"]
                self.options = _with(self.options, option)
                self.plans.clear()

        def graphs():
            require_base()
            return self._graphs_of_few_samples(shape)

        self.session.step("option", "cuda_graphs_few_samples", graphs, need=2 * _SECONDS_A_BATCH)
        if passed and self.options:
            self.batch(shape, batch, "%s.%d.with_options" % (shape.name, batch))

    def _graphs_of_few_samples(self, shape):
        rates = []
        for name, extra in (("without_graphs", []), ("with_graphs", [GRAPHS])):
            figures, _ = self.trainer.train(shape, _FEW_SAMPLES, _STEPS, "%s.%d.%s" % (shape.name, _FEW_SAMPLES, name),
                                            [*self.options_without_graphs(shape), *extra])
            rates.append(figures["tokens_per_second"])
        return {**figures, "without": rates[0], "speedup": rates[1] / rates[0]}


def _peer(session, shape):
    """The same shape in PyTorch."""
    python = os.environ.get("PYTHON", "python3")
    path = session.path("pytorch_%s.json" % shape.name)
    if os.path.exists(path):
        os.remove(path)
    done = session.run([python, session.program(bundle.PEER), "--shape=" + shape.name,
                        "--seconds=%d" % shape.peer_seconds, "--json=" + path], "pytorch_%s.log" % shape.name,
                       shape.peer_seconds + 120, ours=False)
    done.require_success()
    try:
        with open(path) as file:
            result = json.loads(file.read())
    except (OSError, ValueError):
        raise Failure("it wrote no results")
    result.pop("name", None)
    result.pop("what", None)
    for kind in ("eager", "compiled"):
        if not result.get(kind, {}).get("tokens_per_second"):
            raise Failure("it has no rate for %s" % kind)
    return {"shape": shape.name, **result}


def _profile(session, timing, shape):
    """Where the time of two steps goes: sums of a trace's spans on the GPU, by name."""
    batch = shape.batches[0]
    folder = session.path("profile")
    session.run([session.program("pretrain_gpt"), *shape.arguments(), *Trainer.sizes(batch, 1),
                 *timing.options_without_graphs(shape), *timing.known_kernels(shape, batch), "--set=train.exit_interval=12",
                 "--profile", "--set=logging.profile_dir=" + folder],
                "profile.log", 90).require_success()
    try:
        with open(os.path.join(folder, "trace_rank_0.json")) as file:
            events = json.load(file)["traceEvents"]
    except (OSError, ValueError, KeyError):
        raise Failure("it wrote no trace")
    spans = [event for event in events if event.get("ph") == "X"]
    if not spans:
        raise Failure("its trace is empty")
    gpu = max(span["tid"] for span in spans)  # behind the host's
    sums = {}
    for span in spans:
        if span["tid"] == gpu:
            name = re.sub(r"\d+", "N", span["name"])
            milliseconds, count = sums.get(name, (0, 0))
            sums[name] = (milliseconds + span["dur"] / 1000, count + 1)
    return {"spans": sorted(([name, *sum] for name, sum in sums.items()), key=lambda span: -span[1])[:12]}


def _in_fp8(timing, shape):
    """The same shape with FP8 products, which are other products: their kernels are timed in its first step."""
    extra = [*timing.options_of(shape, in_fp8=True), "--set=precision.fp8_format=hybrid", "--set=system.time_gemm_kernels=true"]
    figures, _ = timing.trainer.train(shape, shape.batches[0], _STEPS, shape.name + "_in_fp8", extra)
    return figures


def _several_gpus(session, timing, shape, gpus):
    # timing.options are left out: not all of them allow messages while passes run.
    extra = [*timing.known_kernels(shape, shape.batches[0]), "--set=parallel.data_parallel_size=%d" % gpus,
             "--set=parallel.overlap_grad_reduce=true"]
    figures, _ = timing.trainer.train(shape, shape.batches[0], _STEPS, "%d_gpus" % gpus, extra, ranks=gpus, limit=120)
    return {"gpus": gpus, **figures}


def _links(session, gpus):
    session.run([session.program("comm_bench"), "--backend=nccl", "--ranks=%d" % gpus, "--op=all", "-b", "1M",
                 "-e", "1G", "-f", "8", "--json=" + session.path("comm_bench.json")],
                "comm_bench.log", 120).require_success()


def _plan(session, timing, gpus):
    """Steps in the order in which they are done, with about how many seconds each takes."""
    first, *others = SHAPES
    steps = [("training", "%s.%d" % (first.name, first.batches[0]), _SECONDS_A_BATCH)]
    if not session.wants("training") and timing.earlier(first) is None:
        steps.append(("option", _BASE, _SECONDS_A_BATCH))
    steps += [("option", name, 18) for name, _ in OPTIONS_TO_TRY]
    steps += [("option", "cuda_graphs_few_samples", 20), ("profile", "two_steps", 15)]
    steps += [("training", "%s.%d" % (shape.name, shape.batches[0]), _SECONDS_A_BATCH) for shape in others]
    steps.append(("training", _IN_FP8, 20))
    steps += [("pytorch", shape.name, shape.peer_seconds + 20) for shape in _PEERS]
    if gpus > 1:
        steps += [("training", "a_rank_a_gpu", 30), ("links", "nccl", 30)]
    session.plan(steps)


def time_training(session, device, watch, gpus):
    timing = _Timing(session, device, watch)
    _plan(session, timing, gpus)
    # First a row for each of our shapes, then PyTorch's, then what may still be better.
    first, *others = SHAPES
    timing.try_options(first, timing.base(first))
    session.step("profile", "two_steps", lambda: _profile(session, timing, first), need=15)
    for shape in others:
        timing.first(shape)
    wide = next(shape for shape in SHAPES if shape.name == "gpt_1664")
    session.step("training", _IN_FP8, lambda: _in_fp8(timing, wide), need=20)
    for shape in _PEERS:
        session.step("pytorch", shape.name, lambda: _peer(session, shape), need=40)
    if gpus > 1:
        session.step("training", "a_rank_a_gpu", lambda: _several_gpus(session, timing, first, gpus), need=30)
        session.step("links", "nccl", lambda: _links(session, gpus), need=30)
    for shape in SHAPES:
        timing.other_batches(shape)
    return tables.speed_table(session, SHAPES)
