#include "thread_kernels.h"

#include <cmath>

#include "codegen/barriers/insert_barriers.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {

Buffer make_buffer(const std::string& name, Type type, Memory memory, const std::vector<Expr>& shape) {
    BufferNode node{name, type, memory, shape, {}};
    return std::make_shared<const BufferNode>(node);
}
Expr load(const Buffer& buffer, const std::vector<Expr>& indices) {
    return make_expr(buffer->type, Load{buffer, indices});
}
ThreadStmt store(const Buffer& buffer, const std::vector<Expr>& indices, const Expr& value, int step) {
    return make_thread(ThreadStore{{buffer, indices}, value}, step);
}
ThreadStmt wide(int width, const Access& to, const Access& from, int step) {
    return make_thread(ThreadWide{width, to, from}, step);
}
ThreadStmt in_order(std::vector<ThreadStmt> stmts) { return make_thread(ThreadBlock{std::move(stmts)}); }
ThreadStmt loop(const Expr& variable, const Expr& extent, std::vector<ThreadStmt> body) {
    return make_thread(ThreadLoop{variable, extent, false, in_order(std::move(body))});
}
ThreadStmt unrolled(const Expr& variable, const Expr& extent, std::vector<ThreadStmt> body) {
    return make_thread(ThreadLoop{variable, extent, true, in_order(std::move(body))});
}
ThreadStmt only_if(const Expr& condition, std::vector<ThreadStmt> body) {
    return make_thread(ThreadIf{condition, in_order(std::move(body))});
}
ThreadStmt let(const Expr& variable, const Expr& value) { return make_thread(ThreadLet{variable, value}); }
ThreadStmt declare(const Buffer& buffer) { return make_thread(ThreadDeclare{buffer}); }
ThreadStmt comment(const std::string& text, int step) { return make_thread(ThreadComment{text}, step); }

ThreadKernel empty_kernel(const std::string& name, int threads) {
    ThreadKernel kernel;
    kernel.name = name;
    kernel.threads = threads;
    kernel.thread = index_variable("thread", 0, threads - 1);
    kernel.block = {index_variable("block_x"), index_variable("block_y"), index_variable("block_z")};
    kernel.grid = {1, 1, 1};
    kernel.body = in_order({});
    return kernel;
}

void add_argument(ThreadKernel& kernel, const Buffer& buffer, bool written) {
    kernel.arguments.push_back(buffer);
    kernel.written.push_back(written);
}

ThreadKernel copy_kernel(int64_t largest_n) {
    ThreadKernel kernel = empty_kernel("copy", 256);
    Expr n = size("n", {1, largest_n, 1});
    kernel.sizes = {n};
    kernel.header = {"b[i] = a[i]", "schedule: 256 elements a block"};
    kernel.grid[0] = (n + 255) / 256;
    Buffer a = make_buffer("a", f32, Memory::Global, {n}), b = make_buffer("b", f32, Memory::Global, {n});
    add_argument(kernel, a, false);
    add_argument(kernel, b, true);
    Expr i = index_variable("i");
    kernel.body =
        in_order({let(i, kernel.block[0] * 256 + kernel.thread), only_if(i < n, {store(b, {i}, load(a, {i}))})});
    return kernel;
}

ThreadKernel transpose_kernel() {
    ThreadKernel kernel = empty_kernel("transpose", 256);
    const int64_t rows = 1024, columns = 2048;
    kernel.header = {"b[j, i] = a[i, j]        i < 1024, j < 2048"};
    kernel.grid = {columns / 32, rows / 32, 1};
    Buffer a = make_buffer("a", f32, Memory::Global, {rows, columns}),
           b = make_buffer("b", f32, Memory::Global, {columns, rows});
    Buffer tile = make_buffer("tile", f32, Memory::Shared, {32, 33});
    add_argument(kernel, a, false);
    add_argument(kernel, b, true);
    kernel.shared = {tile};
    Expr t = kernel.thread, x = kernel.block[0], y = kernel.block[1];
    Expr v = index_variable("v", 0, 3), w = index_variable("w", 0, 3);
    kernel.body = in_order({
        comment("tile: rows of a", 2),
        unrolled(v, 4,
                 {store(tile, {t / 32 + v * 8, t % 32},
                        load(a, {(y * 32 + t / 32 + v * 8) * columns + x * 32 + t % 32}), 2)}),
        comment("b: columns of the tile", 3),
        unrolled(
            w, 4,
            {store(b, {(x * 32 + t / 32 + w * 8) * rows + y * 32 + t % 32}, load(tile, {t % 32, t / 32 + w * 8}), 3)}),
    });
    return kernel;
}

