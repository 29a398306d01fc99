// What a rule about a configuration can ask, and how it says that it is broken. The rules that the
// schema states of single fields are checked here, the others in ../validate.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_CHECKER_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_CHECKER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_locations.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"

namespace megatron {

// Fields are named by paths ("model.num_layers"). A field is *written* if the user gave it, by
// file, override or program; it *has a value* if it was written, computed or has a default.
class ConfigChecker {
 public:
  // Keeps references to both. Each field that was written and lies outside its range, or names a
  // value that is not available, is an error from the start, and not usable.
  ConfigChecker(const config::PretrainConfig& config, const ConfigLocations& locations);

  const config::PretrainConfig& raw() const { return raw_; }
  // The configuration with its computed fields set, and without what is out of range.
  const config::PretrainConfig& resolved() const { return resolved_; }
  const ConfigLocations& locations() const { return locations_; }

  // Each field that the schema calls required and that has no value is an error.
  void CheckRequired();

  // Each field that was moved off its default is an error if its conditions of effect
  // (field_rules.proto) do not hold. A condition about a field that is wrong itself holds.
  void CheckEffects();

  bool IsWritten(absl::string_view path) const;

  // Whether a rule over these fields can be judged: each has a value that is right when taken
  // alone.
  bool Usable(std::initializer_list<absl::string_view> paths) const;

  // Whether the field was not written, or was written as what it is anyway.
  bool IsDefault(absl::string_view path) const;

  // The value as text: "768", "adam".
  std::string ValueOf(absl::string_view path) const;

  // "model.hidden_size = 768 (gpt.textproto:4:3)".
  std::string Named(absl::string_view path) const;

  // "an integer from 1 to 10000".
  std::string Accepted(absl::string_view path) const;

  // The value of the field at `path` is wrong, or is missing.
  void Error(absl::string_view path, absl::string_view message);

  // The same for a field that is a message.
  void MessageError(absl::string_view path, absl::string_view message);

  // Rules over two fields, silent where one is not usable.
  void MustDivide(absl::string_view divisor, absl::string_view path, int64_t divisor_value,
                  int64_t value);
  void MustNotExceed(absl::string_view path, absl::string_view limit, double value,
                     double limit_value);

  // Refuses each of the fields that was moved off its default, for a reason that the schema cannot
  // state.
  void HaveNoEffect(std::initializer_list<absl::string_view> paths, absl::string_view because);

  std::vector<ConfigError> TakeErrors() { return std::move(errors_); }

 private:
  void CheckRanges();
  bool Holds(const Condition& condition) const;
  FieldRef Ref(absl::string_view path) const;
  bool HasValue(absl::string_view path) const;

  const config::PretrainConfig& raw_;
  config::PretrainConfig resolved_;
  const ConfigLocations& locations_;
  std::vector<ConfigError> errors_;
  absl::flat_hash_set<std::string> out_of_range_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_CHECKER_H_
