// Measures how fast samples of BERT and T5 are drawn. The data is synthetic, so reading takes no
// time.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/data/masked/bert_dataset.h"
#include "megatron/data/masked/mock_sentences.h"
#include "megatron/data/masked/t5_dataset.h"

namespace megatron {
namespace {

constexpr int32_t kVocabSize = 30522;
constexpr int32_t kSeqLength = 512;

template <typename Dataset, typename Sample>
void ReadSamples(benchmark::State& state, const absl::StatusOr<std::unique_ptr<Dataset>>& dataset) {
  CHECK(dataset.ok()) << dataset.status();
  Sample sample;
  int64_t index = 0;
  for (auto _ : state) {
    CHECK((*dataset)->Get(index++ % (*dataset)->size(), &sample).ok());
    benchmark::DoNotOptimize(sample.labels.data());
  }
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * kSeqLength), benchmark::Counter::kIsRate);
}

void BM_BertSample(benchmark::State& state) {
  BertDatasetOptions options;
  options.seq_length = kSeqLength;
  ReadSamples<BertDataset, BertSample>(
      state, CreateMockDataset<BertDataset>(Split::kTrain, MockWordPieces(kVocabSize, 0), options));
}
BENCHMARK(BM_BertSample);

void BM_T5Sample(benchmark::State& state) {
  T5DatasetOptions options;
  options.seq_length = kSeqLength;
  options.decoder_seq_length = 128;
  ReadSamples<T5Dataset, T5Sample>(
      state, CreateMockDataset<T5Dataset>(Split::kTrain, MockWordPieces(kVocabSize, 100), options));
}
BENCHMARK(BM_T5Sample);

void BM_BuildBertDataset(benchmark::State& state) {
  BertDatasetOptions options;
  options.seq_length = kSeqLength;
  options.num_samples = 100000;
  for (auto _ : state) {
    const auto dataset =
        CreateMockDataset<BertDataset>(Split::kTrain, MockWordPieces(kVocabSize, 0), options);
    CHECK(dataset.ok()) << dataset.status();
    benchmark::DoNotOptimize((*dataset)->size());
  }
  state.SetItemsProcessed(state.iterations() * *options.num_samples);
}
BENCHMARK(BM_BuildBertDataset)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