ThreadKernel sgemm_kernel() {
    ThreadKernel kernel = empty_kernel("sgemm", 256);
    const int64_t m = 512, n = 512, k = 256;
    kernel.header = {"c[i, j] = alpha * sum_k a[i, k] * b[k, j]        512 x 512 x 256",
                     "schedule: tile 64 x 64 x 16, 4 x 4 a thread"};
    kernel.grid = {n / 64, m / 64, 1};
    Expr alpha = scalar("alpha", f32);
    kernel.scalars = {alpha};
    Buffer a = make_buffer("a", f32, Memory::Global, {m, k}), b = make_buffer("b", f32, Memory::Global, {k, n}),
           c = make_buffer("c", f32, Memory::Global, {m, n});
    Buffer as = make_buffer("a_tile", f32, Memory::Shared, {64, 20}),
           bs = make_buffer("b_tile", f32, Memory::Shared, {16, 64});
    Buffer sum = make_buffer("sum", f32, Memory::Registers, {4, 4});
    Buffer column = make_buffer("a_column", f32, Memory::Registers, {4}),
           row = make_buffer("b_row", f32, Memory::Registers, {4});
    Buffer out = make_buffer("c_row", f32, Memory::Registers, {4});
    add_argument(kernel, a, false);
    add_argument(kernel, b, false);
    add_argument(kernel, c, true);
    kernel.shared = {as, bs};
    Expr t = kernel.thread, x = kernel.block[0], y = kernel.block[1];
    auto axis = [](const char* name, int64_t extent) { return index_variable(name, 0, extent - 1); };
    Expr ti = axis("ti", 16), tj = axis("tj", 16), ko = axis("ko", 16), ki = axis("ki", 16);
    Expr zi = axis("i", 4), zj = axis("j", 4), li = axis("i", 4), i = axis("i", 4), j = axis("j", 4), ei = axis("i", 4),
         ej = axis("j", 4);
    kernel.body = in_order({
        let(ti, t / 16),
        let(tj, t % 16),
        declare(sum),
        unrolled(zi, 4, {unrolled(zj, 4, {store(sum, {zi, zj}, constant(f32, 0.0))})}),
        loop(ko, k / 16,
             {
                 comment("a in shared", 5),
                 wide(4, {as, {t / 4, t % 4 * 4}}, {a, {(y * 64 + t / 4) * k + ko * 16 + t % 4 * 4}}, 5),
                 comment("b in shared", 6),
                 wide(4, {bs, {t / 16, t % 16 * 4}}, {b, {(ko * 16 + t / 16) * n + x * 64 + t % 16 * 4}}, 6),
                 comment("accumulate"),
                 loop(ki, 16,
                      {
                          declare(column),
                          unrolled(li, 4, {store(column, {li}, load(as, {ti * 4 + li, ki}))}),
                          declare(row),
                          wide(4, {row, {0}}, {bs, {ki, tj * 4}}),
                          unrolled(i, 4,
                                   {unrolled(j, 4,
                                             {store(sum, {i, j},
                                                    fma(load(column, {i}), load(row, {j}), load(sum, {i, j})))})}),
                      }),
             }),
        comment("c"),
        unrolled(ei, 4,
                 {
                     declare(out),
                     unrolled(ej, 4, {store(out, {ej}, alpha * load(sum, {ei, ej}))}),
                     wide(4, {c, {(y * 64 + ti * 4 + ei) * n + x * 64 + tj * 4}}, {out, {0}}),
                 }),
    });
    return kernel;
}

ThreadKernel softmax_kernel() {
    ThreadKernel kernel = empty_kernel("softmax", 128);
    const int64_t rows = 4096, columns = 1000;
    kernel.header = {"y[i, j] = exp(x[i, j] - max_j x[i, j]) / sum_j exp(x[i, j] - max_j x[i, j])        4096 x 1000"};
    kernel.grid[0] = rows;
    Buffer x = make_buffer("x", bf16, Memory::Global, {rows, columns}),
           y = make_buffer("y", bf16, Memory::Global, {rows, columns});
    add_argument(kernel, x, false);
    add_argument(kernel, y, true);
    Buffer parts = make_buffer("parts", f32, Memory::Shared, {128});
    kernel.shared = {parts};
    auto number = [](const char* name) { return make_buffer(name, f32, Memory::Registers, {}); };
    Buffer most = number("most"), total = number("total");
    Expr t = kernel.thread, block = kernel.block[0];
    auto each = [&](const char* name, const std::function<ThreadStmt(const Expr&)>& body) {
        Expr step = index_variable(name, 0, 7);
        return loop(step, 8, {only_if(step * 128 + t < columns, {body(block * columns + step * 128 + t)})});
    };
    auto combine = [&](const Buffer& result, const Expr& start, const std::function<Expr(Expr, Expr)>& join) {
        Expr part = index_variable("part", 0, 127);
        return in_order({store(parts, {t}, load(result, {})), store(result, {}, start),
                         loop(part, 128, {store(result, {}, join(load(result, {}), load(parts, {part})))})});
    };
    auto at = [&](const Expr& offset) { return cast(f32, load(x, {offset})); };
    kernel.body = in_order({
        declare(most),
        declare(total),
        comment("most: the row's maximum", 3),
        store(most, {}, constant(f32, -INFINITY)),
        each("step", [&](const Expr& e) { return store(most, {}, max(load(most, {}), at(e))); }),
        combine(most, constant(f32, -INFINITY), [](Expr a, Expr b) { return max(a, b); }),
        comment("total: the sum of exponentials", 4),
        store(total, {}, constant(f32, 0.0)),
        each("step", [&](const Expr& e) { return store(total, {}, load(total, {}) + exp(at(e) - load(most, {}))); }),
        combine(total, constant(f32, 0.0), [](Expr a, Expr b) { return a + b; }),
        comment("y", 5),
        each("step",
             [&](const Expr& e) { return store(y, {e}, cast(bf16, exp(at(e) - load(most, {})) / load(total, {}))); }),
    });
    return kernel;
}

ThreadKernel finished(const ThreadKernel& kernel) {
    auto checked = [](ThreadKernel k) {
        verify_thread_ir(k);
        return k;
    };
    return checked(narrow_indices(checked(insert_barriers(checked(hoist_invariants(checked(kernel)))))));
}

}  // namespace tw::codegen
