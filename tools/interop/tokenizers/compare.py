"""Compares our tokenizers with the packages tokenizers and tiktoken, token for token.

usage: compare.py ENCODE_TEXTS SCRATCH [DATA]

ENCODE_TEXTS is our program (encode_texts.cc), SCRATCH a directory, DATA one with GPT-2's vocabulary and
some books. Prints "N passed, N failed".
"""

import json
import os
import random
import subprocess
import sys
import unicodedata

import tiktoken
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
         r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = CASED % (CONTRACTIONS, CONTRACTIONS, "{1,3}")
TEKKEN = CASED % ("", "", "")
CL100K_TIKTOKEN = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
                   r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s")

SCRIPTS = [
    "The quick brown fox can't jump over 12,345.67 lazy dogs; it's they're I'VE 'LL we'd.",
    "Größe naïve coöperate Ærøskøbing ŁÓDŹ İstanbul ſtraße ﬁne ǅungla",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ΑΒΓ αβγ ς Σ",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。ｱｲｳ ２０２４年",
    "我能吞下玻璃而不伤身体。𠜎𠜱𠝹 第１２３号",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요 각",
    "أنا قادر على أكل الزجاج و هذا لا يؤلمني. ١٢٣ שלום עולם בְּרֵאשִׁית",
    "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती. १२३ ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇯🇵 e\u0301 a\u0308\u0323 \u0301 x\u0301\u0302 ½ ² Ⅷ ①",
    "tabs\tand\r\nline\n\n\nbreaks \n \n  x   y\u00a0z\u3000w\u2028v\u0085u\u200bt\x1c \u180e",
    "def f(x):\n    return x**2 + 1  # (comment)\n\n\nclass Foo(Bar):\n\tpass\n/* c */ // d\n",
    "HTTPServerError camelCase XMLHttpRequest ABCdef'S McDonald's ALL CAPS'LL a/b//c\n/d",
    "<|endoftext|> <|im_start|> </s> <s> [CLS] [MASK] <unk> <0x41>",
    "", " ", "  ", "\n", " \n", "\n ", "a ", " a", "'", "''s", "'S'", "'ſ", "1 2  3", "0123456789" * 3,
]


def random_texts(count):
    rng = random.Random(7)
    texts = []
    alphabet = " \n\r\t'aAbBzZ0159.,!?/_-éÉñßąŻαΩжЖあア漢語한글\u0301\u0308\u00a0\u3000\u2028²Ⅳ½👍ǅʰªſİ"
    for _ in range(count):
        size = rng.randrange(1, 120)
        kind = rng.randrange(3)
        if kind == 0:
            texts.append(bytes(rng.randrange(256) for _ in range(size)).decode("latin-1"))
        elif kind == 1:
            texts.append(bytes(rng.randrange(256) for _ in range(size)).decode("utf-8", errors="replace"))
        else:
            texts.append("".join(rng.choice(alphabet) for _ in range(size)))
    return texts


def code_points():
    """All that are assigned, and some of the others."""
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and
            (c % 64 == 0 or unicodedata.category(chr(c)) not in ("Cn", "Co"))]


# Letters, marks and numbers that Unicode 15.1, 16.0 and 17.0 added.
ADDED = [(0x088F, 0x088F), (0x0897, 0x0897), (0x0C5C, 0x0C5C), (0x0CDC, 0x0CDC), (0x1ACF, 0x1AEB),
         (0x1C89, 0x1C8A), (0x20C1, 0x20C1), (0x2FFC, 0x2FFF), (0x31E4, 0x31EF), (0xA7CB, 0xA7DC),
         (0xA7F1, 0xA7F1), (0x105C0, 0x105FF), (0x10940, 0x1095F), (0x10D40, 0x10D8F), (0x10EC2, 0x10EC7),
         (0x10EFA, 0x10EFC), (0x11380, 0x113FF), (0x116D0, 0x116E3), (0x11B60, 0x11B67), (0x11BC0, 0x11BFF),
         (0x11DB0, 0x11DE9), (0x11F5A, 0x11F5A), (0x13460, 0x143FF), (0x16100, 0x1613F), (0x16D40, 0x16D7F),
         (0x16EA0, 0x16EDF), (0x16FF2, 0x16FF6), (0x187F8, 0x187FF), (0x18CFF, 0x18CFF), (0x18D09, 0x18DF2),
         (0x1CC00, 0x1CEFF), (0x1E5D0, 0x1E5FF), (0x1E6C0, 0x1E6FF), (0x2EBF0, 0x2EE5D),
         (0x323B0, 0x3347F)]


