# mt-feed; packing of records into rows; learning-rate schedules.
load helpers

words() { od -An -v -w4 -tu4 | tr -d ' ' | tr '\n' ' ' | sed 's/ $//'; }
record() { # TOKEN...
	python3 -c 'import struct, sys
a = [int(x) for x in sys.argv[1:]]
sys.stdout.buffer.write(struct.pack("<%dI" % (len(a) + 1), len(a), *a))' "$@"
}

@test "mt-feed copies records unchanged" {
	{ record 1 2 3; record 2147483652; record 5 6; } >"$T/r"
	mt-feed "$T/r" >"$T/out"
	cmp "$T/r" "$T/out"
	mt-feed - <"$T/r" | cmp "$T/r"
}

@test "a flat file of bytes is one document" {
	printf 'abc' >"$T/f"
	[ "$(mt-feed --bytes "$T/f" "$T/f" | words)" = "3 97 98 99 3 97 98 99" ]
}

@test "--u16 and --u32 read little-endian elements" {
	printf '\001\002\003\000' >"$T/f"
	[ "$(mt-feed --u16 "$T/f" | words)" = "2 513 3" ]
	[ "$(mt-feed --u32 "$T/f" | words)" = "1 197121" ]
}

@test "--eos ends a document after each such token, from files and from pipes" {
	printf 'ab\ncd\ne' >"$T/f"
	want="3 97 98 10 3 99 100 10 1 101"
	[ "$(mt-feed --bytes --eos 10 "$T/f" | words)" = "$want" ]
	[ "$(mt-feed --bytes --eos 10 - <"$T/f" | words)" = "$want" ]
}

@test "--block cuts blocks that overlap by one token, from files and from pipes" {
	printf 'abcdefg' >"$T/f"
	want="3 97 98 99 3 99 100 101 3 101 102 103"
	[ "$(mt-feed --bytes --block 3 "$T/f" | words)" = "$want" ]
	[ "$(cat "$T/f" | mt-feed --bytes --block 3 - | words)" = "$want" ]
	[ "$(mt-feed --bytes --block 4 "$T/f" | words)" = "4 97 98 99 100 4 100 101 102 103" ]
}

@test "--epochs reads the files again" {
	printf 'ab' >"$T/f"
	[ "$(mt-feed --bytes --epochs 2 "$T/f" | words)" = "2 97 98 2 97 98" ]
}

# bats test_tags=slow
@test "--shuffle permutes whole documents of all files, by seed and epoch" {
	seq 100 199 >"$T/f"
	seq 200 299 >"$T/g"
	feed() { mt-feed --bytes --eos 10 --shuffle "$@" "$T/f" "$T/g" | words; }
	a=$(feed 1) b=$(feed 1) c=$(feed 2) two=$(feed 1 --epochs 2)
	[ "$a" = "$b" ]
	[ "$a" != "$c" ]
	[ "${two:0:${#a}}" = "$a" ]
	[ "${two:${#a}+1}" != "$a" ]
	for x in "$a" "$c" "${two:${#a}+1}"; do
		[ "$(echo "$x" | tr ' ' '\n' | xargs -n5 | sort)" = \
			"$(mt-feed --bytes --eos 10 "$T/f" "$T/g" | words | tr ' ' '\n' | xargs -n5 | sort)" ]
	done
}

# Documents "aN" of the last letter in the name, N from 0: letters NAME NUMBER
letters() { for i in $(seq 0 $(($2 - 1))); do printf '%s%d\n' "${1: -1}" "$i"; done >"$T/$1"; }
# Records of lines back to one line of text
lines() { words | tr ' ' '\n' | awk '!n { n = $1; next } { n--; printf "%s", $1 == 10 ? " " : sprintf("%c", $1) }'; }
feed_lines() { mt-feed --bytes --eos 10 "$@" | lines; }

