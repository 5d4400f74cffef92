#!/usr/bin/env bats
# The machine code of the cuda device's kernels, read without a GPU: tests/gpu/sass.
# bats file_tags=slow

load helpers

SASS=$TOP/tests/gpu/sass

need_objects() { [ -f "$BUILD/mt-stream/device/cuda/rows.o" ] || skip "needs nvcc: kernels were not compiled"; }

# Run sass: its exit code in $CODE, its output in $T/out; skip if the disassembler is missing
sass() {
	CODE=0
	"$SASS" "$@" >"$T/out" 2>"$T/sass.err" || CODE=$?
	[ "$CODE" != 77 ] || skip "needs cuobjdump and nvdisasm (make deps)"
}

@test "memory-bound kernels load and store 128 bits at once, loops of tensor cores are as short as before, no spills" {
	need_objects
	sass "$BUILD/mt-stream/device/cuda" sm_90
	# make gpu-build compiles only for the installed GPU
	grep -q ' sm_90 ' "$T/out" || sass "$BUILD/mt-stream/device/cuda"
	grep -v '^ok' "$T/out" >&2 || true
	[ "$CODE" = 0 ]
	[ "$(grep -c '^ok' "$T/out")" -gt 40 ]
	[ "$(sed -n '/^kernels on tensor cores/,$p' "$T/out" | grep -c '^sm_.*_mma,')" -ge 30 ]
}

# bats test_tags=nightly
@test "a kernel that stores 32 bits at a time, a longer loop of tensor cores and unclassified kernels are reported" {
	need_objects
	need_cmd nvcc
	cat >"$T/k.cu" <<-'END'
		static __global__ void narrow_kernel(uint2 *dst, const uint4 *src)
		{
			uint4 v = src[threadIdx.x];
			dst[threadIdx.x] = make_uint2(v.x ^ v.y, v.z ^ v.w);
		}
		static __global__ void new_kernel(float *dst) { dst[threadIdx.x] = 1; }
		static __device__ void multiply(float *c, const unsigned *x, int n)
		{
			float d = 0, e = 0, f = 0, g = 0;
			for (int i = 0; i < n; i++)
				asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
					"{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
					: "+f"(d), "+f"(e), "+f"(f), "+f"(g) : "r"(x[i]), "r"(x[i + n]));
			*c = d + e + f + g;
		}
		template <int DIM, int DIM_V, int CAPPED>
		static __global__ void attention_forward_mma(float *c, const unsigned *x, int n) { multiply(c, x, n); }
		static __global__ void new_mma(float *c, const unsigned *x, int n) { multiply(c, x, n); }
		void launch(void)
		{
			narrow_kernel<<<1, 32>>>(nullptr, nullptr);
			new_kernel<<<1, 32>>>(nullptr);
			attention_forward_mma<64, 64, 0><<<1, 32>>>(nullptr, nullptr, 1);
			new_mma<<<1, 32>>>(nullptr, nullptr, 1);
		}
	END
	nvcc -arch=sm_90 -c -o "$T/k.o" "$T/k.cu"
	for f in "$TOP"/mt-stream/device/cuda/*.cu; do
		cp "$T/k.o" "$T/$(basename "$f" .cu).o"
	done
	sass "$T" sm_90
	[ "$CODE" = 1 ]
	grep -q '^FAILED sm_90 narrow_kernel .*: 1 loads and 0 stores of 128 bits: 2 and 1 at least' "$T/out"
	grep -q '^FAILED sm_90 new_kernel .*: in neither table' "$T/out"
	grep '^FAILED sm_90 attention_forward_mma,64,64,0 ' "$T/out" >"$T/forward"
	grep -q ': [0-9.]* instructions/HMMA, innermost: 6.66 ' "$T/forward"
	grep -q ' accesses of less than 16 bytes: 0 at most' "$T/forward"
	grep -q '^FAILED sm_90 new_mma .*: has HMMAs, but is not in HOT' "$T/out"
	grep -q '^FAILED swiglu_forward_kernel: no object has it' "$T/out"
}
