// The looks of pictures: colors that the color-blind tell apart, as classes of a style sheet. A
// page sets them once, for light and for dark; a picture that stands alone brings them along.
//
//   c0 ... c5    the color of a line
//   f0 ... f5    the same color, filled
//   d0 ... d5    the dashes of a line, which tell curves apart without color
#ifndef MEGATRON_TOOLS_PICTURES_PICTURE_STYLE_H_
#define MEGATRON_TOOLS_PICTURES_PICTURE_STYLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

inline constexpr int kPictureColors = 6;

// Returns the class of that kind ('c', 'f' or 'd') for the curve of this number: "c2".
std::string PictureClass(char kind, int number);

// Returns the style sheet of a page whose pictures follow its reader's choice of light or dark.
std::string PageStyle();

// The words of a picture for who does not see it, and its size.
struct PictureFrame {
  std::string title;
  std::string description;  // one or two sentences
  int width = 480;
  int height = 280;
};

// Returns the beginning of a picture that stands alone, with its own style and a white ground.
std::string BeginPictureAlone(const PictureFrame& frame);

// Returns the beginning of a picture in a page that has PageStyle(). `id` is unique there: letters,
// digits and '-'.
std::string BeginPictureInPage(const PictureFrame& frame, absl::string_view id);

inline constexpr char kEndPicture[] = "</svg>\n";

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_PICTURE_STYLE_H_
