"""The same kernels compiled once per instruction set, for a choice at run time."""

load("//bazel:cc.bzl", "COPTS", "cc_library")

_AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
_AVX512 = _AVX2 + [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mavx512cd",
    "-mprefer-vector-width=512",
    "-DMEGATRON_ISA_AVX512=1",
]

# gcc 12's own AVX-512 intrinsics start from deliberately unset registers.
_QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]

_INSTRUCTION_SETS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
}

def cpu_kernel_library(
        name,
        srcs,
        hdrs = [],
        textual_hdrs = [],
        copts = [],
        deps = [],
        visibility = None,
        **kwargs):
    """Compiles srcs for AVX2 and for AVX-512 and gives both under one name.

    Each file puts what it defines into namespace MEGATRON_ISA (avx2 or avx512), so that the
    objects do not share symbols; MEGATRON_ISA_AVX512 is defined for the wider one. An inline
    function or template from elsewhere that such an object keeps out of line would be one symbol for
    both, and the linker could give a small machine the wide code: NAME_ISA_symbols_test finds
    those.

    Args:
      name: the library with the objects of all instruction sets.
      srcs: sources, compiled once per instruction set.
      hdrs: what callers include; must not depend on the instruction set.
      textual_hdrs: what the sources include.
      copts: after the instruction set's; `-ffp-contract=fast` where a kernel wants fused steps.
      deps: for the sources and for callers.
      visibility: of the library.
      **kwargs: further attributes of each cc_library.
    """
    for isa, flags in _INSTRUCTION_SETS.items():
        native.cc_library(
            name = name + "_" + isa,
            srcs = srcs,
            hdrs = hdrs,
            copts = COPTS + ["-O3", "-DMEGATRON_ISA=" + isa] + flags + _QUIET + copts,
            linkstatic = True,
            textual_hdrs = textual_hdrs,
            visibility = ["//visibility:private"],
            deps = deps,
            **kwargs
        )
        native.filegroup(
            name = name + "_" + isa + "_objects",
            srcs = [":%s_%s" % (name, isa)],
        )
        native.sh_test(
            name = name + "_" + isa + "_symbols_test",
            size = "small",
            srcs = [str(Label("//bazel:isa_symbols_test.sh"))],
            args = [isa, "$(rootpaths :%s_%s_objects)" % (name, isa)],
            data = [":%s_%s_objects" % (name, isa)],
        )
    cc_library(
        name = name,
        hdrs = hdrs,
        visibility = visibility,
        deps = deps + [":" + name + "_" + isa for isa in _INSTRUCTION_SETS],
        **kwargs
    )
