// The inner loop of byte-pair encoding: of all adjacent pairs of symbols that have a merge, the one
// with the lowest rank is merged, the leftmost of equal ones first, until no merge is left.
//
//   BpeMerger merger;
//   ids.resize(merger.Merge(find_merge, ids.data(), ids.size()));
//
// A symbol is a number whose meaning the caller defines. Merges come from a functor,
//
//   BpeMerge operator()(int32_t left, int32_t right) const;
//
// Models with scores instead of ranks number their distinct scores, best first. Symbols outside of
// the vocabulary can be negative numbers for which the functor has no merge.
//
// Merging takes O(n log n) for any n symbols. Short lists, nearly all in practice, use a simpler
// algorithm that is faster for them.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_BPE_MERGER_H_
#define MEGATRON_DATA_TOKENIZER_BPE_BPE_MERGER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "glog/logging.h"

namespace megatron {

struct BpeMerge {
  static constexpr uint32_t kNone = INT32_MAX;

  uint32_t rank = kNone;  // kNone if the two do not merge, else less
  int32_t id = -1;        // the result of the merge
};

// Holds working memory that grows with the longest list seen, so use one per thread repeatedly.
class BpeMerger {
 public:
  // Lists of at most this many symbols are merged by scanning.
  static constexpr size_t kShort = 128;
  // The memory for longer lists is released.
  static constexpr size_t kKept = 1 << 16;

  // Merges ids[0, n) in place and returns the number of ids left; n < 2^32. If `sizes` is not null,
  // it holds a size for each id, and the size of a merged pair is the sum of the two.
  template <typename FindMerge>
  size_t Merge(const FindMerge& find_merge, int32_t* ids, size_t n, uint32_t* sizes = nullptr) {
    if (n < 2) return n;
    if (n <= kShort) return MergeShort(find_merge, ids, n, sizes);
    n = MergeLong(find_merge, ids, n, sizes);
    if (nodes_.capacity() > kKept) *this = BpeMerger();
    return n;
  }

 private:
  struct Node {
    uint32_t previous, next;
    BpeMerge merge;  // merge with the next symbol
  };

  static constexpr uint32_t kEnd = UINT32_MAX;

  // Vectors of four, which all 64-bit processors support.
  typedef int32_t Lanes __attribute__((vector_size(16)));
  static constexpr size_t kLanes = 4;

  // Keeps symbols in a linked list; every step scans all ranks for the lowest.
  template <typename FindMerge>
  size_t MergeShort(const FindMerge& find_merge, int32_t* ids, size_t n, uint32_t* sizes) {
    constexpr int32_t kNone = BpeMerge::kNone;
    alignas(Lanes) int32_t ranks[kShort];
    int32_t merged[kShort];
    uint8_t previous[kShort + 1], next[kShort];
    const auto look = [&](size_t i) {
      const BpeMerge merge = next[i] == n ? BpeMerge() : find_merge(ids[i], ids[next[i]]);
      ranks[i] = static_cast<int32_t>(merge.rank);
      merged[i] = merge.id;
    };
    for (size_t i = 0; i < n; ++i) {
      previous[i + 1] = static_cast<uint8_t>(i);
      next[i] = static_cast<uint8_t>(i + 1);
      look(i);
    }
    const size_t padded = (n + kLanes - 1) / kLanes * kLanes;
    std::fill(ranks + n, ranks + padded, kNone);
    while (true) {
      const size_t at = LowestRank(ranks, padded);
      if (ranks[at] == kNone) break;
      const size_t gone = next[at];
      ids[at] = merged[at];
      if (sizes != nullptr) sizes[at] += sizes[gone];
      ranks[gone] = kNone;
      next[at] = next[gone];
      previous[next[at]] = static_cast<uint8_t>(at);
      look(at);
      if (at > 0) look(previous[at]);
    }
    size_t count = 0;
    for (size_t i = 0; i < n; i = next[i], ++count) {
      ids[count] = ids[i];
      if (sizes != nullptr) sizes[count] = sizes[i];
    }
    return count;
  }

  // Returns the index of the leftmost lowest rank. n is a multiple of kLanes and not 0.
  static size_t LowestRank(const int32_t* ranks, size_t n) {
    const Lanes* const lanes = reinterpret_cast<const Lanes*>(ranks);
    Lanes lowest = lanes[0];
    Lanes index = {0, 1, 2, 3};
    Lanes best = index;
    for (size_t i = 1; i < n / kLanes; ++i) {
      index += static_cast<int32_t>(kLanes);
      const Lanes lower = lanes[i] < lowest;
      lowest = (lanes[i] & lower) | (lowest & ~lower);
      best = (index & lower) | (best & ~lower);
    }
    size_t lane = 0;
    for (size_t i = 1; i < kLanes; ++i) {
      const bool before =
          lowest[i] < lowest[lane] || (lowest[i] == lowest[lane] && best[i] < best[lane]);
      lane = before ? i : lane;
    }
    return best[lane];
  }

  // Keeps symbols in a linked list, and a heap of (rank, index). Entries that a merge has made
  // stale stay in the heap until they reach its top.
  template <typename FindMerge>
  size_t MergeLong(const FindMerge& find_merge, int32_t* ids, size_t n, uint32_t* sizes) {
    CHECK_LT(n, kEnd);
    nodes_.resize(n);
    heap_.clear();
    for (size_t i = 0; i < n; ++i) {
      nodes_[i].previous = i == 0 ? kEnd : static_cast<uint32_t>(i - 1);
      nodes_[i].next = i + 1 == n ? kEnd : static_cast<uint32_t>(i + 1);
      nodes_[i].merge = i + 1 == n ? BpeMerge() : find_merge(ids[i], ids[i + 1]);
      if (nodes_[i].merge.rank != BpeMerge::kNone) heap_.push_back(Key(i));
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const uint64_t key = heap_.back();
      heap_.pop_back();
      const uint32_t at = static_cast<uint32_t>(key);
      if (nodes_[at].merge.rank != key >> 32) continue;
      ids[at] = nodes_[at].merge.id;
      if (sizes != nullptr) sizes[at] += sizes[nodes_[at].next];
      Remove(nodes_[at].next);
      Look(find_merge, ids, at);
      if (nodes_[at].previous != kEnd) Look(find_merge, ids, nodes_[at].previous);
    }
    size_t count = 0;
    for (uint32_t i = 0; i != kEnd; i = nodes_[i].next, ++count) {
      ids[count] = ids[i];
      if (sizes != nullptr) sizes[count] = sizes[i];
    }
    return count;
  }

  uint64_t Key(size_t i) const { return uint64_t{nodes_[i].merge.rank} << 32 | i; }

  void Remove(uint32_t at) {
    const Node& node = nodes_[at];
    nodes_[node.previous].next = node.next;
    if (node.next != kEnd) nodes_[node.next].previous = node.previous;
    nodes_[at].merge = BpeMerge();
  }

  template <typename FindMerge>
  void Look(const FindMerge& find_merge, const int32_t* ids, uint32_t at) {
    Node& node = nodes_[at];
    node.merge = node.next == kEnd ? BpeMerge() : find_merge(ids[at], ids[node.next]);
    if (node.merge.rank == BpeMerge::kNone) return;
    heap_.push_back(Key(at));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  std::vector<Node> nodes_;
  std::vector<uint64_t> heap_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BPE_MERGER_H_
