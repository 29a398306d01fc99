#include "megatron/data/masked/t5_source.h"

#include <numeric>
#include <vector>

#include "megatron/base/status_macros.h"

namespace megatron {

namespace {

// Numbers the span of each label. Sentinels are few, and appear in the order of the vocabulary's
// list.
void NumberSpans(const std::vector<int32_t>& sentinels, Sample* sample) {
  sample->spans.clear();
  int32_t begun = 0;
  for (const int32_t token : sample->tokens) {
    const bool begins = begun < static_cast<int32_t>(sentinels.size()) && token == sentinels[begun];
    begun += begins;
    sample->spans.push_back(begun - 1);
  }
}

}  // namespace

absl::Status T5Source::Get(int64_t index, Sample* sample) const {
  T5Sample padded;
  MEGATRON_RETURN_IF_ERROR(dataset_->Get(index, &padded));
  const auto length = padded.num_decoder_tokens;
  sample->tokens.assign(padded.decoder_tokens.begin(), padded.decoder_tokens.begin() + length);
  sample->labels.assign(padded.labels.begin(), padded.labels.begin() + length);
  sample->loss_mask.assign(padded.loss_mask.begin(), padded.loss_mask.begin() + length);
  sample->positions.resize(static_cast<size_t>(length));
  std::iota(sample->positions.begin(), sample->positions.end(), 0);
  sample->document_starts.assign(1, 0);
  NumberSpans(dataset_->sentinels(), sample);
  sample->encoder_tokens.assign(padded.encoder_tokens.begin(),
                                padded.encoder_tokens.begin() + padded.num_encoder_tokens);
  return absl::OkStatus();
}

}  // namespace megatron
