"""Eigen: matrix kernels on the CPU; only its MPL-2.0 part is used."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def eigen():
    maybe(
        source_archive,
        name = "eigen",
        build_file = Label("//third_party/eigen:eigen.BUILD"),
        debian_package = "eigen3",
        sha256 = "b4c198460eba6f28d34894e3a5710998818515104d6e74e5cc331ce31e46e626",
        strip_prefix = "eigen-3.4.0",
        urls = ["https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.bz2"],
    )
