#!/usr/bin/env python3
"""Small texts in the ways that C++ defines names, and small trees with one fault each."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "one_definition_test.py")
sys.path.insert(0, HERE)
import one_definition_test as checker  # noqa: E402


def names(text):
    return [definition.name for definition in checker.definitions(text)]


class DefinitionsTest(unittest.TestCase):

    def test_each_kind_is_found_where_it_stands(self):
        found = checker.definitions("namespace a {\n"
                                    "struct Point {\n  int x;\n};\n"
                                    "using Points = std::vector<Point>;\n"
                                    "inline constexpr int kFew = 3;\n"
                                    "inline int Sum(const Point& p) { return p.x; }\n"
                                    "}\n")
        self.assertEqual(found, [
            (checker.TYPE, "a::Point", 2),
            (checker.ALIAS, "a::Points", 5),
            (checker.CONSTANT, "a::kFew", 6),
            (checker.FUNCTION, "a::Sum(const Point &)", 7),
        ])

    def test_classes_of_every_form(self):
        for text, name in [
            ("class A {};", "A"),
            ("class A final : public B<int, C> {};", "A"),
            ("struct A : b::B { int x{1}; };", "A"),
            ("union A { int x; float y; };", "A"),
            ("enum A { kX, kY };", "A"),
            ("enum class A : uint8_t { kX };", "A"),
            ("enum struct A { kX };", "A"),
            ("template <typename T, int kN = (1 > 0)> struct A {};", "A"),
            ("template <> struct A<int, B<char>> {};", "A<int,B<char>>"),
            ("struct A::Inner { int x; };", "A::Inner"),
            ("struct alignas(16) A {};", "A"),
            ("struct [[nodiscard]] A {};", "A"),
            ("class LOCKABLE A {};", "A"),
            ("class CAPABILITY(\"mutex\") A {};", "A"),
            ("struct A { int x; } a = {1};", "A"),
        ]:
            self.assertEqual(names(text), [name], text)

    def test_what_only_names_a_class_defines_none(self):
        for text in ("class A;", "struct A;", "enum class A : int;", "template <typename T> class A;",
                     "extern template class A<int>;", "extern struct A a;", "using b::A;", "using namespace a;",
                     "enum { kX };", "int x, y;"):
            self.assertEqual(names(text), [], text)

    def test_a_function_that_returns_a_class_defines_no_class(self):
        self.assertEqual(names("struct A Make(int n) { return {n}; }\nstruct B {};"), ["Make(int)", "B"])

    def test_namespaces(self):
        self.assertEqual(names("namespace a::b { struct X {}; namespace c { struct Y {}; } struct Z {}; }\n"
                               "struct W {};"), ["a::b::X", "a::b::c::Y", "a::b::Z", "W"])
        self.assertEqual(names("inline namespace a { struct X {}; }"), ["a::X"])
        self.assertEqual(names("namespace a = b::c; struct X {};"), ["X"])
        self.assertEqual(names('extern "C" { struct X {}; }\nstruct Y {};'), ["X", "Y"])

    def test_an_anonymous_namespace_is_of_its_file_with_all_in_it(self):
        self.assertEqual(names("namespace a { namespace { struct X {}; namespace b { struct Y {}; } }\n"
                               "struct Z {}; }"), ["a::Z"])

    def test_what_is_inside_classes_and_functions_is_theirs(self):
        self.assertEqual(names("struct A { struct B {}; using C = int; static constexpr int kD = 1; };\n"
                               "void F() { struct G {}; constexpr int kH = 1; }\n"
                               "A::A(int x) : x_{x}, y_(x) { struct I {}; }\n"), ["A", "F()"])

    def test_comments_have_no_definitions(self):
        self.assertEqual(names("// struct A {\n/* struct B {};\n} */ struct C {};  // }\n"
                               "// x \\\nstruct D {};\n"), ["C"])

    def test_strings_and_letters_have_no_braces(self):
        self.assertEqual(names('const char* F() { return "} \\" }"; }\nstruct A {};'), ["F()", "A"])
        self.assertEqual(names("char F() { return '}' + '\\'' + '\"'; }\nstruct A {};"), ["F()", "A"])
        self.assertEqual(names("int F() { return 1'000'000; }\nstruct A {};"), ["F()", "A"])

    def test_raw_strings_end_at_their_mark(self):
        self.assertEqual(names('constexpr char kA[] = R"(struct B {)";\nstruct C {};'), ["kA", "C"])
        self.assertEqual(names('const auto kA = R"x(}; )" // )y" struct B {}; )x";\nstruct C {};'), ["kA", "C"])

    def test_lines_are_counted_through_comments_and_raw_strings(self):
        found = checker.definitions('/*\n\n*/\nconst auto kA = R"(\n\n)";\n#define X \\\n  1\nstruct B {};')
        self.assertEqual([(d.name, d.line) for d in found], [("kA", 4), ("B", 9)])

    def test_macros(self):
        self.assertEqual(names("#define OPEN struct X {\nstruct A {};"), ["A"])
        self.assertEqual(names("#define LONG(x) \\\n  struct X { \\\n  int x;\nstruct A {};"), ["A"])
        self.assertEqual(names("TEST(Suite, Name) { struct X {}; }\nFLAG(bool, b, false);\nstruct A {};"), ["A"])
        self.assertEqual(names("DECLARE_ALL(x)\nstruct A {};"), ["A"])
        self.assertEqual(names("namespace a::ISA { struct A {}; }"), ["a::ISA::A"])

    def test_all_branches_of_a_condition_are_read(self):
        self.assertEqual(names("#if X\nvoid F() {\n#else\nvoid F(int) {\n#endif\n}\nstruct A {};"),
                         ["F()", "F(int)", "A"])
        self.assertEqual(names("#ifdef X\nstruct A {};\n#elif Y\nstruct B {};\n#endif\nstruct C {};"), ["A", "B", "C"])
        self.assertEqual(names("namespace a {\n#ifndef X\nnamespace b {\n#else\nnamespace c {\n#endif\n"
                               "struct A {};\n}\n}\nstruct B {};"), ["a::c::A", "B"])

    def test_aliases(self):
        for text, found in [("using A = int (*)(int x);", ["A"]), ("template <typename T> using A = B<T>;", ["A"]),
                            ("typedef unsigned long A;", ["A"])]:
            self.assertEqual(names(text), found, text)

    def test_constants(self):
        for text, found in [
            ("constexpr int kA = 1;", ["kA"]),
            ("inline constexpr double kA = 1, kB = F(2, x), kC = 3;", ["kA", "kB", "kC"]),
            ("constexpr int kA[] = {1, 2};", ["kA"]),
            ("const std::array<int, 2> kA = {1, 2};", ["kA"]),
            ("inline constexpr Point kA{1, 2};", ["kA"]),
            ("const auto kA = [](int x) { return x; };", ["kA"]),
            ("constexpr int A::kB = 1;", []),
            ("extern const int kA;", []),
            ("const A& Get();", []),
            ("static_assert(sizeof(int) == 4);", []),
        ]:
            self.assertEqual(names(text), found, text)

    def test_a_function_is_known_by_the_types_of_its_parameters(self):
        for text, name in [
            ("inline int F(int64_t n, const A& a = {}) { return 1; }", "F(int64_t, const A &)"),
            ("inline int F(int64_t, const A&) { return 1; }", "F(int64_t, const A &)"),
            ("inline auto F(absl::Span<const std::pair<int, A>> all) { return 1; }",
             "F(absl :: Span < const std :: pair < int , A > >)"),
            ("inline int F(std::function<void(int)> f) noexcept { return 1; }",
             "F(std :: function < void ( int ) >)"),
        ]:
            self.assertEqual(names(text), [name], text)

    def test_functions_that_may_be_others_are_left_out(self):
        for text in ("int F(int n);", "template <typename T> int F(T n) { return 1; }", "int A::F() { return 1; }",
                     "bool operator==(const A& a, const A& b) { return true; }",
                     "A& A::operator=(const A& a) { return *this; }", "A::A() {}", "A::~A() {}"):
            self.assertEqual(names(text), [], text)

    def test_a_text_that_ends_early_is_read_to_its_end(self):
        for text in ("struct A {", "namespace a {", "struct", "template <", "using A =", "#else\n#endif\n}", "/*",
                     '"', "("):
            checker.definitions(text)


class TreeTest(unittest.TestCase):

    def run_on(self, files):
        with tempfile.TemporaryDirectory() as root:
            workspace = os.path.join(root, "WORKSPACE")
            open(workspace, "w").close()
            for path, text in files.items():
                path = os.path.join(root, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(text)
            done = subprocess.run([sys.executable, "-B", PROGRAM, workspace], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, universal_newlines=True)
            return done.returncode, done.stdout

    def expect_clash(self, files, text):
        status, output = self.run_on(files)
        self.assertEqual(status, 1, output)
        self.assertIn(text, output)

    def expect_none(self, files):
        status, output = self.run_on(files)
        self.assertEqual(status, 0, output)

    def test_two_headers_with_one_class(self):
        self.expect_clash({"megatron/a.h": "namespace m {\nstruct Plan {};\n}",
                           "tools/b.h": "namespace m { class Plan {}; }"},
                          "m::Plan is defined by megatron/a.h:2 (type) and tools/b.h:1 (type)")

    def test_a_class_beside_an_alias(self):
        self.expect_clash({"megatron/a.cuh": "struct Plan {};", "megatron/b.h": "using Plan = int;"},
                          "Plan is defined by")

    def test_two_headers_with_one_constant(self):
        self.expect_clash({"megatron/a.h": "constexpr int kA = 1;", "megatron/b.h": "const long kA = 2;"},
                          "kA is defined by")

    def test_two_headers_with_one_function(self):
        self.expect_clash({"megatron/a.h": "inline int F(int x) { return x; }",
                           "megatron/b.h": "inline int F(int y) { return -y; }"}, "F(int) is defined by")

    def test_a_function_beside_an_alias(self):
        self.expect_clash({"megatron/a.h": "namespace m { inline int F(int x) { return x; } }",
                           "megatron/b.h": "namespace m { using F = int; }"},
                          "m::F is defined by megatron/a.h:1 (function) and megatron/b.h:1 (alias)")

    def test_overloads_of_a_function(self):
        self.expect_none({"megatron/a.h": "inline int F(int x) { return x; }",
                          "megatron/b.h": "inline int F(float x) { return 0; }"})

    def test_two_sources_with_one_class(self):
        self.expect_clash({"megatron/a.cc": "struct Plan {};", "tools/b.cu": "struct Plan {};"},
                          "Plan is defined by megatron/a.cc:1 (type) and tools/b.cu:1 (type)")

    def test_a_source_with_the_class_of_a_header(self):
        self.expect_clash({"megatron/a.h": "struct Plan {};", "megatron/b.cc": "struct Plan { int x; };"},
                          "Plan is defined by")

    def test_classes_of_anonymous_and_of_other_namespaces(self):
        self.expect_none({"megatron/a.h": "namespace m::a { struct Plan {}; }",
                          "megatron/b.h": "namespace m::b { struct Plan {}; }",
                          "megatron/c.cc": "namespace m::a { namespace { struct Plan {}; } }",
                          "megatron/d.h": "struct Plan;"})

    def test_constants_of_sources_are_their_own(self):
        self.expect_none({"megatron/a.cc": "constexpr int kA = 1;", "megatron/b.cc": "constexpr int kA = 2;"})

    def test_a_tree_without_sources(self):
        self.expect_clash({"megatron/BUILD": ""}, "no source found")


if __name__ == "__main__":
    unittest.main()
