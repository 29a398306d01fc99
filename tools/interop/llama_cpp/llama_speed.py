"""Generates greedily by llama.cpp, and prints what it took as JSON.

    llama_speed.py MODEL_FILE CORES SEQUENCES REPEATS FEWEST MOST PROMPT_TOKEN...

Each repeat generates FEWEST and MOST tokens for so many sequences, all of them with the same prompt.
Printed are the tokens of the first sequence and the least time for a token of each sequence: the
difference between the two, divided by that of their tokens.
"""

import json
import sys
import time

import llama_cpp
import numpy

ERROR = 4  # ggml's number of errors among the levels of its messages


@llama_cpp.llama_log_callback
def tell_errors(level, text, _):
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


class Generator:
    def __init__(self, path, cores, sequences, prompt, most):
        llama_cpp.llama_log_set(tell_errors, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = (prompt + most) * sequences, sequences
        params.n_batch = params.n_ubatch = max(64, prompt * sequences)  # tokens of one call
        params.n_threads = params.n_threads_batch = cores
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        self.sequences = sequences
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params())
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.model or not self.context:
            raise SystemExit("llama.cpp cannot read %s" % path)
        self.words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def decode(self, begin, rows):
        """Computes rows[s], the tokens of sequence s from the place `begin` on; returns the next ones."""
        batch, last = self.batch, []
        batch.n_tokens = sum(map(len, rows))
        index = 0
        for sequence, row in enumerate(rows):
            for place, token in enumerate(row):
                batch.token[index], batch.pos[index] = token, begin + place
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
                batch.logits[index] = place + 1 == len(row)
                index += 1
            last.append(index - 1)
        code = llama_cpp.llama_decode(self.context, batch)
        if code != 0:
            raise SystemExit("llama_decode ends with %d" % code)
        return [int(numpy.ctypeslib.as_array(
            llama_cpp.llama_get_logits_ith(self.context, i), (self.words,)).argmax()) for i in last]

    def generate(self, prompt, tokens):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        newest = self.decode(0, [prompt] * self.sequences)
        found = [newest[0]]
        for place in range(len(prompt), len(prompt) + tokens - 1):
            newest = self.decode(place, [[token] for token in newest])
            found.append(newest[0])
        return list(prompt) + found


def seconds(body):
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def main():
    path = sys.argv[1]
    cores, sequences, repeats, fewest, most = map(int, sys.argv[2:7])
    prompt = list(map(int, sys.argv[7:]))
    generator = Generator(path, cores, sequences, len(prompt), most)
    tokens = generator.generate(prompt, most)
    best = min(seconds(lambda: generator.generate(prompt, most)) -
               seconds(lambda: generator.generate(prompt, fewest)) for _ in range(repeats))
    print(json.dumps({"version": llama_cpp.__version__, "tokens": tokens,
                      "seconds": best / (most - fewest)}))


if __name__ == "__main__":
    main()
