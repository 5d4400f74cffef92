# A run on several nodes: mt-link carries rings, decisions and weights between them, and N nodes give the bits of one
# machine. Here the nodes are processes of this machine, each with its own regions.
load helpers
load lib/nodes

# ---- the same bits

# bats test_tags=slow
@test "2, 3 and 4 nodes give the weights, the optimizer's state and the metrics of one machine" {
	local n
	one 2 "${ARGS[@]}"
	for n in 2 3 4; do
		nodes "$n" "${ARGS[@]}"
		same_as_one
		[ "$(wc -l <"$T/nodes.metrics")" = 8 ]
		rm -rf "$(region_dir 0)" "$(region_dir 1)" "$(region_dir 2)" "$(region_dir 3)"
	done
}

# bats test_tags=slow
@test "12 nodes, and 2 nodes with 5 mt-streams each, give the bits of one machine" {
	set -- $(with "${ARGS[*]}" --steps 2 --batch 12)
	CREATE="--streams 12" one 12 "$@"
	nodes 12 "$@"
	same_as_one
	rm -rf "$NODE_REGIONS/$RUN-"[0-9]*
	CREATE="--streams 5" STREAMS=5 nodes 2 "$@"
	same_as_one
}

# bats test_tags=slow
@test "fp32 weights, bf16 gradients, bf16 and int8 state, and Lion: nodes give the bits of one machine" {
	local how
	for how in "--dtype fp32" "--grad bf16" "--state bf16" "--state int8" "--optim lion"; do
		CREATE=$how one 2 "${ARGS[@]}"
		CREATE=$how nodes 2 "${ARGS[@]}"
		same_as_one
		rm -rf "$(region_dir one)" "$(region_dir 0)" "$(region_dir 1)"
	done
}

# bats test_tags=slow
@test "tied embeddings, with more and with fewer micro-batches than mt-streams, on nodes with two mt-streams each" {
	local MODEL=$GOLDEN/qwen3/model how
	for how in "--micro 1 --batch 7" "--micro 2 --batch 4"; do
		set -- $(with "${ARGS[*]}" $how)
		STREAMS=2 one 2 "$@"
		STREAMS=2 nodes 2 "$@"
		same_as_one
		rm -rf "$(region_dir one)" "$(region_dir 0)" "$(region_dir 1)"
	done
}

@test "a mixture of experts, whose gradients may be zero as a whole, on 3 nodes" {
	local MODEL=$GOLDEN/qwen3-moe/model
	cp "$GOLDEN/qwen3-moe/data.bin" "$T/records"
	one 3 "${ARGS[@]}"
	nodes 3 "${ARGS[@]}"
	same_as_one
}

@test "groups with weights and plain records, with evaluations, on 2 nodes" {
	local MODEL=$GOLDEN/llama-weights/model
	PYTHONPATH=$GOLDEN python3 - "$MODEL/../data.bin" "$T/records" <<-'END2'
		import sys
		from records import Group, read_records, write_records
		documents = read_records(sys.argv[1])
		plain = [list(d) for d in documents[:30]]
		groups = [Group(documents[i:i + 2]) for i in range(0, 60, 2) if sum(map(len, documents[i:i + 2])) <= 32]
		write_records(sys.argv[2], plain + documents[:20] + groups)
	END2
	set -- $(with "${ARGS[*]}" --steps 6 --seq 32) --eval "$T/records" --eval-every 3
	one 2 "$@"
	nodes 2 "$@"
	same_as_one
	grep -q '"eval_loss"' "$T/nodes.metrics"
}

# bats test_tags=slow
@test "objectives, with evaluations, on 3 nodes: losses, rewards, clipped targets and weights of one machine" {
	local loss MODEL CREATE="${CREATE:-} --top 8"
	for loss in dpo pg kd; do
		MODEL=$GOLDEN/llama-$loss/model
		cp "$GOLDEN/llama-$loss/data.bin" "$T/records"
		set -- $(with "${ARGS[*]}" --steps 4 --batch 4 --micro 1 --seq 40 --loss $loss) --eval "$T/records" \
			--eval-every 2
		one 3 "$@"
		nodes 3 "$@"
		same_as_one
		[ $loss = kd ] || grep -qE '"(accuracy|clip_fraction)": 0.[0-9]' "$T/nodes.metrics"
		rm -rf "$(region_dir one)" "$(region_dir 0)" "$(region_dir 1)" "$(region_dir 2)"
	done
}

