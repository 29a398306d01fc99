// BlockFile: a file of fixed size for data that does not fit in memory, read and written in large
// pieces past the page cache, several at once.
//
//   MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, BlockFile::Create(path, bytes, {}));
//   const int64_t write = file->StartWrite(0, states);
//   ...                                             // `states` stays as it is
//   MEGATRON_RETURN_IF_ERROR(file->Finish(write));
//
// Offsets, sizes and addresses are multiples of kAlignment, as the kernel asks of such transfers.
// The data are of use to this process only: the file loses its name as soon as it is made, so that
// whatever ends the process gives back the space.
//
// A transfer that fails names the file and the offset ("read '/a/states' at 8192: Input/output
// error"); the others go on. A file that became shorter is kDataLoss.
//
// A BlockFile is used by one thread at a time.
#ifndef MEGATRON_BASE_BLOCK_FILE_H_
#define MEGATRON_BASE_BLOCK_FILE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/base/block_engine.h"

namespace megatron {

struct BlockFileOptions {
  int64_t block_bytes = int64_t{1} << 20;  // pieces into which transfers are cut
  int blocks_at_once = 16;
  bool may_use_uring = true;
  bool may_fallocate = true;  // false: as on a file system that can't
};

class BlockFile {
 public:
  static constexpr int64_t kAlignment = 4096;

  // Makes the file at `path`, where nothing may be yet, and takes its space on the disk: a disk
  // that is too full fails here.
  static absl::StatusOr<std::unique_ptr<BlockFile>> Create(const std::string& path, int64_t bytes,
                                                           const BlockFileOptions& options);
  // The same on a file that is open already, with an engine for it. `fd` becomes the BlockFile's.
  BlockFile(std::string path, int fd, int64_t bytes, std::unique_ptr<BlockEngine> engine,
            const BlockFileOptions& options);
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;
  ~BlockFile();

  // Starts a transfer, and returns its number for Finish. Its memory must stay until then.
  // Transfers that overlap in the file while both are on their way have no order.
  int64_t StartRead(int64_t offset, absl::Span<char> into);
  int64_t StartWrite(int64_t offset, absl::Span<const char> from);
  // Waits for the transfer, once for each.
  absl::Status Finish(int64_t transfer);

  int64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // How the file is reached: "io_uring past the page cache", for a line at the start.
  std::string method() const;

 private:
  struct Transfer {
    int64_t blocks = 0;  // those that have not ended
    absl::Status status;
  };
  struct Piece {
    Block block;
    int64_t transfer = 0;
  };

  int64_t Start(bool is_write, int64_t offset, char* memory, int64_t bytes);
  // Gives the engine as many of the waiting blocks as it takes.
  void Feed();
  // Waits for one block.
  void TakeResult();
  absl::Status PieceError(const Piece& piece, int64_t result) const;

  const std::string path_;
  const int fd_;
  const int64_t bytes_;
  const BlockFileOptions options_;
  bool is_direct_ = false;
  std::unique_ptr<BlockEngine> engine_;
  int64_t next_transfer_ = 0;
  uint64_t next_tag_ = 0;
  std::map<int64_t, Transfer> transfers_;
  std::deque<Piece> waiting_;
  std::map<uint64_t, Piece> moving_;
};

// Hears of the transfers of all BlockFiles, on the threads that start and finish them, for tests
// that count their time.
class BlockFileObserver {
 public:
  virtual ~BlockFileObserver() = default;
  virtual void Started(const BlockFile& file, int64_t transfer, bool is_write, int64_t bytes) = 0;
  virtual void Finished(const BlockFile& file, int64_t transfer) = 0;
};
// The observer hears of them from now on; null: nobody does.
void ObserveBlockFiles(BlockFileObserver* observer);

}  // namespace megatron

#endif  // MEGATRON_BASE_BLOCK_FILE_H_
