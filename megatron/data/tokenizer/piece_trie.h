// A vocabulary as a trie over bytes, which finds the pieces with which a text begins.
//
//   PieceTrie::Node node = PieceTrie::kRoot;
//   for (size_t i = at; i < text.size(); ++i) {
//     node = trie.Step(node, text[i]);
//     if (node == PieceTrie::kNone) break;
//     if (trie.Value(node) >= 0) …  // text[at, i] is a piece
//   }
//
// It is immutable. Construction takes linear time (except for sorting), and memory is proportional
// to the pieces' bytes, whatever they are.
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
  // Takes distinct pieces with values >= 0. All pieces together have fewer than 2^32 - 1 bytes.
  explicit PieceTrie(std::vector<std::pair<absl::string_view, int32_t>> pieces);

  // Returns the node of `node`'s text followed by `byte`; kNone if no piece begins with that.
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

  // Returns the value of the piece that ends at `node`; -1 if none does.
  int32_t Value(Node node) const { return nodes_[node].value; }

  // Returns the value of `piece`; -1 if it is not in the trie.
  int32_t Find(absl::string_view piece) const;

  struct Match {
    int32_t value = -1;
    size_t length = 0;
  };
  // Returns the longest piece with which `text` begins; the length is 0 if there is none.
  Match LongestPrefix(absl::string_view text) const;

 private:
  // A node with more children than this looks them up in a table of 256 entries.
  static constexpr uint32_t kScanned = 8;

  struct NodeData {
    uint32_t first_child = 0;  // children are adjacent, ordered by label
    uint32_t num_children = 0;
    uint32_t table = kNone;  // position in tables_
    int32_t value = -1;
  };

  std::vector<NodeData> nodes_;
  std::vector<unsigned char> labels_;  // the byte that leads to each node
  std::vector<Node> tables_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIECE_TRIE_H_
