"""Repository rule for C++ headers that are published as a Python package, pinned by digest.

Bazel's repository cache and --distdir are asked first, then pip, which knows from the machine's own
configuration where packages come from. The digest decides whether what came is right.
"""

def _wheel_archive_impl(ctx):
    attr = ctx.attr
    problem = ""

    # Bazel tells a format by the name's end, and does not know that a wheel is a zip file.
    archive = attr.wheel[:-len("whl")] + "zip"
    found = ctx.download(
        url = "file:///only/the/cache/" + attr.wheel,
        output = archive,
        sha256 = attr.sha256,
        allow_fail = True,
    ).success
    if not found:
        name, version, interpreter, _, platforms = attr.wheel[:-len(".whl")].split("-")
        command = ["python3", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version=" + interpreter[len("cp"):], "--implementation=cp"]
        command += ["--platform=" + platform for platform in platforms.split(".")]
        command += ["--dest=.pip", name + "==" + version]
        ctx.report_progress("Fetching the Python package " + name)
        fetched = ctx.execute(command, timeout = 600)
        if fetched.return_code:
            problem = fetched.stderr
        else:
            found = ctx.download(
                url = "file://%s/.pip/%s" % (ctx.path("."), attr.wheel),
                output = archive,
                sha256 = attr.sha256,
                allow_fail = True,
            ).success
            problem = "it is another file than the one with sha256 " + attr.sha256
    if not found:
        fail("cannot fetch @%s: pip download of %s: %s\nWith %s in a folder, --distdir=FOLDER helps." %
             (ctx.name, attr.wheel, problem, attr.wheel))
    ctx.extract(archive)
    ctx.delete(archive)
    ctx.delete(".pip")
    ctx.symlink(attr.build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)

wheel_archive = repository_rule(
    implementation = _wheel_archive_impl,
    attrs = {
        "wheel": attr.string(mandatory = True, doc = "Its file name, which says which one of a release it is."),
        "sha256": attr.string(mandatory = True),
        "build_file": attr.label(allow_single_file = True, mandatory = True),
    },
)
