"""Encoding speed of SentencePiece models and BERT vocabularies: ours beside the packages sentencepiece
and tokenizers, in one run, one thread each.

usage: speed.py ENCODE_TEXTS DATA SCRATCH_DIRECTORY

ENCODE_TEXTS is our program (bazel build //tools/interop/tokenizers:encode_texts), DATA a folder with
sentencepiece_{en,ja}.model and the books. Needs the packages in the versions of sentencepiece.sh.
BPE models and a BERT vocabulary of 8,000 pieces are trained on the books. A document is some lines of
a book, 4 KB or a little more; each figure is the best of five passes over all of them, taken in turns.
"""

import os
import subprocess
import sys
import time

import sentencepiece
import tokenizers

DOCUMENT_BYTES = 4096
PASSES = 5


def documents(path):
    texts, lines, size = [], [], 0
    with open(path, encoding="utf-8") as book:
        for line in book:
            lines.append(line)
            size += len(line.encode())
            if size >= DOCUMENT_BYTES:
                texts.append("".join(lines))
                lines, size = [], 0
    return texts + ["".join(lines)]


def ours(command, texts):
    data = b"".join(b"%d\n%s" % (len(t), t) for t in (text.encode() for text in texts))
    out = subprocess.run([*command, "--measure=1"], input=data, stdout=subprocess.PIPE, check=True)
    count, seconds = out.stdout.split()[:2]
    return int(count), float(seconds)


def theirs(encode, texts):
    start = time.perf_counter()
    count = sum(len(encode(text)) for text in texts)
    return count, time.perf_counter() - start


def compare(name, command, encode, texts):
    best = [float("inf"), float("inf")]
    for _ in range(PASSES):
        our_count, our_seconds = ours(command, texts)
        their_count, their_seconds = theirs(encode, texts)
        assert our_count == their_count, (name, our_count, their_count)
        best = [min(best[0], our_seconds), min(best[1], their_seconds)]
    megabytes = sum(len(t.encode()) for t in texts) / 1e6
    print(f"{name:32} {megabytes / best[0]:7.1f} MB/s, package {megabytes / best[1]:6.2f} MB/s, "
          f"{best[1] / best[0]:5.1f} times", flush=True)


def main():
    program, data, scratch = sys.argv[1:]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.makedirs(scratch, exist_ok=True)
    for language, book in (("en", "shakespeare.txt"), ("ja", "wagahai.ja.txt")):
        path = os.path.join(data, book)
        texts = documents(path)
        models = {"unigram": os.path.join(data, f"sentencepiece_{language}.model")}
        for name, options in (("BPE", {}), ("BPE with bytes", {"byte_fallback": True})):
            prefix = os.path.join(scratch, f"{language} {name}")
            sentencepiece.SentencePieceTrainer.train(
                input=path, model_prefix=prefix, model_type="bpe", vocab_size=8000, minloglevel=2,
                **options)
            models[name] = prefix + ".model"
        for name, model in models.items():
            processor = sentencepiece.SentencePieceProcessor(model_file=model)
            compare(f"SentencePiece {name}, {language}",
                    [program, "--tokenizer_type=GPTSentencePieceTokenizer",
                     f"--tokenizer_model={model}"], processor.encode, texts)
        bert = tokenizers.BertWordPieceTokenizer()
        bert.train([path], vocab_size=8000, show_progress=False)
        (vocab,) = bert.save_model(scratch, language)
        compare(f"BERT, {language}",
                [program, "--tokenizer_type=BertWordPieceLowerCase", f"--vocab_file={vocab}"],
                lambda text: bert.encode(text, add_special_tokens=False).ids, texts)


if __name__ == "__main__":
    main()
