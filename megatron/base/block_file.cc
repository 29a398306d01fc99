#include "megatron/base/block_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron {
namespace {

// Opens a new file, past the page cache where the file system can, and removes its name.
int OpenNew(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  int fd = open(path.c_str(), kFlags | O_DIRECT, 0600);
  if (fd < 0 && errno == EINVAL) {
    // Such a file system may have made the file before it refused.
    unlink(path.c_str());
    fd = open(path.c_str(), kFlags, 0600);
  }
  if (fd >= 0) unlink(path.c_str());
  return fd;
}

bool IsAligned(int64_t value) { return value % BlockFile::kAlignment == 0; }

// Writes zeros to all of the file, and returns errno's number of what went wrong, or 0. The C
// library's own way for such file systems writes single bytes, which O_DIRECT refuses.
int WriteZeros(int fd, int64_t bytes) {
  if (ftruncate(fd, bytes) != 0) return errno;  // tells at once what no file can have
  const int64_t block = std::min(bytes, int64_t{1} << 20);
  void* zeros = nullptr;
  if (const int error = posix_memalign(&zeros, BlockFile::kAlignment, block); error != 0)
    return error;
  std::memset(zeros, 0, block);
  int error = 0;
  for (int64_t at = 0; at < bytes && error == 0;) {
    const ssize_t written = pwrite(fd, zeros, std::min(block, bytes - at), at);
    if (written > 0) {
      at += written;
    } else if (written == 0 || errno != EINTR) {
      error = written == 0 ? ENOSPC : errno;
    }
  }
  std::free(zeros);
  return error;
}

// Takes the file's space on the disk, and returns errno's number of what went wrong, or 0.
int TakeSpace(int fd, int64_t bytes, bool may_fallocate) {
  while (may_fallocate) {
    if (fallocate(fd, 0, 0, bytes) == 0) return 0;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    if (errno != EINTR) return errno;
  }
  return WriteZeros(fd, bytes);
}

// Returns what this process may write at most, if that is why there is no space for the file.
std::string LimitOfLength(int error, int64_t bytes) {
  rlimit limit;
  if (error != EFBIG || getrlimit(RLIMIT_FSIZE, &limit) != 0) return "";
  if (limit.rlim_cur >= static_cast<rlim_t>(bytes)) return "";
  return absl::StrCat(" (ulimit -f allows ", limit.rlim_cur, ")");
}

std::atomic<BlockFileObserver*> observer = nullptr;

}  // namespace

void ObserveBlockFiles(BlockFileObserver* wanted) { observer = wanted; }

absl::StatusOr<std::unique_ptr<BlockFile>> BlockFile::Create(const std::string& path, int64_t bytes,
                                                             const BlockFileOptions& options) {
  CHECK(bytes > 0 && IsAligned(bytes)) << bytes;
  const int fd = OpenNew(path);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("create '", path, "'"));
  if (const int error = TakeSpace(fd, bytes, options.may_fallocate); error != 0) {
    close(fd);
    return absl::ErrnoToStatus(error, absl::StrCat("take ", bytes, " bytes for '", path, "'",
                                                   LimitOfLength(error, bytes)));
  }
  std::unique_ptr<BlockEngine> engine;
  if (options.may_use_uring) {
    absl::StatusOr<std::unique_ptr<BlockEngine>> uring =
        MakeUringEngine(fd, options.blocks_at_once);
    if (uring.ok()) engine = *std::move(uring);
  }
  if (engine == nullptr) engine = MakeThreadEngine(fd, options.blocks_at_once);
  return std::make_unique<BlockFile>(path, fd, bytes, std::move(engine), options);
}

BlockFile::BlockFile(std::string path, int fd, int64_t bytes, std::unique_ptr<BlockEngine> engine,
                     const BlockFileOptions& options)
    : path_(std::move(path)),
      fd_(fd),
      bytes_(bytes),
      options_(options),
      is_direct_((fcntl(fd, F_GETFL) & O_DIRECT) != 0),
      engine_(std::move(engine)) {
  CHECK(options.block_bytes > 0 && IsAligned(options.block_bytes)) << options.block_bytes;
}

