"""Every repository that a build of Megatron needs; a workspace that uses @megatron calls this too."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:bazel4_repositories.bzl", "bazel4_repositories", "is_bazel4")
load("//bazel:cuda_toolkit.bzl", "local_cuda")
load("//bazel:source_archive.bzl", "debian_sources")
load("//third_party/abseil:repository.bzl", "abseil")
load("//third_party/bazel_skylib:repository.bzl", "bazel_skylib")
load("//third_party/benchmark:repository.bzl", "benchmark")
load("//third_party/eigen:repository.bzl", "eigen")
load("//third_party/gflags:repository.bzl", "gflags")
load("//third_party/glog:repository.bzl", "glog")
load("//third_party/googletest:repository.bzl", "googletest")
load("//third_party/nlohmann_json:repository.bzl", "nlohmann_json")
load("//third_party/platforms:repository.bzl", "platforms")
load("//third_party/protobuf:repository.bzl", "protobuf")

def megatron_dependencies():
    """Defines the dependencies under their canonical names, unless the workspace has its own."""
    bazel4_repositories()
    if is_bazel4():
        platforms()
        bazel_skylib()
    maybe(debian_sources, name = "megatron_debian_sources", suites = ["bookworm", "trixie"])
    maybe(local_cuda, name = "local_cuda")
    abseil()
    benchmark()
    eigen()
    gflags()
    glog()
    googletest()
    nlohmann_json()
    protobuf()
