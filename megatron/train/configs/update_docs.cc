// Writes the reference of all fields into docs/configuration.md of the source tree.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/config/config_reference.h"

int main() {
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace == nullptr) {
    std::fprintf(stderr, "error: start it with bazel run\n");
    return 1;
  }
  const std::string path = absl::StrCat(workspace, "/docs/configuration.md");
  std::ostringstream old_page;
  old_page << std::ifstream(path).rdbuf();
  const absl::StatusOr<std::string> page = megatron::WithReference(old_page.str());
  if (!page.ok()) {
    std::fprintf(stderr, "error: %s: %s\n", path.c_str(), page.status().ToString().c_str());
    return 1;
  }
  std::ofstream file(path);
  if (!(file << *page << std::flush)) {
    std::fprintf(stderr, "error: %s cannot be written\n", path.c_str());
    return 1;
  }
  return 0;
}
