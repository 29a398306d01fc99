"""The planner's figures of this GPU (docs/planning.md), from what the parts of the check have measured.

`hardware.textproto` and `kernels.csv` are what tools:calibrate writes on a processor: --facts and --kernels of
tools:plan, system.hardware_file of a run. What nothing here measures, as the network and the host's memory, is taken
from the program's figures of the GPU.
"""

import json
import math
import os
import re

import attention_plans

FACTS = "plan_facts.textproto"
HARDWARE, KERNELS = "hardware.textproto", "kernels.csv"
_PROGRAM = "megatron_cc"
# The shapes of kernels_benchmark: megatron/ops/cuda/gpu_benchmark.h.
_TOKENS, _POSITIONS, _ATTENTION_WIDTH = 8 * 2048, 2048, 1024
_PASSES = {"Linear": "forward", "LinearBackwardInput": "input_gradient", "LinearBackwardWeight": "weight_gradient"}
_ATTENTION_PASSES = {"Attention": ("forward", 1), "AttentionBackward": ("input_gradient", 2.5)}
# Kernels between the products of layers.
_BETWEEN = ("Gelu", "GeluBackward", "SwiGlu", "SwiGluBackward", "ResidualNorm", "NormBackward", "BiasBackward/1024")
_MOST_SHARE = 2  # MeasuredKernels refuses larger ones


def facts_path():
    """In a bundle the facts lie beside this file, in the sources where the planner has them."""
    here = os.path.dirname(os.path.abspath(__file__))
    sources = os.path.join(here, "..", "..", "megatron", "plan", FACTS)
    bundled = os.path.join(here, FACTS)
    return bundled if os.path.exists(bundled) else sources


def _entries(text, kind):
    """The fields of each entry `kind { ... }`, whose own fields are no messages."""
    return [body.strip("\n").split("\n") for body in re.findall(r"^%s \{\n(.*?)^\}" % kind, text, re.M | re.S)]


def _value(fields, name):
    found = next((field for field in fields if field.strip().startswith(name + ":")), None)
    return found and found.partition(":")[2].strip().strip('"')


def _plain(name):
    return re.sub("[^a-z0-9]", "", name.lower())


def _known(text, gpu):
    """The entry with the longest name of those that are in the GPU's; none where there is none."""
    found = [fields for fields in _entries(text, "hardware") if _plain(_value(fields, "name")) in _plain(gpu)]
    return max(found, key=lambda fields: len(_plain(_value(fields, "name"))), default=None)


def _set(fields, name, value, measured=True):
    """Writes the field; what is measured is no guess any longer."""
    if measured:
        fields = [field for field in fields if field.strip() != 'guess: "%s"' % name]
    text = '  %s: %s' % (name, '"%s"' % value if isinstance(value, str) else "%.6g" % value)
    for i, field in enumerate(fields):
        if field.strip().startswith(name + ":"):
            return fields[:i] + [text] + fields[i + 1:]
    return [fields[0], text] + fields[1:]


def _mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _rows(out):
    """What the check has found, in this session or an earlier one."""
    try:
        with open(os.path.join(out, "check.jsonl")) as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError):  # the part hasn't run, or was killed while it wrote
        return []


def _kernels(rows):
    return [row for row in rows if row.get("what") == "kernel"]


def _products(rows):
    """(kernel, pass, m, n, k, TFLOP/s) of each product that was measured."""
    for row in _kernels(rows):
        found = re.match(r"BM_(\w+)/(\d+)/(\d+)(/|$)", row["name"])
        if found and found.group(1) in _PASSES and "TFLOP/s" in row:
            inputs, outputs = int(found.group(2)), int(found.group(3))
            yield "product", _PASSES[found.group(1)], _TOKENS, outputs, inputs, row["TFLOP/s"]