BlockFile::~BlockFile() {
  // The kernel may still write to memory that the caller gives back after this.
  while (!transfers_.empty()) Finish(transfers_.begin()->first).IgnoreError();
  engine_.reset();
  close(fd_);
}

int64_t BlockFile::StartRead(int64_t offset, absl::Span<char> into) {
  return Start(false, offset, into.data(), static_cast<int64_t>(into.size()));
}

int64_t BlockFile::StartWrite(int64_t offset, absl::Span<const char> from) {
  return Start(true, offset, const_cast<char*>(from.data()), static_cast<int64_t>(from.size()));
}

int64_t BlockFile::Start(bool is_write, int64_t offset, char* memory, int64_t bytes) {
  CHECK(IsAligned(offset) && IsAligned(bytes) && IsAligned(reinterpret_cast<int64_t>(memory)))
      << offset << " " << bytes << " " << static_cast<void*>(memory);
  CHECK(0 <= offset && 0 < bytes && bytes <= bytes_ - offset)
      << "[" << offset << ", " << offset + bytes << ") of " << bytes_;
  const int64_t transfer = next_transfer_++;
  for (int64_t at = 0; at < bytes; at += options_.block_bytes) {
    Piece piece;
    piece.block.is_write = is_write;
    piece.block.offset = offset + at;
    piece.block.memory = memory + at;
    piece.block.bytes = std::min(options_.block_bytes, bytes - at);
    piece.transfer = transfer;
    waiting_.push_back(piece);
    ++transfers_[transfer].blocks;
  }
  if (BlockFileObserver* const hears = observer) hears->Started(*this, transfer, is_write, bytes);
  Feed();
  return transfer;
}

void BlockFile::Feed() {
  while (!waiting_.empty() && static_cast<int>(moving_.size()) < engine_->capacity()) {
    Piece piece = waiting_.front();
    waiting_.pop_front();
    piece.block.tag = next_tag_++;
    moving_[piece.block.tag] = piece;
    engine_->Start(piece.block);
  }
}

absl::Status BlockFile::PieceError(const Piece& piece, int64_t result) const {
  const std::string what =
      absl::StrCat(piece.block.is_write ? "write '" : "read '", path_, "' at ", piece.block.offset);
  if (result < 0) return absl::ErrnoToStatus(static_cast<int>(-result), what);
  return absl::DataLossError(
      absl::StrCat(what, piece.block.is_write ? ": no byte was written" : ": the file ends there"));
}

void BlockFile::TakeResult() {
  const BlockResult result = engine_->Wait();
  const auto found = moving_.find(result.tag);
  CHECK(found != moving_.end()) << result.tag;
  Piece piece = found->second;
  moving_.erase(found);
  const bool again = result.value == -EINTR || result.value == -EAGAIN;
  const int64_t moved = std::max<int64_t>(result.value, 0);
  // Past the page cache only whole pages can be asked for again.
  const int64_t done = moved < piece.block.bytes ? moved / kAlignment * kAlignment : moved;
  if (again || (done > 0 && done < piece.block.bytes)) {
    piece.block.offset += done;
    piece.block.memory += done;
    piece.block.bytes -= done;
    waiting_.push_front(piece);
  } else {
    Transfer& transfer = transfers_[piece.transfer];
    if (done == 0) transfer.status.Update(PieceError(piece, result.value));
    --transfer.blocks;
  }
  Feed();
}

absl::Status BlockFile::Finish(int64_t transfer) {
  const auto found = transfers_.find(transfer);
  CHECK(found != transfers_.end()) << transfer;
  while (found->second.blocks > 0) TakeResult();
  const absl::Status status = std::move(found->second.status);
  transfers_.erase(found);
  if (BlockFileObserver* const hears = observer) hears->Finished(*this, transfer);
  return status;
}

std::string BlockFile::method() const {
  return absl::StrCat(engine_->name(), is_direct_ ? " past the page cache" : " by the page cache");
}

}  // namespace megatron
