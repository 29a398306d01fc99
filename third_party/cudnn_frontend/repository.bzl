"""cuDNN's C++ front end, headers alone: attention by cuDNN, in builds with --config=cuda.

Why it and not the C interface of cuDNN, which is a dozen functions: to that, attention is no one
operation but a graph of many, whose form is another in each release of the library, and for a graph of
a wrong form there is no kernel. The front end knows the forms.

It comes as a wheel, of which the folder include/ is used. Later releases want NVRTC linked, for
kernels that are not needed here. The library itself is loaded when a run asks for it
(megatron/ops/cuda/cudnn).
"""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:wheel_archive.bzl", "wheel_archive")

def cudnn_frontend():
    maybe(
        wheel_archive,
        name = "com_github_nvidia_cudnn_frontend",
        build_file = Label("//third_party/cudnn_frontend:cudnn_frontend.BUILD"),
        sha256 = "382ea063b92cbfd5b442cb75ff8422932d78276aecf139e46713ed1ad3d07af4",
        wheel = "nvidia_cudnn_frontend-1.18.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    )
