"""Protocol buffers: configuration files and their text format."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def protobuf():
    maybe(
        source_archive,
        name = "com_google_protobuf",
        build_file = Label("//third_party/protobuf:protobuf.BUILD"),
        debian_package = "protobuf",
        sha256 = "930c2c3b5ecc6c9c12615cf5ad93f1cd6e12d0aba862b572e076259970ac3a53",
        strip_prefix = "protobuf-3.21.12",
        urls = ["https://github.com/protocolbuffers/protobuf/archive/refs/tags/v3.21.12.tar.gz"],
    )
