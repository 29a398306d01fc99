// Measures how fast SentencePiece's models and BERT's split English-like text into pieces, with a
// vocabulary of its words' beginnings.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_bpe.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_normalizer.h"
#include "megatron/data/tokenizer/sentencepiece/unigram_model.h"
#include "megatron/data/tokenizer/wordpiece/wordpiece_tokenizer.h"

namespace megatron {
namespace {

const char* const kWords[] = {
    "the",    "of",     "and",      "language",      "model", "transformer",
    "to",     "train",  "training", "parallelism",   "in",    "tokens",
    "was",    "which",  "because",  "understanding", "is",    "a",
    "layers", "weight", "gradient", "optimizer",     "with",  "attention"};

// Returns about a megabyte of text.
std::string Text() {
  std::string text;
  uint64_t state = 1;
  while (text.size() < size_t{1} << 20) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    text += kWords[(state >> 33) % (sizeof(kWords) / sizeof(kWords[0]))];
    text += (state >> 60) == 0 ? ", " : " ";
  }
  return text;
}

// Returns letters, and the words' beginnings of up to 6 letters, each also with "▁" in front.
std::set<std::string> Pieces() {
  std::set<std::string> pieces = {"▁", ","};
  for (char c = 'a'; c <= 'z'; ++c) pieces.insert(std::string(1, c));
  for (const std::string word : kWords) {
    for (size_t size = 1; size <= word.size() && size <= 6; ++size) {
      pieces.insert(word.substr(0, size));
      pieces.insert("▁" + word.substr(0, size));
    }
  }
  return pieces;
}

SentencePieceModel Model() {
  SentencePieceModel model;
  model.unk_id = 0;
  model.pieces.push_back({"<unk>", 0, SentencePieceModel::Kind::kUnknown});
  for (const std::string& piece : Pieces()) {
    model.pieces.push_back({piece, -20.0f + static_cast<float>(piece.size())});
  }
  return model;
}

std::string Normalized() {
  const SentencePieceNormalizer normalizer({}, {}, {});
  return normalizer.Normalize(Text(), nullptr);
}

template <typename Encoder>
void Encode(benchmark::State& state, const Encoder& encoder) {
  const std::string text = Normalized();
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    CHECK(encoder.Encode(text, &ids, nullptr).ok());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void BM_SentencePieceNormalize(benchmark::State& state) {
  const SentencePieceNormalizer normalizer({}, {}, {});
  const std::string text = Text();
  for (auto _ : state) benchmark::DoNotOptimize(normalizer.Normalize(text, nullptr));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(BM_SentencePieceNormalize);

void BM_SentencePieceBpe(benchmark::State& state) {
  Encode(state, SentencePieceBpe::Create(Model()).value());
}
BENCHMARK(BM_SentencePieceBpe);

void BM_Unigram(benchmark::State& state) {
  std::vector<UnigramPiece> pieces;
  for (const SentencePieceModel::Piece& piece : Model().pieces) {
    pieces.push_back({piece.text, piece.score, UnigramPiece::Kind::kNormal});
  }
  UnigramOptions options;
  options.unk_id = 0;
  options.float_sums = true;
  Encode(state, UnigramModel::Create(pieces, options).value());
}
BENCHMARK(BM_Unigram);

void BM_WordPiece(benchmark::State& state) {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const std::string& piece : Pieces()) {
    vocabulary += piece + "\n";
    if (piece.size() == 1) vocabulary += "##" + piece + "\n";
  }
  const auto tokenizer = WordPieceTokenizer::FromBytes(vocabulary, {}).value();
  const std::string text = Text();
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    CHECK(tokenizer->Encode(text, &ids).ok());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(BM_WordPiece);

}  // namespace
}  // namespace megatron
