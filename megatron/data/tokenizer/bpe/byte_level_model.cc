#include "megatron/data/tokenizer/bpe/byte_level_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {

ByteLevelModel::ByteLevelModel(std::unique_ptr<ByteLevelBpe> bpe, ByteLevelSplit split)
    : bpe_(std::move(bpe)), split_(std::move(split)) {}

absl::Status ByteLevelModel::Encode(absl::string_view text, bool first, std::vector<int32_t>* ids,
                                    std::vector<TextSpan>* spans) const {
  const bool prefix = split_.add_prefix_space && !text.empty() && text[0] != ' ';
  const std::string prefixed = prefix ? absl::StrCat(" ", text) : std::string();
  const size_t old_size = ids->size();
  MEGATRON_RETURN_IF_ERROR(bpe_->Encode(prefix ? prefixed : text, split_.stages, ids));
  if (spans == nullptr) return absl::OkStatus();
  // The prefix is not a byte of the text.
  const auto in_text = [&](size_t at) { return prefix && at > 0 ? at - 1 : at; };
  size_t at = 0;
  for (size_t i = old_size; i < ids->size(); ++i) {
    const size_t begin = at;
    at += bpe_->NumBytes((*ids)[i]);
    spans->push_back({in_text(begin), in_text(at)});
  }
  return absl::OkStatus();
}

}  // namespace megatron
