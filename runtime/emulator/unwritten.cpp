// Values of registers to which nothing was written, where they end: in global memory. What a kernel computes of them
// and does not store is no fault: printed kernels compute whole tiles, and store what lies inside.
#include <cstring>
#include <optional>

#include "runtime/emulator/machine.h"
#include "runtime/emulator/threads/random.h"
#include "runtime/emulator/units/tensor_map_bits.h"

namespace tw::emulator {
namespace {

using emulated::Pointee;
using emulated::Unwritten;

size_t bytes_of(Pointee type) { return type == Pointee::F64 ? 8 : type == Pointee::F32 ? 4 : 2; }

/// Elements of one type at the type's distance.
template <class Bits>
std::optional<size_t> find_bits(const unsigned char* memory, size_t count, size_t from, auto is_it) {
    for (size_t i = from; i < count; ++i) {
        Bits bits;
        std::memcpy(&bits, memory + i * sizeof bits, sizeof bits);
        if (is_it(bits)) return i;
    }
    return std::nullopt;
}

/// The next element, from number `from` on, that may come of such a register. What has been a narrow number has lost
/// the low half.
std::optional<size_t> find_element(const Memory& memory, Pointee type, size_t from) {
    auto* bytes = reinterpret_cast<const unsigned char*>(memory.base);
    const size_t count = memory.bytes / bytes_of(type);
    constexpr uint32_t Whole = Unwritten::FloatBits, High = Whole & 0xffff0000;
    auto is_word = [](uint32_t bits) { return (bits & 0x7fffffff) == Whole || (bits & 0x7fffffff) == High; };
    switch (type) {
        case Pointee::F32: return find_bits<uint32_t>(bytes, count, from, is_word);
        case Pointee::F64:
            return find_bits<uint64_t>(bytes, count, from, [&](uint64_t bits) {
                constexpr uint64_t Exponent = uint64_t{0x7ff} << 52;
                const uint32_t mantissa = uint32_t(bits >> 29) & 0x7fffff;
                return (bits & Exponent) == Exponent && is_word(mantissa | 0x7f800000);
            });
        case Pointee::F16:
        case Pointee::Bf16:
            return find_bits<uint16_t>(bytes, count, from,
                                       [](uint16_t bits) { return (bits & 0x7fff) == Whole >> 16; });
        case Pointee::Value:
        case Pointee::Map:
        case Pointee::Other: break;
    }
    return std::nullopt;
}

Pointee type_of(TensorElement element) {
    switch (element) {
        case TensorElement::F16: return Pointee::F16;
        case TensorElement::BF16: return Pointee::Bf16;
        case TensorElement::F64: return Pointee::F64;
        case TensorElement::F32: return Pointee::F32;
        default: return Pointee::Other;
    }
}

struct Typed {
    uintptr_t address;
    Pointee type;
};

/// Where the launch's arguments lead, and what is there.
std::vector<Typed> typed_places(const Module& module, const Launch& launch) {
    std::vector<Typed> places;
    auto pointees = module.pointees(launch.kernel, launch.arguments.size());
    for (size_t i = 0; i < pointees.size(); ++i) {
        if (pointees[i] == Pointee::Map) {
            TensorMapBits map;
            std::memcpy(static_cast<void*>(&map), launch.arguments[i], sizeof map);
            if (map.magic == TensorMapBits::Magic) places.push_back({map.base, type_of(map.element)});
        } else if (pointees[i] != Pointee::Value) {
            places.push_back({*static_cast<const uintptr_t*>(launch.arguments[i]), pointees[i]});
        }
    }
    return places;
}

/// What the elements of the memory are; Other if that is not known, or not one.
Pointee type_in(const Memory& memory, const std::vector<Typed>& places) {
    std::optional<Pointee> type;
    for (const Typed& place : places) {
        if (place.address - memory.base >= memory.bytes) continue;
        if (type && *type != place.type) return Pointee::Other;
        type = place.type;
    }
    return type.value_or(Pointee::Other);
}

/// Who wrote the element in this launch, if anyone did.
std::optional<Incident::Other> writer_of(Memory& memory, size_t offset) {
    auto cell_in = [&](Cells* levels, int level) -> Cell& {
        return levels[level].cells.data()[offset / bytes_at(level)];
    };
    if (!memory.is_tracked()) return std::nullopt;
    int level = level_of(cell_in(memory.levels, 0));
    const Cell& cell = cell_in(memory.levels, level);
    if (cell.blocks.write & HasAtomics) {
        const Cell& atomics = cell_in(memory.atomics, level);
        return Incident::Other{AccessKind::Atomic, thread_of(atomics.read), atomics.blocks.read, site_of(atomics.read)};
    }
    if (cell.blocks.write == 0 || cell.write >= NeverWritten || cell.write == 0) return std::nullopt;
    return Incident::Other{AccessKind::Write, thread_of(cell.write), cell.blocks.write, site_of(cell.write)};
}

struct Found {
    Memory* memory;
    size_t offset, bytes;
    Incident::Other writer;
};

}  // namespace

/// Neighbouring seeds have integers, and integers of one bit, of their own: what is computed of them differs. They are
/// no index of anything, and so small that sums of some do not overflow.
emulated::Unwritten unwritten_of(uint64_t seed) {
    Unwritten result;
    if (seed % 4 == 3) result.float_bits = seed % 8 == 3 ? 0x7f800000 : 0xff800000;
    const uint32_t low = uint32_t(Random(seed).next() & 0xfffffe);
    result.integer_bits = seed % 2 == 1 ? 0x01000001 | low : 0xfe000000 | low;
    return result;
}

/// An input that holds such numbers explains them: then nothing is said.
std::optional<Incident> find_unwritten(Core& core) {
    if (core.module.unwritten()->float_bits != Unwritten::FloatBits) return std::nullopt;
    const std::vector<Typed> places = typed_places(core.module, core.launch);
    std::optional<Found> first;
    for (Memory& memory : core.memories.all()) {
        if (memory.shared) continue;
        const Pointee type = type_in(memory, places);
        if (type == Pointee::Other) continue;
        for (auto at = find_element(memory, type, 0); at; at = find_element(memory, type, *at + 1)) {
            const size_t offset = *at * bytes_of(type);
            auto writer = writer_of(memory, offset);
            if (!writer && memory.initialised) return std::nullopt;
            if (writer && !first) first = Found{&memory, offset, bytes_of(type), *writer};
        }
    }
    if (!first) return std::nullopt;
    Incident incident;
    incident.kind = Finding::Kind::Uninitialised;
    incident.thread = first->writer.thread;
    incident.block = first->writer.block;
    incident.site = first->writer.site;
    incident.memory = first->memory;
    incident.offset = first->offset;
    incident.bytes = first->bytes;
    incident.access = first->writer.access;
    return incident;
}

}  // namespace tw::emulator
