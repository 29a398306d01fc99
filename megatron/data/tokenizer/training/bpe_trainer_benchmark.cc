// Measures how fast words are counted, and how fast a vocabulary is trained on their counts.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/training/bpe_trainer.h"
#include "megatron/data/tokenizer/training/word_counts.h"

namespace megatron {
namespace {

// The text has words of 1 to 12 letters, with short words and early letters more often, which gives
// about as many pairs to merge as prose.
const std::string& Text() {
  static const auto* const text = [] {
    auto* made = new std::string;
    uint64_t state = 1;
    const auto draw = [&](uint32_t limit) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<uint32_t>((state >> 33) % limit);
    };
    while (made->size() < 2000000) {
      const uint32_t length = 1 + draw(1 + draw(12));
      made->push_back(' ');
      for (uint32_t i = 0; i < length; ++i)
        made->push_back(static_cast<char>('a' + draw(1 + draw(26))));
    }
    return made;
  }();
  return *text;
}

void BM_CountWords(benchmark::State& state) {
  for (auto _ : state) {
    WordCounts words;
    words.AddText(Text(), FirstPieceOf(SplitPattern::kGpt2));
    benchmark::DoNotOptimize(words.size());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * Text().size()));
}
BENCHMARK(BM_CountWords)->Unit(benchmark::kMillisecond);

void BM_Train(benchmark::State& state) {
  WordCounts words;
  words.AddText(Text(), FirstPieceOf(SplitPattern::kGpt2));
  BpeTrainerOptions options;
  options.vocab_size = static_cast<int32_t>(state.range(0));
  ThreadPool pool(static_cast<int>(state.range(1)));
  for (auto _ : state) {
    const auto bpe = TrainBpe(words, options, &pool, [](int32_t) {});
    CHECK(bpe.ok()) << bpe.status();
    benchmark::DoNotOptimize(bpe->merges.size());
  }
  state.SetLabel(absl::StrCat(words.size(), " different words"));
}
BENCHMARK(BM_Train)
    ->ArgNames({"tokens", "threads"})
    ->Args({8000, 1})
    ->Args({8000, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
