// A vocabulary as a trie over bytes: which pieces does a text begin with?
//
//   PieceTrie::Node node = PieceTrie::kRoot;
//   for (size_t i = at; i < text.size(); ++i) {
//     node = trie.Step(node, text[i]);
//     if (node == PieceTrie::kNone) break;
//     if (trie.Value(node) >= 0) …  // text[at, i] is a piece
//   }
//
// Built in linear time (but for sorting), and takes up memory in proportion to the pieces' bytes,
// whatever they are. Immutable.
#ifndef MEGATRON_DATA_TOKENIZER_PIECE_TRIE_H_
#define MEGATRON_DATA_TOKENIZER_PIECE_TRIE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

class PieceTrie {
 public:
  using Node = uint32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNone = UINT32_MAX;

  PieceTrie() : PieceTrie(std::vector<std::pair<absl::string_view, int32_t>>()) {}
  // Distinct pieces with values >= 0. The bytes of all together are less than 2^32 - 1.
  explicit PieceTrie(std::vector<std::pair<absl::string_view, int32_t>> pieces);

  // The node of a text and one more byte; kNone where no piece begins so.
  Node Step(Node node, char byte) const {
    const NodeData& data = nodes_[node];
    const auto label = static_cast<unsigned char>(byte);
    if (data.table != kNone) return tables_[data.table + label];
    const unsigned char* const labels = labels_.data() + data.first_child;
    for (uint32_t i = 0; i < data.num_children; ++i) {
      if (labels[i] == label) return data.first_child + i;
    }
    return kNone;
  }

  bool empty() const { return nodes_.size() == 1; }

  // The value of the piece that ends here; -1 where none does.
  int32_t Value(Node node) const { return nodes_[node].value; }

  // The value of `piece` itself; -1 where it is none.
  int32_t Find(absl::string_view piece) const;

  struct Match {
    int32_t value = -1;
    size_t length = 0;
  };
  // The longest piece that `text` begins with; length 0 where there is none.
  Match LongestPrefix(absl::string_view text) const;

 private:
  // Nodes with more children than this look them up in a table of 256.
  static constexpr uint32_t kScanned = 8;

  struct NodeData {
    uint32_t first_child = 0;  // children stand next to each other, by label
    uint32_t num_children = 0;
    uint32_t table = kNone;  // in tables_
    int32_t value = -1;
  };

  std::vector<NodeData> nodes_;
  std::vector<unsigned char> labels_;  // of each node, the byte that leads to it
  std::vector<Node> tables_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIECE_TRIE_H_
