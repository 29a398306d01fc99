// The shards of a checkpoint that lie on several machines, each of which has some: those of this
// machine are read as files, the others through the ranks that have them.
//
//   PeerFiles files(fs, found, machines, rank);
//   const CheckpointReader reader = files.OpenReader("name for messages");
//   files.Start(group);                      // all ranks, unless all have all files
//   ... reader.Load(...) ...                 // each rank as it likes
//   files.Finish(/*ok=*/true);               // returns when all ranks are done, or one has failed
//
// From Start to Finish a thread serves the other ranks. The bytes of a shard are checked by the
// reader, wherever they come from.
#ifndef MEGATRON_CHECKPOINT_LOCAL_PEER_FILES_H_
#define MEGATRON_CHECKPOINT_LOCAL_PEER_FILES_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/local/find_local_checkpoint.h"
#include "megatron/comm/process_group.h"

namespace megatron {

class PeerFiles {
 public:
  // `machines` are those of the ranks now, of which this is `rank`. All ranks have the same
  // checkpoint.
  PeerFiles(FileSystem& fs, LocalCheckpoint checkpoint, const std::vector<int>& machines, int rank);
  PeerFiles(const PeerFiles&) = delete;
  PeerFiles& operator=(const PeerFiles&) = delete;
  // Finishes as after an error.
  ~PeerFiles();

  // A reader of the whole, with this name in messages. This must outlive it.
  CheckpointReader OpenReader(const std::string& name);

  // Returns whether some machine lacks a shard, so that Start and Finish are needed.
  bool is_spread() const { return is_spread_; }

  // All ranks call it, with a group that nobody else uses until Finish.
  void Start(const ProcessGroup& ranks);
  // Not `ok`: this rank has an error, which ends the others' reading too.
  void Finish(bool ok);

 private:
  class RemoteFile;
  // What a rank wants in a round; all ranks see all requests.
  struct Request {
    enum : int64_t { kNothing, kBytes, kDone, kFailed };
    int64_t kind = kNothing;
    int64_t holder = 0, shard = 0, offset = 0, bytes = 0;
  };

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenShard(int shard);
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenOwn(int shard) const;
  // Reads a piece of a shard that another rank has. Any thread may call it.
  absl::Status ReadRemote(int holder, int shard, int64_t offset, absl::Span<char> buffer);
  void Serve();
  // Answers all requests that concern this rank.
  absl::Status Answer(const std::vector<Request>& requests);
  // Returns the bytes that another rank asks for, and behind them a byte that is 1 if they could be
  // read.
  std::string ReadFor(const Request& request);
  Request NextRequest();
  void EndRequest(const absl::Status& status);

  FileSystem& fs_;
  const LocalCheckpoint checkpoint_;
  const int rank_;
  std::vector<int> holders_;  // each shard's holder; this rank where its machine has it
  bool is_spread_ = false;
  ProcessGroup ranks_;
  std::thread thread_;
  std::map<int, std::unique_ptr<RandomAccessFile>> open_;  // the thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. The request of the reader who waits, and where its bytes go.
  Request request_;
  absl::Span<char> buffer_;
  bool answered_ = false;
  absl::Status answer_;
  absl::Status end_;  // not OK: no request is answered any more
};

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_LOCAL_PEER_FILES_H_
