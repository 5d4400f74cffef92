# What mt-tokens reads: arrays, objects, packed files, encodings; files of other formats are named.
# bats file_tags=slow
load helpers

setup_file() {
	export FILES=$BATS_FILE_TMPDIR
	! has pyarrow || serve_python pyarrow.parquet zstandard
	python3 - "$FILES" <<-'PY'
	import gzip, json, os, sys
	os.chdir(sys.argv[1])
	def write(name, data):
	    with open(name, "wb") as f:
	        f.write(data if isinstance(data, bytes) else data.encode())
	documents = [{"text": "naïve"}, {"text": "two\nlines, \"quoted\" [{"}, {"text": "three"}]
	lines = "".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents)
	pretty = json.dumps(documents, ensure_ascii=False, indent=2)
	write("lines", lines)
	os.mkdir("same")        # all of these give the records of lines
	os.chdir("same")
	write("array", json.dumps(documents))
	write("pretty", pretty + "\n")
	write("blank-before", "\n \n" + pretty + "\n\n")
	write("array-bom", b"\xef\xbb\xbf" + pretty.encode())
	write("objects", "\n".join(json.dumps(d, indent=4) for d in documents))
	write("objects-in-a-line", "".join(map(json.dumps, documents)))
	write("bom", b"\xef\xbb\xbf" + lines.encode())
	write("two-boms", "\ufeff%s\ufeff%s" % (lines[:lines.find("\n") + 1], lines[lines.find("\n") + 1:]))
	for code in "utf-16", "utf-16-le", "utf-16-be":
	    write(code, lines.encode(code))
	    write("array-" + code, pretty.encode(code))
	write("big-endian-with-mark", b"\xfe\xff" + lines.encode("utf-16-be"))
	write("cr", lines.replace("\n", "\r"))
	write("cr-lf", lines.replace("\n", "\r\n"))
	write("array-cr", pretty.replace("\n", "\r"))
	for name in os.listdir():
	    with open(name, "rb") as f:
	        write(name + ".gz", gzip.compress(f.read()))
	write("members.gz", b"".join(gzip.compress(line.encode() + b"\n") for line in lines.splitlines()))
	PY
}

bytes() { "$PYTHON" "$MT/mt-tokens" --bytes "$@" 2>"$T/err"; }
utf16() { python3 -c 'import sys; sys.stdout.buffer.write(sys.stdin.buffer.read().decode().encode("utf-16"))'; }

# The command fails with one line that holds WORDS, which names the file: refuses CODE FILE WORDS
refuses() {
	local code=0
	bytes "$2" >"$T/out" </dev/null || code=$?
	[ "$code" = "$1" ] && [ "$(wc -l <"$T/err")" = 1 ] && grep -qF "${2##*/}: $3" "$T/err" ||
		{ echo "$2: $code, wanted $1: $3"; cat "$T/err"; return 1; }
}

