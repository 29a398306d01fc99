#include "megatron/data/tokenizer/piece_trie.h"

#include <algorithm>
#include <deque>

namespace megatron {

// Nodes are made breadth first: a node's children are made together, from the range of pieces that
// pass through it.
PieceTrie::PieceTrie(std::vector<std::pair<absl::string_view, int32_t>> pieces) {
  struct Range {
    Node node;
    size_t begin, end, depth;
  };
  std::sort(pieces.begin(), pieces.end());
  nodes_.emplace_back();
  labels_.push_back(0);
  std::deque<Range> open = {{kRoot, 0, pieces.size(), 0}};
  while (!open.empty()) {
    const Range range = open.front();
    open.pop_front();
    size_t i = range.begin;
    for (; i < range.end && pieces[i].first.size() == range.depth; ++i) {
      nodes_[range.node].value = pieces[i].second;
    }
    nodes_[range.node].first_child = static_cast<Node>(nodes_.size());
    while (i < range.end) {
      const char label = pieces[i].first[range.depth];
      const size_t first = i;
      while (i < range.end && pieces[i].first[range.depth] == label) ++i;
      open.push_back({static_cast<Node>(nodes_.size()), first, i, range.depth + 1});
      nodes_.emplace_back();
      labels_.push_back(static_cast<unsigned char>(label));
    }
    NodeData& data = nodes_[range.node];
    data.num_children = static_cast<uint32_t>(nodes_.size() - data.first_child);
    if (data.num_children <= kScanned) continue;
    data.table = static_cast<uint32_t>(tables_.size());
    tables_.resize(tables_.size() + 256, kNone);
    for (uint32_t child = data.first_child; child < nodes_.size(); ++child) {
      tables_[data.table + labels_[child]] = child;
    }
  }
}

int32_t PieceTrie::Find(absl::string_view piece) const {
  Node node = kRoot;
  for (size_t i = 0; i < piece.size() && node != kNone; ++i) node = Step(node, piece[i]);
  return node == kNone ? -1 : Value(node);
}

PieceTrie::Match PieceTrie::LongestPrefix(absl::string_view text) const {
  Match match;
  Node node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = Step(node, text[i]);
    if (node == kNone) break;
    if (Value(node) >= 0) match = {Value(node), i + 1};
  }
  return match;
}

}  // namespace megatron
