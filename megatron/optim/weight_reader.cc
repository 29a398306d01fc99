#include "megatron/optim/weight_reader.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/block_file.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {

WeightReader::WeightReader(const ParameterBuffers& buffers)
    : buffers_(buffers), file_(buffers.weight_file()) {
  CHECK(file_ != nullptr);
  std::vector<int64_t> bytes;  // by bucket group
  for (const Bucket& bucket : buffers.buckets()) {
    const size_t group = static_cast<size_t>(bucket.bucket_group);
    if (group >= buckets_of_.size()) buckets_of_.resize(group + 1);
    bytes.resize(buckets_of_.size());
    buckets_of_[group].push_back(static_cast<int>(pieces_.size()));
    std::vector<Piece>& pieces = pieces_.emplace_back();
    const FlatRange stored = buffers.weight_range(bucket);
    const int64_t first = buffers.WeightPosition(bucket, stored.begin);
    for (int64_t begin = 0, end = 0; begin < stored.size(); begin = end) {
      end = std::min(stored.size(), file_->ExtentEnd(first + begin) - first);
      const StateFile::Cover cover = file_->CoverOf(0, first + begin, first + end);
      pieces.push_back({cover, {begin, end}, bytes[group]});
      bytes[group] += cover.bytes;
    }
  }
  for (const int64_t most : bytes) slot_bytes_ = std::max(slot_bytes_, most);
}

absl::StatusOr<std::unique_ptr<WeightReader>> WeightReader::Create(const ParameterBuffers& buffers,
                                                                   const Stream& stream,
                                                                   MemoryLedger* ledger) {
  constexpr int64_t kAlignment = BlockFile::kAlignment;
  std::unique_ptr<WeightReader> reader(new WeightReader(buffers));
  MEGATRON_ASSIGN_OR_RETURN(
      reader->memory_,
      PinnedBuffer::Create(stream.device(), kSlots * reader->slot_bytes_ + kAlignment,
                           "host/weights read ahead", ledger));
  if (stream.is_meta()) return reader;
  const int64_t address =
      reinterpret_cast<int64_t>(reader->memory_.At(0, DType::kUInt8, {kAlignment}).raw());
  reader->aligned_ = RoundUp(address, kAlignment) - address;
  for (Slot& slot : reader->slots_) slot.sent = std::make_unique<CudaEvent>(stream.device().index);
  return reader;
}

WeightReader::~WeightReader() {
  for (Slot& slot : slots_) {
    FinishReading(&slot);
    if (slot.sent != nullptr) slot.sent->Wait();
  }
}

void WeightReader::FinishReading(Slot* slot) {
  for (std::optional<int64_t>& transfer : slot->reading) file_->FinishFetch(&transfer);
  slot->reading.clear();
}

WeightReader::Slot& WeightReader::SlotOf(int bucket_group) {
  for (Slot& slot : slots_) {
    if (slot.bucket_group == bucket_group && slot.writing_passes == file_->writing_passes())
      return slot;
  }
  Slot& slot = *std::min_element(slots_.begin(), slots_.end(),
                                 [](const Slot& a, const Slot& b) { return a.used < b.used; });
  FinishReading(&slot);
  slot.sent->Wait();
  slot.bucket_group = bucket_group;
  slot.writing_passes = file_->writing_passes();
  for (const int bucket : buckets_of_[bucket_group]) {
    for (const Piece& piece : pieces_[bucket]) {
      const Tensor bytes = memory_.At(Offset(slot, piece.at), DType::kUInt8, {piece.cover.bytes});
      slot.reading.push_back(file_->StartFetch(piece.cover, static_cast<char*>(bytes.raw())));
    }
  }
  return slot;
}

void WeightReader::ReadAhead(int bucket_group) {
  if (slots_[0].sent == nullptr) return;  // on the meta device
  if (bucket_group < 0 || bucket_group >= static_cast<int>(buckets_of_.size())) return;
  SlotOf(bucket_group).used = ++uses_;
}

void WeightReader::Bring(const Bucket& bucket, const Tensor& place, const Stream& stream) {
  if (stream.is_meta()) return;
  Slot& slot = SlotOf(bucket.bucket_group);
  slot.used = ++uses_;
  {
    const TraceSpan span(stream, "wait for the disk");
    FinishReading(&slot);
  }
  for (const Piece& piece : pieces_[&bucket - buffers_.buckets().data()]) {
    EnqueueCopyOnCuda(
        stream.cuda(),
        memory_.At(Offset(slot, piece.at + piece.cover.first), place.dtype(), {piece.range.size()}),
        place.Slice(0, piece.range.begin, piece.range.end));
  }
  slot.sent->Record(*stream.cuda());
}

}  // namespace megatron
