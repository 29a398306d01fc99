"""Compares our SentencePiece and BERT tokenizers, token for token, with the Python packages
sentencepiece and tokenizers: compare.py ENCODE_TEXTS SCRATCH_DIRECTORY. Prints "N passed, N failed".

Trains small models with the packages themselves, on text of this repository and of
$MEGATRON_TEST_DATA; that folder's own models are compared too.
"""

import glob
import os
import random
import subprocess
import sys
import unicodedata

import sentencepiece
import tokenizers

SAMPLES = [
    "The quick brown fox jumps over the lazy dog. It's 12:30, isn't it?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Portez ce vieux whisky au juge blond qui fume; l’été, naïveté, cœur.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia ¿y frío?",
    "Широкая электрификация южных губерний даст мощный толчок подъёму.",
    "ΟΔΥΣΣΕΥΣ Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. ΣΑΣ Σ",
    "いろはにほへと ちりぬるを。吾輩は猫である。名前はまだ無い。ガギグゲゴ ｶﾞｷﾞ",
    "我能吞下玻璃而不伤身体。我能吞下玻璃而不傷身體。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "नमस्ते दुनिया, यह एक परीक्षण वाक्य है। क्षत्रिय",
    "নমস্কার বিশ্ব। বাংলা ভাষা।",
    "வணக்கம் உலகம். தமிழ் மொழி.",
    "สวัสดีชาวโลก ภาษาไทยง่ายนิดเดียว",
    "مرحبا بالعالم، هذه جملة اختبار. ٠١٢٣٤",
    "שלום עולם, זהו משפט בדיקה. שָׁלוֹם",
    "Xin chào thế giới, đây là một câu thử nghiệm. Tiếng Việt",
    "გამარჯობა მსოფლიო. ՀԱՅԵՐԵՆ Բարեւ աշխարհ",
    "ሰላም ልዑል ዓለም። မင်္ဂလာပါ ကမ္ဘာလောက",
    "Emoji 😀👩‍👩‍👧‍👦🏳️‍🌈🇯🇵 ☕️ and symbols ①②③ ™ ½ ㎏ ﬁ ﬂ ℃ Ⅷ",
    "İstanbul ǅ ß ẞ ﬀ ŉ Å Å e\u0301 o\u0308\u0323 ᾳ ͅ",
    "def f(x):\n\treturn x ** 2  # code\r\n\n    if a_b != 0x1F: pass",
    "http://example.com/a?b=c&d=%20e#f user@example.org $12.50 100%",
]
ODDITIES = [
    "", " ", "  ", "\n", "a", " a", "a ", "  a  b  ", "\u3000全角\u3000空白\u3000", "\u00a0nbsp\u00a0x",
    "▁", "▁▁a▁ ▁b", "a▁b", "<s>", "</s>", "<unk>", "a<s>b</s>c", "<0x0A>", "<0xE3>", "[MASK] [UNK]",
    "<sep>x<sep> <sep>", "<cls>", "日本<sep>日本語", "日 本", "\x00", "a\x00b", "\u200b\u200d\ufeff",
    "\u0301", "a\u0301\u0302\u0323", "\ufffd", "\u2028\u2029\x85", "\t\v\f\r\n",
    "a" * 3000, " " * 3000, "\u0301" * 3000, "ab" * 2000, "日" * 2000, "𝔘𝔫𝔦" * 300,
    "x" * 199, "x" * 200, "x" * 201, "é" * 200, "e\u0301" * 200, "\U0010ffff\ue000\U000e0001",
]


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = 0

    def check(self, name, texts, ours, theirs):
        """Counts one comparison, and shows its first differences."""
        wrong = [i for i in range(len(texts)) if ours[i] != theirs[i]]
        if not wrong and len(ours) == len(theirs) == len(texts) > 0:
            self.passed += 1
            return
        self.failed += 1
        print(f"FAILED {name}: {len(wrong)} of {len(texts)} differ")
        for i in wrong[:3]:
            print(f"  text   {texts[i][:100]!r}\n  ours   {str(ours[i])[:300]}\n"
                  f"  theirs {str(theirs[i])[:300]}")


