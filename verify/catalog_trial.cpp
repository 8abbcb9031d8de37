#include "verify/catalog_trial.h"

#include <algorithm>
#include <cmath>

#include "codegen/thread_passes/thread_passes.h"
#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"
#include "runtime/driver/tensor_map.h"
#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw::fuzz {
namespace {

constexpr uint64_t kMostSteps = 200'000'000;
constexpr double kMostSeconds = 20;

/// The buffer's elements as an array.
HostArray array_in(const GuardedMemory& memory, const BufferNode& buffer, const Bindings& bindings) {
    HostArray array = host_array(buffer.type, extents_of(buffer.shape, bindings), extents_of(buffer.strides, bindings));
    std::memcpy(array.bytes.data(), memory.data(), std::min(array.bytes.size(), memory.bytes()));
    return array;
}

/// As large as a kernel's parameter.
struct alignas(64) TensorMapArgument {
    emulator::TensorMapBits bits;
    char rest[128 - sizeof(emulator::TensorMapBits)] = {};
};

/// Values of a launch's parameters, with addresses that stay.
class Parameters {
public:
    void add_size(const Expr& size, const Bindings& bindings) {
        int64_t value = bound_size(size, bindings);
        add(make_value(codegen::argument_type(size), value));
    }
    void add_scalar(const Expr& scalar, const Bindings& bindings) { add(bound_scalar(scalar, bindings)); }
    void add_pointer(void* pointer) { add(reinterpret_cast<uint64_t>(pointer)); }
    void add_map(const TensorMapArgument& map) {
        maps_.push_back(std::make_unique<TensorMapArgument>(map));
        addresses_.push_back(maps_.back().get());
    }
    const std::vector<void*>& addresses() const { return addresses_; }

private:
    void add(const Value& value) {
        uint64_t stored = 0;
        store_element(value, &stored);
        add(stored);
    }
    void add(uint64_t bits) {
        values_.push_back(std::make_unique<uint64_t>(bits));
        addresses_.push_back(values_.back().get());
    }
    std::vector<std::unique_ptr<uint64_t>> values_;
    std::vector<std::unique_ptr<TensorMapArgument>> maps_;
    std::vector<void*> addresses_;
};

Swizzle swizzle_of(int bytes) {
    return bytes == 128  ? Swizzle::Bytes128
           : bytes == 64 ? Swizzle::Bytes64
           : bytes == 32 ? Swizzle::Bytes32
                         : Swizzle::None;
}

/// Throws LaunchError where the driver would not take it.
TensorMapArgument map_of(const codegen::TensorMapUse& use, const GuardedMemory& memory, const Bindings& bindings) {
    static const std::shared_ptr<Device> device = open_device("emulated");
    TensorLayout layout{.element = tensor_element(use.tensor->type),
                        .sizes = extents_of(use.tensor->shape, bindings),
                        .box = use.box,
                        .traversal_strides = use.traversal_strides,
                        .swizzle = swizzle_of(use.swizzle)};
    if (use.im2col)
        layout.im2col = Im2col{.lower = use.im2col->lower,
                               .upper = use.im2col->upper,
                               .channels = use.im2col->channels,
                               .pixels = use.im2col->pixels};
    std::vector<int64_t> strides =
        use.tensor->strides.empty() ? dense_strides(layout.sizes) : extents_of(use.tensor->strides, bindings);
    std::reverse(layout.sizes.begin(), layout.sizes.end());
    for (size_t d = strides.size() - 1; d-- > 0;) layout.strides.push_back(strides[d] * bytes_of(use.tensor->type));
    TensorMap map = encode_tensor_map(device->allocate(static_cast<int64_t>(memory.bytes()), use.tensor->name), layout);
    TensorMapArgument argument;
    std::memcpy(static_cast<void*>(&argument.bits), map.bits, sizeof argument.bits);
    argument.bits.base = reinterpret_cast<uint64_t>(memory.data());
    return argument;
}

/// Blocks that take tiles in turn are so few that each has several.
Target small_hopper() {
    Target result = target("sm_90a");
    result.multiprocessors = 2;
    return result;
}

}  // namespace

CatalogTrial::CatalogTrial(const schedules::CatalogEntry& entry, Data data)
    : schedule_(entry.make(small_hopper())), data_(std::move(data)) {
    codegen::LowerOptions options;
    options.printed = [&](const codegen::ThreadKernel& kernel) { kernels_.push_back(kernel); };
    texts_ = codegen::lower(schedule_.tree(), schedule_.target(), options).kernels;
    for (const codegen::KernelText& text : texts_) {
        approximate_ = approximate_ || text.approximate;
        reorders_ = reorders_ || text.cuda.find("tw::mma_") != std::string::npos ||
                    text.cuda.find("tw::wgmma_m64") != std::string::npos;
    }
}

const CatalogTrial::Given& CatalogTrial::given(uint64_t seed) {
    auto known = given_.find(seed);
    if (known != given_.end()) return known->second;
    // The tree adds in another order than tensor cores: only whole numbers, where none matters.
    uint64_t data = reorders_ ? seed * kKindsOfData + kWholeNumbers : seed;
    Given made{data_(schedule_.outputs(), data), {}};
    made.expected = interpret_tree(schedule_.tree(), made.bindings);
    return given_.emplace(seed, std::move(made)).first->second;
}

std::string CatalogTrial::memory_of(const BufferRef& buffer) const {
    const Tree& tree = schedule_.tree();
    bool is_output = std::find(tree.outputs.begin(), tree.outputs.end(), buffer) != tree.outputs.end();
    return is_output ? name_of_memory(tree, buffer) : buffer->name;
}

