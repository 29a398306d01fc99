#include "megatron/train/config/config_rules.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"

namespace megatron {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::testing::AnyOf;
using ::testing::MatchesRegex;

const FieldDescriptor& FieldAt(const std::string& path) {
  return *Resolve(config::PretrainConfig::default_instance(), path).field;
}

std::vector<std::string> Paths() { return AllPaths(*config::PretrainConfig::descriptor()); }

TEST(ConfigRulesTest, EveryNumericFieldHasARangeThatItsDefaultKeeps) {
  for (const std::string& path : Paths()) {
    const FieldDescriptor& field = FieldAt(path);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      const FieldRange range = RangeOf(field);
      EXPECT_LE(range.min, range.max) << path;
      EXPECT_TRUE(!field.has_default_value() ||
                  range.Contains(static_cast<double>(field.default_value_int64())))
          << path;
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      const FieldRange range = RangeOf(field);
      EXPECT_TRUE(!field.has_default_value() || range.Contains(field.default_value_double()))
          << path;
    } else {
      EXPECT_THAT(field.cpp_type(),
                  AnyOf(FieldDescriptor::CPPTYPE_BOOL, FieldDescriptor::CPPTYPE_ENUM,
                        FieldDescriptor::CPPTYPE_STRING, FieldDescriptor::CPPTYPE_MESSAGE))
          << path;
    }
  }
}

TEST(ConfigRulesTest, EveryConditionNamesAFieldAndAValueThatItTakes) {
  for (const std::string& path : Paths()) {
    for (const std::vector<Condition>& alternatives : ConditionsOf(FieldAt(path))) {
      for (const Condition& condition : alternatives) {
        const FieldDescriptor& field = FieldAt(condition.path);
        double number;
        if (condition.kind == Condition::Kind::kAbove) {
          EXPECT_TRUE(absl::SimpleAtod(condition.value, &number)) << path;
        } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
          // Texts are compared in quotes.
          EXPECT_THAT(condition.value, AnyOf("", MatchesRegex("\".*\""))) << path;
        } else if (!condition.value.empty() && field.enum_type() == nullptr) {
          ASSERT_TRUE(absl::SimpleAtod(condition.value, &number)) << path;
          EXPECT_EQ(absl::StrCat(number), condition.value) << path;  // they are compared as texts
          EXPECT_TRUE(RangeOf(field).Contains(number)) << path;
        } else if (!condition.value.empty()) {
          EXPECT_NE(field.enum_type()->FindValueByName(condition.value), nullptr) << path;
        }
      }
    }
  }
}

TEST(ConfigRulesTest, AFieldIsRequiredOrHasADefaultOrIsComputed) {
  for (const std::string& path : Paths()) {
    const config::FieldRules& rules = RulesOf(FieldAt(path));
    EXPECT_LE(rules.required() + rules.has_computed() + FieldAt(path).has_default_value(), 1)
        << path;
  }
}

TEST(ConfigRulesTest, AnExcludedEndDoesNotBelongToTheRange) {
  const FieldRange range = RangeOf(FieldAt("data.mask_prob"));
  EXPECT_FALSE(range.Contains(0));
  EXPECT_TRUE(range.Contains(0.5));
  EXPECT_FALSE(range.Contains(1));
}

}  // namespace
}  // namespace megatron
