// Barriers are derived: each one is needed, and none is missing.
#include <map>

#include <gtest/gtest.h>

#include "codegen/print/print_cuda.h"
#include "dsl/simplify.h"
#include "ops/check.h"
#include "ops/executable.h"
#include "runtime/emulator/emulator.h"
#include "runtime/emulator/units/tensor_map_bits.h"
#include "schedules/catalog.h"

namespace tw {
namespace {

constexpr const char* kBarrier = "__syncthreads();";

std::vector<size_t> barriers_of(const std::string& text) {
    std::vector<size_t> places;
    for (size_t at = text.find(kBarrier); at != std::string::npos; at = text.find(kBarrier, at + 1))
        places.push_back(at);
    return places;
}

/// One kernel of fixed sizes with its data, to be run again and again on the emulator.
class Bench {
public:
    explicit Bench(const Schedule& schedule)
        : program_(build(schedule)), bindings_(random_bindings(schedule.outputs(), 5)) {}

    const Program& program() const { return program_; }

    emulator::Report run(const emulator::Module& module, uint64_t seed) {
        const codegen::KernelText& kernel = program_.kernels()[0];
        emulator::Launch launch;
        launch.kernel = kernel.name;
        launch.threads = kernel.threads;
        launch.cluster = static_cast<unsigned>(kernel.cluster);
        launch.shared_bytes = kernel.shared_bytes;
        for (int d = 0; d < 3; ++d) launch.grid[d] = static_cast<unsigned>(require_constant(simplify(kernel.grid[d])));
        std::vector<void*> pointers;
        std::map<std::string, std::vector<std::byte>> outputs;
        auto region_of = [&](const BufferNode& argument) {
            auto input = bindings_.inputs.find(argument.name);
            bool is_input = input != bindings_.inputs.end();
            int64_t elements = 1;
            for (const Expr& extent : argument.shape) elements *= require_constant(extent);
            std::vector<std::byte>& bytes = is_input ? input->second.bytes : outputs[argument.name];
            if (!is_input) bytes.resize(static_cast<size_t>(elements * bytes_of(argument.type)));
            return emulator::Region{bytes.data(), bytes.size(), argument.name, !is_input, is_input};
        };
        for (const auto& argument : kernel.arguments) {
            launch.regions.push_back(region_of(*argument));
            pointers.push_back(launch.regions.back().base);
        }
        std::vector<float> scalars;
        for (const Expr& scalar : kernel.scalars)
            scalars.push_back(static_cast<float>(bindings_.scalars.at(scalar.as<Variable>()->name).real));
        for (void*& pointer : pointers) launch.arguments.push_back(&pointer);
        std::vector<PaddedMap> maps;
        for (const auto& use : kernel.maps) {
            const emulator::Region region = region_of(*use.tensor);
            maps.push_back(map_of(use, region.base));
            auto known = [&](const emulator::Region& other) { return other.name == region.name; };
            if (std::none_of(launch.regions.begin(), launch.regions.end(), known)) launch.regions.push_back(region);
        }
        for (PaddedMap& map : maps) launch.arguments.push_back(&map);
        for (float& scalar : scalars) launch.arguments.push_back(&scalar);
        return emulator::run(module, launch, {.seed = seed});
    }

private:
    struct alignas(64) PaddedMap {
        emulator::TensorMapBits bits;
        char rest[128 - sizeof(emulator::TensorMapBits)] = {};
    };

    static PaddedMap map_of(const codegen::TensorMapUse& use, const void* base) {
        PaddedMap map;
        const BufferNode& tensor = *use.tensor;
        map.bits.magic = emulator::TensorMapBits::Magic;
        map.bits.base = reinterpret_cast<uint64_t>(base);
        map.bits.rank = static_cast<uint8_t>(tensor.shape.size());
        map.bits.element = bytes_of(tensor.type) == 1   ? emulator::TensorElement::U8
                           : bytes_of(tensor.type) == 2 ? emulator::TensorElement::BF16
                                                        : emulator::TensorElement::F32;
        map.bits.swizzle_span = static_cast<uint8_t>(use.swizzle ? use.swizzle : 16);
        uint64_t stride = static_cast<uint64_t>(bytes_of(tensor.type));
        for (size_t d = 0; d < tensor.shape.size(); ++d) {
            map.bits.sizes[d] = static_cast<uint64_t>(require_constant(tensor.shape[tensor.shape.size() - 1 - d]));
            map.bits.box[d] = static_cast<uint16_t>(use.box[d]);
            if (d > 0) map.bits.strides[d - 1] = stride;
            stride *= map.bits.sizes[d];
        }
        return map;
    }

    Program program_;
    Bindings bindings_;
};

std::vector<std::string> with_barriers() {
    std::vector<std::string> names;
    for (const auto& entry : schedules::catalog()) {
        if (entry.flops > 1e7) continue;  // the same schedules run with smaller extents
        Program program = build(entry.make(target("sm_90a")));
        if (!program.kernels().empty() && !barriers_of(program.kernels()[0].cuda).empty()) names.push_back(entry.name);
    }
    return names;
}

class Barriers : public testing::TestWithParam<std::string> {};

TEST_P(Barriers, OriginalIsSilentOnFiftySeeds) {
    Bench bench(schedules::find_kernel(GetParam())->make(target("sm_90a")));
    const auto& kernel = bench.program().kernels()[0];
    auto module = emulator::compile(std::vector<emulator::Source>{{kernel.name, kernel.cuda, {}}});
    for (uint64_t seed = 0; seed < 50; ++seed) {
        emulator::Report report = bench.run(*module, seed);
        ASSERT_TRUE(report.ok()) << "seed " << seed << ": " << report.findings[0].message;
    }
}

TEST_P(Barriers, EachRemovalIsCaughtOnTwentySeeds) {
    Bench bench(schedules::find_kernel(GetParam())->make(target("sm_90a")));
    const auto& kernel = bench.program().kernels()[0];
    for (size_t place : barriers_of(kernel.cuda)) {
        std::string mutant = kernel.cuda;
        mutant.replace(place, std::string(kBarrier).size(), ";");
        auto module = emulator::compile(std::vector<emulator::Source>{{kernel.name, mutant, {}}});
        for (uint64_t seed = 0; seed < 20; ++seed)
            EXPECT_FALSE(bench.run(*module, seed).ok())
                << "seed " << seed << ", without the barrier at byte " << place << " of\n"
                << kernel.cuda;
    }
}

INSTANTIATE_TEST_SUITE_P(Catalog, Barriers, testing::ValuesIn(with_barriers()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tw