class Ours:
    """Our tokenizers, through the program encode_texts."""

    def __init__(self, program, *flags):
        self.command = [program, *flags]

    def encode(self, texts, *flags):
        data = b"".join(b"%d\n%s" % (len(t), t) for t in map(to_bytes, texts))
        return [self.parse(line) for line in self.run(data, *flags).decode().split("\n")[:-1]]

    def decode(self, lists):
        out = self.run("".join(" ".join(map(str, ids)) + "\n" for ids in lists).encode(), "--decode")
        texts = []
        while out:
            size, out = out.split(b"\n", 1)
            texts.append(out[:int(size)].decode("utf-8"))
            out = out[int(size):]
        return texts

    def run(self, data, *flags):
        return subprocess.run([*self.command, *flags], input=data, stdout=subprocess.PIPE,
                              check=True).stdout

    @staticmethod
    def parse(line):
        if line.startswith("error"):
            return line
        return [tuple(map(int, w.split(":"))) if ":" in w else int(w) for w in line.split()]


def to_bytes(text):
    return text if isinstance(text, bytes) else text.encode("utf-8")


def corpus(data):
    """Lines to train on and to compare, in a fixed order."""
    lines = []
    for path in sorted(glob.glob("docs/*.md")) + ["README.md"]:
        with open(path, encoding="utf-8") as f:
            lines += f.read().split("\n")
    for name in ("shakespeare.txt", "wagahai.ja.txt"):
        path = os.path.join(data, name) if data else ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                lines += f.read().split("\n")[:3000]
    return lines + SAMPLES * 3


def all_code_points():
    """Every code point, between letters, between spaces and behind its neighbour, 64 to a text."""
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    texts = []
    for i in range(0, len(chars), 64):
        texts.append("".join(f"a{c} {c}" for c in chars[i:i + 64]))
    return texts


def random_texts(count, seed):
    rng = random.Random(seed)
    alphabets = [
        lambda: rng.choice("".join(SAMPLES)),
        lambda: rng.choice("abeou \u0301\u0302\u0308\u0323\u0327\u0345"),
        lambda: rng.choice(" \t\n\u3000\u00a0▁ab"),
        lambda: chr(rng.choice([rng.randrange(0x20, 0x800), rng.randrange(0x800, 0xD800),
                                rng.randrange(0xE000, 0x20000), rng.randrange(0xFB00, 0x10000)])),
        lambda: rng.choice(["<sep>", "<s>", "</s>", "日本", "the", "  ", "ｶﾞ", "각", "\u1100\u1161", "ﬁ"]),
    ]
    return ["".join(rng.choice(alphabets)() for _ in range(rng.randrange(1, 60)))
            for _ in range(count)]


def random_bytes(count, seed):
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        if rng.random() < 0.5:
            text = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40)))
        else:
            text = bytearray(rng.choice(SAMPLES).encode())
            for _ in range(rng.randrange(1, 6)):
                text[rng.randrange(len(text))] = rng.randrange(256)
            text = bytes(text)
        texts.append(text)
    return texts


SPM_MODELS = {
    "unigram": dict(),
    "unigram_bytes": dict(byte_fallback=True, character_coverage=0.98),
    "unigram_unknowns": dict(character_coverage=0.98, unk_surface="<?>", pad_id=3),
    "unigram_nfkc": dict(normalization_rule_name="nfkc"),
    "unigram_cf": dict(normalization_rule_name="nmt_nfkc_cf", user_defined_symbols=["<sep>", "日本"]),
    "unigram_identity": dict(normalization_rule_name="identity", remove_extra_whitespaces=False),
    "unigram_spaces": dict(split_by_whitespace=False, add_dummy_prefix=False),
    "unigram_suffix": dict(treat_whitespace_as_suffix=True),
    "bpe": dict(model_type="bpe"),
    "bpe_llama": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, split_digits=True,
                      allow_whitespace_only_pieces=True),
    "bpe_unknowns": dict(model_type="bpe", character_coverage=0.98, control_symbols=["<cls>"]),
    "bpe_cf": dict(model_type="bpe", normalization_rule_name="nfkc_cf",
                   user_defined_symbols=["<sep>", "日本", "  "]),
    "bpe_spaces": dict(model_type="bpe", split_by_whitespace=False, add_dummy_prefix=False),
    "bpe_suffix": dict(model_type="bpe", treat_whitespace_as_suffix=True, byte_fallback=True),
}


def train_sentencepiece(lines, directory):
    paths = {}
    for name, options in SPM_MODELS.items():
        prefix = os.path.join(directory, name)
        options = {"vocab_size": 3000, "num_threads": 2, "hard_vocab_limit": False, "minloglevel": 2, **options}
        if options.get("model_type") == "bpe":
            del options["hard_vocab_limit"]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=prefix, **options)
        paths[name] = prefix + ".model"
    return paths


