"""The programs of the GPU check: which there are, and how they get into a folder that can be carried elsewhere."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import calibration

try:
    import lzma
    LZMAError = lzma.LZMAError
except ImportError:  # a Python without it opens no archive of ours, and says so
    LZMAError = tarfile.CompressionError

# The tests, the most valuable first. `build` adds all others that are tagged gpu; these need no
# tag.
TESTS = ("ops/cuda/hopper:tiles_device_test", "ops/cuda/hopper:attention_test", "ops/cuda:kernels_test",
         "ops/cuda:large_tensors_test", "ops/cuda:layer_norm_test", "train/layouts:cuda_placement_test",
         "ops/cuda:float8_kernels_test", "ops/cuda:moe_kernels_test", "ops/cuda:recurrence_kernels_test",
         "comm/overlap:comm_stream_test", "tensor/trace:trace_test", "comm/nccl:nccl_device_test")
# Tests that are built once more, with waits for barriers that give up and say so.
_WATCHED = ("ops/cuda/hopper:tiles_device_test", "ops/cuda/hopper:attention_test")
BENCHMARKS = ("ops/cuda:kernels_benchmark",)
TRAINER = "train:pretrain_gpt"
TOOLS = ("comm_bench", "plot_loss")
PEER = "pytorch_gpu_speed.py"
_SANITIZER = "compute-sanitizer"
_ARCHIVE = "programs.tar.xz"


def _name(target):
    return target.split(":")[1]


def tests(programs):
    known = [_name(target) for target in TESTS]
    return known + sorted(name for name in os.listdir(programs) if name.endswith("_test") and name not in known)


def watched(name):
    """The program that is this test with waits for barriers that give up."""
    return name + "_watched"


def sanitizer(programs):
    """Its path: in the bundle, on PATH or in the toolkit; none where it is nowhere."""
    packed = os.path.join(programs, "sanitizer", _SANITIZER)
    toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", _SANITIZER)
    for path in (packed, shutil.which(_SANITIZER), toolkit):
        if path and os.access(path, os.X_OK):
            return path
    return None


def _toolkit_version():
    nvcc = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    return re.search(r"release (\d+)\.(\d+)", text).groups()


def _pack_sanitizer(directory):
    """Of the toolkit's version. Toolkits that are put together from packages often lack it."""
    major, minor = _toolkit_version()
    package = "nvidia-cuda-sanitizer-api" + ("" if int(major) >= 13 else "-cu" + major)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", scratch,
                        "%s==%s.%s.*" % (package, major, minor)], check=True)
        wheel, = glob.glob(os.path.join(scratch, "*.whl"))
        target = os.path.join(directory, "sanitizer")
        os.makedirs(target, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                # All files are in one folder, as in a toolkit: the program looks for its libraries
                # beside itself.
                if re.search(r"/(bin/compute-sanitizer|[^/]*\.so)$", name):
                    path = os.path.join(target, os.path.basename(name))
                    with archive.open(name) as packed, open(path, "wb") as out:
                        shutil.copyfileobj(packed, out)
                    os.chmod(path, 0o755)


def _size(directory):
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(directory) for name in names)


def _build_into(directory, root, flags, names):
    """Builds targets, and copies their programs under the given names, without symbols."""
    bazel = os.path.join(root, "bazelw")
    subprocess.run([bazel, "build", *flags, *names], cwd=root, check=True)
    where = subprocess.run([bazel, "info", *flags, "bazel-bin"], cwd=root, check=True, capture_output=True,
                           text=True).stdout.strip()
    for target, name in names.items():
        program = os.path.join(directory, name)
        subprocess.run(["strip", "-o", program, os.path.join(where, target[2:].replace(":", "/"))], check=True)
        os.chmod(program, 0o755)  # Bazel's are for reading alone, and could not be unpacked over


