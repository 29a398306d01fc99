// Numbers as a report writes them.
#ifndef MEGATRON_TOOLS_REPORT_NUMBERS_H_
#define MEGATRON_TOOLS_REPORT_NUMBERS_H_

#include <string>
#include <vector>

namespace megatron::report {

// Returns four digits of the number: "0.7214", "3e-05", "12.35k".
std::string ShortNumber(double value);
// Returns the number of seconds as "1 h 02 min", "3 min 20 s" or "4.31 s".
std::string ShortDuration(double seconds);
// Returns the time as "2026-01-31 12:00:05 UTC".
std::string ClockTime(double seconds_since_1970);

// Returns the value that a share of the values lies below; the values must not be empty.
double Quantile(std::vector<double> values, double share);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_NUMBERS_H_
