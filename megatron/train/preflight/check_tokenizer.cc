#include "megatron/train/preflight/check_tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/base/status_macros.h"
#include "megatron/train/text/masked_text.h"
#include "megatron/train/text/restored_text.h"

namespace megatron {
namespace {

absl::Status CheckPrompt(const RunOptions& options, const Tokenizer& tokenizer) {
  const std::string& prompt = options.generation.prompt;
  if (options.trainer.model.masked_lm_head)
    return EncodeMasks(prompt, tokenizer, options.data.seq_length).status();
  if (options.trainer.model.num_encoder_layers > 0)
    return EncodeGaps(prompt, tokenizer, options.trainer.max_encoder_context).status();
  std::vector<int32_t> tokens;  // of a text longer than a GPT sees, it sees the end
  return tokenizer.Encode(prompt, &tokens);
}

}  // namespace

absl::Status CheckTokenizer(const RunOptions& options, const Tokenizer& tokenizer) {
  const bool is_t5 = options.trainer.model.num_encoder_layers > 0;
  if (is_t5 && !options.data.mock && tokenizer.special().sentinels.empty()) {
    return absl::InvalidArgumentError(
        "data.vocab_extra_ids: a T5 needs sentinels, which the tokenizer does not have; "
        "100 is usual");
  }
  if (!options.generation.enabled) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(CheckPrompt(options, tokenizer), _.SetPrepend()
                                                                << "generation.prompt: ");
  return absl::OkStatus();
}

}  // namespace megatron
