"""zlib: .gz input of the data tools."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def zlib():
    maybe(
        source_archive,
        name = "zlib",
        build_file = Label("//third_party/zlib:zlib.BUILD"),
        debian_format = "tar.gz",
        debian_package = "zlib",
        debian_sha256 = "60dd315c07f616887caa029408308a018ace66e3d142726a97db164b3b8f69fb",
        debian_strip_prefix = "zlib-1.3.1",
        debian_suite = "trixie",
        sha256 = "9a93b2b7dfdac77ceba5a558a580e74667dd6fede4585b91eefb60f03b72df23",
        strip_prefix = "zlib-1.3.1",
        urls = ["https://github.com/madler/zlib/releases/download/v1.3.1/zlib-1.3.1.tar.gz"],
    )
