#!/usr/bin/env python3
"""What check_sizes.py takes for a function, and how long it says it is."""
import unittest

import check_sizes

BODY = "{\n  a();\n\n  b();\n}"  # three lines
# What stands before the brace; each opens a function.
FUNCTIONS = [
    "int f()", "static void f(int a = g(1), S s = {1, 2})", "Result<std::vector<int>> C::f(const int& x) const",
    "auto f() -> std::vector<int>", "bool C::operator()(int x) const", "bool operator==(const A& a, const B& b)",
    "C::C(int x) : a_(x), b_{x}, c_(g(x))", "C::C() noexcept(true) : Base<int>{1}", "~C() override", "operator bool() const",
    "template <class T, std::size_t N = (1 << 3)>\nrequires std::is_same_v<T, int>\nvoid f(T (&x)[N]) noexcept",
    "TEST(Suite, Name)", "TEST_P(Suite, Name)", "RC_GTEST_PROP(Suite, Name, ())", 'extern "C" int f(const char* s)',
    "[[nodiscard, gnu::always_inline]] inline struct S f(struct T t)", "const auto f = [](int x)", "const std::function<int()> f = [&]",
    "Tokenizer train(const Options& o, const std::function<std::optional<int>()>& next)", "public: explicit C(int x)",
    "constexpr bool less = [](int a, int b) -> bool", "int f(const char c = '{')", "int f(const char* s = \"){\")",
]
# None of these is one.
OTHERS = [
    "namespace a::b", "struct S final : public T<int>", "enum class E : std::uint8_t", "class [[nodiscard]] C", "union U",
    'extern "C"', "const int x[] =", "std::vector<int> v", "const Map m =", "struct alignas(64) S", "static S s = make(1) ? S{1} : S",
]


class Functions(unittest.TestCase):
    def test_each_kind_of_function_is_found_with_its_size(self):
        for head in FUNCTIONS:
            with self.subTest(head):
                found = list(check_sizes.functions(f"int before;\n{head} {BODY}\nint after;"))
                self.assertEqual([size for _, size, _ in found], [3])
                self.assertEqual(found[0][0], 2 + head.count("\n"))

    def test_scopes_and_values_are_none(self):
        for head in OTHERS:
            with self.subTest(head):
                self.assertEqual(list(check_sizes.functions(f"{head} {{\n 1,\n 2\n}};")), [])

    def test_members_are_functions_of_their_own(self):
        text = f"namespace n {{\nstruct S {{\n  int x = 0;\n  S() : x{{1}} {BODY}\n  void f() {{}}\n  int y{{2}};\n  void g() {BODY}\n}};\n}}\n"
        self.assertEqual([size for _, size, _ in check_sizes.functions(text)], [3, 0, 3])

    def test_lambdas_and_local_classes_count_in_their_function(self):
        text = f"void f() {{\n  struct S {{\n    void g() {BODY}\n  }};\n  const auto h = [] {BODY};\n}}\nvoid after() {BODY}"
        self.assertEqual([size for _, size, _ in check_sizes.functions(text)], [12, 3])

    def test_comments_strings_and_macros_count_for_nothing_but_lines(self):
        text = '#define X { \\\n {\n/* { */ void f() { // }\n  s = R"(}\n)"; c = \'}\'; t = "\\"}";\n}\n'
        self.assertEqual([size for _, size, _ in check_sizes.functions(text)], [2])

    def test_a_brace_too_many_is_an_error(self):
        with self.assertRaises((ValueError, IndexError)):
            list(check_sizes.functions("void f() { } }"))
        with self.assertRaises(ValueError):
            list(check_sizes.functions("void f() { {"))


if __name__ == "__main__":
    unittest.main()
