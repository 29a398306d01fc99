// The layouts of small models that planner_check runs on this machine's cores.
#ifndef TOOLS_CALIBRATION_CHECK_LAYOUTS_H_
#define TOOLS_CALIBRATION_CHECK_LAYOUTS_H_

#include <string>
#include <vector>

namespace megatron {

struct CheckedModel {
  std::string name;
  std::string config;  // a PretrainConfig in text format
};

struct CheckedLayout {
  std::string model;
  std::string name;                    // "tp2 dp2"
  std::vector<std::string> overrides;  // fields of the configuration
};

const std::vector<CheckedModel>& CheckedModels();
const std::vector<CheckedLayout>& CheckedLayouts();  // 40, of 1 to 8 ranks

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_CHECK_LAYOUTS_H_
