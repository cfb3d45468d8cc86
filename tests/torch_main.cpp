// main() of tests that link libtorch: they end without its static destructors, which take as long as
// half of loading it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}
