// Texts with missing spans, which a trained T5 restores. Sentinels stand for the spans:
//
//   Thank you <extra_id_0> me to your party <extra_id_1> week
//   -> Thank you for inviting me to your party last week
#ifndef MEGATRON_TRAIN_TEXT_RESTORED_TEXT_H_
#define MEGATRON_TRAIN_TEXT_RESTORED_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/text_generator.h"

namespace megatron {

struct RestoredText {
  std::string written;             // the decoder's text, with its sentinels
  std::string text;                // the given text, with each sentinel replaced by its span
  std::vector<std::string> spans;  // the spans in the order of the text
  // Whether the decoder's context ended its text: more tokens were asked for, and it had not ended.
  bool cut_off = false;
};

struct RestoreOptions {
  SamplingOptions sampling;
  int64_t tokens = 0;  // the most tokens that the decoder writes, within the limits
  GeneratorLimits limits;
};

// Returns the tokens that the encoder reads: those of `text`, and the tokens that the tokenizer's
// file puts around them. Returns kInvalidArgument if the text is empty, if all of these are more
// than `max_tokens`, or if the text has a sentinel twice: both would be given the same span.
absl::StatusOr<std::vector<int32_t>> EncodeGaps(const std::string& text, const Tokenizer& tokenizer,
                                                int64_t max_tokens);

// The decoder begins with BOS, or padding where the vocabulary has none, and ends with EOS. If
// several ranks hold the model, all call this with the same text. Stops when `go_on` returns false,
// on all ranks alike. Returns kInvalidArgument if EncodeGaps refuses the text, or if it has no gap
// and nothing is written; the errors of TextGenerator::Generate.
absl::StatusOr<RestoredText> RestoreText(const std::string& text, const Tokenizer& tokenizer,
                                         const RestoreOptions& options, TextGenerator* model,
                                         absl::FunctionRef<bool()> go_on);

// Returns `given` with each sentinel replaced by what follows the same sentinel in `written`, up to
// the next one. If a sentinel occurs several times, the last one counts.
RestoredText PutTogether(absl::Span<const int32_t> given, absl::Span<const int32_t> written,
                         const Tokenizer& tokenizer);

// Returns "1. for inviting\n" for each span.
std::string FormatSpans(const RestoredText& restored);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TEXT_RESTORED_TEXT_H_
