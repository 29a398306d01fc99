#!/usr/bin/env python3
"""tools/gpu_check on a machine that has no GPU: all that it runs are stubs, which behave as they are told.

What it must not do is call something well that was not, so most tests break one thing.
"""

import concurrent.futures
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.dirname(HERE)
# //megatron/train/attention:attention_plan_file_test reads it.
ATTENTION_PLANS = os.path.join(os.path.dirname(TOOLS), "megatron", "train", "attention", "testdata",
                               "attention_plans.textproto")

PLAN_FACTS = os.path.join(os.path.dirname(TOOLS), "megatron", "plan", "plan_facts.textproto")

# Stands for every program. What it is called as says which; $STUB_DOES, a JSON object, says what goes wrong.
STUB = r'''
import json, os, re, signal, subprocess, sys, time
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
does = json.loads(os.environ["STUB_DOES"])
with open(os.environ["STUB_CALLS"], "a") as calls:
    calls.write(json.dumps([name] + arguments) + "\n")
if "STUB_SEES" in os.environ:
    with open(os.environ["STUB_SEES"], "a") as seen:
        seen.write("%s %s\n" % (name, os.environ.get(os.environ.get("STUB_SEES_VARIABLE", "LD_LIBRARY_PATH"))))
options = dict(a.split("=", 1) for a in (a[6:] if a.startswith("--set=") else a for a in arguments) if "=" in a)

def write(path, value):
    with open(path, "w") as file:
        file.write(json.dumps(value))

def calls_of(program):
    with open(os.environ["STUB_CALLS"]) as calls:
        return sum(line.startswith('["' + program) for line in calls)

def end(code):
    sys.stdout.flush()
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)

if name == "nvidia-smi":
    if does.get(name) == "fails":
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        sys.exit(9)
    if does.get(name) == "is interrupted":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
    if does.get(name) == "is lost in training" and calls_of("pretrain_gpt"):
        print("Unable to determine the device handle for GPU0: Unknown Error")
        sys.exit(255)
    if arguments[0] == "--query-gpu=name":
        print("\n".join(does.get("kinds", ["NVIDIA H200"] * does.get("gpus", 1))))
    elif "kinds" in does:  # of GPUs, by nvidia-smi's numbers
        for i, kind in enumerate(does["kinds"]):
            print("GPU-%d5-6" % i if "uuid" in arguments[0] else
                  "%s, 580, 1980, 3201, 700, 143771, Default" % kind if "driver_version" in arguments[0] else
                  "1755, 3201, 640, 61, %d000" % i)
    elif "driver_version" in arguments[0]:
        for _ in range(does.get("gpus", 1)):
            print("NVIDIA H200, 580.65.06, 1980, 3201, 700.00, %s, %s" % (
                does.get("memory", 143771), does.get("compute_mode", "Default")))
    else:
        print("1755, 3201, 640.10, 61, 2048")
elif name == "bazelw":
    built = os.path.join(os.path.dirname(sys.argv[0]), "built")
    if arguments[0] == "query" and does.get(name) == "does not ask":
        print("ERROR: no workspace", file=sys.stderr)
        sys.exit(7)
    if arguments[0] == "build" and does.get(name) == "does not build":
        print("ERROR: //megatron/train:pretrain_gpt", file=sys.stderr)
        sys.exit(37)
    if arguments[0] == "info":
        print(built)
    for target in arguments[1:] if arguments[0] == "build" else ():
        if target.startswith("//"):
            path = os.path.join(built, target[2:].replace(":", "/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(" ".join(a for a in arguments if a.startswith("--")))
elif name == "strip":
    with open(arguments[2]) as program, open(arguments[1], "w") as stripped:
        stripped.write(program.read())
elif name == "python":
    print(does[name])
elif name == "ldd":
    print("\tlibc.so.6 => /lib/libc.so.6 (0x1)")
    if does.get(name) == os.path.basename(arguments[0]):
        print("\tlibnccl.so.2 => not found")
elif name == "ncu":
    if does.get(name) == "may not":
        print("==ERROR== ERR_NVGPUCTRPERM - The user may not access NVIDIA GPU Performance Counters")
        sys.exit(1)
    if does.get(name) != "sees nothing":
        print("    Duration                 us         41.02\n    Memory Throughput         %        71.20")
elif name == "cuda-gdb":
    with open(arguments[2].split()[-1]) as dump:
        print("Opening GPU coredump\n  Kernel Parent Dev Grid Status Name\n*      0      -   0    7 Active " + dump.read())
elif name == "compute-sanitizer":
    program = next(i for i, a in enumerate(arguments) if not a.startswith("-"))
    finds = does.get(name) == "finds"
    if does.get(name) == "says nothing":
        sys.exit(0)
    if finds:
        print("========= Invalid __global__ read of size 4 bytes\n=========     at Forward(Maps)+0x130 in "
              "attention_forward.cu:219\n=========     by thread (0,0,0) in block (3,0,0)")
    print("========= ERROR SUMMARY: %d errors" % finds, flush=True)
    if does.get(name) == "silent":
        sys.exit(0)
    os.execv(arguments[program], arguments[program:])
elif name.endswith(("_test", "_test_watched")):
    what = does.get(name, "")
    if "--gtest_list_tests" in arguments:
        if what == "fails at each of many":
            print("Many.\n" + "".join("  Test%d\n" % i for i in range(13)) + "  CudnnComputes")
        elif what != "is empty":
            print("Suite.\n  Works\nOf/Suite.\n  Counts/0  # GetParam() = 3" + what.startswith("always") * "\n  Ends")
        sys.exit(0)
    tests = {"Suite.Works": "Suite", "Of/Suite.Counts/0": "Of/Suite", "Of/Suite.Ends": "Of/Suite"}
    asked = options.get("--gtest_filter", "*")
    tests = {test: suite for test, suite in tests.items() if asked == test or "*" in asked}
    if what == "fails at each of many":
        tests = {asked: asked.split(".")[0]}
    suites = []
    for test, suite in tests.items():
        print("[ RUN      ] " + test, flush=True)
        if what == "always sleeps":
            time.sleep(600)
        row = {"name": test[len(suite) + 1:], "status": "RUN", "result": "COMPLETED"}
        if test == "Suite.Works":
            if what == "crashes":
                end(-signal.SIGSEGV)
            if what == "dies colourfully":
                os.write(1, b"error: \x1b[31mred\x1b]0;title\x07\x00 \xff\n")
                end(-signal.SIGABRT)
            if what == "aborts":
                print("F1122 00:00 attention.cu:7] Check failed: error == cudaSuccess attention: an illegal memory "
                      "access\n*** Check failure stack trace: ***", flush=True)
                print("\nblocking %s, dump in %s without %s" % (
                    os.environ.get("CUDA_LAUNCH_BLOCKING"), os.environ.get("CUDA_COREDUMP_FILE"),
                    os.environ.get("CUDA_COREDUMP_GENERATION_FLAGS")), flush=True)
                end(-signal.SIGABRT)
            if what == "prints without end":
                print("attention.cu:7] Check failed: the reason, said first", flush=True)
                try:
                    for _ in range(320):
                        os.write(1, b"and more noise .\n" * 4096)
                except OSError:
                    pass
                os.write(1, b"the end\n") if not does.get("full") else None
                end(-signal.SIGABRT)
            if what == "hangs on the GPU":
                places = [os.environ["CUDA_COREDUMP_" + place].replace("%p", str(os.getpid()))
                          for place in ("PIPE", "FILE")]
                os.mkfifo(places[0])
                with open(places[0]) as pipe, open(places[1], "w") as dump:
                    dump.write("Forward(Maps)" if pipe.read() else "")
                time.sleep(600)
            if what == "sleeps":
                if "STUB_PIDS" in os.environ:
                    with open(os.environ["STUB_PIDS"], "w") as pids:
                        pids.write("%d " % os.getpid())
                time.sleep(600)
            if what == "waits for a barrier":
                print("block (3, 1, 0), warp 4 waits for the barrier at 0x428, phase 1", flush=True)
                end(-signal.SIGABRT)
            if what == "skips":
                row.update(result="SKIPPED", skipped=[{"message": "no cuDNN"}])
            if what == "fails":
                row["failures"] = [{"failure": "kernels_test.cc:40\nelement 17 is 3, not 2.5: off by 0.5 "
                                               + "and more " * 200}, {"failure": "another"}]
        if what == "fails at each of many":
            row["failures"] = [{"failure": "off by 3"}]
        print("[       OK ] " + test)
        suites.append({"name": suite, "testsuite": [row]})
    if what == "is empty":
        suites = []
    if what != "reports nothing" and "--gtest_output" in options:
        write(options["--gtest_output"][5:], {"testsuites": suites})
    sys.exit(1 if what == "fails" and "Suite.Works" in tests else 0)
elif name == "kernels_benchmark":
    what = does.get(name, "")
    rows = [{"name": "BM_Linear/1024/1024/manual_time", "real_time": 60.0, "time_unit": "us", "TFLOP/s": 500.0},
            {"name": "BM_Gelu/manual_time", "real_time": 80.0, "cpu_time": 1.0, "time_unit": "us", "iterations": 10,
             "GB/s": 3600.0, "roofline": 0.87, "floor": 0.85},
            {"name": "BM_Slow", "real_time": 2.5, "time_unit": "ms", "roofline": 0.4, "floor": 0.75},
            *({"name": "BM_Attention<AttentionKernel::k%s, 64>/manual_time" % kernel, "real_time": 1.0,
               "time_unit": "ms", "TFLOP/s": rate}
              for kernel, rate in (("Own", 200.0), ("Hopper", 310.0), ("Cudnn", 320.0), ("CudnnDeterministic", 400.0))),
            *({"name": "BM_AttentionBackward<AttentionKernel::k%s, 64>/manual_time" % kernel, "real_time": time,
               "time_unit": "ms"}
              for kernel, time in (("Own", 9.0), ("Hopper", 2.5), ("Cudnn", 2.0), ("CudnnDeterministic", 1.5))),
            {"name": "BM_GemmPlan/1024/1024/iterations:1", "real_time": 1.0, "time_unit": "ms", "plan": 0.99},
            {"name": "BM_Other", "real_time": 900.0, "time_unit": "ns", "bits": 7.0}]
    for row in rows:
        row["run_type"] = "iteration"
    filter = options["--benchmark_filter"]
    rows = [row for row in rows if bool(re.search(filter.lstrip("-"), row["name"])) != filter.startswith("-")]
    if "--benchmark_list_tests" in arguments:
        print("\n".join(row["name"] for row in rows) if what != "is empty" else "")
        sys.exit(0)
    # A report as Google Benchmark writes it: row by row.
    with open(options["--benchmark_out"], "w") as file:
        file.write('{\n  "context": {"caches": []},\n  "benchmarks": [\n')
        file.flush()
        if what == "reports no rows":
            file.write("3")
            sys.exit(0)
        if what == "reports no text":
            file.buffer.write(b'{"name": "\xff\xfe')
            end(-signal.SIGKILL)
        for i, row in enumerate(rows):
            if what == "reports no time":
                del row["real_time"]
            if what == "skips" and row["name"].startswith("BM_Gelu"):
                row = {"name": row["name"], "run_type": "iteration", "error_occurred": True,
                       "error_message": "no GPU", "real_time": 0.0, "time_unit": "ns"}
            text = json.dumps(row, indent=4)
            if what == "is cut off" and row["name"] == "BM_Slow":
                file.write(",\n" + text[:40])
                file.flush()
                end(-signal.SIGKILL)
            if what in ("crashes", "hangs") and row["name"] == "BM_Slow":
                print("F1122 Check failed: an illegal memory access", flush=True)
                time.sleep(600 if what == "hangs" else 0)
                end(-signal.SIGABRT)
            file.write((",\n" if i else "") + text)
            file.flush()
            print(row["name"], flush=True)
        file.write("\n  ]\n}\n")
    end(-signal.SIGABRT if what == "crashes late" else 0)
elif name == "pretrain_gpt":
    shape, batch = options["--config"], int(options.get("train.micro_batch_size", 1))
    what = does.get(name, {}).get("%s.%d" % (shape, batch), does.get(name, {}).get(shape, ""))
    parameters, flops = {"gpt3_857m": (355919872, 2.4e9), "gpt_1664": (885078272, 5.8e9), "gpt2_124m": (124475904, 8e8),
                         "llama_1500m": (1527367680, 9.3e9), "gpt_demo": (1000, 1e6)}[shape]
    if "--dry_run" in arguments:
        if what == "does not plan":
            print("error: the configuration has an error:\n  train.seed: no")
            sys.exit(20)
        gib = 200.0 if what == "does not fit" else 1.95
        print(json.dumps({"parameters": parameters, "flops_per_token": flops,
                          "flops_per_token_with_full_attention": 1.125 * flops,
                          "memory": {"stages": [{"first_rank": 0, "bytes": gib * 2**30}]}}))
        sys.exit(0)
    if what == "runs out of memory":
        print("F1122 Check failed: out of memory on cuda:0: 99 bytes for activations")
        print("*** Check failure stack trace: ***\n    @     0x55d0c0ffee  main")
        end(-signal.SIGABRT)
    plans = options.get("system.gemm_plan_file")
    if plans and "system.time_gemm_kernels" in options:
        if what != "writes no plans":
            write(plans, {})
    elif plans and not os.path.exists(plans):
        print("no such file")
        sys.exit(20)
    if "logging.profile_dir" in options:
        os.makedirs(options["logging.profile_dir"], exist_ok=True)
        span = {"ph": "X", "tid": 2, "name": "layer 3", "dur": 1500.0}
        if what != "has no trace":
            write(options["logging.profile_dir"] + "/trace_rank_0.json",
                  {"traceEvents": [span, dict(span, name="layer 4"), dict(span, tid=1, name="host")]})
    steps, rate = int(options.get("train.exit_interval", 60)), 200000.0
    if what == "is slow":
        rate = 50000.0
    before = calls_of("nvidia-smi")
    pinned = plans and "system.time_gemm_kernels" not in options
    if does.get("gelu") == "gains" and "system.fuse_gelu" in options:
        rate, pinned = rate * (1.1 if options["system.fuse_gelu"] == "both" else 0.95), True
    while does.get("watched") and pinned and calls_of("nvidia-smi") < before + 6:
        time.sleep(0.1)
    with open(options.get("logging.metrics_file", os.devnull), "w") as metrics:
        for i in range(1, steps + 1):
            loss = 10.0 - 9.0 * i / steps if what != "learns nothing" else 10.0
            if options.get("system.device") == "cuda" and what == "differs from the CPU":
                loss *= 1.1
            if options.get("system.cuda_graph_impl") == "local" and what == "differs with graphs":
                loss *= 1 + 1e-9
            if what == "loses its loss" and i == 7:
                loss = None
            if i == 4 and what == "crashes after 3 steps":
                metrics.flush()
                end(-signal.SIGSEGV)
            if i == 4 and what == "stops after 3 steps" or i == 3 and what == "learns two steps":
                break
            metrics.write(json.dumps({"iteration": i, "consumed_samples": i * batch, "lm loss": loss,
                                      "tokens_per_second": rate if pinned else 1.0, "mfu": 0.48}) + "\n")
            if i == 2:
                metrics.write(json.dumps({"iteration": 2, "lm loss validation": 3.0}) + "\n")
    sys.exit(11 if "train.exit_duration_in_mins" in options else 0)
elif name == "pytorch_gpu_speed.py":
    what = does.get(name, "")
    if what == "crashes":
        print("torch._dynamo.exc.InternalTorchDynamoError: no\n\nSet TORCHDYNAMO_VERBOSE=1", file=sys.stderr)
        sys.exit(1)
    counts = {"gpt3_857m": 355919872, "gpt_1664": 885078272, "gpt2_124m": 124475904, "llama_1500m": 1527367680}
    result = {"what": "pytorch", "name": options["--shape"], "parameters": counts[options["--shape"]],
              "eager": {"tokens_per_second": 100000.0}, "compiled": {"tokens_per_second": 160000.0}}
    if what == "is another model":
        result["parameters"] += 1
    if what == "does not compile":
        del result["compiled"]
    write(options["--json"], result)
elif name == "comm_bench":
    rows = [{"size": size, "out_of_place": {"busbw_gbps": rate}} for size, rate in ((1 << 30, 360.0), (1 << 20, 90.0))]
    write(options["--json"], {"results": [{"operation": "all_gather", "ranks": 2, "rows": rows},
                                          {"operation": "all_reduce", "ranks": 2, "rows": rows[1:]}]})
elif name == "plot_loss":
    write(options["--output"], "<svg/>")
'''
TESTS = ("tiles_device_test", "attention_test", "kernels_test", "large_tensors_test", "layer_norm_test",
         "cuda_placement_test", "float8_kernels_test", "moe_kernels_test", "recurrence_kernels_test",
         "comm_stream_test", "trace_test", "nccl_device_test")
