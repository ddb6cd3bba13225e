// Runs a fuzz target on all files of some folders, without libFuzzer: `program FOLDER...`.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "input.h"

int main(int argc, char** argv) {
  size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
      std::cout << entry.path().filename().string() << std::endl;  // before it runs: the last name is the culprit's
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++inputs;
    }
  }
  std::cout << inputs << " inputs" << std::endl;
  return inputs > 0 ? 0 : 1;
}
