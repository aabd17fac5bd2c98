# cython: language_level=3
"""CRC-32 of bodies for the compiled parts, without an object and a call of Python for each.

On x86-64 with carry-less multiplication the sum is computed here, by folding: four lanes of 16
bytes are multiplied by x^n modulo the polynomial until one is left, which a last multiplication
(Barrett) makes 32 bits; with AVX-512 there are 16 lanes as long as 256 bytes are. (V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ", has the method and the constants of this polynomial.) What folding leaves, and short
bodies, go through tables, eight bytes at a time. Other processors ask the function that Python
uses. `is_fast_crc` says which it is; a test compares both.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #ifndef TWINLOG_CRC
    #define TWINLOG_CRC
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define TWINLOG_FOLDED 64  /* From here on folding is worth its beginning and its end. */
    #define TWINLOG_WIDE 512   /* And from here on folding by wide registers. */

    static uint32_t twinlog_crc_tables[8][256];
    static int twinlog_crc_is_fast = 0, twinlog_crc_is_wide = 0;

    static void __attribute__((constructor)) twinlog_crc_prepare(void) {
        for (uint32_t number = 0; number < 256; number++) {
            uint32_t value = number;
            for (int bit = 0; bit < 8; bit++)
                value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0);
            twinlog_crc_tables[0][number] = value;
        }
        for (int table = 1; table < 8; table++)
            for (int number = 0; number < 256; number++) {
                uint32_t value = twinlog_crc_tables[table - 1][number];
                twinlog_crc_tables[table][number] =
                    (value >> 8) ^ twinlog_crc_tables[0][value & 0xFF];
            }
        __builtin_cpu_init();
        twinlog_crc_is_fast =
            __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
        twinlog_crc_is_wide = twinlog_crc_is_fast
            && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
    }

    static uint32_t twinlog_crc_by_table(const uint8_t *at, size_t size, uint32_t value) {
        uint64_t eight;
        for (; size >= 8; at += 8, size -= 8) {
            memcpy(&eight, at, 8);
            eight ^= value;
            value = twinlog_crc_tables[7][eight & 0xFF]
                ^ twinlog_crc_tables[6][eight >> 8 & 0xFF]
                ^ twinlog_crc_tables[5][eight >> 16 & 0xFF]
                ^ twinlog_crc_tables[4][eight >> 24 & 0xFF]
                ^ twinlog_crc_tables[3][eight >> 32 & 0xFF]
                ^ twinlog_crc_tables[2][eight >> 40 & 0xFF]
                ^ twinlog_crc_tables[1][eight >> 48 & 0xFF]
                ^ twinlog_crc_tables[0][eight >> 56];
        }
        for (; size; at++, size--)
            value = twinlog_crc_tables[0][(value ^ *at) & 0xFF] ^ (value >> 8);
        return value;
    }

    #define TWINLOG_LOAD(at) _mm_loadu_si128((const __m128i *) (at))
    #define TWINLOG_FOLD(lane, factor, next) _mm_xor_si128(next, _mm_xor_si128( \\
        _mm_clmulepi64_si128(lane, factor, 0x00), _mm_clmulepi64_si128(lane, factor, 0x11)))

    #define TWINLOG_LOAD_WIDE(at) _mm512_loadu_si512((const void *) (at))
    #define TWINLOG_FOLD_WIDE(lane, factor, next) _mm512_ternarylogic_epi64( \\
        _mm512_clmulepi64_epi128(lane, factor, 0x00), \\
        _mm512_clmulepi64_epi128(lane, factor, 0x11), next, 0x96)

    /* Folds what is a multiple of 256 into four lanes; `size` is at least 256. */
    static void __attribute__((target("avx512f,vpclmulqdq")))
    twinlog_crc_wide(const uint8_t *at, size_t size, uint32_t value, uint8_t *lanes) {
        const __m512i by_256 = _mm512_set_epi64(
            0x01322d1430, 0x011542778a, 0x01322d1430, 0x011542778a,
            0x01322d1430, 0x011542778a, 0x01322d1430, 0x011542778a);
        const __m512i by_64 = _mm512_set_epi64(
            0x01c6e41596, 0x0154442bd4, 0x01c6e41596, 0x0154442bd4,
            0x01c6e41596, 0x0154442bd4, 0x01c6e41596, 0x0154442bd4);
        __m512i a = _mm512_xor_si512(
            TWINLOG_LOAD_WIDE(at), _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, value));
        __m512i b = TWINLOG_LOAD_WIDE(at + 64), c = TWINLOG_LOAD_WIDE(at + 128);
        __m512i d = TWINLOG_LOAD_WIDE(at + 192);
        for (at += 256, size -= 256; size >= 256; at += 256, size -= 256) {
            a = TWINLOG_FOLD_WIDE(a, by_256, TWINLOG_LOAD_WIDE(at));
            b = TWINLOG_FOLD_WIDE(b, by_256, TWINLOG_LOAD_WIDE(at + 64));
            c = TWINLOG_FOLD_WIDE(c, by_256, TWINLOG_LOAD_WIDE(at + 128));
            d = TWINLOG_FOLD_WIDE(d, by_256, TWINLOG_LOAD_WIDE(at + 192));
        }
        a = TWINLOG_FOLD_WIDE(a, by_64, b);
        a = TWINLOG_FOLD_WIDE(a, by_64, c);
        a = TWINLOG_FOLD_WIDE(a, by_64, d);
        _mm512_storeu_si512(lanes, a);
    }

    /* `size` is at least 64 and a multiple of 16. */
    static uint32_t __attribute__((target("pclmul,sse4.1")))
    twinlog_crc_folded(const uint8_t *at, size_t size, uint32_t value) {
        const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low = _mm_set_epi32(0, -1, 0, -1);
        uint8_t lanes[64];
        const uint8_t *first = at;
        size_t taken = 64;
        __m128i a, b, c, d, rest;
        if (twinlog_crc_is_wide && size >= TWINLOG_WIDE) {
            taken = size & ~(size_t) 255;
            twinlog_crc_wide(at, taken, value, lanes);
            first = lanes;
            value = 0;
        }
        a = _mm_xor_si128(TWINLOG_LOAD(first), _mm_cvtsi32_si128((int) value));
        b = TWINLOG_LOAD(first + 16);
        c = TWINLOG_LOAD(first + 32);
        d = TWINLOG_LOAD(first + 48);
        for (at += taken, size -= taken; size >= 64; at += 64, size -= 64) {
            a = TWINLOG_FOLD(a, by_64, TWINLOG_LOAD(at));
            b = TWINLOG_FOLD(b, by_64, TWINLOG_LOAD(at + 16));
            c = TWINLOG_FOLD(c, by_64, TWINLOG_LOAD(at + 32));
            d = TWINLOG_FOLD(d, by_64, TWINLOG_LOAD(at + 48));
        }
        a = TWINLOG_FOLD(a, by_16, b);
        a = TWINLOG_FOLD(a, by_16, c);
        a = TWINLOG_FOLD(a, by_16, d);
        for (; size >= 16; at += 16, size -= 16)
            a = TWINLOG_FOLD(a, by_16, TWINLOG_LOAD(at));
        /* 128 bits to 96, to 64, to 32. */
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
        rest = _mm_srli_si128(a, 4);
        a = _mm_xor_si128(rest, _mm_clmulepi64_si128(_mm_and_si128(a, low), by_8, 0x00));
        rest = _mm_clmulepi64_si128(_mm_and_si128(a, low), barrett, 0x10);
        rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low), barrett, 0x00);
        return (uint32_t) _mm_extract_epi32(_mm_xor_si128(a, rest), 1);
    }

    static uint32_t twinlog_crc(const char *data, size_t size) {
        const uint8_t *at = (const uint8_t *) data;
        uint32_t value = 0xFFFFFFFFu;
        if (size >= TWINLOG_FOLDED) {
            size_t folded = size & ~(size_t) 15;
            value = twinlog_crc_folded(at, folded, value);
            at += folded;
            size -= folded;
        }
        return ~twinlog_crc_by_table(at, size, value);
    }
    #else
    static const int twinlog_crc_is_fast = 0;
    static uint32_t twinlog_crc(const char *data, size_t size) {
        (void) data; (void) size;
        return 0;
    }
    #endif
    #endif
    """
    const bint is_fast_crc "twinlog_crc_is_fast"
    uint32_t fast_crc "twinlog_crc"(const char* data, size_t size) noexcept

cdef enum:
    COPIED_MAX = 4096        # Up to here a copy costs less than a view.


cdef inline uint32_t whole_crc(const char* at, Py_ssize_t size, object crc32) except? 7:
    """The CRC-32 of some bytes, by `crc32` where it is not computed here."""
    if is_fast_crc:
        return fast_crc(at, size)
    if size <= COPIED_MAX:
        return <uint32_t> crc32(PyBytes_FromStringAndSize(at, size))
    return <uint32_t> crc32(PyMemoryView_FromMemory(<char*> at, size, PyBUF_READ))
