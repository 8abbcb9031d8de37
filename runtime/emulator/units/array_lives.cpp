#include "runtime/emulator/units/array_lives.h"

#include <cstring>

#include "runtime/emulator/memory/running.h"

namespace tw::emulator {

void ArrayLives::begin_array(void* array, size_t bytes, Stamp site) {
    Life& life = lives_[array];
    life.called.resize(core_.threads.count());
    const uint32_t called = ++life.called[running.thread];
    if (called <= life.times) return;
    life.times = called;
    const size_t whole_words = (bytes + 3) / 4 * 4;  // arrays begin at multiples of more
    check_run(reinterpret_cast<uintptr_t>(array), whole_words, AccessKind::Write, site);
    forget_written(reinterpret_cast<uintptr_t>(array), whole_words);
    std::memset(array, 0xff, bytes);  // NaN in every float type
}

}  // namespace tw::emulator
