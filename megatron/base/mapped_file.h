// A whole file as read-only memory.
//
// A page is read only when it is touched, and nothing is copied: all processes that map a file
// share the kernel's pages of it. The file must not shrink while it is mapped; touching a page that
// was cut off kills the process (SIGBUS). Files that are replaced by rename, as all of ours are,
// never shrink.
//
// Any number of threads may read.
#ifndef MEGATRON_BASE_MAPPED_FILE_H_
#define MEGATRON_BASE_MAPPED_FILE_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

class MappedFile {
 public:
  // Maps a regular file; an empty file gives empty data. Anything else, such as a FIFO, is refused
  // at once.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }

  // Releases this process's memory for the pages of `part`, which is a part of data(). The contents
  // do not change; they are read from the file again when they are touched.
  void Forget(absl::string_view part) const;

  // The file's bytes. Moving this object does not move them.
  absl::string_view data() const { return {data_, size_}; }

 private:
  MappedFile(std::string path, const char* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_BASE_MAPPED_FILE_H_
