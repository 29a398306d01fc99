#include "megatron/data/io/text_input.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/io/decompress.h"

namespace megatron {
namespace {

// Where NoteFolderError puts its error, since glob passes nothing on.
thread_local absl::Status* folder_error = nullptr;

// glob's callback for a folder that it can't open. A folder that does not exist has no files, and
// that in which a disk's root keeps lost pieces of files has none of ours.
int NoteFolderError(const char* path, int error) {
  if (error == ENOENT || absl::EndsWith(path, "/lost+found")) return 0;
  *folder_error = absl::ErrnoToStatus(error, absl::StrCat("list '", path, "'"));
  return 1;  // ends the search
}

absl::StatusOr<std::vector<std::string>> ExpandPattern(const std::string& pattern) {
  glob_t found = {};
  absl::Status status;
  folder_error = &status;
  const int result = glob(pattern.c_str(), GLOB_NOSORT, NoteFolderError, &found);
  folder_error = nullptr;
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  MEGATRON_RETURN_IF_ERROR(status, _ << "for '" << pattern << "'");
  if (result == GLOB_NOSPACE) return absl::ResourceExhaustedError("no memory to list files with");
  if (paths.empty()) return absl::ErrnoToStatus(ENOENT, absl::StrCat("open '", pattern, "'"));
  // The order must not depend on the user's locale.
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Returns the file's size, or -1 if the size does not tell how much there is to read.
int64_t StoredSize(const std::string& path) {
  struct stat info;
  const bool regular = path != "-" && stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return regular ? static_cast<int64_t>(info.st_size) : -1;
}

}  // namespace

absl::StatusOr<TextInputs> FindTextInputs(const std::vector<std::string>& patterns) {
  TextInputs inputs;
  for (const std::string& pattern : patterns) {
    struct stat info;
    // A path that exists but cannot be examined is kept: opening it reports the error.
    if (pattern == "-" || stat(pattern.c_str(), &info) == 0 || errno != ENOENT) {
      inputs.paths.push_back(pattern);
      continue;
    }
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandPattern(pattern));
    inputs.paths.insert(inputs.paths.end(), paths.begin(), paths.end());
  }
  if (inputs.paths.empty()) return absl::InvalidArgumentError("no input is named");
  if (std::count(inputs.paths.begin(), inputs.paths.end(), "-") > 1)
    return absl::InvalidArgumentError("stdin can be read once only");
  for (const std::string& path : inputs.paths) {
    const int64_t size = StoredSize(path);
    inputs.stored_bytes = size < 0 || inputs.stored_bytes < 0 ? -1 : inputs.stored_bytes + size;
  }
  return inputs;
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenTextInput(const std::string& path,
                                                          const std::atomic<bool>* stop) {
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> source, OpenByteSource(path, stop));
  return Decompress(path == "-" ? "stdin" : path, std::move(source));
}

}  // namespace megatron