def unassigned_in_15(c):
    return any(first <= c <= last for first, last in ADDED)


class Checks:
    def __init__(self, encode_texts, scratch):
        self.program = encode_texts
        self.scratch = scratch
        self.passed = 0
        self.failed = 0

    def check(self, name, ok, detail=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
        print("%s %s %s" % ("ok    " if ok else "FAILED", name, "" if ok else detail), flush=True)

    def run(self, flags, data):
        done = subprocess.run([self.program] + flags, input=data, stdout=subprocess.PIPE, check=True)
        return done.stdout

    def encode(self, flags, texts):
        """Lists of ids, or of an error's text."""
        data = b"".join(b"%d\n%s" % (len(t), t) for t in (x.encode() for x in texts))
        lines = self.run(flags, data).decode().split("\n")[:-1]
        assert len(lines) == len(texts), (len(lines), len(texts))
        return [line if line.startswith("error") else [int(x) for x in line.split()] for line in lines]

    def decode(self, flags, lists):
        data = self.run(flags + ["--decode"], "".join(" ".join(map(str, ids)) + "\n" for ids in lists).encode())
        texts = []
        while data:
            size, data = data.split(b"\n", 1)
            texts.append(data[:int(size)])
            data = data[int(size):]
        return texts

    def same_ids(self, name, flags, texts, theirs):
        ours = self.encode(flags, texts)
        wrong = [i for i in range(len(texts)) if ours[i] != theirs[i]]
        detail = ""
        if wrong:
            i = min(wrong, key=lambda i: len(texts[i]))
            detail = "%d of %d texts; %r: ours %s, theirs %s" % (
                len(wrong), len(texts), texts[i][:80], ours[i][:40], theirs[i][:40])
        self.check("%s (%d texts)" % (name, len(texts)), not wrong, detail)

    def round_trip(self, name, flags, texts):
        ours = self.encode(flags, texts)
        decoded = self.decode(flags, ours)
        wrong = [t for t, d in zip(texts, decoded) if t.encode() != d]
        self.check("%s decodes what it encodes" % name, not wrong, repr(wrong[:1])[:200])


def books(data):
    texts = []
    for name in ("shakespeare.txt", "wagahai.ja.txt"):
        path = os.path.join(data, name) if data else ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as book:
                texts.append(book.read())
    return texts


def in_context(characters):
    """Each character beside letters, digits, symbols and spaces; several to a text."""
    return ["\n".join("%s;a%sb %s %s1 .%s\n%s A%sa" % ((c,) * 7) for c in characters[i:i + 16])
            for i in range(0, len(characters), 16)]


def train_byte_level(corpus, pre_tokenizer, normalizer=None, size=2000, special=("<|endoftext|>",)):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def split_of(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def without_special_pieces(tokenizer):
    """A Unigram model finds special tokens of its vocabulary in plain text, and ours does not: their spelling becomes
    one that no text has, but for the unknown token's."""
    state = json.loads(tokenizer.to_str())
    if state["model"]["type"] != "Unigram":
        return tokenizer
    vocab = state["model"]["vocab"]
    special = {t["content"] for t in state["added_tokens"] if t["special"]} - {vocab[state["model"]["unk_id"]][0]}
    state["model"]["vocab"] = [["\ue000" + piece if piece in special else piece, score] for piece, score in vocab]
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["special"]]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def ids_without_special(tokenizer, texts):
    """What a tokenizer.json gives with special tokens taken as text."""
    tokenizer = without_special_pieces(tokenizer)
    tokenizer.encode_special_tokens = True
    ids = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    tokenizer.encode_special_tokens = False
    return ids


def ids_with_special(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def with_exact_sums(unigram):
    """Scores in steps of 1/1024, whose sums have no rounding. Training differs from run to run in last bits, and
    these would decide between orders of the same pieces, as of a line of dashes."""
    saved = json.loads(unigram.to_str())
    saved["model"]["vocab"] = [[piece, round(score * 1024) / 1024] for piece, score in saved["model"]["vocab"]]
    return tokenizers.Tokenizer.from_str(json.dumps(saved))


def check_tokenizer_json(checks, name, tokenizer, texts, byte_level=True):
    path = os.path.join(checks.scratch, name.replace(" ", "_") + ".json")
    tokenizer.save(path)
    tokenizer = tokenizers.Tokenizer.from_file(path)
    flags = ["--tokenizer_type=HuggingFaceTokenizer", "--tokenizer_model=" + path]
    checks.same_ids(name, flags, texts, ids_without_special(tokenizer, texts))
    checks.same_ids(name + ", special tokens", flags + ["--parse_special"], texts, ids_with_special(tokenizer, texts))
    ids = ids_with_special(tokenizer, texts)
    ours = checks.decode(flags, ids)
    theirs = [tokenizer.decode(i, skip_special_tokens=False).encode() for i in ids]
    wrong = [i for i in range(len(ids)) if ours[i].decode("utf-8", "replace").encode() != theirs[i]]
    detail = "%r: ours %r, theirs %r" % (texts[wrong[0]][:60], ours[wrong[0]][:80], theirs[wrong[0]][:80]) if wrong else ""
    checks.check(name + ", decoding", not wrong, detail)


def check_gpt2(checks, data, texts, characters):
    vocab, merges = (os.path.join(data, n) for n in ("gpt2-vocab.json", "gpt2-merges.txt"))
    flags = ["--tokenizer_type=GPT2BPETokenizer", "--vocab_file=" + vocab, "--merge_file=" + merges]
    theirs = tokenizers.Tokenizer(models.BPE.from_file(vocab, merges))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    checks.same_ids("GPT-2 and tokenizers", flags, texts, ids_without_special(theirs, texts))
    with open(vocab, encoding="utf-8") as file:
        by_spelling = json.load(file)
    letters = {}
    free = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            letters[chr(byte)] = byte
        else:
            letters[chr(free)] = byte
            free += 1
    ranks = {bytes(letters[c] for c in spelling): rank for spelling, rank in by_spelling.items()
             if spelling != "<|endoftext|>"}
    for name, pattern in (("GPT-2", GPT2),):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                                     special_tokens={"<|endoftext|>": 50256})
        checks.same_ids("GPT-2 and tiktoken", flags, texts, [encoding.encode_ordinary(t) for t in texts])
        checks.same_ids("GPT-2 and tiktoken, special tokens", flags + ["--parse_special"], texts,
                        [encoding.encode(t, allowed_special="all") for t in texts])
        checks.same_ids("GPT-2, every character", flags, characters,
                        [encoding.encode_ordinary(t) for t in characters])
    checks.round_trip("GPT-2", flags, texts + characters)
    spelled = tiktoken_file(checks, ranks)
    for version, pattern in (("v1", r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"),
                             ("v2", TEKKEN)):
        flags = ["--tokenizer_type=TikTokenizer", "--tokenizer_model=" + spelled, "--tiktoken_pattern=" + version]
        encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks={t: r + 1000 for t, r in ranks.items()},
                                     special_tokens={})
        checks.same_ids("TikTokenizer " + version, flags, texts, [encoding.encode_ordinary(t) for t in texts])
        checks.same_ids("TikTokenizer %s, every character" % version, flags, characters,
                        [encoding.encode_ordinary(t) for t in characters])
        checks.round_trip("TikTokenizer " + version, flags, texts)


def tiktoken_file(checks, ranks):
    import base64
    path = os.path.join(checks.scratch, "gpt2.tiktoken")
    with open(path, "wb") as file:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            file.write(b"%s %d\n" % (base64.b64encode(token), rank))
    return path


def main():
    program, scratch = sys.argv[1:3]
    data = sys.argv[3] if len(sys.argv) > 3 else ""
    os.makedirs(scratch, exist_ok=True)
    checks = Checks(program, scratch)
    corpus = [t for t in SCRIPTS if t] * 4 + [line for b in books(data) for line in b[:200000].splitlines(True)]
    texts = SCRIPTS + random_texts(3000) + books(data)
    # The time of their Split grows nearly with the square of a text's length.
    short = SCRIPTS + random_texts(2000) + [b[at:at + 3000] for b in books(data) for at in range(0, 90000, 3000)]
    known = [c for c in code_points() if not unassigned_in_15(ord(c))]
    characters = in_context(known)

    if data:
        check_gpt2(checks, data, texts, characters)
    else:
        checks.check("GPT-2: no folder with its files was given", False)
    mixed = short + characters[::8]
    for name, pattern in (("GPT-2's pattern", GPT2), ("Llama 3", CL100K), ("Qwen 2", QWEN2), ("o200k", O200K),
                          ("Tekken", TEKKEN)):
        normalizer = normalizers.NFC() if name == "Qwen 2" else None
        tokenizer = train_byte_level(corpus, split_of(pattern), normalizer)
        tokenizer.add_special_tokens(["<|im_start|>", tokenizers.AddedToken("[MASK]", lstrip=True)])
        tokenizer.add_tokens([tokenizers.AddedToken("brown", single_word=True),
                              tokenizers.AddedToken("</s>", rstrip=True, normalized=False)])
        check_tokenizer_json(checks, name, tokenizer, mixed)
    tokenizer = train_byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=True))
    check_tokenizer_json(checks, "ByteLevel with a space before", tokenizer, short)
    tokenizer = train_byte_level(corpus, pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    check_tokenizer_json(checks, "StarCoder", tokenizer, short)
    tokenizer.model.ignore_merges = True
    check_tokenizer_json(checks, "whole pieces first", tokenizer, short)
    check_characters(checks, corpus, short, mixed)
    check_words(checks, corpus, short, in_context([c for c in known if unchanged(c)])[::8])
    print("%d passed, %d failed" % (checks.passed, checks.failed))


def check_characters(checks, corpus, texts, mixed):
    alphabet = [chr(c) for c in range(33, 127)]
    trainer = dict(show_progress=False, vocab_size=1500)
    llama = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    # The training text is split into words, or merges would cross them.
    words = [w for t in corpus for w in t.split()][:60000]
    llama.train_from_iterator(words, trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet,
                                                         limit_alphabet=200, **trainer))
    state = json.loads(llama.to_str())
    state["added_tokens"] = state["added_tokens"][:3]  # bytes are no special tokens
    llama = tokenizers.Tokenizer.from_str(json.dumps(state))
    check_tokenizer_json(checks, "Llama 2", llama, mixed)
    # Gemma's steps, and the other ways to split at a string, here one that the texts have often.
    state["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    for mark, behavior in [(" ", "MergedWithPrevious"), ("▁", "MergedWithPrevious"), ("▁", "MergedWithNext"),
                           ("▁", "Isolated"), ("a", "Contiguous"), ("e", "Removed")]:
        state["pre_tokenizer"] = {"type": "Split", "pattern": {"String": mark}, "behavior": behavior, "invert": False}
        check_tokenizer_json(checks, "split at '%s', %s" % (mark, behavior),
                             tokenizers.Tokenizer.from_str(json.dumps(state)), texts)
    state["normalizer"] = None
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    state["model"]["byte_fallback"] = False
    check_tokenizer_json(checks, "BPE with unknown characters", tokenizers.Tokenizer.from_str(json.dumps(state)),
                         texts)


def unchanged(c):
    """Their tables for BERT are those of Unicode 8.0; what 3.2 knew has stayed."""
    return unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)


def check_words(checks, corpus, texts, characters):
    trainer = dict(show_progress=False, vocab_size=1500)
    mixed = texts + characters
    bert = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer = normalizers.BertNormalizer(lowercase=True)
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.decoder = decoders.WordPiece()
    bert.train_from_iterator(corpus, trainers.WordPieceTrainer(
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=400, **trainer))
    check_tokenizer_json(checks, "BERT", bert, mixed)
    bert.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    check_tokenizer_json(checks, "BERT cased", bert, mixed)
    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.train_from_iterator(SCRIPTS * 4 + corpus[60:4000], trainers.UnigramTrainer(
        special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", **trainer))
    check_tokenizer_json(checks, "Unigram", with_exact_sums(unigram), mixed)


if __name__ == "__main__":
    main()