@test "a directory stands for its regular files in byte order of their names, without hidden files and folders" {
	mkdir -p "$T/d/folder"
	for name in d/b d/a d/B d/.hidden d/folder/c e; do letters "$name" 1; done
	ln -s ../e "$T/d/link"
	mkfifo "$T/d/fifo"
	want="B0 a0 b0 e0 e0 "
	[ "$(feed_lines "$T/d" "$T/e")" = "$want" ]
	[ "$(feed_lines "$T/d/" "$T/e")" = "$want" ]
	[ "$(feed_lines "$T/d" "$T/e" --epochs 2)" = "$want$want" ]
	mt-feed --bytes --check "$T/d"
}

@test "a weight makes a file come W times an epoch, and a later epoch goes on where the one before stopped" {
	letters a 4
	letters b 3
	[ "$(feed_lines "$T/a:1")" = "a0 a1 a2 a3 " ]
	[ "$(feed_lines "$T/a:2")" = "a0 a1 a2 a3 a0 a1 a2 a3 " ]
	[ "$(feed_lines "$T/a:0.5")" = "a0 a1 " ]
	[ "$(feed_lines "$T/a:0.5" --epochs 3)" = "a0 a1 a2 a3 a0 a1 " ]
	[ "$(feed_lines "$T/b:0.5" --epochs 2)" = "b0 b1 b2 " ] # 1.5 documents an epoch, rounded up
	[ "$(feed_lines "$T/b:0.001")" = "b0 " ]
	[ "$(feed_lines "$T/a:1.1" --epochs 10 | wc -w)" = 44 ]
	[ "$(feed_lines "$T/a:0.5" "$T/b")" = "b0 a0 b1 a1 b2 " ]
	# a directory is one source
	mkdir "$T/d"
	letters d/x 2
	letters d/y 2
	[ "$(feed_lines "$T/d:0.75")" = "x0 x1 y0 " ]
}

@test "with a weight or --mix each source has its share of the documents at any time, to within one" {
	letters a 100
	letters b 37
	letters c 5
	letters d 1
	check() { # SHARES OPERAND...: the wanted numbers of documents of a, b, c and d
		feed_lines "${@:2}" | tr ' ' '\n' | python3 -c 'import sys
want = dict(zip("abcd", map(int, sys.argv[1].split())))
names = sys.stdin.read().split()
assert len(names) == sum(want.values()), len(names)
for p in range(1, len(names) + 1):
    for source, n in want.items():
        given = sum(name[0] == source for name in names[:p])
        assert abs(given - p * n / len(names)) < 1, (p, source, given)' "$1"
	}
	local a=$T/a b=$T/b c=$T/c d=$T/d
	check "100 37 5 1" --mix "$a" "$b" "$c" "$d"
	check "100 37 5 1" --mix --shuffle 3 "$a" "$b" "$c" "$d"
	check "50 111 13 4" "$a:0.5" "$b:3" "$c:2.5" "$d:4"
	check "0 0 5 1" --mix "$c" "$d"
	[ "$(feed_lines "$a" "$b" | cut -d ' ' -f 1-101 | tr -d 'a0-9 ')" = b ] # without: one after the other
}

@test "--shuffle with weights permutes each pass of a source by the seed, and nothing is lost" {
	letters a 20
	letters b 10
	one=$(feed_lines --shuffle 1 "$T/a:2" "$T/b:0.5" --epochs 2)
	[ "$one" = "$(feed_lines --shuffle 1 "$T/a:2" "$T/b:0.5" --epochs 2)" ]
	[ "$one" != "$(feed_lines --shuffle 2 "$T/a:2" "$T/b:0.5" --epochs 2)" ]
	of() { tr ' ' '\n' <<<"$one" | grep "^$1"; }
	[ "$(of a | head -n 20 | sort -u | wc -l)" = 20 ]                         # one pass
	[ "$(of a | head -n 20)" != "$(of a | head -n 40 | tail -n 20)" ]         # is not the next one
	[ "$(of a | sort | uniq -c | awk '{ print $1 }' | sort -u)" = 4 ]         # two passes in each of two epochs
	[ "$(of b | sort -u | wc -l)" = 10 ]                                      # two halves
}

