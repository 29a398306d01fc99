// The checks of a configuration that need its tokenizer.
#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_TOKENIZER_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_TOKENIZER_H_

#include "absl/status/status.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Returns kInvalidArgument, with the field, where generation.prompt is no text that the model can
// read, and where the vocabulary lacks the sentinels that a T5's data need: so neither is found out
// when training has ended or a job has begun.
absl::Status CheckTokenizer(const RunOptions& options, const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_TOKENIZER_H_
