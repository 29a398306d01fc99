#include "tools/bandwidth/comm_bench_report.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "tools/pictures/plot_axis.h"

namespace megatron {
namespace {

constexpr int kWidth = 900, kHeight = 520, kLeft = 80, kRight = 180, kTop = 50, kBottom = 60;
const char* const kColors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"};

std::string TimingColumns(const std::optional<CommBenchTiming>& timing) {
  if (!timing.has_value()) return absl::StrFormat("  %8s  %6s  %6s  %6s", "-", "-", "-", "-");
  const std::string wrong = timing->wrong.has_value() ? absl::StrCat(*timing->wrong) : "N/A";
  // Formats with as many digits as nccl-tests: at least four that count.
  const int digits = timing->microseconds < 1000 ? 2 : timing->microseconds < 100000 ? 1 : 0;
  return absl::StrFormat("  %8.*f  %6.2f  %6.2f  %6s", digits, timing->microseconds, timing->algbw,
                         timing->busbw, wrong);
}

nlohmann::json ToJson(const std::optional<CommBenchTiming>& timing) {
  if (!timing.has_value()) return nullptr;
  nlohmann::json json = {{"time_us", timing->microseconds},
                         {"algbw_gbps", timing->algbw},
                         {"busbw_gbps", timing->busbw}};
  if (timing->wrong.has_value()) json["wrong"] = *timing->wrong;
  return json;
}

std::string SizeLabel(int64_t bytes) {
  const char* const units[] = {"", "K", "M", "G", "T"};
  int unit = 0;
  for (; unit < 4 && bytes >= 1024 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return absl::StrCat(bytes, units[unit]);
}

// Returns "4 ranks", "4 ranks, ring", or "2 x 2 ranks" of hierarchical collectives over two hosts
// of two.
std::string RanksText(const CommBenchResult& result) {
  const int per_host = result.ranks_per_host;
  return absl::StrCat(per_host == 0 ? "" : absl::StrCat(result.ranks / per_host, " x "),
                      per_host == 0 ? result.ranks : per_host, " ranks",
                      result.algorithm == CollectiveAlgorithm::kMesh
                          ? ""
                          : absl::StrCat(", ", Name(result.algorithm)));
}

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // size, GB/s
};

std::vector<Line> Lines(const std::vector<CommBenchResult>& results) {
  std::vector<Line> lines;
  for (const CommBenchResult& result : results) {
    Line line = {absl::StrCat(Name(result.operation), ", ", RanksText(result)), {}};
    for (const CommBenchRow& row : result.rows) {
      const auto& timing = row.in_place.has_value() ? row.in_place : row.out_of_place;
      if (row.size == 0 || !timing.has_value() || !(timing->busbw > 0)) continue;
      line.points.emplace_back(static_cast<double>(row.size), timing->busbw);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// A logarithmic scale onto pixels.
class Scale {
 public:
  Scale(double low, double high, double from, double to)
      : low_(std::log(low)), high_(std::log(high)), from_(from), to_(to) {}
  double operator()(double value) const {
    return from_ + (to_ - from_) * (std::log(value) - low_) / (high_ - low_);
  }

 private:
  double low_, high_, from_, to_;
};

std::string Picture(const std::vector<Line>& lines) {
  double x_low = 1e300, x_high = 0, y_low = 1e300, y_high = 0;
  for (const Line& line : lines) {
    for (const auto& [x, y] : line.points) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
    }
  }
  if (x_high == 0) {
    return absl::StrFormat("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">no data</text>\n",
                           kWidth / 2, kHeight / 2);
  }
  if (x_low == x_high) x_high *= 2;
  y_low /= 1.3;
  y_high *= 1.3;
  const Scale x(x_low, x_high, kLeft, kWidth - kRight), y(y_low, y_high, kHeight - kBottom, kTop);
  std::string text;
  double power = 1;
  while (power < x_low) power *= 4;
  for (; power <= x_high; power *= 4) {
    absl::StrAppendFormat(&text,
                          "<path d=\"M%.1f %dV%d\" stroke=\"#e4e4e4\"/>"
                          "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                          x(power), kTop, kHeight - kBottom, x(power), kHeight - kBottom + 18,
                          SizeLabel(std::llround(power)));
  }
  for (double tick : PlotTicks(y_low, y_high, 8, /*log=*/true)) {
    absl::StrAppendFormat(&text,
                          "<path d=\"M%d %.1fH%d\" stroke=\"#e4e4e4\"/>"
                          "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kLeft, y(tick), kWidth - kRight, kLeft - 8, y(tick) + 4,
                          PlotTickLabel(tick));
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    const char* const color = kColors[i % std::size(kColors)];
    absl::StrAppendFormat(
        &text, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", color);
    for (const auto& [size, bandwidth] : lines[i].points) {
      absl::StrAppendFormat(&text, "%.1f,%.1f ", x(size), y(bandwidth));
    }
    absl::StrAppendFormat(&text, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n",
                          kWidth - kRight + 10, kTop + 14 + 18 * static_cast<int>(i), color,
                          lines[i].name);
  }
  return text;
}

}  // namespace

std::string CommBenchTable(const CommBenchResult& result) {
  std::string text = absl::StrFormat("# %s, %s\n", Name(result.operation), RanksText(result));
  absl::StrAppendFormat(&text, "#%52s%36s%36s\n", "", "out-of-place            ",
                        "in-place               ");
  absl::StrAppendFormat(&text, "#%12s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop",
                        "root");
  for (int form = 0; form < 2; ++form) {
    absl::StrAppendFormat(&text, "  %8s  %6s  %6s  %6s", "time", "algbw", "busbw", "#wrong");
  }
  absl::StrAppendFormat(&text, "\n#%12s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
  for (int form = 0; form < 2; ++form) {
    absl::StrAppendFormat(&text, "  %8s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
  }
  text += "\n";
  for (const CommBenchRow& row : result.rows) {
    absl::StrAppendFormat(&text, " %12d  %12d  %8s  %6s  %6d", row.size, row.count,
                          Name(result.dtype), result.reduces() ? Name(result.reduce) : "none",
                          result.has_root() ? result.root : -1);
    absl::StrAppend(&text, TimingColumns(row.out_of_place), TimingColumns(row.in_place), "\n");
  }
  absl::StrAppendFormat(&text, "# Out of bounds values : %d %s\n", result.wrong(),
                        result.wrong() == 0 ? "OK" : "FAILED");
  absl::StrAppendFormat(&text, "# Avg bus bandwidth    : %.4g\n", result.average_busbw());
  return text;
}

std::string CommBenchJson(const std::string& backend, const std::vector<CommBenchResult>& results) {
  nlohmann::json all = {{"backend", backend}, {"results", nlohmann::json::array()}};
  for (const CommBenchResult& result : results) {
    nlohmann::json rows = nlohmann::json::array();
    for (const CommBenchRow& row : result.rows) {
      rows.push_back({{"size", row.size},
                      {"count", row.count},
                      {"out_of_place", ToJson(row.out_of_place)},
                      {"in_place", ToJson(row.in_place)}});
    }
    nlohmann::json json = {{"operation", Name(result.operation)},
                           {"ranks", result.ranks},
                           {"type", Name(result.dtype)},
                           {"average_busbw_gbps", result.average_busbw()},
                           {"wrong", result.wrong()},
                           {"rows", rows}};
    if (result.algorithm != CollectiveAlgorithm::kMesh) json["algorithm"] = Name(result.algorithm);
    if (result.ranks_per_host > 0) json["ranks_per_host"] = result.ranks_per_host;
    if (result.reduces()) json["redop"] = Name(result.reduce);
    if (result.has_root()) json["root"] = result.root;
    all["results"].push_back(std::move(json));
  }
  return all.dump(1) + "\n";
}

std::string CommBenchSvg(const std::string& title, const std::vector<CommBenchResult>& results) {
  std::string text = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#444\">\n"
      "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
      kWidth, kHeight, kWidth, kHeight, kWidth, kHeight);
  absl::StrAppendFormat(
      &text, "<text x=\"%d\" y=\"28\" font-size=\"17\" text-anchor=\"middle\">%s</text>\n",
      kWidth / 2, absl::StrReplaceAll(title, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}}));
  text += Picture(Lines(results));
  absl::StrAppendFormat(
      &text,
      "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">size (bytes)</text>\n"
      "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">bus bandwidth "
      "(GB/s)</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 14, kHeight / 2);
  return text + "</svg>\n";
}

}  // namespace megatron