@test "a weight must be above 0, and an existing file's name may have a colon" {
	letters a 2
	letters b:2 1
	[ "$(feed_lines "$T/b:2")" = "20 " ]
	[ "$(feed_lines "$T/b:2:3")" = "20 20 20 " ]
	for weight in 0 -1 x inf nan 1e9 1x ''; do
		fails_with 64 mt-feed --bytes "$T/a:$weight"
		grep -q "weight '$weight' is not a number above 0" "$T/fails.err"
	done
	fails_with 66 mt-feed --bytes "$T/nowhere:2"
	fails_with 66 mt-feed --bytes "$T/nowhere:x"
	fails_with 64 mt-feed -:2
	fails_with 64 mt-feed --mix - "$T/a"
	mkfifo "$T/fifo"
	fails_with 65 mt-feed "$T/fifo:2"
}

@test "--decode writes the bytes of records, with --sep after each document" {
	printf 'ab\ncd\n\000\377' >"$T/f"
	mt-feed --bytes "$T/f" | mt-feed --decode --sep '' | cmp - "$T/f"
	mt-feed --bytes --eos 10 "$T/f" | mt-feed --decode --sep '' | cmp - "$T/f"
	{ record 97 98; record 2147483747; } >"$T/r" # the second has a context only token: 99
	[ "$(mt-feed --decode <"$T/r")" = $'ab\nc' ]
	[ "$(mt-feed --decode --sep ' | ' "$T/r" "$T/r")" = 'ab | c | ab | c | ' ]
	# larger than the buffers
	seq 600000 >"$T/f"
	mt-feed --bytes --eos 10 "$T/f" | mt-feed --decode --sep '' | cmp - "$T/f"
}

@test "--decode exits 65 and names the first token that is not a byte; --sep alone exits 64" {
	{ record 97 98; record 99 256; } >"$T/r"
	exits 65 mt-feed --decode <"$T/r" >"$T/out" 2>"$T/err"
	[ "$(cat "$T/err")" = "mt-feed: --decode: record 2, element 1: token 256 is not a byte" ]
	[ "$(cat "$T/out")" = $'ab\nc' ]
	fails_with 64 mt-feed --sep x "$T/r"
}

@test "an empty flat file gives no document" {
	: >"$T/f"
	[ -z "$(mt-feed --bytes "$T/f" | words)" ]
}

@test "mt-feed exits 0 when its reader has closed, even if its input is silent" {
	mkfifo "$T/in" "$T/out"
	exec 8<>"$T/in"
	local how
	for how in "" --bytes; do
		mt-feed $how "$T/in" >"$T/out" 3>&- 8>&- &
		PID=$!
		echo $PID >>"$T/pids"
		exec 7<"$T/out"
		sleep 0.1
		kill -0 $PID
		exec 7<&-
		eventually bash -c "! kill -0 $PID"
		wait $PID
	done
	exec 8>&-
}

@test "while an input is silent, all that came before is written: pipes, FIFOs without a writer, each format" {
	waits() { # WANTED ARGS...: mt-feed has written these records, and waits
		spawn feed mt-feed "${@:2}"
		eventually cmp -n "$(stat -c %s "$T/$1")" "$T/$1" "$T/feed.out"
		kill "$PID"
		exits 143 wait "$PID"
	}
	mkfifo "$T/in" "$T/none"
	exec 8<>"$T/in"
	{ record 1 2 3; record 4; } >"$T/two"
	{ cat "$T/two"; record 5 6 | head -c 8; } >&8
	waits two "$T/in"
	printf 'ab\ncd' >&8
	record 97 98 10 >"$T/line"
	waits line --bytes --eos 10 "$T/in"
	record 97 98 >&8
	printf 'ab\n' >"$T/text"
	waits text --decode "$T/in"
	waits two "$T/two" "$T/none"
	waits two "$T/two" "$T/in"
	exec 8>&-
}

@test "mt-feed exits 0 when its reader has closed" {
	head -c 5000000 /dev/zero >"$T/f"
	mt-feed --bytes --block 100 "$T/f" | head -c 8 >/dev/null
	[ "${PIPESTATUS[0]}" = 0 ]
}

