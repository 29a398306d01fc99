// The zip archives that torch.save writes, in memory: their entries are stored, not compressed.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_ZIP_ARCHIVE_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_ZIP_ARCHIVE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

class ZipArchive {
 public:
  // kDataLoss for what is no such archive, or one whose entries lie outside `bytes`, which must
  // live as long.
  static absl::StatusOr<ZipArchive> Parse(absl::string_view bytes);

  // Returns the contents of an entry, named without the archive's folder ("data.pkl", "data/0");
  // null where there is none.
  const absl::string_view* Find(absl::string_view name) const;

 private:
  std::map<std::string, absl::string_view, std::less<>> entries_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_ZIP_ARCHIVE_H_
