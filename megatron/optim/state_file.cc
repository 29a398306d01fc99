#include "megatron/optim/state_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr int64_t kAlignment = BlockFile::kAlignment;

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kAlignment); }

int64_t BytesOf(const std::vector<DType>& dtypes, int64_t elements) {
  int64_t bytes = 0;
  for (const DType dtype : dtypes) bytes += Aligned(elements * SizeOf(dtype));
  return bytes;
}

}  // namespace

StateFile::StateFile(std::vector<DType> dtypes, int64_t elements, int64_t extent_elements,
                     Device device, MemoryLedger* ledger, const std::string& name)
    : dtypes_(std::move(dtypes)),
      elements_(elements),
      extent_elements_(std::min(elements, extent_elements)),
      extent_bytes_(BytesOf(dtypes_, extent_elements_)),
      bytes_(elements / extent_elements_ * extent_bytes_ +
             BytesOf(dtypes_, elements % extent_elements_)),
      device_(device),
      memory_(device, kSlots * extent_bytes_ + kAlignment, name, ledger) {
  CHECK(!dtypes_.empty() && elements > 0 && extent_elements > 0) << elements;
  if (memory_.data() == nullptr) return;
  char* const data = static_cast<char*>(memory_.data());
  char* memory = data + Aligned(reinterpret_cast<int64_t>(data)) - reinterpret_cast<int64_t>(data);
  for (Slot& slot : slots_) {
    slot.memory = memory;
    memory += extent_bytes_;
  }
}

StateFile::~StateFile() = default;

absl::Status StateFile::Open(const std::string& path) {
  BlockFileOptions options;
  // The blocks of an extent that is read and of one that is written are on their way at once.
  options.blocks_at_once =
      static_cast<int>(std::clamp<int64_t>(2 * extent_bytes_ / options.block_bytes, 16, 32));
  MEGATRON_ASSIGN_OR_RETURN(file_, BlockFile::Create(path, bytes_, options));
  return absl::OkStatus();
}

void StateFile::Open(std::unique_ptr<BlockFile> file) {
  CHECK_EQ(file->bytes(), bytes_);
  file_ = std::move(file);
}

std::string StateFile::method() const {
  CHECK(file_ != nullptr) << "Open was not called";
  return file_->method();
}

int64_t StateFile::ExtentEnd(int64_t element) const {
  return std::min(elements_, (extent_of(element) + 1) * extent_elements_);
}

int64_t StateFile::SizeOfExtent(int64_t extent) const {
  return std::min(extent_elements_, elements_ - extent * extent_elements_);
}

int64_t StateFile::TensorOffset(size_t tensor, int64_t extent_elements) const {
  int64_t offset = 0;
  for (size_t i = 0; i < tensor; ++i) offset += Aligned(extent_elements * SizeOf(dtypes_[i]));
  return offset;
}

absl::Span<char> StateFile::MemoryOf(int64_t extent) {
  return {SlotOf(extent).memory,
          static_cast<size_t>(TensorOffset(dtypes_.size(), SizeOfExtent(extent)))};
}

void StateFile::StartRead(int64_t extent) {
  Slot& slot = SlotOf(extent);
  Finish(&slot.writing);
  const std::lock_guard<std::mutex> lock(transfers_mutex_);
  slot.reading = file_->StartRead(extent * extent_bytes_, MemoryOf(extent));
}

void StateFile::StartWrite(int64_t extent) {
  const std::lock_guard<std::mutex> lock(transfers_mutex_);
  SlotOf(extent).writing = file_->StartWrite(extent * extent_bytes_, MemoryOf(extent));
}

void StateFile::Finish(std::optional<int64_t>* transfer) {
  if (!transfer->has_value()) return;
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(transfers_mutex_);
    status = file_->Finish(**transfer);
  }
  transfer->reset();
  if (!status.ok()) Fail(status);
}

void StateFile::FinishAll() {
  for (Slot& slot : slots_) {
    Finish(&slot.reading);
    Finish(&slot.writing);
  }
}

void StateFile::Fail(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  status_.Update(status);
}

absl::Status StateFile::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void StateFile::StartPass(Access access) {
  CHECK(!in_pass_);
  in_pass_ = true;
  access_ = access;
  entered_ = -1;
  if (access != Access::kRead) ++writing_passes_;
  if (device_.type == DeviceType::kMeta || !status().ok()) return;
  CHECK(file_ != nullptr) << "Open was not called";
  if (access != Access::kWrite) StartRead(0);
}

