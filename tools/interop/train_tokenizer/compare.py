"""Checks our BPE trainer against the BpeTrainer of Hugging Face's tokenizers: the same vocabulary, the same merges, and files that it loads.

  compare.py BIN_DIRECTORY WORK_DIRECTORY
"""

import base64
import json
import os
import random
import subprocess
import sys
import time

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BIN, WORK = sys.argv[1], sys.argv[2]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITS = {
    "gpt2": None,
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
PROBES = ["Hello world, it's 2024!\n\n  She'd say: \u201cna\u00efve caf\u00e9\u201d.", "\u543e\u8f29\u306f\u732b\u3067\u3042\u308b\u3002\u540d\u524d\u306f\u307e\u3060\u7121\u3044\u3002",
          "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0000\u0007\t\t x", "aaaaaaaaaaaaaaaaaaaaaaa bbbbb <|endoftext|> <pad>", ""]

results = []
written = []  # names of the comparisons that wrote a tiktoken file


def check(what, condition):
    print(("same: " if condition else "DIFFERENT: ") + what, flush=True)
    results.append(bool(condition))


def theirs(split, texts=None, files=None, **options):
    tokenizer = Tokenizer(models.BPE())
    if SPLITS[split] is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(SPLITS[split]), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    all_bytes = options.pop("all_bytes", True)
    max_token_length = options.pop("max_token_length", 0)
    trainer = trainers.BpeTrainer(
        show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if all_bytes else [],
        **({"max_token_length": max_token_length} if max_token_length else {}), **options)
    start = time.time()
    if files:
        tokenizer.train(files, trainer)
    else:
        tokenizer.train_from_iterator(texts, trainer)
    return tokenizer, time.time() - start


def compare(what, split="gpt2", texts=None, files=None, **options):
    """`texts` go into JSON lines, `files` are read as they are."""
    options = {"vocab_size": 3000, "min_frequency": 2, "special_tokens": ["<|endoftext|>"], **options}
    output = os.path.join(WORK, f"ours{len(results)}")
    arguments = []
    if texts is not None:
        files_of_ours = [output + ".jsonl"]
        with open(files_of_ours[0], "w", encoding="utf-8") as file:
            for i, text in enumerate(texts):
                file.write(json.dumps({"text": text}, ensure_ascii=i % 2 == 0) + "\n")
        arguments.append("--json_keys=text")
    else:
        files_of_ours = files
    for key, value in options.items():
        value = ",".join(value) if isinstance(value, list) else str(value).lower()
        arguments.append(f"--{key}={value}")
    start = time.time()
    subprocess.run([os.path.join(BIN, "tools/train_tokenizer"), "--input=" + ",".join(files_of_ours), "--output=" + output,
                    "--split_pattern=" + split, *arguments], check=True, stderr=subprocess.DEVNULL)
    our_seconds = time.time() - start
    tokenizer, their_seconds = theirs(split, texts, files, **options)
    expected = json.loads(tokenizer.to_str())["model"]
    merges = [" ".join(merge) for merge in expected["merges"]]
    vocab = json.load(open(output + "/vocab.json", encoding="utf-8"))
    check(f"{what}: {len(vocab)} tokens ({our_seconds:.2f} s, theirs {their_seconds:.2f} s)", vocab == expected["vocab"])
    lines = open(output + "/merges.txt", encoding="utf-8").read().split("\n")
    same = lines[0].startswith("#version") and lines[1:-1] == merges and lines[-1] == ""
    if not same:
        first = next((i for i, (a, b) in enumerate(zip(lines[1:], merges)) if a != b), min(len(lines) - 2, len(merges)))
        print(f"  {len(lines) - 2} merges and {len(merges)}; the first difference is at {first}: {lines[1 + first:4 + first]}, {merges[first:3 + first]}")
    check(f"{what}: {len(merges)} merges", same)
    ours = Tokenizer.from_file(output + "/tokenizer.json")
    probes = PROBES + [t[:2000] for t in (texts or [open(f, encoding="utf-8").read(3000) for f in files])[:5]]
    check(f"{what}: tokenizer.json encodes and decodes the same",
          all(ours.encode(p).ids == tokenizer.encode(p).ids and ours.decode(ours.encode(p).ids) == tokenizer.decode(tokenizer.encode(p).ids)
              for p in probes))
    loaded = Tokenizer(models.BPE.from_file(output + "/vocab.json", output + "/merges.txt"))
    loaded.pre_tokenizer = ours.pre_tokenizer
    loaded.add_special_tokens(options["special_tokens"])
    check(f"{what}: vocab.json and merges.txt encode the same", all(loaded.encode(p).ids == ours.encode(p).ids for p in probes))
    compare_tiktoken(what, output, ours, SPLITS[split] or GPT2, options["special_tokens"], probes)


def compare_tiktoken(what, output, ours, pattern, special, probes):
    """The package tiktoken makes of tokenizer.tiktoken what tokenizer.json says; the file may be left out where it can't."""
    path = output + "/tokenizer.tiktoken"
    if not os.path.exists(path):
        print(f"no tiktoken file: {what}")
        return
    pairs = [line.split() for line in open(path, encoding="ascii")]
    encoding = tiktoken.Encoding("ours", pat_str=pattern, special_tokens={},
                                 mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in pairs})
    same = all([len(special) + rank for rank in encoding.encode(p, disallowed_special=())] == ours.encode(p).ids
               for p in probes if not any(s in p for s in special))
    written.append(what)
    check(f"{what}: tokenizer.tiktoken encodes the same", same)


