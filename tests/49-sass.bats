#!/usr/bin/env bats
# The machine code of the cuda device's kernels, read without a GPU: tests/gpu/sass.

load helpers

SASS=$TOP/tests/gpu/sass

need_objects() { [ -f "$BUILD/mt-stream/cuda/rows.o" ] || skip "needs nvcc: kernels were not compiled"; }

# Run sass: its exit code in $CODE, its output in $T/out; skip if the disassembler is missing
sass() {
	CODE=0
	"$SASS" "$@" >"$T/out" 2>"$T/sass.err" || CODE=$?
	[ "$CODE" != 77 ] || skip "needs cuobjdump and nvdisasm (make deps)"
}

# bats test_tags=slow
@test "every memory-bound kernel loads and stores 128 bits at once and spills no registers" {
	need_objects
	sass "$BUILD/mt-stream/cuda" sm_90
	# make gpu-build compiles only for the installed GPU
	grep -q ' sm_90 ' "$T/out" || sass "$BUILD/mt-stream/cuda"
	grep -v '^ok' "$T/out" >&2 || true
	[ "$CODE" = 0 ]
	[ "$(grep -c '^ok' "$T/out")" -gt 40 ]
}

# bats test_tags=slow
@test "a kernel that stores 32 bits at a time and an unclassified kernel are reported" {
	need_objects
	need_cmd nvcc
	cat >"$T/k.cu" <<-'END'
		static __global__ void narrow_kernel(uint2 *dst, const uint4 *src)
		{
			uint4 v = src[threadIdx.x];
			dst[threadIdx.x] = make_uint2(v.x ^ v.y, v.z ^ v.w);
		}
		static __global__ void new_kernel(float *dst) { dst[threadIdx.x] = 1; }
		void launch(void) { narrow_kernel<<<1, 32>>>(nullptr, nullptr); new_kernel<<<1, 32>>>(nullptr); }
	END
	nvcc -arch=sm_90 -c -o "$T/k.o" "$T/k.cu"
	for f in "$TOP"/mt-stream/cuda/*.cu; do
		cp "$T/k.o" "$T/$(basename "$f" .cu).o"
	done
	sass "$T" sm_90
	[ "$CODE" = 1 ]
	grep -q '^FAILED sm_90 narrow_kernel .*: 1 loads and 0 stores of 128 bits: 2 and 1 at least' "$T/out"
	grep -q '^FAILED sm_90 new_kernel .*: in neither table' "$T/out"
	grep -q '^FAILED swiglu_forward_kernel: no object has it' "$T/out"
}