def build(root, directory):
    """Builds all programs and packs them into `directory`, which then holds all that the check needs.

    Raises Unusable.
    """
    try:
        _build(root, directory)
    except subprocess.CalledProcessError as error:
        raise Unusable("%s failed with exit code %d%s" % (
            " ".join(error.cmd[:2]), error.returncode, "\n" + error.stderr.strip() if error.stderr else ""))
    except OSError as error:
        raise Unusable("cannot build: %s: %s" % (error.strerror, error.filename))


def _build(root, directory):
    os.makedirs(directory, exist_ok=True)
    directory = os.path.abspath(directory)
    flags = ["--config=cuda", "--define=cuda_archs=" + os.environ.get("CUDA_ARCHS", "sm_90a")]
    bazel = os.path.join(root, "bazelw")
    targets = ["//megatron/" + target for target in TESTS + BENCHMARKS + (TRAINER,)]
    targets += ["//tools:" + tool for tool in TOOLS]
    tagged = subprocess.run([bazel, "query", r'attr(tags, "\bgpu\b", tests(//megatron/...))'], cwd=root, check=True,
                            capture_output=True, text=True).stdout.split()
    targets += [target for target in tagged if target not in targets]
    with tempfile.TemporaryDirectory() as scratch:
        _build_into(scratch, root, flags, {target: _name(target) for target in targets})
        _build_into(scratch, root, [*flags, "--define=watch_barriers=1"],
                    {"//megatron/" + target: watched(_name(target)) for target in _WATCHED})
        try:
            _pack_sanitizer(scratch)
        except (OSError, AttributeError, ValueError, subprocess.CalledProcessError) as error:
            print("compute-sanitizer is not packed, and `check` fails where it is not installed: %s" % error)
        # The size matters for copying to another machine. All programs have the same kernels, 30 MB, of which xz keeps
        # one copy: its window of 64 MiB reaches back to the program before. Preset 9, which has that window too, makes
        # a file that is 13 % smaller in more than three times the time.
        path = os.path.join(directory, _ARCHIVE)
        method = [{"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": 64 << 20}]
        with lzma.open(path + ".new", "wb", filters=method) as packed, \
                tarfile.open(fileobj=packed, mode="w") as archive:
            for name in sorted(os.listdir(scratch)):
                archive.add(os.path.join(scratch, name), name)
        os.replace(path + ".new", path)
    shutil.copy(os.path.join(root, "tools", "gpu_check"), directory)
    shutil.copy(os.path.join(root, "tools", "interop", PEER), directory)
    modules = os.path.join(directory, "gpu")
    os.makedirs(modules, exist_ok=True)
    for module in glob.glob(os.path.join(root, "tools", "gpu", "*.py")):
        shutil.copy(module, modules)
    shutil.copy(calibration.facts_path(), modules)
    print("%s: %.1f MiB" % (directory, _size(directory) / 2**20))


class Unusable(Exception):
    """A bundle could not be made or unpacked; the text says why."""


def unpack(directory):
    """Once; `directory` then holds the programs themselves. False where there are none. Raises Unusable."""
    archive = os.path.join(directory, _ARCHIVE)
    trainer = os.path.join(directory, _name(TRAINER))
    if not os.path.exists(archive):
        return os.path.exists(trainer)
    # A bundle that was built anew replaces the programs of the one before.
    if not os.path.exists(trainer) or os.path.getmtime(trainer) < os.path.getmtime(archive):
        try:
            with tarfile.open(archive, "r:xz") as packed:
                packed.extractall(directory)
                # What tarfile takes for the end may be damage before it: the checksum behind all of it tells.
                while packed.fileobj.read(1 << 20):
                    pass
            os.utime(trainer)
        except (EOFError, LZMAError, tarfile.TarError) as error:
            raise Unusable("%s is not whole: %s; copy it again" % (archive, error))
        except OSError as error:
            raise Unusable("cannot unpack %s: %s; copy its folder to where it can be written to" %
                           (archive, error.strerror))
    return True