def random_texts(seed, letters, count, longest):
    draw = random.Random(seed)
    return ["".join(draw.choice(letters) for _ in range(draw.randint(1, longest))) for _ in range(count)]


def main():
    os.makedirs(WORK, exist_ok=True)
    os.chdir(WORK)
    subprocess.run([os.path.join(BIN, "tools/make_stories"), "--bytes=2000000", "--output=stories.jsonl"], check=True)
    stories = [json.loads(line)["text"] for line in open("stories.jsonl", encoding="utf-8")]
    compare("stories", texts=stories)
    compare("stories, no limit of frequency", texts=stories[:2000], vocab_size=20000, min_frequency=0)
    compare("stories, common pairs alone", texts=stories, min_frequency=50, special_tokens=["<pad>", "<|endoftext|>", "th", "e"])
    compare("stories, only bytes that are there", texts=stories, all_bytes=False, vocab_size=500)
    compare("stories, short tokens", texts=stories, max_token_length=5)
    compare("stories, Llama 3", split="llama3", texts=stories, vocab_size=1500)
    compare("stories, Tekken", split="tekken", texts=stories, vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>"])
    # Few letters and long words give many ties, and many tokens that two pairs spell.
    for seed in range(6):
        compare(f"random words {seed}", texts=random_texts(seed, "aab" if seed % 2 else "abcd ", 300, 40 + 30 * seed), vocab_size=700 + 400 * seed,
                min_frequency=seed % 3)
    compare("all kinds of characters", split="o200k", vocab_size=1000, min_frequency=0,
            texts=random_texts(9, "aB\u00e9\u0301\u5b57\u3042\U0001f600\u0e01 \n\t'\"\\\u0000\u00a07\u0664/!-", 400, 60))
    write_lines()
    compare("lines, with all their ends", files=["lines.txt"], vocab_size=400)
    data = os.environ.get("MEGATRON_TEST_DATA", "")
    for name, split, size in (("shakespeare.txt", "gpt2", 8000), ("shakespeare.txt", "qwen2", 3000), ("wagahai.ja.txt", "gpt2", 8000), ("wagahai.ja.txt", "llama3", 20000)):
        path = os.path.join(data, name)
        if os.path.exists(path):
            compare(f"{name}, {split}", split=split, files=[path], vocab_size=size, min_frequency=0)
    check(f"tiktoken files of {len(written)} vocabularies", {"stories", "stories, Llama 3", "stories, Tekken"} <= set(written))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def write_lines():
    with open("lines.txt", "w", encoding="utf-8", newline="") as file:
        for text in random_texts(5, "ab \u00e9", 500, 30):
            file.write(text + random.Random(text).choice(("\n", "\n\n", "\r\n", "\r", "\u2028", " \n", "\x0b\x0c\n")))
        file.write("the last line has no end")


sys.exit(main())
