// How much other processes use the machine while a child of this process runs.
#ifndef TOOLS_CALIBRATION_OTHER_WORK_H_
#define TOOLS_CALIBRATION_OTHER_WORK_H_

namespace megatron {

class OtherWork {
 public:
  // Begins to watch.
  OtherWork();

  // Returns the share of the machine's cores that processes other than this one and its children
  // that have ended had since then, from 0 to 1; 0 where the system doesn't tell.
  double Share() const;

 private:
  double start_;
  double busy_;
  double own_;
};

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_OTHER_WORK_H_
