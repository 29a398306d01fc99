// ConfigChecker: gives the rules of a configuration its values, and collects their errors. The
// rules that the schema states about single fields are checked here, the others in ../validate and
// ../recipes.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_CHECKER_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_CHECKER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_locations.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"

namespace megatron {

// Fields are named by paths ("model.num_layers"). A field is *written* if the user set it in the
// file, by an override or in the program; it *has a value* if it was written, was computed or has a
// default.
class ConfigChecker {
 public:
  // Keeps references to `config` and `locations`; `resolve` computes the fields that are unset.
  // Adds an error for each field that was written and lies outside its range, or names a value that
  // is not available; such a field is not usable.
  ConfigChecker(const config::PretrainConfig& config, const ConfigLocations& locations,
                absl::FunctionRef<void(config::PretrainConfig*)> resolve);

  const config::PretrainConfig& raw() const { return raw_; }
  // Returns the configuration with its computed fields set, and without values out of range.
  const config::PretrainConfig& resolved() const { return resolved_; }
  const ConfigLocations& locations() const { return locations_; }

  // Adds an error for each field that the schema calls required and that has no value.
  void CheckRequired();

  // Adds an error for each field that differs from its default and whose conditions of effect
  // (field_rules.proto) do not hold. A condition on a field that is wrong itself holds.
  void CheckEffects();

  bool IsWritten(absl::string_view path) const;

  // Returns whether a rule over these fields can be checked: each has a value that is valid by
  // itself.
  bool Usable(std::initializer_list<absl::string_view> paths) const;

  // Returns whether the field was not written, or was written with its default value.
  bool IsDefault(absl::string_view path) const;

  // Returns the value as text: "768", "adam".
  std::string ValueOf(absl::string_view path) const;

  // Returns "model.hidden_size = 768 (gpt.textproto:4:3)"; of a message "data.random_ltd (...)".
  std::string Named(absl::string_view path) const;

  // Returns "an integer from 1 to 10000".
  std::string Accepted(absl::string_view path) const;

  // Adds an error: the value of the field at `path` is wrong, or is missing.
  void Error(absl::string_view path, absl::string_view message);

  // Adds the same error for a field that is a message.
  void MessageError(absl::string_view path, absl::string_view message);

  // Rules over two fields. They add no error if one of the fields is not usable.
  void MustDivide(absl::string_view divisor, absl::string_view path, int64_t divisor_value,
                  int64_t value);
  void MustNotExceed(absl::string_view path, absl::string_view limit, double value,
                     double limit_value);

  // Refuses each of the fields that differs from its default, for a reason that the schema cannot
  // state.
  void HaveNoEffect(std::initializer_list<absl::string_view> paths, absl::string_view because);

  std::vector<ConfigError> TakeErrors() { return std::move(errors_); }

 private:
  void CheckRanges();
  bool Holds(const Condition& condition) const;
  void NoEffectError(absl::string_view path, absl::string_view because);
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
