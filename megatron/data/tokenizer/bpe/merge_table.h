// The merges of a vocabulary, indexed by the pair that they join.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_MERGE_TABLE_H_
#define MEGATRON_DATA_TOKENIZER_BPE_MERGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "megatron/data/tokenizer/bpe/bpe_merger.h"

namespace megatron {

// A functor for BpeMerger. The table uses open addressing with linear probing and is at most half
// full. A 64-bit filter for each left half comes before it: most pairs of a text have no merge, and
// cost only a look at the filter.
class MergeTable {
 public:
  explicit MergeTable(size_t num_pairs = 0) {
    int bits = 4;
    while (num_pairs * 2 > size_t{1} << bits) ++bits;
    slots_.resize(size_t{1} << bits);
    shift_ = 64 - bits;
  }

  // Adds a pair of ids that are not negative, at most num_pairs of them. Returns false if the pair
  // is already there.
  bool Insert(int32_t left, int32_t right, BpeMerge merge) {
    Slot* const slot = &slots_[IndexOf(Key(left, right))];
    if (slot->key != kEmpty) return false;
    *slot = {Key(left, right), merge};
    if (static_cast<size_t>(left) >= rights_.size()) rights_.resize(left + 1);
    rights_[left] |= BitOf(right);
    return true;
  }

  BpeMerge operator()(int32_t left, int32_t right) const {
    if (static_cast<size_t>(left) >= rights_.size() || !(rights_[left] & BitOf(right))) return {};
    return slots_[IndexOf(Key(left, right))].merge;
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // the pair (-1, -1), which is never inserted

  struct Slot {
    uint64_t key = kEmpty;
    BpeMerge merge;
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  static uint64_t BitOf(int32_t right) {
    return uint64_t{1} << (static_cast<uint32_t>(right) * 0x9E3779B9u >> 26);
  }

  // Returns the index of the key, or of the empty slot where it would be inserted.
  size_t IndexOf(uint64_t key) const {
    size_t i = (key * 0x9E3779B97F4A7C15u ^ key >> 32) * 0xD6E8FEB86659FD93u >> shift_;
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<Slot> slots_;
  std::vector<uint64_t> rights_;  // bits of the right halves that each left half merges with
  int shift_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_MERGE_TABLE_H_
