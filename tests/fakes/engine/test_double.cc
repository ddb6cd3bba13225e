// Part of every double: the product's loader refuses libraries that have this symbol, unless A2A_TEST_DOUBLES=1.
// Weak, because a program may have several doubles, which AddressSanitizer would take for a violation.
extern "C" __attribute__((visibility("default"), weak)) const char a2a_test_double[];
const char a2a_test_double[] = "This library is a test double of a2a: it moves bytes between processes of one host.";
