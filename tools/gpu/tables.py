"""The tables that the GPU check ends with, in Markdown, as docs/performance.md has them."""

import re

# Counters with the share of something that a row reached; the first one in the row counts. `floor`
# is what is asked.
_SHARES = ("share", "plan", "roofline")
_PEAK_TOLERANCE = 0.05
_SHARE_OF_CUDNN = 0.9  # asked of our own attention


def _table(header, rows):
    """Lines of Markdown with columns of equal width; the first one is flush left."""
    cells = [header] + rows
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row):
        padded = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), rule] + [line(row) for row in rows])


def _percent(share):
    return "%.1f %%" % (100 * share) if share is not None else ""


def _verdict(met):
    return "" if met is None else "met" if met else "MISSED"


def kernel_figures(row):
    """What is kept of a row of Google Benchmark: its time, all counters, and whether it reached its floor."""
    units = {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}
    known = ("name", "run_name", "run_type", "family_index", "per_family_instance_index", "repetitions",
             "repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit", "label")
    counters = {name: value for name, value in row.items()
                if name not in known and isinstance(value, (int, float)) and not isinstance(value, bool)}
    figures = {"microseconds": row["real_time"] * units[row.get("time_unit", "ns")], **counters}
    share = next((counters[name] for name in _SHARES if name in counters), None)
    if "floor" in counters:
        figures["target_met"] = share is not None and share >= counters["floor"]
    return figures


def _share(row):
    return next((row[name] for name in _SHARES if name in row), None)


def _furthest(rows, count):
    """Those that are furthest from what is asked of them, or from their roofline."""
    def behind(row):
        return _share(row) / row.get("floor", 1)

    return sorted((row for row in rows if _share(row) is not None), key=behind)[:count]


def _attention_beside_cudnn(session):
    """Our fastest attention as a share of cuDNN's rate, of each pass and width of heads; also as targets."""
    rates = {}
    for row in session.rows:
        found = re.match(r"BM_(\w+)<AttentionKernel::k(\w+), (\d+)>", row["name"])
        if row["what"] == "kernel" and found and "TFLOP/s" in row:
            name, kernel, width = found.groups()
            rates.setdefault((name, width), {})[kernel] = row["TFLOP/s"]
    text = ""
    for (name, width), by_kernel in rates.items():
        ours = [rate for kernel, rate in by_kernel.items() if not kernel.startswith("Cudnn")]
        if "Cudnn" not in by_kernel or not ours:
            continue
        share = max(ours) / by_kernel["Cudnn"]
        session.record("target", "%s, heads of %s" % (name, width), share=share, floor=_SHARE_OF_CUDNN,
                       target_met=share >= _SHARE_OF_CUDNN)
        text = _add(text, "%s, heads of %s: %s of cuDNN's rate, asked are %s: %s" % (
            name, width, _percent(share), _percent(_SHARE_OF_CUDNN), _verdict(share >= _SHARE_OF_CUDNN)))
    return text


def _shown_name(row):
    """Without how Google Benchmark was told its time."""
    return row["name"].replace("/manual_time", "")


def kernel_table(session):
    beside_cudnn, rows = _attention_beside_cudnn(session), session.rows
    state = next((_state(row) for row in rows if row["what"] == "benchmark"), "")
    profiled = "".join(_profiled(row) for row in rows if row["what"] == "ncu")
    rows = [row for row in rows if row["what"] == "kernel"]
    if not rows:
        return profiled
    lines = []
    for row in rows:
        rate = ("%.0f TFLOP/s" % row["TFLOP/s"] if "TFLOP/s" in row else
                "%.0f GB/s" % row["GB/s"] if "GB/s" in row else "")
        shown = ("TFLOP/s", "GB/s", "floor", "what", "name", "group", "microseconds", "target_met", *_SHARES)
        others = ", ".join("%s %.3g" % (name, value) for name, value in row.items() if name not in shown)
        lines.append([_shown_name(row), "%.1f" % row["microseconds"], rate, _percent(_share(row)),
                      _percent(row.get("floor")), _verdict(row.get("target_met")), others])
    slowest = ", ".join("%s (%s)" % (_shown_name(row), _percent(_share(row))) for row in _furthest(rows, 3))
    return "%s\n\nFurthest from what is asked of them: %s%s.\n%s%s" % (
        _table(["row", "µs", "rate", "share", "asked", "", "also"], lines), slowest or "nothing has a share", state,
        beside_cudnn, profiled)


