#include "megatron/train/config/schema_fields.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::SizeIs;

const SchemaField& FieldAt(const std::string& path) {
  for (const SchemaField& field : SchemaFields()) {
    if (field.path == path) return field;
  }
  ADD_FAILURE() << "there is no field " << path;
  return SchemaFields().front();
}

TEST(SchemaFieldsTest, AreThoseOfAllPathsInTheirOrder) {
  std::vector<std::string> paths;
  for (const SchemaField& field : SchemaFields()) paths.push_back(field.path);
  EXPECT_EQ(paths, AllPaths(*config::PretrainConfig::descriptor()));
}

TEST(SchemaFieldsTest, AreReadOnce) { EXPECT_EQ(&SchemaFields(), &SchemaFields()); }

TEST(SchemaFieldsTest, FindTheValuesThatPathsFind) {
  config::PretrainConfig config;
  config.mutable_model()->set_num_layers(7);
  config.mutable_train()->mutable_rampup_batch_size()->set_start(16);
  for (const SchemaField& field : SchemaFields()) {
    const FieldRef ref = field.In(config);
    const FieldRef expected = Resolve(config, field.path);
    // Both messages are the default instance where the configuration has none.
    EXPECT_EQ(ref.message, expected.message) << field.path;
    EXPECT_EQ(ref.field, expected.field) << field.path;
  }
  EXPECT_EQ(ValueText(FieldAt("model.num_layers").In(config)), "7");
  EXPECT_EQ(ValueText(FieldAt("train.rampup_batch_size.start").In(config)), "16");
}

TEST(SchemaFieldsTest, KnowWhichOfThemAreMessages) {
  EXPECT_TRUE(FieldAt("train.rampup_batch_size").is_message());
  EXPECT_FALSE(FieldAt("train.rampup_batch_size.start").is_message());
}

TEST(SchemaFieldsTest, HaveTheConditionsOfTheirFields) {
  for (const SchemaField& field : SchemaFields())
    EXPECT_THAT(field.conditions, SizeIs(ConditionsOf(field.field()).size())) << field.path;
  EXPECT_THAT(FieldAt("model.moe_router_topk").conditions,
              ElementsAre(ElementsAre(Field(&Condition::path, "model.num_experts"))));
}

}  // namespace
}  // namespace megatron
