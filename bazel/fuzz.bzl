"""Fuzz targets: libFuzzer binaries under --config=fuzz, replays of the corpus otherwise."""

load("//bazel:cc.bzl", "COPTS")

def cc_fuzz_test(name, srcs, deps = [], corpus = [], copts = [], size = "small", **kwargs):
    """A target that defines LLVMFuzzerTestOneInput.

    As a test it feeds every corpus file, and files grown from it by a few hundred simple changes, to
    that function. `bazel run --config=fuzz NAME -- -max_total_time=60 DIR` explores.

    Args:
      name: of the target.
      srcs: the file with LLVMFuzzerTestOneInput.
      deps: libraries under test.
      corpus: files, or one filegroup, of well-formed and odd inputs.
      copts: as for cc_test.
      size: as for cc_test.
      **kwargs: further attributes of the cc_test.
    """
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        args = select({
            str(Label("//bazel:fuzz")): ["-runs=1000"],
            "//conditions:default": [],
        }) + ["$(rootpaths %s)" % file for file in corpus],
        copts = COPTS + copts,
        data = corpus,
        linkopts = select({
            str(Label("//bazel:fuzz")): ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        tags = kwargs.pop("tags", []) + ["fuzz"],
        deps = deps + select({
            str(Label("//bazel:fuzz")): [],
            "//conditions:default": [str(Label("//megatron/testing:fuzz_replay_main"))],
        }),
        **kwargs
    )
