"""Fuzz targets: libFuzzer binaries under --config=fuzz, replays of the corpus otherwise."""

load("//bazel:cc.bzl", "COPTS")

_FUZZ = str(Label("//bazel:fuzz"))

def cc_fuzz_test(
        name,
        srcs,
        deps = [],
        corpus = [],
        max_len = 4096,
        copts = [],
        size = "small",
        tags = [],
        **kwargs):
    """A target that defines LLVMFuzzerTestOneInput.

    As a test it feeds every corpus file, and a few hundred simple variations of each, to that
    function. Under --config=fuzz there is NAME_explore besides, which starts from the corpus and
    searches for $FUZZ_SECONDS (60): `bazel run --config=fuzz NAME_explore`.

    Args:
      name: of the target.
      srcs: the file with LLVMFuzzerTestOneInput.
      deps: libraries under test.
      corpus: files, or filegroups, of well-formed and odd inputs.
      max_len: the longest input that the search tries, in bytes; longer files of the corpus are cut.
        What takes longer the longer the input is should see short ones, and many.
      copts: as for cc_test.
      size: as for cc_test.
      tags: as for cc_test.
      **kwargs: further attributes of the cc_test.
    """
    files = ["$(rootpaths %s)" % label for label in corpus]
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        args = select({
            _FUZZ: ["-runs=1"],
            "//conditions:default": [],
        }) + files,
        copts = COPTS + copts,
        data = corpus,
        linkopts = select({
            _FUZZ: ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        # tools/fuzz_coverage finds max_len there.
        tags = tags + ["fuzz", "max_len=%d" % max_len],
        deps = deps + select({
            _FUZZ: [],
            "//conditions:default": [str(Label("//megatron/testing:fuzz_replay_main"))],
        }),
        **kwargs
    )
    native.sh_test(
        name = name + "_explore",
        size = "large",
        srcs = [str(Label("//bazel:fuzz_explore.sh"))],
        args = ["$(rootpath :%s)" % name, str(max_len)] + files,
        data = corpus + [":" + name],
        tags = tags + ["fuzz_explore"],
        target_compatible_with = select({
            _FUZZ: [],
            "//conditions:default": [str(Label("//bazel:only_with_config_fuzz"))],
        }),
    )
