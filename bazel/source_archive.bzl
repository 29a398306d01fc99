"""Repository rule for a dependency built from a pinned source tarball.

Three places are asked, in this order, and the digest decides whether what came is right:

  1. the upstream URLs, when one of their hosts answers within five seconds,
  2. Debian's source package of the same release, through the machine's own apt configuration,
  3. Bazel's repository cache and --distdir (1 and 2 use and fill the cache too).

The second makes a build possible where only a Debian mirror can be reached: Debian keeps upstream's
tarballs, most of them byte for byte. Where Debian repacks, `debian_sha256` pins its bytes too.
"""

_CONNECT_SECONDS = 5

def _apt_options(state, suite):
    return " ".join([
        "-q",
        "-oAPT::Sandbox::User=root",
        "-oDir::Etc::SourceList=/dev/null",
        "-oDir::Etc::SourceParts={0}/{1}/sources",
        "-oDir::State::Lists={0}/{1}/lists",
        "-oDir::Cache={0}/{1}/cache",
    ]).format(state, suite)

# Reads the machine's own apt sources, in both of apt's notations, and prints every archive that
# serves this Debian release as a stanza of source packages of suite $1. No mirror is named here.
_SOURCES_OF_THIS_MACHINE = r"""
set -eu
suite=$1
. /etc/os-release
[ -n "${VERSION_CODENAME:-}" ] && release=$VERSION_CODENAME || release=sid
{
for file in /etc/apt/sources.list.d/*.sources; do
  [ -e "$file" ] || continue
  awk -v release="$release" -v suite="$suite" '
    function flush() {
      if (uris != "" && (" " suites " ") ~ ("[ \t](" release "|sid|unstable)[ \t]") &&
          (" " components " ") ~ "[ \t]main[ \t]")
        printf "Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\n%s\n", uris, suite, signed
      uris = suites = components = signed = ""
    }
    /^[ \t]*$/ { flush(); next }
    /^#/ { next }
    tolower($1) == "uris:" { $1 = ""; uris = $0 }
    tolower($1) == "suites:" { $1 = ""; suites = $0 }
    tolower($1) == "components:" { $1 = ""; components = $0 }
    tolower($1) == "signed-by:" && NF > 1 { signed = $0 "\n" }
    END { flush() }' "$file"
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -e "$file" ] || continue
  awk -v release="$release" -v suite="$suite" '
    $1 == "deb" {
      signed = ""
      if (match($0, /signed-by=[^] \t]+/))
        signed = "Signed-By: " substr($0, RSTART + 10, RLENGTH - 10) "\n"
      sub(/\[[^]]*\]/, "")
      if (($3 == release || $3 == "sid" || $3 == "unstable") && (" " $0 " ") ~ "[ \t]main[ \t]")
        printf "Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\n%s\n", $2, suite, signed
    }' "$file"
done
} | awk '
  # An archive that is listed twice, once with a key and once without, would be an error.
  BEGIN { RS = ""; FS = "\n"; ORS = "\n\n" }
  { uri = $2; gsub(/[ \t]+/, " ", uri); sub(/\/$/, "", uri) }
  !seen[uri]++'
"""

def _debian_sources_impl(ctx):
    """Fetches the lists of source packages of each suite, once for all dependencies."""
    ctx.file("BUILD.bazel", "")
    if not ctx.which("apt-get"):
        ctx.file("problem", "this machine has no apt-get")
        return
    state = str(ctx.path("."))
    for suite in ctx.attr.suites:
        listed = ctx.execute(["bash", "-c", _SOURCES_OF_THIS_MACHINE, "sources", suite])
        if listed.return_code or not listed.stdout.strip():
            ctx.file("problem", "no Debian archive among apt's sources in /etc/apt " + listed.stderr)
            return
        ctx.file(suite + "/sources/debian.sources", listed.stdout)
        ctx.file(suite + "/lists/partial/.keep", "")
        ctx.file(suite + "/cache/archives/partial/.keep", "")
        ctx.report_progress("Reading Debian's list of source packages of " + suite)
        updated = ctx.execute(
            ["bash", "-c", "apt-get %s update" % _apt_options(state, suite)],
            timeout = 300,
        )
        if updated.return_code:
            ctx.file("problem", "apt-get update for %s failed: %s" % (suite, updated.stderr))
            return
    ctx.file("problem", "")

debian_sources = repository_rule(
    implementation = _debian_sources_impl,
    attrs = {"suites": attr.string_list(mandatory = True)},
    doc = "apt's view of Debian's source packages, private to this build.",
)

