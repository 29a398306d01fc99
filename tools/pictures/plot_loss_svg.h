// Draws loss curves as one SVG picture that needs nothing around it: no scripts, no fonts, no style
// sheets.

#ifndef TOOLS_PICTURES_PLOT_LOSS_SVG_H_
#define TOOLS_PICTURES_PLOT_LOSS_SVG_H_

#include <string>
#include <utility>
#include <vector>

namespace megatron {

struct LossCurve {
  std::string name;  // the run's name, for the legend
  std::vector<std::pair<double, double>>
      train;  // (iteration, loss), ascending; points that are not finite are passed over
  std::vector<std::pair<double, double>> validation;
};

struct LossPlotOptions {
  std::string title = "Loss";
  bool log_x = false;
  bool log_y = false;
  int width = 900;
  int height = 520;
};

// Training loss as it was, pale, with its smoothed course over it; validation loss as dots joined
// by a line; a color per run. Curves of many points are thinned to what can be seen: per column of
// the picture the lowest and the highest stay.
std::string LossPlotSvg(const std::vector<LossCurve>& curves, const LossPlotOptions& options);

// A page that holds the picture, for those whose viewer of SVG is a browser.
std::string LossPlotHtml(const std::vector<LossCurve>& curves, const LossPlotOptions& options);

// Values in [low, high] at which to write a number: multiples of 1, 2 or 5 times a power of ten,
// about `count` of them. With `log`, powers of ten, with their multiples by 2 and 5 where there are
// few. Both ends must be finite, low < high, and low > 0 with `log`.
std::vector<double> PlotTicks(double low, double high, int count, bool log);

// "0.5", "1500", "20k", "1.5M": short and without noise.
std::string PlotTickLabel(double value);

}  // namespace megatron

#endif  // TOOLS_PICTURES_PLOT_LOSS_SVG_H_
