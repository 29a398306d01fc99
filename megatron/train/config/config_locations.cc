#include "megatron/train/config/config_locations.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace megatron {

void ConfigLocations::Erase(absl::string_view path) {
  const std::string inside = absl::StrCat(path, ".");
  absl::erase_if(where_, [&](const std::pair<const std::string, std::string>& entry) {
    return entry.first == path || absl::StartsWith(entry.first, inside);
  });
}

std::string ConfigLocations::Where(absl::string_view path) const {
  while (true) {
    const auto found = where_.find(path);
    if (found != where_.end()) return found->second;
    const size_t dot = path.rfind('.');
    if (dot == absl::string_view::npos) return source_;
    path = path.substr(0, dot);
  }
}

}  // namespace megatron
