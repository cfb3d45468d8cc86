#include "reward/symbolic.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/budget.h"
#include "symbolic_pairs.h"

namespace neap::reward {
namespace {

TEST(Symbolic, InfinityHasASignAndNoSums) {
  expect_equal({{"\\infty", "+\\infty"}, {"-\\infty", "- \\infty"}});
  expect_different({{"\\infty+1", "\\infty"}, {"2\\infty", "\\infty"}, {"0,245", "245"}});
}

// However large or small the number and the difference are.
TEST(Symbolic, NoNumberIsTheNextOne) {
  for (const std::string number :
       {"7", "16386.16", "\\frac{7}{3}", "171500000000000", "1.715 \\times 10^{14}", "1.715e14",
        "4.5e33", "4.5 \\times 10^{33}", "2^{100}", "20!", "\\binom{50}{25}",
        "\\frac{100!}{50!\\,50!}", "0.1\\overline{6}", "12,345.67"}) {
    EXPECT_TRUE(symbolically_equal(number + "+0", number)) << number;
    EXPECT_TRUE(symbolically_equal(number + " \\times 10^0", number)) << number;
    for (const std::string change :
         {"+1", "-1", " + 0.5", "-0.5", "+10^{-9}", "-10^{-30}", "+\\frac{1}{7}"}) {
      EXPECT_FALSE(symbolically_equal(number + change, number)) << number + change;
      EXPECT_FALSE(symbolically_equal(number, number + change)) << number + change;
    }
  }
  expect_equal({{"1.50", "\\frac32"}, {"1.5e-3", "0.0015"}});
  expect_equal({{"0.333333333333333", "\\frac13"}});  // as a calculator shows it
}

// All texts of up to four of these parts.
TEST(Symbolic, NoAnswerIsTooBroken) {
  const std::vector<std::string> parts = {"x", "_", "=", "0", "{", "}", "'", "^", ",", "\\pm", "("};
  std::vector<std::string> texts = {""};
  std::size_t first = 0;
  for (int length = 1; length <= 4; ++length) {
    const std::size_t end = texts.size();
    for (; first < end; ++first)
      for (const std::string& part : parts) texts.push_back(texts[first] + part);
  }
  const SymbolicTruth truth("x_1 = -1, x_2 = 0");
  for (const std::string& text : texts) {
    EXPECT_NO_THROW(EXPECT_FALSE(truth.equals(text)) << text) << text;
    EXPECT_NO_THROW((void)truth.equals("x_1 = -1, " + text)) << text;
  }
}

TEST(Symbolic, NumbersAndFractions) {
  expect_equal({{"1/2", "\\frac{1}{2}"},
                {"0.5", "\\frac12"},
                {"\\dfrac{3}{4}", "\\tfrac34"},
                {"1,000", "1000"},
                {"11,\\! 111,\\! 111", "11111111"},
                {"\\textcolor{blue}{5}", "5"},
                {"2^6 3^5", "2^6\\cdot3^5"},
                {"1{,}000", "1000"},
                {"1\\,000", "1000"},
                {"$5.50", "5.5"},
                {"-\\frac{1}{3}", "\\frac{-1}{3}"},
                {"0.50", ".5"},
                {"2.0", "2"},
                {"\\$18", "18"},
                {"10^3", "1000"},
                {"2^{64}", "18446744073709551616"},
                {"\\sqrt{10^{40}}", "10^{20}"},
                {"\\sqrt{10^{20}}", "10000000000"},
                {"3\\times10^{8}", "300000000"},
                {"1\\frac{1}{2}", "1.5"},
                {"7 3/4", "31/4"},
                {"-1\\frac12", "-\\frac32"},
                {"\u22125", "-5"},
                {"5.", "5"},
                {"\\(42\\)", "42"}});
  expect_different({{"1/3", "0.333"},
                    {"12345678901234567890", "12345678901234567891"},
                    {"e^{\\pi\\sqrt{163}}", "262537412640768744"},
                    {"2^{64}", "18446744073709551615"},
                    {"\\frac{1}{23}", "\\frac{12}{3}"},
                    {"1", "2"},
                    {"5", "-5"},
                    {"", "5"},
                    {"1.0000001", "1"},
                    {"6.63\\times10^{-34}", "1.05\\times10^{-34}"},
                    {"2\\frac{1}{2}", "1"}});
}

TEST(Symbolic, FractionsInOtherWays) {
  expect_equal({{"\u00bd", "1/2"},
                {"1\u00bd", "\\frac32"},
                {"-1\u00be", "-\\frac74"},
                {"\u2153", "\\frac13"},
                {"1\u20442", "0.5"},
                {"{1 \\over 2}", "\\frac12"},
                {"1 \\over 2", "\\frac12"},
                {"1:2", "\\frac12"},
                {"2:4", "1 : 2"},
                {"3:4:5", "3 : 4 : 5"},
                {"10:30", "\\text{10:30}"},
                {"0.\\overline{3}", "1/3"},
                {"0.\\overline3", "\\frac39"},
                {"1.1\\overline{6}", "\\frac76"},
                {"0.\\overline{0588235294117647}", "\\frac1{17}"},
                {"0.\\bar{9}", "1"},
                {"1 234 567", "1234567"}});
  expect_different({{"\u00bd", "\\frac13"},
                    {"1\u00bd", "\\frac12"},
                    {"1:2", "2:1"},
                    {"1:2", "12"},
                    {"3:4:5", "4:3:5"},
                    {"10:30", "5:15"},
                    {"10:30", "1:3"},
                    {"0.\\overline{3}", "0.3"},
                    {"0.1\\overline{2}", "0.\\overline{12}"},
                    {"4 2", "42"},
                    {"12 34", "1234"}});
}

TEST(Symbolic, PercentagesAndUnits) {
  expect_equal({{"10\\%", "10"},
                {"10%", "0.1"},
                {"50\\%", "\\frac12"},
                {"5\\text{ cm}", "5"},
                {"5 cm", "5"},
                {"12 \\text{ cm}^2", "12"},
                {"12 square units", "12"},
                {"90^{\\circ}", "90"},
                {"45\u00b0", "45"},
                {"\\$3.20", "3.2"},
                {"\u00a350", "50"},
                {"50 percent", "\\frac12"},
                {"3/4 hours", "\\frac34"},
                {"12\\pi\\text{ cm}^2", "12\\pi"},
                {"50\\text{ m/s}", "180 km/h"},
                {"1.5\\text{ m}", "150\\text{ cm}"},
                {"2\\text{ m}^2", "20000\\text{ cm}^2"},
                {"5\\text{ minutes}", "300\\text{ s}"},
                {"5\\text{ million}", "5,000,000"},
                {"7\\mathrm{kg}", "7"},
                {"7 g", "7\\mathrm{~g}"},
                {"12\\text{ percent}", "0.12"},
                {"33^{\\text{o}}", "33"},
                {"5cm", "5"},
                {"50^{\\text{th}}", "50"},
                {"50th", "50"}});
  expect_different({{"5\\text{ km}", "5\\text{ m}"},
                    {"50\\text{ m/s}", "50\\text{ km/h}"},
                    {"5\\text{ kg}", "5\\text{ m}"},
                    {"7\\text{ cents}", "\\$7"},
                    {"3+4\\mathrm{i}", "7"},
                    {"3+4\\text{i}", "7"},
                    {"2\\mathbf i+3\\mathbf j", "5"},
                    {"2\\mathbf{i}+3\\mathbf{j}", "5"},
                    {"2\\mathrm e^3", "2\\mathrm e^5"},
                    {"2\\mathrm{e}^3", "2"},
                    {"10\\%", "10.1"},
                    {"10%", "1"},
                    {"5x", "5"},
                    {"5 x", "5"},
                    {"10%", "20%"}});
}

TEST(Symbolic, WordsThatAreNoUnits) {
  // They change the number, or are mathematics.
  for (const char* words : {" pi",
                            " Million",
                            "\\text{ Million}",
                            "\\text{ is wrong}",
                            " is wrong",
                            " or 6",
                            "\\text{ or }6",
                            " hundred",
                            " cannot be",
                            "\\text{ negative}",
                            " maybe",
                            " tenths",
                            "\\text{ twenty}",
                            "\\text{ pairs}",
                            "\\text{ lakh}",
                            " sin x",
                            " \\ln 3",
                            " xy",
                            " million",
                            "\\text{ million}",
                            " squared",
                            " plus 3",
                            "\\text{ or more}",
                            " hours and 30 minutes",
                            "abc"})
    EXPECT_FALSE(symbolically_equal(std::string("5").append(words), "5")) << words;
  expect_different({{"5\\text{ p.m.}", "5\\text{ a.m.}"}, {"x=\\text{A}", "x=\\text{B}"}});
}

TEST(Symbolic, FunctionsOfAnglesInDegrees) {
  expect_equal({{"\\sin 30^\\circ", "\\frac12"}, {"\\tan(30\u00b0)", "\\frac{1}{\\sqrt3}"}});
  expect_different({{"\\sin 30^\\circ", "\\sin 30"}, {"30^\\circ", "\\sin 30^\\circ"}});
}

TEST(Symbolic, ExpressionsByTheirValues) {
  expect_equal({{"2\\sqrt{3}", "\\sqrt{12}"},
                {"\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"},
                {"x^2+2x+1", "(x+1)^2"},
                {"(x-1)(x+1)", "x^2-1"},
                {"2\\pi r", "2 r \\pi"},
                {"\\frac{x+1}{2}", "\\frac12 x+\\frac12"},
                {"\\sin^2 x + \\cos^2 x", "1"},
                {"\\sin 2x", "2\\sin x\\cos x"},
                {"\\ln e", "1"},
                {"x\\operatorname{ln}x", "x\\ln x"},
                {"\\log 100", "2"},
                {"\\frac{\\hbar}{2}", "\\hbar/2"},
                {"v_0+v_{1}", "v_1 + v_{0}"},
                {"\\sqrt 13", "\\sqrt{13}"},
                {"\\phi", "\\varphi"},
                {"\\log_2 8", "3"},
                {"5!", "120"},
                {"|{-3}|", "3"},
                {"e^{i\\pi}", "-1"},
                {"\\sqrt[3]{-8}", "-2"},
                {"3\\cdot 4", "12"},
                {"\\left(\\frac{1}{2}\\right)^2", "0.25"},
                {"sqrt(2)/2", "\\frac{\\sqrt2}{2}"},
                {"2^{10}", "1024"},
                {"\\alpha+\\beta", "\\beta + \\alpha"},
                {"3+4i", "4i+3"},
                {"\\sqrt{-4}", "2i"},
                {"2\u03b1", "\\alpha+\\alpha"},
                {"x\u2074", "x^4"},
                {"10\u00b9\u00b2", "10^{12}"},
                {"\\sec x", "\\frac{1}{\\cos x}"},
                {"\\csc x\\cot x", "\\frac{\\cos x}{\\sin^2 x}"},
                {"\\sin^{-1} x", "\\arcsin x"},
                {"\\binom{10}{3}", "120"},
                {"\\dbinom52", "{5 \\choose 3}"},
                {"\\binom{n}{2}", "\\frac{n(n-1)}{2}"},
                {"\\binom{2n}{n}", "\\frac{(2n)!}{(n!)^2}"},
                {"\\binom{10}{3}", "\\frac{10!}{3!7!}"},
                {"\\mathbf{\\frac{1}{3}}", "\\boxed{\\frac13}"}});
  expect_different({{"x+1", "x-1"},
                    {"\\sqrt{-1}", "-i"},
                    {"\\sin^{-1} x", "\\frac{1}{\\sin x}"},
                    {"\\binom{10}{3}", "\\frac{10}{3}"},
                    {"\\binom{3}{10}", "120"},
                    {"\\Pi", "\\pi"},
                    {"\\sqrt{x^2}", "x"},
                    {"\\sqrt{2}", "1.414"},
                    {"\\pi", "3.1416"},
                    {"x^2", "2x"},
                    {"x", "y"},
                    {"x", "X"},
                    {"\\frac Mm", "\\frac mM"},
                    {"1/x", "x"},
                    {"10^{10}+1", "10^{10}"},
                    {"\\frac{0}{0}", "1"},
                    {"\\infty", "-\\infty"},
                    {"0^{-1}", "\\infty"}});
  expect_equal({{"\\infty", "inf"}, {"+\\infty", "\\infty"}});
}

// Numbers that a double cannot hold are compared by what they are.
TEST(Symbolic, LargeAndSmallNumbersAreExact) {
  expect_equal({{"2^{2023}", "2\\cdot2^{2022}"},
                {"10^{400}", "100^{200}"},
                {"\\binom{2000}{1000}", "\\frac{2000!}{(1000!)^2}"},
                {"\\frac{2023!}{2022!}", "2023"},
                {"x^{2023}", "x\\cdot x^{2022}"}});
  expect_different({{"2^{2023}", "2^{2022}"},
                    {"2^{2023}", "\\infty"},
                    {"10^{400}+1", "10^{400}"},
                    {"2023!", "2022!"},
                    {"9^{9^9}", "9^{9^8}"},
                    {"x^{2023}", "x^{2022}"},
                    {"e^{-2000}", "e^{-3000}"},
                    {"10^{-400}", "0"},
                    {"2^{2023}", "2^{10}"},
                    {"x^{2023}", "x^{10}"},
                    {"4478370266891735399", "0"},  // the prime that residues are counted by
                    {"4478370266891735399+5", "5"}});
}

// An answer that is written to have a rounding error as large as any truth is no way to be right.
TEST(Symbolic, RoundingErrorsCoverNothing) {
  expect_different({{"10^{30}-10^{30}", "7"},
                    {"(10^{20}+5)-10^{20}", "5000"},
                    {"\\tan(\\pi/2)-\\tan(\\pi/2)", "3"},
                    {"\\sin(10^{300})", "0.5"},
                    {"9^{9^{9^9}}", "1"},
                    {"9^{9^{9^9}}", "\\infty-1"}});
}

TEST(Symbolic, HostileTextEndsQuickly) {
  const double began = processor_seconds();
  const std::string deep = std::string(2000, '(').append("1").append(2000, ')');
  const std::string powers = [] {
    std::string out = "2";
    for (int i = 0; i < 1000; ++i) out += "^2";
    return out;
  }();
  std::string fractions;
  for (int i = 0; i < 500; ++i) fractions += "\\frac{";
  std::string commas(4000, ',');
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested += "(1,";
  std::string plus_minus;
  for (int i = 0; i < 1000; ++i) plus_minus += "\\pm";
  const std::string minus(4000, '-');
  std::string factorials, relations, texts, periods, matrices;
  for (int i = 0; i < 500; ++i) {
    factorials += "5000!+";
    relations += "x<";
    texts += "\\text{\\mathbf{";
    periods += "0.\\overline{3}+";
    matrices += "\\begin{matrix}";
  }
  factorials += "x";
  relations += "x";
  for (const std::string& text : {deep,
                                  powers,
                                  fractions,
                                  commas,
                                  nested,
                                  plus_minus,
                                  minus,
                                  std::string(100'000, '1'),
                                  factorials,
                                  relations,
                                  texts,
                                  periods,
                                  matrices,
                                  std::string("\\binom{10^9}{5*10^8}"),
                                  std::string("9^9^9"),
                                  std::string("(10^9)!"),
                                  "0.\\overline{" + std::string(4000, '3') + "}",
                                  std::string("\\text{"),
                                  std::string("\\begin{matrix}"),
                                  std::string("=\xff\xfe=")}) {
    EXPECT_FALSE(symbolically_equal(text, "7"));
    EXPECT_FALSE(symbolically_equal("7", text));
    EXPECT_TRUE(symbolically_equal(text, text));
  }
  EXPECT_LT(processor_seconds() - began, 10);
}

}  // namespace
}  // namespace neap::reward
