// Draws loss curves as one self-contained SVG picture: no scripts, no fonts, no other files.

#ifndef TOOLS_PICTURES_PLOT_LOSS_SVG_H_
#define TOOLS_PICTURES_PLOT_LOSS_SVG_H_

#include <string>
#include <utility>
#include <vector>

namespace megatron {

struct LossCurve {
  std::string name;  // the run's name, for the legend
  // (iteration, loss), ascending; points that are not finite are passed over.
  std::vector<std::pair<double, double>> train;
  std::vector<std::pair<double, double>> validation;
};

// Returns the mean of one run or more at the iterations that all of them have.
LossCurve MeanOf(const std::vector<LossCurve>& runs);

struct LossPlotOptions {
  std::string title = "Loss";
  bool log_x = false;
  bool log_y = false;
  int width = 900;
  int height = 520;
};

// Draws the training loss in a pale color with its smoothed curve over it, and the validation loss
// as dots joined by a line, with a color per run.
std::string LossPlotSvg(const std::vector<LossCurve>& curves, const LossPlotOptions& options);

// Returns an HTML page that holds the picture, for viewing in a browser.
std::string LossPlotHtml(const std::vector<LossCurve>& curves, const LossPlotOptions& options);

}  // namespace megatron

#endif  // TOOLS_PICTURES_PLOT_LOSS_SVG_H_
