# make install and uninstall, the completions for bash, man pages.
load helpers

mt_make() { # ARGS...: as a user's make, without what the make around us passes on
	env -u MAKEFLAGS -u MAKELEVEL make -C "$TOP" B="$MT" O="$BUILD" "$@" >"$T/make.out" 2>"$T/make.err" 3>&- ||
		{ cat "$T/make.out" "$T/make.err"; return 1; }
}
no_sanitizers() { case $BUILD in *san*) skip "a library with sanitizers wants programs with them" ;; esac; }
pages() { ls "$TOP"/*/*.[17] "$TOP"/*/*/*.[17]; }

# bats test_tags=slow
@test "make install: mt.pc has that PREFIX, the soname is the ABI version, and a program links by pkg-config" {
	need_cmd pkg-config
	no_sanitizers
	mt_make install PREFIX=/opt/x DESTDIR="$T/root"
	mt_make install PREFIX="$T/here"
	grep -qx 'prefix=/opt/x' "$T/root/opt/x/lib/pkgconfig/mt.pc"
	grep -qx "prefix=$T/here" "$T/here/lib/pkgconfig/mt.pc"
	cat "$TOP/shm/README.md" "$TOP/shm/PROTOCOL.md" "$TOP/shm/ABI.md" | cmp - "$T/here/share/doc/mt/abi.md"
	printf '%s\n' '#include <mt.h>' '#include <stdio.h>' \
		'int main(void) { struct mt_run *r; printf("%d %d\n", MT_ABI, mt_run_open(&r, "no run", 0)); }' >"$T/own.c"
	export PKG_CONFIG_PATH=$T/here/lib/pkgconfig
	cc -o "$T/own" "$T/own.c" $(pkg-config --cflags --libs mt)
	abi=$(sed -n 's/^#define MT_ABI *\([0-9]*\).*/\1/p' "$TOP/shm/mt/version.h")
	[ "$(LD_LIBRARY_PATH=$T/here/lib "$T/own")" = "$abi -64" ]
	LD_LIBRARY_PATH=$T/here/lib ldd "$T/own" | grep -q "libmt.so.$abi => $T/here/lib/libmt.so.$abi"
	cc -o "$T/static" "$T/own.c" $(pkg-config --cflags mt) "$T/here/lib/libmt.a" \
		$(pkg-config --static --libs-only-l mt | sed 's/-lmt//')
	[ "$("$T/static")" = "$abi -64" ]
}

# bats test_tags=slow
@test "make install: Python imports mtshm from mt.pc's pythondir, and reads a run there" {
	need_cmd pkg-config
	need_atomic
	no_sanitizers
	mt_make install PREFIX="$T/here"
	make_run "$GOLDEN/llama3/model" --dtype fp32
	cd "$T"
	pythondir=$(PKG_CONFIG_PATH=$T/here/lib/pkgconfig pkg-config --variable=pythondir mt)
	PATH=$T/here/bin:$PATH PYTHONPATH=$pythondir python3 -c 'import mtshm, sys
run = mtshm.Run(sys.argv[1])
assert mtshm.__file__ == sys.argv[2] + "/lib/mt/mtshm.py"
assert run.header["state"] == mtshm.CONSTANTS["states"]["filled"] and len(run.units) == run.control["n_units"] > 2
assert run.ring(b"grad.0")["slots"] > 1 and any(run.floats(run.units[1]["w"], 64))' "$RUN" "$T/here"
}

# bats test_tags=slow
@test "make uninstall removes the files that make install made, and no others" {
	no_sanitizers
	for dir in bin lib/pkgconfig include share/man/man1 share/doc share/bash-completion/completions; do
		mkdir -p "$T/root/opt/x/$dir"
		: >"$T/root/opt/x/$dir/mt-other"
	done
	: >"$T/root/opt/x/lib/libmt.so.0"
	(cd "$T/root" && find . ! -type d | sort) >"$T/before"
	mt_make install PREFIX=/opt/x DESTDIR="$T/root"
	[ "$(cd "$T/root" && find . ! -type d | wc -l)" -ge $(($(wc -l <"$T/before") + 30)) ]
	mkdir "$T/root/opt/x/lib/mt/__pycache__" # by a Python that imported mtshm
	mt_make uninstall PREFIX=/opt/x DESTDIR="$T/root"
	(cd "$T/root" && find . ! -type d | sort) | diff "$T/before" -
	[ ! -e "$T/root/opt/x/share/doc/mt" ]
	mt_make uninstall PREFIX=/opt/x DESTDIR="$T/root"
}

