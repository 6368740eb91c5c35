// The text of wgmma for every n: the list of its n / 2 accumulators, as operands and by their names, and the numbers of
// the seven operands after them.
//
// MLC_WGMMA_SHAPES(X) is X(n, seven numbers) for n = 8, 16, .. 256. MLC_OPERANDS_n(four, d) lists four(d, i), which are
// the operands d[i] to d[i + 3]; MLC_NAMES_n is "%0, %1, ..".
#pragma once

#define MLC_OPERANDS_8(four, d) four(d, 0)
#define MLC_OPERANDS_16(four, d) MLC_OPERANDS_8(four, d), four(d, 4)
#define MLC_OPERANDS_24(four, d) MLC_OPERANDS_16(four, d), four(d, 8)
#define MLC_OPERANDS_32(four, d) MLC_OPERANDS_24(four, d), four(d, 12)
#define MLC_OPERANDS_40(four, d) MLC_OPERANDS_32(four, d), four(d, 16)
#define MLC_OPERANDS_48(four, d) MLC_OPERANDS_40(four, d), four(d, 20)
#define MLC_OPERANDS_56(four, d) MLC_OPERANDS_48(four, d), four(d, 24)
#define MLC_OPERANDS_64(four, d) MLC_OPERANDS_56(four, d), four(d, 28)
#define MLC_OPERANDS_72(four, d) MLC_OPERANDS_64(four, d), four(d, 32)
#define MLC_OPERANDS_80(four, d) MLC_OPERANDS_72(four, d), four(d, 36)
#define MLC_OPERANDS_88(four, d) MLC_OPERANDS_80(four, d), four(d, 40)
#define MLC_OPERANDS_96(four, d) MLC_OPERANDS_88(four, d), four(d, 44)
#define MLC_OPERANDS_104(four, d) MLC_OPERANDS_96(four, d), four(d, 48)
#define MLC_OPERANDS_112(four, d) MLC_OPERANDS_104(four, d), four(d, 52)
#define MLC_OPERANDS_120(four, d) MLC_OPERANDS_112(four, d), four(d, 56)
#define MLC_OPERANDS_128(four, d) MLC_OPERANDS_120(four, d), four(d, 60)
#define MLC_OPERANDS_136(four, d) MLC_OPERANDS_128(four, d), four(d, 64)
#define MLC_OPERANDS_144(four, d) MLC_OPERANDS_136(four, d), four(d, 68)
#define MLC_OPERANDS_152(four, d) MLC_OPERANDS_144(four, d), four(d, 72)
#define MLC_OPERANDS_160(four, d) MLC_OPERANDS_152(four, d), four(d, 76)
#define MLC_OPERANDS_168(four, d) MLC_OPERANDS_160(four, d), four(d, 80)
#define MLC_OPERANDS_176(four, d) MLC_OPERANDS_168(four, d), four(d, 84)
#define MLC_OPERANDS_184(four, d) MLC_OPERANDS_176(four, d), four(d, 88)
#define MLC_OPERANDS_192(four, d) MLC_OPERANDS_184(four, d), four(d, 92)
#define MLC_OPERANDS_200(four, d) MLC_OPERANDS_192(four, d), four(d, 96)
#define MLC_OPERANDS_208(four, d) MLC_OPERANDS_200(four, d), four(d, 100)
#define MLC_OPERANDS_216(four, d) MLC_OPERANDS_208(four, d), four(d, 104)
#define MLC_OPERANDS_224(four, d) MLC_OPERANDS_216(four, d), four(d, 108)
#define MLC_OPERANDS_232(four, d) MLC_OPERANDS_224(four, d), four(d, 112)
#define MLC_OPERANDS_240(four, d) MLC_OPERANDS_232(four, d), four(d, 116)
#define MLC_OPERANDS_248(four, d) MLC_OPERANDS_240(four, d), four(d, 120)
#define MLC_OPERANDS_256(four, d) MLC_OPERANDS_248(four, d), four(d, 124)

