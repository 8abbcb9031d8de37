// Operations on matrices that the lanes of a warp carry out together: ldmatrix, stmatrix, mma.
#pragma once
#include <vector>

#include "runtime/emulator/units/wgmma.h"

namespace tw::emulator {

/// What one lane brings along.
struct MatrixCall {
    enum class Operation { None, Load, Store, Multiply } operation = Operation::None;
    int count = 0;  // of matrices to load or store
    bool transposed = false;
    int k = 0;  // of a product
    bool negated = false;
    emulated::MatrixType a_type = emulated::MatrixType::bf16, b_type = emulated::MatrixType::bf16;
    unsigned char* row = nullptr;  // in shared memory, of lanes below 8 * count
    void* registers = nullptr;     // to load or store; d of a product
    const void *a = nullptr, *b = nullptr;

    /// Whether both are the same instruction.
    bool agrees_with(const MatrixCall& other) const {
        return operation == other.operation && count == other.count && transposed == other.transposed && k == other.k &&
               negated == other.negated && a_type == other.a_type && b_type == other.b_type;
    }
    const char* name() const;
};

class WarpMatrix {
public:
    WarpMatrix(Core& core, ThreadBarriers& barriers, Wgmma& wgmma)
        : core_(core), threads_(core.threads), barriers_(barriers), wgmma_(wgmma) {}
    void begin() { calls_.assign(threads_.count(), {}); }  // a cluster

    /// What hooks do for the running thread.
    void operate(const MatrixCall& call, Stamp site);

private:
    void check_row(const MatrixCall& call, Stamp site);
    void carry_out(const MatrixCall& call, Stamp site);
    void load_or_store(const MatrixCall* lanes, const MatrixCall& call, Stamp site);

    Core& core_;
    Threads& threads_;
    ThreadBarriers& barriers_;
    Wgmma& wgmma_;
    std::vector<MatrixCall> calls_;  // by thread
};

}  // namespace tw::emulator