@test "layers of gated DeltaNet on 2 nodes" {
	local MODEL=$GOLDEN/qwen3-5/model
	cp "$GOLDEN/qwen3-5/data.bin" "$T/records"
	one 2 "${ARGS[@]}"
	nodes 2 "${ARGS[@]}"
	same_as_one
}

# bats test_tags=slow
@test "blocks' own inputs, which are updated and carried right after the embedding, on 3 nodes" {
	local MODEL=$GOLDEN/gemma4-e/model
	cp "$GOLDEN/gemma4-e/data.bin" "$T/records"
	one 3 "${ARGS[@]}"
	nodes 3 "${ARGS[@]}"
	same_as_one
}

@test "latent attention and experts behind a dense layer on 3 nodes" {
	local MODEL=$GOLDEN/deepseek-v3/model
	cp "$GOLDEN/deepseek-v3/data.bin" "$T/records"
	one 3 "${ARGS[@]}"
	nodes 3 "${ARGS[@]}"
	same_as_one
}

@test "layers that are Mamba 2, experts, attention or an MLP alone on 3 nodes" {
	local MODEL=$GOLDEN/nemotron-h-moe/model
	cp "$GOLDEN/nemotron-h-moe/data.bin" "$T/records"
	one 3 "${ARGS[@]}"
	nodes 3 "${ARGS[@]}"
	same_as_one
}

@test "a bf16 run with exact routers on 3 nodes: each node has lo of all of them" {
	local MODEL=$GOLDEN/glm4-moe-bias/model
	cp "$GOLDEN/glm4-moe-bias/data.bin" "$T/records"
	one 3 "${ARGS[@]}"
	nodes 3 "${ARGS[@]}"
	same_as_one
}

@test "skipped steps, clipped gradients and evaluations are the same on nodes" {
	local clipped
	python3 - "$T/records" <<-'END'
	import struct, sys
	out = open(sys.argv[1], "wb")
	for step in range(8):        # steps 3 and 4 have no target
	    for row in range(4):
	        tokens = [3 + (step * 29 + row * 7 + i * i) % 90 for i in range(24)]
	        out.write(struct.pack("<25I", 24, *[t | (step in (2, 3)) << 31 for t in tokens]))
	END
	set -- "${ARGS[@]}" --pack none --eval "$GOLDEN/llama3/data.bin" --eval-every 3
	one 2 "$@"
	nodes 2 "$@"
	same_as_one
	[ "$(grep -c '"skipped": true' "$T/nodes.metrics")" = 2 ]
	[ "$(grep -c eval_loss "$T/nodes.metrics")" -ge 3 ]
	clipped=$(grep -o '"grad_norm": [0-9.]*' "$T/nodes.metrics" | awk '$2 > 1' | wc -l)
	[ "$clipped" -gt 0 ]
}

@test "2 nodes compute PyTorch's 20 steps, within the bounds of one machine" {
	local case=$GOLDEN/llama3
	cp "$case/data.bin" "$T/records"
	CREATE="--dtype fp32" nodes 2 $(cat "$case/args")
	MT_SHM_DIR=$(region_dir 0) mt-ckpt export "$RUN" "$T/final" --dtype fp32
	python3 "$GOLDEN/compare.py" "$case" --metrics "$T/nodes.metrics" --final "$T/final"
}

# bats test_tags=slow
@test "the chaos device on one node of three changes no bit" {
	one 2 "${ARGS[@]}"
	for seed in 1 2 3; do
		DEVICE_1=chaos:$seed nodes 3 "${ARGS[@]}"
		same_as_one
		rm -rf "$(region_dir 0)" "$(region_dir 1)" "$(region_dir 2)"
	done
}