# bats test_tags=slow
@test "mt-tokens finds its parts from a link to it and where make install puts them, and writes no bytecode there" {
	no_sanitizers
	mt_make install PREFIX="$T/here"
	mkdir "$T/link"
	ln -s "$T/here/bin/mt-tokens" "$T/link/installed"
	ln -s "$TOP/bin/mt-tokens" "$T/link/checkout"
	cd "$T/link"
	for program in "$T/here/bin/mt-tokens" ./installed ./checkout; do
		echo '{"text": "abc"}' | "$program" --bytes 2>"$T/err" | "$program" --bytes --decode >"$T/text"
		[ "$(cat "$T/text")" = abc ]
	done
	diff -r -x __pycache__ "$TOP/bin/tokens" "$T/here/lib/mt/tokens" | grep -v 'README.md$' >"$T/differ" || true
	[ ! -s "$T/differ" ]
	[ -z "$(find "$T/here" -name __pycache__)" ]
}

# bats test_tags=slow
@test "make install refuses a relative PREFIX and one with a blank, and installs nothing" {
	no mt_make install PREFIX="$T/a b" >/dev/null
	grep -q "$T/a b: make cannot install into a path with blanks" "$T/make.err"
	[ ! -e "$T/a" ] && [ ! -e "$T/a b" ]
	no mt_make install PREFIX=opt DESTDIR="$T/root/" >/dev/null
	grep -q "PREFIX=opt: expected an absolute path" "$T/make.err"
	[ ! -e "$T/root" ]
}

# ---- the wheel

# bats test_tags=slow
@test "make wheel: pip installs it without a network, it trains the same bits from there, and uninstalls all files" {
	no_sanitizers
	need_cmd objdump
	python3 -c 'import ensurepip, venv' || skip "needs python3-venv"
	mt_make wheel WHEEL="$T/wheel"
	python3 - "$T"/wheel/mt-*-py3-none-manylinux_2_*.whl <<-'PY'
		import base64, csv, email, hashlib, sys, zipfile
		z = zipfile.ZipFile(sys.argv[1])
		about = email.message_from_bytes(z.read(z.namelist()[-1].replace("RECORD", "METADATA")))
		assert about["Description-Content-Type"] and about.get_payload().startswith("# mt"), about.defects
		record = {name: digest for name, digest, _ in csv.reader(z.read(z.namelist()[-1]).decode().split())}
		assert sorted(record) == sorted(z.namelist()) and any(n.endswith("/man1/mt-run.1") for n in record)
		for name, digest in record.items():
		    own = base64.urlsafe_b64encode(hashlib.sha256(z.read(name)).digest()).decode().rstrip("=")
		    assert digest == "sha256=" + own or name.endswith("RECORD"), name
	PY
	venv=$T/venv
	python3 -m venv "$venv"
	(cd "$venv" && find . ! -type d | sort) >"$T/before"
	"$venv/bin/pip" install -q --no-index --disable-pip-version-check "$T"/wheel/*.whl
	for program in "$venv"/bin/mt-*; do (PATH=/usr/bin:/bin "$program" --version >>"$T/versions"); done
	[ "$(wc -l <"$T/versions")" -ge 15 ]
	"$venv/bin/python" -c 'import mtshm, mtweights'
	ldd "$venv/bin/mt-stream" | grep -E "libdnnl|libopenblas" | grep -F " => $venv/bin/../lib/mt/lib"
	train() { # PROGRAM OUT [OPTION]
		"$1" --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --steps 2 --batch 2 --seq 32 --lr 1e-3 \
			--run "$RUN" --out "$2" --quiet ${3:+"$3"} 3>&-
	}
	PATH=/usr/bin:/bin train "$venv/bin/mt-run" "$T/installed"
	train mt-run "$T/built"
	cmp "$T/installed/model/model.safetensors" "$T/built/model/model.safetensors"
	echo '{"text": "abc"}' | "$venv/bin/mt-tokens" --bytes 2>/dev/null | mt-feed --decode >"$T/text"
	[ "$(cat "$T/text")" = abc ]
	# it has no mt-link
	PATH=/usr/bin:/bin OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \
		fails_with 78 train "$venv/bin/mt-run" "$T/nodes" --nodes
	grep -q "no mt-link: mt was built without MPI" "$T/fails.err"
	"$venv/bin/pip" uninstall -q -y mt
	(cd "$venv" && find . ! -type d | sort) | diff "$T/before" -
	[ ! -e "$venv/lib/mt" ]
}

# ---- completions: the installed file, in a bash without bash-completion

# What TAB after these words offers: offers PROGRAM WORD... (an empty last word: after a space)
offers() {
	bash --norc -c '. "$1/$2"
		shift
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		"_${1//-/_}"
		printf "%s\n" "${COMPREPLY[@]}"' bash "$BUILD/completions" "$@"
}

@test "completion offers every option that --help prints, of every program" {
	mt_make completions
	for program in mt-store mt-ckpt mt-stream mt-plan mt-optim mt-step mt-feed mt-run mt-tokens mt-tier; do
		case $program in
		mt-store) verbs="create init serve stat ls rm ring" ;;
		mt-ckpt) verbs="load save export convert verify map serve" ;;
		*) verbs=operand ;;
		esac
		for verb in $verbs; do offers $program "$verb" --; done | sort -u >"$T/offered"
		"$program" --help | sed -n 's/^  \(-h, \)*\(--[a-z0-9-]*\).*/\2/p' | sort -u >"$T/options"
		[ "$(wc -l <"$T/options")" -ge 4 ]
		comm -13 "$T/offered" "$T/options" >"$T/missing"
		[ ! -s "$T/missing" ] || { echo "$program: not offered:"; cat "$T/missing"; return 1; }
	done
}