def _host_answers(ctx, url):
    """Whether the URL's host (or the proxy for it) accepts a connection soon.

    Bazel's own downloader waits for minutes before it gives an unreachable host up.
    """
    for variable in ["HTTPS_PROXY", "https_proxy"]:
        if ctx.os.environ.get(variable):
            url = ctx.os.environ[variable]
    scheme, _, rest = url.partition("://")
    host = rest.split("/")[0].split("@")[-1]
    host, _, port = host.partition(":")
    port = port or ("80" if scheme == "http" else "443")
    probe = ctx.execute([
        "timeout",
        str(_CONNECT_SECONDS),
        "bash",
        "-c",
        "exec 3<>/dev/tcp/%s/%s" % (host, port),
    ], timeout = _CONNECT_SECONDS + 5)
    return probe.return_code == 0

def _download(ctx, urls, archive):
    """Downloads the archive; Bazel checks its digest and keeps it in the repository cache."""
    return ctx.download(
        url = urls,
        output = archive.file,
        sha256 = archive.sha256,
        allow_fail = True,
    ).success

def _from_upstream(ctx, archive, problems):
    reachable = [url for url in ctx.attr.urls if _host_answers(ctx, url)]
    for url in ctx.attr.urls:
        if url not in reachable:
            problems.append("%s: no connection within %d s" % (url, _CONNECT_SECONDS))
    if not reachable:
        return False
    if _download(ctx, reachable, archive):
        return True
    problems.append("%s: the download failed or its sha256 is not %s" %
                    (", ".join(reachable), archive.sha256))
    return False

def _from_debian(ctx, archive, problems):
    package, suite = ctx.attr.debian_package, ctx.attr.debian_suite
    if not package:
        return False
    marker = ctx.path(Label("@megatron_debian_sources//:problem"))
    problem = ctx.read(marker).strip()
    if problem:
        problems.append("Debian source package %s: %s" % (package, problem))
        return False
    ctx.report_progress("Fetching Debian's source package " + package)
    fetched = ctx.execute([
        "bash",
        "-c",
        "mkdir -p .debian && cd .debian && " +
        "apt-get %s source --only-source --download-only --tar-only %s >&2 && " %
        (_apt_options(marker.dirname, suite), package) +
        "sha256sum *.orig.tar.*",
    ], timeout = 600)
    if fetched.return_code:
        problems.append("Debian source package %s of %s: %s" % (package, suite, fetched.stderr))
        return False
    for line in fetched.stdout.strip().split("\n"):
        sha256, _, tarball = line.partition("  ")
        if sha256 == archive.sha256:
            return _download(ctx, "file://%s/.debian/%s" % (ctx.path("."), tarball), archive)
    problems.append("Debian source package %s of %s: no tarball with sha256 %s, but\n%s" %
                    (package, suite, archive.sha256, fetched.stdout))
    return False

def _from_cache(ctx, archive):
    return _download(ctx, "file:///only/the/cache/" + archive.file, archive)

def _source_archive_impl(ctx):
    attr = ctx.attr
    upstream = struct(
        file = attr.urls[0].split("/")[-1],
        sha256 = attr.sha256,
        strip_prefix = attr.strip_prefix,
    )
    debian = upstream
    if attr.debian_sha256:
        debian = struct(
            file = "%s-debian.%s" % (ctx.name, attr.debian_format),
            sha256 = attr.debian_sha256,
            strip_prefix = attr.debian_strip_prefix,
        )
    problems = []
    if _from_upstream(ctx, upstream, problems):
        archive = upstream
    elif _from_debian(ctx, debian, problems):
        archive = debian
    elif _from_cache(ctx, upstream):
        archive = upstream
    elif debian != upstream and _from_cache(ctx, debian):
        archive = debian
    else:
        fail("cannot fetch @%s. Tried:\n  %s\nWith %s in a folder, --distdir=FOLDER helps." %
             (ctx.name, "\n  ".join(problems), upstream.file))
    ctx.extract(archive.file, stripPrefix = archive.strip_prefix)
    ctx.delete(archive.file)
    ctx.delete(".debian")
    if attr.build_file:
        ctx.delete("BUILD")
        ctx.delete("BUILD.bazel")
        ctx.symlink(attr.build_file, "BUILD.bazel")
    if not ctx.path("WORKSPACE").exists:
        ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)

source_archive = repository_rule(
    implementation = _source_archive_impl,
    attrs = {
        "urls": attr.string_list(mandatory = True, doc = "Upstream's archive, best first."),
        "sha256": attr.string(mandatory = True, doc = "Of upstream's archive."),
        "strip_prefix": attr.string(),
        "debian_package": attr.string(doc = "Debian's source package of the same release."),
        "debian_suite": attr.string(default = "bookworm"),
        "debian_sha256": attr.string(doc = "Of Debian's tarball, where it is not upstream's."),
        "debian_strip_prefix": attr.string(doc = "Goes with debian_sha256."),
        "debian_format": attr.string(default = "tar.xz", doc = "Goes with debian_sha256."),
        "build_file": attr.label(allow_single_file = True, doc = "Replaces upstream's BUILD file."),
    },
)
