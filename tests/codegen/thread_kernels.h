// Kernels in thread IR, built by hand as the front half would leave them: before hoisting, barriers and narrowing.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

Buffer make_buffer(const std::string& name, Type type, Memory memory, const std::vector<Expr>& shape);
Expr load(const Buffer& buffer, const std::vector<Expr>& indices);
ThreadStmt store(const Buffer& buffer, const std::vector<Expr>& indices, const Expr& value, int step = -1);
ThreadStmt wide(int width, const Access& to, const Access& from, int step = -1);
ThreadStmt loop(const Expr& variable, const Expr& extent, std::vector<ThreadStmt> body);
ThreadStmt unrolled(const Expr& variable, const Expr& extent, std::vector<ThreadStmt> body);
ThreadStmt only_if(const Expr& condition, std::vector<ThreadStmt> body);
ThreadStmt let(const Expr& variable, const Expr& value);
ThreadStmt declare(const Buffer& buffer);
ThreadStmt comment(const std::string& text, int step = -1);
ThreadStmt in_order(std::vector<ThreadStmt> stmts);

/// No arguments, `threads` threads, block variables block_x, block_y and block_z, one block.
ThreadKernel empty_kernel(const std::string& name, int threads);
void add_argument(ThreadKernel& kernel, const Buffer& buffer, bool written);

/// b[i] = a[i] for i < n, a named size.
ThreadKernel copy_kernel(int64_t largest_n);
/// b[j, i] = a[i, j] through 32 x 33 shared elements a block.
ThreadKernel transpose_kernel();
/// c = alpha * a b, 512 x 512 x 256, a tile of 64 x 64 a block, 4 x 4 a thread.
ThreadKernel sgemm_kernel();
/// y = softmax(x) over rows of 1000 elements in bf16, a block of 128 threads a row.
ThreadKernel softmax_kernel();

/// hoist_invariants, insert_barriers, narrow_indices, verified in between.
ThreadKernel finished(const ThreadKernel& kernel);

}  // namespace tw::codegen
