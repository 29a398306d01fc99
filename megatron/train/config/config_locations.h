// The place where each field of a configuration got its value. A field is named by its path:
// "model.num_layers".

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_LOCATIONS_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_LOCATIONS_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace megatron {

class ConfigLocations {
 public:
  // `source` names the whole configuration, for errors about a field that nobody wrote:
  // "gpt.textproto".
  explicit ConfigLocations(absl::string_view source = "") : source_(source) {}

  // Records that the user wrote the field at `where`; the last call for a path counts.
  void Set(absl::string_view path, absl::string_view where) { where_[path] = std::string(where); }

  // Forgets the field and all that it contains.
  void Erase(absl::string_view path);

  // Records that the field could not be read. Rules that need it must add no error: its own error
  // has been reported.
  void MarkBroken(absl::string_view path) { broken_.emplace(path); }

  bool IsSet(absl::string_view path) const { return where_.contains(path); }
  bool IsBroken(absl::string_view path) const { return broken_.contains(path); }

  // Returns "gpt.textproto:12:3" or "--set model.num_layers=4"; for a field that nobody wrote, the
  // place of the innermost message around it that somebody wrote, or the source.
  std::string Where(absl::string_view path) const;

  const std::string& source() const { return source_; }

 private:
  std::string source_;
  absl::flat_hash_map<std::string, std::string> where_;
  absl::flat_hash_set<std::string> broken_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_LOCATIONS_H_
