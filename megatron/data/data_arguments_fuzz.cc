// Fuzzes the parsers of --split and --data_path (entries separated by spaces): any text gives
// either an error, or shares and weights that sum to 1 and splits that cover all sequences in
// order.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/blend.h"
#include "megatron/data/split.h"

namespace {

using megatron::Split;

void CheckSplit(absl::string_view text) {
  const absl::StatusOr<megatron::SplitShares> shares = megatron::ParseSplit(text);
  if (!shares.ok()) return;
  CHECK_LT(std::abs(std::accumulate(shares->begin(), shares->end(), 0.0) - 1), 1e-12);
  for (const int64_t sequences : {int64_t{0}, int64_t{1}, int64_t{1000003}}) {
    int64_t end = 0;
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      const megatron::SequenceRange range = megatron::SplitRange(split, *shares, sequences);
      CHECK_EQ(range.begin, end);
      CHECK_GE(range.size(), 0);
      end = range.end;
    }
    CHECK_EQ(end, sequences);
  }
}

void CheckBlend(const std::vector<std::string>& entries) {
  const absl::StatusOr<megatron::BlendSpec> blend = megatron::ParseBlend(entries);
  if (!blend.ok()) return;
  if (blend->weights.empty()) {
    CHECK(blend->prefixes == entries);
    return;
  }
  CHECK_EQ(blend->weights.size(), blend->prefixes.size());
  CHECK_EQ(2 * blend->weights.size(), entries.size());
  double sum = 0;
  for (const double weight : blend->weights) {
    CHECK_GE(weight, 0);
    sum += weight;
  }
  CHECK_LT(std::abs(sum - 1), 1e-9);
  constexpr int64_t kSamples = 20;
  const megatron::BlendIndex index = megatron::BuildBlendIndex(blend->weights, kSamples);
  std::vector<int64_t> taken(blend->weights.size());
  for (size_t i = 0; i < kSamples; ++i) {
    CHECK_EQ(index.sample[i], taken.at(static_cast<size_t>(index.dataset[i]))++);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  CheckSplit(text);
  CheckBlend(absl::StrSplit(text, ' ', absl::SkipEmpty()));
  return 0;
}
