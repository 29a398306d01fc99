"""utf8proc: Unicode categories and normalization for tokenizers (Unicode 15.0)."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def utf8proc():
    maybe(
        source_archive,
        name = "utf8proc",
        build_file = Label("//third_party/utf8proc:utf8proc.BUILD"),
        debian_package = "utf8proc",
        sha256 = "a0a60a79fe6f6d54e7d411facbfcc867a6e198608f2cd992490e46f04b1bcecc",
        strip_prefix = "utf8proc-2.8.0",
        urls = ["https://github.com/JuliaStrings/utf8proc/archive/v2.8.0.tar.gz"],
    )