def compare_sentencepiece(tally, program, name, path, texts, byte_texts):
    theirs = sentencepiece.SentencePieceProcessor(model_file=path)
    ours = Ours(program, "--tokenizer_type=GPTSentencePieceTokenizer", f"--tokenizer_model={path}")
    expected = theirs.encode(texts)
    tally.check(f"{name} ids", texts, ours.encode(texts), expected)
    tally.check(f"{name} ids of bytes", byte_texts, ours.encode(byte_texts),
                [theirs.encode(t) for t in byte_texts])
    few = texts[:300]
    tally.check(f"{name} spans", few, ours.encode(few, "--spans"),
                [byte_spans(theirs, t) for t in few])
    tally.check(f"{name} decoding", texts, ours.decode(expected), theirs.decode(expected))
    rng = random.Random(5)
    lists = [[rng.choice([rng.randrange(theirs.vocab_size()), rng.randrange(12)])
              for _ in range(rng.randrange(1, 20))] for _ in range(1000)]
    tally.check(f"{name} decoding of any ids", lists, ours.decode(lists), theirs.decode(lists))


def byte_spans(processor, text):
    """(id, begin, end) of each piece; their offsets count characters, ours bytes."""
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode("utf-8")))
    pieces = processor.encode(text, out_type="immutable_proto").pieces
    return [(p.id, at[p.begin], at[p.end]) for p in pieces]


def compare_megatron_flavor(tally, program, path):
    """SentencePieceTokenizer: special tokens in text, around which Megatron encodes parts alone."""
    theirs = sentencepiece.SentencePieceProcessor(model_file=path)
    ours = Ours(program, "--tokenizer_type=SentencePieceTokenizer", f"--tokenizer_model={path}")
    names = ["<CLS>", "<SEP>", "<EOD>", "<MASK>"]
    size = theirs.vocab_size()
    ids = {name: size + i for i, name in enumerate(names)}
    rng = random.Random(6)
    texts, expected = [], []
    for _ in range(300):
        parts = [rng.choice(SAMPLES) for _ in range(3)]
        picks = [rng.choice(names) for _ in range(2)]
        texts.append(parts[0] + picks[0] + parts[1] + picks[1] + parts[2])
        expected.append(theirs.encode(parts[0]) + [ids[picks[0]]] + theirs.encode(parts[1]) +
                        [ids[picks[1]]] + theirs.encode(parts[2]))
    tally.check("SentencePieceTokenizer parses special tokens", texts,
                ours.encode(texts, "--parse_special"), expected)
    tally.check("SentencePieceTokenizer leaves special tokens alone", texts, ours.encode(texts),
                theirs.encode(texts))


# --- BERT. The rules that came with it, written down from their description; `unicodedata` is the
# oracle for everything about characters.


def bert_words(text, lower):
    text = "".join(" " if is_bert_space(c) else f" {c} " if is_ideograph(c) else c for c in text
                   if c not in "\0\ufffd" and (c in "\t\n\r" or
                                               unicodedata.category(c) not in ("Cc", "Cf")))
    for token in text.split():
        if lower:
            token = "".join(c for c in unicodedata.normalize("NFD", token.lower())
                            if unicodedata.category(c) != "Mn")
        word = ""
        for c in token:
            if is_punctuation(c):
                if word:
                    yield word
                yield c
                word = ""
            else:
                word += c
        if word:
            yield word


def is_bert_space(c):
    return c in " \t\n\r" or unicodedata.category(c) == "Zs"


def is_punctuation(c):
    return c in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(c)[0] == "P"


def is_ideograph(c):
    return any(first <= ord(c) <= last for first, last in (
        (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)))


def bert_ids(text, vocab, lower, longest=200):
    ids = []
    for word in bert_words(text, lower):
        ids += bert_pieces(word, vocab) if len(word) <= longest else [vocab["[UNK]"]]
    return ids


def bert_pieces(word, vocab):
    ids, begin = [], 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            piece = ("##" if begin else "") + word[begin:end]
            if piece in vocab:
                ids.append(vocab[piece])
                break
        else:
            return [vocab["[UNK]"]]
        begin = end
    return ids


def known_to_python(text):
    """Without characters that unicodedata doesn't know yet, and ours does."""
    return "".join(c for c in text if unicodedata.category(c) != "Cn")


