#include "tools/report/layer_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/train/metrics/metric_table.h"
#include "tools/pictures/heat_map.h"
#include "tools/report/numbers.h"

namespace megatron::report {
namespace {

// The most cells of a picture, of all runs together.
constexpr size_t kMostCells = 1600;
constexpr size_t kMostColumns = 60, kFewestColumns = 8;
constexpr double kManyTimes = 20;  // values that differ by more have a logarithmic scale
constexpr int kPixelsOfRow = 15, kPixelsOfScales = 50, kTallest = 520;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

bool IsOfExperts(const Metric& metric) { return absl::StartsWith(metric.key, "expert-"); }

// The curves of one metric, a row for each layer.
struct LayerTable {
  const Metric* metric;
  std::vector<const MetricColumn*> columns;  // in the order of the file, which is that of layers
};

std::vector<LayerTable> TablesOf(const RunMetrics& metrics, bool of_experts) {
  std::vector<LayerTable> tables;
  for (const MetricColumn& column : metrics.layer_columns) {
    const Metric* const metric = FindLayerMetric(column.key);
    const bool has_values = !column.points.empty() || !column.absent.empty();
    if (IsOfExperts(*metric) != of_experts || !has_values) continue;
    const auto found = std::find_if(tables.begin(), tables.end(),
                                    [&](const LayerTable& t) { return t.metric == metric; });
    LayerTable& table = found == tables.end() ? tables.emplace_back() : *found;
    table.metric = metric;
    table.columns.push_back(&column);
  }
  return tables;
}

// Returns the ends of intervals of the axis that each have a step that was measured.
std::vector<double> EdgesOf(const LayerTable& table, size_t most) {
  std::vector<double> iterations;
  for (const MetricColumn* column : table.columns) {
    for (const auto& point : column->points) iterations.push_back(point.first);
    iterations.insert(iterations.end(), column->absent.begin(), column->absent.end());
  }
  std::sort(iterations.begin(), iterations.end());
  iterations.erase(std::unique(iterations.begin(), iterations.end()), iterations.end());
  const size_t stride = (iterations.size() + most - 1) / most;
  std::vector<double> edges = {iterations.size() > 1 ? 2 * iterations[0] - iterations[1]
                                                     : iterations[0] - 1};
  for (size_t i = 0; i < iterations.size(); ++i) {
    if ((i + 1) % stride == 0 || i + 1 == iterations.size()) edges.push_back(iterations[i]);
  }
  return edges;
}

// Returns the last value in each interval; infinity where a value was not finite.
std::vector<double> CellsOf(const MetricColumn& column, const std::vector<double>& edges) {
  std::vector<double> cells(edges.size() - 1, kNone);
  const auto cell = [&](double iteration) -> double& {
    const auto end = std::lower_bound(edges.begin() + 1, edges.end(), iteration);
    return cells[static_cast<size_t>(end - edges.begin() - 1)];
  };
  for (const auto& [iteration, value] : column.points) cell(iteration) = value;
  for (const double iteration : column.absent)
    cell(iteration) = std::numeric_limits<double>::infinity();
  return cells;
}

size_t ColumnsFor(size_t rows, size_t runs) {
  return std::clamp(kMostCells / runs / rows, kFewestColumns, kMostColumns);
}

int HeightOf(size_t rows) {
  return std::min(kTallest, kPixelsOfScales + kPixelsOfRow * static_cast<int>(rows));
}

void AddLegend(const HeatMap& map, Figure* figure) {
  const HeatRange range = RangeOf(map);
  figure->legend.push_back(
      {HeatKey(), absl::StrCat(ShortNumber(range.low), " to ", ShortNumber(range.high),
                               map.log ? ", logarithmic" : "")});
  const bool has_infinite =
      std::any_of(map.values.begin(), map.values.end(), [](const std::vector<double>& row) {
        return std::any_of(row.begin(), row.end(), [](double x) { return std::isinf(x); });
      });
  if (has_infinite) figure->legend.push_back({InfiniteKey(), "not finite"});
}

Table ValuesOf(const LayerTable& layers, const std::string& title) {
  Table table;
  table.caption = title;
  table.columns = {"layer", "first", "last", "lowest", "highest"};
  for (const MetricColumn* column : layers.columns) {
    std::vector<TableCell> row = {std::string(LayerOf(column->key))};
    const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
    if (column->points.empty()) {
      row.resize(5, "");
    } else {
      const auto [low, high] =
          std::minmax_element(column->points.begin(), column->points.end(), by_value);
      for (const double value :
           {column->points.front().second, column->points.back().second, low->second, high->second})
        row.emplace_back(ShortNumber(value));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Figure FigureOf(const LayerTable& table, const std::string& of_run, const std::string& id,
                size_t runs) {
  HeatMap map;
  map.x_label = "iteration";
  map.edges = EdgesOf(table, ColumnsFor(table.columns.size(), runs));
  for (const MetricColumn* column : table.columns) {
    map.rows.emplace_back(LayerOf(column->key));
    map.values.push_back(CellsOf(*column, map.edges));
  }
  const HeatRange range = RangeOf(map);
  map.log = range.low > 0 && range.high > kManyTimes * range.low;
  Figure figure;
  const absl::string_view key = table.metric->key;
  figure.title = absl::StrCat(key.substr(0, key.find('/')), " by layer", of_run);
  map.frame.title = figure.title;
  map.frame.height = HeightOf(map.rows.size());
  map.frame.description =
      absl::StrCat("Values from ", ShortNumber(range.low), " to ", ShortNumber(range.high), " in ",
                   table.columns.size(), " rows; the table has them.");
  figure.svg = HeatMapInPage(map, id);
  figure.caption = table.metric->help;
  AddLegend(map, &figure);
  figure.values = ValuesOf(table, figure.title);
  return figure;
}

// The choices of each expert beside those of the layer's mean expert. A column that is several
// experts' shows the most of them.
Figure LoadFigure(const RunMetrics& metrics, const std::string& of_run, const std::string& id,
                  size_t runs) {
  HeatMap map;
  map.x_label = "expert";
  size_t experts = 0;
  for (const LayerLoad& load : metrics.expert_load)
    experts = std::max(experts, load.choices.size());
  const size_t most_columns = ColumnsFor(metrics.expert_load.size(), runs);
  const size_t each = (experts + most_columns - 1) / most_columns;
  const size_t columns = (experts + each - 1) / each;
  for (size_t i = 0; i <= columns; ++i) map.edges.push_back(static_cast<double>(i * each));
  Figure figure;
  figure.values_in_text = true;
  figure.title =
      absl::StrFormat("Load of experts at iteration %.0f%s", metrics.expert_load_iteration, of_run);
  figure.values.caption = figure.title;
  figure.values.columns = {"layer",     "choices",      "most chosen",
                           "its share", "least chosen", "its share"};
  for (const LayerLoad& load : metrics.expert_load) {
    const double total = std::accumulate(load.choices.begin(), load.choices.end(), 0.0);
    const double mean = total / static_cast<double>(load.choices.size());
    std::vector<double> row(columns, kNone);
    for (size_t e = 0; e < load.choices.size(); ++e)
      row[e / each] = std::fmax(row[e / each], mean > 0 ? load.choices[e] / mean : 0);
    const auto [least, most] = std::minmax_element(load.choices.begin(), load.choices.end());
    const auto number = [&](auto at) { return absl::StrCat(at - load.choices.begin()); };
    const auto share = [&](auto at) {
      return absl::StrFormat("%.1f %%", total > 0 ? 100 * *at / total : 0);
    };
    figure.values.rows.push_back(
        {load.layer, ShortNumber(total), number(most), share(most), number(least), share(least)});
    map.rows.push_back(load.layer);
    map.values.push_back(std::move(row));
  }
  map.frame.title = figure.title;
  map.frame.height = HeightOf(map.rows.size());
  const HeatRange range = RangeOf(map);
  map.frame.description = absl::StrCat("From ", ShortNumber(range.low), " to ",
                                       ShortNumber(range.high), " times the mean of the layer.");
  figure.svg = HeatMapInPage(map, id);
  figure.caption = "How often tokens chose each expert, in times the mean of its layer.";
  AddLegend(map, &figure);
  return figure;
}

std::vector<Block> BlocksOf(const RunMetrics& metrics, bool of_experts, const std::string& of_run,
                            absl::string_view id, size_t runs) {
  std::vector<Block> blocks;
  for (const LayerTable& table : TablesOf(metrics, of_experts))
    blocks.emplace_back(FigureOf(table, of_run, absl::StrCat(id, "-", blocks.size()), runs));
  return blocks;
}

}  // namespace

std::vector<Block> LayerBlocks(const RunMetrics& metrics, const std::string& of_run,
                               absl::string_view id, size_t runs) {
  return BlocksOf(metrics, /*of_experts=*/false, of_run, id, runs);
}

std::vector<Block> ExpertBlocks(const RunMetrics& metrics, const std::string& of_run,
                                absl::string_view id, size_t runs) {
  std::vector<Block> blocks = BlocksOf(metrics, /*of_experts=*/true, of_run, id, runs);
  if (!metrics.expert_load.empty())
    blocks.insert(blocks.begin(), LoadFigure(metrics, of_run, absl::StrCat(id, "-load"), runs));
  return blocks;
}

}  // namespace megatron::report
