#include "report/stroke_font.h"

#include <array>

namespace neap::report {
namespace {

// A point is a digit (x) and a letter (y: a = top of capitals, e = top of small letters, m =
// baseline, q = bottom). Lines connect the points of a stroke. Commas separate strokes.
struct Glyph {
  char letter;
  int width;
  std::string_view strokes;
};
constexpr int kBaseline = 'm' - 'a', kGlyphGap = 3;

constexpr Glyph kGlyphs[] = {
    {' ', 3, ""},
    {'!', 0, "0a0i,0l0m"},
    {'"', 2, "0a0d,2a2d"},
    {'#', 8, "3a1m,7a5m,0e8e,0i8i"},
    {'%', 8, "0m8a,1a2a3b3c2d1d0c0b1a,6j7j8k8l7m6m5l5k6j"},
    {'&', 8, "8m1d1c2a4a5b5c0i0k2m4m7i"},
    {'\'', 0, "0a0d"},
    {'(', 2, "2a0d0j2m"},
    {')', 2, "0a2d2j0m"},
    {'*', 6, "3c3i,0d6h,6d0h"},
    {'+', 6, "0h6h,3e3k"},
    {',', 1, "1l1m0o"},
    {'-', 5, "0h5h"},
    {'.', 0, "0l0m"},
    {'/', 5, "0n5a"},
    {'0', 7, "2a5a6b7d7j6l5m2m1l0j0d1b2a"},
    {'1', 4, "0d3a3m"},
    {'2', 7, "0d0c1b2a5a6b7c7d6f0m7m"},
    {'3', 7, "0b2a5a7c7d5f3f,5f7h7k5m2m0l"},
    {'4', 7, "5m5a0i7i"},
    {'5', 7, "6a1a0f2e4e6f7h7j6l4m2m0l"},
    {'6', 7, "6a4a2b1d0g0j1l3m4m6l7j7h6f4e3e1f0h"},
    {'7', 7, "0a7a2m"},
    {'8', 7, "2f1e0d0c1b2a5a6b7c7d6e5f2f1g0i0k1l2m5m6l7k7i6g5f"},
    {'9', 7, "1m3m5l6j7g7d6b4a3a1b0d0f1h3i4i6h7f"},
    {':', 0, "0f0g,0l0m"},
    {';', 1, "1f1g,1l1m0o"},
    {'<', 6, "6d0h6l"},
    {'=', 6, "0f6f,0j6j"},
    {'>', 6, "0d6h0l"},
    {'?', 6, "0c1b2a4a6c6e3h3j,3l3m"},
    {'A', 8, "0m4a8m,1i7i"},
    {'B', 7, "0m0a4a6b6d5f4f0f,4f6g7i7k6l4m0m"},
    {'C', 8, "8d7b5a3a1b0d0j1l3m5m7l8j"},
    {'D', 8, "0m0a4a6b8d8j6l4m0m"},
    {'E', 7, "7a0a0m7m,0f5f"},
    {'F', 7, "7a0a0m,0f5f"},
    {'G', 8, "8d7b5a3a1b0d0j1l3m5m7l8j8g5g"},
    {'H', 8, "0a0m,8a8m,0f8f"},
    {'I', 0, "0a0m"},
    {'J', 5, "5a5j4l3m2m1l0j"},
    {'K', 7, "0a0m,7a0h,2f7m"},
    {'L', 6, "0a0m6m"},
    {'M', 8, "0m0a4j8a8m"},
    {'N', 8, "0m0a8m8a"},
    {'O', 8, "3a5a7b8d8j7l5m3m1l0j0d1b3a"},
    {'P', 7, "0m0a4a6b7d6f4g0g"},
    {'Q', 8, "3a5a7b8d8j7l5m3m1l0j0d1b3a,5j8n"},
    {'R', 7, "0m0a4a6b7d6f4g0g,4g7m"},
    {'S', 7, "7c6b4a3a1b0c0d1e6h7i7k6l4m3m1l0k"},
    {'T', 8, "0a8a,4a4m"},
    {'U', 8, "0a0j1l3m5m7l8j8a"},
    {'V', 8, "0a4m8a"},
    {'W', 9, "0a2m5c7m9a"},
    {'X', 7, "0a7m,7a0m"},
    {'Y', 8, "0a4g8a,4g4m"},
    {'Z', 7, "0a7a0m7m"},
    {'[', 2, "2a0a0n2n"},
    {']', 2, "0a2a2n0n"},
    {'_', 7, "0n7n"},
    {'a', 6, "6e6m,6g4e2e0g0k2m4m6k"},
    {'b', 6, "0a0m,0g2e4e6g6k4m2m0k"},
    {'c', 6, "6g4e2e0g0k2m4m6k"},
    {'d', 6, "6a6m,6g4e2e0g0k2m4m6k"},
    {'e', 6, "0i6i6g4e2e0g0k2m4m6k"},
    {'f', 4, "4a3a2b1d1m,0e4e"},
    {'g', 6, "6e6o4q2q0p,6g4e2e0g0k2m4m6k"},
    {'h', 6, "0a0m,0g2e4e6g6m"},
    {'i', 0, "0e0m,0a0b"},
    {'j', 2, "2e2o1q0q,2a2b"},
    {'k', 5, "0a0m,5e0j,2h5m"},
    {'l', 2, "0a0k1m2m"},
    {'m', 8, "0e0m,0g2e3e4g4m,4g6e7e8g8m"},
    {'n', 6, "0e0m,0g2e4e6g6m"},
    {'o', 6, "2e4e6g6k4m2m0k0g2e"},
    {'p', 6, "0e0q,0g2e4e6g6k4m2m0k"},
    {'q', 6, "6e6q,6g4e2e0g0k2m4m6k"},
    {'r', 4, "0e0m,0h1f2e4e"},
    {'s', 5, "5f4e1e0f0g1h4i5j5l4m1m0l"},
    {'t', 4, "1a1k2m4m,0e4e"},
    {'u', 6, "0e0k2m4m6k,6e6m"},
    {'v', 6, "0e3m6e"},
    {'w', 8, "0e2m4g6m8e"},
    {'x', 5, "0e5m,5e0m"},
    {'y', 6, "0e3m,6e3m2p0q"},
    {'z', 5, "0e5e0m5m"},
    {'|', 0, "0a0n"},
    {'~', 7, "0h1g3g4i6i7h"},
};
constexpr Glyph kBox = {'\0', 6, "0a6a6m0m0a"};

const Glyph& glyph(char letter) {
  static const std::array<const Glyph*, 128> kByLetter = [] {
    std::array<const Glyph*, 128> by_letter{};
    for (const Glyph& g : kGlyphs) by_letter[static_cast<unsigned char>(g.letter)] = &g;
    return by_letter;
  }();
  const auto at = static_cast<unsigned char>(letter);
  return at < kByLetter.size() && kByLetter[at] != nullptr ? *kByLetter[at] : kBox;
}

/// Whether the byte begins a character. Continuation bytes of UTF-8 belong to the previous one.
bool starts_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
}

/// Capitals have 0.7 of the font size, as in most fonts.
double unit(double size) {
  return size * 0.7 / kBaseline;
}

}  // namespace

void draw_stroke_text(std::string_view text, double size,
                      const std::function<void(Point, Point)>& stroke) {
  const double u = unit(size);
  double left = 0;
  for (const char c : text) {
    if (!starts_character(c)) continue;
    const Glyph& g = glyph(c);
    const std::string_view s = g.strokes;
    const auto point = [&](std::size_t i) {
      return Point{left + (s[i] - '0') * u, (s[i + 1] - 'a' - kBaseline) * u};
    };
    for (std::size_t i = 0; i + 3 < s.size();) {
      if (s[i + 2] == ',') {
        i += 3;
        continue;
      }
      stroke(point(i), point(i + 2));
      i += 2;
    }
    left += (g.width + kGlyphGap) * u;
  }
}

double stroke_text_width(std::string_view text, double size) {
  int units = 0;
  for (const char c : text) {
    if (starts_character(c)) units += glyph(c).width + kGlyphGap;
  }
  return units > 0 ? (units - kGlyphGap) * unit(size) : 0;
}

}  // namespace neap::report
