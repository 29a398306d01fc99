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

TEST(FactsTextTest, OnlyTheDiskOfTheHardwareChanges) {
  Hardware mine;
  mine.set_name("mine");
  mine.set_disk_read_gb_per_s(2);
  mine.set_disk_write_gb_per_s(1.5);
  mine.set_disk_gb(100);
  mine.set_disk_directory("/mnt/\"fast\"");
  EXPECT_EQ(WithDisk("# By hand.\n"
                     "hardware { name: 'other' disk_gb: 1 }\n"
                     "hardware {\n"
                     "  name: 'mine'  # ours\n"
                     "  disk_gb: 5  # too old\n"
                     "}\n",
                     mine),
            "# By hand.\n"
            "hardware { name: 'other' disk_gb: 1 }\n"
            "hardware {\n"
            "  disk_read_gb_per_s: 2\n"
            "  disk_write_gb_per_s: 1.5\n"
            "  disk_directory: \"/mnt/\\\"fast\\\"\"\n"
            "  name: 'mine'  # ours\n"
            "  disk_gb: 100  # too old\n"
            "}\n");
}

TEST(FactsTextTest, AProgramThatIsNotThereIsAddedAtTheEnd) {
  EXPECT_EQ(WithFittedConstants("# Nothing yet.", Fitted()),
            "# Nothing yet.\nimplementation {\n  name: \"mine\"\n  measured_efficiency: 0.37\n"
            "  step_seconds: 0.004\n}\n");
}

}  // namespace
}  // namespace megatron
