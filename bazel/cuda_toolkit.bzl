"""The CUDA toolkit of this machine as repository @local_cuda: $CUDA_HOME, or /usr/local/cuda.

Nothing of it is resolved without --config=cuda. On a machine without a toolkit the repository exists
and its targets say what is missing.
"""

CudaToolkitInfo = provider(
    doc = "Where CUDA's compiler is and what it compiles for.",
    fields = {
        "nvcc": "Absolute path of nvcc.",
        "architectures": "Those of cuda.bzl's default that this nvcc knows.",
    },
)

# Ampere, Hopper with its own instructions, Blackwell.
_ARCHITECTURES = ["sm_80", "sm_90a", "sm_100"]

def _cuda_toolkit_impl(ctx):
    if not ctx.attr.nvcc:
        fail("--config=cuda needs a CUDA toolkit: no bin/nvcc in $CUDA_HOME or /usr/local/cuda")
    return [CudaToolkitInfo(
        nvcc = ctx.attr.nvcc,
        architectures = ctx.attr.architectures,
    )]

cuda_toolkit = rule(
    implementation = _cuda_toolkit_impl,
    attrs = {
        "nvcc": attr.string(),
        "architectures": attr.string_list(),
    },
    provides = [CudaToolkitInfo],
)

_BUILD = """load("@megatron//bazel:cuda_toolkit.bzl", "cuda_toolkit")

package(default_visibility = ["//visibility:public"])

cuda_toolkit(
    name = "toolkit",
    architectures = {architectures},
    nvcc = "{nvcc}",
)

cc_library(
    name = "headers",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/**",
        "include/nccl_device/**",
        "include/nvtx3/**",
    ]),
    includes = ["include"],
)

# cuDNN's headers, which not every toolkit has. The library is loaded when a run asks for it.
cc_library(
    name = "cudnn_headers",
    defines = {cudnn_defines},
    deps = [":headers"],
)

cc_library(
    name = "cccl",
    hdrs = glob(["include/cccl/**"]),
    includes = ["include/cccl"],
)

[cc_library(
    name = name,
    linkopts = ["-L{libraries}", "-Wl,-rpath,{libraries}"] + linkopts,
    deps = [":headers"],
) for name, linkopts in {{
    "cudart": ["-lcudart_static", "-ldl", "-lrt", "-lpthread"],
    "cublas": ["-lcublas", "-lcublasLt"],
    "nccl": ["-lnccl"],
}}.items()]
"""

def _local_cuda_impl(ctx):
    home = ctx.path(ctx.os.environ.get("CUDA_HOME", "") or "/usr/local/cuda")
    nvcc = home.get_child("bin").get_child("nvcc")
    libraries = home.get_child("lib64")
    if not libraries.exists:
        libraries = home.get_child("lib")
    has_cudnn = home.get_child("include").get_child("cudnn.h").exists
    architectures = []
    if nvcc.exists:
        ctx.symlink(home.get_child("include"), "include")
        listed = ctx.execute([nvcc, "--list-gpu-code"])
        known = listed.stdout.split("\n")
        architectures = [a for a in _ARCHITECTURES if a.rstrip("a") in known] or ["sm_80"]
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.file("BUILD.bazel", _BUILD.format(
        nvcc = nvcc if nvcc.exists else "",
        architectures = architectures,
        libraries = libraries,
        cudnn_defines = ["MEGATRON_CUDNN"] if has_cudnn else [],
    ))

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    configure = True,
    environ = ["CUDA_HOME"],
    local = True,
)
