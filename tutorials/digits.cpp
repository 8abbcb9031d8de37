#include "tutorials/digits.h"

#include <fstream>
#include <sstream>

namespace tw {

DigitsSplit read_digits() {
    DigitsSplit split;
    std::ifstream file(TILEWRIGHT_TUTORIAL_DATA "/digits.csv");
    std::string line;
    for (int64_t image = 0; std::getline(file, line); ++image) {
        Digits& side = image % 5 == 4 ? split.test : split.training;
        std::istringstream numbers(line);
        std::string number;
        for (int pixel = 0; pixel < 64 && std::getline(numbers, number, ','); ++pixel)
            side.pixels.push_back(std::stof(number) / 16);
        std::getline(numbers, number);
        side.labels.push_back(std::stoi(number));
    }
    return split;
}

}  // namespace tw
