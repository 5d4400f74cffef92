#!/usr/bin/env bats
# mt-run --numa auto, on nodes that a directory in place of /sys describes. tests/numa does it on emulated machines.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --wait 30 --dtype fp32"

# The programs, of which taskset and mt-store write down how they are called. The cores that taskset names need not
# exist, nor the nodes of mt-store create --numa.
programs() {
	mkdir "$T/bin"
	ln -s "$MT"/* "$T/bin"
	rm "$T/bin/mt-store"
	cat >"$T/bin/taskset" <<-END
		#!/bin/sh
		if [ "\$1" = -cp ]; then echo "pid \$2's current affinity list: \$(cat '$T/allowed')"; exit; fi
		echo "\$*" >>'$T/pinned'
		shift 2
		exec "\$@"
	END
	cat >"$T/bin/mt-store" <<-END
		#!/bin/sh
		if [ "\$1" = create ]; then
			echo "\$*" >>'$T/created'
			for word; do
				shift
				case \$word in --numa=*) ;; *) set -- "\$@" "\$word" ;; esac
			done
		fi
		exec '$MT/mt-store' "\$@"
	END
	chmod +x "$T/bin/taskset" "$T/bin/mt-store"
}

# A machine: nodes ALLOWED-CORES NODES-WITH-MEMORY CORES-OF-NODE...
nodes() {
	local dir=$T/sys/devices/system/node i=0 list
	rm -rf "$T/sys"
	mkdir -p "$dir"
	echo "$1" >"$T/allowed"
	echo "$2" >"$dir/has_memory"
	for list in "${@:3}"; do
		mkdir "$dir/node$i"
		echo "$list" >"$dir/node$i/cpulist"
		i=$((i + 1))
	done
	export MT_SYSFS_DIR=$T/sys
}

run_it() {
	"$T/bin/mt-run" --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 6 "$@" \
		>"$T/m" 2>"$T/run.err" 3>&-
}
placed() { sed -n 's/^mt-run: NUMA: //p' "$T/run.err"; }
dry() {
	run_it --dry-run --numa auto "$@"
	placed >"$T/placed"
}

@test "--numa auto interleaves the store, pins an mt-stream to each node, and gives the bits of --numa none" {
	programs
	nodes 0-7 0-1 0-3 4-7
	run_it --threads 1
	timeless "$T/m" >"$T/whole"
	mv "$T/out/model/model.safetensors" "$T"
	rm -r "$T/out"
	[ ! -e "$T/pinned" ]
	no grep -e --numa "$T/created"
	[ -z "$(placed)" ]
	run_it --numa auto
	timeless "$T/m" | cmp - "$T/whole"
	cmp "$T/out/model/model.safetensors" "$T/model.safetensors"
	tail -n 1 "$T/created" | grep -q -e " --numa=interleave:0,1$"
	[ "$(sort "$T/pinned")" = "-c 0-3 mt-stream $RUN --device cpu --threads 4
-c 4-7 mt-stream $RUN --device cpu --threads 4" ]
	[ "$(placed)" = "the store is interleaved over nodes 0,1; mt-optim runs on all of them
mt-stream.0 runs and allocates on node 0 (cores 0-3), mt-stream.1 on node 1 (cores 4-7)" ]
}

# bats test_tags=slow
@test "--numa auto: --streams and --threads are kept; mt-streams share a node, or get several" {
	programs
	nodes 0-7 0-1 0-1,4-5 2-3,6-7
	run_it --numa auto --streams 3
	[ "$(sort "$T/pinned" | sed 's/mt-stream.*--threads //')" = "-c 0-1,4-5 2
-c 0-1,4-5 2
-c 2-3,6-7 4" ]
	rm -r "$T/out" "$T/pinned"
	run_it --numa auto --threads 1
	[ "$(grep -c -e "--threads 1$" "$T/pinned")" = 2 ]
	rm -r "$T/out"
	nodes 0-9 0-4 0-1 2-3 4-5 6-7 8-9
	dry --streams 2
	want="mt-stream.0 runs and allocates on node 0,1 (cores 0-1,2-3), mt-stream.1 on node 2,3,4 (cores 4-5,6-7,8-9)"
	[ "$(tail -n 1 "$T/placed")" = "$want" ]
}

@test "--numa auto: a step of one micro-batch, or --streams 1, has one mt-stream on all nodes" {
	programs
	nodes 0-7 0-1 0-3 4-7
	ARGS=$(with "$ARGS" --micro 4)
	dry
	[ "$(wc -l <"$T/placed")" = 2 ]
	grep -q "^one mt-stream runs on all nodes (one a node needs several micro-batches a step: --micro)$" "$T/placed"
	ARGS=$(with "$ARGS" --micro 2)
	dry --streams 1
	grep -q "^one mt-stream runs on all nodes" "$T/placed"
}

@test "--numa auto leaves out nodes without memory or without cores that mt-run may use; on one node it does nothing" {
	programs
	nodes 0,3,8-9 0-1,3-4 0-1 2-5 8-9 '' 6-7
	dry
	[ "$(tail -n 1 "$T/placed")" = \
		"mt-stream.0 runs and allocates on node 0 (cores 0), mt-stream.1 on node 1 (cores 3)" ]
	nodes 4-7 0-1 0-3 4-7
	run_it --numa auto
	[ "$(placed)" = "there is one node, so nothing is placed" ]
	no grep -e --numa "$T/created"
	[ ! -e "$T/pinned" ]
	rm -r "$T/sys/devices"              # a kernel without NUMA
	dry --resume
	grep -qx "there is one node, so nothing is placed" "$T/placed"
}

# bats test_tags=slow
@test "--numa auto: with a GPU, mt-stream and mt-store create run on the node of that GPU" {
	programs
	rm "$T/bin/mt-stream"
	printf '%s\n' '#!/bin/sh' "exec '$MT/mt-stream' \"\$1\" --device cpu" >"$T/bin/mt-stream"
	cat >"$T/bin/nvidia-smi" <<-END
		#!/bin/sh
		case "\$1 \$2 \$3" in
		"-i GPU-b --query-gpu=pci.bus_id") echo 00000000:3B:00.0 ;;
		"-i GPU-c --query-gpu=pci.bus_id") echo 00000000:5E:00.0 ;;
		*) exit 1 ;;
		esac
	END
	chmod +x "$T/bin/mt-stream" "$T/bin/nvidia-smi"
	nodes 0-7 0-1 0-3 4-7
	mkdir -p "$T/sys/bus/pci/devices/0000:3b:00.0"
	echo 1 >"$T/sys/bus/pci/devices/0000:3b:00.0/numa_node"
	CUDA_VISIBLE_DEVICES=GPU-a,GPU-b run_it --numa auto --device cuda:1
	sed -n 1p "$T/pinned" | grep -q "^-c 4-7 mt-store create $RUN "
	sed -n 2p "$T/pinned" | grep -q "^-c 4-7 mt-stream $RUN --device cuda:1 --threads 4"
	[ "$(wc -l <"$T/pinned")" = 2 ]
	grep -q -e " --numa=interleave:0,1$" "$T/created"
	[ "$(placed | tail -n 1)" = "mt-stream.0 runs and allocates on node 1 (cores 4-7), that of GPU 0000:3b:00.0" ]
	# several GPUs: each mt-stream on the node of its own, whose cores those of one node share
	for node in 0 1; do
		mkdir -p "$T/sys/bus/pci/devices/0000:5e:00.0"
		echo $node >"$T/sys/bus/pci/devices/0000:5e:00.0/numa_node"
		rm -r "$T/out" "$T/pinned"
		CUDA_VISIBLE_DEVICES=GPU-c,GPU-b run_it --numa auto --device cuda:0,cuda:1
		local cores=(0-3 4-7) threads=$((node ? 2 : 4))
		sed -n 2p "$T/pinned" | grep -q "^-c ${cores[node]} mt-stream $RUN --device cuda:0 --threads $threads"
		sed -n 3p "$T/pinned" | grep -q "^-c 4-7 mt-stream $RUN --device cuda:1 --threads $threads"
		[ "$(placed | tail -n 1)" = "mt-stream.0 runs and allocates on node $node (cores ${cores[node]}), that of GPU \
0000:5e:00.0, mt-stream.1 on node 1 (cores 4-7), that of GPU 0000:3b:00.0" ]
	done
	rm -r "$T/out" "$T/pinned"
	run_it --numa auto --device cuda
	[ ! -e "$T/pinned" ]
	[ "$(placed | tail -n 1)" = "the mt-streams run on all nodes: that of the GPU is not known" ]
}

@test "memory of nodes without cores does not count as free" {
	nodes 0-1 0-1,8 0 1
	local dir=$T/sys/devices/system/node all less
	all=$(MT_SYSFS_DIR='' mt-store stat --memory --json | value memory_available)
	mkdir "$dir/node8"
	printf 'Node 8 %s: 1048576 kB\n' MemFree 'Active(file)' >"$dir/node8/meminfo"
	printf 'Node 8 %s: 0 kB\n' 'Inactive(file)' SReclaimable >>"$dir/node8/meminfo"
	echo 0-1 >"$dir/has_cpu"
	less=$(mt-store stat --memory --json | value memory_available)
	[ $((all - less)) -gt $((3 << 29)) ] && [ $((all - less)) -lt $((5 << 29)) ]
	echo 0-1,8 >"$dir/has_cpu" # with cores it counts
	less=$(mt-store stat --memory --json | value memory_available)
	[ $((all - less)) -lt $((1 << 29)) ]
}

@test "--numa with another word exits 64, --numa auto without taskset 78" {
	try() { mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 6 "$@"; }
	fails_with 64 try --numa interleave
	grep -qx "mt-run: --numa: 'interleave' is not auto or none" "$T/fails.err"
	mkdir "$T/few"
	ln -s /usr/bin/* /bin/* "$T/few" 2>/dev/null || true
	rm "$T/few/taskset"
	PATH=$T/few fails_with 78 "$MT/mt-run" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS \
		--steps 6 --numa auto
	grep -qx "mt-run: --numa auto needs taskset: apt-get install util-linux" "$T/fails.err"
	[ ! -e "$T/out" ]
}