@test "truncated, empty and oversize records exit 65" {
	printf '\003\000\000\000\001\000\000\000' >"$T/short"
	printf '\003\000' >"$T/count"
	printf '\000\000\000\000' >"$T/empty"
	printf '\377\377\377\377\001\000\000\000' >"$T/huge"
	for f in short count empty huge; do
		fails_with 65 mt-feed "$T/$f"
		grep -q "record 1" "$T/fails.err"
		exits 65 mt-feed - <"$T/$f" >/dev/null 2>"$T/err"
	done
}

@test "wrong usage exits 64, a missing file 66, half an element 65" {
	printf 'abc' >"$T/f"
	fails_with 64 mt-feed
	fails_with 64 mt-feed --bytes --u16 "$T/f"
	fails_with 64 mt-feed --eos 10 "$T/f"
	fails_with 64 mt-feed --bytes --eos 256 "$T/f"          # no element can be 256
	fails_with 64 mt-feed --u16 --eos 65536 "$T/f"
	fails_with 64 mt-feed --u32 --eos 4294967296 "$T/f"
	fails_with 64 mt-feed --bytes --block 1 "$T/f"
	fails_with 64 mt-feed --shuffle 1 -
	fails_with 64 mt-feed --epochs 2 -
	fails_with 66 mt-feed "$T/nowhere"
	mkdir "$T/empty"
	fails_with 65 mt-feed --bytes "$T/empty"
	grep -q "empty: has no regular file" "$T/fails.err"
	fails_with 65 mt-feed --u16 "$T/f"
}

@test "a file or directory without the permission to read it exits 77" {
	mkdir "$T/shut"
	cp "$GOLDEN/llama3/data.bin" "$T/f"
	cp "$T/f" "$T/shut"
	chmod 000 "$T/f" "$T/shut"
	fails_with 77 by_mode mt-feed "$T/f"
	fails_with 77 by_mode mt-feed --check "$T/f"
	fails_with 77 by_mode mt-feed --shuffle 1 "$T/f"
	fails_with 77 by_mode mt-feed "$T/shut"
	fails_with 77 by_mode mt-feed "$T/shut/f"
	chmod 700 "$T/shut"
}

@test "rows, targets and document starts equal those of tests/golden/packing.json" {
	python3 - "$GOLDEN/packing.json" "$T/r" <<-'PY'
	import json, struct, subprocess, sys
	n = 0
	for entry in json.load(open(sys.argv[1])):
	    with open(sys.argv[2], "wb") as f:
	        for d in entry["documents"]:
	            f.write(struct.pack("<%dI" % (len(d) + 1), len(d), *d))
	    seq = entry["seq"]
	    for how in ("docs", "concat", "none"):
	        command = ["step-pack", how, str(seq), sys.argv[2]]
	        out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
	        rows = [json.loads(line) for line in out.splitlines()]
	        want = []
	        for row in entry[how]:
	            used, starts = len(row["tokens"]), row["starts"]
	            pad = seq - used
	            want.append({"tokens": row["tokens"] + [0] * pad, "targets": row["targets"] + [-1] * pad,
	                         "starts": [max(s for s in starts if s <= i) for i in range(used)] + [used] * pad})
	        assert rows == want, (entry["title"], how, rows, want)
	        n += len(rows)
	assert n > 50, n
	PY
}

@test "training can resume at the end of every row, and refuses other input there" {
	python3 -c 'import random,struct,sys
random.seed(3)
for _ in range(60):
    n = random.choice([1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 100])
    tokens = [random.randrange(1000) | random.choice([0, 1 << 31]) for _ in range(n)]
    sys.stdout.buffer.write(struct.pack("<%dI" % (n + 1), n, *tokens))' >"$T/r"
	for how in {docs,concat,none},{split,drop,truncate}; do
		run step-pack $how 16 "$T/r" resume
		echo "$how: $output"
		[ "$status" = 0 ]
		[ "${output%% *}" -gt 9 ]
	done
}

