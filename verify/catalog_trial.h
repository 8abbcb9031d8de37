// A kernel of the catalog with its data, run on the emulator with one of its kernels exchanged for another.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/lower.h"
#include "dsl/interpret.h"
#include "runtime/emulator/emulator.h"
#include "schedules/catalog.h"
#include "verify/guarded_memory.h"
#include "verify/telling_data.h"

namespace tw::fuzz {

/// A kernel's text, compiled for the emulator.
struct CompiledText {
    codegen::KernelText text;
    std::shared_ptr<const emulator::Module> module;
};

/// What is wrong with a run.
struct Complaint {
    enum class By { Emulator, Result } by;
    std::string text;
};

class CatalogTrial {
public:
    /// Inputs of a schedule's outputs, by a seed.
    using Data = std::function<Bindings(const std::vector<Tensor>& outputs, uint64_t seed)>;
    explicit CatalogTrial(const schedules::CatalogEntry& entry, Data data = telling_bindings);

    /// The kernels in launch order: as they are printed, and their texts.
    const std::vector<codegen::ThreadKernel>& kernels() const { return kernels_; }
    const std::vector<codegen::KernelText>& texts() const { return texts_; }

    struct Manner {
        uint64_t seed;  ///< of the order of threads
        uint64_t data;  ///< seed of the data
        bool isolated;  ///< each launch in a process of its own, for kernels that may do anything
    };
    /// Runs all kernels in order and compares the outputs with those of the schedule's tree.
    std::optional<Complaint> run(const std::vector<CompiledText>& kernels, const Manner& manner);
    /// Whether a kernel, one of `originals`, reads an infinity among what this seed gives, or what those before it
    /// make.
    bool meets_infinities(const std::vector<CompiledText>& originals, uint64_t data);
    /// The sizes that the kernels are launched with.
    const Bindings& sizes() { return given(0).bindings; }

private:
    struct Given {
        Bindings bindings;
        std::vector<HostArray> expected;
    };
    const Given& given(uint64_t seed);
    std::map<std::string, GuardedMemory> memory_with(const Bindings& bindings) const;
    std::optional<Complaint> launch(const CompiledText& kernel, const Bindings& bindings,
                                    std::map<std::string, GuardedMemory>& memory, const Manner& manner) const;
    std::string memory_of(const BufferRef& buffer) const;
    std::optional<Complaint> compare(const Given& given, const std::map<std::string, GuardedMemory>& memory) const;

    Schedule schedule_;
    Data data_;
    bool approximate_ = false, reorders_ = false;
    std::vector<codegen::ThreadKernel> kernels_;
    std::vector<codegen::KernelText> texts_;
    std::map<uint64_t, Given> given_;
};

/// The sources of texts, to be compiled together.
std::vector<emulator::Source> sources_of(std::span<const codegen::KernelText> texts);

}  // namespace tw::fuzz