def _profiled(row):
    """A line for each kernel that Nsight Compute looked at."""
    return "".join("ncu %s: %s\n" % (name, ", ".join("%s %s" % shown for shown in figures.items()))
                   for name, figures in row.get("kernels", {}).items())


def _best(rows):
    return max(rows, key=lambda row: row["tokens_per_second"], default=None)


def _add(text, line):
    return text + line + "\n"


def speed_table(session, shapes):
    """Ours beside PyTorch's, each with its best micro-batch. Also records what is met and what is missed."""
    lines, notes = [], ""
    for shape in shapes:
        ours = _best([row for row in session.rows if row["what"] == "training" and row.get("shape") == shape.name and
                      row["verdict"] == "passed"])
        peer = next((row for row in session.rows if row["what"] == "pytorch" and row.get("shape") == shape.name and
                     row["verdict"] == "passed"), None)
        if ours is None:
            lines.append([shape.name] + [""] * 12)
            notes = _add(notes, "%s: not measured" % shape.name)
            continue
        line, more = _speed_line(session, shape, ours, peer)
        lines.append(line)
        notes += more
    header = ["shape", "parameters", "samples", "tokens/s", "MFU causal", "full", "asked", "PyTorch eager", "compiled",
              "ratio", "llm.c", "GiB", "planned"]
    text = _table(header, lines) + "\n" + ("\n" + notes if notes else "")
    return text + _profile_lines(session.rows)


def _speed_line(session, shape, ours, peer):
    rate, notes = ours["tokens_per_second"], ""
    causal = ours.get("mfu_causal")
    full = causal * ours["flops_full"] / ours["flops_causal"] if causal is not None else None
    asked, verdicts = [], {}
    if shape.tokens_per_second:
        asked.append("%.0f" % shape.tokens_per_second)
        verdicts["tokens/s"] = rate >= shape.tokens_per_second
    if shape.mfu:
        asked.append(_percent(shape.mfu))
        verdicts["MFU"] = causal is not None and causal >= shape.mfu
    if shape.llm_c:
        verdicts["llm.c's own figure for an A100"] = rate > shape.llm_c
    eager = compiled = ratio = ""
    if peer:
        eager, compiled = ("%.0f" % peer[kind]["tokens_per_second"] for kind in ("eager", "compiled"))
        fraction = rate / peer["compiled"]["tokens_per_second"]
        ratio = "%.2f" % fraction
        verdicts["%.2f x PyTorch compiled" % shape.ratio] = fraction >= shape.ratio
        if peer.get("parameters") != ours["parameters"]:
            why = "PyTorch's has %s parameters, ours %d" % (peer.get("parameters"), ours["parameters"])
            session.fail("comparison", shape.name, "not the same model: " + why)
    if "of_plan" in ours:
        verdicts["memory as planned"] = abs(ours["of_plan"] - 1) <= _PEAK_TOLERANCE
    for name, met in verdicts.items():
        session.record("target", "%s: %s" % (shape.name, name), target_met=met)
    notes = _add(notes, "%s: %s%s" % (shape.name, ", ".join("%s %s" % (name, _verdict(met))
                                                            for name, met in verdicts.items()),
                                      _state(ours)))
    return [shape.name, "{:,}".format(ours["parameters"]), "%d" % ours["batch"], "%.0f" % rate, _percent(causal),
            _percent(full), ", ".join(asked), eager, compiled, ratio, "%.0f" % shape.llm_c if shape.llm_c else "",
            "%.1f" % ours["peak_gib"] if "peak_gib" in ours else "", "%.1f" % ours["planned_gib"]], notes


def _state(row):
    """The GPU while it ran."""
    parts = [text % row[name] for name, text in (("sm_mhz", "%.0f MHz"), ("memory_mhz", "memory %.0f MHz"),
                                                 ("watts", "%.0f W"), ("celsius", "%.0f °C")) if name in row]
    return "; " + ", ".join(parts) + " meanwhile" if parts else ""


def _profile_lines(rows):
    text = ""
    for row in rows:
        if row["what"] == "option" and "speedup" in row:
            text = _add(text, "option %s: %.3f times as fast" % (row["name"], row["speedup"]))
    for row in rows:
        if row["what"] == "profile" and row["verdict"] == "passed":
            text = _add(text, "\nTwo steps on the GPU, the longest spans first:")
            for name, milliseconds, count in row["spans"]:
                text = _add(text, "  %10.3f ms %6d times  %s" % (milliseconds, count, name))
    return text
