#include "wick/io/quote.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

TEST(Quote, WhatDrivesATerminalIsShown) {
  EXPECT_EQ(printable("a\33[31mb\7\n\r\t\177"), "a\\x1b[31mb\\x07\\x0a\\x0d\\x09\\x7f");
  EXPECT_EQ(printable("\302\205 \302\233"), "\\u{0085} \\u{009b}");
}

TEST(Quote, WhatHidesOrTurnsIsShown) {
  EXPECT_EQ(printable("a\342\200\213b"), "a\\u{200b}b");                     // zero width space
  EXPECT_EQ(printable("\342\200\256gnp.exe"), "\\u{202e}gnp.exe");           // right-to-left override
  EXPECT_EQ(printable("\342\201\246x\342\201\251"), "\\u{2066}x\\u{2069}");  // isolates
  EXPECT_EQ(printable("\357\273\277"), "\\u{feff}");
  EXPECT_EQ(printable("\342\200\250\342\200\251"), "\\u{2028}\\u{2029}");  // ends of lines and paragraphs
  EXPECT_EQ(printable("\363\240\201\241"), "\\u{e0061}");                  // a tag
}

TEST(Quote, WhatIsNoUtf8IsShown) {
  EXPECT_EQ(printable("\377\300\257"), "\\xff\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\355\240\200"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\364\220\200\200"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(printable("\360\237\246"), "\\xf0\\x9f\\xa6");           // cut short
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Quote, ScriptsStayAsTheyAre) {
  for (const char* text : {"Füchse", "狐狸", "لبوة", "மழை", "Ελλάδα", "🦊", "e\u0301", "\\ \" '", ""}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable_text(text), text);
    EXPECT_EQ(printable(printable(std::string("\33") + text)), printable(std::string("\33") + text));
  }
}

TEST(Quote, RunningTextKeepsItsLinesAndJoiners) {
  const std::string family = "👩\u200d👧";
  EXPECT_EQ(printable_text("a\n\tb" + family), "a\n\tb" + family);
  EXPECT_EQ(printable_text("\33]0;x\7\r\302\233"), "\\x1b]0;x\\x07\\x0d\\u{009b}");
}

TEST(Quote, IsCutBetweenCharacters) {
  EXPECT_EQ(quote("a\nb"), "\"a\\x0ab\"");
  EXPECT_EQ(quote(std::string(200, 'x')), '"' + std::string(200, 'x') + '"');
  EXPECT_EQ(quote(std::string(199, 'x') + "äö"), '"' + std::string(199, 'x') + "...\"");
}

}  // namespace
}  // namespace wick
