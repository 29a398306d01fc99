"""Google Benchmark: 1.7.1, since 1.9 needs Bazel 6."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def benchmark():
    maybe(
        source_archive,
        name = "com_github_google_benchmark",
        debian_package = "benchmark",
        sha256 = "6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7",
        strip_prefix = "benchmark-1.7.1",
        urls = ["https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz"],
    )