@test "--long drop and truncate give the rows of an input without the long documents, or with their beginnings" {
	python3 - "$T" <<-'PY'
	import random, struct, sys
	random.seed(4)
	files = {name: open(f"{sys.argv[1]}/{name}", "wb") for name in ("split", "drop", "truncate")}
	for i in range(80):
	    tokens = random.choices(range(1000), k=random.choice([1, 2, 15, 16, 17, 33, 3000]))
	    for name, f in files.items():
	        kept = tokens[:16] if name == "truncate" else tokens
	        if name != "drop" or len(tokens) <= 16:
	            f.write(struct.pack(f"<{len(kept) + 1}I", len(kept), *kept))
	PY
	for pack in docs concat none; do
		for long in drop truncate split; do
			step-pack $pack,$long 16 "$T/split" >"$T/rows"
			step-pack $pack 16 "$T/$long" | cmp - "$T/rows"
			[ "$(wc -l <"$T/rows")" -gt 9 ]
		done
	done
}

@test "a document that --long leaves out must be complete: an input that ends inside it exits 65" {
	{ record 1 2; record $(seq 40) | head -c 100; } >"$T/r"
	for long in drop truncate; do
		fails_with 65 sh -c "mt-step --count --batch 1 --seq 8 --long $long <$T/r"
		grep -q "record 2: input ends after 24 of its 40 elements" "$T/fails.err"
	done
}

@test "learning rates equal those of transformers' schedules" {
	python3 - "$GOLDEN/schedules.json" <<-'PY'
	import json, subprocess, sys
	cases = json.load(open(sys.argv[1]))
	for c in cases:
	    args = [c["schedule"], c["steps"], repr(c["lr"]), c["warmup"], c.get("decay", 0), repr(c["min_lr"])]
	    command = ["step-schedule"] + [str(a) for a in args]
	    out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
	    got = [float(x) for x in out.split()]
	    assert len(got) == len(c["lrs"])
	    assert all(abs(a - b) <= 1e-15 * max(abs(b), 1e-6) for a, b in zip(got, c["lrs"])), (c, got)
	assert len(cases) > 20
	PY
}

