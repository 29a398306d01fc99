#include "megatron/data/tokenizer/training/word_counts.h"

#include <algorithm>
#include <cstring>

namespace megatron {
namespace {

constexpr size_t kBlockSize = size_t{1} << 18;

}  // namespace

void WordCounts::AddText(absl::string_view text, FirstPiece first_piece) {
  while (!text.empty()) {
    const size_t length = first_piece(text);
    AddWord(text.substr(0, length), 1);
    text.remove_prefix(length);
  }
}

void WordCounts::AddWord(absl::string_view word, int64_t count) {
  const auto found = counts_.find(word);
  if (found != counts_.end()) {
    found->second += count;
  } else {
    counts_.emplace(Keep(word), count);
  }
  total_ += count;
}

void WordCounts::Merge(const WordCounts& other) {
  for (const auto& [word, count] : other.counts_) AddWord(word, count);
}

void WordCounts::ForEach(
    absl::FunctionRef<void(absl::string_view word, int64_t count)> visit) const {
  for (const auto& [word, count] : counts_) visit(word, count);
}

absl::string_view WordCounts::Keep(absl::string_view word) {
  if (word.size() > free_in_block_) {
    free_in_block_ = std::max(kBlockSize, word.size());
    blocks_.push_back(std::make_unique<char[]>(free_in_block_));
    next_in_block_ = blocks_.back().get();
  }
  char* const copy = next_in_block_;
  std::memcpy(copy, word.data(), word.size());
  next_in_block_ += word.size();
  free_in_block_ -= word.size();
  return {copy, word.size()};
}

}  // namespace megatron
