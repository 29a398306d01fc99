"""Skylib: Abseil's BUILD files load it."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def bazel_skylib():
    maybe(
        source_archive,
        name = "bazel_skylib",
        debian_package = "bazel-skylib",
        debian_sha256 = "b22f0f38d9a1ac565fce8a43df3d284f6b8e5e8775bda54b5cb687bed46b6ea4",
        debian_strip_prefix = "bazel-skylib-1.0.3",
        sha256 = "1c531376ac7e5a180e0237938a2536de0c54d93f5c278634818e0efc952dd56c",
        urls = ["https://github.com/bazelbuild/bazel-skylib/releases/download/1.0.3/bazel-skylib-1.0.3.tar.gz"],
    )