#define MLC_NAMES_8 "%0, %1, %2, %3"
#define MLC_NAMES_16 MLC_NAMES_8 ", %4, %5, %6, %7"
#define MLC_NAMES_24 MLC_NAMES_16 ", %8, %9, %10, %11"
#define MLC_NAMES_32 MLC_NAMES_24 ", %12, %13, %14, %15"
#define MLC_NAMES_40 MLC_NAMES_32 ", %16, %17, %18, %19"
#define MLC_NAMES_48 MLC_NAMES_40 ", %20, %21, %22, %23"
#define MLC_NAMES_56 MLC_NAMES_48 ", %24, %25, %26, %27"
#define MLC_NAMES_64 MLC_NAMES_56 ", %28, %29, %30, %31"
#define MLC_NAMES_72 MLC_NAMES_64 ", %32, %33, %34, %35"
#define MLC_NAMES_80 MLC_NAMES_72 ", %36, %37, %38, %39"
#define MLC_NAMES_88 MLC_NAMES_80 ", %40, %41, %42, %43"
#define MLC_NAMES_96 MLC_NAMES_88 ", %44, %45, %46, %47"
#define MLC_NAMES_104 MLC_NAMES_96 ", %48, %49, %50, %51"
#define MLC_NAMES_112 MLC_NAMES_104 ", %52, %53, %54, %55"
#define MLC_NAMES_120 MLC_NAMES_112 ", %56, %57, %58, %59"
#define MLC_NAMES_128 MLC_NAMES_120 ", %60, %61, %62, %63"
#define MLC_NAMES_136 MLC_NAMES_128 ", %64, %65, %66, %67"
#define MLC_NAMES_144 MLC_NAMES_136 ", %68, %69, %70, %71"
#define MLC_NAMES_152 MLC_NAMES_144 ", %72, %73, %74, %75"
#define MLC_NAMES_160 MLC_NAMES_152 ", %76, %77, %78, %79"
#define MLC_NAMES_168 MLC_NAMES_160 ", %80, %81, %82, %83"
#define MLC_NAMES_176 MLC_NAMES_168 ", %84, %85, %86, %87"
#define MLC_NAMES_184 MLC_NAMES_176 ", %88, %89, %90, %91"
#define MLC_NAMES_192 MLC_NAMES_184 ", %92, %93, %94, %95"
#define MLC_NAMES_200 MLC_NAMES_192 ", %96, %97, %98, %99"
#define MLC_NAMES_208 MLC_NAMES_200 ", %100, %101, %102, %103"
#define MLC_NAMES_216 MLC_NAMES_208 ", %104, %105, %106, %107"
#define MLC_NAMES_224 MLC_NAMES_216 ", %108, %109, %110, %111"
#define MLC_NAMES_232 MLC_NAMES_224 ", %112, %113, %114, %115"
#define MLC_NAMES_240 MLC_NAMES_232 ", %116, %117, %118, %119"
#define MLC_NAMES_248 MLC_NAMES_240 ", %120, %121, %122, %123"
#define MLC_NAMES_256 MLC_NAMES_248 ", %124, %125, %126, %127"

#define MLC_WGMMA_SHAPES(X) \
    X(8, 4, 5, 6, 7, 8, 9, 10) \
    X(16, 8, 9, 10, 11, 12, 13, 14) \
    X(24, 12, 13, 14, 15, 16, 17, 18) \
    X(32, 16, 17, 18, 19, 20, 21, 22) \
    X(40, 20, 21, 22, 23, 24, 25, 26) \
    X(48, 24, 25, 26, 27, 28, 29, 30) \
    X(56, 28, 29, 30, 31, 32, 33, 34) \
    X(64, 32, 33, 34, 35, 36, 37, 38) \
    X(72, 36, 37, 38, 39, 40, 41, 42) \
    X(80, 40, 41, 42, 43, 44, 45, 46) \
    X(88, 44, 45, 46, 47, 48, 49, 50) \
    X(96, 48, 49, 50, 51, 52, 53, 54) \
    X(104, 52, 53, 54, 55, 56, 57, 58) \
    X(112, 56, 57, 58, 59, 60, 61, 62) \
    X(120, 60, 61, 62, 63, 64, 65, 66) \
    X(128, 64, 65, 66, 67, 68, 69, 70) \
    X(136, 68, 69, 70, 71, 72, 73, 74) \
    X(144, 72, 73, 74, 75, 76, 77, 78) \
    X(152, 76, 77, 78, 79, 80, 81, 82) \
    X(160, 80, 81, 82, 83, 84, 85, 86) \
    X(168, 84, 85, 86, 87, 88, 89, 90) \
    X(176, 88, 89, 90, 91, 92, 93, 94) \
    X(184, 92, 93, 94, 95, 96, 97, 98) \
    X(192, 96, 97, 98, 99, 100, 101, 102) \
    X(200, 100, 101, 102, 103, 104, 105, 106) \
    X(208, 104, 105, 106, 107, 108, 109, 110) \
    X(216, 108, 109, 110, 111, 112, 113, 114) \
    X(224, 112, 113, 114, 115, 116, 117, 118) \
    X(232, 116, 117, 118, 119, 120, 121, 122) \
    X(240, 120, 121, 122, 123, 124, 125, 126) \
    X(248, 124, 125, 126, 127, 128, 129, 130) \
    X(256, 128, 129, 130, 131, 132, 133, 134)
