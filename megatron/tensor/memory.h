// Memory by name: a ledger that knows who holds what, buffers, and arenas.
//
// All large memory of a run is taken before the first step. A *Buffer* owns one block. An *Arena*
// hands out pieces of one block in stack order; a step's activations and temporaries come from
// arenas, so that a steady step allocates nothing. On the meta device both count and own nothing:
// an arena there has no limit and measures what a real one will need.
//
// Threads: a ledger may be shared; an arena belongs to one thread at a time.
#ifndef MEGATRON_TENSOR_MEMORY_H_
#define MEGATRON_TENSOR_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron {

// Bytes held now and at the peak, by name. A name is a path, "weights" or
// "activations/attention/lse": reports group by it.
class MemoryLedger {
 public:
  void Add(const std::string& name, int64_t bytes);
  void Remove(const std::string& name, int64_t bytes);

  int64_t current_bytes() const;
  int64_t peak_bytes() const;
  std::map<std::string, int64_t> AtPeak()
      const;  // the bytes of each name when the total was highest

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> held_, at_peak_;
  int64_t current_ = 0, peak_ = 0;
};

// One aligned, zeroed block of a device, entered in a ledger while it lives.
class Buffer {
 public:
  static constexpr int64_t kAlignment = 128;

  Buffer() = default;
  Buffer(Device device, int64_t bytes, const std::string& name, MemoryLedger* ledger);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Free(); }

  Device device() const { return device_; }
  int64_t bytes() const { return bytes_; }
  void* data() const { return data_; }
  // A tensor over the bytes from `offset` on.
  Tensor At(int64_t offset, DType dtype, const Shape& shape) const;

 private:
  void Free();

  Device device_;
  int64_t bytes_ = 0;
  void* data_ = nullptr;
  std::string name_;
  MemoryLedger* ledger_ = nullptr;
};

class Arena {
 public:
  // A real arena of `capacity` bytes; on the meta device capacity is ignored.
  Arena(Device device, int64_t capacity, const std::string& name, MemoryLedger* ledger);

  // Contents are undefined. `name` tells what it is in reports and must outlive the arena (a
  // literal).
  Tensor Allocate(DType dtype, const Shape& shape, const char* name);

  // An arena over memory that outlives it and that its owner has entered in a ledger.
  explicit Arena(const Tensor& memory);

  // The arena of host memory whose pieces live as long as pieces of this one: it is given back by
  // Reset() and at the end of a Scope. Null: there is none. It must outlive this arena.
  Arena* host() const { return host_; }
  void set_host(Arena* host) { host_ = host; }

  // Gives back everything allocated since the mark was taken.
  int64_t Mark() const { return top_; }
  void Release(int64_t mark);
  void Reset() {
    Release(0);
    if (host_ != nullptr) host_->Reset();
  }

  Device device() const { return memory_.device(); }
  int64_t high_water() const { return high_water_; }
  // The bytes by name at the high-water mark; only an arena on the meta device knows them.
  std::map<std::string, int64_t> NamesAtHighWater() const;

  // Gives back at the end of a block what was allocated in it.
  class Scope {
   public:
    explicit Scope(Arena* arena)
        : arena_(arena),
          mark_(arena->Mark()),
          host_mark_(arena->host() == nullptr ? 0 : arena->host()->Mark()) {}
    ~Scope() {
      arena_->Release(mark_);
      if (arena_->host() != nullptr) arena_->host()->Release(host_mark_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena* arena_;
    int64_t mark_, host_mark_;
  };

 private:
  struct Piece {
    int64_t begin, end;
    const char* name;
  };
  static std::map<std::string, int64_t> Sum(const std::vector<Piece>& pieces);

  Buffer buffer_;  // the memory, where this arena owns it
  Tensor memory_;  // uint8
  Arena* host_ = nullptr;
  int64_t top_ = 0, high_water_ = 0;
  bool measuring_;
  std::vector<Piece> live_, at_high_water_;  // used by a measuring arena only
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_MEMORY_H_