# bats test_tags=slow
@test "the scripts pass shellcheck" {
	need_cmd shellcheck
	shellcheck --norc "$TOP/bin/run/mt-run" "$TOP/bin/run/demo" "$TOP"/bin/run/*.sh "$TOP/tests/run" "$TOP/tests/venv"
}

@test "--check with a model's config.json names the file and place of a token outside the vocabulary" {
	outside() { # MESSAGE OPTIONS...: --check fails with it
		fails_with 65 mt-feed --check --config "$T/config.json" "${@:2}"
		[ "$(cat "$T/fails.err")" = "mt-feed: $1 is outside the vocabulary of 101; mt-ckpt convert --resize-vocab \
gives a model more rows" ]
	}
	echo '{"vocab_size": 101}' >"$T/config.json"
	record 1 2 100 >"$T/good"
	{ record 1 2 3; record 4 5 101; record 999; } >"$T/bad"
	record $((1 << 31 | 100)) $((1 << 31 | 102)) >"$T/context"
	mt-feed --check --config "$T/config.json" "$T/good" "$T/bad" # of each file, the first document
	outside "$T/context: record 1, element 1: token 102" "$T/context"
	for how in --shuffle=1 --mix; do
		mt-feed --check --config "$T/config.json" $how "$T/good"
		outside "$T/bad: record 2, element 2: token 101" $how "$T/good" "$T/bad"
	done
	printf '\1\0\2\0\145\0\3\0' >"$T/flat"
	outside "$T/flat: element 2: token 101" --u16 "$T/flat"
	outside "$T/flat: element 2: token 101" --u16 --eos 1 --shuffle 1 "$T/flat"
	outside "$T/flat: element 4: token 101" --bytes "$T/flat"
	awk 'BEGIN { for (i = 1; i < 40000; i++) printf "\2\0" }' >"$T/long"
	printf '\145\0' >>"$T/long"
	outside "$T/long: element 39999: token 101" --u16 "$T/long"
	echo '{"vocab_size": 65536}' >"$T/config.json"
	mt-feed --check --config "$T/config.json" --u16 "$T/flat"
}

@test "--check reports invalid options and files by exit code and one line, and writes nothing" {
	record 1 2 3 >"$T/good"
	printf '\011\0\0\0\001\0\0\0' >"$T/cut"
	printf 'In the beginning' >"$T/text"
	printf '\037\213\010' >"$T/text.gz"
	: >"$T/none"
	mkfifo "$T/fifo"
	[ -z "$(mt-feed --check "$T/good" "$T/fifo" - 2>&1)" ]
	[ -z "$(mt-feed --check --bytes --config "$CONFIGS/demo.json" "$T/text" 2>&1)" ]
	fails_with 66 mt-feed --check "$T/good" "$T/nowhere"
	fails_with 65 mt-feed --check "$T/cut"
	fails_with 65 mt-feed --check "$T/text"
	fails_with 65 mt-feed --check "$T/none"
	mkdir "$T/empty"
	fails_with 65 mt-feed --check "$T/empty"
	fails_with 65 mt-feed --check "$T/good" "$T" # a file in it is not valid
	fails_with 65 mt-feed --check --bytes "$T/text.gz"
	grep -q "text.gz: is compressed: zcat $T/text.gz" "$T/fails.err"
	printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 9\n' 0 >"$T/pointer"
	fails_with 65 mt-feed --check "$T/pointer"
	grep -q "pointer: is a git-lfs pointer, not the file itself: git lfs pull" "$T/fails.err"
	fails_with 65 mt-feed --check --shuffle 1 "$T/fifo"
	cat "$T/good" "$T/cut" >"$T/cut-at-its-end"
	mt-feed --check "$T/cut-at-its-end"
	for how in --shuffle=1 --mix; do
		mt-feed --check $how "$T/good"
		fails_with 65 mt-feed --check $how "$T/good" "$T/cut-at-its-end"
		grep -q "cut-at-its-end: record 2: input ends after 1 of its 9 elements" "$T/fails.err"
		fails_with 65 mt-feed --check $how "$T/none"
	done
	fails_with 65 mt-feed --check "$T/good" "$T/cut-at-its-end:2"
	fails_with 64 mt-feed --check --eos 1 "$T/good"
	fails_with 64 mt-feed --config "$CONFIGS/demo.json" "$T/good"
	echo '{"vocab_size": 513}' >"$T/config.json"
	fails_with 64 mt-feed --check --bytes --config "$T/config.json" "$T/text"
	mt-feed --check --config "$T/config.json" "$T/good"
}

@test "--check --turn-end prints the token in which half of the trained parts of records end, and the one before" {
	local c=$((1 << 31))
	ends() { mt-feed --check --turn-end --config "$T/config.json" "$@"; }
	echo '{"vocab_size": 50}' >"$T/config.json"
	{ record $((c + 1)) 2 9 $((c + 3)) 4 9; record 5 6; } >"$T/r"
	[ "$(ends --shuffle 1 "$T/r")" = 9 ]        # 2 9, 4 9, 5 6
	{ record $((c + 1)) 2 9 $((c + 3)) 9 $((c + 9)); record 5 6; record 7; record 8; } >"$T/r"
	[ -z "$(ends --mix "$T/r")" ]               # 2 9, 9, 5 6, 7, 8
	[ "$(ends "$T/r")" = 9,2 ]                  # the first document alone
	{ record $((c + 1)) 2 9 3 $((c + 3)) 4 9 3; record 5 9 3; } >"$T/break"
	[ "$(ends --shuffle 1 "$T/break")" = 3,9 ]
	record $((c + 9)) $((c + 9)) >"$T/context"
	[ -z "$(ends --shuffle 1 "$T/context")" ]
	fails_with 65 ends --shuffle 1 "$T/r" "$T/config.json"
	fails_with 64 mt-feed --check --turn-end "$T/r"
	fails_with 64 mt-feed --turn-end "$T/r"
}
