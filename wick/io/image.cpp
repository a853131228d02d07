#include "wick/io/image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/descriptor.h"
#include "wick/io/exif.h"
#include "wick/io/file.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

ImageHeader checked_header(const ImageSource& source, const ImageLimits& limits) {
  const ImageHeader header = read_image_header(source);
  const int64_t width = header.width, height = header.height;
  check(width > 0 && height > 0, "{}: the image is damaged: its size is {}x{}", source.name, width, height);
  // The sides are checked first, so that their product cannot overflow.
  const bool fits = width <= limits.max_side && height <= limits.max_side && width * height <= limits.max_pixels;
  check(fits, "{}: the image is {}x{}, more than the {} pixels (and {} a side) that are accepted; make it smaller",
        source.name, width, height, limits.max_pixels, limits.max_side);
  return header;
}

bool is_transposed(int orientation) { return orientation >= 5; }

// EXIF orientation says where the stored first row and column belong. Read backwards it is: swap the axes for 5 to 8,
// then mirror the stored columns, the stored rows, or both.
Image oriented(Image image, int orientation) {
  if (orientation == 1) return image;
  const bool transposed = is_transposed(orientation);
  const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image turned{transposed ? image.height : image.width, transposed ? image.width : image.height, {}};
  turned.rgb.resize(image.rgb.size());
  uint8_t* out = turned.rgb.data();
  for (int y = 0; y < turned.height; ++y) {
    for (int x = 0; x < turned.width; ++x, out += 3) {
      const int column = transposed ? y : x, row = transposed ? x : y;
      const int from_x = mirror_x ? image.width - 1 - column : column;
      const int from_y = mirror_y ? image.height - 1 - row : row;
      std::memcpy(out, &image.rgb[3 * (size_t(from_y) * size_t(image.width) + size_t(from_x))], 3);
    }
  }
  return turned;
}

struct Codec {
  ImageFormat format;
  const char* name;
  std::vector<std::string> endings;
  Pixels (*decode)(std::string_view bytes, const ImageHeader& header, const std::string& source);
  std::string (*encode)(const Image& image, const ImageTexts& texts, const std::string& target);
  int64_t max_side;  // of what is written
  size_t max_exif;   // 0: the texts have chunks of their own
};

const std::vector<Codec>& codecs() {
  static const std::vector<Codec> all = {
      {ImageFormat::jpeg, "JPEG", {".jpg", ".jpeg"}, decode_jpeg, encode_jpeg, 65'500, 65'533 - 6},  // behind
                                                                                                     // "Exif\0\0"
      {ImageFormat::png, "PNG", {".png"}, decode_png, encode_png, ImageLimits{}.max_side, 0},
      {ImageFormat::webp, "WebP", {".webp"}, decode_webp, encode_webp, 16'383, kMaxExif},
      // Those without an ending are read alone.
      {ImageFormat::gif, "GIF", {}, decode_gif, nullptr, 0, 0},
      {ImageFormat::bmp, "BMP", {}, decode_bmp, nullptr, 0, 0},
      {ImageFormat::tiff, "TIFF", {}, decode_tiff, nullptr, 0, 0}};
  return all;
}

const Codec& codec_of(ImageFormat format) { return *std::ranges::find(codecs(), format, &Codec::format); }

const Codec* codec_of(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  for (const Codec& codec : codecs())
    if (std::ranges::find(codec.endings, ending) != codec.endings.end()) return &codec;
  return nullptr;
}

const Codec& written_codec(const std::filesystem::path& path) {
  const Codec* codec = codec_of(path);
  check(codec, "{}: expected a name that ends in {}", path.string(), kWrittenImages);
  return *codec;
}

// [n, 4] with straight alpha to [n, 3].
std::vector<uint8_t> composite_on_white(const std::vector<uint8_t>& rgba) {
  std::vector<uint8_t> rgb(rgba.size() / 4 * 3);
  for (size_t i = 0; i < rgba.size() / 4; ++i) {
    const unsigned alpha = rgba[4 * i + 3];
    for (size_t c = 0; c < 3; ++c)
      rgb[3 * i + c] = uint8_t((rgba[4 * i + c] * alpha + 255 * (255 - alpha) + 127) / 255);
  }
  return rgb;
}

// Alpha in place of each colour; opaque where there is none.
std::vector<uint8_t> alpha_of(const Pixels& pixels) {
  std::vector<uint8_t> alpha(pixels.values.size() / (pixels.has_alpha ? 4 : 3) * 3, 255);
  if (pixels.has_alpha)
    for (size_t i = 0; i < alpha.size(); ++i) alpha[i] = pixels.values[i / 3 * 4 + 3];
  return alpha;
}

// `colours` makes [height, width, 3] of the pixels.
template <class Colours>
Image decoded(std::string_view bytes, const std::string& source, const ImageLimits& limits, const Colours& colours) {
  const ImageHeader header = checked_header(ImageSource::of(bytes, source), limits);
  Pixels pixels = codec_of(header.format).decode(bytes, header, source);
  return oriented({int(header.width), int(header.height), colours(std::move(pixels))}, exif_orientation(header.exif));
}

}  // namespace

