"""Times generated tokens of a random GPT-2 by transformers and by generate_text, in turn.

    generation_speed.py BAZEL_BIN FOLDER

A program's time for one token is the difference between a long and a short text, divided by the
difference of their tokens; loading the model is in neither. The best of three is printed. The greedy
texts of both are compared.
"""

import os
import subprocess
import sys
import time

import torch
import transformers

PROMPT = [50, 4312, 7, 991, 15, 2718, 88, 301]
SHORT, LONG = 8, 136


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
               for _ in range(3))
    return best / (LONG - SHORT)


def main():
    binaries, folder = sys.argv[1:]
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    model = make_model(os.path.join(folder, "hf"))
    checkpoint = os.path.join(folder, "imported")
    subprocess.run([os.path.join(binaries, "tools/import_hf"), "--no_tokenizer",
                    "--save=" + checkpoint, os.path.join(folder, "hf")], check=True)
    want, found = theirs(model, LONG), ours(binaries, checkpoint, LONG)
    print("PyTorch %s, transformers %s, %d threads, fp32" %
          (torch.__version__, transformers.__version__, cores))
    print("greedy texts of %d tokens: %s" % (LONG, "equal" if want == found else "differ"))
    for name, generate in (("transformers", lambda tokens: theirs(model, tokens)),
                           ("generate_text", lambda tokens: ours(binaries, checkpoint, tokens))):
        print("%-14s %6.2f tokens/s" % (name, 1 / per_token(generate)))
    print("%-14s %6.2f tokens/s of 16 sequences" %
          ("transformers", 16 / per_token(lambda tokens: theirs(model, tokens, 16))))


if __name__ == "__main__":
    main()
