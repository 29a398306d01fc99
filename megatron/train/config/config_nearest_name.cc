#include "megatron/train/config/config_nearest_name.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace megatron {
namespace {

// No name in the schema is near this long; hostile input must not cost quadratic time.
constexpr size_t kLongestName = 100;

std::string Normalized(absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", "_"}});
}

// Returns how many letters one of the two has that the other lacks, the larger of the two counts.
// No EditDistance is smaller: a change mends at most one letter on each side. Its time is linear
// in the lengths of the names, where EditDistance takes their product.
int LettersApart(absl::string_view a, absl::string_view b) {
  std::array<int, 256> left_of_a = {};
  for (const char letter : a) ++left_of_a[static_cast<unsigned char>(letter)];
  int only_b = 0;
  for (const char letter : b)
    only_b += static_cast<int>(--left_of_a[static_cast<unsigned char>(letter)] < 0);
  const int only_a = static_cast<int>(a.size()) - (static_cast<int>(b.size()) - only_b);
  return std::max(only_a, only_b);
}

}  // namespace

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> two_ago(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    two_ago.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_ago[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > kLongestName) return "";
  const std::string wanted = Normalized(name);
  std::string nearest;
  int nearest_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::string known = Normalized(candidate);
    // A name with up to a third of its letters wrong is probably a typing error; with more it is
    // probably another word.
    const int limit = std::max<int>(1, static_cast<int>(std::max(wanted.size(), known.size())) / 3);
    if (LettersApart(wanted, known) > limit) continue;
    const int distance = EditDistance(wanted, known);
    if (distance <= limit && (nearest.empty() || distance < nearest_distance)) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest;
}

}  // namespace megatron
