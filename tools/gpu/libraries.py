"""The shared libraries of our programs: where they are looked for, and which are found nowhere."""

import os
import shutil
import subprocess

from session import Failure, NotHere


def library_path():
    """Returns LD_LIBRARY_PATH as it is, with the toolkit's folder and, behind it, those of Python's packages.

    Our programs name the toolkit's folder on the machine that built them. Python's packages bring the same libraries
    with PyTorch, of its version, and cuDNN, which toolkits lack.
    """
    folders = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    folders += [path for path in (os.path.join(home, name) for name in ("lib64", "lib")) if os.path.isdir(path)][:1]
    code = ("import glob, nvidia\n"
            "for path in nvidia.__path__:\n"
            "    print(*sorted(glob.glob(path + '/*/lib')), sep='\\n')")
    try:
        found = subprocess.run([os.environ.get("PYTHON", "python3"), "-c", code], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=30)
        folders += [line for line in found.stdout.splitlines() if os.path.isdir(line)]
    except (OSError, subprocess.TimeoutExpired):
        pass
    return ":".join(folders)


def require_libraries(session, programs):
    """Asks the dynamic linker of each program; its whole answer is in the log."""
    ldd = shutil.which("ldd")
    if ldd is None:
        raise NotHere("this machine has no ldd")
    missing = {}
    for i, name in enumerate(programs):
        if not os.path.exists(session.program(name)):
            continue
        ran = session.run([ldd, session.program(name)], "ldd.log", 20, append=i > 0)
        for line in ran.text().splitlines():
            if "not found" in line:
                missing.setdefault(line.strip(), []).append(name)
    if missing:
        raise Failure("; ".join("%s (%s)" % (line, ", ".join(names)) for line, names in missing.items()))
    return {"programs": len(programs)}
