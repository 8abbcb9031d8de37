#include "verify/symbolic_matrix.h"

#include <algorithm>

#include "dsl/atoms.h"
#include "support/error.h"

namespace tw::fuzz {
namespace {

constexpr size_t lanes = 32, rows_of_matrix = 8, row_bytes = 16;

class WarpRun {
public:
    WarpRun(Terms& terms, SymbolicMemory& memory, const std::vector<WarpArgument>& arguments)
        : terms_(terms), memory_(memory), arguments_(arguments) {}

    /// Lane 8 * i + r says where row r of matrix i stands.
    void move_matrices(size_t count, bool transposed, bool loads) {
        size_t rows = loads ? 1 : 0, registers = 1 - rows;
        size_t each = row_bytes / static_cast<size_t>(bytes_of(arguments_[rows].buffer->type)) / 4;
        struct Move {
            size_t in_rows, along, lane, in_register;
            Term value;
        };
        std::vector<Move> moves;
        for (size_t lane = 0; lane < lanes; ++lane)
            for (size_t i = 0; i < count; ++i)
                for (size_t p = 0; p < each; ++p) {
                    size_t along = lane % 4 * each + p, across = lane / 4;
                    if (transposed) std::swap(along, across);
                    moves.push_back({rows_of_matrix * i + across, along, lane, i * each + p, {}});
                }
        for (Move& m : moves) m.value = loads ? read(rows, m.in_rows, m.along) : read(registers, m.lane, m.in_register);
        for (const Move& m : moves)
            loads ? write(registers, m.lane, m.in_register, m.value) : write(rows, m.in_rows, m.along, m.value);
    }

    /// Word i of a lane goes to the i-th of its neighbours.
    void transpose_lanes(size_t among) {
        std::vector<Term> values;
        const size_t count = 2 * among;
        for (size_t lane = 0; lane < lanes; ++lane)
            for (size_t i = 0; i < count; ++i) values.push_back(read(0, lane, i));
        for (size_t lane = 0; lane < lanes; ++lane)
            for (size_t i = 0; i < count; ++i) {
                const size_t from = lane / among * among + i / 2;
                write(0, lane, i, values[from * count + lane % among * 2 + i % 2]);
            }
    }

    /// The parts that each lane holds are those of dsl/atoms.h; terms are added one after another.
    void multiply(const Atom& atom, bool negative) {
        auto v = static_cast<size_t>(4 / bytes_of(atom.operand)), k = static_cast<size_t>(atom.k);
        for (size_t lane = 0; lane < lanes; ++lane)
            for (size_t h = 0; h < 2; ++h)
                for (size_t p = 0; p < 2; ++p) {
                    size_t row = lane / 4, column = lane % 4 * 2 + p;
                    Term sum = read(0, lane, h * 2 + p);
                    for (size_t kk = 0; kk < k; ++kk) {
                        size_t q = kk / (4 * v), t = kk / v % 4;
                        Term a = factor(atom, 1, row * 4 + t, (q * 2 + h) * v + kk % v);
                        Term b = factor(atom, 2, column * 4 + t, q * v + kk % v);
                        if (negative) b = terms_.unary(UnaryOp::Negate, atom.accumulator, b);
                        sum = plus_product(atom.accumulator, sum, a, b);
                    }
                    write(0, lane, h * 2 + p, sum);
                }
    }

private:
    /// As the unit takes it: f32 without its last bits.
    Term factor(const Atom& atom, size_t argument, size_t lane, size_t element) {
        Term value = terms_.cast(atom.accumulator, read(argument, lane, element));
        const bool truncates = arguments_[argument].buffer->type == f32;
        return truncates ? terms_.unary(UnaryOp::TruncateTf32, f32, value) : value;
    }
    Term plus_product(Type type, Term sum, Term a, Term b) {
        if (is_float(type)) return terms_.fma(type, a, b, sum);
        return terms_.binary(BinaryOp::Add, type, sum, terms_.binary(BinaryOp::Mul, type, a, b));
    }
    Term read(size_t argument, size_t lane, size_t element) {
        const WarpArgument& from = arguments_[argument];
        return memory_.read(from.buffer, {from.first[lane] + element})[0];
    }
    void write(size_t argument, size_t lane, size_t element, Term value) {
        const WarpArgument& to = arguments_[argument];
        memory_.write(to.buffer, {to.first[lane] + element}, {value});
    }

    Terms& terms_;
    SymbolicMemory& memory_;
    const std::vector<WarpArgument>& arguments_;
};

}  // namespace

void run_on_warp(Terms& terms, SymbolicMemory& memory, const codegen::Instruction& instruction,
                 const std::vector<WarpArgument>& arguments) {
    using namespace codegen;  // NOLINT: instructions
    WarpRun warp(terms, memory, arguments);
    if (auto product = std::get_if<Mma>(&instruction)) return warp.multiply(*product->atom, product->negative);
    if (auto load = std::get_if<LdMatrix>(&instruction))
        return warp.move_matrices(static_cast<size_t>(load->matrices), load->transposed, true);
    if (auto exchange = std::get_if<TransposeLanes>(&instruction))
        return warp.transpose_lanes(static_cast<size_t>(exchange->lanes));
    auto store = std::get_if<StMatrix>(&instruction);
    internal_check(store, "{} is no instruction for a warp's matrices", vocabulary_call(instruction).entry);
    warp.move_matrices(static_cast<size_t>(store->matrices), store->transposed, false);
}

}  // namespace tw::fuzz
