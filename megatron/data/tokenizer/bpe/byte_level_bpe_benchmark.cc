// Measures encoding with one thread and with several, on stories, whose words repeat, and on bytes
// that never do.
//
// The vocabulary is made here from all beginnings of words. tools/interop/tokenizer_speed.py
// compares GPT-2's vocabulary with other programs.

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/data/text/stories.h"
#include "megatron/data/tokenizer/bpe/bpe_vocabulary.h"
#include "megatron/data/tokenizer/bpe/byte_level_bpe.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"

namespace megatron {
namespace {

std::string Stories() {
  std::string text;
  for (uint64_t i = 0; text.size() < 1 << 20; ++i) text += MakeStory(1, i);
  return text;
}

// Returns Han characters in random order: pieces are long, and none is repeated.
std::string Ideographs() {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < 1 << 20) {
    const uint32_t c = 0x4E00 + random() % 0x5000;
    text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
             static_cast<char>(0x80 | (c & 0x3F))};
    if (random() % 16 == 0) text += "\xE3\x80\x82";
  }
  return text;
}

ByteLevelVocabulary MakeVocabulary(const std::string& text) {
  std::set<std::string> beginnings;
  for (absl::string_view rest = text; !rest.empty();) {
    const size_t size = FirstPieceOf(SplitPattern::kGpt2)(rest);
    for (size_t i = 2; i <= size; ++i) beginnings.emplace(rest.substr(0, i));
    rest.remove_prefix(size);
  }
  ByteLevelVocabulary vocabulary;
  for (int i = 0; i < 256; ++i) vocabulary.tokens.push_back(std::string(1, static_cast<char>(i)));
  for (int i = 0x80; i < 0xC0; ++i) {
    vocabulary.tokens.push_back({'\xE5', static_cast<char>(i)});
    vocabulary.tokens.push_back({'\xE6', static_cast<char>(i)});
  }
  vocabulary.tokens.insert(vocabulary.tokens.end(), beginnings.begin(), beginnings.end());
  vocabulary.merges = MergesOfRanks(vocabulary.tokens);
  return vocabulary;
}

void Encode(benchmark::State& state, const std::string& text) {
  static const auto* const bpe = new ByteLevelBpe(MakeVocabulary(Stories()));
  const FirstPiece stages[] = {FirstPieceOf(SplitPattern::kGpt2)};
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    CHECK(bpe->Encode(text, stages, &ids).ok());
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void BM_EncodeStories(benchmark::State& state) {
  static const auto* const text = new std::string(Stories());
  Encode(state, *text);
}
BENCHMARK(BM_EncodeStories)->Threads(1)->Threads(2)->UseRealTime();

void BM_EncodeIdeographs(benchmark::State& state) {
  static const auto* const text = new std::string(Ideographs());
  Encode(state, *text);
}
BENCHMARK(BM_EncodeIdeographs)->Threads(1)->Threads(2)->UseRealTime();

void BM_EncodeOneLetter(benchmark::State& state) { Encode(state, std::string(1 << 20, 'a')); }
BENCHMARK(BM_EncodeOneLetter);

}  // namespace
}  // namespace megatron