def compare_bert(tally, program, lines, texts, directory):
    for lower in (True, False):
        trained = tokenizers.BertWordPieceTokenizer(lowercase=lower, strip_accents=lower)
        trained.train_from_iterator(lines, vocab_size=4000, show_progress=False)
        vocab = trained.get_vocab()
        path = os.path.join(directory, f"vocab_{lower}.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(piece + "\n" for piece in sorted(vocab, key=vocab.get))
        name = "BertWordPieceLowerCase" if lower else "BertWordPieceCase"
        ours = Ours(program, f"--tokenizer_type={name}", f"--vocab_file={path}")
        known = [known_to_python(t) for t in texts]
        tally.check(f"{name} ids by BERT's rules", known, ours.encode(known),
                    [bert_ids(t, vocab, lower) for t in known])
        # Hugging Face's dialect differs in these; its tables of characters are older, too.
        # [BOS] and [EOS] are special tokens of Megatron's alone.
        plain = [t for t in SAMPLES + lines[:1000] + ODDITIES
                 if len(t) < 100 and not set("Σ\ue000") & set(t) and "OS]" not in t]
        theirs = [e.ids for e in trained.encode_batch(plain, add_special_tokens=False)]
        tally.check(f"{name} ids by tokenizers", plain, ours.encode(plain, "--parse_special"), theirs)
        lists = [t for t in theirs if t][:500]
        tally.check(f"{name} decoding", lists, ours.decode(lists),
                    [bert_decode(ids, vocab) for ids in lists])
        compare_tokenizer_json(tally, program, f"{name} as tokenizer.json", trained._tokenizer, plain,
                               directory)


def bert_decode(ids, vocab):
    pieces = {i: piece for piece, i in vocab.items()}
    text = " ".join(pieces[i] for i in ids).replace(" ##", "").strip()
    for old, new in ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
                     (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"),
                     (" 're", "'re")):
        text = text.replace(old, new)
    return text


def compare_tokenizer_json(tally, program, name, theirs, texts, directory):
    folder = os.path.join(directory, name.replace(" ", "_"))
    os.makedirs(folder)
    path = os.path.join(folder, "tokenizer.json")
    theirs.save(path)
    ours = Ours(program, "--tokenizer_type=HuggingFaceTokenizer", f"--tokenizer_model={path}")
    tally.check(name, texts, ours.encode(texts, "--parse_special"),
                [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)])


def unigram_json(path):
    """A tokenizer.json with the pieces and rules of a SentencePiece model."""
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    pieces = [(processor.id_to_piece(i), processor.get_score(i))
              for i in range(processor.vocab_size())]
    model = tokenizers.models.Unigram(pieces, processor.unk_id(), processor.is_byte(3))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Sequence([
        tokenizers.normalizers.Precompiled(charsmap_of(path)),
        tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    # Every published file has them. Without them `tokenizers` has no special tokens, but ours has
    # those of the usual names, as `transformers` has.
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def charsmap_of(path):
    """Field 2 of field 3 of the model."""
    def fields(message):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = message[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(message):
            tag = varint()
            if tag & 7 == 2:
                size = varint()
                yield tag >> 3, message[at:at + size]
                at += size
            elif tag & 7 == 5:
                at += 4
            else:
                varint()
    with open(path, "rb") as f:
        spec = dict(fields(f.read()))[3]
    return dict(fields(spec))[2]


def main():
    program, directory = sys.argv[1:]
    data = os.environ.get("MEGATRON_TEST_DATA", "")
    tally = Tally()
    lines = corpus(data)
    os.makedirs(directory, exist_ok=True)
    models = train_sentencepiece([l for l in lines[::4] if l.strip()] + SAMPLES, directory)
    points = all_code_points()
    texts = SAMPLES + ODDITIES + lines[::12] + random_texts(800, 1) + points[::50]
    byte_texts = random_bytes(300, 2)
    for name in ("sentencepiece_en.model", "sentencepiece_ja.model"):
        if data and os.path.exists(os.path.join(data, name)):
            models[name] = os.path.join(data, name)
    for name, path in models.items():
        everything = name in ("unigram", "bpe_llama")
        compare_sentencepiece(tally, program, name, path, texts + points if everything else texts,
                              byte_texts)
    compare_megatron_flavor(tally, program, models["unigram"])
    compare_bert(tally, program, lines,
                 SAMPLES + ODDITIES + lines[::12] + random_texts(800, 3) + points[::5], directory)
    for name in ("unigram", "unigram_bytes", "unigram_cf"):
        compare_tokenizer_json(tally, program, f"{name} as tokenizer.json", unigram_json(models[name]),
                               [t for t in SAMPLES + lines[::12] if t], directory)
    if not data:
        print("MEGATRON_TEST_DATA is not set: trained on the repository's documents alone")
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
