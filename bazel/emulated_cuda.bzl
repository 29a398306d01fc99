"""CUDA kernels as C++, to run on the CPU in tests (//megatron/ops/cuda/emulation)."""

load("//bazel:cc.bzl", "cc_library")

# Only kernels use this rule. All other code does without it, and a test of kernels needs no
# configuration of its own.
THREAD_SANITIZER_COPTS = ["-fsanitize=thread", "-fno-omit-frame-pointer", "-g1"]
THREAD_SANITIZER_LINKOPTS = ["-fsanitize=thread"]

# A launch `kernel<<<grid, block, shared, stream>>>(` becomes a call, and a __shared__ variable a
# reference to the memory of the block that runs; everything else that kernels use are names that
# C++ can define.
_REWRITE = r"""perl -0pe '
  s/extern __shared__ (?:__align__|alignas)\((\d+)\) (\w+) (\w+)\[\];/$$2* const $$3 = static_cast<$$2*>(megatron::emulation::DynamicShared($$1));/g;
  s/__shared__ ([\w:<>, !]+?) (\w+)((?:\[[^\]]*\])*);/typedef $$1 SharedType_$$2$$3; auto& $$2 = megatron::emulation::Shared<SharedType_$$2>([] { static char key; return &key; }());/g;
  s/([A-Za-z_]\w*(?:(<(?:[^<>;]|(?2))*>))?)\s*<<<(.*?)>>>\(/"megatron::emulation::Launch(".address($$1).", [&](auto... x) { $$1(x...); }, $$3)("/gse;
  # The type of a pointer to a kernel: a template, whose arguments the call finds, is many functions.
  sub address { my $$of = shift; $$of =~ m{^[a-z]} ? "megatron::emulation::Address($$of)" : "nullptr" }
' $< > $@"""

def emulated_cuda_library(name, srcs, textual_hdrs, deps, other_srcs = [], copts = [], **kwargs):
    """Compiles .cu files against the emulation's headers in place of CUDA's.

    Args:
      name: of the library.
      srcs: .cu files.
      textual_hdrs: the .cuh files that they include.
      deps: C++ libraries.
      other_srcs: C++ files.
      copts: for the kernels.
      **kwargs: testonly, visibility and their like.
    """
    sources = []
    for src in srcs:
        native.genrule(
            name = name + "_" + src.replace(".", "_"),
            srcs = [src],
            outs = [name + "_" + src.replace(".cu", ".cc")],
            cmd = _REWRITE,
        )
        sources.append(name + "_" + src.replace(".cu", ".cc"))
    cc_library(
        name = name,
        srcs = sources + other_srcs,
        textual_hdrs = textual_hdrs,
        # CUDA's names begin with underscores, and its pragmas are unknown.
        copts = ["-Wno-unknown-pragmas", "-Wno-unused", "-include", "cuda_runtime.h"] +  # the same as nvcc does
                copts,
        deps = deps + [
            "//megatron/ops/cuda/emulation:cuda_headers",
            "//megatron/ops/cuda/emulation:tensor_core",
        ],
        **kwargs
    )
