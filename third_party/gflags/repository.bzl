"""gflags: glog needs it; our own flags are Abseil's."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def gflags():
    maybe(
        source_archive,
        name = "com_github_gflags_gflags",
        debian_package = "gflags",
        sha256 = "34af2f15cf7367513b352bdcd2493ab14ce43692d2dcd9dfc499492966c64dcf",
        strip_prefix = "gflags-2.2.2",
        urls = ["https://github.com/gflags/gflags/archive/refs/tags/v2.2.2.tar.gz"],
    )
