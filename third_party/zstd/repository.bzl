"""zstd: .zst input of the data tools."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def zstd():
    maybe(
        source_archive,
        name = "zstd",
        build_file = Label("//third_party/zstd:zstd.BUILD"),
        debian_package = "libzstd",
        debian_sha256 = "0c092ef267edce57ba7f3f2645c861f72eaf5e76273c6c3632869423464b90a5",
        debian_strip_prefix = "zstd-1.5.7",
        debian_suite = "trixie",
        sha256 = "eb33e51f49a15e023950cd7825ca74a4a2b43db8354825ac24fc1b7ee09e6fa3",
        strip_prefix = "zstd-1.5.7",
        urls = ["https://github.com/facebook/zstd/releases/download/v1.5.7/zstd-1.5.7.tar.gz"],
    )
