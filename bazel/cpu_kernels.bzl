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
_AVX512_BF16 = _AVX512 + ["-mavx512bf16", "-DMEGATRON_ISA_BF16_PRODUCTS=1"]
_AMX_BF16 = _AVX512 + [
    "-mamx-tile",
    "-mamx-bf16",
    "-DMEGATRON_ISA_BF16_PRODUCTS=1",
    "-DMEGATRON_ISA_AMX=1",
]

# gcc 12's own AVX-512 intrinsics start from deliberately unset registers.
_QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]

_INSTRUCTION_SETS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_bf16": _AVX512_BF16,
    "amx_bf16": _AMX_BF16,
}

def cpu_kernel_library(
        name,
        srcs,
        hdrs = [],
        textual_hdrs = [],
        copts = [],
        deps = [],
        visibility = None,
        instruction_sets = ["avx2", "avx512"],
        **kwargs):
    """Compiles srcs for AVX2 and for AVX-512 and gives both under one name.

    Each file puts what it defines into namespace MEGATRON_ISA (avx2 or avx512), so that the
    objects do not share symbols; MEGATRON_ISA_AVX512 is defined for the wider one. Kernels of bf16
    products add the instruction sets avx512_bf16 and amx_bf16, which include AVX-512 and define
    MEGATRON_ISA_BF16_PRODUCTS, and amx_bf16 also MEGATRON_ISA_AMX.

    An inline function or template from elsewhere that such an object keeps out of line would be one
    symbol for all, and the linker could give a small machine the wide code: NAME_ISA_symbols_test
    finds those.

    Args:
      name: the library with the objects of all instruction sets.
      srcs: sources, compiled once per instruction set.
      hdrs: what callers include; must not depend on the instruction set.
      textual_hdrs: what the sources include.
      copts: after the instruction set's; `-ffp-contract=fast` where a kernel wants fused steps.
      deps: for the sources and for callers.
      visibility: of the library.
      instruction_sets: names from the table above.
      **kwargs: further attributes of each cc_library.
    """
    for isa in instruction_sets:
        native.cc_library(
            name = name + "_" + isa,
            srcs = srcs,
            hdrs = hdrs,
            copts = COPTS + ["-O3", "-DMEGATRON_ISA=" + isa] + _INSTRUCTION_SETS[isa] + _QUIET + copts,
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
        deps = deps + [":" + name + "_" + isa for isa in instruction_sets],
        **kwargs
    )
