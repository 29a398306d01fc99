"""cuda_library and the tests of what runs on CPU and CUDA alike. Effective under --config=cuda.

Kernels are compiled for sm_80, sm_90a and sm_100, as far as nvcc knows them; another choice is
--define=cuda_archs=sm_90a or a comma-separated list.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("//bazel:cc.bzl", "cc_test")
load("//bazel:cuda_toolkit.bzl", "CudaToolkitInfo")

_CUDA = str(Label("//bazel:cuda"))

# Targets that only exist with CUDA are skipped by //... without --config=cuda; a build that names one says so.
CUDA_ONLY = select({
    _CUDA: [],
    "//conditions:default": [str(Label("//bazel:only_with_config_cuda"))],
})

# The opposite: targets that emulate a CUDA device are skipped with --config=cuda.
WITHOUT_CUDA = select({
    _CUDA: [str(Label("//bazel:only_without_config_cuda"))],
    "//conditions:default": [],
})

def _architecture_flags(architectures):
    """Machine code for each; PTX of the oldest besides, for devices that none of them fits."""
    flags = []
    for i, architecture in enumerate(architectures):
        virtual = architecture.replace("sm_", "compute_")
        code = architecture
        if i == 0 and not architecture.endswith("a"):
            code = "[%s,%s]" % (architecture, virtual)
        flags.append("-gencode=arch=%s,code=%s" % (virtual, code))
    return flags

def _compile(ctx, source, toolkit, host_compiler, headers, flags):
    object = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, source.basename))
    args = ctx.actions.args()
    args.add_all(["-x", "cu", "-c"])
    args.add(source)
    args.add("-o", object)
    args.add("-ccbin", host_compiler)
    args.add_all(flags)
    ctx.actions.run(
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s for CUDA" % source.short_path,
        executable = toolkit.nvcc,
        arguments = [args],
        inputs = depset([source], transitive = headers),
        outputs = [object],
        env = {"PATH": toolkit.nvcc.rpartition("/")[0] + ":/usr/bin:/bin"},
        # nvcc names its temporary files after the source: two sandboxes would share them.
        execution_requirements = {"no-sandbox": "1"},
    )
    return object

def _cuda_library_impl(ctx):
    cc = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    host_compiler = cc_common.get_tool_for_action(
        feature_configuration = features,
        action_name = "c++-compile",
    )
    toolkit = ctx.attr.toolkit[CudaToolkitInfo]
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    seen = deps.compilation_context

    architectures = toolkit.architectures
    if ctx.var.get("cuda_archs"):
        architectures = ctx.var["cuda_archs"].split(",")
    flags = [
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "--expt-relaxed-constexpr",
        "-Xcompiler=-fPIC",
        "-Werror=all-warnings",
    ] + _architecture_flags(architectures)
    flags += ["-I" + path for path in seen.includes.to_list() + seen.quote_includes.to_list()]
    for path in seen.system_includes.to_list():
        flags += ["-isystem", path]
    flags += ["-D" + define for define in seen.defines.to_list()] + ctx.attr.copts

    headers = [depset(ctx.files.hdrs), seen.headers, cc.all_files]
    objects = depset([
        _compile(ctx, source, toolkit, host_compiler, headers, flags)
        for source in ctx.files.srcs
    ])
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = cc,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = objects,
            pic_objects = objects,
        ),
        linking_contexts = [deps.linking_context],
        alwayslink = ctx.attr.alwayslink,
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(
            headers = depset(ctx.files.hdrs),
        ),
        linking_context = linking,
    )
    return [
        DefaultInfo(files = objects),
        cc_common.merge_cc_infos(direct_cc_infos = [own], cc_infos = [deps]),
    ]

_cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "alwayslink": attr.bool(),
        "toolkit": attr.label(providers = [CudaToolkitInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], **kwargs):
    """Kernels compiled by nvcc, for cc_* targets to depend on under --config=cuda.

    The CUDA runtime is among the deps. No relocatable device code: a kernel calls no device function
    of another file.

    Args:
      name: of the library.
      srcs: .cu files.
      hdrs: what the callers of the launchers include.
      deps: C++ libraries.
      copts: for nvcc.
      **kwargs: alwayslink, visibility, tags and their like.
    """
    _cuda_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        target_compatible_with = CUDA_ONLY,
        toolkit = select({
            _CUDA: "@local_cuda//:toolkit",
            "//conditions:default": None,
        }),
        deps = deps + select({
            _CUDA: ["@local_cuda//:cudart"],
            "//conditions:default": [],
        }),
        **kwargs
    )

def cuda_test(name, deps = [], tags = [], **kwargs):
    """A cc_test that needs a device: built with --config=cuda alone, tagged gpu."""
    cc_test(
        name = name,
        tags = tags + ["gpu"],
        target_compatible_with = CUDA_ONLY,
        deps = deps + select({
            _CUDA: ["@local_cuda//:cudart"],
            "//conditions:default": [],
        }),
        **kwargs
    )
