#include "tools/calibration/facts_text.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

Implementation Fitted() {
  Implementation program;
  program.set_name("mine");
  program.set_measured_efficiency(0.37);
  program.set_step_seconds(0.004);
  return program;
}

TEST(FactsTextTest, OnlyTheTwoConstantsOfTheProgramChange) {
  EXPECT_EQ(WithFittedConstants("# Measured by hand.\n"
                                "implementation { name: 'other' measured_efficiency: 1 }\n"
                                "implementation {\n"
                                "\tmeasured_efficiency: 1.0e0;  # as calibrated\n"
                                "  step_seconds: 1 name: 'mine' # ours\n"
                                "}\n",
                                Fitted()),
            "# Measured by hand.\n"
            "implementation { name: 'other' measured_efficiency: 1 }\n"
            "implementation {\n"
            "\tmeasured_efficiency: 0.37  # as calibrated\n"
            "  step_seconds: 0.004 name: 'mine' # ours\n"
            "}\n");
}

TEST(FactsTextTest, ConstantsThatAreNotThereStandBeforeTheName) {
  EXPECT_EQ(WithFittedConstants("implementation {\n  name: 'mine'  # ours\n}", Fitted()),
            "implementation {\n  measured_efficiency: 0.37\n  step_seconds: 0.004\n"
            "  name: 'mine'  # ours\n}");
}

TEST(FactsTextTest, AProgramThatIsNotThereIsAddedAtTheEnd) {
  EXPECT_EQ(WithFittedConstants("# Nothing yet.", Fitted()),
            "# Nothing yet.\nimplementation {\n  name: \"mine\"\n  measured_efficiency: 0.37\n"
            "  step_seconds: 0.004\n}\n");
}

}  // namespace
}  // namespace megatron
