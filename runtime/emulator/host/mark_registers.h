// Where a printed kernel declares registers.
#pragma once
#include <string>

namespace tw::emulator {

/// The text, with leave_unwritten() (device/cpu/unwritten.h) behind each declaration of numbers, or arrays of them,
/// that has no initialiser. Only bodies of `__global__` functions change; lines stay where they are.
std::string with_marked_registers(const std::string& text);

}  // namespace tw::emulator
