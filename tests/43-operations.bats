#!/usr/bin/env bats
# The operations of the cpu device, each beside its definition in double precision: every argument that a family of
# models sets, forward and backward, in the bits of one thread.

load helpers

# The lines of a failed case are shown
agree() {
	MT_ISA=$1 ops >"$T/cases" || {
		grep -v '^ok ' "$T/cases"
		return 1
	}
	[ "$(grep -c '^ok ' "$T/cases")" -gt 200 ]
}

@test "all operations match their definitions, with the same bits for any number of threads" { agree all; }

# bats test_tags=slow
@test "all operations match their definitions with AVX2's kernels" { agree avx2; }

# bats test_tags=slow
@test "all operations match their definitions with the kernels for any CPU" { agree plain; }
