"""JSON for Modern C++: manifests, tokenizer files, metrics."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:source_archive.bzl", "source_archive")

def nlohmann_json():
    maybe(
        source_archive,
        name = "com_github_nlohmann_json",
        build_file = Label("//third_party/nlohmann_json:nlohmann_json.BUILD"),
        debian_package = "nlohmann-json3",
        debian_suite = "trixie",
        sha256 = "0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406",
        strip_prefix = "json-3.11.3",
        urls = ["https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz"],
    )