def _attention(rows):
    """The same of the fastest kernel of each pass and width of heads, of those whose tests have passed.

    Scores that the mask hides count as work.
    """
    trusted = {kernel for kernel, backend in attention_plans.BACKENDS.items()
               if not attention_plans.why_not(rows, backend)}
    best = {}
    for row in _kernels(rows):
        found = re.match(r"BM_(\w+)<AttentionKernel::k(\w+), (\d+)>", row["name"])
        if not found or found.group(1) not in _ATTENTION_PASSES or found.group(2) not in trusted:
            continue
        key = (found.group(1), int(found.group(3)))
        best[key] = min(row["microseconds"], best.get(key, math.inf))
    for (name, width), microseconds in sorted(best.items()):
        kind, times = _ATTENTION_PASSES[name]
        operations = times * 4 * _TOKENS * _ATTENTION_WIDTH * _POSITIONS
        yield "attention", kind, _POSITIONS, _ATTENTION_WIDTH // width, width, operations / microseconds / 1e6


def _rate(rows, names):
    """The mean GB/s of these kernels."""
    wanted = {"BM_" + name for name in names}
    rates = [row["GB/s"] for row in _kernels(rows)
             if "GB/s" in row and re.sub("/manual_time$", "", row["name"]) in wanted]
    return _mean([rate for rate in rates if rate > 0])


def _bus_rate(out):
    """The bus's GB/s of the largest all-gather and reduce-scatter between this machine's GPUs."""
    try:
        with open(os.path.join(out, "time", "comm_bench.json")) as file:
            results = json.load(file)["results"]
        rates = [row["out_of_place"]["busbw_gbps"] for result in results
                 if result["operation"] in ("all_gather", "reduce_scatter")
                 for row in sorted(result["rows"], key=lambda row: row["size"])[-1:] if row.get("out_of_place")]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _mean([rate for rate in rates if rate > 0])


def _text(kind, fields):
    return "%s {\n%s\n}\n" % (kind, "\n".join(fields))


def write(out, gpu, memory_mib):
    """Writes the files into `out` from what was measured, if that suffices. Returns a line that says so, or nothing."""
    rows = _rows(out)
    kernels = [*_products(rows), *_attention(rows)]
    if not kernels:
        return ""
    with open(facts_path()) as file:
        facts = file.read()
    hardware = _known(facts, gpu)
    if hardware is None:
        return "No %s: the program has no figures of a %s to take the network's from.\n" % (HARDWARE, gpu)
    kind = _value(hardware, "name")
    peak, bandwidth, link = (float(_value(hardware, name))
                             for name in ("bf16_tflops", "memory_gb_per_s", "link_gb_per_s"))
    hardware = [field for field in hardware if not field.strip().startswith("alias:")]
    hardware = _set(hardware, "name", gpu)
    if memory_mib is not None:
        hardware = _set(hardware, "memory_gib", memory_mib / 1024)
    program = next(fields for fields in _entries(facts, "implementation") if _value(fields, "name") == _PROGRAM)
    shares = [(*kernel[:5], min(_MOST_SHARE, max(1e-6, kernel[5] / peak))) for kernel in kernels]
    figures = {"product_efficiency": _mean([kernel[5] for kernel in shares if kernel[0] == "product"]),
               "attention_efficiency": _mean([kernel[5] for kernel in shares if kernel[0] == "attention"]),
               "memory_efficiency": _rate(rows, _BETWEEN), "optimizer_efficiency": _rate(rows, ("AdamW",)),
               "link_efficiency": _bus_rate(out)}
    whole = {"memory_efficiency": bandwidth, "optimizer_efficiency": bandwidth, "link_efficiency": link}
    for name, figure in figures.items():
        if figure is not None:
            program = _set(program, name, min(1.5, figure / whole.get(name, 1)))
    # Kernels in a step may be slower than alone: --refit of tools:calibrate tells, after a run.
    program = _set(program, "measured_efficiency", 1.0, measured=False)
    with open(os.path.join(out, HARDWARE), "w") as file:
        file.write("# Written by tools/gpu_check from what it has measured; the rest are the program's figures of a "
                   "%s.\n%s%s" % (kind, _text("hardware", hardware), _text("implementation", program)))
    with open(os.path.join(out, KERNELS), "w") as file:
        file.write("gpu,kernel,pass,m,n,k,share_of_peak\n")
        for kernel in shares:
            file.write("%s,%s,%s,%d,%d,%d,%.6g\n" % (gpu, *kernel))
    return "--set=system.hardware_file=%s has the planner's figures of this GPU, %d kernels beside it.\n" % (
        os.path.join(out, HARDWARE), len(shares))
