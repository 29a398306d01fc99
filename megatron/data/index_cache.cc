#include "megatron/data/index_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/mapped_file.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/md5.h"

namespace megatron {
namespace {

constexpr char kDescription[] = "description.txt";
constexpr char kChecksums[] = "checksums.txt";
constexpr int64_t kMaxTextBytes = 1 << 20;

std::string ChecksumLine(absl::string_view name, int64_t size, uint32_t crc) {
  return absl::StrFormat("crc32c %08x, %d bytes, %s\n", crc, size, name);
}

std::string ChecksumLine(absl::string_view name, absl::string_view contents) {
  return ChecksumLine(name, static_cast<int64_t>(contents.size()), Crc32c(contents));
}

std::string FileName(const std::string& array) { return array + ".npy"; }

// The lock is held until the object is destroyed or the process ends, however it ends.
class FolderLock {
 public:
  // Waits until no other process holds the lock.
  static absl::StatusOr<FolderLock> Take(const std::string& directory) {
    const std::string path = JoinPath(directory, ".lock");
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("create '", path, "'"));
    FolderLock lock(descriptor);
    while (flock(descriptor, LOCK_EX) != 0) {
      if (errno != EINTR) return absl::ErrnoToStatus(errno, absl::StrCat("lock '", path, "'"));
    }
    return lock;
  }

  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~FolderLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

absl::StatusOr<FolderLock> MakeAndLock(FileSystem& fs, const std::string& directory) {
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  return FolderLock::Take(directory);
}

}  // namespace

std::string IndexCache::PathOf(const IndexCacheKey& key, absl::string_view name) const {
  return JoinPath(directory_, absl::StrCat(Md5Hex(key.description), "-", key.kind, "-", name));
}

absl::StatusOr<IndexArrays> IndexCache::Load(const IndexCacheKey& key) const {
  MEGATRON_ASSIGN_OR_RETURN(const std::string checksums,
                            ReadFileToString(fs_, PathOf(key, kChecksums), kMaxTextBytes));
  const auto damaged = [&](absl::string_view name, absl::string_view what) {
    return absl::DataLossError(absl::StrCat("'", PathOf(key, name), "': ", what));
  };
  const absl::StatusOr<std::string> description =
      ReadFileToString(fs_, PathOf(key, kDescription), kMaxTextBytes);
  if (!description.ok() || *description != key.description)
    return damaged(kDescription, "missing, or another description");
  std::string found = ChecksumLine(kDescription, *description);
  auto files = std::make_shared<std::vector<MappedFile>>();
  IndexArrays arrays;
  for (const std::string& name : key.names) {
    absl::StatusOr<MappedFile> file = MappedFile::Open(PathOf(key, FileName(name)));
    if (!file.ok()) return damaged(FileName(name), file.status().message());
    absl::StatusOr<NpyArray> array = ParseNpy(file->data());
    if (!array.ok()) return damaged(FileName(name), array.status().message());
    found += ChecksumLine(FileName(name), file->data());
    arrays.arrays.push_back(*std::move(array));
    files->push_back(*std::move(file));
  }
  if (found != checksums) return damaged(kChecksums, "the files are not those that it describes");
  arrays.storage = std::move(files);
  return arrays;
}

absl::Status IndexCache::StoreArray(const std::string& path, const NpyArray& array,
                                    std::string* header) const {
  *header = NpyHeader(array.type, array.shape);
  const std::string partial = path + ".tmp";
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs_.Create(partial));
  MEGATRON_RETURN_IF_ERROR(file->Append(*header));
  MEGATRON_RETURN_IF_ERROR(file->Append(array.data));
  MEGATRON_RETURN_IF_ERROR(file->Sync());
  MEGATRON_RETURN_IF_ERROR(file->Close());
  return fs_.Rename(partial, path);
}

absl::Status IndexCache::StoreFiles(const IndexCacheKey& key, const IndexArrays& arrays) const {
  CHECK_EQ(key.names.size(), arrays.arrays.size()) << key.kind;
  std::string checksums = ChecksumLine(kDescription, key.description);
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs_, PathOf(key, kDescription), key.description));
  for (size_t i = 0; i < key.names.size(); ++i) {
    const std::string name = FileName(key.names[i]);
    const NpyArray& array = arrays.arrays[i];
    std::string header;
    MEGATRON_RETURN_IF_ERROR(StoreArray(PathOf(key, name), array, &header));
    checksums += ChecksumLine(name, static_cast<int64_t>(header.size() + array.data.size()),
                              ExtendCrc32c(Crc32c(header), array.data));
  }
  return WriteFileAtomically(fs_, PathOf(key, kChecksums), checksums);
}

void IndexCache::RemoveEntry(const IndexCacheKey& key) const {
  std::vector<std::string> names = {kChecksums, kDescription};
  for (const std::string& name : key.names) names.push_back(FileName(name));
  for (const std::string& name : names) {
    // Errors are ignored: a missing file needs no removal, and Load rejects a file that is left.
    fs_.Remove(PathOf(key, name)).IgnoreError();
    fs_.Remove(PathOf(key, name) + ".tmp").IgnoreError();
  }
}

absl::Status IndexCache::Store(const IndexCacheKey& key, const IndexArrays& arrays) const {
  MEGATRON_RETURN_IF_ERROR(fs_.CreateDirs(directory_));
  RemoveEntry(key);
  const absl::Status status = StoreFiles(key, arrays);
  // The files are removed after an error, since a full disk needs the space.
  if (!status.ok()) RemoveEntry(key);
  return status;
}

absl::StatusOr<IndexArrays> IndexCache::LoadOrBuild(
    const IndexCacheKey& key, absl::FunctionRef<absl::Status(const IndexArrays&)> check,
    absl::FunctionRef<absl::StatusOr<IndexArrays>()> build) const {
  const auto load = [&]() -> absl::StatusOr<IndexArrays> {
    MEGATRON_ASSIGN_OR_RETURN(IndexArrays arrays, Load(key));
    MEGATRON_RETURN_IF_ERROR(check(arrays));
    return arrays;
  };
  if (absl::StatusOr<IndexArrays> loaded = load(); loaded.ok()) return loaded;
  const absl::StatusOr<FolderLock> lock = MakeAndLock(fs_, directory_);
  // The process that held the lock may have built the entry.
  absl::StatusOr<IndexArrays> loaded = load();
  if (loaded.ok()) return loaded;
  LOG_IF(WARNING, !absl::IsNotFound(loaded.status()))
      << "building an index again: " << loaded.status().message();
  MEGATRON_ASSIGN_OR_RETURN(IndexArrays built, build());
  absl::Status status = lock.status();
  if (status.ok()) status = Store(key, built);
  // The arrays are mapped from the files, so all processes share one copy in memory.
  if (status.ok()) loaded = load();
  if (status.ok() && loaded.ok()) return loaded;
  LOG(WARNING) << "an index is not kept in " << directory_
               << " and will be built again by every process: "
               << (status.ok() ? loaded.status() : status).message();
  return built;
}

absl::Status CheckArray(const NpyArray& array, absl::string_view type,
                        absl::Span<const int64_t> shape) {
  if (array.type == type && shape == absl::MakeConstSpan(array.shape)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("an array of ", array.type, " and shape (",
                                          absl::StrJoin(array.shape, ", "), ") in place of ", type,
                                          " and (", absl::StrJoin(shape, ", "), ")"));
}

}  // namespace megatron
