"""glog: the logger and CHECK."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def glog():
    maybe(
        source_archive,
        name = "com_github_google_glog",
        debian_package = "google-glog",
        sha256 = "8a83bf982f37bb70825df71a9709fa90ea9f4447fb3c099e1d720a439d88bad6",
        strip_prefix = "glog-0.6.0",
        urls = ["https://github.com/google/glog/archive/refs/tags/v0.6.0.tar.gz"],
    )
