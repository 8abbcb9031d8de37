//: pack_register needs vector
/// Elements of 4 bytes together as one register, the first lowest.
template <class T>
__device__ inline unsigned pack_register(const T* elements) {
    if constexpr (sizeof(T) == 1) {  // halves that conversions have made, no bytes
        unsigned short halves[2];
        memcpy(&halves[0], elements, 2);
        memcpy(&halves[1], elements + 2, 2);
        return halves[0] | (unsigned)halves[1] << 16;
    } else {
        Vector<4 / sizeof(T), T> vector;
#pragma unroll
        for (int i = 0; i < 4 / (int)sizeof(T); ++i) vector.elements[i] = elements[i];
        return reinterpret_cast<const unsigned&>(vector);
    }
}

//: pack_registers needs pack_register
/// The same of as many registers, one after another.
template <int count, class T>
__device__ inline void pack_registers(unsigned* words, const T* elements) {
#pragma unroll
    for (int i = 0; i < count; ++i) words[i] = pack_register(elements + i * (4 / (int)sizeof(T)));
}

//: unpack_register needs vector
/// The elements of 4 bytes that pack_register puts together.
template <class T>
__device__ inline void unpack_register(T* elements, unsigned bits) {
    const Vector<4 / sizeof(T), T> vector = reinterpret_cast<const Vector<4 / sizeof(T), T>&>(bits);
#pragma unroll
    for (int i = 0; i < 4 / (int)sizeof(T); ++i) elements[i] = vector.elements[i];
}

//: ldmatrix needs shared_address unpack_register
/// `count` matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8, and gets the 4 bytes
/// l % 4 of row l / 4 of each.
template <int count, class T>
__device__ inline void ldmatrix(T* registers, const T* row) {
    unsigned bits[count];
    if constexpr (count == 1)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                     : "=r"(bits[0])
                     : "r"(shared_address(row))
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(bits[0]), "=r"(bits[1])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                     : "r"(shared_address(row))
                     : "memory");
#pragma unroll
    for (int i = 0; i < count; ++i) unpack_register(registers + i * (4 / (int)sizeof(T)), bits[i]);
}

//: ldmatrix_trans needs shared_address unpack_register
/// The same for elements of 2 bytes, but lane l gets element l / 4 of the rows 2 * (l % 4) and the next.
template <int count, class T>
__device__ inline void ldmatrix_trans(T* registers, const T* row) {
    static_assert(sizeof(T) == 2, "ldmatrix_trans moves elements of 2 bytes");
    unsigned bits[count];
    if constexpr (count == 1)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                     : "=r"(bits[0])
                     : "r"(shared_address(row))
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(bits[0]), "=r"(bits[1])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                     : "r"(shared_address(row))
                     : "memory");
#pragma unroll
    for (int i = 0; i < count; ++i) unpack_register(registers + i * 2, bits[i]);
}

//: stmatrix needs shared_address pack_register
/// The inverse of ldmatrix; sm_90 and later.
template <int count, class T>
__device__ inline void stmatrix(T* row, const T* registers) {
    unsigned bits[count];
#pragma unroll
    for (int i = 0; i < count; ++i) bits[i] = pack_register(registers + i * (4 / (int)sizeof(T)));
    if constexpr (count == 1)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0])
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
                     : "memory");
}

//: stmatrix_trans needs shared_address pack_register
/// The inverse of ldmatrix_trans; sm_90 and later.
template <int count, class T>
__device__ inline void stmatrix_trans(T* row, const T* registers) {
    static_assert(sizeof(T) == 2, "stmatrix_trans moves elements of 2 bytes");
    unsigned bits[count];
#pragma unroll
    for (int i = 0; i < count; ++i) bits[i] = pack_register(registers + i * 2);
    if constexpr (count == 1)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0])
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
                     : "memory");
}
