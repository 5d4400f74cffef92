# mt-score: log-probabilities of records under the weights of a run.
load helpers

CASE=$GOLDEN/llama3
FAMILIES="llama3 qwen3 gemma2 gemma4 granite cohere2 phi gpt2 mixtral gpt-oss qwen3-5 lfm2 deepseek-v3 nemotron-h"
FAMILIES="$FAMILIES falcon-h1"

# An mt-stream in the background: stream [OPTIONS]
stream() { spawn stream mt-stream "$RUN" --threads 1 "$@"; }

# Documents of 1 to 300 tokens, whose first third is context only: write_documents FILE VOCABULARY [MOST]
write_documents() {
	PYTHONPATH=$GOLDEN python3 - "$@" <<-'END'
		import random, sys
		from records import CONTEXT_ONLY, write_records
		draw = random.Random(1)
		lengths = [1, 2, 40, 63, 64, 65, 24, 3, 100, 130, 300, 7]
		write_records(sys.argv[1], [[draw.randrange(int(sys.argv[2])) | (CONTEXT_ONLY if i < n // 3 else 0)
			for i in range(n)] for n in lengths if n <= int([*sys.argv, 300][3])])
	END
}

vocab_of() { sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' "$1/config.json"; }

scores() { # OUT [OPTIONS]: of $T/rec, in rows of 64
	local out=$1
	shift
	mt-score "$RUN" --seq 64 "$@" <"$T/rec" >"$out" 2>"$out.err"
}

# bats test_tags=slow
@test "each token's log-probability is transformers' in fp64, for families of all kinds" {
	need_torch
	for case in $FAMILIES; do
		make_run "$GOLDEN/$case/model" --dtype fp32
		stream
		write_documents "$T/$case.rec" "$(vocab_of "$GOLDEN/$case/model")" 64
		mt-score "$RUN" --seq 64 --micro 3 --tokens <"$T/$case.rec" >"$T/$case.lines"
		end "$PID"
		mt-store rm "$RUN"
	done
	with_torch "$GOLDEN/scores.py" "$GOLDEN" "$T" $FAMILIES
}

@test "--sum has the bits of mt-step's eval loss, and the lines of documents add up to it" {
	for dtype in fp32 bf16; do
		make_run "$CASE/model" --dtype $dtype
		start_stages
		mt-step "$RUN" $(cat "$CASE/args") --until 1 --eval "$CASE/eval.bin" --eval-every 1 <"$CASE/data.bin" >"$T/m"
		end "$OPTIM"
		cp "$CASE/eval.bin" "$T/rec"
		mt-score "$RUN" --seq 32 --micro 2 --sum <"$T/rec" >"$T/sum"
		mt-score "$RUN" --seq 32 --micro 2 <"$T/rec" >"$T/lines"
		python3 - "$T/m" "$T/sum" "$T/lines" <<-'END'
			import json, math, sys
			m, total, lines = ([json.loads(l) for l in open(f)] for f in sys.argv[1:])
			total = total[0]
			assert total["loss"] == m[-1]["eval_loss"], (total, m[-1])
			assert total["perplexity"] == math.exp(total["loss"])
			assert total["targets"] == sum(l["targets"] for l in lines) and total["documents"] == len(lines)
			assert abs(-sum(l["logp"] for l in lines) / total["targets"] - total["loss"]) < 1e-12 * total["loss"]
		END
		end "$STREAM"
		mt-store rm "$RUN"
	done
}

@test "greedy: is each token with loss the argmax? With context and where tokens are equally likely, too" {
	make_run "$CASE/model" --dtype fp32
	for i in 1 2 3 4; do printf '\4\0\0\0%b\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0' "\\$i"; done |
		mt-sample "$RUN" --temperature 0 --stop none --echo --max-tokens 90 >"$T/new"
	PYTHONPATH=$GOLDEN python3 - "$T/new" "$T/rec" "$T/want" <<-'END'
		import sys
		from records import CONTEXT_ONLY, read_records, write_records
		records, want = [], []
		for ids in map(list, read_records(sys.argv[1])):
		  for length in 30, 63:         # context, then the argmax; a row has 64 tokens
		    asked = [i | CONTEXT_ONLY for i in ids[:4]] + ids[4:length]
		    other = asked[:20] + [(asked[20] + 1) % 101] + asked[21:]
		    forgiven = asked[:20] + [ids[20] | CONTEXT_ONLY] + asked[21:]
		    records += [asked, ids[:length], other, forgiven, other[:20], asked[:4], asked[:-1] + [other[20]]]
		    want += [True, None, False, True, True, True, asked[-1] == other[20]]
		write_records(sys.argv[2], records)
		with open(sys.argv[3], "w") as f:
		  f.write(repr(want))
	END
	stream
	for how in "" "--tokens" "--micro 1 --pack none"; do
		scores "$T/lines" $how
		python3 - "$T/lines" "$T/want" <<-'END'
			import json, sys
			lines, want = [json.loads(l) for l in open(sys.argv[1])], eval(open(sys.argv[2]).read())
			assert len(lines) == len(want) == 56
			assert all(w in (None, line["greedy"]) for line, w in zip(lines, want)), list(zip(lines, want))
			assert all(list(l)[:4] == ["record", "logp", "targets", "greedy"] for l in lines)
		END
	done
	end "$PID"
	mt-store rm "$RUN"
	# logits that are all the same: the first token is the argmax
	PYTHONPATH=$GOLDEN python3 - "$CASE/model" "$T/flat" <<-'END'
		import os, shutil, struct, sys, json
		shutil.copytree(*sys.argv[1:])
		path = sys.argv[2] + "/model.safetensors"
		data = bytearray(open(path, "rb").read())
		n = struct.unpack("<Q", data[:8])[0]
		begin, end = json.loads(data[8:8 + n])["lm_head.weight"]["data_offsets"]
		data[8 + n + begin:8 + n + end] = bytes(end - begin)
		os.chmod(path, 0o600)
		open(path, "wb").write(data)
	END
	make_run "$T/flat" --dtype fp32
	stream
	PYTHONPATH=$GOLDEN python3 -c 'import sys; from records import write_records
write_records(sys.argv[1], [[5, 0, 0], [5, 0, 1], [5, 1, 0]])' "$T/rec"
	scores "$T/lines"
	[ "$(sed 's/.*"greedy": //' "$T/lines" | tr -d '\n')" = 'true}false}false}' ]
}

@test "the same bytes from two mt-streams, from any order of a device's queues, and with one replaced after kill -9" {
	write_documents "$T/rec" 101
	make_run "$CASE/model" --dtype bf16 --step-tokens 256
	stream --compute fp32
	for i in 1 2 3 4 5 6 7 8; do cat "$T/rec"; done >"$T/8"
	mv "$T/8" "$T/rec"
	scores "$T/one" --tokens --micro 2
	[ "$(wc -l <"$T/one")" = 96 ]
	spawn second mt-stream "$RUN" --compute fp32 --threads 2
	scores "$T/two" --tokens --micro 2
	cmp "$T/one" "$T/two"
	kill $(cat "$T/pids")
	wait
	spawn chaos mt-stream "$RUN" --device chaos:7
	scores "$T/chaos" --tokens --micro 2
	cmp "$T/one" "$T/chaos"
	for kill in 1 2 3; do
		local killed=$PID
		spawn score sh -c 'exec mt-score "$0" --seq 64 --tokens --micro 2 <"$1" >"$2"' "$RUN" "$T/rec" "$T/killed"
		local score=$PID
		sleep 0.0$((kill * 2))
		kill -9 "$killed"
		spawn next mt-stream "$RUN" --compute fp32
		wait "$score"
		cmp "$T/one" "$T/killed"
	done
}

# In mixtures, how many rows a GEMM has depends on the other documents
# bats test_tags=slow
@test "a document's log-probabilities are the same packed with others and alone, in layers of all kinds" {
	for case in llama3 qwen3-5 lfm2 nemotron-h granite-hybrid falcon-h1 deepseek-v3:1e-6 gemma4-moe:1e-6; do
		IFS=: read -r case bound <<<"$case"
		make_run "$GOLDEN/$case/model" --dtype fp32
		stream
		write_documents "$T/rec" "$(vocab_of "$GOLDEN/$case/model")"
		mt-score "$RUN" --seq 512 --tokens <"$T/rec" >"$T/packed"
		mt-score "$RUN" --seq 300 --tokens --pack none --micro 1 <"$T/rec" >"$T/alone"
		python3 - "$T/packed" "$T/alone" "${bound:-0}" <<-'END'
			import json, sys
			a, b = ([x for l in open(f) for x in json.loads(l)["tokens"] if x is not None] for f in sys.argv[1:3])
			assert len(a) == len(b) > 500
			assert max(abs(x - y) / max(1, abs(y)) for x, y in zip(a, b)) <= float(sys.argv[3])
		END
		kill "$PID"
		wait "$PID"
		mt-store rm "$RUN"
	done
}

# On the device, bf16 runs compute in bf16, and the cpu device here in fp32. But logits are fp32 on both
# bats test_tags=slow
@test "the emulated GPU's log-probabilities are the cpu's in fp32, near them in bf16, in any order of its streams" {
	local emulator=$BUILD/emu/mt-stream
	[ -x "$emulator" ] || skip "built without a C++ compiler, or with sanitizers"
	for case in llama3:fp32:1e-5 qwen3:bf16:2e-2 gemma2:bf16:2e-2 phi:bf16:2e-2; do
		IFS=: read -r case dtype bound <<<"$case"
		make_run "$GOLDEN/$case/model" --dtype "$dtype" --step-tokens 256
		write_documents "$T/rec" "$(vocab_of "$GOLDEN/$case/model")" 64
		for how in cpu 1 2; do
			if [ "$how" = cpu ]; then spawn stream mt-stream "$RUN" --compute fp32
			else spawn stream env MT_EMU_SEED="$how" "$emulator" "$RUN" --device cuda; fi
			scores "$T/$how" --tokens
			kill "$PID"
			wait "$PID"
			# chunk sizes are those that the run's first mt-stream chose
			[ "$how" = cpu ] || continue
			mt-store rm "$RUN"
			make_run "$GOLDEN/$case/model" --dtype "$dtype" --step-tokens 256
		done
		cmp "$T/1" "$T/2"
		python3 - "$T/cpu" "$T/1" "$bound" <<-'END'
			import json, sys
			a, b = ([x for l in open(f) for x in json.loads(l)["tokens"] if x is not None] for f in sys.argv[1:3])
			worst = max(abs(x - y) / max(1, abs(y)) for x, y in zip(a, b))
			print("worst:", worst)
			assert len(a) == len(b) > 100 and 0 < worst < float(sys.argv[3]), worst
		END
		mt-store rm "$RUN"
	done
}

@test "a killed mt-score leaves nothing behind: the next one scores, and training goes on with the same bits" {
	ready
	mt-step "$RUN" $(cat "$CASE/args") --until 6 <"$CASE/data.bin" >"$T/whole"
	state_of "$RUN" >"$T/state"
	mt-store rm "$RUN" --force
	eventually no kill -0 "$STREAM"
	ready
	mt-step "$RUN" $(cat "$CASE/args") --until 3 <"$CASE/data.bin" >"$T/first"
	cp "$CASE/eval.bin" "$T/rec"
	fails_with 75 sh -c 'mt-score "$0" --seq 32 <"$1"' "$RUN" "$T/rec"
	grep -q "mt-optim (pid $OPTIM) has this slot\|mt-optim" "$T/fails.err"
	end "$OPTIM"
	kill -STOP "$STREAM"
	spawn score sh -c 'exec mt-score "$0" --seq 32 <"$1"' "$RUN" "$T/rec"
	eventually sh -c 'mt-store stat "$0" | grep -q accumulate' "$RUN"
	kill -9 "$PID"
	wait "$PID" || true
	kill -CONT "$STREAM"
	mt-score "$RUN" --seq 32 <"$T/rec" >"$T/lines"
	[ "$(wc -l <"$T/lines")" -gt 5 ]
	spawn optim mt-optim "$RUN"
	mt-step "$RUN" $(cat "$CASE/args") --until 6 <"$CASE/data.bin" >"$T/rest"
	state_of "$RUN" | diff "$T/state" -
	timeless "$T/first" "$T/rest" >"$T/parts"
	timeless "$T/whole" | diff - "$T/parts"
}

@test "documents longer than a row: split ones are summed over their pieces, dropped ones have null, cut ones end" {
	make_run "$CASE/model" --dtype fp32
	stream
	write_documents "$T/rec" 101
	scores "$T/split" --tokens
	scores "$T/drop" --tokens --long drop
	scores "$T/cut" --tokens --long truncate
	scores "$T/alone" --tokens --pack none --micro 1
	python3 - "$T"/{split,drop,cut,alone} <<-'END'
		import json, sys
		split, drop, cut, alone = ([json.loads(l) for l in open(f)] for f in sys.argv[1:])
		lengths = [1, 2, 40, 63, 64, 65, 24, 3, 100, 130, 300, 7]
		assert all([l["record"] for l in lines] == list(range(1, 13)) for lines in (split, drop, cut, alone))
		for n, s, d, c, a in zip(lengths, split, drop, cut, alone):
		  assert s["targets"] == n - max(n // 3, 1) and len(s["tokens"]) == n, s
		  assert (d["logp"] is None) == (d["greedy"] is None) == (n > 64)
		  assert d["targets"] == (s["targets"] if n <= 64 else 0)
		  assert len(c["tokens"]) == min(n, 64)
		  near = [abs(x - y) <= 1e-5 * abs(y) for x, y in zip(a["tokens"], s["tokens"]) if y is not None]
		  assert all(near)
	END
}

@test "mt-score refuses what it cannot score, with one line" {
	make_run "$CASE/model" --dtype fp32
	printf '' >"$T/none"
	write_documents "$T/rec" 101
	write_documents "$T/large" 5000
	refuses() { # CODE FILE WORDS OPTIONS...
		local code=$1 file=$2 words=$3
		shift 3
		fails_with "$code" sh -c 'f=$1; shift; exec mt-score "$@" <"$f"' sh "$file" "$@"
		grep -q -- "$words" "$T/fails.err"
	}
	refuses 64 "$T/rec" "--seq T is needed" "$RUN"
	refuses 64 "$T/rec" "'concat' is not docs or none" "$RUN" --seq 64 --pack concat
	refuses 64 "$T/rec" "only one of --tokens and --sum" "$RUN" --seq 64 --tokens --sum
	refuses 64 "$T/rec" "does not fit ring batch.0" "$RUN" --seq 64 --micro 100000
	refuses 66 "$T/rec" "no such run" "no-$RUN" --seq 64 --wait 0.1
	refuses 69 "$T/rec" "no mt-stream came" "$RUN" --seq 64 --wait 0.1
	stream
	refuses 65 "$T/none" "no record at all" "$RUN" --seq 64
	refuses 65 "$T/large" "the vocabulary" "$RUN" --seq 64
	refuses 65 "$CASE/args" "text?" "$RUN" --seq 64
	mt-store create "${RUN}b" --config "$CASE/model" --node 0/2 2>/dev/null
	mt-ckpt load "${RUN}b" "$CASE/model" 2>/dev/null
	refuses 78 "$T/rec" "is on 2 nodes" "${RUN}b" --seq 64
	mt-store rm "${RUN}b"
}

# bats test_tags=slow
@test "mt-run --score writes the lines of mt-score, from weights alone, and leaves nothing" {
	make_run "$CASE/model" --dtype bf16
	stream
	mt-score "$RUN" --seq 32 --micro 512 <"$CASE/eval.bin" >"$T/lines"
	kill "$PID"
	wait "$PID"
	mt-store rm "$RUN"
	mt-run --run "$RUN" --score --model "$CASE/model" --data "$CASE/eval.bin" --seq 32 >"$T/own" 2>"$T/err"
	cmp "$T/lines" "$T/own"
	[ ! -s "$T/err" ]
	mt-run --run "$RUN" --score --model "$CASE/model" --data - --seq 32 --streams 2 --micro 3 --sum --dtype fp32 \
		<"$CASE/eval.bin" >"$T/sum"
	[ "$(value documents <"$T/sum")" = "$(wc -l <"$T/lines")" ]
	gone "$RUN"
	fails_with 64 mt-run --score --model "$CASE/model" --data "$CASE/eval.bin" --seq 32 --lr 1
	grep -q -- "--score does not take --lr" "$T/fails.err"
	fails_with 64 mt-run --score --model "$CASE/model" --data "$CASE/eval.bin"
	fails_with 66 mt-run --score --model "$T/none" --data "$CASE/eval.bin" --seq 32
	fails_with 65 mt-run --score --model "$CASE/model" --data "$CASE/args" --seq 32
	exits 65 mt-run --run "$RUN" --score --model "$CASE/model" --data /dev/null --seq 32 >"$T/none" 2>"$T/err"
	[ "$(cat "$T/err")" = "mt-score: stdin: no record at all" ]
	gone "$RUN"
}

@test "mt-run --score that is stopped, or whose mt-stream is killed, ends and removes the run" {
	mkfifo "$T/fifo"
	for how in TERM KILL; do
		spawn run mt-run --run "$RUN" --score --model "$CASE/model" --data "$T/fifo" --seq 32
		local run=$PID
		exec 8>"$T/fifo"
		cat "$CASE/eval.bin" >&8
		eventually sh -c 'mt-store stat "$0" | grep -q "mt-stream 0  pid"' "$RUN"
		if [ $how = TERM ]; then kill "$run"
		else kill -9 "$(mt-store stat "$RUN" | sed -n 's/^mt-stream 0 *pid \([0-9]*\).*/\1/p')"; fi
		code=0
		wait "$run" || code=$?
		exec 8>&-
		[ $code = $([ $how = TERM ] && echo 143 || echo 69) ]
		eventually gone "$RUN"
	done
}
