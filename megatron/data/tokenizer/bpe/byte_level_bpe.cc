#include "megatron/data/tokenizer/bpe/byte_level_bpe.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/bpe_merger.h"
#include "megatron/data/tokenizer/bpe/word_cache.h"

namespace megatron {

// The alignment keeps two workers from sharing a cache line.
struct alignas(64) ByteLevelBpe::Worker {
  BpeMerger merger;
  WordCache cache;
  std::vector<int32_t> piece;
};

ByteLevelBpe::ByteLevelBpe(ByteLevelVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), vocabulary_.unk);
  for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    const std::string& token = vocabulary_.tokens[id];
    num_bytes_.push_back(static_cast<uint32_t>(token.size()));
    if (token.size() == 1) {
      byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
    }
  }
  if (vocabulary_.unk >= 0) num_bytes_[vocabulary_.unk] = 1;
  for (const int32_t id : byte_ids_) every_byte_ &= id >= 0;
  if (vocabulary_.whole_pieces_first) ids_ = MakeTokenIds(vocabulary_.tokens);
}

ByteLevelBpe::~ByteLevelBpe() = default;

absl::Status ByteLevelBpe::Encode(absl::string_view text, absl::Span<const FirstPiece> stages,
                                  std::vector<int32_t>* ids) const {
  MEGATRON_RETURN_IF_ERROR(CheckBytes(text));
  std::unique_ptr<Worker> worker = TakeWorker();
  // Every piece writes to the vector's own few bytes. If the caller keeps the vectors of many texts
  // side by side, threads would take the cache line from each other at every piece; hence the local
  // vector.
  std::vector<int32_t> out = std::move(*ids);
  EncodeStages(text, stages, worker.get(), &out);
  *ids = std::move(out);
  const absl::MutexLock lock(&mutex_);
  idle_.push_back(std::move(worker));
  return absl::OkStatus();
}

absl::Status ByteLevelBpe::CheckBytes(absl::string_view text) const {
  if (text.size() >= UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes is too long: 4 GiB and more"));
  }
  if (every_byte_) return absl::OkStatus();
  for (const char byte : text) {
    if (byte_ids_[static_cast<unsigned char>(byte)] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the vocabulary has no token for the byte 0x",
                       absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2)));
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<ByteLevelBpe::Worker> ByteLevelBpe::TakeWorker() const {
  {
    const absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Worker> worker = std::move(idle_.back());
      idle_.pop_back();
      return worker;
    }
  }
  return std::make_unique<Worker>();
}

void ByteLevelBpe::EncodeStages(absl::string_view text, absl::Span<const FirstPiece> stages,
                                Worker* worker, std::vector<int32_t>* ids) const {
  const char* const text_end = text.data() + text.size();
  if (stages.empty() && !text.empty()) return EncodePiece(text, text_end, worker, ids);
  while (!text.empty()) {
    const absl::string_view piece = text.substr(0, stages[0](text));
    text.remove_prefix(piece.size());
    if (stages.size() == 1) {
      EncodePiece(piece, text_end, worker, ids);
    } else {
      EncodeStages(piece, stages.subspan(1), worker, ids);
    }
  }
}

void ByteLevelBpe::EncodePiece(absl::string_view piece, const char* text_end, Worker* worker,
                               std::vector<int32_t>* ids) const {
  if (piece.size() > WordCache::kMaxBytes) {
    Merge(piece, worker);
    ids->insert(ids->end(), worker->piece.begin(), worker->piece.end());
    return;
  }
  bool found;
  WordCache::Entry* const entry = worker->cache.Find(piece.data(), piece.size(), text_end, &found);
  if (found) {
    ids->insert(ids->end(), entry->ids, entry->ids + entry->num_ids);
    return;
  }
  Merge(piece, worker);
  ids->insert(ids->end(), worker->piece.begin(), worker->piece.end());
  if (worker->piece.size() > WordCache::kMaxIds) return WordCache::Forget(entry);
  std::copy(worker->piece.begin(), worker->piece.end(), entry->ids);
  entry->num_ids = static_cast<uint8_t>(worker->piece.size());
}

void ByteLevelBpe::Merge(absl::string_view piece, Worker* worker) const {
  std::vector<int32_t>& ids = worker->piece;
  ids.clear();
  if (vocabulary_.whole_pieces_first) {
    const auto whole = ids_.find(piece);
    if (whole != ids_.end()) return ids.push_back(whole->second);
  }
  ids.resize(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  }
  ids.resize(worker->merger.Merge(vocabulary_.merges, ids.data(), ids.size()));
}

}  // namespace megatron
