"""Checks the machine code of kernels that are compiled for Hopper: each keeps nothing in local memory
(STL, LDL, spills), but the one for rows that no team of threads can hold. Those in a folder `hopper`
multiply on the matrix units (HGMMA), and wait for them no earlier than their source says (ptxas
reports otherwise by messages C7510 and their like).

    hopper_code.py ACTIONS EXECUTION_ROOT SCRATCH

ACTIONS is what `bazel aquery --output=jsonproto` prints of the compilations. They run again here, for
what ptxas says of them. nvdisasm is that of this Python's environment.
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import sysconfig

MAY_SPILL = "BackwardOfWideRows"
NVDISASM = pathlib.Path(sysconfig.get_paths()["purelib"], "nvidia/cu13/bin/nvdisasm")


def run(command, **options):
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def compile_again(action, root, scratch):
    """Returns the source, what ptxas says, and the machine code of each kernel."""
    arguments = action["arguments"]
    source = pathlib.Path(arguments[arguments.index("-c") + 1])
    cubin = scratch / (source.name + ".cubin")
    arguments[arguments.index("-o") + 1] = str(cubin)
    arguments[arguments.index("-c")] = "-cubin"
    environment = {pair["key"]: pair["value"] for pair in action["environmentVariables"]}
    messages = run(arguments + ["-Xptxas=-v"], cwd=root, env=environment).stderr
    text = run([NVDISASM, "-c", cubin]).stdout
    # A kernel's code begins with its section.
    kernels = re.split(r"^\s*\.section\s+\.text\.(\S+?),", text, flags=re.MULTILINE)[1:]
    return source, messages, dict(zip(kernels[::2], kernels[1::2]))


def faults_of(source, messages, kernels):
    """Returns sentences, none if all is as it should be."""
    faults = [f"ptxas: {line}" for line in messages.splitlines() if re.search(r"\bC75\d\d\b", line)]
    spills = re.findall(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads",
                        messages, re.DOTALL)
    if not kernels or len(spills) != len(kernels):
        faults.append(f"{len(kernels)} kernels, and what ptxas says of {len(spills)}")
    faults += [f"{name} spills {stores} and {loads} bytes" for name, stores, loads in spills
               if (stores, loads) != ("0", "0") and MAY_SPILL not in name]
    for name, code in kernels.items():
        if MAY_SPILL in name:
            continue
        instructions = re.findall(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", code)
        operations = {instruction.split(".")[0] for instruction in instructions}
        faults += [f"{name}: {operation}" for operation in ("LDL", "STL") if operation in operations]
        if "HGMMA" not in operations and source.parent.name == "hopper":
            faults.append(f"{name}: no HGMMA among {len(instructions)} instructions")
    return faults


def main():
    actions, root, scratch = (pathlib.Path(argument) for argument in sys.argv[1:])
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        compilations = json.loads(actions.read_text())["actions"]
        for source, messages, kernels in pool.map(lambda action: compile_again(action, root, scratch),
                                                  compilations):
            faults = faults_of(source, messages, kernels)
            most = max(map(int, re.findall(r"Used (\d+) registers", messages)), default=0)
            print(f"{source.name}: {len(kernels)} kernels, up to {most} registers; "
                  f"{'as it should be' if not faults else 'WRONG'}")
            for fault in faults:
                print(f"  {fault}")
            passed += not faults
            failed += bool(faults)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
