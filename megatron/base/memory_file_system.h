// A file system in memory that can simulate a power failure, to test code that claims to survive
// one.
//
//   for (int n = 0; n <= fs.operation_count(); ++n) {
//     auto image = fs.CrashImage(n, CrashModel::kLoseUnsynced, 0);
//     EXPECT_THAT(Load(*image), ...) << fs.Describe(n - 1);
//   }
//
// It keeps a log of every operation that changes something. CrashImage(n, model, seed) is what a
// machine finds on its disk if the power fails just after the first n of them: data that was not
// synced, and names whose directory was not synced, are lost, torn or reordered as POSIX permits.
// Operations are numbered from 0.
#ifndef MEGATRON_BASE_MEMORY_FILE_SYSTEM_H_
#define MEGATRON_BASE_MEMORY_FILE_SYSTEM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "megatron/base/file_system.h"

namespace megatron {

enum class CrashModel {
  kKillProcess,   // the process dies, the machine stays up: everything done so far is kept
  kLoseUnsynced,  // exactly what was synced is kept
  kTearUnsynced,  // all names; some 512-byte sectors of unsynced data, the others zero or missing
  kShuffleNames,  // any subset of the unsynced name changes; data as in kTearUnsynced
};

class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenNoFollow(const std::string& path) override;
  absl::Status CreateDirs(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDir(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveTree(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<FileInfo> Stat(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;

  // Sets what FreeBytes returns; writes are not limited by it.
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }

  int operation_count() const;
  // Returns a text for failure messages, such as "rename 'a' to 'b'".
  std::string Describe(int operation) const;
  // Everything in the image is durable, and its log is empty. The same arguments give the same
  // image.
  std::unique_ptr<MemoryFileSystem> CrashImage(int operations, CrashModel model,
                                               uint64_t seed) const;

  // Returns the bytes of an existing file so that a test can damage them. Changes are not logged.
  std::string* MutableContents(const std::string& path);

 private:
  friend class MemoryWritableFile;
  friend class MemoryRandomAccessFile;

  // One change of a directory: `name` now refers to `inode`, or to nothing (-1), and `old_name`, if
  // it is not empty, is removed.
  struct NameChange {
    std::string name;
    int inode = -1;
    std::string old_name;
  };
  struct Inode {
    bool is_directory = false;
    std::string data, durable_data;
    std::map<std::string, int> names, durable_names;
    std::vector<NameChange> unsynced_names;
  };
  struct Operation {
    enum Kind { kCreate, kAppend, kSync, kMakeDir, kRename, kSyncDir, kRemove };
    Kind kind;
    std::string path, to;  // `path` serves only messages for kAppend and kSync
    int inode = -1;
    std::string data;
  };

  // The caller of these methods holds the mutex, or is the only one to know the object.
  int Find(const std::string& path) const;  // -1 if there is no such path
  absl::StatusOr<int> FindDirectory(const std::string& path) const;
  void ChangeName(int directory, const NameChange& change);
  void Apply(const Operation& operation);
  void Do(Operation operation);
  absl::Status RemoveLocked(const std::string& path);
  absl::Status RemoveTreeLocked(const std::string& path);
  void Crash(CrashModel model, std::mt19937_64* random);

  mutable std::mutex mutex_;
  std::vector<Inode> inodes_;  // inodes_[0] is the root; entries are never reused
  std::vector<Operation> log_;
  int64_t free_bytes_ = int64_t{1} << 50;
};

}  // namespace megatron

#endif  // MEGATRON_BASE_MEMORY_FILE_SYSTEM_H_
