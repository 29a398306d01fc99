#include "megatron/data/tokenizer/special_pieces.h"

#include "absl/strings/str_cat.h"

namespace megatron {

SpecialPieces::SpecialPieces(int32_t vocab_size, absl::FunctionRef<std::string(int32_t id)> piece)
    : vocab_size_(vocab_size) {
  ids_.reserve(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) ids_.emplace(piece(id), id);
}

int32_t SpecialPieces::Add(const std::string& piece) {
  const int32_t next = vocab_size_ + static_cast<int32_t>(added_.size());
  const auto [found, inserted] = ids_.emplace(piece, next);
  if (inserted) added_.push_back(piece);
  AddedToken token;
  token.id = found->second;
  token.content = piece;
  token.special = true;
  tokens_.push_back(token);
  return token.id;
}

std::vector<int32_t> SpecialPieces::AddSentinels(int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(Add(absl::StrCat("<extra_id_", i, ">")));
  return ids;
}

}  // namespace megatron
