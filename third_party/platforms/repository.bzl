"""Platforms: the constraints that BUILD files of dependencies select on."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def platforms():
    maybe(
        source_archive,
        name = "platforms",
        debian_package = "bazel-platforms",
        debian_sha256 = "2e582a0841457e38ba2b263c7021bc57241f6934f86df8a1b5c5ae32169bf490",
        debian_strip_prefix = "platforms-0.0.2",
        sha256 = "48a2d8d343863989c232843e01afc8a986eb8738766bfd8611420a7db8f6f0c3",
        urls = ["https://github.com/bazelbuild/platforms/releases/download/0.0.2/platforms-0.0.2.tar.gz"],
    )
