// Measures how long a rank that has been sent something waits for a core that others have.
#ifndef TOOLS_CALIBRATION_MEASURE_TURNS_H_
#define TOOLS_CALIBRATION_MEASURE_TURNS_H_

namespace megatron {

// Returns the mean of `turns` waits, in seconds: see Implementation.turn_seconds. Two threads send
// each other messages in turn and compute between them, while each of `cores` cores has a thread
// that only computes. Takes some 20 ms a turn.
double MeasureTurnSeconds(int cores, int turns);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_MEASURE_TURNS_H_
