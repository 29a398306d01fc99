"""What Bazel 4 would download for the simplest C++ target, as local repositories.

Later Bazels bring these repositories along and must keep their own.
"""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")

_CC = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "fdo_prefetch_hints",
    "fdo_profile",
    "objc_import",
    "objc_library",
]
_JAVA = [
    "java_binary",
    "java_import",
    "java_library",
    "java_lite_proto_library",
    "java_package_configuration",
    "java_plugin",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]
_PROTO = ["proto_lang_toolchain", "proto_library"]

def _native_rules_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.file("BUILD.bazel", ctx.attr.build)
    if ctx.attr.folder:
        ctx.file(ctx.attr.folder + "/BUILD.bazel", "")
        ctx.file(
            ctx.attr.folder + "/defs.bzl",
            "".join(["{0} = native.{0}\n".format(rule) for rule in ctx.attr.rules]),
        )

_native_rules = repository_rule(
    implementation = _native_rules_impl,
    attrs = {
        "folder": attr.string(),
        "rules": attr.string_list(),
        "build": attr.string(),
    },
    doc = "FOLDER/defs.bzl that gives out Bazel's built-in rules.",
)

def is_bazel4():
    # Debian's Bazel has no version; Label.repo_name came with Bazel 6.
    return not hasattr(Label("//bazel:unused"), "repo_name")

def bazel4_repositories():
    """Defines rules_cc, rules_java, rules_proto and remote_coverage_tools."""
    if not is_bazel4():
        return
    maybe(_native_rules, name = "rules_cc", folder = "cc", rules = _CC)
    maybe(_native_rules, name = "rules_java", folder = "java", rules = _JAVA)
    maybe(_native_rules, name = "rules_proto", folder = "proto", rules = _PROTO)
    maybe(
        _native_rules,
        name = "remote_coverage_tools",
        build = """filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
""",
    )
