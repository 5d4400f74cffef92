#!/usr/bin/env bats
# What make finds on a machine that lacks some of it.

load helpers

@test "make takes OpenBLAS where oneDNN's header is not there" {
	make -C "$TOP" -n B="$T/bin" O="$T/build" NVCC= CC="cc -nostdinc" "$T/bin/mt-stream" >"$T/out"
	grep -q -e "-o $T/bin/mt-stream .*-lopenblas" "$T/out"
	make -C "$TOP" -n B="$T/bin" O="$T/build" NVCC= CC="cc -isystem $T/oneapi" "$T/bin/mt-stream" >"$T/out"
	if [ -e /usr/include/dnnl.h ]; then grep -q -e "-o $T/bin/mt-stream .*-ldnnl" "$T/out"; fi
}
