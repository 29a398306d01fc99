#include "megatron/plan/plan_facts.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string HardwareText(const std::string& more) {
  return absl::StrCat(
      "hardware { name: 'mine' bf16_tflops: 100 memory_gib: 80 memory_gb_per_s: 2000 "
      "link_gb_per_s: 300 domain: 8 network_gb_per_s: 25 ",
      more, " }");
}

TEST(PlanFactsTest, GuessesAreNamesOfFigures) {
  EXPECT_TRUE(ParsePlanFacts(HardwareText("guess: 'host_link_gb_per_s'")).ok());
  const auto facts = ParsePlanFacts(HardwareText("guess: 'speed'"));
  EXPECT_EQ(facts.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(facts.status().message(), AllOf(HasSubstr("'mine'"), HasSubstr("'speed'")));
}

TEST(PlanFactsTest, AProcessorsRanksLoseAShareOfItsSpeed) {
  EXPECT_TRUE(ParsePlanFacts(HardwareText("far_memory_efficiency: 0.9")).ok());
  for (const char* wrong : {"far_memory_efficiency: 1.1", "far_memory_efficiency: 1e-4",
                            "far_memory_efficiency: -1", "thread_meeting_us: -1"}) {
    const auto facts = ParsePlanFacts(HardwareText(wrong));
    ASSERT_EQ(facts.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    const std::string field = std::string(wrong).substr(0, std::string(wrong).find(':'));
    EXPECT_THAT(facts.status().message(), HasSubstr(field));
  }
}

TEST(PlanFactsTest, AHostHasPossibleRates) {
  for (const char* wrong :
       {"host_link_gb_per_s: -1", "host_memory_gb_per_s: 1e7", "host_memory_gb: nan",
        "disk_read_gb_per_s: -1", "disk_write_gb_per_s: nan", "disk_gb: 1e10"}) {
    const auto facts = ParsePlanFacts(HardwareText(wrong));
    ASSERT_EQ(facts.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    const std::string field = std::string(wrong).substr(0, std::string(wrong).find(':'));
    EXPECT_THAT(facts.status().message(), HasSubstr(field));
  }
}

TEST(PlanFactsTest, ADisksFolderHasItsWholePath) {
  EXPECT_TRUE(ParsePlanFacts(HardwareText("disk_directory: '/nvme'")).ok());
  const auto facts = ParsePlanFacts(HardwareText("disk_directory: 'nvme/states'"));
  ASSERT_EQ(facts.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(facts.status().message(), AllOf(HasSubstr("hardware 'mine'.disk_directory must be"),
                                              HasSubstr("not 'nvme/states'")));
}

// Nothing of this program was measured on a GPU.
TEST(PlanFactsTest, EveryRateOfThisProgramIsAGuess) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Implementation& own = **FindImplementation(facts, "megatron_cc");
  const std::string named = NameGuesses(**FindHardware(facts, "H100"), own);
  EXPECT_THAT(named, AllOf(HasSubstr("of megatron_cc"), Not(HasSubstr("H100"))));
  const auto* descriptor = Implementation::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const bool is_rate = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE &&
                         field->name() != "gradient_bytes" && !field->is_repeated();
    if (!is_rate || own.GetReflection()->GetDouble(own, field) == 0) continue;
    EXPECT_THAT(named, HasSubstr(field->name()));
  }
  EXPECT_THAT(NameGuesses(**FindHardware(facts, "GB300"), own),
              HasSubstr("host_memory_gb of GB300"));
  EXPECT_EQ(
      NameGuesses(**FindHardware(facts, "H100"), **FindImplementation(facts, "megatron_2021")), "");
}

}  // namespace
}  // namespace megatron
