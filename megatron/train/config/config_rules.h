// The rules that config.proto states beside its fields (field_rules.proto), in the form that code
// works with. Rules between fields are in ../validate.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_RULES_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_RULES_H_

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "megatron/train/config/field_rules.pb.h"

namespace megatron {

const config::FieldRules& RulesOf(const google::protobuf::FieldDescriptor& field);

// An interval; an end that is excluded does not belong to it.
struct FieldRange {
  double min;
  double max;
  bool min_excluded = false;
  bool max_excluded = false;

  // Returns false for NaN.
  bool Contains(double value) const;
};

// Returns the range of a numeric field, or of each element of a repeated one. Every numeric field
// has one.
FieldRange RangeOf(const google::protobuf::FieldDescriptor& field);

// Returns the names of an enumeration's values that are available; nothing for another field.
std::vector<std::string> AcceptedNames(const google::protobuf::FieldDescriptor& field);

// Returns the accepted values as words that follow "expects": "an integer from 1 to 100000", "true
// or false", "one of adam, sgd". Values that are not available are left out.
std::string DescribeAccepted(const google::protobuf::FieldDescriptor& field);

// A statement about the value of another field. Of a repeated field it speaks of any element, and
// kNotEqual of all.
struct Condition {
  enum class Kind { kPresent, kAbsent, kEqual, kNotEqual, kAbove };

  std::string path;  // "model.num_experts"
  Kind kind;
  std::string value;  // in ValueText()'s format; empty for kPresent and kAbsent
};

// Returns the conditions under which the field has an effect, in the order of the schema. All of
// them must hold; one holds if any of its alternatives does.
std::vector<std::vector<Condition>> ConditionsOf(const google::protobuf::FieldDescriptor& field);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_RULES_H_
