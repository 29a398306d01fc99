#include "megatron/data/masked/bert_source.h"

#include <numeric>

#include "megatron/base/status_macros.h"

namespace megatron {

absl::Status BertSource::Get(int64_t index, Sample* sample) const {
  BertSample padded;
  MEGATRON_RETURN_IF_ERROR(dataset_->Get(index, &padded));
  const auto length = padded.num_tokens;
  sample->tokens.assign(padded.tokens.begin(), padded.tokens.begin() + length);
  sample->types.assign(padded.types.begin(), padded.types.begin() + length);
  sample->labels.assign(padded.labels.begin(), padded.labels.begin() + length);
  sample->loss_mask.assign(padded.loss_mask.begin(), padded.loss_mask.begin() + length);
  sample->positions.resize(static_cast<size_t>(length));
  std::iota(sample->positions.begin(), sample->positions.end(), 0);
  sample->document_starts.assign(1, 0);
  sample->sequence_class = padded.is_random ? 1 : 0;
  sample->sequence_weight = 1;
  return absl::OkStatus();
}

}  // namespace megatron