# bats test_tags=slow
@test "all nodes use one recorded algorithm for an operation, even if each would select another" {
	local r
	CHOICES=40 nodes 3 "$(with "${ARGS[*]}" --steps 60)"
	for r in 0 1 2; do
		[ "$(wc -l <"$T/choices.$r")" = 40 ]
		diff <(sort "$T/choices.0") <(sort "$T/choices.$r")
	done
	[ "$(cut -d' ' -f3 "$T/choices.0" | sort -u | wc -l)" -gt 1 ]
}

# bats test_tags=slow
@test "nodes in two network namespaces, joined by a slow link, give the bits of one machine" {
	local a=mt${RUN}a b=mt${RUN}b net=10.99.$((RANDOM % 250))
	need_cmd tc
	mpirun --version | grep -q '(Open MPI) 4' || skip "needs Open MPI 4: 5 takes two namespaces for one machine"
	ip netns add "$a" 2>/dev/null || skip "needs network namespaces"
	echo "$a" >"$T/netns"
	ip netns exec "$a" true 2>/dev/null || skip "needs network namespaces (/sys)"
	ip netns add "$b"
	echo "$b" >>"$T/netns"
	ip link add va netns "$a" type veth peer name vb netns "$b"
	ip -n "$a" addr add "$net.1/24" dev va
	ip -n "$b" addr add "$net.2/24" dev vb
	for end in "$a lo" "$a va" "$b lo" "$b vb"; do ip -n ${end% *} link set ${end#* } up; done
	ip netns exec "$a" tc qdisc add dev va root tbf rate 50mbit burst 64k latency 50ms
	# what mpirun calls instead of ssh: HOST COMMAND...
	cat >"$T/agent" <<-END
		#!/bin/sh
		shift
		exec ip netns exec $b sh -c "\$*"
	END
	chmod +x "$T/agent"
	one 2 "${ARGS[@]}"
	MPIRUN="ip netns exec $a mpirun -host $net.1:1,$net.2:1 --mca plm_rsh_agent $T/agent --mca btl tcp,self \
		--mca btl_tcp_if_include $net.0/24 --mca oob_tcp_if_include $net.0/24" nodes 2 "${ARGS[@]}"
	same_as_one
}

# ---- ends

# Nodes in the background, until two steps are done
training() { # N
	mt-feed --epochs 400 "$GOLDEN/llama3/data.bin" >"$T/records"
	: >"$T/nodes.metrics"
	nodes "$1" "$(with "${ARGS[*]}" --steps 3000)" 3>&- &
	MPIRUN_PID=$!
	NODES=$1
	eventually trained
}
trained() { [ "$(wc -l <"$T/nodes.metrics")" -ge 2 ]; }
pid_of() { cat "$T/node-$1.$2.pid"; } # NODE NAME

# All nodes end, each mt-link with a line that has these words; and no process of them is left
ends() { # WORDS [NODE whose mt-link can say nothing]
	local r p
	no wait "$MPIRUN_PID"
	for ((r = 0; r < NODES; r++)); do
		[ "$r" = "${2:-}" ] || [ "$(grep -c "^mt-link: .*$1.*: the run ends on all nodes$" "$T/node-$r.link.err")" = 1 ]
		for p in $(cat "$T/node-$r.pids"); do eventually no kill -0 "$p"; done
	done
}

# bats test_tags=nightly
@test "a stage that is killed on any node ends the run on all, and each node says which one" {
	local victim
	for victim in "0 step mt-step" "0 optim mt-optim" "1 optim mt-optim" "1 stream0 mt-stream 2" \
		"2 stream0 mt-stream 4"; do
		set -- $victim
		training 3
		kill -9 "$(pid_of "$1" "$2")"
		shift 2
		ends "node $(cut -d' ' -f1 <<<"$victim"): $* (pid [0-9]*) has died"
		forget_nodes
	done
}

# bats test_tags=slow
@test "an mt-link that is asked to stop before it has heard why the run ends says why" {
	local link
	training 3
	link=$(pid_of 2 link)
	kill -STOP "$link"
	kill "$link"
	kill -9 "$(pid_of 0 optim)"
	eventually grep -q "has died: the run ends on all nodes$" "$T/node-1.link.err"
	kill -CONT "$link" || true # mpirun may have done so
	ends "node 0: mt-optim (pid [0-9]*) has died"
}

# bats test_tags=slow
@test "a run that ends with its last step is complete on all nodes, however late node 0's mt-link looks" {
	no_asan
	local r cpu
	cpu=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
	mkdir "$T/bin"
	ln -s "$MT"/mt-* "$T/bin"
	rm "$T/bin/mt-link" "$T/bin/mt-optim"
	# mt-optim can go on when mt-link sleeps, which it does for long
	cat >"$T/bin/mt-optim" <<-END
		#!/bin/sh
		[ "\$OMPI_COMM_WORLD_RANK" = 0 ] || exec "$MT/mt-optim" "\$@"
		exec taskset -c $cpu nice -n 19 "$MT/mt-optim" "\$@"
	END
	cat >"$T/bin/mt-link" <<-END
		#!/bin/sh
		[ "\$OMPI_COMM_WORLD_RANK" = 0 ] || exec "$MT/mt-link" "\$@"
		export LD_PRELOAD=$PROBES/so-long-sleep.so
		exec taskset -c $cpu "$MT/mt-link" "\$@"
	END
	chmod +x "$T/bin/mt-link" "$T/bin/mt-optim"
	PATH=$T/bin:$PATH nodes 3 "$(with "${ARGS[*]}" --steps 2)"
	for r in 0 1 2; do MT_SHM_DIR=$(region_dir $r) mt-store stat "$RUN" | grep -q "^run $RUN: filled, step 2$"; done
}

# bats test_tags=slow
@test "an mt-link that is killed ends the run on all nodes; on its own, mt-store serve ends the stages" {
	local r
	for r in 0 1; do
		training 2
		kill -9 "$(pid_of $r link)"
		ends "node $r is gone: its mt-link has died" $r
		grep -q "^mt-store: mt-link (pid [0-9]*) has died" "$T/node-$r.serve.err"
		grep -q "^mt-optim: .*store is dirty" "$T/node-$r.optim.err"
		forget_nodes
	done
}

# bats test_tags=slow
@test "a node that is silent for --timeout seconds counts as dead" {
	LINK_OPTIONS="--timeout 2" training 2
	kill -STOP "$(pid_of 1 link)"
	eventually grep -q "^mt-link: node 1 has been silent for [0-9]* s: the run ends on all nodes" "$T/node-0.link.err"
	kill -CONT "$(pid_of 1 link)" || true # mpirun may have done so
	ends "node 1 has been silent"
}

# ---- refused

@test "--node wants R/N, at most 64 nodes, and gradients that are kept; all nodes together have 64 mt-streams" {
	local how
	for how in "3/3" "0/0" "0/65" "1" "a/2" "0/2x" "-1/2" "0/"; do
		fails_with 64 mt-store create "$RUN" --config "$MODEL" --node "$how"
	done
	fails_with 64 mt-store create "$RUN" --config "$MODEL" --node 0/2 --grad none
	for how in "0/64 --streams 2" "1/2 --streams 33" "2/3 --streams 22"; do
		fails_with 64 mt-store create "$RUN" --config "$MODEL" --node $how
		grep -q -- "--streams: .* a run has 1 to 64 mt-streams in all$" "$T/fails.err"
	done
	gone "$RUN"
}

@test "a node has rings for its own batches and for the gradients of all, node 0 for all batches; also of 64 nodes" {
	create() { mt-store create "$RUN" --config "$MODEL" --step-tokens 1K --node "$@" 2>/dev/null; }
	rings() { for ring; do mt-store ring "$RUN" "copy.$ring" --like "$ring"; done; }
	create 1/3 --streams 4
	rings grad.0 grad.11 batch.4 batch.7 link.4 link.7 squares
	for ring in batch.3 batch.8 link.3 link.8; do
		fails_with 66 mt-store ring "$RUN" more --like $ring
		grep -q "no ring '$ring' in run '$RUN': this is node 1, with mt-streams 4 to 7$" "$T/fails.err"
	done
	fails_with 66 mt-store ring "$RUN" more --like grad.12
	grep -q "has 12 mt-streams at most: mt-store create --streams$" "$T/fails.err"
	mt-store rm "$RUN"
	create 0/3 --streams 4
	rings grad.0 grad.11 batch.0 batch.11 link.0 link.3 squares.1 squares.2
	mt-store rm "$RUN"
	create 63/64
	rings grad.0 grad.63 batch.63 link.63
	spawn hold store-hold "$RUN" 8
	eventually grep -qx held "$T/hold.out"
	mt-store stat "$RUN" | grep -q "^mt-stream 63 *pid $PID"
}

@test "mt-link refuses a run on one machine, a wrong number of processes, and nodes with different runs" {
	make_run "$MODEL" --step-tokens 4K
	fails_with 78 mt-link "$RUN"
	grep -q "is on one machine" "$T/fails.err"
	mt-store rm "$RUN"
	make_run "$MODEL" --step-tokens 4K --node 0/2
	run mt-link "$RUN" # which may say first that MPI starts slowly
	[ "$status" = 78 ]
	[[ ${lines[-1]} = *"this run is node 0 of 2, MPI started this process as number 0 of 1"* ]]
}

@test "the keyed hash by which nodes know each other has the values of SipHash's authors" { link-siphash; }

# mt-link with LIBRARY preloaded, in $T/bin
preload() { # LIBRARY
	no_asan
	mkdir "$T/bin"
	printf '#!/bin/sh\nexport LD_PRELOAD=%s\nexec "%s/mt-link" "$@"\n' "$1" "$MT" >"$T/bin/mt-link"
	chmod +x "$T/bin/mt-link"
}

# Two nodes train while the Python script $T/NAME runs; node 1 connects first to the port that it prints
nodes_meet() { # NAME
	spawn "$1" "$PYTHON" "$T/$1"
	eventually test -s "$T/$1.out"
	MT_STRANGER=$(head -n 1 "$T/$1.out")
	export MT_STRANGER
	PATH=$T/bin:$PATH nodes 2 "$(with "${ARGS[*]}" --steps 2)"
}

@test "a stranger who listens where node 0 is expected gets no proof; the node tries again, and the run trains" {
	preload "$PROBES/so-stranger.so"
	cat >"$T/stranger" <<-'END'
		import os, socket, sys
		door = socket.socket(socket.AF_INET6)
		door.bind(("::1", 0))
		door.listen()
		print(door.getsockname()[1], flush=True)
		guest, _ = door.accept()
		hello = guest.recv(100)
		guest.sendall(os.urandom(24))
		rest = guest.recv(100)
		print("hello", len(hello), "proof", len(rest), flush=True)
	END
	nodes_meet stranger
	eventually grep -qx "hello 24 proof 0" "$T/stranger.out"
}

# bats test_tags=slow
@test "strangers who connect to node 0 and say nothing, too little or something else hold no node up" {
	preload "$PROBES/so-stranger.so"        # node 1 comes two seconds later
	cat >"$T/strangers" <<-'END'
		import glob, os, socket, time
		held = []
		door = socket.socket(socket.AF_INET6)
		door.bind(("::1", 0))
		door.listen()
		print(door.getsockname()[1], flush=True)
		def ports():
		    listening = {}
		    for line in open("/proc/net/tcp6"):
		        words = line.split()
		        if words[3] == "0A": listening[words[9]] = int(words[1].split(":")[1], 16)
		    for name in glob.glob("/proc/[0-9]*/comm"):
		        try:
		            if open(name).read().strip() != "mt-link": continue
		            for fd in glob.glob(os.path.dirname(name) + "/fd/*"):
		                port = listening.get(os.readlink(fd)[8:-1], 0)
		                if port > 9999: yield port          # MPI's own are from 1024 on
		        except OSError: pass
		while True:
		    for port in ports():
		        for i in range(90):
		            s = socket.socket()
		            s.settimeout(0.05)
		            try:
		                s.connect(("127.0.0.1", port))
		                if i % 3: s.send(os.urandom(24 * (i % 3) - 8))
		            except OSError: pass
		            held.append(s)
		        print(len(held), flush=True)
		        del held[:-800]
	END
	nodes_meet strangers
	[ "$(wc -l <"$T/strangers.out")" -gt 1 ]
}

# bats test_tags=slow
@test "a node that waits for another one's mt-link for 5 s says so" {
	mkdir "$T/bin"
	cat >"$T/bin/mt-link" <<-END
		#!/bin/sh
		waits="MPI_Init waits for the mt-link of another node"
		[ "\$OMPI_COMM_WORLD_RANK" = 0 ] || until grep -q "\$waits" "$T/node-0.link.err"; do sleep 0.1; done
		exec "$MT/mt-link" "\$@"
	END
	chmod +x "$T/bin/mt-link"
	PATH=$T/bin:$PATH nodes 2 "$(with "${ARGS[*]}" --steps 2)"
}

@test "mt-link's start does not bind itself to one core after another" {
	[ -e /sys/devices/system/cpu ] || skip "needs /sys, which lists the cores"
	make_run "$MODEL" --step-tokens 4K --node 0/2
	HWLOC_COMPONENTS_VERBOSE=1 run mt-link "$RUN"
	[ "$status" = 78 ]
	[[ $output = *"Final list of enabled discovery components"* ]] || skip "this MPI's hwloc lists no components"
	no grep "Final list of enabled discovery components.*x86" <<<"$output"
}

@test "nodes with different --streams are refused, and both numbers are named" {
	# shellcheck disable=SC2016
	no mpirun -n 2 --oversubscribe sh -c 'r=$OMPI_COMM_WORLD_RANK; export MT_SHM_DIR="$1-$r"
		mkdir "$MT_SHM_DIR" && mt-store create "$2" --config "$3" --node "$r/2" --streams $((r + 3)) --step-tokens 1K &&
		mt-ckpt load "$2" "$3" && mt-link "$2"' sh "$NODE_REGIONS/$RUN" "$RUN" "$MODEL" >"$T/out" 2>"$T/err" </dev/null
	[ "$(grep -c "^mt-link: the runs of node 0 and node 1 differ: mt-store create --streams 3 and 4$" "$T/err")" -ge 1 ]
	grep -q "Exit code: *78$\|exit code 78\|status 78" "$T/err"
}

# bats test_tags=slow
@test "nodes that were filled with different weights are refused" {
	OTHER_WEIGHT=1 no nodes 2 "${ARGS[@]}" --wait 1
	for r in 0 1; do
		[ "$(grep -c "^mt-link: the runs of node 0 and node 1 differ: .*weights$" "$T/node-$r.link.err")" = 1 ]
		[ "$(MT_SHM_DIR=$(region_dir $r) mt-store stat "$RUN" --json | grep -c '"state":"filled"')" = 1 ]
	done
	grep -qhx "node [01]: mt-link ended with 78" "$T"/node-?.ended
	[ ! -s "$T/nodes.metrics" ]
}

@test "mt-step says that mt-link is missing, after --wait seconds" {
	make_run "$MODEL" --step-tokens 4K --node 0/2
	start_stages
	exits 69 mt-step "$RUN" "${ARGS[@]}" --wait 0.5 <"$T/records" >"$T/m" 2>"$T/err"
	grep -qx "mt-step: no mt-link came in 0.5 s" "$T/err"
}

@test "stat shows a node's number and the memory that it has" {
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --node 1/4 2>"$T/create.err"
	mt-store stat "$RUN" >"$T/stat"
	grep -qx "node 1 of 4" "$T/stat"
	[ "$(mt-store stat "$RUN" --json | grep -o '"node":1,"nodes":4')" ]
	# weights of 2 bytes, and a quarter of lo, m, v, g: 2 + 14 / 4
	awk '/^memory:/ { exit !($6 > 5.5 && $6 < 5.7) }' "$T/stat"
	gone "${RUN}x"
}
