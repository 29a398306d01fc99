// Which file a path names: two paths with the same identity name one file, and a file keeps its
// identity when it is renamed. A name that was removed, or that another file has taken, has
// another one or none.
#ifndef MEGATRON_BASE_FILE_IDENTITY_H_
#define MEGATRON_BASE_FILE_IDENTITY_H_

#include <sys/stat.h>

#include <optional>
#include <string>

namespace megatron {

struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;

  bool operator==(const FileIdentity& other) const {
    return device == other.device && inode == other.inode;
  }
  bool operator!=(const FileIdentity& other) const { return !(*this == other); }
};

// Returns the identity of what the path itself names, which may be a link; nothing if that can't be
// found out, as for a path of a FileSystem in memory.
std::optional<FileIdentity> IdentityOf(const std::string& path);

// The same of an open file.
std::optional<FileIdentity> IdentityOf(int descriptor);

}  // namespace megatron

#endif  // MEGATRON_BASE_FILE_IDENTITY_H_
