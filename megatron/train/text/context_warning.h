// Tells people where a model's context did not hold a text: a GPT has not seen the beginning of the
// one that it continues, or a decoder has not come to the end of the one that it writes.
#ifndef MEGATRON_TRAIN_TEXT_CONTEXT_WARNING_H_
#define MEGATRON_TRAIN_TEXT_CONTEXT_WARNING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace megatron {

// Returns a line about a text of so many tokens, of which the model has written the last one
// (TextGenerator::Generate); empty where the model has seen all tokens in front of each.
inline std::string ContextWarning(size_t tokens, int64_t max_context) {
  if (static_cast<int64_t>(tokens) <= max_context + 1) return "";
  return absl::StrCat("WARNING: the text has ", tokens, " tokens and the context ", max_context,
                      " (model.seq_length): behind those, each token was written by a model that "
                      "saw the last ",
                      max_context, " in front of it alone\n");
}

// Returns a line about what the decoder of a T5 wrote, if its context ended it
// (RestoredText::cut_off).
inline std::string CutOffWarning(int64_t max_context) {
  return absl::StrCat("WARNING: the text is cut off: the decoder had not ended it after ",
                      max_context - 1, " tokens, and with the first its context of ", max_context,
                      " (model.decoder_seq_length) has no more\n");
}

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TEXT_CONTEXT_WARNING_H_
