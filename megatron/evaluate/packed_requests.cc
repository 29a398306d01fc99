#include "megatron/evaluate/packed_requests.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"

namespace megatron {

PackedRequests::PackedRequests(const std::vector<ScoreRequest>& requests, int64_t seq_length,
                               int64_t batch)
    : requests_(requests), seq_length_(seq_length) {
  int64_t used = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t inputs = requests[i].num_inputs();
    CHECK_LE(inputs, seq_length);
    if (i > 0 && used + inputs > seq_length) {
      ends_.push_back(i);
      used = 0;
    }
    used += inputs;
  }
  ends_.push_back(requests.size());
  size_ = RoundUp(static_cast<int64_t>(ends_.size()), batch);
}

template <typename Visitor>
void PackedRequests::ForEachIn(int64_t sample, const Visitor& visit) const {
  if (sample >= static_cast<int64_t>(ends_.size())) return;
  int64_t position = 0;
  for (size_t i = sample == 0 ? 0 : ends_[sample - 1]; i < ends_[sample]; ++i) {
    visit(i, position);
    position += requests_[i].num_inputs();
  }
}

absl::Status PackedRequests::Get(int64_t index, Sample* sample) const {
  if (index < 0 || index >= size_) {
    return absl::OutOfRangeError(
        absl::StrCat("sample ", index, " is not one of the ", size_, " of a task"));
  }
  const auto length = static_cast<size_t>(seq_length_);
  sample->tokens.assign(length, 0);
  sample->labels.assign(length, 0);
  sample->loss_mask.assign(length, 0);
  sample->positions.resize(length);
  sample->document_starts.clear();
  int64_t used = 0;
  ForEachIn(index, [&](size_t i, int64_t position) {
    const ScoreRequest& request = requests_[i];
    const int64_t inputs = request.num_inputs();
    std::copy_n(request.tokens.begin(), inputs, sample->tokens.begin() + position);
    std::copy_n(request.tokens.begin() + 1, inputs, sample->labels.begin() + position);
    std::fill(sample->loss_mask.begin() + position + request.first_scored - 1,
              sample->loss_mask.begin() + position + inputs, 1.0f);
    std::iota(sample->positions.begin() + position, sample->positions.begin() + position + inputs,
              0);
    sample->document_starts.push_back(static_cast<int32_t>(position));
    used = position + inputs;
  });
  if (used < seq_length_) {
    std::iota(sample->positions.begin() + used, sample->positions.end(), 0);
    sample->document_starts.push_back(static_cast<int32_t>(used));
  }
  return absl::OkStatus();
}

void PackedRequests::AddScores(int64_t first, absl::Span<const float> losses,
                               absl::Span<const float> hits,
                               std::vector<RequestScore>* scores) const {
  const int64_t samples = static_cast<int64_t>(losses.size()) / seq_length_;
  for (int64_t s = 0; s < samples; ++s) {
    ForEachIn(first + s, [&](size_t i, int64_t position) {
      RequestScore& score = (*scores)[i];
      for (int64_t token = requests_[i].first_scored; token <= requests_[i].num_inputs(); ++token) {
        const auto at = static_cast<size_t>(s * seq_length_ + position + token - 1);
        score.logprob -= losses[at];
        score.is_greedy = score.is_greedy && hits[at] == 1;
      }
    });
  }
}

}  // namespace megatron