@test "completion offers a verb's own options, an option's values, and the names of runs" {
	mt_make completions
	[ "$(offers mt-store s | xargs)" = "serve stat" ]
	[ "$(offers mt-store create --d)" = --dtype ]
	[ "$(offers mt-store rm -- | xargs)" = "--help --version --force" ]
	[ "$(offers mt-store create x --grad '' | xargs)" = "fp32 bf16 none" ]
	[ "$(offers mt-store create x --grad = | xargs)" = "fp32 bf16 none" ]
	[ "$(offers mt-store create x --grad = b)" = bf16 ]
	[ "$(offers mt-step x --schedule '' | xargs)" = "linear cosine wsd constant" ]
	[ "$(offers mt-stream --device c | xargs)" = "cpu chaos: cuda" ]
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K 2>/dev/null
	[ "$(offers mt-store stat "${RUN%?}" | grep -x "$RUN")" = "$RUN" ]
	[ "$(offers mt-optim "${RUN%?}" | grep -x "$RUN")" = "$RUN" ]
	# mt-run passes mt-step's options on, and those of mt-feed that it names
	[ "$(offers mt-run --sche)" = --schedule ]
	[ "$(offers mt-run --b | sort | xargs)" = "--batch --best --beta --beta1 --beta2 --block --bytes" ]
	[ "$(offers mt-run --schedule c | xargs)" = "cosine constant" ]
	# of files and numbers nothing: readline completes the former
	[ -z "$(offers mt-run --model '')$(offers mt-run --steps '')" ]
}

# ---- man pages

@test "man pages are written in mdoc, and mandoc finds no fault in them" {
	need_cmd mandoc
	[ "$(pages | wc -l)" -ge 9 ]
	for page in $(pages); do
		sed -n 1p "$page" | grep -q '^\.Dd ' || { echo "$page: does not begin with .Dd: mdoc is expected"; return 1; }
	done
	mandoc -T lint -W warning $(pages)
}

@test "man pages have the synopsis and the options that make man writes" {
	for page in $(pages | grep '\.1$'); do
		program=$(basename "$page" .1)
		command -v "$program" >/dev/null || continue   # mt-link and mt-top need packages
		"$program" --options | awk -v "program=$program" -f "$TOP/bin/man.awk" - "$page" >"$T/page"
		diff "$page" "$T/page"
	done
	# and a page's note on an option that there is no more is an error
	sed 's/^\.It Fl -threads/.It Fl -cores/' "$TOP/mt-optim/mt-optim.1" >"$T/old.1"
	mt-optim --options | exits 65 awk -v program=mt-optim -f "$TOP/bin/man.awk" - "$T/old.1" >"$T/page"
}

@test "mt(7) refers to the page of every program, and every program that is installed has a page" {
	for program in $(cd "$TOP" && ls -d mt-*) mt-feed mt-run mt-tokens; do
		grep -q "^\.Xr $program 1" "$TOP/shm/mt.7"
		[ -n "$(pages | grep "/$program\.1$")" ]
	done
}

@test "the scripts of make wheel, make deb and make numa-test pass shellcheck" {
	need_cmd shellcheck
	cd "$TOP"
	shellcheck --norc .github/wheel .github/try .github/container-test .github/debian/build tests/distros tests/numa/run
	shellcheck --norc -s sh tests/numa/init
}