ImageInfo probe_image(const std::filesystem::path& path, const ImageLimits& limits) {
  const FileDescriptor file(path);
  const ImageHeader header = checked_header(ImageSource::of(file), limits);
  int width = int(header.width), height = int(header.height);
  if (is_transposed(exif_orientation(header.exif))) std::swap(width, height);
  return {width, height, codec_of(header.format).name};
}

Image decode_image(std::string_view bytes, const std::string& source, const ImageLimits& limits) {
  return decoded(bytes, source, limits, [](Pixels pixels) {
    return pixels.has_alpha ? composite_on_white(pixels.values) : std::move(pixels.values);
  });
}

Image read_image(const std::filesystem::path& path, const ImageLimits& limits) {
  return decode_image(read_file(path), path.string(), limits);
}

Image read_alpha(const std::filesystem::path& path, const ImageLimits& limits) {
  return decoded(read_file(path), path.string(), limits, alpha_of);
}

bool is_image_name(const std::filesystem::path& path) { return codec_of(path) != nullptr; }

void check_image_fits(const std::filesystem::path& path, int64_t width, int64_t height, const ImageTexts& texts) {
  const Codec& codec = written_codec(path);
  check(width <= codec.max_side && height <= codec.max_side,
        "{}: cannot write the image: it is {}x{}, and a {} has at most {} pixels a side; write {}", path.string(),
        width, height, codec.name, codec.max_side, codec.max_exif > 0 ? "a .png, or fewer pictures" : "fewer pictures");
  const size_t bytes = codec.max_exif > 0 ? exif_block_of(texts).size() : png_texts(texts).size();
  const size_t most = codec.max_exif > 0 ? codec.max_exif : kMaxText;
  check(bytes <= most, "{}: cannot write the image: its settings take {} bytes, and a {} holds at most {}{}",
        path.string(), bytes, codec.name, most, codec.max_exif > 0 ? "; write a .png" : "");
}

void write_image(const std::filesystem::path& path, const Image& image, const ImageTexts& texts) {
  const size_t expected = size_t(image.width) * size_t(image.height) * 3;
  check(image.width > 0 && image.height > 0 && image.rgb.size() == expected,
        "{}: cannot write the image: {}x{} with {} bytes of pixels", path.string(), image.width, image.height,
        image.rgb.size());
  check_image_fits(path, image.width, image.height, texts);
  write_file_atomically(path, written_codec(path).encode(image, texts, path.string()));
}

Image crop_image(const Image& image, int x, int y, int width, int height) {
  const bool inside =
      x >= 0 && y >= 0 && width > 0 && height > 0 && width <= image.width - x && height <= image.height - y;
  check(inside, "crop: {}x{} at ({}, {}) does not lie inside {}x{}", width, height, x, y, image.width, image.height);
  Image cropped{width, height, {}};
  cropped.rgb.reserve(size_t(width) * size_t(height) * 3);
  for (int row = y; row < y + height; ++row) {
    const auto first = image.rgb.begin() + 3 * (ptrdiff_t{row} * image.width + x);
    cropped.rgb.insert(cropped.rgb.end(), first, first + 3 * ptrdiff_t{width});
  }
  return cropped;
}

Image middle_of_image(const Image& image, int width, int height) {
  const double scale = std::max(double(width) / image.width, double(height) / image.height);
  const int wide = std::max(width, int(std::lround(image.width * scale))),
            high = std::max(height, int(std::lround(image.height * scale)));
  return crop_image(resize_image(image, wide, high), (wide - width) / 2, (high - height) / 2, width, height);
}

Image mirrored(Image image) {
  for (int y = 0; y < image.height; ++y)
    for (int left = 0, right = image.width - 1; left < right; ++left, --right)
      for (int c = 0; c < 3; ++c) {
        const auto at = [&](int x) -> uint8_t& {
          return image.rgb[3 * (size_t(y) * size_t(image.width) + size_t(x)) + size_t(c)];
        };
        std::swap(at(left), at(right));
      }
  return image;
}

Tensor image_to_tensor(const Image& image) {
  Tensor tensor = Tensor::empty({image.height, image.width, 3});
  std::ranges::transform(image.rgb, tensor.data<float>(), [](uint8_t value) { return float(value) / 127.5f - 1.0f; });
  return tensor;
}

Image tensor_to_image(const Tensor& tensor) {
  check(tensor.rank() == 3 && tensor.dim(2) == 3, "image: expected a tensor [height, width, 3], found {}",
        tensor.shape());
  return values_to_image(tensor.to_vector(), tensor.dim(0), tensor.dim(1));
}

Image values_to_image(std::span<const float> values, int64_t height, int64_t width) {
  const ImageLimits limits;
  check(height <= limits.max_side && width <= limits.max_side, "image: {}x{} is too large for an image", width, height);
  Image image{int(width), int(height), std::vector<uint8_t>(values.size())};
  float sum = 0;  // of zeros, unless a value is not finite
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i] * 0.0f;
    const float scaled = (values[i] + 1.0f) * 127.5f, clamped = scaled > 0 ? std::min(scaled, 255.0f) : 0;
    image.rgb[i] = uint8_t(int(double(clamped) + 0.5));  // in double, where no sum is rounded
  }
  check(sum == 0, "image: a value is not finite; compute it in bf16 or f32");
  return image;
}

}  // namespace wick
