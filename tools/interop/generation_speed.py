"""Times generated tokens of a random GPT-2 by transformers, llama.cpp and generate_text, in turn.

    generation_speed.py BAZEL_BIN FOLDER [LLAMA_PYTHON]

LLAMA_PYTHON is a Python that has llama_cpp; without it, llama.cpp is left out. A program's time for
one token is the difference between a long and a short text, divided by the difference of their
tokens; loading the model is in neither. The best of three is printed. The greedy texts are compared.
"""

import itertools
import json
import os
import subprocess
import sys
import time

import numpy
import torch
import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_cpp"))
import gguf_file  # noqa: E402

PROMPT = [50, 4312, 7, 991, 15, 2718, 88, 301]
SHORT, LONG = 8, 136
REPEATS = 3


def seconds(body):
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def make_model(folder):
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        bos_token_id=50256, eos_token_id=50256, initializer_range=0.06)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder, safe_serialization=True)
    return model


def theirs(model, tokens, sequences=1):
    prompt = torch.tensor([PROMPT] * sequences)
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                             min_new_tokens=tokens, max_new_tokens=tokens, use_cache=True,
                             pad_token_id=0)
    return out[0].tolist()


def ours(binaries, checkpoint, tokens):
    out = subprocess.run(
        [os.path.join(binaries, "tools/generate_text"), "--temperature=0",
         "--tokens_to_generate=%d" % tokens, "--prompt=" + " ".join(map(str, PROMPT)), checkpoint],
        check=True, capture_output=True, text=True).stdout
    return [int(word) for word in out.split()]


def per_token(generate):
    generate(SHORT)
    best = min(seconds(lambda: generate(LONG)) - seconds(lambda: generate(SHORT))
               for _ in range(REPEATS))
    return best / (LONG - SHORT)


def write_gguf(model, folder):
    """Writes the model for llama.cpp; returns the files by the type of their matrices."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    files = {}
    for name, dtype in (("fp32", numpy.float32), ("fp16", numpy.float16)):
        files[name] = os.path.join(folder, name + ".gguf")
        gguf_file.write(files[name], model.config, state, dtype)
    return files


def llamas(python, path, cores, sequences):
    """Returns what llama_speed.py prints of a GGUF file."""
    script = os.path.join(os.path.dirname(gguf_file.__file__), "llama_speed.py")
    numbers = [cores, sequences, REPEATS, SHORT, LONG] + PROMPT
    out = subprocess.run([python, script, path] + list(map(str, numbers)), check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main():
    binaries, folder = sys.argv[1:3]
    llama_python = sys.argv[3] if len(sys.argv) > 3 else None
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    model = make_model(os.path.join(folder, "hf"))
    checkpoint = os.path.join(folder, "imported")
    subprocess.run([os.path.join(binaries, "tools/import_hf"), "--no_tokenizer",
                    "--save=" + checkpoint, os.path.join(folder, "hf")], check=True)
    want = theirs(model, LONG)
    texts = {"generate_text": ours(binaries, checkpoint, LONG)}
    print("PyTorch %s, transformers %s, %d threads, fp32 but where it says fp16" %
          (torch.__version__, transformers.__version__, cores))
    if llama_python:
        files = write_gguf(model, folder)
        llama = llamas(llama_python, files["fp32"], cores, 1)
        print("llama-cpp-python %s" % llama["version"])
        texts["llama.cpp"] = llama["tokens"]
    for name, found in texts.items():
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(want, found)))
        print("greedy text of %-14s %s" %
              (name, "equal" if want == found else
               "differs from the %d. of %d tokens on" % (same + 1, len(want))))
    for name, generate in (("transformers", lambda tokens: theirs(model, tokens)),
                           ("generate_text", lambda tokens: ours(binaries, checkpoint, tokens))):
        print("%-14s %6.2f tokens/s" % (name, 1 / per_token(generate)))
    print("%-14s %6.2f tokens/s of 16 sequences" %
          ("transformers", 16 / per_token(lambda tokens: theirs(model, tokens, 16))))
    if llama_python:
        print("%-14s %6.2f tokens/s" % ("llama.cpp", 1 / llama["seconds"]))
        print("%-14s %6.2f tokens/s, weights in fp16" %
              ("llama.cpp", 1 / llamas(llama_python, files["fp16"], cores, 1)["seconds"]))
        print("%-14s %6.2f tokens/s of 16 sequences" %
              ("llama.cpp", 16 / llamas(llama_python, files["fp32"], cores, 16)["seconds"]))


if __name__ == "__main__":
    main()
