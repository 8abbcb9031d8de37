// The compilations behind Device::load_all, for the devices that take cubins.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "runtime/compile/compile.h"
#include "runtime/driver/driver.h"

namespace tw {

/// Compiles all images, several at a time, in their order; null for one that brings its cubin. Throws what the first
/// that failed throws, and CompileError for an entry that a source does not have.
std::vector<std::shared_ptr<const CompiledKernel>> compile_images(std::span<const KernelImage> images);

}  // namespace tw