absl::Status StateFile::Enter(int64_t extent) {
  CHECK(in_pass_ && entered_ <= extent && extent < num_extents()) << extent << " of " << entered_;
  while (entered_ < extent) {
    MEGATRON_RETURN_IF_ERROR(status());
    const int64_t before = entered_++;
    if (device_.type == DeviceType::kMeta) continue;
    if (before >= 0 && access_ != Access::kRead) StartWrite(before);
    Slot& slot = SlotOf(entered_);
    if (access_ == Access::kWrite) {
      Finish(&slot.writing);
      const absl::Span<char> memory = MemoryOf(entered_);
      std::memset(memory.data(), 0, memory.size());
    } else {
      if (entered_ + 1 < num_extents()) StartRead(entered_ + 1);
      Finish(&slot.reading);
    }
  }
  return status();
}

absl::Status StateFile::EndPass() {
  CHECK(in_pass_);
  in_pass_ = false;
  if (device_.type == DeviceType::kMeta) return absl::OkStatus();
  if (entered_ >= 0 && access_ != Access::kRead && status().ok()) StartWrite(entered_);
  FinishAll();
  return status();
}

Tensor StateFile::Elements(size_t tensor, int64_t begin, int64_t end) const {
  const int64_t extent = extent_of(begin), first = extent * extent_elements_;
  CHECK(begin < end && end <= ExtentEnd(begin)) << begin << " to " << end;
  const DType dtype = dtypes_[tensor];
  const Shape shape = {end - begin};
  if (device_.type == DeviceType::kMeta) return Tensor(nullptr, dtype, shape, device_);
  CHECK(in_pass_ && extent == entered_) << extent << " of " << entered_;
  return Tensor(slots_[extent % slots_.size()].memory + TensorOffset(tensor, SizeOfExtent(extent)) +
                    (begin - first) * SizeOf(dtype),
                dtype, shape);
}

StateFile::Cover StateFile::CoverOf(size_t tensor, int64_t begin, int64_t end) const {
  const int64_t extent = extent_of(begin), size = SizeOf(dtypes_[tensor]);
  CHECK(begin < end && end <= ExtentEnd(begin)) << begin << " to " << end;
  const int64_t from = (begin - extent * extent_elements_) * size;
  const int64_t first = from / kAlignment * kAlignment;
  return {extent * extent_bytes_ + TensorOffset(tensor, SizeOfExtent(extent)) + first,
          Aligned(from + (end - begin) * size) - first, from - first};
}

std::optional<int64_t> StateFile::StartFetch(const Cover& cover, char* memory) {
  CHECK(!in_pass_);
  if (device_.type == DeviceType::kMeta || !status().ok()) return std::nullopt;
  CHECK(file_ != nullptr) << "Open was not called";
  const std::lock_guard<std::mutex> lock(transfers_mutex_);
  return file_->StartRead(cover.offset, absl::MakeSpan(memory, static_cast<size_t>(cover.bytes)));
}

absl::StatusOr<Tensor> StateFile::Fetch(size_t tensor, int64_t begin, int64_t end) {
  const DType dtype = dtypes_[tensor];
  const Shape shape = {end - begin};
  const Cover cover = CoverOf(tensor, begin, end);
  if (device_.type == DeviceType::kMeta) return Tensor(nullptr, dtype, shape, device_);
  Slot& slot = slots_[0];
  slot.reading = StartFetch(cover, slot.memory);
  Finish(&slot.reading);
  MEGATRON_RETURN_IF_ERROR(status());
  return Tensor(slot.memory + cover.first, dtype, shape);
}

absl::Status StateFile::Read(size_t tensor, int64_t begin, const Tensor& out) {
  const int64_t end = begin + out.numel();
  char* to = static_cast<char*>(out.raw());
  for (int64_t here = begin, next = 0; here < end; here = next) {
    next = std::min(end, ExtentEnd(here));
    MEGATRON_ASSIGN_OR_RETURN(const Tensor part, Fetch(tensor, here, next));
    CHECK_EQ(part.dtype(), out.dtype());
    if (part.raw() == nullptr) continue;  // on the meta device
    std::memcpy(to, part.raw(), static_cast<size_t>(part.bytes()));
    to += part.bytes();
  }
  return absl::OkStatus();
}

}  // namespace megatron
