"""libsodium: key agreement, stream cipher and sealed messages of secure sums."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def libsodium():
    maybe(
        source_archive,
        name = "libsodium",
        build_file = Label("//third_party/libsodium:libsodium.BUILD"),
        debian_package = "libsodium",
        sha256 = "d59323c6b712a1519a5daf710b68f5e7fde57040845ffec53850911f10a5d4f4",
        strip_prefix = "libsodium-1.0.18",
        urls = ["https://github.com/jedisct1/libsodium/archive/1.0.18.tar.gz"],
    )