std::optional<Complaint> CatalogTrial::compare(const Given& given,
                                               const std::map<std::string, GuardedMemory>& memory) const {
    const Tree& tree = schedule_.tree();
    for (size_t o = 0; o < tree.outputs.size(); ++o) {
        const BufferNode& output = *tree.outputs[o];
        HostArray got = array_in(memory.at(memory_of(tree.outputs[o])), output, given.bindings);
        // Approximations: 2 ulp each in chains of a few, 16-bit results may then round to the neighbour.
        Match match = approximate_ ? near(bytes_of(output.type) == 4 ? 16 : 1, 1e-6) : bitwise;
        if (auto wrong = difference(output.name, got, given.expected.at(o), match))
            return Complaint{Complaint::By::Result, *wrong};
    }
    return {};
}

std::map<std::string, GuardedMemory> CatalogTrial::memory_with(const Bindings& bindings) const {
    const Tree& tree = schedule_.tree();
    std::map<std::string, GuardedMemory> memory;
    for (const auto& list : {tree.inputs, tree.outputs, tree.workspaces})
        for (const BufferRef& buffer : list) {
            GuardedMemory& made =
                memory.try_emplace(memory_of(buffer), static_cast<size_t>(bytes_spanned(*buffer, bindings)))
                    .first->second;
            if (!buffer->is_counter) continue;
            std::memset(made.data(), 0, made.bytes());
            made.written = true;
        }
    for (const BufferRef& input : tree.inputs) {
        GuardedMemory& filled = memory.at(input->name);
        std::memcpy(filled.data(), bound_input(*input, bindings).bytes.data(), filled.bytes());
        filled.written = true;
    }
    return memory;
}

std::optional<Complaint> CatalogTrial::launch(const CompiledText& kernel, const Bindings& bindings,
                                              std::map<std::string, GuardedMemory>& memory,
                                              const Manner& manner) const {
    emulator::Launch launch{.kernel = kernel.text.name,
                            .threads = static_cast<unsigned>(kernel.text.threads),
                            .cluster = static_cast<unsigned>(kernel.text.cluster),
                            .shared_bytes = static_cast<size_t>(kernel.text.shared_bytes),
                            .starts_early = kernel.text.starts_early};
    for (int d = 0; d < 3; ++d) launch.grid[d] = static_cast<unsigned>(extent_of(kernel.text.grid[d], bindings));
    if (launch.grid[0] * launch.grid[1] * launch.grid[2] == 0) return {};
    Parameters parameters;
    std::map<std::string, bool> writes;
    for (size_t a = 0; a < kernel.text.arguments.size(); ++a) {
        std::string name = memory_of(kernel.text.arguments[a]);
        parameters.add_pointer(memory.at(name).data());
        writes[name] = writes[name] || kernel.text.written[a];
    }
    for (const codegen::TensorMapUse& use : kernel.text.maps) {
        std::string name = memory_of(use.tensor);
        try {
            parameters.add_map(map_of(use, memory.at(name), bindings));
        } catch (const Error& refused) {
            return Complaint{Complaint::By::Emulator, refused.what()};
        }
        writes[name] = writes[name] || use.writes;
    }
    for (const Expr& size : kernel.text.sizes) parameters.add_size(size, bindings);
    for (const Expr& scalar : kernel.text.scalars) parameters.add_scalar(scalar, bindings);
    launch.arguments = parameters.addresses();
    for (const auto& [name, writable] : writes) {
        GuardedMemory& used = memory.at(name);
        if (used.bytes() > 0) launch.regions.push_back({used.data(), used.bytes(), name, writable, used.written});
        used.written = used.written || writable;
    }
    emulator::Options options{.seed = manner.seed, .step_limit = kMostSteps, .seconds_limit = kMostSeconds};
    emulator::Report report;
    try {
        emulator::check_launch(*kernel.module, launch);
        report = manner.isolated ? emulator::run_isolated(*kernel.module, launch, options)
                                 : emulator::run(*kernel.module, launch, options);
    } catch (const Error& refused) {
        return Complaint{Complaint::By::Emulator, refused.what()};
    }
    if (report.ok()) return {};
    return Complaint{Complaint::By::Emulator, report.findings[0].message};
}

std::optional<Complaint> CatalogTrial::run(const std::vector<CompiledText>& kernels, const Manner& manner) {
    const Given& given = this->given(manner.data);
    std::map<std::string, GuardedMemory> memory = memory_with(given.bindings);
    for (const CompiledText& kernel : kernels)
        if (auto complaint = launch(kernel, given.bindings, memory, manner)) return complaint;
    return compare(given, memory);
}

bool CatalogTrial::meets_infinities(const std::vector<CompiledText>& originals, uint64_t data) {
    const Given& given = this->given(data);
    std::map<std::string, GuardedMemory> memory = memory_with(given.bindings);
    for (const CompiledText& kernel : originals) launch(kernel, given.bindings, memory, {data, data, false});
    auto is_infinite = [&](const BufferRef& buffer) {
        if (!is_float(buffer->type)) return false;
        const HostArray array = array_in(memory.at(memory_of(buffer)), *buffer, given.bindings);
        std::vector<int64_t> at(array.shape.size());
        if (array.num_elements() > 0) do
                if (std::isinf(array.at(at).real)) return true;
            while (advance(at, array.shape));
        return false;
    };
    const Tree& tree = schedule_.tree();
    return std::ranges::any_of(tree.inputs, is_infinite) || std::ranges::any_of(tree.workspaces, is_infinite) ||
           (originals.size() > 1 && std::ranges::any_of(tree.outputs, is_infinite));
}

std::vector<emulator::Source> sources_of(std::span<const codegen::KernelText> texts) {
    std::vector<emulator::Source> sources;
    for (const codegen::KernelText& text : texts) sources.push_back({text.name, text.cuda, {}});
    return sources;
}

}  // namespace tw::fuzz
