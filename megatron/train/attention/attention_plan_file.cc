#include "megatron/train/attention/attention_plan_file.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/text_proto.h"

namespace megatron {
namespace {

using train::AttentionPlanFile;

constexpr int64_t kMostBytes = int64_t{1} << 20;

absl::Status CheckHeads(const AttentionPlanFile::Heads& heads, const std::string& where) {
  std::set<config::AttentionBackend::Type> seen;
  for (const AttentionPlanFile::Kernel& kernel : heads.kernel()) {
    if (!kernel.has_backend() || kernel.backend() == config::AttentionBackend::auto_) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": each kernel is one of flash, fused and local"));
    }
    if (!seen.insert(kernel.backend()).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": ", config::AttentionBackend::Type_Name(kernel.backend()), " is there twice"));
    }
  }
  if (!seen.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, ": there is no kernel"));
}

}  // namespace

absl::StatusOr<AttentionPlanFile> ParseAttentionPlans(absl::string_view text) {
  AttentionPlanFile file;
  MEGATRON_RETURN_IF_ERROR(ParseTextProto(text, &file));
  std::set<std::pair<std::string, int64_t>> seen;
  for (const AttentionPlanFile::Place& place : file.place()) {
    for (const AttentionPlanFile::Heads& heads : place.heads()) {
      const std::string where =
          absl::StrCat("heads of ", heads.kv_channels(), " on \"", place.gpu(), "\"");
      if (!seen.insert({place.gpu(), heads.kv_channels()}).second)
        return absl::InvalidArgumentError(absl::StrCat(where, ": are there twice"));
      MEGATRON_RETURN_IF_ERROR(CheckHeads(heads, where));
    }
  }
  return file;
}

absl::StatusOr<AttentionPlanFile> ReadAttentionPlans(FileSystem& fs, const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMostBytes));
  MEGATRON_ASSIGN_OR_RETURN(AttentionPlanFile file, ParseAttentionPlans(text),
                            _ << path << " holds no plans of attention");
  return file;
}

std::vector<config::AttentionBackend::Type> OrderInFile(const AttentionPlanFile& file,
                                                        absl::string_view gpu,
                                                        int64_t kv_channels) {
  std::vector<config::AttentionBackend::Type> order;
  for (const AttentionPlanFile::Place& place : file.place()) {
    if (place.gpu() != gpu) continue;
    for (const AttentionPlanFile::Heads& heads : place.heads()) {
      if (heads.kv_channels() != kv_channels) continue;
      for (const AttentionPlanFile::Kernel& kernel : heads.kernel())
        order.push_back(kernel.backend());
    }
  }
  return order;
}

}  // namespace megatron
