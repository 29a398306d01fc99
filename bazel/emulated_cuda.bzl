"""CUDA kernels as C++, to run on the CPU in tests (//megatron/ops/cuda/emulation)."""

load("//bazel:cc.bzl", "cc_library")

# A launch `kernel<<<grid, block, shared, stream>>>(` becomes a call, and dynamic shared memory a
# pointer; everything else that kernels use are names that C++ can define.
_REWRITE = r"""perl -0pe '
  s/extern __shared__ __align__\(16\) (\w+) (\w+)\[\];/$$1* const $$2 = static_cast<$$1*>(megatron::emulation::DynamicShared());/g;
  s/([A-Za-z_]\w*(?:(<(?:[^<>;]|(?2))*>))?)\s*<<<(.*?)>>>\(/megatron::emulation::Launch([&](auto... x) { $$1(x...); }, $$3)(/gs;
' $< > $@"""

def emulated_cuda_library(name, srcs, textual_hdrs, deps, other_srcs = [], **kwargs):
    """Compiles .cu files against the emulation's headers in place of CUDA's.

    Args:
      name: of the library.
      srcs: .cu files.
      textual_hdrs: the .cuh files that they include.
      deps: C++ libraries.
      other_srcs: C++ files.
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
        copts = ["-Wno-unknown-pragmas", "-Wno-unused", "-include", "cuda_runtime.h"],  # as nvcc does
        deps = deps + ["//megatron/ops/cuda/emulation:cuda_headers"],
        **kwargs
    )