@test "arrays, objects of several lines, UTF-16 and lines that end by CR give the records of lines, packed or not" {
	bytes "$FILES/lines" >"$T/want"
	local file
	for file in "$FILES"/same/*; do
		bytes "$file" >"$T/got" || { echo "$file"; cat "$T/err"; return 1; }
		cmp "$T/want" "$T/got"
		bytes <"$file" | cmp "$T/want" -
	done
}

@test "an array of many elements, longer than what is read at once, gives the records of the lines for any --jobs" {
	python3 - "$T" <<-'PY'
	import json, sys
	documents = [{"text": "%d " % i + "xyz\u00e9"[i % 4] * (i * 37 % 3000)} for i in range(3000)]
	documents[7]["text"] = "\\\"[{" * 900000
	with open(sys.argv[1] + "/lines", "w") as lines, open(sys.argv[1] + "/array", "w") as array:
	    lines.writelines(json.dumps(d) + "\n" for d in documents)
	    json.dump(documents, array, indent=1, ensure_ascii=False)
	PY
	bytes "$T/lines" >"$T/want"
	cp "$T/err" "$T/want.err"
	local jobs
	for jobs in 1 3; do
		bytes --jobs $jobs "$T/array" | cmp "$T/want" -
		cmp "$T/want.err" "$T/err"
	done
}

@test "what is wrong in an array exits 65 with the file, the element and its line; elements before it are converted" {
	local in=$T/in
	bad() { # TEXT WORDS
		printf '%b' "$1" >"$in"
		refuses 65 "$in" "$2"
	}
	bad '[{"text": "a"},\n{"text": "b"},\n]' 'element 3, line 3: expected an element behind the comma'
	bad '[{"text": "a"}\n{"text": "b"}]' 'element 1, line 2: expected a comma'
	bad '[{"text": "a"},\n{"text" "b"}, {"text": "c"}]' "element 2, line 2: Expecting ':' delimiter"
	[ "$(wc -c <"$T/out")" = 0 ]                # one token: nothing to train on
	bad '[{"text": "aa"}, {"text": "bb"},\n{"text": "c' 'element 3, line 2: the file ends inside it'
	[ "$(wc -c <"$T/out")" = 24 ]
	bad '[{"text": "aa"}, {"text": "bb"}' 'element 2, line 1: the file ends inside its array'
	bad '[{"text": "aa"},' 'element 2, line 1: the file ends inside its array'
	bad '[{"text": "aa"}] x' "element 1, line 1: something follows the array's end"
	bad '[{"text": "aa"}, 3]' 'element 2: is not an object'
	bad '[{"text": "aa"},\n\n{"text": "\xe9"}]' 'element 2, line 3: is not UTF-8: byte 0xe9'
	bad '{\n"text": "aa"\n}\n{\n"text": "bb"' 'object 2, line 5: the file ends inside it'
	python3 -c 'print("[{\"text\":" + "[" * 100000)' >"$in"
	refuses 65 "$in" 'element 1, line 1: is nested too deeply'
}

@test "what is wrong in a line exits 65 with the file and the line" {
	local in=$T/in
	bad() {
		printf '%b' '{"text": "aa"}\n'"$1" >"$in"
		refuses 65 "$in" "line 2: $2"
	}
	bad '{"text": "\xe9"}' 'is not UTF-8: byte 0xe9'
	bad '\0\0\0\0' 'is not JSON: it has zero bytes'
	bad '{"text": "b"},\n' 'is not JSON: something follows its value at character 14'
	bad '{"text": "b' 'is not JSON: Unterminated string at character 10'
	printf '{"text": "a", \0' >"$in"
	refuses 65 "$in" 'line 1: is not JSON: it has zero bytes'
	printf '{"text": "aa"}\n' | utf16 | head -c 29 >"$in"
	refuses 65 "$in" 'damaged UTF-16'
}

@test "a file without documents exits 65 and is named, also behind one that has some" {
	cd "$T"
	: >nothing
	printf '\n \n\r\n' >blank
	printf '\357\273\277' >bom
	printf ' [\n]\n' >array
	gzip -c nothing >packed
	for file in nothing blank bom array packed; do
		refuses 65 "$T/$file" 'is empty: it has no documents'
		no bytes "$FILES/lines" "$T/$file" >"$T/out"
		grep -q "$file: is empty" "$T/err"
		[ -s "$T/out" ]
	done
	fails_with 65 "$MT/mt-tokens" --bytes
	if has pyarrow; then
		"$REAL_PYTHON" -c 'import pyarrow, pyarrow.parquet as p, sys
p.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), sys.argv[1])' "$T/rows"
		refuses 65 "$T/rows" 'is empty: it has no documents'
	fi
}

@test "a file of another format exits 65 with its name and what to do" {
	cd "$T"
	put() { printf '%b' "$2" >"$1"; refuses 65 "$T/$1" "$3"; }
	put x.gguf 'GGUF\003\0\0\0\0\0\0\0' 'is a GGUF file'
	put x.zip 'PK\003\004....' 'is a zip archive: unpack it first'
	put x.xz '\xfd7zXZ\0' 'is xz data: unpack it first'
	put x.csv 'text,label\nabc,1\n' 'is a table of columns (CSV): convert it by pandas'
	put table '"text"\t"label"\nabc\t1\n' 'is a table of columns (CSV)'
	put prose 'Once, there was\na text.\n' 'line 1: is not JSON; a file of plain text becomes a document by jq'
	put x.arrow 'ARROW1\0\0....' 'is an Arrow file: save it as parquet'
	put stream.arrow '\xff\xff\xff\xff\x78\001\0\0' 'is an Arrow file'
	put x.db 'SQLite format 3\0' 'is an SQLite database'
	put x.html '<!DOCTYPE html>' 'is HTML or XML'
	put x.safetensors '\x80\001\0\0\0\0\0\0{"' 'is a safetensors file'
	put pointer 'version https://git-lfs.github.com/spec/v1\n' 'is a git-lfs pointer and not the file itself'
	tar -cf x.tar x.csv
	refuses 65 "$T/x.tar" 'is a tar archive'
	gzip -k x.tar
	refuses 65 "$T/x.tar.gz" 'is a tar archive'
	gzip -c <"$FILES/same/bom.gz" >twice
	refuses 65 "$T/twice" 'what is packed in it is packed itself'
	bytes "$FILES/lines" >chats.rec
	refuses 65 "$T/chats.rec" 'holds records already: mt-run --data takes it as it is'
	refuses 66 "$T" 'is a directory, expected a file of documents'
}

@test "an object that holds the documents, or is none, exits 65 and its keys are named" {
	local in=$T/in
	printf '{"version": 1,\n "data": [{"text": "a"}]}' >"$in"
	refuses 65 "$in" "object 1: has neither text nor messages"
	grep -qF "if its documents are in 'data', jq -c '.[\"data\"][]' FILE makes lines of them" "$T/err"
	echo '{"data": [{"text": "a"}]}' >"$in"
	refuses 65 "$in" 'line 1: has neither'
	grep -qF "in 'data'" "$T/err"
	echo '{"question": "a", "answer": "b"}' >"$in"
	refuses 65 "$in" 'line 1: has neither'
	grep -qF "its keys: question, answer" "$T/err"
	printf '{"cells": [{"source": []}],\n"nbformat": 4}' >"$in"
	refuses 65 "$in" 'object 1: has neither'
	grep -qF "a Jupyter notebook" "$T/err"
}

@test "--decode of text or a packed file exits 65 and says that it holds no records" {
	local file
	for file in "$FILES/lines" "$FILES/same/pretty" "$FILES/same/bom" "$FILES/same/bom.gz"; do
		fails_with 65 "$MT/mt-tokens" --decode --bytes "$file"
		grep -q "holds no records: --decode reads what mt-tokens wrote" "$T/fails.err"
	done
}

@test "--prompts takes lines in UTF-16, with CR, and packed" {
	printf 'Who?\nnaïve\n' >"$T/in"
	bytes --prompts "$T/in" >"$T/want"
	tr '\n' '\r' <"$T/in" | bytes --prompts | cmp "$T/want" -
	utf16 <"$T/in" | bytes --prompts | cmp "$T/want" -
	gzip -c "$T/in" | bytes --prompts | cmp "$T/want" -
}

@test "a line of any length is split in linear time: each byte is searched once and added to nothing" {
	python3 -B - "$MT" <<-'PY'
	import sys
	sys.path.insert(0, sys.argv[1])
	from tokens import reading
	searched = 0
	class Piece(bytes):
	    def split(self, *args):
	        global searched
	        searched += len(self)
	        return bytes.split(self, *args)
	    def __radd__(self, other):
	        global searched
	        searched += len(self) + len(other)
	        return Piece(bytes(other) + bytes(self))
	    __add__ = __radd__
	pieces = [Piece(b"x" * 4096)] * 500 + [Piece(b"\n" + b"y" * 4095)] + [Piece(b"y" * 4096)] * 500
	lines = list(reading.split_lines("x", iter(pieces)))
	assert [len(line) for line in lines] == [500 * 4096, 501 * 4096 - 1], list(map(len, lines))
	assert searched == 1001 * 4096, searched
	PY
}

@test "a packed file that stands for gigabytes takes little memory" {
	has zstandard || skip "needs zstandard (make venv)"
	"$REAL_PYTHON" - "$T/blank.zst" "$MT/mt-tokens" <<-'PY'
	import resource, subprocess, sys, zstandard
	packer = zstandard.ZstdCompressor().compressobj()
	with open(sys.argv[1], "wb") as f:
	    f.write(packer.compress(b"["))
	    for _ in range(512):
	        f.write(packer.compress(b" " * (1 << 20)))
	    f.write(packer.flush())
	done = subprocess.run([sys.executable, sys.argv[2], "--bytes", sys.argv[1]], stderr=subprocess.PIPE)
	assert done.returncode == 65 and b"the file ends inside its array" in done.stderr, done
	used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
	assert used < 200, used
	PY
}

@test "a line and an element longer than the limit are refused before they fill the memory" {
	python3 -B - "$MT" <<-'PY'
	import sys
	sys.path.insert(0, sys.argv[1])
	from tokens import errors, reading, values
	reading.LONGEST = values.LONGEST = 1 << 20
	def endless(begin):
	    yield begin
	    while True:
	        yield b"x" * (1 << 16)
	for split, begin in (reading.split_lines, b'{"text": "'), (values.elements, b'[{"text": "'):
	    try:
	        next(iter(split("x", endless(begin))))
	    except errors.Problem as e:
	        assert "1" in str(e) and "is longer than 1 GiB" in str(e), e
	    else:
	        assert False
	PY
}

@test "zstd frames of all kinds are read, and wherever one is cut, it exits 65" {
	has zstandard || skip "needs zstandard (make venv)"
	"$REAL_PYTHON" -B - "$MT" <<-'PY'
	import io, itertools, os, sys, zstandard
	sys.path.insert(0, sys.argv[1])
	from tokens import errors, unpack
	def read(data):
	    return b"".join(unpack.unzstd("x", io.BufferedReader(io.BytesIO(data))))
	texts = b"", b"a", os.urandom(300000), b"abc d" * 70000, b"\0" * 3000000
	for text, level, checksum, size in itertools.product(texts, (1, 19), (False, True), (False, True)):
	    packed = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=size).compress(text)
	    assert read(packed) == text
	    assert read(packed + b"\x5a\x2a\x4d\x18\3\0\0\0xyz" + packed) == 2 * text
	    for end in {*range(1, min(40, len(packed))), len(packed) // 2, len(packed) - 1}:
	        try:
	            read(packed[:end])
	        except errors.Problem as e:
	            assert "x: damaged zstd file: " in str(e), e
	        else:
	            assert False, (len(packed), end)
	PY
}

# ---- parquet

need_pyarrow() { has pyarrow || skip "needs pyarrow (make venv)"; }
# Run Python with pyarrow as pa and its parquet as pq, and the parts of mt-tokens: arrow ARGS <PROGRAM
arrow() { { echo 'import sys, pyarrow as pa, pyarrow.parquet as pq
sys.path.insert(0, sys.argv.pop(1))'; cat; } | "$REAL_PYTHON" -B - "$MT" "$@"; }

@test "of a parquet file only the columns that are used are read; the others are named" {
	local PYTHON=$REAL_PYTHON
	need_pyarrow
	arrow "$T" <<-'PY'
		size, names = 1 << 20, ("text", "image", "id")
		table = pa.table({"text": ["aa", "bb"], "image": [b"x" * size, b"y" * size], "id": [3, 4]})
		pq.write_table(table, sys.argv[1] + "/good", compression="none")
		data = bytearray(open(sys.argv[1] + "/good", "rb").read())
		for i in 1, 2:                  # whoever reads these columns fails
		    at = pq.read_metadata(sys.argv[1] + "/good").row_group(0).column(i).data_page_offset
		    data[at:at + 8] = b"\xff" * 8
		open(sys.argv[1] + "/bad", "wb").write(data)
		for name, columns in ("pairs", {"question": ["2+2?"], "chosen": ["xa"], "rejected": ["xb"]}), (
		        "none", {"image": [b"x"], "question": ["q"]}):
		    pq.write_table(pa.table(columns), sys.argv[1] + "/" + name)
	PY
	printf '{"text": "%s"}\n' aa bb | bytes >"$T/want"
	bytes "$T/bad" | cmp "$T/want" -
	grep -q "keys that are not used: 'image' (in 2 lines), 'id' (in 2 lines)" "$T/err"
	refuses 65 "$T/pairs" "row 1: there is no prompt, but text in 'question'"
	refuses 65 "$T/none" "row 1: has neither"
	grep -q "its keys: image, question" "$T/err"
}

@test "times of parquet that Python does not have are text; text that is not UTF-8 exits 65, rows before it are read" {
	need_pyarrow
	arrow "$T" <<-'PY'
		times = {"ns": pa.array([1700000000123456789] * 3, pa.timestamp("ns")),
		         "year": pa.array([1 << 60] * 3, pa.timestamp("ms")), "date": pa.array([1 << 30] * 3, pa.date32()),
		         "duration": pa.array([1 << 55] * 3, pa.duration("s")),
		         "zone": pa.array([0] * 3, pa.timestamp("s", "UTC"))}
		for name, column in times.items():
		    pq.write_table(pa.table({"text": ["aa", "bb", "cc"], name: column, "meta": pa.StructArray.from_arrays(
		        [column], ["at"])}), sys.argv[1] + "/" + name)
		    pq.write_table(pa.table({"text": ["aa", "bb", "cc"], "tools": column}), sys.argv[1] + "/used-" + name)
		ends = pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0\6\0\0\0")
		bad = pa.StringArray.from_buffers(3, ends, pa.py_buffer(b"okokx\xfe"))
		pq.write_table(pa.table({"text": bad}), sys.argv[1] + "/utf8")
		pq.write_table(pa.table({"text": [b"aa"]}), sys.argv[1] + "/binary")
	PY
	local file
	printf '{"text": "%s"}\n' aa bb cc | bytes >"$T/want"
	for file in ns year date duration zone used-ns used-year used-date used-duration used-zone; do
		bytes "$T/$file" | cmp "$T/want" - || { cat "$T/err"; return 1; }
	done
	refuses 65 "$T/utf8" "row 3: 'text' is not UTF-8: byte 0xfe"
	printf '{"text": "ok"}\n{"text": "ok"}\n' | bytes | cmp - "$T/out"
	refuses 65 "$T/binary" "row 1: 'text' is not a string"
}

@test "a damaged page of parquet exits 65 with the file and the row group; rows of groups before it are read" {
	need_pyarrow
	arrow "$T" <<-'PY'
		table = pa.table({"text": ["%d is a number" % i for i in range(30)]})
		name = sys.argv[1] + "/page"
		for coding in True, False:
		    pq.write_table(table, name, row_group_size=10, use_dictionary=coding)
		    chunk = pq.read_metadata(name).row_group(1).column(0)
		    data = bytearray(open(name, "rb").read())
		    at = chunk.dictionary_page_offset or chunk.data_page_offset
		    data[at:at + 4] = b"\xff" * 4
		    open(name + str(int(coding)), "wb").write(data)
	PY
	for i in $(seq 0 9); do echo "{\"text\": \"$i is a number\"}"; done | bytes >"$T/want"
	for i in 0 1; do
		refuses 65 "$T/page$i" "damaged parquet file: row group 2: "
		cmp "$T/want" "$T/out"
	done
}

@test "a small parquet file that stands for gigabytes is read row by row; a row beyond the limit exits 65" {
	need_pyarrow
	arrow "$T/x" <<-'PY'
		from tokens import arrow, errors
		long, name = "x" * (4 << 20), sys.argv[1]
		def used():
		    with open("/proc/self/status") as f:
		        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) >> 10
		options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30}
		tables = pa.table({"text": pa.DictionaryArray.from_arrays([0] * 250, [long]).cast(pa.string())}), pa.table(
		    {"messages": [[{"role": "user", "content": long[:1 << 20]}] * 4] * 200})
		files = []
		for i, table in enumerate(tables):
		    files.append(name + str(i))
		    pq.write_table(table, files[-1], **options)
		del table, tables
		pa.default_memory_pool().release_unused()
		open("/proc/self/clear_refs", "w").write("5")           # VmHWM from now on
		before = used()
		for file in files:
		    for row, _ in zip(arrow.parquet_rows(file), range(20)):
		        assert len(row) > len(long)
		assert used() - before < 300, (before, used())
		arrow.LONGEST = 1 << 20
		try:
		    next(arrow.parquet_rows(files[0]))
		except errors.Problem as e:
		    assert "row 1 is longer than 1 GiB" in str(e), e
		else:
		    assert False
	PY
}

@test "too little memory for a parquet file exits 71 and is not called damage" {
	need_pyarrow
	arrow "$T/big" <<-'PY'
		import resource
		from tokens import arrow, errors
		pq.write_table(pa.table({"text": ["x" * (256 << 20)]}), sys.argv[1], compression="zstd", use_dictionary=False)
		pa.default_memory_pool().release_unused()
		with open("/proc/self/statm") as f:
		    have = int(f.read().split()[0]) * resource.getpagesize()
		resource.setrlimit(resource.RLIMIT_AS, (have + (64 << 20),) * 2)
		try:
		    next(arrow.parquet_rows(sys.argv[1]))
		except errors.Problem as e:
		    assert e.code == 71 and "big: row group 1: not enough memory" in str(e), (e.code, e)
		else:
		    assert False
	PY
}

# ---- MODEL

@test "an id outside the vocabulary of MODEL/config.json exits 65 with the line, the token's text and the remedy" {
	need_transformers
	mkdir "$T/model"
	"$PYTHON" - "$T/model" <<-'PY'
	import sys
	from tokenizers import Tokenizer, models, pre_tokenizers
	from transformers import PreTrainedTokenizerFast
	t = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<eos>": 2, "<|tool|>": 3}, unk_token="a"))
	t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
	PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>").save_pretrained(sys.argv[1])
	PY
	printf '%s\n' '{"text": "a b"}' '{"text": "b <|tool|> a"}' >"$T/in"
	echo 'b <|tool|>' >"$T/prompts"
	local config how
	for how in "" --plain; do
		for config in '{"vocab_size": 3}' '{"vocab_size": 9, "text_config": {"vocab_size": 3}}'; do
			echo "$config" >"$T/model/config.json"
			exits 65 "$PYTHON" "$MT/mt-tokens" $how "$T/model" "$T/in" >"$T/rec" 2>"$T/err"
			grep -qF "in: line 2: token 3, '<|tool|>', is outside the vocabulary of 3 in the model's" "$T/err"
			grep -qF "mt-ckpt convert $T/model NEW --resize-vocab N" "$T/err"
			[ "$(wc -c <"$T/rec")" = 16 ]
		done
	done
	no "$PYTHON" "$MT/mt-tokens" --plain --prompts "$T/model" "$T/prompts" 2>"$T/err" >"$T/rec"
	grep -qF "token 3, '<|tool|>', is outside" "$T/err"
	for config in '{"vocab_size": 4}' '{}' 'none'; do
		echo "$config" >"$T/model/config.json"
		"$PYTHON" "$MT/mt-tokens" --plain "$T/model" "$T/in" >"$T/rec" 2>"$T/err"
	done
}

@test "a FIFO or device in the model's directory exits 65, and is not waited for" {
	local name
	mkdir "$T/model"
	for name in config.json tokenizer.json tokenizer_config.json chat_template.jinja; do
		echo '{}' >"$T/model/config.json"
		echo '{}' >"$T/model/tokenizer_config.json"
		for plant in mkfifo "ln -s /dev/zero"; do
			rm -f "$T/model/$name"
			$plant "$T/model/$name"
			fails_with 65 timeout 20 "$MT/mt-tokens" "$T/model" "$FILES/lines"
			grep -q "model/$name: not a regular file" "$T/fails.err"
		done
		rm "$T/model/$name"
	done
}

@test "MODEL and FILE that are swapped exit 64, a GGUF exits 78 and names the recipe" {
	mkdir "$T/model" "$T/gguf"
	echo '{}' >"$T/model/config.json"
	cp "$FILES/lines" "$T/chats.jsonl"
	bytes "$T/chats.jsonl" >"$T/chats.rec"
	fails_with 64 "$MT/mt-tokens" "$T/chats.jsonl" "$T/model"
	grep -qF "chats.jsonl: is a file, expected the directory of a model before the FILEs: mt-tokens $T/model $T" \
		"$T/fails.err"
	fails_with 64 "$MT/mt-tokens" "$T/chats.jsonl"
	grep -qF "mt-tokens MODEL $T/chats.jsonl" "$T/fails.err"
	fails_with 64 "$MT/mt-tokens" "$T/chats.rec"
	grep -qF "chats.rec: is a file of records, expected the directory" "$T/fails.err"
	fails_with 66 "$MT/mt-tokens" --bytes "$T/model" "$T/chats.jsonl"
	grep -qF "is a directory, expected a file of documents; MODEL stands before the FILEs, and not with --bytes" \
		"$T/fails.err"
	printf 'GGUF\003\0\0\0' >"$T/gguf/small.gguf"
	local model
	for model in "$T/gguf" "$T/gguf/small.gguf"; do
		fails_with 78 "$MT/mt-tokens" "$model" "$T/chats.jsonl"
		grep -qF "small.gguf: is a GGUF file" "$T/fails.err"
		grep -qF '"A model in GGUF" in the README and in mt-tokens(1)' "$T/fails.err"
	done
}
