// Byte-pair encoding over bytes: every text can be encoded, and the bytes of its tokens joined are
// the text.
//
// A text is split into pieces (split_pattern.h), and each piece's bytes are merged by rank
// (bpe_merger.h). Pieces repeat, so their tokens are cached: each thread that is encoding has a
// cache of bounded size.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_BPE_H_
#define MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_BPE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/bpe/bpe_vocabulary.h"
#include "megatron/data/tokenizer/bpe/merge_table.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"

namespace megatron {

struct ByteLevelVocabulary {
  std::vector<std::string> tokens;  // bytes of each token; empty if an id has no token
  MergeTable merges;                // merges of ids below tokens.size()
  bool whole_pieces_first = false;  // if true, a piece that is a token is not merged
  int32_t unk = -1;  // id for bytes without a token; -1 means that they cannot be encoded
};

class ByteLevelBpe {
 public:
  explicit ByteLevelBpe(ByteLevelVocabulary vocabulary);
  ~ByteLevelBpe();

  // Appends the ids of `text`. Each of `stages` splits the pieces of the stage before; without
  // stages the text is one piece. kInvalidArgument for a byte without a token, and for texts of 4
  // GiB and more; nothing is appended then.
  absl::Status Encode(absl::string_view text, absl::Span<const FirstPiece> stages,
                      std::vector<int32_t>* ids) const;

  // Returns how many bytes of a text an id from Encode stands for.
  size_t NumBytes(int32_t id) const { return num_bytes_[id]; }

 private:
  struct Worker;  // state of one thread while it encodes

  absl::Status CheckBytes(absl::string_view text) const;
  void EncodeStages(absl::string_view text, absl::Span<const FirstPiece> stages, Worker* worker,
                    std::vector<int32_t>* ids) const;
  void EncodePiece(absl::string_view piece, const char* text_end, Worker* worker,
                   std::vector<int32_t>* ids) const;
  // Sets worker->piece.
  void Merge(absl::string_view piece, Worker* worker) const;
  std::unique_ptr<Worker> TakeWorker() const;

  ByteLevelVocabulary vocabulary_;
  std::vector<uint32_t> num_bytes_;
  int32_t byte_ids_[256];
  bool every_byte_ = true;
  TokenIds ids_;  // filled if whole_pieces_first

  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_BPE_H_
