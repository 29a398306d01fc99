#include "megatron/tensor/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "megatron/base/aligned_memory.h"
#include "megatron/base/out_of_memory.h"
#include "megatron/base/round_up.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, Buffer::kAlignment); }

}  // namespace

void MemoryLedger::Add(const std::string& name, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  held_[name] += bytes;
  current_ += bytes;
  if (current_ <= peak_) return;
  peak_ = current_;
  at_peak_ = held_;
}

void MemoryLedger::Remove(const std::string& name, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t& held = held_[name];
  CHECK_GE(held, bytes) << name;
  held -= bytes;
  if (held == 0) held_.erase(name);
  current_ -= bytes;
}

int64_t MemoryLedger::current_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return current_;
}

int64_t MemoryLedger::peak_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

std::map<std::string, int64_t> MemoryLedger::AtPeak() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return at_peak_;
}

Buffer::Buffer(Device device, int64_t bytes, const std::string& name, MemoryLedger* ledger)
    : device_(device), bytes_(bytes), name_(name), ledger_(ledger) {
  CHECK_GE(bytes, 0);
  if (device.type == DeviceType::kCuda && bytes > 0) {
    data_ = CudaAllocate(device.index, Aligned(bytes), name);
  }
  if (device.type == DeviceType::kCpu && bytes > 0) {
    data_ = AllocateAligned(Aligned(bytes), kAlignment);
    if (data_ == nullptr) EndForWantOfMemory(Aligned(bytes), name.c_str());
    std::memset(data_, 0, Aligned(bytes));
  }
  if (ledger_ != nullptr) ledger_->Add(name_, bytes_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  device_ = other.device_;
  bytes_ = std::exchange(other.bytes_, 0);
  data_ = std::exchange(other.data_, nullptr);
  name_ = std::move(other.name_);
  ledger_ = std::exchange(other.ledger_, nullptr);
  return *this;
}

void Buffer::Free() {
  if (ledger_ != nullptr) ledger_->Remove(name_, bytes_);
  if (data_ != nullptr && device_.type == DeviceType::kCuda) {
    CudaFree(device_.index, data_);
  } else {
    std::free(data_);
  }
}

Tensor Buffer::At(int64_t offset, DType dtype, const Shape& shape) const {
  CHECK(offset >= 0 && offset + shape.numel() * SizeOf(dtype) <= bytes_)
      << dtype << shape << " at " << offset << " of " << name_;
  return Tensor(data_ == nullptr ? nullptr : static_cast<char*>(data_) + offset, dtype, shape,
                device_);
}

Arena::Arena(Device device, int64_t capacity, const std::string& name, MemoryLedger* ledger)
    : buffer_(device, device.type == DeviceType::kMeta ? 0 : capacity, name, ledger),
      memory_(buffer_.At(0, DType::kUInt8, {buffer_.bytes()})),
      measuring_(device.type == DeviceType::kMeta) {}

Arena::Arena(const Tensor& memory)
    : memory_(memory), measuring_(memory.device().type == DeviceType::kMeta) {
  CHECK(memory.dtype() == DType::kUInt8 && memory.is_contiguous()) << memory;
}

Tensor Arena::Allocate(DType dtype, const Shape& shape, const char* name) {
  const int64_t begin = top_;
  top_ += Aligned(shape.numel() * SizeOf(dtype));
  if (measuring_) {
    live_.push_back({begin, top_, name});
    if (top_ > high_water_) at_high_water_.clear();
    high_water_ = std::max(high_water_, top_);
    return Tensor(nullptr, dtype, shape, device());
  }
  CHECK_LE(top_, memory_.numel()) << "arena planned too small for " << name << " " << dtype
                                  << shape;
  high_water_ = std::max(high_water_, top_);
  void* data = memory_.raw() == nullptr ? nullptr : static_cast<char*>(memory_.raw()) + begin;
  return Tensor(data, dtype, shape, device());
}

void Arena::Release(int64_t mark) {
  CHECK(0 <= mark && mark <= top_) << mark << " of " << top_;
  if (measuring_) {
    if (top_ == high_water_ && at_high_water_.empty()) at_high_water_ = live_;
    while (!live_.empty() && live_.back().begin >= mark) live_.pop_back();
  }
  top_ = mark;
}

std::map<std::string, int64_t> Arena::Sum(const std::vector<Piece>& pieces) {
  std::map<std::string, int64_t> bytes;
  for (const Piece& piece : pieces) bytes[piece.name] += piece.end - piece.begin;
  return bytes;
}

std::map<std::string, int64_t> Arena::NamesAtHighWater() const {
  return Sum(at_high_water_.empty() ? live_ : at_high_water_);
}

}  // namespace megatron
