// Writes the generated parts of the documentation of the source tree: the reference of all fields
// in docs/configuration.md, and the table of metrics in docs/metrics.md.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config_reference.h"
#include "megatron/train/config/page_part.h"
#include "megatron/train/metrics/metric_table.h"

namespace megatron {
namespace {

using MakePage = absl::FunctionRef<absl::StatusOr<std::string>(absl::string_view old_page)>;

absl::Status Update(const std::string& path, MakePage make_page) {
  std::ostringstream old_page;
  old_page << std::ifstream(path).rdbuf();
  MEGATRON_ASSIGN_OR_RETURN(const std::string page, make_page(old_page.str()), _ << path);
  std::ofstream file(path);
  if (!(file << page << std::flush))
    return absl::UnavailableError(absl::StrCat(path, " cannot be written"));
  return absl::OkStatus();
}

absl::Status UpdateDocs(const std::string& docs) {
  MEGATRON_RETURN_IF_ERROR(Update(docs + "/configuration.md", WithReference));
  return Update(docs + "/metrics.md", [](absl::string_view page) {
    return WithPart(page, "metrics", MetricReference());
  });
}

}  // namespace
}  // namespace megatron

int main() {
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace == nullptr) {
    std::fprintf(stderr, "error: start it with bazel run\n");
    return 1;
  }
  const absl::Status status = megatron::UpdateDocs(absl::StrCat(workspace, "/docs"));
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 1;
}