PROGRAMS = TESTS + ("kernels_benchmark", "pretrain_gpt", "comm_bench", "plot_loss")


class GpuCheckTest(unittest.TestCase):

    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        self.bundle, self.out, bin = (os.path.join(self.root, name) for name in ("bundle", "out", "bin"))
        os.makedirs(os.path.join(self.bundle, "gpu"))
        os.mkdir(bin)
        shutil.copy(os.path.join(TOOLS, "gpu_check"), self.bundle)
        for module in os.listdir(HERE):
            if module.endswith(".py"):
                shutil.copy(os.path.join(HERE, module), os.path.join(self.bundle, "gpu"))
        shutil.copy(PLAN_FACTS, os.path.join(self.bundle, "gpu"))
        # Nothing else is on PATH: a GPU that this machine may have stays unseen.
        for program in ("bash", "dirname", "readlink"):
            os.symlink(shutil.which(program), os.path.join(bin, program))
        os.symlink(sys.executable, os.path.join(bin, "python3"))
        for name in PROGRAMS:
            self.stub(os.path.join(self.bundle, name))
        for name in ("nvidia-smi", "compute-sanitizer", "ldd"):
            self.stub(os.path.join(bin, name))
        with open(os.path.join(self.bundle, "pytorch_gpu_speed.py"), "w") as file:
            file.write(STUB)
        self.bin = bin

    def stub(self, path):
        with open(path, "w") as file:
            file.write("#!%s -IS\n%s" % (os.path.realpath(sys.executable), STUB))
        os.chmod(path, 0o755)

    def gpu_check(self, *arguments, **options):
        """Returns its exit code, what it printed, and its results."""
        process, calls = self.start(*arguments, **options)
        text, _ = process.communicate()
        return (process.returncode, text, *self.results(arguments, calls))

    def start(self, *arguments, does=None, seconds=600, before="", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
              **environment):
        """`before`: what the shell does that starts it."""
        calls = os.path.join(self.root, "calls")
        open(calls, "w").close()
        variables = {"PATH": self.bin, "HOME": self.root, "CUDA_HOME": self.root, "STUB_DOES": json.dumps(does or {}),
                     "STUB_CALLS": calls, **environment}
        return subprocess.Popen([os.path.join(self.bin, "bash"), "-c", before + '\nexec "$0" "$@"',
                                 os.path.join(self.bundle, "gpu_check"), *arguments, "--seconds=%s" % seconds],
                                env=variables, text=True, stdout=stdout, stderr=stderr), calls

    def results(self, arguments, calls):
        rows = []
        if len(arguments) > 1 and os.path.isfile(os.path.join(self.out, arguments[0] + ".jsonl")):
            with open(os.path.join(self.out, arguments[0] + ".jsonl")) as file:
                rows = [json.loads(line) for line in file]
        with open(calls) as file:
            self.calls = [json.loads(line) for line in file]
        return [rows]

    def row(self, rows, what, name):
        found, = [row for row in rows if row["what"] == what and row["name"] == name]
        return found

    def expect_failures(self, part, kinds, does, expected):
        """`expected`: (what, name, a part of the reason) of all that fails of these kinds of steps."""
        code, text, rows = self.gpu_check(part, self.out, *kinds, does=does)
        self.assertEqual(code, 1, text)
        for what, name, why in expected:
            row = self.row(rows, what, name)
            self.assertEqual(row["verdict"], "failed", text)
            self.assertIn(why, row["why"])
            self.assertIn("FAILED: %s %s" % (what, name), text)
        failed = {(row["what"], row["name"]) for row in rows if row.get("verdict") == "failed"}
        self.assertEqual(failed, {(what, name) for what, name, _ in expected})
        return text, rows

    # Tests that concern all parts.

    def test_without_a_gpu_nothing_is_run(self):
        for does, why in (({"nvidia-smi": "fails"}, "nvidia-smi says: NVIDIA-SMI has failed because it couldn't "
                           "communicate with the NVIDIA driver."), ({"gpus": 0}, "nvidia-smi names none")):
            for part in ("check", "learn", "run"):
                code, text, _ = self.gpu_check(part, self.out, does=does)
                self.assertEqual(code, 1)
                self.assertEqual(text, "no GPU here: %s; nothing was run\n" % why)
                self.assertEqual({call[0] for call in self.calls}, {"nvidia-smi"})
        os.remove(os.path.join(self.bin, "nvidia-smi"))
        code, text, _ = self.gpu_check("check", self.out)
        self.assertEqual(code, 1)
        self.assertIn("no GPU here: nvidia-smi is not here", text)

    def test_it_tells_of_the_gpu_that_cuda_takes(self):
        kinds, seen = {"kinds": ["NVIDIA T4", "NVIDIA H200", "NVIDIA L4"]}, os.path.join(self.root, "seen")
        for visible, gpu, gpus in (("1,2", "NVIDIA H200", 2), ("1,0,9,2", "NVIDIA H200", 2), ("GPU-2", "NVIDIA L4", 1),
                                   ("MIG-1-2", "NVIDIA T4", 3)):
            code, text, rows = self.gpu_check("check", self.out, "ncu", does=kinds, CUDA_VISIBLE_DEVICES=visible)
            self.assertEqual(code, 0, text)
            self.assertTrue(text.startswith(gpu + ", driver 580"), text)
            self.assertEqual(rows[-2]["gpus"], gpus)
            if visible == "1,2":
                environment = {"PATH": self.bin, "STUB_DOES": json.dumps(kinds), "STUB_CALLS": os.devnull,
                               "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": visible}
                watched = subprocess.run([sys.executable, "-c", "import device; print(device.Watch().idle_memory())"],
                                         cwd=HERE, env=environment, check=True, capture_output=True, text=True).stdout
                self.assertEqual(watched, "1000.0\n")
        self.gpu_check("check", self.out, "smoke", STUB_SEES=seen, STUB_SEES_VARIABLE="CUDA_DEVICE_ORDER")
        with open(seen) as file:
            self.assertIn("pretrain_gpt PCI_BUS_ID\n", file.read())
        for visible in ("", "-1", "3", "GPU-7"):
            code, text, _ = self.gpu_check("check", self.out, does=kinds, CUDA_VISIBLE_DEVICES=visible)
            self.assertEqual(code, 1, text)
            self.assertIn("no GPU here: CUDA_VISIBLE_DEVICES=%s names none of NVIDIA T4 NVIDIA H200" % visible, text)

    def test_without_programs_it_says_how_to_get_them(self):
        os.remove(os.path.join(self.bundle, "pretrain_gpt"))
        code, text, _ = self.gpu_check("check", self.out)
        self.assertEqual(code, 1)
        self.assertIn("`gpu_check build DIR`, then run DIR/gpu_check check", text)

    def test_wrong_commands_are_named_before_the_usage(self):
        for arguments, mistake in (
                (["chek"], "no such command: 'chek'"), (["--foo"], "no such command: '--foo'"),
                (["check", "--fast"], "no such option: '--fast'"), (["build"], "build lacks DIR"),
                (["build", self.out, "extra"], "build takes DIR alone, not 'extra'"),
                (["check", self.out, "rest", "pytorch"], "check has no kind of step 'pytorch'"),
                (["run", self.out, "test"], "run has no kind of step 'test'")):
            code, text, _ = self.gpu_check(*arguments)
            self.assertEqual(code, 20, text)
            self.assertEqual(text.splitlines()[0], "gpu_check: " + mistake)
            self.assertIn("DIR/gpu_check check [OUT]", text)
            self.assertEqual(self.calls, [])

    def test_help_is_the_usage_and_no_failure(self):
        for arguments in (["--help"], ["-h"], ["check", "--help"]):
            done = subprocess.run([os.path.join(self.bundle, "gpu_check"), *arguments], env={"PATH": self.bin},
                                  cwd=self.root, text=True, capture_output=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith("Checks and times what runs on a GPU"), done.stdout)
            self.assertTrue(done.stdout.endswith("than sm_90a, comma-separated.\n"), done.stdout)
            self.assertNotIn("#", done.stdout)

    def test_what_names_steps_is_not_taken_for_the_folder(self):
        for part, word in (("learn", "rest"), ("check", "test"), ("run", "links")):
            code, text, _ = self.gpu_check(part, word)
            self.assertEqual(code, 20, text)
            self.assertIn("OUT must stand before '%s'" % word, text.splitlines()[0])
            self.assertEqual(self.calls, [])

    def test_a_limit_that_is_no_time_is_refused_in_a_line(self):
        for seconds in ("abc", "", "nan", "inf", "0", "-5"):
            code, text, _ = self.gpu_check("check", self.out, seconds=seconds)
            self.assertEqual((code, text), (20, "gpu_check: --seconds must be a number above 0, not '%s'\n" % seconds))

    def test_a_folder_that_cannot_be_made_is_told_in_a_line(self):
        file = os.path.join(self.root, "file")
        open(file, "w").close()
        for command, folder in (("check", file), ("check", file + "/out"), ("build", file + "/out")):
            code, text, _ = self.gpu_check(command, folder)
            self.assertEqual(code, 1, text)
            self.assertRegex(text, "^gpu_check: cannot write to the folder %s: [^\n]+\n$" % folder)

    def test_programs_are_unpacked(self):
        with tarfile.open(os.path.join(self.bundle, "programs.tar.xz"), "w:xz") as archive:
            for name in PROGRAMS:
                archive.add(os.path.join(self.bundle, name), name)
                os.remove(os.path.join(self.bundle, name))
        code, text, _ = self.gpu_check("check", self.out)
        self.assertEqual(code, 0, text)

    def test_a_bundle_that_is_not_whole_is_told_in_a_line(self):
        path = os.path.join(self.bundle, "programs.tar.xz")
        with tarfile.open(path, "w:xz") as archive:
            for name in PROGRAMS:
                archive.add(os.path.join(self.bundle, name), name)
        os.remove(os.path.join(self.bundle, "pretrain_gpt"))
        with open(path, "rb") as file:
            whole = file.read()
        for part in (b"", whole[:len(whole) // 2], b"\0" * 1000, whole[:-400] + b"\0" * 400):
            with open(path, "wb") as file:
                file.write(part)
            code, text, _ = self.gpu_check("check", self.out)
            self.assertEqual(code, 1, text)
            self.assertRegex(text, "^gpu_check: %s is not whole: [^\n]+; copy it again\n$" % path)
        with open(path, "wb") as file:
            file.write(whole)
        os.mkdir(os.path.join(self.bundle, "pretrain_gpt"))
        os.utime(os.path.join(self.bundle, "pretrain_gpt"), (0, 0))
        code, text, _ = self.gpu_check("check", self.out)
        self.assertEqual(code, 1, text)
        self.assertRegex(text, "^gpu_check: cannot unpack %s: Is a directory; [^\n]+\n$" % path)

    def test_a_build_that_fails_is_told_in_a_line(self):
        packed = os.path.join(self.root, "packed")
        code, text, _ = self.gpu_check("build", packed)
        self.assertEqual((code, text), (1, "gpu_check: cannot build: No such file or directory: %s\n" % os.path.join(
            self.root, "bazelw")))
        self.stub(os.path.join(self.root, "bazelw"))
        code, text, _ = self.gpu_check("build", packed, does={"bazelw": "does not build"})
        self.assertEqual((code, text), (1, "ERROR: //megatron/train:pretrain_gpt\ngpu_check: %s build failed with exit "
                                        "code 37\n" % os.path.join(self.root, "bazelw")))
        code, text, _ = self.gpu_check("build", packed, does={"bazelw": "does not ask"})
        self.assertEqual((code, text), (1, "gpu_check: %s query failed with exit code 7\nERROR: no workspace\n" %
                                        os.path.join(self.root, "bazelw")))
        self.assertEqual(os.listdir(packed), [])

    def test_results_that_cannot_be_written_are_told_in_a_line(self):
        os.mkdir(self.out)
        open(os.path.join(self.out, "check"), "w").close()
        os.mkdir(os.path.join(self.out, "time.jsonl"))
        os.mkdir(os.path.join(self.out, "other"))
        os.mkdir(os.path.join(self.out, "other", ".gpu_check.lock"))
        for part, path in (("check", "check"), ("time", "time.jsonl"), ("check", "other/.gpu_check.lock")):
            code, text, _ = self.gpu_check(part, os.path.join(self.out, *path.split("/")[:-1]))
            self.assertEqual(code, 1, text)
            self.assertRegex(text, "^gpu_check: cannot write to %s: [^\n]+\n$" % os.path.join(self.out, path))

    def test_a_bundle_holds_all_programs_and_some_tests_once_more_to_watch_barriers(self):
        self.stub(os.path.join(self.root, "bazelw"))
        self.stub(os.path.join(self.bin, "strip"))
        os.makedirs(os.path.join(self.root, "tools", "interop"))
        os.symlink(HERE, os.path.join(self.root, "tools", "gpu"))
        for path in ("tools/gpu_check", "tools/interop/pytorch_gpu_speed.py"):
            open(os.path.join(self.root, path), "w").close()
        packed = os.path.join(self.root, "packed")
        code, text, _ = self.gpu_check("build", packed)
        self.assertEqual(code, 0, text)
        with tarfile.open(os.path.join(packed, "programs.tar.xz")) as archive:
            flags = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
        common = "--config=cuda --define=cuda_archs=sm_90a"
        for name in PROGRAMS:
            self.assertEqual(flags[name], common)
        self.assertEqual({name: flag for name, flag in flags.items() if name not in PROGRAMS},
                         {name: common + " --define=watch_barriers=1" for name in
                          ("tiles_device_test_watched", "attention_test_watched")})
        self.assertIn("guard.py", os.listdir(os.path.join(packed, "gpu")))

    def test_what_there_is_no_time_for_is_named_and_done_later(self):
        # The first programs pass, one lasts longer than there is time for.
        code, text, rows = self.gpu_check("check", self.out, seconds=24, does={"layer_norm_test": "sleeps"})
        self.assertEqual(code, 2, text)
        self.assertRegex(text, r"plan: 2 steps, about 10 of 24 s\nleft out .*: smoke one_product \(10 s\), ")
        self.assertIn("NOT RUN: test layer_norm_test: 2 tests were not run: no time", text)
        self.assertRegex(text, "LEFT OUT: .*, test trace_test, .*, memcheck kernels_test, ")
        self.assertRegex(self.row(rows, "test", "kernels_test")["why"], "it takes about 40 s; of 2[0-9] s that were")
        self.assertEqual(self.row(rows, "test", "tiles_device_test")["verdict"], "passed")
        code, text, rows = self.gpu_check("check", self.out, "rest")
        self.assertEqual(code, 0, text)
        self.assertFalse(any(call[0] == "tiles_device_test" and "--gtest_list_tests" in call for call in self.calls))
        for name in TESTS:
            self.assertEqual(self.row(rows, "test", name)["verdict"], "passed")

    # check

    def test_check_passes_and_prints_each_row(self):
        self.stub(os.path.join(self.bundle, "another_test"))
        code, text, rows = self.gpu_check("check", self.out)
        self.assertEqual(code, 0, text)
        for name in (*TESTS, "another_test"):
            self.assertEqual(self.row(rows, "test", name)["verdict"], "passed")
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            self.assertEqual(self.row(rows, tool, "kernels_test")["verdict"], "passed")
        self.assertEqual(self.row(rows, "kernel", "BM_Gelu/manual_time")["microseconds"], 80)
        self.assertEqual(self.row(rows, "kernel", "BM_Slow")["microseconds"], 2500)
        self.assertRegex(text, r"\| BM_Gelu +\| +80.0 \| +3600 GB/s \| 87.0 % \| 85.0 % \| +met \|")
        self.assertRegex(text, r"\| BM_Slow +\| +2500.0 \| +\| 40.0 % \| 75.0 % \| MISSED \|")
        self.assertRegex(text, r"\| BM_Other +\| +0.9 \| +\| +\| +\| +\| +bits 7 \|")
        self.assertIn("Furthest from what is asked of them: BM_Slow (40.0 %)", text)
        self.assertIn("Attention, heads of 64: 96.9 % of cuDNN's rate, asked are 90.0 %: met", text)
        self.assertIn("targets: 2 met, 1 missed", text)
        self.assertIn("NVIDIA H200, driver 580.65.06", text)

    def test_check_writes_the_planners_figures(self):
        code, text, _ = self.gpu_check("check", self.out)
        self.assertEqual(code, 0, text)
        self.assertIn("system.hardware_file=%s has" % os.path.join(self.out, "hardware.textproto"), text)
        with open(os.path.join(self.out, "kernels.csv")) as file:
            kernels = [line.strip().split(",") for line in file][1:]
        self.assertEqual([kernel[:6] for kernel in kernels],
                         [["NVIDIA H200", "product", "forward", "16384", "1024", "1024"],
                          ["NVIDIA H200", "attention", "forward", "2048", "16", "64"],
                          ["NVIDIA H200", "attention", "input_gradient", "2048", "16", "64"]])
        # 500 TFLOP/s of 989.4; and of the fastest attention whose bits are those of training, in 1 and 2 ms.
        shares = [float(kernel[6]) for kernel in kernels]
        work = 4 * 16384 * 1024 * 2048 / 989.4e12
        for share, expected in zip(shares, (500 / 989.4, work / 1e-3, 2.5 * work / 2e-3)):
            self.assertAlmostEqual(share, expected, 5)
        with open(os.path.join(self.out, "hardware.textproto")) as file:
            hardware = file.read()
        for line in ('name: "NVIDIA H200"', "memory_gib: 140.401", "network_gb_per_s: 50", "measured_efficiency: 1",
                     "product_efficiency: %.6g" % (500 / 989.4), "memory_efficiency: 0.75"):
            self.assertIn("\n  %s\n" % line, hardware)
        for guess, is_guess in (("product_efficiency", False), ("memory_efficiency", False), ("link_efficiency", True),
                                ("measured_efficiency", True)):
            self.assertEqual('guess: "%s"' % guess in hardware, is_guess)

    def test_links_of_several_gpus_are_among_the_planners_figures(self):
        self.gpu_check("check", self.out)
        code, text, _ = self.gpu_check("time", self.out, does={"gpus": 2})
        self.assertEqual(code, 0, text)
        with open(os.path.join(self.out, "hardware.textproto")) as file:
            hardware = file.read()
        # 360 of 450 GB/s.
        self.assertIn("\n  link_efficiency: 0.8\n", hardware)
        self.assertNotIn('guess: "link_efficiency"', hardware)

    def test_without_measurements_there_are_no_figures_for_the_planner(self):
        _, text, _ = self.gpu_check("check", self.out, "smoke")
        self.assertNotIn("hardware_file", text)
        self.assertFalse(os.path.exists(os.path.join(self.out, "hardware.textproto")))

    def test_tests_that_did_not_test_have_failed(self):
        broken = {"trace_test": ("skips", "1 tests were skipped: Suite.Works"),
                  "comm_stream_test": ("is empty", "no test ran"),
                  "kernels_test": ("fails", "1 tests failed: Suite.Works"),
                  "layer_norm_test": ("crashes", "killed by signal 11"),
                  "nccl_device_test": ("reports nothing", "no report")}
        expected = [("test", name, why) for name, (_, why) in broken.items()]
        expected += [("memcheck", name, broken[name][1])
                     for name in ("kernels_test", "layer_norm_test", "comm_stream_test")]
        os.remove(os.path.join(self.bundle, "large_tensors_test"))
        expected.append(("test", "large_tensors_test", "does not start"))
        does = {name: does for name, (does, _) in broken.items()}
        self.expect_failures("check", ["test", "memcheck"], does, expected)

    def test_benchmarks_that_did_not_measure_have_failed(self):
        groups = ("attention", "products", "memory", "gemm_plans")
        for does, why, failing in (("skips", "1 rows did not run: BM_Gelu/manual_time: no GPU", ("memory",)),
                                   ("is empty", "no rows", groups), ("crashes late", "killed by signal 6", groups)):
            self.expect_failures("check", ["benchmark"], {"kernels_benchmark": does},
                                 [("benchmark", group, why) for group in failing])

    def test_the_sanitizer_must_be_there_and_find_nothing(self):
        sanitized = [(tool, name) for tool in ("memcheck", "initcheck")
                     for name in ("kernels_test", "layer_norm_test", "float8_kernels_test", "moe_kernels_test",
                                  "recurrence_kernels_test", "comm_stream_test")]
        sanitized.append(("memcheck", "attention_test"))
        for does, why in (("finds", "no errors"), ("silent", "no report")):
            self.expect_failures("check", ["memcheck", "initcheck"], {"compute-sanitizer": does},
                                 [(*step, why) for step in sanitized])
        os.remove(os.path.join(self.bin, "compute-sanitizer"))
        self.expect_failures("check", ["memcheck", "initcheck"], {},
                             [(*step, "compute-sanitizer is not here") for step in sanitized])

    def test_training_must_follow_the_cpu(self):
        for does, why in (("loses its loss", "finite losses of"), ("crashes after 3 steps", "killed by signal 11"),
                          ("stops after 3 steps", "3 finite losses")):
            self.expect_failures("check", ["training"], {"pretrain_gpt": {"gpt_demo": does}},
                                 [("training", name, why) for name in
                                  ("fp32_as_on_the_cpu", "bf16_as_on_the_cpu", "fp8_as_on_the_cpu",
                                   "fused_gelu_as_on_the_cpu", "separate_gelu_as_on_the_cpu",
                                   "graphs_change_nothing")])
        why = "losses differ by 0.1"
        self.expect_failures("check", ["training"], {"pretrain_gpt": {"gpt_demo": "differs from the CPU"}},
                             [("training", name + "_as_on_the_cpu", why) for name in
                              ("fp32", "bf16", "fp8", "fused_gelu", "separate_gelu")])

    def test_graphs_must_change_no_loss(self):
        self.expect_failures("check", ["training"], {"pretrain_gpt": {"gpt_demo": "differs with graphs"}},
                             [("training", "graphs_change_nothing", "losses with graphs differ")])

    # What goes wrong while it runs, and what is kept of it.

    def test_a_test_that_hangs_or_aborts_leaves_the_others_and_is_looked_into(self):
        self.stub(os.path.join(self.bundle, "attention_test_watched"))
        does = {"attention_test": "sleeps", "attention_test_watched": "waits for a barrier", "kernels_test": "aborts",
                "layer_norm_test": "sleeps", "compute-sanitizer": "finds"}
        text, rows = self.expect_failures("check", ["test", "--test-seconds=2"], does, [
            ("test", "attention_test", "1 tests failed: Suite.Works: not done after 2 s, in test Suite.Works"),
            ("test", "layer_norm_test", "1 tests failed: Suite.Works: not done after 2 s, in test Suite.Works"),
            ("test", "kernels_test", "Suite.Works: killed by signal 6, no report of what was tested: F1122 00:00 "
             "attention.cu:7] Check failed: error == cudaSuccess attention: an illegal memory access")])
        for name in ("attention_test", "kernels_test", "layer_norm_test"):
            self.assertEqual(self.row(rows, "test", name)["tests"], 1)  # the other one passed
        said = {(row["of"][1], row["by"]): row["text"] for row in rows if row["what"] == "explanation"}
        self.assertEqual(said, {
            ("layer_norm_test", "CUDA_LAUNCH_BLOCKING=1"): "not done after 2 s, in test Suite.Works",
            ("attention_test", "watched barriers"): "block (3, 1, 0), warp 4 waits for the barrier at 0x428, phase 1",
            ("kernels_test", "CUDA_LAUNCH_BLOCKING=1"):
                "killed by signal 6: F1122 00:00 attention.cu:7] Check failed: error == cudaSuccess attention: an "
                "illegal memory access",
            ("kernels_test", "memcheck"):
                "Invalid __global__ read of size 4 bytes at Forward(Maps)+0x130 in attention_forward.cu:219 by thread "
                "(0,0,0) in block (3,0,0) ERROR SUMMARY: 1 errors"})
        self.assertIn("\n  Suite.Works, memcheck: Invalid __global__ read", text[text.index("FAILED: test kernels"):])
        with open(os.path.join(self.out, "check", "kernels_test.log")) as log:
            said_first = log.read()
        self.assertIn("[       OK ] Of/Suite.Counts/0", said_first)
        dump = "dump in %s/check/kernels_test.%%p.cudacore without skip_nonrelocated_elf_images," % self.out
        self.assertIn("blocking None, " + dump, said_first)
        again, = [row["log"] for row in rows if row["what"] == "explanation" and row["of"][1] == "kernels_test" and
                  row["by"].startswith("CUDA")]
        with open(os.path.join(self.out, "check", again)) as log:
            self.assertIn("blocking 1, " + dump, log.read())

    def test_what_the_gpu_does_is_asked_before_a_hanging_program_is_killed(self):
        does = {"moe_kernels_test": "hangs on the GPU", "layer_norm_test": "sleeps"}
        self.stub(os.path.join(self.bin, "cuda-gdb"))
        _, rows = self.expect_failures("check", ["test", "--test-seconds=2"], does, [
            ("test", name, "Suite.Works: not done after 2 s") for name in ("moe_kernels_test", "layer_norm_test")])
        said = {row["of"][1]: row["text"] for row in rows if row["what"] == "explanation" and row["by"] == "cuda-gdb"}
        self.assertEqual(said, {"moe_kernels_test":
                                "Kernel Parent Dev Grid Status Name * 0 - 0 7 Active Forward(Maps)"})
        with tarfile.open(os.path.join(self.out, "check.tar.gz")) as archive:
            names = archive.getnames()
        self.assertTrue(any(name.endswith(".cudacore") for name in names), names)
        self.assertFalse(any(name.endswith(".pipe") for name in names), names)

    def test_a_program_whose_tests_all_hang_is_given_up(self):
        does = {"float8_kernels_test": "always sleeps", "compute_mode": "Exclusive_Process"}
        self.expect_failures("check", ["test", "--test-seconds=1"], does, [
            ("test", "float8_kernels_test", "2 tests failed: Suite.Works: not done after 1 s, in test Suite.Works; "
             "Of/Suite.Counts/0: not done after 1 s, in test Of/Suite.Counts/0; 1 tests were not run: others hung")])

    def test_a_wrong_number_is_told_with_its_place_and_looked_into(self):
        text, rows = self.expect_failures("check", ["test"], {"kernels_test": "fails"}, [
            ("test", "kernels_test", "Suite.Works: kernels_test.cc:40 element 17 is 3, not 2.5: off by 0.5 and more")])
        why = self.row(rows, "test", "kernels_test")["failures"]["Suite.Works"]
        self.assertTrue(why.endswith(" ... (and 1 more)"), why)
        self.assertLess(len(why), 620)
        said = {row["by"]: row["text"] for row in rows if row["what"] == "explanation"}
        self.assertEqual(said, {"CUDA_LAUNCH_BLOCKING=1": "exit code 1: [ OK ] Suite.Works",
                                "memcheck": "it finds nothing"})
        self.assertIn("\n  Suite.Works, memcheck: it finds nothing", text)

    def test_second_looks_come_behind_what_is_worth_more_and_say_what_they_do(self):
        does = {"tiles_device_test": "fails", "compute-sanitizer": "says nothing",
                "pretrain_gpt": {"gpt_demo": "crashes after 3 steps"}}
        code, text, rows = self.gpu_check("check", self.out, "test", "benchmark", "training", does=does)
        self.assertEqual(code, 1, text)
        order = [text.index(words) for words in (
            "passed   benchmark memory", "passed   test trace_test",
            "again    tiles_device_test Suite.Works, memcheck: at most 60 s\n         it says nothing; exit code 0: ",
            "failed   training fp32", "failed   training graphs",
            "again    fp32_as_on_the_cpu pretrain_gpt, CUDA_LAUNCH")]
        self.assertEqual(order, sorted(order), text)
        # Five of the six failures of training are looked at.
        self.assertIn("no second look at graphs_change_nothing pretrain_gpt: 6 others were looked at\n", text)

    def test_second_looks_that_there_is_no_time_for_are_named(self):
        code, text, _ = self.gpu_check("check", self.out, "test", seconds=19, does={"tiles_device_test": "crashes"})
        self.assertEqual(code, 1, text)
        self.assertIn("no second look at tiles_device_test Suite.Works: no time for it now\n", text)

    def test_each_test_has_a_process_of_its_own(self):
        for mode in ("Default", "Exclusive_Process"):
            code, text, _ = self.gpu_check("check", self.out, "test", does={"compute_mode": mode})
            self.assertEqual(code, 0, text)
            filters = [call[1] for call in self.calls if call[0] == "kernels_test" and len(call) == 3]
            self.assertEqual(sorted(filters), ["--gtest_filter=Of/Suite.Counts/0", "--gtest_filter=Suite.Works"])

    def test_rows_that_were_measured_outlast_a_crash_a_hang_and_a_kill(self):
        for does, why in (("crashes", "killed by signal 6: F1122 Check failed"),
                          ("hangs", "said nothing for 2 s, last it said: F1122 Check failed"),
                          ("is cut off", "killed by signal 9")):
            _, rows = self.expect_failures("check", ["benchmark", "--test-seconds=2"], {"kernels_benchmark": does}, [
                ("benchmark", "memory", "1 rows did not run: BM_Slow: " + why)])
            # One before and one behind it.
            self.assertEqual([row["name"] for row in rows if row["what"] == "kernel" and row["group"] == "memory"],
                             ["BM_Gelu/manual_time", "BM_Other"])
            self.assertEqual(self.row(rows, "benchmark", "memory")["rows"], 2)

    def test_rest_keeps_the_rows_of_the_groups_that_passed(self):
        self.gpu_check("check", self.out, "benchmark", does={"kernels_benchmark": "crashes"})
        code, text, rows = self.gpu_check("check", self.out, "rest")
        self.assertEqual(code, 0, text)
        names = [row["name"] for row in rows if row["what"] == "kernel"]
        self.assertEqual(len(names), 13)
        self.assertEqual(len(set(names)), 13)
        code, text, rows = self.gpu_check("check", self.out, "smoke")
        self.assertEqual([row["name"] for row in rows if row["what"] == "kernel"], names)

    def test_what_nobody_foresaw_fails_its_step_and_no_other(self):
        groups = ("attention", "products", "memory", "gemm_plans")
        for does, why in (("reports no rows", "TypeError: 'int' object is not subscriptable (kernels.py, line "),
                          ("reports no text", "killed by signal 9"), ("reports no time", "its report has no time")):
            text, _ = self.expect_failures("check", ["benchmark", "synccheck"], {"kernels_benchmark": does}, [
                ("benchmark", group, why) for group in groups])
            self.assertIn("passed   synccheck attention_test", text)
            self.assertNotIn("Traceback", text)
            self.assertRegex(text, "check on .*: 7 passed, 4 failed")
            with open(os.path.join(self.out, "check.md")) as file:
                self.assertIn("FAILED: benchmark memory: ", file.read())
            self.assertTrue(os.path.exists(os.path.join(self.out, "check.tar.gz")))
            os.remove(os.path.join(self.out, "check.tar.gz"))
        os.remove(os.path.join(self.bundle, "gpu", "plan_facts.textproto"))
        text, _ = self.expect_failures("check", ["benchmark"], {}, [
            ("result", "hardware.textproto", "No such file or directory")])
        self.assertRegex(text, r"\| BM_Gelu +\|")

    def test_a_test_that_prints_without_end_fills_no_disk(self):
        does = {"kernels_test": "prints without end", "compute-sanitizer": "silent"}
        why = "killed by signal 6, no report of what was tested: attention.cu:7] Check failed: the reason, said first"
        self.expect_failures("check", ["test"], does, [("test", "kernels_test", why)])
        with open(os.path.join(self.out, "check", "kernels_test.log")) as log:
            text = log.read()
        self.assertLess(len(text), 9 << 20)
        for part in ("Check failed: the reason", "what stood here is left out, for the size of this log",
                     "\nthe end\n"):
            self.assertTrue(part in text, part)

    def test_a_full_disk_hides_no_failure(self):
        # A file can have 100 KiB.
        code, text, rows = self.gpu_check("check", self.out, "test", before="ulimit -f 100", does={
            "kernels_test": "prints without end", "full": True, "compute-sanitizer": "silent"})
        self.assertEqual(code, 1, text)
        self.assertNotIn("Traceback", text)
        row = self.row(rows, "test", "kernels_test")
        self.assertIn("Suite.Works: killed by signal 6", row["why"])
        self.assertEqual(row["log_is_not_whole"], "File too large")
        self.assertRegex(text, "check on .*: 11 passed, 1 failed")
        self.assertIn("check.tar.gz", os.listdir(self.out))

    def test_rows_that_the_disk_has_no_room_for_are_told_nonetheless(self):
        # A file can have 1 KiB.
        code, text, _ = self.gpu_check("check", self.out, "test", before="ulimit -f 1", STUB_CALLS=os.devnull)
        self.assertEqual(code, 1, text)
        self.assertNotIn("Traceback", text)
        self.assertIn("check on ", text)
        self.assertIn("cannot write %s: File too large\n" % os.path.join(self.out, "check.tar.gz"), text)
        self.assertIn("FAILED: %s lacks rows: File too large\n" % os.path.join(self.out, "check.jsonl"), text)

    def test_a_gpu_that_is_lost_between_the_parts_is_told(self):
        code, text, _ = self.gpu_check("run", self.out, does={"nvidia-smi": "is lost in training"})
        self.assertEqual(code, 1, text)
        self.assertNotIn("Traceback", text)
        self.assertTrue(text.endswith("the GPU is gone: nvidia-smi says: Unable to determine the device handle for "
                                      "GPU0: Unknown Error; time was not run\n"), text)

    def test_a_gpu_without_memory_of_its_own_is_timed(self):
        does = {"memory": "[N/A]"}
        code, text, rows = self.gpu_check("time", self.out, "training", does=does)
        self.assertEqual(code, 0, text)
        self.assertEqual(self.row(rows, "training", "llama_1500m.16")["verdict"], "passed")
        code, text, _ = self.gpu_check("check", self.out, "benchmark", does=does)
        self.assertEqual(code, 0, text)

    def test_the_order_of_attentions_kernels_is_written_as_the_trainer_reads_it(self):
        code, text, _ = self.gpu_check("check", self.out, "test", "benchmark")
        self.assertEqual(code, 0, text)
        path = os.path.join(self.out, "attention_plans.textproto")
        self.assertIn("--set=system.attention_plan_file=" + path, text)
        with open(path) as written, open(ATTENTION_PLANS) as read:
            self.assertEqual(written.read(), read.read())

    def kernels_csv_passes(self, kind):
        with open(os.path.join(self.out, "kernels.csv")) as file:
            kernels = [line.split(",") for line in file]
        return [kernel[2] for kernel in kernels if kernel[1] == kind]

    def attention_backends(self):
        path = os.path.join(self.out, "attention_plans.textproto")
        if not os.path.exists(path):
            return []
        with open(path) as written:
            return re.findall("backend: ([a-z]+)", written.read())

    def test_kernels_of_attention_whose_tests_did_not_pass_are_not_in_the_order(self):
        code, text, _ = self.gpu_check("check", self.out, "benchmark")
        self.assertEqual((code, self.attention_backends()), (0, []), text)
        self.assertEqual(self.kernels_csv_passes("attention"), [])
        self.assertEqual(self.kernels_csv_passes("product"), ["forward"])
        for backend, program in (("flash", "tiles_device_test"), ("fused", "kernels_test"), ("local", "kernels_test")):
            self.assertIn("attention_plans.textproto lacks %s: %s has not run.\n" % (backend, program), text)
        for does, backends in (({"attention_test": "skips", "kernels_test": "fails at each of many"}, ["local"]),
                               ({"attention_test": "fails", "kernels_test": "fails"}, ["fused", "local"])):
            _, text, _ = self.gpu_check("check", self.out, "test", does=does)
            self.assertEqual(self.attention_backends(), backends, text)
            self.assertIn("lacks flash: attention_test failed", text)
        # What failed stays failed until it is done again.
        code, text, _ = self.gpu_check("check", self.out, "smoke")
        self.assertEqual((code, self.attention_backends()), (1, ["fused", "local"]), text)
        self.assertIn("FAILED: test attention_test", text)
        self.assertIn("Suite.Works, memcheck: ", text)
        code, text, _ = self.gpu_check("check", self.out, "rest")
        self.assertEqual((code, self.attention_backends()), (0, ["fused", "flash", "local"]), text)
        self.assertEqual(self.kernels_csv_passes("attention"), ["forward", "input_gradient"])

    def test_a_library_that_is_missing_is_named_first(self):
        self.expect_failures("check", ["smoke"], {"ldd": "pretrain_gpt"}, [
            ("smoke", "libraries", "libnccl.so.2 => not found (pretrain_gpt)")])
        self.expect_failures("check", ["smoke"], {"kernels_benchmark": "crashes late", "pretrain_gpt": {
            "gpt_demo": "loses its loss"}}, [("smoke", "one_product", "killed by signal 6")])
        self.expect_failures("check", ["smoke"], {"pretrain_gpt": {"gpt_demo": "learns two steps"}}, [
            ("smoke", "three_steps", "2 finite losses of 3")])

    def test_pythons_libraries_stand_behind_the_toolkits_and_pytorch_keeps_its_own(self):
        python = os.path.join(self.root, "python")
        self.stub(python)
        packages = os.path.join(self.root, "nvidia", "cudnn", "lib")
        os.makedirs(packages)
        os.mkdir(os.path.join(self.root, "lib64"))
        seen = os.path.join(self.root, "seen")
        self.gpu_check("check", self.out, "smoke", PYTHON=python, LD_LIBRARY_PATH="/mine", STUB_SEES=seen,
                       does={"python": packages})
        with open(seen) as file:
            self.assertIn("pretrain_gpt /mine:%s/lib64:%s\n" % (self.root, packages), file.read())
        os.remove(seen)
        self.gpu_check("time", self.out, "pytorch", LD_LIBRARY_PATH="/mine", STUB_SEES=seen)
        with open(seen) as file:
            self.assertIn("pytorch_gpu_speed.py /mine\n", file.read())

    def test_what_ncu_sees_is_told_where_it_may_look(self):
        code, text, rows = self.gpu_check("check", self.out, "ncu")
        self.assertEqual((code, self.row(rows, "ncu", "deciding_kernels")["verdict"]), (0, "left out"), text)
        self.stub(os.path.join(self.bin, "ncu"))
        code, text, _ = self.gpu_check("check", self.out, "ncu")
        self.assertEqual(code, 0, text)
        self.assertIn("ncu norm_backward: Duration 41.02 us, Memory Throughput 71.20 %", text)
        skipped = {call[call.index("--kernel-name") + 1]: call[call.index("--launch-skip") + 1]
                   for call in self.calls if call[0] == "ncu"}
        # Two conversions of BM_Gelu's operands and its first run.
        self.assertEqual((skipped["MapVectors"], skipped["SumRows"]), ("3", "1"))
        code, text, rows = self.gpu_check("check", self.out, "ncu", does={"ncu": "may not"})
        self.assertEqual((code, self.row(rows, "ncu", "deciding_kernels")["verdict"]), (0, "left out"), text)
        self.expect_failures("check", ["ncu"], {"ncu": "sees nothing"}, [
            ("ncu", "deciding_kernels", "attention_forward: ncu saw no kernel Forward")])
        code = "import kernels; print(*(name for _, name, *_ in kernels.DECIDING))"
        named = subprocess.run([sys.executable, "-c", code],
                               cwd=HERE, check=True, capture_output=True, text=True).stdout.split()
        self.assertEqual(len(named), 6)
        sources = ""
        for folder, _, files in os.walk(os.path.join(os.path.dirname(TOOLS), "megatron", "ops", "cuda")):
            for file in files:
                if file.endswith(".cu"):
                    with open(os.path.join(folder, file)) as source:
                        sources += source.read()
        for name in named:
            self.assertRegex(sources, r"__global__ void( __launch_bounds__\([^{;]*?\))?\s+%s\(" % name)

    def test_all_results_are_also_in_one_file(self):
        self.gpu_check("check", self.out, "smoke", "test")
        lock = ".gpu_check.lock"
        self.assertEqual(sorted(os.listdir(self.out)), [lock, "check", "check.jsonl", "check.md", "check.tar.gz"])
        self.gpu_check("check", self.out, "smoke", "test", "benchmark", does={"kernels_test": "fails"})
        written = ["check", "check.jsonl", "check.md", "check.tar.gz", "attention_plans.textproto",
                   "hardware.textproto", "kernels.csv"]
        self.assertEqual(sorted(os.listdir(self.out)), sorted([lock, *written]))

        def archived():
            with tarfile.open(os.path.join(self.out, "check.tar.gz")) as archive:
                return archive.getnames()

        for name in (*written[1:3], *written[4:], "check/kernels_test.log", "check/ldd.log",
                     "check/again_kernels_test_memcheck_1.log"):
            self.assertIn(name, archived())
        os.symlink("nowhere", os.path.join(self.out, "check", "link"))
        self.gpu_check("check", self.out, "smoke", "test")
        self.assertIn("check/kernels_test.log", archived())
        self.assertNotIn("check/again_kernels_test_memcheck_1.log", archived())

    def start_and_wait_for_a_sleeper(self, **options):
        """A check whose layer_norm_test sleeps; returns it, and the process that sleeps."""
        pids = os.path.join(self.root, "pids")
        process, calls = self.start("check", self.out, "test", does={"layer_norm_test": "sleeps"}, STUB_PIDS=pids,
                                    **options)
        if process.stdout:
            self.addCleanup(process.stdout.close)
        for _ in range(600):
            if os.path.exists(pids):
                with open(pids) as file:
                    found = file.read().split()
                if found:
                    return process, int(found[0]), calls
            time.sleep(0.1)
        self.fail("nothing sleeps")

    def expect_end_of(self, pid):
        for _ in range(100):
            try:
                with open("/proc/%d/stat" % pid) as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":  # dead, and nobody has asked for its code
                        return
            except FileNotFoundError:
                return
            time.sleep(0.1)
        self.fail("process %d still runs" % pid)

    def test_who_ends_it_gets_what_there_is_and_no_program_stays_behind(self):
        for ending in (signal.SIGTERM, signal.SIGINT):
            process, sleeper, calls = self.start_and_wait_for_a_sleeper()
            process.send_signal(ending)
            text, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + ending, text)
            self.expect_end_of(sleeper)
            rows, = self.results(("check", self.out), calls)
            self.assertEqual(self.row(rows, "test", "kernels_test")["verdict"], "passed")
            self.assertEqual(self.row(rows, "test", "layer_norm_test")["verdict"], "not run")
            self.assertIn("stopped by " + ending.name, text)
            with tarfile.open(os.path.join(self.out, "check.tar.gz")) as archive:
                self.assertIn("check/kernels_test.log", archive.getnames())
            os.remove(os.path.join(self.root, "pids"))

    def test_a_signal_before_there_is_something_to_tell_ends_it_quietly(self):
        for arguments in (["check", self.out], ["run", self.out], []):
            code, text, _ = self.gpu_check(*arguments, does={"nvidia-smi": "is interrupted"})
            self.assertEqual((code, text), (128 + signal.SIGINT, ""))

    def test_a_program_that_begins_while_all_are_killed_is_killed_too(self):
        code = ("import os, sys, processes\n"
                "those = processes.Processes()\n"
                "those.kill_all()\n"
                "with open(sys.argv[1], 'a') as log:\n"
                "    print(those.run(['sleep', '600'], log, os.environ, 600))\n"
                "those.close()")
        done = subprocess.run([sys.executable, "-B", "-c", code, os.path.join(self.root, "log")], cwd=HERE, check=True,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout, "-9\n")

    def test_a_second_one_in_the_same_folder_is_refused(self):
        process, _, _ = self.start_and_wait_for_a_sleeper()
        code, text, _ = self.gpu_check("time", self.out)
        self.assertEqual(code, 1, text)
        self.assertEqual(text, "gpu_check: another one writes to %s: wait for its end, or name another folder\n" %
                         self.out)
        self.assertEqual({call[0] for call in self.calls if call[0] != "layer_norm_test"}, {"nvidia-smi"})
        process.send_signal(signal.SIGKILL)  # what is left of it locks nothing
        process.wait()
        code, text, _ = self.gpu_check("check", self.out, "test")
        self.assertEqual(code, 0, text)

    def test_a_reader_that_leaves_ends_nothing(self):
        process, _ = self.start("check", self.out, "test", does={"trace_test": "crashes"})
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(), 1)
        with open(os.path.join(self.out, "check.md")) as file:
            self.assertRegex(file.read(), "FAILED: test trace_test: [^$]*\ncheck on .*: 11 passed, 1 failed")
        self.assertTrue(os.path.exists(os.path.join(self.out, "check.tar.gz")))

    def test_a_terminal_that_is_closed_stops_it_as_a_signal_does(self):
        primary, terminal = pty.openpty()
        process, sleeper, calls = self.start_and_wait_for_a_sleeper(stdout=terminal, stderr=terminal)
        os.close(terminal)
        os.close(primary)
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(), 128 + signal.SIGHUP)
        self.expect_end_of(sleeper)
        with open(os.path.join(self.out, "check.md")) as file:
            self.assertIn("stopped by SIGHUP", file.read())
        self.assertTrue(os.path.exists(os.path.join(self.out, "check.tar.gz")))

    def test_under_nohup_it_goes_on_without_a_terminal(self):
        process, sleeper, _ = self.start_and_wait_for_a_sleeper(before="trap '' HUP")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, text)
        self.assertIn("stopped by SIGTERM", text)
        self.expect_end_of(sleeper)

    def test_what_programs_print_commands_no_terminal(self):
        text, _ = self.expect_failures("check", ["test"], {"trace_test": "dies colourfully"}, [
            ("test", "trace_test", "error: \x1b[31mred")])
        self.assertIn("error: \\x1b[31mred\\x1b]0;title\\x07\\x00 ", text)
        with open(os.path.join(self.out, "check.md")) as file:
            text += file.read()
        self.assertNotRegex(text, "[\x00\x07\x1b]")

    def test_a_kill_that_it_cannot_see_leaves_no_program_behind_either(self):
        process, sleeper, _ = self.start_and_wait_for_a_sleeper()
        process.kill()
        process.wait()
        self.expect_end_of(sleeper)
        with open(os.path.join(self.out, "check.jsonl"), "a") as file:
            file.write('{"what": "te')
        code, text, _ = self.gpu_check("check", self.out, "rest")
        self.assertEqual(code, 0, text)
        self.assertFalse(any(call[0] == "kernels_test" and "--gtest_list_tests" in call for call in self.calls))

    # time

    def test_time_reports_each_shape_beside_pytorch(self):
        code, text, rows = self.gpu_check("time", self.out, does={"watched": True})
        self.assertEqual(code, 0, text)
        ours = self.row(rows, "training", "gpt3_857m.16")
        self.assertEqual((ours["tokens_per_second"], ours["steps"], ours["mfu_causal"]), (200000, 20, 0.48))
        self.assertIn("pretrain_gpt --config=gpt3_857m", ours["command"])
        self.assertEqual(ours["sm_mhz"], 1755)
        # MFU in full: 1.125 times as many FLOPs. 200000 / 160000 = 1.25.
        self.assertRegex(text, r"\| gpt3_857m +\| +355,919,872 \| +16 \| +200000 \| +48.0 % \| 54.0 % \| 190000 "
                         r"\| +100000 \| +160000 \| +1.25 \|")
        self.assertIn("gpt3_857m: tokens/s met, 1.15 x PyTorch compiled met", text)
        self.assertIn("llama_1500m: MFU MISSED", text)
        self.assertIn("llm.c's own figure for an A100 MISSED", text)
        self.assertIn("1755 MHz, memory 3201 MHz, 640 W, 61 °C meanwhile", text)
        self.assertRegex(text, r"3.000 ms +2 times  layer N")
        self.assertNotIn("host", text)

    def test_graphs_are_timed_where_few_samples_leave_the_host_behind(self):
        _, _, rows = self.gpu_check("time", self.out, "training", "option")
        row = self.row(rows, "option", "cuda_graphs_few_samples")
        self.assertEqual((row["batch"], row["speedup"]), (2, 1.0))
        self.assertEqual(self.row(rows, "option", "cuda_graphs")["verdict"], "passed")

    def test_options_alone_are_compared_with_what_there_is_or_else_with_a_run_of_their_own(self):
        code, text, rows = self.gpu_check("time", self.out, "option")
        self.assertEqual((code, self.row(rows, "option", "without_options")["verdict"]), (0, "passed"), text)
        self.assertIn("speedup", self.row(rows, "option", "fused_gelu"))
        self.assertRegex(text, "plan: 8 steps")
        self.assertNotIn("left out", text)
        self.gpu_check("time", self.out, "training")
        code, text, rows = self.gpu_check("time", self.out, "option")
        self.assertEqual(code, 0, text)
        self.assertIn("speedup", self.row(rows, "option", "fused_gelu"))
        self.assertNotIn("without_options", [row["name"] for row in rows])

    def test_options_that_make_training_faster_go_to_the_models_that_take_them(self):
        _, _, rows = self.gpu_check("time", self.out, "training", "option", does={"gelu": "gains"})
        self.assertLess(self.row(rows, "option", "separate_gelu")["speedup"], 1)
        self.assertGreater(self.row(rows, "option", "fused_gelu")["speedup"], 1)

        def gelu_of(name):
            runs = [row["command"].split() for row in rows if row["name"] == name]
            self.assertEqual(len(runs), 1)
            return [option for option in runs[0] if "fuse_gelu" in option]

        self.assertEqual(gelu_of("gpt3_857m.16.with_options"), ["--set=system.fuse_gelu=both"])
        self.assertEqual(gelu_of("gpt_1664.16"), ["--set=system.fuse_gelu=both"])
        self.assertEqual(gelu_of("gpt_1664_in_fp8"), [])
        self.assertEqual(gelu_of("llama_1500m.16"), [])

    def test_timed_runs_read_the_kernels_that_a_run_before_them_chose(self):
        self.gpu_check("time", self.out, "training")
        runs = [call for call in self.calls if call[0] == "pretrain_gpt" and "--config=gpt_1664" in call and
                "--set=train.micro_batch_size=16" in call and "--dry_run" not in call and
                "--set=precision.fp8_format=hybrid" not in call]
        self.assertEqual(["--set=system.time_gemm_kernels=true" in run for run in runs], [True, False])
        plans = [[option for option in run if "gemm_plan_file" in option] for run in runs]
        self.assertEqual(plans[0], plans[1])
        self.assertEqual(len(plans[0]), 1)

    def test_training_that_did_not_train_has_failed_and_is_in_no_table(self):
        does = {"gpt3_857m.16": "crashes after 3 steps", "gpt3_857m.32": "stops after 3 steps",
                "gpt3_857m.8": "learns nothing", "gpt_1664.16": "loses its loss", "gpt_1664.8": "writes no plans"}
        text, _ = self.expect_failures("time", ["training", "option", "profile"], {"pretrain_gpt": does}, [
            ("training", "gpt3_857m.16", "killed by signal 11"), ("training", "gpt3_857m.32", "3 steps in place of 20"),
            ("training", "gpt3_857m.8", "the loss does not fall"), ("profile", "two_steps", "killed by signal 11"),
            ("training", "gpt_1664.16", "the loss of step 7 is not finite"),
            ("training", "gpt_1664_in_fp8", "the loss of step 7 is not finite"),
            ("training", "gpt_1664.8", "wrote no file")])
        self.assertIn("gpt3_857m: not measured", text)
        self.assertIn("LEFT OUT: option attention_by_cudnn, ", text)
        self.assertRegex(text, r"\| gpt_1664 +\| +885,078,272 \| +32 \|")

    def test_out_of_memory_is_told_by_name_beside_the_plan(self):
        text, _ = self.expect_failures("time", ["training"], {"pretrain_gpt": {"gpt_1664.16": "runs out of memory"}}, [
            ("training", "gpt_1664.16", "planned 1.9 GiB: F1122 Check failed: out of memory"),
            ("training", "gpt_1664_in_fp8", "F1122 Check failed: out of memory")])
        self.assertNotIn("stack trace", text)

    def test_batches_that_do_not_fit_are_not_tried(self):
        code, text, rows = self.gpu_check("time", self.out, "training",
                                          does={"pretrain_gpt": {"llama_1500m.16": "does not fit"}})
        self.assertEqual(code, 0, text)
        self.assertEqual(self.row(rows, "training", "llama_1500m.8")["verdict"], "passed")
        self.assertNotIn("llama_1500m.16", [row["name"] for row in rows])

    def test_a_shape_without_a_plan_has_failed(self):
        does = {"gpt_1664": "does not plan", "gpt2_124m": "does not fit"}
        self.expect_failures("time", ["training"], {"pretrain_gpt": does}, [
            ("plan", "gpt_1664", "exit code 20: error: the configuration has an error: train.seed: no"),
            ("plan", "gpt2_124m", "none of")])

    def test_missed_targets_are_counted_and_told(self):
        code, text, _ = self.gpu_check("time", self.out, does={"pretrain_gpt": {"gpt3_857m": "is slow"}})
        self.assertEqual(code, 0, text)
        self.assertIn("gpt3_857m: tokens/s MISSED, 1.15 x PyTorch compiled MISSED", text)

    def test_pytorch_must_be_there_and_measure_the_same_model(self):
        names, peer = ("gpt3_857m", "gpt_1664", "gpt2_124m", "llama_1500m"), "pytorch_gpu_speed.py"
        for does, what, why in (("crashes", "pytorch", "InternalTorchDynamoError: no"),
                                ("does not compile", "pytorch", "no rate for compiled"),
                                ("is another model", "comparison", "not the same model")):
            kinds = ["training", "pytorch"] if what == "comparison" else ["pytorch"]
            text, _ = self.expect_failures("time", kinds, {peer: does}, [(what, name, why) for name in names])
            self.assertNotIn("VERBOSE", text)
        code, text, rows = self.gpu_check("time", self.out, "pytorch", PYTHON=os.path.join(self.root, "no_such_python"))
        self.assertEqual(code, 1, text)
        self.assertIn("does not start", self.row(rows, "pytorch", "llama_1500m")["why"])

    def test_a_profile_without_a_trace_has_failed(self):
        self.expect_failures("time", ["profile"], {"pretrain_gpt": {"gpt3_857m": "has no trace"}},
                             [("profile", "two_steps", "no trace")])

    def test_several_gpus_are_used_together(self):
        code, text, rows = self.gpu_check("time", self.out, "training", "links", does={"gpus": 4})
        self.assertEqual(code, 0, text)
        self.assertEqual(self.row(rows, "training", "a_rank_a_gpu")["gpus"], 4)
        self.assertEqual(self.row(rows, "links", "nccl")["verdict"], "passed")

    # learn

    def test_learn_draws_the_curve(self):
        code, text, rows = self.gpu_check("learn", self.out)
        self.assertEqual(code, 0, text)
        self.assertEqual(self.row(rows, "training", "stories")["steps"], 60)
        self.assertIn("960 samples", text)
        self.assertTrue(os.path.exists(os.path.join(self.out, "learn.svg")))
        self.assertIn("plan: 2 steps, about 542 of 600 s", text)
        # It draws no curve of an earlier call.
        code, text, _ = self.gpu_check("learn", self.out, seconds=30)
        self.assertEqual(code, 2, text)
        self.assertIn("LEFT OUT: training stories, picture learn.svg\n", text)
        self.assertFalse(os.path.exists(os.path.join(self.out, "learn.svg")))

    def test_learning_must_last_and_lower_the_loss(self):
        for does, why in (("learns nothing", "the loss fell only"), ("stops after 3 steps", "only 3 steps"),
                          ("crashes after 3 steps", "killed by signal 11"), ("loses its loss", "not finite")):
            self.expect_failures("learn", ["training"], {"pretrain_gpt": {"gpt3_857m": does}},
                                 [("training", "stories", why)])


def run(case):
    result = unittest.TestResult()
    case.run(result)
    print("%s %s" % ("ok    " if result.wasSuccessful() else "FAILED", case.id()), flush=True)
    return result


if __name__ == "__main__":
    # The cases share nothing, and most of their time they wait: for a limit, or for a process to end.
    cases = [case for case in unittest.defaultTestLoader.loadTestsFromTestCase(GpuCheckTest)
             if len(sys.argv) == 1 or case.id().split(".")[-1] in sys.argv[1:]]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        results = list(threads.map(run, cases))
    failures = [failure for result in results for failure in result.errors + result.failures]
    for case, trace in failures:
        print("\n%s\n%s" % (case.id(), trace))
    print("%d passed, %d failed" % (len(cases) - len(failures), len(failures)))
    sys.exit(1 if failures or not cases else 0)
