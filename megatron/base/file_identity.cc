#include "megatron/base/file_identity.h"

namespace megatron {

std::optional<FileIdentity> IdentityOf(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return std::nullopt;
  return FileIdentity{info.st_dev, info.st_ino};
}

std::optional<FileIdentity> IdentityOf(int descriptor) {
  struct stat info;
  if (fstat(descriptor, &info) != 0) return std::nullopt;
  return FileIdentity{info.st_dev, info.st_ino};
}

}  // namespace megatron
