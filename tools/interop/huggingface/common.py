"""What the comparisons with Hugging Face's packages have in common: where programs and files are, and
how a check is counted. The program is called with BAZEL_BIN and WORK_DIRECTORY."""

import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

BIN, WORK = sys.argv[1], sys.argv[2]
TOKENS = [3, 17, 0, 42, 42, 7, 29, 1, 11, 36, 48, 5, 23, 2, 9, 31]
VOCABULARY = 49  # odd, so that padding matters

counts = {"passed": 0, "failed": 0}


def check(name, condition, detail=""):
    if condition:
        counts["passed"] += 1
    else:
        counts["failed"] += 1
        print(f"FAILED {name} {detail}")


def run(tool, *arguments):
    command = [os.path.join(BIN, tool), *arguments]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def refused(tool, *arguments):
    """What a program says that must fail; None where it did not."""
    result = subprocess.run([os.path.join(BIN, tool), *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    return result.stdout if result.returncode != 0 else None


def path(*names):
    return os.path.join(WORK, *names)


def finish():
    """Ends the program with what was counted."""
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    sys.exit(counts["failed"] != 0)
