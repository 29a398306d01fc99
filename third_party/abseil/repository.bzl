"""Abseil: status, strings, flags, synchronization, CRC-32C."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def abseil():
    maybe(
        source_archive,
        name = "com_google_absl",
        debian_format = "tar.gz",
        debian_package = "abseil",
        debian_sha256 = "df6d1f5ef540725f3851201176a60486aab332410788465c9877910bb471c34a",
        debian_strip_prefix = "abseil-20240722.0",
        debian_suite = "trixie",
        sha256 = "f50e5ac311a81382da7fa75b97310e4b9006474f9560ac46f54a9967f07d4ae3",
        strip_prefix = "abseil-cpp-20240722.0",
        urls = ["https://github.com/abseil/abseil-cpp/releases/download/20240722.0/abseil-cpp-20240722.0.tar.gz"],
    )
