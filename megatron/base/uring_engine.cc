#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/block_engine.h"

namespace megatron {
namespace {

absl::Status RingError(int error, const char* operation) {
  return absl::ErrnoToStatus(error, operation);
}

// A region of memory that is shared with the kernel.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  bool Map(int ring, size_t bytes, off_t what) {
    void* const data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
    if (data == MAP_FAILED) return false;
    data_ = data;
    bytes_ = bytes;
    return true;
  }
  template <typename T>
  T* At(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class UringEngine : public BlockEngine {
 public:
  explicit UringEngine(int fd) : fd_(fd) {}
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;
  ~UringEngine() override {
    if (ring_ >= 0) close(ring_);
  }

  absl::Status Open(int capacity) {
    io_uring_params params = {};
    ring_ = static_cast<int>(syscall(__NR_io_uring_setup, capacity, &params));
    if (ring_ < 0) return RingError(errno, "io_uring_setup");
    // Kernels from 5.4 on map both rings at once; reads and writes without vectors are from 5.6.
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0 ||
        (params.features & IORING_FEAT_RW_CUR_POS) == 0)
      return absl::UnimplementedError("io_uring is older than Linux 5.6");
    const size_t submissions = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    const size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    if (!rings_.Map(ring_, std::max(submissions, completions), IORING_OFF_SQ_RING) ||
        !entries_.Map(ring_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES))
      return RingError(errno, "map the rings of io_uring");
    capacity_ = static_cast<int>(params.sq_entries);
    submitted_ = rings_.At<uint32_t>(params.sq_off.tail);
    submission_mask_ = *rings_.At<uint32_t>(params.sq_off.ring_mask);
    order_ = rings_.At<uint32_t>(params.sq_off.array);
    taken_ = rings_.At<uint32_t>(params.cq_off.head);
    completed_ = rings_.At<uint32_t>(params.cq_off.tail);
    completion_mask_ = *rings_.At<uint32_t>(params.cq_off.ring_mask);
    results_ = rings_.At<io_uring_cqe>(params.cq_off.cqes);
    return absl::OkStatus();
  }

  std::string name() const override { return "io_uring"; }
  int capacity() const override { return capacity_; }

  void Start(const Block& block) override {
    // Only this thread writes the tail. All entries before it were consumed by their
    // io_uring_enter.
    const uint32_t tail = *submitted_;
    const uint32_t index = tail & submission_mask_;
    io_uring_sqe* const entry = entries_.At<io_uring_sqe>(0) + index;
    std::memset(entry, 0, sizeof(*entry));
    entry->opcode = block.is_write ? IORING_OP_WRITE : IORING_OP_READ;
    entry->fd = fd_;
    entry->off = static_cast<uint64_t>(block.offset);
    entry->addr = reinterpret_cast<uint64_t>(block.memory);
    entry->len = static_cast<uint32_t>(block.bytes);
    entry->user_data = block.tag;
    order_[index] = index;
    // The kernel reads the entry after it sees the new tail.
    __atomic_store_n(submitted_, tail + 1, __ATOMIC_RELEASE);
    Enter(/*submit=*/1, /*wait_for=*/0);
  }

  BlockResult Wait() override {
    const uint32_t head = *taken_;
    // The kernel wrote the result before the tail that is read here.
    while (__atomic_load_n(completed_, __ATOMIC_ACQUIRE) == head) Enter(0, 1);
    const io_uring_cqe& entry = results_[head & completion_mask_];
    const BlockResult result = {entry.user_data, entry.res};
    __atomic_store_n(taken_, head + 1, __ATOMIC_RELEASE);
    return result;
  }

 private:
  // Fails only by a mistake of ours, but for what passes: a signal, or memory that is short.
  void Enter(uint32_t submit, uint32_t wait_for) {
    for (;;) {
      const long done = syscall(__NR_io_uring_enter, ring_, submit, wait_for,
                                wait_for > 0 ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
      if (done >= 0) {
        CHECK_EQ(done, submit);
        return;
      }
      CHECK(errno == EINTR || errno == EAGAIN || errno == EBUSY) << std::strerror(errno);
    }
  }

  const int fd_;
  int ring_ = -1;
  Mapping rings_, entries_;
  int capacity_ = 0;
  uint32_t *submitted_ = nullptr, *order_ = nullptr, *taken_ = nullptr, *completed_ = nullptr;
  uint32_t submission_mask_ = 0, completion_mask_ = 0;
  io_uring_cqe* results_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockEngine>> MakeUringEngine(int fd, int capacity) {
  auto engine = std::make_unique<UringEngine>(fd);
  if (absl::Status status = engine->Open(capacity); !status.ok()) return status;
  return engine;
}

}  // namespace megatron
