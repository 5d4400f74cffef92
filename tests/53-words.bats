# What the programs say where a user would otherwise see nothing, or the wrong thing: data that ends early, steps that are
# skipped, names that are mistyped, stages that are stopped, input that is something else.
load helpers

CASE=$GOLDEN/llama3
STEP="--steps 12 --batch 4 --micro 2 --seq 32 --lr 1e-3 --wait 5"

ready() { make_run "$CASE/model" --dtype fp32 "$@"; start_stages; }
steps() { sed 's/.*"step": \([0-9]*\).*/\1/' | tr '\n' ' ' | sed 's/ $//'; }
at_step() { mt-store ls "$RUN" --json | sed 's/.*"step":\([0-9]*\).*/\1/'; }
# N documents of LENGTH tokens: documents N LENGTH [MASK]
documents() {
	python3 -c 'import struct, sys
n, length, mask = int(sys.argv[1]), int(sys.argv[2]), len(sys.argv) > 3
for i in range(n): sys.stdout.buffer.write(struct.pack("<%dI" % (length + 1), length, *((i + j) % 90 + 1 | mask << 31 for j in range(length))))' "$@"
}
# The exit code must be CODE: ends CODE PROGRAM ARGS... (stdin is passed on; stderr goes to $T/err, stdout to $T/m)
ends() {
	local want=$1 code=0
	shift
	"$@" >"$T/m" 2>"$T/err" 3>&- || code=$?
	[ "$code" = "$want" ] || { echo "$* -> $code, wanted $want"; cat "$T/err"; return 1; }
}

# ---- installation

@test "make install: mt.pc of that PREFIX, the soname is the ABI's, and a program links by pkg-config" {
	need_cmd pkg-config
	case $BUILD in *san*) skip "a library with sanitizers wants programs with them" ;; esac
	env -u MAKEFLAGS -u MAKELEVEL make -C "$TOP" install PREFIX=/opt/x DESTDIR="$T/root" B="$MT" O="$BUILD" >"$T/make.out" 2>&1 3>&- ||
		{ cat "$T/make.out"; return 1; }
	env -u MAKEFLAGS -u MAKELEVEL make -C "$TOP" install PREFIX="$T/here" B="$MT" O="$BUILD" >"$T/make.out" 2>&1 3>&-
	grep -qx 'prefix=/opt/x' "$T/root/opt/x/lib/pkgconfig/mt.pc"
	grep -qx "prefix=$T/here" "$T/here/lib/pkgconfig/mt.pc"
	cmp "$TOP/shm/README.md" "$T/here/share/doc/mt/abi.md"
	printf '%s\n' '#include <mt.h>' '#include <stdio.h>' \
		'int main(void) { struct mt_run *r; printf("%d %d\n", MT_ABI, mt_run_open(&r, "no run", 0)); }' >"$T/own.c"
	export PKG_CONFIG_PATH=$T/here/lib/pkgconfig
	# shellcheck disable=SC2046
	cc -o "$T/own" "$T/own.c" $(pkg-config --cflags --libs mt)
	abi=$(sed -n 's/^#define MT_ABI *\([0-9]*\).*/\1/p' "$TOP/shm/mt.h")
	[ "$(LD_LIBRARY_PATH=$T/here/lib "$T/own")" = "$abi -64" ]
	LD_LIBRARY_PATH=$T/here/lib ldd "$T/own" | grep -q "libmt.so.$abi => $T/here/lib/libmt.so.$abi"
	# shellcheck disable=SC2046
	cc -o "$T/static" "$T/own.c" $(pkg-config --cflags mt) "$T/here/lib/libmt.a" $(pkg-config --static --libs-only-l mt | sed 's/-lmt//')
	[ "$("$T/static")" = "$abi -64" ]
}
