// Byte-pair encoding over bytes: every text has an encoding, and its tokens' bytes put together are
// the text.
//
// A text is cut into pieces (split_pattern.h), and each piece's bytes are merged by rank
// (bpe_merger.h). Pieces repeat, so that their tokens are kept: in a cache of a bounded size per
// thread that encodes at the same time.
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
  std::vector<std::string> tokens;  // bytes by id; empty where an id names none
  MergeTable merges;                // of ids below tokens.size()
  bool whole_pieces_first = false;  // a piece that is a token is not merged
  int32_t unk = -1;                 // for bytes without a token; -1: they can't be encoded
};

class ByteLevelBpe {
 public:
  explicit ByteLevelBpe(ByteLevelVocabulary vocabulary);
  ~ByteLevelBpe();

  // Appends the ids of `text`. Each of `stages` cuts the pieces of the one before further; none:
  // the text is one piece. kInvalidArgument for a byte without a token, and for texts of 4 GiB and
  // more; nothing is appended then.
  absl::Status Encode(absl::string_view text, absl::Span<const FirstPiece> stages,
                      std::vector<int32_t>* ids) const;

  // How many bytes of a text an id of Encode's stands for.
  size_t NumBytes(int32_t id) const { return num_bytes_[id]; }

 private:
  struct Worker;  // what one thread needs while it encodes

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
  TokenIds ids_;  // if whole_pieces_first

  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_BPE_H_
