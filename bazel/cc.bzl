"""C++ rules: Bazel's own, with this project's defaults."""

# These options are part of the targets and not of .bazelrc, which a workspace that uses this one
# does not read.
COPTS = ["-ffp-contract=off"]

_GTEST = "@com_google_googletest//:gtest"
_GTEST_MAIN = "@com_google_googletest//:gtest_main"

def cc_library(name, copts = [], **kwargs):
    # linkstatic: without shared libraries each file is compiled once, not once more as PIC.
    native.cc_library(
        name = name,
        copts = COPTS + copts,
        linkstatic = True,
        **kwargs
    )

def cc_binary(name, copts = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = COPTS + copts,
        **kwargs
    )

def cc_test(name, copts = [], deps = [], size = "small", **kwargs):
    """A test, linked with gtest_main unless it names GoogleTest itself (it then has its own main)."""
    named = deps if type(deps) == "list" else str(deps)  # one with a select() shows as text alone
    if _GTEST not in named and _GTEST_MAIN not in named:
        deps = deps + [_GTEST_MAIN]
    native.cc_test(
        name = name,
        size = size,
        copts = COPTS + copts,
        linkstatic = True,
        deps = deps,
        **kwargs
    )

def cc_benchmark(name, srcs, copts = [], deps = [], data = [], tags = [], size = "small", **kwargs):
    """Figures by `bazel run NAME`; NAME_test runs every benchmark once, so that none can rot."""
    cc_library(
        name = name + "_lib",
        testonly = True,
        srcs = srcs,
        copts = copts,
        data = data,
        tags = tags + ["benchmark"],
        alwayslink = True,
        deps = deps + ["@com_github_google_benchmark//:benchmark_main"],
        **kwargs
    )
    cc_binary(
        name = name,
        testonly = True,
        tags = tags + ["benchmark"],
        deps = [":" + name + "_lib"],
    )
    native.cc_test(
        name = name + "_test",
        size = size,
        args = ["--benchmark_min_time=0.0001"],
        linkstatic = True,
        tags = tags + ["benchmark"],
        deps = [":" + name + "_lib"],
    )