# bats test_tags=slow
@test "make deb: packages of the tree's files that are not ignored, also without .git; for CUDA if nvcc is there" {
	need_checkout
	mkdir "$T/bin" "$T/tree"
	cat >"$T/bin/dpkg-buildpackage" <<-'SH'
		#!/bin/sh
		echo "profiles: ${DEB_BUILD_PROFILES-}, nvcc: ${NVCC-}"
		: >"../mt-train_$(sed -n '1s/.*(\(.*\)).*/\1/p' debian/changelog)_x.deb"
	SH
	chmod +x "$T/bin/dpkg-buildpackage"
	(cd "$TOP" && git ls-files | tar -cf - -T -) | tar -xf - -C "$T/tree"
	cd "$T/tree"
	(find . -type f; echo ./"a new file") | sort >"$T/want"
	mkdir -p build tests/lib/__pycache__
	touch "a new file" bin/mt-run build/x tests/lib/__pycache__/x
	PATH=$T/bin:$PATH make deb NVCC= MPICC= >"$T/out" 2>"$T/err"
	(cd build/deb/src && find . -type f ! -path './debian/*') | sort | diff "$T/want" -
	grep -Eq '/mt-train_[0-9.]+~src20[0-9]{6}_x\.deb$' "$T/out"
	git init -q .
	git add README.md
	git -c user.name=x -c user.email=x@x commit -qm x
	PATH=$T/bin:$PATH make deb NVCC= MPICC= >"$T/out" 2>"$T/err"
	(cd build/deb/src && find . -type f ! -path './debian/*') | sort | diff "$T/want" -
	grep -Eq '/mt-train_[0-9.]+~git20[0-9]{6}\.[0-9a-f]+_x\.deb$' "$T/out"
	grep -qx "profiles: , nvcc: " "$T/out"
	mkdir -p "$T/cuda/bin" "$T/cuda/include" "$T/cuda/lib"
	touch "$T/cuda/bin/nvcc" "$T/cuda/include/cublasLt.h" "$T/cuda/lib/libcudart_static.a"
	PATH=$T/bin:$PATH make deb NVCC="$T/cuda/bin/nvcc" MPICC= >"$T/out" 2>"$T/err"
	grep -qx "profiles: cuda, nvcc: $T/cuda/bin/nvcc" "$T/out"
}

# A python3 whose venvs have a pip that installs nothing and keeps its requirements in $T/asked; while $T/offline is
# there, it fails
fake_python() {
	mkdir "$T/bin"
	cat >"$T/bin/python3" <<-SH
		#!/bin/sh
		mkdir -p "\$3/bin"
		{
			echo '#!/bin/sh'
			echo '[ "\$1" = -m ] || exit 0'
			echo 'for file; do :; done'
			echo '[ ! -e "$T/offline" ] || { echo "ERROR: no network"; exit 1; }'
			echo 'cat "\$file" >>"$T/asked"'
		} >"\$3/bin/python"
		chmod +x "\$3/bin/python"
	SH
	chmod +x "$T/bin/python3"
	cp "$TOP/tests/venv" "$T/venv"
}

@test "make venv: adds the packages that requirements.txt has got since, and does nothing while it is the same" {
	fake_python
	venv() {
		: >"$T/asked"
		PATH=$T/bin:$PATH "$T/venv" "$T/made"
	}
	printf '%s\n' '# tests' torch==1 '' one==1 >"$T/requirements.txt"
	venv
	[ "$(grep = "$T/asked" | sort | paste -sd ' ')" = "one==1 torch==1" ]
	: >"$T/made/kept"
	: >"$T/offline"
	venv >"$T/out"
	[ ! -s "$T/out" ]
	printf '%s\n' '# more' two==2 three==3 >>"$T/requirements.txt"
	exits 1 venv 2>"$T/err"
	grep -q "^make venv: pip install: ERROR: no network " "$T/err"
	rm "$T/offline"
	venv
	[ "$(paste -sd ' ' "$T/asked")" = "two==2 three==3" ]
	[ -e "$T/made/kept" ]               # it was not made again
	venv
	[ ! -s "$T/asked" ]
	sed -i s/two==2/two==3/ "$T/requirements.txt"
	venv
	grep -qx torch==1 "$T/asked"
	[ ! -e "$T/made/kept" ]
}

@test "what is older than mt needs is named in one line with what it needs: 1" {
	mkdir "$T/bin"
	printf '#!/bin/sh\necho gnuplot 4.6 patchlevel 6\n' >"$T/bin/gnuplot"
	printf '#!/bin/sh\necho Bats 1.2.1\n' >"$T/bin/bats"
	chmod +x "$T"/bin/*
	"$TOP/tests/versions" gcc jansson xxHash Python
	PATH=$T/bin:$PATH fails_with 1 "$TOP/tests/versions" gcc gnuplot bats-core
	grep -qx "make deps: too old: gnuplot 4.6 (needs [0-9.]*), bats-core 1.2.1 (needs [0-9.]*)" "$T/fails.err"
}
