#include "reward/symbolic.h"

#include <gtest/gtest.h>

#include <string>

#include "symbolic_pairs.h"

namespace neap::reward {
namespace {

TEST(Symbolic, AChoiceIsNoPartOfAnExpression) {
  for (const std::string choice : {"(C)", "\\text{(C)}", "C.", "\\mathrm{(C)}"}) {
    for (const char* more : {"", " 12", "\\ -5", " x+1", " because it is smaller"})
      EXPECT_TRUE(symbolically_equal(choice + more, "C")) << choice << more;
    for (const char* more : {" + 1", "-0.5", "_7", "^2", "/2", " = 43", ", 17", "!", "\\pm 1",
                             " \\text{ or } 17", "\\cdot 2", " \\le 3"})
      EXPECT_FALSE(symbolically_equal(choice + more, "C")) << choice << more;
  }
}

TEST(Symbolic, ValuesOfAnotherVariable) {
  expect_equal({{"x \\ne 2", "x\\neq2"}, {"x\\in\\{1,2\\}", "\\{1,2\\}"}});
  expect_different({{"x \\ne 2", "w \\ne 2"}, {"x\\in\\{1,2\\}", "w\\in\\{1,2\\}"}});
}

TEST(Symbolic, TuplesIntervalsAndSets) {
  expect_equal(
      {{"(1, 2)", "(1,2)"},
       {"\\left(\\frac12, 3\\right)", "(0.5,3)"},
       {"[0,1)", "[0, 1)"},
       {"(-\\infty, 2]", "(-\\infty,2]"},
       {"\\{1,2,3\\}", "\\{3, 1, 2\\}"},
       {"1, 2", "2,1"},
       {"1 and 2", "1,2"},
       {"1 \\text{ or } 2", "2, 1"},
       {"\\{1,2\\}", "1,2"},
       {"(-\\infty,0)\\cup(1,2)", "(1,2) \\cup (-\\infty,0)"},
       {"3 \\pm 2", "5, 1"},
       {"\\pm1, \\pm3", "1,-1,3,-3"},
       {"1; 2", "1,2"},
       {"27,54,108,135", "27, 54, 108, 135"},
       {"\\langle 3,-1,2\\rangle", "(3,-1,2)"},
       {"[[1,0],[0,1]]", "\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}"},
       {"\\begin{pmatrix}-3\\\\[4pt] -2\\end{pmatrix}", "\\begin{pmatrix}-3\\\\-2\\end{pmatrix}"},
       {"\u00b15", "5,-5"},
       {"1\\mp\\sqrt2", "1\\pm\\sqrt2"},
       {"{1,2}", "\\{2,1\\}"},
       {"\\{5\\}", "5"},
       {"\\emptyset", "\\varnothing"},
       {"\u2205", "\\{ \\}"},
       {"\\mathbb{R}", "(-\\infty, \\infty)"},
       {"1, 3, \\text{ and } 5", "1,3,5"},
       {"\\left[\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right]",
        "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"},
       {"(1,000, 2)", "(1, 000, 2)"},
       {"\\begin{pmatrix} 1 & \\frac12 \\\\ 3 & 4 \\end{pmatrix}",
        "\\begin{pmatrix}1&0.5\\\\3&4\\\\\\end{pmatrix}"}});
  expect_different(
      {{"(1,2)", "(2,1)"},
       {"(0,1)", "[0,1]"},
       {"[0,1)", "(0,1]"},
       {"1,2", "1,2,3"},
       {"1,1", "1,2"},
       {"(1,2)", "1,2"},
       {"(1,2)\\cup(3,4)", "(1,2)"},
       {"\\emptyset", "0"},
       {"\\emptyset", "\\{\\emptyset\\}"},
       {"\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"},
       {"\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"}});
}

TEST(Symbolic, Inequalities) {
  expect_equal({{"x \\le 3", "x\\leq 3"},
                {"x \u2264 3", "3 >= x"},
                {"x\\ge3", "x\\geqslant 3"},
                {"x \\ne 0", "x\\neq0"},
                {"0 \u2260 x", "x != 0"},
                {"3>x", "x<3"},
                {"x\\lt3", "(-\\infty,3)"},
                {"1<x\\le2", "(1,2]"},
                {"2\\ge x>1", "x\\in(1,2]"},
                {"\\{x : x \\ge 1\\}", "[1,\\infty)"},
                {"x<-2 \\text{ or } x>2", "(2,\\infty)\\cup(-\\infty,-2)"},
                {"-x<-2", "x>2"},
                {"x>-2 \\text{ and } x<2", "(-2,2)"},
                {"x\\ne1", "(-\\infty,1)\\cup(1,\\infty)"},
                {"\\mathbb R\\setminus\\{1\\}", "x\\ne1"},
                {"\\mathbb{R}\\setminus\\{2,1\\}", "(-\\infty,1)\\cup(1,2)\\cup(2,\\infty)"},
                {"(0,1) U (2,3)", "(0,1)\\cup(2,3)"},
                {"y \\le 2x+1", "1+2x \\ge y"}});
  expect_different({{"x\\le3", "x<3"},
                    {"x<3", "x>3"},
                    {"x<3", "y<3"},
                    {"x<3", "3"},
                    {"-x>-2", "x>2"},
                    {"\\mathbb R\\setminus\\{1\\}", "\\mathbb R\\setminus\\{2\\}"},
                    {"x\\ne0", "x=0"},
                    {"1<x<2", "[1,2]"},
                    {"x<1 or x>2", "x<1 and x>2"},
                    {"y \\le 2x+1", "y\\ge 2x+1"}});
}

TEST(Symbolic, EquationsAndNames) {
  expect_equal({{"x=5", "5"},
                {"5=x", "5"},
                {"x=3,-2", "-2,3"},
                {"(x,y)=(3,4)", "(3,4)"},
                {"y=2x+1", "2x-y+1=0"},
                {"x = \\frac{1}{2}", "0.5"},
                {"y=2x+3", "2x+3"},
                {"f(x)=x^2", "x^2"},
                {"x \\in [0,1]", "[0,1]"},
                {"x=1, x=2", "1, 2"},
                {"x^2+y^2=25", "y^2 + x^2 = 25"},
                {"2x+4y=6", "x+2y=3"},
                {"\\theta=30^\\circ", "30^\\circ"},
                {"\\angle ABC = 106^\\circ", "106"},
                {"f'(x)=2x", "2x"},
                {"S_{\\triangle ABC}=6", "6"},
                {"x_1=3,\\ x_2=-2", "-2,3"},
                {"x=1,y=2", "(1,2)"},
                {"y=2,\\ x=1", "(1,2)"},
                {"AB=4, CD=5", "4, 5"},
                {"\\frac{26}{408}=\\frac{13}{204}", "\\frac{13}{204}"},
                {"x=12*6=72", "72"},
                {"\\approx 12.5", "12.5"},
                {"\\frac{16}{81}\\approx 0.198", "\\frac{16}{81}"},
                {"9 \\pmod{11}", "9"},
                {"x\\equiv9\\pmod{11}", "9"},
                {"x + y = 1", "1 = x + y"}});
  expect_different({{"x=5", "6"},
                    {"2x=10", "x=5"},  // to be solved
                    {"y=2x+1", "y-y=x-x"},
                    {"(y,x)=(1,2)", "(x,y)=(1,2)"},
                    {"x=1,y=2", "x=2,y=1"},
                    {"x=1,y=2", "(2,1)"},
                    {"xy=6", "6"},
                    {"x y=6", "6"},
                    {"\\text{not }x=6", "6"},
                    {"x=5", "y=5"},
                    {"43=42", "42"},
                    {"x=43=42", "42"},
                    {"5\\approx6", "6"},
                    {"5\\approx6", "5"},
                    {"2x+z=1", "1"},
                    {"x_1", "x_2"},
                    {"f'(x)", "f(x)"},
                    {"x^2+y^2=25", "x^2+y^2=5"},
                    {"x+y=1", "x-y=1"}});
}

TEST(Symbolic, Words) {
  expect_equal({{"\\text{Tuesday}", "tuesday"},
                {"(C)", "C"},
                {"(C) 12", "C"},
                {"C. 12", "\\text{(C)}"},
                {"\\textbf{(C) }12", "C"},
                {"\\text{Option D}", "D"},
                {"c", "C"},
                {"(204)_5", "204_{5}"},
                {"204_{\\text{5}}", "204_5"},
                {"\\text{DNE}", "does not exist"},
                {"\\text{seven}", "7"},
                {"\\text{a parabola}", "parabola"},
                {"\\text{(B)}", "B"},
                {"\\textbf{even}", "even"},
                {"1011_2", "1011_{2}"},
                {"x > 3", "x>3"}});
  expect_different({{"Tuesday", "yadseuT"},
                    {"even", "odd"},
                    {"(C)", "(D)"},
                    {"(C) 12", "(D) 12"},
                    {"(A) or (C)", "C"},
                    {"(A) (C)", "A"},
                    {"A: 1, C: 2", "A"},
                    {"A. C.", "A"},
                    {"(C) 12", "12"},
                    {"M", "m"},
                    {"e", "E"},
                    {"204_5", "204_6"},
                    {"27 \\bmod 5", "27"},
                    {"9\\pmod{11}", "9\\pmod{12}"},
                    {"1011_2", "1011_3"},
                    {"x > 3", "x < 3"},
                    {"\\text{no}", "5"}});
}

}  // namespace
}  // namespace neap::reward
